//! A file on this host as the second home of slabs (`--protect disk`).
//!
//! ```text
//!  grow ─► [whole at a node, whole on disk] ─ the node is lost ─► [absent, whole on disk] ─► add_home, fill
//!  lane ── pages that leave ──► node
//!                         └───► queue ─► the disk's thread ─► pwrite          (`write_one`)
//! ```
//!
//! The file counts as a node with the number [`DISK`]. A *place* is 64 MiB of the file, and stands
//! for a slab of that node. So losses, repairs and drains are those of a mirror. A node comes
//! before the disk in a slab's record, and READs go to the node.
//!
//! *When a write is done.* A write is done when the page is in the kernel's cache of the file. The
//! disk guards against the loss of a node, not of the host.
//!
//! *Room.* Room for a block of 2 MiB is reserved in the file before the first page goes there. So a
//! full disk fails the request for a block, and never the write of a page. Idle blocks are punched
//! out of the file.
//!
//! *A disk that is slow.* A page may wait for the disk longer than [`SLOW_NS`] though its node has
//! it. If a write is under way, the disk is slow: the page's stale bit is set, the page counts as
//! done, and repair copies it later. If none is, the disk's thread has no CPU, and the waiting
//! thread writes the page itself.
//!
//! The bytes of the write under way may then change while they are written. That is harmless: no
//! reader uses the stale slot, and its next write comes later, because one thread writes at a time.
//!
//! *A disk that fails* is treated as a lost node: its homes are taken out of the slabs' words.
//!
//! *Forks.* Parent and child have one file. A place that both can reach is punched by neither while
//! the other lives. One that a slab leaves meanwhile waits in a list of its own ([`SharedPlace`]).

#![allow(unsafe_code)] // Pages of the caller's, between posting and the end of the operation.

use crate::fork::SharedPlace;
use crate::held::Slabs;
use crate::homes::{HOMES, Home, State};
use crate::moves::Dropped;
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

/// The number by which homes name the disk. No node has it.
pub(crate) const DISK: u32 = MAX_NODES as u32;

/// How long a page waits for the disk when its node has it, ns.
pub const SLOW_NS: u64 = 500_000_000;
/// How long a page waits for the disk's thread before another thread writes it, ns.
const HELP_NS: u64 = 20_000_000;
/// How long repair copies nothing to a disk that was slow, ns.
const REST_NS: u64 = 5_000_000_000;
/// Bytes written after which the kernel is asked to write them to the disk and drop them from its
/// cache.
const WRITE_BACK: u64 = 64 << 20;

/// A page on its way to the file.
#[derive(Clone, Copy)]
pub struct Job {
    /// The lane that posted it.
    pub lane: u64,
    /// The lane's operation.
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
    /// The page that is being written. `None` during a write: its lane no longer waits for it
    /// ([`Disk::forget`]).
    begun: Option<Job>,
    /// Whether a page is being written.
    writes: bool,
    written: Vec<(Job, Result<(), Errno>)>,
}

/// The file, and what is on its way there.
pub struct Disk {
    file: PageFile,
    dir: String,
    /// The disk has failed and takes no more pages.
    failed: AtomicBool,
    /// Why it has failed.
    why: Lock<Option<String>>,
    /// Lines for the user that were not printed yet.
    news: Lock<Vec<String>>,
    /// Free places: this process used them, and no other process can reach them.
    places: Lock<Vec<u64>>,
    queue: Lock<Queue>,
    /// Held while a page is written: one at a time, in the order posted.
    writer: Lock<()>,
    /// Counts the requests to the thread. A futex on which the thread sleeps.
    asked: AtomicU32,
    /// Counts the pages written. A futex on which lanes sleep.
    finished: AtomicU32,
    /// Lanes that sleep on `finished`.
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

    /// Whether repair may copy slots there while the program runs.
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
        let place = self.places.lock().pop().unwrap_or_else(|| self.file.next().fetch_add(1, Ordering::Relaxed));
        Home { node: DISK, slab: SlabId(place), base: 0 }
    }

    /// A place that no other process can reach is free again.
    pub fn give_up(&self, place: SlabId) {
        self.file.punch(place.0 * SLAB_BYTES, SLAB_BYTES);
        self.places.lock().push(place.0);
    }

    /// Reserves room for blocks of a place. Bit k stands for block k.
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

    /// Gives the room of a range of a place back to the file system.
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

    /// Posts a write of a part of a slot. The caller wakes the thread afterwards ([`Disk::wake`]).
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

    /// Has the disk's thread look for posted writes.
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

    /// As [`Disk::write_one`]. The caller holds the writer's lock.
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

    /// Waits until a page was written, at most `longest_ns`. If there is no thread, writes one
    /// itself.
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

    /// Writes the pages that have waited longer than `HELP_NS` for the disk's thread.
    pub fn help(&self) {
        let waits = || self.queue.lock().waiting.front().is_some_and(|job| job.posted_ns + HELP_NS < now_ns());
        while waits() {
            let Some(_writer) = self.writer.try_lock() else { return };
            self.write_next();
        }
    }

    /// If there is no thread, writes all pages that wait.
    pub fn write_if_alone(&self) {
        if !self.has_thread.load(Ordering::Relaxed) {
            while self.write_one() {
                std::hint::spin_loop();
            }
        }
    }

    /// Takes a lane's pages that were written.
    pub(crate) fn take_written(&self, lane: u64, into: &mut Vec<(Job, Result<(), Errno>)>) {
        let mut queue = self.queue.lock();
        into.extend(queue.written.extract_if(.., |(job, _)| job.lane == lane));
    }

    /// If the disk is writing, takes back the pages that a lane posted before `before_ns`, are not
    /// written yet, and pass `may`. Notes that the disk is slow. `may` is asked last, and once a page.
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

    #[cfg(test)]
    pub(crate) fn free_places(&self) -> Vec<u64> {
        self.places.lock().clone()
    }

    /// A write begins and hangs: the next page's.
    #[cfg(test)]
    pub(crate) fn hang(&self) -> Job {
        let mut queue = self.queue.lock();
        queue.begun = queue.waiting.pop_front();
        queue.writes = true;
        queue.begun.expect("a page waits")
    }

    /// The write that hung goes on.
    #[cfg(test)]
    pub(crate) fn go_on(&self, job: Job) {
        let mut queue = self.queue.lock();
        (queue.writes, queue.begun) = (false, None);
        queue.waiting.push_front(job);
    }

    /// Before a fork: the file for the child. Without one it has its parent's description.
    pub fn before_fork(&self) -> Option<i32> {
        self.file.again().ok()
    }

    /// In a forked child: free places stay the parent's, and there is no thread. No write is under
    /// way. `file`: from [`Disk::before_fork`].
    pub fn begin_in_child(&self, file: Option<i32>) {
        file.into_iter().for_each(|file| self.file.become_own(file));
        self.places.lock().clear();
        self.has_thread.store(false, Ordering::Relaxed);
    }
}

fn at(place: SlabId, slot: FarSlot, from: u32) -> u64 {
    place.0 * SLAB_BYTES + slot.offset() + u64::from(from)
}

impl Pool {
    /// Gives slabs that are not mapped here a second home in this file, from now on.
    pub fn protect_by(&'static self, disk: Disk) {
        if self.tables.protection.disk.set(disk).is_ok() {
            self.protect(farmem_run::Protect::Disk);
        }
    }

    /// Runs the disk's thread. `enter` is called before each round, and its result is dropped after
    /// the round. So a fork never finds the thread inside while it sleeps.
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
        let Some(disk) = self.tables.protection.disk() else { return };
        disk.why.lock().get_or_insert_with(|| e.to_string());
        // The lock keeps slabs from being published or given a home meanwhile. A thread that comes second
        // waits until the words are changed.
        let _changing = self.changes.now.lock();
        if !disk.is_in() {
            return;
        }
        let slabs = self.held.slabs.lock();
        disk.failed.store(true, Ordering::Release);
        (0..slabs.list.len() as u32).for_each(|index| self.tables.forsake(index, DISK as usize));
        drop(slabs);
        disk.news.lock().push(format!("{}: {e}; the program goes on without copies there", disk.dir));
    }

    /// The disk is full: takes the disk out of a slab that a node has, until repair finds room.
    /// False if no node has the slab.
    pub(crate) fn leave_disk(self, index: u32) -> bool {
        let mut slabs = self.held.slabs.lock();
        let word = self.tables.homes.word(index);
        if !self.tables.has_node(word) {
            return false;
        }
        let homes = (0..HOMES).filter(|&nth| word.state(nth) != State::Absent);
        let homes = homes.map(|nth| self.tables.homes.home(word, nth));
        if let Some(home) = homes.into_iter().find(|home| home.node == DISK) {
            self.tables.forsake(index, DISK as usize);
            match slabs.list[index as usize].as_ref().map(|slab| (slab.serial, slab.sharers)) {
                Some((serial, sharers)) if sharers > 0 => slabs.places.push(SharedPlace { serial, sharers, home }),
                Some(_) => slabs.drop_later(Dropped { home: Some(home), ..Dropped::default() }),
                None => {}
            }
        }
        true
    }
}

impl Slots<'_> {
    /// Reserves room in the file for blocks of a slab that become warm. If there is none, a slab
    /// that a node has goes on without the file.
    pub(crate) fn back_on_disk(self, index: u32, home: Home, blocks: u32) -> Result<(), NoRoom> {
        let Some(disk) = self.tables.protection.disk_in() else { return Ok(()) };
        let backed = disk.reserve(home.slab, blocks);
        if backed.is_ok() || !self.losses.leave_disk(index) { backed } else { Ok(()) }
    }
}

impl Slabs {
    /// In a forked child: leaves to the parent the places that the parent is about to give up.
    pub(crate) fn leave_places(&mut self) {
        self.places.clear();
        for (_, dropped) in &mut self.dropped {
            dropped.home.take_if(|home| home.node == DISK);
        }
    }
}
