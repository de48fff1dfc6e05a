//! The figures of a run: tables, targets, the chart.

use crate::load::Measured;
use crate::mix::{Keys, Mix};
use crate::systems::System;
use farmem_kit::chart::{Axis, COLOURS, Rows as Chart, Style, sheet};
use farmem_kit::pairs::{Rounds, Spread};
use farmem_kit::report::{Bound, Section, Target};
use farmem_kit::table::{Table, duration};
use serde::Serialize;

/// A row of the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Case {
    /// Generators, and front ends of a store.
    pub processes: u16,
    /// Of a value.
    pub bytes: usize,
    /// How keys are drawn.
    pub keys: Keys,
    /// Which requests.
    pub mix: Mix,
}

impl Case {
    /// Whether one filling does for both.
    pub fn is_beside(&self, other: &Case) -> bool {
        (self.processes, self.bytes) == (other.processes, other.bytes)
    }

    fn head(&self) -> [String; 4] {
        let keys = if self.mix == Mix::D { "latest" } else { self.keys.name() };
        [self.processes.to_string(), self.bytes.to_string(), keys.into(), self.mix.name().into()]
    }
}

/// The figures of one mix on one system.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Found {
    /// As the generators measured it.
    #[serde(flatten)]
    pub measured: Measured,
    /// CPU time of a request, in ns.
    pub cpu: f64,
}

impl Found {
    /// It was not measured.
    pub const NONE: Found =
        Found { measured: Measured { rate: f64::NAN, median: f64::NAN, p99: f64::NAN, asked: 0 }, cpu: f64::NAN };
}

/// A system's figures of a round: one for each case, in their order.
pub type Cells = Vec<Found>;

/// All of it.
#[derive(Clone, Copy, Debug)]
pub struct Figures<'a> {
    /// By system and round.
    pub measured: &'a Rounds<System, Cells>,
    /// In the order of the cells.
    pub cases: &'a [Case],
}

/// As many times faster than paging as is aimed at.
const FASTER: Bound = Bound::AtLeast(3.0, 5.0);

impl<'a> Figures<'a> {
    /// For machines.
    pub fn raw(self) -> Vec<(&'static str, Vec<&'a Cells>)> {
        self.measured.systems().map(|system| (system.name(), self.measured.of(system).collect())).collect()
    }

    fn spread(self, system: System, case: usize, figure: impl Fn(&Found) -> f64) -> Option<Spread> {
        self.measured.spread(system, |cells| cells.get(case).map(&figure))
    }

    /// The tables.
    pub fn sections(self) -> Vec<Section> {
        let mut sections = Vec::new();
        for (title, figure, show) in [
            ("Requests a second", (|found| found.measured.rate) as fn(&Found) -> f64, rate as fn(f64) -> String),
            ("CPU time of a request", |found| found.cpu, duration),
            ("99 of 100 pipelines are answered within", |found| found.measured.p99, duration),
        ] {
            let head = ["processes", "bytes", "keys", "mix"].map(str::to_owned).into_iter();
            let mut table = Table::new(head.chain(self.measured.systems().map(|system| system.name().to_owned())));
            for (n, case) in self.cases.iter().enumerate() {
                let cell = |system| self.spread(system, n, figure).map_or("–".into(), |spread| show(spread.median));
                table.row(case.head().into_iter().chain(self.measured.systems().map(cell)));
            }
            sections.push(Section { title: title.into(), table });
        }
        sections
    }

    /// Uniform keys, of which most are far, against redis on memory that is paged.
    pub fn targets(self) -> Vec<Target> {
        let mut targets = Vec::new();
        let uniform = |case: &Case| case.keys == Keys::Uniform && case.mix != Mix::D && case.processes == 1;
        for (n, case) in self.cases.iter().enumerate().filter(|(_, case)| uniform(case)) {
            for paged in [System::RunRedis, System::ZramRedis] {
                let ratio = self.measured.within([System::Front, paged], |[ours, paged]| {
                    Some(ours.get(n)?.measured.rate / paged.get(n)?.measured.rate)
                });
                if ratio.is_some() {
                    let what = format!("{} bytes, {}: farmem kv against {}", case.bytes, case.mix.name(), paged.name());
                    targets.push(Target::new(what, FASTER, ratio));
                }
            }
        }
        targets
    }

    /// The rates, as SVG.
    pub fn chart(self) -> String {
        let systems: Vec<System> = self.measured.systems().collect();
        let group = |(n, case): (usize, &Case)| {
            let spread = |&system: &System| self.spread(system, n, |found| found.measured.rate);
            (case.head().join(" "), systems.iter().map(spread).collect())
        };
        let groups: Vec<(String, Vec<Option<Spread>>)> = self.cases.iter().enumerate().map(group).collect();
        let axis = Axis::logarithmic(Chart::all(&groups).collect::<Vec<_>>(), rate).labelled("requests a second");
        let colours = COLOURS.iter().skip(1).cycle();
        let series = systems.iter().zip(colours).map(|(system, &colour)| (system.name().to_owned(), colour));
        let title = "Requests a second".into();
        let chart = Chart { title, series: series.collect(), groups, axis, style: Style::Mark, show: rate };
        sheet("A store in far memory", &[chart], 1)
    }
}

fn rate(requests: f64) -> String {
    if requests < 10_000.0 { format!("{requests:.0}") } else { format!("{:.1} k", requests / 1e3) }
}
