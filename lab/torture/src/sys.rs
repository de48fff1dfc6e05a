//! The calls that torture makes, thin and checked.
//!
//! Memory under test is named by plain addresses, never by references: it
//! changes under the program's feet by design, and half of it is unmapped.

// Torture exists to use raw memory; this file is where it does. The addresses
// come from `Estate` and `Commons`, which alone map and unmap them.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::stamp::{LINE, LINES, PAGE};

/// An mmap of private anonymous memory (or of nothing, with `PROT_NONE`).
pub fn map(at: usize, bytes: usize, prot: i32, extra: i32) -> io::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | extra;
    // SAFETY: `at` is 0, or inside the caller's estate, which it may replace.
    let got = unsafe { libc::mmap(at as *mut _, bytes, prot, flags, -1, 0) };
    if got == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(got as usize) }
}

/// Memory that is never far and is copied on fork: a private mapping of a memfd.
pub fn near(bytes: usize) -> io::Result<usize> {
    // SAFETY: a literal name; the descriptor is closed here, once the mapping holds the file.
    unsafe {
        let fd = libc::memfd_create(c"model".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 || libc::ftruncate(fd, bytes as i64) < 0 {
            return Err(io::Error::last_os_error());
        }
        let got = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE, fd, 0);
        libc::close(fd);
        if got == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(got as usize) }
    }
}

/// A near slice for the life of the process.
///
/// # Errors
/// The kernel's, when there is no memory.
pub fn near_slice<T: Copy>(len: usize) -> io::Result<&'static mut [T]> {
    let at = near((len * size_of::<T>()).max(1))?;
    // SAFETY: a fresh mapping of that many zero bytes, never unmapped; callers use it for integers,
    // of which zero is a value.
    Ok(unsafe { std::slice::from_raw_parts_mut(at as *mut T, len) })
}

macro_rules! checked {
    ($call:expr) => {{
        // SAFETY: the address range is inside the caller's estate; see the top of this file.
        let r = unsafe { $call };
        if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r as usize) }
    }};
}

/// munmap.
pub fn unmap(at: usize, bytes: usize) -> io::Result<()> {
    checked!(libc::munmap(at as *mut _, bytes)).map(drop)
}

/// mprotect.
pub fn protect(at: usize, bytes: usize, prot: i32) -> io::Result<()> {
    checked!(libc::mprotect(at as *mut _, bytes, prot)).map(drop)
}

/// madvise.
pub fn advise(at: usize, bytes: usize, advice: i32) -> io::Result<()> {
    checked!(libc::madvise(at as *mut _, bytes, advice)).map(drop)
}

/// mremap onto a stated place.
pub fn remap(from: usize, bytes: usize, to_bytes: usize, to: usize) -> io::Result<()> {
    // SAFETY: both ranges are the caller's.
    let got = unsafe {
        libc::mremap(
            from as *mut _,
            bytes,
            to_bytes,
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            to as *mut libc::c_void,
        )
    };
    if got == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads a line, word by word, so that a racing pager can tear nothing that the hardware does not.
#[inline]
pub fn read_line(at: usize) -> [u64; 8] {
    // SAFETY: the line lies in a readable page of the caller's; this thread alone writes it.
    std::array::from_fn(|k| unsafe { ((at + 8 * k) as *const u64).read_volatile() })
}

/// Writes a line.
#[inline]
pub fn write_line(at: usize, words: &[u64; 8]) {
    for (k, word) in words.iter().enumerate() {
        // SAFETY: as in `read_line`, and the page is writable.
        unsafe { ((at + 8 * k) as *mut u64).write_volatile(*word) };
    }
}

/// memmove between places of the caller's.
pub fn copy(from: usize, to: usize, bytes: usize) {
    // SAFETY: both ranges are mapped with the access they need; the caller's model says so.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) }
}

/// The bytes of a page, copied to where they are near.
pub fn snapshot(at: usize) -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    // SAFETY: a readable page of the caller's.
    unsafe { std::ptr::copy_nonoverlapping(at as *const u8, bytes.as_mut_ptr(), PAGE) };
    bytes
}

/// A word in far memory that threads add to at once.
pub fn atomic(at: usize) -> &'static AtomicU64 {
    // SAFETY: `Commons` maps its counters for the life of the process, aligned, and only atomically used.
    unsafe { &*(at as *const AtomicU64) }
}

/// An iovec over a place in memory.
pub fn iovec(at: usize, bytes: usize) -> libc::iovec {
    libc::iovec { iov_base: at as *mut _, iov_len: bytes }
}

/// Copies a table of iovecs to a far place, where the kernel is to read it.
pub fn place_iovecs(at: usize, vectors: &[libc::iovec]) {
    assert!(size_of_val(vectors) <= LINE * LINES);
    // SAFETY: a writable page of the caller's, at least as large.
    unsafe { std::ptr::copy_nonoverlapping(vectors.as_ptr(), at as *mut libc::iovec, vectors.len()) }
}

/// write(2) or pwrite(2).
pub fn write_at(fd: i32, at: usize, bytes: usize, offset: Option<i64>) -> io::Result<usize> {
    match offset {
        Some(offset) => checked!(libc::pwrite(fd, at as *const _, bytes, offset)),
        None => checked!(libc::write(fd, at as *const _, bytes)),
    }
}

/// read(2) or pread(2).
pub fn read_at(fd: i32, at: usize, bytes: usize, offset: Option<i64>) -> io::Result<usize> {
    match offset {
        Some(offset) => checked!(libc::pread(fd, at as *mut _, bytes, offset)),
        None => checked!(libc::read(fd, at as *mut _, bytes)),
    }
}

/// writev(2) with the vector itself at `table`.
pub fn writev(fd: i32, table: usize, count: usize) -> io::Result<usize> {
    checked!(libc::writev(fd, table as *const _, count as i32))
}

/// readv(2) with the vector itself at `table`.
pub fn readv(fd: i32, table: usize, count: usize) -> io::Result<usize> {
    checked!(libc::readv(fd, table as *const _, count as i32))
}

/// sendmsg(2) or recvmsg(2) with the vector itself at `table`.
pub fn message(fd: i32, table: usize, count: usize, send: bool) -> io::Result<usize> {
    // SAFETY: all zeros is a msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = table as *mut _;
    header.msg_iovlen = count;
    if send { checked!(libc::sendmsg(fd, &header, 0)) } else { checked!(libc::recvmsg(fd, &mut header, 0)) }
}

/// getrandom(2).
pub fn random(at: usize, bytes: usize) -> io::Result<usize> {
    checked!(libc::getrandom(at as *mut _, bytes, 0))
}

/// A futex operation on a far word: `FUTEX_WAIT` for a value it does not have, or `FUTEX_WAKE`.
pub fn futex(at: usize, operation: i32, value: u32) -> io::Result<usize> {
    checked!(libc::syscall(libc::SYS_futex, at, operation | libc::FUTEX_PRIVATE_FLAG, value, 0, 0, 0))
}

/// A pipe, a socket pair, a temporary file: the descriptors of one thread.
pub struct Channels {
    /// Read and write end.
    pub pipe: [i32; 2],
    /// A connected stream pair.
    pub pair: [i32; 2],
    /// An unlinked file.
    pub file: i32,
}

impl Channels {
    /// Opens them.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> io::Result<Channels> {
        let mut c = Channels { pipe: [-1; 2], pair: [-1; 2], file: -1 };
        let mut template = *b"/tmp/farmem-torture-XXXXXX\0";
        checked!(libc::pipe(c.pipe.as_mut_ptr()))?;
        checked!(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, c.pair.as_mut_ptr()))?;
        c.file = checked!(libc::mkstemp(template.as_mut_ptr().cast()))? as i32;
        checked!(libc::unlink(template.as_ptr().cast()))?;
        Ok(c)
    }
}

/// fork(2); 0 in the child.
pub fn fork() -> io::Result<i32> {
    checked!(libc::fork()).map(|pid| pid as i32)
}

/// Waits for a child; its raw status.
pub fn wait(pid: i32) -> io::Result<i32> {
    let mut status = 0;
    loop {
        match checked!(libc::waitpid(pid, &mut status, 0)) {
            Ok(_) => return Ok(status),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Ends the process at once, whatever its other threads do.
pub fn end(status: i32) -> ! {
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(status) }
}

/// The address of a thread's handle for [`signal_thread`].
pub fn this_thread() -> libc::pthread_t {
    // SAFETY: no arguments.
    unsafe { libc::pthread_self() }
}

/// Sends SIGUSR1 to a thread that has not ended.
pub fn signal_thread(thread: libc::pthread_t) {
    // SAFETY: the caller knows that the thread runs until told to stop.
    unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
}

static SIGNALS_PAGE: AtomicU64 = AtomicU64::new(0);
/// Signals handled so far.
pub static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_signal(_: i32) {
    let n = SIGNALS.fetch_add(1, Ordering::Relaxed);
    let at = SIGNALS_PAGE.load(Ordering::Relaxed) as usize;
    atomic(at + (farmem_protocol::random::hash(n) as usize % 4096) * 512).fetch_add(1, Ordering::Relaxed);
}

/// Installs a SIGUSR1 handler that itself adds to far counters: 512 pages at `at`.
///
/// # Errors
/// The kernel's.
pub fn handle_signals(at: usize) -> io::Result<()> {
    SIGNALS_PAGE.store(at as u64, Ordering::Relaxed);
    // SAFETY: all zeros is a sigaction; the handler above uses only atomics.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        for signal in [libc::SIGUSR1, libc::SIGALRM] {
            if libc::sigaction(signal, &action, std::ptr::null_mut()) < 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

/// SIGALRM to this process each millisecond, or no more.
pub fn signal_each_millisecond(on: bool) -> io::Result<()> {
    let each = libc::timeval { tv_sec: 0, tv_usec: if on { 1000 } else { 0 } };
    let timer = libc::itimerval { it_interval: each, it_value: each };
    // SAFETY: a live timer.
    match unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A coroutine whose stack is where the caller wants it.
pub struct Coroutine {
    contexts: Box<[libc::ucontext_t; 2]>,
    body: Option<Box<dyn FnOnce()>>,
}

impl Coroutine {
    /// Runs `body` on the stack `at..at+bytes` and comes back when it returns.
    pub fn run_on(at: usize, bytes: usize, body: impl FnOnce()) {
        // SAFETY: the transmute only forgets a lifetime that this call outlives: `body` has run, or
        // the process has ended, before we return.
        let body: Box<dyn FnOnce()> = unsafe { std::mem::transmute(Box::new(body) as Box<dyn FnOnce() + '_>) };
        // SAFETY: all zeros is where getcontext starts from.
        let mut this = Coroutine { contexts: Box::new(unsafe { std::mem::zeroed() }), body: Some(body) };
        let me: *mut Coroutine = &mut this;
        // SAFETY: the stack is a writable range of the caller's that nothing else touches meanwhile;
        // the entry function gets `me` in two halves, as makecontext passes ints; both contexts
        // live in `this` until the switch back.
        unsafe {
            let contexts: *mut libc::ucontext_t = (*me).contexts.as_mut_ptr();
            let (back, run) = (contexts, contexts.add(1));
            libc::getcontext(run);
            (*run).uc_stack.ss_sp = at as *mut _;
            (*run).uc_stack.ss_size = bytes;
            (*run).uc_link = back;
            let entry: extern "C" fn(u32, u32) = Coroutine::entry;
            let entry: extern "C" fn() = std::mem::transmute(entry);
            libc::makecontext(run, entry, 2, me as usize as u32, (me as usize >> 32) as u32);
            libc::swapcontext(back, run);
        }
    }

    extern "C" fn entry(low: u32, high: u32) {
        let me = (low as usize | (high as usize) << 32) as *mut Coroutine;
        // SAFETY: `run_on` passed its own live local and touches it only after we return.
        let body = unsafe { (*me).body.take() };
        if let Some(body) = body {
            body();
        }
    }
}
