//! The subcommands that there are, and HELP, which lists them.

use super::table::takes;
use super::{Answered, Call, Command, find};
use crate::resp::{Reply, Request};

/// By command, each with its number of arguments: so many with both names, or at least so many if
/// negative. Each has `help`, too.
const OF: [(&str, &[(&str, i8)]); 15] = [
    ("acl", &[("cat", -2), ("genpass", -2), ("getuser", 3), ("list", 2), ("log", -2), ("users", 2), ("whoami", 2)]),
    (
        "client",
        &[
            ("getname", 2),
            ("getredir", 2),
            ("id", 2),
            ("info", 2),
            ("kill", -3),
            ("list", -2),
            ("no-evict", 3),
            ("no-touch", 3),
            ("pause", -3),
            ("reply", 3),
            ("setinfo", 4),
            ("setname", 3),
            ("tracking", -3),
            ("trackinginfo", 2),
            ("unblock", -3),
            ("unpause", 2),
        ],
    ),
    ("cluster", &[]),
    ("command", &[("count", 2), ("docs", -2), ("getkeys", -4), ("info", -2), ("list", -2)]),
    ("config", &[("get", -3), ("resetstat", 2), ("rewrite", 2), ("set", -4)]),
    ("function", &[("flush", -2), ("list", -2)]),
    ("latency", &[("doctor", 2), ("graph", 3), ("histogram", -2), ("history", 3), ("latest", 2), ("reset", -2)]),
    ("memory", &[("doctor", 2), ("purge", 2), ("stats", 2), ("usage", -3)]),
    ("module", &[("list", 2)]),
    ("object", &[("encoding", 3), ("freq", 3), ("idletime", 3), ("refcount", 3)]),
    ("pubsub", &[("channels", -2), ("numpat", 2), ("numsub", -2), ("shardchannels", -2), ("shardnumsub", -2)]),
    ("script", &[("exists", -3), ("flush", -2), ("kill", 2), ("load", 3)]),
    ("slowlog", &[("get", -2), ("len", 2), ("reset", 2)]),
    ("xgroup", &[("create", -5), ("createconsumer", 5), ("delconsumer", 5), ("destroy", 4), ("setid", -5)]),
    ("xinfo", &[("consumers", 4), ("groups", 3), ("stream", -3)]),
];

/// The subcommands of a command; `None`: it takes none.
fn of(command: &Command) -> Option<impl Iterator<Item = &'static str> + use<>> {
    Some(all(command)?.map(|(name, _)| name))
}

fn all(command: &Command) -> Option<impl Iterator<Item = (&'static str, i8)> + use<>> {
    let place = OF.binary_search_by(|(name, _)| (*name).cmp(command.name)).ok()?;
    Some(OF[place].1.iter().copied().chain([("help", 2)]))
}

/// What is wrong with a request that a transaction is to collect: there is no such subcommand, or
/// it takes another number of arguments.
pub fn refused(command: &Command, request: &Request) -> Option<Reply> {
    let what = request.get(1)?;
    let found = all(command)?.find(|(name, _)| what.eq_ignore_ascii_case(name.as_bytes()));
    match found {
        None => Some(super::server::no_subcommand(command.name, what).0),
        Some((name, arity)) if !takes(arity, request.len()) => {
            Some(super::wrong_number(&format!("{}|{name}", command.name)))
        }
        Some(_) => None,
    }
}

/// Whether a command has this subcommand.
pub fn is_known(command: &str, what: &[u8]) -> bool {
    let mut all = find(command.as_bytes()).and_then(of).into_iter().flatten();
    all.any(|known| what.eq_ignore_ascii_case(known.as_bytes()))
}

/// A command's name and those of its subcommands, as COMMAND LIST tells them.
pub fn named(command: &Command) -> impl Iterator<Item = String> + use<> {
    let name = command.name;
    let all = of(command).into_iter().flatten().map(move |what| format!("{name}|{what}"));
    [name.to_owned()].into_iter().chain(all)
}

/// The reply to HELP, if that is what is asked for.
pub fn help(command: &Command, call: &Call) -> Option<Answered> {
    if call.count() != 2 || !call.arg(1).eq_ignore_ascii_case(b"help") {
        return None;
    }
    let head =
        format!("{} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:", command.name.to_ascii_uppercase());
    let lines = [head].into_iter().chain(of(command)?.map(str::to_ascii_uppercase));
    Some(Ok(Reply::Array(lines.map(Reply::Line).collect())))
}

#[test]
fn subcommands_are_those_of_commands() {
    assert!(OF.windows(2).all(|pair| pair[0].0 < pair[1].0));
    let all: Vec<String> = super::COMMANDS.iter().flat_map(named).collect();
    assert!(OF.iter().all(|(name, _)| all.contains(&format!("{name}|help"))));
}
