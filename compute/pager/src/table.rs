//! The page table: one [`AtomicWord`] for each page of the far range, and for
//! each block of 512 pages the number of words that are not zero, so that a walk
//! over terabytes of reserved addresses looks only where something is.

use crate::word::AtomicWord;
use farmem_protocol::addr::{FAR_PAGES, PageId};
use farmem_sys::memory::SparseArray;
use farmem_sys::raw::Errno;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Pages in a block: 2 MiB of addresses.
pub const BLOCK_PAGES: u64 = 512;
// The table is released by whole blocks. A first touch in a block that stays must not own words of
// a block that goes.
const _: () = assert!(BLOCK_PAGES == farmem_cache::prefetch::FIRST_TOUCH_BLOCK);
/// In a block's count: some page of it may not be readable by the program (see
/// [`Table::mark_unreadable`]).
const UNREADABLE: u32 = 1 << 31;
/// In a block's count: the table's own page with the block's words is resident (512 words are one
/// page).
const TABLED: u32 = 1 << 30;
/// In a block's count: the right to read part of it was taken away while nothing of it was in use.
const TAKEN: u32 = 1 << 29;
/// In a block's count: the program has said that it uses its pages in no order
/// ([`Pattern::Random`]).
const RANDOM: u32 = 1 << 28;
/// In a block's count: … in ascending order ([`Pattern::InOrder`]).
const IN_ORDER: u32 = 1 << 27;
/// The rest of a block's count: words that are not zero.
const WORDS: u32 = IN_ORDER - 1;

/// How the program says that it uses a range (`madvise`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// It has said nothing: its faults tell.
    Normal,
    /// In no order: nothing is fetched ahead.
    Random,
    /// In ascending order: as much as can be is fetched ahead.
    InOrder,
}

/// The table.
pub struct Table {
    words: SparseArray<AtomicWord>,
    blocks: SparseArray<AtomicU32>,
    /// Blocks marked [`TABLED`].
    tabled: AtomicU64,
}

impl Table {
    /// Reserves the table: 8 bytes a page that is ever touched.
    pub fn new() -> Result<Table, Errno> {
        Table::of(FAR_PAGES)
    }

    /// A table for the first `pages` of the far range, where 64 GiB of addresses are not available
    /// (valgrind).
    pub fn of(pages: usize) -> Result<Table, Errno> {
        Ok(Table {
            words: SparseArray::new(pages)?,
            blocks: SparseArray::new(pages.div_ceil(BLOCK_PAGES as usize))?,
            tabled: AtomicU64::new(0),
        })
    }

    /// A page's word.
    #[inline(always)]
    pub fn word(&self, page: PageId) -> &AtomicWord {
        &self.words[page.0 as usize]
    }

    /// Gets a page's word into the CPU's cache.
    #[inline(always)]
    pub fn prefetch(&self, page: PageId) {
        farmem_sys::memory::prefetch(std::ptr::from_ref(self.word(page)) as usize);
    }

    fn block(&self, page: PageId) -> &AtomicU32 {
        &self.blocks[(page.0 / BLOCK_PAGES) as usize]
    }

    /// Notes that a word became non-zero. Before it does, so that no walk overlooks it.
    ///
    /// Returns whether the page may be one that the program cannot read while its block is not
    /// marked. If it cannot, [`Table::mark_unreadable_untouched`] is due before the page comes in.
    #[inline]
    pub fn touched(&self, page: PageId) -> bool {
        let before = self.block(page).fetch_add(1, Ordering::Relaxed);
        if before & TABLED == 0 && self.block(page).fetch_or(TABLED, Ordering::Relaxed) & TABLED == 0 {
            self.tabled.fetch_add(1, Ordering::Relaxed);
        }
        before & (TAKEN | UNREADABLE) == TAKEN
    }

    /// Resident memory of the table, bytes: a page for each block that was ever touched and not
    /// released. The counts of blocks, a thousandth of that, are left out.
    pub fn bytes(&self) -> u64 {
        self.tabled.load(Ordering::Relaxed) * BLOCK_PAGES * size_of::<AtomicWord>() as u64
    }

    /// Notes that a word became zero. After it did.
    #[inline]
    pub fn cleared(&self, page: PageId) {
        self.block(page).fetch_sub(1, Ordering::Relaxed);
    }

    /// Remembers that the program took its right to read away from part of the pages `from..to`
    /// (forgotten only when they are unmapped: the slower way of reading such a page is correct for
    /// all).
    ///
    /// A block that is not in use is not marked. Before one of its pages can become resident the
    /// program must make it readable again, and most blocks are never slow. But an access may be
    /// under way, found lawful by the kernel and not yet known here. It and this call both change
    /// the block's count. If the access is first, this call sees a block in use. If it is second,
    /// it hears from [`Table::touched`], and so does a thread that touches another page of the
    /// block before it.
    pub fn mark_unreadable(&self, from: PageId, to: PageId) {
        for block in self.blocks_of(from, to) {
            if block.load(Ordering::Relaxed) & UNREADABLE == 0
                && block.fetch_or(TAKEN, Ordering::Relaxed) & (TABLED | WORDS) != 0
            {
                block.fetch_or(UNREADABLE, Ordering::Relaxed);
            }
        }
    }

    /// [`Table::mark_unreadable`] of blocks that are not in use too.
    pub fn mark_unreadable_untouched(&self, from: PageId, to: PageId) {
        for block in self.blocks_of(from, to) {
            block.fetch_or(UNREADABLE, Ordering::Relaxed);
        }
    }

    /// Notes how the program says that it uses the pages `from..to`. A block of which less than
    /// half lies among them stays as it is: a block has one pattern, and a wrong one costs only
    /// time.
    pub fn declare(&self, from: PageId, to: PageId, pattern: Pattern) {
        let nearest = |page: PageId| (page.0 + BLOCK_PAGES / 2) / BLOCK_PAGES;
        let bits = match pattern {
            Pattern::Normal => 0,
            Pattern::Random => RANDOM,
            Pattern::InOrder => IN_ORDER,
        };
        for block in nearest(from)..nearest(to) {
            let block = &self.blocks[block as usize];
            // An untouched block of a large reservation is only read, which costs no memory.
            if block.load(Ordering::Relaxed) & (RANDOM | IN_ORDER) != bits {
                block.fetch_and(!(RANDOM | IN_ORDER), Ordering::Relaxed);
                block.fetch_or(bits, Ordering::Relaxed);
            }
        }
    }

    /// The pattern that was last declared of a page's block.
    #[inline]
    pub fn pattern(&self, page: PageId) -> Pattern {
        match self.block(page).load(Ordering::Relaxed) & (RANDOM | IN_ORDER) {
            0 => Pattern::Normal,
            IN_ORDER => Pattern::InOrder,
            _ => Pattern::Random,
        }
    }

    /// The first page of `from..to` whose block holds a non-zero word.
    pub fn next_used(&self, from: PageId, to: PageId) -> Option<PageId> {
        let mut page = from.0;
        while page < to.0 {
            if self.block(PageId(page)).load(Ordering::Relaxed) & WORDS != 0 {
                return Some(PageId(page));
            }
            page = (page / BLOCK_PAGES + 1) * BLOCK_PAGES;
        }
        None
    }

    /// Where the words begin: that of the far range's first page.
    pub fn words(&self) -> *const AtomicU64 {
        std::ptr::from_ref(&self.words[0]).cast()
    }

    fn blocks_of(&self, from: PageId, to: PageId) -> impl Iterator<Item = &AtomicU32> {
        (from.0 / BLOCK_PAGES..to.0.div_ceil(BLOCK_PAGES)).map(|block| &self.blocks[block as usize])
    }

    /// Whether a page may be unreadable in user mode.
    #[inline]
    pub fn may_be_unreadable(&self, page: PageId) -> bool {
        self.block(page).load(Ordering::Relaxed) & UNREADABLE != 0
    }

    /// Calls `visit` for every page of `from..to` whose block holds a non-zero word.
    pub fn walk(&self, from: PageId, to: PageId, mut visit: impl FnMut(PageId, &AtomicWord)) {
        let mut page = from.0;
        while page < to.0 {
            let block_end = (page / BLOCK_PAGES + 1) * BLOCK_PAGES;
            if self.block(PageId(page)).load(Ordering::Relaxed) & WORDS != 0 {
                for p in page..block_end.min(to.0) {
                    visit(PageId(p), self.word(PageId(p)));
                }
            }
            page = block_end;
        }
    }

    /// Gives the table's own memory for the pages `from..to` back. All their words are zero and
    /// stay so: the range is unmapped and not yet handed out again.
    pub fn release(&self, from: PageId, to: PageId) {
        let (first, last) = (from.0.div_ceil(BLOCK_PAGES), to.0 / BLOCK_PAGES);
        if first < last {
            // Parts of blocks stay: a neighbour may be using the rest of the table's page.
            self.words.clear((first * BLOCK_PAGES) as usize, (last * BLOCK_PAGES) as usize);
            let mut released = 0;
            for block in first..last {
                // An untouched block of a large reservation is only read, which costs no memory.
                let count = &self.blocks[block as usize];
                if count.load(Ordering::Relaxed) & !WORDS != 0 {
                    released += (count.fetch_and(WORDS, Ordering::Relaxed) & TABLED != 0) as u64;
                }
            }
            self.tabled.fetch_sub(released, Ordering::Relaxed);
            self.blocks.clear(first as usize, last as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::word::{State, Word};

    #[test]
    fn a_walk_over_a_terabyte_sees_only_what_was_touched() {
        let table = Table::new().unwrap();
        let page = PageId(77 * BLOCK_PAGES + 5);
        table.touched(page);
        table.word(page).set(Word::UNTOUCHED.to(State::Remote));
        let mut seen = Vec::new();
        table.walk(PageId(0), PageId(1 << 28), |p, w| {
            if w.load() != Word::UNTOUCHED {
                seen.push(p);
            }
        });
        assert_eq!(seen, [page]);
        table.word(page).set(Word::UNTOUCHED);
        table.cleared(page);
        assert_eq!(table.bytes(), 4096, "a walk and an unmapped word cost nothing");
        table.touched(PageId(77 * BLOCK_PAGES));
        table.cleared(PageId(77 * BLOCK_PAGES));
        assert_eq!(table.bytes(), 4096, "one page, however often it is touched");
        table.release(PageId(77 * BLOCK_PAGES + 1), PageId(1 << 20));
        assert_eq!(table.bytes(), 4096, "part of a block may be in use next door");
        table.release(PageId(0), PageId(1 << 20));
        assert_eq!(table.bytes(), 0);
        table.walk(PageId(0), PageId(1 << 28), |_, _| panic!("nothing is left"));
    }

    #[test]
    fn a_pattern_holds_for_the_blocks_that_are_mostly_in_its_range() {
        let table = Table::of(4 * BLOCK_PAGES as usize).unwrap();
        let patterns = || [0, 1, 2, 3].map(|block| table.pattern(PageId(block * BLOCK_PAGES + 9)));
        let (normal, random, in_order) = (Pattern::Normal, Pattern::Random, Pattern::InOrder);
        table.declare(PageId(BLOCK_PAGES / 2), PageId(3 * BLOCK_PAGES - 1), random);
        assert_eq!(patterns(), [normal, random, random, normal]);
        table.touched(PageId(BLOCK_PAGES));
        table.declare(PageId(BLOCK_PAGES), PageId(2 * BLOCK_PAGES), in_order);
        table.declare(PageId(0), PageId(BLOCK_PAGES / 2 - 1), in_order);
        assert_eq!(patterns(), [normal, in_order, random, normal]);
        assert_eq!(table.next_used(PageId(0), PageId(4 * BLOCK_PAGES)), Some(PageId(BLOCK_PAGES)));
        table.cleared(PageId(BLOCK_PAGES));
        assert_eq!(table.next_used(PageId(7), PageId(4 * BLOCK_PAGES)), None, "a pattern is no use");
        table.declare(PageId(0), PageId(2 * BLOCK_PAGES), normal);
        table.release(PageId(BLOCK_PAGES), PageId(4 * BLOCK_PAGES));
        assert_eq!(patterns(), [normal; 4]);
    }

    #[test]
    fn who_touches_a_block_that_was_made_unreadable_looks_first() {
        let table = Table::of(4 * BLOCK_PAGES as usize).unwrap();
        let page = |block: u64| PageId(block * BLOCK_PAGES + 7);
        assert!(!table.touched(page(0)));
        table.mark_unreadable(page(0), page(2));
        assert!(table.may_be_unreadable(page(0)), "in use");
        assert!(!table.may_be_unreadable(page(1)), "as long as nobody touches it");
        assert!(!table.touched(PageId(1)), "marked, which needs no look");
        for _ in 0..2 {
            assert!(table.touched(page(1)) && table.touched(page(2)), "each page, for each may be the unreadable one");
        }
        assert!(!table.touched(page(3)));
        table.mark_unreadable_untouched(page(1), PageId(page(1).0 + 1));
        assert!(table.may_be_unreadable(page(1)) && !table.may_be_unreadable(page(2)));
        table.release(PageId(0), PageId(4 * BLOCK_PAGES));
        assert!(!table.may_be_unreadable(page(0)) && !table.touched(page(2)), "unmapped: all is forgotten");
    }
}
