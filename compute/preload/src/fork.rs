//! Around the program's forks.
//!
//! Registered with `pthread_atfork` before anything else is: libc runs *prepare*
//! handlers last-registered first and *child* handlers first-registered first, so
//! the runtime stops last and goes on first.

use crate::start::{claim_counters, pager};
use farmem_pager::Fork;
use farmem_sys::sync::Lock;

static UNDER_WAY: Lock<Option<Fork<'static>>> = Lock::new(None);

/// Registers the handlers.
pub fn register() {
    // SAFETY: three functions of ours.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

extern "C" fn prepare() {
    let fork = pager().fork_prepare();
    *UNDER_WAY.lock() = Some(fork);
    crate::ARENA.hold_across_fork();
}

extern "C" fn parent() {
    crate::ARENA.release_after_fork();
    if let Some(fork) = UNDER_WAY.lock().take() {
        // libc does not say whether the fork succeeded. A share that nobody else holds ends at once.
        pager().fork_parent(fork, true);
    }
}

extern "C" fn child() {
    crate::ARENA.release_after_fork();
    if let Some(fork) = UNDER_WAY.lock().take() {
        pager().fork_child(fork, claim_counters());
    }
}
