//! The commands of `farmem`: more memory than the machine has.
//!
//! | command | file |
//! |---|---|
//! | `farmem run`: a program on far memory | `run/` |
//! | `farmem size`: how much local memory a program needs | `sizing/` |
//! | `farmem node`: lend this machine's memory | `node.rs` |
//! | `farmem agent`: far memory in pieces, for this user's programs | `agent/` |
//! | `farmem kv`: a key-value store for redis clients | `kv/` |
//! | `farmem track`: which lines a running program dirties | tools/track |
//! | `farmem swap`: the kernel swaps to a node | `swap.rs` |
//! | `farmem amat`: how long a program's accesses take on far memory | tools/amat |
//! | `farmem demo`: a program with less and less local memory | `demo/` |
//! | `farmem status`: what a node lends, to whom; `farmem check`: whether that adds up | `inspect/` |
//! | `farmem controller`, `drain`, `undrain`, `forget`: many machines as one rack | `rack/` |
//! | `farmem region`: memory with a name, that programs share | `region.rs` |
//! | `farmem token`: who may borrow of a node | `token.rs` |
//! | `farmem top`: what runs and nodes are doing | `top/` |
//! | `farmem manual`: man pages and completions, for packages | `manual.rs` |
//! | `farmem keep`: what `run` leaves behind for daemons | `run/keeper.rs` |
//!
//! A library, because two binaries have these commands. `farmem` (`main.rs`) has nothing else.
//! `farmem-lab` (`lab/cli`) has what measures and proves as well, so that it measures the code that
//! it was built with.

mod agent;
mod borrow;
mod confined;
mod counters;
mod demo;
pub mod failure;
mod forbidden;
mod inspect;
mod kv;
mod lab;
mod leftovers;
mod library;
mod manual;
mod node;
mod program;
mod rack;
mod region;
mod run;
mod runtime_dir;
mod settings;
mod size;
mod sizing;
mod start;
mod swap;
mod time;
mod token;
mod top;
mod units;

use std::sync::OnceLock;

use clap::Parser;
use failure::Failure;
pub use start::Program;

/// Libraries that the binary carries. Empty where `cargo check` made it.
#[derive(Clone, Copy, Debug)]
pub struct Libraries {
    /// `libfarmem_preload.so`, which `farmem run` loads into programs.
    pub preload: &'static [u8],
    /// `libfarmem_recorder.so`, which QEMU loads for `farmem amat`.
    pub recorder: &'static [u8],
}

static CARRIED: OnceLock<Libraries> = OnceLock::new();

fn carried() -> Libraries {
    CARRIED.get().copied().unwrap_or(Libraries { preload: &[], recorder: &[] })
}

/// The main function of `farmem`.
pub fn main(libraries: Libraries) {
    main_of::<Farmem>(libraries);
}

/// The main function of a binary that has these commands and more.
pub fn main_of<P: Program>(libraries: Libraries) {
    CARRIED.get_or_init(|| libraries);
    start::start::<P>();
}

/// More memory than the machine has: programs borrow RAM from other machines, unchanged
#[derive(Parser, Debug)]
#[command(name = "farmem", version, disable_help_subcommand = true, after_help = EXAMPLES)]
struct Farmem {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
To begin with, on one machine:
  farmem demo
      Half a minute: a program with less and less of its memory local.
  farmem run --local 512M -- python3 analysis.py
      A program of yours; its far memory is lent by a second process.

On two:
  bighost$ farmem node --lend 8G --listen 0.0.0.0:7411 --open
  here$    farmem run --local 1G --node bighost:7411 -- redis-server
  here$    farmem top

Sizes are 512M, 1.5G (powers of 1024), or 25% of this machine's RAM.
Times are 500ms, 5s, 2m.
Each command has examples of its own: farmem run --help";

/// The commands of `farmem`.
#[derive(clap::Subcommand, Debug)]
#[allow(missing_docs)] // What a command does is said above its options: clap shows that.
pub enum Command {
    Run(run::Options),
    Size(sizing::Options),
    Node(node::Options),
    Agent(agent::Options),
    Controller(rack::controller::Options),
    Drain(rack::orders::Drain),
    Undrain(rack::orders::Undrain),
    Forget(rack::orders::Forget),
    Kv(kv::Options),
    #[command(hide = true)]
    AgentNode(agent::NodeOptions),
    Amat(farmem_amat::Amat),
    Track(farmem_track::Track),
    Swap(swap::Options),
    Status(inspect::status::Options),
    Check(inspect::check::Options),
    Region(region::Options),
    Token(token::Options),
    Top(top::Options),
    Demo(demo::Options),
    Lab(lab::Options),
    #[command(hide = true)]
    Manual(manual::Options),
    #[command(hide = true)]
    Keep(run::keeper::Options),
}

impl Program for Farmem {
    fn execute(self) -> Result<(), Failure> {
        self.command.execute()
    }
}

impl Command {
    /// Carries out the command.
    ///
    /// # Errors
    /// Says what is wrong, and the status to end with.
    pub fn execute(self) -> Result<(), Failure> {
        match self {
            Command::Run(options) => run::run(&options).map(|never| match never {}),
            Command::Size(options) => sizing::run(&options).map(|never| match never {}),
            Command::Node(options) => node::run(&options),
            Command::Agent(options) => agent::run(&options),
            Command::Controller(options) => rack::controller::run(&options),
            Command::Drain(options) => rack::orders::drain(&options),
            Command::Undrain(options) => rack::orders::undrain(&options),
            Command::Forget(options) => rack::orders::forget(&options),
            Command::Kv(options) => kv::run(&options),
            Command::AgentNode(options) => agent::run_node(&options),
            Command::Amat(amat) => {
                if let Some(name) = amat.program.first() {
                    program::there(name)?;
                }
                Ok(amat.run(carried().recorder)?)
            }
            Command::Track(track) => {
                if let Some(name) = track.command.first() {
                    program::there(name)?;
                }
                Ok(track.run()?)
            }
            Command::Swap(options) => swap::run(&options),
            Command::Status(options) => inspect::status::run(&options),
            Command::Check(options) => inspect::check::run(&options),
            Command::Region(options) => region::run(&options),
            Command::Token(options) => token::run(&options),
            Command::Top(options) => top::run(&options),
            Command::Manual(options) => manual::write(&options),
            Command::Demo(options) => demo::run(&options),
            Command::Lab(options) => lab::run(&options),
            Command::Keep(options) => run::keeper::keep(&options),
        }
    }
}
