//! Which objects leave: victims of a class's hand, and whole segments that go to another class.

use super::{BATCH, Evictor};
use crate::Result;
use crate::class::{CLASSES, Class};
use crate::frames::Arena;
use crate::rooms::Room;
use crate::scope::NO_SCOPE;
use crate::space::At;
use crate::way::Way;
use crate::word::{ARRIVING, SEEN, STAMP, Word};

/// Segments that a heap gives back to its run at a time, at most.
const GIVEN: usize = 16;
/// Segments that it looks at for that, at most.
const ASKED: usize = 64;
/// Segments of a sample, and frames of each.
const SAMPLE: usize = 16;
const PARTS: usize = 4;

impl<W: Way> Evictor<W> {
    /// Lets the hand choose up to `want` victims. Clean ones are freed at once. Dirty ones are
    /// added to `leaving`. Returns the number of both.
    pub(super) fn choose(&mut self, arena: &Arena, class: Class, want: usize, oldest: u64) -> usize {
        let mut chosen = 0;
        for _ in 0..2 * self.rooms[class.index].len() * class.frames() {
            if chosen == want || self.leaving.len() >= BATCH {
                break;
            }
            let (segment, number) = self.rooms[class.index].step();
            let at = arena.frame(class, segment, number);
            let meta = arena.meta(at);
            if arena.word(at) == 0 || meta & ARRIVING != 0 || meta >> STAMP >= oldest {
                continue;
            }
            if meta & SEEN == 0 {
                arena.set_seen(at);
                continue;
            }
            if !arena.is_dirty(at) {
                self.left(Word(arena.word(at)), class);
                arena.empty(at, oldest);
                self.rooms[class.index].give((segment, number));
            } else if !self.leaving.contains(&at) {
                self.leaving.push(at);
            } else {
                continue;
            }
            chosen += 1;
        }
        self.rooms[class.index].gone += chosen * class.stride;
        self.gone += chosen * class.stride;
        chosen
    }

    /// Whether scopes hold more than a quarter of local memory, by the frames of a sample. `oldest`:
    /// the oldest stamp that open scopes need.
    pub fn is_crowded(&self, arena: &Arena, oldest: u64) -> bool {
        let segments: usize = self.rooms.iter().map(Room::len).sum();
        if self.left > 0 || segments == 0 {
            return false;
        }
        let all = self.rooms.iter().enumerate().flat_map(|(index, room)| {
            let class = Class::new(index);
            (0..room.len()).map(move |nth| (class, room.segment(nth)))
        });
        let (mut looked, mut held) = (0, 0);
        for (nth, (class, segment)) in all.step_by(segments.div_ceil(SAMPLE)).enumerate() {
            for part in 0..PARTS {
                // Other frames of each segment: a class fills its segments in order.
                let at = arena.frame(class, segment, (part * class.frames() / PARTS + nth) % class.frames());
                looked += 1;
                held += usize::from(arena.word(at) != 0 && arena.meta(at) >> STAMP >= oldest);
            }
        }
        4 * held > looked
    }

    /// Takes a segment from another class. The class with the most segments is tried first.
    pub(super) fn steal(&mut self, arena: &Arena, class: Class, oldest: u64) -> Result<bool> {
        let mut others: Vec<usize> = (0..CLASSES).filter(|&other| other != class.index).collect();
        others.sort_by_key(|&other| std::cmp::Reverse(self.rooms[other].len()));
        for other in others {
            for nth in 0..self.rooms[other].len() {
                if self.give_up(arena, Class::new(other), nth, oldest)? {
                    self.add(arena, class);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Empties a segment and takes it from its class, unless a scope holds an object in it. Returns
    /// whether the class gave it up.
    fn give_up(&mut self, arena: &Arena, class: Class, nth: usize, oldest: u64) -> Result<bool> {
        let segment = self.rooms[class.index].segment(nth);
        let mut used: Vec<At> = Vec::new();
        for at in (0..class.frames()).map(|number| arena.frame(class, segment, number)) {
            if arena.word(at) == 0 {
                continue;
            }
            if arena.meta(at) & ARRIVING != 0 || arena.meta(at) >> STAMP >= oldest {
                return Ok(false);
            }
            used.push(at);
        }
        self.leaving.retain(|at| !used.contains(at));
        let kept = std::mem::take(&mut self.leaving);
        self.leaving = used.iter().copied().filter(|&at| arena.is_dirty(at)).collect();
        self.leaving.iter().for_each(|&at| arena.set_seen(at));
        let written = self.run(arena, &[], oldest);
        self.leaving = kept;
        written?;
        // If some objects could not be written home, the segment stays, with its clean objects.
        if used.iter().any(|&at| arena.word(at) != 0 && arena.is_dirty(at)) {
            return Ok(false);
        }
        for at in used.into_iter().filter(|&at| arena.word(at) != 0) {
            self.left(Word(arena.word(at)), class);
            arena.empty(at, oldest);
            self.free(class, at);
        }
        self.take_away(arena, class, nth);
        Ok(true)
    }

    /// Moves one segment from the class with the fewest bytes gone per segment to the one with the
    /// most. It does so only if they differ by more than a factor of two.
    pub(super) fn share_out(&mut self, arena: &Arena, oldest: u64) {
        self.gone = 0;
        let density = |room: &Room| room.gone / room.len().max(1);
        let with_some = (0..CLASSES).filter(|&index| self.rooms[index].len() > 1);
        let idle = with_some.min_by_key(|&index| density(&self.rooms[index]));
        let busy = (0..CLASSES).max_by_key(|&index| density(&self.rooms[index]));
        if let (Some(idle), Some(busy)) = (idle, busy)
            && density(&self.rooms[busy]) > 2 * density(&self.rooms[idle])
        {
            // A class whose objects cannot leave now keeps its segment.
            let nth = self.rooms[idle].len() - 1;
            if let Ok(true) = self.give_up(arena, Class::new(idle), nth, oldest) {
                self.add(arena, Class::new(busy));
            }
        }
        self.rooms.iter_mut().for_each(|room| room.gone /= 2);
    }

    /// Tells the run what the heap has missed. It may have more segments then, or gives some back.
    pub fn weigh(&mut self, arena: &Arena, oldest: u64) {
        let Some(returns) = &mut self.returns else { return };
        let missed = returns.report();
        let Some(may) = self.share.weigh(missed) else { return };
        let used = self.most - self.left;
        if may >= used {
            (self.most, self.left) = (may.min(self.cap).max(used), may.min(self.cap).saturating_sub(used));
            return;
        }
        let mut asked = 0;
        for _ in 0..(used - may).min(GIVEN) {
            if !self.give_one(arena, oldest, &mut asked) {
                break;
            }
        }
        let used = self.most - self.left;
        self.share.keep(used);
        (self.most, self.left) = (used, 0);
    }

    /// Empties a segment for the run: one of the class with the least turnover for its size. `asked`
    /// counts the segments that this call of [`Evictor::weigh`] has looked at. What a scope holds
    /// stays held while that scope is the oldest. So a segment that was looked at in vain is passed
    /// over until then.
    fn give_one(&mut self, arena: &Arena, oldest: u64, asked: &mut usize) -> bool {
        let density = |room: &Room| room.gone / room.len().max(1);
        let mut classes: Vec<usize> = (0..CLASSES).filter(|&index| self.rooms[index].len() > 1).collect();
        classes.sort_by_key(|&index| density(&self.rooms[index]));
        let all: usize = classes.iter().map(|&index| self.rooms[index].len()).sum();
        // Between scopes, segments that could not be written home are tried again in turn.
        if self.vain.1 != oldest || oldest == NO_SCOPE && self.vain.0 >= all {
            self.vain = (0, oldest);
        }
        let places = classes.iter().flat_map(|&index| (0..self.rooms[index].len()).rev().map(move |nth| (index, nth)));
        let next: Vec<_> = places.skip(self.vain.0).take(ASKED - *asked).collect();
        for (index, nth) in next {
            *asked += 1;
            if matches!(self.give_up(arena, Class::new(index), nth, oldest), Ok(true)) {
                return true;
            }
            self.vain.0 += 1;
        }
        false
    }

    /// Scopes hold all that the heap may have. Gives a class a segment more, if the run says that they
    /// may have it.
    pub(super) fn need(&mut self, arena: &Arena, class: Class) -> bool {
        let used = self.most - self.left;
        let may = self.share.need().min(self.cap);
        if may <= used {
            return false;
        }
        (self.most, self.left) = (may, may - used);
        self.widen(arena, class)
    }
}
