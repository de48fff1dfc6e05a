//! Axes: from figures to places, and the ticks between.

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    label: String,
    from: f64,
    to: f64,
    is_log: bool,
    is_reversed: bool,
    ticks: Vec<(f64, String)>,
    reference: Option<f64>,
}

/// More decades than this have no ticks within them.
const FEW_DECADES: f64 = 2.5;

impl Axis {
    /// Logarithmic, over all of these figures, which are positive. Ticks are 1, 2, 5 of each
    /// decade, or decades alone.
    pub fn logarithmic(figures: impl IntoIterator<Item = f64>, show: impl Fn(f64) -> String) -> Axis {
        let (least, greatest) = range(figures.into_iter().filter(|figure| *figure > 0.0)).unwrap_or((1.0, 10.0));
        let digits: &[f64] = if (greatest / least).log10() < FEW_DECADES { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let decades = least.log10().floor() as i32..=greatest.log10().ceil() as i32 + 1;
        let all: Vec<f64> =
            decades.flat_map(|decade| digits.iter().map(move |digit| digit * 10f64.powi(decade))).collect();
        // A little beyond both ends, so that a figure at a tick counts as within it.
        let first = all.iter().rposition(|&tick| tick <= least * 1.001).unwrap_or(0);
        let last = all.iter().position(|&tick| tick >= greatest * 0.999).unwrap_or(all.len() - 1).max(first + 1);
        let ticks: Vec<f64> = all[first..=last].to_vec();
        Axis::between(ticks[0], ticks[ticks.len() - 1], true, ticks, show)
    }

    /// Logarithmic by whole decades, over all of these figures.
    pub fn decades(figures: impl IntoIterator<Item = f64>, show: impl Fn(f64) -> String) -> Axis {
        let (least, greatest) = range(figures.into_iter().filter(|figure| *figure > 0.0)).unwrap_or((1.0, 10.0));
        let first = least.log10().floor() as i32;
        let last = (greatest.log10().ceil() as i32).max(first + 1);
        Axis::with_ticks((first..=last).map(|decade| 10f64.powi(decade)), true, show)
    }

    /// Linear, from 0 beyond the greatest of these figures, by round steps.
    pub fn linear(figures: impl IntoIterator<Item = f64>, show: impl Fn(f64) -> String) -> Axis {
        let greatest = figures.into_iter().fold(0.0, f64::max);
        let greatest = if greatest > 0.0 { greatest } else { 1.0 };
        let rough = greatest / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0].map(|digit| digit * power).into_iter().find(|step| *step >= rough * 0.999);
        let step = step.unwrap_or(10.0 * power);
        // Room above the last point for its value.
        let steps = (greatest * 1.06 / step).ceil() as u32;
        let ticks: Vec<f64> = (0..=steps).map(|n| f64::from(n) * step).collect();
        Axis::between(0.0, f64::from(steps) * step, false, ticks, show)
    }

    /// With these ticks, from the least to the greatest of them. Values beyond stand at an end.
    pub fn with_ticks(ticks: impl IntoIterator<Item = f64>, is_log: bool, show: impl Fn(f64) -> String) -> Axis {
        let mut ticks: Vec<f64> = ticks.into_iter().collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        let (from, to) = range(ticks.iter().copied()).unwrap_or((0.0, 1.0));
        Axis::between(from, to, is_log, ticks, show)
    }

    fn between(from: f64, to: f64, is_log: bool, ticks: Vec<f64>, show: impl Fn(f64) -> String) -> Axis {
        let ticks = ticks.into_iter().map(|tick| (tick, show(tick))).collect();
        Axis { label: String::new(), from, to, is_log, is_reversed: false, ticks, reference: None }
    }

    /// With a label.
    pub fn labelled(self, label: impl Into<String>) -> Axis {
        Axis { label: label.into(), ..self }
    }

    /// From the greatest to the least.
    pub fn reversed(self) -> Axis {
        Axis { is_reversed: true, ..self }
    }

    /// Begins at this figure, which need not be a tick.
    pub fn starting_at(mut self, from: f64) -> Axis {
        self.ticks.retain(|(tick, _)| *tick >= from);
        Axis { from, ..self }
    }

    /// With a line at this figure, which the others are compared with.
    pub fn with_reference(self, at: f64) -> Axis {
        Axis { reference: Some(at), ..self }
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Ticks: the place of each, its label, and whether it is the reference.
    pub(super) fn ticks(&self) -> impl Iterator<Item = (f64, &str, bool)> {
        self.ticks.iter().map(|(tick, text)| (self.place(*tick), text.as_str(), self.is_reference(*tick)))
    }

    /// Where the reference stands, if it is no tick.
    pub(super) fn reference(&self) -> Option<f64> {
        let at = self.reference?;
        self.ticks.iter().all(|(tick, _)| !self.is_reference(*tick)).then(|| self.place(at))
    }

    fn is_reference(&self, tick: f64) -> bool {
        self.reference.is_some_and(|at| (tick - at).abs() <= at.abs() * 1e-9)
    }

    /// A figure's place, 0 to 1.
    pub(super) fn place(&self, figure: f64) -> f64 {
        let part = if self.is_log {
            (figure.max(f64::MIN_POSITIVE) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (figure - self.from) / (self.to - self.from)
        };
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.5 };
        if self.is_reversed { 1.0 - part } else { part }
    }
}

fn range(figures: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    figures.fold(None, |range, figure| {
        let (least, greatest) = range.unwrap_or((figure, figure));
        Some((figure.min(least), figure.max(greatest)))
    })
}

/// A figure without zeros at its end.
pub fn trimmed(figure: f64) -> String {
    let text = format!("{figure:.2}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn logarithmic_ticks_cover_what_is_drawn() {
        assert_eq!(shown(&Axis::logarithmic([1.0, 11.0], trimmed)), ["1", "2", "5", "10", "20"]);
        assert_eq!(shown(&Axis::logarithmic([0.9], trimmed)), ["0.5", "1"]);
        assert_eq!(shown(&Axis::logarithmic([90.0, 1e5], trimmed)), ["10", "100", "1000", "10000", "100000"]);
        assert_eq!(shown(&Axis::logarithmic([], trimmed)), ["1", "2", "5", "10"]);
        assert_eq!(shown(&Axis::logarithmic([2.0, 2.0], trimmed)), ["2", "5"]);
        assert_eq!(shown(&Axis::decades([90.0, 110.0], trimmed)), ["10", "100", "1000"]);
    }

    #[test]
    fn linear_steps_are_round_and_leave_room() {
        for greatest in [0.3, 1.0, 1.3, 2.7, 8.0, 33.0, 250.0] {
            let axis = Axis::linear([greatest], trimmed);
            assert!(axis.to >= greatest * 1.05 && axis.ticks.len() <= 8, "{greatest}: {axis:?}");
        }
        assert_eq!(shown(&Axis::linear([9.0], trimmed)), ["0", "2", "4", "6", "8", "10"]);
        assert!(Axis::linear([], trimmed).to > 0.0);
    }

    #[test]
    fn places_are_between_the_ends() {
        let axis = Axis::with_ticks([0.25, 1.0, 4.0], true, trimmed).with_reference(1.0);
        assert_eq!([0.01, 0.25, 1.0, 4.0, 9.0].map(|figure| axis.place(figure)), [0.0, 0.0, 0.5, 1.0, 1.0]);
        assert_eq!(axis.ticks().map(|(_, _, is_reference)| is_reference).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(axis.reversed().place(0.25), 1.0);
        assert_eq!(Axis::with_ticks([], false, trimmed).place(f64::NAN), 0.5);
    }
}
