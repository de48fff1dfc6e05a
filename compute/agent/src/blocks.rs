//! Where an agent's blocks come from.
//!
//! [`Blocks`] is all that the rest of the agent knows of it. [`Slabs`] takes them
//! from the slabs of a node on this machine: a slab is one tenant's, for whoever
//! maps a slab's memfd sees all of it. Its 32 blocks go to the tenant's
//! applications one by one; a slab that is wholly free is the node's again, but for
//! one of each tenant, which is kept for [`KEEP_NS`].

use crate::ledger::{Ledger, MAX_SLABS, Membership};
use crate::stock::Tenant;
use crate::word::{BLOCK_BYTES, BlockId, MAX_BLOCK_ID, MAX_RUN, Refusal};
use farmem_fabric::{ConnectError, ConnectOptions, GrantError, Identity, Session};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_sys::{raw, shared};
use std::path::Path;
use std::sync::Arc;

/// How long the last empty slab of a tenant is kept.
pub const KEEP_NS: u64 = 2_000_000_000;

const SLAB_BLOCKS: u32 = (SLAB_BYTES / BLOCK_BYTES) as u32;
const _: () = assert!(SLAB_BLOCKS == MAX_RUN && SLAB_BLOCKS == 32);

/// A block's memory, to be mapped by an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// A descriptor that stays the source's.
    pub fd: i32,
    /// Names the memory that the descriptor is of: blocks with the same name are mapped once.
    pub name: u64,
    /// Bytes to map, from the beginning.
    pub len: u64,
    /// Where in it the block begins.
    pub offset: u64,
}

/// A source of blocks.
pub trait Blocks: Send {
    /// So many adjacent blocks, zero, for this tenant's applications alone.
    fn claim(&mut self, tenant: &Tenant, blocks: u32) -> Result<BlockId, Refusal>;
    /// Blocks that nobody uses any more. Their memory goes back to the system at once.
    fn release(&mut self, block: BlockId, blocks: u32);
    /// Where a block is.
    fn memory(&mut self, block: BlockId) -> Result<Memory, Refusal>;
    /// A few times a second: gives back what was kept long enough. An error: the source is gone.
    fn tend(&mut self, now_ns: u64) -> Result<(), String>;
    /// Bytes taken from the node.
    fn taken(&self) -> u64;
}

struct Slab {
    /// Its blocks are named from `number * 32`.
    number: u64,
    id: SlabId,
    fd: i32,
    /// Nobody's, once a restarted agent finds no owner of any of its blocks.
    tenant: Option<Tenant>,
    /// Bit set: the block is free.
    free: u32,
    /// When it was found wholly free.
    idle_ns: Option<u64>,
}

/// Blocks of slabs of a node on this machine.
pub struct Slabs {
    session: Session,
    ledger: Arc<Ledger>,
    slabs: Vec<Option<Slab>>,
}

impl Slabs {
    /// Joins a node anew. Nothing may be recorded as held.
    pub fn join(node: &Path, options: &ConnectOptions, ledger: Arc<Ledger>) -> Result<Slabs, ConnectError> {
        let session = Session::connect_lasting(node, options)?;
        let Identity { secret, incarnation, number } = session.identity();
        ledger.set_membership(&Membership { secret, incarnation, number, pending: false });
        Ok(Slabs { session, ledger, slabs: (0..MAX_SLABS).map(|_| None).collect() })
    }

    /// Is again the member that a former agent recorded, with its slabs. `held`: the blocks that
    /// applications hold, by that record.
    pub fn resume(
        node: &Path,
        options: &ConnectOptions,
        ledger: Arc<Ledger>,
        membership: &Membership,
        held: impl Iterator<Item = (BlockId, u32, Tenant)>,
    ) -> Result<Slabs, ConnectError> {
        // A slab that was asked for and not recorded: the same request again, under its number, is answered
        // with the same slab, or granted now if the node never saw it. Either way it goes back.
        let number = membership.number - membership.pending as u64;
        let identity = Identity { secret: membership.secret, incarnation: membership.incarnation, number };
        let session = Session::resume(node, options, &identity)?;
        let mut slabs = Slabs { session, ledger, slabs: (0..MAX_SLABS).map(|_| None).collect() };
        if membership.pending {
            if let Ok(slab) = slabs.session.grant() {
                slabs.note_request(false);
                let _ = slabs.session.release(slab.id);
            }
            slabs.ledger.settle();
        }
        for place in 0..MAX_SLABS {
            let Some((number, id)) = slabs.ledger.slab(place) else { continue };
            slabs.note_request(false);
            match slabs.session.descriptor(SlabId(id)) {
                Ok(Some(fd)) => {
                    let slab = Slab { number, id: SlabId(id), fd, tenant: None, free: u32::MAX, idle_ns: None };
                    slabs.slabs[place] = Some(slab);
                }
                // Given back, and killed before that was recorded.
                _ => slabs.ledger.set_slab(place, None),
            }
        }
        for (block, blocks, tenant) in held {
            if let Some((slab, first)) = slabs.slab_of(block) {
                slab.free &= !mask(first, blocks);
                slab.tenant = Some(tenant);
            }
        }
        Ok(slabs)
    }

    /// Records that a request is about to be made.
    fn note_request(&self, pending: bool) {
        self.ledger.set_request(self.session.identity().number + 1, pending);
    }

    fn slab_of(&mut self, block: BlockId) -> Option<(&mut Slab, u32)> {
        let number = (block.0 / SLAB_BLOCKS) as u64;
        let slab = self.slabs.iter_mut().flatten().find(|slab| slab.number == number)?;
        Some((slab, block.0 % SLAB_BLOCKS))
    }

    /// One more slab for a tenant; its place.
    fn grow(&mut self, tenant: &Tenant) -> Result<usize, Refusal> {
        let place = self.slabs.iter().position(Option::is_none).ok_or(Refusal::Tables)?;
        let number = self.ledger.next_slab();
        if (number + 1) * SLAB_BLOCKS as u64 > MAX_BLOCK_ID as u64 {
            return Err(Refusal::Tables);
        }
        self.ledger.set_next_slab(number + 1);
        self.note_request(true);
        let slab = self.session.grant().map_err(|e| match e {
            GrantError::Exhausted { .. } => Refusal::Exhausted,
            GrantError::System { .. } => Refusal::System,
            GrantError::Lost(_) => Refusal::Lost,
        });
        let id = match slab {
            Ok(slab) => slab.id,
            Err(refusal) => {
                self.ledger.settle();
                return Err(refusal);
            }
        };
        self.ledger.set_slab(place, Some((number, id.0)));
        self.ledger.settle();
        self.note_request(false);
        let Ok(Some(fd)) = self.session.descriptor(id) else {
            self.give_back(place, id);
            return Err(Refusal::System);
        };
        let tenant = Some(tenant.clone());
        self.slabs[place] = Some(Slab { number, id, fd, tenant, free: u32::MAX, idle_ns: None });
        Ok(place)
    }

    fn give_back(&mut self, place: usize, id: SlabId) {
        self.note_request(false);
        // Of a node that is lost nothing is left to give back.
        let _ = self.session.release(id);
        self.ledger.set_slab(place, None);
    }
}

/// Bits of adjacent blocks.
fn mask(first: u32, blocks: u32) -> u32 {
    ((1u64 << blocks) - 1) as u32 * (1 << first)
}

/// The first of so many adjacent free blocks.
fn find(free: u32, blocks: u32) -> Option<u32> {
    let starts = (1..blocks).fold(free, |starts, k| starts & free >> k);
    (starts != 0).then(|| starts.trailing_zeros())
}

impl Blocks for Slabs {
    fn claim(&mut self, tenant: &Tenant, blocks: u32) -> Result<BlockId, Refusal> {
        let fits = |slab: &Slab| slab.tenant.as_ref() == Some(tenant) && find(slab.free, blocks).is_some();
        let found = self.slabs.iter().position(|slab| slab.as_ref().is_some_and(fits));
        let place = match found {
            Some(place) => place,
            None => self.grow(tenant)?,
        };
        let slab = self.slabs[place].as_mut().ok_or(Refusal::Tables)?;
        let first = find(slab.free, blocks).ok_or(Refusal::Tables)?;
        slab.free &= !mask(first, blocks);
        slab.idle_ns = None;
        Ok(BlockId(slab.number as u32 * SLAB_BLOCKS + first))
    }

    fn release(&mut self, block: BlockId, blocks: u32) {
        let Some((slab, first)) = self.slab_of(block) else { return };
        // Scrubbed before it is free: what comes next to an application is zero.
        if shared::punch(slab.fd, first as u64 * BLOCK_BYTES, blocks as u64 * BLOCK_BYTES).is_ok() {
            slab.free |= mask(first, blocks);
        }
    }

    fn memory(&mut self, block: BlockId) -> Result<Memory, Refusal> {
        let (slab, first) = self.slab_of(block).ok_or(Refusal::Tables)?;
        Ok(Memory { fd: slab.fd, name: slab.number, len: SLAB_BYTES, offset: first as u64 * BLOCK_BYTES })
    }

    fn tend(&mut self, now_ns: u64) -> Result<(), String> {
        self.session.tend().map_err(|lost| lost.to_string())?;
        for place in 0..self.slabs.len() {
            let Some(slab) = &mut self.slabs[place] else { continue };
            if slab.free != u32::MAX {
                continue;
            }
            let since = *slab.idle_ns.get_or_insert(now_ns);
            let tenant = slab.tenant.clone();
            let others = |other: &Slab| other.number != slab_number(&self.slabs[place]) && other.tenant == tenant;
            let another = self.slabs.iter().flatten().any(|other| others(other) && other.free == u32::MAX);
            if (tenant.is_none() || another || now_ns - since >= KEEP_NS)
                && let Some(gone) = self.slabs[place].take()
            {
                raw::close(gone.fd);
                self.give_back(place, gone.id);
            }
        }
        Ok(())
    }

    fn taken(&self) -> u64 {
        self.slabs.iter().flatten().count() as u64 * SLAB_BYTES
    }
}

fn slab_number(slab: &Option<Slab>) -> u64 {
    slab.as_ref().map_or(u64::MAX, |slab| slab.number)
}

impl Drop for Slabs {
    fn drop(&mut self) {
        self.slabs.iter().flatten().for_each(|slab| raw::close(slab.fd));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn adjacent_blocks_are_found() {
        assert_eq!((find(u32::MAX, 32), find(u32::MAX, 1), find(0, 1)), (Some(0), Some(0), None));
        assert_eq!((find(0b1110_0110, 3), find(0b1110_0110, 2), find(0b1110_0110, 4)), (Some(5), Some(1), None));
        assert_eq!((mask(0, 32), mask(31, 1), mask(5, 3)), (u32::MAX, 1 << 31, 0b1110_0000));
        assert_eq!(find(1 << 31, 2), None);
    }
}
