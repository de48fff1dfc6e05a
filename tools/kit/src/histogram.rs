//! A histogram of durations: every value within 0.8 % of what it is counted as.
//!
//! Log-linear, as HdrHistogram is: 64 buckets to each power of two. The program
//! that keeps it is itself on far memory, so it is small (20 KiB) and touched in
//! few places.

/// `log2` of the buckets per power of two.
const FINE: u32 = 6;
/// Values of 2^45 ns (nine hours) and more share the last bucket.
const BUCKETS: usize = ((45 - FINE + 1) as usize) << FINE;

/// Counts of durations in ns.
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    greatest: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS], total: 0, greatest: 0 }
    }
}

impl Histogram {
    /// Counts one value.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket_of(ns)] += 1;
        self.total += 1;
        self.greatest = self.greatest.max(ns);
    }

    /// Adds another thread's counts to these.
    pub fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.total += other.total;
        self.greatest = self.greatest.max(other.greatest);
    }

    /// The value that `share` (0–1) of all values do not exceed, to within a bucket; 0 when empty.
    pub fn quantile(&self, share: f64) -> u64 {
        let mut left = ((self.total as f64 * share).ceil() as u64).max(1);
        for (bucket, &count) in self.counts.iter().enumerate() {
            if count >= left {
                return middle_of(bucket).min(self.greatest);
            }
            left -= count;
        }
        self.greatest
    }

    /// The greatest value, exactly.
    pub fn max(&self) -> u64 {
        self.greatest
    }
}

/// ```text
/// value   1 m m m m m m x x x…      exponent: place of the leading one
///         └─ m: 6 bits ┘            bucket = (exponent - 5) * 64 + m; values below 64 count as themselves
/// ```
fn bucket_of(ns: u64) -> usize {
    if ns < 1 << FINE {
        return ns as usize;
    }
    let exponent = 63 - ns.leading_zeros();
    let mantissa = (ns >> (exponent - FINE)) as usize & ((1 << FINE) - 1);
    (((exponent - FINE + 1) as usize) << FINE | mantissa).min(BUCKETS - 1)
}

fn middle_of(bucket: usize) -> u64 {
    let (group, mantissa) = (bucket as u64 >> FINE, bucket as u64 & ((1 << FINE) - 1));
    if group == 0 {
        return mantissa;
    }
    let shift = group - 1;
    ((1 << FINE | mantissa) << shift) + (1 << shift >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_reads_back_within_a_hundredth() {
        for ns in [0, 1, 63, 64, 65, 127, 128, 1000, 6_213, 26_000, 103_456, 1 << 40] {
            let error = middle_of(bucket_of(ns)) as f64 - ns as f64;
            assert!(error.abs() <= ns as f64 * 0.008, "{ns}: {error}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_of_the_counts() {
        let mut half = Histogram::default();
        let mut other = Histogram::default();
        (1..=990).for_each(|_| half.record(10));
        (1..=10).for_each(|_| other.record(5_000));
        half.merge(&other);
        assert_eq!((half.quantile(0.5), half.quantile(0.99), half.max()), (10, 10, 5_000));
        assert!(half.quantile(0.999) >= 4_960);
        assert_eq!(Histogram::default().quantile(0.5), 0);
    }
}
