//! `--fault thread`: the classic way. A fault puts the thread to sleep in the
//! kernel; a handler thread reads the event, serves it by the same code as the
//! inline way, and wakes the sleeper. Ten times slower (an idle core must be
//! woken twice), and right where SIGBUS faults cannot be had.

use crate::Pager;
use crate::background::Job;
use farmem_protocol::addr::{PAGE_BYTES, PageId, is_far};
use farmem_run::Faults;
use farmem_sys::clock;
use farmem_sys::raw::wait_readable;

impl Pager {
    /// Starts the handler thread, in thread mode.
    pub(crate) fn start_handler(&self) {
        if self.spec.faults == Faults::Thread {
            self.spawn(Job::Handler);
        }
    }

    pub(crate) fn run_handler(&self) -> ! {
        loop {
            let Some(event) = self.uffd.next_fault() else {
                wait_readable(self.uffd.fd(), 1_000);
                continue;
            };
            if !is_far(event.addr) {
                continue;
            }
            let begun = clock::ticks();
            let page = PageId::of(event.addr);
            let mut inside = self.threads.enter();
            self.serve(&mut inside, page, event.write, clock::ticks());
            drop(inside);
            // An install wakes by itself; a page that was there already, or is no longer mapped, does not.
            let _ = self.uffd.wake(page.addr(), PAGE_BYTES);
            self.count(&self.counters.wait_ns, clock::ns(clock::ticks() - begun));
        }
    }
}
