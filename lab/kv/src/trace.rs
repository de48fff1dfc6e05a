//! A trace of an inference service: which blocks of a prompt's cache are there, and what it takes
//! to fetch and store them.
//!
//! A request names the blocks of its prompt in their order. Blocks are of use up to the first that
//! is missing. Those are fetched, the others are computed and stored. So the hit rate counts the
//! blocks of the prefix that was found.

use std::io::BufRead;
use std::path::Path;
use std::time::Instant;

use crate::generator::Reach;
use crate::systems::{self, Running, Settings, System};
use crate::wire::Socket;
use anyhow::{Context, Result, ensure};
use farmem_kit::supervise;
use farmem_kv::{Act, Op, Outcome, Store};
use serde::{Deserialize, Serialize};

/// A line of a trace.
#[derive(Clone, Debug, Deserialize)]
pub struct Request {
    /// Blocks of the prompt.
    pub hash_ids: Vec<u64>,
}

/// What a replay found.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Replayed {
    /// Blocks that were asked for.
    pub blocks: u64,
    /// Blocks that were of use.
    pub hits: u64,
    /// Seconds.
    pub seconds: f64,
    /// Bytes fetched and stored, a second.
    pub bytes_s: f64,
}

/// Reads a trace: lines of JSON.
///
/// # Errors
/// The file cannot be read, or a line is none of a trace.
pub fn read(path: &Path) -> Result<Vec<Request>> {
    let file = std::fs::File::open(path).with_context(|| format!("{}", path.display()))?;
    let mut requests = Vec::new();
    for (n, line) in std::io::BufReader::new(file).lines().enumerate() {
        let wrong = || format!("{}, line {}: not a request with hash_ids; unpack it first", path.display(), n + 1);
        requests.push(serde_json::from_str(&line.with_context(wrong)?).with_context(wrong)?);
    }
    ensure!(!requests.is_empty(), "{} is empty", path.display());
    Ok(requests)
}

/// Distinct blocks of a trace.
pub fn distinct(requests: &[Request]) -> u64 {
    let ids = requests.iter().flat_map(|request| &request.hash_ids);
    ids.collect::<std::collections::HashSet<_>>().len() as u64
}

/// A system that keeps blocks.
trait Blocks {
    /// Fetches blocks: the bytes of each that is there.
    fn fetch(&mut self, ids: &[u64]) -> Result<Vec<Option<usize>>>;
    /// Stores blocks.
    fn store(&mut self, ids: &[u64], block: &[u8]) -> Result<()>;
}

fn key(id: u64) -> String {
    format!("block{id}")
}

struct Embedded {
    store: Store,
    into: Vec<u8>,
}

impl Blocks for Embedded {
    fn fetch(&mut self, ids: &[u64]) -> Result<Vec<Option<usize>>> {
        let ops = ids.iter().map(|&id| Op { key: key(id).into_bytes(), act: Act::GetBlock });
        let mut found = Vec::new();
        for outcome in self.store.batch(ops)? {
            found.push(match outcome? {
                // Copied, as an engine does that has memory of its own for blocks.
                Outcome::Block(block) => {
                    self.into.clear();
                    block.parts().for_each(|part| self.into.extend_from_slice(part));
                    Some(block.len())
                }
                _ => None,
            });
        }
        Ok(found)
    }

    fn store(&mut self, ids: &[u64], block: &[u8]) -> Result<()> {
        let act = || Act::PutBlock { block: block.to_vec(), expiry: None };
        let ops = ids.iter().map(|&id| Op { key: key(id).into_bytes(), act: act() });
        self.store.batch(ops)?.into_iter().try_for_each(|outcome| Ok(outcome.map(drop)?))
    }
}

impl Blocks for Socket {
    fn fetch(&mut self, ids: &[u64]) -> Result<Vec<Option<usize>>> {
        self.get_any(&ids.iter().map(|&id| key(id)).collect::<Vec<_>>())
    }

    fn store(&mut self, ids: &[u64], block: &[u8]) -> Result<()> {
        self.set_any(&ids.iter().map(|&id| key(id)).collect::<Vec<_>>(), block)
    }
}

/// Blocks that are under way at a time.
const TOGETHER: usize = 32;

/// Replays a trace on a system.
///
/// # Errors
/// As the system's.
pub fn replay(system: System, settings: &Settings, requests: &[Request], bytes: usize) -> Result<Replayed> {
    let running = systems::start(system, settings, None)?;
    // Declared behind the system, so it leaves before the system ends.
    let mut blocks = blocks(&running, settings.maxmemory)?;
    let block: Vec<u8> = (0..bytes).map(|n| (n * 31) as u8).collect();
    let (begun, mut found, mut moved) = (Instant::now(), Replayed::default(), 0u64);
    for request in requests {
        supervise::interrupted()?;
        let mut there = 0;
        for some in request.hash_ids.chunks(TOGETHER) {
            let lengths = blocks.fetch(some)?;
            ensure!(lengths.iter().flatten().all(|&len| len == bytes), "a block has another length than was stored");
            moved += (lengths.iter().flatten().count() * bytes) as u64;
            let hits = lengths.iter().take_while(|length| length.is_some()).count();
            there += hits;
            if hits < some.len() {
                break;
            }
        }
        for some in request.hash_ids[there..].chunks(TOGETHER) {
            blocks.store(some, &block)?;
            moved += (some.len() * bytes) as u64;
        }
        found.blocks += request.hash_ids.len() as u64;
        found.hits += there as u64;
    }
    found.seconds = begun.elapsed().as_secs_f64();
    found.bytes_s = moved as f64 / found.seconds;
    Ok(found)
}

fn blocks(running: &Running<'_>, maxmemory: Option<u64>) -> Result<Box<dyn Blocks>> {
    match running.ways.first() {
        Some(&Reach::Port(protocol, port)) => Ok(Box::new(Socket::connect(protocol, port)?)),
        Some(Reach::Library { node, local }) => {
            Ok(Box::new(Embedded { store: systems::store(*local, maxmemory, node)?, into: Vec::new() }))
        }
        None => anyhow::bail!("the system has no way to it"),
    }
}
