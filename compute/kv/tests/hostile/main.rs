//! A node that shows anything: whatever values it has its front ends read, commands end with a
//! reply, and no front end ends.

mod forge;
#[path = "../world/mod.rs"]
mod world;

use farmem_kv::command::{COMMANDS, Command, Group, gathered};
use farmem_kv::layout::MAX_OBJECT;
use farmem_kv::object::Type;
use farmem_kv::resp::{Reply, Request};
use farmem_protocol::random::Random;
use forge::{Attacked, Head, anything, item, names, words};
use std::time::{Duration, Instant};

#[test]
fn a_head_is_read_as_a_store_writes_it() {
    let mut attacked = Attacked::new(1);
    for kind in [Type::List, Type::Set, Type::Hash, Type::SortedSet] {
        let head = Head::of(kind, &names(20), 3).shown(&mut attacked);
        attacked.plant(&[kind as u8], Type::Parts, head);
    }
    let mut says = |line: &str| attacked.says(line);
    assert_eq!((says("LLEN \x02"), says("SCARD \x03")), (Reply::Int(20), Reply::Int(20)));
    assert_eq!((says("LINDEX \x02 7"), says("SISMEMBER \x03 m9")), (Reply::bulk("m7"), Reply::Int(1)));
    assert_eq!((says("HGET \x04 m19"), says("ZRANK \x05 m7")), (Reply::bulk("value"), Reply::Int(7)));
    assert_eq!((says("ZREM \x05 m0 m19"), says("ZCARD \x05")), (Reply::Int(2), Reply::Int(18)));
}

#[track_caller]
fn is_refused(reply: &Reply) {
    assert!(matches!(reply, Reply::Error(text) if text.contains("checksum") || text.contains("damaged")), "{reply:?}");
}

#[test]
fn a_head_with_entries_of_no_items_is_refused() {
    let mut attacked = Attacked::new(2);
    let mut head = Head::of(Type::Set, &names(20), 3);
    head.sides[0].iter_mut().for_each(|entry| entry.count = 0);
    let head = head.shown(&mut attacked);
    attacked.plant(b"k", Type::Parts, head);
    ["SPOP k", "SRANDMEMBER k", "SPOP k 2", "SADD k x", "SSCAN k 0"]
        .iter()
        .for_each(|line| is_refused(&attacked.says(line)));
    assert_eq!((attacked.says("DEL k"), attacked.says("EXISTS k")), (Reply::Int(1), Reply::Int(0)));
}

/// As one object a stream names a consumer once. In segments each pending entry does.
#[test]
fn a_stream_with_long_names_is_refused() {
    let mut attacked = Attacked::new(6);
    let mut plant = |name: &[u8]| {
        let numbers = |numbers: &[u64]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
        let group = [item(b"g"), numbers(&[0, 0, 0, 1]), item(name), numbers(&[7, 1, 1, 0, 0, 7, 1])].concat();
        attacked.plant(b"k", Type::Stream, [numbers(&[1, 0, 0, 0, 0, 0, 1]), group].concat());
        attacked.says("XLEN k")
    };
    assert_eq!(plant(&[b'c'; 1024]), Reply::Int(0));
    is_refused(&plant(&[b'c'; 1025]));
    is_refused(&attacked.says("XADD k * f v"));
}

/// A list of 68 MiB, of which the last segments alone are read: it cannot be seized and seen as a
/// whole.
#[test]
fn a_large_value_that_others_change_all_the_time_is_changed() {
    let mut attacked = Attacked::new(5);
    let mut head = Head::of(Type::List, &names(37), 1);
    head.sides[0][..34].iter_mut().for_each(|entry| entry.len = MAX_OBJECT as u32);
    let head = head.shown(&mut attacked);
    attacked.plant(b"k", Type::Parts, head.clone());
    attacked.forestall(40, b"k", &head);
    assert_eq!((attacked.says("RPUSH k x"), attacked.has_forestalled()), (Reply::Int(38), true));
    assert_eq!((attacked.says("LLEN k"), attacked.says("LINDEX k -1")), (Reply::Int(38), Reply::bulk("x")));
}

#[test]
fn a_member_by_name_alone_has_no_rank() {
    let mut attacked = Attacked::new(3);
    let mut head = Head::of(Type::SortedSet, &names(20), 3);
    // Its score is above all.
    let entry = head.sides[1].iter_mut().find(|entry| entry.items.windows(2).any(|name| name == b"m7")).unwrap();
    let of = |name: &[u8], score: f64| [item(&score.to_le_bytes()), item(name)].concat();
    let old = of(b"m7", 3.0);
    let at = entry.items.windows(old.len()).position(|bytes| bytes == old).unwrap();
    entry.items.splice(at..at + old.len(), of(b"m7", 99.0));
    let head = head.shown(&mut attacked);
    attacked.plant(b"k", Type::Parts, head);
    assert_eq!(attacked.says("ZSCORE k m7"), Reply::Double(99.0));
    ["ZREVRANK k m7", "ZRANK k m7", "ZREM k m7", "ZADD k 1 m7"]
        .iter()
        .for_each(|line| is_refused(&attacked.says(line)));
    assert_eq!(attacked.says("ZREVRANK k m19"), Reply::Int(0));
}

#[test]
fn a_value_without_the_form_of_its_type_is_refused() {
    let mut attacked = Attacked::new(4);
    for (kind, bytes, line) in [
        (Type::Set, b"xyz".to_vec(), "SPOP k"),
        (Type::Set, b"xyz".to_vec(), "SRANDMEMBER k"),
        (Type::Hash, item(b"field"), "HGETALL k"),
        (Type::Hash, item(b"field"), "HSET k f v"),
        (Type::SortedSet, item(b"m"), "ZSCAN k 0"),
        (Type::SortedSet, [item(&f64::NAN.to_le_bytes()), item(b"m")].concat(), "ZADD k 1 n"),
        (Type::List, Vec::new(), "RPUSH k x"),
    ] {
        attacked.plant(b"k", kind, bytes);
        is_refused(&attacked.says(line));
        assert_eq!(attacked.says("RENAME k k2"), Reply::Ok);
        is_refused(&attacked.says(&line.replace(" k", " k2")));
        assert_eq!(attacked.says("DEL k2"), Reply::Int(1));
    }
}

/// Commands with what they are for. `K` stands for a key, `N` for a number, `M` for a member.
const LINES: &str = include_str!("commands.txt");

fn command(random: &mut Random, keys: &[Vec<u8>]) -> Request {
    let lines: Vec<&str> = LINES.lines().collect();
    let line = words(lines[random.index(lines.len())]);
    let word = |word: Vec<u8>| match &word[..] {
        b"K" => keys[random.index(keys.len())].clone(),
        b"N" => ["0", "1", "2", "-1", "-3", "7", "19", "40", "1000000", "-1000000"][random.index(10)].into(),
        b"M" => format!("m{}", random.index(45)).into_bytes(),
        b"(N" => format!("({}", random.index(20)).into_bytes(),
        b"[M" | b"(M" => format!("{}m{}", char::from(word[0]), random.index(45)).into_bytes(),
        _ => word,
    };
    line.into_iter().map(word).collect()
}

/// Each command is among those that are tried, but for those that look at no collection.
#[test]
fn every_command_on_values_is_tried() {
    let tried: Vec<String> =
        LINES.lines().map(|line| line.split(' ').next().unwrap_or_default().to_lowercase()).collect();
    let on_values = |command: &&Command| {
        use Group::{Combined, Hashes, Lists, Moves, Places, Ranges, Sets, SortedSets};
        matches!(command.group, Combined | Hashes | Lists | Moves | Places | Ranges | Sets | SortedSets)
    };
    // These are others by another name.
    let alike = ["hmset", "lpushx", "rpushx", "brpop", "brpoplpush", "bzpopmin", "georadius", "georadius_ro"];
    let more = ["georadiusbymember_ro", "zrangebylex", "zrevrangebylex", "sort_ro"];
    let missing = COMMANDS.iter().filter(on_values).map(|command| command.name);
    let missing = missing.filter(|name| !tried.iter().any(|tried| tried == name));
    let missing: Vec<&str> = missing.filter(|name| !alike.contains(name) && !more.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Names a seed if the test ends there.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("FARMEM_FUZZ_SEED={}: the failure is of seed {}", self.0 >> 32, self.0);
        }
    }
}

/// Whatever heads, segments and values a node shows, each command ends with a reply. 40 seeds, or
/// for `FARMEM_FUZZ_SECONDS`, from `FARMEM_FUZZ_SEED` on.
#[test]
fn any_values_beneath_each_command() {
    let given = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let (begun, from) = (Instant::now(), given("FARMEM_FUZZ_SEED").unwrap_or(0) << 32);
    let goes_on = |seed: &u64| match given("FARMEM_FUZZ_SECONDS") {
        Some(seconds) => begun.elapsed() < Duration::from_secs(seconds),
        None => *seed < from + 40,
    };
    let mut tried = 0;
    for seed in (from..).take_while(goes_on) {
        let _seed = Seed(seed);
        tried += try_commands(seed);
    }
    println!("{tried} commands");
}

/// Returns how many commands were tried.
fn try_commands(seed: u64) -> u64 {
    let (mut random, mut attacked, mut tried) = (Random::new(seed), Attacked::new(seed), 0);
    for round in 0..30 {
        let keys: Vec<Vec<u8>> = (0..3).map(|n| format!("k{round}-{n}").into_bytes()).collect();
        for key in &keys {
            let (kind, bytes) = anything(&mut random, &mut attacked);
            attacked.plant(key, kind, bytes);
        }
        for _ in 0..12 {
            let words = command(&mut random, &keys);
            let shown = String::from_utf8_lossy(&words.join(&b' ')).into_owned();
            tried += 1;
            let way = random.index(4);
            let ended = match way {
                0 => {
                    let script = b"return redis.pcall(unpack(ARGV))".to_vec();
                    let eval = [vec![b"EVAL".to_vec(), script, b"3".to_vec()], keys.clone(), words].concat();
                    attacked.ask(eval).is_some()
                }
                1 if gathered::gatherable(&words).is_some() => {
                    let same = keys.iter().position(|key| *key == words[1]).unwrap_or(0);
                    let more = (0..20).map(|_| command(&mut random, &keys[same..=same]));
                    let more = more.filter(|words| gathered::gatherable(words).is_some());
                    let all: Vec<Request> = std::iter::once(words).chain(more.take(4).collect::<Vec<_>>()).collect();
                    attacked.together(all).is_some()
                }
                _ => attacked.ask(words).is_some(),
            };
            assert!(ended, "it does not end: {shown}, way {way}");
        }
    }
    tried
}
