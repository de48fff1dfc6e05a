//! What the programs run on.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::child::{Found, Work};
use anyhow::{Context, Result, bail};
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
    /// Near memory under `farmem run`, a quarter local, over shared memory.
    RunShm,
    /// … over TCP.
    RunTcp,
    /// … over TCP at 10 Gbit/s.
    RunTcp10,
}

/// Bits a second of a network of 10 Gbit/s.
const RATE: &str = "10000000000";
/// The same, as `farmem run --shape` reads it.
const SHAPE: &str = "10G";

impl System {
    /// All, in the order of the tables.
    pub const ALL: [System; 8] = [
        System::Near,
        System::Fits,
        System::Shm,
        System::Tcp,
        System::Tcp10,
        System::RunShm,
        System::RunTcp,
        System::RunTcp10,
    ];

    /// Heads a column.
    pub fn name(self) -> &'static str {
        match self {
            System::Near => "near",
            System::Fits => "objects, fits",
            System::Shm => "objects shm",
            System::Tcp => "objects tcp",
            System::Tcp10 => "objects 10 Gbit/s",
            System::RunShm => "run shm",
            System::RunTcp => "run tcp",
            System::RunTcp10 => "run 10 Gbit/s",
        }
    }
}

/// A node, and what is to be run.
pub struct Bench<'a> {
    farmem: &'a Path,
    bytes: usize,
    accesses: usize,
    work: String,
    cpu: usize,
    _node: supervise::Group,
    tcp: String,
    shm: String,
}

impl<'a> Bench<'a> {
    /// Starts the node, on the last CPU; programs run on the first.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn start(farmem: &'a Path, bytes: usize, accesses: usize, work: &[Work]) -> Result<Bench<'a>> {
        let cpus = affinity::allowed();
        let (&first, &last) = cpus.first().zip(cpus.last()).context("no CPU is allowed")?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let tcp = format!("127.0.0.1:{port}");
        let socket = std::env::temp_dir().join(format!("farmem-objects-{}.sock", std::process::id()));
        let shm = format!("unix:{}", socket.display());
        let mut command = Command::new(farmem);
        let lend = (6 * bytes + (512 << 20)).to_string();
        command.args(["node", "--lend", &lend, "--compute", "1", "--listen", &tcp, "--listen", &shm]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut node = affinity::inherited(&[last], || supervise::Group::start(&mut command))?;
        let until = Instant::now() + Duration::from_secs(5);
        while std::net::TcpStream::connect(&tcp).is_err() {
            if Instant::now() > until || node.process().try_wait()?.is_some() {
                bail!("the node does not answer");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let names = work.iter().filter_map(clap::ValueEnum::to_possible_value);
        let work = names.map(|name| name.get_name().to_owned()).collect::<Vec<_>>().join(",");
        Ok(Bench { farmem, bytes, accesses, work, cpu: first, _node: node, tcp, shm })
    }

    /// The programs' figures on one system.
    ///
    /// # Errors
    /// When a program failed.
    pub fn run(&self, system: System, seed: u64) -> Result<Vec<Found>> {
        let (quarter, all) = (self.bytes / 4, 4 * self.bytes);
        let mut command = Command::new(self.farmem);
        if let System::RunShm | System::RunTcp | System::RunTcp10 = system {
            command.args(["run", "--no-settings", "--local", &quarter.to_string()]);
            match system {
                System::RunShm => command.args(["--transport", "shm"]),
                _ => command.args(["--transport", "tcp", "--node", &self.tcp]),
            };
            if system == System::RunTcp10 {
                command.args(["--shape", SHAPE]);
            }
            command.arg("--").arg(self.farmem);
        }
        let (place, node, local) = match system {
            System::Near | System::RunShm | System::RunTcp | System::RunTcp10 => ("near", None, all),
            System::Fits => ("shm", Some(&self.shm), all),
            System::Shm => ("shm", Some(&self.shm), quarter),
            System::Tcp | System::Tcp10 => ("tcp", Some(&self.tcp), quarter),
        };
        command.args(["objects-child", "--place", place, "--work", &self.work]);
        command.arg(format!("--local={local}")).arg(format!("--objects={}", self.bytes / 64));
        command.arg(format!("--accesses={}", self.accesses)).arg(format!("--seed={seed}"));
        if system == System::Tcp10 {
            command.args(["--rate", RATE]);
        }
        if let Some(node) = node {
            command.args(["--node", node]);
        }
        let before = affinity::allowed();
        affinity::pin(&[self.cpu])?;
        let printed = supervise::output(&mut command, Duration::from_secs(500));
        affinity::pin(&before)?;
        let printed = printed?;
        serde_json::from_str(printed.trim()).with_context(|| format!("the program printed {printed:?}"))
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
