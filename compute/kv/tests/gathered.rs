//! Changes of one key by many clients, over TCP: they are gathered while one is under way, and
//! carried out together.

mod world;

use farmem::Transport;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use world::process::{Client, Process};

#[test]
fn another_process() {
    world::process::another_process();
}

/// Asks for all lines with so many under way. Returns the replies.
fn ask_all(client: &mut Client, lines: &[String], depth: usize) -> Vec<String> {
    let mut replies = Vec::new();
    for some in lines.chunks(depth) {
        some.iter().for_each(|line| client.send(&line.split(' ').collect::<Vec<_>>()).unwrap());
        replies.extend(some.iter().map(|_| client.reply().unwrap()));
    }
    replies
}

fn number(reply: &str) -> u64 {
    reply[1..].parse().unwrap_or_else(|_| panic!("{reply}"))
}

/// A figure of INFO.
fn figure(client: &mut Client, section: &str, name: &str) -> u64 {
    let info = client.ask(&format!("INFO {section}"));
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>();
    let line = info.split("\r\n").find_map(|line| line.strip_prefix(name));
    line.map_or(0, |rest| digits(rest.trim_start_matches([':', '='])).parse().unwrap())
}

fn front(name: &str, node: &Process) -> Process {
    Process::start(&format!("front {name} {} way=tcp", node.at))
}

/// Each reply to INCR is another number, each connection's go up, and the last is their count.
#[test]
fn every_increment_counts_once_at_one_front_end_and_at_two() {
    let node = Process::node(Transport::Tcp);
    let fronts = [front("count", &node), front("count", &node)];
    const CLIENTS: usize = 8;
    const EACH: usize = 400;
    let lines = vec!["INCR n".to_owned(); EACH];
    let replies: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let run = |n: usize| {
            let (front, lines) = (&fronts[n % 2], &lines);
            // By twos at each front end: one with many requests under way, one with a single one.
            scope.spawn(move || ask_all(&mut front.client(), lines, if n % 4 < 2 { 16 } else { 1 }))
        };
        let threads: Vec<_> = (0..CLIENTS).map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().iter().map(|reply| number(reply)).collect()).collect()
    });
    assert!(replies.iter().all(|some| some.is_sorted()), "{replies:?}");
    let all: BTreeSet<u64> = replies.into_iter().flatten().collect();
    let count = (CLIENTS * EACH) as u64;
    assert_eq!((all.len() as u64, all.first(), all.last()), (count, Some(&1), Some(&count)));
    for front in &fronts {
        let mut client = front.client();
        assert_eq!(client.ask("GET n"), count.to_string());
        assert_eq!(figure(&mut client, "commandstats", "cmdstat_incr:calls"), count / 2, "each counts once");
    }
}

#[test]
fn changes_that_wait_for_each_other_share_their_round_trips() {
    let node = Process::node(Transport::Tcp);
    let front = front("trips", &node);
    let mut client = front.client();
    assert_eq!(client.ask("SET n 0"), "+OK");
    let before = figure(&mut client, "", "round_trips");
    let lines = vec!["INCR n".to_owned(); 640];
    assert_eq!(ask_all(&mut client, &lines, 64).last().unwrap(), ":640");
    let trips = figure(&mut client, "", "round_trips") - before;
    // Of 64 the first goes alone, the others together: two where each took one. Ticks and the rest
    // are beside.
    assert!(trips < 160, "{trips} round trips for 640 changes");
}

/// Replies come in their order, errors are each one's own, and what cannot be gathered comes where
/// it was asked.
#[test]
fn a_pipeline_on_one_key_is_answered_in_order() {
    let node = Process::node(Transport::Tcp);
    let front = front("order", &node);
    let mut client = front.client();
    let lines = [
        ("SET k 1", "+OK"),
        ("INCR k", ":2"),
        ("APPEND k x", ":2"),
        ("INCR k", "-ERR value is not an integer or out of range"),
        ("LPUSH k a", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("GETSET k 5", "2x"),
        ("INCRBY k 4", ":9"),
        ("GET k", "9"),
        ("INCR k", ":10"),
        ("MULTI", "+OK"),
        ("INCR k", "+QUEUED"),
        ("EXEC", "[:11]"),
        ("INCR k", ":12"),
        ("EVAL return(redis.call('incr',KEYS[1])) 1 k", ":13"),
        ("INCR k", ":14"),
        ("GETDEL k", "14"),
        ("RPUSH k a b c", ":3"),
        ("LPOP k", "a"),
        ("BLPOP k 0", "[k b]"),
        ("RPUSH k d", ":2"),
        ("LMOVE k k LEFT RIGHT", "c"),
        ("LPOP k 2", "[d c]"),
        ("SETNX k 7", ":1"),
        ("SET k 8 NX", "nil"),
        ("INCR k x", "-ERR wrong number of arguments for 'incr' command"),
        ("EXPIRE k 0", ":1"),
        ("INCR k", ":1"),
        ("DEL k", ":1"),
        ("SETRANGE k 3 x", ":4"),
    ];
    for _ in 0..20 {
        lines.iter().for_each(|(line, _)| client.send(&line.split(' ').collect::<Vec<_>>()).unwrap());
        for (line, expected) in &lines {
            assert_eq!(client.reply().unwrap(), *expected, "{line}");
        }
    }
}

/// A transaction, a script and a command that waits have their turns beside clients that change the
/// key all the time.
#[test]
fn what_cannot_be_gathered_has_its_turn() {
    let node = Process::node(Transport::Tcp);
    let (front, stop) = (front("turns", &node), AtomicBool::new(false));
    let floods = |lines: &[String]| {
        let mut client = front.client();
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            count += ask_all(&mut client, lines, 32).iter().filter(|reply| reply.starts_with(':')).count();
        }
        count
    };
    let incrs = vec!["INCR n".to_owned(); 64];
    let pushes = vec!["RPUSH list a".to_owned(); 4];
    let (flooded, taken) = std::thread::scope(|scope| {
        let counts = [scope.spawn(|| floods(&incrs)), scope.spawn(|| floods(&incrs)), scope.spawn(|| floods(&incrs))];
        let pushed = scope.spawn(|| floods(&pushes));
        let mut client = front.client();
        for _ in 0..60 {
            let lines =
                ["MULTI", "INCR n", "INCR n", "EXEC", "EVAL return(redis.call('incr',KEYS[1])) 1 n", "BLPOP list 0"];
            let said = ask_all(&mut client, &lines.map(str::to_owned), 6);
            assert!(said.iter().all(|reply| !reply.starts_with('-')), "{said:?}");
        }
        stop.store(true, Ordering::Relaxed);
        let counts = counts.map(|thread| thread.join().unwrap() as u64);
        (counts.iter().sum::<u64>(), pushed.join().unwrap() as u64)
    });
    let mut client = front.client();
    assert_eq!(client.ask("GET n"), (flooded + 3 * 60).to_string());
    assert_eq!(number(&client.ask("LLEN list")), taken - 60);
}

#[test]
fn long_strings_are_changed_one_by_one() {
    let node = Process::node(Transport::Tcp);
    let front = front("long", &node);
    let mut client = front.client();
    let long = "x".repeat(2 << 20);
    assert_eq!(client.ask(&format!("SET k {long}")), "+OK");
    let all: u64 = std::thread::scope(|scope| {
        let run = || {
            let lines: Vec<String> = (0..40).map(|_| "APPEND k yz".to_owned()).collect();
            let replies = ask_all(&mut front.client(), &lines, 8);
            assert!(replies.is_sorted(), "{replies:?}");
            replies.len() as u64
        };
        let threads = [scope.spawn(run), scope.spawn(run), scope.spawn(run)];
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(number(&client.ask("STRLEN k")), (2 << 20) + 2 * all);
    // Beyond what a draft may have, and from there on.
    let lines = ["SET k a", "SETRANGE k 200000000 b", "APPEND k c", "SET k d", "APPEND k e"].map(str::to_owned);
    assert_eq!(ask_all(&mut client, &lines, 5), ["+OK", ":200000001", ":200000002", "+OK", ":2"]);
}

/// Where the node's memory is mapped no change waits for the end of another. Those of a collection
/// that come together share what they write, and each has its own reply.
#[test]
fn changes_of_a_collection_that_come_together_share_their_verbs() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("mapped", &node.at);
    let mut client = front.client();
    let items: String = (0..4000).map(|n| format!(" item{n}")).collect();
    assert_eq!(client.ask(&format!("RPUSH list{items}")), ":4000");
    assert_eq!(client.ask(&format!("SADD set{items}")), ":4000");
    let scored: String = (0..4000).map(|n| format!(" {} item{n}", n % 50)).collect();
    assert_eq!(client.ask(&format!("ZADD sorted{scored}")), ":4000");
    let before = figure(&mut client, "", "verbs");
    for round in 0..10 {
        client.send_all(&vec!["RPUSH list x".to_owned(); 64]);
        for n in 1..=64 {
            assert_eq!(client.reply().unwrap(), format!(":{}", 4000 + round * 64 + n));
        }
    }
    // One by one each would take a WRITE of a segment, one of a head and a CAS.
    let verbs = figure(&mut client, "", "verbs") - before;
    assert!(verbs < 640, "{verbs} verbs for 640 changes");
    let lines = [
        ("ZADD sorted inf item7", ":0"),
        ("ZADD sorted 3 new", ":1"),
        ("ZINCRBY sorted -inf item7", "-ERR resulting score is not a number (NaN)"),
        ("ZADD sorted 4 new", ":0"),
        ("HSET sorted f v", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("ZINCRBY sorted 1 new", "5"),
        ("ZPOPMAX sorted", "[item7 inf]"),
        ("EXPIRE sorted 1000", ":1"),
        ("ZREM sorted new item8", ":2"),
        ("ZCARD sorted", ":3998"),
        ("PERSIST sorted", ":1"),
        ("ZADD sorted 7 item7 8 item8", ":2"),
        ("ZSCORE sorted item7", "7"),
        ("ZREMRANGEBYRANK sorted 100 3000", ":2901"),
        ("ZADD sorted CH 1 item7", ":1"),
        ("ZREMRANGEBYRANK sorted 0 -3", ":1098"),
        ("ZADD sorted 1 a", ":1"),
        ("ZREMRANGEBYRANK sorted 0 -1", ":3"),
        ("ZADD sorted 1 a", ":1"),
        ("ZCARD sorted", ":1"),
    ];
    client.send_all(&lines.map(|(line, _)| line.to_owned()));
    for (line, expected) in lines {
        assert_eq!(client.reply().unwrap(), expected, "{line}");
    }
    // The last element goes, and others come, in one batch.
    let all: Vec<String> = items.trim().split(' ').map(|item| format!("SREM set {item}")).collect();
    client.send_all(&[&all[..], &["SADD set a b".to_owned(), "SADD set b".to_owned()]].concat());
    all.iter().for_each(|line| assert_eq!(client.reply().unwrap(), ":1", "{line}"));
    assert_eq!((client.reply(), client.reply()), (Some(":2".to_owned()), Some(":0".to_owned())));
    assert_eq!(client.ask("SCARD set"), ":2");
    assert!(client.ask("LRANGE list 3999 4001").starts_with("[item3999 x x"));
}

/// A command that lacks segments when it has changed some already begins again with all of its
/// batch. Those behind it do not see what it has left.
#[test]
fn a_change_that_stops_half_way_leaves_nothing_to_those_behind_it() {
    let node = Process::node(Transport::Shm);
    let fronts = [Process::front("half", &node.at), Process::front("half", &node.at)];
    let (mut client, mut other) = (fronts[0].client(), fronts[1].client());
    let members: String = (0..4000).map(|n| format!(" {} member{n}", n % 50)).collect();
    for round in 0..4 {
        assert_eq!(client.ask(&format!("ZADD sorted{members}")), ":4000");
        // The other front end has none of the segments.
        let lines = match round % 2 {
            0 => [("ZREMRANGEBYLEX sorted - +", ":4000"), ("ZADD sorted 2 a 3 b", ":2"), ("ZINCRBY sorted 5 a", "7")],
            _ => [("ZREMRANGEBYRANK sorted 0 -1", ":4000"), ("ZADD sorted 7 a", ":1"), ("ZADD sorted 3 b", ":1")],
        };
        other.send_all(&lines.map(|(line, _)| line.to_owned()));
        for (line, expected) in lines {
            assert_eq!(other.reply().unwrap(), expected, "{line}");
        }
        assert_eq!(client.ask("ZRANGE sorted 0 -1 WITHSCORES"), "[b 3 a 7]");
        assert_eq!(client.ask("DEL sorted"), ":1");
    }
}
