//! The process that opened something, told from its forked children without a system call.
//!
//! One word of the process lies in a page that the kernel clears in each child. It holds the
//! process's id from the first opening on. A child finds 0 there, or its own id.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

static WORD: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();

/// A process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u32);

impl Process {
    /// This one.
    pub fn this() -> Process {
        let process = std::process::id();
        if let Some(word) = WORD.get_or_init(|| farmem_sys::shared::wiped_on_fork().ok()) {
            word.store(process, Ordering::Relaxed);
        }
        Process(process)
    }

    /// Whether it is this one.
    #[inline]
    pub fn is_this(self) -> bool {
        match WORD.get() {
            Some(Some(word)) => word.load(Ordering::Relaxed) == self.0,
            _ => std::process::id() == self.0,
        }
    }
}
