//! An owner that makes its verbs up.
//!
//! It has two queue pairs and no program: any CAS of any word to any state, any
//! WRITE that is admitted, at any time. The NIC deals with each CAS in the three
//! steps that `guard` prescribes (load, ask, swap), which are three moves here,
//! so that everything else can happen between them. Only transitions that the
//! guard permits in some table are tried ([`is_conceivable`]): the others it denies
//! whatever the table says, which a property test in `farmem-protocol` shows.
//!
//! It may keep what it claims; it must not reach, take or lose what is others'.

use crate::moves::Move;
use crate::scenario::Scenario;
use crate::world::{Flight, Violation, World};
use farmem_protocol::extent::guard::{Words, admits, permits};
use farmem_protocol::extent::owner::Lease;
use farmem_protocol::extent::{Claimant, Key, Owner, Place, State, Verb, Word};

/// What a CAS of a liar has come to.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Lie {
    place: Place,
    old: Word,
    new: Word,
    permitted: bool,
    awaited: bool,
}

/// The liar: the last owner of the table.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Liar {
    owner: Owner,
    under_way: [Option<Lie>; 2],
    lies: u16,
    writes: u16,
}

const STATES: [State; 5] = [State::Free, State::Owned, State::Quarantine, State::Splitting, State::Shared];

/// Whether the guard permits this to a living owner's word, or nobody's, in some table.
fn is_conceivable(from: State, to: State) -> bool {
    matches!(
        (from, to),
        (State::Free, State::Owned | State::Splitting)
            | (State::Owned, State::Quarantine | State::Shared)
            | (State::Splitting, State::Shared)
            | (State::Absent, State::Free | State::Owned | State::Quarantine)
    )
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

impl World {
    pub(crate) fn liar_moves(&self, scenario: &Scenario, moves: &mut Vec<Move>) {
        if scenario.lies == (0, 0) {
            return;
        }
        let live = self.memory.owner(self.liar.owner).lease() == Lease::Live;
        for (queue, lie) in self.liar.under_way.iter().enumerate() {
            match lie {
                Some(lie) if lie.permitted => moves.push(Move::Swap(queue as u8)),
                Some(_) => moves.push(Move::Ask(queue as u8)),
                // Queue pairs are alike: the second is used when the first is busy.
                None if self.liar.lies > 0 && live && (queue == 0 || self.liar.under_way[0].is_some()) => {
                    let mine = self.memory.places().filter(|&place| {
                        let word = self.memory.word(place);
                        !word.state().is_named() || word.owner() == self.liar.owner
                    });
                    let conceivable = mine.flat_map(|place| {
                        let from = self.memory.word(place).state();
                        STATES.into_iter().filter(move |&to| is_conceivable(from, to)).map(move |to| (place, to))
                    });
                    moves.extend(conceivable.map(|(place, state)| Move::Lie(queue as u8, place, state)));
                }
                None => {}
            }
        }
        if self.liar.writes > 0 {
            let admitted = self.memory.places().filter(|&place| self.intrusion(scenario, place).is_some());
            moves.extend(admitted.map(Move::Intrude));
        }
    }

    /// Whether there is a liar who has not been recovered: it may keep units half-way for ever.
    pub(crate) fn is_liar_about(&self, scenario: &Scenario) -> bool {
        scenario.lies != (0, 0) && self.memory.owner(self.liar.owner).lease() != Lease::Vacant
    }

    /// The key with which the liar would be admitted to a unit now.
    fn intrusion(&self, scenario: &Scenario, place: Place) -> Option<Key> {
        let owner = self.liar.owner;
        if self.memory.owner(owner).lease() != Lease::Live {
            return None;
        }
        let key = Key::of(place, self.memory.word(place))?;
        admits(&scenario.geometry, key, owner, 0, 1, &self.memory).is_ok().then_some(key)
    }

    pub(crate) fn liar_moves_on(&mut self, scenario: &Scenario, movement: Move) -> Result<(), Violation> {
        let owner = self.liar.owner;
        match movement {
            Move::Lie(queue, place, state) => {
                self.liar.lies -= 1;
                let old = self.memory.word(place);
                let Some(generation) = old.generation().next() else { return Ok(()) };
                let new = match state.is_named() {
                    true => Word::new(state, owner, 0, Claimant::new(0), generation),
                    false => Word::plain(state, generation),
                };
                self.liar.under_way[queue as usize] = Some(Lie { place, old, new, permitted: false, awaited: false });
            }
            Move::Ask(queue) => {
                let lie = self.liar.under_way[queue as usize].as_mut().ok_or("nothing to ask about")?;
                let permit = permits(&scenario.geometry, lie.place, lie.old, lie.new, owner, &self.memory);
                lie.permitted = permit.is_ok();
                if permit.is_err() {
                    self.liar.under_way[queue as usize] = None;
                }
            }
            Move::Swap(queue) => {
                let lie = self.liar.under_way[queue as usize].take().ok_or("nothing to carry out")?;
                self.cas(&Verb::cas(lie.place, lie.old, lie.new))?;
            }
            Move::Intrude(place) => {
                self.liar.writes -= 1;
                self.flying.push(Flight { owner, place, awaited: false });
            }
            _ => {}
        }
        Ok(())
    }
}
