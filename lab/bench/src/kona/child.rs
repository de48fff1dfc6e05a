//! `farmem-lab bench-child kona`: one of the programs, for somebody to look at.

use std::io::Write;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::stores::{Ledger, Touched, Unnoted};
use super::workloads::{Name, Workload};

/// Which, how large, for how long.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// The program
    name: Name,
    /// Memory: 2^N KiB
    #[arg(long, default_value_t = 16)]
    scale: u32,
    /// Seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Count its own stores in so many windows of a tenth of a pass, instead of running for a time
    #[arg(long)]
    count: Option<usize>,
    /// Seconds before it is measured
    #[arg(long, default_value_t = 0.0)]
    warm_up: f64,
    /// Seconds to run
    #[arg(long, default_value_t = 3600.0)]
    seconds: f64,
    /// Seconds for a pass, however fast it could be
    #[arg(long)]
    pass_seconds: Option<f64>,
}

/// How fast it was.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Speed {
    /// Operations.
    pub ops: u64,
    /// In so many seconds.
    pub seconds: f64,
}

/// Runs it. Says `ready` when its memory is filled, and prints what it did.
///
/// # Errors
/// Nobody listens.
pub fn run(options: &Options) -> anyhow::Result<String> {
    let mut workload = Workload::new(options.name, options.scale, options.seed);
    if let Some(windows) = options.count {
        return Ok(serde_json::to_string(&count(&mut workload, windows))?);
    }
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    out.flush()?;
    let most = options.pass_seconds.map(|seconds| workload.pass() as f64 / seconds);
    work(&mut workload, Duration::from_secs_f64(options.warm_up), most);
    Ok(serde_json::to_string(&work(&mut workload, Duration::from_secs_f64(options.seconds), most))?)
}

/// `most`: operations a second.
fn work(workload: &mut Workload, time: Duration, most: Option<f64>) -> Speed {
    let begun = Instant::now();
    let mut ops = 0;
    while begun.elapsed() < time {
        ops += workload.step(&mut Unnoted);
        if let Some(most) = most {
            hold(begun, ops, most);
        }
    }
    Speed { ops, seconds: begun.elapsed().as_secs_f64() }
}

/// Sleeps when so many operations are more than `most` a second.
pub fn hold(begun: Instant, ops: u64, most: f64) {
    let ahead = Duration::from_secs_f64(ops as f64 / most).saturating_sub(begun.elapsed());
    if ahead > Duration::from_millis(1) {
        std::thread::sleep(ahead);
    }
}

/// Its own stores, in windows of a tenth of a pass, all windows together.
pub fn count(workload: &mut Workload, windows: usize) -> Touched {
    let tenth = (workload.pass() / 10) as u64;
    let (mut ledger, mut sum) = (Ledger::default(), Touched::default());
    for _ in 0..windows {
        let mut done = 0;
        while done < tenth {
            done += workload.step(&mut ledger);
        }
        sum.add(ledger.take());
    }
    sum
}
