//! A line's content: 64 bytes that say whose they are.
//!
//! ```text
//! word 0     word 1            words 2–6          word 7
//! | stamp   | !stamp ^ line   | hash(stamp, k)    | checksum of 0–6 |
//!
//! 63      58 57            38 37                       0
//! | thread  | page           | generation             |   Stamp
//! ```
//! Stamp 0 is a line never written: 64 zero bytes. A copied line keeps its
//! stamp, so that a wrong line always names the write that made it.

use farmem_protocol::random::hash;

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
            *word = hash(self.0 ^ (k as u64) << 56);
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
    words[..7].iter().fold(0x5bd1_e995, |sum, &word| hash(sum ^ word))
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
}
