//! A program's own stores, to the byte.
//!
//! A tracker that compares contents sees bytes that differ in the end, not bytes
//! that were stored. Programs of ours can say what they stored. [`Unnoted`] is for
//! runs that are timed or tracked from outside, and compiles to nothing;
//! [`Ledger`] keeps a bit for every byte. Arrays are taken to begin at a block's
//! boundary, so that what is counted is the same on every machine.

use serde::Serialize;

const LINE: usize = 64;
const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;

/// Who is told of stores.
pub trait Note {
    /// Bytes `[offset, offset + len)` of an array, by its number, are stored to.
    fn store(&mut self, array: usize, offset: usize, len: usize);
}

/// Nobody.
pub struct Unnoted;

impl Note for Unnoted {
    #[inline(always)]
    fn store(&mut self, _array: usize, _offset: usize, _len: usize) {}
}

/// Distinct bytes stored to in a window, and what holds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Touched {
    /// Bytes.
    pub bytes: u64,
    /// Lines of 64 bytes with at least one of them.
    pub lines: u64,
    /// Pages of 4 KiB.
    pub pages: u64,
    /// Blocks of 2 MiB.
    pub blocks: u64,
}

impl Touched {
    /// Sums over windows.
    pub fn add(&mut self, other: Touched) {
        self.bytes += other.bytes;
        self.lines += other.lines;
        self.pages += other.pages;
        self.blocks += other.blocks;
    }

    /// Bytes of lines, pages, blocks for each byte stored to.
    pub fn amplification(&self) -> [f64; 3] {
        let moved = [self.lines * LINE as u64, self.pages * PAGE as u64, self.blocks * BLOCK as u64];
        moved.map(|moved| moved as f64 / self.bytes as f64)
    }

    /// Bytes of pages for each byte of lines.
    pub fn pages_over_lines(&self) -> f64 {
        (self.pages * PAGE as u64) as f64 / (self.lines * LINE as u64) as f64
    }
}

/// A bit for every byte of every array, of the window under way.
#[derive(Default)]
pub struct Ledger {
    arrays: Vec<Vec<u64>>,
}

impl Ledger {
    /// Ends the window: what it touched.
    pub fn take(&mut self) -> Touched {
        let mut touched = Touched::default();
        for bits in &mut self.arrays {
            // One word is one line.
            let any = |words: &[u64]| u64::from(words.iter().any(|&word| word != 0));
            touched.bytes += bits.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
            touched.lines += bits.iter().map(|word| u64::from(*word != 0)).sum::<u64>();
            touched.pages += bits.chunks(PAGE / LINE).map(any).sum::<u64>();
            touched.blocks += bits.chunks(BLOCK / LINE).map(any).sum::<u64>();
            bits.fill(0);
        }
        touched
    }
}

impl Note for Ledger {
    fn store(&mut self, array: usize, offset: usize, len: usize) {
        if self.arrays.len() <= array {
            self.arrays.resize(array + 1, Vec::new());
        }
        let bits = &mut self.arrays[array];
        let needed = (offset + len).div_ceil(LINE);
        if bits.len() < needed {
            bits.resize(needed, 0);
        }
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let until = end.min((at / LINE + 1) * LINE);
            // `until - at` is 1 to 64.
            bits[at / LINE] |= u64::MAX >> (LINE - (until - at)) << (at % LINE);
            at = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_once_wherever_they_lie() {
        let mut ledger = Ledger::default();
        ledger.store(0, 60, 8);
        ledger.store(0, 62, 2);
        ledger.store(0, 4096, 1);
        ledger.store(1, BLOCK + 10, 200);
        let first = Touched { bytes: 8 + 1 + 200, lines: 2 + 1 + 4, pages: 3, blocks: 2 };
        assert_eq!(ledger.take(), first);
        assert_eq!(ledger.take(), Touched::default(), "a window begins anew");
        ledger.store(0, 0, 64);
        assert_eq!(ledger.take().amplification(), [1.0, 64.0, 32768.0]);
    }
}
