//! A child process with a deadline.
//!
//! Each child leads a process group of its own, writes into files (a pipe that
//! nobody drains would be a second way to hang), and is killed with its group
//! when its deadline passes or when the test drops it. It is reaped by `wait4`,
//! which tells its peak resident memory.

// `kill` and `wait4` have no safe form in std; both take plain integers and one owned struct.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::lost::{Lost, PATIENCE};

/// Within this a process that was stopped stands still, however busy the machine.
const SOON: Duration = Duration::from_secs(60);

/// How a process ended and what it said.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status or signal.
    pub status: ExitStatus,
    /// Everything it wrote to standard output.
    pub stdout: Vec<u8>,
    /// Everything it wrote to standard error, lossily as text.
    pub stderr: String,
    /// From spawn to reap.
    pub wall: Duration,
    /// Largest resident set of it or of one of its reaped children, bytes.
    pub peak_rss: u64,
}

impl Outcome {
    /// The exit code, or 128 + signal as a shell says it.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Fails with everything the process said unless it exited with 0.
    pub fn success(self) -> Result<Outcome> {
        if !self.status.success() {
            bail!("{}\n--- stdout\n{}\n--- stderr\n{}", self.status, self.stdout_tail(), self.stderr);
        }
        Ok(self)
    }

    /// The last 2 KiB of standard output as text.
    pub fn stdout_tail(&self) -> String {
        let from = self.stdout.len().saturating_sub(2048);
        String::from_utf8_lossy(&self.stdout[from..]).into_owned()
    }
}

/// A running child, killed with its whole group when dropped.
pub struct Running {
    child: Child,
    name: String,
    files: [PathBuf; 2],
    started: Instant,
    reaped: bool,
}

/// Starts a command in its own process group, output into files.
pub fn spawn(mut command: Command) -> Result<Running> {
    let name = format!("{command:?}");
    let name = name.chars().take(300).collect::<String>();
    let scratch = scratch_dir();
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let files = ["out", "err"].map(|end| scratch.join(format!("{}-{serial}.{end}", std::process::id())));
    command.process_group(0);
    command.stdout(File::create(&files[0])?).stderr(File::create(&files[1])?);
    let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    Ok(Running { child, name, files, started: Instant::now(), reaped: false })
}

/// Has a command begin with a signal ignored, or not, whatever the tests were begun with (`nohup`).
pub fn ignores(command: &mut Command, signal: i32, ignores: bool) {
    let disposition = if ignores { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: between fork and exec the closure makes a system call only, on values that it owns.
    unsafe {
        command.pre_exec(move || {
            libc::signal(signal, disposition);
            Ok(())
        });
    }
}

/// Runs a command to its end, or kills it and fails when `limit` has passed.
pub fn run(mut command: Command, limit: Duration) -> Result<Outcome> {
    command.stdin(Stdio::null());
    spawn(command)?.wait(limit)
}

impl Running {
    /// Ends one that looks after itself and then says "unharmed"; fails if it does not, within the limit.
    pub fn unharmed(self, limit: Duration) -> Result<()> {
        self.signal(libc::SIGTERM);
        let outcome = self.wait(limit)?.success()?;
        ensure!(outcome.stdout_tail().contains("unharmed"), "it said {}", outcome.stdout_tail());
        Ok(())
    }

    /// The child's process id, which is also its group's.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The pipe to its standard input, if its command asked for one; once.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// What it has written to standard error so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.files[1]).unwrap_or_default()).into_owned()
    }

    /// What it has written to standard output so far.
    pub fn stdout(&self) -> Vec<u8> {
        std::fs::read(&self.files[0]).unwrap_or_default()
    }

    /// Sends a signal to the child alone ([`send`]).
    pub fn signal(&self, signal: i32) {
        send(self.pid(), signal);
    }

    /// Waits for the end; after `limit` kills the whole group and fails. CPU time that the machine took away from it
    /// does not count, up to [`PATIENCE`] times the limit altogether.
    pub fn wait(self, limit: Duration) -> Result<Outcome> {
        self.wait_noting(limit, |_| {}).map(|(outcome, _)| outcome)
    }

    /// The same, with how much the machine took away from it until its end: taken note of again and again, since who
    /// has ended cannot be asked.
    pub fn wait_counting(self, limit: Duration) -> Result<(Outcome, Duration)> {
        let mut polls = 0;
        self.wait_noting(limit, |lost| {
            polls += 1;
            if polls % 8 == 0 {
                lost.look();
            }
        })
    }

    fn wait_noting(mut self, limit: Duration, mut each: impl FnMut(&mut Lost)) -> Result<(Outcome, Duration)> {
        let (begun, mut lost) = (Instant::now(), Lost::by(&[self.pid()]));
        let mut deadline = begun + limit;
        loop {
            if let Some((status, peak_rss)) = self.try_reap()? {
                self.reaped = true;
                let outcome = Outcome {
                    status,
                    stdout: self.stdout(),
                    stderr: self.stderr(),
                    wall: self.started.elapsed(),
                    peak_rss,
                };
                return Ok((outcome, lost.lost()));
            }
            each(&mut lost);
            if Instant::now() > deadline {
                let lost = lost.lost();
                deadline = begun + (limit + lost).min(limit * PATIENCE);
                if Instant::now() <= deadline {
                    continue;
                }
                let said = self.stderr();
                let out = self.stdout();
                let out = String::from_utf8_lossy(&out[out.len().saturating_sub(2048)..]).into_owned();
                let where_ = stuck_at(self.pid());
                bail!(
                    "no end after {limit:?} and {lost:?} without a CPU: {}\n{where_}--- stdout\n{out}\n--- stderr\n{said}",
                    self.name
                );
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    /// Whether the child has not ended yet.
    pub fn alive(&self) -> bool {
        alive(self.pid())
    }

    fn try_reap(&mut self) -> Result<Option<(ExitStatus, u64)>> {
        let mut status = 0;
        // SAFETY: rusage is plain data for which all zeros is a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are to live locals; the pid is our own unreaped child.
        let got = unsafe { libc::wait4(self.pid(), &mut status, libc::WNOHANG, &mut usage) };
        match got {
            0 => Ok(None),
            pid if pid == self.pid() => Ok(Some((ExitStatus::from_raw(status), usage.ru_maxrss as u64 * 1024))),
            _ => bail!("wait4: {}", std::io::Error::last_os_error()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The group may outlive its leader: a program's own children.
        send(-self.pid(), libc::SIGKILL);
        if !self.reaped {
            send(self.pid(), libc::SIGKILL);
            let until = Instant::now() + Duration::from_secs(60);
            while let Ok(None) = self.try_reap() {
                if Instant::now() > until {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Sends a signal to a process, or to a group when the id is negative. After SIGSTOP to a process
/// it waits until every thread stands still: one that has not seen the signal yet goes on.
pub fn send(pid: i32, signal: i32) {
    // SAFETY: kill takes two integers; our callers name processes that they started.
    unsafe { libc::kill(pid, signal) };
    if signal == libc::SIGSTOP && pid > 0 {
        let rests = |state: char| matches!(state, 'T' | 't' | 'Z' | 'X');
        assert!(eventually(SOON, || states(pid).all(rests)), "{pid} does not stop within {SOON:?}");
    }
}

/// The states of a process's threads, as `/proc` has them. One that ends meanwhile is left out.
fn states(pid: i32) -> impl Iterator<Item = char> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    stats.filter_map(|stat| stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next()))
}

/// Whether a process has not ended yet. A zombie has ended, but not while one of its threads still
/// runs: that thread holds the process's descriptors and memory.
pub fn alive(pid: i32) -> bool {
    states(pid).any(|state| !matches!(state, 'Z' | 'X'))
}

/// Bytes that wait in TCP sockets of this machine at a port, of IPv4, until their peers take them.
pub fn unsent(port: u16) -> u64 {
    let own = format!(":{port:04X}");
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let queues = words.get(4).filter(|_| words[1].ends_with(&own));
        queues.and_then(|queues| u64::from_str_radix(queues.split(':').next()?, 16).ok())
    };
    std::fs::read_to_string("/proc/net/tcp").unwrap_or_default().lines().skip(1).filter_map(of).sum()
}

/// Kills a process, and waits until it has ended: the kernel has closed its sockets then.
///
/// # Panics
/// If it has not ended after a minute.
pub fn kill(pid: i32) {
    send(pid, libc::SIGKILL);
    assert!(eventually(Duration::from_secs(60), || !alive(pid)), "{pid} was killed and has not ended");
}

/// Whether each thread of a process sleeps. If nothing is on its way to the process, it has done
/// all that it was asked.
pub fn asleep(pid: i32) -> bool {
    states(pid).all(|state| state == 'S')
}

/// The processes that descend from one, itself included.
pub fn tree(root: i32) -> Vec<i32> {
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let pid = found[next];
        next += 1;
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|c| c.parse::<i32>().ok()));
        }
    }
    found
}

/// Waits until `done` says so; `false` when `limit` passed first.
pub fn eventually(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if done() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// CPU time that a process has used, user and system, all threads.
pub fn cpu_time(pid: i32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    // Fields 14 and 15 of proc(5), counted from the state (3); clock ticks are 10 ms on Linux.
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// A directory for one test's files, removed when dropped.
pub struct TempDir(PathBuf);

impl TempDir {
    /// A fresh empty directory.
    pub fn new(what: &str) -> Result<TempDir> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("farmem-{what}-{}-{serial}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(TempDir(path))
    }

    /// Its path.
    pub fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn scratch_dir() -> PathBuf {
    let dir = std::env::temp_dir().join("farmem-tests");
    let _ = std::fs::create_dir_all(&dir);
    dir
}

/// For a report of a hang: where each thread of each process of a tree sleeps.
fn stuck_at(root: i32) -> String {
    let mut lines = String::new();
    for pid in tree(root) {
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let read = |f: &str| std::fs::read_to_string(task.path().join(f)).unwrap_or_default();
            let state = read("stat").rsplit(')').next().unwrap_or("").trim().chars().next().unwrap_or('?');
            lines.push_str(&format!(
                "  {pid} {} {state} wchan={} syscall={}\n",
                read("comm").trim(),
                read("wchan"),
                read("syscall").trim()
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The main thread of this program ends alone; the other one ends the process when it is told.
    const LEADER_ENDS: &str = "
import ctypes, os, sys, threading
threading.Thread(target=lambda: (sys.stdin.readline(), os._exit(0))).start()
ctypes.CDLL(None).syscall(60, 0)
";

    #[test]
    fn a_zombie_whose_other_threads_run_has_not_ended() {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", LEADER_ENDS]).stdin(Stdio::piped());
        let mut program = spawn(command).unwrap();
        let leader = format!("/proc/{}/stat", program.pid());
        let is_zombie = || std::fs::read_to_string(&leader).is_ok_and(|stat| stat.contains(") Z "));
        assert!(eventually(Duration::from_secs(60), is_zombie), "its main thread has not ended");
        assert!(program.alive());
        drop(program.child.stdin.take());
        assert!(eventually(Duration::from_secs(60), || !program.alive()));
        assert!(is_zombie(), "nobody has reaped it");
    }
}
