//! Messages over the socket: the handshake, and descriptors.
//!
//! ```text
//! application                                  agent
//!   │── Hello [, Declaration…] ──────────────────►│   first time, or again with its token and holdings
//!   │◄────────────────────── Welcome + the desk ──│
//!   │     … the rest is said in the ring …        │
//!   │◄─────────────── Mapped + a block's memfd ───│   for each MAP, where memory is on this machine
//!   │◄───────────────── Reached, a key or more ───│   for each MAP, where it is elsewhere
//!   │◄──────────────────────── Located, a text ───│   for each WHERE
//! ```
//! An agent of memory elsewhere may not know an application as a member of the node. Then the
//! application is told which node it is ([`Entry::Elsewhere`]), joins that itself, and comes again
//! with the id that the node gave it. Whether the id is its own is not checked: windows are bound
//! for the member named, and a liar has named one that does not know the keys. Numbers are of this
//! machine's order: the socket does not leave it.

use crate::chunks::Map;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// First bytes, both ways; the last is the version.
pub const MAGIC: [u8; 8] = *b"fmagent\x04";

/// The application's first words.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// 1: it was here before, and `token` proves it.
    pub again: u32,
    /// Declarations that follow.
    pub declared: u32,
    /// See `again`.
    pub token: [u8; 16],
    /// The job it belongs to, filled up with zeros; empty: none.
    pub job: [u8; 32],
    /// Where memory is elsewhere: the only queue pair that is to reach it; [`ANY_QUEUE`]: all of
    /// the member.
    ///
    /// [`ANY_QUEUE`]: farmem_protocol::wire::ANY_QUEUE
    pub queue: u64,
    /// The member of the node that is to reach it, by its owner id; 0: none yet.
    pub owner: u32,
    /// The number of that node, as [`Entry::Elsewhere`] says it.
    pub node: u32,
}

/// A block or a run that an application holds.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Declaration {
    /// The (first) block.
    pub block: u32,
    /// 1, or the blocks of the run.
    pub blocks: u32,
    /// The chunks held.
    pub map: Map,
}

/// The agent's first words. The desk's descriptor comes along if `status` is [`Entry::Welcome`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Welcome {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// An [`Entry`].
    pub status: u32,
    /// Bytes of text that follow, at most [`MAX_NODE`]: for [`Entry::Elsewhere`], how to reach the
    /// node and its number, as `tcp HOST:PORT 0`, or `verbs HOST:PORT 0`.
    pub text: u32,
    /// The token by which the application proves itself when it comes again.
    pub token: [u8; 16],
}

/// The longest text behind a [`Welcome`].
pub const MAX_NODE: usize = 300;

/// How an application is received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, TryFromBytes, KnownLayout, Immutable)]
#[repr(u32)]
pub enum Entry {
    /// Come in.
    Welcome = 0,
    /// The agent speaks another version, or the Hello made no sense.
    Malformed = 1,
    /// It serves as many applications as it can, in all or of this user.
    Full = 2,
    /// The token is unknown: the application's memory is lost.
    Unknown = 3,
    /// The declaration does not agree with the record.
    NotHeld = 4,
    /// The system refused the agent memory or descriptors.
    System = 5,
    /// The memory is on another machine: join that node, and say who you are there.
    Elsewhere = 6,
}

/// Where a block's memory is; the descriptor comes along.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Mapped {
    /// The block that was asked about.
    pub block: u64,
    /// Names the memory: blocks with the same name lie in the same.
    pub name: u64,
    /// Bytes to map, from the beginning.
    pub len: u64,
    /// Where the block begins.
    pub offset: u64,
}

/// Tells an application how to reach a block, or the blocks of a run. Keys of windows follow, 8
/// bytes each, one for each block. A run that moves may be at two nodes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Reached {
    /// The block that was asked about.
    pub block: u64,
    /// The number of the node that it is at.
    pub node: u64,
    /// Keys that follow.
    pub keys: u64,
    /// The number of the node that it moves to.
    pub to: u64,
    /// The number of its first blocks that are there.
    pub moved: u64,
}

/// Tells an application which node a block is at. Text as behind a [`Welcome`] follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Located {
    /// The block that was asked about.
    pub block: u64,
    /// Bytes that follow.
    pub text: u64,
}

const _: () = assert!(size_of::<Hello>() == 80 && size_of::<Declaration>() == 72 && size_of::<Welcome>() == 32);
