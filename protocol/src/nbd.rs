//! The transmission phase of NBD, as the kernel's client speaks it. It follows Hello and Welcome on
//! the stream of a volume.
//!
//! All numbers are big-endian. A request has 28 bytes, and the bytes of a WRITE follow it. A reply
//! has 16 bytes, and the bytes of a READ that succeeded follow it. A reply that is an error has
//! none.
//!
//! ```text
//!            0       4       6      8        16       24       28
//!  request  | magic | flags | type | cookie | offset | length |  bytes of a WRITE…
//!            0       4       8        16
//!  reply    | magic | error | cookie |  bytes of a READ…
//! ```
//!
//! Four commands are farmem's own: [`Command::Report`], [`Command::Free`], [`Command::Mark`] and
//! [`Command::Freed`]. The kernel never sends them; `farmem swap` does, on a stream of its own.
//!
//! The format is that of the NBD project's protocol text and of `linux/nbd.h`.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First word of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of a reply.
pub const REPLY_MAGIC: u32 = 0x6744_6698;
/// The most bytes that a READ or a WRITE can name: the limit of the kernel's block layer.
pub const MAX_BYTES: u32 = 32 << 20;
/// Offsets and lengths are multiples of this.
pub const PAGE: u64 = 4096;

/// The device's flags for the kernel: flags are valid, and TRIM is understood.
pub const DEVICE_FLAGS: u64 = 1 | 1 << 5;

/// A request's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Request {
    /// [`REQUEST_MAGIC`].
    pub magic: U32,
    /// Wishes about how it is carried out. None of them changes anything for memory.
    pub flags: U16,
    /// Which [`Command`].
    pub kind: U16,
    /// Names the request; the reply repeats it.
    pub cookie: U64,
    /// First byte of the volume.
    pub offset: U64,
    /// Bytes.
    pub length: U32,
}

/// A reply's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Reply {
    /// [`REPLY_MAGIC`].
    pub magic: U32,
    /// 0, or a [`Refusal`].
    pub error: U32,
    /// The request's.
    pub cookie: U64,
}

/// The answer to [`Command::Report`], after the reply.
///
/// ```text
///  0      8      16       24     32     40        48     56
///  | size | live | filled | held | free | machine | flags |
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Report {
    /// Bytes of the volume.
    pub size: U64,
    /// Bytes of pages that the host has written and not trimmed, and that take memory.
    pub live: U64,
    /// Bytes of such pages that are one repeated word, and take none.
    pub filled: U64,
    /// Bytes of the node's memory that the volume holds.
    pub held: U64,
    /// Bytes of the node that nobody holds.
    pub free: U64,
    /// A number of the running kernel beneath the node: the same for all that runs on it,
    /// containers too.
    pub machine: U64,
    /// Bit 0: the node is going down. Bit 1: its rack wants it to be emptied.
    pub flags: U64,
}

/// [`Report::machine`], a hash of the kernel's boot id. 0 if there is no boot id.
pub fn machine(boot_id: &[u8]) -> u64 {
    let mix = |sum: u64, &byte: &u8| (sum ^ byte as u64).wrapping_mul(0x100_0000_01B3);
    if boot_id.is_empty() { 0 } else { boot_id.iter().fold(0xCBF2_9CE4_8422_2325, mix) | 1 }
}

/// [`Report::flags`]: the node is going down. Hosts are to bring their pages back now.
pub const GOING_DOWN: u64 = 1;
/// [`Report::flags`]: the node's rack wants it to be emptied. Hosts are to bring their pages back
/// when they have room for them.
pub const TO_BE_EMPTIED: u64 = 2;

/// The command of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Bytes of the volume.
    Read,
    /// New bytes.
    Write,
    /// The stream is over. No reply.
    Disconnect,
    /// Everything before is stored. It always is.
    Flush,
    /// These bytes mean nothing any more: they may read as zero, and do.
    Trim,
    /// These bytes are zero.
    Zero,
    /// farmem's: how the volume is doing.
    Report,
    /// farmem's: the volume is no longer needed. The node frees its memory.
    Free,
    /// farmem's: asks for a mark, a number for this moment. It follows the reply, big-endian. The
    /// node knows of each page whether it was written before the mark or after it.
    Mark,
    /// farmem's: the kernel has freed slots, each after the host had learned the mark in `offset`.
    /// `length` bytes of [`Slots`] follow. The node keeps a slot that was written after the mark.
    Freed,
}

/// Neighbouring slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Slots {
    /// The first.
    pub first: U32,
    /// How many.
    pub count: U32,
}

/// Bytes of [`Slots`] that one [`Command::Freed`] carries, at most.
pub const MAX_FREED_BYTES: u32 = 1 << 16;

impl Command {
    /// By its number in a request.
    pub fn of(kind: u16) -> Option<Command> {
        Some(match kind {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            6 => Command::Zero,
            0xFA01 => Command::Report,
            0xFA02 => Command::Free,
            0xFA03 => Command::Mark,
            0xFA04 => Command::Freed,
            _ => return None,
        })
    }

    /// Its number in a request.
    pub fn number(self) -> u16 {
        match self {
            Command::Read => 0,
            Command::Write => 1,
            Command::Disconnect => 2,
            Command::Flush => 3,
            Command::Trim => 4,
            Command::Zero => 6,
            Command::Report => 0xFA01,
            Command::Free => 0xFA02,
            Command::Mark => 0xFA03,
            Command::Freed => 0xFA04,
        }
    }
}

/// Why a request was not carried out, as NBD numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Refusal {
    /// The volume was freed.
    Gone = 5,
    /// A range that is not whole pages, or leaves the volume, or is too long; or a command that
    /// does not exist.
    Invalid = 22,
    /// The node has no memory for it, or the volume has its quota.
    NoSpace = 28,
}

/// A request that makes sense as a frame. Whether it can be carried out is another matter
/// ([`Asked::range`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The command. `None`: it does not exist and is refused, and the stream goes on with the next
    /// request.
    pub command: Option<Command>,
    /// Names it.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

/// The stream is out of step: it can only be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfStep;

impl Asked {
    /// The request at the front of `input`; `None` when it is not there whole.
    ///
    /// # Errors
    /// When the bytes are no request, or one whose end cannot be known: a WRITE of more than
    /// [`MAX_BYTES`], a FREED of more than [`MAX_FREED_BYTES`] or of half a record.
    pub fn parse(input: &[u8]) -> Result<Option<Asked>, OutOfStep> {
        let known = input.len().min(4);
        if input[..known] != REQUEST_MAGIC.to_be_bytes()[..known] {
            return Err(OutOfStep);
        }
        let Ok((request, _)) = Request::read_from_prefix(input) else { return Ok(None) };
        let command = Command::of(request.kind.get());
        let length = request.length.get();
        let is_whole = match command {
            Some(Command::Write) => length <= MAX_BYTES,
            Some(Command::Freed) => length <= MAX_FREED_BYTES && (length as usize).is_multiple_of(size_of::<Slots>()),
            _ => true,
        };
        if !is_whole {
            return Err(OutOfStep);
        }
        Ok(Some(Asked { command, cookie: request.cookie.get(), offset: request.offset.get(), length }))
    }

    /// The bytes of a request without its payload.
    pub fn frame(command: Command, cookie: u64, offset: u64, length: u32) -> Request {
        Request {
            magic: REQUEST_MAGIC.into(),
            flags: 0.into(),
            kind: command.number().into(),
            cookie: cookie.into(),
            offset: offset.into(),
            length: length.into(),
        }
    }

    /// The pages that it names of a volume of `pages` pages: the first, and how many.
    pub fn range(&self, pages: u32) -> Result<(u32, u32), Refusal> {
        let (length, size) = (self.length as u64, pages as u64 * PAGE);
        // TRIM has no bytes that would have to be held: a whole volume of 4 GiB less a page can be
        // trimmed at once.
        let trims = self.command == Some(Command::Trim);
        let whole = self.offset.is_multiple_of(PAGE) && length.is_multiple_of(PAGE) && length > 0;
        let inside = self.offset.checked_add(length).is_some_and(|end| end <= size);
        if !whole || !inside || self.length > MAX_BYTES && !trims {
            return Err(Refusal::Invalid);
        }
        Ok(((self.offset / PAGE) as u32, (length / PAGE) as u32))
    }

    /// The reply to it.
    pub fn reply(&self, ended: Result<(), Refusal>) -> Reply {
        let error = ended.map_or_else(|refusal| refusal as u32, |()| 0);
        Reply { magic: REPLY_MAGIC.into(), error: error.into(), cookie: self.cookie.into() }
    }
}

const _: () = assert!(size_of::<Request>() == 28 && size_of::<Reply>() == 16 && size_of::<Report>() == 56);
const _: () = assert!(size_of::<Slots>() == 8);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_is_what_the_kernel_sends() {
        let bytes =
            [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 1, 0, 0, 0x10, 0, 0, 0, 0x20, 0];
        let asked = Asked::parse(&bytes).unwrap().unwrap();
        assert_eq!(asked.command, Some(Command::Write));
        assert_eq!((asked.cookie, asked.offset, asked.length), (0x0102_0304_0506_0708, 0x1_0000_1000, 8192));
        assert_eq!(Asked::frame(Command::Write, asked.cookie, asked.offset, 8192).as_bytes(), bytes);
        assert_eq!(asked.reply(Ok(())).as_bytes()[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
    }

    #[test]
    fn half_a_request_is_waited_for_and_nonsense_is_not() {
        let whole = Asked::frame(Command::Read, 1, 0, 4096);
        for len in 0..28 {
            assert_eq!(Asked::parse(&whole.as_bytes()[..len]), Ok(None), "{len}");
        }
        assert_eq!(Asked::parse(b"\x25\x60\x95\x12"), Err(OutOfStep));
        assert_eq!(Asked::parse(b"f"), Err(OutOfStep));
        let long = Asked::frame(Command::Write, 1, 0, MAX_BYTES + 1);
        assert_eq!(Asked::parse(long.as_bytes()), Err(OutOfStep));
        for length in [MAX_FREED_BYTES + 8, 12] {
            assert_eq!(Asked::parse(Asked::frame(Command::Freed, 1, 0, length).as_bytes()), Err(OutOfStep));
        }
    }

    proptest! {
        #[test]
        fn a_range_that_is_admitted_lies_inside(kind in 0..8u16, offset: u64, length: u32, near: bool, pages in 0..5000u32) {
            let offset = if near { offset % (pages as u64 * 4096 + 8192) / 512 * 512 } else { offset };
            let length = if near { length % (20 << 20) / 2048 * 2048 } else { length };
            let asked = Asked { command: Command::of(kind), cookie: 0, offset, length };
            if let Ok((first, count)) = asked.range(pages) {
                prop_assert!(count > 0 && first as u64 + count as u64 <= pages as u64);
                prop_assert_eq!((first as u64 * 4096, count as u64 * 4096), (offset, length as u64));
            }
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(Some(asked)) = Asked::parse(&bytes) {
                prop_assert!(asked.command != Some(Command::Write) || asked.length <= MAX_BYTES);
            }
        }
    }
}
