//! Processes for a supervisor: signals as values, children, and the supervisor's own end.
//!
//! Signals are blocked and taken one at a time by [`Signals::next`], so that a supervisor is an
//! ordinary loop with no handler and no self-pipe. Signals that were blocked or ignored before must
//! be so in the program too: [`Signals::hand_back`] arranges that for a child.

use crate::raw::{Errno, checked};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The signals of this process, blocked since [`Signals::take`].
pub struct Signals {
    taken: libc::sigset_t,
    before: libc::sigset_t,
    /// Whether a terminal that goes away ends this process: not under `nohup`.
    hangs_up: bool,
}

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its number.
    pub number: i32,
    /// Whether a process sent it (`kill`, `sigqueue`); otherwise the kernel did: a terminal's keys,
    /// a child's change.
    pub sent: bool,
}

/// Calls `begin` with every signal blocked, so that threads which it starts handle none. A library
/// uses it for its threads in somebody else's program.
pub fn deaf<T>(begin: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are initialized by the calls that are given them, which do not fail with
    // these arguments.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let begun = begin();
    // SAFETY: as it was.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    begun
}

/// The command gets this signal when the calling thread ends in any way, by SIGKILL too. A command
/// that changes its user (setuid) loses this.
pub fn end_with_us(command: &mut Command, signal: i32) {
    let us = std::process::id();
    // SAFETY: between fork and exec the closure only makes system calls, on numbers copied before.
    unsafe {
        command.pre_exec(move || {
            end_with(us, signal);
            Ok(())
        });
    }
}

/// The calling process is sent a signal when its parent ends, which `parent` was.
fn end_with(parent: u32, signal: i32) {
    // SAFETY: system calls without memory.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong);
        // The parent may have gone before the line above: then nobody would tell us.
        if libc::getppid() as u32 != parent {
            libc::raise(signal);
        }
    }
}

impl Signals {
    /// Blocks every signal that can be blocked and is not a fault of the thread's own, for this
    /// thread and all that it starts. Call it before any thread exists.
    pub fn take() -> io::Result<Signals> {
        let mut taken = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigfillset and pthread_sigmask initialize the sets they are given; of a sigaction
        // zeros are valid.
        unsafe {
            libc::sigfillset(taken.as_mut_ptr());
            for fault in [
                libc::SIGSEGV,
                libc::SIGBUS,
                libc::SIGFPE,
                libc::SIGILL,
                libc::SIGTRAP,
                libc::SIGSYS,
                libc::SIGABRT,
                libc::SIGPIPE,
            ] {
                libc::sigdelset(taken.as_mut_ptr(), fault);
            }
            // Ignored, as some starters leave it, it would make children vanish unwaited.
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            let failed = libc::pthread_sigmask(libc::SIG_BLOCK, taken.as_ptr(), before.as_mut_ptr());
            if failed != 0 {
                return Err(io::Error::from_raw_os_error(failed));
            }
            let mut at_hangup = MaybeUninit::<libc::sigaction>::zeroed();
            libc::sigaction(libc::SIGHUP, std::ptr::null(), at_hangup.as_mut_ptr());
            let hangs_up = at_hangup.assume_init().sa_sigaction != libc::SIG_IGN;
            Ok(Signals { taken: taken.assume_init(), before: before.assume_init(), hangs_up })
        }
    }

    /// Whether a signal asks a daemon to end: SIGTERM, SIGINT, and SIGHUP unless it was ignored
    /// when the process began (a blocked signal arrives even so).
    pub fn asks_to_end(&self, arrived: Arrived) -> bool {
        match arrived.number {
            libc::SIGTERM | libc::SIGINT => true,
            libc::SIGHUP => self.hangs_up,
            _ => false,
        }
    }

    /// Waits for the next signal, at most `limit`; `None` when none came.
    pub fn next(&self, limit: Duration) -> Option<Arrived> {
        Signals::wait(&self.taken, limit)
    }

    /// Waits for a signal that asks to end, at most `limit`. Others stay, for [`Signals::next`].
    pub fn end_within(&self, limit: Duration) -> Option<Arrived> {
        let mut ends = MaybeUninit::<libc::sigset_t>::uninit();
        let hangs_up = self.hangs_up.then_some(libc::SIGHUP);
        // SAFETY: sigemptyset initializes the set that it is given.
        let ends = unsafe {
            libc::sigemptyset(ends.as_mut_ptr());
            for end in [libc::SIGTERM, libc::SIGINT].into_iter().chain(hangs_up) {
                libc::sigaddset(ends.as_mut_ptr(), end);
            }
            ends.assume_init()
        };
        Signals::wait(&ends, limit)
    }

    fn wait(which: &libc::sigset_t, limit: Duration) -> Option<Arrived> {
        let limit = libc::timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: all three are live for the call; zero is a valid siginfo.
        let number = unsafe { libc::sigtimedwait(which, info.as_mut_ptr(), &limit) };
        if number <= 0 {
            return None;
        }
        // SAFETY: filled in by the call.
        let info = unsafe { info.assume_init() };
        Some(Arrived { number, sent: info.si_code <= 0 })
    }

    /// A descriptor that can be read while a signal is there for [`Signals::next`], so that a service
    /// waits for signals beside its sockets. Nothing is to be read from it.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: a set that the kernel wrote, live for the call.
        let fd = unsafe { libc::signalfd(-1, &self.taken, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just opened, and nothing else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// The calling thread has the mask again that it had before. A signal that came meanwhile has
    /// its effect now.
    pub fn release(self) {
        // SAFETY: a set that the kernel wrote.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }

    /// Lets a command start with the signal mask that this process was started with, and die with
    /// the calling thread: by SIGKILL, if `with_parent`.
    pub fn hand_back(&self, command: &mut Command, with_parent: bool) {
        let before = self.before;
        let parent = std::process::id();
        // SAFETY: between fork and exec the closure only makes system calls, on values copied
        // before.
        unsafe {
            command.pre_exec(move || {
                libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
                // Mapped from below, a program's libraries would lie where its far memory is to be
                // (`setarch -L`).
                let persona = libc::personality(0xffff_ffff);
                if persona >= 0 && persona & libc::ADDR_COMPAT_LAYOUT != 0 {
                    libc::personality((persona & !libc::ADDR_COMPAT_LAYOUT) as libc::c_ulong);
                }
                if with_parent {
                    end_with(parent, libc::SIGKILL);
                }
                Ok(())
            });
        }
    }
}

/// A child's change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It ended with this status.
    Exited(i32),
    /// This signal ended it.
    Killed(i32),
    /// This signal stopped it.
    Stopped(i32),
    /// It runs again.
    Continued,
}

/// A change of this child that was not yet told, if any. Does not wait.
pub fn change_of(child: u32) -> io::Result<Option<Change>> {
    wait_for(child as i32).map(|told| told.map(|(_, change)| change))
}

/// A change of any child that was not yet told, with its pid. Does not wait.
pub fn any_change() -> io::Result<Option<(u32, Change)>> {
    wait_for(-1)
}

fn wait_for(pid: i32) -> io::Result<Option<(u32, Change)>> {
    let mut status = 0;
    // SAFETY: `status` is live.
    let told = unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED) };
    let change = match told {
        -1 => return Err(io::Error::last_os_error()),
        0 => return Ok(None),
        _ if libc::WIFEXITED(status) => Change::Exited(libc::WEXITSTATUS(status)),
        _ if libc::WIFSIGNALED(status) => Change::Killed(libc::WTERMSIG(status)),
        _ if libc::WIFSTOPPED(status) => Change::Stopped(libc::WSTOPSIG(status)),
        _ => Change::Continued,
    };
    Ok(Some((told as u32, change)))
}

/// Makes this process the parent of descendants whose own parents end, as `init` is otherwise.
pub fn adopt_orphans() {
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// The children of this process, zombies included; none where the kernel does not tell.
pub fn children() -> Vec<u32> {
    children_of("self")
}

fn children_of(process: &str) -> Vec<u32> {
    let tasks = format!("/proc/{process}/task");
    let lists = numbers(&tasks).filter_map(|task| std::fs::read_to_string(format!("{tasks}/{task}/children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// The children of this process, their children, and so on, zombies included; none where the kernel
/// does not tell.
pub fn descendants() -> Vec<u32> {
    let mut found = children();
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        // One that is adopted meanwhile may be listed twice.
        found.extend(children_of(&parent.to_string()));
        at += 1;
    }
    found
}

/// The threads of a process, by their numbers.
pub fn tasks(pid: u32) -> Vec<u32> {
    numbers(&format!("/proc/{pid}/task")).collect()
}

/// All processes that this one can see.
pub fn all() -> impl Iterator<Item = u32> {
    numbers("/proc")
}

fn numbers(directory: &str) -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Sends a signal to a process. An error means that it is gone, or not ours to signal.
pub fn send(pid: u32, signal: i32) -> io::Result<()> {
    // For `kill`, 0 and negative numbers are groups, and -1 is every process. A filter that forbids
    // `getpid` may have made it answer such a number.
    let one = i32::try_from(pid).ok().filter(|&pid| pid > 0);
    let one = one.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: no memory is involved.
    if unsafe { libc::kill(one, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether a process of this number exists (perhaps as a zombie).
pub fn exists(pid: u32) -> bool {
    send(pid, 0).is_ok() || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// When a process began, in ticks since the machine did; `None` when it is gone, or a zombie. With
/// it a pid names one process for good.
pub fn began(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    fields.nth(18)?.parse().ok().filter(|_| !matches!(state, "Z" | "X"))
}

/// The name of this machine, as the kernel has it.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// A user's name by `/etc/passwd`; the number if it has none there.
pub fn user_name(uid: u32) -> String {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut users = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let known = users.find(|fields| fields.get(2).is_some_and(|number| number.parse() == Ok(uid)));
    known.map_or_else(|| uid.to_string(), |fields| fields[0].to_owned())
}

/// Stops this process until somebody continues it, as job control stops a whole job.
pub fn stop_self() {
    // SAFETY: no memory is involved.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Ends this process by a signal, without a core dump, so that the parent sees how the program
/// ended.
pub fn end_by(signal: i32) -> ! {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: default dispositions and an own mask; the structures are live for their calls.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::signal(signal, libc::SIG_DFL);
        let mut only = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(only.as_mut_ptr());
        libc::sigaddset(only.as_mut_ptr(), signal);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, only.as_ptr(), std::ptr::null_mut());
    }
    // A signal whose default is not to end a process cannot have ended the program either.
    std::process::exit(128 + signal)
}

/// Lets this process have as many descriptors as its hard limit allows. Returns how many.
pub fn raise_descriptor_limit() -> u64 {
    raised(libc::RLIMIT_NOFILE, false)
}

/// Lets this process make files as long as may be; without any limit, where it has the privilege.
/// Memory that is shared by descriptor (memfd) counts as a file. Returns the limit, bytes.
pub fn raise_file_limit() -> u64 {
    raised(libc::RLIMIT_FSIZE, true)
}

/// How long a file of this process can be made, at most: the hard limit, bytes.
pub fn file_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live structure.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    limit.rlim_max
}

/// Lets this process lock as much memory as may be, as RDMA cards do with what they reach; without
/// any limit, where it has the privilege.
pub fn raise_lock_limit() -> u64 {
    raised(libc::RLIMIT_MEMLOCK, true)
}

fn raised(resource: libc::__rlimit_resource_t, beyond: bool) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: live structures for all calls.
    unsafe {
        libc::getrlimit(resource, &mut limit);
        let none = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        if beyond && libc::setrlimit(resource, &none) == 0 {
            return libc::RLIM_INFINITY;
        }
        let most = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
        if libc::setrlimit(resource, &most) == 0 { limit.rlim_max } else { limit.rlim_cur }
    }
}

/// Fills a buffer with bits that nobody can guess.
pub fn random_bytes(mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        // SAFETY: a live slice.
        match unsafe { checked(libc::SYS_getrandom, [into.as_mut_ptr() as usize, into.len(), 0, 0, 0, 0]) } {
            Ok(n) => into = &mut into[n..],
            Err(Errno(libc::EINTR)) => {}
            Err(e) => return Err(io::Error::from_raw_os_error(e.0)),
        }
    }
    Ok(())
}

/// The user that this process acts for.
pub fn user() -> u32 {
    // SAFETY: always succeeds.
    unsafe { libc::geteuid() }
}

/// The group that this process acts for.
pub fn group() -> u32 {
    // SAFETY: always succeeds.
    unsafe { libc::getegid() }
}

/// Whether this process may make files in a directory, as the user it acts for. A read-only file
/// system refuses root, too.
pub fn may_write(directory: &Path) -> io::Result<()> {
    let path = c_path(directory)?;
    let said = |answer: i32| if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    let wanted = libc::W_OK | libc::X_OK;
    // SAFETY: a terminated path, which the calls only read.
    unsafe {
        match said(libc::faccessat(libc::AT_FDCWD, path.as_ptr(), wanted, libc::AT_EACCESS)) {
            // Older container profiles do not know `faccessat2`, and libc does not take that for an
            // answer.
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => said(libc::access(path.as_ptr(), wanted)),
            answer => answer,
        }
    }
}

/// Whether files in this directory cannot be mapped executable (`noexec`).
pub fn is_noexec(directory: &Path) -> io::Result<bool> {
    let path = c_path(directory)?;
    let mut about = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: both are live; the call fills `about` in when it succeeds.
    unsafe {
        if libc::statvfs(path.as_ptr(), about.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(about.assume_init().f_flag & libc::ST_NOEXEC != 0)
    }
}

/// Whether a program gains capabilities by being executed (`setcap`).
pub fn has_capabilities(program: &Path) -> bool {
    let Ok(path) = c_path(program) else { return false };
    // SAFETY: asks only for the length.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

fn c_path(path: &Path) -> io::Result<std::ffi::CString> {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_ends_is_told_once() {
        let child = Command::new("true").spawn().unwrap().id();
        let change = loop {
            if let Some(change) = change_of(child).unwrap() {
                break change;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(change, Change::Exited(0));
        assert!(change_of(child).is_err());
    }

    /// Both are of this thread alone: others of the test's process have them not blocked.
    #[test]
    fn a_wait_for_an_end_leaves_other_signals() {
        let signals = Signals::take().unwrap();
        let raise = |signal| {
            // SAFETY: no memory is involved; the signal is blocked in this thread.
            unsafe { libc::raise(signal) };
        };
        raise(libc::SIGUSR1);
        assert_eq!(signals.end_within(Duration::ZERO), None);
        raise(libc::SIGTERM);
        let number = |arrived: Option<Arrived>| arrived.map(|arrived| arrived.number);
        assert_eq!(number(signals.end_within(Duration::from_secs(60))), Some(libc::SIGTERM));
        assert_eq!(number(signals.next(Duration::from_secs(60))), Some(libc::SIGUSR1));
        signals.release();
    }

    #[test]
    fn a_process_exists_while_it_runs() {
        assert!(exists(std::process::id()));
        assert!(!exists(i32::MAX as u32));
        // To the kernel these are everybody, and this process's group.
        assert!(!exists(-1i32 as u32) && !exists(0));
    }
}
