//! What a fault does while its answer is on its way: it makes room.
//!
//! ```text
//!  READ leaves ─► room reserved, window planned, policy told ─► a few pages leave ─► the answer is looked for
//!  ├───────────────────────────── under way: 7 µs over loopback, more elsewhere ─────────────────────────┤
//! ```
//!
//! Each page that comes in makes another leave, sooner or later: 0.6 µs where it is clean. A thread that waits for the
//! network has that time. So [`SMALL`] pages leave, before the background thread would be woken for them.
//!
//! Few pages at once have a flush to themselves. Where it interrupts another CPU, 15 µs on virtual ones, and where pages
//! are dirty and have to be protected, compared and sent, a batch takes longer than the wait: then large batches are
//! better, beside the faults, and this is tried again after a while ([`Spare`]). Where protecting calls are dear it is
//! not tried at all ([`crate::choice`]), until they are cheap again or nothing is written any more.

use crate::Pager;
use farmem_sys::clock;
use std::sync::atomic::Ordering;

/// Pages of a small batch. Fewer pay too much for their flush; twice as many took longer than the answer.
const SMALL: u64 = 8;
/// A page that takes longer to leave, ns, had better leave in a large batch.
const LONG_NS: u64 = 1_500;
/// Occasions, which are faults that find room short, that go by before the next try: at first, and at most. One thread that
/// fetches single pages has [`SMALL`] of them between two large batches of 256 pages: it tries after one, and at most
/// after 16. Windows, other threads and smaller batches make it sooner or later.
const PAUSE: (u32, u32) = (8, 128);

/// Whether small batches pay.
#[derive(Clone, Copy, Debug)]
pub struct Spare {
    left: u32,
    pause: u32,
}

impl Spare {
    /// Takes them to pay.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Spare {
        Spare { left: 0, pause: 0 }
    }

    /// Whether this occasion is to be used.
    fn tries(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// So many pages took so long, ns.
    fn took(&mut self, pages: u64, ns: u64) {
        self.pause = if ns > pages * LONG_NS { (2 * self.pause).clamp(PAUSE.0, PAUSE.1) } else { 0 };
        self.left = self.pause;
    }
}

impl Pager {
    /// Lets a few pages leave if room is short.
    pub(crate) fn make_room_meanwhile(&self) {
        let wanted = SMALL.min(self.batch as u64);
        if self.resident.load(Ordering::Relaxed) + self.low_room + wanted <= self.limit {
            return;
        }
        // Somebody who has it is making room already.
        let Some(mut evictor) = self.evictor.try_lock() else { return };
        // Where protecting calls are dear, batches must be large, and sweeps are judged by large ones.
        if evictor.sweeps.dear() || !evictor.spare.tries() {
            return;
        }
        let begun = clock::ticks();
        let left = self.evict(&mut evictor, wanted as usize) as u64;
        evictor.spare.took(left, clock::ns(clock::ticks() - begun));
        self.count(&self.counters.reclaimed_inline, left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_tried_ever_more_seldom_and_forgiven_at_once() {
        let mut spare = Spare::new();
        let mut tried = |ns| {
            let faults = (1..).find(|_| spare.tries()).unwrap_or(0);
            spare.took(8, ns);
            faults
        };
        assert_eq!([5_000, 5_000, 30_000].map(&mut tried), [1, 1, 1]);
        assert_eq!([30_000, 30_000, 5_000, 5_000].map(&mut tried), [8, 16, 32, 1]);
        assert_eq!((0..20).map(|_| tried(30_000)).last(), Some(128));
    }
}
