//! `--fault thread`: faults by events.
//!
//! A fault puts the thread to sleep in the kernel. A handler thread reads the event, serves it by
//! the same code as the inline way, and wakes the sleeper. It is ten times slower, because an idle
//! core is woken twice. It is for systems where faults cannot be had by SIGBUS.

use super::House;
use farmem_protocol::addr::{PAGE_BYTES, PageId, is_far};
use farmem_sys::clock;
use farmem_sys::raw::wait_readable;

impl House {
    pub(super) fn run_handler(&self) -> ! {
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
