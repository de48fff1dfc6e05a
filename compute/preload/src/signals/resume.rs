//! The way back from a served fault, without `rt_sigreturn`.
//!
//! That call restores what the kernel has written onto the near stack: vector state, registers,
//! mask. It costs 0.5 µs of a fault, the mask alone half of that. All but the mask a thread can
//! restore by itself:
//!
//! ```text
//! near alternate stack                 farmem_resume
//! ┌────────────────────────┐             the image is written, xrstor, registers that no call needs
//! │ vector state           │             rt_sigprocmask, from the gate       signals of the program's come
//! │ siginfo, ucontext      │           ┌ gate: jmp *%r14                        from here …
//! │ restorer               │           │ the other registers
//! │ ss rsp rflags cs rip   │◄─ rsp     └ iretq                                  … to here: the window
//! └────────────────────────┘
//! ```
//!
//! *The window.* The mask must be restored by a call, and that call cannot be the last instruction.
//! A signal that comes behind it finds registers that are half the pager's, and handlers look at
//! registers: collectors search them for pointers, and others judge by them where the thread
//! stands. But nothing is left to do for the fault then, and the kernel's frame of it is whole
//! until `iretq`. So the handler gets that frame, as though the signal had come right after a
//! return ([`interrupted`], asked by [`super::deliver`]), and the handler's own return does the
//! rest of the stub's work. Most signals that come in a fault are delivered there, because the call
//! lets them in.
//!
//! So every handler of the program's must come by way of [`super::deliver`] ([`super::actions`] sees
//! to it): where some may not, nothing is resumed this way. (An action that a library sets by a
//! `syscall` instruction of its own is not seen. Its handler runs in the window as it comes: on the
//! near stack, with the stub's registers in its context; then the stub goes on.)
//!
//! Where signals stay open in faults there is no call, and the window is what comes behind the last
//! look at what was kept ([`open`]).
//!
//! Where anything about the frame is unusual ([`may`]), the kernel is asked as ever.

use super::frame::{
    EXTENDED_MAGIC, FLAGS_AT, LEGACY_BYTES, MASK_AT, R14_AT, REGISTERS_AT, RIP_AT, RSP_AT, SEGMENTS_AT, SOFTWARE_AT,
    VECTOR_AT, read,
};
use super::open::{self, deliver_kept};
use crate::gate::{AFTER_THREAD, GATE, RETURN};
use crate::threads::{self, Kept, Record};
use farmem_sys::raw::GATE_THREAD;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// From `rip` at the bottom to `ss`; below the frame, with room for the restorer between.
const IMAGE_BYTES: usize = 48;

const FEATURES_AT: usize = SOFTWARE_AT + 8;
/// The header of an extended state: features not in their initial state; the compacted format's.
const HEADER_AT: usize = LEGACY_BYTES;
/// MPX, which processors of 2015 to 2020 have and hardly any program uses: bounds registers, and
/// their configuration.
const BOUNDS: usize = 1 << 3 | 1 << 4;
const PKRU: u32 = 9;
/// AMX: the tiles, and their configuration, which every frame holds where the processor has it.
const TILE_CONFIG: u32 = 17;
#[cfg(test)]
const TILE_DATA: u32 = 18;
/// x87, SSE, AVX, bounds, AVX-512 in three parts, protection keys, and the tiles' configuration:
/// features whose registers `xrstor` sets as the kernel would. (Not the tiles: the kernel may have
/// disabled them until their first use.)
const FEATURES: usize = 1 << 0 | 1 << 1 | 1 << 2 | BOUNDS | 1 << 5 | 1 << 6 | 1 << 7 | 1 << PKRU | 1 << TILE_CONFIG;

/// Flags that may be set: those of arithmetic, direction, interrupts, resume, identification, and
/// bit 1, which always is. (Not single steps, nested tasks, with which `iretq` traps, or alignment
/// checks.)
const FLAGS: usize = 0x1 | 0x2 | 0x4 | 0x10 | 0x40 | 0x80 | 0x200 | 0x400 | 0x800 | 0x1_0000 | 0x20_0000;

core::arch::global_asm!(
    // Of the ucontext at rdi.
    ".macro farmem_restore_first",
    "lea rsp, [rdi - {image}]",
    "mov rax, [rdi + {rip}]",            "mov [rsp], rax",
    "movzx eax, word ptr [rdi + {cs}]",  "mov [rsp + 8], rax",
    "mov rax, [rdi + {flags}]",          "mov [rsp + 16], rax",
    "mov rax, [rdi + {sp}]",             "mov [rsp + 24], rax",
    "movzx eax, word ptr [rdi + {ss}]",  "mov [rsp + 32], rax",
    "mov rcx, [rdi + {vector}]",
    "mov eax, [rcx + {features}]",
    "mov edx, [rcx + {features} + 4]",
    "xrstor64 [rcx]",
    "mov r12, [rdi + {regs} + 4 * 8]",
    "mov r13, [rdi + {regs} + 5 * 8]",
    "mov r15, [rdi + {regs} + 7 * 8]",
    "mov rbp, [rdi + {regs} + 10 * 8]",
    "mov rbx, [rdi + {regs} + 11 * 8]",
    ".endm",
    ".macro farmem_restore_last",
    "mov r8, [rsp + {image} + {regs}]",
    "mov r9, [rsp + {image} + {regs} + 1 * 8]",
    "mov r10, [rsp + {image} + {regs} + 2 * 8]",
    "mov r11, [rsp + {image} + {regs} + 3 * 8]",
    "mov r14, [rsp + {image} + {regs} + 6 * 8]",
    "mov rdi, [rsp + {image} + {regs} + 8 * 8]",
    "mov rsi, [rsp + {image} + {regs} + 9 * 8]",
    "mov rdx, [rsp + {image} + {regs} + 12 * 8]",
    "mov rax, [rsp + {image} + {regs} + 13 * 8]",
    "mov rcx, [rsp + {image} + {regs} + 14 * 8]",
    "iretq",
    ".endm",
    // rdi: the ucontext, on the near alternate stack.
    ".globl farmem_resume",
    ".hidden farmem_resume",
    ".type farmem_resume,@function",
    "farmem_resume:",
    // Above is the frame, which stays as it is. The space below is used up.
    "farmem_restore_first",
    "lea rsi, [rdi + {mask}]",
    "mov edi, {setmask}",
    "xor edx, edx",
    "mov r10d, 8",
    // No arguments, but the filter looks closer where one of these looks far.
    "xor r8d, r8d",
    "xor r9d, r9d",
    "movabs rcx, {gate}",
    "lea r14, [rip + farmem_resume_opened]",
    "mov eax, {sigprocmask}",
    "jmp rcx",
    ".globl farmem_resume_opened",
    ".hidden farmem_resume_opened",
    "farmem_resume_opened:",
    "test eax, eax",
    "jnz 2f",
    "farmem_restore_last",
    ".globl farmem_resume_end",
    ".hidden farmem_resume_end",
    "farmem_resume_end:",
    // Refused: all is blocked still.
    "2:",
    "add rsp, {image}",
    "movabs rcx, {by_kernel}",
    "jmp rcx",
    ".size farmem_resume, .-farmem_resume",
    // The same where signals are open, and no call is due. rdi: the ucontext, rsi: the thread's
    // record.
    ".globl farmem_resume_open",
    ".hidden farmem_resume_open",
    ".type farmem_resume_open,@function",
    "farmem_resume_open:",
    "farmem_restore_first",
    "mov qword ptr [rsi + {serving}], 0",
    ".globl farmem_resume_over",
    ".hidden farmem_resume_over",
    "farmem_resume_over:",
    "cmp qword ptr [rsi + {kept}], 0",
    "jne 3f",
    "farmem_restore_last",
    ".globl farmem_resume_open_end",
    ".hidden farmem_resume_open_end",
    "farmem_resume_open_end:",
    // Something came, and all is blocked.
    "3:",
    "lea rbx, [rsp + {image}]",
    "mov rdi, rbx",
    "and rsp, -16",
    "call {deliver_kept}",
    "mov rsp, rbx",
    "movabs rcx, {by_kernel}",
    "jmp rcx",
    ".size farmem_resume_open, .-farmem_resume_open",
    image = const IMAGE_BYTES,
    regs = const REGISTERS_AT,
    rip = const RIP_AT,
    sp = const RSP_AT,
    flags = const FLAGS_AT,
    cs = const SEGMENTS_AT,
    ss = const SEGMENTS_AT + 6,
    vector = const VECTOR_AT,
    features = const FEATURES_AT,
    mask = const MASK_AT,
    setmask = const libc::SIG_SETMASK,
    sigprocmask = const libc::SYS_rt_sigprocmask,
    gate = const GATE + GATE_THREAD,
    by_kernel = const RETURN,
    serving = const std::mem::offset_of!(Record, serving),
    kept = const std::mem::offset_of!(Record, kept) + std::mem::offset_of!(Kept, signal),
    deliver_kept = sym deliver_kept,
);

// SAFETY: defined by the assembly above, the function with these arguments; the other two are
// places in it, never called.
unsafe extern "C" {
    /// Returns to what the frame interrupted. All signals are blocked, [`may`] was true, and
    /// nothing on this stack below the frame is needed any more.
    pub fn farmem_resume(context: usize) -> !;
    /// As [`farmem_resume`], from a fault in which signals were open ([`super::open`]).
    pub fn farmem_resume_open(context: usize, record: *const ()) -> !;
    fn farmem_resume_opened();
    fn farmem_resume_end();
    fn farmem_resume_over();
    fn farmem_resume_open_end();
}

/// Cleared where a handler is set that is not delivered.
static ON: AtomicBool = AtomicBool::new(false);
/// Where in a vector state the protection keys' register is.
static PKRU_AT: AtomicUsize = AtomicUsize::new(0);

/// From now on faults return this way. Every handler that is set is delivered already.
pub fn begin() {
    // Every processor with an extended state has this leaf. On one without, it is not asked for.
    let leaf = core::arch::x86_64::__cpuid_count(0xD, PKRU);
    PKRU_AT.store(leaf.ebx as usize, Ordering::Relaxed);
    ON.store(true, Ordering::Release);
}

/// No fault returns this way any more: some handler is not delivered.
pub fn end() {
    ON.store(false, Ordering::Relaxed);
    open::end();
}

/// Whether a fault with this ucontext may return by [`farmem_resume`].
///
/// # Safety
/// It must be the kernel's, of the handler that asks.
#[inline]
pub unsafe fn may(record: &Record, context: usize) -> bool {
    let (code, stack): (u16, u16);
    let shadow: usize;
    // SAFETY: reads registers; without a shadow stack `rdsspq` does nothing.
    unsafe {
        core::arch::asm!(
            "mov {code:x}, cs", "mov {stack:x}, ss", "xor {shadow:e}, {shadow:e}", "rdsspq {shadow}",
            code = out(reg) code, stack = out(reg) stack, shadow = out(reg) shadow, options(nomem, nostack),
        );
    }
    // On a stack of the program's the image would lie in what may be far; and what is delivered in
    // the window must be told from what the program itself has called.
    ON.load(Ordering::Relaxed) && record.is_alternate(context) && shadow == 0
        // SAFETY: the caller's.
        && unsafe { is_plain(context, code, stack) }
}

/// Whether all that is in the frame can be restored without the kernel, in such segments.
unsafe fn is_plain(context: usize, code: u16, stack: u16) -> bool {
    // SAFETY: the kernel's frame, by the caller's word.
    unsafe {
        let segments = read(context + SEGMENTS_AT);
        if segments as u16 != code || (segments >> 48) as u16 != stack || read(context + FLAGS_AT) & !FLAGS != 0 {
            return false;
        }
        let vector = read(context + VECTOR_AT);
        if vector == 0
            || !vector.is_multiple_of(64)
            || read(vector + SOFTWARE_AT) as u32 != EXTENDED_MAGIC
            || read(vector + FEATURES_AT) & !FEATURES != 0
            || read(vector + HEADER_AT + 8) != 0
            // Where bounds are in use, a jump between `xrstor` and `iretq` would forget them.
            || read(vector + HEADER_AT) & BOUNDS != 0
        {
            return false;
        }
        // A program that has forbidden itself the key of plain memory could not read the frame any
        // more.
        let present = read(vector + HEADER_AT) >> PKRU & 1 != 0;
        !present || {
            let at = PKRU_AT.load(Ordering::Relaxed);
            at > HEADER_AT && read(vector + at) & 0b11 == 0
        }
    }
}

/// If this ucontext is of a signal that came in the window: the ucontext of the fault that is about
/// to return.
///
/// # Safety
/// It must be the kernel's, of a handler of the calling thread.
pub unsafe fn interrupted(context: usize) -> Option<usize> {
    // SAFETY: the kernel's frame, by the caller's word.
    let (rip, next, rsp) = unsafe { (read(context + RIP_AT), read(context + R14_AT), read(context + RSP_AT)) };
    let (opened, end) = (farmem_resume_opened as *const () as usize, farmem_resume_end as *const () as usize);
    let nothing_kept = || threads::current().kept.signal.load(Ordering::Relaxed) == 0;
    let within = (opened..end).contains(&rip) || is_over(rip) && nothing_kept();
    (within || rip == AFTER_THREAD && next == opened).then_some(rsp + IMAGE_BYTES)
}

/// Whether it is one of the last instructions of a fault in which signals were open: the thread is
/// out of the pager.
pub fn is_over(rip: usize) -> bool {
    (farmem_resume_over as *const () as usize..farmem_resume_open_end as *const () as usize).contains(&rip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::frame::UCONTEXT_BYTES;

    #[repr(align(64))]
    struct Frame {
        state: [u64; 512],
        context: [u64; UCONTEXT_BYTES / 8],
    }

    const CODE: u16 = 0x33;
    const STACK: u16 = 0x2b;

    impl Frame {
        fn new() -> Box<Frame> {
            let mut frame = Box::new(Frame { state: [0; 512], context: [0; _] });
            frame.state[SOFTWARE_AT / 8] = EXTENDED_MAGIC as u64;
            frame.state[FEATURES_AT / 8] = 0x2E7;
            frame.context[VECTOR_AT / 8] = frame.state.as_ptr() as u64;
            frame.context[SEGMENTS_AT / 8] = u64::from(STACK) << 48 | u64::from(CODE);
            frame.context[FLAGS_AT / 8] = 0x1_0246;
            frame
        }

        fn at(&self) -> usize {
            self.context.as_ptr() as usize
        }

        fn is_plain(&self) -> bool {
            // SAFETY: a frame of the kernel's layout.
            unsafe { is_plain(self.at(), CODE, STACK) }
        }
    }

    #[test]
    fn what_is_unusual_is_left_to_the_kernel() {
        assert!(Frame::new().is_plain());
        let unusual: [fn(&mut Frame); 13] = [
            |f| f.context[SEGMENTS_AT / 8] = u64::from(STACK) << 48 | 0x23, // 32 bits
            |f| f.context[SEGMENTS_AT / 8] = 0x2f << 48 | u64::from(CODE),
            |f| f.context[FLAGS_AT / 8] |= 1 << 8,  // a single step
            |f| f.context[FLAGS_AT / 8] |= 1 << 14, // a nested task
            |f| f.context[FLAGS_AT / 8] |= 1 << 18, // alignment checks
            |f| f.context[VECTOR_AT / 8] = 0,
            |f| f.context[VECTOR_AT / 8] += 16,
            |f| f.state[SOFTWARE_AT / 8] = 0,
            |f| f.state[FEATURES_AT / 8] |= 1 << TILE_DATA,
            |f| f.state[HEADER_AT / 8 + 1] = 1 << 63,
            |f| f.state[HEADER_AT / 8] |= 1 << 4,    // bounds are checked
            |f| f.state[HEADER_AT / 8] |= 1 << PKRU, // keys, and nobody knows where
            |f| {
                PKRU_AT.store(2688, Ordering::Relaxed);
                f.state[HEADER_AT / 8] |= 1 << PKRU;
                f.state[2688 / 8] = 0x5555_5555;
            },
        ];
        for (i, change) in unusual.iter().enumerate() {
            PKRU_AT.store(0, Ordering::Relaxed);
            let mut frame = Frame::new();
            change(&mut frame);
            assert!(!frame.is_plain(), "number {i}");
        }
        let mut tiles = Frame::new();
        tiles.state[FEATURES_AT / 8] |= 1 << TILE_CONFIG;
        assert!(tiles.is_plain(), "as every frame is where the processor has tiles");
        let mut bounds = Frame::new();
        bounds.state[FEATURES_AT / 8] |= BOUNDS as u64;
        assert!(bounds.is_plain(), "as every frame is where the processor has MPX");
        let mut keys = Frame::new();
        PKRU_AT.store(2688, Ordering::Relaxed);
        keys.state[HEADER_AT / 8] |= 1 << PKRU;
        keys.state[2688 / 8] = 0x5555_5554;
        assert!(keys.is_plain(), "as every process begins");
    }

    #[test]
    fn the_window_is_from_the_call_to_the_last_instruction() {
        let (opened, end) = (farmem_resume_opened as *const () as usize, farmem_resume_end as *const () as usize);
        let ask = |rip: usize, r14: usize| {
            let mut frame = Frame::new();
            frame.context[RIP_AT / 8] = rip as u64;
            frame.context[R14_AT / 8] = r14 as u64;
            frame.context[RSP_AT / 8] = 0x7000;
            // SAFETY: a frame of the kernel's layout.
            unsafe { interrupted(frame.at()) }
        };
        let found = Some(0x7000 + IMAGE_BYTES);
        assert_eq!([ask(opened, 0), ask(end - 2, 0), ask(AFTER_THREAD, opened)], [found; 3], "iretq is the last");
        assert_eq!([ask(opened - 1, opened), ask(end, opened), ask(AFTER_THREAD, opened + 1)], [None; 3]);
    }
}
