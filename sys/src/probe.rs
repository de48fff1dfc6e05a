//! System calls that are forbidden from outside: by a container's seccomp profile, a service's
//! `SystemCallFilter`, a sandbox.
//!
//! Each call is made once, with arguments that the kernel refuses by a known error, or that change
//! nothing. Another error comes from the filter. A filter may also kill the caller, so where one is
//! installed a child process makes the calls:
//!
//! ```text
//!  parent ─ fork ─► child: note n, make call n │ n+1 │ … │ exit_group
//!     │               └── the page that both have: which call, its error ──┐
//!     └─ waits for the child's end, reads the page ◄───────────────────────┘
//! ```
//!
//! A filter that looks at arguments may allow these and forbid others: then the call fails where it
//! is needed, with a line of its own.

use crate::raw::{Errno, checked, syscall};
use std::sync::atomic::{AtomicU32, Ordering};

/// A call that a program cannot do without.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its name, as in its manual page.
    pub name: &'static str,
    /// Its number.
    pub nr: i64,
    args: [usize; 6],
    /// Errors by which the kernel answers these arguments. Success is an answer, too.
    says: &'static [i32],
}

/// Why a call cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It fails.
    By(Errno),
    /// It kills its caller.
    ByDeath,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::By(e) => e.fmt(f),
            Refused::ByDeath => f.write_str("it kills the process that makes it"),
        }
    }
}

/// Stands for the address of 256 bytes of zeros.
const ZEROS: usize = usize::MAX;
/// No descriptor.
const NONE: usize = -1i32 as u32 as usize;
/// Flags, an operation or a number that no kernel knows.
const UNKNOWN: usize = 0x7fff_ffff;

/// A call that any kernel answers by one of these errors, or carries out without effect.
const fn call(name: &'static str, nr: i64, args: [usize; 6], says: &'static [i32]) -> Call {
    Call { name, nr, args, says }
}

/// A call on a descriptor that is none.
const fn on_none(name: &'static str, nr: i64) -> Call {
    call(name, nr, [NONE, 0, 0, 0, 0, 0], &[libc::EBADF])
}

/// A call without arguments that always succeeds.
const fn plain(name: &'static str, nr: i64) -> Call {
    call(name, nr, [0; 6], &[])
}

/// A call whose first argument is a path, or another pointer: none.
const fn on_null(name: &'static str, nr: i64) -> Call {
    call(name, nr, [0; 6], &[libc::EFAULT])
}

/// Descriptors, files and time: every part of farmem needs these.
pub const COMMON: &[Call] = &[
    plain("getpid", libc::SYS_getpid),
    plain("geteuid", libc::SYS_geteuid),
    on_none("read", libc::SYS_read),
    on_none("write", libc::SYS_write),
    on_none("close", libc::SYS_close),
    on_none("fcntl", libc::SYS_fcntl),
    on_none("fstat", libc::SYS_fstat),
    on_none("ioctl", libc::SYS_ioctl),
    on_none("ftruncate", libc::SYS_ftruncate),
    on_none("lseek", libc::SYS_lseek),
    call("openat", libc::SYS_openat, [NONE, 0, 0, 0, 0, 0], &[libc::EFAULT]),
    on_null("mkdir", libc::SYS_mkdir),
    on_null("unlink", libc::SYS_unlink),
    call("mmap", libc::SYS_mmap, [0; 6], &[libc::EINVAL, libc::EBADF]),
    call("munmap", libc::SYS_munmap, [0; 6], &[libc::EINVAL]),
    plain("mprotect", libc::SYS_mprotect),
    plain("madvise", libc::SYS_madvise),
    call("clock_nanosleep", libc::SYS_clock_nanosleep, [1, 0, 0, 0, 0, 0], &[libc::EFAULT]),
    call("futex", libc::SYS_futex, [ZEROS, libc::FUTEX_WAKE as usize, 0, 0, 0, 0], &[]),
    call("getrandom", libc::SYS_getrandom, [0, 0, UNKNOWN, 0, 0, 0], &[libc::EINVAL]),
    call("prlimit64", libc::SYS_prlimit64, [0, UNKNOWN, 0, 0, 0, 0], &[libc::EINVAL]),
    call("rt_sigprocmask", libc::SYS_rt_sigprocmask, [UNKNOWN, ZEROS, 0, 8, 0, 0], &[libc::EINVAL]),
    call("rt_sigtimedwait", libc::SYS_rt_sigtimedwait, [0, 0, 0, 8, 0, 0], &[libc::EFAULT]),
    call("kill", libc::SYS_kill, [UNKNOWN, 0, 0, 0, 0, 0], &[libc::ESRCH]),
    call("clone", libc::SYS_clone, [libc::CLONE_SIGHAND as usize, 0, 0, 0, 0, 0], &[libc::EINVAL]),
    // Where it is unknown, libc takes `clone`.
    call("clone3", libc::SYS_clone3, [0; 6], &[libc::EINVAL, libc::ENOSYS]),
    // Sockets: of no family, and none.
    call("socket", libc::SYS_socket, [UNKNOWN, 1, 0, 0, 0, 0], &[libc::EAFNOSUPPORT]),
    on_none("connect", libc::SYS_connect),
    on_none("getsockopt", libc::SYS_getsockopt),
    on_none("setsockopt", libc::SYS_setsockopt),
    on_none("getsockname", libc::SYS_getsockname),
    on_none("getpeername", libc::SYS_getpeername),
    on_none("sendmsg", libc::SYS_sendmsg),
    on_none("recvmsg", libc::SYS_recvmsg),
    on_none("recvfrom", libc::SYS_recvfrom),
];

/// The three by which Rust's library begins, and ends a process that may not make them, before
/// `main`.
pub const EARLY: &[Call] = &[
    call("poll", libc::SYS_poll, [0; 6], &[]),
    call("rt_sigaction", libc::SYS_rt_sigaction, [0, 0, 0, 8, 0, 0], &[libc::EINVAL]),
    plain("sigaltstack", libc::SYS_sigaltstack),
];

/// A run's supervisor, and the runtime in its programs, beside [`COMMON`].
pub const RUN: &[Call] = &[
    plain("gettid", libc::SYS_gettid),
    plain("getppid", libc::SYS_getppid),
    plain("brk", libc::SYS_brk),
    call("mremap", libc::SYS_mremap, [0; 6], &[libc::EINVAL]),
    plain("mincore", libc::SYS_mincore),
    on_none("pread64", libc::SYS_pread64),
    on_none("pwrite64", libc::SYS_pwrite64),
    on_none("dup2", libc::SYS_dup2),
    call("pipe2", libc::SYS_pipe2, [0, UNKNOWN, 0, 0, 0, 0], &[libc::EINVAL]),
    call("socketpair", libc::SYS_socketpair, [UNKNOWN, 1, 0, 0, 0, 0], &[libc::EAFNOSUPPORT, libc::EFAULT]),
    call("eventfd2", libc::SYS_eventfd2, [0, UNKNOWN, 0, 0, 0, 0], &[libc::EINVAL]),
    call("ppoll", libc::SYS_ppoll, [0, 0, ZEROS, 0, 8, 0], &[]),
    on_null("nanosleep", libc::SYS_nanosleep),
    call("tgkill", libc::SYS_tgkill, [NONE, NONE, 0, 0, 0, 0], &[libc::EINVAL]),
    call("wait4", libc::SYS_wait4, [NONE, 0, 1 << 20, 0, 0, 0], &[libc::EINVAL]),
    call("setpgid", libc::SYS_setpgid, [0, NONE, 0, 0, 0, 0], &[libc::EINVAL]),
    call("prctl", libc::SYS_prctl, [libc::PR_GET_NO_NEW_PRIVS as usize, 0, 0, 0, 0, 0], &[]),
    call("userfaultfd", libc::SYS_userfaultfd, [UNKNOWN, 0, 0, 0, 0, 0], &[libc::EINVAL]),
    call("execve", libc::SYS_execve, [0; 6], &[libc::EFAULT]),
];

/// A node, beside [`COMMON`].
pub const NODE: &[Call] = &[
    call("memfd_create", libc::SYS_memfd_create, [0, UNKNOWN, 0, 0, 0, 0], &[libc::EINVAL]),
    on_none("fallocate", libc::SYS_fallocate),
    on_null("rename", libc::SYS_rename),
    on_none("bind", libc::SYS_bind),
    on_none("listen", libc::SYS_listen),
    on_none("accept4", libc::SYS_accept4),
    call("socketpair", libc::SYS_socketpair, [UNKNOWN, 1, 0, 0, 0, 0], &[libc::EAFNOSUPPORT, libc::EFAULT]),
    call("epoll_create1", libc::SYS_epoll_create1, [UNKNOWN, 0, 0, 0, 0, 0], &[libc::EINVAL]),
    call("epoll_ctl", libc::SYS_epoll_ctl, [NONE, 2, NONE, 0, 0, 0], &[libc::EBADF]),
    call("epoll_pwait", libc::SYS_epoll_pwait, [NONE, ZEROS, 1, 0, 0, 8], &[libc::EBADF]),
    call("eventfd2", libc::SYS_eventfd2, [0, UNKNOWN, 0, 0, 0, 0], &[libc::EINVAL]),
];

/// An allocation service, beside [`COMMON`] and [`NODE`].
pub const AGENT: &[Call] = &[
    call("flock", libc::SYS_flock, [NONE, libc::LOCK_UN as usize, 0, 0, 0, 0], &[libc::EBADF]),
    call("pidfd_open", libc::SYS_pidfd_open, [0; 6], &[libc::EINVAL]),
    on_none("dup2", libc::SYS_dup2),
    call("pipe2", libc::SYS_pipe2, [0, UNKNOWN, 0, 0, 0, 0], &[libc::EINVAL]),
    call("ppoll", libc::SYS_ppoll, [0, 0, ZEROS, 0, 8, 0], &[]),
    call("setpgid", libc::SYS_setpgid, [0, NONE, 0, 0, 0, 0], &[libc::EINVAL]),
    call("wait4", libc::SYS_wait4, [NONE, 0, 1 << 20, 0, 0, 0], &[libc::EINVAL]),
    call("execve", libc::SYS_execve, [0; 6], &[libc::EFAULT]),
];

/// The first of these calls that fails as no kernel answers it. Makes them here and now.
pub fn first_failed(calls: &[Call]) -> Option<(Call, Refused)> {
    calls.iter().find_map(|call| call.refusal().map(|e| (*call, Refused::By(e))))
}

/// The first of these calls that cannot be made.
pub fn first_refused(calls: &[&[Call]]) -> Option<(Call, Refused)> {
    let calls: Vec<Call> = calls.iter().flat_map(|some| some.iter().copied()).collect();
    if is_filtered()
        && let Ok(refused) = by_child(&calls)
    {
        return refused;
    }
    first_failed(&calls)
}

/// Whether a filter may be installed: `prctl` says so, or is itself forbidden.
fn is_filtered() -> bool {
    // SAFETY: no pointers.
    unsafe { syscall(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) != 0 }
}

impl Call {
    /// Makes it. The error by which it is refused, if it is.
    fn refusal(&self) -> Option<Errno> {
        let zeros = [0u64; 32];
        let args = self.args.map(|arg| if arg == ZEROS { zeros.as_ptr() as usize } else { arg });
        // SAFETY: no call of the tables changes memory: it fails by its arguments, or only reads.
        let said = unsafe { syscall(self.nr, args) };
        let e = -(said as i32);
        ((-4095..0).contains(&said) && !self.says.contains(&e)).then_some(Errno(e))
    }
}

/// The page that parent and child have: the call that the child is at, and the error that it met.
struct Page(*const [AtomicU32; 2]);

impl Page {
    fn new() -> Result<Page, Errno> {
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as usize;
        // SAFETY: a new mapping at an address of the kernel's choice; zeros are atomics of value 0.
        unsafe { checked(libc::SYS_mmap, [0, 4096, prot, flags, usize::MAX, 0]).map(|at| Page(at as *const _)) }
    }

    fn words(&self) -> &[AtomicU32; 2] {
        // SAFETY: mapped and aligned as long as this value lives.
        unsafe { &*self.0 }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which nothing refers any more.
        unsafe { syscall(libc::SYS_munmap, [self.0 as usize, 4096, 0, 0, 0, 0]) };
    }
}

/// [`first_refused`] by a child. An error: there can be no child, or it cannot be waited for.
fn by_child(calls: &[Call]) -> Result<Option<(Call, Refused)>, Errno> {
    let page = Page::new()?;
    // SAFETY: the child makes system calls only, and ends.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(Errno(libc::EAGAIN)),
        0 => makes(calls, page.words()),
        child => child,
    };
    // SAFETY: no memory is passed.
    while unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) } != child {
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            // Children are reaped by themselves where SIGCHLD is ignored, and this one has ended.
            Some(libc::ECHILD) => break,
            other => return Err(Errno(other.unwrap_or(libc::EPERM))),
        }
    }
    let [at, error] = page.words().each_ref().map(|word| word.load(Ordering::SeqCst));
    let last = [plain("rt_sigreturn", libc::SYS_rt_sigreturn), plain("exit_group", libc::SYS_exit_group)];
    let call = calls.iter().chain(&last).nth(at as usize).copied();
    Ok(call.map(|call| (call, if error == 0 { Refused::ByDeath } else { Refused::By(Errno(error as i32)) })))
}

/// The child: makes the calls, then those two that cannot be tried by their arguments.
fn makes(calls: &[Call], [at, error]: &[AtomicU32; 2]) -> ! {
    let next = |n: usize| at.store(n as u32, Ordering::SeqCst);
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live structure. No core of a child that a filter kills.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
    for (n, call) in calls.iter().enumerate() {
        next(n);
        if let Some(e) = call.refusal() {
            error.store(e.0 as u32, Ordering::SeqCst);
            end();
        }
    }
    next(calls.len());
    extern "C" fn nothing(_: i32) {}
    // SAFETY: a handler that does nothing. Where a handler cannot return the process ends here.
    unsafe {
        libc::signal(libc::SIGUSR1, nothing as *const () as libc::sighandler_t);
        libc::raise(libc::SIGUSR1);
    }
    // The mark that all went well, which a return from `exit_group` takes back.
    next(calls.len() + 2);
    // SAFETY: no pointers.
    let said = unsafe { syscall(libc::SYS_exit_group, [0; 6]) };
    next(calls.len() + 1);
    error.store(-said as u32, Ordering::SeqCst);
    end()
}

/// Ends the child whatever is forbidden.
fn end() -> ! {
    // SAFETY: no pointers; an instruction that is none is fatal.
    unsafe {
        syscall(libc::SYS_exit_group, [0; 6]);
        core::arch::asm!("ud2", options(noreturn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [&[Call]; 5] = [EARLY, COMMON, RUN, NODE, AGENT];

    #[test]
    fn the_kernel_answers_every_call_as_the_tables_say() {
        for call in ALL.iter().flat_map(|some| some.iter()) {
            assert_eq!(call.refusal(), None, "{call:?}");
        }
        assert!(first_refused(&ALL).is_none());
        let all: Vec<Call> = ALL.iter().flat_map(|some| some.iter().copied()).collect();
        assert!(by_child(&all).is_ok_and(|refused| refused.is_none()));
    }

    #[test]
    fn an_error_that_no_kernel_gives_is_a_refusal() {
        let odd = call("odd", libc::SYS_close, [NONE, 0, 0, 0, 0, 0], &[]);
        let refused = by_child(&[plain("getpid", libc::SYS_getpid), odd]).unwrap();
        assert_eq!(refused.map(|(call, why)| (call.name, why)), Some(("odd", Refused::By(Errno(libc::EBADF)))));
    }
}
