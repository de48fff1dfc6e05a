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

use crate::extent::{HOMES, Home, State, Word};
use crate::paces::Paces;
use crate::protect::disk::DISK;
use crate::{Disk, Pool};
use disk::OnDisk;
use farmem_fabric::{Lost, QueuePair, Waiter};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, SlabId};
use farmem_sys::clock;
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
        }
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

    /// Posts a WRITE of a part of a slot, to each home that takes pages.
    ///
    /// # Safety
    /// `bytes` must be readable for `len` bytes, near, and stay so until the operation is done, or
    /// the lane dropped.
    pub unsafe fn write(&mut self, pool: &Pool, tag: u64, slot: FarSlot, from: u32, bytes: *const u8, len: u32) {
        if pool.extents.word(slot.slab_index()).is_striped() {
            assert!(len as usize == PAGE_BYTES, "a stripe is written by whole pages");
            return self.note(pool, tag, slot, bytes);
        }
        let number = self.begin(tag, slot, from, len, Verb::Write);
        // SAFETY: the caller's promise.
        unsafe { self.send_write(pool, number, bytes) };
    }

    /// Sends an operation's WRITE to each home that takes pages.
    ///
    /// # Safety
    /// As [`Lane::write`], until the operation is done.
    unsafe fn send_write(&mut self, pool: &Pool, number: u32, bytes: *const u8) {
        let Operation { slot, from, len, .. } = self.operations[number as usize];
        let word = pool.extents.word(slot.slab_index());
        let whole = len as usize == PAGE_BYTES;
        for nth in 0..HOMES {
            if word.misses(nth) {
                pool.extents.set_stale(word, nth, slot.place(), true);
                continue;
            }
            // A part is of no use where the rest is not.
            if !word.takes_pages(nth) || !whole && !word.reads(nth, || pool.extents.is_stale(word, nth, slot.place())) {
                continue;
            }
            if word.state(nth) == State::Filling {
                pool.extents.set_stale(word, nth, slot.place(), false);
            }
            let home = pool.extents.home(word, nth);
            if home.node == DISK {
                self.post_to_disk(pool, number, (nth, home), (slot, from), (bytes, len));
            } else if home.base != 0 {
                // SAFETY: a slab of ours, mapped, of a slot that this process writes by this lane
                // alone; the source is the caller's promise.
                unsafe { copy_bytes(bytes, in_place(&home, slot, from), len as usize) };
                self.operations[number as usize].done += 1;
            } else if let Some(link) = self.link(pool, home.node) {
                let key = number as u64 | (nth as u64) << HOME_BIT;
                // SAFETY: the caller's promise, until the operation is done at all homes.
                unsafe { link.write(key, home.slab, slot.offset() + from as u64, bytes, len) };
                self.operations[number as usize].at[nth] = Some(home.node);
            } else {
                pool.forsake(slot.slab_index(), home.node as usize);
            }
        }
        self.end_if_done(pool, number);
    }

    /// Posts a record of changed lines of slots of one slab, to each home that takes pages and has
    /// all of them; a home that does not lacks them from now on. `encode` makes the record for the
    /// slab of a name, and is asked for each home; `None`: it has no room, and that home lacks the
    /// slots. A disk gets the `pages`, each with its slot, whole. `conditional`: as
    /// [`QueuePair::lines_if`].
    ///
    /// # Safety
    /// The pages, and the result of `encode` for its length, must be readable, near, and stay as
    /// they are until the operation is done, or the lane dropped.
    pub unsafe fn lines(
        &mut self,
        pool: &Pool,
        tag: u64,
        pages: impl Iterator<Item = (FarSlot, *const u8)> + Clone,
        conditional: bool,
        mut encode: impl FnMut(SlabId) -> Option<(*const u8, u32)>,
    ) {
        let slots = pages.clone().map(|(slot, _)| slot);
        let Some(first) = slots.clone().next() else { return };
        let number = self.begin(tag, first, 0, 0, Verb::Lines);
        let word = pool.extents.word(first.slab_index());
        for nth in 0..HOMES {
            let (taken, missed) = (word.takes_pages(nth), word.misses(nth));
            if !taken && !missed {
                continue;
            }
            let stale = |slot: FarSlot| pool.extents.is_stale(word, nth, slot.place());
            let home = pool.extents.home(word, nth);
            if home.node == DISK && taken {
                for (slot, bytes) in pages.clone() {
                    if word.state(nth) == State::Filling {
                        pool.extents.set_stale(word, nth, slot.place(), false);
                    }
                    self.post_to_disk(pool, number, (nth, home), (slot, 0), (bytes, PAGE_BYTES as u32));
                }
                continue;
            }
            let has_all = taken && (word.state(nth) == State::Whole || !slots.clone().any(stale));
            let takes = has_all && pool.nodes.all()[home.node as usize].takes_records();
            let record = if takes { encode(home.slab) } else { None };
            let Some((record, len)) = record else {
                self.misses(pool, nth, slots.clone());
                continue;
            };
            if let Some(link) = self.link(pool, home.node) {
                let key = number as u64 | (nth as u64) << HOME_BIT;
                // SAFETY: the caller's promise, until the operation is done at all homes.
                unsafe {
                    match conditional {
                        true => link.lines_if(key, home.slab, record, len),
                        false => link.lines(key, home.slab, record, len),
                    }
                }
                self.operations[number as usize].at[nth] = Some(home.node);
            } else {
                pool.forsake(first.slab_index(), home.node as usize);
            }
        }
        self.end_if_done(pool, number);
    }

    /// A home does not get what is written to slots now, whose pages nobody reads before the
    /// operation is done.
    #[cold]
    fn misses(&mut self, pool: &Pool, nth: usize, slots: impl Iterator<Item = FarSlot> + Clone) {
        let Some(first) = slots.clone().next() else { return };
        let index = first.slab_index();
        let whole = |word: Word| (word.state(nth) == State::Whole).then(|| word.with_state(nth, State::Filling));
        pool.extents.update(index, whole);
        // While a home is not whole the record stays the slab's: no home is added or dropped.
        let word = pool.extents.word(index);
        slots.for_each(|slot| {
            pool.extents.set_stale(word, nth, slot.place(), true);
        });
    }

    /// Fills slots that a filling home lacks, from a place of the slab on, with what the other home
    /// has: at most as many as `buffers` has pages. Waits until they are done. Returns the place
    /// behind the last, or `None` at the end.
    ///
    /// Call it on the lane of all write-back, while nothing else is posted. Its READs come behind
    /// every WRITE posted before. Pages that leave meanwhile are not overwritten, because their
    /// bits are clear. [`Pool::add_home`] says what must be done before.
    ///
    /// # Safety
    /// `buffers` must be `pages` pages, writable and near. No other operation may be under way on
    /// the lane.
    pub unsafe fn fill(
        &mut self,
        pool: &Pool,
        index: u32,
        nth: usize,
        from: u32,
        buffers: *mut u8,
        pages: u32,
    ) -> Option<u32> {
        let mut slots = Vec::with_capacity(pages as usize);
        let mut at = from;
        while slots.len() < pages as usize
            && let Some(slot) = pool.next_stale(index, nth, at)
        {
            slots.push(slot);
            at = slot.place() + 1;
            if at == farmem_protocol::addr::SLOTS_PER_SLAB {
                break;
            }
        }
        if slots.is_empty() {
            return None;
        }
        let word = pool.extents.word(index);
        let home = pool.extents.home(word, nth);
        // SAFETY: one page of the buffers for each, this call's until it returns.
        let buffer = |i: usize| unsafe { buffers.add(i * PAGE_BYTES) };
        let mut done = Vec::new();
        let mut had = vec![false; slots.len()];
        for (i, &slot) in slots.iter().enumerate() {
            // SAFETY: as above.
            unsafe { self.read(pool, i as u64, slot, 0, buffer(i), PAGE_BYTES as u32) };
        }
        self.all_done(pool, &mut done);
        done.drain(..).for_each(|done| had[done.tag as usize] = done.result.is_ok());
        for (i, &slot) in slots.iter().enumerate().filter(|(i, _)| had[*i]) {
            let number = self.begin(i as u64, slot, 0, PAGE_BYTES as u32, Verb::Write);
            self.operations[number as usize].fills = true;
            if home.node == DISK {
                self.post_to_disk(pool, number, (nth, home), (slot, 0), (buffer(i), PAGE_BYTES as u32));
            } else if home.base != 0 {
                // SAFETY: a slab of ours, mapped; nobody reads the slot there, for its bit is set.
                unsafe { copy_bytes(buffer(i), in_place(&home, slot, 0), PAGE_BYTES) };
                self.operations[number as usize].done += 1;
            } else if let Some(link) = self.link(pool, home.node) {
                let key = number as u64 | (nth as u64) << HOME_BIT;
                // SAFETY: the buffer is this call's.
                unsafe { link.write(key, home.slab, slot.offset(), buffer(i), PAGE_BYTES as u32) };
                self.operations[number as usize].at[nth] = Some(home.node);
            }
            self.end_if_done(pool, number);
        }
        self.all_done(pool, &mut done);
        for done in done.iter().filter(|done| done.result.is_ok()) {
            // At the acknowledgement: a READ of another thread's could overtake the WRITE.
            pool.extents.set_stale(word, nth, slots[done.tag as usize].place(), false);
        }
        Some(at)
    }

    /// Waits until nothing is under way.
    fn all_done(&mut self, pool: &Pool, done: &mut Vec<Done>) {
        self.doorbell(pool);
        while self.in_flight() > 0 {
            self.wait(pool, done, Duration::from_secs(1));
        }
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
                (Some(first), Some(other)) => Some(self.paces.quicker(first, other)),
                _ => first,
            };
            let Some((nth, home)) = chosen else {
                if word.is_striped() && self.read_others(pool, number) {
                    return;
                }
                return self.end_if_done(pool, number);
            };
            self.operations[number as usize].begun = if other.is_some() { clock::ticks() } else { 0 };
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
            let late = self.late();
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
                    operation.value |= value;
                    if operation.begun != 0 {
                        self.paces.took(node, operation.begun);
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
        let Operation { tag, whose, .. } = self.operations[number as usize];
        self.idle.push(number);
        self.under_way -= 1;
        match whose {
            Whose::Caller => self.ready.push(Done { tag, result }),
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
