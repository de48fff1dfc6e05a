//! What the program installed, by signal: reported back as it was given, while the
//! kernel is told what serves the runtime.

use super::{KernelAction, OURS, deliver, far_stacks, own_action, set_action};
use crate::guard::{BAD_ADDRESS, peek, poke};
use farmem_sys::raw::{SignalsBlocked, syscall};
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const SIGNALS: usize = 65;

/// By number. Taken with all signals blocked: a handler of the program's may install another.
static PROGRAM: Lock<[KernelAction; SIGNALS]> = Lock::new([KernelAction::DEFAULT; SIGNALS]);

/// The process whose actions these are. A child of vfork or posix_spawn shares the memory, but has
/// actions of its own in the kernel.
static PROCESS: AtomicU32 = AtomicU32::new(0);

fn pid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) as u32 }
}

/// In this process from now on (start, forked child).
pub fn adopt() {
    PROCESS.store(pid(), Ordering::Relaxed);
}

/// Keeps the table consistent over a fork.
pub fn hold_across_fork() {
    PROGRAM.hold_across_fork();
}

/// See [`hold_across_fork`].
pub fn release_after_fork() {
    PROGRAM.release_after_fork();
}

/// What was in force before the runtime took a signal over, as far as a program can inherit it.
pub fn inherit(signal: i32, before: KernelAction) {
    adopt();
    if !before.is_function() {
        PROGRAM.lock()[signal as usize] = before;
    }
}

/// What the program wants done with a signal that is being delivered; a one-shot action is used up.
pub fn take(signal: i32) -> KernelAction {
    let mut program = PROGRAM.lock();
    let action = program[signal as usize];
    if action.has(libc::SA_RESETHAND) && action.is_function() {
        program[signal as usize].handler = libc::SIG_DFL;
        if !is_ours(signal) {
            set_action(signal, Some(&KernelAction::DEFAULT), None);
        }
    }
    action
}

fn is_ours(signal: i32) -> bool {
    OURS >> (signal - 1) & 1 != 0
}

/// libc's signal for `pthread_cancel`.
const CANCEL: i32 = 32;
/// libc cancels a waiting call by where the thread stands (glibc 2.41), which is not where libc looks.
static CANCEL_BY_PLACE: AtomicBool = AtomicBool::new(false);

/// At start: how this libc cancels.
pub fn learn_cancellation() {
    // SAFETY: a static string of libc's.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    let minor = version.to_str().ok().and_then(|v| v.split('.').nth(1)?.parse().ok());
    CANCEL_BY_PLACE.store(minor.is_none_or(|minor: u32| minor >= 41), Ordering::Relaxed);
}

/// What the kernel is told, given what the program wants.
fn for_kernel(signal: i32, action: &KernelAction) -> KernelAction {
    let mut told = plainly(action);
    if signal == CANCEL && CANCEL_BY_PLACE.load(Ordering::Relaxed) {
        // The call must end for the thread to see that it is cancelled: libc looks again at EINTR.
        told.flags &= !(libc::SA_RESTART as u64);
    }
    told
}

fn plainly(action: &KernelAction) -> KernelAction {
    if action.is_function() && (far_stacks() || action.has(libc::SA_ONSTACK)) {
        let kept = libc::SA_RESTART | libc::SA_NOCLDSTOP | libc::SA_NOCLDWAIT;
        own_action(deliver::on_signal as *const () as usize, action.flags as i32 & kept)
    } else {
        KernelAction { mask: action.mask & !OURS, ..*action }
    }
}

/// A far stack has been seen: every handler goes through [`deliver`] from now on.
pub fn reinstall() {
    let _signals = SignalsBlocked::new();
    let program = PROGRAM.lock();
    for (signal, action) in program.iter().enumerate() {
        if action.is_function() && !is_ours(signal as i32) {
            set_action(signal as i32, Some(&for_kernel(signal as i32, action)), None);
        }
    }
}

/// rt_sigaction of the program's.
pub fn rt_sigaction(signal: i32, new: usize, old: usize, size: usize) -> isize {
    if size != 8 || !(1..SIGNALS as i32).contains(&signal) {
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
    let mut before = KernelAction::DEFAULT;
    let own = pid() == PROCESS.load(Ordering::Relaxed);
    {
        let _signals = SignalsBlocked::new();
        let mut program = PROGRAM.lock();
        let kept = &mut program[signal as usize];
        if is_ours(signal) {
            before = *kept;
        } else {
            let told = wanted.as_ref().map(|action| for_kernel(signal, action));
            let ret = set_action(signal, told.as_ref(), Some(&mut before));
            if ret < 0 {
                return ret;
            }
            // The kernel knows of functions only what it was told, and reports some flags of its own.
            if before.is_function() && kept.is_function() {
                before = *kept;
            }
        }
        if let Some(action) = wanted
            && own
        {
            *kept = action;
        }
    }
    if old != 0 && !poke(old, before) {
        return BAD_ADDRESS;
    }
    0
}
