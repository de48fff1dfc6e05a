//! Commands on collections in small segments answer as they do on values that are one object.

mod world;

use farmem::Transport;
use farmem_kv::serve::check;
use farmem_protocol::random::Random;
use world::process::{Client, Process, answers, config};

#[test]
fn another_process() {
    world::process::another_process();
}

/// Commands of one round, sent at once.
const AT_ONCE: usize = 40;
const ROUNDS: u64 = 60;

type Words = Vec<String>;

fn words(line: &str) -> Words {
    line.split(' ').map(str::to_owned).collect()
}

/// One of some texts.
fn any<'a>(random: &mut Random, of: &[&'a str]) -> &'a str {
    of[random.index(of.len())]
}

fn item(random: &mut Random) -> String {
    let text = format!("i{}", random.index(60));
    text.repeat(1 + random.index(4) * random.index(3))
}

fn list(random: &mut Random) -> String {
    let (one, other) = (any(random, &["la", "lb"]), any(random, &["la", "lb"]));
    let at = random.index(120) as i64 - 60;
    let to = at + random.index(40) as i64 - 5;
    let (item, more) = (item(random), item(random));
    let side = any(random, &["LEFT", "RIGHT"]);
    match random.index(22) {
        0..=4 => format!("{} {one} {item} {more} x", any(random, &["RPUSH", "LPUSH", "RPUSHX", "LPUSHX"])),
        5..=6 => format!("RPUSH {one} {item} {more} a b c d e f g h {item}"),
        7 => format!("LPOP {one}"),
        8 => format!("RPOP {one} {}", random.index(9)),
        9 => format!("LLEN {one}"),
        10..=11 => format!("LRANGE {one} {at} {to}"),
        12 => format!("LINDEX {one} {at}"),
        13 => format!("LSET {one} {at} {item}"),
        14 if random.index(4) == 0 => format!("LTRIM {one} {} {}", random.index(20), 80 - random.index(30)),
        15 => format!("LMOVE {one} {other} {side} {}", any(random, &["LEFT", "RIGHT"])),
        16 => format!("LREM {one} {} {item}", random.index(5) as i64 - 2),
        17 => format!("LINSERT {one} {} {item} {more}", any(random, &["BEFORE", "AFTER"])),
        18 => format!("LPOS {one} {item} COUNT 0"),
        19 => format!("LMPOP 2 {one} {other} {side} COUNT {}", 1 + random.index(4)),
        20 => format!("BLPOP {one} {other} 0.001"),
        _ => format!("TYPE {one}"),
    }
}

fn hash(random: &mut Random) -> String {
    let key = any(random, &["ha", "hb"]);
    let field = |random: &mut Random| format!("f{}", random.index(90));
    let (one, other, item) = (field(random), field(random), item(random));
    match random.index(18) {
        0..=5 => format!("HSET {key} {one} {item} {other} {}", random.index(99)),
        6 => format!("HSETNX {key} {one} {item}"),
        7..=8 => format!("HDEL {key} {one} {other} {}", field(random)),
        9 => format!("HINCRBY {key} n{} {}", random.index(20), random.index(50) as i64 - 25),
        10 => format!("HINCRBYFLOAT {key} x{} 0.5", random.index(20)),
        11 => format!("HMGET {key} {one} {other} none"),
        12 => format!("HGET {key} {one}"),
        13 => format!("HEXISTS {key} {one}"),
        14 => format!("HLEN {key}"),
        15 => format!("HSTRLEN {key} {one}"),
        16 => format!("HGETALL {key}"),
        _ => format!("HKEYS {key}"),
    }
}

fn set(random: &mut Random) -> String {
    let (one, other) = (any(random, &["sa", "sb"]), any(random, &["sa", "sb"]));
    let member = |random: &mut Random| format!("m{}", random.index(120));
    let (first, second) = (member(random), member(random));
    match random.index(14) {
        0..=4 => format!("SADD {one} {first} {second} {} {first}", member(random)),
        5..=6 => format!("SREM {one} {first} {second} none"),
        7 => format!("SISMEMBER {one} {first}"),
        8 => format!("SMISMEMBER {one} {first} {second} none"),
        9 => format!("SCARD {one}"),
        10 => format!("SMEMBERS {one}"),
        11 => format!("SMOVE {one} {other} {first}"),
        12 => format!("{} {one} {other}", any(random, &["SINTER", "SUNION", "SDIFF"])),
        _ => format!("{} sc {one} {other}", any(random, &["SINTERSTORE", "SUNIONSTORE", "SDIFFSTORE"])),
    }
}

fn sorted(random: &mut Random) -> String {
    let (one, other) = (any(random, &["za", "zb"]), any(random, &["za", "zb"]));
    let member = |random: &mut Random| format!("m{}", random.index(130));
    let score = |random: &mut Random| format!("{}", random.index(30) as f64 / 2.0 - 5.0);
    let (first, second, low) = (member(random), member(random), score(random));
    let (high, at, to) = (score(random), random.index(90) as i64 - 40, random.index(90) as i64 - 30);
    let how = any(random, &["", " NX", " XX", " GT", " LT CH", " CH"]);
    let (open, ends) = (any(random, &["", "("]), any(random, &["+inf", "6", "(3"]));
    match random.index(28) {
        // Of an infinite score the sum with another one may be no number.
        26 => format!("ZADD {one} {}inf m{}", any(random, &["", "-"]), random.index(2)),
        27 => format!("ZINCRBY {one} {}inf m{}", any(random, &["", "-"]), random.index(2)),
        0..=5 => format!("ZADD {one}{how} {low} {first} {high} {second} {low} {}", member(random)),
        6 => format!("ZADD {one} INCR 2 {first}"),
        7 => format!("ZINCRBY {one} {low} {first}"),
        8..=9 => format!("ZREM {one} {first} {second}"),
        10 => format!("ZSCORE {one} {first}"),
        11 => format!("ZMSCORE {one} {first} {second}"),
        12 => format!("{} {one} {first}", any(random, &["ZRANK", "ZREVRANK"])),
        13 => format!("{} {one} {at} {to} WITHSCORES", any(random, &["ZRANGE", "ZREVRANGE"])),
        14 => format!("ZRANGEBYSCORE {one} {open}{low} {ends} WITHSCORES"),
        15 => format!(
            "ZREVRANGEBYSCORE {one} {ends} {open}{low} LIMIT {} {}",
            random.index(4),
            random.index(9) as i64 - 1
        ),
        16 => format!("ZRANGE {one} {low} {high} BYSCORE LIMIT 1 5"),
        17 => format!("ZCOUNT {one} {open}{low} {ends}"),
        18 => format!("ZCARD {one}"),
        19 => format!("{} {one} {}", any(random, &["ZPOPMIN", "ZPOPMAX"]), random.index(4)),
        20 => format!("ZREMRANGEBYRANK {one} {at} {}", at + 2),
        21 => format!("ZREMRANGEBYSCORE {one} ({low} {low}"),
        22 => format!("ZRANGEBYLEX {one} [m2 (m5"),
        23 => format!("ZUNIONSTORE zc 2 {one} {other}"),
        24 => format!("ZRANGESTORE zc {one} 0 {to}"),
        _ => format!("ZINTERCARD 2 {one} {other}"),
    }
}

fn key(random: &mut Random) -> String {
    let key = any(random, &["la", "ha", "sa", "za", "lb", "sb"]);
    match random.index(8) {
        0 => format!("EXPIRE {key} 5000"),
        1 => format!("PERSIST {key}"),
        2 => format!("COPY {key} copied REPLACE"),
        3 if random.index(3) == 0 => format!("RENAME {key} moved"),
        4 if random.index(6) == 0 => format!("DEL {key} copied"),
        5 => format!("EXISTS {key} copied"),
        6 => format!("TYPE {key}"),
        _ => format!("EVAL return(redis.call('EXISTS',KEYS[1])) 1 {key}"),
    }
}

/// What a reply says, if its order says nothing.
fn told(request: &str, reply: String) -> String {
    let unordered = ["SMEMBERS", "HGETALL", "HKEYS", "SINTER ", "SUNION ", "SDIFF "];
    if !unordered.iter().any(|name| request.starts_with(name)) {
        return reply;
    }
    let inner: Vec<String> = reply.trim_matches(['[', ']']).split(' ').map(str::to_owned).collect();
    let mut each: Vec<String> = match request.starts_with("HGETALL") {
        true => inner.chunks(2).map(|pair| pair.join("=")).collect(),
        false => inner,
    };
    each.sort_unstable();
    each.join(" ")
}

fn replies(client: &mut Client, requests: &[String]) -> Vec<String> {
    for request in requests {
        let words = words(request);
        client.send(&words.iter().map(String::as_str).collect::<Vec<_>>()).expect("sent");
    }
    requests.iter().map(|request| told(request, client.reply().expect("a reply"))).collect()
}

/// Runs the same commands on small segments and on whole values. `others`: two front ends have one
/// store, and each gets some of the rounds.
fn compare(way: Transport, segment: usize, others: bool, seed: u64) {
    let node = Process::node(way);
    let whole = Process::front("whole", &node.at);
    let small = |n: usize| Process::start(&format!("front small {} segment={}", node.at, segment * n));
    let fronts: Vec<Process> = (1..=if others { 2 } else { 1 }).map(small).collect();
    let mut expected = whole.client();
    let mut clients: Vec<Client> = fronts.iter().map(Process::client).collect();
    let (mut random, mut segmented) = (Random::new(seed), 0);
    for round in 0..ROUNDS {
        let kind = random.index(5);
        let one = |random: &mut Random| match if random.index(12) == 0 { 4 } else { kind } {
            0 => list(random),
            1 => hash(random),
            2 => set(random),
            3 => sorted(random),
            _ => key(random),
        };
        let requests: Vec<String> = (0..AT_ONCE).map(|_| one(&mut random)).collect();
        let n = random.index(clients.len());
        let (wanted, came) = (replies(&mut expected, &requests), replies(&mut clients[n], &requests));
        for (n, request) in requests.iter().enumerate() {
            let before = &requests[n.saturating_sub(6)..n];
            assert_eq!(came[n], wanted[n], "seed {seed}, round {round}: {request} behind {before:?}");
        }
        // All elements are shown by a scan, however small its steps.
        for (key, scan, step) in [("ha", "HSCAN", 2), ("sa", "SSCAN", 1), ("za", "ZSCAN", 2)] {
            let (mut cursor, mut names) = ("0".to_owned(), std::collections::BTreeSet::new());
            loop {
                let shown = clients[0].ask(&format!("{scan} {key} {cursor} COUNT 3"));
                let (next, items) = shown.trim_start_matches('[').split_once(" [").expect("a cursor and items");
                let items: Vec<&str> = items.trim_matches(']').split(' ').filter(|item| !item.is_empty()).collect();
                names.extend(items.chunks(step).map(|item| item[0].to_owned()));
                cursor = next.to_owned();
                if cursor == "0" {
                    break;
                }
            }
            let count = expected.ask(&format!(
                "{} {key}",
                ["HLEN", "SCARD", "ZCARD"][["ha", "sa", "za"].iter().position(|one| *one == key).unwrap()]
            ));
            assert!(
                count.starts_with('-') || count == format!(":{}", names.len()),
                "{scan} of {count} shows {}",
                names.len()
            );
        }
    }
    let encodings = [("la", "quicklist"), ("ha", "hashtable"), ("sa", "hashtable"), ("za", "skiplist")];
    for (key, encoding) in encodings {
        let told = clients[0].ask(&format!("OBJECT ENCODING {key}"));
        segmented += usize::from(told == encoding);
    }
    assert!(segmented > 0, "no value was in segments");
    is_sound("small", &node);
}

/// Nothing is left over in a store, and nothing is missing.
fn is_sound(name: &str, node: &Process) {
    let begun = std::time::Instant::now();
    loop {
        let counts = check(&config(name, &node.at)).unwrap();
        let problems: Vec<String> = counts.into_iter().flat_map(|(_, count)| count.problems).collect();
        if problems.is_empty() {
            break;
        }
        assert!(begun.elapsed().as_secs() < 20, "{problems:?}");
    }
}

/// A collection gets another key segment by segment, with its end, and at one moment.
#[test]
fn a_collection_in_many_segments_gets_another_key() {
    for way in [Transport::Shm, Transport::Tcp] {
        let node = Process::node(way);
        let front = || Process::start(&format!("front given {} segment=64", node.at));
        let (one, other) = (front(), front());
        let (mut client, mut second) = (one.client(), other.client());
        for n in 0..300 {
            let lines = [format!("RPUSH l i{n}"), format!("HSET h f{n} v{n}"), format!("SADD s m{n}")];
            lines
                .iter()
                .chain([&format!("ZADD z {} m{n}", n % 7)])
                .for_each(|line| assert!(client.ask(line).starts_with(':')));
        }
        for (key, all) in
            [("l", "LRANGE K 0 -1"), ("h", "HGETALL K"), ("s", "SMEMBERS K"), ("z", "ZRANGE K 0 -1 WITHSCORES")]
        {
            let shown = |client: &mut Client, key: &str| told(all, client.ask(&all.replace('K', key)));
            let before = shown(&mut client, key);
            assert!(before.len() > 1000);
            let ask = |client: &mut Client, line: &str| client.ask(&line.replace('K', key));
            assert_eq!(ask(&mut client, "PEXPIRE K 500000"), ":1");
            assert_eq!(["COPY K c", "COPY K c", "RENAMENX K c"].map(|line| ask(&mut client, line)), [":1", ":0", ":0"]);
            assert_eq!((shown(&mut second, "c"), shown(&mut second, key)), (before.clone(), before.clone()));
            // What is small goes in the place of what is large, and back.
            assert_eq!(
                ["SET x small", "COPY x c REPLACE", "GET c"].map(|line| ask(&mut second, line)),
                ["+OK", ":1", "small"]
            );
            assert_eq!(
                ["RENAME K c", "EXISTS K", "RENAME K c"].map(|line| ask(&mut client, line)),
                ["+OK", ":0", "-ERR no such key"]
            );
            assert_eq!(shown(&mut second, "c"), before);
            let left = ask(&mut second, "PTTL c").trim_start_matches(':').parse::<i64>().unwrap();
            assert!((400_000..=500_000).contains(&left), "{left}");
            // The copy is changed as what was always there.
            assert_eq!(
                ["RENAMENX c K", "RENAME K K", "COPY K d"].map(|line| ask(&mut client, line)),
                [":1", "+OK", ":1"]
            );
            let change = ["RPUSH d x", "HSET d x y", "SADD d x", "ZADD d 9 x"]
                [["l", "h", "s", "z"].iter().position(|of| *of == key).unwrap()];
            assert!(ask(&mut second, change).starts_with(':'));
            assert!(shown(&mut client, "d").len() > before.len() && shown(&mut client, key) == before);
            assert_eq!(ask(&mut client, "DEL c d"), ":1");
        }
        // Beside changes of another front end: all are in the one or in the other, in their order.
        let pushes = std::thread::spawn(move || {
            (0..600).for_each(|n| assert!(second.ask(&format!("RPUSH q p{n}")).starts_with(':')));
            second
        });
        let (mut copies, mut moved) = (0, 0);
        while !pushes.is_finished() {
            if client.ask("COPY q c REPLACE") == ":1" {
                let items = client.ask("LRANGE c 0 -1");
                let of = items.trim_matches(['[', ']']).split(' ');
                let of: Vec<u32> = of.map(|item| item[1..].parse().unwrap()).collect();
                assert!(of.windows(2).all(|two| two[0] + 1 == two[1]));
                copies += 1;
            }
            if copies % 8 == 7 && client.ask(&format!("RENAMENX q q{moved}")) == ":1" {
                moved += 1;
            }
        }
        pushes.join().expect("all was pushed");
        let len = |client: &mut Client, key: &str| client.ask(&format!("LLEN {key}"))[1..].parse::<u32>().unwrap();
        let all: u32 = (0..moved).map(|n| len(&mut client, &format!("q{n}"))).sum();
        assert_eq!(all + len(&mut client, "q"), 600, "{copies} copies, {moved} moved");
        assert!(copies > 0);
        is_sound("given", &node);
    }
}

#[test]
fn small_segments_answer_as_whole_values() {
    for seed in 0..3 {
        compare(Transport::Shm, 64, false, seed);
        compare(Transport::Tcp, 48, false, 100 + seed);
    }
}

#[test]
fn two_front_ends_share_values_in_segments() {
    for seed in 0..2 {
        compare(Transport::Shm, 48, true, 200 + seed);
        compare(Transport::Tcp, 64, true, 300 + seed);
    }
}

/// An item that one object cannot hold is refused, and the value stays as it is.
#[test]
fn items_that_are_too_long_change_nothing() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("long", &node.at);
    let mut client = front.client();
    let long = "x".repeat(3 << 20);
    for segments in [false, true] {
        let tries: [&[&str]; 5] = [
            &["RPUSH", "list", &long],
            &["LSET", "list", "0", &long],
            &["HSET", "hash", "f", &long],
            &["SADD", "set", &long],
            &["ZADD", "sorted", "1", &long],
        ];
        if segments {
            for n in 0..20 {
                let item = format!("{n}{}", "y".repeat(1000));
                client.ask(&format!("RPUSH list {item}"));
                client.ask(&format!("HSET hash {item} 1"));
                client.ask(&format!("SADD set {item}"));
                client.ask(&format!("ZADD sorted 1 {item}"));
            }
        }
        for words in tries {
            client.send(words).unwrap();
            let said = client.reply().unwrap();
            let absent = said == "-ERR no such key" && !segments;
            assert!(absent || said.contains("too large") || said.contains("too long"), "{} {said}", words[0]);
        }
        let count = if segments { ":20" } else { ":0" };
        for line in ["LLEN list", "HLEN hash", "SCARD set", "ZCARD sorted"] {
            assert_eq!(client.ask(line), count, "{line}");
        }
    }
}

/// Thousands of fields and members that one command names are found among tens of thousands.
#[test]
fn commands_that_name_many_items_of_a_large_value_end_soon() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("many", &node.at);
    let mut client = front.client();
    let (all, some) = (20_000, 4000);
    let begun = std::time::Instant::now();
    for (command, score) in [("HSET", ""), ("ZADD", "1 ")] {
        for first in (0..all).step_by(some) {
            let items = (first..first + some).map(|n| match score {
                "" => format!(" f{n} {n}"),
                _ => format!(" {} f{n}", n % 7),
            });
            assert_eq!(client.ask(&format!("{command} {command}{}", items.collect::<String>())), format!(":{some}"));
        }
    }
    let names: String = (0..all).step_by(5).map(|n| format!(" f{n}")).collect();
    assert!(client.ask(&format!("HMGET HSET{names}")).starts_with("[0 5 10 "));
    assert!(client.ask(&format!("ZMSCORE ZADD{names}")).starts_with('['));
    assert_eq!(client.ask(&format!("HDEL HSET{names}")), ":4000");
    assert_eq!(client.ask(&format!("ZREM ZADD{names}")), ":4000");
    assert_eq!((client.ask("HLEN HSET"), client.ask("ZCARD ZADD")), (":16000".into(), ":16000".into()));
    assert_eq!(client.ask("ZCOUNT ZADD -inf +inf"), ":16000");
    eprintln!("took {:?}", begun.elapsed());
    assert!(begun.elapsed().as_secs() < 60);
}

/// Numbers at the edges of what commands take. The answers are those of redis 7.0.15.
#[test]
fn odd_numbers_are_answered_as_by_redis() {
    let node = Process::node(Transport::Shm);
    let fronts = [Process::front("odd", &node.at), Process::start(&format!("front parts {} segment=64", node.at))];
    let range = "-ERR value is out of range";
    for front in &fronts {
        let mut client = front.client();
        answers(
            &mut client,
            &[
                // A zero has a sign where it is told of as it was given.
                ("ZADD z -0 a 0 b 1 c 1 d 1 e 1 f 1 g", ":7"),
                ("ZSCORE z a", "0"),
                ("ZADD z CH -0 b", ":0"),
                ("ZINCRBY z -0 b", "0"),
                ("ZINCRBY z -0 x", "-0"),
                ("ZADD z INCR -0 y", "-0"),
                ("ZRANGE z 0 3 WITHSCORES", "[a 0 b 0 x 0 y 0]"),
                ("ZRANGEBYSCORE z -0 (0.5", "[a b x y]"),
                ("ZUNION 1 z WEIGHTS -1 WITHSCORES", "[c -1 d -1 e -1 f -1 g -1 a -0 b -0 x -0 y -0]"),
                ("ZUNIONSTORE u 1 z WEIGHTS -1", ":9"),
                ("ZRANGE u 5 6 WITHSCORES", "[a 0 b 0]"),
                ("HSET h f v", ":1"),
                ("HRANDFIELD h 9223372036854775807", "[f]"),
                ("HRANDFIELD h 4611686018427387903 WITHVALUES", "[f v]"),
                ("HRANDFIELD h 4611686018427387904 WITHVALUES", range),
                ("HRANDFIELD h -4611686018427387904 WITHVALUES", range),
                ("HRANDFIELD h -9223372036854775808", range),
                ("HRANDFIELD none -9223372036854775807", "[]"),
                ("SRANDMEMBER none -9223372036854775807", "[]"),
                ("ZRANDMEMBER z 4611686018427387904 WITHSCORES", range),
                // A string grows for a field that is not set.
                ("BITFIELD bits OVERFLOW FAIL INCRBY u2 100 9", "[nil]"),
                ("STRLEN bits", ":13"),
                ("BITFIELD bits OVERFLOW FAIL SET u2 0 1 INCRBY u2 200 9 GET u8 400", "[:0 nil :0]"),
                ("STRLEN bits", ":26"),
                ("ZADD g -1 less 0 zero 4503599627370495 last 4503599627370496 over 1e20 huge inf inf", ":6"),
                ("ZADD g -inf least 1.5 part 3479099956230698 palermo 9.3e18 large 1.9e19 larger", ":5"),
                (
                    "GEOHASH g less zero last over huge inf",
                    "[bp05b5048p0 00bh0hbj200 zzpgzgpfxz0 bp05b5048p0 \
                 00bh0hbj200 00bh0hbj200]",
                ),
                (
                    "GEOHASH g least part palermo large larger",
                    "[00bh0hbj200 00bh0hbj210 sqc8b49rny0 bp05b5048p0 \
                 00bh0hbj200]",
                ),
                ("GEOPOS g less", "[[180 85.0511287799999991]]"),
                ("GEOPOS g least over", "[[180 -85.05112751263942528] [-179.99999731779098511 85.0511287799999991]]"),
                ("GEODIST g less palermo", "6307362.7206"),
                ("GEODIST g inf palermo", "14784257.5187"),
                ("GEORADIUSBYMEMBER g less 100 km", "[last]"),
                ("GEORADIUSBYMEMBER g zero 1 m", "[zero part]"),
                ("GEOSEARCHSTORE d g FROMMEMBER zero BYRADIUS 50000 km", ":4"),
                ("ZRANGE d 0 -1 WITHSCORES", "[zero 0 part 1.5 palermo 3479099956230698 last 4503599627370495]"),
            ],
        );
    }
}
