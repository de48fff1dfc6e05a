//! farmem's own counters of a run, while it runs.
//!
//! A run shares them in a file ([`farmem_run::counters`]) in its user's runtime directory; a run that is given
//! a directory of its own has the only such file there.

use std::mem::offset_of;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use farmem_run::counters::{File, MAGIC, PROCESSES, Process};
use serde::Serialize;

/// Some of [`Process`]'s, summed over a run's processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Fetches that the program waited for.
    pub demand: u64,
    /// First writes that faulted.
    pub upgrades: u64,
    /// Pages that left.
    pub evicted: u64,
    /// … as they came.
    pub evicted_clean: u64,
    /// Lines found changed.
    pub lines_changed: u64,
    /// Lines that went by themselves.
    pub lines_sent: u64,
    /// Pages that went whole.
    pub pages_whole: u64,
    /// Bytes of write-back handed to the network.
    pub wire_out: u64,
    /// Dirty pages that were held by reference on their way out.
    pub held: u64,
    /// Faults served from what was on its way out.
    pub rescued: u64,
    /// Pages that a fault made leave, for want of room.
    pub reclaimed_inline: u64,
    /// Time that the program waited for faults, ns.
    pub wait_ns: u64,
    /// Most far memory local at once, bytes.
    pub local_peak: u64,
}

impl Counts {
    /// What was counted since.
    pub fn since(self, before: Counts) -> Counts {
        Counts {
            demand: self.demand - before.demand,
            upgrades: self.upgrades - before.upgrades,
            evicted: self.evicted - before.evicted,
            evicted_clean: self.evicted_clean - before.evicted_clean,
            lines_changed: self.lines_changed - before.lines_changed,
            lines_sent: self.lines_sent - before.lines_sent,
            pages_whole: self.pages_whole - before.pages_whole,
            wire_out: self.wire_out - before.wire_out,
            held: self.held - before.held,
            rescued: self.rescued - before.rescued,
            reclaimed_inline: self.reclaimed_inline - before.reclaimed_inline,
            wait_ns: self.wait_ns - before.wait_ns,
            local_peak: self.local_peak,
        }
    }

    fn of(bytes: &[u8]) -> Option<Counts> {
        let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        if word(offset_of!(File, magic))? != MAGIC {
            return None;
        }
        let sum = |field: usize| {
            (0..PROCESSES)
                .map(|nth| word(offset_of!(File, processes) + nth * size_of::<Process>() + field))
                .sum::<Option<u64>>()
        };
        Some(Counts {
            demand: sum(offset_of!(Process, demand))?,
            upgrades: sum(offset_of!(Process, upgrades))?,
            evicted: sum(offset_of!(Process, evicted))?,
            evicted_clean: sum(offset_of!(Process, evicted_clean))?,
            lines_changed: sum(offset_of!(Process, lines_changed))?,
            lines_sent: sum(offset_of!(Process, lines_sent))?,
            pages_whole: sum(offset_of!(Process, pages_whole))?,
            wire_out: sum(offset_of!(Process, wire_out))?,
            held: sum(offset_of!(Process, held))?,
            rescued: sum(offset_of!(Process, rescued))?,
            reclaimed_inline: sum(offset_of!(Process, reclaimed_inline))?,
            wait_ns: sum(offset_of!(Process, wait_ns))?,
            local_peak: sum(offset_of!(Process, local_peak))?,
        })
    }
}

/// Time on a CPU that the processes of a run have had, seconds, by the system's ticks (10 ms).
///
/// # Errors
/// None of them lives.
pub fn cpu_seconds(file: &Path) -> anyhow::Result<f64> {
    let bytes = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    let pid = |nth: usize| {
        let at = offset_of!(File, processes) + nth * size_of::<Process>() + offset_of!(Process, pid);
        bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
    };
    let ticks = |pid: u32| -> Option<u64> {
        // Behind the name, which may have spaces and brackets in it: user and system time are the 12th and 13th.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
        Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
    };
    let living: Vec<u64> = (0..PROCESSES).map(pid).filter(|&pid| pid != 0).filter_map(ticks).collect();
    ensure!(!living.is_empty(), "no process of the run lives");
    Ok(living.iter().sum::<u64>() as f64 / 100.0)
}

/// The counters file of the run that was started with `XDG_RUNTIME_DIR` set to `dir`.
///
/// # Errors
/// There is none, or there are several.
pub fn file(dir: &Path) -> anyhow::Result<PathBuf> {
    let all = std::fs::read_dir(dir.join("farmem")).context("the run's directory")?;
    let paths = all.filter_map(|entry| Some(entry.ok()?.path()));
    let found: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|ext| ext == "counters")).collect();
    ensure!(found.len() == 1, "{} counters files in {}", found.len(), dir.display());
    Ok(found.into_iter().next().unwrap_or_default())
}

/// What it says now.
///
/// # Errors
/// It cannot be read, or is no counters file.
pub fn read(file: &Path) -> anyhow::Result<Counts> {
    let bytes = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    Counts::of(&bytes).with_context(|| format!("{} is no counters file of this version", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_summed_and_others_files_refused() {
        let mut bytes = vec![0; size_of::<File>()];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        for (process, upgrades) in [(0, 5u8), (63, 7)] {
            let at = offset_of!(File, processes) + process * size_of::<Process>() + offset_of!(Process, upgrades);
            bytes[at] = upgrades;
        }
        let counts = Counts::of(&bytes).unwrap();
        assert_eq!(counts, Counts { upgrades: 12, ..Counts::default() });
        assert_eq!(counts.since(counts), Counts::default());
        assert_eq!(Counts::of(&bytes[..100]), None);
        bytes[0] ^= 1;
        assert_eq!(Counts::of(&bytes), None);
    }
}
