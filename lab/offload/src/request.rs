//! Work requests, as they lie in memory, where other requests can patch them.
//!
//! ```text
//!  byte 0      1       2        4         8          16        24        32        40        48      56 …  128
//!  | op | flags | parts | 0    | 0       | target   | remote  | key     | operand | second  | 5 parts, 16 B each |
//!     8     8       8      8       32        64        64        64        64         64      address 64, len 32, key 32
//! ```
//!
//! | op | target | remote, key | operand, second | parts |
//! |---|---|---|---|---|
//! | READ, WRITE | | what is read, written | | where to, where from, in order |
//! | FAA | | the word | added; boundary mask: no carry leaves a set bit | where the old value goes |
//! | BIND | window's key | first byte of the range | queue pair; rights and length (`rights << 56 \| len`) | where the new key goes |
//! | INVALIDATE | window's key | | | where the new key goes |
//! | WAIT | completion queue `<< 32 \|` count | | | |
//! | ENABLE | work queue `<< 32 \|` index | | | |
//!
//! The fields stand as those of mlx5 that `docs/design/offload-mlx5.md` names stand to one
//! another: a BIND's key and start are neighbours, so that one part of a READ fills
//! both. All numbers are little-endian here; a card's requests are big-endian.

use farmem_protocol::wire::variant;
use zerocopy::{Immutable, KnownLayout, TryFromBytes};

/// Bytes of a request.
pub const REQUEST_BYTES: u64 = 128;
/// Parts of a request, at most.
pub const PARTS: usize = 5;

/// Where its fields are.
pub const TARGET: u64 = 8;
/// See the drawing.
pub const REMOTE: u64 = 16;
/// See the drawing.
pub const OPERAND: u64 = 32;
const KEY: u64 = 24;
/// See the drawing.
pub const SECOND: u64 = 40;
const PART: u64 = 48;

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Op {
    /// Nothing.
    Nop = 0,
    /// Bytes from `remote` to the parts.
    Read = 1,
    /// Bytes from the parts to `remote`.
    Write = 2,
    /// Adds to the word at `remote`.
    Faa = 3,
    /// Binds a window.
    Bind = 4,
    /// Unbinds a window.
    Invalidate = 5,
    /// Holds up its queue until a completion queue has counted so far.
    Wait = 6,
    /// Lets a work queue go on up to an index.
    Enable = 7,
}

/// INVALIDATE: only if the window is bound to the queue pair that this chain serves.
pub const CHECK_QUEUE: u8 = 1;

/// Which memory an address may be in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, TryFromBytes, KnownLayout, Immutable)]
#[repr(u32)]
pub enum Region {
    /// The work queues of the chain itself.
    Requests = 1,
    /// Ring, head, tail and table.
    Table = 2,
    /// As [`Region::Table`], and the chunks too. (What the published free chain reads entries through.)
    Everything = 3,
    /// The answer to the client.
    Reply = 4,
    /// Zeros.
    Zeros = 5,
    /// The chunks.
    Chunks = 6,
    /// The entries of the table and nothing else.
    Entries = 7,
}

impl Region {
    /// From its number; `None` if there is none: a protection error.
    pub fn named(number: u64) -> Option<Region> {
        u32::try_from(number).ok().and_then(variant)
    }
}

/// A piece of local memory of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// In which memory.
    pub region: Region,
}

/// A request, taken out of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// [`CHECK_QUEUE`].
    pub flags: u8,
    /// See the table above.
    pub target: u64,
    /// See the table above.
    pub remote: u64,
    /// Which memory `remote` is in: a [`Region`]'s number.
    pub key: u64,
    /// See the table above.
    pub operand: u64,
    /// See the table above.
    pub second: u64,
    /// Local memory.
    pub parts: [Option<Part>; PARTS],
}

impl Request {
    /// One that does nothing yet.
    pub const fn new(op: Op) -> Request {
        Request { op, flags: 0, target: 0, remote: 0, key: 0, operand: 0, second: 0, parts: [None; PARTS] }
    }

    /// At `remote`, in this memory.
    pub const fn at(self, remote: u64, region: Region) -> Request {
        Request { remote, key: region as u64, ..self }
    }

    /// One more part. What is beyond [`PARTS`] is left out.
    pub fn part(mut self, address: u64, len: u32, region: Region) -> Request {
        if let Some(free) = self.parts.iter_mut().find(|part| part.is_none()) {
            *free = Some(Part { address, len, region });
        }
        self
    }

    /// As it lies in memory.
    pub fn bytes(&self) -> [u8; REQUEST_BYTES as usize] {
        let mut bytes = [0; REQUEST_BYTES as usize];
        bytes[0] = self.op as u8;
        bytes[1] = self.flags;
        bytes[2] = self.parts.iter().flatten().count() as u8;
        let fields = [(TARGET, self.target), (REMOTE, self.remote), (KEY, self.key)];
        for (at, field) in fields.into_iter().chain([(OPERAND, self.operand), (SECOND, self.second)]) {
            bytes[at as usize..at as usize + 8].copy_from_slice(&field.to_le_bytes());
        }
        for (n, part) in self.parts.iter().flatten().enumerate() {
            let at = PART as usize + 16 * n;
            bytes[at..at + 8].copy_from_slice(&part.address.to_le_bytes());
            bytes[at + 8..at + 12].copy_from_slice(&part.len.to_le_bytes());
            bytes[at + 12..at + 16].copy_from_slice(&(part.region as u32).to_le_bytes());
        }
        bytes
    }

    /// From memory, whatever was patched into it; `None` when it makes no sense.
    pub fn of(bytes: &[u8; REQUEST_BYTES as usize]) -> Option<Request> {
        let word = |at: u64| u64::from_le_bytes(*bytes[at as usize..].first_chunk().expect("inside the request"));
        let op = match bytes[0] {
            0 => Op::Nop,
            1 => Op::Read,
            2 => Op::Write,
            3 => Op::Faa,
            4 => Op::Bind,
            5 => Op::Invalidate,
            6 => Op::Wait,
            7 => Op::Enable,
            _ => return None,
        };
        let mut parts = [None; PARTS];
        for n in 0..bytes[2] as usize {
            let at = PART + 16 * n as u64;
            let (len, region) = (word(at + 8) as u32, Region::named(word(at + 8) >> 32)?);
            *parts.get_mut(n)? = Some(Part { address: word(at), len, region });
        }
        let (target, remote, key) = (word(TARGET), word(REMOTE), word(KEY));
        Some(Request { op, flags: bytes[1], target, remote, key, operand: word(OPERAND), second: word(SECOND), parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_in_memory_is_the_request() {
        let request = Request {
            flags: CHECK_QUEUE,
            target: 1,
            operand: 2,
            second: 3,
            ..Request::new(Op::Bind).at(4, Region::Chunks).part(5, 6, Region::Reply).part(7, 8, Region::Requests)
        };
        let mut bytes = request.bytes();
        assert_eq!(Request::of(&bytes), Some(request));
        assert_eq!(bytes[TARGET as usize..REMOTE as usize + 8], [1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        bytes[2] = 6;
        assert_eq!(Request::of(&bytes), None, "more parts than there can be");
        bytes[0] = 99;
        assert_eq!(Request::of(&bytes), None, "no such op");
    }
}
