//! What the matrix prints: a line for each run as it ends, and the table at the end.

use std::time::Duration;

use farmem_tests::farmem::counter;
use serde_json::Value;

use crate::run::{Cell, all_cells};

/// One program's row.
pub struct Row {
    name: String,
    peak: u64,
    native: Duration,
    /// The far runs that it is to make.
    cells: Vec<Cell>,
    far: Vec<(Cell, Duration)>,
}

impl Row {
    /// Nothing known yet.
    pub fn new(name: &str, cells: Vec<Cell>) -> Row {
        Row { name: name.into(), peak: 0, native: Duration::ZERO, cells, far: Vec::new() }
    }

    /// The far runs that this program is to make.
    pub fn cells(&self) -> Vec<Cell> {
        self.cells.clone()
    }

    /// The native run.
    pub fn native(&mut self, peak: u64, wall: Duration) {
        self.peak = peak;
        self.native = wall;
    }

    /// A far run whose output was right.
    pub fn far(&mut self, cell: Cell, wall: Duration, stats: &Value) {
        self.far.push((cell, wall));
        let moved = (counter(stats, "bytes_in") + counter(stats, "bytes_out")) >> 20;
        println!(
            "    {:<9} {:>7.2} s, native {:.2} s; {} faults, {} fetches, {moved} MiB moved",
            cell.to_string(),
            wall.as_secs_f64(),
            self.native.as_secs_f64(),
            counter(stats, "faults"),
            counter(stats, "demand"),
        );
    }
}

/// The slowdown of every run whose output was equal to native.
pub fn print(rows: &[Row]) {
    // Columns in which nothing was to run are left out.
    let cells: Vec<Cell> =
        all_cells().into_iter().filter(|cell| rows.iter().any(|row| row.cells.contains(cell))).collect();
    print!("\n{:<16} {:>9} {:>9}", "program", "peak MiB", "native s");
    cells.iter().for_each(|cell| print!(" {:>9}", cell.to_string()));
    println!("  output");
    for row in rows {
        print!("{:<16} {:>9} {:>9.2}", row.name, row.peak >> 20, row.native.as_secs_f64());
        for cell in &cells {
            match row.far.iter().find(|(c, _)| c == cell) {
                Some((_, wall)) => print!(" {:>8.2}x", wall.as_secs_f64() / row.native.as_secs_f64()),
                None => print!(" {:>9}", "-"),
            }
        }
        println!("  {}", if row.far.len() == row.cells.len() { "equal" } else { "FAILED" });
    }
}
