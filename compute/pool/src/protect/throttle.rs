//! How fast repair copies: slower while the program's fetches take longer than they did before; and how
//! much at a time.
//!
//! ```text
//!  nothing is copied ─► the median of the fetches is the usual one
//!  copying ─► every LOOK_NS: median > usual × 1.25 ─► pauses twice as long, at most MOST times the work
//!                            else                  ─► half as long, down to a quarter of the work
//! ```
//!
//! At first a pause is as long as the work before it. If the program fetches little, or as fast as
//! before, the pauses shrink, and repair copies for four fifths of the time. If fetches slow down,
//! the pauses grow. Repair keeps at least a ninth of the time, because a slab without its copy is
//! lost with the next node.

use farmem_run::counters::{Histogram, percentile};

/// Between looks while something is copied.
const LOOK_NS: u64 = 100_000_000;
/// Fetches without which nothing is known of how long they take.
const FEW: u64 = 16;
/// The longest pause, as a multiple of the work before it.
const MOST: u64 = 8;
/// The shortest pause is the work before it divided by this.
const PARTS: u64 = 4;

/// The longest that is copied without a pause.
pub const SPELL_NS: u64 = 1_000_000;
/// The time that a piece should take, at most.
const PIECE_NS: u64 = 500_000;
/// A piece that takes less is short.
const SHORT_NS: u64 = PIECE_NS / 4;

/// The pages to copy at a time, under the evictor's lock.
pub struct Piece(u32);

impl Default for Piece {
    fn default() -> Piece {
        Piece(Piece::MOST)
    }
}

impl Piece {
    /// Pages of a piece, at most and at least.
    pub const MOST: u32 = 64;
    const LEAST: u32 = 4;

    /// How many pages to copy now.
    pub fn pages(&self) -> u32 {
        self.0
    }

    /// A piece took this long: the next is smaller if that was too long, and larger if it was
    /// short.
    pub fn took(&mut self, ns: u64) {
        self.0 = match ns {
            PIECE_NS.. => (self.0 / 2).max(Piece::LEAST),
            ..SHORT_NS => (self.0 * 2).min(Piece::MOST),
            _ => self.0,
        };
    }
}

/// See the module.
pub struct Throttle {
    seen: [u64; 160],
    looked_ns: u64,
    /// The median while nothing was copied; 0: not known.
    usual_ns: u64,
    /// The pause, in [`PARTS`] of the work.
    factor: u64,
}

impl Default for Throttle {
    fn default() -> Throttle {
        Throttle { seen: [0; 160], looked_ns: 0, usual_ns: 0, factor: PARTS }
    }
}

impl Throttle {
    /// The median of the fetches since the last look, if there were enough; each look forgets those
    /// before.
    fn median(&mut self, fetches: &Histogram, now_ns: u64) -> Option<u64> {
        let now = fetches.snapshot();
        let since: [u64; 160] = std::array::from_fn(|i| now[i].saturating_sub(self.seen[i]));
        (self.seen, self.looked_ns) = (now, now_ns);
        (since.iter().sum::<u64>() >= FEW).then(|| percentile(&since, 0.5))
    }

    /// Nothing is copied now: fetches take as long as they usually do.
    pub fn rests(&mut self, fetches: &Histogram, now_ns: u64) {
        self.factor = PARTS;
        if let Some(median) = self.median(fetches, now_ns) {
            self.usual_ns = median;
        }
    }

    /// How long to pause after `spent` of copying.
    pub fn pause(&mut self, fetches: &Histogram, now_ns: u64, spent_ns: u64) -> u64 {
        if now_ns.saturating_sub(self.looked_ns) >= LOOK_NS {
            let median = self.median(fetches, now_ns);
            let slow = median.is_some_and(|median| self.usual_ns > 0 && median > self.usual_ns + self.usual_ns / 4);
            self.factor = if slow { (self.factor * 2).min(MOST * PARTS) } else { (self.factor / 2).max(1) };
        }
        spent_ns * self.factor / PARTS
    }

    /// Whether it is slower than it could be.
    pub fn is_slow(&self) -> bool {
        self.factor > PARTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records `n` fetches of `us` microseconds each.
    fn fetch(fetches: &Histogram, n: usize, us: u64) {
        (0..n).for_each(|_| fetches.record(us * 1000));
    }

    #[test]
    fn copying_slows_down_when_fetches_do_and_recovers() {
        let (fetches, mut throttle) = (Histogram::default(), Throttle::default());
        fetch(&fetches, 100, 20);
        throttle.rests(&fetches, 0);
        let mut now = 0;
        let mut after = |n, us| {
            now += LOOK_NS;
            fetch(&fetches, n, us);
            throttle.pause(&fetches, now, 40)
        };
        assert_eq!([20, 20, 20].map(|us| after(50, us)), [20, 10, 10], "nothing is felt");
        assert_eq!([40, 40, 40].map(|us| after(50, us)), [20, 40, 80], "twice as slow each time");
        assert_eq!(after(3, 900), 40, "few fetches say nothing");
        assert_eq!((0..10).map(|_| after(50, 90)).last(), Some(40 * MOST), "it never stops");
        assert_eq!((0..10).map(|_| after(50, 20)).last(), Some(10));
    }

    #[test]
    fn pieces_are_small_on_a_slow_link() {
        let mut piece = Piece::default();
        let mut after = |ns| {
            piece.took(ns);
            piece.pages()
        };
        assert_eq!([100_000, 300_000].map(&mut after), [Piece::MOST, Piece::MOST]);
        assert_eq!([900_000, 600_000, 2_000_000, 2_000_000].map(&mut after), [32, 16, 8, Piece::LEAST]);
        assert_eq!([300_000, 90_000, 90_000, 90_000, 90_000].map(&mut after), [4, 8, 16, 32, Piece::MOST]);
    }

    #[test]
    fn it_begins_with_half_of_the_time() {
        let (fetches, mut throttle) = (Histogram::default(), Throttle::default());
        fetch(&fetches, 100, 900);
        assert_eq!((throttle.pause(&fetches, LOOK_NS - 1, 7), throttle.is_slow()), (7, false));
        // Nothing to compare with.
        assert_eq!((throttle.pause(&fetches, LOOK_NS, 8), throttle.is_slow()), (4, false));
    }
}
