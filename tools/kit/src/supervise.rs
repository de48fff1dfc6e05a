//! Programs under measurement: started, waited for, and ended whatever happens.
//!
//! A benchmark changes the machine (swap areas, memory groups, a node), so
//! Ctrl-C must not simply end it: the signal is noted, the program running at that
//! moment is ended, and the error goes up through the values whose `Drop` puts
//! everything back.

#![allow(unsafe_code)] // sigaction and kill: the standard library has neither.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// How often a running program is looked at: rarely, for looking takes time from it.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a program may take to end when asked to.
const END_WITHIN: Duration = Duration::from_secs(3);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP make [`interrupted`] fail instead of ending the process.
pub fn note_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic. Zero is a valid sigaction.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Fails once the benchmark has been told to stop.
pub fn interrupted() -> anyhow::Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted; swap areas, memory groups and nodes of the benchmark are being removed");
    }
    Ok(())
}

/// A process and its group. Dropping this value ends them.
pub struct Group(Child);

impl Group {
    /// Starts a command as a process group of its own, so that it can be ended with all it starts.
    /// If the calling thread ends without dropping this value, as by SIGKILL, the process is
    /// killed. The processes that it started are not.
    pub fn start(command: &mut Command) -> std::io::Result<Group> {
        farmem_sys::process::end_with_us(command, libc::SIGKILL);
        command.process_group(0).spawn().map(Group)
    }

    /// The process.
    pub fn process(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Asks the process itself, not those it started, to end.
    pub fn terminate(&self) {
        // SAFETY: no memory is involved; its id is taken until it is waited for, which `&self` has
        // not been used for.
        unsafe { libc::kill(self.0.id() as libc::pid_t, libc::SIGTERM) };
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: no memory is involved. The leader has not been waited for, or this is the moment
        // after: then the group's id is still taken by whoever is left of it, and unknown (ESRCH)
        // if nobody is.
        unsafe { libc::kill(-(self.0.id() as libc::pid_t), signal) };
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(libc::SIGTERM);
        let until = Instant::now() + END_WITHIN;
        while matches!(self.0.try_wait(), Ok(None)) {
            if Instant::now() > until {
                self.signal(libc::SIGKILL);
                let _ = self.0.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.signal(libc::SIGKILL);
    }
}

/// Runs a program of the benchmark to its end and returns what it printed, which must be short
/// (below 64 KiB).
pub fn output(command: &mut Command, within: Duration) -> anyhow::Result<String> {
    let shown = format!("{command:?}");
    let (status, printed, complaint) = ended(command, within)?;
    if !status.success() {
        let last = complaint.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        bail!("{status}: {last} ({shown})");
    }
    Ok(printed)
}

/// Runs such a program to its end, in whichever way it ends. Returns its status, its output, and,
/// if it failed, its standard error.
pub fn ended(command: &mut Command, within: Duration) -> anyhow::Result<(ExitStatus, String, String)> {
    interrupted()?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let shown = format!("{command:?}");
    let mut group = Group::start(command).with_context(|| format!("cannot start {shown}"))?;
    let until = Instant::now() + within;
    let status = loop {
        if let Some(status) = group.process().try_wait()? {
            break status;
        }
        interrupted()?;
        if Instant::now() > until {
            bail!("no end after {} s: {shown}", within.as_secs());
        }
        std::thread::sleep(LOOK_EVERY);
    };
    let (mut printed, mut complaint) = (String::new(), String::new());
    if !status.success() {
        // A surviving process of a failed program may hold the pipe open: end the group before
        // reading to its end.
        let stderr = group.process().stderr.take();
        drop(group);
        if let Some(mut stderr) = stderr {
            let _ = stderr.read_to_string(&mut complaint);
        }
    } else if let Some(mut stdout) = group.process().stdout.take() {
        stdout.read_to_string(&mut printed)?;
    }
    Ok((status, printed, complaint))
}

/// Time on a CPU of the processes that this one has started and seen end, and of theirs.
#[allow(unsafe_code)]
pub fn children_cpu() -> Duration {
    // SAFETY: all zeros is a value of it, and the call fills it in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_quoted() {
        let error = output(Command::new("sh").args(["-c", "echo so it is >&2; exit 3"]), END_WITHIN).unwrap_err();
        assert!(error.to_string().contains("so it is"), "{error}");
        assert_eq!(output(Command::new("echo").arg("42"), END_WITHIN).unwrap(), "42\n");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let begun = Instant::now();
        assert!(output(Command::new("sleep").arg("60"), Duration::from_millis(50)).is_err());
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_program_ends_with_who_started_it() {
        let pid = std::thread::spawn(|| {
            let group = Group::start(Command::new("sleep").arg("1000")).unwrap();
            let pid = group.0.id();
            // As after a SIGKILL: it is not dropped.
            std::mem::forget(group);
            pid
        });
        let pid = pid.join().unwrap() as libc::pid_t;
        let mut status = 0;
        // SAFETY: a live word, and a child that nobody else waits for.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(libc::WTERMSIG(status), libc::SIGKILL);
    }
}
