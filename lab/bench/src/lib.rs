//! Benchmarks: farmem and what it is compared with, in one run on one machine.
//!
//! A benchmark is a list of *systems* (farmem over shm, swap to zram, …), each of
//! which runs the same *program* (a hidden subcommand of this binary, see
//! [`child`]) in *rounds*: every system once, then every system again in reverse
//! order. Ratios are taken within a round, so that a slow minute of a shared
//! machine falls on both sides of the division.
//!
//! | file | |
//! |---|---|
//! | [`paging`] | `farmem-lab bench paging`: what one access to far memory costs |
//! | [`evict`] | `farmem-lab bench evict`: what it costs to bring changed lines to a node |
//! | [`apps`] | `farmem-lab bench apps`: what far memory costs real programs |
//! | [`dirty`] | `farmem-lab bench dirty`: the policies of `--dirty` over many programs |
//! | [`kona`] | `farmem-lab bench kona`: dirty bytes, lines, pages of programs, and what seeing them costs |
//! | [`counters`] | farmem's own, of a run under way |
//! | [`redis`] | a server whose values are overwritten |
//! | [`swap`] | swap areas and memory groups, for the baselines |
//!
//! Rounds and their ratios, programs under measurement, and reports are in `farmem_kit`.
//! How to read and trust the figures: `docs/design/bench.md`.

pub mod apps;
pub mod child;
pub mod counters;
pub mod dirty;
pub mod evict;
pub mod kona;
pub mod paging;
pub mod redis;
pub mod swap;

use std::path::Path;

/// `farmem-lab bench …`
#[derive(clap::Subcommand, Debug)]
pub enum Bench {
    /// What an access to far memory costs, against its floor and against swap
    Paging(paging::Options),
    /// What it costs to bring changed lines of pages to a node: records of lines against whole pages
    Evict(evict::Options),
    #[allow(missing_docs)] // Said once, above its options: clap shows that.
    Apps(apps::Options),
    #[allow(missing_docs)]
    Dirty(dirty::Options),
    #[allow(missing_docs)]
    Kona(kona::Options),
}

impl Bench {
    /// Runs the benchmark. `farmem` is the binary to measure, which is also the one that runs the programs.
    ///
    /// # Errors
    /// When no figure could be taken at all, a figure is wrong (a program read bytes it had not written), or
    /// Ctrl-C came. Systems that the machine cannot offer are no error: the report names them as skipped.
    pub fn run(self, farmem: &Path) -> anyhow::Result<()> {
        match self {
            Bench::Paging(options) => paging::run(&options, farmem),
            Bench::Evict(options) => evict::run(&options, farmem),
            Bench::Apps(options) => apps::run(&options, farmem),
            Bench::Dirty(options) => dirty::run(&options, farmem),
            Bench::Kona(options) => kona::run(&options, farmem),
        }
    }
}
