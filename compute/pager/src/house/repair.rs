//! Slabs that lack a copy get one, and slabs of a node that is being left move, behind the program.
//!
//! ```text
//!  a slab lacks a home ─► add_home ─► every thread leaves once ─► fill, a piece at a time ─► whole
//!                                                                     │ it was to leave a node: drop_home
//! ```
//!
//! By the background thread, a little at a time: pieces under the evictor's lock, then a pause. How
//! many pages are under way, and how long it pauses, is decided by how long fetches take meanwhile
//! ([`farmem_pool::Throttle`]). Nothing is kept between pieces but where to go on, so that a fork,
//! a loss and the end of the process may come at any time. The slabs' words and stale bits have all
//! that must be known. Each look at slabs counts as a thread in the pager: a fork in its midst
//! would leave the child a lock that nobody opens.
//!
//! *What a fault waits for.* A fault that must evict ends the piece that is being copied, and waits
//! for the few pages of it that are under way ([`crate::out::turns`]). Other takers of the lock
//! wait for less than half a millisecond, because a piece posts READs for [`POSTS_NS`]. On a slow
//! link fewer pages are under way. Write-back under way is awaited before a piece, with the lock
//! free between looks.

#![allow(unsafe_code)] // Copies through buffers.

use super::House;
use crate::ending::{die, say};
use crate::out::batch::Evictor;
use crate::page::Frames;
use crate::thread::Thread;
use farmem_pool::{Back, Disk, Filled, Lacks, POSTS_NS, Piece, Protect, SPELL_NS, Throttle};
use farmem_protocol::addr::PAGE_BYTES;
use farmem_protocol::units::bytes;
use farmem_run::{Choice, exit};
use farmem_sys::raw::{now_ns, sleep_ns};
use farmem_sys::sync::Held;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pages of a piece, at most.
const PIECE: u32 = 128;
/// Looks whether write-back is done, with the lock free between them. After these it is awaited
/// under the lock, because a program that evicts all the time always has some under way.
const LOOKS: u32 = 32;
const BETWEEN_LOOKS_NS: u64 = 50_000;
/// Between looks for a slab that lacks something, and for a node that takes it.
const LOOK_NS: u64 = 250_000_000;
const REFUSED_NS: u64 = 2_000_000_000;
/// How long a slab is left alone of which something cannot be read now.
const STUCK_NS: u64 = 1_000_000_000;

/// Where a repair is. Of the background thread.
#[derive(Default)]
pub(crate) struct Repair {
    /// [`PIECE`] pages of near memory, once there was something to copy.
    buffers: Option<Frames>,
    /// The slab and its home that are being filled, and the place to go on from.
    filling: Option<(u32, usize, u32)>,
    /// Slabs of which something could not be read, and until when they are left alone: others may be
    /// repaired meanwhile.
    stuck: Vec<(u32, u64)>,
    /// Pages copied since nothing was lacking, and when that was.
    pages: u64,
    begun_ns: u64,
    /// When to look next.
    look_ns: u64,
    /// A refusal was told.
    told: bool,
    throttle: Throttle,
    /// When copying goes on.
    resume_ns: u64,
    /// It was told that copies lie in one failure domain.
    together: bool,
}

impl House {
    /// From now on slabs have copies or parity, as this says.
    pub fn keep_copies(&'static self, how: Protect) {
        if let Err(e) = self.base.pool.protect_by_parity(how) {
            die(exit::BROKEN, &format!("no addresses for the tables of --protect {}: {e}", how.name()));
        }
    }

    /// From now on slabs that are not mapped here have a copy in this file.
    pub fn keep_on_disk(&'static self, disk: Disk) {
        self.base.pool.protect_by(disk);
    }

    /// The disk's thread.
    pub(super) fn run_disk(&self) -> ! {
        self.base.pool.run_disk(|| self.base.threads.enter());
        loop {
            sleep_ns(u64::MAX / 4);
        }
    }

    /// Does some of what is to be done. How long to pause, if there is more.
    pub(crate) fn repair(&self, repair: &mut Repair) -> Option<u64> {
        let begun = now_ns();
        if repair.filling.is_none() && begun < repair.look_ns {
            return None;
        }
        // The background thread may be woken for other things meanwhile.
        if begun < repair.resume_ns {
            return Some(repair.resume_ns - begun);
        }
        repair.look_ns = begun + LOOK_NS;
        self.tell_together(repair);
        repair.throttle.begins(&self.base.counters.latency, begun);
        while self.repair_step(repair) {
            let spent = now_ns() - begun;
            if spent > SPELL_NS {
                return Some(self.pause(repair, spent));
            }
        }
        repair.throttle.ends(&self.base.counters.latency);
        // Threads may not have left yet.
        repair.filling.map(|_| 1_000_000)
    }

    /// How long to pause after a spell of copying.
    fn pause(&self, repair: &mut Repair, spent: u64) -> u64 {
        let counters = &self.base.counters;
        let now = now_ns();
        repair.throttle.ends(&counters.latency);
        let pause = repair.throttle.pause(now, spent);
        repair.resume_ns = now + pause;
        counters.repair_slowed.store(u64::from(repair.throttle.is_slow()), Ordering::Relaxed);
        pause
    }

    /// One step; whether another can follow at once.
    fn repair_step(&self, repair: &mut Repair) -> bool {
        if let Some(filling) = repair.filling {
            return self.free_dropped() && self.fill_some(repair, filling);
        }
        let now = now_ns();
        repair.stuck.retain(|(_, until)| now < *until);
        let stuck: Vec<u32> = repair.stuck.iter().map(|(index, _)| *index).collect();
        let lacks = {
            let _inside = self.base.threads.enter();
            self.base.pool.repair().may_lack().then(|| self.base.pool.repair().lacks_but(&stuck)).flatten()
        };
        match lacks {
            None => {
                self.tell_repaired(repair);
                repair.throttle.rests(&self.base.counters.latency);
                self.base.counters.repair_slowed.store(0, Ordering::Relaxed);
                false
            }
            Some(Lacks::Bytes(index, nth)) => {
                // The READs would wait for a node that is stopped, and hold the evictor's lock.
                let answers = {
                    let _inside = self.base.threads.enter();
                    self.base.pool.moves().other_answers(index, nth)
                };
                repair.filling = answers.then_some((index, nth, 0));
                if repair.begun_ns == 0 {
                    repair.begun_ns = now;
                }
                answers
            }
            Some(Lacks::Home(index)) => {
                let added = {
                    let _inside = self.base.threads.enter();
                    self.base.pool.moves().add_home(index)
                };
                if let Err(why) = &added {
                    repair.look_ns = now_ns() + REFUSED_NS;
                    if !std::mem::replace(&mut repair.told, true) {
                        say(&format!("no place for a copy of far memory: {why}; tried again until there is one"));
                    }
                    return false;
                }
                if repair.begun_ns == 0 {
                    repair.begun_ns = now_ns();
                }
                // The next look says what it lacks.
                self.free_dropped()
            }
            Some(Lacks::Domain(index)) => self.move_apart(repair, index),
            Some(Lacks::Room(index)) => self.make_room(repair, index),
            Some(Lacks::Way(index, home)) => {
                let inside = self.base.threads.enter();
                if !self.base.pool.moves().other_answers(index, home) {
                    return false;
                }
                let mut evictor = self.evictor_at_rest();
                let thread = evictor.thread.get_or_insert_with(|| Thread::boxed(0));
                let dropped = self.base.pool.moves().drop_home(&mut thread.lane, index, home);
                drop(evictor);
                drop(inside);
                dropped && self.free_dropped()
            }
        }
    }

    /// Moves one of two copies to another failure domain; whether it can be filled at once.
    fn move_apart(&self, repair: &mut Repair, index: u32) -> bool {
        let pool = &self.base.pool;
        // No fork between the two steps: its child would share the place, and keep it.
        let _inside = self.base.threads.enter();
        let place = pool.moves().place_apart(index);
        // The refusal needs no line of its own: one says already that copies lie together.
        let Ok(place) = place else {
            repair.look_ns = now_ns() + REFUSED_NS;
            return false;
        };
        if repair.begun_ns == 0 {
            repair.begun_ns = now_ns();
        }
        let mut evictor = self.evictor_at_rest();
        let thread = evictor.thread.get_or_insert_with(|| Thread::boxed(0));
        let moved = pool.moves().move_home(&mut thread.lane, index, place);
        repair.filling = moved.then_some((index, 1, 0));
        moved
    }

    /// Lets a slab move from a node that needs its memory. Whether it can be filled at once.
    fn make_room(&self, repair: &mut Repair, index: u32) -> bool {
        let moves = self.base.pool.moves();
        // No fork between the two steps: its child would share the place, and keep it.
        let inside = self.base.threads.enter();
        match moves.find_room(index) {
            // The next look says what it lacks.
            Ok(None) => {
                drop(inside);
                self.free_dropped()
            }
            Ok(Some(place)) => {
                let mut evictor = self.evictor_at_rest();
                let thread = evictor.thread.get_or_insert_with(|| Thread::boxed(0));
                let moved = moves.move_home(&mut thread.lane, index, place);
                drop(evictor);
                drop(inside);
                moved && self.free_dropped()
            }
            Err(_) => {
                moves.stay(index);
                repair.look_ns = now_ns() + REFUSED_NS;
                false
            }
        }
    }

    /// Copies a piece; whether more can follow at once.
    fn fill_some(&self, repair: &mut Repair, (index, nth, from): (u32, usize, u32)) -> bool {
        let Some(buffers) = repair.buffers.or_else(|| self.repair_buffers()) else { return false };
        repair.buffers = Some(buffers);
        let _inside = self.base.threads.enter();
        let mut evictor = self.evictor_at_rest();
        let begun = now_ns();
        let mut goes_on = || !self.out.turns.is_wished() && now_ns() - begun < POSTS_NS;
        let piece = Piece { pages: PIECE, under_way: repair.throttle.under_way(), goes_on: &mut goes_on };
        let thread = evictor.thread.get_or_insert_with(|| Thread::boxed(0));
        // SAFETY: the buffers are this thread's, and nothing is under way on the lane.
        let filled = unsafe { thread.lane.fill(&self.base.pool, index, nth, from, buffers.at(0), piece) };
        self.base.count(&self.base.counters.wire_out, thread.lane.take_sent());
        if let Some(Filled { pages, .. }) = filled {
            repair.throttle.took(now_ns() - begun);
            repair.pages += u64::from(pages);
            self.base.count(&self.base.counters.repaired_bytes, u64::from(pages) * PAGE_BYTES as u64);
        } else if !self.base.pool.moves().end_filling(index, nth)
            && self.base.pool.moves().next_stale(index, nth, 0).is_some()
        {
            repair.stuck.push((index, now_ns() + STUCK_NS));
        }
        repair.filling = filled.map(|filled| (index, nth, filled.next));
        true
    }

    /// Takes nodes that were given up and are back into use again.
    pub(super) fn take_back(&self) {
        let moves = self.base.pool.moves();
        if !moves.any_back() {
            return;
        }
        let mut evictor = self.evictor_at_rest();
        let thread = evictor.thread.get_or_insert_with(|| Thread::boxed(0));
        let back = moves.take_back(&mut thread.lane);
        drop(evictor);
        for Back { node, .. } in back {
            say(&format!(
                "memory node {node} is back with the pages that it had; those that have changed since are copied"
            ));
        }
    }

    fn repair_buffers(&self) -> Option<Frames> {
        let buffers = Frames::reserve(PIECE as usize).ok()?;
        buffers.tell(&self.base.pool);
        Some(buffers)
    }

    /// The evictor, with nothing under way on the lane of all write-back. It goes to repair after
    /// the faults that wait for it.
    pub(super) fn evictor_at_rest(&self) -> Held<'_, Evictor> {
        for _ in 0..LOOKS {
            let mut evictor = self.out.turns.lock_last(&self.out.evictor);
            self.out.send_all(&mut evictor);
            self.out.collect_writes(&mut evictor, Duration::ZERO);
            if evictor.writes_in_flight() == 0 {
                return evictor;
            }
            drop(evictor);
            sleep_ns(BETWEEN_LOOKS_NS);
        }
        let mut evictor = self.out.turns.lock_last(&self.out.evictor);
        self.out.drain_writes(&mut evictor);
        while evictor.writes_in_flight() > 0 {
            self.out.collect_writes(&mut evictor, Duration::from_secs(1));
        }
        evictor
    }

    /// Says when copies begin to lie in one failure domain, and when none does any more.
    fn tell_together(&self, repair: &mut Repair) {
        let (together, domain) = {
            let _inside = self.base.threads.enter();
            let slabs = self.base.pool.repair();
            let together = if self.base.pool.protection() == Protect::None { 0 } else { slabs.together_bytes() };
            (together, if together > 0 && !repair.together { slabs.crowded_domain() } else { None })
        };
        match (repair.together, together) {
            (false, 1..) => {
                let domain = domain.unwrap_or_default();
                say(&format!(
                    "both copies of {} are in failure domain {domain}: no node of another has room; they move when one has",
                    bytes(together)
                ));
            }
            (true, 0) => say("the copies of every page are in two failure domains again"),
            _ => {}
        }
        repair.together = together > 0;
    }

    /// Says that nothing is lacking any more. Not where there is merely no next step: the node that
    /// was being filled may be lost, or the other one not answer.
    fn tell_repaired(&self, repair: &mut Repair) {
        repair.told = false;
        let owes = || {
            let _inside = self.base.threads.enter();
            self.base.pool.repair().owes()
        };
        if repair.begun_ns == 0 || owes() {
            return;
        }
        let (pages, begun) = (std::mem::take(&mut repair.pages), std::mem::take(&mut repair.begun_ns));
        let (copied, ms) = (bytes(pages * PAGE_BYTES as u64), (now_ns() - begun) / 1_000_000);
        let whole = match self.base.pool.protection() {
            Protect::Mirror => "every page has two copies again",
            Protect::Disk => "every page is at a node and on disk again",
            Protect::Ec { .. } => "every page has its parity again",
            Protect::None => "what was on nodes taken out is elsewhere",
        };
        say(&format!("{whole}: {copied} copied in {ms} ms"));
    }
}
