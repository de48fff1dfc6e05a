//! Decisions that the threads of a heap make under its lock: which frames leave, and how many
//! segments each size class has. Safe code, and no waiting.
//!
//! ```text
//! frames of a class: │ live ─ hand ─► cold, oldest first ─ grace is over ─► free │ ─► arrivals
//!                             ◄─ first use: warmed               └─ dirty: home first
//! ```
//!
//! *Two hands.* The first makes frames cold, long before they are needed. The second takes those
//! that were not used since. Half of a class lies between them. So a scope can bring in half of a
//! class, although its epoch holds the frames that became cold since it began.
//!
//! *The first scope.* While a scope is open, no thread can take frames that become cold. If other
//! threads took all other frames, the scope could bring in nothing more, and no waiting would help.
//! So they leave a quarter of each class to the scope that began first, and wait for its end.
//!
//! *Shares.* The first scope may use that quarter and end. The next one is first then, and all that
//! left meanwhile is held by itself. So some frames are kept for the seats, in equal shares
//! ([`super::pledge`]). Not even the first scope takes another seat's. A seat whose share is used
//! has it filled before its next scope begins, while it holds nothing ([`Core::settle`]).
//!
//! A class that is short gets other classes' empty segments. Where there is none, a segment of the
//! class with the most is closed: no frame is taken of it, its objects leave, and then it goes.

mod gain;
mod joins;
mod seats;

use super::Shared;
use super::frames::{Arena, Grip};
use super::pledge::Pledge;
use crate::class::{CLASSES, Class, SEGMENT};
use crate::homes::{Home, Homes};
use crate::rooms::Room;
use crate::share::{SPARE, Share};
use crate::space::At;
use crate::word::Word;
use crate::{Error, Result};
use farmem::{Addr, Memory};
use farmem_sys::epochs::{Epochs, State};
use gain::Gain;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Dirty objects that leave together, and frames that are made cold together.
const BATCH: usize = 32;
/// A class with fewer free frames takes cold ones.
const LOW: usize = 8;
/// Segments are shared out again among the classes each time this many bytes have left.
const LOOK: usize = 4 << 20;
/// One part in this many of a class's frames is left to the scope that began first.
const REST: usize = 4;
/// Calls for room between two looks at a segment that is closed.
const STEP: usize = 64;

/// A frame that was made cold.
struct Cold {
    at: At,
    word: Word,
    epoch: u64,
}

/// Objects on their way, by one round trip.
#[derive(Default)]
pub struct Moving {
    pub reads: Vec<(Grip, Addr)>,
    /// Their words once they are there.
    pub words: Vec<Word>,
    pub writes: Vec<(Grip, Addr)>,
    /// Their words if they could not be written home, and stay.
    pub stays: Vec<Word>,
}

impl Moving {
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }
}

/// Whether there is room.
pub enum Space {
    /// There are as many free frames as were asked for.
    Is,
    /// There will be room when the chosen victims have left.
    After,
    /// Open scopes hold the other frames. The slot of the seat whose scope began first, if any is
    /// open.
    Held(Option<usize>),
}

/// A heap under its lock.
pub struct Core {
    rooms: [Room; CLASSES],
    cold: [VecDeque<Cold>; CLASSES],
    pledges: [Pledge; CLASSES],
    /// The thread that takes frames now uses its share if there are no more free ones than this.
    /// By [`Core::room`].
    floor: usize,
    /// Segments that no class has.
    left: usize,
    pub most: usize,
    /// What the heap gains by its share of a run's local memory.
    gain: Option<Gain>,
    /// Groups that the caller has the kernel join, without the heap's lock.
    pub joins: Vec<(Class, usize)>,
    /// A class and its closed segment.
    closing: Option<(usize, usize)>,
    /// Why the last object that was to leave has stayed, if it has.
    failed: Option<farmem::Error>,
    gone: usize,
    turns: usize,
    /// Objects that are on their way home.
    pub leaving: usize,
    /// Threads that wait for an object on its way.
    pub waiting: usize,
    /// Slots of seats that are taken; they are the first ones of the heap's epochs.
    pub seats: Vec<bool>,
    pub homes: Homes<Shared>,
    pub fetched: u64,
    pub written: u64,
}

/// The parts beside the core that a step needs.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    pub frames: &'a Arena,
    pub epochs: &'a Epochs,
    pub memory: &'a Memory,
    /// Taken under the heap's lock alone.
    pub share: &'a Mutex<Share>,
}

impl Ground<'_> {
    fn share(&self) -> MutexGuard<'_, Share> {
        self.share.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    /// `most`: segments. `is_of_run`: they are a share of a run's.
    pub fn new(most: usize, is_of_run: bool) -> Core {
        Core {
            rooms: Room::of_all(),
            cold: [const { VecDeque::new() }; CLASSES],
            pledges: std::array::from_fn(|_| Pledge::default()),
            floor: 0,
            left: most,
            most,
            gain: is_of_run.then(|| Gain::new(most)),
            joins: Vec::new(),
            closing: None,
            failed: None,
            gone: 0,
            turns: 0,
            leaving: 0,
            waiting: 0,
            seats: Vec::new(),
            homes: Homes::new(),
            fetched: 0,
            written: 0,
        }
    }

    /// Segments that are given to classes.
    pub fn used(&self) -> usize {
        self.most - self.left
    }

    /// Sees to `n` free frames of a class for the thread with this slot. Objects that leave are added
    /// to `moving`.
    pub fn room(&mut self, on: Ground<'_>, class: Class, (n, slot): (usize, usize), moving: &mut Moving) -> Space {
        self.turns += 1;
        self.weigh_if_due(on);
        if self.closing.is_some() && self.turns.is_multiple_of(STEP) {
            self.go_on_closing(on, on.epochs.oldest(self.seats.len()), moving);
        }
        let index = class.index;
        loop {
            let before = self.progress(class, moving);
            let first = on.epochs.first(self.seats.len());
            // The scope that began first holds what leaves from now on. So the rest is its own.
            let rest = match first {
                Some(first) if first != slot => self.rooms[index].len() * class.frames() / REST,
                _ => 0,
            };
            self.prepare(on, class, n);
            // A segment more has shares of its own.
            while !self.has(class, n.max(LOW) + self.floor_of(class, rest)) && self.widen(on, class) {}
            self.floor = self.floor_of(class, rest);
            let want = n.max(LOW) + self.floor;
            if self.has(class, want) {
                return Space::Is;
            }
            let oldest = on.epochs.oldest(self.seats.len());
            self.favour(on, class);
            self.take_cold(on, class, (want, oldest), moving);
            self.floor = self.floor_of(class, rest);
            let pledge = &self.pledges[index];
            if self.has(class, n + rest.max(pledge.others(slot))) || n <= pledge.of(slot) {
                return Space::Is;
            }
            if moving.writes.is_empty() {
                self.close(on, class, (oldest, moving));
            }
            if !moving.writes.is_empty() {
                return Space::After;
            }
            if before == self.progress(class, moving) && !self.need(on, class) {
                return Space::Held(first);
            }
        }
    }

    /// A class that is short and has few segments gets one of the class with the most.
    fn favour(&mut self, on: Ground<'_>, class: Class) {
        let few = self.most / 4;
        if self.closing.is_none() && self.rooms[class.index].len() < few {
            let others = (0..CLASSES).filter(|&other| other != class.index && self.rooms[other].len() > 2 * few);
            if let Some(other) = others.max_by_key(|&other| self.rooms[other].len()) {
                self.begin_closing(on, other);
            }
        }
    }

    /// Changes while a step gets on.
    fn progress(&self, class: Class, moving: &Moving) -> [usize; 4] {
        let cold = &self.cold[class.index];
        [self.rooms[class.index].free(), moving.writes.len(), self.left, cold.len()]
    }

    fn has(&self, class: Class, n: usize) -> bool {
        self.rooms[class.index].free() >= n
    }

    /// Makes frames cold, so that half of a class is free or cold.
    fn prepare(&mut self, on: Ground<'_>, class: Class, n: usize) {
        let room = &self.rooms[class.index];
        let all = room.len() * class.frames();
        let fresh = self.left * class.frames();
        let ready = fresh + room.free() + self.cold[class.index].len();
        let want = (all / 2 + n).saturating_sub(ready).min(all).min(n + 2 * BATCH);
        if want > 0 {
            self.chill(on, class, want);
        }
    }

    /// Makes up to `want` frames of a class cold.
    fn chill(&mut self, on: Ground<'_>, class: Class, want: usize) {
        let room = &mut self.rooms[class.index];
        let (mut made, epoch) = (0, on.epochs.now());
        for _ in 0..room.len() * class.frames() {
            if made == want {
                break;
            }
            let (segment, number) = room.step();
            let at = on.frames.frame(class, segment, number);
            if let Some(word) = chill(on, at) {
                self.cold[class.index].push_back(Cold { at, word, epoch });
                made += 1;
            }
        }
        if made > 0 {
            on.epochs.turn();
        }
    }

    /// Takes frames that are cold and used by nobody, until `n` are free: clean ones at once, dirty
    /// ones by way of `moving`.
    fn take_cold(&mut self, on: Ground<'_>, class: Class, (n, oldest): (usize, u64), moving: &mut Moving) {
        while self.rooms[class.index].free() < n && moving.writes.len() < BATCH {
            let Some(cold) = self.cold[class.index].front() else { break };
            if cold.epoch >= oldest {
                break;
            }
            let (at, claim) = (cold.at, (cold.word, cold.epoch, oldest));
            self.cold[class.index].pop_front();
            self.take(on, at, claim, moving);
        }
    }

    /// Takes one frame, if it is still cold. False: it is not.
    fn take(&mut self, on: Ground<'_>, at: At, claim: (Word, u64, u64), moving: &mut Moving) -> bool {
        let (class, word) = (at.class(), claim.0);
        let Some(grip) = on.frames.claim(at, claim) else { return false };
        self.gone += class.stride;
        self.rooms[class.index].gone += class.stride;
        self.left_for_others(word, class);
        match self.homes.addr(word.home()).filter(|_| word.is_dirty()) {
            Some(home) => {
                self.leaving += 1;
                moving.writes.push((grip, home));
                moving.stays.push(word);
            }
            None => self.free(on.frames.vacate(grip)),
        }
        true
    }

    /// Why there is no room: what was to leave could not, or else open scopes hold all.
    pub fn full(&self) -> Error {
        self.failed.clone().map_or(Error::ScopeFull(self.most * SEGMENT), Error::Memory)
    }

    /// Takes back a frame that has no object any more.
    pub fn free(&mut self, at: At) {
        let class = at.class();
        self.rooms[class.index].give(at.place(class));
    }

    /// One segment more for a class, if nothing has to leave for it.
    fn widen(&mut self, on: Ground<'_>, class: Class) -> bool {
        if self.rooms[class.index].len() == class.segments() {
            return false;
        }
        if self.left > 0 && !on.share().has(self.most - self.left + 1) {
            // Other heaps have the rest of the run's share. It is not asked for again and again.
            (self.most, self.left) = (self.most - self.left, 0);
        }
        if self.left == 0 {
            let others = (0..CLASSES).filter(|&other| other != class.index);
            let empty = others.into_iter().find_map(|other| Some((other, self.unneeded(other)?)));
            let Some((other, nth)) = empty else { return false };
            on.frames.discard(Class::new(other), self.rooms[other].segment(nth));
            self.rooms[other].remove(nth);
            self.left += 1;
        }
        self.left -= 1;
        if let Some(group) = self.rooms[class.index].add() {
            self.begin_joining(on, class, group);
        }
        let (want, free) = (self.share(class, self.rooms[class.index].len()), self.rooms[class.index].free());
        for slot in (0..self.seats.len()).filter(|&slot| self.seats[slot]) {
            self.pledges[class.index].raise(slot, want, free);
        }
        true
    }

    /// A class's segment with nothing in it, without which the seats' shares are still free.
    fn unneeded(&self, index: usize) -> Option<usize> {
        let (room, kept) = (&self.rooms[index], self.pledges[index].all());
        room.spare_segment().filter(|&nth| room.free() >= room.free_of(nth) + kept)
    }

    /// Goes on with emptying a segment for another class, or begins to.
    fn close(&mut self, on: Ground<'_>, class: Class, (oldest, moving): (u64, &mut Moving)) {
        if self.closing.is_none() {
            let others = (0..CLASSES).filter(|&other| other != class.index && self.rooms[other].len() > 1);
            if let Some(other) = others.max_by_key(|&other| self.rooms[other].len())
                && !self.begin_closing(on, other)
            {
                // Its free frames are kept for seats. So others have to leave first.
                let lost = self.rooms[other].free_of(self.rooms[other].len() - 1);
                let (from, want) = (Class::new(other), lost + self.pledges[other].all());
                self.prepare(on, from, lost);
                self.take_cold(on, from, (want, oldest), moving);
                self.begin_closing(on, other);
            }
        }
        self.go_on_closing(on, oldest, moving);
    }

    /// Begins to empty a class's last segment. False: the seats' shares need its free frames.
    fn begin_closing(&mut self, on: Ground<'_>, index: usize) -> bool {
        let last = self.rooms[index].len() - 1;
        self.cut(on, Class::new(index), last);
        if self.rooms[index].free() < self.rooms[index].free_of(last) + self.pledges[index].all() {
            return false;
        }
        self.closing = Some((index, self.rooms[index].close(last)));
        true
    }

    fn go_on_closing(&mut self, on: Ground<'_>, oldest: u64, moving: &mut Moving) {
        let Some((index, segment)) = self.closing else { return };
        let class = Class::new(index);
        let (epoch, mut is_chilled) = (on.epochs.now(), false);
        for number in 0..class.frames() {
            let at = on.frames.frame(class, segment, number);
            let State::Present(since) = on.frames.header(at).state() else { continue };
            if chill(on, at).is_some() {
                is_chilled = true;
            } else if since < oldest && since < epoch && moving.writes.len() < BATCH {
                let word = Word(!on.frames.header(at).peek());
                self.take(on, at, (word, since, oldest), moving);
            }
        }
        if is_chilled {
            on.epochs.turn();
        }
        if self.rooms[index].remove_closed() {
            on.frames.discard(class, segment);
            (self.closing, self.left) = (None, self.left + 1);
            self.give(on);
        }
    }

    /// After some bytes have left: a segment of the class with the least turnover for its size is
    /// closed, if another has much more.
    fn share_out(&mut self, on: Ground<'_>) {
        self.gone = 0;
        let density = |room: &Room| room.gone / room.len().max(1);
        let with_some = (0..CLASSES).filter(|&index| self.rooms[index].len() > 1);
        let idle = with_some.min_by_key(|&index| density(&self.rooms[index]));
        let busy = self.rooms.iter().map(density).max().unwrap_or_default();
        if let Some(idle) = idle
            && self.closing.is_none()
            && busy > 2 * density(&self.rooms[idle])
        {
            self.begin_closing(on, idle);
        }
        self.rooms.iter_mut().for_each(|room| room.gone /= 2);
    }

    /// Takes a free frame of a class for the object of a home: a spare one, or one of the seat's
    /// share. The caller has called [`Core::room`].
    pub fn frame(&mut self, on: Ground<'_>, (class, slot): (Class, usize), home: Home) -> Result<(Grip, Word)> {
        if self.rooms[class.index].free() <= self.floor {
            self.pledges[class.index].take(slot);
        }
        debug_assert!(self.rooms[class.index].free() > self.pledges[class.index].all());
        let (segment, number) = self.rooms[class.index].take().ok_or(Error::ScopeFull(self.most * SEGMENT))?;
        let at = on.frames.frame(class, segment, number);
        Ok((on.frames.give(at, home), Word::new(at.units(class), home)))
    }

    /// Transfers have ended, with one result for each. Those without a result have failed.
    pub fn ended(&mut self, on: Ground<'_>, moving: Moving, results: &[farmem::Result<u64>]) {
        let is_done = |n: usize| results.get(n).is_some_and(std::result::Result::is_ok);
        let reads = moving.reads.len();
        for (n, ((grip, _), word)) in moving.reads.into_iter().zip(moving.words).enumerate() {
            if is_done(n) {
                on.frames.publish(grip, word);
                self.fetched += 1;
            } else {
                self.free(on.frames.vacate(grip));
            }
        }
        for (n, ((grip, _), word)) in moving.writes.into_iter().zip(moving.stays).enumerate() {
            self.leaving -= 1;
            let is_orphan = matches!(on.frames.header(grip.at()).state(), State::Orphan(_));
            if is_orphan {
                self.homes.give(word.home(), on.memory);
            }
            if is_done(reads + n) || is_orphan {
                self.written += 1;
                self.failed = None;
                self.free(on.frames.vacate(grip));
            } else {
                self.failed = results.get(reads + n).and_then(|result| result.as_ref().err().cloned());
                on.frames.publish(grip, word);
            }
        }
        if self.gone >= LOOK {
            self.share_out(on);
        }
    }

    /// After objects were dropped: takes empty segments from a class, for the run. Returns whether
    /// there were any.
    pub fn tidy(&mut self, on: Ground<'_>, class: Class) -> bool {
        let before = self.left;
        while self.rooms[class.index].empty() > SPARE
            && let Some(nth) = self.unneeded(class.index)
        {
            on.frames.discard(class, self.rooms[class.index].segment(nth));
            self.rooms[class.index].remove(nth);
            self.left += 1;
        }
        self.left > before
    }

    /// A box is dropped.
    pub fn dropped(&mut self, on: Ground<'_>, class: Class, word: Word) {
        let at = on.frames.of_word(class, word);
        let header = on.frames.header(at);
        if header.peek() == word.0 || header.peek() == !word.0 {
            on.frames.abandon(at);
            self.free(at);
        } else if header.state() == State::Leaving(word.home().0) {
            // It ends with its way home.
            header.set_state(State::Orphan(word.home().0));
            return;
        }
        self.homes.give(word.home(), on.memory);
    }
}

/// Makes a frame cold, if it is live. Its word.
fn chill(on: Ground<'_>, at: At) -> Option<Word> {
    let header = on.frames.header(at);
    let word = Word(header.peek());
    let is_live = word.0 != 0 && word.place() == at.units(at.class());
    (is_live && header.chill(word.0, on.epochs)).then_some(word)
}
