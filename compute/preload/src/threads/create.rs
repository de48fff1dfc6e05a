//! `pthread_create`: a thread of the program's is ready for faults before it runs anything.

use super::pinned::{self, Range};
use super::{OWNED, RECORDS, begin, current, has_stack};
use crate::near_stack;
use crate::process::{pager, started};
use crate::signals::masks;
use farmem_protocol::addr::is_far;
use farmem_sys::raw::SignalsBlocked;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A thread of the program's about to start.
#[repr(C)]
pub struct Start {
    routine: usize,
    argument: usize,
    hidden: usize,
    /// Bytes of its stack. 0: not known.
    stack: usize,
    /// What is pinned of that.
    pinned: Range,
}

/// The values that `thread_begin` hands to the assembly, in rax and rdx.
#[repr(C)]
pub struct Go {
    routine: usize,
    argument: usize,
}

// The program's start routine is jumped to, not called, so that no frame of ours is on the stack
// when the thread unwinds (pthread_exit, cancellation).
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

// SAFETY: defined by the assembly above, a thread's start routine of this form.
unsafe extern "C" {
    fn farmem_thread_start(start: *mut libc::c_void) -> *mut libc::c_void;
}

unsafe extern "C" fn thread_begin(start: *mut Start) -> Go {
    let blocked = SignalsBlocked::new();
    // SAFETY: boxed by `thread`, which gave it to this thread alone.
    let start = *unsafe { Box::from_raw(start) };
    begin(start.hidden);
    has_stack(start.stack);
    current().pinned.stack(start.pinned);
    drop(blocked);
    // libc has set the thread's mask by a call of its own, which may not be among the patched.
    masks::open();
    Go { routine: start.routine, argument: start.argument }
}

/// libc's `pthread_create`.
pub type Create =
    unsafe extern "C" fn(*mut usize, *const libc::pthread_attr_t, usize, *mut libc::c_void) -> libc::c_int;

static REAL_CREATE: AtomicUsize = AtomicUsize::new(0);
static REAL_DEFAULT: AtomicUsize = AtomicUsize::new(0);
/// The dynamic loader's function that tells how much of a stack goes to thread-locals and the
/// control block.
static TLS_INFO: AtomicUsize = AtomicUsize::new(0);

/// Looks libc's function up, before any hook runs.
pub fn resolve() {
    // SAFETY: a lookup by name, from the constructor.
    let at = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) };
    // SAFETY: as above.
    let default = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_getattr_default_np".as_ptr()) };
    // SAFETY: as above.
    let info = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_get_tls_static_info".as_ptr()) };
    REAL_DEFAULT.store(default as usize, Ordering::Relaxed);
    TLS_INFO.store(info as usize, Ordering::Relaxed);
    REAL_CREATE.store(at as usize, Ordering::Release);
}

/// Bytes of the stack that a thread of such attributes gets at least.
///
/// # Safety
/// As for `pthread_create`.
unsafe fn stack_bytes(attributes: *const libc::pthread_attr_t) -> usize {
    let mut bytes = 0;
    if !attributes.is_null() {
        // SAFETY: the program's attributes, as it gives them to libc.
        unsafe { libc::pthread_attr_getstacksize(attributes, &mut bytes) };
        return bytes;
    }
    let default = REAL_DEFAULT.load(Ordering::Relaxed);
    if default == 0 {
        return 0;
    }
    // SAFETY: libc's function of that name has this type, and fills what it succeeds with.
    unsafe {
        let default =
            std::mem::transmute::<usize, unsafe extern "C" fn(*mut libc::pthread_attr_t) -> libc::c_int>(default);
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if default(&mut attributes) == 0 {
            libc::pthread_attr_getstacksize(&attributes, &mut bytes);
            libc::pthread_attr_destroy(&mut attributes);
        }
    }
    bytes
}

/// `pthread_create` of the program's.
///
/// # Safety
/// As libc's.
pub unsafe fn thread(
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
    // SAFETY: the caller's arguments.
    let stack = unsafe { stack_bytes(attributes) };
    let mut job =
        Pinning { attributes: attributes as usize, own: near_stack::stack_pointer(), new: Range::NONE, failed: false };
    // On a near stack: pinning the stack one stands on would be a fault inside the pager.
    near_stack::call(pin_far_stacks, &mut job);
    let start = {
        let _signals = SignalsBlocked::new();
        let hidden = current().hidden.load(Ordering::Relaxed);
        Box::into_raw(Box::new(Start { routine, argument: argument as usize, hidden, stack, pinned: job.new }))
    };
    // SAFETY: the caller's arguments but for the routine, which passes control on to the program's.
    let ret = unsafe { real(thread, attributes, farmem_thread_start as *const () as usize, start.cast()) };
    job.failed = ret != 0;
    near_stack::call(unpin_stacks, &mut job);
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
    /// An address on the caller's stack.
    own: usize,
    /// What is pinned of the new thread's.
    new: Range,
    /// There is no new thread.
    failed: bool,
}

/// Room that libc's `pthread_create` takes of its caller's stack, generously.
const CREATE_DEPTH: usize = 16 << 10;
/// Room for a thread's first frames, before it has an alternate stack.
const FIRST_FRAMES: usize = 48 << 10;

/// The part of a far thread stack that is kept local: the thread's control block, in which the
/// kernel writes when the thread ends, its thread-locals, and its first frames.
fn top_of_stack() -> usize {
    let info = TLS_INFO.load(Ordering::Relaxed);
    // More than most programs have.
    let (mut size, mut align) = (48 << 10, 64);
    if info != 0 {
        // SAFETY: libc's function of that name has this type. (Sanitizers call it, too.)
        unsafe {
            std::mem::transmute::<usize, unsafe extern "C" fn(*mut usize, *mut usize)>(info)(&mut size, &mut align);
        }
    }
    // The block is aligned within what it is given.
    size + align + FIRST_FRAMES
}

/// `clone3` reads its arguments from the caller's stack, and the new thread starts on its own:
/// where either is far, it must be there.
extern "C" fn pin_far_stacks(job: &mut Pinning) {
    if is_far(job.own) {
        pager().pins.pin(job.own - CREATE_DEPTH, CREATE_DEPTH, true);
    }
    if job.attributes != 0 {
        let (mut at, mut size) = (std::ptr::null_mut(), 0);
        // SAFETY: the program's attributes, as it gave them to libc.
        unsafe { libc::pthread_attr_getstack(job.attributes as *const _, &mut at, &mut size) };
        let at = at as usize;
        if is_far(at) {
            pinned::unpin_left();
            let top = size.min(top_of_stack());
            job.new = Range::pin(at + size - top, top);
        }
    }
}

extern "C" fn unpin_stacks(job: &mut Pinning) {
    if is_far(job.own) {
        pager().pins.unpin(job.own - CREATE_DEPTH, CREATE_DEPTH);
    }
    if job.failed {
        job.new.unpin();
    }
}
