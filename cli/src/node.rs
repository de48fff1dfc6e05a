//! `farmem node`: lends this machine's memory.

use crate::failure::Failure;
use crate::size::Size;

/// Lend this machine's memory to programs elsewhere
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Memory to lend, at most: 8G, or a share of this machine's RAM, 50%
    #[arg(long, value_name = "SIZE")]
    pub lend: Size,
    /// Where to listen: HOST:PORT or unix:PATH; may be repeated
    #[arg(long, value_name = "ADDR", required = true)]
    pub listen: Vec<String>,
    #[arg(long, hide = true)]
    pub embedded: bool,
}

/// Runs the node.
pub fn run(_options: &Options) -> Result<(), Failure> {
    Ok(())
}
