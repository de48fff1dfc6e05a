//! A device's files in sysfs and procfs.

use crate::patience::Load;
use crate::{crypt, mirror};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A device of ours that holds slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    /// `/dev/nbdN`.
    Nbd(u32),
    /// Two of them, each with all pages.
    Mirror,
}

impl Device {
    /// Its name, in sysfs and in `/dev`.
    pub fn name(self) -> String {
        match self {
            Device::Nbd(index) => format!("nbd{index}"),
            Device::Mirror => mirror::NAME.to_owned(),
        }
    }

    /// Its file.
    pub fn path(self) -> PathBuf {
        PathBuf::from("/dev").join(self.name())
    }

    /// The device that the kernel swaps to: this one, or the one that encrypts for it.
    pub fn area(self) -> PathBuf {
        crypt::find(self).unwrap_or_else(|| self.path())
    }
}

/// Whether the kernel has a stream for it, or waits for one.
pub fn is_connected(index: u32) -> bool {
    fs::metadata(format!("/sys/block/nbd{index}/pid")).is_ok()
}

/// The kernel's counts of its requests.
pub(crate) fn load(index: u32) -> Load {
    fs::read_to_string(format!("/sys/block/nbd{index}/stat")).map(|text| parse_load(&text)).unwrap_or_default()
}

/// Columns of `stat`: reads, writes, discards and flushes that have ended; requests under way.
fn parse_load(text: &str) -> Load {
    let numbers: Vec<u64> = text.split_whitespace().map_while(|number| number.parse().ok()).collect();
    let at = |column: usize| numbers.get(column).copied().unwrap_or(0);
    Load { ended: [0, 4, 11, 15].into_iter().map(at).sum(), sent: at(8) }
}

/// Sets it up for pages: few at a time, in no order, without a scheduler that would wait for more.
/// Best effort.
pub fn tune(index: u32) {
    for (name, value) in [("scheduler", "none"), ("max_sectors_kb", "128"), ("rotational", "0"), ("add_random", "0")] {
        let _ = fs::write(format!("/sys/block/nbd{index}/queue/{name}"), value);
    }
}

/// One line of `/proc/swaps`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Swap {
    /// The device.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// Bytes in use.
    pub used: u64,
}

/// The end of a name in `/proc/swaps` whose file was removed since: `/dev` was made anew.
const DELETED: &str = "\\040(deleted)";

/// The kernel's swap areas.
pub fn swaps() -> Vec<Swap> {
    fs::read_to_string("/proc/swaps").map(|text| parse(&text)).unwrap_or_default()
}

/// Whether it swaps to this device.
pub fn is_swap(device: &Path) -> bool {
    used(device).is_some()
}

/// Bytes in use of this device. `None`: it does not swap to it.
pub(crate) fn used(device: &Path) -> Option<u64> {
    swaps().iter().find(|swap| swap.path == device).map(|swap| swap.used)
}

/// The number, major and minor, of the kernel's device of this file's name, if the file is not that
/// device, or is not there: swapoff by this path would not find it, or another one.
pub(crate) fn hidden(path: &Path) -> Option<(u32, u32)> {
    let name = path.file_name()?;
    let number = fs::read_to_string(Path::new("/sys/block").join(name).join("dev")).ok()?;
    parse_number(&number).filter(|&number| !is_device(path, number))
}

/// Whether this file is the block device of this number.
fn is_device(path: &Path, number: (u32, u32)) -> bool {
    let is = |about: fs::Metadata| {
        let here = (libc::major(about.rdev()), libc::minor(about.rdev()));
        about.file_type().is_block_device() && here == number
    };
    fs::metadata(path).is_ok_and(is)
}

fn parse_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim_end().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn parse(text: &str) -> Vec<Swap> {
    let line = |line: &str| {
        let mut fields = line.split_whitespace();
        let path = fields.next()?;
        // The kernel swaps to it even so.
        let path = PathBuf::from(path.strip_suffix(DELETED).unwrap_or(path));
        let mut numbers = fields.skip(1).map(|field| field.parse::<u64>().ok());
        Some(Swap { path, size: numbers.next()?? << 10, used: numbers.next()?? << 10 })
    };
    text.lines().skip(1).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_requests_are_read() {
        let text = "  7 0 56 1   20 3 160 9   2 11 12   4 0 32 1   5 6\n";
        assert_eq!(parse_load(text), Load { ended: 7 + 20 + 4 + 5, sent: 2 });
        assert_eq!(parse_load(""), Load::default());
    }

    #[test]
    fn a_file_of_another_device_is_told_from_the_kernels() {
        assert_eq!(parse_number("43:17\n"), Some((43, 17)));
        assert_eq!((parse_number("43"), parse_number("")), (None, None));
        // A device of characters, with this very number; a directory; nothing.
        for other in ["/dev/null", "/dev", "/absent/nbd0"] {
            assert!(!is_device(Path::new(other), (1, 3)), "{other}");
        }
        // The kernel has no device of this name.
        assert_eq!(hidden(Path::new("/dev/null")), None);
    }

    #[test]
    fn proc_swaps_is_read() {
        let text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                    /dev/nbd0                               partition\t131068\t\t1024\t\t10\n\
                    /dev/nbd1\\040(deleted)                 partition\t64\t\t0\t\t10\n\
                    nonsense\n";
        let all = parse(text);
        let swap = |index, size, used| Swap { path: Device::Nbd(index).path(), size, used };
        assert_eq!(all, [swap(0, 131_068 << 10, 1 << 20), swap(1, 64 << 10, 0)]);
    }
}
