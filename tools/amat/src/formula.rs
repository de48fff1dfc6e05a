//! Average memory access time from miss rates: the published formula.
//!
//! KCacheSim's (Kona, ASPLOS '21), for reads and for writes:
//!
//! ```text
//! AMAT_i = L1 + m1_i·L2 + m2_i·L3 + m3_i·local + m4_i·remote        i ∈ {read, write}
//! AMAT   = (AMAT_read · R + AMAT_write) / (1 + R)                    R = reads / writes
//! ```
//!
//! Each `m` is the misses of that kind at that level over *all* references of that
//! kind. It knows no write-back, no bandwidth and no queueing; see [`crate::model`].

/// References or misses, reads and writes apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Of reads.
    pub read: u64,
    /// Of writes.
    pub write: u64,
}

impl Count {
    /// Both.
    pub fn total(self) -> u64 {
        self.read + self.write
    }

    /// One more.
    #[inline]
    pub fn add(&mut self, write: bool) {
        *(if write { &mut self.write } else { &mut self.read }) += 1;
    }
}

/// Misses of each kind over the references of that kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Of reads.
    pub read: f64,
    /// Of writes.
    pub write: f64,
}

impl Rate {
    /// `misses` of `references`. No references: no misses.
    pub fn of(misses: Count, references: Count) -> Rate {
        let over = |misses: u64, references: u64| if references == 0 { 0.0 } else { misses as f64 / references as f64 };
        Rate { read: over(misses.read, references.read), write: over(misses.write, references.write) }
    }
}

/// The AMAT in nanoseconds of a program with `references`, on a first level that takes `first` ns;
/// `beyond` has, level by level, the rate at which the one before it missed, and what it costs in
/// ns.
pub fn amat(references: Count, first: f64, beyond: &[(Rate, f64)]) -> f64 {
    let read: f64 = first + beyond.iter().map(|(rate, ns)| rate.read * ns).sum::<f64>();
    let write: f64 = first + beyond.iter().map(|(rate, ns)| rate.write * ns).sum::<f64>();
    let (reads, writes) = (references.read as f64, references.write as f64);
    if reads + writes == 0.0 { first } else { (read * reads + write * writes) / (reads + writes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_add_up_by_kind() {
        let references = Count { read: 3, write: 1 };
        let beyond = [(Rate { read: 0.5, write: 0.0 }, 10.0), (Rate { read: 0.0, write: 1.0 }, 100.0)];
        // Reads 2 + 5, writes 2 + 100, three to one.
        assert_eq!(amat(references, 2.0, &beyond), (7.0 * 3.0 + 102.0) / 4.0);
        assert_eq!(amat(Count::default(), 2.0, &beyond), 2.0);
    }

    #[test]
    fn no_references_no_misses() {
        assert_eq!(Rate::of(Count::default(), Count::default()), Rate::default());
    }
}
