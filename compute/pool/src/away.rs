//! Nodes that were given up, and may come back with the memory that they have.
//!
//! ```text
//!  In ── silent (`can_spare`) ──► Away: its whole homes are Behind, each write sets a bit
//!                                   │ it answers again (`look_for_away`)         │ its memory is gone, or AWAY_NS
//!                                   ▼                                            ▼
//!        a new number, homes Filling with these bits (`take_back`)             Lost: its homes are absent
//! ```
//!
//! *Why.* A node that is merely slow is given up where there is another copy ([`crate::protect`]). Where
//! pages are sealed, that copy may turn out to be altered, and the one that was given up is then the only
//! sound one. So it is kept for as long as a stopped node is waited for. Where no page is sealed a copy is
//! not looked at, and a node that was given up begins anew.
//!
//! *What is read meanwhile.* Nothing is read from a home that is behind. A page that does not open, of
//! which the slot's bit is clear there, waits for the node ([`crate::Seals::distrust`]).
//!
//! *Repair* does not wait: as soon as another node grants a slab, that takes the place of the home that is
//! behind.
//!
//! *A new number.* Lanes keep what is under way at a node by its number, and records name it. So the node
//! comes back as another one, and its homes are published by new records, to which the bits are copied.
//! The caller owns the lane of all write-back, with nothing under way: nobody else sets bits.
//!
//! *Late WRITEs.* A WRITE to the number of before may be under way until that lane has looked. When
//! nothing is, its queue pair has been dropped, and what it sent is kept from taking effect before words
//! name the new number ([`farmem_fabric::Session::pass_turns`]).

use crate::homes::{HOMES, State};
use crate::losses::Losses;
use crate::moves::{Dropped, Moves};
use crate::nodes::{Node, Standing};
use crate::{Lane, Protect};
use farmem_fabric::session::SILENT_NS;
use farmem_fabric::{Lost, Session};
use std::sync::atomic::Ordering;

/// How long a node that was given up is waited for: as long as a stopped node that has the only copy.
const AWAY_NS: u64 = SILENT_NS;

/// A node that was given up is in again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Back {
    /// Its address, as it was given.
    pub node: String,
    /// Its number before, and now.
    pub numbers: (usize, usize),
}

impl Losses<'_> {
    /// Whether a node that is given up because it does not answer is to be kept for later.
    pub(crate) fn keeps(self, number: usize) -> bool {
        let mirrors = self.tables.protection.how() == Protect::Mirror;
        mirrors && self.tables.sealed.is_on() && self.tables.nodes.all()[number].session().standing().may_come_back()
    }

    /// Looks after nodes that are away. Those that answer again wait for [`Moves::take_back`].
    pub(crate) fn look_for_away(self) {
        let is_back = |number: usize| self.changes.now.lock().returned.iter().any(|(other, _)| *other == number);
        let is_away = |(number, node): &(usize, &Node)| node.standing() == Standing::Away && !is_back(*number);
        for (number, node) in self.tables.nodes.all().iter().enumerate().filter(is_away) {
            match if self.is_awaited(number) { node.session().again() } else { self.end_away(number) } {
                Ok(None) => {}
                Ok(Some(session)) => self.changes.now.lock().returned.push((number, session)),
                Err(_) => drop(self.end_away(number)),
            }
        }
    }

    /// Whether a node that is away is wanted, and may still come back.
    fn is_awaited(self, number: usize) -> bool {
        let (node, now) = (&self.tables.nodes.all()[number], self.tables.nodes.moment());
        let gone = now.ns(now.ticks.saturating_sub(node.gone.load(Ordering::Relaxed)));
        node.held.load(Ordering::Relaxed) > 0 && gone < AWAY_NS
    }

    /// A node does not come back: words forget it.
    fn end_away(self, number: usize) -> Result<Option<Session>, Lost> {
        let node = &self.tables.nodes.all()[number];
        // Nothing is published meanwhile.
        let _changing = self.changes.now.lock();
        let slabs = self.held.slabs.lock();
        (0..slabs.list.len() as u32).for_each(|index| self.tables.forsake(index, number));
        node.end_owing(Standing::Lost);
        Ok(None)
    }

    /// In a forked child, which has no member at nodes that are away: it goes on without them. The
    /// parent's connections there are closed here, and stand.
    pub(crate) fn forget_away(self) {
        for (_, session) in std::mem::take(&mut self.changes.now.lock().returned) {
            session.forget_in_child();
        }
        for (number, node) in self.tables.nodes.all().iter().enumerate() {
            if node.standing() == Standing::Away {
                let _ = self.end_away(number);
                node.set(Standing::Left);
                node.session().close_in_child();
            }
        }
    }

    /// Lets nodes go that sent a page which does not open, once nothing is there alone.
    pub(crate) fn end_doubted(self) {
        for (number, node) in self.tables.nodes.all().iter().enumerate() {
            let doubted = node.is_there() && node.distrusted.load(Ordering::Relaxed);
            let reason = if doubted { node.doubt.lock().clone() } else { None };
            if let Some(reason) = reason {
                self.spare_doubted(number, &reason);
            }
        }
    }

    /// Lets such a node go now, if nothing is there alone; whether it has.
    pub(crate) fn spare_doubted(self, number: usize, reason: &str) -> bool {
        let node = &self.tables.nodes.all()[number];
        let lost = Lost { node: node.session().node().to_owned(), reason: reason.to_owned() };
        let spared = self.spare(number, &lost, None);
        if spared {
            node.session().standing().give_up(lost.reason);
        }
        spared
    }
}

impl Moves<'_> {
    /// Whether [`Moves::take_back`] has something to do.
    pub fn any_back(self) -> bool {
        !self.changes.now.lock().returned.is_empty()
    }

    /// Takes nodes that are back into use again: what they lack is filled by repair.
    ///
    /// By the owner of the lane of all write-back, with nothing under way on it. No lock of the pool is
    /// held while the node is asked.
    pub fn take_back(self, writes: &mut Lane) -> Vec<Back> {
        let mut back = Vec::new();
        if writes.in_flight() > 0 {
            return back;
        }
        let all = std::mem::take(&mut self.changes.now.lock().returned);
        for (old, session) in all {
            if !self.tables.nodes.all()[old].session().pass_turns() {
                // It is silent again. If it stays so, the session is dropped, and it is lost.
                match self.grants.losses.is_awaited(old) {
                    true => self.changes.now.lock().returned.push((old, session)),
                    false => drop(self.grants.losses.end_away(old)),
                }
            } else if let Some(new) = self.take_one_back(old, session) {
                let node = self.tables.nodes.all()[new].session().node().to_owned();
                back.push(Back { node, numbers: (old, new) });
            }
        }
        back
    }

    fn take_one_back(self, old: usize, session: Session) -> Option<usize> {
        let nodes = &self.tables.nodes;
        let changing = self.changes.now.lock();
        // Its number is not another's: it stays away until this ends.
        let Ok(new) = nodes.add(session) else {
            drop(changing);
            let _ = self.grants.losses.end_away(old);
            return None;
        };
        self.tables.watch_over(new);
        let mut slabs = self.held.slabs.lock();
        for index in 0..slabs.list.len() as u32 {
            let is_behind = |nth: &usize, word: crate::homes::Word| {
                word.state(*nth) == State::Behind && self.tables.homes.home(word, *nth).node as usize == old
            };
            loop {
                let word = self.tables.homes.word(index);
                let Some(nth) = (0..HOMES).find(|nth| is_behind(nth, word)) else { break };
                let mut homes: [_; HOMES] = std::array::from_fn(|nth| self.tables.homes.home(word, nth));
                homes[nth].node = new as u32;
                let Some(record) = self.tables.homes.record(homes) else {
                    self.tables.forsake(index, old);
                    break;
                };
                let next = word.with_number(record).with_state(nth, State::Filling);
                (0..HOMES).for_each(|nth| self.tables.homes.copy_stale(word, next, nth));
                // Another thread may have lost the other home meanwhile.
                if self.tables.homes.update(index, |seen| (seen == word).then_some(next)).is_some() {
                    nodes.all()[old].held.fetch_sub(1, Ordering::Relaxed);
                    nodes.all()[new].held.fetch_add(1, Ordering::Relaxed);
                    slabs.drop_later(Dropped { record: Some(word.number()), ..Dropped::default() });
                    break;
                }
                self.tables.homes.free(record);
            }
        }
        // Homes that go back later go back by the session that stands.
        for home in slabs.dropped.iter_mut().filter_map(|(_, dropped)| dropped.home.as_mut()) {
            if home.node as usize == old {
                home.node = new as u32;
                nodes.all()[old].held.fetch_sub(1, Ordering::Relaxed);
                nodes.all()[new].held.fetch_add(1, Ordering::Relaxed);
            }
        }
        // The member lives on under the new number: no goodbye is said by the old one.
        let owed = nodes.all()[old].end_owing(Standing::Left);
        drop(slabs);
        drop(changing);
        for slab in owed {
            if let Err(lost) = nodes.all()[new].session().release(slab) {
                self.grants.losses.lose(new, &lost);
                break;
            }
        }
        Some(new)
    }
}
