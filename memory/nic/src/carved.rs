//! A memory window on the card, for a user that is connected by RDMA.
//!
//! ```text
//!  BIND         recorded in the software's windows alone; the card is not asked
//!  first use    the user's queue pair asks: region of the range ─► window (type 2B) ─► BIND_MW
//!  INVALIDATE   generation on ─► LOCAL_INV ─► window gone ─► region gone ─► the answer
//!                                                             └─ after a while: the queue pair is broken
//! ```
//!
//! So a queue pair that never uses a window costs the card nothing, and a window for a
//! whole member is one on the card for each of its queue pairs that uses it, none of
//! which another can use. Region and window are in the *user's* domain, where the
//! queue pair is; the region is of exactly the range, because soft-RoCE judges by the
//! region's bounds, and its own key gives no right at all.
//!
//! The end waits: LOCAL_INV until the window's key is refused, and the region's end for a message
//! that was begun under it, of which a part may have come and the rest may never. So the region is
//! taken back by a thread of its own, and when that has not ended after [`PATIENCE_NS`] the user's
//! queue pair is broken, which lets go of the message. (Verbs have no way to ask whether one is
//! under way.) All this happens outside of any section of [`super::epochs`] and without the
//! window's lock, so it delays only the caller that asked for this end. The binding and the queue
//! pair may end at the same time: the first does the work, and the other waits for it.

// Regions of slabs: memory that stays mapped as long as the region.
#![allow(unsafe_code)]

use super::budget::Budget;
use super::lending::Slab;
use farmem_protocol::key;
use farmem_sys::raw;
use farmem_sys::sync::Lock;
use farmem_sys::verbs::{Domain, Done, Outcome, RcQueue, Region, Rights, Work, WorkRequest};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

/// How long the card may take to bind or invalidate: this end of the queue pair alone is concerned.
const SOON_NS: u64 = 1_000_000_000;
/// How long a message under way may take to end before its queue pair is broken. A message as long
/// as a slab takes 50 ms at 10 Gbit/s. One that is broken off is repeated, and judged again.
pub const PATIENCE_NS: u64 = 250_000_000;
/// The time that each of many has if the others have used up the whole.
const AT_LEAST_NS: u64 = 5_000_000;
/// Windows on the card that one queue pair may have.
pub const MAX_CARVED: usize = 256;

/// Takes something off the card. Verbs under way at the given time are broken off.
type Off = Box<dyn FnOnce(u64) + Send>;

/// See the top of this file.
pub struct Carved {
    queue: Weak<Lock<RcQueue>>,
    rkey: u32,
    base: u64,
    /// Until it is being taken off. Locked until it is off.
    on_card: Lock<Option<Off>>,
    over: AtomicBool,
}

/// Until when somebody who begins to wait now waits before he breaks what he waits for.
pub fn patience() -> u64 {
    raw::now_ns() + PATIENCE_NS
}

impl Carved {
    /// Makes `len` bytes of a slab, from `start`, reachable through the card by the peer of
    /// `queue`. `None`: the card cannot, or must not.
    pub fn new(
        domain: &Arc<Domain>,
        queue: &Arc<Lock<RcQueue>>,
        (slab, start, len): (&Arc<Slab>, u64, u64),
        rights: key::Rights,
        budget: &Arc<Budget>,
    ) -> Option<Carved> {
        let may = |right| rights.include(right);
        let rights = match (may(key::Rights::READ), may(key::Rights::WRITE)) {
            (true, true) => Rights::Both,
            (true, false) => Rights::Read,
            (false, true) => Rights::Write,
            (false, false) => return None,
        };
        let at = slab.mapping.at(start, len)?;
        let share = budget.take(len)?;
        // Against a discard, which would leave the card with pages that are no longer the slab's.
        let mut pins = slab.pins.lock();
        // SAFETY: mapped as long as the slab, which is held beside the region; accessed raw.
        let region = unsafe { domain.region_for_windows(at, len as usize) }.ok()?;
        let window = domain.window().ok()?;
        let (rkey, base) = (window.next_rkey(), Domain::base(at));
        let bind = Work::Bind { window: &window, rkey, region: &region, offset: base, len, rights };
        let mut posting = queue.lock();
        if carry_out(&mut posting, bind) != Some(Outcome::SUCCESS) {
            // It may have been bound late, and used by who guesses the key: nothing to wait for is
            // left. In this order.
            let _ = posting.break_off();
            drop(window);
            drop(region);
            return None;
        }
        drop(posting);
        *pins += 1;
        drop(pins);
        let (weak, slab) = (Arc::downgrade(queue), Arc::clone(slab));
        let theirs = Weak::clone(&weak);
        let off = move |until_ns| {
            // A queue pair that ends does so behind its windows, and so behind our lock: this never
            // is its last holder.
            let queue = theirs.upgrade();
            if let Some(queue) = &queue {
                // A broken queue pair invalidates nothing; the window's end does.
                carry_out(&mut queue.lock(), Work::Invalidate { rkey });
            }
            drop(window);
            take_back(region, until_ns, queue.as_slice());
            *slab.pins.lock() -= 1;
            drop(share);
        };
        Some(Carved::by(weak, (rkey, base), Box::new(off)))
    }

    fn by(queue: Weak<Lock<RcQueue>>, (rkey, base): (u32, u64), off: Off) -> Carved {
        Carved { queue, rkey, base, on_card: Lock::new(Some(off)), over: AtomicBool::new(false) }
    }

    /// One on no card, taken off by `off`.
    #[cfg(test)]
    pub fn by_itself(off: impl FnOnce(u64) + Send + 'static) -> Carved {
        Carved::by(Weak::new(), (0, 0), Box::new(off))
    }

    /// By what its user names it.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The offset of its first byte.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Whether this queue pair's.
    pub fn is_of(&self, queue: &Arc<Lock<RcQueue>>) -> bool {
        std::ptr::eq(self.queue.as_ptr(), Arc::as_ptr(queue))
    }

    /// Whether it has ended. Waits for nobody.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Takes it off the card. When this returns, no verb is under way by its key, even if another
    /// thread ended it.
    /// Verbs under way at `until_ns` are broken off.
    pub fn end(&self, until_ns: u64) {
        let mut on_card = self.on_card.lock();
        if let Some(off) = on_card.take() {
            off(until_ns);
            self.over.store(true, Ordering::Release);
        }
    }
}

/// Takes a region off the card; breaks those queue pairs by which it is reached if that has not
/// ended by `until_ns`.
pub(super) fn take_back(region: Region, until_ns: u64, queues: &[Arc<Lock<RcQueue>>]) {
    let break_all = || {
        for queue in queues {
            // An error leaves the driver's own bound, if it has one.
            let _ = queue.lock().break_off();
        }
    };
    end_in_time(region, until_ns, break_all);
}

/// Drops something whose drop may wait for what `break_all` breaks; does so if it has not ended by
/// `until_ns`.
fn end_in_time<T: Send + 'static>(what: T, until_ns: u64, break_all: impl FnOnce()) {
    // It stays ours until there is a thread to wait for its end.
    let what = Arc::new(Lock::new(Some(what)));
    let theirs = Arc::clone(&what);
    let (tell, told) = mpsc::channel::<()>();
    let taker = std::thread::Builder::new().name("farmem-unreg".into()).stack_size(256 << 10).spawn(move || {
        drop(theirs.lock().take());
        drop(tell);
    });
    let Ok(taker) = taker else {
        break_all();
        drop(what.lock().take());
        return;
    };
    let wait = until_ns.saturating_sub(raw::now_ns()).max(AT_LEAST_NS);
    if told.recv_timeout(Duration::from_nanos(wait)) == Err(mpsc::RecvTimeoutError::Timeout) {
        break_all();
    }
    let _ = taker.join();
}

impl Drop for Carved {
    fn drop(&mut self) {
        self.end(patience());
    }
}

impl std::fmt::Debug for Carved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Carved({:#x})", self.rkey)
    }
}

/// Posts what touches no buffer, and waits for it. `None`: it could not be posted, or has not ended
/// in time.
fn carry_out(queue: &mut RcQueue, work: Work<'_>) -> Option<Outcome> {
    // One that was given up may still end: by its time it is told from this one.
    let id = raw::now_ns();
    // SAFETY: no buffers; the memory that is bound is a slab's, which is shared.
    unsafe { queue.post(&[WorkRequest { id, told: true, work }]) }.ok()?;
    let until = id + SOON_NS;
    let mut done = [Done { id: 0, outcome: Outcome::SUCCESS }];
    loop {
        match queue.poll(&mut done) {
            Ok(0) if raw::now_ns() > until => return None,
            Ok(0) => raw::yield_cpu(),
            Ok(_) if done[0].id != id => {}
            Ok(_) => return Some(done[0].outcome),
            Err(_) => return None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Ends only when told to, or need not be told.
    struct Waits(mpsc::Receiver<()>);

    impl Drop for Waits {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    #[test]
    fn what_does_not_end_is_broken_and_what_does_is_not() {
        let (breaks, waits) = mpsc::channel();
        end_in_time(Waits(waits), 0, move || drop(breaks));

        let (ends, waits) = mpsc::channel();
        drop(ends);
        end_in_time(Waits(waits), u64::MAX, || panic!("broken, but it ends by itself"));
    }

    #[test]
    fn it_is_off_once_and_who_comes_second_waits_for_that() {
        let (open, shut) = mpsc::channel::<()>();
        let (begin, begun) = mpsc::channel::<()>();
        let carved = Carved::by_itself(move |_| {
            drop(begin);
            let _ = shut.recv();
        });
        std::thread::scope(|scope| {
            scope.spawn(|| carved.end(0));
            // Disconnected: it is being taken off.
            assert!(begun.recv().is_err() && !carved.is_over());
            let second = scope.spawn(|| {
                carved.end(0);
                carved.is_over()
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!second.is_finished() && !carved.is_over());
            drop(open);
            assert!(second.join().unwrap());
        });
    }
}
