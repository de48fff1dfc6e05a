//! What a liar can do next, and does.
//!
//! Only transitions that the guard permits in some table are tried ([`is_conceivable`]): the others it denies whatever the
//! table says, which a property test in `farmem-protocol` shows.

use crate::liar::Lie;
use crate::moves::Move;
use crate::scenario::Scenario;
use crate::world::{Flight, Violation, World};
use farmem_protocol::extent::guard::{Words, admits, permits};
use farmem_protocol::extent::owner::Lease;
use farmem_protocol::extent::{Claimant, Key, Place, State, Verb, Word};

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
