//! Recounting a table: every byte accounted for once, every word possible.
//!
//! | unit | its children may be |
//! |---|---|
//! | ABSENT, FREE, BAD | ABSENT, BAD (retired: the bytes go with the unit) |
//! | OWNED(o) | the same, OWNED(o), QUARANTINE (a publication being prepared) |
//! | QUARANTINE | the same, OWNED, QUARANTINE (one that never came) |
//! | SHARED | anything but ABSENT |
//! | SPLITTING, MERGING | anything |
//!
//! The words of a live pool cannot be read at one moment. A false problem of a pool in use is gone
//! at the next look. So take as a problem only what two recounts in a row show at the same place
//! with the same words.

use super::geometry::Geometry;
use super::guard::Words;
use super::owner::Lease;
use super::place::{Level, Place};
use super::word::{Owner, State, Word};
use std::collections::BTreeMap;

/// A place that cannot be as it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// Its word.
    pub word: Word,
    /// The kind of problem.
    pub what: Wrong,
}

/// A problem with a place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wrong {
    /// Fields that its state does not use are not zero.
    Malformed,
    /// A unit inside one that is not open has a life of its own.
    Inside,
    /// In a SHARED unit, yet no word of its own: its bytes are nobody's.
    Lost,
    /// It names an owner that does not exist.
    Nobody,
    /// A giant that is not there as a whole is in one piece.
    NotWhole,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.what {
            Wrong::Malformed => "has bits that its state does not use",
            Wrong::Inside => "has a life of its own inside a unit that is not open",
            Wrong::Lost => "is nobody's: absent from a shared unit",
            Wrong::Nobody => "names an owner that does not exist",
            Wrong::NotWhole => "is in one piece, though part of it does not exist",
        };
        write!(f, "{:?} = {:?} {what}", self.place, self.word)
    }
}

/// Where all the chunks are, and what is wrong. The counts add up to the node's chunks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recount {
    /// FREE, by the level of the unit that is free: chunk, block, giant.
    pub free: [u64; 3],
    /// Held, by owner.
    pub held: BTreeMap<Owner, u64>,
    /// In quarantine.
    pub quarantined: u64,
    /// In units being split or merged, without a word of their own at the moment.
    pub moving: u64,
    /// Retired.
    pub bad: u64,
    /// Absent from shared units: lost until the node mends it.
    pub lost: u64,
    /// Blocks that are SHARED.
    pub shared_blocks: u64,
    /// The problems found.
    pub problems: Vec<Problem>,
}

impl Recount {
    /// Chunks accounted for.
    pub fn total(&self) -> u64 {
        let held: u64 = self.held.values().sum();
        self.free.iter().sum::<u64>() + held + self.quarantined + self.moving + self.bad + self.lost
    }
}

/// Recounts the whole table.
pub fn recount(geometry: &Geometry, table: &impl Words) -> Recount {
    let mut recount = Recount::default();
    for index in 0..geometry.count(Level::Giant) {
        recount_giant(geometry, table, index, &mut recount);
    }
    recount
}

/// Adds one giant to a recount. Of the words within giants its own are asked for alone.
pub fn recount_giant(geometry: &Geometry, table: &impl Words, index: u32, recount: &mut Recount) {
    visit(geometry, table, Place::giant(index), State::Shared, recount);
}

/// Whether any word at all names the owner: only when none does may its slot be vacated.
pub fn is_named(geometry: &Geometry, table: &impl Words, owner: Owner) -> bool {
    Level::ALL.into_iter().any(|level| {
        (0..geometry.count(level)).any(|index| {
            let word = table.word(Place { level, index });
            word.state().is_named() && word.owner() == owner
        })
    })
}

/// A unit whose parent is open, in this state.
fn visit(geometry: &Geometry, table: &impl Words, place: Place, around: State, recount: &mut Recount) {
    let word = table.word(place);
    let chunks = geometry.chunks(place).len() as u64;
    let mut problem = |what| recount.problems.push(Problem { place, word, what });
    if !word.is_canonical() {
        problem(Wrong::Malformed);
    }
    if word.state().is_named() && !exists(geometry, table, word) {
        problem(Wrong::Nobody);
    }
    if !geometry.is_whole(place) && matches!(word.state(), State::Free | State::Owned | State::Quarantine) {
        problem(Wrong::NotWhole);
    }
    match word.state() {
        State::Free => recount.free[place.level as usize - 1] += chunks,
        State::Owned => *recount.held.entry(word.owner()).or_default() += chunks,
        State::Quarantine => recount.quarantined += chunks,
        State::Bad => recount.bad += chunks,
        State::Absent if around == State::Shared => {
            recount.lost += chunks;
            recount.problems.push(Problem { place, word, what: Wrong::Lost });
        }
        State::Absent => recount.moving += chunks,
        State::Splitting | State::Shared | State::Merging => {
            if place.level == Level::Block && word.is(State::Shared) {
                recount.shared_blocks += 1;
            }
            let (first, count) = geometry.children(place).unwrap_or((place, 0));
            for child in 0..count {
                visit(geometry, table, first.plus(child), word.state(), recount);
            }
            return;
        }
    }
    inside(geometry, table, place, word, recount);
}

/// The words within a unit that is not open.
fn inside(geometry: &Geometry, table: &impl Words, place: Place, around: Word, recount: &mut Recount) {
    let Some((first, count)) = geometry.children(place) else { return };
    for child in 0..count {
        let place = first.plus(child);
        let word = table.word(place);
        let prepared = match around.state() {
            State::Owned => word.is_held_by(around.owner()) || word.is(State::Quarantine),
            State::Quarantine => matches!(word.state(), State::Owned | State::Quarantine),
            _ => false,
        };
        // A retired one has no life: it is so for good, while the bytes go with the unit.
        if !matches!(word.state(), State::Absent | State::Bad) && !prepared {
            recount.problems.push(Problem { place, word, what: Wrong::Inside });
        }
        inside(geometry, table, place, Word::ZERO, recount);
    }
}

fn exists(geometry: &Geometry, table: &impl Words, word: Word) -> bool {
    let owner = word.owner();
    if owner.is_node() {
        return !word.is(State::Owned);
    }
    owner.slot() < geometry.owners() && table.owner(owner).lease() != Lease::Vacant
}
