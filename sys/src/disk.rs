//! A file without a name, for pages: the runtime's own, beside a program that has limits on files.
//!
//! A forked child has the same file. Places in it are handed out by a counter that both share.
//!
//! The kernel names an error of the disk once for each description of the file. So a child has a
//! description of its own, opened before the fork ([`PageFile::again`]): errors from then on are named to
//! both, and earlier ones were kept. An error that one of them has seen is also in memory that both
//! share, for where no description could be opened.

use crate::descriptors::{close, own_fd, spare};
use crate::raw::{Errno, checked, syscall};
use std::ffi::CStr;
use std::io::Write;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// The file. It is gone when the last process that has it has ended.
pub struct PageFile {
    fd: i32,
    shared: &'static Shared,
}

/// In memory that forked children share.
struct Shared {
    next: AtomicU64,
    /// Why the disk did not take something, once it has not. 0: it has taken all.
    failed: AtomicI32,
}

impl PageFile {
    /// A new file in a directory, of no length.
    ///
    /// # Errors
    /// The error of open(2).
    pub fn new_in(dir: &CStr) -> Result<PageFile, Errno> {
        let shared = Shared::new()?;
        let open = |path: &CStr, flags: i32| {
            let flags = (flags | libc::O_RDWR | libc::O_CLOEXEC) as usize;
            // SAFETY: a live path.
            unsafe {
                spare::made(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0o600, 0, 0])
            }
        };
        let fd = match open(dir, libc::O_TMPFILE) {
            // File systems without O_TMPFILE say one of these.
            Err(Errno(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {
                let path = named(dir)?;
                let fd = open(&path, libc::O_CREAT | libc::O_EXCL)?;
                // SAFETY: a live path.
                unsafe { syscall(libc::SYS_unlink, [path.as_ptr() as usize, 0, 0, 0, 0, 0]) };
                fd
            }
            other => other?,
        };
        Ok(PageFile { fd: own_fd(fd as i32)?, shared })
    }

    /// A counter that forked children share.
    pub fn next(&self) -> &'static AtomicU64 {
        &self.shared.next
    }

    /// Before a fork: the file again, by a description of its own, for the child.
    ///
    /// # Errors
    /// The error of open(2): there is no `/proc`, say.
    pub fn again(&self) -> Result<i32, Errno> {
        let mut path = [0u8; 32];
        // The rest stays 0, and there is enough.
        let _ = write!(&mut path[..31], "/proc/self/fd/{}", self.fd);
        let flags = (libc::O_RDWR | libc::O_CLOEXEC) as usize;
        // SAFETY: a live path that ends in 0.
        let fd = unsafe {
            spare::made(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0])?
        };
        own_fd(fd as i32)
    }

    /// In a forked child: takes the description that was opened for it. Without one, or if this fails,
    /// it keeps its parent's.
    pub fn become_own(&self, again: i32) {
        // SAFETY: no pointers. The number is this file's before and after.
        unsafe { syscall(libc::SYS_dup3, [again as usize, self.fd as usize, libc::O_CLOEXEC as usize, 0, 0, 0]) };
        close(again);
    }

    /// Reads `len` bytes at an offset. Bytes that were never written read as zero. So do bytes that
    /// the disk has failed to take, once they have left the system's cache: behind each read the
    /// disk is asked whether it has failed.
    ///
    /// # Safety
    /// `into` must be writable for `len` bytes, and near.
    ///
    /// # Errors
    /// The error of pread(2), or of the system's own write-back.
    pub unsafe fn read(&self, offset: u64, into: *mut u8, len: usize) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe {
            let read = self.all(libc::SYS_pread64, offset, into as usize, len)?;
            std::ptr::write_bytes(into.add(read), 0, len - read);
        }
        self.check()
    }

    /// Writes `len` bytes at an offset.
    ///
    /// # Safety
    /// `bytes` must be readable for `len` bytes, and near.
    ///
    /// # Errors
    /// The error of pwrite(2).
    pub unsafe fn write(&self, offset: u64, bytes: *const u8, len: usize) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        let written = unsafe { self.all(libc::SYS_pwrite64, offset, bytes as usize, len)? };
        if written == len { Ok(()) } else { Err(Errno(libc::EIO)) }
    }

    /// As many of the bytes as there are.
    unsafe fn all(&self, nr: i64, offset: u64, at: usize, len: usize) -> Result<usize, Errno> {
        let mut done = 0;
        while done < len {
            // SAFETY: the caller's promise.
            match unsafe { checked(nr, [self.fd as usize, at + done, len - done, offset as usize + done, 0, 0]) } {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno(libc::EINTR)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Sets room on the disk apart for a range, which can then be written without running out of
    /// it. A file system that cannot promise that is not asked to.
    ///
    /// # Errors
    /// ENOSPC, EDQUOT: there is no room. EFBIG: the process may not write so long a file.
    pub fn reserve(&self, offset: u64, len: u64) -> Result<(), Errno> {
        // Beyond the limit the kernel would send the program SIGXFSZ.
        if file_limit() < offset + len {
            return Err(Errno(libc::EFBIG));
        }
        match self.allocate(0, offset, len) {
            Err(Errno(libc::EOPNOTSUPP | libc::ENOSYS)) => self.lengthen(offset + len),
            other => other,
        }
    }

    /// Gives the room of a range back. It reads as zero until it is written.
    pub fn punch(&self, offset: u64, len: u64) -> bool {
        self.allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, len).is_ok()
    }

    fn allocate(&self, mode: i32, offset: u64, len: u64) -> Result<(), Errno> {
        loop {
            let args = [self.fd as usize, mode as usize, offset as usize, len as usize, 0, 0];
            // SAFETY: no pointers.
            match unsafe { checked(libc::SYS_fallocate, args) } {
                Err(Errno(libc::EINTR)) => {}
                other => return other.map(|_| ()),
            }
        }
    }

    /// The file is at least this long. Two processes may ask for it at once: it never gets shorter.
    fn lengthen(&self, len: u64) -> Result<(), Errno> {
        let zero = [0u8];
        // SAFETY: a live byte; beyond the range's last page nobody writes.
        unsafe { self.write(len, zero.as_ptr(), 1) }
    }

    /// Has the system write back what was written so far, and drop from its cache what is written
    /// back. Does not wait for it.
    ///
    /// # Errors
    /// The disk has failed to take something, now or before.
    pub fn write_back(&self) -> Result<(), Errno> {
        // SAFETY: no pointers.
        unsafe {
            let (fd, flags) = (self.fd as usize, libc::SYNC_FILE_RANGE_WRITE as usize);
            syscall(libc::SYS_sync_file_range, [fd, 0, 0, flags, 0, 0]);
            syscall(libc::SYS_fadvise64, [fd, 0, 0, libc::POSIX_FADV_DONTNEED as usize, 0, 0]);
        }
        self.check()
    }

    /// [`PageFile::write`] of a slice that is near.
    ///
    /// # Errors
    /// As there.
    pub fn write_bytes(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        // SAFETY: a live slice.
        unsafe { self.write(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// Reads bytes of a range that was settled ([`PageFile::settle`]).
    ///
    /// # Errors
    /// The error of pread(2). EIO, too, if the file is shorter.
    pub fn read_settled(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        // SAFETY: a live slice.
        let read = unsafe { self.all(libc::SYS_pread64, offset, into.as_mut_ptr() as usize, into.len())? };
        if read == into.len() { Ok(()) } else { Err(Errno(libc::EIO)) }
    }

    /// Waits until a range that was written is on the disk, and has the system drop it from its cache.
    /// A later read then comes from the disk, and says so if it fails.
    ///
    /// # Errors
    /// The disk did not take it, or had failed to take something before.
    pub fn settle(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        let (fd, offset, len) = (self.fd as usize, offset as usize, len as usize);
        // SAFETY: no pointers.
        unsafe {
            checked(libc::SYS_sync_file_range, [fd, offset, len, flags as usize, 0, 0])?;
            syscall(libc::SYS_fadvise64, [fd, offset, len, libc::POSIX_FADV_DONTNEED as usize, 0, 0]);
        }
        self.check()
    }

    /// Whether the file takes memory instead of a disk's room: it is on a tmpfs, say.
    pub fn is_in_memory(&self) -> bool {
        // SAFETY: zero is a valid statfs.
        let mut about: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills a live statfs.
        let asked = unsafe { checked(libc::SYS_fstatfs, [self.fd as usize, &raw mut about as usize, 0, 0, 0, 0]) };
        asked.is_ok() && matches!(about.f_type as u64, 0x0102_1994 | 0x8584_58f6 | 0x9584_58f6)
    }

    /// Whether the disk has failed to take something, now or before. The kernel names an error
    /// once, and only to a caller that waits. So this waits for the file's first page, and keeps the
    /// error. Errors are the whole file's.
    ///
    /// # Errors
    /// Why it has failed.
    pub fn check(&self) -> Result<(), Errno> {
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE as usize;
        // SAFETY: no pointers.
        let waited = unsafe { checked(libc::SYS_sync_file_range, [self.fd as usize, 0, 4096, flags, 0, 0]) };
        if let Err(e @ Errno(libc::EIO | libc::ENOSPC | libc::EDQUOT)) = waited {
            self.note(e);
        }
        match self.shared.failed.load(Ordering::SeqCst) {
            0 => Ok(()),
            why => Err(Errno(why)),
        }
    }

    /// The first error stays.
    fn note(&self, why: Errno) {
        let _ = self.shared.failed.compare_exchange(0, why.0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        close(self.fd);
    }
}

/// The longest file that this process may write, bytes.
fn file_limit() -> u64 {
    let mut limit = [u64::MAX; 2];
    let at = limit.as_mut_ptr() as usize;
    // SAFETY: the kernel fills two live words.
    unsafe { syscall(libc::SYS_prlimit64, [0, libc::RLIMIT_FSIZE as usize, 0, at, 0, 0]) };
    limit[0]
}

/// A name in a directory that no other process of this machine uses now.
fn named(dir: &CStr) -> Result<std::ffi::CString, Errno> {
    let mut path = dir.to_bytes().to_vec();
    path.extend_from_slice(format!("/.farmem-{}-{}", crate::raw::getpid(), crate::raw::now_ns()).as_bytes());
    std::ffi::CString::new(path).map_err(|_| Errno(libc::EINVAL))
}

impl Shared {
    /// All zero; this process and its forked children have it for good.
    fn new() -> Result<&'static Shared, Errno> {
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as usize;
        // SAFETY: a new mapping at an address of the kernel's choice, never unmapped.
        unsafe {
            let at = checked(libc::SYS_mmap, [0, 4096, prot, flags, usize::MAX, 0])?;
            Ok(&*(at as *const Shared))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_back_and_holes_are_zero() {
        let file = PageFile::new_in(c"/tmp").unwrap();
        let (page, mut found) = ([7u8; 4096], [1u8; 4096]);
        file.reserve(0, 1 << 20).unwrap();
        // SAFETY: live pages.
        unsafe {
            file.write(8192, page.as_ptr(), 4096).unwrap();
            file.read(8192, found.as_mut_ptr(), 4096).unwrap();
            assert_eq!(found, page);
            file.read(0, found.as_mut_ptr(), 4096).unwrap();
            assert_eq!(found, [0; 4096]);
            found = page;
            file.read(4 << 20, found.as_mut_ptr(), 4096).unwrap();
            assert_eq!(found, [0; 4096]);
            assert!(file.punch(8192, 4096));
            file.read(8192, found.as_mut_ptr(), 4096).unwrap();
        }
        assert_eq!((found, file.write_back()), ([0; 4096], Ok(())));
        file.write_bytes(16384, &page).unwrap();
        file.settle(16384, 4096).unwrap();
        file.read_settled(16384, &mut found).unwrap();
        assert_eq!((found, file.is_in_memory()), (page, PageFile::new_in(c"/tmp").unwrap().is_in_memory()));
        assert!(file.read_settled(1 << 30, &mut found).is_err(), "beyond its end");
        assert!(PageFile::new_in(c"/dev/shm").is_ok_and(|file| file.is_in_memory()));
        assert!(PageFile::new_in(c"/no/such/directory").is_err());
    }

    /// Runs `work` in a forked child. Whether it returned true.
    fn in_child(work: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls `work` and ends, without the parent's destructors.
        match unsafe { libc::fork() } {
            // SAFETY: it ends.
            0 => unsafe { libc::_exit(i32::from(!work())) },
            child => {
                let mut status = 0;
                // SAFETY: a live integer.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
            }
        }
    }

    #[test]
    fn a_child_has_a_description_of_its_own() {
        let file = PageFile::new_in(c"/tmp").unwrap();
        let (parent, again) = (crate::raw::getpid() as usize, file.again().unwrap());
        // KCMP_FILE: 0 if both have one description.
        let is_one = |fd: i32| {
            let args = [parent, crate::raw::getpid() as usize, 0, file.fd as usize, fd as usize, 0];
            // SAFETY: no pointers.
            unsafe { checked(libc::SYS_kcmp, args) }
        };
        let knows = is_one(file.fd) == Ok(0);
        assert!(in_child(|| {
            let before = is_one(file.fd);
            file.become_own(again);
            let wrote = file.write_bytes(4096, &[7; 4096]).is_ok() && file.check().is_ok();
            wrote && (!knows || (before == Ok(0) && is_one(file.fd) != Ok(0)))
        }));
        close(again);
        let mut found = [0; 4096];
        file.read_settled(4096, &mut found).unwrap();
        assert_eq!(found, [7; 4096]);
    }

    #[test]
    fn what_one_process_was_told_of_the_disk_all_know() {
        let file = PageFile::new_in(c"/tmp").unwrap();
        assert_eq!(file.check(), Ok(()));
        assert!(in_child(|| {
            file.note(Errno(libc::EIO));
            file.check() == Err(Errno(libc::EIO))
        }));
        file.note(Errno(libc::ENOSPC));
        assert_eq!((file.check(), file.write_back()), (Err(Errno(libc::EIO)), Err(Errno(libc::EIO))));
    }
}
