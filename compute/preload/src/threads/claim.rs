//! The pins of a thread's long write while it is under way: [`crate::guard::turn`] says how.

use crate::process::pager;
use farmem_sys::raw::SignalsBlocked;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Ranges of a claim that are remembered; of more, those behind stay pinned where the call is left
/// by a jump.
pub const RANGES: usize = 16;

/// The share that a thread's long write has claimed of the pins that all such writes may have
/// together.
pub struct Claim {
    /// 0: nothing.
    pub pages: AtomicU64,
    /// Tells claims apart.
    pub serial: AtomicU64,
    /// Where the program's stack was.
    pub sp: AtomicUsize,
    /// Far ranges that are pinned: address and length.
    pub ranges: [(AtomicUsize, AtomicUsize); RANGES],
    pub count: AtomicUsize,
    /// See [`farmem_pager::Pins::losses`].
    pub losses: AtomicU64,
}

impl Claim {
    /// Nothing is claimed.
    pub const fn new() -> Claim {
        let ranges = [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; RANGES];
        let (pages, serial) = (AtomicU64::new(0), AtomicU64::new(0));
        let (sp, count, losses) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicU64::new(0));
        Claim { pages, serial, sp, ranges, count, losses }
    }

    /// In a forked child, which has neither claims nor pins.
    pub fn forget(&self) {
        self.pages.store(0, Ordering::Relaxed);
        self.count.store(0, Ordering::Relaxed);
    }

    /// Its call was left by a jump out of a signal handler, or its thread ends: it is given back,
    /// and what is pinned for it.
    pub fn release(&self) {
        if self.pages.load(Ordering::Relaxed) == 0 {
            return;
        }
        let _signals = SignalsBlocked::new();
        let count = self.count.swap(0, Ordering::Relaxed);
        if count > 0 {
            let mut ranges = [(0, 0); RANGES];
            for (to, (at, len)) in ranges.iter_mut().zip(&self.ranges) {
                *to = (at.load(Ordering::Relaxed), len.load(Ordering::Relaxed));
            }
            pager().pins.unpin_since(ranges[..count].iter(), self.losses.load(Ordering::Relaxed));
        }
        pager().pins.give_back_pins(self.pages.swap(0, Ordering::Relaxed));
    }

    /// Whether the call that made it may be under way still, interrupted by a signal handler that
    /// stands at `sp` now. From an equal or higher one of the same stack it cannot, and a handler
    /// on the program's alternate stack is interrupted by none that is not.
    pub fn is_interrupted(&self, sp: usize, on_alternate: impl Fn(usize) -> bool) -> bool {
        let before = self.sp.load(Ordering::Relaxed);
        self.pages.load(Ordering::Relaxed) != 0
            && match (on_alternate(before), on_alternate(sp)) {
                (false, true) => true,
                (true, false) => false,
                _ => sp < before,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_is_told_from_a_jump() {
        let claim = Claim::new();
        let on_alternate = |sp: usize| sp >= 0x10000;
        assert!(!claim.is_interrupted(0x1000, on_alternate));
        claim.pages.store(1, Ordering::Relaxed);
        let cases = [
            (0x9000, 0x8000, true),
            (0x9000, 0x9000, false),
            (0x9000, 0xa000, false),
            (0x9000, 0x11000, true),
            (0x11000, 0x9000, false),
            (0x11000, 0x10800, true),
            (0x11000, 0x11800, false),
        ];
        for (before, sp, interrupted) in cases {
            claim.sp.store(before, Ordering::Relaxed);
            assert_eq!(claim.is_interrupted(sp, on_alternate), interrupted, "{before:#x}, {sp:#x}");
        }
    }
}
