//! Free frames of a class that are kept for each seat. Pure.
//!
//! ```text
//! free frames: │ the share of seat 0 │ of seat 1 │ … │ spare: for whoever needs them │
//! ```
//!
//! *What always holds.* There are at least as many free frames as all shares together. A seat takes
//! spare frames, or those of its own share. So it gets its share at once, whatever other seats have
//! taken. Shares grow by spare frames alone.

/// One part in this many of a class's frames is shared out among the seats, …
const SHARED: usize = 8;
/// … and so many for each, if half of the frames are enough for that.
const LEAST: usize = 8;

/// Frames of a class's `frames` that are kept for each of `seats` seats. One seat needs none kept.
pub fn share(frames: usize, seats: usize) -> usize {
    match seats {
        0 | 1 => 0,
        _ => (frames / SHARED).max((LEAST * seats).min(frames / 2)) / seats,
    }
}

/// The shares of one class.
#[derive(Default)]
pub struct Pledge {
    /// By seat: free frames that are kept for it.
    shares: Vec<usize>,
    /// Their sum.
    all: usize,
}

impl Pledge {
    /// Free frames that are kept for any seat.
    pub fn all(&self) -> usize {
        self.all
    }

    /// Those that are kept for this seat.
    pub fn of(&self, seat: usize) -> usize {
        self.shares.get(seat).copied().unwrap_or(0)
    }

    /// Those that are kept for the others.
    pub fn others(&self, seat: usize) -> usize {
        self.all - self.of(seat)
    }

    /// The seat takes a frame of its share, if it has one.
    pub fn take(&mut self, seat: usize) {
        if let Some(share) = self.shares.get_mut(seat).filter(|share| **share > 0) {
            *share -= 1;
            self.all -= 1;
        }
    }

    /// Raises a seat's share towards `want`, by spare frames of these `free` ones. Returns whether it
    /// has as many.
    pub fn raise(&mut self, seat: usize, want: usize, free: usize) -> bool {
        let more = want.saturating_sub(self.of(seat)).min(free.saturating_sub(self.all));
        if more > 0 {
            self.shares.resize(self.shares.len().max(seat + 1), 0);
            self.shares[seat] += more;
            self.all += more;
        }
        self.of(seat) >= want
    }

    /// Cuts a seat's share to `most` frames. The others are spare.
    pub fn cut(&mut self, seat: usize, most: usize) {
        let less = self.of(seat).saturating_sub(most);
        if less > 0 {
            self.shares[seat] -= less;
            self.all -= less;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_are_equal_and_at_least_eight() {
        assert_eq!([share(0, 4), share(800, 1), share(800, 4), share(810, 4)], [0, 0, 25, 25]);
        // With few frames each seat has eight, or half of the frames are shared out.
        assert_eq!([share(240, 4), share(60, 5), share(15, 4), share(15, 7), share(15, 8)], [8, 6, 1, 1, 0]);
    }

    proptest! {
        /// Frames are taken as by [`super::super::core::Core::room`], at random. What is kept for a
        /// seat is always free, and only its own takes make it less.
        #[test]
        fn what_is_kept_is_free(
            steps in proptest::collection::vec((0..5u8, 0..6usize, 0..40usize), 1..300),
            frames in 0..600usize,
        ) {
            let (mut pledge, mut free) = (Pledge::default(), frames);
            let mut kept = [0; 6];
            for (step, seat, n) in steps {
                match step {
                    // Spare frames, or those of its share.
                    0 | 1 => {
                        let may = free >= n + pledge.others(seat);
                        prop_assert!(may || n > kept[seat], "its share is its own");
                        for _ in 0..if may { n } else { 0 } {
                            if free <= pledge.all() {
                                pledge.take(seat);
                                kept[seat] -= 1;
                            }
                            free -= 1;
                        }
                    }
                    2 => free = (free + n).min(frames),
                    3 => {
                        let is_there = pledge.raise(seat, n, free);
                        prop_assert!(is_there == (pledge.of(seat) >= n) && pledge.of(seat) >= kept[seat]);
                        kept[seat] = pledge.of(seat);
                    }
                    _ => {
                        pledge.cut(seat, n);
                        kept[seat] = kept[seat].min(n);
                    }
                }
                prop_assert!(free >= pledge.all() && pledge.all() == kept.iter().sum::<usize>());
                prop_assert!((0..6).all(|seat| pledge.of(seat) == kept[seat]));
            }
        }
    }
}
