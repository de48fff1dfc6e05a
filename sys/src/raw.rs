//! System calls by number, past every hook.
//!
//! The runtime patches libc and installs a seccomp filter that traps calls with
//! far pointers; its own calls must pass both. They go through the *gate*, whose
//! addresses the filter allows. Until [`set_gate`] is called (in a process
//! without a runtime: always) the gate is a private one.
//!
//! ```text
//!  gate +  0   syscall; ret          the runtime's own
//!       + 16   syscall; ret          the program's, made for it: a filter of its own can tell
//!       + 32   syscall; jmp *%r14    the runtime's threads, which have no stack to return by
//!       + 48   mov $15,%rax; syscall the returns of the runtime's signal handlers (only where it is set)
//! ```

use crate::members::any_companion;
use crate::{errno, vdso};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

core::arch::global_asm!(
    ".globl farmem_private_gate",
    ".hidden farmem_private_gate",
    ".type farmem_private_gate,@function",
    ".balign 64",
    "farmem_private_gate:",
    "syscall",
    "ret",
    ".balign 16",
    "syscall",
    "ret",
    ".balign 16",
    "syscall",
    "jmp r14",
    ".size farmem_private_gate, .-farmem_private_gate",
);

unsafe extern "C" {
    fn farmem_private_gate();
}

static GATE: AtomicUsize = AtomicUsize::new(0);

/// Offset in the gate of what makes the program's calls.
pub const GATE_PROGRAM: usize = 16;
/// … and threads.
pub const GATE_THREAD: usize = 32;
/// … and handlers' ends. libgcc recognises these instructions as a signal frame, and looks for it
/// from a byte before.
pub const GATE_RETURN: usize = 48;
/// The gate's instructions, each at its offset.
pub const GATE_CODE: [(usize, &[u8]); 4] = [
    (0, &[0x0f, 0x05, 0xc3]),
    (GATE_PROGRAM, &[0x0f, 0x05, 0xc3]),
    (GATE_THREAD, &[0x0f, 0x05, 0x41, 0xff, 0xe6]),
    (GATE_RETURN, &[0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05]),
];

/// Sends all later [`syscall`]s through the gate at `address`.
///
/// # Safety
/// `address` must hold exactly [`GATE_CODE`], executable, for the rest of the process.
pub unsafe fn set_gate(address: usize) {
    GATE.store(address, Ordering::Release);
}

/// The kernel's error for a call that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match errno::text(self.0) {
            Some(text) => write!(f, "{text} (os error {})", self.0),
            None => write!(f, "Unknown error {0} (os error {0})", self.0),
        }
    }
}

impl std::error::Error for Errno {}

/// Where the gate is.
#[inline]
pub(crate) fn gate() -> usize {
    match GATE.load(Ordering::Relaxed) {
        0 => farmem_private_gate as *const () as usize,
        gate => gate,
    }
}

/// Makes a system call; returns what the kernel returned, `-errno` included. Leaves `errno` alone.
///
/// # Safety
/// As the system call itself: the caller vouches for every pointer among the arguments.
#[inline]
pub unsafe fn syscall(nr: i64, args: [usize; 6]) -> isize {
    // SAFETY: passed on to the caller.
    unsafe { syscall_by(gate(), nr, args) }
}

/// [`syscall`] of the program's.
///
/// # Safety
/// As [`syscall`].
#[inline]
pub unsafe fn syscall_for_program(nr: i64, args: [usize; 6]) -> isize {
    // SAFETY: passed on to the caller.
    unsafe { syscall_by(gate() + GATE_PROGRAM, nr, args) }
}

#[inline(always)]
unsafe fn syscall_by(gate: usize, nr: i64, args: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: at `gate` is `syscall; ret` (set_gate's contract, or our own above). The instruction
    // clobbers rcx and r11. The call pushes a return address, so this block does not claim
    // `nostack`.
    unsafe {
        core::arch::asm!(
            "call {gate}",
            gate = in(reg) gate,
            inlateout("rax") nr as isize => ret,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            out("rcx") _,
            out("r11") _,
        );
    }
    ret
}

/// [`syscall`] as a `Result`.
///
/// # Safety
/// As [`syscall`].
#[inline]
pub unsafe fn checked(nr: i64, args: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: passed on to the caller.
    let ret = unsafe { syscall(nr, args) };
    if (-4095..0).contains(&ret) { Err(Errno(-ret as i32)) } else { Ok(ret as usize) }
}

/// Sleeps while `*word == expected`, at most `timeout_ns`; may wake early. `word` is
/// process-private.
pub fn futex_wait(word: &std::sync::atomic::AtomicU32, expected: u32, timeout_ns: u64) {
    let limit =
        libc::timespec { tv_sec: (timeout_ns / 1_000_000_000) as _, tv_nsec: (timeout_ns % 1_000_000_000) as _ };
    // SAFETY: both pointers are to live memory of ours for the length of the call.
    unsafe {
        syscall(
            libc::SYS_futex,
            [
                word.as_ptr() as usize,
                (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize,
                expected as usize,
                &limit as *const _ as usize,
                0,
                0,
            ],
        );
    }
}

/// Wakes up to `n` sleepers of [`futex_wait`].
pub fn futex_wake(word: &std::sync::atomic::AtomicU32, n: i32) {
    // SAFETY: the kernel only uses the address as a key.
    unsafe {
        syscall(
            libc::SYS_futex,
            [word.as_ptr() as usize, (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize, n as usize, 0, 0, 0],
        );
    }
}

/// Lets another thread run on this CPU.
pub fn yield_cpu() {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_sched_yield, [0; 6]) };
}

/// Sleeps about `ns` nanoseconds.
pub fn sleep_ns(ns: u64) {
    let time = libc::timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ };
    // SAFETY: `time` is live; the remainder is not asked for.
    unsafe { syscall(libc::SYS_nanosleep, [&time as *const _ as usize, 0, 0, 0, 0, 0]) };
}

/// Sleeps until a descriptor is readable, at most `timeout_ms`.
pub fn wait_readable(fd: i32, timeout_ms: i32) {
    let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd.
    unsafe { syscall(libc::SYS_poll, [&mut wanted as *mut _ as usize, 1, timeout_ms as usize, 0, 0, 0]) };
}

/// This process's id by a system call: in a vfork child, the child's.
pub fn getpid() -> u32 {
    // SAFETY: no pointers.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) as u32 }
}

/// The process that owns this memory. 0: not set.
static HOME: AtomicU32 = AtomicU32::new(0);

/// From now on this memory is the calling process's: at start, and in a forked child.
pub fn settle() {
    HOME.store(getpid(), Ordering::Relaxed);
}

/// The process that owns this memory. 0: not set.
pub(crate) fn home() -> u32 {
    HOME.load(Ordering::Relaxed)
}

/// Whether the caller is another process in the same memory with descriptors of its own: a vfork
/// child. Asks the system.
///
/// A companion (`CLONE_VM` and `CLONE_FILES`) is another process, and what it connects is its
/// maker's too.
pub fn is_away() -> bool {
    let home = HOME.load(Ordering::Relaxed);
    home != 0 && {
        let own = getpid();
        home != own && !share_descriptors(home, own)
    }
}

/// Whether two processes have one table of descriptors. False where the system does not tell.
fn share_descriptors(one: u32, other: u32) -> bool {
    const KCMP_FILES: usize = 2;
    // Asked for only where there may be a companion: a filter of the program's may forbid it.
    if !any_companion() {
        return false;
    }
    // SAFETY: no pointers.
    unsafe { syscall(libc::SYS_kcmp, [one as usize, other as usize, KCMP_FILES, 0, 0, 0]) == 0 }
}

/// Nanoseconds of `CLOCK_MONOTONIC`. The vDSO reads it without entering the kernel.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let told = vdso::clock_gettime().is_some_and(|read| {
        // SAFETY: `time` is live.
        unsafe { read(libc::CLOCK_MONOTONIC, &mut time) == 0 }
    });
    if !told {
        let time = &raw mut time as usize;
        // SAFETY: the kernel writes to `time` alone, which is live for the length of the call.
        unsafe { syscall(libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, time, 0, 0, 0, 0]) };
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of CPU time that the calling thread has had; 0 where the system does not say. A
/// system call of ours: the vDSO would make it for this clock, by an instruction that a program's
/// own filter may forbid.
pub fn thread_cpu_ns() -> u64 {
    cpu_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Nanoseconds of CPU time that all threads of this process have had, as [`thread_cpu_ns`].
pub fn process_cpu_ns() -> u64 {
    cpu_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn cpu_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes to `time` alone, which is live for the length of the call.
    unsafe {
        let time = &raw mut time as usize;
        syscall(libc::SYS_clock_gettime, [clock as usize, time, 0, 0, 0, 0])
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Receives without waiting; 0 is end of file.
pub fn recv_nowait(fd: i32, into: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the slice is live and near.
    unsafe {
        checked(
            libc::SYS_recvfrom,
            [fd as usize, into.as_mut_ptr() as usize, into.len(), libc::MSG_DONTWAIT as usize, 0, 0],
        )
    }
}

/// Everything that a file holds, of whatever length it says it is: for files of /proc.
///
/// # Errors
/// The error of open(2) or read(2).
pub fn read_file(path: &std::ffi::CStr) -> Result<Vec<u8>, Errno> {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: a live path.
    let fd = unsafe { checked(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0]) }?;
    let mut held = Vec::new();
    let ended = loop {
        held.reserve(16 << 10);
        let room = held.spare_capacity_mut();
        // SAFETY: live room of that length.
        match unsafe { checked(libc::SYS_read, [fd, room.as_mut_ptr() as usize, room.len(), 0, 0, 0]) } {
            Ok(0) => break Ok(()),
            // SAFETY: the kernel has filled so many bytes.
            Ok(n) => unsafe { held.set_len(held.len() + n) },
            Err(Errno(libc::EINTR)) => {}
            Err(e) => break Err(e),
        }
    };
    // SAFETY: no memory is involved; the descriptor is ours.
    unsafe { syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) };
    ended.map(|()| held)
}

/// Reads `len` bytes at `from` through a descriptor of
/// [`open_self_mem`](crate::descriptors::open_self_mem). Works under any protection of the pages.
///
/// # Errors
/// EIO when the range is not all present.
pub fn read_mem(fd: i32, from: usize, to: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's target; the kernel checks both ends.
    let read = unsafe { checked(libc::SYS_pread64, [fd as usize, to as usize, len, from, 0, 0])? };
    if read == len { Ok(()) } else { Err(Errno(libc::EIO)) }
}

/// While it lives, no signal is delivered to this thread but those that the kernel forces.
pub struct SignalsBlocked {
    before: u64,
}

impl SignalsBlocked {
    /// Blocks all signals of the calling thread but those that its faults and its filters' traps
    /// are.
    #[inline]
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        // SIGBUS and SIGSYS stay open: the program's faults in this window would be fatal
        // otherwise.
        Self::of(!(1u64 << (libc::SIGBUS - 1) | 1 << (libc::SIGSYS - 1)))
    }

    /// Those too, which may be sent by anybody: where nothing faults, and a handler of theirs must
    /// not come between. A call that a filter traps ends the process there.
    pub fn all() -> Self {
        Self::of(u64::MAX)
    }

    /// The mask before this. A call may wait with it.
    pub fn before(&self) -> u64 {
        self.before
    }

    #[inline]
    fn of(all: u64) -> Self {
        let mut before = 0u64;
        // SAFETY: two live words of the kernel's sigset size.
        unsafe {
            syscall(
                libc::SYS_rt_sigprocmask,
                [libc::SIG_SETMASK as usize, &all as *const u64 as usize, &mut before as *mut u64 as usize, 8, 0, 0],
            )
        };
        SignalsBlocked { before }
    }
}

impl Drop for SignalsBlocked {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a live word.
        unsafe {
            syscall(
                libc::SYS_rt_sigprocmask,
                [libc::SIG_SETMASK as usize, &self.before as *const u64 as usize, 0, 8, 0, 0],
            )
        };
    }
}

/// Writes all of `bytes`.
///
/// # Errors
/// The error of write(2). A part of the bytes may have been written.
pub fn write_all(fd: i32, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        // SAFETY: the slice is live and near.
        match unsafe { checked(libc::SYS_write, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) } {
            Ok(0) => return Err(Errno(libc::EIO)),
            Ok(n) => bytes = &bytes[n..],
            Err(Errno(libc::EINTR)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_to_its_end() {
        assert_eq!(read_file(c"/proc/self/maps/none"), Err(Errno(libc::ENOTDIR)));
        // Longer than one read gives.
        let own = std::env::current_exe().unwrap();
        assert!(read_file(c"/proc/self/exe").unwrap() == std::fs::read(own).unwrap());
        assert!(read_file(c"/proc/self/status").unwrap().starts_with(b"Name:"));
    }

    #[test]
    fn all_is_written_or_an_error_is_told() {
        let (from, to) = crate::descriptors::socket_pair().unwrap();
        write_all(to, b"all of it").unwrap();
        let mut into = [0; 16];
        assert_eq!(recv_nowait(from, &mut into), Ok(9));
        assert_eq!(&into[..9], b"all of it");
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert_eq!(write_all(std::os::fd::AsRawFd::as_raw_fd(&full), b"x"), Err(Errno(libc::ENOSPC)));
        [from, to].into_iter().for_each(crate::descriptors::close);
    }

    #[test]
    fn errors_come_back_as_errno() {
        // SAFETY: no pointers.
        let bad = unsafe { checked(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]) };
        assert_eq!(bad, Err(Errno(libc::EBADF)));
    }
}
