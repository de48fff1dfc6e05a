//! Two nodes that keep one shard: operations in every order, with a front end dropped at each verb
//! and either node ending at each verb. Each history is judged for linearizability, before and
//! after the first node is taken away.

mod world;

use farmem_kv::layout::Geometry;
use farmem_kv::object::Value;
use farmem_kv::rules::{Bug, Rules};
use farmem_kv::shard::Shard;
use farmem_kv::shard::copies::Mode;
use farmem_kv::task::{Ask, Task};
use std::rc::Rc;
use world::linear::{Call, Register, check};
use world::ops::{KEY, OPS, Op, TINY, history, pairs, sibling, task};
use world::{Chooser, Every, Memory, Random, every, interleave};

/// A store in two copies, whose front ends may know the key.
struct Scene {
    memory: Memory,
    fronts: Vec<Rc<Shard>>,
    start: Option<u64>,
}

fn scene(rules: Rules, fronts: usize, present: bool, fill: usize) -> Scene {
    let mut memory = Memory::copied();
    let fronts: Vec<Rc<Shard>> = (0..fronts).map(|_| memory.join(TINY, rules, 0)).collect();
    for n in 0..fill {
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

/// A fault, by steps and by verbs from the start of the operations.
#[derive(Clone, Copy, Debug, Default)]
struct Accident {
    /// After this many steps this task is dropped.
    crash: Option<(usize, usize)>,
    /// This node ends after this many verbs.
    end: Option<(u8, u64)>,
}

/// A chooser under which a task is dropped.
struct Crashing<'a> {
    chooser: &'a mut dyn Chooser,
    crash: Option<(usize, usize)>,
    steps: usize,
}

impl Chooser for Crashing<'_> {
    fn choose(&mut self, ready: &[usize]) -> Option<usize> {
        self.steps += 1;
        let gone = self.crash.filter(|(step, _)| self.steps > *step).map(|(_, task)| task);
        let left: Vec<usize> = ready.iter().copied().filter(|&task| Some(task) != gone).collect();
        if left.is_empty() { None } else { self.chooser.choose(&left) }
    }
}

/// Runs the operations in one order, looks at the key at both nodes, and says whether that is
/// sound.
fn sound(scene: Scene, ops: &[Op], accident: Accident, chooser: &mut dyn Chooser) -> bool {
    let Scene { mut memory, fronts, start } = scene;
    let tasks = ops.iter().enumerate().map(|(n, &op)| task(&fronts[n % fronts.len()], KEY, op)).collect();
    memory.ends = accident.end.map(|(node, after)| (node, memory.verbs + after));
    let mut chooser = Crashing { chooser, crash: accident.crash, steps: 0 };
    let ended = interleave(&mut memory, tasks, &mut chooser);
    // A node that was to end later ends now.
    memory.ends = memory.ends.map(|(node, after)| (node, after.min(memory.verbs)));
    let mut calls = history(ops, &ended);
    let mut moment = u64::MAX / 2;
    let mut look = |memory: &mut Memory, front: &Rc<Shard>| {
        let operation = memory.run(task(front, KEY, Op::Get)).expect("sound");
        moment += 2;
        calls.push(Call { operation, begun: moment, ended: Some(moment + 1) });
    };
    fronts.iter().for_each(|front| look(&mut memory, front));
    if accident.end.is_none() {
        memory.ends = Some((0, memory.verbs));
        fronts.iter().for_each(|front| look(&mut memory, front));
    }
    // A tick finds a node gone, and marks the other.
    for front in &fronts {
        let front = Rc::clone(front);
        memory.run(Task::new(|io| async move { front.members.tick(&io, 0).await })).expect("alive");
    }
    let fresh = memory.join(TINY, Rules::SOUND, 0);
    look(&mut memory, &fresh);
    let count = memory.run(Task::new(|io| async move { fresh.recovery.count(&io).await }));
    let doubled = |problem: &&String| !problem.contains("nobody's") && !problem.contains("that is gone");
    check::<Register>(start, &calls) && !count.problems.iter().any(|problem| doubled(&problem))
}

/// Every order of two operations under an accident; the number of orders, or the first that is not
/// sound.
fn every_order(
    rules: Rules,
    switches: usize,
    ops: [Op; 2],
    present: bool,
    accident: Accident,
) -> Result<usize, String> {
    every(switches, |order| {
        let is_sound = sound(scene(rules, 2, present, 0), &ops, accident, order);
        is_sound.then_some(()).ok_or_else(|| format!("{ops:?}, present {present}, {accident:?}"))
    })
}

#[test]
fn two_operations_in_every_order() {
    let mut orders = 0;
    for present in [false, true] {
        for ops in pairs() {
            orders += every_order(Rules::SOUND, 2, ops, present, Accident::default()).expect("linearizable");
        }
    }
    assert!(orders > 4000, "{orders}");
}

/// Steps and verbs of the longest operation, at least.
const LONGEST: usize = 30;

/// A front end that is dropped, or a node that ends, at each step; some at once.
fn accidents() -> impl Iterator<Item = Accident> {
    let crash = (0..LONGEST).map(|step| Accident { crash: Some((step, 0)), end: None });
    let end = (0..2 * LONGEST as u64).flat_map(|verbs| [0, 1].map(|node| (node, verbs)));
    let ends = end.map(|end| Accident { crash: None, end: Some(end) });
    let both = (0..LONGEST).flat_map(|step| {
        [0, 1, 3].into_iter().flat_map(move |later| {
            [0, 1].map(|node| Accident { crash: Some((step, 0)), end: Some((node, (step + later) as u64)) })
        })
    });
    crash.chain(ends).chain(both)
}

/// Each accident happens to one in `of` pairs, in turns.
fn every_accident(rules: Rules, switches: usize, pairs: &[[Op; 2]], of: usize) -> Result<usize, String> {
    let mut orders = 0;
    for (n, accident) in accidents().enumerate() {
        for present in [false, true] {
            for &ops in pairs.iter().skip(n % of).step_by(of) {
                orders += every_order(rules, switches, ops, present, accident)?;
            }
        }
    }
    Ok(orders)
}

#[test]
fn a_crash_or_an_end_at_each_verb() {
    let orders = every_accident(Rules::SOUND, 1, &pairs(), 12).expect("linearizable");
    assert!(orders > 5000, "{orders}");
}

#[test]
#[ignore = "takes a minute: .ci/long copies runs it"]
fn a_crash_or_an_end_at_each_verb_of_all_pairs() {
    let orders = every_accident(Rules::SOUND, 1, &pairs(), 1).expect("linearizable");
    assert!(orders > 50_000, "{orders}");
}

/// Three operations and a split of their table, in any order, with accidents.
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
        let numbers = &mut chooser.numbers;
        let (present, fill) = (numbers.below(2) == 0, if seed % 2 == 0 { 15 + seed as usize / 2 % 2 } else { 2 });
        let crash = (numbers.below(2) == 0).then(|| (numbers.index(80), numbers.index(3)));
        let end = (numbers.below(2) == 0).then(|| (numbers.index(2) as u8, numbers.below(120)));
        let accident = Accident { crash, end };
        if !sound(scene(rules, 3, present, fill), &ops, accident, &mut chooser) {
            return Err(format!("seed {seed}: {ops:?}, present {present}, {fill} others, {accident:?}"));
        }
    }
    Ok(())
}

#[test]
fn three_operations_with_splits_and_accidents() {
    at_random(Rules::SOUND, 0..1000).expect("linearizable");
}

/// Tasks in turns, each for a number of steps at most. Then the remaining tasks are dropped.
struct Turns(Vec<(usize, usize)>);

impl Chooser for Turns {
    fn choose(&mut self, ready: &[usize]) -> Option<usize> {
        while let Some((task, steps)) = self.0.first_mut() {
            if *steps > 0 && ready.contains(task) {
                *steps -= 1;
                return Some(*task);
            }
            self.0.remove(0);
        }
        None
    }
}

/// A SET that meets another half-way and dies after a third: the second's value must not come back.
fn a_late_helper(rules: Rules) -> Result<(), String> {
    let ops = [Op::Set(1), Op::Set(2), Op::Set(3)];
    let steps = (0..16).flat_map(|first| (0..16).flat_map(move |helps| (0..5).map(move |late| [first, helps, late])));
    for [first, helps, late] in steps {
        let mut turns = Turns(vec![(1, first), (0, helps), (1, 999), (2, 999), (0, late)]);
        if !sound(scene(rules, 3, true, 0), &ops, Accident::default(), &mut turns) {
            return Err(format!("{:?}", [first, helps, late]));
        }
    }
    Ok(())
}

/// A SET of a known key that dies at each of its verbs, and one behind it.
fn a_known_key(rules: Rules) -> Result<(), String> {
    for step in 0..16 {
        let mut memory = Memory::copied();
        let fronts: Vec<Rc<Shard>> = (0..2).map(|_| memory.join(TINY, rules, 64 << 10)).collect();
        memory.run(task(&fronts[0], KEY, Op::Set(7))).expect("sound");
        for front in &fronts {
            memory.run(task(front, KEY, Op::Get)).expect("sound");
        }
        let accident = Accident { crash: Some((step, 0)), end: None };
        if !sound(Scene { memory, fronts, start: Some(7) }, &[Op::Set(1), Op::Set(2)], accident, &mut Every::new(0)) {
            return Err(format!("{accident:?}"));
        }
    }
    Ok(())
}

#[test]
fn mistakes_are_noticed() {
    a_known_key(Rules::SOUND).expect("linearizable");
    let noticed = std::panic::catch_unwind(|| a_known_key(Rules::without(Bug::ShowBare)));
    assert!(!matches!(noticed, Ok(Ok(()))), "an object that was not there went unnoticed");
    a_late_helper(Rules::SOUND).expect("linearizable");
    assert!(a_late_helper(Rules::without(Bug::HelpBackwards)).is_err(), "a step back went unnoticed");
    for bug in [Bug::CopyNothing, Bug::FirstDecides, Bug::AnswerEarly, Bug::LeaveBehind] {
        let noticed = std::panic::catch_unwind(|| {
            at_random(Rules::without(bug), 0..500)?;
            every_accident(Rules::without(bug), 1, &[[Op::Set(1), Op::Set(2)], [Op::Set(1), Op::Get]], 1).map(drop)
        });
        assert!(!matches!(noticed, Ok(Ok(()))), "{bug:?} went unnoticed");
    }
}

/// A front end dies between the decision of a SET and its showing. Another takes over its memory
/// and uses it again.
fn taken_over(rules: Rules) -> bool {
    let mut memory = Memory::copied();
    let [dies, stays] = [(), ()].map(|()| memory.join(Geometry::STORE, rules, 0));
    let set = |front: &Rc<Shard>, key: String, value: u64| {
        let front = Rc::clone(front);
        Task::new(
            move |io| async move { front.index.put(&io, key.as_bytes(), &Value::string(value.to_le_bytes())).await },
        )
    };
    memory.run(set(&stays, "key".into(), 1)).expect("room");
    memory.run(set(&dies, "other".into(), 1)).expect("room");
    let mut half = set(&dies, "key".into(), 2);
    // Its last round trip is not carried out.
    let mut last = Vec::new();
    while half.step().is_none() {
        for (id, ask) in half.asks() {
            let Ask::Verbs(verbs) = ask else { panic!("a pause") };
            let shows =
                |verb: &farmem_kv::task::Verb| matches!(verb, farmem_kv::task::Verb::Cas { at, .. } if at >> 42 == 0);
            if verbs.iter().any(shows) {
                last = verbs;
                continue;
            }
            let answers = verbs.iter().map(|verb| memory.execute(verb)).collect();
            half.answer(id, answers);
        }
        if !last.is_empty() {
            break;
        }
    }
    drop(half);
    for now_ms in (0..9000).step_by(500) {
        let front = Rc::clone(&stays);
        memory.run(Task::new(|io| async move { front.members.tick(&io, now_ms).await })).expect("alive");
    }
    let front = Rc::clone(&stays);
    assert!(memory.run(Task::new(|io| async move { front.recovery.adopt(&io, 9000).await })).expect("sound") > 0);
    for n in 0..300u64 {
        let front = Rc::clone(&stays);
        memory.run(Task::new(|io| async move { front.members.tick(&io, 9000 + n).await })).expect("alive");
        memory.run(set(&stays, format!("new{n}"), 100 + n)).expect("room");
    }
    memory.ends = Some((0, memory.verbs));
    let front = Rc::clone(&stays);
    let found = memory.run(Task::new(|io| async move { front.index.find(&io, b"key").await }));
    assert!(matches!(stays.reach.copies.mode(), Mode::Alone(1)));
    found.is_ok_and(|found| {
        found.is_some_and(|found| [1, 2].map(u64::to_le_bytes).iter().any(|one| found.object.value() == one))
    })
}

#[test]
fn a_dead_front_ends_memory_is_judged_by_what_was_decided() {
    assert!(taken_over(Rules::SOUND));
    let noticed = std::panic::catch_unwind(|| taken_over(Rules::without(Bug::JudgeByFirst)));
    assert!(!matches!(noticed, Ok(true)), "the mistake went unnoticed");
}
