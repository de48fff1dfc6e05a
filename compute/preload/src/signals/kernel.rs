//! The kernel's view of signals.

use crate::gate::RETURN;
use farmem_sys::raw::syscall;

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
    /// The address that the handler returns to.
    pub restorer: usize,
    /// The signals that are blocked while it runs.
    pub mask: u64,
}

impl KernelAction {
    /// The default action.
    pub const DEFAULT: KernelAction = KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };

    /// Whether it calls a function.
    pub fn is_function(&self) -> bool {
        self.handler != libc::SIG_DFL && self.handler != libc::SIG_IGN
    }

    /// As the kernel keeps it: without flags that it does not know, and never with SIGKILL or
    /// SIGSTOP blocked.
    pub fn known(self) -> KernelAction {
        const KNOWN: i32 = libc::SA_NOCLDSTOP
            | libc::SA_NOCLDWAIT
            | libc::SA_SIGINFO
            | libc::SA_ONSTACK
            | libc::SA_RESTART
            | libc::SA_NODEFER
            | libc::SA_RESETHAND
            | SA_EXPOSE_TAGBITS;
        const NEVER: u64 = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
        let flags = self.flags & (KNOWN as u32 as u64 | SA_RESTORER);
        KernelAction { flags, mask: self.mask & !NEVER, ..self }
    }

    /// Whether it asks for something.
    pub fn has(&self, flag: i32) -> bool {
        self.flags & flag as u32 as u64 != 0
    }
}

const SA_RESTORER: u64 = 0x0400_0000;
const SA_EXPOSE_TAGBITS: i32 = 0x800;

/// A handler of the runtime's for the kernel: on the near stack, everything blocked but [`OURS`].
pub fn own_action(handler: usize, flags: i32) -> KernelAction {
    KernelAction {
        handler,
        flags: (libc::SA_SIGINFO | libc::SA_ONSTACK | flags) as u32 as u64 | SA_RESTORER,
        restorer: RETURN,
        // The whole word: libc's two own signals too, because a cancellation must not unwind
        // through a fault.
        mask: !OURS,
    }
}

/// rt_sigaction, past everything. Returns the kernel's result.
pub fn set_action(signal: i32, new: Option<&KernelAction>, old: Option<&mut KernelAction>) -> isize {
    let new = new.map_or(0, |a| a as *const KernelAction as usize);
    let old = old.map_or(0, |a| a as *mut KernelAction as usize);
    // SAFETY: null or live structures of the kernel's layout; the handlers are the runtime's or the
    // program's.
    unsafe { syscall(libc::SYS_rt_sigaction, [signal as usize, new, old, 8, 0, 0]) }
}

/// Whether it is SIGBUS or SIGSYS.
pub fn is_ours(signal: i32) -> bool {
    OURS >> (signal - 1) & 1 != 0
}

/// libc's signal for `pthread_cancel`.
pub const CANCEL: i32 = 32;
