//! Which of an operation's verbs are to be posted, and which wait for their answers.

use super::step::MAX_OUTSTANDING;
use std::collections::VecDeque;

/// Verbs by their numbers in the operation's own list. Answers come in the order of posting.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Pipe {
    ready: VecDeque<u16>,
    posted: VecDeque<u16>,
}

impl Pipe {
    /// Verb `number` is to be posted, perhaps again.
    pub fn push(&mut self, number: usize) {
        self.ready.push_back(number as u16);
    }

    /// Verbs 0 to `count` are to be posted.
    pub fn fill(&mut self, count: usize) {
        self.ready.extend(0..count as u16);
    }

    /// The verb to post now.
    pub fn post(&mut self) -> Option<usize> {
        if self.posted.len() >= MAX_OUTSTANDING {
            return None;
        }
        let number = self.ready.pop_front()?;
        self.posted.push_back(number);
        Some(number as usize)
    }

    /// The verb that an answer is for.
    pub fn answered(&mut self) -> Option<usize> {
        self.posted.pop_front().map(usize::from)
    }

    /// Verbs not yet posted are not to be.
    pub fn stop(&mut self) {
        self.ready.clear();
    }

    /// Of the verbs not yet posted only these are to be.
    pub fn retain(&mut self, mut which: impl FnMut(usize) -> bool) {
        self.ready.retain(|&number| which(number.into()));
    }

    /// Nothing to post and nothing to wait for.
    pub fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.posted.is_empty()
    }
}
