//! Dirty pages, lines and bytes: of a window, a mapping, a whole run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::diff::{Change, LINE, LINES, PAGE};
use crate::snapshot::BLOCK;

/// The amount dirtied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Pages of which at least one byte changed.
    pub pages: u64,
    /// Lines of which at least one byte changed.
    pub lines: u64,
    /// Bytes that changed.
    pub bytes: u64,
    /// Blocks of 2 MiB of which at least one byte changed.
    pub blocks: u64,
    /// Pages that were written, as their protection told, and hold what they held.
    pub silent: u64,
    /// Dirty pages by how many of their lines are: `[n]` has n, `[0]` none.
    pub by_lines: [u64; LINES as usize + 1],
}

impl Default for Tally {
    fn default() -> Self {
        Tally { pages: 0, lines: 0, bytes: 0, blocks: 0, silent: 0, by_lines: [0; LINES as usize + 1] }
    }
}

impl Tally {
    /// Adds a dirty page.
    pub fn add(&mut self, change: Change) {
        self.pages += 1;
        self.lines += u64::from(change.lines.count_ones());
        self.bytes += u64::from(change.bytes);
        self.by_lines[change.lines.count_ones() as usize] += 1;
    }

    /// Adds another tally.
    pub fn merge(&mut self, other: &Tally) {
        self.pages += other.pages;
        self.lines += other.lines;
        self.bytes += other.bytes;
        self.blocks += other.blocks;
        self.silent += other.silent;
        self.by_lines.iter_mut().zip(other.by_lines).for_each(|(to, n)| *to += n);
    }

    /// Bytes of dirty pages over bytes of dirty lines: the cost of whole pages against lines.
    /// `None` when nothing is dirty.
    pub fn pages_over_lines(&self) -> Option<f64> {
        ratio(self.pages * PAGE as u64, self.lines * LINE as u64)
    }

    /// Bytes moved per byte changed, at the granularity of lines, pages and blocks.
    pub fn amplification(&self) -> [Option<f64>; 3] {
        [self.lines * LINE as u64, self.pages * PAGE as u64, self.blocks * BLOCK].map(|moved| ratio(moved, self.bytes))
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// A mapping, for as long as it keeps its name or its first address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct MappingId {
    /// Whose.
    pub process: u32,
    /// As the kernel names it, or `anonymous`.
    pub name: String,
    /// First address, where the name alone would not do; else 0.
    pub start: u64,
    /// Whether it would be far memory on farmem: private, anonymous, no stack.
    pub far: bool,
}

/// The findings of one look at one process, compared with the look before.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// By mapping. A block that two mappings share counts in both.
    pub by_mapping: BTreeMap<MappingId, Tally>,
    /// Dirty blocks of the process.
    pub blocks: u64,
    /// Dirty blocks that have far memory changed in them.
    pub far_blocks: u64,
    /// Pages that are there, of those watched.
    pub present: u64,
    /// Pages whose content was not known before: recorded, not counted.
    pub begun: u64,
    /// Pages that should have been compared, and were not.
    pub missed: u64,
}

/// How long the program stood still for one look.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Pause {
    /// Until its last thread stood, seconds.
    pub stopping: f64,
    /// Finding what was written, seconds.
    pub finding: f64,
    /// Reading it, seconds.
    pub reading: f64,
    /// All of it, until it was let go, seconds.
    pub total: f64,
}

/// Why a window is left out of the pooled figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeftOut {
    /// Not all that it should have compared was read within the longest pause.
    Cut,
    /// A process was new in it, or had become another program.
    Begun,
    /// Too little was dirtied for a ratio to mean anything.
    Idle,
}

/// The time between two looks.
#[derive(Clone, Debug)]
pub struct Window {
    /// How long the program ran in it.
    pub length: Duration,
    /// The look at its end.
    pub pause: Pause,
    /// Threads that were alive at its end.
    pub threads: usize,
    /// One block in `one_in` is watched.
    pub one_in: u64,
    /// The findings, all processes together.
    pub found: Found,
    /// Not pooled, and why.
    pub left_out: Option<LeftOut>,
}

impl Window {
    /// All mappings together.
    pub fn total(&self) -> Tally {
        self.sum(|_| true, self.found.blocks)
    }

    /// The part that would be far memory.
    pub fn far(&self) -> Tally {
        self.sum(|id| id.far, self.found.far_blocks)
    }

    fn sum(&self, of: impl Fn(&MappingId) -> bool, blocks: u64) -> Tally {
        let mut sum = Tally::default();
        self.found.by_mapping.iter().filter(|(id, _)| of(id)).for_each(|(_, tally)| sum.merge(tally));
        Tally { blocks, ..sum }
    }
}

impl Found {
    /// Adds what was found of another process.
    pub fn merge(&mut self, other: Found) {
        for (id, tally) in other.by_mapping {
            self.by_mapping.entry(id).or_default().merge(&tally);
        }
        self.blocks += other.blocks;
        self.far_blocks += other.far_blocks;
        self.present += other.present;
        self.begun += other.begun;
        self.missed += other.missed;
    }
}

/// Several windows together.
#[derive(Clone, Debug, Default)]
pub struct Pooled {
    /// How many.
    pub windows: usize,
    /// Seconds.
    pub seconds: f64,
    /// All mappings.
    pub total: Tally,
    /// The part that would be far memory.
    pub far: Tally,
    /// Each mapping.
    pub by_mapping: BTreeMap<MappingId, Tally>,
    /// Median of the windows' ratio of pages to lines.
    pub median: Option<f64>,
}

impl Pooled {
    /// Pools the windows that are not left out, of those given.
    pub fn of<'a>(windows: impl Iterator<Item = &'a Window>) -> Pooled {
        let mut pooled = Pooled::default();
        let mut ratios = Vec::new();
        for window in windows.filter(|window| window.left_out.is_none()) {
            let total = window.total();
            ratios.extend(total.pages_over_lines());
            pooled.windows += 1;
            pooled.seconds += window.length.as_secs_f64();
            pooled.total.merge(&total);
            pooled.far.merge(&window.far());
            for (id, tally) in &window.found.by_mapping {
                pooled.by_mapping.entry(id.clone()).or_default().merge(tally);
            }
        }
        ratios.sort_by(f64::total_cmp);
        pooled.median = match ratios.len() {
            0 => None,
            n if n % 2 == 1 => Some(ratios[n / 2]),
            n => Some((ratios[n / 2 - 1] + ratios[n / 2]) / 2.0),
        };
        pooled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(pages: u64, lines_each: u32, left_out: Option<LeftOut>) -> Window {
        let mut tally = Tally::default();
        for _ in 0..pages {
            tally.add(Change { lines: (1_u64 << lines_each) - 1, bytes: 10 });
        }
        let id = MappingId { process: 1, name: "[heap]".into(), start: 0, far: true };
        Window {
            length: Duration::from_secs(1),
            pause: Pause::default(),
            threads: 1,
            one_in: 1,
            found: Found { by_mapping: [(id, tally)].into(), blocks: 1, far_blocks: 1, ..Found::default() },
            left_out,
        }
    }

    #[test]
    fn pooled_leaves_out_what_is_left_out() {
        let windows = [window(100, 2, None), window(5, 1, Some(LeftOut::Idle)), window(100, 4, None)];
        let pooled = Pooled::of(windows.iter());
        assert_eq!((pooled.windows, pooled.total.pages, pooled.total.lines), (2, 200, 600));
        assert_eq!(pooled.total.pages_over_lines(), Some(200.0 * 64.0 / 600.0), "sums, not a mean of ratios");
        assert_eq!(pooled.median, Some((32.0 + 16.0) / 2.0));
        assert_eq!(pooled.total.amplification()[1], Some(409.6));
        assert_eq!((pooled.total.by_lines[2], pooled.total.by_lines[4]), (100, 100));
    }

    #[test]
    fn nothing_dirty_has_no_ratio() {
        assert_eq!(Tally::default().pages_over_lines(), None);
        assert_eq!(Tally::default().amplification(), [None; 3]);
    }
}
