//! Seccomp filters that the program installs. The runtime puts instructions before them that allow
//! its own calls.
//!
//! A program that confines itself does not know of the calls that its loads and stores have become:
//! `ioctl` of a userfaultfd, `process_madvise`, over TCP the traffic with its nodes. Its filter
//! would forbid them: the program would be killed at its next fault, or fault for ever. So the
//! kernel gets this filter instead:
//!
//! ```text
//!  marked ([`crate::go`]), from elsewhere?                       yes → trap, and it goes by the filter unmarked
//!  from the gate's own part ([`crate::gate`]), and one of OWN,
//!  with arguments as the runtime's ([`conditions`])?            yes → allow
//!  the program's filter, as it is
//! ```
//!
//! Calls that the runtime makes for the program come from another part of the gate, and the
//! program's filter judges them. It judges all calls that bypass the runtime, too. It does not
//! judge calls for mappings, signal masks and signal actions: the runtime manages these for the
//! program. Filters are inherited over fork and exec, and the gate is at the same place in every
//! image. The sandbox is weaker for it. Code of an intruder finds, at a known address, an
//! instruction that may make the calls of OWN, if their arguments pass for the runtime's. Rejected:
//! refusing the filter, as a kernel without filters does. Some programs then end, and others go on
//! without a sandbox.
//!
//! A filter stays unchanged if it was installed before the run, or by a system call that the
//! runtime does not see (inline, not libc's).

use crate::bpf::{self, Seen};
use crate::call::{Call, MARK, issue};
use crate::confined;
use crate::filter::{
    ALLOW, ANY_OF, ARCH, AT_LEAST, EQUAL, IP_HIGH, IP_LOW, LOAD, NUMBER, RETURN, TRAP, X86_64, arg_high, op,
};
use crate::gate::{AFTER_PROGRAM, AFTER_RETURN, AFTER_SYSCALL, AFTER_THREAD};
use crate::guard::arity::CALLS;
use crate::guard::peek::{peek, peek_into};
use crate::net::has_marked;
use crate::process::pager;
use crate::signals::open;
use crate::threads;
use farmem_protocol::addr::{FAR_END, FAR_START};
use farmem_sys::descriptors::OPEN_MEM_FLAGS;
use farmem_sys::hold::{GET_MEMORY_MERGE, PIPE_FLAGS, SPLICE_FLAGS};
use farmem_sys::raw::{SignalsBlocked, syscall};
use farmem_sys::thread::THREAD_FLAGS;
use std::sync::atomic::{AtomicBool, Ordering};

/// Calls that the runtime makes besides [`OWN`] if pages go to a file.
const DISK_CALLS: [i64; 4] = [libc::SYS_pwrite64, libc::SYS_fallocate, libc::SYS_sync_file_range, libc::SYS_fadvise64];

/// A mask of the upper half of an address, and what a far one has there.
const FAR_HIGH: (u32, u32) = (!((FAR_START >> 32) as u32 - 1), (FAR_START >> 32) as u32);
const _: () = assert!(FAR_START.is_power_of_two() && FAR_END == 2 * FAR_START);

/// The calls that the runtime makes after its start, its threads and children included.
const OWN: [i64; 51] = [
    // Faults and evictions.
    libc::SYS_ioctl,
    libc::SYS_process_madvise,
    libc::SYS_vmsplice,
    libc::SYS_pipe2,
    libc::SYS_sysinfo,
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
    libc::SYS_munlock,
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
    // Whether two processes that share this memory also share descriptors.
    libc::SYS_kcmp,
    // Threads, children, the next image.
    libc::SYS_clone,
    libc::SYS_userfaultfd,
    libc::SYS_pidfd_open,
    libc::SYS_openat,
    libc::SYS_prctl,
    // The kinds of files of long transfers, in images after this one.
    libc::SYS_fstat,
    // Last words.
    libc::SYS_write,
    libc::SYS_exit_group,
];

/// The ways in which a call can confine the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Filter,
    Strict,
}

fn how(call: &Call) -> Option<How> {
    let (strict, filter) = match (call.nr, call.args[0]) {
        (libc::SYS_prctl, what) if what == libc::PR_SET_SECCOMP as usize => {
            (libc::SECCOMP_MODE_STRICT, libc::SECCOMP_MODE_FILTER)
        }
        (libc::SYS_seccomp, _) => (libc::SECCOMP_SET_MODE_STRICT, libc::SECCOMP_SET_MODE_FILTER),
        _ => return None,
    };
    match call.args[usize::from(call.nr == libc::SYS_prctl)] {
        mode if mode == filter as usize => Some(How::Filter),
        mode if mode == strict as usize => Some(How::Strict),
        _ => None,
    }
}

/// Whether a call confines the program.
pub fn begins(call: &Call) -> bool {
    how(call).is_some()
}

/// The properties of the run that decide which calls the runtime needs.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Some node is reached over the network.
    pub network: bool,
    /// Page numbers are recorded in a trace file for each process.
    pub records: bool,
    /// Pages go to a file, too.
    pub disk: bool,
}

static NETWORK: AtomicBool = AtomicBool::new(true);
static RECORDS: AtomicBool = AtomicBool::new(true);
static DISK: AtomicBool = AtomicBool::new(true);

/// Tells the runtime's needs of the system, before the program runs.
pub fn will_need(needs: Needs) {
    NETWORK.store(needs.network, Ordering::Relaxed);
    RECORDS.store(needs.records, Ordering::Relaxed);
    DISK.store(needs.disk, Ordering::Relaxed);
}

/// Whether a filter that the program has installed in this image may refuse `exit_group`.
static MAY_STAY: AtomicBool = AtomicBool::new(false);
static STRICT: AtomicBool = AtomicBool::new(false);

/// Whether `exit_group` ends the process, under all filters that the program has installed in this
/// image.
pub fn may_end() -> bool {
    !MAY_STAY.load(Ordering::Relaxed)
}

/// Whether a thread of this process has entered strict mode.
pub fn is_strict() -> bool {
    STRICT.load(Ordering::Relaxed)
}

/// Makes a call that confines the program ([`begins`]). Refuses (EINVAL) a filter that is too long
/// for the kernel together with the runtime's part.
pub fn begin(call: &Call) -> isize {
    if how(call) == Some(How::Strict) {
        return begin_strict(call);
    }
    // Libraries pass a null filter to ask which flags the kernel knows. The kernel answers that
    // itself, so its errors come in its own order.
    let Some(theirs) = peek::<libc::sock_fprog>(call.args[2]) else { return issue(call) };
    let _signals = SignalsBlocked::new();
    let mut filter = allowances(has_marked(), needs());
    let (ours, len) = (filter.len(), theirs.len as usize);
    if len == 0 || ours + len > libc::BPF_MAXINSNS as usize {
        return -(libc::EINVAL as isize);
    }
    filter.resize(ours + len, op(0, 0, 0, 0));
    let bytes = len * size_of::<libc::sock_filter>();
    if !peek_into(theirs.filter as usize, filter[ours..].as_mut_ptr().cast(), bytes) {
        return issue(call);
    }
    let ends = bpf::verdict(&filter[ours..], Seen { nr: libc::SYS_exit_group, from: AFTER_PROGRAM as u64, args: None });
    let mut changed = *call;
    let ret = install(&mut changed, &mut filter);
    // The filter may hold for one thread or for all. The runtime takes it to hold for all.
    if ret >= 0 {
        confined::begin(None);
        MAY_STAY.fetch_or(ends != Some(ALLOW), Ordering::Relaxed);
    }
    ret
}

fn install(call: &mut Call, filter: &mut [libc::sock_filter]) -> isize {
    pager().house.forget_first_thread();
    open::end();
    let whole = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    call.args[2] = &raw const whole as usize;
    issue(call)
}

/// Begins strict mode: only `read`, `write`, `exit` and `sigreturn` are allowed, other calls end in
/// SIGKILL. The kernel refuses strict mode to a process that has a filter, and each process here
/// has the runtime's. So a filter traps the other calls, and [`end_strictly`] ends the process.
fn begin_strict(call: &Call) -> isize {
    if call.nr == libc::SYS_seccomp && (call.args[1] != 0 || call.args[2] != 0) {
        return -(libc::EINVAL as isize);
    }
    let _signals = SignalsBlocked::new();
    let mut filter = allowances(has_marked(), needs());
    filter.extend(strict(farmem_sys::raw::getpid()));
    let args = [libc::PR_SET_SECCOMP as usize, libc::SECCOMP_MODE_FILTER as usize, 0, 0, 0, 0];
    let mut changed = Call { nr: libc::SYS_prctl, args, sp: call.sp };
    let alone = confined::alone().is_none() && threads::is_only_one();
    let ret = install(&mut changed, &mut filter);
    if ret >= 0 {
        confined::begin(Some(alone));
        MAY_STAY.store(true, Ordering::Relaxed);
        STRICT.store(true, Ordering::Relaxed);
    }
    ret
}

fn strict(pid: u32) -> Vec<libc::sock_filter> {
    let allowed = [libc::SYS_read, libc::SYS_write, libc::SYS_exit, libc::SYS_rt_sigreturn];
    // The same numbers are other calls if made by `int 0x80`.
    let mut p = vec![op(LOAD, ARCH, 0, 0), op(EQUAL, X86_64, 1, 0), op(RETURN, TRAP, 0, 0), op(LOAD, NUMBER, 0, 0)];
    for nr in allowed {
        p.extend([op(EQUAL, nr as u32, 0, 1), op(RETURN, ALLOW, 0, 0)]);
    }
    p.extend([
        op(EQUAL, libc::SYS_tgkill as u32, 0, 5),
        op(LOAD, low(0), 0, 0),
        op(EQUAL, pid, 0, 3),
        op(LOAD, low(2), 0, 0),
        op(EQUAL, libc::SIGKILL as u32, 0, 1),
        op(RETURN, ALLOW, 0, 0),
        op(RETURN, TRAP, 0, 0),
    ]);
    p
}

/// Ends the process as strict mode ends a thread that makes another call. (The whole process ends.)
pub fn end_strictly() {
    // SAFETY: no pointers.
    unsafe {
        let me = [libc::SYS_getpid, libc::SYS_gettid].map(|nr| syscall(nr, [0; 6]) as usize);
        syscall(libc::SYS_tgkill, [me[0], me[1], libc::SIGKILL as usize, 0, 0, 0]);
    }
}

const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
const GO: u16 = 0x05; // BPF_JMP | BPF_JA
/// Stands in jumps ([`GO`]) for the place where the program's filter begins, until that place is
/// known.
const BEHIND: u32 = u32::MAX;

const fn low(i: u32) -> u32 {
    16 + 8 * i
}

/// Instructions that check whether an argument's low word, under a mask, is one of these values. If
/// not, they jump to the program's filter.
fn one_of(argument: u32, mask: u32, values: &[u32]) -> Vec<libc::sock_filter> {
    let mut p = vec![op(LOAD, low(argument), 0, 0), op(AND, mask, 0, 0)];
    p.extend((0..).zip(values).map(|(i, &value)| op(EQUAL, value, (values.len() - i) as u8, 0)));
    p.push(op(GO, BEHIND, 0, 0));
    p
}

/// Conditions on the arguments of the calls of [`OWN`], where a filter can check them.
fn conditions(nr: i64, needs: Needs) -> Vec<libc::sock_filter> {
    const ALL: u32 = u32::MAX;
    match nr {
        // Requests of userfaultfd, the scan for written pages, and FIONREAD. No other request to a
        // terminal or a device.
        libc::SYS_ioctl => {
            vec![
                op(LOAD, low(1), 0, 0),
                op(EQUAL, libc::FIONREAD as u32, 4, 0),
                op(EQUAL, farmem_sys::pagemap::SCAN as u32, 3, 0),
                op(AND, 0xff00, 0, 0),
                op(EQUAL, 0xaa00, 1, 0),
                op(GO, BEHIND, 0, 0),
            ]
        }
        // A pipe that never blocks, and splicing pages into it by reference.
        libc::SYS_pipe2 => one_of(1, ALL, &[PIPE_FLAGS as u32]),
        libc::SYS_vmsplice => one_of(3, ALL, &[SPLICE_FLAGS]),
        // The target may be any thread, because a child has another pid and its parent's filter.
        // The signal must be one of the runtime's two.
        libc::SYS_tgkill => one_of(2, ALL, &[libc::SIGBUS as u32, libc::SIGSYS as u32]),
        // Calls that make code executable are judged by the program's filter.
        libc::SYS_mmap | libc::SYS_mprotect => {
            vec![op(LOAD, low(2), 0, 0), op(ANY_OF, libc::PROT_EXEC as u32, 0, 1), op(GO, BEHIND, 0, 0)]
        }
        // It may ask for limits, and set none: its third argument is null.
        libc::SYS_prlimit64 => {
            vec![
                op(LOAD, low(2), 0, 0),
                op(EQUAL, 0, 1, 0),
                op(GO, BEHIND, 0, 0),
                op(LOAD, arg_high(2), 0, 0),
                op(EQUAL, 0, 1, 0),
                op(GO, BEHIND, 0, 0),
            ]
        }
        // Far memory alone: what the program keeps from a disk elsewhere stays locked.
        libc::SYS_munlock => vec![
            op(LOAD, arg_high(0), 0, 0),
            op(AND, FAR_HIGH.0, 0, 0),
            op(EQUAL, FAR_HIGH.1, 1, 0),
            op(GO, BEHIND, 0, 0),
        ],
        libc::SYS_clone => one_of(0, ALL, &[THREAD_FLAGS as u32]),
        // The runtime's filter in the next image; and the question whether pages may be merged.
        libc::SYS_prctl => {
            let asked = [
                libc::PR_SET_NO_NEW_PRIVS,
                libc::PR_GET_NO_NEW_PRIVS,
                libc::PR_SET_SECCOMP,
                libc::PR_GET_SECCOMP,
                GET_MEMORY_MERGE,
            ];
            one_of(0, ALL, &asked.map(|what| what as u32))
        }
        // Opening a child's own memory to read it. A filter cannot check the path.
        libc::SYS_openat => {
            let record = if needs.records { farmem_pager::RECORD_FLAGS } else { OPEN_MEM_FLAGS };
            one_of(2, ALL, &[OPEN_MEM_FLAGS as u32, record as u32])
        }
        libc::SYS_socket => {
            let families: &[i32] =
                if needs.network { &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] } else { &[libc::AF_UNIX] };
            let families: Vec<u32> = families.iter().map(|&family| family as u32).collect();
            [one_of(0, ALL, &families), one_of(1, 0xf, &[libc::SOCK_STREAM as u32])].concat()
        }
        _ => Vec::new(),
    }
}

fn needs() -> Needs {
    Needs {
        network: NETWORK.load(Ordering::Relaxed),
        records: RECORDS.load(Ordering::Relaxed),
        disk: DISK.load(Ordering::Relaxed),
    }
}

/// The instructions before the program's filter. `has_marked`: some of the program's calls are
/// marked.
fn allowances(has_marked: bool, needs: Needs) -> Vec<libc::sock_filter> {
    const ELSEWHERE: u32 = BEHIND - 1;
    let mut p = vec![
        op(LOAD, ARCH, 0, 0),
        op(EQUAL, X86_64, 1, 0),
        op(GO, BEHIND, 0, 0),
        op(LOAD, IP_HIGH, 0, 0),
        op(EQUAL, (AFTER_SYSCALL >> 32) as u32, 1, 0),
        op(GO, ELSEWHERE, 0, 0),
        op(LOAD, IP_LOW, 0, 0),
        op(EQUAL, AFTER_SYSCALL as u32, 5, 0),
        op(EQUAL, AFTER_THREAD as u32, 4, 0),
        op(EQUAL, AFTER_RETURN as u32, 3, 0),
        op(EQUAL, AFTER_PROGRAM as u32, 0, 1),
        op(GO, BEHIND, 0, 0),
        op(GO, ELSEWHERE, 0, 0),
        op(LOAD, NUMBER, 0, 0),
    ];
    let on_disk = DISK_CALLS.iter().filter(|_| needs.disk);
    for &nr in OWN.iter().chain(on_disk) {
        let conditions = conditions(nr, needs);
        p.push(op(EQUAL, nr as u32, 0, conditions.len() as u8 + 1));
        p.extend(conditions);
        p.push(op(RETURN, ALLOW, 0, 0));
    }
    p.push(op(GO, BEHIND, 0, 0));
    let elsewhere = p.len();
    if has_marked {
        p.push(op(LOAD, NUMBER, 0, 0));
        p.push(op(AT_LEAST, MARK + MOST_CALLS, 2, 0));
        p.push(op(AT_LEAST, MARK, 0, 1));
        p.push(op(RETURN, TRAP, 0, 0));
    }
    let behind = p.len();
    for (i, o) in p.iter_mut().enumerate().filter(|(_, o)| o.code == GO) {
        o.k = (if o.k == ELSEWHERE { elsewhere } else { behind } - i - 1) as u32;
    }
    p
}

/// No call has a higher number.
const MOST_CALLS: u32 = 512;
const _: () = assert!(CALLS <= MOST_CALLS as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::run as verdict;

    const KILL: u32 = 0;
    const SHM: Needs = Needs { network: false, records: false, disk: false };

    fn whole(has_marked: bool, needs: Needs) -> Vec<libc::sock_filter> {
        let mut filter = allowances(has_marked, needs);
        filter.push(op(RETURN, KILL, 0, 0));
        filter
    }

    #[test]
    fn the_gate_may_make_the_runtimes_calls_and_nobody_else() {
        let filter = whole(true, SHM);
        for nr in 0..500 {
            let plain = OWN.contains(&nr) && conditions(nr, SHM).is_empty();
            for ip in [AFTER_SYSCALL, AFTER_THREAD, AFTER_RETURN] {
                let said = verdict(&filter, nr, ip as u64, [0; 6]);
                assert!(
                    if plain { said == ALLOW } else { said == KILL || OWN.contains(&nr) },
                    "call {nr} from {ip:#x}"
                );
            }
            for ip in [AFTER_PROGRAM, 0x1234, AFTER_SYSCALL ^ 1 << 40] {
                assert_eq!(verdict(&filter, nr, ip as u64, [0; 6]), KILL, "call {nr} from {ip:#x}");
            }
        }
    }

    #[test]
    fn marked_calls_are_trapped_and_other_numbers_are_not() {
        for (has_marked, of_marked) in [(true, TRAP), (false, KILL)] {
            let filter = whole(has_marked, SHM);
            let from = |ip: usize, nr: i64| verdict(&filter, nr, ip as u64, [0; 6]);
            assert_eq!(from(0x1234, i64::from(MARK) | libc::SYS_rt_sigprocmask), of_marked);
            assert_eq!(from(AFTER_SYSCALL ^ 1 << 40, i64::from(MARK)), of_marked);
            for nr in [-1, i64::from(MARK + MOST_CALLS), 0x7fff_ffff] {
                assert_eq!(from(0x1234, nr), KILL, "{nr:#x}");
            }
            for ip in [AFTER_PROGRAM, AFTER_SYSCALL, AFTER_THREAD] {
                assert_eq!(from(ip, i64::from(MARK) | libc::SYS_rt_sigprocmask), KILL);
            }
        }
    }

    #[test]
    fn strict_mode_ends_itself_and_nobody_else() {
        let filter = strict(77);
        let says = |nr, args| verdict(&filter, nr, 0x1234, args);
        for nr in 0..500 {
            let allowed = matches!(nr, libc::SYS_read | libc::SYS_write | libc::SYS_exit | libc::SYS_rt_sigreturn);
            assert_eq!(says(nr, [0; 6]), if allowed { ALLOW } else { TRAP }, "call {nr}");
        }
        for (args, said) in [([77, 5, 9], ALLOW), ([78, 5, 9], TRAP), ([77, 5, 15], TRAP)] {
            assert_eq!(says(libc::SYS_tgkill, [args[0], args[1], args[2], 0, 0, 0]), said);
        }
    }

    #[test]
    fn what_the_runtime_does_not_do_is_for_the_programs_filter() {
        let tcp = Needs { network: true, records: true, disk: true };
        let cases: [(i64, [u64; 6], bool, bool); 22] = [
            (libc::SYS_ioctl, [0, libc::FIONREAD, 0, 0, 0, 0], true, true),
            (libc::SYS_ioctl, [3, 0xc018_aa3f, 0, 0, 0, 0], true, true),
            (libc::SYS_ioctl, [3, farmem_sys::pagemap::SCAN, 0, 0, 0, 0], true, true),
            (libc::SYS_ioctl, [0, 0x5412, 0, 0, 0, 0], false, false),
            (libc::SYS_tgkill, [1, 1, libc::SIGSYS as u64, 0, 0, 0], true, true),
            (libc::SYS_tgkill, [1, 1, libc::SIGKILL as u64, 0, 0, 0], false, false),
            (libc::SYS_mprotect, [4096, 4096, 3, 0, 0, 0], true, true),
            (libc::SYS_mprotect, [4096, 4096, 5, 0, 0, 0], false, false),
            (libc::SYS_mmap, [0, 4096, 7, 0x22, 0, 0], false, false),
            (libc::SYS_prlimit64, [0, 7, 0, 5, 0, 0], true, true),
            (libc::SYS_prlimit64, [0, 7, 5, 0, 0, 0], false, false),
            (libc::SYS_prlimit64, [0, 7, 5 << 32, 0, 0, 0], false, false),
            (libc::SYS_clone, [u64::from(THREAD_FLAGS as u32), 4096, 0, 0, 0, 0], true, true),
            (libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0], false, false),
            (libc::SYS_prctl, [libc::PR_SET_SECCOMP as u64, 2, 4096, 0, 0, 0], true, true),
            (libc::SYS_prctl, [libc::PR_SET_DUMPABLE as u64, 1, 0, 0, 0, 0], false, false),
            (libc::SYS_openat, [0, 4096, OPEN_MEM_FLAGS as u64, 0, 0, 0], true, true),
            (libc::SYS_openat, [0, 4096, libc::O_RDWR as u64, 0, 0, 0], false, false),
            (libc::SYS_openat, [0, 4096, farmem_pager::RECORD_FLAGS as u64, 0, 0, 0], false, true),
            (libc::SYS_socket, [libc::AF_INET as u64, libc::SOCK_STREAM as u64 | 0x800, 0, 0, 0, 0], false, true),
            (libc::SYS_socket, [libc::AF_UNIX as u64, libc::SOCK_STREAM as u64, 0, 0, 0, 0], true, true),
            (libc::SYS_socket, [libc::AF_INET as u64, libc::SOCK_RAW as u64, 0, 0, 0, 0], false, false),
        ];
        for (nr, args, with_shm, with_tcp) in cases {
            for (run, allowed) in [(SHM, with_shm), (tcp, with_tcp)] {
                let said = verdict(&whole(true, run), nr, AFTER_SYSCALL as u64, args);
                assert_eq!(said, if allowed { ALLOW } else { KILL }, "call {nr}, {args:x?}, {run:?}");
            }
        }
    }
}
