//! Connections that a vfork child has made, in memory that is its parent's too.
//!
//! Such a child has descriptors of its own. The connection that it makes or restores does not exist
//! in its parent, where the same number may be another file. So each is marked by the process that
//! made it, and the child drops it before it leaves the pager. Numbers are given out once for both
//! ([`farmem_sys::descriptors::own_fd`]). If one of the two meets a number of the other's, it is no
//! descriptor in its table, and the connection is restored as after a cut.

use farmem_sys::raw;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many there are.
static AWAY: AtomicU32 = AtomicU32::new(0);

/// Whether a connection was made by a vfork child.
pub(crate) struct Away(bool);

impl Away {
    /// Made by the calling process, now.
    pub fn noted() -> Away {
        let away = raw::is_away();
        AWAY.fetch_add(away as u32, Ordering::Relaxed);
        Away(away)
    }

    /// Not made by one.
    pub fn none() -> Away {
        Away(false)
    }

    pub fn is(&self) -> bool {
        self.0
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        AWAY.fetch_sub(self.0 as u32, Ordering::Relaxed);
    }
}

/// Whether there is any such connection in this memory: one load.
#[inline]
pub fn any_away() -> bool {
    AWAY.load(Ordering::Relaxed) != 0
}
