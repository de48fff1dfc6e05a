//! Slowdown against local share: one panel a program, as SVG.
//!
//! The axis of slowdowns is logarithmic, for swap leaves a linear one at once.
//! Less local memory is to the right: the curves tell a story that way.

use std::fmt::{self, Write};

use super::System;
use super::slowdown::Figure;
use farmem_kit::chart::{COLOURS, escaped};

/// One panel.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Above it.
    pub title: String,
    /// Below the title.
    pub subtitle: String,
    /// What is drawn.
    pub curves: Vec<Curve>,
}

/// One line of a panel.
#[derive(Clone, Debug)]
pub struct Curve {
    /// In the legend.
    pub name: &'static str,
    /// Of the line.
    pub colour: &'static str,
    /// By share.
    pub points: Vec<Point>,
}

/// One figure.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Of the far memory local, 0–1.
    pub share: f64,
    /// Time over native time.
    pub figure: Figure,
}

/// The colours of the systems, as in the chart of `bench paging`.
pub fn colour(system: System) -> &'static str {
    match system {
        System::Native => COLOURS[0],
        System::Shm => COLOURS[2],
        System::Tcp => COLOURS[3],
        System::Zram => COLOURS[4],
    }
}

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 496.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 322.0;
/// Panels beside each other on a sheet.
const COLUMNS: usize = 2;

/// Panels, two in a row; a document.
pub fn sheet(plots: &[Plot]) -> String {
    let columns = plots.len().clamp(1, COLUMNS);
    let rows = plots.len().div_ceil(columns).max(1);
    let (width, height) = (WIDTH * columns as f64, HEIGHT * rows as f64);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\" fill=\"#333\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (at, plot) in plots.iter().enumerate() {
        let (x, y) = ((at % columns) as f64 * WIDTH, (at / columns) as f64 * HEIGHT);
        let _ = writeln!(out, "<g transform=\"translate({x},{y})\">");
        // Writing to a string does not fail.
        let _ = panel(&mut out, plot);
        out += "</g>\n";
    }
    out + "</svg>\n"
}

fn panel(out: &mut String, plot: &Plot) -> fmt::Result {
    let values = plot.curves.iter().flat_map(|curve| &curve.points).map(|point| match point.figure {
        Figure::Of(spread) => spread.max,
        Figure::Above(least) => least * 1.25,
        Figure::Killed => 0.0,
    });
    let ticks = ticks(values.fold(2.0, f64::max));
    let top = ticks.last().copied().unwrap_or(2.0);
    // Below 1 there is room for what is faster than native.
    let lowest = 0.8f64;
    let x = |share: f64| LEFT + (1.0 - share) * (RIGHT - LEFT) / 0.95;
    let y = |slowdown: f64| BOTTOM - (slowdown.max(lowest) / lowest).ln() / (top / lowest).ln() * (BOTTOM - TOP);

    writeln!(out, "<text x=\"{LEFT}\" y=\"26\" font-size=\"16\" font-weight=\"600\">{}</text>", escaped(&plot.title))?;
    writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"44\" fill=\"#666\">time over native time · {}</text>",
        escaped(&plot.subtitle)
    )?;
    for &tick in &ticks {
        let (at, colour) = (y(tick), if tick == 1.0 { "#888" } else { "#e2e2e2" });
        writeln!(out, "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{colour}\"/>")?;
        writeln!(out, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{tick}×</text>", LEFT - 8.0, at + 4.0)?;
    }
    let mut shares: Vec<f64> = plot.curves.iter().flat_map(|curve| &curve.points).map(|point| point.share).collect();
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    for share in shares {
        let at = x(share);
        writeln!(
            out,
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{:.0} %</text>",
            BOTTOM + 18.0,
            share * 100.0
        )?;
    }
    let middle = (LEFT + RIGHT) / 2.0;
    writeln!(
        out,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666\">local share of its far memory</text>",
        BOTTOM + 38.0
    )?;

    let mut legend = LEFT;
    for (place, curve) in plot.curves.iter().enumerate() {
        let Curve { name, colour, points } = curve;
        writeln!(out, "<rect x=\"{legend}\" y=\"56\" width=\"11\" height=\"11\" fill=\"{colour}\"/>")?;
        writeln!(out, "<text x=\"{}\" y=\"66\">{name}</text>", legend + 16.0)?;
        legend += 100.0;
        let drawn = points.iter().filter_map(|point| Some((x(point.share), y(height(point.figure)?))));
        let line: Vec<String> = drawn.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-linejoin=\"round\"/>",
            line.join(" ")
        )?;
        for point in points {
            // What was killed has no height; it is told at the upper edge.
            let (px, py) = (x(point.share), height(point.figure).map_or(TOP, &y));
            match point.figure {
                Figure::Of(spread) => {
                    let (from, to) = (y(spread.min), y(spread.max));
                    writeln!(
                        out,
                        "<line x1=\"{px:.1}\" x2=\"{px:.1}\" y1=\"{from:.1}\" y2=\"{to:.1}\" stroke=\"{colour}\"/>"
                    )?;
                    writeln!(out, "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3.5\" fill=\"{colour}\"/>")?;
                }
                Figure::Killed => {}
                // An arrow: it goes on beyond.
                Figure::Above(_) => {
                    writeln!(out, "<path d=\"M{px:.1} {:.1} l-5 9 h10 z\" fill=\"{colour}\"/>", py - 9.0)?
                }
            }
            // farmem's figures stand below their points, swap's above: the curves lie that way round.
            let dy = if place + 1 == plot.curves.len() && plot.curves.len() > 1 { -8.0 } else { 15.0 };
            let anchor = if point.share > 0.99 { "start" } else { "middle" };
            writeln!(
                out,
                "<text x=\"{px:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{}</text>",
                py + dy,
                escaped(&point.figure.show())
            )?;
        }
    }
    Ok(())
}

fn height(figure: Figure) -> Option<f64> {
    match figure {
        Figure::Of(spread) => Some(spread.median),
        Figure::Above(least) => Some(least),
        Figure::Killed => None,
    }
}

/// 1, 2, 5, 10, … up to the first above the greatest.
fn ticks(greatest: f64) -> Vec<f64> {
    let mut ticks = Vec::new();
    for decade in 0..9 {
        for digit in [1.0, 2.0, 5.0] {
            let tick = digit * 10f64.powi(decade);
            ticks.push(tick);
            if tick >= greatest {
                return ticks;
            }
        }
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_cover_what_is_drawn() {
        assert_eq!(ticks(2.0), [1.0, 2.0]);
        assert_eq!(ticks(11.0), [1.0, 2.0, 5.0, 10.0, 20.0]);
    }

    #[test]
    fn a_sheet_has_two_panels_in_a_row() {
        let plot = Plot { title: "a & b".into(), subtitle: String::new(), curves: Vec::new() };
        let svg = sheet(&[plot.clone(), plot.clone(), plot]);
        assert!(svg.contains("translate(0,380)") && svg.contains("width=\"1040\" height=\"760\""), "{svg}");
        assert_eq!(svg.matches("a &amp; b").count(), 3);
    }
}
