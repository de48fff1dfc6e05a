//! A node of the rack, as its beats describe it.

use super::LEAST_FREE;
use super::intent::{Intent, Process};
use std::net::IpAddr;
use std::time::Duration;

pub(super) struct Node {
    /// Its place in [`super::State`]'s list.
    pub seat: usize,
    pub domain: String,
    /// Of the process that was heard last.
    pub incarnation: u64,
    /// Of the same process. Empty: not known.
    pub address: String,
    pub lends: u64,
    pub lent: u64,
    pub members: u64,
    /// Bytes read and written since the node's start, as of its last beat.
    pub moved: (u64, u64),
    /// Bytes read and written a second between the last two beats.
    pub rates: (u64, u64),
    pub leaving: bool,
    pub drain: bool,
    /// The most bytes that it had lent since its drain was ordered. 0: it is not drained.
    pub drain_from: u64,
    /// An answer to a beat has told the node that it is to be emptied. What an earlier beat says it has
    /// lent may be less than what it has granted since.
    pub knows_drain: bool,
    /// Whether the event "is empty" was reported.
    pub told_empty: bool,
    /// Bytes that runs may have taken since its last beat: [`super::HEADROOM`] for each run that was given
    /// the node. It is a guess. It decides which node is drawn, never whether one is full.
    pub placed: u64,
    /// The address that its last beat came from.
    pub from: Option<IpAddr>,
    /// When its last beat came. `None`: none came since this controller began.
    pub heard: Option<Duration>,
    pub standing: Standing,
    /// Since when it has lent more than it is willing to lend.
    pub pressed: Option<Duration>,
    /// When a run was last given other nodes because this one needs its memory.
    pub shed: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Up,
    Suspect,
    Down,
}

impl Node {
    /// A node that is new.
    pub fn unheard(seat: usize, domain: String) -> Node {
        Node {
            seat,
            domain,
            incarnation: 0,
            address: String::new(),
            lends: 0,
            lent: 0,
            members: 0,
            moved: (0, 0),
            rates: (0, 0),
            leaving: false,
            drain: false,
            drain_from: 0,
            knows_drain: false,
            told_empty: false,
            placed: 0,
            from: None,
            heard: None,
            standing: Standing::Down,
            pressed: None,
            shed: None,
        }
    }

    /// Takes in what the store has of the node.
    pub fn is_kept(&mut self, domain: String, process: Option<Process>) {
        self.domain = domain;
        if let Some(Process { address, incarnation }) = process {
            (self.address, self.incarnation) = (address, incarnation);
        }
    }

    /// The intent that the node, of this name, belongs to the rack.
    pub fn member(&self, name: &str) -> Intent {
        let process = || Process { address: self.address.clone(), incarnation: self.incarnation };
        let process = (!self.address.is_empty()).then(process);
        Intent::Member { name: name.to_owned(), domain: self.domain.clone(), process }
    }

    pub fn free(&self) -> u64 {
        self.lends.saturating_sub(self.lent)
    }

    /// Whether runs may have the node. A full one counts: runs that have it keep it.
    pub fn is_open(&self) -> bool {
        self.standing == Standing::Up && !self.drain && !self.leaving
    }

    /// Whether the node may be given to a run that does not have it yet.
    pub fn has_room(&self) -> bool {
        self.is_open() && self.free() >= LEAST_FREE
    }

    /// Whether the node has lent more than it is willing to lend now. Its machine needs the memory.
    pub fn is_pressed(&self) -> bool {
        self.standing == Standing::Up && self.lent > self.lends
    }

    /// The node's state, as the operator's view shows it.
    pub fn shown(&self) -> &'static str {
        match self.standing {
            Standing::Down => "down",
            Standing::Suspect => "suspect",
            Standing::Up if self.told_empty => "empty",
            Standing::Up if self.drain => "draining",
            Standing::Up if self.leaving => "leaving",
            Standing::Up => "up",
        }
    }
}
