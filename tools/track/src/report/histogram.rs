//! Lines per dirty page, as an SVG histogram.

use crate::count::Tally;
use farmem_kit::chart::{Columns, sheet};

/// Draws it: a column for the share of pages with 1, 2, … 64 dirty lines.
pub fn svg(title: &str, total: &Tally) -> String {
    let pages = total.pages.max(1) as f64;
    let note = total.pages_over_lines().map_or("nothing dirty".into(), |ratio| {
        format!("{} dirty pages, {} dirty lines: whole pages are {ratio:.2} times the lines", total.pages, total.lines)
    });
    let columns = Columns {
        title: title.to_owned(),
        note,
        label: "dirty lines of a dirty page (columns: share of pages; curve: share up to here)".into(),
        shares: total.by_lines[1..].iter().map(|&pages_with| pages_with as f64 / pages).collect(),
    };
    sheet("", &[columns], 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::Change;

    #[test]
    fn a_column_for_each_number_of_lines_that_occurs() {
        let mut tally = Tally::default();
        [1, 3, 3, u64::MAX].into_iter().for_each(|lines| tally.add(Change { lines, bytes: 1 }));
        let svg = svg("a < b", &tally);
        assert_eq!(svg.matches("<rect x").count(), 3, "1, 2 and 64 lines");
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
        assert!(self::svg("", &Tally::default()).contains("nothing dirty"));
    }
}
