//! Bars in groups, on a logarithmic axis, as SVG.
//!
//! Costs under different systems lie decades apart, so a linear axis would show
//! the slowest alone. A bar is the median over rounds, a whisker its least and
//! greatest. Written by hand: one kind of chart does not earn a plotting library.

use std::fmt::{self, Write};

use crate::pairs::Spread;
use crate::table::duration;

/// A chart.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// Names of the bars of each group, in order. Their colours follow from their place.
    pub series: Vec<String>,
    /// Groups: a name, and one figure (ns) per series, if it was measured.
    pub groups: Vec<(String, Vec<Option<Spread>>)>,
}

/// Distinct to colour-blind readers too (Okabe and Ito, 2008).
pub const COLOURS: [&str; 8] = ["#999999", "#000000", "#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#009E73", "#CC79A7"];
/// What a character takes at most, about: wide enough for names of groups.
const CHARACTER: f64 = 6.0;
const PLOT: f64 = 620.0;
const BAR: f64 = 15.0;
const GAP: f64 = 14.0;

impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = || self.groups.iter().flat_map(|(_, bars)| bars.iter().flatten());
        let least = figures().map(|figure| figure.min).fold(f64::INFINITY, f64::min).max(1.0);
        let greatest = figures().map(|figure| figure.max).fold(1.0, f64::max);
        let (from, to) = if least.is_finite() { (least.log10().floor(), greatest.log10().ceil()) } else { (0.0, 1.0) };
        let longest = self.groups.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let left = 25.0 + CHARACTER * longest as f64;
        let x = |ns: f64| left + PLOT * (ns.max(1.0).log10() - from).max(0.0) / (to - from).max(1.0);

        let mut body = String::new();
        let mut y = 66.0;
        for (name, bars) in &self.groups {
            let height = bars.iter().flatten().count() as f64 * BAR;
            text(&mut body, left - 10.0, y + height / 2.0 + 4.0, "end", name)?;
            for (at, bar) in bars.iter().enumerate() {
                let Some(bar) = bar else { continue };
                let colour = COLOURS[at % COLOURS.len()];
                let (end, middle) = (x(bar.median), y + BAR / 2.0);
                writeln!(
                    body,
                    r#"<rect x="{left}" y="{:.1}" width="{:.1}" height="{:.1}" fill="{colour}"/>"#,
                    y + 1.0,
                    end - left,
                    BAR - 2.0
                )?;
                writeln!(
                    body,
                    r##"<line x1="{:.1}" x2="{:.1}" y1="{middle:.1}" y2="{middle:.1}" stroke="#444"/>"##,
                    x(bar.min),
                    x(bar.max)
                )?;
                text(&mut body, x(bar.max) + 5.0, middle + 4.0, "start", &duration(bar.median))?;
                y += BAR;
            }
            y += GAP;
        }

        let (width, height) = (left + PLOT + 80.0, y + 30.0);
        writeln!(
            f,
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">"#
        )?;
        writeln!(f, r#"<rect width="100%" height="100%" fill="white"/>"#)?;
        let mut head = String::new();
        writeln!(head, r#"<g font-size="15">"#)?;
        text(&mut head, 12.0, 22.0, "start", &self.title)?;
        writeln!(head, "</g>")?;
        let mut at = 12.0;
        for (place, name) in self.series.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            writeln!(head, r#"<rect x="{at}" y="35" width="11" height="11" fill="{colour}"/>"#)?;
            text(&mut head, at + 15.0, 45.0, "start", name)?;
            at += 32.0 + 6.5 * name.chars().count() as f64;
        }
        f.write_str(&head)?;
        for decade in from as i32..=to as i32 {
            let ns = 10f64.powi(decade);
            writeln!(
                f,
                r##"<line x1="{0:.1}" x2="{0:.1}" y1="58" y2="{1:.1}" stroke="#ddd"/>"##,
                x(ns),
                y - GAP / 2.0
            )?;
            let mut label = String::new();
            text(&mut label, x(ns), y + 8.0, "middle", &power(ns))?;
            f.write_str(&label)?;
        }
        f.write_str(&body)?;
        writeln!(f, "</svg>")
    }
}

fn power(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.0} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.0} ms", ns / 1e6),
        ns => format!("{:.0} s", ns / 1e9),
    }
}

/// A line of text, `anchor`ed at `start`, `middle` or `end`.
pub fn text(out: &mut String, x: f64, y: f64, anchor: &str, text: &str) -> fmt::Result {
    writeln!(out, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#, escaped(text))
}

/// Text as it may stand in an SVG file.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_becomes_a_bar_and_names_are_escaped() {
        let figure = |ns| Spread::of([ns, ns * 1.1]);
        let chart = Chart {
            title: "a < b & c".into(),
            series: vec!["one".into(), "two".into()],
            groups: vec![("read".into(), vec![figure(900.0), None]), ("write".into(), vec![figure(1e4), figure(1e5)])],
        };
        let svg = chart.to_string();
        assert_eq!(svg.matches("height=\"13.0\"").count(), 3);
        assert!(svg.contains("a &lt; b &amp; c"));
        assert!(Chart::default().to_string().ends_with("</svg>\n"), "an empty chart is still one");
    }
}
