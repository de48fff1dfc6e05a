//! The protocol's steps in every order on the real words, and mistakes that this must notice.

mod world;

use farmem_kv::rules::{Bug, Rules};
use farmem_kv::shard::Shard;
use farmem_kv::task::Task;
use std::rc::Rc;
use world::linear::{Call, Register, check};
use world::ops::{KEY, OPS, Op, TINY, history, pairs, sibling, task};
use world::{Chooser, Memory, Random, every, interleave};

/// A store in which each of `fronts` front ends may know the key.
struct Scene {
    memory: Memory,
    fronts: Vec<Rc<Shard>>,
    start: Option<u64>,
}

fn scene(rules: Rules, fronts: usize, present: bool, fill: usize) -> Scene {
    let mut memory = Memory::default();
    let fronts: Vec<Rc<Shard>> = (0..fronts).map(|_| memory.join(TINY, rules, 64 << 10)).collect();
    for n in 0..fill {
        // Keys of the same first table fill it.
        memory.run(task(&fronts[0], &sibling(n), Op::Set(n as u64))).expect("sound");
    }
    if present {
        memory.run(task(&fronts[0], KEY, Op::Set(7))).expect("sound");
        for front in &fronts {
            memory.run(task(front, KEY, Op::Get)).expect("sound");
        }
    }
    Scene { memory, fronts, start: present.then_some(7) }
}

/// Front ends that know nothing of the key, which another one has set.
fn strangers(rules: Rules, fronts: usize, fill: usize) -> Scene {
    let mut scene = scene(rules, 1, true, fill);
    scene.fronts = (0..fronts).map(|_| scene.memory.join(TINY, rules, 64 << 10)).collect();
    scene
}

/// One front end that is alone, by a lease. It has the key if it is `near`; else another has set it, and has left.
/// With 1 KiB its near cache keeps slots alone.
fn alone(rules: Rules, present: bool, near: bool, local: u64) -> Scene {
    let mut scene = scene(rules, 1, present, 0);
    let before = Rc::clone(&scene.fronts[0]);
    scene.memory.run(Task::new(|io| async move { before.members.leave(&io).await }));
    let front = scene.memory.join(TINY, rules, local);
    let ticks = Rc::clone(&front);
    scene.memory.run(Task::new(|io| async move { ticks.members.tick(&io, 0).await })).expect("alive");
    front.near.lease.renew(0, 0);
    if near {
        scene.memory.run(task(&front, KEY, Op::Get)).expect("sound");
    }
    scene.fronts = vec![front];
    scene
}

/// Runs the operations in one order, looks at the key, and says whether that is sound.
fn sound(scene: Scene, ops: &[Op], chooser: &mut dyn Chooser) -> bool {
    let Scene { mut memory, fronts, start } = scene;
    let tasks = ops.iter().enumerate().map(|(n, &op)| task(&fronts[n % fronts.len()], KEY, op)).collect();
    let ended = interleave(&mut memory, tasks, chooser);
    let mut calls = history(ops, &ended);
    // Then everyone looks, twice: from what it knows, and anew.
    for (n, front) in fronts.iter().enumerate() {
        let seen = memory.run(task(front, KEY, Op::Get)).expect("sound");
        calls.push(Call {
            operation: seen,
            begun: u64::MAX - 20 + n as u64 * 2,
            ended: Some(u64::MAX - 19 + n as u64 * 2),
        });
    }
    let fresh = memory.join(TINY, Rules::SOUND, 0);
    let (one, other) = (Rc::clone(&fresh), Rc::clone(&fresh));
    let count = memory.run(Task::new(|io| async move { one.recovery.count(&io).await }));
    let seen = memory.run(task(&other, KEY, Op::Get)).expect("sound");
    calls.push(Call { operation: seen, begun: u64::MAX - 2, ended: Some(u64::MAX - 1) });
    let doubled =
        count.problems.iter().any(|problem| !problem.contains("nobody's") && !problem.contains("that is gone"));
    check::<Register>(start, &calls) && !doubled
}

/// Every order of two operations; the number of orders, or the first that is not sound.
fn every_order(rules: Rules, present: bool, fill: usize, switches: usize, pairs: &[[Op; 2]]) -> Result<usize, String> {
    let mut orders = 0;
    for ops in pairs {
        orders += every(switches, |order| {
            let is_sound = sound(scene(rules, 2, present, fill), ops, order);
            is_sound.then_some(()).ok_or_else(|| format!("{ops:?}, present {present}"))
        })?;
    }
    Ok(orders)
}

#[test]
fn two_operations_in_every_order() {
    let mut orders = 0;
    for present in [false, true] {
        orders += every_order(Rules::SOUND, present, 0, 4, &pairs()).expect("linearizable");
    }
    assert!(orders > 5000, "{orders}");
}

#[test]
fn two_operations_of_front_ends_that_do_not_know_the_key() {
    let mut orders = 0;
    // In the second the table is full: inserts split it.
    for fill in [0, 14] {
        for ops in pairs() {
            orders += every(if fill == 0 { 4 } else { 2 }, |order| {
                let is_sound = sound(strangers(Rules::SOUND, 2, fill), &ops, order);
                is_sound.then_some(()).ok_or_else(|| format!("{ops:?}, {fill} others"))
            })
            .expect("linearizable");
        }
    }
    assert!(orders > 3000, "{orders}");
}

#[test]
fn a_block_and_another_operation_in_every_order() {
    let others = [OPS[0], Op::Set(1), Op::SetIfAbsent(2), Op::Delete, Op::Add, Op::Evict, Op::Block(4)];
    let block = Op::Block(3);
    let pairs: Vec<[Op; 2]> = others.iter().flat_map(|&other| [[block, other], [other, block]]).collect();
    let mut orders = 0;
    for present in [false, true] {
        for (fill, switches) in [(0, 4), (14, 2)] {
            orders += every_order(Rules::SOUND, present, fill, switches, &pairs).expect("linearizable");
        }
    }
    assert!(orders > 5000, "{orders}");
}

#[test]
fn an_eviction_and_another_operation_in_every_order() {
    let others = [OPS[0], Op::Set(1), Op::SetIfAbsent(2), Op::Delete, Op::Add, Op::Evict];
    let pairs: Vec<[Op; 2]> = others.iter().flat_map(|&other| [[Op::Evict, other], [other, Op::Evict]]).collect();
    let mut orders = 0;
    // The first front end has linked the object. In the second the table is full: inserts split it.
    for (fill, switches) in [(0, 4), (14, 2)] {
        orders += every_order(Rules::SOUND, true, fill, switches, &pairs).expect("linearizable");
    }
    assert!(orders > 900, "{orders}");
}

/// Three operations and a split of their table, in any order, one of them dropped in the middle.
fn at_random(rules: Rules, seeds: std::ops::Range<u64>) -> Result<(), String> {
    for seed in seeds {
        let mut chooser = Random::new(seed);
        let ops: Vec<Op> = (0..3)
            .map(|n| match OPS[chooser.numbers.index(OPS.len())] {
                Op::Set(_) => Op::Set(10 + n),
                Op::SetIfAbsent(_) => Op::SetIfAbsent(20 + n),
                op => op,
            })
            .collect();
        let (present, fill) =
            (chooser.numbers.below(2) == 0, if seed % 2 == 0 { 15 + seed as usize / 2 % 2 } else { 2 });
        if chooser.numbers.below(3) == 0 {
            chooser.kill = Some((chooser.numbers.index(60), chooser.numbers.index(3)));
        }
        if !sound(scene(rules, 3, present, fill), &ops, &mut chooser) {
            return Err(format!("seed {seed}: {ops:?}, present {present}, {fill} others"));
        }
    }
    Ok(())
}

#[test]
fn three_operations_with_splits_and_crashes() {
    at_random(Rules::SOUND, 0..1500).expect("linearizable");
}

/// Every order of three operations of one front end, which may answer from its near cache.
fn every_order_alone(rules: Rules, switches: usize, pairs: &[[Op; 2]]) -> Result<usize, String> {
    let mut orders = 0;
    let near = [(false, false, 64), (true, false, 64), (true, true, 64), (true, true, 1)];
    for (present, near, local) in near {
        for &[one, other] in pairs {
            let ops = [one, other, Op::Get];
            orders += every(switches, |order| {
                let is_sound = sound(alone(rules, present, near, local << 10), &ops, order);
                is_sound.then_some(()).ok_or_else(|| format!("{ops:?}, present {present}, near {near}, {local} KiB"))
            })?;
        }
    }
    Ok(orders)
}

#[test]
fn operations_of_one_front_end_that_is_alone() {
    let orders = every_order_alone(Rules::SOUND, 2, &pairs()).expect("linearizable");
    assert!(orders > 500, "{orders}");
}

#[test]
fn what_is_read_under_a_write_is_not_kept() {
    let pairs = [[Op::Get, Op::Set(1)], [Op::Set(1), Op::Get]];
    assert!(every_order_alone(Rules::without(Bug::KeepUnderWrite), 2, &pairs).is_err(), "the mistake went unnoticed");
}

#[test]
fn mistakes_are_noticed() {
    for bug in [Bug::CommitUnchecked, Bug::SparePending] {
        let wrong = every_order(Rules::without(bug), false, 0, 4, &[[Op::SetIfAbsent(1), Op::SetIfAbsent(2)]]);
        assert!(wrong.is_err(), "{bug:?} went unnoticed");
    }
    for bug in [Bug::CopyPending, Bug::TrustFrozen, Bug::CopyWarm] {
        let noticed = std::panic::catch_unwind(|| at_random(Rules::without(bug), 0..40_000));
        assert!(!matches!(noticed, Ok(Ok(()))), "{bug:?} went unnoticed");
    }
}
