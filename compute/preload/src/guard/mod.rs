//! The guard: before a system call, the far pages that it will use are pinned; after it, unpinned.
//!
//! [`table`] says which memory a call uses. A long transfer is made piece by piece, so that few
//! pages are pinned at a time. If other transfers could come between its pieces, as in a write to a
//! file that several threads append to, it is one call, within bounds ([`turn`]).
//!
//! | file | |
//! |---|---|
//! | `pins`, `abandoned` | pins, and those of calls that never return |
//! | `arity`, `array` | arguments: how many, arrays |
//! | `behind`, `nested` | structures with pointers: known ones, and others |
//! | `peek` | reads and writes memory that an argument points to |
//! | `whole`, `vectors`, `streams` | how a call is made: whole, by buffers, on a socket |
//! | `forced` | calls with a far position, as in `/proc/PID/mem` |

pub mod abandoned;
pub mod arity;
mod array;
mod behind;
mod forced;
mod nested;
pub mod peek;
pub mod pins;
mod streams;
mod table;
pub mod turn;
mod vectors;
mod whole;

use crate::call::{Call, issue};
use farmem_pager::Pager;
use farmem_protocol::addr::is_far;
use pins::{CHUNK, MOST, USER_END};
use whole::whole;

/// Makes a call whose memory may be far.
pub fn call(pager: &'static Pager, call: &Call) -> isize {
    match call.nr {
        libc::SYS_pread64
        | libc::SYS_pwrite64
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
            if is_far(call.args[3]) =>
        {
            forced::transfer(pager, call)
        }
        libc::SYS_read | libc::SYS_write | libc::SYS_pread64 | libc::SYS_pwrite64
            if is_far(call.args[1]) && call.args[2] > CHUNK =>
        {
            long(pager, call)
        }
        libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2 => vectors::transfer(pager, call),
        libc::SYS_sendto | libc::SYS_recvfrom => streams::transfer(pager, call),
        libc::SYS_sendmsg | libc::SYS_recvmsg => streams::message(pager, call),
        libc::SYS_getrandom if is_far(call.args[0]) && call.args[1] > CHUNK => random(pager, call),
        _ => whole(pager, call),
    }
}

/// Makes a call as it stands by `make`, with all that it uses there.
pub fn made_by(pager: &'static Pager, call: &Call, make: impl FnOnce(&Call) -> isize) -> isize {
    whole::made_by(pager, call, make)
}

/// read, write and their kin with a long far buffer: as one call, or piece by piece until something
/// is short.
///
/// Reading from a pipe or a socket stops after one piece: the next piece could wait, where the
/// program's one call would not have. It takes all that is there, as one call would, because a
/// program that uses edge-triggered epoll takes a short read to mean that no more is there.
fn long(pager: &'static Pager, call: &Call) -> isize {
    let (fd, addr, len) = (call.args[0], call.args[1], call.args[2]);
    if addr.checked_add(len).is_none_or(|end| end > USER_END) {
        // Refused whatever else is right.
        return issue(call);
    }
    let len = len.min(MOST);
    let writes = matches!(call.nr, libc::SYS_write | libc::SYS_pwrite64);
    let positioned = matches!(call.nr, libc::SYS_pread64 | libc::SYS_pwrite64);
    let how = turn::how(pager, fd, writes, positioned);
    if writes && let Some(mut one) = turn::one(pager, call, how, len, 1) {
        one.pin(addr, len);
        return issue(call);
    }
    let len = if writes { turn::below_limit(fd, len, positioned.then_some(call.args[3])) } else { len };
    pieces(len, how.piece, how.goes_on, |done, bytes| {
        let mut piece = *call;
        piece.args[1] += done;
        piece.args[2] = bytes;
        if positioned {
            piece.args[3] += done;
        }
        whole(pager, &piece)
    })
}

/// getrandom with a long far buffer: bytes without an order.
fn random(pager: &'static Pager, call: &Call) -> isize {
    let (addr, len) = (call.args[0], call.args[1].min(MOST));
    if addr.checked_add(len).is_none_or(|end| end > USER_END) {
        return issue(call);
    }
    pieces(len, CHUNK, true, |done, bytes| {
        let mut piece = *call;
        (piece.args[0], piece.args[1]) = (addr + done, bytes);
        whole(pager, &piece)
    })
}

/// Makes pieces of at most `most` bytes of a transfer of `len` bytes, until one is short or fails,
/// or after the first. Returns their sum, or the first one's error. `piece` is told how much is
/// done and how much comes next.
fn pieces(len: usize, most: usize, goes_on: bool, mut piece: impl FnMut(usize, usize) -> isize) -> isize {
    let mut done = 0;
    while done < len {
        let wanted = (len - done).min(most);
        let got = piece(done, wanted);
        if got < 0 {
            return if done > 0 { done as isize } else { got };
        }
        done += got as usize;
        if got as usize != wanted || !goes_on {
            break;
        }
    }
    done as isize
}
