//! A lane's pages on their way to the disk, and back.
//!
//! READs are done at once, by the thread that asks. WRITEs are queued for the disk's thread
//! ([`crate::protect::disk`]), and done when it has written them, or when they have waited too long
//! and a node has them.

#![allow(unsafe_code)] // Buffers of operations.

use super::operations::Operation;
use super::{Done, Lane};
use crate::Pool;
use crate::homes::{HOMES, Home};
use crate::protect::disk::{DISK, Disk, Job, SLOW_NS};
use farmem_protocol::addr::FarSlot;
use farmem_sys::raw::{Errno, now_ns};
use std::time::Duration;

/// Between looks at the one while there is something to come from both disk and nodes.
const LOOK: Duration = Duration::from_millis(1);

/// A lane's state for pages on their way to the disk.
#[derive(Default)]
pub(super) struct OnDisk {
    /// The lane's name in the disk's queue. No other lane has it.
    pub lane: u64,
    pub under_way: usize,
    /// Some were posted since the last doorbell.
    pub posted: bool,
    pub written: Vec<(Job, Result<(), Errno>)>,
    pub forgotten: Vec<Job>,
}

impl Operation {
    /// Reads its part of a slot. False: the disk has failed, and no word names it any more.
    ///
    /// # Safety
    /// `into` must be writable for the operation's length, and near.
    pub(super) unsafe fn read_from_disk(&mut self, pool: &Pool, home: Home, into: *mut u8) -> bool {
        let Some(disk) = pool.tables.protection.disk() else { return false };
        // SAFETY: the caller's promise.
        match unsafe { disk.read(home.slab, self.slot, self.from, into, self.len) } {
            Ok(()) => {
                (self.done, self.by) = (self.done + 1, Some(DISK));
                true
            }
            Err(e) => {
                pool.losses().disk_failed(e);
                self.reason = Some(disk.lost());
                false
            }
        }
    }
}

impl Lane {
    /// Queues a part of a slot for the disk.
    pub(super) fn post_to_disk(
        &mut self,
        pool: &Pool,
        number: u32,
        (nth, home): (usize, Home),
        (slot, from): (FarSlot, u32),
        (bytes, len): (*const u8, u32),
    ) {
        let Some(disk) = pool.tables.protection.disk_in() else {
            return pool.tables.forsake(slot.slab_index(), DISK as usize);
        };
        disk.post((self.disk.lane, number), home.slab, slot, from, bytes, len);
        let operation = &mut self.operations[number];
        operation.at[nth] = Some(DISK);
        operation.on_disk += 1;
        self.disk.under_way += 1;
        self.disk.posted = true;
    }

    /// Takes in what the disk has done, and lets go of what it has not taken for too long.
    pub(super) fn take_written(&mut self, pool: &Pool) {
        let Some(disk) = pool.tables.protection.disk().filter(|_| self.disk.under_way > 0) else { return };
        disk.help();
        let mut written = std::mem::take(&mut self.disk.written);
        disk.take_written(self.disk.lane, &mut written);
        for (job, result) in written.drain(..) {
            if let Err(e) = result {
                let index = job.slot.slab_index();
                let is_full = matches!(e, Errno(libc::ENOSPC | libc::EDQUOT | libc::EFBIG));
                if !(is_full && pool.losses().leave_disk(index)) {
                    pool.losses().disk_failed(e);
                }
                self.operations[job.number].disk_failed = true;
            }
            self.left_disk(pool, job.number);
        }
        self.disk.written = written;
        self.forget_slow(pool, disk);
    }

    /// Pages that their nodes have, and that the disk has not taken for [`SLOW_NS`]. One whose node is
    /// lost meanwhile stays in the queue: it is nowhere else.
    fn forget_slow(&mut self, pool: &Pool, disk: &Disk) {
        let mut forgotten = std::mem::take(&mut self.disk.forgotten);
        let operations = &self.operations;
        let may = |job: &Job| {
            let operation = &operations[job.number];
            (operation.done > 0 || operation.fills) && pool.tables.disk_misses(job.slot)
        };
        disk.forget(self.disk.lane, now_ns().saturating_sub(SLOW_NS), may, &mut forgotten);
        for job in forgotten.drain(..) {
            self.operations[job.number].disk_failed = true;
            self.left_disk(pool, job.number);
        }
        self.disk.forgotten = forgotten;
    }

    /// A page of an operation's is not on its way to the disk any more.
    fn left_disk(&mut self, pool: &Pool, number: u32) {
        self.disk.under_way -= 1;
        let operation = &mut self.operations[number];
        operation.on_disk -= 1;
        if operation.on_disk > 0 {
            return;
        }
        if let Some(nth) = (0..HOMES).find(|&nth| operation.at[nth] == Some(DISK)) {
            operation.at[nth] = None;
            operation.done += u32::from(!operation.disk_failed);
        }
        self.end_if_done(pool, number);
    }

    /// [`Lane::wait`] while pages are on their way to the disk.
    pub(super) fn wait_with_disk(&mut self, pool: &Pool, done: &mut Vec<Done>, limit: Duration) -> usize {
        let (before, begun) = (done.len(), now_ns());
        let Some(disk) = pool.tables.protection.disk() else { return 0 };
        while done.len() == before && self.operations.under_way > 0 {
            let at_nodes = self.links.any_under_way();
            if at_nodes {
                disk.write_if_alone();
                let waited = self.links.wait(LOOK.min(limit));
                self.take_in(pool, waited, done);
            } else {
                disk.wait(LOOK.as_nanos() as u64);
            }
            self.take_written(pool);
            done.append(&mut self.operations.ready);
            if now_ns() - begun > limit.as_nanos() as u64 {
                break;
            }
        }
        done.len() - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::homes::State;
    use farmem_fabric::{ConnectOptions, Lost, Session};
    use farmem_protocol::addr::{PAGE_BYTES, SLAB_BYTES};
    use farmem_sim::{Network, Weather};

    fn pool() -> (&'static Pool, std::sync::Arc<Network>) {
        let network = Network::new(Weather::default(), SLAB_BYTES);
        let (timeout, grace) = (Duration::from_secs(30), Duration::from_secs(2));
        let options = ConnectOptions { timeout, grace, run: [1; 16], pid: 1, ..ConnectOptions::default() };
        let session = Session::simulated(&network, &options).unwrap();
        let pool: &'static Pool = Box::leak(Box::new(Pool::new(vec![session]).unwrap()));
        pool.protect_by(Disk::open("/tmp").unwrap());
        (pool, network)
    }

    fn slot(pool: &Pool) -> FarSlot {
        let mut slots = Vec::new();
        pool.slots().alloc(1, &mut slots).unwrap();
        slots[0]
    }

    fn end(pool: &Pool, lane: &mut Lane) -> Done {
        let mut done = Vec::new();
        lane.doorbell(pool);
        while done.is_empty() {
            lane.wait(pool, &mut done, Duration::from_secs(1));
        }
        done.remove(0)
    }

    fn read(pool: &Pool, slot: FarSlot) -> Result<u8, Lost> {
        let (mut lane, mut page) = (Lane::new(), [0_u8; PAGE_BYTES]);
        // SAFETY: the page outlives the operation, which is awaited.
        unsafe { lane.read(pool, 1, slot, 0, page.as_mut_ptr(), PAGE_BYTES as u32) };
        end(pool, &mut lane).result.map(|_| page[9])
    }

    /// The disk hangs while a page is on its way there. If the node has it, the disk lacks it from then on,
    /// and gives no older bytes when the node is lost. If the node is lost first, the page is written.
    #[test]
    fn a_page_that_the_disk_has_not_taken_is_not_read_from_it() {
        for lost_first in [false, true] {
            let (pool, network) = pool();
            let (slot, mut lane, page) = (slot(pool), Lane::new(), [7_u8; PAGE_BYTES]);
            let disk = pool.tables.protection.disk().unwrap();
            // SAFETY: the page outlives the operation, which is awaited.
            unsafe { lane.write(pool, 1, slot, 0, page.as_ptr(), PAGE_BYTES as u32) };
            // The disk's write hangs, and the node answers.
            let hung = disk.hang();
            lane.doorbell(pool);
            while lane.links.any_under_way() {
                let looked = lane.links.wait(Duration::from_secs(1));
                lane.take_in(pool, looked, &mut Vec::new());
            }
            if lost_first {
                network.kill_node();
                let _ = pool.losses().tend();
            }
            assert_eq!(pool.tables.disk_misses(slot), !lost_first);
            if lost_first {
                assert_eq!(pool.homes(slot.slab_index())[1].unwrap().1, State::Whole);
                disk.go_on(hung);
                assert_eq!(end(pool, &mut lane).result, Ok(0));
                assert_eq!(read(pool, slot), Ok(7));
                continue;
            }
            network.kill_node();
            let _ = pool.losses().tend();
            assert!(read(pool, slot).is_err(), "zeros, which were never written");
        }
    }

    /// A slab that a fork shares is left while the other side lives. Its place in the file is free again when
    /// that has gone, whichever way the slab left it.
    #[test]
    fn a_place_that_a_fork_shared_is_given_up() {
        for is_full in [false, true] {
            let (pool, _network) = pool();
            let slot = slot(pool);
            let disk = pool.tables.protection.disk().unwrap();
            let share = pool.forks().prepare().unwrap();
            // SAFETY: a descriptor of ours, closed below.
            let of_child = unsafe { libc::dup(share.child_fd) };
            pool.forks().parent(share, true);
            if is_full {
                assert!(pool.losses().leave_disk(slot.slab_index()));
            }
            pool.slots().free(&[slot]);
            pool.slots().shrink(0);
            let free = || {
                pool.forks().end_shares();
                let since = pool.moves().dropped();
                since.into_iter().for_each(|since| pool.moves().all_have_left(since));
                disk.free_places()
            };
            assert_eq!((pool.slots().capacity(), free()), (0, vec![]));
            // SAFETY: as above.
            unsafe { libc::close(of_child) };
            assert_eq!(free(), [0]);
        }
    }
}
