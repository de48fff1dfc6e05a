//! Curves over two axes.

use super::axis::Axis;
use super::canvas::{Anchor, Canvas, FAINT, GRID, INK, REFERENCE};
use super::{Drawing, width_of};

/// A panel of curves.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The text above the panel.
    pub title: String,
    /// The text below the title: the unit of the heights, and other facts that a reader needs.
    pub subtitle: String,
    /// The axis from left to right.
    pub x: Axis,
    /// The axis from the bottom up.
    pub y: Axis,
    /// The curves, in the legend's order.
    pub curves: Vec<Curve>,
}

/// A curve.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The name in the legend. A panel's only curve needs none.
    pub name: String,
    /// The colour of the line.
    pub colour: &'static str,
    /// Whether the line is dashed.
    pub is_dashed: bool,
    /// Whether its points' labels stand above them, or below.
    pub labels_above: bool,
    /// The points, from left to right.
    pub points: Vec<Point>,
}

/// A point of a curve.
#[derive(Clone, Debug)]
pub struct Point {
    /// The value on the axis to the right.
    pub x: f64,
    /// The value on the axis upwards. `None`: only the label is shown, at the upper edge.
    pub y: Option<f64>,
    /// The least and greatest value that was measured.
    pub spread: Option<(f64, f64)>,
    /// Whether `y` is a lower limit of the true value.
    pub is_least: bool,
    /// The text beside the point.
    pub label: String,
}

impl Point {
    /// A point without spread or label.
    pub fn at(x: f64, y: f64) -> Point {
        Point { x, y: Some(y), spread: None, is_least: false, label: String::new() }
    }
}

const LEFT: f64 = 56.0;
const TOP: f64 = 84.0;
const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 250.0;
const LINE: f64 = 13.0;
/// Space between the sides and the outermost points: room for their labels.
const PAD: f64 = 22.0;
/// Where a point without a height has its label.
const NO_HEIGHT: f64 = TOP + 22.0;
/// A panel with more curves has its legend at the right.
const FEW: usize = 4;

impl Panel {
    /// Whether the legend is a column at the right.
    fn has_column(&self) -> bool {
        self.curves.len() > FEW
    }

    /// The width of that column.
    fn column(&self) -> f64 {
        let longest = self.curves.iter().map(|curve| width_of(&curve.name)).fold(0.0, f64::max);
        if self.has_column() { 50.0 + longest } else { 0.0 }
    }

    fn tick_lines(&self) -> usize {
        self.x.ticks().map(|(_, text, _)| text.lines().count()).max().unwrap_or(1)
    }

    fn legend(&self, on: &mut Canvas) {
        let mut at = (LEFT, TOP - 22.0);
        if self.has_column() {
            at = (LEFT + WIDTH + 18.0, TOP + 6.0);
        }
        for curve in self.curves.iter().filter(|curve| !curve.name.is_empty()) {
            on.key(at, curve.colour, curve.is_dashed);
            on.text((at.0 + 26.0, at.1 + 4.0), Anchor::Start, INK, &curve.name);
            match self.has_column() {
                true => at.1 += 18.0,
                false => at.0 += 44.0 + width_of(&curve.name),
            }
        }
    }

    fn axes(&self, on: &mut Canvas) {
        let (right, bottom) = (LEFT + WIDTH, TOP + HEIGHT);
        for (place, text, is_reference) in self.y.ticks() {
            let at = bottom - place * HEIGHT;
            on.line((LEFT, at), (right, at), if is_reference { REFERENCE } else { GRID });
            on.text((LEFT - 8.0, at + 4.0), Anchor::End, INK, text);
        }
        if let Some(place) = self.y.reference() {
            let at = bottom - place * HEIGHT;
            on.line((LEFT, at), (right, at), REFERENCE);
        }
        for (place, text, _) in self.x.ticks() {
            let at = across(place);
            on.line((at, bottom), (at, bottom + 4.0), REFERENCE);
            for (n, line) in text.lines().enumerate() {
                let colour = if n == 0 { INK } else { FAINT };
                on.text((at, bottom + 18.0 + LINE * n as f64), Anchor::Middle, colour, line);
            }
        }
        on.line((LEFT, bottom), (right, bottom), REFERENCE);
        let below = bottom + 24.0 + LINE * self.tick_lines() as f64;
        on.text(((LEFT + right) / 2.0, below), Anchor::Middle, FAINT, self.x.label());
    }

    fn curve(&self, on: &mut Canvas, curve: &Curve, labels: &mut Vec<(f64, f64, f64)>) {
        let x = |at: f64| across(self.x.place(at));
        let y = |at: f64| TOP + HEIGHT * (1.0 - self.y.place(at));
        let line: Vec<(f64, f64)> = curve.points.iter().filter_map(|p| Some((x(p.x), y(p.y?)))).collect();
        on.polyline(&line, curve.colour, curve.is_dashed);
        for point in &curve.points {
            let at = (x(point.x), point.y.map_or(NO_HEIGHT, y));
            if let Some((least, greatest)) = point.spread {
                on.line((at.0, y(least)), (at.0, y(greatest)), curve.colour);
            }
            match point.y {
                Some(_) if point.is_least => on.tip(at, curve.colour),
                Some(_) => on.dot(at, curve.colour),
                None => {}
            }
            if !point.label.is_empty() {
                label(on, at, curve, &point.label, labels);
            }
        }
    }
}

/// The distance from the left of a place between 0 and 1.
fn across(place: f64) -> f64 {
    LEFT + PAD + place * (WIDTH - 2.0 * PAD)
}

/// Writes a label near its point. If another label is there, it moves up or down by a few steps.
fn label(on: &mut Canvas, at: (f64, f64), curve: &Curve, text: &str, labels: &mut Vec<(f64, f64, f64)>) {
    const STEP: f64 = 12.0;
    let half = width_of(text) / 2.0;
    let x = at.0;
    let (mut y, step) = if curve.labels_above { (at.1 - 8.0, -STEP) } else { (at.1 + 15.0, STEP) };
    let meets = |y: f64| labels.iter().any(|&(lx, ly, lh)| (lx - x).abs() < lh + half && (ly - y).abs() < STEP - 1.0);
    for _ in 0..5 {
        if !meets(y) {
            break;
        }
        y += step;
    }
    labels.push((x, y, half));
    on.text((x, y), Anchor::Middle, curve.colour, text);
}

impl Drawing for Panel {
    fn size(&self) -> (f64, f64) {
        (LEFT + WIDTH + 24.0 + self.column(), TOP + HEIGHT + 40.0 + LINE * self.tick_lines() as f64)
    }

    fn draw(&self, on: &mut Canvas) {
        on.heading((LEFT, 26.0), 16.0, &self.title);
        on.text((LEFT, 44.0), Anchor::Start, FAINT, &self.subtitle);
        self.legend(on);
        self.axes(on);
        let mut labels = vec![];
        self.curves.iter().for_each(|curve| self.curve(on, curve, &mut labels));
    }
}

#[cfg(test)]
mod tests {
    use super::super::axis::trimmed;
    use super::super::{COLOURS, sheet};
    use super::*;

    fn panel(curves: usize) -> Panel {
        let points = vec![
            Point { spread: Some((1.0, 3.0)), label: "2×".into(), ..Point::at(1.0, 2.0) },
            Point { is_least: true, label: "> 4×".into(), ..Point::at(0.5, 4.0) },
            Point { y: None, label: "killed".into(), ..Point::at(0.1, 0.0) },
        ];
        let curve = |n: usize| Curve {
            name: format!("curve {n}"),
            colour: COLOURS[n],
            is_dashed: n == 1,
            labels_above: false,
            points: points.clone(),
        };
        let x =
            Axis::with_ticks([1.0, 0.5, 0.1], false, |share| format!("{share}\nbelow")).reversed().labelled("share");
        let y = Axis::logarithmic([1.0, 4.0], trimmed).with_reference(1.0);
        let curves = (0..curves).map(curve).collect();
        Panel { title: "a".into(), subtitle: String::new(), x, y, curves }
    }

    #[test]
    fn every_point_is_drawn_and_labelled() {
        let svg = sheet("", &[panel(2)], 1);
        assert_eq!((svg.matches("<circle").count(), svg.matches("<path").count()), (2, 2), "{svg}");
        assert_eq!((svg.matches("killed").count(), svg.matches("below").count()), (2, 3), "{svg}");
        assert_eq!(svg.matches("dasharray").count(), 2, "the curve and its legend: {svg}");
    }

    #[test]
    fn labels_do_not_stand_on_each_other() {
        let svg = sheet("", &[panel(3)], 1);
        let mut places: Vec<&str> = svg.lines().filter(|line| line.ends_with(">2×</text>")).collect();
        assert_eq!(places.len(), 3);
        places.iter_mut().for_each(|line| *line = line.split("text-anchor").next().unwrap_or_default());
        places.dedup();
        assert_eq!(places.len(), 3, "{places:?}");
    }

    #[test]
    fn many_curves_have_their_legend_at_the_right() {
        assert!(panel(5).size().0 > panel(4).size().0 + 50.0);
    }
}
