//! Least privilege: a service that has begun gives up what it does not need.
//!
//! ```text
//!  start: bind ports, open cards, raise limits
//!    │
//!    ├─ no_new_privs       no program that it could run would get more rights
//!    ├─ no capabilities    root is then a user like others, who owns root's files
//!    └─ seccomp            a call that is on no list fails with EPERM
//!    │
//!  threads begin, strangers are served
//! ```
//!
//! All three belong to a thread, and threads inherit them: a service calls [`confine`] while it has
//! one thread. A call that was forgotten in a list fails, and does not kill: a node that dies takes
//! its programs' memory with it.

use crate::raw::Errno;
use libc::{sock_filter, sock_fprog};

/// A system call's number, as `libc::SYS_*`.
pub type Nr = i64;

/// When a call is allowed. Values are compared with an argument's low 32 bits.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// With any arguments.
    Always,
    /// If one of these arguments has this value. [`OWN_PID`] stands for the caller's.
    OneIs(&'static [(u32, u32)]),
    /// Unless one of these arguments has this value.
    NoneIs(&'static [(u32, u32)]),
    /// If this argument has all of these bits.
    Has(u32, u32),
    /// Unless this argument has all of these bits.
    HasNot(u32, u32),
}

/// In [`When::OneIs`]: the pid of the process that is confined.
pub const OWN_PID: u32 = u32::MAX;

/// System calls, and why a service needs them.
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    /// The reason.
    pub why: &'static str,
    /// When they are allowed.
    pub when: When,
    /// Which.
    pub calls: &'static [Nr],
}

const fn always(why: &'static str, calls: &'static [Nr]) -> Calls {
    Calls { why, when: When::Always, calls }
}

/// Calls of every service that has threads and sockets. Those of a busy service come first: old
/// kernels run the filter for each call.
pub const SERVICE: &[Calls] = &[
    always(
        "sockets: to serve and to be served",
        &[
            libc::SYS_recvmsg,
            libc::SYS_sendmsg,
            libc::SYS_recvfrom,
            libc::SYS_sendto,
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_readv,
            libc::SYS_writev,
            libc::SYS_sendmmsg,
            libc::SYS_recvmmsg,
            libc::SYS_accept,
            libc::SYS_accept4,
            libc::SYS_connect,
            libc::SYS_bind,
            libc::SYS_listen,
            libc::SYS_shutdown,
            libc::SYS_socketpair,
            libc::SYS_getsockopt,
            libc::SYS_setsockopt,
            libc::SYS_getsockname,
            libc::SYS_getpeername,
        ],
    ),
    always(
        "waiting: for sockets, for other threads, for time",
        &[
            libc::SYS_epoll_wait,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
            libc::SYS_epoll_ctl,
            libc::SYS_epoll_create1,
            libc::SYS_eventfd2,
            libc::SYS_signalfd4,
            libc::SYS_poll,
            libc::SYS_ppoll,
            libc::SYS_futex,
            libc::SYS_sched_yield,
            libc::SYS_nanosleep,
            libc::SYS_clock_nanosleep,
            libc::SYS_restart_syscall,
        ],
    ),
    always(
        "time and randomness",
        &[libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_gettimeofday, libc::SYS_time, libc::SYS_getrandom],
    ),
    always(
        "memory: its own, what it lends, and the order of its threads' accesses",
        &[
            libc::SYS_munmap,
            libc::SYS_mremap,
            libc::SYS_madvise,
            libc::SYS_brk,
            libc::SYS_memfd_create,
            libc::SYS_fallocate,
            libc::SYS_ftruncate,
            libc::SYS_mincore,
            libc::SYS_msync,
            libc::SYS_membarrier,
        ],
    ),
    Calls {
        why: "memory, but none that can be both written and run",
        when: When::HasNot(2, (libc::PROT_WRITE | libc::PROT_EXEC) as u32),
        calls: &[libc::SYS_mmap, libc::SYS_mprotect],
    },
    always(
        "files: stores of tokens and of the rack, status files, a spill file, libc's name services",
        &[
            libc::SYS_openat,
            libc::SYS_open,
            libc::SYS_close,
            libc::SYS_fcntl,
            libc::SYS_fstat,
            libc::SYS_newfstatat,
            libc::SYS_stat,
            libc::SYS_lstat,
            libc::SYS_statx,
            libc::SYS_statfs,
            libc::SYS_fstatfs,
            libc::SYS_lseek,
            libc::SYS_pread64,
            libc::SYS_pwrite64,
            libc::SYS_preadv,
            libc::SYS_pwritev,
            libc::SYS_getdents64,
            libc::SYS_access,
            libc::SYS_faccessat,
            libc::SYS_faccessat2,
            libc::SYS_readlink,
            libc::SYS_readlinkat,
            libc::SYS_getcwd,
            libc::SYS_unlink,
            libc::SYS_unlinkat,
            libc::SYS_rename,
            libc::SYS_renameat,
            libc::SYS_renameat2,
            libc::SYS_mkdir,
            libc::SYS_fchmod,
            libc::SYS_fsync,
            libc::SYS_fdatasync,
            libc::SYS_sync_file_range,
            libc::SYS_fadvise64,
            libc::SYS_flock,
            libc::SYS_dup,
            libc::SYS_dup3,
            libc::SYS_pipe2,
        ],
    ),
    always(
        "signals: its own handlers, and how they end",
        &[
            libc::SYS_rt_sigprocmask,
            libc::SYS_rt_sigaction,
            libc::SYS_rt_sigreturn,
            libc::SYS_rt_sigtimedwait,
            libc::SYS_sigaltstack,
            libc::SYS_tgkill,
        ],
    ),
    always("the end of a peer on this machine: its descriptor is readable then", &[libc::SYS_pidfd_open]),
    Calls {
        why: "signals to itself, and the question whether a process is there",
        when: When::OneIs(&[(0, OWN_PID), (1, 0)]),
        calls: &[libc::SYS_kill],
    },
    always(
        "threads: their beginning, their ends, their places; and the end of the process",
        &[
            libc::SYS_set_robust_list,
            libc::SYS_rseq,
            libc::SYS_set_tid_address,
            libc::SYS_sched_getaffinity,
            libc::SYS_sched_setaffinity,
            libc::SYS_sched_getparam,
            libc::SYS_sched_getscheduler,
            libc::SYS_getcpu,
            libc::SYS_exit,
            libc::SYS_exit_group,
        ],
    ),
    Calls { why: "a thread, and no process", when: When::Has(0, libc::CLONE_THREAD as u32), calls: &[libc::SYS_clone] },
    Calls {
        why: "names of threads and of memory; a signal for the end of its parent",
        when: When::OneIs(&[
            (0, libc::PR_SET_NAME as u32),
            (0, libc::PR_GET_NAME as u32),
            (0, libc::PR_SET_VMA as u32),
            (0, libc::PR_SET_PDEATHSIG as u32),
            (0, libc::PR_GET_NO_NEW_PRIVS as u32),
            (0, libc::PR_GET_SECCOMP as u32),
        ]),
        calls: &[libc::SYS_prctl],
    },
    always(
        "who and where it is",
        &[
            libc::SYS_getpid,
            libc::SYS_gettid,
            libc::SYS_getppid,
            libc::SYS_getuid,
            libc::SYS_geteuid,
            libc::SYS_getgid,
            libc::SYS_getegid,
            libc::SYS_uname,
            libc::SYS_sysinfo,
            libc::SYS_getrusage,
            libc::SYS_times,
        ],
    ),
    always("its limits: Rust's threads ask for the size of a stack", &[libc::SYS_prlimit64, libc::SYS_getrlimit]),
    Calls {
        why: "descriptors' modes, what sockets hold, RDMA cards; but no keys for a terminal",
        when: When::NoneIs(&[(1, libc::TIOCSTI as u32), (1, TIOCLINUX)]),
        calls: &[libc::SYS_ioctl],
    },
    Calls {
        why: "connections, names of hosts, the machine's addresses; no raw packets",
        when: When::OneIs(&[
            (0, libc::AF_INET as u32),
            (0, libc::AF_INET6 as u32),
            (0, libc::AF_UNIX as u32),
            (0, libc::AF_NETLINK as u32),
        ]),
        calls: &[libc::SYS_socket],
    },
];

/// Of `asm-generic/ioctls.h`. Like TIOCSTI it can put input into a terminal.
const TIOCLINUX: u32 = 0x541c;

/// How a process is confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confined {
    /// A filter was installed.
    pub filter: bool,
    /// It has no capability.
    pub no_capabilities: bool,
}

impl Confined {
    /// Nothing was refused by the kernel.
    pub fn is_whole(&self) -> bool {
        self.filter && self.no_capabilities
    }
}

impl std::fmt::Display for Confined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.filter { "seccomp" } else { "no seccomp: the kernel refused" })?;
        f.write_str(if self.no_capabilities { ", no capabilities" } else { ", capabilities: the kernel keeps them" })
    }
}

/// Confines this thread, and all that it begins later, to these calls.
pub fn confine(allowed: &[&[Calls]]) -> Confined {
    // SAFETY: takes rights away and touches no memory. A filter needs it where there is no
    // privilege.
    let no_new = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0;
    let no_capabilities = drop_capabilities().is_ok();
    Confined { filter: no_new && install(&filter(allowed)).is_ok(), no_capabilities }
}

/// Empties the sets of this thread.
fn drop_capabilities() -> Result<(), Errno> {
    // Version 3, of this thread; effective, permitted and inheritable, 64 bits of each.
    let (header, none) = ([0x2008_0522_u32, 0], [0_u32; 6]);
    // SAFETY: both are as long as the call reads.
    unsafe {
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        said(libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()))
    }
}

fn install(filter: &[sock_filter]) -> Result<(), Errno> {
    let len = u16::try_from(filter.len()).map_err(|_| Errno(libc::E2BIG))?;
    let program = sock_fprog { len, filter: filter.as_ptr().cast_mut() };
    let install = |flags: libc::c_ulong| {
        // SAFETY: the kernel reads the program, whose length is right, and copies it.
        said(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) })
    };
    // Without the flag, kernels before 5.16 slow the whole process down. They guard against a side
    // channel that only foreign code in the same process could use.
    install(libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW).or_else(|_| install(0))
}

fn said(answer: libc::c_long) -> Result<(), Errno> {
    if answer == 0 { Ok(()) } else { Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))) }
}

/// `AUDIT_ARCH_X86_64`.
const X86_64: u32 = 0xc000_003e;
/// Numbers from here on are of the x32 ABI.
const X32: u32 = 0x4000_0000;
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

const fn op(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// Skips `by` instructions unless the comparison holds.
const fn unless(code: u16, k: u32, by: usize) -> sock_filter {
    sock_filter { code, jt: 0, jf: by as u8, k }
}

const ALLOW: sock_filter = op(RETURN, libc::SECCOMP_RET_ALLOW);
const REFUSE: sock_filter = op(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);

/// The program that the kernel runs before each call.
fn filter(allowed: &[&[Calls]]) -> Vec<sock_filter> {
    let kill = op(RETURN, libc::SECCOMP_RET_KILL_PROCESS);
    // Offsets in `struct seccomp_data`: the call's number at 0, its architecture at 4.
    let mut program = vec![op(LOAD, 4), sock_filter { code: IF_EQUAL, jt: 1, jf: 0, k: X86_64 }, kill, op(LOAD, 0)];
    program.extend([unless(IF_AT_LEAST, X32, 1), REFUSE]);
    for calls in allowed.iter().copied().flatten() {
        let body = body(calls.when);
        for &nr in calls.calls {
            program.push(unless(IF_EQUAL, nr as u32, body.len()));
            program.extend(&body);
        }
    }
    // ENOSYS has libc use `clone` instead, whose arguments the filter can see.
    program.extend([unless(IF_EQUAL, libc::SYS_clone3 as u32, 1), op(RETURN, no_such_call())]);
    program.push(REFUSE);
    program
}

const fn no_such_call() -> u32 {
    libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32
}

/// The instructions for one call. They always end in a return, so behind them the accumulator still
/// holds the call's number.
fn body(when: When) -> Vec<sock_filter> {
    // The call's arguments begin at offset 16, with 64 bits each, the low word first.
    let load = |argument: u32| op(LOAD, 16 + 8 * argument);
    let each = |pairs: &[(u32, u32)], then: sock_filter| -> Vec<sock_filter> {
        let value = |value: u32| if value == OWN_PID { std::process::id() } else { value };
        pairs.iter().flat_map(|&(at, k)| [load(at), unless(IF_EQUAL, value(k), 1), then]).collect()
    };
    let masked = |argument, bits, then, otherwise| {
        vec![load(argument), op(AND, bits), unless(IF_EQUAL, bits, 1), then, otherwise]
    };
    match when {
        When::Always => vec![ALLOW],
        When::OneIs(pairs) => each(pairs, ALLOW).into_iter().chain([REFUSE]).collect(),
        When::NoneIs(pairs) => each(pairs, REFUSE).into_iter().chain([ALLOW]).collect(),
        When::Has(argument, bits) => masked(argument, bits, ALLOW, REFUSE),
        When::HasNot(argument, bits) => masked(argument, bits, REFUSE, ALLOW),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::{Error, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;

    /// Runs `work` in a thread that is confined. The other threads of the process are not.
    fn confined(work: impl FnOnce(Confined) + Send + 'static) {
        std::thread::spawn(|| work(confine(&[SERVICE]))).join().unwrap();
    }

    fn refused(answer: libc::c_long) {
        let why = Error::last_os_error().raw_os_error();
        assert_eq!((answer, why), (-1, Some(libc::EPERM)));
    }

    #[test]
    fn a_call_that_is_on_no_list_is_refused() {
        confined(|how| {
            assert_eq!(how, Confined { filter: true, no_capabilities: true });
            let run = Command::new("/bin/true").spawn();
            assert_eq!(run.err().and_then(|e| e.raw_os_error()), Some(libc::EPERM));
            // SAFETY: calls that the filter refuses, and would otherwise be refused by the kernel,
            // or harmless.
            unsafe {
                let none = std::ptr::null::<libc::c_char>();
                refused(libc::syscall(libc::SYS_execve, c"/bin/true".as_ptr(), none, none));
                refused(libc::syscall(libc::SYS_ptrace, 0, 0, 0, 0));
                refused(libc::syscall(libc::SYS_socket, libc::AF_PACKET, libc::SOCK_RAW, 0));
                refused(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0));
                refused(libc::syscall(libc::SYS_kill, libc::getppid(), libc::SIGCONT));
                refused(libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0));
                refused(libc::syscall(libc::SYS_ioctl, 0, libc::TIOCSTI, none));
                refused(libc::syscall(libc::SYS_setuid, 0));
                refused(libc::syscall(libc::SYS_mount, none, none, none, 0, none));
                // The same number in the x32 ABI.
                refused(libc::syscall(libc::c_long::from(X32) | libc::SYS_getpid));
                let (both, private) = (libc::PROT_WRITE | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                refused(libc::syscall(libc::SYS_mmap, 0, 4096, both, private, -1, 0));
            }
        });
    }

    #[test]
    fn files_threads_and_sockets_go_on() {
        let file = std::env::temp_dir().join(format!("farmem-confined-{}", std::process::id()));
        confined(move |_| {
            fs::write(&file, "text").unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), "text");
            fs::remove_file(&file).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let at = listener.local_addr().unwrap();
            let thread = std::thread::Builder::new().name("peer".into());
            let peer = thread.spawn(move || TcpStream::connect(at).unwrap().write_all(b"here").unwrap()).unwrap();
            let mut heard = String::new();
            listener.accept().unwrap().0.read_to_string(&mut heard).unwrap();
            peer.join().unwrap();
            assert_eq!(heard, "here");
            // Threads inherit it.
            let status = std::thread::spawn(|| fs::read_to_string("/proc/thread-self/status").unwrap()).join().unwrap();
            for line in ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
                assert!(status.contains(line), "{status}");
            }
        });
    }

    #[test]
    fn each_call_is_on_the_list_once_and_for_a_reason() {
        let mut all: Vec<Nr> = SERVICE.iter().flat_map(|calls| calls.calls).copied().collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|two| two[0] != two[1]));
        assert!(SERVICE.iter().all(|calls| !calls.why.is_empty() && !calls.calls.is_empty()));
        assert!(filter(&[SERVICE]).len() < 4096, "more than a kernel takes");
    }
}
