//! Near memory that may lead nowhere, or not be the program's to use so.

use super::PAGE_BYTES;
use farmem_sys::memory::copy_bytes;
use farmem_sys::raw::{getpid, syscall};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// `process_vm_readv` was refused as no kernel refuses it to a process on itself.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Copies from the program's memory. False where not all of it can be read.
///
/// # Safety
/// `to` must be writable for `len` bytes, and no memory of the program's.
pub unsafe fn read(addr: usize, to: *mut u8, len: usize) -> bool {
    copied(addr, to, len).unwrap_or_else(|| {
        let readable = pages(addr, len).all(is_readable);
        if readable {
            // SAFETY: the caller's target; the kernel has just read from each page. A thread of the
            // program's that unmaps one now has its fault here, where the call would fail.
            unsafe { copy_bytes(addr as *const u8, to, len) };
        }
        readable
    })
}

/// Copies to the program's memory. False where not all of it can be written.
///
/// Not by `process_vm_writev`: a sandbox of the program's would have to allow it to the runtime, and
/// with it what other processes have.
pub fn write(addr: usize, from: &[u8]) -> bool {
    let writable = pages(addr, from.len()).all(is_writable);
    if writable {
        // SAFETY: as in `read`.
        unsafe { copy_bytes(from.as_ptr(), addr as *mut u8, from.len()) };
    }
    writable
}

/// Has the kernel copy. `None`: it may not be asked.
fn copied(addr: usize, own: *mut u8, len: usize) -> Option<bool> {
    if FORBIDDEN.load(Ordering::Relaxed) {
        return None;
    }
    let [local, remote] = [own as usize, addr].map(|at| libc::iovec { iov_base: at as *mut _, iov_len: len });
    let at = |one: &libc::iovec| std::ptr::from_ref(one) as usize;
    // SAFETY: one live iovec each; the kernel checks the remote one.
    let done = unsafe { syscall(libc::SYS_process_vm_readv, [getpid() as usize, at(&local), 1, at(&remote), 1, 0]) };
    let known = done >= 0 || [libc::EFAULT, libc::EINVAL, libc::ENOMEM].contains(&-(done as i32));
    FORBIDDEN.fetch_or(!known, Ordering::Relaxed);
    known.then_some(done == len as isize)
}

/// An address in each page of a range, a multiple of 8.
fn pages(addr: usize, len: usize) -> impl Iterator<Item = usize> {
    // At the end of all addresses there is nothing of a program's.
    let end = addr.saturating_add(len);
    (addr / PAGE_BYTES * PAGE_BYTES..end).step_by(PAGE_BYTES)
}

/// Whether the kernel can read a word: it copies the mask, and then finds that it is to do nothing
/// known with it (EINVAL).
fn is_readable(word: usize) -> bool {
    const NOTHING_KNOWN: usize = usize::MAX;
    // SAFETY: the kernel checks the pointer, and changes nothing.
    let said = unsafe { syscall(libc::SYS_rt_sigprocmask, [NOTHING_KNOWN, word, 0, size_of::<u64>(), 0, 0]) };
    said == -(libc::EINVAL as isize)
}

/// Whether the kernel can write a word. The probe is one atomic addition of zero by FUTEX_WAKE_OP.
///
/// The kernel makes it, and then finds that it knows no such comparison with what was there
/// (ENOSYS): so it never comes to wake a thread that waits on the word. Where a comparison is true
/// it wakes one, even if it may wake none.
fn is_writable(word: usize) -> bool {
    const ADD_NOTHING: usize = (libc::FUTEX_OP_ADD as usize) << 28;
    const NO_COMPARISON: usize = 15 << 24;
    let none = AtomicU32::new(0);
    let wake = (libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG) as usize;
    let args = [none.as_ptr() as usize, wake, 0, 0, word, ADD_NOTHING | NO_COMPARISON];
    // SAFETY: a live word of ours, on which nobody sleeps; the kernel checks the program's.
    let said = unsafe { syscall(libc::SYS_futex, args) };
    said >= 0 || said == -(libc::ENOSYS as isize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_sys::memory::reserve;

    /// Three pages: to be read, to be written too, neither.
    fn three() -> usize {
        let at = reserve(3 * PAGE_BYTES).unwrap() as usize;
        for (page, prot) in [(0, libc::PROT_READ), (2, libc::PROT_NONE)] {
            // SAFETY: pages of our own.
            unsafe { syscall(libc::SYS_mprotect, [at + page * PAGE_BYTES, PAGE_BYTES, prot as usize, 0, 0, 0]) };
        }
        at
    }

    #[test]
    fn the_kernel_tells_what_can_be_read_and_written() {
        let at = three();
        let [first, second, third] = [0, 1, 2].map(|page| at + page * PAGE_BYTES);
        assert_eq!([first, second, third, 0, 1 << 62].map(is_readable), [true, true, false, false, false]);
        assert_eq!([first, second, third, 0, 1 << 62].map(is_writable), [false, true, false, false, false]);
    }

    #[test]
    fn a_question_wakes_no_thread() {
        static WORDS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
        let [first, second] = [0, 1].map(|n| WORDS[n].as_ptr() as usize);
        let futex = |at: usize, op: i32, n: usize, more: usize, to: usize| {
            let private = (op | libc::FUTEX_PRIVATE_FLAG) as usize;
            // SAFETY: live words of the test's.
            unsafe { syscall(libc::SYS_futex, [at, private, n, more, to, 0]) }
        };
        let sleeper = std::thread::spawn(move || {
            while WORDS[1].load(Ordering::Relaxed) == 0 {
                futex(first, libc::FUTEX_WAIT, 0, 0, 0);
            }
        });
        // One that is moved from the first word to the second sleeps there, until it is woken.
        while futex(first, libc::FUTEX_REQUEUE, 0, 1, second) == 0 {
            std::thread::yield_now();
        }
        assert!(is_writable(second));
        WORDS[1].store(1, Ordering::Relaxed);
        assert_eq!(futex(second, libc::FUTEX_WAKE, 1, 0, 0), 1, "it still slept");
        sleeper.join().unwrap();
    }

    #[test]
    fn both_ways_copy_alike() {
        let at = three();
        let second = at + PAGE_BYTES;
        for forbidden in [false, true] {
            FORBIDDEN.store(forbidden, Ordering::Relaxed);
            let text = if forbidden { *b"by hand!" } else { *b"by call!" };
            assert!(write(second + 100, &text) && write(second + PAGE_BYTES - 8, &text));
            assert!(!write(second - 4, &text) && !write(second + PAGE_BYTES - 4, &text) && !write(0, &text));
            let mut got = [0; 8];
            let mut read = |addr| {
                got = [0; 8];
                // SAFETY: a live array.
                unsafe { super::read(addr, got.as_mut_ptr(), 8) }.then_some(got)
            };
            assert_eq!([read(second + 100), read(second - 8)], [Some(text), Some([0; 8])]);
            assert_eq!([read(second + PAGE_BYTES - 4), read(0), read(usize::MAX - 3)], [None; 3]);
        }
        FORBIDDEN.store(false, Ordering::Relaxed);
    }
}
