//! Time that a machine took away: what a bound on time leaves out.
//!
//! A bound says how long something may take, not how long something else may have
//! the CPU meanwhile. The kernel counts for each thread how long it was ready to run
//! and did not (`/proc/TID/schedstat`), and for each CPU how long the machine's own
//! host kept it (`steal` in `/proc/stat`). Of all threads that are watched the one
//! that lost most counts, not their sum: what the others lost at the same time was
//! not lost twice. Where nobody counts, nothing is left out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::process::{alive, eventually, send, tree};

/// Since a moment, what processes, all that descend from them, and the calling thread have lost.
pub struct Lost {
    roots: Vec<i32>,
    since: Instant,
    /// By thread. Who is not in it had not begun.
    before: BTreeMap<PathBuf, Duration>,
    /// By CPU.
    stolen_before: Vec<Duration>,
    /// Of a thread: those that have ended cannot be asked any more.
    most: Duration,
}

impl Lost {
    /// From now on.
    pub fn by(roots: &[i32]) -> Lost {
        let before = waited_by(roots).collect();
        Lost { roots: roots.to_vec(), since: Instant::now(), before, stolen_before: stolen(), most: Duration::ZERO }
    }

    /// Takes note of what was lost until now.
    pub fn look(&mut self) {
        for (thread, waited) in waited_by(&self.roots) {
            let before = self.before.get(&thread).copied().unwrap_or_default();
            self.most = self.most.max(waited.saturating_sub(before));
        }
    }

    /// The most that a thread lost, and what a CPU did, at most all. (Some of it may be counted in both.)
    pub fn lost(&mut self) -> Duration {
        let elapsed = self.since.elapsed();
        self.look();
        let by_cpu = stolen().into_iter().zip(&self.stolen_before).map(|(now, before)| now.saturating_sub(*before));
        (self.most + by_cpu.max().unwrap_or_default()).min(elapsed)
    }

    /// How long it is since, less what was lost meanwhile.
    pub fn left(&mut self) -> Duration {
        let elapsed = self.since.elapsed();
        elapsed.saturating_sub(self.lost())
    }

    /// Kills one of the watched processes, and waits until it has ended: the kernel has closed its
    /// sockets then. The time that it waits for a CPU until then is lost, too.
    ///
    /// # Panics
    /// If it has not ended after a minute.
    pub fn kills(&mut self, pid: i32) {
        send(pid, libc::SIGKILL);
        let ended = eventually(Duration::from_secs(60), || {
            self.look();
            !alive(pid)
        });
        assert!(ended, "{pid} was killed and has not ended");
    }

    /// Waits until `done` says so; `false` when so much time passed first, what was lost not counted, or [`PATIENCE`]
    /// times as much with it.
    pub fn eventually(&mut self, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
        let mut until = self.since + limit;
        loop {
            if done() {
                return true;
            }
            if Instant::now() > until {
                until = self.since + (limit + self.lost()).min(limit * PATIENCE);
                if Instant::now() > until {
                    return false;
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Something that neither ends nor rests waits for a CPU as long as there is another that does so: there is an end to
/// that too.
pub const PATIENCE: u32 = 4;

/// How long each thread of these processes, and of those that descend from them, and the calling one have waited.
fn waited_by(roots: &[i32]) -> impl Iterator<Item = (PathBuf, Duration)> {
    let own = std::fs::read_link("/proc/thread-self").map(|thread| Path::new("/proc").join(thread));
    let processes = roots.iter().flat_map(|&root| tree(root));
    let tasks = processes.flat_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten());
    let threads = tasks.flatten().map(|task| task.path()).chain(own);
    threads.filter_map(|thread| waited(&thread).map(|waited| (thread, waited)))
}

/// What the machine's host kept from each CPU: the eighth figure of its line, in ticks of 10 ms.
fn stolen() -> Vec<Duration> {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let cpus = stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "));
    let stolen = cpus.map(|cpu| cpu.split_whitespace().nth(8).and_then(|ticks| ticks.parse().ok()).unwrap_or(0));
    stolen.map(|ticks: u64| Duration::from_millis(10 * ticks)).collect()
}

/// How long a thread waited for a CPU: the second figure, nanoseconds.
fn waited(thread: &Path) -> Option<Duration> {
    let counted = std::fs::read_to_string(thread.join("schedstat")).ok()?;
    Some(Duration::from_nanos(counted.split_whitespace().nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn what_others_run_is_lost() {
        if waited(Path::new("/proc/self")).is_none() {
            return eprintln!("skipped: this kernel does not count it");
        }
        // More threads that run than there are CPUs.
        let busy = 2 * std::thread::available_parallelism().unwrap().get();
        let mut lost = Lost::by(&[std::process::id() as i32]);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..busy {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let found = eventually(Duration::from_secs(60), || lost.lost() > Duration::from_millis(100));
            let (left, elapsed) = (lost.left(), lost.since.elapsed());
            over.store(true, Ordering::Relaxed);
            assert!(found && left + Duration::from_millis(100) <= elapsed, "{left:?} of {elapsed:?}");
        });
    }
}
