//! A signal that is kept for a thread while it is in a fault: [`crate::signals::open`] says when.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A siginfo, in words.
pub type Info = [usize; size_of::<libc::siginfo_t>() / 8];

/// A signal that came while a thread was in a fault.
pub struct Kept {
    /// 0: none.
    pub signal: AtomicUsize,
    info: [AtomicUsize; size_of::<libc::siginfo_t>() / 8],
}

impl Kept {
    /// None.
    pub const fn new() -> Kept {
        Kept { signal: AtomicUsize::new(0), info: [const { AtomicUsize::new(0) }; _] }
    }

    /// What came with it.
    pub fn info(&self) -> Info {
        std::array::from_fn(|i| self.info[i].load(Ordering::Relaxed))
    }

    /// Takes it.
    pub fn take(&self) -> Option<(i32, Info)> {
        let info = self.info();
        Some((self.signal.swap(0, Ordering::Relaxed) as i32, info)).filter(|&(signal, _)| signal != 0)
    }

    /// Notes it, in an empty place.
    pub fn put(&self, signal: i32, info: Info) {
        for (to, from) in self.info.iter().zip(info) {
            to.store(from, Ordering::Relaxed);
        }
        self.signal.store(signal as usize, Ordering::Relaxed);
    }
}
