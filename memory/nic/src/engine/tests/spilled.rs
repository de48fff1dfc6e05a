//! Slabs whose bytes are put aside: what verbs and requests meet meanwhile, and that no write is lost.

use super::*;
use crate::lending::Slab;
use crate::service::{Caller, Service};
use crate::spill::{Kept, SILENT_NS, Shelf};
use crate::windows::Windows;
use farmem_protocol::random::Random;
use std::sync::atomic::AtomicU64;

/// A shelf in memory. `meanwhile` is called while a slab is being put there.
struct InMemory<F: Fn() + Send + Sync> {
    meanwhile: F,
    /// The error of the next operation.
    fails: Arc<Lock<Option<Errno>>>,
}

struct Bytes(Vec<(u64, Vec<u8>)>, Arc<Lock<Option<Errno>>>);

fn shelf() -> InMemory<impl Fn() + Send + Sync> {
    with(|| ())
}

fn with<F: Fn() + Send + Sync>(meanwhile: F) -> InMemory<F> {
    InMemory { meanwhile, fails: Arc::new(Lock::new(None)) }
}

impl<F: Fn() + Send + Sync> Shelf for InMemory<F> {
    fn put(&self, slab: &Slab) -> Result<Box<dyn Kept>, Errno> {
        if let Some(error) = self.fails.lock().take() {
            return Err(error);
        }
        let extents = slab.extents();
        let copied = |at: u64, to: u64| (at, slab.mapping.bytes(at, (to - at) as u32).unwrap());
        let bytes = extents.into_iter().map(|extent| copied(extent.start, extent.end)).collect();
        (self.meanwhile)();
        Ok(Box::new(Bytes(bytes, Arc::clone(&self.fails))))
    }
}

impl Kept for Bytes {
    fn take(&self, slab: &Slab) -> Result<(), Errno> {
        if let Some(error) = self.1.lock().take() {
            return Err(error);
        }
        assert!(self.0.iter().all(|(at, bytes)| slab.mapping.write_bytes(*at, bytes)));
        Ok(())
    }
}

impl Node {
    fn queue(&self, number: u64) -> Engine {
        let mut engine = Engine::new(Circumstances::default());
        entered(&mut engine, &self.nic, Purpose::Attach(self.known(), number));
        engine
    }

    /// The member says nothing for long, and the node lends nothing any more.
    fn is_silent(&self) {
        self.nic.lending.set_most(0);
        [1, 2, SILENT_NS + 2].iter().for_each(|&now| self.nic.look_at_owners(now));
    }

    fn aside(&self) -> u64 {
        self.nic.aside() / SLAB_BYTES
    }

    /// Bytes of memory that its slab has taken.
    fn taken(&self) -> u64 {
        self.member.slab(self.slab).unwrap().taken()
    }
}

/// The next bytes that an engine has to say, without new input.
fn goes_on(engine: &mut Engine, nic: &Nic) -> Vec<u8> {
    assert_eq!(engine.pull(nic, 0, |_| Err(Errno(libc::EAGAIN))), Ok(0));
    pushed(engine, nic)
}

/// Values that the verbs of a batch have found.
fn values(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(16).map(|one| Completion::read_from_bytes(one).unwrap().value.get()).collect()
}

fn spill(node: &Node, shelf: &dyn Shelf) -> Result<(), Errno> {
    node.nic.spill(shelf, SILENT_NS)
}

#[test]
fn what_a_silent_owner_has_is_put_aside_and_comes_back() {
    let (node, shelf) = (Node::new(), shelf());
    let mut queue = node.queue(0);
    pull(&mut queue, &node.nic, &node.additions(3, 0)).unwrap();
    assert_eq!(values(&pushed(&mut queue, &node.nic)), [0, 1, 2]);
    spill(&node, &shelf).unwrap();
    assert_eq!(node.aside(), 0, "it has just said something");
    node.is_silent();
    spill(&node, &shelf).unwrap();
    assert_eq!((node.aside(), node.taken(), node.nic.lent()), (1, 0, SLAB_BYTES));
    assert_eq!(node.nic.figure(Figure::Aside, 0), SLAB_BYTES, "members are told");
    assert_eq!(node.nic.lending.excess(), 0, "what is aside takes no memory");
    // A verb waits, and has the slab called.
    pull(&mut queue, &node.nic, &node.additions(2, 3)).unwrap();
    assert!(pushed(&mut queue, &node.nic).is_empty() && queue.waits());
    assert!(goes_on(&mut queue, &node.nic).is_empty() && queue.waits());
    assert!(node.nic.bring_back());
    assert_eq!(values(&goes_on(&mut queue, &node.nic)), [3, 4]);
    assert_eq!((node.aside(), node.word(), queue.waits()), (0, 5, false));
}

/// A verb that comes while bytes are being copied has the slab stay.
#[test]
fn a_verb_that_comes_meanwhile_has_its_slab_stay() {
    let node = Arc::new(Node::new());
    let queue = Arc::new(Lock::new(node.queue(0)));
    node.is_silent();
    let (other, beside) = (Arc::clone(&node), Arc::clone(&queue));
    let shelf = with(move || {
        pull(&mut beside.lock(), &other.nic, &other.additions(1, 0)).unwrap();
    });
    spill(&node, &shelf).unwrap();
    assert_eq!((node.aside(), node.word()), (0, 1));
    assert_eq!(values(&pushed(&mut queue.lock(), &node.nic)), [0]);
}

/// A service that adds one to the first word of a slab.
struct Adds(SlabId);

impl Service for Adds {
    fn send(
        &self,
        caller: &Caller<'_>,
        _: u32,
        _: &[u8],
        _: &Windows,
        _: &mut Section<'_>,
    ) -> Result<[u8; 64], Status> {
        let grip = caller.admit(Key::from(self.0), Op::Faa, 0, 8)?;
        grip.memory.mapping().faa(grip.offset, 1).map(|_| [0; 64]).ok_or(Status::Range)
    }

    fn departed(&self, _: u64, _: &Windows, _: &mut dyn FnMut()) {}

    fn keep(&self, _: &Windows) {}
}

/// A function near memory names slabs, too. One that is away is called, and the function is refused.
#[test]
fn a_function_finds_no_slab_that_is_away() {
    let node = Arc::new(Node::new());
    node.nic.serve(Adds(node.slab));
    let queue = Arc::new(Lock::new(node.queue(0)));
    let number = Arc::new(AtomicU64::new(0));
    let send = move || {
        let (key, first) = (Key::service(1).0.into(), number.fetch_add(1, Ordering::Relaxed));
        let verb = Verb { op: Op::Send as u8, zero: [0; 3], len: 0.into(), key, offset: 0.into() };
        let batch = Batch { count: 1.into(), zero: 0.into(), bytes: 0.into(), first: first.into() };
        [batch.as_bytes(), verb.as_bytes()].concat()
    };
    let later = send.clone();
    let sent = |queue: &mut Engine| {
        pull(queue, &node.nic, &send()).unwrap();
        Completion::read_from_bytes(&pushed(queue, &node.nic)[..16]).unwrap().status
    };
    assert_eq!(sent(&mut queue.lock()), Status::Done as u8);
    node.is_silent();
    spill(&node, &shelf()).unwrap();
    assert_eq!(node.aside(), 1);
    assert_eq!(sent(&mut queue.lock()), Status::Empty as u8);
    assert!(node.nic.bring_back());
    assert_eq!(sent(&mut queue.lock()), Status::Done as u8);
    assert_eq!(node.word(), 2);
    // While bytes are being copied it has the slab stay.
    node.is_silent();
    let (other, beside) = (Arc::clone(&node), Arc::clone(&queue));
    let meanwhile = with(move || {
        pull(&mut beside.lock(), &other.nic, &later()).unwrap();
    });
    spill(&node, &meanwhile).unwrap();
    assert_eq!((node.aside(), node.word()), (0, 3));
}

/// What refers to the slab keeps it here: half a WRITE, a READ whose bytes have not gone, a window.
#[test]
fn a_slab_in_use_stays() {
    let (node, shelf) = (Node::new(), shelf());
    let verb = |op: Op, len: u32| {
        let key = Key::from(node.slab).0.into();
        let verb = Verb { op: op as u8, zero: [0; 3], len: len.into(), key, offset: 0.into() };
        let operands = if op == Op::Write { len } else { 0 };
        let batch = Batch { count: 1.into(), zero: 0.into(), bytes: operands.into(), first: 0.into() };
        [batch.as_bytes(), verb.as_bytes()].concat()
    };
    let mut half = node.queue(1);
    pull(&mut half, &node.nic, &[&verb(Op::Write, 8)[..], &[7; 4]].concat()).unwrap();
    node.is_silent();
    spill(&node, &shelf).unwrap();
    assert_eq!(node.aside(), 0, "a WRITE is under way");
    pull(&mut half, &node.nic, &[7; 4]).unwrap();
    pushed(&mut half, &node.nic);
    let mut full = node.queue(2);
    pull(&mut full, &node.nic, &verb(Op::Read, 4096)).unwrap();
    node.is_silent();
    spill(&node, &shelf).unwrap();
    assert_eq!(node.aside(), 0, "a READ's bytes have not gone");
    pushed(&mut full, &node.nic);
    node.is_silent();
    spill(&node, &shelf).unwrap();
    assert_eq!(node.aside(), 1);
}

#[test]
fn a_shelf_that_fails_costs_nothing_or_one_slab() {
    let (node, shelf) = (Node::new(), shelf());
    let mut queue = node.queue(0);
    pull(&mut queue, &node.nic, &node.additions(1, 0)).unwrap();
    pushed(&mut queue, &node.nic);
    node.is_silent();
    *shelf.fails.lock() = Some(Errno(libc::ENOSPC));
    assert_eq!(spill(&node, &shelf), Err(Errno(libc::ENOSPC)));
    assert_eq!((node.aside(), node.word()), (0, 1));
    spill(&node, &shelf).unwrap();
    assert_eq!(node.aside(), 1);
    // Without memory for it, it comes back later.
    pull(&mut queue, &node.nic, &node.additions(1, 1)).unwrap();
    *shelf.fails.lock() = Some(Errno(libc::ENOMEM));
    assert!(!node.nic.bring_back());
    assert!(goes_on(&mut queue, &node.nic).is_empty());
    assert!(node.nic.bring_back());
    assert_eq!(values(&goes_on(&mut queue, &node.nic)), [1]);
    // A disk that does not give it back has lost it.
    node.is_silent();
    spill(&node, &shelf).unwrap();
    pull(&mut queue, &node.nic, &node.additions(1, 2)).unwrap();
    *shelf.fails.lock() = Some(Errno(libc::EIO));
    assert!(node.nic.bring_back());
    let told = goes_on(&mut queue, &node.nic);
    let completion = Completion::read_from_bytes(&told[..16]).unwrap();
    assert_eq!((completion.status, node.nic.lent(), node.aside()), (Status::NotHeld as u8, 0, 0));
}

/// Requests that need the bytes are put off, too, and one that gives the slab back needs them not.
#[test]
fn requests_wait_for_a_slab_and_its_release_does_not() {
    let (node, shelf) = (Node::new(), shelf());
    let mut queue = node.queue(0);
    pull(&mut queue, &node.nic, &node.additions(1, 0)).unwrap();
    pushed(&mut queue, &node.nic);
    let mut control = node.rejoin();
    node.is_silent();
    spill(&node, &shelf).unwrap();
    assert_eq!(node.aside(), 1);
    let discard = Request::new(7, Ask::Discard(Range { slab: node.slab, offset: 4096, len: 4096 }));
    pull(&mut control, &node.nic, discard.frame().as_bytes()).unwrap();
    assert!(pushed(&mut control, &node.nic).is_empty() && control.waits());
    assert!(node.nic.bring_back());
    let (answer, _) = Answer::read(&goes_on(&mut control, &node.nic)).unwrap().unwrap();
    assert_eq!((answer.number, answer.result, node.word()), (7, Ok(Reply::Done), 1));
    node.is_silent();
    spill(&node, &shelf).unwrap();
    assert_eq!(node.aside(), 1);
    assert_eq!(answered(&mut control, &node.nic, &Request::new(8, Ask::Release(node.slab))), Ok(Reply::Done));
    assert_eq!((node.aside(), node.nic.lent()), (0, 0));
    assert!(node.nic.lending.aside.is_empty());
}

/// Random additions by two queue pairs, with the slab put aside and called back in between, and in
/// mid-copy: each addition is found once.
#[test]
fn no_write_is_lost_in_any_order() {
    for seed in 1..=300 {
        let node = Arc::new(Node::new());
        let mut random = Random::new(seed);
        let queues: Vec<_> = (0..2).map(|queue| Arc::new(Lock::new((node.queue(queue), 0)))).collect();
        let added = Arc::new(AtomicU64::new(0));
        let adds = |queue: &Arc<Lock<(Engine, u64)>>, count: u64| {
            let (queue, node, added) = (Arc::clone(queue), Arc::clone(&node), Arc::clone(&added));
            move || {
                let (engine, first) = &mut *queue.lock();
                pull(engine, &node.nic, &node.additions(count as u16, *first)).unwrap();
                pushed(engine, &node.nic);
                *first += count;
                added.fetch_add(count, Ordering::Relaxed);
            }
        };
        for _ in 0..12 {
            match random.index(4) {
                0 => adds(&queues[random.index(2)], 1 + random.below(3))(),
                1 => {
                    node.is_silent();
                    let interrupted = random.index(2) == 0;
                    let add = adds(&queues[random.index(2)], 1);
                    spill(
                        &node,
                        &with(move || {
                            if interrupted {
                                add()
                            }
                        }),
                    )
                    .unwrap();
                }
                2 => assert!(node.nic.bring_back()),
                _ => queues.iter().for_each(|queue| drop(goes_on(&mut queue.lock().0, &node.nic))),
            }
        }
        for _ in 0..2 {
            assert!(node.nic.bring_back());
            queues.iter().for_each(|queue| drop(goes_on(&mut queue.lock().0, &node.nic)));
        }
        if node.aside() == 0 {
            assert_eq!(node.word(), added.load(Ordering::Relaxed), "seed {seed}");
        }
    }
}

/// The same by threads.
#[test]
fn no_write_is_lost_between_threads() {
    const EACH: u64 = 2000;
    let node = Arc::new(Node::new());
    let done = AtomicBool::new(false);
    let mut aside = 0;
    std::thread::scope(|scope| {
        let adders: Vec<_> = (0..2)
            .map(|queue| {
                let node = Arc::clone(&node);
                scope.spawn(move || {
                    let mut engine = node.queue(queue);
                    for first in 0..EACH {
                        pull(&mut engine, &node.nic, &node.additions(1, first)).unwrap();
                        while pushed(&mut engine, &node.nic).is_empty() {
                            std::thread::yield_now();
                            engine.pull(&node.nic, 0, |_| Err(Errno(libc::EAGAIN))).unwrap();
                        }
                    }
                })
            })
            .collect();
        let (node, done) = (&node, &done);
        let spills = scope.spawn(move || {
            let (shelf, mut aside) = (shelf(), 0);
            while !done.load(Ordering::Relaxed) {
                let slab = node.member.slab(node.slab).unwrap();
                aside += u64::from(node.nic.put_aside(&slab, &shelf).unwrap());
                drop(slab);
                node.nic.bring_back();
            }
            aside
        });
        adders.into_iter().for_each(|adder| adder.join().unwrap());
        done.store(true, Ordering::Relaxed);
        aside = spills.join().unwrap();
    });
    let shelf = shelf();
    node.nic.lending.set_most(0);
    let slab = node.member.slab(node.slab).unwrap();
    assert!(aside > 0 || node.nic.put_aside(&slab, &shelf).unwrap());
    drop(slab);
    let mut queue = node.queue(9);
    pull(&mut queue, &node.nic, &node.additions(1, 0)).unwrap();
    node.nic.bring_back();
    goes_on(&mut queue, &node.nic);
    assert_eq!(node.word(), 2 * EACH + 1, "{aside} times aside");
}
