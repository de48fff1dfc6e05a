//! The agent moves to another node: it claims there from now on, and what it has comes after.

use super::Service;
use crate::blocks::{Blocks, JoinError};
use crate::ledger::Ledger;
use crate::sources::{Begun, Step};
use crate::word::Refusal;
use farmem_fabric::{ConnectOptions, NodeAddr, Transport};
use farmem_sys::raw;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Between two blocks: others want the nodes, too.
const PAUSE_NS: u64 = 200_000;
/// Between two parts of a block.
const BREATH_NS: u64 = 20_000;
/// How long a move waits at most for clerks that wait for the nodes, before its next step.
const AFTER_YOU_NS: u64 = 4_000_000;
/// How long to wait for room at the new node before it is asked again.
const LATER_NS: u64 = 100_000_000;
/// How long to wait for room at the new node before the caller is told.
const ROOM_NS: u64 = 2_000_000_000;

/// Why an agent did not move.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The other node cannot be joined.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// Memory here is mapped by programs, and cannot be called back.
    #[error("memory of a node on this machine is mapped by programs, and does not move")]
    Mapped,
    /// The ledger has no place for one more node, or no number.
    #[error("this agent can move no further now: end it when nobody uses it, and start another")]
    Numbers,
    /// The move is under way, and goes on when [`Service::finish_move`] or [`Service::move_to`] is
    /// called again.
    #[error("the move waits for room at the other node: memory that does not fit yet stays in use where it is")]
    Room,
    /// One of the two nodes is gone.
    #[error("a node was lost in the middle of a move")]
    Lost,
}

/// How applications reach a node, as [`crate::hello::Entry::Elsewhere`] has it; empty: they map it.
pub fn text_of(node: &NodeAddr, transport: Transport, number: u64) -> String {
    match (node, transport) {
        (NodeAddr::Shm(_), _) => String::new(),
        (NodeAddr::Tcp(at), Transport::Verbs) => format!("verbs {at} {number}"),
        (NodeAddr::Tcp(at), _) => format!("tcp {at} {number}"),
    }
}

impl Service {
    /// Claims memory at another node from now on, and moves all that applications hold there. It
    /// returns when nothing is left at the old node. Of several threads each waits until the move
    /// of the one before has ended. False: it is the same node by another name.
    ///
    /// # Errors
    /// If no move was begun, all is as it was. After [`MoveError::Lost`] the agent ends soon, after
    /// [`MoveError::Room`] it is between the two nodes.
    pub fn move_to(&self, node: &NodeAddr, options: &ConnectOptions, ledger: &Arc<Ledger>) -> Result<bool, MoveError> {
        let NodeAddr::Tcp(at) = node else { return Err(MoveError::Mapped) };
        // From the end of the move before to the beginning of this one: both have the same place in
        // the ledger, and whoever does not begin strikes it out.
        let begins = self.begins.lock();
        let is_now = || ledger.address(ledger.current().0).as_ref() == Some(at);
        let waited = match self.finish_move() {
            // Blocks without room at the node that they were to go to may have room at this one.
            Err(MoveError::Room) if !is_now() => Err(MoveError::Room),
            ended => Ok(ended?),
        };
        if self.elsewhere.lock().is_empty() {
            return Err(MoveError::Mapped);
        }
        let number = self.blocks.lock().next_number().ok_or(MoveError::Numbers)?;
        let place = ledger.free_node().ok_or(MoveError::Numbers)?;
        ledger.clear_windows(place);
        ledger.set_address(place, at);
        ledger.set_number(place, number);
        let blocks = match Blocks::join_as(node, options, (Arc::clone(ledger), place)) {
            Ok(blocks) => blocks,
            Err(e) => {
                ledger.set_membership(place, None);
                return Err(e.into());
            }
        };
        let text = text_of(node, options.transport, number);
        let begun = self.blocks.lock().begin(blocks, number, text);
        if begun != Begun::There {
            ledger.set_membership(place, None);
        }
        if begun == Begun::Not {
            return waited.map(|()| false);
        }
        let text = self.blocks.lock().text_now();
        *self.elsewhere.lock() = text;
        drop(begins);
        self.finish_move()?;
        Ok(true)
    }

    /// Moves what is left at nodes that are being left. Returns early when the service ends.
    ///
    /// # Errors
    /// [`MoveError::Lost`]; [`MoveError::Room`]: nothing has moved for a while.
    pub fn finish_move(&self) -> Result<(), MoveError> {
        let mut since_ns = raw::now_ns();
        while !self.stop.load(Ordering::Acquire) && !self.over.load(Ordering::Acquire) {
            self.let_clerks_in();
            let mut sources = self.blocks.lock();
            let step = sources.step(since_ns, |block, to| self.stock.lock().moved(block, to));
            let gone: Vec<_> = std::iter::from_fn(|| sources.end()).collect();
            drop(sources);
            // Their farewell may wait for the nodes.
            drop(gone);
            match step {
                Ok(Step::Done) => return Ok(()),
                Ok(Step::Copied) => raw::sleep_ns(BREATH_NS),
                Ok(Step::Moved) => raw::sleep_ns(PAUSE_NS),
                Ok(Step::Later) if raw::now_ns().saturating_sub(since_ns) >= ROOM_NS => return Err(MoveError::Room),
                Ok(Step::Later) => raw::sleep_ns(LATER_NS),
                Err(Refusal::Lost) => return Err(MoveError::Lost),
                Err(_) => raw::sleep_ns(LATER_NS),
            }
            if step != Ok(Step::Later) {
                since_ns = raw::now_ns();
            }
        }
        Ok(())
    }

    /// Waits for clerks that wait for the nodes. A program waits behind each, and the lock is not
    /// given in the order of asking.
    fn let_clerks_in(&self) {
        let begun = raw::now_ns();
        while self.waiting.load(Ordering::Relaxed) > 0 && raw::now_ns() - begun < AFTER_YOU_NS {
            raw::sleep_ns(BREATH_NS);
        }
    }

    /// Whether a node is being left.
    pub fn is_moving(&self) -> bool {
        self.blocks.lock().is_moving()
    }
}
