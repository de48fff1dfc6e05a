//! Which calls must be made as one, and which may be several.
//!
//! ```text
//!                     read                                    write
//! file                pieces                                  one call while that is no more than [`Pager::most_pins`]
//!   at a position     pieces                                  pieces
//! zeros, block device pieces                                  pieces
//! pipe, stream, tty   one piece, all that is there: the       pieces ([`super::streams`] where a call is for sockets)
//!                     next could wait
//! messages            one call up to a bound, or cut there    the same; in several buffers one call
//! unknown             one piece                               pieces
//! ```
//!
//! Linux makes a write to a file whole: other appended bytes come before or after it, and never
//! between two parts of it. So such a write is made as one call, with all of it pinned. Long writes
//! of several threads take turns if they would pin too much together, but only for a limited time.
//! A write that is longer than that goes in pieces, because pinning it would leave no local memory
//! for anything else; other bytes can then come between. So they can where threads read at one
//! shared position, because buffers for reading are often far longer than the data.

use super::pins::{CHUNK, MOST, Pins};
use crate::call::Call;
use crate::confined;
use crate::threads::claim::RANGES;
use crate::threads::{self, Record};
use farmem_pager::Pager;
use farmem_protocol::addr::{PAGE_BYTES, is_far};
use farmem_sys::raw::{SignalsBlocked, checked, now_ns, sleep_ns};
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;

/// How calls on a descriptor may be divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A file.
    File,
    /// `/dev/zero` and similar, block devices: bytes without an order of calls, for which nothing
    /// waits.
    Bytes,
    /// A pipe, a stream socket, a terminal: bytes that a reader may have to wait for. Also a
    /// descriptor that is not open.
    Stream,
    /// One message a call: a datagram socket, or one that keeps records; also requests to a file
    /// system in user space.
    Messages,
    /// Not to be asked: a filter of the program's could take it for the program's own question.
    Unknown,
}

/// Device numbers' major parts: memory, zeros, random numbers.
const MEMORY: u32 = 1;

/// The kind of file behind a descriptor.
pub fn kind(fd: usize) -> Kind {
    if confined::alone().is_some() {
        return Kind::Unknown;
    }
    // SAFETY: all-zero is a valid stat.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a live stat.
    if unsafe { checked(libc::SYS_fstat, [fd, &raw mut about as usize, 0, 0, 0, 0]) }.is_err() {
        return Kind::Stream;
    }
    match about.st_mode & libc::S_IFMT {
        libc::S_IFREG => Kind::File,
        libc::S_IFBLK => Kind::Bytes,
        libc::S_IFIFO | libc::S_IFDIR => Kind::Stream,
        libc::S_IFCHR => match libc::major(about.st_rdev) {
            MEMORY => Kind::Bytes,
            // Terminals and serial lines, the program's own, both ends of pseudo-terminals.
            4 | 5 | 136..=143 => Kind::Stream,
            _ => Kind::Messages,
        },
        libc::S_IFSOCK if is_stream(fd) => Kind::Stream,
        _ => Kind::Messages,
    }
}

/// SCTP keeps messages apart on sockets of this type, too.
fn is_stream(fd: usize) -> bool {
    socket_option(fd, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
        && socket_option(fd, libc::SO_PROTOCOL) != Some(libc::IPPROTO_SCTP)
}

/// A socket's option that is a number.
pub fn socket_option(fd: usize, option: i32) -> Option<i32> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as u32);
    let args = [fd, libc::SOL_SOCKET as usize, option as usize, &raw mut value as usize, &raw mut len as usize, 0];
    // SAFETY: a live word and its length.
    unsafe { checked(libc::SYS_getsockopt, args) }.is_ok().then_some(value)
}

/// How a long call is made.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// The kind of file behind its descriptor, as far as it matters.
    pub kind: Kind,
    /// The most that is transferred at once, but for a write that is one call. Whole blocks, as a
    /// descriptor past the page cache wants them.
    pub piece: usize,
    /// Whether a piece that was transferred whole is followed by the next.
    pub goes_on: bool,
}

/// Waited for by a receiving call where nothing is there, or less: all of it is pinned while the
/// call waits.
const WAITED_FOR: usize = 64 << 10;

/// How far into a buffer of `len` bytes a receiving call reaches at most: as far as bytes wait, and
/// some more for those that may come meanwhile. Not less, because a short count may be taken to
/// mean that no more was there. If the number of waiting bytes is not known, one piece: mostly
/// there are none, and the call fails.
pub fn reach(fd: usize, len: usize) -> usize {
    let mut there = 0i32;
    // SAFETY: a live word.
    let asked = unsafe { checked(libc::SYS_ioctl, [fd, libc::FIONREAD as usize, &raw mut there as usize, 0, 0, 0]) };
    // For so much a call may be told to wait.
    let least = socket_option(fd, libc::SO_RCVLOWAT).unwrap_or(0);
    len.min(if asked.is_ok() { WAITED_FOR.max(there.max(least) as usize) } else { CHUNK })
}

/// Longest message that goes whole where local memory has room.
const MESSAGE: usize = 16 << 20;

/// How a long call on a descriptor is made.
pub fn how(pager: &Pager, fd: usize, writes: bool, positioned: bool) -> How {
    // To a position nobody else writes by accident.
    let kind = if writes && positioned { Kind::Bytes } else { kind(fd) };
    let room = (pager.pins.most_pins() as usize * PAGE_BYTES / CHUNK * CHUNK).max(CHUNK);
    let piece = match kind {
        Kind::Messages => MESSAGE.min(room),
        Kind::Stream if !writes => reach(fd, MOST),
        _ => CHUNK,
    };
    How { kind, piece, goes_on: writes || matches!(kind, Kind::File | Kind::Bytes) }
}

/// How much of a write to a file lies below the process's limit on the length of files. One call
/// would stop there and tell a short count. A piece that begins there is refused, with a signal.
/// `at`: the position that the call names.
pub fn below_limit(fd: usize, len: usize, at: Option<usize>) -> usize {
    let mut limit = [u64::MAX; 2];
    // SAFETY: all-zero is a valid stat.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    let ask = [0, libc::RLIMIT_FSIZE as usize, 0, &raw mut limit as usize, 0, 0];
    // SAFETY: a live limit and stat; nothing is set.
    let asked = unsafe {
        confined::alone().is_none()
            && checked(libc::SYS_prlimit64, ask).is_ok()
            && limit[0] != u64::MAX
            && checked(libc::SYS_fstat, [fd, &raw mut about as usize, 0, 0, 0, 0]).is_ok()
    };
    if !asked || about.st_mode & libc::S_IFMT != libc::S_IFREG {
        return len;
    }
    // SAFETY: no pointers.
    let (flags, own) = unsafe {
        (
            checked(libc::SYS_fcntl, [fd, libc::F_GETFL as usize, 0, 0, 0, 0]),
            checked(libc::SYS_lseek, [fd, 0, libc::SEEK_CUR as usize, 0, 0, 0]),
        )
    };
    let appends = flags.is_ok_and(|flags| flags as i32 & libc::O_APPEND != 0);
    let begins = if appends { Some(about.st_size as usize) } else { at.or(own.ok()) };
    // What begins at the limit is refused as a whole.
    let room = begins.and_then(|begins| (limit[0] as usize).checked_sub(begins)).filter(|&room| room > 0);
    room.map_or(len, |room| len.min(room))
}

/// A write that is made as one call. It is its turn until this is dropped.
pub struct One {
    record: &'static Record,
    serial: u64,
    pins: ManuallyDrop<Pins<'static>>,
}

/// Between looks whether it is this call's turn.
const LOOK_NS: u64 = 50_000;
/// The whole time that a write waits: the one that has the turn may itself wait for a thread that
/// waits here.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Waits for the turn of a write of `len` bytes that must be one call. `None`: it may go in pieces.
/// `buffers`: the number of its buffers, which need not begin and end with pages.
pub fn one(pager: &'static Pager, call: &Call, how: How, len: usize, buffers: usize) -> Option<One> {
    let pages = (len / PAGE_BYTES + 2 * buffers) as u64;
    if how.kind != Kind::File || pages > pager.pins.most_pins() {
        return None;
    }
    let record = threads::current();
    // One that shares another thread's has nowhere to note a claim.
    if !record.is_of_caller() || record.claim.is_interrupted(call.sp, |sp| record.is_asked(sp)) {
        return None;
    }
    record.claim.release();
    let until = now_ns() + PATIENCE_NS;
    loop {
        {
            // No handler leaves between the claim and its note.
            let _signals = SignalsBlocked::new();
            if pager.pins.claim_pins(pages) {
                let claim = &record.claim;
                let serial = claim.serial.fetch_add(1, Ordering::Relaxed) + 1;
                claim.sp.store(call.sp, Ordering::Relaxed);
                claim.losses.store(pager.pins.losses(), Ordering::Relaxed);
                claim.pages.store(pages, Ordering::Relaxed);
                return Some(One { record, serial, pins: ManuallyDrop::new(Pins::new(pager)) });
            }
        }
        if now_ns() >= until {
            return None;
        }
        sleep_ns(LOOK_NS);
    }
}

impl One {
    /// Pins a buffer, if it is far.
    pub fn pin(&mut self, addr: usize, len: usize) {
        if len == 0 || !is_far(addr) || !self.is_claimed() {
            return;
        }
        let before = self.pins.n;
        self.pins.add(addr, len, false);
        let claim = &self.record.claim;
        for &(at, length) in &self.pins.few[before..self.pins.n] {
            let count = claim.count.load(Ordering::Relaxed);
            if count < RANGES {
                // Once it is pinned: a jump before leaves it so.
                claim.ranges[count].0.store(at, Ordering::Relaxed);
                claim.ranges[count].1.store(length, Ordering::Relaxed);
                claim.count.store(count + 1, Ordering::Relaxed);
            }
        }
    }

    fn is_claimed(&self) -> bool {
        let claim = &self.record.claim;
        claim.serial.load(Ordering::Relaxed) == self.serial && claim.pages.load(Ordering::Relaxed) != 0
    }
}

impl Drop for One {
    fn drop(&mut self) {
        let _signals = SignalsBlocked::new();
        // Else this is a child of a handler's, which has no pins.
        if self.is_claimed() {
            self.record.claim.count.store(0, Ordering::Relaxed);
            // SAFETY: once, here.
            unsafe { ManuallyDrop::drop(&mut self.pins) };
            self.record.claim.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_told_apart() {
        use std::os::fd::AsRawFd;
        let opened = |path: &str| std::fs::File::open(path).unwrap();
        let of = |fd: i32| kind(fd as usize);
        let exe = std::env::current_exe().unwrap();
        assert_eq!(of(opened(exe.to_str().unwrap()).as_raw_fd()), Kind::File);
        assert_eq!(of(opened("/dev/zero").as_raw_fd()), Kind::Bytes);
        assert_eq!(of(opened("/dev/ptmx").as_raw_fd()), Kind::Stream);
        assert_eq!(of(opened("/").as_raw_fd()), Kind::Stream);
        assert_eq!(of(-1), Kind::Stream);
        let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(of(stream.as_raw_fd()), Kind::Stream);
        let datagrams = std::os::unix::net::UnixDatagram::unbound().unwrap();
        assert_eq!(of(datagrams.as_raw_fd()), Kind::Messages);
    }
}
