//! Changes that are carried out at once, beside operations of the same and of another front end.

mod world;

use farmem_kv::keyspace::Keyspace;
use farmem_kv::layout::{At, Geometry, NODE_SHIFT};
use farmem_kv::object::Value;
use farmem_kv::rules::Rules;
use farmem_kv::shard::Shard;
use farmem_kv::shard::index::Mapped;
use farmem_kv::task::{Answer, Ask, Task, Verb};
use std::convert::Infallible;
use std::rc::Rc;
use world::Memory;

/// A memory that is mapped.
struct Here<'a>(&'a mut Memory);

impl Mapped for Here<'_> {
    type Lost = Infallible;

    fn has(&self, node: u8) -> bool {
        node == 0
    }

    fn write(&mut self, at: At, bytes: &[u8]) -> Result<(), Infallible> {
        assert_eq!(at >> NODE_SHIFT, 0);
        self.0.execute(&Verb::Write { at, bytes: Rc::new(bytes.to_vec()) });
        Ok(())
    }

    fn swap(&mut self, at: At, old: u64, new: u64) -> Result<u64, Infallible> {
        match self.0.execute(&Verb::Cas { at, old, new }) {
            Answer::Word(found) => Ok(found),
            other => panic!("{other:?}"),
        }
    }
}

fn store(shard: &Rc<Shard>) -> Rc<Keyspace> {
    Rc::new(Keyspace::new("store", vec![Rc::clone(shard)], false, 0, 7))
}

fn put(memory: &mut Memory, store: &Rc<Keyspace>, value: &str) {
    let (store, value) = (Rc::clone(store), Value::string(value));
    memory.run(Task::new(|io| async move { store.put(&io, b"key", &value).await })).expect("room");
}

fn get(memory: &mut Memory, store: &Rc<Keyspace>) -> Option<String> {
    let store = Rc::clone(store);
    let found = memory.run(Task::new(|io| async move { store.get(&io, b"key").await })).expect("sound");
    found.map(|found| String::from_utf8_lossy(found.object.value()).into_owned())
}

fn near(store: &Keyspace) -> Option<String> {
    store.near(b"key").map(|object| String::from_utf8_lossy(object.value()).into_owned())
}

fn put_at_once(memory: &mut Memory, store: &Keyspace, value: &str) -> bool {
    let Ok(done) = store.put_at_once(&mut Here(memory), b"key", value.as_bytes());
    done
}

/// A front end that is alone and knows `key`.
fn scene() -> (Memory, Rc<Keyspace>) {
    let mut memory = Memory::default();
    let shard = memory.join(Geometry::STORE, Rules::SOUND, 64 << 10);
    shard.near.lease.renew(0, 0);
    let store = store(&shard);
    put(&mut memory, &store, "first");
    put(&mut memory, &store, "old");
    (memory, store)
}

#[test]
fn a_known_key_is_changed_by_two_verbs() {
    let (mut memory, store) = scene();
    let before = memory.verbs;
    assert!(put_at_once(&mut memory, &store, "new"));
    assert_eq!((memory.verbs - before, near(&store).as_deref()), (2, Some("new")));
    let mut buffer = Vec::new();
    let more = |old: &[u8], new: &mut Vec<u8>| {
        new.clear();
        new.extend_from_slice(&[old, b"er"].concat());
        Some(new.len())
    };
    assert_eq!(store.update_at_once(&mut Here(&mut memory), b"key", &mut buffer, more), Ok(Some(5)));
    assert_eq!((memory.verbs - before, near(&store).as_deref()), (4, Some("newer")));
    let declined = store.update_at_once(&mut Here(&mut memory), b"key", &mut buffer, |_, _| None::<()>);
    assert_eq!((declined, memory.verbs - before), (Ok(None), 4));
    let Ok(unknown) = store.put_at_once(&mut Here(&mut memory), b"other", b"x");
    assert!(!unknown, "nothing is known of that key");
    assert!(!put_at_once(&mut memory, &store, &"x".repeat(40_000)), "a piece of its own is a task's");
    let cold = memory.join(Geometry::STORE, Rules::SOUND, 0);
    assert_eq!(get(&mut memory, &self::store(&cold)).as_deref(), Some("newer"));
}

#[test]
fn another_front_ends_change_is_not_undone() {
    let (mut memory, store) = scene();
    let other = self::store(&memory.join(Geometry::STORE, Rules::SOUND, 64 << 10));
    put(&mut memory, &other, "other's");
    assert!(!put_at_once(&mut memory, &store, "new"), "the slot is not what it was");
    assert_eq!(get(&mut memory, &other).as_deref(), Some("other's"));
    assert_eq!(near(&store), None);
}

#[test]
fn values_for_ever_take_no_more_memory() {
    let (mut memory, store) = scene();
    let shard = Rc::clone(&store.shards[0]);
    for round in 0..2000u64 {
        if !put_at_once(&mut memory, &store, &"v".repeat(1 + round as usize % 300)) {
            put(&mut memory, &store, "a task's");
        }
        if round % 10 == 0 {
            let ticks = Rc::clone(&shard);
            memory.run(Task::new(|io| async move { ticks.members.tick(&io, round).await })).expect("alive");
        }
    }
    assert!(shard.space.bytes() <= 128 << 10, "{} bytes for one key", shard.space.bytes());
    let count = memory.run(Task::new(|io| async move { shard.recovery.count(&io).await }));
    assert_eq!((count.problems, count.keys), (Vec::new(), 1));
}

/// The operations of the same front end that a change at once may meet half-way.
const MET: [&str; 3] = ["get", "put", "remove"];

/// Runs `met` for some steps, then a change at once, then the rest. What `met` read, whether the
/// change was carried out, and how many steps there were.
fn meet(met: &str, steps: usize, cold: bool) -> (Option<String>, bool, usize) {
    let (mut memory, store) = scene();
    if cold {
        // The slot is looked for.
        store.shards[0].near.lease.end();
        let other = self::store(&memory.join(Geometry::STORE, Rules::SOUND, 64 << 10));
        put(&mut memory, &other, "old");
        store.shards[0].near.lease.renew(0, 0);
    }
    let (operation, met) = (Rc::clone(&store), met.to_owned());
    let mut task = Task::new(|io| async move {
        match &met[..] {
            "get" => {
                let found = operation.shards[0].index.find(&io, b"key").await.expect("sound");
                found.map(|found| String::from_utf8_lossy(found.object.value()).into_owned())
            }
            "put" => operation.put(&io, b"key", &Value::string("task's")).await.map(|()| None).expect("room"),
            _ => operation.remove(&io, b"key").await.map(|_| None).expect("sound"),
        }
    });
    let (mut taken, mut done) = (0, false);
    let read = loop {
        if taken == steps {
            done = put_at_once(&mut memory, &store, "new");
        }
        taken += 1;
        if let Some(read) = task.step() {
            break read;
        }
        for (id, ask) in task.asks() {
            let answers = match ask {
                Ask::Verbs(verbs) => verbs.iter().map(|verb| memory.execute(verb)).collect(),
                Ask::Pause(_) => Vec::new(),
            };
            task.answer(id, answers);
        }
    };
    let reader = self::store(&memory.join(Geometry::STORE, Rules::SOUND, 0));
    let truth = get(&mut memory, &reader);
    assert!(near(&store).is_none_or(|near| Some(near) == truth), "the near cache is behind: {truth:?}");
    let count = memory.run(Task::new(|io| async move { store.shards[0].recovery.count(&io).await }));
    assert_eq!(count.problems, Vec::<String>::new());
    (read, done, taken)
}

#[test]
fn what_it_meets_half_way_stays_linearizable() {
    for (met, cold) in MET.iter().flat_map(|met| [(met, false), (met, true)]) {
        let (mut steps, mut any) = (0, false);
        loop {
            let (read, done, taken) = meet(met, steps, cold);
            assert!(*met != "get" || matches!(read.as_deref(), Some("old" | "new")), "{met} {steps}: {read:?}");
            any |= done;
            steps += 1;
            if steps >= taken {
                break;
            }
        }
        assert!(any || cold, "{met}: a change came in between nowhere");
    }
}
