//! How often a thread that looks for something again and again offers its CPU to others.
//!
//! ```text
//! look, look, offer ─┬─ it came back at once: nobody wanted it ─► twice as many looks before the next, up to MOST
//!                    └─ it took a while: somebody else ran ─────► LEAST, from now on
//! ```
//!
//! Whoever answers may share this CPU, and is then the one that must run; but an offer that nobody takes is a system
//! call that looks at nothing, and what is waited for comes half a call later on the average.

/// Looks between two offers, at first, and wherever the CPU is wanted.
const LEAST: u32 = 2;
/// … where it is not: some 8 µs of looks at a socket, which is what somebody who begins to want it waits at most.
const MOST: u32 = 32;
/// An offer that takes longer was taken, ns. Two switches and what they were made for; alone, a call takes a fifth.
const TAKEN_NS: u64 = 2_000;

/// What one spinning thread has learned.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    between: u32,
    left: u32,
}

impl Spin {
    /// Offers often.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Spin {
        Spin { between: LEAST, left: LEAST }
    }

    /// A look found nothing. Whether the CPU is to be offered before the next.
    #[inline]
    pub fn offers(&mut self) -> bool {
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        self.left = self.between;
        true
    }

    /// An offer took so long, ns.
    #[inline]
    pub fn offered(&mut self, took_ns: u64) {
        self.between = if took_ns > TAKEN_NS { LEAST } else { (self.between * 2).min(MOST) };
        self.left = self.between;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks until the CPU is offered.
    fn looks(spin: &mut Spin) -> u32 {
        (1..).find(|_| spin.offers()).unwrap_or(0)
    }

    #[test]
    fn a_cpu_that_nobody_wants_is_offered_seldom_until_somebody_does() {
        let mut spin = Spin::new();
        let mut offered = |took_ns| {
            let looks = looks(&mut spin);
            spin.offered(took_ns);
            looks
        };
        assert_eq!([300; 7].map(&mut offered), [2, 4, 8, 16, 32, 32, 32]);
        assert_eq!([9_000, 9_000, 300, 300].map(&mut offered), [32, 2, 2, 4]);
    }
}
