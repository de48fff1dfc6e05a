//! Looks at a store, live or not: counts it, and tells whether it lies where it is said to.

use super::connect::connect;
use super::open::{Config, FIRST, Failed, alone, join, nodes_of, open};
use crate::drive::Drive;
use crate::shard::Shard;
use crate::shard::recover::Count;
use farmem::Memory;
use std::rc::Rc;
use std::time::Duration;

/// Between two looks at what may be a change under way.
const AGAIN: Duration = Duration::from_millis(300);

/// Counts each node's shard. Before, it has an MSET or DEL carried out to its end whose front end
/// was killed in it.
///
/// # Errors
/// The store cannot be opened.
pub fn check(config: &Config) -> Result<Vec<(String, Count)>, Failed> {
    let (mut drive, mut shards) = open(config, false, connect(config, false, FIRST)?)?;
    if is_left(&mut drive, &shards)? {
        // A front end that comes carries it out, when the others know of it.
        let (mut joined, members) = join(config, false)?;
        alone(&mut joined, |io| async move {
            for shard in members {
                shard.members.leave(&io).await;
            }
        })?;
        (drive, shards) = open(config, false, connect(config, false, FIRST)?)?;
    }
    let mut counts = Vec::new();
    for shard in &shards {
        let mut last: Option<Count> = None;
        // A real problem shows in two counts in a row.
        let count = loop {
            let looked = Rc::clone(shard);
            let mut count = alone(&mut drive, |io| async move { looked.recovery.count(&io).await })?;
            match last {
                Some(before) => {
                    count.problems.retain(|problem| before.problems.contains(problem));
                    break count;
                }
                None if count.problems.is_empty() => break count,
                None => last = Some(count),
            }
            std::thread::sleep(AGAIN);
        };
        counts.push((nodes_of(&drive, shard), count));
    }
    Ok(counts)
}

/// Whether a batch that changes several keys has not ended between two looks.
fn is_left(drive: &mut Drive, shards: &[Rc<Shard>]) -> Result<bool, Failed> {
    let mut look = || {
        let shards = shards.to_vec();
        alone(drive, |io| async move {
            let mut batches = Vec::new();
            for shard in shards {
                batches.extend(shard.batches(&io).await);
            }
            batches
        })
    };
    let first = look()?;
    if first.iter().all(|&batch| batch == 0) {
        return Ok(false);
    }
    std::thread::sleep(AGAIN);
    Ok(first.into_iter().zip(look()?).any(|(before, now)| before != 0 && before == now))
}

/// Whether a store is there, and not at all of the nodes that are named. Its nodes are made in the
/// order of their numbers, and the first has the root word of each. So one that is still being made
/// has no root word of a node that is missing.
pub(super) fn is_elsewhere(found: Result<Memory, farmem::Error>, named: usize) -> Result<bool, Failed> {
    let Ok(memory) = found else { return Ok(false) };
    let numbers = memory.numbers();
    if numbers.len() == named {
        return Ok(false);
    }
    if !numbers.contains(&0) {
        return Ok(true);
    }
    for missing in (0..named).filter(|number| !numbers.contains(number)) {
        if memory.load(memory.root(missing))? != 0 {
            return Ok(true);
        }
    }
    Ok(false)
}
