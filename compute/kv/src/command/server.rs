//! Commands on the front end and its connections.

use super::args::{int, is, parse_int};
use super::info::REDIS_VERSION;
use super::{Answered, Call, Fail};
use crate::resp::{Reply, matches};
use std::collections::BTreeSet;

pub async fn run(name: &str, call: &Call) -> Answered {
    match name {
        "acl" => acl(call),
        "auth" => match call.count() {
            2 => admit(call, b"default", call.arg(1)).map(|()| Reply::Ok),
            3 => admit(call, call.arg(1), call.arg(2)).map(|()| Reply::Ok),
            _ => Err(Fail::syntax()),
        },
        "client" => super::clients::run(call),
        // As redis says it that is no node of a cluster.
        "cluster" | "readonly" | "readwrite" => Err(Fail::new("This instance has cluster support disabled")),
        "command" => super::describe::run(call),
        "config" => config(call),
        "debug" => Err(Fail::new("DEBUG command not allowed: a farmem store has none")),
        "echo" => Ok(Reply::bulk(call.arg(1))),
        "function" => function(call),
        "hello" => hello(call),
        "info" => super::info::run(call).await,
        "latency" => super::stats::latency(call),
        "module" => match (call.arg(1).to_ascii_lowercase().as_slice(), call.count()) {
            // There are none.
            (b"list", 2) => Ok(Reply::Array(Vec::new())),
            _ => Err(unknown(call, "module")),
        },
        "monitor" => super::monitor::run(call),
        "ping" => match call.count() {
            1 | 2 if call.client.version.get() < 3 && call.client.listens() => {
                Ok(Reply::Array(vec![Reply::bulk("pong"), Reply::bulk(call.arg(1))]))
            }
            1 => Ok(Reply::Line("PONG".into())),
            2 => Ok(Reply::bulk(call.arg(1))),
            _ => Err(Fail(super::wrong_number("ping"))),
        },
        "quit" => {
            call.client.closing.set(true);
            Ok(Reply::Ok)
        }
        "reset" => {
            call.client.version.set(2);
            call.client.discard();
            let mut told = call.front.channels.take_due_of(&call.client);
            call.front.channels.leave(&call.client);
            call.front.monitors.leave(&call.client);
            call.client.authenticated.set(call.front.password.is_none());
            call.client.name.borrow_mut().clear();
            call.client.replies.set(super::Replies::On);
            told.push(Reply::Line("RESET".into()));
            Ok(Reply::Several(told))
        }
        "role" => Ok(Reply::Array(vec![Reply::bulk("master"), Reply::Int(0), Reply::Array(Vec::new())])),
        "script" => super::scripts::script(call),
        "select" => match int(call.arg(1)) {
            Ok(0) => Ok(Reply::Ok),
            Ok(_) => Err(Fail::new("DB index is out of range")),
            Err(_) => Err(Fail::new("invalid DB index")),
        },
        "slowlog" => super::stats::slowlog(call),
        "swapdb" => match (int(call.arg(1)), int(call.arg(2))) {
            (Ok(0), Ok(0)) => Ok(Reply::Ok),
            (Ok(_), Ok(_)) => Err(Fail::new("DB index is out of range")),
            (Err(_), _) => Err(Fail::new("invalid first DB index")),
            (_, Err(_)) => Err(Fail::new("invalid second DB index")),
        },
        "time" => {
            let now = call.now_ms();
            Ok(Reply::Array(vec![Reply::bulk((now / 1000).to_string()), Reply::bulk((now % 1000 * 1000).to_string())]))
        }
        "unwatch" => {
            call.client.watched.borrow_mut().clear();
            Ok(Reply::Ok)
        }
        "watch" => super::multi::watch(call).await,
        // Nothing is replicated.
        _ => Ok(Reply::Int(0)),
    }
}

/// The error for a subcommand that there is not, or not with so many arguments.
pub(super) fn unknown(call: &Call, of: &str) -> Fail {
    if super::subcommands::is_known(of, call.arg(1)) {
        let what = String::from_utf8_lossy(call.arg(1)).to_ascii_lowercase();
        return Fail(super::wrong_number(&format!("{of}|{what}")));
    }
    no_subcommand(of, call.arg(1))
}

/// The error for a subcommand that there is not.
pub(super) fn no_subcommand(of: &str, what: &[u8]) -> Fail {
    let what = String::from_utf8_lossy(&what[..what.len().min(128)]);
    Fail::new(format!("unknown subcommand '{what}'. Try {} HELP.", of.to_ascii_uppercase()))
}

/// ACL: there is one user, who may do everything.
fn acl(call: &Call) -> Answered {
    let guarded = call.front.password.is_some();
    match (call.arg(1).to_ascii_lowercase().as_slice(), call.count()) {
        (b"whoami", 2) => Ok(Reply::bulk("default")),
        (b"users", 2) => Ok(Reply::Array(vec![Reply::bulk("default")])),
        (b"list", 2) => {
            let password = if guarded { "#" } else { "nopass" };
            Ok(Reply::Array(vec![Reply::bulk(format!("user default on {password} ~* &* +@all"))]))
        }
        (b"getuser", 3) if call.arg(2) == b"default" => {
            let flags = if guarded { &["on"][..] } else { &["on", "nopass"] };
            let flags = flags.iter().map(|&flag| Reply::bulk(flag)).collect();
            Ok(Reply::Map(vec![
                (Reply::bulk("flags"), Reply::Set(flags)),
                (Reply::bulk("passwords"), Reply::Array(Vec::new())),
                (Reply::bulk("commands"), Reply::bulk("+@all")),
                (Reply::bulk("keys"), Reply::bulk("~*")),
                (Reply::bulk("channels"), Reply::bulk("&*")),
                (Reply::bulk("selectors"), Reply::Array(Vec::new())),
            ]))
        }
        (b"getuser", 3) => Ok(Reply::NullArray),
        (b"cat", 2 | 3) => super::describe::categories(call),
        (b"genpass", 2 | 3) => secret(call),
        // Nobody but whoever lacks the password is refused anything.
        (b"log", 2 | 3) if is(call.arg(2), "reset") => Ok(Reply::Ok),
        (b"log", 2 | 3) => Ok(Reply::Array(Vec::new())),
        _ => Err(unknown(call, "acl")),
    }
}

/// ACL GENPASS: random digits of base 16.
fn secret(call: &Call) -> Answered {
    let bits = if call.count() == 3 { int(call.arg(2))? } else { 256 };
    if !(1..=4096).contains(&bits) {
        return Err(Fail::new(
            "ACL GENPASS argument must be the number of bits for the output password, a positive \
             number up to 4096",
        ));
    }
    let mut bytes = [0; 512];
    farmem_sys::process::random_bytes(&mut bytes).map_err(|error| Fail::new(format!("no random numbers: {error}")))?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Reply::bulk(&digits.as_bytes()[..(bits as usize).div_ceil(4)]))
}

/// Lets a client in that gives the password. There is one user.
fn admit(call: &Call, user: &[u8], given: &[u8]) -> Result<(), Fail> {
    let Some(password) = &call.front.password else {
        if call.count() == 2 {
            return Err(Fail::new(
                "AUTH <password> called without any password configured for the default user. Are you sure your \
                 configuration is correct?",
            ));
        }
        return if user == b"default" { Ok(()) } else { Err(wrong_password()) };
    };
    // Takes the same time for every password of this length, so the time reveals no correct part.
    let differs = given.iter().zip(password).fold(0, |differs, (one, other)| differs | (one ^ other));
    if user != b"default" || given.len() != password.len() || differs != 0 {
        return Err(wrong_password());
    }
    call.client.authenticated.set(true);
    Ok(())
}

fn wrong_password() -> Fail {
    Fail(Reply::Error("WRONGPASS invalid username-password pair or user is disabled.".into()))
}

fn hello(call: &Call) -> Answered {
    let (mut n, mut name) = (1, None);
    let mut version = call.client.version.get();
    if call.count() > 1 {
        version = match parse_int(call.arg(1)) {
            Some(wanted @ 2..=3) => wanted as u8,
            Some(_) => return Err(Fail(Reply::Error("NOPROTO unsupported protocol version".into()))),
            None => return Err(Fail::new("Protocol version is not an integer or out of range")),
        };
        n = 2;
    }
    while n < call.count() {
        if is(call.arg(n), "setname") && n + 1 < call.count() {
            name = Some(super::clients::named(call.arg(n + 1))?);
            n += 2;
        } else if is(call.arg(n), "auth") && n + 2 < call.count() {
            admit(call, call.arg(n + 1), call.arg(n + 2))?;
            n += 3;
        } else {
            return Err(Fail::new(format!("Syntax error in HELLO option '{}'", String::from_utf8_lossy(call.arg(n)))));
        }
    }
    if !call.client.authenticated.get() {
        return Err(Fail(Reply::Error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
             <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the \
             same time"
                .into(),
        )));
    }
    if let Some(name) = name {
        *call.client.name.borrow_mut() = name;
    }
    call.client.version.set(version);
    let pair = |key: &str, value: Reply| (Reply::bulk(key), value);
    Ok(Reply::Map(vec![
        pair("server", Reply::bulk("redis")),
        pair("version", Reply::bulk(REDIS_VERSION)),
        pair("proto", Reply::Int(i64::from(version))),
        pair("id", Reply::Int(call.client.id as i64)),
        pair("mode", Reply::bulk("standalone")),
        pair("role", Reply::bulk("master")),
        pair("modules", Reply::Array(Vec::new())),
    ]))
}

/// Settings that clients read before they begin.
fn settings(call: &Call) -> Vec<(&'static str, String)> {
    let evicts = call.store().evicts;
    vec![
        ("save", String::new()),
        ("appendonly", "no".into()),
        ("databases", "1".into()),
        ("maxmemory", call.front.maxmemory.to_string()),
        ("maxmemory-policy", if evicts { "allkeys-random" } else { "noeviction" }.into()),
        ("proto-max-bulk-len", (16 << 20).to_string()),
        ("port", call.front.port.to_string()),
        ("timeout", "0".into()),
        ("cluster-enabled", "no".into()),
        ("replica-read-only", "yes".into()),
        ("slave-read-only", "yes".into()),
        ("client-output-buffer-limit", "normal 0 0 0 slave 0 0 0 pubsub 33554432 0 0".into()),
        ("maxmemory-clients", "0".into()),
        ("lua-time-limit", "500".into()),
        ("busy-reply-threshold", "500".into()),
        ("latency-tracking", "yes".into()),
        ("latency-monitor-threshold", "0".into()),
        ("enable-debug-command", "no".into()),
        ("maxclients", call.front.most_clients.to_string()),
        ("notify-keyspace-events", call.front.events.to_string()),
        ("slowlog-log-slower-than", call.front.stats.threshold_us.get().to_string()),
        ("slowlog-max-len", call.front.stats.most.get().to_string()),
    ]
}

/// Settings of redis's own representations, which are accepted and mean nothing here.
const LAYOUT: [&str; 17] = [
    "hash-max-listpack-entries",
    "hash-max-listpack-value",
    "hash-max-ziplist-entries",
    "hash-max-ziplist-value",
    "list-compress-depth",
    "list-max-listpack-size",
    "list-max-ziplist-size",
    "sanitize-dump-payload",
    "set-max-intset-entries",
    "set-max-listpack-entries",
    "set-max-listpack-value",
    "stream-node-max-bytes",
    "stream-node-max-entries",
    "zset-max-listpack-entries",
    "zset-max-listpack-value",
    "zset-max-ziplist-entries",
    "zset-max-ziplist-value",
];

/// Sets which changes of keys are published.
fn events(call: &Call, value: &[u8]) -> Result<(), Fail> {
    call.front.events.set(value).map_err(|letter| {
        Fail::new(format!(
            "CONFIG SET failed (possibly related to argument 'notify-keyspace-events') - events of class '{}' are \
             not published here",
            char::from(letter).escape_default()
        ))
    })?;
    call.store().tell_leaving(call.front.events.tells_ends());
    Ok(())
}

/// CONFIG SET: takes the slow log's settings, layout, and what is so already. All of it or nothing.
fn configure(call: &Call) -> Answered {
    let (stats, events_before) = (&call.front.stats, call.front.events.to_string());
    let before = (stats.threshold_us.get(), stats.most.get());
    let done = configure_each(call);
    if done.is_err() {
        stats.threshold_us.set(before.0);
        stats.most.set(before.1);
        events(call, events_before.as_bytes())?;
    }
    done
}

fn configure_each(call: &Call) -> Answered {
    let now = settings(call);
    let mut names = BTreeSet::new();
    let name_of = |pair: &[Vec<u8>]| String::from_utf8_lossy(&pair[0]).to_ascii_lowercase();
    if let Some(name) = call.args[2..].chunks(2).map(name_of).find(|name| !names.insert(name.clone())) {
        return Err(Fail::new(format!(
            "CONFIG SET failed (possibly related to argument '{name}') - duplicate parameter"
        )));
    }
    for pair in call.args[2..].chunks(2) {
        let (name, value) = (name_of(pair), &pair[1]);
        let so = now.iter().any(|(known, is_now)| *known == name && is_now.as_bytes() == value.as_slice());
        match name.as_str() {
            "slowlog-log-slower-than" => call.front.stats.threshold_us.set(int(value)?),
            "notify-keyspace-events" => events(call, value)?,
            "slowlog-max-len" => call.front.stats.most.set(int(value)?.clamp(0, 1024) as usize),
            name if so || LAYOUT.contains(&name) => {}
            name => {
                return Err(Fail::new(format!(
                    "CONFIG SET failed (possibly related to argument '{name}') - a front end is set by its flags"
                )));
            }
        }
    }
    Ok(Reply::Ok)
}

fn config(call: &Call) -> Answered {
    match call.arg(1).to_ascii_lowercase().as_slice() {
        b"get" if call.count() >= 3 => {
            let wanted = |name: &str| {
                call.args[2..].iter().any(|pattern| matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
            };
            let layout = LAYOUT.iter().map(|&name| (name, "0".into()));
            let settings = settings(call).into_iter().chain(layout).filter(|(name, _)| wanted(name));
            Ok(Reply::Map(settings.map(|(name, value)| (Reply::bulk(name), Reply::bulk(value))).collect()))
        }
        b"resetstat" => {
            call.front.stats.reset();
            let figures = &call.store().figures;
            [&figures.hits, &figures.misses, &figures.expired, &figures.evicted].iter().for_each(|one| one.set(0));
            Ok(Reply::Ok)
        }
        b"rewrite" if call.count() == 2 => Err(Fail::new("The server is running without a config file")),
        b"set" if call.count() >= 4 && call.count().is_multiple_of(2) => configure(call),
        _ => Err(unknown(call, "config")),
    }
}

fn function(call: &Call) -> Answered {
    match call.arg(1).to_ascii_lowercase().as_slice() {
        // There are none.
        b"flush" => Ok(Reply::Ok),
        b"list" => Ok(Reply::Array(Vec::new())),
        _ => Err(unknown(call, "function")),
    }
}
