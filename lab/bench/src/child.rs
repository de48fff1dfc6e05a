//! `farmem bench-child`: the programs that benchmarks measure.
//!
//! One binary under every system, so that nothing but the system differs. Each
//! prints one line of JSON when it ends.

use std::io::Write;

use crate::paging::{floor, roundtrip, small, workload};

/// `farmem bench-child …`
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
    /// A program that fits
    Small(small::Options),
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
        Program::Small(options) => serde_json::to_string(&small::run(&options)?)?,
    };
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}
