//! Slots that a transaction has locked ([`crate::atomic`]): what anyone does who meets one.
//!
//! A locked slot refers to the transaction's *lock* of the key: what the slot was, what it is to be, and
//! where the *verdict* is. Whoever meets it reads the verdict's last word. If that is decided, the slot
//! gets its new value, or its old one again. If not, the transaction has a moment; then it is undone. So
//! nobody waits for a front end that has died or stands still.
//!
//! * A verdict is decided by one CAS, so all of its slots change at that moment or none.
//! * Only the front end whose transaction it is puts locks into slots, and it decides before it leaves.
//!   Others only take locks out.
//! * A verdict's memory is used again only when none of its locks is in a slot. So a lock whose verdict
//!   is gone was put into its slot after the transaction was undone, and the old value stands.

use super::Index;
use crate::layout::{At, Hash, NODE_SHIFT, Slot, word};
use crate::object::{HEADER, Object, Type, Value};
use crate::rules::Bug;
use crate::shard::Trouble;
use crate::shard::copies::Words;
use crate::shard::reach::Reach;
use crate::task::{Answer, Io, Verb};
use std::rc::{Rc, Weak};

/// The pauses, in ms, in which a transaction may decide before it is undone.
const PATIENCE_MS: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// The states of a verdict: the low bits of its last word. The rest is the transaction's number.
pub(crate) const UNDECIDED: u64 = 1;
/// All slots have their new values.
pub(crate) const DONE: u64 = 2;
/// All slots have their old values.
pub(crate) const UNDONE: u64 = 3;

/// A key's part of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lock {
    /// The transaction's number, a multiple of four.
    pub id: u64,
    /// Where the verdict's last word is.
    pub verdict: At,
    /// The key's slot.
    pub slot_at: At,
    /// The slot before.
    pub old: Slot,
    /// The slot after, if the transaction takes effect.
    pub new: Slot,
}

impl Lock {
    /// The object for a place that was used `version` times. It has the hash of the key, and no key.
    pub fn object(&self, hash: Hash, version: u16, now_s: u32) -> Object {
        let words = [self.id, self.verdict, self.slot_at, self.old.0, self.new.0];
        let value = Value { kind: Type::Lock, expiry: None, bytes: words.map(u64::to_le_bytes).concat() };
        Object::new(hash, b"", &value, version, now_s)
    }

    fn of(object: &Object) -> Option<Lock> {
        let at = |n| word(object.value(), n);
        let lock = Lock { id: at(0), verdict: at(1), slot_at: at(2), old: Slot(at(3)), new: Slot(at(4)) };
        (object.kind() == Type::Lock).then_some(lock)
    }
}

/// A slot that a verdict locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// Where it is.
    pub slot_at: At,
    /// The slot while it is locked.
    pub locked: Slot,
}

/// Bytes of an entry.
const ENTRY: usize = 16;

/// Bytes of a verdict of so many slots, with its last word.
pub(crate) fn verdict_bytes(entries: usize) -> u64 {
    (HEADER + 8 + entries * ENTRY + 8) as u64
}

/// Where the last word is of a verdict at `at`.
pub(crate) fn last_word(at: At, entries: usize) -> At {
    at + verdict_bytes(entries) - 8
}

/// A verdict that is not decided. Behind the object comes the word that decides.
pub(crate) fn verdict(id: u64, entries: &[Entry], version: u16, now_s: u32) -> Vec<u8> {
    let words = |entry: &Entry| [entry.slot_at, entry.locked.0];
    let words: Vec<u64> = std::iter::once(id).chain(entries.iter().flat_map(words)).collect();
    let bytes = words.into_iter().flat_map(u64::to_le_bytes).collect();
    let object = Object::new(Hash(id), b"", &Value { kind: Type::Verdict, expiry: None, bytes }, version, now_s);
    [&object.bytes()[..], &(id | UNDECIDED).to_le_bytes()].concat()
}

impl Reach {
    /// Decides a verdict, unless it is; its last word then.
    pub(crate) async fn decide(&self, io: &Io, at: At, id: u64, state: u64) -> Result<u64, Trouble> {
        let (old, new) = (id | UNDECIDED, id | state);
        loop {
            // No slot: a helper has no object to copy for it.
            match self.words(io, Words::Owners, vec![Verb::Cas { at, old, new }]).await.pop() {
                Some(Answer::Word(found)) => return Ok(if found == old { new } else { found }),
                _ if self.shut_out.get() => return Err(Trouble::ShutOut),
                _ => {}
            }
        }
    }

    /// A word, once it is answered.
    pub(crate) async fn word(&self, io: &Io, at: At) -> Result<u64, Trouble> {
        loop {
            match self.verbs(io, vec![Verb::Read { at, len: 8 }]).await.pop() {
                Some(Answer::Bytes(bytes)) => return Ok(word(&bytes, 0)),
                _ if self.shut_out.get() => return Err(Trouble::ShutOut),
                _ => {}
            }
        }
    }

    /// Takes a lock out of a slot, if it is there. Whatever the answer: it is not there any more.
    pub(crate) async fn take_lock_out(&self, io: &Io, slot_at: At, locked: Slot, last: Slot) -> Result<(), Trouble> {
        loop {
            let cas = Verb::Cas { at: slot_at, old: locked.0, new: last.0 };
            match self.verbs(io, vec![cas]).await.pop() {
                Some(Answer::Word(_)) => return Ok(()),
                _ if self.shut_out.get() => return Err(Trouble::ShutOut),
                _ => {}
            }
        }
    }
}

impl Index {
    /// The part of the store at an address.
    pub(crate) fn peer(self: &Rc<Index>, at: At) -> Result<Rc<Index>, Trouble> {
        let node = (at >> NODE_SHIFT) as u8;
        if node == self.reach.node {
            return Ok(Rc::clone(self));
        }
        let peers = self.peers.borrow();
        peers.iter().filter_map(Weak::upgrade).find(|peer| peer.reach.node == node).ok_or(Trouble::Corrupt)
    }

    /// Ends the lock of a slot. The caller has read the slot in a section, and reads it again.
    ///
    /// # Errors
    /// There is no lock where the slot refers to one.
    pub(crate) async fn unlock(self: &Rc<Index>, io: &Io, slot_at: At, slot: Slot) -> Result<(), Trouble> {
        let object = self.objects(io, &[slot]).await.pop().flatten();
        let Some(lock) = object.as_ref().and_then(Lock::of).filter(|lock| lock.slot_at == slot_at) else {
            let same = self.reach.word(io, slot_at).await? == slot.0;
            return if same { Err(Trouble::Corrupt) } else { Ok(()) };
        };
        let peer = self.peer(lock.verdict)?;
        let mut patience = PATIENCE_MS.iter();
        loop {
            let mut state = peer.reach.word(io, lock.verdict).await?;
            if state == lock.id | UNDECIDED && !self.reach.rules.get().broken(Bug::TrustUndecided) {
                if let Some(&ms) = patience.next() {
                    io.pause(ms).await;
                    continue;
                }
                state = peer.reach.decide(io, lock.verdict, lock.id, UNDONE).await?;
            }
            let done = state == lock.id | DONE || state == lock.id | UNDECIDED;
            return self.reach.take_lock_out(io, slot_at, slot, if done { lock.new } else { lock.old }).await;
        }
    }

    /// Ends the locks among some slots; whether there were any. The caller has read them in a section.
    pub(crate) async fn unlock_all(self: &Rc<Index>, io: &Io, slots: &[(At, Slot)]) -> Result<bool, Trouble> {
        let mut any = false;
        for &(at, slot) in slots.iter().filter(|(_, slot)| slot.is_locked()) {
            Box::pin(self.unlock(io, at, slot)).await?;
            any = true;
        }
        Ok(any)
    }

    /// Undoes a dead front end's transaction, unless it is decided, and ends all of its locks. Then no
    /// lock of the verdict at `at` is in a slot.
    pub(crate) async fn end_verdict(self: &Rc<Index>, io: &Io, at: At, verdict: &Object) -> Result<(), Trouble> {
        let words = |n| word(verdict.value(), n);
        let (id, entries) = (words(0), verdict.value().len().saturating_sub(8) / ENTRY);
        self.reach.decide(io, last_word(at, entries), id, UNDONE).await?;
        for n in 0..entries {
            let (slot_at, locked) = (words(1 + 2 * n), words(2 + 2 * n));
            let peer = self.peer(slot_at)?;
            let _section = peer.space.section();
            if peer.reach.word(io, slot_at).await? == locked {
                // By what the lock itself says: these may be the bytes of a verdict long gone.
                peer.unlock(io, slot_at, Slot(locked)).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{LOCK_BYTES, class_bytes, class_of};

    #[test]
    fn a_lock_fits_its_place() {
        let lock = Lock { id: 8, verdict: 64, slot_at: 72, old: Slot(5), new: Slot(0) };
        let object = lock.object(Hash(9), 3, 1);
        assert_eq!(class_bytes(class_of(u64::from(object.len()))), LOCK_BYTES);
        assert_eq!(Lock::of(&object), Some(lock));
    }

    #[test]
    fn a_verdict_ends_with_the_word_that_decides() {
        let entry = Entry { slot_at: 8, locked: Slot(1) };
        let bytes = verdict(12, &[entry; 3], 1, 1);
        assert_eq!(bytes.len() as u64, verdict_bytes(3));
        assert_eq!(word(&bytes, last_word(0, 3) as usize / 8), 12 | UNDECIDED);
        assert_eq!(Object::decode(bytes).map(|object| object.value().len()), Some(8 + 3 * ENTRY));
    }
}
