//! SIGBUS and SIGSYS are the runtime's: never blocked, never replaced.
//!
//! The kernel kills a process whose forced signal is blocked, so both are taken
//! out of every mask on its way to the kernel. What the program installs for
//! them is kept here, and called when a signal is not the runtime's.

use crate::dispatch::{Call, dispatch, issue};
use crate::guard::{BAD_ADDRESS, peek, poke};
use crate::start::pager;
use farmem_sys::raw::syscall;
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The kernel's sigaction (not libc's).
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

const OURS: u64 = 1 << (libc::SIGBUS - 1) | 1 << (libc::SIGSYS - 1);
const DEFAULT: KernelAction = KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };

/// What the program installed for SIGBUS and for SIGSYS.
static PROGRAM: [Lock<KernelAction>; 2] = [Lock::new(DEFAULT), Lock::new(DEFAULT)];

fn program(signal: i32) -> Option<&'static Lock<KernelAction>> {
    match signal {
        libc::SIGBUS => Some(&PROGRAM[0]),
        libc::SIGSYS => Some(&PROGRAM[1]),
        _ => None,
    }
}

type SigactionFn = unsafe extern "C" fn(i32, *const libc::sigaction, *mut libc::sigaction) -> i32;
static REAL_SIGACTION: AtomicUsize = AtomicUsize::new(0);

/// libc's sigaction, which knows the restorer.
fn real_sigaction() -> SigactionFn {
    let mut at = REAL_SIGACTION.load(Ordering::Relaxed);
    if at == 0 {
        // SAFETY: a lookup by name. The first call is from the constructor.
        at = unsafe { libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr()) } as usize;
        REAL_SIGACTION.store(at, Ordering::Relaxed);
    }
    // SAFETY: libc's function of that name has this type.
    unsafe { std::mem::transmute::<usize, SigactionFn>(at) }
}

/// libc's `sigaction` as the program calls it.
///
/// # Safety
/// As libc's.
pub unsafe fn sigaction(signal: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> i32 {
    // SAFETY: the program's pointers, read and written as libc would; live copies of ours otherwise.
    unsafe {
        let Some(kept) = program(signal).filter(|_| crate::start::started()) else {
            if new.is_null() {
                return real_sigaction()(signal, new, old);
            }
            let mut stripped = *new;
            libc::sigdelset(&mut stripped.sa_mask, libc::SIGBUS);
            libc::sigdelset(&mut stripped.sa_mask, libc::SIGSYS);
            let mut before: libc::sigaction = std::mem::zeroed();
            let ret = real_sigaction()(signal, &stripped, &mut before);
            if ret == 0 && !old.is_null() {
                *old = before;
            }
            return ret;
        };
        let wanted = if new.is_null() { None } else { Some(*new) };
        let before = {
            let mut kept = kept.lock();
            let before = *kept;
            if let Some(new) = wanted {
                *kept = KernelAction {
                    handler: new.sa_sigaction,
                    flags: new.sa_flags as u64,
                    restorer: 0,
                    mask: (&raw const new.sa_mask).cast::<u64>().read(),
                };
            }
            before
        };
        if !old.is_null() {
            let mut out: libc::sigaction = std::mem::zeroed();
            out.sa_sigaction = before.handler;
            out.sa_flags = before.flags as i32;
            (&raw mut out.sa_mask).cast::<u64>().write(before.mask);
            *old = out;
        }
        0
    }
}

/// Installs the runtime's handlers.
pub fn install() {
    for (signal, handler) in
        [(libc::SIGBUS, on_bus as *const () as usize), (libc::SIGSYS, on_sys as *const () as usize)]
    {
        // SAFETY: handlers of ours that keep to the rules of this crate; libc supplies the restorer.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            // The whole word: sigfillset would leave out the two signals that libc keeps for itself,
            // and a cancellation must not unwind through a fault.
            (&raw mut action.sa_mask).cast::<u64>().write(!OURS);
            (real_sigaction())(signal, &action, std::ptr::null_mut());
        }
    }
    // Whoever started the program may have left them blocked.
    let open = OURS;
    // SAFETY: one live word.
    unsafe {
        syscall(libc::SYS_rt_sigprocmask, [libc::SIG_UNBLOCK as usize, &open as *const u64 as usize, 0, 8, 0, 0]);
    }
    own_stack();
}

const STACK_BYTES: usize = 64 << 10;

/// Gives the calling thread an alternate stack of the runtime's.
pub fn own_stack() {
    if let Ok(at) = farmem_sys::memory::reserve(STACK_BYTES) {
        let stack = libc::stack_t { ss_sp: at.cast(), ss_flags: 0, ss_size: STACK_BYTES };
        // SAFETY: fresh memory that is never freed; the structure is live.
        unsafe { syscall(libc::SYS_sigaltstack, [&stack as *const _ as usize, 0, 0, 0, 0, 0]) };
    }
}

/// A fault. Ours if far, else the program's.
extern "C" fn on_bus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's arguments.
    let (addr, write) = unsafe {
        let context = &*context.cast::<libc::ucontext_t>();
        ((*info).si_addr() as usize, context.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0)
    };
    if !pager().fault(addr, write) {
        chain(signal, info, context);
    }
}

const SYS_SECCOMP: i32 = 1;

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

/// A system call that the filter caught.
extern "C" fn on_sys(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's arguments; for SIGSYS the siginfo has this layout.
    let (sys, ucontext) = unsafe { (&*info.cast::<SysInfo>(), &mut *context.cast::<libc::ucontext_t>()) };
    if sys.code != SYS_SECCOMP {
        return chain(signal, info, context);
    }
    let regs = &mut ucontext.uc_mcontext.gregs;
    let arg = |r: i32| regs[r as usize] as usize;
    let call = Call {
        nr: sys.number as i64,
        args: [
            arg(libc::REG_RDI),
            arg(libc::REG_RSI),
            arg(libc::REG_RDX),
            arg(libc::REG_R10),
            arg(libc::REG_R8),
            arg(libc::REG_R9),
        ],
    };
    pager().count_trapped_syscall();
    // The call may wait, and the program's signals must reach it meanwhile, as they would have.
    let mut mask = 0u64;
    // SAFETY: uc_sigmask begins with the kernel's 64-bit set.
    let wanted = unsafe { (&raw const ucontext.uc_sigmask).cast::<u64>().read() } & !OURS;
    // SAFETY: live words.
    unsafe {
        let set = libc::SIG_SETMASK as usize;
        syscall(
            libc::SYS_rt_sigprocmask,
            [set, &wanted as *const u64 as usize, &mut mask as *mut u64 as usize, 8, 0, 0],
        );
    }
    let result = dispatch(&call);
    // SAFETY: a live word.
    unsafe {
        syscall(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, &mask as *const u64 as usize, 0, 8, 0, 0]);
    }
    ucontext.uc_mcontext.gregs[libc::REG_RAX as usize] = result as i64;
}

/// A signal that is not the runtime's goes where the program wants it.
fn chain(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(program) = program(signal) else { return };
    let action = *program.lock();
    match action.handler {
        libc::SIG_IGN => {}
        libc::SIG_DFL => {
            // The signal again, for the process, with the default action; past the program's own
            // idea of it and past every hook. A forced one would come back by itself; one that was
            // sent would not.
            let default = DEFAULT;
            // SAFETY: a live structure; no other pointer.
            unsafe {
                syscall(libc::SYS_rt_sigaction, [signal as usize, &default as *const _ as usize, 0, 8, 0, 0]);
                let (pid, thread) = (syscall(libc::SYS_getpid, [0; 6]), syscall(libc::SYS_gettid, [0; 6]));
                syscall(libc::SYS_tgkill, [pid as usize, thread as usize, signal as usize, 0, 0, 0]);
            }
        }
        handler if action.flags & libc::SA_SIGINFO as u64 != 0 => {
            // SAFETY: the program's handler, of the type it said.
            unsafe {
                std::mem::transmute::<usize, extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void)>(handler)(
                    signal, info, context,
                )
            }
        }
        handler => {
            // SAFETY: as above.
            unsafe { std::mem::transmute::<usize, extern "C" fn(i32)>(handler)(signal) }
        }
    }
}

/// rt_sigaction of the program's.
pub fn rt_sigaction(signal: i32, new: usize, old: usize, size: usize) -> isize {
    if size != 8 {
        return -(libc::EINVAL as isize);
    }
    let wanted = if new == 0 {
        None
    } else {
        match peek::<KernelAction>(new) {
            Some(action) => Some(action),
            None => return BAD_ADDRESS,
        }
    };
    let mut before = DEFAULT;
    if let Some(kept) = program(signal) {
        let mut kept = kept.lock();
        before = *kept;
        if let Some(action) = wanted {
            *kept = action;
        }
    } else {
        let stripped = wanted.map(|a| KernelAction { mask: a.mask & !OURS, ..a });
        let at = stripped.as_ref().map_or(0, |a| a as *const _ as usize);
        let ret = issue(&Call {
            nr: libc::SYS_rt_sigaction,
            args: [signal as usize, at, if old == 0 { 0 } else { &mut before as *mut _ as usize }, 8, 0, 0],
        });
        if ret < 0 {
            return ret;
        }
    }
    if old != 0 && !poke(old, before) {
        return BAD_ADDRESS;
    }
    0
}

/// rt_sigprocmask of the program's.
pub fn rt_sigprocmask(how: i32, new: usize, old: usize, size: usize) -> isize {
    if size != 8 {
        return -(libc::EINVAL as isize);
    }
    let mut before = 0u64;
    let mut wanted = 0u64;
    if new != 0 {
        match peek::<u64>(new) {
            Some(set) => wanted = set & !OURS,
            None => return BAD_ADDRESS,
        }
    }
    let ret = issue(&Call {
        nr: libc::SYS_rt_sigprocmask,
        args: [
            how as usize,
            if new == 0 { 0 } else { &wanted as *const u64 as usize },
            &mut before as *mut u64 as usize,
            8,
            0,
            0,
        ],
    });
    if ret == 0 && old != 0 && !poke(old, before) {
        return BAD_ADDRESS;
    }
    ret
}

/// sigaltstack of the program's. A far stack could not take the frame of the fault on itself: a near
/// one of the same size stands in for it.
pub fn sigaltstack(new: usize, old: usize) -> isize {
    let mut wanted = None;
    if new != 0 {
        let Some(mut stack) = peek::<libc::stack_t>(new) else { return BAD_ADDRESS };
        if stack.ss_flags & libc::SS_DISABLE == 0 {
            let size = stack.ss_size.max(STACK_BYTES).next_multiple_of(4096);
            let Ok(near) = farmem_sys::memory::reserve(size) else { return -(libc::ENOMEM as isize) };
            stack.ss_sp = near.cast();
            stack.ss_size = size;
            wanted = Some(stack);
        }
    }
    // SAFETY: all-zero is a valid stack_t.
    let mut before: libc::stack_t = unsafe { std::mem::zeroed() };
    let ret = issue(&Call {
        nr: libc::SYS_sigaltstack,
        args: [wanted.as_ref().map_or(0, |s| s as *const _ as usize), &mut before as *mut _ as usize, 0, 0, 0, 0],
    });
    if ret == 0 && old != 0 && !poke(old, before) {
        return BAD_ADDRESS;
    }
    ret
}
