//! Programs that need no program: generated references, the same for the same seed.
//!
//! Each does what its name says to an array of the given size and nothing else
//! (no stack, no code), so its rates are those of its data alone.

use crate::reference::{Event, Kind, Reference, Sink};
use farmem_protocol::random::{Random, mix};

/// The accesses to the array.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Reads in order, again and again
    Stream,
    /// Reads and writes (3 to 1) of 64-byte records, every record as likely as any
    Uniform,
    /// Reads and writes (3 to 1) of 64-byte records by Zipf's law (exponent 0.99), as of keys in a
    /// store
    Zipf,
    /// A chain of pointers through every line, in no order
    Chase,
    /// Updates of sums along the edges of a graph whose vertices have skewed degrees
    Graph,
}

/// A generated trace.
#[derive(Clone, Copy, Debug)]
pub struct Generated {
    /// The pattern.
    pub pattern: Pattern,
    /// Of the array.
    pub bytes: u64,
    /// How many.
    pub references: u64,
    /// Of all that is drawn.
    pub seed: u64,
}

/// Where the array begins: aligned to every block size in use.
const BASE: u64 = 1 << 40;
const RECORD: u64 = 64;
/// Instructions for each reference; programs make one of two to four.
const INSTRUCTIONS: u64 = 3;

/// A rank from 0 to `n` - 1 by Zipf's law, by the inverse of the continuous distribution: near
/// enough to the discrete one for n ≥ 100, at no table.
fn zipf(random: &mut Random, n: u64, exponent: f64) -> u64 {
    let e = 1.0 - exponent;
    let rank = ((((n + 1) as f64).powf(e) - 1.0) * random.unit() + 1.0).powf(1.0 / e);
    (rank as u64).clamp(1, n) - 1
}

impl Generated {
    /// Tells `sink` all references.
    pub fn run(self, sink: &mut dyn Sink) {
        let mut random = Random::new(self.seed);
        let records = (self.bytes / RECORD).max(1);
        let mut refer = |record: u64, offset: u64, bytes: u16, kind| {
            let address = BASE + record % records * RECORD + offset;
            sink.take(Event::Reference(Reference { address, bytes, kind }));
            sink.take(Event::Instructions(INSTRUCTIONS));
        };
        let mut done = 0;
        let mut place = 0;
        while done < self.references {
            match self.pattern {
                Pattern::Stream => {
                    refer(place / 8, place % 8 * 8, 8, Kind::Read);
                    place += 1;
                    done += 1;
                }
                Pattern::Uniform | Pattern::Zipf => {
                    let record = match self.pattern {
                        Pattern::Uniform => random.below(records),
                        // Popular keys lie anywhere.
                        _ => mix(zipf(&mut random, records, 0.99)) % records,
                    };
                    let kind = if random.below(4) == 0 { Kind::Write } else { Kind::Read };
                    (0..4).for_each(|word| refer(record, word * 16, 8, kind));
                    done += 4;
                }
                Pattern::Chase => {
                    // An odd multiplier and increment step through a power of two in no order.
                    place = place.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                    refer(place >> 11, 0, 8, Kind::Read);
                    done += 1;
                }
                Pattern::Graph => {
                    // An edge list in order in the first three quarters, sums in the last.
                    let edges = records * 3 / 4;
                    let vertices = (records - edges).max(1) * 8;
                    refer(place / 8 % edges.max(1), place % 8 * 8, 8, Kind::Read);
                    let to = mix(zipf(&mut random, vertices, 0.8)) % vertices;
                    refer(edges + to / 8, to % 8 * 8, 8, Kind::Modify);
                    place += 1;
                    done += 2;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use std::collections::HashMap;

    fn pages(pattern: Pattern) -> HashMap<u64, u64> {
        let mut pages = HashMap::new();
        let generated = Generated { pattern, bytes: 1 << 20, references: 200_000, seed: 1 };
        generated.run(&mut |event| {
            if let Event::Reference(reference) = event {
                *pages.entry(reference.address >> 12).or_default() += 1;
            }
        });
        pages
    }

    #[test]
    fn every_pattern_stays_in_its_array_and_uses_all_of_it() {
        for &pattern in Pattern::value_variants() {
            let pages = pages(pattern);
            assert!(pages.keys().all(|page| (BASE >> 12..(BASE >> 12) + 256).contains(page)), "{pattern:?}");
            assert!(pages.len() > 250, "{pattern:?}: {} pages", pages.len());
        }
    }

    #[test]
    fn zipf_prefers_few() {
        let mut random = Random::new(1);
        let n = 100_000u64;
        let first = (0..n).filter(|_| zipf(&mut random, 1000, 0.99) == 0).count();
        // The discrete law has 1 / H(1000, 0.99) = 13 %; the continuous one a little less.
        assert!((9_000..16_000).contains(&first), "{first}");
    }
}
