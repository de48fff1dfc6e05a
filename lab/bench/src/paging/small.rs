//! Programs whose memory fits into `--local`: what does farmem cost when it is not needed?
//!
//! Three, each a second or so, each printing a checksum that must be the same
//! under every system:
//!
//! | | |
//! |---|---|
//! | join | build a hash table, probe it: large allocations, random access |
//! | sort | sort numbers: streaming access, one allocation |
//! | churn | a list of a million nodes, walked, thinned and refilled: allocator and pointers |

use farmem_protocol::random::Random;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Which.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Which {
    /// Hash join.
    Join,
    /// Sort.
    Sort,
    /// Linked list under allocation and freeing.
    Churn,
}

/// What to do.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Which
    #[arg(value_enum)]
    which: Which,
    /// Bytes of its largest structure, about
    #[arg(long)]
    bytes: usize,
    /// Where its data comes from
    #[arg(long)]
    seed: u64,
    /// Print the result alone, the same on every run
    #[arg(long)]
    pub checksum_only: bool,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Work {
    /// From first allocation to last free, ns. Starting the process is not in it.
    pub work_ns: u64,
    /// Of the result.
    pub checksum: u64,
}

/// Runs it.
///
/// # Errors
/// None today.
pub fn run(options: &Options) -> anyhow::Result<Work> {
    let begun = Instant::now();
    let mut draw = Random::new(options.seed);
    let checksum = match options.which {
        Which::Join => join(options.bytes, &mut draw),
        Which::Sort => sort(options.bytes, &mut draw),
        Which::Churn => churn(options.bytes, &mut draw),
    };
    Ok(Work { work_ns: begun.elapsed().as_nanos() as u64, checksum })
}

/// Multiplication by an odd constant: the same table on every run, unlike the standard library's keyed hash.
#[derive(Default)]
struct Multiply(u64);

impl Hasher for Multiply {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

fn join(bytes: usize, draw: &mut Random) -> u64 {
    let rows = bytes / 24;
    let mut table: HashMap<u64, u64, BuildHasherDefault<Multiply>> = HashMap::default();
    for row in 0..rows {
        table.insert(draw.index(rows) as u64, row as u64);
    }
    (0..rows * 2).map(|_| table.get(&(draw.index(rows) as u64)).copied().unwrap_or(1)).fold(0, u64::wrapping_add)
}

fn sort(bytes: usize, draw: &mut Random) -> u64 {
    let mut numbers: Vec<u64> = (0..bytes / 8).map(|_| draw.bits()).collect();
    numbers.sort_unstable();
    numbers.iter().enumerate().fold(0, |sum, (at, number)| sum ^ number.rotate_left(at as u32))
}

fn churn(bytes: usize, draw: &mut Random) -> u64 {
    /// Nodes of 32 to 288 bytes, so that freed ones rarely fit the next.
    struct Node {
        next: usize,
        payload: Box<[u8]>,
    }
    let nodes = (bytes / 200).max(2);
    let node = |next, draw: &mut Random| {
        let len = 32 + draw.index(256);
        Some(Box::new(Node { next, payload: vec![next as u8; len].into_boxed_slice() }))
    };
    // One cycle through all of them, in random order (Sattolo's shuffle).
    let mut next: Vec<usize> = (0..nodes).collect();
    for at in (1..nodes).rev() {
        next.swap(at, draw.index(at));
    }
    let mut list: Vec<Option<Box<Node>>> = next.iter().map(|&next| node(next, draw)).collect();
    let mut sum = 0u64;
    for round in 0..3 {
        let mut at = round % nodes;
        for _ in 0..nodes {
            let Some(node) = &list[at] else { break };
            sum = sum.wrapping_mul(31).wrapping_add(u64::from(node.payload[node.payload.len() / 2]));
            at = node.next;
        }
        for _ in 0..nodes / 2 {
            let at = draw.index(nodes);
            list[at] = None;
            list[at] = node(next[at], draw);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_result() {
        for which in [Which::Join, Which::Sort, Which::Churn] {
            let run = || run(&Options { which, bytes: 1 << 20, seed: 3, checksum_only: false }).unwrap().checksum;
            assert_eq!(run(), run(), "{which:?}");
            assert_ne!(run(), 0, "{which:?}");
        }
    }
}
