//! Lots: whose a chunk is first of all.
//!
//! Single chunks are claimed when memory is short, by all agents at once, and all want the same few
//! words. So each chunk belongs to one of 16 lots, by its number, and so does each owner. A claim
//! takes the chunks of its own lot in the line that it reads, and at most one of another lot, and
//! that only if its last claim lost no race. So a claimer that lost a race meets only those of its
//! own lot next, and those that found nothing in theirs. Nothing is forbidden: a claim that found
//! nothing of its own lot in all lines is followed by one that takes any chunk. Lots are soft, so
//! they need no word of their own, no recovery, and no trust.

use super::geometry::LINE;
use super::search::Area;
use super::step::Actor;

/// Lots that chunks are dealt out in; every line has as many of each.
const LOTS: u32 = 16;

/// Which lot a chunk is of. (Lines begin with different ones, lest a block that is taken from its
/// beginning have the same lots taken everywhere.)
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
