//! The owner table: the leased incarnations that may hold memory.
//!
//! One entry of 32 bytes for each owner:
//!
//! ```text
//!  0        8           16      24     32
//!  | word   | heartbeat | quota | held |     u64 each, little-endian
//!
//!  word:   63   60 59                         32 31                           0
//!          | state |             0              |         incarnation          |
//!
//!  heartbeat  the owner's to change, by plain WRITE: as long as it changes, the lease holds
//!  quota      chunks it may hold; the node's to change
//!  held       chunks it holds, counted at each CAS where the node's NIC can; else unused
//! ```
//!
//! ```text
//!         register            lease expired           its verbs have ended      no word names it
//!  VACANT ────────► LIVE(k) ───────────────► FENCED(k) ─────────────► DEAD(k) ───────────► VACANT(k+1)
//!                     └── goodbye ─────────────┘                        any member recovers
//! ```
//!
//! The node makes all of these transitions. From FENCED on, no verb of a queue pair bound to
//! (owner, k) is admitted. DEAD says that the verbs admitted before have ended. Only then may
//! others touch the units that the owner left. A client that was only slow finds its verbs refused,
//! and starts again as another incarnation that holds nothing.

use super::word::Owner;

/// The state of an owner's slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Lease {
    /// Free; no word names it.
    Vacant = 0,
    /// Its verbs are admitted.
    Live = 1,
    /// Nothing new is admitted; verbs admitted before may be under way.
    Fenced = 2,
    /// None of its verbs is under way. The units that its words name can be recovered.
    Dead = 3,
}

/// The first word of an owner's entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct OwnerWord(pub u64);

impl OwnerWord {
    /// A word of these fields.
    pub const fn new(lease: Lease, incarnation: u32) -> OwnerWord {
        OwnerWord((lease as u64) << 60 | incarnation as u64)
    }

    /// The lease. Bits that are no lease count as Fenced: no verbs pass, and no words are touched.
    pub const fn lease(self) -> Lease {
        match self.0 >> 60 {
            0 => Lease::Vacant,
            1 => Lease::Live,
            3 => Lease::Dead,
            _ => Lease::Fenced,
        }
    }

    /// Which of those that have used this slot.
    pub const fn incarnation(self) -> u32 {
        self.0 as u32
    }

    /// Whether verbs of a queue pair bound to this incarnation may pass.
    pub const fn admits(self, incarnation: u32) -> bool {
        self.0 == OwnerWord::new(Lease::Live, incarnation).0
    }

    /// A newcomer takes the slot; None unless it is vacant. The last incarnation is not used, so
    /// that they never come round.
    pub const fn registered(self) -> Option<OwnerWord> {
        match self.lease() {
            Lease::Vacant if self.incarnation() < u32::MAX => Some(OwnerWord::new(Lease::Live, self.incarnation())),
            _ => None,
        }
    }

    /// The lease has expired, or the owner says goodbye; None unless it is live.
    pub const fn fenced(self) -> Option<OwnerWord> {
        match self.lease() {
            Lease::Live => Some(OwnerWord::new(Lease::Fenced, self.incarnation())),
            _ => None,
        }
    }

    /// Every verb admitted before the fence has ended; None unless it is fenced.
    pub const fn died(self) -> Option<OwnerWord> {
        match self.lease() {
            Lease::Fenced => Some(OwnerWord::new(Lease::Dead, self.incarnation())),
            _ => None,
        }
    }

    /// A whole scan has found no word that names it; None unless it is dead.
    pub const fn vacated(self) -> Option<OwnerWord> {
        match self.lease() {
            Lease::Dead => Some(OwnerWord::new(Lease::Vacant, self.incarnation() + 1)),
            _ => None,
        }
    }
}

/// The words of an owner's entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum OwnerField {
    /// The [`OwnerWord`].
    Word = 0,
    /// Changes while the owner lives.
    Heartbeat = 1,
    /// Chunks it may hold.
    Quota = 2,
    /// Chunks it holds.
    Held = 3,
}

/// Bytes of an entry.
pub const OWNER_BYTES: u64 = 32;
/// Owners a table can have, the node's slot 0 included.
pub const MAX_OWNERS: u16 = 1 << Owner::BITS;
