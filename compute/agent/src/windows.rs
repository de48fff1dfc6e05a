//! Windows of the agent's, one for each block. Programs reach blocks of a node on another machine
//! by them.
//!
//! ```text
//!  spare ── BIND: a block, the program's member ──► bound ── INVALIDATE ──► spare
//!    └──────────── in doubt (a cut connection, a program that gave it up itself): dropped ◄──┘
//! ```
//!
//! A window is bound when the program that has the block first asks how to reach it. It is unbound
//! before the block's word is given back. From then on its key works for no member, and never will
//! again.
//!
//! The ledger records a window as bound when the node has said so, and strikes that out before it
//! is unbound. So what an agent finds recorded as bound is bound; anything else it drops. (A window
//! that was made and not recorded stays with the member until that ends: one for each kill at that
//! moment, of 65 536.)

use crate::ledger::{Ledger, MAX_WINDOWS};
use crate::word::{BlockId, Refusal};
use farmem_fabric::{Bind, Completion, Lost, QueuePair, Session, WindowError};
use farmem_protocol::extent::Grant;
use farmem_protocol::key::{Key, KeyKind, Rights};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The member that is to reach a program's blocks, as the program says. It need not be believed:
/// the keys are given to the program alone, and they open the program's own memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Of this user of the machine, as the kernel says.
    pub uid: u32,
    /// A member of the node, by its owner id.
    pub owner: u16,
    /// The only queue pair of it; `None`: each.
    pub queue: Option<u64>,
}

/// A window, by its place in the ledger, with its key now.
type Window = (usize, Key);

/// The windows of a grant's blocks, in their order. A run in the middle of a move has windows at both
/// nodes, each for the blocks that are there.
#[derive(Default)]
struct Bound {
    /// The user of the machine that the last were bound for; `None`: a former agent bound them.
    uid: Option<u32>,
    windows: Vec<Option<Window>>,
    /// The number of them that count as the user's.
    counted: usize,
}

/// The agent's windows.
pub struct Windows {
    ledger: Arc<Ledger>,
    spare: Vec<Window>,
    bound: HashMap<BlockId, Bound>,
    /// Of these, by user of the machine. Those of a former agent are nobody's here.
    of_user: HashMap<u32, usize>,
    /// Places in the ledger.
    empty: Vec<usize>,
}

impl Windows {
    /// None yet, at one of the agent's nodes.
    pub fn new(ledger: Arc<Ledger>, node: usize) -> Windows {
        let empty = places(node).rev().collect();
        Windows { ledger, spare: Vec::new(), bound: HashMap::new(), of_user: HashMap::new(), empty }
    }

    /// Those of a former agent that are bound to blocks which are still held; all others are
    /// dropped.
    pub fn resume(
        (ledger, node): (Arc<Ledger>, usize),
        session: &Session,
        held: &HashMap<BlockId, Vec<Grant>>,
    ) -> Result<Windows, Lost> {
        let mut windows = Windows::new(ledger, node);
        windows.empty.clear();
        let mut doubtful = Vec::new();
        for slot in places(node).rev() {
            let Some((key, to)) = windows.ledger.window(slot) else {
                windows.empty.push(slot);
                continue;
            };
            let blocks = to.and_then(|(block, _)| Some(held.get(&block)?.len()));
            match (to, blocks) {
                (Some((block, of_run)), Some(blocks)) if (of_run as usize) < blocks => {
                    let bound = windows.bound.entry(block).or_default();
                    bound.windows.resize(blocks, None);
                    doubtful.extend(bound.windows[of_run as usize].replace((slot, key)));
                }
                _ => doubtful.push((slot, key)),
            }
        }
        for window in doubtful {
            windows.drop(session, window)?;
        }
        Ok(windows)
    }

    /// The keys by which some of a grant's blocks are reached, one for each, bound for `user` if they
    /// are not yet for anybody.
    pub fn keys(
        &mut self,
        (session, queue): (&Session, &mut QueuePair),
        (block, grants): (BlockId, &[Grant]),
        some: Range<usize>,
        user: User,
    ) -> Result<Vec<Key>, Refusal> {
        let bound = self.bound.entry(block).or_default();
        bound.windows.resize(grants.len(), None);
        let is_bound = |at: &usize| bound.windows[*at].is_some();
        let lack: Vec<usize> = some.clone().filter(|at| !is_bound(at)).collect();
        if !lack.is_empty() {
            self.bind((session, queue), (block, grants), &lack, user)?;
        }
        let bound = self.bound.get(&block).map_or(&[][..], |bound| &bound.windows[..]);
        let keys: Option<Vec<Key>> =
            bound.get(some).and_then(|some| some.iter().map(|at| Some(at.as_ref()?.1)).collect());
        keys.ok_or(Refusal::System)
    }

    /// Binds windows to those of a grant's blocks that have none.
    fn bind(
        &mut self,
        (session, queue): (&Session, &mut QueuePair),
        (block, grants): (BlockId, &[Grant]),
        lack: &[usize],
        user: User,
    ) -> Result<(), Refusal> {
        // No user may have more windows than are left. So each next user finds at least half of
        // the windows that the user before found.
        let has = self.of_user.get(&user.uid).copied().unwrap_or(0);
        if !may_have(has, lack.len(), self.empty.len() + self.spare.len()) {
            return Err(Refusal::Tables);
        }
        while self.spare.len() < lack.len() {
            let window = self.make(session)?;
            self.spare.push(window);
        }
        let taken = self.spare.split_off(self.spare.len() - lack.len());
        for (tag, ((_, key), at)) in taken.iter().zip(lack).enumerate() {
            let (owner, whole) = (user.owner, crate::word::BLOCK_BYTES);
            let parent = Key(grants[*at].key().0);
            let to = Bind { parent, start: 0, len: whole, rights: Rights::ALL, owner, queue: user.queue };
            queue.bind(tag as u64, *key, &to);
        }
        let results = finish(queue, taken.len()).map_err(|_| Refusal::Lost)?;
        let (mut refusal, mut had, mut doubtful) = (None, Vec::new(), Vec::new());
        for (((slot, key), at), result) in taken.into_iter().zip(lack).zip(results) {
            match result {
                Ok(bound) => {
                    self.ledger.bind_window(slot, Key(bound), block, *at as u32);
                    had.push((*at, (slot, Key(bound))));
                }
                // The node has no such member, and the window is unchanged. So it is kept: a program
                // that lies must not cost a window. No other failure is the program's.
                Err(farmem_fabric::Refusal::Window) => {
                    refusal = Some(Refusal::Stranger);
                    self.spare.push((slot, key));
                }
                Err(_) => {
                    refusal = refusal.or(Some(Refusal::System));
                    doubtful.push((slot, key));
                }
            }
        }
        if let Some(refusal) = refusal {
            for window in had.into_iter().map(|(_, window)| window).chain(doubtful) {
                self.drop(session, window).map_err(|_| Refusal::Lost)?;
            }
            return Err(refusal);
        }
        *self.of_user.entry(user.uid).or_default() += had.len();
        let bound = self.bound.entry(block).or_default();
        // All of an application's are of one user.
        (bound.uid, bound.counted) = (Some(user.uid), bound.counted + had.len());
        had.into_iter().for_each(|(at, window)| bound.windows[at] = Some(window));
        Ok(())
    }

    /// Unbinds what grants' blocks are reached by, if anything. When it returns, nothing is under
    /// way by the old keys.
    pub fn unbind(&mut self, on: (&Session, &mut QueuePair), blocks: &[BlockId]) -> Result<(), Lost> {
        let mut windows: Vec<Window> = Vec::new();
        for Bound { uid, windows: bound, counted } in blocks.iter().filter_map(|block| self.bound.remove(block)) {
            if let Some(has) = uid.and_then(|uid| self.of_user.get_mut(&uid)) {
                *has = has.saturating_sub(counted);
            }
            windows.extend(bound.into_iter().flatten());
        }
        self.unbind_all(on, windows)
    }

    /// The same for one block of a run.
    pub fn unbind_one(&mut self, on: (&Session, &mut QueuePair), block: BlockId, of_run: usize) -> Result<(), Lost> {
        let Some(bound) = self.bound.get_mut(&block) else { return Ok(()) };
        let window = bound.windows.get_mut(of_run).and_then(Option::take);
        if let Some(has) = bound.uid.and_then(|uid| self.of_user.get_mut(&uid))
            && window.is_some()
            && bound.counted > 0
        {
            bound.counted -= 1;
            *has = has.saturating_sub(1);
        }
        self.unbind_all(on, window.into_iter().collect())
    }

    fn unbind_all(&mut self, (session, queue): (&Session, &mut QueuePair), windows: Vec<Window>) -> Result<(), Lost> {
        for (at, (slot, key)) in windows.iter().enumerate() {
            self.ledger.set_window(*slot, Some(*key));
            queue.invalidate(at as u64, *key);
        }
        let results = finish(queue, windows.len())?;
        for ((slot, key), result) in windows.into_iter().zip(results) {
            match result {
                Ok(free) if !is_worn(Key(free)) => {
                    self.ledger.set_window(slot, Some(Key(free)));
                    self.spare.push((slot, Key(free)));
                }
                _ => self.drop(session, (slot, key))?,
            }
        }
        Ok(())
    }

    fn make(&mut self, session: &Session) -> Result<Window, Refusal> {
        let slot = self.empty.pop().ok_or(Refusal::Tables)?;
        match session.window() {
            Ok(key) => {
                self.ledger.set_window(slot, Some(key));
                Ok((slot, key))
            }
            Err(e) => {
                self.empty.push(slot);
                Err(if matches!(e, WindowError::Lost(_)) { Refusal::Lost } else { Refusal::Tables })
            }
        }
    }

    /// Ends a window, bound or not, by any key it had.
    fn drop(&mut self, session: &Session, (slot, key): Window) -> Result<(), Lost> {
        session.drop_window(key)?;
        self.ledger.set_window(slot, None);
        self.empty.push(slot);
        Ok(())
    }
}

/// The places in the ledger of a node's windows.
fn places(node: usize) -> std::ops::Range<usize> {
    node * MAX_WINDOWS..(node + 1) * MAX_WINDOWS
}

/// Whether a user that has `has` windows may have `more`, when `left` are left: with them it has no
/// more than are left for the others.
fn may_have(has: usize, more: usize, left: usize) -> bool {
    has + more <= left.saturating_sub(more)
}

/// Whether a window will soon not be bound again, for no key is valid twice.
fn is_worn(key: Key) -> bool {
    matches!(key.kind(), KeyKind::Window { generation, .. } if generation > u32::MAX - 8)
}

/// Waits for `verbs` verbs, tagged from 0 on, which are all that are under way.
pub(crate) fn finish(queue: &mut QueuePair, verbs: usize) -> Result<Vec<Result<u64, farmem_fabric::Refusal>>, Lost> {
    queue.doorbell()?;
    let mut done: Vec<Completion> = Vec::with_capacity(verbs);
    while done.len() < verbs {
        queue.wait(&mut done, Duration::from_secs(1))?;
    }
    // By their tags: after a cut, the unknown ones come first.
    done.sort_by_key(|completion| completion.tag);
    Ok(done.into_iter().map(|completion| completion.result).collect())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_greedy_leave_half_of_what_they_found() {
        let mut left = MAX_WINDOWS;
        for _ in 0..4 {
            let (mut has, found) = (0, left);
            while may_have(has, 1, left) {
                (has, left) = (has + 1, left - 1);
            }
            assert_eq!((has, left), (found / 2, found - found / 2));
        }
        assert!(!may_have(0, 2, 1) && !may_have(0, 32, 40) && may_have(0, 32, 64));
    }
}
