//! The systems under measurement, and how each runs the program.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::measure::Threads;
use super::small::{Which, Work};
use super::workload::Outcome;
use super::{Options, Size};
use crate::swap;
use farmem_kit::{affinity, supervise};

/// Whatever memory can be under the program.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// Enough memory.
    Native,
    /// The bare mechanism.
    Floor,
    /// The bare network.
    Roundtrip,
    /// farmem, shared memory with a node on this machine.
    Shm,
    /// farmem, TCP over loopback to a node on this machine.
    Tcp,
    /// farmem, RDMA to a node on this machine: only where it is asked for, since it takes a card.
    Rdma,
    /// Swap to compressed memory.
    Zram,
    /// Swap to a loop device on tmpfs.
    Loop,
}

impl System {
    /// Those that run unless others are named, in the order of the tables.
    pub const USUAL: [System; 7] =
        [System::Native, System::Floor, System::Roundtrip, System::Shm, System::Tcp, System::Zram, System::Loop];

    /// Heads a column.
    pub fn name(self) -> &'static str {
        match self {
            System::Native => "native",
            System::Floor => "floor",
            System::Roundtrip => "raw TCP",
            System::Shm => "farmem shm",
            System::Tcp => "farmem tcp",
            System::Rdma => "farmem rdma",
            System::Zram => "swap zram",
            System::Loop => "swap loop",
        }
    }
}

/// What the swap baselines need.
pub struct Swap {
    group: swap::Group,
    zram: Option<swap::Area>,
    looped: Option<swap::Area>,
}

impl Swap {
    /// Makes what the wanted systems need; what cannot be made is named in `skipped` and left out.
    pub fn prepare(wanted: &[System], size: &Size, mut skip: impl FnMut(System, String)) -> Option<Swap> {
        let swaps: Vec<System> =
            wanted.iter().copied().filter(|system| matches!(system, System::Zram | System::Loop)).collect();
        if swaps.is_empty() {
            return None;
        }
        let unavailable = |skip: &mut dyn FnMut(System, String), why: String| {
            swaps.iter().for_each(|&system| skip(system, why.clone()));
            None
        };
        if !swap::privileged() {
            return unavailable(&mut skip, "needs root".into());
        }
        let group = match swap::Group::new(size.group_limit()) {
            Ok(group) => group,
            Err(error) => return unavailable(&mut skip, format!("{error:#}")),
        };
        // Somewhat more than the array: the program's other pages are swapped out too.
        let bytes = size.array_bytes() + (64 << 20);
        let mut area = |system, make: fn(u64) -> anyhow::Result<swap::Area>| {
            if !swaps.contains(&system) {
                return None;
            }
            make(bytes).map_err(|error| skip(system, format!("{error:#}"))).ok()
        };
        let (zram, looped) = (area(System::Zram, swap::Area::zram), area(System::Loop, swap::Area::looped));
        Some(Swap { group, zram, looped })
    }

    /// What must be said of the devices beside figures.
    pub fn remarks(&self) -> impl Iterator<Item = &str> {
        [&self.zram, &self.looped].into_iter().flatten().map(|area| area.remark.as_str())
    }
}

/// A node of our own, on the CPU that the peer of a raw round trip has.
pub struct Node {
    _group: supervise::Group,
    address: String,
}

impl Node {
    /// Starts one that lends `lend` bytes over TCP, and over RDMA where there is a card.
    pub fn start(farmem: &Path, lend: u64, cpus: &[usize]) -> anyhow::Result<Node> {
        Node::start_with(farmem, lend, cpus, &[])
    }

    /// The same with more options.
    pub fn start_with(farmem: &Path, lend: u64, cpus: &[usize], options: &[&OsStr]) -> anyhow::Result<Node> {
        // A port that was free a moment ago: the node takes it before anybody is likely to.
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new(farmem);
        command.args(["node", "--lend", &lend.to_string(), "--listen", &address]).args(options);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut group = affinity::inherited(cpus, || supervise::Group::start(&mut command))?;
        let until = Instant::now() + Duration::from_secs(5);
        while std::net::TcpStream::connect(&address).is_err() {
            if Instant::now() > until || group.process().try_wait()?.is_some() {
                let stderr = group.process().stderr.take();
                drop(group);
                let said = stderr.and_then(|stderr| BufReader::new(stderr).lines().last());
                bail!("the node does not answer: {}", said.and_then(Result::ok).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Node { _group: group, address })
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }
}

/// Runs programs under systems.
pub struct Runner<'a> {
    /// The binary.
    pub farmem: &'a Path,
    /// How much memory, how often.
    pub options: &'a Options,
    /// The same, worked out.
    pub size: Size,
    /// For the swap systems.
    pub swap: Option<Swap>,
    /// For `System::Tcp` and `System::Rdma`.
    pub node: Option<Node>,
    /// CPUs of first and second thread.
    pub cpus: [usize; 2],
    /// Counts programs started, for error messages.
    pub started: Cell<usize>,
}

impl Runner<'_> {
    /// The paging program, pinned or not.
    pub fn paging(&self, system: System, pinned: bool, threads: &[Threads], seed: u64) -> anyhow::Result<Outcome> {
        let size = &self.size;
        let threads: Vec<Threads> = threads.iter().copied().filter(|&threads| self.can(system, threads)).collect();
        let threads = threads.iter().map(|threads| {
            clap::ValueEnum::to_possible_value(threads).map(|name| name.get_name().to_owned()).unwrap_or_default()
        });
        let threads = threads.collect::<Vec<_>>().join(",");
        let mut arguments: Vec<String> = match system {
            System::Floor => vec!["floor".into(), format!("--local={}", size.local_pages())],
            System::Roundtrip => vec!["roundtrip".into()],
            _ => vec![
                "paging".into(),
                format!("--fresh={}", size.local_pages() / 2),
                format!("--warm-up={}", size.warm_up()),
            ],
        };
        arguments.push(format!("--accesses={}", self.options.accesses()));
        if system != System::Roundtrip {
            arguments.push(format!("--pages={}", size.array_pages()));
            arguments.push(format!("--seed={seed}"));
            arguments.push(format!("--threads={threads}"));
        }
        if pinned {
            arguments.push(format!("--cpus={},{}", self.cpus[0], self.cpus[1]));
        }
        if let (System::Zram | System::Loop, Some(swap)) = (system, &self.swap) {
            arguments.push(format!("--group={}", swap.group.path().display()));
        }
        let printed = self.program(system, size.local, pinned, &arguments)?;
        serde_json::from_str(printed.trim()).with_context(|| format!("the program printed {printed:?}"))
    }

    /// Whether a system has a CPU left for that: the node of TCP spins on the CPU that a second thread would take.
    pub fn can(&self, system: System, threads: Threads) -> bool {
        match threads {
            Threads::Solo => true,
            Threads::Spinner => !matches!(system, System::Tcp | System::Rdma | System::Roundtrip),
            Threads::Both => !matches!(system, System::Tcp | System::Rdma | System::Roundtrip | System::Floor),
        }
    }

    /// A program that fits.
    pub fn small(&self, system: System, which: Which, seed: u64) -> anyhow::Result<Work> {
        let name = clap::ValueEnum::to_possible_value(&which).map(|name| name.get_name().to_owned());
        let bytes = self.size.small_bytes();
        let arguments =
            ["small".into(), name.unwrap_or_default(), format!("--bytes={bytes}"), format!("--seed={seed}")];
        // Thrice what it needs at once, so that it fits beyond doubt.
        let printed = self.program(system, bytes * 3, true, &arguments)?;
        serde_json::from_str(printed.trim()).with_context(|| format!("the program printed {printed:?}"))
    }

    fn program(&self, system: System, local: u64, pinned: bool, arguments: &[String]) -> anyhow::Result<String> {
        let mut command = Command::new(self.farmem);
        if let System::Shm | System::Tcp | System::Rdma = system {
            command.args(["run", "--no-settings", "--local", &local.to_string()]);
            match (&self.node, system) {
                (_, System::Shm) => command.args(["--transport", "shm"]),
                (Some(node), System::Tcp) => command.args(["--transport", "tcp", "--node", &node.address]),
                (Some(node), _) => command.args(["--transport", "verbs", "--node", &node.address]),
                (None, _) => bail!("no node is running"),
            };
            if let Some(mask) = &self.options.mask {
                command.args(["--mask", mask]);
            }
            command.arg("--").arg(self.farmem);
        }
        command.arg("bench-child").args(arguments);
        let swap = self.swap.as_ref();
        let _on = match system {
            System::Zram => swap.and_then(|swap| swap.zram.as_ref()).map(swap::Area::on).transpose()?,
            System::Loop => swap.and_then(|swap| swap.looped.as_ref()).map(swap::Area::on).transpose()?,
            _ => None,
        };
        self.started.set(self.started.get() + 1);
        let within = Duration::from_secs(600);
        if pinned {
            // The whole process, a runtime's own threads included, on the first CPU; the second thread leaves it by itself.
            let before = affinity::allowed();
            affinity::pin(&self.cpus[..1])?;
            let printed = supervise::output(&mut command, within);
            affinity::pin(&before)?;
            printed
        } else {
            supervise::output(&mut command, within)
        }
    }
}
