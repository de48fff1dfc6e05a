//! Average memory access time on far-memory systems: `farmem amat`.
//!
//! A program's loads and stores go through a CPU's caches. The caches' misses go to local memory of
//! some size, and that memory's misses to far memory. How long does the average access take? Kona's
//! authors asked this with KCacheSim (ASPLOS '21).
//!
//! ```text
//! program ─ qemu, lackey ┐
//! trace ────────── file ─┼─► reference ─► cpu ─► local (every size) ─► counts ─► model ─► report, plot
//! pattern ───── generate ┘                simulate: one pass for all systems
//! ```
//!
//! | module | |
//! |---|---|
//! | [`mod@record`], [`qemu`], [`mod@decode`], [`lackey`] | references of a program that runs |
//! | [`mod@reference`], [`mod@file`], [`generate`] | what a reference is; recorded and made-up ones |
//! | [`cpu`], [`local`], [`simulate`] | which accesses hit in which level |
//! | [`formula`], [`model`] | the cost of that: by the published formula, and by a fuller model |
//! | [`system`], [`calibrate`] | the systems compared |
//!
//! A *reference* is one load or store. `docs/design/amat.md` says what the figures mean, and what
//! they do not.

#![forbid(unsafe_code)]

pub mod calibrate;
pub mod cpu;
pub mod decode;
pub mod file;
pub mod formula;
pub mod generate;
pub mod lackey;
pub mod local;
pub mod model;
pub mod plot;
pub mod qemu;
pub mod record;
pub mod reference;
pub mod report;
pub mod simulate;
pub mod system;

use anyhow::{Context, Result, anyhow, bail};
use farmem_kit::usage::Usage;
use file::End;
use generate::{Generated, Pattern};
use model::Setting;
use record::{By, Progress, Recording};
use reference::Sink;
use report::{Caches, Report, Row};
use simulate::{Footprint, Simulation};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, Seek};
use std::path::PathBuf;
use system::{Bytes, SHIPPED, System};

/// Average memory access time of a program on far-memory systems
///
/// Records a program's loads and stores (by QEMU, or by valgrind where there is none), or reads
/// such a recording, or makes up a pattern, and simulates CPU caches, local and far memory. One
/// pass over the trace serves all systems and sizes; the same trace gives the same figures.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Amat {
    /// Recorded traces
    #[arg(value_name = "TRACE", conflicts_with = "generate")]
    pub traces: Vec<PathBuf>,
    /// The program to record, with its arguments. Programs that it becomes by exec are recorded too
    #[arg(last = true, value_name = "PROGRAM", conflicts_with_all = ["traces", "generate"])]
    pub program: Vec<OsString>,
    /// Keep the program's recording here, to be read again
    #[arg(long, value_name = "FILE", requires = "program", conflicts_with_all = ["traces", "generate"])]
    pub record: Option<PathBuf>,
    /// Record the program's children too, in the same trace
    #[arg(long, requires = "program")]
    pub follow: bool,
    /// The tool that records. QEMU is in the package qemu-user; lackey takes 50 times as long
    #[arg(long, value_name = "TOOL", value_enum, default_value = "auto", requires = "program")]
    pub by: By,
    /// Make up references instead
    #[arg(long, value_name = "PATTERN")]
    pub generate: Option<Pattern>,
    /// The size of the array that the made-up references go to
    #[arg(long, default_value = "256M", requires = "generate")]
    pub array: Bytes,
    /// How many references to make up, in millions
    #[arg(long, value_name = "MILLIONS", default_value_t = 20, requires = "generate", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub references: u64,
    /// The seed of made-up references: the same seed gives the same references
    #[arg(long, default_value_t = 1, requires = "generate")]
    pub seed: u64,
    /// Systems: names of shipped ones, or files that describe them; all shipped ones if none
    #[arg(short, long = "system", value_name = "SYSTEM", value_delimiter = ',')]
    pub systems: Vec<String>,
    /// Local memory, in percent of the pages that the program touches
    #[arg(long, value_name = "SHARES", value_delimiter = ',', default_value = "10%,25%,50%,100%", value_parser = share)]
    pub local: Vec<f64>,
    /// Block sizes to compare, instead of each system's own
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    pub block: Vec<Bytes>,
    /// Watch only this share of local memory; figures then have their error beside them
    #[arg(long, value_name = "SHARE", default_value = "100%", value_parser = part)]
    pub sample: f64,
    /// Threads that share the link
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: u32,
    /// The published formula alone: no prefetch, write-back, bandwidth or queueing, and fresh
    /// memory is fetched
    #[arg(long)]
    pub published: bool,
    /// Take latencies of this machine from a report of `farmem-lab bench paging --json`
    #[arg(long, value_name = "FIGURES.json")]
    pub calibrate: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write plots here: AMAT against local memory, and against block size if several are compared
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// Print the description of a shipped system, to write one's own from, and nothing else
    #[arg(long, value_name = "SYSTEM", exclusive = true)]
    pub show: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  farmem amat -- python3 -c 'print(sum(range(10**6)))'
  farmem amat --record sort.refs -- sort big.txt  keep the recording
  farmem amat sort.refs --local 5%,10%,20%        and ask it again
  farmem amat --generate zipf --array 1G --sample 10%
  farmem amat --generate zipf --system kona --block 64,1K,4K,32K --svg b.svg
  farmem amat --show kona > mine.toml             describe a system of one's own";

fn share(text: &str) -> Result<f64, &'static str> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 400.0 => Ok(share / 100.0),
        _ => Err("a share above 0% and at most 400% is needed, such as 25%"),
    }
}

fn part(text: &str) -> Result<f64, &'static str> {
    share(text).ok().filter(|&part| part <= 1.0).ok_or("a share above 0% is needed, and at most 100%")
}

/// A source of references. It tells them twice: once to find how much memory is touched, and once
/// to simulate.
enum Origin {
    File(PathBuf),
    /// A recording that is not kept after this run, and the name of the program.
    Recorded(File, String),
    Generated(Generated),
}

impl Origin {
    fn name(&self) -> String {
        match self {
            Origin::File(path) => path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
            Origin::Recorded(_, program) => program.clone(),
            Origin::Generated(generated) => {
                let pattern = format!("{:?}", generated.pattern).to_lowercase();
                format!("{pattern} over {}", report::size(generated.bytes))
            }
        }
    }

    fn tell(&self, sink: &mut dyn Sink) -> Result<End> {
        match self {
            Origin::File(path) => {
                let file = File::open(path).with_context(|| path.display().to_string())?;
                file::read(BufReader::with_capacity(1 << 20, file), sink).with_context(|| path.display().to_string())
            }
            Origin::Recorded(file, program) => {
                let mut file = file;
                let rewound = file.rewind().map_err(anyhow::Error::from);
                let told = rewound.and_then(|()| file::read(BufReader::with_capacity(1 << 20, file), sink));
                told.with_context(|| format!("the recording of {program}"))
            }
            Origin::Generated(generated) => {
                generated.run(sink);
                Ok(End::Whole)
            }
        }
    }
}

impl Amat {
    /// Simulates, and prints the results. `plugin` is the built library of `farmem-recorder`.
    ///
    /// # Errors
    /// A system, a trace or the program cannot be used. The error says which and why.
    pub fn run(self, plugin: &[u8]) -> Result<()> {
        if let Some(name) = &self.show {
            let Some((_, text)) = SHIPPED.iter().find(|(shipped, _)| shipped == name) else {
                let there = SHIPPED.map(|(name, _)| name).join(", ");
                return Err(Usage::of(anyhow!("no system '{name}' is shipped; there are {there}")));
            };
            print!("{text}");
            return Ok(());
        }
        let systems = self.described().map_err(Usage::of)?;
        let sources = self.traces.len() + usize::from(self.generate.is_some()) + usize::from(!self.program.is_empty());
        if sources == 0 {
            let what = anyhow!("nothing to simulate: name a trace, a program after --, or --generate a pattern");
            return Err(Usage::of(what));
        }
        // An error of the file is found here, before a recording that may take hours.
        if let Some(path) = &self.svg {
            if sources > 1 {
                return Err(Usage::of(anyhow!("--svg draws one trace at a time")));
            }
            let opened = File::options().append(true).create(true).open(path);
            opened.with_context(|| path.display().to_string()).map_err(Usage::of)?;
        }
        let mut origins: Vec<Origin> = self.traces.iter().cloned().map(Origin::File).collect();
        if let Some(pattern) = self.generate {
            let (bytes, references) = (self.array.0, self.references * 1_000_000);
            origins.push(Origin::Generated(Generated { pattern, bytes, references, seed: self.seed }));
        }
        if !self.program.is_empty() {
            let recording = Recording { program: &self.program, by: self.by, follow: self.follow, plugin };
            origins.push(recording.run(self.record.as_deref())?);
        }
        let mut reports = vec![];
        let mut drawn = Ok(());
        for origin in &origins {
            let report = self.simulate(origin, &systems).map_err(|error| match origin {
                Origin::File(_) => Usage::of(error),
                Origin::Recorded(..) | Origin::Generated(_) => error,
            })?;
            // The plot is written before the figures are printed. The reader of the figures may
            // close the pipe early (`| head`), which ends this program. An error is returned after
            // them.
            if let Some(path) = &self.svg {
                drawn = std::fs::write(path, plot::svg(&report)).with_context(|| path.display().to_string());
            }
            if !self.json {
                println!("{report}");
            }
            reports.push(report);
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&reports)?);
        }
        drawn
    }

    fn described(&self) -> Result<Vec<System>> {
        let shipped: Vec<String> = SHIPPED.iter().map(|(name, _)| (*name).to_owned()).collect();
        let names = if self.systems.is_empty() { &shipped } else { &self.systems };
        let mut systems = names.iter().map(|name| System::find(name)).collect::<Result<Vec<_>>>()?;
        if let Some(path) = &self.calibrate {
            let figures = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            let told = calibrate::calibrate(&mut systems, &figures).with_context(|| path.display().to_string())?;
            told.iter().for_each(|line| eprintln!("calibrated {line}"));
        }
        if let Some(block) = self.block.iter().find(|b| !b.0.is_power_of_two() || !(64..=2 << 20).contains(&b.0)) {
            bail!("--block: sizes are powers of two from 64 to 2M, not {}", block.0);
        }
        if self.published {
            systems.iter_mut().for_each(|system| system.prefetch = 0);
        }
        Ok(systems)
    }

    fn simulate(&self, origin: &Origin, systems: &[System]) -> Result<Report> {
        let mut footprint = Footprint::default();
        if origin.tell(&mut footprint)? == End::CutOff {
            eprintln!("{}: cut off; read as far as it goes", origin.name());
        }
        if footprint.references == 0 {
            bail!("{}: no references", origin.name());
        }
        let mut locals = self.local.clone();
        locals.sort_by(f64::total_cmp);
        locals.dedup();
        let sizes: Vec<u64> = locals.iter().map(|share| (footprint.bytes() as f64 * share).ceil() as u64).collect();
        let blocks = |system: &System| match self.block.as_slice() {
            [] => vec![system.local.block.0],
            blocks => blocks.iter().map(|block| block.0).collect(),
        };
        let pairs: Vec<(&System, u64)> =
            systems.iter().flat_map(|system| blocks(system).into_iter().map(move |block| (system, block))).collect();
        let simulation = Simulation::new(pairs.iter().copied(), &sizes, self.sample);
        let mut shown = Progress::of(simulation, footprint.references);
        origin.tell(&mut shown)?;
        let simulation = shown.done();

        let setting = Setting { threads: self.threads, published: self.published };
        let mut rows = vec![];
        for &(system, block) in &pairs {
            let (front, tallies) = simulation.result(system, block);
            for ((&local, &local_bytes), tally) in locals.iter().zip(&sizes).zip(&tallies) {
                let outcome = model::outcome(system, block, &front, tally, setting);
                rows.push(Row { system: system.name.clone(), block, local, local_bytes, outcome });
            }
        }
        let (front, _) = simulation.result(pairs[0].0, pairs[0].1);
        Ok(Report {
            trace: origin.name(),
            references: front.references.total(),
            reads: front.references.read,
            instructions: front.instructions,
            footprint: footprint.bytes(),
            caches: Caches::of(&front, pairs[0].0.cpu.iter().map(|level| level.name.clone())),
            sample: self.sample,
            rows,
        })
    }
}
