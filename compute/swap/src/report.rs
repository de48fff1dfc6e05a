//! The figures of this machine's swap devices. `farmem top` shows them.
//!
//! No process is asked: the watcher writes the node's last report into a file beside the device's
//! state, and the kernel's counts are in sysfs.

use crate::device;
use crate::mirror::{self, Standing};
use crate::state::{self, State};
use farmem_protocol::nbd::Report;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// A node's last report of a volume. Bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Said {
    /// Of pages that take memory there.
    pub live: u64,
    /// Memory that the volume holds.
    pub held: u64,
}

/// A swap device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Look {
    /// Its path.
    pub device: PathBuf,
    /// Its node.
    pub node: String,
    /// Bytes.
    pub size: u64,
    /// Bytes that the kernel has there.
    pub used: u64,
    /// The node's last report.
    pub said: Said,
    /// Since the device began.
    pub moved: Moved,
}

/// The transfers of a device since it began.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Reads that ended.
    pub reads: u64,
    /// Bytes read.
    pub bytes_in: u64,
    /// How long reads took, all together, in milliseconds.
    pub read_ms: u64,
    /// Bytes written.
    pub bytes_out: u64,
}

fn file(directory: &Path, index: u32) -> PathBuf {
    directory.join(format!("nbd{index}.said"))
}

/// A volume that holds more of its size than this, where the node has less than that left for it,
/// is near its end.
const LITTLE: u64 = 64 << 20;

/// Whether the node may soon have to refuse pages.
pub(crate) fn is_near_end(report: &Report) -> bool {
    let missing = report.size.get().saturating_sub(report.held.get());
    report.free.get() < missing.min(LITTLE)
}

/// Keeps what a node says.
pub fn keep(directory: &Path, index: u32, report: &Report) {
    let said = Said { live: report.live.get(), held: report.held.get() };
    let path = file(directory, index);
    // Renamed: a reader sees a whole one. Best effort: only people look at it.
    let new = path.with_extension("new");
    let written = serde_json::to_vec(&said).is_ok_and(|text| fs::write(&new, text).is_ok());
    let _ = if written { fs::rename(&new, &path) } else { Ok(()) };
}

/// Removes what was kept.
pub fn remove(directory: &Path, index: u32) {
    let _ = fs::remove_file(file(directory, index));
}

/// The swap devices of this machine. Their directory is root's: others see none.
pub fn looks() -> Vec<Look> {
    let states = state::all(Path::new(state::DIRECTORY));
    // Two that mirror each other are one device: the one that has all pages stands for both.
    let stands = |state: &&State| !state.mirrored || mirror::standing(state.index) == Standing::Whole;
    let mut whole: Vec<&State> = states.iter().filter(stands).collect();
    let nodes: Vec<&str> = whole.iter().filter(|state| state.mirrored).map(|state| state.node.as_str()).collect();
    whole.dedup_by_key(|state| state.device());
    let look = |state: &State| {
        let path = state.device().area();
        let used = device::used(&path)?;
        let said = fs::read(file(Path::new(state::DIRECTORY), state.index)).unwrap_or_default();
        let stat = fs::read_to_string(format!("/sys/block/{}/stat", state.device().name())).unwrap_or_default();
        Some(Look {
            device: path,
            node: if state.mirrored { both(&nodes) } else { state.node.clone() },
            size: state.size,
            used,
            said: serde_json::from_slice(&said).unwrap_or_default(),
            moved: moved(&stat),
        })
    };
    whole.into_iter().filter_map(look).collect()
}

/// The nodes of a mirror that have all pages.
fn both(nodes: &[&str]) -> String {
    match nodes {
        [alone] => format!("{alone} (one copy is left)"),
        _ => nodes.join(" and "),
    }
}

/// A `stat` file of a block device: reads, merged, sectors, ms; writes, merged, sectors, ms; …
fn moved(stat: &str) -> Moved {
    let fields: Vec<u64> = stat.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let field = |at: usize| fields.get(at).copied().unwrap_or(0);
    Moved { reads: field(0), bytes_in: field(2) << 9, read_ms: field(3), bytes_out: field(6) << 9 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_file_is_read() {
        let text =
            "     120        3     1024       77       50        0      800       90        0      100      167\n";
        assert_eq!(moved(text), Moved { reads: 120, bytes_in: 1024 << 9, read_ms: 77, bytes_out: 800 << 9 });
        assert_eq!(moved(""), Moved::default());
    }

    #[test]
    fn a_mirror_says_how_many_copies_are_left() {
        assert_eq!(both(&["a:1", "b:2"]), "a:1 and b:2");
        assert_eq!(both(&["b:2"]), "b:2 (one copy is left)");
    }

    #[test]
    fn what_a_node_said_is_kept_whole() {
        let directory = std::env::temp_dir().join(format!("farmem-swap-said-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let report = Report { live: 5.into(), held: 7.into(), ..Report::default() };
        keep(&directory, 2, &report);
        let said = fs::read(file(&directory, 2)).unwrap();
        assert_eq!(serde_json::from_slice::<Said>(&said).unwrap(), Said { live: 5, held: 7 });
        remove(&directory, 2);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        fs::remove_dir(&directory).unwrap();
    }
}
