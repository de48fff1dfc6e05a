//! The findings of tracking: rows while it runs, a summary at its end, JSON, and a histogram.

pub mod histogram;
pub mod json;
pub mod table;

use farmem_protocol::lines;

use crate::count::{LeftOut, Pooled, Tally, Window};
use crate::diff::PAGE;
use crate::find::Way;
use crate::session::{End, Settings};

/// All that was found.
pub struct Report<'a> {
    /// The tracked program, for people.
    pub program: String,
    /// How.
    pub settings: &'a Settings,
    /// Every window.
    pub windows: &'a [Window],
    /// Why it ended.
    pub end: End,
    /// Things that could not be done as meant.
    pub remarks: Vec<String>,
    /// How written pages were found. Not always as the settings say: a process may not let it be done.
    pub ways: Vec<Way>,
}

/// Bytes that farmem would send for these dirty pages: lines in records of the eviction log, or
/// whole pages where most lines are dirty.
fn sent(tally: &Tally) -> u64 {
    let (few, many) = tally.by_lines.split_at(lines::WHOLE_FROM as usize);
    let logged: u64 = few.iter().enumerate().map(|(n, &pages)| pages * lines::page_bytes(n as u32) as u64).sum();
    let records = logged.div_ceil(lines::MAX_RECORD_BYTES as u64);
    logged + records * lines::record_bytes() as u64 + many.iter().sum::<u64>() * PAGE as u64
}

impl Report<'_> {
    fn pooled(&self) -> Pooled {
        Pooled::of(self.windows.iter())
    }

    /// By number of threads alive: the pooled windows with that number.
    fn by_threads(&self) -> Vec<(usize, Pooled)> {
        let mut counts: Vec<usize> = self.windows.iter().map(|window| window.threads).collect();
        counts.sort_unstable();
        counts.dedup();
        let of = |threads| Pooled::of(self.windows.iter().filter(|window| window.threads == threads));
        counts.into_iter().map(|threads| (threads, of(threads))).filter(|(_, pooled)| pooled.windows > 0).collect()
    }

    /// Things that tracking cannot see, in sentences.
    fn caveats(&self) -> Vec<String> {
        let sum = |of: fn(&Window) -> u64| self.windows.iter().map(of).sum::<u64>();
        let mut caveats = Vec::new();
        if self.settings.pages_only {
            caveats.push("pages only: which lines and bytes changed was not looked at".into());
        } else {
            let silent = sum(|window| window.found.by_mapping.values().map(|tally| tally.silent).sum());
            let told = match self.ways[..] {
                [Way::Read] => String::new(),
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
        let looked = |window: &&Window| window.left_out != Some(LeftOut::Begun);
        if self.windows.iter().any(|window| window.left_out == Some(LeftOut::Cut))
            && self.windows.iter().filter(looked).all(|window| window.left_out == Some(LeftOut::Cut))
        {
            caveats.push("no look was finished within --max-pause, and nothing is known: give it more".into());
        }
        if one_in > 1 && self.windows.last().is_some_and(|window| window.found.present == 0) {
            caveats
                .push("no memory lies in the blocks that were watched: give more --max-pause or --max-memory".into());
        }
        let missed = sum(|window| window.found.missed);
        if missed > 0 {
            caveats.push(format!("{missed} pages were not compared: not readable, or out of time"));
        }
        caveats.extend(self.remarks.iter().cloned());
        caveats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::Change;

    #[test]
    fn what_would_be_sent_is_lines_or_the_page() {
        let mut tally = Tally::default();
        tally.add(Change { lines: 0b11, bytes: 2 });
        assert_eq!(sent(&tally), 12 + 10 + 128);
        tally.add(Change { lines: u64::MAX, bytes: 2 });
        assert_eq!(sent(&tally), 12 + 10 + 128 + 4096);
        assert_eq!(sent(&Tally::default()), 0);
        let of = |lines: u32| {
            let mut tally = Tally::default();
            tally.add(Change { lines: (1 << lines) - 1, bytes: 1 });
            sent(&tally)
        };
        let whole = lines::WHOLE_FROM;
        assert_eq!((of(whole - 1), of(whole)), (12 + 10 + 64 * (whole as u64 - 1), 4096));
    }
}
