//! One system call of the program's, decided: mappings go to the pager, signals
//! and descriptors are looked after, everything else is guarded and made.
//!
//! Comes from patched libc ([`crate::sites`]), from the filter
//! ([`crate::net`]), or from a function interposed by name ([`crate::exports`]).
//! Holds no lock and blocks no signal while the call itself is made.

use crate::signals::{actions, masks, stacks};
use crate::start::{is_this_process, pager};
use crate::{exec, fork, guard, sandbox};
use farmem_protocol::addr::{FAR_END, FAR_START, PAGE_BYTES, is_far};
use farmem_sys::raw::{SignalsBlocked, owns_fd, syscall_for_program};
use std::sync::atomic::{AtomicUsize, Ordering};

const ENOSYS: isize = -(libc::ENOSYS as isize);
const EINVAL: isize = -(libc::EINVAL as isize);
const EBADF: isize = -(libc::EBADF as isize);

/// A system call. Layout known to the assembly in [`crate::sites`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its number.
    pub nr: i64,
    /// rdi, rsi, rdx, r10, r8, r9.
    pub args: [usize; 6],
    /// About where the caller's stack is.
    pub sp: usize,
}

/// Numbers that need a decision even without a far argument.
pub const ALWAYS: &[i64] = &[
    libc::SYS_mmap,
    libc::SYS_brk,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_close,
    libc::SYS_close_range,
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
    libc::SYS_exit_group,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_rt_sigsuspend,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_clone,
    libc::SYS_fork,
    libc::SYS_mlockall,
    libc::SYS_prctl,
    libc::SYS_ptrace,
    libc::SYS_seccomp,
    libc::SYS_setsockopt,
    libc::SYS_ioctl,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mremap,
];

/// Makes the call as it stands.
pub fn issue(call: &Call) -> isize {
    // SAFETY: the program's own call; what it points to is pinned by the caller.
    unsafe { syscall_for_program(call.nr, call.args) }
}

/// Decides and makes a call; returns what the kernel would.
pub fn dispatch(call: &Call) -> isize {
    let [a, b, c, d, ..] = call.args;
    match call.nr {
        libc::SYS_mmap => mmap(call),
        libc::SYS_brk => brk(call, a),
        libc::SYS_munmap => {
            refused_if_elsewhere(a, b);
            by_parts(call, |at, len| pager().munmap(at, len))
        }
        libc::SYS_mprotect => by_parts(call, |at, len| pager().mprotect(at, len, c as i32)),
        libc::SYS_madvise => by_parts(call, |at, len| pager().madvise(at, len, c as i32)),
        libc::SYS_mremap => mremap(call),
        libc::SYS_mincore if is_far(a) => mincore(a, b, c),
        // Locked far memory is far all the same: there is nothing on disk to keep it from.
        libc::SYS_mlock | libc::SYS_munlock | libc::SYS_mlock2 if is_far(a) => 0,
        libc::SYS_mbind | libc::SYS_msync if is_far(a) => 0,
        libc::SYS_mlockall => 0,
        // Where the kernel writes at the thread's end or whenever it likes: there for good.
        libc::SYS_set_tid_address | libc::SYS_rseq | libc::SYS_set_robust_list => {
            pager().pin(a, 32, true);
            issue(call)
        }
        libc::SYS_rt_sigaction => actions::rt_sigaction(a as i32, b, c, d),
        libc::SYS_rt_sigprocmask => masks::rt_sigprocmask(a as i32, b, c, d),
        libc::SYS_sigaltstack => stacks::sigaltstack(a, b, call.sp),
        libc::SYS_rt_sigsuspend
        | libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2 => masks::waiting(call),
        libc::SYS_close if owns_fd(a as i32) => EBADF,
        libc::SYS_dup2 | libc::SYS_dup3 if owns_fd(b as i32) => EBADF,
        libc::SYS_close_range => close_range(a as u32, b as u32, c),
        // Its rings and buffers would be used by the kernel at times nobody is told of.
        libc::SYS_io_uring_setup | libc::SYS_io_setup => ENOSYS,
        // Would drop far pages behind the pager's back; callers fall back to madvise.
        libc::SYS_process_madvise => ENOSYS,
        libc::SYS_clone if a & libc::CLONE_VM as usize == 0 && b == 0 => fork::fork(call),
        libc::SYS_clone if fork::is_half(a) => ENOSYS,
        libc::SYS_fork => fork::fork(call),
        // The runtime's clock is the time stamp counter, also in its handlers.
        libc::SYS_prctl if a == libc::PR_SET_TSC as usize && b == libc::PR_TSC_SIGSEGV as usize => EINVAL,
        libc::SYS_prctl | libc::SYS_seccomp if sandbox::begins(call) => sandbox::begin(call),
        libc::SYS_execve | libc::SYS_execveat => exec::exec(call),
        libc::SYS_exit_group => exit(call),
        _ => {
            pager().count_guarded_syscall();
            guard::call(pager(), call)
        }
    }
}

/// The end of the process. Its nodes hear of it, or they would keep its memory for its grace; over tcp a
/// program that forks much, each child with slabs of its own, would soon find nothing left.
fn exit(call: &Call) -> isize {
    // A filter of the program's may refuse it, or trap it: the process would go on without its nodes.
    if sandbox::is_confined() {
        return issue(call);
    }
    let _signals = SignalsBlocked::new();
    if is_this_process() {
        pager().farewell();
    }
    issue(call)
}

/// Where the program break was at start, if the heap began near and stays there; else 0.
static NEAR_BREAK: AtomicUsize = AtomicUsize::new(0);

/// The heap stays near: its break is the kernel's, and not to be higher than this.
pub fn keep_near_break(at: usize) {
    NEAR_BREAK.store(at, Ordering::Relaxed);
}

/// brk. A near heap that was there before us shrinks as it likes; more is refused as the kernel does,
/// by the break that is: libc takes whatever comes back for the break from then on.
fn brk(call: &Call, to: usize) -> isize {
    match NEAR_BREAK.load(Ordering::Relaxed) {
        0 => pager().brk(to) as isize,
        most if to <= most => issue(call),
        _ => issue(&Call { args: [0; 6], ..*call }),
    }
}

/// Where the last mapping lies that was asked for elsewhere, by a hint; 0 once that is settled. And how long it is.
static ELSEWHERE: AtomicUsize = AtomicUsize::new(0);
static ELSEWHERE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// How many such the program has given back at once, one after the other, and taken none without a hint between them
/// (as mimalloc does, to which a hint is only a hint).
static GIVEN_BACK: AtomicUsize = AtomicUsize::new(0);
/// After so many it gets what it hints at, and that is near. Java's ZGC hints at thousands of addresses and takes no
/// other; Go gives up 32 before its hints are far ones.
const PATIENCE: usize = 40;

/// Whether the program takes memory only where it hints at. Asked when it hints.
fn insists() -> bool {
    if ELSEWHERE.swap(0, Ordering::Relaxed) != 0 {
        // It has kept the last.
        GIVEN_BACK.store(0, Ordering::Relaxed);
    }
    GIVEN_BACK.load(Ordering::Relaxed) >= PATIENCE
}

/// The program unmaps `len` bytes at `addr`. (Who cuts a mapping to size keeps the rest of it.)
fn refused_if_elsewhere(addr: usize, len: usize) {
    if is_far(addr)
        && len >= ELSEWHERE_BYTES.load(Ordering::Relaxed)
        && ELSEWHERE.compare_exchange(addr, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    {
        GIVEN_BACK.fetch_add(1, Ordering::Relaxed);
    }
}

fn mmap(call: &Call) -> isize {
    let [addr, len, prot, flags, fd, _] = call.args;
    let (prot, flags) = (prot as i32, flags as i32);
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    let hinted = addr != 0 && !fixed && !is_far(addr);
    if pager().wants(addr, len, flags) && !(hinted && insists()) {
        let at = pager().mmap(addr, len, prot, flags);
        if hinted && at > 0 {
            ELSEWHERE_BYTES.store(len, Ordering::Relaxed);
            ELSEWHERE.store(at as usize, Ordering::Relaxed);
        } else if GIVEN_BACK.load(Ordering::Relaxed) < PATIENCE {
            GIVEN_BACK.store(0, Ordering::Relaxed);
        }
        return at;
    }
    if fixed && is_far(addr) && len > 0 {
        // A file or shared memory over far addresses.
        let ret = pager().forget_range(addr, len, prot);
        if ret < 0 {
            return ret;
        }
    } else if is_far(addr) {
        // A mere hint. Near memory must not come to lie among far addresses.
        return issue(&Call { args: [0, len, prot as usize, flags as usize, fd, call.args[5]], ..*call });
    }
    issue(call)
}

/// A call on a range, `args[0]` and `args[1]`, which may reach from near addresses into far ones.
fn by_parts(call: &Call, far: impl Fn(usize, usize) -> isize) -> isize {
    let [addr, len, ..] = call.args;
    if is_far(addr) {
        return far(addr, len);
    }
    let end = addr.saturating_add(len);
    // What leaves the address space is refused whole, by the kernel: not unmapped up to where we begin.
    if end <= FAR_START || addr >= FAR_END || end > guard::USER_END {
        return issue(call);
    }
    let mut near = *call;
    near.args[1] = FAR_START - addr;
    let below = issue(&near);
    let within = far(FAR_START, end.min(FAR_END) - FAR_START);
    if end > FAR_END {
        near.args[0] = FAR_END;
        near.args[1] = end - FAR_END;
        let above = issue(&near);
        if above < 0 {
            return above;
        }
    }
    if below < 0 { below } else { within }
}

fn mremap(call: &Call) -> isize {
    let [old, old_len, new_len, flags, new, _] = call.args;
    let flags = flags as i32;
    if is_far(old) {
        if let Some(moved) = pager().mremap_foreign(old, old_len, new_len, flags, new) {
            return moved;
        }
        let out = flags & libc::MREMAP_FIXED != 0 && !is_far(new);
        if out || flags & libc::MREMAP_DONTUNMAP != 0 {
            return copied(old, old_len, new_len, flags, new);
        }
        return pager().mremap(old, old_len, new_len, flags, new);
    }
    if flags & libc::MREMAP_FIXED != 0 && is_far(new) {
        // Near memory moves to far addresses and stays what it is.
        let ret = pager().forget_range(new, new_len, libc::PROT_READ | libc::PROT_WRITE);
        if ret < 0 {
            return ret;
        }
    }
    issue(call)
}

/// The moves of far memory that the pager does not make, by copying: to near addresses, where it is
/// near from then on, and those that leave an empty mapping behind.
fn copied(old: usize, old_len: usize, new_len: usize, flags: i32, new: usize) -> isize {
    const KNOWN: i32 = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let (from, len) = (old_len.next_multiple_of(PAGE_BYTES), new_len.next_multiple_of(PAGE_BYTES));
    let stays = flags & libc::MREMAP_DONTUNMAP != 0;
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let aligned = old.is_multiple_of(PAGE_BYTES) && (!fixed || new.is_multiple_of(PAGE_BYTES));
    if flags & !KNOWN != 0
        || flags & libc::MREMAP_MAYMOVE == 0
        || !aligned
        || len == 0
        || from == 0
        || stays && from != len
    {
        return EINVAL;
    }
    if pager().pin(old, 1, false) == 0 {
        return -(libc::EFAULT as isize);
    }
    pager().unpin(old, 1);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let to = if fixed && !is_far(new) {
        let args = [new, len, prot as usize, (private | libc::MAP_FIXED) as usize, usize::MAX, 0];
        issue(&Call { nr: libc::SYS_mmap, args, sp: 0 })
    } else {
        pager().mmap(new, len, prot, private | if fixed { libc::MAP_FIXED } else { 0 })
    };
    if to < 0 {
        return to;
    }
    // SAFETY: both are mapped; user-mode accesses, which fault like the program's.
    unsafe { std::ptr::copy_nonoverlapping(old as *const u8, to as *mut u8, from.min(len)) };
    if stays {
        pager().madvise(old, from, libc::MADV_DONTNEED);
    } else {
        pager().munmap(old, from);
    }
    to
}

fn mincore(addr: usize, len: usize, vec: usize) -> isize {
    let pages = len.div_ceil(4096);
    let pinned = pager().pin(vec, pages, true);
    if is_far(vec) && pinned < pages {
        pager().unpin(vec, pinned);
        return guard::BAD_ADDRESS;
    }
    // SAFETY: pinned, or near and the program's own.
    let ret = unsafe { pager().mincore(addr, len, vec as *mut u8) };
    pager().unpin(vec, pinned);
    ret
}

/// close_range, around the runtime's own descriptors.
fn close_range(first: u32, last: u32, flags: usize) -> isize {
    let mut from = first;
    for own in farmem_sys::raw::own_fds() {
        let own = own as u32;
        if own < from || own > last {
            continue;
        }
        if own > from {
            let ret = close_plainly(from, own - 1, flags);
            if ret < 0 {
                return ret;
            }
        }
        from = own + 1;
    }
    if from > last && from > first {
        return 0;
    }
    close_plainly(from, last, flags)
}

fn close_plainly(first: u32, last: u32, flags: usize) -> isize {
    // SAFETY: no pointers.
    unsafe { syscall_for_program(libc::SYS_close_range, [first as usize, last as usize, flags, 0, 0, 0]) }
}
