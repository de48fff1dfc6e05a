//! Posts the log of a batch to the fabric.

#![allow(unsafe_code)] // Records in the room, from staged copies.

use super::{Logged, PART_TAG, RECORD_TAG, page_bytes};
use crate::out::Out;
use crate::out::batch::Evictor;
use crate::thread::Thread;
use farmem_pool::{By, Change};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES};
use farmem_protocol::lines::conditional::{self, CONDITIONS_BYTES};
use farmem_protocol::lines::{self, Entry, LINE_BYTES, Runs};
use std::time::Duration;

impl Out {
    /// A page, staged, goes to its slot by these lines. Notes it for a record, posts its WRITEs, or
    /// posts its change if parity changes with it.
    pub(crate) fn log_lines(&self, evictor: &mut Evictor, staged: usize, slot: FarSlot, (lines, was): (u64, u64)) {
        if evictor.log.by == By::Writes {
            let last = u64::BITS - lines.leading_zeros();
            for (first, run) in Runs(lines) {
                let tag = if first + run == last as usize { staged as u64 } else { PART_TAG };
                self.post_write(evictor, tag, staged, slot, first * LINE_BYTES, run * LINE_BYTES);
            }
            return;
        }
        if let Some(seed) = evictor.log.seed.filter(|_| self.base.pool.has_parity(slot)) {
            let thread = evictor.thread.get_or_insert_with(|| Thread::boxed(0));
            let (tag, bytes, change) = (staged as u64, self.staging.at(staged), Change { lines, was });
            // SAFETY: the entry's bytes stay as they are until the change is acknowledged.
            unsafe { thread.lane.change(&self.base.pool, tag, slot, bytes, change, &seed) };
            return;
        }
        debug_assert!(evictor.log.room.size() > 0, "where lines are told, there is room");
        evictor.log.pages.note(Logged { slot, lines, copy: staged as u32, was });
    }

    /// Makes records of what was noted and posts them.
    pub(crate) fn flush_log(&self, evictor: &mut Evictor) {
        let mut pages = std::mem::take(&mut evictor.log.pages);
        pages.order();
        pages.records().for_each(|record| self.post_record(evictor, record));
        evictor.log.pages = pages;
    }

    fn post_record(&self, evictor: &mut Evictor, pages: &[Logged]) {
        let most = lines::record_bytes() + CONDITIONS_BYTES + pages.iter().map(page_bytes).sum::<usize>();
        // One for each home: a record's checksum is of the slab's name there.
        let copies = self.base.pool.copies(pages[0].slot).max(1);
        let taken = loop {
            match evictor.log.room.take(copies * most, pages.iter().map(|page| page.copy)) {
                Some(taken) => break taken,
                None => {
                    self.ring_writes(evictor);
                    self.collect_writes(evictor, Duration::from_secs(1));
                }
            }
        };
        let log = &mut evictor.log;
        log.entries.clear();
        let entry = |page: &Logged| Entry { place: (page.slot.place() as u16).into(), lines: page.lines.into() };
        log.entries.extend(pages.iter().map(entry));
        let (entries, seed) = (&log.entries, log.seed);
        // SAFETY: the room's bytes are there, and these the record's until it is acknowledged.
        let into = unsafe { std::slice::from_raw_parts_mut(log.bytes.at(0).wrapping_add(taken.from), copies * most) };
        let mut buffers = into.chunks_exact_mut(most);
        let encode = |slab| {
            let into = buffers.next()?;
            let len = lines::encode(slab, entries, into, |i| {
                // SAFETY: the copy stays as it is until its acknowledgement. A rescuer only reads
                // it.
                unsafe { &*self.staging.at(pages[i].copy as usize).cast::<[u8; PAGE_BYTES]>() }
            });
            let len = len.zip(seed.as_ref());
            let len =
                len.and_then(|(len, seed)| conditional::append(into, len, pages.iter().map(|page| page.was), seed));
            let Some(len) = len else { crate::ending::broken("a record of changed lines that cannot be") };
            Some((into.as_ptr(), len as u32))
        };
        let tag = RECORD_TAG | u64::from(taken.number);
        let thread = evictor.thread.get_or_insert_with(|| Thread::boxed(0));
        let whole = pages.iter().map(|page| (page.slot, self.staging.at(page.copy as usize)));
        // SAFETY: the buffers and the copies stay as they are until the record is acknowledged.
        unsafe { thread.lane.lines(&self.base.pool, tag, whole, true, encode) };
        self.base.count(&self.base.counters.records, 1);
    }
}
