//! Stream sockets by descriptor: never blocking, gathered and scattered, with descriptors passed
//! along.
//!
//! For code that runs inside other people's programs: every call goes through
//! the gate ([`crate::raw`]), descriptors are ours ([`own_fd`]), nothing is
//! allocated, and waiting is a call of its own.

mod address;

use crate::descriptors::spare;
use crate::descriptors::{close, own_fd};
use crate::memory::copy_bytes;
use crate::raw::{Errno, checked, now_ns};
use address::Address;
use std::ffi::CStr;
use std::mem::{ManuallyDrop, offset_of, zeroed};
use std::net::SocketAddr;
use std::path::Path;

/// Bytes to send or room to receive: one element of a gathered or scattered transfer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Part {
    at: *mut u8,
    len: usize,
}

impl Part {
    /// Names `len` bytes at `at`. Naming is harmless; [`send`] and [`receive`] state what must
    /// hold.
    pub const fn new(at: *mut u8, len: usize) -> Part {
        Part { at, len }
    }

    /// Bytes named.
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The same, or its first `most` bytes.
    pub fn shortened(&self, most: usize) -> Part {
        Part { at: self.at, len: self.len.min(most) }
    }

    /// The bytes named.
    ///
    /// # Safety
    /// As [`send`]; and nothing may write to them meanwhile.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the caller's promise. An empty part may name nothing.
        if self.len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.at, self.len) } }
    }

    /// Copies what lies `from` bytes into the part to all of `into`. Others may write to the part
    /// meanwhile.
    ///
    /// # Safety
    /// As [`send`]; and the part is that long.
    #[inline]
    pub unsafe fn copy_out(&self, from: usize, into: &mut [u8]) {
        // SAFETY: inside the part, which the caller vouches for; a slice of ours cannot overlap it.
        unsafe { copy_bytes(self.at.add(from), into.as_mut_ptr(), into.len()) };
    }

    /// Copies `bytes` into the part, starting `from` bytes into it. Bytes beyond its end are left
    /// out.
    ///
    /// # Safety
    /// As [`receive`].
    pub unsafe fn fill(&self, from: usize, bytes: &[u8]) {
        let n = bytes.len().min(self.len.saturating_sub(from));
        // SAFETY: inside the part, which the caller vouches for; a slice of ours cannot overlap it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.add(from), n) };
    }
}

const _: () = assert!(size_of::<Part>() == size_of::<libc::iovec>() && offset_of!(libc::iovec, iov_len) == 8);

/// Elements of one transfer, at most (`UIO_MAXIOV`).
pub const MAX_PARTS: usize = 1024;

/// The peer to connect to.
#[derive(Clone, Copy, Debug)]
pub enum Peer<'a> {
    /// An internet address.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(&'a Path),
}

/// Connects within `timeout_ns`. The descriptor is ours, non-blocking, close-on-exec, without
/// delay.
///
/// # Errors
/// ETIMEDOUT when the time is over; otherwise the errors of connect(2).
pub fn connect(peer: Peer<'_>, timeout_ns: u64) -> Result<i32, Errno> {
    let until = now_ns() + timeout_ns;
    let mut address = Address::of(peer)?;
    let family = address.family();
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = unsafe { spare::made(libc::SYS_socket, [family as usize, kind as usize, 0, 0, 0, 0])? } as i32;
    let fd = own_fd(fd)?;
    if let Peer::Tcp(_) = peer {
        send_at_once(fd);
    }
    let done = (|| {
        loop {
            // SAFETY: `address` is live and holds `len` valid bytes.
            let began = unsafe {
                checked(libc::SYS_connect, [fd as usize, address.at() as usize, address.len as usize, 0, 0, 0])
            };
            match began {
                Ok(_) => return Ok(()),
                Err(Errno(libc::EINPROGRESS)) => break,
                Err(Errno(libc::EISCONN)) => return Ok(()),
                // A Unix socket whose backlog is full says EAGAIN and is to be asked again.
                Err(Errno(libc::EAGAIN)) if now_ns() < until => crate::raw::sleep_ns(1_000_000),
                Err(Errno(libc::EINTR)) => {}
                Err(e) => return Err(e),
            }
        }
        while wait(fd, false, true, until.saturating_sub(now_ns())) == 0 {
            if now_ns() >= until {
                return Err(Errno(libc::ETIMEDOUT));
            }
        }
        match option(fd, libc::SOL_SOCKET, libc::SO_ERROR)? {
            0 => Ok(()),
            e => Err(Errno(e)),
        }
    })();
    if let Err(e) = done {
        close(fd);
        return Err(e);
    }
    Ok(fd)
}

/// Has the kernel send what a TCP socket is given at once: short segments are not held back, and
/// none is paced.
///
/// Call it before the socket connects or listens: a socket that was paced once stays so. Accepted
/// sockets inherit it.
///
/// If the system's congestion control is BBR, the kernel sets a timer for each segment. That costs
/// a seventh of a page's round trip over loopback (`memory/examples/roundtrip.rs`). BBR suits paths
/// of milliseconds, and far memory is one switch away. So CUBIC or Reno is set in its place; any
/// user may choose Reno. Any other congestion control stays.
pub fn send_at_once(fd: i32) {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    if congestion(fd).is_some_and(|name| name.starts_with(b"bbr")) {
        // The first is what Linux has by default; often only the second is allowed to everybody.
        let _ = [c"cubic", c"reno"].iter().any(|name| set_congestion(fd, name).is_ok());
    }
}

/// Longest name of a congestion control (`TCP_CA_NAME_MAX`).
const CONGESTION_NAME: usize = 16;

/// The name of a TCP socket's congestion control, padded with zeros.
fn congestion(fd: i32) -> Option<[u8; CONGESTION_NAME]> {
    let (mut name, mut len) = ([0; CONGESTION_NAME], CONGESTION_NAME as u32);
    let [level, option] = [libc::IPPROTO_TCP, libc::TCP_CONGESTION].map(|n| n as usize);
    // SAFETY: live bytes and their number.
    let told = unsafe {
        let (name, len) = (name.as_mut_ptr() as usize, &mut len as *mut u32 as usize);
        checked(libc::SYS_getsockopt, [fd as usize, level, option, name, len, 0])
    };
    told.is_ok().then_some(name)
}

fn set_congestion(fd: i32, name: &CStr) -> Result<(), Errno> {
    let [level, option] = [libc::IPPROTO_TCP, libc::TCP_CONGESTION].map(|n| n as usize);
    let (at, len) = (name.as_ptr() as usize, name.count_bytes());
    // SAFETY: live bytes and their number.
    unsafe { checked(libc::SYS_setsockopt, [fd as usize, level, option, at, len, 0]) }.map(drop)
}

/// Sends what fits now. Returns how much.
///
/// # Safety
/// Every part must name readable memory for the length of the call; it may be raced.
#[inline]
pub unsafe fn send(fd: i32, parts: &[Part]) -> Result<usize, Errno> {
    // SAFETY: zero is valid for a msghdr.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = parts.as_ptr() as *mut libc::iovec;
    message.msg_iovlen = parts.len().min(MAX_PARTS);
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    // SAFETY: the header is live; its parts are the caller's promise.
    unsafe { retried(libc::SYS_sendmsg, [fd as usize, &message as *const _ as usize, flags, 0, 0, 0]) }
}

/// Receives what is there into the parts in turn. Returns how much; 0 is the end of the stream.
///
/// # Errors
/// EAGAIN when nothing is there.
///
/// # Safety
/// Every part must name writable memory that nothing in the program holds a reference to.
#[inline]
pub unsafe fn receive(fd: i32, parts: &[Part]) -> Result<usize, Errno> {
    if let [part] = parts {
        // `recvfrom` takes a third less time than `recvmsg`, which matters when polls often find
        // nothing.
        let (at, len) = (part.at as usize, part.len);
        // SAFETY: the part is the caller's promise.
        return unsafe { retried(libc::SYS_recvfrom, [fd as usize, at, len, libc::MSG_DONTWAIT as usize, 0, 0]) };
    }
    // SAFETY: zero is valid for a msghdr.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = parts.as_ptr() as *mut libc::iovec;
    message.msg_iovlen = parts.len().min(MAX_PARTS);
    // SAFETY: the header is live; its parts are the caller's promise.
    unsafe {
        retried(libc::SYS_recvmsg, [fd as usize, &mut message as *mut _ as usize, libc::MSG_DONTWAIT as usize, 0, 0, 0])
    }
}

/// [`send`] of one run of bytes.
pub fn send_bytes(fd: i32, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the slice is live.
    unsafe { send(fd, &[Part::new(bytes.as_ptr() as *mut u8, bytes.len())]) }
}

/// [`receive`] into one run of bytes.
pub fn receive_bytes(fd: i32, into: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the slice is live and exclusively ours.
    unsafe { receive(fd, &[Part::new(into.as_mut_ptr(), into.len())]) }
}

/// Whether the peer has closed the stream, or it is broken. Takes no bytes from it, and also sees
/// an end that lies behind bytes not taken yet.
pub fn is_cut(fd: i32) -> bool {
    // (Peeking at the next byte would not do: a caller that does not wait for bytes would never see
    // the end.)
    let mut wanted = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    let limit = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one live pollfd and a live timespec; no signal mask.
    let told =
        unsafe { retried(libc::SYS_ppoll, [&mut wanted as *mut _ as usize, 1, &limit as *const _ as usize, 0, 0, 0]) };
    told.is_err() || wanted.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
}

/// Control message that carries one descriptor.
#[repr(C)]
struct OneDescriptor {
    head: libc::cmsghdr,
    fd: i32,
    pad: i32,
}

const ONE: usize = size_of::<libc::cmsghdr>() + size_of::<i32>();

/// [`send`] with a descriptor along the first byte (Unix sockets).
///
/// # Safety
/// As [`send`].
pub unsafe fn send_with_descriptor(fd: i32, parts: &[Part], passed: i32) -> Result<usize, Errno> {
    // SAFETY: zero is valid for both.
    let (mut message, mut control): (libc::msghdr, OneDescriptor) = unsafe { (zeroed(), zeroed()) };
    control.head.cmsg_len = ONE;
    control.head.cmsg_level = libc::SOL_SOCKET;
    control.head.cmsg_type = libc::SCM_RIGHTS;
    control.fd = passed;
    message.msg_iov = parts.as_ptr() as *mut libc::iovec;
    message.msg_iovlen = parts.len().min(MAX_PARTS);
    message.msg_control = (&mut control as *mut OneDescriptor).cast();
    message.msg_controllen = size_of::<OneDescriptor>();
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    // SAFETY: header and control message are live; the parts are the caller's promise.
    unsafe { retried(libc::SYS_sendmsg, [fd as usize, &message as *const _ as usize, flags, 0, 0, 0]) }
}

/// [`send_with_descriptor`] of one run of bytes.
pub fn send_frame(fd: i32, bytes: &[u8], passed: i32) -> Result<usize, Errno> {
    // SAFETY: the slice is live.
    unsafe { send_with_descriptor(fd, &[Part::new(bytes.as_ptr() as *mut u8, bytes.len())], passed) }
}

/// A descriptor that a peer passed. It is closed when dropped: a peer may pass one that nobody
/// asked for.
#[derive(Debug)]
pub struct Passed(i32);

impl Passed {
    /// The descriptor, for the caller to close.
    pub fn into_raw(self) -> i32 {
        ManuallyDrop::new(self).0
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// Receives bytes, and the descriptor that came with them, which is then ours.
pub fn receive_with_descriptor(fd: i32, into: &mut [u8]) -> Result<(usize, Option<Passed>), Errno> {
    let mut part = Part::new(into.as_mut_ptr(), into.len());
    // SAFETY: zero is valid for both.
    let (mut message, mut control): (libc::msghdr, OneDescriptor) = unsafe { (zeroed(), zeroed()) };
    message.msg_iov = (&mut part as *mut Part).cast();
    message.msg_iovlen = 1;
    message.msg_control = (&mut control as *mut OneDescriptor).cast();
    // Without the padding, in which the kernel would put a second descriptor.
    message.msg_controllen = ONE;
    let flags = (libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) as usize;
    // A descriptor that comes when the process may have no more is lost. So a spare one is closed
    // first.
    let lent = spare::give_up();
    // SAFETY: header, part and room for one descriptor are live.
    let n = unsafe { retried(libc::SYS_recvmsg, [fd as usize, &mut message as *mut _ as usize, flags, 0, 0, 0]) };
    let came = n.is_ok()
        && message.msg_controllen >= ONE
        && control.head.cmsg_len == ONE
        && (control.head.cmsg_level, control.head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    // If the descriptor cannot be made ours, the call still succeeds: its bytes are taken.
    let came = if came { own_fd(control.fd).ok().map(Passed) } else { None };
    if lent {
        spare::keep();
    }
    Ok((n?, came))
}

/// Bytes that were sent by a Unix socket and not taken yet, with what the kernel needs to hold
/// them.
pub fn untaken(fd: i32) -> usize {
    let mut bytes = 0i32;
    // SAFETY: a live int.
    let told = unsafe {
        checked(libc::SYS_ioctl, [fd as usize, libc::TIOCOUTQ as usize, &mut bytes as *mut i32 as usize, 0, 0, 0])
    };
    told.map_or(0, |_| bytes.max(0) as usize)
}

/// Sleeps until the descriptor is readable or writable, as asked, at most `timeout_ns`.
/// Returns the events, 0 when none came; an error or hang-up of the stream counts as both.
pub fn wait(fd: i32, read: bool, write: bool, timeout_ns: u64) -> i16 {
    let events = if read { libc::POLLIN } else { 0 } | if write { libc::POLLOUT } else { 0 };
    let mut wanted = libc::pollfd { fd, events, revents: 0 };
    let limit =
        libc::timespec { tv_sec: (timeout_ns / 1_000_000_000) as _, tv_nsec: (timeout_ns % 1_000_000_000) as _ };
    // SAFETY: one live pollfd and a live timespec; no signal mask.
    unsafe { checked(libc::SYS_ppoll, [&mut wanted as *mut _ as usize, 1, &limit as *const _ as usize, 0, 0, 0]) }
        .map_or(0, |_| wanted.revents)
}

/// Sleeps until one of several descriptors is readable, or writable where that is asked; at most
/// `timeout_ns`. Of more than [`MOST_AWAITED`] the first are looked at.
pub fn wait_any(wanted: impl Iterator<Item = (i32, bool)>, timeout_ns: u64) {
    let nothing = libc::pollfd { fd: -1, events: 0, revents: 0 };
    let mut polled = [nothing; MOST_AWAITED];
    let mut n = 0;
    for (at, (fd, write)) in polled.iter_mut().zip(wanted) {
        *at = libc::pollfd { fd, events: libc::POLLIN | if write { libc::POLLOUT } else { 0 }, revents: 0 };
        n += 1;
    }
    let limit =
        libc::timespec { tv_sec: (timeout_ns / 1_000_000_000) as _, tv_nsec: (timeout_ns % 1_000_000_000) as _ };
    // SAFETY: `n` live pollfds and a live timespec; no signal mask.
    let _ =
        unsafe { checked(libc::SYS_ppoll, [polled.as_mut_ptr() as usize, n, &limit as *const _ as usize, 0, 0, 0]) };
}

/// Descriptors that [`wait_any`] looks at, at most.
pub const MOST_AWAITED: usize = 64;

/// Makes the kernel give up a TCP connection whose peer has been silent, data or none, for about
/// `ms`. It asks for an acknowledgement when the connection has been idle for `idle_s` seconds.
pub fn notice_silence(fd: i32, idle_s: i32, ms: u32) {
    ask_when_idle(fd, idle_s);
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, (ms / 1000).clamp(3, 100) as i32);
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, ms as i32);
}

/// Has the kernel take no more bytes for a TCP peer while about so many wait until it takes some.
pub fn keep_unsent_below(fd: i32, bytes: i32) {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes);
}

/// Has the kernel take no more bytes for a TCP peer while about so many have been taken that the peer
/// has not acknowledged. Without it the kernel decides, by how fast the peer is.
pub fn hold_at_most(fd: i32, bytes: i32) {
    // The kernel doubles it, for what it needs itself.
    set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes / 2);
}

/// Has the kernel ask for an acknowledgement when a TCP connection has been idle for `idle_s`
/// seconds, and each second from then on until it has one.
pub fn ask_when_idle(fd: i32, idle_s: i32) {
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle_s);
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 1);
}

/// The peer's acknowledgements on a TCP connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acknowledged {
    /// Milliseconds since its last acknowledgement of anything.
    pub before_ms: u32,
    /// Packets that were sent and that it has not acknowledged.
    pub missing: u32,
    /// Packets with data that came, repeated ones too. Wraps.
    pub segments: u32,
    /// Bytes that it has acknowledged, and bytes that came for the first time.
    pub progress: u64,
}

/// The acknowledgements of a TCP connection's peer. `None` of any other socket.
pub fn acknowledged(fd: i32) -> Option<Acknowledged> {
    // The head of the kernel's `struct tcp_info`: eight bytes, then words.
    const MISSING: usize = 6;
    const LAST_ACKNOWLEDGED: usize = 14;
    const BYTES_ACKNOWLEDGED: usize = 30;
    const BYTES_RECEIVED: usize = 32;
    const DATA_SEGMENTS: usize = 38;
    let mut about = [0u32; DATA_SEGMENTS + 1];
    let len = size_of_val(&about) as u32;
    let mut told = len;
    let [level, option] = [libc::IPPROTO_TCP, libc::TCP_INFO].map(|n| n as usize);
    // SAFETY: live words and their length in bytes.
    unsafe {
        let (about, told) = (about.as_mut_ptr() as usize, &mut told as *mut u32 as usize);
        checked(libc::SYS_getsockopt, [fd as usize, level, option, about, told, 0]).ok()?;
    }
    let wide = |at: usize| u64::from(about[at]) | u64::from(about[at + 1]) << 32;
    (told == len).then(|| Acknowledged {
        before_ms: about[LAST_ACKNOWLEDGED],
        missing: about[MISSING],
        segments: about[DATA_SEGMENTS],
        progress: wide(BYTES_ACKNOWLEDGED).wrapping_add(wide(BYTES_RECEIVED)),
    })
}

/// Lets more connections wait at a listener that nobody has accepted yet: as many as the system
/// allows, 4096 at most.
pub fn let_many_wait(fd: i32) {
    // SAFETY: no pointers.
    let _ = unsafe { checked(libc::SYS_listen, [fd as usize, 4096, 0, 0, 0, 0]) };
}

/// Sets an integer option, best effort.
pub fn set_option(fd: i32, level: i32, name: i32, value: i32) {
    // SAFETY: one live int.
    let _ = unsafe {
        checked(
            libc::SYS_setsockopt,
            [fd as usize, level as usize, name as usize, &value as *const i32 as usize, size_of::<i32>(), 0],
        )
    };
}

fn option(fd: i32, level: i32, name: i32) -> Result<i32, Errno> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as u32);
    // SAFETY: a live int and its length.
    unsafe {
        checked(
            libc::SYS_getsockopt,
            [
                fd as usize,
                level as usize,
                name as usize,
                &mut value as *mut i32 as usize,
                &mut len as *mut u32 as usize,
                0,
            ],
        )?
    };
    Ok(value)
}

/// Address of this end of a TCP connection.
pub fn local_address(fd: i32) -> Option<SocketAddr> {
    Address::told_by(libc::SYS_getsockname, fd)
}

/// Address of the other end of a TCP connection.
pub fn peer_address(fd: i32) -> Option<SocketAddr> {
    Address::told_by(libc::SYS_getpeername, fd)
}

/// A call that a signal's handler cannot make fail.
///
/// # Safety
/// As [`checked`].
#[inline]
unsafe fn retried(nr: i64, args: [usize; 6]) -> Result<usize, Errno> {
    loop {
        // SAFETY: passed on to the caller.
        match unsafe { checked(nr, args) } {
            Err(Errno(libc::EINTR)) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests;
