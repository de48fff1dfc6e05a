//! AMAT against local memory, and against block size, as SVG: one panel each.

use crate::report::{Report, Row, size};
use farmem_kit::chart::COLOURS;
use std::fmt::Write;

/// A line and its points.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 480.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 350.0;

/// The panels that the report has points for.
pub fn svg(report: &Report) -> String {
    let mut panels = vec![];
    let curve = |name: &str, rows: &mut dyn Iterator<Item = &Row>, x: fn(&Row) -> f64| {
        let mut points: Vec<(f64, f64)> = rows.map(|row| (x(row), row.outcome.amat_ns)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Curve { name: name.into(), points }
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
        panels
            .push(panel(&report.trace, "local memory, % of what the program touches", &by_local, &|x| format!("{x}")));
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
            panels.push(panel(&title, "block", &by_block, &|x| size(x as u64)));
        }
    }
    let height = HEIGHT * panels.len().max(1) as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\" fill=\"#333\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (at, panel) in panels.iter().enumerate() {
        let _ = write!(out, "<g transform=\"translate(0,{})\">\n{panel}</g>\n", at as f64 * HEIGHT);
    }
    out + "</svg>\n"
}

fn panel(title: &str, axis: &str, curves: &[Curve], tick: &dyn Fn(f64) -> String) -> String {
    let points = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let range = |of: fn((f64, f64)) -> f64| {
        points().map(of).fold((f64::INFINITY, 0f64), |(low, high), v| (low.min(v), high.max(v)))
    };
    let ((x_low, x_high), (y_low, y_high)) = (range(|p| p.0), range(|p| p.1));
    let (y_low, y_high) = (10f64.powf(y_low.log10().floor()), 10f64.powf(y_high.log10().ceil()));
    let part = |v: f64, low: f64, high: f64| (v / low).ln() / (high / low).ln().max(1e-9);
    let x = |v: f64| LEFT + part(v, x_low, x_high) * (RIGHT - LEFT);
    let y = |v: f64| BOTTOM - part(v, y_low, y_high) * (BOTTOM - TOP);

    let mut out = String::new();
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"28\" font-size=\"16\" font-weight=\"600\">{title}</text>");
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"46\" fill=\"#666\">average memory access time, ns</text>");
    let mut decade = y_low;
    while decade <= y_high * 1.01 {
        let at = y(decade);
        let _ = writeln!(out, "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>");
        let label = LEFT - 8.0;
        let _ = writeln!(out, "<text x=\"{label}\" y=\"{:.1}\" text-anchor=\"end\">{decade}</text>", at + 4.0);
        decade *= 10.0;
    }
    let mut ticks: Vec<f64> = points().map(|p| p.0).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    for at in ticks {
        let (place, below) = (x(at), BOTTOM + 18.0);
        let _ = writeln!(out, "<text x=\"{place:.1}\" y=\"{below}\" text-anchor=\"middle\">{}</text>", tick(at));
    }
    let (middle, below) = ((LEFT + RIGHT) / 2.0, BOTTOM + 38.0);
    let _ = writeln!(out, "<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\" fill=\"#666\">{axis}</text>");
    for (place, curve) in curves.iter().enumerate() {
        // The first colour is for what is native.
        let colour = COLOURS[(place + 1) % COLOURS.len()];
        let drawn: Vec<(f64, f64)> = curve.points.iter().map(|&(px, py)| (x(px), y(py))).collect();
        let path: Vec<String> = drawn.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let path = path.join(" ");
        let _ = writeln!(out, "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
        for (x, y) in drawn {
            let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let (key, line) = (RIGHT + 20.0, TOP + 18.0 * place as f64);
        let _ = writeln!(out, "<rect x=\"{key}\" y=\"{line}\" width=\"11\" height=\"11\" fill=\"{colour}\"/>");
        let _ = writeln!(out, "<text x=\"{}\" y=\"{}\">{}</text>", key + 16.0, line + 10.0, curve.name);
    }
    out
}
