//! A benchmark's output: text for people, JSON for machines.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;

use crate::environment::Environment;
use crate::pairs::Spread;
use crate::table::Table;

/// Fails if an output file cannot be written. A benchmark calls it at its start, before hours of
/// work.
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

/// The path of an output file, if one is asked for, and the function that makes its text.
pub type Asked<'a> = (&'a Option<PathBuf>, &'a dyn Fn() -> anyhow::Result<String>);

/// Writes files, then prints a report. The files come first, because the report's reader may close
/// the pipe early (`| head`), which ends this program. An error of a file is returned after the
/// report.
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

/// The bound that a figure must meet, and the aim beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// The figure must be at least the first number. The aim is the second.
    AtLeast(f64, f64),
    /// The figure must be at most the first number. The aim is the second.
    AtMost(f64, f64),
}

/// The result of comparing a figure with its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// The bound is not met, and the bare mechanism would not meet it either.
    OutOfReach,
    /// The bound is not met.
    Missed,
    /// The bound is met.
    Met,
    /// The aim is reached.
    Aim,
}

impl Bound {
    /// Judges a figure.
    pub fn judge(self, figure: f64) -> Standing {
        match self {
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
    /// The two things compared.
    pub what: String,
    /// The bound that the ratio must meet.
    pub bound: Bound,
    /// The median of the rounds' ratios, with the extremes; `None` when a side did not run.
    pub ratio: Option<Spread>,
    /// The same ratio with the bare mechanism in farmem's place: about the best that farmem can
    /// reach.
    pub floor: Option<Spread>,
    /// The judgement of the median.
    pub standing: Option<Standing>,
}

impl Target {
    /// Judges a ratio.
    pub fn new(what: impl Into<String>, bound: Bound, ratio: Option<Spread>) -> Target {
        let standing = ratio.map(|ratio| bound.judge(ratio.median));
        Target { what: what.into(), bound, ratio, floor: None, standing }
    }

    /// Adds the ratio that the bare mechanism reaches.
    pub fn with_floor(self, floor: Option<Spread>) -> Target {
        let beyond = floor.is_some_and(|floor| self.bound.judge(floor.median) == Standing::Missed);
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
    /// The text above the table.
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
    /// The machine.
    pub environment: Environment,
    /// The parts that did not run.
    pub skipped: Vec<Skipped>,
    /// The figures, for people.
    pub sections: Vec<Section>,
    /// The targets.
    pub targets: Vec<Target>,
    /// Everything measured, for machines.
    pub raw: R,
}

impl<R: Serialize> Report<R> {
    /// The report for machines.
    ///
    /// # Errors
    /// JSON has no form for the raw figures.
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

fn targets(targets: &[Target]) -> Table {
    let mut table = Table::new(["", "measured", "", "floor", "needed", "aim", ""]);
    for target in targets {
        let figure = |figure: f64| if figure < 10.0 { format!("{figure:.2}×") } else { format!("{figure:.1}×") };
        let (sign, needed, aim) = match target.bound {
            Bound::AtLeast(needed, aim) => ('≥', needed, aim),
            Bound::AtMost(needed, aim) => ('≤', needed, aim),
        };
        let (median, spread, standing) = match (target.ratio, target.standing) {
            (Some(ratio), Some(standing)) => (
                figure(ratio.median),
                format!("({} – {})", figure(ratio.min), figure(ratio.max)),
                match standing {
                    Standing::Aim => "aim reached",
                    Standing::Met => "met",
                    Standing::Missed => "MISSED",
                    Standing::OutOfReach => "MISSED: the floor misses it too",
                },
            ),
            _ => ("–".into(), String::new(), "not measured"),
        };
        // The verdict stays the median's. If the bound lies within the likely range of the median,
        // the rounds are too few to tell, and the table says so.
        let likely =
            target.ratio.and_then(|ratio| ratio.likely).filter(|(least, most)| (*least..=*most).contains(&needed));
        let standing = likely.map_or(standing.into(), |(least, most)| {
            format!("{standing}; not told apart: {least:.3} to {most:.3} with 95 %")
        });
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
        let bound = Bound::AtLeast(3.0, 4.5);
        assert_eq!([2.99, 3.0, 4.5].map(|ratio| bound.judge(ratio)), [Standing::Missed, Standing::Met, Standing::Aim]);
        let bound = Bound::AtMost(1.25, 1.1);
        assert_eq!([1.3, 1.25, 1.0].map(|ratio| bound.judge(ratio)), [Standing::Missed, Standing::Met, Standing::Aim]);
    }

    #[test]
    fn what_the_rounds_do_not_tell_is_said_beside_the_verdict() {
        let told = |figures: [f64; 6]| {
            targets(&[Target::new("a over b", Bound::AtLeast(1.0, 1.2), Spread::of(figures))]).to_string()
        };
        let text = told([0.97, 0.98, 0.99, 0.99, 1.0, 1.01]);
        assert!(text.contains("MISSED; not told apart: 0.970 to 1.010 with 95 %"), "{text}");
        assert!(!told([0.97, 0.98, 0.99, 0.99, 0.99, 0.99]).contains("told"), "less in every round");
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
