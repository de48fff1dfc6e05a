//! Memory of a node on another machine (so to speak: over tcp): pieces by the agent's word, their bytes by verbs of the
//! program's own, under windows.

mod common;

use common::{Host, LIMIT, be_agent, child, tell, within, within_of};
use farmem_agent::client::{AllocError, Chunk, Client, ConnectError, Options, Reach, ReachError};
use farmem_agent::desk::Desk;
use farmem_agent::hello::{Entry, Hello, MAGIC, Reached, Welcome};
use farmem_agent::word::{Down, Refusal as Unserved, Up};
use farmem_fabric::nic::Figure;
use farmem_fabric::{ConnectOptions, NodeAddr, QueuePair, Refusal, Session, Transport};
use farmem_protocol::key::Key;
use farmem_protocol::wire::ANY_QUEUE;
use farmem_sys::{raw, shared, socket};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Not a test: what this binary does as a child.
#[test]
fn a_child() {
    let Some(words) = child() else { return };
    if words[0] == "agent" {
        return be_agent(&words);
    }
    let dir = PathBuf::from(&words[1]);
    let options = Options { socket: dir.join("agent.sock"), job: String::new(), patience: LIMIT, start: None };
    let client = Client::connect(options).unwrap();
    match words[0].as_str() {
        "holder" => {
            let mut reach = client.reach().unwrap();
            let mut held: Vec<Chunk> = (0..1500).map(|n| stamped(&client, &mut reach, 0, n)).collect();
            held.push(client.alloc_run(5).unwrap());
            reach.write(&held[1500], 4 << 20, b"of a run").unwrap();
            tell(&dir, "holds");
            std::thread::sleep(LIMIT);
        }
        "churner" => churn(&client, &dir),
        other => panic!("{other}"),
    }
}

/// A piece with a stamp in the first and last word of it.
fn stamped(client: &Client, reach: &mut Reach<'_>, order: u8, stamp: u64) -> Chunk {
    let chunk = client.alloc(order).unwrap();
    for at in [0, chunk.bytes() - 8] {
        reach.write(&chunk, at, &(stamp ^ at).to_le_bytes()).unwrap();
    }
    chunk
}

fn checked(reach: &mut Reach<'_>, chunk: &Chunk, stamp: u64) {
    for at in [0, chunk.bytes() - 8] {
        let mut word = [0; 8];
        reach.read(chunk, at, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), stamp ^ at);
    }
}

fn churn(client: &Client, dir: &Path) {
    let mut reach = client.reach().unwrap();
    let mut held: Vec<(Chunk, u64)> = Vec::new();
    let mut random = std::process::id() as u64;
    let mut steps = 0u64;
    while !steps.is_multiple_of(1000) || !dir.join("enough").exists() {
        steps += 1;
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let order = if random >> 40 & 7 == 0 { (random >> 33) as u8 % 10 } else { 0 };
        if held.len() < 500 && random >> 60 < 9 {
            held.push((stamped(client, &mut reach, order, steps), steps));
        } else if !held.is_empty() {
            let (chunk, stamp) = held.swap_remove((random >> 20) as usize % held.len());
            checked(&mut reach, &chunk, stamp);
            client.free(chunk);
        }
        if steps == 2000 {
            tell(dir, &format!("churns-{}", std::process::id()));
        }
    }
    held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
}

/// Somebody who has joined the node without an agent.
struct Stranger(Session, QueuePair);

impl Stranger {
    fn new(host: &Host) -> Stranger {
        let options = ConnectOptions { timeout: LIMIT, grace: LIMIT, run: [9; 16], pid: 1, transport: Transport::Tcp };
        let session = Session::connect(&host.node.addresses()[1], &options).unwrap();
        let queue = session.queue_pair().unwrap();
        Stranger(session, queue)
    }

    fn figure(&self, figure: Figure) -> u64 {
        self.0.figure(figure).unwrap()
    }

    fn put(&mut self, (key, offset): (Key, u64), bytes: &[u8]) -> Result<u64, Refusal> {
        put(&mut self.1, (key, offset), bytes)
    }
}

#[allow(unsafe_code)]
fn put(queue: &mut QueuePair, (key, offset): (Key, u64), bytes: &[u8]) -> Result<u64, Refusal> {
    // SAFETY: the bytes outlive the verb, which is awaited below.
    unsafe { queue.write(1, key, offset, bytes.as_ptr(), bytes.len() as u32) };
    finish(queue)
}

fn finish(queue: &mut QueuePair) -> Result<u64, Refusal> {
    queue.doorbell().unwrap();
    let mut done = Vec::new();
    while done.is_empty() {
        queue.wait(&mut done, Duration::from_secs(1)).unwrap();
    }
    done[0].result
}

#[test]
fn pieces_and_runs_are_had_reached_and_given_back() {
    let mut host = Host::new(512);
    host.agent_elsewhere("");
    let (client, stranger) = (host.client(), Stranger::new(&host));
    let mut reach = client.reach().unwrap();
    let mut held = Vec::new();
    for order in (0..=9).chain([0; 300]) {
        let chunk = client.alloc(order).unwrap();
        assert!(chunk.address().is_none() && chunk.number().is_multiple_of(4096 << order));
        let mut bytes = vec![1; chunk.bytes() as usize];
        reach.read(&chunk, 0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0), "zero as granted");
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 7 + held.len()) as u8);
        reach.write(&chunk, 0, &bytes).unwrap();
        held.push((chunk, bytes));
    }
    let run = client.alloc_run(7).unwrap();
    let across: Vec<u8> = (0..5 << 20).map(|at| (at / 11) as u8).collect();
    reach.write(&run, 3 << 20, &across).unwrap();
    for (chunk, bytes) in &held {
        let mut found = vec![0; bytes.len()];
        reach.read(chunk, 0, &mut found).unwrap();
        assert!(found == *bytes, "a piece of {} bytes was overwritten", bytes.len());
    }
    let mut found = vec![0; across.len()];
    reach.read(&run, 3 << 20, &mut found).unwrap();
    assert!(found == across, "a run was overwritten");
    assert_eq!(reach.write(&run, (14 << 20) - 1, b"no"), Err(ReachError::Range));
    assert_eq!(reach.write(&held[0].0, u64::MAX, b"no"), Err(ReachError::Range));

    // Words, by threads that have a queue pair each.
    reach.write(&held[9].0, 64, &0u64.to_le_bytes()).unwrap();
    let (key, offset) = client.key(&held[9].0, 0).unwrap().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut reach = client.reach().unwrap();
                let queue = reach.queue().unwrap().unwrap();
                for _ in 0..200 {
                    queue.faa(1, key, offset + 64, 1);
                    finish(queue).unwrap();
                }
            });
        }
    });
    assert_eq!(reach.cas(&held[9].0, 64, 600, 7), Ok(600));
    assert_eq!(reach.cas(&held[9].0, 64, 600, 8), Ok(7));
    assert_eq!(reach.faa(&held[9].0, 63, 1), Err(ReachError::Range));

    assert!(stranger.figure(Figure::WindowsBound) >= 7);
    held.into_iter().for_each(|(chunk, _)| client.free(chunk));
    client.free(run);
    client.trim();
    drop(reach);
    drop(client);
    within("everything is given back", || host.lent() == 0 && stranger.figure(Figure::WindowsBound) == 0);
    host.recount();
}

#[test]
fn the_common_allocation_asks_neither_agent_nor_node() {
    let mut host = Host::new(256);
    host.agent_elsewhere("");
    let (client, stranger) = (host.client(), Stranger::new(&host));
    let mut held: Vec<Chunk> = (0..400).map(|_| client.alloc(0).unwrap()).collect();
    held.drain(..).for_each(|chunk| client.free(chunk));
    let verbs = || stranger.figure(Figure::WindowsBound);
    let (before, words) = (verbs(), client.counts());
    for _ in 0..1000 {
        held.extend((0..100).map(|_| client.alloc(0).unwrap()));
        held.drain(..).for_each(|chunk| client.free(chunk));
    }
    let counts = client.counts();
    assert_eq!((verbs(), counts.waits - words.waits), (before, 0));
    assert!(counts.words - words.words < 1000, "{counts:?}");
}

#[test]
fn keys_open_nothing_to_others_nor_after_their_time() {
    let mut host = Host::new(256);
    host.agent_elsewhere("");
    let (client, other, mut stranger) = (host.client(), host.client(), Stranger::new(&host));
    let (mut reach, mut others) = (client.reach().unwrap(), other.reach().unwrap());
    let bystander = stamped(&other, &mut others, 0, 5);
    let lent = host.lent();
    // A run: it goes back as soon as it is freed. (Of pieces a program keeps an empty block for a while, with its key.)
    let mine = client.alloc_run(2).unwrap();
    let theirs = client.key(&mine, 0).unwrap().unwrap();
    assert_eq!(reach.write(&mine, 0, b"mine"), Ok(()));
    assert_eq!(stranger.put(theirs, b"no"), Err(Refusal::Access), "a stranger's, by a key that it was told");
    assert_eq!(put(others.queue().unwrap().unwrap(), theirs, b"no"), Err(Refusal::Access), "another program's");
    let (key, _) = theirs;
    for beyond in [(2 << 20) - 1, u64::MAX] {
        assert_eq!(
            put(reach.queue().unwrap().unwrap(), (key, beyond), b"no"),
            Err(Refusal::Access),
            "beyond the block"
        );
    }
    stranger.1.invalidate(1, key);
    assert_eq!(finish(&mut stranger.1), Err(Refusal::Access), "a stranger unbinds nothing");

    // Freed: the blocks go back, and the keys with them.
    client.free(mine);
    within("the old key is refused", || put(reach.queue().unwrap().unwrap(), theirs, b"late") == Err(Refusal::Access));
    within("its blocks are free", || host.lent() <= lent);
    let again = client.alloc_run(2).unwrap();
    let mut word = [1; 4];
    reach.read(&again, 0, &mut word).unwrap();
    assert_eq!((word, client.key(&again, 0) == Ok(Some(theirs))), ([0; 4], false), "clean, by another key");

    // One that gives its window up by itself has no use of its memory, and that is all.
    let (key, _) = client.key(&again, 0).unwrap().unwrap();
    reach.queue().unwrap().unwrap().invalidate(1, key);
    assert!(finish(reach.queue().unwrap().unwrap()).is_ok());
    assert_eq!(reach.write(&again, 0, b"no"), Err(ReachError::Refused(Refusal::Access)));
    client.free(again);
    within("its blocks go back", || host.lent() <= lent);
    checked(&mut others, &bystander, 5);
    host.recount();
}

/// The node has 8192 queue pairs of a member at most, in its whole life: threads that come and go do not use them up, and
/// the one too many is refused alone.
#[test]
fn queue_pairs_are_used_again_and_one_too_many_harms_no_other() {
    let mut host = Host::new(64);
    host.agent_elsewhere("");
    let client = host.client();
    let chunk = stamped(&client, &mut client.reach().unwrap(), 0, 5);
    for n in 0..10_000 {
        let mut reach = client.reach().unwrap();
        if n % 1000 == 0 {
            checked(&mut reach, &chunk, 5);
        }
    }
    let Stranger(session, mut queue) = Stranger::new(&host);
    let refused = (0..8192).find_map(|_| session.queue_pair().err());
    assert!(refused.is_some_and(|lost| lost.to_string().contains("as many queue pairs")));
    assert!(!session.is_lost());
    assert_eq!(put(&mut queue, (Key(1), 0), b"no"), Err(Refusal::NotHeld), "it goes on");
}

#[test]
fn verbs_that_somebody_posted_by_the_queue_pair_are_not_taken_for_others() {
    let mut host = Host::new(64);
    host.agent_elsewhere("");
    let client = host.client();
    let mut reach = client.reach().unwrap();
    let chunk = client.alloc(3).unwrap();
    let bytes: Vec<u8> = (0..chunk.bytes()).map(|at| (at / 3) as u8).collect();
    reach.write(&chunk, 0, &bytes).unwrap();
    let (key, offset) = client.key(&chunk, 0).unwrap().unwrap();
    for round in 0..200u64 {
        let queue = reach.queue().unwrap().unwrap();
        (0..5).for_each(|tag| queue.faa(tag, key, offset, 0));
        if round % 2 == 0 {
            queue.doorbell().unwrap();
        }
        let mut found = vec![0; bytes.len() - 16];
        reach.read(&chunk, 8, &mut found).unwrap();
        assert!(found == bytes[8..bytes.len() - 8], "read before it was there");
        let queue = reach.queue().unwrap().unwrap();
        assert_eq!(queue.in_flight(), 0);
        queue.faa(7, key, offset, 0);
        assert_eq!(
            reach.faa(&chunk, chunk.bytes() - 8, 1),
            reach.faa(&chunk, chunk.bytes() - 8, 0).map(|word| word - 1)
        );
    }
    // With some under way it is not kept for the next.
    reach.queue().unwrap().unwrap().faa(1, key, offset, 0);
    drop(reach);
    assert_eq!(client.reach().unwrap().queue().unwrap().unwrap().in_flight(), 0);
}

/// A program that names somebody else as the one who is to reach its memory: it harms itself.
#[test]
fn who_names_another_reaches_nothing() {
    let mut host = Host::new(256);
    host.agent_elsewhere("");
    let (client, stranger) = (host.client(), Stranger::new(&host));
    let mut reach = client.reach().unwrap();
    let bystander = stamped(&client, &mut reach, 0, 5);
    let victim = Stranger::new(&host);
    for (owner, queue) in [(victim.0.owner(), ANY_QUEUE), (stranger.0.owner(), 999), (16_000, ANY_QUEUE)] {
        let mut liar = Liar::new(&host, owner as u32, queue).unwrap();
        match liar.key() {
            Ok(key) => {
                let mut own = Stranger::new(&host);
                assert_eq!(own.put((key, 0), b"no"), Err(Refusal::Access), "as itself");
                own.1.invalidate(1, key);
                assert_eq!(finish(&mut own.1), Err(Refusal::Access));
            }
            Err(refused) => assert_eq!((refused, owner), (Down::Done(Some(Unserved::Stranger)), 16_000)),
        }
    }
    assert_eq!(Liar::new(&host, 0, ANY_QUEUE).err(), Some(Some(Entry::Elsewhere)));
    assert_eq!(Liar::new(&host, 1 << 16, ANY_QUEUE).err(), Some(Some(Entry::Malformed)));
    checked(&mut reach, &bystander, 5);

    // One that breaks the protocol is shown out, and its key ends although it lives.
    let mut own = Stranger::new(&host);
    let mut liar = Liar::new(&host, own.0.owner() as u32, own.1.number()).unwrap();
    let key = liar.key().unwrap();
    assert_eq!(own.put((key, 0), b"mine"), Ok(0));
    let mut second = own.0.queue_pair().unwrap();
    assert_eq!(put(&mut second, (key, 0), b"no"), Err(Refusal::Access), "not the queue pair that was named");
    liar.say(u64::MAX);
    within("its key is refused", || own.put((key, 0), b"late") == Err(Refusal::Access));
    within("nothing is held for it", || stranger.figure(Figure::WindowsBound) == 1);
    checked(&mut reach, &bystander, 5);
    host.recount();
}

/// A session whose words are written by hand.
struct Liar {
    stream: UnixStream,
    desk: Desk,
    tail: u32,
    head: u32,
}

impl Liar {
    fn new(host: &Host, owner: u32, queue: u64) -> Result<Liar, Option<Entry>> {
        let mut stream = UnixStream::connect(host.socket()).unwrap();
        stream.write_all(Hello { magic: MAGIC, owner, queue, ..Hello::new_zeroed() }.as_bytes()).unwrap();
        let mut welcome = Welcome::new_zeroed();
        socket::wait(stream.as_raw_fd(), true, false, 10_000_000_000);
        let (_, fd) = socket::receive_with_descriptor(stream.as_raw_fd(), welcome.as_mut_bytes()).unwrap();
        let Some(fd) = fd else { return Err(Entry::of(welcome.status)) };
        let desk = Desk::map(fd).unwrap();
        raw::close(fd);
        Ok(Liar { stream, desk, tail: 0, head: 0 })
    }

    fn say(&mut self, word: u64) {
        self.desk.up().entries[self.tail as usize % 512].store(word, Relaxed);
        self.tail = self.tail.wrapping_add(1);
        self.desk.up().tail.store(self.tail, SeqCst);
        shared::futex_wake(self.desk.up().tail);
    }

    fn hear(&mut self) -> Down {
        within("an answer comes", || self.desk.down().tail.load(SeqCst) != self.head);
        let word = self.desk.down().entries[self.head as usize % 512].load(Relaxed);
        self.head = self.head.wrapping_add(1);
        self.desk.down().head.store(self.head, SeqCst);
        Down::of(word).unwrap()
    }

    /// The key of a block, asked for honestly; or the refusal.
    fn key(&mut self) -> Result<Key, Down> {
        self.say(Up::Want { order: 9, count: 1 }.bits());
        let Down::Grant(piece) = self.hear() else { panic!("no grant") };
        assert_eq!(self.hear(), Down::Done(None));
        self.say(Up::Map(piece.block).bits());
        match self.hear() {
            Down::Done(None) => {}
            refused => return Err(refused),
        }
        let mut said = [0; 24];
        self.stream.read_exact(&mut said).unwrap();
        let (reached, key) = said.split_at(16);
        assert_eq!(Reached::read_from_bytes(reached).unwrap().keys, 1);
        Ok(Key(u64::from_ne_bytes(key.try_into().unwrap())))
    }
}

#[test]
fn quotas_hold_elsewhere_too() {
    let mut host = Host::new(256);
    host.agent_elsewhere("quota=16");
    let client = host.client();
    let held: Vec<Chunk> = (0..8).map(|_| client.alloc(9).unwrap()).collect();
    assert_eq!(client.alloc(0).err(), Some(AllocError::Quota));
    held.into_iter().for_each(|chunk| client.free(chunk));
    assert!(client.alloc(0).is_ok());
    let nowhere = Options { socket: host.dir.join("nobody"), patience: Duration::from_millis(50), ..host.options("") };
    assert!(matches!(Client::connect(nowhere).err(), Some(ConnectError::Nobody(_))));
}

#[test]
fn a_killed_program_leaves_nothing() {
    let mut host = Host::new(256);
    host.agent_elsewhere("");
    let (bystander, stranger) = (host.client(), Stranger::new(&host));
    let mut reach = bystander.reach().unwrap();
    let piece = stamped(&bystander, &mut reach, 0, 77);
    let (lent, bound) = (host.lent(), stranger.figure(Figure::WindowsBound));
    let tries: Vec<Duration> = (0..4)
        .map(|_| {
            let mut program = host.program("holder");
            within("it holds", || host.dir.join("holds").exists());
            assert!(stranger.figure(Figure::WindowsBound) > bound);
            std::fs::remove_file(host.dir.join("holds")).unwrap();
            program.kill();
            within_of(LIMIT, "its memory is free, and its windows are unbound", || {
                host.lent() <= lent && stranger.figure(Figure::WindowsBound) <= bound
            })
        })
        .take_while(|took| *took > Duration::from_secs(1))
        .collect();
    assert!(tries.len() < 4, "never within a second: {tries:?}");
    checked(&mut reach, &piece, 77);
    host.recount();
}

#[test]
fn agents_killed_at_any_moment_lose_neither_a_block_nor_a_key() {
    let mut host = Host::new(512);
    host.agent_elsewhere("");
    let (client, stranger) = (host.client(), Stranger::new(&host));
    let mut reach = client.reach().unwrap();
    let mut held: Vec<(Chunk, u64)> = (0..700).map(|n| (stamped(&client, &mut reach, (n % 5) as u8, n), n)).collect();
    let run = client.alloc_run(6).unwrap();
    reach.write(&run, 9 << 20, b"of a run").unwrap();
    let mut programs: Vec<_> = (0..3).map(|_| host.program("churner")).collect();
    for program in &programs {
        let ready = host.dir.join(format!("churns-{}", program.0.id()));
        within("it works", || ready.exists());
    }
    for round in 0..6u64 {
        std::thread::sleep(Duration::from_millis(11 * round));
        host.kill_agent();
        // What is held is reached while there is no agent.
        held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
        host.agent_elsewhere("");
        let (chunk, stamp) = held.swap_remove(round as usize * 31 % held.len());
        checked(&mut reach, &chunk, stamp);
        client.free(chunk);
        held.extend((0..150).map(|n| (stamped(&client, &mut reach, (n % 4) as u8, n), n)));
        held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
        let mut word = [0; 8];
        reach.read(&run, 9 << 20, &mut word).unwrap();
        assert_eq!(&word, b"of a run");
    }
    std::fs::write(host.dir.join("enough"), "").unwrap();
    assert!(programs.iter_mut().all(|program| program.ended_well()));
    held.into_iter().for_each(|(chunk, _)| client.free(chunk));
    client.free(run);
    client.trim();
    drop(reach);
    drop(client);
    within("everything is given back", || host.lent() == 0 && stranger.figure(Figure::WindowsBound) == 0);
    host.recount();
}

#[test]
fn a_host_that_dies_leaves_nothing() {
    let host = Host::new(256);
    let at = host.node.addresses()[1].to_string();
    let NodeAddr::Tcp(_) = &host.node.addresses()[1] else { panic!("not tcp: {at}") };
    let stranger = Stranger::new(&host);
    let mut doomed = host.beside("doomed", &format!("tcp={at} grace=50"));
    let mut programs: Vec<_> = (0..2).map(|_| doomed.program("churner")).collect();
    for program in &programs {
        let ready = doomed.dir.join(format!("churns-{}", program.0.id()));
        within("it works", || ready.exists());
    }
    doomed.agent.kill();
    programs.iter_mut().for_each(|program| program.kill());
    within("its memory is the node's again", || host.lent() == 0 && stranger.figure(Figure::WindowsBound) == 0);
    host.recount();
}
