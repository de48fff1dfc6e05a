//! `farmem drain`, `farmem undrain`, `farmem forget`.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use farmem_control::api::{NodeView, Rack};
use farmem_control::client::{AskError, Client};

use crate::borrow::Flag;
use crate::failure::Failure;
use crate::settings::Settings;
use crate::units;

const DRAIN: &str = "\
Examples:
  farmem drain bighost --controller rack:7400
      Then stop the node, mend the machine, start it again, and
      farmem undrain bighost --controller rack:7400

The order stands until undrain, also if this command is interrupted.";

/// The rack that an order is for.
#[derive(clap::Args, Debug)]
pub struct Which {
    /// The rack's controller [default: FARMEM_CONTROLLER, or the configuration file's]
    #[arg(long, value_name = "HOST:PORT", value_parser = super::address)]
    pub controller: Option<String>,

    /// The file of a token of the tenant rack, where the controller asks for one [default:
    /// FARMEM_TOKEN, or the configuration file's]
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,
}

/// Empty a node of a rack while programs run
///
/// No run is given the node any more. Runs that have it are given others in its place, and their
/// pages move there. Waits until nothing is lent.
#[derive(clap::Args, Debug)]
#[command(after_help = DRAIN)]
pub struct Drain {
    /// The node's name, as farmem status --controller shows it
    pub node: String,

    #[command(flatten)]
    pub rack: Which,

    /// Give the order, and do not wait
    #[arg(long)]
    pub no_wait: bool,
}

const UNDRAIN: &str = "\
Example:
  farmem undrain bighost --controller rack:7400";

/// Open a node again that was drained
#[derive(clap::Args, Debug)]
#[command(after_help = UNDRAIN)]
pub struct Undrain {
    /// The node's name, as farmem status --controller shows it
    pub node: String,

    #[command(flatten)]
    pub rack: Which,
}

const FORGET: &str = "\
Example:
  farmem forget bighost --controller rack:7400
      After it was drained, and stopped for good.";

/// Forget a node of a rack that will not come back
///
/// A node that beats again is a node of the rack again.
#[derive(clap::Args, Debug)]
#[command(after_help = FORGET)]
pub struct Forget {
    /// The node's name, as farmem status --controller shows it
    pub node: String,

    #[command(flatten)]
    pub rack: Which,
}

/// The controller that flags, a variable or a file name, and the token to prove to it.
pub fn controller(controller: &Option<String>, token: &Option<PathBuf>) -> Result<Client, Failure> {
    let named = Settings::load()?.choose("controller", controller.clone(), super::address)?;
    let (at, _) = named.ok_or_else(|| Failure::usage("which rack? Name its --controller HOST:PORT"))?;
    let token = Flag { token: token.clone(), plain: false }.trust()?.token;
    Ok(Client::new(&at).by(token))
}

impl Which {
    fn client(&self) -> Result<Client, Failure> {
        controller(&self.controller, &self.token)
    }
}

fn failed(e: AskError) -> Failure {
    match e {
        AskError::Refused(_) => Failure::usage(e),
        AskError::Away { .. } | AskError::AllAway(_) | AskError::NotNow { .. } | AskError::Stranger { .. } => {
            Failure::no_node(e)
        }
    }
}

fn find<'a>(rack: &'a Rack, node: &str) -> Result<&'a NodeView, Failure> {
    let found = rack.nodes.iter().find(|each| each.name == node);
    found
        .ok_or_else(|| Failure::usage(format!("no node of this rack is called {node}: see farmem status --controller")))
}

/// Gives the order and waits until the node is empty.
pub fn drain(options: &Drain) -> Result<(), Failure> {
    let client = options.rack.client()?;
    let rack = client.order(&options.node, "drain").map_err(failed)?;
    let had = find(&rack, &options.node)?.lent;
    if options.no_wait {
        println!("{} is to be emptied", options.node);
        return Ok(());
    }
    let shows = std::io::stderr().is_terminal();
    loop {
        let rack = client.rack().map_err(failed)?;
        let node = find(&rack, &options.node)?;
        if shows {
            let gone = had.saturating_sub(node.lent);
            let done = (20 * gone).checked_div(had).unwrap_or(20).min(20) as usize;
            let bar = "#".repeat(done) + &".".repeat(20 - done);
            eprint!("\r[{bar}] {} of {} left  ", units::bytes(node.lent), units::bytes(had));
            let _ = std::io::stderr().flush();
        }
        let end = match node.standing.as_str() {
            "empty" => Some(Ok(())),
            "draining" => None,
            "down" => Some(Err(Failure::no_node(format!("{} is down: it cannot be emptied", options.node)))),
            "up" => Some(Err(Failure::usage(format!("{} was opened again by somebody else", options.node)))),
            _ => None,
        };
        if let Some(end) = end {
            if shows {
                eprintln!();
            }
            if end.is_ok() {
                println!("{} is empty: stop it, or open it again by farmem undrain {}", options.node, options.node);
            }
            return end;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Opens it again.
pub fn undrain(options: &Undrain) -> Result<(), Failure> {
    options.rack.client()?.order(&options.node, "undrain").map_err(failed)?;
    println!("{} is open again", options.node);
    Ok(())
}

/// Forgets it.
pub fn forget(options: &Forget) -> Result<(), Failure> {
    options.rack.client()?.order(&options.node, "forget").map_err(failed)?;
    println!("{} is forgotten", options.node);
    Ok(())
}
