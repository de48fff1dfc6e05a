//! Memory that the program points to, near or far: read and written by the runtime.
//!
//! A pointer may lead nowhere, and the program expects EFAULT then. So the kernel copies
//! (`process_vm_readv` on this process), except from far memory that nobody has barred. Some
//! container profiles forbid that: then the kernel is asked about each page first, and the runtime
//! copies ([`near`]). The runtime also writes by itself, behind such a question.

mod near;

use super::pins::Pins;
use farmem_protocol::addr::{PAGE_BYTES, is_far};

/// The error for a pointer that leads nowhere.
pub const BAD_ADDRESS: isize = -(libc::EFAULT as isize);

/// A copy of a `T` that the program points to, near or far; `None` where it points nowhere.
pub fn peek<T: Copy>(addr: usize) -> Option<T> {
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    peek_into(addr, value.as_mut_ptr().cast(), size_of::<T>()).then(|| {
        // SAFETY: filled; T is plain data of the kernel's ABI.
        unsafe { value.assume_init() }
    })
}

/// Copies bytes that the program points to.
pub fn peek_into(addr: usize, to: *mut u8, len: usize) -> bool {
    if addr == 0 {
        return false;
    }
    let pager = crate::process::pager();
    let mut pins = Pins::new(pager);
    let pinned = pins.add(addr, len, false);
    if pinned && is_far(addr) && !pager.pins.may_be_unreadable(addr, len) {
        // SAFETY: pinned; `to` is the caller's.
        unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, to, len) };
        return true;
    }
    // What is not pinned may be a mapping that is not ours, or none; what is pinned may not be the
    // program's to read. SAFETY: `to` is the caller's.
    unsafe { near::read(addr, to, len) }
}

/// Copies at most `most` bytes of a string that the program points to, without its NUL; only counts
/// them where `to` is null. `None` where the string leaves what is mapped before it ends.
pub fn peek_text(addr: usize, to: *mut u8, most: usize) -> Option<usize> {
    let mut len = 0;
    let mut part = [0u8; 512];
    while len < most {
        let at = addr + len;
        // Not across a page: the next may not be mapped.
        let n = (PAGE_BYTES - at % PAGE_BYTES).min(part.len()).min(most - len);
        if !peek_into(at, part.as_mut_ptr(), n) {
            return None;
        }
        let end = part[..n].iter().position(|&b| b == 0);
        let bytes = &part[..end.unwrap_or(n)];
        if !to.is_null() {
            // SAFETY: the caller's room of `most` bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.add(len), bytes.len()) };
        }
        len += bytes.len();
        if end.is_some() {
            break;
        }
    }
    Some(len)
}

/// Copies bytes to where the program points to, if it may write there: the kernel tells.
pub fn poke_from(addr: usize, from: &[u8]) -> bool {
    let mut pins = Pins::new(crate::process::pager());
    pins.add(addr, from.len(), true);
    near::write(addr, from)
}

/// Writes a `T` where the program points to.
pub fn poke<T: Copy>(addr: usize, value: T) -> bool {
    let at = std::ptr::from_ref(&value).cast::<u8>();
    // SAFETY: a live value; plain data of the kernel's ABI.
    let bytes = unsafe { std::slice::from_raw_parts(at, size_of::<T>()) };
    poke_from(addr, bytes)
}
