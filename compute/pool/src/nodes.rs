//! The nodes of a pool: they come, are left, and die, while threads use their slabs.
//!
//! ```text
//!                    ┌── taken out ──► Leaving ── its last slab given back ──► Left
//!  joined ──► In ────┤
//!                    ├── lost ──┬─ its memory stays mapped here ──► Orphaned: slabs are used in place, and for good
//!                    │          └─ else ─────────────────────────► Lost: its homes are absent from their words
//!                    └── silent, and pages are sealed ──► Away: its homes are behind; then back, or Lost (`away`)
//! ```
//!
//! A session is never freed. So a thread that finds a node's number in a record can use the session
//! without a lock, and a node is asked for something with no lock of the pool held. Numbers of nodes
//! that have ended are used again (`table`).

#![allow(unsafe_code)] // Arenas of consumers.

mod table;

pub(crate) use table::Node;
pub use table::Nodes;

use crate::Pool;
use crate::homes::Home;
use crate::protect::disk::DISK;
use farmem_fabric::{Lost, QueuePair, Session};
use farmem_protocol::placement::{self, Candidate};
use farmem_protocol::random::hash;
use farmem_sys::clock;
use std::sync::atomic::Ordering;

/// Nodes that a pool can have at a time, those among them that ended a moment ago.
pub const MAX_NODES: usize = 256;

/// A node's standing: whether the pool uses it, and how far.
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
    /// It was given up because it did not answer, and may come back with its memory.
    Away = 6,
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

/// Why a node cannot join.
#[derive(Debug, thiserror::Error)]
pub enum NoPlace {
    /// The table of nodes is full.
    #[error("this process has {MAX_NODES} nodes, which is the limit: take some out")]
    TooMany,
    /// Pages are sealed, and its memory is mapped.
    #[error("--seal: its memory is mapped here, where it reads what is used: name it by HOST:PORT")]
    Mapped,
}

impl Nodes {
    /// The loss of a node, if no node is left.
    pub fn without(&self) -> Option<Lost> {
        let nodes = self.all();
        match nodes.iter().any(|node| node.is_there()) {
            true => None,
            false => nodes.iter().find_map(|node| node.session().standing().loss()),
        }
    }

    /// Says goodbye to nodes that are being left and hold nothing of this process any more.
    pub(crate) fn leave_empty(&self) {
        for node in self.all() {
            if node.standing() == Standing::Leaving && node.held.load(Ordering::Relaxed) == 0 {
                node.set(Standing::Left);
                node.session().standing().leave();
            }
        }
    }

    /// A node's standing; `None`: there is no such node.
    pub fn standing(&self, node: usize) -> Option<Standing> {
        self.all().get(node).map(Node::standing)
    }

    /// The number of the node at an address, as it was given, of those that are in.
    pub fn node_at(&self, address: &str) -> Option<usize> {
        let is = |node: &Node| node.standing() == Standing::In && node.session().node() == address;
        self.all().iter().position(is)
    }

    /// Whether a node at an address, as it was given, was lost and may be used again, and none is in
    /// there now.
    pub fn has_lost(&self, address: &str) -> bool {
        let lost = |node: &Node| matches!(node.standing(), Standing::Lost | Standing::Orphaned);
        let there = |node: &&Node| node.session().node() == address;
        let distrusted = |node: &Node| node.distrusted.load(Ordering::Relaxed);
        let mut all = self.all().iter().filter(there);
        self.node_at(address).is_none() && all.clone().any(lost) && !all.any(distrusted)
    }

    /// The addresses of the nodes that are in, as they were given.
    pub fn addresses(&self) -> Vec<String> {
        let is_in = self.all().iter().filter(|node| node.standing() == Standing::In);
        is_in.map(|node| node.session().node().to_owned()).collect()
    }

    /// Nodes that are in, or being left.
    pub fn count(&self) -> usize {
        self.all().iter().filter(|node| node.is_there()).count()
    }

    /// Whether every slab there is or can be is mapped (shm), as long as no node joins.
    pub fn all_mapped(&self) -> bool {
        let mut nodes = self.all().iter();
        nodes.all(|node| matches!(node.standing(), Standing::Left | Standing::Lost) || node.session().is_mapped())
    }

    /// Whether some node's memory is reached by its card (RDMA).
    pub fn any_wired(&self) -> bool {
        self.all().iter().any(|node| node.is_there() && node.session().is_wired())
    }

    /// This process is about to end; see [`Session::farewell`].
    pub fn farewell(&self) {
        self.all().iter().filter(|node| node.is_there()).for_each(|node| node.session().farewell());
    }

    /// Whether every node is within reach, by the last look. If not, the next one should be soon.
    pub fn all_near(&self) -> bool {
        self.all().iter().filter(|node| node.is_there()).all(|node| node.session().standing().is_near())
    }

    /// A node's failure domain, as a number. A node of no known domain is one by itself.
    pub(crate) fn domain(&self, node: usize) -> u32 {
        self.all().get(node).map_or(DISK, Node::domain)
    }

    /// Whether a node, or the disk, is not trusted.
    pub(crate) fn is_doubted(&self, node: u32) -> bool {
        self.all().get(node as usize).is_some_and(|node| node.distrusted.load(Ordering::Relaxed))
    }

    /// Whether the first of two homes is at a node that is not trusted, and the other one is not; or the
    /// other way round. `None`: they are alike.
    #[inline]
    pub(crate) fn doubts(&self, first: &Home, other: &Home) -> Option<bool> {
        if !self.any_distrusted.load(Ordering::Relaxed) {
            return None;
        }
        let (first, other) = (self.is_doubted(first.node), self.is_doubted(other.node));
        (first != other).then_some(first)
    }

    /// The order in which to ask nodes for a slab; `beside`: for one beside those that these nodes
    /// have. Nodes of other failure domains come first then, those of theirs last. Of each, nodes
    /// that want slabs back come last.
    pub(crate) fn to_ask(&self, beside: &[u32], asked: &mut Vec<usize>) {
        let candidate = |(number, node): (usize, &Node)| Candidate {
            lends: 0,
            used: u64::from(node.held.load(Ordering::Relaxed)),
            domain: self.domain(number),
            open: node.standing() == Standing::In && !beside.contains(&(number as u32)),
        };
        let is_short = |&node: &usize| self.all()[node].is_short.load(Ordering::Relaxed);
        let mut candidates: Vec<Candidate> = self.all().iter().enumerate().map(candidate).collect();
        let random = hash(self.next_drawn());
        let domains: Vec<u32> = beside.iter().map(|&node| self.domain(node as usize)).collect();
        placement::order(&candidates, &domains, random, asked);
        asked.sort_by_cached_key(is_short);
        if domains.is_empty() {
            return self.doubted_last(asked);
        }
        let mut near = Vec::new();
        candidates.iter_mut().for_each(|node| node.open &= domains.contains(&node.domain));
        placement::order(&candidates, &[], random, &mut near);
        near.sort_by_cached_key(is_short);
        asked.append(&mut near);
        self.doubted_last(asked);
    }

    /// Nodes that are not trusted are asked where no other one has room.
    fn doubted_last(&self, asked: &mut [usize]) {
        if self.any_distrusted.load(Ordering::Relaxed) {
            asked.sort_by_key(|&node| self.all()[node].distrusted.load(Ordering::Relaxed));
        }
    }

    /// A queue pair to a node, for one thread.
    pub(crate) fn queue_pair(&self, node: usize) -> Result<QueuePair, Lost> {
        self.all()[node].session().queue_pair()
    }

    /// The time, of the counter that costs no system call, or of the simulator.
    #[inline]
    pub(crate) fn moment(&self) -> Moment {
        if self.is_simulated() { self.simulated_moment() } else { Moment { ticks: clock::ticks(), simulated: false } }
    }

    #[cold]
    fn simulated_moment(&self) -> Moment {
        Moment { ticks: self.all().first().map_or(0, |node| node.session().clock().now_ns()), simulated: true }
    }

    /// Lets time pass: the simulator's where the first node is.
    pub(crate) fn pause(&self, ns: u64) {
        match self.all().first() {
            Some(node) => node.session().clock().sleep_ns(ns),
            None => farmem_sys::raw::sleep_ns(ns),
        }
    }

    /// Whether nodes have been lost, or too few are left for two copies.
    pub(crate) fn is_degraded(&self) -> bool {
        let standing = |standing| self.all().iter().filter(|node| node.standing() == standing).count();
        standing(Standing::In) < 2 || self.any_lost()
    }

    /// Whether a node's memory is reached by its card.
    pub(crate) fn is_wired(&self, node: u32) -> bool {
        self.all()[node as usize].session().is_wired()
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
        if self.tables.sealed.is_on() && session.is_mapped() {
            return Err(NoPlace::Mapped);
        }
        let changing = self.changes.now.lock();
        for &(at, len) in &changing.arenas {
            // SAFETY: `Pool::arena` has the promise that its memory is never unmapped.
            unsafe { session.arena(at as *mut u8, len) };
        }
        let number = self.tables.nodes.add(session)?;
        self.tables.watch_over(number);
        Ok(number)
    }

    /// A node is taken out: no slab comes from it any more, its slabs are not overwritten, and go
    /// back as they empty ([`crate::Slots::shrink`]). With the last one the pool says goodbye. False if it
    /// is not in.
    pub fn take_out(&self, node: usize) -> bool {
        // Nothing is published meanwhile.
        let _changing = self.changes.now.lock();
        let is_in = |node: &&Node| node.standing() == Standing::In;
        let Some(one) = self.tables.nodes.all().get(node).filter(is_in) else { return false };
        one.set(Standing::Leaving);
        self.losses().close_slabs_of(&mut self.held.slabs.lock(), node);
        true
    }
}
