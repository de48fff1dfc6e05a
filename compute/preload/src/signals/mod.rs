//! SIGBUS and SIGSYS are the runtime's: never blocked, never replaced.
//!
//! The kernel kills a process if SIGBUS or SIGSYS is forced on it while blocked. So both are
//! removed from every mask on its way to the kernel, and the mask that the program believes in is
//! kept per thread ([`masks`]). The program's actions for them are kept ([`actions`]), and carried
//! out when a signal is not the runtime's ([`faults`], [`trapped`]). All other signals are the
//! program's. While a fault is served they are blocked; or they stay open, and are kept until its
//! end ([`open`]).
//!
//! *Stacks.* The kernel writes a signal's frame without faulting: onto an absent page it cannot,
//! and kills. So every thread has a near alternate stack. The runtime's handlers run on it, and so
//! do the program's where they could come on a far stack: [`deliver`] then moves the frame to where
//! the program expects it. The program's calls of `sigaltstack` are kept and reported ([`stacks`]).

pub mod actions;
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

use crate::threads;
use kernel::{KernelAction, own_action, set_action};

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
    // The parent process may have left them blocked.
    masks::open();
    threads::begin(0);
}
