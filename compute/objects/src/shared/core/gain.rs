//! The gain of a heap by its share of its run's local memory. It tells the run, and gets more or gives
//! some back, as a heap of one thread does ([`crate::evict`]).

use super::{Core, Ground, Moving};
use crate::class::{CLASSES, Class, SEGMENT};
use crate::evict::Returns;
use crate::homes::Home;
use crate::rooms::Room;
use crate::word::Word;
use std::time::Duration;

/// Segments that a heap gives back at a look, at most.
const GIVEN: usize = 16;

/// Counts for the run.
pub struct Gain {
    returns: Returns,
    /// The most segments that the heap may ever have.
    cap: usize,
    /// Segments that it still has to give.
    due: usize,
}

impl Gain {
    pub fn new(cap: usize) -> Gain {
        // An eighth of the run's local memory, of which `cap` is three quarters.
        Gain { returns: Returns::new((cap * SEGMENT / 6) as u64), cap, due: 0 }
    }
}

impl Core {
    /// An object leaves for others.
    pub(super) fn left_for_others(&mut self, word: Word, class: Class) {
        if let Some(gain) = &mut self.gain {
            gain.returns.left(word.home(), class.stride);
        }
    }

    /// An object comes in because it is used.
    pub fn missed(&mut self, home: Home, class: Class) {
        if let Some(gain) = &mut self.gain {
            gain.returns.came(home, class.stride);
        }
    }

    /// A fetch of this many objects took this long.
    pub fn took(&mut self, objects: usize, time: Duration) {
        if let Some(gain) = self.gain.as_mut().filter(|_| objects > 0) {
            gain.returns.took(objects, time);
        }
    }

    /// Tells the run what the heap has missed, if that is enough for a report.
    pub(super) fn weigh_if_due(&mut self, on: Ground<'_>) {
        if self.gain.as_ref().is_some_and(|gain| gain.returns.is_due()) {
            self.weigh(on);
        }
    }

    /// A step of giving back what the run's pages gain more by. Objects that leave are added to
    /// `moving`.
    pub fn look(&mut self, on: Ground<'_>, moving: &mut Moving) {
        self.weigh(on);
        self.go_on_closing(on, on.epochs.oldest(self.seats.len()), moving);
    }

    /// Tells the run what the heap has missed. It may have more segments then, or has to give some.
    fn weigh(&mut self, on: Ground<'_>) {
        let used = self.used();
        let Some(gain) = &mut self.gain else { return };
        let Some(may) = on.share().weigh(gain.returns.report()) else { return };
        gain.due = used.saturating_sub(may).min(GIVEN);
        let most = may.min(gain.cap).max(used);
        (self.most, self.left) = (most, most - used);
        self.begin_giving(on);
    }

    /// Begins to empty a segment for the run: one of the class with the least turnover for its size.
    fn begin_giving(&mut self, on: Ground<'_>) {
        if self.closing.is_some() || self.gain.as_ref().is_none_or(|gain| gain.due == 0) {
            return;
        }
        let density = |room: &Room| room.gone / room.len().max(1);
        let with_some = (0..CLASSES).filter(|&index| self.rooms[index].len() > 1);
        if let Some(idle) = with_some.min_by_key(|&index| density(&self.rooms[index])) {
            self.begin_closing(on, idle);
        }
    }

    /// A segment is nobody's any more: the run gets it, if it is to have one.
    pub(super) fn give(&mut self, on: Ground<'_>) {
        if let Some(gain) = self.gain.as_mut().filter(|gain| gain.due > 0) {
            gain.due -= 1;
            (self.most, self.left) = (self.most - 1, self.left - 1);
            on.share().keep(self.used());
            self.begin_giving(on);
        }
    }

    /// Scopes hold all that the heap may have. Gives a class a segment more, if the run says that
    /// scopes may have it.
    pub(super) fn need(&mut self, on: Ground<'_>, class: Class) -> bool {
        let used = self.used();
        let Some(gain) = &mut self.gain else { return false };
        let may = on.share().need().min(gain.cap);
        if may <= used {
            return false;
        }
        gain.due = 0;
        (self.most, self.left) = (may, may - used);
        self.widen(on, class)
    }
}
