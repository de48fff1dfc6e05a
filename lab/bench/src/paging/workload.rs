//! The program that paging is measured with: an array larger than local memory.
//!
//! ```text
//! first touch ─► fill ─► for each arrangement of threads:  random read ─► random write ─► read in order, twice
//!                                                           └ warm-up      └ warm-up                  │
//!                                                          audit: every word of every page ◄──────────┘
//! ```
//! Every read is checked against the word that was written, every write adds one
//! to a word, and the audit at the end accounts for each of them: a system that
//! loses one write, or mixes up two pages, yields no figure.

use anyhow::{Context, ensure};
use farmem_protocol::random::Random;
use farmem_sys::clock;
use serde::{Deserialize, Serialize};

use super::array::{Array, COUNTING, WORDS, sampled_word};
use super::faults::{Faults, Meter};
use super::footprint::Footprint;
use super::measure::{self, Phase, Placement, Threads, What};
use crate::swap;

/// What to do.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Pages of the array
    #[arg(long)]
    pages: usize,
    /// Pages of fresh memory that are touched first; they must fit into local memory
    #[arg(long)]
    fresh: usize,
    /// Random accesses of each kind
    #[arg(long)]
    accesses: usize,
    /// Random accesses of each kind beforehand, not timed
    #[arg(long)]
    warm_up: usize,
    /// Arrangements of threads
    #[arg(long, value_delimiter = ',')]
    threads: Vec<Threads>,
    /// CPUs of the first and the second thread
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Where every page and word comes from
    #[arg(long)]
    seed: u64,
    /// Memory group to join first
    #[arg(long)]
    group: Option<std::path::PathBuf>,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// In the order they ran.
    pub phases: Vec<Phase>,
    /// Counts at the end, levels included.
    pub totals: Faults,
    /// What was resident at the end.
    pub footprint: Footprint,
}

/// Runs it.
///
/// # Errors
/// Memory that cannot be had; bytes that are not those that were written.
pub fn run(options: &Options) -> anyhow::Result<Outcome> {
    if let Some(group) = &options.group {
        swap::join(group).context("joining the memory group")?;
    }
    clock::calibrate();
    let placement = Placement { cpus: options.cpus.as_slice().try_into().ok() };
    let run = std::env::var("FARMEM_RUN").ok();
    let meter = Meter::new(run.as_deref());
    let array = Array::map(options.pages, options.seed).context("mapping the array")?;
    let program = Program { options, array, meter, placement };

    let mut phases = vec![program.first_touch()?, program.fill()?];
    let mut written = [0; 2];
    for (turn, &threads) in options.threads.iter().enumerate() {
        phases.push(program.random_read(threads, turn)?);
        phases.push(program.random_write(threads, turn, &mut written)?);
        // The first pass pushes out what the writes have left, and is the second's warm-up.
        phases.push(program.sequential_read(What::ReadAfterWrites, threads)?);
        phases.push(program.sequential_read(What::SequentialRead, threads)?);
    }
    program.audit(written)?;
    let array = program.array.address()..program.array.address() + options.pages * WORDS * 8;
    Ok(Outcome { phases, totals: program.meter.now(), footprint: Footprint::read(array)? })
}

struct Program<'a> {
    options: &'a Options,
    array: Array,
    meter: Meter,
    placement: Placement,
}

impl Program<'_> {
    fn first_touch(&self) -> anyhow::Result<Phase> {
        let fresh = Array::map(self.options.fresh, 0).context("mapping fresh memory")?;
        let before = self.meter.now();
        let samples = measure::run(Threads::Solo, self.placement, |_, samples, _| {
            samples.timed(|samples| {
                (0..fresh.pages()).for_each(|page| samples.take(|| fresh.write(page, 0, 1)));
                Ok(())
            })
        })?;
        Ok(samples.into_phase(What::FirstTouch, Threads::Solo, self.meter.now().since(&before)))
    }

    fn fill(&self) -> anyhow::Result<Phase> {
        let before = self.meter.now();
        let samples = measure::run(Threads::Solo, self.placement, |_, samples, _| {
            samples.timed(|samples| {
                (0..self.array.pages()).for_each(|page| samples.take(|| self.array.fill(page)));
                Ok(())
            })
        })?;
        Ok(samples.into_phase(What::Fill, Threads::Solo, self.meter.now().since(&before)))
    }

    fn draw(&self, kind: u64, turn: usize, thread: usize) -> Random {
        Random::new(self.options.seed ^ kind << 56 ^ (turn as u64) << 48 ^ (thread as u64) << 40)
    }

    fn random_read(&self, threads: Threads, turn: usize) -> anyhow::Result<Phase> {
        let read = |draw: &mut Random, samples: Option<&mut measure::Samples>| {
            let page = draw.index(self.array.pages());
            let word = sampled_word(self.options.seed, page);
            let got = match samples {
                Some(samples) => samples.take(|| self.array.read(page, word)),
                None => self.array.read(page, word),
            };
            self.check(page, word, got)
        };
        // Counts are of the timed part: the thread that starts first after the warm-up takes them.
        let before = std::sync::OnceLock::new();
        let samples = measure::run(threads, self.placement, |thread, samples, start| {
            let mut draw = self.draw(1, turn, thread);
            (0..self.options.warm_up).try_for_each(|_| read(&mut draw, None))?;
            start();
            before.get_or_init(|| self.meter.now());
            samples.timed(|samples| (0..self.options.accesses).try_for_each(|_| read(&mut draw, Some(samples))))
        })?;
        Ok(samples.into_phase(What::RandomRead, threads, self.counted_since(&before)))
    }

    fn random_write(&self, threads: Threads, turn: usize, written: &mut [u64; 2]) -> anyhow::Result<Phase> {
        let write = |thread: usize, draw: &mut Random, samples: Option<&mut measure::Samples>| {
            let page = draw.index(self.array.pages());
            let word = COUNTING[thread];
            let increment = || {
                let old = self.array.read(page, word);
                self.array.write(page, word, old.wrapping_add(1));
                old
            };
            let old = match samples {
                Some(samples) => samples.take(increment),
                None => increment(),
            };
            let count = old.wrapping_sub(self.array.content(page, word));
            ensure!(count < 1 << 32, "page {page}: {old:#x} was never written to word {word}");
            Ok(())
        };
        let before = std::sync::OnceLock::new();
        let samples = measure::run(threads, self.placement, |thread, samples, start| {
            let mut draw = self.draw(2, turn, thread);
            (0..self.options.warm_up).try_for_each(|_| write(thread, &mut draw, None))?;
            start();
            before.get_or_init(|| self.meter.now());
            samples
                .timed(|samples| (0..self.options.accesses).try_for_each(|_| write(thread, &mut draw, Some(samples))))
        })?;
        let each = (self.options.warm_up + self.options.accesses) as u64;
        written[0] += each;
        written[1] += if threads == Threads::Both { each } else { 0 };
        Ok(samples.into_phase(What::RandomWrite, threads, self.counted_since(&before)))
    }

    /// With two threads, each reads a half.
    fn sequential_read(&self, what: What, threads: Threads) -> anyhow::Result<Phase> {
        let before = std::sync::OnceLock::new();
        let samples = measure::run(threads, self.placement, |thread, samples, start| {
            let pages = self.array.pages();
            let pages = match threads {
                Threads::Both => thread * (pages / 2)..(thread + 1) * (pages / 2),
                _ => 0..pages,
            };
            start();
            before.get_or_init(|| self.meter.now());
            samples.timed(|samples| {
                pages.into_iter().try_for_each(|page| {
                    let word = sampled_word(self.options.seed, page);
                    let got = samples.take(|| self.array.read(page, word));
                    self.check(page, word, got)
                })
            })
        })?;
        Ok(samples.into_phase(what, threads, self.counted_since(&before)))
    }

    fn counted_since(&self, before: &std::sync::OnceLock<Faults>) -> Faults {
        before.get().map(|before| self.meter.now().since(before)).unwrap_or_default()
    }

    #[inline(always)]
    fn check(&self, page: usize, word: usize, got: u64) -> anyhow::Result<()> {
        let written = self.array.content(page, word);
        ensure!(got == written, "page {page}, word {word} reads {got:#x} where {written:#x} was written");
        Ok(())
    }

    /// Every word is as filled, and the counting words add up to the writes made.
    fn audit(&self, written: [u64; 2]) -> anyhow::Result<()> {
        let mut counted = [0u64; 2];
        for page in 0..self.array.pages() {
            for word in 0..WORDS {
                let got = self.array.read(page, word);
                match COUNTING.iter().position(|&counting| counting == word) {
                    Some(thread) => {
                        let added = got.wrapping_sub(self.array.content(page, word));
                        counted[thread] = counted[thread].wrapping_add(added);
                    }
                    None => self.check(page, word, got)?,
                }
            }
        }
        ensure!(counted == written, "{written:?} writes were made, {counted:?} are there");
        Ok(())
    }
}
