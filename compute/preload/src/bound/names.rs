//! Functions that std can name besides memory functions.
//!
//! | std calls | here |
//! |---|---|
//! | for last words | system calls by the gate |
//! | `abort`, when a panic cannot even be told | the end, with a line |
//! | `__errno_location` | a word of the library's own; libc's while the program's first thread looks up names at start |
//! | what the runtime never does: files, threads, backtraces | a line that names the function, and the end |
//!
//! The last are linked because std names them in code that the linker cannot prove unreachable. A
//! change that begins to use one is found by its first test.

use super::labels;
use crate::process::started;
use farmem_pager::ending::broken;
use farmem_sys::raw::{syscall, yield_cpu};
use farmem_sys::{errno, vdso};
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// Defines hidden functions of libc's names that go on to functions of ours.
macro_rules! bind {
    ($($name:literal => $own:ident;)*) => {
        $(core::arch::global_asm!(labels!($name), "jmp {own}", own = sym $own);)*
    };
}

bind! {
    "write" => write;
    "writev" => writev;
    "sched_yield" => sched_yield;
    "getpid" => getpid;
    "close" => close;
    "clock_gettime" => clock_gettime;
    "abort" => abort;
    "__errno_location" => errno_location;
    "__xpg_strerror_r" => strerror_r;
    "__cxa_thread_atexit_impl" => at_thread_exit;
}

/// std writes to standard error alone. Bytes that cannot be written are dropped: there is nobody
/// else to tell.
unsafe extern "C" fn write(fd: i32, from: *const u8, len: usize) -> isize {
    // SAFETY: std's bytes.
    let _ = unsafe { farmem_sys::raw::write_all(fd, std::slice::from_raw_parts(from, len)) };
    len as isize
}

unsafe extern "C" fn writev(fd: i32, parts: *const libc::iovec, count: i32) -> isize {
    // SAFETY: std's parts.
    let parts = unsafe { std::slice::from_raw_parts(parts, count as usize) };
    // SAFETY: … and their bytes.
    parts.iter().map(|part| unsafe { write(fd, part.iov_base.cast(), part.iov_len) }).sum()
}

extern "C" fn sched_yield() -> i32 {
    yield_cpu();
    0
}

extern "C" fn getpid() -> i32 {
    farmem_sys::raw::getpid() as i32
}

extern "C" fn close(fd: i32) -> i32 {
    // SAFETY: no memory is involved; the descriptor is std's.
    unsafe { syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
    0
}

unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, to: *mut libc::timespec) -> i32 {
    // SAFETY: std's room.
    let told = vdso::clock_gettime().is_some_and(|read| unsafe { read(clock, to) == 0 });
    if !told {
        // SAFETY: as above.
        unsafe { syscall(libc::SYS_clock_gettime, [clock as usize, to as usize, 0, 0, 0, 0]) };
    }
    0
}

extern "C" fn abort() -> ! {
    broken("aborted")
}

/// Where libc's `errno` of a thread is found; 0: not looked up yet.
static LIBCS: AtomicUsize = AtomicUsize::new(0);
/// The word that std reads for `errno` in the runtime. Nothing bound here ever fails with one.
static OWN: AtomicI32 = AtomicI32::new(0);

type ErrnoLocation = unsafe extern "C" fn() -> *mut i32;

/// libc's `__errno_location`. For calls made in the program's name, on its thread.
pub fn find_errno() -> ErrnoLocation {
    let mut at = LIBCS.load(Ordering::Relaxed);
    if at == 0 {
        // SAFETY: a look-up by name, by a thread of the program's that is outside of the runtime.
        at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__errno_location".as_ptr()) } as usize;
        LIBCS.store(at, Ordering::Relaxed);
    }
    if at == 0 {
        return own_errno;
    }
    // SAFETY: glibc's function of that name has this type.
    unsafe { std::mem::transmute::<usize, ErrnoLocation>(at) }
}

unsafe extern "C" fn own_errno() -> *mut i32 {
    OWN.as_ptr()
}

/// Before the process is on far memory only its first thread runs here, and std may have called
/// libc (getaddrinfo).
unsafe extern "C" fn errno_location() -> *mut i32 {
    if started() {
        return OWN.as_ptr();
    }
    // SAFETY: on the program's first thread, in the constructor.
    unsafe { find_errno()() }
}

/// As POSIX has it. A text that does not fit is cut.
unsafe extern "C" fn strerror_r(number: i32, to: *mut c_char, room: usize) -> i32 {
    let text = errno::text(number).unwrap_or("Unknown error");
    let len = text.len().min(room.saturating_sub(1));
    // SAFETY: the caller's room.
    unsafe {
        text.as_ptr().cast::<c_char>().copy_to_nonoverlapping(to, len);
        to.add(len).write(0);
    }
    0
}

/// No thread of the runtime's ends in a way that std sees.
extern "C" fn at_thread_exit(_: usize, _: usize, _: usize) -> i32 {
    0
}

/// Defines hidden functions of libc's names, and libgcc's, that end the process.
macro_rules! never {
    ($($name:literal)*) => {
        $(core::arch::global_asm!(
            labels!($name),
            "lea rdi, [rip + 2f]",
            "jmp {called}",
            ".pushsection .rodata.bound, \"a\", @progbits",
            "2:",
            concat!(".asciz \"", $name, "\""),
            ".popsection",
            called = sym called,
        );)*
    };
}

extern "C" fn called(name: *const c_char) -> ! {
    // SAFETY: a literal of `never`'s.
    broken(&format!("std called {}", unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("a function")))
}

never! {
    "_Unwind_Backtrace" "_Unwind_DeleteException" "_Unwind_GetIP" "_Unwind_RaiseException"
    "clock_nanosleep" "fcntl" "free" "fstat64" "getcwd" "getenv" "getrandom" "gettid" "lseek64"
    "malloc" "mmap64" "mprotect" "munmap" "open64" "pause" "posix_memalign"
    "pthread_attr_getguardsize" "pthread_attr_init" "pthread_attr_setstacksize" "pthread_detach"
    "pthread_getattr_np" "pthread_join" "pthread_key_create" "pthread_key_delete" "pthread_self"
    "pthread_setname_np" "pthread_setspecific" "read" "readlink" "realloc" "realpath" "sigaltstack"
    "socketpair" "stat64" "statx" "sysconf"
}
