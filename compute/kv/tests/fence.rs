//! A front end that was stopped with verbs to come: they take effect as long as nothing that they touch was given to
//! another, or not at all.

mod world;

use farmem::{Error, Memory, Transport};
use farmem_fabric::NodeAddr;
use farmem_kv::drive::Drive;
use farmem_kv::layout::Geometry;
use farmem_kv::object::Value;
use farmem_kv::rules::{Bug, Rules};
use farmem_kv::shard::Shard;
use farmem_kv::shard::copies::Mode;
use farmem_kv::shard::member::Opening;
use farmem_kv::task::{Ask, Io, Task, Verb};
use farmem_memory::{Config, Node};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;
use world::lane::run;

struct Front {
    drive: Drive,
    shard: Rc<Shard>,
}

impl Front {
    fn join(node: &Node, way: Transport, rules: Rules) -> Front {
        let at = node.addresses()[usize::from(way == Transport::Shm)].to_string();
        let memory =
            Memory::builder().node(at).transport(way).grace(Duration::from_secs(1)).region("fence").create(true);
        let mut drive = Drive::new(memory.connect().unwrap(), false, 1).unwrap();
        let (root_word, tag) = (drive.root_word(0), drive.member_tag());
        let opening = Opening {
            node: 0,
            number: 0,
            mode: Mode::Single,
            shards: 1,
            root_word,
            secret: 77,
            geometry: Geometry::STORE,
            local: 1 << 20,
            tag,
        };
        let shard = run(&mut drive, Task::new(|io| opening.join(io))).unwrap();
        shard.reach.rules.set(rules);
        Front { drive, shard: Rc::new(shard) }
    }

    fn run<T, F: Future<Output = T> + 'static>(&mut self, operation: impl FnOnce(Rc<Shard>, Io) -> F) -> T {
        let shard = Rc::clone(&self.shard);
        run(&mut self.drive, Task::new(|io| operation(shard, io)))
    }

    fn put(&mut self, key: &str, value: &str) {
        let (key, value) = (key.to_owned(), Value::string(value));
        self.run(|shard, io| async move { shard.index.put(&io, key.as_bytes(), &value).await }).unwrap();
    }

    fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        let key = key.to_owned();
        let found = self.run(|shard, io| async move { shard.index.find(&io, key.as_bytes()).await });
        found.unwrap().map(|found| found.object.value().to_vec())
    }

    /// Ticks for so many seconds of a made-up clock, and takes over what was left.
    fn wait(&mut self, from_ms: &mut u64, ms: u64) {
        for _ in 0..ms / 500 {
            *from_ms += 500;
            let now = *from_ms;
            self.run(|shard, io| async move { shard.members.tick(&io, now).await }).unwrap();
        }
        let now = *from_ms;
        self.run(|shard, io| async move { shard.recovery.adopt(&io, now).await }).unwrap();
    }

    fn problems(&mut self) -> Vec<String> {
        self.run(|shard, io| async move { shard.recovery.count(&io).await }).problems
    }
}

/// The verbs by which a front end would store a value. It is stopped before it posts them.
fn held_back(front: &mut Front, key: &'static str, value: &'static str) -> Vec<Verb> {
    let shard = Rc::clone(&front.shard);
    let mut task = Task::new(|io| async move { shard.index.put(&io, key.as_bytes(), &Value::string(value)).await });
    assert!(task.step().is_none());
    let Some((_, Ask::Verbs(verbs))) = task.asks().pop() else { panic!("no verbs") };
    assert!(matches!(verbs[..], [Verb::Write { .. }, Verb::Cas { .. }]));
    // As after a kill: it never learns what became of them.
    std::mem::forget(task);
    verbs
}

/// Carries the late verbs out, if the node does.
fn late(front: &mut Front, verbs: Vec<Verb>) -> Result<(), Error> {
    front.drive.post(77, verbs)?;
    let mut ended = Vec::new();
    while front.drive.under_way() > 0 {
        front.drive.advance(Duration::from_millis(100), &mut ended)?;
    }
    Ok(())
}

fn node() -> Node {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let socket = std::env::temp_dir().join(format!("farmem-fence-{}-{number}.sock", std::process::id()));
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into()), NodeAddr::Shm(socket)];
    Node::start(&Config::new(4 * (64 << 20), listen)).unwrap()
}

/// More than two pieces hold, so that every place that is free is used.
const KEYS: usize = 200;

/// One front end stops with verbs to come, another takes over and uses all of its memory again. Returns what became of
/// the verbs, and what is wrong with the store then.
fn stopped(way: Transport, rules: Rules) -> (Result<(), Error>, Vec<String>) {
    let node = node();
    let (mut one, mut other) = (Front::join(&node, way, rules), Front::join(&node, way, rules));
    one.put("victim", "old");
    other.put("mine", "old");
    let verbs = held_back(&mut one, "victim", "new");
    let mut now_ms = 0;
    other.wait(&mut now_ms, 8000);
    // Epochs pass, and every place that is free is used again.
    other.wait(&mut now_ms, 4000);
    for n in 0..KEYS {
        other.put(&format!("key{n}"), "2");
    }
    let ended = late(&mut one, verbs);
    let problems = other.problems();
    if way == Transport::Tcp && problems.is_empty() {
        assert_eq!(other.get("victim").as_deref(), Some(&b"old"[..]));
        (0..KEYS).for_each(|n| assert_eq!(other.get(&format!("key{n}")).as_deref(), Some(&b"2"[..])));
    }
    if way == Transport::Shm {
        // It was only slow: it is a member as before.
        assert_eq!(other.get("victim").as_deref(), Some(&b"new"[..]));
        one.run(|shard, io| async move { shard.members.tick(&io, 0).await }).unwrap();
        drop(one);
        other.wait(&mut now_ms, 30_000);
        assert_eq!(other.problems(), Vec::<String>::new(), "what it held is taken over when it is gone");
    }
    (ended, problems)
}

#[test]
fn late_verbs_do_not_take_effect_over_tcp() {
    let (ended, problems) = stopped(Transport::Tcp, Rules::SOUND);
    assert!(matches!(ended, Err(Error::Lost { .. } | Error::Refused(_))), "{ended:?}");
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn memory_waits_for_a_front_end_that_has_it_mapped() {
    let (ended, problems) = stopped(Transport::Shm, Rules::SOUND);
    assert_eq!(ended, Ok(()));
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn without_a_fence_late_verbs_do_harm() {
    let (ended, problems) = stopped(Transport::Tcp, Rules::without(Bug::DeclareUnfenced));
    assert_eq!(ended, Ok(()));
    assert!(!problems.is_empty(), "the mistake went unnoticed");
}
