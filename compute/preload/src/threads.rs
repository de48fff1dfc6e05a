//! The record that the runtime keeps for each thread of the program, and how a thread gets it.
//!
//! A thread finds its record by the thread pointer (`%fs:0`). A thread-local would be read through
//! a table that glibc allocates with the program's malloc, hence from far memory.
//!
//! A thread that ends gives back its record and its alternate stack. If its last call is not seen,
//! both go to the next thread at its thread pointer (glibc reuses stacks). A raw clone without a
//! thread pointer of its own uses the record of the thread that made it. The record still belongs
//! to that thread.

mod alternate;
pub mod claim;
pub mod create;
mod kept;
pub mod notes;
pub mod pinned;

pub use alternate::{ALTERNATE_BYTES, RETURN_BYTES};
pub use kept::{Info, Kept};

use claim::Claim;
use notes::Held;
use pinned::Pinned;

use crate::near_stack;
use crate::process::pager;
use crate::signals::waiting::Wait;
use farmem_pager::ending;
use farmem_run::exit;
use farmem_sys::members;
use farmem_sys::raw::{SignalsBlocked, syscall};
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Records: one more than there can be threads at once. A thread's stack and its guard are two
/// mappings, and Linux by default allows a process twice this many.
pub const RECORDS: usize = 1 << RECORDS_SHIFT;
/// See [`RECORDS`]. The assembly in [`crate::sites`] relies on it, on [`HASH`], and on the order of
/// [`places`].
pub const RECORDS_SHIFT: u32 = 15;
/// Spreads thread pointers over the records.
pub const HASH: usize = 0x9E37_79B9_7F4A_7C15;
/// The owner of a record that was given back. No thread pointer has this value. It is not 0,
/// because a search ends at 0, and other threads' records may lie behind. If none does, the owner
/// becomes 0 again: otherwise, after enough threads, no search would end.
const GIVEN_BACK: usize = 1;
/// Held while owners change. Otherwise an owner could become 0 while a record behind it is taken,
/// and hide that record from its thread. A thread that looks for its own record needs no lock,
/// because no owner on the way to it is 0.
///
/// The holder blocks all signals, SIGBUS and SIGSYS too: other processes may send them, and their
/// handlers look for the record. It calls nothing that could fault.
static CHANGES: Lock<()> = Lock::new(());
/// Records that have owners.
static OWNED: AtomicUsize = AtomicUsize::new(0);
/// A bit for each record that ever had an owner, so that a forked child looks at these only.
static EVER: [AtomicU64; RECORDS / 64] = [const { AtomicU64::new(0) }; RECORDS / 64];

/// In [`Record::serving`]: the thread serves a fault, and knows that no other process shares this
/// memory.
const SERVES: usize = 1;
const UNNAMED: usize = members::UNNAMED as usize;

const CALLS: usize = 1;
const TRAPPED: usize = 2;

/// Whether the calling thread is the process's first.
pub fn is_first() -> bool {
    own_number() == farmem_sys::raw::getpid() as usize
}

fn own_number() -> usize {
    // SAFETY: no pointers.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) as usize }
}

/// Whether the calling thread is the process's first, and the program has no other.
pub fn is_only_one() -> bool {
    is_first() && farmem_sys::thread::others() == Some(0)
}

/// One thread's record. Only its own thread uses its fields, except `owner` and `notes`.
pub struct Record {
    owner: AtomicUsize,
    /// The thread's number (`gettid`). Threads that share its thread pointer have other numbers.
    number: AtomicUsize,
    /// Which of the runtime's signals (SIGBUS, SIGSYS) the program believes it has blocked.
    pub hidden: AtomicUsize,
    /// … and which of those were sent to it meanwhile.
    pub pending: AtomicUsize,
    /// … and for which it waits ([`crate::signals::blocked`]).
    pub awaits: AtomicUsize,
    /// The near alternate stack; 0 before it has one.
    pub alternate: AtomicUsize,
    /// The alternate stack that the program asked for: address, size (0: none).
    pub asked_at: AtomicUsize,
    /// See `asked_at`; with [`crate::signals::stacks::DISARMS`] if so.
    pub asked_size: AtomicUsize,
    /// The last far address whose fault the pager refused.
    pub refused: AtomicUsize,
    /// The signal mask of the program's handler that is being entered.
    pub handler_mask: AtomicUsize,
    /// A call that waits with a mask of its own.
    pub wait: Wait,
    /// Non-zero while the thread serves a fault: [`SERVES`], or its name ([`members::own_name`]).
    pub serving: AtomicUsize,
    /// Non-zero while the thread holds the table of the program's signal actions.
    pub at_actions: AtomicUsize,
    /// Signals that came while `serving` was set, and wait for its end.
    pub kept: Kept,
    /// Where the program's stack is while a trapped call of its is served.
    pub trapped_at: AtomicUsize,
    /// See [`Record::without_traps`].
    untrapped: AtomicUsize,
    /// A `stack_t` that describes the part of the near alternate stack that is left
    /// ([`Record::narrower`]).
    narrower: [AtomicUsize; 3],
    /// Near memory for the strings of an exec.
    pub scratch: AtomicUsize,
    /// The length of `scratch`, bytes.
    pub scratch_len: AtomicUsize,
    /// What the thread claims for a long write that is under way.
    pub claim: Claim,
    /// Notes of other calls that are under way, made by this thread or by threads that share its
    /// thread pointer.
    pub notes: Held,
    /// What is local of its far stack.
    pub pinned: Pinned,
    /// The lowest address that is known to belong to the thread's own stack; 0: none is known. The
    /// stack's highest address is near the thread pointer.
    stack_from: AtomicUsize,
    /// Where [`crate::sites`] keeps the libc call that the runtime is making for the thread. 0:
    /// there is none, or a handler of the program has interrupted it.
    pub site: AtomicUsize,
    /// Where the runtime was when libc's cancellation handler interrupted the thread. 0: none did,
    /// or it has returned.
    pub cancelled_at: AtomicUsize,
}

impl Record {
    /// The offset of `owner` in a record.
    pub const OWNER_AT: usize = std::mem::offset_of!(Record, owner);

    const fn new() -> Record {
        const fn zero() -> AtomicUsize {
            AtomicUsize::new(0)
        }
        Record {
            owner: zero(),
            number: zero(),
            hidden: zero(),
            pending: zero(),
            awaits: zero(),
            alternate: zero(),
            asked_at: zero(),
            asked_size: zero(),
            refused: zero(),
            handler_mask: zero(),
            wait: Wait::new(),
            serving: zero(),
            at_actions: zero(),
            kept: Kept::new(),
            trapped_at: zero(),
            untrapped: zero(),
            narrower: [zero(), zero(), zero()],
            scratch: zero(),
            scratch_len: zero(),
            claim: Claim::new(),
            notes: Held::new(),
            pinned: Pinned::new(),
            stack_from: zero(),
            site: zero(),
            cancelled_at: zero(),
        }
    }

    /// Clears what a former thread has left in the record.
    fn clean(&self, hidden: usize) {
        self.hidden.store(hidden, Ordering::Relaxed);
        let fields = [&self.pending, &self.asked_at, &self.asked_size, &self.refused, &self.serving];
        let more =
            [&self.kept.signal, &self.at_actions, &self.stack_from, &self.site, &self.cancelled_at, &self.awaits];
        fields.iter().chain(&more).for_each(|field| field.store(0, Ordering::Relaxed));
        self.wait.forget();
    }

    /// Takes over what the same thread had in another record, by another thread pointer: the kernel
    /// keeps its alternate stack and its mask.
    fn take_from(&self, other: &Record) {
        let fields: [fn(&Record) -> &AtomicUsize; 7] = [
            |of| &of.alternate,
            |of| &of.hidden,
            |of| &of.pending,
            |of| &of.asked_at,
            |of| &of.asked_size,
            |of| &of.scratch,
            |of| &of.scratch_len,
        ];
        fields.iter().for_each(|of| of(self).store(of(other).swap(0, Ordering::Relaxed), Ordering::Relaxed));
    }

    /// Whether the thread serves a fault. A vfork child uses its parent's record. If it was killed
    /// in a fault, its name still stands there, and is cleared.
    pub fn is_serving(&self) -> bool {
        let name = self.serving.load(Ordering::Relaxed);
        let own = matches!(name, SERVES | UNNAMED) || name != 0 && name == members::own_name() as usize;
        if name != 0 && !own {
            self.serving.store(0, Ordering::Relaxed);
        }
        own
    }

    /// Makes a call that the program's filter may trap, at a moment when the program's handler must
    /// not run. `None`: the filter has trapped the call, so it was not made.
    pub fn without_traps(&self, call: impl FnOnce() -> isize) -> Option<isize> {
        self.untrapped.store(CALLS, Ordering::Relaxed);
        let ret = call();
        (self.untrapped.swap(0, Ordering::Relaxed) == CALLS).then_some(ret)
    }

    /// For the handler of SIGSYS: whether the trapped call was made by [`Record::without_traps`].
    /// Notes for that call that it was trapped.
    pub fn holds_traps(&self) -> bool {
        self.untrapped.load(Ordering::Relaxed) != 0 && {
            self.untrapped.store(TRAPPED, Ordering::Relaxed);
            true
        }
    }

    /// Where far signal frames are copied before the kernel reads them.
    pub fn return_area(&self) -> usize {
        self.alternate.load(Ordering::Relaxed) + ALTERNATE_BYTES
    }

    /// The address of a `stack_t` that describes the first `size` bytes of the near alternate
    /// stack.
    pub fn narrower(&self, size: usize) -> usize {
        for (field, value) in self.narrower.iter().zip([self.alternate.load(Ordering::Relaxed), 0, size]) {
            field.store(value, Ordering::Relaxed);
        }
        self.narrower.as_ptr() as usize
    }

    /// Whether the record belongs to the calling thread, and not to another one with the same
    /// thread pointer.
    pub fn is_of_caller(&self) -> bool {
        self.number.load(Ordering::Relaxed) == own_number()
    }

    /// Whether an address lies on the alternate stack that the program asked for.
    pub fn is_asked(&self, addr: usize) -> bool {
        let size = self.asked_size.load(Ordering::Relaxed) & !crate::signals::stacks::DISARMS;
        addr.wrapping_sub(self.asked_at.load(Ordering::Relaxed)) < size
    }

    /// Whether an address lies on the near alternate stack.
    pub fn is_alternate(&self, addr: usize) -> bool {
        let at = self.alternate.load(Ordering::Relaxed);
        at != 0 && addr.wrapping_sub(at) < ALTERNATE_BYTES
    }
}

/// The records of all threads, found by the thread pointer ([`current`]).
pub static RECORDS_OF_THREADS: [Record; RECORDS] = [const { Record::new() }; RECORDS];

fn thread_pointer() -> usize {
    let tp: usize;
    // SAFETY: %fs:0 holds the thread pointer itself (x86-64 ELF TLS ABI).
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) tp, options(nostack, readonly, preserves_flags)) };
    tp
}

/// The calling thread's record.
///
/// A thread pointer never has two records: before a thread takes one, it looks at every place where
/// an older one could be. Only its own thread looks for it (a vfork child's parent waits
/// meanwhile).
#[inline]
pub fn current() -> &'static Record {
    let tp = thread_pointer();
    let record = &RECORDS_OF_THREADS[home(tp)];
    if record.owner.load(Ordering::Relaxed) == tp { record } else { search(tp) }
}

/// Where the search for a thread pointer's record begins.
#[inline]
fn home(tp: usize) -> usize {
    (tp >> 6).wrapping_mul(HASH) >> (64 - RECORDS_SHIFT)
}

fn search(tp: usize) -> &'static Record {
    if let Some(found) = find(&RECORDS_OF_THREADS, tp) {
        return found;
    }
    let number = own_number();
    let _signals = SignalsBlocked::all();
    let _changes = CHANGES.lock();
    // A signal handler may have taken one before the lock was held.
    if let Some(found) = find(&RECORDS_OF_THREADS, tp) {
        return found;
    }
    // `create::thread` limits the number of threads. Only raw clones can exceed it.
    let Some(index) = claim(&RECORDS_OF_THREADS, tp) else {
        ending::die(exit::BROKEN, "too many threads at once for farmem")
    };
    EVER[index / 64].fetch_or(1 << (index % 64), Ordering::Relaxed);
    let record = &RECORDS_OF_THREADS[index];
    record.number.store(number, Ordering::Relaxed);
    OWNED.fetch_add(1, Ordering::Relaxed);
    record
}

/// The places where a search for a thread pointer looks, in this order, until it finds an owner of
/// 0.
fn places(tp: usize) -> impl Iterator<Item = usize> {
    let home = home(tp);
    (0..RECORDS).map(move |step| (home + step) % RECORDS)
}

fn find(records: &[Record; RECORDS], tp: usize) -> Option<&Record> {
    let owners = places(tp).map(|at| (at, records[at].owner.load(Ordering::Relaxed)));
    owners.take_while(|&(_, owner)| owner != 0).find(|&(_, owner)| owner == tp).map(|(at, _)| &records[at])
}

/// Takes a record for a thread pointer that has none. The caller holds [`CHANGES`].
fn claim(records: &[Record; RECORDS], tp: usize) -> Option<usize> {
    let free = places(tp).find(|&at| records[at].owner.load(Ordering::Relaxed) <= GIVEN_BACK)?;
    records[free].owner.store(tp, Ordering::Relaxed);
    Some(free)
}

/// Gives a record back. The caller holds [`CHANGES`].
fn leave(records: &[Record; RECORDS], index: usize) {
    let owner = |at: usize| &records[at % RECORDS].owner;
    owner(index).store(GIVEN_BACK, Ordering::Relaxed);
    // Records before an owner of 0 may become 0 themselves: a search would end there anyway.
    let mut at = index;
    while owner(at + 1).load(Ordering::Relaxed) == 0 && owner(at).load(Ordering::Relaxed) == GIVEN_BACK {
        owner(at).store(0, Ordering::Relaxed);
        at = (at + RECORDS - 1) % RECORDS;
    }
}

/// The number of another thread whose record is as wanted.
pub fn other(own: &Record, is_wanted: impl Fn(&Record) -> bool) -> Option<usize> {
    let found = ever().find(|record| {
        !std::ptr::eq(*record, own) && record.owner.load(Ordering::Relaxed) > GIVEN_BACK && is_wanted(record)
    });
    found.map(|record| record.number.load(Ordering::Relaxed)).filter(|&number| number != 0)
}

/// Calls `act` with each thread's record.
pub fn each(act: impl Fn(&Record)) {
    ever().filter(|record| record.owner.load(Ordering::Relaxed) > GIVEN_BACK).for_each(act);
}

/// The records that ever had an owner.
fn ever() -> impl Iterator<Item = &'static Record> {
    EVER.iter().enumerate().flat_map(|(i, word)| {
        let word = word.load(Ordering::Relaxed);
        (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| &RECORDS_OF_THREADS[i * 64 + bit])
    })
}

/// Takes [`CHANGES`] before a fork. [`release_after_fork`] follows in parent and child.
pub fn hold_across_fork() {
    CHANGES.hold_across_fork();
}

/// See [`hold_across_fork`].
pub fn release_after_fork() {
    CHANGES.release_after_fork();
}

/// Makes the calling thread ready for faults: gives it a near alternate stack, and clears what a
/// former thread has left.
///
/// If there is no memory for the stack, the thread goes on: it needs one only while it runs on a
/// far stack.
pub fn begin(hidden: usize) {
    let record = current();
    record.claim.release();
    record.clean(hidden);
    // The number may still be that of a thread whose end was not seen.
    record.number.store(own_number(), Ordering::Relaxed);
    if record.alternate.load(Ordering::Relaxed) == 0
        && let Some(at) = alternate::take()
    {
        record.alternate.store(at, Ordering::Relaxed);
    }
    let at = record.alternate.load(Ordering::Relaxed);
    if at != 0 {
        let stack = libc::stack_t { ss_sp: at as *mut _, ss_flags: 0, ss_size: ALTERNATE_BYTES };
        // SAFETY: memory that is never freed; the structure is live.
        unsafe { syscall(libc::SYS_sigaltstack, [&stack as *const _ as usize, 0, 0, 0, 0, 0]) };
    }
}

/// The calling thread was made with a stack of at least `bytes` bytes.
fn has_stack(bytes: usize) {
    /// More than the distance from the thread pointer to the stack's top, whatever the alignment of
    /// thread-locals.
    const ABOVE: usize = 16 << 10;
    if bytes > ABOVE {
        current().stack_from.store(thread_pointer() + ABOVE - bytes, Ordering::Relaxed);
    }
}

/// Gives back the record and the alternate stack of the calling thread. It is about to end by a
/// call that no filter refuses, and all its signals are blocked.
///
/// If it runs on that stack, it keeps both: the kernel then refuses to disable the stack. If the
/// record belongs to another thread with the same thread pointer, nothing is given back.
///
/// Without a record the thread keeps SIGBUS and SIGSYS blocked to its end: a handler would take a
/// record that is never given back. So the thread must not touch far memory any more.
pub fn end() {
    let record = current();
    if !record.is_of_caller() {
        return;
    }
    record.claim.release();
    let tp = thread_pointer();
    let from = match record.stack_from.load(Ordering::Relaxed) {
        0 => tp,
        from => from.min(tp),
    };
    record.notes.end(|at| record.is_alternate(at), from..tp);
    record.pinned.end(own_number(), tp);
    near_stack::abandon(record.cancelled_at.swap(0, Ordering::Relaxed));
    pager().house.thread_is_gone();
    let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: the structure is live.
    let left = unsafe { syscall(libc::SYS_sigaltstack, [&raw const none as usize, 0, 0, 0, 0, 0]) };
    if left == 0 {
        let signals = SignalsBlocked::all();
        give_back(record, &signals);
        std::mem::forget(signals);
    }
}

fn give_back(record: &Record, _all: &SignalsBlocked) {
    let alternate = record.alternate.swap(0, Ordering::Relaxed);
    if alternate != 0 {
        alternate::put(alternate);
    }
    record.clean(0);
    record.claim.forget();
    let _changes = CHANGES.lock();
    // SAFETY: of the same array.
    let index = unsafe { std::ptr::from_ref(record).offset_from(RECORDS_OF_THREADS.as_ptr()) } as usize;
    leave(&RECORDS_OF_THREADS, index);
    OWNED.fetch_sub(1, Ordering::Relaxed);
}

/// In a forked child, where the calling thread is the only one: gives its record its new number,
/// and gives all other records back. `forker` is the record of the parent's thread that forked. It
/// may be another record, because a clone can set a new thread pointer.
pub fn forget_in_child(forker: &Record) {
    let own = current();
    own.number.store(own_number(), Ordering::Relaxed);
    if !std::ptr::eq(own, forker) {
        own.take_from(forker);
    }
    own.claim.forget();
    own.serving.store(0, Ordering::Relaxed);
    // A handler may have forked during a call, whose notes are void in the child. Another thread
    // may have been changing its notes.
    own.notes.forget();
    forker.notes.forget();
    own.pinned.forget();
    pinned::forget_left();
    // The interrupted stack is free in the child, or already another's ([`near_stack::forget_in_child`]).
    own.cancelled_at.store(0, Ordering::Relaxed);
    if OWNED.load(Ordering::Relaxed) == 1 {
        return;
    }
    let signals = SignalsBlocked::all();
    for record in ever() {
        if !std::ptr::eq(record, own) && record.owner.load(Ordering::Relaxed) > GIVEN_BACK {
            record.notes.forget();
            record.pinned.forget();
            give_back(record, &signals);
        }
    }
    // Set, not counted down: a thread of the parent may have taken a record and not counted it yet.
    OWNED.store(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeroed() -> Box<[Record; RECORDS]> {
        // SAFETY: atomics: zero is valid.
        unsafe { Box::<[Record; RECORDS]>::new_zeroed().assume_init() }
    }

    /// More thread pointers than there are records come one after the other, and some stay. Each
    /// finds its own record, and no two have the same. When all have gone, no place is left at
    /// which a search would go on.
    #[test]
    fn records_that_are_given_back_leave_no_trace() {
        let records = zeroed();
        let tp = |n: usize| 0x7f00_0000_0000 + n * 0x2_1040;
        let mut there = std::collections::VecDeque::new();
        for n in 0..3 * RECORDS {
            assert!(find(&records, tp(n)).is_none());
            there.push_back((tp(n), claim(&records, tp(n)).unwrap()));
            for _ in 0..if n % 5000 < 2500 { 0 } else { 2 } {
                // Not in the order in which they came.
                let Some((gone, at)) = (if n % 3 == 0 { there.pop_back() } else { there.pop_front() }) else { break };
                assert!(std::ptr::eq(find(&records, gone).unwrap(), &records[at]));
                leave(&records, at);
                assert!(find(&records, gone).is_none());
            }
            while there.len() > RECORDS / 2 {
                leave(&records, there.pop_front().unwrap().1);
            }
        }
        for (own, at) in there {
            assert!(std::ptr::eq(find(&records, own).unwrap(), &records[at]));
            leave(&records, at);
        }
        assert!(records.iter().all(|record| record.owner.load(Ordering::Relaxed) == 0));
    }
}
