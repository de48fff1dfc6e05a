//! Spare descriptors, for the runtime to use when the program has opened as many as it may.
//!
//! A fork needs a connection to each node, a socket pair, a userfaultfd; a thread's first fault
//! over TCP a connection; a slab over shared memory the descriptor that it comes as. A program at
//! its limit (`RLIMIT_NOFILE`) is within its rights, and must not be told that its node is lost.
//!
//! ```text
//!  keep ─► spare: an eventfd that nobody uses ── EMFILE ─► closed; its number is the new descriptor's
//!   ▲                                                                         │
//!   └───────────── housekeeping, after a fork: once there is room again ◄─────┘
//! ```
//! (Lent to vfork children: [`super::lent`].)

use super::lent::{MOST, NONE, SPARE, lent, returned};
use super::numbers::{close, own_fd};
use crate::raw::{Errno, checked, is_away};
use std::sync::atomic::Ordering;

/// One descriptor in `OF` that a program may have is taken from it.
const OF: u64 = 32;
/// The least number of a spare. Lower numbers are left to the program, which expects them: `open`
/// gives the lowest that is free.
const LEAST: i32 = 200;

/// Opens the spares that are missing, as far as the limit allows. A vfork child opens none: its
/// numbers would stand where its parent looks. It gives back those that were lent to it and are
/// unused.
pub fn keep() {
    if is_away() {
        for spare in SPARE.iter().map(|place| place.load(Ordering::Relaxed)).filter(|&place| place < NONE).map(lent) {
            // SAFETY: no pointers. What another child was lent is still open here, as its parent's.
            let unused =
                unsafe { checked(libc::SYS_fcntl, [spare as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) }.is_err();
            if unused {
                returned(spare);
            }
        }
        return;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live rlimit; null: nothing is set.
    let asked = unsafe {
        let limit = &mut limit as *mut libc::rlimit as usize;
        checked(libc::SYS_prlimit64, [0, libc::RLIMIT_NOFILE as usize, 0, limit, 0, 0])
    };
    if asked.is_err() {
        return;
    }
    let most = if limit.rlim_cur > LEAST as u64 { (limit.rlim_cur / OF).min(MOST as u64) as usize } else { 0 };
    // If the limit was lowered, closing a spare above it makes no room. Such spares are closed now.
    for place in &SPARE {
        let spare = place.load(Ordering::Relaxed);
        if spare < 0 || (spare as u64) < limit.rlim_cur {
            continue;
        }
        // Takes the entry out and closes the descriptor that it names by now.
        match place.swap(NONE, Ordering::Relaxed) {
            taken if taken < 0 => {}
            taken => close(taken),
        }
    }
    for place in SPARE.iter().take(most).filter(|place| place.load(Ordering::Relaxed) == NONE) {
        // SAFETY: no pointers.
        let made = unsafe { checked(libc::SYS_eventfd2, [0, libc::EFD_CLOEXEC as usize, 0, 0, 0, 0]) };
        let Ok(made) = made else { return };
        let Ok(spare) = own_fd(made as i32) else { return };
        // The limit is too low for a spare that the program would not notice.
        if spare < LEAST {
            return close(spare);
        }
        if place.compare_exchange(NONE, spare, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            close(spare);
        }
    }
}

/// Closes a spare, so that another descriptor can be opened. False when none is left.
pub fn give_up() -> bool {
    if is_away() {
        return SPARE.iter().any(|place| {
            let spare = place.load(Ordering::Relaxed);
            // SAFETY: no pointers. The child's copy: its parent still has it.
            let closed = || unsafe { checked(libc::SYS_close, [spare as usize, 0, 0, 0, 0, 0]) }.is_ok();
            let took = |to| place.compare_exchange(spare, to, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            spare >= 0 && took(lent(spare)) && (closed() || returned(spare))
        });
    }
    for place in &SPARE {
        let spare = place.load(Ordering::Relaxed);
        if spare >= 0 && place.compare_exchange(spare, NONE, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            close(spare);
            return true;
        }
    }
    false
}

/// A system call that makes descriptors, with spare ones given up where the program has used up its
/// own.
///
/// # Safety
/// As for the call itself.
pub unsafe fn made(number: i64, args: [usize; 6]) -> Result<usize, Errno> {
    loop {
        // SAFETY: the caller's promise.
        match unsafe { checked(number, args) } {
            Err(Errno(libc::EMFILE)) if give_up() => {}
            ended => return ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spare_one_makes_room_once() {
        keep();
        let kept = SPARE.iter().filter(|place| place.load(Ordering::Relaxed) != NONE).count();
        assert!(kept > 0, "the limit on descriptors is below {OF}");
        assert_eq!((0..MOST + 1).filter(|_| give_up()).count(), kept);
        assert!(!give_up());
    }
}
