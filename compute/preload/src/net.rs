//! The net behind the patched sites: a seccomp filter that traps every system
//! call with a far argument, unless it comes from the gate.
//!
//! It is inherited over exec, by images that have no handler yet or never will
//! (static programs). So it traps for nothing but far arguments, which such an
//! image does not have.

use crate::gate::AFTER_SYSCALL;
use farmem_protocol::addr::FAR_SHIFT;
use farmem_sys::raw::{Errno, checked};

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const SHIFT: u16 = 0x74; // BPF_ALU | BPF_RSH | BPF_K
const EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K
const ALLOW: u32 = 0x7fff_0000;
const TRAP: u32 = 0x0003_0000;
const X86_64: u32 = 0xc000_003e;

// struct seccomp_data: nr 0, arch 4, instruction_pointer 8, args 16 (64 bits each, low word first).
const ARCH: u32 = 4;
const IP_LOW: u32 = 8;
const IP_HIGH: u32 = 12;
const fn arg_high(i: u32) -> u32 {
    16 + 8 * i + 4
}

fn op(code: u16, k: u32, yes: u8, no: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt: yes, jf: no, k }
}

/// Calls that a handler could not make for the program: they leave by another stack than they came
/// on. Their registers may hold anything, far addresses too.
const NEVER: [i64; 7] = [
    libc::SYS_rt_sigreturn,
    libc::SYS_clone,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// ```text
///  arch is x86-64?        no  → allow
///  any argument far?      no  → allow
///  one of NEVER?          yes → allow
///  from the gate?         yes → allow
///  trap
/// ```
fn program() -> Vec<libc::sock_filter> {
    // Where the instructions after the arguments' checks begin.
    const ALLOW_AT: u8 = 2 + 6 * 3;
    const CAUGHT_AT: u8 = ALLOW_AT + 1;
    let mut p = vec![op(LOAD, ARCH, 0, 0), op(EQUAL, X86_64, 0, ALLOW_AT - 2)];
    for i in 0..6 {
        p.push(op(LOAD, arg_high(i), 0, 0));
        p.push(op(SHIFT, FAR_SHIFT - 32, 0, 0));
        let next = p.len() as u8 + 1;
        p.push(op(EQUAL, 1, CAUGHT_AT - next, 0));
    }
    p.push(op(RETURN, ALLOW, 0, 0));
    p.push(op(LOAD, 0, 0, 0));
    let gate_at = CAUGHT_AT + 1 + NEVER.len() as u8;
    let allow_again = gate_at + 4;
    for nr in NEVER {
        let next = p.len() as u8 + 1;
        p.push(op(EQUAL, nr as u32, allow_again - next, 0));
    }
    p.push(op(LOAD, IP_HIGH, 0, 0));
    p.push(op(EQUAL, (AFTER_SYSCALL >> 32) as u32, 0, 3));
    p.push(op(LOAD, IP_LOW, 0, 0));
    p.push(op(EQUAL, AFTER_SYSCALL as u32, 0, 1));
    p.push(op(RETURN, ALLOW, 0, 0));
    p.push(op(RETURN, TRAP, 0, 0));
    p
}

/// Arms the filter for this process and all that it starts.
pub fn arm() -> Result<(), Errno> {
    let mut program = program();
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is live for the call; the kernel copies it.
    unsafe {
        checked(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0])?;
        checked(libc::SYS_prctl, [libc::PR_SET_SECCOMP as usize, 2, &filter as *const _ as usize, 0, 0, 0])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel would.
    fn run(ip: u64, args: [u64; 6]) -> u32 {
        run_nr(0, ip, args)
    }

    fn run_nr(nr: i64, ip: u64, args: [u64; 6]) -> u32 {
        let mut data = [0u8; 64];
        data[..4].copy_from_slice(&(nr as u32).to_le_bytes());
        data[4..8].copy_from_slice(&X86_64.to_le_bytes());
        data[8..16].copy_from_slice(&ip.to_le_bytes());
        for (i, a) in args.iter().enumerate() {
            data[16 + 8 * i..24 + 8 * i].copy_from_slice(&a.to_le_bytes());
        }
        let (mut a, mut pc) = (0u32, 0);
        let p = program();
        loop {
            let o = &p[pc];
            pc += 1;
            match o.code {
                LOAD => a = u32::from_le_bytes(data[o.k as usize..o.k as usize + 4].try_into().unwrap()),
                SHIFT => a >>= o.k,
                EQUAL => pc += if a == o.k { o.jt } else { o.jf } as usize,
                _ => return o.k,
            }
        }
    }

    #[test]
    fn only_far_arguments_from_elsewhere_are_trapped() {
        let far = farmem_protocol::addr::FAR_START as u64 + 5;
        assert_eq!(run(0x1234, [1, 2, 3, 4, 5, 6]), ALLOW);
        assert_eq!(run(0x1234, [u64::MAX, 0x7fff_ffff_f000, 0, 0, 0, 0]), ALLOW);
        for i in 0..6 {
            let mut args = [0; 6];
            args[i] = far;
            assert_eq!(run(0x1234, args), TRAP);
            assert_eq!(run(AFTER_SYSCALL as u64, args), ALLOW);
            assert!(NEVER.iter().all(|&nr| run_nr(nr, 0x1234, args) == ALLOW));
            args[i] = farmem_protocol::addr::FAR_END as u64;
            assert_eq!(run(0x1234, args), ALLOW);
        }
    }
}
