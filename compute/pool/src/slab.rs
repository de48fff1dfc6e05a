//! The slots of one slab: a bitmap, and who else can reach them.
//!
//! Its 32 *blocks* of 2 MiB are what goes back to the node's system when a program frees memory: a
//! block is *warm* from the first slot taken in it until it is given back, and *idle* while it has
//! no live slot. Before a block that becomes warm is used the node backs it with memory
//! ([`crate::Slots::alloc`]).

use farmem_protocol::addr::{FarSlot, SLOTS_PER_SLAB};
use std::ops::Range;

const WORDS: usize = SLOTS_PER_SLAB as usize / 64;
/// Slots of a block.
const BLOCK_SLOTS: usize = 512;
const BLOCKS: usize = SLOTS_PER_SLAB as usize / BLOCK_SLOTS;
/// Words of the bitmap that are one block's.
const BLOCK_WORDS: usize = BLOCK_SLOTS / 64;

/// A slab's part in a group with parity ([`crate::stripes`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seat {
    /// It is in none.
    None,
    /// It has pages.
    Data,
    /// It has what pages follow from, and no slot of its own.
    Parity,
}

/// Slots of a row: half a word.
const ROW: usize = 32;

/// One slab's slots, as this process sees them.
#[derive(Clone)]
pub(crate) struct SlabSlots {
    /// Of no other slab that this process has had.
    pub serial: u64,
    /// Forks since which another process may reach slots of this slab.
    pub sharers: u32,
    /// A node of its homes is being left: it takes no new pages.
    pub closed: bool,
    pub seat: Seat,
    /// The node that wants it back, with the life of its number.
    pub wanted_by: Option<(u32, u32)>,
    /// For how many more questions of its node it is left alone, because it could go nowhere.
    pub stays: u8,
    /// Bit set: taken by this process.
    taken: [u64; WORDS],
    live: u32,
    /// Of these, slots whose blocks are on their way back ([`SlabSlots::take_idle`]).
    returning: u32,
    /// Of each block.
    block_live: [u16; BLOCKS],
    /// Bit set: the block may have taken memory at the node.
    warm: u32,
    /// Bit set: the block was idle when last looked at.
    was_idle: u32,
    /// Word from which the search goes on.
    cursor: usize,
}

impl SlabSlots {
    pub fn new(serial: u64) -> Self {
        SlabSlots {
            serial,
            sharers: 0,
            closed: false,
            seat: Seat::None,
            wanted_by: None,
            stays: 0,
            taken: [0; WORDS],
            live: 0,
            returning: 0,
            block_live: [0; BLOCKS],
            warm: 0,
            was_idle: 0,
            cursor: 0,
        }
    }

    /// The same slab, in a group.
    pub fn in_group(mut self, seat: Seat) -> Self {
        self.seat = seat;
        self
    }

    /// A shared slab takes no new pages and lets none be overwritten.
    pub fn may_allocate(&self) -> bool {
        self.sharers == 0 && !self.closed && self.seat != Seat::Parity
    }

    /// Slots that are taken.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Nothing of ours is in it. Others that share it hold it themselves.
    pub fn is_idle(&self) -> bool {
        self.live == 0
    }

    /// No page of ours is in it, though blocks may be on their way back.
    pub fn is_empty(&self) -> bool {
        self.live == self.returning
    }

    /// Takes up to `n` free slots. Returns the blocks that have become warm by it, bit k for block
    /// k.
    pub fn take(&mut self, index: u32, n: usize, out: &mut Vec<FarSlot>) -> u32 {
        let were_warm = self.warm;
        let mut left = n.min((SLOTS_PER_SLAB - self.live) as usize);
        self.live += left as u32;
        while left > 0 {
            let word = &mut self.taken[self.cursor];
            let before = left;
            while *word != u64::MAX && left > 0 {
                let bit = word.trailing_ones();
                *word |= 1 << bit;
                out.push(FarSlot::new(index, self.cursor as u32 * 64 + bit));
                left -= 1;
            }
            let block = self.cursor / BLOCK_WORDS;
            if left < before {
                self.block_live[block] += (before - left) as u16;
                self.warm |= 1 << block;
            }
            if left > 0 {
                self.cursor = (self.cursor + 1) % WORDS;
            }
        }
        self.warm & !were_warm
    }

    /// Blocks that may have taken memory, bit k for block k.
    pub fn warm(&self) -> u32 {
        self.warm
    }

    /// Slots up to the end of the row in which the next one is taken: neighbours that stay
    /// together.
    pub fn row_left(&self) -> usize {
        ROW - self.taken[self.cursor].trailing_ones() as usize % ROW
    }

    /// Places of slots that are taken.
    pub fn taken(&self) -> impl Iterator<Item = u32> {
        let words = self.taken.iter().enumerate();
        words.flat_map(|(at, &bits)| {
            (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| at as u32 * 64 + bit)
        })
    }

    /// Whether the slot of a place is taken.
    pub fn has_taken(&self, place: u32) -> bool {
        self.taken[place as usize / 64] >> (place % 64) & 1 != 0
    }

    /// Marks a slot free. False when it was so already.
    pub fn give_back(&mut self, place: u32) -> bool {
        let (word, bit) = (place as usize / 64, 1u64 << (place % 64));
        let was = self.taken[word] & bit != 0;
        // A branch, and not `live -= was as u32`: rustc 1.95 drops that subtraction when this
        // function is inlined into a caller that branches on the result (docs/design/compiler.md).
        if was {
            self.taken[word] ^= bit;
            self.live -= 1;
            self.block_live[place as usize / BLOCK_SLOTS] -= 1;
        }
        was
    }

    /// Looks for blocks that are idle and warm, and were at the last look: memory that a program
    /// frees and takes again at once stays where it is. Takes the slots of a run of such blocks, so
    /// that nothing gets them meanwhile. Returns the run, in blocks.
    pub fn take_idle(&mut self) -> Option<Range<u32>> {
        // A stripe's parity is of the bytes of free slots, too.
        if self.sharers > 0 || self.seat != Seat::None {
            return None;
        }
        let due = self.idle() & self.was_idle;
        let first = (due != 0).then(|| due.trailing_zeros())?;
        let run = first..first + (due >> first).trailing_ones().min(LONGEST_RUN);
        for block in run.clone() {
            self.taken[block as usize * BLOCK_WORDS..][..BLOCK_WORDS].fill(u64::MAX);
            self.block_live[block as usize] = BLOCK_SLOTS as u16;
            self.live += BLOCK_SLOTS as u32;
            self.returning += BLOCK_SLOTS as u32;
        }
        Some(run)
    }

    /// Ends what [`SlabSlots::take_idle`] began: the blocks are free again, and without memory if
    /// `given_back`.
    pub fn end_idle(&mut self, run: Range<u32>, given_back: bool) {
        for block in run {
            self.taken[block as usize * BLOCK_WORDS..][..BLOCK_WORDS].fill(0);
            self.block_live[block as usize] = 0;
            self.live -= BLOCK_SLOTS as u32;
            self.returning -= BLOCK_SLOTS as u32;
            self.was_idle &= !(1 << block);
            if given_back {
                self.warm &= !(1 << block);
            }
        }
    }

    /// The look that the next [`SlabSlots::take_idle`] goes by.
    pub fn note_idle(&mut self) {
        self.was_idle = self.idle();
    }

    fn idle(&self) -> u32 {
        let empty = self.block_live.iter().enumerate().filter(|(_, live)| **live == 0);
        empty.fold(0, |bits, (block, _)| bits | 1 << block) & self.warm
    }
}

/// Blocks given back by one request: the node needs some tenths of a millisecond for each.
const LONGEST_RUN: u32 = 8;

const _: () = assert!(BLOCKS == 32);

/// Blocks of a mask, one after the other.
pub(crate) fn each_of(mut blocks: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let first = (blocks != 0).then(|| blocks.trailing_zeros())?;
        blocks &= blocks - 1;
        Some(first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_slot_is_handed_out_once_and_comes_back() {
        let mut slab = SlabSlots::new(1);
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
        let mut slab = SlabSlots::new(1);
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
            assert_eq!(slab.block_live.iter().map(|live| *live as u32).sum::<u32>(), taken);
        }
    }

    #[test]
    fn blocks_that_stay_idle_are_given_back_once() {
        let mut slab = SlabSlots::new(1);
        let mut out = Vec::new();
        slab.take(0, 4 * BLOCK_SLOTS, &mut out);
        let free =
            |slab: &mut SlabSlots, slots: &[FarSlot]| slots.iter().for_each(|s| assert!(slab.give_back(s.place())));
        free(&mut slab, &out[BLOCK_SLOTS..3 * BLOCK_SLOTS]);
        assert_eq!(slab.take_idle(), None);
        slab.note_idle();
        let run = slab.take_idle().unwrap();
        assert_eq!((run.clone(), slab.live), (1..3, 4 * BLOCK_SLOTS as u32));
        // Meanwhile nobody gets these slots.
        let mut others = Vec::new();
        slab.take(0, BLOCK_SLOTS, &mut others);
        assert!(others.iter().all(|s| s.place() as usize >= 4 * BLOCK_SLOTS));
        slab.end_idle(run, true);
        slab.note_idle();
        assert_eq!((slab.take_idle(), slab.live), (None, 3 * BLOCK_SLOTS as u32));
        // Refused by the node: tried again after another look.
        free(&mut slab, &others);
        slab.note_idle();
        let run = slab.take_idle().unwrap();
        slab.end_idle(run, false);
        assert_eq!(slab.take_idle(), None);
        slab.note_idle();
        assert_eq!(slab.take_idle(), Some(4..5));
        slab.end_idle(4..5, true);
        assert!(!slab.is_empty());
        // Taken again between two looks, or shared with a child: stays.
        free(&mut slab, &out[..BLOCK_SLOTS]);
        slab.note_idle();
        slab.sharers = 1;
        assert_eq!(slab.take_idle(), None);
        slab.sharers = 0;
        slab.cursor = 0;
        slab.take(0, 1, &mut Vec::new());
        assert_eq!(slab.take_idle(), None);
    }

    /// While blocks are on their way back the slab has no page, and is not given back.
    #[test]
    fn a_slab_whose_blocks_return_is_empty_and_not_idle() {
        let (mut slab, mut out) = (SlabSlots::new(0), Vec::new());
        slab.take(0, 2 * BLOCK_SLOTS, &mut out);
        assert!(!slab.is_empty());
        out.iter().for_each(|slot| assert!(slab.give_back(slot.place())));
        slab.note_idle();
        let run = slab.take_idle().unwrap();
        assert!(slab.is_empty() && !slab.is_idle());
        slab.end_idle(run, true);
        assert!(slab.is_empty() && slab.is_idle());
    }

    /// A block is named when its first slot is taken, and again after it was given back.
    #[test]
    fn blocks_are_backed_before_their_first_use() {
        let mut slab = SlabSlots::new(1);
        let mut out = Vec::new();
        assert_eq!(slab.take(0, BLOCK_SLOTS, &mut out), 0b1);
        assert_eq!(slab.take(0, 1, &mut out), 0b10);
        assert_eq!(slab.take(0, BLOCK_SLOTS, &mut out), 0b100);
        assert_eq!(each_of(0b1000_0101).collect::<Vec<_>>(), [0, 2, 7]);
        out.iter().for_each(|slot| assert!(slab.give_back(slot.place())));
        slab.cursor = 0;
        assert_eq!(slab.take(0, 1, &mut out), 0, "it has its memory still");
        assert!(slab.give_back(0));
        slab.note_idle();
        let run = slab.take_idle().unwrap();
        slab.end_idle(run, true);
        slab.cursor = 0;
        assert_eq!(slab.take(0, 1, &mut out), 0b1);
    }

    #[test]
    fn fresh_slots_are_contiguous() {
        let mut slab = SlabSlots::new(1);
        let mut out = Vec::new();
        slab.take(0, 256, &mut out);
        assert!(out.windows(2).all(|w| w[1].place() == w[0].place() + 1));
    }
}
