//! Requests of a member on its control connection, and the node's answers. [`super::control`] says
//! how they are encoded.

use super::control::{Frame, LENGTH, MAX_REQUEST, decode};
use super::{Broken, Names, Secret, Status, Text};
use crate::addr::SlabId;
use crate::key::Key;
use crate::region::RegionName;
use serde::{Deserialize, Serialize};

/// A member's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Counts a member's requests. A request that is repeated under its number, because a cut
    /// connection swallowed the answer, is answered again and not carried out again.
    pub number: u64,
    /// The configuration of the pool that the host knows; 0 where there is no controller.
    pub epoch: u64,
    /// The request itself.
    pub ask: Ask,
}

impl Request {
    /// One where there is no controller.
    pub fn new(number: u64, ask: Ask) -> Request {
        Request { number, epoch: 0, ask }
    }

    /// As it goes over the stream.
    pub fn frame(&self) -> Frame<MAX_REQUEST> {
        Frame::encode(&[], self)
    }

    /// The Request at the front of `input`, and its bytes; `None`: it has not come whole.
    pub fn read(input: &[u8]) -> Result<Option<(Request, usize)>, Broken> {
        decode(input, MAX_REQUEST - LENGTH)
    }
}

/// A member's request on its control connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Are you there?
    Ping,
    /// This member is gone. No answer.
    Bye,
    /// One more slab. Answer: [`Reply::Slab`].
    Grant,
    /// The slab is no longer needed by this member.
    Release(SlabId),
    /// A slab that is held, once more: over a Unix socket the answer carries its memfd.
    Again(SlabId),
    /// A range of a slab is of no more use: its memory goes back to the node's system, and reads as
    /// zero from now on. The slab stays held. Only its sole holder may.
    Discard(Range),
    /// The node takes the memory of a range of a slab from its system now, [`super::MAX_BACKED`]
    /// bytes at most. Bytes in the range stay. For a member that maps the slab: the kernel charges
    /// a page to the memory group of the process that touches it first.
    Back(Range),
    /// A member for a child about to be forked, holding every slab that this one holds. Answer:
    /// [`Reply::Child`]. Over a Unix socket the answer carries a connection on which the child may
    /// say hello. So a process can fork that has no right to the socket's file any more, or cannot
    /// see it.
    Ticket,
    /// Every member of the run is gone. Knowing the run's name is the right to end it.
    EndRun(Secret),
    /// The memory of neighbouring blocks that this member has claimed: the first block's key, and
    /// their number, 1 to 32. Over a Unix socket the answer carries a memfd of just these blocks,
    /// the same one every time.
    Unit(Key, u32),
    /// A window, unbound. Answer: [`Reply::Window`], the key by which a BIND names it.
    Window,
    /// The window with this key, bound or not, is no longer needed: it ceases to be.
    DropWindow(Key),
    /// Asks for the holder of this owner id. Answer: [`Reply::Who`]. Not held: the id is free, or its
    /// holder is another tenant's.
    Who(u16),
    /// A figure of the node. Answer: [`Reply::Figure`].
    Figure(Figure),
    /// Makes a held slab reachable by RDMA. Answer: [`Reply::Exposed`], the key of its memory for
    /// this member's queue pairs. Offsets count from its first byte.
    Expose(SlabId),
    /// Makes a window that is bound for this member usable by RDMA, through the queue pair of this
    /// number. Answer: [`Reply::Exposed`]. After a refusal the window's verbs go in frames.
    ExposeWindow(Key, u64),
    /// Opens a region for this member; `true`: it is made if there is none. Answer:
    /// [`Reply::Slabs`].
    Region(RegionName, bool),
    /// Has this member hold a slab of a region that it has opened, by the slab's number from 0.
    /// Answer: [`Reply::Slab`]; over a Unix socket it carries the memfd. Not held: the region has
    /// no such slab.
    RegionSlab(RegionName, u64),
    /// As RegionSlab; the region gets one more slab if the number is the next.
    RegionGrow(RegionName, u64),
    /// The name names no region any more. The memory is free when no member has the region open.
    RegionRemove(RegionName),
    /// The region at this index in the order of names. Answer: [`Reply::Region`]. Not held: there
    /// are fewer regions.
    RegionAt(u64),
    /// The swap volume at this index in an order of the node's, of those that are no other tenant's.
    /// Answer: [`Reply::Volume`]. Not held: there are fewer.
    VolumeAt(u64),
    /// Takes all rights at this node from the processes of this tag that have the region open
    /// ([`super::tag`]). Done: none of their verbs takes effect from now on. Shared: one of them
    /// has the memory mapped and is still alive.
    RegionExpel(RegionName, u32),
    /// Asks how many slabs this member is to give back, because the node's machine needs their
    /// memory. Answer: [`Reply::Figure`]. Only for nodes of [`super::OFFERS_RESERVE`].
    Wanted,
    /// Another member that has the region open, by its place in an order of the node's. Answer:
    /// [`Reply::Who`]. Not held: there are fewer, or no such region.
    RegionOpener(RegionName, u64),
    /// As RegionRemove. Shared: another member has the region open, and its name stays.
    RegionRemoveUnused(RegionName),
}

/// Bytes of a slab, in whole pages of 4096 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Range {
    /// Of this slab.
    pub slab: SlabId,
    /// From this byte.
    pub offset: u64,
    /// This number of bytes.
    pub len: u64,
}

/// Figures of a node that a member can ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Figure {
    /// Windows that members have.
    Windows,
    /// Of these, bound.
    WindowsBound,
    /// CPU time of draining and of the words, in nanoseconds.
    DrainNs,
    /// CPU time of scrubbing, in nanoseconds.
    ScrubNs,
    /// Bytes scrubbed.
    ScrubbedBytes,
    /// Units made clean.
    Reclaimed,
    /// Bytes of memory really taken from the system.
    InUse,
    /// Bytes of slabs that are on the node's disk alone, because their owners do not answer.
    Aside,
}

/// The node's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The request's.
    pub number: u64,
    /// The configuration of the pool that the node knows; 0 where there is no controller.
    pub epoch: u64,
    /// The reply, or the reason for a refusal.
    pub result: Result<Reply, Refused>,
}

impl Answer {
    /// As it goes over the stream.
    pub fn frame(&self) -> Frame<MAX_REQUEST> {
        Frame::encode(&[], self)
    }

    /// The Answer at the front of `input`, and its bytes; `None`: it has not come whole.
    pub fn read(input: &[u8]) -> Result<Option<(Answer, usize)>, Broken> {
        decode(input, MAX_REQUEST - LENGTH)
    }
}

/// The result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The request was carried out, and has no further result.
    Done,
    /// The slab's id.
    Slab(SlabId),
    /// The child's secret.
    Child(Secret),
    /// The window's key.
    Window(Key),
    /// The holder of the owner id.
    Who(Who),
    /// The figure.
    Figure(u64),
    /// The key on the node's card, and the offset of the first byte there.
    Exposed(u32, u16),
    /// How many slabs a region has.
    Slabs(u64),
    /// A region's name, how many slabs it has, and its owner id.
    Region(RegionName, u64, u16),
    /// A swap volume.
    Volume(VolumeInfo),
}

/// Swap volumes of one node, at most.
pub const MAX_VOLUMES: usize = 256;

/// A swap volume, as its node describes it. Sizes are bytes unless stated otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// The owner id by which descriptor words name it.
    pub owner: u16,
    /// The most that it may hold.
    pub size: u64,
    /// Pages that are stored.
    pub live: u64,
    /// Pages that are one repeated word, and take no memory.
    pub filled: u64,
    /// The host reports each slot that its kernel frees. Otherwise only whole clusters are freed.
    pub told: bool,
    /// The machine that swaps to it, as it said itself.
    pub host: Text<64>,
}

/// The holder of an owner id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Who {
    /// The process; 0: a run, which holds slabs.
    pub pid: u32,
    /// The same for all of a run; its name cannot be told from this.
    pub run: u64,
    /// Of a run: the process that began it at this node, on its machine.
    pub leader: u32,
    /// As it said itself; of a run, as the process that began it said.
    pub names: Names,
}

/// Why nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refused {
    /// Never [`Status::Done`].
    pub status: Status,
    /// Exhausted: bytes that the node lends in all. Quota: bytes that one owner may hold. TenantQuota:
    /// bytes that all of a tenant's may. System: the errno. Zero otherwise.
    pub value: u64,
}

impl From<Status> for Refused {
    fn from(status: Status) -> Refused {
        Refused { status, value: 0 }
    }
}
