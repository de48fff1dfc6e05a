//! One program at each share over each transport.

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use farmem_tests::farmem::{Far, Node, compare, copy, counter, far_run};
use farmem_tests::process::{self, eventually};

use crate::table::Row;

/// One run may take this long, times the scale.
const LIMIT: Duration = Duration::from_secs(180);
/// Shares of the native peak that are local, percent.
const SHARES: [u64; 2] = [25, 10];
/// The least local memory that makes sense for a program with a few threads.
const LEAST_LOCAL: u64 = 2 << 20;

/// The node of all runs over TCP, started by the first.
static NODE: Mutex<Option<Node>> = Mutex::new(None);

/// How much larger than usual the work is to be.
pub fn scale() -> usize {
    std::env::var("FARMEM_TEST_SCALE").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

/// How long one run may take.
pub fn limit() -> Duration {
    LIMIT * scale() as u32
}

/// One column of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    pub transport: &'static str,
    pub share: u64,
}

/// Every pair of a share and a transport, in order: the columns.
pub fn all_cells() -> Vec<Cell> {
    ["shm", "tcp"].into_iter().flat_map(|transport| SHARES.map(|share| Cell { transport, share })).collect()
}

/// The far runs of the program at this place of the list: a small share of memory, or the slow transport, by turns.
pub fn cells(at: usize) -> Vec<Cell> {
    let only = std::env::var("FARMEM_TEST_TRANSPORT").ok();
    let turn = if at.is_multiple_of(2) { ("tcp", 25) } else { ("shm", 10) };
    let wanted = |cell: &Cell| match &only {
        Some(only) => only == cell.transport,
        None => farmem_tests::long() || turn == (cell.transport, cell.share),
    };
    all_cells().into_iter().filter(wanted).collect()
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} %", self.transport, self.share)
    }
}

/// How the far run of a program with this native peak is made.
pub fn far(peak: u64, cell: Cell) -> Result<Far> {
    let far = Far::local((peak * cell.share / 100).max(LEAST_LOCAL));
    if cell.transport == "shm" {
        return Ok(far.with(&["--transport", "shm"]));
    }
    let mut node = NODE.lock().unwrap_or_else(PoisonError::into_inner);
    if node.is_none() {
        *node = Some(Node::start("8G", &[])?);
    }
    let address = node.as_ref().map(Node::by_tcp).unwrap_or_default();
    Ok(far.with(&["--transport", "tcp"]).on(&address))
}

/// Stops the node of the runs over TCP. Fails unless it has all of its memory back.
pub fn nothing_left_lent() -> Result<()> {
    let Some(node) = NODE.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Ok(()) };
    let lent = || node.metric("farmem_node_lent_bytes");
    if !eventually(Duration::from_secs(10), || lent().is_ok_and(|bytes| bytes == 0.0)) {
        bail!("all runs are over, and the node still lends {} bytes", lent()?);
    }
    Ok(())
}

/// Runs a program that ends by itself, natively and far.
pub fn program(row: &mut Row, command: &Command) -> Result<()> {
    let native = process::run(copy(command), limit())?.success()?;
    ensure!(native.peak_rss > 8 << 20, "it needs too little memory to say anything: {}", native.peak_rss);
    row.native(native.peak_rss, native.wall);
    for cell in row.cells() {
        let (outcome, stats) = far_run(command, &far(native.peak_rss, cell)?, limit()).context(cell)?;
        compare(&native, &outcome).context(cell)?;
        ensure!(counter(&stats, "faults") > 0, "{cell}: it did not run on far memory: {stats}");
        row.far(cell, outcome.wall, &stats);
    }
    Ok(())
}
