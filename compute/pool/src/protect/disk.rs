//! A file on this host as the second home of slabs (`--protect disk`).
//!
//! ```text
//!  grow ─► [whole at a node, whole on disk] ─ the node is lost ─► [absent, whole on disk] ─► add_home, fill
//!  lane ── pages that leave ──► node
//!                         └───► queue ─► the disk's thread ─► pwrite          (`write_one`)
//! ```
//!
//! The file is a home of the node number [`DISK`]; a *place* of the file, 64 MiB, is the slab
//! there. So a loss, a repair and a drain are what they are with a mirror. Nodes come first in a
//! slab's record, and READs go there.
//!
//! *When a write is done.* When the page is in the kernel's cache of the file. The disk guards
//! against the loss of a node, not of the host.
//!
//! *Room.* A block of 2 MiB has its room set apart before the first page goes there, so that a full
//! disk is seen by who needs a block, and not by a page that has nowhere to go. Blocks that are
//! idle are punched out.
//!
//! *A disk that is slow.* A page that the node has and that the disk has not taken for [`SLOW_NS`]
//! counts as done, if a write is under way (else the thread has no CPU, and who waits for the page
//! writes it): its stale bit is set first, and repair copies it later. The bytes of a write under
//! way may be overwritten then: nobody reads the slot there, and its next write comes behind, for
//! one thread writes at a time.
//!
//! *A disk that fails* is a node that is lost: its homes are taken out of the words.
//!
//! *Forks.* Parent and child have one file. A place that both can reach is punched by neither while
//! the other lives.

#![allow(unsafe_code)] // Pages of the caller's, between posting and the end of the operation.

use crate::copies::Dropped;
use crate::extent::{HOMES, Home, State};
use crate::held::Slabs;
use crate::nodes::MAX_NODES;
use crate::{BLOCK_BYTES, Losses, NoRoom, Pool, Slots};
use farmem_fabric::Lost;
use farmem_protocol::addr::{FarSlot, SLAB_BYTES, SlabId};
use farmem_sys::disk::PageFile;
use farmem_sys::raw::{Errno, futex_wait, futex_wake, now_ns};
use farmem_sys::sync::Lock;
use std::collections::VecDeque;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The number by which homes name the disk: that of no node.
pub(crate) const DISK: u32 = MAX_NODES as u32;

/// How long a page waits for the disk when its node has it.
pub const SLOW_NS: u64 = 500_000_000;
/// How long a page waits for a thread that does not run.
const HELP_NS: u64 = 20_000_000;
/// For how long a disk that was so slow is not filled.
const REST_NS: u64 = 5_000_000_000;
/// Bytes after which the system is asked to write them back, and to drop what it has.
const WRITE_BACK: u64 = 64 << 20;

/// A page on its way to the file.
#[derive(Clone, Copy)]
pub struct Job {
    /// The lane and its operation.
    pub lane: u64,
    pub number: u32,
    pub slot: FarSlot,
    /// Where in the file.
    pub offset: u64,
    pub bytes: *const u8,
    pub len: u32,
    pub posted_ns: u64,
}

// SAFETY: the bytes are the operation's until its end, and the disk's memory for good (see the
// module).
unsafe impl Send for Job {}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    /// The one that is being written; `None`: nobody waits for it any more.
    begun: Option<Job>,
    /// Whether one is being written.
    writes: bool,
    written: Vec<(Job, Result<(), Errno>)>,
}

/// The file, and what is on its way there.
pub struct Disk {
    file: PageFile,
    dir: String,
    /// It has failed.
    failed: AtomicBool,
    why: Lock<Option<String>>,
    /// Not told yet.
    news: Lock<Vec<String>>,
    /// Places that this process had, and nobody else.
    places: Lock<Vec<u64>>,
    queue: Lock<Queue>,
    /// Held while a page is written: one at a time, in the order posted.
    writer: Lock<()>,
    /// Counts what was asked of the thread, and what it has done. Futexes.
    asked: AtomicU32,
    finished: AtomicU32,
    sleepers: AtomicU32,
    has_thread: AtomicBool,
    since_write_back: AtomicU64,
    slow_until_ns: AtomicU64,
}

impl Disk {
    /// A file without a name in a directory.
    ///
    /// # Errors
    /// One line that says why there is none.
    pub fn open(dir: &str) -> Result<Disk, String> {
        let path = CString::new(dir).map_err(|_| format!("{dir:?} has a zero byte"))?;
        let file = PageFile::new_in(&path).map_err(|e| format!("no file for pages can be made in {dir}: {e}"))?;
        Ok(Disk {
            file,
            dir: dir.to_owned(),
            failed: AtomicBool::new(false),
            why: Lock::new(None),
            news: Lock::new(Vec::new()),
            places: Lock::new(Vec::new()),
            queue: Lock::new(Queue::default()),
            writer: Lock::new(()),
            asked: AtomicU32::new(0),
            finished: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            has_thread: AtomicBool::new(false),
            since_write_back: AtomicU64::new(0),
            slow_until_ns: AtomicU64::new(0),
        })
    }

    /// Whether it takes pages.
    #[inline]
    pub fn is_in(&self) -> bool {
        !self.failed.load(Ordering::Acquire)
    }

    /// Whether slots may be copied there behind the program.
    pub fn may_fill(&self) -> bool {
        self.is_in() && now_ns() >= self.slow_until_ns.load(Ordering::Relaxed)
    }

    /// Why it takes none.
    pub fn lost(&self) -> Lost {
        let reason = self.why.lock().clone().unwrap_or_else(|| "it has not kept a page that it was given".to_owned());
        Lost { node: format!("disk {}", self.dir), reason }
    }

    /// A place for a slab.
    pub fn place(&self) -> Home {
        let place = self.places.lock().pop().unwrap_or_else(|| self.file.next.fetch_add(1, Ordering::Relaxed));
        Home { node: DISK, slab: SlabId(place), base: 0 }
    }

    /// A place that no other process can reach is free again.
    pub fn give_up(&self, place: SlabId) {
        self.file.punch(place.0 * SLAB_BYTES, SLAB_BYTES);
        self.places.lock().push(place.0);
    }

    /// Sets room apart for blocks of a place, bit k for block k.
    ///
    /// # Errors
    /// There is none.
    pub fn reserve(&self, place: SlabId, blocks: u32) -> Result<(), NoRoom> {
        let mut left = blocks;
        while left != 0 {
            let first = left.trailing_zeros();
            let n = (left >> first).trailing_ones();
            let (offset, len) = (u64::from(first) * BLOCK_BYTES, u64::from(n) * BLOCK_BYTES);
            self.file
                .reserve(place.0 * SLAB_BYTES + offset, len)
                .map_err(|e| NoRoom::Exhausted(format!("{} has no room for copies of pages: {e}", self.dir)))?;
            left &= !((u64::MAX >> (64 - n)) << first) as u32;
        }
        Ok(())
    }

    /// Gives the room of a range of a place back.
    pub fn punch(&self, place: SlabId, offset: u64, len: u64) -> bool {
        self.file.punch(place.0 * SLAB_BYTES + offset, len)
    }

    /// Reads a part of a slot of a place.
    ///
    /// # Safety
    /// `into` must be writable for `len` bytes, and near.
    pub unsafe fn read(&self, place: SlabId, slot: FarSlot, from: u32, into: *mut u8, len: u32) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.file.read(at(place, slot, from), into, len as usize) }
    }

    /// A part of a slot is to be written. Who posts it wakes the thread afterwards
    /// ([`Disk::wake`]).
    pub fn post(
        &self,
        (lane, number): (u64, u32),
        place: SlabId,
        slot: FarSlot,
        from: u32,
        bytes: *const u8,
        len: u32,
    ) {
        let job = Job { lane, number, slot, offset: at(place, slot, from), bytes, len, posted_ns: now_ns() };
        self.queue.lock().waiting.push_back(job);
    }

    /// Has the thread look.
    pub fn wake(&self) {
        if self.has_thread.load(Ordering::Relaxed) {
            self.asked.fetch_add(1, Ordering::Release);
            futex_wake(&self.asked, 1);
        }
    }

    /// Writes the next page; false: there was none.
    pub fn write_one(&self) -> bool {
        let _writer = self.writer.lock();
        self.write_next()
    }

    /// By the holder of the writer's lock.
    fn write_next(&self) -> bool {
        let Some(job) = ({
            let mut queue = self.queue.lock();
            queue.begun = queue.waiting.pop_front();
            queue.writes = queue.begun.is_some();
            queue.begun
        }) else {
            return false;
        };
        // SAFETY: the bytes are the operation's, or memory of the consumer's that is never
        // unmapped.
        let result = unsafe { self.file.write(job.offset, job.bytes, job.len as usize) };
        let mut queue = self.queue.lock();
        queue.writes = false;
        if let Some(job) = queue.begun.take() {
            queue.written.push((job, result));
        }
        drop(queue);
        self.finished.fetch_add(1, Ordering::Release);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            futex_wake(&self.finished, i32::MAX);
        }
        self.since_write_back.fetch_add(u64::from(job.len), Ordering::Relaxed);
        true
    }

    /// Waits a little until a page was written; where there is no thread, writes one.
    pub fn wait(&self, longest_ns: u64) {
        if !self.has_thread.load(Ordering::Relaxed) {
            self.write_one();
            return;
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = self.finished.load(Ordering::Acquire);
        // Something may have been written before this sleeper was counted.
        if self.queue.lock().written.is_empty() {
            futex_wait(&self.finished, seen, longest_ns);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Writes what waits for a thread that does not run.
    pub fn help(&self) {
        let waits = || self.queue.lock().waiting.front().is_some_and(|job| job.posted_ns + HELP_NS < now_ns());
        while waits() {
            let Some(_writer) = self.writer.try_lock() else { return };
            self.write_next();
        }
    }

    /// Without a thread: writes all that waits.
    pub fn write_if_alone(&self) {
        if !self.has_thread.load(Ordering::Relaxed) {
            while self.write_one() {
                std::hint::spin_loop();
            }
        }
    }

    /// Takes what was written of a lane's.
    pub(crate) fn take_written(&self, lane: u64, into: &mut Vec<(Job, Result<(), Errno>)>) {
        let mut queue = self.queue.lock();
        into.extend(queue.written.extract_if(.., |(job, _)| job.lane == lane));
    }

    /// Takes what a lane has posted before a time and is not written, of operations that `may`.
    pub(crate) fn forget(&self, lane: u64, before_ns: u64, mut may: impl FnMut(&Job) -> bool, into: &mut Vec<Job>) {
        let mut queue = self.queue.lock();
        if !queue.writes {
            return;
        }
        let mut old = |job: &Job| job.lane == lane && job.posted_ns < before_ns && may(job);
        into.extend(queue.begun.take_if(|job| old(job)));
        queue.waiting.retain(|job| {
            let forget = old(job);
            into.extend(Some(*job).filter(|_| forget));
            !forget
        });
        drop(queue);
        if !into.is_empty() {
            let until = now_ns() + REST_NS;
            if self.slow_until_ns.swap(until, Ordering::Relaxed) == 0 {
                self.news.lock().push(format!(
                    "{} has not taken a page for 500 ms: the program goes on, and copies there are made later",
                    self.dir
                ));
            }
        }
    }

    /// In a forked child: places are its parent's, and there is no thread. Nothing is under way.
    pub fn forget_in_child(&self) {
        self.places.lock().clear();
        self.has_thread.store(false, Ordering::Relaxed);
    }
}

fn at(place: SlabId, slot: FarSlot, from: u32) -> u64 {
    place.0 * SLAB_BYTES + slot.offset() + u64::from(from)
}

impl Pool {
    /// From now on slabs that are not mapped here have a second home in this file.
    pub fn protect_by(&'static self, disk: Disk) {
        if self.tables.protection.disk.set(disk).is_ok() {
            self.protect(farmem_run::Protect::Disk);
        }
    }

    /// What the disk's thread runs. `enter` is asked before each round, and what it gives is
    /// dropped behind it: a fork finds the thread outside.
    pub fn run_disk<T>(&self, enter: impl Fn() -> T) {
        let Some(disk) = self.tables.protection.disk() else { return };
        disk.has_thread.store(true, Ordering::Relaxed);
        while disk.has_thread.load(Ordering::Relaxed) {
            let seen = disk.asked.load(Ordering::Acquire);
            let inside = enter();
            while disk.write_one() {
                if disk.since_write_back.load(Ordering::Relaxed) > WRITE_BACK {
                    disk.since_write_back.store(0, Ordering::Relaxed);
                    disk.file.write_back().unwrap_or_else(|e| self.losses().disk_failed(e));
                }
            }
            drop(inside);
            futex_wait(&disk.asked, seen, 1_000_000_000);
        }
    }

    /// Lines about the disk that were not told yet.
    pub fn disk_news(&self) -> Vec<String> {
        self.tables.protection.disk().map_or_else(Vec::new, |disk| std::mem::take(&mut disk.news.lock()))
    }
}

impl Losses<'_> {
    /// The disk has failed. When this returns no word names a home there.
    #[cold]
    pub(crate) fn disk_failed(self, e: impl std::fmt::Display) {
        let Some(disk) = self.tables.protection.disk_in() else { return };
        disk.why.lock().get_or_insert_with(|| e.to_string());
        // No slab is published or given a home meanwhile.
        let _changing = self.changes.now.lock();
        let slabs = self.held.slabs.lock();
        disk.failed.store(true, Ordering::Release);
        (0..slabs.list.len() as u32).for_each(|index| self.tables.forsake(index, DISK as usize));
        drop(slabs);
        disk.news.lock().push(format!("{}: {e}; the program goes on without copies there", disk.dir));
    }

    /// The disk is full: a slab that a node has does without it, until repair finds room. False
    /// where no node has it.
    pub(crate) fn leave_disk(self, index: u32) -> bool {
        let mut slabs = self.held.slabs.lock();
        let word = self.tables.extents.word(index);
        if !self.tables.has_node(word) {
            return false;
        }
        let homes = (0..HOMES).filter(|&nth| word.state(nth) != State::Absent);
        let homes = homes.map(|nth| self.tables.extents.home(word, nth));
        if let Some(home) = homes.into_iter().find(|home| home.node == DISK) {
            self.tables.forsake(index, DISK as usize);
            let is_shared = slabs.list[index as usize].as_ref().is_none_or(|slab| slab.sharers > 0);
            slabs.drop_later(Dropped { home: Some(home).filter(|_| !is_shared), ..Dropped::default() });
        }
        true
    }
}

impl Slots<'_> {
    /// Room in the file for blocks of a slab that become warm. A slab that has a node goes on
    /// without the file.
    pub(crate) fn back_on_disk(self, index: u32, home: Home, blocks: u32) -> Result<(), NoRoom> {
        let Some(disk) = self.tables.protection.disk_in() else { return Ok(()) };
        let backed = disk.reserve(home.slab, blocks);
        if backed.is_ok() || !self.losses.leave_disk(index) { backed } else { Ok(()) }
    }
}

impl Slabs {
    /// In a forked child: places that the parent is about to give up are the parent's.
    pub(crate) fn leave_places(&mut self) {
        for (_, dropped) in &mut self.dropped {
            dropped.home.take_if(|home| home.node == DISK);
        }
    }
}
