//! Swap as a baseline: a device of our own, and a memory group with a limit.
//!
//! Needs root. Everything made here is a value whose `Drop` removes it, in the
//! reverse order: swap off, device released, file system unmounted, group removed.
//! A swap area is on only while a program of ours runs, so that the machine's own
//! paging does not end up in it.
//!
//! The tmpfs file behind the loop device is written in full beforehand, by this
//! process: its pages are then charged here and not to the measured group, and
//! swapping allocates nothing. And it is locked in memory: an idle tmpfs page may
//! itself be swapped out, to the device it is part of, and a loop device that waits
//! for its own write waits for ever, with whoever calls swapoff.

#![allow(unsafe_code)] // swapon, swapoff, mount, umount and the loop device's ioctls.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

const PAGE: u64 = 4096;

/// Whether this user may do all that.
pub fn privileged() -> bool {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A memory group with a limit. Version 1 and 2 of the kernel's interface.
pub struct Group {
    path: PathBuf,
}

impl Group {
    /// Makes one for programs that may use `limit` bytes, and swap beyond. A process has one at a time.
    pub fn new(limit: u64) -> anyhow::Result<Group> {
        let group = Group::unlimited()?;
        let file = group.path.join(if group.version_2() { "memory.max" } else { "memory.limit_in_bytes" });
        fs::write(file, limit.to_string()).context("setting the memory group's limit")?;
        Ok(group)
    }

    /// Makes one that only counts.
    pub fn unlimited() -> anyhow::Result<Group> {
        let name = format!("farmem-bench-{}", std::process::id());
        let root = if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory")
                .context("memory groups: the root group does not hand the memory controller down")?;
            "/sys/fs/cgroup"
        } else if Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() {
            "/sys/fs/cgroup/memory"
        } else {
            bail!("this system has no memory groups (cgroup v1 or v2) at /sys/fs/cgroup");
        };
        let group = Group { path: Path::new(root).join(name) };
        fs::create_dir(&group.path).with_context(|| format!("making {}", group.path.display()))?;
        Ok(group)
    }

    fn version_2(&self) -> bool {
        self.path.join("memory.max").exists()
    }

    /// The most that its programs had at once, bytes: memory of every kind, the kernel's on their behalf too.
    ///
    /// # Errors
    /// Kernels from 4.5 to 5.18 do not tell where they have version 2.
    pub fn peak(&self) -> anyhow::Result<u64> {
        let file = self.path.join(if self.version_2() { "memory.peak" } else { "memory.max_usage_in_bytes" });
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        text.trim().parse().with_context(|| format!("{} is not a number", file.display()))
    }

    /// How many of its programs the kernel has killed because it found no page of theirs to swap out.
    pub fn killed(&self) -> u64 {
        let file = if self.version_2() { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// For [`join`].
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The programs have been waited for; the kernel may need a moment to let go of the last.
        for _ in 0..100 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        eprintln!("farmem: the memory group {} could not be removed: remove it with rmdir", self.path.display());
    }
}

/// Puts the calling process into a memory group.
///
/// # Errors
/// The kernel's.
pub fn join(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}

/// A block device that can be swapped to.
pub struct Area {
    device: PathBuf,
    /// What must be said of the device beside figures.
    pub remark: String,
    // Dropped after `on`'s guard: see `Area::on`.
    _backing: Backing,
}

enum Backing {
    Zram { number: u32, added: bool },
    Loop { device: File, _locked: Locked, _tmpfs: Tmpfs },
}

impl Drop for Backing {
    fn drop(&mut self) {
        match self {
            Backing::Zram { number, added } => {
                let _ = fs::write(format!("/sys/block/zram{number}/reset"), "1");
                if *added {
                    let _ = fs::write("/sys/class/zram-control/hot_remove", number.to_string());
                }
            }
            Backing::Loop { device, .. } => {
                // SAFETY: no memory is passed.
                unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD as libc::Ioctl, 0) };
            }
        }
    }
}

impl Area {
    /// Compressed memory of `bytes` uncompressed, with the kernel's default algorithm.
    pub fn zram(bytes: u64) -> anyhow::Result<Area> {
        let (number, added) = match fs::read_to_string("/sys/class/zram-control/hot_add") {
            Ok(number) => (number.trim().parse().context("zram-control")?, true),
            // No control file before Linux 4.2 or without the module; a device may be there and unused all the same.
            Err(_) => {
                let unused = fs::read_to_string("/sys/block/zram0/disksize")
                    .context("this kernel offers no zram (the module zram may not be loaded)")?;
                ensure!(unused.trim() == "0", "zram0 is in use and the kernel offers no other");
                (0, false)
            }
        };
        let backing = Backing::Zram { number, added };
        let of = |file: &str| format!("/sys/block/zram{number}/{file}");
        fs::write(of("disksize"), bytes.to_string()).context("sizing the zram device")?;
        let algorithms = fs::read_to_string(of("comp_algorithm")).unwrap_or_default();
        let algorithm = algorithms.split(['[', ']']).nth(1).unwrap_or("unknown");
        let device = PathBuf::from(format!("/dev/zram{number}"));
        if !device.exists() {
            make_node(&device, &of("dev"))?;
        }
        format_swap(&device, bytes)?;
        Ok(Area { device, remark: format!("zram compresses with {algorithm}"), _backing: backing })
    }

    /// A loop device over a file on a tmpfs of its own.
    pub fn looped(bytes: u64) -> anyhow::Result<Area> {
        let tmpfs = Tmpfs::mount(bytes + (1 << 20))?;
        let path = tmpfs.dir.join("swap");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        let zeros = vec![0; 1 << 20];
        for _ in 0..bytes >> 20 {
            (&file).write_all(&zeros).context("writing the swap file")?;
        }
        let locked = Locked::new(&file, bytes).context("locking the swap file in memory")?;
        let control = File::open("/dev/loop-control").context("this system offers no loop devices")?;
        // SAFETY: no memory is passed.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as libc::Ioctl) };
        ensure!(number >= 0, "no free loop device: {}", io::Error::last_os_error());
        let path = PathBuf::from(format!("/dev/loop{number}"));
        if !path.exists() {
            make_node(&path, &format!("/sys/block/loop{number}/dev"))?;
        }
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        // SAFETY: the argument is a descriptor, not memory.
        let attached = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_FD as libc::Ioctl, file.as_raw_fd()) };
        ensure!(attached == 0, "attaching {}: {}", path.display(), io::Error::last_os_error());
        let backing = Backing::Loop { device, _locked: locked, _tmpfs: tmpfs };
        format_swap(&path, bytes)?;
        Ok(Area { device: path, remark: "the loop device lies on tmpfs".into(), _backing: backing })
    }

    /// Swaps to it, before any other area, until the guard goes.
    pub fn on(&self) -> anyhow::Result<On<'_>> {
        let path = CString::new(self.device.as_os_str().as_bytes())?;
        // SAFETY: a live path. The highest priority there is.
        let failed = unsafe { libc::swapon(path.as_ptr(), SWAP_FLAG_PREFER | 32767) } != 0;
        ensure!(!failed, "swapon {}: {}", self.device.display(), io::Error::last_os_error());
        Ok(On { path, _area: self })
    }
}

/// See [`Area::on`].
pub struct On<'a> {
    path: CString,
    _area: &'a Area,
}

impl Drop for On<'_> {
    fn drop(&mut self) {
        // SAFETY: a live path.
        if unsafe { libc::swapoff(self.path.as_ptr()) } != 0 {
            eprintln!("farmem: swapoff {}: {}", self.path.to_string_lossy(), io::Error::last_os_error());
        }
    }
}

const SWAP_FLAG_PREFER: i32 = 0x8000;
const LOOP_CTL_GET_FREE: u64 = 0x4C82;
const LOOP_SET_FD: u64 = 0x4C00;
const LOOP_CLR_FD: u64 = 0x4C01;

/// A file system in memory, mounted in a directory of its own.
struct Tmpfs {
    dir: PathBuf,
}

impl Tmpfs {
    fn mount(bytes: u64) -> anyhow::Result<Tmpfs> {
        let dir = std::env::temp_dir().join(format!("farmem-bench-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
        let target = CString::new(dir.as_os_str().as_bytes())?;
        let size = CString::new(format!("size={bytes}"))?;
        // SAFETY: live strings.
        let mounted =
            unsafe { libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, size.as_ptr().cast()) == 0 };
        if !mounted {
            let error = io::Error::last_os_error();
            let _ = fs::remove_dir(&dir);
            return Err(error).context("mounting a tmpfs");
        }
        Ok(Tmpfs { dir })
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        if let Ok(target) = CString::new(self.dir.as_os_str().as_bytes()) {
            // SAFETY: a live path. Detached: the loop device lets go of its file only in its own time.
            unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        }
        let _ = fs::remove_dir(&self.dir);
    }
}

/// A file's pages, kept from being swapped out: see the top of this file.
struct Locked {
    address: *mut libc::c_void,
    len: usize,
}

impl Locked {
    fn new(file: &File, bytes: u64) -> io::Result<Locked> {
        let len = bytes as usize;
        // SAFETY: a new mapping of a file of ours, never read or written through.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let locked = Locked { address, len };
        // SAFETY: the mapping just made.
        if unsafe { libc::mlock(address, len) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(locked)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.address, self.len) };
    }
}

/// Writes an empty swap area's first page, as mkswap does: version, last page, and a signature at the page's end.
fn format_swap(device: &Path, bytes: u64) -> anyhow::Result<()> {
    let mut page = [0; PAGE as usize];
    page[1024..1028].copy_from_slice(&1u32.to_le_bytes());
    page[1028..1032].copy_from_slice(&u32::try_from(bytes / PAGE - 1)?.to_le_bytes());
    page[4086..].copy_from_slice(b"SWAPSPACE2");
    let device =
        OpenOptions::new().write(true).open(device).with_context(|| format!("opening {}", device.display()))?;
    device.write_all_at(&page, 0)?;
    device.sync_all()?;
    Ok(())
}

/// Makes a device's node where no udev does.
fn make_node(device: &Path, numbers: &str) -> anyhow::Result<()> {
    let numbers = fs::read_to_string(numbers).with_context(|| format!("{} is missing", device.display()))?;
    let (major, minor) = numbers.trim().split_once(':').context("device numbers")?;
    let path = CString::new(device.as_os_str().as_bytes())?;
    // SAFETY: a live path.
    let made =
        unsafe { libc::mknod(path.as_ptr(), libc::S_IFBLK | 0o600, libc::makedev(major.parse()?, minor.parse()?)) };
    ensure!(made == 0, "making {}: {}", device.display(), io::Error::last_os_error());
    Ok(())
}
