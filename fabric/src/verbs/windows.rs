//! Windows on the node's card, as the host sees them: asked for when first used, refused by the
//! card when they end.
//!
//! The node's half, with the rules of binding: `memory/nic/src/carved.rs`.

use super::host::Right;
use super::queue::{Fate, Flight, Wired};
use crate::Lost;
use farmem_protocol::key::Key;
use farmem_protocol::wire::{Ask, Reply};

/// Windows whose keys on the card are remembered.
const KNOWN_WINDOWS: usize = 4096;

impl Wired {
    /// If the card failed a verb by a window, the node judges that verb, in frames. The window was
    /// unbound, or the verb goes beyond it, or it is of another kind. The verb may also be right,
    /// and the window bound again.
    pub(super) fn goes_in_frames(&mut self, failed: u64) -> bool {
        let on_card = |flight: &&mut Flight| matches!(flight.fate, Fate::Card { id, .. } if id == failed);
        match self.verbs.iter_mut().take(self.posted).find(on_card) {
            Some(flight) if !flight.pending.key.is_slab() => {
                flight.fate = Fate::Frames;
                true
            }
            _ => false,
        }
    }

    /// How the node's card knows a window, asked for once. None: it does not, for this queue pair.
    pub(super) fn window(&mut self, index: u32, generation: u32) -> Result<Option<Right>, Lost> {
        if let Some((_, right)) = self.windows.get(&index).filter(|(known, _)| *known == generation) {
            return Ok(*right);
        }
        let (answer, _) = self.member.ask(Ask::ExposeWindow(Key::window(index, generation), self.number))?;
        let right = match answer {
            Ok(Reply::Exposed(rkey, base)) => Some(Right { rkey, base: base.into() }),
            _ => None,
        };
        if self.windows.len() >= KNOWN_WINDOWS {
            self.windows.clear();
        }
        self.windows.insert(index, (generation, right));
        Ok(right)
    }
}
