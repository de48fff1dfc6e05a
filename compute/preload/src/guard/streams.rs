//! Sending to stream sockets and receiving from them, where a far buffer is long: no more is pinned
//! than moves.
//!
//! ```text
//! receive             one call, cut where nothing is there any more ([`turn::reach`])
//! receive, WAITALL    ─┐ pieces that do not wait; between them, nothing pinned, the thread waits as one call would:
//! send                ─┘ for its socket's timeout together, and until a signal comes
//! ```
//!
//! Errors of a call that has moved some bytes are not reported, as in Linux. Two differences are
//! left. Each piece looks its descriptor up again, and finds another file if another thread has
//! closed it meanwhile. And bytes of several threads, sent longer than a socket's buffer or awaited
//! with WAITALL, may be divided at other places. A part of a call that belongs to its bytes as a
//! whole goes in one call, with everything pinned: urgent bytes, control messages that are sent,
//! notices that a buffer is free again, a connection's first bytes, and a look at a whole amount
//! (`MSG_PEEK` with WAITALL). So do messages of other kinds of sockets.

use super::array::FEW;
use super::peek::{BAD_ADDRESS, poke_from};
use super::pins::{CHUNK, MOST, Pins, USER_END};
use super::turn::{self, Kind};
use super::vectors::Rest;
use super::whole::{pin_message, whole};
use crate::call::{Call, issue};
use farmem_pager::Pager;
use farmem_protocol::addr::is_far;
use farmem_sys::raw::{SignalsBlocked, checked, now_ns};

/// Flags of calls that are made as one.
const AS_ONE: i32 = libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;
/// Sent or received by a call that waits itself, because nothing has moved yet: it may have to be
/// begun again after a signal.
const FIRST: usize = 64 << 10;

/// sendto and recvfrom.
pub fn transfer(pager: &'static Pager, call: &Call) -> isize {
    let (addr, len) = (call.args[1], call.args[2].min(MOST));
    let how = How::of(call.nr == libc::SYS_sendto, call.args[3]);
    if !is_far(addr) || len <= CHUNK || how == How::AsOne || turn::kind(call.args[0]) != Kind::Stream {
        return whole(pager, call);
    }
    if addr.checked_add(len).is_none_or(|end| end > USER_END) {
        // Refused whatever else is right.
        return issue(call);
    }
    let part = |done: usize, bytes: usize, flags: usize| {
        let mut piece = *call;
        (piece.args[1], piece.args[2], piece.args[3]) = (addr + done, bytes, flags);
        if done > 0 {
            (piece.args[4], piece.args[5]) = (0, 0);
        }
        (whole(pager, &piece), bytes)
    };
    match how {
        How::Reached => part(0, turn::reach(call.args[0], len), call.args[3]).0,
        _ => pieces(how, call.args[0], call.args[3], len, part),
    }
}

/// sendmsg and recvmsg.
pub fn message(pager: &'static Pager, call: &Call) -> isize {
    let receives = call.nr == libc::SYS_recvmsg;
    let mut pins = Pins::new(pager);
    let Some((message, len)) = pin_message(&mut pins, call.args[1], receives, CHUNK) else {
        return issue(call);
    };
    if len <= CHUNK {
        pins.note(call);
        return issue(call);
    }
    drop(pins);
    let (fd, flags) = (call.args[0], call.args[2]);
    let how = How::of(!receives, flags);
    let undivided = how == How::AsOne || message.msg_controllen > 0 && how != How::Reached;
    if undivided || len > isize::MAX as usize || turn::kind(fd) != Kind::Stream {
        return whole(pager, call);
    }
    let len = len.min(MOST);
    let mut rest = Rest::of(message.msg_iov as usize, message.msg_iovlen);
    if how == How::Reached {
        let reach = turn::reach(fd, len);
        let Some(mut some) = rest.piece(FEW, reach).filter(|some| some.bytes == reach) else {
            return whole(pager, call);
        };
        let mut part = message;
        (part.msg_iov, part.msg_iovlen) = (some.vectors.as_mut_ptr(), some.count as _);
        let mut cut = *call;
        cut.args[1] = &raw mut part as usize;
        let got = whole(pager, &cut);
        // The kernel's results beside the bytes.
        return if got < 0 || say(call.args[1], &part) { got } else { BAD_ADDRESS };
    }
    let mut advanced = 0;
    let got = pieces(how, fd, flags, len, |done, bytes, flags| {
        rest.advance(done - advanced);
        advanced = done;
        let Some(mut some) = rest.piece(FEW, bytes) else { return (BAD_ADDRESS, bytes) };
        let mut part = message;
        (part.msg_iov, part.msg_iovlen) = (some.vectors.as_mut_ptr(), some.count as _);
        if done > 0 || receives {
            (part.msg_name, part.msg_namelen) = (std::ptr::null_mut(), 0);
        }
        let mut piece = *call;
        (piece.args[1], piece.args[2]) = (&raw mut part as usize, flags);
        (whole(pager, &piece), some.bytes)
    });
    // A stream's bytes come from nobody by name, all of them were waited for, and nothing was said
    // with them.
    let nothing = libc::msghdr { msg_namelen: 0, msg_flags: 0, ..message };
    if receives && got >= 0 && !say(call.args[1], &nothing) { BAD_ADDRESS } else { got }
}

/// Writes into a message of the program's what the kernel writes there.
fn say(addr: usize, said: &libc::msghdr) -> bool {
    let at = |field: usize| addr + field;
    poke_from(at(std::mem::offset_of!(libc::msghdr, msg_namelen)), &said.msg_namelen.to_ne_bytes())
        && poke_from(at(std::mem::offset_of!(libc::msghdr, msg_controllen)), &said.msg_controllen.to_ne_bytes())
        && poke_from(at(std::mem::offset_of!(libc::msghdr, msg_flags)), &said.msg_flags.to_ne_bytes())
}

/// How a call is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    AsOne,
    /// Receives what there is.
    Reached,
    /// Receives all.
    Awaited,
    Sent,
}

impl How {
    fn of(sends: bool, flags: usize) -> How {
        let has = |flag: i32| flags as i32 & flag != 0;
        match sends {
            _ if has(AS_ONE) || has(libc::MSG_PEEK) && has(libc::MSG_WAITALL) => How::AsOne,
            true => How::Sent,
            false if has(libc::MSG_WAITALL) => How::Awaited,
            false => How::Reached,
        }
    }

    /// The event that a wait is for, and the option that limits it.
    fn waits(self) -> (i16, i32) {
        if self == How::Sent { (libc::POLLOUT, libc::SO_SNDTIMEO) } else { (libc::POLLIN, libc::SO_RCVTIMEO) }
    }
}

/// Makes pieces of a transfer of `len` bytes. `piece` is told what is done, how much comes next at
/// most, and its flags; it returns what came of it, and how much that could have been.
///
/// Signals are blocked but while the thread waits: one that came between two pieces would be over
/// by then, and not end the wait.
fn pieces(
    how: How,
    fd: usize,
    flags: usize,
    len: usize,
    mut piece: impl FnMut(usize, usize, usize) -> (isize, usize),
) -> isize {
    let waits = flags as i32 & libc::MSG_DONTWAIT == 0 && !is_nonblocking(fd);
    let until = if waits { timeout_ns(fd, how.waits().1).map(|ns| now_ns().saturating_add(ns)) } else { None };
    let mut blocked = SignalsBlocked::new();
    let mut done = 0;
    while done < len {
        let bytes = (len - done).min(CHUNK);
        let (got, asked) =
            piece(done, bytes, part_flags(flags, done, done + bytes == len) | libc::MSG_DONTWAIT as usize);
        match got {
            1.. => {
                done += got as usize;
                if got as usize >= asked {
                    continue;
                }
            }
            _ if got == -(libc::EAGAIN as isize) => {}
            _ => return if done > 0 { done as isize } else { got },
        }
        if !waits {
            return if done > 0 { done as isize } else { got };
        }
        if done > 0 {
            if !becomes_ready(fd, how.waits().0, until, blocked.before()) {
                return done as isize;
            }
            continue;
        }
        // The kernel decides whether a signal ends this wait or restarts it.
        drop(blocked);
        let bytes = len.min(FIRST);
        let (got, asked) = piece(0, bytes, part_flags(flags, 0, bytes == len));
        if got <= 0 || (got as usize) < asked {
            return got;
        }
        blocked = SignalsBlocked::new();
        done = got as usize;
    }
    done as isize
}

/// The flags of a part of a call.
fn part_flags(mut flags: usize, done: usize, is_last: bool) -> usize {
    if done > 0 {
        // One call that has sent something says so, and no signal comes.
        flags |= libc::MSG_NOSIGNAL as usize;
    }
    if !is_last {
        flags &= !(libc::MSG_EOR as usize);
    }
    flags
}

/// Waits until a piece may move something: false when there was a signal, the time is over, or the
/// connection has an end, of which the next call is to tell.
fn becomes_ready(fd: usize, what: i16, until: Option<u64>, mask: u64) -> bool {
    let mut asked = libc::pollfd { fd: fd as i32, events: what, revents: 0 };
    let left = until.map(|until| until.saturating_sub(now_ns()));
    let left =
        left.map(|ns| libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
    let left = left.as_ref().map_or(0, |left| std::ptr::from_ref(left) as usize);
    let args = [&raw mut asked as usize, 1, left, &raw const mask as usize, size_of::<u64>(), 0];
    // SAFETY: live structures.
    let ready = unsafe { checked(libc::SYS_ppoll, args) };
    ready.is_ok_and(|ready| ready > 0)
        && asked.revents & (libc::POLLERR | libc::POLLNVAL) == 0
        && asked.revents & what != 0
}

fn is_nonblocking(fd: usize) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { checked(libc::SYS_fcntl, [fd, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    flags.is_ok_and(|flags| flags as i32 & libc::O_NONBLOCK != 0)
}

/// The longest that a socket waits; `None`: for ever.
fn timeout_ns(fd: usize, option: i32) -> Option<u64> {
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut len = size_of::<libc::timeval>() as u32;
    let args = [fd, libc::SOL_SOCKET as usize, option as usize, &raw mut time as usize, &raw mut len as usize, 0];
    // SAFETY: a live structure and its length.
    unsafe { checked(libc::SYS_getsockopt, args) }.ok()?;
    let ns = (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_usec as u64 * 1000);
    (ns > 0).then_some(ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_a_call_is_decides_how_it_is_made() {
        let of = |sends, flags: i32| How::of(sends, flags as usize);
        assert_eq!([of(true, 0), of(false, 0), of(false, libc::MSG_PEEK)], [How::Sent, How::Reached, How::Reached]);
        assert_eq!(of(false, libc::MSG_WAITALL | libc::MSG_DONTWAIT), How::Awaited);
        for flags in [libc::MSG_OOB, libc::MSG_ZEROCOPY, libc::MSG_PEEK | libc::MSG_WAITALL] {
            assert_eq!(of(false, flags), How::AsOne);
        }
    }

    /// Result and calls of a transfer of two whole pieces and ten bytes that stops at `end`.
    fn made(flags: i32, end: usize, then: i32) -> (isize, Vec<(usize, usize, i32)>) {
        let (stream, _other) = UnixStream::pair().unwrap();
        let mut calls = Vec::new();
        let len = 2 * CHUNK + 10;
        let done = pieces(How::Sent, stream.as_raw_fd() as usize, flags as usize, len, |done, bytes, flags| {
            calls.push((done, bytes, flags as i32));
            (if done == end { -(then as isize) } else { bytes.min(end - done) as isize }, bytes)
        });
        (done, calls)
    }

    #[test]
    fn pieces_are_made_as_one_call_would_be() {
        let (eor, quiet, at_once) = (libc::MSG_EOR, libc::MSG_NOSIGNAL, libc::MSG_DONTWAIT);
        let all = 2 * CHUNK + 10;
        let first = (0, CHUNK, at_once);
        let second = (CHUNK, CHUNK, quiet | at_once);
        let third = (2 * CHUNK, 10, eor | quiet | at_once);
        assert_eq!(made(eor, all, 0), (all as isize, vec![first, second, third]));
        // Cut in the middle of the second, and between the two: by an error, and because there is
        // no room.
        assert_eq!(made(at_once, CHUNK + 5, 0), (CHUNK as isize + 5, vec![first, second]));
        assert_eq!(made(at_once, CHUNK, libc::EAGAIN), (CHUNK as isize, vec![first, second]));
        assert_eq!(made(0, CHUNK, libc::EPIPE), (CHUNK as isize, vec![first, second]));
        assert_eq!(made(0, 0, libc::EPIPE), (-libc::EPIPE as isize, vec![first]));
        // Nothing has moved: the kernel waits.
        assert_eq!(made(0, 0, libc::EAGAIN), (-libc::EAGAIN as isize, vec![first, (0, FIRST, 0)]));
    }

    #[test]
    fn a_wait_ends_when_one_call_would() {
        let (stream, mut other) = UnixStream::pair().unwrap();
        let fd = stream.as_raw_fd() as usize;
        assert_eq!((is_nonblocking(fd), timeout_ns(fd, libc::SO_RCVTIMEO)), (false, None));
        stream.set_nonblocking(true).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_millis(1500))).unwrap();
        assert_eq!((is_nonblocking(fd), timeout_ns(fd, libc::SO_RCVTIMEO)), (true, Some(1_500_000_000)));
        assert!(!becomes_ready(fd, libc::POLLIN, Some(now_ns() + 1_000_000), 0), "the time is over");
        assert_eq!(turn::reach(fd, 1 << 20), 64 << 10);
        other.write_all(&vec![0; 100_000]).unwrap();
        assert_eq!((turn::reach(fd, 1 << 20), turn::reach(fd, 70_000)), (100_000, 70_000));
        assert_eq!(turn::reach(usize::MAX, MOST), CHUNK, "of what is nothing no more than a piece is pinned");
        assert!(becomes_ready(fd, libc::POLLIN, None, 0));
        drop(other);
        assert!(becomes_ready(fd, libc::POLLIN, None, 0), "what was sent before is still there");
    }
}
