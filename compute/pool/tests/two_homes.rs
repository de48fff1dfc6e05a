//! Every interleaving of write-backs, a reader, a slab that moves, and a home that is lost, on the
//! real words of a slab.
//!
//! One slot. A slab has one home, is given a second, is filled, and loses the first: what a mirror,
//! a repair and a drain are made of. Meanwhile its page is read and written back. A home dies, or
//! the writer's lane alone is cut off from one that others can still read. Or a home does not answer
//! for a while. A thread that waits for it gives it up if the other one is whole, and else waits on. Verbs of the write-back
//! lane take effect at each home in the order posted; every other step is atomic. Which home is
//! read, written and missed is decided by [`Word`], as the lanes decide it.
//!
//! Whatever the order: a read gives the value stored last, or there is no home left that has it;
//! and nobody is stuck. Seeded mistakes are each caught by the same check.

use farmem_pool::homes::{State, Word};
use std::collections::HashSet;

/// Ways to get it wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    None,
    /// A write is done when the first home has it.
    FirstAnswerIsEnough,
    /// … before the home that it did not reach is out of the slab's word.
    DoneBeforeMarked,
    /// A new home is whole at once.
    AddedWhole,
    /// A new home's bits are set after it can be seen.
    BitsAfterWord,
    /// A reader goes to a filling home whatever its bit says.
    BitsNotAsked,
    /// … or reads the slab's word before it owns the page.
    SlabBeforePage,
    /// A page that leaves is not written to a home that is being filled.
    FillingNotWritten,
    /// The filler begins while a thread may be writing in place.
    FilledAtOnce,
    /// … reads by a queue pair of its own, which may overtake what was posted before.
    FilledPastLane,
    /// … does not keep others from posting between its READ and its WRITE.
    FilledUnguarded,
    /// … clears the bit when the WRITE is posted.
    ClearedWhenPosted,
    /// A home counts as whole while it lacks the slot.
    WholeTooSoon,
    /// The first home is dropped while the second is being filled.
    DroppedTooSoon,
    /// A dropped home is given back while a thread may be reading it.
    FreedAtOnce,
    /// A home that does not answer is given up although the other one lacks something.
    GivenUpUnasked,
    /// … by a thread that has asked before, when the other one was still there.
    AskedBefore,
}

const ALL: [Mistake; 16] = [
    Mistake::FirstAnswerIsEnough,
    Mistake::DoneBeforeMarked,
    Mistake::AddedWhole,
    Mistake::BitsAfterWord,
    Mistake::BitsNotAsked,
    Mistake::SlabBeforePage,
    Mistake::FillingNotWritten,
    Mistake::FilledAtOnce,
    Mistake::FilledPastLane,
    Mistake::FilledUnguarded,
    Mistake::ClearedWhenPosted,
    Mistake::WholeTooSoon,
    Mistake::DroppedTooSoon,
    Mistake::FreedAtOnce,
    Mistake::GivenUpUnasked,
    Mistake::AskedBefore,
];

const GARBAGE: u8 = 99;

/// Which homes a record names, in its order: of the slab before it moves, while it has two, and
/// after.
const RECORDS: [[Option<usize>; 2]; 4] = [[None, None], [Some(0), None], [Some(0), Some(1)], [Some(1), None]];

/// What the consumer's word says of the page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Page {
    /// In the program, and changed.
    Resident,
    /// In the ring, until its write is done.
    Staged,
    Remote,
    /// A reader brings it in.
    Busy,
}

/// On its way to a home by the write-back lane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Verb {
    Write(u8),
    FillRead,
    FillWrite(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Writer {
    Outside,
    /// In the consumer, with the slab's word as it was.
    Decided(Word),
    /// Posted; the answers that are awaited, and whether there was one.
    Awaits([bool; 2], bool),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Reader {
    Outside,
    /// It has looked at the slab before it owns the page (a mistake).
    LookedEarly(Word),
    /// It owns the page.
    Owns,
    /// … and has the slab's word. Homes that did not answer.
    Chose(Word, [bool; 2]),
    /// It may give a home up, and has not yet (a mistake).
    Asked(Word, [bool; 2], usize),
}

/// Who moves the slab.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Mover {
    Begins,
    /// The second home can be seen; its bit is still to be set (a mistake).
    OwesBit,
    /// Until every thread has left once.
    WaitsToFill,
    Fills,
    /// Its READ is posted, or has given a value.
    Reads(Option<u8>),
    Writes,
    Filled,
    WaitsToFree,
    Freed,
    /// A home that it needs is lost.
    GivenUp,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    word: Word,
    /// By record and place in it: the slot's stale bit.
    stale: [[bool; 2]; 4],
    slots: [u8; 2],
    alive: [bool; 2],
    /// The write-back lane reaches it.
    reached: [bool; 2],
    lane: [Vec<Verb>; 2],
    /// The mover holds the lane.
    held: bool,
    page: Page,
    last: u8,
    writer: Writer,
    writes_left: u8,
    reader: Reader,
    reads_left: u8,
    mover: Mover,
    /// Threads that were inside when the mover began to wait: the reader, the writer.
    inside: [bool; 2],
    losses_left: u8,
    /// A home does not answer now.
    silent: [bool; 2],
    silences_left: u8,
    ended: bool,
    /// Home 0 is mapped: while it is the only one, pages are laid there in place.
    in_place: bool,
}

impl World {
    fn home(word: Word, nth: usize) -> Option<usize> {
        RECORDS[word.number() as usize][nth]
    }

    fn is_stale(&self, word: Word, nth: usize) -> bool {
        self.stale[word.number() as usize][nth]
    }

    /// A home is of no use: the word says so from now on.
    fn forsake(&mut self, home: usize) {
        for nth in 0..2 {
            if World::home(self.word, nth) == Some(home) {
                self.word = self.word.with_state(nth, State::Absent);
            }
        }
    }

    /// Whether a home that does not answer is to be given up: the other one is whole.
    fn can_spare(&self, home: usize, mistake: Mistake) -> bool {
        let whole = |nth| self.word.state(nth) == State::Whole && World::home(self.word, nth) != Some(home);
        mistake == Mistake::GivenUpUnasked || (0..2).any(whole)
    }

    /// Whether who waits for a home gives it up now.
    fn gives_up(&self, home: usize, mistake: Mistake) -> bool {
        self.silent[home] && self.can_spare(home, mistake)
    }

    /// Whether some home has the last value, by the words and in fact.
    fn can_be_had(&self) -> bool {
        (0..2).any(|nth| {
            let has = |home: usize| self.alive[home] && self.slots[home] == self.last;
            self.word.reads(nth, || self.is_stale(self.word, nth)) && World::home(self.word, nth).is_some_and(has)
        })
    }

    fn write(&mut self, mistake: Mistake) -> Result<bool, String> {
        match self.writer {
            Writer::Outside if self.page == Page::Resident && self.writes_left > 0 => {
                // The program has stored a value since.
                (self.page, self.last) = (Page::Staged, self.last + 1);
                self.writes_left -= 1;
                self.writer = Writer::Decided(self.word);
            }
            Writer::Outside => return Ok(false),
            Writer::Decided(word) if self.in_place && word.is_single() && World::home(word, 0) == Some(0) => {
                if self.alive[0] {
                    self.slots[0] = self.last;
                }
                self.leave(1);
                (self.page, self.writer) = (Page::Remote, Writer::Outside);
            }
            // The lane is held for as long as a word is decided by.
            Writer::Decided(_) if self.held => return Ok(false),
            Writer::Decided(_) => {
                let word = self.word;
                let mut awaited = [false; 2];
                for nth in 0..2 {
                    let filling = word.state(nth) == State::Filling;
                    if !word.takes_pages(nth) || filling && mistake == Mistake::FillingNotWritten {
                        continue;
                    }
                    self.stale[word.number() as usize][nth] = false;
                    if let Some(home) = World::home(word, nth) {
                        self.lane[home].push(Verb::Write(self.last));
                        awaited[home] = true;
                    }
                }
                self.leave(1);
                self.writer = Writer::Awaits(awaited, false);
            }
            Writer::Awaits(awaited, some) => {
                let enough = some && mistake == Mistake::FirstAnswerIsEnough;
                // A home that is lost to the lane, or too slow.
                let gone = |home: usize| !(self.alive[home] && self.reached[home]) || self.gives_up(home, mistake);
                let lost = (0..2).find(|&home| awaited[home] && gone(home));
                match lost {
                    Some(home) if !enough => {
                        let mut awaited = awaited;
                        awaited[home] = false;
                        self.lane[home].clear();
                        if mistake == Mistake::DoneBeforeMarked && some && awaited == [false; 2] {
                            self.page = Page::Remote;
                        }
                        if mistake != Mistake::DoneBeforeMarked {
                            self.forsake(home);
                        }
                        self.writer = Writer::Awaits(awaited, some);
                    }
                    _ if enough || awaited == [false; 2] && some => {
                        (self.page, self.writer) = (Page::Remote, Writer::Outside);
                    }
                    None if awaited == [false; 2] => return self.end("a write has reached no home"),
                    _ => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    /// The consumer is told that the page is lost, and ends: which is right only where a loss has
    /// left no other home.
    fn end(&mut self, what: &str) -> Result<bool, String> {
        if self.losses_left > 0 {
            return Err(format!("{what} although none is lost"));
        }
        let usable = |nth: usize| {
            let has = |home: usize| self.alive[home] && self.reached[home];
            self.word.state(nth) == State::Whole && World::home(self.word, nth).is_some_and(has)
        };
        if (0..2).any(usable) {
            return Err(format!("{what} although there is one"));
        }
        self.ended = true;
        Ok(true)
    }

    /// A home carries out what the lane has posted next.
    fn carry_out(&mut self, home: usize) -> bool {
        if self.lane[home].is_empty() || !self.alive[home] || !self.reached[home] || self.silent[home] {
            return false;
        }
        match self.lane[home].remove(0) {
            Verb::Write(value) => {
                self.slots[home] = value;
                if let Writer::Awaits(awaited, some) = &mut self.writer {
                    (awaited[home], *some) = (false, true);
                }
            }
            Verb::FillRead => {
                let Mover::Reads(got) = &mut self.mover else { return true };
                *got = Some(self.slots[home]);
            }
            Verb::FillWrite(value) => {
                self.slots[home] = value;
                if self.mover == Mover::Writes {
                    self.stale[2][1] = false;
                    (self.mover, self.held) = (Mover::Filled, false);
                }
            }
        }
        true
    }

    /// `prefers`: of two homes that have it, either may be read.
    fn read(&mut self, mistake: Mistake, prefers: usize) -> Result<bool, String> {
        match self.reader {
            Reader::Outside if self.reads_left == 0 => return Ok(false),
            Reader::Outside if mistake == Mistake::SlabBeforePage => self.reader = Reader::LookedEarly(self.word),
            Reader::Outside | Reader::LookedEarly(_) if self.page != Page::Remote => return Ok(false),
            Reader::Outside => (self.page, self.reader) = (Page::Busy, Reader::Owns),
            Reader::LookedEarly(word) => (self.page, self.reader) = (Page::Busy, Reader::Chose(word, [false; 2])),
            Reader::Asked(_, silent, home) => self.give_up(home, silent),
            Reader::Owns => self.reader = Reader::Chose(self.word, [false; 2]),
            Reader::Chose(word, silent) => {
                let stale = |nth| mistake != Mistake::BitsNotAsked && self.is_stale(word, nth);
                let usable = |nth: &usize| {
                    word.reads(*nth, || stale(*nth)) && World::home(word, *nth).is_some_and(|home| !silent[home])
                };
                match [prefers, 1 - prefers].into_iter().filter(usable).find_map(|nth| World::home(word, nth)) {
                    Some(home) if self.gives_up(home, mistake) => {
                        if mistake == Mistake::AskedBefore {
                            self.reader = Reader::Asked(word, silent, home);
                        } else {
                            self.give_up(home, silent);
                        }
                    }
                    Some(home) if self.silent[home] => return Ok(false),
                    Some(home) if self.alive[home] => {
                        if self.slots[home] != self.last {
                            return Err(format!("read {} from home {home}, stored {}", self.slots[home], self.last));
                        }
                        self.bring_in();
                    }
                    Some(home) => self.give_up(home, silent),
                    None if self.can_be_had() => return Err("told that the page is lost while a home has it".into()),
                    None => return self.end("no home has the page"),
                }
            }
        }
        Ok(true)
    }

    /// The reader has no answer from a home, and goes elsewhere.
    fn give_up(&mut self, home: usize, mut silent: [bool; 2]) {
        self.forsake(home);
        silent[home] = true;
        // It looks again at the word, which may name others by now.
        self.reader = Reader::Chose(self.word, silent);
    }

    fn bring_in(&mut self) {
        self.reads_left -= 1;
        self.leave(0);
        (self.page, self.reader) = (Page::Resident, Reader::Outside);
        if self.writes_left == 0 {
            // Clean: it leaves without a transfer.
            self.page = Page::Remote;
        }
    }

    fn leave(&mut self, thread: usize) {
        self.inside[thread] = false;
    }

    /// From here on the mover waits for those that are inside now.
    fn begins_to_wait(&mut self) {
        self.inside = [self.reader != Reader::Outside, matches!(self.writer, Writer::Decided(_))];
    }

    fn all_have_left(&self) -> bool {
        self.inside == [false; 2]
    }

    fn moves(&mut self, mistake: Mistake) -> bool {
        let both = |word: Word, state| word.state(0) == State::Whole && word.state(1) == state;
        match self.mover {
            Mover::Begins if self.word == Word::of(1) => {
                let state = if mistake == Mistake::AddedWhole { State::Whole } else { State::Filling };
                self.stale[2][1] = mistake != Mistake::BitsAfterWord;
                self.word = Word::of(2).with_state(1, state);
                self.begins_to_wait();
                self.mover = if mistake == Mistake::BitsAfterWord { Mover::OwesBit } else { Mover::WaitsToFill };
            }
            Mover::OwesBit => {
                self.stale[2][1] = true;
                self.mover = Mover::WaitsToFill;
            }
            Mover::WaitsToFill if self.all_have_left() || mistake == Mistake::FilledAtOnce => self.mover = Mover::Fills,
            Mover::WaitsToFill => return false,
            // Where the first home is gone there is nothing to fill from.
            Mover::Fills if !both(self.word, State::Filling) => self.mover = Mover::Filled,
            Mover::Fills if matches!(mistake, Mistake::WholeTooSoon | Mistake::DroppedTooSoon) => {
                self.mover = Mover::Filled
            }
            Mover::Fills if self.stale[2][1] => {
                self.held = mistake != Mistake::FilledUnguarded;
                match mistake {
                    Mistake::FilledPastLane => self.mover = Mover::Reads(Some(self.slots[0])),
                    _ => {
                        self.lane[0].push(Verb::FillRead);
                        self.mover = Mover::Reads(None);
                    }
                }
            }
            Mover::Fills => self.mover = Mover::Filled,
            Mover::Reads(Some(value)) => {
                self.lane[1].push(Verb::FillWrite(value));
                if mistake == Mistake::ClearedWhenPosted {
                    self.stale[2][1] = false;
                }
                self.mover = Mover::Writes;
            }
            Mover::Reads(None) | Mover::Writes => {
                let home = if self.mover == Mover::Writes { 1 } else { 0 };
                if self.alive[home] && self.reached[home] && !self.gives_up(home, mistake) {
                    return false;
                }
                self.lane[home].clear();
                self.forsake(home);
                (self.mover, self.held) = (Mover::GivenUp, false);
            }
            Mover::Filled if both(self.word, State::Filling) => {
                if mistake == Mistake::DroppedTooSoon {
                    return self.drop_first(mistake);
                }
                if self.is_stale(self.word, 1) && mistake != Mistake::WholeTooSoon {
                    self.mover = Mover::Fills;
                } else {
                    self.word = self.word.with_state(1, State::Whole);
                }
            }
            Mover::Filled if both(self.word, State::Whole) => return self.drop_first(mistake),
            Mover::WaitsToFree if self.all_have_left() || mistake == Mistake::FreedAtOnce => {
                self.slots[0] = GARBAGE;
                self.mover = Mover::Freed;
            }
            Mover::WaitsToFree | Mover::Freed | Mover::GivenUp => return false,
            Mover::Begins | Mover::Filled => self.mover = Mover::GivenUp,
        }
        true
    }

    /// By who holds the lane, with nothing under way.
    fn drop_first(&mut self, mistake: Mistake) -> bool {
        if self.lane.iter().any(|lane| !lane.is_empty()) || matches!(self.writer, Writer::Awaits(..)) {
            // Not for ever: what is under way comes to an end by itself.
            return false;
        }
        debug_assert!(mistake == Mistake::DroppedTooSoon || self.word.state(1) == State::Whole);
        self.word = Word::of(3);
        self.begins_to_wait();
        self.mover = Mover::WaitsToFree;
        true
    }

    /// Home `home` does not answer from now on, or does again. One that is mapped is not asked.
    fn fall_silent(&mut self, home: usize) -> bool {
        if self.silent[home] || self.silences_left == 0 || !self.alive[home] || self.in_place && home == 0 {
            return false;
        }
        self.silences_left -= 1;
        self.silent[home] = true;
        true
    }

    fn wake(&mut self, home: usize) -> bool {
        std::mem::replace(&mut self.silent[home], false)
    }

    /// Home `home` dies, or the lane is cut off from it.
    fn lose(&mut self, home: usize, dies: bool) -> bool {
        if self.losses_left == 0 || !self.alive[home] || !self.reached[home] {
            return false;
        }
        self.losses_left -= 1;
        if dies {
            (self.alive[home], self.slots[home], self.silent[home]) = (false, GARBAGE, false);
        } else {
            self.reached[home] = false;
        }
        true
    }
}

/// Walks all interleavings; the number of worlds seen, or what went wrong.
fn explore(mistake: Mistake, in_place: bool) -> Result<usize, String> {
    let start = World {
        word: Word::of(1),
        stale: [[false; 2]; 4],
        slots: [0, GARBAGE],
        alive: [true; 2],
        reached: [true; 2],
        lane: [vec![], vec![]],
        held: false,
        page: Page::Resident,
        last: 0,
        writer: Writer::Outside,
        writes_left: 3,
        reader: Reader::Outside,
        reads_left: 4,
        mover: Mover::Begins,
        inside: [false; 2],
        losses_left: 1,
        silent: [false; 2],
        silences_left: 2,
        ended: false,
        in_place,
    };
    let mut seen = HashSet::new();
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) || world.ended {
            continue;
        }
        let mut moved = false;
        for who in 0..14 {
            let mut next = world.clone();
            let progressed = match who {
                0 => next.write(mistake)?,
                1 | 2 => next.read(mistake, who - 1)?,
                3 => next.moves(mistake),
                4 | 5 => next.carry_out(who - 4),
                6..10 => next.lose(who % 2, who < 8),
                10 | 11 => next.fall_silent(who - 10),
                _ => next.wake(who - 12),
            };
            if progressed {
                moved |= !(6..12).contains(&who);
                open.push(next);
            }
        }
        if !moved && (world.writer != Writer::Outside || world.reads_left > 0 || world.writes_left > 0) {
            return Err(format!("stuck: {world:?}"));
        }
    }
    Ok(seen.len())
}

#[test]
fn no_interleaving_reads_what_is_old_or_gets_stuck() {
    for in_place in [false, true] {
        let worlds = explore(Mistake::None, in_place).unwrap_or_else(|e| panic!("in place: {in_place}: {e}"));
        println!("in place: {in_place}: {worlds} worlds");
        assert!(worlds > 2_000, "only {worlds} worlds");
    }
}

#[test]
fn every_seeded_mistake_is_caught() {
    for mistake in ALL {
        let caught = [false, true].map(|in_place| explore(mistake, in_place).is_err());
        assert!(caught.contains(&true), "{mistake:?} went unnoticed");
        println!("{mistake:?}: {caught:?}");
    }
}
