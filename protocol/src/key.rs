//! Keys: the right by which a verb reaches memory.
//!
//! ```text
//!  63 62  61  60 59                32 31                       0
//!  | 00 | 0 |                slab's number                     |   a slab: its holder's, until released
//!  | 00 | 1 | 0 |  index, 28 bits   |      generation          |   a window: bound to a range
//!  | 00 | 1 | 1 |        0          |        service           |   a service of the node's own
//!  | 01 |       index, 30 bits      |      generation          |   a unit (01), a block (10), a giant (11):
//!                                                                 its descriptor word is the right
//! ```
//!
//! No key ever means two things: slabs are never granted twice, and the generation
//! of a window or a unit only grows. A window whose generation is used up is not
//! bound again.

use crate::addr::SlabId;

/// The right by which a verb reaches memory, as it stands in the verb.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct Key(pub u64);

/// The kind of thing that a key names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyKind {
    /// A slab.
    Slab(SlabId),
    /// A window at the node, by its index there and the generation of its binding.
    Window {
        /// Below [`WINDOWS`].
        index: u32,
        /// Grows with every BIND and every INVALIDATE; odd while the window is bound.
        generation: u32,
    },
    /// A unit of the pool, by its descriptor word and that word's generation.
    Unit {
        /// 1: 4 KiB, 2: 2 MiB, 3: 1 GiB.
        level: u8,
        /// The unit's number in its level.
        index: u32,
        /// The word's generation while it is owned.
        generation: u32,
    },
    /// Something of the node's own.
    Service(u32),
}

/// Windows of one node, at most.
pub const WINDOWS: u32 = 1 << 20;

const KIND: u32 = 62;
const OWN: u64 = 1 << 61;
const SERVICE: u64 = 1 << 60;
const INDEX: u32 = 32;

impl Key {
    /// The word table of the node: READ by every member, CAS by the owner and within the rules.
    pub const WORDS: Key = Key::service(0);

    /// Functions near memory ([`crate::near`]), by SEND.
    pub const COMPUTE: Key = Key::service(16);

    /// A window's key.
    pub const fn window(index: u32, generation: u32) -> Key {
        Key(OWN | (index as u64 & 0xfff_ffff) << INDEX | generation as u64)
    }

    /// The key of a unit of the pool: level 1 to 3.
    pub const fn unit(level: u8, index: u32, generation: u32) -> Key {
        Key((level as u64 & 3) << KIND | (index as u64 & 0x3fff_ffff) << INDEX | generation as u64)
    }

    /// A key of the node's own.
    pub const fn service(service: u32) -> Key {
        Key(OWN | SERVICE | service as u64)
    }

    /// The kind of thing that it names. Any 64 bits name something; the node knows whether it
    /// exists.
    pub const fn kind(self) -> KeyKind {
        let index = (self.0 >> INDEX) as u32;
        let low = self.0 as u32;
        match self.0 >> KIND {
            0 if self.0 & OWN == 0 => KeyKind::Slab(SlabId(self.0)),
            0 if self.0 & SERVICE == 0 => KeyKind::Window { index: index & 0xfff_ffff, generation: low },
            // A service's number has 32 bits; with any other bit set it is none.
            0 if index & 0xfff_ffff != 0 => KeyKind::Service(u32::MAX),
            0 => KeyKind::Service(low),
            level => KeyKind::Unit { level: level as u8, index: index & 0x3fff_ffff, generation: low },
        }
    }

    /// Whether it names a slab.
    #[inline]
    pub const fn is_slab(self) -> bool {
        self.0 >> 61 == 0
    }
}

impl From<SlabId> for Key {
    fn from(slab: SlabId) -> Key {
        Key(slab.0)
    }
}

/// The operations that a window allows its holder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rights(u8);

impl Rights {
    /// READ.
    pub const READ: Rights = Rights(1);
    /// WRITE.
    pub const WRITE: Rights = Rights(2);
    /// CAS and FAA.
    pub const ATOMIC: Rights = Rights(4);
    /// All of them.
    pub const ALL: Rights = Rights(7);

    /// Both.
    pub const fn and(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }

    /// Whether all of `needed` are among them.
    pub const fn include(self, needed: Rights) -> bool {
        self.0 & needed.0 == needed.0
    }

    /// From their bits; `None` when there are others, or none.
    pub const fn of(bits: u8) -> Option<Rights> {
        if bits != 0 && bits <= 7 { Some(Rights(bits)) } else { None }
    }

    /// As bits: 1 READ, 2 WRITE, 4 CAS and FAA.
    pub const fn bits(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_what_it_was_made_of() {
        let kinds = [
            (Key::window(5, u32::MAX), KeyKind::Window { index: 5, generation: u32::MAX }),
            (Key::unit(3, (1 << 30) - 1, 7), KeyKind::Unit { level: 3, index: (1 << 30) - 1, generation: 7 }),
            (Key::from(SlabId(9)), KeyKind::Slab(SlabId(9))),
            (Key::WORDS, KeyKind::Service(0)),
            (Key(u64::MAX >> 2), KeyKind::Service(u32::MAX)),
        ];
        for (key, kind) in kinds {
            assert_eq!(key.kind(), kind);
        }
        assert!(Key::from(SlabId(9)).is_slab() && !Key::WORDS.is_slab());
    }

    #[test]
    fn rights_are_three_bits() {
        let both = Rights::READ.and(Rights::ATOMIC);
        assert!(both.include(Rights::READ) && !both.include(Rights::WRITE) && !both.include(Rights::ALL));
        assert_eq!((Rights::of(5), Rights::of(0), Rights::of(8)), (Some(both), None, None));
    }
}
