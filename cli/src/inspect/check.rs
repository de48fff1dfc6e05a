//! `farmem check`: recounts a node's memory by its words.

use farmem_fabric::NodeAddr;

use super::snapshot::{Reader, lasting};
use crate::failure::Failure;
use crate::units;

/// Recount a node's memory: the owner of every 4 KiB, and whether the records agree
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The node: HOST:PORT or unix:PATH
    #[arg(value_name = "NODE")]
    pub node: NodeAddr,

    #[command(flatten)]
    pub token: crate::borrow::Flag,
}

const EXAMPLES: &str = "\
Example:
  farmem check bighost:7411
      Reads the words that say who owns what, twice, while the node goes on, and
      ends with status 1 and a line for everything that both show wrong: memory
      that nobody owns or that has two owners, owners that do not exist, words
      that cannot be.";

/// Problems named one by one, at most.
const SHOWN: usize = 20;

/// Says what it found.
pub fn run(options: &Options) -> Result<(), Failure> {
    let mut reader = Reader::connect(&options.node, options.token.trust()?)?;
    let (look, problems) = lasting(&mut reader)?;
    let recount = &look.recount;
    for problem in problems.iter().take(SHOWN) {
        println!("{problem}");
    }
    let node = &options.node;
    let chunks = look.geometry.lent_bytes() / 4096;
    let wrong = |line: String| Err(Failure { status: 1, line });
    if !problems.is_empty() || look.left_out > 0 {
        // More than are kept of a look are not compared with those of the other.
        let more = if look.left_out > 0 { "at least " } else { "" };
        return wrong(format!(
            "node {node}: {more}{} places cannot be as they are: restart the node when it can be",
            problems.len()
        ));
    }
    if recount.total() != chunks {
        return wrong(format!("node {node}: {} of {chunks} chunks of 4 KiB are accounted for", recount.total()));
    }
    let bytes = |chunks: u64| units::bytes(chunks * 4096);
    println!(
        "node {node}: sound: {} lent at most, {} free, {} held by {} {}, {} being made clean",
        bytes(chunks),
        bytes(recount.free.iter().sum()),
        bytes(recount.held.values().sum()),
        recount.held.len(),
        if recount.held.len() == 1 { "owner" } else { "owners" },
        bytes(recount.quarantined + recount.moving),
    );
    Ok(())
}
