//! SIGBUS and SIGSYS are the runtime's: never blocked, never replaced.
//!
//! The kernel kills a process whose forced signal is blocked, so both are taken
//! out of every mask on its way to the kernel, and what the program believes it
//! blocked is kept per thread ([`masks`]). What it installs for them is kept
//! ([`actions`]) and served when a signal is not the runtime's ([`faults`],
//! [`trapped`]). All others are the program's: blocked while a fault is served, or
//! open, and kept to its end ([`open`]).
//!
//! *Stacks.* The kernel writes a signal's frame without faulting: onto an absent
//! page it cannot, and kills. So every thread has a near alternate stack, on
//! which the runtime's handlers run, and the program's where they could come on
//! a far stack: [`deliver`] then moves the frame to where the program expects
//! it. What the program says to `sigaltstack` is kept and reported ([`stacks`]).

pub mod actions;
pub mod deliver;
mod faults;
mod frame;
pub mod masks;
pub mod open;
pub mod resume;
pub mod stacks;
mod trapped;
mod view;

use crate::call::Call;
use crate::dispatch::dispatch;
use crate::gate::RETURN;
use crate::threads;
use farmem_protocol::addr::is_far;
use farmem_sys::raw::syscall;
use std::sync::atomic::{AtomicBool, Ordering};

/// The signals that are the runtime's, as a kernel mask.
pub const OURS: u64 = 1 << (libc::SIGBUS - 1) | 1 << (libc::SIGSYS - 1);

/// The mask in which the runtime works. Known to assembly.
pub static ALL: u64 = !OURS;

/// The kernel's sigaction (not libc's).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelAction {
    /// Function, SIG_DFL or SIG_IGN.
    pub handler: usize,
    /// SA_…
    pub flags: u64,
    /// What the handler returns to.
    pub restorer: usize,
    /// What is blocked while it runs.
    pub mask: u64,
}

impl KernelAction {
    /// The default action.
    pub const DEFAULT: KernelAction = KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };

    /// Whether it calls a function.
    pub fn is_function(&self) -> bool {
        self.handler != libc::SIG_DFL && self.handler != libc::SIG_IGN
    }

    /// Whether it asks for something.
    pub fn has(&self, flag: i32) -> bool {
        self.flags & flag as u32 as u64 != 0
    }
}

/// Whether some thread has been seen on a far stack: from then on every handler is delivered.
static FAR_STACKS: AtomicBool = AtomicBool::new(false);

/// Whether handlers of the program's must not be called by the kernel on the interrupted stack.
pub fn far_stacks() -> bool {
    FAR_STACKS.load(Ordering::Relaxed)
}

/// To be told of every stack pointer that the runtime sees.
#[inline]
pub fn note_stack(sp: usize) {
    if is_far(sp) && !far_stacks() {
        FAR_STACKS.store(true, Ordering::SeqCst);
        actions::deliver_all();
    }
}

/// Dispatches a call that came from a stack of the program's.
pub fn dispatch_from(call: &Call) -> isize {
    note_stack(call.sp);
    dispatch(call)
}

const SA_RESTORER: u64 = 0x0400_0000;

/// A handler of the runtime's for the kernel: on the near stack, everything blocked but [`OURS`].
pub fn own_action(handler: usize, flags: i32) -> KernelAction {
    KernelAction {
        handler,
        flags: (libc::SA_SIGINFO | libc::SA_ONSTACK | flags) as u32 as u64 | SA_RESTORER,
        restorer: RETURN,
        // The whole word: libc's two own signals too, for a cancellation must not unwind through a fault.
        mask: !OURS,
    }
}

/// rt_sigaction, past everything. Returns the kernel's result.
pub fn set_action(signal: i32, new: Option<&KernelAction>, old: Option<&mut KernelAction>) -> isize {
    let new = new.map_or(0, |a| a as *const KernelAction as usize);
    let old = old.map_or(0, |a| a as *mut KernelAction as usize);
    // SAFETY: null or live structures of the kernel's layout; the handlers are the runtime's or the program's.
    unsafe { syscall(libc::SYS_rt_sigaction, [signal as usize, new, old, 8, 0, 0]) }
}

/// Takes the two signals over.
pub fn install() {
    // NODEFER: a handler of the program's that is delivered from here may touch far memory on its stack.
    let flags = libc::SA_RESTART | libc::SA_NODEFER;
    for (signal, handler) in [(libc::SIGBUS, open::on_bus()), (libc::SIGSYS, trapped::on_sys as *const () as usize)] {
        let mut before = KernelAction::DEFAULT;
        set_action(signal, Some(&own_action(handler, flags)), Some(&mut before));
        actions::inherit(signal, before);
    }
    // Whoever started the program may have left them blocked.
    masks::open();
    threads::begin(0);
}
