//! How a front end connects to its store's region: to the nodes that are there, and which are not made
//! or not filled.

use super::check::is_elsewhere;
use super::mend::ATTEMPT_WORD;
use super::open::{Config, DOUBT, Failed, alone};
use crate::drive::Drive;
use crate::layout::{NODE_SHIFT, Pair, Stage, head, word};
use crate::shard::member::NotOpened;
use crate::task::Io;
use farmem::{Memory, RegionError};
use farmem_sys::process;
use std::time::Duration;

/// How this front end connects to nodes of its region.
pub(crate) fn builder(config: &Config, timeout: Duration, run: [u8; 16]) -> farmem::Builder {
    let builder = Memory::builder().transport(config.transport).timeout(timeout).grace(config.grace);
    builder.trust(config.trust).region(&config.name).run(run)
}

/// Connects, and makes the region at nodes that do not have it. Notes these in the drive.
fn connect_or_make(config: &Config, builder: farmem::Builder) -> Result<(Memory, Vec<String>), Failed> {
    match builder.clone().connect() {
        // It is there, or a front end makes it just now.
        Err(farmem::Error::Region(RegionError::Unknown { .. }) | farmem::Error::Foreign { .. }) => {}
        found => return Ok((found?, Vec::new())),
    }
    let mut made = Vec::new();
    for node in &config.nodes {
        let there = Memory::builder().trust(config.trust).node(node).regions()?;
        if !there.iter().any(|region| region.name == config.name) {
            made.push(node.clone());
        }
    }
    match builder.create(true).connect() {
        Ok(memory) => Ok((memory, made)),
        Err(failed) => {
            unmake(config, &made);
            Err(failed.into())
        }
    }
}

/// Removes regions that this front end has made for a store that it could not open, if nobody else has
/// begun to use them. A store that holds a key, or did, has more than its root.
pub(super) fn unmake(config: &Config, made: &[String]) {
    for node in made {
        let at = || Memory::builder().trust(config.trust).timeout(DOUBT).node(node);
        let is_empty = match at().region(&config.name).partial(true).connect() {
            Ok(memory) => memory.pieces().is_ok_and(|pieces| pieces.len() <= 1),
            Err(failed) => matches!(failed, farmem::Error::Foreign { .. } | farmem::Error::Range { .. }),
        };
        if is_empty {
            // What stays is told by farmem region ls.
            let _ = at().remove_unused_region(&config.name);
        }
    }
}

pub(super) fn connect(config: &Config, create: bool, timeout: Duration) -> Result<Drive, Failed> {
    let mut run = [0; 16];
    process::random_bytes(&mut run).map_err(|e| Failed::System { what: "random numbers", reason: e.to_string() })?;
    let builder = config.nodes.iter().fold(builder(config, timeout, run), |builder, node| builder.node(node));
    let named = config.nodes.len();
    let drive = |memory: Memory| Ok(Drive::new(memory, config.mirror, named)?.known_as(run));
    if !config.mirror {
        if create && named > 1 && is_elsewhere(builder.clone().partial(true).connect(), named)? {
            // Some of the named nodes have no part of a store that is there. They are not given
            // one.
            return match builder.create(false).connect() {
                Err(farmem::Error::Region(_)) => {
                    Err(Failed::Store { name: config.name.clone(), reason: NotOpened::Elsewhere })
                }
                Err(e) => Err(e.into()),
                Ok(memory) => drive(memory),
            };
        }
        if !create {
            return drive(builder.connect()?);
        }
        let (memory, made) = connect_or_make(config, builder)?;
        return Ok(drive(memory)?.having_made(made));
    }
    // A node that has ended is no obstacle to a store that is there.
    let there = builder.clone().partial(true).connect();
    let there = match there {
        Ok(memory) => {
            let mut drive = drive(memory)?;
            let all = (0..drive.nodes()).all(|node| drive.has_node(node));
            leave_unfilled(&mut drive)?;
            follow(config, &mut drive, timeout)?;
            if !create || all || is_made(&mut drive)? {
                return Ok(drive);
            }
            Ok(())
        }
        Err(e) => Err(e),
    };
    match there {
        Err(e) if !create => Err(e.into()),
        _ if named % 2 == 1 => Err(Failed::Store { name: config.name.clone(), reason: NotOpened::Odd }),
        _ => {
            let (memory, made) = connect_or_make(config, builder)?;
            Ok(drive(memory)?.having_made(made))
        }
    }
}

/// Words of a node of a pair: its root word, and the number of the attempt by which it was filled.
async fn words_of(io: &Io, root_word: u64) -> (u64, u64) {
    let attempt = root_word + 8 * ATTEMPT_WORD;
    (word(&io.read(root_word, 8).await, 0), word(&io.read(attempt, 8).await, 0))
}

/// The word of a pair at a node with this root.
async fn pair_at(io: &Io, root: u64) -> Pair {
    Pair(word(&io.read(root + head::PAIR, 8).await, 0))
}

/// Leaves out nodes that are not filled, or were not to the end: the other of the two does not
/// count on them.
fn leave_unfilled(drive: &mut Drive) -> Result<(), Failed> {
    for first in (0..drive.nodes()).step_by(2) {
        if !drive.has_node(first) || !drive.has_node(first + 1) {
            continue;
        }
        let at = [0, 1].map(|node| drive.root_word(first / 2) | node << NODE_SHIFT);
        let unfilled = alone(drive, |io| async move {
            let words = [words_of(&io, at[0]).await, words_of(&io, at[1]).await];
            for node in [0, 1] {
                let (_, attempt) = words[node];
                let (root, _) = words[1 - node];
                if attempt != 0 && root != 0 {
                    let root = root & ((1 << NODE_SHIFT) - 1) | at[1 - node] >> NODE_SHIFT << NODE_SHIFT;
                    if pair_at(&io, root).await.stage() != Stage::Both {
                        return Some(node);
                    }
                }
            }
            None
        })?;
        if let Some(node) = unfilled {
            drive.detach((first + node) as u8);
        }
    }
    Ok(())
}

/// Reaches nodes that have come in place of those that were named.
fn follow(config: &Config, drive: &mut Drive, timeout: Duration) -> Result<(), Failed> {
    for number in 0..drive.nodes() {
        let other = number ^ 1;
        if drive.has_node(number) || !drive.has_node(other) {
            continue;
        }
        let at = drive.root_word(number / 2) | (other as u64 & 1) << NODE_SHIFT;
        let found = alone(drive, |io| async move {
            let (root, _) = words_of(&io, at).await;
            let root = root & ((1 << NODE_SHIFT) - 1) | at >> NODE_SHIFT << NODE_SHIFT;
            let pair = pair_at(&io, root).await;
            let spare = crate::shard::mend::spare_of(&io, root).await?;
            (pair.stage() == Stage::Both).then_some((pair.attempt(), spare))
        })?;
        let Some((attempt, address)) = found else { continue };
        if let Ok(memory) = super::mend::open(config, drive.run(), &address, attempt, timeout) {
            drive.attach(number as u8, memory, true)?;
        }
    }
    Ok(())
}

/// Whether a node that is there has a shard of a store with two copies.
fn is_made(drive: &mut Drive) -> Result<bool, Failed> {
    let there: Vec<usize> = (0..drive.nodes()).filter(|&node| drive.has_node(node)).collect();
    for node in there {
        let at = drive.root_word(node / 2) | (node as u64 & 1) << NODE_SHIFT;
        if word(&alone(drive, |io| async move { io.read(at, 8).await })?, 0) != 0 {
            return Ok(true);
        }
    }
    Ok(false)
}
