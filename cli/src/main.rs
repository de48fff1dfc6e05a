//! `farmem`: more memory than the machine has.
//!
//! | command | file |
//! |---|---|
//! | `farmem run`: a program on far memory | `run/` |
//! | `farmem node`: lend this machine's memory | `node.rs` |
//! | `farmem bench`: what it costs, against its floor and against swap | lab/bench |
//! | `farmem torture`: everything programs do to memory, verified | lab/torture |
//! | `farmem replay`: which policy would have done how well | lab/replay |
//! | `farmem demo`: a program with less and less local memory | `demo/` |
//! | `farmem top`: what runs and nodes are doing | `top/` |
//! | `farmem manual`: man pages and completions, for packages | `manual.rs` |
//! | `farmem keep`: what `run` leaves behind for daemons | `run/keeper.rs` |

mod counters;
mod demo;
mod failure;
mod library;
mod manual;
mod node;
mod program;
mod run;
mod runtime_dir;
mod size;
mod time;
mod top;
mod units;

use std::io::Write;

use clap::Parser;
use clap::error::ErrorKind;
use failure::Failure;
use farmem_protocol::exit;

/// More memory than the machine has: programs borrow RAM from other machines, unchanged
#[derive(Parser, Debug)]
#[command(name = "farmem", version, disable_help_subcommand = true)]
struct Farmem {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Run(run::Options),
    Node(node::Options),
    /// What far memory costs, against its floor and against swap
    #[command(subcommand)]
    Bench(farmem_bench::Bench),
    #[command(hide = true)]
    BenchChild(farmem_bench::child::Options),
    Torture(farmem_torture::Torture),
    #[command(hide = true)]
    TortureChild(farmem_torture::Child),
    Replay(farmem_replay::Replay),
    Top(top::Options),
    Demo(demo::Options),
    #[command(hide = true)]
    Manual(manual::Options),
    #[command(hide = true)]
    Keep(run::keeper::Options),
}

fn main() {
    let ended = match Farmem::try_parse() {
        Ok(farmem) => farmem.command.execute(),
        Err(refused) => Err(explain(&refused)),
    };
    if let Err(failure) = ended {
        // Standard error may be closed; the status still tells.
        let _ = writeln!(std::io::stderr(), "farmem: {}", failure.line);
        std::process::exit(failure.status);
    }
}

impl Command {
    fn execute(self) -> Result<(), Failure> {
        match self {
            Command::Run(options) => run::run(&options).map(|never| match never {}),
            Command::Node(options) => node::run(&options),
            Command::Bench(bench) => {
                let farmem = std::env::current_exe().map_err(|e| Failure::usage(format!("cannot find myself: {e}")))?;
                Ok(bench.run(&farmem)?)
            }
            Command::BenchChild(options) => Ok(farmem_bench::child::run(options)?),
            Command::Torture(torture) => std::process::exit(torture.run()?),
            Command::TortureChild(child) => Ok(child.run()?),
            Command::Replay(replay) => Ok(replay.run()?),
            Command::Top(options) => top::run(&options),
            Command::Manual(options) => manual::write(&options),
            Command::Demo(options) => demo::run(&options),
            Command::Keep(options) => run::keeper::keep(&options),
        }
    }
}

/// Help goes out as it is; a mistake becomes one line.
fn explain(refused: &clap::Error) -> Failure {
    match refused.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = refused.print();
            std::process::exit(0);
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = refused.print();
            std::process::exit(exit::USAGE);
        }
        _ => Failure::usage(one_line(&refused.render().to_string())),
    }
}

/// The first paragraph of a message, which names the mistake, as one line.
fn one_line(message: &str) -> String {
    let first = message.trim_start().split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}
