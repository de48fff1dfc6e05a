//! Where a claim looks: lines of words, in an order of the claimant's own.
//!
//! ```text
//!  window  4096 units: one READ of 64 hint words says which lines are worth a READ
//!    line  64 units: one READ of 64 words says which units are FREE, and what to expect in the CAS
//! ```
//!
//! Windows are visited from hash(owner, claimant) on, by a stride that is coprime to their number.
//! Lines in a window, and units in a line, are visited from other bits of the hash on, by an odd
//! stride of 64. So claimants seldom meet, and those that met do not meet again. (If each took the
//! next neighbour, two that had met once would go on together, each taking what the other wants
//! next.) Words that were read are kept and claimed from until they are used up: the next claim
//! usually begins with its CAS.
//!
//! Hints are never trusted. A bit that is wrongly set costs a READ. A bit that is wrongly clear
//! hides a unit for a while: when no hint leads anywhere, every line is read once.

use super::geometry::{Geometry, Hint, LINE, Target};
use super::place::{Level, Place};
use super::step::Verb;
use super::word::{Claimant, Owner, State, Word};
use crate::random::hash;

/// Neighbouring words as they were when last seen.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Area {
    pub first: Place,
    pub words: Vec<Word>,
}

impl Area {
    pub fn nothing(level: Level) -> Area {
        Area { first: Place { level, index: 0 }, words: Vec::new() }
    }

    /// Units of `lines` lines from `line` on, as far as they exist, not yet read.
    pub fn of_lines(geometry: &Geometry, level: Level, line: u32, lines: u32) -> Area {
        let index = line * LINE;
        let count = (lines * LINE).min(geometry.count(level) - index);
        Area { first: Place { level, index }, words: vec![Word::ZERO; count as usize] }
    }

    /// READs that it takes.
    pub fn reads(&self) -> usize {
        self.words.len().div_ceil(LINE as usize)
    }

    /// The `number`-th of them.
    pub fn read(&self, number: usize) -> Verb {
        let from = number as u32 * LINE;
        let words = (self.words.len() as u32 - from).min(LINE);
        Verb::read(self.first.plus(from), words as u16)
    }

    /// Takes in the words of the `number`-th READ. Returns false if their number is wrong.
    pub fn fill(&mut self, number: usize, words: &[u64]) -> bool {
        let from = number * LINE as usize;
        let there = (self.words.len() - from).min(LINE as usize);
        if words.len() != there {
            return false;
        }
        for (to, &word) in self.words[from..].iter_mut().zip(words) {
            *to = Word(word);
        }
        true
    }

    /// The word of a unit in it was found to be this.
    pub fn found(&mut self, place: Place, word: Word) {
        if place.level == self.first.level
            && let Some(known) = place.index.checked_sub(self.first.index)
            && let Some(slot) = self.words.get_mut(known as usize)
        {
            *slot = word;
        }
    }

    fn is_claimable(&self, at: usize) -> bool {
        self.words[at].is(State::Free) && !self.words[at].generation().is_worn()
    }

    /// The first of `count` neighbouring claimable units, aligned to `align`, from `start` on and
    /// round.
    pub fn run(&self, count: usize, align: usize, start: usize) -> Option<usize> {
        let len = self.words.len();
        if len < count {
            return None;
        }
        let steps = (len - count) / align + 1;
        (0..steps)
            .map(|step| (start / align + step) % steps * align)
            .find(|&first| (first..first + count).all(|at| self.is_claimable(at)))
    }

    /// Claimable units of the first line, from `start` on by an odd `stride`.
    pub fn scattered(&self, start: usize, stride: usize) -> impl Iterator<Item = usize> + '_ {
        let (line, len) = (LINE as usize, self.words.len());
        (0..line).map(move |step| (start + step * stride) % line).filter(move |&at| at < len && self.is_claimable(at))
    }
}

/// The order in which one claimant visits windows and lines.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Route {
    level: Level,
    about: Option<Hint>,
    lines: u32,
    windows: u32,
    stride: u32,
    /// Where lines in a window, and units in a line, are begun with.
    pub turn: u32,
    /// And by which stride they follow: odd.
    pub turns: u32,
    window: u32,
    /// Lines of the window still to visit.
    mask: u64,
    /// Lines of the window visited in this claim.
    visited: u64,
    /// Lines visited since the window's hints were read.
    since: u32,
    /// Windows still to visit in this pass.
    left: u32,
    /// Whether this pass goes by hints.
    hinted: bool,
}

/// Lines that are visited by the same hints, in vain, before these are read again: when 512 clients
/// use up what there is, a line that had something when a claim began has nothing a moment later,
/// and READs of dozens of lines said so one by one. Of hints that an earlier claim has read one
/// line is visited.
const BY_HINTS: u32 = 4;

/// The next step towards more candidates.
pub(crate) enum Advance {
    /// Read the hints of a window: words from this target on.
    Hints(Verb),
    /// Read this line.
    Line(u32),
    /// Everything was looked at.
    End,
}

impl Route {
    /// Over the lines of `level` (blocks or giants), by hints of `about`, if there are such.
    pub fn new(geometry: &Geometry, level: Level, about: Option<Hint>, owner: Owner, claimant: Claimant) -> Route {
        let lines = geometry.lines(level);
        let windows = lines.div_ceil(LINE);
        let hash = hash((owner.slot() as u64) << 16 | claimant.number() as u64);
        let mut stride = 1 + (hash >> 40) as u32 % windows;
        while gcd(stride, windows) != 1 {
            stride = stride % windows + 1;
        }
        Route {
            level,
            about,
            lines,
            windows,
            stride,
            turn: (hash >> 20) as u32 & (LINE - 1),
            turns: (hash >> 26) as u32 & (LINE - 1) | 1,
            window: hash as u32 % windows,
            mask: 0,
            visited: 0,
            since: 0,
            left: 0,
            hinted: false,
        }
    }

    /// Starts a claim: everything may be looked at once more. The rest of the present window comes
    /// first.
    pub fn begin(&mut self) {
        self.hinted = self.about.is_some();
        (self.visited, self.since) = (0, BY_HINTS - 1);
        self.left = self.windows + 1;
    }

    /// Of 64 neighbours the `step`-th to be visited: each comes once.
    pub fn nth(&self, step: u32) -> u32 {
        (self.turn + step * self.turns) % LINE
    }

    /// Whether the search goes by hints still.
    pub fn is_hinted(&self) -> bool {
        self.hinted
    }

    /// Where to look next, `together` lines at a time.
    pub fn advance(&mut self, together: u32) -> Advance {
        loop {
            if self.mask != 0 {
                if self.since >= BY_HINTS
                    && let Some(about) = self.about.filter(|_| self.hinted)
                {
                    (self.mask, self.since) = (0, 0);
                    return self.look(about);
                }
                let mut turn = (0..LINE).map(|step| self.nth(step));
                let bit = turn.find(|bit| self.mask >> bit & 1 == 1).expect("an odd stride comes by every bit");
                let bit = bit - bit % together;
                for line in bit..bit + together {
                    self.mask &= !(1 << line);
                    self.visited |= 1 << line;
                }
                self.since += 1;
                return Advance::Line(self.window * LINE + bit);
            }
            if self.left == 0 {
                if !self.hinted {
                    return Advance::End;
                }
                self.hinted = false;
                self.left = self.windows;
                continue;
            }
            self.left -= 1;
            self.window = (self.window + self.stride) % self.windows;
            (self.visited, self.since) = (0, 0);
            match self.about.filter(|_| self.hinted) {
                Some(about) => return self.look(about),
                None => self.mask = u64::MAX >> (LINE - self.lines_here()),
            }
        }
    }

    /// Lines of the window.
    fn lines_here(&self) -> u32 {
        (self.lines - self.window * LINE).min(LINE)
    }

    fn look(&self, about: Hint) -> Advance {
        let at = Target::Hint { about, line: self.window * LINE };
        Advance::Hints(Verb::Read { at, words: self.lines_here() as u16 })
    }

    /// The next place that hints lead to. A later claim will use it.
    pub fn ahead(&mut self) -> Option<Advance> {
        let may = self.hinted && (self.mask != 0 || self.left > 0);
        may.then(|| self.advance(1))
    }

    /// The window's hints have come.
    pub fn hints(&mut self, words: &[u64]) {
        self.mask = 0;
        for (line, &word) in words.iter().take(LINE as usize).enumerate() {
            if word != 0 && self.window * LINE + (line as u32) < self.lines {
                self.mask |= 1 << line;
            }
        }
        self.mask &= !self.visited;
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
