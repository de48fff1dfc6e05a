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

mod disk;
mod late;
mod striped;
mod writes;

use crate::extent::{HOMES, Home, State};
use crate::paces::Paces;
use crate::protect::disk::DISK;
use crate::{Disk, Pool};
use disk::OnDisk;
use farmem_fabric::{Lost, QueuePair, Waiter};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES};
use farmem_sys::memory::copy_bytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use striped::{Striped, Whose};

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

#[derive(Clone, Copy)]
enum Verb {
    Read { into: *mut u8 },
    Write,
    Lines,
}

/// An operation that has no [`Done`] yet.
struct Operation {
    tag: u64,
    whose: Whose,
    slot: FarSlot,
    from: u32,
    len: u32,
    verb: Verb,
    /// Per home: the node where its verb is under way.
    at: [Option<u32>; HOMES],
    /// Homes that have done it.
    done: u32,
    /// Pages of it on their way to the disk.
    on_disk: u32,
    /// It copies what another home has.
    fills: bool,
    /// Some page of it is not there.
    disk_failed: bool,
    value: u64,
    /// Of a READ: homes that refused it.
    refused: [bool; HOMES],
    /// Of a READ of which the home was chosen: when it was posted, in ticks; else 0.
    begun: u64,
    reason: Option<Lost>,
    /// Of a READ: the node whose bytes came.
    by: Option<u32>,
}

/// One thread's way to far memory. See the module.
pub struct Lane {
    /// By node.
    links: Vec<Option<QueuePair>>,
    /// By node: why there is no queue pair, and will be none.
    barred: Vec<Option<Lost>>,
    operations: Vec<Operation>,
    idle: Vec<u32>,
    /// Done without a node, or found to be lost: to be told by the next look.
    ready: Vec<Done>,
    under_way: usize,
    waiter: Waiter,
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
            links: Vec::new(),
            barred: Vec::new(),
            operations: Vec::new(),
            idle: Vec::new(),
            ready: Vec::new(),
            under_way: 0,
            waiter: Waiter::new(),
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
        self.under_way + self.ready.len()
    }

    /// Whether the network has not taken all yet that was sent off: `poll` and `wait` go on.
    pub fn is_held_up(&self) -> bool {
        self.links.iter().flatten().any(QueuePair::is_held_up)
    }

    /// Bytes handed to the network since this was last asked.
    pub fn take_sent(&mut self) -> u64 {
        self.links.iter_mut().flatten().map(QueuePair::take_sent).sum()
    }

    /// Whether a vfork child has made one of the queue pairs.
    pub fn has_away(&self) -> bool {
        self.links.iter().flatten().any(QueuePair::is_away)
    }

    /// Ends what a vfork child has made, on its way back to its own code. Nothing is under way
    /// there.
    pub fn leave_away(&mut self) {
        for link in &mut self.links {
            link.take_if(|link| link.is_away());
        }
    }

    /// In a forked child: the queue pairs are the parent's. Nothing is under way.
    pub fn forget_in_child(&mut self) {
        self.links.drain(..).flatten().for_each(QueuePair::forget_in_child);
        self.barred.clear();
        self.operations.clear();
        self.idle.clear();
        self.ready.clear();
        self.under_way = 0;
        (self.disk.under_way, self.disk.posted) = (0, false);
        self.forget_stripes();
    }

    /// Posts a READ of a part of a slot.
    ///
    /// # Safety
    /// `into` must be writable for `len` bytes, near, and left alone until the operation is done,
    /// or the lane dropped.
    #[inline]
    pub unsafe fn read(&mut self, pool: &Pool, tag: u64, slot: FarSlot, from: u32, into: *mut u8, len: u32) {
        let number = self.begin(tag, slot, from, len, Verb::Read { into });
        self.send_read(pool, number);
    }

    fn begin(&mut self, tag: u64, slot: FarSlot, from: u32, len: u32, verb: Verb) -> u32 {
        debug_assert!(from as usize + len as usize <= PAGE_BYTES);
        self.under_way += 1;
        let begun = Operation {
            tag,
            whose: Whose::Caller,
            slot,
            from,
            len,
            verb,
            at: [None; HOMES],
            done: 0,
            on_disk: 0,
            fills: false,
            disk_failed: false,
            value: 0,
            refused: [false; HOMES],
            begun: 0,
            reason: None,
            by: None,
        };
        match self.idle.pop() {
            Some(number) => {
                self.operations[number as usize] = begun;
                number
            }
            None => {
                self.operations.push(begun);
                self.operations.len() as u32 - 1
            }
        }
    }

    /// Sends an operation's READ to a home that has the slot and did not refuse it.
    fn send_read(&mut self, pool: &Pool, number: u32) {
        loop {
            let Operation { slot, from, len, verb, refused, .. } = self.operations[number as usize];
            let Verb::Read { into } = verb else { return };
            let word = pool.extents.word(slot.slab_index());
            let barred = |node: u32| self.barred.get(node as usize).is_some_and(Option::is_some);
            let usable = |(nth, home): &(usize, Home)| !refused[*nth] && (home.base != 0 || !barred(home.node));
            let reads = |nth: &usize| word.reads(*nth, || pool.extents.is_stale(word, *nth, slot.place()));
            let homes = (0..HOMES).filter(reads).map(|nth| (nth, pool.extents.home(word, nth)));
            let mut homes = homes.filter(usable);
            let (first, other) = (homes.next(), homes.next());
            let chosen = match (first, other) {
                (Some(first), Some(other)) => Some(self.paces.quicker(pool.moment(), first, other)),
                _ => first,
            };
            let Some((nth, home)) = chosen else {
                if word.is_striped() && self.read_others(pool, number) {
                    return;
                }
                return self.end_if_done(pool, number);
            };
            self.operations[number as usize].begun = if other.is_some() { pool.moment().ticks } else { 0 };
            self.has_choice |= other.is_some();
            if home.node == DISK {
                // SAFETY: the buffer is the operation's until it is done (contract of `read`).
                if unsafe { self.read_from_disk(pool, number, (nth, home), into) } {
                    return self.end_if_done(pool, number);
                }
                continue;
            }
            if home.base != 0 {
                // SAFETY: a slab of ours, mapped; the target is the verb's.
                unsafe { copy_bytes(in_place(&home, slot, from), into, len as usize) };
                self.operations[number as usize].done += 1;
                return self.end_if_done(pool, number);
            }
            if let Some(link) = self.link(pool, home.node) {
                let key = number as u64 | (nth as u64) << HOME_BIT;
                // SAFETY: the buffer is the operation's until it is done (contract of `read`).
                unsafe { link.read(key, home.slab, slot.offset() + from as u64, into, len) };
                self.operations[number as usize].at[nth] = Some(home.node);
                return;
            }
        }
    }

    /// The queue pair to a node, made if there is none. `None`: there can be none.
    #[inline]
    fn link(&mut self, pool: &Pool, node: u32) -> Option<&mut QueuePair> {
        let node = node as usize;
        if self.links.get(node).is_none_or(Option::is_none) {
            self.make_link(pool, node)?;
        }
        self.links[node].as_mut()
    }

    #[cold]
    fn make_link(&mut self, pool: &Pool, node: usize) -> Option<()> {
        if self.links.len() <= node {
            self.links.resize_with(node + 1, || None);
            self.barred.resize_with(node + 1, || None);
        }
        if self.barred[node].is_some() {
            return None;
        }
        match pool.queue_pair(node) {
            Ok(link) => {
                self.links[node] = Some(link);
                Some(())
            }
            Err(lost) => {
                self.abandon(pool, node, lost);
                None
            }
        }
    }

    /// Sends off what was posted.
    #[inline]
    pub fn doorbell(&mut self, pool: &Pool) {
        if std::mem::take(&mut self.disk.posted) {
            pool.disk().into_iter().for_each(Disk::wake);
        }
        if self.striped.has_noted() {
            self.update_stripes(pool);
        }
        loop {
            let rung = self.links.iter_mut().enumerate().try_for_each(|(node, link)| match link {
                Some(link) if link.in_flight() > 0 => link.doorbell().map_err(|lost| (node, lost)),
                _ => Ok(()),
            });
            match rung {
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
            pool.disk().into_iter().for_each(Disk::write_if_alone);
            self.take_written(pool);
        }
        if self.striped.has_parked() {
            self.unpark(pool, false);
        }
        let polled = self.waiter.poll(&mut self.links);
        self.take_in(pool, polled, done);
        done.len() - before
    }

    /// Waits until an operation is done, at most about `limit`, if any is under way; appends what
    /// is. How many.
    pub fn wait(&mut self, pool: &Pool, done: &mut Vec<Done>, limit: Duration) -> usize {
        let before = done.len();
        done.append(&mut self.ready);
        if self.disk.under_way > 0 {
            return self.wait_with_disk(pool, done, limit);
        }
        while done.len() == before && self.under_way > 0 {
            if self.striped.has_parked() {
                self.unpark(pool, true);
            }
            let late = self.late(pool);
            let step = late.map_or(limit, |late| late.within.min(limit));
            let waited = self.waiter.wait(&mut self.links, step);
            let over = waited.is_ok() && self.waiter.came.is_empty();
            self.take_in(pool, waited, done);
            let again = over && late.is_some_and(|late| self.turn_away(pool, late));
            if over && !again && step == limit {
                break;
            }
        }
        done.len() - before
    }

    /// Takes in what has come, and the loss of a node.
    fn take_in(&mut self, pool: &Pool, looked: Result<(), (usize, Lost)>, done: &mut Vec<Done>) {
        let mut came = std::mem::take(&mut self.waiter.came);
        for (node, completion) in came.drain(..) {
            let (number, nth) = (completion.tag as u32, (completion.tag >> HOME_BIT) as usize);
            let operation = &mut self.operations[number as usize];
            operation.at[nth] = None;
            match completion.result {
                Ok(value) => {
                    operation.done += 1;
                    operation.by = Some(node as u32);
                    operation.value |= value;
                    if operation.begun != 0 {
                        self.paces.took(pool.moment(), node, operation.begun);
                    }
                    self.end_if_done(pool, number);
                }
                Err(refusal) => self.refused(pool, number, nth, node, &refusal),
            }
        }
        self.waiter.came = came;
        if let Err((node, lost)) = looked {
            self.fail(pool, node, lost);
            self.doorbell(pool);
        }
        if std::mem::take(&mut self.striped.rings) {
            self.doorbell(pool);
        }
        done.append(&mut self.ready);
    }

    /// A node has refused a verb on a slab that it granted: it does not have what it should.
    #[cold]
    fn refused(&mut self, pool: &Pool, number: u32, nth: usize, node: usize, refusal: &dyn std::fmt::Display) {
        self.met.refused += 1;
        let operation = &mut self.operations[number as usize];
        let address = pool.nodes.all()[node].session().node().to_owned();
        let what = match operation.verb {
            Verb::Read { .. } => "return a page it holds",
            Verb::Write | Verb::Lines => "store a page in a slab it granted",
        };
        operation.reason = Some(Lost { node: address, reason: format!("it refused to {what}: {refusal}") });
        operation.refused[nth] = true;
        let index = operation.slot.slab_index();
        if let Whose::Part(_) = operation.whose {
            // Or it would be asked again.
            pool.forsake(index, node);
            self.send_read(pool, number);
            self.doorbell(pool);
        } else if let Verb::Read { .. } = operation.verb {
            self.send_read(pool, number);
            self.doorbell(pool);
        } else {
            pool.forsake(index, node);
            self.end_if_done(pool, number);
        }
    }

    /// This lane can no longer reach a node. Operations under way there go elsewhere, or are done
    /// without it.
    #[cold]
    fn fail(&mut self, pool: &Pool, node: usize, lost: Lost) {
        self.abandon(pool, node, lost);
        for number in 0..self.operations.len() as u32 {
            let operation = &mut self.operations[number as usize];
            let here = operation.at.iter_mut().filter(|at| **at == Some(node as u32));
            if here.map(|at| *at = None).count() == 0 {
                continue;
            }
            match operation.verb {
                Verb::Read { .. } => self.send_read(pool, number),
                Verb::Write | Verb::Lines => {
                    // Nothing to do where the node is lost: its homes are absent by now.
                    pool.forsake(operation.slot.slab_index(), node);
                    self.end_if_done(pool, number);
                }
            }
        }
    }

    /// Drops the queue pair to a node. If the node is lost, words name no home there when this
    /// returns, but homes whose memory is mapped.
    #[cold]
    fn abandon(&mut self, pool: &Pool, node: usize, lost: Lost) {
        self.links[node] = None;
        if pool.nodes.all()[node].session().is_lost() {
            pool.lose(node, &lost);
        }
        self.barred[node] = Some(lost);
    }

    /// Tells that an operation is done, if no verb of it is under way.
    #[inline]
    fn end_if_done(&mut self, pool: &Pool, number: u32) {
        let operation = &mut self.operations[number as usize];
        if operation.at.iter().any(Option::is_some) {
            return;
        }
        let result = if operation.done > 0 { Ok(operation.value) } else { Err(self.why(pool, number)) };
        let Operation { tag, whose, by: from, .. } = self.operations[number as usize];
        self.idle.push(number);
        self.under_way -= 1;
        match whose {
            Whose::Caller => self.ready.push(Done { tag, result, from }),
            whose => self.own_done(pool, whose, result),
        }
    }

    #[cold]
    fn why(&mut self, pool: &Pool, number: u32) -> Lost {
        let operation = &mut self.operations[number as usize];
        if let Some(reason) = operation.reason.take() {
            return reason;
        }
        let word = pool.extents.word(operation.slot.slab_index());
        let barred = (0..HOMES).filter(|&nth| word.number() != 0 && word.state(nth) != State::Absent);
        let barred = barred.map(|nth| pool.extents.home(word, nth).node as usize);
        let barred = barred.into_iter().find_map(|node| self.barred.get(node).and_then(Clone::clone));
        barred.unwrap_or_else(|| pool.why_lost(word))
    }
}

/// Where a part of a slot is in this process, at a home that is mapped.
fn in_place(home: &Home, slot: FarSlot, from: u32) -> *mut u8 {
    (home.base + slot.offset() as usize + from as usize) as *mut u8
}
