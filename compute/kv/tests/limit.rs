//! A store at its limit: which keys go for a write, and which writes are refused. Front ends whose
//! clock and ticks go on whenever an operation waits.

mod world;

use farmem_kv::keyspace::{Change, Keyspace};
use farmem_kv::layout::Geometry;
use farmem_kv::long::Writer;
use farmem_kv::object::Value;
use farmem_kv::rules::Rules;
use farmem_kv::shard::{Shard, Trouble};
use farmem_kv::task::{Ask, Io, Task};
use std::rc::Rc;
use world::Memory;

/// Some front ends of a store on one node.
struct Store {
    memory: Memory,
    fronts: Vec<(Rc<Shard>, Rc<Keyspace>)>,
    clock_ms: u64,
    /// Whether front ends keep a piece in reserve.
    keeps: bool,
}

impl Store {
    /// `limit`: as of `--maxmemory`; `None`: nothing is evicted.
    fn new(fronts: usize, limit: Option<u64>) -> Store {
        let mut memory = Memory::default();
        let front = |seed: usize| {
            let shard = memory.join(Geometry::STORE, Rules::SOUND, 0);
            shard.space.limit.set(limit.unwrap_or(u64::MAX));
            let store = Keyspace::new("limit", vec![Rc::clone(&shard)], limit.is_some(), 0, seed as u64);
            (shard, Rc::new(store))
        };
        let fronts = (0..fronts).map(front).collect();
        let mut store = Store { memory, fronts, clock_ms: 0, keeps: false };
        store.tick();
        store
    }

    /// A round of the work that front ends do beside commands.
    fn tick(&mut self) {
        self.clock_ms += 1;
        for (shard, store) in &self.fronts {
            store.set_clock_ms(self.clock_ms);
            let (shard, now_ms) = (Rc::clone(shard), self.clock_ms);
            let (store, keeps) = (Rc::clone(store), self.keeps);
            self.memory.run(Task::new(|io| async move {
                let ticked = shard.members.tick(&io, now_ms).await.expect("alive");
                shard.space.trim(&io).await;
                if keeps {
                    shard.space.keep_reserve(&io).await;
                }
                if ticked.wanted > 0 {
                    store.hand_over(&io, &shard, ticked.wanted).await.expect("sound");
                }
            }));
        }
    }

    /// Carries an operation of one front end out; how long it has waited, in ms.
    fn run<T, F: Future<Output = T> + 'static>(
        &mut self,
        front: usize,
        operation: impl FnOnce(Rc<Keyspace>, Io) -> F,
    ) -> (T, u64) {
        let (store, begun_ms) = (Rc::clone(&self.fronts[front].1), self.clock_ms);
        let mut task = Task::new(|io| operation(store, io));
        loop {
            if let Some(outcome) = task.step() {
                return (outcome, self.clock_ms - begun_ms);
            }
            for (id, ask) in task.asks() {
                let answers = match ask {
                    Ask::Verbs(verbs) => verbs.iter().map(|verb| self.memory.execute(verb)).collect(),
                    Ask::Pause(ms) => {
                        (0..ms).for_each(|_| self.tick());
                        Vec::new()
                    }
                };
                task.answer(id, answers);
            }
        }
    }

    fn put(&mut self, front: usize, key: &str, bytes: usize) -> Result<(), Trouble> {
        let (key, value) = (key.to_owned(), Value::string(vec![b'x'; bytes]));
        self.run(front, |store, io| async move { store.put(&io, key.as_bytes(), &value).await }).0
    }

    fn remove(&mut self, front: usize, key: &str) {
        let key = key.to_owned();
        self.run(front, |store, io| async move { store.remove(&io, key.as_bytes()).await }).0.expect("sound");
    }

    fn keys(&mut self) -> u64 {
        self.run(0, |store, io| async move { store.size(&io).await }).0.expect("sound")
    }

    fn evicted(&self) -> u64 {
        self.fronts.iter().map(|(_, store)| store.figures.evicted.get()).sum()
    }
}

#[test]
fn a_value_beyond_its_nodes_share_is_refused_before_a_key_goes() {
    let mut store = Store::new(1, Some(1 << 20));
    (0..100).for_each(|n| store.put(0, &format!("k{n}"), 1000).expect("room"));
    // An object has a piece of up to 2 MiB; a longer value several.
    for bytes in [1_500_000, 5_000_000] {
        assert_eq!(store.put(0, "large", bytes), Err(Trouble::Beyond));
    }
    assert_eq!((store.keys(), store.evicted()), (100, 0));
}

#[test]
fn places_for_a_long_value_are_held_before_another_is_read() {
    let mut store = Store::new(1, Some(6 << 20));
    store.fronts[0].0.space.longest.set((64 << 10) - 64);
    let long = 2_000_000;
    store.put(0, "read", long).expect("room");
    store.put(0, "other", long).expect("room");
    // The replaced value waits for the epoch. All of its memory is needed.
    store.put(0, "other", long).expect("room");
    let retired = store.fronts[0].0.space.retired_bytes();
    assert!(retired > 1_000_000, "{retired}");
    let (copied, waited_ms) = store.run(0, |store, io| async move {
        let mut writer = Writer::new(&store, b"copy", long as u64);
        writer.reserve(&io).await?;
        let found = store.find(&io, b"read").await?.expect("it is there");
        writer.copy(&io, &found, 0, long as u64).await?;
        let long = writer.end(&io).await?;
        drop(found);
        store.put(&io, b"copy", &long.head(None)).await
    });
    assert_eq!(copied, Ok(()));
    assert!(waited_ms < 100, "it waited {waited_ms} ms for what its own section kept");
    assert_eq!((store.keys(), store.evicted()), (3, 0));
}

#[test]
fn memory_of_objects_that_another_front_end_removed_is_used_again() {
    let mut store = Store::new(2, None);
    store.memory.limit = Some(4 << 20);
    let mut keys = 0;
    while store.put(0, &format!("k{keys}"), 4000).is_ok() {
        keys += 1;
    }
    assert!(keys > 500, "{keys}");
    (0..keys).for_each(|n| store.remove(1, &format!("k{n}")));
    assert_eq!(store.keys(), 0);
    // Nothing is live, and this front end was not told of it.
    (0..keys / 2).for_each(|n| store.put(0, &format!("n{n}"), 4000).expect("room"));
}

#[test]
fn a_front_end_that_comes_to_a_full_store_gets_room_and_few_keys_go() {
    let mut store = Store::new(2, Some(4 << 20));
    let keys = 2000;
    (0..keys).for_each(|n| store.put(0, &format!("k{n}"), 1000).expect("room"));
    // Until the first front end has all of the limit.
    let mut n = keys;
    while store.evicted() == 0 {
        store.put(0, &format!("k{n}"), 1000).expect("room");
        n += 1;
    }
    let before = store.keys();
    store.put(1, "new", 1000).expect("the others give room");
    let lost = before + 1 - store.keys();
    assert!(lost < before / 4, "{lost} of {before} keys went for one");
    // It goes on by what it has got, and by its own keys.
    (0..300).for_each(|n| store.put(1, &format!("n{n}"), 1000).expect("room"));
    assert!(store.keys() > before / 2, "{} of {before} keys are left", store.keys());
}

#[test]
fn an_idle_front_end_gives_back_what_others_have_removed() {
    let mut store = Store::new(2, None);
    store.memory.limit = Some(4 << 20);
    let mut keys = 0;
    while store.put(0, &format!("k{keys}"), 40_000).is_ok() {
        keys += 1;
    }
    assert!(keys > 30, "{keys}");
    (0..keys).for_each(|n| store.remove(1, &format!("k{n}")));
    (0..keys / 2).for_each(|n| store.put(1, &format!("n{n}"), 40_000).expect("the other front end gives it back"));
}

#[test]
fn a_value_of_another_size_takes_the_pieces_that_it_needs() {
    let mut store = Store::new(1, Some(4 << 20));
    let mut n = 0;
    while store.evicted() == 0 {
        store.put(0, &format!("k{n}"), 100).expect("room");
        n += 1;
    }
    let before = store.keys();
    store.put(0, "large", 500_000).expect("room");
    let lost = before + 1 - store.keys();
    assert!(lost < before / 4, "{lost} of {before} keys went for one");
}

#[test]
fn of_pieces_that_are_given_up_the_coldest_go_first() {
    let mut store = Store::new(1, Some(4 << 20));
    let (old, new) = (2000, 1000);
    store.fronts[0].1.set_now_ms(1_000_000);
    (0..old).for_each(|n| store.put(0, &format!("old{n}"), 1000).expect("room"));
    store.fronts[0].1.set_now_ms(2_000_000);
    (0..new).for_each(|n| store.put(0, &format!("new{n}"), 1000).expect("room"));
    // Pieces of the newer keys are the emptier ones.
    (0..new).step_by(2).for_each(|n| store.remove(0, &format!("new{n}")));
    (0..10).for_each(|_| store.tick());
    assert_eq!(store.evicted(), 0);
    store.put(0, "large", 500_000).expect("room");
    let mut lost = |key: String| {
        let found = store.run(0, |store, io| async move { store.find(&io, key.as_bytes()).await });
        usize::from(found.0.expect("sound").is_none())
    };
    let of_old: usize = (0..old).map(|n| lost(format!("old{n}"))).sum();
    let of_new: usize = (1..new).step_by(2).map(|n| lost(format!("new{n}"))).sum();
    // A piece has the last of the old ones and the first of the new ones.
    assert!(of_old > 300 && 10 * of_new < of_old, "{of_old} old ones, {of_new} new ones");
}

#[test]
fn a_front_end_that_a_full_node_leaves_without_room_gets_some() {
    let mut store = Store::new(2, Some(32 << 20));
    store.memory.limit = Some(4 << 20);
    let mut n = 0;
    while store.evicted() == 0 {
        store.put(0, &format!("k{n}"), 1000).expect("room");
        n += 1;
    }
    let before = store.keys();
    store.put(1, "new", 1000).expect("the other front end gives room");
    let lost = before + 1 - store.keys();
    assert!(lost < before / 4, "{lost} of {before} keys went for one");
    (0..100).for_each(|n| store.put(1, &format!("n{n}"), 1000).expect("room"));
}

/// In a full store that does not evict each value can be made smaller, again and again. Meanwhile writes that
/// want more are refused, or find room.
#[test]
fn values_can_be_made_smaller_in_a_full_store() {
    let mut store = Store::new(2, None);
    store.memory.limit = Some(4 << 20);
    let (mut keys, mut refused) = (0, 0);
    while store.put(0, &format!("k{keys}"), 2000).is_ok() {
        keys += 1;
    }
    assert!(keys > 1000, "{keys}");
    for round in 0..5 {
        for n in 0..keys {
            let (key, len) = (format!("k{n}"), 1800 - 180 * round);
            let made = store.run(0, move |store, io| async move {
                let change = |there: Option<&farmem_kv::object::Object>| -> Result<Change<()>, Trouble> {
                    assert!(there.is_some());
                    Ok(Change::Put(Value::string(vec![b'y'; len]), ()))
                };
                store.update(&io, key.as_bytes(), change).await
            });
            assert_eq!(made.0, Ok(()), "round {round}, key {n}");
            // The clock of a front end that works goes on.
            store.tick();
            if n % 400 == 0 {
                refused += usize::from(store.put(0, &format!("more{round}-{n}"), 2000).is_err());
            }
        }
    }
    assert!(refused > 0);
}

/// The same of values that have a piece each: from the first one on, which only the reserve has room for.
#[test]
fn large_values_can_be_made_smaller_in_a_full_store() {
    for len in [100_000, 700_000] {
        let mut store = Store::new(2, None);
        (store.keeps, store.memory.limit) = (true, Some(16 << 20));
        store.put(0, "k0", len).expect("room");
        // The front end learns what it needs in reserve before memory is used up.
        (0..10).for_each(|_| store.tick());
        let mut keys = 1;
        while store.put(0, &format!("k{keys}"), len).is_ok() {
            keys += 1;
        }
        assert!(keys > 10, "{keys}");
        for round in 1..4 {
            for n in 0..keys {
                let (key, len) = (format!("k{n}"), len - 9000 * round);
                let (made, waited_ms) = store.run(0, move |store, io| async move {
                    let change = |_: Option<&farmem_kv::object::Object>| -> Result<Change<()>, Trouble> {
                        Ok(Change::Put(Value::string(vec![b'y'; len]), ()))
                    };
                    store.update(&io, key.as_bytes(), change).await
                });
                assert_eq!(made, Ok(()), "round {round}, key {n} of {keys}, {len} bytes");
                assert!(waited_ms < 500, "it waited {waited_ms} ms");
            }
        }
        assert!(store.put(0, "more", len).is_err());
    }
}

/// Values of one front end, which another one makes smaller.
#[test]
fn large_values_of_others_can_be_made_smaller_in_a_full_store() {
    let (len, smaller) = (1_500_000, 1_200_000);
    let mut store = Store::new(2, None);
    (store.keeps, store.memory.limit) = (true, Some(32 << 20));
    store.put(0, "k0", len).expect("room");
    (0..10).for_each(|_| store.tick());
    let mut keys = 1;
    while store.put(0, &format!("k{keys}"), len).is_ok() {
        keys += 1;
    }
    assert!(keys > 8, "{keys}");
    for n in 0..keys {
        let key = format!("k{n}");
        let (made, _) = store.run(1, move |store, io| async move {
            let change = |_: Option<&farmem_kv::object::Object>| -> Result<Change<()>, Trouble> {
                Ok(Change::Put(Value::string(vec![b'y'; smaller]), ()))
            };
            store.update(&io, key.as_bytes(), change).await
        });
        assert_eq!(made, Ok(()), "key {n} of {keys}");
        (0..300).for_each(|_| store.tick());
    }
}

/// A write that is refused beside other front ends is so as soon as these have looked for what they can give.
#[test]
fn a_write_that_is_refused_beside_others_waits_for_their_look_alone() {
    let mut store = Store::new(3, None);
    store.memory.limit = Some(4 << 20);
    let mut keys = 0;
    while store.put(0, &format!("k{keys}"), 4000).is_ok() {
        keys += 1;
    }
    // Until it asks the others again.
    (0..7000).for_each(|_| store.tick());
    let refuse =
        |store: Rc<Keyspace>, io: Io| async move { store.put(&io, b"more", &Value::string(vec![b'x'; 4000])).await };
    let (refused, waited_ms) = store.run(0, refuse);
    assert_eq!(refused, Err(Trouble::Full));
    assert!((200..600).contains(&waited_ms), "{waited_ms} ms");
}
