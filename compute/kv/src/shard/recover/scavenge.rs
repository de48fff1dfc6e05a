//! How an owner finds those of its objects that other front ends have replaced or removed.
//!
//! It knows the slot in which each was linked. A slot that is not frozen, and refers to something else,
//! proves that the object is gone: only a split moves an object, and it leaves the slot frozen. So the
//! objects of a table are judged together. One READ covers slots that lie near each other: where few front
//! ends serve the store, hundreds of a table; where many do, perhaps one of 8 bytes.
//!
//! An object whose slot is frozen or not known is looked up in its two buckets. Its slot is known from then
//! on.

use super::{AT_ONCE, Recovery};
use crate::layout::{Hash, Slot, word};
use crate::shard::heap::Linked;
use crate::task::{Answer, Io, Verb};
use std::collections::BTreeMap;

/// Bytes between two slots that one READ covers: they take no longer than a verb.
const NEAR: u64 = 256;
/// Within so many bits of an address lie the slots of one READ: no piece with tables is smaller.
const BLOCK_BITS: u32 = 14;
/// Objects that are gone through in one turn.
const TURN: usize = 4096;

impl Recovery {
    /// Finds own objects that others took out of the index; how many.
    pub async fn scavenge(&self, io: &Io) -> usize {
        let mut found = self.scavenge_longs(io).await + self.scavenge_segments(io).await;
        let (mut blocks, mut from): (BTreeMap<u64, Vec<Linked>>, _) = (BTreeMap::new(), Some(0));
        while let Some(first) = from {
            let (some, next) = self.space.heap.borrow().linked_from(first, TURN);
            some.into_iter().for_each(|one| blocks.entry(one.slot >> BLOCK_BITS).or_default().push(one));
            if next.is_some() {
                io.pause(0).await;
            }
            from = next;
        }
        let mut reads: Vec<Vec<Linked>> = Vec::new();
        for mut block in blocks.into_values() {
            block.sort_unstable_by_key(|one| one.slot);
            let near = |one: &Linked, next: &Linked| one.slot > 0 && next.slot - one.slot <= NEAR;
            // One after the other: after a takeover all objects are of one block, each a group.
            for group in block.chunk_by(near) {
                reads.push(group.to_vec());
                if reads.len() == AT_ONCE {
                    found += self.judge(io, std::mem::take(&mut reads)).await;
                    io.pause(0).await;
                }
            }
        }
        found + self.judge(io, reads).await
    }

    /// Finds own extents whose long value others took out of the index; how many values.
    async fn scavenge_longs(&self, io: &Io) -> usize {
        let (longs, mut found) = (self.space.heap.borrow().all_longs(), 0);
        for (number, hash) in longs {
            if !self.refers_to_long(io, Hash(hash), number).await {
                let epoch = self.space.epoch() + 1;
                self.space.heap.borrow_mut().retire_long(number, epoch);
                found += 1;
            }
        }
        found
    }

    /// Finds own segments that heads of others do not list any more; how many.
    async fn scavenge_segments(&self, io: &Io) -> usize {
        // Those that were listed before the look.
        let all = self.space.heap.borrow().all_segments();
        let mut found = 0;
        for (hash, places) in all {
            // While it lives no place is used again, so what was looked at is what is retired.
            let _section = self.space.section();
            let Some(listed) = self.listed(io, Hash(hash)).await else { return found };
            let epoch = self.space.epoch() + 1;
            let mut heap = self.space.heap.borrow_mut();
            for at in places.into_iter().filter(|at| !listed.contains(at)) {
                if heap.is_segment(at, hash) {
                    heap.retire(at, epoch);
                    found += 1;
                }
            }
        }
        found
    }

    /// Retires those that are gone; how many. Of each group one READ covers the slots.
    async fn judge(&self, io: &Io, mut groups: Vec<Vec<Linked>>) -> usize {
        // While it lives no place is used again, so what was looked up is what is retired.
        let _section = self.space.section();
        // The place may have been used again since, even for the same key in another slot.
        let stays = |one: &Linked| self.space.heap.borrow_mut().is_as_linked(one);
        groups.iter_mut().for_each(|group| group.retain(stays));
        groups.retain(|group| !group.is_empty());
        let (mut gone, mut unknown) = (Vec::new(), Vec::new());
        let known: Vec<&Vec<Linked>> = groups.iter().filter(|group| group[0].slot > 0).collect();
        let read = |group: &&Vec<Linked>| {
            let (first, last) = (group[0].slot, group[group.len() - 1].slot);
            Verb::Read { at: first, len: (last + 8 - first) as u32 }
        };
        let answers = match known.is_empty() {
            true => Vec::new(),
            false => self.reach.verbs(io, known.iter().map(read).collect()).await,
        };
        for (group, answer) in known.into_iter().zip(answers) {
            let Answer::Bytes(bytes) = answer else { continue };
            for one in group {
                let slot = Slot(word(&bytes, ((one.slot - group[0].slot) / 8) as usize));
                if slot.is_frozen() || slot.is_locked() {
                    unknown.push((one.at, one.hash));
                } else if !slot.is_used() || slot.at(self.reach.node) != one.at {
                    gone.push(one.at);
                }
            }
        }
        unknown.extend(groups.iter().filter(|group| group[0].slot == 0).flatten().map(|one| (one.at, one.hash)));
        for some in unknown.chunks(AT_ONCE) {
            let live = self.are_live(io, some).await;
            gone.extend(some.iter().zip(live).filter(|(_, live)| !live).map(|((at, _), _)| *at));
        }
        let epoch = self.space.epoch() + 1;
        gone.iter().for_each(|&at| _ = self.space.heap.borrow_mut().retire(at, epoch));
        gone.len()
    }
}
