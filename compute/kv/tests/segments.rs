//! Collections in segments: whole or not there, under crashes at each verb, and no segment is left
//! that the key's value does not need.

mod world;

use farmem_kv::object::{Type, Value};
use farmem_kv::rules::{Bug, Rules};
use farmem_kv::segments::{streams, units};
use farmem_kv::shard::Shard;
use farmem_kv::task::{Ask, Task, Verb};
use std::collections::VecDeque;
use std::rc::Rc;
use world::parts::{ITEMS, Op, is_sound, items, let_epochs_pass, perform, read, store, task, wrong};
use world::{Memory, Random, interleave};

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
        for op in [Op::Push(9, true), Op::Change(8), Op::Pop(false), Op::Add(9), Op::Note(9), Op::Trim] {
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

const CASES: [(&[Op], [Op; 2]); 18] = [
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
    (&[Op::PutStream(7)], [Op::Add(1), Op::Note(2)]),
    (&[Op::PutStream(7)], [Op::Trim, Op::Get]),
    (&[Op::PutStream(7), Op::Note(3)], [Op::Add(1), Op::Delete]),
    (&[Op::PutStream(7), Op::Add(3)], [Op::ChangeStream(1), Op::Note(2)]),
    (&[Op::PutStream(7), Op::Trim], [Op::Expire, Op::Add(2)]),
    (&[], [Op::PutStream(1), Op::Put(2)]),
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

/// A change whose CASes come too late, again and again, seizes its key. It sees the value as a
/// whole then.
#[test]
fn a_change_that_others_forestall_is_carried_out() {
    for (before, op, by) in [
        (Op::PutStream(7), Op::Add(1), Op::Note(2)),
        (Op::PutStream(7), Op::Note(1), Op::Add(2)),
        (Op::Put(7), Op::Push(1, true), Op::Change(2)),
        (Op::Put(7), Op::Change(1), Op::Push(2, true)),
    ] {
        let mut memory = Memory::default();
        let fronts = [1, 2].map(|seed| store(&mut memory, Rules::SOUND, seed));
        assert!(memory.run(task(&fronts[0].1, before)));
        let (mut slow, mut late) = (task(&fronts[0].1, op), 0);
        let sound = loop {
            if let Some(sound) = slow.step() {
                break sound;
            }
            for (id, ask) in slow.asks() {
                let verbs = if let Ask::Verbs(verbs) = ask { verbs } else { Vec::new() };
                if late < 16 && verbs.iter().any(|verb| matches!(verb, Verb::Cas { .. })) {
                    late += 1;
                    assert!(memory.run(task(&fronts[1].1, by)));
                }
                let answers = verbs.iter().map(|verb| memory.execute(verb)).collect();
                slow.answer(id, answers);
            }
        };
        assert!(sound && late == 16, "{op:?}");
        let reader = Rc::clone(&fronts[1].1);
        let seen =
            memory.run(Task::new(|io| async move { read(&reader, &io).await })).expect("sound").expect("a value");
        let count = |op| 16 * usize::from(by == op);
        if seen.kind() == Type::Stream {
            assert!(is_sound(Some(&seen)));
            let sides = streams::split(seen.value()).expect("sound");
            let [entries, noted] = sides.map(|side| units(Type::Stream, &side).count());
            // Beside what is pending: the stream's own item, a group's and a consumer's.
            let adds = usize::from(op == Op::Add(1));
            assert_eq!(
                (entries, noted),
                (9 + adds + count(Op::Add(2)), 3 + 3 + 1 - adds + count(Op::Note(2))),
                "{op:?}"
            );
        } else {
            let all = items(&seen).expect("sound");
            let pushed = usize::from(op == Op::Push(1, true)) + count(Op::Push(2, true));
            assert!(all.len() == ITEMS + pushed && all.contains(&1), "{op:?}: {all:?}");
        }
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
