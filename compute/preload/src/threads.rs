//! What the runtime keeps for each thread of the program, and how a thread gets it.
//!
//! Found by the thread pointer (`%fs:0`): a thread-local would be read through a
//! table that glibc allocates with the program's malloc, hence from far memory. A
//! thread gives its record back when it ends, and its alternate stack; one that
//! ends by a call that is not seen leaves both to the next at its thread pointer
//! (glibc reuses stacks). A raw clone without a thread pointer of its own shares
//! the record of the thread that made it, which remains that thread's.

use crate::near;
use crate::process::{pager, started};
use crate::signals::masks;
use farmem_pager::ending;
use farmem_protocol::addr::is_far;
use farmem_protocol::exit;
use farmem_sys::holdings::Lots;
use farmem_sys::raw::{SignalsBlocked, syscall};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Threads at once, one more than can be. Two for a mapping of each (a stack and its guard) come to as many as Linux
/// allows a process unless told otherwise.
const RECORDS: usize = 1 << RECORDS_SHIFT;
const RECORDS_SHIFT: u32 = 15;
/// A record's owner that was, and is none: nobody's thread pointer. Not 0, at which a search ends: others may lie behind.
const GIVEN_BACK: usize = 1;
/// Records that have owners.
static OWNED: AtomicUsize = AtomicUsize::new(0);
/// A bit for each record that ever had one, so that a forked child looks at these only.
static EVER: [AtomicU64; RECORDS / 64] = [const { AtomicU64::new(0) }; RECORDS / 64];

/// Bytes of a thread's near alternate stack: frames of a fault (3 KiB with AVX-512), the pager's
/// depth, and trapped system calls with handlers nested in them.
pub const ALTERNATE_BYTES: usize = 128 << 10;
const _: () = assert!(size_of::<libc::stack_t>() == 24 && std::mem::offset_of!(libc::stack_t, ss_size) == 16);
/// Behind the alternate stack: where a signal frame that lies far is copied for the kernel to read.
pub const RETURN_BYTES: usize = 16 << 10;

/// New alternate stacks.
static STACKS: Lots = Lots::new(ALTERNATE_BYTES + RETURN_BYTES);
/// Those of threads that have ended: the page number of the last, and below it a count of changes, which tells a stack
/// that was taken and came back meanwhile. Never torn, so that a forked child may use it.
static SPARE: AtomicU64 = AtomicU64::new(0);
const COUNT_BITS: u32 = 29;
/// Where a spare stack names the next: at its top, which is touched already.
const NEXT_SPARE: usize = ALTERNATE_BYTES - 64;

const HOLDS: usize = 1;
const HELD: usize = 2;

/// Whether the calling thread is the process's first.
pub fn is_first() -> bool {
    own_number() == farmem_sys::raw::getpid() as usize
}

fn own_number() -> usize {
    // SAFETY: no pointers.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) as usize }
}

/// A spare stack and the count after another one, as [`SPARE`] has them.
fn after(seen: u64, at: usize) -> u64 {
    (at as u64 >> 12) << COUNT_BITS | seen.wrapping_add(1) & ((1 << COUNT_BITS) - 1)
}

fn spare(word: u64) -> usize {
    ((word >> COUNT_BITS) << 12) as usize
}

/// Keeps a near alternate stack for the next thread.
fn put_spare(at: usize) {
    // SAFETY: a stack of ours that is nobody's; those that still look at its word take what they see for a guess.
    let next = unsafe { AtomicUsize::from_ptr((at + NEXT_SPARE) as *mut usize) };
    let mut seen = SPARE.load(Ordering::Relaxed);
    loop {
        next.store(spare(seen), Ordering::Relaxed);
        let now = after(seen, at);
        // Release: with `take_spare`.
        match SPARE.compare_exchange_weak(seen, now, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => seen = other,
        }
    }
}

/// One of those, if there is any.
fn take_spare() -> Option<usize> {
    let mut seen = SPARE.load(Ordering::Acquire);
    loop {
        let at = spare(seen);
        if at == 0 {
            return None;
        }
        // SAFETY: never unmapped. If it is another's by now, the count has changed and the exchange fails.
        let next = unsafe { AtomicUsize::from_ptr((at + NEXT_SPARE) as *mut usize) }.load(Ordering::Relaxed);
        let now = after(seen, next);
        match SPARE.compare_exchange_weak(seen, now, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => return Some(at),
            Err(other) => seen = other,
        }
    }
}

/// … and the program has no other.
pub fn is_only_one() -> bool {
    is_first() && farmem_sys::thread::others() == Some(0)
}

/// One thread's record. All fields are its own thread's, but for `owner`.
pub struct Record {
    owner: AtomicUsize,
    /// The thread's number, which those that share its thread pointer have not.
    number: AtomicUsize,
    /// Which of the runtime's signals the program believes it has blocked.
    pub hidden: AtomicUsize,
    /// … and which of those were sent meanwhile.
    pub pending: AtomicUsize,
    /// The near alternate stack; 0 before it has one.
    pub alternate: AtomicUsize,
    /// The alternate stack that the program asked for: address, size (0: none).
    pub asked_at: AtomicUsize,
    /// See `asked_at`.
    pub asked_size: AtomicUsize,
    /// The last far address whose fault the pager refused.
    pub refused: AtomicUsize,
    /// The mask of the handler that is being entered.
    pub handler_mask: AtomicUsize,
    /// The argument of a call that waits with a mask of its own (0: none), and that mask.
    pub wait_at: AtomicUsize,
    /// See `wait_at`.
    pub wait_mask: AtomicUsize,
    /// Non-zero while the thread serves a fault.
    pub serving: AtomicUsize,
    /// Where the program's stack is while a trapped call of its is served.
    pub trapped_at: AtomicUsize,
    /// See [`Record::without_traps`].
    held: AtomicUsize,
    /// A `stack_t`: what is left of the near alternate stack.
    narrower: [AtomicUsize; 3],
    /// Near memory for the strings of an exec.
    pub scratch: AtomicUsize,
    /// Its length.
    pub scratch_len: AtomicUsize,
}

impl Record {
    const fn new() -> Record {
        const fn zero() -> AtomicUsize {
            AtomicUsize::new(0)
        }
        Record {
            owner: zero(),
            number: zero(),
            hidden: zero(),
            pending: zero(),
            alternate: zero(),
            asked_at: zero(),
            asked_size: zero(),
            refused: zero(),
            handler_mask: zero(),
            wait_at: zero(),
            wait_mask: zero(),
            serving: zero(),
            trapped_at: zero(),
            held: zero(),
            narrower: [zero(), zero(), zero()],
            scratch: zero(),
            scratch_len: zero(),
        }
    }

    /// Nothing is left of a thread before.
    fn clean(&self, hidden: usize) {
        self.hidden.store(hidden, Ordering::Relaxed);
        for field in [&self.pending, &self.asked_at, &self.asked_size, &self.refused, &self.serving, &self.wait_at] {
            field.store(0, Ordering::Relaxed);
        }
    }

    /// Makes a call that the program's filter may trap, where the program's handler must not run yet. `None`: it has
    /// trapped it, and the call is not made.
    pub fn without_traps(&self, call: impl FnOnce() -> isize) -> Option<isize> {
        self.held.store(HOLDS, Ordering::Relaxed);
        let ret = call();
        (self.held.swap(0, Ordering::Relaxed) == HOLDS).then_some(ret)
    }

    /// For the handler of SIGSYS: whether the call that was trapped is such a one. It is noted.
    pub fn holds_traps(&self) -> bool {
        self.held.load(Ordering::Relaxed) != 0 && {
            self.held.store(HELD, Ordering::Relaxed);
            true
        }
    }

    /// Where far signal frames are copied before the kernel reads them.
    pub fn return_area(&self) -> usize {
        self.alternate.load(Ordering::Relaxed) + ALTERNATE_BYTES
    }

    /// The address of a `stack_t` that says the first `size` bytes of the near alternate stack.
    pub fn narrower(&self, size: usize) -> usize {
        for (field, value) in self.narrower.iter().zip([self.alternate.load(Ordering::Relaxed), 0, size]) {
            field.store(value, Ordering::Relaxed);
        }
        self.narrower.as_ptr() as usize
    }

    /// Whether an address lies on the near alternate stack.
    pub fn is_alternate(&self, addr: usize) -> bool {
        let at = self.alternate.load(Ordering::Relaxed);
        at != 0 && addr.wrapping_sub(at) < ALTERNATE_BYTES
    }
}

static RECORDS_OF_THREADS: [Record; RECORDS] = [const { Record::new() }; RECORDS];

fn thread_pointer() -> usize {
    let tp: usize;
    // SAFETY: %fs:0 holds the thread pointer itself (x86-64 ELF TLS ABI).
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) tp, options(nostack, readonly, preserves_flags)) };
    tp
}

/// The calling thread's record.
///
/// A thread pointer never has two: who takes one has seen every place where it could have been. Only its own thread
/// looks for it (a vfork child's parent waits meanwhile).
#[inline]
pub fn current() -> &'static Record {
    let tp = thread_pointer();
    let home = (tp >> 6).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - RECORDS_SHIFT);
    let record = &RECORDS_OF_THREADS[home];
    if record.owner.load(Ordering::Relaxed) == tp { record } else { search(tp, home) }
}

fn search(tp: usize, home: usize) -> &'static Record {
    'again: loop {
        let mut free = None;
        for step in 0..RECORDS {
            let index = (home + step) % RECORDS;
            let record = &RECORDS_OF_THREADS[index];
            let owner = record.owner.load(Ordering::Relaxed);
            if owner == tp {
                return record;
            }
            if owner <= GIVEN_BACK && free.is_none() {
                free = Some((index, owner));
            }
            if owner == 0 {
                break;
            }
        }
        // More threads than `create` lets begin: by raw clones.
        let Some((index, before)) = free else { ending::die(exit::BROKEN, "too many threads at once for farmem") };
        let record = &RECORDS_OF_THREADS[index];
        // Acquire: what its last owner did to it is done.
        if record.owner.compare_exchange(before, tp, Ordering::Acquire, Ordering::Relaxed).is_err() {
            continue 'again;
        }
        EVER[index / 64].fetch_or(1 << (index % 64), Ordering::Relaxed);
        record.number.store(own_number(), Ordering::Relaxed);
        OWNED.fetch_add(1, Ordering::Relaxed);
        return record;
    }
}

/// Makes the calling thread ready for faults: a near alternate stack, nothing left of a predecessor.
///
/// Without memory for the stack the thread goes on: it needs one only when it runs on a far stack.
pub fn begin(hidden: usize) {
    let record = current();
    record.clean(hidden);
    // It may be that of a thread whose end was not seen.
    record.number.store(own_number(), Ordering::Relaxed);
    if record.alternate.load(Ordering::Relaxed) == 0
        && let Some(at) = take_spare().or_else(|| STACKS.take().ok())
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

/// The calling thread is about to end, by a call that nobody refuses; all its signals are blocked. Its record and its
/// alternate stack are the next thread's. Where it stands on that stack, it keeps both: the kernel says so. And where
/// the record is another thread's, whose thread pointer it shares, it has nothing to give back.
pub fn end() {
    let record = current();
    if record.number.load(Ordering::Relaxed) != own_number() {
        return;
    }
    let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: the structure is live.
    let left = unsafe { syscall(libc::SYS_sigaltstack, [&raw const none as usize, 0, 0, 0, 0, 0]) };
    if left == 0 {
        give_back(record);
    }
}

fn give_back(record: &Record) {
    let alternate = record.alternate.swap(0, Ordering::Relaxed);
    if alternate != 0 {
        put_spare(alternate);
    }
    record.clean(0);
    // Release: with `search`.
    record.owner.store(GIVEN_BACK, Ordering::Release);
    OWNED.fetch_sub(1, Ordering::Relaxed);
}

/// In a forked child: the calling thread is the only one, and has a new number.
pub fn forget_in_child() {
    let own = current();
    own.number.store(own_number(), Ordering::Relaxed);
    if OWNED.load(Ordering::Relaxed) == 1 {
        return;
    }
    for (i, word) in EVER.iter().enumerate() {
        let mut bits = word.load(Ordering::Relaxed);
        while bits != 0 {
            let record = &RECORDS_OF_THREADS[i * 64 + bits.trailing_zeros() as usize];
            bits &= bits - 1;
            if !std::ptr::eq(record, own) && record.owner.load(Ordering::Relaxed) > GIVEN_BACK {
                give_back(record);
            }
        }
    }
    // A thread of the parent's may have been between its record and the count.
    OWNED.store(1, Ordering::Relaxed);
}

/// A thread of the program's about to start.
#[repr(C)]
pub struct Start {
    routine: usize,
    argument: usize,
    hidden: usize,
}

/// What `thread_begin` hands to the assembly: in rax and rdx.
#[repr(C)]
pub struct Go {
    routine: usize,
    argument: usize,
}

// The program's start routine is jumped to, not called, so that no frame of ours is on the stack when
// the thread unwinds (pthread_exit, cancellation).
core::arch::global_asm!(
    ".globl farmem_thread_start",
    ".hidden farmem_thread_start",
    ".type farmem_thread_start,@function",
    "farmem_thread_start:",
    "sub rsp, 8",
    "call {begin}",
    "add rsp, 8",
    "mov rdi, rdx",
    "jmp rax",
    ".size farmem_thread_start, .-farmem_thread_start",
    begin = sym thread_begin,
);

unsafe extern "C" {
    fn farmem_thread_start(start: *mut libc::c_void) -> *mut libc::c_void;
}

unsafe extern "C" fn thread_begin(start: *mut Start) -> Go {
    let blocked = SignalsBlocked::new();
    // SAFETY: boxed by `create`, which gave it to this thread alone.
    let start = *unsafe { Box::from_raw(start) };
    begin(start.hidden);
    drop(blocked);
    // libc has set the thread's mask by a call of its own, which may not be among the patched.
    masks::open();
    Go { routine: start.routine, argument: start.argument }
}

/// libc's `pthread_create`.
pub type Create =
    unsafe extern "C" fn(*mut usize, *const libc::pthread_attr_t, usize, *mut libc::c_void) -> libc::c_int;

static REAL_CREATE: AtomicUsize = AtomicUsize::new(0);

/// Looks libc's function up, before any hook runs.
pub fn resolve() {
    // SAFETY: a lookup by name, from the constructor.
    let at = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) };
    REAL_CREATE.store(at as usize, Ordering::Release);
}

/// `pthread_create` of the program's.
///
/// # Safety
/// As libc's.
pub unsafe fn create(
    thread: *mut usize,
    attributes: *const libc::pthread_attr_t,
    routine: usize,
    argument: *mut libc::c_void,
) -> libc::c_int {
    if REAL_CREATE.load(Ordering::Acquire) == 0 {
        resolve();
    }
    let at = REAL_CREATE.load(Ordering::Acquire);
    if at == 0 {
        return libc::EAGAIN;
    }
    // SAFETY: libc's function of that name has this type.
    let real = unsafe { std::mem::transmute::<usize, Create>(at) };
    if !started() {
        // SAFETY: the caller's arguments.
        return unsafe { real(thread, attributes, routine, argument) };
    }
    // Room for those that are being made meanwhile.
    if OWNED.load(Ordering::Relaxed) > RECORDS - RECORDS / 16 {
        return libc::EAGAIN;
    }
    let start = {
        let _signals = SignalsBlocked::new();
        let hidden = current().hidden.load(Ordering::Relaxed);
        Box::into_raw(Box::new(Start { routine, argument: argument as usize, hidden }))
    };
    let mut job = Pinning { attributes: attributes as usize, stack: near::stack_pointer() };
    // On a near stack: pinning the stack one stands on would be a fault inside the pager.
    near::call(pin_far_stacks, &mut job);
    // SAFETY: the caller's arguments but for the routine, which passes control on to the program's.
    let ret = unsafe { real(thread, attributes, farmem_thread_start as *const () as usize, start.cast()) };
    near::call(unpin_own_stack, &mut job);
    masks::open();
    if ret != 0 {
        let _signals = SignalsBlocked::new();
        // SAFETY: no thread took it.
        drop(unsafe { Box::from_raw(start) });
    }
    ret
}

struct Pinning {
    attributes: usize,
    stack: usize,
}

/// Room that libc's `pthread_create` takes of its caller's stack, generously.
const CREATE_DEPTH: usize = 16 << 10;
/// What of a far thread stack is kept local: the thread's control block, in which the kernel writes
/// when the thread ends, and its first frames, before it has an alternate stack.
const TOP_OF_STACK: usize = 64 << 10;

/// `clone3` reads its arguments from the caller's stack, and the new thread starts on its own: where
/// either is far, it must be there.
extern "C" fn pin_far_stacks(job: &mut Pinning) {
    if is_far(job.stack) {
        pager().pin(job.stack - CREATE_DEPTH, CREATE_DEPTH, true);
    }
    if job.attributes != 0 {
        let (mut at, mut size) = (std::ptr::null_mut(), 0);
        // SAFETY: the program's attributes, as it gave them to libc.
        unsafe { libc::pthread_attr_getstack(job.attributes as *const _, &mut at, &mut size) };
        let (at, top) = (at as usize, size.min(TOP_OF_STACK));
        if is_far(at) {
            pager().pin(at + size - top, top, true);
        }
    }
}

extern "C" fn unpin_own_stack(job: &mut Pinning) {
    if is_far(job.stack) {
        pager().unpin(job.stack - CREATE_DEPTH, CREATE_DEPTH);
    }
}
