//! What programs of some kinds hold of far memory while they run, when it is granted by different grains.
//!
//! ```text
//!  program ─► writes and frees of pages ─► Device (the kernel) ─► slots written, freed; clusters trimmed
//!                                                ├─► blocks of 4 MiB, freed when empty       FineMem's
//!                                                ├─► Volume, told of clusters                farmem without a probe
//!                                                └─► Volume, told of slots, with compaction  farmem
//! ```
//!
//! [`Volume`] is the production allocator. The programs are made up; each is an extreme of how memory is given back.

use crate::device::{CLUSTER, Device};
use farmem_protocol::random::Random;
use farmem_volume::{BLOCK_CHUNKS, Volume};

/// Samples of a program's life.
pub const SAMPLES: usize = 64;
/// Pages of a program: 256 MiB.
const PAGES: u32 = 1 << 16;
/// Clusters of its device: twice what it needs.
const CLUSTERS: u32 = 2 * PAGES / CLUSTER;
/// Slots of a block of 4 MiB.
const BLOCK: u32 = 1024;
/// Pages that are rewritten between two samples.
const REWRITES: u32 = PAGES / 32;

/// How a program uses its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Fills it, rewrites pages at random, ends.
    Steady,
    /// Gives back three of four pages at random, after two fifths of its time.
    Thins,
    /// Gives back three of four runs of 16 pages.
    Shrinks,
    /// Copies what lives from one half to the other, again and again.
    Collects,
    /// One process after the other, each with half.
    Waves,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [Kind::Steady, Kind::Thins, Kind::Shrinks, Kind::Collects, Kind::Waves];
}

/// How far memory is granted and given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grain {
    /// By extents, which stay until the program has ended.
    Extents,
    /// By blocks of 4 MiB at their places on the device, each given back when its last slot is freed.
    Blocks,
    /// By farmem's volume, which is told of clusters only.
    Clusters,
    /// By farmem's volume, which is told of each slot and moves pages together.
    Pieces,
}

impl Grain {
    /// All of them.
    pub const ALL: [Grain; 4] = [Grain::Extents, Grain::Blocks, Grain::Clusters, Grain::Pieces];
}

/// A program's life, in parts of the pages it has at most.
#[derive(Clone, Debug)]
pub struct Life {
    /// Slots in use, at each sample.
    pub live: Vec<f64>,
    /// Memory held, by grain.
    held: [Vec<f64>; 4],
    /// The most that is held from a sample on, by grain; of what is live, last.
    most: [Vec<f64>; 5],
}

impl Life {
    /// Simulates a program of this kind.
    pub fn of(kind: Kind, seed: u64) -> Life {
        let mut world = World::new();
        let mut random = Random::nth(seed, kind as u64);
        for sample in 0..SAMPLES {
            step(&mut world, kind, sample, &mut random);
            world.look();
        }
        let most = |values: &Vec<f64>| {
            let mut most = values.clone();
            (0..SAMPLES - 1).rev().for_each(|at| most[at] = most[at].max(most[at + 1]));
            most
        };
        let [a, b, c, d] = &world.held;
        let most = [a, b, c, d, &world.live].map(most);
        Life { live: world.live, held: world.held, most }
    }

    fn sample(progress: f64) -> usize {
        ((progress * SAMPLES as f64) as usize).min(SAMPLES - 1)
    }

    /// What is live.
    pub fn live(&self, progress: f64) -> f64 {
        self.live[Life::sample(progress)]
    }

    /// What is held.
    pub fn held(&self, grain: Grain, progress: f64) -> f64 {
        self.held[grain as usize][Life::sample(progress)]
    }

    /// The most that will be held from now on; without a grain, the most that will be live.
    pub fn most(&self, grain: Option<Grain>, progress: f64) -> f64 {
        self.most[grain.map_or(4, |grain| grain as usize)][Life::sample(progress)]
    }
}

struct World {
    device: Device,
    /// The slot of each page.
    slots: Vec<Option<u32>>,
    used: u32,
    peak: u32,
    blocks: Vec<u32>,
    clusters: Volume,
    pieces: Volume,
    live: Vec<f64>,
    held: [Vec<f64>; 4],
    names: u32,
}

impl World {
    fn new() -> World {
        let volume = || Volume::new(CLUSTERS * CLUSTER);
        World {
            device: Device::new(CLUSTERS),
            slots: vec![None; PAGES as usize],
            used: 0,
            peak: 0,
            blocks: vec![0; (CLUSTERS * CLUSTER / BLOCK) as usize],
            clusters: volume(),
            pieces: volume(),
            live: Vec::new(),
            held: std::array::from_fn(|_| Vec::new()),
            names: 0,
        }
    }

    /// A page leaves: for the first time, or again after it was changed. It keeps its slot while it is local, unless the
    /// device is more than half full.
    fn write(&mut self, page: u32) {
        if self.used > CLUSTERS * CLUSTER / 2 {
            self.free(page);
        }
        let slot = self.slots[page as usize].unwrap_or_else(|| {
            let slot = self.device.take().expect("the device is twice as large as the program");
            self.used += 1;
            self.blocks[(slot / BLOCK) as usize] += 1;
            slot
        });
        self.slots[page as usize] = Some(slot);
        for volume in [&mut self.clusters, &mut self.pieces] {
            while volume.place(slot).is_err() {
                self.names += 1;
                volume.add_block(self.names);
            }
        }
    }

    fn free(&mut self, page: u32) {
        let Some(slot) = self.slots[page as usize].take() else { return };
        self.used -= 1;
        self.blocks[(slot / BLOCK) as usize] -= 1;
        let mark = self.pieces.mark();
        self.pieces.freed(slot, mark);
        if let Some(cluster) = self.device.free(slot) {
            (cluster * CLUSTER..(cluster + 1) * CLUSTER).for_each(|slot| self.clusters.trim(slot));
        }
    }

    fn look(&mut self) {
        // As the node does when it has nothing else to do.
        for volume in [&mut self.clusters, &mut self.pieces] {
            while volume.compact().is_some() {}
            while volume.empty().is_some() {}
        }
        self.peak = if self.used == 0 { 0 } else { self.peak.max(self.used) };
        let blocks = self.blocks.iter().filter(|live| **live > 0).count() as u32 * BLOCK;
        let of = |volume: &Volume| volume.usage().blocks * BLOCK_CHUNKS;
        let held = [self.peak, blocks, of(&self.clusters), of(&self.pieces)];
        let part = |pages: u32| f64::from(pages) / f64::from(PAGES);
        self.live.push(part(self.used));
        held.into_iter().zip(&mut self.held).for_each(|(pages, held)| held.push(part(pages)));
    }
}

/// The program from one sample to the next.
fn step(world: &mut World, kind: Kind, sample: usize, random: &mut Random) {
    const BUILDS: usize = 8;
    const GIVES: usize = SAMPLES * 2 / 5;
    let part = |of: usize, parts: usize| (PAGES as usize * of / parts) as u32;
    match kind {
        Kind::Steady | Kind::Thins | Kind::Shrinks if sample < BUILDS => {
            (part(sample, BUILDS)..part(sample + 1, BUILDS)).for_each(|page| world.write(page));
        }
        Kind::Steady | Kind::Thins | Kind::Shrinks => {
            let run = match kind {
                Kind::Thins => 1,
                Kind::Shrinks => 16,
                _ => PAGES,
            };
            if sample == GIVES && run < PAGES {
                let given: Vec<u32> = (0..PAGES / run).filter(|_| random.index(4) > 0).collect();
                given.into_iter().for_each(|first| (first * run..(first + 1) * run).for_each(|page| world.free(page)));
            }
            for _ in 0..REWRITES {
                let page = random.below(PAGES.into()) as u32;
                if world.slots[page as usize].is_some() {
                    world.write(page);
                }
            }
        }
        Kind::Collects => {
            // Eight samples a collection: the new half is written while the old one stays, then the old one goes.
            let (turn, within) = (sample / 8 % 2, sample % 8);
            let half = |half: usize| half as u32 * PAGES / 2;
            let (new, old) = (half(turn), half(1 - turn));
            (new + part(within, 16)..new + part(within + 1, 16)).for_each(|page| world.write(page));
            if within == 7 {
                (old..old + PAGES / 2).for_each(|page| world.free(page));
            }
        }
        Kind::Waves => {
            let (wave, within) = (sample / 8 % 2, sample % 8);
            let (new, old) = (wave as u32 * PAGES / 2, (1 - wave) as u32 * PAGES / 2);
            let some = new + part(within, 16)..new + part(within + 1, 16);
            some.for_each(|page| world.write(page));
            // The process before ends when this one is at its half.
            if within == 4 {
                (old..old + PAGES / 2).for_each(|page| world.free(page));
            }
        }
    }
}
