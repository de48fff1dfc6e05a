//! Lots: which owners try a chunk first.
//!
//! Single chunks are claimed when memory is short, by all agents at once, and all want the same few
//! words. So each chunk belongs to one of 16 lots, by its number, and so does each owner. A claim
//! takes the chunks of its own lot in the line that it reads, and at most one of another lot, and
//! that only if its last claim lost no race. So after a lost race a claimer competes only with
//! claimers of its own lot, and with those that found nothing in theirs. Nothing is forbidden: a
//! claim that found nothing of its own lot in all lines is followed by one that takes any chunk.
//! Lots are soft, so they need no word of their own, no recovery, and no trust.

use super::geometry::LINE;
use super::search::Area;
use super::step::Actor;

/// Lots that chunks are dealt out in; every line has as many of each.
const LOTS: u32 = 16;

/// The lot of a chunk. Lines begin with different lots. Otherwise a block that is used from its
/// beginning would lack the same lots in every line.
const fn lot(chunk: u32) -> u32 {
    (chunk + chunk / LINE * 5) % LOTS
}

impl Actor {
    /// The lot that it claims from first.
    fn lot(&self) -> u32 {
        (u32::from(self.owner.slot()) + u32::from(self.claimant.number())) % LOTS
    }
}

/// The FREE chunks of an actor's lot in what was read of them, in an order of the claimant's own.
pub(super) fn own(actor: &Actor, chunks: &Area, start: usize, stride: usize) -> impl Iterator<Item = usize> {
    let (own, first) = (actor.lot(), chunks.first.index);
    chunks.scattered(start, stride).filter(move |&at| own == lot(first + at as u32))
}
