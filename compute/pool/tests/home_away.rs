//! Every interleaving of write-backs, a reader and repair, beside a home that falls silent, is given up,
//! and is taken back, on the real words of a slab.
//!
//! One slot, two whole homes. Home 1 does not answer for a while: the thread that waits for it gives it
//! up, and it is behind. What was posted to it may take effect when it answers again, however late. It is
//! taken back with the bits that were set meanwhile, and filled. Home 0 may be lost for good while home 1
//! is away: then a read waits, unless the page has changed since.
//!
//! Whatever the order: a read gives the value stored last, and nobody is stuck. Seeded mistakes are each
//! caught. `two_homes.rs` walks what happens to a home that does not come back.

use farmem_pool::homes::{State, Word};
use std::collections::HashSet;

/// Ways to get it wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    None,
    /// A page that leaves while the home is behind sets no bit.
    NotMarked,
    /// … nor does one that was under way when the home was given up.
    FailedUnmarked,
    /// The turns of earlier queue pairs are not passed on: what they posted may come later.
    Unfenced,
    /// The home is whole when it is taken back.
    BackWhole,
    /// It is taken back while a write is under way.
    BackBeside,
    /// It is read while it is behind.
    ReadBehind,
    /// Nobody waits for it where home 0 is lost.
    NotAwaited,
    /// A page that changes then is written to its slot.
    WrittenInPlace,
}

const ALL: [Mistake; 8] = [
    Mistake::NotMarked,
    Mistake::FailedUnmarked,
    Mistake::Unfenced,
    Mistake::BackWhole,
    Mistake::BackBeside,
    Mistake::ReadBehind,
    Mistake::NotAwaited,
    Mistake::WrittenInPlace,
];

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Page {
    Resident,
    Staged,
    Remote,
    Busy,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    word: Word,
    /// The slot's bit at home 1.
    stale: bool,
    slots: [u8; 2],
    /// Values on their way to home 1 by the present queue pair, and by earlier ones.
    lane: Vec<u8>,
    late: Vec<u8>,
    /// How often home 1 was taken back: its number.
    life: u8,
    page: Page,
    last: u8,
    /// The life of home 1 that a write awaits.
    awaits: Option<u8>,
    is_writing: bool,
    writes_left: u8,
    /// A reader that owns the page, with the word that it has read and the life of home 1 in it.
    reader: Option<Option<(Word, u8)>>,
    reads_left: u8,
    /// Repair holds the lane; what it has read.
    fills: Option<Option<u8>>,
    silent: bool,
    silences_left: u8,
    /// Home 0 is lost for good.
    is_bare: bool,
    /// The slot's page is lost, or is in another slot.
    over: bool,
}

impl World {
    /// A thread has waited for home 1 long enough.
    fn give_up(&mut self) {
        let next = if self.word.state(1) == State::Whole { State::Behind } else { State::Absent };
        self.word = self.word.with_state(1, next);
        self.late.append(&mut self.lane);
    }

    fn can_be_given_up(&self) -> bool {
        self.silent && self.word.takes_pages(1) && !self.is_bare
    }

    /// Home 0 is lost while home 1 is behind. What has changed since is lost with it.
    fn lose_first(&mut self) -> bool {
        if self.is_bare || !self.word.misses(1) || self.is_writing {
            return false;
        }
        (self.is_bare, self.over) = (true, self.stale);
        (self.word, self.slots[0]) = (self.word.with_state(0, State::Absent), u8::MAX);
        true
    }

    fn write(&mut self, mistake: Mistake) -> bool {
        if !self.is_writing {
            if self.page != Page::Resident || self.writes_left == 0 || self.fills.is_some() {
                return false;
            }
            if self.is_bare && self.word.is_lost() && mistake != Mistake::WrittenInPlace {
                // It takes another slot.
                self.over = true;
                return true;
            }
            (self.page, self.last, self.writes_left) = (Page::Staged, self.last + 1, self.writes_left - 1);
            self.is_writing = true;
            // Home 0 answers at once.
            if !self.is_bare {
                self.slots[0] = self.last;
            }
            if self.word.misses(1) && mistake != Mistake::NotMarked {
                self.stale = true;
            }
            if self.word.takes_pages(1) {
                self.stale &= self.word.state(1) != State::Filling;
                self.lane.push(self.last);
                self.awaits = Some(self.life);
            }
            return true;
        }
        match self.awaits {
            Some(life) if life == self.life && self.word.takes_pages(1) => {
                if !self.can_be_given_up() {
                    return false;
                }
                self.give_up();
            }
            // Its queue pair is lost.
            Some(life) => {
                if life == self.life && self.word.misses(1) && mistake != Mistake::FailedUnmarked {
                    self.stale = true;
                }
                self.awaits = None;
            }
            None => (self.page, self.is_writing) = (Page::Remote, false),
        }
        true
    }

    fn read(&mut self, mistake: Mistake, prefers: usize) -> Result<bool, String> {
        match self.reader {
            None if self.reads_left == 0 || self.page != Page::Remote => return Ok(false),
            None => (self.page, self.reader) = (Page::Busy, Some(None)),
            Some(None) => self.reader = Some(Some((self.word, self.life))),
            Some(Some((word, life))) => {
                let behind = |nth| mistake == Mistake::ReadBehind && word.misses(nth);
                let reads = |nth: &usize| word.reads(*nth, || *nth == 1 && self.stale) || behind(*nth);
                let Some(home) = [prefers, 1 - prefers].into_iter().find(reads) else {
                    if word != self.word || self.word.misses(1) && !self.stale && mistake != Mistake::NotAwaited {
                        // It waits, and asks again.
                        let moves = word != self.word || life != self.life;
                        self.reader = Some(None);
                        return Ok(moves);
                    }
                    return Err("no home has the page".to_owned());
                };
                if home == 0 && self.is_bare {
                    self.reader = Some(None);
                    return Ok(true);
                }
                if home == 1 && life != self.life {
                    // A number that is nobody's any more.
                    self.reader = Some(None);
                } else if home == 1 && self.silent && self.is_bare {
                    // The only one that has it is waited for.
                    return Ok(false);
                } else if home == 1 && self.silent {
                    if self.word.takes_pages(1) {
                        self.give_up();
                    }
                    self.reader = Some(None);
                } else if self.slots[home] != self.last {
                    return Err(format!("read {} from home {home}, stored {}", self.slots[home], self.last));
                } else {
                    self.reads_left -= 1;
                    (self.page, self.reader) = (Page::Resident, None);
                    if self.writes_left == 0 {
                        self.page = Page::Remote;
                    }
                }
            }
        }
        Ok(true)
    }

    /// Home 1 carries out what came next: by the present queue pair, or by an earlier one.
    fn carry_out(&mut self, late: bool) -> bool {
        let from = if late { &mut self.late } else { &mut self.lane };
        if self.silent || from.is_empty() {
            return false;
        }
        self.slots[1] = from.remove(0);
        if !late && self.awaits == Some(self.life) && self.lane.is_empty() {
            self.awaits = None;
        }
        true
    }

    fn take_back(&mut self, mistake: Mistake) -> bool {
        if self.silent || !self.word.misses(1) || self.is_writing && mistake != Mistake::BackBeside {
            return false;
        }
        let state = if mistake == Mistake::BackWhole { State::Whole } else { State::Filling };
        (self.word, self.life) = (self.word.with_state(1, state), self.life + 1);
        if mistake != Mistake::Unfenced {
            self.late.clear();
        }
        true
    }

    fn fill(&mut self) -> bool {
        match self.fills {
            None if self.word.state(1) != State::Filling || self.is_writing => return false,
            None if !self.stale => self.word = self.word.with_state(1, State::Whole),
            None if self.is_bare => return false,
            None => self.fills = Some(None),
            Some(None) => self.fills = Some(Some(self.slots[0])),
            Some(Some(_)) if self.can_be_given_up() => {
                self.give_up();
                self.fills = None;
            }
            Some(Some(_)) if self.silent => self.fills = None,
            Some(Some(value)) => {
                self.slots[1] = value;
                (self.stale, self.fills) = (false, None);
            }
        }
        true
    }

    fn fall_silent(&mut self) -> bool {
        if self.silent || self.silences_left == 0 {
            return false;
        }
        (self.silent, self.silences_left) = (true, self.silences_left - 1);
        true
    }
}

/// Walks all interleavings; the number of worlds seen, or what went wrong.
fn explore(mistake: Mistake) -> Result<usize, String> {
    let start = World {
        word: Word::of(1).with_state(1, State::Whole),
        stale: false,
        slots: [0; 2],
        lane: vec![],
        late: vec![],
        life: 0,
        page: Page::Resident,
        last: 0,
        awaits: None,
        is_writing: false,
        writes_left: 4,
        reader: None,
        reads_left: 4,
        fills: None,
        silent: false,
        silences_left: 2,
        is_bare: false,
        over: false,
    };
    let (mut seen, mut open) = (HashSet::new(), vec![start]);
    while let Some(world) = open.pop() {
        if world.over || !seen.insert(world.clone()) {
            continue;
        }
        let mut moved = false;
        for who in 0..10 {
            let mut next = world.clone();
            let progressed = match who {
                0 => next.write(mistake),
                1 | 2 => next.read(mistake, who - 1)?,
                3 | 4 => next.carry_out(who == 4),
                5 => next.take_back(mistake),
                6 => next.fill(),
                7 => next.fall_silent(),
                8 => next.lose_first(),
                _ => std::mem::replace(&mut next.silent, false),
            };
            if progressed {
                moved |= !(7..=8).contains(&who);
                open.push(next);
            }
        }
        if !moved && (world.is_writing || world.reads_left > 0 || world.writes_left > 0) {
            return Err(format!("stuck: {world:?}"));
        }
    }
    Ok(seen.len())
}

#[test]
fn a_home_that_is_back_has_what_was_stored_last_or_says_that_it_lacks_it() {
    let worlds = explore(Mistake::None).unwrap_or_else(|e| panic!("{e}"));
    println!("{worlds} worlds");
    assert!(worlds > 1_000, "only {worlds} worlds");
}

#[test]
fn every_seeded_mistake_is_caught() {
    for mistake in ALL {
        let caught = explore(mistake);
        println!("{mistake:?}: {caught:?}");
        assert!(caught.is_err(), "{mistake:?} went unnoticed");
    }
}
