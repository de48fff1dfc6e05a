//! Ends processes whose pages nobody brings any more (`--fault thread`).
//!
//! A handler thread ends with its process, by an exec too. A process that shares the memory without
//! being a thread can go on (members.md). Its next fault would wait in the kernel for ever, and
//! nothing in the program could see that. `farmem run` and its keeper outlive the program and share
//! nothing with it. They look once a second.
//!
//! A task is *stranded* if it sleeps in a fault (by the kernel function that it sleeps in), its
//! process has far memory, and no task that has this memory is a handler thread. A handler thread
//! has its name before any code of the program can fault. So one look suffices; the second spares a
//! line about a process that ends together with its maker.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farmem_run::Faults;
use farmem_sys::members::has_memory_of;
use farmem_sys::process;
use farmem_sys::thread::HANDLER;

use super::keeper::has_mapped;

/// How often it is looked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How far apart the two looks are when the program has ended.
const LAST_LOOKS: Duration = Duration::from_millis(100);
/// How long the end of a process that was killed is waited for.
const KILLED: Duration = Duration::from_secs(1);

/// A process, by number and beginning.
type Known = (u32, u64);

/// Processes that the last look found without their handler thread, and when to look next.
#[derive(Debug)]
pub struct Stranded {
    /// Whether there are handler threads.
    by_thread: bool,
    /// The run's file of counters, which each process with far memory has mapped.
    counters: PathBuf,
    suspects: BTreeSet<Known>,
    next: Option<Instant>,
}

impl Stranded {
    /// Nothing was seen yet, in a run that faults like this.
    pub fn new(fault: Faults, counters: &Path) -> Stranded {
        let (by_thread, counters) = (fault == Faults::Thread, counters.to_owned());
        Stranded { by_thread, counters, suspects: BTreeSet::new(), next: None }
    }

    /// Looks at all descendants of this process, if it is time. Ends those that are stranded, and
    /// says so.
    pub fn look(&mut self) {
        for process in self.look_at(process::descendants) {
            eprintln!(
                "farmem: process {process} has been ended: the process that brought its far memory has ended \
                 (without --fault thread each brings its own)"
            );
        }
    }

    /// Looks at these processes, if it is time. Ends those that are stranded, and gives their
    /// numbers.
    pub fn look_at<I: IntoIterator<Item = u32>>(&mut self, processes: impl FnOnce() -> I) -> Vec<u32> {
        let now = Instant::now();
        if !self.by_thread || self.next.is_some_and(|next| now < next) {
            return Vec::new();
        }
        self.next = Some(now + LOOK_EVERY);
        let seen = processes().into_iter().filter(|&one| self.is_stranded(one));
        let seen = seen.filter_map(|one| Some((one, process::began(one)?))).collect();
        let stranded = self.twice(seen);
        stranded.iter().for_each(|&one| end(one));
        stranded.into_iter().map(|(process, _)| process).collect()
    }

    /// As [`Stranded::look`], twice within a moment, when the program has ended.
    pub fn last_look(&mut self) {
        for _ in 0..2 {
            self.next = None;
            self.look();
            if self.suspects.is_empty() {
                break;
            }
            std::thread::sleep(LAST_LOOKS);
        }
    }

    /// Whether a task of this process waits for a far page that nobody brings. `false` where the
    /// system does not tell.
    fn is_stranded(&self, process: u32) -> bool {
        let Some(task) = sleeper(process) else { return false };
        // Programs without far memory may have a userfaultfd of their own.
        if handler(process).is_some() || !has_mapped(process, &self.counters) || has_memory_of(task, task) != Some(true)
        {
            return false;
        }
        // A process of the run that has changed its user may be one that cannot be compared: it counts
        // as one that brings the page. Other runs' processes do not.
        let kin: BTreeSet<u32> = process::descendants().into_iter().collect();
        let brings = |process: u32| {
            let same = handler(process).map(|handler| has_memory_of(handler, task));
            same.is_some_and(|same| same.unwrap_or_else(|| kin.contains(&process)))
        };
        !process::all().any(brings)
    }

    /// Those of `seen` that the last look has seen too. The others are suspects from now on.
    fn twice(&mut self, seen: BTreeSet<Known>) -> Vec<Known> {
        let (again, new) = seen.into_iter().partition::<BTreeSet<_>, _>(|one| self.suspects.contains(one));
        self.suspects = new;
        again.into_iter().collect()
    }
}

fn end((process, began): Known) {
    let until = Instant::now() + KILLED;
    // The number may be another's by now.
    let is_there = || process::began(process) == Some(began);
    if is_there() && process::send(process, libc::SIGKILL).is_ok() {
        while is_there() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A task of this process that waits for a page.
fn sleeper(process: u32) -> Option<u32> {
    let sleeps = |&task: &u32| about(process, task, "wchan").is_some_and(|place| place == "handle_userfault");
    process::tasks(process).into_iter().find(sleeps)
}

/// The process's handler thread.
fn handler(process: u32) -> Option<u32> {
    let name = HANDLER.to_str().ok()?;
    process::tasks(process).into_iter().find(|&task| about(process, task, "comm").is_some_and(|comm| comm == name))
}

fn about(process: u32, task: u32, what: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{process}/task/{task}/{what}")).ok()?;
    Some(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ended_when_two_looks_in_turn_have_seen_it() {
        let mut stranded = Stranded::new(Faults::Thread, Path::new("none"));
        let mut look = |seen: &[Known]| stranded.twice(seen.iter().copied().collect());
        assert_eq!(look(&[(7, 1), (8, 1)]), []);
        assert_eq!(look(&[(7, 2)]), [], "another process with the number, and one that went on");
        assert_eq!(look(&[(7, 2), (8, 1)]), [(7, 2)]);
        assert_eq!(look(&[(8, 1)]), [(8, 1)]);
    }

    #[test]
    fn a_process_that_sleeps_for_another_reason_is_not_stranded() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(process::descendants().contains(&child.id()));
        assert!(sleeper(child.id()).is_none() && handler(child.id()).is_none());
        end((child.id(), process::began(child.id()).unwrap()));
        assert_eq!(process::began(child.id()), None);
        child.wait().unwrap();
    }
}
