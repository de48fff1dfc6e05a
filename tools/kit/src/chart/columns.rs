//! A histogram: a column for the share of each number, and a curve of the share up to it.

use super::axis::trimmed;
use super::canvas::{Anchor, Canvas, FAINT, GRID, INK};
use super::{COLOURS, Drawing};

/// A histogram of numbers 1, 2, 3 and so on.
#[derive(Clone, Debug)]
pub struct Columns {
    /// Above it.
    pub title: String,
    /// The small text below the title.
    pub note: String,
    /// The text below the axis: the things that the numbers count.
    pub label: String,
    /// The share of each number, 0 to 1, from the number 1 on.
    pub shares: Vec<f64>,
}

const LEFT: f64 = 60.0;
const RIGHT: f64 = 60.0;
const TOP: f64 = 50.0;
const HEIGHT: f64 = 260.0;
const COLUMN: f64 = 11.0;
/// Shares at which the axis of the columns may end.
const ROUND: [f64; 7] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];
/// Numbers that have a tick: 1, and each multiple of this.
const TICK: usize = 8;

impl Columns {
    fn width(&self) -> f64 {
        COLUMN * self.shares.len() as f64
    }
}

impl Drawing for Columns {
    fn size(&self) -> (f64, f64) {
        (LEFT + self.width() + RIGHT, TOP + HEIGHT + 50.0)
    }

    fn draw(&self, on: &mut Canvas) {
        let greatest = self.shares.iter().copied().fold(0.0, f64::max);
        let end = ROUND.into_iter().find(|&end| end >= greatest).unwrap_or(1.0);
        let (right, bottom) = (LEFT + self.width(), TOP + HEIGHT);
        let y = |part: f64| bottom - HEIGHT * part.clamp(0.0, 1.0);
        on.heading((LEFT, 22.0), 15.0, &self.title);
        on.text((LEFT, 39.0), Anchor::Start, INK, &self.note);
        for quarter in [0.0, 0.25, 0.5, 0.75, 1.0] {
            on.line((LEFT, y(quarter)), (right, y(quarter)), GRID);
            let share = format!("{} %", trimmed(100.0 * quarter * end));
            on.text((LEFT - 6.0, y(quarter) + 4.0), Anchor::End, INK, &share);
            on.text((right + 6.0, y(quarter) + 4.0), Anchor::Start, INK, &format!("{} %", 100.0 * quarter));
        }
        let (mut so_far, mut curve) = (0.0, Vec::new());
        for (x, (number, share)) in (0..).map(|n| LEFT + COLUMN * f64::from(n)).zip((1..).zip(&self.shares)) {
            if *share > 0.0 {
                on.bar((x + 1.0, y(share / end)), COLUMN - 2.0, bottom - y(share / end), COLOURS[2]);
            }
            if number == 1 || number % TICK == 0 {
                on.text((x + COLUMN / 2.0, bottom + 15.0), Anchor::Middle, INK, &number.to_string());
            }
            so_far += share;
            curve.push((x + COLUMN / 2.0, y(so_far)));
        }
        on.polyline(&curve, COLOURS[4], false);
        on.text(((LEFT + right) / 2.0, bottom + 34.0), Anchor::Middle, FAINT, &self.label);
    }
}

#[cfg(test)]
mod tests {
    use super::super::sheet;
    use super::*;

    #[test]
    fn a_column_for_each_number_that_occurs() {
        let shares = vec![0.25, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.25];
        let columns = Columns { title: "a < b".into(), note: String::new(), label: "lines".into(), shares };
        let svg = sheet("", &[columns], 1);
        assert_eq!(svg.matches("<rect x").count(), 3, "{svg}");
        assert!(svg.contains(">8<") && svg.contains(">50 %<") && svg.contains("a &lt; b"), "{svg}");
    }

    #[test]
    fn nothing_at_all_can_be_drawn() {
        let columns =
            Columns { title: String::new(), note: String::new(), label: String::new(), shares: vec![0.0; 64] };
        assert!(sheet("", &[columns], 1).contains(">64<"));
    }
}
