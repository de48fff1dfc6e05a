//! A page that no home has is computed from other seats of its stripe.
//!
//! ```text
//!  read, no home ─► version even? ─► READ `data` other seats ─► the same version? ─► the page
//!                                                                  │ it is sealed, and does not open
//!                                                                  ▼
//!                    READ all other seats ─► the first `data` of them from which the page opens
//! ```
//!
//! *Sealed pages.* One seat that lies makes each page false that is computed from it. So the lane opens
//! the page that it has computed, and tries other seats, before it hands the page on. A page that opens
//! from no seats is handed on as it came, and its reader finds that it does not open.
//!
//! *Who lied.* Once every page of the stripe opens, each seat's bytes are known. A node that sent others
//! is given up ([`crate::Seals::distrust`]).

use super::Lane;
use super::links::Links;
use super::operations::Verb;
use super::striped::Whose;
use crate::homes::HOMES;
use crate::stripes::code::MAX_SEATS;
use crate::stripes::{Stripes, is_under_way};
use crate::tables::Tables;
use crate::{LOOK_ROUNDS, Pool};
use farmem_protocol::addr::PAGE_BYTES;
use farmem_sys::gf;

/// A reader's pause between two checks whether an update has ended.
const PAUSE_NS: u64 = 20_000;

/// A READ of a page that follows from others.
pub(super) struct Job {
    /// The caller's operation.
    parent: u32,
    group: u32,
    seat: usize,
    place: u32,
    version: u32,
    /// The seats that are read. The page follows from any `data` of them.
    others: Vec<u8>,
    /// The nodes whose bytes came.
    senders: [Option<u32>; MAX_SEATS],
    /// READs under way, and one more while they are being posted.
    pending: usize,
    failed: bool,
    /// The bytes of the others, one after the other.
    bytes: Vec<u8>,
}

/// Which of a job's others a page is computed from, by their positions.
type Set = Vec<usize>;

/// The sets of `n` positions below `of`, the first ones first.
fn sets(n: usize, of: usize) -> impl Iterator<Item = Set> {
    let all = 0..1_u32 << of;
    all.filter(move |set| set.count_ones() as usize == n)
        .map(move |set| (0..of).filter(|at| set >> at & 1 != 0).collect())
}

impl Job {
    fn page(&self, at: usize) -> &[u8] {
        let len = self.bytes.len() / self.others.len();
        &self.bytes[at * len..][..len]
    }

    /// Computes the bytes of a seat that is not in the set.
    fn compute(&self, stripes: &Stripes, seat: usize, set: &[usize], into: &mut [u8]) {
        let others: Vec<u8> = set.iter().map(|&at| self.others[at]).collect();
        let factors = stripes.shape.from_others(seat, &others);
        into.fill(0);
        set.iter().zip(factors).for_each(|(&at, factor)| gf::add_scaled(stripes.unit, into, self.page(at), factor));
    }

    /// Whether a data page, as a set has it or gives it, is the one that was sealed. `None`: none was.
    fn opens(&self, pool: &Pool, stripes: &Stripes, seat: usize, set: &[usize]) -> Option<bool> {
        let slot = stripes.slot(self.group, seat, self.place);
        if let Some(&at) = set.iter().find(|&&at| usize::from(self.others[at]) == seat) {
            return pool.seals().opens(slot, self.page(at));
        }
        let mut page = vec![0; PAGE_BYTES];
        self.compute(stripes, seat, set, &mut page);
        pool.seals().opens(slot, &page)
    }

    /// Whether what a set gives is right, as far as seals tell: of a data page its own does, and of a
    /// parity those of all data.
    fn is_sound(&self, pool: &Pool, stripes: &Stripes, set: &[usize]) -> bool {
        let data = stripes.shape.data;
        let looked_at = if self.seat < data { self.seat..self.seat + 1 } else { 0..data };
        looked_at.into_iter().all(|seat| self.opens(pool, stripes, seat, set) != Some(false))
    }

    /// The seats whose bytes are not what a set says, by their positions. None where the set does not
    /// prove it: a page of the stripe is not sealed.
    fn liars(&self, pool: &Pool, stripes: &Stripes, set: &[usize]) -> Vec<usize> {
        if !(0..stripes.shape.data).all(|seat| self.opens(pool, stripes, seat, set) == Some(true)) {
            return Vec::new();
        }
        let lies = |at: &usize| {
            let mut page = vec![0; PAGE_BYTES];
            self.compute(stripes, usize::from(self.others[*at]), set, &mut page);
            page != self.page(*at)
        };
        (0..self.others.len()).filter(|at| !set.contains(at)).filter(lies).collect()
    }
}

impl Lane {
    /// Answers a READ that no home can answer, by READs of other seats of its stripe. False if too
    /// few are left.
    #[cold]
    pub(super) fn read_others(&mut self, pool: &Pool, parent: u32) -> bool {
        self.read_seats(pool, parent, false)
    }

    /// As [`Lane::read_others`], of `all` seats, or of as many as suffice.
    fn read_seats(&mut self, pool: &Pool, parent: u32, all: bool) -> bool {
        let operation = &self.operations[parent];
        let (slot, from, len) = (operation.slot, operation.from, operation.len);
        if let Whose::Part { .. } = operation.whose {
            return false;
        }
        let Some((stripes, group, seat)) = pool.tables.seat(slot.slab_index()) else { return false };
        let place = slot.place();
        let version = stripes.version(group, place);
        if is_under_way(version) {
            self.striped.parked.push(parent);
            return true;
        }
        let mut others = pool.tables.others(&self.links, stripes, (group, seat, place));
        if others.len() < stripes.shape.data {
            return false;
        }
        if !all {
            others.truncate(stripes.shape.data);
        }
        let (bytes, pending) = (vec![0; others.len() * len as usize], others.len() + 1);
        let senders = [None; MAX_SEATS];
        let seats = others.clone();
        let job = Job { parent, group, seat, place, version, others, senders, pending, failed: false, bytes };
        let hole = self.striped.jobs.iter().position(Option::is_none);
        let number = hole.unwrap_or_else(|| {
            self.striped.jobs.push(None);
            self.striped.jobs.len() - 1
        });
        let into = self.striped.jobs[number].insert(job).bytes.as_mut_ptr();
        for (nth, other) in seats.into_iter().enumerate() {
            let slot = stripes.slot(group, other as usize, place);
            // The job's bytes do not move while a READ is under way.
            let verb = Verb::Read { into: into.wrapping_add(nth * len as usize) };
            let part = self.operations.begin(0, slot, from, len, verb);
            self.operations[part].whose = Whose::Part { job: number as u32, nth: nth as u32 };
            self.send_read(pool, part);
        }
        self.striped.rings = true;
        self.count_part(pool, number as u32, true);
        true
    }

    /// A READ of another seat is done, with bytes from this node.
    pub(super) fn part_done(&mut self, pool: &Pool, (job, nth): (u32, u32), ok: bool, by: Option<u32>) {
        if let Some(job) = &mut self.striped.jobs[job as usize] {
            job.senders[nth as usize] = by;
        }
        self.count_part(pool, job, ok);
    }

    fn count_part(&mut self, pool: &Pool, number: u32, ok: bool) {
        let Some(job) = &mut self.striped.jobs[number as usize] else { return };
        job.pending -= 1;
        job.failed |= !ok;
        if job.pending > 0 {
            return;
        }
        let Some(job) = self.striped.jobs[number as usize].take() else { return };
        let Some(stripes) = pool.tables.protection.stripes() else { return };
        if job.failed || stripes.version(job.group, job.place) != job.version {
            self.send_read(pool, job.parent);
            return;
        }
        let data = stripes.shape.data;
        let mut set: Set = (0..data).collect();
        // A part of a page cannot be opened. Its reader compares it with the sum that it must have.
        let can_tell = pool.tables.sealed.is_on() && self.operations[job.parent].len as usize == PAGE_BYTES;
        if can_tell && !job.is_sound(pool, stripes, &set) {
            if job.others.len() == data && self.has_more(pool, stripes, &job) && self.read_seats(pool, job.parent, true)
            {
                return;
            }
            if let Some(sound) = sets(data, job.others.len()).find(|set| job.is_sound(pool, stripes, set)) {
                set = sound;
                for at in job.liars(pool, stripes, &set) {
                    let slot = stripes.slot(job.group, usize::from(job.others[at]), job.place);
                    job.senders[at].into_iter().for_each(|node| pool.seals().lied(slot, node));
                }
            }
        }
        let parent = &mut self.operations[job.parent];
        let Verb::Read { into } = parent.verb else { return };
        // SAFETY: the caller's buffer until the operation is done (contract of `read`).
        let page = unsafe { std::slice::from_raw_parts_mut(into, parent.len as usize) };
        job.compute(stripes, job.seat, &set, page);
        self.met.followed += 1;
        parent.done += 1;
        self.end_if_done(pool, job.parent);
    }

    /// Whether there are other seats than those that a job has read.
    fn has_more(&self, pool: &Pool, stripes: &Stripes, job: &Job) -> bool {
        pool.tables.others(&self.links, stripes, (job.group, job.seat, job.place)).len() > job.others.len()
    }

    /// Tries the READs again that wait for an update. `pauses`: waits a little before.
    #[cold]
    pub(super) fn unpark(&mut self, pool: &Pool, pauses: bool) {
        if pauses {
            pool.tables.nodes.pause(PAUSE_NS);
            // The thread that updates may have ended with its process.
            self.striped.rounds += 1;
            if self.striped.rounds.is_multiple_of(LOOK_ROUNDS) {
                farmem_sys::members::look();
            }
        }
        for parent in std::mem::take(&mut self.striped.parked) {
            self.send_read(pool, parent);
        }
        if std::mem::take(&mut self.striped.rings) {
            self.doorbell(pool);
        }
    }
}

impl Tables {
    /// The other seats of a stripe that a lane with these links can READ, those at nodes that are not
    /// trusted last. The page follows from any `data` of them.
    pub(super) fn others(&self, links: &Links, stripes: &Stripes, (group, seat, place): (u32, usize, u32)) -> Vec<u8> {
        let nodes = &self.nodes;
        let home = |other: usize| {
            let word = self.homes.word(stripes.member(group, other));
            let has = |nth: &usize| {
                word.reads(*nth, || self.homes.is_stale(word, *nth, place))
                    && !links.is_barred(nodes, self.homes.home(word, *nth).node)
            };
            (0..HOMES).find(has).map(|nth| self.homes.home(word, nth).node)
        };
        let seats = (0..stripes.shape.seats()).filter(|&other| other != seat);
        let mut seats: Vec<(bool, u8)> =
            seats.filter_map(|other| Some((nodes.is_doubted(home(other)?), other as u8))).collect();
        seats.sort_unstable();
        seats.into_iter().map(|(_, other)| other).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_set_comes_once_and_the_first_first() {
        let all: Vec<Set> = sets(2, 4).collect();
        assert_eq!(all, [[0, 1], [0, 2], [1, 2], [0, 3], [1, 3], [2, 3]]);
        assert_eq!(sets(12, 15).count(), 455);
    }
}
