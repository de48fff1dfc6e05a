//! Marks: first writes that the kernel notes by itself (`--dirty pages`), and is asked about when pages leave.
//!
//! Under `WP_ASYNC` a page that came in protected has a mark in its entry of the kernel's page table. The first write takes it away, in the
//! kernel, without a signal, and `PAGEMAP_SCAN` tells which marks are there. So D in a page's word ([`crate::word`]) says less than elsewhere:
//! a page without it may have been written since it was last asked about.
//!
//! ```text
//!  a page leaves            marks are asked (hear_of_writes): written ones have D from then on, and go to their slots
//!  a fork begins            all marks are asked: the child's words, which are copies, tell what is clean
//!  a second thread begins   all are asked, and the descriptor is changed for one whose protection is synchronous (company_begins)
//! ```
//!
//! *Why only for one thread.* An answer holds as long as nobody writes. To protect a page first, as evictions do elsewhere, is not to
//! be had: `WP_ASYNC` is the whole descriptor's, and lifts that protection too. Where the program is still ([`crate::still`]) nobody
//! writes. Ways to hold other threads' writes off, and what each costs, are in `docs/design/lines.md`, as is why this is not
//! the default.

use crate::dirty::Dirty;
use crate::ending::{broken, die};
use crate::evictor::{Evictor, neighbours};
use crate::space::pages;
use crate::word::State;
use crate::{Pager, features};
use farmem_protocol::addr::{PAGE_BYTES, PageId};
use farmem_protocol::exit;
use farmem_sys::pagemap::OwnPages;
use farmem_sys::raw::SignalsBlocked;

impl Pager {
    /// Of pages that leave, those that were written have D from now on.
    pub(crate) fn hear_of_writes(&self, evictor: &mut Evictor) {
        let Some(marks) = &evictor.marks else { return };
        self.must_be_still(evictor);
        for together in evictor.leaving.chunk_by_mut(neighbours) {
            if together.iter().all(|l| l.from.dirty()) {
                continue;
            }
            let first = together[0].page;
            let heard = marks.written(first.addr(), first.addr() + together.len() * PAGE_BYTES, |from, to| {
                let index = |at| (PageId::of(at).0 - first.0) as usize;
                together[index(from)..index(to)].iter_mut().for_each(|l| l.from = l.from.with_dirty(true));
            });
            heard.unwrap_or_else(|e| broken(&format!("PAGEMAP_SCAN: {e}")));
        }
    }

    fn must_be_still(&self, evictor: &Evictor) {
        if !self.is_still(evictor) {
            let why = match evictor.tasks.others() {
                None => "the system does not tell how many threads the program has, which --dirty pages must know",
                Some(_) => {
                    "a thread has begun by a call that was not seen, and --dirty pages cannot tell what it writes"
                }
            };
            die(exit::BROKEN, &format!("{why}: run the program with --dirty exact"));
        }
    }

    /// The same of all pages that are resident. By the program's only thread, in the pager.
    pub(crate) fn hear_of_all_writes(&self, evictor: &Evictor) {
        let Some(marks) = &evictor.marks else { return };
        self.must_be_still(evictor);
        for (start, region) in self.space.lock().iter() {
            let heard = marks.written(start, region.end, |from, to| {
                let (first, last) = pages(from, to);
                self.table.walk(first, last, |_, word| {
                    let seen = word.load();
                    if seen.state() == State::Resident && !seen.dirty() {
                        word.shift(seen, seen.with_dirty(true));
                    }
                });
            });
            heard.unwrap_or_else(|e| broken(&format!("PAGEMAP_SCAN: {e}")));
        }
    }

    /// In a forked child, before it has a userfaultfd of its own: whether it can ask about its threads, and its marks; the features
    /// that it wants then. What it has inherited is closed first, for it may have no descriptors left for both.
    pub(crate) fn renew_marks(&self, evictor: &mut Evictor) -> u64 {
        evictor.tasks.reopen();
        if evictor.marks.take().is_some() {
            evictor.marks = OwnPages::open().ok().filter(|_| evictor.tasks.others().is_some());
        }
        features(self.config.mode, evictor.marks.is_some())
    }

    /// Somebody is about to run beside the calling thread, until now the program's only one, on the same memory. Called before
    /// each that begins, by the process that the pager belongs to; and at start, where nobody would see who begins.
    pub fn company_begins(&self) {
        // Nobody else needs to know, and who does not waits for no lock.
        if self.config.dirty != Dirty::Pages {
            return;
        }
        let _signals = SignalsBlocked::new();
        let _inside = self.threads.enter();
        let mut evictor = self.evictor.lock();
        self.hear_of_all_writes(&evictor);
        if evictor.marks.take().is_none() {
            return;
        }
        let failed = |e: &dyn std::fmt::Display| -> ! {
            die(exit::BROKEN, &format!("far memory could not be made ready for a second thread: {e}"))
        };
        let space = self.space.lock();
        // What is not registered would read as zeros: nobody reads, for there is one thread. To close the descriptor does not end what
        // is registered with it: a child that has just begun may hold another of it, until it executes or has its own.
        for (start, region) in space.iter() {
            self.uffd.unregister(start, region.end - start).unwrap_or_else(|e| failed(&e));
        }
        self.uffd.reopen(features(self.config.mode, false)).unwrap_or_else(|e| failed(&e));
        for (start, region) in space.iter() {
            self.uffd.register(start, region.end - start).unwrap_or_else(|e| failed(&e));
            self.protect_clean(start, region.end);
        }
    }
}
