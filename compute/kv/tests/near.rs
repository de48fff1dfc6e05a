//! The lease by which a front end answers from its near cache, and three rules on which reads and blind writes rest. Each
//! rule is also broken, and must be missed.

mod world;

use farmem_kv::keyspace::Keyspace;
use farmem_kv::layout::{Geometry, Hash, MAX_DEPTH, Slot};
use farmem_kv::object::Value;
use farmem_kv::rules::{Bug, Rules};
use farmem_kv::shard::index::Removed;
use farmem_kv::shard::{Shard, Trouble};
use farmem_kv::task::{Answer, Ask, Io, Task, Verb};
use std::future::Future;
use std::rc::Rc;
use world::Memory;

const TINY: Geometry = Geometry { buckets: 2 };
const LOCAL: u64 = 64 << 10;

fn run<T, F: Future<Output = T> + 'static>(
    memory: &mut Memory,
    shard: &Rc<Shard>,
    operation: impl FnOnce(Rc<Shard>, Io) -> F,
) -> T {
    let shard = Rc::clone(shard);
    memory.run(Task::new(|io| operation(shard, io)))
}

fn put(memory: &mut Memory, shard: &Rc<Shard>, key: &[u8], value: &str) {
    let (key, value) = (key.to_vec(), Value::string(value));
    run(memory, shard, |shard, io| async move { shard.index.put(&io, &key, &value).await }).expect("room");
}

fn get(memory: &mut Memory, shard: &Rc<Shard>, key: &[u8]) -> Option<String> {
    let key = key.to_vec();
    let found = run(memory, shard, |shard, io| async move { shard.index.find(&io, &key).await }).expect("sound");
    found.map(|found| String::from_utf8_lossy(found.object.value()).into_owned())
}

fn remove(memory: &mut Memory, shard: &Rc<Shard>, key: &[u8]) -> bool {
    let key = key.to_vec();
    let removed = run(memory, shard, |shard, io| async move { shard.index.remove(&io, &key).await }).expect("sound");
    !matches!(removed, Removed::Absent)
}

/// A tick at a time, which renews the lease if nobody else is there.
fn tick(memory: &mut Memory, shard: &Rc<Shard>, now_ms: u64) {
    shard.near.lease.now_ms.set(now_ms);
    let ticked = run(memory, shard, |shard, io| async move { shard.members.tick(&io, now_ms).await }).expect("alive");
    if !ticked.company {
        shard.near.lease.renew(now_ms, now_ms);
    }
}

/// Does what the task asks for once; whether it has ended.
fn step<T>(memory: &mut Memory, task: &mut Task<T>) -> Option<T> {
    let ended = task.step();
    for (id, ask) in task.asks() {
        let answers = match ask {
            Ask::Verbs(verbs) => verbs.iter().map(|verb| memory.execute(verb)).collect(),
            Ask::Pause(_) => Vec::new(),
        };
        task.answer(id, answers);
    }
    ended
}

/// One front end is alone; another joins, changes a key, and leaves. What the first reads, each time.
fn company(rules: Rules) -> Vec<Option<String>> {
    let mut memory = Memory::default();
    let one = memory.join(TINY, rules, LOCAL);
    tick(&mut memory, &one, 0);
    put(&mut memory, &one, b"key", "old");
    let mut read = vec![get(&mut memory, &one, b"key")];

    let other = memory.join(TINY, rules, LOCAL);
    let joins = Rc::clone(&other);
    let mut awaits: Task<Result<(), Trouble>> = Task::new(|io| async move { joins.members.await_others(&io).await });
    let mut awaited = (0..10).any(|_| step(&mut memory, &mut awaits).is_some());
    if !awaited {
        // It is alone as far as it knows: no verb.
        let before = memory.verbs;
        read.push(get(&mut memory, &one, b"key"));
        assert_eq!(memory.verbs, before);
        tick(&mut memory, &one, 500);
        assert!((0..3).all(|_| step(&mut memory, &mut awaits).is_none()), "one sign of life is not enough");
        tick(&mut memory, &one, 1000);
        awaited = (0..4).any(|_| step(&mut memory, &mut awaits).is_some());
    }
    assert!(awaited, "it waits for nothing");
    put(&mut memory, &other, b"key", "new");
    read.push(get(&mut memory, &one, b"key"));
    put(&mut memory, &other, b"key", "newer");
    run(&mut memory, &other, |shard, io| async move { shard.members.leave(&io).await });
    tick(&mut memory, &one, 1500);
    read.push(get(&mut memory, &one, b"key"));
    read
}

#[test]
fn who_is_alone_reads_what_is_there_when_others_come_and_go() {
    let read: Vec<String> = company(Rules::SOUND).into_iter().flatten().collect();
    assert_eq!(read, ["old", "old", "new", "newer"]);
    for bug in [Bug::JoinAtOnce, Bug::TrustOldEra] {
        let read: Vec<String> = company(Rules::without(bug)).into_iter().flatten().collect();
        assert!(read[read.len() - 2..] != ["new", "newer"], "{bug:?} went unnoticed");
    }
}

#[test]
fn a_newcomer_waits_no_longer_than_a_lease() {
    let mut memory = Memory::default();
    let silent = memory.join(TINY, Rules::SOUND, LOCAL);
    tick(&mut memory, &silent, 0);
    let other = memory.join(TINY, Rules::SOUND, LOCAL);
    let mut awaits = Task::new(|io| async move { other.members.await_others(&io).await });
    let mut pauses = 0;
    while awaits.step().is_none() {
        for (id, ask) in awaits.asks() {
            let answers = match ask {
                Ask::Verbs(verbs) => verbs.iter().map(|verb| memory.execute(verb)).collect(),
                Ask::Pause(ms) => {
                    pauses += u64::from(ms);
                    Vec::new()
                }
            };
            awaits.answer(id, answers);
        }
    }
    assert!((farmem_kv::shard::member::STALE_MS..4000).contains(&pauses), "{pauses} ms");
}

/// A key with the fingerprint, the table and the first bucket of another.
fn double(key: &[u8]) -> Vec<u8> {
    let mark = |hash: Hash| (hash.fingerprint(), hash.path() >> MAX_DEPTH, hash.buckets(2));
    let wanted = mark(Hash::of(key));
    (0..).map(|n: u32| format!("d{n}").into_bytes()).find(|key| mark(Hash::of(key)) == wanted).expect("some")
}

#[test]
fn a_key_is_compared_in_full() {
    let other = double(b"key");
    let read = |rules| {
        let mut memory = Memory::default();
        let [one, cold] = [(); 2].map(|()| memory.join(TINY, rules, LOCAL));
        put(&mut memory, &one, b"key", "its own");
        get(&mut memory, &cold, &other)
    };
    assert_eq!(read(Rules::SOUND), None);
    assert!(read(Rules::without(Bug::SkipKey)).is_some(), "the mistake went unnoticed");
}

#[test]
fn a_place_is_not_used_again_while_somebody_may_read_it() {
    let read = |rules| {
        let mut memory = Memory::default();
        let [one, cold] = [(); 2].map(|()| memory.join(TINY, rules, LOCAL));
        put(&mut memory, &one, b"key", "old");
        // It has seen the slot when the object's place changes hands.
        let mut reads = Task::new(|io| async move { cold.index.find(&io, b"key").await });
        assert!(step(&mut memory, &mut reads).is_none());
        put(&mut memory, &one, b"key", "new");
        put(&mut memory, &one, b"abc", "not");
        let found = loop {
            if let Some(found) = step(&mut memory, &mut reads) {
                break found;
            }
        };
        found.expect("sound").map(|found| String::from_utf8_lossy(found.object.value()).into_owned())
    };
    assert!(matches!(read(Rules::SOUND).as_deref(), Some("old" | "new")));
    assert_eq!(read(Rules::without(Bug::ReuseAtOnce)), None, "the mistake went unnoticed");
}

/// A front end remembers a slot for so long that its version comes round, for another key in the same place.
fn long_ago(rules: Rules) -> (Option<String>, Option<String>) {
    let (mut memory, other) = (Memory::default(), double(b"key"));
    let [owner, old] = [(); 2].map(|()| memory.join(TINY, rules, LOCAL));
    let mut now_ms = 0;
    put(&mut memory, &owner, b"key", "key's");
    let round = owner.space.epoch() + 4096;
    assert!(get(&mut memory, &old, b"key").is_some());
    remove(&mut memory, &owner, b"key");
    while owner.space.epoch() < round {
        if owner.space.retired_bytes() == 0 {
            // The epoch goes on when something waits for it. This is of another size.
            put(&mut memory, &owner, b"large", &"x".repeat(600));
            remove(&mut memory, &owner, b"large");
        }
        now_ms += 1;
        [&old, &owner].iter().for_each(|front| tick(&mut memory, front, now_ms));
    }
    put(&mut memory, &owner, &other, "other's");
    put(&mut memory, &old, b"key", "key's");
    (get(&mut memory, &owner, &other), get(&mut memory, &owner, b"key"))
}

#[test]
fn a_slot_that_was_seen_long_ago_is_not_replaced_unseen() {
    assert_eq!(long_ago(Rules::SOUND), (Some("other's".into()), Some("key's".into())));
    assert_ne!(long_ago(Rules::without(Bug::BlindForever)).0.as_deref(), Some("other's"), "it went unnoticed");
}

/// The piece of a large value goes back to the node, and is taken again for the key's next value: by the same
/// front end, or by another. The slot looks different to a front end that has cached the old value.
#[test]
fn a_piece_that_is_taken_again_does_not_bring_back_an_old_value() {
    for by in [0, 1] {
        let mut memory = Memory::default();
        let [owner, other, reads] = [(); 3].map(|()| memory.join(TINY, Rules::SOUND, 1 << 20));
        let [before, after] = ["a", "b"].map(|letter| letter.repeat(50_000));
        put(&mut memory, &owner, b"key", &before);
        assert_eq!(get(&mut memory, &reads, b"key").as_ref(), Some(&before));
        remove(&mut memory, &owner, b"key");
        for now_ms in 0..20 {
            [&owner, &other, &reads].into_iter().for_each(|front| tick(&mut memory, front, now_ms));
        }
        run(&mut memory, &owner, |shard, io| async move { shard.space.trim(&io).await });
        assert_eq!(owner.space.bytes(), 0);
        put(&mut memory, [&owner, &other][by], b"key", &after);
        assert_eq!(get(&mut memory, &reads, b"key").as_ref(), Some(&after), "by {by}");
    }
}

/// Carries a task out; time passes when it pauses.
fn run_in_time<T>(memory: &mut Memory, shard: &Rc<Shard>, now_ms: &mut u64, mut task: Task<T>) -> T {
    loop {
        if let Some(outcome) = task.step() {
            return outcome;
        }
        for (id, ask) in task.asks() {
            let answers = match ask {
                Ask::Verbs(verbs) => verbs.iter().map(|verb| memory.execute(verb)).collect(),
                Ask::Pause(ms) => {
                    *now_ms += u64::from(ms);
                    tick(memory, shard, *now_ms);
                    run(memory, shard, |shard, io| async move { shard.space.trim(&io).await });
                    Vec::new()
                }
            };
            task.answer(id, answers);
        }
    }
}

#[test]
fn beyond_its_limit_a_store_evicts_what_was_idle() {
    const LIMIT: u64 = 128 << 10;
    let mut memory = Memory::default();
    let shard = memory.join(Geometry::STORE, Rules::SOUND, 1 << 20);
    shard.space.limit.set(LIMIT);
    let store = Rc::new(Keyspace::new("small", vec![Rc::clone(&shard)], true, 0, 7));
    let (mut now_ms, mut hot) = (0, 0);
    for n in 0..3000u64 {
        now_ms += 100;
        store.set_now_ms(1_000_000 + now_ms);
        let (puts, key) = (Rc::clone(&store), format!("key{n}"));
        // Sizes of two classes: what one has freed is no use to the other, unless pieces go back.
        let value = Value::string(vec![7u8; if n / 500 % 2 == 0 { 200 } else { 1500 }]);
        let task = Task::new(|io| async move { puts.put(&io, key.as_bytes(), &value).await });
        run_in_time(&mut memory, &shard, &mut now_ms, task).expect("room is made");
        let gets = Rc::clone(&store);
        let got = Task::new(|io| async move { gets.get(&io, b"key3").await.map(|found| found.is_some()) });
        hot += u64::from(n >= 3 && run_in_time(&mut memory, &shard, &mut now_ms, got).expect("sound"));
        assert!(shard.space.bytes() <= LIMIT, "{n}: {} bytes", shard.space.bytes());
    }
    assert!(store.figures.evicted.get() > 2000, "{} evicted", store.figures.evicted.get());
    assert!(hot > 2900, "the key that is used was there {hot} times of 2997");
    let count = run(&mut memory, &shard, |shard, io| async move { shard.recovery.count(&io).await });
    assert_eq!((count.problems, count.pending), (Vec::new(), 0));
}

#[test]
fn a_store_that_does_not_evict_refuses_and_goes_on() {
    let mut memory = Memory::default();
    let shard = memory.join(Geometry::STORE, Rules::SOUND, 1 << 20);
    shard.space.limit.set(64 << 10);
    let store = Rc::new(Keyspace::new("small", vec![Rc::clone(&shard)], false, 0, 7));
    let mut now_ms = 0;
    let mut stored = 0;
    for n in 0..600 {
        let (puts, key) = (Rc::clone(&store), format!("key{n}"));
        let task = Task::new(|io| async move { puts.put(&io, key.as_bytes(), &Value::string(vec![7u8; 200])).await });
        match run_in_time(&mut memory, &shard, &mut now_ms, task) {
            Ok(()) => stored += 1,
            Err(trouble) => assert_eq!(trouble, Trouble::Full),
        }
    }
    assert!((100..400).contains(&stored), "{stored}");
    assert!(get(&mut memory, &shard, b"key0").is_some() && remove(&mut memory, &shard, b"key0"));
}

/// Puts a key that ends at 5 s, reads it, sweeps it out at 6 s, and reads it after the clock went
/// back. `between`: a read that began before the sweep ends after it.
fn swept(rules: Rules, between: bool) -> Option<String> {
    let mut memory = Memory::default();
    let one = memory.join(TINY, rules, LOCAL);
    tick(&mut memory, &one, 0);
    one.space.now_ms.set(1000);
    let value = Value { expiry: Some(5000), ..Value::string("ended") };
    run(&mut memory, &one, |shard, io| async move { shard.index.put(&io, b"key", &value).await }).expect("room");
    // Others push it out of the cache.
    (0..if between { 10_000 } else { 0 }).for_each(|n| put(&mut memory, &one, format!("other{n}").as_bytes(), "kept"));
    let reads = Rc::clone(&one);
    let mut late = Task::new(|io| async move { reads.index.find(&io, b"key").await.map(drop) });
    if between {
        // Its READ of the buckets and that of the object are carried out, and it has not seen the second.
        assert!(step(&mut memory, &mut late).is_none() && step(&mut memory, &mut late).is_none());
    } else {
        assert!(get(&mut memory, &one, b"key").is_some());
    }
    one.space.now_ms.set(6000);
    let swept = run(&mut memory, &one, |shard, io| async move { shard.recovery.sweep(&io, 10).await });
    assert_eq!(swept.0, 1);
    if between {
        assert!(step(&mut memory, &mut late).is_some());
    }
    one.space.now_ms.set(4000);
    get(&mut memory, &one, b"key")
}

#[test]
fn a_key_that_was_swept_out_stays_out_when_the_clock_goes_back() {
    for between in [false, true] {
        assert_eq!(swept(Rules::SOUND, between), None);
        assert!(swept(Rules::without(Bug::SweepUntold), between).is_some(), "the mistake went unnoticed");
    }
}

/// An eviction whose first CAS is carried out, and whose answer is lost. `used`: the slot is used and emptied again
/// before the CAS is given once more.
fn evicted_without_an_answer(used: bool) {
    let mut memory = Memory::default();
    let one = memory.join(TINY, Rules::SOUND, LOCAL);
    tick(&mut memory, &one, 0);
    put(&mut memory, &one, b"key", "evicted");
    assert!(get(&mut memory, &one, b"key").is_some());
    let evicts = Rc::clone(&one);
    let mut evicts = Task::new(|io| async move { evicts.index.discard(&io, b"key", None).await });
    let ended = loop {
        if let Some(ended) = evicts.step() {
            break ended;
        }
        for (id, ask) in evicts.asks() {
            let Ask::Verbs(verbs) = ask else { panic!("a pause") };
            let answers = verbs.iter().map(|verb| match (verb, memory.execute(verb)) {
                (&Verb::Cas { at, old, new }, Answer::Word(found)) if found == old => {
                    if used {
                        memory.execute(&Verb::Cas { at, old: new, new: Slot::emptied(9, 9).0 });
                    }
                    Answer::Unknown
                }
                (_, answer) => answer,
            });
            evicts.answer(id, answers.collect());
        }
    };
    // The word that the eviction leaves is its own: as long as it is there, the eviction knows of itself.
    assert_eq!(ended, if used { Err(Trouble::Unsettled) } else { Ok(true) });
    assert_eq!(get(&mut memory, &one, b"key"), None);
}

#[test]
fn a_key_whose_eviction_got_no_answer_is_not_read_from_the_cache() {
    [false, true].into_iter().for_each(evicted_without_an_answer);
}
