//! Seccomp filters, instruction by instruction.

/// Addresses behind `syscall` instructions, which a filter looks for.
pub type Missed = Vec<usize>;

/// Addresses that one filter looks for at most: its jumps reach 255 instructions.
pub const MOST_MISSED: usize = 96;

/// Whether one filter can look for this address too, besides those of `sites`.
pub fn has_room(sites: &[usize], after: usize) -> bool {
    sites.len() < MOST_MISSED && sites.first().is_none_or(|first| first >> 32 == after >> 32)
}

pub const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
pub const SHIFT: u16 = 0x74; // BPF_ALU | BPF_RSH | BPF_K
pub const EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
pub const ANY_OF: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
pub const AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
pub const GO: u16 = 0x05; // BPF_JMP | BPF_JA
pub const RETURN: u16 = 0x06; // BPF_RET | BPF_K
pub const ALLOW: u32 = 0x7fff_0000;
pub const TRAP: u32 = 0x0003_0000;
pub const ERRNO: u32 = 0x0005_0000;
pub const X86_64: u32 = 0xc000_003e;

// struct seccomp_data: nr 0, arch 4, instruction_pointer 8, args 16 (64 bits each, low word first).
pub const NUMBER: u32 = 0;
pub const ARCH: u32 = 4;
pub const IP_LOW: u32 = 8;
pub const IP_HIGH: u32 = 12;
pub const fn arg_high(i: u32) -> u32 {
    16 + 8 * i + 4
}

pub fn op(code: u16, k: u32, yes: u8, no: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt: yes, jf: no, k }
}
