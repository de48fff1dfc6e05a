//! `farmem-lab bench alloc --real`: the same claims and releases, by processes, at a node, on this machine.
//!
//! Nothing is simulated: 1 to 8 processes, each a member with a queue pair of its own, change the words of a real
//! `farmem node` by its software NIC, over the node's Unix socket (shm) and over TCP. Each does the papers' workload with
//! blocks of 2 MiB ([`child`]); 4 KiB come from blocks of its own, without a verb. Latencies are this machine's: a verb
//! here is a message to another process, no card.
//!
//! The node's CPU is what all its threads ran meanwhile: it *is* the NIC here. Draining and scrubbing are counted by the
//! node itself and told apart.

pub mod child;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use farmem_fabric::{ConnectOptions, NodeAddr, RunId, Session, Transport};
use farmem_kit::environment::Environment;
use farmem_kit::supervise::Group;
use farmem_kit::table::{Table, duration};
use farmem_protocol::wire::Figure;
use serde::Serialize;

use child::{Found, Samples};

/// What the node lends: one giant, 512 blocks.
const LEND: u64 = 1 << 30;
/// How many of them the processes hold together: 70 %.
const HELD: usize = 512 * 7 / 10;

/// One number of processes over one transport.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `shm` or `tcp`.
    pub transport: &'static str,
    /// Processes at once.
    pub processes: u32,
    /// Claims of 2 MiB.
    pub claims: Summary,
    /// Releases.
    pub releases: Summary,
    /// 4 KiB taken and given back in blocks of one's own: ns for one, no verb.
    pub chunk_ns: f64,
    /// The node's CPU for one claim and one release, ns, without the next.
    pub node_ns: f64,
    /// Draining and scrubbing, for one claim and one release, ns.
    pub cleaning_ns: f64,
    /// Claims that waited until something was clean.
    pub waits: u64,
}

/// Operations of one kind, of all processes.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// How many.
    pub count: u64,
    /// READs for one.
    pub reads: f64,
    /// CAS for one.
    pub cas: f64,
    /// Mean, ns.
    pub mean: f64,
    /// Median, ns.
    pub median: u64,
    /// 99 %, ns.
    pub p99: u64,
}

impl Summary {
    fn of<'a>(all: impl Iterator<Item = &'a Samples>) -> Summary {
        let (mut ns, mut reads, mut cas) = (Vec::new(), 0, 0);
        for samples in all {
            ns.extend_from_slice(&samples.ns);
            (reads, cas) = (reads + samples.reads, cas + samples.cas);
        }
        ns.sort_unstable();
        let count = ns.len().max(1) as f64;
        let at = |share: f64| ns.get((ns.len() as f64 * share) as usize).copied().unwrap_or(0);
        Summary {
            count: ns.len() as u64,
            reads: reads as f64 / count,
            cas: cas as f64 / count,
            mean: ns.iter().sum::<u64>() as f64 / count,
            median: at(0.5),
            p99: at(0.99),
        }
    }
}

/// A node of our own, with a directory for its socket. Both end with it.
struct Node {
    address: NodeAddr,
    group: Group,
    _directory: Directory,
}

struct Directory(std::path::PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Node {
    fn start(farmem: &Path, transport: &str) -> Result<Node> {
        let path = std::env::temp_dir().join(format!("farmem-alloc-{}-{transport}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        let directory = Directory(path);
        let listen = match transport {
            "shm" => format!("unix:{}", directory.0.join("node.sock").display()),
            // A port that was free a moment ago: the node takes it before anybody is likely to.
            _ => std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.to_string(),
        };
        let mut command = Command::new(farmem);
        command.args(["node", "--lend", &LEND.to_string(), "--listen", &listen]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let group = Group::start(&mut command).context("cannot start a node")?;
        let mut node = Node { address: listen.parse()?, group, _directory: directory };
        let until = Instant::now() + Duration::from_secs(60);
        while node.join().is_err() {
            let ended = node.group.process().try_wait()?.is_some();
            ensure!(!ended && Instant::now() < until, "the node of the benchmark does not answer at {listen}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(node)
    }

    /// A member that only asks the node for figures.
    fn join(&self) -> Result<Session> {
        let transport = if matches!(self.address, NodeAddr::Tcp(_)) { Transport::Tcp } else { Transport::Shm };
        let (timeout, grace) = (Duration::from_secs(2), Duration::from_secs(2));
        let run: RunId = u128::from(std::process::id()).to_le_bytes();
        let options =
            ConnectOptions { timeout, grace, run, pid: std::process::id(), transport, ..ConnectOptions::default() };
        Ok(Session::connect(&self.address, &options)?)
    }

    /// What all its threads have run so far, ns.
    fn cpu(&mut self) -> Result<u64> {
        let tasks = format!("/proc/{}/task", self.group.process().id());
        let mut sum = 0;
        for task in std::fs::read_dir(&tasks).context(tasks)? {
            let text = std::fs::read_to_string(task?.path().join("schedstat")).context("the kernel's schedstat")?;
            sum += text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(sum)
    }
}

fn cleaning(session: &Session) -> Result<u64> {
    Ok(session.records().figure(Figure::DrainNs)? + session.records().figure(Figure::ScrubNs)?)
}

/// A process that goes on when it is told to.
struct Peer {
    process: Child,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
}

impl Peer {
    fn start(command: &mut Command) -> Result<Peer> {
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start myself")?;
        let (says, hears) = (process.stdout.take(), process.stdin.take());
        let (says, hears) = says.zip(hears).context("the pipes that were asked for")?;
        Ok(Peer { process, says: BufReader::new(says), hears })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.says.read_line(&mut line)? == 0 {
            bail!("a process of the benchmark ended early: {}", self.process.wait()?);
        }
        Ok(line.trim_end().to_owned())
    }

    fn meet(&mut self, word: &str) -> Result<()> {
        let said = self.line()?;
        ensure!(said == word, "a process of the benchmark says {said:?} where {word:?} was due");
        Ok(())
    }

    fn go(&mut self) -> Result<()> {
        Ok(self.hears.write_all(b"go\n")?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs so many processes against a node.
fn measure(farmem: &Path, transport: &'static str, processes: u32, rounds: u32, seed: u64) -> Result<Row> {
    let mut node = Node::start(farmem, transport)?;
    let session = node.join()?;
    let blocks = HELD / processes as usize;
    let command = |n: u32| {
        let mut command = Command::new(farmem);
        command.args(["bench-alloc-child", "--node", &node.address.to_string()]);
        command.args(["--blocks", &blocks.to_string(), "--rounds", &rounds.to_string()]);
        command.args(["--seed", &(seed + u64::from(n)).to_string()]);
        command
    };
    let mut peers = (0..processes).map(|n| Peer::start(&mut command(n))).collect::<Result<Vec<_>>>()?;
    peers.iter_mut().try_for_each(|peer| peer.meet("filled"))?;
    let before = (node.cpu()?, cleaning(&session)?);
    peers.iter_mut().try_for_each(Peer::go)?;
    peers.iter_mut().try_for_each(|peer| peer.meet("done"))?;
    let (cpu, cleaning) = (node.cpu()? - before.0, cleaning(&session)? - before.1);
    // Everybody marks what it holds before anybody looks at its marks: a block with two owners would show.
    peers.iter_mut().try_for_each(Peer::go)?;
    peers.iter_mut().try_for_each(|peer| peer.meet("marked"))?;
    peers.iter_mut().try_for_each(Peer::go)?;
    let found = peers.iter_mut().map(|peer| Ok(serde_json::from_str(&peer.line()?)?));
    let found: Vec<Found> = found.collect::<Result<_>>()?;
    let claims = Summary::of(found.iter().map(|found| &found.claims));
    let each = |ns: u64| ns as f64 / claims.count.max(1) as f64;
    let chunks = found.iter().fold((0, 0), |sum, found| (sum.0 + found.chunks.0, sum.1 + found.chunks.1));
    Ok(Row {
        transport,
        processes,
        releases: Summary::of(found.iter().map(|found| &found.releases)),
        chunk_ns: chunks.1 as f64 / chunks.0.max(1) as f64,
        node_ns: each(cpu.saturating_sub(cleaning)),
        cleaning_ns: each(cleaning),
        waits: found.iter().map(|found| found.waits).sum(),
        claims,
    })
}

/// Runs all of it, prints it; the rows.
///
/// # Errors
/// A node or a process that does not start or ends early; memory that is not as it was granted.
pub fn run(farmem: &Path, quick: bool, rounds: Option<u32>, seed: u64) -> Result<Vec<Row>> {
    let rounds = rounds.unwrap_or(if quick { 4 } else { 40 });
    let counts: &[u32] = if quick { &[1, 2, 8] } else { &[1, 2, 3, 4, 5, 6, 7, 8] };
    let mut rows = Vec::new();
    for transport in ["shm", "tcp"] {
        for &processes in counts {
            eprintln!("{transport}, {processes} processes");
            let row = measure(farmem, transport, processes, rounds, seed);
            rows.push(row.with_context(|| format!("{transport}, {processes} processes"))?);
        }
    }
    println!("{}", Environment::read());
    println!(
        "{HELD} of 512 blocks of 2 MiB held by processes at a real node; {rounds} rounds of giving half back and claiming it again"
    );
    println!("every block zero when granted, nobody else's while held, its key refused when given back\n");
    let mut table = Table::new([
        "",
        "processes",
        "claim: READ",
        "CAS",
        "mean",
        "p50",
        "p99",
        "release: CAS",
        "mean",
        "p50",
        "p99",
        "node's CPU",
        "cleaning",
        "4 KiB",
        "waits",
    ]);
    for row in &rows {
        let (claims, releases) = (&row.claims, &row.releases);
        table.row([
            row.transport.to_owned(),
            row.processes.to_string(),
            format!("{:.3}", claims.reads),
            format!("{:.3}", claims.cas),
            duration(claims.mean),
            duration(claims.median as f64),
            duration(claims.p99 as f64),
            format!("{:.3}", releases.cas),
            duration(releases.mean),
            duration(releases.median as f64),
            duration(releases.p99 as f64),
            duration(row.node_ns),
            duration(row.cleaning_ns),
            duration(row.chunk_ns),
            row.waits.to_string(),
        ]);
    }
    print!("{table}");
    println!(
        "\nnode's CPU, cleaning (draining, scrubbing): for one claim and one release. 4 KiB: taken from and given back to a block of one's own, no verb"
    );
    Ok(rows)
}
