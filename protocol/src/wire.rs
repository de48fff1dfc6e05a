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
//!  │   purpose Attach: one queue pair of the member
//!  │── Batch, Verb…, operands… ───────────►│  as many as the sender likes, without waiting
//!  │◄────────────────── Completion, data…──│  one per verb, in the order of the verbs
//! ```
//!
//! The length of every completion follows from its verb alone (a refused READ
//! carries zeros), so the host can receive straight into the targets of its READs.
//!
//! *Versions.* The first eight bytes of Hello and Welcome, magic and version,
//! never change. A node that gets another version answers with its own and
//! verdict [`Verdict::Version`]; the rest of that Welcome is not to be read.

use crate::lines::MAX_RECORD_BYTES;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of every connection, both ways.
pub const MAGIC: [u8; 6] = *b"farmem";
/// The version of everything on this page.
pub const VERSION: u16 = 2;
/// Verbs in a [`Batch`], at most.
pub const MAX_VERBS: usize = 128;
/// Bytes that one READ or WRITE moves, at most.
pub const MAX_VERB_BYTES: u32 = 1 << 20;
/// Bytes of a Unix socket's path, at most (`sun_path` less its end).
pub const MAX_PATH: usize = 107;

/// 128 bits that cannot be guessed: the name of a run, or the secret of one member.
pub type Secret = [u8; 16];

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
}

impl Purpose {
    /// From its byte.
    pub const fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Purpose::Join),
            2 => Some(Purpose::Rejoin),
            3 => Some(Purpose::Attach),
            _ => None,
        }
    }
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

impl Verdict {
    /// From its byte.
    pub const fn of(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Verdict::Welcome),
            1 => Some(Verdict::Version),
            2 => Some(Verdict::Draining),
            3 => Some(Verdict::Unknown),
            4 => Some(Verdict::Incarnation),
            5 => Some(Verdict::Full),
            6 => Some(Verdict::Malformed),
            _ => None,
        }
    }
}

/// The node's first words; `path_len` bytes follow: the path of a Unix socket at which the same
/// node serves the same host through shared memory.
///
/// ```text
///  0      6     8        9    12         14   16       32            40     48     56        72     74   80
///  | magic | ver | verdict | 0 | path_len | 0 | secret | incarnation | lend | free | address | port | 0 |
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
    /// Zero.
    pub zero_too: U16,
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
    /// Zero.
    pub zero_last: [u8; 6],
}

/// What a member asks on its control connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Ask {
    /// One more slab. Answer: its id.
    Grant = 1,
    /// The slab is no longer needed by this member.
    Release = 2,
    /// A member for a child about to be forked, holding every slab that this one holds.
    /// Answer: the child's secret.
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
}

impl Ask {
    /// From its byte.
    pub const fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Ask::Grant),
            2 => Some(Ask::Release),
            3 => Some(Ask::Ticket),
            4 => Some(Ask::EndRun),
            5 => Some(Ask::Ping),
            6 => Some(Ask::Bye),
            7 => Some(Ask::Discard),
            8 => Some(Ask::Again),
            _ => None,
        }
    }
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
    /// The slab (Release, Discard, Again).
    pub slab: U64,
    /// EndRun: the run; knowing its name is the right to end it. Discard: offset and length of the
    /// range in bytes, 8 bytes each, multiples of 4096. Zero otherwise.
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
    /// Grant: the slab's id. Exhausted: bytes that the node lends in all.
    pub value: U64,
    /// Ticket: the child's secret.
    pub secret: Secret,
}

/// How a request or a verb ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    /// Another member holds the slab too (Discard).
    Shared = 5,
}

impl Status {
    /// From its byte.
    pub const fn of(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Status::Done),
            1 => Some(Status::Exhausted),
            2 => Some(Status::NotHeld),
            3 => Some(Status::Range),
            4 => Some(Status::System),
            5 => Some(Status::Shared),
            _ => None,
        }
    }
}

/// Head of a batch; `count` [`Verb`]s follow, then the operands of those that have any, in order.
///
/// ```text
///  0       2   4       8        16
///  | count | 0 | bytes | first  |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Batch {
    /// Verbs, 1 to [`MAX_VERBS`].
    pub count: U16,
    /// Zero.
    pub zero: U16,
    /// Bytes of the operands, all together.
    pub bytes: U32,
    /// Number of the first verb; a queue pair numbers its verbs from 0, anew on every connection.
    pub first: U64,
}

/// What a verb does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Op {
    /// Bytes to the host.
    Read = 1,
    /// Bytes to the node: `len` operand bytes.
    Write = 2,
    /// Compares and swaps the aligned word at `offset`: operands expected, new. Returns the old.
    Cas = 3,
    /// Adds to the aligned word at `offset`: one operand. Returns the old.
    Faa = 4,
    /// Changed lines of the slab's pages: a record of `len` operand bytes ([`crate::lines`]). `offset` is 0.
    Lines = 16,
}

impl Op {
    /// From its byte.
    pub const fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Op::Read),
            2 => Some(Op::Write),
            3 => Some(Op::Cas),
            4 => Some(Op::Faa),
            16 => Some(Op::Lines),
            _ => None,
        }
    }
}

/// One verb of a batch.
///
/// ```text
///  0    1   4     8      16       24
///  | op | 0 | len | slab | offset |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Verb {
    /// An [`Op`].
    pub op: u8,
    /// Zero.
    pub zero: [u8; 3],
    /// Bytes to read or write, or of the record; 8 for the atomic ones.
    pub len: U32,
    /// The slab.
    pub slab: U64,
    /// Byte offset in it.
    pub offset: U64,
}

impl Verb {
    /// What it does, if its form is right: a known op and an admissible length. Where it points is not judged here.
    pub fn shape(&self) -> Result<(Op, u32), Broken> {
        let len = self.len.get();
        match Op::of(self.op) {
            Some(op @ (Op::Read | Op::Write)) if len <= MAX_VERB_BYTES => Ok((op, len)),
            Some(op @ (Op::Cas | Op::Faa)) if len == 8 => Ok((op, len)),
            Some(Op::Lines) if len as usize <= MAX_RECORD_BYTES && self.offset.get() == 0 => Ok((Op::Lines, len)),
            _ => Err(Broken::Verb),
        }
    }

    /// Bytes of its operands.
    pub fn operand_bytes(&self) -> Result<u32, Broken> {
        Ok(match self.shape()? {
            (Op::Read, _) => 0,
            (Op::Write | Op::Lines, len) => len,
            (Op::Cas, _) => 16,
            (Op::Faa, _) => 8,
        })
    }
}

/// How one verb ended; a READ's `len` bytes follow.
///
/// ```text
///  0        4        5   8       16
///  | number | status | 0 | value |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Completion {
    /// Low bits of the verb's number, so that a stream out of step is noticed.
    pub number: U32,
    /// A [`Status`].
    pub status: u8,
    /// Zero.
    pub zero: [u8; 3],
    /// The word's old value (CAS, FAA).
    pub value: U64,
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

impl Batch {
    /// Checks the head alone; returns how many verbs follow.
    pub fn verbs(&self) -> Result<usize, Broken> {
        let count = self.count.get() as usize;
        if (1..=MAX_VERBS).contains(&count) && self.zero.get() == 0 { Ok(count) } else { Err(Broken::Batch) }
    }

    /// Checks the verbs against the head and themselves.
    pub fn check(&self, verbs: &[Verb]) -> Result<(), Broken> {
        let mut bytes = 0u64;
        for verb in verbs {
            bytes += verb.operand_bytes()? as u64;
        }
        if bytes == self.bytes.get() as u64 { Ok(()) } else { Err(Broken::Batch) }
    }
}

const _: () = {
    assert!(size_of::<Hello>() == 72 && size_of::<Welcome>() == 80);
    assert!(size_of::<Request>() == 40 && size_of::<Answer>() == 40);
    assert!(size_of::<Batch>() == 16 && size_of::<Verb>() == 24 && size_of::<Completion>() == 16);
};

#[cfg(test)]
mod tests {
    use super::*;

    fn verb(op: Op, len: u32) -> Verb {
        Verb { op: op as u8, zero: [0; 3], len: len.into(), slab: 7.into(), offset: 4096.into() }
    }

    #[test]
    fn bytes_lie_where_the_drawings_say() {
        let batch = Batch { count: 0x0102.into(), zero: 0.into(), bytes: 0x0304_0506.into(), first: 9.into() };
        assert_eq!(batch.as_bytes(), [2, 1, 0, 0, 6, 5, 4, 3, 9, 0, 0, 0, 0, 0, 0, 0]);
        let read = verb(Op::Read, 4096);
        assert_eq!(read.as_bytes()[..16], [1, 0, 0, 0, 0, 16, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_batch_must_add_up() {
        let verbs = [verb(Op::Write, 100), verb(Op::Read, 5), verb(Op::Cas, 8), verb(Op::Faa, 8)];
        let mut batch = Batch { count: 4.into(), zero: 0.into(), bytes: 124.into(), first: 0.into() };
        assert_eq!(batch.verbs(), Ok(4));
        assert_eq!(batch.check(&verbs), Ok(()));
        batch.bytes = 125.into();
        assert_eq!(batch.check(&verbs), Err(Broken::Batch));
        batch.count = 0.into();
        assert_eq!(batch.verbs(), Err(Broken::Batch));
        assert_eq!(verb(Op::Read, MAX_VERB_BYTES + 1).shape(), Err(Broken::Verb));
        assert_eq!(verb(Op::Cas, 16).shape(), Err(Broken::Verb));
    }
}
