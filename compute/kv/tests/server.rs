//! What a front end tells about itself: its errors, its commands, and the keys of a request.

mod world;

use farmem::Transport;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use world::process::{Client, Process, answers};

#[test]
fn another_process() {
    world::process::another_process();
}

#[test]
fn errors_are_counted_by_their_first_word() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("errors", &node.at);
    let mut client = front.client();
    answers(&mut client, &[("SET x 1", "+OK"), ("MULTI", "+OK"), ("LPUSH x 1", "+QUEUED")]);
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    answers(&mut client, &[("EXEC", &format!("[{wrong}]")), ("LPUSH x 1", wrong)]);
    assert!(client.ask("NONSENSE x").starts_with("-ERR unknown command"));
    assert!(client.ask("GET").starts_with("-ERR wrong number"));
    answers(&mut client, &[("EXEC", "-ERR EXEC without MULTI"), ("MULTI", "+OK")]);
    assert!(client.ask("NONSENSE x").starts_with("-ERR unknown command"));
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
    assert_eq!(client.ask("EVAL return(redis.pcall('lpush','x','1').err) 1 x"), &wrong[1..]);
    assert!(client.ask("EVAL return({err='x\\r\\nb:y'}) 0").starts_with('-'));
    let told = client.ask("INFO errorstats");
    for line in ["errorstat_ERR:count=4", "errorstat_EXECABORT:count=1", "errorstat_WRONGTYPE:count=2"] {
        assert!(told.contains(line), "{told}");
    }
    assert!(told.contains("errorstat_x:count=1") && !told.contains("\nb:y"), "{told}");
    assert!(client.ask("INFO stats").contains("total_error_replies:8"));
    answers(&mut client, &[("CONFIG RESETSTAT", "+OK")]);
    assert!(!client.ask("INFO errorstats").contains("errorstat_"));
    assert!(client.ask("INFO cpu").contains("used_cpu_user:"));
}

#[test]
fn keys_of_a_request_are_named() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("keys", &node.at);
    let mut client = front.client();
    for (request, keys) in [
        ("GET a", "[a]"),
        ("MSET a 1 b 2", "[a b]"),
        ("BITOP AND a b c", "[a b c]"),
        ("ZUNIONSTORE to 2 a b WEIGHTS 1 2", "[to a b]"),
        ("ZINTER 2 a b", "[a b]"),
        ("LMPOP 1 a LEFT", "[a]"),
        ("BZMPOP 0 2 a b MIN", "[a b]"),
        ("EVAL script 2 a b c", "[a b]"),
        ("EVAL script 0", "[]"),
        ("SORT a BY store GET store STORE b STORE c", "[a c]"),
        ("SORT_RO a LIMIT 0 1", "[a]"),
        ("GEORADIUS a 1 1 1 km STOREDIST b", "[a b]"),
        ("XREAD COUNT 1 STREAMS a b 0 0", "[a b]"),
        ("XREADGROUP GROUP g c STREAMS a >", "[a]"),
        ("XGROUP CREATE a g 0", "[a]"),
        ("MEMORY USAGE a", "[a]"),
        ("OBJECT ENCODING a", "[a]"),
        ("BLPOP a b 0", "[a b]"),
        ("PING", "-ERR The command has no key arguments"),
        ("EVAL script 3 a", "-ERR Invalid arguments specified for command"),
        ("XREAD COUNT 1 STREAMS a b 0", "-ERR Invalid arguments specified for command"),
        ("NONSENSE a", "-ERR Invalid command specified"),
        ("GET", "-ERR Invalid number of arguments specified for command"),
    ] {
        assert_eq!(client.ask(&format!("COMMAND GETKEYS {request}")), keys, "{request}");
    }
    answers(
        &mut client,
        &[
            ("COMMAND LIST FILTERBY PATTERN XI*", "[xinfo xinfo|consumers xinfo|groups xinfo|stream xinfo|help]"),
            ("COMMAND LIST FILTERBY PATTERN config|*re*", "[config|resetstat config|rewrite]"),
            (
                "OBJECT HELP",
                "[+OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are: +ENCODING +FREQ +IDLETIME +REFCOUNT +HELP]",
            ),
            ("GET help", "nil"),
            ("COMMAND LIST FILTERBY ACLCAT hyperloglog", "[pfadd pfcount pfmerge]"),
            ("COMMAND LIST FILTERBY MODULE any", "[]"),
            ("COMMAND LIST FILTERBY", "-ERR syntax error"),
            ("ACL WHOAMI", "default"),
            ("ACL LIST", "[user default on nopass ~* &* +@all]"),
        ],
    );
}

/// What COMMAND LIST names is there, and has an answer of its own.
#[test]
fn all_subcommands_are_known() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("subcommands", &node.at);
    let mut client = front.client();
    let all = client.ask("COMMAND LIST");
    let all: Vec<&str> = all.trim_matches(['[', ']']).split(' ').filter(|name| name.contains('|')).collect();
    assert!(all.len() > 60);
    for name in all {
        let asked = name.replace('|', " ");
        if asked.ends_with(" help") {
            assert!(client.ask(&asked).ends_with("+HELP]"), "{name}");
            continue;
        }
        let keys =
            if name.starts_with("x") || name.starts_with("object") || name == "memory|usage" { " k" } else { "" };
        let given = ["", " 1", " on", " error x", " 1 x", " g 0"];
        let said: Vec<String> =
            given.iter().map(|given| front.client().ask(&format!("{asked}{keys}{given}"))).collect();
        let refused = |said: &String| said.starts_with("-ERR unknown sub") || said.starts_with("-ERR wrong number");
        assert!(!said.iter().all(refused), "{name}: {said:?}");
    }
}

/// A monitor is told of the commands of all clients of its front end, in order, and of no passwords.
#[test]
fn a_monitor_is_told_of_all_commands() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("monitor", &node.at);
    let [mut monitor, mut client] = [front.client(), front.client()];
    // Its slot is known, so that the next is answered without a task.
    answers(&mut client, &[("SET k v", "+OK"), ("SET k v", "+OK")]);
    assert_eq!(monitor.ask("MONITOR"), "+OK");
    let said =
        ["SET k w", "GET k", "INCR n", "MULTI", "LPUSH l a", "EXEC", "CONFIG GET port", "AUTH secret", "NONSENSE"];
    said.iter().for_each(|line| drop(client.ask(line)));
    client.send(&["ECHO", "a\r\n\"b"]).unwrap();
    assert_eq!(client.reply().as_deref(), Some("a\r\n\"b"));
    let told = ["SET k w", "GET k", "INCR n", "MULTI", "LPUSH l a", "EXEC", "AUTH (redacted)"];
    let mut lines: Vec<String> = told.iter().map(|line| format!("\"{}\"", line.replace(' ', "\" \""))).collect();
    lines.push(r#""ECHO" "a\r\n\"b""#.into());
    for line in lines {
        let heard = monitor.reply().unwrap();
        let (before, rest) = heard.split_once("] ").unwrap();
        assert!(before.starts_with('+') && before.contains(" [0 127.0.0.1:") && rest == line, "{heard} for {line}");
    }
    assert!(client.ask("CLIENT LIST").contains(" flags=O "));
    // It may give commands, too. RESET ends it.
    monitor.send(&["RESET"]).unwrap();
    for last in [r#""CLIENT" "LIST""#, "+RESET"] {
        let heard = monitor.reply().unwrap();
        assert!(heard.ends_with(last), "{heard}");
    }
    answers(&mut client, &[("SET k x", "+OK"), ("MULTI", "+OK"), ("MONITOR", "+QUEUED")]);
    assert_eq!(client.ask("EXEC"), "[-ERR MONITOR is not carried out in a transaction]");
    assert_eq!(monitor.ask("GET k"), "x");
}

/// The commands of a script are told of behind it, once, however often it was begun.
#[test]
fn a_monitor_is_told_of_the_commands_of_scripts() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("monitor", &node.at);
    let [mut monitor, mut client] = [front.client(), front.client()];
    assert_eq!(monitor.ask("MONITOR"), "+OK");
    let heard = |monitor: &mut Client| {
        let line = monitor.reply().unwrap();
        let (before, rest) = line.split_once("] ").unwrap();
        (before.ends_with(" [0 lua"), rest.to_owned())
    };
    // It names none of the keys that it uses, so it is begun for each of them.
    let script = "redis.call('set', 'a', ARGV[1]) return redis.call('get', 'b' .. redis.call('incr', 'n'))";
    for name in ["EVAL", "EVAL_RO"] {
        client.send(&[name, script, "0", "v"]).unwrap();
        let said = client.reply().unwrap();
        assert_eq!(client.ask("PING"), "+PONG");
        let (lua, line) = heard(&mut monitor);
        assert!(!lua && line.starts_with(&format!("\"{name}\"")), "{line}");
        if name == "EVAL" {
            assert_eq!(said, "nil");
            for told in [r#""set" "a" "v""#, r#""incr" "n""#, r#""get" "b1""#] {
                assert_eq!(heard(&mut monitor), (true, told.into()));
            }
        }
        assert_eq!(heard(&mut monitor), (false, r#""PING""#.into()));
    }
    // A script that gives many commands does not fill the monitors' connections.
    client.send(&["EVAL", "for n = 1, 60000 do redis.call('set', 'key', n) end", "1", "key"]).unwrap();
    client.reply().unwrap();
    let mut lines = 0;
    while !heard_end(&mut monitor) {
        lines += 1;
    }
    assert!((10_000..50_000).contains(&lines), "{lines}");
}

/// Whether the next line says how many more there were.
fn heard_end(monitor: &mut Client) -> bool {
    monitor.reply().unwrap().ends_with(" more commands of this script)")
}

/// Monitors are few, and a line is short: they do not hold the others up.
#[test]
fn monitors_are_bounded() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("monitors", &node.at);
    let mut monitors: Vec<Client> = (0..16).map(|_| front.client()).collect();
    for monitor in &mut monitors {
        assert_eq!(monitor.ask("MONITOR"), "+OK");
    }
    let mut client = front.client();
    let refused = "-ERR this front end has 16 clients with MONITOR, which is the limit: end one";
    answers(&mut client, &[("MONITOR", refused), ("PING", "+PONG")]);
    let heard = |monitor: &mut Client| monitor.reply().unwrap().split_once("] ").unwrap().1.to_owned();
    // A value that streams in is told of by its length, another one by its beginning.
    for len in [3 << 20, 1 << 20] {
        client.send(&["SET", "k", &"x".repeat(len)]).unwrap();
        assert_eq!(client.reply().as_deref(), Some("+OK"));
    }
    for monitor in &mut monitors {
        assert_eq!(heard(monitor), r#""PING""#);
        assert_eq!(heard(monitor), r#""SET" "k" "... (3145728 more bytes)""#);
        let cut = heard(monitor);
        assert!(
            cut.starts_with(r#""SET" "k" "xxx"#) && cut.ends_with(r#" more bytes)""#) && cut.len() < 70_000,
            "{cut}"
        );
    }
    // One that is told already may ask again. With its end there is a place.
    assert_eq!(monitors[0].ask("MONITOR"), "+OK");
    assert_eq!(monitors[0].ask("RESET"), "+RESET");
    answers(&mut client, &[("MONITOR", "+OK")]);
}

/// A pause of changes holds up nothing else.
#[test]
fn a_pause_holds_up_changes_alone() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("pause", &node.at);
    let [mut a, mut sets, mut exec, mut says] = [front.client(), front.client(), front.client(), front.client()];
    answers(&mut a, &[("SET k 1", "+OK"), ("MULTI", "+OK"), ("GET k", "+QUEUED")]);
    answers(&mut exec, &[("CLIENT PAUSE 600000 WRITE", "+OK"), ("MULTI", "+OK"), ("SET k 2", "+QUEUED")]);
    answers(&mut a, &[("EXEC", "[1]"), ("SET k", "-ERR wrong number of arguments for 'set' command")]);
    a.send(&["EVAL", "#!lua flags=no-writes\nreturn redis.call('get', 'k')", "1", "k"]).unwrap();
    assert_eq!(a.reply().as_deref(), Some("1"));
    for (client, request) in [(&mut sets, "SET j 1"), (&mut exec, "EXEC"), (&mut says, "PUBLISH c m")] {
        client.send(&request.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let until = Instant::now() + Duration::from_secs(60);
    while !a.ask("INFO clients").contains("blocked_clients:3") {
        assert!(Instant::now() < until, "three clients wait");
    }
    answers(&mut a, &[("GET k", "1"), ("CLIENT UNPAUSE", "+OK")]);
    assert_eq!([sets.reply(), exec.reply(), says.reply()].map(Option::unwrap), ["+OK", "[+OK]", ":0"]);
    assert!(a.ask("INFO clients").contains("blocked_clients:0"));
}

/// CONFIG SET sets all or nothing.
#[test]
fn settings_are_set_together() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("settings", &node.at);
    let failed = "-ERR CONFIG SET failed (possibly related to argument";
    let mut client = front.client();
    answers(&mut client, &[("CONFIG SET slowlog-max-len 9 notify-keyspace-events AKE", "+OK")]);
    for wrong in ["maxmemory 1", "slowlog-log-slower-than x", "notify-keyspace-events n"] {
        let said = client.ask(&format!("CONFIG SET slowlog-max-len 7 {wrong}"));
        assert!(said.starts_with("-ERR "), "{said}");
    }
    let said = client.ask("CONFIG SET slowlog-max-len 7 SLOWLOG-MAX-LEN 8 notify-keyspace-events K");
    assert_eq!(said, format!("{failed} 'slowlog-max-len') - duplicate parameter"));
    let said = client.ask("CONFIG SET maxmemory 1 maxmemory 2");
    assert_eq!(said, format!("{failed} 'maxmemory') - duplicate parameter"));
    answers(
        &mut client,
        &[
            ("CONFIG GET slowlog-max-len", "[slowlog-max-len 9]"),
            ("CONFIG GET notify-keyspace-events", "[notify-keyspace-events AKE]"),
        ],
    );
}

/// The questions of tools and libraries have answers of redis's forms.
#[test]
fn tools_are_answered() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("tools", &node.at);
    let mut client = front.client();
    answers(
        &mut client,
        &[
            ("SET k v", "+OK"),
            ("CLUSTER INFO", "-ERR This instance has cluster support disabled"),
            ("READONLY", "-ERR This instance has cluster support disabled"),
            ("MODULE LIST", "[]"),
            ("SWAPDB 0 0", "+OK"),
            ("SWAPDB 0 1", "-ERR DB index is out of range"),
            ("OBJECT IDLETIME none", "nil"),
            ("MEMORY PURGE", "+OK"),
            ("CLIENT TRACKING OFF", "+OK"),
            ("CLIENT TRACKINGINFO", "[flags [off] redirect :-1 prefixes []]"),
            ("CONFIG REWRITE", "-ERR The server is running without a config file"),
            ("CONFIG GET replica-read-only", "[replica-read-only yes]"),
            ("ACL GETUSER default", "[flags [on nopass] passwords [] commands +@all keys ~* channels &* selectors []]"),
            ("ACL GETUSER nobody", "*-1"),
            ("ACL LOG", "[]"),
            ("ACL CAT hyperloglog", "[pfadd pfcount pfmerge]"),
            ("ACL CAT scripting", "[eval eval_ro evalsha evalsha_ro script]"),
            ("COMMAND DOCS get", "[get [summary As redis's GET group string]]"),
            ("LATENCY LATEST", "[]"),
            ("SCRIPT KILL", "-NOTBUSY No scripts in execution right now."),
        ],
    );
    assert_eq!(client.ask("ACL GENPASS 6").len(), 2);
    assert!(client.ask("MEMORY STATS").ends_with("keys.count :1]"));
    let idle: i64 = client.ask("OBJECT IDLETIME k")[1..].parse().unwrap();
    assert!((0..600).contains(&idle), "{idle}");
    for (refused, why) in [
        ("DEBUG SLEEP 5", "-ERR DEBUG command not allowed"),
        ("OBJECT FREQ k", "-ERR An LFU maxmemory policy is not selected"),
        ("CLIENT TRACKING ON", "-ERR CLIENT TRACKING is not supported"),
        ("REPLICAOF NO ONE", "-ERR unknown command 'REPLICAOF': a farmem store has no replicas"),
        ("BGSAVE", "-ERR unknown command 'BGSAVE': a farmem store is saved by farmem kv save"),
        ("MIGRATE h 1 k 0 5", "-ERR unknown command 'MIGRATE': a farmem store is no redis cluster"),
        ("MODULE LOAD x", "-ERR unknown subcommand 'LOAD'. Try MODULE HELP."),
        ("CLIENT Kill", "-ERR wrong number of arguments for 'client|kill' command"),
        ("OBJECT FREQ", "-ERR wrong number of arguments for 'object|freq' command"),
        ("ACL SETUSER x", "-ERR unknown subcommand 'SETUSER'"),
    ] {
        let said = client.ask(refused);
        assert!(said.starts_with(why), "{refused}: {said}");
    }
    let line = client.ask("CLIENT INFO");
    for field in [" idle=0 ", " omem=", " redir=-1 ", " events=r ", " flags=N "] {
        assert!(line.contains(field), "{field} is not in {line}");
    }
    let info = client.ask("INFO everything");
    for field in
        ["used_memory_peak_human:", "rdb_last_bgsave_status:ok", "master_replid:", "db0:keys=1", "pubsub_channels:0"]
    {
        assert!(info.contains(field), "{field} is not in {info}");
    }
}

/// Askers who say nothing, or take nothing, keep nobody from the counters.
#[test]
fn silent_askers_keep_nobody_from_the_counters() {
    let node = Process::node(Transport::Shm);
    let front = Process::start(&format!("front counters {} metrics=127.0.0.1:0", node.at));
    let at = front.counters.as_deref().unwrap();
    let begun = Instant::now();
    // One after the other, these would take two seconds each.
    let mut silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(at).unwrap()).collect();
    for asker in silent.iter_mut().skip(1).step_by(2) {
        asker.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    }
    for _ in 0..3 {
        let mut asks = TcpStream::connect(at).unwrap();
        asks.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut said = String::new();
        asks.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("HTTP/1.1 200 OK"), "{said}");
    }
    assert!(begun.elapsed() < Duration::from_secs(60));
    // They do not stay.
    silent.iter_mut().for_each(|asker| assert!(!matches!(asker.read(&mut [0]), Ok(1))));
}

#[test]
fn lists_are_read_and_changed_at_both_ends() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("lists", &node.at);
    answers(
        &mut front.client(),
        &[
            ("RPUSH l a b c", ":3"),
            ("LPUSH l z y", ":5"),
            ("EXPIRE l 1000", ":1"),
            ("LRANGE l 0 -1", "[y z a b c]"),
            ("LRANGE l 1 2", "[z a]"),
            ("LRANGE l -2 100", "[b c]"),
            ("LRANGE l 5 9223372036854775807", "[]"),
            ("LINDEX l -1", "c"),
            ("LINDEX l 5", "nil"),
            ("LINDEX l -6", "nil"),
            ("LPOP l 0", "[]"),
            ("LPOP l 2", "[y z]"),
            ("RPOP l 2", "[c b]"),
            ("LLEN l", ":1"),
            ("PERSIST l", ":1"),
            ("RPUSHX l d", ":2"),
            ("RPOP l 9", "[d a]"),
            ("EXISTS l", ":0"),
            ("LPOP l", "nil"),
            ("RPOP l 1", "*-1"),
            ("LPUSHX l x", ":0"),
            ("SET l x", "+OK"),
            ("LLEN l", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("RPOP l", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ],
    );
}

/// A request of some kilobytes that has a front end look at a set a thousand times.
#[test]
fn a_key_that_is_named_often_takes_no_memory_and_holds_nobody_up() {
    let node = Process::node(Transport::Tcp);
    let front = Process::front("often", &node.at);
    let (mut client, mut other) = (front.client(), front.client());
    let members: Vec<String> = (0..20_000).map(|n| format!("m{n}")).collect();
    for (command, key, between) in [("SADD", "s", ""), ("ZADD", "z", "1 ")] {
        for some in members.chunks(4000) {
            let some: Vec<String> = some.iter().map(|member| format!("{between}{member}")).collect();
            client.ask(&format!("{command} {key} {}", some.join(" ")));
        }
    }
    answers(&mut client, &[("SADD t m1 m2 x", ":3"), ("SADD u m2", ":1")]);
    let before = front.peak();
    let often = |key: &str, times: usize| vec![key; times].join(" ");
    let asked = Instant::now();
    for (request, reply) in [
        (format!("SINTERCARD 2001 {} t", often("s", 2000)), ":2"),
        (format!("SDIFF t {}", often("s", 2000)), "[x]"),
        (format!("SUNIONSTORE to {} t", often("s", 2000)), ":20001"),
        (format!("SDIFFSTORE to s {}", often("s", 2000)), ":0"),
        (format!("SINTER u {} t", often("s", 2000)), "[m2]"),
        (format!("ZUNIONSTORE to 3 {} t", often("z", 2)), ":20001"),
        (
            format!("ZUNIONSTORE to 2001 {} t", often("z", 2000)),
            "-ERR keys that are named again have more than 1048576 members",
        ),
    ] {
        assert_eq!(client.ask(&request), reply, "{}", &request[..20]);
    }
    assert!(asked.elapsed() < Duration::from_secs(30), "{:?}", asked.elapsed());
    // Each key is watched once, and no more than there may be.
    let keys: Vec<String> = (0..60_000).map(|n| format!("watched{n}")).collect();
    let all = format!("WATCH {}", keys.join(" "));
    answers(&mut client, &[(&all, "+OK"), (&all, "+OK")]);
    let more = all.replace("watched", "others");
    assert_eq!(client.ask(&more), "-ERR a client watches 100000 keys at most, of 64 MiB together");
    answers(&mut client, &[("UNWATCH", "+OK")]);
    // Of one key alone others have their turns.
    client.send(&["ZINTERCARD 60".split(' ').collect::<Vec<_>>(), vec!["z"; 60]].concat()).unwrap();
    let mut longest = Duration::ZERO;
    let ended = std::thread::spawn(move || client.reply().unwrap());
    while !ended.is_finished() {
        let asked = Instant::now();
        assert_eq!(other.ask("PING"), "+PONG");
        longest = longest.max(asked.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(ended.join().unwrap(), ":20000");
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    // What the kernel says may be less than before (see `peak`).
    let grown = front.peak().saturating_sub(before);
    assert!(grown < 256 << 20, "it took {grown} bytes more");
}
