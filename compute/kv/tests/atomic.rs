//! Changes of several keys at one moment: in every order beside other operations and each other, with
//! splits, with a front end that dies at any verb, at two nodes. Mistakes that this must notice.

mod world;

use farmem_kv::atomic::Intent;
use farmem_kv::keyspace::{Change, Keyspace};
use farmem_kv::object::Object;
use farmem_kv::rules::{Bug, Rules};
use farmem_kv::shard::index::{Found, Removed};
use farmem_kv::shard::{Shard, Trouble};
use farmem_kv::task::{Ask, Io, Task};
use std::rc::Rc;
use world::linear::{Call, Model, check};
use world::ops::{KEY, TINY, number, sibling, value};
use world::{Chooser, Ended, Memory, Random, Running, every, interleave};

/// Two keys: absent, or a number each.
type State = [Option<u64>; 2];

/// What is done to them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    /// Moves 1 from one key to the other, if there is one. A key of 0 is absent.
    Move(usize),
    /// Each gets what the other has.
    Swap,
    /// Reads both, by locks.
    Look,
    /// Reads both, and looks whether they are still so; after some attempts by locks.
    Glance,
    /// Takes both out, whatever they are.
    Both,
    /// [`Op::Move`] from the first key, [`Op::Swap`] and [`Op::Look`] on keys that are seized.
    MoveSeized,
    SwapSeized,
    LookSeized,
    /// Sets a key if the other is absent.
    First(usize),
    Get(usize),
    Set(usize, u64),
    Delete(usize),
}

impl Op {
    /// The state after it.
    fn after(self, [one, other]: State) -> State {
        let positive = |n: u64| Some(n).filter(|&n| n > 0);
        let moved = |from: Option<u64>, to: Option<u64>| match from {
            None | Some(0) => (from, to),
            Some(n) => (positive(n - 1), Some(to.unwrap_or(0) + 1)),
        };
        let set = |which: usize, value| if which == 0 { [value, other] } else { [one, value] };
        match self {
            Op::Move(0) => moved(one, other).into(),
            Op::Move(_) => {
                let (other, one) = moved(other, one);
                [one, other]
            }
            Op::MoveSeized => moved(one, other).into(),
            Op::Swap | Op::SwapSeized => [other, one],
            Op::Look | Op::LookSeized | Op::Glance | Op::Get(_) => [one, other],
            Op::Both => [None, None],
            Op::First(0) if other.is_none() => [Some(7), other],
            Op::First(1) if one.is_none() => [one, Some(7)],
            Op::First(_) => [one, other],
            Op::Set(which, n) => set(which, Some(n)),
            Op::Delete(which) => set(which, None),
        }
    }
}

/// An operation, and what it saw of each key, if it is known.
type Done = (Op, [Option<Option<u64>>; 2]);

struct Pair;

impl Model for Pair {
    type State = State;
    type Operation = Done;

    fn apply(state: &State, (op, seen): &Done) -> Option<State> {
        let fits = seen.iter().zip(state).all(|(seen, is)| seen.is_none_or(|seen| seen == *is));
        fits.then(|| op.after(*state))
    }
}

/// Looks at two keys before they are locked, as commands do it.
const GLANCES: u32 = 8;

/// A front end's store, the keys, and its shards.
#[derive(Clone)]
struct Front {
    store: Rc<Keyspace>,
    keys: [Vec<u8>; 2],
}

impl Front {
    fn new(shards: Vec<Rc<Shard>>, keys: [Vec<u8>; 2]) -> Front {
        let seed = u64::from(shards[0].reach.me.line) + 5;
        Front { store: Rc::new(Keyspace::new("atomic", shards, false, 0, seed)), keys }
    }

    fn shards(&self) -> Vec<Rc<Shard>> {
        self.store.shards.clone()
    }
}

fn is(object: Option<&Object>) -> Option<u64> {
    object.map(|object| number(object.value()))
}

async fn perform(front: Front, io: Io, op: Op) -> Result<Done, Trouble> {
    let (store, keys) = (&front.store, &front.keys);
    let alone = |which: usize, seen| if which == 0 { [Some(seen), None] } else { [None, Some(seen)] };
    match op {
        Op::Get(which) => {
            let found = store.find(&io, &keys[which]).await?;
            Ok((op, alone(which, is(found.as_ref().map(|found| &found.object)))))
        }
        Op::Set(which, n) => {
            store.put(&io, &keys[which], &value(n)).await?;
            Ok((op, [None, None]))
        }
        Op::Delete(which) => {
            let shard = &store.shards[farmem_kv::layout::Hash::of(&keys[which]).shard(store.shards.len())];
            let removed = shard.index.remove(&io, &keys[which]).await?;
            let absent = matches!(removed, Removed::Absent);
            Ok((op, if absent { alone(which, None) } else { [None, None] }))
        }
        // Decided by what is locked.
        Op::Swap | Op::First(_) => {
            let mut seen = [None, None];
            let mut decide = |there: &[Option<&Object>]| {
                seen = [is(there[0]), is(there[1])];
                let after = op.after(seen);
                Some((0..2).map(|n| (after[n] != seen[n]).then(|| after[n].map(value))).collect())
            };
            assert!(store.commit_by(&io, keys, &mut decide, &|| false).await?);
            Ok((op, seen.map(Some)))
        }
        Op::Glance => {
            for _ in 0..GLANCES {
                let _sections: Vec<_> = store.shards.iter().map(|shard| shard.space.section()).collect();
                let mut seen = Vec::new();
                for key in keys {
                    seen.push((key.clone(), store.sight(&io, key).await?));
                }
                if store.are_unchanged(&io, &seen).await {
                    let of = |n: usize| Some(is(seen[n].1.object.as_ref()));
                    return Ok((op, [of(0), of(1)]));
                }
            }
            // A table that a dead front end has left half-split stays frozen for those who only look. Whoever puts
            // locks in completes the split.
            Box::pin(perform(front.clone(), io, Op::Look)).await
        }
        Op::Both => {
            let intents = keys.iter().map(|key| Intent { key: key.clone(), change: Some(None) }).collect();
            let there = store.change_all(&io, intents, &|| false).await?;
            let absent = |n: usize| (!there.contains(&keys[n])).then_some(None);
            Ok((op, [absent(0), absent(1)]))
        }
        Op::MoveSeized | Op::SwapSeized | Op::LookSeized => loop {
            let seized = store.begin_seizing(&io).await;
            // One is asked for after the other was read.
            let Some(seized) = store.seize(&io, seized, &keys[..1]).await? else { continue };
            let Some(seized) = store.seize(&io, seized, &keys[1..]).await? else { continue };
            let mut seen = [None, None];
            for (seen, (_, there)) in seen.iter_mut().zip(seized.there(store)) {
                *seen = is(there.map(|found| &found.object));
            }
            let after = op.after(seen);
            let intent =
                |n: usize| Intent { key: keys[n].clone(), change: (after[n] != seen[n]).then(|| after[n].map(value)) };
            if store.commit_seized(&io, seized, vec![intent(0), intent(1)]).await? {
                return Ok((op, seen.map(Some)));
            }
        },
        Op::Move(_) | Op::Look => loop {
            let mut seen = [None, None];
            for (seen, key) in seen.iter_mut().zip(keys) {
                *seen = is(store.find(&io, key).await?.as_ref().map(|found| &found.object));
            }
            let after = op.after(seen);
            let intent =
                |n: usize| Intent { key: keys[n].clone(), change: (after[n] != seen[n]).then(|| after[n].map(value)) };
            let as_read = |key: &[u8], there: Option<&Found>| {
                is(there.map(|found| &found.object)) == seen[usize::from(key != keys[0])]
            };
            if store.commit(&io, vec![intent(0), intent(1)], &as_read, &|| false).await? {
                return Ok((op, seen.map(Some)));
            }
        },
    }
}

fn task(front: &Front, op: Op) -> Task<Result<Done, Trouble>> {
    let front = front.clone();
    Task::new(|io| perform(front, io, op))
}

struct Scene {
    memory: Memory,
    fronts: Vec<Front>,
    start: State,
}

/// `fill` other keys are in the first table.
fn scene(memory: Memory, rules: Rules, fronts: usize, start: State, fill: usize, shards: u8) -> Scene {
    let mut memory = memory;
    let keys = if shards == 1 { [KEY.to_vec(), sibling(0)] } else { apart() };
    let join = |memory: &mut Memory| Front::new(memory.join_all(TINY, rules, 64 << 10, shards), keys.clone());
    let fronts: Vec<Front> = (0..fronts).map(|_| join(&mut memory)).collect();
    for n in 1..=fill {
        let (store, key) = (Rc::clone(&fronts[n % fronts.len()].store), sibling(n));
        memory.run(Task::new(|io| async move { store.put(&io, &key, &value(9)).await })).expect("room");
    }
    for (n, value) in start.iter().enumerate().filter_map(|(n, value)| Some((n, (*value)?))) {
        memory.run(task(&fronts[n % fronts.len()], Op::Set(n, value))).expect("room");
        for front in &fronts {
            memory.run(task(front, Op::Get(n))).expect("sound");
        }
    }
    Scene { memory, fronts, start }
}

/// Two keys on two shards.
fn apart() -> [Vec<u8>; 2] {
    let on = |wanted: usize| {
        let mut keys = (0..).map(|n: u32| format!("a{n}").into_bytes());
        keys.find(|key| farmem_kv::layout::Hash::of(key).shard(2) == wanted).expect("some")
    };
    [on(0), on(1)]
}

fn history(ops: &[Op], ended: &[Ended<Result<Done, Trouble>>]) -> Vec<Call<Done>> {
    let call = |(&op, one): (&Op, &Ended<Result<Done, Trouble>>)| {
        let (operation, ended) = match one.outcome {
            // It may have taken effect, or may yet.
            None | Some(Err(Trouble::Unsettled)) => ((op, [None, None]), None),
            Some(done) => (done.expect("sound"), one.ended),
        };
        Call { operation, begun: one.begun as u64 * 2, ended: ended.map(|at| at as u64 * 2 + 1) }
    };
    ops.iter().zip(ended).filter(|(_, one)| one.begun != usize::MAX).map(call).collect()
}

/// Lets the last front end find all others dead, take over their memory and use it again.
fn take_over(memory: &mut Memory, stays: &Front, uses: u64) {
    let run = |memory: &mut Memory, shard: &Rc<Shard>, now_ms: u64, adopts: bool| {
        let shard = Rc::clone(shard);
        memory.run(Task::new(|io| async move {
            shard.members.tick(&io, now_ms).await.expect("alive");
            if adopts {
                shard.recovery.adopt(&io, now_ms).await.expect("sound");
            }
        }));
    };
    // One after the other: each uses its memory again before the next is looked at.
    for shard in stays.shards() {
        (0..9000).step_by(500).for_each(|now_ms| run(memory, &shard, now_ms, false));
        // The second look frees pieces that have no owner.
        (0..3).for_each(|look| run(memory, &shard, 9000 + look * 11_000, true));
        // Other keys use what was left, objects as well as locks.
        for n in 0..uses {
            run(memory, &shard, 40_000 + n, false);
            let (store, key) = (Rc::clone(&stays.store), format!("later{n}").into_bytes());
            let value = if n % 2 == 0 { value(n) } else { farmem_kv::object::Value::string(vec![7; 60]) };
            memory.run(Task::new(|io| async move { store.put(&io, &key, &value).await })).expect("room");
        }
    }
}

/// Runs the operations in one order and looks at the keys from everywhere. `dies`: whoever is dropped is
/// found dead, and its memory used again, so often. Whether the first operation has ended.
fn judge(scene: Scene, ops: &[Op], chooser: &mut dyn Chooser, dies: Option<u64>) -> Result<bool, String> {
    let Scene { mut memory, mut fronts, start } = scene;
    let tasks = ops.iter().enumerate().map(|(n, &op)| task(&fronts[n % fronts.len()], op)).collect();
    let ended = interleave(&mut memory, tasks, chooser);
    let mut calls = history(ops, &ended);
    if let Some(uses) = dies {
        let stays = fronts.pop().expect("one");
        fronts = vec![stays];
        take_over(&mut memory, &fronts[0], uses);
    }
    for (n, front) in fronts.iter().enumerate() {
        for look in 0..2u64 {
            for op in [Op::Get(0), Op::Get(1)] {
                let done = memory.run(task(front, op)).map_err(|e| e.to_string())?;
                let at = u64::MAX - 1000 + 100 * n as u64 + 10 * look + 2 * u64::from(op == Op::Get(1));
                calls.push(Call { operation: done, begun: at, ended: Some(at + 1) });
            }
        }
    }
    for shard in fronts[0].shards() {
        let count = memory.run(Task::new(|io| async move { shard.recovery.count(&io).await }));
        let goes = |problem: &&String| problem.contains("nobody's") || problem.contains("that is gone");
        if let Some(problem) = count.problems.iter().find(|problem| dies.is_some() || !goes(problem)) {
            return Err(problem.clone());
        }
        if dies.is_some() && count.pending > 0 {
            return Err(format!("{} locks are left", count.pending));
        }
    }
    if check::<Pair>(start, &calls) {
        Ok(ended[0].outcome.is_some())
    } else {
        Err(format!("not in one order: {calls:?}"))
    }
}

const STARTS: [State; 4] = [[Some(3), Some(5)], [Some(1), None], [None, Some(2)], [None, None]];

/// Every order of two operations; the number of orders, or the first that is not sound.
fn every_order(rules: Rules, pairs: &[[Op; 2]], switches: usize, fill: usize) -> Result<usize, String> {
    let mut orders = 0;
    for ops in pairs {
        for start in STARTS {
            orders += every(switches, |order| {
                judge(scene(Memory::default(), rules, 2, start, fill, 1), ops, order, None)
                    .map(drop)
                    .map_err(|why| format!("{ops:?} from {start:?}: {why}"))
            })?;
        }
    }
    Ok(orders)
}

fn pairs() -> Vec<[Op; 2]> {
    let beside = [Op::Move(0), Op::Move(1), Op::Look, Op::Get(0), Op::Get(1), Op::Set(1, 8), Op::Delete(0)];
    let pairs = [Op::Move(0), Op::Swap].into_iter().flat_map(|op| beside.map(|other| [op, other]));
    let others = [
        [Op::First(0), Op::First(1)],
        [Op::First(0), Op::Set(1, 8)],
        [Op::Glance, Op::Move(0)],
        [Op::Glance, Op::Set(0, 8)],
        [Op::Both, Op::Set(1, 8)],
        [Op::Both, Op::Swap],
        [Op::MoveSeized, Op::Set(1, 8)],
        [Op::MoveSeized, Op::Delete(0)],
        [Op::SwapSeized, Op::Move(0)],
        [Op::SwapSeized, Op::SwapSeized],
        [Op::LookSeized, Op::Move(1)],
        [Op::LookSeized, Op::Set(0, 8)],
    ];
    pairs.chain(others).collect()
}

#[test]
fn two_operations_in_every_order() {
    let orders = every_order(Rules::SOUND, &pairs(), 2, 0).expect("at one moment");
    assert!(orders > 5000, "{orders}");
}

/// One step of the first task, then some of the second, so that much happens between two verbs of the first.
struct Beside {
    numbers: farmem_protocol::random::Random,
    left: u64,
}

impl Chooser for Beside {
    fn choose(&mut self, ready: &[usize]) -> Option<usize> {
        if !ready.contains(&0) || self.left > 0 && ready.contains(&1) {
            self.left = self.left.saturating_sub(1);
            return Some(1);
        }
        self.left = self.numbers.below(2) * self.numbers.below(80);
        Some(0)
    }
}

/// Another front end moves a number to and fro, beside one that looks at both keys: one of them is always there.
fn glances(rules: Rules, seeds: std::ops::Range<u64>) -> Result<(), String> {
    for seed in seeds {
        let Scene { mut memory, fronts, .. } = scene(Memory::default(), rules, 2, [None, Some(1)], 2, 1);
        let (looks, moves) = (fronts[0].clone(), fronts[1].clone());
        let look = move |io| async move { perform(looks, io, Op::Glance).await };
        let to_and_fro = move |io: Io| async move {
            for n in 0..8 {
                perform(moves.clone(), io.clone(), Op::Move(1 - n % 2)).await?;
            }
            Ok((Op::Glance, [None, None]))
        };
        let tasks = vec![Task::new(look), Task::new(to_and_fro)];
        let mut chooser = Beside { numbers: farmem_protocol::random::Random::new(seed), left: 0 };
        let ended = interleave(&mut memory, tasks, &mut chooser);
        let seen = ended[0].outcome.map(|seen| seen.expect("sound").1);
        let there = |seen: Option<Option<u64>>| usize::from(seen.flatten().is_some());
        match seen {
            Some([one, other]) if there(one) + there(other) == 1 => {}
            seen => return Err(format!("seed {seed}: {seen:?}")),
        }
    }
    Ok(())
}

#[test]
fn keys_that_are_absent_are_seen_at_one_moment_too() {
    glances(Rules::SOUND, 0..20_000).expect("one of them is there");
}

/// A front end's lease, by which it knows that no other serves the store.
fn is_alone(memory: &mut Memory, shard: Rc<Shard>) {
    memory.run(Task::new(|io| async move {
        shard.near.lease.now_ms.set(1);
        assert!(!shard.members.tick(&io, 1).await.expect("alive").company);
        shard.near.lease.renew(1, 1);
    }));
}

/// At a front end that is alone: keys are changed whatever they are, beside a transaction that only locks one of them, and
/// inserts that split tables. Whoever sees a new value sees no old one after that.
fn lone(rules: Rules, seeds: std::ops::Range<u64>) -> Result<(), String> {
    const KEYS: usize = 20;
    for seed in seeds {
        let mut memory = Memory::default();
        // Of some keys the front end must read where they are.
        let local = if seed % 4 < 2 { 64 << 10 } else { 3 << 10 };
        let front = Front::new(memory.join_all(TINY, rules, local, 1), [KEY.to_vec(), sibling(0)]);
        let shard = Rc::clone(&front.shards()[0]);
        is_alone(&mut memory, shard);
        let store = Rc::clone(&front.store);
        memory.run(Task::new(|io| async move {
            for key in (0..KEYS).map(sibling).chain([KEY.to_vec()]) {
                store.put(&io, &key, &value(1)).await.expect("room");
            }
        }));
        let [changes, locks, looks, inserts] = [0; 4].map(|_| Rc::clone(&front.store));
        let change = move |io| async move {
            let intent = |n| Intent { key: sibling(n), change: Some(Some(value(2))) };
            changes.change_all(&io, (0..KEYS).map(intent).collect(), &|| false).await.map(|there| there.len() == KEYS)
        };
        // It reads a key that is changed beside it, and changes another one.
        let lock = move |io| async move {
            let read = Intent { key: sibling(seed as usize % KEYS), change: None };
            let other = Intent { key: KEY.to_vec(), change: Some(Some(value(3))) };
            locks.commit(&io, vec![read, other], &|_, _| true, &|| false).await
        };
        let mut numbers = farmem_protocol::random::Random::new(seed);
        let order: Vec<usize> = (0..12).map(|_| numbers.index(KEYS)).collect();
        let look = move |io: Io| async move {
            let mut seen = Vec::new();
            for n in order {
                let found = looks.get(&io, &sibling(n)).await?.expect("it is there");
                seen.push(number(found.object.value()));
                io.pause(0).await;
            }
            Ok(seen.is_sorted())
        };
        let insert = move |io| async move {
            for n in KEYS..KEYS + 30 {
                inserts.put(&io, &sibling(n), &value(1)).await?;
            }
            Ok(true)
        };
        let mut tasks = vec![Some(Task::new(change)), Some(Task::new(look))];
        tasks.push(Some(if seed % 2 == 0 { Task::new(lock) } else { Task::new(insert) }));
        while tasks.iter().any(Option::is_some) {
            let n = numbers.index(tasks.len());
            let Some(task) = &mut tasks[n] else { continue };
            match task.step() {
                Some(Ok(true)) => tasks[n] = None,
                Some(ended) => return Err(format!("seed {seed}: task {n}: {ended:?}")),
                // A front end's batches reach the node as a whole.
                None => {
                    for (id, ask) in task.asks() {
                        let answers = match ask {
                            Ask::Verbs(verbs) => verbs.iter().map(|verb| memory.execute(verb)).collect(),
                            Ask::Pause(_) => Vec::new(),
                        };
                        task.answer(id, answers);
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn keys_of_a_front_end_that_is_alone_are_changed_at_one_moment() {
    lone(Rules::SOUND, 0..3000).expect("at one moment");
}

/// What two front ends do to keys without end, and how many verbs of one go by for each of a third.
/// It changes the same keys, and comes about.
fn beside_changes_without_end(changes: &'static str, seeds: std::ops::Range<u64>) -> Result<(), String> {
    const KEYS: usize = 12;
    for seed in seeds {
        let mut memory = Memory::default();
        let fronts: Vec<Front> = (0..3)
            .map(|_| Front::new(memory.join_all(TINY, Rules::SOUND, 64 << 10, 1), [KEY.to_vec(), sibling(0)]))
            .collect();
        let keys: Vec<Vec<u8>> = (0..KEYS).map(sibling).collect();
        let (store, all) = (Rc::clone(&fronts[0].store), keys.clone());
        memory.run(Task::new(|io| async move {
            for key in &all {
                store.put(&io, key, &value(1)).await.expect("room");
            }
        }));
        let (store, all) = (Rc::clone(&fronts[0].store), keys.clone());
        let change = Task::new(move |io: Io| async move {
            let put = |n: u64| move |key: &Vec<u8>| Intent { key: key.clone(), change: Some(Some(value(n))) };
            match changes {
                "whatever they are" => {
                    let intents = all.iter().map(put(2)).collect();
                    store.change_all(&io, intents, &|| false).await.map(|there| there.len() == KEYS)
                }
                "by what they are" => {
                    let mut decide = |there: &[Option<&Object>]| {
                        let sum = there.iter().flatten().map(|object| number(object.value())).sum();
                        Some(there.iter().map(|_| Some(Some(value(sum)))).collect())
                    };
                    store.commit_by(&io, &all, &mut decide, &|| false).await
                }
                // One key, and it takes some time to tell what it becomes.
                _ => {
                    let change = |_: Option<&Object>| Ok::<_, Trouble>(Change::Put(value(3), true));
                    store.update(&io, &all[0], change).await
                }
            }
        });
        let others = [1, 2].map(|n| {
            let (store, keys) = (Rc::clone(&fronts[n].store), keys.clone());
            Task::new(move |io: Io| async move {
                for round in 0u64.. {
                    let key = &keys[(round as usize * 5 + n) % KEYS];
                    store.put(&io, key, &value(round)).await?;
                }
                Ok(true)
            })
        });
        let mut all: Vec<Running<Result<bool, Trouble>>> = vec![Running::new(change)];
        all.extend(others.map(Running::new));
        let mut numbers = farmem_protocol::random::Random::new(seed);
        let mut steps = 0;
        while all[0].outcome.is_none() {
            steps += 1;
            if steps > 60_000 {
                return Err(format!("seed {seed}: not after {steps} steps of its own"));
            }
            // The others have four steps for each of it. Those that wait for a lock see its
            // patience end seldom.
            all[0].advance(&mut memory, steps);
            for _ in 0..4 {
                let n = 1 + numbers.index(2);
                if !all[n].pauses() || numbers.index(200) == 0 {
                    all[n].advance(&mut memory, steps);
                }
            }
        }
        let ended = all.remove(0).outcome;
        if !matches!(ended, Some(Ok(true))) {
            return Err(format!("seed {seed}: {ended:?}"));
        }
    }
    Ok(())
}

#[test]
fn changes_of_several_keys_come_about_beside_others_without_end() {
    for changes in ["whatever they are", "by what they are", "one key"] {
        beside_changes_without_end(changes, 0..40).unwrap_or_else(|why| panic!("{changes}: {why}"));
    }
}

/// A front end that is alone dies at each verb of a batch that gives keys other values, or takes
/// them out. One that comes finds all of it or nothing, and takes the memory over.
fn alone_at_each_verb(rules: Rules) -> Result<(), String> {
    const KEYS: usize = 3;
    for gone in [false, true] {
        for step in 0.. {
            let mut memory = Memory::default();
            let keys = || [KEY.to_vec(), sibling(0)];
            let front = Front::new(memory.join_all(TINY, rules, 64 << 10, 1), keys());
            let shard = Rc::clone(&front.shards()[0]);
            is_alone(&mut memory, shard);
            let store = Rc::clone(&front.store);
            memory.run(Task::new(|io| async move {
                for n in 0..KEYS {
                    store.put(&io, &sibling(n), &value(1)).await.expect("room");
                }
            }));
            let store = Rc::clone(&front.store);
            let change = move |io: Io| async move {
                let intent = |n| Intent { key: sibling(n), change: Some((!gone).then(|| value(2))) };
                store.change_all(&io, (0..KEYS).map(intent).collect(), &|| false).await
            };
            let mut chooser = Random::new(1);
            (chooser.switch, chooser.kill) = (u64::MAX, Some((step, 0)));
            let ended = interleave(&mut memory, vec![Task::new(change)], &mut chooser);
            let done = ended[0].outcome.as_ref().map(|there| there.as_ref().expect("sound").len());
            assert!(done.is_none_or(|there| there == KEYS));
            let comes = Front::new(memory.join_all(TINY, rules, 64 << 10, 1), keys());
            let shard = Rc::clone(&comes.shards()[0]);
            memory.run(Task::new(|io| async move {
                shard.members.await_others(&io).await.expect("alive");
                shard.end_batches(&io).await.expect("sound");
            }));
            for look in ["at once", "when the memory is taken over", "when it is used again"] {
                let mut seen = Vec::new();
                for n in 0..KEYS {
                    let store = Rc::clone(&comes.store);
                    let found = memory.run(Task::new(|io| async move { store.find(&io, &sibling(n)).await }));
                    seen.push(is(found.expect("sound").as_ref().map(|found| &found.object)));
                }
                let after = if gone { None } else { Some(2) };
                if seen != [after; KEYS] && (done.is_some() || seen != [Some(1); KEYS]) {
                    return Err(format!("{look}, gone {gone}, up to {step}: {seen:?}"));
                }
                take_over(&mut memory, &comes, if look == "at once" { 0 } else { 300 });
            }
            let shard = Rc::clone(&comes.shards()[0]);
            let count = memory.run(Task::new(|io| async move { shard.recovery.count(&io).await }));
            if let Some(problem) = count.problems.first() {
                return Err(format!("gone {gone}, up to {step}: {problem}"));
            }
            if done.is_some() {
                assert!(step > 8, "{step}");
                break;
            }
        }
    }
    Ok(())
}

#[test]
fn a_front_end_that_is_alone_and_dies_at_each_verb_leaves_no_half() {
    alone_at_each_verb(Rules::SOUND).expect("all or nothing");
}

/// Any order of three operations, with splits, one of them dropped in the middle and taken over.
fn at_random(rules: Rules, seeds: std::ops::Range<u64>, shards: u8, copied: bool) -> Result<(), String> {
    let all = [
        Op::Move(0),
        Op::Move(1),
        Op::Swap,
        Op::Look,
        Op::First(1),
        Op::Set(0, 7),
        Op::Set(1, 8),
        Op::Delete(0),
        Op::Get(1),
        Op::Glance,
        Op::Both,
        Op::SwapSeized,
        Op::LookSeized,
    ];
    for seed in seeds {
        let mut chooser = Random::new(seed);
        let start = STARTS[chooser.numbers.index(4)];
        let fill = if shards == 1 && seed % 2 == 0 { 14 + seed as usize / 2 % 2 } else { 2 };
        let mut ops: Vec<Op> = (0..3).map(|_| all[chooser.numbers.index(all.len())]).collect();
        ops[0] = [Op::Move(0), Op::Move(1), Op::Swap, Op::MoveSeized, Op::SwapSeized][chooser.numbers.index(5)];
        let dies = chooser.numbers.below(3) != 0;
        if dies {
            chooser.kill = Some((chooser.numbers.index(70), 0));
        }
        let memory = if copied { Memory::copied() } else { Memory::default() };
        judge(scene(memory, rules, 3, start, fill, shards), &ops, &mut chooser, dies.then_some(30))
            .map_err(|why| format!("seed {seed}: {ops:?} from {start:?}, {fill} others, dies {dies}: {why}"))?;
    }
    Ok(())
}

#[test]
fn three_operations_with_splits_and_crashes() {
    at_random(Rules::SOUND, 0..3000, 1, false).expect("at one moment");
}

#[test]
fn three_operations_on_two_shards_with_crashes() {
    at_random(Rules::SOUND, 0..2000, 2, false).expect("at one moment");
}

#[test]
fn three_operations_in_two_copies_with_crashes() {
    at_random(Rules::SOUND, 0..1000, 1, true).expect("at one moment");
}

/// A front end that dies at each verb, with nobody beside it. All of its memory is used again.
fn at_each_verb(rules: Rules) -> Result<(), String> {
    for (shards, start) in [1, 2].into_iter().flat_map(|shards| STARTS.map(|start| (shards, start))) {
        for op in [Op::Move(0), Op::Swap, Op::First(0), Op::MoveSeized, Op::SwapSeized] {
            for step in 0.. {
                let mut chooser = Random::new(1);
                (chooser.switch, chooser.kill) = (u64::MAX, Some((step, 0)));
                let scene = scene(Memory::default(), rules, 2, start, 0, shards);
                let ended = judge(scene, &[op], &mut chooser, Some(300))
                    .map_err(|why| format!("{op:?} from {start:?} up to {step}, {shards} shards: {why}"))?;
                if ended {
                    break;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_front_end_that_dies_at_each_verb_leaves_nothing() {
    at_each_verb(Rules::SOUND).expect("at one moment");
}

#[test]
fn mistakes_are_noticed() {
    let notices = |bug: Bug, tries: &dyn Fn(Rules) -> Result<(), String>| {
        let noticed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tries(Rules::without(bug))));
        assert!(!matches!(noticed, Ok(Ok(()))), "{bug:?} went unnoticed");
    };
    for bug in [Bug::DecideUnlocked, Bug::TrustUndecided, Bug::LeaveAbsent] {
        notices(bug, &|rules| every_order(rules, &pairs(), 2, 0).map(drop));
    }
    notices(Bug::FreezeLocks, &|rules| at_random(rules, 0..20_000, 1, false));
    notices(Bug::TrustHolds, &|rules| every_order(rules, &[[Op::MoveSeized, Op::Set(1, 8)]], 2, 0).map(drop));
    notices(Bug::LeaveBatch, &alone_at_each_verb);
    notices(Bug::EmptyAlike, &|rules| glances(rules, 0..200_000));
    notices(Bug::LockUntold, &|rules| lone(rules, 0..50_000));
    notices(Bug::JudgeUnderLocks, &at_each_verb);
    notices(Bug::DropLocks, &at_each_verb);
}
