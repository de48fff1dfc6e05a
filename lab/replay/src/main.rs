//! `farmem-replay`: which policy would have done how well.

use anyhow::{Result, bail};
use clap::Parser;
use farmem_replay::{generate, plot, record, report, trace::Trace};
use std::path::PathBuf;

#[derive(Parser)]
#[command(about = "Replay page traces through farmem's cache policies")]
struct Options {
    /// Trace files; `.xz` ones through xz. None: the generated traces.
    files: Vec<PathBuf>,
    /// Generated traces as well as the files.
    #[arg(long)]
    generated: bool,
    /// Local memory, in percent of the pages a trace touches.
    #[arg(long, value_delimiter = ',', default_value = "10%,25%,50%")]
    local: Vec<String>,
    /// Pages evicted together.
    #[arg(long, default_value_t = 256)]
    batch: usize,
    /// The staging ring, in thousandths of local memory.
    #[arg(long, default_value_t = 0)]
    staging: usize,
    /// Seed of the generated traces.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Compare sizes of probation, ghosts and credit instead.
    #[arg(long)]
    sweep: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Write a plot of the miss ratios here.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Record the trace of a program (given after `--`) under valgrind into this file.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Records to stop after.
    #[arg(long, default_value_t = 2_000_000)]
    most: usize,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(to) = &options.record {
        let program: Vec<String> = options.files.iter().map(|f| f.display().to_string()).collect();
        println!("{} records", record::record(&program, to, options.most)?);
        return Ok(());
    }
    let mut traces = options.files.iter().map(|f| Trace::open(f)).collect::<Result<Vec<_>>>()?;
    if options.generated || traces.is_empty() {
        traces.extend(generate::all(options.seed));
    }
    let shares = options.local.iter().map(|s| percent(s)).collect::<Result<Vec<_>>>()?;
    if options.sweep {
        print!("{}", report::sweep(&traces, &shares, options.batch, options.staging));
        return Ok(());
    }
    let report = report::run(&traces, &shares, options.batch, options.staging);
    if options.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.table());
    }
    if let Some(to) = &options.plot {
        std::fs::write(to, plot::svg(&report))?;
    }
    Ok(())
}

fn percent(text: &str) -> Result<usize> {
    match text.trim_end_matches('%').parse() {
        Ok(share @ 1..=100) => Ok(share),
        _ => bail!("--local {text}: a share from 1% to 100% is needed"),
    }
}
