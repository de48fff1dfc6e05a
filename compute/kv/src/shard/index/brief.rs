//! Objects without their values. An evictor looks at keys alone, so it reads as little of a block
//! of 64 KiB as of a small value.

use super::{Index, Removed, Seen};
use crate::layout::{At, Hash, Slot, class_bytes, word};
use crate::object::{HEADER, Object, Type, Value};
use crate::shard::{ATTEMPTS, Trouble};
use crate::task::{Answer, Io, Verb};
use std::rc::Rc;

/// Bytes that are read of an object at first. Few keys are longer.
const FIRST: u64 = 512;

/// An object with its key and no value. `None`: the bytes do not have all of the key. The key's hash
/// stands in for the checksum, which covers the value.
pub(crate) fn of(bytes: &[u8]) -> Option<Object> {
    let kind = Type::of(*bytes.get(32)?)?;
    let key = bytes.get(HEADER..HEADER + word(bytes, 3) as u32 as usize)?;
    let hash = Hash::of(key);
    let value = Value { kind, expiry: Some(word(bytes, 2)).filter(|&at| at != 0), bytes: Vec::new() };
    let written_s = (word(bytes, 4) >> 32) as u32;
    let told = (word(bytes, 3) >> 32) as usize;
    (hash.0 == word(bytes, 1)).then(|| Object::new(hash, key, &value, 0, written_s).telling(told))
}

impl Index {
    /// Objects by their slots, without their values. `None`: an object is not what its slot refers
    /// to.
    pub(crate) async fn briefs(&self, io: &Io, slots: &[Slot]) -> Vec<Option<Object>> {
        if slots.is_empty() {
            return Vec::new();
        }
        let first =
            |slot: &Slot| Verb::Read { at: slot.at(self.reach.node), len: class_bytes(slot.class()).min(FIRST) as u32 };
        let answers = self.reach.verbs(io, slots.iter().map(first).collect()).await;
        let mut objects = Vec::with_capacity(slots.len());
        for (slot, answer) in slots.iter().zip(answers) {
            let brief = if let Answer::Bytes(bytes) = answer { of(&bytes) } else { None };
            objects.push(match brief {
                Some(brief) => Some(brief),
                None => self.objects(io, &[*slot]).await.pop().flatten(),
            });
        }
        objects
    }
}

impl Index {
    /// The key's object without its value, unless that lists pieces or is at hand. One round trip
    /// if the key's slot is known, else two.
    pub async fn brief(self: &Rc<Index>, io: &Io, key: &[u8]) -> Result<Option<Object>, Trouble> {
        let (hash, _section) = (Hash::of(key), self.space.section());
        let table = self.trie.borrow().table(hash);
        if let Some((_, object)) = self.near.get(key, hash, table) {
            return Ok(Some(object));
        }
        if let Some((known, _)) = self.known(key, hash) {
            let len = class_bytes(known.slot.class()).min(FIRST) as u32;
            let object = Verb::Read { at: known.slot.at(self.reach.node), len };
            let answers = self.reach.verbs(io, vec![Verb::Read { at: known.slot_at, len: 8 }, object]).await;
            if let [Answer::Bytes(slot), Answer::Bytes(bytes)] = &answers[..]
                && Slot(word(slot, 0)) == known.slot
                && let Some(brief) = of(bytes).filter(|brief| brief.key() == key)
            {
                return Ok(Some(brief));
            }
        }
        for attempt in 0..ATTEMPTS {
            self.hesitate(io, attempt).await?;
            let table = self.trie.borrow().table(hash);
            let answers = self.reach.verbs(io, self.bucket_verbs(table, hash).into()).await;
            match self.look(io, (key, hash, false), table, &self.slots(table, hash, &answers)).await {
                Seen::Key(_, _, object) => return Ok(Some(object)),
                Seen::Absent(_) => return Ok(None),
                Seen::Again | Seen::Damaged => {}
            }
        }
        Err(Trouble::Corrupt)
    }

    /// Takes a key out without reading its value; whether it was there. `only`: it stays if its
    /// object is at another place. The own object at that place is then retired, because another
    /// front end has replaced it.
    ///
    /// One round trip if an own object is still in the slot in which it was linked: a CAS that finds the
    /// slot unchanged proves it, because the place is not used for another object meanwhile.
    pub async fn discard(self: &Rc<Index>, io: &Io, key: &[u8], only: Option<At>) -> Result<bool, Trouble> {
        let (hash, _section) = (Hash::of(key), self.space.section());
        let _writing = self.near.writing(Some(hash));
        // Since the section began its place is not used for another object.
        let own = only.filter(|&at| self.space.heap.borrow_mut().is_linked(at, hash.0));
        let slot = own.and_then(|at| self.space.heap.borrow_mut().slot_of(at));
        if let Some((at, slot)) = slot {
            // Before the CAS, whose outcome may stay unknown.
            self.near.cache.borrow_mut().forget_hash(hash);
            if self.reach.swap(io, at, slot.0, self.reach.empty().0).await?.is_ok() {
                self.space.retire(slot);
                return Ok(true);
            }
        }
        for attempt in 0..ATTEMPTS {
            self.hesitate(io, attempt).await?;
            let table = self.trie.borrow().table(hash);
            let answers = self.reach.verbs(io, self.bucket_verbs(table, hash).into()).await;
            let slots = self.slots(table, hash, &answers);
            let alike = |(_, slot): &(u64, Slot)| {
                slot.is_used() && !slot.is_pending() && slot.fingerprint() == hash.fingerprint()
            };
            let alike: Vec<(u64, Slot)> = slots.iter().filter(|slot| alike(slot)).copied().collect();
            if self.unlock_all(io, &alike).await? {
                continue;
            }
            let referred: Vec<Slot> = alike.iter().map(|&(_, slot)| slot).collect();
            let objects: Option<Vec<Object>> = self.briefs(io, &referred).await.into_iter().collect();
            let changing = slots.iter().any(|(_, slot)| slot.is_frozen());
            let found = objects.and_then(|objects| {
                let at = objects.iter().position(|object| object.key() == key);
                if only.is_some() && at.map(|at| alike[at].1.at(self.reach.node)) != only {
                    return Some(None);
                }
                at.map_or(Some(None), |at| {
                    (!matches!(objects[at].kind(), Type::Long | Type::Parts)).then_some(Some(alike[at]))
                })
            });
            let (at, slot) = match found {
                Some(None) if !changing || only.is_some() => {
                    if let Some(at) = own.filter(|_| !changing) {
                        let epoch = self.space.epoch() + 1;
                        self.space.heap.borrow_mut().retire(at, epoch);
                    }
                    return Ok(false);
                }
                Some(Some(found)) if !changing => found,
                // A value in several objects, a split, or a change meanwhile.
                _ => return Ok(!matches!(Box::pin(self.remove_seen(io, key)).await?, Removed::Absent)),
            };
            // Before the CAS, whose outcome may stay unknown.
            self.near.cache.borrow_mut().forget(key, hash);
            if self.reach.swap(io, at, slot.0, self.reach.empty().0).await?.is_ok() {
                self.space.retire(slot);
                return Ok(true);
            }
        }
        Err(Trouble::Corrupt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_known_by_its_beginning() {
        let value = Value { kind: Type::List, expiry: Some(5), bytes: vec![1; 1000] };
        let object = Object::new(Hash::of(b"key"), b"key", &value, 3, 77);
        let brief = of(&object.bytes()[..100]).expect("all of the key is there");
        let about = |object: &Object| {
            (object.key().to_vec(), object.kind(), object.expiry(), object.written_s(), object.hash())
        };
        assert_eq!((about(&brief), brief.value()), (about(&object), &[][..]));
        assert_eq!(of(&object.bytes()[..42]), None);
        let mut other = object.bytes()[..100].to_vec();
        other[41] ^= 1;
        assert_eq!(of(&other), None);
    }
}
