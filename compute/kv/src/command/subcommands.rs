//! The subcommands that there are, and HELP, which lists them.

use super::{Answered, Call, Command, find};
use crate::resp::Reply;

/// By command. Each has `help`, too.
const OF: [(&str, &[&str]); 15] = [
    ("acl", &["cat", "genpass", "getuser", "list", "log", "users", "whoami"]),
    (
        "client",
        &[
            "getname",
            "getredir",
            "id",
            "info",
            "kill",
            "list",
            "no-evict",
            "no-touch",
            "pause",
            "reply",
            "setinfo",
            "setname",
            "tracking",
            "trackinginfo",
            "unblock",
            "unpause",
        ],
    ),
    ("cluster", &[]),
    ("command", &["count", "docs", "getkeys", "info", "list"]),
    ("config", &["get", "resetstat", "rewrite", "set"]),
    ("function", &["flush", "list"]),
    ("latency", &["doctor", "graph", "histogram", "history", "latest", "reset"]),
    ("memory", &["doctor", "purge", "stats", "usage"]),
    ("module", &["list"]),
    ("object", &["encoding", "freq", "idletime", "refcount"]),
    ("pubsub", &["channels", "numpat", "numsub", "shardchannels", "shardnumsub"]),
    ("script", &["exists", "flush", "kill", "load"]),
    ("slowlog", &["get", "len", "reset"]),
    ("xgroup", &["create", "createconsumer", "delconsumer", "destroy", "setid"]),
    ("xinfo", &["consumers", "groups", "stream"]),
];

/// The subcommands of a command; `None`: it takes none.
fn of(command: &Command) -> Option<impl Iterator<Item = &'static str> + use<>> {
    let place = OF.binary_search_by(|(name, _)| (*name).cmp(command.name)).ok()?;
    Some(OF[place].1.iter().copied().chain(["help"]))
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
