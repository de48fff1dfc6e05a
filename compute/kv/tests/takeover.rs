//! A front end of a store in two copies dies in an operation, at each verb. Of its last batch each
//! node has carried out as much as it came to. Another front end takes over its memory and uses it
//! again. Then every key has a value that it may have, whichever node is left.

mod world;

use farmem_kv::layout::{Hash, MAX_DEPTH, NODE_SHIFT};
use farmem_kv::rules::{Bug, Rules};
use farmem_kv::shard::Shard;
use farmem_kv::task::{Ask, Task, Verb};
use std::collections::BTreeSet;
use std::rc::Rc;
use world::ops::{KEY, Op, TINY, number, sibling, task};
use world::{Memory, Running};

/// When a front end dies: in which batch, and how many of its verbs each node has carried out.
#[derive(Clone, Copy, Debug)]
struct Death {
    batch: usize,
    carried: [usize; 2],
}

/// The node of a verb that a front end's own batch may have.
fn node(verb: &Verb) -> usize {
    match *verb {
        Verb::Alloc { node, .. } | Verb::Pieces { node } | Verb::Expel { node, .. } | Verb::Doubt { node } => {
            usize::from(node)
        }
        Verb::Read { at, .. }
        | Verb::Write { at, .. }
        | Verb::WriteFrom { at, .. }
        | Verb::Cas { at, .. }
        | Verb::Claim { at, .. }
        | Verb::Free { at } => (at >> NODE_SHIFT) as usize,
    }
}

/// Carries a task out up to a death, and says how many verbs its last batch has for each node.
/// `None`: it has ended before.
fn carry_out<T>(memory: &mut Memory, mut task: Task<T>, death: Death) -> Option<[usize; 2]> {
    let mut batches = 0;
    while task.step().is_none() {
        for (id, ask) in task.asks() {
            let Ask::Verbs(verbs) = ask else {
                task.answer(id, Vec::new());
                continue;
            };
            if batches == death.batch {
                let mut of = [0, 0];
                for verb in &verbs {
                    let node = node(verb);
                    if of[node] < death.carried[node] {
                        memory.execute(verb);
                    }
                    of[node] += 1;
                }
                return Some(of);
            }
            batches += 1;
            task.answer(id, verbs.iter().map(|verb| memory.execute(verb)).collect());
        }
    }
    None
}

/// An operation of the dying front end, its key, and the values that the key may have after it.
#[derive(Clone, Debug)]
struct Act {
    op: Op,
    key: Vec<u8>,
    may_be: [Option<u64>; 2],
}

/// Other keys of the key's table: with them it is full.
const OTHERS: usize = 15;

/// A key of another table.
fn elsewhere() -> Vec<u8> {
    let table = |key: &[u8]| Hash::of(key).path() >> MAX_DEPTH;
    (0..).map(|n: u32| format!("e{n}").into_bytes()).find(|key| table(key) != table(KEY)).expect("some")
}

/// Operations during which a front end dies. The last one splits a table.
fn acts() -> Vec<Act> {
    let act = |op, key: &[u8], may_be| Act { op, key: key.to_vec(), may_be };
    vec![
        act(Op::Set(2), KEY, [Some(1), Some(2)]),
        act(Op::Add, KEY, [Some(1), Some(2)]),
        act(Op::Delete, KEY, [Some(1), None]),
        act(Op::SetIfAbsent(5), &elsewhere(), [None, Some(5)]),
        act(Op::Set(5), &sibling(OTHERS), [None, Some(5)]),
    ]
}

/// Both front ends have written. `stays` has the memory of the key, `dies` that of some others.
fn scene(rules: Rules) -> (Memory, Rc<Shard>, Rc<Shard>) {
    let mut memory = Memory::copied();
    let [dies, stays] = [(), ()].map(|()| memory.join(TINY, rules, 64 << 10));
    memory.run(task(&stays, KEY, Op::Set(1))).expect("room");
    for n in 0..OTHERS {
        memory.run(task(if n % 2 == 0 { &dies } else { &stays }, &sibling(n), Op::Set(n as u64))).expect("room");
    }
    memory.run(task(&dies, KEY, Op::Get)).expect("sound");
    (memory, dies, stays)
}

/// Lets `stays` find the other dead, take over its memory and use it again.
fn take_over(memory: &mut Memory, stays: &Rc<Shard>) {
    let run = |memory: &mut Memory, now_ms: u64, adopts: bool| {
        let front = Rc::clone(stays);
        memory.run(Task::new(|io| async move {
            front.members.tick(&io, now_ms).await.expect("alive");
            if adopts {
                front.recovery.adopt(&io, now_ms).await.expect("sound");
            }
        }));
    };
    (0..9000).step_by(500).for_each(|now_ms| run(memory, now_ms, false));
    // The second look frees pieces that have no owner.
    (0..3).for_each(|look| run(memory, 9000 + look * 11_000, true));
    for n in 0..60u64 {
        run(memory, 40_000 + n, false);
        memory.run(task(stays, format!("new{n}").as_bytes(), Op::Set(100 + n))).expect("room");
    }
}

/// Whether every key has a value that it may have, and the store's records agree, when `ends` is
/// gone. The verbs for each node of the batch in which the front end died; `None`: it has not died.
fn sound(rules: Rules, act: &Act, death: Death, ends: Option<u8>) -> (Option<[usize; 2]>, Result<(), String>) {
    let (mut memory, dies, stays) = scene(rules);
    let of = carry_out(&mut memory, task(&dies, &act.key, act.op), death);
    take_over(&mut memory, &stays);
    memory.ends = ends.map(|node| (node, memory.verbs));
    let mut get = |key: &[u8]| {
        let (front, name) = (Rc::clone(&stays), key.to_vec());
        let found = memory.run(Task::new(|io| async move { front.index.find(&io, &name).await }));
        found.map(|found| found.map(|found| number(found.object.value())))
    };
    let mut wrong = Vec::new();
    for n in (0..OTHERS as u64).filter(|&n| sibling(n as usize) != act.key) {
        if get(&sibling(n as usize)) != Ok(Some(n)) {
            wrong.push(format!("another key has {:?}, not {n}", get(&sibling(n as usize))));
        }
    }
    match get(&act.key) {
        Ok(found) if act.may_be.contains(&found) => {}
        other => wrong.push(format!("the key has {other:?}")),
    }
    let count = memory.run(Task::new(|io| async move { stays.recovery.count(&io).await }));
    wrong.extend(count.problems);
    let told = || format!("{act:?}, {death:?}, node {ends:?} ends: {}", wrong.join(", "));
    (of, if wrong.is_empty() { Ok(()) } else { Err(told()) })
}

/// Every death of a front end that does this, with either node ending after it; how many.
fn every_death(rules: Rules, act: &Act) -> Result<usize, String> {
    let (mut deaths, mut batch) = (0, 0);
    loop {
        let Some(of) = sound(Rules::SOUND, act, Death { batch, carried: [0, 0] }, None).0 else { return Ok(deaths) };
        for carried in (0..=of[0]).flat_map(|first| (0..=of[1]).map(move |second| [first, second])) {
            // A table's many slots are frozen alike.
            if carried.iter().zip(of).any(|(&carried, of)| carried > 2 && carried + 1 < of) {
                continue;
            }
            for ends in [None, Some(0), Some(1)] {
                sound(rules, act, Death { batch, carried }, ends).1?;
                deaths += 1;
            }
        }
        batch += 1;
    }
}

#[test]
fn what_was_decided_outlives_a_front_end_at_each_verb() {
    let deaths: usize = acts().iter().map(|act| every_death(Rules::SOUND, act).expect("nothing lost")).sum();
    assert!(deaths > 200, "{deaths}");
}

#[test]
fn mistakes_are_noticed() {
    for bug in [Bug::JudgeByFirst, Bug::AdoptShown, Bug::FreeUnshown] {
        let noticed =
            std::panic::catch_unwind(|| acts().iter().find_map(|act| every_death(Rules::without(bug), act).err()));
        assert!(!matches!(noticed, Ok(None)), "{bug:?} went unnoticed");
    }
}

/// Keys of other tables than the key's.
fn others(count: usize) -> Vec<Vec<u8>> {
    let table = |key: &[u8]| Hash::of(key).path() >> MAX_DEPTH;
    let keys = (0..).map(|n: u32| format!("o{n}").into_bytes());
    keys.filter(|key| table(key) != table(KEY)).take(count).collect()
}

/// A front end dies when its SET was decided at the second node. Another helps, and is stopped after
/// so many of its verbs. The second node ends. A third front end takes over what the dead one held,
/// by what the first node shows, and uses it again. `fills`: it has begun to fill another node by then.
/// Then the helper goes on. False: it had ended.
fn a_late_helper(rules: Rules, carried: [usize; 2], steps: usize, fills: bool) -> Result<bool, String> {
    let (mut memory, dies, stays) = scene(rules);
    let helps = memory.join(TINY, rules, 64 << 10);
    memory.run(task(&helps, KEY, Op::Get)).expect("sound");
    carry_out(&mut memory, task(&dies, KEY, Op::Set(2)), Death { batch: 0, carried });
    let tick = |memory: &mut Memory, front: &Rc<Shard>, now_ms: u64| {
        let front = Rc::clone(front);
        memory.run(Task::new(|io| async move { front.members.tick(&io, now_ms).await })).expect("alive");
    };
    for now_ms in (0..9000).step_by(500) {
        [&stays, &helps].into_iter().for_each(|front| tick(&mut memory, front, now_ms));
    }
    let mut late = Running::new(task(&helps, KEY, Op::Set(3)));
    for now in 0..steps {
        late.advance(&mut memory, now);
        if late.outcome.is_some() {
            return Ok(false);
        }
    }
    memory.ends = Some((1, memory.verbs));
    let mut filling = None;
    if fills {
        tick(&mut memory, &stays, 9000);
        memory.revive();
        let front = Rc::clone(&stays);
        assert!(memory.run(Task::new(|io| async move { front.mend.begin_mending(&io, "new", 9).await })));
        tick(&mut memory, &stays, 9000);
        let (front, pair) = (Rc::clone(&stays), stays.reach.copies.pair());
        filling = Some(Running::new(Task::new(|io| async move { front.mend.mend(&io, pair).await })));
    }
    let keys = others(200);
    let mut take_over = |memory: &mut Memory, n: usize| {
        let (front, now_ms) = (Rc::clone(&stays), 9000 + n as u64);
        if let Some(filling) = &mut filling {
            (0..20).for_each(|_| filling.advance(memory, n));
        }
        tick(memory, &stays, now_ms);
        memory.run(Task::new(|io| async move { front.recovery.adopt(&io, now_ms).await })).expect("sound");
        memory.run(task(&stays, &keys[n], Op::Set(n as u64))).expect("room");
    };
    (0..50).for_each(|n| take_over(&mut memory, n));
    while late.outcome.is_none() {
        // The helper's connection is to the node that has ended.
        memory.ends = Some((1, memory.verbs));
        late.advance(&mut memory, steps);
        if fills {
            memory.ends = None;
        }
    }
    for n in 50..keys.len() {
        tick(&mut memory, &helps, 9000 + n as u64);
        take_over(&mut memory, n);
    }
    let mut get = |key: &[u8]| {
        let (front, name) = (Rc::clone(&stays), key.to_vec());
        let found = memory.run(Task::new(|io| async move { front.index.find(&io, &name).await }));
        found.map(|found| found.map(|found| number(found.object.value())))
    };
    let key = get(KEY);
    let lost = (0..OTHERS).filter(|&n| get(&sibling(n)) != Ok(Some(n as u64))).count();
    let (front, adopted) = (Rc::clone(&stays), stays.reach.counters.adopted.get());
    let count = memory.run(Task::new(|io| async move { front.recovery.count(&io).await }));
    let sound = matches!(key, Ok(Some(1..=3))) && lost == 0 && adopted > 0 && count.problems.is_empty();
    let told = || format!("{carried:?}, {steps} steps: {key:?}, {lost} others lost, {adopted} adopted, {count:?}");
    if sound { Ok(true) } else { Err(told()) }
}

/// Every step at which the helper stops; how many.
fn every_late_helper(rules: Rules, fills: bool) -> Result<usize, String> {
    let mut stops = 0;
    for carried in [[0, 2], [1, 2]] {
        let mut steps = 0;
        while a_late_helper(rules, carried, steps, fills)? {
            steps += 1;
        }
        stops += steps;
    }
    Ok(stops)
}

#[test]
fn what_a_late_helper_shows_is_not_garbage() {
    for fills in [false, true] {
        let noticed = std::panic::catch_unwind(|| every_late_helper(Rules::without(Bug::AdoptAtOnce), fills));
        assert!(!matches!(noticed, Ok(Ok(_))), "it went unnoticed; another node is filled: {fills}");
        let stops = every_late_helper(Rules::SOUND, fills).expect("nothing lost");
        assert!(stops > 10, "{stops}");
    }
}

/// The second node ends while a front end takes over what two dead ones have left. It hands back the piece
/// that it has judged, and begins with no other.
#[test]
fn no_piece_is_begun_after_a_nodes_end() {
    let mut memory = Memory::copied();
    let [one, other, stays] = [(), (), ()].map(|()| memory.join(TINY, Rules::SOUND, 64 << 10));
    memory.run(task(&one, &sibling(0), Op::Set(1))).expect("room");
    memory.run(task(&other, &sibling(1), Op::Set(1))).expect("room");
    for now_ms in (0..9000).step_by(500) {
        let front = Rc::clone(&stays);
        memory.run(Task::new(|io| async move { front.members.tick(&io, now_ms).await })).expect("alive");
    }
    let front = Rc::clone(&stays);
    let mut adopts = Task::new(|io| async move { front.recovery.adopt(&io, 9000).await });
    let mut taken = BTreeSet::new();
    let adopted = loop {
        if let Some(outcome) = adopts.step() {
            break outcome;
        }
        for (id, ask) in adopts.asks() {
            let verbs = if let Ask::Verbs(verbs) = ask { verbs } else { Vec::new() };
            taken.extend(verbs.iter().filter_map(|verb| match verb {
                Verb::Cas { at, .. } if memory.pieces.contains_key(at) => Some(at & ((1 << NODE_SHIFT) - 1)),
                _ => None,
            }));
            adopts.answer(id, verbs.iter().map(|verb| memory.execute(verb)).collect());
            if !taken.is_empty() && memory.ends.is_none() {
                memory.ends = Some((1, memory.verbs));
            }
        }
    };
    assert_eq!((adopted, taken.len()), (Ok(0), 1), "{taken:?}");
}

/// A front end has a key in its cache, which is moved. The place is free when a new second node is
/// filled, which does not get it. Its owner dies, and the adopter sets the key `sets` times.
fn an_old_name(sets: usize) -> (Option<u64>, u64) {
    let mut memory = Memory::copied();
    let [dies, stays, reads] = [(), (), ()].map(|()| memory.join(TINY, Rules::SOUND, 64 << 10));
    let get = |memory: &mut Memory, front: &Rc<Shard>| {
        let front = Rc::clone(front);
        let found = memory.run(Task::new(|io| async move { front.index.find(&io, KEY).await })).expect("sound");
        found.map(|found| number(found.object.value()))
    };
    let ticks = |memory: &mut Memory, fronts: &[&Rc<Shard>], now_ms: std::ops::Range<u64>| {
        for now_ms in now_ms {
            for front in fronts {
                let front = Rc::clone(front);
                memory.run(Task::new(|io| async move { front.members.tick(&io, now_ms).await })).expect("alive");
            }
        }
    };
    memory.run(task(&dies, KEY, Op::Set(1))).expect("room");
    assert_eq!(get(&mut memory, &reads), Some(1));
    let before: Vec<u64> = memory.pieces.keys().copied().collect();
    memory.run(task(&stays, KEY, Op::Set(2))).expect("room");
    ticks(&mut memory, &[&dies, &stays, &reads], 0..10);
    // The only object of the dying front end is garbage: a node that is filled has no bytes of it.
    for &piece in &before {
        if piece >> NODE_SHIFT != 1 || memory.word(piece) >> 40 & 0xff != 2 {
            continue;
        }
        memory.execute(&Verb::Write { at: piece + 64, bytes: Rc::new(vec![0; 4096 - 64]) });
    }
    let leaves = Rc::clone(&dies);
    memory.run(Task::new(|io| async move { leaves.members.leave(&io).await }));
    let front = Rc::clone(&stays);
    memory.run(Task::new(|io| async move { front.recovery.adopt(&io, 10).await })).expect("sound");
    ticks(&mut memory, &[&stays, &reads], 10..20);
    for n in 0..sets as u64 {
        memory.run(task(&stays, KEY, Op::Set(100 + n))).expect("room");
    }
    (get(&mut memory, &reads), 99 + sets as u64)
}

#[test]
fn a_place_keeps_its_count_of_uses_when_a_node_is_filled() {
    for sets in 1..140 {
        let (found, last) = an_old_name(sets);
        assert_eq!(found, Some(last), "after {sets} changes");
    }
}

/// A front end is stopped between taking a piece for a split and writing to it. The piece is not
/// given to others before it goes on.
#[test]
fn a_piece_that_a_stopped_front_end_has_taken_stays_its_own() {
    let mut memory = Memory::default();
    let [stops, other] = [(), ()].map(|()| memory.join(TINY, Rules::SOUND, 0));
    let piece = memory.execute(&Verb::Alloc { node: 0, bytes: 4096 });
    let farmem_kv::task::Answer::Place(piece) = piece else { panic!("room") };
    let look = |memory: &mut Memory, now_ms: u64| {
        let front = Rc::clone(&other);
        memory.run(Task::new(|io| async move { front.recovery.adopt(&io, now_ms).await })).expect("sound");
    };
    look(&mut memory, 0);
    look(&mut memory, 20_000);
    assert!(memory.pieces.contains_key(&piece), "it may still be written to");
    memory.run(Task::new(|io| async move { stops.members.tick(&io, 0).await })).expect("alive");
    look(&mut memory, 40_000);
    assert!(!memory.pieces.contains_key(&piece), "nobody writes to it");
}
