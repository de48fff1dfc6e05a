//! Memory against a plain model: any sequence of operations, by any of several handles, over tcp
//! and shm.

mod common;

use common::{WAYS, builder, node};
use farmem::{Addr, Memory, Transport};
use proptest::prelude::*;
use proptest::sample::Index;
use std::time::Duration;

/// Bytes of a piece that are looked at.
const SEEN: usize = 4096;

#[derive(Clone, Debug)]
enum Step {
    Alloc {
        bytes: u64,
    },
    Free {
        which: Index,
    },
    Write {
        which: Index,
        at: u16,
        bytes: Vec<u8>,
    },
    Read {
        which: Index,
        at: u16,
        len: u16,
    },
    Swap {
        which: Index,
        word: u16,
        hits: bool,
        new: u64,
    },
    Add {
        which: Index,
        word: u16,
        add: u64,
    },
    Store {
        which: Index,
        word: u16,
        value: u64,
    },
    /// Adds to the same words of several pieces, with a read behind each.
    Batch {
        which: Vec<Index>,
        word: u16,
    },
    /// The same, posted.
    Posted {
        which: Vec<Index>,
        word: u16,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (which, place) = (any::<Index>, || 0..SEEN as u16);
    let word = || 0..(SEEN / 8) as u16;
    prop_oneof![
        3 => (1u64..=2 << 20).prop_map(|bytes| Step::Alloc { bytes }),
        2 => (1u64..=16 << 10).prop_map(|bytes| Step::Alloc { bytes }),
        3 => which().prop_map(|which| Step::Free { which }),
        4 => (which(), place(), prop::collection::vec(any::<u8>(), 0..300))
            .prop_map(|(which, at, bytes)| Step::Write { which, at, bytes }),
        4 => (which(), place(), 0u16..600).prop_map(|(which, at, len)| Step::Read { which, at, len }),
        2 => (which(), word(), any::<bool>(), any::<u64>())
            .prop_map(|(which, word, hits, new)| Step::Swap { which, word, hits, new }),
        2 => (which(), word(), any::<u64>()).prop_map(|(which, word, add)| Step::Add { which, word, add }),
        1 => (which(), word(), any::<u64>()).prop_map(|(which, word, value)| Step::Store { which, word, value }),
        1 => (prop::collection::vec(which(), 1..9), word()).prop_map(|(which, word)| Step::Batch { which, word }),
        1 => (prop::collection::vec(which(), 1..9), word()).prop_map(|(which, word)| Step::Posted { which, word }),
    ]
}

/// What the memory should be: each piece that is taken, and its first bytes.
#[derive(Default)]
struct Model(Vec<(Addr, Vec<u8>)>);

impl Model {
    fn word(&mut self, piece: usize, word: u16) -> &mut [u8] {
        &mut self.0[piece].1[8 * word as usize..][..8]
    }

    fn get(&mut self, piece: usize, word: u16) -> u64 {
        u64::from_le_bytes(self.word(piece, word).try_into().unwrap())
    }

    fn set(&mut self, piece: usize, word: u16, value: u64) {
        self.word(piece, word).copy_from_slice(&value.to_le_bytes());
    }

    fn add(&mut self, piece: usize, word: u16, add: u64) -> u64 {
        let old = self.get(piece, word);
        self.set(piece, word, old.wrapping_add(add));
        old
    }
}

fn carry_out(memory: &Memory, model: &mut Model, step: &Step) {
    let count = model.0.len();
    let at = |model: &Model, piece: usize, word: u16| model.0[piece].0 + 8 * u64::from(word);
    match step {
        Step::Alloc { bytes } => {
            let piece = memory.alloc_zeroed((*bytes).max(SEEN as u64)).unwrap();
            model.0.push((piece, vec![0; SEEN]));
        }
        _ if count == 0 => {}
        Step::Free { which } => memory.free(model.0.swap_remove(which.index(count)).0).unwrap(),
        Step::Write { which, at, bytes } => {
            let (piece, seen) = &mut model.0[which.index(count)];
            let bytes = &bytes[..bytes.len().min(SEEN - *at as usize)];
            memory.write(*piece + u64::from(*at), bytes).unwrap();
            seen[*at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        Step::Read { which, at, len } => {
            let (piece, seen) = &model.0[which.index(count)];
            let mut bytes = vec![0; (*len as usize).min(SEEN - *at as usize)];
            memory.read(*piece + u64::from(*at), &mut bytes).unwrap();
            assert_eq!(bytes, seen[*at as usize..][..bytes.len()]);
        }
        Step::Swap { which, word, hits, new } => {
            let piece = which.index(count);
            let old = model.get(piece, *word);
            let expected = if *hits { old } else { old ^ 1 };
            assert_eq!(memory.compare_swap(at(model, piece, *word), expected, *new), Ok(old));
            if *hits {
                model.set(piece, *word, *new);
            }
        }
        Step::Add { which, word, add } => {
            let piece = which.index(count);
            assert_eq!(memory.fetch_add(at(model, piece, *word), *add), Ok(model.add(piece, *word, *add)));
        }
        Step::Store { which, word, value } => {
            let piece = which.index(count);
            memory.store(at(model, piece, *word), *value).unwrap();
            model.set(piece, *word, *value);
            assert_eq!(memory.load(at(model, piece, *word)), Ok(*value));
        }
        Step::Batch { which, word } => {
            let places: Vec<usize> = which.iter().map(|which| which.index(count)).collect();
            let mut lane = memory.lane().unwrap();
            let mut batch = lane.batch();
            places.iter().for_each(|&piece| _ = batch.fetch_add(at(model, piece, *word), 7));
            let expected: Vec<_> = places.iter().map(|&piece| Ok(model.add(piece, *word, 7))).collect();
            assert_eq!(batch.run(), expected);
        }
        Step::Posted { which, word } => {
            let places: Vec<usize> = which.iter().map(|which| which.index(count)).collect();
            let (mut lane, mut done) = (memory.lane().unwrap(), Vec::new());
            let mut expected = Vec::new();
            for (tag, &piece) in (0..).zip(&places) {
                lane.post_fetch_add(tag, at(model, piece, *word), 9);
                expected.push(model.add(piece, *word, 9));
            }
            while lane.in_flight() > 0 {
                lane.wait(&mut done, Duration::from_secs(5));
            }
            done.sort_by_key(|completion| completion.tag);
            let found: Vec<u64> = done.into_iter().map(|completion| completion.result.unwrap()).collect();
            assert_eq!(found, expected);
        }
    }
}

/// Steps go to the handles in turns.
fn runs(handles: &[Memory], steps: &[Step]) {
    let mut model = Model::default();
    for (step, memory) in steps.iter().zip(handles.iter().cycle()) {
        carry_out(memory, &mut model, step);
    }
    for memory in handles {
        let mut taken: Vec<Addr> = memory.pieces().unwrap().into_iter().map(|piece| piece.at).collect();
        let mut expected: Vec<Addr> = model.0.iter().map(|(piece, _)| *piece).collect();
        taken.sort();
        expected.sort();
        assert_eq!(taken, expected);
    }
    for (piece, seen) in &model.0 {
        let mut bytes = vec![0; SEEN];
        handles[0].read(*piece, &mut bytes).unwrap();
        assert!(bytes == *seen, "{piece}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn private_memory_is_as_the_model(steps in prop::collection::vec(step(), 1..120)) {
        for way in WAYS {
            let (a, b) = (node(4), node(4));
            let memory = builder(&[&a, &b], way).connect().unwrap();
            runs(&[memory.clone(), memory], &steps);
        }
    }

    #[test]
    fn a_region_is_as_the_model_to_all_its_openers(steps in prop::collection::vec(step(), 1..120)) {
        let (a, b) = (node(4), node(4));
        let open = |way| builder(&[&a, &b], way).region("model").create(true).connect().unwrap();
        runs(&[open(Transport::Tcp), open(Transport::Shm), open(Transport::Tcp)], &steps);
    }
}
