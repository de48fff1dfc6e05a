//! The status file by which `farmem top` finds the nodes of a machine, and what the machine has.

use crate::{Node, StartError};
use farmem_sys::process;
use serde_json::json;
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

/// The file as docs/design/interfaces.md describes it.
fn text(node: &Node) -> String {
    let nic = node.nic();
    let members = nic.members();
    let absent = members.iter().filter(|member| !member.is_present()).count();
    let moved = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let status = json!({
        "pid": std::process::id(),
        "began": process::began(std::process::id()),
        "listen": node.addresses().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "metrics": node.metrics().map(|at| at.to_string()),
        "lend": nic.lending.limit(),
        "held_back": nic.lending.limit() - nic.most(),
        "lent": nic.lent(),
        "aside": nic.aside(),
        "used": nic.in_use(),
        "clients": members.len() - absent,
        "absent": absent,
        "bytes_read": moved(&nic.tally.read_bytes),
        "bytes_written": moved(&nic.tally.write_bytes) + moved(&nic.tally.record_bytes),
        "confined": node.confined().map(|confined| confined.to_string()),
        "draining": nic.is_draining(),
    });
    format!("{status}\n")
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
    fn a_machine_has_more_memory_than_is_available() {
        assert!(machine_ram() > available_ram());
    }
}
