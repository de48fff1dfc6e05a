//! The ring's language: words of 64 bits.
//!
//! ```text
//!  63    60 59    48 47  44 43     37 36     28 27            0
//! ┌────────┬────────┬──────┬─────────┬─────────┬───────────────┐
//! │ kind:4 │ n:12   │ ord:4│  0:7    │ first:9 │ block:28      │
//! └────────┴────────┴──────┴─────────┴─────────┴───────────────┘
//! ```
//!
//! | kind | up (application → agent) | down (agent → application) |
//! |---|---|---|
//! | 1 | FREE: the piece `block, first, ord` | GRANT: that piece |
//! | 2 | WANT: `n` pieces of `ord` | DONE: a WANT, RUN, MAP or WHERE is answered; `n` is a [`Refusal`], 0 for none |
//! | 3 | RUN: `n` adjacent blocks | RUN: those from `block` |
//! | 4 | FREE RUN: the `n` blocks from `block` | |
//! | 5 | MAP: the memory of `block`, or by what it is reached, over the socket | |
//! | 6 | WHERE: the node that `block` is at, over the socket | |
//! | 7 | MEMBER: it is member `block` of the node of number `n` | |
//!
//! A word that comes from the ring is a claim: [`Up::of`] and [`Down::of`] take no
//! other than the forms above. Whether its sender holds what it names is for
//! [`crate::stock`] to say.

use farmem_protocol::wire::variant;
use zerocopy::{Immutable, KnownLayout, TryFromBytes};

/// Chunks of a block.
pub const BLOCK_CHUNKS: u16 = 512;
/// Bytes of a chunk.
pub const CHUNK_BYTES: u64 = 4096;
/// Bytes of a block.
pub const BLOCK_BYTES: u64 = BLOCK_CHUNKS as u64 * CHUNK_BYTES;
/// The order of a whole block: a piece of order `k` is `2^k` chunks.
pub const BLOCK_ORDER: u8 = 9;
/// Adjacent blocks in a run, at most: 64 MiB.
pub const MAX_RUN: u32 = 32;
/// Chunks or pieces that one WANT may ask for.
pub const MAX_WANT: u32 = 128;

/// A block's name. When the agent uses it again for another block, all other names have been used
/// meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId(pub u32);

/// Names of blocks are below this.
pub const MAX_BLOCK_ID: u32 = 1 << 28;

/// A piece of a block: `2^order` chunks from chunk `first`, which is a multiple of that.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Piece {
    /// The block.
    pub block: BlockId,
    /// Its first chunk.
    pub first: u16,
    /// Its order, 0 (4 KiB) to 9 (2 MiB).
    pub order: u8,
}

impl Piece {
    /// Bytes of a piece of this order.
    pub const fn bytes_of(order: u8) -> u64 {
        CHUNK_BYTES << order
    }

    /// Its chunks.
    pub fn chunks(self) -> u16 {
        1 << self.order
    }

    fn is_sound(self) -> bool {
        self.order <= BLOCK_ORDER
            && self.first < BLOCK_CHUNKS
            && self.first.is_multiple_of(1 << self.order)
            && self.block.0 < MAX_BLOCK_ID
    }
}

/// Why a WANT, RUN or MAP was not answered in full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, TryFromBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum Refusal {
    /// The tenant holds all that its quota allows.
    Quota = 1,
    /// The node lends no more.
    Exhausted = 2,
    /// The agent's tables are full.
    Tables = 3,
    /// The agent has lost its node.
    Lost = 4,
    /// The system refused the agent memory or descriptors.
    System = 5,
    /// The agent holds all that its node lets one owner have.
    Share = 6,
    /// The memory is on another machine, and its node does not know the member that is to reach it.
    Stranger = 7,
    /// The block is at a node of which the agent does not know the application as a member.
    Moved = 8,
}

/// A word of an application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Up {
    /// It no longer needs a piece.
    Free(Piece),
    /// It wants pieces of an order: this many. For order 0: this many chunks, in pieces of any
    /// order.
    Want {
        /// The order.
        order: u8,
        /// How many, 1 to [`MAX_WANT`].
        count: u32,
    },
    /// It wants this many adjacent blocks.
    Run(u32),
    /// It no longer needs a run.
    FreeRun(BlockId, u32),
    /// It wants a block's memory.
    Map(BlockId),
    /// It wants to know which node a block is at.
    Where(BlockId),
    /// It is a member of a node of the agent's.
    Member {
        /// The node's number, which rises with each that the agent moves to.
        node: u32,
        /// The member's owner id.
        owner: u16,
    },
}

/// Nodes of an agent are numbered below this.
pub const MAX_NODES: u64 = 1 << 12;

/// A word of the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Down {
    /// A piece is the application's.
    Grant(Piece),
    /// The oldest WANT, RUN or MAP that has no answer yet is answered.
    Done(Option<Refusal>),
    /// The application has these adjacent blocks: the first, and their number.
    Run(BlockId, u32),
}

fn word(kind: u64, n: u64, piece: Piece) -> u64 {
    kind << 60 | n << 48 | (piece.order as u64) << 44 | (piece.first as u64) << 28 | piece.block.0 as u64
}

fn whole(block: BlockId) -> Piece {
    Piece { block, first: 0, order: 0 }
}

const NOTHING: Piece = Piece { block: BlockId(0), first: 0, order: 0 };

/// Kind, n, piece; the piece is not judged. `None`: bits that must be zero are not.
fn parts(word: u64) -> Option<(u64, u64, Piece)> {
    let field = |low: u32, bits: u32| word >> low & ((1 << bits) - 1);
    let piece = Piece { block: BlockId(field(0, 28) as u32), first: field(28, 9) as u16, order: field(44, 4) as u8 };
    (field(37, 7) == 0).then_some((field(60, 4), field(48, 12), piece))
}

fn is_run(n: u64, piece: Piece) -> bool {
    (1..=MAX_RUN as u64).contains(&n) && piece == whole(piece.block)
}

impl Up {
    /// As a word.
    pub fn bits(self) -> u64 {
        match self {
            Up::Free(piece) => word(1, 0, piece),
            Up::Want { order, count } => word(2, count as u64, Piece { order, ..NOTHING }),
            Up::Run(n) => word(3, n as u64, NOTHING),
            Up::FreeRun(block, n) => word(4, n as u64, whole(block)),
            Up::Map(block) => word(5, 0, whole(block)),
            Up::Where(block) => word(6, 0, whole(block)),
            Up::Member { node, owner } => word(7, node as u64, whole(BlockId(owner as u32))),
        }
    }

    /// From a word, if it is one.
    pub fn of(word: u64) -> Option<Up> {
        let (kind, n, piece) = parts(word)?;
        let known = match kind {
            1 if n == 0 && piece.is_sound() => Up::Free(piece),
            2 if (1..=MAX_WANT as u64).contains(&n)
                && piece.order <= BLOCK_ORDER
                && piece == (Piece { order: piece.order, ..NOTHING }) =>
            {
                Up::Want { order: piece.order, count: n as u32 }
            }
            3 if is_run(n, piece) && piece == NOTHING => Up::Run(n as u32),
            4 if is_run(n, piece) => Up::FreeRun(piece.block, n as u32),
            5 if n == 0 && piece == whole(piece.block) => Up::Map(piece.block),
            6 if n == 0 && piece == whole(piece.block) => Up::Where(piece.block),
            7 if piece == whole(piece.block) && piece.block.0 > 0 => {
                Up::Member { node: n as u32, owner: u16::try_from(piece.block.0).ok()? }
            }
            _ => return None,
        };
        Some(known)
    }
}

impl Down {
    /// As a word.
    pub fn bits(self) -> u64 {
        match self {
            Down::Grant(piece) => word(1, 0, piece),
            Down::Done(refusal) => word(2, refusal.map_or(0, |r| r as u64), NOTHING),
            Down::Run(block, n) => word(3, n as u64, whole(block)),
        }
    }

    /// From a word, if it is one.
    pub fn of(word: u64) -> Option<Down> {
        let (kind, n, piece) = parts(word)?;
        match kind {
            1 if n == 0 && piece.is_sound() => Some(Down::Grant(piece)),
            2 if n == 0 && piece == NOTHING => Some(Down::Done(None)),
            2 if piece == NOTHING => u8::try_from(n).ok().and_then(variant).map(|refusal| Down::Done(Some(refusal))),
            3 if is_run(n, piece) => Some(Down::Run(piece.block, n as u32)),
            _ => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bits_lie_where_the_drawing_says() {
        let piece = Piece { block: BlockId(0xABC_DEF0), first: 0x1F8, order: 3 };
        assert_eq!(Up::Free(piece).bits(), 0x1000_301F_8ABC_DEF0);
        assert_eq!(Up::Want { order: 9, count: 5 }.bits(), 0x2005_9000_0000_0000);
        assert_eq!(Down::Done(Some(Refusal::Lost)).bits(), 0x2004_0000_0000_0000);
    }

    proptest! {
        /// Each word that can be parsed is the only one with its meaning.
        #[test]
        fn a_word_means_one_thing_or_nothing(word: u64, kind in 0u64..8, n in 0u64..200) {
            for word in [word, word & 0x0FFF_FFFF_FFFF_FFFF | kind << 60, kind << 60 | n << 48 | word & 0xF_F1FF_FFFF_FFFF] {
                if let Some(up) = Up::of(word) {
                    prop_assert_eq!(up.bits(), word);
                }
                if let Some(down) = Down::of(word) {
                    prop_assert_eq!(down.bits(), word);
                }
            }
        }

        #[test]
        fn what_is_said_is_understood(block in 0..MAX_BLOCK_ID, order in 0u8..=9, at in 0u16..512, n in 1..=MAX_RUN, count in 1..=MAX_WANT, owner in 1..=u16::MAX) {
            let block = BlockId(block);
            let piece = Piece { block, first: at >> order << order, order };
            let member = Up::Member { node: count, owner };
            let words = [Up::Free(piece), Up::Want { order, count }, Up::Run(n), Up::FreeRun(block, n), Up::Map(block)];
            for up in words.into_iter().chain([Up::Where(block), member]) {
                prop_assert_eq!(Up::of(up.bits()), Some(up));
            }
            for down in [Down::Grant(piece), Down::Done(None), Down::Done(Some(Refusal::Quota)), Down::Run(block, n)] {
                prop_assert_eq!(Down::of(down.bits()), Some(down));
            }
        }
    }
}
