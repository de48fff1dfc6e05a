//! Attaching: when a connection may carry out verbs, and when it must not.

use super::*;
use crate::nic::lending::{Backing, Lending};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::wire::{Batch, Completion, Op, Verb};
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::time::{Duration, Instant};
use zerocopy::FromZeros;

struct Node {
    nic: Nic,
    secret: [u8; 16],
    slab: SlabId,
    member: Arc<Member>,
}

impl Node {
    fn new() -> Node {
        let draw = AtomicU8::new(1);
        let nic =
            Nic::new(Lending::new(SLAB_BYTES, Backing::Small), move || [draw.fetch_add(1, Ordering::Relaxed); 16]);
        let mut control = Engine::new(Circumstances::default());
        pull(&mut control, &nic, hello(Purpose::Join).as_bytes()).unwrap();
        let welcome = Welcome::read_from_bytes(&pushed(&mut control, &nic)).unwrap();
        let grant = Request { ask: Ask::Grant as u8, number: 2.into(), ..Request::new_zeroed() };
        pull(&mut control, &nic, grant.as_bytes()).unwrap();
        let slab = SlabId(Answer::read_from_bytes(&pushed(&mut control, &nic)).unwrap().value.get());
        let member = nic.members().remove(0);
        // The control connection stands as long as nobody closes it.
        std::mem::forget(control);
        Node { nic, secret: welcome.secret, slab, member }
    }

    fn attach(&self, queue: u64) -> Vec<u8> {
        let incarnation = self.nic.incarnation.into();
        let hello = Hello { secret: self.secret, incarnation, queue: queue.into(), ..hello(Purpose::Attach) };
        hello.as_bytes().to_vec()
    }

    /// FAAs of 1 on the slab's first word.
    fn additions(&self, count: u16, first: u64) -> Vec<u8> {
        let verb = Verb {
            op: Op::Faa as u8,
            zero: [0; 3],
            len: 8.into(),
            key: Key::from(self.slab).0.into(),
            offset: 0.into(),
        };
        let bytes = (count as u32 * 8).into();
        let batch = Batch { count: count.into(), zero: 0.into(), bytes, first: first.into() };
        let mut all = batch.as_bytes().to_vec();
        (0..count).for_each(|_| all.extend(verb.as_bytes()));
        (0..count).for_each(|_| all.extend(1u64.to_le_bytes()));
        all
    }

    fn word(&self) -> u64 {
        self.member.slab(self.slab).unwrap().mapping.faa(0, 0).unwrap()
    }

    fn turn(&self, queue: u64) -> Arc<super::super::QueueTurn> {
        Arc::clone(&self.member.presence.lock().queues[&queue])
    }
}

fn hello(purpose: Purpose) -> Hello {
    Hello { magic: MAGIC, version: VERSION.into(), purpose: purpose as u8, ..Hello::new_zeroed() }
}

fn pull(engine: &mut Engine, nic: &Nic, bytes: &[u8]) -> Result<usize, Goodbye> {
    engine.pull(nic, 0, |parts| {
        assert!(bytes.len() <= parts[0].len());
        // SAFETY: the engine's own buffer.
        unsafe { parts[0].fill(0, bytes) };
        Ok(bytes.len())
    })
}

fn pushed(engine: &mut Engine, nic: &Nic) -> Vec<u8> {
    let mut out = Vec::new();
    let sent = engine.push(nic, |parts, _| {
        let len: usize = parts.iter().map(Part::len).sum();
        for part in parts {
            // SAFETY: the engine's own bytes, alive for the call.
            out.extend(unsafe { part.bytes() });
        }
        Ok(len)
    });
    sent.unwrap();
    out
}

/// Values that the FAAs found, behind a Welcome.
fn found(bytes: &[u8]) -> Vec<u64> {
    let done = bytes[size_of::<Welcome>()..].chunks_exact(size_of::<Completion>());
    done.map(|one| Completion::read_from_bytes(one).unwrap().value.get()).collect()
}

#[test]
fn verbs_that_come_with_the_hello_are_carried_out_at_once() {
    let node = Node::new();
    let mut engine = Engine::new(Circumstances::default());
    let bytes = [node.attach(7), node.additions(3, 0), node.additions(2, 3)].concat();
    pull(&mut engine, &node.nic, &bytes).unwrap();
    assert_eq!(found(&pushed(&mut engine, &node.nic)), [0, 1, 2, 3, 4]);
    assert_eq!(node.word(), 5);
}

#[test]
fn verbs_of_a_connection_whose_turn_is_over_are_not() {
    let node = Node::new();
    let (mut first, mut second) = (Engine::new(Circumstances::default()), Engine::new(Circumstances::default()));
    // Half of a verb has come when the next connection attaches.
    let verbs = node.additions(3, 0);
    pull(&mut first, &node.nic, &[&node.attach(7)[..], &verbs[..20]].concat()).unwrap();
    pull(&mut second, &node.nic, &[node.attach(7), node.additions(1, 0)].concat()).unwrap();
    assert_eq!(pull(&mut first, &node.nic, &verbs[20..]), Err(Goodbye::Done));
    assert_eq!((found(&pushed(&mut second, &node.nic)), node.word()), (vec![0], 1));
}

/// Verbs that came with a Hello wait for the turn as all do: whoever has it carries out his own first, and until then
/// sees none of theirs.
#[test]
fn verbs_that_come_with_the_hello_wait_for_the_turn() {
    let node = Node::new();
    let mut engine = Engine::new(Circumstances::default());
    pull(&mut engine, &node.nic, &node.attach(7)).unwrap();
    let turn = node.turn(7);
    let (done, node) = (AtomicBool::new(false), &node);
    std::thread::scope(|scope| {
        let held = turn.0.lock();
        scope.spawn(|| {
            let mut next = Engine::new(Circumstances::default());
            pull(&mut next, &node.nic, &[node.attach(7), node.additions(1, 0)].concat()).unwrap();
            done.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!done.load(Ordering::SeqCst) && node.word() == 0, "carried out beside the one whose turn it was");
        drop(held);
    });
    assert_eq!((done.into_inner(), node.word()), (true, 1));
}

/// Whoever has the turn may wait until all sections are over (an INVALIDATE does): an Attach that waits for that turn
/// is in none, or both would wait for good.
#[test]
fn an_attach_waits_for_its_turn_in_no_section() {
    let node = Node::new();
    let mut engine = Engine::new(Circumstances::default());
    pull(&mut engine, &node.nic, &node.attach(7)).unwrap();
    let turn = node.turn(7);
    let node = &node;
    std::thread::scope(|scope| {
        let held: farmem_sys::sync::Held<'_, u64> = Lock::lock(&turn.0);
        scope.spawn(|| {
            let mut next = Engine::new(Circumstances::default());
            pull(&mut next, &node.nic, &node.attach(7)).unwrap();
        });
        std::thread::sleep(Duration::from_millis(50));
        let (revoked, begun) = (node.nic.epochs.now(), Instant::now());
        let mut over = false;
        while !over && begun.elapsed() < Duration::from_secs(10) {
            over = node.nic.epochs.is_over(revoked);
        }
        // Before the verdict, so that a failure is one, and no hang.
        drop(held);
        assert!(over, "an Attach that waits for its turn holds up everybody's revocations");
    });
}
