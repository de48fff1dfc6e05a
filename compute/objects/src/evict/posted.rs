//! Arrivals that are posted: objects on their way while the thread works.

use super::Evictor;
use crate::class::Class;
use crate::frames::Arena;
use crate::space::At;
use crate::way::Way;
use crate::word::Word;
use std::time::Duration;

/// How long to sleep for an arrival before looking whether the node is lost.
const PATIENCE: Duration = Duration::from_secs(1);

impl<W: Way> Evictor<W> {
    /// Fetches objects ahead: posts their arrivals, and does not wait. Leaves out those for which
    /// there is no frame.
    pub fn post(
        &mut self,
        arena: &Arena,
        (class, mark, oldest): (Class, u64, u64),
        away: &[Word],
        mut tell: impl FnMut(usize, Word),
    ) {
        for (n, word) in away.iter().enumerate() {
            match self.post_one(arena, (class, mark, oldest), *word) {
                Some(word) => tell(n, word),
                None => break,
            }
        }
        self.send();
    }

    /// Posts the arrival of one object, which [`Evictor::settle`] sends with others. Returns the
    /// box's new word. `None`: there is no frame for it, or it is another heap's.
    pub fn post_one(&mut self, arena: &Arena, (class, mark, oldest): (Class, u64, u64), word: Word) -> Option<Word> {
        let home = self.homes.addr(word.home())?;
        let at = self.frame(arena, class, oldest).ok()?;
        let word = Word::new(at.units(class), word.home());
        // Without SEEN: the hand spares the object once, because it has not been used yet.
        arena.give(at, word, mark);
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.resize(class.payload, 0);
        self.way.post_read(at.tag(), home, buffer);
        (self.posted, self.unsent) = (self.posted + 1, true);
        Some(word)
    }

    /// Sends what was posted.
    fn send(&mut self) {
        if std::mem::take(&mut self.unsent) {
            self.way.ring();
        }
    }

    /// Posted arrivals that are under way.
    pub fn posted(&self) -> usize {
        self.posted
    }

    /// Takes in the posted arrivals that have ended. With `wait` it waits for one if any is under
    /// way.
    pub fn settle(&mut self, arena: &Arena, wait: bool) {
        if self.posted == 0 {
            return;
        }
        self.send();
        let mut ended: Vec<(At, bool)> = Vec::new();
        let (posted, buffers) = (&mut self.posted, &mut self.buffers);
        self.way.ended(wait.then_some(PATIENCE), |tag, is_there, buffer| {
            *posted -= 1;
            let Some(at) = At::of_tag(tag) else { return };
            // An error is not reported here: the next use fetches the object again, and returns the
            // error.
            if is_there {
                arena.fill(at, &buffer);
            }
            ended.push((at, is_there));
            buffers.push(buffer);
        });
        ended.into_iter().for_each(|(at, is_there)| self.came(arena, at, is_there));
    }
}
