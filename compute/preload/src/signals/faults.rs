//! SIGBUS: a far page is wanted, or the signal is the program's.

use super::{KernelAction, actions, deliver, masks, note_stack, resume, set_action};
use crate::process::pager;
use crate::threads;
use farmem_pager::ending::broken;
use farmem_protocol::addr::is_far;
use std::sync::atomic::Ordering;

/// The kernel's handler. On the near stack, everything blocked but SIGBUS and SIGSYS.
pub extern "C" fn on_bus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's arguments.
    let (code, addr, write, sp, ip) = unsafe {
        let regs = &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let reg = |r: i32| regs[r as usize] as usize;
        let write = reg(libc::REG_ERR) & 2 != 0;
        ((*info).si_code, (*info).si_addr() as usize, write, reg(libc::REG_RSP), reg(libc::REG_RIP))
    };
    let record = threads::current();
    // A code of 0 or below: some process sent it, and there is no address.
    if code > 0 && is_far(addr) {
        // The record is this thread's own: no need of a locked instruction.
        if record.serving.load(Ordering::Relaxed) != 0 {
            broken(&format!("the runtime touched far memory at {addr:#x}, from {ip:#x}"));
        }
        record.serving.store(1, Ordering::Relaxed);
        // SAFETY: libc's own errno of this thread, in its static TLS.
        let errno = unsafe { *libc::__errno_location() };
        let served = pager().fault(addr, write);
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        record.serving.store(0, Ordering::Relaxed);
        if served {
            note_stack(sp);
            // SAFETY: the kernel's frame; signals are blocked as ever in this handler, and this is its last act.
            unsafe {
                if resume::may(record, context as usize) {
                    resume::farmem_resume(context as usize);
                }
            }
            return;
        }
        // Not mapped by us, or not any more. If the mapping has just gone, the access faults again, as
        // SIGSEGV. If it comes back the same, it is a mapping of the program's own, beyond its file's end.
        if record.refused.swap(addr, Ordering::Relaxed) != addr {
            return;
        }
        record.refused.store(0, Ordering::Relaxed);
    }
    not_ours(signal, code, info, context);
}

/// A signal that is not the runtime's goes where the program wants it. Last act of a handler.
pub fn not_ours(signal: i32, code: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let record = threads::current();
    let sent = code <= 0;
    if sent && record.hidden.load(Ordering::Relaxed) >> (signal - 1) & 1 != 0 {
        record.pending.fetch_or(1 << (signal - 1), Ordering::Relaxed);
        return;
    }
    let action = actions::take(signal);
    match action.handler {
        libc::SIG_IGN if sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // The kernel's default from now on: the access is repeated and ends the process as it
            // would have; what was sent is sent again.
            set_action(signal, Some(&KernelAction::DEFAULT), None);
            if sent || signal == libc::SIGSYS {
                masks::send_to_self(signal);
            }
        }
        // SAFETY: the kernel's arguments, and the last thing done with them.
        _ => unsafe { deliver::deliver(signal, &action, info as usize, context as usize) },
    }
}
