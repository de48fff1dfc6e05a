//! The pager: far pages of a program, present when they are touched.
//!
//! It is made of parts. A part uses those above it in this table, and none below:
//!
//! | part | what it does |
//! |---|---|
//! | [`base`] | what all parts share: the page [`table`] of [`word`]s, the record of mappings ([`maps`]), threads ([`thread`]), far memory, counters, the page trace ([`record`]) |
//! | [`local`] | how much is local, how much may be, and which pages should leave first |
//! | [`dirty`] | which bytes of a page changed while it was local, and whether it will be written |
//! | [`out`] | pages leave, many at a time, and no write to them is lost |
//! | [`room`] | room for a page is reserved before it comes in |
//! | [`incoming`] | faults: pages come in. Start reading here |
//! | [`pins`] | pages that a system call is using |
//! | [`hints`] | the program's hints about its pages |
//! | [`share`] | local memory for the program's far objects |
//! | [`space`] | mmap, munmap, mremap, mprotect, madvise of far memory |
//! | [`house`] | the background thread; nodes that join, leave and are lost; fork |
//!
//! Beside them: [`page`], memory of pages as types; [`kernel`], the system calls on far mappings;
//! [`mod@start`], which puts the parts together; [`ending`], the ends that a load cannot report; and
//! [`wake`], which wakes the background thread.
//!
//! **Trap discipline.** A fault is a trap: it can interrupt only code that touches far memory. In
//! user mode this crate touches no far memory but pages that it owns and that are present. So it
//! may take its own locks in a fault, provided that no other signal handler of the program runs
//! while one is held. The SIGBUS handler therefore blocks all signals, or keeps those that come.
//! Every other entry blocks them itself ([`farmem_sys::raw::SignalsBlocked`]). This crate uses no
//! thread-local, no allocator of the program's, and no libc call that could.

mod base;
pub mod dirty;
pub mod ending;
mod hints;
mod house;
mod incoming;
mod kernel;
mod local;
mod maps;
mod out;
mod page;
mod pins;
mod record;
mod room;
mod share;
mod space;
mod start;
pub mod table;
mod thread;
mod wake;
pub mod word;

pub use farmem_cache::shares::Side;
pub use hints::{Hints, STEP};
pub use house::House;
pub use house::fork::Fork;
pub use house::nodes::NotJoined;
pub use kernel::Origin;
pub use maps::Mapped;
pub use out::log;
pub use pins::Pins;
pub use record::RECORD_FLAGS;
pub use share::Share;
pub use space::{Part, Space};
pub use start::{MIN_LOCAL, StartError, start};

use base::Base;
use incoming::Incoming;
use local::Local;

/// The pager of a process. One for its whole life ([`start()`]).
pub struct Pager {
    base: &'static Base,
    local: &'static Local,
    incoming: &'static Incoming,
    /// Pages that system calls use.
    pub pins: &'static Pins,
    /// Hints of the program about its pages.
    pub hints: &'static Hints,
    /// Local memory of the program's far objects.
    pub share: &'static Share,
    /// The program's far mappings.
    pub space: &'static Space,
    /// Nodes, forks, and the runtime's own threads.
    pub house: &'static House,
}

impl Pager {
    /// Serves a fault at `addr`. False when the address is not far, or the program has mapped
    /// nothing there: the signal is the program's.
    ///
    /// For the SIGBUS handler. It runs on a near stack, and all signals are blocked, or kept to its
    /// end.
    pub fn fault(&self, addr: usize, write: bool) -> bool {
        self.incoming.fault(addr, write)
    }

    /// Whether faults wait only for the kernel and for other threads of this process. That is so if
    /// the memory of all nodes is mapped and no trace is written.
    pub fn waits_for_nobody(&self) -> bool {
        self.base.pool.nodes().all_mapped() && self.base.recorder.is_none()
    }

    /// Tells the nodes that the process is about to call `exit_group`. A vfork child must not call
    /// this: its pager is its parent's.
    pub fn farewell(&self) {
        self.base.farewell();
    }

    /// Ends the process if a process that shares this memory has ended inside the pager.
    pub fn look_for_members(&self) {
        self.base.threads.look();
    }

    /// Counts what the runtime's own mappings take. It takes some hundred microseconds.
    pub fn take_stock(&self) {
        self.local.take_stock();
    }

    /// Counts a system call with a far argument.
    pub fn count_guarded_syscall(&self) {
        self.base.count(&self.base.counters.syscalls_guarded, 1);
    }

    /// Counts a system call that the filter caught.
    pub fn count_trapped_syscall(&self) {
        self.base.count(&self.base.counters.syscalls_trapped, 1);
    }

    /// Counts a system call whose number the guard does not know.
    pub fn count_unknown_syscall(&self) {
        self.base.count(&self.base.counters.syscalls_unknown, 1);
    }
}
