//! Mistakes on purpose. The judge of the rack in virtual time (`lab/racksim`) must find each.
//!
//! A build without the feature `lab` has none: [`Pool::slips`] is false there at compile time. It is
//! asked where a node is late, or a slab changes, and on no page's usual way.

use crate::Pool;
#[cfg(feature = "lab")]
use std::sync::atomic::{AtomicU32, Ordering};

/// A rule that a pool breaks on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Slip {
    /// A queue pair is used further after its node was turned away from.
    KeptLateLink = 1,
    /// A filling home is in the slab's word before its stale bits are set.
    BitsAfterWord = 2,
    /// Parity is computed as if the other pages of the stripe were zeros.
    ParityWithoutOthers = 3,
}

/// The slip of a pool.
#[cfg(feature = "lab")]
#[derive(Default)]
pub(crate) struct Slips(AtomicU32);

impl Pool {
    /// From now on it makes a mistake.
    #[cfg(feature = "lab")]
    pub fn slip(&self, slip: Slip) {
        self.slip.0.store(slip as u32, Ordering::Relaxed);
    }

    /// Whether it makes a mistake here.
    #[cfg(feature = "lab")]
    pub(crate) fn slips(&self, slip: Slip) -> bool {
        self.slip.0.load(Ordering::Relaxed) == slip as u32
    }

    /// Never: see the module.
    #[cfg(not(feature = "lab"))]
    #[inline(always)]
    pub(crate) fn slips(&self, _: Slip) -> bool {
        false
    }
}
