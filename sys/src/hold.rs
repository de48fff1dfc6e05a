//! Pages held by reference: their memory stays while their mapping goes.
//!
//! `vmsplice` puts pages into a pipe without copying them: the pipe has a reference to the memory
//! of each. A write through the mapping goes to that memory as long as the mapping has it. Then the
//! pages can be dropped (`DONTNEED`), and are read from the pipe.
//!
//! ```text
//!  take ─► mapping ─┬─► memory      mapping ──┐ dropped      memory ─► read
//!          pipe ────┘               pipe ─────┴─► memory     let go
//! ```
//!
//! *Whose memory it is.* The mapping may share memory: with a forked child, with equal pages by
//! KSM, or with swap that is writing it out. A write then goes to a copy, of which the pipe knows
//! nothing. [`make_own`] ends sharing; the caller ensures that none begins afterwards.

use crate::descriptors::{close, own_fd};
use crate::raw::{Errno, checked};

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
    /// Opens a hold for `pages` pages, or fewer, as [`Hold::room`] says: users have a limit
    /// (`/proc/sys/fs/pipe-user-pages-soft`).
    ///
    /// # Errors
    /// A pipe could not be made: too few descriptors, or too little memory.
    pub fn open(pages: usize) -> Result<Hold, Errno> {
        let mut ends = [0i32; 2];
        // SAFETY: two live numbers, to be filled in. No spare descriptors are given up for it: a
        // thread without a connection cannot go on, and one without a pipe can.
        unsafe {
            checked(libc::SYS_pipe2, [ends.as_mut_ptr() as usize, PIPE_FLAGS as usize, 0, 0, 0, 0])?;
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
        unsafe { self.let_go(spare, 1) };
        false
    }

    /// Drops everything that is held, `pages` pages at a time.
    ///
    /// # Safety
    /// `spare` has room for them.
    pub unsafe fn let_go(&self, spare: *mut u8, pages: usize) {
        // SAFETY: the caller's room.
        while unsafe { self.read(spare, pages) }.is_ok() {}
    }

    /// Reads the next `pages`, and lets go of them.
    ///
    /// # Safety
    /// `to` has room for them.
    ///
    /// # Errors
    /// Fewer than `pages` pages are held.
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

    /// Tries whether a write to a held page reaches the pipe's reference although the page table
    /// entry was made read-only. Before Linux 5.19 the kernel copies every page that has another
    /// reference, and the pipe keeps the old bytes. `None`: it could not be tried, because memory
    /// or mappings ran out; the first page may stay read-only, and held.
    ///
    /// # Safety
    /// Two pages of the caller's own, of private memory that nobody uses; the second writable, the
    /// first unless this said `None`. Nothing must be held.
    pub unsafe fn follows_writes(&self, pages: *mut u8) -> Option<bool> {
        let (tried, spare) = (pages.cast::<u64>(), pages.wrapping_add(PAGE));
        let range = [libc::iovec { iov_base: pages.cast(), iov_len: PAGE }];
        // SAFETY: no more than its own protection is asked of the caller's page.
        let protect =
            |prot: i32| unsafe { checked(libc::SYS_mprotect, [pages as usize, PAGE, prot as usize, 0, 0, 0]).is_ok() };
        const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;
        if !protect(BOTH) {
            return None;
        }
        // SAFETY: the caller's pages; the first is writable whenever it is written to.
        unsafe {
            tried.write_volatile(1);
            if make_own(None, &range) != PAGE {
                // Before Linux 5.14 there is no such call.
                return Some(false);
            }
            // Once read-only, an entry becomes writable by a write; or at once, if the kernel keeps
            // account of who shares the page (6.0).
            let done = self.take(&range, spare) && protect(libc::PROT_READ) && protect(BOTH);
            if !done {
                return None;
            }
            tried.write_volatile(2);
            Some(self.read(spare, 1).is_ok() && spare.cast::<u64>().read() == 2)
        }
    }

    /// Gives its descriptors back.
    pub fn close(self) {
        close(self.from);
        close(self.to);
    }
}

/// Gives these ranges memory that nobody else refers to: a shared page is copied, as a write would
/// copy it (Linux 5.14). Returns how many bytes were done, in ranges from the first on, up to one
/// that cannot be written to. `pidfd`: this process's, if one call may be tried for all of them
/// (Linux 6.13).
///
/// # Safety
/// The caller may touch the memory. Pages of it that are not present are brought in.
pub unsafe fn make_own(pidfd: Option<i32>, ranges: &[libc::iovec]) -> usize {
    let advice = libc::MADV_POPULATE_WRITE as usize;
    if let Some(pidfd) = pidfd {
        let args = [pidfd as usize, ranges.as_ptr() as usize, ranges.len(), advice, 0, 0];
        // SAFETY: live ranges; the caller's promise. No content changes.
        let done = unsafe { checked(libc::SYS_process_madvise, args) }.unwrap_or(0);
        if done > 0 {
            return done;
        }
    }
    let made = |range: &&libc::iovec| {
        // SAFETY: as above.
        unsafe { checked(libc::SYS_madvise, [range.iov_base as usize, range.iov_len, advice, 0, 0, 0]).is_ok() }
    };
    ranges.iter().take_while(made).map(|range| range.iov_len).sum()
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

    /// In a process of its own, which has no descriptors left.
    #[test]
    fn spare_descriptors_are_left_to_connections() {
        use crate::descriptors::spare;
        const ALONE: &str = "FARMEM_HOLD_TEST";
        if std::env::var_os(ALONE).is_none() {
            let mut own = std::process::Command::new(std::env::current_exe().unwrap());
            own.args(["spare_descriptors_are_left_to_connections", "--test-threads", "1"]).env(ALONE, "1");
            let ended = own.output().unwrap();
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
            return;
        }
        let limit = libc::rlimit { rlim_cur: 512, rlim_max: 512 };
        // SAFETY: a live limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        spare::keep();
        let mut files = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            files.push(file);
        }
        assert_eq!(Hold::open(8).err(), Some(Errno(libc::EMFILE)));
        assert!(spare::give_up());
        drop(files.pop());
        Hold::open(8).unwrap().close();
    }

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

    /// Linux 5.19, or this machine protects what leaves.
    #[test]
    fn writes_to_a_read_only_entry_go_to_what_is_held() {
        let pages = reserve(2 * PAGE).unwrap();
        let hold = Hold::open(1).unwrap();
        // SAFETY: pages of ours.
        unsafe {
            assert_eq!(hold.follows_writes(pages), Some(true));
            // Nothing is left of the trial.
            assert_eq!(hold.read(pages, 1), Err(Errno(libc::EAGAIN)));
        }
        hold.close();
    }

    /// A range that cannot be written to stays as it is, and so do those after it.
    #[test]
    fn as_much_is_made_own_as_can_be() {
        let pages = reserve(3 * PAGE).unwrap();
        let range = |page: usize| libc::iovec { iov_base: pages.wrapping_add(page * PAGE).cast(), iov_len: PAGE };
        let pidfd = crate::descriptors::pidfd_of_self().unwrap();
        // SAFETY: pages of ours.
        unsafe {
            checked(libc::SYS_mprotect, [range(1).iov_base as usize, PAGE, libc::PROT_READ as usize, 0, 0, 0]).unwrap();
            for by in [Some(pidfd), None] {
                assert_eq!(make_own(by, &[range(0), range(1), range(2)]), PAGE);
                assert_eq!(make_own(by, &[range(1), range(2)]), 0);
                assert_eq!(make_own(by, &[range(2)]), PAGE);
            }
        }
        crate::descriptors::close(pidfd);
    }

    /// Writes do not reach a reference to a page that a forked child shares, unless the page was
    /// made the mapping's own.
    #[test]
    fn what_was_shared_by_a_fork_is_made_own() {
        let (page, spare) = (reserve(PAGE).unwrap().cast::<u64>(), reserve(PAGE).unwrap());
        let hold = Hold::open(1).unwrap();
        let pidfd = crate::descriptors::pidfd_of_self().unwrap();
        let ranges = [libc::iovec { iov_base: page.cast(), iov_len: PAGE }];
        for own in [Some(Some(pidfd)), Some(None), None] {
            // SAFETY: a page of ours; the child does nothing but end.
            unsafe {
                page.write(1);
                let child = libc::fork();
                if child == 0 {
                    libc::_exit(0);
                }
                libc::waitpid(child, std::ptr::null_mut(), 0);
                assert!(own.is_none_or(|by| make_own(by, &ranges) == PAGE));
                assert!(hold.take(&ranges, spare));
                page.write(2);
                hold.read(spare, 1).unwrap();
                // With the last the test shows that it can tell.
                assert_eq!(spare.cast::<u64>().read(), if own.is_some() { 2 } else { 1 });
            }
        }
        hold.close();
        crate::descriptors::close(pidfd);
    }
}
