//! Sending to stream sockets and receiving from them, where a far buffer is long: in pieces, as `long` does for
//! `write` and `read`, so that a call pins no more than one.
//!
//! ```text
//! send      piece, piece, … until one is short             as one call that blocks until all is taken
//! receive   piece, then pieces without waiting, until one is short or nothing is there
//!                                                          as one call that takes what there is
//!   WAITALL piece, piece, … until one is short
//!   a look    one piece, of all that is there: who looks until all has come must see it
//! ```
//!
//! What of a call belongs to its bytes as a whole goes as one: urgent bytes, control messages that are sent, notices that a
//! buffer is free again, a connection's first bytes. So do messages: those of other sockets. Where control messages are
//! received, one piece comes, for the kernel ends such calls early, too.

use super::turn::{self, Kind, RECEIVED, there};
use super::vectors::{FEW, Rest};
use super::{BAD_ADDRESS, CHUNK, MOST, Pins, USER_END, pieces, pin_message, poke, whole};
use crate::call::{Call, issue};
use farmem_pager::Pager;
use farmem_protocol::addr::is_far;

/// Flags of calls that are made as one.
const AS_ONE: i32 = libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;

/// sendto and recvfrom.
pub fn transfer(pager: &'static Pager, call: &Call) -> isize {
    let (addr, len) = (call.args[1], call.args[2]);
    let short = !is_far(addr) || len <= CHUNK;
    if short || addr.checked_add(len).is_none_or(|end| end > USER_END) || !is_divisible(call.args[0], call.args[3]) {
        return whole(pager, call);
    }
    in_pieces(call.nr == libc::SYS_sendto, call.args[0], call.args[3], len.min(MOST), |done, bytes, flags| {
        let mut piece = *call;
        (piece.args[1], piece.args[2], piece.args[3]) = (addr + done, bytes, flags);
        if done > 0 {
            (piece.args[4], piece.args[5]) = (0, 0);
        }
        (whole(pager, &piece), bytes)
    })
}

/// sendmsg and recvmsg.
pub fn message(pager: &'static Pager, call: &Call) -> isize {
    let mut pins = Pins::new(pager);
    let Some((message, len)) = pin_message(&mut pins, call.args[1], call.nr == libc::SYS_recvmsg, CHUNK) else {
        return issue(call);
    };
    if len <= CHUNK {
        return issue(call);
    }
    drop(pins);
    let (sends, flags) = (call.nr == libc::SYS_sendmsg, call.args[2] as i32);
    let control = message.msg_controllen > 0;
    let as_one = control && (sends || flags & libc::MSG_WAITALL != 0)
        || flags & libc::MSG_PEEK != 0 && message.msg_iovlen > FEW
        || len > isize::MAX as usize;
    if as_one || !is_divisible(call.args[0], call.args[2]) {
        return whole(pager, call);
    }
    // Another piece would overwrite what was said with the first.
    let len = if control { len.min(RECEIVED) } else { len.min(MOST) };
    let mut rest = Rest::of(message.msg_iov as usize, message.msg_iovlen);
    let mut advanced = 0;
    in_pieces(sends, call.args[0], call.args[2], len, |done, bytes, flags| {
        rest.advance(done - advanced);
        advanced = done;
        let Some(mut some) = rest.piece(FEW, bytes) else { return (BAD_ADDRESS, bytes) };
        let mut part = message;
        (part.msg_iov, part.msg_iovlen) = (some.vectors.as_mut_ptr(), some.count as _);
        if done > 0 {
            (part.msg_name, part.msg_namelen) = (std::ptr::null_mut(), 0);
        }
        let mut piece = *call;
        (piece.args[1], piece.args[2]) = (&raw mut part as usize, flags);
        let got = whole(pager, &piece);
        if !sends && done == 0 && got >= 0 {
            // What the kernel says beside the bytes; where they go is the program's.
            (part.msg_iov, part.msg_iovlen) = (message.msg_iov, message.msg_iovlen);
            poke(call.args[1], part);
        }
        (got, some.bytes)
    })
}

/// Whether a call with these flags on this descriptor may be several.
fn is_divisible(fd: usize, flags: usize) -> bool {
    flags as i32 & AS_ONE == 0 && turn::kind(fd) == Kind::Stream
}

/// Makes pieces of a transfer of `len` bytes: `piece` is told what is done, how much comes next at most, and its flags; it
/// returns what came of it, and how much that could have been.
fn in_pieces(
    sends: bool,
    fd: usize,
    flags: usize,
    len: usize,
    mut piece: impl FnMut(usize, usize, usize) -> (isize, usize),
) -> isize {
    if sends {
        return pieces(len, CHUNK, |done, bytes| {
            let mut flags = flags;
            if done > 0 {
                // One call that has sent something says so, and no signal comes.
                flags |= libc::MSG_NOSIGNAL as usize;
            }
            if done + bytes < len {
                flags &= !(libc::MSG_EOR as usize);
            }
            piece(done, bytes, flags)
        });
    }
    if flags & libc::MSG_PEEK as usize != 0 {
        let most = there(fd).map_or(len, |there| len.min(there.max(RECEIVED)));
        return piece(0, most, flags).0;
    }
    if flags & libc::MSG_WAITALL as usize != 0 {
        return pieces(len, CHUNK, |done, bytes| piece(done, bytes, flags));
    }
    let least = turn::socket_option(fd, libc::SO_RCVLOWAT).map_or(0, |least| least.max(0) as usize);
    pieces(len, RECEIVED.max(least), |done, bytes| {
        let waits = if done > 0 { libc::MSG_DONTWAIT as usize } else { 0 };
        piece(done, bytes, flags | waits)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a transfer of two whole pieces and ten bytes comes to that stops at `end`, and its calls.
    fn made(sends: bool, flags: i32, end: usize) -> (isize, Vec<(usize, usize, i32)>) {
        let mut calls = Vec::new();
        let len = 2 * CHUNK + 10;
        let done = in_pieces(sends, usize::MAX, flags as usize, len, |done, bytes, flags| {
            calls.push((done, bytes, flags as i32));
            (if done == end { -(libc::EPIPE as isize) } else { bytes.min(end - done) as isize }, bytes)
        });
        (done, calls)
    }

    #[test]
    fn pieces_are_made_as_one_call_would_be() {
        let (eor, quiet, wait) = (libc::MSG_EOR, libc::MSG_NOSIGNAL, libc::MSG_DONTWAIT);
        let all = 2 * CHUNK + 10;
        let sent = vec![(0, CHUNK, 0), (CHUNK, CHUNK, quiet), (2 * CHUNK, 10, eor | quiet)];
        assert_eq!(made(true, eor, all), (all as isize, sent));
        // Cut in the midst of the second, and between the two.
        assert_eq!(made(true, 0, CHUNK + 5), (CHUNK as isize + 5, vec![(0, CHUNK, 0), (CHUNK, CHUNK, quiet)]));
        assert_eq!(made(true, 0, CHUNK), (CHUNK as isize, vec![(0, CHUNK, 0), (CHUNK, CHUNK, quiet)]));
        // Nothing is waited for once something has come.
        let came = vec![(0, RECEIVED, 0), (RECEIVED, RECEIVED, wait)];
        assert_eq!(made(false, 0, RECEIVED + 7), (RECEIVED as isize + 7, came));
        let (done, whole) = made(false, libc::MSG_WAITALL, all);
        assert_eq!((done, whole.len(), whole[2]), (all as isize, 3, (2 * CHUNK, 10, libc::MSG_WAITALL)));
    }

    #[test]
    fn what_cannot_be_divided_is_not() {
        use std::os::fd::AsRawFd;
        let (stream, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
        let datagrams = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let divisible = |fd: i32, flags: i32| is_divisible(fd as usize, flags as usize);
        assert!(divisible(stream.as_raw_fd(), libc::MSG_WAITALL | libc::MSG_NOSIGNAL));
        assert!(!divisible(stream.as_raw_fd(), libc::MSG_OOB));
        assert!(!divisible(datagrams.as_raw_fd(), 0));
        std::io::Write::write_all(&mut other, &[0; 77]).unwrap();
        assert_eq!((there(stream.as_raw_fd() as usize), there(usize::MAX)), (Some(77), None));
    }
}
