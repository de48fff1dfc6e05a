//! Slowdown against local share: one panel a program.
//!
//! The axis of slowdowns is logarithmic, because swap leaves a linear one at once.
//! Less local memory is to the right: the curves tell a story that way.

use super::System;
use super::slowdown::Figure;
use farmem_kit::chart::axis::trimmed;
use farmem_kit::chart::{Axis, COLOURS, Curve, Panel, Point, sheet};

/// The colours of the systems, as in the chart of `bench paging`.
fn colour(system: System) -> &'static str {
    match system {
        System::Native => COLOURS[0],
        System::Shm => COLOURS[2],
        System::Tcp => COLOURS[3],
        System::Mirror => COLOURS[1],
        System::Zram => COLOURS[4],
    }
}

/// A system's figures, by share of the far memory that is local (0–1).
type OfSystem = (System, Vec<(f64, Figure)>);

/// A panel of a program's figures.
pub fn panel(title: String, subtitle: String, systems: Vec<OfSystem>) -> Panel {
    let all = || systems.iter().flat_map(|(_, figures)| figures);
    let heights = all().filter_map(|(_, figure)| match figure {
        Figure::Of(spread) => Some(spread.max),
        Figure::Above(least) => Some(least * 1.25),
        Figure::Killed => None,
    });
    let last = systems.len().saturating_sub(1);
    let curve = |(place, (system, figures)): (usize, &OfSystem)| Curve {
        name: system.name().to_owned(),
        colour: colour(*system),
        is_dashed: false,
        // Swap, the last, is the slowest: its labels stand above, farmem's below.
        labels_above: place == last && last > 0,
        points: figures.iter().map(|&(share, figure)| point(share, figure)).collect(),
    };
    Panel {
        title,
        subtitle: format!("time over native time · {subtitle}"),
        x: Axis::with_ticks(all().map(|(share, _)| *share), false, |share| format!("{:.0} %", share * 100.0))
            .reversed()
            .labelled("local share of its far memory"),
        // Below 1 there is room for what is faster than native.
        y: Axis::logarithmic(heights.chain([1.0, 2.0]), |slowdown| format!("{}×", trimmed(slowdown)))
            .starting_at(0.8)
            .with_reference(1.0),
        curves: systems.iter().enumerate().map(curve).collect(),
    }
}

fn point(share: f64, figure: Figure) -> Point {
    let label = figure.show();
    match figure {
        Figure::Of(spread) => {
            Point { label, spread: Some((spread.min, spread.max)), ..Point::at(share, spread.median) }
        }
        Figure::Above(least) => Point { label, is_least: true, ..Point::at(share, least) },
        // It has no height; that it was killed is told at the upper edge.
        Figure::Killed => Point { label, y: None, ..Point::at(share, 0.0) },
    }
}

/// Panels, two in a row, as an SVG document.
pub fn draw(panels: &[Panel]) -> String {
    sheet("", panels, 2)
}
