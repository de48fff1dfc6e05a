//! Ways through all keys of a shard, table by table.

use super::{Index, Trie};
use crate::layout::{At, Hash, SLOTS, Slot, UNIT, word};
use crate::object::Object;
use crate::shard::Trouble;
use crate::task::{Answer, Io, Verb};
use std::rc::Rc;

/// Tables of one turn that are only looked at, and that are emptied.
const LOOKED_AT: u32 = 16;
const EMPTIED: u32 = 1;

impl Index {
    /// The slots once transactions' locks are out of them. Those that were locked are read again, and
    /// no others: beside transactions without end a whole table may never be seen without any lock.
    async fn without_locks(self: &Rc<Index>, io: &Io, slots: &mut [(At, Slot)]) -> Result<(), Trouble> {
        for (at, slot) in slots {
            while slot.is_locked() {
                Box::pin(self.unlock(io, *at, *slot)).await?;
                *slot = Slot(self.reach.word(io, *at).await?);
            }
        }
        Ok(())
    }

    /// Shows each table's slots to `see`, and removes the slots that it returns. `locked`: also slots
    /// that are locked, which it returns none of. Others have their turn after each few tables: also
    /// where memory is mapped and no verb waits.
    pub(crate) async fn each_table(
        self: &Rc<Index>,
        io: &Io,
        locked: bool,
        mut see: impl FnMut(&[(u64, Slot)]) -> Vec<(u64, Slot)>,
    ) -> Result<(), Trouble> {
        let (mut path, mut looks) = (Some(0), 0u32);
        while let Some(from) = path {
            looks += 1;
            if looks.is_multiple_of(if locked { LOOKED_AT } else { EMPTIED }) {
                io.pause(0).await;
            }
            let leaf = self.trie.borrow().leaf(from);
            let _section = self.space.section();
            let table = self.reach.read(io, leaf.table, self.geometry.table() as u32).await;
            let slots = crate::shard::index::slots(&table).into_iter().enumerate();
            let mut placed: Vec<(At, Slot)> = slots.map(|(n, slot)| (leaf.table + UNIT + n as u64 * 8, slot)).collect();
            if !locked {
                self.without_locks(io, &mut placed).await?;
            }
            let mut forward = word(&table, 0);
            if placed.iter().any(|(_, slot)| slot.is_frozen()) {
                forward = forward.max(word(&self.reach.read(io, leaf.table, 8).await, 0));
            }
            if forward != 0 {
                self.trie.borrow_mut().learn_below(leaf, forward)?;
                continue;
            }
            let out = see(&placed);
            if out.iter().any(|(_, slot)| slot.is_frozen()) {
                self.split(io, leaf.table, Hash(u64::from(leaf.path) << 33)).await?;
                continue;
            }
            // A split that began meanwhile moves the slots that it froze.
            path = if self.take_out(io, out).await? { Some(from) } else { Trie::after(leaf) };
        }
        Ok(())
    }

    /// Empties slots of a table, unless others have changed them. Whether the table is to be read again.
    async fn take_out(self: &Rc<Index>, io: &Io, mut out: Vec<(At, Slot)>) -> Result<bool, Trouble> {
        let mut again = false;
        while !out.is_empty() {
            let cas = |&(at, slot): &(At, Slot)| Verb::Cas { at, old: slot.0, new: self.reach.empty().0 };
            let answers = self.reach.verbs(io, out.iter().map(cas).collect()).await;
            let mut locked = Vec::new();
            for (&(at, slot), answer) in out.iter().zip(answers) {
                match answer {
                    Answer::Word(found) if found == slot.0 => self.space.retire(slot),
                    Answer::Word(found) if Slot(found).is_locked() => locked.push((at, Slot(found))),
                    Answer::Word(found) => again |= Slot(found).is_frozen(),
                    // It may have been carried out, or not.
                    _ => again = true,
                }
            }
            self.without_locks(io, &mut locked).await?;
            again |= locked.iter().any(|(_, slot)| slot.is_frozen());
            out = locked;
            out.retain(|(_, slot)| slot.is_used() && !slot.is_pending() && !slot.is_frozen());
        }
        Ok(again)
    }

    /// About `count` keys from a place on, and the place to continue from. A place is a
    /// path of the trie and a bucket of the table there. `whole`: values are read, too.
    pub(crate) async fn some(
        self: &Rc<Index>,
        io: &Io,
        from: (u32, u8),
        count: usize,
        whole: bool,
    ) -> Result<(Vec<Object>, Option<(u32, u8)>), Trouble> {
        loop {
            let leaf = self.trie.borrow().leaf(from.0);
            let all = self.geometry.buckets as u8;
            // A table that was split since continues in its first half: slots keep their buckets.
            let first = if leaf.path == from.0 { from.1.min(all) } else { 0 };
            let buckets = count.div_ceil(4).clamp(1, 16).min(usize::from(all - first)) as u8;
            let _section = self.space.section();
            let at = self.geometry.bucket(leaf.table, u16::from(first));
            let bytes = self.reach.read(io, at, u32::from(buckets) * UNIT as u32).await;
            let slots = 0..usize::from(buckets) * SLOTS;
            let mut placed: Vec<(At, Slot)> = slots.map(|n| (at + n as u64 * 8, Slot(word(&bytes, n)))).collect();
            self.without_locks(io, &mut placed).await?;
            let slots: Vec<Slot> = placed.into_iter().map(|(_, slot)| slot).collect();
            if slots.iter().any(|slot| slot.is_frozen()) {
                let forward = word(&self.reach.read(io, leaf.table, 8).await, 0);
                if forward != 0 {
                    self.trie.borrow_mut().learn_below(leaf, forward)?;
                    continue;
                }
            }
            let plain: Vec<Slot> = slots.into_iter().filter(|slot| slot.is_used() && !slot.is_pending()).collect();
            let objects = match whole {
                true => self.objects(io, &plain).await,
                false => self.briefs(io, &plain).await,
            };
            let mut sound = Vec::with_capacity(objects.len());
            for (object, slot) in objects.into_iter().zip(&plain) {
                match object {
                    Some(object) => sound.push(object),
                    // It counts as absent.
                    None if self.damaged(io, *slot).await.is_some() => {}
                    None => return Err(Trouble::Corrupt),
                }
            }
            let objects = sound;
            let next = first + buckets;
            let next = if next < all { Some((leaf.path, next)) } else { Trie::after(leaf).map(|path| (path, 0)) };
            return Ok((objects, next));
        }
    }
}
