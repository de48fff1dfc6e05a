//! A thread's lane: its queue pairs to all nodes, and the operations under way on them.
//!
//! ```text
//!  read(slot), write(slot), lines(slots) ─► one verb for a READ, one for each home that takes pages else
//!       doorbell ─► wait for any node ─► one Done for each operation
//!                        └─ a home is lost: its queue pair is dropped, its word changed; a READ goes to another home,
//!                           a write is done there; `Lost` only when no home is left
//! ```
//!
//! Posting and ringing cannot fail: the end of an operation is told by its [`Done`] alone.
//!
//! *Order.* Verbs of one lane take effect at a home in the order posted (but READs may see what is
//! posted behind them). All write-back of a consumer goes by one lane, so that a slot's next write
//! is applied after this one at every home.
//!
//! *A home that is mapped* is copied from and to as the operation is posted. No node takes part, so
//! that it works when the node has ended, too.
//!
//! *Bits before completions.* A home that an operation has not reached is absent from the slab's
//! word, or its stale bit is set, before the operation counts as done. The consumer publishes the
//! page's word after that, and readers load the page's word before the slab's. So no READ goes to a
//! home that missed a write.

// Buffers are the caller's raw memory, and mapped homes are copied to.
#![allow(unsafe_code)]

mod beside;
mod changes;
mod disk;
mod late;
mod links;
mod operations;
mod others;
mod striped;
mod writes;

use crate::homes::{HOMES, Home, State};
use crate::paces::Paces;
use crate::protect::disk::DISK;
use crate::{Disk, Pool, Slip};
use disk::OnDisk;
use farmem_fabric::Lost;
use farmem_protocol::addr::FarSlot;
use farmem_protocol::lines::conditional::Refused;
use farmem_sys::memory::copy_bytes;
use links::{Links, Looked};
use operations::{Operation, Operations, Verb};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
pub use striped::Change;
use striped::Striped;
pub use writes::{Filled, Piece};

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// As given when it was posted.
    pub tag: u64,
    /// Of a record of lines with conditions, the pages refused by some home; else 0. `Lost`: no
    /// home has done it, and none is left.
    pub result: Result<u64, Lost>,
    /// Of a READ: the number of the node whose bytes came. `None`: they are of several.
    pub from: Option<u32>,
}

/// One thread's way to far memory. See the module.
pub struct Lane {
    links: Links,
    operations: Operations,
    paces: Paces,
    /// A READ under way, or one before, could have gone elsewhere.
    has_choice: bool,
    disk: OnDisk,
    striped: Striped,
    met: Met,
}

/// Rare events that a lane has met so far.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Met {
    /// Times that it turned away from a node, because a READ was late.
    pub turned: u64,
    /// READs that were answered by other seats of their stripe.
    pub followed: u64,
    /// Verbs that a node refused.
    pub refused: u64,
    /// Stripes that were updated by changed lines.
    pub changed: u64,
    /// Stripes that were to be, but were written whole: old lines were not those expected, or did
    /// not come.
    pub doubted: u64,
}

/// Lanes so far.
static LANES: AtomicU64 = AtomicU64::new(0);

// SAFETY: the pointers are buffers of operations under way, which the caller leaves to the lane
// wherever it goes.
unsafe impl Send for Lane {}

const HOME_BIT: u32 = 32;

impl Lane {
    /// No queue pair yet.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Lane {
        Lane {
            links: Links::new(),
            operations: Operations::default(),
            paces: Paces::default(),
            has_choice: false,
            disk: OnDisk { lane: LANES.fetch_add(1, Ordering::Relaxed), ..OnDisk::default() },
            striped: Striped::default(),
            met: Met::default(),
        }
    }

    /// Rare events so far.
    pub fn met(&self) -> Met {
        self.met
    }

    /// Operations without a [`Done`].
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.operations.under_way + self.operations.ready.len()
    }

    /// Whether the network has not taken all yet that was sent off: `poll` and `wait` go on.
    pub fn is_held_up(&self) -> bool {
        self.links.is_held_up()
    }

    /// Bytes handed to the network since this was last asked.
    pub fn take_sent(&mut self) -> u64 {
        self.links.take_sent()
    }

    /// Whether a vfork child has made one of the queue pairs.
    pub fn has_away(&self) -> bool {
        self.links.has_away()
    }

    /// Ends what a vfork child has made, on its way back to its own code. Nothing is under way
    /// there.
    pub fn leave_away(&mut self) {
        self.links.leave_away();
    }

    /// In a forked child: the queue pairs are the parent's. Nothing is under way.
    pub fn forget_in_child(&mut self) {
        self.links.forget_in_child();
        self.operations = Operations::default();
        (self.disk.under_way, self.disk.posted) = (0, false);
        self.striped = Striped::default();
    }

    /// Posts a READ of a part of a slot.
    ///
    /// # Safety
    /// `into` must be writable for `len` bytes, near, and left alone until the operation is done,
    /// or the lane dropped.
    #[inline]
    pub unsafe fn read(&mut self, pool: &Pool, tag: u64, slot: FarSlot, from: u32, into: *mut u8, len: u32) {
        let number = self.operations.begin(tag, slot, from, len, Verb::Read { into });
        self.send_read(pool, number);
    }

    /// Sends an operation's READ to a home that has the slot.
    fn send_read(&mut self, pool: &Pool, number: u32) {
        loop {
            let Operation { slot, from, len, verb, .. } = self.operations[number];
            let Verb::Read { into } = verb else { return };
            let word = pool.tables.homes.word(slot.slab_index());
            let barred = |home: &Home| home.base == 0 && self.links.is_barred(&pool.tables.nodes, home.node);
            let usable = |(_, home): &(usize, Home)| !barred(home);
            let reads = |nth: &usize| word.reads(*nth, || pool.tables.homes.is_stale(word, *nth, slot.place()));
            let homes = (0..HOMES).filter(reads).map(|nth| (nth, pool.tables.homes.home(word, nth)));
            let mut homes = homes.filter(usable);
            let (first, other) = (homes.next(), homes.next());
            let chosen = match (first, other) {
                (Some(first), Some(other)) => Some(match pool.tables.nodes.doubts(&first.1, &other.1) {
                    Some(true) => other,
                    Some(false) => first,
                    None => self.paces.quicker(pool.tables.nodes.moment(), first, other),
                }),
                _ => first,
            };
            let Some((nth, home)) = chosen else {
                if word.is_striped() && self.read_others(pool, number) {
                    return;
                }
                return self.end_if_done(pool, number);
            };
            let operation = &mut self.operations[number];
            operation.may_go = other.is_some();
            if operation.may_go {
                operation.begun = pool.tables.nodes.moment().ticks;
                self.has_choice = true;
            }
            if home.node == DISK {
                // SAFETY: the buffer is the operation's until it is done (contract of `read`).
                if unsafe { self.operations[number].read_from_disk(pool, home, into) } {
                    return self.end_if_done(pool, number);
                }
                continue;
            }
            if home.base != 0 {
                // SAFETY: a slab of ours, mapped; the target is the verb's.
                unsafe { copy_bytes(in_place(&home, slot, from), into, len as usize) };
                self.operations[number].done += 1;
                return self.end_if_done(pool, number);
            }
            if let Some(link) = self.links.to(pool.losses(), home.node) {
                pool.tables.heat.touch(slot.slab_index());
                let key = number as u64 | (nth as u64) << HOME_BIT;
                // SAFETY: the buffer is the operation's until it is done (contract of `read`).
                unsafe { link.read(key, home.slab, slot.offset() + from as u64, into, len) };
                self.operations[number].at[nth] = Some(home.node);
                return;
            }
        }
    }

    /// Sends off what was posted.
    #[inline]
    pub fn doorbell(&mut self, pool: &Pool) {
        if std::mem::take(&mut self.disk.posted) {
            pool.tables.protection.disk().into_iter().for_each(Disk::wake);
        }
        if self.striped.has_noted() {
            self.update_stripes(pool);
        }
        loop {
            match self.links.ring() {
                Ok(()) => return,
                // READs that go elsewhere now are rung for, too.
                Err((node, lost)) => self.fail(pool, node, lost),
            }
        }
    }

    /// Appends what is done; how many. Does not wait.
    pub fn poll(&mut self, pool: &Pool, done: &mut Vec<Done>) -> usize {
        let before = done.len();
        if self.disk.under_way > 0 {
            pool.tables.protection.disk().into_iter().for_each(Disk::write_if_alone);
            self.take_written(pool);
        }
        if self.striped.has_parked() {
            self.unpark(pool, false);
        }
        let polled = self.links.poll();
        self.take_in(pool, polled, done);
        done.len() - before
    }

    /// Waits until an operation is done, at most about `limit`, if any is under way; appends what
    /// is. How many.
    pub fn wait(&mut self, pool: &Pool, done: &mut Vec<Done>, limit: Duration) -> usize {
        let before = done.len();
        done.append(&mut self.operations.ready);
        if self.disk.under_way > 0 {
            return self.wait_with_disk(pool, done, limit);
        }
        while done.len() == before && self.operations.under_way > 0 {
            if self.striped.has_parked() {
                self.unpark(pool, true);
            }
            let late = self.late(pool);
            let step = late.map_or(limit, |late| late.within.min(limit));
            let waited = self.links.wait(step);
            let over = waited.is_ok() && self.links.nothing_came();
            self.take_in(pool, waited, done);
            let again = over && late.is_some_and(|late| self.turn_away(pool, late));
            if over && !again && step == limit {
                break;
            }
        }
        done.len() - before
    }

    /// Takes in what has come, and the loss of a node.
    fn take_in(&mut self, pool: &Pool, looked: Looked, done: &mut Vec<Done>) {
        let mut came = self.links.take_came();
        for (node, completion) in came.drain(..) {
            let (number, nth) = (completion.tag as u32, (completion.tag >> HOME_BIT) as usize);
            let operation = &mut self.operations[number];
            // The answer of a node that the operation does not wait for any more.
            if operation.at[nth] != Some(node as u32) && !pool.tables.slips.has(Slip::KeptLateLink) {
                continue;
            }
            operation.at[nth] = None;
            match completion.result {
                Ok(value) => {
                    operation.done += 1;
                    operation.by = Some(node as u32);
                    // Of two homes only records of lines have values.
                    operation.value = Refused(operation.value).or(Refused(value)).0;
                    if operation.may_go {
                        self.paces.took(pool.tables.nodes.moment(), node, operation.begun);
                    }
                    self.end_if_done(pool, number);
                }
                Err(refusal) => self.refused(pool, number, node, &refusal),
            }
        }
        self.links.put_back(came);
        if let Err((node, lost)) = looked {
            self.fail(pool, node, lost);
            self.doorbell(pool);
        }
        if std::mem::take(&mut self.striped.rings) {
            self.doorbell(pool);
        }
        done.append(&mut self.operations.ready);
    }

    /// A node has refused a verb on a slab that it granted: it does not have what it should, and is no
    /// home of the slab any more.
    #[cold]
    fn refused(&mut self, pool: &Pool, number: u32, node: usize, refusal: &dyn std::fmt::Display) {
        self.met.refused += 1;
        let operation = &mut self.operations[number];
        let address = pool.tables.nodes.all()[node].session().node().to_owned();
        let what = match operation.verb {
            Verb::Read { .. } => "return a page it holds",
            Verb::Write | Verb::Lines => "store a page in a slab it granted",
        };
        operation.reason = Some(Lost { node: address, reason: format!("it refused to {what}: {refusal}") });
        let is_read = matches!(operation.verb, Verb::Read { .. });
        // Also for a READ that another home answers: repair makes the copy anew, and nobody counts on it.
        pool.tables.forsake(operation.slot.slab_index(), node);
        // The doorbell rings when all that has come is taken in: a node that it finds lost ends
        // operations, and those have no completion left in the list then.
        if is_read {
            self.send_read(pool, number);
            self.striped.rings = true;
        } else {
            self.end_if_done(pool, number);
        }
    }

    /// This lane can no longer reach a node. Operations under way there go elsewhere, or are done
    /// without it.
    #[cold]
    fn fail(&mut self, pool: &Pool, node: usize, lost: Lost) {
        self.links.abandon(pool.losses(), node, lost);
        for number in self.operations.numbers() {
            let operation = &mut self.operations[number];
            let here = operation.at.iter_mut().filter(|at| **at == Some(node as u32));
            if here.map(|at| *at = None).count() == 0 {
                continue;
            }
            match operation.verb {
                Verb::Read { .. } => self.send_read(pool, number),
                Verb::Write | Verb::Lines => {
                    // Nothing to do where the node is lost: its homes are absent by now. Of a record
                    // it is not known here which slots it had.
                    match operation.verb {
                        Verb::Write => pool.tables.unreached(operation.slot, node),
                        _ => pool.tables.forsake(operation.slot.slab_index(), node),
                    }
                    self.end_if_done(pool, number);
                }
            }
        }
    }

    /// Tells that an operation is done, if no verb of it is under way.
    #[inline]
    fn end_if_done(&mut self, pool: &Pool, number: u32) {
        let operation = &mut self.operations[number];
        if operation.at.iter().any(Option::is_some) {
            return;
        }
        let result = if operation.done > 0 { Ok(operation.value) } else { Err(self.why(pool, number)) };
        if let Some((whose, result, by)) = self.operations.end(number, result) {
            self.own_done(pool, whose, result, by);
        }
    }

    #[cold]
    fn why(&mut self, pool: &Pool, number: u32) -> Lost {
        let operation = &mut self.operations[number];
        if let Some(reason) = operation.reason.take() {
            return reason;
        }
        let word = pool.tables.homes.word(operation.slot.slab_index());
        let barred = (0..HOMES).filter(|&nth| word.number() != 0 && word.state(nth) != State::Absent);
        let barred = barred.map(|nth| pool.tables.homes.home(word, nth).node as usize);
        let barred = barred.into_iter().find_map(|node| self.links.why_barred(node).cloned());
        barred.unwrap_or_else(|| pool.tables.why_lost(word))
    }
}

/// Where a part of a slot is in this process, at a home that is mapped.
fn in_place(home: &Home, slot: FarSlot, from: u32) -> *mut u8 {
    (home.base + slot.offset() as usize + from as usize) as *mut u8
}
