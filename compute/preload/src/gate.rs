//! The gate: `syscall; ret` on a page at a fixed address.
//!
//! The seccomp filter lets calls from here pass. It is inherited over exec, and
//! filters only add up, so the address must be the same in every image; hence
//! fixed, just below the far range, where nothing else maps.

use farmem_protocol::addr::FAR_START;
use farmem_sys::raw::{Errno, checked, set_gate};

/// Where the gate is.
pub const GATE: usize = FAR_START - 0x1_0000;
/// What the filter sees as instruction pointer: the address after `syscall`.
pub const AFTER_SYSCALL: usize = GATE + 2;

/// Maps the gate and sends the runtime's system calls through it.
pub fn build() -> Result<(), Errno> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a fresh page at an address that is ours by convention; NOREPLACE refuses if it is not.
    // The code is written before the page becomes executable, and the gate is set after.
    unsafe {
        checked(libc::SYS_mmap, [GATE, 4096, prot as usize, flags as usize, usize::MAX, 0])?;
        (GATE as *mut [u8; 3]).write([0x0f, 0x05, 0xc3]);
        checked(libc::SYS_mprotect, [GATE, 4096, (libc::PROT_READ | libc::PROT_EXEC) as usize, 0, 0, 0])?;
        set_gate(GATE);
    }
    Ok(())
}
