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
