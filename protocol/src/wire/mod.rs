//! The messages of host and node over a byte stream.
//!
//! All numbers of fixed frames are little-endian. A frame begins at a byte of the stream that the
//! frames before it determine, so no frame needs a delimiter. A peer that breaks a rule below is
//! cut off; nothing of what it said in that frame counts.
//!
//! ```text
//! host                                    node
//!  │── Hello ─────────────────────────────►│  what this connection is for
//!  │◄──────────────────────────── Greeting─│  welcome, or why not; or a challenge:
//!  │── Proof ─────────────────────────────►│  that the host has the token that it named
//!  │◄──────────────────────────── Greeting─│  from here on in records, if the host says so (`Cipher`)
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
//!  │                                       │
//!  │   purpose NewVolume, Volume: a swap volume
//!  │── nbd::Request, data… ───────────────►│  as the kernel's NBD client speaks (crate::nbd)
//!  │◄──────────────────── nbd::Reply, data…│
//! ```
//!
//! * [`control`]: Hello, Greeting, Request, Answer. They have a length, and bodies that `postcard`
//!   decodes.
//! * `verb`, `endpoint`: frames of fixed layout, used where they lie.
//!
//! The length of every completion follows from its verb alone (a refused READ
//! or SEND carries zeros), so the host can receive straight into the targets of its READs.
//!
//! *Versions.* The first eight bytes of Hello and Greeting, magic and version, never change. A node
//! that gets another version answers with its own; the rest of that Greeting is not to be read.

pub mod control;
mod endpoint;
mod request;
pub mod text;
mod verb;

pub use control::{
    Cipher, Credential, Frame, Greeting, Hello, Join, Known, NewVolume, NoHello, Proof, Purpose, Share, Verdict,
    Welcome,
};
pub use endpoint::{Endpoint, OFFERS_RDMA, OFFERS_RESERVE};
pub use request::{Answer, Ask, Figure, MAX_VOLUMES, Range, Refused, Reply, Request, VolumeInfo, Who};
pub use text::{Names, Text};
pub use verb::{
    ANY_QUEUE, Batch, Binding, Completion, MAX_SEND_BYTES, MAX_VERB_BYTES, MAX_VERBS, Op, REPLY_BYTES, Verb,
};

use serde::{Deserialize, Serialize};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// First bytes of every connection, both ways.
pub const MAGIC: [u8; 6] = *b"farmem";
/// The version of everything on this page.
pub const VERSION: u16 = 8;
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

/// The public name of a run. The run's own name is the right to end it, and cannot be told from
/// this: half of its bits are gone.
pub fn run_id(run: &Secret) -> u64 {
    let half = |from: usize| run[from..from + 8].iter().fold(0u64, |word, &byte| word << 8 | byte as u64);
    let mut mixed = half(0) ^ half(8);
    for _ in 0..3 {
        mixed = (mixed ^ mixed >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    mixed
}

/// A short public name of a run, by which the openers of a region tell one another apart. Two may
/// share one.
pub fn tag(run: &Secret) -> u32 {
    (run_id(run) >> 32) as u32
}

/// How a request or a verb ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, TryFromBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Done = 0,
    /// The node lends no more.
    Exhausted = 1,
    /// The slab is not this member's.
    NotHeld = 2,
    /// The range leaves the slab, is longer than [`MAX_VERB_BYTES`], or an atomic verb's is not 8
    /// bytes, aligned.
    Range = 3,
    /// The node's system refused it memory or descriptors.
    System = 4,
    /// Another member holds the slab too (Discard), or has the region open (RegionRemoveUnused);
    /// some of the blocks are mapped with others (Unit).
    Shared = 5,
    /// The owner would hold more than its quota.
    Quota = 6,
    /// Remote access error: the key gives no right to this, or no longer, or not to this queue
    /// pair; or a descriptor word does not go that way.
    Access = 16,
    /// The window cannot be bound or unbound: it is bound already, or not, or its key is an old
    /// one, or the range is not the binder's.
    Window = 17,
    /// The node's queue is out of what was asked of it.
    Empty = 18,
    /// All owners of the tenant together would hold more than its quota.
    TenantQuota = 19,
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
    /// A record that does not open: it was changed, repeated or left out on its way.
    #[error("what it sent was changed on its way")]
    Changed,
}
