//! Calls that mean something else with every request: what their structures point to in turn. The
//! structure itself may be near, on the stack, and what is behind it far.

use super::{Pins, peek};
use crate::call::Call;
use farmem_protocol::addr::PAGE_BYTES;

/// As many bytes as a structure of unknown size may have, within its page.
fn within_page(addr: usize, most: usize) -> usize {
    most.min(PAGE_BYTES - addr % PAGE_BYTES)
}

/// An ioctl's argument.
pub fn ioctl(pins: &mut Pins<'_>, request: usize, addr: usize) {
    /// `struct ifconf`.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Interfaces {
        len: i32,
        at: usize,
    }
    // _IOC_SIZE of the request, or a structure's worth for the old ones that do not encode it.
    let size = (request >> 16) & 0x3fff;
    pins.add(addr, if size == 0 { within_page(addr, 256) } else { size }, true);
    const SIOCGIFCONF: usize = 0x8912;
    if request == SIOCGIFCONF
        && let Some(interfaces) = peek::<Interfaces>(addr)
    {
        pins.add(interfaces.at, interfaces.len.max(0) as usize, true);
    }
}

/// ptrace's last argument. The one before is an address in another process.
pub fn ptrace(pins: &mut Pins<'_>, call: &Call, addr: usize) {
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
    let takes_one = match call.nr {
        libc::SYS_setsockopt => {
            call.args[1] == libc::SOL_SOCKET as usize
                && matches!(call.args[2] as i32, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_REUSEPORT_CBPF)
        }
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
