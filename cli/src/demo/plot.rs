//! One plot: slowdown against the share of memory that is local.

use farmem_kit::chart::axis::trimmed;
use farmem_kit::chart::{Axis, COLOURS, Curve, Panel, Point, sheet};

/// A measured point.
pub struct Measured {
    /// Share of the program's memory that was local, 0–1.
    pub share: f64,
    /// Time over native time.
    pub slowdown: f64,
    /// The local memory, for people.
    pub local: String,
}

/// The plot as an SVG document. Less local memory is to the right: the curve tells a story that
/// way.
pub fn svg(title: &str, measured: &[Measured]) -> String {
    let point =
        |one: &Measured| Point { label: format!("{:.2}×", one.slowdown), ..Point::at(one.share, one.slowdown) };
    let show = |share: f64| {
        let local = measured.iter().find(|one| one.share == share).map_or("", |one| &one.local);
        format!("{:.0} %\n{local}", share * 100.0)
    };
    let curve = Curve {
        name: String::new(),
        colour: COLOURS[2],
        is_dashed: false,
        labels_above: true,
        points: measured.iter().map(point).collect(),
    };
    let panel = Panel {
        title: title.to_owned(),
        subtitle: "time over native time (1×), as less of its memory is local".to_owned(),
        x: Axis::with_ticks(measured.iter().map(|one| one.share).chain([0.0, 1.0]), false, |share| {
            if measured.iter().any(|one| one.share == share) { show(share) } else { String::new() }
        })
        .reversed()
        .labelled("local share of the program's memory"),
        y: Axis::linear(measured.iter().map(|one| one.slowdown), |slowdown| format!("{}×", trimmed(slowdown)))
            .with_reference(1.0),
        curves: vec![curve],
    };
    sheet("", &[panel], 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_and_its_labels_are_drawn() {
        let measured = [(1.0, 1.02), (0.5, 2.0), (0.1, 9.3)].map(|(share, slowdown)| Measured {
            share,
            slowdown,
            local: "1 <MiB>".into(),
        });
        let svg = svg("a & b", &measured);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("a &amp; b") && svg.contains("9.30×") && svg.contains("1 &lt;MiB&gt;"), "{svg}");
    }
}
