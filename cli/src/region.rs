//! `farmem region`: the regions of a node, which outlive the programs that use them.

use crate::borrow::Flag;
use crate::failure::Failure;
use crate::units;
use farmem::{Builder, Error, Memory};

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
    /// Remove one by its name; its memory is free when the last program that has it open has ended
    #[command(after_help = "\
Example:
  farmem region rm bighost:7411 sessions")]
    Rm {
        /// The node: HOST:PORT or unix:PATH
        #[arg(value_name = "NODE")]
        node: String,
        /// The region's name
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        token: Flag,
    },
}

/// Carries out the command.
pub fn run(options: &Options) -> Result<(), Failure> {
    match &options.command {
        Command::Ls { node, json, token } => list(&at(node, token)?, node, *json),
        Command::Rm { node, name, token } => match at(node, token)?.remove_region(name).map_err(failure)? {
            true => Ok(()),
            false => Err(Failure::no_node(format!("node {node} has no region {name}: see farmem region ls"))),
        },
    }
}

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
        other => Failure::no_node(other),
    }
}
