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

use super::frame::{
    EXTENDED_MAGIC, FLAGS_AT, FRAME_BYTES, INFO_BYTES, LEGACY_BYTES, MASK_AT, R12_AT, R13_AT, R14_AT, RAX_AT, RDI_AT,
    RDX_AT, REGISTERS_AT, RIP_AT, RSI_AT, RSP_AT, UCONTEXT_BYTES, VECTOR_AT, read,
};
use super::kernel::{ALL, KernelAction, OURS};
use super::view::{self, View};
use super::{actions, blocked, masks, open, resume, stacks, waiting};
use crate::gate::{AFTER_THREAD, GATE, RETURN};
use crate::near_stack;
use crate::threads::{self, Record};
use farmem_protocol::addr::is_far;
use farmem_sys::raw::GATE_THREAD;
use std::sync::atomic::Ordering;

core::arch::global_asm!(
    // Calls leave from the part of the gate that needs no stack: theirs may be absent, and a
    // fault's frame would go over one on the near stack that is still needed. rdi: frame, rsi:
    // handler, rdx: signal, rcx: its mask, r8: 0, or the address of a stack_t, near, r9: where the
    // mask goes for the kernel to read, near. Leaves this stack for good, and only then lets other
    // signals come: one that came earlier would be put on the stack where this frame is already,
    // and destroy it. A stack that is still in use is made the rest of itself first, for which one
    // must not stand on it.
    ".globl farmem_enter_handler",
    ".hidden farmem_enter_handler",
    ".type farmem_enter_handler,@function",
    "farmem_enter_handler:",
    "mov rsp, rdi",
    "mov r12, rsi",
    "mov r13d, edx",
    "mov rbx, rcx",
    "mov r15, r9",
    "test r8, r8", "jz farmem_set_mask",
    "mov rdi, r8",
    "xor esi, esi",
    "mov eax, {sigaltstack}",
    "lea r14, [rip + farmem_set_mask]",
    "movabs rcx, {gate}",
    "jmp rcx",
    // From here to the call a signal may come that is never blocked, with a handler of its own,
    // whose mask goes where this one's is: the place is written again ([`begin_mask_again`]).
    ".globl farmem_set_mask",
    ".hidden farmem_set_mask",
    "farmem_set_mask:",
    "mov [r15], rbx",
    "mov edi, {setmask}",
    "mov rsi, r15",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, {sigprocmask}",
    "lea r14, [rip + farmem_mask_set]",
    "movabs rcx, {gate}",
    "jmp rcx",
    ".globl farmem_mask_set",
    ".hidden farmem_mask_set",
    "farmem_mask_set:",
    "mov edi, r13d",
    "lea rdx, [rsp + 8]",                // ucontext
    "lea rsi, [rsp + {info}]",           // siginfo
    "xor eax, eax",
    "cld",
    "jmp r12",
    ".size farmem_enter_handler, .-farmem_enter_handler",
    ".globl farmem_on_signal",
    ".hidden farmem_on_signal",
    ".type farmem_on_signal,@function",
    "farmem_on_signal:",
    "mov rcx, [rsp]",
    "jmp {handle}",
    ".size farmem_on_signal, .-farmem_on_signal",
    // The return address of a handler on a far stack; rsp is at the ucontext. Signals are blocked
    // until the kernel restores the mask, and before the stack is left: until then they find the
    // handler's frame. An unwinder (an exception, a backtrace, a cancellation) finds the
    // interrupted code in the ucontext, as from libc's restorer: rsp is where the kernel's frame
    // would have it. Unwinders look a return address up from one byte before it, hence the `nop`.
    // (The gate's restorer is recognized by its bytes; these are others.)
    ".macro farmem_at register, at",
    ".cfi_escape 0x10, \\register, 3, 0x77, (\\at) % 128 + 128, (\\at) / 128", // DW_CFA_expression: DW_OP_breg7 at
    ".endm",
    ".cfi_startproc",
    ".cfi_signal_frame",
    ".cfi_escape 0x0f, 4, 0x77, ({regs} + 15 * 8) % 128 + 128, ({regs} + 15 * 8) / 128, 0x06", // the CFA: rsp there
    "farmem_at 8, {regs}",
    "farmem_at 9, {regs}+1*8",
    "farmem_at 10, {regs}+2*8",
    "farmem_at 11, {regs}+3*8",
    "farmem_at 12, {regs}+4*8",
    "farmem_at 13, {regs}+5*8",
    "farmem_at 14, {regs}+6*8",
    "farmem_at 15, {regs}+7*8",
    "farmem_at 5, {regs}+8*8",
    "farmem_at 4, {regs}+9*8",
    "farmem_at 6, {regs}+10*8",
    "farmem_at 3, {regs}+11*8",
    "farmem_at 1, {regs}+12*8",
    "farmem_at 0, {regs}+13*8",
    "farmem_at 2, {regs}+14*8",
    "farmem_at 7, {regs}+15*8",
    "farmem_at 16, {regs}+16*8",
    "nop",
    // A handler on a near stack may have changed the mask in its frame ([`masks::returns_by`]), or
    // its own; if the runtime's signals are in neither, the kernel can have the frame as it is.
    ".globl farmem_leave_plainly",
    ".hidden farmem_leave_plainly",
    ".type farmem_leave_plainly,@function",
    "farmem_leave_plainly:",
    "test byte ptr [rsp + {mask}], {bus}", "jnz farmem_leave_handler",
    "test byte ptr [rsp + {mask} + 3], {sys}", "jnz farmem_leave_handler",
    "mov rbx, [rsp + {beside}]",
    "cmp qword ptr [rbx], 0", "jne farmem_leave_handler",
    "movabs rbx, {by_kernel}",
    "jmp rbx",
    "nop",
    // … where the frame is the kernel's own, which stays in its place …
    ".globl farmem_leave_in_place",
    ".hidden farmem_leave_in_place",
    ".type farmem_leave_in_place,@function",
    "farmem_leave_in_place:",
    "lea r12, [rip + {stays}]",
    "jmp 3f",
    "nop",
    // … one whose stack has disarmed itself …
    ".globl farmem_leave_disarmed",
    ".hidden farmem_leave_disarmed",
    ".type farmem_leave_disarmed,@function",
    "farmem_leave_disarmed:",
    "lea r12, [rip + {bring_armed}]",
    "jmp 3f",
    "nop",
    // … and one that has not seen where it is to return to.
    ".globl farmem_leave_call",
    ".hidden farmem_leave_call",
    ".type farmem_leave_call,@function",
    "farmem_leave_call:",
    "lea r12, [rip + {bring_back}]",
    "jmp 3f",
    "nop",
    ".globl farmem_leave_handler",
    ".hidden farmem_leave_handler",
    ".type farmem_leave_handler,@function",
    "farmem_leave_handler:",
    "lea r12, [rip + {bring_near}]",
    "3:",
    "mov edi, {setmask}",
    "lea rsi, [rip + {all}]",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, {sigprocmask}",
    "movabs rbx, {gate}",
    "lea r14, [rip + 4f]",
    "jmp rbx",
    ".cfi_endproc",
    "4:",
    "mov rsi, rsp",
    "mov rdi, r12",
    "lea rsp, [rsp - 8]",
    "and rsp, -16",
    "call {near}",
    // rax: the ucontext of the frame that the kernel is to have. From here on nothing far is
    // touched: below it the near alternate stack is free.
    "mov rsp, rax",
    "mov r12, rax",
    "mov rdi, rax",
    "lea rsp, [rsp - 8]",
    "and rsp, -16",
    "call {returns}",
    "mov rsp, r12",
    "movabs rbx, {by_kernel}",
    "jmp rbx",
    ".size farmem_leave_handler, .-farmem_leave_handler",
    info = const 8 + UCONTEXT_BYTES,
    mask = const MASK_AT,
    beside = const FRAME_BYTES - 8,
    bus = const OURS as u8,
    sys = const (OURS >> 24) as u8,
    stays = sym stays,
    bring_armed = sym bring_armed,
    regs = const REGISTERS_AT,
    setmask = const libc::SIG_SETMASK,
    sigprocmask = const libc::SYS_rt_sigprocmask,
    sigaltstack = const libc::SYS_sigaltstack,
    all = sym ALL,
    gate = const GATE + GATE_THREAD,
    by_kernel = const RETURN,
    returns = sym masks::returns_by,
    bring_near = sym bring_near,
    bring_back = sym bring_back,
    handle = sym handle,
    near = sym near_stack::farmem_near_call,
);

unsafe extern "C" {
    fn farmem_enter_handler(frame: usize, handler: usize, signal: i32, mask: u64, rest: usize, slot: *mut usize) -> !;
    fn farmem_set_mask();
    fn farmem_mask_set();
    fn farmem_leave_handler();
    fn farmem_leave_call();
    fn farmem_leave_disarmed();
    fn farmem_leave_plainly();
    fn farmem_leave_in_place();
    /// The kernel's handler for signals of the program's that must not come on the interrupted
    /// stack.
    fn farmem_on_signal();
}

/// [`farmem_on_signal`], as the kernel is told it.
pub fn on_signal() -> usize {
    farmem_on_signal as *const () as usize
}

/// `from`: where it returns to.
extern "C" fn handle(signal: i32, info: usize, context: usize, from: usize) {
    if from != RETURN {
        // A library has asked the kernel by itself what handles this signal, and its own handler
        // calls that, as it would the program's: which it calls, then, and goes on.
        let action = actions::kept(signal);
        if action.is_function() {
            // SAFETY: a handler of the program's, called as a handler calls another.
            unsafe {
                std::mem::transmute::<usize, extern "C" fn(i32, usize, usize)>(action.handler)(signal, info, context)
            }
        }
        return;
    }
    // SAFETY: the kernel's arguments; nothing was done with them.
    if !unsafe { open::keep(signal, info, context) } {
        handle_now(signal, info, context);
    }
}

/// Does what the program has set for a signal; returns if it has set nothing.
pub fn handle_now(signal: i32, info: usize, context: usize) {
    let action = actions::take(signal);
    if action.is_function() {
        // SAFETY: the kernel's arguments, on the near stack.
        unsafe { deliver(signal, &action, info, context) }
    } else if action.handler == libc::SIG_DFL && actions::set_default(signal) {
        // A one-shot handler that another thread has used up since this signal came: it is too late
        // for it.
        masks::send_to_self(signal);
    }
}

/// If the signal came before the call that sets an earlier handler's mask, has that mask written to
/// its place again.
///
/// # Safety
/// `context` must be the kernel's, of a handler of the calling thread.
unsafe fn begin_mask_again(context: usize) {
    // SAFETY: the kernel's frame, by the caller's word. Nothing between the two places changes what
    // the first needs.
    unsafe {
        let (rip, next) = (read(context + RIP_AT), read(context + R14_AT));
        let (from, to) = (farmem_set_mask as *const () as usize, farmem_mask_set as *const () as usize);
        if (from..to).contains(&rip) || rip == GATE + GATE_THREAD && next == to {
            ((context + RIP_AT) as *mut usize).write(from);
        }
    }
}

/// If the signal came right after that call, changes the frame so that the earlier handler counts
/// as entered. An unwinder in this signal's handler then continues through it to the code that it
/// has interrupted.
///
/// # Safety
/// As [`begin_mask_again`].
unsafe fn enter_first(context: usize) {
    // SAFETY: the kernel's frame, by the caller's word; what the instructions that are left do.
    unsafe {
        let (rip, next, rsp) = (read(context + RIP_AT), read(context + R14_AT), read(context + RSP_AT));
        let (from, to) = (farmem_mask_set as *const () as usize, farmem_on_signal as *const () as usize);
        if !((from..to).contains(&rip) || rip == AFTER_THREAD && next == from) {
            return;
        }
        let set = |at: usize, value: usize| ((context + at) as *mut usize).write(value);
        set(RDI_AT, read(context + R13_AT) as u32 as usize);
        set(RDX_AT, rsp + 8);
        set(RSI_AT, rsp + 8 + UCONTEXT_BYTES);
        set(RAX_AT, 0);
        set(FLAGS_AT, read(context + FLAGS_AT) & !DIRECTION);
        set(RIP_AT, read(context + R12_AT));
    }
}

/// The flag that `cld` clears.
const DIRECTION: usize = 1 << 10;

/// Runs a handler of the program for the signal whose frame is `info` and `context`. The handler
/// returns to the interrupted code.
///
/// The frame stays where it is if the thread has no near stack, or was on that stack already.
/// Otherwise it is copied to a stack of the program.
///
/// # Safety
/// Both must be what the kernel gave to the handler that calls this, as its last act.
pub unsafe fn deliver(signal: i32, action: &KernelAction, info: usize, context: usize) -> ! {
    let record = threads::current();
    let own = 1u64 << (signal - 1);
    // A signal may interrupt the last instructions of serving a fault. The fault is over then, and
    // its own frame says where the program is. SAFETY: the kernel's frame.
    let context = unsafe {
        begin_mask_again(context);
        enter_first(context);
        resume::interrupted(context).or_else(|| open::interrupted(context)).unwrap_or(context)
    };
    // SAFETY: the kernel's frame, of what is interrupted.
    unsafe { blocked::interrupted(record, context) };
    // SAFETY: fields of the kernel's ucontext.
    let (interrupted, before) =
        unsafe { (read(context + RSP_AT), (context as *const u8).add(MASK_AT).cast::<u64>().read()) };
    // During a call that waits with a mask of its own, the frame has the mask from before the call.
    // The handler begins with the call's mask. SAFETY: the kernel's frame.
    let wait = unsafe { waiting::begin(record, context) };
    if let Some(before) = wait.as_ref().and_then(|wait| wait.before) {
        // SAFETY: the kernel's frame.
        unsafe { ((context + MASK_AT) as *mut u64).write(before) };
    }
    let before = wait.map_or(before | record.hidden.load(Ordering::Relaxed) as u64, |wait| wait.within);
    let blocked = before | action.mask | if action.has(libc::SA_NODEFER) { 0 } else { own };
    // The frame has what is hidden now.
    let begins = || record.hidden.store((blocked & OURS) as usize, Ordering::Relaxed);
    // If the signal has interrupted the runtime on another stack, the program's stack is where the
    // runtime came from.
    let in_trap = record.is_alternate(interrupted);
    let program = match in_trap {
        true => record.trapped_at.load(Ordering::Relaxed),
        false => near_stack::program_of(interrupted).unwrap_or(interrupted),
    };
    let asked = record.asked_size.load(Ordering::Relaxed) & !stacks::DISARMS;
    let wants_own = action.has(libc::SA_ONSTACK) && asked != 0;
    // During a trapped call the call's frame is live on the near alternate stack. If the handler
    // ran on another stack, the next fault's frame would begin at the top again and overwrite it.
    // So the handler stays on this stack, below that frame.
    //
    // A handler may want its own stack (Go's checks where it runs). Then the alternate stack is
    // made to end below the live frame and its red zone: the kernel leaves no red zone on an
    // alternate stack. When the handler returns, the kernel restores the former alternate stack
    // from the frame.
    let rest = interrupted.wrapping_sub(RED_ZONE).wrapping_sub(record.alternate.load(Ordering::Relaxed)) & !15;
    // If neither holds, the signal has interrupted the last instructions of another step of the
    // runtime.
    let moves = if in_trap {
        wants_own && program != 0 && rest >= ROOM
    } else {
        record.is_alternate(near_stack::stack_pointer())
    };
    let (mask, slot) = (blocked & !OURS, record.handler_mask.as_ptr());
    if !moves {
        // The frame stays where it is, and the handler starts on it as the kernel would have
        // started it. No frame of the runtime lies between them, because the handler may unwind.
        // SAFETY: the kernel's frame, which says to return to the gate, and does so by a detour;
        // another signal's siginfo goes in its place. The handler sees the program's mask.
        unsafe {
            let shown = (context + MASK_AT) as *mut u64;
            shown.write(shown.read() | record.hidden.load(Ordering::Relaxed) as u64);
            ((context - 8) as *mut usize).write(farmem_leave_in_place as *const () as usize);
            if info != context + UCONTEXT_BYTES {
                copy(info, context + UCONTEXT_BYTES, INFO_BYTES);
            }
            begins();
            farmem_enter_handler(context - 8, action.handler, signal, mask, 0, slot)
        }
    }
    let (asked_at, is_on) = (record.asked_at.load(Ordering::Relaxed), stacks::is_on(record, program));
    let enters = wants_own && !is_on;
    let top = if enters { asked_at + asked } else { program - RED_ZONE };
    // SAFETY: the kernel's frame; the last act of this handler.
    unsafe {
        if (enters || is_on) && places(top, vector_bytes_of(context), 0).1 <= asked_at {
            stacks::overflow(signal, context)
        }
    }
    let disarmed = if enters { stacks::Disarmed::take(record) } else { None };
    // SAFETY: the kernel's frame, and what the program's stack has room for.
    let frame = unsafe {
        let view = if in_trap { View::PLAIN } else { View::of(record, context, signal, program) };
        lay_frame(record, context, info, top, &view, disarmed)
    };
    begins();
    let narrower = if in_trap { record.narrower(rest) } else { 0 };
    // SAFETY: the frame is complete.
    unsafe { farmem_enter_handler(frame, action.handler, signal, mask, narrower, slot) }
}

/// Copies the kernel's frame to the program's stack below `top`, as the handler is to see it. Returns
/// the copy.
///
/// # Safety
/// `context` and `info` must be the kernel's, and below `top` must be what the kernel would write
/// to.
unsafe fn lay_frame(
    record: &Record,
    context: usize,
    info: usize,
    top: usize,
    view: &View,
    disarmed: Option<stacks::Disarmed>,
) -> usize {
    // SAFETY: a field of the kernel's ucontext.
    let (vector, vector_bytes) = unsafe { (read(context + VECTOR_AT), vector_bytes_of(context)) };
    let alone = disarmed.is_none() && view.beside() == 0;
    let first = if disarmed.is_some() { size_of::<Armed>() } else { usize::from(alone) * size_of::<usize>() };
    let (vector_copy, frame) = places(top, vector_bytes, first + view.beside());
    // The handler sees the program's mask.
    let hidden = record.hidden.load(Ordering::Relaxed) as u64;
    let restorer = match (view.beside(), &disarmed) {
        (_, Some(_)) => farmem_leave_disarmed as *const () as usize,
        (0, None) if !is_far(frame) && hidden == 0 => farmem_leave_plainly as *const () as usize,
        (0, None) => farmem_leave_handler as *const () as usize,
        (_, None) => farmem_leave_call as *const () as usize,
    };
    // SAFETY: the target is the program's stack, below what it uses, as the kernel would write it;
    // the sources are the kernel's frame. User-mode writes: absent pages fault, on the near stack.
    unsafe {
        copy(vector, vector_copy, vector_bytes);
        copy(context, frame + 8, UCONTEXT_BYTES);
        copy(info, frame + 8 + UCONTEXT_BYTES, INFO_BYTES);
        (frame as *mut usize).write(restorer);
        ((frame + 8 + VECTOR_AT) as *mut usize).write(if vector == 0 { 0 } else { vector_copy });
        let mask = (frame + 8 + MASK_AT) as *mut u64;
        mask.write(mask.read() | hidden);
        if alone {
            // Where `farmem_leave_plainly` looks for it.
            ((frame + FRAME_BYTES) as *mut usize).write(record.hidden.as_ptr() as usize);
        }
        let calls = view.beside() > 0;
        if let Some(stack) = disarmed {
            ((frame + FRAME_BYTES) as *mut Armed).write(Armed { stack, calls });
        }
        view.apply(record, frame + 8, frame + FRAME_BYTES + first);
    }
    frame
}

/// Bytes below its stack pointer that a function may use without moving it (System V ABI).
const RED_ZONE: usize = 128;
/// The part of the near alternate stack that must be left for faults in a handler that runs while a
/// trapped call is on it.
const ROOM: usize = threads::ALTERNATE_BYTES / 2;

/// The places below `top` of the vector state, and, below that, of the frame with `beside` bytes
/// behind it.
fn places(top: usize, vector_bytes: usize, beside: usize) -> (usize, usize) {
    let vector = (top - vector_bytes) & !63;
    // As the kernel aligns it: at the handler's entry rsp is 8 past a multiple of 16.
    (vector, ((vector - FRAME_BYTES - beside) & !15) - 8)
}

/// Beside a frame on a stack that has disarmed itself.
#[repr(C)]
struct Armed {
    stack: stacks::Disarmed,
    /// Behind it is what [`View::apply`] has left.
    calls: bool,
}

/// The frame whose ucontext is at `context` is near, in its place. Returns that.
extern "C" fn stays(context: usize) -> usize {
    context
}

/// Copies the frame whose ucontext is at `context` to near memory. Returns the copy's ucontext.
extern "C" fn bring_near(context: usize) -> usize {
    let frame = context - 8;
    let to = threads::current().return_area();
    // SAFETY: `deliver` made the frame and the program's handler kept it (as it must for the
    // kernel); the return area is this thread's, and large enough for any vector state of today.
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

/// [`bring_near`] of a frame that has beside it what it was.
extern "C" fn bring_back(context: usize) -> usize {
    let copy = bring_near(context);
    // SAFETY: that it returns by this says so.
    unsafe { view::put_back(threads::current(), copy, context - 8 + FRAME_BYTES) };
    copy
}

/// [`bring_near`] of a frame that has beside it the stack it is on.
extern "C" fn bring_armed(context: usize) -> usize {
    let copy = bring_near(context);
    let beside = context - 8 + FRAME_BYTES;
    // SAFETY: as above.
    unsafe {
        let armed = &*(beside as *const Armed);
        armed.stack.put_back(threads::current());
        if armed.calls {
            view::put_back(threads::current(), copy, beside + size_of::<Armed>());
        }
    }
    copy
}

/// Length of the vector state of a frame, which may have none.
///
/// # Safety
/// `context` must be the kernel's.
unsafe fn vector_bytes_of(context: usize) -> usize {
    // SAFETY: a field of the kernel's ucontext, by the caller's word.
    match unsafe { read(context + VECTOR_AT) } {
        0 => 0,
        vector => vector_bytes(vector),
    }
}

/// Length of a vector state, as it says itself.
fn vector_bytes(vector: usize) -> usize {
    // SAFETY: the kernel's layout: software bytes at 464 of the legacy area.
    let (magic, size) =
        unsafe { ((vector as *const u32).add(116).read(), (vector as *const u32).add(117).read() as usize) };
    if magic == EXTENDED_MAGIC { size } else { LEGACY_BYTES }
}

unsafe fn copy(from: usize, to: usize, len: usize) {
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_aligned_and_overlaps_nothing() {
        for top in (0x7fff_0000_0000..0x7fff_0000_0100).chain([0x2000_0000_1000]) {
            for bytes in [0, LEGACY_BYTES, 832, 2696, 11_008] {
                let (vector, frame) = places(top, bytes, 0);
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
        // State that comes back to near memory must fit there beside the frame, with AVX-512's 2.7
        // KiB and AMX's 11 too.
        const { assert!(11_008 + FRAME_BYTES + 64 <= threads::RETURN_BYTES - 1024) };
    }
}
