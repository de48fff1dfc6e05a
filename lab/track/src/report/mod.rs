//! What tracking found: rows while it runs, a summary at its end, JSON, and a histogram.

pub mod histogram;
pub mod json;
pub mod table;

use crate::count::{Pooled, Window};
use crate::find::Way;
use crate::session::{End, Settings};

/// All that was found.
pub struct Report<'a> {
    /// What was tracked, for people.
    pub program: String,
    /// How.
    pub settings: &'a Settings,
    /// Every window.
    pub windows: &'a [Window],
    /// Why it ended.
    pub end: End,
    /// What could not be done as meant.
    pub remarks: Vec<String>,
}

/// How a page on its way out of farmem is described in a record of dirty lines: its number and which lines follow.
const PAGE_HEADER: u64 = 16;

impl Report<'_> {
    fn pooled(&self) -> Pooled {
        Pooled::of(self.windows.iter())
    }

    /// By number of threads alive: the pooled windows with so many.
    fn by_threads(&self) -> Vec<(usize, Pooled)> {
        let mut counts: Vec<usize> = self.windows.iter().map(|window| window.threads).collect();
        counts.sort_unstable();
        counts.dedup();
        let of = |threads| Pooled::of(self.windows.iter().filter(|window| window.threads == threads));
        counts.into_iter().map(|threads| (threads, of(threads))).filter(|(_, pooled)| pooled.windows > 0).collect()
    }

    /// What tracking cannot see, in sentences.
    fn caveats(&self) -> Vec<String> {
        let sum = |of: fn(&Window) -> u64| self.windows.iter().map(of).sum::<u64>();
        let mut caveats = Vec::new();
        if self.settings.pages_only {
            caveats.push("pages only: which lines and bytes changed was not looked at".into());
        } else {
            let silent = sum(|window| window.found.by_mapping.values().map(|tally| tally.silent).sum());
            let told = match self.settings.way {
                Way::Read => String::new(),
                _ => format!("; {silent} pages were written and hold what they held"),
            };
            caveats.push(format!(
                "silent stores are invisible: bytes are those that differ at a window's end from its start{told}"
            ));
        }
        let one_in = self.windows.iter().map(|window| window.one_in).max().unwrap_or(1);
        if one_in > 1 {
            caveats.push(format!(
                "at the end 1 block of 2 MiB in {one_in} was watched, to keep within --max-pause and --max-memory: counts are of those"
            ));
        }
        let missed = sum(|window| window.found.missed);
        if missed > 0 {
            caveats.push(format!("{missed} pages were not compared: not readable, or out of time"));
        }
        caveats.extend(self.remarks.iter().cloned());
        caveats
    }
}
