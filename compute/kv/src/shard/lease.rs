//! When a front end may answer from its near cache, and with how many verbs.
//!
//! ```text
//!  others serve the store   one READ of the slot: if it is what it was, so is the object, which is immutable
//!  alone, by a lease        none
//! ```
//!
//! *The lease.* A tick that finds no other member alive gives this front end a lease of
//! [`STALE_MS`] from when the tick began. A front end that joins changes nothing before every
//! member that it found has shown itself twice, or a lease would be over ([`Members::await_others`]).
//! A member's second sign comes after a tick that saw the newcomer, and that tick ended the lease.
//! So nobody else changes the store under a lease. A hit takes effect when the clock was read that
//! found the lease in force, which is after the request came.
//!
//! *Eras.* A lease that follows another without a gap goes on with its era; else a new era begins.
//! An entry of an older era is looked after by one READ before it counts again.
//!
//! *Its own writes.* A change that is under way may have taken effect at the node and not be known
//! here. Until it has ended its key is not answered from here, and what was read meanwhile is not
//! kept ([`Writes`]).

use crate::layout::{HEAD_BYTES, Hash, MEMBERS, head, word};
use crate::rules::Bug;
use crate::shard::Trouble;
use crate::shard::member::{Members, STALE_MS, line_word, state};
use crate::shard::near::Near;
use crate::task::Io;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// How long a newcomer waits for the others: a lease, and more for clocks that differ.
const AWAIT_MS: u32 = 2500;
/// Between its looks.
const LOOK_MS: u32 = 20;
const _: () = assert!(AWAIT_MS as u64 > STALE_MS + STALE_MS / 5);

/// A front end's lease on one shard. Times are in milliseconds of a clock that never goes back.
#[derive(Debug, Default)]
pub struct Lease {
    /// The time, as last read.
    pub now_ms: Cell<u64>,
    until_ms: Cell<u64>,
    era: Cell<u32>,
}

impl Lease {
    /// The era, if the lease is in force; else 0.
    #[inline]
    pub fn era(&self) -> u32 {
        if self.now_ms.get() < self.until_ms.get() { self.era.get() } else { 0 }
    }

    /// A tick that began at `begun_ms` found nobody else; it is `now_ms` now.
    pub fn renew(&self, begun_ms: u64, now_ms: u64) {
        if now_ms >= self.until_ms.get() {
            self.era.set(self.era.get() + 1);
        }
        self.until_ms.set(begun_ms + STALE_MS);
    }

    /// Ends the lease: another front end is there.
    pub fn end(&self) {
        self.until_ms.set(0);
    }
}

/// Groups of keys by hash, whose writes are counted together.
const GROUPS: usize = 4096;

/// Changes of keys by this front end: those under way, and how many began or ended.
#[derive(Debug)]
pub struct Writes {
    groups: RefCell<Vec<(u32, u32)>>,
    /// Changes of all keys at once.
    all: Cell<(u32, u32)>,
}

impl Default for Writes {
    fn default() -> Writes {
        Writes { groups: vec![(0, 0); GROUPS].into(), all: Cell::default() }
    }
}

/// The known changes of a key when a read of it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quiet(u32, u32);

/// A change under way.
#[derive(Debug)]
pub struct Writing {
    pub(crate) near: Rc<Near>,
    /// `None`: of all keys.
    pub(crate) hash: Option<Hash>,
    pub(crate) begun: Quiet,
}

impl Writes {
    /// No change of the key is under way.
    #[inline]
    pub fn quiet(&self, hash: Hash) -> Option<Quiet> {
        let ((open, count), all) = (self.groups.borrow()[hash.0 as usize % GROUPS], self.all.get());
        (open == 0 && all.0 == 0).then_some(Quiet(count, all.1))
    }

    pub(crate) fn change(&self, hash: Option<Hash>, by: i32) -> Quiet {
        let (mut groups, mut all) = (self.groups.borrow_mut(), self.all.get());
        let one = match hash {
            Some(hash) => &mut groups[hash.0 as usize % GROUPS],
            None => &mut all,
        };
        (one.0, one.1) = (one.0.wrapping_add_signed(by), one.1.wrapping_add(1));
        let count = hash.map_or(0, |hash| groups[hash.0 as usize % GROUPS].1);
        self.all.set(all);
        Quiet(count, all.1)
    }

    /// Whether the change is the only one since it began.
    pub(crate) fn is_sole(&self, writing: &Writing) -> bool {
        let Some(hash) = writing.hash else { return false };
        let ((open, count), all) = (self.groups.borrow()[hash.0 as usize % GROUPS], self.all.get());
        open == 1 && all.0 == 0 && Quiet(count, all.1) == writing.begun
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.near.writes.change(self.hash, -1);
    }
}

impl Members {
    /// Waits until every other member knows of this one: none counts on being alone any more.
    pub async fn await_others(&self, io: &Io) -> Result<(), Trouble> {
        if self.reach.rules.get().broken(Bug::JoinAtOnce) {
            return Ok(());
        }
        let mut others: Option<Vec<(usize, u64, u64)>> = None;
        for _ in 0..=AWAIT_MS / LOOK_MS {
            self.reach.copies.heed(io).await;
            let bytes = self.reach.read(io, self.reach.root, HEAD_BYTES as u32).await;
            // Objects are named by the epoch from the first one on.
            {
                let mut epochs = self.space.epochs.borrow_mut();
                epochs.now = epochs.now.max(word(&bytes, head::EPOCH as usize / 8));
            }
            let lines = (0..MEMBERS).filter(|&line| line != usize::from(self.reach.me.line));
            let now = lines.map(|line| (line, state(&bytes, line), line_word(&bytes, line, 1)));
            let now: Vec<_> =
                now.filter(|(_, state, _)| state.is_alive()).map(|(n, state, beat)| (n, state.0, beat)).collect();
            let awaited = others.get_or_insert_with(|| now.clone());
            awaited.retain(|&(line, state, beat)| now.iter().any(|&(n, s, b)| n == line && s == state && b < beat + 2));
            if awaited.is_empty() {
                return Ok(());
            }
            io.pause(LOOK_MS).await;
        }
        Ok(())
    }
}
