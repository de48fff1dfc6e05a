//! `farmem-lab`: measures farmem, and proves it right.
//!
//! | command | crate |
//! |---|---|
//! | `farmem-lab bench`: what far memory costs, against its floor and against swap | lab/bench, lab/alloc |
//! | `farmem-lab malloc-bench`: an allocator on pieces of far memory | lab/malloc |
//! | `farmem-lab bench kv`: the store beside redis and memcached | lab/kv |
//! | `farmem-lab objects`: far objects against paging and near memory | lab/objects |
//! | `farmem-lab torture`: everything programs do to memory, verified | lab/torture |
//! | `farmem-lab replay`: which cache policy would have done how well | lab/replay |
//! | `farmem-lab placement`: how evenly slabs lie on the nodes of a rack | lab/placement |
//! | `farmem-lab swap-claims`: what claims of memory cost pages that leave, by allocator | lab/swap |
//! | `farmem-lab swap-cluster`: a cluster that swaps to far memory, by how that is granted | lab/swap |
//! | `farmem-lab rack`: a rack in virtual time, seed by seed | lab/racksim |
//! | `farmem-lab reprotect`: how fast copies are made again there, and what a program feels | lab/racksim |
//! | `farmem-lab up`, `fault`: a rack on one machine, and what happens to it | lab/up |
//!
//! It has the commands of `farmem` too, hidden: benchmarks start runs, nodes and agents of this very
//! binary, so that what is measured is never another build.

use std::path::PathBuf;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use farmem_cli::failure::Failure;
use farmem_cli::{Libraries, Program};

const LIBRARIES: Libraries = Libraries {
    preload: include_bytes!(env!("FARMEM_PRELOAD_SO")),
    recorder: include_bytes!(env!("FARMEM_RECORDER_SO")),
};

fn main() {
    farmem_cli::main_of::<Lab>(LIBRARIES);
}

/// Measures farmem, and proves it right
#[derive(Parser, Debug)]
#[command(name = "farmem-lab", version, disable_help_subcommand = true, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  farmem-lab bench paging --quick
      One access to far memory, in a minute or two: a look.
  farmem-lab torture --seconds 60
      Everything programs do to memory, every byte compared with a model.

The commands of farmem work here as well: farmem-lab run, farmem-lab node, …";

const BENCH_EXAMPLES: &str = "\
Examples:
  farmem-lab bench paging --quick
      One access to far memory, in a minute or two: a look.
  farmem-lab bench apps --quick --svg .
      Real programs with 100, 75, 50, 25 and 10 % of their far memory local.
  sudo farmem-lab bench paging --json paging.json
      As root: swap to zram and a loop device beside it, under the same limit.

Figures are of this machine and of the minute: systems take turns in rounds, and ratios are \
taken within a round. One benchmark runs at a time. Ctrl-C ends it and removes what it made \
(swap areas, memory groups, nodes).";

#[derive(Subcommand, Debug)]
enum Command {
    /// What far memory costs, against its floor and against swap
    #[command(subcommand, after_help = BENCH_EXAMPLES)]
    Bench(Bench),
    #[command(hide = true)]
    BenchChild(farmem_bench::child::Options),
    #[command(hide = true)]
    BenchAllocChild(farmem_alloc::real::child::Options),
    MallocBench(farmem_malloc::Options),
    #[command(hide = true)]
    MallocChild(farmem_malloc::child::Options),
    Objects(farmem_lab_objects::Options),
    #[command(hide = true)]
    ObjectsChild(farmem_lab_objects::child::Options),
    Torture(farmem_torture::Torture),
    #[command(hide = true)]
    TortureChild(farmem_torture::Child),
    Replay(farmem_replay::Replay),
    Placement(farmem_placement::Placement),
    SwapClaims(farmem_swap_lab::claims::Claims),
    SwapCluster(farmem_swap_lab::Swap),
    Rack(farmem_racksim::Rack),
    Reprotect(farmem_racksim::Reprotect),
    Up(farmem_up::Up),
    Fault(farmem_up::Happen),
    #[command(hide = true)]
    Relay(farmem_up::Relay),
    #[command(flatten)]
    Product(farmem_cli::Command),
}

/// `farmem-lab bench …`
#[derive(Subcommand, Debug)]
enum Bench {
    #[command(flatten)]
    Measured(farmem_bench::Bench),
    #[allow(missing_docs)] // Said once, above its options: clap shows that.
    Alloc(farmem_alloc::command::Options),
    #[allow(missing_docs)] // As above.
    Kv(farmem_lab_kv::Options),
}

/// [`Arguments`], with the product's commands hidden: `farmem --help` shows them.
struct Lab(Arguments);

impl CommandFactory for Lab {
    fn command() -> clap::Command {
        let product = farmem_cli::Command::augment_subcommands(clap::Command::new("farmem"));
        product.get_subcommands().fold(Arguments::command(), |lab, command| {
            lab.mut_subcommand(command.get_name(), |command| command.hide(true))
        })
    }

    fn command_for_update() -> clap::Command {
        Lab::command()
    }
}

impl FromArgMatches for Lab {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Lab, clap::Error> {
        Arguments::from_arg_matches(matches).map(Lab)
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl Program for Lab {
    fn execute(self) -> Result<(), Failure> {
        match self.0.command {
            Command::Bench(Bench::Alloc(options)) => farmem_alloc::command::run(&options, &myself()?)?,
            Command::Bench(Bench::Measured(bench)) => bench.run(&myself()?)?,
            Command::BenchChild(options) => farmem_bench::child::run(options)?,
            Command::BenchAllocChild(options) => farmem_alloc::real::child::run(&options)?,
            Command::MallocBench(options) => options.run(&myself()?)?,
            Command::MallocChild(options) => farmem_malloc::child::run(&options)?,
            Command::Bench(Bench::Kv(options)) => options.run(&myself()?)?,
            Command::Objects(options) => options.run(&myself()?)?,
            Command::ObjectsChild(options) => farmem_lab_objects::child::run(&options)?,
            Command::Torture(torture) => std::process::exit(torture.run()?),
            Command::TortureChild(child) => child.run()?,
            Command::Replay(replay) => replay.run()?,
            Command::Placement(placement) => placement.run()?,
            Command::SwapClaims(claims) => claims.run()?,
            Command::SwapCluster(swap) => swap.run()?,
            Command::Up(up) => std::process::exit(up.run(myself()?)?),
            Command::Fault(fault) => fault.run()?,
            Command::Relay(relay) => relay.run()?,
            Command::Rack(rack) => rack.run()?,
            Command::Reprotect(reprotect) => reprotect.run()?,
            Command::Product(command) => command.execute()?,
        }
        Ok(())
    }
}

fn myself() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this binary")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_products_commands_are_there_and_hidden() {
        let lab = Lab::command();
        let hidden = |name: &str| lab.find_subcommand(name).map(clap::Command::is_hide_set);
        assert_eq!(["run", "node", "agent", "keep"].map(hidden), [Some(true); 4]);
        assert_eq!(["bench", "torture", "replay", "malloc-bench"].map(hidden), [Some(false); 4]);
    }

    #[test]
    fn help_fits_a_terminal_of_eighty_columns() {
        for line in [EXAMPLES, BENCH_EXAMPLES].iter().flat_map(|text| text.lines().filter(|line| line.starts_with(' ')))
        {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
