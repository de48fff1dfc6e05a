//! Near stacks, for work that begins on a far one.
//!
//! The runtime must not touch far memory while it holds locks, and a stack is memory. So a dispatch
//! that begins on a far stack (a coroutine's) continues on a near one. It takes the stack from a
//! pool of [`STACKS`], and gives it back at its end. While the stack is in use, its topmost word
//! has the address of the program's stack.
//!
//! A signal handler of the program's that interrupts a dispatch there and leaves by `siglongjmp`
//! keeps that stack, until another begins where that one stood: two cannot stand at one place of
//! the same memory, so the first is gone. (Coroutines that copy their stacks away, in a handler,
//! could; see [`crate::guard::abandoned`].) A thread that is cancelled there gives it back when it ends.

use std::sync::atomic::{AtomicU32, Ordering};

/// Near stacks in the pool: one for each call that begins on a far stack and is under way. A call
/// that finds none waits for one, and calls that wait for each other need theirs at once. Only
/// addresses are taken in advance, 512 MiB.
pub const STACKS: usize = 4096;
const SHIFT: usize = 17;
static USED: [AtomicU32; STACKS / 32] = [const { AtomicU32::new(0) }; STACKS / 32];
static mut BASE: usize = 0;

core::arch::global_asm!(
    // rdi: function, rsi: its argument. Calls it, on a near stack if this one is far.
    ".globl farmem_near_call",
    ".hidden farmem_near_call",
    ".type farmem_near_call,@function",
    "farmem_near_call:",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rcx, rsp", "shr rcx, 45", "cmp rcx, 1", "je 2f",
    "jmp rax",
    "2:",
    "push rbp", "mov rbp, rsp", "push rbx", "push rbx",
    "xor ebx, ebx",
    "lea rcx, [rip + {used}]",
    "3:",
    "lea edx, [rbx + 1]", "shl rdx, {shift}",
    "add rdx, qword ptr [rip + {base}]",
    "bt dword ptr [rcx], ebx", "jc 5f",
    "lock bts dword ptr [rcx], ebx", "jnc 4f",
    "5:",
    // Left by a jump? What is free has a zero there, and so has one that somebody has just taken.
    "cmp qword ptr [rdx - 8], rsp", "je 4f",
    "inc ebx", "and ebx, {last}", "pause", "jmp 3b",
    "4:",
    // Where the program is, for signals that come meanwhile: there before the switch.
    "mov [rdx - 8], rsp",
    "lea rsp, [rdx - 16]",
    "call rax",
    "lea rsp, [rbp - 16]",
    "lea edx, [rbx + 1]", "shl rdx, {shift}",
    "add rdx, qword ptr [rip + {base}]",
    "mov qword ptr [rdx - 8], 0",
    "lea rcx, [rip + {used}]",
    "lock btr dword ptr [rcx], ebx",
    "pop rbx", "pop rbx", "pop rbp",
    "ret",
    ".size farmem_near_call, .-farmem_near_call",
    used = sym USED,
    base = sym BASE,
    last = const STACKS - 1,
    shift = const SHIFT,
);

unsafe extern "C" {
    /// `function(argument)`, on a near stack. Known to the assembly in [`crate::sites`] too.
    pub fn farmem_near_call(function: usize, argument: usize) -> isize;
}

/// Calls `function(argument)` on a near stack; where the caller's is near, on that.
pub fn call<T>(function: extern "C" fn(&mut T), argument: &mut T) {
    // SAFETY: the function takes one pointer, which is live for the call; its frame holds nothing
    // of the caller's but that.
    unsafe { farmem_near_call(function as usize, argument as *mut T as usize) };
}

/// [`call`] for functions with a result.
pub fn result<T>(function: extern "C" fn(&mut T) -> isize, argument: &mut T) -> isize {
    // SAFETY: as above.
    unsafe { farmem_near_call(function as usize, argument as *mut T as usize) }
}

/// Reserves the pool; costs address space until a stack is used.
pub fn reserve() -> Result<(), farmem_sys::raw::Errno> {
    let at = farmem_sys::holdings::reserve(STACKS << SHIFT)? as usize;
    // SAFETY: single-threaded start; nobody has called on a far stack yet.
    unsafe { BASE = at };
    Ok(())
}

/// Where the program's stack is, if an address lies on a stack of the pool in use.
pub fn program_of(addr: usize) -> Option<usize> {
    // SAFETY: set once at start.
    let base = unsafe { BASE };
    let offset = addr.wrapping_sub(base);
    if base == 0 || offset >= STACKS << SHIFT {
        return None;
    }
    // SAFETY: the top of that stack, where the switch to it has put the caller's stack pointer.
    Some(unsafe { ((base + (((offset >> SHIFT) + 1) << SHIFT) - 8) as *const usize).read() })
}

/// Gives back the pool's stack that an address lies on, if any: the code on it will never continue.
pub fn abandon(addr: usize) {
    if program_of(addr).is_some() {
        // SAFETY: set once at start.
        let index = addr.wrapping_sub(unsafe { BASE }) >> SHIFT;
        forget_user(index);
        USED[index / 32].fetch_and(!(1 << (index % 32)), Ordering::Release);
    }
}

/// No record may name a place on a stack that is given back: its next user could be taken for the
/// earlier one.
fn forget_user(index: usize) {
    // SAFETY: set once at start; the uppermost word of a stack of the pool, which the caller has.
    unsafe { ((BASE + ((index + 1) << SHIFT) - 8) as *mut usize).write(0) };
}

/// Ends the calling thread or process by such a call, which must not be refused, and gives the
/// stack back, if it is on one of the pool; else returns. All signals are blocked.
pub fn end(nr: i64, status: usize) {
    // SAFETY: set once at start.
    let own = stack_pointer().wrapping_sub(unsafe { BASE }) >> SHIFT;
    if own >= STACKS {
        return;
    }
    forget_user(own);
    // SAFETY: from the moment that the bit is clear the stack may be another's: nothing of it is
    // used. The registers that a filter looks at are no far addresses.
    unsafe {
        core::arch::asm!(
            "lock btr dword ptr [{used}], {own:e}",
            "syscall",
            "ud2",
            used = in(reg) USED.as_ptr(),
            own = in(reg) own,
            in("rax") nr,
            in("rdi") status,
            in("rsi") 0usize,
            in("rdx") 0usize,
            in("r10") 0usize,
            in("r8") 0usize,
            in("r9") 0usize,
            options(noreturn, nostack),
        )
    }
}

/// In a forked child: the stacks of threads that do not exist here are free again.
pub fn forget_in_child() {
    // SAFETY: set once at start.
    let own = stack_pointer().wrapping_sub(unsafe { BASE }) >> SHIFT;
    for (i, word) in USED.iter().enumerate() {
        let keep = if own / 32 == i { 1u32 << (own % 32) } else { 0 };
        let freed = word.load(Ordering::Relaxed) & !keep;
        (0..32).filter(|bit| freed >> bit & 1 != 0).for_each(|bit| forget_user(32 * i + bit));
        word.fetch_and(keep, Ordering::Relaxed);
    }
}

/// About where the calling function's stack is.
#[inline(always)]
pub fn stack_pointer() -> usize {
    let sp: usize;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
}
