//! SIGBUS and SIGSYS are the runtime's: never blocked, never replaced.
//!
//! The kernel kills a process if SIGBUS or SIGSYS is forced on it while blocked. So both are
//! removed from every mask on its way to the kernel, and the mask that the program believes in is
//! kept per thread ([`masks`]). The program's actions for them are kept ([`actions`]), and carried
//! out when a signal is not the runtime's ([`faults`], [`trapped`]). All other signals are the
//! program's. While a fault is served they are blocked; or they stay open, and are kept until its
//! end ([`open`]).
//!
//! One that is sent while the program believes it blocked waits ([`blocked`]); a call may wait with
//! another mask ([`waiting`]).
//!
//! *Stacks.* The kernel writes a signal's frame without faulting: onto an absent page it cannot,
//! and kills. So every thread has a near alternate stack. The runtime's handlers run on it, and so
//! do the program's where they could come on a far stack: [`deliver`] then moves the frame to where
//! the program expects it. The program's calls of `sigaltstack` are kept and reported ([`stacks`]).

pub mod actions;
pub mod blocked;
pub mod deliver;
mod faults;
mod frame;
mod kernel;
pub mod masks;
pub mod open;
pub mod resume;
pub mod stacks;
mod trapped;
mod view;
pub mod waiting;

use crate::{confined, threads};
use kernel::{KernelAction, own_action, set_action};
use std::sync::atomic::Ordering;

/// Takes the two signals over.
pub fn install() {
    // NODEFER: a handler of the program's that is delivered from here may touch far memory on its
    // stack.
    let flags = libc::SA_RESTART | libc::SA_NODEFER;
    for (signal, handler) in [(libc::SIGBUS, open::on_bus()), (libc::SIGSYS, trapped::on_sys as *const () as usize)] {
        let mut before = KernelAction::DEFAULT;
        set_action(signal, Some(&own_action(handler, flags)), Some(&mut before));
        actions::inherit(signal, before);
    }
    // The parent process, or what was executed before, may have left them blocked.
    threads::begin(masks::open() as usize);
}

/// What the next image inherits of the runtime's two signals: that the program has them blocked or
/// ignored. Until it is dropped the calling thread must not touch far memory.
pub struct Bequest {
    blocked: u64,
    /// The runtime's actions.
    actions: [Option<KernelAction>; 2],
}

/// Tells the kernel what the next image is to inherit. Actions are left as they are where another
/// thread of the program's may fault meanwhile.
pub fn bequeath() -> Bequest {
    const SIGNALS: [i32; 2] = [libc::SIGBUS, libc::SIGSYS];
    let ignores = |signal: i32| actions::kept(signal).handler == libc::SIG_IGN;
    let ignored = SIGNALS.map(|signal| actions::is_own() && ignores(signal));
    let alone = ignored.contains(&true) && confined::alone().unwrap_or_else(threads::is_only_one);
    let blocked = threads::current().hidden.load(Ordering::Relaxed) as u64;
    let actions = [0, 1].map(|at| {
        let mut before = KernelAction::DEFAULT;
        let ignore = KernelAction { handler: libc::SIG_IGN, ..KernelAction::DEFAULT };
        let set = ignored[at] && alone && set_action(SIGNALS[at], Some(&ignore), Some(&mut before)) == 0;
        set.then_some(before)
    });
    if blocked != 0 {
        masks::change(libc::SIG_BLOCK, blocked);
    }
    Bequest { blocked, actions }
}

impl Drop for Bequest {
    fn drop(&mut self) {
        for (signal, action) in [libc::SIGBUS, libc::SIGSYS].into_iter().zip(&self.actions) {
            if action.is_some() {
                set_action(signal, action.as_ref(), None);
            }
        }
        if self.blocked != 0 {
            masks::open();
        }
    }
}
