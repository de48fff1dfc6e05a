//! A lost node: the words of slabs forget it, and the consumer is told.
//!
//! A lane, a request to the node, or [`Losses::tend`] finds a loss and calls `lose`. If a page has no
//! other home, the consumer ends: `anything_lost` looks for such a page.

use crate::held::{Held, Slabs};
use crate::homes::{HOMES, State};
use crate::nodes::Standing;
use crate::slab::Seat;
use crate::tables::Tables;
use farmem_fabric::{Lost, Session};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A node that was lost, and what that means.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Which, and why.
    pub lost: Lost,
    /// Slabs of this process there.
    pub slabs: u32,
    /// Whether their bytes stay usable, because they are mapped here.
    pub kept: bool,
    /// Slabs of which one copy is left, and was not the only one.
    pub single: u32,
}

/// The state that changes when nodes do.
#[derive(Default)]
pub(crate) struct Changing {
    pub losses: Vec<Loss>,
    /// Nodes that were away, by number, and answer again.
    pub returned: Vec<(usize, Session)>,
    /// Memory of consumers that cards will reach.
    pub arenas: Vec<(usize, usize)>,
}

/// The same under its lock, which is held while nodes change or a slab is published.
pub(crate) struct Changes {
    pub now: Lock<Changing>,
    /// Losses that nobody has taken yet, to be asked without a lock.
    pub untold: AtomicU64,
}

impl Changes {
    pub fn new() -> Changes {
        Changes { now: Lock::new(Changing::default()), untold: AtomicU64::new(0) }
    }
}

/// Nodes that fail.
#[derive(Clone, Copy)]
pub struct Losses<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) held: &'a Held,
    pub(crate) changes: &'a Changes,
}

impl Losses<'_> {
    /// Slabs of a node that is being left take no new pages, and are not overwritten.
    pub(crate) fn close_slabs_of(self, slabs: &mut Slabs, node: usize) {
        for index in 0..slabs.list.len() as u32 {
            let word = self.tables.homes.word(index);
            let at = |home: usize| self.tables.homes.home(word, home).node as usize;
            let there = (0..HOMES).any(|home| word.state(home) != State::Absent && at(home) == node);
            if let Some(slab) = slabs.list[index as usize].as_mut().filter(|slab| there && !slab.closed) {
                slab.closed = true;
                if slab.seat != Seat::Parity {
                    self.held.capacity.fetch_sub(SLAB_BYTES, Ordering::Relaxed);
                }
                self.tables.homes.update(index, |word| Some(word.with_leaving(true)));
            }
        }
    }

    /// Looks whether the nodes are still there; see [`farmem_fabric::Session::tend`]. A background
    /// thread calls it a few times a second.
    ///
    /// # Errors
    /// A node is lost, and with it a page: no other home has it. Losses without that are told by
    /// [`Losses::take`].
    pub fn tend(self) -> Result<(), Lost> {
        for (number, node) in self.tables.nodes.all().iter().enumerate().filter(|(_, node)| node.is_there()) {
            if let Err(lost) = node.session().tend() {
                self.lose(number, &lost);
            }
        }
        let given_up = self.tables.nodes.all().iter().filter(|node| node.standing() == Standing::Lost);
        given_up.for_each(|node| node.session().standing().hang_up());
        self.look_for_away();
        self.end_doubted();
        self.retire();
        self.anything_lost()
    }

    /// Lets time pass, by the clock of the pool's nodes.
    pub fn pause(self, ns: u64) {
        self.tables.nodes.pause(ns);
    }

    /// Takes the losses of nodes that were not told yet.
    pub fn take(self) -> Vec<Loss> {
        if self.changes.untold.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut changing = self.changes.now.lock();
        self.changes.untold.store(0, Ordering::Relaxed);
        std::mem::take(&mut changing.losses)
    }

    /// A node was found lost. When this returns no word names a home there, but those whose memory
    /// stays mapped.
    #[cold]
    pub(crate) fn lose(self, number: usize, lost: &Lost) {
        let node = &self.tables.nodes.all()[number];
        // A thread that comes second waits until the words are changed.
        let mut changing = self.changes.now.lock();
        if !node.is_there() {
            return;
        }
        let kept = node.session().standing().keeps_memory();
        let slabs = self.held.slabs.lock();
        let standing = if kept { Standing::Orphaned } else { Standing::Lost };
        self.let_go(&mut changing, &slabs, number, lost, standing);
    }

    /// A node is lost, and stands so from now on. No slab is published meanwhile: none is missed.
    pub(crate) fn let_go(self, changing: &mut Changing, slabs: &Slabs, number: usize, lost: &Lost, standing: Standing) {
        let node = &self.tables.nodes.all()[number];
        let (held, kept) = (node.held.load(Ordering::Relaxed), standing == Standing::Orphaned);
        node.gone.store(self.tables.nodes.moment().ticks, Ordering::Relaxed);
        node.set(standing);
        self.tables.nodes.note_loss(!kept);
        let mut single = 0;
        if !kept {
            for index in 0..slabs.list.len() as u32 {
                let word = self.tables.homes.word(index);
                match standing {
                    Standing::Away => self.tables.falls_behind(index, number),
                    _ => self.tables.forsake(index, number),
                }
                let left = self.tables.homes.word(index);
                single += (word != left && (!left.is_lost() || self.tables.follows(index))) as u32;
            }
        }
        changing.losses.push(Loss { lost: lost.clone(), slabs: held, kept, single });
        self.changes.untold.fetch_add(1, Ordering::Relaxed);
    }

    /// The loss of a node that has taken a page with it, if there is one. Slabs that had none are
    /// forgotten.
    pub(crate) fn anything_lost(self) -> Result<(), Lost> {
        if !self.tables.nodes.any_lost() {
            return Ok(());
        }
        let mut slabs = self.held.slabs.lock();
        for index in 0..slabs.list.len() {
            let word = self.tables.homes.word(index as u32);
            let Some(slab) = slabs.list[index].as_ref().filter(|_| word.is_lost()) else { continue };
            // Blocks that are on their way back to the node have nothing of ours.
            let waits = self.tables.awaits_all(word, slab);
            if !slab.is_empty() && !self.tables.follows(index as u32) && !waits {
                return Err(self.tables.why_lost(word));
            }
            // It goes with its group, or gets another home, or its node may come back.
            if slab.seat != Seat::None || waits && !slab.is_empty() {
                continue;
            }
            // One that is behind goes back if its node comes back. No other home is there.
            self.tables.give_up_behind(word);
            let _ = self.held.remove(self.tables, &mut slabs, index);
        }
        Ok(())
    }
}
