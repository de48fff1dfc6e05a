//! SIGSYS: a system call that the filter caught ([`crate::net`]).

use super::kernel::OURS;
use super::stacks::note_stack;
use super::{faults, masks};
use crate::call::{Call, MARK};
use crate::dispatch::dispatch;
use crate::filter::X86_64;
use crate::gate::{AFTER_PROGRAM, AFTER_SYSCALL, AFTER_THREAD};
use crate::net::{CAUGHT, is_missed, is_trial};
use crate::process::pager;
use crate::sandbox;
use crate::threads;
use farmem_protocol::addr::is_far;
use std::sync::atomic::Ordering;

const SYS_SECCOMP: i32 = 1;

/// siginfo of a SIGSYS by a filter.
#[repr(C)]
struct SysInfo {
    signo: i32,
    errno: i32,
    code: i32,
    _pad: i32,
    addr: usize,
    number: i32,
    arch: u32,
}

/// The kernel's handler. On the near stack, everything blocked but SIGBUS and SIGSYS.
pub extern "C" fn on_sys(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's arguments; for SIGSYS the siginfo has this layout.
    let (sys, ucontext) = unsafe { (&*info.cast::<SysInfo>(), &mut *context.cast::<libc::ucontext_t>()) };
    let regs = &ucontext.uc_mcontext.gregs;
    let arg = |r: i32| regs[r as usize] as usize;
    let call = Call {
        nr: (sys.number as u32 & !MARK) as i64,
        args: [
            arg(libc::REG_RDI),
            arg(libc::REG_RSI),
            arg(libc::REG_RDX),
            arg(libc::REG_R10),
            arg(libc::REG_R8),
            arg(libc::REG_R9),
        ],
        sp: arg(libc::REG_RSP),
    };
    // By `int 0x80`: another table of calls, none of which the runtime looks after.
    if sys.code == SYS_SECCOMP && sys.arch != X86_64 {
        return others(signal, sys.code, info, context);
    }
    if sys.code == SYS_SECCOMP && is_trial(call.nr, call.args[1]) {
        ucontext.uc_mcontext.gregs[libc::REG_RAX as usize] = CAUGHT;
        return;
    }
    // Our own filter lets the gate pass with any arguments. So a call that is trapped there was
    // trapped by the program's filter, and has been dispatched already. Dispatching it again would
    // trap again, without end.
    let for_itself = sys.addr == AFTER_SYSCALL || sys.addr == AFTER_THREAD;
    if sys.code == SYS_SECCOMP && (sys.addr == AFTER_PROGRAM || for_itself) {
        // The runtime's own are made with locks held, on which the program's handler might come to
        // wait: they are refused. (Far mappings that are to be executed, of which the filter is
        // asked: [`crate::sandbox`].)
        if for_itself || threads::current().holds_traps() {
            ucontext.uc_mcontext.gregs[libc::REG_RAX as usize] = -i64::from(libc::EPERM);
            return;
        }
        return others(signal, sys.code, info, context);
    }
    // A filter of the program's may trap elsewhere, too, but what it makes of a far argument does
    // not come to us: the kernel asks every filter, and one signal is sent.
    if sys.code != SYS_SECCOMP || !(call.args.iter().any(|&a| is_far(a)) || is_missed(sys.addr)) {
        return others(signal, sys.code, info, context);
    }
    note_stack(call.sp);
    pager().count_trapped_syscall();
    // The call may wait, and the program's signals must reach it meanwhile, as they would without
    // farmem. It may also change the mask itself: the mask that it leaves goes into the frame.
    let mask = (&raw mut ucontext.uc_sigmask).cast::<u64>();
    // SAFETY: uc_sigmask begins with the kernel's 64-bit set.
    unsafe {
        let record = threads::current();
        let outer = record.trapped_at.swap(call.sp, Ordering::Relaxed);
        let handler = masks::change(libc::SIG_SETMASK, mask.read() & !OURS);
        let result = dispatch(&call);
        mask.write(masks::change(libc::SIG_SETMASK, handler));
        record.trapped_at.store(outer, Ordering::Relaxed);
        ucontext.uc_mcontext.gregs[libc::REG_RAX as usize] = result as i64;
    }
}

/// A trap that is the program's: of its filter, or of its strict mode, which is a filter of the
/// runtime's.
fn others(signal: i32, code: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if code == SYS_SECCOMP && sandbox::is_strict() {
        sandbox::end_strictly();
    }
    faults::not_ours(signal, info, context);
}
