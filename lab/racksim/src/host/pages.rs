//! What a host's pages hold, and how one value becomes another.

use farmem_pool::Change;
use farmem_protocol::addr::PAGE_BYTES;
use farmem_protocol::lines::{LINE_BYTES, LINES};
use farmem_sys::lines::Hasher;

/// The key of the hashes of pages' lines.
pub const SEED: [u8; 16] = [3; 16];
/// Words of a line.
const WORDS: usize = LINE_BYTES / 8;

type Page = [u64; PAGE_BYTES / 8];

/// The bytes of a page that has this value. The value is in three lines, and two of them are chosen
/// by the value. So two values differ in few lines.
pub fn bytes(value: u64) -> Box<Page> {
    let lines = [0, value as usize % LINES, (value >> 3) as usize * 7 % LINES];
    let names = |at: usize| lines.contains(&(at / WORDS));
    Box::new(std::array::from_fn(|at| if names(at) { value ^ at as u64 } else { !at as u64 }))
}

/// How a page of one value becomes one of another.
pub fn change(hasher: &Hasher, from: u64, to: u64) -> Change {
    let (old, new) = (bytes(from), bytes(to));
    let differs = |line: &usize| old[line * WORDS..][..WORDS] != new[line * WORDS..][..WORDS];
    let lines = (0..LINES).filter(differs).fold(0, |lines, line| lines | 1 << line);
    let line = |line: usize| std::array::from_fn(|at| old[line * WORDS + at / 8].to_le_bytes()[at % 8]);
    Change { lines, was: hasher.sum_with(lines, line) }
}

const _: () = assert!(WORDS * 8 == LINE_BYTES);
