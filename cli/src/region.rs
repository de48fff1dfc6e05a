//! `farmem region`: the regions of a node, which outlive the programs that use them.

use crate::borrow::Flag;
use crate::failure::Failure;
use crate::units;
use farmem::{Builder, Error, Memory};
use farmem_kv::serve;
use std::time::{Duration, Instant};

/// List and remove a node's regions: named memory that programs share by the library farmem
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  farmem region ls bighost:7411
  farmem region rm bighost:7411 sessions

A region is there until it is removed, or its node ends. Programs that have it open keep it until they end.";

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// List them, with the memory that each holds
    #[command(after_help = "\
Examples:
  farmem region ls bighost:7411
  farmem region ls bighost:7411 --json | jq '.[].name'")]
    Ls {
        /// The node: HOST:PORT or unix:PATH
        #[arg(value_name = "NODE")]
        node: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        token: Flag,
    },
    /// Remove one by its name, if no program has it open
    #[command(after_help = "\
Examples:
  farmem region rm bighost:7411 sessions
  farmem region rm --force bighost:7411 sessions
      Front ends that serve it as a store end, and acknowledge nothing more.
      Its memory is free when the last program that has it open has ended.")]
    Rm {
        /// The node: HOST:PORT or unix:PATH
        #[arg(value_name = "NODE")]
        node: String,
        /// The region's name
        #[arg(value_name = "NAME")]
        name: String,
        /// Remove it although programs have it open. Front ends of a store end; others keep its
        /// memory until they end
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        token: Flag,
    },
}

/// Carries out the command.
pub fn run(options: &Options) -> Result<(), Failure> {
    match &options.command {
        Command::Ls { node, json, token } => list(&at(node, token)?, node, *json),
        Command::Rm { node, name, force, token } => {
            let at = at(node, token)?;
            let removed = if *force { remove_in_use(&at, name)? } else { at.remove_unused_region(name) };
            match removed.map_err(failure)? {
                true => Ok(()),
                false => Err(Failure::usage(format!("node {node} has no region {name}: see farmem region ls"))),
            }
        }
    }
}

/// Removes a region although programs have it open. Front ends of a store end before.
fn remove_in_use(at: &Builder, name: &str) -> Result<Result<bool, Error>, Failure> {
    let mut left = at.openers(name).map_err(failure)?.len();
    let is_store = match at.clone().region(name).partial(true).connect() {
        Ok(memory) => serve::mark_removed(&memory).map_err(failure)?,
        Err(Error::Region(_)) if left > 0 => {
            return Err(Failure::usage(format!("region {name} is a tenant's: name its token (--token FILE)")));
        }
        // It has no memory yet, or there is none: the removal tells.
        Err(Error::Region(_) | Error::Foreign { .. } | Error::Range { .. }) => false,
        Err(other) => return Err(failure(other)),
    };
    if is_store {
        left = 0;
        if let Err(still) = await_front_ends(at, name) {
            // It stays, so who has not seen the mark may go on.
            let memory = at.clone().region(name).partial(true).connect().map_err(failure)?;
            serve::unmark_removed(&memory).map_err(failure)?;
            return Err(still);
        }
    }
    let removed = at.remove_region(name);
    if left > 0 && matches!(removed, Ok(true)) {
        let programs = units::number(left, "program that has it open keeps", "programs that have it open keep");
        eprintln!("farmem: {programs} its memory until the end");
    }
    Ok(removed)
}

/// Waits until the front ends of a store have ended that is marked as removed.
fn await_front_ends(at: &Builder, name: &str) -> Result<(), Failure> {
    let until = Instant::now() + ENDING;
    loop {
        let still = at.openers(name).map_err(failure)?;
        if still.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            let by = Error::InUse { region: name.to_owned(), by: still };
            let s = ENDING.as_secs();
            return Err(Failure::usage(format!(
                "{by}, not ended within {s} s: end these by kill -9, or wait until their grace is over; of a mirrored \
                 store name the first node; then repeat this"
            )));
        }
        std::thread::sleep(LOOK);
    }
}

/// How long front ends of a store are waited for that is removed: one that is stopped does not end.
const ENDING: Duration = Duration::from_secs(10);
/// Between looks whether they have ended.
const LOOK: Duration = Duration::from_millis(50);

/// A node that is spoken to by a token, where one is named.
fn at(node: &str, token: &Flag) -> Result<Builder, Failure> {
    Ok(Memory::builder().node(node).trust(token.trust()?))
}

fn list(at: &Builder, node: &str, json: bool) -> Result<(), Failure> {
    let regions = at.regions().map_err(failure)?;
    if json {
        let region = |region: &farmem::RegionInfo| serde_json::json!({ "name": region.name, "bytes": region.bytes });
        println!("{}", serde_json::Value::from_iter(regions.iter().map(region)));
    } else if regions.is_empty() {
        println!("node {node} has no regions");
    } else {
        let rows: Vec<_> = regions.iter().map(|region| [region.name.clone(), units::bytes(region.bytes)]).collect();
        print!("{}", units::aligned(&rows));
    }
    Ok(())
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Address(_) | Error::Name(_) => Failure::usage(error),
        Error::InUse { .. } => Failure::usage(format!("{error}: end these first, or say --force")),
        other => Failure::no_node(other),
    }
}
