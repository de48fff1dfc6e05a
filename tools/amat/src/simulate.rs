//! One trace through all systems at once.
//!
//! ```text
//! trace ─► Cpu (one for all systems with the same caches) ─► every geometry of local memory below it
//! ```
//! A *geometry* is a block size, ways and prefetch; systems that share one share
//! its simulation, as their latencies do not change what hits. So all figures of
//! one run come of the same references, and the same trace gives the same figures.

use crate::cpu::{Below, Cpu, LINE_SHIFT};
use crate::local::direct::Direct;
use crate::local::stack::Stack;
use crate::local::{Mixed, Tally};
use crate::model::Front;
use crate::reference::{Event, Reference, Sink};
use crate::system::{Level, System};
use std::collections::HashSet;
use std::hash::BuildHasherDefault;

/// The pages that a trace touches: local memory is a share of them.
#[derive(Default)]
pub struct Footprint {
    pages: HashSet<u64, BuildHasherDefault<Mixed>>,
    last: u64,
    /// Loads and stores.
    pub references: u64,
}

const PAGE_SHIFT: u32 = 12;

impl Footprint {
    /// In bytes.
    pub fn bytes(&self) -> u64 {
        (self.pages.len() as u64) << PAGE_SHIFT
    }
}

impl Sink for Footprint {
    fn take(&mut self, event: Event) {
        let Event::Reference(reference) = event else { return };
        self.references += 1;
        let page = reference.address >> PAGE_SHIFT;
        // No page has the number 0: programs leave it unmapped.
        if page != self.last {
            self.pages.insert(page);
            self.last = page;
        }
    }
}

/// How local memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a block.
    pub block: u64,
    /// Blocks of a set; 0: one set.
    pub ways: u32,
    /// Blocks fetched ahead.
    pub prefetch: u32,
}

impl Geometry {
    /// Of a system, or with another block size.
    pub fn of(system: &System, block: u64) -> Geometry {
        Geometry { block, ways: system.local.ways, prefetch: system.prefetch }
    }
}

enum Engine {
    Stack(Stack),
    Direct(Vec<Direct>),
}

impl Below for Engine {
    fn fetch(&mut self, line: u64, write: bool) {
        match self {
            Engine::Stack(stack) => stack.fetch(line, write),
            Engine::Direct(sizes) => sizes.iter_mut().for_each(|size| size.fetch(line, write)),
        }
    }
    fn write_back(&mut self, line: u64) {
        match self {
            Engine::Stack(stack) => stack.write_back(line),
            Engine::Direct(sizes) => sizes.iter_mut().for_each(|size| size.write_back(line)),
        }
    }
}

struct Engines(Vec<(Geometry, Engine)>);

impl Below for Engines {
    fn fetch(&mut self, line: u64, write: bool) {
        self.0.iter_mut().for_each(|(_, engine)| engine.fetch(line, write));
    }
    fn write_back(&mut self, line: u64) {
        self.0.iter_mut().for_each(|(_, engine)| engine.write_back(line));
    }
}

struct Machine {
    levels: Vec<Level>,
    cpu: Cpu,
    below: Engines,
}

/// All systems. Feed it the trace, then ask.
pub struct Simulation {
    machines: Vec<Machine>,
}

impl Simulation {
    /// Of `systems`, each with these block sizes, at these sizes of local memory (bytes,
    /// ascending). Of local memory that can be sampled, `share` is watched.
    pub fn new<'a>(systems: impl Iterator<Item = (&'a System, u64)>, sizes: &[u64], share: f64) -> Simulation {
        let mut machines: Vec<Machine> = vec![];
        for (system, block) in systems {
            let at = machines.iter().position(|machine| machine.levels == system.cpu).unwrap_or_else(|| {
                let (cpu, below) = (Cpu::new(&system.cpu), Engines(vec![]));
                machines.push(Machine { levels: system.cpu.clone(), cpu, below });
                machines.len() - 1
            });
            let engines = &mut machines[at].below.0;
            let geometry = Geometry::of(system, block);
            if engines.iter().all(|(g, _)| *g != geometry) {
                engines.push((geometry, engine(geometry, sizes, share)));
            }
        }
        Simulation { machines }
    }

    /// The result of a system with that block size: the CPU's part, and local memory's by size.
    pub fn result(&self, system: &System, block: u64) -> (Front, Vec<Tally>) {
        let geometry = Geometry::of(system, block);
        let machine = self.machines.iter().find(|machine| machine.levels == system.cpu).expect("simulated");
        let Cpu { references, instructions, .. } = machine.cpu;
        let front = Front { references, instructions, misses: machine.cpu.misses.clone() };
        let (_, engine) = machine.below.0.iter().find(|(g, _)| *g == geometry).expect("simulated");
        let tallies = match engine {
            Engine::Stack(stack) => stack.tallies(),
            Engine::Direct(sizes) => sizes.iter().map(Direct::tally).collect(),
        };
        (front, tallies)
    }

    fn refer(&mut self, reference: Reference) {
        for machine in &mut self.machines {
            machine.cpu.refer(reference, &mut machine.below);
        }
    }
}

fn engine(geometry: Geometry, sizes: &[u64], share: f64) -> Engine {
    let Geometry { block, ways, prefetch } = geometry;
    let blocks: Vec<u64> = sizes.iter().map(|&size| (size / block).max(1)).collect();
    let shift = block.trailing_zeros();
    debug_assert!(shift >= LINE_SHIFT);
    if ways == 0 && prefetch == 0 {
        Engine::Stack(Stack::new(&blocks, shift, share))
    } else {
        Engine::Direct(blocks.iter().map(|&size| Direct::new(size, shift, ways, prefetch, share)).collect())
    }
}

impl Sink for Simulation {
    fn take(&mut self, event: Event) {
        match event {
            Event::Reference(reference) => self.refer(reference),
            Event::Instructions(n) => self.machines.iter_mut().for_each(|machine| machine.cpu.instructions += n),
        }
    }
}
