//! The program's forks, at the system call.
//!
//! Not in `pthread_atfork` handlers: libc takes malloc's locks after those have
//! run, and a thread that faults inside malloc, and so holds such a lock, would
//! then wait for the fork to end, and the fork for the lock. At the system call
//! libc holds all of its locks already, and the runtime needs none of them. Any
//! clone without CLONE_VM is a fork: libc's, and the program's own by `syscall()`.
//! A child that is to have a stack of its own begins on a copy of its parent's,
//! where it has work to do first; the stub in [`crate::sites`] then switches.

use crate::call::{Call, issue};
use crate::guard::peek::{BAD_ADDRESS, peek, peek_into};
use crate::near_stack;
use crate::process::{claim_counters, is_this_process, pager, take_over};
use crate::signals::{actions, open};
use crate::threads;
use farmem_protocol::addr::PAGE_BYTES;
use farmem_sys::members::{self, COMPANION, SHARERS};
use std::sync::atomic::Ordering;

/// The flags of a clone that say what the child shares with the thread that makes it, as far as
/// matters here.
pub const SHARING: u32 = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_THREAD | libc::CLONE_FILES) as u32;
const CLEAR_SIGHAND: u64 = 1 << 32;
const ENOSYS: isize = -(libc::ENOSYS as isize);

/// A clone that shares the memory, runs beside its parent, and has descriptors of its own. It would
/// share the thread's records by its thread pointer, and queue pairs whose descriptors mean
/// something else in it: over tcp pages came back wrong. Refused with ENOSYS, before anything
/// happens. (A vfork child shares them too, but its parent waits.)
pub fn is_half(flags: usize) -> bool {
    flags as u32 & SHARING == libc::CLONE_VM as u32
}

/// The flags of a clone that say whether what it makes has this memory and runs beside who makes
/// it.
pub const BESIDE: u32 = (libc::CLONE_VM | libc::CLONE_VFORK) as u32;
/// Numbers of no system call, which the stubs of [`crate::sites`] dispatch before such a clone, and
/// before such a clone3.
pub const COMPANY: [i64; 2] = [500, 501];

/// Notes a companion that nothing will count. The maker of a clone with such flags calls it first.
pub fn company_begins(flags: usize) {
    if flags & (libc::CLONE_VM | libc::CLONE_NEWPID) as usize == (libc::CLONE_VM | libc::CLONE_NEWPID) as usize {
        members::count_elsewhere();
    }
    if flags as u32 & BESIDE != libc::CLONE_VM as u32 {
        return;
    }
    // Nothing counts a process of its own, nor a vfork child's threads.
    if flags & libc::CLONE_THREAD as usize == 0 || !is_this_process() {
        SHARERS.fetch_or(COMPANION, Ordering::Relaxed);
    }
}

/// `struct clone_args`, as far as the kernel has ever had it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}
/// Its first version.
const LEAST: usize = 64;
/// Namespaces that may be nested, each with a number for the child.
const NAMESPACES: usize = 32;

/// Whether a clone3 of the program's own copies the memory, and leaves on the stack that it comes
/// on. (To a stack of its own it cannot go from `syscall()`.)
pub fn copies(call: &Call) -> bool {
    let shares = |flags: u64| flags & libc::CLONE_VM as u64 != 0;
    call.args[1] >= LEAST && peek::<[u64; LEAST / 8]>(call.args[0]).is_some_and(|args| !shares(args[0]) && args[5] == 0)
}

const TOO_LONG: isize = -(libc::E2BIG as isize);

/// Makes such a clone3 call. Its arguments are brought near: when it is made, nothing far can come
/// in.
pub fn by_clone3(call: &Call) -> isize {
    let (at, len) = (call.args[0], call.args[1]);
    // As the kernel does it: what it does not know must be zeros.
    if len > PAGE_BYTES {
        return TOO_LONG;
    }
    let known = len.min(size_of::<Args>());
    let mut rest = [0u8; PAGE_BYTES];
    let rest = &mut rest[known..len];
    if !rest.is_empty() && !peek_into(at + known, rest.as_mut_ptr(), rest.len()) {
        return BAD_ADDRESS;
    }
    if rest.iter().any(|&byte| byte != 0) {
        return TOO_LONG;
    }
    // SAFETY: all-zero is a valid clone_args.
    let mut args: Args = unsafe { std::mem::zeroed() };
    let mut numbers = [0u32; NAMESPACES];
    let count = |args: &Args| (args.set_tid_size as usize).min(NAMESPACES);
    if !peek_into(at, (&raw mut args).cast(), known) {
        return BAD_ADDRESS;
    }
    if args.set_tid != 0 && args.set_tid_size <= NAMESPACES as u64 {
        if !peek_into(args.set_tid as usize, numbers.as_mut_ptr().cast(), count(&args) * 4) {
            return BAD_ADDRESS;
        }
        args.set_tid = numbers.as_ptr() as u64;
    }
    let words = [args.pidfd, args.child_tid, args.parent_tid].map(|at| at as usize);
    let near = Call { args: [&raw const args as usize, known, 0, 0, 0, 0], ..*call };
    // Without its handlers the child could not fault: refused as by an older kernel.
    if args.flags & CLEAR_SIGHAND != 0 {
        return -(libc::EINVAL as isize);
    }
    copied(&near, args.flags as u32, words)
}

/// Makes a clone or fork call that copies the address space.
pub fn fork(call: &Call) -> isize {
    let [flags, _, parent, child, ..] = call.args;
    match call.nr {
        libc::SYS_clone => copied(call, flags as u32, [parent, child, 0]),
        _ => copied(call, 0, [0; 3]),
    }
}

/// `words`: where the kernel may write numbers of the child.
fn copied(call: &Call, flags: u32, words: [usize; 3]) -> isize {
    // The child would take descriptors of its own in its parent's place.
    if flags & libc::CLONE_FILES as u32 != 0 {
        return ENOSYS;
    }
    let pinned = words.map(|at| pager().pins.pin(at, 4, true));
    let ret = make(call);
    // A child has no pins.
    if ret != Some(0) {
        words.iter().zip(pinned).for_each(|(&at, len)| pager().pins.unpin(at, len));
    }
    // Makes the call again, now that the pager is open to the handler that makes it in the kernel's
    // place: a filter never comes to allow a call that it has trapped.
    ret.unwrap_or_else(|| issue(call))
}

/// In a child, which has none of its parent's pins: where a thread's block lies at the top of a far
/// stack, the handlers write errno there while they serve a fault.
fn keep_thread_block() {
    const BELOW: usize = 4096;
    let tp: usize;
    // SAFETY: %fs:0 holds the thread pointer itself (x86-64 ELF TLS ABI).
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) tp, options(nostack, readonly, preserves_flags)) };
    pager().pins.pin(tp - BELOW, 2 * BELOW, true);
}

/// `None`: a filter of the program's has trapped it.
fn make(call: &Call) -> Option<isize> {
    let fork = pager().house.fork_prepare();
    // Before its lock is held: a raw clone may have none yet.
    let record = threads::current();
    actions::hold_across_fork();
    threads::hold_across_fork();
    crate::ARENA.hold_across_fork();
    let ret = record.without_traps(|| issue(call));
    crate::ARENA.release_after_fork();
    threads::release_after_fork();
    if ret == Some(0) {
        open::forget_in_child();
    }
    actions::release_after_fork();
    if ret == Some(0) {
        take_over();
        near_stack::forget_in_child();
        threads::forget_in_child(record);
        actions::adopt();
        pager().house.fork_child(fork, claim_counters());
        keep_thread_block();
    } else {
        pager().house.fork_parent(fork, ret.is_some_and(|child| child > 0));
    }
    ret
}
