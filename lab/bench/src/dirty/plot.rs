//! Each program's time under each policy over that under `none`: a mark and its spread, a row a program, as SVG.

use std::fmt::{self, Write};

use super::figures::{self, Policy, of_none};
use super::{By, POLICIES, RATE, Ready, Setting, Way};
use crate::apps::runs::Run;
use farmem_kit::chart::{COLOURS, text};
use farmem_kit::pairs::{Rounds, Spread};

const LEFT: f64 = 130.0;
const WIDTH: f64 = 560.0;
const LINE: f64 = 11.0;
const GAP: f64 = 9.0;
/// The axis, logarithmic: from the least to the greatest ratio that is drawn; what lies beyond stands at its end.
const AXIS: [f64; 2] = [0.25, 4.0];
const TICKS: [f64; 7] = [0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0];

fn x(ratio: f64) -> f64 {
    let [from, to] = AXIS.map(f64::ln);
    LEFT + WIDTH * (ratio.clamp(AXIS[0], AXIS[1]).ln() - from) / (to - from)
}

fn colour(dirty: &str) -> &'static str {
    COLOURS[2 + POLICIES.iter().position(|policy| *policy == dirty).unwrap_or(0)]
}

/// The drawing.
pub fn draw(ready: &[Ready], ways: &[Way], measured: &Rounds<Setting, Run>) -> String {
    let mut body = String::new();
    let mut y = 52.0;
    for by in [By::Shm, By::Tcp] {
        let ways: Vec<Way> = ways.iter().copied().filter(|way| way.by == by && way.dirty != "none").collect();
        if !ways.is_empty() {
            // Writing to a string does not fail.
            let _ = panel(&mut body, &mut y, by, ready, &ways, measured);
        }
    }
    let (width, height) = (LEFT + WIDTH + 40.0, y + 10.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\" fill=\"#333\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"15\">Time under --dirty POLICY over time under --dirty none, a quarter local</text>\n\
         {body}</svg>\n"
    )
}

fn panel(
    out: &mut String,
    y: &mut f64,
    by: By,
    ready: &[Ready],
    ways: &[Way],
    measured: &Rounds<Setting, Run>,
) -> fmt::Result {
    let over = if by == By::Shm { "shared memory".to_owned() } else { format!("tcp at {RATE}bit/s") };
    text(out, 12.0, *y, "start", &over)?;
    let mut at = LEFT;
    for way in ways {
        writeln!(out, r#"<rect x="{at:.1}" y="{:.1}" width="9" height="9" fill="{}"/>"#, *y - 9.0, colour(way.dirty))?;
        text(out, at + 13.0, *y, "start", way.dirty)?;
        at += 70.0;
    }
    let top = *y + 12.0;
    let rows = ready.len() + 1;
    let bottom = top + rows as f64 * (ways.len() as f64 * LINE + GAP);
    for tick in TICKS {
        let (colour, at) = (if tick == 1.0 { "#888" } else { "#ddd" }, x(tick));
        writeln!(out, r#"<line x1="{at:.1}" x2="{at:.1}" y1="{top:.1}" y2="{bottom:.1}" stroke="{colour}"/>"#)?;
        text(out, at, bottom + 13.0, "middle", &format!("{tick}×"))?;
    }
    let of_all = figures::policies(ready, ways, measured, Run::wall_ns);
    let mean = |way: Way| of_all.iter().find(|of: &&Policy| of.way == way).and_then(|of| Spread::of([of.mean]));
    let mut row = top + GAP;
    for one in ready.iter().map(Some).chain([None]) {
        let name = one.map_or("geometric mean", |one| one.program().name());
        text(out, LEFT - 10.0, row + ways.len() as f64 * LINE / 2.0, "end", name)?;
        for &way in ways {
            let figure = one.map_or_else(|| mean(way), |one| of_none(measured, one.program(), way, Run::wall_ns));
            if let Some(of) = figure {
                mark(out, row, way.dirty, &of)?;
            }
            row += LINE;
        }
        row += GAP;
    }
    *y = bottom + 44.0;
    Ok(())
}

fn mark(out: &mut String, y: f64, dirty: &str, of: &Spread) -> fmt::Result {
    let colour = colour(dirty);
    writeln!(
        out,
        r#"<line x1="{:.1}" x2="{:.1}" y1="{y:.1}" y2="{y:.1}" stroke="{colour}" stroke-opacity="0.6"/>"#,
        x(of.min),
        x(of.max)
    )?;
    writeln!(out, r#"<circle cx="{:.1}" cy="{y:.1}" r="3.6" fill="{colour}"/>"#, x(of.median))?;
    text(out, x(of.max) + 7.0, y + 3.5, "start", &format!("{:.2}", of.median))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::programs::Program;

    #[test]
    fn every_figure_is_a_mark() {
        let (ways, measured) = figures::tests::measured();
        let svg = draw(&Ready::named(&[Program::Redis, Program::Sort]), &ways, &measured);
        // Two programs and their mean, under two policies.
        assert_eq!(svg.matches("<circle").count(), 6, "{svg}");
        assert!(svg.contains("1.50") && svg.contains("geometric mean"), "{svg}");
    }
}
