//! A memory group (cgroup) with a limit, for programs under test. Version 1 and 2 of the kernel's interface.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process::eventually;

/// A group below the root's, without processes. Removed when dropped.
pub struct Group {
    path: PathBuf,
}

impl Group {
    /// Makes a group whose processes may have `limit` bytes together.
    ///
    /// # Errors
    /// Says what is missing: the right to make one, or the memory controller.
    pub fn new(limit: u64) -> Result<Group> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let name = format!("farmem-test-{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let group = Group { path: root()?.join(name) };
        fs::create_dir(&group.path).with_context(|| format!("making {}", group.path.display()))?;
        group.set_limit(limit)?;
        Ok(group)
    }

    /// From now on its processes may have `limit` bytes together.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_limit(&self, limit: u64) -> Result<()> {
        let file = self.path.join(if self.is_version_2() { "memory.max" } else { "memory.limit_in_bytes" });
        fs::write(&file, limit.to_string()).with_context(|| format!("writing {}", file.display()))
    }

    /// Takes a process in. Memory that it touched before stays charged elsewhere.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn take(&self, pid: i32) -> Result<()> {
        let file = self.path.join("cgroup.procs");
        fs::write(&file, pid.to_string()).with_context(|| format!("writing {}", file.display()))
    }

    fn is_version_2(&self) -> bool {
        self.path.join("memory.max").exists()
    }

    /// The same command, whose process enters the group before it begins.
    pub fn within(&self, command: &Command) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ >\"$1\" && shift && exec \"$@\"", "sh"]).arg(self.path.join("cgroup.procs"));
        shell.arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(key, value),
                None => shell.env_remove(key),
            };
        }
        shell
    }

    /// How many of its processes the kernel has ended for want of memory.
    pub fn killed(&self) -> u64 {
        let file = if self.is_version_2() { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
    }
}

/// Where groups with a memory limit can be made.
fn root() -> Result<&'static Path> {
    let (one, two) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
    if one.join("memory.limit_in_bytes").exists() {
        return Ok(one);
    }
    let offers = fs::read_to_string(two.join("cgroup.controllers")).unwrap_or_default();
    if !offers.split_whitespace().any(|controller| controller == "memory") {
        bail!("no memory groups at /sys/fs/cgroup");
    }
    fs::write(two.join("cgroup.subtree_control"), "+memory").context("handing the memory controller down")?;
    Ok(two)
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel may need a moment to let go of the last process.
        eventually(Duration::from_secs(5), || fs::remove_dir(&self.path).is_ok());
    }
}
