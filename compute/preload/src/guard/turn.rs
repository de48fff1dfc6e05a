//! What one call must be, and what may be several.
//!
//! Linux lets a call on a file have its turn: others that append to the file, or that share its position, come before
//! it or after it, and not between two parts of what it transfers. So such a call is made as one, all that it can
//! transfer pinned, if that is no more than [`Pager::most_pins`]; long calls of several threads take turns
//! where they come to more together. What is longer goes in pieces, for to pin it would leave no local memory for
//! anything else: only there others can come between.
//!
//! A message is one call's whatever its length. Pipes and stream sockets give nobody his turn for more than they hold
//! at once, and a reader takes what is there: they go in pieces.

use super::CHUNK;
use crate::sandbox;
use farmem_pager::Pager;
use farmem_protocol::addr::PAGE_BYTES;
use farmem_sys::raw::{checked, sleep_ns};

/// How calls on a descriptor may be divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A file: one call, as far as that can be.
    File,
    /// `/dev/zero` and its like, block devices: bytes without an order of calls, for which nobody waits.
    Bytes,
    /// A pipe, a stream socket: bytes, for which a reader may have to wait.
    Stream,
    /// A message a call: of a datagram socket, or one that keeps records; what a file system in user space is told.
    Messages,
    /// Not to be asked: a filter of the program's could take it for the program's own question.
    Unknown,
}

/// Device number's major part: memory, zeros, random numbers.
const MEMORY_DEVICES: u32 = 1;

/// What is behind a descriptor, and how long it is (0: nobody knows).
pub fn kind(fd: usize) -> (Kind, usize) {
    if sandbox::alone().is_some() {
        return (Kind::Unknown, 0);
    }
    // SAFETY: all-zero is a valid stat.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a live stat.
    if unsafe { checked(libc::SYS_fstat, [fd, &raw mut about as usize, 0, 0, 0, 0]) }.is_err() {
        return (Kind::Unknown, 0);
    }
    let kind = match about.st_mode & libc::S_IFMT {
        libc::S_IFREG => Kind::File,
        libc::S_IFIFO => Kind::Stream,
        libc::S_IFBLK => Kind::Bytes,
        libc::S_IFCHR if libc::major(about.st_rdev) == MEMORY_DEVICES => Kind::Bytes,
        libc::S_IFSOCK if is_stream(fd) => Kind::Stream,
        _ => Kind::Messages,
    };
    (kind, about.st_size as usize)
}

fn is_stream(fd: usize) -> bool {
    let (mut kind, mut len) = (0i32, size_of::<i32>() as u32);
    let (level, option) = (libc::SOL_SOCKET as usize, libc::SO_TYPE as usize);
    let args = [fd, level, option, &raw mut kind as usize, &raw mut len as usize, 0];
    // SAFETY: a live word and its length.
    unsafe { checked(libc::SYS_getsockopt, args) }.is_ok() && kind == libc::SOCK_STREAM
}

/// How much of `len` bytes a read can bring of a file of that size: buffers may be far longer than what is left of it.
/// Whole pages, as reads past the page cache want them. `at`: from where; else from the descriptor's position.
pub fn within(fd: usize, size: usize, at: Option<usize>, len: usize) -> usize {
    let position = || {
        // SAFETY: no pointers.
        unsafe { checked(libc::SYS_lseek, [fd, 0, libc::SEEK_CUR as usize, 0, 0, 0]) }.unwrap_or(usize::MAX)
    };
    size.saturating_sub(at.unwrap_or_else(position)).next_multiple_of(PAGE_BYTES).min(len)
}

/// A call that is made as one. If it takes turns with others, it is its turn until this is dropped.
pub struct One {
    claimed: Option<(&'static Pager, u64)>,
}

/// Between looks whether it is this call's turn.
const LOOK_NS: u64 = 50_000;
/// So many without a turn, some ten seconds: who has it left its call by a jump out of a signal handler, or waits for
/// somebody who waits here.
const LOOKS: u32 = 200_000;

/// Waits for the turn of a call that is to be made as one; `None`: it is to go in pieces. It can transfer `len` bytes,
/// to or from so many buffers.
pub fn one(pager: &'static Pager, kind: Kind, len: usize, buffers: usize) -> Option<One> {
    // Buffers need not begin and end with pages.
    let pages = (len / PAGE_BYTES + 2 * buffers) as u64;
    let fits = pages <= pager.most_pins();
    match kind {
        Kind::File if fits && len > CHUNK => {
            let its_turn = (0..LOOKS).any(|_| {
                let claimed = pager.claim_pins(pages);
                if !claimed {
                    sleep_ns(LOOK_NS);
                }
                claimed
            });
            if !its_turn {
                pager.forget_claims();
            }
            (its_turn || pager.claim_pins(pages)).then_some(One { claimed: Some((pager, pages)) })
        }
        Kind::Messages => Some(One { claimed: None }),
        Kind::Unknown => fits.then_some(One { claimed: None }),
        _ => None,
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.claimed.iter().for_each(|&(pager, pages)| pager.give_back_pins(pages));
    }
}

/// Whether a read that came back full is to go on.
pub fn goes_on(kind: Kind) -> bool {
    matches!(kind, Kind::File | Kind::Bytes)
}
