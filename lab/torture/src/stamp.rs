//! A line's content: 64 bytes that say whose they are.
//!
//! ```text
//! word 0     word 1            words 2–6          word 7
//! | stamp   | !stamp ^ line   | mix(stamp, k)    | checksum of 0–6 |
//!
//! 63      58 57            38 37                       0
//! | thread  | page           | generation             |   Stamp
//! ```
//! Stamp 0 is a line never written: 64 zero bytes. A copied line keeps its
//! stamp, so that a wrong line always names the write that made it.

/// Bytes of a line.
pub const LINE: usize = 64;
/// Lines in a page.
pub const LINES: usize = 64;
/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Who wrote a line, as which page, in which generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Stamp(pub u64);

impl Stamp {
    /// A line never written.
    pub const ZERO: Stamp = Stamp(0);

    /// The stamp of a write: `generation` counts a thread's writes from 1.
    pub fn new(thread: usize, page: usize, generation: u64) -> Stamp {
        Stamp((thread as u64) << 58 | ((page as u64) & 0xf_ffff) << 38 | (generation & ((1 << 38) - 1)))
    }

    /// The line's words, at its place `line` in a page.
    #[inline]
    pub fn words(self, line: usize) -> [u64; 8] {
        if self == Stamp::ZERO {
            return [0; 8];
        }
        let mut words = [0; 8];
        words[0] = self.0;
        words[1] = !self.0 ^ line as u64;
        for (k, word) in words.iter_mut().enumerate().take(7).skip(2) {
            *word = mix(self.0 ^ (k as u64) << 56);
        }
        words[7] = checksum(&words);
        words
    }

    /// What a line's words turn out to be, in words for a report.
    pub fn describe(words: &[u64; 8], line: usize) -> String {
        let stamp = Stamp(words[0]);
        if *words == [0; 8] {
            return "zeros".into();
        }
        if stamp.words(line) == *words {
            return format!("a whole line: {stamp}");
        }
        let whole = (0..LINES).find(|&l| stamp.words(l) == *words);
        match whole {
            Some(other) => format!("a whole line of place {other}: {stamp}"),
            None if words[7] == checksum(words) => format!("foreign content, checksum right: {words:016x?}"),
            None => format!("torn or foreign: word 0 reads as {stamp}; {words:016x?}"),
        }
    }
}

impl std::fmt::Display for Stamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if *self == Stamp::ZERO {
            return f.write_str("never written");
        }
        let (thread, page, generation) = (self.0 >> 58, self.0 >> 38 & 0xf_ffff, self.0 & ((1 << 38) - 1));
        write!(f, "thread {thread}, page {page}, generation {generation}")
    }
}

fn checksum(words: &[u64; 8]) -> u64 {
    words[..7].iter().fold(0x5bd1_e995, |sum, &word| mix(sum ^ word))
}

/// splitmix64's finalizer: every bit of the result depends on every bit of `x`.
#[inline]
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A stream of random numbers that follows from its seed (splitmix64).
pub struct Random(u64);

impl Random {
    /// The stream of one thread under a seed.
    pub fn new(seed: u64, thread: usize) -> Random {
        Random(mix(seed ^ mix(thread as u64 + 1)))
    }

    /// The next number.
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `n`.
    #[inline]
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_it_is() {
        let stamp = Stamp::new(3, 77, 1234);
        let words = stamp.words(5);
        assert!(Stamp::describe(&words, 5).contains("thread 3, page 77, generation 1234"));
        assert!(Stamp::describe(&words, 6).contains("place 5"));
        assert_eq!(Stamp::describe(&[0; 8], 5), "zeros");
        let mut torn = words;
        torn[4] = 0;
        assert!(Stamp::describe(&torn, 5).contains("torn"));
    }

    #[test]
    fn streams_follow_from_seed_and_thread() {
        let draw = |seed, thread| Random::new(seed, thread).next();
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }
}
