//! What can happen to a world, and how it is told.

use crate::world::{Item, World};
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::{Owner, Place, State, Target, Verb, Word};

/// What can happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Move {
    /// The oldest verb of a client takes effect and is answered.
    Client(u8),
    /// Its answer is lost; whether it takes effect is open.
    Lose(u8),
    /// A verb whose answer was lost takes effect.
    Late(u8),
    /// Bytes land.
    Land(u8),
    /// The daemon begins with a unit in quarantine.
    Reclaim(Place),
    /// The daemon begins a merge.
    Merge(Place),
    /// The daemon begins a split.
    Split(Place),
    /// The daemon begins a recovery; of the node itself: after a restart.
    Recover(Owner),
    /// The daemon's oldest verb takes effect and is answered.
    Daemon,
    /// The daemon's drain or scrub has ended.
    Ready,
    /// The daemon dies and is started again.
    Crash,
    /// An owner's lease expires.
    Expire(Owner),
    /// Nothing of a fenced owner is under way any more.
    Die(Owner),
    /// No word names a dead owner.
    Vacate(Owner),
    /// A client whose lease has ended is another incarnation now.
    Rejoin(u8),
    /// The NIC loads a word for a made-up CAS of the liar's queue pair, to this state.
    Lie(u8, Place, State),
    /// The guard is asked about it.
    Ask(u8),
    /// It is carried out.
    Swap(u8),
    /// The liar writes wherever it is admitted.
    Intrude(Place),
}

impl Move {
    /// Whether it need not happen.
    pub fn is_misfortune(self) -> bool {
        matches!(
            self,
            Move::Lose(_)
                | Move::Late(_)
                | Move::Crash
                | Move::Expire(_)
                | Move::Merge(_)
                | Move::Split(_)
                | Move::Lie(..)
                | Move::Intrude(_)
        )
    }
}

impl World {
    /// Whether a client has posted a READ of words beside a CAS.
    pub(crate) fn is_reading_ahead(&self) -> bool {
        let is_cas = |item: &Item| matches!(item, Item::Words(Verb::Cas { .. }));
        let is_line = |item: &Item| matches!(item, Item::Words(Verb::Read { at: Target::Word(_), .. }));
        self.clients.iter().any(|client| client.queue.iter().any(is_cas) && client.queue.back().is_some_and(is_line))
    }

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
