//! Objects that are on their way while the thread works.

use super::Inner;
use crate::scope::NO_SCOPE;
use crate::space::At;
use crate::word::{STAMP, Word};
use crate::{Far, FarBox};

/// Polls of the loads of a join that share one look at what has arrived.
const POLLS: usize = 8;

impl Inner {
    /// Posts the arrival of those that are away.
    pub fn post<T: Far>(&self, boxes: &[&FarBox<T>]) {
        let class = FarBox::<T>::CLASS;
        let is_away = |one: &&&FarBox<T>| {
            let word = self.arena.word(self.arena.of_word(class, one.word()));
            word != one.word().0 && word != !one.word().0
        };
        let mut away: Vec<&FarBox<T>> = boxes.iter().filter(is_away).copied().collect();
        away.sort_unstable_by_key(|one| one.word().home().0);
        away.dedup_by_key(|one| one.word().home().0);
        if !away.is_empty() {
            let words: Vec<Word> = away.iter().map(|one| one.word()).collect();
            let when = (class, self.clock.get() << STAMP, self.oldest());
            let tell = |n: usize, word| away[n].set_word(word);
            let mut evictor = self.evictor.borrow_mut();
            if self.is_mapped {
                // A copy is done at once. A caller that needs the bytes is told of a failure.
                let _ = evictor.fetch(&self.arena, when, &words, tell);
            } else {
                evictor.post(&self.arena, when, &words, tell);
            }
        }
    }

    /// Whether an object is on its way to a box, for a scope with this mark. Posts its arrival if it is
    /// away, and was not posted before. False: it is here, or it has not come, or there is no frame
    /// for it.
    pub fn begin_load<T: Far>(&self, one: &FarBox<T>, mark: u64, is_posted: bool) -> bool {
        let class = FarBox::<T>::CLASS;
        let evictor = &mut *self.evictor.borrow_mut();
        if is_posted && self.is_due() {
            evictor.settle(&self.arena, false);
        }
        let (at, word) = (self.arena.of_word(class, one.word()), one.word());
        let found = self.arena.word(at);
        if found == word.0 {
            return false;
        }
        if found != !word.0 {
            // A copy from memory that is mapped is done at once.
            if is_posted || self.is_mapped {
                return false;
            }
            let posted = evictor.post_one(&self.arena, (class, mark, self.oldest()), word);
            return posted.inspect(|&word| one.set_word(word)).is_some();
        }
        true
    }

    /// Whether this poll of a load takes arrivals in, and sends what was posted. That is a system call,
    /// of which the open tasks of a join share one. Another executor within a task of a join comes to
    /// the next such poll by its own polls.
    fn is_due(&self) -> bool {
        let polls = self.polls.replace(self.polls.get().wrapping_add(1));
        !self.joins.get() || polls.is_multiple_of(POLLS)
    }

    /// Whether [`Heap::join`] runs tasks. Returns what was before.
    ///
    /// [`Heap::join`]: crate::Heap::join
    pub fn set_joins(&self, joins: bool) -> bool {
        self.joins.replace(joins)
    }

    /// Waits until one of the arrivals that are under way has ended. False: there is none.
    pub fn await_one(&self) -> bool {
        let evictor = &mut *self.evictor.borrow_mut();
        let is_one = evictor.posted() > 0;
        evictor.settle(&self.arena, true);
        is_one
    }

    /// Waits until an object that is on its way to a frame has come, or has not.
    pub fn settle(&self, at: At, word: Word) {
        if self.arena.word(at) == !word.0 {
            let evictor = &mut *self.evictor.borrow_mut();
            while self.arena.word(at) == !word.0 && evictor.posted() > 0 {
                evictor.settle(&self.arena, true);
            }
        }
    }

    /// Whether open scopes hold more than a quarter of local memory, by a sample.
    pub fn is_crowded(&self) -> bool {
        let oldest = self.oldest();
        oldest != NO_SCOPE && self.evictor.borrow().is_crowded(&self.arena, oldest)
    }
}
