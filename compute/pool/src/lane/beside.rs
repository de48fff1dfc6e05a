//! The pages beside new ones in their stripes: an update that writes whole pages reads them, and
//! computes the parity from both.

use super::Lane;
use super::operations::Verb;
use super::striped::{Noted, Update};
use crate::homes::HOMES;
use crate::{Done, Pool, Slip};
use farmem_fabric::Lost;
use farmem_protocol::addr::{FarSlot, PAGE_BYTES};

/// A page that an update reads and does not replace.
struct Beside {
    /// The stripe's position in the update.
    at: usize,
    slot: FarSlot,
    into: *mut u8,
    /// The READ's number in [`ended`](super::striped::Striped::ended).
    number: usize,
}

impl Lane {
    /// READs the data of the stripes that the update does not replace. Also while a group has no
    /// parity: a home for it may come between here and the WRITEs, which are sent to each home that
    /// is there then. Returns, by stripe, the loss of a page that neither a home nor other seats can
    /// give. A page whose slot is free is needed by nobody: if it cannot be had, it is zeros from now
    /// on, and is written as the new pages are ([`Striped::zeroed`](super::striped::Striped::zeroed)).
    pub(super) fn read_beside(
        &mut self,
        pool: &Pool,
        update: &Update<'_>,
        buffer: &mut [u8],
        foreign: &mut Vec<Done>,
    ) -> Vec<Option<Lost>> {
        let stripes = update.stripes;
        let mut reads: Vec<Beside> = Vec::new();
        self.striped.ended.clear();
        for (at, range) in update.ranges.iter().enumerate() {
            let (Noted { group, place, .. }, new) = (&update.noted[range.start], update.new_pages(range));
            let zeros = stripes.version(*group, *place) == 0;
            for seat in (0..stripes.shape.data).filter(|&seat| new[seat].is_none()) {
                let into = &mut buffer[at * update.each() + seat * PAGE_BYTES..][..PAGE_BYTES];
                if zeros || pool.tables.slips.has(Slip::ParityWithoutOthers) {
                    into.fill(0);
                } else {
                    let slot = stripes.slot(*group, seat, *place);
                    reads.push(Beside { at, slot, into: into.as_mut_ptr(), number: self.read_one(pool, slot, into) });
                }
            }
        }
        self.await_update(pool, foreign);
        if pool.tables.sealed.is_on() {
            self.read_altered_again(pool, &mut reads, foreign);
        }
        let mut lost = vec![None; update.ranges.len()];
        self.striped.blind = vec![false; update.ranges.len()];
        self.striped.zeroed = vec![0; update.ranges.len()];
        for Beside { at, slot, into, number } in reads {
            let Err(why) = &self.striped.ended[number] else { continue };
            let Noted { group, .. } = update.noted[update.ranges[at].start];
            // Whoever takes the slot from now on writes it by this lane, whole, after this update.
            if !pool.is_taken(slot) {
                pool.seals().unmark(slot);
                // SAFETY: a page of the update's buffer. Nothing lands there now.
                unsafe { into.write_bytes(0, PAGE_BYTES) };
                let seat = pool.tables.seat(slot.slab_index()).map_or(0, |(.., seat)| seat);
                self.striped.zeroed[at] |= 1 << seat;
                continue;
            }
            // Without parity a lost page takes no other page along. And none can be filled in then.
            match pool.tables.has_parity(stripes, group) {
                true => lost[at] = Some(why.clone()),
                false => self.striped.blind[at] = true,
            }
        }
        lost
    }

    /// READs a page for the current update. Returns its number in [`ended`](super::striped::Striped::ended).
    fn read_one(&mut self, pool: &Pool, slot: FarSlot, into: &mut [u8]) -> usize {
        let number = self.begin_own(slot, (0, PAGE_BYTES), Verb::Read { into: into.as_mut_ptr() });
        self.send_read(pool, number);
        self.striped.ended.len() - 1
    }

    /// READs pages again that are not what was sealed, after their homes were given up: parity that
    /// is computed from such a page has nothing left of the true one. A page that no other seats give
    /// either stays as it came: there is nothing left to keep.
    #[cold]
    fn read_altered_again(&mut self, pool: &Pool, reads: &mut [Beside], foreign: &mut Vec<Done>) {
        for _ in 0..=HOMES {
            let mut again = false;
            for read in &mut *reads {
                // SAFETY: a page of the update's buffer. Nothing lands there now.
                let page = unsafe { std::slice::from_raw_parts_mut(read.into, PAGE_BYTES) };
                if self.striped.ended[read.number].is_err() || !pool.seals().is_altered(read.slot, page) {
                    continue;
                }
                let word = pool.tables.homes.word(read.slot.slab_index());
                let has = |nth: &usize| word.reads(*nth, || pool.tables.homes.is_stale(word, *nth, read.slot.place()));
                let home = (0..HOMES).find(has).map(|nth| pool.tables.homes.home(word, nth).node);
                if home.is_none_or(|node| pool.seals().give_up(read.slot, node)) {
                    again = true;
                    read.number = self.read_one(pool, read.slot, page);
                }
            }
            if !again {
                return;
            }
            self.await_update(pool, foreign);
        }
    }
}
