//! The program that is tracked: one that runs, or one that is started.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use farmem_sys::ptrace::Follow;

use crate::threads::{process_of, status_of, tracer_of};
use crate::tracees::{Attended, Tracees};

/// Attaches to a running process.
///
/// # Errors
/// There is none, or it may not be traced: the line says why, and what to do.
pub fn attach(pid: u32, follow: Follow) -> anyhow::Result<Tracees> {
    let Some(process) = process_of(pid) else { bail!("--pid {pid}: no such process") };
    ensure!(process == pid, "--pid {pid} is a thread of process {process}: write --pid {process}");
    ensure!(pid != std::process::id(), "--pid {pid} is this farmem itself, which cannot watch itself");
    ensure!(
        std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| !maps.is_empty())
            || std::fs::metadata(format!("/proc/{pid}/exe")).is_err(),
        "--pid {pid} has no memory of its own: a zombie, or a thread of the kernel"
    );
    let mut tracees = Tracees::new(follow, false).context("cannot take signals")?;
    match tracees.attach(pid) {
        Ok(()) => Ok(tracees),
        Err(error) => bail!("{}", refusal(pid, &error)),
    }
}

/// Why a process may not be traced, and what to do.
fn refusal(pid: u32, error: &io::Error) -> String {
    if error.raw_os_error() == Some(libc::ESRCH) {
        return format!("process {pid} has ended");
    }
    if let Some(tracer) = tracer_of(pid) {
        return format!(
            "process {pid} is traced by process {tracer} already (a debugger, strace, another farmem track): end that first"
        );
    }
    if error.raw_os_error() != Some(libc::EPERM) {
        return format!("process {pid} cannot be traced: {error}");
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let scope: u32 = scope.ok().and_then(|scope| scope.trim().parse().ok()).unwrap_or(0);
    let uid = |of: u32| status_of(of, "Uid").and_then(|ids| ids.split_whitespace().next()?.parse::<u32>().ok());
    let (theirs, ours) = (uid(pid), uid(std::process::id()));
    match scope {
        3 => format!(
            "process {pid} may not be traced: kernel.yama.ptrace_scope is 3, which forbids all tracing until the next boot"
        ),
        2 => format!(
            "process {pid} may not be traced: kernel.yama.ptrace_scope is 2, which leaves tracing to root: run farmem track as root"
        ),
        _ if theirs != ours => format!(
            "process {pid} belongs to user {}: run farmem track as that user, or as root",
            theirs.map_or("?".into(), |uid| uid.to_string())
        ),
        1 => format!(
            "process {pid} may not be traced: kernel.yama.ptrace_scope is 1, which leaves a process to those who started it: start the program by farmem track -- PROGRAM, run farmem track as root, or allow it by sysctl kernel.yama.ptrace_scope=0"
        ),
        _ => format!(
            "process {pid} may not be traced: it has rights of its own (set-user-ID, file capabilities), forbids it (PR_SET_DUMPABLE), or a container does: run farmem track as root, outside"
        ),
    }
}

/// How long a program may take from its fork to its exec.
const START_WITHIN: Duration = Duration::from_secs(10);

/// Starts a program, held at its first instruction. Returns its process.
///
/// # Errors
/// It cannot be started, or may not be traced.
pub fn start(command: &[OsString], follow: Follow) -> anyhow::Result<(Tracees, u32)> {
    let mut tracees = Tracees::new(follow, true).context("cannot take signals")?;
    let name = command[0].to_string_lossy().into_owned();
    let (mut told, tell) = io::pipe()?;
    let (wait, mut release) = io::pipe()?;
    let mut program = Command::new(&command[0]);
    program.args(&command[1..]);
    tracees.signals().hand_back(&mut program, false);
    let mut ends = (tell, wait);
    #[allow(unsafe_code)]
    // SAFETY: between fork and exec the closure makes three system calls, on values that it owns.
    unsafe {
        program.pre_exec(move || {
            ends.0.write_all(&libc::getpid().to_ne_bytes())?;
            ends.1.read_exact(&mut [0])
        });
    }
    // `spawn` returns when the exec is done, and the exec waits for us.
    let starting = std::thread::spawn(move || program.spawn().map(drop));
    let mut pid = [0; 4];
    if told.read_exact(&mut pid).is_err() {
        let error = starting.join().expect("does not panic").err();
        bail!("cannot start {name}: {}", error.map_or("it said nothing".into(), |error| error.to_string()));
    }
    let pid = u32::from_ne_bytes(pid);
    if let Err(error) = tracees.attach(pid) {
        // It waits, and holds the other end of its own release.
        let _ = farmem_sys::process::send(pid, libc::SIGKILL);
        let _ = starting.join();
        bail!("{}", refusal(pid, &error));
    }
    release.write_all(&[1])?;
    // Until it is known whether the exec failed, no other code may wait for the child: `spawn` does
    // so then.
    let until = Instant::now() + START_WITHIN;
    while !starting.is_finished() {
        ensure!(Instant::now() < until, "{name} does not start");
        std::thread::sleep(Duration::from_micros(200));
    }
    if let Err(error) = starting.join().expect("does not panic") {
        bail!("cannot start {name}: {error}");
    }
    match tracees.attend(until)? {
        Attended::Event => Ok((tracees, pid)),
        _ => bail!("{name} does not start"),
    }
}
