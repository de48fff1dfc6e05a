//! The pins of a call.

use super::peek::peek_text;
use crate::threads::notes::Note;
use farmem_pager::Pager;
use farmem_protocol::addr::{PAGE_BYTES, is_far};
use farmem_sys::raw::SignalsBlocked;

/// Longest buffer that is pinned whatever it is for; of longer ones, the pieces.
pub(super) const CHUNK: usize = 1 << 20;

/// Where addresses of programs end.
pub const USER_END: usize = 0x7fff_ffff_f000;
/// The most that one call transfers (the kernel's MAX_RW_COUNT).
pub(super) const MOST: usize = 0x7fff_f000;

/// Ranges pinned for one call. The first ones need no allocation, so that the common call blocks
/// no signals.
pub struct Pins<'a> {
    pager: &'a Pager,
    pub(super) few: [(usize, usize); 24],
    pub(super) n: usize,
    more: Vec<(usize, usize)>,
    /// When nothing was pinned yet.
    pub(super) losses: u64,
    pub(super) note: Option<Note>,
}

impl<'a> Pins<'a> {
    /// None yet.
    pub fn new(pager: &'a Pager) -> Self {
        Pins { pager, few: [(0, 0); 24], n: 0, more: Vec::new(), losses: pager.pins.losses(), note: None }
    }

    /// Pins the far part of a range, but mappings of the program's in it that are not far memory (a
    /// file, shared memory): these need no pins. False when not all of it is pinned.
    pub(super) fn add(&mut self, addr: usize, len: usize, write: bool) -> bool {
        if len == 0 || !is_far(addr) {
            return true;
        }
        let got = self.pager.pins.pin(addr, len, write);
        self.keep(addr, got);
        if got == len {
            return true;
        }
        // The kernel goes on behind such a mapping. Where nothing may be used, it ends.
        let end = addr.saturating_add(len);
        let mut at = addr + got;
        while let Some(behind) = self.pager.space.behind_foreign(at, end) {
            let got = self.pager.pins.pin(behind, end - behind, write);
            self.keep(behind, got);
            at = behind + got;
        }
        false
    }

    /// Pins the far pages of a range. The access that follows needs no right to them.
    pub(super) fn add_forced(&mut self, addr: usize, len: usize, write: bool) {
        let end = addr.saturating_add(len);
        let mut at = addr;
        while at < end {
            let got = self.pager.pins.pin_forced(at, end - at, write);
            self.keep(at, got);
            // Behind a mapping that is not ours there may be one that is; where nothing is mapped,
            // the access ends.
            if got == end - at || !self.pager.space.covers(at + got, 1) {
                return;
            }
            at = ((at + got) | (PAGE_BYTES - 1)) + 1;
        }
    }

    /// Remembers pins that are to be undone.
    fn keep(&mut self, addr: usize, got: usize) {
        if got > 0 {
            if self.n < self.few.len() {
                self.few[self.n] = (addr, got);
                self.n += 1;
            } else {
                let _signals = SignalsBlocked::new();
                self.more.push((addr, got));
            }
        }
    }

    fn unpin(&self) {
        self.pager.pins.unpin_since(self.few[..self.n].iter().chain(&self.more), self.losses);
    }

    /// Pins a NUL-terminated string, page by page; stops where it is not mapped.
    pub(super) fn add_string(&mut self, addr: usize) {
        let mut at = addr;
        while is_far(at) && at - addr < 1 << 21 {
            let end = (at | (PAGE_BYTES - 1)) + 1;
            let ends = if self.add(at, end - at, false) && !self.pager.pins.may_be_unreadable(at, end - at) {
                // SAFETY: pinned just now.
                unsafe { std::slice::from_raw_parts(at as *const u8, end - at) }.contains(&0)
            } else {
                // Where it may not be read, the kernel says so.
                peek_text(at, std::ptr::null_mut(), end - at).is_none_or(|bytes| bytes < end - at)
            };
            if ends {
                return;
            }
            at = end;
        }
    }
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        // Else this is a forked child, which has no pins.
        if self.note.is_none_or(|note| note.take()) {
            self.unpin();
        }
        if self.more.capacity() > 0 {
            let _signals = SignalsBlocked::new();
            self.more = Vec::new();
        }
    }
}
