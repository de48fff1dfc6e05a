//! Which spare descriptors there are ([`super::spare`]), and which of them are lent.
//!
//! A vfork child has copies of its parent's, and gives up a copy: the number is *lent* to it, and
//! is its parent's to give up again when the child has closed what it made of it. (A child that is
//! killed meanwhile keeps it for good.)

use crate::raw::is_away;
use std::sync::atomic::{AtomicI32, Ordering};

/// Enough for a fork with four nodes.
pub(super) const MOST: usize = 8;
/// No spare one.
pub(super) const NONE: i32 = -1;
/// How a lent number is written, and read.
pub(super) const fn lent(spare: i32) -> i32 {
    -2 - spare
}
/// Numbers of spare descriptors, as they are, lent, or none.
pub(super) static SPARE: [AtomicI32; MOST] = [const { AtomicI32::new(NONE) }; MOST];

/// Whether a number is lent to a vfork child. Its parent holds it open, so that nobody else's
/// descriptor has it.
pub(super) fn is_lent(fd: i32) -> bool {
    fd >= 0 && is_away() && SPARE.iter().any(|place| place.load(Ordering::Relaxed) == lent(fd))
}

/// A vfork child has closed a number: if it was lent, it is its parent's again. False: the child
/// has not got it.
pub(super) fn returned(fd: i32) -> bool {
    for place in SPARE.iter().filter(|_| fd >= 0) {
        let _ = place.compare_exchange(lent(fd), fd, Ordering::Relaxed, Ordering::Relaxed);
    }
    false
}
