//! COMMAND: what commands there are, and which keys a request names.

use super::args::{is, parse_int};
use super::table::COMMANDS;
use super::{Answered, Call, Command, Fail, Group, find, subcommands};
use crate::resp::{Reply, matches};
use std::collections::BTreeSet;

pub fn run(call: &Call) -> Answered {
    let names = |wanted: &dyn Fn(&Command, &str) -> bool| {
        let named = |one| subcommands::named(one).filter(|name| wanted(one, name)).map(Reply::bulk);
        Reply::Array(COMMANDS.iter().flat_map(named).collect())
    };
    Ok(match (call.arg(1).to_ascii_lowercase().as_slice(), call.count()) {
        (b"", _) => Reply::Array(COMMANDS.iter().map(described).collect()),
        (b"count", 2) => Reply::Int(COMMANDS.len() as i64),
        (b"list", 2) => names(&|_, _| true),
        (b"list", 5) if is(call.arg(2), "filterby") => {
            let by = call.arg(4).to_ascii_lowercase();
            match call.arg(3).to_ascii_lowercase().as_slice() {
                b"pattern" => names(&|_, name| matches(&by, name.as_bytes())),
                b"aclcat" => names(&|one, _| is_of(one, &by)),
                // There are none.
                b"module" => names(&|_, _| false),
                _ => return Err(Fail::syntax()),
            }
        }
        (b"list", _) => return Err(Fail::syntax()),
        (b"info", 2) => Reply::Array(COMMANDS.iter().map(described).collect()),
        (b"info", _) => {
            let named = |name: &Vec<u8>| find(name).map_or(Reply::NullArray, described);
            Reply::Array(call.args[2..].iter().map(named).collect())
        }
        (b"docs", 2) => Reply::Map(COMMANDS.iter().map(documented).collect()),
        (b"docs", _) => {
            let named = call.args[2..].iter().filter_map(|name| find(name));
            Reply::Map(named.map(documented).collect())
        }
        (b"getkeys", 3..) => keys(&call.args[2..])?,
        _ => return Err(super::server::unknown(call, "command")),
    })
}

/// COMMAND DOCS of one: which group it is of. Redis's own pages have the rest.
fn documented(command: &Command) -> (Reply, Reply) {
    let summary = format!("As redis's {}", command.name.to_ascii_uppercase());
    let group = match category(command) {
        "keyspace" => "generic",
        "sortedset" => "sorted-set",
        other => other,
    };
    let about = [("summary", summary.as_str()), ("group", group)];
    let about = about.map(|(key, value)| (Reply::bulk(key), Reply::bulk(value)));
    (Reply::bulk(command.name), Reply::Map(about.into()))
}

/// ACL CAT.
pub fn categories(call: &Call) -> Answered {
    if call.count() == 2 {
        let groups = COMMANDS.iter().map(category);
        let all: BTreeSet<&str> = groups.chain(["read", "write"]).collect();
        return Ok(Reply::Array(all.into_iter().map(Reply::bulk).collect()));
    }
    let wanted = call.arg(2).to_ascii_lowercase();
    let of: Vec<Reply> = COMMANDS.iter().filter(|one| is_of(one, &wanted)).map(|one| Reply::bulk(one.name)).collect();
    if of.is_empty() {
        return Err(Fail::new(format!("Unknown category '{}'", String::from_utf8_lossy(call.arg(2)))));
    }
    Ok(Reply::Array(of))
}

fn described(command: &Command) -> Reply {
    let mut flags = vec![Reply::Line(if command.writes { "write" } else { "readonly" }.into())];
    if !matches!(command.keys, (0, 0, 0)) {
        flags.push(Reply::Line("fast".into()));
    }
    if moves(command) {
        flags.push(Reply::Line("movablekeys".into()));
    }
    let (first, last, step) = command.keys;
    let categories = ["read", "write", category(command)];
    let categories = categories.iter().filter(|one| is_of(command, one.as_bytes()));
    Reply::Array(vec![
        Reply::bulk(command.name),
        Reply::Int(i64::from(command.arity)),
        Reply::Set(flags),
        Reply::Int(i64::from(first)),
        Reply::Int(i64::from(last)),
        Reply::Int(i64::from(step)),
        Reply::Set(categories.map(|one| Reply::Line(format!("@{one}"))).collect()),
        Reply::Set(Vec::new()),
        Reply::Set(Vec::new()),
        Reply::Set(Vec::new()),
    ])
}

/// The category of redis's that a command is in.
fn category(command: &Command) -> &'static str {
    match command.group {
        _ if command.name == "script" => "scripting",
        Group::Strings => "string",
        Group::Bits => "bitmap",
        Group::Lists | Group::Moves => "list",
        Group::Hashes => "hash",
        Group::Sets => "set",
        Group::SortedSets | Group::Ranges | Group::Combined => "sortedset",
        Group::Scripts => "scripting",
        Group::Places => "geo",
        Group::Counts => "hyperloglog",
        Group::Streams => "stream",
        Group::Channels => "pubsub",
        Group::Keys => "keyspace",
        Group::Server => "connection",
    }
}

fn is_of(command: &Command, wanted: &[u8]) -> bool {
    let of_keys = !matches!(command.group, Group::Server | Group::Channels | Group::Scripts);
    match wanted {
        b"read" => of_keys && !command.writes,
        b"write" => of_keys && command.writes,
        wanted => category(command).as_bytes() == wanted,
    }
}

/// Whether the places of a command's keys depend on its arguments.
fn moves(command: &Command) -> bool {
    counted(command.name).is_some()
        || matches!(command.name, "sort" | "sort_ro" | "georadius" | "georadiusbymember" | "xread" | "xreadgroup")
}

/// Of a command that says how many keys it names: the place of that number.
fn counted(name: &str) -> Option<usize> {
    match name {
        "lmpop" | "sintercard" | "zdiff" | "zinter" | "zintercard" | "zmpop" | "zunion" => Some(1),
        "blmpop" | "bzmpop" | "eval" | "eval_ro" | "evalsha" | "evalsha_ro" => Some(2),
        "zdiffstore" | "zinterstore" | "zunionstore" => Some(2),
        _ => None,
    }
}

/// COMMAND GETKEYS.
fn keys(request: &[Vec<u8>]) -> Answered {
    let command = find(&request[0]).ok_or_else(|| Fail::new("Invalid command specified"))?;
    if !command.takes(request.len()) {
        return Err(Fail::new("Invalid number of arguments specified for command"));
    }
    let places = places(command, request).ok_or_else(|| Fail::new("Invalid arguments specified for command"))?;
    if places.is_empty() && counted(command.name).is_none() {
        return Err(Fail::new("The command has no key arguments"));
    }
    Ok(Reply::Array(places.into_iter().map(|place| Reply::bulk(request[place].as_slice())).collect()))
}

/// The places of a request's keys. `None`: its arguments do not fit together.
fn places(command: &Command, request: &[Vec<u8>]) -> Option<Vec<usize>> {
    let words = request.len();
    if let Some(place) = counted(command.name) {
        let count = usize::try_from(parse_int(request.get(place)?)?).ok()?;
        let end = (place + 1).checked_add(count).filter(|end| *end <= words)?;
        let stores = command.name.ends_with("store").then_some(1);
        return Some(stores.into_iter().chain(place + 1..end).collect());
    }
    match command.name {
        "sort" | "sort_ro" | "georadius" | "georadiusbymember" => {
            let mut stored = None;
            let mut n = 2;
            while n < words {
                let arg = request[n].to_ascii_lowercase();
                match (arg.as_slice(), command.name) {
                    (b"limit", "sort" | "sort_ro") => n += 2,
                    (b"by" | b"get", "sort" | "sort_ro") => n += 1,
                    (b"store", "sort_ro") => {}
                    (b"store", _) | (b"storedist", "georadius" | "georadiusbymember") if n + 1 < words => {
                        stored = Some(n + 1);
                        n += 1;
                    }
                    _ => {}
                }
                n += 1;
            }
            Some([1].into_iter().chain(stored).collect())
        }
        "xread" | "xreadgroup" => {
            let begin = 1 + request.iter().position(|arg| is(arg, "streams"))?;
            let both = words - begin;
            (both > 0 && both.is_multiple_of(2)).then(|| (begin..begin + both / 2).collect())
        }
        "memory" => Some(if is(&request[1], "usage") && words > 2 { vec![2] } else { Vec::new() }),
        _ if command.keys.0 == 0 => Some(Vec::new()),
        _ => {
            let (first, last, step) = command.keys;
            let last = if last < 0 { words as i64 + i64::from(last) } else { i64::from(last) };
            let last = usize::try_from(last).ok()?.min(words - 1);
            Some((first as usize..=last).step_by(step.max(1) as usize).collect())
        }
    }
}
