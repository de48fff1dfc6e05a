//! Children of vfork that have this memory now.

use std::sync::atomic::AtomicU32;

/// How many. Counted by the stubs in libc's text ([`crate::sites`]).
pub static VFORKS: AtomicU32 = AtomicU32::new(0);
