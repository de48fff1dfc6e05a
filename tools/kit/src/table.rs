//! Tables of text: the first column to the left, figures to the right.

use std::fmt;

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// One with this head.
    pub fn new<T: Into<String>>(head: impl IntoIterator<Item = T>) -> Table {
        Table { rows: vec![head.into_iter().map(Into::into).collect()] }
    }

    /// Adds a row. Missing cells at its end are blank.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Whether there is no row below the head.
    pub fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (at, row) in self.rows.iter().enumerate() {
            let cells = widths.iter().enumerate().map(|(column, &width)| {
                let cell = row.get(column).map_or("", String::as_str);
                if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("   ").trim_end())?;
            if at == 0 {
                writeln!(f, "{}", "─".repeat(widths.iter().sum::<usize>() + 3 * columns.saturating_sub(1)))?;
            }
        }
        Ok(())
    }
}

/// Nanoseconds, as microseconds from one on: `820 ns`, `6.21 µs`, `103 µs`.
pub fn duration(ns: f64) -> String {
    match ns {
        ns if ns < 999.5 => format!("{ns:.0} ns"),
        ns if ns < 9_995.0 => format!("{:.2} µs", ns / 1e3),
        ns if ns < 99_950.0 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 999_500.0 => format!("{:.0} µs", ns / 1e3),
        ns if ns < 999_500_000.0 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["what", "µs"]);
        table.row(["random read", "6.2"]);
        table.row(["x"]);
        assert_eq!(table.to_string(), "what           µs\n─────────────────\nrandom read   6.2\nx\n");
    }

    #[test]
    fn durations_keep_three_digits() {
        let shown: Vec<String> = [820.0, 999.7, 6_213.0, 26_340.0, 103_456.0, 2.5e6, 3e9].map(duration).to_vec();
        assert_eq!(shown, ["820 ns", "1.00 µs", "6.21 µs", "26.3 µs", "103 µs", "2.5 ms", "3.00 s"]);
    }
}
