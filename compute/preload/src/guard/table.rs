//! Which memory each system call uses (x86-64): the kernel's contract, as a table.
//!
//! One row stands for all calls of one shape. A call without a row is unknown: the guard pins the
//! page that each far argument points to, and counts the call.

/// How much memory an argument points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// This number of bytes.
    Bytes(usize),
    /// As many bytes as another argument says.
    Arg(usize),
    /// Elements: the argument that gives their number, and the bytes of each.
    Times(usize, usize),
    /// A bit set of as many bits as another argument says.
    Bits(usize),
    /// A NUL-terminated string.
    Text,
    /// As many bytes as a `u32` says. Another argument points to that `u32`.
    LenAt(usize),
    /// The same for a socket's option: one that is a filter is told in instructions.
    ValueAt(usize),
    /// iovecs, as many as another argument says, and what they point to.
    Vectors(usize),
    /// A msghdr and what it points to.
    Message,
    /// mmsghdrs, as many as another argument says, and what they point to.
    Messages(usize),
    /// Pointers to strings, the last one null.
    Strings,
    /// A System V message: a word, then as many bytes as another argument says.
    Typed(usize),
    /// The last argument of `semctl`, whose meaning depends on the command.
    Semaphores,
    /// Elements of `futex_waitv`, as many as another argument says, and the futex words that they
    /// name.
    Waiters(usize),
    /// The two elements of `futex_requeue`, and the futex words that they name.
    Pair,
    /// The size that an ioctl request encodes.
    Ioctl,
    /// The last argument of `ptrace`, whose size depends on the request.
    Ptrace,
    /// A `sock_fprog` and its instructions, if the call's other arguments say that it takes one.
    Filter,
    /// Depends on a prctl's first argument.
    Prctl,
    /// What a `bpf` call's structure points to.
    Bpf,
    /// The vectors and structures of some `keyctl` operations.
    Keys,
    /// What a `setsockopt`'s value points to.
    Option,
}

/// One pointer argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// Which argument, from 0.
    pub arg: usize,
    /// The memory that it points to.
    pub extent: Extent,
    /// Whether the kernel writes there.
    pub write: bool,
}

/// An argument to memory that the kernel reads.
const fn inp(arg: usize, extent: Extent) -> Use {
    Use { arg, extent, write: false }
}

/// An argument to memory that the kernel writes, or reads and writes.
const fn out(arg: usize, extent: Extent) -> Use {
    Use { arg, extent, write: true }
}

/// The memory that a call uses; `None` if the table does not know the call.
pub fn uses(number: i64) -> Option<&'static [Use]> {
    Some(match number {
        nr::READ
        | nr::PREAD64
        | nr::GETDENTS
        | nr::SYSLOG
        | nr::FLISTXATTR
        | nr::LOOKUP_DCOOKIE
        | nr::GETDENTS64
        | nr::SCHED_GETATTR
        | nr::MODIFY_LDT => const { &[out(1, Extent::Arg(2))] },
        nr::BPF => const { &[out(1, Extent::Arg(2)), out(1, Extent::Bpf)] },
        nr::WRITE | nr::PWRITE64 | nr::CONNECT | nr::BIND => const { &[inp(1, Extent::Arg(2))] },
        nr::MSGRCV => const { &[out(1, Extent::Typed(2))] },
        nr::MSGSND => const { &[inp(1, Extent::Typed(2))] },
        nr::OPEN
        | nr::ACCESS
        | nr::TRUNCATE
        | nr::CHDIR
        | nr::MKDIR
        | nr::RMDIR
        | nr::CREAT
        | nr::UNLINK
        | nr::CHMOD
        | nr::CHOWN
        | nr::LCHOWN
        | nr::MKNOD
        | nr::USELIB
        | nr::CHROOT
        | nr::ACCT
        | nr::UMOUNT2
        | nr::SWAPON
        | nr::SWAPOFF
        | nr::MQ_UNLINK
        | nr::MEMFD_CREATE
        | nr::FSOPEN => const { &[inp(0, Extent::Text)] },
        nr::STAT | nr::LSTAT => const { &[inp(0, Extent::Text), out(1, Extent::Bytes(144))] },
        nr::FSTAT | nr::GETRUSAGE => const { &[out(1, Extent::Bytes(144))] },
        nr::POLL => const { &[out(0, Extent::Times(1, 8))] },
        nr::LSEEK
        | nr::MSYNC
        | nr::EXIT
        | nr::FTRUNCATE
        | nr::PERSONALITY
        | nr::MLOCK
        | nr::MUNLOCK
        | nr::READAHEAD
        | nr::SET_TID_ADDRESS
        | nr::RESTART_SYSCALL
        | nr::FADVISE64
        | nr::EXIT_GROUP
        | nr::SET_ROBUST_LIST
        | nr::SYNC_FILE_RANGE
        | nr::FALLOCATE
        | nr::KCMP
        | nr::USERFAULTFD
        | nr::MEMBARRIER
        | nr::MLOCK2 => const { &[] },
        nr::IOCTL => const { &[out(2, Extent::Ioctl)] },
        nr::READV | nr::VMSPLICE | nr::PREADV | nr::PREADV2 => const { &[out(1, Extent::Vectors(2))] },
        nr::WRITEV | nr::PWRITEV | nr::PWRITEV2 => const { &[inp(1, Extent::Vectors(2))] },
        nr::PIPE | nr::RT_SIGPENDING | nr::TIME | nr::PIPE2 => const { &[out(0, Extent::Bytes(8))] },
        nr::SELECT => {
            const { &[out(1, Extent::Bits(0)), out(2, Extent::Bits(0)), out(3, Extent::Bits(0)), out(4, Extent::Bytes(16))] }
        }
        nr::SHMCTL | nr::MSGCTL => const { &[out(2, Extent::Bytes(136))] },
        nr::NANOSLEEP => const { &[inp(0, Extent::Bytes(16)), out(1, Extent::Bytes(16))] },
        nr::GETITIMER | nr::USTAT | nr::TIMER_GETTIME | nr::TIMERFD_GETTIME => const { &[out(1, Extent::Bytes(32))] },
        nr::SETITIMER => const { &[inp(1, Extent::Bytes(32)), out(2, Extent::Bytes(32))] },
        nr::SENDFILE => const { &[out(2, Extent::Bytes(8))] },
        nr::ACCEPT | nr::GETSOCKNAME | nr::GETPEERNAME | nr::ACCEPT4 => {
            const { &[out(1, Extent::LenAt(2)), out(2, Extent::Bytes(4))] }
        }
        nr::SENDTO => const { &[inp(1, Extent::Arg(2)), inp(4, Extent::Arg(5))] },
        nr::RECVFROM => const { &[out(1, Extent::Arg(2)), out(4, Extent::LenAt(5)), out(5, Extent::Bytes(4))] },
        nr::SENDMSG => const { &[inp(1, Extent::Message)] },
        nr::RECVMSG => const { &[out(1, Extent::Message)] },
        nr::SOCKETPAIR => const { &[out(3, Extent::Bytes(8))] },
        nr::SETSOCKOPT => const { &[inp(3, Extent::Arg(4)), inp(3, Extent::Filter), inp(3, Extent::Option)] },
        nr::GETSOCKOPT => const { &[out(3, Extent::ValueAt(4)), out(4, Extent::Bytes(4))] },
        nr::EXECVE => const { &[inp(0, Extent::Text), inp(1, Extent::Strings), inp(2, Extent::Strings)] },
        nr::WAIT4 => const { &[out(1, Extent::Bytes(4)), out(3, Extent::Bytes(144))] },
        nr::UNAME => const { &[out(0, Extent::Bytes(390))] },
        nr::SEMOP => const { &[inp(1, Extent::Times(2, 6))] },
        nr::SEMCTL => const { &[out(3, Extent::Semaphores)] },
        nr::FCNTL => const { &[out(2, Extent::Bytes(64))] },
        nr::GETCWD | nr::GETRANDOM => const { &[out(0, Extent::Arg(1))] },
        nr::RENAME | nr::LINK | nr::SYMLINK | nr::PIVOT_ROOT | nr::REMOVEXATTR | nr::LREMOVEXATTR => {
            const { &[inp(0, Extent::Text), inp(1, Extent::Text)] }
        }
        nr::READLINK | nr::LISTXATTR | nr::LLISTXATTR => const { &[inp(0, Extent::Text), out(1, Extent::Arg(2))] },
        nr::GETTIMEOFDAY => const { &[out(0, Extent::Bytes(16)), out(1, Extent::Bytes(8))] },
        nr::GETRLIMIT | nr::SCHED_RR_GET_INTERVAL | nr::CLOCK_GETTIME | nr::CLOCK_GETRES => {
            const { &[out(1, Extent::Bytes(16))] }
        }
        nr::SYSINFO => const { &[out(0, Extent::Bytes(112))] },
        nr::TIMES | nr::RSEQ => const { &[out(0, Extent::Bytes(32))] },
        nr::GETGROUPS => const { &[out(1, Extent::Times(0, 4))] },
        nr::SETGROUPS => const { &[inp(1, Extent::Times(0, 4))] },
        nr::GETRESUID | nr::GETRESGID => {
            const { &[out(0, Extent::Bytes(4)), out(1, Extent::Bytes(4)), out(2, Extent::Bytes(4))] }
        }
        nr::CAPGET => const { &[out(0, Extent::Bytes(8)), out(1, Extent::Bytes(24))] },
        nr::CAPSET => const { &[inp(0, Extent::Bytes(8)), inp(1, Extent::Bytes(24))] },
        nr::RT_SIGTIMEDWAIT => {
            const { &[inp(0, Extent::Bytes(8)), out(1, Extent::Bytes(128)), inp(2, Extent::Bytes(16))] }
        }
        nr::RT_SIGQUEUEINFO | nr::PIDFD_SEND_SIGNAL => const { &[inp(2, Extent::Bytes(128))] },
        nr::RT_SIGSUSPEND => const { &[inp(0, Extent::Bytes(8))] },
        nr::UTIME => const { &[inp(0, Extent::Text), inp(1, Extent::Bytes(16))] },
        nr::STATFS => const { &[inp(0, Extent::Text), out(1, Extent::Bytes(120))] },
        nr::FSTATFS => const { &[out(1, Extent::Bytes(120))] },
        nr::SYSFS
        | nr::FREMOVEXATTR
        | nr::INOTIFY_ADD_WATCH
        | nr::OPENAT
        | nr::MKDIRAT
        | nr::MKNODAT
        | nr::FCHOWNAT
        | nr::UNLINKAT
        | nr::FCHMODAT
        | nr::FACCESSAT
        | nr::OPEN_TREE
        | nr::FSPICK
        | nr::FACCESSAT2
        | nr::FCHMODAT2 => const { &[inp(1, Extent::Text)] },
        nr::SCHED_SETPARAM => const { &[inp(1, Extent::Bytes(4))] },
        nr::SCHED_GETPARAM => const { &[out(1, Extent::Bytes(4))] },
        nr::SCHED_SETSCHEDULER => const { &[inp(2, Extent::Bytes(4))] },
        nr::PRCTL => {
            const { &[out(1, Extent::Prctl), out(2, Extent::Bytes(64)), inp(2, Extent::Filter), inp(4, Extent::Text)] }
        }
        nr::PTRACE => const { &[out(3, Extent::Ptrace)] },
        nr::ARCH_PRCTL => const { &[out(1, Extent::Bytes(8))] },
        nr::ADJTIMEX => const { &[out(0, Extent::Bytes(208))] },
        nr::SETRLIMIT | nr::CLOCK_SETTIME => const { &[inp(1, Extent::Bytes(16))] },
        nr::SETTIMEOFDAY => const { &[inp(0, Extent::Bytes(16)), inp(1, Extent::Bytes(8))] },
        nr::MOUNT => {
            const { &[inp(0, Extent::Text), inp(1, Extent::Text), inp(2, Extent::Text), inp(4, Extent::Text)] }
        }
        nr::SETHOSTNAME | nr::SETDOMAINNAME | nr::CLONE3 | nr::LANDLOCK_CREATE_RULESET => {
            const { &[inp(0, Extent::Arg(1))] }
        }
        nr::QUOTACTL => const { &[inp(1, Extent::Text), out(3, Extent::Bytes(512))] },
        nr::QUOTACTL_FD => const { &[out(3, Extent::Bytes(512))] },
        nr::SETXATTR | nr::LSETXATTR | nr::ADD_KEY => {
            const { &[inp(0, Extent::Text), inp(1, Extent::Text), inp(2, Extent::Arg(3))] }
        }
        nr::FSETXATTR | nr::OPENAT2 => const { &[inp(1, Extent::Text), inp(2, Extent::Arg(3))] },
        nr::GETXATTR | nr::LGETXATTR => const { &[inp(0, Extent::Text), inp(1, Extent::Text), out(2, Extent::Arg(3))] },
        nr::FGETXATTR | nr::READLINKAT => const { &[inp(1, Extent::Text), out(2, Extent::Arg(3))] },
        nr::FUTEX => const { &[out(0, Extent::Bytes(4)), inp(3, Extent::Bytes(16)), out(4, Extent::Bytes(4))] },
        nr::SCHED_SETAFFINITY => const { &[inp(2, Extent::Arg(1))] },
        nr::SCHED_GETAFFINITY => const { &[out(2, Extent::Arg(1))] },
        nr::SEMTIMEDOP => const { &[inp(1, Extent::Times(2, 6)), inp(3, Extent::Bytes(16))] },
        nr::TIMER_CREATE => const { &[inp(1, Extent::Bytes(64)), out(2, Extent::Bytes(4))] },
        nr::TIMER_SETTIME | nr::TIMERFD_SETTIME => const { &[inp(2, Extent::Bytes(32)), out(3, Extent::Bytes(32))] },
        nr::CLOCK_NANOSLEEP | nr::PRLIMIT64 => const { &[inp(2, Extent::Bytes(16)), out(3, Extent::Bytes(16))] },
        nr::EPOLL_WAIT => const { &[out(1, Extent::Times(2, 12))] },
        nr::EPOLL_CTL => const { &[inp(3, Extent::Bytes(12))] },
        nr::UTIMES => const { &[inp(0, Extent::Text), inp(1, Extent::Bytes(32))] },
        nr::MBIND => const { &[inp(3, Extent::Bits(4))] },
        nr::SET_MEMPOLICY => const { &[inp(1, Extent::Bits(2))] },
        nr::MOVE_PAGES => {
            const { &[inp(2, Extent::Times(1, 8)), inp(3, Extent::Times(1, 4)), out(4, Extent::Times(1, 4))] }
        }
        nr::KEYCTL => {
            const {
                &[
                    inp(1, Extent::Text),
                    inp(2, Extent::Text),
                    out(2, Extent::Arg(3)),
                    inp(3, Extent::Text),
                    inp(2, Extent::Keys),
                ]
            }
        }
        nr::GET_MEMPOLICY => const { &[out(0, Extent::Bytes(4)), out(1, Extent::Bits(2))] },
        nr::MQ_OPEN => const { &[inp(0, Extent::Text), inp(3, Extent::Bytes(64))] },
        nr::MQ_TIMEDSEND => const { &[inp(1, Extent::Arg(2)), inp(4, Extent::Bytes(16))] },
        nr::MQ_TIMEDRECEIVE => const { &[out(1, Extent::Arg(2)), out(3, Extent::Bytes(4)), inp(4, Extent::Bytes(16))] },
        nr::MQ_NOTIFY => const { &[inp(1, Extent::Bytes(64))] },
        nr::MQ_GETSETATTR => const { &[inp(1, Extent::Bytes(64)), out(2, Extent::Bytes(64))] },
        nr::WAITID => const { &[out(2, Extent::Bytes(128)), out(4, Extent::Bytes(144))] },
        nr::REQUEST_KEY => const { &[inp(0, Extent::Text), inp(1, Extent::Text), inp(2, Extent::Text)] },
        nr::FUTIMESAT | nr::UTIMENSAT => const { &[inp(1, Extent::Text), inp(2, Extent::Bytes(32))] },
        nr::NEWFSTATAT => const { &[inp(1, Extent::Text), out(2, Extent::Bytes(144))] },
        nr::RENAMEAT | nr::LINKAT | nr::RENAMEAT2 | nr::MOVE_MOUNT => {
            const { &[inp(1, Extent::Text), inp(3, Extent::Text)] }
        }
        nr::SYMLINKAT => const { &[inp(0, Extent::Text), inp(2, Extent::Text)] },
        nr::PSELECT6 => {
            const {
                &[
                    out(1, Extent::Bits(0)),
                    out(2, Extent::Bits(0)),
                    out(3, Extent::Bits(0)),
                    out(4, Extent::Bytes(16)),
                    inp(5, Extent::Bytes(16)),
                ]
            }
        }
        nr::PPOLL => const { &[out(0, Extent::Times(1, 8)), out(2, Extent::Bytes(16)), inp(3, Extent::Bytes(8))] },
        nr::GET_ROBUST_LIST => const { &[out(1, Extent::Bytes(8)), out(2, Extent::Bytes(8))] },
        nr::SPLICE | nr::COPY_FILE_RANGE => const { &[out(1, Extent::Bytes(8)), out(3, Extent::Bytes(8))] },
        nr::EPOLL_PWAIT => const { &[out(1, Extent::Times(2, 12)), inp(4, Extent::Bytes(8))] },
        nr::SIGNALFD | nr::SIGNALFD4 => const { &[inp(1, Extent::Bytes(8))] },
        nr::RT_TGSIGQUEUEINFO => const { &[inp(3, Extent::Bytes(128))] },
        nr::PERF_EVENT_OPEN => const { &[inp(0, Extent::Bytes(136))] },
        nr::RECVMMSG => const { &[out(1, Extent::Messages(2)), out(4, Extent::Bytes(16))] },
        nr::FANOTIFY_MARK => const { &[inp(4, Extent::Text)] },
        nr::NAME_TO_HANDLE_AT => {
            const { &[inp(1, Extent::Text), out(2, Extent::Bytes(136)), out(3, Extent::Bytes(4))] }
        }
        nr::OPEN_BY_HANDLE_AT => const { &[inp(1, Extent::Bytes(136))] },
        nr::CLOCK_ADJTIME => const { &[out(1, Extent::Bytes(208))] },
        nr::SENDMMSG => const { &[inp(1, Extent::Messages(2))] },
        nr::GETCPU => const { &[out(0, Extent::Bytes(4)), out(1, Extent::Bytes(4))] },
        nr::PROCESS_VM_READV => const { &[out(1, Extent::Vectors(2)), inp(3, Extent::Vectors(4))] },
        nr::PROCESS_VM_WRITEV => const { &[inp(1, Extent::Vectors(2)), out(3, Extent::Vectors(4))] },
        nr::SCHED_SETATTR => const { &[inp(1, Extent::Bytes(56))] },
        nr::SECCOMP => const { &[inp(2, Extent::Bytes(16)), inp(2, Extent::Filter)] },
        nr::EXECVEAT => const { &[inp(1, Extent::Text), inp(2, Extent::Strings), inp(3, Extent::Strings)] },
        nr::STATX => const { &[inp(1, Extent::Text), out(4, Extent::Bytes(256))] },
        nr::EPOLL_PWAIT2 => {
            const { &[out(1, Extent::Times(2, 12)), inp(3, Extent::Bytes(16)), inp(4, Extent::Bytes(8))] }
        }
        nr::MOUNT_SETATTR => const { &[inp(1, Extent::Text), inp(3, Extent::Arg(4))] },
        nr::LANDLOCK_ADD_RULE => const { &[inp(2, Extent::Bytes(64))] },
        nr::FUTEX_WAITV => const { &[out(0, Extent::Waiters(1)), inp(3, Extent::Bytes(16))] },
        nr::CACHESTAT => const { &[inp(1, Extent::Bytes(16)), out(2, Extent::Bytes(40))] },
        nr::FUTEX_WAKE => const { &[out(0, Extent::Bytes(4))] },
        nr::FUTEX_WAIT => const { &[out(0, Extent::Bytes(4)), inp(4, Extent::Bytes(16))] },
        nr::FUTEX_REQUEUE => const { &[out(0, Extent::Pair)] },
        nr::STATMOUNT => const { &[inp(0, Extent::Bytes(32)), out(1, Extent::Arg(2))] },
        nr::LISTMOUNT => const { &[inp(0, Extent::Bytes(32)), out(1, Extent::Times(2, 8))] },
        nr::LISTXATTRAT => const { &[inp(1, Extent::Text), out(3, Extent::Arg(4))] },
        nr::REMOVEXATTRAT => const { &[inp(1, Extent::Text), inp(3, Extent::Text)] },
        nr::FILE_GETATTR | nr::FILE_SETATTR => const { &[inp(1, Extent::Text), out(2, Extent::Arg(3))] },
        nr::INIT_MODULE => const { &[inp(0, Extent::Arg(1)), inp(2, Extent::Text)] },
        nr::GETXATTRAT => const { &[inp(1, Extent::Text), inp(3, Extent::Text), out(4, Extent::Arg(5))] },
        // These calls use no memory, or name mappings whose bytes the kernel does not read.
        nr::CLOSE
        | nr::DUP
        | nr::DUP2
        | nr::DUP3
        | nr::CLOSE_RANGE
        | nr::SCHED_YIELD
        | nr::PAUSE
        | nr::ALARM
        | nr::GETPID
        | nr::GETTID
        | nr::GETPPID
        | nr::GETUID
        | nr::GETEUID
        | nr::GETGID
        | nr::GETEGID
        | nr::SOCKET
        | nr::LISTEN
        | nr::SHUTDOWN
        | nr::KILL
        | nr::TKILL
        | nr::TGKILL
        | nr::FSYNC
        | nr::FDATASYNC
        | nr::FCHDIR
        | nr::FCHMOD
        | nr::FCHOWN
        | nr::UMASK
        | nr::SETPGID
        | nr::GETPGRP
        | nr::SETSID
        | nr::SETREUID
        | nr::SETREGID
        | nr::SETRESUID
        | nr::SETRESGID
        | nr::SETUID
        | nr::SETGID
        | nr::GETPGID
        | nr::SETFSUID
        | nr::SETFSGID
        | nr::GETSID
        | nr::SCHED_GETSCHEDULER
        | nr::GETPRIORITY
        | nr::SETPRIORITY
        | nr::SCHED_GET_PRIORITY_MAX
        | nr::SCHED_GET_PRIORITY_MIN
        | nr::VHANGUP
        | nr::SYNC
        | nr::EPOLL_CREATE
        | nr::EPOLL_CREATE1
        | nr::INOTIFY_INIT
        | nr::INOTIFY_INIT1
        | nr::INOTIFY_RM_WATCH
        | nr::EVENTFD
        | nr::EVENTFD2
        | nr::TIMERFD_CREATE
        | nr::SHMGET
        | nr::SEMGET
        | nr::MSGGET
        | nr::SHMAT
        | nr::SHMDT
        | nr::MLOCKALL
        | nr::MUNLOCKALL
        | nr::IOPRIO_SET
        | nr::IOPRIO_GET
        | nr::UNSHARE
        | nr::SETNS
        | nr::SYNCFS
        | nr::PKEY_MPROTECT
        | nr::PKEY_ALLOC
        | nr::PKEY_FREE
        | nr::PIDFD_OPEN
        | nr::PIDFD_GETFD
        | nr::TIMER_GETOVERRUN
        | nr::TIMER_DELETE
        | nr::FLOCK
        | nr::TEE
        | nr::MIGRATE_PAGES
        | nr::FANOTIFY_INIT
        | nr::MMAP
        | nr::MUNMAP
        | nr::MPROTECT
        | nr::MREMAP
        | nr::MADVISE
        | nr::MINCORE
        | nr::BRK
        | nr::REMAP_FILE_PAGES
        | nr::FORK
        | nr::VFORK
        | nr::CLONE
        | nr::RT_SIGRETURN
        | nr::IOPERM
        | nr::IOPL
        | nr::RT_SIGACTION
        | nr::RT_SIGPROCMASK
        | nr::SIGALTSTACK
        | nr::PROCESS_MADVISE
        | nr::IO_URING_SETUP
        | nr::IO_SETUP => const { &[] },
        _ => return None,
    })
}

/// Numbers, from the kernel's table (libc lacks the newest).
mod nr {
    pub const READ: i64 = 0;
    pub const WRITE: i64 = 1;
    pub const OPEN: i64 = 2;
    pub const CLOSE: i64 = 3;
    pub const STAT: i64 = 4;
    pub const FSTAT: i64 = 5;
    pub const LSTAT: i64 = 6;
    pub const POLL: i64 = 7;
    pub const LSEEK: i64 = 8;
    pub const MMAP: i64 = 9;
    pub const MPROTECT: i64 = 10;
    pub const MUNMAP: i64 = 11;
    pub const BRK: i64 = 12;
    pub const RT_SIGACTION: i64 = 13;
    pub const RT_SIGPROCMASK: i64 = 14;
    pub const RT_SIGRETURN: i64 = 15;
    pub const IOCTL: i64 = 16;
    pub const PREAD64: i64 = 17;
    pub const PWRITE64: i64 = 18;
    pub const READV: i64 = 19;
    pub const WRITEV: i64 = 20;
    pub const ACCESS: i64 = 21;
    pub const PIPE: i64 = 22;
    pub const SELECT: i64 = 23;
    pub const SCHED_YIELD: i64 = 24;
    pub const MREMAP: i64 = 25;
    pub const MSYNC: i64 = 26;
    pub const MINCORE: i64 = 27;
    pub const MADVISE: i64 = 28;
    pub const SHMGET: i64 = 29;
    pub const SHMAT: i64 = 30;
    pub const SHMCTL: i64 = 31;
    pub const DUP: i64 = 32;
    pub const DUP2: i64 = 33;
    pub const PAUSE: i64 = 34;
    pub const NANOSLEEP: i64 = 35;
    pub const GETITIMER: i64 = 36;
    pub const ALARM: i64 = 37;
    pub const SETITIMER: i64 = 38;
    pub const GETPID: i64 = 39;
    pub const SENDFILE: i64 = 40;
    pub const SOCKET: i64 = 41;
    pub const CONNECT: i64 = 42;
    pub const ACCEPT: i64 = 43;
    pub const SENDTO: i64 = 44;
    pub const RECVFROM: i64 = 45;
    pub const SENDMSG: i64 = 46;
    pub const RECVMSG: i64 = 47;
    pub const SHUTDOWN: i64 = 48;
    pub const BIND: i64 = 49;
    pub const LISTEN: i64 = 50;
    pub const GETSOCKNAME: i64 = 51;
    pub const GETPEERNAME: i64 = 52;
    pub const SOCKETPAIR: i64 = 53;
    pub const SETSOCKOPT: i64 = 54;
    pub const GETSOCKOPT: i64 = 55;
    pub const CLONE: i64 = 56;
    pub const FORK: i64 = 57;
    pub const VFORK: i64 = 58;
    pub const EXECVE: i64 = 59;
    pub const EXIT: i64 = 60;
    pub const WAIT4: i64 = 61;
    pub const KILL: i64 = 62;
    pub const UNAME: i64 = 63;
    pub const SEMGET: i64 = 64;
    pub const SEMOP: i64 = 65;
    pub const SEMCTL: i64 = 66;
    pub const SHMDT: i64 = 67;
    pub const MSGGET: i64 = 68;
    pub const MSGSND: i64 = 69;
    pub const MSGRCV: i64 = 70;
    pub const MSGCTL: i64 = 71;
    pub const FCNTL: i64 = 72;
    pub const FLOCK: i64 = 73;
    pub const FSYNC: i64 = 74;
    pub const FDATASYNC: i64 = 75;
    pub const TRUNCATE: i64 = 76;
    pub const FTRUNCATE: i64 = 77;
    pub const GETDENTS: i64 = 78;
    pub const GETCWD: i64 = 79;
    pub const CHDIR: i64 = 80;
    pub const FCHDIR: i64 = 81;
    pub const RENAME: i64 = 82;
    pub const MKDIR: i64 = 83;
    pub const RMDIR: i64 = 84;
    pub const CREAT: i64 = 85;
    pub const LINK: i64 = 86;
    pub const UNLINK: i64 = 87;
    pub const SYMLINK: i64 = 88;
    pub const READLINK: i64 = 89;
    pub const CHMOD: i64 = 90;
    pub const FCHMOD: i64 = 91;
    pub const CHOWN: i64 = 92;
    pub const FCHOWN: i64 = 93;
    pub const LCHOWN: i64 = 94;
    pub const UMASK: i64 = 95;
    pub const GETTIMEOFDAY: i64 = 96;
    pub const GETRLIMIT: i64 = 97;
    pub const GETRUSAGE: i64 = 98;
    pub const SYSINFO: i64 = 99;
    pub const TIMES: i64 = 100;
    pub const PTRACE: i64 = 101;
    pub const GETUID: i64 = 102;
    pub const SYSLOG: i64 = 103;
    pub const GETGID: i64 = 104;
    pub const SETUID: i64 = 105;
    pub const SETGID: i64 = 106;
    pub const GETEUID: i64 = 107;
    pub const GETEGID: i64 = 108;
    pub const SETPGID: i64 = 109;
    pub const GETPPID: i64 = 110;
    pub const GETPGRP: i64 = 111;
    pub const SETSID: i64 = 112;
    pub const SETREUID: i64 = 113;
    pub const SETREGID: i64 = 114;
    pub const GETGROUPS: i64 = 115;
    pub const SETGROUPS: i64 = 116;
    pub const SETRESUID: i64 = 117;
    pub const GETRESUID: i64 = 118;
    pub const SETRESGID: i64 = 119;
    pub const GETRESGID: i64 = 120;
    pub const GETPGID: i64 = 121;
    pub const SETFSUID: i64 = 122;
    pub const SETFSGID: i64 = 123;
    pub const GETSID: i64 = 124;
    pub const CAPGET: i64 = 125;
    pub const CAPSET: i64 = 126;
    pub const RT_SIGPENDING: i64 = 127;
    pub const RT_SIGTIMEDWAIT: i64 = 128;
    pub const RT_SIGQUEUEINFO: i64 = 129;
    pub const RT_SIGSUSPEND: i64 = 130;
    pub const SIGALTSTACK: i64 = 131;
    pub const UTIME: i64 = 132;
    pub const MKNOD: i64 = 133;
    pub const USELIB: i64 = 134;
    pub const PERSONALITY: i64 = 135;
    pub const USTAT: i64 = 136;
    pub const STATFS: i64 = 137;
    pub const FSTATFS: i64 = 138;
    pub const SYSFS: i64 = 139;
    pub const GETPRIORITY: i64 = 140;
    pub const SETPRIORITY: i64 = 141;
    pub const SCHED_SETPARAM: i64 = 142;
    pub const SCHED_GETPARAM: i64 = 143;
    pub const SCHED_SETSCHEDULER: i64 = 144;
    pub const SCHED_GETSCHEDULER: i64 = 145;
    pub const SCHED_GET_PRIORITY_MAX: i64 = 146;
    pub const SCHED_GET_PRIORITY_MIN: i64 = 147;
    pub const SCHED_RR_GET_INTERVAL: i64 = 148;
    pub const MLOCK: i64 = 149;
    pub const MUNLOCK: i64 = 150;
    pub const MLOCKALL: i64 = 151;
    pub const MUNLOCKALL: i64 = 152;
    pub const VHANGUP: i64 = 153;
    pub const MODIFY_LDT: i64 = 154;
    pub const PIVOT_ROOT: i64 = 155;
    pub const PRCTL: i64 = 157;
    pub const ARCH_PRCTL: i64 = 158;
    pub const ADJTIMEX: i64 = 159;
    pub const SETRLIMIT: i64 = 160;
    pub const CHROOT: i64 = 161;
    pub const SYNC: i64 = 162;
    pub const ACCT: i64 = 163;
    pub const SETTIMEOFDAY: i64 = 164;
    pub const MOUNT: i64 = 165;
    pub const UMOUNT2: i64 = 166;
    pub const SWAPON: i64 = 167;
    pub const SWAPOFF: i64 = 168;
    pub const SETHOSTNAME: i64 = 170;
    pub const SETDOMAINNAME: i64 = 171;
    pub const IOPL: i64 = 172;
    pub const IOPERM: i64 = 173;
    pub const INIT_MODULE: i64 = 175;
    pub const QUOTACTL: i64 = 179;
    pub const GETTID: i64 = 186;
    pub const READAHEAD: i64 = 187;
    pub const SETXATTR: i64 = 188;
    pub const LSETXATTR: i64 = 189;
    pub const FSETXATTR: i64 = 190;
    pub const GETXATTR: i64 = 191;
    pub const LGETXATTR: i64 = 192;
    pub const FGETXATTR: i64 = 193;
    pub const LISTXATTR: i64 = 194;
    pub const LLISTXATTR: i64 = 195;
    pub const FLISTXATTR: i64 = 196;
    pub const REMOVEXATTR: i64 = 197;
    pub const LREMOVEXATTR: i64 = 198;
    pub const FREMOVEXATTR: i64 = 199;
    pub const TKILL: i64 = 200;
    pub const TIME: i64 = 201;
    pub const FUTEX: i64 = 202;
    pub const SCHED_SETAFFINITY: i64 = 203;
    pub const SCHED_GETAFFINITY: i64 = 204;
    pub const IO_SETUP: i64 = 206;
    pub const LOOKUP_DCOOKIE: i64 = 212;
    pub const EPOLL_CREATE: i64 = 213;
    pub const REMAP_FILE_PAGES: i64 = 216;
    pub const GETDENTS64: i64 = 217;
    pub const SET_TID_ADDRESS: i64 = 218;
    pub const RESTART_SYSCALL: i64 = 219;
    pub const SEMTIMEDOP: i64 = 220;
    pub const FADVISE64: i64 = 221;
    pub const TIMER_CREATE: i64 = 222;
    pub const TIMER_SETTIME: i64 = 223;
    pub const TIMER_GETTIME: i64 = 224;
    pub const TIMER_GETOVERRUN: i64 = 225;
    pub const TIMER_DELETE: i64 = 226;
    pub const CLOCK_SETTIME: i64 = 227;
    pub const CLOCK_GETTIME: i64 = 228;
    pub const CLOCK_GETRES: i64 = 229;
    pub const CLOCK_NANOSLEEP: i64 = 230;
    pub const EXIT_GROUP: i64 = 231;
    pub const EPOLL_WAIT: i64 = 232;
    pub const EPOLL_CTL: i64 = 233;
    pub const TGKILL: i64 = 234;
    pub const UTIMES: i64 = 235;
    pub const MBIND: i64 = 237;
    pub const SET_MEMPOLICY: i64 = 238;
    pub const GET_MEMPOLICY: i64 = 239;
    pub const MQ_OPEN: i64 = 240;
    pub const MQ_UNLINK: i64 = 241;
    pub const MQ_TIMEDSEND: i64 = 242;
    pub const MQ_TIMEDRECEIVE: i64 = 243;
    pub const MQ_NOTIFY: i64 = 244;
    pub const MQ_GETSETATTR: i64 = 245;
    pub const WAITID: i64 = 247;
    pub const ADD_KEY: i64 = 248;
    pub const REQUEST_KEY: i64 = 249;
    pub const KEYCTL: i64 = 250;
    pub const IOPRIO_SET: i64 = 251;
    pub const IOPRIO_GET: i64 = 252;
    pub const INOTIFY_INIT: i64 = 253;
    pub const INOTIFY_ADD_WATCH: i64 = 254;
    pub const INOTIFY_RM_WATCH: i64 = 255;
    pub const MIGRATE_PAGES: i64 = 256;
    pub const OPENAT: i64 = 257;
    pub const MKDIRAT: i64 = 258;
    pub const MKNODAT: i64 = 259;
    pub const FCHOWNAT: i64 = 260;
    pub const FUTIMESAT: i64 = 261;
    pub const NEWFSTATAT: i64 = 262;
    pub const UNLINKAT: i64 = 263;
    pub const RENAMEAT: i64 = 264;
    pub const LINKAT: i64 = 265;
    pub const SYMLINKAT: i64 = 266;
    pub const READLINKAT: i64 = 267;
    pub const FCHMODAT: i64 = 268;
    pub const FACCESSAT: i64 = 269;
    pub const PSELECT6: i64 = 270;
    pub const PPOLL: i64 = 271;
    pub const UNSHARE: i64 = 272;
    pub const SET_ROBUST_LIST: i64 = 273;
    pub const GET_ROBUST_LIST: i64 = 274;
    pub const SPLICE: i64 = 275;
    pub const TEE: i64 = 276;
    pub const SYNC_FILE_RANGE: i64 = 277;
    pub const VMSPLICE: i64 = 278;
    pub const MOVE_PAGES: i64 = 279;
    pub const UTIMENSAT: i64 = 280;
    pub const EPOLL_PWAIT: i64 = 281;
    pub const SIGNALFD: i64 = 282;
    pub const TIMERFD_CREATE: i64 = 283;
    pub const EVENTFD: i64 = 284;
    pub const FALLOCATE: i64 = 285;
    pub const TIMERFD_SETTIME: i64 = 286;
    pub const TIMERFD_GETTIME: i64 = 287;
    pub const ACCEPT4: i64 = 288;
    pub const SIGNALFD4: i64 = 289;
    pub const EVENTFD2: i64 = 290;
    pub const EPOLL_CREATE1: i64 = 291;
    pub const DUP3: i64 = 292;
    pub const PIPE2: i64 = 293;
    pub const INOTIFY_INIT1: i64 = 294;
    pub const PREADV: i64 = 295;
    pub const PWRITEV: i64 = 296;
    pub const RT_TGSIGQUEUEINFO: i64 = 297;
    pub const PERF_EVENT_OPEN: i64 = 298;
    pub const RECVMMSG: i64 = 299;
    pub const FANOTIFY_INIT: i64 = 300;
    pub const FANOTIFY_MARK: i64 = 301;
    pub const PRLIMIT64: i64 = 302;
    pub const NAME_TO_HANDLE_AT: i64 = 303;
    pub const OPEN_BY_HANDLE_AT: i64 = 304;
    pub const CLOCK_ADJTIME: i64 = 305;
    pub const SYNCFS: i64 = 306;
    pub const SENDMMSG: i64 = 307;
    pub const SETNS: i64 = 308;
    pub const GETCPU: i64 = 309;
    pub const PROCESS_VM_READV: i64 = 310;
    pub const PROCESS_VM_WRITEV: i64 = 311;
    pub const KCMP: i64 = 312;
    pub const SCHED_SETATTR: i64 = 314;
    pub const SCHED_GETATTR: i64 = 315;
    pub const RENAMEAT2: i64 = 316;
    pub const SECCOMP: i64 = 317;
    pub const GETRANDOM: i64 = 318;
    pub const MEMFD_CREATE: i64 = 319;
    pub const BPF: i64 = 321;
    pub const EXECVEAT: i64 = 322;
    pub const USERFAULTFD: i64 = 323;
    pub const MEMBARRIER: i64 = 324;
    pub const MLOCK2: i64 = 325;
    pub const COPY_FILE_RANGE: i64 = 326;
    pub const PREADV2: i64 = 327;
    pub const PWRITEV2: i64 = 328;
    pub const PKEY_MPROTECT: i64 = 329;
    pub const PKEY_ALLOC: i64 = 330;
    pub const PKEY_FREE: i64 = 331;
    pub const STATX: i64 = 332;
    pub const RSEQ: i64 = 334;
    pub const PIDFD_SEND_SIGNAL: i64 = 424;
    pub const IO_URING_SETUP: i64 = 425;
    pub const OPEN_TREE: i64 = 428;
    pub const MOVE_MOUNT: i64 = 429;
    pub const FSOPEN: i64 = 430;
    pub const FSPICK: i64 = 433;
    pub const PIDFD_OPEN: i64 = 434;
    pub const CLONE3: i64 = 435;
    pub const CLOSE_RANGE: i64 = 436;
    pub const OPENAT2: i64 = 437;
    pub const PIDFD_GETFD: i64 = 438;
    pub const FACCESSAT2: i64 = 439;
    pub const PROCESS_MADVISE: i64 = 440;
    pub const EPOLL_PWAIT2: i64 = 441;
    pub const MOUNT_SETATTR: i64 = 442;
    pub const QUOTACTL_FD: i64 = 443;
    pub const LANDLOCK_CREATE_RULESET: i64 = 444;
    pub const LANDLOCK_ADD_RULE: i64 = 445;
    pub const FUTEX_WAITV: i64 = 449;
    pub const CACHESTAT: i64 = 451;
    pub const FCHMODAT2: i64 = 452;
    pub const FUTEX_WAKE: i64 = 454;
    pub const FUTEX_WAIT: i64 = 455;
    pub const FUTEX_REQUEUE: i64 = 456;
    pub const STATMOUNT: i64 = 457;
    pub const LISTMOUNT: i64 = 458;
    pub const GETXATTRAT: i64 = 464;
    pub const LISTXATTRAT: i64 = 465;
    pub const REMOVEXATTRAT: i64 = 466;
    pub const FILE_GETATTR: i64 = 468;
    pub const FILE_SETATTR: i64 = 469;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_use_names_arguments_that_exist() {
        for number in 0..512 {
            for one in uses(number).unwrap_or_default() {
                let other = match one.extent {
                    Extent::Arg(i) | Extent::Times(i, _) | Extent::Bits(i) | Extent::LenAt(i) | Extent::ValueAt(i) => i,
                    Extent::Vectors(i) | Extent::Messages(i) | Extent::Typed(i) | Extent::Waiters(i) => i,
                    _ => 0,
                };
                assert!(one.arg < 6 && other < 6, "{number}");
            }
        }
    }

    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!((nr::READ, nr::WRITEV, nr::EPOLL_WAIT), (libc::SYS_read, libc::SYS_writev, libc::SYS_epoll_wait));
        assert_eq!((nr::STATX, nr::EXECVE, nr::FUTEX), (libc::SYS_statx, libc::SYS_execve, libc::SYS_futex));
    }
}
