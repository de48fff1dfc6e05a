//! The order in which one front end's commands change keys that a command on several keys changes.
//!
//! Such a command takes effect only if none of its keys changes between its look and its locks. Beside
//! other clients' changes of the same keys it might never come to that. So commands on several keys go
//! one after the other where they have a key in common, in the order in which they came. A command that
//! changes one of these keys alone takes its place in the same order. Commands of other front ends are
//! met by the locks ([`crate::atomic`]), one at a time of each front end.

use crate::layout::Hash;
use crate::task::Io;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

/// The earlier ones that are counted at most: a later one looks seldom.
const COUNTED: usize = 128;
/// Of so many the next ones look in every turn of the event loop, and others a millisecond later for each
/// so many before them.
const NEAR: usize = 8;

/// Commands that have a turn, or wait for it: for the hash of each key their places, in order. So a look
/// costs no more where many wait for many other keys.
#[derive(Debug, Default)]
pub struct InTurn {
    next: Cell<u64>,
    queues: RefCell<BTreeMap<u64, VecDeque<u64>>>,
}

/// A place in the order, and the hashes of its keys. Another one's turn comes when it is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    order: &'a InTurn,
    place: u64,
    hashes: Vec<u64>,
}

impl InTurn {
    /// Waits for the turn of a command that changes these keys.
    pub async fn come<'k>(&self, io: &Io, keys: impl Iterator<Item = &'k [u8]>) -> Turn<'_> {
        let mut hashes: Vec<u64> = keys.map(|key| Hash::of(key).0).collect();
        hashes.sort_unstable();
        hashes.dedup();
        let place = self.next.replace(self.next.get() + 1);
        for &hash in &hashes {
            self.queues.borrow_mut().entry(hash).or_default().push_back(place);
        }
        let turn = Turn { order: self, place, hashes };
        // A place that is the first of a queue stays that: later ones go behind it.
        let mut first = 0;
        while let Some(&hash) = turn.hashes.get(first) {
            match turn.before(hash) {
                0 => first += 1,
                n => io.pause((n / NEAR) as u32).await,
            }
        }
        turn
    }

    /// Whether no command on several keys has this one, or waits for it.
    pub fn is_free(&self, key: &[u8]) -> bool {
        let queues = self.queues.borrow();
        queues.is_empty() || !queues.contains_key(&Hash::of(key).0)
    }

    /// The turn of a command that changes one key. `None`: no command on several keys has it.
    pub async fn for_one(&self, io: &Io, key: &[u8]) -> Option<Turn<'_>> {
        if self.is_free(key) {
            return None;
        }
        Some(Box::pin(self.come(io, std::iter::once(key))).await)
    }
}

impl Turn<'_> {
    /// How many earlier ones have this key.
    fn before(&self, hash: u64) -> usize {
        let queues = self.order.queues.borrow();
        let Some(queue) = queues.get(&hash) else { return 0 };
        queue.iter().take(COUNTED).position(|&place| place == self.place).unwrap_or(COUNTED)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queues = self.order.queues.borrow_mut();
        for hash in &self.hashes {
            let Some(queue) = queues.get_mut(hash) else { continue };
            match queue.front() {
                Some(&first) if first == self.place => _ = queue.pop_front(),
                // It has given up before its turn came.
                _ => queue.retain(|&place| place != self.place),
            }
            if queue.is_empty() {
                queues.remove(hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Task;
    use std::rc::Rc;

    #[test]
    fn turns_come_in_order_where_keys_are_the_same() {
        let (turns, log) = (Rc::new(InTurn::default()), Rc::new(RefCell::new(Vec::new())));
        let begin = |name: char, keys: &'static [&'static str]| {
            let (turns, log) = (Rc::clone(&turns), Rc::clone(&log));
            let mut task = Task::new(move |io| async move {
                let _turn = turns.come(&io, keys.iter().map(|key| key.as_bytes())).await;
                log.borrow_mut().push(name);
                io.pause(1).await;
            });
            assert!(task.step().is_none());
            task
        };
        let mut all = [("a", &["k", "l"][..]), ("b", &["l", "m"]), ("c", &["n"]), ("d", &["k"]), ("e", &["m", "k"])]
            .map(|(name, keys)| begin(name.chars().next().unwrap_or(' '), keys))
            .map(Some);
        // Those without a key in common do not wait.
        assert_eq!(*log.borrow(), ['a', 'c']);
        for _ in 0..100 {
            for place in &mut all {
                let Some(task) = place else { continue };
                task.asks().into_iter().for_each(|(id, _)| task.answer(id, Vec::new()));
                if task.step().is_some() {
                    *place = None;
                }
            }
        }
        assert_eq!(*log.borrow(), ['a', 'c', 'b', 'd', 'e']);
        assert!(turns.queues.borrow().is_empty());
        let mut alone = Task::new(|io| async move { turns.for_one(&io, b"k").await.is_none() });
        assert_eq!(alone.step(), Some(true));
    }
}
