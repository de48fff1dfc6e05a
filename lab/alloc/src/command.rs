//! `farmem-lab bench alloc …`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use farmem_kit::chart::sheet;
use farmem_kit::report;
use serde::Serialize;

use crate::found::{Report, Row, Skipped, size_name};
use crate::real;
use crate::recovery;
use crate::run::Load;
use crate::sim::costs::{Costs, SHIPPED};
use crate::systems::System;
use crate::traces::{self, Lifetime, Trace};

const EXAMPLES: &str = "\
Examples:
  farmem-lab bench alloc --quick
      Three sizes, three numbers of clients: a look, in a minute or two.
  farmem-lab bench alloc --sizes 4K --clients 512 --json alloc.json --svg alloc.svg
      The published setting.
  farmem-lab bench alloc --print-rnic > mine.toml
  farmem-lab bench alloc --rnic mine.toml
      With latencies of your own.

  farmem-lab bench alloc --real
      1 to 8 processes at a real node, over shm and tcp: verbs, latency, the
      node's CPU.

Everything but --real is simulated in virtual time and follows from --seed, but for the rate of recovery, \
which is measured on this machine.";

/// What allocating far memory costs: farmem's extents, FineMem, OneSidedMW, a free array, calls
///
/// All of them on simulated network cards with published latencies, each implemented in full, each
/// grant checked by the same ledger. The workload of the papers: fill to 70 %, free half at random,
/// allocate it again.
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Small pools, few sizes: a look, not a figure to quote
    #[arg(long)]
    quick: bool,
    /// Sizes to allocate: powers of two from 4K to 2M [default: all; with --quick 4K,64K,2M]
    #[arg(long, value_delimiter = ',', value_name = "SIZE", value_parser = order_of)]
    sizes: Vec<Order>,
    /// Numbers of clients, 1 to 512 [default: 1,8,24,64,128,512; with --quick 1,24,512]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    clients: Vec<u32>,
    /// Systems to run
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = System::ALL)]
    systems: Vec<System>,
    /// GiB of the pool [default: 32768 units of the size, at least 1 GiB; with --quick 8192, at least 512 MiB]
    #[arg(long, value_name = "GIB", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pool: Option<u32>,
    /// Times that half is freed and allocated again [default: 2; with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// How full the pool is before half is freed, in percent
    #[arg(long, default_value_t = 70, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=90))]
    fill: u8,
    /// Clients of one host, which share an allocation service [default: the file's, 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    per_host: Option<u32>,
    /// Draws what is freed, latencies, places
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Simulate nothing: 1 to 8 processes claim blocks at a node on this machine, over shm and tcp. Only --quick,
    /// --rounds, --seed and --json are heeded
    #[arg(long, conflicts_with_all = ["traces", "svg", "pool", "sizes", "clients"])]
    real: bool,
    /// Also replay allocation traces: a folder of FineMem's (files named trace…, plain or .gz)
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// Costs of the simulated fabric
    #[arg(long, value_name = "FILE")]
    rnic: Option<PathBuf>,
    /// Print the costs that are used if no file is named, with their sources, and end
    #[arg(long)]
    print_rnic: bool,
    /// Write every figure
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw latencies of 4 KiB
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// 4 KiB << order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order(pub u8);

fn order_of(text: &str) -> Result<Order> {
    let (number, unit) = text.trim().split_at(text.trim().find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let kib = match unit.trim_end_matches("iB").to_ascii_uppercase().as_str() {
        "K" => number.parse::<u64>()?,
        "M" => number.parse::<u64>()?.saturating_mul(1024),
        _ => bail!("write sizes as 4K or 2M"),
    };
    let order = (0..=9).find(|&order| 4 << order == kib);
    order.map(Order).with_context(|| format!("{text} is no power of two from 4K to 2M"))
}

impl Options {
    fn orders(&self) -> Vec<u8> {
        let mut orders: Vec<u8> = match (self.sizes.is_empty(), self.quick) {
            (false, _) => self.sizes.iter().map(|order| order.0).collect(),
            (true, true) => vec![0, 4, 9],
            (true, false) => (0..=9).collect(),
        };
        orders.sort_unstable();
        orders.dedup();
        orders
    }

    fn client_counts(&self) -> Vec<u32> {
        let mut counts = match (self.clients.is_empty(), self.quick) {
            (false, _) => self.clients.clone(),
            (true, true) => vec![1, 24, 512],
            (true, false) => vec![1, 8, 24, 64, 128, 512],
        };
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    fn load(&self, order: u8, clients: u32, costs: &Costs) -> Load {
        let (units, least) = if self.quick { (8192u64, 512u64 << 20) } else { (32_768, 1 << 30) };
        let bytes = self.pool.map_or((units * (4096 << order)).max(least), |gib| u64::from(gib) << 30);
        Load {
            chunks: (bytes / 4096) as u32,
            order,
            clients,
            per_host: self.per_host.unwrap_or(costs.host.clients).min(clients),
            rounds: self.rounds.unwrap_or(if self.quick { 1 } else { 2 }),
            fill: f64::from(self.fill) / 100.0,
            seed: self.seed,
        }
    }

    fn costs(&self) -> Result<Costs> {
        match &self.rnic {
            None => Ok(Costs::shipped()),
            Some(file) => {
                let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
                Costs::parse(&text).with_context(|| file.display().to_string())
            }
        }
    }
}

/// Runs it and prints the report. `farmem` is this binary, which also runs the processes of `--real`.
///
/// # Errors
/// A file that cannot be read or written, a pool too small for the clients; an allocator that the ledger found wrong.
pub fn run(options: &Options, farmem: &Path) -> Result<()> {
    if options.print_rnic {
        print!("{SHIPPED}");
        return Ok(());
    }
    report::can_be_written([&options.json, &options.svg])?;
    if options.real {
        let rows = real::run(farmem, options.quick, options.rounds, options.seed)?;
        return options.json.as_deref().map_or(Ok(()), |path| write_json(path, &rows));
    }
    let costs = options.costs()?;
    let traces = options.traces.as_deref().map(Trace::open_all).transpose()?.unwrap_or_default();
    let mut rows = Vec::new();
    let mut skipped = Vec::new();
    let runs: Vec<(u8, u32, System)> = options
        .orders()
        .into_iter()
        .flat_map(|order| options.client_counts().into_iter().map(move |clients| (order, clients)))
        .flat_map(|(order, clients)| options.systems.iter().map(move |&system| (order, clients, system)))
        .collect();
    for (at, &(order, clients, system)) in runs.iter().enumerate() {
        let what = format!("{}, {}, {clients} clients", system.name(), size_name(order));
        let load = options.load(order, clients, &costs);
        let units = load.chunks >> order;
        ensure!(
            f64::from(units) * load.fill >= 2.0 * f64::from(clients),
            "{clients} clients and {units} units of {}: give a larger --pool",
            size_name(order)
        );
        eprintln!("{} of {}: {what}", at + 1, runs.len());
        if let Some(why) = too_long(system, &load) {
            skipped.push(Skipped { what, why });
            continue;
        }
        let outcome = system.run(load, &costs).with_context(|| format!("{what}, seed {}", options.seed))?;
        rows.push(Row { system, order, clients, pool: u64::from(load.chunks) * 4096, outcome });
    }
    let mut replays = Vec::new();
    for lifetime in [Lifetime::Quarter, Lifetime::Kept] {
        // What nothing is given back to tells of utilisation, and nothing new of the others.
        let wanted =
            |system: &System| lifetime == Lifetime::Quarter || matches!(system, System::Farmem | System::Finemem);
        for &system in options.systems.iter().filter(|system| !traces.is_empty() && wanted(system)) {
            eprintln!("traces, {lifetime:?}: {}", system.name());
            if system == System::FreeArray {
                skipped.push(Skipped { what: "free array, traces".into(), why: TOO_LONG.into() });
                continue;
            }
            let replay = traces::replay(&traces, system, (lifetime, None), options.seed, &costs);
            replays.push(replay.with_context(|| format!("traces on {}, seed {}", system.name(), options.seed))?);
        }
    }
    // In a pool with hardly more than is held at most: what a system wastes is then refused.
    let ours = replays.iter().find(|replay| replay.system == System::Farmem && replay.lifetime == Lifetime::Quarter);
    if let Some(pool) = ours.map(traces::tight) {
        let both = [System::Farmem, System::Finemem];
        for system in both.into_iter().filter(|system| options.systems.contains(system)) {
            eprintln!("traces, a tight pool: {}", system.name());
            let replay = traces::replay(&traces, system, (Lifetime::Quarter, Some(pool)), options.seed, &costs);
            replays.push(replay.with_context(|| format!("traces on {}, seed {}", system.name(), options.seed))?);
        }
    }
    let recovery = options.systems.contains(&System::Farmem).then(|| recovery::measure(16, 8));
    let report = Report { rows, skipped, replays, recovery, costs: &costs, seed: options.seed };
    let json = || Ok(serde_json::to_string_pretty(&report.json())?);
    report::tell(&report, &[(&options.json, &json), (&options.svg, &|| Ok(sheet("", &[report.chart()], 1)))])
}

fn write_json(path: &Path, figures: &impl Serialize) -> Result<()> {
    std::fs::write(path, serde_json::to_string_pretty(figures)?).with_context(|| format!("writing {}", path.display()))
}

const TOO_LONG: &str = "long to simulate";

/// The free array takes one CAS for each 4 KiB of an allocation, and clients who walk together undo each other's: what
/// is simulated grows with both.
fn too_long(system: System, load: &Load) -> Option<String> {
    let verbs = u64::from(load.clients) * (1 << load.order);
    (system == System::FreeArray && verbs > 512 * 16)
        .then(|| format!("{} CAS for each allocation and {} clients: {TOO_LONG}", 1 << load.order, load.clients))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_people_write_them() {
        assert_eq!(order_of("4K").unwrap(), Order(0));
        assert_eq!(order_of("64KiB").unwrap(), Order(4));
        assert_eq!(order_of("2m").unwrap(), Order(9));
        for wrong in ["4M", "3K", "K", "4", "", "99999999999999999999K"] {
            assert!(order_of(wrong).is_err(), "{wrong}");
        }
        assert_eq!([0, 7, 8, 9].map(size_name), ["4 KiB", "512 KiB", "1 MiB", "2 MiB"]);
    }
}
