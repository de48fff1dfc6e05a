//! Delivering a signal to the program from the near stack, as the kernel would have
//! done it on the program's.
//!
//! ```text
//! near alternate stack            the program's stack, or the alternate one it asked for
//! ┌──────────────────────┐        ┌──────────────────────┐
//! │ frame by the kernel  │ copied │ frame: restorer      │◄─ rsp when the handler starts
//! │  ucontext, siginfo   │ ─────► │  ucontext, siginfo   │
//! │  vector state        │        │  vector state        │
//! └──────────────────────┘        └──────────────────────┘
//! ```
//! The copy is made in user mode, where absent pages fault like any others. From
//! then on nothing of the frame is on the near stack, so that the handler may be
//! interrupted, leave by `siglongjmp`, or switch to another coroutine, as anywhere.
//!
//! When the handler returns, the kernel must read the frame, which may be absent
//! by then: from a far stack the way back copies it to near memory first, with
//! all signals blocked.

use super::{KernelAction, OURS, actions, masks, stacks};
use crate::gate::RETURN;
use crate::{near, threads};
use farmem_protocol::addr::is_far;
use std::sync::atomic::Ordering;

/// The kernel's `struct ucontext` (libc's has more behind it).
const UCONTEXT_BYTES: usize = 304;
/// Where in it `rsp`, the pointer to the vector state, and the mask are.
const RSP_AT: usize = 40 + 15 * 8;
const VECTOR_AT: usize = 40 + 23 * 8;
const MASK_AT: usize = 296;
const INFO_BYTES: usize = 128;
/// Restorer, ucontext, siginfo: `struct rt_sigframe`.
const FRAME_BYTES: usize = 8 + UCONTEXT_BYTES + INFO_BYTES;
/// Least vector state: the legacy area.
const LEGACY_BYTES: usize = 512;
const EXTENDED_MAGIC: u32 = 0x4650_5853;

core::arch::global_asm!(
    // rdi: frame, rsi: handler, rdx: signal, rcx: address of its mask, near, r8: 0, or of a stack_t, near.
    // Leaves this stack for good, and only then lets other signals come: one that came earlier would be
    // put on the stack where this frame is already, and destroy it. A stack that is still in use is made
    // the rest of itself first, for which one must not stand on it.
    ".globl farmem_enter_handler",
    ".hidden farmem_enter_handler",
    ".type farmem_enter_handler,@function",
    "farmem_enter_handler:",
    "mov rsp, rdi",
    "mov r12, rsi",
    "mov r13d, edx",
    "mov r14, rcx",
    "test r8, r8", "jz 2f",
    "mov rdi, r8",
    "xor esi, esi",
    "mov eax, {sigaltstack}",
    "syscall",
    "2:",
    "mov edi, {setmask}",
    "mov rsi, r14",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, {sigprocmask}",
    "syscall",
    "mov edi, r13d",
    "lea rdx, [rsp + 8]",                // ucontext
    "lea rsi, [rsp + {info}]",           // siginfo
    "xor eax, eax",
    "cld",
    "jmp r12",
    ".size farmem_enter_handler, .-farmem_enter_handler",
    // Where a handler on a far stack returns to: rsp is at the ucontext.
    ".globl farmem_leave_handler",
    ".hidden farmem_leave_handler",
    ".type farmem_leave_handler,@function",
    "farmem_leave_handler:",
    "mov rsi, rsp",
    "lea rdi, [rip + {bring_near}]",
    "lea rsp, [rsp - 8]",
    "and rsp, -16",
    "call {near}",
    // rax: the frame's near copy, at its ucontext.
    "mov rsp, rax",
    "mov eax, 15",
    "syscall",
    "ud2",
    ".size farmem_leave_handler, .-farmem_leave_handler",
    info = const 8 + UCONTEXT_BYTES,
    setmask = const libc::SIG_SETMASK,
    sigprocmask = const libc::SYS_rt_sigprocmask,
    sigaltstack = const libc::SYS_sigaltstack,
    bring_near = sym bring_near,
    near = sym near::farmem_near_call,
);

unsafe extern "C" {
    fn farmem_enter_handler(frame: usize, handler: usize, signal: i32, mask: *const usize, rest: usize) -> !;
    fn farmem_leave_handler();
}

/// The kernel's handler for signals of the program's that must not come on the interrupted stack.
pub extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let action = actions::take(signal);
    if action.is_function() {
        // SAFETY: the kernel's arguments, on the near stack.
        unsafe { deliver(signal, &action, info as usize, context as usize) }
    }
}

/// Runs a handler of the program's for the signal whose frame is `info`, `context`.
///
/// Returns only where the kernel's frame stays where it is: of a thread that has no near stack, or one
/// that was on it already. Otherwise the handler returns to the interrupted code.
///
/// # Safety
/// Both must be what the kernel gave to the handler that calls this, as its last act.
pub unsafe fn deliver(signal: i32, action: &KernelAction, info: usize, context: usize) {
    let record = threads::current();
    let own = 1u64 << (signal - 1);
    // SAFETY: fields of the kernel's ucontext.
    let (interrupted, vector, before) = unsafe {
        (read(context + RSP_AT), read(context + VECTOR_AT), (context as *const u8).add(MASK_AT).cast::<u64>().read())
    };
    let blocked = before | action.mask | if action.has(libc::SA_NODEFER) { 0 } else { own };
    // Interrupted in the runtime, at work for the program on another stack? The program is where it came from.
    let in_trap = record.is_alternate(interrupted);
    let program = match in_trap {
        true => record.trapped_at.load(Ordering::Relaxed),
        false => near::program_of(interrupted).unwrap_or(interrupted),
    };
    let asked = record.asked_size.load(Ordering::Relaxed);
    let wants_own = action.has(libc::SA_ONSTACK) && asked != 0;
    // In a trapped call, on the near alternate stack: that frame is live, and from any other stack the next
    // fault's frame would go to the top again. So the handler stays on this stack, below it; or, if it wants
    // its own (Go's looks where it is), this stack ends below that frame until the handler returns, for with
    // the frame the kernel restores what alternate stack there was.
    // (Below its red zone, too: onto an alternate stack the kernel goes without leaving one.)
    let rest = interrupted.wrapping_sub(RED_ZONE).wrapping_sub(record.alternate.load(Ordering::Relaxed)) & !15;
    let moves = if in_trap { wants_own && rest >= ROOM } else { record.is_alternate(near::stack_pointer()) };
    if !moves {
        masks::change(libc::SIG_SETMASK, blocked & !OURS);
        // SAFETY: the program's handler, of the type that its flags say; one that takes only the number
        // ignores the rest (System V ABI).
        unsafe {
            std::mem::transmute::<usize, extern "C" fn(i32, usize, usize)>(action.handler)(signal, info, context)
        };
        return;
    }
    let top = if wants_own && !stacks::is_on(record, program) {
        record.asked_at.load(Ordering::Relaxed) + asked
    } else {
        program - RED_ZONE
    };
    let vector_bytes = if vector == 0 { 0 } else { vector_bytes(vector) };
    let (vector_copy, frame) = places(top, vector_bytes);
    let restorer = if is_far(frame) { farmem_leave_handler as *const () as usize } else { RETURN };
    // SAFETY: the target is the program's stack, below what it uses, as the kernel would write it; the
    // sources are the kernel's frame. User-mode writes: absent pages fault, on the near stack.
    unsafe {
        copy(vector, vector_copy, vector_bytes);
        copy(context, frame + 8, UCONTEXT_BYTES);
        copy(info, frame + 8 + UCONTEXT_BYTES, INFO_BYTES);
        (frame as *mut usize).write(restorer);
        ((frame + 8 + VECTOR_AT) as *mut usize).write(if vector == 0 { 0 } else { vector_copy });
    }
    record.handler_mask.store((blocked & !OURS) as usize, Ordering::Relaxed);
    let narrower = if in_trap { record.narrower(rest) } else { 0 };
    // SAFETY: the frame is complete.
    unsafe { farmem_enter_handler(frame, action.handler, signal, record.handler_mask.as_ptr(), narrower) }
}

/// Below its stack pointer a function may use so much without saying so (System V ABI).
const RED_ZONE: usize = 128;
/// What of the near alternate stack must be left for faults in a handler that runs while a trapped call is on it.
const ROOM: usize = threads::ALTERNATE_BYTES / 2;

/// Where below `top` the vector state goes, and below that the frame.
fn places(top: usize, vector_bytes: usize) -> (usize, usize) {
    let vector = (top - vector_bytes) & !63;
    // As the kernel aligns it: at the handler's entry rsp is 8 past a multiple of 16.
    (vector, ((vector - FRAME_BYTES) & !15) - 8)
}

/// Copies the frame whose ucontext is at `context` to near memory, signals blocked until the kernel
/// restores the mask from it. Returns the copy's ucontext.
extern "C" fn bring_near(context: usize) -> usize {
    masks::change(libc::SIG_SETMASK, !OURS);
    let frame = context - 8;
    let to = threads::current().return_area();
    // SAFETY: `deliver` made the frame and the program's handler kept it (as it must for the kernel);
    // the return area is this thread's, and large enough for any vector state of today.
    unsafe {
        let vector = read(context + VECTOR_AT);
        copy(frame, to + 8, FRAME_BYTES);
        if vector != 0 {
            let at = (to + 8 + FRAME_BYTES).next_multiple_of(64);
            copy(vector, at, vector_bytes(vector).min(threads::RETURN_BYTES - 1024));
            ((to + 16 + VECTOR_AT) as *mut usize).write(at);
        }
    }
    to + 16
}

/// Length of a vector state, as it says itself.
fn vector_bytes(vector: usize) -> usize {
    // SAFETY: the kernel's layout: software bytes at 464 of the legacy area.
    let (magic, size) =
        unsafe { ((vector as *const u32).add(116).read(), (vector as *const u32).add(117).read() as usize) };
    if magic == EXTENDED_MAGIC { size } else { LEGACY_BYTES }
}

unsafe fn read(at: usize) -> usize {
    // SAFETY: the caller's.
    unsafe { (at as *const usize).read_unaligned() }
}

unsafe fn copy(from: usize, to: usize, len: usize) {
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn fields_lie_where_the_kernel_puts_them() {
        let registers = offset_of!(libc::ucontext_t, uc_mcontext) + offset_of!(libc::mcontext_t, gregs);
        assert_eq!(RSP_AT, registers + libc::REG_RSP as usize * 8);
        assert_eq!(VECTOR_AT, offset_of!(libc::ucontext_t, uc_mcontext) + offset_of!(libc::mcontext_t, fpregs));
        assert_eq!(MASK_AT, offset_of!(libc::ucontext_t, uc_sigmask));
        assert_eq!(UCONTEXT_BYTES, MASK_AT + 8, "the kernel's mask is one word");
        assert_eq!(INFO_BYTES, size_of::<libc::siginfo_t>());
    }

    #[test]
    fn a_frame_is_aligned_and_overlaps_nothing() {
        for top in (0x7fff_0000_0000..0x7fff_0000_0100).chain([0x2000_0000_1000]) {
            for bytes in [0, LEGACY_BYTES, 832, 2696, 11_008] {
                let (vector, frame) = places(top, bytes);
                assert_eq!((vector % 64, frame % 16), (0, 8), "XSAVE and the System V ABI want it so");
                assert!(vector + bytes <= top && frame + FRAME_BYTES <= vector, "{top:#x}, {bytes}");
                assert!(top - frame < bytes + FRAME_BYTES + 64 + 16 + 8 + 1, "no more than alignment is lost");
            }
        }
    }

    #[test]
    fn a_vector_state_says_its_length_or_is_the_legacy_one() {
        let mut state = vec![0u32; 208];
        let at = state.as_ptr() as usize;
        assert_eq!(vector_bytes(at), LEGACY_BYTES);
        state[116] = EXTENDED_MAGIC;
        state[117] = 832;
        assert_eq!(vector_bytes(state.as_ptr() as usize), 832);
        // What comes back to near memory must fit there beside the frame, with AVX-512's 2.7 KiB and AMX's 11 too.
        const { assert!(11_008 + FRAME_BYTES + 64 <= threads::RETURN_BYTES - 1024) };
    }
}
