//! The slots of one slab: a bitmap, and who else can reach them.

use farmem_protocol::addr::{FarSlot, SLOTS_PER_SLAB, SlabId};

const WORDS: usize = SLOTS_PER_SLAB as usize / 64;

/// One slab's slots, as this process sees them.
pub(crate) struct SlabSlots {
    /// Which node granted it.
    pub node: usize,
    /// Its name there.
    pub id: SlabId,
    /// Forks since which another process may reach slots of this slab.
    pub sharers: u32,
    /// Bit set: taken by this process.
    taken: [u64; WORDS],
    live: u32,
    /// Word from which the search goes on.
    cursor: usize,
}

impl SlabSlots {
    pub fn new(node: usize, id: SlabId) -> Self {
        SlabSlots { node, id, sharers: 0, taken: [0; WORDS], live: 0, cursor: 0 }
    }

    /// A shared slab takes no new pages and lets none be overwritten.
    pub fn may_allocate(&self) -> bool {
        self.sharers == 0
    }

    /// Nothing of ours is in it, and nobody else's business is.
    pub fn is_idle(&self) -> bool {
        self.live == 0 && self.sharers == 0
    }

    /// Takes up to `n` free slots.
    pub fn take(&mut self, index: u32, n: usize, out: &mut Vec<FarSlot>) {
        let mut left = n.min((SLOTS_PER_SLAB - self.live) as usize);
        self.live += left as u32;
        while left > 0 {
            let word = &mut self.taken[self.cursor];
            while *word != u64::MAX && left > 0 {
                let bit = word.trailing_ones();
                *word |= 1 << bit;
                out.push(FarSlot::new(index, self.cursor as u32 * 64 + bit));
                left -= 1;
            }
            if left > 0 {
                self.cursor = (self.cursor + 1) % WORDS;
            }
        }
    }

    /// Marks a slot free. False when it was so already.
    pub fn give_back(&mut self, place: u32) -> bool {
        let (word, bit) = (place as usize / 64, 1u64 << (place % 64));
        let was = self.taken[word] & bit != 0;
        // A branch, and not `live -= was as u32`: inlined into a caller that looks at the result, rustc
        // 1.95 (LLVM 22, opt-level 2 and 3) drops that subtraction, and no slot is ever free again.
        if was {
            self.taken[word] ^= bit;
            self.live -= 1;
        }
        was
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_slot_is_handed_out_once_and_comes_back() {
        let mut slab = SlabSlots::new(0, SlabId(1));
        let mut out = Vec::new();
        slab.take(3, 10_000, &mut out);
        slab.take(3, 10_000, &mut out);
        assert_eq!(out.len(), SLOTS_PER_SLAB as usize);
        assert_eq!(out.iter().map(|s| s.bits()).collect::<BTreeSet<_>>().len(), out.len());
        assert!(slab.give_back(77) && !slab.give_back(77));
        let mut again = Vec::new();
        slab.take(3, 5, &mut again);
        assert_eq!(again, [FarSlot::new(3, 77)]);
        out.iter().for_each(|s| assert!(slab.give_back(s.place())));
        assert!(slab.is_idle());
    }

    /// `live` and the bitmap, told apart by nobody but these two (run it optimized, too).
    #[test]
    fn what_is_counted_is_what_is_taken() {
        let mut slab = SlabSlots::new(0, SlabId(1));
        let (mut held, mut random) = (Vec::new(), 1u64);
        for _ in 0..2000 {
            random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let n = (random >> 50) as usize % 300;
            if random >> 40 & 1 == 0 {
                slab.take(0, n, &mut held);
            } else {
                for _ in 0..n.min(held.len()) {
                    let slot = held.swap_remove((random >> 20) as usize % held.len());
                    assert!(slab.give_back(slot.place()));
                }
            }
            let taken: u32 = slab.taken.iter().map(|word| word.count_ones()).sum();
            assert_eq!((slab.live, held.len()), (taken, taken as usize));
        }
    }

    #[test]
    fn fresh_slots_are_contiguous() {
        let mut slab = SlabSlots::new(0, SlabId(1));
        let mut out = Vec::new();
        slab.take(0, 256, &mut out);
        assert!(out.windows(2).all(|w| w[1].place() == w[0].place() + 1));
    }
}
