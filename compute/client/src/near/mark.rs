//! Marking: which objects of an arena can be reached, found by the node that has them.
//!
//! All state of a marking lies in the caller's memory at the node
//! ([`farmem_protocol::near::mark`]). So a caller can post several calls at once: each
//! goes on where the one before stopped. There is no way by verbs here: a caller whose node refuses reads its objects
//! and marks them itself.

use super::{Call, Function, Near, Reply};
use crate::{Addr, Error, Result};
use farmem_protocol::near::{MAX_HOPS, Mark};

pub use farmem_protocol::near::Marked;
pub use farmem_protocol::near::mark::{
    ENTRY, Entry, Head, LINK, Lies, REPORTS_AT, Report, STACK, STACK_AT, bitmap, named, word,
};

/// Calls of a marking that are under way together.
const TOGETHER: usize = 16;

/// A marking at one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marking {
    /// An [`Entry`] for each block of the arena.
    pub directory: Addr,
    /// Entries.
    pub blocks: u32,
    /// A [`Head`], a stack and reports.
    pub work: Addr,
    /// Bytes of an object.
    pub stride: u16,
    /// Reports that there is room for.
    pub room: u32,
}

impl Marking {
    /// Bytes of a work range with room for this many reports.
    pub fn work(room: u32) -> u64 {
        Mark { stride: 0, room, steps: 0 }.work()
    }
}

impl Near<'_> {
    /// An entry of a directory: a block of `slots` slots of `stride` bytes, and its bits, which
    /// both lie at one node. An address that is not needed may be null.
    ///
    /// # Errors
    /// As [`crate::Lane::read`].
    pub fn entry(&mut self, (block, bits): (Addr, Addr), slots: u32, stride: u16, lies: Lies) -> Result<Entry> {
        let mut range = |at: Addr, len| (!at.is_null()).then(|| self.range(at, len)).transpose();
        let block = range(block, u64::from(slots) * u64::from(stride))?;
        Ok(Entry::new(block, range(bits, 2 * bitmap(slots))?, slots, lies))
    }

    /// Goes on with markings, at different nodes, by one round trip. Returns the state of each;
    /// `scanned` is of this round. `None` for one that its node did not go on with: its state means
    /// nothing any more.
    ///
    /// # Errors
    /// As [`crate::Lane::read`].
    pub fn mark(&mut self, markings: &[Marking]) -> Result<Vec<Option<Marked>>> {
        let mut calls = Vec::with_capacity(markings.len() * TOGETHER);
        for marking in markings {
            let mark = Mark { stride: marking.stride, room: marking.room, steps: MAX_HOPS };
            let source = self.range(marking.directory, ENTRY * u64::from(marking.blocks))?;
            let call = Call { source, list: self.range(marking.work, mark.work())?, function: Function::Mark(mark) };
            call.check().map_err(|_| Error::Size(source.len))?;
            calls.extend([(marking.directory.node(), call); TOGETHER]);
        }
        let replies = self.compute(&calls)?;
        let together = |replies: &[Option<Reply>]| {
            let mut scanned = 0;
            for reply in replies {
                let Some(Reply::Marked(marked)) = reply else { return None };
                scanned += marked.scanned;
                if replies.last().is_some_and(|last| std::ptr::eq(last, reply)) {
                    return Some(Marked { scanned, ..*marked });
                }
            }
            None
        };
        Ok(replies.chunks(TOGETHER).map(together).collect())
    }
}
