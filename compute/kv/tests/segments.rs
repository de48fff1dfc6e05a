//! Collections in segments: whole or not there, under crashes at each verb, and no segment is left
//! that the key's value does not need.

mod world;

use farmem_kv::keyspace::{Change, Keyspace};
use farmem_kv::object::{Object, Type, Value};
use farmem_kv::rules::{Bug, Rules};
use farmem_kv::segments::Working;
use farmem_kv::shard::{Shard, Trouble};
use farmem_kv::task::{Io, Task};
use std::collections::VecDeque;
use std::rc::Rc;
use world::ops::{KEY, TINY};
use world::{Memory, Random, interleave};

/// Bytes of a value that one object has in the model. Segments have as many.
const LEAST: usize = 64;
const ITEMS: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    /// A value of as many items.
    Put(u8),
    PutShort(u8),
    /// A string.
    PutString,
    Push(u8, bool),
    Pop(bool),
    /// A change by a command that sees all of the value.
    Change(u8),
    Get,
    Delete,
    Expire,
}

fn item(byte: u8) -> Vec<u8> {
    [&8u32.to_le_bytes()[..], &[byte; 8]].concat()
}

fn list(byte: u8, items: usize) -> Value {
    Value { kind: Type::List, expiry: None, bytes: item(byte).repeat(items) }
}

/// The items, each of which is one byte again and again.
fn items(object: &Object) -> Option<Vec<u8>> {
    let sound = |item: &[u8]| {
        (item[..4] == 8u32.to_le_bytes() && item[4..].iter().all(|byte| *byte == item[4])).then_some(item[4])
    };
    object.value().chunks(12).map(|item| (item.len() == 12).then(|| sound(item))?).collect()
}

async fn read(store: &Keyspace, io: &Io) -> Result<Option<Object>, Trouble> {
    match store.find(io, KEY).await? {
        Some(found) => Ok(Some(store.entire(io, found).await?)),
        None => Ok(None),
    }
}

/// A GET sees nothing, a string, or a list.
fn is_sound(object: Option<&Object>) -> bool {
    object.is_none_or(|object| match object.kind() {
        Type::List => items(object).is_some_and(|items| !items.is_empty()),
        kind => kind == Type::String && object.value() == b"string",
    })
}

fn becomes(store: &Keyspace, there: Option<&Object>, op: Op) -> Result<Change<()>, Trouble> {
    let kind = there.map(Object::kind);
    if let (Some(head), Some(Type::Parts)) = (there, kind) {
        let shard = &store.shards[0];
        let mut value = Working::of(&store.segments, shard.reach.node, head).ok_or(Trouble::Corrupt)?;
        match op {
            Op::Push(byte, front) => value.push(front, &item(byte))?,
            Op::Pop(front) => {
                let len = value.count();
                value.take_out(if front { 0..1 } else { len - 1..len })?;
            }
            _ => unreachable!("it changes a part"),
        }
        return Ok(match value.outcome(head.expiry())? {
            None => Change::Keep(()),
            Some(None) => Change::Delete(()),
            Some(Some(value)) => Change::Put(value, ()),
        });
    }
    let Some(object) = there.filter(|object| object.kind() == Type::List) else { return Ok(Change::Keep(())) };
    let mut bytes = object.value().to_vec();
    match op {
        Op::Push(byte, true) => bytes = [item(byte), bytes].concat(),
        Op::Push(byte, false) => bytes.extend(item(byte)),
        Op::Pop(true) => _ = bytes.drain(..12),
        Op::Pop(false) => bytes.truncate(bytes.len() - 12),
        Op::Change(byte) => {
            let middle = bytes.len() / 24 * 12;
            bytes[middle + 4..middle + 12].fill(byte);
        }
        _ => {}
    }
    if bytes.is_empty() {
        return Ok(Change::Delete(()));
    }
    let expiry = if op == Op::Expire { Some(u64::MAX) } else { object.expiry() };
    Ok(Change::Put(Value { kind: Type::List, expiry, bytes }, ()))
}

async fn perform(store: &Keyspace, io: &Io, op: Op) -> Result<bool, Trouble> {
    match op {
        Op::Put(byte) => store.put(io, KEY, &list(byte, ITEMS)).await?,
        Op::PutShort(byte) => store.put(io, KEY, &list(byte, 2)).await?,
        Op::PutString => store.put(io, KEY, &Value::string("string")).await?,
        Op::Get => return Ok(is_sound(read(store, io).await?.as_ref())),
        Op::Delete => _ = store.remove(io, KEY).await?,
        Op::Push(..) | Op::Pop(_) => store.update_found(io, KEY, false, |_, there| becomes(store, there, op)).await?,
        Op::Change(_) | Op::Expire => store.update(io, KEY, |there| becomes(store, there, op)).await?,
    }
    Ok(true)
}

fn task(store: &Rc<Keyspace>, op: Op) -> Task<bool> {
    let store = Rc::clone(store);
    Task::new(|io| async move { perform(&store, &io, op).await.expect("sound") })
}

fn store(memory: &mut Memory, rules: Rules, seed: u64) -> (Rc<Shard>, Rc<Keyspace>) {
    let shard = memory.join(TINY, rules, 64 << 10);
    let store = Keyspace::new("segments", vec![Rc::clone(&shard)], false, 0, seed);
    store.segments.least.set(LEAST);
    (shard, Rc::new(store))
}

/// Lets what was retired come back.
async fn let_epochs_pass(shard: &Shard, io: &Io, from: u64) {
    for tick in 0..12 {
        shard.members.tick(io, from + tick).await.expect("alive");
    }
    // Places that have waited long enough are free now.
    shard.index.put(io, b"other", &Value::string("x")).await.expect("room");
    shard.space.trim(io).await;
}

/// Why a shard is not what its index says, if it is not. `of`: a front end that has all of its
/// memory.
fn wrong(memory: &mut Memory, of: &Rc<Shard>) -> Option<String> {
    let shard = Rc::clone(of);
    let count = memory.run(Task::new(|io| async move { shard.recovery.count(&io).await }));
    let used = of.space.used_places() as u64;
    if !count.problems.is_empty() {
        return Some(count.problems.join(", "));
    }
    (used != count.objects).then(|| format!("{used} places are in use by {} objects", count.objects))
}

/// Runs operations of as many front ends, of which one is dropped after some steps. Then all are
/// dead, another takes over what they held, and what is left is exactly what the key's value needs.
fn leaves_nothing(
    mut memory: Memory,
    rules: Rules,
    before: &[Op],
    ops: &[Op],
    seed: u64,
    kill: Option<(usize, usize)>,
) -> Option<String> {
    let fronts: Vec<_> = (0..ops.len() as u64).map(|n| store(&mut memory, rules, seed * 10 + n)).collect();
    for (n, &op) in before.iter().enumerate() {
        assert!(memory.run(task(&fronts[n % fronts.len()].1, op)));
    }
    let mut chooser = Random::new(seed);
    chooser.kill = kill;
    let tasks = ops.iter().zip(&fronts).map(|(&op, (_, store))| task(store, op)).collect();
    let ended = interleave(&mut memory, tasks, &mut chooser);
    if ended.iter().any(|ended| ended.outcome == Some(false)) {
        return Some("a torn value".into());
    }
    for (shard, _) in &fronts {
        let shard = Rc::clone(shard);
        memory.run(Task::new(|io| async move { shard.members.leave(&io).await }));
    }
    let (heir, other) = store(&mut memory, rules, seed * 10 + 9);
    let shard = Rc::clone(&heir);
    memory.run(Task::new(|io| async move {
        for look in 0..3 {
            shard.recovery.adopt(&io, look * 11_000).await.expect("sound");
        }
        let_epochs_pass(&shard, &io, 40_000).await;
    }));
    let found = wrong(&mut memory, &heir);
    if found.is_some() {
        return found;
    }
    // What was taken over is used as what is written anew.
    let shard = Rc::clone(&heir);
    let sound = memory.run(Task::new(|io| async move {
        let sound = is_sound(read(&other, &io).await.expect("sound").as_ref());
        for op in [Op::Push(9, true), Op::Change(8), Op::Pop(false)] {
            perform(&other, &io, op).await.expect("sound");
        }
        let_epochs_pass(&shard, &io, 50_000).await;
        sound
    }));
    if !sound {
        return Some("a torn value".into());
    }
    wrong(&mut memory, &heir)
}

const CASES: [(&[Op], [Op; 2]); 12] = [
    (&[], [Op::Put(1), Op::Put(2)]),
    (&[], [Op::Put(1), Op::Get]),
    (&[Op::Put(7)], [Op::Push(1, true), Op::Get]),
    (&[Op::Put(7)], [Op::Push(1, true), Op::Push(2, false)]),
    (&[Op::Put(7), Op::Push(3, false)], [Op::Push(1, false), Op::Pop(true)]),
    (&[Op::Put(7), Op::Push(3, true)], [Op::Push(1, true), Op::Delete]),
    (&[Op::Put(7), Op::Change(1)], [Op::Expire, Op::Push(2, true)]),
    (&[Op::Put(7)], [Op::Expire, Op::Delete]),
    (&[Op::Put(7)], [Op::Change(2), Op::Push(1, false)]),
    (&[Op::Put(7), Op::Pop(false)], [Op::PutShort(1), Op::Push(2, true)]),
    (&[Op::Put(7)], [Op::PutString, Op::Change(1)]),
    (&[Op::Put(7)], [Op::Put(8), Op::Pop(true)]),
];

#[test]
fn a_front_end_that_is_killed_at_any_verb_leaves_nothing() {
    for (before, ops) in CASES {
        for step in 0..40 {
            for victim in 0..2 {
                let wrong =
                    leaves_nothing(Memory::default(), Rules::SOUND, before, &ops, step as u64, Some((step, victim)));
                assert_eq!(wrong, None, "{before:?}, {ops:?}, {victim} killed at {step}");
            }
        }
        for step in 0..40 {
            let wrong = leaves_nothing(Memory::copied(), Rules::SOUND, before, &ops, step as u64, Some((step, 0)));
            assert_eq!(wrong, None, "two nodes, {before:?}, {ops:?}, killed at {step}");
        }
    }
}

#[test]
fn operations_in_any_order_leave_whole_values() {
    for seed in 0..600 {
        let (before, ops) = CASES[seed as usize % CASES.len()];
        let all = [ops[0], ops[1], Op::Push(5, true)];
        assert_eq!(leaves_nothing(Memory::default(), Rules::SOUND, before, &all, seed, None), None, "seed {seed}");
        assert_eq!(
            leaves_nothing(Memory::copied(), Rules::SOUND, before, &ops, seed, None),
            None,
            "seed {seed}, two nodes"
        );
    }
}

/// Changes of a front end that is alone, or of two in turns, which stay alive: what the value is,
/// and that no place is lost.
fn stays_what_it_is(rules: Rules, fronts: usize, seed: u64) -> Option<String> {
    let mut memory = Memory::default();
    let fronts: Vec<_> = (0..fronts as u64).map(|n| store(&mut memory, rules, seed * 10 + n)).collect();
    let mut random = farmem_protocol::random::Random::new(seed);
    let mut model: Option<VecDeque<u8>> = None;
    for step in 0..120u64 {
        let byte = random.index(250) as u8;
        let op = match random.index(12) {
            0 => Op::Put(byte),
            1 if random.index(4) == 0 => Op::Delete,
            2 => Op::Expire,
            3..=4 => Op::Change(byte),
            5..=7 => Op::Pop(byte.is_multiple_of(2)),
            _ => Op::Push(byte, byte.is_multiple_of(3)),
        };
        match (op, &mut model) {
            (Op::Put(byte), _) => model = Some([byte; ITEMS].into()),
            (Op::Delete, _) => model = None,
            (Op::Push(byte, true), Some(model)) => model.push_front(byte),
            (Op::Push(byte, false), Some(model)) => model.push_back(byte),
            (Op::Pop(true), Some(model)) => _ = model.pop_front(),
            (Op::Pop(false), Some(model)) => _ = model.pop_back(),
            (Op::Change(byte), Some(model)) => {
                let middle = model.len() / 2;
                model[middle] = byte;
            }
            _ => {}
        }
        model = model.filter(|model| !model.is_empty());
        let (one, other) = (&fronts[random.index(fronts.len())], &fronts[random.index(fronts.len())]);
        let (shard, writer, reader) = (Rc::clone(&one.0), Rc::clone(&one.1), Rc::clone(&other.1));
        let all: Vec<Rc<Shard>> = fronts.iter().map(|(shard, _)| Rc::clone(shard)).collect();
        let seen = memory.run(Task::new(|io| async move {
            perform(&writer, &io, op).await?;
            for shard in &all {
                shard.members.tick(&io, 1000 + step).await?;
            }
            // It may take the place of what has gone.
            shard.index.put(&io, format!("other{}", step % 4).as_bytes(), &Value::string([7; 70])).await?;
            read(&reader, &io).await
        }));
        let shown = match &seen {
            Ok(object) => object.as_ref().map(|object| items(object).unwrap_or_default()),
            Err(trouble) => return Some(format!("step {step}, {op:?}: {trouble}")),
        };
        if shown != model.as_ref().map(|model| model.iter().copied().collect()) {
            return Some(format!("step {step}, {op:?}: {shown:?} for {model:?}"));
        }
    }
    let all: Vec<Rc<Shard>> = fronts.iter().map(|(shard, _)| Rc::clone(shard)).collect();
    memory.run(Task::new(|io| async move {
        // One that is alone looks for nothing.
        for shard in all.iter().filter(|_| all.len() > 1) {
            shard.recovery.scavenge(&io).await;
        }
        for tick in 0..16 {
            for shard in &all {
                shard.members.tick(&io, 9000 + tick).await.expect("alive");
            }
        }
        for (n, shard) in all.iter().enumerate() {
            shard.index.put(&io, format!("last{n}").as_bytes(), &Value::string("x")).await.expect("room");
            let epoch = shard.space.epoch();
            shard.space.reap(epoch);
        }
    }));
    let shard = Rc::clone(&fronts[0].0);
    let count = memory.run(Task::new(|io| async move { shard.recovery.count(&io).await }));
    let used: u64 = fronts.iter().map(|(shard, _)| shard.space.used_places() as u64).sum();
    let wrong = count.problems.first().cloned();
    wrong.or_else(|| (used != count.objects).then(|| format!("{used} places are in use by {} objects", count.objects)))
}

#[test]
fn a_value_is_what_was_done_to_it_and_no_place_is_lost() {
    for seed in 0..40 {
        assert_eq!(stays_what_it_is(Rules::SOUND, 1, seed), None, "seed {seed}");
        assert_eq!(stays_what_it_is(Rules::SOUND, 2, seed), None, "seed {seed}, two front ends");
    }
}

#[test]
fn mistakes_are_noticed() {
    for bug in [Bug::KeepDropped, Bug::RetireShared] {
        let noticed = (0..40).any(|seed| stays_what_it_is(Rules::without(bug), 1, seed).is_some());
        assert!(noticed, "{bug:?}");
    }
    for bug in [Bug::AdoptSegments, Bug::JudgeSegmentsBySlots] {
        let killed = |(before, ops): &(&[Op], [Op; 2])| {
            (0..40).any(|step| {
                leaves_nothing(Memory::default(), Rules::without(bug), before, ops, step, Some((step as usize, 0)))
                    .is_some()
            })
        };
        assert!(CASES.iter().any(killed), "{bug:?}");
    }
}
