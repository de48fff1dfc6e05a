//! What each operation costs in verbs and round trips, exactly. A change that costs more fails here.

mod world;

use farmem::Payload;
use farmem_kv::keyspace::Keyspace;
use farmem_kv::layout::Geometry;
use farmem_kv::object::{Type, Value};
use farmem_kv::rules::Rules;
use farmem_kv::shard::Shard;
use farmem_kv::task::{Ask, Task};
use std::rc::Rc;
use world::Memory;

/// Two front ends with room in their pieces, and the key `known`, which both have just seen.
fn scene() -> (Memory, Rc<Shard>, Rc<Shard>) {
    let mut memory = Memory::default();
    let [one, other] = [(), ()].map(|()| memory.join(Geometry::STORE, Rules::SOUND, 64 << 10));
    for shard in [&one, &other] {
        // Takes a piece, so that what follows is not charged for it.
        let held = Rc::clone(shard);
        memory.run(Task::new(|io| async move { held.index.put(&io, b"room", &value("x")).await })).expect("room");
    }
    // The near cache keeps no object of a size like this, only its slot.
    for (key, bytes) in [(&b"known"[..], 1), (b"large", 3000)] {
        let first = Rc::clone(&one);
        let put = move |io| async move { first.index.put(&io, key, &value(&"1".repeat(bytes))).await };
        memory.run(Task::new(put)).expect("room");
        for shard in [&one, &other] {
            let shard = Rc::clone(shard);
            memory.run(Task::new(|io| async move { shard.index.find(&io, key).await.map(drop) })).expect("sound");
        }
    }
    (memory, one, other)
}

fn value(text: &str) -> Value {
    Value::string(text)
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Get(&'static str),
    Set(&'static str),
    Delete(&'static str),
    Evict(&'static str),
}

fn cost(memory: &mut Memory, shard: &Rc<Shard>, op: Op) -> (u64, u64) {
    let shard = Rc::clone(shard);
    let at = match op {
        Op::Evict(key) => {
            let index = Rc::clone(&shard.index);
            let found = memory.run(Task::new(|io| async move { index.find(&io, key.as_bytes()).await }));
            found.expect("sound").map(|found| found.slot.at(shard.reach.node))
        }
        _ => None,
    };
    let (done, verbs, trips) = memory.ledger(|io| async move {
        match op {
            Op::Get(key) => shard.index.find(&io, key.as_bytes()).await.map(drop),
            Op::Set(key) => shard.index.put(&io, key.as_bytes(), &value("2")).await,
            Op::Delete(key) => shard.index.remove(&io, key.as_bytes()).await.map(drop),
            Op::Evict(key) => shard.index.discard(&io, key.as_bytes(), at).await.map(|went| assert!(went, "{key}")),
        }
    });
    done.expect("sound");
    (verbs, trips)
}

#[test]
fn each_operation_costs_what_it_should() {
    // verbs, round trips
    for (known, op, expected) in [
        (true, Op::Get("known"), (1, 1)),
        (true, Op::Get("large"), (2, 1)),
        (false, Op::Get("known"), (3, 2)),
        (false, Op::Get("absent"), (2, 1)),
        (true, Op::Set("known"), (2, 1)),
        (false, Op::Set("known"), (5, 3)),
        (false, Op::Set("large"), (5, 3)),
        (false, Op::Set("absent"), (7, 3)),
        (true, Op::Delete("known"), (1, 1)),
        (false, Op::Delete("known"), (4, 3)),
        // The front end that has linked the object, and another one.
        (true, Op::Evict("known"), (1, 1)),
        (true, Op::Evict("large"), (1, 1)),
        (false, Op::Evict("known"), (4, 3)),
        (false, Op::Delete("absent"), (2, 1)),
    ] {
        let (mut memory, one, _) = scene();
        let shard = if known {
            one
        } else {
            // One that knows no slot and has room.
            let cold = memory.join(Geometry::STORE, Rules::SOUND, 0);
            cost(&mut memory, &cold, Op::Set("cold"));
            cold
        };
        assert_eq!(cost(&mut memory, &shard, op), expected, "{op:?}, slot known: {known}");
    }
}

/// A block goes out with the CAS of its pending slot, and not at all if the key is there.
#[test]
fn a_block_costs_what_it_should() {
    let (mut memory, one, _) = scene();
    let block: Payload = vec![7; 64 << 10].into();
    let add = |memory: &mut Memory, key: &'static [u8]| {
        let (shard, block) = (Rc::clone(&one), block.clone());
        let (done, verbs, trips) = memory.ledger(|io| async move {
            shard.index.add(&io, key, (Type::Block, None), &block).await.map(|there| there.is_none())
        });
        (done.expect("sound"), verbs, trips)
    };
    // A piece is taken only where the key is absent, which is looked at first.
    assert_eq!(add(&mut memory, b"1"), (true, 14, 8));
    assert_eq!(add(&mut memory, b"1"), (false, 2, 1));
    // Pieces grow with what there is. The last one has room for the next.
    for key in [&b"2"[..], b"3"] {
        assert!(add(&mut memory, key).0);
    }
    // READ 2 buckets; WRITE 2, CAS pending, READ 2; CAS plain.
    assert_eq!(add(&mut memory, b"4"), (true, 8, 3));
    // Its slot is known: READ the slot, READ the key.
    assert_eq!(add(&mut memory, b"4"), (false, 2, 1));
    let shard = Rc::clone(&one);
    let (found, verbs, trips) = memory.ledger(|io| async move { shard.index.brief(&io, b"4").await });
    let found = found.expect("sound").expect("it is there");
    assert_eq!((found.told(), found.value().len(), verbs, trips), (64 << 10, 0, 2, 1));
}

#[test]
fn what_another_changed_costs_one_look_more() {
    let (mut memory, one, other) = scene();
    assert_eq!(cost(&mut memory, &other, Op::Set("known")), (2, 1));
    // The slot is not what it was: both buckets, then the object.
    assert_eq!(cost(&mut memory, &one, Op::Get("known")), (4, 3));
    assert_eq!(cost(&mut memory, &one, Op::Get("known")), (1, 1));
}

#[test]
fn a_front_end_that_is_alone_reads_without_a_verb() {
    let mut memory = Memory::default();
    let shard = memory.join(Geometry::STORE, Rules::SOUND, 64 << 10);
    let ticks = Rc::clone(&shard);
    memory.run(Task::new(|io| async move { ticks.members.tick(&io, 0).await })).expect("alive");
    shard.near.lease.renew(0, 0);
    cost(&mut memory, &shard, Op::Set("known"));
    assert_eq!(cost(&mut memory, &shard, Op::Get("known")), (0, 0));
    assert_eq!(cost(&mut memory, &shard, Op::Set("known")), (2, 1));
    assert_eq!(cost(&mut memory, &shard, Op::Get("known")), (0, 0));
    // The near cache does not keep an object of a size like this. Its slot is as well known.
    let large = Rc::clone(&shard);
    memory
        .run(Task::new(|io| async move { large.index.put(&io, b"large", &value(&"1".repeat(3000))).await }))
        .expect("room");
    assert_eq!(cost(&mut memory, &shard, Op::Get("large")), (1, 1));
    shard.near.lease.now_ms.set(farmem_kv::shard::member::STALE_MS);
    assert_eq!(cost(&mut memory, &shard, Op::Get("large")), (2, 1));
    assert_eq!(cost(&mut memory, &shard, Op::Get("known")), (1, 1), "the lease is over");
}

/// Two front ends of a store, of which one replaces some of the other's objects; and the other's search for them.
fn searches(keys: u32, replaced: u32) -> [(usize, u64, u64); 2] {
    let mut memory = Memory::default();
    let [owner, other] = [(), ()].map(|()| memory.join(Geometry::STORE, Rules::SOUND, 64 << 10));
    let put = |memory: &mut Memory, shard: &Rc<Shard>, n: u32| {
        let shard = Rc::clone(shard);
        let put = move |io| async move { shard.index.put(&io, format!("k{n}").as_bytes(), &value("v")).await };
        memory.run(Task::new(put)).expect("room");
    };
    (0..keys).for_each(|n| put(&mut memory, &owner, n));
    (0..replaced).for_each(|n| put(&mut memory, &other, n));
    [(), ()].map(|()| {
        let owner = Rc::clone(&owner);
        memory.ledger(|io| async move { owner.recovery.scavenge(&io).await })
    })
}

#[test]
fn an_owner_reads_a_table_to_find_its_objects_that_others_have_replaced() {
    // Of few objects each may take a READ of 8 bytes.
    let [(found, verbs, trips), again] = searches(20, 5);
    assert!(found == 5 && verbs <= 20 && trips == 1, "{found} by {verbs} verbs in {trips} trips");
    assert!(again.0 == 0 && again.1 <= 15 && again.2 == 1, "{again:?}");
    // Of many in a table one READ proves hundreds.
    let (keys, replaced) = (4000, 1000);
    let [(found, verbs, _), _] = searches(keys, replaced);
    assert!(found == replaced as usize && verbs < 50, "{found} by {verbs} verbs");
    // Tables have been split since many were linked. Those that are looked up once are known then.
    let (keys, replaced) = (15_000, 1000);
    let [(found, ..), (none, verbs, _)] = searches(keys, replaced);
    assert!(found == replaced as usize && none == 0 && verbs < 400, "{found}, then {none} by {verbs} verbs");
}

#[test]
fn updates_for_ever_take_no_more_memory() {
    let mut memory = Memory::default();
    let shard = memory.join(Geometry::STORE, Rules::SOUND, 64 << 10);
    let mut most = 0;
    for round in 0..3000u64 {
        cost(&mut memory, &shard, Op::Set("known"));
        if round % 20 == 0 {
            let ticks = Rc::clone(&shard);
            memory.run(Task::new(|io| async move { ticks.members.tick(&io, round).await })).expect("alive");
        }
        most = most.max(shard.space.bytes());
    }
    assert!(most <= 16 << 10, "{most} bytes for one key");
}

#[test]
fn a_node_that_stands_still_makes_nobody_dead() {
    let (mut memory, one, other) = scene();
    for now_ms in [0, 500, 1000, 60_000, 60_500] {
        for shard in [&one, &other] {
            // Only the first gets through at once when the node goes on.
            let shard = Rc::clone(shard);
            memory.run(Task::new(|io| async move { shard.members.tick(&io, now_ms).await })).expect("alive");
        }
    }
}

#[test]
fn a_dead_front_ends_memory_is_taken_over() {
    let (mut memory, one, other) = scene();
    for n in 0..200 {
        let (shard, key) = (Rc::clone(&one), format!("key{n}"));
        memory
            .run(Task::new(|io| async move { shard.index.put(&io, key.as_bytes(), &value("v")).await }))
            .expect("room");
    }
    // An insert that its front end does not live to decide, at each of its verbs.
    for verbs in 0..7 {
        let shard = Rc::clone(&one);
        let mut task = Task::new(|io| async move { shard.index.put(&io, b"torn", &value("v")).await });
        let mut left = verbs;
        while left > 0 && task.step().is_none() {
            for (id, ask) in task.asks() {
                let farmem_kv::task::Ask::Verbs(verbs) = ask else { continue };
                let answers: Vec<_> = verbs.iter().take(left).map(|verb| memory.execute(verb)).collect();
                left -= answers.len();
                if answers.len() == verbs.len() {
                    task.answer(id, answers);
                }
            }
        }
        let shard = Rc::clone(&other);
        memory.run(Task::new(|io| async move { shard.index.remove(&io, b"torn").await.map(drop) })).expect("sound");
    }
    let before = one.space.bytes();
    // The other sees its heartbeat stand still.
    for now_ms in (0..7000).step_by(500) {
        let shard = Rc::clone(&other);
        memory.run(Task::new(|io| async move { shard.members.tick(&io, now_ms).await })).expect("alive");
    }
    let shard = Rc::clone(&one);
    assert!(memory.run(Task::new(|io| async move { shard.members.tick(&io, 8000).await })).is_err(), "it was shut out");
    let shard = Rc::clone(&other);
    let adopted = memory.run(Task::new(|io| async move { shard.recovery.adopt(&io, 8000).await })).expect("sound");
    assert!(adopted > 0 && other.space.bytes() >= before);
    let shard = Rc::clone(&other);
    let count = memory.run(Task::new(|io| async move { shard.recovery.count(&io).await }));
    assert_eq!((count.problems, count.keys), (Vec::<String>::new(), 203));
}

#[test]
fn two_copies_cost_what_they_should() {
    for (op, expected) in [
        (Op::Get("known"), (1, 1)),
        (Op::Set("known"), (4, 2)),
        (Op::Delete("known"), (2, 2)),
        (Op::Set("absent"), (10, 5)),
    ] {
        let mut memory = Memory::copied();
        let shard = memory.join(Geometry::STORE, Rules::SOUND, 64 << 10);
        cost(&mut memory, &shard, Op::Set("known"));
        cost(&mut memory, &shard, Op::Get("known"));
        assert_eq!(cost(&mut memory, &shard, op), expected, "{op:?}");
    }
}

/// Keys that end cost their owner a look each, however many others there are.
#[test]
fn a_sweep_looks_at_ended_keys_only() {
    let (mut memory, one, _) = scene();
    let store = Rc::new(Keyspace::new("store", vec![Rc::clone(&one)], false, 0, 7));
    let fill = Rc::clone(&store);
    memory.run(Task::new(|io| async move {
        for n in 0..2000u64 {
            // One of forty ends in this second, and one of forty later.
            let expiry = [Some(5_000), Some(90_000)].into_iter().nth(n as usize % 40).flatten();
            let put = Value { expiry, ..value(&n.to_string()) };
            fill.put(&io, format!("key{n}").as_bytes(), &put).await.expect("room");
        }
    }));
    let sweep = |memory: &mut Memory, now_ms: u64| {
        store.set_now_ms(now_ms);
        let (store, before) = (Rc::clone(&store), store.figures.expired.get());
        let (_, verbs, _) = memory.ledger(|io| async move { store.sweep(&io, 10_000).await });
        (verbs, before)
    };
    assert_eq!(sweep(&mut memory, 4_999), (0, 0));
    // Two buckets and the forward word of each, and a CAS.
    assert_eq!(sweep(&mut memory, 6_000), (50 * 4, 0));
    assert_eq!(sweep(&mut memory, 7_000), (0, 50));
    let size = Rc::clone(&store);
    assert_eq!(memory.run(Task::new(|io| async move { size.size(&io).await.expect("sound") })), 1953);
    // A key that was stored anew is another object, which does not end.
    let (again, io_store) = (value("again"), Rc::clone(&store));
    memory.run(Task::new(|io| async move { io_store.put(&io, b"key1", &again).await.expect("room") }));
    assert_eq!(sweep(&mut memory, 91_000), (49 * 4, 50));
    assert_eq!(store.figures.expired.get(), 99);
}

/// A look at all keys, their end, and the freeing of their memory leave others their turns, also where memory is
/// mapped and no verb waits.
#[test]
fn all_keys_are_passed_in_turns() {
    let mut memory = Memory::default();
    let shard = memory.join(Geometry::STORE, Rules::SOUND, 64 << 10);
    let store = Rc::new(Keyspace::new("store", vec![Rc::clone(&shard)], false, 0, 7));
    let fill = Rc::clone(&store);
    memory.run(Task::new(|io| async move {
        for n in 0..20_000u64 {
            fill.put(&io, format!("key{n}").as_bytes(), &value("1")).await.expect("room");
        }
    }));
    let mut pauses = |task: Task<bool>| {
        let (mut task, mut pauses) = (task, 0);
        loop {
            if let Some(sound) = task.step() {
                assert!(sound);
                return pauses;
            }
            for (id, ask) in task.asks() {
                let answers = match ask {
                    Ask::Verbs(verbs) => verbs.iter().map(|verb| memory.execute(verb)).collect(),
                    Ask::Pause(_) => {
                        pauses += 1;
                        Vec::new()
                    }
                };
                task.answer(id, answers);
            }
        }
    };
    // At least 23 tables of 882 slots.
    let (size, clear) = (Rc::clone(&store), Rc::clone(&store));
    assert!(pauses(Task::new(|io| async move { size.size(&io).await == Ok(20_000) })) >= 1);
    assert!(pauses(Task::new(|io| async move { clear.clear(&io).await.is_ok() })) >= 23);
    // A tick frees 16 384 places at most: the others see between two that this front end lives.
    let mut freeing = 0;
    for now_ms in (0..10_000).step_by(1000) {
        let (ticks, before) = (Rc::clone(&shard), shard.space.retired_bytes());
        pauses(Task::new(move |io| async move { ticks.members.tick(&io, now_ms).await.is_ok() }));
        freeing += usize::from(shard.space.retired_bytes() < before);
    }
    assert!(freeing >= 2 && shard.space.retired_bytes() == 0, "{freeing} ticks");
}

/// The front end that takes over a dead one's objects takes them out when they end.
#[test]
fn what_a_dead_front_end_has_left_ends() {
    let (mut memory, one, other) = scene();
    let put = Value { expiry: Some(20_000), ..value("1") };
    memory.run(Task::new(|io| async move {
        one.index.put(&io, b"short", &put).await.expect("room");
        one.members.leave(&io).await;
    }));
    let store = Keyspace::new("store", vec![Rc::clone(&other)], false, 0, 7);
    store.set_now_ms(21_000);
    memory.run(Task::new(|io| async move {
        assert!(!store.sweep(&io, 100).await && store.figures.expired.get() == 0);
        other.recovery.adopt(&io, 0).await.expect("sound");
        store.sweep(&io, 100).await;
        assert_eq!(store.figures.expired.get(), 1);
        assert!(other.index.find(&io, b"short").await.expect("sound").is_none());
        assert!(other.index.find(&io, b"known").await.expect("sound").is_some());
    }));
}
