//! The eviction log: changed lines of a batch's pages on their way to slots that are not mapped. A
//! node's software NIC takes them gathered, one record for each slab ([`farmem_protocol::lines`]).
//! A card takes no records, but a WRITE for each run of neighbouring lines, 64 (`CHAIN`) and a few
//! by one doorbell. A card's queue is shorter than a batch may post (128 of 1024,
//! `fabric::verbs::queue`), and has room again only after a look at what is done.
//!
//! ```text
//! a page leaves ─► staging ring ─┬─ much of it changed ─► WRITE of the page
//!                                ├─ tcp: little ─► log.pages ─► flush: by slab, in order of slots ─► LINES_IF
//!                                └─ RDMA: few runs ─► WRITE, WRITE, …: the last one's tag is the page's
//! ```
//!
//! *In flight.* A page whose lines are under way is Staged, like one whose WRITE is. Its whole
//! bytes lie in the staging ring until the record is acknowledged, and a fault on it is served from
//! there. No READ of its slot is posted before ([`crate::out::staging`]), so no READ can overtake a
//! record on another queue pair.
//!
//! *Torn pages.* A record changes all of a page's lines or none. Of the WRITEs of a page some may
//! have been carried out when a connection breaks or a host dies. Its slot is then neither old nor
//! new, as with a WRITE of a whole page. No other process reads it: a slot is its process's alone.
//! The process has the whole page in the ring until the last WRITE is acknowledged (completions
//! come in the order posted), and sends all of them again.
//!
//! *Refused pages.* A record goes with conditions, because hashes are kept in brief
//! ([`crate::dirty`]). The node refuses a page whose lines are not as expected: a change was
//! overlooked, or the record had been carried out when its connection was cut. Its slot is as it
//! was, and its bytes are in the ring. It goes whole, and stays Staged until that is acknowledged.
//!
//! *Order.* All write-back of a process goes by the evictor's own queue pairs, which carry it out
//! in the order posted, records and WRITEs alike. The next record or WRITE of a slot is posted
//! after this one, and applied after it.
//!
//! *Replay.* A record whose acknowledgement was lost goes again, with everything that was posted
//! behind it, in order. The last one of each slot decides. The record is refused the second time,
//! and its pages go whole.

mod post;
pub mod room;

use crate::page::Frames;
use farmem_pool::By;
use farmem_protocol::addr::{FarSlot, PAGE_BYTES};
use farmem_protocol::lines::conditional::{CONDITIONS_BYTES, Refused, WAS_BYTES};
use farmem_protocol::lines::{self, Entry, MAX_RECORD_BYTES, Runs, WHOLE_FROM};
use farmem_sys::lines::Seed;
use farmem_sys::raw::Errno;
use room::Room;

/// In a completion's tag: of a record, whose number the rest is; else of a WRITE.
pub(crate) const RECORD_TAG: u64 = 1 << 32;
/// … of a WRITE that is not the last of its page.
pub(crate) const PART_TAG: u64 = 1 << 33;
/// The most runs of lines that go by WRITEs over RDMA, if they are less than [`WHOLE_FROM`] lines
/// together. Four take soft-RoCE 0.84 of a whole page's time, eight 1.7 times as long
/// (`lab/rxe/run.sh evict`).
pub const MOST_RUNS: usize = 4;
/// WRITEs after which a card is told of them, and asked what it has done.
const CHAIN: u32 = 64;
/// Bytes of room for records under way, for each page of the staging ring. redis changes about 5
/// lines of a page, which take three times as much. A third is enough, because a batch is at most
/// half of the ring. One record is acknowledged while the next is made.
const ROOM_A_PAGE: usize = 128;
/// … at least and at most: two full records, and eight.
const ROOM: (usize, usize) = (2 * MAX_RECORD_BYTES, 8 * MAX_RECORD_BYTES);

/// A page whose changed lines go along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Logged {
    /// Where it belongs.
    pub slot: FarSlot,
    /// Bit k: line k.
    pub lines: u64,
    /// Which of the copies of pages it is.
    pub copy: u32,
    /// The node is to confirm this of these lines.
    pub was: u64,
}

/// Pages of a batch, to be put into records: by slab, in the order of their slots.
#[derive(Default)]
pub struct Gathered {
    noted: Vec<Logged>,
    /// Slot and place in `noted`, in one word: these are quickly sorted.
    keys: Vec<u64>,
    ordered: Vec<Logged>,
}

/// Bits of a place in a batch.
const PLACE_BITS: u32 = u64::BITS - FarSlot::BITS;

impl Gathered {
    /// Notes a page, each slot once.
    #[inline]
    pub fn note(&mut self, page: Logged) {
        self.keys.push(page.slot.bits() << PLACE_BITS | self.noted.len() as u64);
        self.noted.push(page);
    }

    /// Puts what was noted in order, and forgets what was before.
    pub fn order(&mut self) {
        debug_assert!(self.noted.len() < 1 << PLACE_BITS);
        self.keys.sort_unstable();
        let place = |key: &u64| (key & ((1 << PLACE_BITS) - 1)) as usize;
        self.ordered.clear();
        self.ordered.extend(self.keys.iter().map(|key| self.noted[place(key)]));
        self.noted.clear();
        self.keys.clear();
    }

    /// The pages of one record after the other.
    pub fn records(&self) -> impl Iterator<Item = &[Logged]> {
        let mut rest = self.ordered.as_slice();
        std::iter::from_fn(move || {
            let (front, behind) = rest.split_at(fitting(rest));
            rest = behind;
            (!front.is_empty()).then_some(front)
        })
    }
}

/// The number of pages at the front of `pages` that one record can carry: of one slab, as many as
/// fit, with their conditions.
fn fitting(pages: &[Logged]) -> usize {
    let mut bytes = lines::record_bytes() + CONDITIONS_BYTES;
    let fits = |page: &&Logged| {
        bytes += page_bytes(page);
        page.slot.slab_index() == pages[0].slot.slab_index() && bytes <= MAX_RECORD_BYTES
    };
    pages.iter().take_while(fits).count()
}

/// Bytes that a page takes of a record, its condition included.
fn page_bytes(page: &Logged) -> usize {
    lines::page_bytes(page.lines.count_ones()) + WAS_BYTES
}

/// Records, under way and to come.
pub(crate) struct Log {
    by: By,
    /// The key of records' conditions ([`crate::dirty`]); none where no records are made.
    seed: Option<Seed>,
    /// WRITEs since the last doorbell, where lines go by them.
    chained: u32,
    pages: Gathered,
    entries: Vec<Entry>,
    /// The room's bytes.
    bytes: Frames,
    room: Room,
}

impl Log {
    /// For a staging ring of `staged` pages: 0 where nothing will be logged, because every slot is
    /// mapped or lines are not told. Returns the log, and the bytes that it may take.
    pub fn new(staged: usize, by: By) -> Result<(Log, usize), Errno> {
        let size = if staged == 0 || by == By::Writes {
            0
        } else {
            (staged * ROOM_A_PAGE).next_multiple_of(PAGE_BYTES).clamp(ROOM.0, ROOM.1)
        };
        let bytes = Frames::reserve(size.div_ceil(PAGE_BYTES).max(1))?;
        let (pages, entries) = (Gathered::default(), Vec::new());
        Ok((Log { by, seed: None, chained: 0, pages, entries, bytes, room: Room::new(size) }, size))
    }

    /// Sets the key of records' conditions.
    pub fn confirm_by(&mut self, seed: Option<&Seed>) {
        self.seed = seed.copied();
    }

    /// Whether a page of which these lines changed goes by them, and not whole.
    #[inline]
    pub fn takes(&self, lines: u64) -> bool {
        match self.by {
            By::Records | By::Stripes => lines.count_ones() < WHOLE_FROM,
            By::Writes => lines.count_ones() < WHOLE_FROM && Runs(lines).count() <= MOST_RUNS,
        }
    }

    /// Whether lines may go to a slot that takes them in this way. Brief hashes must be confirmed,
    /// and a card does not confirm: a page compared by these goes to it whole.
    pub fn goes_to(&self, taken: Option<By>) -> bool {
        match (self.by, taken) {
            (_, None) => false,
            (By::Records | By::Stripes, Some(by)) => by != By::Writes && self.seed.is_some(),
            (By::Writes, Some(by)) => by != By::Stripes,
        }
    }

    /// A record is acknowledged. Calls `each` with every staged copy whose lines it had, and with
    /// whether the page was refused: then its slot is as it was.
    pub fn acknowledged(&mut self, tag: u64, refused: Refused, mut each: impl FnMut(u32, bool)) {
        self.room.acknowledged((tag & !RECORD_TAG) as u32, |place, copy| each(copy, refused.contains(place)));
    }

    /// A WRITE was posted.
    pub fn posted(&mut self) {
        self.chained += 1;
    }

    /// Whether it is time for a doorbell, which this begins to count for.
    pub fn is_chained(&mut self) -> bool {
        let enough = self.by == By::Writes && self.chained >= CHAIN;
        if enough || self.by == By::Records {
            self.chained = 0;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_by_its_lines() {
        let log = |by| Log::new(32, by).unwrap().0;
        let (records, writes) = (log(By::Records), log(By::Writes));
        assert!(Log::new(0, By::Records).unwrap().0.takes(1), "laid onto a mapped slot: no room is needed");
        for (lines, recorded, written) in [
            (1, true, true),
            (0x55, true, true),
            (0x155, true, false),
            ((1 << 31) - 1, true, true),
            ((1 << 32) - 1, false, false),
            (u64::MAX, false, false),
        ] {
            assert_eq!((records.takes(lines), writes.takes(lines)), (recorded, written), "{lines:x}");
        }
    }

    #[test]
    fn a_card_hears_of_a_batch_piece_by_piece() {
        for (by, doorbells) in [(By::Writes, 15), (By::Records, 0)] {
            let mut log = Log::new(0, by).unwrap().0;
            // Pages of three runs: told between two pages, never within one.
            let page = |log: &mut Log| {
                (0..3).for_each(|_| log.posted());
                log.is_chained()
            };
            assert_eq!((0..340).filter(|_| page(&mut log)).count(), doorbells);
        }
    }

    #[test]
    fn records_are_of_one_slab_in_order_and_fit() {
        let mut gathered = Gathered::default();
        let mut expected = Vec::new();
        for nth in 0..256u32 {
            // Two slabs, slots in no order, up to 31 lines.
            let slot = FarSlot::new(nth % 2, nth * 7919 % 16384);
            let page = Logged { slot, lines: (1u64 << (1 + nth % 31)) - 1, copy: nth, was: 0 };
            gathered.note(page);
            expected.push(page);
        }
        expected.sort_by_key(|page| page.slot);
        for _again in 0..2 {
            gathered.order();
            let records: Vec<&[Logged]> = gathered.records().collect();
            assert_eq!(records.concat(), expected);
            for record in records {
                assert!(record.iter().all(|page| page.slot.slab_index() == record[0].slot.slab_index()));
                let lines: u32 = record.iter().map(|page| page.lines.count_ones()).sum();
                assert!(lines::record_bytes() + record.len() * lines::page_bytes(0) + lines as usize * 64 <= 32 << 10);
            }
            expected.iter().rev().for_each(|&page| gathered.note(page));
        }
    }
}
