//! A signal frame as the kernel would have pushed it, from which `rt_sigreturn` makes a thread what
//! it was.
//!
//! Pure: bytes from registers. The layout is the kernel's promise to programs
//! (`struct rt_sigframe` of x86-64, and XSAVE's standard form behind it).

use farmem_sys::ptrace::Registers;

/// Bytes before the floating-point state: the return address, `struct ucontext` with a mask of 8
/// bytes, siginfo.
const HEAD: usize = 8 + 304 + 128;
/// XSAVE's legacy area and header, the least that a frame holds of it.
const LEAST: usize = 576;
/// Where software may keep words of its own in it, and where its header says which components are
/// not in their initial state.
const SOFTWARE: usize = 464;
const PRESENT: usize = 512;
const MAGIC_1: u32 = 0x4650_5853;
const MAGIC_2: u32 = 0x4650_5845;

/// UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS.
const FLAGS: u64 = 7;
/// No mode that `sigaltstack` knows. A frame sets the alternate stack too, of which nothing is
/// known from outside; that it refuses is the one error that `rt_sigreturn` does not mind, and
/// leaves the thread's as it was.
const NO_SUCH_STACK: u64 = 0x7fff;

/// The first word of a frame, where a handler's return address would be: by it a place is known
/// again.
pub const MARK: u64 = u64::from_le_bytes(*b"farmem\0\x01");

/// The most bytes that a frame takes.
pub const MOST: u64 = 1 << 14;

/// The state that a thread is to return to.
pub struct Thread<'a> {
    /// Its general registers.
    pub registers: &'a Registers,
    /// Which signals it blocks.
    pub mask: u64,
    /// Its other registers, as `ptrace::extended_state` has them.
    pub extended: &'a [u8],
}

/// The frame for a thread at an address that is a multiple of 64. `ends` says where a component of
/// the extended state ends. `None`: the state is none that fits.
///
/// The stack pointer of the `rt_sigreturn` is 8 above the frame.
pub fn build(thread: &Thread<'_>, at: u64, ends: impl Fn(u32) -> usize) -> Option<Vec<u8>> {
    assert!(at.is_multiple_of(64));
    let word = |at: usize| Some(u64::from_le_bytes(thread.extended.get(at..at + 8)?.try_into().ok()?));
    // The kernel takes no more than the thread's own state has room for, which may be less than
    // ptrace tells (AMX's tiles, if it never asked for them): so much, then, that every component
    // is there that is not in its initial state. `word(SOFTWARE)` is which components there are at
    // all; those not there become initial again.
    let (components, present) = (word(SOFTWARE)?, word(PRESENT)?);
    let size = (2..64).filter(|bit| present >> bit & 1 != 0).map(&ends).fold(LEAST, usize::max);
    let mut state = thread.extended.get(..size)?.to_vec();
    let software = [
        &MAGIC_1.to_le_bytes()[..],
        &(size as u32 + 4).to_le_bytes(),
        &components.to_le_bytes(),
        &(size as u32).to_le_bytes(),
        &[0; 28],
    ]
    .concat();
    state[SOFTWARE..PRESENT].copy_from_slice(&software);
    state.extend(MAGIC_2.to_le_bytes());

    let of = thread.registers;
    let behind = HEAD.next_multiple_of(64);
    let selectors = of.cs & 0xffff | (of.ss & 0xffff) << 48;
    let words = [
        [MARK, FLAGS, 0, 0, NO_SUCH_STACK, 0].as_slice(),
        &[of.r8, of.r9, of.r10, of.r11, of.r12, of.r13, of.r14, of.r15],
        &[of.rdi, of.rsi, of.rbp, of.rbx, of.rdx, of.rax, of.rcx, of.rsp, of.rip, of.eflags],
        // Error, trap, old mask, fault address: for a handler to read.
        &[selectors, 0, 0, 0, 0, at + behind as u64],
        &[0; 8],
        &[thread.mask],
    ]
    .concat();
    let mut frame: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    frame.resize(behind, 0);
    frame.extend(state);
    (frame.len() as u64 <= MOST).then_some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers() -> Registers {
        // SAFETY: plain integers.
        #[allow(unsafe_code)]
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        (registers.r8, registers.rdi, registers.rax, registers.rip, registers.rsp) = (8, 1, 2, 3, 4);
        (registers.cs, registers.ss, registers.eflags) = (0x33, 0x2b, 0x246);
        registers
    }

    fn state(len: usize, present: u64) -> Vec<u8> {
        let mut state: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        state[SOFTWARE..SOFTWARE + 8].copy_from_slice(&0x602e7_u64.to_le_bytes());
        state[PRESENT..PRESENT + 64].fill(0);
        state[PRESENT..PRESENT + 8].copy_from_slice(&present.to_le_bytes());
        state
    }

    #[test]
    fn it_is_laid_out_as_the_kernels_own() {
        let (registers, extended) = (registers(), state(11008, 0b111));
        let thread = Thread { registers: &registers, mask: 0x55, extended: &extended };
        let frame = build(&thread, 0x1000, |component| [0, 0, 832][component as usize]).unwrap();
        let word = |at: usize| u64::from_le_bytes(frame[at..at + 8].try_into().unwrap());
        // By libc's own idea of a ucontext, which lies behind the return address.
        let general = 8 + std::mem::offset_of!(libc::ucontext_t, uc_mcontext.gregs);
        let register = |number: i32| word(general + 8 * number as usize);
        assert_eq!([libc::REG_R8, libc::REG_RDI, libc::REG_RAX].map(register), [8, 1, 2]);
        assert_eq!([libc::REG_RIP, libc::REG_RSP, libc::REG_EFL].map(register), [3, 4, 0x246]);
        assert_eq!(register(libc::REG_CSGSFS), 0x2b_0000_0000_0033);
        assert_eq!(word(8 + std::mem::offset_of!(libc::ucontext_t, uc_sigmask)), 0x55);
        let fp = word(8 + std::mem::offset_of!(libc::ucontext_t, uc_mcontext.fpregs)) as usize - 0x1000;
        assert!(fp.is_multiple_of(64));
        assert_eq!(frame.len(), fp + 832 + 4, "as much as is not initial, and the second magic");
        assert_eq!(frame[fp..fp + SOFTWARE], extended[..SOFTWARE]);
        assert_eq!(frame[fp + PRESENT..fp + 832], extended[PRESENT..832]);
        assert_eq!(frame[fp + 832..], MAGIC_2.to_le_bytes());
        assert_eq!(word(fp + SOFTWARE), u64::from(MAGIC_1) | 836 << 32);
        assert_eq!((word(fp + SOFTWARE + 8), word(fp + SOFTWARE + 16)), (0x602e7, 832));
    }

    #[test]
    fn the_least_state_is_that_of_sse() {
        let (registers, extended) = (registers(), state(2696, 0));
        let thread = Thread { registers: &registers, mask: 0, extended: &extended };
        let frame = build(&thread, 0, |_| 0).unwrap();
        assert_eq!(frame.len(), HEAD.next_multiple_of(64) + LEAST + 4);
        let short = Thread { extended: &extended[..LEAST - 1], ..thread };
        assert!(build(&short, 0, |_| 0).is_none());
    }
}
