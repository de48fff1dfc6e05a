//! An agent's blocks, by the words of a node, without an agent around them.

mod common;

use common::{Host, within};
use farmem_agent::blocks::{Blocks, Claimed};
use farmem_agent::ledger::{Ledger, Membership};
use farmem_agent::word::Refusal;
use farmem_fabric::words::Words;
use farmem_fabric::{ConnectOptions, Identity, NodeAddr, Session, Transport, Trust};
use farmem_memory::tokens::{Entry, Store};
use farmem_protocol::extent::geometry::Target;
use farmem_protocol::extent::guard::Words as _;
use farmem_protocol::extent::reshape::{Reshape, Reshaped};
use farmem_protocol::extent::{Actor, Answer, Claimant, Failed, Geometry, Level, Operation, Owner, Place, State, Step};
use farmem_protocol::wire;
use farmem_sys::raw;
use farmem_trust::Token;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

fn ledger(host: &Host, name: &str) -> Arc<Ledger> {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(host.dir.join(name)).unwrap();
    file.set_len(farmem_agent::ledger::BYTES as u64).unwrap();
    Arc::new(Ledger::open(file.as_raw_fd()).unwrap().0)
}

fn options() -> ConnectOptions {
    let (timeout, grace) = (Duration::from_secs(20), Duration::from_secs(20));
    ConnectOptions {
        timeout,
        grace,
        run: [7; 16],
        pid: std::process::id(),
        transport: Transport::Shm,
        ..ConnectOptions::default()
    }
}

fn claim(blocks: &mut Blocks, count: u32) -> Result<Claimed, Refusal> {
    let begun = raw::now_ns();
    loop {
        match blocks.claim(count, begun)? {
            Some(claimed) => return Ok(claimed),
            None => raw::sleep_ns(farmem_agent::blocks::LOOK_NS),
        }
    }
}

/// An agent's share may be smaller than what it would have to split: then memory is exhausted, and
/// no node lost.
#[test]
fn a_giant_beyond_the_share_is_not_a_node_lost() {
    let host = Host::new(2048);
    let (node, options) = (NodeAddr::Shm(host.dir.join("node.sock")), options());
    let mut other = Blocks::join(&node, &options, ledger(&host, "other")).unwrap();
    // All that is not in one piece.
    for _ in 0..512 {
        claim(&mut other, 1).unwrap();
    }
    host.node.nic().units.set_quota(512 << 20);
    let mut small = Blocks::join(&node, &options, ledger(&host, "small")).unwrap();
    assert_eq!(claim(&mut small, 1), Err(Refusal::Exhausted));
    // Nor did it take anything.
    assert_eq!((small.taken(), host.lent()), (0, 1 << 30));
    host.recount();
}

/// A frame that a host sends.
fn receive<T, E>(host: &mut TcpStream, read: impl Fn(&[u8]) -> Result<Option<(T, usize)>, E>) -> Option<T> {
    let (mut seen, mut byte) = (Vec::new(), [0]);
    loop {
        host.read_exact(&mut byte).ok()?;
        seen.extend(byte);
        if let Some((frame, _)) = read(&seen).ok()? {
            return Some(frame);
        }
    }
}

/// A node by whose words a GiB is free, and which says of each CAS that another was faster.
fn liar() -> NodeAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = NodeAddr::Tcp(listener.local_addr().unwrap().to_string());
    std::thread::spawn(move || {
        for host in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || lie(host));
        }
    });
    at
}

fn lie(mut host: TcpStream) -> Option<()> {
    let hello = receive(&mut host, wire::Hello::read)?;
    let welcome = wire::Welcome { owner: 1, secret: [7; 16], incarnation: 5, ..wire::Welcome::default() };
    host.write_all(wire::Greeting::Welcome(welcome).frame().as_bytes()).ok()?;
    if !matches!(hello.purpose, wire::Purpose::Attach(..)) {
        loop {
            let wire::Request { number, .. } = receive(&mut host, wire::Request::read)?;
            let answer = wire::Answer { number, epoch: 0, result: Ok(wire::Reply::Done) };
            host.write_all(answer.frame().as_bytes()).ok()?;
        }
    }
    let geometry = Geometry::new(1 << 30).unwrap();
    let giant = geometry.offset(Target::Word(Place::giant(0))).unwrap();
    loop {
        let mut batch = wire::Batch::new_zeroed();
        host.read_exact(batch.as_mut_bytes()).ok()?;
        let mut verbs = vec![wire::Verb::new_zeroed(); batch.count.get() as usize];
        host.read_exact(verbs.as_mut_bytes()).ok()?;
        host.read_exact(&mut vec![0; batch.bytes.get() as usize]).ok()?;
        for (verb, number) in verbs.iter().zip(batch.first.get()..) {
            let (op, len) = verb.shape().ok()?;
            let mut bytes = vec![0; if op == wire::Op::Read { len as usize } else { 0 }];
            match verb.offset.get() {
                _ if bytes.is_empty() => {}
                0 => bytes[..64].copy_from_slice(&geometry.header(5)),
                at if at == giant => bytes[7] = (State::Free as u8) << 4,
                _ => {}
            }
            let done = wire::Completion { number: (number as u32).into(), status: 0, zero: [0; 3], value: 0.into() };
            host.write_all(&[done.as_bytes(), &bytes].concat()).ok()?;
        }
    }
}

/// An agent that asks a node whose words lie is not kept by it: it refuses its application, and serves others.
#[test]
fn a_node_whose_words_lie_is_not_asked_for_ever() {
    let host = Host::new(64);
    let ledger = ledger(&host, "lied to");
    let (says, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let options = ConnectOptions { transport: Transport::Tcp, ..options() };
        let mut blocks = Blocks::join(&liar(), &options, ledger).unwrap();
        says.send((claim(&mut blocks, 1), blocks.taken())).unwrap();
    });
    assert_eq!(said.recv_timeout(common::LIMIT), Ok((Err(Refusal::Exhausted), 0)));
}

/// An operation whose owner is killed after so many verbs.
struct Killed {
    of: Reshape,
    verbs: usize,
    under_way: usize,
}

impl Operation for Killed {
    type Outcome = Option<Result<Reshaped, Failed>>;

    fn step(&mut self) -> Step<Self::Outcome> {
        if self.verbs == 0 {
            return if self.under_way == 0 { Step::Done(None) } else { Step::Wait };
        }
        let step = self.of.step();
        if let Step::Verb(_) = step {
            self.verbs -= 1;
            self.under_way += 1;
        }
        step.map(Some)
    }

    fn complete(&mut self, answer: Answer<'_>) {
        self.under_way -= 1;
        self.of.complete(answer);
    }
}

/// The word read and changed, and its children read.
const TO_CHILDREN: usize = 2 + 512 / 64;

#[test]
fn what_a_killed_agent_was_splitting_its_successor_splits() {
    for verbs in [2, TO_CHILDREN, TO_CHILDREN + 100, TO_CHILDREN + 512] {
        let host = Host::new(2048);
        let (node, options) = (NodeAddr::Shm(host.dir.join("node.sock")), options());
        let session = Session::connect_lasting(&node, &options).unwrap();
        let mut queue = session.queue_pair().unwrap();
        let mut words = Words::open(&mut queue).unwrap();
        let pool = &host.node.nic().units.words;
        let giants = (0..pool.geometry().count(Level::Giant)).map(Place::giant);
        let giant = giants.into_iter().find(|&giant| pool.word(giant).is(State::Free)).unwrap();
        let actor = Actor::new(Owner::new(session.owner()), Claimant::new(0));
        let split = Reshape::split(actor, words.geometry(), giant);
        let killed = words.run(&mut queue, &mut Killed { of: split, verbs, under_way: 0 }).unwrap();
        assert!(killed.is_none());
        assert!(pool.word(giant).is(State::Splitting));
        let Identity { secret, incarnation, number, agreed } = session.identity();
        // It takes no leave.
        std::mem::forget((words, queue, session));
        let membership = Membership { secret, incarnation, number, agreed };
        let blocks = Blocks::resume(&node, &options, (ledger(&host, "ledger"), 0), &membership, std::iter::empty());
        let mut blocks = blocks.map_err(|e| e.to_string()).unwrap();
        assert!(pool.word(giant).is(State::Shared), "{verbs}: {:?}", pool.word(giant));
        assert_eq!(host.lent(), 0);
        for _ in 0..1024 {
            claim(&mut blocks, 1).unwrap();
        }
        assert_eq!(host.lent(), 2 << 30);
        host.recount();
    }
}

/// An agent over an encrypted connection is killed. Its ledger has the secret on which it agreed with
/// the node. The next agent comes back by that secret. With a token alone nobody does.
#[test]
fn a_ledger_has_the_secret_by_which_the_next_agent_comes_back() {
    let host = Host::new(64);
    let (store, token) = (host.dir.join("tokens.toml"), Token::new("analytics", &[5; 40]).unwrap());
    let issued = Store::change(&store, |store| {
        store.tokens.push(Entry::new(&token, None));
        Ok(())
    });
    issued.unwrap();
    let mut config = farmem_memory::Config::new(64 << 20, vec![NodeAddr::Tcp("127.0.0.1:0".into())]);
    config.tokens = Some(store);
    let guarded = farmem_memory::Node::start(&config).unwrap();
    let node = guarded.addresses()[0].clone();
    let trust = Trust { token: Some(token.key()), plain: false };
    let options = ConnectOptions { transport: Transport::Tcp, trust, ..options() };
    let record = ledger(&host, "ledger");
    let mut blocks = Blocks::join(&node, &options, Arc::clone(&record)).unwrap();
    claim(&mut blocks, 1).unwrap();
    let found = record.membership(0).unwrap();
    assert!(found.agreed.is_some());
    // It takes no leave.
    std::mem::forget(blocks);
    let resume = |found| Blocks::resume(&node, &options, (Arc::clone(&record), 0), &found, std::iter::empty());
    assert!(resume(Membership { agreed: None, ..found }).is_err());
    let again = resume(found).map_err(|e| e.to_string()).unwrap();
    assert_eq!(record.membership(0).unwrap().agreed, found.agreed);
    assert_eq!(again.taken(), 0);
    // The node counts a block as lent until it has cleaned it.
    within("what no application is recorded to hold has gone back", || guarded.nic().lent() == 0);
}
