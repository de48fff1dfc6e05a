//! Tables, targets and the chart, made of what was measured.

use serde::Serialize;

use super::measure::{Phase, Threads, What};
use super::small::Which;
use super::systems::System;
use super::workload::Outcome;
use super::{Measured, Setting, Size};
use farmem_kit::chart::rows::power;
use farmem_kit::chart::{Axis, COLOURS, Rows, Style};
use farmem_kit::environment::Environment;
use farmem_kit::pairs::Spread;
use farmem_kit::report::{Bound, Report, Section, Skipped, Target};
use farmem_kit::table::{Table, duration};

/// Everything measured, for machines.
#[derive(Serialize)]
pub struct Raw {
    size: Size,
    paging: Vec<(Setting, Vec<Outcome>)>,
    small: Vec<(Which, System, Vec<f64>)>,
}

/// The report.
pub fn report(method: Vec<String>, environment: Environment, skipped: Vec<Skipped>, all: &Measured) -> Report<Raw> {
    let mut sections = vec![costs(all, true), costs(all, false), faults(all)];
    sections.push(small(all));
    sections.push(memory(all));
    Report { bench: "paging", method, environment, skipped, sections, targets: targets(all), raw: raw(all) }
}

/// What is compared, in the order of the tables.
const ROWS: [(What, Threads); 16] = [
    (What::RandomRead, Threads::Solo),
    (What::RandomRead, Threads::Spinner),
    (What::RandomRead, Threads::Both),
    (What::RandomWrite, Threads::Solo),
    (What::RandomWrite, Threads::Spinner),
    (What::RandomWrite, Threads::Both),
    (What::PagedRead, Threads::Solo),
    (What::PagedRead, Threads::Spinner),
    (What::PagedWrite, Threads::Solo),
    (What::PagedWrite, Threads::Spinner),
    (What::SequentialRead, Threads::Solo),
    (What::SequentialRead, Threads::Spinner),
    (What::SequentialRead, Threads::Both),
    (What::ReadAfterWrites, Threads::Solo),
    (What::FirstTouch, Threads::Solo),
    (What::Fill, Threads::Solo),
];

fn label(what: What, threads: Threads) -> String {
    let what = match what {
        What::RandomRead => "random read",
        What::RandomWrite => "random write",
        What::PagedRead => "random read, bare pager",
        What::PagedWrite => "random write, bare pager",
        What::SequentialRead => "sequential read",
        What::ReadAfterWrites => "sequential read after writes",
        What::FirstTouch => "first touch",
        What::Fill => "fill (touch, write, push out)",
        What::RoundTrip => "round trip",
    };
    match threads {
        Threads::Solo => what.into(),
        Threads::Spinner => format!("{what}, a thread spinning"),
        Threads::Both => format!("{what}, 2 threads"),
    }
}

impl Outcome {
    /// The phase of that name. The round trip stands for a random read of the network.
    fn phase(&self, what: What, threads: Threads) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.what == what && phase.threads == threads)
    }
    fn mean(&self, what: What, threads: Threads) -> Option<f64> {
        self.phase(what, threads).map(|phase| phase.mean_ns)
    }
}

fn costs(all: &Measured, pinned: bool) -> Section {
    let settings: Vec<Setting> = all.paging.systems().filter(|setting| setting.pinned == pinned).collect();
    let names = settings.iter().map(|setting| setting.system.name().to_owned());
    let mut table = Table::new(std::iter::once(String::new()).chain(names));
    for (what, threads) in ROWS {
        let cell = |setting: &Setting| {
            let of = |figure: fn(&Phase) -> f64| {
                let spread = |what| all.paging.spread(*setting, |run| run.phase(what, threads).map(figure));
                // The network knows no pages: its one figure stands in the row it is needed in.
                spread(what).or_else(|| (what == What::RandomRead).then(|| spread(What::RoundTrip)).flatten())
            };
            let mean = of(|phase| phase.mean_ns)?;
            let (p50, p99) = (of(|phase| phase.p50_ns as f64)?, of(|phase| phase.p99_ns as f64)?);
            Some(format!("{} ({} / {})", duration(mean.median), duration(p50.median), duration(p99.median)))
        };
        let cells: Vec<Option<String>> = settings.iter().map(cell).collect();
        if cells.iter().any(Option::is_some) {
            let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "–".into()));
            table.row(std::iter::once(label(what, threads)).chain(cells));
        }
    }
    let placed = if pinned { "pinned" } else { "unpinned" };
    Section {
        title: format!("Cost of an access, {placed}: mean (median / 99th percentile), medians over rounds"),
        table,
    }
}

/// How many accesses fetched a page, beside the times: a system that hits more is not faster.
fn faults(all: &Measured) -> Section {
    let settings: Vec<Setting> = all
        .paging
        .systems()
        .filter(|setting| setting.pinned && !matches!(setting.system, System::Native | System::Roundtrip))
        .collect();
    let names = settings.iter().map(|setting| setting.system.name().to_owned());
    let mut table = Table::new(std::iter::once(String::new()).chain(names));
    for (what, threads) in ROWS {
        let cells = settings.iter().map(|&setting| {
            let fetches = |run: &Outcome| {
                run.phase(what, threads).map(|phase| phase.faults.fetches() as f64 / phase.accesses.max(1) as f64)
            };
            all.paging.spread(setting, fetches).map_or("–".into(), |share| format!("{:.1} %", share.median * 100.0))
        });
        let cells: Vec<String> = cells.collect();
        if cells.iter().any(|cell| cell != "–") {
            table.row(std::iter::once(label(what, threads)).chain(cells));
        }
    }
    Section {
        title: "Accesses that waited for a fetch: the kernel's major faults; farmem's and the floor's own counts"
            .into(),
        table,
    }
}

fn small(all: &Measured) -> Section {
    let mut table = Table::new(["", "native", "farmem shm", "ratio"]);
    for (which, rounds) in &all.small {
        let work = |system| rounds.spread(system, |work| Some(work.work_ns as f64));
        let shown = |spread: Option<Spread>| spread.map_or("–".into(), |spread| duration(spread.median));
        let ratio = rounds.within([System::Shm, System::Native], |[far, near]| ratio(far.work_ns, near.work_ns));
        let ratio =
            ratio.map_or("–".into(), |ratio| format!("{:.3} ({:.3} – {:.3})", ratio.median, ratio.min, ratio.max));
        table.row([format!("{which:?}").to_lowercase(), shown(work(System::Native)), shown(work(System::Shm)), ratio]);
    }
    Section { title: "Programs that fit into local memory".into(), table }
}

fn ratio(a: u64, b: u64) -> Option<f64> {
    (b > 0).then(|| a as f64 / b as f64)
}

const NATIVE: Setting = Setting { system: System::Native, pinned: true };
const FLOOR: Setting = Setting { system: System::Floor, pinned: true };
const ROUNDTRIP: Setting = Setting { system: System::Roundtrip, pinned: true };
const SHM: Setting = Setting { system: System::Shm, pinned: true };
const TCP: Setting = Setting { system: System::Tcp, pinned: true };
const ZRAM: Setting = Setting { system: System::Zram, pinned: true };
const LOOP: Setting = Setting { system: System::Loop, pinned: true };

/// The runtime's memory of a run on farmem: what is resident beyond the program's own and beyond what is there natively.
fn runtime_resident(far: &Outcome, native: &Outcome) -> f64 {
    far.footprint.rest_bytes().saturating_sub(native.footprint.rest_bytes()) as f64
}

fn memory(all: &Measured) -> Section {
    let mut table = Table::new(["", "of far memory mapped", "MiB", "by its own account", "page bytes resident"]);
    for far in [SHM, TCP] {
        let Some(resident) = all.paging.within([far, NATIVE], |[far, native]| Some(runtime_resident(far, native)))
        else {
            continue;
        };
        let mib = |bytes: f64| format!("{:.1} MiB", bytes / f64::from(1 << 20));
        let level = |figure: fn(&Outcome) -> Option<f64>| {
            all.paging.spread(far, figure).map_or("–".into(), |spread| mib(spread.median))
        };
        table.row([
            far.system.name().to_owned(),
            format!("{:.2} %", 100.0 * resident.median / all.size.array as f64),
            mib(resident.median),
            level(|run| run.totals.far.map(|far| far.runtime_bytes as f64)),
            level(|run| Some(run.footprint.program as f64)),
        ]);
    }
    Section { title: "Memory of the runtime, resident (smaps: neither far nor there natively)".into(), table }
}

fn targets(all: &Measured) -> Vec<Target> {
    let against = |slow: Setting, fast: Setting, what: What, threads: Threads| {
        all.paging.within([slow, fast], |[slow, fast]| Some(slow.mean(what, threads)? / fast.mean(what, threads)?))
    };
    let (solo, spinner) = (Threads::Solo, Threads::Spinner);
    // What comes in pushes something out: the bare pager. Reads in order have that in their floor.
    let of_floor = |slow: Setting, what: What, threads: Threads| {
        let bare = match what {
            What::RandomRead => What::PagedRead,
            What::RandomWrite => What::PagedWrite,
            what => what,
        };
        all.paging.within([slow, FLOOR], |[slow, floor]| Some(slow.mean(what, threads)? / floor.mean(bare, threads)?))
    };
    let gain = |name: String, least: f64, aim: f64, slow: Setting, what: What, threads: Threads| {
        Target::new(name, Bound::AtLeast(least, aim), against(slow, SHM, what, threads))
            .with_floor(of_floor(slow, what, threads))
    };
    let mut targets = vec![
        gain("random read, shm, against zram".into(), 3.0, 4.5, ZRAM, What::RandomRead, solo),
        gain("the same, a second thread running".into(), 4.0, 6.0, ZRAM, What::RandomRead, spinner),
        gain("random write, shm, against zram".into(), 2.3, 3.5, ZRAM, What::RandomWrite, solo),
        gain("sequential read, shm, against zram".into(), 10.0, 20.0, ZRAM, What::SequentialRead, solo),
    ];
    for (what, threads) in
        [(What::RandomRead, solo), (What::RandomRead, spinner), (What::RandomWrite, solo), (What::SequentialRead, solo)]
    {
        let what_of = format!("{}, shm, against a loop device", label(what, threads));
        targets.push(gain(what_of, 8.0, 15.0, LOOP, what, threads));
    }
    targets.push(Target::new(
        "sequential read, shm, over its floor",
        Bound::AtMost(1.25, 1.1),
        against(SHM, FLOOR, What::SequentialRead, solo),
    ));
    targets.push(Target::new(
        "random read, shm, over its floor",
        Bound::AtMost(1.25, 1.1),
        against(SHM, FLOOR, What::RandomRead, solo),
    ));
    targets.push(Target::new(
        "random read, tcp, over floor and raw round trip",
        Bound::AtMost(1.3, 1.15),
        all.paging.within([TCP, FLOOR, ROUNDTRIP], |[tcp, floor, trip]| {
            let bare = floor.phase(What::RandomRead, solo)?;
            // A hit needs no round trip.
            let share = bare.faults.fetches() as f64 / bare.accesses.max(1) as f64;
            let floor = bare.mean_ns + share * trip.mean(What::RoundTrip, solo)?;
            Some(tcp.mean(What::RandomRead, solo)? / floor)
        }),
    ));
    targets.push(Target::new(
        "first touch, shm, over native",
        Bound::AtMost(1.0, 0.6),
        against(SHM, NATIVE, What::FirstTouch, solo),
    ));
    for (which, rounds) in &all.small {
        targets.push(Target::new(
            format!("a program that fits ({}), over native", format!("{which:?}").to_lowercase()),
            Bound::AtMost(1.03, 1.01),
            rounds.within([System::Shm, System::Native], |[far, near]| ratio(far.work_ns, near.work_ns)),
        ));
    }
    let array = all.size.array as f64;
    targets.push(Target::new(
        "runtime memory, of far memory mapped",
        Bound::AtMost(0.02 + f64::from(8 << 20) / array, 0.01),
        all.paging.within([SHM, NATIVE], |[far, native]| Some(runtime_resident(far, native) / array)),
    ));
    targets
}

/// Costs, pinned.
pub fn chart(all: &Measured) -> Rows {
    let settings: Vec<Setting> = all.paging.systems().filter(|setting| setting.pinned).collect();
    let group = |&(what, threads): &(What, Threads)| {
        let bars = settings.iter().map(|&setting| {
            let spread = |what| all.paging.spread(setting, |run| run.mean(what, threads));
            spread(what).or_else(|| (what == What::RandomRead).then(|| spread(What::RoundTrip)).flatten())
        });
        (label(what, threads), bars.collect::<Vec<_>>())
    };
    let groups: Vec<_> = ROWS.iter().map(group).filter(|(_, bars)| bars.iter().any(Option::is_some)).collect();
    let names = settings.iter().map(|setting| setting.system.name().to_owned());
    Rows {
        title: format!("Cost of an access, mean: {} MiB, {} MiB local", all.size.array >> 20, all.size.local >> 20),
        series: names.zip(COLOURS.into_iter().cycle()).collect(),
        axis: Axis::decades(Rows::all(&groups), power),
        groups,
        style: Style::Bar,
        show: duration,
    }
}

fn raw(all: &Measured) -> Raw {
    let small = all.small.iter().flat_map(|(which, rounds)| {
        rounds.systems().map(|system| {
            let works = rounds.of(system).map(|work| work.work_ns as f64).collect();
            (*which, system, works)
        })
    });
    Raw {
        size: all.size,
        paging: all.paging.systems().map(|setting| (setting, all.paging.of(setting).cloned().collect())).collect(),
        small: small.collect(),
    }
}
