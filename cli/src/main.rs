//! `farmem`: more memory than the machine has.
//!
//! | command | file |
//! |---|---|
//! | `farmem run`: a program on far memory | `run/` |
//! | `farmem node`: lend this machine's memory | `node.rs` |
//! | `farmem bench`: what it costs, against its floor and against swap | lab/bench |
//! | `farmem agent`: far memory in pieces, for this user's programs | `agent/` |
//! | `farmem malloc-bench`: an allocator on such pieces | lab/malloc |
//! | `farmem torture`: everything programs do to memory, verified | lab/torture |
//! | `farmem track`: which lines a running program dirties | lab/track |
//! | `farmem replay`: which policy would have done how well | lab/replay |
//! | `farmem demo`: a program with less and less local memory | `demo/` |
//! | `farmem status`: what a node lends, to whom; `farmem check`: whether that adds up | `pool/` |
//! | `farmem top`: what runs and nodes are doing | `top/` |
//! | `farmem manual`: man pages and completions, for packages | `manual.rs` |
//! | `farmem keep`: what `run` leaves behind for daemons | `run/keeper.rs` |

mod agent;
mod counters;
mod demo;
mod failure;
mod library;
mod manual;
mod node;
mod pool;
mod program;
mod run;
mod runtime_dir;
mod settings;
mod size;
mod time;
mod top;
mod units;

use std::ffi::OsString;
use std::io::Write;
use std::sync::atomic::{AtomicI32, Ordering};

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};
use failure::Failure;
use farmem_protocol::exit;

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
  bighost$ farmem node --lend 8G --listen 0.0.0.0:7411
  here$    farmem run --local 1G --node bighost:7411 -- redis-server
  here$    farmem top

Sizes are 512M, 1.5G (powers of 1024), or 25% of this machine's RAM.
Times are 500ms, 5s, 2m.
Each command has examples of its own: farmem run --help";

const BENCH_EXAMPLES: &str = "\
Examples:
  farmem bench paging --quick
      One access to far memory, in a minute or two: a look.
  farmem bench apps --quick --svg .
      Real programs with 100, 75, 50, 25 and 10 % of their far memory local.
  sudo farmem bench paging --json paging.json
      As root: swap to zram and a loop device beside it, under the same limit.

Figures are of this machine and of the minute: systems take turns in rounds, and ratios are \
taken within a round. One benchmark runs at a time. Ctrl-C ends it and removes what it made \
(swap areas, memory groups, nodes).";

#[derive(clap::Subcommand, Debug)]
enum Command {
    Run(run::Options),
    Node(node::Options),
    /// What far memory costs, against its floor and against swap
    #[command(subcommand, after_help = BENCH_EXAMPLES)]
    Bench(Bench),
    #[command(hide = true)]
    BenchChild(farmem_bench::child::Options),
    #[command(hide = true)]
    BenchAllocChild(farmem_alloc::real::child::Options),
    Agent(agent::Options),
    #[command(hide = true)]
    AgentNode(agent::NodeOptions),
    MallocBench(farmem_malloc::Options),
    #[command(hide = true)]
    MallocChild(farmem_malloc::child::Options),
    Torture(farmem_torture::Torture),
    #[command(hide = true)]
    TortureChild(farmem_torture::Child),
    Replay(farmem_replay::Replay),
    Amat(farmem_amat::Amat),
    Track(farmem_track::Track),
    Status(pool::status::Options),
    Check(pool::check::Options),
    Top(top::Options),
    Demo(demo::Options),
    #[command(hide = true)]
    Manual(manual::Options),
    #[command(hide = true)]
    Keep(run::keeper::Options),
}

/// `farmem bench …`
#[derive(clap::Subcommand, Debug)]
enum Bench {
    #[command(flatten)]
    Measured(farmem_bench::Bench),
    #[allow(missing_docs)] // Said once, above its options: clap shows that.
    Alloc(farmem_alloc::command::Options),
}

fn main() {
    end_with_output();
    let matches = numbers_as_values(Farmem::command()).try_get_matches();
    let ended = match matches.and_then(|matches| Farmem::from_arg_matches(&matches)) {
        Ok(farmem) => std::panic::catch_unwind(|| farmem.command.execute()),
        Err(refused) => Ok(Err(explain(&refused))),
    };
    let failure = match ended {
        Ok(Ok(())) => return,
        Ok(Err(failure)) => failure,
        // What is left on the way here has been put back: files, processes, swap areas.
        Err(panic) => match OUTPUT_ENDED.load(Ordering::Relaxed) {
            0 => std::panic::resume_unwind(panic),
            status => std::process::exit(status),
        },
    };
    // Standard error may be closed; the status still tells.
    let _ = writeln!(std::io::stderr(), "farmem: {}", failure.line);
    std::process::exit(failure.status);
}

/// Has options take `-1` for a value, and refuse it by its name, where it would be taken for a flag that nobody knows.
fn numbers_as_values(command: clap::Command) -> clap::Command {
    let option = |arg: &clap::Arg| !arg.is_positional() && arg.get_action().takes_values();
    command
        .mut_args(|arg| if option(&arg) { arg.allow_negative_numbers(true) } else { arg })
        .mut_subcommands(numbers_as_values)
}

/// The status to end with, once standard output takes no more.
static OUTPUT_ENDED: AtomicI32 = AtomicI32::new(0);

/// `println!` panics where standard output takes no more. A reader that went away (`| head`) has seen enough: the end,
/// with the status that a shell has for SIGPIPE. A full disk is a line. The main thread unwinds, for what commands made
/// is removed by values' `Drop`; another ends the process as it is.
fn end_with_output() {
    let default = std::panic::take_hook();
    let main = std::thread::current().id();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload_as_str().unwrap_or_default();
        let Some(why) = said.strip_prefix("failed printing to stdout: ") else { return default(panic) };
        let status = output_failed(why.starts_with("Broken pipe"), &why);
        OUTPUT_ENDED.store(status, Ordering::Relaxed);
        if std::thread::current().id() != main {
            std::process::exit(status);
        }
    }));
}

/// Says that standard output takes no more, unless its reader went away, and gives the status to end with.
fn output_failed(reader_gone: bool, why: &dyn std::fmt::Display) -> i32 {
    if reader_gone {
        return 128 + libc::SIGPIPE;
    }
    let _ = writeln!(std::io::stderr(), "farmem: cannot write to standard output: {why}");
    1
}

impl Command {
    fn execute(self) -> Result<(), Failure> {
        match self {
            Command::Run(options) => run::run(&options).map(|never| match never {}),
            Command::Node(options) => node::run(&options),
            Command::Bench(Bench::Alloc(options)) => Ok(farmem_alloc::command::run(&options, &myself()?)?),
            Command::Bench(Bench::Measured(bench)) => Ok(bench.run(&myself()?)?),
            Command::BenchChild(options) => Ok(farmem_bench::child::run(options)?),
            Command::BenchAllocChild(options) => Ok(farmem_alloc::real::child::run(&options)?),
            Command::Agent(options) => agent::run(&options),
            Command::AgentNode(options) => agent::run_node(&options),
            Command::MallocBench(options) => Ok(options.run(&myself()?)?),
            Command::MallocChild(options) => Ok(farmem_malloc::child::run(&options)?),
            Command::Torture(torture) => std::process::exit(torture.run()?),
            Command::TortureChild(child) => Ok(child.run()?),
            Command::Replay(replay) => Ok(replay.run()?),
            Command::Amat(amat) => {
                if let Some(name) = amat.program.first() {
                    program::there(name)?;
                }
                Ok(amat.run(RECORDER)?)
            }
            Command::Track(track) => {
                if let Some(name) = track.command.first() {
                    program::there(name)?;
                }
                Ok(track.run()?)
            }
            Command::Status(options) => pool::status::run(&options),
            Command::Check(options) => pool::check::run(&options),
            Command::Top(options) => top::run(&options),
            Command::Manual(options) => manual::write(&options),
            Command::Demo(options) => demo::run(&options),
            Command::Keep(options) => run::keeper::keep(&options),
        }
    }
}

/// `libfarmem_recorder.so`, which QEMU loads for `farmem amat`. Empty where `cargo check` made this binary.
static RECORDER: &[u8] = include_bytes!(env!("FARMEM_RECORDER_SO"));

fn myself() -> Result<std::path::PathBuf, Failure> {
    std::env::current_exe().map_err(|e| Failure::usage(format!("cannot find myself: {e}")))
}

/// Help goes out as it is; a mistake becomes one line.
fn explain(refused: &clap::Error) -> Failure {
    match refused.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let printed = refused.print().and_then(|()| std::io::stdout().flush());
            std::process::exit(match printed {
                Ok(()) => 0,
                Err(e) => output_failed(e.kind() == std::io::ErrorKind::BrokenPipe, &e),
            });
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = refused.print();
            std::process::exit(exit::USAGE);
        }
        kind => {
            let mut line = one_line(&refused.render().to_string());
            // Where a value is wrong, its own message says how to write it.
            let unclear =
                [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand, ErrorKind::MissingRequiredArgument];
            if unclear.contains(&kind) {
                line += &format!("; see {} --help", command_meant(std::env::args_os().nth(1)));
            }
            Failure::usage(line)
        }
    }
}

/// `farmem run` if that is what was written, `farmem` if nothing that it knows.
fn command_meant(first: Option<OsString>) -> String {
    let commands = Farmem::command();
    let first = first.unwrap_or_default();
    let known = commands.get_subcommands().find(|command| first == command.get_name());
    known.map_or("farmem".to_owned(), |command| format!("farmem {}", command.get_name()))
}

/// The first paragraph of a message, which names the mistake, and its tip, as one line.
fn one_line(message: &str) -> String {
    let joined = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut paragraphs = message.trim_start().split("\n\n");
    let line = joined(paragraphs.next().unwrap_or_default()).trim_start_matches("error: ").to_owned();
    match paragraphs.find_map(|paragraph| paragraph.trim_start().strip_prefix("tip: ")) {
        Some(tip) => format!("{line}; {}", joined(tip)),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_one_line_with_its_tip() {
        let said = |arguments: &[&str]| one_line(&Farmem::try_parse_from(arguments).unwrap_err().render().to_string());
        assert_eq!(said(&["farmem", "rum"]), "unrecognized subcommand 'rum'; a similar subcommand exists: 'run'");
        let line = said(&["farmem", "top", "--intervall", "1s"]);
        assert!(line.contains("'--intervall'") && line.contains("similar") && line.lines().count() == 1, "{line}");
    }

    #[test]
    fn help_fits_a_terminal_of_eighty_columns() {
        // Paragraphs are wrapped to any width; what is laid out, which is indented or has breaks of its own, would be
        // torn.
        fn look(command: &clap::Command) {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = after.lines().collect();
            for (n, line) in lines.iter().enumerate() {
                let ends = lines.get(n + 1).is_none_or(|next| next.is_empty());
                let begins = n.checked_sub(1).is_none_or(|last| lines[last].is_empty());
                let is_paragraph = begins && ends && !line.starts_with(' ');
                assert!(is_paragraph || line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(look);
        }
        look(&Farmem::command());
    }

    #[test]
    fn the_command_that_was_meant_is_named() {
        assert_eq!(command_meant(Some("run".into())), "farmem run");
        assert_eq!(command_meant(Some("nonsense".into())), "farmem");
        assert_eq!(command_meant(None), "farmem");
    }
}
