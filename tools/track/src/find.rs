//! Which pages were written: three ways of asking the kernel, and which of them it answers.
//!
//! | way | needs | cost |
//! |---|---|---|
//! | [`Way::Protect`] | Linux 6.7, a borrowed moment of the process | a fault inside the kernel at the first write to a page in a window, some 1 µs; 45 ns a page to ask |
//! | [`Way::SoftDirty`] | `CONFIG_MEM_SOFT_DIRTY` | the same fault; reading `pagemap` |
//! | [`Way::Read`] | nothing | no fault; the whole memory is read in each pause |
//!
//! A kernel without soft-dirty bits takes the write to `clear_refs` without a word
//! and then never sets one, so that a tracker that trusts it reports that nothing
//! is ever dirtied. Hence [`probe`]: each way is tried on a page of our own first.

use std::fs::OpenOptions;
use std::io::{self, Write};

use farmem_sys::pagemap::{Pagemap, Run, category, entry};
use farmem_sys::uffd::{self, WriteTracker};
use serde::Serialize;

use crate::diff::PAGE;

/// A way to find the pages that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Asynchronous write protection by a userfaultfd
    Protect,
    /// Soft-dirty bits
    SoftDirty,
    /// Reading everything
    Read,
}

impl Way {
    /// In a few words.
    pub fn describe(self) -> &'static str {
        match self {
            Way::Protect => "write protection resolved in the kernel (userfaultfd WP_ASYNC, PAGEMAP_SCAN)",
            Way::SoftDirty => "soft-dirty bits (clear_refs, pagemap)",
            Way::Read => "reading all of its memory",
        }
    }
}

/// Tries a way on this process.
///
/// # Errors
/// Why this kernel cannot be asked so.
pub fn probe(way: Way) -> Result<(), String> {
    match way {
        Way::Protect => probe_protect().map_err(|error| {
            let why = match error.raw_os_error() {
                Some(libc::ENOSYS) => "the kernel has no userfaultfd, or a container's seccomp profile hides it".into(),
                Some(libc::EPERM) => "a container's seccomp profile forbids userfaultfd".into(),
                Some(libc::EINVAL | libc::ENOTTY) => "it came with Linux 6.7".into(),
                _ => error.to_string(),
            };
            format!("no asynchronous write protection: {why}")
        }),
        Way::SoftDirty => match probe_soft_dirty() {
            Ok(true) => Ok(()),
            Ok(false) => Err("the kernel keeps no soft-dirty bits (CONFIG_MEM_SOFT_DIRTY is off)".into()),
            Err(error) => Err(format!("soft-dirty bits: {error}")),
        },
        Way::Read => Ok(()),
    }
}

/// The best way that works here.
pub fn best() -> Way {
    [Way::Protect, Way::SoftDirty].into_iter().find(|&way| probe(way).is_ok()).unwrap_or(Way::Read)
}

/// Two whole pages inside a buffer on the heap, with their first address.
fn own_pages() -> (Vec<u8>, u64) {
    let mut bytes = vec![1_u8; 3 * PAGE];
    let at = (bytes.as_mut_ptr() as u64).next_multiple_of(PAGE as u64);
    (bytes, at)
}

/// A store that is not left out.
fn store(bytes: &mut [u8], with: u8) {
    bytes.fill(std::hint::black_box(with));
    std::hint::black_box(bytes);
}

fn probe_protect() -> io::Result<()> {
    let pages = Pagemap::open(std::process::id())?;
    let tracker = WriteTracker::of(uffd::descriptor()?)?;
    let (mut bytes, at) = own_pages();
    let end = at + 2 * PAGE as u64;
    tracker.register(at, end - at)?;
    let written = || -> io::Result<bool> {
        let mut runs: Vec<Run> = Vec::new();
        pages.scan(at, end, true, &mut runs)?;
        Ok(runs.iter().any(|run| run.categories & category::WRITTEN != 0))
    };
    let at_first = written()?;
    let untouched = written()?;
    store(&mut bytes, 2);
    match (at_first, untouched, written()?) {
        (true, false, true) => Ok(()),
        _ => Err(io::Error::other("it was tried, and did not tell of a write")),
    }
}

fn probe_soft_dirty() -> io::Result<bool> {
    let pages = Pagemap::open(std::process::id())?;
    let (mut bytes, at) = own_pages();
    let dirty = || -> io::Result<bool> {
        let mut entries = [0; 2];
        pages.entries(at, &mut entries)?;
        Ok(entries.iter().all(|entry| entry & self::entry::SOFT_DIRTY != 0))
    };
    clear_soft_dirty(std::process::id())?;
    let untouched = dirty()?;
    store(&mut bytes, 2);
    Ok(!untouched && dirty()?)
}

/// Makes every page of a process count as not written since.
///
/// # Errors
/// The kernel's.
pub fn clear_soft_dirty(thread: u32) -> io::Result<()> {
    OpenOptions::new().write(true).open(format!("/proc/{thread}/clear_refs"))?.write_all(b"4")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_says_what_the_kernel_was_built_with() {
        assert_eq!(probe(Way::Read), Ok(()));
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        if (numbers.next(), numbers.next()) >= (Some(6), Some(7)) {
            assert_eq!(probe(Way::Protect), Ok(()));
            assert_eq!(best(), Way::Protect);
        }
        let soft_dirty = probe(Way::SoftDirty);
        assert!(soft_dirty.is_ok() || soft_dirty.as_ref().unwrap_err().contains("CONFIG_MEM_SOFT_DIRTY"));
    }
}
