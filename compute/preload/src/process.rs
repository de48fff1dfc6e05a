//! This process on far memory: its pager, and its counters in the run's file.

use farmem_pager::{Pager, ending};
use farmem_run::counters;
use farmem_sys::members;
use farmem_sys::raw::checked;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

static PAGER: AtomicPtr<Pager> = AtomicPtr::new(std::ptr::null_mut());

/// From now on the process is on far memory.
pub fn begin(pager: &'static Pager, grace: Duration) {
    PAGER.store(std::ptr::from_ref(pager).cast_mut(), Ordering::Release);
    let grace_ms = u32::try_from(grace.as_millis()).unwrap_or(u32::MAX);
    members::watch(ending::member_gone, || self::pager().look_for_members(), grace_ms);
}

/// The pager. Only after [`started`].
pub fn pager() -> &'static Pager {
    // SAFETY: set once from a &'static; callers run only after that.
    unsafe { &*PAGER.load(Ordering::Acquire) }
}

/// The process that the pager pages: a vfork child has the same pager, and is another.
static OWN_PID: AtomicU32 = AtomicU32::new(0);

/// From now on this process is the pager's. At start, and in a forked child.
pub fn take_over() {
    farmem_sys::raw::settle();
    OWN_PID.store(farmem_sys::raw::getpid(), Ordering::Relaxed);
}

/// Whether the calling process is the pager's, and not a vfork child of it.
pub fn is_this_process() -> bool {
    OWN_PID.load(Ordering::Relaxed) == farmem_sys::raw::getpid()
}

/// Whether this process is on far memory.
pub fn started() -> bool {
    !PAGER.load(Ordering::Acquire).is_null()
}

/// The run's file.
static COUNTERS: AtomicPtr<counters::File> = AtomicPtr::new(std::ptr::null_mut());

/// Maps a file of the run's, which all its processes share, for good.
///
/// # Safety
/// Any bytes must be a T, and the file must be as long as one.
pub unsafe fn map_shared<T>(path: &str) -> Option<&'static T> {
    let path = std::ffi::CString::new(path).ok()?;
    // SAFETY: a live path; the rest is the caller's promise.
    unsafe {
        let fd = checked(
            libc::SYS_openat,
            [libc::AT_FDCWD as usize, path.as_ptr() as usize, (libc::O_RDWR | libc::O_CLOEXEC) as usize, 0, 0, 0],
        )
        .ok()?;
        let at = checked(
            libc::SYS_mmap,
            [0, size_of::<T>(), (libc::PROT_READ | libc::PROT_WRITE) as usize, libc::MAP_SHARED as usize, fd, 0],
        );
        farmem_sys::descriptors::close(fd as i32);
        Some(&*(at.ok()? as *const T))
    }
}

/// Maps the run's file of counters, if it can be had.
pub fn map_counters(path: &str) -> Option<&'static counters::File> {
    // SAFETY: atomics; `farmem run` makes the file of this length, and then writes its magic.
    let file = unsafe { map_shared::<counters::File>(path) }?;
    if file.magic.load(Ordering::Relaxed) != counters::MAGIC {
        return None;
    }
    COUNTERS.store(std::ptr::from_ref(file).cast_mut(), Ordering::Relaxed);
    Some(file)
}

/// The run's file of counters, where it could be mapped.
pub fn run_file() -> Option<&'static counters::File> {
    // SAFETY: null or the mapped file, which stays.
    unsafe { COUNTERS.load(Ordering::Relaxed).as_ref() }
}

/// A process's own counters: a slot of the run's file, or memory that nobody reads.
pub fn claim_counters() -> &'static counters::Process {
    let pid = farmem_sys::raw::getpid();
    if let Some(file) = run_file() {
        // An exec in the same process goes on in the same slot.
        let slots = || file.processes.iter();
        if let Some(own) = slots().find(|p| p.pid.load(Ordering::Relaxed) == pid) {
            return own;
        }
        for slot in slots() {
            if slot.pid.compare_exchange(0, pid, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return slot;
            }
        }
        return &file.processes[counters::PROCESSES - 1];
    }
    // SAFETY: atomics: zero is valid.
    Box::leak(Box::new(unsafe { std::mem::zeroed() }))
}
