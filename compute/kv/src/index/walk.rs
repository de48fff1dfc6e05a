//! Ways through all keys of a shard, table by table.

use super::{Index, Trie};
use crate::layout::{Hash, SLOTS, Slot, UNIT, word};
use crate::object::Object;
use crate::shard::Trouble;
use crate::task::{Answer, Io, Verb};
use std::rc::Rc;

impl Index {
    /// Shows each table's slots to `see`, and removes the slots that it returns.
    pub(crate) async fn each_table(
        self: &Rc<Index>,
        io: &Io,
        mut see: impl FnMut(&[(u64, Slot)]) -> Vec<(u64, Slot)>,
    ) -> Result<(), Trouble> {
        let mut path = Some(0);
        while let Some(from) = path {
            let leaf = self.trie.borrow().leaf(from);
            let _section = self.space.section();
            let table = self.reach.read(io, leaf.table, self.geometry.table() as u32).await;
            let slots = crate::index::slots(&table);
            let mut forward = word(&table, 0);
            if slots.iter().any(|slot| slot.is_frozen()) {
                forward = forward.max(word(&self.reach.read(io, leaf.table, 8).await, 0));
            }
            if forward != 0 {
                self.trie.borrow_mut().learn(leaf.table, forward);
                continue;
            }
            let placed: Vec<(u64, Slot)> =
                slots.into_iter().enumerate().map(|(n, slot)| (leaf.table + UNIT + n as u64 * 8, slot)).collect();
            if self.unlock_all(io, &placed).await? {
                continue;
            }
            let out = see(&placed);
            if out.iter().any(|(_, slot)| slot.is_frozen()) {
                self.split(io, leaf.table, Hash(u64::from(leaf.path) << 33)).await?;
                continue;
            }
            let cas = |&(at, slot): &(u64, Slot)| Verb::Cas { at, old: slot.0, new: 0 };
            let mut again = false;
            if !out.is_empty() {
                let answers = self.reach.verbs(io, out.iter().map(cas).collect()).await;
                for ((_, slot), answer) in out.iter().zip(answers) {
                    match answer {
                        Answer::Word(found) if found == slot.0 => self.space.retire(*slot),
                        Answer::Word(found) => again |= Slot(found).is_frozen() || Slot(found).is_locked(),
                        // It may have been carried out, or not.
                        _ => again = true,
                    }
                }
            }
            // A split that began meanwhile moves the slots that it froze.
            path = if again { Some(from) } else { Trie::after(leaf) };
        }
        Ok(())
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
            let slots: Vec<Slot> = (0..usize::from(buckets) * SLOTS).map(|n| Slot(word(&bytes, n))).collect();
            if slots.iter().any(|slot| slot.is_frozen()) {
                let forward = word(&self.reach.read(io, leaf.table, 8).await, 0);
                if forward != 0 {
                    self.trie.borrow_mut().learn(leaf.table, forward);
                    continue;
                }
            }
            let placed = slots.iter().enumerate().map(|(n, &slot)| (at + n as u64 * 8, slot));
            if self.unlock_all(io, &placed.collect::<Vec<_>>()).await? {
                continue;
            }
            let plain: Vec<Slot> = slots.into_iter().filter(|slot| slot.is_used() && !slot.is_pending()).collect();
            let objects = match whole {
                true => self.objects(io, &plain).await,
                false => self.briefs(io, &plain).await,
            };
            let objects = objects.into_iter().collect::<Option<Vec<Object>>>().ok_or(Trouble::Corrupt)?;
            let next = first + buckets;
            let next = if next < all { Some((leaf.path, next)) } else { Trie::after(leaf).map(|path| (path, 0)) };
            return Ok((objects, next));
        }
    }
}
