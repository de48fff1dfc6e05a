//! A volume against the plainest model: the last value given to each slot. The test plays the
//! memory, too.

use farmem_volume::{BLOCK_CHUNKS, Chunk, Content, Volume};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Slots of the volume under test: three clusters and a half.
const SLOTS: u32 = 1792;

#[derive(Clone, Debug)]
enum Step {
    Write(u32, u32),
    Fill(u32, u32, u64),
    Trim(u32, u32),
    /// Of every cluster, only one slot in this many stays.
    Thin(u32),
    Compact(usize),
    Mark,
    /// The host tells late that it freed slots: after the last mark but so many.
    Freed(u32, u32, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let run = || (0..SLOTS, 1..400u32).prop_map(|(first, count)| (first, count.min(SLOTS - first)));
    prop_oneof![
        4 => run().prop_map(|(first, count)| Step::Write(first, count)),
        2 => (run(), prop_oneof![Just(0u64), 0..4u64, any::<u64>()]).prop_map(|((f, n), word)| Step::Fill(f, n, word)),
        3 => run().prop_map(|(first, count)| Step::Trim(first, count)),
        1 => (2..9u32).prop_map(Step::Thin),
        1 => (0..2000usize).prop_map(Step::Compact),
        2 => Just(Step::Mark),
        2 => (run(), 0..4usize).prop_map(|((first, count), back)| Step::Freed(first, count, back)),
    ]
}

/// A node's memory: the last write to each chunk, by a number.
#[derive(Default)]
struct Memory {
    bytes: BTreeMap<Chunk, u64>,
    names: u32,
    held: Vec<u32>,
    /// Blocks that the node would give, at most.
    most: usize,
    /// The step that wrote each slot last.
    written: BTreeMap<u32, u64>,
    /// Marks, and the step that took each.
    marks: Vec<(u64, u64)>,
}

impl Memory {
    fn write(&mut self, volume: &mut Volume, slot: u32, value: u64) -> bool {
        loop {
            if let Ok(chunk) = volume.place(slot) {
                assert!(self.held.contains(&chunk.block) && chunk.index < BLOCK_CHUNKS);
                self.bytes.insert(chunk, value);
                return true;
            }
            if self.held.len() == self.most {
                return false;
            }
            self.names += 1;
            self.held.push(self.names);
            volume.add_block(self.names);
        }
    }

    fn tidy(&mut self, volume: &mut Volume, mut moves: usize) {
        while moves > 0
            && let Some(moved) = volume.compact()
        {
            let value = self.bytes.remove(&moved.from).expect("what moves was written");
            assert_eq!(self.bytes.insert(moved.to, value), None, "nothing is overwritten by a move");
            moves -= 1;
        }
        while let Some(name) = volume.empty() {
            self.held.retain(|held| *held != name);
            self.bytes.retain(|chunk, _| chunk.block != name);
        }
    }
}

fn apply(step: &Step, volume: &mut Volume, memory: &mut Memory, model: &mut BTreeMap<u32, Result<u64, u64>>, n: u64) {
    match *step {
        Step::Write(first, count) => {
            for slot in first..first + count {
                let value = n << 32 | slot as u64;
                if memory.write(volume, slot, value) {
                    memory.written.insert(slot, n);
                    model.insert(slot, Ok(value));
                }
            }
        }
        Step::Fill(first, count, word) => {
            for slot in first..first + count {
                assert!(volume.fill(slot, word), "there are few words");
                memory.written.insert(slot, n);
                model.insert(slot, Err(word));
            }
        }
        Step::Trim(first, count) => {
            let mut at = first;
            while let Some(slot) = volume.next_used(at, first + count) {
                assert!(at <= slot && slot < first + count);
                volume.trim(slot);
                at = slot + 1;
            }
            model.retain(|slot, _| !(first..first + count).contains(slot));
        }
        Step::Thin(every) => (0..SLOTS).filter(|slot| slot % every != 0).for_each(|slot| {
            volume.trim(slot);
            model.remove(&slot);
        }),
        Step::Compact(moves) => memory.tidy(volume, moves),
        Step::Mark => memory.marks.push((volume.mark(), n)),
        Step::Freed(first, count, back) => {
            let Some(&(mark, at)) = memory.marks.iter().rev().nth(back) else { return };
            for slot in first..first + count {
                let is_old = model.contains_key(&slot) && memory.written[&slot] < at;
                assert_eq!(volume.freed(slot, mark), is_old || !model.contains_key(&slot), "slot {slot}");
                if is_old {
                    model.remove(&slot);
                }
            }
        }
    }
    // A freed chunk may be written by another: its old bytes must not be read again.
    memory.bytes.retain(|chunk, value| volume.look(*value as u32) == Content::At(*chunk));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn every_slot_reads_as_it_was_last_written(
        steps in proptest::collection::vec(step(), 1..40),
        most in 1..5usize,
    ) {
        let mut volume = Volume::new(SLOTS);
        let mut memory = Memory { most, ..Memory::default() };
        let mut model = BTreeMap::new();
        for (n, step) in steps.iter().enumerate() {
            apply(step, &mut volume, &mut memory, &mut model, n as u64);
            volume.check().map_err(TestCaseError::fail)?;
            for slot in 0..SLOTS {
                let expected = model.get(&slot);
                match volume.look(slot) {
                    Content::Empty => prop_assert_eq!(expected, None, "slot {}", slot),
                    Content::Filled(word) => prop_assert_eq!(expected, Some(&Err(word)), "slot {}", slot),
                    Content::At(chunk) => prop_assert_eq!(expected.cloned(), memory.bytes.get(&chunk).copied().map(Ok)),
                }
            }
        }
        // Left alone it becomes dense, and an empty one holds nothing.
        memory.tidy(&mut volume, usize::MAX);
        let usage = volume.usage();
        let needed = usage.live.div_ceil(BLOCK_CHUNKS);
        prop_assert!(!volume.is_sparse() && usage.blocks <= needed + needed / 20, "{:?}", usage);
        prop_assert_eq!(usage.blocks as usize, memory.held.len());
        (0..SLOTS).for_each(|slot| volume.trim(slot));
        memory.tidy(&mut volume, 0);
        prop_assert_eq!((volume.usage(), memory.held.len()), (Default::default(), 0));
    }
}

/// Marks are told apart by 16 bits. A slot may seem to be written later than it was, never earlier.
#[test]
fn a_slot_written_after_a_mark_stays_however_long_ago_that_is() {
    let mut volume = Volume::new(8);
    volume.add_block(1);
    assert!(volume.place(0).is_ok());
    let old = volume.mark();
    for _ in 0..70_000 {
        assert!(volume.fill(1, 7));
        volume.mark();
        assert!(volume.fill(2, 7));
    }
    assert!(!volume.freed(2, old) && !volume.freed(1, old), "written after the mark");
    let now = volume.mark();
    assert!(!volume.freed(0, u64::MAX) && !volume.freed(0, now + 1), "marks that are none");
    assert!(volume.freed(2, now) && volume.look(2) == Content::Empty);
    assert!(volume.freed(0, now - 3), "written long before");
}

/// A program of 64 MiB gives three pages of four back, at random: the held memory follows.
#[test]
fn memory_held_follows_memory_live() {
    let slots = 16384;
    let mut volume = Volume::new(slots);
    let mut memory = Memory { most: 64, ..Memory::default() };
    for slot in 0..slots {
        assert!(memory.write(&mut volume, slot, slot as u64));
    }
    assert_eq!((volume.usage().live, volume.usage().blocks), (slots, 32));
    let mut state = 1u64;
    for slot in 0..slots {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if state >> 62 != 0 {
            volume.trim(slot);
        }
    }
    memory.bytes.retain(|chunk, value| volume.look(*value as u32) == Content::At(*chunk));
    memory.tidy(&mut volume, usize::MAX);
    let usage = volume.usage();
    assert!(usage.live as f64 / (usage.blocks * BLOCK_CHUNKS) as f64 > 0.9, "{usage:?}");
    assert_eq!(volume.clear().len() as u32, usage.blocks);
    assert_eq!(volume.usage(), Default::default());
}
