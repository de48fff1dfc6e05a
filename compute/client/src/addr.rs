//! Addresses of remote bytes.
//!
//! ```text
//! 63      48 47      42 41          26 25                0
//! |    0    |  node 6  |  slab 16     |  offset 26        |   0 is null
//! ```

use std::fmt;
use std::ops::{Add, AddAssign};

const NODE: u32 = 42;
const SLAB: u32 = 26;
/// Bits of an address. The others of a word are the caller's.
const BITS: u32 = 48;

/// The address of a byte of remote memory, in 48 bits.
///
/// An address of a region means the same to every process that has the region open, so it can be
/// stored there, as a number ([`Addr::bits`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Addr(u64);

impl Addr {
    /// No address: nothing is there.
    pub const NULL: Addr = Addr(0);
    /// Nodes of a memory, at most.
    pub const MAX_NODES: usize = 1 << (BITS - NODE);

    /// The address with these bits. `None`: they are no address, for one of the upper 16 is set.
    #[inline]
    pub const fn from_bits(bits: u64) -> Option<Addr> {
        if bits >> BITS == 0 { Some(Addr(bits)) } else { None }
    }

    /// As a number of 48 bits.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether it is [`Addr::NULL`].
    #[inline]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The node's number in its memory.
    #[inline]
    pub const fn node(self) -> usize {
        (self.0 >> NODE) as usize
    }

    /// Whether `other` is `bytes` further on in the same slab. A range of memory lies in one slab,
    /// though the address after a slab's last is the next one's first.
    #[inline]
    pub const fn is_beside(self, bytes: u64, other: Addr) -> bool {
        self.0 + bytes == other.0 && self.0 >> SLAB == other.0 >> SLAB
    }

    /// A byte of a slab, whose number counts from 1. The parts must fit.
    #[inline]
    pub(crate) const fn of(node: usize, slab: usize, offset: u64) -> Addr {
        Addr((node as u64) << NODE | (slab as u64) << SLAB | offset)
    }

    /// The slab's number at the node, from 1; 0 is none.
    #[inline]
    pub(crate) const fn slab(self) -> usize {
        (self.0 >> SLAB & 0xffff) as usize
    }

    #[inline]
    pub(crate) const fn offset(self) -> u64 {
        self.0 & ((1 << SLAB) - 1)
    }
}

/// The address `bytes` further on. It wraps within 48 bits. An address outside of its piece is
/// refused, or is another piece's.
impl Add<u64> for Addr {
    type Output = Addr;

    #[inline]
    fn add(self, bytes: u64) -> Addr {
        Addr(self.0.wrapping_add(bytes) & ((1 << BITS) - 1))
    }
}

impl AddAssign<u64> for Addr {
    fn add_assign(&mut self, bytes: u64) {
        *self = *self + bytes;
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{:#x}", self.node(), self.slab(), self.offset())
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Addr({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_made_of_its_parts() {
        let at = Addr::of(63, 0xffff, (64 << 20) - 1);
        assert_eq!((at.node(), at.slab(), at.offset()), (63, 0xffff, (64 << 20) - 1));
        assert_eq!((at.bits(), Addr::from_bits(at.bits())), ((1 << 48) - 1, Some(at)));
        assert_eq!((Addr::from_bits(1 << 48), at + 1, Addr::NULL.is_null()), (None, Addr::NULL, true));
        assert_eq!(Addr::of(1, 2, 3) + 4, Addr::of(1, 2, 7));
    }
}
