//! `farmem top`: the present activity of every run, node, agent and store on this machine.
//!
//! Reads the counters files that runs share and the status files that nodes, agents and stores
//! write ([`gather`]), and does not disturb them. On a terminal it draws ([`screen`]). `--once`
//! prints one sample as a table ([`table`]), `--json` as an object. `--rack` asks a controller
//! instead ([`rack`]).

mod gather;
mod rack;
mod screen;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use crate::failure::Failure;
use gather::Gatherer;
pub use gather::{as_run, short_program};

const EXAMPLES: &str = "\
Examples:
  farmem top
      What happens on this machine, until q.

  farmem top --once
      One sample, for a look or a log.

  farmem top --json | jq '.runs[].local'
      The same for a script.";

/// Watch runs, nodes, agents and stores on this machine
///
/// Keys: ? helps, q quits, s sorts by the next column, p pauses, up and down choose a run.
///
/// "local" is the local memory of all of a run's processes together, "limit" the most that each may
/// have. "waiting" is a share of one thread's time: two threads that wait all the time are 200 %.
///
/// A store's "verbs" are for each request.
///
/// Root also sees the devices of `farmem swap`: pages in and out, the time of a read, the memory at
/// the node.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Print one sample and end
    #[arg(long)]
    pub once: bool,

    /// Print one sample as JSON and end
    #[arg(long)]
    pub json: bool,

    /// Watch a rack in place of this machine: its nodes, its runs, recent events
    #[arg(long)]
    pub rack: bool,

    /// The rack's controller; several by commas
    #[arg(long, value_name = "HOST:PORT", requires = "rack", value_parser = crate::rack::address)]
    pub controller: Option<String>,

    /// The file of a token, by which the controller proves what it says
    #[arg(long, value_name = "FILE", requires = "rack")]
    pub token: Option<PathBuf>,

    /// Time between samples
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = crate::time::parse)]
    pub interval: Duration,
}

/// Shows what there is until the user has seen enough.
pub fn run(options: &Options) -> Result<(), Failure> {
    let interval = options.interval.max(Duration::from_millis(100));
    if options.rack {
        return rack::run(options, interval);
    }
    let mut gatherer = Gatherer::default();
    if !(options.once || options.json) {
        let shown = match std::env::var_os("TERM") {
            // Escape sequences would be shown as they are.
            Some(term) if term == "dumb" => Err(std::io::Error::other("TERM is dumb")),
            _ => screen::show(&mut gatherer, interval),
        };
        return shown.map_err(|e| Failure {
            status: 1,
            line: format!("no terminal to draw on ({e}): farmem top --once prints one sample"),
        });
    }
    // Rates need two looks.
    gatherer.look();
    std::thread::sleep(interval);
    let view = gatherer.look();
    let text = if options.json {
        serde_json::to_string_pretty(&view).map(|json| json + "\n").unwrap_or_default()
    } else {
        table::text(&view)
    };
    print!("{text}");
    Ok(())
}
