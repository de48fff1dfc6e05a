//! A seccomp filter of the program's own, with what the runtime needs put before it.
//!
//! A program that confines itself does not know of the calls that its loads and stores have become: `ioctl` of a
//! userfaultfd, `process_madvise`, over TCP the traffic with its nodes. Its filter would forbid them: the program would
//! be killed at its next fault, or fault for ever. So what it gives to the kernel is not its filter alone:
//!
//! ```text
//!  marked ([`crate::go`])?                                       yes → trap, and it goes by the filter unmarked
//!  from the gate's own part ([`crate::gate`]), and one of OWN?  yes → allow
//!  the program's filter, as it is
//! ```
//!
//! Calls of the program's that are made for it come from another part of the gate, and go by its filter; so do all
//! that pass the runtime by. (Mappings, masks and actions, which the runtime looks after in the program's place, do
//! not.) Filters are inherited over fork and exec, and the gate is at the same place in every image. What it costs
//! the sandbox: who runs code of his own inside finds at a known address an instruction by which the calls of OWN
//! can be made. Rejected: to refuse the filter, as by a kernel without them; some programs then end, others go on
//! without.
//!
//! A filter that is installed by a system call which is not seen (inline, not libc's), or before the run, is as it is.

use crate::dispatch::{Call, issue};
use crate::gate::{AFTER_SYSCALL, AFTER_THREAD};
use crate::go::MARK;
use crate::guard::{BAD_ADDRESS, peek, peek_into};
use crate::net::{ALLOW, ARCH, AT_LEAST, EQUAL, IP_HIGH, IP_LOW, LOAD, NUMBER, RETURN, TRAP, X86_64, op};
use farmem_sys::raw::SignalsBlocked;

/// What the runtime calls after its start, its threads and children included.
const OWN: [i64; 46] = [
    // Faults and evictions.
    libc::SYS_ioctl,
    libc::SYS_process_madvise,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_nanosleep,
    libc::SYS_pread64,
    libc::SYS_process_vm_readv,
    // Signals.
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigreturn,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    // Mappings.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_mincore,
    libc::SYS_brk,
    // Nodes.
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_ppoll,
    libc::SYS_poll,
    libc::SYS_read,
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_socketpair,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_fcntl,
    libc::SYS_close,
    libc::SYS_prlimit64,
    libc::SYS_eventfd2,
    // Threads, children, the next image.
    libc::SYS_clone,
    libc::SYS_userfaultfd,
    libc::SYS_pidfd_open,
    libc::SYS_openat,
    libc::SYS_prctl,
    libc::SYS_seccomp,
    // Last words.
    libc::SYS_write,
    libc::SYS_exit_group,
];

/// Whether a call confines the program by a filter.
pub fn begins(call: &Call) -> bool {
    let is = |what: u32| call.args[0] == what as usize;
    match call.nr {
        libc::SYS_prctl => is(libc::PR_SET_SECCOMP as u32) && call.args[1] == libc::SECCOMP_MODE_FILTER as usize,
        libc::SYS_seccomp => is(libc::SECCOMP_SET_MODE_FILTER),
        _ => false,
    }
}

/// Makes such a call. A filter of nearly as many instructions as the kernel takes is refused (EINVAL).
pub fn begin(call: &Call) -> isize {
    let Some(theirs) = peek::<libc::sock_fprog>(call.args[2]) else { return BAD_ADDRESS };
    let _signals = SignalsBlocked::new();
    let mut filter = allowances();
    let (ours, len) = (filter.len(), theirs.len as usize);
    if len == 0 || ours + len > libc::BPF_MAXINSNS as usize {
        return -(libc::EINVAL as isize);
    }
    filter.resize(ours + len, op(0, 0, 0, 0));
    let bytes = len * size_of::<libc::sock_filter>();
    if !peek_into(theirs.filter as usize, filter[ours..].as_mut_ptr().cast(), bytes) {
        return BAD_ADDRESS;
    }
    let whole = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let mut changed = *call;
    changed.args[2] = &raw const whole as usize;
    issue(&changed)
}

/// What goes before the program's filter.
fn allowances() -> Vec<libc::sock_filter> {
    let n = OWN.len() as u8;
    // Jumps count from the next instruction; the program's filter begins behind the last.
    let mut p = vec![
        op(LOAD, ARCH, 0, 0),
        op(EQUAL, X86_64, 0, n + 10),
        op(LOAD, NUMBER, 0, 0),
        op(AT_LEAST, MARK, 0, 1),
        op(RETURN, TRAP, 0, 0),
        op(LOAD, IP_HIGH, 0, 0),
        op(EQUAL, (AFTER_SYSCALL >> 32) as u32, 0, n + 5),
        op(LOAD, IP_LOW, 0, 0),
        op(EQUAL, AFTER_SYSCALL as u32, 1, 0),
        op(EQUAL, AFTER_THREAD as u32, 0, n + 2),
        op(LOAD, NUMBER, 0, 0),
    ];
    p.extend((0..).zip(OWN).map(|(i, nr)| op(EQUAL, nr as u32, n - 1 - i, if i + 1 == n { 1 } else { 0 })));
    p.push(op(RETURN, ALLOW, 0, 0));
    p
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::AFTER_PROGRAM;
    use crate::net::run;

    const KILL: u32 = 0;

    #[test]
    fn the_gate_may_make_the_runtimes_calls_and_nobody_else() {
        let mut filter = allowances();
        filter.push(op(RETURN, KILL, 0, 0));
        for nr in 0..500 {
            let own = if OWN.contains(&nr) { ALLOW } else { KILL };
            for (ip, verdict) in [(AFTER_SYSCALL, own), (AFTER_THREAD, own), (AFTER_PROGRAM, KILL), (0x1234, KILL)] {
                assert_eq!(run(&filter, nr, ip as u64, [0; 6]), verdict, "call {nr} from {ip:#x}");
            }
            assert_eq!(run(&filter, nr, AFTER_SYSCALL as u64 ^ 1 << 40, [0; 6]), KILL);
            assert_eq!(run(&filter, nr | i64::from(MARK), 0x1234, [0; 6]), TRAP);
        }
    }
}
