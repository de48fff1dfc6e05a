//! Writes of a lane: pages, and records of changed lines, to each home that takes them; and the
//! filling of a home that lacks slots.
//!
//! A home that a write does not reach lacks the slot from then on: its stale bit is set before the
//! operation counts as done (*Bits before completions*, [`super`]).

use super::operations::{Operation, Verb};
use super::{Change, Done, HOME_BIT, Home, Lane, in_place};
use crate::Pool;
use crate::homes::{HOMES, State, Word};
use crate::protect::disk::DISK;
use crate::tables::Tables;
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, SlabId};
use farmem_sys::lines::Seed;
use farmem_sys::memory::copy_bytes;
use std::time::Duration;

/// How much [`Lane::fill`] copies at a time.
pub struct Piece<'a> {
    /// Pages, at most.
    pub pages: u32,
    /// Pages under way at a time, at most.
    pub under_way: u32,
    /// Asked before each READ but the first: on false the piece ends with what is under way.
    pub goes_on: &'a mut dyn FnMut() -> bool,
}

/// What [`Lane::fill`] has copied, as far as it could be read.
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    /// The place behind the last page.
    pub next: u32,
    /// How many.
    pub pages: u32,
}

impl Lane {
    /// Posts a WRITE of a part of a slot, to each home that takes pages.
    ///
    /// # Safety
    /// `bytes` must be readable for `len` bytes, near, and stay so until the operation is done, or
    /// the lane dropped.
    pub unsafe fn write(&mut self, pool: &Pool, tag: u64, slot: FarSlot, from: u32, bytes: *const u8, len: u32) {
        if pool.tables.homes.word(slot.slab_index()).is_striped() {
            assert!(len as usize == PAGE_BYTES, "a stripe is written by whole pages");
            self.operations.under_way += usize::from(self.striped.note(&pool.tables, tag, slot, bytes, None));
            return;
        }
        let number = self.operations.begin(tag, slot, from, len, Verb::Write);
        // SAFETY: the caller's promise.
        unsafe { self.send_write(pool, number, bytes) };
    }

    /// Posts a page of which some lines differ from what its slot holds. Its slab is of a group: the
    /// change goes to the page's home and to the parity. If the slot holds others than `change`
    /// says, or the change cannot go alone, the page goes whole. `seed`: the key of the hashes.
    ///
    /// # Safety
    /// As [`Lane::write`], for the whole page.
    pub unsafe fn change(
        &mut self,
        pool: &Pool,
        tag: u64,
        slot: FarSlot,
        bytes: *const u8,
        change: Change,
        seed: &Seed,
    ) {
        self.striped.seed = *seed;
        let noted = self.striped.note(&pool.tables, tag, slot, bytes, Some(change));
        assert!(noted, "a page with a change of its parity is of a group");
        self.operations.under_way += 1;
    }

    /// Sends an operation's WRITE to each home that takes pages.
    ///
    /// # Safety
    /// As [`Lane::write`], until the operation is done.
    pub(super) unsafe fn send_write(&mut self, pool: &Pool, number: u32, bytes: *const u8) {
        let Operation { slot, from, len, .. } = self.operations[number];
        pool.tables.heat.touch(slot.slab_index());
        let word = pool.tables.homes.word(slot.slab_index());
        let whole = len as usize == PAGE_BYTES;
        for nth in 0..HOMES {
            if word.misses(nth) {
                pool.tables.homes.set_stale(word, nth, slot.place(), true);
                continue;
            }
            // A part is of no use where the rest is not.
            if !word.takes_pages(nth)
                || !whole && !word.reads(nth, || pool.tables.homes.is_stale(word, nth, slot.place()))
            {
                continue;
            }
            if word.state(nth) == State::Filling {
                pool.tables.homes.set_stale(word, nth, slot.place(), false);
            }
            let home = pool.tables.homes.home(word, nth);
            if home.node == DISK {
                self.post_to_disk(pool, number, (nth, home), (slot, from), (bytes, len));
            } else if home.base != 0 {
                // SAFETY: a slab of ours, mapped, of a slot that this process writes by this lane
                // alone; the source is the caller's promise.
                unsafe { copy_bytes(bytes, in_place(&home, slot, from), len as usize) };
                self.operations[number].done += 1;
            } else if let Some(link) = self.links.to(pool.losses(), home.node) {
                let key = number as u64 | (nth as u64) << HOME_BIT;
                // SAFETY: the caller's promise, until the operation is done at all homes.
                unsafe { link.write(key, home.slab, slot.offset() + from as u64, bytes, len) };
                self.operations[number].at[nth] = Some(home.node);
            } else {
                pool.tables.unreached(slot, home.node as usize);
            }
        }
        self.end_if_done(pool, number);
    }

    /// Posts a record of changed lines of slots of one slab, to each home that takes pages and has
    /// all of them; a home that does not lacks them from now on. `encode` makes the record for the
    /// slab of a name, and is asked for each home; `None`: it has no room, and that home lacks the
    /// slots. A disk gets the `pages`, each with its slot, whole. `conditional`: as
    /// [`farmem_fabric::QueuePair::lines_if`].
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
        encode: impl FnMut(SlabId) -> Option<(*const u8, u32)>,
    ) {
        let Some((first, _)) = pages.clone().next() else { return };
        let number = self.operations.begin(tag, first, 0, 0, Verb::Lines);
        // SAFETY: the caller's promise.
        unsafe { self.send_lines(pool, number, pages, conditional, encode) };
    }

    /// Sends an operation's record to each home that takes pages and has all of them.
    ///
    /// # Safety
    /// As [`Lane::lines`], until the operation is done.
    pub(super) unsafe fn send_lines(
        &mut self,
        pool: &Pool,
        number: u32,
        pages: impl Iterator<Item = (FarSlot, *const u8)> + Clone,
        conditional: bool,
        mut encode: impl FnMut(SlabId) -> Option<(*const u8, u32)>,
    ) {
        let slots = pages.clone().map(|(slot, _)| slot);
        let first = self.operations[number].slot;
        pool.tables.heat.touch(first.slab_index());
        let word = pool.tables.homes.word(first.slab_index());
        for nth in 0..HOMES {
            let (taken, missed) = (word.takes_pages(nth), word.misses(nth));
            if !taken && !missed {
                continue;
            }
            let stale = |slot: FarSlot| pool.tables.homes.is_stale(word, nth, slot.place());
            let home = pool.tables.homes.home(word, nth);
            if home.node == DISK && taken {
                for (slot, bytes) in pages.clone() {
                    if word.state(nth) == State::Filling {
                        pool.tables.homes.set_stale(word, nth, slot.place(), false);
                    }
                    self.post_to_disk(pool, number, (nth, home), (slot, 0), (bytes, PAGE_BYTES as u32));
                }
                continue;
            }
            let has_all = taken && (word.state(nth) == State::Whole || !slots.clone().any(stale));
            let takes = has_all && pool.tables.nodes.all()[home.node as usize].takes_records();
            let record = if takes { encode(home.slab) } else { None };
            let Some((record, len)) = record else {
                pool.tables.misses(nth, slots.clone());
                continue;
            };
            if let Some(link) = self.links.to(pool.losses(), home.node) {
                let key = number as u64 | (nth as u64) << HOME_BIT;
                // SAFETY: the caller's promise, until the operation is done at all homes.
                unsafe {
                    match conditional {
                        true => link.lines_if(key, home.slab, record, len),
                        false => link.lines(key, home.slab, record, len),
                    }
                }
                self.operations[number].at[nth] = Some(home.node);
            } else {
                slots.clone().for_each(|slot| pool.tables.unreached(slot, home.node as usize));
            }
        }
        self.end_if_done(pool, number);
    }

    /// Copies slots to the filling home `nth` of a slab, which lacks them. Begins at the place
    /// `from`, copies a piece, and waits until it is done. `None`: nothing is lacking up to the
    /// slab's end.
    ///
    /// Call it on the lane of all write-back, while nothing else is posted. Its READs come behind
    /// every WRITE posted before. A page that leaves meanwhile clears its stale bit, so its slot is
    /// not overwritten. [`crate::Moves::add_home`] says what must be done before. A sealed page that
    /// does not open is not copied: the home goes on lacking it.
    ///
    /// # Safety
    /// `buffers` must be `piece.pages` pages, writable and near. No other operation may be under way
    /// on the lane.
    pub unsafe fn fill(
        &mut self,
        pool: &Pool,
        index: u32,
        nth: usize,
        from: u32,
        buffers: *mut u8,
        piece: Piece<'_>,
    ) -> Option<Filled> {
        let mut slots = Vec::with_capacity(piece.pages as usize);
        let mut at = from;
        while slots.len() < piece.pages as usize
            && let Some(slot) = pool.moves().next_stale(index, nth, at)
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
        let word = pool.tables.homes.word(index);
        let home = pool.tables.homes.home(word, nth);
        // SAFETY: one page of the buffers for each, this call's until it returns.
        let buffer = |i: usize| unsafe { buffers.add(i * PAGE_BYTES) };
        let (mut done, mut come, mut absent) = (Vec::new(), Vec::new(), Vec::new());
        let (mut posted, mut under_way) = (0, 0);
        loop {
            while under_way < piece.under_way.max(1) && posted < slots.len() {
                if posted > 0 && !(piece.goes_on)() {
                    slots.truncate(posted);
                    break;
                }
                // READs have even tags, WRITEs odd ones.
                let tag = 2 * posted as u64;
                // SAFETY: as above.
                unsafe { self.read(pool, tag, slots[posted], 0, buffer(posted), PAGE_BYTES as u32) };
                (posted, under_way) = (posted + 1, under_way + 1);
            }
            self.doorbell(pool);
            if self.in_flight() == 0 {
                break;
            }
            self.wait(pool, &mut done, Duration::from_secs(1));
            for Done { tag, result, .. } in done.drain(..) {
                let (i, is_read) = (tag as usize / 2, tag.is_multiple_of(2));
                // SAFETY: as above; the operation is done.
                let sound = || pool.is_sound(slots[i], unsafe { std::slice::from_raw_parts(buffer(i), PAGE_BYTES) });
                match result {
                    Ok(_) if is_read && sound() => come.push(i),
                    // The bit is cleared only now that the WRITE is acknowledged. A READ of another
                    // thread could overtake the WRITE.
                    Ok(_) if !is_read => _ = pool.tables.homes.set_stale(word, nth, slots[i].place(), false),
                    Err(_) if is_read => absent.push(slots[i]),
                    _ => {}
                }
                // A page on its way to the disk is on no link.
                let ended = if home.node == DISK { is_read } else { !is_read || come.last() != Some(&i) };
                under_way -= u32::from(ended);
            }
            // The pages that have come are written while others are on their way.
            self.fill_with(pool, (nth, home), come.drain(..).map(|i| (2 * i as u64 + 1, slots[i], buffer(i))));
        }
        self.give_zeros(pool, &absent);
        slots.last().map(|last| Filled { next: last.place() + 1, pages: slots.len() as u32 })
    }

    /// Makes stripes whole of which a filling home lacks a page that cannot be had, where nobody
    /// needs it: a free slot of each becomes zeros, and the parity is computed anew. Otherwise the
    /// group would lack the page for as long as it stands, and be no help when another node is lost.
    #[cold]
    fn give_zeros(&mut self, pool: &Pool, absent: &[FarSlot]) {
        static ZEROS: [u64; PAGE_BYTES / 8] = [0; PAGE_BYTES / 8];
        for slot in absent {
            let Some((stripes, group, _)) = pool.tables.seat(slot.slab_index()) else { continue };
            let mut slots = (0..stripes.shape.data).map(|seat| stripes.slot(group, seat, slot.place()));
            // If each slot is taken, the page that is absent is lost or will be written.
            let Some(free) = slots.find(|slot| !pool.is_taken(*slot)) else { continue };
            pool.seals().unmark(free);
            let noted = self.striped.note(&pool.tables, 0, free, ZEROS.as_ptr().cast(), None);
            self.operations.under_way += usize::from(noted);
        }
        let mut done = Vec::new();
        self.doorbell(pool);
        while self.wait(pool, &mut done, Duration::from_secs(1)) > 0 {}
    }

    /// Posts WRITEs of pages, with their tags, to a filling home.
    fn fill_with(
        &mut self,
        pool: &Pool,
        (nth, home): (usize, Home),
        pages: impl Iterator<Item = (u64, FarSlot, *mut u8)>,
    ) {
        for (tag, slot, buffer) in pages {
            let number = self.operations.begin(tag, slot, 0, PAGE_BYTES as u32, Verb::Write);
            self.operations[number].fills = true;
            if home.node == DISK {
                self.post_to_disk(pool, number, (nth, home), (slot, 0), (buffer, PAGE_BYTES as u32));
            } else if home.base != 0 {
                // SAFETY: a slab of ours, mapped; nobody reads the slot there, for its bit is set.
                unsafe { copy_bytes(buffer, in_place(&home, slot, 0), PAGE_BYTES) };
                self.operations[number].done += 1;
            } else if let Some(link) = self.links.to(pool.losses(), home.node) {
                let key = number as u64 | (nth as u64) << HOME_BIT;
                // SAFETY: the buffer is the caller's, who awaits the operation.
                unsafe { link.write(key, home.slab, slot.offset(), buffer, PAGE_BYTES as u32) };
                self.operations[number].at[nth] = Some(home.node);
            }
            self.end_if_done(pool, number);
        }
    }
}

impl Tables {
    /// Marks slots stale at a home that does not get their new bytes. No thread reads these pages
    /// before the operation is done.
    #[cold]
    fn misses(&self, nth: usize, slots: impl Iterator<Item = FarSlot> + Clone) {
        let Some(first) = slots.clone().next() else { return };
        let index = first.slab_index();
        let whole = |word: Word| (word.state(nth) == State::Whole).then(|| word.with_state(nth, State::Filling));
        self.homes.update(index, whole);
        // The word still names this record: while a home is filling none is added or dropped, and nodes are
        // taken back by the owner of this lane.
        let word = self.homes.word(index);
        slots.for_each(|slot| {
            self.homes.set_stale(word, nth, slot.place(), true);
        });
    }
}
