//! Strings in several pieces: whole or not there, under crashes at each verb; and through front
//! ends, which keep little of them in memory.

mod world;

use farmem::Transport;
use farmem_kv::keyspace::{Change, Keyspace};
use farmem_kv::object::{Object, Value};
use farmem_kv::rules::Rules;
use farmem_kv::serve::check;
use farmem_kv::shard::{Shard, Trouble};
use farmem_kv::task::{Io, Task};
use std::io::{Read, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};
use world::ops::{KEY, TINY};
use world::process::{Client, Process, config};
use world::{Memory, Random, interleave};

#[test]
fn another_process() {
    world::process::another_process();
}

/// Bytes of an extent in the model.
const EXTENT: u64 = 256;
const LEN: usize = 700;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Put(u8),
    PutShort(u8),
    Get,
    Delete,
    Expire,
}

/// A GET sees nothing, or a value that is one byte again and again.
fn is_whole(value: &[u8]) -> bool {
    (value.len() == LEN || value.len() == 8) && value.iter().all(|&byte| byte == value[0])
}

async fn read(store: &Keyspace, io: &Io) -> Result<Option<Vec<u8>>, Trouble> {
    match store.find(io, KEY).await? {
        Some(found) => Ok(Some(store.entire(io, found).await?.value().to_vec())),
        None => Ok(None),
    }
}

fn task(store: &Rc<Keyspace>, op: Op) -> Task<bool> {
    let store = Rc::clone(store);
    Task::new(|io| async move {
        let done = match op {
            Op::Put(byte) => store.put(&io, KEY, &Value::string(vec![byte; LEN])).await,
            Op::PutShort(byte) => store.put(&io, KEY, &Value::string(vec![byte; 8])).await,
            Op::Get => return read(&store, &io).await.expect("sound").is_none_or(|value| is_whole(&value)),
            Op::Delete => store.remove(&io, KEY).await.map(drop),
            Op::Expire => {
                let change = |there: Option<&Object>| -> Result<Change<()>, Trouble> {
                    Ok(match there {
                        Some(object) => {
                            let bytes = object.value().to_vec();
                            Change::Put(Value { kind: object.kind(), expiry: Some(u64::MAX), bytes }, ())
                        }
                        None => Change::Keep(()),
                    })
                };
                store.update(&io, KEY, change).await
            }
        };
        done.expect("sound");
        true
    })
}

fn store(memory: &mut Memory, seed: u64) -> (Rc<Shard>, Rc<Keyspace>) {
    let shard = memory.join(TINY, Rules::SOUND, 64 << 10);
    shard.space.longest.set(EXTENT);
    (Rc::clone(&shard), Rc::new(Keyspace::new("long", vec![shard], false, 0, seed)))
}

/// Pieces of extents.
fn extents(memory: &Memory, node: u64) -> usize {
    let class = |at: &u64| memory.word(*at) >> 32 & 0xff;
    memory.pieces.keys().filter(|&at| at >> 42 == node && class(at) == u64::from(farmem_kv::layout::EXTENT)).count()
}

/// Runs operations of as many front ends, of which one is dropped after some steps. Then all are
/// dead, another takes over what they held, and what is left is exactly what the key's value needs.
fn leaves_nothing(mut memory: Memory, before: Option<Op>, ops: &[Op], seed: u64, kill: Option<(usize, usize)>) {
    let fronts: Vec<_> = (0..ops.len() as u64).map(|n| store(&mut memory, seed * 10 + n)).collect();
    if let Some(op) = before {
        assert!(memory.run(task(&fronts[0].1, op)));
    }
    let mut chooser = Random::new(seed);
    chooser.kill = kill;
    let tasks = ops.iter().zip(&fronts).map(|(&op, (_, store))| task(store, op)).collect();
    let ended = interleave(&mut memory, tasks, &mut chooser);
    let told = format!("{before:?}, {ops:?}, seed {seed}, {kill:?}");
    assert!(ended.iter().all(|ended| ended.outcome != Some(false)), "a torn value: {told}");
    for (shard, _) in &fronts {
        let shard = Rc::clone(shard);
        memory.run(Task::new(|io| async move { shard.members.leave(&io).await }));
    }
    let (heir, other) = store(&mut memory, seed * 10 + 9);
    let shard = Rc::clone(&heir);
    memory.run(Task::new(|io| async move {
        for look in 0..3 {
            shard.recovery.adopt(&io, look * 11_000).await.expect("sound");
        }
        for tick in 0..12 {
            shard.members.tick(&io, 40_000 + tick).await.expect("alive");
        }
        // Places that have waited long enough are free now.
        shard.index.put(&io, b"other", &Value::string("x")).await.expect("room");
        shard.space.trim(&io).await;
    }));
    let shard = Rc::clone(&heir);
    let count = memory.run(Task::new(|io| async move { shard.recovery.count(&io).await }));
    assert!(count.problems.is_empty(), "{told}: {:?}", count.problems);
    let value = memory.run(Task::new(|io| async move { read(&other, &io).await })).expect("sound");
    assert!(value.as_ref().is_none_or(|value| is_whole(value)), "{told}");
    let long = value.is_some_and(|value| value.len() == LEN);
    for node in 0..1 + u64::from(memory.copied) {
        assert_eq!(extents(&memory, node), if long { LEN.div_ceil(EXTENT as usize) } else { 0 }, "{told}: node {node}");
    }
}

const PAIRS: [(Option<Op>, [Op; 2]); 8] = [
    (None, [Op::Put(1), Op::Put(2)]),
    (None, [Op::Put(1), Op::Get]),
    (Some(Op::Put(7)), [Op::Put(1), Op::Get]),
    (Some(Op::Put(7)), [Op::Put(1), Op::Delete]),
    (Some(Op::Put(7)), [Op::Expire, Op::Put(2)]),
    (Some(Op::Put(7)), [Op::Expire, Op::Delete]),
    (Some(Op::Put(7)), [Op::PutShort(1), Op::Get]),
    (Some(Op::Put(7)), [Op::Delete, Op::Expire]),
];

#[test]
fn a_front_end_that_is_killed_at_any_verb_leaves_nothing() {
    for (before, ops) in PAIRS {
        for step in 0..60 {
            for victim in 0..2 {
                leaves_nothing(Memory::default(), before, &ops, step as u64, Some((step, victim)));
            }
        }
    }
    for (before, ops) in PAIRS {
        for step in 0..40 {
            leaves_nothing(Memory::copied(), before, &ops, step as u64, Some((step, 0)));
        }
    }
}

#[test]
fn operations_in_any_order_leave_whole_values() {
    for seed in 0..400 {
        let (before, ops) = PAIRS[seed as usize % PAIRS.len()];
        leaves_nothing(Memory::default(), before, &[ops[0], ops[1], Op::Expire], seed, None);
        leaves_nothing(Memory::copied(), before, &ops, seed, None);
    }
}

/// Bytes at a place of a value, so that a displaced one is noticed.
fn pattern(from: usize, to: usize) -> Vec<u8> {
    (from..to).map(|at| ((at / 3) ^ (at >> 11)) as u8).collect()
}

fn send(client: &mut Client, words: &[&[u8]]) {
    let stream = client.stream.get_mut();
    write!(stream, "*{}\r\n", words.len()).unwrap();
    for word in words {
        write!(stream, "${}\r\n", word.len()).unwrap();
        stream.write_all(word).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
}

fn ask(client: &mut Client, words: &[&[u8]]) -> String {
    send(client, words);
    client.reply().expect("a reply")
}

/// Asks for a value, and compares all of it.
fn is_value(client: &mut Client, words: &[&[u8]], expected: &[u8]) {
    send(client, words);
    let mut line = String::new();
    std::io::BufRead::read_line(&mut client.stream, &mut line).unwrap();
    assert_eq!(line.trim_end(), format!("${}", expected.len()));
    let (mut bytes, mut end) = (vec![0; expected.len()], [0; 2]);
    client.stream.read_exact(&mut bytes).unwrap();
    client.stream.read_exact(&mut end).unwrap();
    assert!(bytes == expected, "another value");
}

/// The most memory that a process has had, in bytes.
fn peak(process: &Process) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim_end_matches("kB").trim().parse::<usize>().unwrap() << 10
}

fn bytes_of(name: &str, nodes: &str) -> Option<u64> {
    let counts = check(&config(name, nodes)).unwrap();
    let sound = counts.iter().all(|(_, count)| count.problems.is_empty() && count.pending == 0);
    sound.then(|| counts.iter().map(|(_, count)| count.bytes).sum())
}

#[test]
fn values_stream_in_and_out() {
    let node = Process::node(Transport::Tcp);
    let front = Process::front("long", &node.at);
    let mut other = Process::front("long", &node.at);
    // One that is killed in the middle of a value.
    let mut cut = other.client();
    cut.stream.get_mut().write_all(b"*3\r\n$3\r\nSET\r\n$3\r\ncut\r\n$80000000\r\n").unwrap();
    cut.stream.get_mut().write_all(&[1; 40_000_000]).unwrap();
    other.kill();
    let killed = Instant::now();
    let mut client = front.client();
    let whole = pattern(0, 60 << 20);
    for len in [2_097_000, 2_097_100, 5_000_000, whole.len()] {
        assert_eq!(ask(&mut client, &[b"SET", b"k", &whole[..len]]), "+OK");
        is_value(&mut client, &[b"GET", b"k"], &whole[..len]);
        assert_eq!(client.ask("STRLEN k"), format!(":{len}"));
    }
    for (from, to) in [(0, 10), (2_097_080, 2_097_100), (1 << 20, 9 << 20), ((60 << 20) - 5, 60 << 20)] {
        let (first, last) = (from.to_string(), (to - 1).to_string());
        is_value(&mut client, &[b"GETRANGE", b"k", first.as_bytes(), last.as_bytes()], &whole[from..to]);
    }
    for (said, expected) in [
        ("TYPE k", "+string"),
        ("EXPIREAT k 4000000000", ":1"),
        ("EXPIRETIME k", ":4000000000"),
        ("SETRANGE k 3000000 hello", ":62914560"),
        ("GETRANGE k 2999999 3000005", &format!("{}hello{}", whole[2_999_999] as char, whole[3_000_005] as char)),
        ("APPEND k end", ":62914563"),
        ("GETRANGE k -5 -1", &format!("{}end", String::from_utf8_lossy(&whole[whole.len() - 2..]))),
        ("EXPIRETIME k", ":4000000000"),
        ("PERSIST k", ":1"),
        ("RENAME k moved", "+OK"),
        ("EXISTS k", ":0"),
        ("STRLEN moved", ":62914563"),
        ("SETRANGE zeros 5000000 x", ":5000001"),
        ("GETRANGE zeros 4999998 -1", "\0\0x"),
        ("SETRANGE zeros 536870911 xx", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)"),
        ("MULTI", "+OK"),
        ("STRLEN moved", "+QUEUED"),
        ("EXEC", "[:62914563]"),
        ("DEL zeros", ":1"),
    ] {
        let said = client.ask(said);
        assert!(said == expected || said.contains('\u{fffd}'), "{said:.80}");
    }
    assert!(client.ask("INCR moved").contains("more than 2 MiB"));
    assert_eq!(client.ask("DEL moved"), ":1");
    // Little of a value is in the front end's memory.
    let before = peak(&front);
    let large = vec![7; 120 << 20];
    assert_eq!(ask(&mut client, &[b"SET", b"large", &large]), "+OK");
    is_value(&mut client, &[b"GET", b"large"], &large);
    // The kernel adds up a process's pages by parts: what it says may be less than before.
    let grown = peak(&front).saturating_sub(before);
    assert!(grown < 48 << 20, "{} MiB more", grown >> 20);
    // A client that reads nothing, and one that goes in the middle, keep nobody from anything.
    let mut deaf = front.client();
    send(&mut deaf, &[b"GET", b"large"]);
    let mut gone = front.client();
    gone.stream.get_mut().write_all(b"*3\r\n$3\r\nSET\r\n$4\r\ngone\r\n$80000000\r\n").unwrap();
    gone.stream.get_mut().write_all(&[1; 9_000_000]).unwrap();
    assert_eq!(client.ask("SET a b"), "+OK");
    drop((gone, deaf));
    // More than may be.
    let mut bad = front.client();
    bad.stream.get_mut().write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870913\r\n").unwrap();
    assert_eq!(bad.reply().as_deref(), Some("-ERR Protocol error: invalid bulk length"));
    assert_eq!(bad.reply(), None);
    assert_eq!(client.ask("DEL large"), ":1");
    // All of this memory comes back, with that of the killed front end.
    let mut last = None;
    while last.is_none_or(|bytes| bytes > 4 << 20) {
        assert!(killed.elapsed() < Duration::from_secs(60), "{last:?} bytes are left");
        std::thread::sleep(Duration::from_millis(200));
        last = bytes_of("long", &node.at);
    }
    assert_eq!((client.ask("GET cut"), client.ask("GET a")), ("nil".into(), "b".into()));
}
