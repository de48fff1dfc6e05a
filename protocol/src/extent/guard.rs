//! The rights of a queue pair that is not trusted: the guarded CAS, and admission.
//!
//! A node's NIC asks here. Of the verbs on the word table an owner may do READ
//! (anything: the words are no secret), WRITE and FAA of its own heartbeat, and
//! CAS as below. Plain WRITE and FAA of descriptor words are never permitted,
//! not even of words that nobody else can see: a WRITE that was delayed carries
//! no generation to fail by, and would put an old word over a living one.
//!
//! | from | to | on condition |
//! |---|---|---|
//! | FREE | OWNED(self), SPLITTING(self) | not worn; splitting: not a chunk |
//! | OWNED(self) | QUARANTINE | its parent is open |
//! | OWNED(self) | SHARED | its parent is open, no child is ABSENT |
//! | SPLITTING(self) | SHARED | no child is ABSENT |
//! | ABSENT | FREE | its parent is SPLITTING(self) |
//! | ABSENT | OWNED(self), QUARANTINE | its parent is OWNED(self), in an open giant |
//!
//! Each transition raises the generation by exactly one. An owner whose lease is DEAD may stand in
//! place of *self* for QUARANTINE, and for taking over a split (SPLITTING(dead) → SPLITTING(self)).
//! Recovery is open to all, because its transitions harm nobody alive. Merging, retiring and
//! QUARANTINE → FREE are the node's, whose own verbs do not pass the guard. A host's agent that the
//! node trusts may be exempted too.
//!
//! # How the NIC must ask
//!
//! The condition looks at other words, and the CAS changes only one. In this
//! order it is sound without a lock: (1) load the word; if it is not the
//! expected one the CAS has failed, return what was loaded; (2) ask
//! [`permits`], which loads the others; (3) do the CAS. Words never come back,
//! so if (3) succeeds the word stood still from (1) to (3), and while it stands
//! still none of the conditions can become false: a parent that is open cannot
//! close over a child that is OWNED, FREE or QUARANTINE; a child that is no
//! longer ABSENT under SPLITTING or OWNED only becomes so again through the
//! node's merge or drain. The one exception is *its parent is OWNED(self)*,
//! which another queue pair of the same owner can end: the drain of the parent
//! waits for this verb too, and looks at the children afterwards.

use super::geometry::Geometry;
use super::key::{Key, Subject};
use super::owner::{Lease, OwnerWord};
use super::place::Place;
use super::word::{Owner, State, Word};
use std::ops::Range;

/// The word table, to look things up in. Each load is atomic by itself.
pub trait Words {
    /// A unit's descriptor word. `place` exists in the geometry.
    fn word(&self, place: Place) -> Word;
    /// An owner's first word. `owner` exists in the geometry.
    fn owner(&self, owner: Owner) -> OwnerWord;
}

/// Why a verb was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Denied {
    /// The place does not exist.
    #[error("there is no such unit at this node")]
    Nowhere,
    /// The owner is not live.
    #[error("the lease of this owner has ended: register anew, and claim anew")]
    Fenced,
    /// Not this owner's.
    #[error("the unit is another owner's")]
    NotYours,
    /// The generation is not the next one, or there is none left.
    #[error("the generation of the new word is not the next one")]
    Generation,
    /// Fields that mean nothing in the new state are not zero, or it names another owner.
    #[error("the new word is not well formed")]
    Malformed,
    /// No owner may make this transition.
    #[error("no owner may make this transition")]
    Transition,
    /// The parent does not allow it.
    #[error("the state of the unit around it does not allow this")]
    Parent,
    /// A child is still ABSENT.
    #[error("a unit within it has no word of its own yet")]
    Children,
    /// The key was for an earlier grant.
    #[error("the key is of an earlier grant")]
    Stale,
    /// Beyond the unit's bytes.
    #[error("beyond the bytes that the key is for")]
    OutOfRange,
    /// A key of a window, which this table knows nothing of.
    #[error("not a key of a unit")]
    NotAUnit,
}

/// By how much a CAS, if it succeeds, changes what an owner holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Charge {
    /// Whose account.
    pub owner: Owner,
    /// In chunks.
    pub chunks: i64,
}

/// Whether a CAS of the word at `place` from `old`, which it was just seen to be, to `new` is
/// permitted to a queue pair of `who`, and what it costs. See the module for how to ask.
pub fn permits(
    geometry: &Geometry,
    place: Place,
    old: Word,
    new: Word,
    who: Owner,
    table: &impl Words,
) -> Result<Charge, Denied> {
    if !geometry.has(place) {
        return Err(Denied::Nowhere);
    }
    if who.is_node() || who.slot() >= geometry.owners() || table.owner(who).lease() != Lease::Live {
        return Err(Denied::Fenced);
    }
    if old.generation().next() != Some(new.generation()) {
        return Err(Denied::Generation);
    }
    if !new.is_canonical() || (new.state().is_named() && new.owner() != who) {
        return Err(Denied::Malformed);
    }
    let all = geometry.chunks_of(place.level) as i64;
    let charge = |owner: Owner, chunks: i64| Ok(Charge { owner, chunks });
    let splits = |to: State| to == State::Owned || (to == State::Splitting && place.level.child().is_some());
    match (old.state(), new.state()) {
        (State::Free, to) if splits(to) => {
            if old.generation().is_worn() {
                return Err(Denied::Generation);
            }
            charge(who, all)
        }
        (State::Owned, State::Quarantine) => {
            mine_or_dead(geometry, old, who, table)?;
            parent_open(geometry, place, table)?;
            charge(old.owner(), -all)
        }
        (State::Splitting, State::Splitting) => match old.owner() {
            owner if owner == who => Err(Denied::Transition),
            _ => {
                mine_or_dead(geometry, old, who, table)?;
                charge(who, all)
            }
        },
        (from @ (State::Owned | State::Splitting), State::Shared) => {
            if old.owner() != who {
                return Err(Denied::NotYours);
            }
            parent_open(geometry, place, table)?;
            let kept = children_held(geometry, place, who, table)?;
            charge(who, if from == State::Owned { kept - all } else { -all })
        }
        (State::Absent, to @ (State::Free | State::Owned | State::Quarantine)) => {
            let around = geometry.parent(place).ok_or(Denied::Transition)?;
            let parent = table.word(around);
            let wanted = if to == State::Free { State::Splitting } else { State::Owned };
            if !parent.is(wanted) {
                return Err(Denied::Parent);
            }
            if parent.owner() != who {
                return Err(Denied::NotYours);
            }
            parent_open(geometry, around, table)?;
            charge(who, 0)
        }
        _ => Err(Denied::Transition),
    }
}

/// Whether `old` is `who`'s, or a dead owner's.
fn mine_or_dead(geometry: &Geometry, old: Word, who: Owner, table: &impl Words) -> Result<(), Denied> {
    let owner = old.owner();
    let dead = !owner.is_node() && owner.slot() < geometry.owners() && table.owner(owner).lease() == Lease::Dead;
    if owner == who || dead { Ok(()) } else { Err(Denied::NotYours) }
}

/// Whether the unit's own word counts.
fn parent_open(geometry: &Geometry, place: Place, table: &impl Words) -> Result<(), Denied> {
    match geometry.parent(place) {
        Some(parent) if !table.word(parent).state().is_open() => Err(Denied::Parent),
        _ => Ok(()),
    }
}

/// Chunks in it that `who` holds by children's words; refused if a child has none. 512 loads of
/// neighbouring words, a fraction of a microsecond, and only where a unit is opened.
fn children_held(geometry: &Geometry, place: Place, who: Owner, table: &impl Words) -> Result<i64, Denied> {
    let Some((first, count)) = geometry.children(place) else { return Err(Denied::Transition) };
    let mut held = 0;
    for child in 0..count {
        let word = table.word(first.plus(child));
        if word.is(State::Absent) {
            return Err(Denied::Children);
        }
        if word.is_held_by(who) {
            held += geometry.chunks_of(first.level) as i64;
        }
    }
    Ok(held)
}

/// Whether a data verb of `len` bytes at `offset` of the unit that `key` is for is admitted from a
/// queue pair of `who`; where these bytes are in the memory lent.
///
/// The executor calls it, and moves the bytes, inside one *epoch* that a drain waits for: then
/// nothing admitted under a word outlasts the quarantine that follows it. It checks the queue
/// pair's incarnation itself ([`OwnerWord::admits`]), at the latest in the same epoch.
pub fn admits(
    geometry: &Geometry,
    key: Key,
    who: Owner,
    offset: u64,
    len: u64,
    table: &impl Words,
) -> Result<Range<u64>, Denied> {
    let Subject::Unit(place) = key.subject() else { return Err(Denied::NotAUnit) };
    if !geometry.has(place) {
        return Err(Denied::Nowhere);
    }
    let bytes = geometry.bytes(place);
    let end = offset.checked_add(len).ok_or(Denied::OutOfRange)?;
    if end > bytes.end - bytes.start {
        return Err(Denied::OutOfRange);
    }
    let word = table.word(place);
    if word.generation() != key.tag() {
        return Err(Denied::Stale);
    }
    if !word.is_held_by(who) {
        return Err(Denied::NotYours);
    }
    Ok(bytes.start + offset..bytes.start + end)
}
