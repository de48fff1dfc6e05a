//! A thread's belongings for its faults: its lane to far memory, detectors, buffers.
//!
//! A *context* ties a thread to its belongings. A thread finds its context by the thread pointer
//! (`%fs:0`), not by a thread-local. Thread-locals of a library go through a table that glibc
//! allocates with the program's malloc, hence in far memory, which the fault path must not touch. A
//! thread that ends gives its context back. Its belongings, queue pairs above all, go to the next
//! thread that needs some. If the end of a thread is not seen, its context goes to the next thread
//! at the same thread pointer.
//!
//! A context's `inside` count is also the pager's gate. A thread makes it odd when it enters the
//! pager and even when it leaves. A fork waits until all other counts are even.
//!
//! A thread that shares this memory from another process may be killed while it is inside. So it
//! leaves its name in its context. A thread that has waited long for a page, a lock or a fork
//! checks that all threads inside still exist ([`Threads::look`]).

#![allow(unsafe_code)] // Contexts, and the thread pointer.

#[cfg(test)]
mod tests;

use crate::page::{Busy, Bytes, Frames};
use crate::word::Word;
use farmem_cache::prefetch::{FirstTouch, Prefetcher, Window};
use farmem_fabric::Lost;
use farmem_pool::{Done, Lane};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, PageId};
use farmem_sys::holdings::Lots;
use farmem_sys::members::{self, Doubt};
use farmem_sys::raw::{Errno, now_ns, sleep_ns, yield_cpu};
use farmem_sys::sync::Lock;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Threads that can be in the pager at once; more wait for one another.
const CONTEXTS: usize = 4096;
/// Rounds of waiting between two checks that the awaited threads still exist. They take about a
/// second with Linux's default timers.
pub const LOOK_ROUNDS: u32 = 4096;
/// No name.
const NOBODY: u32 = 0;
/// The owner of a context that was given back. It is not 0, because a search ends at 0, and other
/// threads' contexts may lie behind.
const GIVEN_BACK: usize = 1;
static NUMBERS: AtomicU32 = AtomicU32::new(0);
/// Pages of a landing buffer: a window with its demand page first, and one page more. A demand page
/// lands in the last page while bytes in the first are still to be kept, and the other way round.
pub const LANDING: usize = WINDOW + 1;
static LANDINGS: Lots = Lots::new(LANDING * PAGE_BYTES);
/// Pages that one fault installs at most.
pub const WINDOW: usize = 64;

/// A page that a window will bring in: Busy, and so the thread's.
#[derive(Clone, Copy)]
pub(crate) struct Claimed {
    pub busy: Busy,
    pub slot: FarSlot,
    /// Its bytes, once they have come: in the slot, or in the landing buffer. The place is looked
    /// up once, because the slab may move meanwhile.
    pub source: Option<Bytes<'static>>,
    /// Whether the bytes are in the slot.
    pub in_place: bool,
}

/// In place of the node whose bytes came: no home has answered.
pub(crate) const UNANSWERED: u32 = u32::MAX;

/// One thread's belongings in the pager.
pub struct Thread {
    /// Its way to slots that are not mapped.
    pub lane: Lane,
    /// Operations that the last poll found done.
    pub done: Vec<Done>,
    /// The node whose bytes came, by the READ's tag. Used only if pages are sealed.
    pub senders: [Option<u32>; LANDING],
    /// Why no home has answered the last READ of those whose sender is [`UNANSWERED`].
    pub unanswered: Option<Lost>,
    /// Whether the pool has been told of the landing buffer, so that RDMA cards can write to it.
    pub is_told: bool,
    /// Prefetch decisions.
    pub prefetcher: Prefetcher,
    /// First-touch batching.
    pub first: FirstTouch,
    /// The window being fetched.
    pub window: Window,
    /// Pages of the window that were claimed, with their slots.
    pub(crate) claimed: Vec<Claimed>,
    /// The page that a read brought in last, if it came in protected, and its word before that. The
    /// thread's next fault tells whether the page is written at once ([`crate::dirty::guess`]).
    pub watched: Option<(PageId, Word)>,
    /// Guesses that this thread has made ([`crate::dirty::guess`]).
    pub guesses: u32,
    /// The page that faulted last although it was there, and how many times in a row.
    pub groundless: (PageId, u32),
    /// Its name in a trace.
    pub number: u32,
    /// Where tcp READs land: [`LANDING`] pages.
    pub(crate) landing: Frames,
    /// Whether the last demand page landed in the last page of the landing buffer, and not in the
    /// first.
    pub lands_last: bool,
    /// The demand page that landed last, with its slot, if bytes of it are still to be kept. They are read where
    /// the page landed ([`crate::dirty`]).
    pub unkept: Option<(PageId, FarSlot)>,
}

// SAFETY: only the thread that made `inside` odd uses a context; the landing buffer is its own.
unsafe impl Send for Thread {}

impl Thread {
    /// With windows of at most `longest` pages.
    pub fn boxed(longest: u32) -> Box<Thread> {
        match Thread::new(longest) {
            Ok(thread) => Box::new(thread),
            Err(e) => crate::ending::out_of_local_memory(e),
        }
    }

    /// In a forked child: its queue pairs are the parent's.
    pub fn forget_links(&mut self) {
        self.unkept = None;
        self.lane.forget_in_child();
    }

    /// The page of the landing buffer in which a demand page's READ lands: the last, or the first.
    #[inline]
    pub fn demand(&self, last: bool) -> usize {
        if last { LANDING - 1 } else { 0 }
    }

    fn new(longest: u32) -> Result<Self, Errno> {
        Ok(Thread {
            lane: Lane::new(),
            done: Vec::with_capacity(2 * WINDOW),
            senders: [None; LANDING],
            unanswered: None,
            is_told: false,
            prefetcher: Prefetcher::with_longest(longest),
            first: FirstTouch::new(),
            window: Window::new(),
            claimed: Vec::with_capacity(WINDOW),
            watched: None,
            guesses: 0,
            groundless: (PageId(0), 0),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            // SAFETY: a lot is mapped for good, and given to one taker.
            landing: unsafe { Frames::of(LANDINGS.take()?, LANDING) },
            lands_last: false,
            unkept: None,
        })
    }
}

struct Context {
    /// Thread pointer of its thread; 0: never used. It only guides the search. The right to use the
    /// context comes from `inside`.
    owner: AtomicUsize,
    /// Odd while a thread is in the pager with this context. Each entry and each exit adds one, so
    /// that a wait for a thread to leave does not take its next entry for this one.
    inside: AtomicU32,
    /// The name of the thread inside ([`members::own_name`]), else [`NOBODY`]. It is set soon after
    /// `inside` becomes odd, and cleared before `inside` becomes even.
    name: AtomicU32,
    thread: UnsafeCell<Option<Box<Thread>>>,
}

/// Whether a thread is in the pager, by its context's count.
#[inline]
fn is_in(inside: u32) -> bool {
    inside & 1 != 0
}

impl Context {
    /// Leaves the pager. Only the thread that is inside calls it.
    #[inline]
    fn leave(&self) {
        self.name.store(NOBODY, Ordering::Relaxed);
        // While `inside` is odd, no other thread changes it.
        self.inside.store(self.inside.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Takes the belongings out of the context. The caller is inside, or is the only thread.
    fn take(&self) -> Option<Box<Thread>> {
        // SAFETY: `inside` is the caller's, or no other thread exists: so the cell is the caller's.
        unsafe { &mut *self.thread.get() }.take()
    }

    fn enter_again(&self) -> bool {
        let outside = self.inside.load(Ordering::Relaxed);
        let entered = outside.wrapping_add(1);
        !is_in(outside) && self.inside.compare_exchange(outside, entered, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }
}

/// All contexts of a process.
pub struct Threads {
    contexts: Box<[Context]>,
    /// Belongings of threads that have ended.
    #[expect(clippy::vec_box, reason = "they go from context to context as they are")]
    spare: Lock<Vec<Box<Thread>>>,
    closed: AtomicBool,
    /// The process of the thread that closed it.
    closer: AtomicU32,
    /// Whether the closer is there, if that cannot be told.
    of_closer: Doubt,
    /// The same of one thread inside, by its context's place and count.
    of_inside: Doubt,
    /// Longest prefetch window of a thread.
    longest: u32,
}

// SAFETY: `thread` is accessed only by the thread that made `inside` odd.
unsafe impl Sync for Context {}
// SAFETY: as above.
unsafe impl Send for Context {}

/// Proof that the calling thread is in the pager.
pub struct Inside<'a> {
    context: &'a Context,
    /// The thread's belongings.
    pub thread: &'a mut Thread,
}

fn thread_pointer() -> usize {
    let tp: usize;
    // SAFETY: %fs:0 holds the thread pointer itself (x86-64 ELF TLS ABI).
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) tp, options(nostack, readonly, preserves_flags)) };
    tp
}

impl Threads {
    /// No contexts yet; prefetch windows of at most `longest` pages.
    pub fn new(longest: u32) -> Threads {
        let contexts = (0..CONTEXTS)
            .map(|_| Context {
                owner: AtomicUsize::new(0),
                inside: AtomicU32::new(0),
                name: AtomicU32::new(NOBODY),
                thread: UnsafeCell::new(None),
            })
            .collect();
        let (closed, closer) = (AtomicBool::new(false), AtomicU32::new(NOBODY));
        let (of_closer, of_inside) = (Doubt::new(), Doubt::new());
        Threads { contexts, spare: Lock::new(Vec::new()), closed, closer, of_closer, of_inside, longest }
    }

    /// Enters the pager, waiting while a fork is under way.
    #[inline]
    pub fn enter(&self) -> Inside<'_> {
        self.enter_as(thread_pointer())
    }

    /// Where to look for a thread pointer's context.
    #[inline]
    fn places(&self, tp: usize) -> impl Iterator<Item = &Context> {
        // Thread pointers are at least 64 bytes apart; multiplicative hashing spreads them.
        let home = (tp >> 6).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52;
        (0..CONTEXTS).map(move |step| &self.contexts[(home + step) % CONTEXTS])
    }

    #[inline]
    fn enter_as(&self, tp: usize) -> Inside<'_> {
        loop {
            let mut free = None;
            for context in self.places(tp) {
                let owner = context.owner.load(Ordering::Relaxed);
                // Two raw clones may share a thread pointer. If the other one is inside, this
                // thread takes the next context.
                if owner == tp && self.try_enter(context) {
                    return self.admitted(context);
                }
                if owner <= GIVEN_BACK && free.is_none() {
                    free = Some((context, owner));
                }
                if owner == 0 {
                    break;
                }
            }
            if let Some((context, owner)) = free {
                if context.owner.compare_exchange(owner, tp, Ordering::Relaxed, Ordering::Relaxed).is_ok()
                    && self.try_enter(context)
                {
                    return self.admitted(context);
                }
                continue;
            }
            // More threads at once than there are contexts: borrow any.
            if let Some(context) = self.contexts.iter().find(|c| self.try_enter(c)) {
                return self.admitted(context);
            }
            yield_cpu();
        }
    }

    /// The calling thread ends, and will not enter again. Its context and its belongings may be the
    /// next thread's.
    pub fn leave(&self) {
        self.leave_as(thread_pointer());
    }

    fn leave_as(&self, tp: usize) {
        for context in self.places(tp) {
            let owner = context.owner.load(Ordering::Relaxed);
            if owner == 0 {
                break;
            }
            // The entry fails if another thread with the same thread pointer is inside. The context
            // is then left to it.
            if owner == tp && self.try_enter(context) {
                self.spare.lock().extend(context.take());
                context.owner.store(GIVEN_BACK, Ordering::Relaxed);
                context.leave();
            }
        }
    }

    #[inline]
    fn try_enter(&self, context: &Context) -> bool {
        loop {
            let outside = context.inside.load(Ordering::Relaxed);
            let enters = || context.inside.compare_exchange(outside, outside + 1, Ordering::SeqCst, Ordering::Relaxed);
            if is_in(outside) || enters().is_err() {
                return false;
            }
            // SeqCst on both sides: either this thread sees `closed`, or the closer sees `inside`.
            if !self.closed.load(Ordering::SeqCst) {
                context.name.store(members::own_name(), Ordering::Relaxed);
                return true;
            }
            context.leave();
            self.wait_for_closer();
        }
    }

    #[inline]
    fn admitted<'a>(&'a self, context: &'a Context) -> Inside<'a> {
        // SAFETY: `inside` is ours, so is the cell.
        let slot = unsafe { &mut *context.thread.get() };
        Inside { context, thread: slot.get_or_insert_with(|| self.thread()) }
    }

    #[cold]
    fn thread(&self) -> Box<Thread> {
        let spare = self.spare.lock().pop();
        spare.unwrap_or_else(|| Thread::boxed(self.longest))
    }

    /// Keeps other threads out and waits until those inside have left. `own` stays in.
    pub fn close(&self, own: &Inside<'_>) {
        while self.closed.swap(true, Ordering::SeqCst) {
            // Another thread forks. Step aside, so that it does not wait for us.
            own.context.name.store(NOBODY, Ordering::Relaxed);
            own.context.inside.fetch_add(1, Ordering::SeqCst);
            self.wait_for_closer();
            while !own.context.enter_again() {
                yield_cpu();
            }
            own.context.name.store(members::own_name(), Ordering::Relaxed);
        }
        self.closer.store(members::own_name(), Ordering::Relaxed);
        let mut rounds = 0;
        for context in &self.contexts {
            while !std::ptr::eq(context, own.context) && is_in(context.inside.load(Ordering::SeqCst)) {
                sleep_ns(5_000);
                self.look_at_times(&mut rounds);
            }
        }
    }

    /// Waits while another thread forks.
    fn wait_for_closer(&self) {
        let mut rounds = 0;
        while self.closed.load(Ordering::Relaxed) {
            sleep_ns(20_000);
            self.look_at_times(&mut rounds);
        }
    }

    /// Counts a round of a wait that sleeps some microseconds each time. Every [`LOOK_ROUNDS`]
    /// rounds it checks that the awaited threads exist ([`Threads::look`]).
    pub fn look_at_times(&self, rounds: &mut u32) {
        *rounds = rounds.wrapping_add(1);
        if rounds.is_multiple_of(LOOK_ROUNDS) {
            self.look();
        }
    }

    /// Ends the process if a thread that is in the pager, or has closed it, is gone with its
    /// process. If that cannot be told of some threads inside, one of them is watched, until it
    /// leaves or has been inside for too long; then another.
    #[cold]
    pub fn look(&self) {
        let watched = self.of_inside.of();
        let (mut still, mut next, mut first) = (None, None, None);
        for (place, context) in self.contexts.iter().enumerate() {
            let seen = context.inside.load(Ordering::Acquire);
            let name = context.name.load(Ordering::Acquire);
            // If the count has changed, the thread has left, and the name may be its successor's.
            if is_in(seen) && context.inside.load(Ordering::Acquire) == seen && !members::is_there(name) {
                let of = (place as u64) << 32 | u64::from(seen);
                first = first.or(Some((name, of)));
                if of == watched {
                    still = Some((name, of));
                } else if next.is_none() && of >> 32 > watched >> 32 {
                    next = Some((name, of));
                }
            }
        }
        match still.or(next).or(first) {
            Some((name, of)) => members::is_doubtful(&self.of_inside, name, of),
            None => self.of_inside.clear(),
        }
        if self.closed.load(Ordering::Acquire) {
            // Each closing ends by clearing the doubt: two are told apart so.
            members::judge(&self.of_closer, self.closer.load(Ordering::Relaxed), 0);
        }
    }

    /// Waits until every thread that is in the pager now has left it once, but at most `within_ns`.
    /// Returns whether all have left. The caller must not be in the pager.
    pub fn all_leave_once(&self, within_ns: u64) -> bool {
        let until = now_ns() + within_ns;
        self.contexts.iter().all(|context| {
            // SeqCst: a thread that enters after this look sees all that the caller published
            // before.
            let seen = context.inside.load(Ordering::SeqCst);
            loop {
                if !is_in(seen) || context.inside.load(Ordering::SeqCst) != seen {
                    return true;
                }
                if now_ns() > until {
                    return false;
                }
                sleep_ns(20_000);
            }
        })
    }

    /// Lets others in again.
    pub fn open(&self) {
        self.closer.store(NOBODY, Ordering::Relaxed);
        self.of_closer.clear();
        self.closed.store(false, Ordering::SeqCst);
    }

    /// In a forked child, where only the calling thread exists: forgets every thread's queue pairs,
    /// which belong to the parent, and threads that were on their way in. (A thread that has set
    /// `inside` after [`Threads::close`] looked takes it back in the parent alone.)
    pub fn forget_links(&self, own: &mut Inside<'_>) {
        own.context.name.store(members::own_name(), Ordering::Relaxed);
        own.thread.forget_links();
        self.spare.lock().iter_mut().for_each(|thread| thread.forget_links());
        for context in &self.contexts {
            if !std::ptr::eq(context, own.context) {
                // No other thread exists in the child, so the context is ours.
                if let Some(mut thread) = context.take() {
                    thread.forget_links();
                    self.spare.lock().push(thread);
                }
                if context.owner.load(Ordering::Relaxed) != 0 {
                    context.owner.store(GIVEN_BACK, Ordering::Relaxed);
                }
                context.inside.store(0, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        if farmem_fabric::any_away() {
            self.thread.lane.leave_away();
        }
        self.context.leave();
    }
}
