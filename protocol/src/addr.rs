//! Addresses: a *page* of the program, a *slab* of a node, a *slot* in a slab.
//!
//! A node grants memory by the slab ([`SLAB_BYTES`]); a host keeps its slabs in
//! a table and names a page's place in far memory by a [`FarSlot`], which is an
//! index into that table and a page-sized place in that slab:
//!
//! ```text
//! 35                     14 13           0
//! |  slab's table index    |  place       |   FarSlot (36 bits: 256 TiB)
//! ```

/// Bytes of a page, the unit in which a program's memory moves.
pub const PAGE_BYTES: usize = 4096;
/// `log2` of [`PAGE_BYTES`].
pub const PAGE_SHIFT: u32 = 12;
/// Bytes of a slab, the unit in which a node grants memory.
pub const SLAB_BYTES: u64 = 64 << 20;
/// Slots in a slab.
pub const SLOTS_PER_SLAB: u32 = (SLAB_BYTES / PAGE_BYTES as u64) as u32;

/// First address of the far range: every far page of every program lies in
/// `FAR_START..FAR_END`, so that "is this far?" is one shift and one compare
/// (`addr >> FAR_SHIFT == 1`), in Rust, in assembly and in the seccomp filter.
pub const FAR_START: usize = 1 << FAR_SHIFT;
/// One past the last address of the far range.
pub const FAR_END: usize = 2 << FAR_SHIFT;
/// See [`FAR_START`].
pub const FAR_SHIFT: u32 = 45;
/// Pages in the far range.
pub const FAR_PAGES: usize = (FAR_END - FAR_START) / PAGE_BYTES;

/// Whether an address lies in the far range.
#[inline(always)]
pub const fn is_far(addr: usize) -> bool {
    addr >> FAR_SHIFT == 1
}

/// A page of the far range, counted from [`FAR_START`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageId(pub u64);

impl PageId {
    /// The page that holds a far address.
    #[inline]
    pub const fn of(addr: usize) -> Self {
        debug_assert!(is_far(addr));
        PageId(((addr - FAR_START) >> PAGE_SHIFT) as u64)
    }

    /// The page's first address.
    #[inline]
    pub const fn addr(self) -> usize {
        FAR_START + ((self.0 as usize) << PAGE_SHIFT)
    }
}

/// A slab's name at its node. Node-wide, never reused while the node lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct SlabId(pub u64);

/// A page-sized place in far memory, by the host's own slab table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FarSlot(u64);

impl FarSlot {
    /// Bits a slot takes.
    pub const BITS: u32 = 36;

    /// The `place`-th slot of the slab at `index` in the host's table.
    ///
    /// # Panics
    /// If either does not fit its field: both are bounded by the slab table.
    #[inline]
    pub const fn new(index: u32, place: u32) -> Self {
        assert!(index < 1 << 22 && place < SLOTS_PER_SLAB);
        FarSlot((index as u64) << 14 | place as u64)
    }

    /// From the 36 bits that [`FarSlot::bits`] gave.
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        FarSlot(bits & ((1 << Self::BITS) - 1))
    }

    /// The slot as 36 bits.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The slab's index in the host's table.
    #[inline]
    pub const fn slab_index(self) -> u32 {
        (self.0 >> 14) as u32
    }

    /// The slot's place in its slab.
    #[inline]
    pub const fn place(self) -> u32 {
        (self.0 & 0x3fff) as u32
    }

    /// Byte offset in the slab.
    #[inline]
    pub const fn offset(self) -> u64 {
        (self.place() as u64) << PAGE_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_keeps_its_fields() {
        for (index, place) in [(0, 0), (1, 5), ((1 << 22) - 1, SLOTS_PER_SLAB - 1)] {
            let slot = FarSlot::from_bits(FarSlot::new(index, place).bits());
            assert_eq!((slot.slab_index(), slot.place()), (index, place));
        }
    }

    #[test]
    fn the_far_range_is_one_shift() {
        assert!(is_far(FAR_START) && is_far(FAR_END - 1));
        assert!(!is_far(FAR_START - 1) && !is_far(FAR_END));
        assert_eq!(PageId::of(FAR_START + 5000).addr(), FAR_START + 4096);
    }
}
