//! Two copies of each page: the kernel's own RAID 1 over two NBD devices.
//!
//! ```text
//!  kernel: swap ── [dm-crypt] ── /dev/md_farmem0 ─┬─ /dev/nbd0 ──► volume at one node
//!                                                 └─ /dev/nbd1 ──► volume at another
//! ```
//!
//! The array is made by its files in sysfs. It has no superblock, so slots lie at the volumes where
//! they lie on the array, and both nodes can be told of the same freed slots. The kernel waits for
//! no process: it goes on with one copy by itself when a device fails. It never reads from a device
//! that has failed, and not from a new one before all of it was copied.

use crate::Error;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The array's name, in `/dev` and in sysfs.
pub const NAME: &str = "md_farmem0";
/// Where the kernel is asked for an array.
const NEW: &str = "/sys/module/md_mod/parameters/new_array";
/// The least speed of copying to a new device, in KiB/s: the kernel's own default of 1000 would
/// take hours.
const LEAST_SPEED: &str = "65536";
/// Times that a step is tried while requests are under way, or udev looks at the device.
const TRIES: u32 = 100;
/// How long to wait between.
const TRIES_EVERY: Duration = Duration::from_millis(20);

/// A device's standing in the array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It has every page.
    Whole,
    /// Pages are being copied to it.
    Copying,
    /// It has failed.
    Failed,
    /// It is not in the array.
    Absent,
}

/// The array's device.
pub fn path() -> PathBuf {
    PathBuf::from("/dev").join(NAME)
}

fn directory() -> PathBuf {
    PathBuf::from("/sys/block").join(NAME).join("md")
}

/// Whether there is an array.
pub fn exists() -> bool {
    directory().exists()
}

/// Has the kernel mirror two NBD devices of this many bytes, with nothing in them.
///
/// # Errors
/// The kernel has no RAID 1, or refuses.
pub fn make(indexes: [u32; 2], size: u64) -> Result<(), Error> {
    let said = Command::new("modprobe").arg("raid1").output();
    if !PathBuf::from(NEW).exists() {
        let why = match said {
            Ok(said) => String::from_utf8_lossy(&said.stderr).lines().next().unwrap_or("not there").to_owned(),
            Err(e) => e.to_string(),
        };
        return Err(Error::NoMirror(why));
    }
    end().map_err(|e| Error::Kernel("an array that was there before", e))?;
    let made = || {
        fs::write(NEW, NAME)?;
        set("metadata_version", "none")?;
        set("level", "raid1")?;
        set("raid_disks", "2")?;
        set("component_size", &(size >> 10).to_string())?;
        for (slot, index) in indexes.into_iter().enumerate() {
            join(index, size)?;
            set(&format!("dev-nbd{index}/slot"), &slot.to_string())?;
        }
        // Both are empty: there is nothing to be copied.
        set("resync_start", "none")?;
        set("array_state", "active")?;
        // Best effort: a kernel without it copies more slowly.
        let _ = set("sync_speed_min", LEAST_SPEED);
        Ok(())
    };
    made().map_err(|e| {
        let _ = end();
        Error::Kernel("the kernel's RAID 1", e)
    })
}

/// Puts a new NBD device into the array, and has pages copied to it.
pub fn add(index: u32, size: u64) -> io::Result<()> {
    join(index, size)?;
    set("sync_action", "recover")
}

fn join(index: u32, size: u64) -> io::Result<()> {
    let number = fs::read_to_string(format!("/sys/block/nbd{index}/dev"))?;
    set("new_dev", number.trim())?;
    set(&format!("dev-nbd{index}/size"), &(size >> 10).to_string())
}

/// Has the array go on without a device.
pub fn fail(index: u32) -> io::Result<()> {
    set(&format!("dev-nbd{index}/state"), "faulty")
}

/// Whether a device other than this one has every page.
pub fn has_other(index: u32) -> bool {
    let files = fs::read_dir(directory()).into_iter().flatten().flatten();
    let indexes = files.filter_map(|file| file.file_name().to_str()?.strip_prefix("dev-nbd")?.parse().ok());
    indexes.filter(|&other: &u32| other != index).any(|other| standing(other) == Standing::Whole)
}

/// Has the array go on without a device, if another one has every page. Whether it does so now.
pub fn do_without(index: u32) -> bool {
    // Asked before: the kernel would refuse all writes if the last device were to fail.
    has_other(index) && fail(index).is_ok()
}

/// Removes a device that has failed.
pub fn remove(index: u32) -> io::Result<()> {
    if standing(index) == Standing::Absent {
        return Ok(());
    }
    again(|| set(&format!("dev-nbd{index}/state"), "remove"))
}

/// Ends the array, which must not be in use.
pub fn end() -> io::Result<()> {
    if !exists() {
        return Ok(());
    }
    again(|| set("array_state", "clear"))
}

/// How a device stands in the array.
pub fn standing(index: u32) -> Standing {
    match fs::read_to_string(directory().join(format!("dev-nbd{index}/state"))) {
        Ok(text) => parse(&text),
        Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::ENODEV) => Standing::Absent,
        // Not known: nothing is removed for that.
        Err(_) => Standing::Copying,
    }
}

/// A `state` file of a device: words between commas.
fn parse(text: &str) -> Standing {
    let has = |word| text.trim().split(',').any(|found| found == word);
    match () {
        () if has("faulty") => Standing::Failed,
        () if has("in_sync") => Standing::Whole,
        () => Standing::Copying,
    }
}

fn set(file: &str, value: &str) -> io::Result<()> {
    fs::write(directory().join(file), value)
}

/// Tries a step again while something is in its way.
fn again(step: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let mut tries = TRIES;
    loop {
        match step() {
            Err(e) if tries > 0 && e.raw_os_error() == Some(libc::EBUSY) => {
                tries -= 1;
                std::thread::sleep(TRIES_EVERY);
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_devices_state_is_read() {
        let read =
            ["in_sync\n", "in_sync,write_error,want_replacement\n", "faulty\n", "faulty,write_error\n", "spare\n", ""]
                .map(parse);
        use Standing::{Copying, Failed, Whole};
        assert_eq!(read, [Whole, Whole, Failed, Failed, Copying, Copying]);
        assert_eq!(standing(u32::MAX), Standing::Absent);
    }
}
