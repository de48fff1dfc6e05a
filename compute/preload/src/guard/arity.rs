//! The number of arguments of each system call (x86-64). The other registers hold leftovers of the
//! program's code, which may look like far addresses.
//!
//! By the kernel's prototypes (`SYSCALL_DEFINEn`; `strace -e raw=all` prints as many). A number
//! that is not here may have all six.

/// From 0 on, one digit each.
const OLD: &[u8] = b"3331222336321440344332150533333312022130433366332323345550031421\
                     3341245332112232112212212322333122211403011002000222233331111222\
                     4322231122232322311122210032152121012522142213232154355533045554\
                     4433322221633121533131445310443421122241443256354155234554532032\
                     4434534345343365123644464632144244213214445525453214236653345332\
                     535133666421564";

/// From [`NEW_FROM`] on.
const NEW: &[u8] = b"4264352533223434565434212544434644444336654555";
const NEW_FROM: usize = 424;

/// Arguments of a call, 6 at most.
pub const fn arguments(number: usize) -> usize {
    if number < OLD.len() {
        (OLD[number] - b'0') as usize
    } else if number >= NEW_FROM && number - NEW_FROM < NEW.len() {
        (NEW[number - NEW_FROM] - b'0') as usize
    } else {
        6
    }
}

/// From here on no call is known.
pub const CALLS: usize = NEW_FROM + NEW.len();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_arguments_that_their_manual_pages_say() {
        let known = [
            (libc::SYS_read, 3),
            (libc::SYS_access, 2),
            (libc::SYS_mmap, 6),
            (libc::SYS_mremap, 5),
            (libc::SYS_getpid, 0),
            (libc::SYS_futex, 6),
            (libc::SYS_openat, 4),
            (libc::SYS_epoll_pwait, 6),
            (libc::SYS_execveat, 5),
            (libc::SYS_copy_file_range, 6),
            (libc::SYS_statx, 5),
            (libc::SYS_rseq, 4),
            (libc::SYS_io_uring_setup, 2),
            (libc::SYS_io_uring_enter, 6),
            (libc::SYS_clone3, 2),
            (libc::SYS_close_range, 3),
            (libc::SYS_process_madvise, 5),
            (libc::SYS_epoll_pwait2, 6),
            (libc::SYS_futex_waitv, 5),
            (libc::SYS_memfd_secret, 1),
            (462, 3), // mseal
            (400, 6),
            (CALLS as i64, 6),
        ];
        for (number, n) in known {
            assert_eq!(arguments(number as usize), n, "call {number}");
        }
    }

    /// The guard's table uses no argument that a call does not have.
    #[test]
    fn what_is_used_is_an_argument() {
        for number in 0..CALLS {
            let uses = super::super::table::uses(number as i64).unwrap_or(&[]);
            assert!(uses.iter().all(|used| used.arg < arguments(number)), "call {number}: {uses:?}");
        }
    }
}
