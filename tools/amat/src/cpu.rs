//! The CPU's caches: set-associative, LRU, write-back, 64-byte lines.
//!
//! One trace drives all levels at once: a miss in one is looked up in the next, and a line that
//! leaves one dirty is written to the next. Each level decides for itself (neither inclusive nor
//! exclusive), as cachegrind has it.
//!
//! ```text
//! reference ─► L1 ─ miss ─► L2 ─ miss ─► L3 ─ miss ─► below: fetch(line)
//!               └─ dirty ───► └─ dirty ───► └─ dirty ─► below: write_back(line)
//! ```

use crate::formula::Count;
use crate::reference::Reference;
use crate::system::Level;

/// log2 of a line's bytes.
pub const LINE_SHIFT: u32 = 6;

/// The memory below the caches. Lines are numbered.
pub trait Below {
    /// A line that the CPU waits for, to read or to write.
    fn fetch(&mut self, line: u64, write: bool);
    /// A line left the last cache dirty. Nothing waits for it.
    fn write_back(&mut self, line: u64);
}

/// One level. In each set the lines stand from the most to the least recently used.
struct Cache {
    sets: u64,
    ways: usize,
    /// `line << 1 | dirty`, plus 2 so that 0 is an empty way.
    ways_of_sets: Vec<u64>,
}

impl Cache {
    fn new(level: &Level) -> Cache {
        let lines = (level.size.0 >> LINE_SHIFT).max(1);
        let ways = (level.ways as u64).min(lines).max(1);
        let sets = lines / ways;
        Cache { sets, ways: ways as usize, ways_of_sets: vec![0; (sets * ways) as usize] }
    }

    /// Looks a line up, and brings it in if it is missing. Whether it was there, and a dirty line
    /// that had to go.
    #[inline]
    fn access(&mut self, line: u64, dirty: bool) -> (bool, Option<u64>) {
        let from = (line % self.sets) as usize * self.ways;
        let set = &mut self.ways_of_sets[from..from + self.ways];
        let name = (line + 1) << 1;
        if let Some(at) = set.iter().position(|&way| way & !1 == name) {
            let way = set[at] | u64::from(dirty);
            set.copy_within(..at, 1);
            set[0] = way;
            return (true, None);
        }
        let victim = set[self.ways - 1];
        set.copy_within(..self.ways - 1, 1);
        set[0] = name | u64::from(dirty);
        (false, (victim & 1 == 1).then_some((victim >> 1).wrapping_sub(1)))
    }
}

/// All levels of a CPU.
pub struct Cpu {
    caches: Vec<Cache>,
    /// Loads and stores.
    pub references: Count,
    /// Instructions carried out.
    pub instructions: u64,
    /// References that missed, by level.
    pub misses: Vec<Count>,
}

impl Cpu {
    /// With empty caches.
    pub fn new(levels: &[Level]) -> Cpu {
        Cpu {
            caches: levels.iter().map(Cache::new).collect(),
            references: Count::default(),
            instructions: 0,
            misses: vec![Count::default(); levels.len()],
        }
    }

    /// One load or store. If it crosses lines, it misses a level when any of them does.
    #[inline]
    pub fn refer(&mut self, reference: Reference, below: &mut impl Below) {
        let write = reference.kind.is_write();
        self.references.add(write);
        let first = reference.address >> LINE_SHIFT;
        let last = reference.address.saturating_add(u64::from(reference.bytes) - 1) >> LINE_SHIFT;
        let mut missed = 0;
        for line in first..=last {
            missed = missed.max(self.look_up(line, write, reference.kind.dirties(), below));
        }
        self.misses[..missed].iter_mut().for_each(|count| count.add(write));
    }

    /// How many levels missed.
    #[inline]
    fn look_up(&mut self, line: u64, write: bool, dirties: bool, below: &mut impl Below) -> usize {
        for level in 0..self.caches.len() {
            // Dirty is the nearest copy: the others learn of it when that one leaves.
            let (hit, victim) = self.caches[level].access(line, dirties && level == 0);
            if let Some(victim) = victim {
                self.write_back(victim, level + 1, below);
            }
            if hit {
                return level;
            }
        }
        below.fetch(line, write);
        if self.caches.is_empty() && dirties {
            below.write_back(line);
        }
        self.caches.len()
    }

    fn write_back(&mut self, mut line: u64, mut level: usize, below: &mut impl Below) {
        while let Some(cache) = self.caches.get_mut(level) {
            match cache.access(line, true).1 {
                Some(victim) => (line, level) = (victim, level + 1),
                None => return,
            }
        }
        below.write_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Kind;
    use crate::system::Bytes;

    #[derive(Default)]
    struct Seen {
        fetched: Vec<(u64, bool)>,
        written: Vec<u64>,
    }
    impl Below for Seen {
        fn fetch(&mut self, line: u64, write: bool) {
            self.fetched.push((line, write));
        }
        fn write_back(&mut self, line: u64) {
            self.written.push(line);
        }
    }

    fn level(lines: u64, ways: u32) -> Level {
        Level { name: "L".into(), size: Bytes(lines * 64), ways, ns: 1.0 }
    }
    fn at(line: u64, bytes: u16, kind: Kind) -> Reference {
        Reference { address: line * 64 + 60, bytes, kind }
    }

    #[test]
    fn the_least_recently_used_leaves() {
        let (mut cpu, mut seen) = (Cpu::new(&[level(2, 2)]), Seen::default());
        for line in [1, 2, 1, 3, 1, 2] {
            cpu.refer(at(line, 4, Kind::Read), &mut seen);
        }
        let lines: Vec<u64> = seen.fetched.iter().map(|f| f.0).collect();
        assert_eq!(lines, [1, 2, 3, 2]);
        assert_eq!((cpu.references.read, cpu.misses[0].read), (6, 4));
    }

    #[test]
    fn a_dirty_line_sinks_level_by_level() {
        let (mut cpu, mut seen) = (Cpu::new(&[level(1, 1), level(2, 2)]), Seen::default());
        for (line, kind) in [(1, Kind::Write), (2, Kind::Modify), (3, Kind::Read), (4, Kind::Read), (5, Kind::Read)] {
            cpu.refer(at(line, 4, kind), &mut seen);
        }
        assert_eq!(seen.written, [1, 2]);
        assert_eq!(seen.fetched[..2], [(1, true), (2, false)], "a modify counts as a read");
    }

    #[test]
    fn a_reference_across_lines_is_one_miss() {
        let (mut cpu, mut seen) = (Cpu::new(&[level(8, 2)]), Seen::default());
        cpu.refer(at(1, 8, Kind::Read), &mut seen);
        assert_eq!((cpu.misses[0].read, seen.fetched.len()), (1, 2));
        cpu.refer(Reference { address: u64::MAX, bytes: 64, kind: Kind::Read }, &mut seen);
    }

    #[test]
    fn without_caches_everything_is_below() {
        let (mut cpu, mut seen) = (Cpu::new(&[]), Seen::default());
        cpu.refer(at(1, 4, Kind::Write), &mut seen);
        assert_eq!((seen.fetched.len(), seen.written.len()), (1, 1));
    }
}
