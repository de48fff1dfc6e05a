//! Two nodes that keep one shard, of which one is told to have ended to some front ends alone. It
//! goes on for the others. Operations in every order: what was answered is there in the end, and
//! nobody reads anything else, also front ends that come meanwhile or later.

mod world;

use farmem_kv::rules::{Bug, Rules};
use farmem_kv::shard::copies::Mode;
use farmem_kv::shard::member::NotOpened;
use farmem_kv::shard::{Shard, Trouble};
use farmem_kv::task::Task;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use world::linear::{Call, Register, Step, check};
use world::ops::{KEY, OPS, Op, TINY, history, pairs, perform, task};
use world::{Chooser, Every, Memory, Random, Running, every, opening};

type Outcome = Result<Step, Trouble>;

/// What happens beside the operations. Verbs and steps count from their start.
#[derive(Clone, Copy, Debug, Default)]
struct Accident {
    /// This front end is told of the end of this node, after so many verbs.
    cut: Option<(usize, u8, u64)>,
    /// And this one of that of this.
    other: Option<(usize, u8, u64)>,
    /// After so many steps this front end ends.
    crash: Option<(usize, usize)>,
    /// A third front end joins beside the operations, and carries out one.
    comes: Option<Op>,
    /// So many verbs take effect although their front end is told of the node's end instead.
    late: u64,
}

impl Accident {
    /// One front end is told of one node's end, and nothing else happens.
    fn is_mild(&self) -> bool {
        self.other.is_none() && self.crash.is_none() && self.comes.is_none()
    }
}

/// A front end that may not have joined yet.
type Front = Rc<RefCell<Option<Rc<Shard>>>>;

/// Ticks for as long as the front end is there.
fn ticks(front: &Front) -> Task<Outcome> {
    let front = Rc::clone(front);
    Task::new(|io| async move {
        let mut now_ms = 0;
        loop {
            let shard = front.borrow().clone();
            if let Some(shard) = shard
                && shard.members.tick(&io, now_ms).await.is_err()
            {
                return Err(Trouble::ShutOut);
            }
            now_ms += 1;
            io.pause(500).await;
        }
    })
}

/// Joins, and carries out an operation.
fn comes(front: &Front, tag: u32, rules: Rules, op: Op) -> Task<Outcome> {
    let front = Rc::clone(front);
    Task::new(move |io| async move {
        let Ok(shard) = opening(Mode::Both(1), TINY, 0, tag).join(io.clone()).await else {
            return Err(Trouble::Unsettled);
        };
        shard.reach.rules.set(rules);
        let shard = Rc::new(shard);
        front.replace(Some(Rc::clone(&shard)));
        perform(shard, io, KEY.to_vec(), op).await
    })
}

/// Tasks of front ends: operations first, then ticks.
struct Run {
    memory: Memory,
    tasks: Vec<(u32, Running<Outcome>)>,
    now: usize,
}

impl Run {
    /// Goes on until those of the tasks that are `awaited` have ended, or their front ends have.
    fn until(&mut self, awaited: &BTreeSet<usize>, chooser: &mut dyn Chooser, crash: Option<(usize, u32)>) -> bool {
        let mut last = 0;
        let (limit, begun) = (self.now + 400_000, self.now);
        loop {
            if let Some((step, tag)) = crash
                && self.now - begun >= step
            {
                self.memory.gone.insert(tag);
            }
            let is_ready =
                |n: &usize| self.tasks[*n].1.outcome.is_none() && !self.memory.gone.contains(&self.tasks[*n].0);
            if !awaited.iter().any(is_ready) {
                return true;
            }
            if self.now > limit {
                return false;
            }
            let count = self.tasks.len();
            // One that waits lets the others go on; ticks alone are never switched to.
            let from = if self.tasks[last].1.pauses() || !is_ready(&last) { last + 1 } else { last };
            let mut ready: Vec<usize> = (0..count).map(|n| (from + n) % count).filter(is_ready).collect();
            if !self.tasks[ready[0]].1.pauses() {
                let first = ready[0];
                ready.retain(|&n| n == first || !self.tasks[n].1.pauses());
            }
            let Some(next) = chooser.choose(&ready) else { return true };
            let (tag, running) = &mut self.tasks[next];
            self.memory.asks = *tag;
            running.advance(&mut self.memory, self.now);
            if self.memory.gone.contains(&self.tasks[next].0) {
                // It has ended before it could answer by what its last verbs did not bring.
                self.tasks[next].1.outcome = None;
            }
            (last, self.now) = (next, self.now + 1);
        }
    }
}

/// What went wrong, if anything did.
fn judged(
    rules: Rules,
    ops: [Op; 2],
    present: bool,
    accident: Accident,
    chooser: &mut dyn Chooser,
) -> Result<(), String> {
    let mut memory = Memory::copied();
    memory.unproven = true;
    let mut fronts: Vec<Front> = Vec::new();
    for _ in 0..2 {
        let shard = memory.join(TINY, rules, 0);
        if present && fronts.is_empty() {
            memory.run(task(&shard, KEY, Op::Set(7))).expect("sound");
        }
        fronts.push(Rc::new(RefCell::new(Some(shard))));
    }
    let from = memory.verbs;
    let cuts = [accident.cut, accident.other].into_iter().flatten();
    memory.cuts = cuts.map(|(front, node, after)| (front as u32 + 1, node, from + after)).collect();
    memory.late = accident.late;
    let mut ops = ops.to_vec();
    let mut tasks: Vec<(u32, Running<Outcome>)> = Vec::new();
    for (n, &op) in ops.iter().enumerate() {
        let shard = fronts[n].borrow().clone().expect("joined");
        tasks.push((n as u32 + 1, Running::new(task(&shard, KEY, op))));
    }
    if let Some(op) = accident.comes {
        let front = Front::default();
        tasks.push((3, Running::new(comes(&front, 3, rules, op))));
        ops.push(op);
        fronts.push(front);
    }
    let count = tasks.len();
    tasks.extend(fronts.iter().enumerate().map(|(n, front)| (n as u32 + 1, Running::new(ticks(front)))));
    let mut run = Run { memory, tasks, now: 0 };
    let crash = accident.crash.map(|(step, front)| (step, front as u32 + 1));
    if !run.until(&(0..count).collect(), chooser, crash) {
        return Err("an operation does not end".into());
    }
    // All who are there look, while the others tick.
    let looks: Vec<usize> = fronts
        .iter()
        .enumerate()
        .filter_map(|(n, front)| {
            let shard = front.borrow().clone()?;
            run.tasks.push((n as u32 + 1, Running::new(task(&shard, KEY, Op::Get))));
            Some(run.tasks.len() - 1)
        })
        .collect();
    if !run.until(&looks.iter().copied().collect(), &mut Every::new(0), None) {
        return Err("a look does not end".into());
    }
    let Run { mut memory, tasks, now } = run;
    if accident.is_mild() && !memory.gone.is_empty() {
        return Err(format!("front ends {:?} end, which could go on together", memory.gone));
    }
    let mut ended: Vec<_> = tasks.into_iter().map(|(_, running)| running.so_far()).collect();
    let seen = ended.split_off(looks.first().copied().unwrap_or(ended.len()));
    ended.truncate(count);
    // One that could not join has done nothing.
    for one in ended.iter_mut().skip(2).filter(|one| matches!(one.outcome, Some(Err(_)))) {
        one.outcome = None;
    }
    let mut calls = history(&ops, &ended);
    calls.extend(history(&vec![Op::Get; seen.len()], &seen));
    // Those who come later, whichever nodes they reach.
    let mut moment = now as u64 * 2 + 2;
    for (n, mode) in [Mode::Both(1), Mode::Alone(0), Mode::Alone(1)].into_iter().enumerate() {
        memory.asks = 0;
        let Ok(shard) = memory.run(Task::new(|io| opening(mode, TINY, 0, 10 + n as u32).join(io))) else { continue };
        let operation = memory.run(task(&Rc::new(shard), KEY, Op::Get)).map_err(|e| format!("{e:?}"))?;
        calls.push(Call { operation, begun: moment, ended: Some(moment + 1) });
        moment += 2;
    }
    let start = present.then_some(7);
    if check::<Register>(start, &calls) { Ok(()) } else { Err(format!("not linearizable: {calls:?}")) }
}

fn every_order(
    rules: Rules,
    switches: usize,
    ops: [Op; 2],
    present: bool,
    accident: Accident,
) -> Result<usize, String> {
    every(switches, |order| {
        judged(rules, ops, present, accident, order)
            .map_err(|e| format!("{ops:?}, present {present}, {accident:?}: {e}"))
    })
}

/// Verbs of the longest operation, at least.
const LONGEST: u64 = 30;

/// A front end is told of either node's end at each verb.
fn cuts() -> impl Iterator<Item = Accident> {
    let cut = |verbs| [0, 1].map(|node| Accident { cut: Some((0, node, verbs)), ..Accident::default() });
    (0..LONGEST).flat_map(cut)
}

/// Each accident happens to one in `of` pairs, in turns.
fn every_accident(rules: Rules, of: usize, accidents: impl Iterator<Item = Accident>) -> Result<usize, String> {
    let mut orders = 0;
    for (n, accident) in accidents.enumerate() {
        for present in [false, true] {
            for ops in pairs().into_iter().skip(n % of).step_by(of) {
                orders += every_order(rules, 1, ops, present, accident)?;
            }
        }
    }
    Ok(orders)
}

#[test]
fn a_node_ends_for_one_front_end_alone() {
    let orders = every_accident(Rules::SOUND, 12, cuts()).expect("linearizable");
    assert!(orders > 1000, "{orders}");
}

#[test]
#[ignore = "more than a minute; .ci/long copies runs it, and the gate has some of its pairs"]
fn a_node_ends_for_one_front_end_alone_in_all_pairs() {
    let orders = every_accident(Rules::SOUND, 1, cuts()).expect("linearizable");
    assert!(orders > 10_000, "{orders}");
}

/// Accidents of all kinds, in orders by seeds.
fn at_random(rules: Rules, seeds: std::ops::Range<u64>) -> Result<(), String> {
    for seed in seeds {
        let mut chooser = Random::new(seed);
        let numbers = &mut chooser.numbers;
        let mut op = |n: u64| match OPS[numbers.index(OPS.len())] {
            Op::Set(_) => Op::Set(10 + n),
            Op::SetIfAbsent(_) => Op::SetIfAbsent(20 + n),
            op => op,
        };
        let (ops, third) = ([op(0), op(1)], op(2));
        let node = numbers.index(2) as u8;
        let (at, then) = (numbers.below(60), numbers.below(80));
        let accident = Accident {
            cut: Some((0, node, at)),
            other: (numbers.below(3) == 0).then_some((1, node ^ numbers.index(2) as u8, then)),
            crash: (numbers.below(3) == 0).then(|| (numbers.index(120), numbers.index(2))),
            comes: (numbers.below(2) == 0).then_some(third),
            late: numbers.below(3),
        };
        let present = numbers.below(2) == 0;
        judged(rules, ops, present, accident, &mut chooser)
            .map_err(|e| format!("seed {seed}: {ops:?}, present {present}, {accident:?}: {e}"))?;
    }
    Ok(())
}

#[test]
fn cuts_of_both_nodes_with_ends_and_joins() {
    at_random(Rules::SOUND, 0..300).expect("linearizable");
    // Two front ends leave the first node, for which a third's change is under way; one leaves the
    // second, and goes on.
    at_random(Rules::SOUND, 4239..4240).expect("linearizable");
}

#[test]
#[ignore = "a minute; .ci/long copies runs it, and the gate has its first 300 seeds"]
fn cuts_of_both_nodes_with_ends_and_joins_by_many_seeds() {
    at_random(Rules::SOUND, 0..20_000).expect("linearizable");
}

/// A helper stands still while its front end says that it knows of the mark. Then another has
/// changed the first node alone, and acknowledged it.
fn a_helper_is_late(rules: Rules, decided: u64, held: usize) -> Result<(), String> {
    let mut memory = Memory::copied();
    memory.unproven = true;
    let shards = [(); 2].map(|()| memory.join(TINY, rules, 0));
    memory.run(task(&shards[0], KEY, Op::Set(7))).expect("sound");
    let from = memory.verbs;
    (memory.cuts, memory.late) = (vec![(1, 1, from + decided)], 2);
    let ops = [Op::Set(10), Op::Set(30), Op::Add, Op::Get];
    let mut first = Running::new(task(&shards[0], KEY, ops[0]));
    let mut helper = Running::new(task(&shards[1], KEY, ops[2]));
    let mut now = 0;
    while memory.verbs <= from + decided && first.outcome.is_none() {
        memory.asks = 1;
        first.advance(&mut memory, now);
        now += 1;
    }
    for _ in 0..held {
        if helper.outcome.is_none() && !helper.pauses() {
            memory.asks = 2;
            helper.advance(&mut memory, now);
            now += 1;
        }
    }
    let mut tasks = vec![(1, first)];
    for (tag, shard) in (1..).zip(&shards) {
        tasks.push((tag, Running::new(ticks(&Rc::new(RefCell::new(Some(Rc::clone(shard))))))));
    }
    let mut run = Run { memory, tasks, now };
    let mut helper = Some(helper);
    let mut last = 0;
    for op in [None, Some(ops[1]), None, Some(ops[3])] {
        let is_helper = last > 0 && op.is_none();
        let next = match op {
            Some(op) => Some((1, Running::new(task(&shards[0], KEY, op)))),
            None if is_helper => helper.take().map(|helper| (2, helper)),
            None => None,
        };
        if let Some(next) = next {
            run.tasks.push(next);
            last = run.tasks.len() - 1;
        }
        if !run.until(&BTreeSet::from([last]), &mut Every::new(0), None) {
            return Err("an operation does not end".into());
        }
    }
    // The ticks are left out.
    let ended = run.tasks.into_iter().enumerate().filter(|(n, _)| ![1, 2].contains(n));
    let ended: Vec<_> = ended.map(|(_, (_, running))| running.so_far()).collect();
    let calls = history(&ops, &ended);
    if check::<Register>(Some(7), &calls) { Ok(()) } else { Err(format!("not linearizable: {calls:?}")) }
}

/// A helper is late at each of its verbs, after each verb of the other.
fn late_helpers(rules: Rules) -> Result<(), String> {
    for decided in 0..12 {
        for held in 0..LONGEST as usize {
            a_helper_is_late(rules, decided, held).map_err(|e| format!("after {decided}, held at {held}: {e}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_helper_does_not_set_back_what_one_alone_has_changed() {
    late_helpers(Rules::SOUND).expect("linearizable");
}

/// The first node is lost to one front end, and the other says nothing. Nobody goes on with the
/// second; once both are gone, an operator says so, and the store goes on with both.
#[test]
fn a_mark_is_taken_away_once_nobody_is_left() {
    let mut memory = Memory::copied();
    memory.unproven = true;
    let shards = [(); 2].map(|()| memory.join(TINY, Rules::SOUND, 0));
    memory.run(task(&shards[0], KEY, Op::Set(7))).expect("sound");
    memory.cuts = vec![(1, 0, memory.verbs)];
    let mut run = Run { memory, tasks: vec![(1, Running::new(task(&shards[0], KEY, Op::Set(8))))], now: 0 };
    assert!(run.until(&BTreeSet::from([0]), &mut Every::new(0), None), "it does not end");
    let mut memory = run.memory;
    assert!(memory.gone.contains(&1) && run.tasks[0].1.outcome.is_none(), "it has gone on");
    memory.asks = 0;
    let open =
        |memory: &mut Memory, tag: u32| memory.run(Task::new(|io| opening(Mode::Both(1), TINY, 0, tag).join(io)));
    assert_eq!(open(&mut memory, 10).map(drop), Err(NotOpened::Leaving));
    memory.run(Task::new(|io| opening(Mode::Both(1), TINY, 0, 11).go_alone(io))).expect("both are there");
    let late = Rc::new(open(&mut memory, 12).expect("a store"));
    assert_eq!(memory.run(task(&late, KEY, Op::Get)), Ok(Step::Get(Some(7))));
}

/// A scene by which a mistake shows.
type Scene = fn(Rules) -> Result<(), String>;

/// Each front end is told of the end of another node.
fn each_loses_one(rules: Rules) -> Result<(), String> {
    let accident = Accident { cut: Some((0, 0, 0)), other: Some((1, 1, 0)), ..Accident::default() };
    judged(rules, [Op::Set(1), Op::Set(2)], true, accident, &mut Every::new(0))
}

/// One is told of the first node's end.
fn one_loses_the_first(rules: Rules) -> Result<(), String> {
    let accident = Accident { cut: Some((0, 0, 0)), ..Accident::default() };
    judged(rules, [Op::Set(1), Op::Get], true, accident, &mut Every::new(0))
}

#[test]
fn mistakes_are_noticed() {
    let mistakes: [(Bug, Scene); 4] = [
        (Bug::IgnoreMark, one_loses_the_first),
        (Bug::LeaveUnasked, one_loses_the_first),
        (Bug::LeaveFirstUnheard, each_loses_one),
        (Bug::SettleUnmarked, late_helpers),
    ];
    for (bug, scene) in mistakes {
        scene(Rules::SOUND).expect("sound");
        let noticed = std::panic::catch_unwind(|| scene(Rules::without(bug)));
        println!("{bug:?}: {noticed:?}");
        assert!(!matches!(noticed, Ok(Ok(()))), "{bug:?} went unnoticed");
    }
}

/// The first that may go on does, so many times.
struct Steps(usize);

impl Chooser for Steps {
    fn choose(&mut self, ready: &[usize]) -> Option<usize> {
        self.0 = self.0.checked_sub(1)?;
        ready.first().copied()
    }
}

/// The second node is lost to one front end. The other says nothing, and cannot be expelled from the first. So the
/// one waits, and goes on when the other does.
#[test]
fn a_silent_front_end_that_cannot_be_shut_out_ends_nobody() {
    let mut memory = Memory::copied();
    memory.unproven = true;
    let shards = [(); 2].map(|()| memory.join(TINY, Rules::SOUND, 0));
    memory.run(task(&shards[0], KEY, Op::Set(7))).expect("sound");
    (memory.cuts, memory.mapped) = (vec![(1, 1, memory.verbs)], BTreeSet::from([2]));
    let mut run = Run { memory, tasks: vec![(1, Running::new(task(&shards[0], KEY, Op::Set(8))))], now: 0 };
    run.until(&BTreeSet::from([0]), &mut Steps(20_000), None);
    assert_eq!(run.tasks[0].1.outcome, None, "it goes on");
    assert!(run.memory.gone.is_empty() && shards[0].reach.copies.is_held_up());
    for shard in &shards {
        run.tasks.push((shard.reach.tag, Running::new(ticks(&Rc::new(RefCell::new(Some(Rc::clone(shard))))))));
    }
    assert!(run.until(&BTreeSet::from([0]), &mut Every::new(0), None), "it does not go on");
    assert!(run.memory.gone.is_empty() && !shards[0].reach.copies.is_held_up());
    run.tasks.push((2, Running::new(task(&shards[1], KEY, Op::Get))));
    assert!(run.until(&BTreeSet::from([3]), &mut Every::new(0), None));
    let outcomes = [0, 3].map(|n| run.tasks[n].1.outcome.clone());
    assert_eq!(outcomes, [Some(Ok(Step::Set(8))), Some(Ok(Step::Get(Some(8))))]);
}
