//! A front end that the others shut out again while it joins anew: it begins once more, and serves.

mod world;

use farmem::{Memory, Transport};
use farmem_fabric::NodeAddr;
use farmem_kv::drive::Drive;
use farmem_kv::layout::{Geometry, HEAD_BYTES, MEMBERS, State, UNIT, head, word};
use farmem_kv::shard::Shard;
use farmem_kv::shard::copies::Mode;
use farmem_kv::shard::member::Opening;
use farmem_kv::task::{Io, Task};
use farmem_memory::{Config, Node};
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};
use world::lane::run;
use world::process::{Client, Process, are_all, signal};

#[test]
fn another_process() {
    world::process::another_process();
}

/// A front end of this process, whose clock the test makes up.
struct Front {
    drive: Drive,
    shard: Rc<Shard>,
    now_ms: u64,
}

impl Front {
    fn join(node: &Node, way: Transport) -> Front {
        let at = node.addresses()[usize::from(way == Transport::Shm)].to_string();
        let memory = Memory::builder().node(at).transport(way).grace(Duration::from_secs(1)).region("anew");
        let mut drive = Drive::new(memory.connect().unwrap(), false, 1).unwrap();
        let (root_word, tag) = (drive.root_word(0), drive.member_tag());
        let (mode, geometry) = (Mode::Single, Geometry::STORE);
        let opening =
            Opening { node: 0, number: 0, mode, shards: 1, root_word, secret: 77, geometry, local: 1 << 20, tag };
        let shard = run(&mut drive, Task::new(|io| opening.join(io))).unwrap();
        Front { drive, shard: Rc::new(shard), now_ms: 0 }
    }

    fn run<T, F: Future<Output = T> + 'static>(&mut self, operation: impl FnOnce(Rc<Shard>, Io) -> F) -> T {
        let shard = Rc::clone(&self.shard);
        run(&mut self.drive, Task::new(|io| operation(shard, io)))
    }

    /// The states of front ends that are alive.
    fn alive(&mut self) -> Vec<u64> {
        let bytes = self.run(|shard, io| async move { io.read(shard.reach.root, HEAD_BYTES as u32).await });
        let state = |line: usize| State(word(&bytes, (head::MEMBERS as usize + line * UNIT as usize) / 8));
        (0..MEMBERS).map(state).filter(|state| state.is_alive()).map(|state| state.0).collect()
    }

    /// Looks after the others for eight seconds of its own clock, in which a front end that does nothing is shut out.
    fn shut_out(&mut self) {
        for _ in 0..16 {
            self.now_ms += 500;
            let now_ms = self.now_ms;
            self.run(|shard, io| async move { shard.members.tick(&io, now_ms).await }).unwrap();
        }
    }

    /// Waits until a front end is alive that was not before.
    fn sees_new(&mut self, before: &[u64]) -> Vec<u64> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let alive = self.alive();
            let new: Vec<u64> = alive.into_iter().filter(|state| !before.contains(state)).collect();
            if !new.is_empty() {
                return new;
            }
            assert!(Instant::now() < until, "it does not join anew");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Shuts these out. One that has joined meanwhile shows signs at times.
    fn shut_out_all(&mut self, those: &[u64]) {
        let until = Instant::now() + Duration::from_secs(60);
        while self.alive().iter().any(|state| those.contains(state)) {
            assert!(Instant::now() < until, "it shows a sign at every look");
            self.shut_out();
        }
    }
}

#[test]
fn a_front_end_that_is_shut_out_while_it_joins_anew_begins_again() {
    let socket = std::env::temp_dir().join(format!("farmem-anew-{}.sock", std::process::id()));
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into()), NodeAddr::Shm(socket)];
    let node = Node::start(&Config::new(4 * (64 << 20), listen)).unwrap();
    let front = Process::start(&format!("front anew {} way=tcp", node.addresses()[0]));
    assert_eq!(front.client().ask("SET key value"), "+OK");
    signal(&front, "-STOP");
    let until = Instant::now() + Duration::from_secs(60);
    while !are_all(front.child.id(), 'T') {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(1));
    }
    // One that cannot be shut out, and shows no sign: whoever joins waits 2.5 s for it.
    let _silent = Front::join(&node, Transport::Shm);
    let mut other = Front::join(&node, Transport::Tcp);
    let before = other.alive();
    other.shut_out();
    assert_eq!(other.alive().len(), before.len() - 1);
    signal(&front, "-CONT");
    // Twice: it begins as often as it is shut out.
    for _ in 0..2 {
        let new = other.sees_new(&before);
        other.shut_out_all(&new);
    }
    // Connections that it had accepted before are closed.
    let said = (0..100).find_map(|_| {
        let mut client = Client::connect(&front.at);
        client.send(&["GET", "key"]).ok()?;
        client.reply().filter(|said| !said.starts_with('-'))
    });
    assert_eq!(said.as_deref(), Some("value"));
}
