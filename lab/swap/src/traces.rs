//! What a recorded program holds of far memory while it runs, when it is granted by different grains.
//!
//! ```text
//!  recorded slots ──┬─► extents: the most that was ever in use
//!                   ├─► blocks of 4 MiB, freed when empty       FineMem's
//!                   ├─► Volume, told of clusters                farmem without a probe
//!                   └─► Volume, told of slots, with compaction  farmem
//! ```
//!
//! [`Volume`] is the production allocator. The kernel chose the slots when the program was recorded.

use crate::recorded::{Event, slots};
use farmem_volume::{BLOCK_CHUNKS, Volume};

/// Samples of a program's life.
pub const SAMPLES: usize = 128;
/// Slots of a block of 4 MiB.
const BLOCK: u32 = 1024;

/// How far memory is granted and given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grain {
    /// As a disk: what is live, slot by slot.
    Slots,
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
    pub const ALL: [Grain; 5] = [Grain::Slots, Grain::Extents, Grain::Blocks, Grain::Clusters, Grain::Pieces];
}

/// A program's life, in parts of the slots that it has in use at most.
#[derive(Clone, Debug)]
pub struct Life {
    /// The most that is held within each sample, by grain.
    held: [Vec<f64>; 5],
    /// The most that is held from a sample on, by grain.
    most: [Vec<f64>; 5],
}

impl Life {
    /// Replays what was recorded.
    ///
    /// # Panics
    /// Of a record without a slot in use.
    pub fn of(events: &[Event]) -> Life {
        let length = |event: &Event| if let Event::Passed(ms) = event { u64::from(*ms) } else { 0 };
        let (all, mut passed) = (events.iter().map(length).sum::<u64>().max(1), 0);
        let (mut world, mut held) = (World::new(slots(events)), [[0u32; 5]; SAMPLES]);
        let mut peak = 0;
        for event in events {
            world.happens(event);
            let Event::Passed(ms) = event else { continue };
            let now = world.held();
            peak = peak.max(now[0]);
            // A long event reaches over several samples.
            let sample = |at: u64| ((at * SAMPLES as u64 / all) as usize).min(SAMPLES - 1);
            for most in &mut held[sample(passed)..=sample(passed + u64::from(*ms))] {
                most.iter_mut().zip(now).for_each(|(most, now)| *most = now.max(*most));
            }
            passed += u64::from(*ms);
        }
        assert!(peak > 0, "a program that was recorded has slots in use");
        let part = |slots: u32| f64::from(slots) / f64::from(peak);
        let held: [Vec<f64>; 5] = std::array::from_fn(|grain| held.iter().map(|held| part(held[grain])).collect());
        let most = held.clone().map(|mut most| {
            (0..SAMPLES - 1).rev().for_each(|at| most[at] = most[at].max(most[at + 1]));
            most
        });
        Life { held, most }
    }

    fn sample(progress: f64) -> usize {
        ((progress * SAMPLES as f64) as usize).min(SAMPLES - 1)
    }

    /// What is live.
    pub fn live(&self, progress: f64) -> f64 {
        self.held(Grain::Slots, progress)
    }

    /// What is held.
    pub fn held(&self, grain: Grain, progress: f64) -> f64 {
        self.held[grain as usize][Life::sample(progress)]
    }

    /// The most that will be held from now on.
    pub fn most(&self, grain: Grain, progress: f64) -> f64 {
        self.most[grain as usize][Life::sample(progress)]
    }

    /// What is live of what is held, over the whole life.
    pub fn live_of_held(&self, grain: Grain) -> f64 {
        let sum = |grain: Grain| self.held[grain as usize].iter().sum::<f64>();
        sum(Grain::Slots) / sum(grain)
    }
}

struct World {
    live: Vec<bool>,
    used: u32,
    peak: u32,
    blocks: Vec<u32>,
    clusters: Volume,
    pieces: Volume,
    names: u32,
}

impl World {
    fn new(slots: u32) -> World {
        World {
            live: vec![false; slots as usize],
            used: 0,
            peak: 0,
            blocks: vec![0; slots.div_ceil(BLOCK) as usize],
            clusters: Volume::new(slots),
            pieces: Volume::new(slots),
            names: 0,
        }
    }

    fn happens(&mut self, event: &Event) {
        match event {
            Event::Written(slots) => slots.clone().for_each(|slot| self.write(slot)),
            Event::Freed(slots) => {
                let mark = self.pieces.mark();
                for slot in slots.clone() {
                    self.forget(slot);
                    self.pieces.freed(slot, mark);
                }
            }
            Event::Trimmed(slots) => {
                for slot in slots.clone() {
                    self.forget(slot);
                    self.clusters.trim(slot);
                    self.pieces.trim(slot);
                }
            }
            // As the node does when it has nothing else to do.
            Event::Passed(_) => {
                for volume in [&mut self.clusters, &mut self.pieces] {
                    while volume.compact().is_some() {}
                    while volume.empty().is_some() {}
                }
            }
        }
    }

    fn write(&mut self, slot: u32) {
        if !std::mem::replace(&mut self.live[slot as usize], true) {
            self.used += 1;
            self.peak = self.peak.max(self.used);
            self.blocks[(slot / BLOCK) as usize] += 1;
        }
        for volume in [&mut self.clusters, &mut self.pieces] {
            while volume.place(slot).is_err() {
                self.names += 1;
                volume.add_block(self.names);
            }
        }
    }

    fn forget(&mut self, slot: u32) {
        if std::mem::replace(&mut self.live[slot as usize], false) {
            self.used -= 1;
            self.blocks[(slot / BLOCK) as usize] -= 1;
        }
    }

    /// Slots that each grain holds.
    fn held(&self) -> [u32; 5] {
        let blocks = self.blocks.iter().filter(|live| **live > 0).count() as u32 * BLOCK;
        let of = |volume: &Volume| volume.usage().blocks * BLOCK_CHUNKS;
        [self.used, self.peak, blocks, of(&self.clusters), of(&self.pieces)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three of four slots are freed; then the program waits as long as it has worked, and ends.
    #[test]
    fn each_grain_holds_what_it_must() {
        let mut events = vec![Event::Passed(100)];
        events.extend((0..8).flat_map(|part| [Event::Written(part * 1024..(part + 1) * 1024), Event::Passed(100)]));
        events.extend((0..8192).filter(|slot| slot % 4 > 0).map(|slot| Event::Freed(slot..slot + 1)));
        events.push(Event::Passed(1000));
        let life = Life::of(&events);
        let held = |grain| life.held(grain, 0.9);
        assert_eq!((life.live(0.3), life.live(0.9)), (0.625, 0.25));
        assert_eq!((held(Grain::Extents), held(Grain::Blocks), held(Grain::Clusters)), (1.0, 1.0, 1.0));
        assert!((0.25..=0.3125).contains(&held(Grain::Pieces)), "{}", held(Grain::Pieces));
        assert_eq!((life.most(Grain::Slots, 0.1), life.most(Grain::Slots, 0.9)), (1.0, 0.25));
    }
}
