//! The code that a stub calls: the call itself, or the slow way into the runtime.

use super::standing::Kept;
use crate::dispatch;
use crate::threads::{self, Record};
use farmem_sys::descriptors::{FDS, LOWEST};
use std::sync::atomic::{AtomicU8, Ordering};

/// Numbers that are dispatched whatever their arguments: mappings, masks, descriptors, and calls
/// whose near arguments point to structures with far pointers in them.
static ALWAYS: [AtomicU8; 512] = [const { AtomicU8::new(0) }; 512];

core::arch::global_asm!(
    ".globl farmem_site",
    ".hidden farmem_site",
    ".type farmem_site,@function",
    "farmem_site:",
    // rax: number; rdi rsi rdx r10 r8 r9: arguments; rcx r11: free, as after any syscall.
    "mov rcx, rdi", "shr rcx, 45", "cmp rcx, 1", "je 2f",
    "mov rcx, rsi", "shr rcx, 45", "cmp rcx, 1", "je 2f",
    "mov rcx, rdx", "shr rcx, 45", "cmp rcx, 1", "je 2f",
    "mov rcx, r10", "shr rcx, 45", "cmp rcx, 1", "je 2f",
    "mov rcx, r8", "shr rcx, 45", "cmp rcx, 1", "je 2f",
    "mov rcx, r9", "shr rcx, 45", "cmp rcx, 1", "je 2f",
    // A descriptor of the runtime's, perhaps: the program finds it closed.
    "cmp rdi, [rip + {lowest}]", "jb 9f", "cmp rdi, {descriptors}", "jb 2f",
    "9:",
    "cmp rax, 511", "ja 3f",
    "lea rcx, [rip + {always}]",
    "cmp byte ptr [rcx + rax], 0", "jne 2f",
    "3:",
    ".globl farmem_site_call",
    ".hidden farmem_site_call",
    "farmem_site_call:",
    "syscall", "ret",
    // The slow way: Rust, with what C code of libc may still hold in registers kept. libc's C code
    // is compiled for the baseline, so that is the general registers and sixteen xmm ones.
    "2:",
    ".globl farmem_site_slow",
    ".hidden farmem_site_slow",
    "farmem_site_slow:",
    "push rbp", "mov rbp, rsp",
    "and rsp, -64",
    "sub rsp, 0x180",
    "movaps [rsp], xmm0", "movaps [rsp+0x10], xmm1", "movaps [rsp+0x20], xmm2", "movaps [rsp+0x30], xmm3",
    "movaps [rsp+0x40], xmm4", "movaps [rsp+0x50], xmm5", "movaps [rsp+0x60], xmm6", "movaps [rsp+0x70], xmm7",
    "movaps [rsp+0x80], xmm8", "movaps [rsp+0x90], xmm9", "movaps [rsp+0xa0], xmm10", "movaps [rsp+0xb0], xmm11",
    "movaps [rsp+0xc0], xmm12", "movaps [rsp+0xd0], xmm13", "movaps [rsp+0xe0], xmm14", "movaps [rsp+0xf0], xmm15",
    "mov [rsp+0x100], rax",
    "mov [rsp+0x108], rdi", "mov [rsp+0x110], rsi", "mov [rsp+0x118], rdx",
    "mov [rsp+0x120], r10", "mov [rsp+0x128], r8", "mov [rsp+0x130], r9",
    "mov [rsp+0x138], rbp",
    "mov [rsp+0x140], rbx", "mov [rsp+0x148], r12", "mov [rsp+0x150], r13", "mov [rsp+0x158], r14",
    "mov [rsp+0x160], r15",
    "cld",
    // The thread's record, as `threads::current` finds it; none: it is noted nowhere.
    "mov r8, fs:[0]",
    "movabs rdx, {hash}",
    "mov rcx, r8", "shr rcx, 6", "imul rcx, rdx", "shr rcx, {shift}",
    "imul rcx, rcx, {record}",
    "lea r9, [rip + {records}]",
    "lea rdx, [r9 + {all}]",
    "add rcx, r9",
    "4:",
    "mov r10, [rcx + {owner}]",
    "cmp r10, r8", "je 5f",
    "test r10, r10", "jz 6f",
    "add rcx, {record}",
    "cmp rcx, rdx", "cmove rcx, r9",
    "jmp 4b",
    "6:", "xor ecx, ecx",
    "5:",
    "mov [rsp+0x168], rcx",
    "lea rsi, [rsp+0x100]",
    "lea rdi, [rip + {from_site}]",
    "test rcx, rcx", "jz 7f",
    "mov [rcx + {site}], rsi",
    "7:",
    "call {near}",
    ".globl farmem_site_served",
    ".hidden farmem_site_served",
    "farmem_site_served:",
    "mov rcx, [rsp+0x168]",
    "test rcx, rcx", "jz 8f",
    "mov qword ptr [rcx + {site}], 0",
    "8:",
    "movaps xmm0, [rsp]", "movaps xmm1, [rsp+0x10]", "movaps xmm2, [rsp+0x20]", "movaps xmm3, [rsp+0x30]",
    "movaps xmm4, [rsp+0x40]", "movaps xmm5, [rsp+0x50]", "movaps xmm6, [rsp+0x60]", "movaps xmm7, [rsp+0x70]",
    "movaps xmm8, [rsp+0x80]", "movaps xmm9, [rsp+0x90]", "movaps xmm10, [rsp+0xa0]", "movaps xmm11, [rsp+0xb0]",
    "movaps xmm12, [rsp+0xc0]", "movaps xmm13, [rsp+0xd0]", "movaps xmm14, [rsp+0xe0]", "movaps xmm15, [rsp+0xf0]",
    "mov rdi, [rsp+0x108]", "mov rsi, [rsp+0x110]", "mov rdx, [rsp+0x118]",
    "mov r10, [rsp+0x120]", "mov r8, [rsp+0x128]", "mov r9, [rsp+0x130]",
    "mov rsp, rbp",
    "pop rbp",
    ".globl farmem_site_left",
    ".hidden farmem_site_left",
    "farmem_site_left:",
    "ret",
    ".size farmem_site, .-farmem_site",
    always = sym ALWAYS,
    lowest = sym LOWEST,
    descriptors = const FDS,
    near = sym crate::near_stack::farmem_near_call,
    from_site = sym from_site,
    hash = const threads::HASH,
    shift = const usize::BITS - threads::RECORDS_SHIFT,
    records = sym threads::RECORDS_OF_THREADS,
    record = const size_of::<Record>(),
    all = const size_of::<Record>() * threads::RECORDS,
    owner = const Record::OWNER_AT,
    site = const std::mem::offset_of!(Record, site),
);

// Defined by the assembly above, never called from here: stubs jump to its address.
unsafe extern "C" {
    fn farmem_site();
}

/// Where it is.
pub(super) fn address() -> usize {
    farmem_site as *const () as usize
}

extern "C" fn from_site(kept: &mut Kept) -> isize {
    dispatch::from_program(&kept.call)
}

/// From now on calls of this number are dispatched whatever their arguments, or not any more.
pub fn dispatches(nr: i64, always: bool) {
    ALWAYS[nr as usize].store(u8::from(always), Ordering::Relaxed);
}
