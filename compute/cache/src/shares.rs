//! How pages and far objects share one local memory: by gain.
//!
//! ```text
//! pages    ── missed, and of these: came back soon ─┐
//!                                                   ├─► look ─► the most that objects may have
//! objects  ── missed, and of these: came back soon ─┘
//! ```
//!
//! *Gain.* What a side would save with a little more memory is what it misses although it left not
//! long ago ([`crate::ghosts`]): the misses of a [`DEPTH`]th of local memory, times what one costs. A
//! side loses about as much with a little less. So memory moves to the side that gains more, a step
//! at a look, until both gain alike.
//!
//! *Hysteresis.* A side must gain twice as much as the other, and a part of all that misses
//! cost. At the balance nothing moves, though counts are noisy.
//!
//! *Cliffs.* A side that runs in a circle misses nothing while the circle fits, and then all of it.
//! Gain cannot show that beforehand. So a move that is taken back at once was a mistake: the same
//! direction waits for some looks, and for twice as many after the next such mistake.

use std::ops::RangeInclusive;

/// One part in this many of local memory is the distance within which a return is soon.
pub const DEPTH: u64 = 8;
/// One part in this many of local memory moves at a look.
const STEP: u64 = 32;
/// Steps that follow from one count, at most.
const STEPS: u64 = 8;
/// Objects can have from one part in this many of local memory …
const LEAST: u64 = 8;
/// … to these parts of it.
const MOST: (u64, u64) = (3, 4);
/// A look follows when misses have brought in one part in this many of local memory.
const LOOK: u64 = 8;
/// The gain must be one part in this many of what misses cost.
const WORTH: u64 = 64;
/// Looks within which a move in the other direction takes the last one back.
const SOON: u32 = 4;
/// Looks for which a direction waits after one mistake, and after many.
const WAIT: (u32, u32) = (4, 128);

/// One side's misses since the last look.
#[derive(Clone, Copy, Default, Debug)]
pub struct Side {
    /// Pages that came in, or objects in pages.
    pub pages: u64,
    /// The time of its misses, in any unit.
    pub cost: u64,
    /// The part of that time which a [`DEPTH`]th more memory would have saved.
    pub saved: u64,
}

impl Side {
    fn add(&mut self, more: Side) {
        self.pages += more.pages;
        self.cost += more.cost;
        self.saved += more.saved;
    }
}

/// To whom memory moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum To {
    Pages,
    Objects,
}

/// The shares.
#[derive(Debug)]
pub struct Shares {
    /// Pages that objects may have.
    objects: u64,
    /// Since the last look: pages, then objects.
    seen: [Side; 2],
    looks: u32,
    /// The last move, and its look.
    last: Option<(To, u32)>,
    /// By direction: the look until which it waits, and for how many the next mistake makes it wait.
    waits: [(u32, u32); 2],
}

impl Shares {
    /// Objects may have half of `local` pages at first.
    pub fn new(local: u64) -> Shares {
        Shares { objects: local / 2, seen: [Side::default(); 2], looks: 0, last: None, waits: [(0, WAIT.0); 2] }
    }

    /// The least and the most that objects may ever have.
    pub fn bounds(local: u64) -> RangeInclusive<u64> {
        local / LEAST..=local * MOST.0 / MOST.1
    }

    /// Pages that objects may have of `local` pages.
    pub fn objects(&self, local: u64) -> u64 {
        let bounds = Shares::bounds(local);
        self.objects.clamp(*bounds.start(), *bounds.end())
    }

    /// Adds what the sides have missed since the last call. Returns whether the shares were looked
    /// at. `used`: pages that objects have now.
    pub fn count(&mut self, local: u64, used: u64, pages: Side, objects: Side) -> bool {
        self.seen[0].add(pages);
        self.seen[1].add(objects);
        let looks = (self.seen[0].pages + self.seen[1].pages) / (local / LOOK).max(1);
        if looks > 0 {
            self.look(local, used, looks.min(STEPS));
        }
        looks > 0
    }

    /// `steps`: looks for which there were misses. Objects that are hardly used tell of them late.
    fn look(&mut self, local: u64, used: u64, steps: u64) {
        self.looks += 1;
        let [pages, objects] = std::mem::take(&mut self.seen);
        let worth = (pages.cost + objects.cost) / WORTH;
        let is_better = |one: Side, other: Side| one.saved > worth && one.saved > 2 * other.saved;
        let to = match (is_better(pages, objects), is_better(objects, pages)) {
            (true, _) => To::Pages,
            (_, true) => To::Objects,
            _ => return,
        };
        if self.waits[to as usize].0 > self.looks {
            return;
        }
        let other = if to == To::Pages { To::Objects } else { To::Pages };
        if let Some((last, when)) = self.last
            && last == other
        {
            let (until, wait) = &mut self.waits[other as usize];
            if self.looks - when <= SOON {
                *until = self.looks + *wait;
                *wait = (2 * *wait).min(WAIT.1);
            } else if self.looks - when > WAIT.1 {
                *wait = WAIT.0;
            }
        }
        self.last = Some((to, self.looks));
        let (step, now) = (steps * (local / STEP).max(1), self.objects(local));
        self.objects = match to {
            // The pages have the unused part of the objects' share already.
            To::Pages => now.min(used).saturating_sub(step),
            To::Objects => now + step,
        };
        self.objects = self.objects(local);
    }
}
