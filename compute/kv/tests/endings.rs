//! Clients that misbehave, stores that do not fit, and snapshots: each ends as it is documented.

mod world;

use farmem::Transport;
use farmem_kv::serve::{Failed, restore, run, save};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use world::process::{Client, Process, are_all, config, signal};

#[test]
fn another_process() {
    world::process::another_process();
}

fn front(node: &Process, name: &str, options: &str) -> Process {
    Process::start(format!("front {name} {} {options}", node.at).trim_end())
}

#[test]
fn a_client_that_misbehaves_loses_its_connection_and_nobody_else() {
    let node = Process::node(Transport::Shm);
    let front = front(&node, "bad", "kept=4000000 unread=300");
    let mut good = front.client();
    let ends_with = |bytes: &[u8], said: &str| {
        let mut bad = front.client();
        // The front end may close before it has read all.
        let _ = bad.stream.get_mut().write_all(bytes);
        assert_eq!(bad.reply().as_deref(), Some(said));
        assert_eq!(bad.reply(), None);
    };
    ends_with(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$629145600\r\n", "-ERR Protocol error: invalid bulk length");
    ends_with(b"*1073741824\r\n", "-ERR Protocol error: invalid multibulk length");
    ends_with(b"*1\r\n:1\r\n", "-ERR Protocol error: expected '$', got ':'");
    ends_with(&[0xff; 70_000], "-ERR Protocol error: too big inline request");
    assert_eq!(good.ask("PING"), "+PONG");
    // One byte at a time.
    let mut slow = front.client();
    for byte in b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n" {
        slow.stream.get_mut().write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(slow.reply().as_deref(), Some("hi"));
    // It asks for 2 GB and reads none of it.
    good.send(&["SET", "large", &"v".repeat(2_000_000)]).unwrap();
    assert_eq!(good.reply().as_deref(), Some("+OK"));
    let mut deaf = front.client();
    for _ in 0..1000 {
        deaf.send(&["GET", "large"]).unwrap();
    }
    let begun = Instant::now();
    while good.ask("CLIENT LIST").matches("cmd=get ").count() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is not closed");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(good.ask("PING"), "+PONG");
}

#[test]
fn a_long_pipeline_is_answered_after_all_of_it_was_sent() {
    let node = Process::node(Transport::Shm);
    let front = front(&node, "long", "");
    let mut client = front.client();
    // More replies than the sockets hold: they wait in the front end.
    let (count, request) = (40_000, b"*2\r\n$4\r\nECHO\r\n$100\r\n".iter().chain(&[b'x'; 100]).chain(b"\r\n"));
    let request: Vec<u8> = request.copied().collect();
    client.stream.get_mut().write_all(&request.repeat(count)).unwrap();
    for _ in 0..count {
        assert_eq!(client.reply().map(|said| said.len()), Some(100));
    }
    // Many keys of one command.
    let keys: Vec<String> = (0..20_000).map(|n| format!("k{n}")).collect();
    let words: Vec<&str> = ["MSET"].into_iter().chain(keys.iter().flat_map(|key| [key.as_str(), "v"])).collect();
    client.send(&words).unwrap();
    assert_eq!((client.reply().as_deref(), client.ask("DBSIZE")), (Some("+OK"), ":20000".into()));
}

#[test]
fn clients_are_counted_and_asked_for_the_password() {
    let node = Process::node(Transport::Shm);
    let front = front(&node, "guarded", "clients=2 password=secret");
    let mut client = front.client();
    let denied = "-NOAUTH Authentication required.";
    for (said, expected) in [
        ("GET k", denied),
        ("MULTI", denied),
        ("AUTH wrong", "-WRONGPASS invalid username-password pair or user is disabled."),
        ("AUTH nobody secret", "-WRONGPASS invalid username-password pair or user is disabled."),
        ("PING", denied),
        ("AUTH default secret", "+OK"),
        ("SET k v", "+OK"),
        ("RESET", "+RESET"),
        ("GET k", denied),
        ("AUTH secret", "+OK"),
        ("GET k", "v"),
    ] {
        assert_eq!(client.ask(said), expected, "{said}");
    }
    let mut other = front.client();
    assert!(other.ask("HELLO 2").starts_with("-NOAUTH HELLO must be called"));
    assert!(other.ask("HELLO 2 AUTH default secret SETNAME me").starts_with("[server redis"));
    assert_eq!(other.ask("CLIENT GETNAME"), "me");
    let mut third = front.client();
    assert_eq!(third.reply().as_deref(), Some("-ERR max number of clients reached"));
    let mut guest = Client::connect(&{
        drop(other);
        while client.ask("INFO clients").contains("connected_clients:2") {
            std::thread::sleep(Duration::from_millis(10));
        }
        front.at.clone()
    });
    // One that has not given the password may send little.
    guest.stream.get_mut().write_all(b"*2\r\n$3\r\nGET\r\n$20000\r\n").unwrap();
    assert_eq!(guest.reply().as_deref(), Some("-ERR Protocol error: invalid bulk length"));
}

#[test]
fn a_client_that_waits_and_goes_takes_nothing() {
    let node = Process::node(Transport::Shm);
    let front = front(&node, "queue", "");
    let [mut one, mut other] = [front.client(), front.client()];
    one.send(&["BLPOP", "none", "queue", "60"]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(other.ask("RPUSH queue a"), ":1");
    assert_eq!(one.reply().as_deref(), Some("[queue a]"));
    assert_eq!(one.ask("BLPOP queue 0.05"), "*-1");
    // The first that waits is served first.
    let mut waiting: Vec<Client> = (0..4).map(|_| front.client()).collect();
    for (n, client) in waiting.iter_mut().enumerate() {
        client.send(&["BLPOP", "queue", "other", "0"]).unwrap();
        while !other.ask("INFO clients").contains(&format!("blocked_clients:{}", n + 1)) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    std::thread::sleep(Duration::from_millis(40));
    assert_eq!(other.ask("RPUSH queue 0 1 2 3"), ":4");
    for (n, client) in waiting.iter_mut().enumerate() {
        assert_eq!(client.reply(), Some(format!("[queue {n}]")));
    }
    // So it is of one that asks while an element comes.
    let mut second = front.client();
    for round in 0..40 {
        one.send(&["BLPOP", "queue", "0"]).unwrap();
        // Of two connections that have sent something, either may be read first.
        while !other.ask("INFO clients").contains("blocked_clients:1") {
            std::thread::sleep(Duration::from_millis(1));
        }
        second.send(&["BLPOP", "queue", "0"]).unwrap();
        // One that came later, and looks while an element comes, must not have it either.
        if round % 2 == 0 {
            while !other.ask("INFO clients").contains("blocked_clients:2") {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(other.ask("RPUSH queue first then"), ":2");
        assert_eq!([one.reply(), second.reply()], [Some("[queue first]".into()), Some("[queue then]".into())]);
    }
    // A client is not kept from a key by one that waits for another of its keys: at once, and later.
    one.send(&["BLPOP", "other", "0"]).unwrap();
    while !other.ask("INFO clients").contains("blocked_clients:1") {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((other.ask("RPUSH mine a"), second.ask("BLPOP other mine 60")), (":1".into(), "[mine a]".into()));
    second.send(&["BLPOP", "other", "mine", "60"]).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!((other.ask("RPUSH mine b"), second.reply().as_deref()), (":1".into(), Some("[mine b]")));
    assert_eq!((other.ask("RPUSH other c"), one.reply().as_deref()), (":1".into(), Some("[other c]")));
    // A value of another type that comes meanwhile ends no waiting.
    for (waits, adds, reply) in [("BLPOP", "RPUSH other b", "[other b]"), ("BZPOPMIN", "ZADD other 1 b", "[other b 1]")]
    {
        one.send(&[waits, "other", "0"]).unwrap();
        while !other.ask("INFO clients").contains("blocked_clients:1") {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(other.ask("SET other string"), "+OK");
        std::thread::sleep(Duration::from_millis(40));
        assert_eq!((other.ask("DEL other"), other.ask(adds)), (":1".into(), ":1".into()));
        assert_eq!(one.reply().as_deref(), Some(reply));
    }
    one.send(&["BLMOVE", "queue", "to", "LEFT", "RIGHT", "0"]).unwrap();
    while !other.ask("INFO clients").contains("blocked_clients:1") {
        std::thread::sleep(Duration::from_millis(5));
    }
    // A transaction on several keys is not kept waiting.
    for (said, expected) in
        [("MULTI", "+OK"), ("SET a 1", "+QUEUED"), ("BLPOP none more 0", "+QUEUED"), ("EXEC", "[+OK *-1]")]
    {
        assert_eq!(other.ask(said), expected);
    }
    drop(one);
    while !other.ask("INFO clients").contains("blocked_clients:0") {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((other.ask("RPUSH queue b"), other.ask("LRANGE queue 0 -1")), (":1".into(), "[b]".into()));
}

/// Its next request waits behind one that waits for an element: nothing is read from its socket then.
#[test]
fn a_client_that_goes_with_a_request_left_takes_nothing() {
    let node = Process::node(Transport::Shm);
    let front = front(&node, "left", "");
    let mut other = front.client();
    let until = Instant::now() + Duration::from_secs(60);
    let wait = |other: &mut Client, what: &str| {
        while !other.ask("INFO clients").contains(what) {
            assert!(Instant::now() < until, "{what}: {}", other.ask("INFO clients"));
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    for resets in [false, true] {
        let mut client = front.client();
        if resets {
            // A reply that it leaves unread has its end be a reset.
            client.send(&["PING"]).unwrap();
        }
        client.stream.get_mut().write_all(b"BLPOP queue 0\r\nINCR after\r\nBLPOP queue 0\r\n").unwrap();
        wait(&mut other, "blocked_clients:1\r");
        drop(client);
        wait(&mut other, "connected_clients:1\r");
        assert_eq!(
            (other.ask("RPUSH queue a"), other.ask("LRANGE queue 0 -1")),
            (":1".into(), "[a]".into()),
            "{resets}"
        );
        assert_eq!(other.ask("DEL queue"), ":1");
        wait(&mut other, "blocked_clients:0\r");
    }
    // What was sent before the end is carried out.
    assert!([":2", ":3"].contains(&other.ask("INCR after").as_str()));
    // One that sends no more, and waits for its replies, has those of the requests behind.
    let mut client = front.client();
    client.stream.get_mut().write_all(b"BLPOP queue 0\r\nECHO last\r\n").unwrap();
    wait(&mut other, "blocked_clients:1\r");
    client.stream.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!((client.reply().as_deref(), client.reply()), (Some("last"), None));
}

/// Has a client ask and go. The front end finds both when it goes on, and takes no notice of the end before
/// it has begun to look.
fn goes(front: &Process, other: &mut Client, words: &[&str]) {
    let until = Instant::now() + Duration::from_secs(60);
    let wait = |what: &str| {
        assert!(Instant::now() < until, "{what}: {}", words[0]);
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut client = front.client();
    assert_eq!(client.ask("PING"), "+PONG");
    signal(front, "-STOP");
    while !are_all(front.child.id(), 'T') {
        wait("it does not stand still");
    }
    client.send(words).unwrap();
    drop(client);
    signal(front, "-CONT");
    while !other.ask("INFO clients").contains("connected_clients:1\r") {
        wait("its client is not seen to be gone");
    }
}

/// A look at so many keys takes more turns than the front end needs to see that the client is gone.
#[test]
fn a_client_that_goes_while_its_command_looks_takes_nothing() {
    let node = Process::node(Transport::Tcp);
    let front = front(&node, "gone", "");
    let mut other = front.client();
    let names: Vec<String> = (0..200).map(|n| format!("k{n}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let pop = |name| [&[name][..], &keys, &["0"]].concat();
    for (name, adds, looks) in
        [("BLPOP", "RPUSH k199 a", "LRANGE k199 0 -1"), ("BZPOPMIN", "ZADD k199 1 a", "ZRANGE k199 0 -1")]
    {
        // It looks in vain, and must not wait for what comes later.
        goes(&front, &mut other, &pop(name));
        assert_eq!(other.ask(adds), ":1");
        goes(&front, &mut other, &pop(name));
        assert_eq!([other.ask(looks), other.ask("DEL k199")], ["[a]", ":1"], "{name}");
    }
    let read =
        |words: &[&'static str], from| [words, &["BLOCK", "0", "STREAMS"], &keys, &vec![from; keys.len()]].concat();
    goes(&front, &mut other, &read(&["XREAD"], "$"));
    for key in &keys {
        assert_eq!(other.ask(&format!("XGROUP CREATE {key} g 0 MKSTREAM")), "+OK");
    }
    // Each stream that it looks at gets its consumer.
    let of_group = read(&["XREADGROUP", "GROUP", "g", "me"], ">");
    goes(&front, &mut other, &of_group);
    assert_eq!(other.ask("XADD k199 1-1 f a"), "1-1");
    goes(&front, &mut other, &of_group);
    assert_eq!(other.ask("XREADGROUP GROUP g you STREAMS k199 >"), "[[k199 [[1-1 [f a]]]]]");
}

#[test]
fn a_store_that_does_not_fit_is_refused() {
    let nodes = [Process::node(Transport::Tcp), Process::node(Transport::Tcp)];
    let both = format!("{},{}", nodes[0].at, nodes[1].at);
    let front = Process::front("shape", &both);
    assert_eq!(front.client().ask("SET k v"), "+OK");
    let refused = |nodes: &str| match run(&config("shape", nodes), |_| panic!("it is served"), std::rc::Rc::new(|_| {}))
    {
        Err(failed) => failed.to_string(),
        Ok(()) => panic!("it ended"),
    };
    let swapped = format!("{},{}", nodes[1].at, nodes[0].at);
    for node in &nodes {
        let said = refused(&node.at);
        assert!(said.contains("nodes") && !said.contains('\n'), "{said}");
    }
    // In another order they are the same nodes.
    assert_eq!(Process::front("shape", &swapped).client().ask("GET k"), "v");
    assert_eq!(front.client().ask("GET k"), "v");
    // The same name on other nodes is another store.
    let elsewhere = Process::node(Transport::Tcp);
    assert_eq!(Process::front("shape", &elsewhere.at).client().ask("GET k"), "nil");
    // A region that holds something else, as another version of the store would be.
    let memory = farmem::Memory::builder().node(&elsewhere.at).region("other").create(true).connect().unwrap();
    let piece = memory.alloc_on(0, 1 << 20).unwrap();
    memory.compare_swap(memory.root(0), 0, piece.bits()).unwrap();
    match run(&config("other", &elsewhere.at), |_| panic!("it is served"), std::rc::Rc::new(|_| {})) {
        Err(Failed::Store { reason, .. }) => assert!(reason.to_string().contains("no store of this version")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_store_survives_in_a_file() {
    let file = std::env::temp_dir().join(format!("farmem-kv-{}.snapshot", std::process::id()));
    let node = Process::node(Transport::Shm);
    let front = front(&node, "saved", "");
    let mut client = front.client();
    for line in ["SET s text", "RPUSH l a b", "HSET h f v", "SADD t m", "ZADD z 1.5 m", "SET e x EX 1000"] {
        assert!(!client.ask(line).starts_with('-'));
    }
    for n in 0..500 {
        client.ask(&format!("SET k{n} {n}"));
    }
    assert_eq!(save(&config("saved", &node.at), &file).unwrap(), 506);
    // A misspelt name: no file is written, and no store is made.
    let missing = file.with_extension("missing");
    for _ in 0..2 {
        let said = save(&config("svaed", &node.at), &missing).unwrap_err().to_string();
        assert!(said.contains("no region svaed") && !missing.exists(), "{said}");
    }
    // What is no file stays what it is.
    let folder = std::env::temp_dir();
    let said = save(&config("saved", &node.at), &folder).unwrap_err().to_string();
    assert!(said.contains("no file: name another") && folder.is_dir(), "{said}");
    // A file that a link leads to is written, and the link stays.
    let link = file.with_extension("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    assert_eq!(save(&config("saved", &node.at), &link).unwrap(), 506);
    assert!(link.is_symlink() && !file.is_symlink());
    std::fs::remove_file(&link).unwrap();
    let said = restore(&config("saved", &node.at), &file).unwrap_err().to_string();
    assert!(said.contains("506 keys already"), "{said}");
    let other = Process::node(Transport::Shm);
    assert_eq!(restore(&config("again", &other.at), &file).unwrap(), 506);
    let front = Process::front("again", &other.at);
    let mut client = front.client();
    for (said, expected) in [
        ("GET s", "text"),
        ("LRANGE l 0 -1", "[a b]"),
        ("HGETALL h", "[f v]"),
        ("SMEMBERS t", "[m]"),
        ("ZSCORE z m", "1.5"),
        ("GET k499", "499"),
        ("DBSIZE", ":506"),
    ] {
        assert_eq!(client.ask(said), expected, "{said}");
    }
    let ttl: i64 = client.ask("TTL e").trim_start_matches(':').parse().unwrap();
    assert!((900..=1000).contains(&ttl));
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let said = restore(&config("third", &other.at), &file).unwrap_err().to_string();
    assert!(said.contains("damaged") && !said.contains('\n'), "{said}");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn operators_see_what_goes_on() {
    let node = Process::node(Transport::Shm);
    let front = front(&node, "watched", "metrics=127.0.0.1:0");
    let at = front.counters.as_deref().unwrap();
    let mut client = front.client();
    for line in ["CONFIG SET slowlog-log-slower-than 0", "SET k v", "GET k", "GET none"] {
        client.ask(line);
    }
    let slow = client.ask("SLOWLOG GET 2");
    assert!(slow.contains("[GET none]") && slow.contains("[GET k]") && !slow.contains("[SET k v]"), "{slow}");
    assert_eq!(client.ask("SLOWLOG RESET"), "+OK");
    let info = client.ask("INFO");
    for line in ["redis_version:7", "connected_clients:1", "keyspace_hits:1", "keyspace_misses:1", "# Farmem", "verbs:"]
    {
        assert!(info.contains(line), "{line} is not in {info}");
    }
    assert!(client.ask("INFO commandstats").contains("cmdstat_get:calls=2,"));
    assert!(client.ask("INFO keyspace").contains("db0:keys=1"));
    assert!(!client.ask("INFO clients").contains("# Server"));
    assert!(client.ask("LATENCY HISTOGRAM get").starts_with("[get [calls :2 histogram_usec "));
    let ask = |path: &str| {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        said
    };
    // Figures are published once a second.
    let (mut said, until) = (ask("/metrics"), Instant::now() + Duration::from_secs(60));
    while !said.contains("\nfarmem_kv_command_calls_total{command=\"get\"} 2\n") && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
        said = ask("/metrics");
    }
    assert!(said.starts_with("HTTP/1.1 200 OK") && said.contains("\nfarmem_kv_hits_total 1\n"), "{said}");
    assert!(said.contains("\nfarmem_kv_command_calls_total{command=\"get\"} 2\n"), "{said}");
    assert!(ask("/other").starts_with("HTTP/1.1 404"));
}

/// Keys are evicted before memory is full, so that writes do not wait for it.
#[test]
fn room_is_made_ahead_of_writes() {
    let node = Process::node(Transport::Tcp);
    let front = front(&node, "full", &format!("maxmemory={}", 32 << 20));
    let mut client = front.client();
    let value = "v".repeat(60_000);
    for n in 0..800 {
        client.send(&["SET", &format!("key{n}"), &value]).unwrap();
        assert_eq!(client.reply().as_deref(), Some("+OK"));
    }
    let info = client.ask("INFO");
    let figure = |name: &str| -> u64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name)).expect("it is told");
        line.trim_start_matches(':').trim().parse().unwrap()
    };
    let (evicted, full) = (figure("evicted_keys"), figure("farmem_writes_when_full"));
    assert!(evicted > 250 && 2 * full < evicted, "{evicted} keys were evicted, and {full} writes found no room");
    assert!(figure("used_memory") <= 32 << 20);
    // Those that were written last are there.
    for n in 795..800 {
        assert_eq!(client.ask(&format!("STRLEN key{n}")), ":60000");
    }
}

/// Strangers who say nothing do not stay, and keep nobody out meanwhile.
#[test]
fn strangers_are_shown_out() {
    let node = Process::node(Transport::Shm);
    let front = front(&node, "guests", "password=secret clients=300");
    let mut strangers: Vec<Client> = (0..320).map(|_| front.client()).collect();
    let mut client = front.client();
    assert_eq!(client.ask("AUTH secret"), "+OK");
    assert_eq!(strangers[0].reply(), None, "the first had to give way");
    let ended = Instant::now() + Duration::from_secs(60);
    while !client.ask("INFO clients").contains("connected_clients:1\r") {
        assert!(Instant::now() < ended, "strangers stay");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A client that has sent all of its requests before replies are full goes on when these have left, though
/// nothing more comes from it. One that reads nothing is full again, and is closed.
#[test]
fn requests_that_waited_for_room_go_on() {
    let node = Process::node(Transport::Shm);
    let front = front(&node, "room", "kept=1000000 unread=300");
    let mut client = front.client();
    client.send(&["SET", "large", &"v".repeat(600_000)]).unwrap();
    assert_eq!(client.reply().as_deref(), Some("+OK"));
    let get = b"*2\r\n$3\r\nGET\r\n$5\r\nlarge\r\n";
    client.stream.get_mut().write_all(&get.repeat(50)).unwrap();
    for n in 0..50 {
        assert_eq!(client.reply().map(|said| said.len()), Some(600_000), "{n}");
    }
    let mut deaf = front.client();
    deaf.stream.get_mut().write_all(&get.repeat(1000)).unwrap();
    let ended = Instant::now() + Duration::from_secs(60);
    while !client.ask("INFO clients").contains("connected_clients:1\r") {
        assert!(Instant::now() < ended, "it is not closed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The same for strangers, of whose replies little is kept.
#[test]
fn strangers_are_answered() {
    let node = Process::node(Transport::Shm);
    let front = front(&node, "answers", "password=secret");
    let mut stranger = front.client();
    stranger.stream.get_mut().write_all(&b"*1\r\n$4\r\nPING\r\n".repeat(4000)).unwrap();
    for n in 0..4000 {
        assert_eq!(stranger.reply().as_deref(), Some("-NOAUTH Authentication required."), "{n}");
    }
    assert_eq!(stranger.ask("AUTH secret"), "+OK");
}

/// Others have their turn between the commands of one that asks for much.
#[test]
fn slow_commands_keep_nobody_out() {
    let node = Process::node(Transport::Shm);
    let front = front(&node, "spell", "");
    let [mut slow, mut other] = [front.client(), front.client()];
    // As alike as takes longest, and as long as may be.
    let (one, two) = ("a".repeat(2000), "b".repeat(2000));
    other.send(&["MSET", "one", &one, "two", &two]).unwrap();
    assert_eq!(other.reply().as_deref(), Some("+OK"));
    slow.stream.get_mut().write_all(&b"*3\r\n$3\r\nLCS\r\n$3\r\none\r\n$3\r\ntwo\r\n".repeat(256)).unwrap();
    let calls = loop {
        let told = other.ask("INFO commandstats");
        let lcs = told.lines().find_map(|line| line.strip_prefix("cmdstat_lcs:calls="));
        if let Some(calls) = lcs.and_then(|rest| rest.split(',').next()) {
            break calls.parse::<u32>().unwrap();
        }
    };
    assert!((1..256).contains(&calls), "{calls}");
    let long = "x".repeat(1025);
    for words in [&["KEYS", &long][..], &["SCAN", "0", "MATCH", &long]] {
        other.send(words).unwrap();
        assert_eq!(other.reply().as_deref(), Some("-ERR a pattern has 1024 bytes at most"));
    }
    other.send(&["SET", "three", &"c".repeat(2100)]).unwrap();
    assert_eq!(other.reply().as_deref(), Some("+OK"));
    assert!(other.ask("LCS one three").starts_with("-ERR Insufficient memory"));
}

/// A collection may have more than commands take as a whole. It is saved and restored all the same.
#[test]
fn a_large_collection_survives_the_end_of_its_nodes() {
    let file = std::env::temp_dir().join(format!("farmem-kv-large-{}", std::process::id()));
    let (items, item) = (70, "x".repeat(1 << 20));
    {
        let node = Process::node(Transport::Shm);
        let front = Process::front("saved", &node.at);
        let mut client = front.client();
        assert_eq!(client.ask("SET small 1"), "+OK");
        for n in 1..=items {
            client.send(&["RPUSH", "large", &format!("{n}{item}")]).unwrap();
            assert_eq!(client.reply().unwrap(), format!(":{n}"));
        }
        assert_eq!(save(&config("saved", &node.at), &file).unwrap(), 2);
    }
    let node = Process::node(Transport::Shm);
    assert_eq!(restore(&config("saved", &node.at), &file).unwrap(), 2);
    std::fs::remove_file(&file).unwrap();
    let front = Process::front("saved", &node.at);
    let mut client = front.client();
    assert_eq!((client.ask("GET small"), client.ask("LLEN large")), ("1".into(), format!(":{items}")));
    for n in [1, 35, items] {
        assert_eq!(client.ask(&format!("LINDEX large {}", n - 1)), format!("{n}{item}"));
    }
}
