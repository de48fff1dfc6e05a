//! A copy of a block at another node.
//!
//! It is made in parts while the program goes on. Then the program's key ends, the block is read
//! once more, and the parts that differ are written again.

// Verbs whose buffer is one of this file's.
#![allow(unsafe_code)]

use crate::windows::finish;
use crate::word::{BLOCK_BYTES, Refusal};
use farmem_fabric::QueuePair;
use farmem_protocol::key::Key;

/// Bytes of one READ or WRITE.
const PART: usize = 64 << 10;
/// Bytes that are copied before others may use the queue pairs.
const TOGETHER: usize = 4 * PART;

/// The first bytes of a block, which its copy has by now.
#[derive(Default)]
pub(crate) struct Copied(Vec<u8>);

impl Copied {
    pub fn is_whole(&self) -> bool {
        self.0.len() as u64 >= BLOCK_BYTES
    }

    /// Copies the next bytes. By queue pairs of the agent's with nothing under way, as below.
    pub fn extend(&mut self, [from, to]: [&mut QueuePair; 2], [old, new]: [Key; 2]) -> Result<(), Refusal> {
        let at = self.0.len();
        let bytes = read(from, old, at, TOGETHER.min(BLOCK_BYTES as usize - at))?;
        let bytes = write(to, new, at, bytes, |_, _| true)?;
        self.0.extend_from_slice(&bytes);
        Ok(())
    }

    /// Reads the whole block, and writes the parts that differ from what the copy has.
    pub fn renew(&self, [from, to]: [&mut QueuePair; 2], [old, new]: [Key; 2]) -> Result<(), Refusal> {
        let bytes = read(from, old, 0, BLOCK_BYTES as usize)?;
        write(to, new, 0, bytes, |at, part| self.0.get(at..).is_none_or(|had| !had.starts_with(part))).map(drop)
    }
}

/// Reads bytes of a block.
fn read(queue: &mut QueuePair, key: Key, from: usize, len: usize) -> Result<Vec<u8>, Refusal> {
    let mut bytes = vec![0u8; len];
    for (tag, part) in bytes.chunks_mut(PART).enumerate() {
        // SAFETY: a part of the buffer, which outlives the verbs: they are awaited below. If the node
        // is lost meanwhile, the buffer is leaked.
        unsafe { queue.read(tag as u64, key, (from + tag * PART) as u64, part.as_mut_ptr(), part.len() as u32) };
    }
    done(queue, len.div_ceil(PART), bytes)
}

/// Writes those parts of the bytes that are chosen, to a block from its byte `to` on. Returns them.
fn write(
    queue: &mut QueuePair,
    key: Key,
    to: usize,
    bytes: Vec<u8>,
    chosen: impl Fn(usize, &[u8]) -> bool,
) -> Result<Vec<u8>, Refusal> {
    let mut verbs = 0;
    for (nth, part) in bytes.chunks(PART).enumerate().filter(|(nth, part)| chosen(to + nth * PART, part)) {
        // SAFETY: as above.
        unsafe { queue.write(verbs as u64, key, (to + nth * PART) as u64, part.as_ptr(), part.len() as u32) };
        verbs += 1;
    }
    done(queue, verbs, bytes)
}

/// Awaits this many verbs on a buffer, and returns it.
fn done(queue: &mut QueuePair, verbs: usize, buffer: Vec<u8>) -> Result<Vec<u8>, Refusal> {
    match finish(queue, verbs) {
        Ok(results) if results.iter().all(Result::is_ok) => Ok(buffer),
        Ok(_) => Err(Refusal::System),
        Err(_) => {
            std::mem::forget(buffer);
            Err(Refusal::Lost)
        }
    }
}
