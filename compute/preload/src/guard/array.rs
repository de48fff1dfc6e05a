//! Arrays of vectors, as calls take them.

use super::peek::{peek, peek_into};

/// The most vectors that one call takes.
pub const MANY: usize = 1024;
/// Vectors that are read, and passed on, at once.
pub const FEW: usize = 64;
/// No vector.
pub const NONE: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Calls `with` each vector of an array of the program's, as far as it can be read; returns whether
/// all of it could.
pub fn each(addr: usize, count: usize, mut with: impl FnMut(libc::iovec)) -> bool {
    let mut some = [NONE; FEW];
    let mut n = 0;
    while n < count {
        let at = addr + n * size_of::<libc::iovec>();
        let few = (count - n).min(FEW);
        if peek_into(at, some.as_mut_ptr().cast(), few * size_of::<libc::iovec>()) {
            some[..few].iter().for_each(|&vector| with(vector));
            n += few;
        } else {
            let Some(vector) = peek(at) else { return false };
            with(vector);
            n += 1;
        }
    }
    true
}
