//! What can happen to a world.

use farmem_protocol::extent::{Owner, Place, State};

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
