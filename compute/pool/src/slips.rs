//! Mistakes on purpose. The judge of the rack in virtual time (`lab/racksim`) must find each.
//!
//! A build without the feature `lab` has none: `Slips::has` is false there at compile time. It is
//! asked where a node is late, or a slab changes, and on no page's usual way.

#[cfg(feature = "lab")]
use std::sync::atomic::{AtomicU32, Ordering};

/// A rule that a pool breaks on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Slip {
    /// A queue pair is used further after its node was turned away from, and late answers are taken.
    KeptLateLink = 1,
    /// A filling home is in the slab's word before its stale bits are set.
    BitsAfterWord = 2,
    /// Parity is computed as if the other pages of the stripe were zeros.
    ParityWithoutOthers = 3,
    /// Parity stays as it was where a page's changed lines go alone.
    ParityLeftBehind = 4,
}

/// The slip of a pool.
#[derive(Default)]
pub(crate) struct Slips {
    #[cfg(feature = "lab")]
    now: AtomicU32,
}

impl Slips {
    /// Whether the pool makes a mistake here.
    #[cfg(feature = "lab")]
    pub fn has(&self, slip: Slip) -> bool {
        self.now.load(Ordering::Relaxed) == slip as u32
    }

    /// Never: see the module.
    #[cfg(not(feature = "lab"))]
    #[inline(always)]
    pub fn has(&self, _: Slip) -> bool {
        false
    }
}

#[cfg(feature = "lab")]
impl crate::Pool {
    /// The homes of a slab as nodes know them: each node's number here, and the slab's name there.
    pub fn names(&self, index: u32) -> [Option<(usize, farmem_protocol::addr::SlabId)>; crate::homes::HOMES] {
        let word = self.tables.homes.word(index);
        std::array::from_fn(|nth| {
            let is_there = word.number() != 0 && word.state(nth) != crate::homes::State::Absent;
            is_there.then(|| self.tables.homes.home(word, nth)).map(|home| (home.node as usize, home.slab))
        })
    }

    /// From now on it makes a mistake.
    pub fn slip(&self, slip: Slip) {
        self.tables.slips.now.store(slip as u32, Ordering::Relaxed);
    }
}
