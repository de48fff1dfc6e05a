//! Words in memory that threads share, with weak orders: READs are Acquire loads, CAS are AcqRel.
//!
//! Each thread is a queue pair's, or the node's keeper's; the operations and the guard are the production ones. Bytes
//! of a chunk are memory of loom's that nobody may touch while another does, and without having seen what the other
//! did: an owner touches them from its claim to its release, the node when it scrubs. Loom goes through every order:
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p farmem-extents --release --test weak_orders`
//!
//! With a relaxed CAS three of the first four fail. Waiting threads matter: loom tries an order only if it conflicts with the
//! last access to a word, so that a look in vain hides the one that would have come too early.
//!
//! The enumeration of whole histories (`every_history.rs`) has more actors and more faults, in one order of memory.
#![cfg(loom)]

use farmem_protocol::extent::geometry::Target;
use farmem_protocol::extent::guard::{self, Words};
use farmem_protocol::extent::owner::{Lease, OwnerWord};
use farmem_protocol::extent::{
    Actor, Answer, Claimant, Claimer, Generation, Geometry, Grant, Level, Operation, Owner, Place, Reclaim, Release,
    Reshape, Reshaped, State, Step, Verb, Want, Word,
};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread::yield_now;
use std::collections::VecDeque;

const LEVELS: [Level; 3] = [Level::Chunk, Level::Block, Level::Giant];
/// Looks before somebody gives up.
const PATIENCE: u32 = 2;
/// Grants that were used and given back, in all executions of a test: not loom's, and no part of the model.
#[derive(Clone, Default)]
struct Borrowed(std::sync::Arc<std::sync::atomic::AtomicU64>);

impl Borrowed {
    fn count(&self, got: bool) {
        self.0.fetch_add(u64::from(got), Ordering::Relaxed);
    }

    /// Whoever only gives up has shown nothing.
    fn happened(&self) {
        let n = self.0.load(Ordering::Relaxed);
        println!("{n} units borrowed in all executions");
        assert!(n > 0, "nobody ever got a unit");
    }
}

/// What generations are at the start.
const YOUNG: Generation = Generation(1);

/// One block of two chunks, in an open giant.
struct Node {
    geometry: Geometry,
    words: [Vec<AtomicU64>; 3],
    bytes: Vec<UnsafeCell<()>>,
}

impl Words for Node {
    fn word(&self, place: Place) -> Word {
        Word(self.at(place).load(Ordering::Acquire))
    }

    fn owner(&self, _: Owner) -> OwnerWord {
        OwnerWord::new(Lease::Live, 0)
    }
}

impl Node {
    fn new(block: State, chunks: State) -> Node {
        let geometry = Geometry::tiny(1, 4, 0, 1).expect("a geometry");
        let state = |level| match level {
            Level::Chunk => chunks,
            Level::Block => block,
            Level::Giant => State::Shared,
        };
        let words = |level| (0..geometry.count(level)).map(move |_| AtomicU64::new(Word::plain(state(level), YOUNG).0));
        Node {
            geometry,
            words: LEVELS.map(|level| words(level).collect()),
            bytes: (0..2).map(|_| UnsafeCell::new(())).collect(),
        }
    }

    fn at(&self, place: Place) -> &AtomicU64 {
        &self.words[place.level as usize - 1][place.index as usize]
    }

    /// Touches all bytes of a unit: loom says so if anybody else could at the same time.
    fn touch(&self, place: Place) {
        let chunks = match place.level {
            Level::Chunk => place.index as usize..place.index as usize + 1,
            _ => 0..2,
        };
        self.bytes[chunks].iter().for_each(|bytes| bytes.with_mut(|_| ()));
    }

    /// As the NIC does, in the order that `guard` demands.
    fn cas(&self, who: Owner, place: Place, old: u64, new: u64) -> Answer<'static> {
        let seen = self.word(place);
        if seen.0 != old {
            return Answer::Found(seen.0);
        }
        // The node's own are not guarded.
        if !who.is_node() && guard::permits(&self.geometry, place, seen, Word(new), who, self).is_err() {
            return Answer::Refused;
        }
        match self.at(place).compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(found) | Err(found) => Answer::Found(found),
        }
    }

    fn run<T>(&self, who: Owner, operation: &mut impl Operation<Outcome = T>) -> T {
        let mut posted = VecDeque::new();
        let mut room = Vec::new();
        loop {
            match operation.step() {
                Step::Verb(verb) => posted.push_back(verb),
                Step::Wait => match posted.pop_front().expect("it waits for what it posted") {
                    Verb::Read { at, words } => {
                        room.clear();
                        room.extend((0..words as u32).map(|by| match at {
                            Target::Word(place) => self.word(place.plus(by)).0,
                            // A hint may be wrong.
                            _ => 0b11,
                        }));
                        operation.complete(Answer::Words(&room));
                    }
                    Verb::Cas { at: Target::Word(place), old, new } => {
                        operation.complete(self.cas(who, place, old, new));
                    }
                    verb => panic!("{verb:?}"),
                },
                // No verb of an owner is under way when it gives a unit back here. Others': `memory/nic/src/epochs.rs`.
                Step::Drain => operation.complete(Answer::Ready),
                Step::Scrub(place, word) => {
                    if self.word(place) == word {
                        self.touch(place);
                    }
                    operation.complete(Answer::Ready);
                }
                Step::Done(outcome) => return outcome,
            }
        }
    }

    /// Claims, a few times, until there is something; uses it and gives it back. Whether there was.
    fn borrow(&self, owner: u16, level: Level) -> bool {
        self.borrow_some(owner, Want::one(level))
    }

    fn borrow_some(&self, owner: u16, want: Want) -> bool {
        let actor = Actor::new(Owner::new(owner), Claimant::new(0));
        let mut claimer = Claimer::new(actor, self.geometry);
        for _ in 0..PATIENCE {
            claimer.begin(want);
            match self.run(actor.owner, &mut claimer) {
                Ok(grants) if !grants.is_empty() => {
                    grants.iter().for_each(|grant| self.touch(grant.place));
                    grants.into_iter().for_each(|grant| self.give_back(actor, grant));
                    return true;
                }
                _ => yield_now(),
            }
        }
        false
    }

    /// Makes a unit clean as soon as it waits for that. (Loom thinks only of orders with which another thread's
    /// last access to a word has to do: waiting makes it think of those in which somebody was faster.)
    fn clean(&self, place: Place) {
        self.await_that(|| self.word(place).is(State::Quarantine));
        let cleaned = self.run(Owner::NODE, &mut Reclaim::new(Actor::NODE, self.geometry, place));
        cleaned.expect("the node is refused nothing");
    }

    /// Waits for something, but not for ever: loom would.
    fn await_that(&self, holds: impl Fn() -> bool) {
        for _ in 0..PATIENCE {
            if holds() {
                return;
            }
            yield_now();
        }
    }

    fn give_back(&self, actor: Actor, grant: Grant) {
        self.run(actor.owner, &mut Release::new(actor, grant)).expect("it is ours to give back");
    }
}

fn explore(model: impl Fn(&Borrowed) + Send + Sync + 'static) {
    let borrowed = Borrowed::default();
    let inside = borrowed.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || model(&inside));
    borrowed.happened();
}

/// One gives a unit back that it has used, the node makes it clean, another has it and uses it.
fn from_one_to_the_next(node: Node, place: Place, borrowed: &Borrowed) {
    let owner = Actor::new(Owner::new(1), Claimant::new(0));
    let word = Word::new(State::Owned, owner.owner, 0, Claimant::new(0), YOUNG);
    node.at(place).store(word.0, Ordering::Relaxed);
    let node = Arc::new(node);
    let (a, b) = (Arc::clone(&node), Arc::clone(&node));
    let first = loom::thread::spawn(move || {
        a.touch(place);
        a.give_back(owner, Grant { place, word });
    });
    let second = loom::thread::spawn(move || b.borrow(2, place.level));
    node.clean(place);
    first.join().unwrap();
    borrowed.count(second.join().unwrap());
}

#[test]
fn a_block_goes_from_one_owner_to_the_next() {
    explore(|borrowed| from_one_to_the_next(Node::new(State::Free, State::Absent), Place::block(0), borrowed));
}

/// Of a block that is shared; its other chunk is somebody else's.
#[test]
fn a_chunk_goes_from_one_owner_to_the_next() {
    explore(|borrowed| {
        let node = Node::new(State::Shared, State::Free);
        let others = Word::new(State::Owned, Owner::new(3), 0, Claimant::new(0), YOUNG);
        node.at(Place::chunk(1)).store(others.0, Ordering::Relaxed);
        from_one_to_the_next(node, Place::chunk(0), borrowed);
    });
}

/// Two want the one block there is.
#[test]
fn a_free_block_has_one_owner() {
    explore(|borrowed| {
        let node = Arc::new(Node::new(State::Free, State::Absent));
        let other = Arc::clone(&node);
        let first = loom::thread::spawn(move || other.borrow(1, Level::Block));
        borrowed.count(node.borrow(2, Level::Block));
        borrowed.count(first.join().unwrap());
    });
}

/// One wants both chunks of a shared block, all or none, the other the second of them: who has what both want has it alone.
#[test]
fn a_run_of_chunks_has_one_owner() {
    explore(|borrowed| {
        let node = Arc::new(Node::new(State::Shared, State::Free));
        let other = Arc::clone(&node);
        let run = Want::run(&node.geometry, Level::Chunk, 2).expect("both");
        let first = loom::thread::spawn(move || other.borrow_some(1, run));
        borrowed.count(node.borrow(2, Level::Chunk));
        borrowed.count(first.join().unwrap());
    });
}

/// An owner publishes a block of which it keeps a chunk; the node cleans the other, a second owner wants it.
#[test]
fn a_published_chunk_comes_without_the_publishers_bytes_under_it() {
    explore(|borrowed| {
        let node = Node::new(State::Free, State::Absent);
        let publisher = Actor::new(Owner::new(1), Claimant::new(0));
        let word = Word::new(State::Owned, publisher.owner, 0, Claimant::new(0), YOUNG);
        node.at(Place::block(0)).store(word.0, Ordering::Relaxed);
        let node = Arc::new(node);
        let (a, b) = (Arc::clone(&node), Arc::clone(&node));
        let publishes = loom::thread::spawn(move || {
            let grant = Grant { place: Place::block(0), word };
            a.touch(grant.place);
            let mut publish = Reshape::publish(publisher, a.geometry, grant, [1, 0, 0, 0, 0, 0, 0, 0]);
            let done = a.run(publisher.owner, &mut publish).expect("its own block");
            assert!(matches!(done, Reshaped::Done(_)), "{done:?}");
            a.touch(Place::chunk(0));
        });
        let wants = loom::thread::spawn(move || b.borrow(2, Level::Chunk));
        node.await_that(|| node.word(Place::block(0)).is(State::Shared));
        node.clean(Place::chunk(1));
        publishes.join().unwrap();
        borrowed.count(wants.join().unwrap());
    });
}
