//! `farmem-lab bench-child`: the programs that benchmarks measure.
//!
//! One binary under every system, so that nothing but the system differs. Each
//! prints one line of JSON when it ends.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;

use crate::kona;
use crate::paging::{floor, roundtrip, small, workload};
use crate::swap;

/// `farmem-lab bench-child …`
#[derive(clap::Args, Debug)]
pub struct Options {
    #[command(subcommand)]
    program: Program,
}

#[derive(clap::Subcommand, Debug)]
enum Program {
    /// The array that paging is measured with
    Paging(workload::Options),
    /// The bare mechanism: signal and install
    Floor(floor::Options),
    /// The bare network: a spinning round trip
    Roundtrip(roundtrip::Options),
    /// The other end of it
    Peer(roundtrip::PeerOptions),
    /// A program whose dirt is counted
    Kona(kona::child::Options),
    /// A program that fits
    Small(small::Options),
    /// Another program, in a memory group
    InGroup(Grouped),
}

/// Which program, in which group.
#[derive(clap::Args, Debug)]
struct Grouped {
    /// The group's directory
    group: PathBuf,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// Runs one of them.
///
/// # Errors
/// Memory that cannot be had, and bytes that are not those that were written.
pub fn run(options: Options) -> anyhow::Result<()> {
    let line = match options.program {
        Program::Paging(options) => serde_json::to_string(&workload::run(&options)?)?,
        Program::Floor(options) => serde_json::to_string(&floor::run(&options)?)?,
        Program::Roundtrip(options) => serde_json::to_string(&roundtrip::run(&options)?)?,
        Program::Peer(options) => return roundtrip::peer(&options),
        Program::Kona(options) => kona::child::run(&options)?,
        Program::Small(options) if options.checksum_only => small::run(&options)?.checksum.to_string(),
        Program::Small(options) => serde_json::to_string(&small::run(&options)?)?,
        Program::InGroup(Grouped { group, command }) => {
            // Joined before the program exists, so that every page of it is charged to the group.
            swap::join(&group).context("joining the memory group")?;
            let refused = Command::new(&command[0]).args(&command[1..]).exec();
            return Err(refused).with_context(|| format!("starting {}", command[0].to_string_lossy()));
        }
    };
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}
