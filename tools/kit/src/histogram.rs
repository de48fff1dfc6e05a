//! A histogram of durations: every value is within 1 % of what it is counted as.
//!
//! The program that keeps it may itself be on far memory. So it is small (20 KiB) and touched in few places.

/// Values of this many nanoseconds (nine hours) and more count as this many.
const LONGEST: u64 = 1 << 45;
/// Decimal digits that are kept of a value.
const DIGITS: u8 = 2;

/// Counts of durations in nanoseconds, at most 2³² of each value.
pub struct Histogram(hdrhistogram::Histogram<u32>);

impl Default for Histogram {
    fn default() -> Self {
        let counts = hdrhistogram::Histogram::new_with_max(LONGEST, DIGITS);
        Histogram(counts.expect("the greatest value is above 2, and there are at most five digits"))
    }
}

impl Histogram {
    /// Counts one value.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds another thread's counts to these.
    pub fn merge(&mut self, other: &Histogram) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// The value that `share` (0 to 1) of all values do not exceed, to within 1 %. Without values, 0.
    pub fn quantile(&self, share: f64) -> u64 {
        self.0.value_at_quantile(share)
    }

    /// The greatest value, to within 1 %. Without values, 0.
    pub fn max(&self) -> u64 {
        self.0.max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_reads_back_within_a_hundredth() {
        for ns in [0, 1, 63, 64, 65, 127, 128, 1000, 6_213, 26_000, 103_456, 1 << 40] {
            let mut one = Histogram::default();
            one.record(ns);
            assert!(one.max().abs_diff(ns) <= ns / 100, "{ns}: {}", one.max());
        }
        let mut beyond = Histogram::default();
        beyond.record(u64::MAX);
        assert!(beyond.max() >= LONGEST);
    }

    #[test]
    fn quantiles_are_of_the_counts() {
        let mut half = Histogram::default();
        let mut other = Histogram::default();
        (1..=990).for_each(|_| half.record(10));
        (1..=10).for_each(|_| other.record(5_000));
        half.merge(&other);
        assert_eq!((half.quantile(0.5), half.quantile(0.99)), (10, 10));
        assert!(half.quantile(0.999).abs_diff(5_000) <= 50 && half.max() >= 5_000);
        assert_eq!(Histogram::default().quantile(0.5), 0);
    }
}
