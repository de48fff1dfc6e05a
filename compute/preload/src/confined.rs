//! Whether the program has confined itself by a filter of its own ([`crate::sandbox`]). The runtime
//! does nothing on the program's behalf that this filter forbids.

use std::sync::atomic::{AtomicBool, Ordering};

static CONFINED: AtomicBool = AtomicBool::new(false);
/// Strict mode was entered by the only thread.
static ALONE: AtomicBool = AtomicBool::new(false);

/// It has, from now on. `alone`: in strict mode; whether by its only thread.
pub fn begin(alone: Option<bool>) {
    if let Some(alone) = alone {
        ALONE.store(alone, Ordering::Relaxed);
    }
    CONFINED.store(true, Ordering::Relaxed);
}

/// Whether the program has one thread, where a filter of its own may forbid to ask: then only
/// strict mode, in which none can be made, is known to have one. `None`: it may be asked.
pub fn alone() -> Option<bool> {
    CONFINED.load(Ordering::Relaxed).then(|| ALONE.load(Ordering::Relaxed))
}
