//! The web front, AIFM's at a hundredth of its size: a request looks 32 keys up, and compresses the
//! block of 8 KiB that their values choose.
//!
//! | | of the store's bytes |
//! |---|---|
//! | pairs of a key of 12 bytes and a value of 4, drawn by Zipf's law with exponent 0.85 | 3/8, with what the map adds |
//! | blocks, drawn evenly | 5/8 |

use std::collections::HashMap;

use anyhow::Result;
use farmem_objects::{FarHashMap, FarVec, Heap};

use super::{Places, best};

/// Keys of a request.
const KEYS: usize = 32;
/// Words of half a block: a far object of 4 KiB.
const HALF: usize = 512;
/// The exponent of Zipf's law.
const SKEW: f64 = 0.85;

type Key = [u32; 3];
type Half = [u64; HALF];

/// How many pairs and blocks there are, and the keys of all requests.
struct Front {
    pairs: usize,
    blocks: usize,
    requests: Vec<[u32; KEYS]>,
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
        let requests = (0..accesses.div_ceil(KEYS)).map(|_| std::array::from_fn(|_| rank())).collect();
        Front { pairs, blocks, requests }
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
    let Front { pairs, blocks, requests } = Front::new(objects, accesses, seed);
    let map: HashMap<Key, u32> = (0..pairs as u32).map(|n| (key(n), value(n))).collect();
    let halves: Vec<Half> = (0..2 * blocks).map(half).collect();
    let (mut block, mut packed) = (Vec::new(), vec![0; 2 * HALF * 16]);
    best(2, requests.len(), || {
        let mut sum = 0u64;
        for request in &requests {
            let values = request.iter().map(|&n| u64::from(map.get(&key(n)).copied().unwrap_or_default()));
            let chosen = values.fold(0u64, u64::wrapping_add) as usize % blocks;
            let found = [&halves[2 * chosen], &halves[2 * chosen + 1]];
            sum = sum.wrapping_add(chosen as u64 + compressed(found, &mut block, &mut packed)?);
        }
        Ok(sum)
    })
}

/// The same of a far map and a far vector. The keys of a request are asked for together, and so are
/// the halves of its block.
pub fn far(heap: &Heap, objects: usize, accesses: usize, seed: u64) -> Result<(f64, u64)> {
    let Front { pairs, blocks, requests } = Front::new(objects, accesses, seed);
    let mut map: FarHashMap<Key, u32> = heap.map();
    for n in 0..pairs as u32 {
        map.insert(key(n), value(n))?;
    }
    let mut halves: FarVec<Half> = heap.vec();
    (0..2 * blocks).try_for_each(|n| halves.push(half(n)))?;
    let (mut block, mut packed) = (Vec::new(), vec![0; 2 * HALF * 16]);
    best(2, requests.len(), || {
        let mut sum = 0u64;
        for request in &requests {
            let scope = heap.scope();
            let found = map.get_many(&request.map(key), &scope)?;
            let values = found.into_iter().map(|value| u64::from(value.copied().unwrap_or_default()));
            let chosen = values.fold(0u64, u64::wrapping_add) as usize % blocks;
            let found = halves.get_many(&[2 * chosen, 2 * chosen + 1], &scope)?;
            sum = sum.wrapping_add(chosen as u64 + compressed([found[0], found[1]], &mut block, &mut packed)?);
        }
        Ok(sum)
    })
}
