//! Pages of one repeated word, most of them zeros. A slot refers to its word by an index of this
//! table.

use std::collections::BTreeMap;

/// The most different words that a volume can have, besides zero. Bounded, because the table is
/// memory that the host does not pay for.
pub const MAX_FILLS: usize = 4096;

/// The word that a page repeats, if it does so from end to end.
///
/// # Panics
/// If the page is not 4 KiB.
pub fn repeated(page: &[u8]) -> Option<u64> {
    assert_eq!(page.len(), 4096, "a page");
    let (first, last) = (&page[..8], &page[4088..]);
    // Most pages differ here already.
    let same = first == last && page[8..] == page[..4088];
    same.then(|| first.iter().rev().fold(0, |word, &byte| word << 8 | byte as u64))
}

/// Index 0 is the word zero, which is always there.
#[derive(Debug, Default)]
pub(crate) struct Fills {
    zeros: u32,
    /// At index minus one: the word, and the number of slots that refer to it.
    words: Vec<(u64, u32)>,
    vacant: Vec<u32>,
    by_word: BTreeMap<u64, u32>,
}

impl Fills {
    /// Counts one more slot for the word, and returns its index. `None`: the table is full.
    pub fn take(&mut self, word: u64) -> Option<u32> {
        if word == 0 {
            self.zeros += 1;
            return Some(0);
        }
        if let Some(&index) = self.by_word.get(&word) {
            self.words[index as usize - 1].1 += 1;
            return Some(index);
        }
        let index = match self.vacant.pop() {
            Some(index) => index,
            None if self.words.len() == MAX_FILLS => return None,
            None => {
                self.words.push((0, 0));
                self.words.len() as u32
            }
        };
        self.words[index as usize - 1] = (word, 1);
        self.by_word.insert(word, index);
        Some(index)
    }

    /// Counts one slot less for an index.
    pub fn release(&mut self, index: u32) {
        if index == 0 {
            self.zeros -= 1;
            return;
        }
        let (word, references) = &mut self.words[index as usize - 1];
        *references -= 1;
        if *references == 0 {
            self.by_word.remove(word);
            self.vacant.push(index);
        }
    }

    /// The word of an index.
    pub fn word(&self, index: u32) -> u64 {
        if index == 0 { 0 } else { self.words[index as usize - 1].0 }
    }

    /// The number of slots that refer to a word of this table.
    pub fn references(&self) -> u32 {
        self.zeros + self.by_word.values().map(|&index| self.words[index as usize - 1].1).sum::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_repeats_a_word_or_does_not() {
        let mut page = vec![0; 4096];
        assert_eq!(repeated(&page), Some(0));
        page.chunks_mut(8).for_each(|word| word.copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(repeated(&page), Some(0x0807_0605_0403_0201));
        page[2000] ^= 1;
        assert_eq!(repeated(&page), None);
        page.fill(7);
        page[4095] = 8;
        assert_eq!(repeated(&page), None);
    }

    #[test]
    fn the_table_is_bounded_and_places_are_used_again() {
        let mut fills = Fills::default();
        let indexes: Vec<u32> = (1..=MAX_FILLS as u64).map(|word| fills.take(word).unwrap()).collect();
        assert_eq!((fills.take(9999), fills.take(0), fills.take(5)), (None, Some(0), Some(indexes[4])));
        fills.release(indexes[7]);
        assert_eq!((fills.take(9999), fills.word(indexes[7])), (Some(indexes[7]), 9999));
        fills.release(indexes[4]);
        assert_eq!((fills.word(indexes[4]), fills.references()), (5, MAX_FILLS as u32 + 1));
    }
}
