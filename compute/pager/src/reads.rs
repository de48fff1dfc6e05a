//! READs: from a slot that is not mapped to the thread's landing buffer.
//!
//! ```text
//! landing:  [ demand | window page 0 | window page 1 | … ]      the demand page's READ leaves at once,
//!                                                               the window's by one doorbell when it is planned
//! ```

use crate::Pager;
use crate::ending::die;
use crate::thread::{Thread, WINDOW};
use farmem_fabric::Lost;
use farmem_pool::Place;
use farmem_protocol::addr::PAGE_BYTES;
use farmem_protocol::exit;

impl Pager {
    /// Sends the READ of the demand page, to index 0 of the landing buffer.
    pub(crate) fn post_demand(&self, thread: &mut Thread, place: Place) {
        self.post_read(thread, place, 0);
        self.ring(thread);
    }

    /// Sends the READs of the window that was planned.
    pub(crate) fn post_window(&self, thread: &mut Thread) {
        let mut posted = false;
        for i in 0..thread.claimed.len() {
            let place = self.pool.place(thread.claimed[i].slot);
            if place.mapped == 0 {
                self.post_read(thread, place, 1 + i);
                posted = true;
            }
        }
        if posted {
            self.ring(thread);
        }
    }

    /// Waits for the rest of the window.
    pub(crate) fn await_window(&self, thread: &mut Thread) {
        while thread.links.iter().flatten().any(|q| q.in_flight() > 0) {
            self.await_read(thread, |_| true);
        }
    }

    fn post_read(&self, thread: &mut Thread, place: Place, index: usize) {
        if let Err(lost) = self.link(thread, place.node) {
            self.node_lost(&lost);
        }
        // SAFETY: within the landing buffer, which outlives the operation: nobody leaves before
        // all READs are complete.
        unsafe {
            let into = thread.landing.add(index * PAGE_BYTES);
            if let Some(link) = &mut thread.links[place.node] {
                link.read(index as u64, place.slab, place.offset, into, PAGE_BYTES as u32);
            }
        }
    }

    /// Makes the thread's queue pair to a node, if it has none.
    pub(crate) fn link(&self, thread: &mut Thread, node: usize) -> Result<(), Lost> {
        if thread.links.len() <= node {
            thread.links.resize_with(node + 1, || None);
        }
        if thread.links[node].is_none() {
            // SAFETY: landing buffers are never unmapped: a thread's belongings outlive it.
            unsafe { self.pool.arena(thread.landing, WINDOW * PAGE_BYTES) };
            thread.links[node] = Some(self.pool.queue_pair(node)?);
        }
        Ok(())
    }

    fn ring(&self, thread: &mut Thread) {
        for link in thread.links.iter_mut().flatten() {
            if let Err(lost) = link.doorbell() {
                self.node_lost(&lost);
            }
        }
    }

    /// Waits until a completion satisfies `enough`. A refused READ means that the node does not
    /// hold what it granted: nothing can be salvaged.
    pub(crate) fn await_read(&self, thread: &mut Thread, enough: impl Fn(u64) -> bool) {
        let mut satisfied = false;
        while !satisfied {
            let mut waiting = false;
            for link in thread.links.iter_mut().flatten() {
                if link.in_flight() == 0 {
                    continue;
                }
                waiting = true;
                thread.done.clear();
                match link.wait(&mut thread.done, std::time::Duration::from_secs(1)) {
                    Ok(_) => {}
                    Err(lost) => self.node_lost(&lost),
                }
                for done in &thread.done {
                    if let Err(refusal) = &done.result {
                        die(exit::NODE_LOST, &format!("a memory node refused to return a page it holds: {refusal}"));
                    }
                    satisfied |= enough(done.tag);
                }
            }
            if !waiting {
                return;
            }
        }
    }

    /// The end of a run whose node is gone.
    pub(crate) fn node_lost(&self, lost: &Lost) -> ! {
        die(exit::NODE_LOST, &lost.to_string())
    }
}
