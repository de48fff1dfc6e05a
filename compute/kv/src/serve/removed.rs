//! Marks a store whose region is to be removed, so that no front end goes on in memory without a name.
//!
//! The mark stands in place of the head's magic word, which each front end reads in every tick. One that
//! was stopped ticks before it changes anything. After the mark it answers every command by an error,
//! and ends. One that comes later finds the mark, too.

use crate::layout::{HEAD_BYTES, Kind, MAGIC, NODE_SHIFT, Owner, REMOVED, head, word};
use farmem::{Addr, Memory};

/// Marks the part of a store that one node has. `memory`: the region as that node alone has it. False: it
/// holds no store of this version.
///
/// # Errors
/// The node is lost, or it is not known whether the mark was set: it may be set again.
pub fn mark_removed(memory: &Memory) -> Result<bool, farmem::Error> {
    mark(memory, MAGIC, REMOVED)
}

/// Takes the mark away: the store is not removed after all. Front ends that have seen it have ended.
///
/// # Errors
/// As of [`mark_removed`].
pub fn unmark_removed(memory: &Memory) -> Result<bool, farmem::Error> {
    mark(memory, REMOVED, MAGIC)
}

fn mark(memory: &Memory, from: u64, to: u64) -> Result<bool, farmem::Error> {
    let mut bytes = [0; head::SECRET as usize + 8];
    // The root is the first piece that a store takes of a node.
    for piece in memory.pieces()?.into_iter().filter(|piece| piece.bytes >= HEAD_BYTES) {
        memory.read(piece.at, &mut bytes)?;
        let at = |offset: u64| word(&bytes, offset as usize / 8);
        let is_store = matches!(at(head::MAGIC), MAGIC | REMOVED);
        // An address in the header has the number that the node has in the store, and its pair's first one.
        let place = piece.at.bits() & ((1 << NODE_SHIFT) - 1);
        let is_root = |number: u64| {
            let owner = Owner::of(at(0), at(8), at(head::SECRET), place | number << NODE_SHIFT);
            owner.is_some_and(|owner| owner.kind == Kind::Root)
        };
        if is_store && (0..Addr::MAX_NODES as u64).any(is_root) {
            memory.compare_swap(piece.at + head::MAGIC, from, to)?;
            return Ok(true);
        }
    }
    Ok(false)
}
