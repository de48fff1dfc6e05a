//! A full table is split into two.
//!
//! ```text
//!  freeze: CAS of every slot, s ─► s frozen      no operation can change the table any more
//!  read the objects' hashes
//!  WRITE a pair of tables, each slot in the same place of one of them, undecided inserts in neither
//!  CAS table's forward word 0 ─► pair            the split takes effect
//! ```
//!
//! Any front end that meets a frozen slot may finish the split: every step can be repeated. Two
//! that do it at once each write a pair, and the CAS decides. So a front end that dies in the
//! middle delays no other. Readers go on: a frozen slot is the truth as long as the table does not
//! forward.

use super::Index;
use crate::layout::{At, Hash, Kind, Owner, PIECE_HEADER, SLOTS, Slot, UNIT, word};
use crate::object::Header;
use crate::rules::Bug;
use crate::shard::Trouble;
use crate::task::{Answer, Io, Verb};
use std::rc::Rc;

/// How long another's split is left to it, in ms.
const PATIENCE_MS: u32 = 3;

/// A table of this front end's that is being split.
struct Mark<'a>(&'a Index, At);

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        self.0.splitting.borrow_mut().remove(&self.1);
    }
}

impl Index {
    /// Splits a table that is full or frozen. The caller then searches for its key again.
    pub(crate) async fn split(self: &Rc<Index>, io: &Io, table: At, hash: Hash) -> Result<(), Trouble> {
        let leaf = self.trie.borrow().leaf(hash.path());
        if leaf.table != table {
            return Ok(());
        }
        if !self.splitting.borrow_mut().insert(table) {
            io.pause(1).await;
            return Ok(());
        }
        let (_mark, _section) = (Mark(self, table), self.space.section());
        let mut bytes = self.reach.read(io, table, self.geometry.table() as u32).await;
        if slots(&bytes).iter().any(|slot| slot.is_frozen()) && word(&bytes, 0) == 0 {
            io.pause(PATIENCE_MS).await;
            bytes = self.reach.read(io, table, self.geometry.table() as u32).await;
        }
        if word(&bytes, 0) != 0 {
            self.trie.borrow_mut().learn(table, word(&bytes, 0));
            return Ok(());
        }
        if leaf.depth >= crate::layout::MAX_DEPTH {
            return Err(Trouble::Deep);
        }
        // Memory first: a front end that has none must not leave a table frozen.
        let (node, size) = (self.reach.node, self.geometry.pair_bytes());
        let alloc = async || self.reach.verbs(io, vec![Verb::Alloc { node, bytes: size }]).await.pop();
        let mut taken = alloc().await;
        if taken == Some(Answer::Full) && slots(&bytes).iter().any(|slot| slot.is_frozen()) {
            // Of a front end that died in the middle. Keys that are to go must not wait for memory.
            let kept = self.space.heap.borrow_mut().take_kept();
            if let Some(kept) = kept {
                self.reach.release(io, kept).await;
                taken = alloc().await;
            }
        }
        let Some(Answer::Place(pair)) = taken else { return Err(Trouble::Full) };
        let frozen = match self.freeze(io, table, slots(&bytes)).await {
            Ok(frozen) => frozen,
            Err(trouble) => {
                self.reach.release(io, pair).await;
                return Err(trouble);
            }
        };
        let written = self.pair(io, &frozen, leaf.depth, table, pair).await;
        let batch = vec![Verb::Write { at: pair, bytes: Rc::new(written) }, Verb::Cas { at: table, old: 0, new: pair }];
        let answer = self.reach.verbs(io, batch).await.pop().unwrap_or(Answer::Unknown);
        match self.reach.settle(io, table, 0, pair, answer).await? {
            Ok(()) => {
                self.reach.counters.splits.set(self.reach.counters.splits.get() + 1);
                self.trie.borrow_mut().learn(table, pair);
            }
            Err(found) => {
                self.trie.borrow_mut().learn(table, found);
                self.reach.release(io, pair).await;
            }
        }
        Ok(())
    }

    /// Freezes every slot. Returns their final values.
    async fn freeze(self: &Rc<Index>, io: &Io, table: At, mut slots: Vec<Slot>) -> Result<Vec<Slot>, Trouble> {
        loop {
            // A lock says nothing about the half that its key belongs to, and must not be copied.
            let at = |n: usize| table + UNIT + n as u64 * 8;
            let is_locked = |slot: Slot| slot.is_locked() && !self.reach.rules.get().broken(Bug::FreezeLocks);
            while let Some(n) = slots.iter().position(|&slot| is_locked(slot)) {
                Box::pin(self.unlock(io, at(n), slots[n])).await?;
                slots[n] = Slot(self.reach.word(io, at(n)).await?);
            }
            let warm: Vec<usize> = (0..slots.len()).filter(|&n| !slots[n].is_frozen()).collect();
            if warm.is_empty() {
                return Ok(slots);
            }
            let cas = |&n: &usize| Verb::Cas { at: at(n), old: slots[n].0, new: slots[n].frozen().0 };
            let answers = self.reach.verbs(io, warm.iter().map(cas).collect()).await;
            for (&n, answer) in warm.iter().zip(answers) {
                match answer {
                    Answer::Word(found) if found == slots[n].0 => slots[n] = slots[n].frozen(),
                    Answer::Word(found) => slots[n] = Slot(found),
                    // Given again, it finds itself done or not.
                    _ => {}
                }
            }
            if self.reach.rules.get().broken(Bug::CopyWarm) {
                return Ok(slots);
            }
        }
    }

    /// The bytes of the pair.
    async fn pair(&self, io: &Io, frozen: &[Slot], depth: u32, table: At, pair: At) -> Vec<u8> {
        let moves =
            |slot: &Slot| slot.is_used() && (!slot.is_pending() || self.reach.rules.get().broken(Bug::CopyPending));
        let moved: Vec<usize> = (0..frozen.len()).filter(|&n| moves(&frozen[n])).collect();
        let read = |&n: &usize| Verb::Read { at: frozen[n].at(self.reach.node), len: UNIT as u32 };
        let answers = self.reach.verbs(io, moved.iter().map(read).collect()).await;
        let mut bytes = vec![0; (PIECE_HEADER + 2 * self.geometry.table()) as usize];
        let header = [
            self.reach.owner(Kind::Tables, 0).word(self.reach.secret, pair),
            Owner::second(self.reach.secret, pair),
            table,
        ];
        bytes[..24].copy_from_slice(header.map(u64::to_le_bytes).as_flattened());
        for (&n, answer) in moved.iter().zip(answers) {
            let Answer::Bytes(object) = answer else { continue };
            let Some(header) = Header::peek(&object) else { continue };
            let second = header.hash.path() >> (crate::layout::MAX_DEPTH - 1 - depth) & 1;
            let at = PIECE_HEADER + u64::from(second) * self.geometry.table() + UNIT + n as u64 * 8;
            bytes[at as usize..][..8].copy_from_slice(&frozen[n].plain().0.to_le_bytes());
        }
        bytes
    }
}

/// The slots of a table.
pub(crate) fn slots(table: &[u8]) -> Vec<Slot> {
    (SLOTS..table.len() / 8).map(|n| Slot(word(table, n))).collect()
}
