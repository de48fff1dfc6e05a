//! Requests that take little to send. None of them holds a front end up until others take it for
//! dead, and none takes much memory.

mod world;

use farmem::Transport;
use std::time::Duration;
use world::process::{Client, Process, answers};

#[test]
fn another_process() {
    world::process::another_process();
}

/// After that other front ends take a silent one for dead.
const SILENT: Duration = Duration::from_secs(5);

/// Sends a request, and judges the CPU time that the front end takes for it.
fn in_time((front, client): (&Process, &mut Client), request: &[&str]) -> String {
    let before = front.cpu();
    client.send(request).unwrap();
    let reply = client.reply().unwrap();
    let took = front.cpu() - before;
    assert!(took < SILENT, "{} with {} arguments: {took:?}", request[0], request.len());
    reply
}

/// The time for a command grows with its names and the key's items, not with both multiplied.
#[test]
fn a_command_with_many_names_takes_no_time_for_each_of_each() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("names", &node.at);
    let mut client = front.client();
    let names: Vec<String> = (0..100_000).map(|n| format!("name{n}")).collect();
    let with = |head: &[&'static str], between: &[&'static str]| -> Vec<&str> {
        let each = names.iter().flat_map(|name| between.iter().copied().chain([name.as_str()]));
        head.iter().copied().chain(each).collect()
    };
    let count = |reply: String, part: &str| reply.matches(part).count();
    for round in [":100000", ":0"] {
        assert_eq!(
            in_time((&front, &mut client), &with(&["HSET", "h"], &["field"])),
            if round == ":0" { ":0" } else { ":1" }
        );
        // Fields and values in turn.
        let pairs: Vec<&str> = ["HSET", "h"].into_iter().chain(names.iter().flat_map(|n| [n.as_str(), "v"])).collect();
        assert_eq!(in_time((&front, &mut client), &pairs), round);
        assert_eq!(in_time((&front, &mut client), &with(&["ZADD", "z"], &["1"])), round);
        assert_eq!(in_time((&front, &mut client), &with(&["GEOADD", "g"], &["1", "2"])), round);
    }
    assert_eq!(count(in_time((&front, &mut client), &with(&["HMGET", "h"], &[])), "v"), 100_000);
    assert_eq!(count(in_time((&front, &mut client), &with(&["ZMSCORE", "z"], &[])), "1"), 100_000);
    assert_eq!(count(in_time((&front, &mut client), &with(&["GEOHASH", "g"], &[])), " "), 99_999);
    assert_eq!(count(in_time((&front, &mut client), &with(&["GEOPOS", "g"], &[])), "["), 100_001);
    assert_eq!(in_time((&front, &mut client), &with(&["HDEL", "h", "name7"], &[])), ":100000");
    assert_eq!(in_time((&front, &mut client), &with(&["ZREM", "z", "name7"], &[])), ":100000");
    answers(&mut client, &[("HLEN h", ":1"), ("ZCARD z", ":0")]);
}

#[test]
fn entries_are_deleted_in_one_pass() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("entries", &node.at);
    let mut client = front.client();
    let ids: Vec<String> = (1..=80_000).map(|n| format!("{n}-0")).collect();
    for some in ids.chunks(8000) {
        client.send(&["MULTI"]).unwrap();
        some.iter().for_each(|id| client.send(&["XADD", "s", id, "f", "v"]).unwrap());
        client.send(&["EXEC"]).unwrap();
        (0..=some.len()).for_each(|_| assert!(client.reply().unwrap().starts_with('+')));
        assert!(client.reply().unwrap().ends_with(&format!("{}]", some[some.len() - 1])));
    }
    let all: Vec<&str> = ["XDEL", "s", "7-0", "7-1"].into_iter().chain(ids.iter().map(String::as_str)).collect();
    assert_eq!(in_time((&front, &mut client), &all), ":80000");
    assert!(client.ask("XINFO STREAM s").contains("max-deleted-entry-id 80000-0"));
}

/// Entries that are pending lie anywhere. A command begins anew when some of them have been read,
/// and ends after some MiB.
#[test]
fn many_pending_entries_take_no_time_for_each_of_each() {
    const ENTRIES: usize = 20_000;
    let node = Process::node(Transport::Shm);
    let [first, second, third] = [(); 3].map(|()| Process::front("pending", &node.at));
    let mut client = first.client();
    let (text, all) = ("x".repeat(1000), (1..=ENTRIES).map(|n| format!("{n}-0")).collect::<Vec<_>>());
    for some in all.chunks(2000) {
        client.send_all(&["MULTI".to_owned()]);
        client.send_all(&some.iter().map(|id| format!("XADD s {id} f {text}")).collect::<Vec<_>>());
        client.send_all(&["EXEC".to_owned()]);
        (0..=some.len()).for_each(|_| assert!(client.reply().unwrap().starts_with('+')));
        assert!(client.reply().unwrap().ends_with(&format!("{}]", some[some.len() - 1])));
    }
    assert_eq!(client.ask("XGROUP CREATE s g 0"), "+OK");
    let ids = |said: &str| -> Vec<String> {
        let words = said.split(['[', ']', ' ']).filter(|word| word.ends_with("-0"));
        words.map(str::to_owned).collect()
    };
    let mut had = 0;
    while had < ENTRIES {
        let some = ids(&in_time((&first, &mut client), &["XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"]));
        assert!(!some.is_empty());
        had += some.len();
    }
    // These have none of the segments at hand.
    let (mut other, mut had) = (second.client(), vec!["0-0".to_owned()]);
    while had.len() <= ENTRIES {
        let last = had[had.len() - 1].clone();
        let some = ids(&in_time((&second, &mut other), &["XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", &last]));
        assert!(!some.is_empty(), "behind {last}");
        had.extend(some);
    }
    assert_eq!(had[1..], all);
    let (mut other, mut had, mut next) = (third.client(), Vec::new(), "0-0".to_owned());
    while had.len() < ENTRIES {
        let said = in_time((&third, &mut other), &["XAUTOCLAIM", "s", "g", "d", "0", &next, "COUNT", "20000"]);
        let mut some = ids(&said);
        assert!(some.len() > 1, "{}", &said[..said.len().min(200)]);
        next = some.remove(0);
        had.extend(some);
    }
    assert_eq!((had, next.as_str()), (all, "0-0"));
    assert_eq!(client.ask("XPENDING s g"), format!("[:{ENTRIES} 1-0 {ENTRIES}-0 [[d {ENTRIES}]]]"));
}

/// A pattern of a KiB, and names of many.
#[test]
fn long_patterns_and_long_names_take_no_time() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("patterns", &node.at);
    let mut client = front.client();
    let name = "a".repeat(1 << 20);
    for n in 0..12 {
        let (key, member) = (format!("{name}{n}"), format!("{name}{n}"));
        client.send(&["SET", &key, "v"]).unwrap();
        assert_eq!(client.reply().unwrap(), "+OK");
        client.send(&["SADD", "s", &member]).unwrap();
        assert_eq!(client.reply().unwrap(), ":1");
    }
    let pattern = format!("*{}b", "a".repeat(1000));
    assert_eq!(in_time((&front, &mut client), &["KEYS", &pattern]), "[]");
    assert_eq!(in_time((&front, &mut client), &["SSCAN", "s", "0", "MATCH", &pattern, "COUNT", "1000"]), "[0 []]");
    assert_eq!(in_time((&front, &mut client), &["KEYS", &format!("*{}7", "a".repeat(1000))]), format!("[{name}7]"));
    // Channels are compared with a pattern at all front ends.
    let mut listens = front.client();
    for n in 0..4096 {
        listens.send(&["SUBSCRIBE", &format!("{}{n}", &name[..1000])]).unwrap();
        listens.reply().unwrap();
    }
    let pattern = format!("*{}b", "a".repeat(500));
    assert_eq!(in_time((&front, &mut client), &["PUBSUB", "CHANNELS", &pattern]), "[]");
}

/// Of each of many clients a command that takes some milliseconds: all of them together take longer
/// than a front end may be silent. Another one that sees none of it would shut it out.
#[test]
fn commands_of_many_clients_do_not_silence_a_front_end() {
    let node = Process::node(Transport::Tcp);
    let (front, _other) = (Process::front("many", &node.at), Process::front("many", &node.at));
    let mut clients: Vec<Client> = (0..200).map(|_| front.client()).collect();
    let text = "ab".repeat(1020);
    for key in ["one", "two"] {
        clients[0].send(&["SET", key, &text]).unwrap();
        assert_eq!(clients[0].reply().unwrap(), "+OK");
    }
    for client in &mut clients {
        client.send(&["LCS", "one", "two", "LEN"]).unwrap();
    }
    clients.iter_mut().for_each(|client| assert_eq!(client.reply().unwrap(), ":2040"));
}

/// Each slow command is remembered with the name of its client.
#[test]
fn a_clients_name_is_short() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("called", &node.at);
    let mut client = front.client();
    let long = "n".repeat(1025);
    let refused = "-ERR Client names have 1024 bytes at most.";
    for request in [
        vec!["CLIENT", "SETNAME", &long],
        vec!["HELLO", "2", "SETNAME", &long],
        vec!["CLIENT", "SETINFO", "LIB-NAME", &long],
    ] {
        client.send(&request).unwrap();
        assert_eq!(client.reply().unwrap(), refused);
    }
    answers(&mut client, &[("CLIENT GETNAME", "nil"), (&format!("CLIENT SETNAME {}", &long[1..]), "+OK")]);
}

/// As of sets, of other types too one value is held at a time, and each is looked at once.
#[test]
fn strings_and_streams_that_are_named_often_take_no_memory() {
    let node = Process::node(Transport::Tcp);
    let front = Process::front("strings", &node.at);
    let mut client = front.client();
    for key in ["k", "l"] {
        client.send(&["SET", key, &key.repeat(1 << 20)]).unwrap();
        assert_eq!(client.reply().unwrap(), "+OK");
    }
    client.send(&["PFADD", "p", "a", "b"]).unwrap();
    assert_eq!(client.reply().unwrap(), ":1");
    for _ in 0..4 {
        client.send(&["XADD", "s", "*", "f", &"v".repeat(1 << 20)]).unwrap();
        client.reply().unwrap();
    }
    let before = front.peak();
    let often = |head: &[&'static str], key: &'static str, times: usize| -> Vec<&str> {
        head.iter().copied().chain(std::iter::repeat_n(key, times)).collect()
    };
    for (how, times, first) in [("AND", 4000, "k"), ("OR", 4000, "k"), ("XOR", 4001, "k"), ("XOR", 20_000, "\0")] {
        assert_eq!(in_time((&front, &mut client), &often(&["BITOP", how, "d"], "k", times)), ":1048576");
        assert_eq!(client.ask("GETRANGE d 1048575 -1"), first, "{how}");
    }
    answers(
        &mut client,
        &[("BITOP XOR d k l k absent", ":1048576"), ("GETRANGE d 0 0", "l"), ("BITOP NOT d l", ":1048576")],
    );
    assert_eq!(client.ask("BITCOUNT d 0 0"), ":4");
    assert_eq!(in_time((&front, &mut client), &often(&["PFCOUNT"], "p", 400_000)), ":2");
    let streams = [&often(&["XREAD", "COUNT", "1", "STREAMS"], "s", 1000)[..], &["0"; 1000]].concat();
    assert_eq!(in_time((&front, &mut client), &streams), "-ERR streams that are named again have more than 64 MiB");
    let twice = in_time((&front, &mut client), &["XREAD", "COUNT", "1", "STREAMS", "s", "s", "0", "0"]);
    assert!((2 << 20..(2 << 20) + 200).contains(&twice.len()), "both are shown");
    // What the kernel says may be less than before (see `peak`).
    let grown = front.peak().saturating_sub(before);
    assert!(grown < 512 << 20, "it took {grown} bytes more");
}

/// SCAN and KEYS show names, and read no more than these.
#[test]
fn values_are_not_read_for_their_names() {
    let node = Process::node(Transport::Tcp);
    let front = Process::front("scanned", &node.at);
    let mut client = front.client();
    let value = "v".repeat(1_000_000);
    for n in 0..300 {
        client.send(&["SET", &format!("key{n}"), &value]).unwrap();
        assert_eq!(client.reply().unwrap(), "+OK");
    }
    let members: Vec<String> = (0..2000).map(|n| format!("member{n}")).collect();
    client.send(&[&["SADD", "set"][..], &members.iter().map(String::as_str).collect::<Vec<_>>()].concat()).unwrap();
    assert_eq!(client.reply().unwrap(), ":2000");
    let before = front.peak();
    let count = |reply: &str| reply.matches("key").count();
    for _ in 0..3 {
        assert_eq!(count(&client.ask("SCAN 0 COUNT 10000")), 300);
        assert_eq!(count(&client.ask("SCAN 0 COUNT 10000 TYPE string MATCH key*")), 300);
        assert_eq!(client.ask("SCAN 0 COUNT 10000 TYPE set"), "[0 [set]]");
        assert_eq!(client.ask("SCAN 0 COUNT 10000 TYPE list"), "[0 []]");
        assert_eq!(count(&client.ask("KEYS *")), 300);
    }
    let grown = front.peak().saturating_sub(before);
    assert!(grown < 100 << 20, "it took {grown} bytes more");
}

/// Requests of some kilobytes whose replies would have gigabytes.
#[test]
fn a_reply_of_what_is_named_often_has_an_end() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("replies", &node.at);
    let mut client = front.client();
    let value = "v".repeat(1 << 20);
    for request in [
        vec!["SET", "k", &value],
        vec!["HSET", "h", "f", &value],
        vec!["SADD", "s", &value],
        vec!["ZADD", "z", "1", &value],
    ] {
        client.send(&request).unwrap();
        assert!(matches!(client.reply().as_deref(), Some("+OK" | ":1")));
    }
    let before = front.peak();
    let refused = "-ERR the replies would have more than 1024 MiB: ask for less at once";
    let often = |head: &[&'static str], word: &'static str| -> Vec<&str> {
        head.iter().copied().chain(std::iter::repeat_n(word, 2000)).collect()
    };
    assert_eq!(in_time((&front, &mut client), &often(&["MGET"], "k")), refused);
    assert_eq!(in_time((&front, &mut client), &often(&["HMGET", "h"], "f")), refused);
    for request in
        ["SRANDMEMBER s -16777216", "ZRANDMEMBER z -16777216 WITHSCORES", "HRANDFIELD h -16777216 WITHVALUES"]
    {
        assert_eq!(client.ask(request), refused, "{request}");
    }
    let gets: Vec<&str> = ["SORT", "s", "BY", "no"].into_iter().chain(["GET", "#"].repeat(2000)).collect();
    assert_eq!(in_time((&front, &mut client), &gets), refused);
    for large in [1100, 10] {
        client.send(&["MULTI"]).unwrap();
        (0..1100).for_each(|n| client.send(&["GET", if n < large { "k" } else { "absent" }]).unwrap());
        client.send(&["INCR", "count"]).unwrap();
        client.send(&["EXEC"]).unwrap();
        (0..1102).for_each(|_| assert!(client.reply().unwrap().starts_with('+')));
        let reply = client.reply().unwrap();
        assert_eq!(reply == refused, large == 1100, "{}", &reply[..reply.len().min(100)]);
    }
    assert_eq!(client.ask("GET count"), "1");
    // Commands of one client share it. None takes too much by itself.
    let some = often(&["HMGET", "h"], "f");
    (0..8).for_each(|_| client.send(&some[..402]).unwrap());
    for _ in 0..8 {
        let reply = client.reply().unwrap();
        assert!(reply == refused || reply.len() == 400 * (value.len() + 1) + 1, "{}", &reply[..reply.len().min(100)]);
    }
    // What it had is given back.
    client.send(&often(&["MGET"], "k")[..901]).unwrap();
    assert_eq!(client.reply().unwrap().len(), 900 * (value.len() + 1) + 1);
    // What the kernel says may be less than before (see `peak`).
    let grown = front.peak().saturating_sub(before);
    assert!(grown < 3 << 30, "it took {grown} bytes more");
}

/// A client that waits for an element looks again and again.
#[test]
fn a_client_that_waits_for_many_keys_takes_little_time() {
    let node = Process::node(Transport::Tcp);
    let front = Process::front("waits", &node.at);
    let mut client = front.client();
    let keys: Vec<String> = (0..8000).map(|n| format!("absent{n}")).collect();
    let request = |head: &str, tail: &str| format!("{head} {} {tail}", keys.join(" "));
    let (mut waits, mut reads) = (front.client(), front.client());
    waits.send(&request("BLPOP", "0").split(' ').collect::<Vec<_>>()).unwrap();
    let ids = vec!["$"; keys.len()].join(" ");
    reads.send(&request("XREAD BLOCK 0 STREAMS", &ids).split(' ').collect::<Vec<_>>()).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let before = front.cpu();
    std::thread::sleep(Duration::from_secs(4));
    let took = front.cpu() - before;
    assert!(took < Duration::from_secs(1), "it took {took:?} of 4 s");
    assert_eq!(client.ask("RPUSH absent7777 x"), ":1");
    assert_eq!(waits.reply().unwrap(), "[absent7777 x]");
    client.ask("XADD absent99 1-0 f v");
    assert_eq!(reads.reply().unwrap(), "[[absent99 [[1-0 [f v]]]]]");
}

/// A list of two million small elements: what looks at all of them gives others their turns.
#[test]
fn others_are_served_while_a_large_list_is_searched_or_sorted() {
    const ITEMS: usize = 2_000_000;
    let node = Process::node(Transport::Shm);
    let front = Process::front("sorts", &node.at);
    let (mut client, mut other) = (front.client(), front.client());
    let items: Vec<String> = (0..ITEMS).map(|n| (n * 7919 % 100_003).to_string()).collect();
    for some in items.chunks(50_000) {
        let request: Vec<&str> = ["RPUSH", "list"].into_iter().chain(some.iter().map(String::as_str)).collect();
        client.send(&request).unwrap();
        assert!(client.reply().unwrap().starts_with(':'));
    }
    let line = |words: &str| -> Vec<String> { words.split(' ').map(str::to_owned).collect() };
    let requests = [
        ("SORT list LIMIT 0 2", "[0 0]"),
        ("SORT list ALPHA DESC LIMIT 0 1", "[99999]"),
        ("LPOS list absent", "nil"),
        ("LPOS list absent RANK -1 COUNT 0", "[]"),
    ];
    for (request, expected) in requests {
        let before = front.cpu();
        client.send(&line(request).iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        let (mut longest, mut asked) = (Duration::ZERO, 0);
        let mut answered = false;
        while !answered {
            let one = front.cpu();
            assert_eq!(other.ask("PING"), "+PONG");
            longest = longest.max(front.cpu() - one);
            asked += 1;
            answered = client.has_reply();
        }
        assert_eq!(client.reply().unwrap(), expected, "{request}");
        println!("{request}: {:?}, {asked} PINGs meanwhile, one after {longest:?} of CPU time", front.cpu() - before);
        assert!(longest < Duration::from_millis(800), "{request}: another waited for {longest:?} of CPU time");
    }
    for (request, expected) in [("LREM list 0 absent", ":0"), ("LREM list -1 7", ":1"), ("LREM list 1 0", ":1")] {
        let before = front.cpu();
        assert_eq!(client.ask(request), expected, "{request}");
        println!("{request}: {:?}", front.cpu() - before);
    }
}
