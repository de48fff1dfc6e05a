//! Calls whose arguments mean something else with every request: the memory that their structures
//! point to. The structure itself may be near, on the stack, and that memory far.

use super::nested;
use super::peek::peek;
use super::pins::Pins;
use crate::call::{Call, issue};

/// An ioctl's argument.
pub fn ioctl(pins: &mut Pins<'_>, request: usize, addr: usize) {
    /// `struct ifconf`.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Interfaces {
        len: i32,
        at: usize,
    }
    // _IOC_SIZE of the request, or one structure's size for the old requests that do not encode it.
    // (The structure may lie on two pages; a part that is not mapped is not pinned.)
    let size = (request >> 16) & 0x3fff;
    pins.add(addr, if size == 0 { 256 } else { size }, true);
    // PERF_EVENT_IOC_SET_FILTER: a string, though the request encodes a pointer.
    const FILTER: usize = 0x4008_2406;
    if request & 0xffff_ffff == FILTER {
        return pins.add_string(addr);
    }
    /// Requests to terminals have no pointers in their structures, and are frequent.
    const TERMINAL: usize = b'T' as usize;
    if request >> 8 & 0xff != TERMINAL {
        nested::words(pins, addr, if size == 0 { 64 } else { size });
    }
    // FS_IOC_FIEMAP and FIDEDUPERANGE: a head that says how many follow it.
    const EXTENTS_OF_FILE: usize = 0xc020_660b;
    const SAME_RANGES: usize = 0xc018_9436;
    let behind = match request & 0xffff_ffff {
        EXTENTS_OF_FILE => peek::<u32>(addr + 24).map_or(0, |count| count as usize * 56),
        SAME_RANGES => peek::<u16>(addr + 16).map_or(0, |count| count as usize * 32),
        _ => 0,
    };
    pins.add(addr + size, behind, true);
    // UFFDIO_COPY: to, from, how much.
    const COPY_IN: usize = 0xc028_aa03;
    if request & 0xffff_ffff == COPY_IN
        && let Some([_, from, len]) = peek::<[usize; 3]>(addr)
    {
        pins.add(from, len.min(1 << 40), false);
    }
    const SIOCGIFCONF: usize = 0x8912;
    if request == SIOCGIFCONF
        && let Some(interfaces) = peek::<Interfaces>(addr)
    {
        pins.add(interfaces.at, interfaces.len.max(0) as usize, true);
    }
}

/// semctl's last argument: a structure, or a number for each semaphore of the set.
pub fn semaphores(pins: &mut Pins<'_>, call: &Call, addr: usize) {
    /// The bit that `IPC_64` adds to a command; the kernel removes it on this architecture, too.
    const NEW: i32 = 0x100;
    let bytes = match call.args[2] as i32 & !NEW {
        libc::GETALL | libc::SETALL => {
            // SAFETY: plain data, which the kernel fills.
            let mut set: libc::semid_ds = unsafe { std::mem::zeroed() };
            let about = [call.args[0], 0, libc::IPC_STAT as usize, &raw mut set as usize, 0, 0];
            let ret = issue(&Call { nr: libc::SYS_semctl, args: about, sp: call.sp });
            if ret < 0 { 0 } else { set.sem_nsems as usize * size_of::<u16>() }
        }
        // A value, not an address.
        libc::SETVAL => 0,
        _ => 136,
    };
    pins.add(addr, bytes, true);
}

/// The words that futex_waitv waits for.
pub fn waiters(pins: &mut Pins<'_>, addr: usize, count: usize) {
    /// `struct futex_waitv`.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Waiter {
        value: u64,
        word: usize,
        flags: u64,
    }
    const MOST: usize = 128;
    let count = count.min(MOST);
    pins.add(addr, count * size_of::<Waiter>(), false);
    for n in 0..count {
        let Some(waiter) = peek::<Waiter>(addr + n * size_of::<Waiter>()) else { return };
        pins.add(waiter.word, size_of::<u32>(), true);
    }
}

/// prctl's first argument behind the option.
pub fn prctl(pins: &mut Pins<'_>, call: &Call, addr: usize) {
    const GET_AUXV: usize = 0x4155_5856;
    let bytes = if call.args[0] == GET_AUXV { call.args[2].min(1 << 20) } else { 64 };
    pins.add(addr, bytes, true);
}

/// ptrace's last argument. The one before is an address in another process, nearly always.
pub fn ptrace(pins: &mut Pins<'_>, call: &Call, addr: usize) {
    const PTRACE_PEEKSIGINFO: u32 = 0x4209;
    let register_set = |pins: &mut Pins<'_>| {
        pins.add(addr, size_of::<libc::iovec>(), true);
        if let Some(set) = peek::<libc::iovec>(addr) {
            pins.add(set.iov_base as usize, set.iov_len.min(1 << 20), true);
        }
    };
    match call.args[0] as u32 {
        libc::PTRACE_GETREGSET | libc::PTRACE_SETREGSET => register_set(pins),
        libc::PTRACE_GETSIGMASK | libc::PTRACE_SETSIGMASK => {
            pins.add(addr, call.args[2].min(1024), true);
        }
        PTRACE_PEEKSIGINFO => {
            /// `struct ptrace_peeksiginfo_args`.
            #[repr(C)]
            #[derive(Clone, Copy)]
            struct Wanted {
                from: u64,
                flags: u32,
                count: i32,
            }
            pins.add(call.args[2], size_of::<Wanted>(), false);
            let count = peek::<Wanted>(call.args[2]).map_or(0, |wanted| wanted.count.clamp(0, 1 << 20));
            pins.add(addr, count as usize * size_of::<libc::siginfo_t>(), true);
        }
        libc::PTRACE_GET_SYSCALL_INFO => {
            pins.add(addr, call.args[2].min(1024), true);
        }
        // A value, not an address.
        libc::PTRACE_POKETEXT | libc::PTRACE_POKEDATA | libc::PTRACE_POKEUSER => {}
        // Words, registers of a kind, a siginfo.
        _ => {
            pins.add(addr, 512, true);
        }
    }
}

/// The instructions of a packet filter or a seccomp filter.
pub fn filter(pins: &mut Pins<'_>, call: &Call, addr: usize) {
    const PACKET_FANOUT_DATA: usize = 22;
    let takes_one = match call.nr {
        libc::SYS_setsockopt => match call.args[1] as i32 {
            libc::SOL_SOCKET => {
                matches!(call.args[2] as i32, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_REUSEPORT_CBPF)
            }
            libc::SOL_PACKET => call.args[2] == PACKET_FANOUT_DATA && call.args[4] == size_of::<libc::sock_fprog>(),
            _ => false,
        },
        libc::SYS_prctl => {
            call.args[0] == libc::PR_SET_SECCOMP as usize && call.args[1] == libc::SECCOMP_MODE_FILTER as usize
        }
        libc::SYS_seccomp => call.args[0] == libc::SECCOMP_SET_MODE_FILTER as usize,
        _ => false,
    };
    if takes_one && let Some(program) = peek::<libc::sock_fprog>(addr) {
        pins.add(program.filter as usize, program.len as usize * size_of::<libc::sock_filter>(), false);
    }
}
