//! Calls with a far position. In `/proc/PID/mem` a position is an address, and the kernel reads or
//! writes there even if the program itself may not.
//!
//! It is not checked whether the descriptor is of such a file. No other file that holds anything is
//! so long. If one is, pages come in for nothing, and its vectors are transferred one by one.
//!
//! `read` and `write` at a position that `lseek` has set do not come by here: they find what is
//! resident.

use super::array::each;
use super::peek::BAD_ADDRESS;
use super::pins::{CHUNK, MOST, Pins, USER_END};
use crate::call::{Call, issue};
use farmem_pager::Pager;

/// Bytes transferred at once: the pages of both sides are pinned.
const PIECE: usize = CHUNK / 2;
/// The most vectors that one call takes.
const MANY: usize = 1024;

/// pread, pwrite and their vectored kin, as these files have them: vector by vector, each to its
/// end.
pub fn transfer(pager: &'static Pager, call: &Call) -> isize {
    let at = call.args[3];
    if matches!(call.nr, libc::SYS_pread64 | libc::SYS_pwrite64) {
        if call.args[1].checked_add(call.args[2]).is_none_or(|end| end > USER_END) {
            // Refused, and not what is left of it when it is cut.
            return issue(call);
        }
        return one(pager, call, (call.args[1], call.args[2].min(MOST)), at, false);
    }
    let count = call.args[2];
    let (mut total, mut fits) = (0usize, true);
    let read = count <= MANY
        && each(call.args[1], count, |vector| {
            total = total.saturating_add(vector.iov_len);
            let end = (vector.iov_base as usize).checked_add(vector.iov_len);
            fits &= end.is_some_and(|end| end <= USER_END);
        });
    if !read || !fits || total == 0 || total > isize::MAX as usize {
        // Refused before anything is transferred, or nothing is; of far vectors all are here that
        // can be.
        let mut pins = Pins::new(pager);
        pins.add(call.args[1], count.min(MANY) * size_of::<libc::iovec>(), false);
        return issue(call);
    }
    let mut done = 0;
    let mut ended = None;
    each(call.args[1], count, |vector| {
        let len = vector.iov_len.min(MOST - done);
        if ended.is_some() || len == 0 {
            return;
        }
        let got = one(pager, call, (vector.iov_base as usize, len), at + done, true);
        if got < 0 {
            ended = Some(if done > 0 { done as isize } else { got });
            return;
        }
        done += got as usize;
        if got as usize != len {
            ended = Some(done as isize);
        }
    });
    ended.unwrap_or(done as isize)
}

/// One buffer, from or to what lies at `at`.
fn one(pager: &'static Pager, call: &Call, (addr, len): (usize, usize), at: usize, vectored: bool) -> isize {
    let writes = matches!(call.nr, libc::SYS_pwrite64 | libc::SYS_pwritev | libc::SYS_pwritev2);
    let mut done = 0;
    loop {
        let n = (len - done).min(PIECE);
        let vector = libc::iovec { iov_base: addr.wrapping_add(done) as *mut _, iov_len: n };
        let mut piece = *call;
        (piece.args[1], piece.args[2]) =
            if vectored { (&raw const vector as usize, 1) } else { (vector.iov_base as usize, n) };
        piece.args[3] = at + done;
        let mut pins = Pins::new(pager);
        pins.add(vector.iov_base as usize, n, !writes);
        pins.add_forced(at + done, n, writes);
        pins.note(call);
        let got = issue(&piece);
        // A buffer that ends is told of whatever was transferred before; memory that ends, only if
        // nothing was.
        if got == BAD_ADDRESS || got < 0 && done == 0 {
            return got;
        }
        done += got.max(0) as usize;
        if got != n as isize || done == len {
            return done as isize;
        }
    }
}
