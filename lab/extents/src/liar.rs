//! An owner that makes its verbs up.
//!
//! It has two queue pairs and no program: any CAS of any word to any state, any
//! WRITE that is admitted, at any time. The NIC deals with each CAS in the three
//! steps that `guard` prescribes (load, ask, swap), which are three moves here,
//! so that everything else can happen between them ([`crate::lies`]).
//!
//! It may keep what it claims; it must not reach, take or lose what is others'.

use crate::scenario::Scenario;
use farmem_protocol::extent::{Owner, Place, Word};

/// What a CAS of a liar has come to.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Lie {
    pub place: Place,
    pub old: Word,
    pub new: Word,
    pub permitted: bool,
    pub awaited: bool,
}

/// The liar: the last owner of the table.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Liar {
    pub owner: Owner,
    pub under_way: [Option<Lie>; 2],
    pub lies: u16,
    pub writes: u16,
}

impl Liar {
    pub fn new(scenario: &Scenario) -> Liar {
        let owner = Owner::new(scenario.geometry.owners() - 1);
        Liar { owner, under_way: [None, None], lies: scenario.lies.0, writes: scenario.lies.1 }
    }

    pub fn is_under_way(&self, owner: Owner) -> bool {
        owner == self.owner && self.under_way.iter().flatten().next().is_some()
    }

    pub fn await_all(&mut self, awaited: bool) {
        self.under_way.iter_mut().flatten().for_each(|lie| lie.awaited = awaited);
    }

    pub fn is_awaited(&self) -> bool {
        self.under_way.iter().flatten().any(|lie| lie.awaited)
    }
}
