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
pub const AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
pub const GO: u16 = 0x05; // BPF_JMP | BPF_JA
pub const RETURN: u16 = 0x06; // BPF_RET | BPF_K
pub const ALLOW: u32 = 0x7fff_0000;
pub const TRAP: u32 = 0x0003_0000;
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

/// Runs a filter as the kernel would.
#[cfg(test)]
pub fn run(filter: &[libc::sock_filter], nr: i64, ip: u64, args: [u64; 6]) -> u32 {
    let mut data = [0u8; 64];
    data[..4].copy_from_slice(&(nr as u32).to_le_bytes());
    data[4..8].copy_from_slice(&X86_64.to_le_bytes());
    data[8..16].copy_from_slice(&ip.to_le_bytes());
    for (i, a) in args.iter().enumerate() {
        data[16 + 8 * i..24 + 8 * i].copy_from_slice(&a.to_le_bytes());
    }
    let (mut a, mut pc) = (0u32, 0);
    loop {
        let o = &filter[pc];
        pc += 1;
        match o.code {
            LOAD => a = u32::from_le_bytes(data[o.k as usize..o.k as usize + 4].try_into().unwrap()),
            SHIFT => a >>= o.k,
            EQUAL => pc += if a == o.k { o.jt } else { o.jf } as usize,
            0x54 => a &= o.k,
            0x45 => pc += if a & o.k != 0 { o.jt } else { o.jf } as usize,
            AT_LEAST => pc += if a >= o.k { o.jt } else { o.jf } as usize,
            GO => pc += o.k as usize,
            _ => return o.k,
        }
    }
}
