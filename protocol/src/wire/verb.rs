//! The frames of a queue pair: batches of verbs one way, completions the other.

use super::{Broken, variant};
use crate::key::{Key, Rights};
use crate::lines::MAX_RECORD_BYTES;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// Verbs in a [`Batch`], at most.
pub const MAX_VERBS: usize = 128;
/// Bytes that one READ or WRITE moves, at most.
pub const MAX_VERB_BYTES: u32 = 1 << 20;
/// Bytes of a SEND, at most.
pub const MAX_SEND_BYTES: u32 = 64;
/// Bytes that answer a SEND, always.
pub const REPLY_BYTES: u32 = 64;

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
    /// Number of the first verb. A queue pair numbers its verbs from 0 on every connection.
    pub first: U64,
}

/// The operation of a verb.
#[derive(Clone, Copy, PartialEq, Eq, Debug, TryFromBytes, KnownLayout, Immutable)]
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
    /// Binds the unbound window `key` as its one operand, a [`Binding`], says. Returns its key from
    /// now on.
    Bind = 5,
    /// Unbinds the window `key`. Returns the key by which it can be bound again.
    Invalidate = 6,
    /// Up to [`MAX_SEND_BYTES`] to a queue of the node's own; [`REPLY_BYTES`] come back.
    Send = 7,
    /// Changed lines of the slab's pages: a record of `len` operand bytes ([`crate::lines`]).
    /// `offset` is 0.
    Lines = 16,
    /// The same, of each page only if its lines are still what they were: a record with conditions
    /// ([`crate::lines::conditional`]). Returns which pages were refused.
    LinesIf = 17,
}

impl Op {
    /// The right that it takes.
    pub const fn right(self) -> Rights {
        match self {
            Op::Read => Rights::READ,
            Op::Write | Op::Lines | Op::LinesIf => Rights::WRITE,
            _ => Rights::ATOMIC,
        }
    }
}

/// One verb of a batch.
///
/// ```text
///  0    1   4     8     16       24
///  | op | 0 | len | key | offset |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Verb {
    /// An [`Op`].
    pub op: u8,
    /// Zero.
    pub zero: [u8; 3],
    /// Bytes to read, write or send, or of the record; 8 for the atomic ones, 0 for BIND and
    /// INVALIDATE.
    pub len: U32,
    /// A [`Key`].
    pub key: U64,
    /// Byte offset in what the key names; 0 where there is none.
    pub offset: U64,
}

impl Verb {
    /// The operation, if its form is right: a known op and an admissible length. Its target is not
    /// judged here.
    pub fn shape(&self) -> Result<(Op, u32), Broken> {
        let len = self.len.get();
        match variant(self.op) {
            Some(op @ (Op::Read | Op::Write)) if len <= MAX_VERB_BYTES => Ok((op, len)),
            Some(op @ (Op::Cas | Op::Faa)) if len == 8 => Ok((op, len)),
            Some(op @ (Op::Bind | Op::Invalidate)) if len == 0 => Ok((op, len)),
            Some(op @ (Op::Lines | Op::LinesIf)) if len as usize <= MAX_RECORD_BYTES && self.offset.get() == 0 => {
                Ok((op, len))
            }
            Some(Op::Send) if len <= MAX_SEND_BYTES => Ok((Op::Send, len)),
            _ => Err(Broken::Verb),
        }
    }

    /// Bytes of its operands.
    pub fn operand_bytes(&self) -> Result<u32, Broken> {
        Ok(match self.shape()? {
            (Op::Read | Op::Invalidate, _) => 0,
            (Op::Write | Op::Send | Op::Lines | Op::LinesIf, len) => len,
            (Op::Cas, _) => 16,
            (Op::Faa, _) => 8,
            (Op::Bind, _) => size_of::<Binding>() as u32,
        })
    }

    /// The right by which it goes.
    pub fn key(&self) -> Key {
        Key(self.key.get())
    }
}

/// The target of a window, and its user: the operand of a BIND.
///
/// ```text
///  0        8       16    24      32      34       35  40
///  | parent | start | len | queue | owner | rights | 0 |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Binding {
    /// A slab that the binder holds or an extent that it owns. When that right ends, so does the
    /// window's.
    pub parent: U64,
    /// First byte, in the parent.
    pub start: U64,
    /// Bytes, at least one.
    pub len: U64,
    /// The number of the only queue pair that may use it; [`ANY_QUEUE`]: all of the member.
    pub queue: U64,
    /// The member that may use it, by its owner id; 0: the binder itself.
    pub owner: U16,
    /// [`Rights`].
    pub rights: u8,
    /// Zero.
    pub zero: [u8; 5],
}

/// Every queue pair of a member.
pub const ANY_QUEUE: u64 = u64::MAX;

/// How one verb ended; a READ's `len` bytes follow, or a SEND's [`REPLY_BYTES`].
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
    /// A [`super::Status`].
    pub status: u8,
    /// Zero.
    pub zero: [u8; 3],
    /// The word's old value (CAS, FAA), a key (BIND, INVALIDATE), pages refused (LINES_IF).
    pub value: U64,
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

const _: () = assert!(size_of::<Batch>() == 16 && size_of::<Verb>() == 24 && size_of::<Completion>() == 16);
const _: () = assert!(size_of::<Binding>() == 40);

#[cfg(test)]
mod tests {
    use super::*;

    fn verb(op: Op, len: u32) -> Verb {
        Verb { op: op as u8, zero: [0; 3], len: len.into(), key: 7.into(), offset: 4096.into() }
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
        let verbs = [verb(Op::Write, 100), verb(Op::Read, 5), verb(Op::Cas, 8), verb(Op::Faa, 8), verb(Op::Bind, 0)];
        let mut batch = Batch { count: 5.into(), zero: 0.into(), bytes: 164.into(), first: 0.into() };
        assert_eq!(batch.verbs(), Ok(5));
        assert_eq!(batch.check(&verbs), Ok(()));
        batch.bytes = 165.into();
        assert_eq!(batch.check(&verbs), Err(Broken::Batch));
        batch.count = 0.into();
        assert_eq!(batch.verbs(), Err(Broken::Batch));
        assert_eq!(verb(Op::Read, MAX_VERB_BYTES + 1).shape(), Err(Broken::Verb));
        assert_eq!(verb(Op::Cas, 16).shape(), Err(Broken::Verb));
        assert_eq!(verb(Op::Send, MAX_SEND_BYTES + 1).shape(), Err(Broken::Verb));
        assert_eq!(verb(Op::Invalidate, 1).shape(), Err(Broken::Verb));
    }
}
