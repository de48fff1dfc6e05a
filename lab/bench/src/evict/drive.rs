//! Pages on their way out, three ways, over one queue pair: what is timed.
//!
//! ```text
//! batch of 256 pages, each with a bitmap of changed lines, each to a slot drawn at random
//!   pages    one WRITE of 4096 bytes for each
//!   writes   one WRITE for each run of changed lines
//!   log      by slab and slot: records of lines with conditions (LINES_IF), as `--dirty lines` has them; from
//!            `WHOLE_FROM` lines on, a WRITE of the page
//! ─► one doorbell a batch; at most 1024 pages unacknowledged ─► the end: the last acknowledgement
//! ```

#![allow(unsafe_code)] // Buffers handed to verbs.

use farmem_protocol::random::Random;
use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, ensure};
use farmem_fabric::{QueuePair, Session};
use farmem_pager::log::{Gathered, Logged};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, SLOTS_PER_SLAB, SlabId};
use farmem_protocol::lines::conditional::{self, SEED_BYTES};
use farmem_protocol::lines::{self, Entry, LINE_BYTES, LINES, MAX_RECORD_BYTES, Runs, WHOLE_FROM};
use farmem_sys::clock;
use farmem_sys::lines::{Hasher, Hashes, Unit};
use serde::Serialize;

/// Pages that leave together.
const BATCH: usize = 256;
/// Pages sent and not acknowledged, at most: the staging ring.
const RING: usize = 1024;
/// Records under way, at most.
const RECORDS: usize = 32;
/// Slabs that the slots are drawn from.
const SLABS: usize = 2;

/// How pages go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Whole.
    Pages,
    /// A WRITE for each run of lines.
    Writes,
    /// In records.
    Log,
}

impl Method {
    /// Whether all of a page goes of which these lines changed.
    fn sends_whole(self, lines: u64) -> bool {
        self == Method::Pages || self == Method::Log && lines.count_ones() >= WHOLE_FROM
    }
}

/// Where the changed lines of a page lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrangement {
    /// One run.
    Contiguous,
    /// No two beside each other, as far as that goes.
    Scattered,
}

impl Arrangement {
    /// A bitmap of `lines` lines.
    pub fn draw(self, lines: u32, draw: &mut Random) -> u64 {
        if lines as usize >= LINES {
            return u64::MAX;
        }
        if self == Arrangement::Contiguous {
            return ((1u64 << lines) - 1) << draw.index(LINES - lines as usize + 1);
        }
        let mut bits = 0u64;
        while bits.count_ones() < lines {
            // Even lines first: as long as these are enough, no two lie together.
            let line = if lines as usize <= LINES / 2 { 2 * draw.index(LINES / 2) } else { draw.index(LINES) };
            bits |= 1 << line;
        }
        bits
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sample {
    /// From the first page to the last acknowledgement.
    pub ns: u64,
    /// Pages that went.
    pub pages: usize,
    /// Bytes handed to the network: frames and operands.
    pub sent: u64,
    /// Verbs posted.
    pub verbs: u64,
}

struct Page {
    /// Of the host's slabs, by their order.
    slot: FarSlot,
    lines: u64,
    /// Which of the local copies.
    copy: usize,
    /// The condition of its lines.
    was: u64,
}

/// What lies in the slots, line by line, so that conditions can be said.
struct Slots {
    hasher: Hasher,
    /// The copy that a slot's line came from.
    from: Vec<[u16; LINES]>,
    /// Of each copy its lines' hashes.
    hashes: Vec<Hashes>,
}

impl Slots {
    fn new(copies: &[[u8; PAGE_BYTES]]) -> Slots {
        let hasher = Hasher::new(&[0x5E; SEED_BYTES], Unit::best());
        let hashes = copies.iter().map(|copy| {
            let mut hashes = [0; LINES];
            // SAFETY: a live array.
            unsafe { hasher.hash(copy.as_ptr(), &mut hashes) };
            hashes
        });
        Slots { hashes: hashes.collect(), hasher, from: vec![[0; LINES]; SLABS * SLOTS_PER_SLAB as usize] }
    }

    /// A page that goes to a slot, with the condition of its lines; after it, they are the copy's, or all are.
    fn fill(&mut self, slot: FarSlot, lines: u64, copy: usize, whole: bool) -> Page {
        let from = &mut self.from[(slot.slab_index() * SLOTS_PER_SLAB + slot.place()) as usize];
        let was: Hashes = std::array::from_fn(|line| self.hashes[from[line] as usize][line]);
        let was = self.hasher.sum_of(&was, lines);
        (0..LINES).filter(|line| whole || lines >> line & 1 == 1).for_each(|line| from[line] = copy as u16);
        Page { slot, lines, copy, was }
    }
}

/// The host's end.
pub struct Host {
    // Before the session: it says goodbye.
    queue: QueuePair,
    _session: Session,
    slabs: Vec<SlabId>,
    copies: Vec<[u8; PAGE_BYTES]>,
    slots: Slots,
    records: Vec<[u8; MAX_RECORD_BYTES]>,
    gathered: Gathered,
    entries: Vec<Entry>,
    /// Pages that each verb under way completes, and whether it is a record.
    under_way: VecDeque<(usize, bool)>,
    pages_out: usize,
    records_out: usize,
    next_record: usize,
    posted: u64,
}

impl Host {
    /// With slabs of its own, populated.
    pub fn new(session: Session, seed: u64) -> anyhow::Result<Host> {
        let slabs = (0..SLABS).map(|_| session.grant().map(|slab| slab.id)).collect::<Result<Vec<_>, _>>()?;
        let queue = session.queue_pair()?;
        let mut draw = Random::new(seed);
        let copies: Vec<_> = (0..RING).map(|_| std::array::from_fn(|_| draw.index(256) as u8)).collect();
        let slots = Slots::new(&copies);
        let mut host = Host {
            queue,
            _session: session,
            slabs,
            copies,
            slots,
            records: vec![[0; MAX_RECORD_BYTES]; RECORDS],
            gathered: Gathered::default(),
            entries: Vec::new(),
            under_way: VecDeque::new(),
            pages_out: 0,
            records_out: 0,
            next_record: 0,
            posted: 0,
        };
        for at in 0..SLABS * SLOTS_PER_SLAB as usize {
            let slot = FarSlot::new((at % SLABS) as u32, (at / SLABS) as u32);
            let page = host.slots.fill(slot, u64::MAX, at % RING, true);
            host.page(&page)?;
            if at % BATCH == 0 {
                host.queue.doorbell()?;
            }
        }
        host.drain()?;
        Ok(host)
    }

    /// Sends pages and waits for the last acknowledgement.
    ///
    /// # Errors
    /// A node that is lost, or refuses.
    pub fn run(&mut self, method: Method, bitmaps: &[u64], draw: &mut Random) -> anyhow::Result<Sample> {
        let mut batches = Vec::new();
        for chunk in bitmaps.chunks(BATCH) {
            let pages = chunk.iter().map(|&lines| {
                let slot = draw.index(SLABS * SLOTS_PER_SLAB as usize);
                let slot = FarSlot::new((slot % SLABS) as u32, (slot / SLABS) as u32);
                (slot, lines, draw.index(RING))
            });
            let mut pages: Vec<_> = pages.collect();
            // Slots are each page's own: drawn twice, the second is left out. The order is a page's, not a slot's.
            let mut seen = std::collections::HashSet::new();
            pages.retain(|(slot, ..)| seen.insert(*slot));
            let page = |(slot, lines, copy): (FarSlot, u64, usize)| {
                self.slots.fill(slot, lines, copy, method.sends_whole(lines))
            };
            batches.push(pages.into_iter().map(page).collect::<Vec<_>>());
        }
        self.queue.take_sent();
        let (verbs, begun) = (self.posted, clock::ticks());
        for batch in &batches {
            self.batch(method, batch)?;
        }
        self.drain()?;
        let ns = clock::ns(clock::ticks() - begun);
        let pages = batches.iter().map(Vec::len).sum();
        Ok(Sample { ns, pages, sent: self.queue.take_sent(), verbs: self.posted - verbs })
    }

    fn batch(&mut self, method: Method, pages: &[Page]) -> anyhow::Result<()> {
        match method {
            Method::Pages => pages.iter().try_for_each(|page| self.page(page))?,
            Method::Writes => pages.iter().try_for_each(|page| self.segments(page))?,
            Method::Log => {
                let mut gathered = std::mem::take(&mut self.gathered);
                for page in pages {
                    if page.lines.count_ones() < WHOLE_FROM {
                        let (slot, lines, copy) = (page.slot, page.lines, page.copy as u32);
                        gathered.note(Logged { slot, lines, copy, was: page.was });
                    } else {
                        self.page(page)?;
                    }
                }
                gathered.order();
                gathered.records().try_for_each(|record| self.record(record))?;
                self.gathered = gathered;
            }
        }
        self.queue.doorbell()?;
        self.collect(false)
    }

    fn page(&mut self, page: &Page) -> anyhow::Result<()> {
        self.room(1, 0)?;
        self.write(page, 0, PAGE_BYTES);
        self.under_way.push_back((1, false));
        Ok(())
    }

    fn segments(&mut self, page: &Page) -> anyhow::Result<()> {
        self.room(1, 0)?;
        for (first, run) in Runs(page.lines) {
            self.write(page, first * LINE_BYTES, run * LINE_BYTES);
            self.under_way.push_back((0, false));
        }
        if let Some((pages, _)) = self.under_way.back_mut() {
            *pages = 1;
        }
        Ok(())
    }

    fn write(&mut self, page: &Page, from: usize, len: usize) {
        let (slab, offset) = (self.slabs[page.slot.slab_index() as usize], page.slot.offset() + from as u64);
        // SAFETY: the copies stay as they are until the queue pair is gone.
        unsafe {
            self.queue.write(0, slab, offset, self.copies[page.copy][from..].as_ptr(), len as u32);
        }
        self.posted += 1;
    }

    fn record(&mut self, pages: &[Logged]) -> anyhow::Result<()> {
        self.room(pages.len(), 1)?;
        self.entries.clear();
        let entry = |page: &Logged| Entry { place: (page.slot.place() as u16).into(), lines: page.lines.into() };
        self.entries.extend(pages.iter().map(entry));
        let slab = self.slabs[pages[0].slot.slab_index() as usize];
        let record = self.next_record;
        self.next_record = (record + 1) % RECORDS;
        let copies = &self.copies;
        let len = lines::encode(slab, &self.entries, &mut self.records[record], |i| &copies[pages[i].copy as usize])
            .and_then(|len| {
                let was = pages.iter().map(|page| page.was);
                conditional::append(&mut self.records[record], len, was, self.slots.hasher.seed())
            })
            .context("a record that does not fit")?;
        // SAFETY: the buffer is used again only when as many completions have come as there are buffers.
        unsafe { self.queue.lines_if(0, slab, self.records[record].as_ptr(), len as u32) };
        self.posted += 1;
        self.under_way.push_back((pages.len(), true));
        Ok(())
    }

    /// Waits until so many more pages and records may be under way.
    fn room(&mut self, pages: usize, records: usize) -> anyhow::Result<()> {
        while self.pages_out + pages > RING || self.records_out + records > RECORDS {
            self.queue.doorbell()?;
            self.collect(true)?;
        }
        self.pages_out += pages;
        self.records_out += records;
        Ok(())
    }

    fn collect(&mut self, wait: bool) -> anyhow::Result<()> {
        let mut done = Vec::with_capacity(64);
        if wait {
            self.queue.wait(&mut done, Duration::from_secs(5))?;
        } else {
            self.queue.poll(&mut done)?;
        }
        for completion in done {
            ensure!(completion.result == Ok(0), "the node refused a verb: {:?}", completion.result);
            let (pages, is_record) = self.under_way.pop_front().context("more completions than verbs")?;
            self.pages_out -= pages;
            self.records_out -= is_record as usize;
        }
        Ok(())
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        self.queue.doorbell()?;
        while !self.under_way.is_empty() {
            self.collect(true)?;
        }
        Ok(())
    }

    /// One batch by a method, read back: the lines that went are there, the others as they were.
    ///
    /// # Errors
    /// When that is not so.
    pub fn verify(&mut self, method: Method, bitmaps: &[u64]) -> anyhow::Result<()> {
        let slab = self.slabs[0];
        let mut pages = Vec::new();
        for (i, &lines) in bitmaps.iter().enumerate() {
            let slot = FarSlot::new(0, i as u32 * 7);
            let before = self.slots.fill(slot, u64::MAX, 0, true);
            self.page(&before)?;
            pages.push(self.slots.fill(slot, lines, (i + 1) % RING, method.sends_whole(lines)));
        }
        self.batch(method, &pages)?;
        self.drain()?;
        let mut back = vec![0u8; PAGE_BYTES];
        for page in &pages {
            let mut done = Vec::new();
            // SAFETY: the buffer outlives the verb, which is awaited here.
            unsafe { self.queue.read(0, slab, page.slot.offset(), back.as_mut_ptr(), 4096) };
            self.queue.doorbell()?;
            while done.is_empty() {
                self.queue.wait(&mut done, Duration::from_secs(5))?;
            }
            let whole = method.sends_whole(page.lines);
            for (line, got) in back.chunks(LINE_BYTES).enumerate() {
                let went = whole || page.lines >> line & 1 == 1;
                let expected = &self.copies[if went { page.copy } else { 0 }][line * LINE_BYTES..][..LINE_BYTES];
                ensure!(got == expected, "{method:?}: line {line} of slot {} is wrong", page.slot.place());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_lines_as_asked_for_lie_as_asked_for() {
        let mut draw = Random::new(7);
        for lines in 1..=64 {
            let run = Arrangement::Contiguous.draw(lines, &mut draw);
            assert_eq!((run.count_ones(), Runs(run).count()), (lines, 1));
            let apart = Arrangement::Scattered.draw(lines, &mut draw);
            assert_eq!(apart.count_ones(), lines);
            assert!(lines > 32 || Runs(apart).count() == lines as usize);
        }
    }
}
