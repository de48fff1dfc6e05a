//! Chunks with windows from a node that offers them, by whichever strategy it does
//! ([`crate::offer`]): one interface, so that they can be compared.

// READs and replies go to buffers here.
#![allow(unsafe_code)]

use crate::offer::{Strategy, USED_UP};
use farmem_fabric::{Lost, QueuePair, Refusal};
use farmem_protocol::key::Key;
use farmem_protocol::wire::REPLY_BYTES;
use farmem_protocol::wire::variant;
use std::time::Duration;

/// The node's queue that takes SENDs asking for a chunk with its windows.
pub const TAKE: Key = Key::service(1);
/// The node's queue that takes SENDs giving a chunk back.
pub const GIVE: Key = Key::service(2);
/// The service that says what is offered.
pub const DESCRIBE: Key = Key::service(3);
/// How often a lost CAS is tried again.
const RETRIES: u32 = 64;

/// Why there is no chunk, or it cannot be given back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// The node is gone.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// All are taken.
    #[error("the node has no chunk left: give some back, or ask another")]
    Empty,
    /// Others were faster, or the node has not come by to make keys anew: again, a little later.
    #[error("not now: try again a little later")]
    Busy,
    /// It is not this queue pair's to give, or nothing is offered.
    #[error("refused: {0}")]
    Refused(Refusal),
}

impl From<Refusal> for ChunkError {
    fn from(refusal: Refusal) -> ChunkError {
        match refusal {
            Refusal::Empty => ChunkError::Empty,
            other => ChunkError::Refused(other),
        }
    }
}

/// A chunk held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// By which READ and WRITE reach it.
    pub key: Key,
    /// Bytes.
    pub bytes: u64,
    /// How it is named when it is given back.
    name: u64,
}

/// Takes chunks and gives them back, through one queue pair, which also uses them.
pub struct Chunks {
    strategy: Strategy,
    bytes: u64,
    count: u64,
    table: Key,
    keys_at: u64,
    windows_at: u64,
    /// Prebound: where to look next, and the map's words as last seen.
    cursor: u64,
    map: Vec<u64>,
    /// Verbs so far.
    pub verbs: u64,
}

impl Chunks {
    /// What the node offers.
    pub fn open(queue: &mut QueuePair) -> Result<Chunks, ChunkError> {
        let reply = say(queue, DESCRIBE, &[])?;
        let field = |n| word(&reply, n);
        let Some(strategy) = variant::<Strategy>(field(0)) else { return Err(ChunkError::Refused(Refusal::Access)) };
        let map = vec![0; field(2).div_ceil(64) as usize];
        let cursor = queue.number().wrapping_mul(0x9E37_79B9_7F4A_7C15) % field(2).max(1);
        Ok(Chunks {
            strategy,
            bytes: field(1),
            count: field(2),
            table: Key(field(3)),
            keys_at: field(4),
            windows_at: field(5),
            cursor,
            map,
            verbs: 0,
        })
    }

    /// By which strategy.
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// A chunk: whatever its last owner wrote is gone, except where the strategy is [`Strategy::Prebound`].
    pub fn take(&mut self, queue: &mut QueuePair) -> Result<Chunk, ChunkError> {
        if self.strategy == Strategy::Prebound {
            return self.take_prebound(queue);
        }
        self.verbs += 1;
        let mine = queue.number();
        let said: Vec<u8> = [mine; 3].iter().flat_map(|n| n.to_le_bytes()).collect();
        let reply = say(queue, TAKE, &said)?;
        // Of the group that a chain binds, the second is for access; an RPC binds one.
        let (key, name) = match self.strategy {
            Strategy::Offloaded => (Key(word(&reply, 2)), (word(&reply, 6) & 0xff_ffff_ffff) >> 8),
            _ => (Key(word(&reply, 0)), word(&reply, 6)),
        };
        Ok(Chunk { key, bytes: self.bytes, name })
    }

    /// Gives a chunk back, that was taken through this queue pair.
    pub fn give(&mut self, queue: &mut QueuePair, chunk: Chunk) -> Result<(), ChunkError> {
        if self.strategy == Strategy::Prebound {
            return self.give_prebound(queue, chunk);
        }
        self.verbs += 1;
        say(queue, GIVE, &(chunk.name as u32).to_le_bytes())?;
        Ok(())
    }

    /// CAS of the map, READ of the key: with what was last seen of the map in mind.
    fn take_prebound(&mut self, queue: &mut QueuePair) -> Result<Chunk, ChunkError> {
        for _ in 0..RETRIES {
            let Some(chunk) = self.seems_free() else {
                // All taken, for all that is known: look.
                for at in 0..self.map.len() {
                    self.map[at] = self.read(queue, 8 * at as u64)?;
                }
                if self.seems_free().is_none() {
                    return Err(ChunkError::Empty);
                }
                continue;
            };
            let (at, bit) = ((chunk / 64) as usize, 1 << (chunk % 64));
            let found = self.cas(queue, 8 * at as u64, self.map[at], self.map[at] | bit)?;
            if found != self.map[at] {
                self.map[at] = found;
                continue;
            }
            self.map[at] |= bit;
            self.cursor = (chunk + 1) % self.count;
            let main = (self.read(queue, self.keys_at + 8 * chunk)? >> 32) as u32;
            let windows = self.read(queue, self.windows_at + 8 * chunk)?;
            let index = (windows >> (32 * (1 - (main >> 31)))) as u32;
            return Ok(Chunk { key: Key::window(index, main & !(1 << 31)), bytes: self.bytes, name: chunk });
        }
        Err(ChunkError::Busy)
    }

    fn seems_free(&self) -> Option<u64> {
        let free = |&chunk: &u64| self.map[(chunk / 64) as usize] >> (chunk % 64) & 1 == 0;
        (self.cursor..self.count).chain(0..self.cursor).find(free)
    }

    /// CAS of the keys, backup in main's place; CAS of the map.
    fn give_prebound(&mut self, queue: &mut QueuePair, chunk: Chunk) -> Result<(), ChunkError> {
        let keys = self.read(queue, self.keys_at + 8 * chunk.name)?;
        let backup = keys as u32;
        if backup == USED_UP {
            return Err(ChunkError::Busy);
        }
        let rotated = (backup as u64) << 32 | USED_UP as u64;
        if self.cas(queue, self.keys_at + 8 * chunk.name, keys, rotated)? != keys {
            return Err(ChunkError::Busy);
        }
        let (at, bit) = ((chunk.name / 64) as usize, 1 << (chunk.name % 64));
        for _ in 0..RETRIES {
            let found = self.cas(queue, 8 * at as u64, self.map[at], self.map[at] & !bit)?;
            let done = found == self.map[at];
            self.map[at] = if done { found & !bit } else { found };
            if done {
                return Ok(());
            }
        }
        Err(ChunkError::Busy)
    }

    fn read(&mut self, queue: &mut QueuePair, offset: u64) -> Result<u64, ChunkError> {
        self.verbs += 1;
        let mut word = [0u8; 8];
        // SAFETY: the word outlives the verb, which is awaited below.
        unsafe { queue.read(0, self.table, offset, word.as_mut_ptr(), 8) };
        finish(queue)?;
        Ok(u64::from_le_bytes(word))
    }

    fn cas(&mut self, queue: &mut QueuePair, offset: u64, old: u64, new: u64) -> Result<u64, ChunkError> {
        self.verbs += 1;
        queue.cas(0, self.table, offset, old, new);
        finish(queue)
    }
}

fn say(queue: &mut QueuePair, service: Key, said: &[u8]) -> Result<[u8; REPLY_BYTES as usize], ChunkError> {
    let mut reply = [0; REPLY_BYTES as usize];
    // SAFETY: the reply outlives the verb, which is awaited below.
    unsafe { queue.send(0, service, said, reply.as_mut_ptr()) };
    finish(queue)?;
    Ok(reply)
}

fn finish(queue: &mut QueuePair) -> Result<u64, ChunkError> {
    queue.doorbell()?;
    let mut done = Vec::new();
    while done.is_empty() {
        queue.wait(&mut done, Duration::from_secs(1))?;
    }
    Ok(done[0].result?)
}

fn word(reply: &[u8], n: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| reply[8 * n + byte]))
}
