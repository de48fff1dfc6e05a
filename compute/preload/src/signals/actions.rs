//! The actions that the program installed, by signal. They are reported back as they were given;
//! the kernel is given actions that serve the runtime.

use super::kernel::{CANCEL, KernelAction, OURS, is_ours, own_action, set_action};
use super::stacks::far_stacks;
use super::{blocked, deliver, open, resume};
use crate::guard::peek::{BAD_ADDRESS, peek, poke};
use crate::threads::{self, Record};
use farmem_sys::raw::{SignalsBlocked, syscall};
use farmem_sys::sync::{Held, Lock};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const SIGNALS: usize = 65;

/// By number. Taken with all signals blocked, because a handler of the program's may install
/// another. SIGBUS and SIGSYS, which cannot be blocked, are kept meanwhile ([`program`]).
static PROGRAM: Lock<Actions> = Lock::new([KernelAction::DEFAULT; SIGNALS]);
type Actions = [KernelAction; SIGNALS];

/// While it lives the calling thread has the table.
struct Program {
    held: ManuallyDrop<Held<'static, Actions>>,
    record: &'static Record,
}

/// The table. A SIGBUS or SIGSYS that is sent to the thread meanwhile would want it as well:
/// [`open`] keeps it.
fn program() -> Program {
    let record = threads::current();
    record.at_actions.store(1, Ordering::Relaxed);
    Program { held: ManuallyDrop::new(PROGRAM.lock()), record }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: once, here.
        unsafe { ManuallyDrop::drop(&mut self.held) };
        left(self.record);
    }
}

/// The thread no longer has the table. Kept signals come now, or at the end of the fault that it is
/// in.
fn left(record: &Record) {
    record.at_actions.store(0, Ordering::Relaxed);
    if !record.is_serving() {
        open::send_kept();
    }
}

impl Deref for Program {
    type Target = Actions;
    fn deref(&self) -> &Actions {
        &self.held
    }
}

impl DerefMut for Program {
    fn deref_mut(&mut self) -> &mut Actions {
        &mut self.held
    }
}

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
    threads::current().at_actions.store(1, Ordering::Relaxed);
    PROGRAM.hold_across_fork();
}

/// See [`hold_across_fork`]. In a child nothing has come: [`open::forget_in_child`] goes first.
pub fn release_after_fork() {
    PROGRAM.release_after_fork();
    left(threads::current());
}

/// The action that was in force before the runtime took a signal over, as far as a program can
/// inherit it.
pub fn inherit(signal: i32, before: KernelAction) {
    adopt();
    if !before.is_function() {
        program()[signal as usize] = before;
    }
}

/// Whether this is the process whose actions are kept: no vfork child.
pub fn is_own() -> bool {
    pid() == PROCESS.load(Ordering::Relaxed)
}

/// The program's action for a signal that is being delivered; a one-shot action is used up. In a
/// vfork child it is the child's that is used up, and the kernel has that.
pub fn take(signal: i32) -> KernelAction {
    let mut program = program();
    let action = program[signal as usize];
    if action.has(libc::SA_RESETHAND) && action.is_function() {
        if is_own() {
            program[signal as usize].handler = libc::SIG_DFL;
        }
        if !is_ours(signal) {
            set_action(signal, Some(&KernelAction::DEFAULT), None);
        }
    }
    action
}

/// The action that the program has set.
pub fn kept(signal: i32) -> KernelAction {
    let _signals = SignalsBlocked::new();
    program()[signal as usize]
}

/// Tells the kernel that the program wants the default action. False, and nothing is done, if the
/// program no longer wants it, or if the table is still the parent's. All signals are blocked.
pub fn set_default(signal: i32) -> bool {
    let program = program();
    is_own()
        && program[signal as usize].handler == libc::SIG_DFL
        && set_action(signal, Some(&KernelAction::DEFAULT), None) == 0
}

/// libc cancels a waiting call by where the thread stands (glibc 2.41), which is not where libc
/// looks.
static CANCEL_BY_PLACE: AtomicBool = AtomicBool::new(false);

/// At start: how this libc cancels.
pub fn learn_cancellation() {
    // SAFETY: a static string of libc's.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    let minor = version.to_str().ok().and_then(|v| v.split('.').nth(1)?.parse().ok());
    CANCEL_BY_PLACE.store(minor.is_none_or(|minor: u32| minor >= 41), Ordering::Relaxed);
}

/// The action for the kernel, given the program's. `delivered`: on whichever stack the handler
/// wants.
fn for_kernel(signal: i32, action: &KernelAction, delivered: bool) -> KernelAction {
    let mut told = plainly(action, delivered);
    if signal == CANCEL && CANCEL_BY_PLACE.load(Ordering::Relaxed) {
        // The call must end for the thread to see that it is cancelled: libc looks again at EINTR.
        told.flags &= !(libc::SA_RESTART as u64);
    }
    told
}

fn plainly(action: &KernelAction, delivered: bool) -> KernelAction {
    if action.is_function() && (delivered || action.has(libc::SA_ONSTACK)) {
        let kept = libc::SA_RESTART | libc::SA_NOCLDSTOP | libc::SA_NOCLDWAIT;
        own_action(deliver::on_signal(), action.flags as i32 & kept)
    } else {
        KernelAction { mask: action.mask & !OURS, ..*action }
    }
}

/// At start: every handler goes through [`deliver`], those too that libraries have set already. So
/// a fault may return by [`resume`], a handler is on a far stack like on any other, what a handler
/// blocks ends with it, and libc sees where the thread stands ([`super::view`]). (Again where a far
/// stack is seen first: a vfork child's handlers are delivered from then on, too.)
pub fn deliver_all() {
    let own = is_own();
    let _signals = SignalsBlocked::new();
    let mut program = program();
    for (signal, kept) in program.iter_mut().enumerate().skip(1) {
        let signal = signal as i32;
        let mut set = KernelAction::DEFAULT;
        if is_ours(signal) || set_action(signal, None, Some(&mut set)) != 0 || !is_programs(&set) {
            continue;
        }
        if !kept.is_function() && own {
            *kept = set;
        }
        if kept.is_function() {
            set_action(signal, Some(&for_kernel(signal, kept, true)), None);
        }
    }
}

/// Whether a handler is set that the runtime does not deliver.
pub fn has_foreign() -> bool {
    (1..SIGNALS as i32).filter(|&signal| !is_ours(signal)).any(|signal| {
        let mut set = KernelAction::DEFAULT;
        set_action(signal, None, Some(&mut set)) == 0 && is_programs(&set)
    })
}

/// Whether the kernel calls a function that is not the runtime's.
fn is_programs(set: &KernelAction) -> bool {
    set.is_function() && set.handler != deliver::on_signal()
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
            Some(action) => Some(action.known()),
            None => return BAD_ADDRESS,
        }
    };
    let mut before = KernelAction::DEFAULT;
    let own = is_own();
    {
        let _signals = SignalsBlocked::new();
        let mut program = program();
        let kept = &mut program[signal as usize];
        if is_ours(signal) {
            before = *kept;
        } else {
            // A vfork child's handler is not kept, because the memory is its parent's. It therefore
            // cannot be delivered: no fault may return by `resume` any more.
            if !own && wanted.is_some_and(|action| action.is_function()) {
                resume::end();
            }
            let delivered = own || far_stacks();
            let told = wanted.as_ref().map(|action| for_kernel(signal, action, delivered));
            let ret = set_action(signal, told.as_ref(), Some(&mut before));
            if ret < 0 {
                return ret;
            }
            // The kernel knows of functions only what it was told, and reports some flags of its
            // own. The runtime's is never reported: it would be set as the program's, and call
            // itself.
            if before.handler == deliver::on_signal() || before.is_function() && kept.is_function() {
                before = *kept;
            } else if before.handler == kept.handler {
                // What the kernel was not told.
                before.mask |= kept.mask & OURS;
            }
        }
        if let Some(action) = wanted
            && own
        {
            *kept = action;
            if is_ours(signal) && action.handler == libc::SIG_IGN {
                blocked::discard(signal);
            }
        }
    }
    if old != 0 && !poke(old, before) {
        return BAD_ADDRESS;
    }
    0
}
