//! The descriptor word: allocation state, owner record and access right at once.
//!
//! ```text
//! 63   60 59              46 45   42 41          32 31                           0
//! | state |      owner      | order |  claimant   |          generation          |
//!     4           14            4         10                    32
//!
//! state       State
//! owner       who holds the unit, or is splitting or merging it; 0 in every other state
//! order       log2 of the run that the unit was claimed in (15: longer); for operators' eyes
//! claimant    which queue pair of the owner claimed it, so that two of them that both lost
//!             an answer can tell whose CAS it was
//! generation  one more at every transition but QUARANTINE → FREE; the tag of the unit's key
//! ```
//!
//! ```text
//!             claim                release               drained, scrubbed (node)
//!    FREE ───────────► OWNED(o) ───────────► QUARANTINE ───────────► FREE
//!     │                    │
//!     │ split              │ publish: the children first, then this one CAS
//!     ▼                    ▼
//!  SPLITTING(o) ───────► SHARED ◄──────────── MERGING(o) ──────────► FREE
//!      children ABSENT→FREE  └───────────────────▲   children FREE→ABSENT
//! ```
//!
//! A word of all zeros is ABSENT with generation 0, so that untouched memory is
//! a valid table. No value of a word ever comes back: generations only grow, the
//! two states that share a generation (QUARANTINE, then FREE) differ, and a unit
//! whose generation is used up is retired ([`Generation::is_worn`]). Hence a CAS
//! that was delayed for however long either still describes the present or fails.

/// The state of a unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum State {
    /// Not a unit now: part of its parent, whose word says the rest.
    Absent = 0,
    /// Clean, drained, anybody's to claim.
    Free = 1,
    /// Held whole by its owner, whose verbs are admitted.
    Owned = 2,
    /// Given back, not yet drained and scrubbed. Only the node makes it FREE.
    Quarantine = 3,
    /// It was FREE; its owner is making its children FREE. It ends as SHARED, even if the owner
    /// dies.
    Splitting = 4,
    /// Its children's words are the truth.
    Shared = 5,
    /// Was SHARED; its owner is freezing free children. Ends as FREE, or back at SHARED.
    Merging = 6,
    /// Retired or never there.
    Bad = 7,
}

impl State {
    /// The state of a word's top four bits. Bits that are no state give [`State::Bad`].
    #[inline(always)]
    pub const fn from_bits(bits: u64) -> State {
        match bits & 15 {
            0 => State::Absent,
            1 => State::Free,
            2 => State::Owned,
            3 => State::Quarantine,
            4 => State::Splitting,
            5 => State::Shared,
            6 => State::Merging,
            _ => State::Bad,
        }
    }

    /// Whether the unit is *open*: its children's words count, and may move by themselves.
    #[inline(always)]
    pub const fn is_open(self) -> bool {
        matches!(self, State::Splitting | State::Shared | State::Merging)
    }

    /// Whether a word in this state names an owner.
    #[inline(always)]
    pub const fn is_named(self) -> bool {
        matches!(self, State::Owned | State::Splitting | State::Merging)
    }

    /// As operators and the design page write it.
    pub const fn name(self) -> &'static str {
        match self {
            State::Absent => "ABSENT",
            State::Free => "FREE",
            State::Owned => "OWNED",
            State::Quarantine => "QUARANTINE",
            State::Splitting => "SPLITTING",
            State::Shared => "SHARED",
            State::Merging => "MERGING",
            State::Bad => "BAD",
        }
    }
}

/// One incarnation of somebody who holds memory: a slot of the node's owner table, 1 to 16383.
/// The slot is given to the next only when no word names it any more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Owner(u16);

impl Owner {
    /// Bits in a word.
    pub const BITS: u32 = 14;
    /// The node itself, which also stands for "nobody".
    pub const NODE: Owner = Owner(0);

    /// The owner in this slot of the table.
    ///
    /// # Panics
    /// If it does not fit in 14 bits.
    #[inline]
    pub const fn new(slot: u16) -> Owner {
        assert!(slot < 1 << Owner::BITS, "an owner has 14 bits");
        Owner(slot)
    }

    /// The owner of a number that another machine has said. `None`: there is none of this number.
    pub const fn said(slot: u16) -> Option<Owner> {
        if slot != 0 && slot < 1 << Owner::BITS { Some(Owner(slot)) } else { None }
    }

    /// Its slot in the owner table.
    #[inline(always)]
    pub const fn slot(self) -> u16 {
        self.0
    }

    /// Whether this is the node, or nobody.
    #[inline(always)]
    pub const fn is_node(self) -> bool {
        self.0 == 0
    }
}

/// One queue pair (or thread) of an owner, 0 to 1023. Of two claims that may be under way at the
/// same time for one owner, the claimants differ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Claimant(u16);

impl Claimant {
    /// Bits in a word.
    pub const BITS: u32 = 10;

    /// Marks words of granted slabs, which only the node changes. No queue pair of a member may use
    /// it.
    pub const SLAB: Claimant = Claimant::new((1 << Claimant::BITS) - 1);

    /// The claimant of this number.
    ///
    /// # Panics
    /// If it does not fit in 10 bits.
    #[inline]
    pub const fn new(number: u16) -> Claimant {
        assert!(number < 1 << Claimant::BITS, "a claimant has 10 bits");
        Claimant(number)
    }

    /// Its number.
    #[inline(always)]
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// How many transitions a unit has been through.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Generation(pub u32);

impl Generation {
    /// From here on a unit starts nothing new, and changes under way have room to end. At a million
    /// grants a second of the one unit it takes 35 minutes to get here. Then the node retires the
    /// unit instead of freeing it.
    pub const WORN: Generation = Generation(u32::MAX - 255);

    /// The next one, if there is one.
    #[inline(always)]
    pub const fn next(self) -> Option<Generation> {
        match self.0.checked_add(1) {
            Some(next) => Some(Generation(next)),
            None => None,
        }
    }

    /// Whether the unit must not be claimed, split or merged any more.
    #[inline(always)]
    pub const fn is_worn(self) -> bool {
        self.0 >= Generation::WORN.0
    }
}

const STATE_SHIFT: u32 = 60;
const OWNER_SHIFT: u32 = 46;
const ORDER_SHIFT: u32 = 42;
const CLAIMANT_SHIFT: u32 = 32;
const OWNER_MASK: u64 = (1 << Owner::BITS) - 1;
const CLAIMANT_MASK: u64 = (1 << Claimant::BITS) - 1;
const ORDER_MASK: u64 = 15;

const _: () = {
    assert!(CLAIMANT_SHIFT == 32 && ORDER_SHIFT == CLAIMANT_SHIFT + Claimant::BITS);
    assert!(OWNER_SHIFT == ORDER_SHIFT + 4 && STATE_SHIFT == OWNER_SHIFT + Owner::BITS);
    assert!(STATE_SHIFT + 4 == u64::BITS && size_of::<Word>() == 8);
};

/// A value of a descriptor word. In memory and on the wire little-endian.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Word(pub u64);

impl Word {
    /// Untouched memory: ABSENT, generation 0.
    pub const ZERO: Word = Word(0);

    /// A word of these fields. `order` is cut off at 15.
    #[inline]
    pub const fn new(state: State, owner: Owner, order: u8, claimant: Claimant, generation: Generation) -> Word {
        let order = if order > 15 { 15 } else { order as u64 };
        Word(
            (state as u64) << STATE_SHIFT
                | (owner.0 as u64) << OWNER_SHIFT
                | order << ORDER_SHIFT
                | (claimant.0 as u64) << CLAIMANT_SHIFT
                | generation.0 as u64,
        )
    }

    /// A word that names nobody.
    #[inline]
    pub const fn plain(state: State, generation: Generation) -> Word {
        Word::new(state, Owner::NODE, 0, Claimant(0), generation)
    }

    /// The state.
    #[inline(always)]
    pub const fn state(self) -> State {
        State::from_bits(self.0 >> STATE_SHIFT)
    }

    /// The owner.
    #[inline(always)]
    pub const fn owner(self) -> Owner {
        Owner((self.0 >> OWNER_SHIFT & OWNER_MASK) as u16)
    }

    /// The order of the run it was claimed in.
    #[inline(always)]
    pub const fn order(self) -> u8 {
        (self.0 >> ORDER_SHIFT & ORDER_MASK) as u8
    }

    /// The claimant.
    #[inline(always)]
    pub const fn claimant(self) -> Claimant {
        Claimant((self.0 >> CLAIMANT_SHIFT & CLAIMANT_MASK) as u16)
    }

    /// The generation.
    #[inline(always)]
    pub const fn generation(self) -> Generation {
        Generation(self.0 as u32)
    }

    /// Whether the unit is in this state.
    #[inline(always)]
    pub const fn is(self, state: State) -> bool {
        self.state() as u8 == state as u8
    }

    /// Whether `owner` holds the unit whole.
    #[inline(always)]
    pub const fn is_held_by(self, owner: Owner) -> bool {
        self.is(State::Owned) && self.owner().0 == owner.0
    }

    /// Whether every field that the state does not use is zero. So words without an owner are
    /// predictable: an owner that gives a unit back knows the word that it will have once FREE.
    pub const fn is_canonical(self) -> bool {
        let state = self.state();
        if self.0 >> STATE_SHIFT != state as u64 {
            return false;
        }
        match state {
            State::Owned => true,
            State::Splitting | State::Merging => self.order() == 0,
            _ => self.0 << 4 >> 36 == 0,
        }
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.state().name())?;
        if self.state().is_named() || !self.is_canonical() {
            write!(f, "({}.{})", self.owner().0, self.claimant().0)?;
        }
        if self.order() > 0 {
            write!(f, "^{}", self.order())?;
        }
        write!(f, "#{}", self.generation().0)
    }
}
