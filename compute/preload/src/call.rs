//! A system call of the program, as the code that caught it passes it on.

use farmem_sys::raw::syscall_for_program;

/// A system call. Layout known to the assembly in [`crate::sites`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its number.
    pub nr: i64,
    /// rdi, rsi, rdx, r10, r8, r9.
    pub args: [usize; 6],
    /// An address on the caller's stack.
    pub sp: usize,
}

/// `futex_requeue`: its argument names two more words.
const SYS_FUTEX_REQUEUE: i64 = 456;

/// Numbers that need a decision even without a far argument.
pub const ALWAYS: &[i64] = &[
    libc::SYS_mmap,
    libc::SYS_brk,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_getdents64,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_io_uring_setup,
    libc::SYS_io_setup,
    libc::SYS_process_madvise,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_vmsplice,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
    libc::SYS_prlimit64,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigsuspend,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_clone,
    libc::SYS_fork,
    libc::SYS_mlockall,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_prctl,
    libc::SYS_ptrace,
    libc::SYS_futex_waitv,
    SYS_FUTEX_REQUEUE,
    libc::SYS_personality,
    libc::SYS_seccomp,
    libc::SYS_setsockopt,
    libc::SYS_ioctl,
    libc::SYS_bpf,
    libc::SYS_keyctl,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_pkey_mprotect,
    libc::SYS_pkey_alloc,
    libc::SYS_madvise,
    libc::SYS_mremap,
];

/// Makes the call as it stands.
pub fn issue(call: &Call) -> isize {
    // SAFETY: the program's own call; what it points to is pinned by the caller.
    unsafe { syscall_for_program(call.nr, call.args) }
}

/// Calls that a handler could not make for the program: they leave by another stack than they came
/// on. Their registers may hold anything, far addresses too.
pub const NEVER: [i64; 7] = [
    libc::SYS_rt_sigreturn,
    libc::SYS_clone,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// A bit in a call's number: it comes from a place that marks its calls ([`crate::go`]).
pub const MARK: u32 = 1 << 30;
