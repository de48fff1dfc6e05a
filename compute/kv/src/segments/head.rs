//! A head's bytes.
//!
//! ```text
//!  0  type │ stored, derived or new │ …     8  segments of the first side │ of the second (4 each)    16  dropped
//! 24  entries: place │ checksum │ bound │ items │ bytes (8, 8, 8, 4, 4)
//!     of what is not written yet: segments whose place is 0, then places and bytes that are dropped (8 each)
//! ```

use super::{Part, Source, Working, cache::Segments};
use crate::layout::{At, MAX_OBJECT, NODE_SHIFT, word};
use crate::object::{HEADER, Object, Type};
use std::rc::Rc;

/// Bytes of a head before its entries, of each entry, and of each place that is not listed any
/// more.
const HEAD: usize = 24;
const ENTRY: usize = 32;
const DROPPED: usize = 16;
/// A head's second byte: it is written; it is to go in place of the head whose places it has
/// dropped; it is new.
const STORED: u8 = 2;
const DERIVED: u8 = 1;
const NEW: u8 = 0;

/// The type of the value that an object has, which may be in segments.
pub fn type_of(object: &Object) -> Type {
    match object.kind() {
        Type::Parts => object.value().first().and_then(|&byte| Type::of(byte)).unwrap_or(Type::Parts),
        kind => kind,
    }
}

/// The places that a head lists, and the bytes of each segment's object.
pub(crate) fn listed(head: &Object, node: u8) -> Vec<(At, u32, u64)> {
    let (bytes, node) = (head.value(), u64::from(node) << NODE_SHIFT);
    if head.kind() != Type::Parts || bytes.len() < HEAD {
        return Vec::new();
    }
    let entries = bytes[HEAD..].chunks_exact(ENTRY).take(entries(bytes));
    let place = |entry: &[u8]| (node | word(entry, 0), HEADER as u32 + (word(entry, 3) >> 32) as u32, word(entry, 1));
    entries.filter(|entry| word(entry, 0) != 0).map(place).collect()
}

fn entries(head: &[u8]) -> usize {
    let counts = word(head, 1);
    (counts as u32 as usize).saturating_add((counts >> 32) as usize)
}

/// Bytes of a value that is in segments, as one object would have it.
pub(crate) fn len(head: &Object) -> u64 {
    let entries = head.value().get(HEAD..).unwrap_or_default().chunks_exact(ENTRY);
    entries.take(word(head.value(), 1) as u32 as usize).map(|entry| word(entry, 3) >> 32).sum()
}

/// Bytes of the objects of a value that is in segments.
pub(crate) fn taken(head: &Object) -> u64 {
    u64::from(head.len()) + listed(head, 0).into_iter().map(|(_, len, _)| u64::from(len)).sum::<u64>()
}

/// The places that a head lists.
pub(crate) fn places(head: &Object, node: u8) -> impl Iterator<Item = At> {
    listed(head, node).into_iter().map(|(at, ..)| at)
}

impl<'a> Working<'a> {
    /// A value by its head, or by what commands have made of it. `None`: it is none.
    pub fn of(segments: &'a Segments, node: u8, object: &Object) -> Option<Working<'a>> {
        if object.kind() != Type::Parts {
            return None;
        }
        Working::decode(segments, node, object.value())
    }

    pub(crate) fn decode(segments: &'a Segments, node: u8, bytes: &[u8]) -> Option<Working<'a>> {
        let node = u64::from(node) << NODE_SHIFT;
        let (kind, derived) = (Type::of(*bytes.first()?)?, *bytes.get(1)? != NEW);
        let (count, first, gone) = (entries(bytes), word(bytes, 1) as u32 as usize, word(bytes, 2) as usize);
        let mut inline = bytes.get(HEAD + count.checked_mul(ENTRY)?..)?;
        let mut sides = [Vec::with_capacity(first), Vec::with_capacity(count - first)];
        for (n, entry) in bytes[HEAD..].chunks_exact(ENTRY).take(count).enumerate() {
            let [place, checksum, bound, sizes] = [0, 1, 2, 3].map(|n| word(entry, n));
            let (count, len) = (sizes as u32, (sizes >> 32) as u32);
            // Lengths are what a node says: room is made for no more than this store writes.
            if place != 0 && u64::from(len) > MAX_OBJECT {
                return None;
            }
            let source = if place == 0 {
                let (own, rest) = inline.split_at_checked(len as usize)?;
                inline = rest;
                Source::Fresh(Rc::new(own.to_vec()))
            } else {
                Source::Stored(node | place, checksum)
            };
            sides[usize::from(n >= first)].push(Part { count, len, bound, source });
        }
        if inline.len() != gone.checked_mul(DROPPED)? {
            return None;
        }
        let dropped = inline.chunks_exact(DROPPED).map(|one| (word(one, 0), word(one, 1) as u32)).collect();
        Some(Working { segments, kind, sides, dropped, derived, changed: false })
    }

    /// As bytes: those of a head, with the segments that are not written yet, and the places that
    /// are not listed any more.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        let is_stored = self.dropped.is_empty() && self.fresh().next().is_none();
        (bytes[0], bytes[1]) = (self.kind as u8, if self.derived { DERIVED } else { NEW });
        bytes[1] = if is_stored { STORED } else { bytes[1] };
        let counts = self.sides[0].len() as u64 | (self.sides[1].len() as u64) << 32;
        bytes[8..16].copy_from_slice(&counts.to_le_bytes());
        bytes[16..24].copy_from_slice(&(self.dropped.len() as u64).to_le_bytes());
        for part in self.sides.iter().flatten() {
            let (place, checksum) = match part.source {
                Source::Stored(at, checksum) => (at & ((1 << NODE_SHIFT) - 1), checksum),
                Source::Fresh(_) => (0, 0),
            };
            let sizes = u64::from(part.count) | u64::from(part.len) << 32;
            bytes.extend([place, checksum, part.bound, sizes].map(u64::to_le_bytes).as_flattened());
        }
        for part in self.sides.iter().flatten() {
            if let Source::Fresh(fresh) = &part.source {
                bytes.extend_from_slice(fresh);
            }
        }
        for &(at, len) in &self.dropped {
            bytes.extend([at, u64::from(len)].map(u64::to_le_bytes).as_flattened());
        }
        bytes
    }
}
