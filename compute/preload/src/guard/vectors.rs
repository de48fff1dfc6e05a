//! Calls on vectors of buffers: where their far memory is long, as one call or in pieces, as `long`
//! does for one buffer.

use super::array::{FEW, MANY, NONE, each};
use super::peek::{BAD_ADDRESS, peek};
use super::pins::{CHUNK, MOST, Pins};
use super::turn::{self, Kind};
use super::whole::whole;
use crate::call::{Call, issue};
use farmem_pager::Pager;
use farmem_protocol::addr::is_far;

/// The rest of an array of vectors.
#[derive(Clone, Copy)]
pub struct Rest {
    at: usize,
    count: usize,
    /// Bytes of the first that are done.
    done: usize,
    read: fn(usize) -> Option<libc::iovec>,
}

/// Vectors for one piece, near.
pub struct Piece {
    /// The vectors.
    pub vectors: [libc::iovec; FEW],
    /// Their number.
    pub count: usize,
    /// Bytes in them.
    pub bytes: usize,
}

impl Rest {
    /// All of an array.
    pub fn of(at: usize, count: usize) -> Rest {
        Rest { at, count, done: 0, read: peek }
    }

    /// The next vectors: at most `vectors` of them, and `bytes` together. `None` where they cannot
    /// be read.
    pub fn piece(&self, vectors: usize, bytes: usize) -> Option<Piece> {
        let mut piece = Piece { vectors: [NONE; FEW], count: 0, bytes: 0 };
        let mut done = self.done;
        for n in 0..self.count {
            if piece.count == vectors.min(FEW) || piece.bytes == bytes {
                break;
            }
            let vector = (self.read)(self.at + n * size_of::<libc::iovec>())?;
            let len = (vector.iov_len - done.min(vector.iov_len)).min(bytes - piece.bytes);
            if len > 0 {
                let iov_base = vector.iov_base.cast::<u8>().wrapping_add(done).cast();
                piece.vectors[piece.count] = libc::iovec { iov_base, iov_len: len };
                piece.count += 1;
                piece.bytes += len;
            }
            done = 0;
        }
        Some(piece)
    }

    /// Those bytes are done.
    pub fn advance(&mut self, bytes: usize) {
        self.done += bytes;
        while self.count > 0 {
            let Some(vector) = (self.read)(self.at) else { return };
            if self.done < vector.iov_len {
                return;
            }
            self.done -= vector.iov_len;
            self.at += size_of::<libc::iovec>();
            self.count -= 1;
        }
    }
}

/// readv, writev and their kin.
pub fn transfer(pager: &'static Pager, call: &Call) -> isize {
    let (at, count) = (call.args[1], call.args[2]);
    let reads = matches!(call.nr, libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2);
    let mut pins = Pins::new(pager);
    let (mut total, mut far) = (0usize, false);
    let read = count <= MANY
        && each(at, count, |vector| {
            total = total.saturating_add(vector.iov_len);
            far |= is_far(vector.iov_base as usize) && vector.iov_len > 0;
            if total <= CHUNK {
                pins.add(vector.iov_base as usize, vector.iov_len, reads);
            }
        });
    if far && read && total > CHUNK && total <= isize::MAX as usize {
        drop(pins);
        return long(pager, call, total.min(MOST));
    }
    pins.add(at, count.min(MANY) * size_of::<libc::iovec>(), false);
    pins.note(call);
    issue(call)
}

fn long(pager: &'static Pager, call: &Call, len: usize) -> isize {
    let (fd, mut rest) = (call.args[0], Rest::of(call.args[1], call.args[2]));
    let writes = matches!(call.nr, libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2);
    let positioned = match call.nr {
        libc::SYS_preadv | libc::SYS_pwritev => true,
        // An offset of -1 says: as readv.
        libc::SYS_preadv2 | libc::SYS_pwritev2 => call.args[3] != usize::MAX,
        _ => false,
    };
    let how = turn::how(pager, fd, writes, positioned);
    // A file whose kind is unknown is treated the same, because a read of a message may not be cut
    // short.
    if matches!(how.kind, Kind::Unknown | Kind::Messages) {
        return whole(pager, call);
    }
    if writes && let Some(mut one) = turn::one(pager, call, how, len, call.args[2]) {
        one.pin(call.args[1], call.args[2] * size_of::<libc::iovec>());
        each(call.args[1], call.args[2], |vector| one.pin(vector.iov_base as usize, vector.iov_len));
        return issue(call);
    }
    // Less than what there is would be taken for all of it.
    let falls_short = |wanted: usize| rest.piece(FEW, wanted).is_none_or(|piece| piece.bytes < wanted);
    if how.kind == Kind::Stream && !writes && falls_short(len.min(how.piece)) {
        return whole(pager, call);
    }
    let len = if writes { turn::below_limit(fd, len, positioned.then_some(call.args[3])) } else { len };
    let mut done = 0;
    while done < len {
        let piece = match rest.piece(FEW, (len - done).min(how.piece)) {
            Some(piece) if piece.bytes > 0 => piece,
            // Another thread has shortened what was measured.
            Some(_) => break,
            None if done == 0 => return BAD_ADDRESS,
            None => break,
        };
        let mut one = *call;
        one.args[1] = piece.vectors.as_ptr() as usize;
        one.args[2] = piece.count;
        if positioned {
            one.args[3] += done;
        }
        let got = whole(pager, &one);
        if got < 0 {
            return if done > 0 { done as isize } else { got };
        }
        done += got as usize;
        if got as usize != piece.bytes || !how.goes_on {
            break;
        }
        rest.advance(got as usize);
    }
    done as isize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_to_the_whole() {
        let lens = [0usize, 5, 7, 0, 100, 1];
        let base = |n: usize| (n + 1) << 20;
        let vectors: Vec<libc::iovec> =
            lens.iter().enumerate().map(|(n, &iov_len)| libc::iovec { iov_base: base(n) as *mut _, iov_len }).collect();
        let all: Vec<usize> =
            lens.iter().enumerate().flat_map(|(n, &len)| (0..len).map(move |i| base(n) + i)).collect();
        for (most_vectors, most_bytes) in [(1, 3), (2, 9), (FEW, 1), (FEW, 1000)] {
            // SAFETY: within `vectors`.
            let read = |at| Some(unsafe { *(at as *const libc::iovec) });
            let mut rest = Rest { at: vectors.as_ptr() as usize, count: vectors.len(), done: 0, read };
            let mut seen = Vec::new();
            loop {
                let piece = rest.piece(most_vectors, most_bytes).unwrap();
                if piece.bytes == 0 {
                    break;
                }
                assert!(piece.count <= most_vectors && piece.bytes <= most_bytes);
                for vector in &piece.vectors[..piece.count] {
                    seen.extend((0..vector.iov_len).map(|i| vector.iov_base as usize + i));
                }
                rest.advance(piece.bytes);
            }
            assert_eq!(seen, all, "{most_vectors} vectors, {most_bytes} bytes");
        }
    }
}
