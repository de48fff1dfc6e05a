//! The keeper is the node's own work: it makes units clean again, and recovers the units of dead
//! owners.
//!
//! ```text
//!  a CAS made a unit QUARANTINE ─► drain ─► scrub ─► FREE                        extent::reclaim
//!  a lease ended (FENCED) ─► drain ─► DEAD ─► its words recovered ─► clean ─► VACANT    extent::recover
//!  every chunk of a block is FREE again ─► MERGING ─► the block is FREE          extent::reshape
//!  every block of a giant, while few giants are whole ─► the same
//! ```
//!
//! No verb waits for this work: allocation finds units that are clean already. [`Units::keep`] does
//! a bounded piece of it and waits for nothing. The node's threads call it between other things.
//! `extent::policy` decides how large a piece is, and which giants are merged.
//!
//! The lock on `Keeping::at_work` lets one thread at a time advance operations. The operations take
//! turns, and two of them may concern one unit. Several threads may scrub at once, outside of that
//! lock: [`scrubbing`].

mod scrubbing;

use super::Units;
use crate::epochs::Epochs;
use farmem_protocol::extent::geometry::{Hint, LINE, Target};
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::owner::OwnerWord;
use farmem_protocol::extent::place::{Level, Place};
use farmem_protocol::extent::policy;
use farmem_protocol::extent::reclaim::{Reclaim, Reclaimed};
use farmem_protocol::extent::recover::Recover;
use farmem_protocol::extent::reshape::Reshape;
use farmem_protocol::extent::step::{MAX_READ, Verb};
use farmem_protocol::extent::word::{Owner, State, Word};
use farmem_protocol::extent::{Actor, Answer, Operation, Step};
use farmem_sys::raw::yield_cpu;
use farmem_sys::sync::Lock;
use scrubbing::{Scrubbed, Scrubbing};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// The most jobs that one call takes up.
const JOBS: usize = 1024;
/// The most verbs on words that one call carries out: about a millisecond of a core. Each is a CAS,
/// or a READ of 64 words.
const VERBS: usize = 16 << 10;
/// How often a thread tries the lock on the jobs at work before it returns to its verbs. It yields
/// its CPU in between. The lock is usually held for about 10 µs.
const ASKED: u32 = 16;

/// The work that the keeper has done.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct Kept {
    pub reclaimed: AtomicU64,
    pub retired: AtomicU64,
    pub merged: AtomicU64,
    pub buried: AtomicU64,
    pub scrubbed_bytes: AtomicU64,
    /// Words read in the recovery of dead owners. Below: words of theirs changed, and the CPU time
    /// of recovery, in nanoseconds.
    pub scanned_words: AtomicU64,
    pub recovered_words: AtomicU64,
    pub recover_ns: AtomicU64,
    /// CPU time of scrubbing, in nanoseconds. Below: that of all other work here.
    pub scrub_ns: AtomicU64,
    pub drain_ns: AtomicU64,
}

/// The work that waits for the keeper.
#[derive(Default)]
pub(super) struct Keeping {
    inbox: Inbox,
    at_work: Work,
    scrubbing: Scrubbing,
    /// Something waits, or is at work.
    pub busy: AtomicBool,
    /// Units that were drained, and that no thread had taken up to scrub at the last count.
    pub waiting: AtomicUsize,
    pub kept: Kept,
}

/// Jobs that were given and not yet numbered.
struct Inbox(Lock<Vec<Job>>);

/// Jobs at work, by their numbers in order of arrival, and the next number. The queue is rotated.
struct Work(Lock<VecDeque<(u64, Job)>>, AtomicU64);

impl Default for Inbox {
    fn default() -> Self {
        Inbox(Lock::new(Vec::new()))
    }
}

impl Default for Work {
    fn default() -> Self {
        Work(Lock::new(VecDeque::new()), AtomicU64::new(0))
    }
}

enum Job {
    /// A unit that went into quarantine.
    Reclaim(Place, Task<Reclaim>),
    /// A unit that was published: children may be in quarantine.
    LookInto(Place),
    /// A block whose chunks, or a giant whose blocks, may all be free.
    Merge(Place, Task<Reshape>),
    /// A fenced owner. `fenced`: the epoch by whose end no verb of the owner is under way. `None`: not
    /// looked up yet. `claimed`, once that is over: it has claimed units, so its words must be recovered.
    Bury {
        owner: Owner,
        claimed: Arc<AtomicBool>,
        fenced: Option<u64>,
    },
    Recover {
        owner: Owner,
        task: Task<Recover>,
    },
    /// A recovered owner. Its lease can be given to another owner when everything reclaimed before
    /// this job is clean. Then no word names this owner any more.
    Vacate(Owner),
}

/// An operation, the verbs that it has posted, and the epoch whose end its drain waits for.
struct Task<T> {
    operation: Box<T>,
    posted: VecDeque<Verb>,
    draining: Option<u64>,
}

impl<T> Task<T> {
    fn new(operation: T) -> Task<T> {
        Task { operation: Box::new(operation), posted: VecDeque::new(), draining: None }
    }
}

/// The limits of one call, and what it has done.
struct Call<'a> {
    epochs: &'a Epochs,
    cpu_ns: &'a dyn Fn() -> u64,
    scrubs: usize,
    verbs: usize,
    scrub_ns: u64,
    /// Drained units that were left to other threads, or to the next call.
    waiting: usize,
    /// Set by an operation that has just stopped: its unit is now this call's to scrub.
    claimed: bool,
    /// Units to scrub once the lock is released.
    claims: Vec<(u64, Place, Task<Reclaim>)>,
}

impl<'a> Call<'a> {
    fn new(epochs: &'a Epochs, cpu_ns: &'a dyn Fn() -> u64, scrubs: usize, verbs: usize) -> Call<'a> {
        Call { epochs, cpu_ns, scrubs, verbs, scrub_ns: 0, waiting: 0, claimed: false, claims: Vec::new() }
    }
}

impl Keeping {
    fn give(&self, job: Job) {
        self.inbox.0.lock().push(job);
        self.busy.store(true, Ordering::Release);
    }

    pub fn look_into(&self, place: Place) {
        self.give(Job::LookInto(place));
    }

    pub fn bury(&self, owner: Owner, claimed: Arc<AtomicBool>) {
        self.give(Job::Bury { owner, claimed, fenced: None });
    }
}

impl Units {
    pub(super) fn reclaim(&self, place: Place) {
        self.keeping.give(Job::Reclaim(place, Task::new(Reclaim::new(Actor::NODE, *self.words.geometry(), place))));
    }

    /// The keeper's work so far.
    pub fn kept(&self) -> &Kept {
        &self.keeping.kept
    }

    /// Whether anything waits to be made clean.
    #[inline]
    pub fn is_unkept(&self) -> bool {
        self.keeping.busy.load(Ordering::Acquire)
    }

    /// Units that wait for somebody with time to scrub them: another thread that calls
    /// [`Units::keep`] would be of use.
    #[inline]
    pub fn unscrubbed(&self) -> usize {
        self.keeping.waiting.load(Ordering::Relaxed)
    }

    /// Does a piece of the waiting work. Returns false when nothing could be done now. `cpu_ns` is
    /// the caller's clock of CPU time. The caller must not be in a section.
    pub fn keep(&self, epochs: &Epochs, cpu_ns: &dyn Fn() -> u64) -> bool {
        if !self.is_unkept() {
            return false;
        }
        let at_work = (0..ASKED).find_map(|asked| {
            if asked > 0 {
                yield_cpu();
            }
            self.keeping.at_work.0.try_lock()
        });
        let Some(mut work) = at_work else { return false };
        let begun = cpu_ns();
        // Cleared before the inbox is emptied: a job that comes after that sets it again.
        self.keeping.busy.store(false, Ordering::Release);
        for job in std::mem::take(&mut *self.keeping.inbox.0.lock()) {
            let number = self.keeping.at_work.1.fetch_add(1, Ordering::Relaxed);
            work.push_back((number, job));
        }
        for again in self.refused() {
            work.push_back(again);
        }
        // Verbs wait while this thread scrubs. So it scrubs few units a call while many are free,
        // and more when they run short.
        let scrubs = policy::scrubs(self.words.supply().1);
        let mut call = Call::new(epochs, cpu_ns, scrubs, VERBS);
        let mut moved = false;
        for _ in 0..work.len().min(JOBS) {
            let Some((number, job)) = work.pop_front() else { break };
            match self.work_at(job, number, &work, &mut call) {
                Some(job) => work.push_back((number, job)),
                None => moved = true,
            }
        }
        self.keeping.waiting.store(call.waiting, Ordering::Relaxed);
        if !work.is_empty() {
            self.keeping.busy.store(true, Ordering::Release);
        }
        drop(work);
        for (number, place, task) in std::mem::take(&mut call.claims) {
            moved |= self.scrub_and_free(number, place, task, &mut call);
        }
        self.keeping.kept.scrub_ns.fetch_add(call.scrub_ns, Ordering::Relaxed);
        let all = cpu_ns().saturating_sub(begun);
        self.keeping.kept.drain_ns.fetch_add(all.saturating_sub(call.scrub_ns), Ordering::Relaxed);
        moved || call.verbs == 0
    }

    fn has_reclaimed(&self, place: Place, ended: <Reclaim as Operation>::Outcome) {
        let kept = &self.keeping.kept;
        match ended {
            Ok(Reclaimed::Freed(_)) => {
                kept.reclaimed.fetch_add(1, Ordering::Relaxed);
                self.merge_around(place);
            }
            Ok(Reclaimed::Retired) => drop(kept.retired.fetch_add(1, Ordering::Relaxed)),
            // Nothing is left to do. If the unit around it is published, that one is looked into.
            // If that one is reclaimed, this unit no longer exists.
            Ok(Reclaimed::NotYet | Reclaimed::Nothing(_)) | Err(_) => {}
        }
    }

    /// Goes on with a job. Returns the job if something of it is left to do.
    fn work_at(&self, job: Job, number: u64, others: &VecDeque<(u64, Job)>, call: &mut Call<'_>) -> Option<Job> {
        let kept = &self.keeping.kept;
        match job {
            Job::Reclaim(place, mut task) => match self.advance(&mut task, call) {
                None if std::mem::take(&mut call.claimed) => {
                    self.keeping.scrubbing.0.lock().push(Scrubbed { number, place, refused: None });
                    call.claims.push((number, place, task));
                }
                None => return Some(Job::Reclaim(place, task)),
                Some(ended) => self.has_reclaimed(place, ended),
            },
            Job::LookInto(place) => {
                let (first, count) = self.words.geometry().children(place)?;
                for child in (0..count).map(|n| first.plus(n)).filter(|&c| self.words.word(c).is(State::Quarantine)) {
                    self.reclaim(child);
                }
            }
            Job::Merge(place, mut task) => match self.advance(&mut task, call) {
                None => return Some(Job::Merge(place, task)),
                Some(_) => {
                    kept.merged.fetch_add(1, Ordering::Relaxed);
                    self.merge_around(place);
                }
            },
            Job::Bury { owner, claimed, fenced } => {
                let fenced = fenced.unwrap_or_else(|| call.epochs.now());
                if !call.epochs.is_over(fenced) {
                    return Some(Job::Bury { owner, claimed, fenced: Some(fenced) });
                }
                kept.buried.fetch_add(1, Ordering::Relaxed);
                // Before the word says DEAD: from then on anybody may recover the owner's units.
                self.files.orphan(owner);
                self.words.lease_word(owner, OwnerWord::died);
                if claimed.load(Ordering::Relaxed) {
                    let task = Task::new(Recover::new(Actor::NODE, *self.words.geometry(), owner));
                    return Some(Job::Recover { owner, task });
                }
                self.vacate(owner);
            }
            Job::Recover { owner, mut task } => match self.recover(&mut task, call) {
                None => return Some(Job::Recover { owner, task }),
                Some(recovered) => {
                    recovered.into_iter().flat_map(|sum| sum.quarantined).for_each(|place| self.reclaim(place));
                    // Queued behind these reclaims, which must end first.
                    self.keeping.give(Job::Vacate(owner));
                }
            },
            Job::Vacate(owner) => {
                let earlier = |(n, job): &(u64, Job)| *n < number && matches!(job, Job::Reclaim(..) | Job::LookInto(_));
                let scrubbed = || self.keeping.scrubbing.0.lock().iter().any(|other| other.number < number);
                // No job escapes both looks: jobs move between the two lists only under this lock.
                if others.iter().any(earlier) || scrubbed() {
                    return Some(Job::Vacate(owner));
                }
                self.vacate(owner);
            }
        }
        None
    }

    fn recover(&self, task: &mut Task<Recover>, call: &mut Call<'_>) -> Option<<Recover as Operation>::Outcome> {
        let begun = (call.cpu_ns)();
        let outcome = self.advance(task, call);
        let kept = &self.keeping.kept;
        kept.recover_ns.fetch_add((call.cpu_ns)().saturating_sub(begun), Ordering::Relaxed);
        if let Some(Ok(sum)) = &outcome {
            kept.scanned_words.fetch_add(sum.scanned, Ordering::Relaxed);
            kept.recovered_words.fetch_add(sum.quarantined.len() as u64 + sum.finished as u64, Ordering::Relaxed);
        }
        outcome
    }

    /// Takes an operation's next steps, until it must wait for a drain, for a scrub, or for the
    /// next call. Returns its outcome when it ends.
    fn advance<T: Operation>(&self, task: &mut Task<T>, call: &mut Call<'_>) -> Option<T::Outcome> {
        let mut room = [0; MAX_READ];
        loop {
            match task.operation.step() {
                Step::Verb(verb) => task.posted.push_back(verb),
                Step::Wait => {
                    if call.verbs == 0 {
                        return None;
                    }
                    call.verbs -= 1;
                    let verb = task.posted.pop_front()?;
                    let answer = self.carry_out(&verb, &mut room);
                    task.operation.complete(answer);
                }
                Step::Drain => {
                    let since = *task.draining.get_or_insert_with(|| call.epochs.now());
                    if !call.epochs.is_over(since) {
                        return None;
                    }
                    task.draining = None;
                    task.operation.complete(Answer::Ready);
                }
                // Two operations of one unit can wait here: its quarantine queued one, and the
                // publication of the unit around it another. The first one scrubs and frees the
                // unit, which may then be another owner's. So the second one must not scrub. The
                // order of the two looks matters: a scrubber strikes its unit out only after the
                // word has changed.
                Step::Scrub(place, word) => {
                    if call.scrubs == 0 {
                        call.waiting += 1;
                        return None;
                    }
                    if self.is_scrubbed(place) {
                        return None;
                    }
                    if self.words.word(place) != word {
                        task.operation.complete(Answer::Ready);
                        continue;
                    }
                    call.scrubs -= 1;
                    call.claimed = true;
                    return None;
                }
                Step::Done(outcome) => return Some(outcome),
            }
        }
    }

    /// A verb of the node's own, through the same words as everybody's.
    fn carry_out<'a>(&self, verb: &Verb, room: &'a mut [u64; MAX_READ]) -> Answer<'a> {
        match *verb {
            Verb::Read { at, words } => {
                let from = self.words.offset(at);
                let room = &mut room[..words as usize];
                for (n, word) in room.iter_mut().enumerate() {
                    *word = self.words.at(from + 8 * n as u64).load(Ordering::SeqCst);
                }
                Answer::Words(room)
            }
            Verb::Cas { at: Target::Word(place), old, new } => {
                Answer::Found(self.words.swap(place, Word(old), Word(new)))
            }
            // Operations change descriptor words only.
            Verb::Cas { .. } => Answer::Refused,
        }
    }

    /// Splits a giant into blocks, unless another thread is faster.
    pub(super) fn split(&self, giant: Place) {
        let epochs = Epochs::default();
        let mut call = Call::new(&epochs, &|| 0, 0, usize::MAX);
        // A split neither drains nor scrubs: it needs no epochs and no clock.
        self.advance(&mut Task::new(Reshape::split(Actor::NODE, *self.words.geometry(), giant)), &mut call);
    }

    /// Called when `place` has become free. If all of the unit around it is free, a job merges that
    /// unit. A giant is merged only while few giants are whole.
    pub(super) fn merge_around(&self, place: Place) {
        let Some(around) = self.words.geometry().parent(place) else { return };
        let about = if place.level == Level::Chunk { Hint::FreeChunks } else { Hint::FreeBlocks };
        let Some((first, count)) = self.words.geometry().children(around) else { return };
        let mut lines = first.index / LINE..(first.index + count).div_ceil(LINE);
        // The freed unit's hint must be visible before the hints of the others are read. So of two
        // threads that free the last two units at once, one sees both.
        fence(Ordering::SeqCst);
        let whole = lines.all(|line| self.words.load(Target::Hint { about, line }) == u64::MAX);
        if !whole || !self.words.geometry().is_whole(around) || !self.words.word(around).is(State::Shared) {
            return;
        }
        if around.level == Level::Giant {
            let (giants, blocks) = self.words.supply();
            if !policy::gathers(giants, blocks, self.words.geometry().fanout(Level::Giant)) {
                return;
            }
        }
        self.keeping.give(Job::Merge(around, Task::new(Reshape::merge(Actor::NODE, *self.words.geometry(), around))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SLAB_BLOCKS;
    use crate::units::leases::Lease;

    fn giants(units: &Units) -> u32 {
        units.words.supply().0.free
    }

    /// Slabs split a node's last giant; when they are gone it comes together again, and no more
    /// than half do.
    #[test]
    fn giants_that_slabs_have_split_come_together() {
        let units = Arc::new(Units::new(4 << 30, false));
        let lease = Lease::new(&units).expect("nobody else is there");
        let owner = lease.owner();
        assert_eq!(giants(&units), 2, "half of them begin in one piece");
        let slabs: Vec<u32> = std::iter::from_fn(|| units.claim_slab(owner).ok()).collect();
        assert_eq!((slabs.len() as u32 * SLAB_BLOCKS, giants(&units)), (units.geometry().count(Level::Block), 0));
        let epochs = Epochs::default();
        for first in slabs {
            units.free_slab(first);
            while units.keep(&epochs, &|| 0) {}
        }
        assert_eq!((giants(&units), units.is_unkept()), (2, false));
        let again = std::iter::from_fn(|| units.claim_slab(owner).ok()).count() as u32;
        assert_eq!(again * SLAB_BLOCKS, units.geometry().count(Level::Block), "nothing is lost by it");
    }
}
