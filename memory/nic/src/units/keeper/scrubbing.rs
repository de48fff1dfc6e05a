//! Several threads scrub, each its own units.
//!
//! No word guards a scrub. So each unit is *one thread's to scrub*, which is decided under the lock
//! on the jobs at work:
//!
//! ```text
//!  under the lock   no thread scrubs the unit, its word is the quarantine that was drained
//!                   ─► written down as being scrubbed
//!  outside          its memory emptied ─► CAS QUARANTINE(g) → FREE(g) ─► struck out
//! ```
//!
//! * Two operations of one unit. The second may find the unit written down, and waits. Or it finds
//!   the unit struck out, and sees by the word that it is free, or another owner's.
//! * While a unit is scrubbed, its word does not change. No owner's CAS leads out of quarantine,
//!   and the scrubber's own comes after the scrub. So the unit around it is not merged, and the
//!   units inside it do not come to be. No other scrub could overlap this one; an overlapping scrub
//!   is refused all the same.
//! * The node dies during a scrub: its memory is lost with it. If the table outlives the daemon,
//!   the next daemon finds QUARANTINE, and begins again from the drain.

use super::{Call, Job, Task, Units, VERBS};
use farmem_protocol::extent::place::Place;
use farmem_protocol::extent::reclaim::Reclaim;
use farmem_protocol::extent::{Answer, Operation};
use farmem_sys::sync::Lock;
use std::sync::atomic::Ordering;

/// Units that threads are scrubbing. Only the holder of the lock on the keeper's work adds to it.
pub struct Scrubbing(pub Lock<Vec<Scrubbed>>);

pub struct Scrubbed {
    pub number: u64,
    pub place: Place,
    /// The system refused to empty it: the operation, to be tried again.
    pub refused: Option<Task<Reclaim>>,
}

impl Default for Scrubbing {
    fn default() -> Self {
        Scrubbing(Lock::new(Vec::new()))
    }
}

impl Units {
    /// Jobs whose scrub the system refused.
    pub(super) fn refused(&self) -> Vec<(u64, Job)> {
        let mut scrubbing = self.keeping.scrubbing.0.lock();
        let refused = scrubbing.extract_if(.., |scrubbed| scrubbed.refused.is_some());
        refused.filter_map(|s| Some((s.number, Job::Reclaim(s.place, s.refused?)))).collect()
    }

    /// Scrubs a unit that this thread may scrub, and ends its operation. False: the system refused
    /// to empty the unit now; the operation is kept to be tried again.
    pub(super) fn scrub_and_free(
        &self,
        number: u64,
        place: Place,
        mut task: Task<Reclaim>,
        call: &mut Call<'_>,
    ) -> bool {
        let begun = (call.cpu_ns)();
        let scrubbed = self.scrub(place);
        call.scrub_ns += (call.cpu_ns)().saturating_sub(begun);
        if !scrubbed {
            let mut scrubbing = self.keeping.scrubbing.0.lock();
            if let Some(this) = scrubbing.iter_mut().find(|scrubbed| scrubbed.number == number) {
                this.refused = Some(task);
            }
            drop(scrubbing);
            self.keeping.busy.store(true, Ordering::Release);
            return false;
        }
        task.operation.complete(Answer::Ready);
        // Only a CAS is left to do. The limit on verbs must not stop it.
        call.verbs = call.verbs.max(VERBS);
        let ended = self.advance(&mut task, call);
        debug_assert!(ended.is_some(), "a scrubbed unit is freed at once");
        // Struck out after the CAS: a thread that finds the unit struck out must see by its word
        // that it is free.
        self.keeping.scrubbing.0.lock().retain(|scrubbed| scrubbed.number != number);
        if let Some(ended) = ended {
            self.has_reclaimed(place, ended);
        }
        true
    }

    /// Whether a thread scrubs this unit, a part of it, or a unit around it.
    pub(in crate::units) fn is_scrubbed(&self, place: Place) -> bool {
        let bytes = self.words.geometry().bytes(place);
        self.keeping.scrubbing.0.lock().iter().any(|other| {
            let other = self.words.geometry().bytes(other.place);
            other.start < bytes.end && bytes.start < other.end
        })
    }

    /// Gives a unit's memory back to the system: it reads as zero. False: not now.
    fn scrub(&self, place: Place) -> bool {
        let bytes = self.words.geometry().bytes(place);
        let emptied = self.empty(place);
        if emptied {
            self.keeping.kept.scrubbed_bytes.fetch_add(bytes.end - bytes.start, Ordering::Relaxed);
        }
        emptied
    }
}
