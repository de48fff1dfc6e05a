//! Brings the first node to what the second has decided.

use super::{Copies, Mode, Words, on};
use crate::layout::{At, HEAD_BYTES, LARGE, LARGE_FIRST, MAX_OBJECT, Slot, class_bytes, head};
use crate::object::Header;
use crate::rules::{Bug, Rules};
use crate::task::{Answer, Io, Verb};
use std::rc::Rc;

impl Copies {
    pub(super) async fn word(&self, io: &Io, node: u8, at: At) -> Option<u64> {
        match io.verb(Verb::Read { at: on(node, at), len: 8 }).await {
            Answer::Bytes(bytes) => Some(crate::layout::word(&bytes, 0)),
            Answer::Lost => {
                self.ended(node);
                self.gate(io).await;
                None
            }
            _ => None,
        }
    }

    /// Whether both nodes have the same words, once what was decided shows.
    pub(crate) async fn agree(&self, io: &Io, words: &[At]) -> bool {
        for &at in words {
            while let Mode::Both(second) = self.mode.get() {
                let (first, other) = (self.word(io, self.first, at).await, self.word(io, second, at).await);
                match (first, other) {
                    (Some(first), Some(other)) if first == other => break,
                    // Nothing shows before it is decided.
                    (Some(0), Some(_)) => self.settle(io, Rules::SOUND, Words::Index, at).await,
                    (Some(_), Some(_)) => return false,
                    _ => {}
                }
            }
        }
        true
    }

    /// Brings a word at the first node to what the second has decided.
    pub(crate) async fn settle(&self, io: &Io, rules: Rules, words: Words, at: At) {
        while let Mode::Both(second) = self.mode.get() {
            let (first, decided, mut marked);
            marked = None;
            if rules.broken(Bug::HelpBackwards) {
                decided = self.word(io, second, at).await;
                first = self.word(io, self.first, at).await;
            } else {
                // Two round trips: the second look is after the first for certain, and after any
                // end of a node that the first has seen a consequence of.
                first = self.word(io, self.first, at).await;
                decided = self.word(io, second, at).await;
                if first != decided && self.root.get() != 0 {
                    // After the look at the first node: if nobody goes on with it alone yet, nobody
                    // had done so then.
                    marked = self.word(io, self.first, self.root.get() + head::PAIR).await;
                }
            }
            let (Some(old), Some(new)) = (first, decided) else { continue };
            if self.is_left(io, marked).await {
                continue;
            }
            if old == new {
                return;
            }
            let may_lack = words == Words::Index && self.is_slot(at, old) && !rules.broken(Bug::ShowBare);
            if may_lack && !self.complete(io, second, Slot(new)).await {
                continue;
            }
            if io.verb(Verb::Cas { at: on(self.first, at), old, new }).await == Answer::Lost {
                self.ended(self.first);
                self.gate(io).await;
            }
        }
    }

    /// Whether a word of the index that was `old` is a slot whose new object may be missing at the
    /// first node. A slot that was empty gets an insert's object, which both have before it. Forward
    /// words were 0, too, and words of the head are told by their place.
    fn is_slot(&self, at: At, old: u64) -> bool {
        let in_head = at.checked_sub(self.root.get()).is_some_and(|offset| offset < HEAD_BYTES);
        Slot(old).is_used() && !in_head
    }

    /// Copies the object of a slot that the second node has decided to the first, if it lacks it.
    /// False: a node has ended.
    async fn complete(&self, io: &Io, second: u8, slot: Slot) -> bool {
        // Both nodes have a lock before it is put into a slot.
        if !slot.is_used() || slot.is_locked() {
            return true;
        }
        let (at, mut from, mut len) = (slot.at(self.first), 0, class_bytes(slot.class()) as u32);
        loop {
            let range = at + u64::from(from);
            let read = [second, self.first].map(|node| Verb::Read { at: on(node, range), len });
            let answers = io.verbs(read.into()).await;
            if let Some(lost) = answers.iter().position(|answer| *answer == Answer::Lost) {
                self.ended(if lost == 0 { second } else { self.first });
                self.gate(io).await;
                return false;
            }
            let [Answer::Bytes(decided), Answer::Bytes(shown)] = &answers[..] else { continue };
            if decided != shown {
                io.verb(Verb::Write { at: range, bytes: Rc::new(decided.clone()) }).await;
            }
            let whole = Header::peek(decided).map_or(0, |header| header.len);
            if slot.class() != LARGE || from > 0 || !(u64::from(LARGE_FIRST) + 1..=MAX_OBJECT).contains(&whole) {
                return true;
            }
            (from, len) = (LARGE_FIRST, whole as u32 - LARGE_FIRST);
        }
    }

    /// READ at the second node, which has the bytes of every object that was decided for. A relink's
    /// WRITE may not have come to the first node. `None`: one node has the shard.
    pub(crate) async fn decided(&self, io: &Io, at: At, len: u32) -> Option<Vec<u8>> {
        let Mode::Both(second) = self.mode.get() else { return None };
        match io.verb(Verb::Read { at: on(second, at), len }).await {
            Answer::Bytes(bytes) => Some(bytes),
            Answer::Lost => {
                self.ended(second);
                self.gate(io).await;
                None
            }
            _ => None,
        }
    }

    /// The words of ranges in which the nodes differ. Once these are settled, the first node's words
    /// tell whether an object is live.
    pub(crate) async fn differing(&self, io: &Io, rules: Rules, ranges: &[(At, u32)]) -> Vec<At> {
        let mut words = Vec::new();
        let Mode::Both(second) = self.mode.get() else { return words };
        if rules.broken(Bug::JudgeByFirst) {
            return words;
        }
        let read = |node: u8| ranges.iter().map(|&(at, len)| Verb::Read { at: on(node, at), len }).collect();
        let first = io.verbs(read(self.first)).await;
        let other = io.verbs(read(second)).await;
        for (node, answers) in [(self.first, &first), (second, &other)] {
            if answers.contains(&Answer::Lost) {
                self.ended(node);
                self.gate(io).await;
                return words;
            }
        }
        for ((&(at, len), one), other) in ranges.iter().zip(first).zip(other) {
            let (Answer::Bytes(one), Answer::Bytes(other)) = (one, other) else { continue };
            let word = crate::layout::word;
            let differ = (0..len as usize / 8).filter(|&n| word(&one, n) != word(&other, n));
            words.extend(differ.map(|n| at + n as u64 * 8));
        }
        words
    }
}
