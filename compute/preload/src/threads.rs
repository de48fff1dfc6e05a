//! What the runtime keeps for each thread of the program, and how a thread gets it.
//!
//! Found by the thread pointer (`%fs:0`): a thread-local would be read through a
//! table that glibc allocates with the program's malloc, hence from far memory. A
//! record is never freed: threads come and go at the same thread pointers (glibc
//! reuses their stacks), and the next thread there takes it over, alternate stack
//! included. So there are as many records as threads ever were at once.

use crate::near;
use crate::process::{pager, started};
use crate::signals::masks;
use farmem_protocol::addr::is_far;
use farmem_sys::holdings::reserve;
use farmem_sys::raw::{SignalsBlocked, syscall};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads at once; those beyond share the last record, which costs them virtual masks of their own.
const RECORDS: usize = 8192;

/// Bytes of a thread's near alternate stack: frames of a fault (3 KiB with AVX-512), the pager's
/// depth, and trapped system calls with handlers nested in them.
pub const ALTERNATE_BYTES: usize = 128 << 10;
const _: () = assert!(size_of::<libc::stack_t>() == 24 && std::mem::offset_of!(libc::stack_t, ss_size) == 16);
/// Behind the alternate stack: where a signal frame that lies far is copied for the kernel to read.
pub const RETURN_BYTES: usize = 16 << 10;

const HOLDS: usize = 1;
const HELD: usize = 2;

/// Whether the calling thread is the process's first and the program has no other.
pub fn is_only_one() -> bool {
    // SAFETY: no pointers.
    let me = unsafe { syscall(libc::SYS_gettid, [0; 6]) };
    me as u32 == farmem_sys::raw::getpid() && farmem_sys::thread::others() == Some(0)
}

/// One thread's record. All fields are its own thread's, but for `owner`.
pub struct Record {
    owner: AtomicUsize,
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
            hidden: zero(),
            pending: zero(),
            alternate: zero(),
            asked_at: zero(),
            asked_size: zero(),
            refused: zero(),
            handler_mask: zero(),
            serving: zero(),
            trapped_at: zero(),
            held: zero(),
            narrower: [zero(), zero(), zero()],
            scratch: zero(),
            scratch_len: zero(),
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
pub fn current() -> &'static Record {
    let tp = thread_pointer();
    let home = (tp >> 6).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 51;
    for step in 0..RECORDS - 1 {
        let record = &RECORDS_OF_THREADS[(home + step) % (RECORDS - 1)];
        let owner = record.owner.load(Ordering::Relaxed);
        if owner == tp
            || owner == 0 && record.owner.compare_exchange(0, tp, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            return record;
        }
    }
    &RECORDS_OF_THREADS[RECORDS - 1]
}

/// Makes the calling thread ready for faults: a near alternate stack, nothing left of a predecessor.
///
/// Without memory for the stack the thread goes on: it needs one only when it runs on a far stack.
pub fn begin(hidden: usize) {
    let record = current();
    record.hidden.store(hidden, Ordering::Relaxed);
    for field in [&record.pending, &record.asked_at, &record.asked_size, &record.refused, &record.serving] {
        field.store(0, Ordering::Relaxed);
    }
    if record.alternate.load(Ordering::Relaxed) == 0
        && let Ok(at) = reserve(ALTERNATE_BYTES + RETURN_BYTES)
    {
        record.alternate.store(at as usize, Ordering::Relaxed);
    }
    let at = record.alternate.load(Ordering::Relaxed);
    if at != 0 {
        let stack = libc::stack_t { ss_sp: at as *mut _, ss_flags: 0, ss_size: ALTERNATE_BYTES };
        // SAFETY: memory that is never freed; the structure is live.
        unsafe { syscall(libc::SYS_sigaltstack, [&stack as *const _ as usize, 0, 0, 0, 0, 0]) };
    }
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
