//! How evenly a rule places slabs on nodes when news of the nodes is old: `farmem-lab placement`.
//!
//! ```text
//! programs come ─► slabs, one by one ─► rule (news of the last beat) ─► a node; full: refused, drawn again
//! programs end  ─► slabs go back                    beat: news = now
//! ```
//!
//! Nodes lend unequal amounts (lognormal, σ 0.5, mean 64 slabs). A program takes a lognormal number of
//! slabs (median 4, at most 256) and ends at random, so that the pool stays at the share that is asked
//! for. Between two beats `--rate` placements for each node happen. The rule *farmem* is the
//! controller's own code ([`farmem_protocol::placement`]); the others are for comparison.

#![forbid(unsafe_code)]

mod rack;
mod report;

use anyhow::{Context, Result, ensure};
use rack::Rule;
use std::path::PathBuf;

/// Simulate how evenly slabs are placed on the nodes of a rack
///
/// Shows how unequally nodes are used, and how often a full one is asked, under farmem's rule and
/// others, when news of the nodes is old.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Placement {
    /// Nodes of a rack
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10,100,1000")]
    pub nodes: Vec<usize>,
    /// Placements for each node between two beats
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0.1,1,8")]
    pub rate: Vec<f64>,
    /// Share of what is lent that is in use
    #[arg(long, value_name = "PERCENT", default_value_t = 70, value_parser = clap::value_parser!(u64).range(1..=95))]
    pub fill: u64,
    /// Racks of each size, drawn anew; figures are means
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Write a chart here
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  farmem-lab placement
      Ten to a thousand nodes, half a minute.
  farmem-lab placement --nodes 10000 --rate 1 --seeds 1 --svg placement.svg

Use of a node is what it has lent, divided by what it lends. Variation is the standard deviation of
that over the nodes, divided by its mean.";

impl Placement {
    /// Simulates, and prints what came of it.
    ///
    /// # Errors
    /// A rack that cannot be, or a chart that cannot be written.
    pub fn run(self) -> Result<()> {
        ensure!(self.nodes.iter().all(|nodes| (2..=100_000).contains(nodes)), "--nodes: a rack has 2 to 100000 nodes");
        ensure!(
            self.rate.iter().all(|rate| (0.001..=1000.0).contains(rate)),
            "--rate: 0.001 to 1000 placements for each node between two beats"
        );
        let mut rows = Vec::new();
        for &nodes in &self.nodes {
            for &rate in &self.rate {
                for rule in Rule::ALL {
                    let each = (1..=self.seeds).map(|seed| rack::simulate(rule, nodes, rate, self.fill, seed));
                    rows.push(report::Row::mean(rule, nodes, rate, &each.collect::<Vec<_>>()));
                }
            }
        }
        if let Some(file) = &self.svg {
            std::fs::write(file, report::chart(&rows, self.fill)).with_context(|| format!("{}", file.display()))?;
        }
        match self.json {
            true => println!("{}", report::json(&rows, self.fill)?),
            false => print!("{}", report::text(&rows, self.fill)),
        }
        Ok(())
    }
}
