//! The word of a frame that threads share, and the epochs of their scopes. `farmem-objects` keeps
//! far objects in such frames.
//!
//! ```text
//!          arrival                hand goes by               grace is over
//!  0 ─────────────────► word ◄────────────────► ! word ────────────────────────► 0
//!  nobody's, or moving  live      first use     cold                 claimed: its evictor's alone
//! ```
//!
//! A *box* names an object by a word. The *hand* is the evictor's, which passes over all frames and
//! makes them *cold*.
//!
//! *A use* is one load and one compare: the frame's word equals the box's. A cold frame has the
//! word's complement. So the first use after the hand takes the slow way, and warms the frame.
//!
//! *Why a claimed frame has no references.* A scope publishes the epoch in its thread's slot and
//! then fences. The evictor makes frames cold, raises the epoch, fences, and looks at the slots.
//! Either the scope's fence was first: then the evictor finds its slot, and waits until it is over.
//! Or the evictor's was: then the scope finds the frame cold, and warms it before it uses it. A
//! scope of the next epoch finds it cold too, because it acquired the epoch. So no thread uses a
//! frame that is still cold when all scopes of its epoch are over ([`Header::claim`]).
//!
//! *Which chill counts.* A frame may be warmed and made cold again. Only the epoch of the last
//! chill counts. The header holds it, and a claim names it.
//!
//! *Orders.* `publish` releases the payload, a use acquires it. The end of a scope releases what it
//! read and wrote, the evictor's look at the slot acquires that.
//!
//! Every order in which threads can go through it is tried out by loom, and seven mistakes that are
//! made on purpose are found: `RUSTFLAGS="--cfg loom" cargo test -p farmem-sys --lib --release models`.

mod mistakes;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use mistakes::{Mistake, made};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A frame's state beside its word. Only holders of the heap's lock change it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Free for any object.
    Free,
    /// It has an object, and was made cold in this epoch last.
    Present(u64),
    /// The object of this home is on its way to it.
    Arriving(u64),
    /// The object of this home is on its way to its home. No thread uses it.
    Leaving(u64),
    /// The same, and its box is dropped meanwhile.
    Orphan(u64),
}

impl State {
    fn word(self) -> u64 {
        match self {
            State::Free => 0,
            State::Present(epoch) => epoch << 3 | 1,
            State::Arriving(home) => home << 3 | 2,
            State::Leaving(home) => home << 3 | 3,
            State::Orphan(home) => home << 3 | 4,
        }
    }

    fn of(word: u64) -> State {
        match word & 7 {
            0 => State::Free,
            1 => State::Present(word >> 3),
            2 => State::Arriving(word >> 3),
            3 => State::Leaving(word >> 3),
            _ => State::Orphan(word >> 3),
        }
    }
}

/// Two words before each payload. All zero: the header of a frame that is nobody's.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    word: AtomicU64,
    state: AtomicU64,
}

impl Header {
    /// Of a frame that is nobody's.
    #[cfg(test)]
    fn new() -> Header {
        Header { word: AtomicU64::new(0), state: AtomicU64::new(0) }
    }

    /// Whether the frame has this box's object, and is not cold. Within a scope its payload may be
    /// used then.
    #[inline]
    pub fn is(&self, word: u64) -> bool {
        self.word.load(Ordering::Acquire) == word
    }

    /// As it is now: a box's word, the complement of one, or 0.
    pub fn peek(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    /// Warms a frame that is cold and has this box's object. Within a scope its payload may be used
    /// then.
    pub fn warm(&self, word: u64) -> bool {
        self.word.compare_exchange(!word, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Marks the object as written to, before it is. Its box is borrowed exclusively. False: the
    /// frame was made cold meanwhile.
    pub fn soil(&self, word: u64, dirty: u64) -> bool {
        self.word.compare_exchange(word, dirty, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The object's bytes are complete: from now on its box finds it.
    pub fn publish(&self, word: u64) {
        let order = if made(Mistake::PublishedTooEarly) { Ordering::Relaxed } else { Ordering::Release };
        self.word.store(word, order);
    }

    /// Makes the frame nobody's: no box finds it any more. The caller has the box, or the frame
    /// never had its object.
    pub fn clear(&self) {
        self.word.store(0, Ordering::Relaxed);
    }

    /// Makes a live frame cold. [`Epochs::turn`] follows, before the caller lets go of the lock.
    pub fn chill(&self, word: u64, epochs: &Epochs) -> bool {
        if self.word.compare_exchange(word, !word, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        self.set_state(State::Present(epochs.now()));
        true
    }

    /// Takes a frame that was made cold in this epoch and was not used since. Its payload is the
    /// caller's then. `oldest`: by [`Epochs::oldest`], after the frame was made cold.
    pub fn claim(&self, word: u64, epoch: u64, oldest: u64) -> bool {
        let is_over = epoch < oldest || made(Mistake::NoGrace);
        let is_meant = self.state() == State::Present(epoch) || made(Mistake::AnyChill);
        is_over && is_meant && self.word.compare_exchange(!word, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// See [`State`].
    pub fn state(&self) -> State {
        State::of(self.state.load(Ordering::Relaxed))
    }

    /// See [`State`].
    pub fn set_state(&self, state: State) {
        self.state.store(state.word(), Ordering::Relaxed);
    }
}

/// No scope is open.
const IDLE: u64 = u64::MAX;

/// An epoch with a line of the cache to itself. One thread's slot: the epoch in which its outermost
/// scope began.
#[repr(align(128))]
#[derive(Debug)]
struct Slot(AtomicU64);

/// Epochs, and the slots of threads.
#[derive(Debug)]
pub struct Epochs {
    /// Each miss raises it, so it has a line of the cache to itself.
    now: Slot,
    slots: Box<[Slot]>,
}

impl Epochs {
    /// Epochs with slots for this many threads.
    pub fn new(threads: usize) -> Epochs {
        let slots = (0..threads).map(|_| Slot(AtomicU64::new(IDLE))).collect();
        Epochs { now: Slot(AtomicU64::new(1)), slots }
    }

    /// The outermost scope of a thread begins.
    #[inline]
    pub fn enter(&self, slot: usize) {
        let now = self.now.0.load(Ordering::Acquire);
        // Releases the scopes before this one too, as the evictor may see this store alone.
        self.slots[slot].0.store(now, Ordering::Release);
        if !made(Mistake::NoFenceInScope) {
            fence(Ordering::SeqCst);
        }
    }

    /// The outermost scope of a thread ends.
    #[inline]
    pub fn leave(&self, slot: usize) {
        let order = if made(Mistake::LeavesTooEarly) { Ordering::Relaxed } else { Ordering::Release };
        self.slots[slot].0.store(IDLE, order);
    }

    /// The epoch. It is raised by holders of the heap's lock alone.
    pub fn now(&self) -> u64 {
        self.now.0.load(Ordering::Relaxed)
    }

    /// Frames were made cold: raises the epoch. A scope of the next one finds them cold.
    pub fn turn(&self) {
        self.now.0.fetch_add(1, Ordering::Release);
    }

    /// The epoch of the oldest open scope among the first `threads` slots: later than all, if there
    /// is none.
    pub fn oldest(&self, threads: usize) -> u64 {
        if !made(Mistake::NoFenceInLook) {
            fence(Ordering::SeqCst);
        }
        self.slots[..threads].iter().map(|slot| slot.0.load(Ordering::Acquire)).min().unwrap_or(IDLE)
    }

    /// Whether a thread has an open scope, as it is seen from here.
    pub fn is_open(&self, slot: usize) -> bool {
        self.slots[slot].0.load(Ordering::Relaxed) != IDLE
    }

    /// The thread whose open scope began first, among the first `threads` slots.
    pub fn first(&self, threads: usize) -> Option<usize> {
        let began = self.slots[..threads].iter().map(|slot| slot.0.load(Ordering::Relaxed));
        let open = began.enumerate().filter(|&(_, epoch)| epoch != IDLE);
        open.min_by_key(|&(slot, epoch)| (epoch, slot)).map(|(slot, _)| slot)
    }
}

/// Threads use an object while it is replaced and brought back, on real memory: `.ci/long miri` runs
/// this under Miri, which finds accesses that are not ordered.
#[cfg(all(test, not(loom)))]
mod threads {
    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::atomic::AtomicBool;

    const PLACE: u64 = 7 << 36;
    const USERS: usize = 2;

    struct Frame {
        header: Header,
        epochs: Epochs,
        payload: UnsafeCell<[u64; 4]>,
        is_over: AtomicBool,
    }

    // SAFETY: that its payload is accessed in an order is what this test is for.
    unsafe impl Sync for Frame {}

    #[test]
    fn uses_meet_whole_objects() {
        let rounds = if cfg!(miri) { 30 } else { 20_000 };
        let frame = Frame {
            header: Header::new(),
            epochs: Epochs::new(USERS),
            payload: UnsafeCell::new([1; 4]),
            is_over: AtomicBool::new(false),
        };
        frame.header.publish(PLACE | 1);
        let frame = &frame;
        let uses: u64 = std::thread::scope(|threads| {
            let user = |slot: usize| {
                let mut uses = 0;
                while !frame.is_over.load(Ordering::Relaxed) || uses == 0 {
                    frame.epochs.enter(slot);
                    for object in 1..4 {
                        let word = PLACE | object;
                        if frame.header.is(word) || frame.header.warm(word) {
                            // SAFETY: the scope is open, and the frame has the object.
                            let seen = unsafe { *frame.payload.get() };
                            assert_eq!(seen, [object; 4]);
                            uses += 1;
                        }
                    }
                    frame.epochs.leave(slot);
                    std::thread::yield_now();
                }
                uses
            };
            let users: Vec<_> = (0..USERS).map(|slot| threads.spawn(move || user(slot))).collect();
            let (mut object, mut replaced) = (1, 0);
            while replaced < rounds {
                let word = PLACE | object;
                let epoch = frame.epochs.now();
                frame.header.set_state(State::Present(epoch));
                if frame.header.chill(word, &frame.epochs) {
                    frame.epochs.turn();
                }
                if frame.header.claim(word, epoch, frame.epochs.oldest(USERS)) {
                    object = object % 3 + 1;
                    // SAFETY: it was claimed, so no thread uses it.
                    unsafe { *frame.payload.get() = [object; 4] };
                    frame.header.set_state(State::Present(0));
                    frame.header.publish(PLACE | object);
                    replaced += 1;
                }
                std::thread::yield_now();
            }
            frame.is_over.store(true, Ordering::Relaxed);
            users.into_iter().map(|user| user.join().unwrap()).sum()
        });
        assert!(uses > 0);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::mistakes::seed;
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread::spawn;

    const DIRTY: u64 = 1 << 35;
    const A: u64 = 7 << 36 | 5;
    const B: u64 = 7 << 36 | 6;

    /// A frame: object A is 1 at first, and object B is 2.
    struct Frame {
        header: Header,
        epochs: Epochs,
        payload: UnsafeCell<u64>,
    }

    // SAFETY: loom watches the payload, which is what these models are for.
    unsafe impl Sync for Frame {}
    // SAFETY: as above.
    unsafe impl Send for Frame {}

    impl Frame {
        fn with_a() -> Frame {
            let frame = Frame { header: Header::new(), epochs: Epochs::new(2), payload: UnsafeCell::new(1) };
            frame.header.set_state(State::Present(0));
            frame.header.publish(A);
            frame
        }

        fn read(&self) -> u64 {
            // SAFETY: loom fails the model if a write is not ordered with it.
            self.payload.with(|at| unsafe { *at })
        }

        fn write(&self, value: u64) {
            // SAFETY: loom fails the model if an access is not ordered with it.
            self.payload.with_mut(|at| unsafe { *at = value });
        }

        fn is_here(&self, word: u64) -> bool {
            self.header.is(word) || self.header.warm(word)
        }

        /// One use of A by a scope.
        fn use_once(&self, slot: usize) {
            self.epochs.enter(slot);
            if self.is_here(A) {
                assert_eq!(self.read(), 1);
            }
            self.epochs.leave(slot);
        }

        /// Makes A cold. The epoch in which it was done.
        fn chill(&self) -> u64 {
            let epoch = self.epochs.now();
            self.header.chill(A, &self.epochs);
            self.epochs.turn();
            epoch
        }

        /// Gives the frame to B, if A can leave.
        fn replace(&self, epoch: u64) {
            if self.header.claim(A, epoch, self.epochs.oldest(2)) {
                self.write(2);
                self.header.set_state(State::Present(0));
                self.header.publish(B);
            }
        }
    }

    fn explore(mistake: Option<Mistake>, model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        let _seed = seed(mistake);
        builder.check(model);
    }

    fn used_while_replaced(mistake: Option<Mistake>) {
        explore(mistake, || {
            let frame = Arc::new(Frame::with_a());
            let other = Arc::clone(&frame);
            let user = spawn(move || other.use_once(1));
            let epoch = frame.chill();
            frame.replace(epoch);
            user.join().unwrap();
        });
    }

    #[test]
    fn no_use_meets_a_replacement() {
        used_while_replaced(None);
    }

    #[test]
    #[should_panic]
    fn a_scope_without_a_fence_is_found() {
        used_while_replaced(Some(Mistake::NoFenceInScope));
    }

    #[test]
    #[should_panic]
    fn a_look_without_a_fence_is_found() {
        used_while_replaced(Some(Mistake::NoFenceInLook));
    }

    #[test]
    #[should_panic]
    fn no_grace_is_found() {
        used_while_replaced(Some(Mistake::NoGrace));
    }

    #[test]
    #[should_panic]
    fn an_end_that_releases_nothing_is_found() {
        used_while_replaced(Some(Mistake::LeavesTooEarly));
    }

    /// Two scopes, and a frame that is made cold twice.
    fn chilled_twice(mistake: Option<Mistake>) {
        explore(mistake, || {
            let frame = Arc::new(Frame::with_a());
            let other = Arc::clone(&frame);
            let first = frame.chill();
            let user = spawn(move || {
                other.use_once(1);
                other.use_once(1);
            });
            let second = frame.chill();
            frame.replace(first);
            frame.replace(second);
            user.join().unwrap();
        });
    }

    #[test]
    fn only_the_last_chill_counts() {
        chilled_twice(None);
    }

    #[test]
    #[should_panic]
    fn a_claim_by_an_old_chill_is_found() {
        chilled_twice(Some(Mistake::AnyChill));
    }

    /// B's bytes are there when B is.
    fn arrives(mistake: Option<Mistake>) {
        explore(mistake, || {
            let frame = Arc::new(Frame { header: Header::new(), epochs: Epochs::new(2), payload: UnsafeCell::new(0) });
            let other = Arc::clone(&frame);
            let user = spawn(move || {
                other.epochs.enter(1);
                if other.is_here(B) {
                    assert_eq!(other.read(), 2);
                }
                other.epochs.leave(1);
            });
            frame.write(2);
            frame.header.publish(B);
            user.join().unwrap();
        });
    }

    #[test]
    fn an_object_is_there_before_it_is_found() {
        arrives(None);
    }

    #[test]
    #[should_panic]
    fn an_object_that_is_found_before_it_is_there_is_found() {
        arrives(Some(Mistake::PublishedTooEarly));
    }

    /// A write by an exclusive borrow is in the frame, or at home.
    fn written(mistake: Option<Mistake>) {
        explore(mistake, || {
            let frame = Arc::new(Frame::with_a());
            let other = Arc::clone(&frame);
            let writer = spawn(move || {
                other.epochs.enter(1);
                let found = other.is_here(A);
                let done = if made(Mistake::DirtyAfterwards) {
                    if found {
                        other.write(9);
                    }
                    found && { other.header.soil(A, A | DIRTY) || true }
                } else {
                    found && other.header.soil(A, A | DIRTY) && {
                        other.write(9);
                        true
                    }
                };
                other.epochs.leave(1);
                done
            });
            let mut home = 1;
            for _ in 0..2 {
                let found = frame.header.peek();
                if found == A || found == A | DIRTY {
                    let epoch = frame.epochs.now();
                    frame.header.chill(found, &frame.epochs);
                    frame.epochs.turn();
                    if frame.header.claim(found, epoch, frame.epochs.oldest(2)) {
                        if found & DIRTY != 0 {
                            home = frame.read();
                        }
                        break;
                    }
                    frame.header.warm(found);
                }
            }
            let is_written = writer.join().unwrap();
            let now = if frame.header.peek() == 0 { home } else { frame.read() };
            assert_eq!(now, if is_written { 9 } else { 1 });
        });
    }

    #[test]
    fn no_write_is_lost() {
        written(None);
    }

    #[test]
    #[should_panic]
    fn a_write_before_its_mark_is_found() {
        written(Some(Mistake::DirtyAfterwards));
    }
}
