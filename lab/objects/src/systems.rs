//! What the programs run on.

use std::cell::RefCell;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::child::{Found, Work};
use anyhow::{Context, Result, bail, ensure};
use farmem_bench::swap;
use farmem_kit::report::Skipped;
use farmem_kit::{affinity, supervise};

/// Where objects lie, and how much of them is local.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Near memory, all of it.
    Near,
    /// Far objects that all fit into local memory, over shared memory.
    Fits,
    /// Far objects, a quarter local, over shared memory.
    Shm,
    /// … over TCP.
    Tcp,
    /// … over TCP at 10 Gbit/s.
    Tcp10,
    /// … of a node that computes nothing.
    Plain10,
    /// Near memory under `farmem run`, a quarter local, over shared memory.
    RunShm,
    /// … over TCP.
    RunTcp,
    /// … over TCP at 10 Gbit/s.
    RunTcp10,
    /// … by a program that gives hints.
    Hints10,
    /// Near memory in a memory group that swaps to zram, a quarter of it local.
    Zram,
}

/// Bits a second of a network of 10 Gbit/s.
const RATE: &str = "10000000000";
/// The same, as `farmem run --shape` reads it.
const SHAPE: &str = "10G";

impl System {
    /// All, in the order of the tables.
    pub const ALL: [System; 11] = [
        System::Near,
        System::Fits,
        System::Shm,
        System::Tcp,
        System::Tcp10,
        System::Plain10,
        System::RunShm,
        System::RunTcp,
        System::RunTcp10,
        System::Hints10,
        System::Zram,
    ];

    /// Heads a column.
    pub fn name(self) -> &'static str {
        match self {
            System::Near => "near",
            System::Fits => "objects, fits",
            System::Shm => "objects shm",
            System::Tcp => "objects tcp",
            System::Tcp10 => "objects 10 Gbit/s",
            System::Plain10 => "… no compute",
            System::RunShm => "run shm",
            System::RunTcp => "run tcp",
            System::RunTcp10 => "run 10 Gbit/s",
            System::Hints10 => "… with hints",
            System::Zram => "zram",
        }
    }

    /// Whether `farmem run` starts the program.
    fn is_run(self) -> bool {
        matches!(self, System::RunShm | System::RunTcp | System::RunTcp10 | System::Hints10)
    }
}

/// A memory group, and swap to zram for it.
struct Swap {
    group: swap::Group,
    area: swap::Area,
}

impl Swap {
    /// The reason why there is none: rights, or what the kernel lacks.
    fn new(farmem: &Path, local: usize, bytes: usize) -> Result<Swap> {
        ensure!(swap::privileged(), "swap and memory groups need root");
        let group = swap::Group::new((local + overhead(farmem)) as u64)?;
        Ok(Swap { group, area: swap::Area::zram(4 * bytes as u64)? })
    }
}

/// Bytes of a program beside what it stores: the peak of one that stores next to nothing. Much more than
/// that would be local memory that no other system has.
fn overhead(farmem: &Path) -> usize {
    let peak = || {
        let group = swap::Group::unlimited()?;
        let mut command = Command::new(farmem);
        command.args(["objects-child", "--place", "near", "--work", "random", "--local=0", "--objects=64"]);
        command.args(["--accesses=64", "--seed=1"]).arg(format!("--group={}", group.path().display()));
        supervise::ended(&mut command, Duration::from_secs(60))?;
        group.peak()
    };
    peak().map_or(OVERHEAD, |peak| peak as usize)
}

/// … where the kernel does not tell.
const OVERHEAD: usize = 8 << 20;

/// A node, and what is to be run.
pub struct Bench<'a> {
    farmem: &'a Path,
    bytes: usize,
    accesses: usize,
    work: Vec<Work>,
    cpu: usize,
    second: usize,
    _nodes: [supervise::Group; 2],
    tcp: String,
    shm: String,
    /// By TCP, a node that computes nothing.
    plain: String,
    swap: Result<Swap>,
    /// Programs that the kernel killed because swap did not make room in their group fast enough.
    killed: RefCell<Vec<Work>>,
}

/// The programs, as `--work` names them.
fn names(work: &[Work]) -> String {
    let names = work.iter().filter_map(clap::ValueEnum::to_possible_value);
    names.map(|name| name.get_name().to_owned()).collect::<Vec<_>>().join(",")
}

/// A node on this CPU, and its address by TCP.
fn node(farmem: &Path, cpu: usize, arguments: &[&str]) -> Result<(supervise::Group, String)> {
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let tcp = format!("127.0.0.1:{port}");
    let mut command = Command::new(farmem);
    command.args(["node", "--listen", &tcp]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut node = affinity::inherited(&[cpu], || supervise::Group::start(&mut command))?;
    let until = Instant::now() + Duration::from_secs(5);
    while std::net::TcpStream::connect(&tcp).is_err() {
        if Instant::now() > until || node.process().try_wait()?.is_some() {
            bail!("the node does not answer");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok((node, tcp))
}

impl<'a> Bench<'a> {
    /// Starts the nodes, on the last CPU; programs run on the first.
    ///
    /// # Errors
    /// When one does not answer.
    pub fn start(farmem: &'a Path, bytes: usize, accesses: usize, work: &[Work]) -> Result<Bench<'a>> {
        let cpus = affinity::allowed();
        let (&first, &last) = cpus.first().zip(cpus.last()).context("no CPU is allowed")?;
        let socket = std::env::temp_dir().join(format!("farmem-objects-{}.sock", std::process::id()));
        let shm = format!("unix:{}", socket.display());
        let lend = (6 * bytes + (512 << 20)).to_string();
        let (computes, tcp) = node(farmem, last, &["--lend", &lend, "--compute", "1", "--listen", &shm])?;
        let (refuses, plain) = node(farmem, last, &["--lend", &lend])?;
        let (work, killed) = (work.to_vec(), RefCell::default());
        let (cpu, second, _nodes, swap) = (first, last, [computes, refuses], Swap::new(farmem, bytes / 4, bytes));
        Ok(Bench { farmem, bytes, accesses, work, cpu, second, _nodes, tcp, shm, plain, swap, killed })
    }

    /// The systems that this machine has.
    pub fn systems(&self) -> Vec<System> {
        System::ALL.into_iter().filter(|&system| system != System::Zram || self.swap.is_ok()).collect()
    }

    /// Those that it lacks, and programs that did not end on one, with the reasons.
    pub fn lacks(&self) -> Vec<Skipped> {
        let lacking = self.swap.as_ref().err().map(|e| format!("{e:#}"));
        let killed = self.killed.borrow();
        let killed =
            killed.iter().map(|&work| format!("{}: the kernel killed it for its group's limit", names(&[work])));
        let skipped = |reason| Skipped { system: System::Zram.name().into(), reason };
        lacking.into_iter().chain(killed).map(skipped).collect()
    }

    /// The programs' figures on one system. With swap each program is a process of its own; one
    /// that the kernel kills has no figure, and does not run again.
    ///
    /// # Errors
    /// When a program failed.
    pub fn run(&self, system: System, seed: u64) -> Result<Vec<Found>> {
        if system != System::Zram {
            return self.child(system, &self.work, seed)?.with_context(|| format!("{} was killed", system.name()));
        }
        let mut all = Vec::new();
        for &work in &self.work {
            if self.killed.borrow().contains(&work) {
                continue;
            }
            match self.child(system, &[work], seed)? {
                Some(found) => all.extend(found),
                None => self.killed.borrow_mut().push(work),
            }
        }
        Ok(all)
    }

    /// These programs' figures on one system, by one process. None if it was killed.
    fn child(&self, system: System, work: &[Work], seed: u64) -> Result<Option<Vec<Found>>> {
        let (quarter, all) = (self.bytes / 4, 4 * self.bytes);
        let mut command = Command::new(self.farmem);
        if system.is_run() {
            command.args(["run", "--no-settings", "--local", &quarter.to_string()]);
            match system {
                System::RunShm => command.args(["--transport", "shm"]),
                _ => command.args(["--transport", "tcp", "--node", &self.tcp]),
            };
            if let System::RunTcp10 | System::Hints10 = system {
                command.args(["--shape", SHAPE]);
            }
            command.arg("--").arg(self.farmem);
        }
        let (place, node, local) = match system {
            System::Plain10 => ("tcp", Some(&self.plain), quarter),
            System::Fits => ("shm", Some(&self.shm), all),
            System::Shm => ("shm", Some(&self.shm), quarter),
            System::Tcp | System::Tcp10 => ("tcp", Some(&self.tcp), quarter),
            _ => ("near", None, all),
        };
        command.args(["objects-child", "--place", place, "--work", &names(work)]);
        command.arg(format!("--local={local}")).arg(format!("--objects={}", self.bytes / 64));
        command.arg(format!("--accesses={}", self.accesses)).arg(format!("--seed={seed}"));
        command.arg(format!("--second={}", self.second));
        if let System::Tcp10 | System::Plain10 = system {
            command.args(["--rate", RATE]);
        }
        if system == System::Hints10 {
            command.arg("--hints");
        }
        let swap = self.swap.as_ref().ok().filter(|_| system == System::Zram);
        let _on = swap.map(|swap| swap.area.on()).transpose()?;
        if let Some(swap) = swap {
            command.arg(format!("--group={}", swap.group.path().display()));
        }
        if let Some(node) = node {
            command.args(["--node", node]);
        }
        let before = affinity::allowed();
        affinity::pin(&[self.cpu])?;
        let ended = supervise::ended(&mut command, Duration::from_secs(500));
        affinity::pin(&before)?;
        let (status, printed, complaint) = ended?;
        if status.signal() == Some(libc::SIGKILL) {
            return Ok(None);
        }
        ensure!(status.success(), "{status}: {} ({command:?})", complaint.trim_end());
        serde_json::from_str(printed.trim()).map(Some).with_context(|| format!("the program printed {printed:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_are_held_to_one_rate() {
        assert_eq!(farmem_fabric::shape::rate(SHAPE), Ok(RATE.parse().unwrap()));
    }
}
