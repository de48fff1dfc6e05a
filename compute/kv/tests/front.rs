//! Front ends as processes, with clients, on a node that is a process: what they answer, whether that is
//! linearizable while one of them is killed, and whether anything is left behind.

mod world;

use farmem::Transport;
use farmem_kv::serve::check;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use world::linear::{Call, Register, Step, check as linearizable};
use world::load::{KEYS, clients};
use world::process::{Process, config};

#[test]
fn another_process() {
    world::process::another_process();
}

#[test]
fn clients_are_served() {
    let (one, other) = (Process::node(Transport::Tcp), Process::node(Transport::Tcp));
    let nodes = format!("{},{}", one.at, other.at);
    let fronts = [Process::front("words", &nodes), Process::front("words", &nodes)];
    let [mut a, mut b] = [fronts[0].client(), fronts[1].client()];
    for (said, expected) in [
        ("PING", "+PONG"),
        ("SET greeting hello", "+OK"),
        ("GET greeting", "hello"),
        ("APPEND greeting !", ":6"),
        ("GETRANGE greeting 1 -2", "ello"),
        ("SET greeting x NX", "nil"),
        ("SET greeting bye XX GET", "hello!"),
        ("INCRBY n 41", ":41"),
        ("INCR n", ":42"),
        ("INCR greeting", "-ERR value is not an integer or out of range"),
        ("INCRBYFLOAT f 1.5", "1.5"),
        ("INCRBYFLOAT f 15.8333333333333333", "17.3333333333333333"),
        ("HINCRBYFLOAT fields f 0.1", "0.1"),
        ("HINCRBYFLOAT fields f 0.2", "0.3"),
        ("RPUSH row 3 1 2", ":3"),
        ("SORT row BY none DESC", "[2 1 3]"),
        ("DEL fields row", ":2"),
        ("SMOVE none greeting x", ":0"),
        ("BLMOVE none list LEFT RIGHT 0.001", "*-1"),
        ("MSET x 1 y 2 z 3", "+OK"),
        ("MGET x none y z", "[1 nil 2 3]"),
        ("EXISTS x x none", ":2"),
        ("DEL x none", ":1"),
        ("TTL y", ":-1"),
        ("EXPIRE y 100", ":1"),
        ("TTL y", ":100"),
        ("PERSIST y", ":1"),
        ("TYPE n", "+string"),
        ("RENAME y w", "+OK"),
        ("GET w", "2"),
        ("DBSIZE", ":5"),
        ("SETEX t 1 v", "+OK"),
        ("SELECT 0", "+OK"),
        ("SELECT 3", "-ERR DB index is out of range"),
        ("RPUSH list a b c a", ":4"),
        ("LPUSH list z", ":5"),
        ("LRANGE list 0 -1", "[z a b c a]"),
        ("LREM list -1 a", ":1"),
        ("LTRIM list 1 2", "+OK"),
        ("LPOP list 5", "[a b]"),
        ("EXISTS list", ":0"),
        ("HSET hash f 1 g 2", ":2"),
        ("HINCRBY hash f 4", ":5"),
        ("HGETALL hash", "[f 5 g 2]"),
        ("HDEL hash f g", ":2"),
        ("TYPE hash", "+none"),
        ("SADD set a b a", ":2"),
        ("SISMEMBER set b", ":1"),
        ("SINTER set set", "[a b]"),
        ("GET set", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("SREM set a b c", ":2"),
        ("ZADD zset 2 two 1 one 3 three", ":3"),
        ("ZINCRBY zset 5 one", "6"),
        ("ZRANGE zset 0 -1 WITHSCORES", "[two 2 three 3 one 6]"),
        ("ZRANGEBYSCORE zset (2 +inf", "[three one]"),
        // As strtod reads them: nothing is 0, and blanks before a number are passed over.
        ("ZCOUNT zset  2", ":1"),
        ("ZCOUNT zset \t2 \n3", ":2"),
        ("ZCOUNT zset 2\t 3", "-ERR min or max is not a float"),
        ("ZPOPMIN zset", "[two 2]"),
        ("ZREMRANGEBYSCORE zset -inf inf", ":2"),
        ("PFADD pf a b c", ":1"),
        ("PFADD pf a", ":0"),
        ("PFADD pg c d", ":1"),
        ("PFCOUNT pf pg", ":4"),
        ("PFMERGE pm pf pg", "+OK"),
        ("PFCOUNT pm", ":4"),
        ("TYPE pm", "+string"),
        ("PFADD greeting x", "-WRONGTYPE Key is not a valid HyperLogLog string value."),
        ("DEL pf pg pm", ":3"),
        ("GEOADD geo 13.361389 38.115556 Palermo 15.087269 37.502669 Catania", ":2"),
        ("GEODIST geo Palermo Catania km", "166.2742"),
        ("GEOHASH geo Palermo none", "[sqc8b49rny0 nil]"),
        ("GEOSEARCH geo FROMLONLAT 15 37 BYRADIUS 200 km ASC WITHDIST", "[[Catania 56.4413] [Palermo 190.4424]]"),
        ("GEORADIUSBYMEMBER geo Palermo 100 km", "[Palermo]"),
        ("GEOSEARCHSTORE near geo FROMMEMBER Catania BYBOX 10 10 km", ":1"),
        ("GEOSEARCH geo FROMLONLAT 15 37 FROMMEMBER Catania BYRADIUS 200 km", "-ERR syntax error"),
        ("GEOSEARCH geo FROMLONLAT 15 37 BYRADIUS 200 km BYBOX 1 1 km", "-ERR syntax error"),
        ("ZRANGE near 0 -1", "[Catania]"),
        ("GEOADD geo 181 0 x", "-ERR invalid longitude,latitude pair 181.000000,0.000000"),
        ("DEL geo near", ":2"),
        ("FCALL x 0", "-ERR unknown command 'FCALL': a farmem store has no functions"),
        ("NONSENSE x", "-ERR unknown command 'NONSENSE', with args beginning with: 'x' "),
        ("RESTORE d 0 nonsense", "-ERR DUMP payload version or checksum are wrong"),
        ("DUMP none", "nil"),
        ("ROLE", "[master :0 []]"),
        ("CLIENT KILL 1.2.3.4:5", "-ERR No such client"),
        ("CLIENT KILL ADDR 1.2.3.4:5 TYPE normal", ":0"),
        ("CLIENT KILL USER nobody", "-ERR No such user 'nobody'"),
        ("CLIENT PAUSE 100 NEVER", "-ERR CLIENT PAUSE mode must be WRITE or ALL"),
        ("CLIENT PAUSE 60000 WRITE", "+OK"),
        ("GET w", "2"),
        ("CLIENT UNPAUSE", "+OK"),
        ("SET w 2", "+OK"),
        ("CLIENT PAUSE 50", "+OK"),
        ("SET w 3", "+OK"),
        ("GET", "-ERR wrong number of arguments for 'get' command"),
        ("CONFIG GET save", "[save ]"),
    ] {
        assert!(world::process::is_so(&a.ask(said), expected.trim_end()), "{said}");
    }
    // The other front end serves the same.
    assert_eq!((b.ask("GET n"), b.ask("INCR n"), a.ask("GET n")), ("42".into(), ":43".into(), "43".into()));
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!((a.ask("GET t"), b.ask("GET t")), ("nil".into(), "nil".into()));
    // A pipeline is answered in its order.
    for n in 0..2000 {
        a.send(&["SET", &format!("key{n}"), &format!("{n}")]).unwrap();
        a.send(&["GET", &format!("key{n}")]).unwrap();
    }
    for n in 0..2000 {
        assert_eq!((a.reply(), a.reply()), (Some("+OK".into()), Some(format!("{n}"))));
    }
    let mut found = std::collections::HashSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let said = b.ask(&format!("SCAN {cursor} MATCH key* COUNT 100"));
        let mut words = said.trim_matches(['[', ']']).split([' ', '[']).filter(|word| !word.is_empty());
        cursor = words.next().unwrap().to_owned();
        found.extend(words.map(str::to_owned));
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found.len(), 2000);
    // Large values, and one that is too large for its type.
    for len in [2_000_000, 3_000_000] {
        let large = "v".repeat(len);
        a.send(&["SET", "large", &large]).unwrap();
        assert_eq!(a.reply().as_deref(), Some("+OK"));
        assert!(b.ask("GET large") == large);
    }
    a.send(&["RPUSH", "list", &"v".repeat(3_000_000)]).unwrap();
    assert!(a.reply().unwrap().contains("too large"), "the value is refused, and all goes on");
    // Nonsense costs its sender the connection, and nobody else.
    let mut nonsense = fronts[0].client();
    nonsense.stream.get_mut().write_all(b"*3\r\n$3\r\nSET\r\n:1\r\n").unwrap();
    assert_eq!(nonsense.reply().as_deref(), Some("-ERR Protocol error: expected '$', got ':'"));
    assert_eq!(nonsense.reply(), None);
    assert_eq!((a.ask("FLUSHALL"), b.ask("DBSIZE")), ("+OK".into(), ":0".into()));
    let counts = check(&config("words", &nodes)).unwrap();
    assert!(counts.iter().all(|(_, count)| count.keys == 0 && count.problems.is_empty()), "{counts:?}");
}

/// Two front ends under load, one of which is killed after a time. How many calls were judged.
fn histories(way: Transport, seed: u64, killed_after: Duration) -> usize {
    let node = Process::node(way);
    let mut victim = Process::front("load", &node.at);
    let stays = Process::front("load", &node.at);
    let (moment, stop) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicBool::new(false)));
    let calls: Vec<(usize, Call<Step>)> = std::thread::scope(|scope| {
        let (moment, stop) = (&moment, &stop);
        let begin = |front, n| scope.spawn(move || clients(front, seed + n, moment, stop));
        let threads: Vec<_> = [(&victim, 1), (&stays, 2), (&victim, 3), (&stays, 4), (&victim, 5)]
            .map(|(front, n)| begin(front, n))
            .into();
        // Each call that is answered takes three moments.
        let calls = |most: u64| {
            let until = Instant::now() + Duration::from_secs(60);
            while moment.load(Ordering::Relaxed) < 3 * most && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        std::thread::sleep(killed_after);
        calls(400);
        farmem_sys::process::send(victim.child.id(), 9).unwrap();
        std::thread::sleep(Duration::from_millis(600));
        calls(700);
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    victim.kill();
    assert!(calls.len() > 500, "{} calls", calls.len());
    for key in 0..KEYS {
        let of_key: Vec<Call<Step>> =
            calls.iter().filter(|(which, _)| *which == key).map(|(_, call)| call.clone()).collect();
        assert!(linearizable::<Register>(None, &of_key), "seed {seed}, key {key}: {of_key:?}");
    }
    // What the dead front end held is taken over by the other, when its lease is over.
    std::thread::sleep(Duration::from_millis(farmem_kv::shard::member::LEASE_MS + 1000));
    let begun = Instant::now();
    loop {
        let counts = check(&config("load", &node.at)).unwrap();
        if counts.iter().all(|(_, count)| count.problems.is_empty() && count.pending == 0) {
            return calls.len();
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "after 60 s: {counts:?}");
        std::thread::sleep(Duration::from_millis(300));
    }
}

#[test]
fn histories_with_a_kill_are_linearizable_over_tcp() {
    histories(Transport::Tcp, 100, Duration::from_millis(900));
}

#[test]
fn histories_with_a_kill_are_linearizable_over_shm() {
    histories(Transport::Shm, 200, Duration::from_millis(900));
}

/// FARMEM_OPERATIONS says how many there are to be instead. `tests/steps.rs` and `tests/long.rs` drop
/// a front end at each verb; here the moment of the kill is any.
#[test]
#[ignore = "takes minutes: .ci/long runs it"]
fn a_million_operations_with_kills_are_linearizable() {
    let wanted = std::env::var("FARMEM_OPERATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let (mut calls, mut round) = (0, 0u64);
    while calls < wanted {
        let way = if round.is_multiple_of(2) { Transport::Tcp } else { Transport::Shm };
        calls += histories(way, 1000 + 10 * round, Duration::from_millis(100 + round * 379 % 4000));
        round += 1;
        eprintln!("{calls} of {wanted} operations, {round} kills");
    }
}

/// Each of two front ends replaces the other's objects again and again. Their owners find them in time.
#[test]
fn replacing_each_others_objects_takes_no_more_memory_for_ever() {
    const KEYS: usize = 1500;
    let node = Process::node(Transport::Shm);
    let fronts = [Process::front("replaced", &node.at), Process::front("replaced", &node.at)];
    let mut clients = fronts.each_ref().map(Process::client);
    let value = "x".repeat(1000);
    for round in 0..60 {
        for client in &mut clients {
            (0..KEYS).for_each(|n| client.send(&["SET", &format!("k{n}"), &value]).unwrap());
            (0..KEYS).for_each(|_| assert_eq!(client.reply().as_deref(), Some("+OK")));
        }
        let info = clients.each_mut().map(|client| client.ask("INFO memory"));
        let used = |info: &String| {
            let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
            line.and_then(|bytes| bytes.trim().parse::<usize>().ok()).expect("bytes")
        };
        // Without that search it was 84 MB, and still growing.
        let most = info.iter().map(used).max().unwrap_or(0);
        assert!(most < 14 << 20, "{most} bytes in round {round} for {} of objects", KEYS * 1080);
    }
}
