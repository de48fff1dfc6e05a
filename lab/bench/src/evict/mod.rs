//! `farmem-lab bench evict`: what it costs to bring changed lines to a node.
//!
//! | file | |
//! |---|---|
//! | [`drive`] | the three ways: whole pages, a WRITE for each run of lines, records of lines |
//! | [`detect`] | telling which lines changed |
//! | [`figures`] | tables, targets |
//! | [`plot`] | where whole pages win |
//! | [`redis`] | a whole program under the policies of `--dirty` |
//! | [`trusted`] | the same at a node that asks for a token: plain, encrypted, sealed |
//! | [`alternate`] | one server that compares what leaves, and copies it, alternately |
//!
//! A host and a node, a process each, on a CPU each, over TCP on the loopback device, at its own speed and held to
//! that of slower links ([`farmem_fabric::shape`]). Gathering, applying and acknowledging are in the time; unmapping
//! pages and telling what changed are not, for all ways share these.

pub mod alternate;
pub mod detect;
pub mod drive;
pub mod figures;
pub mod plot;
pub mod redis;
pub mod trusted;

use farmem_protocol::random::Random;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure};
use farmem_fabric::{ConnectOptions, NodeAddr, Session, Transport};
use serde::Serialize;

use crate::paging::systems::Node;
use drive::{Arrangement, Host, Method, Sample};
use farmem_kit::alone::Alone;
use farmem_kit::environment::Environment;
use farmem_kit::pairs::Rounds;
use farmem_kit::{affinity, report, supervise};

/// `farmem-lab bench evict …`
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Few pages and rounds: a look, not a figure to quote
    #[arg(long)]
    quick: bool,
    /// Redis under the policies of --dirty instead, a quarter local: bytes sent for bytes changed, requests a second
    #[arg(long, conflicts_with_all = ["pages", "lines", "links", "svg", "seed"])]
    redis: bool,
    /// With --redis, only these links and policies: shm:none,tcp:auto,…; token:plain,token:encrypted,token:sealed, too
    #[arg(long, value_name = "WAYS", value_delimiter = ',', requires = "redis")]
    ways: Vec<String>,
    /// Pages sent in each measurement [default: 16384; with --quick 4096]
    #[arg(long, value_name = "N")]
    pages: Option<usize>,
    /// Rounds in which every way is taken once [default: 7; with --quick or --redis 3]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Changed lines of each page
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 24, 31, 32, 40, 48, 64])]
    lines: Vec<u32>,
    /// Links: rates as 10G, or none for loopback as it is
    #[arg(long, value_delimiter = ',', value_parser = link, default_values = ["10G", "25G", "none"])]
    links: Vec<Link>,
    /// Draws slots and lines
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write every figure of every round
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw where whole pages win
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A link: bits a second, or loopback as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Link(pub Option<u64>);

fn link(text: &str) -> Result<Link, String> {
    if text == "none" { Ok(Link(None)) } else { farmem_fabric::shape::rate(text).map(|rate| Link(Some(rate))) }
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(rate) => write!(f, "{} Gbit/s", rate as f64 / 1e9),
            None => f.write_str("loopback"),
        }
    }
}

/// What is varied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Setting {
    /// Over what.
    pub link: Link,
    /// Where the changed lines lie.
    pub arrangement: Arrangement,
    /// How many a page.
    pub lines: u32,
}

/// All measurements of a setting.
pub struct Cell {
    /// Which.
    pub setting: Setting,
    /// By method and round.
    pub rounds: Rounds<Method, Sample>,
}

/// The methods, in order.
pub const METHODS: [Method; 3] = [Method::Pages, Method::Log, Method::Writes];

/// Runs it and prints the report.
///
/// # Errors
/// See [`crate::Bench::run`].
pub fn run(options: &Options, farmem: &Path) -> anyhow::Result<()> {
    report::can_be_written([&options.json, &options.svg])?;
    if options.redis {
        return redis::run(options, farmem);
    }
    ensure!(options.lines.iter().all(|lines| (1..=64).contains(lines)), "--lines are 1 to 64: a page has 64");
    let pages = options.pages.unwrap_or(if options.quick { 4096 } else { 16_384 });
    let rounds = options.rounds.unwrap_or(if options.quick { 3 } else { 7 });
    ensure!(pages >= 256 && rounds >= 1, "--pages are at least 256, --rounds at least 1");
    let allowed = affinity::allowed();
    let [first, second, ..] = allowed[..] else { bail!("two CPUs are needed, one for the host and one for its node") };
    let _alone = Alone::take()?;
    supervise::note_interrupts();
    let environment = Environment::read();
    let node = Node::start(farmem, 1 << 30, &[second])?;
    affinity::pin(&[first])?;
    farmem_sys::clock::calibrate();

    eprintln!("what it costs to tell which lines changed");
    let costs = detect::measure(rounds.max(5));
    supervise::interrupted()?;
    let mut cells = Vec::new();
    for &link in &options.links {
        let session = connect(node.address(), link)?;
        let mut host = Host::new(session, options.seed)?;
        for arrangement in [Arrangement::Contiguous, Arrangement::Scattered] {
            for &lines in &options.lines {
                supervise::interrupted()?;
                eprintln!("{link}: {lines} {arrangement:?} lines a page");
                let setting = Setting { link, arrangement, lines };
                cells.push(measure(&mut host, setting, pages, rounds, options.seed)?);
            }
        }
    }
    let method = vec![
        format!("{pages} pages a measurement, {rounds} rounds, ways interleaved · seed {}", options.seed),
        format!(
            "from {CLOSE_FROM} lines on in {SLICES} parts, each a round of its own · rounds up to {} times where noise is \
             above {:.0} %",
            1 + MORE,
            STEADY * 100.0
        ),
        "host and node pinned to a CPU each · 256 pages a batch, at most 1024 unacknowledged".into(),
        "wire bytes: frames and operands, and 90 bytes for each TCP segment of 1448, to the node".into(),
    ];
    let report = figures::report(method, environment, &cells, costs);
    report::tell(&report, &[(&options.json, &|| Ok(report.json()?)), (&options.svg, &|| Ok(plot::draw(&cells)))])
}

fn connect(address: &str, link: Link) -> anyhow::Result<Session> {
    let address: NodeAddr = address.parse()?;
    let options = ConnectOptions {
        timeout: Duration::from_secs(5),
        grace: Duration::from_secs(1),
        run: [0xE7; 16],
        pid: std::process::id(),
        transport: Transport::Tcp,
        ..ConnectOptions::default()
    };
    Ok(Session::connect_at_rate(&address, &options, link.0)?)
}

/// From so many lines the ways differ by little, and their rounds are cut into [`SLICES`]: what a lost time slice costs is
/// then a few pairs' and not the median's.
const CLOSE_FROM: u32 = 16;
const SLICES: usize = 8;
/// Where the quartiles of the ratios lie further apart than this, more rounds are taken, [`MORE`] times as many at most.
const STEADY: f64 = 0.04;
const MORE: usize = 3;

fn measure(host: &mut Host, setting: Setting, pages: usize, rounds: usize, seed: u64) -> anyhow::Result<Cell> {
    let slices = if setting.lines >= CLOSE_FROM { SLICES.min(pages / 256) } else { 1 };
    let (pages, rounds) = (pages / slices, rounds * slices);
    let bitmaps = |round: u64, pages: usize| -> Vec<u64> {
        let mut draw = Random::new(seed + round);
        (0..pages).map(|_| setting.arrangement.draw(setting.lines, &mut draw)).collect()
    };
    for method in METHODS {
        host.verify(method, &bitmaps(99, 64))?;
    }
    let mut more = |from: usize| {
        Rounds::interleave(&METHODS, rounds, |method, round| {
            supervise::interrupted()?;
            let round = (from + round) as u64;
            // Slots of its own: those that another method of the round has just written to would be in the node's cache.
            let mut draw = Random::new(seed ^ round << 32 ^ (method as u64) << 24);
            host.run(method, &bitmaps(round, pages), &mut draw).map(Some)
        })
    };
    let mut cell = Cell { setting, rounds: more(0)? };
    for nth in 1..=MORE {
        if figures::gain(&cell, Method::Log).is_none_or(|gain| gain.noise <= STEADY) {
            break;
        }
        cell.rounds.append(more(nth * rounds)?);
    }
    Ok(cell)
}
