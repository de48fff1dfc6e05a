//! One program, once, under one system: started, fed, read to its end, compared, timed.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Serialize;

use super::System;
use super::programs::Job;
use crate::paging::systems::Node;
use crate::swap;
use farmem_kit::supervise;

/// Short against the shortest run, long against what looking costs.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How long a server may take to end once asked: its far memory is dropped, not moved.
const END_WITHIN: Duration = Duration::from_secs(20);
/// A kernel that kills a program in its group may let the next attempt live: it depends on which pages are in use
/// at the moment when it looks for one to swap out.
const ATTEMPTS: usize = 3;
/// The least `--local` that the runtime accepts.
const LEAST_LOCAL: u64 = 2 << 20;

/// How much memory a run may have near.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Allowance {
    /// For farmem: `--local`, bytes.
    pub local: u64,
    /// For swap: the memory group's limit, bytes.
    pub limit: u64,
}

impl Allowance {
    /// A share of what the program has far, beside what it has that is never far.
    pub fn of(far: u64, beside: u64, share: f64) -> Allowance {
        let local = ((far as f64 * share) as u64).max(LEAST_LOCAL);
        Allowance { local, limit: local + beside }
    }
}

/// How a run ended.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Run {
    /// By itself, with the right output.
    Ended {
        /// From its start to its end; of a server, its clients' time.
        wall_ns: u64,
        /// On a CPU, it and all that it started, its runtime and its node included; under farmem only, else 0.
        cpu_ns: u64,
        /// farmem's own figures; null under other systems.
        stats: serde_json::Value,
    },
    /// By us: it took longer than a run may.
    GivenUp {
        /// After so long.
        after_ns: u64,
    },
    /// By the kernel, at every attempt: it found no page of the program's to swap out, though there was swap free.
    Killed,
}

impl Run {
    /// Its time, if it ended by itself.
    pub fn wall_ns(&self) -> Option<f64> {
        match self {
            Run::Ended { wall_ns, .. } => Some(*wall_ns as f64),
            Run::GivenUp { .. } | Run::Killed => None,
        }
    }

    /// Bytes that it sent to nodes, where it ran on farmem and sent any.
    pub fn sent(&self) -> Option<f64> {
        match self {
            Run::Ended { stats, .. } => stats["wire_out"].as_f64().filter(|&sent| sent > 0.0),
            Run::GivenUp { .. } | Run::Killed => None,
        }
    }

    /// Its time on a CPU, where that is known.
    pub fn cpu_ns(&self) -> Option<f64> {
        match self {
            Run::Ended { cpu_ns, .. } => (*cpu_ns > 0).then_some(*cpu_ns as f64),
            Run::GivenUp { .. } | Run::Killed => None,
        }
    }
}

/// Runs programs.
pub struct Runner<'a> {
    /// The binary.
    pub farmem: &'a Path,
    /// For what a run writes.
    pub dir: &'a Path,
    /// A run may take this long.
    pub limit: Duration,
    /// For [`System::Zram`].
    pub zram: Option<swap::Area>,
    /// For [`System::Mirror`], two; [`System::Tcp`] uses the first, or one that `farmem run` starts.
    pub nodes: Vec<Node>,
}

impl Runner<'_> {
    /// Runs a job. `expected` is what it must print; without it, what it prints is returned.
    ///
    /// # Errors
    /// It failed, or printed something else; Ctrl-C.
    pub fn run(
        &self,
        job: &Job,
        system: System,
        allowance: Allowance,
        expected: Option<&[u8]>,
    ) -> anyhow::Result<(Run, Vec<u8>)> {
        match system {
            System::Native => {
                let mut command = Command::new(&job.command[0]);
                command.args(&job.command[1..]);
                self.finish(job, command, expected)
            }
            System::Shm => self.far(job, &["--transport", "shm"], allowance.local, expected),
            System::Tcp | System::Mirror => {
                let used = if system == System::Mirror { &self.nodes[..] } else { self.nodes.get(..1).unwrap_or(&[]) };
                let mut options = vec!["--transport", "tcp"];
                options.extend(used.iter().flat_map(|node| ["--node", node.address()]));
                if system == System::Mirror {
                    options.extend(["--protect", "mirror"]);
                }
                self.far(job, &options, allowance.local, expected)
            }
            System::Zram => self.swapped(job, allowance.limit, expected),
        }
    }

    /// Runs a job by `farmem run` with these options.
    ///
    /// # Errors
    /// As [`Runner::run`].
    pub fn far(
        &self,
        job: &Job,
        options: &[&str],
        local: u64,
        expected: Option<&[u8]>,
    ) -> anyhow::Result<(Run, Vec<u8>)> {
        let stats = self.dir.join("stats.json");
        let _ = fs::remove_file(&stats);
        let mut command = Command::new(self.farmem);
        command.args(["run", "--no-settings", "--local", &local.to_string()]).args(options);
        command.arg("--stats").arg(format!("json:{}", stats.display())).arg("--").args(&job.command);
        let before = supervise::children_cpu();
        let (run, printed) = self.finish(job, command, expected)?;
        let cpu_ns = (supervise::children_cpu() - before).as_nanos() as u64;
        Ok(match run {
            Run::Ended { wall_ns, .. } => {
                let text = fs::read(&stats).context("farmem run wrote no figures")?;
                let stats = serde_json::from_slice(&text).context("the figures of farmem run")?;
                (Run::Ended { wall_ns, cpu_ns, stats }, printed)
            }
            run => (run, printed),
        })
    }

    fn swapped(&self, job: &Job, limit: u64, expected: Option<&[u8]>) -> anyhow::Result<(Run, Vec<u8>)> {
        let area = self.zram.as_ref().context("no swap area")?;
        for _attempt in 0..ATTEMPTS {
            let group = swap::Group::new(limit)?;
            let _on = area.on()?;
            match self.grouped(job, &group, expected) {
                Err(_) if group.killed() > 0 => supervise::interrupted()?,
                ended => return ended,
            }
        }
        Ok((Run::Killed, Vec::new()))
    }

    /// Runs a job in a memory group.
    pub fn grouped(&self, job: &Job, group: &swap::Group, expected: Option<&[u8]>) -> anyhow::Result<(Run, Vec<u8>)> {
        let mut command = Command::new(self.farmem);
        command.args(["bench-child", "in-group"]).arg(group.path()).arg("--").args(&job.command);
        self.finish(job, command, expected)
    }

    fn finish(&self, job: &Job, mut command: Command, expected: Option<&[u8]>) -> anyhow::Result<(Run, Vec<u8>)> {
        supervise::interrupted()?;
        command.envs(job.environment.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
        match &job.input {
            Some(input) => command.stdin(File::open(input)?),
            None => command.stdin(Stdio::null()),
        };
        if let Some(load) = &job.load {
            load.clear();
        }
        let begun = Instant::now();
        let mut group = supervise::Group::start(&mut command).with_context(|| format!("cannot start {command:?}"))?;
        let printed = drain(group.process().stdout.take());
        let complaints = drain(group.process().stderr.take());
        let until = begun + self.limit;

        let ended = match &job.load {
            None => end(&mut group, until)?.map(|status| (status, begun.elapsed())),
            Some(load) => {
                let mut client = load.connect(|| matches!(group.process().try_wait(), Ok(None)))?;
                let begun = Instant::now();
                let said = load.run(&mut client, until);
                let took = begun.elapsed();
                match said {
                    Ok(None) => None,
                    Ok(Some(said)) => {
                        group.terminate();
                        let status =
                            end(&mut group, Instant::now() + END_WITHIN)?.context("the server does not end")?;
                        ensure!(status.success(), "{status}: {}", last_line(&collect(complaints)));
                        let printed = said.into_bytes();
                        compare(expected, &printed)?;
                        return Ok((
                            Run::Ended { wall_ns: took.as_nanos() as u64, cpu_ns: 0, stats: serde_json::Value::Null },
                            printed,
                        ));
                    }
                    Err(error) => {
                        drop(group);
                        let complaint = last_line(&collect(complaints));
                        return Err(error).context(complaint);
                    }
                }
            }
        };
        // Whoever is left of it may hold the pipes open: end them before reading to the end.
        drop(group);
        let Some((status, took)) = ended else {
            return Ok((Run::GivenUp { after_ns: self.limit.as_nanos() as u64 }, Vec::new()));
        };
        let printed = collect(printed);
        ensure!(status.success(), "{status}: {}", last_line(&collect(complaints)));
        compare(expected, &printed)?;
        Ok((Run::Ended { wall_ns: took.as_nanos() as u64, cpu_ns: 0, stats: serde_json::Value::Null }, printed))
    }
}

/// Waits for the end; `None` when `until` comes first.
fn end(group: &mut supervise::Group, until: Instant) -> anyhow::Result<Option<std::process::ExitStatus>> {
    loop {
        if let Some(status) = group.process().try_wait()? {
            return Ok(Some(status));
        }
        supervise::interrupted()?;
        if Instant::now() > until {
            return Ok(None);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Reads a pipe while the program runs, whatever it writes.
fn drain(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        if let Some(mut pipe) = pipe {
            // What came before an error is all there is; the comparison tells.
            let _ = pipe.read_to_end(&mut all);
        }
        all
    })
}

fn collect(reader: JoinHandle<Vec<u8>>) -> Vec<u8> {
    reader.join().unwrap_or_default()
}

fn last_line(complaints: &[u8]) -> String {
    let text = String::from_utf8_lossy(complaints);
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").to_owned()
}

fn compare(expected: Option<&[u8]>, printed: &[u8]) -> anyhow::Result<()> {
    let Some(expected) = expected else { return Ok(()) };
    match expected.iter().zip(printed).position(|(one, other)| one != other) {
        Some(at) => bail!("{DIFFERS}, first at byte {at}"),
        None if expected.len() != printed.len() => {
            bail!("{DIFFERS}: {} bytes instead of {}", printed.len(), expected.len())
        }
        None => Ok(()),
    }
}

const DIFFERS: &str = "the output differs from the native one";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_compared_to_the_last_byte() {
        assert!(compare(Some(b"abc"), b"abc").is_ok() && compare(None, b"x").is_ok());
        assert!(compare(Some(b"abc"), b"abd").unwrap_err().to_string().contains("byte 2"));
        assert!(compare(Some(b"abc"), b"ab").unwrap_err().to_string().contains("2 bytes instead of 3"));
    }

    #[test]
    fn swap_gets_what_is_never_far_on_top() {
        let quarter = Allowance::of(400 << 20, 20 << 20, 0.25);
        assert_eq!((quarter.local, quarter.limit), (100 << 20, 120 << 20));
        assert_eq!(Allowance::of(1 << 20, 0, 0.1).local, LEAST_LOCAL);
    }
}
