//! Transactions: what is queued and refused, what runs beside them on their front end and on others.

mod world;

use farmem::Transport;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use world::process::{Client, Process, is_so};

#[test]
fn another_process() {
    world::process::another_process();
}

fn answers(client: &mut Client, lines: &[(&str, &str)]) {
    for (said, expected) in lines {
        let answer = client.ask(said);
        assert!(is_so(&answer, expected.trim_end()), "{said}: {answer}, not {expected}");
    }
}

#[test]
fn commands_are_collected_and_carried_out_together() {
    let node = Process::node(Transport::Tcp);
    let front = Process::front("multi", &node.at);
    let [mut a, mut b] = [front.client(), front.client()];
    let lines = [
        ("EXEC", "-ERR EXEC without MULTI"),
        ("DISCARD", "-ERR DISCARD without MULTI"),
        ("MULTI", "+OK"),
        ("MULTI", "-ERR MULTI calls can not be nested"),
        ("WATCH x", "-ERR WATCH inside MULTI is not allowed"),
        ("EXEC", "[]"),
        // One key: on a copy.
        ("MULTI", "+OK"),
        ("SET x 1", "+QUEUED"),
        ("INCR x", "+QUEUED"),
        ("LPUSH x a", "+QUEUED"),
        ("EXPIRE x 100", "+QUEUED"),
        ("PING", "+QUEUED"),
        ("GET x", "+QUEUED"),
        ("EXEC", "[+OK :2 -WRONGTYPE Operation against a key holding the wrong kind of value :1 +PONG 2]"),
        ("TTL x", ":100"),
        ("MULTI", "+OK"),
        ("DEL x", "+QUEUED"),
        ("EXISTS x", "+QUEUED"),
        ("RPUSH x a b", "+QUEUED"),
        ("LRANGE x 0 -1", "+QUEUED"),
        ("EXEC", "[:1 :0 :2 [a b]]"),
        // Several.
        ("MULTI", "+OK"),
        ("MSET x 1 y 2", "+QUEUED"),
        ("MGET x y", "+QUEUED"),
        ("DBSIZE", "+QUEUED"),
        ("EXEC", "[+OK [1 2] :2]"),
        // What is refused.
        ("MULTI", "+OK"),
        ("SET x 7", "+QUEUED"),
        ("NONSENSE", "-ERR unknown command 'NONSENSE', with args beginning with: "),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("MULTI", "+OK"),
        ("SET x", "-ERR wrong number of arguments for 'set' command"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("MULTI", "+OK"),
        ("XGROUP NONSENSE x", "-ERR unknown subcommand 'NONSENSE'. Try XGROUP HELP."),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("MULTI", "+OK"),
        ("OBJECT ENCODING", "-ERR wrong number of arguments for 'object|encoding' command"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("MULTI", "+OK"),
        ("SET x 8", "+QUEUED"),
        ("DISCARD", "+OK"),
        ("MULTI", "+OK"),
        ("SET x 9", "+QUEUED"),
        ("RESET", "+RESET"),
        ("GET x", "1"),
        ("WATCH x", "+OK"),
    ];
    answers(&mut a, &lines);
    assert_eq!(b.ask("SET x 2"), "+OK");
    answers(&mut a, &[("MULTI", "+OK"), ("SET x 3", "+QUEUED"), ("EXEC", "*-1"), ("GET x", "2"), ("WATCH x y", "+OK")]);
    assert_eq!(b.ask("DEL y"), ":1");
    answers(&mut a, &[("MULTI", "+OK"), ("SET x 3", "+QUEUED"), ("EXEC", "*-1"), ("WATCH x", "+OK")]);
    assert_eq!(b.ask("SET x 4"), "+OK");
    answers(&mut a, &[("UNWATCH", "+OK"), ("MULTI", "+OK"), ("GET x", "+QUEUED"), ("EXEC", "[4]")]);
    answers(&mut a, &[("WATCH x none", "+OK"), ("MULTI", "+OK"), ("GET x", "+QUEUED"), ("EXEC", "[4]")]);
    // In one pipeline, with others before and behind it.
    for line in ["SET p 1", "MULTI", "INCR p", "INCR q", "EXEC", "GET p", "MULTI", "INCR p", "EXEC", "GET p"] {
        a.send(&line.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let said: Vec<String> = (0..10).map(|_| a.reply().unwrap()).collect();
    assert_eq!(said, ["+OK", "+OK", "+QUEUED", "+QUEUED", "[:2 :1]", "2", "+OK", "+QUEUED", "[:3]", "3"]);
}

/// Reads a number, and writes one more if nobody has written meanwhile; how often that succeeded.
fn count_up(at: &str, key: &str, stop: &AtomicBool) -> u64 {
    let (mut client, mut done) = (Client::connect(at), 0);
    while !stop.load(Ordering::Relaxed) {
        assert_eq!(client.ask(&format!("WATCH {key}")), "+OK");
        let was: u64 = client.ask(&format!("GET {key}")).parse().unwrap_or(0);
        assert_eq!(client.ask("MULTI"), "+OK");
        client.ask(&format!("SET {key} {}", was + 1));
        client.ask(&format!("GET {key}"));
        match client.ask("EXEC").as_str() {
            "*-1" => {}
            said => {
                assert_eq!(said, format!("[+OK {}]", was + 1));
                done += 1;
            }
        }
    }
    done
}

#[test]
fn a_watched_key_is_not_overwritten_by_any_front_end() {
    let node = Process::node(Transport::Shm);
    let fronts = [Process::front("count", &node.at), Process::front("count", &node.at)];
    let stop = AtomicBool::new(false);
    let done: u64 = std::thread::scope(|scope| {
        let begin = |n: usize| {
            let (front, stop) = (&fronts[n % 2], &stop);
            scope.spawn(move || count_up(&front.at, "n", stop))
        };
        let threads: Vec<_> = (0..4).map(begin).collect();
        std::thread::sleep(Duration::from_millis(700));
        let (mut looks, until) = (fronts[0].client(), Instant::now() + Duration::from_secs(60));
        while looks.ask("GET n").parse().unwrap_or(0) <= 50 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(done > 50, "{done}");
    let mut client = fronts[0].client();
    assert_eq!(client.ask("GET n"), done.to_string());
    // Several keys, which another front end changes.
    let mut other = fronts[1].client();
    let watch = [("WATCH n m", "+OK"), ("MULTI", "+OK"), ("SET n 1", "+QUEUED"), ("SET m 2", "+QUEUED")];
    answers(&mut client, &watch);
    assert_eq!(other.ask("SET m x"), "+OK");
    answers(&mut client, &[("EXEC", "*-1"), ("GET n", &done.to_string())]);
    answers(&mut client, &watch);
    answers(&mut client, &[("EXEC", "[+OK +OK]")]);
    answers(&mut other, &[("MGET n m", "[1 2]"), ("DBSIZE", ":2")]);
    // A command that names no keys is carried out beside other front ends' commands.
    answers(&mut client, &[("WATCH n m", "+OK"), ("MULTI", "+OK"), ("DBSIZE", "+QUEUED")]);
    assert!(client.ask("EXEC").starts_with("-ERR EXEC is refused"));
    let [stays, mut goes] = fronts;
    goes.kill();
    let begun = Instant::now();
    loop {
        let mut client = stays.client();
        answers(&mut client, &[("WATCH n m", "+OK"), ("MULTI", "+OK"), ("DBSIZE", "+QUEUED")]);
        match client.ask("EXEC").as_str() {
            "[:2]" => break,
            said => assert!(said.starts_with("-ERR EXEC is refused") && begun.elapsed().as_secs() < 60, "{said}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn nobody_at_the_front_end_sees_half_of_a_transaction() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("sums", &node.at);
    let (stop, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
    assert_eq!(front.client().ask("MSET a 0 b 0"), "+OK");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = front.client();
                while !stop.load(Ordering::Relaxed) {
                    for line in ["MULTI", "INCR a", "DECR b", "EXEC"] {
                        client.send(&line.split(' ').collect::<Vec<_>>()).unwrap();
                    }
                    (0..3).for_each(|_| assert!(client.reply().unwrap().starts_with('+')));
                    assert!(client.reply().unwrap().starts_with("[:"));
                }
            });
            scope.spawn(|| {
                let mut client = front.client();
                while !stop.load(Ordering::Relaxed) {
                    let said = client.ask("MGET a b");
                    let (a, b) = said.trim_matches(['[', ']']).split_once(' ').unwrap();
                    assert_eq!(a.parse::<i64>().unwrap(), -b.parse::<i64>().unwrap());
                    seen.fetch_add(usize::from(a != "0"), Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(500));
        let until = Instant::now() + Duration::from_secs(60);
        while seen.load(Ordering::Relaxed) <= 20 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(seen.load(Ordering::Relaxed) > 20, "{seen:?}");
}

/// A transaction on several keys takes long, and others are served meanwhile.
#[test]
fn others_have_their_turns_beside_a_long_transaction() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("turns", &node.at);
    let [mut long, mut other] = [front.client(), front.client()];
    let items: String = (0..4000).map(|n| format!(" item{n}")).collect();
    assert_eq!(long.ask(&format!("RPUSH a{items}")), ":4000");
    assert_eq!(long.ask("MULTI"), "+OK");
    for _ in 0..500 {
        assert_eq!(long.ask("LREM a 1 item3999"), "+QUEUED");
        assert_eq!(long.ask("RPUSH a item3999"), "+QUEUED");
    }
    assert_eq!((long.ask("SET b 1"), other.ask("SET c 1")), ("+QUEUED".into(), "+OK".into()));
    let (served, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                assert!(other.ask("INCR c").starts_with(':'));
                served.fetch_add(1, Ordering::Relaxed);
            }
        });
        let before = served.load(Ordering::Relaxed);
        let said = long.ask("EXEC");
        let during = served.load(Ordering::Relaxed) - before;
        ended.store(true, Ordering::Relaxed);
        assert!(said.ends_with("+OK]") || said.contains("ran for more than"), "{said:.80}");
        assert!(during > 3, "{during} other commands");
    });
}

/// Sets its flag when it is dropped, so that a thread that looks at it ends also behind a failed assertion.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// FLUSHALL goes from table to table, and takes all of a transaction's keys or none.
#[test]
fn no_half_of_a_transaction_is_left_by_a_flush() {
    let node = Process::node(Transport::Tcp);
    let front = Process::front("flushed", &node.at);
    let [mut client, mut other] = [front.client(), front.client()];
    let (begun, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let count = std::thread::scope(|scope| {
        let ends = Sets(&ended);
        let changes = scope.spawn(|| {
            let mut n = 0;
            while !ended.load(Ordering::Relaxed) {
                let (a, b) = (format!("SET {{{n}}}a 1"), format!("SET b{n} 1"));
                let lines = ["MULTI", &a, &b, "EXEC"];
                assert_eq!(lines.map(|line| other.ask(line))[3], "[+OK +OK]");
                assert_eq!(other.ask(&format!("MSET c{n} 1 {{{n}}}d 1")), "+OK");
                n += 1;
                begun.store(true, Ordering::Relaxed);
            }
            n
        });
        while !begun.load(Ordering::Relaxed) && !changes.is_finished() {
            std::thread::yield_now();
        }
        for _ in 0..8 {
            for thousand in 0..12 {
                let pairs: String = (0..1000).map(|n| format!(" fill{thousand}:{n} x")).collect();
                assert_eq!(client.ask(&format!("MSET{pairs}")), "+OK");
            }
            assert_eq!(client.ask("FLUSHALL"), "+OK");
        }
        drop(ends);
        changes.join().unwrap()
    });
    for n in 0..count {
        for (one, another) in [(format!("{{{n}}}a"), format!("b{n}")), (format!("c{n}"), format!("{{{n}}}d"))] {
            let there = client.ask(&format!("EXISTS {one} {another}"));
            assert!(there == ":0" || there == ":2", "{one} {another}: {there}, {n} of {count}");
        }
    }
    assert!(!client.ask("EXISTS fill0:0 fill11:999").starts_with(":2"));
}

/// A client that waits for thousands of keys of which none is there looks again and again beside changes, and writes
/// nothing. Nor does DEL.
#[test]
fn nothing_is_written_for_keys_that_are_waited_for() {
    let (node, second) = (Process::node(Transport::Tcp), Process::node(Transport::Tcp));
    let nodes = format!("{},{}", node.at, second.at);
    let mut fronts = vec![Process::front("absent", &nodes)];
    let mut client = fronts[0].client();
    let absent: String = (0..2000).map(|n| format!(" absent{n}")).collect();
    std::thread::scope(|scope| {
        let deletes = scope.spawn(|| {
            let mut client = fronts[0].client();
            (0..5).for_each(|_| assert_eq!(client.ask(&format!("DEL{absent}")), ":0"));
        });
        while !deletes.is_finished() {
            assert_eq!(client.ask("DBSIZE"), ":0");
        }
    });
    fronts.push(Process::front("absent", &nodes));
    let keys: String = (0..500).map(|n| format!(" key{n} 1")).collect();
    assert_eq!(client.ask(&format!("MSET{keys}")), "+OK");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Sets(&stop);
        scope.spawn(|| {
            let mut client = fronts[1].client();
            for n in (0..500).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                assert_eq!(client.ask(&format!("SET key{n} 2")), "+OK");
            }
        });
        let waits = [format!("BLPOP{absent} 0"), format!("XREAD BLOCK 0 STREAMS{absent}{}", " 0".repeat(2000))];
        let mut waiting = waits.map(|line| {
            let mut client = fronts[0].client();
            client.send(&line.split(' ').collect::<Vec<_>>()).unwrap();
            client
        });
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            assert_eq!(client.ask("DBSIZE"), ":500");
        }
        assert_eq!(client.ask("RPUSH absent1999 e"), ":1");
        assert_eq!(waiting[0].reply().as_deref(), Some("[absent1999 e]"));
        assert_eq!(client.ask("XADD absent1998 1-1 f v"), "1-1");
        assert_eq!(waiting[1].reply().as_deref(), Some("[[absent1998 [[1-1 [f v]]]]]"));
    });
}

/// Four clients of two front ends move between two keys by transactions, and look at both.
#[test]
fn nobody_at_any_front_end_sees_half_of_a_transaction() {
    let node = Process::node(Transport::Tcp);
    let fronts = [Process::front("halves", &node.at), Process::front("halves", &node.at)];
    assert_eq!(fronts[0].client().ask("MSET a 0 b 0"), "+OK");
    let moved: i64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let mut client = fronts[n % 2].client();
                scope.spawn(move || {
                    let mut moved = 0;
                    for round in 0..60 {
                        let lines: &[&str] = if round % 3 == 2 {
                            &["MULTI", "GET a", "GET b", "EXEC"]
                        } else {
                            &["MULTI", "INCR a", "DECR b", "EXEC"]
                        };
                        let said = if round % 6 == 5 {
                            // It fails if it sees half of one.
                            let script = "local a,b=unpack(redis.call('mget','a','b')) assert(a+b==0) return{a,b}";
                            client.send(&["EVAL", script, "2", "a", "b"]).unwrap();
                            client.reply().unwrap()
                        } else {
                            lines.iter().map(|line| client.ask(line)).last().unwrap()
                        };
                        assert!(!said.starts_with('-'), "{said}");
                        moved += i64::from(round % 3 != 2);
                        let both = said.trim_matches(['[', ']']).replace(':', "");
                        let (a, b) = both.split_once(' ').unwrap();
                        assert_eq!(a.parse::<i64>().unwrap(), -b.parse::<i64>().unwrap());
                    }
                    moved
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(fronts[1].client().ask("MGET a b"), format!("[{moved} -{moved}]"));
}

/// Transactions with scripts at two front ends: the script moves from one key to another that it does not name, and
/// commands before and behind it change both. Nobody sees a part, and none is refused although it watches.
#[test]
fn a_transaction_with_a_script_is_one_step_for_all_front_ends() {
    let node = Process::node(Transport::Tcp);
    let fronts = [Process::front("inside", &node.at), Process::front("inside", &node.at)];
    let script = "redis.call('incrby', KEYS[1], ARGV[1]); return redis.call('decrby', KEYS[1] .. '2', ARGV[1])";
    let queue = |client: &mut Client, script: &str, named: &[&str]| {
        client.send(&[&["EVAL", script][..], named].concat()).unwrap();
        assert_eq!(client.reply().as_deref(), Some("+QUEUED"));
    };
    let mut client = fronts[0].client();
    answers(&mut client, &[("MSET a 0 a2 0", "+OK")]);
    let stop = AtomicBool::new(false);
    let done: i64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|n| {
                let (mut client, stop) = (fronts[n].client(), &stop);
                scope.spawn(move || {
                    let mut done = 0;
                    while !stop.load(Ordering::Relaxed) {
                        answers(&mut client, &[("WATCH other", "+OK"), ("MULTI", "+OK"), ("INCR a", "+QUEUED")]);
                        queue(&mut client, script, &["1", "a", "2"]);
                        answers(&mut client, &[("DECR a2", "+QUEUED")]);
                        let said = client.ask("EXEC");
                        assert!(said.starts_with("[:"), "{said}");
                        done += 3;
                    }
                    done
                })
            })
            .collect();
        for _ in 0..60 {
            let seen = numbers(&client.ask("MGET a a2").replace('-', ""));
            assert_eq!(seen[0], seen[1]);
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    answers(&mut client, &[("MGET a a2", &format!("[{done} -{done}]")), ("MULTI", "+OK"), ("SET b 1", "+QUEUED")]);
    // A script that fails changes nothing, and the rest goes on.
    queue(&mut client, "redis.call('set', 'b', 2); redis.call('publish', 'c', 'm'); error('no')", &["0"]);
    queue(&mut client, "return redis.call('get', 'b')", &["0"]);
    client.send(&["EVAL_RO", "return redis.call('set', 'b', 3)", "0"]).unwrap();
    assert_eq!(client.reply().as_deref(), Some("+QUEUED"));
    answers(&mut client, &[("INCR b", "+QUEUED"), ("EVALSHA abc 0", "+QUEUED"), ("EVAL x -1", "+QUEUED")]);
    let said = client.ask("EXEC");
    let words = ["[+OK -ERR ", "no script:", " 1 -ERR Write commands are not allowed", " :2 -NOSCRIPT "];
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    assert!(said.contains("-ERR Number of keys can't be negative"), "{said}");
    answers(&mut client, &[("GET b", "2"), ("WATCH b", "+OK")]);
    assert_eq!(fronts[1].client().ask("SET b 9"), "+OK");
    answers(&mut client, &[("MULTI", "+OK")]);
    queue(&mut client, "return redis.call('incr', KEYS[1])", &["1", "b"]);
    answers(&mut client, &[("EXEC", "*-1"), ("GET b", "9")]);
}

/// Transactions whose scripts run as long as they may: others are served between any two of them.
#[test]
fn scripts_of_many_transactions_leave_others_their_turns() {
    const MANY: usize = 10;
    let node = Process::node(Transport::Tcp);
    let front = Process::front("busy", &node.at);
    let (mut other, ended) = (front.client(), AtomicUsize::new(0));
    let mut clients: Vec<Client> = (0..MANY).map(|_| front.client()).collect();
    for client in &mut clients {
        assert_eq!(client.ask("MULTI"), "+OK");
        client.send(&["EVAL", "while true do end", "0"]).unwrap();
        assert_eq!(client.reply().as_deref(), Some("+QUEUED"));
    }
    clients.iter_mut().for_each(|client| client.send(&["EXEC"]).unwrap());
    let mut served = 0;
    std::thread::scope(|scope| {
        for mut client in clients {
            let ended = &ended;
            scope.spawn(move || {
                let said = client.reply().unwrap();
                assert!(said.contains("ran for more than"), "{said}");
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }
        while ended.load(Ordering::Relaxed) < MANY {
            assert_eq!(other.ask("PING"), "+PONG");
            served += 1;
        }
    });
    assert!(served > MANY / 2, "{served} commands of another client");
}

/// A front end that is alone answers from its near cache, also of tables that it has split since.
#[test]
fn a_lone_front_end_changes_keys_together_when_tables_have_split() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("grown", &node.at);
    let mut client = front.client();
    for round in 0..10 {
        for n in 0..20 {
            client.ask(&format!("SET early{n} {round}"));
            assert_eq!(client.ask(&format!("GET early{n}")), round.to_string());
        }
        for n in 0..20 {
            let pairs: String = (0..100).map(|k| format!(" more{} x", round * 2000 + n * 100 + k)).collect();
            assert_eq!(client.ask(&format!("MSET{pairs}")), "+OK");
        }
        let begun = Instant::now();
        for n in (0..20).step_by(2) {
            let (one, other) = (format!("INCR early{n}"), format!("INCR early{}", n + 1));
            let said = ["MULTI", &one, &other, "EXEC"].map(|line| client.ask(line));
            assert_eq!(said[3], format!("[:{0} :{0}]", round + 1), "round {round}, {:?}", begun.elapsed());
        }
        let script = "EVAL return{redis.call('incr',KEYS[1]),redis.call('incr',KEYS[2])} 2 early0 early1";
        assert_eq!(client.ask(script), format!("[:{0} :{0}]", round + 2));
    }
    assert_eq!(client.ask("DBSIZE"), ":20020");
}

/// A front end is killed among commands that change two keys: each has taken effect as a whole, or not.
#[test]
fn a_front_end_that_is_killed_tears_no_command_on_two_keys() {
    let node = Process::node(Transport::Tcp);
    let stays = Process::front("two", &node.at);
    let mut watcher = stays.client();
    const COUNT: usize = 20;
    for n in 0..COUNT {
        assert_eq!(watcher.ask(&format!("RPUSH list0 {n}")), format!(":{}", n + 1));
        assert_eq!(watcher.ask(&format!("SADD set0 {n}")), ":1");
    }
    assert_eq!(watcher.ask("SET name0 v"), "+OK");
    for round in 0..4 {
        let mut dies = Process::front("two", &node.at);
        let mut client = dies.client();
        for _ in 0..200 {
            for (from, to) in [(0, 1), (1, 0)] {
                let sets = (0..COUNT).map(|n| format!("SMOVE set{from} set{to} {n}"));
                let lines = sets.chain([
                    format!("LMOVE list{from} list{to} LEFT RIGHT"),
                    format!("RPOPLPUSH list{from} list{to}"),
                    format!("RENAME name{from} name{to}"),
                ]);
                for line in lines {
                    let words: Vec<&str> = line.split(' ').collect();
                    client.send(&words).unwrap();
                }
            }
        }
        (0..37 * (round + 1)).for_each(|_| assert!(client.reply().is_some()));
        dies.kill();
        let mut size = |line: &str| watcher.ask(line)[1..].parse::<usize>().unwrap();
        assert_eq!(size("LLEN list0") + size("LLEN list1"), COUNT, "round {round}");
        assert_eq!(size("SCARD set0") + size("SCARD set1"), COUNT, "round {round}");
        assert_eq!(size("EXISTS name0 name1"), 1, "round {round}");
        // Back to the beginning.
        while watcher.ask("LMOVE list1 list0 LEFT RIGHT") != "nil" {}
        (0..COUNT).for_each(|n| drop(watcher.ask(&format!("SMOVE set1 set0 {n}"))));
        watcher.ask("RENAME name1 name0");
    }
    assert_eq!(watcher.ask("MSETNX name0 1 other 2"), ":0");
    assert_eq!(watcher.ask("EXISTS other"), ":0");
    assert_eq!(watcher.ask("MSETNX one 1 other 2 one 3"), ":1");
    assert_eq!((watcher.ask("GET one"), watcher.ask("GET other")), ("3".into(), "2".into()));
}

/// 64 clients of two front ends move elements between the same lists, and between the same sets, while others
/// push and pop there. Each waits for the others; none is refused, and no element is lost.
#[test]
fn clients_that_move_between_the_same_keys_wait_for_each_other() {
    const CLIENTS: usize = 64;
    const ROUNDS: usize = 10;
    let node = Process::node(Transport::Tcp);
    let fronts = [Process::front("same", &node.at), Process::front("same", &node.at)];
    let mut first = fronts[0].client();
    assert_eq!(first.ask("RPUSH a 1 2 3 4 5"), ":5");
    assert_eq!(first.ask("SADD s 1 2 3 4 5"), ":5");
    // How many more elements it has pushed than popped.
    let moves = |n: usize| {
        let (mut client, mut more) = (fronts[n % 2].client(), 0);
        for round in 0..ROUNDS {
            let (from, to) = if (n + round) % 4 < 2 { ("a", "b") } else { ("b", "a") };
            let lines = match n % 4 {
                0 => [format!("LMOVE {from} {to} LEFT RIGHT"), format!("SMOVE s t {}", n % 5 + 1)],
                1 => [format!("RPOPLPUSH {from} {to}"), format!("SMOVE t s {}", n % 5 + 1)],
                2 => [format!("BLMOVE {from} {to} LEFT RIGHT 0.05"), "MSETNX x 1 y 2".into()],
                _ => [format!("LPUSH a {n}"), "LPOP a".into()],
            };
            for line in lines {
                let said = client.ask(&line);
                assert!(!said.starts_with('-'), "{line}: {said}");
                more += usize::from(line.starts_with("LPUSH"));
                more -= usize::from(line.starts_with("LPOP") && said != "nil");
            }
        }
        more
    };
    let more: usize = std::thread::scope(|scope| {
        let all: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(move || moves(n))).collect();
        all.into_iter().map(|one| one.join().unwrap()).sum()
    });
    let mut size = |line: &str| first.ask(line)[1..].parse::<usize>().unwrap();
    assert_eq!(size("LLEN a") + size("LLEN b"), 5 + more);
    assert_eq!(size("SCARD s") + size("SCARD t"), 5);
    assert_eq!(size("EXISTS x y"), 2);
}

/// Producers at one front end change a list all the time, from which a client of another moves elements.
#[test]
fn a_move_comes_about_beside_changes_of_its_keys_without_end() {
    let node = Process::node(Transport::Tcp);
    let fronts = [Process::front("busy", &node.at), Process::front("busy", &node.at)];
    let stop = std::sync::atomic::AtomicBool::new(false);
    // More than are moved: also where those that push do not run for a moment.
    let mut client = fronts[1].client();
    (0..30).for_each(|_| _ = client.ask("RPUSH from x"));
    let moved = std::thread::scope(|scope| {
        for n in 0..4 {
            let (front, stop) = (&fronts[n % 2], &stop);
            scope.spawn(move || {
                let mut client = front.client();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    client.ask("RPUSH from x");
                    client.ask("RPUSH to y");
                    client.ask("LTRIM from 0 49");
                    client.ask("LTRIM to 0 9");
                }
            });
        }
        let moved = (0..20).map(|_| client.ask("LMOVE from to LEFT LEFT")).collect::<Vec<_>>();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        moved
    });
    assert_eq!(moved, ["x"; 20]);
}

/// A front end that is alone: what a transaction or a script on one key has changed is not overwritten by a command that
/// had read the key before.
#[test]
fn a_change_by_a_script_is_not_lost_beside_a_command_on_several_keys() {
    const ROUNDS: usize = 150;
    let node = Process::node(Transport::Tcp);
    let front = Process::front("beside", &node.at);
    let mut client = front.client();
    answers(&mut client, &[("SADD a 0", ":1"), ("SADD b 0", ":1")]);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = front.client();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    client.ask("SUNIONSTORE a a b");
                }
            });
        }
        for round in 0..ROUNDS {
            client
                .send(&["EVAL", "return redis.call('SADD',KEYS[1],ARGV[1])", "1", "a", &format!("s{round}")])
                .unwrap();
            assert_eq!(client.reply().as_deref(), Some(":1"));
            client.ask("MULTI");
            client.ask(&format!("SADD a t{round}"));
            client.ask("EXEC");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(client.ask("SCARD a"), format!(":{}", 1 + 2 * ROUNDS));
}

/// Clients of two front ends, on two nodes, change keys by commands on several. Each sees all of another's command,
/// or nothing.
#[test]
fn commands_on_several_keys_are_whole_for_every_front_end() {
    const ROUNDS: usize = 40;
    let nodes = [Process::node(Transport::Tcp), Process::node(Transport::Tcp)];
    let nodes = format!("{},{}", nodes[0].at, nodes[1].at);
    let fronts = [Process::front("whole", &nodes), Process::front("whole", &nodes)];
    let mut first = fronts[0].client();
    answers(&mut first, &[("MSET p 0 q 0 r 0 n 0", "+OK"), ("SADD s 1 2 3 4 5 6 7 8", ":8"), ("ZADD z 1 a 2 b", ":2")]);
    let changes = |front: usize| {
        let mut client = fronts[front].client();
        for round in 0..ROUNDS {
            let (one, v) = (round % 8 + 1, 1000 + round);
            assert_eq!(client.ask(&format!("MSET p {v} q {v} r {v}")), "+OK");
            client.ask(&format!("SMOVE {} {one}", if (front + round / 8).is_multiple_of(2) { "s t" } else { "t s" }));
            assert!(client.ask("INCR n").starts_with(':'));
            assert_eq!(client.ask("COPY n copied REPLACE"), ":1");
        }
    };
    let looks = |front: usize| {
        let (mut client, mut last) = (fronts[front].client(), 0);
        for _ in 0..ROUNDS {
            let said = ["MULTI", "GET p", "GET q", "GET r", "EXEC"].map(|line| client.ask(line));
            let values: Vec<&str> = said[4].trim_matches(['[', ']']).split(' ').collect();
            assert!(values.len() == 3 && values[0] == values[1] && values[1] == values[2], "{said:?}");
            let said = client.ask("MGET p q r");
            let values: Vec<&str> = said.trim_matches(['[', ']']).split(' ').collect();
            assert!(values[0] == values[1] && values[1] == values[2], "{said}");
            assert_eq!(client.ask("SUNION s t").split(' ').count(), 8);
            assert_eq!(client.ask("SINTERCARD 2 s t"), ":0");
            client.ask(&format!("BITOP XOR x{front} p r"));
            assert_eq!(client.ask(&format!("BITCOUNT x{front}")), ":0");
            assert_eq!(client.ask(&format!("SUNIONSTORE u{front} s t")), ":8");
            assert_eq!(client.ask(&format!("ZUNIONSTORE v{front} 2 s t")), ":8");
            assert_eq!(client.ask(&format!("SINTERSTORE i{front} s t")), ":0");
            // Of two that copy, the later one does not bring an older value.
            let copied = client.ask("GET copied").parse().unwrap_or(0);
            assert!(copied >= last, "{copied} after {last}");
            last = copied;
        }
    };
    std::thread::scope(|scope| {
        for front in 0..2 {
            scope.spawn(move || changes(front));
            scope.spawn(move || looks(front));
        }
    });
    // What they do is what they do alone.
    answers(
        &mut first,
        &[
            ("ZRANGESTORE y z 0 -1", ":2"),
            ("ZRANGE y 0 -1", "[a b]"),
            ("MSET w_a 2 w_b 1", "+OK"),
            ("SORT z BY w_* GET # GET w_* STORE sorted", ":4"),
            ("LRANGE sorted 0 -1", "[b 1 a 2]"),
            ("SORT z STORE sorted", "-ERR One or more scores can't be converted into double"),
            ("SORT none STORE sorted", ":0"),
            ("EXISTS sorted", ":0"),
            ("GEOADD geo 13.361389 38.115556 Palermo", ":1"),
            ("GEORADIUS geo 13 38 100 km STORE near", ":1"),
            ("ZDIFFSTORE y 2 z near", ":2"),
            ("ZINTERSTORE y 9 z near", "-ERR syntax error"),
            ("COPY none copied", ":0"),
            ("COPY n n", "-ERR source and destination objects are the same"),
            ("BITOP NOT x p q", "-ERR BITOP NOT must be called with a single source key."),
            ("SINTERSTORE x p s", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("MSET x", "-ERR wrong number of arguments for 'mset' command"),
            ("MSET x 1 y", "-ERR wrong number of arguments for 'mset' command"),
            ("MSET x 1 x 2", "+OK"),
            ("GET x", "2"),
        ],
    );
}

/// The numbers of a reply.
fn numbers(said: &str) -> Vec<Option<u64>> {
    said.trim_matches(['[', ']']).split(' ').map(|word| word.parse().ok()).collect()
}

/// At a front end that is alone: a client changes one key after another, and MGET never sees the later change without
/// the earlier one, although it reads many keys, at two nodes.
#[test]
fn keys_are_read_at_one_moment_beside_changes_of_single_keys() {
    let nodes = [Process::node(Transport::Tcp), Process::node(Transport::Tcp)];
    let front = Process::front("moment", &format!("{},{}", nodes[0].at, nodes[1].at));
    let names: Vec<String> = (0..200).map(|n| format!("k{n}")).collect();
    let mut client = front.client();
    let pairs: String = names.iter().map(|name| format!(" {name} 0")).collect();
    assert_eq!(client.ask(&format!("MSET{pairs}")), "+OK");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = front.client();
            for round in 1u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                for name in ["k0", "k199"] {
                    assert_eq!(client.ask(&format!("SET {name} {round}")), "+OK");
                }
            }
        });
        scope.spawn(|| {
            // These take their time to be read.
            let mut client = front.client();
            while !stop.load(Ordering::Relaxed) {
                (90..110).for_each(|n| client.send(&["SET", &names[n], "1"]).unwrap());
                (90..110).for_each(|_| assert_eq!(client.reply().as_deref(), Some("+OK")));
            }
        });
        let mget = format!("MGET {}", names.join(" "));
        let mut torn = None;
        for _ in 0..400 {
            let seen = numbers(&client.ask(&mget));
            let (first, last) = (seen[0].unwrap(), seen[199].unwrap());
            torn = torn.or(Some((first, last)).filter(|(first, last)| !(*last..=last + 1).contains(first)));
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(torn, None);
    });
}

/// MSET and DEL of two keys beside clients that look at them: at a front end that is alone, and at another one.
#[test]
fn several_keys_are_set_and_deleted_at_one_moment() {
    for (way, count) in [(Transport::Tcp, 1), (Transport::Shm, 1), (Transport::Tcp, 2), (Transport::Shm, 2)] {
        let node = Process::node(way);
        let fronts: Vec<Process> = (0..count).map(|_| Process::front("both", &node.at)).collect();
        let (mut client, stop) = (fronts[0].client(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = fronts[count - 1].client();
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    let n = round.to_string();
                    // Both are there the second time.
                    (0..2).for_each(|_| assert_eq!(client.ask(&format!("MSET a {n} b {n}")), "+OK"));
                    assert_eq!(client.ask("DEL a none b"), ":2");
                    assert_eq!(client.ask("UNLINK b none a"), ":0");
                }
            });
            let mut torn = Vec::new();
            for n in 0..600 {
                let seen = numbers(&client.ask("MGET a b"));
                let there = client.ask(if n % 2 == 0 { "EXISTS a b" } else { "EXISTS b none a" });
                if seen[0] != seen[1] || there == ":1" {
                    torn.push((seen, there));
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(torn.is_empty(), "{way:?}, {count} front ends: {torn:?}");
        });
    }
}

/// One client sets two keys, of which one is new. Another who has seen one of the values sees the other.
#[test]
fn whoever_sees_one_key_of_an_mset_sees_the_others() {
    let node = Process::node(Transport::Tcp);
    let front = Process::front("seen", &node.at);
    let (mut client, mut other) = (front.client(), front.client());
    for round in 0..200 {
        let (old, new) = (format!("old{round}"), format!("new{round}"));
        assert_eq!(client.ask(&format!("SET {old} 0")), "+OK");
        client.send(&["MSET", &old, "1", &new, "1"]).unwrap();
        while other.ask(&format!("GET {old}")) != "1" {}
        assert_eq!(other.ask(&format!("GET {new}")), "1", "round {round}");
        assert_eq!(client.reply().as_deref(), Some("+OK"));
    }
}

/// A value goes from one key to another and back. It is always at one of them, for every front end, and so is what
/// SORT finds by it.
#[test]
fn a_key_that_is_renamed_is_always_somewhere() {
    for way in [Transport::Shm, Transport::Tcp] {
        let node = Process::node(way);
        let fronts = [Process::front("flip", &node.at), Process::front("flip", &node.at)];
        let (mut client, stop) = (fronts[0].client(), AtomicBool::new(false));
        answers(&mut client, &[("SET w_1 5", "+OK"), ("RPUSH list 1 2", ":2")]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = fronts[1].client();
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(client.ask("RENAME w_1 w_2"), "+OK");
                    assert_eq!(client.ask("RENAME w_2 w_1"), "+OK");
                }
            });
            let mut torn = Vec::new();
            for _ in 0..600 {
                let there = client.ask("EXISTS w_1 w_2");
                let sorted = client.ask("SORT list BY nosort GET w_*");
                if there != ":1" || !["[5 nil]", "[nil 5]"].contains(&sorted.as_str()) {
                    torn.push((there, sorted));
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(torn.is_empty(), "{way:?}: {torn:?}");
        });
        // What follows STORE in another option is no key that is stored to.
        answers(
            &mut client,
            &[
                ("SORT list BY w_* GET # STORE store", ":2"),
                ("SORT list BY store GET x", "[nil nil]"),
                ("SORT list BY nosort GET store STORE to", ":2"),
                ("LRANGE to 0 -1", "[ ]"),
                ("SORT_RO list BY w_* GET #", "[2 1]"),
                ("SORT list BY w_* STORE", "-ERR syntax error"),
            ],
        );
    }
}

/// Two other front ends change keys without a pause. A client's commands on these keys, its scripts and its
/// transactions come about all the same, and are not refused.
#[test]
fn commands_on_several_keys_come_about_beside_changes_without_end() {
    let node = Process::node(Transport::Tcp);
    let fronts = [(); 3].map(|()| Process::front("fair", &node.at));
    let mut client = fronts[0].client();
    let names: String = (0..40).map(|n| format!(" c{n} 0")).collect();
    assert_eq!(client.ask(&format!("MSET w_1 5{names}")), "+OK");
    assert_eq!(client.ask("RPUSH list 1 2"), ":2");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Sets(&stop);
        for n in 0..6 {
            let (front, stop) = (&fronts[1 + n % 2], &stop);
            scope.spawn(move || {
                let mut client = front.client();
                for round in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let lines = match n {
                        // There is one name at a time, and each renames it if it is there.
                        0 | 1 => ["RENAME w_1 w_2".to_owned(), "RENAME w_2 w_1".into()],
                        _ => [0, 1].map(|more| format!("INCR c{}", (7 * round + n + more) % 40)),
                    };
                    lines.iter().for_each(|line| drop(client.ask(line)));
                }
            });
        }
        let all: String = (0..40).map(|n| format!(" c{n}")).collect();
        let script = "local sum = 0; for _, key in ipairs(KEYS) do sum = sum + redis.call('incr', key) end; return sum";
        let begun = Instant::now();
        for round in 0..25 {
            let sorted = client.ask("SORT list BY nosort GET w_*");
            assert!(["[5 nil]", "[nil 5]"].contains(&sorted.as_str()), "round {round}: {sorted}");
            let mut words = vec!["EVAL", script, "40"];
            words.extend(all.trim_start().split(' '));
            client.send(&words).unwrap();
            let said = client.reply().unwrap();
            assert!(said.starts_with(':'), "round {round}: {said}");
            assert_eq!(client.ask("MULTI"), "+OK");
            for n in 0..40 {
                assert_eq!(client.ask(&format!("INCR c{n}")), "+QUEUED");
            }
            let said = client.ask("EXEC");
            assert!(said.starts_with("[:"), "round {round}: {said}");
            assert_eq!(client.ask(&format!("MSET{names}")), "+OK", "round {round}");
        }
        eprintln!("25 rounds took {:?}", begun.elapsed());
    });
}

/// A front end that serves a store alone is killed among MSETs and DELs. Whoever comes finds all of
/// each or nothing.
#[test]
fn a_lone_front_end_that_is_killed_tears_no_mset() {
    const KEYS: usize = 60;
    for way in [Transport::Tcp, Transport::Shm] {
        let node = Process::node(way);
        let mut dies = Process::front("lone", &node.at);
        let mut client = dies.client();
        for round in 0..3 {
            let pairs = |n: usize| (0..KEYS).map(|k| format!(" k{k} {n}")).collect::<String>();
            let names: String = (0..KEYS).map(|k| format!(" k{k}")).collect();
            assert_eq!(client.ask(&format!("MSET{}", pairs(0))), "+OK");
            for n in 1..2000 {
                let line = if n % 100 == 50 { format!("DEL{names}") } else { format!("MSET{}", pairs(n)) };
                client.send(&line.split(' ').collect::<Vec<_>>()).unwrap();
                if n > 100 {
                    assert!(client.reply().is_some());
                }
                if n > 150 + 37 * round {
                    break;
                }
            }
            dies.kill();
            dies = Process::front("lone", &node.at);
            client = dies.client();
            let said = client.ask(&format!("MGET{names}"));
            let values: Vec<&str> = said.trim_matches(['[', ']']).split(' ').collect();
            assert!(values.len() == KEYS && values.iter().all(|value| *value == values[0]), "{way:?}: {said}");
        }
    }
}

/// In a full store that does not evict DEL of several keys goes on.
#[test]
fn keys_are_deleted_in_a_full_store() {
    let node = Process::start("node 127.0.0.1:0 1");
    let fronts = [Process::front("full", &node.at), Process::front("full", &node.at)];
    let mut client = fronts[0].client();
    let value = "x".repeat(20_000);
    let mut count = 0;
    loop {
        client.send(&["SET", &format!("k{count}"), &value]).unwrap();
        let said = client.reply().unwrap();
        if said != "+OK" {
            assert!(said.starts_with("-OOM"), "{said}");
            break;
        }
        count += 1;
    }
    let all: String = (0..count).map(|n| format!(" k{n} none{n}")).collect();
    assert_eq!(client.ask(&format!("DEL{all}")), format!(":{count}"));
    assert_eq!(client.ask("SET again 1"), "+OK");
}

/// An element goes from one key to another and back. It is always at one of them for whoever takes it out.
#[test]
fn an_element_is_taken_from_several_keys_at_one_moment() {
    for (way, count) in [(Transport::Tcp, 1), (Transport::Shm, 2), (Transport::Tcp, 2)] {
        let node = Process::node(way);
        let fronts: Vec<Process> = (0..count).map(|_| Process::front("taken", &node.at)).collect();
        let (mut client, stop) = (fronts[0].client(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = fronts[count - 1].client();
                while !stop.load(Ordering::Relaxed) {
                    for line in ["LMOVE x y LEFT LEFT", "LMOVE y x LEFT LEFT", "RENAME z1 z2", "RENAME z2 z1"] {
                        client.ask(line);
                    }
                }
            });
            let mut missed = Vec::new();
            for round in 0..150 {
                assert!(client.ask("RPUSH x e").starts_with(':') && client.ask("ZADD z1 5 m").starts_with(':'));
                // Those between take their time.
                let none = " none".repeat(8);
                let [(one, other), (first, last)] =
                    if round % 2 == 0 { [("x", "y"), ("z1", "z2")] } else { [("y", "x"), ("z2", "z1")] };
                let list = client.ask(&format!("LMPOP 10 {one}{none} {other} LEFT"));
                let set = client.ask(&format!("ZMPOP 10 {first}{none} {last} MAX"));
                if list == "*-1" || set == "*-1" {
                    missed.push((round, list, set));
                }
                for line in ["BLPOP x y 0.001", "DEL z1 z2"] {
                    client.ask(line);
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(missed.is_empty(), "{way:?}, {count} front ends: {missed:?}");
        });
        answers(
            &mut client,
            &[
                ("DEL x y z1 z2", ":0"),
                ("LMPOP 2 x y LEFT", "*-1"),
                ("RPUSH y 1 2 3", ":3"),
                ("BLPOP x y 0", "[y 1]"),
                ("LMPOP 3 x y y RIGHT COUNT 5", "[y [3 2]]"),
                ("SET s 1", "+OK"),
                ("LMPOP 2 x s LEFT", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
                ("ZADD z2 1 a", ":1"),
                ("BZPOPMIN z1 z2 0", "[z2 a 1]"),
                ("BZMPOP 0.01 2 z1 z2 MIN", "*-1"),
            ],
        );
    }
}

/// Entries go to one stream and then to another. XREAD never sees the later one alone.
#[test]
fn streams_are_read_at_one_moment() {
    for (way, count) in [(Transport::Tcp, 1), (Transport::Shm, 2), (Transport::Tcp, 2)] {
        let node = Process::node(way);
        let fronts: Vec<Process> = (0..count).map(|_| Process::front("streams", &node.at)).collect();
        let (mut client, stop) = (fronts[0].client(), AtomicBool::new(false));
        answers(&mut client, &[("XADD s 1-0 f v", "1-0"), ("XADD t 1-0 f v", "1-0")]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = fronts[count - 1].client();
                for n in 2.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    for stream in ["s", "t"] {
                        assert_eq!(client.ask(&format!("XADD {stream} MAXLEN 1 {n}-0 f v")), format!("{n}-0"));
                    }
                }
            });
            let mut torn = Vec::new();
            // Those between take their time.
            let read = format!("XREAD BLOCK 1000 STREAMS s{} t{}", " none".repeat(20), " 0".repeat(22));
            for _ in 0..300 {
                let said = client.ask(&read);
                let number = |word: &str| word.trim_start_matches('[').strip_suffix("-0")?.parse::<u64>().ok();
                let seen: Vec<u64> = said.split(' ').filter_map(number).collect();
                if seen.len() != 2 || !(seen[1]..=seen[1] + 1).contains(&seen[0]) {
                    torn.push(said);
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(torn.is_empty(), "{way:?}, {count} front ends: {torn:?}");
        });
        answers(
            &mut client,
            &[
                ("XGROUP CREATE s g $", "+OK"),
                (
                    "XREADGROUP GROUP g c STREAMS s t > >",
                    "-NOGROUP No such key 't' or consumer group 'g' in XREADGROUP with GROUP option",
                ),
                ("XGROUP CREATE t g $", "+OK"),
                ("XREADGROUP GROUP g c BLOCK 1 STREAMS s t > >", "*-1"),
                ("XADD t 9999999-0 f w", "9999999-0"),
                ("XREADGROUP GROUP g c STREAMS s t > >", "[[t [[9999999-0 [f w]]]]]"),
                ("XREADGROUP GROUP g c STREAMS s t > >", "*-1"),
                ("XREADGROUP GROUP g c STREAMS s t 0 0", "[[s []] [t [[9999999-0 [f w]]]]]"),
                ("XREAD STREAMS s t $ $", "*-1"),
                ("XREAD STREAMS none t 0 9999998", "[[t [[9999999-0 [f w]]]]]"),
            ],
        );
    }
}
