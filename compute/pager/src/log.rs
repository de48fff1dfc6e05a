//! The eviction log: changed lines of a batch's pages, gathered into one record for each slab
//! ([`farmem_protocol::lines`]), where slots are not mapped.
//!
//! ```text
//! a page leaves ─► its bytes to the staging ring ─┬─ many lines changed ─► WRITE of the page   (writes)
//!                                                 └─ few ─► log.pages ─► flush: by slab, in order of slots ─► LINES
//! ```
//!
//! *In flight.* A page whose lines are under way is Staged, as one whose WRITE is: its whole bytes lie in the
//! staging ring until the record is acknowledged, and a fault on it is served from there. No READ of its slot
//! is posted before ([`crate::staging`]), so that no READ can overtake a record on another queue pair.
//!
//! *Order.* All write-back of a process goes by the evictor's own queue pairs, which carry it out in the order
//! posted, records and WRITEs alike. A slot's next record or WRITE is posted after this one, and is applied after it.
//!
//! *Replay.* A record whose acknowledgement was lost goes again, with what was posted behind it, in order: the
//! last one of each slot decides.

use crate::Pager;
use crate::evict::Evictor;
use crate::thread::Thread;
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, SlabId};
use farmem_protocol::lines::{self, Entry, MAX_RECORD_BYTES};
use farmem_sys::raw::Errno;
use std::time::Duration;

/// From so many changed lines on a page goes whole: beyond, gathering at one end, taking apart at the other, and two
/// checksums cost about what the bytes that are spared do (`docs/design/lines.md`, by `farmem bench evict`).
pub const WHOLE_FROM: u32 = 32;
/// In a completion's tag: of a record, whose number the rest is; else of a WRITE.
pub(crate) const RECORD_TAG: u64 = 1 << 32;
/// Records under way at most.
const RECORDS: usize = 32;

/// A page whose changed lines go along.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Logged {
    node: usize,
    slab: SlabId,
    place: u16,
    lines: u64,
    /// Of its copy in the staging ring.
    staged: u32,
}

/// Records, under way and to come.
pub(crate) struct Log {
    pages: Vec<Logged>,
    entries: Vec<Entry>,
    /// [`MAX_RECORD_BYTES`] for each record.
    buffers: *mut u8,
    /// For each record the staged copies that it acknowledges; none: it is free.
    under_way: Vec<Vec<u32>>,
}

// SAFETY: the buffers are the log's own, and go where it goes.
unsafe impl Send for Log {}

impl Log {
    /// For a staging ring of so many pages; the log, and the bytes it may take.
    pub fn new(staged: usize) -> Result<(Log, usize), Errno> {
        let records = if staged == 0 { 0 } else { (staged / 32).clamp(2, RECORDS) };
        let bytes = records * MAX_RECORD_BYTES;
        let buffers = farmem_sys::holdings::reserve(bytes.max(PAGE_BYTES))?;
        Ok((Log { pages: Vec::new(), entries: Vec::new(), buffers, under_way: vec![Vec::new(); records] }, bytes))
    }

    /// The staged copies that a record has brought to their slots: it is acknowledged, and free.
    pub fn acknowledged(&mut self, tag: u64) -> std::vec::Drain<'_, u32> {
        self.under_way[(tag & !RECORD_TAG) as usize].drain(..)
    }

    fn buffer(&self, record: usize) -> *mut u8 {
        // SAFETY: one for each record.
        unsafe { self.buffers.add(record * MAX_RECORD_BYTES) }
    }

    /// Pages at the front of `pages` that one record can carry: of one slab, as many as fit.
    fn fitting(pages: &[Logged]) -> usize {
        let mut bytes = lines::record_bytes();
        pages
            .iter()
            .take_while(|page| {
                bytes += lines::page_bytes(page.lines.count_ones());
                (page.node, page.slab) == (pages[0].node, pages[0].slab) && bytes <= MAX_RECORD_BYTES
            })
            .count()
    }
}

impl Pager {
    /// Notes that a page, staged, goes to its slot by these lines.
    pub(crate) fn log_lines(&self, evictor: &mut Evictor, staged: usize, slot: FarSlot, lines: u64) {
        let place = self.pool.place(slot);
        evictor.log.pages.push(Logged {
            node: place.node,
            slab: place.slab,
            place: slot.place() as u16,
            lines,
            staged: staged as u32,
        });
    }

    /// Makes records of what was noted and posts them.
    pub(crate) fn flush_log(&self, evictor: &mut Evictor) {
        let mut pages = std::mem::take(&mut evictor.log.pages);
        pages.sort_unstable();
        let mut rest = pages.as_slice();
        while !rest.is_empty() {
            let (front, behind) = rest.split_at(Log::fitting(rest));
            self.post_record(evictor, front);
            rest = behind;
        }
        pages.clear();
        evictor.log.pages = pages;
    }

    fn post_record(&self, evictor: &mut Evictor, pages: &[Logged]) {
        let number = loop {
            match evictor.log.under_way.iter().position(Vec::is_empty) {
                Some(free) => break free,
                None => {
                    self.ring_writes(evictor);
                    self.collect_writes(evictor, Duration::from_secs(1));
                }
            }
        };
        let log = &mut evictor.log;
        log.entries.clear();
        log.entries.extend(pages.iter().map(|p| Entry { place: p.place.into(), lines: p.lines.into() }));
        log.under_way[number].extend(pages.iter().map(|p| p.staged));
        let buffer = log.buffer(number);
        // SAFETY: the buffer is the record's, and the record is free.
        let into = unsafe { std::slice::from_raw_parts_mut(buffer, MAX_RECORD_BYTES) };
        let len = lines::encode(pages[0].slab, &log.entries, into, |i| {
            // SAFETY: the copy is held until its acknowledgement; whoever rescues its page reads it, too.
            unsafe { &*self.staging.bytes(pages[i].staged as usize).cast::<[u8; PAGE_BYTES]>() }
        });
        let Some(len) = len else { crate::ending::broken("a record of changed lines that cannot be") };
        let thread = evictor.thread.get_or_insert_with(|| Thread::boxed(0));
        if let Err(lost) = self.link(thread, pages[0].node) {
            self.node_lost(&lost);
        }
        if let Some(link) = &mut thread.links[pages[0].node] {
            // SAFETY: the buffer stays as it is until the record is acknowledged.
            unsafe { link.lines(RECORD_TAG | number as u64, pages[0].slab, buffer, len as u32) };
        }
        self.count(&self.counters.records, 1);
    }
}
