//! Changed lines of pages with parity: they go to the page's home, and the parity changes at the
//! same lines. Other pages of the stripe are not read.
//!
//! ```text
//!  noted ─► READ the old lines of the page and of each parity
//!        ─► are the page's the expected ones?     no, or a READ failed ─► the stripe is written whole
//!        ─► parity + factor × (old + new)
//!        ─► version odd ─► records of new lines to all of them ─► all done ─► version even
//! ```
//!
//! *A record says what bytes are, not how they change.* So one that is repeated after a cut changes
//! nothing, and the parity does not drift. Between the READs and the records nothing else writes
//! these lines: one lane does all write-back, and awaits each update.
//!
//! *In doubt, whole.* If the page's old lines are not those that it came in with, or some seat lacks
//! its place, nothing is changed here. The stripe's parity is then computed from whole pages
//! ([`super::striped`]).
//!
//! *A home that is lost during the records* is out of the words before the update ends. The other
//! seats have the new lines then, and the page follows from them.

use super::Lane;
use super::links::Links;
use super::operations::Verb;
use super::striped::{Noted, STRIPES, Update, Writes};
use crate::homes::{HOMES, Word};
use crate::stripes::Stripes;
use crate::stripes::code::MAX_SEATS;
use crate::tables::Tables;
use crate::{Done, Pool, Slip};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES};
use farmem_protocol::lines::{self, Entry, LINE_BYTES, MAX_RECORD_BYTES, Runs, WHOLE_FROM};
use std::ops::Range;

/// The runs of lines that are read for these lines. A single line between two of them is read along:
/// a verb and its completion take about as many bytes.
fn read_for(lines: u64) -> Runs {
    Runs(lines | ((lines << 1) & (lines >> 1)))
}

/// The bytes of a run of lines in a page.
fn bytes_of((first, run): (usize, usize)) -> Range<usize> {
    first * LINE_BYTES..(first + run) * LINE_BYTES
}

/// One page of a record.
#[derive(Clone, Copy)]
struct Laid {
    /// The stripe's position in the update.
    at: usize,
    slot: FarSlot,
    lines: u64,
    bytes: *const u8,
}

/// Lines in which any page of a stripe changes, and so its parity.
fn union(noted: &[Noted]) -> u64 {
    noted.iter().filter_map(|page| page.change).fold(0, |all, change| all | change.lines)
}

impl Lane {
    /// Whether a stripe is updated by changed lines: few lines of each page changed, something was
    /// written there before, and all seats that change have their place.
    pub(super) fn goes_by_lines(&self, pool: &Pool, stripes: &Stripes, noted: &[Noted]) -> bool {
        let Noted { group, place, .. } = noted[0];
        let seats = noted.iter().fold(0u32, |seats, page| seats | 1 << page.seat);
        let parity = stripes.shape.data..stripes.shape.seats();
        let has = |seat: usize| pool.tables.lays_lines(&self.links, stripes.slot(group, seat, place));
        noted.iter().all(|page| page.change.is_some())
            && seats.count_ones() as usize == noted.len()
            && union(noted).count_ones() < WHOLE_FROM
            && stripes.version(group, place) != 0
            && noted.iter().all(|page| has(page.seat) == Some(true))
            && parity.into_iter().all(|seat| has(seat).is_some())
    }

    /// Updates stripes by changed lines. Returns those that must be written whole instead: they are
    /// as they were.
    pub(super) fn update_lines(
        &mut self,
        pool: &Pool,
        update: &Update<'_>,
        foreign: &mut Vec<Done>,
    ) -> Vec<Range<usize>> {
        let mut buffer = std::mem::take(&mut self.striped.buffer);
        buffer.resize(buffer.len().max(STRIPES * update.each()), 0);
        let sound = self.read_lines(pool, update, &mut buffer, foreign);
        for (at, range) in update.ranges.iter().enumerate().filter(|(at, _)| sound[*at].is_some()) {
            update.change(range, &mut buffer[at * update.each()..][..update.each()]);
        }
        let mut records = Vec::new();
        let writes = self.lay_lines(pool, update, &sound, &buffer, &mut records);
        self.await_update(pool, foreign);
        drop(records);
        let mut whole = Vec::new();
        for (at, range) in update.ranges.iter().enumerate() {
            match sound[at] {
                Some(_) => self.conclude(pool, update, range, None, &writes[at]),
                None => whole.push(range.clone()),
            }
        }
        self.striped.buffer = buffer;
        self.met.changed += (update.ranges.len() - whole.len()) as u64;
        self.met.doubted += whole.len() as u64;
        whole
    }

    /// READs the old lines of the pages and of the parity into the stripes' buffers. Returns, by
    /// stripe, the seats that were read, a bit each. `None`: something did not come, or a page's
    /// lines are not as expected.
    fn read_lines(
        &mut self,
        pool: &Pool,
        update: &Update<'_>,
        buffer: &mut [u8],
        foreign: &mut Vec<Done>,
    ) -> Vec<Option<u32>> {
        let (stripes, shape) = (update.stripes, update.stripes.shape);
        let (mut stripe_of, mut seats) = (Vec::new(), vec![0; update.ranges.len()]);
        self.striped.ended.clear();
        for (at, range) in update.ranges.iter().enumerate() {
            let noted = &update.noted[range.clone()];
            let (Noted { group, place, .. }, changed) = (&noted[0], union(noted));
            let pages = noted.iter().filter_map(|page| Some((page.seat, page.change?.lines)));
            let parity = (shape.data..shape.seats()).map(|seat| (seat, changed));
            for (seat, lines) in pages.chain(parity) {
                let slot = stripes.slot(*group, seat, *place);
                if pool.tables.lays_lines(&self.links, slot) == Some(false) {
                    continue;
                }
                seats[at] |= 1 << seat;
                for run in read_for(lines) {
                    let part = bytes_of(run);
                    let into = &mut buffer[at * update.each() + seat * PAGE_BYTES..][part.clone()];
                    let verb = Verb::Read { into: into.as_mut_ptr() };
                    let number = self.begin_own(slot, (part.start, part.len()), verb);
                    stripe_of.push(at);
                    self.send_read(pool, number);
                }
            }
        }
        self.await_update(pool, foreign);
        let mut sound: Vec<Option<u32>> = seats.into_iter().map(Some).collect();
        for (at, _) in stripe_of.iter().zip(&self.striped.ended).filter(|(_, ended)| ended.is_err()) {
            sound[*at] = None;
        }
        let hasher = self.striped.hasher.of(&self.striped.seed);
        for (at, range) in update.ranges.iter().enumerate() {
            let expected = |page: &Noted| {
                let old = buffer[at * update.each() + page.seat * PAGE_BYTES..].first_chunk();
                page.change.zip(old).is_some_and(|(change, old)| hasher.sum_in(old, change.lines) == change.was)
            };
            sound[at] = sound[at].filter(|_| update.noted[range.clone()].iter().all(expected));
        }
        sound
    }

    /// Posts the records of the sound stripes' new lines: one or more for each seat of a group.
    /// Before the first, their versions become odd, so no reader combines their seats. `records`
    /// keeps the bytes. Returns the number of each write, by stripe and seat.
    fn lay_lines(
        &mut self,
        pool: &Pool,
        update: &Update<'_>,
        sound: &[Option<u32>],
        buffer: &[u8],
        records: &mut Vec<Vec<u8>>,
    ) -> Vec<Writes> {
        let shape = update.stripes.shape;
        self.striped.ended.clear();
        let mut writes: Vec<Writes> = vec![[None; MAX_SEATS]; update.ranges.len()];
        let mut by_seat: Vec<Vec<Laid>> = vec![Vec::new(); shape.seats()];
        let mut group = None;
        for (at, range) in update.ranges.iter().enumerate() {
            let Some(read) = sound[at] else { continue };
            let noted = &update.noted[range.clone()];
            if group.replace(noted[0].group).is_some_and(|before| before != noted[0].group) {
                self.send_records(pool, &mut by_seat, &mut writes, records);
            }
            update.turn(range);
            let slot = |seat| update.stripes.slot(noted[0].group, seat, noted[0].place);
            for (page, change) in noted.iter().filter_map(|page| Some((page, page.change?))) {
                let laid = Laid { at, slot: slot(page.seat), lines: change.lines, bytes: page.bytes };
                by_seat[page.seat].push(laid);
            }
            // A home that came since the READs lacks this place, and is filled later.
            for seat in (shape.data..shape.seats()).filter(|seat| read >> seat & 1 != 0) {
                if pool.tables.slips.has(Slip::ParityLeftBehind) {
                    continue;
                }
                let bytes = buffer[at * update.each() + seat * PAGE_BYTES..].as_ptr();
                by_seat[seat].push(Laid { at, slot: slot(seat), lines: union(noted), bytes });
            }
        }
        self.send_records(pool, &mut by_seat, &mut writes, records);
        writes
    }

    /// Posts what was gathered for each seat of a group, in records that are as long as they may be.
    fn send_records(
        &mut self,
        pool: &Pool,
        by_seat: &mut [Vec<Laid>],
        writes: &mut [Writes],
        records: &mut Vec<Vec<u8>>,
    ) {
        for (seat, all) in by_seat.iter_mut().enumerate() {
            let mut rest = all.as_slice();
            while !rest.is_empty() {
                let mut bytes = lines::record_bytes();
                let fits = |laid: &&Laid| {
                    bytes += lines::page_bytes(laid.lines.count_ones());
                    bytes <= MAX_RECORD_BYTES
                };
                let (pages, behind) = rest.split_at(rest.iter().take_while(fits).count());
                rest = behind;
                let number = self.begin_own(pages[0].slot, (0, 0), Verb::Lines);
                pages.iter().for_each(|laid| writes[laid.at][seat] = Some(self.striped.ended.len() - 1));
                let entry = |laid: &Laid| Entry { place: (laid.slot.place() as u16).into(), lines: laid.lines.into() };
                let entries: Vec<Entry> = pages.iter().map(entry).collect();
                let encode = |slab| {
                    let mut record = vec![0; MAX_RECORD_BYTES];
                    // SAFETY: a page of the caller's, which leaves it as it is until it is done
                    // (contract of `change`), or of the update's buffer.
                    let page = |i: usize| unsafe { &*pages[i].bytes.cast::<[u8; PAGE_BYTES]>() };
                    let len = lines::encode(slab, &entries, &mut record, page)?;
                    record.truncate(len);
                    records.push(record);
                    records.last().map(|record| (record.as_ptr(), len as u32))
                };
                let whole = pages.iter().map(|laid| (laid.slot, laid.bytes));
                // SAFETY: the records and the pages stay until the update has been awaited.
                unsafe { self.send_lines(pool, number, whole, false, encode) };
            }
            all.clear();
        }
    }
}

impl Update<'_> {
    /// Brings a stripe's parity from the old lines in its buffer to the new ones. The old lines of
    /// the pages become their changes.
    fn change(&self, range: &Range<usize>, buffer: &mut [u8]) {
        let (shape, unit) = (self.stripes.shape, self.stripes.unit);
        let (data, parity) = buffer.split_at_mut(shape.data * PAGE_BYTES);
        for page in &self.noted[range.clone()] {
            let lines = page.change.map_or(0, |change| change.lines);
            // SAFETY: the caller leaves the page as it is until it is done (contract of `change`).
            let new = unsafe { std::slice::from_raw_parts(page.bytes, PAGE_BYTES) };
            for part in Runs(lines).map(bytes_of) {
                let old = &mut data[page.seat * PAGE_BYTES..][part.clone()];
                old.iter_mut().zip(&new[part.clone()]).for_each(|(old, new)| *old ^= new);
                for (nth, parity) in parity.chunks_exact_mut(PAGE_BYTES).enumerate() {
                    shape.change(unit, shape.data + nth, page.seat, old, &mut parity[part.clone()]);
                }
            }
        }
    }
}

impl Tables {
    /// Whether lines may be laid onto a slot, at all homes that take pages. `Some(false)`: there is
    /// no home, so nothing is to be laid. `None`: some home lacks the slot, takes no records, or is
    /// out of this lane's reach.
    fn lays_lines(&self, links: &Links, slot: FarSlot) -> Option<bool> {
        let word = self.homes.word(slot.slab_index());
        if (0..HOMES).any(|nth| word.misses(nth)) {
            return None;
        }
        let mut taking = (0..HOMES).filter(|&nth| word.takes_pages(nth)).peekable();
        let some = taking.peek().is_some();
        let barred = |nth: usize| links.is_barred(&self.nodes, self.homes.home(word, nth).node);
        taking.all(|nth| self.lays_at(word, nth, slot) && !barred(nth)).then_some(some)
    }

    /// Whether a home has a slot, and its node takes records for it.
    fn lays_at(&self, word: Word, nth: usize, slot: FarSlot) -> bool {
        let home = self.homes.home(word, nth);
        word.reads(nth, || self.homes.is_stale(word, nth, slot.place()))
            && home.base == 0
            && self.nodes.all()[home.node as usize].takes_records()
    }

    /// Whether the home of a slot of a group has it, so that lines may be laid onto it.
    pub(crate) fn takes_changes(&self, word: Word, slot: FarSlot) -> bool {
        word.takes_pages(0) && self.lays_at(word, 0, slot)
    }
}
