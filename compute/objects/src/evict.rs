//! The evictor: which frames are given to arrivals, and how many segments each size class has. Safe
//! code. A *frame* holds one local object. A *segment* is a run of frames of one size class.
//! An *arrival* is an object that comes in. A *victim* is an object that leaves for it.
//!
//! ```text
//! an arrival needs a frame ─┬─ a free one of its class
//!                           ├─ a fresh segment, while local memory lasts
//!                           ├─ a victim of the class's hand ── clean: at once
//!                           │                               └─ dirty: behind this miss's read
//!                           └─ a segment of another class
//! ```
//!
//! A hand goes round the frames of each class, as in the CLOCK algorithm. It spares an object that
//! was used since it passed last, and sets [`SEEN`]; a use clears that. An object that was used
//! only by the scope that brought it in is not spared. So a scan pushes out no objects that are in
//! use.
//!
//! Victims are chosen [`BATCH`] at a time, before the last free frame is taken. So the writes of
//! dirty victims follow the read of a miss by the same round trip.

mod posted;
mod returns;
mod segments;

pub use returns::{Missed, Returns};

use crate::class::{CLASSES, Class, GROUP, SEGMENT};
use crate::frames::{Arena, Move};
use crate::homes::{Home, Homes};
use crate::rooms::Room;
use crate::share::{SPARE, Share};
use crate::space::At;
use crate::way::{Nodes, Way};
use crate::word::{ARRIVING, SEEN, STAMP, Word};
use crate::{Error, Result};
use farmem::Addr;
use farmem::near::{Found, Scan};
use std::rc::Rc;
use std::time::Instant;

/// Victims that are chosen together.
const BATCH: usize = 32;
/// A class with fewer free frames chooses victims.
const LOW: usize = 8;
/// Segments are shared out again among the classes each time this many bytes have left.
const LOOK: usize = 4 << 20;
/// The most bytes of adjacent objects that one scan covers: those of a block.
const TOGETHER: u64 = 2 << 20;
/// Objects of a fetch that the CPU is told of beforehand: as many lines as it has under way at once.
const TOUCHED: usize = 16;
/// The amounts moved since the heap was built.
#[derive(Clone, Copy, Default, Debug)]
pub struct Moved {
    /// Objects fetched.
    pub fetched: u64,
    /// Objects written back.
    pub written: u64,
    /// Round trips that wrote objects back.
    pub batches: u64,
}

/// Chooses the objects that leave, and moves objects.
pub struct Evictor<W: Way = Nodes> {
    rooms: [Room; CLASSES],
    /// Segments that may still be given to a class.
    left: usize,
    share: Rc<Share>,
    /// The most segments that all classes may have.
    most: usize,
    /// The most that they may ever have.
    cap: usize,
    /// What the heap misses, if its run weighs that.
    returns: Option<Returns>,
    /// Segments that were asked in vain to be given to the run, and the oldest scope meanwhile.
    vain: (usize, u64),
    /// Dirty victims that are still in their frames.
    leaving: Vec<At>,
    /// Posted arrivals that have not ended.
    posted: usize,
    /// Some of them are not sent yet.
    unsent: bool,
    /// Buffers for posted arrivals, to be used again.
    buffers: Vec<Vec<u8>>,
    /// Bytes that left since segments were last shared out.
    gone: usize,
    pub moved: Moved,
    pub way: W,
    pub homes: Homes<W::Owner>,
}

impl<W: Way> Evictor<W> {
    /// An evictor with at most `most` segments.
    pub fn new(most: usize, share: Rc<Share>, way: W) -> Evictor<W> {
        // An eighth of the run's local memory, of which `most` is three quarters.
        let returns = share.is_of_run().then(|| Returns::new((most * SEGMENT / 6) as u64));
        Evictor {
            rooms: Room::of_all(),
            left: most,
            share,
            most,
            cap: most,
            returns,
            vain: (0, 0),
            leaving: Vec::new(),
            posted: 0,
            unsent: false,
            buffers: Vec::new(),
            gone: 0,
            moved: Moved::default(),
            way,
            homes: Homes::new(),
        }
    }

    /// The limit of local memory in bytes, with the frames' headers.
    pub fn most(&self) -> usize {
        self.most * SEGMENT
    }

    /// Bytes of local memory that are given to classes.
    pub fn used(&self) -> usize {
        (self.most - self.left) * SEGMENT
    }

    /// Whether an arrival of this class would push something out.
    fn is_short(&self, class: Class) -> bool {
        self.left == 0 && self.rooms[class.index].free() < LOW
    }

    /// The number of arrivals of this class that push nothing out.
    pub fn room(&self, class: Class) -> usize {
        let fresh = if self.rooms[class.index].len() < class.segments() { self.left * class.frames() } else { 0 };
        fresh + self.rooms[class.index].free()
    }

    /// Takes back a frame whose object was dropped, has left, or did not come.
    pub fn free(&mut self, class: Class, at: At) {
        self.rooms[class.index].give(at.place(class));
    }

    /// A free frame of a class. `oldest`: the oldest stamp that open scopes need.
    ///
    /// # Errors
    /// As [`Evictor::provide`].
    #[inline]
    fn frame(&mut self, arena: &Arena, class: Class, oldest: u64) -> Result<At> {
        if self.rooms[class.index].free() < LOW || self.gone >= LOOK {
            self.provide(arena, class, 1, oldest)?;
        }
        let taken = self.rooms[class.index].take();
        taken.map(|(segment, number)| arena.frame(class, segment, number)).ok_or(Error::ScopeFull(self.most()))
    }

    /// Makes sure that a class has `n` free frames, and chooses victims when it has few. `oldest`:
    /// the oldest stamp that open scopes need.
    ///
    /// # Errors
    /// [`Error::ScopeFull`]: open scopes hold the other frames. [`Error::Memory`]: victims could
    /// not be written home.
    fn provide(&mut self, arena: &Arena, class: Class, n: usize, oldest: u64) -> Result<()> {
        if self.gone >= LOOK {
            // This is the safe moment: no frame was taken that is not yet given to a box.
            self.share_out(arena, oldest);
        }
        if self.returns.as_ref().is_some_and(Returns::is_due) {
            self.weigh(arena, oldest);
        }
        while self.rooms[class.index].free() < n {
            if self.widen(arena, class) {
                continue;
            }
            let missing = n - self.rooms[class.index].free();
            let came = self.choose(arena, class, missing.max(BATCH), oldest);
            if self.rooms[class.index].free() >= n {
                break;
            }
            if !self.leaving.is_empty() {
                self.run(arena, &[], oldest)?;
            } else if came == 0 && !self.steal(arena, class, oldest)? && !self.need(arena, class) {
                return Err(Error::ScopeFull(self.most()));
            }
        }
        if self.is_short(class) && !self.widen(arena, class) {
            self.choose(arena, class, BATCH, oldest);
        }
        Ok(())
    }

    /// Gives a class one more segment, if no object has to leave for it: one that no class has, or
    /// an empty one of another class. Returns whether there was one.
    fn widen(&mut self, arena: &Arena, class: Class) -> bool {
        if self.rooms[class.index].len() == class.segments() {
            return false;
        }
        if self.left > 0 && !self.share.has(self.most - self.left + 1) {
            // Other heaps have the rest of the run's share. The limit is lowered to the segments in
            // use, so that the share is not asked again.
            (self.most, self.left) = (self.most - self.left, 0);
        }
        if self.left == 0 {
            let others = (0..CLASSES).filter(|&other| other != class.index);
            let empty = others.into_iter().find_map(|other| Some((other, self.rooms[other].spare_segment()?)));
            let Some((other, nth)) = empty else { return false };
            self.take_away(arena, Class::new(other), nth);
        }
        self.add(arena, class);
        true
    }

    /// Gives a class a segment that no class has.
    fn add(&mut self, arena: &Arena, class: Class) {
        self.left -= 1;
        if let Some(group) = self.rooms[class.index].add() {
            self.join(arena, class, group);
        }
    }

    /// Has the kernel back a group by a huge page, if there is room for the copy that it makes.
    fn join(&mut self, arena: &Arena, class: Class, group: usize) {
        let used = self.most - self.left;
        if self.left >= GROUP && arena.may_join() && self.share.has(used + GROUP) {
            arena.join(class, group);
        }
        self.share.keep(used);
    }

    /// Takes an empty segment from a class. `nth`: its place among the class's segments.
    fn take_away(&mut self, arena: &Arena, class: Class, nth: usize) {
        let room = &mut self.rooms[class.index];
        arena.discard(class, room.segment(nth));
        room.remove(nth);
        self.left += 1;
    }

    /// After objects were dropped: gives empty segments back to the run.
    pub fn tidy(&mut self, arena: &Arena, class: Class) {
        while self.share.is_of_run()
            && self.rooms[class.index].empty() > SPARE
            && let Some(nth) = self.rooms[class.index].spare_segment()
        {
            self.take_away(arena, class, nth);
            self.share.keep(self.most - self.left);
        }
    }

    /// Reads objects into frames that await them, and writes the dirty victims home, by one round
    /// trip to each node.
    ///
    /// # Errors
    /// The first error of an arrival. If there are no arrivals, the first of a departure. Objects
    /// that could not be written home stay local.
    fn run(&mut self, arena: &Arena, reads: &[Move], oldest: u64) -> Result<()> {
        // Victims that were used or dropped since they were chosen do not leave.
        let goes = |&at: &At| {
            let meta = arena.meta(at);
            let word = Word(arena.word(at));
            word.0 != 0 && meta & (SEEN | ARRIVING) == SEEN && word.is_dirty() && meta >> STAMP < oldest
        };
        let home = |at: At| Some((at, self.homes.addr(Word(arena.word(at)).home())?));
        let writes: Vec<Move> = self.leaving.drain(..).filter(goes).filter_map(home).collect();
        let results = match (reads, &writes[..]) {
            (&[], &[]) => return Ok(()),
            (&[one], &[]) => {
                let begun = self.begins();
                let came = arena.arrive(&mut self.way, one);
                self.took(1, begun);
                self.came(arena, one.0, came.is_ok());
                return came.map_err(Error::from);
            }
            _ => {
                let begun = self.begins().filter(|_| !reads.is_empty());
                let results = arena.transfer(&mut self.way, reads, &writes, oldest);
                self.took(reads.len(), begun);
                results
            }
        };
        let mut ended = Ok(());
        for (n, result) in results.into_iter().enumerate() {
            match (reads.get(n), &result) {
                (Some(&(at, _)), result) => self.came(arena, at, result.is_ok()),
                (None, Ok(_)) => {
                    let (at, _) = writes[n - reads.len()];
                    self.left(Word(arena.word(at)), at.class());
                    arena.empty(at, oldest);
                    self.free(at.class(), at);
                    self.moved.written += 1;
                }
                (None, Err(_)) => {}
            }
            if ended.is_ok()
                && (n < reads.len() || reads.is_empty())
                && let Err(e) = result
            {
                ended = Err(e.into());
            }
        }
        self.moved.batches += u64::from(!writes.is_empty());
        ended
    }

    /// When a fetch begins that is to be timed.
    fn begins(&mut self) -> Option<Instant> {
        self.returns.as_mut().is_some_and(Returns::times).then(Instant::now)
    }

    fn took(&mut self, objects: usize, begun: Option<Instant>) {
        if let (Some(returns), Some(begun)) = (&mut self.returns, begun) {
            returns.took(objects, begun.elapsed());
        }
    }

    /// An object leaves for others.
    fn left(&mut self, word: Word, class: Class) {
        if let Some(returns) = &mut self.returns {
            returns.left(word.home(), class.stride);
        }
    }

    /// An object comes in because it is used.
    fn missed(&mut self, home: Home, class: Class) {
        if let Some(returns) = &mut self.returns {
            returns.came(home, class.stride);
        }
    }

    /// Notes that an arrival has ended: the object is in its frame, or did not come.
    fn came(&mut self, arena: &Arena, at: At, is_there: bool) {
        if is_there {
            arena.arrived(at);
            self.moved.fetched += 1;
        } else {
            arena.missed(at);
            self.free(at.class(), at);
        }
    }

    /// Brings one object in. `mark` is the scope's stamp, `word` its box's. Returns the box's new
    /// word.
    pub fn fetch_one(&mut self, arena: &Arena, (class, mark, oldest): (Class, u64, u64), word: Word) -> Result<Word> {
        let home = self.homes.addr(word.home()).ok_or(Error::OtherHeap)?;
        // It comes into the cache while a frame is chosen.
        self.way.touch(home);
        let at = self.frame(arena, class, oldest)?;
        self.missed(word.home(), class);
        let word = Word::new(at.units(class), word.home());
        arena.give(at, word, mark | SEEN);
        self.run(arena, &[(at, home)], oldest)?;
        Ok(word)
    }

    /// Brings objects of a class in, by one round trip to each node. Passes each box's new word to
    /// `tell`. After an error those that came may leave next.
    pub fn fetch(
        &mut self,
        arena: &Arena,
        (class, mark, oldest): (Class, u64, u64),
        away: &[Word],
        mut tell: impl FnMut(usize, Word),
    ) -> Result<()> {
        let homes: Option<Vec<_>> = away.iter().map(|word| self.homes.addr(word.home())).collect();
        let homes = homes.ok_or(Error::OtherHeap)?;
        homes.iter().take(TOUCHED).for_each(|&home| self.way.touch(home));
        self.provide(arena, class, away.len(), oldest)?;
        let mut reads = Vec::with_capacity(away.len());
        for (n, home) in homes.into_iter().enumerate() {
            let (segment, number) = self.rooms[class.index].take().ok_or(Error::ScopeFull(self.most()))?;
            let at = arena.frame(class, segment, number);
            self.missed(away[n].home(), class);
            let word = Word::new(at.units(class), away[n].home());
            arena.give(at, word, mark | SEEN);
            tell(n, word);
            reads.push((at, home));
        }
        self.run(arena, &reads, oldest).inspect_err(|_| {
            // The caller cannot use some without the others. Those that came are the hand's next
            // victims.
            reads.iter().filter(|&&(at, _)| arena.word(at) != 0).for_each(|&(at, _)| arena.set_seen(at));
        })
    }

    /// A frame and a home for a new object. The caller fills the frame.
    pub fn fresh(
        &mut self,
        arena: &Arena,
        (class, mark, oldest): (Class, u64, u64),
        home: impl FnOnce(&mut Homes<W::Owner>) -> Result<Home>,
    ) -> Result<(At, Word)> {
        let at = self.frame(arena, class, oldest)?;
        match home(&mut self.homes) {
            Ok(home) => {
                let word = Word::new(at.units(class), home).dirty();
                arena.give(at, word, mark | SEEN);
                Ok((at, word))
            }
            Err(e) => {
                self.free(class, at);
                Err(e)
            }
        }
    }

    /// Notes that a scan is done with an object. If room is short, the object's frame is freed at
    /// once, provided that it is clean and no open scope holds it. Otherwise the hand will not
    /// spare it.
    pub fn seen(&mut self, arena: &Arena, class: Class, word: Word, oldest: u64) {
        let at = arena.of_word(class, word);
        if self.left > 0 || arena.word(at) != word.0 {
            return;
        }
        let meta = arena.meta(at);
        if self.is_short(class) && !word.is_dirty() && meta >> STAMP < oldest {
            arena.empty(at, oldest);
            self.free(class, at);
        } else {
            arena.set_seen(at);
        }
    }
}

impl Evictor {
    /// Has nodes scan the first `len` bytes of each of these objects, which are away: pairs of a
    /// word and `len`. Adjacent ones of a slab are scanned together.
    pub fn scan_away(&mut self, away: &[(Word, u64)], scan: &Scan) -> Result<Found> {
        let mut ranges: Vec<(Addr, u64)> = Vec::new();
        for &(word, len) in away {
            let at = self.homes.addr(word.home()).ok_or(Error::OtherHeap)?;
            match ranges.last_mut() {
                Some((from, bytes)) if from.is_beside(*bytes, at) && *bytes + len <= TOGETHER => *bytes += len,
                _ => ranges.push((at, len)),
            }
        }
        Ok(self.way.lane.near().scan(&ranges, scan)?)
    }
}
