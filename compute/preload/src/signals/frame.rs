//! The layout of what the kernel writes for a signal, as far as the runtime reads it.

/// The kernel's `struct ucontext` (libc's has more behind it).
pub const UCONTEXT_BYTES: usize = 304;
/// Where in it the general registers begin, in the order of `REG_R8`….
pub const REGISTERS_AT: usize = 40;
pub const R10_AT: usize = REGISTERS_AT + 2 * 8;
pub const R12_AT: usize = REGISTERS_AT + 4 * 8;
pub const R13_AT: usize = REGISTERS_AT + 5 * 8;
pub const R14_AT: usize = REGISTERS_AT + 6 * 8;
pub const R15_AT: usize = REGISTERS_AT + 7 * 8;
pub const RDI_AT: usize = REGISTERS_AT + 8 * 8;
pub const RSI_AT: usize = REGISTERS_AT + 9 * 8;
pub const RBP_AT: usize = REGISTERS_AT + 10 * 8;
pub const RBX_AT: usize = REGISTERS_AT + 11 * 8;
pub const RDX_AT: usize = REGISTERS_AT + 12 * 8;
pub const RAX_AT: usize = REGISTERS_AT + 13 * 8;
pub const RSP_AT: usize = REGISTERS_AT + 15 * 8;
pub const RIP_AT: usize = REGISTERS_AT + 16 * 8;
pub const FLAGS_AT: usize = REGISTERS_AT + 17 * 8;
/// `cs`, `gs`, `fs`, `ss`, 16 bits each. (The kernel restores neither `gs` nor `fs`.)
pub const SEGMENTS_AT: usize = REGISTERS_AT + 18 * 8;
/// The pointer to the vector state.
pub const VECTOR_AT: usize = REGISTERS_AT + 23 * 8;
pub const MASK_AT: usize = 296;
pub const INFO_BYTES: usize = 128;
/// Restorer, ucontext, siginfo: `struct rt_sigframe`.
pub const FRAME_BYTES: usize = 8 + UCONTEXT_BYTES + INFO_BYTES;

/// Least vector state: the legacy area.
pub const LEGACY_BYTES: usize = 512;
/// In the legacy area: magic word, then length, then the features that the state holds.
pub const SOFTWARE_AT: usize = 464;
pub const EXTENDED_MAGIC: u32 = 0x4650_5853;

/// A word of a frame.
///
/// # Safety
/// `at` must be readable.
pub unsafe fn read(at: usize) -> usize {
    // SAFETY: the caller's.
    unsafe { (at as *const usize).read_unaligned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn fields_lie_where_the_kernel_puts_them() {
        let registers = offset_of!(libc::ucontext_t, uc_mcontext) + offset_of!(libc::mcontext_t, gregs);
        assert_eq!(REGISTERS_AT, registers);
        let ours = [
            R10_AT,
            R12_AT,
            R13_AT,
            R14_AT,
            R15_AT,
            RDI_AT,
            RSI_AT,
            RBP_AT,
            RBX_AT,
            RDX_AT,
            RAX_AT,
            RSP_AT,
            RIP_AT,
            FLAGS_AT,
            SEGMENTS_AT,
        ];
        let theirs = [
            libc::REG_R10,
            libc::REG_R12,
            libc::REG_R13,
            libc::REG_R14,
            libc::REG_R15,
            libc::REG_RDI,
            libc::REG_RSI,
            libc::REG_RBP,
            libc::REG_RBX,
            libc::REG_RDX,
            libc::REG_RAX,
            libc::REG_RSP,
            libc::REG_RIP,
            libc::REG_EFL,
            libc::REG_CSGSFS,
        ];
        assert_eq!(ours, theirs.map(|register| registers + register as usize * 8));
        assert_eq!(VECTOR_AT, offset_of!(libc::ucontext_t, uc_mcontext) + offset_of!(libc::mcontext_t, fpregs));
        assert_eq!(MASK_AT, offset_of!(libc::ucontext_t, uc_sigmask));
        assert_eq!(UCONTEXT_BYTES, MASK_AT + 8, "the kernel's mask is one word");
        assert_eq!(INFO_BYTES, size_of::<libc::siginfo_t>());
    }

    #[test]
    fn registers_lie_in_the_order_that_the_assembly_knows() {
        let order = [
            libc::REG_R8,
            libc::REG_R9,
            libc::REG_R10,
            libc::REG_R11,
            libc::REG_R12,
            libc::REG_R13,
            libc::REG_R14,
            libc::REG_R15,
            libc::REG_RDI,
            libc::REG_RSI,
            libc::REG_RBP,
            libc::REG_RBX,
            libc::REG_RDX,
            libc::REG_RAX,
            libc::REG_RCX,
        ];
        assert!(order.iter().enumerate().all(|(i, &register)| i as i32 == register));
    }
}
