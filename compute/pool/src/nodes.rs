//! The nodes of a pool: they come, are left, and die, while threads use their slabs.
//!
//! ```text
//!                    ┌── taken out ──► Leaving ── its last slab given back ──► Left
//!  joined ──► In ────┤
//!                    └── lost ──┬─ its memory stays mapped here ──► Orphaned: slabs are used in place, and for good
//!                               └─ else ─────────────────────────► Lost: its homes are absent from their words
//! ```
//!
//! A node keeps its number for the life of the process, and its session is never freed. So whoever
//! finds a number in a record can use the session without a lock, and a node is asked for something
//! with no lock of the pool held.

// Sessions are reached by pointers that are never freed.
#![allow(unsafe_code)]

use crate::extent::{HOMES, State, Word};
use crate::protect::disk::DISK;
use crate::slab::Seat;
use crate::{Changing, Disk, Pool, Slabs};
use farmem_fabric::{Lost, QueuePair, Session};
use farmem_protocol::placement::{self, Candidate};
use farmem_protocol::random::hash;
use farmem_sys::clock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// Nodes that a pool can have over the life of its process.
pub const MAX_NODES: usize = 256;

/// What a node is to the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Standing {
    /// Slabs come from it.
    In = 1,
    /// Its slabs are given back as they empty.
    Leaving = 2,
    /// The pool has nothing there any more, and has said goodbye.
    Left = 3,
    /// It is lost, and what is mapped of it stays.
    Orphaned = 4,
    /// It is lost, with its memory.
    Lost = 5,
}

pub(crate) struct Node {
    /// Never freed. Another one in a forked child.
    session: AtomicPtr<Session>,
    standing: AtomicU32,
    /// Slabs of this process there.
    pub held: AtomicU32,
    /// The number of the first node that has its failure domain.
    domain: AtomicU32,
    /// It sent a page that does not open, and is not used again.
    pub distrusted: AtomicBool,
}

impl Node {
    fn empty() -> Node {
        let session = AtomicPtr::new(std::ptr::null_mut());
        let [standing, held, domain] = [0; 3].map(AtomicU32::new);
        Node { session, standing, held, domain, distrusted: AtomicBool::new(false) }
    }

    pub fn session(&self) -> &'static Session {
        // SAFETY: set before the node is counted, from a leaked box.
        unsafe { &*self.session.load(Ordering::Acquire) }
    }

    /// In a forked child: its own session in place of the parent's.
    pub fn renew(&self, session: Session) {
        self.session.store(Box::into_raw(Box::new(session)), Ordering::Release);
    }

    pub fn standing(&self) -> Standing {
        match self.standing.load(Ordering::Acquire) {
            1 => Standing::In,
            2 => Standing::Leaving,
            3 => Standing::Left,
            4 => Standing::Orphaned,
            _ => Standing::Lost,
        }
    }

    fn set(&self, standing: Standing) {
        self.standing.store(standing as u32, Ordering::Release);
    }

    /// Whether it lays records of lines onto slabs: its software NIC does, a card does not.
    pub fn takes_records(&self) -> bool {
        !self.session().is_wired() && !self.session().is_mapped()
    }

    /// Whether it answers, as far as is known.
    pub fn is_there(&self) -> bool {
        matches!(self.standing(), Standing::In | Standing::Leaving)
    }
}

/// A moment, by the clock of the pool's nodes.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    /// Of the time stamp counter; a simulator's are nanoseconds.
    pub ticks: u64,
    pub simulated: bool,
}

impl Moment {
    /// Ticks of this clock in nanoseconds.
    pub fn ns(self, ticks: u64) -> u64 {
        if self.simulated { ticks } else { clock::ns(ticks) }
    }
}

/// A node that was lost, and what that means.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Which, and why.
    pub lost: Lost,
    /// Slabs of this process there.
    pub slabs: u32,
    /// Their bytes stay: they are mapped here.
    pub kept: bool,
    /// Slabs of which one copy is left, and was not the only one.
    pub single: u32,
}

/// Why a node cannot join.
#[derive(Debug, thiserror::Error)]
pub enum NoPlace {
    /// The table of nodes is full.
    #[error("this process has had {MAX_NODES} nodes, which is the limit: start it anew")]
    TooMany,
    /// Pages are sealed, and its memory is mapped.
    #[error("--seal: its memory is mapped here, where it reads what is used: name it by HOST:PORT")]
    Mapped,
}

/// All nodes, by their numbers.
pub(crate) struct Nodes {
    list: Box<[Node]>,
    count: AtomicUsize,
}

impl Nodes {
    pub fn new() -> Nodes {
        Nodes { list: (0..MAX_NODES).map(|_| Node::empty()).collect(), count: AtomicUsize::new(0) }
    }

    pub fn all(&self) -> &[Node] {
        &self.list[..self.count.load(Ordering::Acquire)]
    }

    /// The same, as a forked child has them: by the parent's sessions.
    #[cfg(feature = "lab")]
    pub fn twin(&self) -> Nodes {
        let twin = Nodes::new();
        for (to, from) in twin.list.iter().zip(self.all()) {
            to.session.store(from.session.load(Ordering::Acquire), Ordering::Release);
            to.standing.store(from.standing.load(Ordering::Acquire), Ordering::Release);
            to.held.store(from.held.load(Ordering::Relaxed), Ordering::Relaxed);
            to.domain.store(from.domain.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        twin.count.store(self.all().len(), Ordering::Release);
        twin
    }

    /// Who adds holds the pool's lock of nodes.
    fn add(&self, session: Session) -> Result<usize, NoPlace> {
        let number = self.count.load(Ordering::Relaxed);
        let node = self.list.get(number).ok_or(NoPlace::TooMany)?;
        let domain = session.domain();
        let shares = |other: &Node| !domain.is_empty() && other.session().domain() == domain;
        let first = self.all().iter().position(shares).unwrap_or(number);
        node.domain.store(first as u32, Ordering::Relaxed);
        node.renew(session);
        node.set(Standing::In);
        self.count.store(number + 1, Ordering::Release);
        Ok(number)
    }
}

impl Pool {
    /// A node joins: slabs may come from it at once. Returns its number.
    ///
    /// The consumer is to be ready for it before: if its memory is not mapped, for pages that
    /// travel.
    ///
    /// # Errors
    /// [`NoPlace`]; the session is dropped.
    pub fn add_node(&self, session: Session) -> Result<usize, NoPlace> {
        if self.seals() && session.is_mapped() {
            return Err(NoPlace::Mapped);
        }
        let changing = self.changing.lock();
        for &(at, len) in &changing.arenas {
            // SAFETY: `Pool::arena` has the promise that its memory is never unmapped.
            unsafe { session.arena(at as *mut u8, len) };
        }
        let number = self.nodes.add(session)?;
        self.watch_over(number);
        Ok(number)
    }

    /// A node is taken out: no slab comes from it any more, its slabs are not overwritten, and go
    /// back as they empty ([`Pool::shrink`]). With the last one the pool says goodbye. False if it
    /// is not in.
    pub fn take_out(&self, node: usize) -> bool {
        // Nothing is published meanwhile.
        let _changing = self.changing.lock();
        let Some(one) = self.nodes.all().get(node).filter(|node| node.standing() == Standing::In) else { return false };
        one.set(Standing::Leaving);
        self.close_slabs_of(&mut self.slabs.lock(), node);
        true
    }

    /// Slabs of a node that is being left take no new pages, and are not overwritten.
    pub(crate) fn close_slabs_of(&self, slabs: &mut Slabs, node: usize) {
        for index in 0..slabs.list.len() as u32 {
            let word = self.extents.word(index);
            let there = (0..HOMES)
                .any(|home| word.state(home) != State::Absent && self.extents.home(word, home).node as usize == node);
            if let Some(slab) = slabs.list[index as usize].as_mut().filter(|slab| there && !slab.closed) {
                slab.closed = true;
                if slab.seat != Seat::Parity {
                    self.capacity.fetch_sub(farmem_protocol::addr::SLAB_BYTES, Ordering::Relaxed);
                }
                self.extents.update(index, |word| Some(word.with_leaving(true)));
            }
        }
    }

    /// Says goodbye to nodes that are being left and hold nothing of this process any more.
    pub(crate) fn leave_empty(&self) {
        for node in self.nodes.all() {
            if node.standing() == Standing::Leaving && node.held.load(Ordering::Relaxed) == 0 {
                node.set(Standing::Left);
                node.session().leave();
            }
        }
    }

    /// What a node is to the pool; `None`: there is no such node.
    pub fn standing(&self, node: usize) -> Option<Standing> {
        self.nodes.all().get(node).map(Node::standing)
    }

    /// The number of the node at an address, as it was given, of those that are in.
    pub fn node_at(&self, address: &str) -> Option<usize> {
        let is = |node: &Node| node.standing() == Standing::In && node.session().node() == address;
        self.nodes.all().iter().position(is)
    }

    /// Whether a node at an address, as it was given, was lost and may be used again, and none is in
    /// there now.
    pub fn has_lost(&self, address: &str) -> bool {
        let lost = |node: &Node| matches!(node.standing(), Standing::Lost | Standing::Orphaned);
        let there = |node: &&Node| node.session().node() == address;
        let distrusted = |node: &Node| node.distrusted.load(Ordering::Relaxed);
        let mut all = self.nodes.all().iter().filter(there);
        self.node_at(address).is_none() && all.clone().any(lost) && !all.any(distrusted)
    }

    /// The addresses of the nodes that are in, as they were given.
    pub fn addresses(&self) -> Vec<String> {
        let is_in = self.nodes.all().iter().filter(|node| node.standing() == Standing::In);
        is_in.map(|node| node.session().node().to_owned()).collect()
    }

    /// Nodes that are in, or being left.
    pub fn nodes(&self) -> usize {
        self.nodes.all().iter().filter(|node| node.is_there()).count()
    }

    /// Whether every slab there is or can be is mapped (shm), as long as no node joins.
    pub fn all_mapped(&self) -> bool {
        let mut nodes = self.nodes.all().iter();
        nodes.all(|node| matches!(node.standing(), Standing::Left | Standing::Lost) || node.session().is_mapped())
    }

    /// Whether some node's memory is reached by its card (RDMA).
    pub fn any_wired(&self) -> bool {
        self.nodes.all().iter().any(|node| node.is_there() && node.session().is_wired())
    }

    /// This process is about to end; see [`Session::farewell`].
    pub fn farewell(&self) {
        self.nodes.all().iter().filter(|node| node.is_there()).for_each(|node| node.session().farewell());
    }

    /// Looks whether the nodes are still there; see [`Session::tend`]. For a background thread, a
    /// few times a second.
    ///
    /// # Errors
    /// A node is lost, and with it a page: no other home has it. Losses without that are told by
    /// [`Pool::losses`].
    pub fn tend(&self) -> Result<(), Lost> {
        for (number, node) in self.nodes.all().iter().enumerate().filter(|(_, node)| node.is_there()) {
            if let Err(lost) = node.session().tend() {
                self.lose(number, &lost);
            }
        }
        let given_up = self.nodes.all().iter().filter(|node| node.standing() == Standing::Lost);
        given_up.for_each(|node| node.session().hang_up());
        self.anything_lost()
    }

    /// Whether every node is within reach, by the last look. If not, the next one should be soon.
    pub fn all_near(&self) -> bool {
        self.nodes.all().iter().filter(|node| node.is_there()).all(|node| node.session().is_near())
    }

    /// Takes the losses of nodes that were not told yet.
    pub fn losses(&self) -> Vec<Loss> {
        if self.untold.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut changing = self.changing.lock();
        self.untold.store(0, Ordering::Relaxed);
        std::mem::take(&mut changing.losses)
    }

    /// A node was found lost. When this returns no word names a home there, but those whose memory
    /// stays mapped.
    #[cold]
    pub(crate) fn lose(&self, number: usize, lost: &Lost) {
        let node = &self.nodes.all()[number];
        // Whoever comes second waits until the words are changed.
        let mut changing = self.changing.lock();
        if !node.is_there() {
            return;
        }
        let kept = node.session().keeps_memory();
        let slabs = self.slabs.lock();
        self.let_go(&mut changing, &slabs, number, lost, kept);
    }

    /// A node is lost. No slab is published meanwhile: none is missed.
    pub(crate) fn let_go(&self, changing: &mut Changing, slabs: &Slabs, number: usize, lost: &Lost, kept: bool) {
        let node = &self.nodes.all()[number];
        let held = node.held.load(Ordering::Relaxed);
        node.set(if kept { Standing::Orphaned } else { Standing::Lost });
        let mut single = 0;
        if !kept {
            for index in 0..slabs.list.len() as u32 {
                let word = self.extents.word(index);
                self.forsake(index, number);
                let left = self.extents.word(index);
                single += (word != left && (!left.is_lost() || self.follows(index))) as u32;
            }
        }
        changing.losses.push(Loss { lost: lost.clone(), slabs: held, kept, single });
        self.untold.fetch_add(1, Ordering::Relaxed);
    }

    /// A slab has no home at a node any more.
    pub(crate) fn forsake(&self, index: u32, node: usize) {
        let there = |word: Word, home: usize| {
            word.state(home) != State::Absent && self.extents.home(word, home).node as usize == node
        };
        let gone = self.extents.update(index, |word| {
            let homes = (0..HOMES).filter(|&home| there(word, home));
            let gone = homes.fold(word, |word, home| word.with_state(home, State::Absent));
            (gone != word).then_some(gone)
        });
        if gone.is_some() && node != DISK as usize {
            self.nodes.all()[node].held.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The loss of a node that has taken a page with it, if there is one. Slabs that had none are
    /// forgotten.
    pub(crate) fn anything_lost(&self) -> Result<(), Lost> {
        if !self.nodes.all().iter().any(|node| node.standing() == Standing::Lost) {
            return Ok(());
        }
        let mut slabs = self.slabs.lock();
        for index in 0..slabs.list.len() {
            let word = self.extents.word(index as u32);
            let Some(slab) = slabs.list[index].as_ref().filter(|_| word.is_lost()) else { continue };
            if !slab.is_idle() && !self.follows(index as u32) {
                return Err(self.why_lost(word));
            }
            // It goes with its group, or gets another home.
            if slab.seat != Seat::None {
                continue;
            }
            // No home is there to be given back.
            let _ = self.remove(&mut slabs, index);
        }
        Ok(())
    }

    /// Why the homes that a word's record names are of no use.
    pub(crate) fn why_lost(&self, word: Word) -> Lost {
        let at = (0..HOMES).map(|home| self.extents.home(word, home).node);
        // A disk that has failed is told before: the loss of the node is why the page is gone.
        let sessions = || at.clone().filter_map(|node| self.nodes.all().get(node as usize)).map(Node::session);
        let unsaid = || {
            let node = sessions().next().map_or_else(String::new, |session| session.node().to_owned());
            Lost { node, reason: "it has not kept a page that it was given".to_owned() }
        };
        let disk = || self.disk().filter(|disk| !disk.is_in()).map(Disk::lost);
        sessions().find_map(Session::loss).or_else(disk).unwrap_or_else(unsaid)
    }

    /// A node's failure domain, as a number: that of the first node that has it. A node of no known
    /// domain is one by itself.
    pub(crate) fn domain(&self, node: usize) -> u32 {
        self.nodes.all().get(node).map_or(DISK, |node| node.domain.load(Ordering::Relaxed))
    }

    /// The order in which to ask nodes for a slab; `beside`: for one beside those that these nodes
    /// have. Nodes of other failure domains come first then, those of theirs last.
    pub(crate) fn to_ask(&self, beside: &[u32], asked: &mut Vec<usize>) {
        let candidate = |(number, node): (usize, &Node)| Candidate {
            lends: 0,
            used: u64::from(node.held.load(Ordering::Relaxed)),
            domain: self.domain(number),
            open: node.standing() == Standing::In && !beside.contains(&(number as u32)),
        };
        let mut candidates: Vec<Candidate> = self.nodes.all().iter().enumerate().map(candidate).collect();
        let random = hash(self.drawn.fetch_add(1, Ordering::Relaxed));
        let domains: Vec<u32> = beside.iter().map(|&node| self.domain(node as usize)).collect();
        placement::order(&candidates, &domains, random, asked);
        if domains.is_empty() {
            return;
        }
        let mut near = Vec::new();
        candidates.iter_mut().for_each(|node| node.open &= domains.contains(&node.domain));
        placement::order(&candidates, &[], random, &mut near);
        asked.append(&mut near);
    }

    /// A queue pair to a node, for one thread.
    pub(crate) fn queue_pair(&self, node: usize) -> Result<QueuePair, Lost> {
        self.nodes.all()[node].session().queue_pair()
    }

    /// The time, of the counter that costs no system call, or of the simulator.
    #[inline]
    pub(crate) fn moment(&self) -> Moment {
        if self.simulated { self.simulated_moment() } else { Moment { ticks: clock::ticks(), simulated: false } }
    }

    #[cold]
    fn simulated_moment(&self) -> Moment {
        Moment { ticks: self.nodes.all().first().map_or(0, |node| node.session().now_ns()), simulated: true }
    }

    /// Lets time pass: the simulator's where the first node is.
    pub(crate) fn pause(&self, ns: u64) {
        match self.nodes.all().first() {
            Some(node) => node.session().sleep_ns(ns),
            None => farmem_sys::raw::sleep_ns(ns),
        }
    }
}
