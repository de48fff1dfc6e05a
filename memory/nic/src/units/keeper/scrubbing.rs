//! Several threads scrub, each its own units.
//!
//! A scrub is not guarded by words, so it begins with a look, and each unit is *one thread's to
//! scrub*:
//!
//! ```text
//!  under the lock   no thread scrubs the unit, its word is the quarantine that was drained
//!                   ─► written down as being scrubbed
//!  outside          its memory emptied ─► CAS QUARANTINE(g) → FREE(g) ─► struck out
//! ```
//!
//! * Two operations of one unit: the second finds it written down, and waits; or struck out, and
//!   then sees by the word that it is free, or another's.
//! * While it is scrubbed its word stands still: no owner's CAS leads out of quarantine, and the
//!   node's own that does is the scrubber's, after it. So the unit around it stays open (it is
//!   merged only when all in it are free), and what is inside it stays absent: nothing else that a
//!   scrub could be of comes to overlap it. It is refused all the same.
//! * The node dies meanwhile: its memory is lost with it. A daemon at a table that outlives it
//!   finds QUARANTINE and begins again from the drain, as if there had been one scrubber.

use super::{Job, Task, Turn, Units, VERBS};
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

    /// Scrubs a unit that was claimed for it, and goes on with its operation to the end. False: not
    /// now.
    pub(super) fn scrub_and_free(
        &self,
        number: u64,
        place: Place,
        mut task: Task<Reclaim>,
        turn: &mut Turn<'_>,
    ) -> bool {
        let begun = (turn.cpu_ns)();
        let scrubbed = self.scrub(place);
        turn.scrub_ns += (turn.cpu_ns)().saturating_sub(begun);
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
        // A CAS is all that is left, of which there is always one more: nothing waits here.
        turn.verbs = turn.verbs.max(VERBS);
        let ended = self.advance(&mut task, turn);
        debug_assert!(ended.is_some(), "a scrubbed unit is freed at once");
        // After the CAS: a thread that finds it struck out must see that the unit is free.
        self.keeping.scrubbing.0.lock().retain(|scrubbed| scrubbed.number != number);
        if let Some(ended) = ended {
            self.has_reclaimed(place, ended);
        }
        true
    }

    /// Whether somebody scrubs a unit, or part of it, or what it is part of.
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
