//! Seats at a heap, and the free frames that are kept for each ([`crate::shared::pledge`]).

use super::{Core, Ground, Moving, Space};
use crate::class::{CLASSES, Class};
use crate::shared::pledge::share;

impl Core {
    /// Free frames of a class that are not spare. `rest`: those that are left to the first scope.
    pub(super) fn floor_of(&self, class: Class, rest: usize) -> usize {
        rest.max(self.pledges[class.index].all())
    }

    /// Frames of a class that are kept for each seat, if the class has this many segments.
    pub(super) fn share(&self, class: Class, segments: usize) -> usize {
        share(segments * class.frames(), self.seats.iter().filter(|&&is_taken| is_taken).count())
    }

    /// Whether a seat has less than its share of a class.
    pub fn is_low(&self, class: Class, slot: usize) -> bool {
        self.pledges[class.index].of(slot) < self.share(class, self.rooms[class.index].len())
    }

    /// Fills the shares of a seat that has no open scope. Objects that leave are added to `moving`.
    pub fn settle(&mut self, on: Ground<'_>, slot: usize, moving: &mut Moving) -> Space {
        for class in (0..CLASSES).map(Class::new) {
            loop {
                let room = &self.rooms[class.index];
                let (want, free) = (self.share(class, room.len()), room.free());
                if self.pledges[class.index].raise(slot, want, free) {
                    break;
                }
                if self.widen(on, class) {
                    continue;
                }
                let short = want - self.pledges[class.index].of(slot);
                let before = self.progress(class, moving);
                let first = on.epochs.first(self.seats.len());
                self.prepare(on, class, short);
                let oldest = on.epochs.oldest(self.seats.len());
                self.take_cold(on, class, (self.pledges[class.index].all() + short, oldest), moving);
                if !moving.writes.is_empty() {
                    return Space::After;
                }
                if before == self.progress(class, moving) {
                    return Space::Held(first);
                }
            }
        }
        Space::Is
    }

    /// A seat is taken. Idle ones leave it its shares.
    pub fn sit(&mut self, on: Ground<'_>, slot: usize) {
        self.seats.resize(self.seats.len().max(slot + 1), false);
        self.seats[slot] = true;
        for class in (0..CLASSES).map(Class::new) {
            self.cut(on, class, self.rooms[class.index].len());
        }
    }

    /// A seat is free again.
    pub fn rise(&mut self, slot: usize) {
        self.seats[slot] = false;
        self.pledges.iter_mut().for_each(|pledge| pledge.cut(slot, 0));
    }

    /// Cuts shares of seats without a scope to what a class of this many segments has for each. A
    /// seat that opens one meanwhile begins with that.
    pub(super) fn cut(&mut self, on: Ground<'_>, class: Class, segments: usize) {
        let most = self.share(class, segments);
        for slot in (0..self.seats.len()).filter(|&slot| !on.epochs.is_open(slot)) {
            self.pledges[class.index].cut(slot, most);
        }
    }
}
