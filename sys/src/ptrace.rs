//! Another process, from outside: stopped, looked into, let go.
//!
//! All calls about a tracee must come from the thread that seized it; the kernel
//! answers ESRCH to any other. ESRCH is also the answer for a thread that was
//! killed meanwhile, and for one that is not stopped where the call needs it.
//! Threads are attached by `PTRACE_SEIZE`, which, other than `PTRACE_ATTACH`,
//! sends no signal, and can tell a group stop from a signal's arrival.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The events that [`seize`] asks for, besides signals and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follow {
    /// Trace children made by fork and vfork too.
    pub forks: bool,
}

/// General registers, as `struct user_regs_struct`.
pub type Registers = libc::user_regs_struct;

/// A report of a tracee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It ended with this status.
    Exited(i32),
    /// This signal ended it.
    Killed(i32),
    /// A signal arrives: it stands before taking it.
    Signal(i32),
    /// It stands because it was interrupted, is new, or was continued after a group stop.
    Trap,
    /// All of its process is stopped by this signal.
    GroupStop(i32),
    /// It has made a thread.
    Cloned,
    /// It has forked.
    Forked,
    /// It has forked, and waits for the child to exec or end. They share memory until then.
    Vforked,
    /// It has become another program.
    Execed,
    /// It stands at its end: it runs none of the program's code any more, and its memory is there
    /// until it goes on. One that SIGKILL ends may go on by itself.
    Exiting,
    /// It enters or leaves a system call, as [`resume_to_call`] asked.
    Call,
}

fn request(request: libc::c_uint, tid: u32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: callers below pass as `data` numbers, or addresses of live values that the request
    // fits.
    match unsafe { libc::ptrace(request, tid as libc::pid_t, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Attaches to a thread, which runs on. It will tell of its new threads, its execs and its end;
/// threads and processes that it is told to follow are attached by the kernel before they run.
///
/// # Errors
/// EPERM: not allowed, or already traced. ESRCH: no such thread.
pub fn seize(tid: u32, follow: Follow) -> io::Result<()> {
    let mut options =
        libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACEEXIT;
    if follow.forks {
        options |= libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;
    }
    request(libc::PTRACE_SEIZE, tid, 0, options as usize)
}

/// Asks a running thread to stop. It will tell [`Told::Trap`], or [`Told::GroupStop`]; if it stops
/// for another reason first, that is told, and the trap comes after it is resumed.
pub fn interrupt(tid: u32) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Lets a stopped thread run, taking this signal first (0: none).
pub fn resume(tid: u32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_CONT, tid, 0, signal as usize)
}

/// Lets a stopped thread carry out one instruction. It tells [`Told::Signal`] of SIGTRAP then.
pub fn step(tid: u32) -> io::Result<()> {
    request(libc::PTRACE_SINGLESTEP, tid, 0, 0)
}

/// Lets it run to its next entry to or return from a system call, taking this signal first (0:
/// none).
pub fn resume_to_call(tid: u32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_SYSCALL, tid, 0, signal as usize)
}

/// Lets a thread in a group stop stay stopped, and be continued by SIGCONT.
pub fn listen(tid: u32) -> io::Result<()> {
    request(libc::PTRACE_LISTEN, tid, 0, 0)
}

/// Lets a stopped thread go for good, taking this signal first (0: none).
pub fn detach(tid: u32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, signal as usize)
}

/// The number that came with [`Told::Cloned`], [`Told::Forked`] or [`Told::Vforked`] (who is new),
/// or with [`Told::Execed`] (which thread it was before).
pub fn message(tid: u32) -> io::Result<u32> {
    let mut message: libc::c_ulong = 0;
    request(libc::PTRACE_GETEVENTMSG, tid, 0, &raw mut message as usize)?;
    Ok(message as u32)
}

/// A stopped thread's registers.
pub fn registers(tid: u32) -> io::Result<Registers> {
    let mut registers = MaybeUninit::<Registers>::zeroed();
    request(libc::PTRACE_GETREGS, tid, 0, registers.as_mut_ptr() as usize)?;
    // SAFETY: the kernel has filled it in.
    Ok(unsafe { registers.assume_init() })
}

/// Gives a stopped thread these registers.
pub fn set_registers(tid: u32, registers: &Registers) -> io::Result<()> {
    request(libc::PTRACE_SETREGS, tid, 0, registers as *const Registers as usize)
}

/// The signals that a stopped thread blocks, signal n as bit n - 1.
pub fn signal_mask(tid: u32) -> io::Result<u64> {
    let mut mask = 0_u64;
    request(libc::PTRACE_GETSIGMASK, tid, 8, &raw mut mask as usize)?;
    Ok(mask)
}

/// Makes a stopped thread block these.
pub fn set_signal_mask(tid: u32, mask: u64) -> io::Result<()> {
    request(libc::PTRACE_SETSIGMASK, tid, 8, &raw const mask as usize)
}

const NT_X86_XSTATE: usize = 0x202;

/// A stopped thread's floating-point and vector registers, as XSAVE lays them out (not compacted).
/// ENODEV where the processor has no XSAVE.
pub fn extended_state(tid: u32) -> io::Result<Vec<u8>> {
    // Those of all that there is today, AMX's tiles among it, are 11008 bytes.
    let mut state = vec![0_u8; 1 << 15];
    let mut into = libc::iovec { iov_base: state.as_mut_ptr().cast(), iov_len: state.len() };
    request(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, &raw mut into as usize)?;
    state.truncate(into.iov_len);
    Ok(state)
}

/// Where a component of that layout ends; 0 if this processor does not have it.
pub fn extended_component_end(component: u32) -> usize {
    let of_it = std::arch::x86_64::__cpuid_count(0xd, component);
    if of_it.eax == 0 { 0 } else { (of_it.ebx + of_it.eax) as usize }
}

/// Where a stopped thread keeps its `struct rseq`, if it has told the kernel of one.
pub fn rseq_of(tid: u32) -> io::Result<Option<u64>> {
    /// `struct ptrace_rseq_configuration`.
    #[repr(C)]
    #[derive(Default)]
    struct Configuration {
        pointer: u64,
        size_signature_flags_pad: [u32; 4],
    }
    let mut configuration = Configuration::default();
    request(0x420f, tid, size_of::<Configuration>(), &raw mut configuration as usize)?;
    Ok((configuration.pointer != 0).then_some(configuration.pointer))
}

/// Whether a stopped thread has its system calls dispatched to itself
/// (`PR_SET_SYSCALL_USER_DISPATCH`). EIO before Linux 6.4.
pub fn dispatches_calls(tid: u32) -> io::Result<bool> {
    // `struct ptrace_sud_config`: mode, selector, offset, length.
    let mut configuration = [0_u64; 4];
    request(0x4211, tid, size_of_val(&configuration), &raw mut configuration as usize)?;
    Ok(configuration[0] != 0)
}

/// The next report of any child or tracee of this thread's process, if there is one. Does not wait.
///
/// A [`Told::Signal`] is told again and again until the thread is resumed: it is left to the
/// kernel, which gives the signal to the thread if this process is killed before it does. (Waited
/// for, a signal would be lost with us.)
///
/// # Errors
/// ECHILD: there is nobody left to tell anything.
pub fn told() -> io::Result<Option<(u32, Told)>> {
    told_by(-1)
}

/// The next report of this tracee, if there is one.
///
/// # Errors
/// ECHILD: it is no tracee or child of ours.
pub fn told_by(tid: i32) -> io::Result<Option<(u32, Told)>> {
    let (kind, who) = if tid == -1 { (libc::P_ALL, 0) } else { (libc::P_PID, tid as libc::id_t) };
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::__WALL | libc::WNOWAIT;
    // SAFETY: `info` is live, and zeros are a value of it.
    let info = unsafe {
        if libc::waitid(kind, who, info.as_mut_ptr(), options) != 0 {
            return Err(io::Error::last_os_error());
        }
        info.assume_init()
    };
    // SAFETY: the kernel has filled in what it fills in for a child, or left zeros.
    let (who, state) = unsafe { (info.si_pid(), info.si_status()) };
    if who == 0 {
        return Ok(None);
    }
    if info.si_code == libc::CLD_TRAPPED
        && let told @ Told::Signal(_) = Told::of(state << 8 | 0x7f)
    {
        return Ok(Some((who as u32, told)));
    }
    let mut status = 0;
    // SAFETY: `status` is live.
    match unsafe { libc::waitpid(who, &mut status, libc::WNOHANG | libc::__WALL) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        // A SIGKILL may have come between: it tells of its end then, or of a stop there.
        who => Ok(Some((who as u32, Told::of(status)))),
    }
}

impl Told {
    fn of(status: i32) -> Told {
        if libc::WIFEXITED(status) {
            return Told::Exited(libc::WEXITSTATUS(status));
        }
        if libc::WIFSIGNALED(status) {
            return Told::Killed(libc::WTERMSIG(status));
        }
        let signal = libc::WSTOPSIG(status);
        match status >> 16 {
            libc::PTRACE_EVENT_STOP => match signal {
                libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => Told::GroupStop(signal),
                _ => Told::Trap,
            },
            libc::PTRACE_EVENT_CLONE => Told::Cloned,
            libc::PTRACE_EVENT_FORK => Told::Forked,
            libc::PTRACE_EVENT_VFORK => Told::Vforked,
            libc::PTRACE_EVENT_EXEC => Told::Execed,
            libc::PTRACE_EVENT_EXIT => Told::Exiting,
            _ if signal == libc::SIGTRAP | 0x80 => Told::Call,
            _ => Told::Signal(signal),
        }
    }
}

/// A range of another process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its first address there.
    pub start: u64,
    /// Bytes.
    pub len: usize,
}

/// Ranges that one call of [`read`] may take.
pub const MOST_RANGES: usize = 1024;

/// Reads ranges of another process's memory, one after the other, into `into`. Returns how many
/// bytes came: fewer than asked where a page cannot be read, at which the reading ends.
///
/// # Errors
/// Nothing could be read: EFAULT (the first page is not there), ESRCH, EPERM.
pub fn read(thread: u32, ranges: &[Remote], into: &mut [u8]) -> io::Result<usize> {
    assert!(ranges.len() <= MOST_RANGES);
    let mut there = [const { libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 } }; MOST_RANGES];
    for (slot, range) in there.iter_mut().zip(ranges) {
        *slot = libc::iovec { iov_base: range.start as *mut libc::c_void, iov_len: range.len };
    }
    let here = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: the kernel writes no more than `into` is long; the addresses there are the other
    // process's affair.
    let n = unsafe {
        libc::process_vm_readv(thread as libc::pid_t, &here, 1, there.as_ptr(), ranges.len() as libc::c_ulong, 0)
    };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// A copy of another process's descriptor. Needs the right to trace it.
///
/// # Errors
/// EPERM, EBADF; ENOSYS before Linux 5.6.
pub fn descriptor_of(process: u32, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; what comes back is new and nobody else's.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, process, 0);
        if process < 0 {
            return Err(io::Error::last_os_error());
        }
        let process = OwnedFd::from_raw_fd(process as i32);
        match libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) {
            -1 => Err(io::Error::last_os_error()),
            copy => Ok(OwnedFd::from_raw_fd(copy as i32)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    fn next(tid: u32) -> Told {
        loop {
            if let Some((_, told)) = told_by(tid as i32).unwrap() {
                return told;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_child_is_stopped_read_and_let_go() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let tid = child.id();
        // It writes only after its exec.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        while !std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap().contains(") S ") {}
        seize(tid, Follow { forks: false }).unwrap();
        interrupt(tid).unwrap();
        assert_eq!(next(tid), Told::Trap);
        let rip = registers(tid).unwrap().rip;
        let mut code = [0; 8];
        assert_eq!(read(tid, &[Remote { start: rip - 2, len: 8 }], &mut code).unwrap(), 8);
        assert_eq!(code[..2], [0x0f, 0x05], "it is in a system call");
        assert_eq!(
            read(tid, &[Remote { start: 0, len: 8 }], &mut code).unwrap_err().raw_os_error(),
            Some(libc::EFAULT)
        );
        resume(tid, 0).unwrap();
        crate::process::send(tid, libc::SIGTERM).unwrap();
        assert_eq!(next(tid), Told::Signal(libc::SIGTERM));
        resume(tid, libc::SIGTERM).unwrap();
        assert_eq!(next(tid), Told::Exiting);
        assert_eq!(read(tid, &[Remote { start: rip - 2, len: 8 }], &mut code).unwrap(), 8, "its memory is there");
        resume(tid, 0).unwrap();
        assert_eq!(next(tid), Told::Killed(libc::SIGTERM));
        let _ = child.wait();
    }
}
