//! Where verbs go, and what is noted of one under way.

use crate::layout::NODE_SHIFT;
use crate::task::Verb;
use farmem::Addr;

/// A verb under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tag {
    pub batch: u64,
    /// Which of the batch.
    pub place: u32,
    pub node: u8,
    /// It is a [`Verb::WriteFrom`].
    pub lent: bool,
}

/// The number of the node that a verb goes to.
pub(super) fn node_of(verb: &Verb) -> u8 {
    match *verb {
        Verb::Read { at, .. }
        | Verb::Write { at, .. }
        | Verb::WriteFrom { at, .. }
        | Verb::Cas { at, .. }
        | Verb::Claim { at, .. }
        | Verb::Free { at } => (at >> NODE_SHIFT) as u8,
        Verb::Alloc { node, .. } | Verb::Pieces { node } | Verb::Expel { node, .. } | Verb::Doubt { node } => node,
    }
}

pub(super) fn is_posted(verb: &Verb) -> bool {
    matches!(verb, Verb::Read { .. } | Verb::Cas { .. }) || verb.is_write()
}

/// The same place at another node.
pub(super) fn moved(at: u64, node: usize) -> u64 {
    (node as u64) << NODE_SHIFT | at & ((1 << NODE_SHIFT) - 1)
}

pub(super) fn address(at: u64, node: usize) -> Addr {
    Addr::from_bits(moved(at, node)).unwrap_or(Addr::NULL)
}
