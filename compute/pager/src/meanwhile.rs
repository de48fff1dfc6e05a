//! What a fault does while its answer is on its way: it makes room.
//!
//! ```text
//!  READ leaves ─► room reserved, window planned, policy told ─► is room short? pages leave ─► the answer is looked for
//!  ├────────────────────────── under way: 7 µs over loopback, more elsewhere ──────────────────────────┤
//! ```
//!
//! Each page that comes in makes another leave, sooner or later. Who waits for the network is the best to see to it: part of it
//! costs nothing; where no other thread of the program runs, protecting a page interrupts no CPU; and the one on which the
//! background thread would do it stays free, perhaps for the node. So [`BATCH`] pages leave, in one fault of as
//! many, before the background thread is woken; that has what windows and other threads bring in.
//!
//! Where each protecting call interrupts another CPU (15 µs between virtual ones), a batch takes longer than all it
//! spares. There large batches are better, beside the faults, many of whose pages one call protects ([`crate::sweep`]), and this is
//! tried again after a while ([`Spare`]). Time on the CPU decides: of a busy machine's clock half is others' slices.
//!
//! What the network did not take at once (a full socket, a shaped link) goes on in the waits of the faults that follow: nobody
//! else looks at it soon, and pages whose bytes are not acknowledged hold their places in the staging ring.

use crate::Pager;
use crate::settle::By;
use farmem_sys::raw::thread_cpu_ns;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pages of a batch. Fewer pay too much for their flush and their message; more keep one fault waiting for longer.
const BATCH: u64 = 32;
/// A page that takes more CPU time to leave, ns, had better leave beside the faults. Half of what interrupting another virtual CPU
/// takes for each; with 5 µs redis' batches, which interrupt nobody, were often taken for long ones (`docs/design/pager.md`).
const LONG_NS: u64 = 8_000;
/// Room is short somewhat before the background thread is woken for it: by this part of a batch. A whole one keeps more of
/// little local memory free (`docs/design/pager.md`, with what speaks for it).
const MARGIN: u64 = 4;
/// Occasions, which are faults that find room short, that go by before the next try: at first, and at most. Beside a background
/// thread that makes room by 256 pages at a time one fault in eight is one, so that trials of half a millisecond come
/// to 60 ns a fault. Windows, other threads and smaller batches make occasions more or fewer.
const PAUSE: (u32, u32) = (8, 1024);

/// Whether batches in a fault pay.
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
    /// Lets some pages leave if room is short, and sends on what the network did not take of those before.
    pub(crate) fn make_room_meanwhile(&self) {
        let wanted = BATCH.min(self.batch as u64);
        let short = self.resident.load(Ordering::Relaxed) + self.low_room + wanted / MARGIN > self.limit;
        if !short && !self.held_up.load(Ordering::Relaxed) {
            return;
        }
        // Somebody who has it is making room already, or sends on.
        let Some(mut evictor) = self.evictor.try_lock() else { return };
        if !short {
            self.collect_writes(&mut evictor, Duration::ZERO);
            return;
        }
        if !evictor.spare.tries() {
            return;
        }
        let begun = thread_cpu_ns();
        let left = self.evict(&mut evictor, wanted as usize, By::Program) as u64;
        // A program's filter that was not seen may forbid the clock by now: zero.
        evictor.spare.took(left, thread_cpu_ns().saturating_sub(begun));
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
        assert_eq!([20_000, 20_000, 90_000].map(&mut tried), [1, 1, 1]);
        assert_eq!([90_000, 90_000, 20_000, 20_000].map(&mut tried), [8, 16, 32, 1]);
        assert_eq!((0..20).map(|_| tried(90_000)).last(), Some(1024));
    }
}
