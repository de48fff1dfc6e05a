//! A device's files in sysfs and procfs.

use crate::patience::Load;
use crate::state::State;
use crate::{Error, crypt, mirror};
use farmem_sys::swap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Times that a device is opened while others look at it, and how long to wait between.
const TRIES: u32 = 50;
const TRIES_EVERY: Duration = Duration::from_millis(20);

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

/// Bytes in use of this device. `None`: it does not swap to it, by any name that `/proc/swaps` has
/// for it here. In another root or mount namespace that may be a name of nothing.
pub(crate) fn used(device: &Path) -> Option<u64> {
    used_of(&swaps(), device, |name| number(device).is_some_and(|number| is_device(name, number)))
}

/// As [`used`], of these areas. `is_it`: whether the file of that name is the device.
fn used_of(swaps: &[Swap], device: &Path, is_it: impl Fn(&Path) -> bool) -> Option<u64> {
    swaps.iter().find(|swap| swap.path == device || is_it(&swap.path)).map(|swap| swap.used)
}

/// Bytes for pages that come back to this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    /// Of memory, and of swap elsewhere.
    pub free: u64,
    /// Of all memory.
    pub total: u64,
}

impl Room {
    /// Beside these areas.
    pub(crate) fn beside(areas: &[PathBuf]) -> Room {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let is = |area: &Path, name: &Path| number(area).is_some_and(|number| is_device(name, number));
        let free = of_meminfo(&meminfo, "MemAvailable:") + room_of_others(&swaps(), areas, is);
        Room { free, total: of_meminfo(&meminfo, "MemTotal:") }
    }

    /// Whether as many bytes can come back, with some to spare. The kernel ends a process that has it
    /// swap off before all others when memory is out.
    pub(crate) fn holds(self, used: u64) -> bool {
        used + used / 8 + self.total / 32 <= self.free
    }
}

/// Bytes of a line of `/proc/meminfo`. A line that is not there has none.
fn of_meminfo(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Free bytes of areas other than these. None, if one of these is not found by any name: its own room
/// would count. `is`: whether the second file is the device of the first.
fn room_of_others(swaps: &[Swap], areas: &[PathBuf], is: impl Fn(&Path, &Path) -> bool) -> u64 {
    let is_one = |swap: &&Swap| areas.iter().any(|area| swap.path == *area || is(area, &swap.path));
    let (own, others): (Vec<&Swap>, Vec<&Swap>) = swaps.iter().partition(is_one);
    if own.len() < areas.len() {
        return 0;
    }
    others.iter().map(|swap| swap.size.saturating_sub(swap.used)).sum()
}

/// The number, major and minor, of the kernel's device of this file's name. `None`: there is none.
fn number(path: &Path) -> Option<(u32, u32)> {
    parse_number(&fs::read_to_string(Path::new("/sys/block").join(path.file_name()?).join("dev")).ok()?)
}

/// A file that is a device: its own, or one that was made for as long as this is held, because the
/// file of that name is missing or another device. `/dev` may have been made anew.
#[derive(Debug)]
pub(crate) struct Node {
    path: PathBuf,
    is_made: bool,
}

impl Node {
    /// Of the kernel's device that has this file's name. `None`: the kernel has no such device.
    ///
    /// # Errors
    /// One line that says by which commands the file is made: it could not be made here.
    pub(crate) fn of(device: &Path) -> Result<Option<Node>, Error> {
        let Some(number) = number(device) else { return Ok(None) };
        if is_device(device, number) {
            return Ok(Some(Node { path: device.to_owned(), is_made: false }));
        }
        let name = device.file_name().unwrap_or_default().to_string_lossy();
        let path = device.with_file_name(format!(".farmem-{}-{name}", std::process::id()));
        // Of a killed process with this pid: in a container it may always be the same one.
        let _ = fs::remove_file(&path);
        match swap::make_node(&path, number) {
            Ok(()) => Ok(Some(Node { path, is_made: true })),
            Err(e) => {
                let (device, (major, minor)) = (device.display(), number);
                Err(Error::Stays(format!(
                    "{device} is not the kernel's device of that name, and no file can be made for it ({e}): make it anew \
                     (rm -f {device}; mknod {device} b {major} {minor}), or go to the mount namespace where swapping began; \
                     then farmem swap --off"
                )))
            }
        }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the device is in use: swap by any name, an array, or encryption is on it.
    ///
    /// # Errors
    /// It cannot be known.
    pub(crate) fn is_in_use(&self) -> Result<bool, Error> {
        match self.open_alone().map_err(|e| (e.raw_os_error(), e)) {
            Ok(_) => Ok(false),
            Err((Some(libc::EBUSY), _)) => Ok(true),
            // It has gone meanwhile.
            Err((Some(libc::ENXIO | libc::ENODEV | libc::ENOENT), _)) => Ok(false),
            Err((_, e)) => Err(Error::File(self.path.display().to_string(), e)),
        }
    }

    /// Opens it for this process alone, and waits a moment for others that look at it, as udev.
    /// Nothing can be put on the device until the file is closed.
    ///
    /// # Errors
    /// It is in use: what is on it would be lost if it were to end.
    pub(crate) fn alone(&self) -> Result<File, Error> {
        let path = self.path.display();
        for tries in 0.. {
            match self.open_alone() {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) && tries < TRIES => std::thread::sleep(TRIES_EVERY),
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => break,
                opened => return opened.map_err(|e| Error::File(path.to_string(), e)),
            }
        }
        Err(Error::Stays(format!(
            "{path} is in use, so it stays: it would take what is on it with it; end that use, then farmem swap --off"
        )))
    }

    fn open_alone(&self) -> io::Result<File> {
        OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&self.path)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.is_made {
            // Best effort: a file that stays takes nothing.
            let _ = fs::remove_file(&self.path);
        }
    }
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

/// Bytes that are swapped to these devices, and the room for them.
pub(crate) fn room_for(states: &[&State]) -> (u64, Room) {
    let mut areas = states.to_vec();
    areas.dedup_by_key(|state| state.device());
    let area = |state: &&State| {
        let area = state.device().area();
        // One that is not found by any name may be full.
        let used = used(&area).unwrap_or(state.size);
        (area, used)
    };
    let (areas, used): (Vec<_>, Vec<_>) = areas.iter().map(area).unzip();
    (used.iter().sum(), Room::beside(&areas))
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
        // The kernel has no block device of this name.
        assert!(number(Path::new("/dev/null")).is_none() && Node::of(Path::new("/dev/null")).unwrap().is_none());
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
        let second = "/dev/nbd1".into();
        let room = |area, is: fn(&Path) -> bool| room_of_others(&all, &[area], |_, name| is(name));
        assert_eq!(room(second, |_| false), (131_068 << 10) - (1 << 20));
        // By another name: it is told by its number, or its room is not told from others'.
        assert_eq!(room("/dev/nbd7".into(), |name| name.ends_with("nbd0")), 64 << 10);
        assert_eq!(room("/dev/nbd7".into(), |_| false), 0);
        let meminfo = "MemTotal:  320 kB\nMemAvailable:   24 kB\nBuffers: 1 kB\n";
        let room = Room { free: of_meminfo(meminfo, "MemAvailable:"), total: of_meminfo(meminfo, "MemTotal:") };
        assert_eq!(room, Room { free: 24 << 10, total: 320 << 10 });
        // An eighth more, and a thirty-second of all memory.
        assert!(room.holds(12 << 10) && !room.holds(13 << 10));
        // Swapping began in a chroot, so the device has another name here: it is told by its number.
        let jailed = [Swap { path: "/jail/dev/nbd0".into(), ..all[0].clone() }];
        let used = |is_it: fn(&Path) -> bool| used_of(&jailed, Path::new("/dev/nbd0"), is_it);
        assert_eq!((used(|_| false), used(|name| name.starts_with("/jail"))), (None, Some(1 << 20)));
    }
}
