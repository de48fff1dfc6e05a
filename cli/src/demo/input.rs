//! The text to sort: the logs of several machines, one after the other, or lines in no order. The
//! same everywhere.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use farmem_protocol::random::Random;

/// The kind of lines, and their order.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq)]
pub enum Lines {
    /// Logs of 24 machines, each in order of time, to be merged into one
    Logs,
    /// No order at all: every comparison is of two far corners, the worst case
    Random,
}

/// Machines whose logs are merged.
const MACHINES: u64 = 24;

/// Writes about `bytes` of lines.
pub fn write(path: &Path, bytes: u64, lines: Lines) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut random = Random::new(1);
    let sources = if lines == Lines::Logs { MACHINES } else { 1 };
    for source in 0..sources {
        let mut clock_us: u64 = 0;
        let mut written = 0;
        while written < bytes / sources {
            let dice = random.bits();
            clock_us += dice % 20_000;
            let (seconds, micros) = (clock_us / 1_000_000, clock_us % 1_000_000);
            let (order, status) = (dice >> 44, if dice.is_multiple_of(50) { 500 } else { 200 });
            let line = match lines {
                Lines::Logs => format!(
                    "2026-03-01T{:02}:{:02}:{:02}.{micros:06} web{source:02} GET /orders/{order} {status} {} us\n",
                    seconds / 3600,
                    seconds / 60 % 60,
                    seconds % 60,
                    dice % 9000
                ),
                Lines::Random => format!("{dice:016x} order {order} of customer {}\n", dice % 9_999_991),
            };
            out.write_all(line.as_bytes())?;
            written += line.len() as u64;
        }
    }
    out.flush()
}
