//! Pages of slabs with parity: how a lane writes them, stripe by stripe. [`crate::stripes`] has the rules.
//!
//! ```text
//!  write ─► noted ─► doorbell ─► READ the stripe's other data   (none if all of it is new)
//!                            ─► version odd ─► WRITE pages and parity ─► all done ─► version even
//! ```
//!
//! Pages of which few lines changed go another way ([`super::changes`]). A page that no home has is
//! computed from others ([`super::others`]).
//!
//! A write is done when the doorbell returns. The doorbell waits for two round trips for each
//! [`STRIPES`] stripes. So no two updates of a stripe overlap, and a reader that meets an update
//! waits for two round trips only.

use super::operations::Verb;
use super::others::Job;
use super::{Done, Lane};
use crate::Pool;
use crate::homes::HOMES;
use crate::stripes::Stripes;
use crate::stripes::code::MAX_SEATS;
use crate::tables::Tables;
use farmem_fabric::Lost;
use farmem_protocol::addr::{FarSlot, PAGE_BYTES};
use farmem_sys::lines::{LastHasher, Seed};
use std::ops::Range;
use std::time::Duration;

/// Stripes that are updated at once, at most. The buffer has a page for each of their seats.
pub(super) const STRIPES: usize = 32;

/// The purpose of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// The caller's own: the caller gets its [`Done`].
    Caller,
    /// The current update of stripes: the operation's number in [`Striped::ended`].
    Update(u32),
    /// A READ of another seat, for a page that follows from others: of this job, for the `nth` of its
    /// others.
    Part { job: u32, nth: u32 },
}

/// A page that was written to a slab of a group, and waits for the doorbell.
pub(super) struct Noted {
    tag: u64,
    pub group: u32,
    pub seat: usize,
    pub place: u32,
    pub bytes: *const u8,
    /// The lines in which it differs from its slot. `None`: it goes whole.
    pub change: Option<Change>,
}

/// Lines in which a page differs from what its slot holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// Bit k: line k.
    pub lines: u64,
    /// The sum of these lines' hashes in the slot ([`farmem_sys::lines::Hasher::sum_in`]).
    pub was: u64,
}

/// A lane's state for slabs with parity.
#[derive(Default)]
pub(super) struct Striped {
    noted: Vec<Noted>,
    pub jobs: Vec<Option<Job>>,
    /// READs that wait until an update has ended.
    pub parked: Vec<u32>,
    pub rounds: u32,
    /// READs of other seats were posted since the last doorbell. The caller does not know of them,
    /// so the lane rings.
    pub rings: bool,
    /// Operations of the current update that are under way.
    pending: usize,
    /// How each of its operations ended.
    pub ended: Vec<Result<u64, Lost>>,
    /// Pages that the current update reads, and parity that it writes.
    pub buffer: Vec<u8>,
    /// Its stripes of which a page cannot be had, so that their parity is unknown.
    pub blind: Vec<bool>,
    /// By stripe, a bit for each seat: its page could not be had, nobody needs it, and it is zeros
    /// in the buffer and from now on.
    pub zeroed: Vec<u32>,
    /// The key of the hashes of pages that were noted with their changed lines.
    pub seed: Seed,
    pub hasher: LastHasher,
}

/// The numbers of the writes of a stripe in [`Striped::ended`], by seat.
pub(super) type Writes = [Option<usize>; MAX_SEATS];

/// The pages of one stripe that are new, by seat.
type New = [Option<*const u8>; MAX_SEATS];

/// Stripes that are updated at once.
pub(super) struct Update<'a> {
    pub stripes: &'a Stripes,
    pub noted: &'a [Noted],
    /// The pages of each stripe, among those noted.
    pub ranges: &'a [Range<usize>],
}

impl Update<'_> {
    /// Bytes that one stripe takes in the buffer.
    pub fn each(&self) -> usize {
        self.stripes.shape.seats() * PAGE_BYTES
    }

    pub fn new_pages(&self, range: &Range<usize>) -> New {
        self.noted[range.clone()].iter().fold([None; MAX_SEATS], |mut new: New, page| {
            new[page.seat] = Some(page.bytes);
            new
        })
    }

    /// The stripes whose data is all known, with their positions. `lost` says why one is not.
    fn sound(&self, lost: &[Option<Lost>]) -> impl Iterator<Item = (usize, &Range<usize>)> {
        self.ranges.iter().enumerate().filter(|(at, _)| lost[*at].is_none())
    }

    /// Computes the parity of a stripe from its new pages and the old data in the buffer.
    fn encode(&self, range: &Range<usize>, buffer: &mut [u8]) {
        let (shape, new) = (self.stripes.shape, self.new_pages(range));
        let (data, parity) = buffer.split_at_mut(shape.data * PAGE_BYTES);
        let page = |seat: usize| match new[seat] {
            // SAFETY: the caller leaves the page as it is until it is done (contract of `write`).
            Some(bytes) => unsafe { std::slice::from_raw_parts(bytes, PAGE_BYTES) },
            None => &data[seat * PAGE_BYTES..][..PAGE_BYTES],
        };
        for (nth, into) in parity.chunks_exact_mut(PAGE_BYTES).enumerate() {
            shape.encode(self.stripes.unit, shape.data + nth, page, into);
        }
    }

    /// The update of a stripe begins, or ends.
    pub fn turn(&self, range: &Range<usize>) {
        let Noted { group, place, .. } = &self.noted[range.start];
        self.stripes.turn(*group, *place);
    }
}

impl Striped {
    pub fn has_noted(&self) -> bool {
        !self.noted.is_empty()
    }

    /// Notes a page that leaves, if its slab is of a group. It is written at the doorbell, with all
    /// other noted pages. Returns whether it was noted.
    #[cold]
    pub fn note(&mut self, tables: &Tables, tag: u64, slot: FarSlot, bytes: *const u8, change: Option<Change>) -> bool {
        let seat = tables.seat(slot.slab_index());
        let place = slot.place();
        self.noted.extend(seat.map(|(_, group, seat)| Noted { tag, group, seat, place, bytes, change }));
        seat.is_some()
    }

    pub fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }
}

impl Lane {
    /// Writes what was noted, and the parity.
    #[cold]
    pub(super) fn update_stripes(&mut self, pool: &Pool) {
        let Some(stripes) = pool.tables.protection.stripes() else { return };
        let mut noted = std::mem::take(&mut self.striped.noted);
        // The sort is stable: of several pages for one slot, the last one stays last and counts.
        noted.sort_by_key(|page| (page.group, page.place));
        let (mut foreign, mut from) = (Vec::new(), 0);
        while from < noted.len() {
            let mut ranges: Vec<Range<usize>> = Vec::with_capacity(STRIPES);
            while ranges.len() < STRIPES && from < noted.len() {
                let same = |page: &Noted| (page.group, page.place) == (noted[from].group, noted[from].place);
                let end = from + noted[from..].iter().take_while(|page| same(page)).count();
                ranges.push(from..end);
                from = end;
            }
            let by_lines = |range: &Range<usize>| self.goes_by_lines(pool, stripes, &noted[range.clone()]);
            let (few, mut whole): (Vec<_>, Vec<_>) = ranges.into_iter().partition(by_lines);
            if !few.is_empty() {
                whole.extend(self.update_lines(pool, &Update { stripes, noted: &noted, ranges: &few }, &mut foreign));
            }
            if !whole.is_empty() {
                self.update(pool, &Update { stripes, noted: &noted, ranges: &whole }, &mut foreign);
            }
        }
        noted.clear();
        self.striped.noted = noted;
        self.operations.ready.append(&mut foreign);
    }

    /// Updates some stripes.
    fn update(&mut self, pool: &Pool, update: &Update<'_>, foreign: &mut Vec<Done>) {
        let mut buffer = std::mem::take(&mut self.striped.buffer);
        buffer.resize(buffer.len().max(STRIPES * update.each()), 0);
        let lost = self.read_beside(pool, update, &mut buffer, foreign);
        for (at, range) in update.sound(&lost) {
            update.encode(range, &mut buffer[at * update.each()..][..update.each()]);
        }
        let writes = self.write_seats(pool, update, &lost, &buffer);
        self.await_update(pool, foreign);
        for (at, range) in update.ranges.iter().enumerate() {
            self.conclude(pool, update, range, lost[at].as_ref(), &writes[at]);
        }
        self.striped.buffer = buffer;
    }

    /// Ends the update of a stripe whose `writes` have ended, and tells of its pages. `lost`: it
    /// was not begun.
    pub(super) fn conclude(
        &mut self,
        pool: &Pool,
        update: &Update<'_>,
        range: &Range<usize>,
        lost: Option<&Lost>,
        writes: &Writes,
    ) {
        if lost.is_none() {
            update.turn(range);
        }
        let follows = |lane: &Lane, page: &Noted| {
            let at = (page.group, page.seat, page.place);
            pool.tables.others(&lane.links, update.stripes, at).len() >= update.stripes.shape.data
        };
        for page in &update.noted[range.clone()] {
            let written = writes[page.seat].map(|number| self.striped.ended[number].clone());
            let result = match (lost, written) {
                (Some(why), _) => Err(why.clone()),
                (None, Some(Err(why))) if !follows(self, page) => Err(why),
                _ => Ok(0),
            };
            self.operations.ready.push(Done { tag: page.tag, result, from: None });
            self.operations.under_way -= 1;
        }
    }

    /// Posts the WRITEs of all new pages and parity. Before its first WRITE a stripe's version
    /// becomes odd, so no reader combines its seats. Returns the number of each WRITE, by stripe
    /// and seat.
    fn write_seats(&mut self, pool: &Pool, update: &Update<'_>, lost: &[Option<Lost>], buffer: &[u8]) -> Vec<Writes> {
        let (stripes, shape) = (update.stripes, update.stripes.shape);
        self.striped.ended.clear();
        let mut writes: Vec<Writes> = vec![[None; MAX_SEATS]; update.ranges.len()];
        for (at, range) in update.sound(lost) {
            let (Noted { group, place, .. }, new) = (&update.noted[range.start], update.new_pages(range));
            update.turn(range);
            let seats = if self.striped.blind[at] { shape.data } else { shape.seats() };
            for seat in 0..seats {
                let computed = || buffer[at * update.each() + seat * PAGE_BYTES..].as_ptr();
                let zeroed = self.striped.zeroed[at] >> seat & 1 != 0;
                let bytes =
                    if seat < shape.data { new[seat].or_else(|| zeroed.then(computed)) } else { Some(computed()) };
                let Some(bytes) = bytes else { continue };
                let number = self.begin_own(stripes.slot(*group, seat, *place), (0, PAGE_BYTES), Verb::Write);
                writes[at][seat] = Some(self.striped.ended.len() - 1);
                // SAFETY: the caller leaves the page as it is until it is done (contract of
                // `write`), and the buffer is `update`'s until all is done.
                unsafe { self.send_write(pool, number, bytes) };
            }
        }
        writes
    }

    /// Begins an operation of the current update.
    pub(super) fn begin_own(&mut self, slot: FarSlot, (from, len): (usize, usize), verb: Verb) -> u32 {
        let number = self.operations.begin(0, slot, from as u32, len as u32, verb);
        self.operations[number].whose = Whose::Update(self.striped.ended.len() as u32);
        self.striped.ended.push(Ok(0));
        self.striped.pending += 1;
        number
    }

    pub(super) fn await_update(&mut self, pool: &Pool, foreign: &mut Vec<Done>) {
        self.doorbell(pool);
        while self.striped.pending > 0 {
            let waited = self.links.wait(Duration::from_secs(1));
            self.take_in(pool, waited, foreign);
        }
    }

    /// An operation that is not the caller's is done.
    pub(super) fn own_done(&mut self, pool: &Pool, whose: Whose, result: Result<u64, Lost>, by: Option<u32>) {
        match whose {
            Whose::Caller => {}
            Whose::Update(number) => {
                self.striped.ended[number as usize] = result;
                self.striped.pending -= 1;
            }
            Whose::Part { job, nth } => self.part_done(pool, (job, nth), result.is_ok(), by),
        }
    }
}

impl Tables {
    /// Whether any parity seat of a group has a home that takes pages.
    pub(super) fn has_parity(&self, stripes: &Stripes, group: u32) -> bool {
        let takes = |index: u32| {
            let word = self.homes.word(index);
            (0..HOMES).any(|nth| word.takes_pages(nth))
        };
        stripes.members(group).skip(stripes.shape.data).any(takes)
    }
}
