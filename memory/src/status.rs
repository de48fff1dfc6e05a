//! The status file by which `farmem top` finds the nodes of a machine, and what the machine has.

use crate::{Node, StartError};
use farmem_sys::process;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// `node-PID.json` in the runtime directory. Removed when dropped.
pub struct StatusFile {
    path: PathBuf,
    written: String,
}

impl StatusFile {
    /// Writes the file for the first time.
    pub fn create(dir: &Path, node: &Node) -> Result<StatusFile, StartError> {
        let path = dir.join(format!("node-{}.json", std::process::id()));
        let mut file = StatusFile { path, written: String::new() };
        file.update(node).map_err(|e| StartError::Status(file.path.clone(), e))?;
        Ok(file)
    }

    /// Writes it again, if anything has changed; readers see the old or the new, whole.
    pub fn update(&mut self, node: &Node) -> io::Result<()> {
        let now = text(node);
        if now == self.written {
            return Ok(());
        }
        let draft = self.path.with_extension("json.new");
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&draft)?;
        file.write_all(now.as_bytes())?;
        fs::rename(&draft, &self.path)?;
        self.written = now;
        Ok(())
    }
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// As docs/design/interfaces.md has it.
fn text(node: &Node) -> String {
    let listen: Vec<String> = node.addresses().iter().map(|at| quoted(&at.to_string())).collect();
    let metrics = node.metrics().map_or("null".into(), |at| quoted(&at.to_string()));
    let nic = node.nic();
    let members = nic.members();
    let absent = members.iter().filter(|member| !member.is_present()).count();
    let began = process::began(std::process::id()).map_or("null".into(), |ticks| ticks.to_string());
    let moved = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    format!(
        "{{\"pid\":{},\"began\":{began},\"listen\":[{}],\"metrics\":{metrics},\"lend\":{},\"lent\":{},\"used\":{},\"clients\":{},\"absent\":{},\
         \"bytes_read\":{},\"bytes_written\":{},\"draining\":{}}}\n",
        std::process::id(),
        listen.join(","),
        nic.lending.limit(),
        nic.lent(),
        nic.in_use(),
        members.len() - absent,
        absent,
        moved(&nic.tally.read_bytes),
        moved(&nic.tally.write_bytes) + moved(&nic.tally.record_bytes),
        nic.is_draining(),
    )
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out + "\""
}

/// Bytes of RAM this machine has, as /proc/meminfo tells.
pub fn machine_ram() -> Option<u64> {
    meminfo("MemTotal:")
}

/// Bytes that could be had without swapping.
pub fn available_ram() -> Option<u64> {
    meminfo("MemAvailable:")
}

fn meminfo(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted() {
        assert_eq!(quoted("unix:/a\"b\\\n"), "\"unix:/a\\\"b\\\\\\u000a\"");
        assert!(machine_ram() > available_ram());
    }
}
