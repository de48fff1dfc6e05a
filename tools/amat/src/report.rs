//! The results, for people and for machines.

use crate::model::{Front, Outcome};
use farmem_kit::table::Table;
use serde::Serialize;

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The system.
    pub system: String,
    /// Bytes of a block.
    pub block: u64,
    /// Local memory, of the footprint, 0–1.
    pub local: f64,
    /// Local memory, bytes.
    pub local_bytes: u64,
    /// The result.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The work of the CPU's caches on a trace.
#[derive(Clone, Debug, Serialize)]
pub struct Caches {
    /// Names of the levels and shares of the references that missed them, with what all before
    /// missed.
    pub misses: Vec<(String, f64)>,
}

/// All of one trace.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Its name.
    pub trace: String,
    /// Loads and stores.
    pub references: u64,
    /// Of them, loads.
    pub reads: u64,
    /// Instructions.
    pub instructions: u64,
    /// Pages touched, in bytes.
    pub footprint: u64,
    /// By the first system's caches.
    pub caches: Caches,
    /// Local memory that can be sampled was watched to this share.
    pub sample: f64,
    /// The figures: by system, block and local memory.
    pub rows: Vec<Row>,
}

impl Caches {
    /// Of a front and the names of its levels.
    pub fn of(front: &Front, names: impl Iterator<Item = String>) -> Caches {
        let references = front.references.total().max(1) as f64;
        Caches { misses: names.zip(&front.misses).map(|(name, m)| (name, m.total() as f64 / references)).collect() }
    }
}

/// `4 KiB`, `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    let (unit, shift) = match bytes {
        0..1024 => return format!("{bytes} B"),
        1024..0x10_0000 => ("KiB", 10),
        0x10_0000..0x4000_0000 => ("MiB", 20),
        _ => ("GiB", 30),
    };
    let n = bytes as f64 / (1u64 << shift) as f64;
    if n.fract() < 0.05 || n >= 100.0 { format!("{n:.0} {unit}") } else { format!("{n:.1} {unit}") }
}

/// `1.4 M`.
fn number(n: u64) -> String {
    match n as f64 {
        f if f < 1e4 => format!("{n}"),
        f if f < 1e6 => format!("{:.0} k", f / 1e3),
        f if f < 1e9 => format!("{:.1} M", f / 1e6),
        f => format!("{:.2} G", f / 1e9),
    }
}

impl Report {
    /// The shares of local memory, ascending.
    fn locals(&self) -> Vec<f64> {
        let mut locals: Vec<f64> = self.rows.iter().map(|row| row.local).collect();
        locals.sort_by(f64::total_cmp);
        locals.dedup();
        locals
    }

    /// Systems with their block sizes, in order.
    pub fn lines(&self) -> Vec<(&str, u64)> {
        let mut lines: Vec<(&str, u64)> = vec![];
        for row in &self.rows {
            if !lines.contains(&(row.system.as_str(), row.block)) {
                lines.push((&row.system, row.block));
            }
        }
        lines
    }

    fn row(&self, line: (&str, u64), local: f64) -> Option<&Row> {
        self.rows.iter().find(|row| (row.system.as_str(), row.block) == line && row.local == local)
    }

    /// Lines of figures, one for each system and block.
    fn table(&self, head: &str, cell: impl Fn(&Outcome) -> String) -> Table {
        let locals = self.locals();
        let names = locals.iter().map(|local| format!("{:.0}% local", local * 100.0));
        let mut table = Table::new([head.to_owned(), "block".into()].into_iter().chain(names));
        for line in self.lines() {
            let cells =
                locals.iter().map(|&local| self.row(line, local).map_or("–".into(), |row| cell(&row.outcome)));
            table.row([line.0.to_owned(), size(line.1)].into_iter().chain(cells));
        }
        table
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reads = self.reads as f64 / self.references.max(1) as f64 * 100.0;
        let (references, instructions) = (number(self.references), number(self.instructions));
        writeln!(
            f,
            "{}: {references} references ({reads:.0} % reads), {instructions} instructions, {} touched",
            self.trace,
            size(self.footprint)
        )?;
        let missed = self.caches.misses.iter().map(|(name, share)| format!("{name} {:.2} %", share * 100.0));
        let missed: Vec<String> = missed.collect();
        if !missed.is_empty() {
            writeln!(f, "missed of all references: {}", missed.join(", "))?;
        }
        let amat = |outcome: &Outcome| match outcome.bound_ns {
            bound if bound < 0.005 => figure(outcome.amat_ns),
            bound => format!("{} ±{}", figure(outcome.amat_ns), figure(bound)),
        };
        write!(f, "\n{}", self.table("AMAT, ns", amat))?;
        write!(f, "\n{}", self.table("bytes moved per reference", |o| figure(o.bytes_in + o.bytes_out)))?;
        let bound: Vec<String> = self
            .rows
            .iter()
            .filter(|row| row.outcome.link > 0.98)
            .map(|row| format!("{} ({}, {:.0}% local)", row.system, size(row.block), row.local * 100.0))
            .collect();
        if !bound.is_empty() {
            writeln!(f, "\nbound by the link: {}", bound.join(", "))?;
        }
        Ok(())
    }
}

/// Three digits.
fn figure(n: f64) -> String {
    match n {
        n if n < 9.995 => format!("{n:.2}"),
        n if n < 99.95 => format!("{n:.1}"),
        n => format!("{n:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_numbers_are_for_people() {
        assert_eq!([64, 4096, 1536, 3 << 29].map(size), ["64 B", "4 KiB", "1.5 KiB", "1.5 GiB"]);
        assert_eq!([12, 123_456, 1_400_000].map(number), ["12", "123 k", "1.4 M"]);
        assert_eq!([0.1, 12.34, 123.4].map(figure), ["0.10", "12.3", "123"]);
    }
}
