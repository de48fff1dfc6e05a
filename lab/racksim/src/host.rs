//! A host: the real pool, two lanes, and a program that writes, reads and drops pages.

#![allow(unsafe_code)] // Buffers of reads and writes.

use crate::Mistake;
use crate::judge::{Broken, Judge, Verdict, holds};
use farmem_control::api::Terms;
use farmem_fabric::{ConnectOptions, Session};
use farmem_pool::extent::State;
use farmem_pool::{Disk, Lacks, Lane, MAX_NODES, Pool, Protect, Standing};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES};
use farmem_protocol::random::Random;
use farmem_sim::Network;
use std::sync::Arc;
use std::time::Duration;

/// Pages that are filled at a time.
const CHUNK: u32 = 8;
/// Rounds of waiting, of a second each, before a wait counts as one that never ends.
const ROUNDS: u32 = 100;

/// A page of the program.
#[derive(Clone, Copy)]
struct Page {
    number: u64,
    slot: FarSlot,
}

/// A host.
pub struct Host {
    /// Its number.
    pub number: usize,
    pool: &'static Pool,
    /// Whether it keeps two copies.
    pub mirrored: bool,
    writes: Lane,
    reads: Lane,
    pages: Vec<Page>,
    next_page: u64,
    /// The slab that is being filled, and where to go on.
    filling: Option<(u32, usize, u32)>,
    /// The nodes that it has joined: the rack's number and incarnation, and the pool's number.
    pub joined: Vec<(usize, u64, usize)>,
    /// The nodes that the controller gave it.
    pub held: Vec<String>,
    /// Terms that it knows of.
    pub terms: Terms,
    mistake: Option<Mistake>,
}

fn options(host: usize) -> ConnectOptions {
    ConnectOptions {
        timeout: Duration::from_millis(500),
        grace: Duration::from_secs(5),
        run: [host as u8 + 1; 16],
        pid: 1,
        ..ConnectOptions::default()
    }
}

/// A page of a value.
fn bytes(value: u64) -> Box<[u64; PAGE_BYTES / 8]> {
    Box::new(std::array::from_fn(|at| value ^ at as u64))
}

impl Host {
    /// One with these nodes: number in the rack, incarnation, network, domain.
    /// `disk`: where it keeps no two copies at nodes, it keeps one in a file.
    pub fn new(
        number: usize,
        nodes: &[(usize, u64, &Arc<Network>, &str)],
        disk: bool,
        mistake: Option<Mistake>,
    ) -> Host {
        let mirrored = number != 2;
        let session = |(_, _, network, domain): &(usize, u64, &Arc<Network>, &str)| {
            in_domain(Session::simulated(network, &options(number)).expect("the node is there"), domain, mistake)
        };
        let pool: &'static Pool =
            Box::leak(Box::new(Pool::new(nodes.iter().map(session).collect()).expect("memory for a pool")));
        let protects = mirrored && mistake != Some(Mistake::OneCopy);
        match disk && !mirrored {
            true => pool.protect_by(Disk::open("/tmp").expect("a file in /tmp")),
            false => pool.protect(if protects { Protect::Mirror } else { Protect::None }),
        }
        Host {
            number,
            pool,
            mirrored,
            writes: Lane::new(),
            reads: Lane::new(),
            pages: Vec::new(),
            next_page: 0,
            filling: None,
            joined: nodes.iter().enumerate().map(|(at, (node, life, ..))| (*node, *life, at)).collect(),
            held: Vec::new(),
            terms: Terms::default(),
            mistake,
        }
    }

    /// Waits until all that was posted on a lane is done.
    fn all_done(&mut self, reads: bool) -> Verdict {
        let (pool, lane) = (self.pool, if reads { &mut self.reads } else { &mut self.writes });
        let mut done = Vec::new();
        lane.doorbell(pool);
        let mut rounds = 0;
        while lane.in_flight() > 0 {
            lane.wait(pool, &mut done, Duration::from_secs(1));
            rounds += 1;
            holds(rounds < ROUNDS, || format!("host {}: an operation is never done", self.number))?;
        }
        match done.into_iter().find_map(|done| done.result.err()) {
            None => Ok(()),
            Some(lost) => Err(Broken(format!("host {} lost a page that another node has: {lost}", self.number))),
        }
    }

    /// New pages, written for the first time. `stride` slots are taken for each, so that several slabs are used.
    pub fn grow(&mut self, pages: usize, stride: usize, judge: &mut Judge) -> Verdict {
        let mut slots = Vec::new();
        if self.pool.alloc(pages * stride, &mut slots).is_err() {
            return Ok(());
        }
        let (used, spare): (Vec<_>, Vec<_>) = slots.into_iter().enumerate().partition(|(at, _)| at % stride == 0);
        self.pool.free(&spare.into_iter().map(|(_, slot)| slot).collect::<Vec<_>>());
        for (_, slot) in used {
            let found = self.value_at(slot)?;
            judge.fresh(self.number, found)?;
            self.next_page += 1;
            self.pages.push(Page { number: self.next_page, slot });
        }
        let from = self.pages.len() - pages;
        self.write((from..from + pages).collect(), judge)
    }

    /// Writes pages, all at once. A page whose slot may not be overwritten takes another.
    fn write(&mut self, which: Vec<usize>, judge: &mut Judge) -> Verdict {
        let mut buffers = Vec::new();
        let mut left = Vec::new();
        for at in which {
            let mut page = self.pages[at];
            if !self.pool.is_own(page.slot) {
                let mut other = Vec::new();
                if self.pool.alloc(1, &mut other).is_err() {
                    continue;
                }
                left.push(std::mem::replace(&mut page.slot, other[0]));
                self.pages[at] = page;
            }
            let value = judge.value(self.number);
            buffers.push(bytes(value));
            let buffer = buffers[buffers.len() - 1].as_ptr().cast();
            // SAFETY: the buffer outlives the operation, which is awaited below.
            unsafe { self.writes.write(self.pool, at as u64, page.slot, 0, buffer, PAGE_BYTES as u32) };
            judge.wrote(self.number, page.number, value);
        }
        self.all_done(false)?;
        self.pool.free(&left);
        Ok(())
    }

    /// Writes some pages again.
    pub fn rewrite(&mut self, random: &mut Random, judge: &mut Judge) -> Verdict {
        if self.pages.is_empty() {
            return Ok(());
        }
        let mut which: Vec<usize> = (0..1 + random.index(12)).map(|_| random.index(self.pages.len())).collect();
        which.sort_unstable();
        which.dedup();
        self.write(which, judge)
    }

    fn value_at(&mut self, slot: FarSlot) -> Result<u64, Broken> {
        let mut found = bytes(u64::MAX);
        // SAFETY: the buffer outlives the operation, which is awaited.
        unsafe { self.reads.read(self.pool, 1, slot, 0, found.as_mut_ptr().cast(), PAGE_BYTES as u32) };
        self.all_done(true)?;
        let value = found[0];
        let zero = found.iter().all(|word| *word == 0);
        holds(zero || found == bytes(value), || format!("host {}: a page of several writes", self.number))?;
        Ok(value)
    }

    /// Reads a page.
    pub fn look(&mut self, random: &mut Random, judge: &Judge) -> Verdict {
        match self.pages.len() {
            0 => Ok(()),
            n => self.look_at(random.index(n), judge),
        }
    }

    fn look_at(&mut self, at: usize, judge: &Judge) -> Verdict {
        let page = self.pages[at];
        let found = self.value_at(page.slot)?;
        judge.read(self.number, page.number, found)
    }

    /// Reads all pages.
    pub fn look_at_all(&mut self, judge: &Judge) -> Verdict {
        (0..self.pages.len()).try_for_each(|at| self.look_at(at, judge))
    }

    /// Drops some pages, or all.
    pub fn drop_pages(&mut self, most: usize, random: &mut Random, judge: &mut Judge) {
        for _ in 0..most.min(self.pages.len()) {
            let page = self.pages.swap_remove(random.index(self.pages.len()));
            judge.dropped(self.number, page.number);
            self.pool.free(&[page.slot]);
        }
        if self.mistake == Some(Mistake::FreedTwice)
            && let Some(page) = self.pages.first()
        {
            self.pool.free(&[page.slot]);
        }
        self.pool.shrink(0);
    }

    /// A step of repair; whether there was one to take.
    pub fn repair(&mut self) -> bool {
        if self.filling.is_some() {
            self.fill_some();
            return true;
        }
        let Some(lacks) = self.pool.may_lack().then(|| self.pool.lacks()).flatten() else { return false };
        match lacks {
            Lacks::Bytes(index, nth) => self.filling = Some((index, nth, 0)),
            Lacks::Home(index) => {
                if self.pool.add_home(index).is_err() {
                    return false;
                }
            }
            Lacks::Domain(index) => {
                let Ok(place) = self.pool.place_apart(index) else { return false };
                self.pool.move_home(&mut self.writes, index, place);
            }
            Lacks::Way(index, home) => {
                self.pool.drop_home(&mut self.writes, index, home);
            }
        }
        self.leave();
        true
    }

    /// No operation is under way: the program's only thread has left.
    fn leave(&self) {
        if let Some(number) = self.pool.dropped() {
            self.pool.all_have_left(number);
        }
    }

    fn fill_some(&mut self) {
        let Some((index, nth, from)) = self.filling else { return };
        let mut buffers = vec![0u8; CHUNK as usize * PAGE_BYTES];
        // SAFETY: the buffers live until the call returns; nothing is under way on the lane.
        let next = unsafe { self.writes.fill(self.pool, index, nth, from, buffers.as_mut_ptr(), CHUNK) };
        if next.is_none() {
            self.pool.end_filling(index, nth);
        }
        self.filling = next.map(|next| (index, nth, next));
    }

    /// Housekeeping.
    pub fn keep_house(&mut self) -> Verdict {
        self.pool.tend().map_err(|lost| Broken(format!("host {}: {lost}", self.number)))?;
        self.leave();
        self.pool.shrink(0);
        self.pool.losses();
        Ok(())
    }

    /// Joins a node, unless it has.
    pub fn join(&mut self, node: usize, life: u64, network: &Arc<Network>, domain: &str) {
        let has = |(at, of, number): &(usize, u64, usize)| {
            *at == node && *of == life && self.pool.standing(*number) == Some(Standing::In)
        };
        if self.joined.iter().any(has) {
            return;
        }
        if let Ok(session) = Session::simulated(network, &options(self.number))
            && let Ok(number) = self.pool.add_node(in_domain(session, domain, self.mistake))
        {
            self.joined.push((node, life, number));
        }
    }

    /// Takes all nodes out but these.
    pub fn keep_only(&mut self, nodes: &[usize]) {
        for &(node, _, number) in &self.joined {
            if !nodes.contains(&node) {
                self.pool.take_out(number);
            }
        }
    }

    /// Whether it needs nothing that this node alone has.
    pub fn can_do_without(&self, node: usize, lives: impl Fn(usize, u64) -> bool) -> bool {
        let is_other = |number: usize| {
            if number == MAX_NODES {
                // The file.
                return true;
            }
            let of = self.joined.iter().find(|(_, _, at)| *at == number);
            of.is_some_and(|(at, life, _)| *at != node && lives(*at, *life))
        };
        let whole = |page: &Page| {
            let homes = self.pool.homes(page.slot.slab_index());
            homes.iter().flatten().any(|(at, state)| *state == State::Whole && is_other(*at))
        };
        self.pages.iter().all(whole)
    }

    /// Whether it has noticed that a life of a node is over.
    pub fn knows_over(&self, node: usize, life: u64) -> bool {
        let mut of = self.joined.iter().filter(|(at, of, _)| *at == node && *of == life);
        of.all(|(.., number)| matches!(self.pool.standing(*number), Some(Standing::Lost | Standing::Left)))
    }

    /// Slabs with live pages that it has at a node: nodes of both homes, by their numbers in the rack.
    pub fn homes(&self) -> Vec<[Option<usize>; 2]> {
        let mut slabs: Vec<u32> = self.pages.iter().map(|page| page.slot.slab_index()).collect();
        slabs.sort_unstable();
        slabs.dedup();
        let node = |number: usize| self.joined.iter().find(|(_, _, at)| *at == number).map(|(node, ..)| *node);
        let of = |slab: u32| self.pool.homes(slab).map(|home| home.and_then(|(number, _)| node(number)));
        slabs.into_iter().map(of).collect()
    }

    /// Whether a node grants slabs to it, as far as it knows.
    pub fn is_in(&self, node: usize, life: u64) -> bool {
        let of = self.joined.iter().find(|(at, of, _)| *at == node && *of == life);
        of.is_some_and(|(.., number)| self.pool.standing(*number) == Some(Standing::In))
    }
}

fn in_domain(session: Session, domain: &str, mistake: Option<Mistake>) -> Session {
    match farmem_protocol::node::domain(domain) {
        Ok(domain) if mistake != Some(Mistake::NoDomains) => session.in_domain(domain),
        _ => session,
    }
}
