//! What host and node say to one another over a byte stream.
//!
//! All numbers are little-endian; all frames begin at a byte of the stream that
//! the frames before it determine, so no frame needs a delimiter. A peer that
//! breaks a rule below is cut off; nothing of what it said in that frame counts.
//!
//! ```text
//! host                                    node
//!  │── Hello ─────────────────────────────►│  who I am, what this connection is for
//!  │◄───────────────────────────── Welcome─│  or why not; then the Unix path, if any
//!  │                                       │
//!  │   purpose Join, Rejoin: the member's control connection
//!  │── Request ───────────────────────────►│  one at a time
//!  │◄────────────────────────────── Answer─│  over a Unix socket a Grant carries the slab's memfd
//!  │                                       │
//!  │   purpose Wire: one queue pair of the member over RDMA
//!  │── Endpoint ──────────────────────────►│
//!  │◄──────────────────────────── Endpoint─│  then silence: verbs go past both processors
//!  │                                       │
//!  │   purpose Attach: one queue pair of the member
//!  │── Batch, Verb…, operands… ───────────►│  as many as the sender likes, without waiting
//!  │◄────────────────── Completion, data…──│  one per verb, in the order of the verbs
//! ```
//!
//! The length of every completion follows from its verb alone (a refused READ
//! or SEND carries zeros), so the host can receive straight into the targets of its READs.
//!
//! *Versions.* The first eight bytes of Hello and Welcome, magic and version,
//! never change. A node that gets another version answers with its own and
//! verdict [`Verdict::Version`]; the rest of that Welcome is not to be read.

mod endpoint;
mod figure;
mod verb;

pub use endpoint::{Endpoint, OFFERS_RDMA};
pub use figure::{Figure, Who};
pub use verb::{
    ANY_QUEUE, Batch, Binding, Completion, MAX_SEND_BYTES, MAX_VERB_BYTES, MAX_VERBS, Op, REPLY_BYTES, Verb,
};

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// First bytes of every connection, both ways.
pub const MAGIC: [u8; 6] = *b"farmem";
/// The version of everything on this page.
pub const VERSION: u16 = 5;
/// Bytes of a Unix socket's path, at most (`sun_path` less its end).
pub const MAX_PATH: usize = 107;

/// Bytes that one [`Ask::Back`] can name: a block's. It keeps one of the node's threads busy.
pub const MAX_BACKED: u64 = 2 << 20;

/// 128 bits that cannot be guessed: the name of a run, or the secret of one member.
pub type Secret = [u8; 16];

/// The variant of a fieldless enum that has this number in a frame; `None` if none has.
#[inline]
pub fn variant<T: TryFromBytes>(number: impl IntoBytes + Immutable) -> Option<T> {
    T::try_read_from_bytes(number.as_bytes()).ok()
}

/// The public name of a run. The run's own name is the right to end it, and cannot be told from this:
/// half of its bits are gone.
pub fn run_id(run: &Secret) -> u64 {
    let half = |from: usize| run[from..from + 8].iter().fold(0u64, |word, &byte| word << 8 | byte as u64);
    let mut mixed = half(0) ^ half(8);
    for _ in 0..3 {
        mixed = (mixed ^ mixed >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    mixed
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, TryFromBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum Purpose {
    /// A new member of a run. The Welcome carries its secret.
    Join = 1,
    /// A member again, after its control connection was lost, or a forked child that a
    /// [`Ask::Ticket`] announced.
    Rejoin = 2,
    /// One queue pair of a member. The same `queue` again takes the place of the connection
    /// before: nothing of what is still under way there will be carried out.
    Attach = 3,
    /// One queue pair of a member over RDMA: two [`Endpoint`]s are exchanged, after which the stream is
    /// silent, and the queue pair lives as long as it stands. The same `queue` again takes the place of the
    /// one before, as with Attach; the two kinds are counted apart.
    Wire = 4,
}

/// The host's first words.
///
/// ```text
///  0      6     8         9         10  12    16    32       48            56      64         72
///  | magic | ver | purpose | lasting | 0 | pid | run | secret | incarnation | queue | grace_ms |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: [u8; 6],
    /// [`VERSION`].
    pub version: U16,
    /// A [`Purpose`].
    pub purpose: u8,
    /// 1: the member outlives its process, and its memory is kept for `grace_ms` even if it joined
    /// through a Unix socket (Join). For a service that is started again: the agent of a host.
    pub lasting: u8,
    /// Zero.
    pub zero: [u8; 2],
    /// The host's process, for the node's records only.
    pub pid: U32,
    /// The run that the member belongs to (Join).
    pub run: Secret,
    /// The member (Rejoin, Attach).
    pub secret: Secret,
    /// The node's incarnation as the member knows it (Rejoin, Attach).
    pub incarnation: U64,
    /// The queue pair's number, of the member's choice (Attach).
    pub queue: U64,
    /// How long the node keeps the member's memory while no connection stands, in milliseconds (Join).
    pub grace_ms: U64,
}

/// How a node takes a Hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug, TryFromBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum Verdict {
    /// Come in.
    Welcome = 0,
    /// The node speaks another version: its own is in the Welcome.
    Version = 1,
    /// The node is going down and takes no new members.
    Draining = 2,
    /// No such member: its time was over, or its run.
    Unknown = 3,
    /// The node was started anew since; what it held is gone.
    Incarnation = 4,
    /// The node serves as many connections or members as it can.
    Full = 5,
    /// The Hello made no sense.
    Malformed = 6,
}

/// The node's first words; `path_len` bytes follow: the path of a Unix socket at which the same
/// node serves the same host through shared memory.
///
/// ```text
///  0      6     8         9   12         14      16       32            40     48     56        72     74       75  80
///  | magic | ver | verdict | 0 | path_len | owner | secret | incarnation | lend | free | address | port | offers | 0 |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Welcome {
    /// [`MAGIC`].
    pub magic: [u8; 6],
    /// The node's [`VERSION`].
    pub version: U16,
    /// A [`Verdict`].
    pub verdict: u8,
    /// Zero.
    pub zero: [u8; 3],
    /// Bytes of the path that follows.
    pub path_len: U16,
    /// The member's owner id, by which descriptor words name it: 1 to 16 383, the node's choice.
    pub owner: U16,
    /// The member's secret.
    pub secret: Secret,
    /// Drawn by the node when it starts: tells it from whatever listens there later.
    pub incarnation: U64,
    /// Bytes that the node lends, in all.
    pub lend: U64,
    /// Bytes of these not lent.
    pub free: U64,
    /// The node's own end of this connection, as IPv6 (IPv4 mapped). A host that dialled just this
    /// address has no middlebox before the node. Zero over Unix sockets.
    pub address: [u8; 16],
    /// See `address`.
    pub port: U16,
    /// Ways to reach memory beside this connection: [`OFFERS_RDMA`].
    pub offers: u8,
    /// Zero.
    pub zero_last: [u8; 5],
}

/// What a member asks on its control connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, TryFromBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum Ask {
    /// One more slab. Answer: its id.
    Grant = 1,
    /// The slab is no longer needed by this member.
    Release = 2,
    /// A member for a child about to be forked, holding every slab that this one holds.
    /// Answer: the child's secret. Over a Unix socket it carries a connection, on which that member may say hello: one
    /// that has given up the rights to the socket's file, or cannot see it any more, forks all the same.
    Ticket = 3,
    /// Every member of the run is gone.
    EndRun = 4,
    /// Are you there?
    Ping = 5,
    /// This member is gone. No answer.
    Bye = 6,
    /// A range of a slab is of no more use: its memory goes back to the node's system, and reads as
    /// zero from now on. The slab stays held. Only its sole holder may.
    Discard = 7,
    /// A slab that is held, once more: over a Unix socket the answer carries its memfd.
    Again = 8,
    /// The memory of neighbouring blocks that this member has claimed: over a Unix socket the answer carries a
    /// memfd of just these, the same one every time.
    Unit = 9,
    /// The node takes the memory of a range of a slab from its system now, [`MAX_BACKED`] bytes at
    /// most. Bytes in the range stay. For a member that maps the slab: the kernel charges a page to
    /// the memory group of the process that touches it first.
    Back = 10,
    /// A window, unbound. Answer: the key by which a BIND names it.
    Window = 16,
    /// The window with this key, bound or not, is no longer needed: it ceases to be.
    DropWindow = 17,
    /// Who has the owner id in `slab`? Answer: the process, 0 for a run; in `secret` a number that is the
    /// same for all of a run and from which its name cannot be told. Not held: nobody.
    Who = 18,
    /// The figure of the node whose number is in `slab`.
    Figure = 19,
    /// A slab that is held is to be reached by RDMA. Answer: the key of its memory, for this member's
    /// queue pairs; offsets count from its first byte.
    Expose = 24,
    /// A window bound for this member is to be used by RDMA, through the queue pair in `detail`. Answer: bits 0 to
    /// 31 its key there, 32 to 43 the offset of its first byte. Any refusal: the window's verbs go in frames.
    ExposeWindow = 25,
    /// Opens the region that `detail` names ([`RegionName`](crate::region::RegionName)), for this member; with 1
    /// in `slab` it is made if there is none. Answer: how many slabs it has.
    Region = 32,
    /// This member is to hold slab number `slab`, from 0, of a region that it has opened. Answer: the slab's id;
    /// over a Unix socket it carries the memfd. Not held: the region has no such slab.
    RegionSlab = 33,
    /// As RegionSlab; the region gets one more slab if the number is the next.
    RegionGrow = 34,
    /// The name names no region any more. The memory is free when no member has the region open.
    RegionRemove = 35,
    /// The region whose place in the order of names is in `slab`. Answer: its name in `secret`, and in
    /// `value` how many slabs it has, with its owner id from bit 48 on. Not held: there are not so many.
    RegionAt = 36,
}

/// A member's request.
///
/// ```text
///  0     1   8        16     24       40
///  | ask | 0 | number | slab | detail |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Request {
    /// An [`Ask`].
    pub ask: u8,
    /// Zero.
    pub zero: [u8; 7],
    /// Counts a member's requests. A request that is repeated under its number, because a cut
    /// connection swallowed the answer, is answered again and not carried out again.
    pub number: U64,
    /// The slab (Release, Discard, Back, Again, Expose), the window's key (DropWindow, ExposeWindow), the first block's
    /// (Unit), a number (Who, Figure, RegionSlab, RegionGrow, RegionAt), 1 or 0 (Region).
    pub slab: U64,
    /// EndRun: the run; knowing its name is the right to end it. Discard, Back: offset and length of the
    /// range in bytes, 8 bytes each, multiples of 4096. Unit: how many blocks, 8 bytes, 1 to 32.
    /// ExposeWindow: the queue pair's number, 8 bytes. Region, RegionSlab, RegionGrow, RegionRemove: the name.
    /// Zero otherwise.
    pub detail: [u8; 16],
}

/// The node's answer.
///
/// ```text
///  0        1     8        16      24       40
///  | status | 0   | number | value | secret |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Answer {
    /// A [`Status`].
    pub status: u8,
    /// Zero.
    pub zero: [u8; 7],
    /// The request's.
    pub number: U64,
    /// Grant: the slab's id. Window: its key. Exhausted: bytes that the node lends in all. Quota: bytes that one
    /// owner may hold.
    pub value: U64,
    /// Ticket: the child's secret.
    pub secret: Secret,
}

/// How a request or a verb ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, TryFromBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Done = 0,
    /// The node lends no more.
    Exhausted = 1,
    /// The slab is not this member's.
    NotHeld = 2,
    /// The range leaves the slab, is longer than [`MAX_VERB_BYTES`], or an atomic verb's is not 8 bytes, aligned.
    Range = 3,
    /// The node's system refused it memory or descriptors.
    System = 4,
    /// Another member holds the slab too (Discard); some of the blocks are mapped with others (Unit).
    Shared = 5,
    /// The owner would hold more than its quota.
    Quota = 6,
    /// Remote access error: the key gives no right to this, or no longer, or not to this queue pair;
    /// or a descriptor word does not go that way.
    Access = 16,
    /// The window cannot be bound or unbound: it is bound already, or not, or its key is an old one,
    /// or the range is not the binder's.
    Window = 17,
    /// The node's queue is out of what was asked of it.
    Empty = 18,
}

/// A rule of the stream that a peer broke. The connection is of no more use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    /// The first bytes are not farmem's.
    #[error("the peer does not speak farmem")]
    Magic,
    /// A hello, welcome, request or answer without a meaning.
    #[error("a control frame makes no sense")]
    Control,
    /// A batch of no verbs or too many, or whose lengths contradict one another.
    #[error("a batch contradicts itself")]
    Batch,
    /// A verb that does not exist, or of an inadmissible length.
    #[error("a verb makes no sense")]
    Verb,
    /// A record of changed lines that is not by its rules, or not what was sent.
    #[error("a record of changed lines makes no sense")]
    Record,
    /// A completion for another verb than the one that is due.
    #[error("a completion is out of step")]
    Step,
}

const _: () = {
    assert!(size_of::<Hello>() == 72 && size_of::<Welcome>() == 80);
    assert!(size_of::<Request>() == 40 && size_of::<Answer>() == 40);
};
