//! Bars or marks in groups, one below the other.

use super::axis::Axis;
use super::canvas::{Anchor, Canvas, FAINT, GRID, INK, REFERENCE};
use super::{Drawing, width_of};
use crate::pairs::Spread;

/// How a figure is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// From the axis's beginning: how much it is.
    Bar,
    /// Where it is: for ratios.
    Mark,
}

/// A chart of rows.
#[derive(Clone, Debug)]
pub struct Rows {
    /// Above it.
    pub title: String,
    /// Names and colours of the figures of each group, in order.
    pub series: Vec<(String, &'static str)>,
    /// Groups: a name, and one figure for each series, if there is one.
    pub groups: Vec<(String, Vec<Option<Spread>>)>,
    /// From left to right.
    pub axis: Axis,
    /// Of all figures.
    pub style: Style,
    /// A figure as text.
    pub show: fn(f64) -> String,
}

const WIDTH: f64 = 620.0;
const ROW: f64 = 15.0;
const GAP: f64 = 14.0;
/// Where the legend stands, and the first group below it.
const LEGEND: f64 = 45.0;
const TOP: f64 = 66.0;

impl Rows {
    fn left(&self) -> f64 {
        25.0 + self.groups.iter().map(|(name, _)| width_of(name)).fold(0.0, f64::max)
    }

    fn bottom(&self) -> f64 {
        let rows = self.groups.iter().map(|(_, figures)| figures.iter().flatten().count());
        TOP + rows.map(|rows| rows as f64 * ROW + GAP).sum::<f64>()
    }

    /// The figures that are drawn: an axis must span all of them.
    pub fn all(groups: &[(String, Vec<Option<Spread>>)]) -> impl Iterator<Item = f64> {
        groups.iter().flat_map(|(_, figures)| figures.iter().flatten()).flat_map(|figure| [figure.min, figure.max])
    }

    fn figure(&self, on: &mut Canvas, y: f64, figure: &Spread, colour: &str) {
        let left = self.left();
        let x = |at: f64| left + self.axis.place(at) * WIDTH;
        let middle = y + ROW / 2.0;
        let (least, greatest) = ((x(figure.min), middle), (x(figure.max), middle));
        match self.style {
            Style::Bar => {
                on.bar((left, y + 1.0), x(figure.median) - left, ROW - 2.0, colour);
                on.line(least, greatest, REFERENCE);
            }
            Style::Mark => {
                on.line(least, greatest, colour);
                on.dot((x(figure.median), middle), colour);
            }
        }
        let end = greatest.0.max(x(figure.median)) + 6.0;
        on.text((end, middle + 4.0), Anchor::Start, INK, &(self.show)(figure.median));
    }
}

impl Drawing for Rows {
    fn size(&self) -> (f64, f64) {
        (self.left() + WIDTH + 80.0, self.bottom() + 40.0)
    }

    fn draw(&self, on: &mut Canvas) {
        let (left, bottom) = (self.left(), self.bottom());
        on.heading((12.0, 22.0), 15.0, &self.title);
        let mut at = 12.0;
        for (name, colour) in self.series.iter().filter(|(name, _)| !name.is_empty()) {
            on.bar((at, LEGEND - 10.0), 11.0, 11.0, colour);
            on.text((at + 15.0, LEGEND), Anchor::Start, INK, name);
            at += 32.0 + width_of(name);
        }
        for (place, text, is_reference) in self.axis.ticks() {
            let x = left + place * WIDTH;
            on.line((x, TOP - 8.0), (x, bottom - GAP / 2.0), if is_reference { REFERENCE } else { GRID });
            on.text((x, bottom + 8.0), Anchor::Middle, INK, text);
        }
        on.text((left + WIDTH / 2.0, bottom + 26.0), Anchor::Middle, FAINT, self.axis.label());
        let mut y = TOP;
        for (name, figures) in &self.groups {
            let height = figures.iter().flatten().count() as f64 * ROW;
            on.text((left - 10.0, y + height / 2.0 + 4.0), Anchor::End, INK, name);
            for (figure, (_, colour)) in figures.iter().zip(&self.series) {
                if let Some(figure) = figure {
                    self.figure(on, y, figure, colour);
                    y += ROW;
                }
            }
            y += GAP;
        }
    }
}

/// Nanoseconds on an axis: powers of ten of a unit.
pub fn power(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.0} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.0} ms", ns / 1e6),
        ns => format!("{:.0} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{COLOURS, sheet};
    use super::*;
    use crate::table::duration;

    fn rows(style: Style) -> Rows {
        let figure = |ns| Spread::of([ns, ns * 1.1]);
        let groups = vec![("read".into(), vec![figure(900.0), None]), ("write".into(), vec![figure(1e4), figure(1e5)])];
        let axis = Axis::logarithmic(Rows::all(&groups), power);
        let series = vec![("one".into(), COLOURS[2]), ("two".into(), COLOURS[3])];
        Rows { title: "title".into(), series, groups, axis, style, show: duration }
    }

    #[test]
    fn every_figure_is_drawn() {
        let svg = sheet("", &[rows(Style::Bar)], 1);
        // Two in the legend.
        assert_eq!(svg.matches("<rect x").count(), 3 + 2, "{svg}");
        assert!(svg.contains("10.5 µs") && svg.contains(">100 µs<"), "{svg}");
        assert_eq!(sheet("", &[rows(Style::Mark)], 1).matches("<circle").count(), 3);
    }
}
