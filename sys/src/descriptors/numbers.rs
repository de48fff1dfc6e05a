//! The numbers of the runtime's own descriptors.
//!
//! They lie above those that programs expect to get (`open` gives the lowest that is free), are
//! closed on exec, and are remembered, so that the program cannot close them.
//!
//! A vfork child has its parent's memory, and therefore the runtime's records, but its own table of
//! descriptors. A number that one of them opened is closed in the other, or is another file. So a
//! number is *claimed* by one bit, which is in the shared memory too, and is given out once for all
//! processes that share it. A process that uses a number of the other's then gets EBADF, and never
//! a connection that is not its own. (Giving each process a range of numbers does not work: where
//! the limit on descriptors is low, ranges overlap, and two children at once had the same one.)
//!
//! ```text
//!  CLAIMED   given out, to whom ever
//!  AWAY      … to a vfork child, which alone may close it
//! ```

use super::lent;
use crate::raw::{Errno, checked, is_away, syscall};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Numbers that can be remembered; there are no more than that unless a system's administrator says
/// so (`fs.nr_open`).
pub const FDS: usize = 1 << 20;
/// Where numbers are looked for, the first range that the limit on descriptors allows.
const RANGES: [i32; 4] = [1 << 19, 1 << 15, 900, 200];
/// Lower numbers are nobody's to take, whether they are open or not.
const STANDARD: i32 = 3;

struct Set([AtomicU64; FDS / 64]);

impl Set {
    const fn empty() -> Set {
        Set([const { AtomicU64::new(0) }; FDS / 64])
    }

    fn place(&self, fd: i32) -> Option<(&AtomicU64, u64)> {
        Some((self.0.get(fd as u32 as usize / 64)?, 1 << (fd as u32 % 64)))
    }

    fn has(&self, fd: i32) -> bool {
        self.place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Returns false if it was there already. A value that finds no room is never there.
    fn insert(&self, fd: i32) -> bool {
        self.place(fd).is_none_or(|(word, bit)| word.fetch_or(bit, Ordering::Relaxed) & bit == 0)
    }

    /// Whether it was there.
    fn remove(&self, fd: i32) -> bool {
        self.place(fd).is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }

    /// The first number at `from` or above that is not there.
    fn absent(&self, from: i32) -> i32 {
        let (mut at, mut above) = (from as usize / 64, u64::MAX << (from % 64));
        while let Some(word) = self.0.get(at) {
            match !word.load(Ordering::Relaxed) & above {
                0 => (at, above) = (at + 1, u64::MAX),
                free => return (at * 64) as i32 + free.trailing_zeros() as i32,
            }
        }
        (at * 64) as i32
    }
}

/// The lowest number that was ever claimed; [`FDS`]: none was. Lower ones are the program's.
pub static LOWEST: AtomicUsize = AtomicUsize::new(FDS);

static CLAIMED: Set = Set::empty();
static AWAY: Set = Set::empty();

/// Makes a descriptor ours: moves it out of the low numbers, sets close-on-exec, and remembers it
/// for [`owns_fd`]. It keeps its number where the limit on descriptors leaves no room above.
///
/// # Errors
/// EMFILE, the descriptor closed, where every number that it could have is that of another process
/// in this memory.
pub fn own_fd(fd: i32) -> Result<i32, Errno> {
    let moved = RANGES.iter().find_map(|&least| copied(fd, least));
    if moved.is_none() && (claim(fd) || lent::is_lent(fd)) {
        return Ok(fd);
    }
    let own = moved.or_else(|| copied(fd, STANDARD));
    close_plainly(fd);
    own.ok_or(Errno(libc::EMFILE))
}

/// A copy of `fd` with a number of `least` or above that nobody else in this memory has.
fn copied(fd: i32, least: i32) -> Option<i32> {
    let mut from = least;
    loop {
        from = CLAIMED.absent(from);
        // SAFETY: no pointers.
        let copy = unsafe {
            checked(libc::SYS_fcntl, [fd as usize, libc::F_DUPFD_CLOEXEC as usize, from as usize, 0, 0, 0]).ok()?
        } as i32;
        if claim(copy) {
            return Some(copy);
        }
        close_plainly(copy);
        from = copy + 1;
    }
}

fn claim(fd: i32) -> bool {
    let is_new = CLAIMED.insert(fd);
    LOWEST.fetch_min(fd as u32 as usize, Ordering::Relaxed);
    if is_new && is_away() {
        AWAY.insert(fd);
    }
    is_new
}

/// Whether a number that its owner has done with is to be closed by the caller: not by a parent
/// that comes upon what a vfork child has left, where it may be the program's.
fn given_back(fd: i32) -> bool {
    let by_child = AWAY.remove(fd);
    let is_child = is_away();
    if by_child || !is_child {
        CLAIMED.remove(fd);
    }
    if is_child {
        lent::returned(fd);
    }
    is_child || !by_child
}

/// Closes a descriptor of ours.
pub fn close(fd: i32) {
    if given_back(fd) {
        close_plainly(fd);
    }
}

fn close_plainly(fd: i32) {
    // SAFETY: no memory is involved; the descriptor is the caller's.
    unsafe { syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Whether a descriptor is the runtime's, so that the program must not close it.
#[inline]
pub fn owns_fd(fd: i32) -> bool {
    CLAIMED.has(fd)
}

/// The runtime's descriptors, ascending.
pub fn own_fds() -> impl Iterator<Item = i32> {
    CLAIMED.0.iter().enumerate().flat_map(|(i, word)| {
        let word = word.load(Ordering::Relaxed);
        let bits = 0..if word == 0 { 0 } else { 64 };
        bits.filter(move |bit| word & 1 << bit != 0).map(move |bit| (i * 64) as i32 + bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> i32 {
        // SAFETY: no pointers.
        unsafe { checked(libc::SYS_eventfd2, [0, libc::EFD_CLOEXEC as usize, 0, 0, 0, 0]) }.unwrap() as i32
    }

    #[test]
    fn a_claimed_number_is_nobody_elses_though_it_be_free() {
        let first = own_fd(open()).unwrap();
        assert!(owns_fd(first) && own_fds().any(|fd| fd == first));
        // As another process in this memory sees it: the number is not open, and claimed.
        close_plainly(first);
        let second = own_fd(open()).unwrap();
        assert_ne!(first, second);
        close(second);
        assert!(!owns_fd(second));
        // The claims that a child left are forgotten, and nothing is closed.
        AWAY.insert(first);
        assert!(!given_back(first));
        assert!(!owns_fd(first) && !AWAY.has(first));
    }

    #[test]
    fn free_numbers_are_found_across_words() {
        let set = Set::empty();
        (60..200).for_each(|fd| assert!(set.insert(fd)));
        assert!(!set.insert(100));
        assert_eq!((set.absent(3), set.absent(60), set.absent(199), set.absent(300)), (3, 200, 200, 300));
        assert!(set.remove(130) && !set.remove(130));
        assert_eq!(set.absent(61), 130);
    }
}
