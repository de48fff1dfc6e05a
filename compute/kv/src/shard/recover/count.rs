//! Counts a store: compares the objects to which the index refers with the pieces that there are.

use super::{AT_ONCE, Recovery};
use crate::layout::{At, EXTENT, HEAD_BYTES, Hash, Kind, PIECE_HEADER, Slot, word};
use crate::long::List;
use crate::object::{Object, Type};
use crate::segments;
use crate::shard::index::Trie;
use crate::shard::member::is_there;
use crate::task::Io;
use std::collections::{BTreeMap, HashMap};

/// The content of a shard.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Keys, expired ones too.
    pub keys: u64,
    /// Objects: of keys, and segments.
    pub objects: u64,
    /// Inserts and locks that are not decided.
    pub pending: u64,
    /// Bytes of all pieces.
    pub bytes: u64,
    /// Bytes of live objects.
    pub live: u64,
    /// Bytes of the index beyond its first tables.
    pub index: u64,
    /// Records that contradict each other.
    pub problems: Vec<String>,
}

impl Recovery {
    /// Counts the shard. While others write to it, a reported problem may only be a change during
    /// the count.
    pub async fn count(&self, io: &Io) -> Count {
        let mut count = Count::default();
        let members = self.reach.read(io, self.reach.root, HEAD_BYTES as u32).await;
        let mut extents = BTreeMap::new();
        let mut referred = self.count_index(io, &mut count, &mut extents).await;
        count.objects = referred.len() as u64;
        referred.extend(extents.iter().map(|(&at, &(_, len))| (at, len)));
        for (at, bytes, owner, third) in self.pieces(io).await {
            count.bytes += u64::from(bytes);
            let Some(owner) = owner else {
                count.problems.push(format!("the piece at {at:#x} is nobody's"));
                continue;
            };
            let there = owner.kind == Kind::Root || is_there(&members, owner.member);
            match owner.kind {
                Kind::Root => {}
                Kind::Tables => {
                    let linked = word(&self.reach.read(io, third, 8).await, 0) == at;
                    count.index += u64::from(bytes);
                    if !linked && !there {
                        count.problems.push(format!("the tables at {at:#x} are nobody's"));
                    }
                }
                Kind::Objects => {
                    let live: u64 = referred.range(at..at + u64::from(bytes)).map(|(_, len)| u64::from(*len)).sum();
                    count.live += live;
                    if owner.class == EXTENT
                        && let Some((number, _)) = extents.remove(&(at + PIECE_HEADER))
                        && number != third
                    {
                        count.problems.push(format!("the extent at {at:#x} is another value's"));
                    }
                    if !there {
                        count.problems.push(format!("the piece at {at:#x} was a front end's that is gone"));
                    }
                }
            }
        }
        for (at, _) in extents {
            count.problems.push(format!("there is no piece for the extent at {at:#x}"));
        }
        count
    }

    /// Objects that the index refers to, with their lengths. `extents`: those of long values, with
    /// the values' numbers.
    async fn count_index(
        &self,
        io: &Io,
        count: &mut Count,
        extents: &mut BTreeMap<At, (u64, u32)>,
    ) -> BTreeMap<At, u32> {
        let mut referred: BTreeMap<At, u32> = BTreeMap::new();
        let mut keys = HashMap::new();
        let mut path = Some(0);
        while let Some(from) = path {
            let leaf = self.index.trie.borrow().leaf(from);
            let table = self.reach.read(io, leaf.table, self.index.geometry.table() as u32).await;
            let forward = word(&self.reach.read(io, leaf.table, 8).await, 0);
            if forward != 0 {
                self.index.trie.borrow_mut().learn(leaf.table, forward);
                continue;
            }
            path = Trie::after(leaf);
            let slots: Vec<Slot> = crate::shard::index::slots(&table);
            count.pending += slots.iter().filter(|slot| slot.is_pending() || slot.is_locked()).count() as u64;
            let plain = |slot: &Slot| slot.is_used() && !slot.is_pending() && !slot.is_locked();
            let plain: Vec<Slot> = slots.into_iter().filter(plain).collect();
            for some in plain.chunks(AT_ONCE) {
                let _section = self.space.section();
                for (slot, object) in some.iter().zip(self.index.objects(io, some).await) {
                    let at = slot.at(self.reach.node);
                    let Some(object) = object else {
                        count.problems.push(format!("the object at {at:#x} does not match its checksum"));
                        continue;
                    };
                    count.keys += 1;
                    if object.kind() == Type::Long {
                        self.count_long(io, at, &object, count, extents).await;
                    }
                    for (at, len, checksum) in segments::listed(&object, self.reach.node) {
                        let bytes = self.reach.read(io, at, len).await;
                        if !segments::is_segment(&bytes, checksum) {
                            count.problems.push(format!("the segment at {at:#x} does not match its checksum"));
                        }
                        if referred.insert(at, len).is_some() {
                            count.problems.push(format!("the segment at {at:#x} is listed twice"));
                        }
                    }
                    let misplaced = self.index.trie.borrow().leaf(object.hash().path()).table != leaf.table;
                    if misplaced || object.hash() != Hash::of(object.key()) {
                        count.problems.push(format!("the object at {at:#x} is in a table that is not its key's"));
                    }
                    if referred.insert(at, object.len()).is_some() {
                        count.problems.push(format!("two slots refer to the object at {at:#x}"));
                    }
                    if keys.insert(object.key().to_vec(), at).is_some() {
                        count.problems.push(format!("two objects have the key of the one at {at:#x}"));
                    }
                }
            }
        }
        referred
    }

    /// Counts the extents of a long value, whose object is at `at`.
    async fn count_long(
        &self,
        io: &Io,
        at: At,
        object: &Object,
        count: &mut Count,
        extents: &mut BTreeMap<At, (u64, u32)>,
    ) {
        let Some(list) = List::decode(object.value(), self.reach.node) else {
            count.problems.push(format!("the long value at {at:#x} is none"));
            return;
        };
        for extent in &list.extents {
            if self.reach.extent(io, extent).await.is_err() {
                count.problems.push(format!("the extent at {:#x} does not match its checksum", extent.at));
            }
            if extents.insert(extent.at, (list.number, extent.len)).is_some() {
                count.problems.push(format!("two values have the extent at {:#x}", extent.at));
            }
        }
    }
}
