//! What a node tells of itself and of the members that it has.

use super::spare::SLOW_NS;
use super::{Membership, Session};
use crate::Lost;
use farmem_protocol::wire::{Ask, Figure, Reply, VolumeInfo, Who};

/// How long a question that can wait is waited for, ns. Forks wait meanwhile, and faults for them.
const SOON_NS: u64 = 20_000_000;

/// A session's part for questions about the node. It changes nothing there.
#[derive(Clone, Copy)]
pub struct Records<'a> {
    member: &'a Membership,
}

impl Session {
    /// The node's records.
    pub fn records(&self) -> Records<'_> {
        Records { member: &self.member }
    }
}

impl Records<'_> {
    /// The present holder of an owner id at the node. `None`: the id is free, or its holder is another
    /// tenant's.
    pub fn who(self, owner: u16) -> Result<Option<Who>, Lost> {
        match self.member.ask(Ask::Who(owner))? {
            (Ok(Reply::Who(who)), _) => Ok(Some(who)),
            _ => Ok(None),
        }
    }

    /// Whether the node may want slabs back ([`Records::wanted_back`]). It is not asked where its
    /// memory is mapped: the process that has it mapped keeps it anyway.
    pub fn may_ask_back(self) -> bool {
        self.member.asks_back
    }

    /// Slabs that this member is to give back, because the node's machine needs their memory.
    /// `None`: the node has not answered yet. A late answer is taken by the next call.
    pub fn wanted_back(self) -> Option<u64> {
        match self.member.ask_soon(Ask::Wanted, SOON_NS)? {
            Reply::Figure(slabs) => Some(slabs),
            _ => None,
        }
    }

    /// Whether the node answers within 200 ms. True where its memory is mapped: that outlives it.
    pub fn answers(self) -> bool {
        // The first answer may be a late one, to an earlier question.
        let answers = || self.member.ask_soon(Ask::Ping, SLOW_NS).is_some();
        self.member.mapped || answers() && answers()
    }

    /// A figure of the node's.
    pub fn figure(self, figure: Figure) -> Result<u64, Lost> {
        match self.member.ask(Ask::Figure(figure))? {
            (Ok(Reply::Figure(value)), _) => Ok(value),
            _ => Ok(0),
        }
    }

    /// The swap volume at a place in the node's order of them, of those that are no other tenant's.
    /// `None`: the place is beyond the last.
    pub fn volume(self, place: u64) -> Result<Option<VolumeInfo>, Lost> {
        match self.member.ask(Ask::VolumeAt(place))?.0 {
            Ok(Reply::Volume(volume)) => Ok(Some(volume)),
            _ => Ok(None),
        }
    }
}
