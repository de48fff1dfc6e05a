//! One picture: misses over Belady's bound, a bar for each policy.

use crate::report::{BUILDABLE, POLICIES, Report};
use farmem_kit::chart::axis::trimmed;
use farmem_kit::chart::{Axis, COLOURS, Rows, Style, sheet};
use farmem_kit::pairs::Spread;

/// The plot as an SVG document.
pub fn svg(report: &Report) -> String {
    let ratios = report.over_bound();
    let group = |(at, (name, &ratio)): (usize, (&&str, &f64))| {
        let (bar, is_buildable) = (Spread::of([ratio]), at < BUILDABLE);
        ((*name).to_owned(), vec![bar.filter(|_| is_buildable), bar.filter(|_| !is_buildable)])
    };
    let chart = Rows {
        title: "Misses, as a multiple of Belady's bound".into(),
        series: vec![
            ("policies that a pager can have".into(), COLOURS[2]),
            ("policies that see every access".into(), COLOURS[0]),
        ],
        groups: POLICIES.iter().zip(&ratios).enumerate().map(group).collect(),
        axis: Axis::linear(ratios.iter().copied(), trimmed).labelled("geometric mean over traces and local shares"),
        style: Style::Bar,
        show: |ratio| format!("{ratio:.2}"),
    };
    sheet("", &[chart], 1)
}
