//! Streams: entries and groups of one front end, readers that wait, consumers at several.

mod world;

use farmem::Transport;
use std::collections::BTreeSet;
use world::process::{Client, Process};

#[test]
fn another_process() {
    world::process::another_process();
}

fn answers(client: &mut Client, lines: &[(&str, &str)]) {
    for (said, expected) in lines {
        assert_eq!(client.ask(said), *expected, "{said}");
    }
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
