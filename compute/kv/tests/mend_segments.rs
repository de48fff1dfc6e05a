//! A collection in segments at two nodes. One node ends while front ends change the collection, or a
//! new node is filled beside the changes. Seeds draw the orders; in some a front end dies. A change
//! that was answered must be there, any other once at most, and each place in use must be needed.

mod world;

use farmem_kv::keyspace::Keyspace;
use farmem_kv::object::{Type, Value};
use farmem_kv::rules::{Bug, Rules};
use farmem_kv::shard::copies::Mode;
use farmem_kv::shard::{Shard, Trouble};
use farmem_kv::task::{Io, Task};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use world::fill::{Dying, begin, finisher, part, tick, ticks};
use world::ops::KEY;
use world::parts::{Op, is_sound, item, items, let_epochs_pass, perform, read, store, wrong};
use world::{Memory, Random, interleave};

/// Front ends. Each changes the value a few times.
const FRONTS: usize = 3;
/// The items of the value before: all differ.
const FIRST: std::ops::Range<u8> = 100..124;

type Front = (Rc<Shard>, Rc<Keyspace>);
/// The changes of a front end in their order, and whether each was answered.
type Log = Rc<RefCell<Vec<(Op, bool)>>>;

/// Makes changes one after the other.
fn changes(store: &Rc<Keyspace>, ops: Vec<Op>, log: &Log) -> Task<Result<(), Trouble>> {
    let (store, log) = (Rc::clone(store), Rc::clone(log));
    Task::new(|io| async move {
        for op in ops {
            log.borrow_mut().push((op, false));
            match perform(&store, &io, op).await {
                Ok(sound) => assert!(sound, "a torn value"),
                // It may have taken effect.
                Err(Trouble::Unsettled) => continue,
                Err(trouble) => return Err(trouble),
            }
            if let Some(last) = log.borrow_mut().last_mut() {
                last.1 = true;
            }
        }
        Ok(())
    })
}

/// The changes of a front end. `exact`: it pushes items of its own at the back, and takes items from the
/// front, so that the value tells what took effect.
fn drawn(numbers: &mut farmem_protocol::random::Random, front: usize, exact: bool) -> Vec<Op> {
    let mut own = 30 * front as u8;
    let mut next = || {
        own += 1;
        own
    };
    let mut op = |numbers: &mut farmem_protocol::random::Random| match numbers.index(if exact { 5 } else { 12 }) {
        0..=2 => Op::Push(next(), false),
        3 => Op::Pop(true),
        4 => Op::Get,
        5..=6 => Op::Change(next()),
        7 => Op::Expire,
        8 => Op::Put(next()),
        9 => Op::PutShort(next()),
        10 => Op::Push(next(), true),
        _ => Op::Delete,
    };
    (0..1 + numbers.index(3)).map(|_| op(numbers)).collect()
}

/// Whether the value is what the changes have left.
fn judged(value: &[u8], logs: &[Log]) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{what}: {value:?} after {logs:?}"));
    let from = value.iter().position(|byte| !FIRST.contains(byte)).unwrap_or(value.len());
    let (first, pushed) = value.split_at(from);
    let taken = FIRST.len() - first.len().min(FIRST.len());
    if first.iter().copied().ne(FIRST.skip(taken)) {
        return wrong("the first items");
    }
    let all = || logs.iter().flat_map(|log| log.borrow().clone());
    let pops = |answered: bool| all().filter(|(op, ended)| *op == Op::Pop(true) && (*ended || !answered)).count();
    if !(pops(true)..=pops(false)).contains(&taken) {
        return wrong("items taken");
    }
    for log in logs {
        let own: Vec<(u8, bool)> = log
            .borrow()
            .iter()
            .filter_map(|(op, ended)| match op {
                Op::Push(byte, _) => Some((*byte, *ended)),
                _ => None,
            })
            .collect();
        let mine: Vec<u8> = pushed.iter().copied().filter(|byte| own.iter().any(|(own, _)| own == byte)).collect();
        let expected = own.iter().filter(|(byte, ended)| *ended || mine.contains(byte)).map(|(byte, _)| *byte);
        if mine.iter().copied().ne(expected) {
            return wrong("items pushed");
        }
    }
    let known = |byte: &u8| all().any(|(op, _)| op == Op::Push(*byte, false));
    if pushed.iter().all(known) { Ok(()) } else { wrong("an item of nobody") }
}

struct Scene {
    memory: Memory,
    fronts: Vec<Front>,
    ops: Vec<Vec<Op>>,
    /// Of each front end, and of what went before.
    logs: Vec<Log>,
    exact: bool,
    chooser: Random,
}

fn scene(rules: Rules, seed: u64) -> Scene {
    let (mut memory, mut chooser) = (Memory::copied(), Random::new(seed));
    let exact = seed % 3 != 2;
    let ops = (0..FRONTS).map(|front| drawn(&mut chooser.numbers, front, exact)).collect();
    let fronts: Vec<Front> = (0..FRONTS as u64).map(|n| store(&mut memory, rules, seed * 10 + n)).collect();
    let logs: Vec<Log> = (0..=FRONTS).map(|_| Log::default()).collect();
    let first = Value { kind: Type::List, expiry: None, bytes: FIRST.flat_map(item).collect() };
    let one = Rc::clone(&fronts[0].1);
    memory.run(Task::new(|io| async move { one.put(&io, KEY, &first).await })).expect("room");
    // So that each front end has segments.
    for n in 0..chooser.numbers.index(12) {
        let push = changes(&fronts[n % FRONTS].1, vec![Op::Push(200 + n as u8, false)], &logs[FRONTS]);
        memory.run(push).expect("sound");
    }
    Scene { memory, fronts, ops, logs, exact, chooser }
}

/// The value, if all front ends see the same sound one.
fn seen(memory: &mut Memory, fronts: &[&Front]) -> Result<Option<Vec<u8>>, String> {
    let mut all = Vec::new();
    for (_, store) in fronts {
        let store = Rc::clone(store);
        let found = memory.run(Task::new(|io| async move { read(&store, &io).await }));
        let found = found.map_err(|trouble| format!("a read: {trouble}"))?;
        if !is_sound(found.as_ref()) {
            return Err("a torn value".into());
        }
        all.push(found.map(|object| items(&object).unwrap_or_default()));
    }
    if all.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(format!("front ends differ: {all:?}"));
    }
    Ok(all.pop().flatten())
}

async fn takes_over(shard: &Shard, io: &Io) {
    // A front end counts as dead when its heartbeat has stood still from one look to the next ones, and
    // this one's clock has not jumped.
    for look in 0..30 {
        let now_ms = look * 1_500;
        for tick in 0..4 {
            shard.members.tick(io, now_ms + tick).await.expect("alive");
        }
        shard.recovery.adopt(io, now_ms + 4).await.expect("sound");
    }
    let_epochs_pass(shard, io, 90_000).await;
}

/// The survivor of two nodes has all of the value, for those that are there and for one that comes.
/// That one takes over what all others have left: each place in use is one that the value needs.
fn stands(
    memory: &mut Memory,
    (fronts, gone): (&[Front], Option<usize>),
    seed: u64,
    before: &Option<Vec<u8>>,
) -> Result<(), String> {
    let left: Vec<&Front> =
        fronts.iter().enumerate().filter(|(n, _)| Some(*n) != gone).map(|(_, front)| front).collect();
    let shards: Vec<Rc<Shard>> = left.iter().map(|(shard, _)| Rc::clone(shard)).collect();
    tick(memory, &shards);
    let fresh = store(memory, Rules::SOUND, seed * 10 + 9);
    let now = seen(memory, &[&left[..], &[&fresh]].concat())?;
    if now != *before {
        return Err(format!("{before:?} has become {now:?}"));
    }
    for shard in shards {
        memory.run(Task::new(|io| async move { shard.members.leave(&io).await }));
    }
    let shard = Rc::clone(&fresh.0);
    memory.run(Task::new(|io| async move { takes_over(&shard, &io).await }));
    if let Some(wrong) = wrong(memory, &fresh.0) {
        return Err(wrong);
    }
    let now = seen(memory, &[&fresh])?;
    if now != *before { Err(format!("{before:?} has become {now:?} at the end")) } else { Ok(()) }
}

/// A node is filled beside changes. Whether that came to its end.
fn filled(rules: Rules, seed: u64, dies: bool) -> Result<bool, String> {
    let Scene { mut memory, fronts, ops, logs, exact, mut chooser } = scene(rules, seed);
    let ended = chooser.numbers.below(2) as u8;
    let dies = dies.then(|| (chooser.numbers.index(400), chooser.numbers.index(FRONTS)));
    let shards: Vec<Rc<Shard>> = fronts.iter().map(|(shard, _)| Rc::clone(shard)).collect();
    begin(&mut memory, &shards, ended);
    let dead = Rc::new(Cell::new(false));
    let each = fronts.iter().zip(&ops).zip(&logs);
    let mut tasks: Vec<_> = each.map(|(((_, store), ops), log)| changes(store, ops.clone(), log)).collect();
    tasks.extend(shards.iter().map(|shard| part(shard, Ok(()))));
    tasks.extend(shards.iter().map(|shard| ticks(shard, &dead, Ok(()))));
    tasks.extend(shards.iter().map(|shard| finisher(shard, Ok(()))));
    let mut order = Dying { chooser, dies, dead, steps: 0, fronts: FRONTS };
    let all = interleave(&mut memory, tasks, &mut order);
    let gone = dies.filter(|(step, _)| order.steps > *step).map(|(_, front)| front);
    for (n, one) in all.iter().enumerate().filter(|(n, _)| Some(n % FRONTS) != gone) {
        if one.outcome != Some(Ok(())) {
            return Err(format!("task {n} ended with {:?}", one.outcome));
        }
    }
    let left: Vec<&Front> =
        fronts.iter().enumerate().filter(|(n, _)| Some(*n) != gone).map(|(_, front)| front).collect();
    let value = seen(&mut memory, &left)?;
    if exact {
        judged(value.as_deref().unwrap_or_default(), &logs)?;
    }
    let both = left.iter().all(|(shard, _)| matches!(shard.reach.copies.mode(), Mode::Both(_)));
    if both {
        // The node that had the only copy.
        memory.ends = Some((1 - ended, memory.verbs));
        stands(&mut memory, (&fronts, gone), seed, &value)?;
    }
    Ok(both)
}

/// A node ends after so many verbs of changes.
fn ends(rules: Rules, seed: u64, end: (u8, u64), dies: bool) -> Result<(), String> {
    let Scene { mut memory, fronts, ops, logs, exact, mut chooser } = scene(rules, seed);
    let dies = dies.then(|| (chooser.numbers.index(60), chooser.numbers.index(FRONTS)));
    memory.ends = Some((end.0, memory.verbs + end.1));
    let each = fronts.iter().zip(&ops).zip(&logs);
    let tasks: Vec<_> = each.map(|(((_, store), ops), log)| changes(store, ops.clone(), log)).collect();
    let mut order = Dying { chooser, dies, dead: Rc::default(), steps: 0, fronts: FRONTS };
    let all = interleave(&mut memory, tasks, &mut order);
    // A node that was to end later ends now.
    memory.ends = memory.ends.map(|(node, after)| (node, after.min(memory.verbs)));
    let gone = dies.filter(|(step, _)| order.steps > *step).map(|(_, front)| front);
    for (n, one) in all.iter().enumerate().filter(|(n, _)| Some(*n) != gone) {
        if one.outcome != Some(Ok(())) {
            return Err(format!("front end {n} ended with {:?}", one.outcome));
        }
    }
    let left: Vec<&Front> =
        fronts.iter().enumerate().filter(|(n, _)| Some(*n) != gone).map(|(_, front)| front).collect();
    let value = seen(&mut memory, &left)?;
    if exact {
        judged(value.as_deref().unwrap_or_default(), &logs)?;
    }
    stands(&mut memory, (&fronts, gone), seed, &value)
}

fn told<T>(seed: u64, outcome: Result<T, String>) -> Result<T, String> {
    outcome.map_err(|wrong| format!("seed {seed}: {wrong}"))
}

#[test]
fn a_new_node_has_the_segments_that_the_other_has() {
    // In the orders of some seeds a place is used again while its old bytes are copied.
    for seed in 0..400 {
        assert_eq!(told(seed, filled(Rules::SOUND, seed, false)), Ok(true));
    }
}

#[test]
fn a_front_end_that_dies_beside_a_filling_takes_no_segments_along() {
    let ended =
        (0..100).map(|seed| told(seed, filled(Rules::SOUND, seed, true))).collect::<Result<Vec<bool>, String>>();
    let ended = ended.expect("sound").into_iter().filter(|both| *both).count();
    assert!(ended > 50, "{ended}");
}

/// At each verb, of one order each.
fn every_end(rules: Rules, seeds: std::ops::Range<u64>, dies: bool) -> Result<(), String> {
    for seed in seeds {
        for node in 0..2 {
            // Each seed at some verbs, and each verb by some seeds.
            for after in (seed % 5..130).step_by(5) {
                told(seed, ends(rules, seed, (node, after), dies))
                    .map_err(|wrong| format!("node {node} after {after}, {wrong}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_node_that_ends_at_any_verb_takes_no_segments_along() {
    assert_eq!(every_end(Rules::SOUND, 0..30, false), Ok(()));
    assert_eq!(every_end(Rules::SOUND, 30..50, true), Ok(()));
}

#[test]
fn mistakes_are_noticed() {
    let fillings = |bug, die| (0..300).any(|seed| filled(Rules::without(bug), seed, die).is_err());
    let endings = |bug| every_end(Rules::without(bug), 0..30, false).is_err();
    type Look<'a> = &'a dyn Fn(Bug) -> bool;
    let [fills, dies, end]: [Look<'_>; 3] = [&|bug| fillings(bug, false), &|bug| fillings(bug, true), &endings];
    for (bug, look) in [
        (Bug::FillWithoutSegments, fills),
        (Bug::FillSoonFree, fills),
        (Bug::FillUnmirrored, fills),
        (Bug::FillUndrained, fills),
        (Bug::FillUnpaused, fills),
        (Bug::FillWithoutTheDead, dies),
        (Bug::CopyNothing, end),
        (Bug::AnswerEarly, end),
        (Bug::RetireShared, fills),
    ] {
        let noticed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| look(bug)));
        assert!(noticed.unwrap_or(true), "{bug:?} went unnoticed");
    }
}
