//! The evictor: which frames are given to arrivals, and how many segments each size class has. Safe
//! code.
//!
//! ```text
//! an arrival needs a frame ─┬─ a free one of its class
//!                           ├─ a fresh segment, while local memory lasts
//!                           ├─ a victim of the class's hand ── clean: at once
//!                           │                               └─ dirty: behind this miss's read
//!                           └─ a segment of another class
//! ```
//!
//! A hand goes round the frames of each class. An object that was used since it came by last gets
//! one more round. An object that came and was used by one scope only gets none, so a scan pushes
//! out no objects that are in use.
//!
//! Victims are chosen [`BATCH`] at a time, before the last free frame is gone. So the writes of
//! dirty victims travel behind the read of a miss, by the same round trip.

use crate::class::{CLASSES, Class, SEGMENT};
use crate::frames::{ARRIVING, Arena, At, DIRTY, Move, SEEN, STAMP, Word};
use crate::homes::Homes;
use crate::{Error, Result};
use farmem::near::{Found, Scan};
use farmem::{Addr, Completion, Lane};
use std::time::Duration;

/// Victims that are chosen together.
const BATCH: usize = 32;
/// A class with fewer free frames chooses victims.
const LOW: usize = 8;
/// Bytes that leave between two looks at how segments are shared out.
const LOOK: usize = 4 << 20;
/// Bytes of neighbours that are scanned together: a block's.
const TOGETHER: u64 = 2 << 20;
/// The longest sleep in which nothing arrives, between two looks whether the node is lost.
const PATIENCE: Duration = Duration::from_secs(1);

/// Frames of one class.
#[derive(Default)]
struct Room {
    segments: Vec<usize>,
    /// Segments that were given back.
    spare: Vec<usize>,
    /// Segments that it ever had.
    next: usize,
    free: Vec<At>,
    /// Where the hand is: a place in `segments`, and a frame.
    hand: (usize, usize),
    /// Bytes that left since the last look.
    gone: usize,
}

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

/// Decides who leaves, and moves objects.
pub struct Evictor {
    rooms: [Room; CLASSES],
    /// Segments that no class has.
    left: usize,
    most: usize,
    /// Dirty victims that are still in their frames.
    leaving: Vec<At>,
    /// Posted arrivals.
    posted: usize,
    buffers: Vec<Vec<u8>>,
    done: Vec<Completion>,
    gone: usize,
    pub moved: Moved,
    pub lane: Lane,
    pub homes: Homes,
}

impl Evictor {
    pub fn new(local: usize, lane: Lane) -> Evictor {
        let most = local / SEGMENT;
        Evictor {
            rooms: std::array::from_fn(|_| Room::default()),
            left: most,
            most,
            leaving: Vec::new(),
            posted: 0,
            buffers: Vec::new(),
            done: Vec::new(),
            gone: 0,
            moved: Moved::default(),
            lane,
            homes: Homes::new(),
        }
    }

    /// Bytes of local memory, headers with them.
    pub fn most(&self) -> usize {
        self.most * SEGMENT
    }

    /// Bytes of local memory that are given to classes.
    pub fn used(&self) -> usize {
        (self.most - self.left) * SEGMENT
    }

    /// Whether an arrival of this class would push something out.
    fn is_short(&self, class: Class) -> bool {
        self.left == 0 && self.rooms[class.index].free.len() < LOW
    }

    /// The frame is free: its object was dropped, or is of no more use here.
    pub fn free(&mut self, class: Class, at: At) {
        self.rooms[class.index].free.push(at);
    }

    /// `n` free frames of a class. `oldest`: the stamp of the oldest open scope.
    ///
    /// # Errors
    /// [`Error::ScopeFull`]: open scopes hold the rest. [`Error::Memory`]: what should leave
    /// cannot.
    fn frames(&mut self, arena: &Arena, class: Class, n: usize, oldest: u64) -> Result<Vec<At>> {
        if self.gone >= LOOK {
            // Now, while no frame is taken and not yet given to a box.
            self.share_out(arena, oldest);
        }
        while self.rooms[class.index].free.len() < n {
            if self.left > 0 && self.rooms[class.index].segments.len() < class.segments() {
                self.left -= 1;
                self.add_segment(arena, class);
                continue;
            }
            let missing = n - self.rooms[class.index].free.len();
            let came = self.choose(arena, class, missing.max(BATCH), oldest);
            if self.rooms[class.index].free.len() >= n {
                break;
            }
            if !self.leaving.is_empty() {
                self.run(arena, &[], oldest)?;
            } else if came == 0 && !self.steal(arena, class, oldest)? {
                return Err(Error::ScopeFull(self.most()));
            }
        }
        let free = &mut self.rooms[class.index].free;
        let taken = free.split_off(free.len() - n);
        if self.is_short(class) {
            self.choose(arena, class, BATCH, oldest);
        }
        Ok(taken)
    }

    fn add_segment(&mut self, arena: &Arena, class: Class) {
        let room = &mut self.rooms[class.index];
        let segment = room.spare.pop().unwrap_or_else(|| {
            room.next += 1;
            room.next - 1
        });
        room.segments.push(segment);
        // The lowest is taken first.
        room.free.extend((0..class.frames()).rev().map(|number| arena.frame(class, segment, number)));
    }

    /// Has the hand choose victims: clean ones are free at once, dirty ones are among `leaving`.
    /// How many in all.
    fn choose(&mut self, arena: &Arena, class: Class, want: usize, oldest: u64) -> usize {
        let room = &mut self.rooms[class.index];
        let mut chosen = 0;
        for _ in 0..2 * room.segments.len() * class.frames() {
            if chosen == want || self.leaving.len() >= BATCH {
                break;
            }
            let (segment, number) = room.hand;
            room.hand = match number + 1 < class.frames() {
                true => (segment, number + 1),
                false if segment + 1 < room.segments.len() => (segment + 1, 0),
                false => (0, 0),
            };
            let at = arena.frame(class, room.segments[segment], number);
            let meta = arena.meta(at);
            if arena.word(at) == 0 || meta & ARRIVING != 0 || meta >> STAMP >= oldest {
                continue;
            }
            if meta & SEEN == 0 {
                arena.set_bits(at, meta | SEEN);
                continue;
            }
            if meta & DIRTY == 0 {
                arena.empty(at, oldest);
                room.free.push(at);
            } else if !self.leaving.contains(&at) {
                self.leaving.push(at);
            } else {
                continue;
            }
            chosen += 1;
        }
        room.gone += chosen * class.stride;
        self.gone += chosen * class.stride;
        chosen
    }

    /// Takes a segment from the class with the most that can give one.
    fn steal(&mut self, arena: &Arena, class: Class, oldest: u64) -> Result<bool> {
        let mut others: Vec<usize> = (0..CLASSES).filter(|&other| other != class.index).collect();
        others.sort_by_key(|&other| std::cmp::Reverse(self.rooms[other].segments.len()));
        for other in others {
            for nth in 0..self.rooms[other].segments.len() {
                if self.give_up(arena, Class::new(other), nth, oldest)? {
                    self.left -= 1;
                    self.add_segment(arena, class);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Empties a segment of a class, unless a scope holds something of it.
    fn give_up(&mut self, arena: &Arena, class: Class, nth: usize, oldest: u64) -> Result<bool> {
        let segment = self.rooms[class.index].segments[nth];
        let frames: Vec<At> = (0..class.frames()).map(|number| arena.frame(class, segment, number)).collect();
        let is_held =
            |&at: &At| arena.word(at) != 0 && (arena.meta(at) & ARRIVING != 0 || arena.meta(at) >> STAMP >= oldest);
        if frames.iter().any(is_held) {
            return Ok(false);
        }
        self.leaving.retain(|at| !frames.contains(at));
        let kept = std::mem::take(&mut self.leaving);
        self.leaving =
            frames.iter().copied().filter(|&at| arena.word(at) != 0 && arena.meta(at) & DIRTY != 0).collect();
        self.leaving.iter().for_each(|&at| arena.set_bits(at, arena.meta(at) | SEEN));
        let written = self.run(arena, &[], oldest);
        self.leaving = kept;
        written?;
        // Those that could not leave keep the segment; the clean ones stay with them.
        if frames.iter().any(|&at| arena.word(at) != 0 && arena.meta(at) & DIRTY != 0) {
            return Ok(false);
        }
        frames.iter().filter(|&&at| arena.word(at) != 0).for_each(|&at| arena.empty(at, oldest));
        let room = &mut self.rooms[class.index];
        room.free.retain(|at| !frames.contains(at));
        room.segments.swap_remove(nth);
        room.spare.push(segment);
        room.hand = (0, 0);
        arena.discard(class, segment);
        self.left += 1;
        Ok(true)
    }

    /// Moves one segment from the class with the least turnover for its size to the one with the
    /// most.
    fn share_out(&mut self, arena: &Arena, oldest: u64) {
        self.gone = 0;
        let density = |room: &Room| room.gone / room.segments.len().max(1);
        let with_some = (0..CLASSES).filter(|&index| self.rooms[index].segments.len() > 1);
        let idle = with_some.min_by_key(|&index| density(&self.rooms[index]));
        let busy = (0..CLASSES).max_by_key(|&index| density(&self.rooms[index]));
        if let (Some(idle), Some(busy)) = (idle, busy)
            && density(&self.rooms[busy]) > 2 * density(&self.rooms[idle])
        {
            // A class whose objects cannot leave now keeps its segment.
            let nth = self.rooms[idle].segments.len() - 1;
            if let Ok(true) = self.give_up(arena, Class::new(idle), nth, oldest) {
                self.left -= 1;
                self.add_segment(arena, Class::new(busy));
            }
        }
        self.rooms.iter_mut().for_each(|room| room.gone /= 2);
    }

    /// Reads objects into frames that await them, and writes the dirty victims home, by one round
    /// trip to each node.
    ///
    /// # Errors
    /// The first of an arrival, else the first of a departure. Objects that could not leave stay.
    fn run(&mut self, arena: &Arena, reads: &[Move], oldest: u64) -> Result<()> {
        // Some were used, or dropped, since they were chosen.
        let goes = |&at: &At| {
            let meta = arena.meta(at);
            arena.word(at) != 0 && meta & (DIRTY | SEEN | ARRIVING) == DIRTY | SEEN && meta >> STAMP < oldest
        };
        let home = |at: At| Some((at, self.homes.addr(Word(arena.word(at)).home())?));
        let writes: Vec<Move> = self.leaving.drain(..).filter(goes).filter_map(home).collect();
        let results = match (reads, &writes[..]) {
            (&[], &[]) => return Ok(()),
            (&[one], &[]) => vec![arena.arrive(&mut self.lane, one).map(|()| 0)],
            _ => arena.transfer(&mut self.lane, reads, &writes, oldest),
        };
        let mut ended = Ok(());
        for (n, result) in results.into_iter().enumerate() {
            match (reads.get(n), &result) {
                (Some(&(at, _)), Ok(_)) => {
                    arena.arrived(at);
                    self.moved.fetched += 1;
                }
                (Some(&(at, _)), Err(_)) => {
                    arena.missed(at);
                    self.free(arena.class(at), at);
                }
                (None, Ok(_)) => {
                    let (at, _) = writes[n - reads.len()];
                    arena.empty(at, oldest);
                    self.free(arena.class(at), at);
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

    /// Brings objects of a class in, by one round trip to each node; all of them or none. Tells
    /// each one's new word.
    pub fn fetch(
        &mut self,
        arena: &Arena,
        (class, mark, oldest): (Class, u64, u64),
        away: &[Word],
        mut tell: impl FnMut(usize, Word),
    ) -> Result<()> {
        let homes: Option<Vec<_>> = away.iter().map(|word| self.homes.addr(word.home())).collect();
        let homes = homes.ok_or(Error::OtherHeap)?;
        let frames = self.frames(arena, class, away.len(), oldest)?;
        let mut reads = Vec::with_capacity(away.len());
        for (n, (&at, home)) in frames.iter().zip(homes).enumerate() {
            let word = Word::new(class, at, away[n].home());
            arena.give(at, word, mark | SEEN);
            tell(n, word);
            reads.push((at, home));
        }
        self.run(arena, &reads, oldest).inspect_err(|_| {
            // Those that came are let go of: none is of use without the others.
            for &(at, _) in &reads {
                if arena.word(at) != 0 {
                    arena.set_bits(at, SEEN);
                }
            }
        })
    }

    /// A frame and a home for a fresh object, which awaits its bytes.
    pub fn fresh(
        &mut self,
        arena: &Arena,
        (class, mark, oldest): (Class, u64, u64),
        home: impl FnOnce(&mut Homes) -> Result<crate::homes::Home>,
    ) -> Result<(At, Word)> {
        let frames = self.frames(arena, class, 1, oldest)?;
        let at = frames[0];
        match home(&mut self.homes) {
            Ok(home) => {
                let word = Word::new(class, at, home);
                arena.give(at, word, mark | SEEN | DIRTY);
                Ok((at, word))
            }
            Err(e) => {
                self.free(class, at);
                Err(e)
            }
        }
    }

    /// Posts arrivals of objects that will be needed. Those for which there is no frame are left
    /// out.
    pub fn post(
        &mut self,
        arena: &Arena,
        (class, mark, oldest): (Class, u64, u64),
        away: &[Word],
        mut tell: impl FnMut(usize, Word),
    ) {
        for (n, word) in away.iter().enumerate() {
            let Some(home) = self.homes.addr(word.home()) else { continue };
            let Ok(frames) = self.frames(arena, class, 1, oldest) else { break };
            let word = Word::new(class, frames[0], word.home());
            // It gets one round of the hand: it has not been used yet.
            arena.give(frames[0], word, mark);
            tell(n, word);
            let mut buffer = self.buffers.pop().unwrap_or_default();
            buffer.resize(class.payload, 0);
            self.lane.post_read(Arena::tag(frames[0]), home, buffer);
            self.posted += 1;
        }
        self.lane.ring();
    }

    /// Posted arrivals that are under way.
    pub fn posted(&self) -> usize {
        self.posted
    }

    /// Takes posted arrivals that have come; waits for one if `wait` and any is under way.
    pub fn settle(&mut self, arena: &Arena, wait: bool) {
        if self.posted == 0 {
            return;
        }
        let mut done = std::mem::take(&mut self.done);
        match wait {
            true => self.lane.wait(&mut done, PATIENCE),
            false => self.lane.poll(&mut done),
        };
        for Completion { tag, result, buffer, .. } in done.drain(..) {
            self.posted -= 1;
            let Some(at) = arena.of_tag(tag) else { continue };
            match result {
                Ok(_) => {
                    arena.fill(at, &buffer);
                    arena.arrived(at);
                    self.moved.fetched += 1;
                }
                // The next use asks again, and is told.
                Err(_) => {
                    arena.missed(at);
                    self.free(arena.class(at), at);
                }
            }
            self.buffers.push(buffer);
        }
        self.done = done;
    }

    /// A scan is done with an object. Where room is short, it makes room at once, if it is clean
    /// and no open scope holds it. Else it leaves with the next that the hand meets.
    pub fn seen(&mut self, arena: &Arena, class: Class, word: Word, oldest: u64) {
        let at = arena.of_word(class, word);
        if arena.word(at) != word.0 {
            return;
        }
        let meta = arena.meta(at);
        if self.is_short(class) && meta & DIRTY == 0 && meta >> STAMP < oldest {
            arena.empty(at, oldest);
            self.free(class, at);
        } else {
            arena.set_bits(at, meta | SEEN);
        }
    }

    /// The result of a scan of the first bytes of objects that are away. Neighbours are looked at
    /// together.
    pub fn scan_away(&mut self, away: &[(Word, u64)], scan: &Scan) -> Result<Found> {
        let mut ranges: Vec<(Addr, u64)> = Vec::new();
        for &(word, len) in away {
            let at = self.homes.addr(word.home()).ok_or(Error::OtherHeap)?;
            match ranges.last_mut() {
                Some((from, bytes)) if *from + *bytes == at && *bytes + len <= TOGETHER => *bytes += len,
                _ => ranges.push((at, len)),
            }
        }
        Ok(self.lane.scan(&ranges, scan)?)
    }

    /// As many bytes of each of these objects, which are away, from an offset on.
    pub fn gather_away(&mut self, away: &[(Word, u64)], each: u32) -> Result<Vec<u8>> {
        let place = |&(word, offset): &(Word, u64)| Some(self.homes.addr(word.home())? + offset);
        let places: Option<Vec<Addr>> = away.iter().map(place).collect();
        Ok(self.lane.gather(&places.ok_or(Error::OtherHeap)?, each)?)
    }
}
