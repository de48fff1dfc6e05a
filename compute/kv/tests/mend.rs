//! A node takes the place of one of two that has ended, while operations go on: in orders drawn by
//! seeds, also with a front end that dies on the way. Each history is judged for linearizability,
//! before and after the node that had the only copy is taken away.

mod world;

use farmem_kv::atomic::Intent;
use farmem_kv::keyspace::Keyspace;
use farmem_kv::layout::Stage;
use farmem_kv::rules::{Bug, Rules};
use farmem_kv::shard::copies::Mode;
use farmem_kv::shard::{Shard, Trouble};
use farmem_kv::task::Task;
use std::cell::Cell;
use std::rc::Rc;
use world::fill::{Dying, begin, finisher, part, ticks};
use world::linear::{Call, Register, Step, check};
use world::ops::{KEY, OPS, Op, TINY, history, number, sibling, task, value};
use world::{Memory, Random, interleave};

/// Front ends. Each has an operation, a part in the filling, its ticks, and transactions.
const FRONTS: usize = 3;

/// What a task has come to: an operation's outcome, or nothing.
type Outcome = Result<Step, Trouble>;
const NOTHING: Outcome = Ok(Step::Get(None));

fn perform(shard: &Rc<Shard>, op: Op) -> Task<Outcome> {
    task(shard, KEY, op)
}

/// Keys that only transactions change: all of them have the same value.
const TOGETHER: [&[u8]; 2] = [b"one", b"other"];

fn keyspace(shard: &Rc<Shard>) -> Rc<Keyspace> {
    let seed = u64::from(shard.reach.me.line) + 5;
    Rc::new(Keyspace::new("mend", vec![Rc::clone(shard)], false, 0, seed))
}

/// Sets both keys, three times.
fn transactions(shard: &Rc<Shard>, n: u64) -> Task<Outcome> {
    let store = keyspace(shard);
    Task::new(move |io| async move {
        for round in 0..3 {
            let change = Some(Some(value(10 * n + round)));
            let intents = TOGETHER.map(|key| Intent { key: key.to_vec(), change: change.clone() });
            store.commit(&io, intents.into(), &|_, _| true, &|| false).await?;
        }
        NOTHING
    })
}

/// Whether the keys that are set together have the same value.
fn are_alike(memory: &mut Memory, shard: &Rc<Shard>) -> Result<(), String> {
    let store = keyspace(shard);
    let [one, other] = TOGETHER.map(|key| {
        let store = Rc::clone(&store);
        let found = memory.run(Task::new(|io| async move { store.find(&io, key).await })).expect("sound");
        found.map(|found| number(found.object.value()))
    });
    if one == other { Ok(()) } else { Err(format!("{one:?} and {other:?}")) }
}

/// One filling; whether it was sound, and whether it came to its end.
fn filled(rules: Rules, seed: u64, dies: bool, with_transactions: bool) -> Result<bool, String> {
    let mut chooser = Random::new(seed);
    let numbers = &mut chooser.numbers;
    let (ended, present, fill) = (numbers.below(2) as u8, numbers.below(2) == 0, numbers.index(18));
    let ops: Vec<Op> = (0..FRONTS as u64)
        .map(|n| match OPS[numbers.index(OPS.len())] {
            Op::Set(_) => Op::Set(10 + n),
            Op::SetIfAbsent(_) => Op::SetIfAbsent(20 + n),
            op => op,
        })
        .collect();
    let dies = dies.then(|| (numbers.index(120), numbers.index(FRONTS)));
    let mut memory = Memory::copied();
    let fronts: Vec<Rc<Shard>> = (0..FRONTS).map(|_| memory.join(TINY, rules, 0)).collect();
    for n in 0..fill {
        memory.run(task(&fronts[n % FRONTS], &sibling(n), Op::Set(n as u64))).expect("sound");
    }
    if present {
        memory.run(task(&fronts[1], KEY, Op::Set(7))).expect("sound");
    }
    begin(&mut memory, &fronts, ended);
    let dead = Rc::new(Cell::new(false));
    let mut tasks: Vec<Task<Outcome>> = ops.iter().zip(&fronts).map(|(&op, front)| perform(front, op)).collect();
    tasks.extend(fronts.iter().map(|front| part(front, NOTHING)));
    tasks.extend(fronts.iter().map(|front| ticks(front, &dead, NOTHING)));
    tasks.extend(fronts.iter().map(|front| finisher(front, NOTHING)));
    if with_transactions {
        tasks.extend(fronts.iter().zip(1..).map(|(front, n)| transactions(front, n)));
    }
    let mut order = Dying { chooser, dies, dead, steps: 0, fronts: FRONTS };
    let all = interleave(&mut memory, tasks, &mut order);
    let gone = dies.filter(|(step, _)| order.steps > *step).map(|(_, front)| front);
    let mut calls = history(&ops, &all[..FRONTS]);
    let left: Vec<&Rc<Shard>> =
        fronts.iter().enumerate().filter(|(n, _)| Some(*n) != gone).map(|(_, front)| front).collect();
    let both = left.iter().all(|front| matches!(front.reach.copies.mode(), Mode::Both(_)));
    let mut moment = u64::MAX / 2;
    let mut look = |memory: &mut Memory, front: &Rc<Shard>| {
        let operation = memory.run(task(front, KEY, Op::Get)).expect("sound");
        moment += 2;
        calls.push(Call { operation, begun: moment, ended: Some(moment + 1) });
    };
    left.iter().for_each(|front| look(&mut memory, front));
    are_alike(&mut memory, left[0]).map_err(|wrong| format!("seed {seed}: {wrong}"))?;
    if both {
        // The node that had the only copy.
        memory.ends = Some((1 - ended, memory.verbs));
        left.iter().for_each(|front| look(&mut memory, front));
        let front = Rc::clone(left[0]);
        memory.run(Task::new(|io| async move { front.members.tick(&io, 0).await })).expect("alive");
        let fresh = memory.join(TINY, Rules::SOUND, 0);
        look(&mut memory, &fresh);
        are_alike(&mut memory, &fresh).map_err(|wrong| format!("seed {seed}, after the end: {wrong}"))?;
        for n in 0..fill {
            let found = memory.run(task(&fresh, &sibling(n), Op::Get)).expect("sound");
            if found != Step::Get(Some(n as u64)) {
                return Err(format!("seed {seed}: key {n} is {found:?}"));
            }
        }
        let count = memory.run(Task::new(|io| async move { fresh.recovery.count(&io).await }));
        let wrong = |problem: &&String| !problem.contains("nobody's") && !problem.contains("that is gone");
        if count.problems.iter().any(|problem| wrong(&problem)) {
            return Err(format!("seed {seed}: {count:?}"));
        }
    }
    match check::<Register>(present.then_some(7), &calls) {
        true => Ok(both),
        false => Err(format!("seed {seed}, {ops:?}, present {present}: {calls:?}")),
    }
}

/// How many fillings came to their end.
fn fillings(rules: Rules, seeds: std::ops::Range<u64>, die: bool) -> Result<u64, String> {
    let mut ended = 0;
    for seed in seeds {
        ended += u64::from(filled(rules, seed, die, false)?);
    }
    Ok(ended)
}

#[test]
fn a_new_node_has_what_the_other_has() {
    assert_eq!(fillings(Rules::SOUND, 0..150, false), Ok(150));
}

#[test]
fn a_front_end_that_dies_on_the_way_takes_nothing_along() {
    let ended = fillings(Rules::SOUND, 0..60, true).expect("sound");
    assert!(ended > 30, "{ended}");
}

#[test]
fn transactions_go_on_while_a_node_is_filled() {
    let ended = (0..60).map(|seed| filled(Rules::SOUND, seed, false, true)).collect::<Result<Vec<bool>, String>>();
    assert_eq!(ended, Ok(vec![true; 60]));
    for seed in 0..60 {
        filled(Rules::SOUND, seed, true, true).expect("sound");
    }
}

#[test]
fn mistakes_are_noticed() {
    for (bug, die) in [
        (Bug::FillUnmirrored, false),
        (Bug::FillUnpaused, false),
        (Bug::FillUndrained, false),
        (Bug::FillWithoutTheDead, true),
    ] {
        let noticed = std::panic::catch_unwind(|| fillings(Rules::without(bug), 0..1000, die));
        assert!(!matches!(noticed, Ok(Ok(_))), "{bug:?} went unnoticed");
    }
}

/// The new node ends, too: the store goes on with its only copy, and may be filled again.
#[test]
fn a_new_node_that_ends_harms_nobody() {
    for (seed, ended) in [(1u64, 0u8), (2, 1)] {
        let mut memory = Memory::copied();
        let front = memory.join(TINY, Rules::SOUND, 0);
        for n in 0..12 {
            memory.run(task(&front, &sibling(n), Op::Set(n as u64))).expect("sound");
        }
        memory.ends = Some((ended, memory.verbs));
        memory.run(task(&front, KEY, Op::Set(3))).expect("sound");
        for attempt in [8, 9] {
            memory.revive();
            let first = Rc::clone(&front);
            assert!(memory.run(Task::new(|io| async move { first.mend.begin_mending(&io, "new", attempt).await })));
            let ticking = Rc::clone(&front);
            memory.run(Task::new(|io| async move { ticking.members.tick(&io, 0).await })).expect("alive");
            if attempt == 8 {
                memory.ends = Some((ended, memory.verbs + 40));
            }
            let (dead, first) = (Rc::default(), Rc::clone(&front));
            let gives_up = Task::new(|io| async move {
                while matches!(first.reach.copies.mode(), Mode::Mending(_))
                    || first.reach.copies.pair().stage() == Stage::Mending
                {
                    if first.reach.copies.has_failed() {
                        first.mend.give_up(&io).await;
                    }
                    io.pause(1).await;
                }
                NOTHING
            });
            let tasks = vec![
                perform(&front, Op::Set(attempt)),
                part(&front, NOTHING),
                ticks(&front, &dead, NOTHING),
                finisher(&front, NOTHING),
                gives_up,
            ];
            interleave(&mut memory, tasks, &mut Random::new(seed));
            let found = memory.run(task(&front, KEY, Op::Get)).expect("sound");
            assert_eq!(found, Step::Get(Some(attempt)));
            assert_eq!(
                matches!(front.reach.copies.mode(), Mode::Both(1)),
                attempt == 9,
                "{:?}",
                front.reach.copies.mode()
            );
        }
        memory.ends = Some((1 - ended, memory.verbs));
        assert_eq!(memory.run(task(&front, KEY, Op::Get)).expect("sound"), Step::Get(Some(9)));
    }
}
