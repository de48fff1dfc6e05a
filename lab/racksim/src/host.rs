//! A host: the real pool, two lanes, and a program that writes, reads and drops pages.

#![allow(unsafe_code)] // Buffers of reads and writes.

mod forks;
mod pages;
mod sealed;

use crate::Mistake;
use crate::judge::{Broken, Judge, Verdict, holds};
use farmem_control::api::Terms;
use farmem_fabric::{ConnectOptions, Session};
use farmem_pool::homes::State;
use farmem_pool::{By, Disk, Lacks, Lane, MAX_NODES, Met, Piece, Pool, Protect, Slip, Standing};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES};
use farmem_protocol::random::Random;
use farmem_sim::Network;
use farmem_sys::lines::{Hasher, Unit};
use pages::{SEED, bytes, change};
use std::sync::Arc;
use std::time::Duration;

pub use sealed::Spot;

/// Pages that one step of repair copies.
pub const CHUNK: u32 = 8;
/// A wait of more rounds, of a second each, counts as endless.
const ROUNDS: u32 = 100;

/// A page of the program.
#[derive(Clone, Copy)]
struct Page {
    number: u64,
    slot: FarSlot,
    /// What its slot holds, as far as the program knows.
    value: Option<u64>,
}

/// A host.
pub struct Host {
    /// Its number.
    pub number: usize,
    pool: &'static Pool,
    /// The number of the host that it was forked from, otherwise its own. It names the values that
    /// the program writes.
    pub family: usize,
    /// How it protects its pages against the loss of a node.
    pub protect: Protect,
    writes: Lane,
    reads: Lane,
    /// The buffer of READs. It lives as long as the lanes, so a late answer finds it.
    landing: Box<[u64; PAGE_BYTES / 8]>,
    /// The buffer of pages that repair copies. It lives as long, too.
    copied: Vec<u8>,
    pages: Vec<Page>,
    next_page: u64,
    /// Pages that repair has under way at a time.
    pub under_way: u32,
    /// The home that is being filled: the slab's index, which home, and the next page.
    filling: Option<(u32, usize, u32)>,
    /// Slabs of which something could not be read: they are left alone until all others are repaired.
    stuck: Vec<u32>,
    /// For [`Mistake::FilledOutsideLock`]: pages that were read for a home, and are written to it
    /// later.
    late_fills: Vec<(FarSlot, u64)>,
    /// The nodes that it has joined: number in the rack, incarnation, and number in the pool.
    pub joined: Vec<(usize, u64, usize)>,
    /// The nodes that the controller gave it.
    pub held: Vec<String>,
    /// Terms that it knows of.
    pub terms: Terms,
    mistake: Option<Mistake>,
    hasher: Hasher,
    /// Its pages leave sealed.
    seals: bool,
    /// The node that answered the last READ, by its number in the pool.
    sender: Option<u32>,
    /// An operation failed: no home could be reached.
    failed: bool,
    /// Nodes that it gave up for a page that did not open, each in an incarnation: it never joins them
    /// again.
    distrusted: Vec<(usize, u64)>,
    /// How many it gave up so.
    pub told: u64,
    /// Pages that it lost because a node lied: no copy of them opened.
    pub lost_to_lies: u64,
    /// Nodes that it gave up because they did not answer, and that came back with their memory.
    pub returned: u64,
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

impl Mistake {
    /// The pool's own mistake, if the pool makes it.
    fn slip(self) -> Option<Slip> {
        match self {
            Mistake::KeptLateLink => Some(Slip::KeptLateLink),
            Mistake::BitsAfterWord => Some(Slip::BitsAfterWord),
            Mistake::ParityWithoutOthers => Some(Slip::ParityWithoutOthers),
            Mistake::ParityLeftBehind => Some(Slip::ParityLeftBehind),
            _ => None,
        }
    }
}

impl Host {
    /// A host with these nodes: number in the rack, incarnation, network, domain.
    pub fn new(
        number: usize,
        nodes: &[(usize, u64, &Arc<Network>, &str)],
        protect: Protect,
        mistake: Option<Mistake>,
    ) -> Host {
        let session = |(_, _, network, domain): &(usize, u64, &Arc<Network>, &str)| {
            in_domain(Session::simulated(network, &options(number)).expect("the node is there"), domain, mistake)
        };
        let pool: &'static Pool =
            Box::leak(Box::new(Pool::new(nodes.iter().map(session).collect()).expect("memory for a pool")));
        let protects = mistake != Some(Mistake::OneCopy) || protect == Protect::Disk;
        match protect {
            Protect::Disk => pool.protect_by(Disk::open("/tmp").expect("a file in /tmp")),
            how if protects => pool.protect_by_parity(how).expect("addresses for parity"),
            _ => {}
        }
        mistake.and_then(Mistake::slip).into_iter().for_each(|slip| pool.slip(slip));
        let joined = nodes.iter().enumerate().map(|(at, (node, life, ..))| (*node, *life, at)).collect();
        Host { joined, ..Host::with(number, pool, protect, mistake) }
    }

    /// A host with a pool, and no pages so far.
    fn with(number: usize, pool: &'static Pool, protect: Protect, mistake: Option<Mistake>) -> Host {
        Host {
            number,
            family: number,
            pool,
            protect,
            writes: Lane::new(),
            reads: Lane::new(),
            landing: bytes(0),
            copied: vec![0; CHUNK as usize * PAGE_BYTES],
            pages: Vec::new(),
            next_page: 0,
            under_way: CHUNK,
            filling: None,
            stuck: Vec::new(),
            late_fills: Vec::new(),
            joined: Vec::new(),
            held: Vec::new(),
            terms: Terms::default(),
            mistake,
            hasher: Hasher::new(&SEED, Unit::best()),
            seals: false,
            sender: None,
            failed: false,
            distrusted: Vec::new(),
            told: 0,
            lost_to_lies: 0,
            returned: 0,
        }
    }

    /// Waits until all operations on a lane are done: on `reads` if it is true, otherwise on
    /// `writes`.
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
        self.sender = done.last().and_then(|done| done.from);
        match done.into_iter().find_map(|done| done.result.err()) {
            None => Ok(()),
            // The judge is asked whether a copy is there.
            Some(_) if self.seals => {
                self.failed = true;
                Ok(())
            }
            Some(lost) => Err(Broken(format!("host {} lost a page that another node has: {lost}", self.number))),
        }
    }

    /// Writes new pages. Each takes `stride` slots, of which all but one are freed again. So
    /// several slabs are used.
    pub fn grow(&mut self, pages: usize, stride: usize, judge: &mut Judge) -> Verdict {
        let mut slots = Vec::new();
        if self.pool.slots().alloc(pages * stride, &mut slots).is_err() {
            return Ok(());
        }
        let (used, spare): (Vec<_>, Vec<_>) = slots.into_iter().enumerate().partition(|(at, _)| at % stride == 0);
        self.pool.slots().free(&spare.into_iter().map(|(_, slot)| slot).collect::<Vec<_>>());
        for (_, slot) in used {
            // Of sealed bytes nobody can say whose they are.
            if !self.seals {
                let found = self.value_at(slot)?.unwrap_or_default();
                judge.fresh(self.number, self.family, found)?;
            }
            self.next_page += 1;
            self.pages.push(Page { number: self.next_page, slot, value: None });
        }
        let from = self.pages.len() - pages;
        self.write((from..from + pages).collect(), judge)
    }

    /// Writes pages, all at the same time. A page takes another slot if its own may not be
    /// overwritten: a forked process can reach it, or its node is being left.
    fn write(&mut self, which: Vec<usize>, judge: &mut Judge) -> Verdict {
        let mut buffers = Vec::new();
        let mut left = Vec::new();
        let mut written = Vec::new();
        for at in which {
            let mut page = self.pages[at];
            let shares = self.mistake == Some(Mistake::OverwroteShared) && self.pool.shares();
            if !self.pool.is_own(page.slot) && !shares {
                let mut other = Vec::new();
                if self.pool.slots().alloc(1, &mut other).is_err() {
                    continue;
                }
                left.push(std::mem::replace(&mut page.slot, other[0]));
                page.value = None;
            }
            let value = judge.value(self.family);
            let mut sealed = bytes(value);
            self.seal_page(page.slot, &mut sealed);
            buffers.push(sealed);
            let buffer = buffers[buffers.len() - 1].as_ptr().cast();
            // Parity changes by lines, but for one page in four.
            let old = page
                .value
                .filter(|_| self.pool.takes_lines(page.slot) == Some(By::Stripes) && !value.is_multiple_of(4))
                .filter(|_| !self.seals);
            // SAFETY: the buffer outlives the operation, which is awaited below.
            unsafe {
                match old {
                    Some(old) => {
                        let change = change(&self.hasher, old, value);
                        self.writes.change(self.pool, at as u64, page.slot, buffer, change, &SEED);
                    }
                    None => self.writes.write(self.pool, at as u64, page.slot, 0, buffer, PAGE_BYTES as u32),
                }
            }
            page.value = Some(value);
            self.pages[at] = page;
            judge.wrote(self.number, page.number, value);
            written.push(at);
        }
        match self.mistake {
            Some(Mistake::ReusedBeforeDone) => {
                self.writes.doorbell(self.pool);
                buffers.iter_mut().for_each(|buffer| buffer.fill(u64::MAX));
            }
            Some(Mistake::ReadBeforeDone) => {
                self.writes.doorbell(self.pool);
                self.look_at(written.last().copied().unwrap_or_default(), judge)?;
            }
            _ => {}
        }
        self.all_done(false)?;
        // What was not written anywhere is lost, and is found so when it is read.
        self.failed = false;
        self.pool.slots().free(&left);
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

    /// Reads a slot into the buffer of READs. Returns the node that answered, by its number in the
    /// pool, if it was one. `None`: no home could be reached.
    fn land(&mut self, slot: FarSlot) -> Result<Option<Option<u32>>, Broken> {
        self.landing.fill(u64::MAX);
        let into = self.landing.as_mut_ptr().cast();
        // SAFETY: the buffer outlives the lane.
        unsafe { self.reads.read(self.pool, 1, slot, 0, into, PAGE_BYTES as u32) };
        self.all_done(true)?;
        Ok((!std::mem::take(&mut self.failed)).then_some(self.sender))
    }

    /// Reads the value in a slot. A slot that was never written has 0. `None`: no copy can be had or
    /// opened.
    fn value_at(&mut self, slot: FarSlot) -> Result<Option<u64>, Broken> {
        let Some(from) = self.land_awaited(slot)? else { return Ok(None) };
        if !self.open_page(slot, from)? {
            return Ok(None);
        }
        let found = self.landing.clone();
        let value = found[0];
        let zero = found.iter().all(|word| *word == 0);
        holds(zero || found == bytes(value), || format!("host {}: a page of several writes", self.number))?;
        Ok(Some(value))
    }

    /// Reads one page, and has the judge check it.
    pub fn look(&mut self, random: &mut Random, judge: &mut Judge) -> Verdict {
        match self.pages.len() {
            0 => Ok(()),
            n => self.look_at(random.index(n), judge),
        }
    }

    fn look_at(&mut self, at: usize, judge: &mut Judge) -> Verdict {
        let Some(page) = self.pages.get(at).copied() else { return Ok(()) };
        match self.value_at(page.slot)? {
            Some(found) => judge.read(self.number, page.number, found),
            None => self.lose_page(at, judge),
        }
    }

    /// Reads all pages.
    pub fn look_at_all(&mut self, judge: &mut Judge) -> Verdict {
        // Backwards: a page that is lost gives its place to the last one, which was read.
        (0..self.pages.len()).rev().try_for_each(|at| self.look_at(at, judge))
    }

    /// Drops some pages, or all.
    pub fn drop_pages(&mut self, most: usize, random: &mut Random, judge: &mut Judge) {
        for _ in 0..most.min(self.pages.len()) {
            let page = self.pages.swap_remove(random.index(self.pages.len()));
            judge.dropped(self.number, page.number);
            self.pool.slots().free(&[page.slot]);
        }
        if self.mistake == Some(Mistake::FreedTwice)
            && let Some(page) = self.pages.first()
        {
            self.pool.slots().free(&[page.slot]);
        }
        self.pool.slots().shrink(0);
    }

    /// Takes a step of repair. Returns whether there was one to take.
    pub fn repair(&mut self) -> bool {
        if self.filling.is_some() {
            self.fill_some();
            return true;
        }
        let repair = self.pool.repair();
        let Some(lacks) = repair.may_lack().then(|| repair.lacks_but(&self.stuck)).flatten() else {
            self.stuck.clear();
            return false;
        };
        match lacks {
            Lacks::Bytes(index, nth) => self.filling = Some((index, nth, 0)),
            Lacks::Home(index) => {
                if self.pool.moves().add_home(index).is_err() {
                    return false;
                }
            }
            Lacks::Domain(index) => {
                let Ok(place) = self.pool.moves().place_apart(index) else { return false };
                self.pool.moves().move_home(&mut self.writes, index, place);
            }
            Lacks::Room(index) => match self.pool.moves().find_room(index) {
                Ok(Some(place)) => {
                    self.pool.moves().move_home(&mut self.writes, index, place);
                }
                Ok(None) => {}
                Err(_) => self.pool.moves().stay(index),
            },
            Lacks::Way(index, _) if self.mistake == Some(Mistake::ReleasedUnderRead) => {
                self.release_under_read(lacks, index);
            }
            Lacks::Way(index, home) if !self.pool.moves().other_answers(index, home) => {}
            Lacks::Way(index, home) => {
                self.pool.moves().drop_home(&mut self.writes, index, home);
            }
        }
        self.leave();
        true
    }

    /// The mistake: posts a READ, and gives a home back before it is answered.
    fn release_under_read(&mut self, lacks: Lacks, index: u32) {
        let into = self.landing.as_mut_ptr().cast();
        let slot = self.pages.iter().map(|page| page.slot).find(|slot| slot.slab_index() == index);
        if let Some(slot) = slot {
            // SAFETY: the buffer outlives the lane.
            unsafe { self.reads.read(self.pool, 1, slot, 0, into, PAGE_BYTES as u32) };
        }
        if let Lacks::Way(index, home) = lacks {
            self.pool.moves().drop_home(&mut self.writes, index, home);
        }
        self.leave();
        let _ = self.all_done(true);
    }

    /// Tells the pool that no operation uses a home that was dropped. The program has one thread,
    /// and it has nothing under way.
    fn leave(&self) {
        if let Some(number) = self.pool.moves().dropped() {
            self.pool.moves().all_have_left(number);
        }
    }

    fn fill_some(&mut self) {
        let Some((index, nth, from)) = self.filling else { return };
        if self.mistake == Some(Mistake::FilledOutsideLock) {
            self.fill_late(index);
        }
        let piece = Piece { pages: CHUNK, under_way: self.under_way, goes_on: &mut || true };
        // SAFETY: the buffers outlive the lane; nothing is under way on it.
        let filled = unsafe { self.writes.fill(self.pool, index, nth, from, self.copied.as_mut_ptr(), piece) };
        if filled.is_none()
            && !self.pool.moves().end_filling(index, nth)
            && self.seals
            && self.pool.moves().next_stale(index, nth, 0).is_some()
        {
            self.stuck.push(index);
        }
        self.filling = filled.map(|filled| (index, nth, filled.next));
    }

    /// The mistake: fills a home without owning the lane of all write-back. It reads pages now, and
    /// writes them at the next call, when the program may have written newer bytes.
    fn fill_late(&mut self, index: u32) {
        let late = std::mem::take(&mut self.late_fills);
        let buffers: Vec<_> = late.iter().map(|(_, value)| bytes(*value)).collect();
        for ((slot, _), buffer) in late.iter().zip(&buffers) {
            // SAFETY: the buffers outlive the operations, which are awaited.
            unsafe { self.writes.write(self.pool, 0, *slot, 0, buffer.as_ptr().cast(), PAGE_BYTES as u32) };
        }
        let _ = self.all_done(false);
        let slots: Vec<FarSlot> =
            self.pages.iter().map(|page| page.slot).filter(|slot| slot.slab_index() == index).collect();
        for slot in slots.into_iter().filter(|slot| self.pool.is_own(*slot)) {
            if let Ok(Some(value)) = self.value_at(slot) {
                self.late_fills.push((slot, value));
            }
        }
    }

    /// Rare events that both lanes have met.
    pub fn met(&self) -> [Met; 2] {
        [self.writes.met(), self.reads.met()]
    }

    /// Checks that every slab has the copies that its protection asks for, at different nodes and
    /// in different domains. It asks for no more than the nodes and domains that are there allow.
    pub fn lacks(
        &self,
        domain: impl Fn(usize) -> &'static str,
        (there, nodes): (usize, usize),
        room: impl Fn(usize) -> bool,
        judge: &Judge,
    ) -> Verdict {
        // What a liar has made of a group's copies may leave nothing to fill others from.
        for slab in self.slabs().into_iter().filter(|slab| !self.seals || self.has_honest(*slab, judge)) {
            let homes = |index: u32| self.pool.homes(index).into_iter().flatten();
            let whole = |(_, state): &(usize, State)| *state == State::Whole;
            let of: Vec<Option<usize>> = self
                .pool
                .repair()
                .beside(slab)
                .into_iter()
                .flat_map(homes)
                .filter(whole)
                .map(|(at, _)| self.node(at))
                .collect();
            let (needs, domains) = match self.protect {
                Protect::Ec { data, parity } => (data as usize + parity as usize, 1),
                Protect::Mirror => (2, 2),
                _ => (1, 1),
            };
            let mut apart = of.clone();
            apart.sort_unstable();
            apart.dedup();
            let enough = nodes >= needs;
            holds(!enough || of.len() >= needs && apart.len() == of.len(), || {
                format!("host {}: a slab has {} of {needs} copies, at {of:?}", self.number, apart.len())
            })?;
            let mut shelves: Vec<_> = apart.into_iter().flatten().map(&domain).collect();
            shelves.sort_unstable();
            shelves.dedup();
            // A node in another domain grants nothing when all that it lends is lent.
            let elsewhere = (0..5).filter(|at| !shelves.contains(&domain(*at)) && self.may_use(*at));
            holds(shelves.len() >= domains.min(there) || !elsewhere.into_iter().any(&room), || {
                format!("host {}: both copies of a slab are in {shelves:?}", self.number)
            })?;
        }
        Ok(())
    }

    /// Whether nodes enough grant slabs for all copies of a slab, or all seats of a group.
    pub fn has_nodes(&self) -> bool {
        let grants = |(.., number): &&(usize, u64, usize)| self.pool.nodes().standing(*number) == Some(Standing::In);
        let needs = match self.protect {
            Protect::Ec { data, parity } => data as usize + parity as usize,
            Protect::Mirror => 2,
            Protect::None | Protect::Disk => 1,
        };
        self.joined.iter().filter(grants).count() >= needs
    }

    /// Whether the pool counts a node of the rack as one that grants slabs, in whichever incarnation.
    fn may_use(&self, node: usize) -> bool {
        let mut of = self.joined.iter().filter(|(at, ..)| *at == node);
        of.any(|(.., number)| self.pool.nodes().standing(*number) == Some(Standing::In))
    }

    /// Housekeeping.
    pub fn keep_house(&mut self, judge: &mut Judge) -> Verdict {
        if let Err(lost) = self.pool.losses().tend() {
            holds(self.seals, || format!("host {}: {lost}", self.number))?;
            self.lose_slabs(judge)?;
        }
        self.take_back();
        self.pool.forks().end_shares();
        self.pool.moves().ask_back();
        self.leave();
        self.pool.slots().shrink(0);
        self.pool.losses().take();
        let refused: u64 = self.met().iter().map(|met| met.refused).sum();
        holds(refused == 0, || format!("host {} asks a node for what it has given back", self.number))
    }

    /// Joins a node, unless it is joined already.
    pub fn join(&mut self, node: usize, life: u64, network: &Arc<Network>, domain: &str) {
        let has = |(at, of, number): &(usize, u64, usize)| {
            *at == node && *of == life && self.pool.nodes().standing(*number) == Some(Standing::In)
        };
        if self.joined.iter().any(has) || self.distrusted.contains(&(node, life)) {
            return;
        }
        if let Ok(session) = Session::simulated(network, &options(self.number))
            && let Ok(number) = self.pool.add_node(in_domain(session, domain, self.mistake))
        {
            // The pool may use the number of a node that has ended again.
            self.joined.retain(|(.., other)| *other != number);
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

    /// Whether the host needs no page that only this node has. `lives` tells whether a node is
    /// alive in an incarnation.
    pub fn can_do_without(&self, node: usize, lives: impl Fn(usize, u64) -> bool) -> bool {
        let is_other = |number: usize| {
            if number == MAX_NODES {
                // The file.
                return true;
            }
            let of = self.joined.iter().find(|(_, _, at)| *at == number);
            of.is_some_and(|(at, life, _)| *at != node && lives(*at, *life))
        };
        let needs = self.needs();
        // A slab that moves has two homes, and counts as one seat of its group.
        let elsewhere = |index: &u32| {
            let mut homes = self.pool.homes(*index).into_iter().flatten();
            homes.any(|(at, state)| state == State::Whole && is_other(at))
        };
        let whole =
            |slab: &u32| self.pool.repair().beside(*slab).iter().filter(|index| elsewhere(index)).count() >= needs;
        self.slabs().iter().all(whole)
    }

    /// Whether every page has two copies, and two nodes grant memory for others. Then the host waits
    /// for no single node. If only one node grants, a page that needs another slot waits for it.
    pub fn is_doubled(&self) -> bool {
        let grants = |(.., number): &&(usize, u64, usize)| self.pool.nodes().standing(*number) == Some(Standing::In);
        let whole =
            |slab: u32| self.pool.homes(slab).iter().flatten().filter(|(_, state)| *state == State::Whole).count();
        let several = self.joined.iter().filter(grants).count() > 1;
        self.protect == Protect::Mirror && several && self.slabs().into_iter().all(|slab| whole(slab) == 2)
    }

    /// Whether the host has noticed that a node ended in this incarnation.
    pub fn knows_over(&self, node: usize, life: u64) -> bool {
        let mut of = self.joined.iter().filter(|(at, of, _)| *at == node && *of == life);
        of.all(|(.., number)| matches!(self.pool.nodes().standing(*number), Some(Standing::Lost | Standing::Left)))
    }

    /// For each slab with live pages, and each beside it in its group: the nodes of its two homes,
    /// by their numbers in the rack.
    pub fn homes(&self) -> Vec<[Option<usize>; 2]> {
        let of = |slab: u32| self.pool.homes(slab).map(|home| home.and_then(|(number, _)| self.node(number)));
        let mut all: Vec<u32> = self.slabs().into_iter().flat_map(|slab| self.pool.repair().beside(slab)).collect();
        all.sort_unstable();
        all.dedup();
        all.into_iter().map(of).collect()
    }

    /// Slabs with live pages.
    fn slabs(&self) -> Vec<u32> {
        let mut slabs: Vec<u32> = self.pages.iter().map(|page| page.slot.slab_index()).collect();
        slabs.sort_unstable();
        slabs.dedup();
        slabs
    }

    /// The number in the rack of the node with this number in the pool.
    fn node(&self, number: usize) -> Option<usize> {
        self.joined.iter().find(|(_, _, at)| *at == number).map(|(node, ..)| *node)
    }

    /// Whether the pool counts a node, in this incarnation, as one that grants slabs.
    pub fn is_in(&self, node: usize, life: u64) -> bool {
        let of = self.joined.iter().find(|(at, of, _)| *at == node && *of == life);
        of.is_some_and(|(.., number)| self.pool.nodes().standing(*number) == Some(Standing::In))
    }
}

fn in_domain(session: Session, domain: &str, mistake: Option<Mistake>) -> Session {
    match farmem_protocol::node::domain(domain) {
        Ok(domain) if mistake != Some(Mistake::NoDomains) => session.in_domain(domain),
        _ => session,
    }
}
