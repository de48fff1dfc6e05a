//! Numbers for people, and tables of them.

use std::fmt::Display;

pub use farmem_protocol::units::{bytes, count, nanos, share};

/// A table: the first column to the left, the others to the right, two spaces between, the first
/// row as header.
pub fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut out = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            line += &if column == 0 { format!(" {cell:<width$}") } else { format!("  {cell:>width$}") };
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// A number of things, in the singular for one.
pub fn number(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Why a size is refused that is below `least`, which is whole MiB. A number that somebody wrote
/// without a unit is shown as what it means.
pub fn too_little(flag: impl Display, asked: u64, least: u64, why: &str) -> String {
    let unit = if asked < 1 << 20 { format!("; {asked} is bytes, write 512M or 8G") } else { String::new() };
    format!("{flag} is below {} MiB, {why}{unit}", least >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["", "time"], ["native", "1.2 s"], ["25 %", "12 µs"]].map(|row| row.map(String::from));
        assert_eq!(aligned(&rows), "           time\n  native  1.2 s\n  25 %    12 µs\n");
    }
}
