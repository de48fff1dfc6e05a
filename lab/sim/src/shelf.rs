//! A node's shelf for slabs that it puts aside: in memory, and not always honest.

use farmem_nic::lending::Slab;
use farmem_nic::spill::{Kept, Shelf};
use farmem_sys::raw::Errno;
use std::ops::Range;

/// How long a shelf takes to give a slab back, in nanoseconds.
pub const SHELF_NS: u64 = 20_000_000;

/// A shelf in memory, for what a node puts aside.
pub struct Memory(pub Keeping);

/// What a shelf gives back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keeping {
    /// The bytes.
    Kept,
    /// Zeros.
    Forgotten,
    /// An error: the node has lost the slab, and says so.
    Unreadable,
}

/// The bytes of a slab, with their places. `None`: they cannot be read.
struct Bytes(Option<Vec<(u64, Vec<u8>)>>);

impl Shelf for Memory {
    fn put(&self, slab: &Slab) -> Result<Box<dyn Kept>, Errno> {
        let copied = |extent: Range<u64>| {
            let bytes = slab.mapping.bytes(extent.start, (extent.end - extent.start) as u32)?;
            Some((extent.start, if self.0 == Keeping::Forgotten { vec![0; bytes.len()] } else { bytes }))
        };
        let bytes: Option<Vec<_>> = slab.extents().into_iter().map(copied).collect();
        let bytes = bytes.ok_or(Errno(libc::EINVAL))?;
        Ok(Box::new(Bytes(Some(bytes).filter(|_| self.0 != Keeping::Unreadable))))
    }
}

impl Kept for Bytes {
    fn take(&self, slab: &Slab) -> Result<(), Errno> {
        let bytes = self.0.as_ref().ok_or(Errno(libc::EIO))?;
        let given = bytes.iter().all(|(at, bytes)| slab.mapping.write_bytes(*at, bytes));
        given.then_some(()).ok_or(Errno(libc::EINVAL))
    }
}
