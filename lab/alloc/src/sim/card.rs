//! Words of a real node in the place of simulated ones: an allocator's verbs are carried out by a card.
//!
//! Its user runs each operation by [`World::at_once`](super::clock::World::at_once). Nothing takes virtual time then.
//! What the node's core does beside clients is not started.

use super::node::{At, Node};

/// A card that carries verbs out on words of a real node, one after the other, before it returns.
pub trait Card {
    /// READ.
    fn read(&mut self, at: At, words: &mut [u64]);
    /// WRITE.
    fn write(&mut self, at: At, words: &[u64]);
    /// CAS. The word that was there.
    fn cas(&mut self, at: At, expected: u64, word: u64) -> u64;
    /// FAA. The word that was there.
    fn faa(&mut self, at: At, add: u64) -> u64;
}

impl Node {
    /// Writes the words to a real node by its card. From now on they are there: verbs and single words go
    /// to the card, in a world that is instant. [`Node::local`] does not.
    pub fn attach(&self, mut card: Box<dyn Card>) {
        card.write(0, &self.words.borrow());
        self.world.set_instant(true);
        *self.card.borrow_mut() = Some(card);
    }

    /// What the card does, if there is one.
    pub(super) fn on_card<R>(&self, what: impl FnOnce(&mut dyn Card) -> R) -> Option<R> {
        let mut card = self.card.borrow_mut();
        Some(what(card.as_deref_mut()?))
    }

    /// Sets a word without a posted verb, as [`Node::local`].
    pub fn set(&self, at: At, word: u64) {
        if self.on_card(|card| card.write(at, &[word])).is_none() {
            self.local(|words| words[at] = word);
        }
    }

    /// Adds one to a word without a posted verb. The word that was there.
    pub fn bump(&self, at: At) -> u64 {
        let bump = |words: &mut [u64]| {
            words[at] += 1;
            words[at] - 1
        };
        self.on_card(|card| card.faa(at, 1)).unwrap_or_else(|| self.local(bump))
    }

    /// A word as it is now, without a verb: for the checker.
    pub fn peek(&self, at: At) -> u64 {
        let read = |card: &mut dyn Card| {
            let mut word = [0];
            card.read(at, &mut word);
            word[0]
        };
        self.on_card(read).unwrap_or_else(|| self.words.borrow()[at])
    }
}
