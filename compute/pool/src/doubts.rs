//! Pages that do not open, and the nodes that sent them. `docs/design/seal-copies.md` has the reasons.

use crate::Pool;
use crate::homes::HOMES;
use crate::seal::{Altered, Seals};
use farmem_protocol::addr::FarSlot;
use std::sync::atomic::Ordering;

/// What becomes of a page that does not open ([`Seals::distrust`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// It can be had elsewhere: the caller reads it again.
    Again,
    /// The node that has it was given up and may come back: the caller asks again in a moment.
    Wait,
    /// It cannot be had: the caller ends the process.
    Lost,
}

impl Seals<'_> {
    /// A node sent an altered page of a slot. As [`Seals::distrust`].
    #[cold]
    pub(crate) fn give_up(self, slot: FarSlot, node: u32) -> bool {
        self.distrust(Some(node), &self.altered(slot)) == Doubt::Again
    }

    /// A node sent other bytes for a slot of a stripe than those that follow from pages which open. It is
    /// given up once nothing is there alone, and asked last until then.
    #[cold]
    pub(crate) fn lied(self, slot: FarSlot, node: u32) {
        let Some(one) = self.tables.nodes.all().get(node as usize) else { return };
        let (slab, place) = (slot.slab_index(), slot.place());
        let reason = format!("what it gave back is not what was stored there (slab {slab}, slot {place})");
        one.distrusted.store(true, Ordering::Relaxed);
        self.tables.nodes.any_distrusted.store(true, Ordering::Relaxed);
        if !self.losses.spare_doubted(node as usize, &reason) {
            one.doubt.lock().get_or_insert(reason);
        }
    }

    /// A page that came from a node does not open. Gives that node up if the page can be had
    /// elsewhere. A node that alone has other pages is kept for these ([`crate::Lane::fill`] copies
    /// what opens), and read for no page that another one has.
    ///
    /// A node that is given up is asked for nothing more, also when it seems to be back. So a
    /// forger has one try at each node, and at the READs that are under way then.
    #[cold]
    pub fn distrust(self, from: Option<u32>, altered: &Altered) -> Doubt {
        let (slot, Some(node)) = (altered.slot, from) else { return Doubt::Lost };
        let word = self.tables.homes.word(slot.slab_index());
        let stale = |nth: usize| self.tables.homes.is_stale(word, nth, slot.place());
        let at = |nth: usize| self.tables.homes.home(word, nth).node;
        let is_doubted = |node: u32| self.tables.nodes.is_doubted(node);
        // Two nodes that are not trusted are not asked in turns.
        let may_give = |other: u32| other != node && !(is_doubted(node) && is_doubted(other));
        let elsewhere = (0..HOMES).any(|nth| word.reads(nth, || stale(nth)) && may_give(at(nth)));
        let follows = || word.is_striped() && self.tables.follows(slot.slab_index());
        let waits = || (0..HOMES).any(|nth| word.misses(nth) && at(nth) != node && !stale(nth));
        let next = if elsewhere || follows() { Doubt::Again } else { Doubt::Wait };
        if next == Doubt::Wait && !waits() {
            return Doubt::Lost;
        }
        let reason = format!("it gave a page back altered or old (slab {}, slot {})", slot.slab_index(), slot.place());
        match self.tables.nodes.all().get(node as usize) {
            Some(one) => {
                one.distrusted.store(true, Ordering::Relaxed);
                self.tables.nodes.any_distrusted.store(true, Ordering::Relaxed);
                if word.is_striped() {
                    self.losses.lose(node as usize, &one.session().standing().give_up(reason));
                } else if !self.losses.spare_doubted(node as usize, &reason) {
                    // It is still read from for pages that it alone has, where they open.
                    one.doubt.lock().get_or_insert(reason);
                }
            }
            None => self.losses.disk_failed(reason),
        }
        next
    }
}

impl Seals<'_> {
    /// Whether the caller should wait for a page that no home could give: the only one that has it is
    /// behind, and its node may come back. Then the READ is repeated.
    #[cold]
    pub fn awaits(self, slot: FarSlot) -> bool {
        self.tables.awaits(self.tables.homes.word(slot.slab_index()), slot.place())
    }
}

impl Pool {
    /// Whether a page that came from a home of a slot, or from other seats, may be copied to another home: it
    /// opens, or nobody needs it. A parity has no seal; what it was computed from was looked at before.
    pub(crate) fn is_sound(&self, slot: FarSlot, page: &[u8]) -> bool {
        !self.seals().is_altered(slot, page) || !self.is_taken(slot)
    }
}
