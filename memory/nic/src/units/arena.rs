//! The memory of units that hosts claim themselves: one range of addresses, and the files behind
//! it.

// Replacing what lies behind parts of it.
#![allow(unsafe_code)]

use farmem_protocol::addr::SLAB_BYTES;
use farmem_sys::mapping::{Mapping, Memfd};
use farmem_sys::raw::Errno;

/// The memory of units that hosts claim themselves.
#[derive(Debug)]
pub struct Arena {
    mapping: Mapping,
    /// The files behind it, one after the other. They are several because the kernel punches one
    /// hole in a file at a time, and several threads scrub.
    pub(super) own: Vec<Memfd>,
    /// Bytes of each but the last: whole slabs, so that no block has a part in two.
    pub(super) each: u64,
}

/// Files behind an arena, at most.
const OWN: u64 = 16;

impl Arena {
    pub(super) fn new(bytes: u64, huge: bool) -> Result<Arena, Errno> {
        let each = bytes.div_ceil(OWN).next_multiple_of(SLAB_BYTES);
        let lengths = (0..bytes).step_by(each as usize).map(|from| each.min(bytes - from));
        let own = lengths.map(|len| Memfd::new(len, false)).collect::<Result<Vec<_>, _>>()?;
        let mapping = Mapping::new(own.first().ok_or(Errno(libc::EINVAL))?.fd(), bytes as usize)?;
        for (memfd, at) in own.iter().zip((0..bytes).step_by(each as usize)).skip(1) {
            // SAFETY: nobody has the mapping yet, of which all but the first file's part has
            // nothing behind it.
            unsafe { mapping.replace(at, each.min(bytes - at), memfd.fd(), 0) }?;
        }
        if huge {
            mapping.prefer_huge();
        }
        Ok(Arena { mapping, own, each })
    }

    /// Its bytes.
    #[inline]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The file behind a place inside, and the place in that.
    pub(super) fn own(&self, at: u64) -> (&Memfd, u64) {
        (&self.own[(at / self.each) as usize], at % self.each)
    }

    /// A range inside, as ranges of its files.
    pub(super) fn pieces(&self, at: u64, len: u64) -> impl Iterator<Item = (&Memfd, u64, u64)> {
        let end = at + len;
        std::iter::successors(Some(at), move |at| Some((at / self.each + 1) * self.each))
            .take_while(move |&at| at < end)
            .map(move |at| {
                let (own, from) = self.own(at);
                (own, from, (self.each - from).min(end - at))
            })
    }

    /// Gives a range's memory back to the system.
    pub(super) fn discard(&self, at: u64, len: u64) {
        self.pieces(at, len).for_each(|(own, from, len)| own.discard(from, len));
    }

    /// Bytes that it has taken from the system.
    pub(super) fn taken(&self) -> u64 {
        self.own.iter().map(Memfd::taken).sum()
    }

    /// The first byte of a range, by pages, that was written and not given back.
    pub(super) fn next_data(&self, at: u64, len: u64) -> Option<u64> {
        let of = |(own, from, len): (&Memfd, u64, u64)| own.next_data(from, len).map(|found| found - from);
        let mut before = 0;
        self.pieces(at, len).find_map(|piece| {
            let (_, _, len) = piece;
            let found = of(piece).map(|found| at + before + found);
            before += len;
            found
        })
    }

    /// Copies a range to a place in a file.
    pub(super) fn carry_over(&self, at: u64, to: &Memfd, into: u64, len: u64) -> Result<(), Errno> {
        to.write(into, &self.mapping, at, len)
    }

    /// Has a range of the arena be that of a file from now on.
    pub(super) fn put_beneath(&self, at: u64, len: u64, fd: i32, from: u64, huge: bool) -> Result<(), Errno> {
        // SAFETY: the arena's mapping is accessed by raw copies and atomics only, none of which
        // assumes anything of the bytes' origin; there is memory behind every byte of it at all
        // times.
        unsafe { self.mapping.replace(at, len, fd, from) }?;
        if huge {
            self.mapping.prefer_huge_in(at, len);
        }
        Ok(())
    }
}
