//! A worker's rounds one by one: which requests it serves before one that has just come.
//!
//! The test is host and worker in one thread, so bytes that were written are there at the next
//! round. Connections are pairs of Unix sockets.

use super::serving::SMALL_TURN;
use super::*;
use farmem_nic::lending::{Backing, Lending};
use farmem_nic::shares::Peer;
use farmem_nic::tenants::{Known, Standing};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::extent::geometry::Target;
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::place::BLOCK_BYTES;
use farmem_protocol::extent::{Claimant, Grant, Level, Owner, Place, State, Word};
use farmem_protocol::wire::{
    Answer, Ask, Batch, Cipher, Completion, Credential, Greeting, Hello, Join, Known as Member, MAX_VERBS, Op, Proof,
    Purpose, Reply, Request, Status, Verb, Welcome,
};
use farmem_sys::mapping::Mapping;
use farmem_trust::{Key, Token};
use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

const PAGE: usize = 4096;
/// Connections of the tenant that floods.
const LOUD: usize = 64;

fn key(tenant: &str, seed: u8) -> Key {
    Token::new(tenant, &[seed; 40]).unwrap().key()
}

/// A node of one worker, which the test has go round.
struct Rounds {
    worker: Worker,
    pass: Pass,
    /// How long the machine does something else whenever the node draws a secret, ns.
    pauses: Arc<AtomicU64>,
}

impl Rounds {
    fn new(keys: &[Key]) -> Rounds {
        let (pauses, drawn) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(1));
        let pause = Arc::clone(&pauses);
        let draw = move || {
            std::thread::sleep(Duration::from_nanos(pause.load(Ordering::Relaxed)));
            u128::from(drawn.fetch_add(1, Ordering::Relaxed)).to_le_bytes()
        };
        let nic = Arc::new(Nic::new(Lending::new(4 * SLAB_BYTES, Backing::Small), draw));
        let known = |key: &Key| Known { key: *key, standing: Standing::Good, quota: u64::MAX, rate: u64::MAX };
        nic.set_tokens(keys.iter().map(known).collect());
        let waker = Waker::new().unwrap();
        let inbox = Inbox { waker, called: AtomicBool::new(false), accepted: Lock::new(VecDeque::new()) };
        let shared = Shared { nic, stop: AtomicBool::new(false), strangers: AtomicUsize::new(0), inboxes: vec![inbox] };
        Rounds { worker: Worker::new(Arc::new(shared), 0, Vec::new()).unwrap(), pass: Pass::new(), pauses }
    }

    fn connect(&mut self) -> UnixStream {
        self.connect_as(Circumstances::default())
    }

    fn connect_as(&mut self, about: Circumstances) -> UnixStream {
        let (host, node) = UnixStream::pair().unwrap();
        [&host, &node].iter().for_each(|end| end.set_nonblocking(true).unwrap());
        self.worker.deal_out(node.into(), about);
        host
    }

    /// A connection of the node's own user, who needs no token.
    fn local(&mut self, purpose: Purpose) -> (UnixStream, Welcome) {
        let peer = Peer::User(farmem_sys::process::user());
        let mut host = self.connect_as(Circumstances { local: true, peer, ..Circumstances::default() });
        host.write_all(Hello::new(purpose).frame().as_bytes()).unwrap();
        let Greeting::Welcome(welcome) = self.frame(&mut host, Greeting::read) else { panic!("no welcome") };
        (host, welcome)
    }

    /// Sends all of these, and goes round until that is answered by as many bytes.
    fn done(&mut self, host: &mut UnixStream, mut bytes: &[u8], answer: usize) -> Vec<u8> {
        while !bytes.is_empty() {
            match host.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
            self.go();
        }
        self.receive(host, answer)
    }

    fn go(&mut self) {
        self.worker.go_round(&mut self.pass);
    }

    /// READs that the node has served.
    fn reads(&self) -> u64 {
        self.worker.shared.nic.tally.reads.load(Ordering::Relaxed)
    }

    /// Goes round until this many bytes have come.
    fn receive(&mut self, host: &mut UnixStream, bytes: usize) -> Vec<u8> {
        let (mut got, mut room) = (Vec::new(), vec![0; bytes]);
        for _ in 0..100_000 {
            match host.read(&mut room[..bytes - got.len()]) {
                Ok(n) => got.extend_from_slice(&room[..n]),
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
            if got.len() == bytes {
                return got;
            }
            self.go();
        }
        panic!("no answer");
    }

    /// Goes round until a frame has come.
    fn frame<T, E: std::fmt::Debug>(
        &mut self,
        host: &mut UnixStream,
        read: impl Fn(&[u8]) -> Result<Option<(T, usize)>, E>,
    ) -> T {
        let mut seen = Vec::new();
        loop {
            seen.extend(self.receive(host, 1));
            if let Some((frame, _)) = read(&seen).unwrap() {
                return frame;
            }
        }
    }

    /// A connection that has proven a token, and the secret that its member was given.
    fn welcomed(&mut self, purpose: Purpose, key: &Key) -> (UnixStream, Member) {
        let mut host = self.connect();
        let credential = Credential { id: key.id, nonce: [9; 32], cipher: Cipher::Plain };
        let hello = Hello { tenant: key.tenant, credential: Some(credential), ..Hello::new(purpose) };
        host.write_all(hello.frame().as_bytes()).unwrap();
        let Greeting::Challenge(nonce) = self.frame(&mut host, Greeting::read) else { panic!("no challenge") };
        let proof = Proof { mac: key.of_host(&nonce, hello.frame().as_bytes(), None), share: None };
        host.write_all(proof.frame().as_bytes()).unwrap();
        let Greeting::Welcome(welcome) = self.frame(&mut host, Greeting::read) else { panic!("no welcome") };
        (host, Member { secret: welcome.secret, incarnation: welcome.incarnation })
    }

    /// A tenant with a slab: its member's connection, its queue pairs, and a READ of a page.
    fn tenant(&mut self, key: &Key, run: u8, queues: usize) -> (UnixStream, Vec<UnixStream>, Verb) {
        let join = Join { run: [run; 16], pid: 4711, grace_ms: 1000, ..Join::default() };
        let (mut control, member) = self.welcomed(Purpose::Join(join), key);
        control.write_all(Request::new(1, Ask::Grant).frame().as_bytes()).unwrap();
        let Ok(Reply::Slab(slab)) = self.frame(&mut control, Answer::read).result else { panic!("no slab") };
        let key_of = farmem_protocol::key::Key::from(slab).0.into();
        let read = Verb { op: Op::Read as u8, zero: [0; 3], len: (PAGE as u32).into(), key: key_of, offset: 0.into() };
        let queue = |queue| self.welcomed(Purpose::Attach(member, queue as u64), key).0;
        let queues = (0..queues).map(queue).collect();
        (control, queues, read)
    }
}

/// A batch of READs.
fn batch(read: Verb, count: usize, first: u64) -> Vec<u8> {
    let head = Batch { count: (count as u16).into(), zero: 0.into(), bytes: 0.into(), first: first.into() };
    [head.as_bytes(), &read.as_bytes().repeat(count)].concat()
}

/// A connection of the loud tenant: as many READs as its socket holds, and no answer is waited for.
struct Stream(UnixStream, Vec<u8>, u64);

impl Stream {
    fn go_on(&mut self, read: Verb) {
        let Stream(host, going, batches) = self;
        let mut answers = [0; 256 << 10];
        while host.read(&mut answers).is_ok_and(|n| n == answers.len()) {}
        loop {
            if going.is_empty() {
                *going = batch(read, MAX_VERBS, *batches * MAX_VERBS as u64);
                *batches += 1;
            }
            match host.write(going) {
                Ok(n) => drop(going.drain(..n)),
                Err(e) => return assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
        }
    }
}

#[test]
fn a_request_of_an_idle_tenant_is_served_at_once_beside_a_flood() {
    let (loud, quiet) = (key("loud", 1), key("quiet", 2));
    let mut rounds = Rounds::new(&[loud, quiet]);
    let (_control, queues, loud_read) = rounds.tenant(&loud, 1, LOUD);
    let mut streams: Vec<Stream> = queues.into_iter().map(|host| Stream(host, Vec::new(), 0)).collect();
    let (_other, mut queue, read) = rounds.tenant(&quiet, 2, 1);
    let mut flood_for = |rounds: &mut Rounds, times: usize| {
        let (mut most, from) = (0, rounds.reads());
        for _ in 0..times {
            streams.iter_mut().for_each(|stream| stream.go_on(loud_read));
            for _ in 0..8 {
                let before = rounds.reads();
                rounds.go();
                most = most.max(rounds.reads() - before);
            }
        }
        (most, rounds.reads() - from)
    };
    let in_turn = (SMALL_TURN / PAGE) as u64;
    let (mut number, mut judged) = (0, 0);
    while judged < 100 {
        let begun = now_ns();
        // Both ask: the worker knows that it has to share its time.
        let mut ask = |rounds: &mut Rounds| {
            queue[0].write_all(&batch(read, 1, number)).unwrap();
            number += 1;
            let before = rounds.reads();
            let answer = rounds.receive(&mut queue[0], size_of::<Completion>() + PAGE);
            let (completion, _) = Completion::read_from_prefix(&answer).unwrap();
            assert_eq!(completion.status, Status::Done as u8);
            rounds.reads() - before
        };
        ask(&mut rounds);
        // The connections of the flood that are ready are known after some rounds.
        flood_for(&mut rounds, 10);
        let (most, all) = flood_for(&mut rounds, 1 + judged % 5);
        let meanwhile = ask(&mut rounds);
        assert!(number < 10_000, "this machine stands still again and again");
        // If the machine stood still for long, the quiet tenant had not asked of late.
        if now_ns() - begun < 500_000_000 {
            // What comes while a turn is taken waits for its end: that is the most.
            assert!(most <= in_turn && all > 0, "{most} in one round, {all} in all");
            // None but its own is served from when it has come to when it is answered.
            assert_eq!(meanwhile, 1, "request {number}");
            judged += 1;
        }
    }
}

/// The machine stops the worker in the midst of a quiet tenant's request. That is not this tenant's debt.
#[test]
fn time_in_which_the_worker_does_not_run_is_no_tenants() {
    let (loud, quiet) = (key("loud", 1), key("quiet", 2));
    let mut rounds = Rounds::new(&[loud, quiet]);
    let (_control, queues, loud_read) = rounds.tenant(&loud, 1, LOUD);
    let mut streams: Vec<Stream> = queues.into_iter().map(|host| Stream(host, Vec::new(), 0)).collect();
    let (mut other, mut queue, read) = rounds.tenant(&quiet, 2, 1);
    let (mut number, mut least) = (0, u64::MAX);
    for nth in 0..10 {
        let mut ask = |rounds: &mut Rounds| {
            queue[0].write_all(&batch(read, 1, number)).unwrap();
            number += 1;
            let before = rounds.reads();
            rounds.receive(&mut queue[0], size_of::<Completion>() + PAGE);
            rounds.reads() - before
        };
        ask(&mut rounds);
        for _ in 0..3 {
            streams.iter_mut().for_each(|stream| stream.go_on(loud_read));
            (0..8).for_each(|_| rounds.go());
        }
        rounds.pauses.store(100_000_000, Ordering::Relaxed);
        other.write_all(Request::new(10 + nth, Ask::Ticket).frame().as_bytes()).unwrap();
        let Ok(Reply::Child(_)) = rounds.frame(&mut other, Answer::read).result else { panic!("no ticket") };
        rounds.pauses.store(0, Ordering::Relaxed);
        streams.iter_mut().for_each(|stream| stream.go_on(loud_read));
        least = least.min(ask(&mut rounds));
    }
    // The CPU time of the ticket is made up for by some turns. Those of a pause would be thousands of READs.
    assert!(least < 100, "its next request waited for {least} READs of others each time");
}

#[test]
fn a_flood_that_nobody_shares_with_is_served_as_it_comes() {
    let loud = key("loud", 1);
    let mut rounds = Rounds::new(&[loud]);
    let (_control, queues, read) = rounds.tenant(&loud, 1, 4);
    let mut streams: Vec<Stream> = queues.into_iter().map(|host| Stream(host, Vec::new(), 0)).collect();
    let before = rounds.reads();
    for _ in 0..50 {
        streams.iter_mut().for_each(|stream| stream.go_on(read));
        rounds.go();
    }
    // More than turns would have: a round serves each connection that has asked.
    assert!(rounds.reads() - before > 50 * 2 * (SMALL_TURN / PAGE) as u64);
    assert!(rounds.worker.connections.iter().flatten().all(|connection| !connection.queued));
}

/// A node copies 64 MiB to the file of a run. Requests of others are answered meanwhile, and a copy whose connection ends
/// leaves all as it was.
#[test]
fn others_are_served_while_a_run_is_copied_to_its_file() {
    const RUN: u32 = 32;
    let mut rounds = Rounds::new(&[]);
    let join = |run: u8| Purpose::Join(Join { run: [run; 16], pid: 4711, grace_ms: 60_000, ..Join::default() });
    let (mut owner, member) = rounds.local(join(1));
    let known = Member { secret: member.secret, incarnation: member.incarnation };
    let (mut queue, _) = rounds.local(Purpose::Attach(known, 0));
    let (mut other, _) = rounds.local(join(2));
    let units = Arc::clone(&rounds.worker.shared.nic.units);
    let all = units.geometry().count(Level::Block);
    let is_free = |block: u32| units.words.word(Place::block(block)).is(State::Free);
    let first = (0..all - RUN).find(|&first| (first..first + RUN).all(is_free)).expect("half of the giants begin open");
    let (mut number, op) = (0, size_of::<Completion>());
    let mut post = |rounds: &mut Rounds, op_of: Op, key: u64, offset: u64, operands: &[u8]| {
        let len = if op_of == Op::Write { operands.len() } else { 8 } as u32;
        let verb = Verb { op: op_of as u8, zero: [0; 3], len: len.into(), key: key.into(), offset: offset.into() };
        let bytes = operands.len() as u32;
        let head = Batch { count: 1.into(), zero: 0.into(), bytes: bytes.into(), first: u64::into(number) };
        number += 1;
        let answer = rounds.done(&mut queue, &[head.as_bytes(), verb.as_bytes(), operands].concat(), op);
        let (completion, _) = Completion::read_from_prefix(&answer).unwrap();
        assert_eq!(completion.status, Status::Done as u8);
    };
    let mut keys = Vec::new();
    for block in first..first + RUN {
        let place = Place::block(block);
        let old = units.words.word(place);
        let owned =
            Word::new(State::Owned, Owner::new(member.owner), 0, Claimant::new(0), old.generation().next().unwrap());
        let at = units.geometry().offset(Target::Word(place)).unwrap();
        let words = [old.0.to_le_bytes(), owned.0.to_le_bytes()].concat();
        post(&mut rounds, Op::Cas, farmem_protocol::key::Key::WORDS.0, at, &words);
        keys.push(farmem_protocol::key::Key(Grant { place, word: owned }.key().0));
    }
    let page = |block: u64, at: u64| vec![(block * 37 + at / 4096) as u8 | 1; 256 << 10];
    for (block, key) in keys.iter().enumerate() {
        for at in (0..BLOCK_BYTES).step_by(256 << 10) {
            post(&mut rounds, Op::Write, key.0, at, &page(block as u64, at));
        }
    }
    let unit = |number| Request::new(number, Ask::Unit(keys[0], RUN)).frame().as_bytes().to_vec();
    // The owner's connection ends in the midst, and it dials again.
    owner.write_all(&unit(1)).unwrap();
    (0..10).for_each(|_| rounds.go());
    let (again, _) = rounds.local(Purpose::Rejoin(known));
    drop(std::mem::replace(&mut owner, again));
    owner.write_all(&unit(1)).unwrap();
    let (mut answered, mut rounds_ns, mut seen, mut room) = (0, Vec::new(), Vec::new(), [0; 64]);
    other.write_all(Request::new(0, Ask::Ping).frame().as_bytes()).unwrap();
    let passed = loop {
        let begun = thread_cpu_ns();
        rounds.go();
        rounds_ns.push(thread_cpu_ns() - begun);
        if let Ok(n) = other.read(&mut room) {
            seen.extend_from_slice(&room[..n]);
        }
        if let Some((answer, used)) = (!seen.is_empty()).then(|| Answer::read(&seen).unwrap()).flatten() {
            assert_eq!((answer.number, answer.result), (answered, Ok(Reply::Done)));
            seen.drain(..used);
            answered += 1;
            other.write_all(Request::new(answered, Ask::Ping).frame().as_bytes()).unwrap();
        }
        let passed = socket::receive_with_descriptor(owner.as_raw_fd(), &mut room);
        if let Ok((n, fd)) = passed {
            let (answer, _) = Answer::read(&room[..n]).unwrap().expect("an answer in one piece");
            assert_eq!(answer.result, Ok(Reply::Done));
            break fd.expect("a file").into_raw();
        }
    };
    rounds_ns.sort_unstable_by(|a, b| b.cmp(a));
    let (all, longest) = (rounds_ns.iter().sum::<u64>() / 1000, [0, 1, 2].map(|nth| rounds_ns[nth] / 1000));
    eprintln!("{answered} requests answered; CPU time of the worker: {all} µs, of the longest rounds {longest:?}");
    assert!(answered > 20, "{answered} requests were answered meanwhile");
    let mapped = Mapping::new(passed, (RUN as u64 * BLOCK_BYTES) as usize).unwrap();
    farmem_sys::descriptors::close(passed);
    for block in 0..RUN as u64 {
        for at in (0..BLOCK_BYTES).step_by(256 << 10) {
            assert!(mapped.bytes(block * BLOCK_BYTES + at, 256 << 10) == Some(page(block, at)));
        }
    }
    // Nothing of it is anywhere else.
    assert_eq!(units.taken(), RUN as u64 * BLOCK_BYTES);
}
