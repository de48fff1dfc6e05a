//! Goodput of the log over that of whole pages, by changed lines a page, as SVG. Both axes are logarithmic; the
//! line at 1× is where whole pages begin to win.

use std::fmt::Write;

use super::drive::{Arrangement, Method};
use super::{Cell, figures};
use farmem_kit::chart::{COLOURS, text};

const LEFT: f64 = 60.0;
const RIGHT: f64 = 620.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 360.0;

/// The drawing.
pub fn draw(cells: &[Cell]) -> String {
    let gains = || cells.iter().filter_map(|cell| figures::gain(cell, Method::Log));
    let top = gains().map(|gain| gain.max).fold(2.0, f64::max).log2().ceil();
    let low = gains().map(|gain| gain.min).fold(0.9, f64::min).log2().floor();
    let x = |lines: u32| LEFT + (RIGHT - LEFT) * (lines as f64).log2() / 6.0;
    let y = |gain: f64| BOTTOM - (BOTTOM - TOP) * (gain.log2() - low) / (top - low);
    let mut out = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"840\" height=\"410\" viewBox=\"0 0 840 410\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <g font-size=\"15\"><text x=\"12\" y=\"24\">Goodput of the eviction log over that of whole pages</text></g>\n",
    );
    for power in low as i32..=top as i32 {
        let (at, colour) = (y(2f64.powi(power)), if power == 0 { "#000" } else { "#ddd" });
        let _ = writeln!(out, "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{colour}\"/>");
        let _ = text(&mut out, LEFT - 6.0, at + 4.0, "end", &format!("{}×", 2f64.powi(power)));
    }
    for power in 0..=6 {
        let _ = text(&mut out, x(1 << power), BOTTOM + 18.0, "middle", &(1 << power).to_string());
    }
    let _ = text(&mut out, (LEFT + RIGHT) / 2.0, BOTTOM + 38.0, "middle", "changed lines of a page's 64");
    let mut curves: Vec<_> = cells.iter().map(|cell| (cell.setting.link, cell.setting.arrangement)).collect();
    curves.dedup();
    for (at, (link, arrangement)) in curves.into_iter().enumerate() {
        let of = |cell: &&Cell| cell.setting.link == link && cell.setting.arrangement == arrangement;
        let points: Vec<String> = cells
            .iter()
            .filter(of)
            .filter_map(|cell| figures::gain(cell, Method::Log).map(|gain| (cell.setting.lines, gain)))
            .map(|(lines, gain)| format!("{:.1},{:.1}", x(lines), y(gain.median)))
            .collect();
        let (colour, scattered) = (COLOURS[2 + at / 2 % 6], arrangement == Arrangement::Scattered);
        let dash = if scattered { "" } else { " stroke-dasharray=\"5 3\"" };
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"{dash}/>",
            points.join(" ")
        );
        let row = TOP + 10.0 + 18.0 * at as f64;
        let _ = writeln!(
            out,
            "<line x1=\"636\" x2=\"660\" y1=\"{row}\" y2=\"{row}\" stroke=\"{colour}\" stroke-width=\"1.8\"{dash}/>"
        );
        let name = format!("{link}, {}", if scattered { "scattered" } else { "contiguous" });
        let _ = text(&mut out, 666.0, row + 4.0, "start", &name);
    }
    out + "</svg>\n"
}
