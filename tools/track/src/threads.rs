//! The kernel's facts about a thread: its process, its tracer, where it stands.

use std::io;
use std::time::Duration;

use farmem_sys::ptrace;

/// Whether a stopped thread is in a system call that was interrupted, and that the kernel is to
/// restart, or to let fail if a handler runs before.
pub fn is_in_call(tid: u32) -> io::Result<bool> {
    let registers = ptrace::registers(tid)?;
    // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK, which no program sees.
    Ok(registers.orig_rax as i64 >= 0 && matches!(registers.rax as i64, -512 | -513 | -514 | -516))
}

/// Whether a thread that tells of a call tells of its end, not of its beginning.
pub fn has_returned(tid: u32) -> bool {
    let begins = |registers: ptrace::Registers| registers.rax as i64 == -i64::from(libc::ENOSYS);
    !is_in_call(tid).unwrap_or(true) && !ptrace::registers(tid).is_ok_and(begins)
}

/// The threads of a process.
pub fn tids(process: u32) -> Vec<u32> {
    let listed = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// A line of `/proc/TID/status`.
pub fn status_of(tid: u32, field: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let line = status.lines().find(|line| line.split(':').next() == Some(field))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The process that a thread belongs to.
pub fn process_of(tid: u32) -> Option<u32> {
    status_of(tid, "Tgid")?.parse().ok()
}

/// The tracer of a thread.
pub fn tracer_of(tid: u32) -> Option<u32> {
    status_of(tid, "TracerPid")?.split_whitespace().next()?.parse().ok().filter(|&tracer| tracer != 0)
}

fn state_of(tid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Whether a thread has ended and only waits to be waited for.
pub fn is_zombie(tid: u32) -> bool {
    matches!(state_of(tid), None | Some('Z' | 'X'))
}

/// Whether a thread is inside an exec, waiting for the other threads of its process to end.
pub fn is_in_exec(tid: u32) -> bool {
    // It may still be on its way to waiting, in which the kernel does not say what call it is in.
    for _ in 0..10 {
        let Ok(call) = std::fs::read_to_string(format!("/proc/{tid}/syscall")) else { return false };
        let number = call.split_ascii_whitespace().next().unwrap_or_default();
        if number != "running" {
            return number.parse().is_ok_and(|call: i64| matches!(call, libc::SYS_execve | libc::SYS_execveat));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    false
}

/// Whether a thread that was asked to stop will do so before it runs the program's code again.
pub fn cannot_run(tid: u32) -> bool {
    matches!(state_of(tid), None | Some('D' | 'Z' | 'X'))
}
