//! From looks to counts: the pure part.
//!
//! ```text
//! look (maps, pages there, pages read) ─► cover: kept, gone, fresh
//!                                            ├─► moves: gone and fresh that are the same memory
//!                                            ├─► snapshot: forget what is gone or not there any more
//!                                            └─► each page read: diff with the snapshot ─► counts ─► record
//! ```
//! All of it happens after the program was let go.

use std::collections::{BTreeSet, HashSet};

use crate::count::{Found, MappingId};
use crate::cover::{Cover, Part, Range, Unseen};
use crate::diff::{self, PAGE};
use crate::maps::Behind;
use crate::moves;
use crate::sight::Look;
use crate::snapshot::{BLOCK, Before, Snapshot};
use crate::watch::Watch;

/// The known state of a process.
#[derive(Default)]
pub struct Process {
    cover: Cover,
    snapshot: Snapshot,
}

impl Process {
    /// Begins with a first look. Pages that were read are recorded, and the others are unknown;
    /// nothing is counted.
    pub fn begin(look: &Look) -> Process {
        let mut process = Process::default();
        process.cover.advance(look.mappings.clone());
        for address in look.present.iter().flat_map(|run| run.clone().step_by(PAGE)) {
            process.snapshot.lose(address);
        }
        for (page, bytes) in look.pages.iter().zip(look.bytes.as_chunks::<PAGE>().0) {
            process.snapshot.record(page.address, bytes);
        }
        process
    }

    /// Records what a page holds that was unknown.
    pub fn learn(&mut self, address: u64, bytes: &[u8; PAGE]) {
        self.snapshot.record(address, bytes);
    }

    /// Bytes recorded of it.
    pub fn recorded_bytes(&self) -> u64 {
        self.snapshot.recorded_bytes()
    }

    /// From now on only these blocks are watched.
    pub fn narrow(&mut self, watch: Watch) {
        self.snapshot.retain_blocks(|block| watch.watches(block));
    }

    /// Counts what changed between the last look and this one, at which `watch` was watched.
    pub fn advance(&mut self, id: u32, look: &Look, watch: Watch) -> Found {
        let advanced = self.cover.advance(look.mappings.clone());
        let bytes = look.bytes.as_chunks::<PAGE>().0;
        let mut moved = Vec::new();
        if !advanced.gone.is_empty() && !advanced.fresh.is_empty() {
            let fresh = look.pages.iter().zip(bytes).filter(|(page, _)| within(&advanced.fresh, page.address));
            let fresh = fresh.map(|(page, bytes)| (page.address, bytes));
            for found in moves::find(&self.snapshot, &advanced.gone, &advanced.fresh, fresh) {
                moved.push((found.target(), self.snapshot.take(&found.from)));
            }
        }
        // Before moved pages are put in their places: one may lie where another was.
        advanced.gone.iter().for_each(|range| self.snapshot.forget(range));
        for (there, pages) in moved {
            self.snapshot.put(there.start, pages);
            if !watch.all() {
                // Where it was, not all of it was watched.
                self.lose_unseen(look.pages.iter().map(|page| page.address).filter(|at| there.contains(at)));
            }
        }
        // Dropped by the program itself, with MADV_DONTNEED for one: zeros again.
        for part in self.cover.tracked().filter(|part| part.unseen == Unseen::Zeros) {
            self.snapshot.forget_absent(&part.range, &look.present);
        }
        self.count(id, look)
    }

    fn lose_unseen(&mut self, pages: impl Iterator<Item = u64>) {
        for page in pages {
            if self.snapshot.before(page) == Before::Unseen {
                self.snapshot.lose(page);
            }
        }
    }

    fn count(&mut self, id: u32, look: &Look) -> Found {
        let pages = |ranges: &[Range]| ranges.iter().map(|range| (range.end - range.start) / PAGE as u64).sum();
        let mut found = Found { present: pages(&look.present), missed: pages(&look.missed), ..Found::default() };
        let (mut blocks, mut far_blocks) = (HashSet::new(), HashSet::new());
        let mut of_mappings = BTreeSet::new();
        for (page, after) in look.pages.iter().zip(look.bytes.as_chunks::<PAGE>().0) {
            let Some(part) = self.cover.part(page.address) else { continue };
            let before = self.snapshot.before(page.address);
            let Some(was) = before.bytes(part.unseen) else {
                found.begun += 1;
                self.snapshot.record(page.address, after);
                continue;
            };
            let change = diff::page(was, after);
            let seen = before != Before::Unseen;
            if change.bytes == 0 {
                if page.told && seen {
                    found.by_mapping.entry(mapping_id(id, &self.cover, part)).or_default().silent += 1;
                }
                continue;
            }
            let mapping = mapping_id(id, &self.cover, part);
            let block = page.address / BLOCK;
            blocks.insert(block);
            if mapping.far {
                far_blocks.insert(block);
            }
            of_mappings.insert((mapping.clone(), block));
            found.by_mapping.entry(mapping).or_default().add(change);
            self.snapshot.record(page.address, after);
        }
        for (mapping, _) in of_mappings {
            found.by_mapping.entry(mapping).or_default().blocks += 1;
        }
        for address in look.missed.iter().flat_map(|range| range.clone().step_by(PAGE)) {
            self.snapshot.lose(address);
        }
        (found.blocks, found.far_blocks) = (blocks.len() as u64, far_blocks.len() as u64);
        found
    }
}

impl Found {
    /// Counts the pages that protection reported, whatever they hold now. They have no lines and no
    /// bytes.
    pub fn pages_only(id: u32, look: &Look) -> Found {
        let mut found = Found::default();
        let mut blocks = BTreeSet::new();
        let mut cover = Cover::default();
        cover.advance(look.mappings.clone());
        for page in &look.pages {
            let Some(part) = cover.part(page.address) else { continue };
            let mapping = mapping_id(id, &cover, part);
            blocks.insert((mapping.clone(), page.address / BLOCK));
            found.by_mapping.entry(mapping).or_default().pages += 1;
        }
        let distinct = |far: fn(&MappingId) -> bool| {
            let of = blocks.iter().filter(|(id, _)| far(id)).map(|(_, block)| block);
            of.collect::<BTreeSet<_>>().len() as u64
        };
        (found.blocks, found.far_blocks) = (distinct(|_| true), distinct(|id| id.far));
        for (mapping, _) in blocks {
            found.by_mapping.entry(mapping).or_default().blocks += 1;
        }
        found
    }
}

/// Whether ranges, in order, have this address.
fn within(ranges: &[Range], address: u64) -> bool {
    let at = ranges.partition_point(|range| range.end <= address);
    ranges.get(at).is_some_and(|range| range.contains(&address))
}

fn mapping_id(process: u32, cover: &Cover, part: &Part) -> MappingId {
    let mapping = &cover.mappings()[part.mapping];
    let named = !mapping.name.is_empty();
    MappingId {
        process,
        name: mapping.to_string(),
        start: if named { 0 } else { mapping.start },
        far: mapping.behind == Behind::Anonymous,
    }
}

#[cfg(test)]
mod tests;
