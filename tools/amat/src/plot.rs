//! AMAT against local memory, and against block size: one panel each.

use crate::report::{Report, Row, size};
use farmem_kit::chart::axis::trimmed;
use farmem_kit::chart::{Axis, COLOURS, Curve, Panel, Point, sheet};

/// The panels that the report has points for, as an SVG document.
pub fn svg(report: &Report) -> String {
    let mut panels = vec![];
    let curve = |name: &str, rows: &mut dyn Iterator<Item = &Row>, x: fn(&Row) -> f64| {
        let mut points: Vec<(f64, f64)> = rows.map(|row| (x(row), row.outcome.amat_ns)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let points = points.into_iter().map(|(x, y)| Point::at(x, y)).collect();
        Curve { name: name.into(), colour: COLOURS[0], is_dashed: false, labels_above: true, points }
    };
    let lines = report.lines();
    let mut systems: Vec<&str> = lines.iter().map(|line| line.0).collect();
    systems.dedup();
    // Against local memory: each system with the first of its block sizes.
    let by_local = systems.iter().filter_map(|&system| {
        let block = lines.iter().find(|line| line.0 == system)?.1;
        let mut rows = report.rows.iter().filter(|row| row.system == system && row.block == block);
        Some(curve(system, &mut rows, |row| row.local * 100.0))
    });
    let by_local: Vec<Curve> = by_local.collect();
    if by_local.iter().any(|curve| curve.points.len() > 1) {
        panels.push(panel(&report.trace, "local memory, % of what the program touches", by_local, trimmed));
    }
    // Against block size: each share of local memory, of the first system.
    if let Some(&system) = systems.first() {
        let mut locals: Vec<f64> = report.rows.iter().map(|row| row.local).collect();
        locals.sort_by(f64::total_cmp);
        locals.dedup();
        let by_block = locals.iter().map(|&local| {
            let mut rows = report.rows.iter().filter(|row| row.system == system && row.local == local);
            curve(&format!("{:.0} % local", local * 100.0), &mut rows, |row| row.block as f64)
        });
        let by_block: Vec<Curve> = by_block.collect();
        if by_block.iter().any(|curve| curve.points.len() > 1) {
            let title = format!("{}, {system}", report.trace);
            panels.push(panel(&title, "block", by_block, |block| size(block as u64)));
        }
    }
    sheet("", &panels, 1)
}

fn panel(title: &str, axis: &str, mut curves: Vec<Curve>, show: fn(f64) -> String) -> Panel {
    // Dashed from the eighth on: the first colour is for what is native.
    for (place, curve) in curves.iter_mut().enumerate() {
        curve.colour = COLOURS[1 + place % (COLOURS.len() - 1)];
        curve.is_dashed = place >= COLOURS.len() - 1;
    }
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let (x, y): (Vec<f64>, Vec<f64>) = points().filter_map(|point| Some((point.x, point.y?))).unzip();
    Panel {
        title: title.to_owned(),
        subtitle: "average memory access time, ns".to_owned(),
        x: Axis::with_ticks(x, true, show).labelled(axis),
        y: Axis::logarithmic(y, trimmed),
        curves,
    }
}
