//! `--fault thread`: faults by events.
//!
//! A fault puts the thread to sleep in the kernel. A handler thread reads the event, serves it by
//! the same code as the inline way, and wakes the sleeper. It is ten times slower, because an idle
//! core is woken twice. It is for systems where faults cannot be had by SIGBUS.
//!
//! The thread ends with its process. `farmem run` ends those that share the memory, go on, and wait
//! for a page.

use super::{House, the_house};
use crate::ending::die;
use farmem_protocol::addr::{PAGE_BYTES, PageId, is_far};
use farmem_run::exit;
use farmem_sys::clock;
use farmem_sys::raw::{futex_wait, futex_wake, wait_readable};
use farmem_sys::thread::{HANDLER, name_own, spawn};
use std::sync::atomic::{AtomicU32, Ordering};

/// 1 once the handler thread has its name. A futex.
static NAMED: AtomicU32 = AtomicU32::new(0);

impl House {
    /// Starts the thread. It has its name before any code of the program can fault: a process that
    /// waits for a page and has no such thread is ended (`cli/src/run/stranded.rs`).
    pub(super) fn start_events(&self) {
        // A forked child has its parent's.
        NAMED.store(0, Ordering::Relaxed);
        if let Err(e) = spawn(|_| the_house().run_handler(), 0) {
            die(exit::BROKEN, &format!("the thread that brings pages (--fault thread) could not be started: {e}"));
        }
        while NAMED.load(Ordering::Acquire) == 0 {
            futex_wait(&NAMED, 0, 1_000_000_000);
        }
    }

    fn run_handler(&self) -> ! {
        name_own(HANDLER);
        NAMED.store(1, Ordering::Release);
        futex_wake(&NAMED, 1);
        loop {
            let Some(event) = self.base.uffd.next_fault() else {
                wait_readable(self.base.uffd.fd(), 1_000);
                continue;
            };
            if !is_far(event.addr) {
                continue;
            }
            let begun = clock::ticks();
            let page = PageId::of(event.addr);
            let mut inside = self.base.threads.enter();
            self.incoming.serve(&mut inside, page, event.write, clock::ticks());
            drop(inside);
            // An install wakes the sleeper by itself. A page that was there already does not, nor
            // one that is no longer mapped.
            let _ = self.base.uffd.wake(page.addr(), PAGE_BYTES);
            self.base.count(&self.base.counters.wait_ns, clock::ns(clock::ticks() - begun));
        }
    }
}
