//! Pages held by reference: their memory stays while their mapping goes.
//!
//! `vmsplice` puts pages into a pipe without copying them: the pipe has a reference to the memory of each. What is written through the
//! mapping goes to that memory for as long as it is the mapping's; then the pages can be dropped (`DONTNEED`), and are read from the pipe.
//!
//! ```text
//!  take ─► mapping ─┬─► memory      mapping ──┐ dropped      memory ─► read
//!          pipe ────┘               pipe ─────┴─► memory     let go
//! ```
//!
//! *Whose memory it is.* A write to memory that the mapping shares (with a forked child's, with others of the same content by KSM, with
//! swap that is writing it out) goes to a copy, of which the pipe knows nothing. [`make_own`] ends sharing; who calls sees to it that none begins.

use crate::raw::{Errno, checked, close, own_fd};

const PAGE: usize = 4096;
/// `pipe2`'s flags: never waits, and is closed on exec.
pub const PIPE_FLAGS: i32 = libc::O_CLOEXEC | libc::O_NONBLOCK;
/// `vmsplice`'s.
pub const SPLICE_FLAGS: u32 = libc::SPLICE_F_NONBLOCK;
/// Whether the kernel may merge pages of this process: of `prctl` (Linux 6.4).
pub const GET_MEMORY_MERGE: i32 = 68;

/// A pipe for pages.
#[derive(Debug)]
pub struct Hold {
    from: i32,
    to: i32,
    /// Pages that it takes.
    room: usize,
}

impl Hold {
    /// For so many pages, or fewer, as [`Hold::room`] says: users have a limit (`/proc/sys/fs/pipe-user-pages-soft`).
    ///
    /// # Errors
    /// No descriptors, or no memory, for a pipe.
    pub fn open(pages: usize) -> Result<Hold, Errno> {
        let mut ends = [0i32; 2];
        // SAFETY: two live numbers, to be filled in.
        unsafe {
            crate::spare::made(libc::SYS_pipe2, [ends.as_mut_ptr() as usize, PIPE_FLAGS as usize, 0, 0, 0, 0])?;
        }
        let own = ends.map(own_fd);
        let (Ok(from), Ok(to)) = (own[0], own[1]) else {
            own.into_iter().flatten().for_each(close);
            return Err(Errno(libc::EMFILE));
        };
        let sized = |how: i32, bytes: usize| {
            // SAFETY: no pointers.
            unsafe { checked(libc::SYS_fcntl, [to as usize, how as usize, bytes, 0, 0, 0]) }
        };
        let bytes = sized(libc::F_SETPIPE_SZ, pages * PAGE).or_else(|_| sized(libc::F_GETPIPE_SZ, 0));
        Ok(Hold { from, to, room: bytes.unwrap_or(0) / PAGE })
    }

    /// Pages that it takes at once.
    pub fn room(&self) -> usize {
        self.room
    }

    /// References to all pages of these ranges, in order, or to none. Nothing must be held yet.
    ///
    /// # Safety
    /// `spare` is a page for what is let go.
    pub unsafe fn take(&self, ranges: &[libc::iovec], spare: *mut u8) -> bool {
        let wanted: usize = ranges.iter().map(|range| range.iov_len).sum();
        let flags = SPLICE_FLAGS as usize;
        // SAFETY: live ranges; the kernel only reads what they name, and checks it.
        let taken = unsafe {
            checked(libc::SYS_vmsplice, [self.to as usize, ranges.as_ptr() as usize, ranges.len(), flags, 0, 0])
        };
        if taken == Ok(wanted) {
            return true;
        }
        // SAFETY: the caller's page.
        while unsafe { self.read(spare, 1) }.is_ok() {}
        false
    }

    /// Reads the next `pages`, and lets go of them.
    ///
    /// # Safety
    /// `to` has room for them.
    ///
    /// # Errors
    /// So many are not held.
    pub unsafe fn read(&self, to: *mut u8, pages: usize) -> Result<(), Errno> {
        let mut done = 0;
        while done < pages * PAGE {
            let args = [self.from as usize, to as usize + done, pages * PAGE - done, 0, 0, 0];
            // SAFETY: the caller's room.
            match unsafe { checked(libc::SYS_read, args) } {
                Ok(0) => return Err(Errno(libc::EIO)),
                Ok(bytes) => done += bytes,
                Err(Errno(libc::EINTR)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Gives its descriptors back.
    pub fn close(self) {
        close(self.from);
        close(self.to);
    }
}

/// Ends that the memory of these ranges is anybody else's too: what is shared is copied, as a write would (Linux 5.14, and 6.13 for one's own
/// by many ranges). How many bytes were done: ranges from the first on, before one that cannot be written to.
///
/// # Safety
/// The memory is the caller's to touch: what is not present of it comes to be.
pub unsafe fn make_own(pidfd: i32, ranges: &[libc::iovec]) -> usize {
    let advice = libc::MADV_POPULATE_WRITE as usize;
    let args = [pidfd as usize, ranges.as_ptr() as usize, ranges.len(), advice, 0, 0];
    // SAFETY: live ranges; the caller's promise. No content changes.
    unsafe { checked(libc::SYS_process_madvise, args) }.unwrap_or(0)
}

/// Whether the kernel may merge pages of this process with others of the same content.
pub fn may_be_merged() -> bool {
    // SAFETY: no pointers.
    let merged = unsafe { checked(libc::SYS_prctl, [GET_MEMORY_MERGE as usize, 0, 0, 0, 0, 0]) };
    merged == Ok(1)
}

/// Whether the system has swap, or does not tell.
pub fn may_be_swapped() -> bool {
    // SAFETY: zero is valid for it.
    let mut about: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: live, to be filled in.
    let asked = unsafe { checked(libc::SYS_sysinfo, [&raw mut about as usize, 0, 0, 0, 0, 0]) };
    asked.is_err() || about.totalswap != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{discard, reserve};

    #[test]
    fn what_is_held_is_read_when_its_mapping_is_gone() {
        const N: usize = 8;
        let (pages, spare) = (reserve(N * PAGE).unwrap(), reserve(N * PAGE).unwrap());
        let at = |page: usize| (pages as usize + page * PAGE) as *mut u64;
        let range = |page: usize| libc::iovec { iov_base: at(page).cast(), iov_len: PAGE };
        let hold = Hold::open(N).unwrap();
        assert!(hold.room() >= N);
        // SAFETY: pages of ours.
        unsafe {
            (0..N).for_each(|page| at(page).write(page as u64));
            let ranges = [range(5), range(2), range(7)];
            assert!(hold.take(&ranges, spare));
            at(2).write(22);
            discard(pages, N * PAGE);
            hold.read(spare, 3).unwrap();
            assert_eq!([0, 512, 1024].map(|at| spare.cast::<u64>().add(at).read()), [5, 22, 7]);
            assert_eq!(at(2).read(), 0);
            assert_eq!(hold.read(spare, 1), Err(Errno(libc::EAGAIN)));
            // All or none, and none is left behind.
            let nowhere = libc::iovec { iov_base: 4096 as *mut _, iov_len: PAGE };
            assert!(!hold.take(&[range(1), nowhere], spare));
            assert_eq!(hold.read(spare, 1), Err(Errno(libc::EAGAIN)));
        }
        hold.close();
    }

    /// What a forked child has too is not what writes go to, unless it was made the mapping's own.
    #[test]
    fn what_was_shared_by_a_fork_is_made_own() {
        let (page, spare) = (reserve(PAGE).unwrap().cast::<u64>(), reserve(PAGE).unwrap());
        let hold = Hold::open(1).unwrap();
        let pidfd = crate::raw::pidfd_of_self().unwrap();
        let ranges = [libc::iovec { iov_base: page.cast(), iov_len: PAGE }];
        for own in [true, false] {
            // SAFETY: a page of ours; the child does nothing but end.
            unsafe {
                page.write(1);
                let child = libc::fork();
                if child == 0 {
                    libc::_exit(0);
                }
                libc::waitpid(child, std::ptr::null_mut(), 0);
                assert!(!own || make_own(pidfd, &ranges) == PAGE);
                assert!(hold.take(&ranges, spare));
                page.write(2);
                hold.read(spare, 1).unwrap();
                // With the second the test shows that it can tell.
                assert_eq!(spare.cast::<u64>().read(), if own { 2 } else { 1 });
            }
        }
        hold.close();
        crate::raw::close(pidfd);
    }
}
