//! What a benchmark says: for people as text, for machines as JSON.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;

use crate::environment::Environment;
use crate::pairs::Spread;
use crate::table::Table;

/// Fails if a file that is asked for cannot be written: told now, not after hours.
pub fn can_be_written<'a>(files: impl IntoIterator<Item = &'a Option<PathBuf>>) -> anyhow::Result<()> {
    for path in files.into_iter().flatten() {
        let is_new = !path.exists();
        let opened = File::options().append(true).create(true).open(path);
        opened.with_context(|| format!("writing {}", path.display()))?;
        if is_new {
            let _ = std::fs::remove_file(path);
        }
    }
    Ok(())
}

/// A file that is asked for, perhaps, and what is to stand there.
pub type Asked<'a> = (&'a Option<PathBuf>, &'a dyn Fn() -> anyhow::Result<String>);

/// Writes files and prints a report, in this order: who reads the report may want little of it, and goes away. What
/// could not be written is told when the report is out.
///
/// # Errors
/// The file system's.
pub fn tell(report: &dyn fmt::Display, files: &[Asked<'_>]) -> anyhow::Result<()> {
    let write = |(path, text): &Asked<'_>| match path {
        Some(path) => std::fs::write(path, text()?).with_context(|| format!("writing {}", path.display())),
        None => Ok(()),
    };
    let written: Vec<anyhow::Result<()>> = files.iter().map(write).collect();
    print!("{report}");
    written.into_iter().collect()
}

/// Which way a figure is better, and from where on it will do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// A factor gained: at least the first, hopefully the second.
    AtLeast(f64, f64),
    /// A price paid: at most the first, hopefully the second.
    AtMost(f64, f64),
    /// A factor that is not to be below the first, as far as it can be told, and hopefully is the second.
    NotBelow(f64, f64),
}

/// Two things are level if the lesser is known to be less by no more than this.
const LEVEL: f64 = 0.02;

/// How a figure stands to its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Not met, and the bare mechanism would not meet it either.
    OutOfReach,
    /// Not met.
    Missed,
    /// The rounds are too few, or differ too much, to tell.
    Untold,
    /// Not known to be below, and known not to be by much: met.
    Level,
    /// Met.
    Met,
    /// Met, and what was hoped for too.
    Aim,
}

impl Bound {
    /// Judges a figure: its median, but where a difference is to be told.
    pub fn judge(self, of: &Spread) -> Standing {
        let figure = of.median;
        match self {
            Bound::NotBelow(than, aim) => match of.likely {
                _ if figure >= aim => Standing::Aim,
                Some((least, _)) if least >= than => Standing::Met,
                Some((_, most)) if most < than => Standing::Missed,
                Some((least, _)) if least >= than * (1.0 - LEVEL) => Standing::Level,
                _ => Standing::Untold,
            },
            Bound::AtLeast(_, aim) if figure >= aim => Standing::Aim,
            Bound::AtLeast(least, _) if figure >= least => Standing::Met,
            Bound::AtMost(_, aim) if figure <= aim => Standing::Aim,
            Bound::AtMost(most, _) if figure <= most => Standing::Met,
            _ => Standing::Missed,
        }
    }
}

/// A target and what was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// What is compared with what.
    pub what: String,
    /// From where on it will do.
    pub bound: Bound,
    /// The median of the rounds' ratios, with the extremes; `None` when a side did not run.
    pub ratio: Option<Spread>,
    /// The same ratio with the bare mechanism in farmem's place: the most (or least) that there is to be had.
    pub floor: Option<Spread>,
    /// The judgement of the median.
    pub standing: Option<Standing>,
}

impl Target {
    /// Judges a ratio.
    pub fn new(what: impl Into<String>, bound: Bound, ratio: Option<Spread>) -> Target {
        let standing = ratio.map(|ratio| bound.judge(&ratio));
        Target { what: what.into(), bound, ratio, floor: None, standing }
    }

    /// Says what the bare mechanism would reach.
    pub fn with_floor(self, floor: Option<Spread>) -> Target {
        let beyond = floor.is_some_and(|floor| self.bound.judge(&floor) == Standing::Missed);
        let standing = self.standing.map(|standing| match standing {
            Standing::Missed if beyond => Standing::OutOfReach,
            other => other,
        });
        Target { floor, standing, ..self }
    }
}

/// A system that did not run, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Its name.
    pub system: String,
    /// The reason.
    pub reason: String,
}

/// A table with its heading.
#[derive(Clone, Debug)]
pub struct Section {
    /// Above it.
    pub title: String,
    /// The figures.
    pub table: Table,
}

/// A benchmark's report. `R` is its raw figures.
pub struct Report<R> {
    /// The subcommand's name.
    pub bench: &'static str,
    /// How it was run, in a few lines.
    pub method: Vec<String>,
    /// On what.
    pub environment: Environment,
    /// What did not run.
    pub skipped: Vec<Skipped>,
    /// The figures, for people.
    pub sections: Vec<Section>,
    /// What was to be reached.
    pub targets: Vec<Target>,
    /// Everything measured, for machines.
    pub raw: R,
}

impl<R: Serialize> Report<R> {
    /// The report for machines.
    ///
    /// # Errors
    /// Raw figures that JSON has no form for.
    pub fn json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Json<'a, R> {
            bench: &'a str,
            method: &'a [String],
            environment: &'a Environment,
            skipped: &'a [Skipped],
            targets: &'a [Target],
            raw: &'a R,
        }
        serde_json::to_string_pretty(&Json {
            bench: self.bench,
            method: &self.method,
            environment: &self.environment,
            skipped: &self.skipped,
            targets: &self.targets,
            raw: &self.raw,
        })
    }
}

impl<R> fmt::Display for Report<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.environment)?;
        self.method.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        for section in self.sections.iter().filter(|section| !section.table.is_empty()) {
            write!(f, "\n{}\n\n{}", section.title, section.table)?;
        }
        if !self.targets.is_empty() {
            write!(
                f,
                "\nTargets: median of the rounds' ratios (least – greatest); floor: with the bare mechanism in farmem's place\n\n{}",
                targets(&self.targets)
            )?;
        }
        for skipped in &self.skipped {
            write!(f, "\nskipped: {}: {}", skipped.system, skipped.reason)?;
        }
        if self.skipped.is_empty() { Ok(()) } else { writeln!(f) }
    }
}

fn verdict(standing: Standing, likely: Option<(f64, f64)>) -> String {
    match (standing, likely) {
        (Standing::Aim, _) => "aim reached".into(),
        (Standing::Met, _) => "met".into(),
        (Standing::Missed, _) => "MISSED".into(),
        (Standing::OutOfReach, _) => "MISSED: the floor misses it too".into(),
        (Standing::Level, Some((least, most))) => format!("met: level, {least:.3} to {most:.3} with 95 %"),
        (_, Some((least, most))) => format!("not told: {least:.3} to {most:.3} with 95 %; more --rounds"),
        (_, None) => "not told: more --rounds".into(),
    }
}

fn targets(targets: &[Target]) -> Table {
    let mut table = Table::new(["", "measured", "", "floor", "needed", "aim", ""]);
    for target in targets {
        let figure = |figure: f64| if figure < 10.0 { format!("{figure:.2}×") } else { format!("{figure:.1}×") };
        let (sign, needed, aim) = match target.bound {
            Bound::AtLeast(needed, aim) | Bound::NotBelow(needed, aim) => ('≥', needed, aim),
            Bound::AtMost(needed, aim) => ('≤', needed, aim),
        };
        let (median, spread, standing) = match (target.ratio, target.standing) {
            (Some(ratio), Some(standing)) => (
                figure(ratio.median),
                format!("({} – {})", figure(ratio.min), figure(ratio.max)),
                verdict(standing, ratio.likely),
            ),
            _ => ("–".into(), String::new(), "not measured".into()),
        };
        let needed = format!("{sign} {}", figure(needed));
        let floor = target.floor.map_or(String::new(), |floor| figure(floor.median));
        table.row([target.what.clone(), median, spread, floor, needed, figure(aim), standing]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_on_the_bound_will_do() {
        let judge = |bound: Bound| move |ratio: f64| bound.judge(&Spread::of([ratio]).unwrap());
        let all = [Standing::Missed, Standing::Met, Standing::Aim];
        assert_eq!([2.99, 3.0, 4.5].map(judge(Bound::AtLeast(3.0, 4.5))), all);
        assert_eq!([1.3, 1.25, 1.0].map(judge(Bound::AtMost(1.25, 1.1))), all);
    }

    #[test]
    fn below_is_what_the_rounds_tell_to_be_below() {
        let of = |middle: f64, step: f64, rounds: i32| {
            let figures = (0..rounds).map(|n| middle + step * f64::from(2 * n - rounds + 1) / 2.0);
            let spread = Spread::of(figures).unwrap();
            let standing = Bound::NotBelow(1.0, 1.2).judge(&spread);
            (standing, verdict(standing, spread.likely))
        };
        assert_eq!(of(0.98, 0.002, 14).0, Standing::Missed);
        assert_eq!(of(0.998, 0.002, 14), (Standing::Level, "met: level, 0.989 to 1.007 with 95 %".into()));
        assert_eq!(of(0.998, 0.02, 14).0, Standing::Untold, "all that is told is that it is between 0.9 and 1.1");
        assert_eq!(of(1.0, 0.0, 5).0, Standing::Untold, "by too few rounds nothing is told");
        assert_eq!(of(1.04, 0.01, 14).0, Standing::Level, "better, it seems");
        assert_eq!(of(1.02, 0.001, 14).0, Standing::Met);
        assert_eq!(of(1.3, 0.001, 14).0, Standing::Aim);
    }

    #[test]
    fn a_bound_beyond_the_floor_is_called_so() {
        let spread = |figure| Spread::of([figure]);
        let standing = |ratio, floor| {
            Target::new("a over b", Bound::AtLeast(8.0, 15.0), spread(ratio)).with_floor(spread(floor)).standing
        };
        assert_eq!(standing(5.0, 7.9), Some(Standing::OutOfReach));
        assert_eq!(standing(5.0, 8.0), Some(Standing::Missed));
        assert_eq!(standing(9.0, 7.9), Some(Standing::Met), "a hit costs less than the floor's fault");
    }

    #[test]
    fn what_did_not_run_is_named() {
        let report = Report {
            bench: "x",
            method: vec![],
            environment: Environment::read(),
            skipped: vec![Skipped { system: "zram".into(), reason: "needs root".into() }],
            sections: vec![],
            targets: vec![Target::new("a over b", Bound::AtMost(1.0, 0.6), None)],
            raw: (),
        };
        let text = report.to_string();
        assert!(text.contains("skipped: zram: needs root") && text.contains("not measured"), "{text}");
        assert!(report.json().unwrap().contains("\"standing\": null"));
    }
}
