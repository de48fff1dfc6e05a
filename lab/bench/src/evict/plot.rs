//! Goodput of the log over that of whole pages, by changed lines a page. Both axes are logarithmic; at 1× whole pages
//! begin to win.

use super::drive::{Arrangement, Method};
use super::{Cell, figures};
use farmem_kit::chart::axis::trimmed;
use farmem_kit::chart::{Axis, COLOURS, Curve, Panel, Point, sheet};

/// The drawing, as SVG.
pub fn draw(cells: &[Cell]) -> String {
    let gains = cells.iter().filter_map(|cell| figures::gain(cell, Method::Log)).map(|gain| gain.median);
    let mut kinds: Vec<_> = cells.iter().map(|cell| (cell.setting.link, cell.setting.arrangement)).collect();
    kinds.dedup();
    let curve = |(at, &(link, arrangement)): (usize, &(_, Arrangement))| {
        let of = |cell: &&Cell| cell.setting.link == link && cell.setting.arrangement == arrangement;
        let point = |cell: &Cell| {
            let gain = figures::gain(cell, Method::Log)?;
            let spread = Some((gain.min, gain.max));
            Some(Point { spread, ..Point::at(f64::from(cell.setting.lines), gain.median) })
        };
        let is_scattered = arrangement == Arrangement::Scattered;
        Curve {
            name: format!("{link}, {}", if is_scattered { "scattered" } else { "contiguous" }),
            colour: COLOURS[2 + at / 2 % 6],
            is_dashed: !is_scattered,
            labels_above: true,
            points: cells.iter().filter(of).filter_map(point).collect(),
        }
    };
    let panel = Panel {
        title: "Goodput of the eviction log over that of whole pages".into(),
        subtitle: "times; the thin line from the least to the greatest round".into(),
        x: Axis::with_ticks((0..=6).map(|power| f64::from(1 << power)), true, trimmed)
            .labelled("changed lines of a page's 64"),
        y: Axis::logarithmic(gains.chain([1.0]), |gain| format!("{}×", trimmed(gain))).with_reference(1.0),
        curves: kinds.iter().enumerate().map(curve).collect(),
    };
    sheet("", &[panel], 1)
}
