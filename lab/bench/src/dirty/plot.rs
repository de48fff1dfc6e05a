//! Each program's time under each policy over that under `none`: a mark and its spread, a row a program.

use super::figures::{self, Policy, of_none};
use super::{By, POLICIES, RATE, Ready, Setting, Way};
use crate::apps::runs::Run;
use farmem_kit::chart::axis::trimmed;
use farmem_kit::chart::{Axis, COLOURS, Rows, Style, sheet};
use farmem_kit::pairs::{Rounds, Spread};

/// What lies beyond stands at an end.
const TICKS: [f64; 7] = [0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0];

fn colour(dirty: &str) -> &'static str {
    COLOURS[2 + POLICIES.iter().position(|policy| *policy == dirty).unwrap_or(0)]
}

/// The drawing, as SVG: a chart for each transport.
pub fn draw(ready: &[Ready], ways: &[Way], measured: &Rounds<Setting, Run>) -> String {
    let charts = [By::Shm, By::Tcp].into_iter().filter_map(|by| {
        let ways: Vec<Way> = ways.iter().copied().filter(|way| way.by == by && way.dirty != "none").collect();
        (!ways.is_empty()).then(|| chart(by, ready, &ways, measured))
    });
    let charts: Vec<Rows> = charts.collect();
    sheet("Time under --dirty POLICY over time under --dirty none, a quarter local", &charts, 1)
}

fn chart(by: By, ready: &[Ready], ways: &[Way], measured: &Rounds<Setting, Run>) -> Rows {
    let of_all = figures::policies(ready, ways, measured, Run::wall_ns);
    let mean = |way: Way| of_all.iter().find(|of: &&Policy| of.way == way).and_then(|of| Spread::of([of.mean]));
    let of_program = |one: &Ready| {
        let figures = ways.iter().map(|&way| of_none(measured, one.program(), way, Run::wall_ns));
        (one.program().name().to_owned(), figures.collect())
    };
    let mean = ("geometric mean".to_owned(), ways.iter().map(|&way| mean(way)).collect());
    Rows {
        title: if by == By::Shm { "shared memory".to_owned() } else { format!("tcp at {RATE}bit/s") },
        series: ways.iter().map(|way| (way.dirty.to_owned(), colour(way.dirty))).collect(),
        groups: ready.iter().map(of_program).chain([mean]).collect(),
        axis: Axis::with_ticks(TICKS, true, |ratio| format!("{}×", trimmed(ratio))).with_reference(1.0),
        style: Style::Mark,
        show: |ratio| format!("{ratio:.2}"),
    }
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
