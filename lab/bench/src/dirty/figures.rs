//! Tables of what was measured, and what they come to.

use farmem_fabric::shape::on_the_wire;
use farmem_protocol::lines::LINE_BYTES;
use serde::Serialize;

use super::{By, POLICIES, RATE, Ready, Setting, Way};
use crate::apps::programs::Program;
use crate::apps::runs::Run;
use farmem_kit::environment::Environment;
use farmem_kit::pairs::{Rounds, Spread};
use farmem_kit::report::{Report, Section, Skipped};
use farmem_kit::table::Table;

/// Everything measured, for machines.
#[derive(Serialize)]
pub struct Raw {
    /// By link and policy, by time.
    pub policies: Vec<Policy>,
    /// The same by time on a CPU.
    pub by_cpu: Vec<Policy>,
    programs: Vec<RawProgram>,
}

/// What a policy comes to over all programs.
#[derive(Clone, Debug, Serialize)]
pub struct Policy {
    /// Which.
    #[serde(flatten)]
    pub way: Way,
    /// The geometric mean of the programs' medians over `none`.
    pub mean: f64,
    /// The greatest of them, and whose it is.
    pub worst: (f64, Program),
    /// Programs that it is of.
    pub programs: usize,
}

#[derive(Serialize)]
struct RawProgram {
    program: Program,
    far: u64,
    native_seconds: f64,
    ways: Vec<RawWay>,
}

#[derive(Serialize)]
struct RawWay {
    #[serde(flatten)]
    way: Way,
    of_none: Option<Spread>,
    cpu_of_none: Option<Spread>,
    runs: Vec<Run>,
}

/// A figure of a run.
pub type Of = fn(&Run) -> Option<f64>;

/// A program's figure under a policy over that under `none`.
pub fn of_none(measured: &Rounds<Setting, Run>, program: Program, way: Way, of: Of) -> Option<Spread> {
    let none = Way { by: way.by, dirty: "none" };
    measured.within([way, none].map(|way| Setting { program, way }), |[run, none]| Some(of(run)? / of(none)?))
}

fn count(run: &Run, name: &str) -> Option<f64> {
    match run {
        Run::Ended { stats, .. } => stats[name].as_f64(),
        Run::GivenUp { .. } | Run::Killed => None,
    }
}

/// Bytes of write-back; over tcp with what they take on the wire.
fn sent(run: &Run, by: By) -> Option<f64> {
    match by {
        By::Shm => count(run, "bytes_out"),
        By::Tcp => Some(on_the_wire(count(run, "wire_out")? as u64) as f64),
    }
}

/// Bytes sent for each byte of changed lines, where the policy knows of lines.
fn sent_of_changed(run: &Run) -> Option<f64> {
    let changed = count(run, "lines_changed")? * LINE_BYTES as f64;
    (changed > 0.0).then_some(sent(run, By::Tcp)? / changed)
}

/// What each policy comes to.
pub fn policies(ready: &[Ready], ways: &[Way], measured: &Rounds<Setting, Run>, figure: Of) -> Vec<Policy> {
    let of = |&way: &Way| {
        let ratios: Vec<(f64, Program)> = ready
            .iter()
            .filter_map(|one| Some((of_none(measured, one.program(), way, figure)?.median, one.program())))
            .collect();
        let worst = ratios.iter().copied().max_by(|one, other| one.0.total_cmp(&other.0))?;
        let mean = (ratios.iter().map(|(ratio, _)| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        Some(Policy { way, mean, worst, programs: ratios.len() })
    };
    ways.iter().filter(|way| way.dirty != "none").filter_map(of).collect()
}

/// The report.
pub fn report(
    method: Vec<String>,
    environment: Environment,
    skipped: Vec<Skipped>,
    ready: &[Ready],
    ways: &[Way],
    measured: &Rounds<Setting, Run>,
) -> Report<Raw> {
    let by_time = policies(ready, ways, measured, Run::wall_ns);
    let by_cpu = policies(ready, ways, measured, Run::cpu_ns);
    let mut sections = Vec::new();
    for by in [By::Shm, By::Tcp] {
        let ways: Vec<Way> = ways.iter().copied().filter(|way| way.by == by).collect();
        if !ways.is_empty() {
            sections.push(times(by, ready, &ways, measured, ("Time", Run::wall_ns), &by_time));
            sections.push(times(by, ready, &ways, measured, ("Time on a CPU", Run::cpu_ns), &by_cpu));
            sections.push(bytes(by, ready, &ways, measured));
        }
    }
    let raw = |one: &Ready| RawProgram {
        program: one.program(),
        far: one.far,
        native_seconds: one.native / 1e9,
        ways: ways
            .iter()
            .map(|&way| RawWay {
                way,
                of_none: of_none(measured, one.program(), way, Run::wall_ns),
                cpu_of_none: of_none(measured, one.program(), way, Run::cpu_ns),
                runs: measured.of(Setting { program: one.program(), way }).cloned().collect(),
            })
            .collect(),
    };
    let raw = Raw { programs: ready.iter().map(raw).collect(), policies: by_time, by_cpu };
    Report { bench: "dirty", method, environment, skipped, sections, targets: Vec::new(), raw }
}

fn over(by: By) -> String {
    match by {
        By::Shm => "over shared memory".into(),
        By::Tcp => format!("over tcp at {RATE}bit/s"),
    }
}

/// The policies among these ways, in the order of the columns, but `none`.
fn columns(ways: &[Way]) -> Vec<Way> {
    let of = |dirty: &&str| ways.iter().copied().find(|way| way.dirty == *dirty);
    POLICIES[1..].iter().filter_map(of).collect()
}

fn times(
    by: By,
    ready: &[Ready],
    ways: &[Way],
    measured: &Rounds<Setting, Run>,
    (what, figure): (&str, Of),
    policies: &[Policy],
) -> Section {
    let columns = columns(ways);
    let head = ["program", "far MiB", "native", "none"].map(str::to_owned);
    let mut table = Table::new(head.into_iter().chain(columns.iter().map(|way| way.dirty.to_owned())));
    for one in ready {
        let none = Setting { program: one.program(), way: Way { by, dirty: "none" } };
        let none = measured.spread(none, figure).map_or("–".into(), |of| format!("{:.2} s", of.median / 1e9));
        let ratio = |&way: &Way| match of_none(measured, one.program(), way, figure) {
            Some(of) if of.rounds > 1 => format!("{:.2} ({:.2} – {:.2})", of.median, of.min, of.max),
            Some(of) => format!("{:.2}", of.median),
            None => "–".into(),
        };
        let of_program =
            [one.program().name().to_owned(), (one.far >> 20).to_string(), format!("{:.2} s", one.native / 1e9), none];
        table.row(of_program.into_iter().chain(columns.iter().map(ratio)));
    }
    let mut sum = |name: &str, show: fn(&Policy) -> String| {
        let cells = columns.iter().map(|way| policies.iter().find(|of| of.way == *way).map_or("–".into(), show));
        table.row([name.to_owned()].into_iter().chain([const { String::new() }; 3]).chain(cells));
    };
    sum("geometric mean", |of| format!("{:.3}", of.mean));
    sum("worst", |of| format!("{:.2} {}", of.worst.0, of.worst.1.file_stem()));
    Section { title: format!("{what}, of that of none, {}", over(by)), table }
}

fn bytes(by: By, ready: &[Ready], ways: &[Way], measured: &Rounds<Setting, Run>) -> Section {
    let columns = columns(ways);
    let named = |what: &str| columns.iter().map(move |way| format!("{what}{}", way.dirty)).collect::<Vec<_>>();
    let mut head = vec!["program".to_owned(), "sent, MiB: none".into()];
    head.extend(named(""));
    head.extend(named("upgrades: "));
    if by == By::Tcp {
        head.push("sent/changed: lines".into());
    }
    let mut table = Table::new(head);
    for one in ready {
        let median = |way: Way, of: &dyn Fn(&Run) -> Option<f64>| {
            measured.spread(Setting { program: one.program(), way }, of).map(|of| of.median)
        };
        let mib = |way: Way| {
            let sent = median(way, &|run| sent(run, by));
            sent.map_or("–".into(), |bytes| format!("{:.1}", bytes / f64::from(1 << 20)))
        };
        let upgrades =
            |&way: &Way| median(way, &|run| count(run, "upgrades")).map_or("–".into(), |count| format!("{count:.0}"));
        let mut row = vec![one.program().name().to_owned(), mib(Way { by, dirty: "none" })];
        row.extend(columns.iter().map(|&way| mib(way)));
        row.extend(columns.iter().map(upgrades));
        if by == By::Tcp {
            let of = median(Way { by, dirty: "lines" }, &sent_of_changed);
            row.push(of.map_or("–".into(), |of| format!("{of:.2}")));
        }
        table.row(row);
    }
    Section { title: format!("Written back, and first-write faults, {} (medians)", over(by)), table }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two programs, the first of which is slower by half under `exact`.
    pub fn measured() -> (Vec<Way>, Rounds<Setting, Run>) {
        let ways: Vec<Way> = ["none", "lines", "exact"].map(|dirty| Way { by: By::Tcp, dirty }).into();
        let programs = [Program::Redis, Program::Sort];
        let settings: Vec<Setting> =
            programs.into_iter().flat_map(|program| ways.iter().map(move |&way| Setting { program, way })).collect();
        let rounds = Rounds::interleave(&settings, 3, |setting, round| {
            let wall = match (setting.program, setting.way.dirty) {
                (Program::Redis, "exact") => 150_000u64,
                (Program::Redis, "lines") => 50_000,
                _ => 100_000,
            };
            let stats = serde_json::json!({ "wire_out": 144_800, "lines_changed": 1000, "upgrades": 7 });
            Ok::<_, ()>(Some(Run::Ended { wall_ns: wall << round, cpu_ns: wall / 2, stats }))
        });
        (ways, rounds.unwrap())
    }

    #[test]
    fn a_policy_is_judged_by_its_mean_and_its_worst() {
        let (ways, measured) = measured();
        let ready = Ready::named(&[Program::Redis, Program::Sort]);
        let of = policies(&ready, &ways, &measured, Run::wall_ns);
        let by_cpu = policies(&ready, &ways, &measured, Run::cpu_ns);
        assert!((by_cpu[1].mean - of[1].mean).abs() < 1e-9, "half of it, under none too");
        assert_eq!(of.iter().map(|of| of.way.dirty).collect::<Vec<_>>(), ["lines", "exact"]);
        assert!((of[0].mean - 0.5f64.sqrt()).abs() < 1e-9 && of[0].worst == (1.0, Program::Sort), "{of:?}");
        assert!((of[1].mean - 1.5f64.sqrt()).abs() < 1e-9 && of[1].worst == (1.5, Program::Redis), "{of:?}");
        let table = times(By::Tcp, &ready, &ways, &measured, ("Time", Run::wall_ns), &of).table.to_string();
        assert!(table.contains("1.50 (1.50 – 1.50)") && table.contains("1.50 redis"), "{table}");
        let table = bytes(By::Tcp, &ready, &ways, &measured).table.to_string();
        // 100 segments of 1448 bytes, with 90 more each, for 1000 lines.
        assert!(table.contains(&format!("{:.2}", 153_800.0 / 64_000.0)), "{table}");
    }
}
