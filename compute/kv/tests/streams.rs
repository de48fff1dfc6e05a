//! Streams: entries and groups of one front end, readers that wait, consumers at several.

mod world;

use farmem::Transport;
use std::collections::BTreeSet;
use world::process::{Client, Process, answers};

#[test]
fn another_process() {
    world::process::another_process();
}

#[test]
fn entries_and_groups() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("streams", &node.at);
    let mut client = front.client();
    answers(
        &mut client,
        &[
            ("XADD s 1-1 f a", "1-1"),
            ("XADD s 1-* f b", "1-2"),
            ("XADD s 3 f c", "3-0"),
            ("XADD s 3 f c", "-ERR The ID specified in XADD is equal or smaller than the target stream top item"),
            ("XADD s 0-0 f c", "-ERR The ID specified in XADD must be greater than 0-0"),
            ("XADD none NOMKSTREAM * f v", "nil"),
            ("XADD s * f", "-ERR wrong number of arguments for 'xadd' command"),
            ("XLEN s", ":3"),
            ("TYPE s", "+stream"),
            ("OBJECT ENCODING s", "stream"),
            ("GET s", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("XRANGE s - +", "[[1-1 [f a]] [1-2 [f b]] [3-0 [f c]]]"),
            ("XRANGE s (1-1 2", "[[1-2 [f b]]]"),
            ("XREVRANGE s + - COUNT 1", "[[3-0 [f c]]]"),
            ("XREAD COUNT 1 STREAMS s 1-1", "[[s [[1-2 [f b]]]]]"),
            ("XREAD STREAMS s $", "*-1"),
            ("XREAD BLOCK 1 STREAMS s $", "*-1"),
            ("XGROUP CREATE s g 0", "+OK"),
            ("XGROUP CREATE s g 0", "-BUSYGROUP Consumer Group name already exists"),
            ("XREADGROUP GROUP g me COUNT 2 STREAMS s >", "[[s [[1-1 [f a]] [1-2 [f b]]]]]"),
            ("XREADGROUP GROUP g you STREAMS s >", "[[s [[3-0 [f c]]]]]"),
            ("XREADGROUP GROUP g you STREAMS s >", "*-1"),
            ("XREADGROUP GROUP g me STREAMS s 0", "[[s [[1-1 [f a]] [1-2 [f b]]]]]"),
            ("XPENDING s g", "[:3 1-1 3-0 [[me 2] [you 1]]]"),
            ("XACK s g 1-1 9-9", ":1"),
            ("XCLAIM s g you 0 1-2 JUSTID", "[1-2]"),
            ("XPENDING s g", "[:2 1-2 3-0 [[you 2]]]"),
            ("XDEL s 1-2 7-7", ":1"),
            ("XAUTOCLAIM s g me 0 - COUNT 9", "[0-0 [[3-0 [f c]]] [1-2]]"),
            ("XINFO GROUPS s", "[[name g consumers :2 pending :1 last-delivered-id 3-0 entries-read :3 lag :0]]"),
            ("XTRIM s MAXLEN 1", ":1"),
            ("XGROUP DELCONSUMER s g me", ":1"),
            ("XGROUP DESTROY s g", ":1"),
            // A client may say that more was read than there was.
            ("XGROUP CREATE s g $ ENTRIESREAD 7", "+OK"),
            ("XINFO GROUPS s", "[[name g consumers :0 pending :0 last-delivered-id 3-0 entries-read :7 lag :-4]]"),
            ("XGROUP DESTROY s g", ":1"),
            (
                "XREADGROUP GROUP g me STREAMS s >",
                "-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option",
            ),
            ("XSETID s 5-0", "+OK"),
            ("XADD s MAXLEN = 1 5-1 f d", "5-1"),
            ("XRANGE s - +", "[[5-1 [f d]]]"),
            ("COPY s t", ":1"),
            ("XDEL t 5-1", ":1"),
            ("XLEN t", ":0"),
            ("EXISTS t", ":1"),
        ],
    );
    // In a script and in a transaction, and by RESP3.
    client.send(&["EVAL", "return redis.call('xread', 'streams', KEYS[1], 0)", "1", "s"]).unwrap();
    assert_eq!(client.reply().as_deref(), Some("[[s [[5-1 [f d]]]]]"));
    for line in ["MULTI", "XADD s 6-1 f e", "XREAD BLOCK 0 STREAMS s $", "EXEC"] {
        client.send(&line.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let said: Vec<String> = (0..4).map(|_| client.reply().unwrap()).collect();
    assert_eq!(said[3], "[6-1 *-1]");
    assert!(client.ask("HELLO 3").contains("proto :3"));
    assert_eq!(client.ask("XREAD STREAMS s 5-1"), "[s [[6-1 [f e]]]]");
    assert_eq!(client.ask("SET other x"), "+OK");
    assert!(client.ask("XREAD STREAMS s other 5-1 0").starts_with("-WRONGTYPE"));
}

/// Readers that wait hear of an entry that is added at another front end, all of them. Each entry goes to one
/// consumer of a group, wherever the consumers are.
#[test]
fn streams_are_shared_by_front_ends() {
    let node = Process::node(Transport::Tcp);
    let fronts = [Process::front("shared", &node.at), Process::front("shared", &node.at)];
    let mut readers: Vec<Client> = (0..4).map(|n| fronts[n % 2].client()).collect();
    let mut writer = fronts[0].client();
    assert_eq!(writer.ask("XADD s 1-0 f a"), "1-0");
    for reader in &mut readers {
        reader.send(&["XREAD", "BLOCK", "0", "STREAMS", "none", "s", "0", "1-0"]).unwrap();
    }
    assert_eq!(writer.ask("XADD s 2-0 f b"), "2-0");
    for reader in &mut readers {
        assert_eq!(reader.reply().as_deref(), Some("[[s [[2-0 [f b]]]]]"));
    }
    assert_eq!(writer.ask("XGROUP CREATE s g $"), "+OK");
    let consumers = readers.into_iter().enumerate().map(|(n, mut client)| {
        std::thread::spawn(move || {
            let mut had = Vec::new();
            loop {
                let said = client.ask(&format!("XREADGROUP GROUP g c{n} BLOCK 0 COUNT 3 STREAMS s >"));
                let ids = said.split(['[', ']', ' ']).filter(|word| word.ends_with("-7")).map(str::to_owned);
                let ids: Vec<String> = ids.collect();
                let last = said.contains("last");
                had.extend(ids);
                if last {
                    return had;
                }
            }
        })
    });
    let consumers: Vec<_> = consumers.collect();
    for n in 3..103 {
        assert_eq!(writer.ask(&format!("XADD s {n}-7 f v")), format!("{n}-7"));
    }
    // One for each of them. A consumer may have taken several at once.
    let mut n = 103;
    while consumers.iter().any(|consumer| !consumer.is_finished()) {
        writer.ask(&format!("XADD s {n}-0 last v"));
        n += 1;
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let had: Vec<String> = consumers.into_iter().flat_map(|consumer| consumer.join().unwrap()).collect();
    assert_eq!((had.len(), had.iter().collect::<BTreeSet<_>>().len()), (100, 100));
    // A group or a key that goes wakes those who wait for it.
    let mut waits = fronts[1].client();
    waits.send(&["XREADGROUP", "GROUP", "g", "me", "BLOCK", "0", "STREAMS", "s", ">"]).unwrap();
    writer.ask("DEL s");
    let mut said = waits.reply().unwrap();
    while said.starts_with('[') {
        waits.send(&["XREADGROUP", "GROUP", "g", "me", "BLOCK", "0", "STREAMS", "s", ">"]).unwrap();
        said = waits.reply().unwrap();
    }
    assert!(said.starts_with("-UNBLOCKED the stream key no longer exists") || said.starts_with("-NOGROUP"), "{said}");
}

/// A consumer that reads of several streams gets what it was given, also if one of them has no group.
#[test]
fn a_refused_read_takes_nothing() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("refused", &node.at);
    let mut client = front.client();
    answers(
        &mut client,
        &[
            ("XGROUP CREATE a g 0 MKSTREAM", "+OK"),
            ("XADD a 1-1 f v", "1-1"),
            ("SET text x", "+OK"),
            (
                "XREADGROUP GROUP g c NOACK STREAMS a b > >",
                "-NOGROUP No such key 'b' or consumer group 'g' in XREADGROUP with GROUP option",
            ),
            (
                "XREADGROUP GROUP g c NOACK STREAMS a text > >",
                "-WRONGTYPE Operation against a key holding the wrong kind of value",
            ),
            ("XREADGROUP GROUP g c NOACK STREAMS a >", "[[a [[1-1 [f v]]]]]"),
        ],
    );
}

/// With each pending entry the names of its group and its consumer are noted.
#[test]
fn names_of_groups_and_consumers_are_short() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("called", &node.at);
    let mut client = front.client();
    let fill = "for i = 1, ARGV[1] do redis.call('xadd', KEYS[1], ARGV[2] .. '-' .. i, 'f', 'v') end";
    for n in 1..=16 {
        client.on_time(&["EVAL", fill, "1", "s", "1000", &n.to_string()]);
    }
    assert_eq!((client.ask("XLEN s"), client.ask("XGROUP CREATE s g 0")), (":16000".into(), "+OK".into()));
    let (name, long) = ("n".repeat(1024), "n".repeat(1025));
    for request in [
        &["XGROUP", "CREATE", "s", &long, "0"][..],
        &["XGROUP", "CREATECONSUMER", "s", "g", &long],
        &["XREADGROUP", "GROUP", "g", &long, "STREAMS", "s", ">"],
        &["XCLAIM", "s", "g", &long, "0", "1-1"],
        &["XAUTOCLAIM", "s", "g", &long, "0", "-"],
    ] {
        client.send(request).unwrap();
        assert_eq!(
            client.reply().unwrap(),
            "-ERR names of groups and consumers have 1024 bytes at most",
            "{request:?}"
        );
    }
    let mut had = Vec::new();
    while had.iter().sum::<usize>() < 16_000 {
        client.send(&["XREADGROUP", "GROUP", "g", &name, "STREAMS", "s", ">"]).unwrap();
        let said = client.reply().unwrap();
        assert!(said.starts_with("[["), "{}", &said[..said.len().min(200)]);
        had.push(said.matches(" [f v]").count());
    }
    // What is noted counts, too.
    assert!(had.len() == 2 && had[0] > 12_000, "{had:?}");
    let taken: usize = client.ask("MEMORY USAGE s")[1..].parse().unwrap();
    assert!(taken < 32 << 20, "{taken}");
}

/// A stream of 24 MiB is read, acknowledged and emptied by parts, and is all there in between.
#[test]
fn a_large_stream_is_delivered() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("full", &node.at);
    let mut client = front.client();
    assert_eq!(client.ask("XGROUP CREATE s g 0 MKSTREAM"), "+OK");
    let text = "x".repeat(1_900_000);
    for n in 1..=12 {
        assert_eq!(client.ask(&format!("XADD s {n}-1 f {text}")), format!("{n}-1"));
    }
    client.send(&["XADD", "s", "20-0", "f", &"x".repeat(2 << 20)]).unwrap();
    assert!(client.reply().unwrap().contains("too large"));
    // Entries that are small beside what a group notes of each.
    let fill = "for i = 1, ARGV[1] do redis.call('xadd', KEYS[1], ARGV[2] .. '-' .. i, 'f', 'v') end";
    for n in 0..10 {
        client.on_time(&["EVAL", fill, "1", "small", "1000", &(30 + n).to_string()]);
    }
    client.ask("XGROUP CREATE small g 0");
    for (key, entries) in [("s", 12), ("small", 10_000)] {
        assert_eq!(client.ask(&format!("XLEN {key}")), format!(":{entries}"));
        let (mut had, mut acknowledged) = (0, 0);
        while had < entries {
            let said = client.ask(&format!("XREADGROUP GROUP g c COUNT 3000 STREAMS {key} >"));
            assert!(said.starts_with("[["), "{}", &said[..said.len().min(200)]);
            let ids: Vec<&str> = said.split(['[', ']', ' ']).filter(|word| word.contains('-')).collect();
            assert!(!ids.is_empty());
            had += ids.len();
            let brief = client.ask(&format!("XPENDING {key} g"));
            let ends = format!("[:{} {} {} [[c {0}]]]", ids.len(), ids[0], ids[ids.len() - 1]);
            assert_eq!(brief, ends);
            let count = client.ask(&format!("XACK {key} g {}", ids.join(" ")));
            acknowledged += count[1..].parse::<usize>().unwrap();
        }
        assert_eq!((had, acknowledged), (entries, entries));
        assert_eq!(client.ask(&format!("XTRIM {key} MAXLEN 1")), format!(":{}", entries - 1));
    }
    assert_eq!(client.ask("XLEN s"), ":1");
}

/// A client that an entry and CLIENT UNBLOCK wake at once waits the next time.
#[test]
fn an_unblocked_client_waits_again() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("again", &node.at);
    let (mut reader, mut writer) = (front.client(), front.client());
    let id = reader.ask("CLIENT ID")[1..].to_owned();
    for line in [["XREAD", "BLOCK", "0", "STREAMS", "s", "$"].as_slice(), &["BLPOP", "l", "0"]] {
        writer.ask("DEL l");
        reader.send(line).unwrap();
        let waits = (0..6000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            writer.ask("INFO clients").contains("blocked_clients:1")
        });
        assert!(waits);
        for line in [["CLIENT", "UNBLOCK", &id].as_slice(), &["XADD", "s", "*", "f", "v"], &["RPUSH", "l", "e"]] {
            writer.send(line).unwrap();
        }
        (0..3).for_each(|_| drop(writer.reply().unwrap()));
        reader.reply().unwrap();
        let began = std::time::Instant::now();
        assert_eq!(reader.ask("XREAD BLOCK 500 STREAMS s $"), "*-1");
        assert!(began.elapsed() >= std::time::Duration::from_millis(200));
    }
}

#[test]
fn a_bounded_trim_catches_up() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("trim", &node.at);
    let mut client = front.client();
    let fill = "for i = 1, 250 do redis.call('xadd', KEYS[1], i, 'f', 'v') end";
    client.on_time(&["EVAL", fill, "1", "s"]);
    let trims = [("MAXLEN ~ 0 LIMIT 50", ":50"), ("MAXLEN ~ 10 LIMIT 150", ":150"), ("MAXLEN ~ 10 LIMIT 150", ":40")];
    for (trim, expected) in trims {
        assert_eq!(client.ask(&format!("XTRIM s {trim}")), expected, "{trim}");
    }
}

/// Many entries of one transaction take the time of one stream, and its other commands see them.
#[test]
fn a_transaction_adds_many_entries() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("bulk", &node.at);
    let mut client = front.client();
    let (text, entries) = ("x".repeat(200), 4000);
    let rest: [&[&str]; 5] = [
        &["XADD", "s", "1", "f", "v"],
        &["XLEN", "s"],
        &["XADD", "s", "MAXLEN", "3", "*", "f", "v"],
        &["XLEN", "s"],
        &["EXEC"],
    ];
    // A slow machine is asked again: a transaction that is late changes nothing.
    let mut attempts = 0..20;
    let said = loop {
        client.send(&["MULTI"]).unwrap();
        for n in 1..=entries {
            client.send(&["XADD", "s", &n.to_string(), "f", &text]).unwrap();
        }
        rest.iter().for_each(|line| client.send(line).unwrap());
        for _ in 0..entries + 5 {
            let said = client.reply().unwrap();
            assert!(said == "+OK" || said == "+QUEUED", "{said}");
        }
        let said = client.reply().unwrap();
        if !said.contains("ran for more than") || attempts.next().is_none() {
            break said;
        }
    };
    assert!(said.starts_with("[1-0 2-0 3-0 ") && said.ends_with(":3]"), "{}", &said[..said.len().min(200)]);
    assert!(said.contains(&format!(" {entries}-0 -ERR The ID")) && said.contains(&format!(" :{entries} ")));
    assert_eq!(client.ask("XLEN s"), ":3");
    for line in [
        &["MULTI"][..],
        &["XADD", "s", "*", "f", "v"],
        &["DEL", "s"],
        &["XADD", "s", "NOMKSTREAM", "*", "f", "v"],
        &["EXEC"],
    ] {
        client.send(line).unwrap();
    }
    let said = (0..5).map(|_| client.reply().unwrap()).last().unwrap();
    assert!(said.ends_with(" :1 nil]"), "{said}");
    assert_eq!(client.ask("EXISTS s"), ":0");
}
