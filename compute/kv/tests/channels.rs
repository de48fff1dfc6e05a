//! Publishing: what clients of one front end hear, and those of others; what is told when a message is lost.

mod world;

use farmem::Transport;
use std::time::{Duration, Instant};
use world::process::{Client, Process, answers, are_all, signal};

#[test]
fn another_process() {
    world::process::another_process();
}

#[test]
fn clients_of_one_front_end_hear_each_other() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("one", &node.at);
    let [mut a, mut b, mut c] = [front.client(), front.client(), front.client()];
    answers(&mut b, &[("PUBLISH news nobody", ":0"), ("PUBSUB CHANNELS", "[]"), ("PUBSUB NUMPAT", ":0")]);
    answers(
        &mut a,
        &[
            ("UNSUBSCRIBE", "[unsubscribe nil :0]"),
            ("SUBSCRIBE news", "[subscribe news :1]"),
            ("PSUBSCRIBE n*s", "[psubscribe n*s :2]"),
            ("SSUBSCRIBE news", "[ssubscribe news :1]"),
            ("PING", "[pong ]"),
            ("PING x", "[pong x]"),
        ],
    );
    let refused = a.ask("GET x");
    assert!(refused.starts_with("-ERR Can't execute 'get': only (P|S)SUBSCRIBE"), "{refused}");
    answers(
        &mut b,
        &[
            ("PUBLISH news one", ":2"),
            ("PUBLISH nurses two", ":1"),
            ("SPUBLISH news three", ":1"),
            ("PUBSUB CHANNELS", "[news]"),
            ("PUBSUB CHANNELS x*", "[]"),
            ("PUBSUB NUMSUB news none", "[news :1 none :0]"),
            ("PUBSUB SHARDCHANNELS", "[news]"),
            ("PUBSUB SHARDNUMSUB news", "[news :1]"),
            ("PUBSUB NUMPAT", ":1"),
            ("CLIENT KILL TYPE nonsense SKIPME no", "-ERR Unknown client type 'nonsense'"),
        ],
    );
    for heard in ["[message news one]", "[pmessage n*s news one]", "[pmessage n*s nurses two]", "[smessage news three]"]
    {
        assert_eq!(a.reply().as_deref(), Some(heard));
    }
    // By RESP3 messages are told from replies, and all commands are allowed.
    assert!(c.ask("HELLO 3").contains("proto :3"));
    answers(&mut c, &[("SUBSCRIBE news", ">[subscribe news :1]"), ("SET x 1", "+OK"), ("GET x", "1")]);
    c.send(&["PUBLISH", "news", "mine"]).unwrap();
    assert_eq!([c.reply(), c.reply()].map(Option::unwrap), [":3", ">[message news mine]"]);
    // A script and a transaction publish when they have taken effect; those that fail do not.
    for (said, expected) in [
        ("EVAL return(redis.call('publish','news','script')) 1 x", ":3"),
        ("EVAL redis.call('publish','news','failed');error('x') 1 x", "-"),
        ("MULTI", "+OK"),
        ("SET x 2", "+QUEUED"),
        ("PUBLISH news transaction", "+QUEUED"),
        ("EXEC", "[+OK :3]"),
        ("MULTI", "+OK"),
        ("MSET x 2 y 2", "+QUEUED"),
        ("PUBLISH news both", "+QUEUED"),
        ("SUBSCRIBE news", "+QUEUED"),
        ("EXEC", "[+OK :3 -ERR subscribe is not carried out in a transaction]"),
    ] {
        let said = b.ask(said);
        assert!(said == expected || expected == "-" && said.starts_with('-'), "{said}");
    }
    for heard in ["script", "transaction", "both"] {
        assert_eq!(c.reply(), Some(format!(">[message news {heard}]")));
    }
    answers(&mut c, &[("UNSUBSCRIBE", ">[unsubscribe news :0]"), ("PING", "+PONG")]);
    assert!(b.ask("CLIENT LIST TYPE pubsub").contains("flags=P"));
    assert_eq!(b.ask("CLIENT KILL TYPE pubsub"), ":1");
    let ended = Instant::now() + Duration::from_secs(20);
    while b.ask("PUBLISH news late") != ":0" {
        assert!(Instant::now() < ended, "its subscriptions end with the connection");
    }
}

/// The words of the messages that a client hears until the last.
fn hear(client: &mut Client, last: &str) -> Vec<String> {
    let mut heard = Vec::new();
    while heard.last().is_none_or(|word| word != last) {
        let said = client.reply().expect("a message");
        heard.push(said.trim_matches(['[', ']']).rsplit(' ').next().unwrap().to_owned());
    }
    heard
}

/// Every message of every front end reaches the clients of all, in its publisher's order, over mapped memory
/// and over TCP. A killed publisher takes its messages along, and nothing else.
#[test]
fn front_ends_hear_each_other() {
    for (way, count) in [(Transport::Shm, 2), (Transport::Tcp, 3)] {
        let node = Process::node(way);
        let mut fronts: Vec<Process> = (0..count).map(|_| Process::front("news", &node.at)).collect();
        let mut listeners: Vec<Client> = fronts.iter().map(Process::client).collect();
        for listener in &mut listeners {
            assert_eq!(listener.ask("SUBSCRIBE news"), "[subscribe news :1]");
        }
        let mut talkers: Vec<Client> = fronts.iter().map(Process::client).collect();
        for (n, talker) in talkers.iter_mut().enumerate() {
            (0..500).for_each(|m| talker.send(&["PUBLISH", "news", &format!("{n}-{m}")]).unwrap());
        }
        for talker in &mut talkers {
            (0..500).for_each(|_| assert_eq!(talker.reply().as_deref(), Some(":1")));
        }
        for listener in &mut listeners {
            let mut heard: Vec<Vec<usize>> = vec![Vec::new(); count];
            for _ in 0..500 * count {
                let said = listener.reply().expect("a message");
                let (n, m) = said.trim_matches(['[', ']']).rsplit(' ').next().unwrap().split_once('-').unwrap();
                heard[n.parse::<usize>().unwrap()].push(m.parse().unwrap());
            }
            assert!(heard.iter().all(|of| of.iter().copied().eq(0..500)), "{heard:?}");
        }
        // Keys of clients alone are seen, and the largest message goes through.
        assert_eq!(talkers[1].ask("KEYS *"), "[]");
        let large = "x".repeat(1_999_996);
        talkers[0].send(&["PUBLISH", "news", &large]).unwrap();
        assert_eq!(talkers[0].reply().as_deref(), Some(":1"));
        let last = listeners.last_mut().unwrap();
        assert_eq!(hear(last, &large).len(), 1);
        talkers[0].send(&["PUBLISH", "news", &format!("{large}x")]).unwrap();
        assert!(talkers[0].reply().unwrap().starts_with("-ERR a message has 2000000 bytes at most"));
        if way == Transport::Shm {
            continue;
        }
        fronts[0].kill();
        assert_eq!(talkers[1].ask("PUBLISH news last"), ":1");
        assert!(hear(last, "last").len() <= 1);
        // Another takes a line at once, perhaps the dead one's. It is heard from its first message on.
        let another = Process::front("news", &node.at);
        assert_eq!(another.client().ask("PUBLISH news new"), ":0");
        assert_eq!(hear(last, "new").len(), 1);
    }
}

/// A client that does not read is cut off; others hear on.
#[test]
fn a_slow_subscriber_is_cut_off() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("slow", &node.at);
    let [mut slow, mut quick, mut talker] = [front.client(), front.client(), front.client()];
    for client in [&mut slow, &mut quick] {
        assert_eq!(client.ask("SUBSCRIBE news"), "[subscribe news :1]");
    }
    let large = "x".repeat(1 << 20);
    let ended = Instant::now() + Duration::from_secs(60);
    loop {
        talker.send(&["PUBLISH", "news", &large]).unwrap();
        let reached = talker.reply().unwrap();
        assert_eq!(hear(&mut quick, &large).len(), 1);
        if reached == ":1" {
            break;
        }
        assert!(Instant::now() < ended, "still {reached}");
    }
    // Perhaps none: its socket holds less than a message.
    let heard = std::iter::from_fn(|| slow.reply()).count();
    assert!(heard < 200, "{heard}");
}

/// A message that is served together with the end of the subscription comes before its reply, or not at all.
#[test]
fn no_message_comes_after_the_end_of_a_subscription() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("ends", &node.at);
    let [mut talker, mut listener, mut pauser] = [front.client(), front.client(), front.client()];
    // So long that publishing waits until it is handed over.
    let text = "x".repeat(1_500_000);
    for (ends, told) in [("UNSUBSCRIBE", "[unsubscribe c :0]"), ("RESET", "+RESET")] {
        for _ in 0..20 {
            assert_eq!(listener.ask("SUBSCRIBE c"), "[subscribe c :1]");
            assert_eq!(pauser.ask("CLIENT PAUSE 60000"), "+OK");
            talker.send(&["PUBLISH", "c", &text]).unwrap();
            listener.send(&[ends]).unwrap();
            listener.send(&["PING"]).unwrap();
            assert_eq!(pauser.ask("CLIENT UNPAUSE"), "+OK");
            let mut said = listener.reply().unwrap();
            if said.starts_with("[message c x") {
                said = listener.reply().unwrap();
            }
            assert_eq!((said.as_str(), listener.reply().as_deref()), (told, Some("+PONG")));
            assert!(talker.reply().unwrap().starts_with(':'));
        }
    }
}

/// Many copies of a large message for one client that reads: it is sent all of them, or cut off, but they are
/// never all in memory.
#[test]
fn many_copies_of_a_message_are_one() {
    let node = Process::node(Transport::Tcp);
    let fronts = [Process::front("copies", &node.at), Process::front("copies", &node.at)];
    let [mut slow, mut talker, mut far] = [fronts[0].client(), fronts[0].client(), fronts[1].client()];
    assert_eq!(far.ask("SUBSCRIBE news"), "[subscribe news :1]");
    for n in 0..400 {
        slow.send(&["PSUBSCRIBE", &format!("news{}", "*".repeat(n + 1))]).unwrap();
    }
    for n in 0..400 {
        assert!(slow.reply().unwrap().ends_with(&format!(":{}]", n + 1)));
    }
    let large = "x".repeat(1_000_000);
    talker.send(&["PUBLISH", "news", &large]).unwrap();
    assert_eq!(talker.reply().as_deref(), Some(":400"));
    let status = std::fs::read_to_string(format!("/proc/{}/status", fronts[0].child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim().split(' ').next().unwrap();
    assert!(peak.parse::<u64>().unwrap() < 300 << 10, "{peak} KiB");
    for n in 0..200 {
        talker.send(&["PUBLISH", "news", &n.to_string()]).unwrap();
    }
    (0..200).for_each(|_| assert!(talker.reply().unwrap().starts_with(':')));
    let heard = hear(&mut far, "199");
    assert_eq!(heard.len(), 201);
}

/// PUBSUB tells of the clients of all front ends, also at one whose clients have no subscriptions.
#[test]
fn subscriptions_of_all_front_ends_are_counted() {
    for way in [Transport::Shm, Transport::Tcp] {
        let node = Process::node(way);
        let fronts: Vec<Process> = (0..3).map(|_| Process::front("numbers", &node.at)).collect();
        let [mut a, mut b, mut c] = [fronts[0].client(), fronts[0].client(), fronts[1].client()];
        let mut asks = fronts[2].client();
        answers(&mut asks, &[("PUBSUB NUMSUB news", "[news :0]"), ("PUBSUB CHANNELS", "[]"), ("PUBSUB NUMPAT", ":0")]);
        answers(&mut a, &[("SUBSCRIBE news", "[subscribe news :1]"), ("PSUBSCRIBE n*", "[psubscribe n* :2]")]);
        answers(&mut b, &[("SUBSCRIBE news", "[subscribe news :1]"), ("SSUBSCRIBE news", "[ssubscribe news :1]")]);
        answers(
            &mut c,
            &[
                ("SUBSCRIBE news", "[subscribe news :1]"),
                ("SUBSCRIBE other", "[subscribe other :2]"),
                ("PSUBSCRIBE n*", "[psubscribe n* :3]"),
                ("PSUBSCRIBE m*", "[psubscribe m* :4]"),
            ],
        );
        let told = [
            ("PUBSUB NUMSUB news none other", "[news :3 none :0 other :1]"),
            ("PUBSUB CHANNELS", "[news other]"),
            ("PUBSUB CHANNELS o*", "[other]"),
            ("PUBSUB SHARDCHANNELS", "[news]"),
            ("PUBSUB SHARDNUMSUB news", "[news :1]"),
            ("PUBSUB NUMPAT", ":2"),
        ];
        // At one that has subscriptions, too. One that gets no time for a second is left out, so it is asked again.
        for asks in [&mut asks, &mut fronts[1].client()] {
            for (said, expected) in told {
                until(said, || asks.ask(said) == expected);
            }
        }
        // A transaction waits for nobody.
        answers(&mut asks, &[("MULTI", "+OK"), ("PUBSUB NUMSUB news", "+QUEUED"), ("EXEC", "[[news :0]]")]);
        drop((a, b));
        until("subscriptions end with their connections", || asks.ask("PUBSUB NUMSUB news").ends_with(":1]"));
        until("those of the others stay", || asks.ask("PUBSUB NUMPAT") == ":2");
        // One that stands still is left out.
        signal(&fronts[1], "-STOP");
        until("it stands still", || are_all(fronts[1].child.id(), 'T'));
        assert_eq!(asks.ask("PUBSUB NUMSUB news other"), "[news :0 other :0]");
        signal(&fronts[1], "-CONT");
        drop(c);
        until("the last one's, too", || asks.ask("PUBSUB NUMPAT") == ":0");
        until("and their names", || asks.ask("PUBSUB CHANNELS") == "[]");
    }
}

/// Many names go in parts, and many clients ask at a time: each is told all, and messages come between.
#[test]
fn questions_about_many_names_are_answered_in_parts() {
    let node = Process::node(Transport::Shm);
    let fronts: Vec<Process> = (0..3).map(|_| Process::front("parts", &node.at)).collect();
    let names: Vec<String> = (0..600).map(|n| format!("{n:0>500}")).collect();
    let mut listeners = [fronts[0].client(), fronts[1].client()];
    for listener in &mut listeners {
        for name in &names {
            listener.send(&["SUBSCRIBE", name]).unwrap();
        }
        names.iter().for_each(|_| assert!(listener.reply().unwrap().starts_with("[subscribe ")));
    }
    let mut asks = fronts[2].client();
    let all = format!("[{}]", names.join(" "));
    until("all names", || asks.ask("PUBSUB CHANNELS") == all);
    until("some names", || asks.ask("PUBSUB CHANNELS *9") == all_of(&names, |name| name.ends_with('9')));
    let each: Vec<String> = names.iter().map(|name| format!("{name} :2")).collect();
    let question = [&["PUBSUB".to_owned(), "NUMSUB".to_owned()], names.as_slice()].concat();
    let words: Vec<&str> = question.iter().map(String::as_str).collect();
    until("all numbers", || {
        asks.send(&words).unwrap();
        asks.reply().unwrap() == format!("[{}]", each.join(" "))
    });
    // Half of them ask the same.
    let mut many: Vec<Client> = (0..40).map(|_| fronts[2].client()).collect();
    until("all of them", || {
        let about = |n: usize| &names[if n.is_multiple_of(2) { 0 } else { n }];
        many.iter_mut().enumerate().for_each(|(n, one)| one.send(&["PUBSUB", "NUMSUB", about(n)]).unwrap());
        let said: Vec<String> = many.iter_mut().map(|one| one.reply().unwrap()).collect();
        said.iter().enumerate().all(|(n, said)| *said == format!("[{} :2]", about(n)))
    });
    // More than it asks for.
    let long: Vec<String> = (0..2100).map(|n| format!("x{n:0>1023}")).collect();
    for name in &long {
        listeners[0].send(&["SUBSCRIBE", name]).unwrap();
    }
    long.iter().for_each(|_| assert!(listeners[0].reply().unwrap().starts_with("[subscribe ")));
    let refused = "-ERR the names at the other front ends are more than 2048 KiB: name less";
    until("too many", || asks.ask("PUBSUB CHANNELS") == refused);
    until("fewer", || asks.ask("PUBSUB CHANNELS 0*") == all);
    assert_eq!(asks.ask(&format!("PUBLISH {} hello", names[7])), ":0");
    for listener in &mut listeners {
        assert_eq!(listener.reply(), Some(format!("[message {} hello]", names[7])));
    }
}

/// The reply with those of these names.
fn all_of(names: &[String], is_in: impl Fn(&str) -> bool) -> String {
    let those: Vec<&str> = names.iter().map(String::as_str).filter(|name| is_in(name)).collect();
    format!("[{}]", those.join(" "))
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let ended = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < ended, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A message that is gone before a front end reads it is not missed in silence.
#[test]
fn a_lost_message_is_told() {
    let node = Process::node(Transport::Tcp);
    let fronts = [Process::front("lost", &node.at), Process::front("lost", &node.at)];
    let [mut listener, mut talker] = [fronts[0].client(), fronts[1].client()];
    assert_eq!(listener.ask("SUBSCRIBE news"), "[subscribe news :1]");
    let pid = fronts[0].child.id();
    signal(&fronts[0], "-STOP");
    until("it stands still", || are_all(pid, 'T'));
    assert_eq!(talker.ask("PUBLISH news hello"), ":0");
    until("the message is on its way", || talker.ask("DBSIZE") == ":1");
    assert_eq!(talker.ask("FLUSHALL"), "+OK");
    signal(&fronts[0], "-CONT");
    // If this took so long that the front end was shut out, it closes the connection for that.
    let mut said = listener.reply();
    while said.as_ref().is_some_and(|said| said.starts_with('-')) {
        said = listener.reply();
    }
    assert_eq!(said, None);
}

/// A front end that is told to end passes on first what was published, and lets nobody in meanwhile.
#[test]
fn one_that_ends_passes_its_messages_on() {
    let node = Process::node(Transport::Tcp);
    let mut fronts = [Process::front("passing", &node.at), Process::front("passing", &node.at)];
    let [mut listener, mut talker] = [fronts[0].client(), fronts[1].client()];
    assert_eq!(listener.ask("SUBSCRIBE news"), "[subscribe news :1]");
    assert_eq!(talker.ask("PUBLISH news first"), ":0");
    assert_eq!(hear(&mut listener, "first").len(), 1);
    // It stands still while all of them come, so they are still queued when it sees that it is to end.
    signal(&fronts[1], "-STOP");
    until("it stands still", || are_all(fronts[1].child.id(), 'T'));
    for n in 0..500 {
        talker.send(&["PUBLISH", "news", &n.to_string()]).unwrap();
    }
    signal(&fronts[1], "-CONT");
    assert_eq!(talker.reply().as_deref(), Some(":0"));
    signal(&fronts[1], "-TERM");
    let published = 1 + std::iter::from_fn(|| talker.reply()).filter(|said| said == ":0").count();
    fronts[1].child.wait().unwrap();
    let heard = hear(&mut listener, &(published - 1).to_string());
    assert!(heard.iter().map(|n| n.parse::<usize>().unwrap()).eq(0..published), "{heard:?}");
}

/// The listener's front end learns that the other is gone before it looks for messages.
#[test]
fn the_last_message_of_one_that_has_left_is_heard() {
    let node = Process::node(Transport::Tcp);
    let mut fronts = [Process::front("last", &node.at), Process::front("last", &node.at)];
    let [mut listener, mut talker] = [fronts[0].client(), fronts[1].client()];
    assert_eq!(listener.ask("SUBSCRIBE news"), "[subscribe news :1]");
    assert_eq!(talker.ask("PUBLISH news first"), ":0");
    assert_eq!(hear(&mut listener, "first").len(), 1);
    signal(&fronts[0], "-STOP");
    until("it stands still", || are_all(fronts[0].child.id(), 'T'));
    assert_eq!(talker.ask("PUBLISH news last"), ":0");
    signal(&fronts[1], "-TERM");
    fronts[1].child.wait().unwrap();
    signal(&fronts[0], "-CONT");
    assert_eq!(hear(&mut listener, "last"), ["last"]);
}

/// Whoever comes after SIGTERM is not served.
#[test]
fn one_that_ends_lets_nobody_in() {
    let node = Process::node(Transport::Shm);
    let mut front = Process::front("closed", &node.at);
    assert_eq!(front.client().ask("PING"), "+PONG");
    signal(&front, "-STOP");
    until("it stands still", || are_all(front.child.id(), 'T'));
    signal(&front, "-TERM");
    // The kernel takes the connection.
    let mut late = front.client();
    late.send(&["PING"]).unwrap();
    signal(&front, "-CONT");
    assert_eq!(late.reply(), None);
    front.child.wait().unwrap();
}

/// Full nodes: a message that cannot reach the other front ends is refused.
#[test]
fn full_nodes_refuse_messages() {
    let node = Process::node(Transport::Shm);
    let fronts = [Process::front("full", &node.at), Process::front("full", &node.at)];
    let [mut filler, mut talker] = [fronts[0].client(), fronts[1].client()];
    assert_eq!(talker.ask("PUBLISH news first"), ":0");
    let value = "x".repeat(1 << 20);
    let mut n = 0;
    loop {
        filler.send(&["SET", &format!("key{n}"), &value]).unwrap();
        let said = filler.reply().unwrap();
        if said.starts_with("-OOM") {
            break;
        }
        assert_eq!(said, "+OK");
        n += 1;
    }
    let large = "y".repeat(900_000);
    let ended = Instant::now() + Duration::from_secs(60);
    loop {
        talker.send(&["PUBLISH", "news", &large]).unwrap();
        let said = talker.reply().unwrap();
        if said.starts_with("-OOM") {
            break;
        }
        // On a machine that is busy a front end may be silent for too long. It joins again.
        let is_shut_out = said.starts_with("-IOERR this front end was silent");
        assert!((said == ":0" || is_shut_out) && Instant::now() < ended, "{said}");
    }
    // It is of use again when there is room.
    for n in 0..n {
        assert_eq!(filler.ask(&format!("DEL key{n}")), ":1");
    }
    let ended = Instant::now() + Duration::from_secs(60);
    while talker.ask("PUBLISH news last") != ":0" {
        assert!(Instant::now() < ended, "there is room");
    }
}

/// CLIENT KILL ends a subscriber that reads nothing, with what it has not read.
#[test]
fn a_killed_subscriber_that_reads_nothing_is_cut_off() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("killed", &node.at);
    let [mut slow, mut talker] = [front.client(), front.client()];
    assert_eq!(slow.ask("SUBSCRIBE news"), "[subscribe news :1]");
    // More than the sockets take, less than it is cut off for.
    let large = "x".repeat(1_000_000);
    for _ in 0..24 {
        talker.send(&["PUBLISH", "news", &large]).unwrap();
        assert_eq!(talker.reply().as_deref(), Some(":1"));
    }
    assert_eq!(talker.ask("CLIENT KILL TYPE pubsub"), ":1");
    until("it is gone", || talker.ask("INFO clients").contains("connected_clients:1"));
    assert_eq!(talker.ask("PUBLISH news late"), ":0");
    assert!(std::iter::from_fn(|| slow.reply()).count() < 24);
}

/// Changes of keys are published as notify-keyspace-events says, to subscribers at every front end.
#[test]
fn changes_of_keys_are_published() {
    let node = Process::node(Transport::Shm);
    let fronts = [Process::front("events", &node.at), Process::front("events", &node.at)];
    let [mut listener, mut far, mut a] = [fronts[0].client(), fronts[1].client(), fronts[0].client()];
    answers(
        &mut a,
        &[
            ("CONFIG GET notify-keyspace-events", "[notify-keyspace-events ]"),
            ("CONFIG SET notify-keyspace-events KEA", "+OK"),
            ("CONFIG GET notify-keyspace-events", "[notify-keyspace-events AKE]"),
            ("CONFIG SET notify-keyspace-events gE", "+OK"),
        ],
    );
    assert!(a.ask("CONFIG SET notify-keyspace-events KEn").starts_with("-ERR CONFIG SET failed"));
    for client in [&mut listener, &mut far] {
        assert_eq!(client.ask("PSUBSCRIBE __keyevent@0__:*"), "[psubscribe __keyevent@0__:* :1]");
    }
    a.ask("CONFIG SET notify-keyspace-events EA");
    for (said, events) in [
        ("SET a 1", "set a"),
        ("SET a 1 EX 100", "set a expire a"),
        ("INCR a", "incrby a"),
        ("EXPIRE a 100", "expire a"),
        ("EXPIRE none 100", ""),
        ("PERSIST a", "persist a"),
        ("DEL a none", "del a"),
        ("RPUSH l 1 2", "rpush l"),
        ("LMOVE l l LEFT RIGHT", "lpop l rpush l"),
        ("RPOPLPUSH l m", "rpop l lpush m"),
        ("LPOP l", "lpop l del l"),
        ("SADD s 1", "sadd s"),
        ("SADD s 1", ""),
        ("SREM s 1", "srem s del s"),
        ("RENAME m n", "rename_from m rename_to n"),
        ("ZADD z 1 x", "zadd z"),
        ("ZUNIONSTORE y 1 z", "zunionstore y"),
        ("ZUNIONSTORE y 1 none", "del y"),
        ("XADD x * f v", "xadd x"),
        ("XGROUP CREATE x g 0", "xgroup-create x"),
        ("GET a", ""),
        ("EVAL return(redis.call('set','k','v')) 1 k", "set k"),
        ("EVAL redis.call('set','k','w');error('x') 1 k", ""),
    ] {
        assert!(!a.ask(said).is_empty());
        // The end of what the command has published.
        assert!(a.ask("PUBLISH __keyevent@0__:end -").starts_with(':'));
        for client in [&mut listener, &mut far] {
            let mut heard = Vec::new();
            loop {
                let told = client.reply().unwrap();
                let told = told.trim_matches(['[', ']']).rsplit(':').next().unwrap().to_owned();
                if told == "end -" {
                    break;
                }
                heard.push(told);
            }
            if said.starts_with("RENAME") {
                heard.sort();
            }
            assert_eq!(heard.join(" "), events, "{said}");
        }
    }
    answers(&mut a, &[("MULTI", "+OK"), ("SET k 1", "+QUEUED"), ("DEL k", "+QUEUED"), ("EXEC", "[+OK :1]")]);
    let mut next = || listener.reply().unwrap().trim_matches(['[', ']']).rsplit(':').next().unwrap().to_owned();
    assert_eq!([next(), next()], ["set k", "del k"]);
    // It ends though nobody asks for it.
    assert_eq!(a.ask("SET short 1 PX 50"), "+OK");
    assert_eq!([next(), next(), next()], ["set short", "expire short", "expired short"]);
}

/// The values in which messages go to other front ends end, too: nobody is told, which would be a message again.
#[test]
fn what_the_store_keeps_for_itself_is_not_told_of() {
    let node = Process::node(Transport::Shm);
    let fronts = [Process::front("own", &node.at), Process::front("own", &node.at)];
    let [mut listener, mut a] = [fronts[1].client(), fronts[0].client()];
    assert_eq!(listener.ask("PSUBSCRIBE *"), "[psubscribe * :1]");
    assert_eq!(a.ask("CONFIG SET notify-keyspace-events EA"), "+OK");
    assert_eq!(a.ask("PUBLISH x first"), ":0");
    assert_eq!(listener.reply().as_deref(), Some("[pmessage * x first]"));
    until("it has ended", || a.ask("DBSIZE") == ":0");
    assert_eq!(a.ask("PUBLISH x last"), ":0");
    assert_eq!(listener.reply().as_deref(), Some("[pmessage * x last]"));
}
