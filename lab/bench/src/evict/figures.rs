//! Tables and targets.

use farmem_fabric::shape::on_the_wire;
use farmem_protocol::lines::LINE_BYTES;
use serde::Serialize;

use super::detect::Cost;
use super::drive::{Arrangement, Method, Sample};
use super::{Cell, METHODS, Setting};
use farmem_kit::environment::Environment;
use farmem_kit::pairs::Spread;
use farmem_kit::report::{Bound, Report, Section, Target};
use farmem_kit::table::{Table, duration};

/// Everything, for machines.
#[derive(Serialize)]
pub struct Raw {
    cells: Vec<RawCell>,
    detection: Vec<Cost>,
}

#[derive(Serialize)]
struct RawCell {
    setting: Setting,
    methods: Vec<RawMethod>,
}

#[derive(Serialize)]
struct RawMethod {
    method: Method,
    /// Changed bytes a second.
    goodput: Option<Spread>,
    wire_bytes_per_page: Option<Spread>,
    rounds: Vec<Sample>,
}

fn goodput(setting: Setting, sample: &Sample) -> f64 {
    (sample.pages * setting.lines as usize * LINE_BYTES) as f64 / (sample.ns.max(1) as f64 / 1e9)
}

fn wire(sample: &Sample) -> f64 {
    on_the_wire(sample.sent) as f64 / sample.pages.max(1) as f64
}

/// How many times the goodput of whole pages a method has, by rounds.
pub fn gain(cell: &Cell, method: Method) -> Option<Spread> {
    cell.rounds
        .within([method, Method::Pages], |[it, pages]| Some(goodput(cell.setting, it) / goodput(cell.setting, pages)))
}

/// The report.
pub fn report(method: Vec<String>, environment: Environment, cells: &[Cell], costs: Vec<Cost>) -> Report<Raw> {
    let mut links: Vec<_> = cells.iter().map(|cell| cell.setting.link).collect();
    links.dedup();
    let mut sections: Vec<Section> = links
        .into_iter()
        .map(|link| Section {
            title: format!("{link}: changed MB/s, and wire bytes a page"),
            table: table(cells.iter().filter(|cell| cell.setting.link == link)),
        })
        .collect();
    sections.push(Section { title: "Telling which lines changed, a page".into(), table: costs_table(&costs) });
    let raw = Raw { cells: cells.iter().map(raw).collect(), detection: costs };
    let (skipped, targets) = (Vec::new(), targets(cells));
    Report { bench: "evict", method, environment, skipped, sections, targets, raw }
}

fn table<'a>(cells: impl Iterator<Item = &'a Cell>) -> Table {
    let mut table = Table::new([
        "lines",
        "",
        "pages",
        "wire",
        "a WRITE a run",
        "wire",
        "log",
        "wire",
        "log / pages",
        "(least – greatest)",
    ]);
    for cell in cells {
        let mut row = vec![
            cell.setting.lines.to_string(),
            match cell.setting.arrangement {
                Arrangement::Contiguous => "contiguous".into(),
                Arrangement::Scattered => "scattered".into(),
            },
        ];
        for method in [Method::Pages, Method::Writes, Method::Log] {
            let rate = cell.rounds.spread(method, |sample| Some(goodput(cell.setting, sample) / 1e6));
            row.push(rate.map_or("–".into(), |rate| format!("{:.1}", rate.median)));
            let wire = cell.rounds.spread(method, |sample| Some(wire(sample)));
            row.push(wire.map_or("–".into(), |wire| format!("{:.0}", wire.median)));
        }
        if let Some(gain) = gain(cell, Method::Log) {
            row.push(format!("{:.2}×", gain.median));
            row.push(format!("({:.2} – {:.2})", gain.min, gain.max));
        }
        table.row(row);
    }
    table
}

fn costs_table(costs: &[Cost]) -> Table {
    let mut table = Table::new(["", "cached", "in memory"]);
    let shown = |spread: Option<Spread>| spread.map_or("–".into(), |spread| duration(spread.median));
    for cost in costs {
        table.row([cost.what.clone(), shown(cost.cached), shown(cost.in_memory)]);
    }
    table
}

fn targets(cells: &[Cell]) -> Vec<Target> {
    let mut targets = Vec::new();
    let ten = |cell: &&Cell| cell.setting.link.0 == Some(10_000_000_000);
    let few = |cell: &&Cell| cell.setting.lines <= 4 && cell.setting.arrangement == Arrangement::Scattered;
    for cell in cells.iter().filter(ten).filter(few) {
        let lines = cell.setting.lines;
        let what =
            format!("log against pages, {lines} scattered line{} of 64, 10 Gbit/s", if lines == 1 { "" } else { "s" });
        targets.push(Target::new(what, Bound::AtLeast(5.0, 10.0), gain(cell, Method::Log)));
    }
    let worst = cells
        .iter()
        .filter_map(|cell| gain(cell, Method::Log).map(|gain| (cell.setting, gain)))
        .min_by(|(_, a), (_, b)| a.median.total_cmp(&b.median));
    if let Some((at, gain)) = worst {
        let what = format!("log against pages where it is worst: {} {:?} lines, {}", at.lines, at.arrangement, at.link);
        targets.push(Target::new(what, Bound::AtLeast(0.97, 1.0), Some(gain)));
    }
    targets
}

fn raw(cell: &Cell) -> RawCell {
    let method = |method| RawMethod {
        method,
        goodput: cell.rounds.spread(method, |sample| Some(goodput(cell.setting, sample))),
        wire_bytes_per_page: cell.rounds.spread(method, |sample| Some(wire(sample))),
        rounds: cell.rounds.of(method).copied().collect(),
    };
    RawCell { setting: cell.setting, methods: METHODS.map(method).into() }
}
