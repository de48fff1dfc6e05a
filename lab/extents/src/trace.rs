//! A world, and what happens to it, told for a trace.

use crate::moves::Move;
use crate::world::{Item, World};
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::{Verb, Word};

impl World {
    /// Words and leases, for a trace.
    pub fn sketch(&self) -> String {
        let words: Vec<String> = self
            .memory
            .places()
            .filter(|&place| self.memory.word(place) != Word::ZERO)
            .map(|place| format!("{place:?}={:?}", self.memory.word(place)))
            .collect();
        words.join(" ")
    }

    /// What a move is about, for a trace.
    pub fn describe(&self, movement: Move) -> String {
        let item = |number: u8| match self.clients[number as usize].queue.front() {
            Some(Item::Words(verb)) => show(verb),
            Some(Item::Bytes { grant, stale }) => {
                format!("WRITE to {:?}{}", grant.place, if *stale { " (stale)" } else { "" })
            }
            None => "begins".to_string(),
        };
        match movement {
            Move::Client(number) => format!("client {number}: {}", item(number)),
            Move::Lose(number) => format!("client {number}: {}, answer lost", item(number)),
            Move::Late(at) => {
                format!("late, of client {}: {}", self.late[at as usize].0, show(&self.late[at as usize].2))
            }
            Move::Land(at) => format!(
                "WRITE of owner {} lands in {:?}",
                self.flying[at as usize].owner.slot(),
                self.flying[at as usize].place
            ),
            Move::Daemon => format!("daemon: {}", self.daemon.queue.front().map(show).unwrap_or_default()),
            other => format!("{other:?}"),
        }
    }
}

fn show(verb: &Verb) -> String {
    match *verb {
        Verb::Read { at, words } => format!("READ {at:?} ×{words}"),
        Verb::Cas { at, old, new } => format!("CAS {at:?} {:?} → {:?}", Word(old), Word(new)),
    }
}
