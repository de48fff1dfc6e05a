//! Heaps that threads share.
//!
//! ```text
//! thread ── Seat: lane, slot of epochs ─┐
//! thread ── Seat: lane, slot of epochs ─┼─► heap: frames │ lock: which objects leave, which come
//! SharedBox, SharedVec, … : Send, Sync ─┘
//! ```
//!
//! An object that is local lies in a *frame*. To use it takes no lock and writes nothing
//! ([`farmem_sys::epochs`]). A *miss*, a use of an object that is away, takes the heap's lock to
//! choose a frame. It takes the lock once more when the object has come. The transfer itself is
//! outside the lock, by the lane of the thread's seat. Other threads that need the object meanwhile
//! wait for it.
//!
//! Room is made by the thread that needs it. It takes frames that no scope can use any more
//! ([`core`]). An open scope holds all objects that were local when it began. So a scope that stays
//! open lets nothing leave. Threads that need room wait for it, up to [`PATIENCE`].

mod btree;
mod core;
mod frames;
mod heap;
mod map;
mod owners;
mod pledge;
mod queue;
mod seat;
mod vec;

use self::core::{Core, Ground, Moving, Space};
use crate::class::Class;
use crate::homes::{Home, Owner, Table};
use crate::share::Share;
use crate::word::Word;
use crate::{Error, Result};
use farmem::Memory;
use farmem_sys::epochs::{Epochs, State};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

pub use btree::SharedBTree;
use frames::Arena;
pub use frames::SharedBox;
pub use heap::SharedHeap;
pub use map::SharedHashMap;
pub use queue::SharedQueue;
pub use seat::{Seat, SharedScope};
pub use vec::SharedVec;

/// The most threads that use a heap at a time.
const SEATS: usize = 256;
/// How long a thread that needs room waits for other threads' scopes while nothing happens: none of
/// the oldest ends, and no object comes.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it waits in all.
const MOST_PATIENCE: Duration = Duration::from_secs(10);
/// Looks at the heap's lock before a thread sleeps for it.
const SPINS: usize = 200;
/// Time between two looks whether those scopes have ended.
const NAP: Duration = Duration::from_micros(50);

struct Inner {
    core: Mutex<Core>,
    /// Notified when transfers have ended: objects have come or left.
    ended: Condvar,
    epochs: Epochs,
    arena: Arena,
    /// Declared after the arena, so dropped after it: memory of the share is then used no more.
    share: Mutex<Share>,
    /// Whether that is a share of the run's.
    is_of_run: bool,
    memory: Memory,
    /// Under this the heap owns blocks of homes ([`crate::homes`]).
    itself: Shared,
}

/// A shared heap, as the owner of blocks of homes.
#[derive(Clone)]
struct Shared(Weak<Inner>);

impl Owner for Shared {
    fn enter(&self) -> Option<usize> {
        owners::enter(self)
    }

    fn leave(number: usize, is_empty: bool) {
        owners::leave(number, is_empty);
    }
}

/// 1 in the process that built the first shared heap, 0 in its forked children.
static HERE: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();

/// Whether this is a forked child of a process with shared heaps. A child must take no lock: a
/// thread of the parent may have held it at the fork.
fn is_forked() -> bool {
    HERE.get().is_some_and(|here| here.is_some_and(|here| here.load(Ordering::Relaxed) == 0))
}

/// How long a thread has waited for room.
struct Waits {
    begun: Instant,
    /// When it last saw something happen.
    since: Instant,
    /// What it saw: the epoch of the oldest scope, and the objects that had come.
    seen: (u64, u64),
}

/// The result of a look at boxes.
enum Look {
    /// All objects are local.
    Here,
    /// The transfers that were begun bring in all objects that were away.
    Coming,
    /// Look again when the transfers that were begun have ended.
    Again,
    /// Other threads bring in those that are away: wait for them.
    Wait,
    /// Scopes hold all room. The slot of the seat whose scope began first.
    Held(Option<usize>),
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Core> {
        // It is held for less than a microsecond mostly. To sleep and be woken takes several.
        for _ in 0..SPINS {
            match self.core.try_lock() {
                Ok(core) => return core,
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
                Err(TryLockError::Poisoned(core)) => return core.into_inner(),
            }
        }
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `work` with the parts of the heap that are outside its lock.
    fn with_ground<R>(&self, work: impl FnOnce(Ground<'_>) -> R) -> R {
        let (frames, epochs, memory) = (&self.arena, &self.epochs, &self.memory);
        work(Ground { frames, epochs, memory, share: &self.share })
    }

    /// Looks whether the objects of boxes are local. Chooses frames for those that are away, and
    /// adds their transfers to `moving`, which the caller runs. `slot`: the seat's. The caller has
    /// a scope.
    fn look(
        &self,
        core: &mut Core,
        (class, slot): (Class, usize),
        cells: &[&AtomicU64],
        moving: &mut Moving,
    ) -> Result<Look> {
        let (mut away, mut is_awaited) = (Vec::new(), false);
        for &cell in cells {
            let word = Word(cell.load(Ordering::Relaxed));
            let header = self.arena.header(self.arena.of_word(class, word));
            if header.is(word.0) || header.warm(word.0) {
                continue;
            }
            match header.state() {
                State::Arriving(home) | State::Leaving(home) if home == word.home().0 => is_awaited = true,
                _ => {
                    let home = core.homes.addr(word.home()).ok_or(Error::OtherHeap)?;
                    away.push((word.home(), home, cell));
                }
            }
        }
        if away.is_empty() {
            return Ok(if is_awaited { Look::Wait } else { Look::Here });
        }
        // A box that is named twice is fetched once.
        away.sort_unstable_by_key(|one| one.0.0);
        away.dedup_by_key(|one| one.0.0);
        self.with_ground(|on| {
            match core.room(on, class, (away.len(), slot), moving) {
                Space::Is => {}
                Space::After => return Ok(Look::Again),
                Space::Held(first) => return Ok(Look::Held(first)),
            }
            for (home, address, cell) in away {
                let (grip, word) = core.frame(on, (class, slot), home)?;
                core.missed(home, class);
                cell.store(word.0, Ordering::Relaxed);
                moving.reads.push((grip, address));
                moving.words.push(word);
            }
            Ok(if is_awaited { Look::Again } else { Look::Coming })
        })
    }

    /// Brings in the objects of boxes that are away. The caller has a scope, which keeps them
    /// local.
    fn load_all(&self, seat: &Seat, class: Class, cells: &[&AtomicU64]) -> Result<()> {
        if is_forked() {
            return self.forked(class, cells);
        }
        let mut waits = None;
        let mut core = self.lock();
        loop {
            let mut moving = Moving::default();
            let said = self.look(&mut core, (class, seat.slot), cells, &mut moving);
            seat.is_low.set(seat.is_low.get() || core.is_low(class, seat.slot));
            let joins = std::mem::take(&mut core.joins);
            if moving.is_empty() && joins.is_empty() {
                match said? {
                    Look::Here | Look::Coming => return Ok(()),
                    Look::Again => {}
                    Look::Wait => core = self.wait(core),
                    Look::Held(first) => {
                        self.held(core, seat, first, &mut waits)?;
                        core = self.lock();
                    }
                }
                continue;
            }
            drop(core);
            let ran = self.run(seat, moving);
            self.join(joins);
            let said = said?;
            ran?;
            if matches!(said, Look::Coming) {
                return Ok(());
            }
            core = self.lock();
        }
    }

    /// [`Inner::load_all`] in a forked child: local objects can be used, and others cannot come. It
    /// takes no lock: a thread of the parent may have held it at the fork.
    fn forked(&self, class: Class, cells: &[&AtomicU64]) -> Result<()> {
        for cell in cells {
            let word = Word(cell.load(Ordering::Relaxed));
            let header = self.arena.header(self.arena.of_word(class, word));
            if !header.is(word.0) && !header.warm(word.0) {
                return Err(Error::Memory(farmem::Error::Forked));
            }
        }
        Ok(())
    }

    /// Waits until some object has come or left, or [`PATIENCE`] is over.
    fn wait<'a>(&'a self, mut core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        core.waiting += 1;
        let (mut core, _) = self.ended.wait_timeout(core, PATIENCE).unwrap_or_else(PoisonError::into_inner);
        core.waiting -= 1;
        core
    }

    /// Waits a moment, because scopes hold all room. `core`: as it was looked at. (What leaves may have ended
    /// once it is let go, and has made room, or cannot leave.) `first`: the slot of the seat whose scope
    /// began first. `waits`: how long the caller has waited; the caller keeps it between calls. A
    /// slow scope is not a stuck one: [`PATIENCE`] begins again when an object has come or the
    /// oldest scope has ended.
    ///
    /// # Errors
    /// [`Error::ScopeFull`]: the patience is over, or the scope that began first is the caller's
    /// own. [`Error::Memory`]: so it is, because what was to leave could not.
    fn held(
        &self,
        core: MutexGuard<'_, Core>,
        seat: &Seat,
        first: Option<usize>,
        waits: &mut Option<Waits>,
    ) -> Result<()> {
        let full = core.full();
        if core.leaving > 0 {
            drop(self.wait(core));
            return Ok(());
        }
        let seen = (self.epochs.oldest(core.seats.len()), core.fetched);
        drop(core);
        let now = Instant::now();
        let waits = waits.get_or_insert(Waits { begun: now, since: now, seen });
        if waits.seen != seen {
            (waits.since, waits.seen) = (now, seen);
        }
        let is_over = now - waits.since > PATIENCE || now - waits.begun > MOST_PATIENCE;
        if first == Some(seat.slot) || is_over {
            return Err(full);
        }
        std::thread::sleep(NAP);
        Ok(())
    }

    /// Fills the shares of a seat whose outermost scope is about to begin. If scopes hold what is
    /// needed, it waits for them as [`Inner::held`] does, and once for each scope that stays open.
    #[cold]
    fn settle(&self, seat: &Seat) {
        let mut waits = None;
        while !is_forked() {
            let (mut core, mut moving) = (self.lock(), Moving::default());
            let space = self.with_ground(|on| core.settle(on, seat.slot, &mut moving));
            let oldest = self.epochs.oldest(core.seats.len());
            let joins = std::mem::take(&mut core.joins);
            if !moving.is_empty() || !joins.is_empty() {
                drop(core);
                let ran = self.run(seat, moving);
                self.join(joins);
                // What cannot go home stays, and a miss will tell of it.
                if ran.is_err() {
                    return;
                }
                continue;
            }
            match space {
                Space::Is => return seat.is_low.set(false),
                Space::After => {}
                Space::Held(_) if seat.gave_up.get() == oldest => return,
                Space::Held(first) => {
                    if self.held(core, seat, first, &mut waits).is_err() {
                        return seat.gave_up.set(oldest);
                    }
                }
            }
        }
    }

    /// Gives the run what its pages gain more by, and the system what a forked child had. A heap that
    /// misses nothing would not ask.
    #[cold]
    fn weigh(&self, seat: &Seat) {
        if !is_forked() {
            self.arena.split();
        }
        if self.is_of_run && !is_forked() {
            let mut moving = Moving::default();
            self.with_ground(|on| self.lock().look(on, &mut moving));
            // What cannot go home stays, and a miss will tell of it.
            let _ = self.run(seat, moving);
        }
    }

    /// Has the kernel join groups of segments. The caller does not hold the heap's lock.
    fn join(&self, groups: Vec<(Class, usize)>) {
        for (class, group) in groups {
            self.arena.join(class, group);
            self.with_ground(|on| self.lock().joined(on, class, group));
        }
    }

    /// Moves objects by one round trip, if there are any.
    ///
    /// # Errors
    /// The first error of an arrival. If there are no arrivals, the first of a departure.
    fn run(&self, seat: &Seat, moving: Moving) -> Result<()> {
        if moving.is_empty() {
            return Ok(());
        }
        let mut ending = Ending { inner: self, moving, results: Vec::new(), begun: Instant::now() };
        let arrivals = ending.moving.reads.len();
        let lane = &mut *seat.lane.borrow_mut();
        ending.results = self.arena.transfer(lane, &ending.moving.reads, &ending.moving.writes);
        let failed = {
            let results = &ending.results;
            let counted = if arrivals > 0 { &results[..arrivals] } else { &results[..] };
            counted.iter().find_map(|result| result.as_ref().err().cloned())
        };
        drop(ending);
        failed.map_or(Ok(()), |e| Err(e.into()))
    }

    /// Makes an object of these bytes. Returns the word for its box.
    fn fresh(&self, seat: &Seat, class: Class, bytes: &[u8]) -> Result<Word> {
        if is_forked() {
            return Err(Error::Memory(farmem::Error::Forked));
        }
        let mut waits = None;
        loop {
            let mut moving = Moving::default();
            let mut core = self.lock();
            let space = self.with_ground(|on| core.room(on, class, (1, seat.slot), &mut moving));
            let made = matches!(space, Space::Is).then(|| self.make(&mut core, (class, seat.slot), bytes));
            seat.is_low.set(seat.is_low.get() || core.is_low(class, seat.slot));
            let joins = std::mem::take(&mut core.joins);
            if let (true, Space::Held(first)) = (moving.is_empty() && joins.is_empty(), &space) {
                self.held(core, seat, *first, &mut waits)?;
                continue;
            }
            drop(core);
            let ran = self.run(seat, moving);
            self.join(joins);
            match made {
                Some(made) => return made,
                None => ran?,
            }
        }
    }

    /// Takes a home and a frame for a new object, and fills the frame. There is room for it.
    fn make(&self, core: &mut Core, (class, slot): (Class, usize), bytes: &[u8]) -> Result<Word> {
        let home = core.homes.take(class, &self.memory, &self.itself)?;
        let taken = self.with_ground(|on| core.frame(on, (class, slot), home));
        let (grip, word) = taken.inspect_err(|_| core.homes.give(home, &self.memory))?;
        self.arena.fill(&grip, bytes);
        self.arena.publish(grip, word.dirty());
        Ok(word.dirty())
    }

    /// Frees the home and the frame of a box that is dropped.
    fn dropped(&self, class: Class, word: Word) {
        let mut core = self.lock();
        self.with_ground(|on| core.dropped(on, class, word));
        if self.is_of_run && self.with_ground(|on| core.tidy(on, class)) {
            self.share.lock().unwrap_or_else(PoisonError::into_inner).keep(core.used());
        }
    }
}

/// Records the end of transfers when it is dropped. So they end also if their thread unwinds.
struct Ending<'a> {
    inner: &'a Inner,
    moving: Moving,
    results: Vec<farmem::Result<u64>>,
    begun: Instant,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut core = self.inner.lock();
        let moving = std::mem::take(&mut self.moving);
        core.took(moving.reads.len(), self.begun.elapsed());
        self.inner.with_ground(|on| core.ended(on, moving, &self.results));
        if core.waiting > 0 {
            self.inner.ended.notify_all();
        }
    }
}
