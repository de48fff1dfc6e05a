//! Signal masks: the runtime's two signals never reach the kernel in one, and the
//! program is told the mask that it set.

use super::blocked;
use super::frame::{R10_AT, RAX_AT, RDI_AT, REGISTERS_AT, RIP_AT, read};
use super::kernel::OURS;
use crate::call::{Call, issue};
use crate::gate::AFTER_PROGRAM;
use crate::guard;
use crate::guard::peek::{BAD_ADDRESS, peek, poke};
use crate::process::pager;
use crate::threads::{self, Record};
use farmem_sys::raw::syscall;
use std::sync::atomic::Ordering;

const EINVAL: isize = -(libc::EINVAL as isize);

/// Changes the calling thread's mask in the kernel; returns what it was.
pub fn change(how: i32, set: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: two live words.
    unsafe {
        syscall(
            libc::SYS_rt_sigprocmask,
            [how as usize, &set as *const u64 as usize, &mut before as *mut u64 as usize, 8, 0, 0],
        )
    };
    before
}

/// Opens the runtime's two signals, should anything have blocked them. Returns those that were.
pub fn open() -> u64 {
    change(libc::SIG_UNBLOCK, OURS) & OURS
}

/// rt_sigprocmask of the program's.
pub fn rt_sigprocmask(how: i32, new: usize, old: usize, size: usize) -> isize {
    if size != 8 {
        return EINVAL;
    }
    let record = threads::current();
    let hidden = record.hidden.load(Ordering::Relaxed) as u64;
    let before = if new != 0 {
        let Some(set) = peek::<u64>(new) else { return BAD_ADDRESS };
        let now = match how {
            libc::SIG_BLOCK => hidden | set & OURS,
            libc::SIG_UNBLOCK => hidden & !set,
            libc::SIG_SETMASK => set & OURS,
            _ => return EINVAL,
        };
        record.hidden.store(now as usize, Ordering::Relaxed);
        let before = change(how, set & !OURS);
        blocked::send_kept(now);
        before
    } else {
        change(libc::SIG_BLOCK, 0)
    };
    if old != 0 && !poke(old, before | hidden) {
        return BAD_ADDRESS;
    }
    0
}

/// The mask that a handler leaves in its frame is the program's from here on: of the runtime's
/// signals it is only noted, and what of them it has opened is sent.
pub fn returns_with(mask: u64) {
    let hidden = mask & OURS;
    threads::current().hidden.store(hidden as usize, Ordering::Relaxed);
    blocked::send_kept(hidden);
}

/// Sends a signal to the calling thread.
pub fn send_to_self(signal: i32) {
    // SAFETY: no pointers.
    unsafe {
        let thread = syscall(libc::SYS_gettid, [0; 6]) as usize;
        let process = syscall(libc::SYS_getpid, [0; 6]) as usize;
        syscall(libc::SYS_tgkill, [process, thread, signal as usize, 0, 0, 0]);
    }
}

/// Which argument of a call is a mask that holds while it waits, if it has one.
fn waiting_mask(nr: i64) -> Option<usize> {
    Some(match nr {
        libc::SYS_rt_sigsuspend => 0,
        libc::SYS_ppoll => 3,
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => 4,
        libc::SYS_pselect6 => 5,
        _ => return None,
    })
}

/// pselect's mask comes in a structure.
#[repr(C)]
#[derive(Clone, Copy)]
struct SizedMask {
    at: usize,
    size: usize,
}

/// A call that waits with a mask of its own: made with a copy of the mask without the runtime's
/// signals.
pub fn waiting(call: &Call) -> isize {
    let mut changed = *call;
    let Some(arg) = waiting_mask(call.nr).filter(|&arg| call.args[arg] != 0) else {
        return guard::call(pager(), call);
    };
    let mut mask: u64;
    let sized;
    if call.nr == libc::SYS_pselect6 {
        let Some(given) = peek::<SizedMask>(call.args[arg]) else { return BAD_ADDRESS };
        if given.at == 0 {
            return guard::call(pager(), call);
        }
        let Some(set) = peek::<u64>(given.at) else { return BAD_ADDRESS };
        mask = set & !OURS;
        sized = SizedMask { at: &raw mut mask as usize, size: given.size };
        changed.args[arg] = &raw const sized as usize;
    } else {
        let Some(set) = peek::<u64>(call.args[arg]) else { return BAD_ADDRESS };
        mask = set & !OURS;
        changed.args[arg] = &raw mut mask as usize;
    }
    // A handler may come before the call is made, and may wait as well. It restores the values here
    // when it returns.
    let record = threads::current();
    let outer = record.wait_mask.load(Ordering::Relaxed);
    let outer_at = record.wait_at.load(Ordering::Relaxed);
    record.wait_at.store(0, Ordering::Relaxed);
    record.wait_mask.store(mask as usize, Ordering::Relaxed);
    record.wait_at.store(changed.args[arg], Ordering::Release);
    let result = if changed.args.iter().any(|&a| farmem_protocol::addr::is_far(a)) {
        guard::call(pager(), &changed)
    } else {
        issue(&changed)
    };
    record.wait_at.store(0, Ordering::Relaxed);
    record.wait_mask.store(outer, Ordering::Relaxed);
    record.wait_at.store(outer_at, Ordering::Release);
    result
}

/// If this ucontext is of a call that waited with a mask of its own, and was ended by this signal:
/// that mask. Only the first handler begins in it. All signals are blocked.
///
/// # Safety
/// It must be the kernel's, of a handler of the calling thread.
pub unsafe fn in_wait(record: &Record, context: usize) -> Option<u64> {
    let at = record.wait_at.load(Ordering::Acquire);
    // SAFETY: the kernel's frame, by the caller's word.
    let word = |offset: usize| unsafe { read(context + offset) };
    let ended = at != 0 && word(RIP_AT) == AFTER_PROGRAM && word(RAX_AT) as isize == -(libc::EINTR as isize);
    // By the argument it is that call, and no other that a handler made before it or has left by a
    // leap.
    let arguments = [RDI_AT, R10_AT, REGISTERS_AT, REGISTERS_AT + 8];
    if !ended || !arguments.iter().any(|&register| word(register) == at) {
        return None;
    }
    record.wait_at.store(0, Ordering::Relaxed);
    Some(record.wait_mask.load(Ordering::Relaxed) as u64)
}
