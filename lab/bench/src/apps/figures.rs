//! Tables and plots of what was measured.

use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use super::plot;
use super::programs::Program;
use super::runs::Run;
use super::slowdown::Figure;
use super::{Measured, Setting, Size, System};
use farmem_kit::chart::Panel;
use farmem_kit::environment::Environment;
use farmem_kit::pairs::Spread;
use farmem_kit::report::{Report, Section, Skipped};
use farmem_kit::table::Table;

/// Everything measured, for machines.
#[derive(Serialize)]
pub struct Raw {
    programs: Vec<RawProgram>,
}

#[derive(Serialize)]
struct RawProgram {
    program: Program,
    size: Size,
    settings: Vec<RawSetting>,
}

#[derive(Serialize)]
struct RawSetting {
    #[serde(flatten)]
    setting: Setting,
    /// Time over native time of the same round.
    slowdown: Option<Spread>,
    runs: Vec<Run>,
}

impl Measured {
    const NATIVE: Setting = Setting { system: System::Native, share: 100 };

    /// Time over native time.
    pub fn slowdown(&self, setting: Setting) -> Option<Figure> {
        let ratio = |[run, native]: [&Run; 2]| Some(run.wall_ns()? / native.wall_ns()?);
        let within = self.rounds.within([setting, Measured::NATIVE], ratio);
        within.map(Figure::Of).or_else(|| self.instead(setting, Measured::NATIVE))
    }

    /// The time of one setting over another's.
    pub fn against(&self, slow: Setting, fast: Setting) -> Option<Figure> {
        let ratio = |[slow, fast]: [&Run; 2]| Some(slow.wall_ns()? / fast.wall_ns()?);
        self.rounds.within([slow, fast], ratio).map(Figure::Of).or_else(|| self.instead(slow, fast))
    }

    fn instead(&self, slow: Setting, fast: Setting) -> Option<Figure> {
        let fast = self.rounds.spread(fast, Run::wall_ns)?.median;
        self.rounds.of(slow).find_map(|run| match run {
            Run::GivenUp { after_ns } => Some(Figure::Above(*after_ns as f64 / fast)),
            Run::Killed => Some(Figure::Killed),
            Run::Ended { .. } => None,
        })
    }

    fn systems(&self) -> Vec<System> {
        let mut systems: Vec<System> = Vec::new();
        for setting in self.rounds.systems().filter(|setting| setting.system != System::Native) {
            if !systems.contains(&setting.system) {
                systems.push(setting.system);
            }
        }
        systems
    }

    fn shares(&self) -> Vec<u32> {
        let mut shares: Vec<u32> =
            self.rounds.systems().filter(|setting| setting.system != System::Native).map(|s| s.share).collect();
        shares.sort_unstable_by(|one, other| other.cmp(one));
        shares.dedup();
        shares
    }

    fn panel(&self) -> Panel {
        let systems = self.systems().into_iter().map(|system| {
            let figures = self.shares().into_iter().filter_map(|share| {
                let figure = self.slowdown(Setting { system, share })?;
                Some((f64::from(share) / 100.0, figure))
            });
            (system, figures.collect())
        });
        let native = self.rounds.spread(Measured::NATIVE, Run::wall_ns).map_or(0.0, |spread| spread.median / 1e9);
        let subtitle = format!("{} MiB of far memory, {native:.1} s natively", self.size.far >> 20);
        plot::panel(self.program.name().to_owned(), subtitle, systems.collect())
    }
}

/// The report.
pub fn report(method: Vec<String>, environment: Environment, skipped: Vec<Skipped>, all: &[Measured]) -> Report<Raw> {
    let mut sections = vec![slowdowns(all), gains(all), causes(all)];
    if all.iter().any(|one| one.systems().contains(&System::Mirror)) {
        sections.push(copies(all));
    }

    let raw = Raw { programs: all.iter().map(raw).collect() };
    Report { bench: "apps", method, environment, skipped, sections, targets: Vec::new(), raw }
}

/// All shares that any program ran with, greatest first.
fn shares(all: &[Measured]) -> Vec<u32> {
    let mut shares: Vec<u32> = all.iter().flat_map(Measured::shares).collect();
    shares.sort_unstable_by(|one, other| other.cmp(one));
    shares.dedup();
    shares
}

fn head(first: &[&str], shares: &[u32]) -> Table {
    let columns = shares.iter().map(|share| format!("{share} %"));
    Table::new(first.iter().map(|&name| name.to_owned()).chain(columns))
}

fn slowdowns(all: &[Measured]) -> Section {
    let shares = shares(all);
    let mut table = head(&["program", "far memory", "native", "under"], &shares);
    for one in all {
        let native = one.rounds.spread(Measured::NATIVE, Run::wall_ns);
        for (at, system) in one.systems().into_iter().enumerate() {
            let of_program = [
                one.program.name().to_owned(),
                format!("{} MiB", one.size.far >> 20),
                native.map_or("–".into(), |native| format!("{:.2} s", native.median / 1e9)),
            ];
            let of_program = if at == 0 { of_program } else { [const { String::new() }; 3] };
            let figures = shares.iter().map(|&share| show(one.slowdown(Setting { system, share })));
            table.row(of_program.into_iter().chain([system.name().to_owned()]).chain(figures));
        }
    }
    Section {
        title: "Time over native time, by local share of the program's far memory (medians of rounds)".into(),
        table,
    }
}

fn gains(all: &[Measured]) -> Section {
    let shares = shares(all);
    let mut table = head(&["program", "under"], &shares);
    for one in all {
        let farmem = one.systems().into_iter().filter(|&system| system != System::Zram);
        for system in farmem.filter(|_| one.systems().contains(&System::Zram)) {
            let figures = shares
                .iter()
                .map(|&share| show(one.against(Setting { system: System::Zram, share }, Setting { system, share })));
            table.row([one.program.name().to_owned(), system.name().to_owned()].into_iter().chain(figures));
        }
    }
    Section { title: "Time under swap to zram over time under farmem, at the same limit".into(), table }
}

/// What a second copy costs: two nodes against one, over TCP.
fn copies(all: &[Measured]) -> Section {
    let mut table = Table::new(["program", "local", "time", "processor time", "bytes sent"]);
    for one in all {
        for share in one.shares() {
            let both = [System::Mirror, System::Tcp].map(|system| Setting { system, share });
            let of = |figure: fn(&Run) -> Option<f64>| {
                one.rounds.within(both, |[two, one]: [&Run; 2]| Some(figure(two)? / figure(one)?)).map(Figure::Of)
            };
            table.row([
                one.program.name().to_owned(),
                format!("{share} %"),
                show(of(Run::wall_ns)),
                show(of(Run::cpu_ns)),
                show(of(Run::sent)),
            ]);
        }
    }
    Section { title: "Two copies of each page against one, over TCP (medians of the rounds' ratios)".into(), table }
}

/// What stands behind farmem's figures, at the least share.
fn causes(all: &[Measured]) -> Section {
    let mut table = Table::new(["program", "under", "local", "faults", "fetched", "ahead", "written back", "waiting"]);
    for one in all {
        for system in one.systems().into_iter().filter(|&system| system != System::Zram) {
            for share in one.shares() {
                let ended = one.rounds.of(Setting { system, share }).find_map(|run| match run {
                    Run::Ended { stats, .. } => Some(stats),
                    Run::GivenUp { .. } | Run::Killed => None,
                });
                let Some(stats) = ended else { continue };
                let count = |name: &str| stats[name].as_u64().unwrap_or(0);
                table.row([
                    one.program.name().to_owned(),
                    system.name().to_owned(),
                    format!("{share} %"),
                    thousands(count("faults")),
                    thousands(count("demand")),
                    thousands(count("prefetch_used")),
                    thousands(count("evicted").saturating_sub(count("evicted_clean"))),
                    format!("{:.2} s", count("wait_ns") as f64 / 1e9),
                ]);
            }
        }
    }
    Section {
        title:
            "Pages, thousands, of the first round (fetched: while the program waited; ahead: fetched before, and used)"
                .into(),
        table,
    }
}

fn thousands(count: u64) -> String {
    format!("{:.1}", count as f64 / 1e3)
}

fn show(figure: Option<Figure>) -> String {
    figure.map_or("–".into(), Figure::show)
}

fn raw(one: &Measured) -> RawProgram {
    let settings = one.rounds.systems().map(|setting| RawSetting {
        setting,
        slowdown: match one.slowdown(setting) {
            Some(Figure::Of(spread)) => Some(spread),
            _ => None,
        },
        runs: one.rounds.of(setting).cloned().collect(),
    });
    RawProgram { program: one.program, size: one.size, settings: settings.collect() }
}

/// Writes one plot for each program, and all on one sheet.
///
/// # Errors
/// The file system's.
pub fn draw(all: &[Measured], dir: &Path) -> anyhow::Result<()> {
    let write = |name: String, svg: String| {
        let path = dir.join(name);
        std::fs::write(&path, svg).with_context(|| format!("writing {}", path.display()))
    };
    let panels: Vec<Panel> = all.iter().map(Measured::panel).collect();
    for (one, panel) in all.iter().zip(&panels) {
        write(format!("apps-{}.svg", one.program.file_stem()), plot::draw(std::slice::from_ref(panel)))?;
    }
    write("apps.svg".into(), plot::draw(&panels))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_kit::pairs::Rounds;

    fn measured() -> Measured {
        let run = |wall_ns| Run::Ended { wall_ns, cpu_ns: 0, stats: serde_json::Value::Null };
        let (shm, zram) = (System::Shm, System::Zram);
        let mut settings = vec![Measured::NATIVE];
        for share in [100, 10] {
            settings.extend([shm, zram].map(|system| Setting { system, share }));
        }
        let rounds = Rounds::interleave(&settings, 2, |setting, round| {
            Ok::<_, ()>(match (setting.system, setting.share) {
                (System::Native, _) => Some(run(1_000_000_000)),
                (System::Zram, 10) if round > 0 => None,
                (System::Zram, 10) => Some(Run::GivenUp { after_ns: 20_000_000_000 }),
                (System::Zram, _) => Some(Run::Killed),
                (_, share) => Some(run(200_000_000_000 / u64::from(share))),
            })
        });
        let size = Size { far: 100 << 20, native: 110 << 20, beside: 10 << 20 };
        Measured { program: Program::Sort, size, rounds: rounds.unwrap() }
    }

    #[test]
    fn what_was_given_up_is_said_to_be_above() {
        let one = measured();
        assert_eq!(show(one.slowdown(Setting { system: System::Shm, share: 10 })), "20.0×");
        assert_eq!(show(one.slowdown(Setting { system: System::Zram, share: 10 })), "> 20.0×");
        assert_eq!(show(one.slowdown(Setting { system: System::Zram, share: 100 })), "killed");
        assert_eq!(show(one.slowdown(Setting { system: System::Tcp, share: 10 })), "–");
        let fast = Setting { system: System::Shm, share: 10 };
        assert_eq!(show(one.against(Setting { system: System::Zram, share: 10 }, fast)), "> 1.00×");
        let table = slowdowns(&[one]).table.to_string();
        assert!(table.contains("100 MiB") && table.lines().count() == 4, "{table}");
    }

    #[test]
    fn every_curve_is_drawn() {
        let svg = plot::draw(&[measured().panel()]);
        assert_eq!(svg.matches("<polyline").count(), 2, "{svg}");
        assert!(svg.contains("GNU sort") && svg.contains("&gt; 20.0×"), "{svg}");
    }
}
