//! Which chunks of a slab are taken: two bits for each chunk of 4 KiB.
//!
//! ```text
//!  word n, 64 bits:   chunk 32 n + 31 … 32 n        00 free   01 first   10 inner   11 last, or the only one
//!
//!  a piece of 16 KiB at chunk 4:    … 00 │ 11 10 10 01 │ 00 00 00 00
//! ```
//! A piece has 2^order chunks, order 0 to 9, and begins at a multiple of that. Its end is told by
//! its own last chunk. So who frees it never looks at words that others may be claiming or taking
//! back.

use std::ops::Range;

/// Bytes of a chunk, the smallest piece.
pub const CHUNK: u64 = 4096;
/// Chunks of a slab.
pub const CHUNKS: usize = 1 << 14;
/// Chunks whose states stand in one word.
const PER_WORD: usize = 32;
/// Words of a table.
pub const WORDS: usize = CHUNKS / PER_WORD;
/// The order of the largest piece: 2 MiB.
pub const MAX_ORDER: u32 = 9;
/// Orders up to this one lie within a word.
const WORD_ORDER: u32 = 5;
/// Words of the largest piece.
pub const MOST_WORDS: usize = 1 << (MAX_ORDER - WORD_ORDER);

const FIRST: u64 = 1;
const INNER: u64 = 2;
const LAST: u64 = 3;
/// The low bit of each state.
const LOW: u64 = 0x5555_5555_5555_5555;

/// A piece: its first chunk, and its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    pub first: usize,
    pub order: u32,
}

impl Span {
    /// The words in which its chunks stand.
    pub fn words(self) -> Range<usize> {
        let from = self.first / PER_WORD;
        from..from + (1 << self.order.saturating_sub(WORD_ORDER))
    }

    /// The bits of its chunks in one of these words, and what they are while it is taken.
    pub fn bits(self, word: usize) -> (u64, u64) {
        let words = self.words();
        if self.order < WORD_ORDER {
            let (shift, chunks) = (2 * (self.first % PER_WORD), 1 << self.order);
            let mask = ((1u64 << (2 * chunks)) - 1) << shift;
            return (mask, pattern(chunks) << shift);
        }
        let mut taken = INNER * LOW;
        if word == words.start {
            taken = taken & !3 | FIRST;
        }
        if word + 1 == words.end {
            taken |= LAST << 62;
        }
        (u64::MAX, taken)
    }

    pub fn bytes(self) -> u64 {
        CHUNK << self.order
    }
}

/// A taken piece of `chunks` chunks, fewer than a word's, from bit 0 on.
fn pattern(chunks: usize) -> u64 {
    if chunks == 1 {
        return LAST;
    }
    let inner = (INNER * LOW) & ((1 << (2 * chunks)) - 1);
    inner & !3 | FIRST | LAST << (2 * (chunks - 1))
}

/// The order of the smallest piece of at least `bytes` bytes. `None`: there is none.
pub fn order_of(bytes: u64) -> Option<u32> {
    let order = bytes.div_ceil(CHUNK).checked_next_power_of_two()?.ilog2();
    (bytes > 0 && order <= MAX_ORDER).then_some(order)
}

fn state(words: &[u64], chunk: usize) -> u64 {
    words.get(chunk / PER_WORD).map_or(0, |word| word >> (2 * (chunk % PER_WORD)) & 3)
}

/// The piece that begins at a chunk, by words of which the first is the one that has it. `None`:
/// none does.
pub fn piece_at(words: &[u64], chunk: usize) -> Option<Span> {
    let at = chunk % PER_WORD;
    let length = match state(words, at) {
        // A larger piece's last chunk has an odd number, and the one before it stands in the same
        // word.
        LAST if at % 2 == 1 && matches!(state(words, at - 1), FIRST | INNER) => return None,
        LAST => 1,
        FIRST => 2 + (at + 1..).take(1 << MAX_ORDER).take_while(|&at| state(words, at) == INNER).count(),
        _ => return None,
    };
    let is_piece = state(words, at + length - 1) == LAST && length.is_power_of_two();
    let order = length.ilog2();
    (is_piece && order <= MAX_ORDER && chunk.is_multiple_of(length)).then_some(Span { first: chunk, order })
}

/// A table as it was last seen.
pub struct Table {
    pub words: Box<[u64; WORDS]>,
    /// Per order: no piece of it is free in words before this one.
    from: [u16; MAX_ORDER as usize + 1],
}

impl Table {
    pub fn new() -> Table {
        Table { words: Box::new([0; WORDS]), from: [0; MAX_ORDER as usize + 1] }
    }

    /// A word was seen.
    pub fn set(&mut self, word: usize, bits: u64) {
        if self.words[word] & !bits != 0 {
            self.from.iter_mut().for_each(|from| *from = (*from).min(word as u16 & !(MOST_WORDS as u16 - 1)));
        }
        self.words[word] = bits;
    }

    /// Finds a free piece, and counts it as taken from here on.
    pub fn take(&mut self, order: u32) -> Option<Span> {
        let step = 1 << order.saturating_sub(WORD_ORDER);
        let mut word = self.from[order as usize] as usize;
        while word < WORDS {
            let found = match order {
                0..WORD_ORDER => free_in(self.words[word], order),
                _ => self.words[word..word + step].iter().all(|&bits| bits == 0).then_some(0),
            };
            if let Some(at) = found {
                self.from[order as usize] = word as u16;
                let span = Span { first: word * PER_WORD + at, order };
                span.words().for_each(|word| self.words[word] |= span.bits(word).1);
                return Some(span);
            }
            word += step;
        }
        self.from[order as usize] = WORDS as u16;
        None
    }

    /// The piece's chunks are free.
    pub fn clear(&mut self, span: Span) {
        span.words().for_each(|word| self.set(word, self.words[word] & !span.bits(word).0));
    }

    /// All pieces that are taken.
    pub fn pieces(&self) -> impl Iterator<Item = Span> + '_ {
        let mut chunk = 0;
        std::iter::from_fn(move || {
            while chunk < CHUNKS {
                let found = piece_at(&self.words[chunk / PER_WORD..], chunk);
                chunk += found.map_or(1, |span| 1 << span.order);
                if found.is_some() {
                    return found;
                }
            }
            None
        })
    }
}

/// The lowest chunk of a word at which a piece of less than a word is free.
fn free_in(word: u64, order: u32) -> Option<usize> {
    let mut taken = (word | word >> 1) & LOW;
    for half in 0..order {
        taken |= taken >> (2 << half);
    }
    // Only where a piece may begin.
    let begins = (0..PER_WORD).step_by(1 << order).fold(0, |bits, chunk| bits | 1 << (2 * chunk));
    let free = !taken & begins;
    (free != 0).then(|| free.trailing_zeros() as usize / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn sizes_are_rounded_up() {
        let orders = [1, 4096, 4097, 8192, 128 << 10, 2 << 20].map(order_of);
        assert_eq!(orders, [Some(0), Some(0), Some(1), Some(1), Some(5), Some(9)]);
        assert_eq!([0, (2 << 20) + 1, u64::MAX].map(order_of), [None; 3]);
    }

    #[test]
    fn states_are_as_they_are_drawn() {
        let mut table = Table::new();
        table.words[0] = 0xff;
        assert_eq!(table.take(2), Some(Span { first: 4, order: 2 }));
        assert_eq!(table.words[0], 0b11_10_10_01 << 8 | 0xff);
        assert_eq!(table.take(6), Some(Span { first: 64, order: 6 }));
        assert_eq!([table.words[2], table.words[3]], [(INNER * LOW) & !3 | 1, (INNER * LOW) | (3 << 62)]);
    }

    #[test]
    fn a_slab_holds_as_many_pieces_as_fit() {
        for order in 0..=MAX_ORDER {
            let mut table = Table::new();
            let taken = std::iter::from_fn(|| table.take(order)).count();
            assert_eq!(taken, CHUNKS >> order);
            assert_eq!(table.pieces().count(), taken);
            table.clear(Span { first: 0, order });
            assert_eq!((table.take(order), table.take(order)), (Some(Span { first: 0, order }), None));
        }
    }

    proptest! {
        /// Against a map of what is taken: no two pieces overlap, each is found where it begins and
        /// nowhere else.
        #[test]
        fn a_table_is_a_set_of_pieces(steps in prop::collection::vec((0u32..=9, any::<prop::sample::Index>(), any::<bool>()), 1..400)) {
            let (mut table, mut model) = (Table::new(), BTreeMap::new());
            for (order, which, frees) in steps {
                if frees && !model.is_empty() {
                    let (&first, &order) = model.iter().nth(which.index(model.len())).unwrap();
                    prop_assert_eq!(piece_at(&table.words[first / PER_WORD..], first), Some(Span { first, order }));
                    table.clear(Span { first, order });
                    model.remove(&first);
                } else if let Some(span) = table.take(order) {
                    let end = span.first + (1 << order);
                    let before = model.range(..end).next_back().map_or(0, |(first, order): (&usize, &u32)| first + (1 << order));
                    prop_assert!(before <= span.first && span.first.is_multiple_of(1 << order));
                    model.insert(span.first, order);
                }
                let found: BTreeMap<usize, u32> = table.pieces().map(|span| (span.first, span.order)).collect();
                prop_assert_eq!(&found, &model);
            }
            for chunk in 0..CHUNKS {
                let found = piece_at(&table.words[chunk / PER_WORD..], chunk).is_some();
                prop_assert_eq!(found, model.contains_key(&chunk), "chunk {}", chunk);
            }
        }
    }
}
