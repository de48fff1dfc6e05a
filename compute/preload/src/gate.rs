//! The gate ([`farmem_sys::raw`]) on a page at a fixed address.
//!
//! The seccomp filter lets calls from here pass. Filters of the program's own let those pass that
//! the runtime needs ([`crate::sandbox`]). A filter is inherited over exec, and filters only add
//! up, so the address must be the same in every image. It is fixed, just above the far range, where
//! nothing else maps. (Some Lisps have their heap below the far range, up to its last page.)

use farmem_protocol::addr::FAR_END;
use farmem_sys::raw::{Errno, GATE_CODE, GATE_PROGRAM, GATE_RETURN, GATE_THREAD, checked, set_gate};

/// Where the gate is.
pub const GATE: usize = FAR_END + 0x1_0000;
/// The address behind `syscall`: a filter sees it as the instruction pointer of the runtime's own
/// calls.
pub const AFTER_SYSCALL: usize = GATE + 2;
/// The address behind `syscall` of the calls that the runtime makes for the program.
pub const AFTER_PROGRAM: usize = AFTER_SYSCALL + GATE_PROGRAM;
/// The address behind `syscall` of the calls by which the runtime starts its threads.
pub const AFTER_THREAD: usize = AFTER_SYSCALL + GATE_THREAD;
/// The address of the code by which the runtime's signal handlers return.
pub const RETURN: usize = GATE + GATE_RETURN;
/// The address behind the `syscall` of such a return.
pub const AFTER_RETURN: usize = RETURN + 9;

/// Why there is no gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotBuilt {
    /// The kernel refuses it.
    Refused(Errno),
    /// The mapping was made elsewhere, though asked for at [`GATE`] only: something that answers
    /// for the kernel takes `MAP_FIXED_NOREPLACE` for a hint. No kernel with userfaultfd for user
    /// mode does so; qemu-user 7.2 does.
    Elsewhere,
}

impl From<Errno> for NotBuilt {
    fn from(error: Errno) -> Self {
        Self::Refused(error)
    }
}

/// Maps the gate and sends the runtime's system calls through it.
pub fn build() -> Result<(), NotBuilt> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a fresh page at an address that is ours by convention; NOREPLACE refuses if it is
    // not, and a page that came elsewhere is let go as it came. The code is written before the page
    // becomes executable, and the gate is set after.
    unsafe {
        let at = checked(libc::SYS_mmap, [GATE, 4096, prot as usize, flags as usize, usize::MAX, 0])?;
        if at != GATE {
            let _ = checked(libc::SYS_munmap, [at, 4096, 0, 0, 0, 0]);
            return Err(NotBuilt::Elsewhere);
        }
        for (offset, code) in GATE_CODE {
            std::ptr::copy_nonoverlapping(code.as_ptr(), (GATE + offset) as *mut u8, code.len());
        }
        checked(libc::SYS_mprotect, [GATE, 4096, (libc::PROT_READ | libc::PROT_EXEC) as usize, 0, 0, 0])?;
        set_gate(GATE);
    }
    Ok(())
}
