//! Blocks: large values that are written once, in parts; pins and eviction; a lost part.

use farmem_fabric::NodeAddr;
use farmem_kv::blocks::MAX_BLOCK;
use farmem_kv::layout::{Geometry, Hash, ROOT_BITS};
use farmem_kv::{Act, Config, Failed, Op, Outcome, Store, Trouble};
use farmem_memory::Node;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

fn node(name: &str) -> (Node, String) {
    let socket = std::env::temp_dir().join(format!("farmem-blocks-{name}-{}.sock", std::process::id()));
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into()), NodeAddr::Shm(socket)];
    let node = Node::start(&farmem_memory::Config::new(4 * (64 << 20), listen)).expect("a node");
    let address = node.addresses()[0].to_string();
    (node, address)
}

fn one(store: &mut Store, key: &str, act: Act) -> Outcome {
    let op = Op { key: key.as_bytes().to_vec(), act };
    store.batch(vec![op]).expect("carried out").remove(0).expect("no trouble")
}

fn put(store: &mut Store, key: &str, block: &[u8]) -> Outcome {
    one(store, key, Act::PutBlock { block: block.to_vec(), expiry: None })
}

fn get(store: &mut Store, key: &str) -> Option<Vec<u8>> {
    match one(store, key, Act::GetBlock) {
        Outcome::Block(block) => {
            let bytes: Vec<u8> = block.parts().flatten().copied().collect();
            assert_eq!(bytes.len(), block.len());
            Some(bytes)
        }
        Outcome::Absent => None,
        other => panic!("{other:?}"),
    }
}

fn block(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 31 + n / 256 * 7 + seed) as u8).collect()
}

#[test]
fn blocks_are_written_once_and_read_whole() {
    let (_node, address) = node("whole");
    let mut store = Store::open("blocks", &[&address]).expect("a store");
    let lens = [0, 1, 4096, 4097, 30_000, 40_000, 48 << 10, 64 << 10, 100_000, 128 << 10];
    for len in lens.into_iter().chain([(1 << 21) - 1, 1 << 21, 5_000_000]) {
        let bytes = block(len, len);
        let key = format!("of {len}");
        assert_eq!(one(&mut store, &key, Act::LookBlock), Outcome::Absent);
        assert_eq!(put(&mut store, &key, &bytes), Outcome::Done, "{len}");
        assert_eq!(put(&mut store, &key, b"another"), Outcome::Present, "{len}");
        assert_eq!(one(&mut store, &key, Act::LookBlock), Outcome::Length(len as u64, None));
        assert!(get(&mut store, &key).is_some_and(|found| found == bytes), "{len}");
        assert_eq!(one(&mut store, &key, Act::RemoveBlock), Outcome::Done);
        assert_eq!((get(&mut store, &key), one(&mut store, &key, Act::RemoveBlock)), (None, Outcome::Absent));
        assert_eq!(store.size().expect("a size"), 0, "{len}: something is left");
    }
    let too_large = Op { key: b"k".to_vec(), act: Act::PutBlock { block: vec![0; MAX_BLOCK + 1], expiry: None } };
    let refused = store.batch(vec![too_large]).expect("carried out").remove(0);
    assert!(matches!(refused, Err(Failed::Refused(Trouble::TooLarge))), "{refused:?}");
    // A block that ends, with all of its parts.
    let ends = Act::PutBlock { block: block(100_000, 1), expiry: Some(1) };
    assert_eq!((one(&mut store, "ends", ends), get(&mut store, "ends")), (Outcome::Done, None));
    let ends = |expiry| Act::PutBlock { block: block(64 << 10, 1), expiry };
    assert_eq!((one(&mut store, "ends whole", ends(Some(1))), get(&mut store, "ends whole")), (Outcome::Done, None));
    assert_eq!(one(&mut store, "ends again", ends(Some(1))), Outcome::Done);
    assert_eq!(one(&mut store, "ends again", ends(None)), Outcome::Done, "in place of one that has ended");
    assert!(get(&mut store, "ends again").is_some());
}

/// However long a list of operations is, the values under way need a few MiB.
#[test]
fn operations_are_taken_when_they_begin_and_told_when_they_end() {
    let (_node, address) = node("window");
    let config = Config { transport: farmem::Transport::Tcp, ..Config::of("blocks", &[&address]) };
    let mut store = Store::open_as(&config).expect("a store");
    let (taken, told) = (Cell::new(0usize), RefCell::new(vec![0; 700]));
    let took = |act| {
        taken.update(|taken| taken + 1);
        act
    };
    let ops = |act: fn(usize) -> Act| (0..700).map(move |n| Op { key: n.to_string().into_bytes(), act: act(n) });
    let puts = ops(|n| Act::PutBlock { block: block(64 << 10, n), expiry: None });
    let mut most = 0;
    let end = |number: usize, outcome: Result<Outcome, Failed>| {
        assert_eq!(outcome.expect("stored"), Outcome::Done);
        told.borrow_mut()[number] += 1;
        most = most.max(taken.get() - told.borrow().iter().filter(|&&told| told > 0).count());
    };
    store.batch_with(puts.map(took), end).expect("carried out");
    assert!((8..70).contains(&most), "{most} blocks of 64 KiB under way");
    assert!(told.borrow().iter().all(|&told| told == 1), "each is told once");
    let mut found = 0;
    let end = |number: usize, outcome: Result<Outcome, Failed>| {
        let Ok(Outcome::Block(there)) = outcome else { panic!("block {number}: {outcome:?}") };
        assert!(there.parts().flatten().copied().eq(block(64 << 10, number)), "block {number}");
        found += 1;
    };
    store.batch_with(ops(|_| Act::GetBlock), end).expect("carried out");
    assert_eq!(found, 700);
}

/// Bytes of which no part comes twice.
fn noise(len: usize) -> Vec<u8> {
    let mut random = farmem_protocol::random::Random::new(1);
    (0..len).map(|_| random.bits() as u8).collect()
}

/// Alters the blocks that have these bytes, as if their writer had changed them while they were
/// sent; how many.
fn damage(address: &str, bytes: &[u8]) -> usize {
    let memory = farmem::Memory::builder().node(address).region("blocks").partial(true).connect().expect("the region");
    let mut damaged = 0;
    for piece in memory.pieces().expect("pieces") {
        let mut there = vec![0; piece.bytes as usize];
        memory.read(piece.at, &mut there).expect("read");
        for (at, _) in there.windows(bytes.len()).enumerate().filter(|(_, window)| *window == bytes) {
            memory.write(piece.at + at as u64, &[0; 8]).expect("written");
            damaged += 1;
        }
    }
    damaged
}

/// A key that is looked for among the same slots as another one, and by the same fingerprint.
fn meeting(key: &[u8]) -> Vec<u8> {
    let meets = |one: Hash, other: Hash| {
        let buckets = |hash: Hash| hash.buckets(Geometry::STORE.buckets);
        one.path() >> (31 - ROOT_BITS) == other.path() >> (31 - ROOT_BITS)
            && one.fingerprint() == other.fingerprint()
            && buckets(one).iter().any(|bucket| buckets(other).contains(bucket))
    };
    let own = Hash::of(key);
    let names = (0u32..).map(|n| format!("meets {n}").into_bytes());
    names.into_iter().find(|name| meets(Hash::of(name), own)).expect("one in 65 000")
}

/// Tends a store until something is so.
fn until(store: &mut Store, what: &str, mut is_so: impl FnMut(&mut Store) -> bool) {
    let begun = Instant::now();
    while !is_so(store) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
        store.tend().expect("tended");
    }
}

/// A front end that is gone has left a long value. Whether that is still wanted is looked up among
/// the slots where a damaged block of another front end is.
#[test]
fn a_damaged_block_stops_no_takeover() {
    let (_node, address) = node("stops");
    let mut stays = Store::open("blocks", &[&address]).expect("a store");
    let mut dies = Store::open("blocks", &[&address]).expect("a store");
    let (bytes, long) = (noise(64 << 10), block(3_000_000, 1));
    let name = meeting(b"farmem:block:k");
    assert_eq!(put(&mut stays, "k", &bytes), Outcome::Done);
    dies.put(&name, &long).expect("stored");
    // It goes when its memory was taken over.
    dies.put(&[&b"farmem:part:"[..], &[7; 20], b"half"].concat(), b"part").expect("stored");
    assert_eq!(damage(&address, &bytes[1024..1088]), 1);
    drop(dies);
    until(&mut stays, "it is not taken over", |stays| {
        let (keys, _) = stays.scan(0, 1000).expect("keys");
        !keys.iter().any(|key| key.starts_with(b"farmem:part:"))
    });
    // More than the node has: what is replaced comes back.
    (0..150).for_each(|n| stays.put(b"replaced", &block(3_000_000, n)).expect("stored"));
    assert_eq!(stays.get(&name).expect("read").as_deref(), Some(&long[..]));
    assert!(get(&mut stays, "k").is_none());
    assert_eq!(put(&mut stays, "k", &bytes), Outcome::Done);
}

/// A part of a block is sent from its writer's memory, too.
#[test]
fn a_damaged_part_harms_no_other_key() {
    let (_node, address) = node("damaged part");
    let mut store = Store::open("blocks", &[&address]).expect("a store");
    let bytes = noise(3_000_000);
    assert_eq!(put(&mut store, "k", &bytes), Outcome::Done);
    let (keys, _) = store.scan(0, 1000).expect("keys");
    let names: Vec<Vec<u8>> =
        keys.iter().filter(|key| key.starts_with(b"farmem:part:")).map(|key| meeting(key)).collect();
    assert!(names.len() > 1);
    assert_eq!(damage(&address, &bytes[100_000..100_064]), 1);
    let begun = Instant::now();
    for name in &names {
        assert_eq!(store.get(name).expect("read").as_deref(), None);
        store.put(name, b"value").expect("stored");
        assert_eq!(store.get(name).expect("read").as_deref(), Some(&b"value"[..]));
    }
    assert!(begun.elapsed() < Duration::from_secs(3), "it took {:?}", begun.elapsed());
    let file = std::env::temp_dir().join(format!("farmem-blocks-saved-{}", std::process::id()));
    let config = Config::of("blocks", &[&address]);
    farmem_kv::serve::save(&config, &file).expect("saved");
    std::fs::remove_file(&file).expect("a file");
    // It is left to another front end, whose new values need places of the part's size.
    store.close().expect("left");
    let mut store = Store::open("blocks", &[&address]).expect("a store");
    for n in 0..60u32 {
        store.put(&n.to_le_bytes(), &block(2_000_000, n as usize)).expect("stored");
        std::thread::sleep(Duration::from_millis(50));
    }
    // A piece may be nobody's yet: the store, which claims it, makes no call meanwhile.
    let problems = |config: &Config| -> Vec<String> {
        let counts = farmem_kv::serve::check(config).expect("counted");
        counts.into_iter().flat_map(|(_, count)| count.problems).filter(|told| told.contains("object")).collect()
    };
    let found = problems(&config);
    assert!(found.len() == 1 && found[0].contains("checksum"), "{found:?}");
    store.tend().expect("tended");
    assert!(get(&mut store, "k").is_none());
    assert_eq!(problems(&config), Vec::<String>::new());
    assert_eq!(put(&mut store, "k", &bytes), Outcome::Done);
    assert!(get(&mut store, "k").is_some_and(|found| found == bytes));
    for name in &names {
        assert_eq!(store.get(name).expect("read").as_deref(), Some(&b"value"[..]));
    }
}

/// A damaged block that has ended goes when another is put in its place.
#[test]
fn a_damaged_block_that_has_ended_is_replaced() {
    let (_node, address) = node("ended");
    let mut wrote = Store::open("blocks", &[&address]).expect("a store");
    let mut store = Store::open("blocks", &[&address]).expect("a store");
    let bytes = noise(64 << 10);
    let now_ms = std::time::UNIX_EPOCH.elapsed().expect("a time").as_millis() as u64;
    let ends = Act::PutBlock { block: bytes.clone(), expiry: Some(now_ms + 1000) };
    // Its front end would sweep it, and makes no call from here on.
    assert_eq!(one(&mut wrote, "k", ends), Outcome::Done);
    assert_eq!(damage(&address, &bytes[1024..1088]), 1);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(put(&mut store, "k", &bytes), Outcome::Done);
    assert!(get(&mut store, "k").is_some_and(|found| found == bytes));
}

/// A block whose writer has changed it meanwhile is absent, and can be put again. Other keys, and the front end that
/// takes the memory over, look past it.
#[test]
fn a_damaged_block_harms_no_other_key() {
    let (_node, address) = node("damaged");
    let mut store = Store::open("blocks", &[&address]).expect("a store");
    let bytes = noise(64 << 10);
    for key in ["one", "other"] {
        assert_eq!(put(&mut store, key, &bytes), Outcome::Done);
    }
    (0..2000).for_each(|n: u32| store.put(&n.to_le_bytes(), b"value").expect("stored"));
    let damaged = damage(&address, &bytes[1024..1088]);
    assert_eq!(damaged, 2);
    assert!(get(&mut store, "one").is_none());
    assert_eq!((put(&mut store, "one", &bytes), get(&mut store, "one").as_deref()), (Outcome::Done, Some(&bytes[..])));
    // It is left to another front end.
    store.close().expect("left");
    let mut store = Store::open("blocks", &[&address]).expect("a store");
    (0..2000).for_each(|n: u32| assert_eq!(store.get(&n.to_le_bytes()).expect("read").as_deref(), Some(&b"value"[..])));
    assert!(get(&mut store, "other").is_none());
    assert_eq!(put(&mut store, "other", &bytes), Outcome::Done);
    assert_eq!(get(&mut store, "one").as_deref(), Some(&bytes[..]));
}

/// Blocks that are larger together than what may be read at a time.
#[test]
fn large_blocks_take_their_turns() {
    let (_node, address) = node("turns");
    let mut store = Store::open("blocks", &[&address]).expect("a store");
    let ops = |act: fn(usize) -> Act| (0..8).map(move |n| Op { key: n.to_string().into_bytes(), act: act(n) });
    let stored = store.batch(ops(|n| Act::PutBlock { block: block(13 << 20, n), expiry: None })).expect("carried out");
    assert!(stored.len() == 8 && stored.iter().all(|stored| matches!(stored, Ok(Outcome::Done))), "{stored:?}");
    for (n, found) in store.batch(ops(|_| Act::GetBlock)).expect("carried out").into_iter().enumerate() {
        let Ok(Outcome::Block(there)) = found else { panic!("block {n}: {found:?}") };
        assert!(there.parts().flatten().copied().eq(block(13 << 20, n)), "block {n}");
    }
}

#[test]
fn a_block_without_a_part_is_absent_and_can_be_put_again() {
    let (_node, address) = node("part");
    let mut store = Store::open("blocks", &[&address]).expect("a store");
    let bytes = block(3_000_000, 3);
    assert_eq!(put(&mut store, "k", &bytes), Outcome::Done);
    let (keys, _) = store.scan(0, 1000).expect("keys");
    let part = keys.iter().find(|key| key.starts_with(b"farmem:part:")).expect("a part");
    assert!(store.remove(part).expect("removed"));
    assert_eq!((get(&mut store, "k"), store.size().expect("a size")), (None, 0));
    assert_eq!(put(&mut store, "k", &bytes), Outcome::Done);
    assert!(get(&mut store, "k").is_some_and(|found| found == bytes));
    // A client that knows nothing of blocks writes to its key.
    store.put(b"farmem:block:k", b"nonsense").expect("stored");
    let found = store.batch(vec![Op { key: b"k".to_vec(), act: Act::GetBlock }]).expect("carried out").remove(0);
    assert!(matches!(found, Err(Failed::Refused(Trouble::Corrupt))), "{found:?}");
}

#[test]
fn of_two_writers_one_wins_and_the_other_leaves_nothing() {
    // In parts, and whole.
    two_writers("writers", 70_000);
    two_writers("whole writers", 64 << 10);
}

fn two_writers(name: &str, len: usize) {
    let (_node, address) = node(name);
    let writes = |seed: usize| {
        let address = address.clone();
        move || {
            let mut store = Store::open("blocks", &[&address]).expect("a store");
            let won: Vec<bool> =
                (0..20).map(|n| put(&mut store, &n.to_string(), &block(len, seed)) == Outcome::Done).collect();
            store.close().expect("closed");
            won
        }
    };
    let [one, two] = [0, 1].map(|seed| std::thread::spawn(writes(seed))).map(|thread| thread.join().expect("written"));
    let mut store = Store::open("blocks", &[&address]).expect("a store");
    for n in 0..20 {
        assert!(one[n] != two[n], "block {n}: {} {}", one[n], two[n]);
        assert!(get(&mut store, &n.to_string()).is_some_and(|found| found == block(len, usize::from(two[n]))));
        assert_eq!(one_removed(&mut store, n), Outcome::Done);
    }
    assert_eq!(store.size().expect("a size"), 0);
}

fn one_removed(store: &mut Store, n: usize) -> Outcome {
    one(store, &n.to_string(), Act::RemoveBlock)
}

#[test]
fn pinned_blocks_outlast_eviction() {
    // In parts, and whole.
    pinned("pins", 500_000);
    pinned("whole pins", 64 << 10);
}

fn pinned(name: &str, len: usize) {
    let (_node, address) = node(name);
    let count = 30_000_000 / len;
    let config = Config { local: 1 << 20, maxmemory: Some(16 << 20), ..Config::of("blocks", &[&address]) };
    let mut store = Store::open_as(&config).expect("a store");
    let forever = Act::PinBlock { until: Some(u64::MAX >> 1) };
    assert_eq!(one(&mut store, "pinned", forever.clone()), Outcome::Absent);
    assert_eq!(put(&mut store, "pinned", &block(len, 0)), Outcome::Done);
    assert_eq!(one(&mut store, "pinned", forever), Outcome::Done);
    for n in 0..count {
        assert_eq!(put(&mut store, &n.to_string(), &block(len, n)), Outcome::Done, "block {n}");
    }
    assert!(get(&mut store, "pinned").is_some_and(|found| found == block(len, 0)));
    let left: Vec<usize> =
        (0..count).filter(|n| one(&mut store, &n.to_string(), Act::LookBlock) != Outcome::Absent).collect();
    assert!((count / 8..count * 2 / 3).contains(&left.len()), "{left:?}");
    let mut found = 0;
    for &n in &left {
        let there = get(&mut store, &n.to_string());
        // One object goes at once, also just now: eviction goes on beside the calls.
        assert!(there.as_ref().is_some_and(|there| *there == block(len, n)) || len < 1 << 17 && there.is_none(), "{n}");
        found += usize::from(there.is_some());
    }
    assert!(found > count / 8, "{found}");
    assert_eq!(one(&mut store, "pinned", Act::PinBlock { until: None }), Outcome::Done);
    assert_eq!(one(&mut store, "pinned", Act::PinBlock { until: None }), Outcome::Absent);
}

/// A writer dies when it has written a block, and some parts of another one.
#[test]
fn a_writer_that_is_gone_leaves_no_parts() {
    let (_node, address) = node("gone");
    let mut stays = Store::open("blocks", &[&address]).expect("a store");
    let mut dies = Store::open("blocks", &[&address]).expect("a store");
    assert_eq!(put(&mut dies, "whole", &block(3_000_000, 1)), Outcome::Done);
    let before = stays.size().expect("a size");
    for number in 0u32..3 {
        let part = [&b"farmem:part:"[..], &[7; 16], &number.to_le_bytes(), b"half"].concat();
        dies.put(&part, &block(500_000, 2)).expect("stored");
    }
    assert_eq!(stays.size().expect("a size"), before + 3);
    drop(dies);
    let begun = std::time::Instant::now();
    while stays.size().expect("a size") != before {
        assert!(begun.elapsed().as_secs() < 60, "its parts are still there");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(get(&mut stays, "whole").is_some_and(|found| found == block(3_000_000, 1)));
}
