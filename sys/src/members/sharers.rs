//! The processes that have this memory, as `/proc` and `kcmp` show them to the caller. Processes of
//! a PID namespace that the caller does not see are not among them.

use super::has_memory_of;
use crate::descriptors;
use crate::raw::{checked, getpid};
use std::ffi::{CStr, CString};

/// Calls `each` with the number of every process that has the caller's memory, the caller's too.
fn each_sharer(mut each: impl FnMut(u32)) {
    let own = getpid();
    each_number(c"/proc", |process| {
        if process == own || has_memory_of(own, process) == Some(true) {
            each(process);
        }
    });
}

/// Whether a task that has this memory is stopped, is stopped by a tracer, or waits for a disk.
pub(super) fn any_stands_still() -> bool {
    let mut any = false;
    each_sharer(|process| {
        let Ok(tasks) = CString::new(format!("/proc/{process}/task")) else { return };
        each_number(&tasks, |task| {
            any = any || matches!(state(process, task), Some(b'T' | b't' | b'D'));
        });
    });
    any
}

/// The letter by which /proc names a task's state.
fn state(process: u32, task: u32) -> Option<u8> {
    let path = CString::new(format!("/proc/{process}/task/{task}/stat")).ok()?;
    let fd = descriptors::open_own(&path).ok()?;
    // The state is among the first bytes: a number, a name of at most 15 bytes.
    let mut stat = [0u8; 64];
    // SAFETY: a live buffer of that length.
    let read = unsafe { checked(libc::SYS_read, [fd as usize, stat.as_mut_ptr() as usize, stat.len(), 0, 0, 0]) };
    descriptors::close(fd);
    let stat = &stat[..read.ok()?];
    let name_ends = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(name_ends + 2).copied()
}

/// Calls `each` with every entry of a directory that is a number.
fn each_number(directory: &CStr, mut each: impl FnMut(u32)) {
    /// `struct linux_dirent64`: where its own length is, and its name.
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    // Ours, by a number out of the program's way: it stays for as long as the walk takes.
    let Ok(fd) = descriptors::open_own(directory) else { return };
    let mut entries = [0u8; 2048];
    loop {
        let into = [fd as usize, entries.as_mut_ptr() as usize, entries.len(), 0, 0, 0];
        // SAFETY: a live buffer of that length.
        let Ok(len @ 1..) = (unsafe { checked(libc::SYS_getdents64, into) }) else { break };
        let mut at = 0;
        while let Some(entry) = entries[..len].get(at..).filter(|entry| entry.len() > NAME_AT) {
            let name = entry[NAME_AT..].split(|&byte| byte == 0).next().unwrap_or_default();
            if let Some(number) = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok()) {
                each(number);
            }
            at += usize::from(u16::from_ne_bytes([entry[LENGTH_AT], entry[LENGTH_AT + 1]])).max(1);
        }
    }
    descriptors::close(fd);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_shares_its_own_memory_and_a_child_that_was_started_does_not() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut seen = Vec::new();
        each_sharer(|process| seen.push(process));
        // (Other tests start children, which share the memory until they execute.)
        assert!(seen.contains(&std::process::id()) && !seen.contains(&child.id()));
        assert!(state(child.id(), child.id()).is_some());
        // SAFETY: the child's own number.
        unsafe { libc::kill(child.id() as i32, libc::SIGSTOP) };
        while state(child.id(), child.id()) != Some(b'T') {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(state(child.id(), child.id()), None);
    }
}
