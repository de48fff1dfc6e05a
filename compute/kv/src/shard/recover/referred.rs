//! The long values and segments that the index refers to: by the lists and heads of a key's hash.

use super::Recovery;
use crate::layout::{At, Hash, Slot};
use crate::long;
use crate::object::Object;
use crate::segments;
use crate::task::Io;
use std::collections::{BTreeMap, HashSet};

impl Recovery {
    /// The objects of a key with this fingerprint that the index refers to, but those of inserts
    /// that are not decided, and damaged blocks. `None`: this front end is shut out. The caller's
    /// section keeps them.
    async fn decided(&self, io: &Io, hash: Hash) -> Option<Vec<Object>> {
        loop {
            let slots = self.judged(io, hash).await;
            let alike = |slot: &Slot| slot.is_used() && !slot.is_pending() && slot.fingerprint() == hash.fingerprint();
            let alike: Vec<(At, Slot)> = slots.into_iter().filter(|(_, slot)| alike(slot)).collect();
            let referred: Vec<Slot> = alike.iter().map(|(_, slot)| slot.thawed()).collect();
            let (mut sound, mut changed) = (Vec::with_capacity(alike.len()), false);
            for (slot, object) in alike.into_iter().zip(self.index.objects(io, &referred).await) {
                match object {
                    Some(object) => sound.push(object),
                    // It stays damaged, and refers to nothing.
                    None if self.index.damaged_in(io, slot).await.is_some() => {}
                    None => changed = true,
                }
            }
            if self.reach.shut_out.get() {
                return None;
            }
            if !changed {
                return Some(sound);
            }
            io.pause(1).await;
        }
    }

    /// Whether the index refers to a long value. An insert that is not decided is a dead front
    /// end's and stays undecided, because the number is its own.
    pub(super) async fn refers_to_long(&self, io: &Io, hash: Hash, number: u64) -> bool {
        // Objects that are read are not reused meanwhile.
        let _section = self.space.section();
        let objects = self.decided(io, hash).await;
        objects.is_none_or(|objects| objects.iter().any(|object| long::number(object) == Some(number)))
    }

    /// The places of the segments that heads list under this hash. As for long values, an insert
    /// that is not decided does not count: it lists none but its own writer's. `None`: this front
    /// end is shut out.
    pub(super) async fn listed(&self, io: &Io, hash: Hash) -> Option<HashSet<At>> {
        // Objects that are read are not reused meanwhile.
        let _section = self.space.section();
        let objects = self.decided(io, hash).await?;
        let own = objects.iter().filter(|object| object.hash() == hash);
        Some(own.flat_map(|head| segments::places(head, self.reach.node)).collect())
    }

    /// Which of these segments are live.
    pub(super) async fn live_segments(&self, io: &Io, all: &[(At, u64)]) -> HashSet<At> {
        let mut by_hash: BTreeMap<u64, Vec<At>> = BTreeMap::new();
        all.iter().for_each(|&(at, hash)| by_hash.entry(hash).or_default().push(at));
        let mut live = HashSet::new();
        for (hash, places) in by_hash {
            let listed = self.listed(io, Hash(hash)).await;
            live.extend(places.into_iter().filter(|at| listed.as_ref().is_none_or(|listed| listed.contains(at))));
        }
        live
    }
}
