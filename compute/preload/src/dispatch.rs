//! Decides how one system call of the program is handled. Mappings go to the pager, signals and
//! descriptors to their modules. All other calls are guarded and made.
//!
//! The calls come from patched libc ([`crate::sites`]), from the filter ([`crate::net`]), or from a
//! function interposed by name ([`crate::exports`]). While a call is made, this module holds no
//! lock and blocks no signal.

use crate::call::{Call, issue};
use crate::guard::peek::peek;
use crate::process::{is_this_process, pager};
use crate::signals::{actions, blocked, masks, stacks, waiting};
use crate::threads::pinned::Range;
use crate::{confined, counted, exec, fork, guard, hidden, limits, mappings, near_stack, robust, sandbox, threads};
use farmem_protocol::addr::is_far;
use farmem_sys::descriptors::owns_fd;
use farmem_sys::members;
use farmem_sys::raw::{SignalsBlocked, sleep_ns, syscall, syscall_for_program};
use farmem_sys::thread::Tasks;
use std::sync::atomic::Ordering;

const ENOSYS: isize = -(libc::ENOSYS as isize);
const EINVAL: isize = -(libc::EINVAL as isize);
const EBADF: isize = -(libc::EBADF as isize);

const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
const PR_SET_MDWE: usize = 65;
const SYS_MSEAL: i64 = 462;
/// `setxattrat` and `getxattrat`: their argument, near or far, is a structure that names more memory.
pub const XATTRS: [i64; 2] = [463, 464];

/// Calls that are dispatched where libc's instructions are patched, and not by the filter elsewhere.
pub fn where_patched() -> impl Iterator<Item = i64> {
    counted::OPENS.into_iter().chain(counted::STATS).chain(XATTRS)
}

/// Dispatches a call that came from a stack of the program's.
pub fn from_program(call: &Call) -> isize {
    stacks::note_stack(call.sp);
    dispatch(call)
}

/// Decides and makes a call; returns what the kernel would.
pub fn dispatch(call: &Call) -> isize {
    let [a, b, c, d, ..] = call.args;
    if matches!(call.nr, libc::SYS_execve | libc::SYS_execveat | libc::SYS_exit | libc::SYS_exit_group) {
        // The thread does not return to the libc call it came from. This matters for a vfork child,
        // which uses its parent's record.
        threads::current().site.store(0, Ordering::Relaxed);
    }
    match call.nr {
        libc::SYS_mmap => mappings::mmap(call),
        libc::SYS_brk => mappings::brk(call, a),
        libc::SYS_munmap => mappings::munmap(call),
        libc::SYS_mprotect => mappings::mprotect(call),
        libc::SYS_pkey_mprotect => mappings::pkey_mprotect(call),
        // Answered as on a processor without protection keys.
        libc::SYS_pkey_alloc => -(libc::ENOSPC as isize),
        libc::SYS_madvise => mappings::by_parts(call, |at, len| pager().space.madvise(at, len, c as i32)),
        libc::SYS_mremap => mappings::mremap(call),
        libc::SYS_shmat if is_far(b) => mappings::shmat(call),
        libc::SYS_shmdt if is_far(a) => mappings::shmdt(call),
        libc::SYS_mincore if is_far(a) => mappings::mincore(a, b, c),
        libc::SYS_mlock2 if is_far(a) && c & !(libc::MLOCK_ONFAULT as usize) != 0 => -(libc::EINVAL as isize),
        libc::SYS_mlock | libc::SYS_munlock | libc::SYS_mlock2 if is_far(a) => lock(a, b),
        libc::SYS_mbind if is_far(a) => 0,
        libc::SYS_mlockall => 0,
        libc::SYS_set_tid_address | libc::SYS_rseq | libc::SYS_set_robust_list => pinned_for_good(call),
        libc::SYS_rt_sigaction => actions::rt_sigaction(a as i32, b, c, d),
        libc::SYS_rt_sigprocmask => masks::rt_sigprocmask(a as i32, b, c, d),
        libc::SYS_rt_sigtimedwait => blocked::rt_sigtimedwait(call),
        libc::SYS_rt_sigpending => blocked::rt_sigpending(call),
        libc::SYS_sigaltstack => stacks::sigaltstack(a, b, call.sp),
        libc::SYS_rt_sigsuspend
        | libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2 => waiting::waiting(call),
        _ if hidden::names(call) => EBADF,
        libc::SYS_getdents64 => hidden::list(call),
        libc::SYS_open | libc::SYS_openat => counted::open(call),
        _ if counted::STATS.contains(&call.nr) => counted::stat(call),
        libc::SYS_read | libc::SYS_pread64 if counted::watches(a) => counted::read(call),
        libc::SYS_close if counted::watches(a) => counted::close(call),
        libc::SYS_dup2 | libc::SYS_dup3 if owns_fd(b as i32) => EBADF,
        libc::SYS_close_range => close_range(a as u32, b as u32, c),
        // The kernel would use its rings and buffers at times that the runtime cannot know.
        libc::SYS_io_uring_setup | libc::SYS_io_setup => ENOSYS,
        // Answered as by a kernel before 6.13.
        _ if XATTRS.contains(&call.nr) => ENOSYS,
        // Would drop far pages behind the pager's back; callers fall back to madvise.
        libc::SYS_process_madvise => ENOSYS,
        libc::SYS_clone if a & libc::CLONE_VM as usize == 0 && b == 0 => fork::fork(call),
        libc::SYS_clone if fork::is_half(a) => ENOSYS,
        libc::SYS_clone => {
            fork::company_begins(a);
            pager().count_guarded_syscall();
            guard::call(pager(), call)
        }
        _ if call.nr == fork::COMPANY[0] => {
            fork::company_begins(a);
            0
        }
        _ if call.nr == fork::COMPANY[1] => {
            peek::<u64>(a).iter().for_each(|&flags| fork::company_begins(flags as usize));
            0
        }
        libc::SYS_clone3 if fork::copies(call) => fork::by_clone3(call),
        libc::SYS_fork => fork::fork(call),
        libc::SYS_unshare | libc::SYS_setns => leave_namespaces(call),
        // The program may not forbid the time stamp counter: the runtime's clock reads it, also in
        // its handlers.
        libc::SYS_prctl if a == libc::PR_SET_TSC as usize && b == libc::PR_TSC_SIGSEGV as usize => EINVAL,
        // Answered as by a kernel without them. Calls that the program is to emulate, by where they
        // come from, would be the runtime's, too; and without memory that is written first and
        // executed then, the runtime of the next image has no gate.
        libc::SYS_prctl if matches!(a, PR_SET_SYSCALL_USER_DISPATCH | PR_SET_MDWE) => EINVAL,
        // So is the seal on a mapping, against which pages could not come and go.
        SYS_MSEAL if is_far(a) || is_far(a.saturating_add(b)) => ENOSYS,
        libc::SYS_prctl | libc::SYS_seccomp if sandbox::begins(call) => sandbox::begin(call),
        libc::SYS_personality if a as u32 != u32::MAX => personality(call),
        libc::SYS_execve | libc::SYS_execveat => exec::exec(call),
        libc::SYS_exit => exit_thread(call),
        libc::SYS_exit_group => exit(call),
        libc::SYS_getrlimit | libc::SYS_setrlimit | libc::SYS_prlimit64 => limits::call(call),
        _ => {
            pager().count_guarded_syscall();
            guard::call(pager(), call)
        }
    }
}

/// personality. ADDR_COMPAT_LAYOUT is cleared: with it the libraries of the next executed program
/// would lie at far addresses. The call is made as the program wants it first, so that a filter of
/// the program's judges that.
fn personality(call: &Call) -> isize {
    let before = issue(call);
    let without = call.args[0] & !(libc::ADDR_COMPAT_LAYOUT as usize);
    if before >= 0 && without != call.args[0] {
        issue(&Call { args: [without, 0, 0, 0, 0, 0], ..*call });
    }
    before
}

/// mlock and munlock. Locked memory must not be written to a disk. Far memory never is, so it may
/// stay far.
fn lock(at: usize, len: usize) -> isize {
    if pager().space.covers(at, len) { 0 } else { -(libc::ENOMEM as isize) }
}

/// A call by which the kernel learns where to write when the thread ends, or at any time. So the
/// memory is pinned until then, or for good.
fn pinned_for_good(call: &Call) -> isize {
    let range = Range::pin(call.args[0], 32);
    threads::current().pinned.named(call.nr, range);
    issue(call)
}

/// Whether the program has no other thread. The kernel may still count one that has just been
/// waited for.
fn is_alone() -> bool {
    let tries = 5;
    let only_one = |nth| {
        if nth > 0 {
            sleep_ns(1_000_000);
        }
        threads::is_only_one()
    };
    match confined::alone() {
        Some(true) => true,
        // A filter may forbid to ask by a path, and lets the runtime ask by a descriptor.
        Some(false) => threads::is_first() && Tasks::open().others() == Some(0),
        None => (0..tries).any(only_one),
    }
}

/// unshare and setns. Children may share this memory and number processes differently.
///
/// A table of descriptors of the calling thread's own is the one that it has, if the program has no
/// other thread. With another table than the runtime's threads use, these would keep open what the
/// program closes, and find closed what the runtime opens here.
fn leave_namespaces(call: &Call) -> isize {
    let flags = match (call.nr, call.args[1]) {
        (libc::SYS_unshare, _) => call.args[0],
        // Of whatever kind the descriptor's namespace is.
        (_, 0) => usize::MAX,
        (_, kinds) => kinds,
    };
    let mut made = *call;
    let own_table = libc::CLONE_FILES as usize;
    if call.nr == libc::SYS_unshare && flags & own_table != 0 && is_this_process() {
        if !is_alone() {
            return EINVAL;
        }
        made.args[0] = flags & !own_table;
    }
    if flags & libc::CLONE_NEWPID as usize != 0 {
        members::count_elsewhere();
    }
    issue(&made)
}

/// Ends the process, and tells its nodes first. Otherwise they would keep its memory for its grace.
/// Over TCP each child has slabs of its own, so a program that forks much would soon find no memory
/// left.
fn exit(call: &Call) -> isize {
    // A filter of the program may refuse or trap the call. Then the process goes on, and needs its
    // nodes.
    if !sandbox::may_end() {
        return issue(call);
    }
    let _signals = SignalsBlocked::new();
    if is_this_process() {
        pager().farewell();
    }
    end(call)
}

/// The end of one thread. The runtime's own live as long as the process: with the program's only
/// one it ends.
fn exit_thread(call: &Call) -> isize {
    // The arguments may lie on a far stack, which is not touched after [`threads::end`].
    let call = &{ *call };
    let _signals = SignalsBlocked::new();
    if is_this_process() && confined::alone().unwrap_or_else(threads::is_only_one) {
        if sandbox::may_end() {
            pager().farewell();
        }
        // SAFETY: no pointers. In strict mode the program may not make this call, and the runtime
        // may.
        unsafe { syscall(libc::SYS_exit_group, call.args) };
    }
    // A vfork child uses its parent's record. A call that a filter may refuse or trap needs it.
    if is_this_process() && confined::alone().is_none() {
        pager().house.thread_ends(threads::is_first(), call.args[0] as i32);
        robust::let_go();
        threads::end();
    }
    end(call)
}

/// The call that ends a thread, or a vfork child, with what it holds of memory that others go on
/// with. A filter of the program's may refuse it: then it must come back.
fn end(call: &Call) -> isize {
    if confined::alone().is_none() {
        near_stack::end(call.nr, call.args[0]);
    }
    issue(call)
}

/// close_range, around the runtime's own descriptors. As for [`leave_namespaces`], a table of the
/// caller's own is the one that it has.
fn close_range(first: u32, last: u32, mut flags: usize) -> isize {
    let own_table = libc::CLOSE_RANGE_UNSHARE as usize;
    if flags & own_table != 0 && is_this_process() {
        if !is_alone() {
            return EINVAL;
        }
        flags &= !own_table;
    }
    let mut from = first;
    for own in farmem_sys::descriptors::own_fds() {
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
