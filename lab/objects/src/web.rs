//! The web front, AIFM's at a hundredth of its size: a request looks 32 keys up, and compresses the
//! block of 8 KiB that their values choose.
//!
//! | | of the store's bytes |
//! |---|---|
//! | pairs of a key of 12 bytes and a value of 4, drawn by Zipf's law with exponent 0.85 | 3/8, with what the map adds |
//! | blocks, drawn evenly | 5/8 |
//!
//! Each pass has requests of its own: those of one pass fit into a quarter of memory, whatever holds it,
//! and would be there when they are asked again. The far front has many requests under way, as AIFM's has
//! by its threads.

use std::cell::RefCell;
use std::collections::HashMap;

use anyhow::{Context, Result};
use farmem_objects::{FarHashMap, FarVec, Heap};

use super::{Places, best};

/// Keys of a request.
const KEYS: usize = 32;
/// Words of half a block: a far object of 4 KiB.
const HALF: usize = 512;
/// Passes. The first one finds nothing local that a request asked for.
const PASSES: usize = 3;
/// The exponent of Zipf's law.
const SKEW: f64 = 0.85;

type Key = [u32; 3];
type Half = [u64; HALF];

/// How many pairs and blocks there are, and the keys of all requests, by passes.
struct Front {
    pairs: usize,
    blocks: usize,
    passes: Vec<Vec<[u32; KEYS]>>,
}

impl Front {
    fn new(objects: usize, accesses: usize, seed: u64) -> Front {
        let (pairs, blocks) = (objects * 3 / 10, objects * 64 / 8 * 5 / (8 << 10));
        let mut sum = 0.0;
        let weights = (1..=pairs).map(|rank| {
            sum += (rank as f64).powf(-SKEW);
            sum
        });
        let until: Vec<f64> = weights.collect();
        let mut places = Places(seed);
        let mut rank = || {
            let at = places.next(1 << 30) as f64 / (1u64 << 30) as f64 * sum;
            // Neighbours by rank are not neighbours in the map: it hashes.
            until.partition_point(|&weight| weight < at).min(pairs - 1) as u32
        };
        let mut pass = || (0..accesses.div_ceil(KEYS)).map(|_| std::array::from_fn(|_| rank())).collect();
        let passes = (0..PASSES).map(|_| pass()).collect();
        Front { pairs, blocks, passes }
    }

    /// Time of a request, ns, the least of the passes', and what the last pass read.
    fn measured(&self, mut each: impl FnMut(&[[u32; KEYS]]) -> Result<u64>) -> Result<(f64, u64)> {
        let mut passes = self.passes.iter();
        best(PASSES, self.passes[0].len(), || each(passes.next().context("a pass more")?))
    }
}

fn key(n: u32) -> Key {
    [n, n.wrapping_mul(0x9E37_79B9), !n]
}

fn value(n: u32) -> u32 {
    n.wrapping_mul(0x85EB_CA6B) >> 7
}

/// Half of what a block has can be compressed.
fn half(n: usize) -> Half {
    let mixed = |word: usize| ((n * HALF + word) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    std::array::from_fn(|word| if word % 2 == 0 { n as u64 } else { mixed(word) })
}

/// Compresses a block. Returns its compressed length.
fn compressed(halves: [&Half; 2], block: &mut Vec<u8>, packed: &mut [u8]) -> Result<u64> {
    block.clear();
    halves.into_iter().flatten().for_each(|word| block.extend_from_slice(&word.to_le_bytes()));
    Ok(lz4_flex::block::compress_into(block, packed)? as u64)
}

/// Time of a request, ns, and what was read, of near memory.
pub fn near(objects: usize, accesses: usize, seed: u64) -> Result<(f64, u64)> {
    let front = Front::new(objects, accesses, seed);
    let Front { pairs, blocks, .. } = front;
    let map: HashMap<Key, u32> = (0..pairs as u32).map(|n| (key(n), value(n))).collect();
    let halves: Vec<Half> = (0..2 * blocks).map(half).collect();
    let (mut block, mut packed) = (Vec::new(), vec![0; 2 * HALF * 16]);
    front.measured(|requests| {
        let mut sum = 0u64;
        for request in requests {
            let values = request.iter().map(|&n| u64::from(map.get(&key(n)).copied().unwrap_or_default()));
            let chosen = values.fold(0u64, u64::wrapping_add) as usize % blocks;
            let found = [&halves[2 * chosen], &halves[2 * chosen + 1]];
            sum = sum.wrapping_add(chosen as u64 + compressed(found, &mut block, &mut packed)?);
        }
        Ok(sum)
    })
}

/// The same of a far map and a far vector. A request is a task: others go on while it waits.
pub fn far(heap: &Heap, objects: usize, accesses: usize, seed: u64) -> Result<(f64, u64)> {
    let front = Front::new(objects, accesses, seed);
    let Front { pairs, blocks, .. } = front;
    let mut map: FarHashMap<Key, u32> = heap.map();
    for n in 0..pairs as u32 {
        map.insert(key(n), value(n))?;
    }
    let mut halves: FarVec<Half> = heap.vec();
    (0..2 * blocks).try_for_each(|n| halves.push(half(n)))?;
    let buffers = RefCell::new((Vec::new(), vec![0; 2 * HALF * 16]));
    let answer = async |request: &[u32; KEYS]| -> Result<u64> {
        let scope = heap.scope();
        let mut sum = 0u64;
        for &n in request {
            sum = sum.wrapping_add(map.load(&key(n), &scope).await?.map_or(0, |&value| value.into()));
        }
        let chosen = sum as usize % blocks;
        let found = [halves.load(2 * chosen, &scope).await?, halves.load(2 * chosen + 1, &scope).await?];
        let (block, packed) = &mut *buffers.borrow_mut();
        Ok(chosen as u64 + compressed(found, block, packed)?)
    };
    front.measured(|requests| {
        let answers = heap.join(requests.iter().map(answer));
        answers.into_iter().try_fold(0u64, |sum, one| Ok(sum.wrapping_add(one?)))
    })
}
