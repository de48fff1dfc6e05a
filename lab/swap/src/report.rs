//! Table, JSON and a chart of what came of it.

use crate::Outcomes;
use crate::cluster::{Outcome, Policy, SHARE};
use anyhow::Result;
use farmem_kit::chart::rows::{Rows, Style};
use farmem_kit::chart::{self, Axis, COLOURS};
use farmem_kit::pairs::Spread;
use farmem_kit::table::Table;
use serde_json::json;

/// A mean over seeds, and half of its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// The true mean is within this of it, in 95 cases of 100.
    pub within: f64,
}

impl Mean {
    /// Of some values. They are many enough for the normal distribution to tell.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Mean {
        let values: Vec<f64> = values.into_iter().collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
        Mean { mean, within: 1.96 * (variance / n).sqrt() }
    }

    /// Whether it is above a figure with that confidence.
    pub fn is_above(&self, figure: f64) -> bool {
        self.mean - self.within > figure
    }

    fn percent(&self) -> String {
        format!("{:.1} ± {:.1} %", self.mean * 100.0, self.within * 100.0)
    }

    fn spread(&self, scale: f64) -> Option<Spread> {
        Spread::of([self.mean - self.within, self.mean, self.mean + self.within].map(|figure| figure * scale))
    }
}

/// A policy.
pub struct Row {
    /// Which.
    pub policy: Policy,
    /// Live by all there is.
    pub live: Mean,
    /// Live by what is held.
    pub of_held: Mean,
    /// Jobs that ended.
    pub jobs: Mean,
    /// Jobs by those of the static policy by the same rule, within a seed.
    pub against_static: Mean,
}

/// A row for each policy.
pub fn rows(outcomes: &Outcomes) -> Vec<Row> {
    let of = |policy: Policy| {
        let all = outcomes.by_policy.iter().find(|(other, _)| *other == policy);
        all.map_or(&[][..], |(_, all)| all)
    };
    let row = |(policy, all): &(Policy, Vec<Outcome>)| {
        let base = match policy {
            Policy::PaperStatic | Policy::PaperPool => of(Policy::PaperStatic),
            _ => of(Policy::Static),
        };
        Row {
            policy: *policy,
            live: Mean::of(all.iter().map(|outcome| outcome.live)),
            of_held: Mean::of(all.iter().map(|outcome| outcome.of_held)),
            jobs: Mean::of(all.iter().map(|outcome| outcome.jobs)),
            against_static: Mean::of(all.iter().zip(base).map(|(one, base)| one.jobs / base.jobs)),
        }
    };
    outcomes.by_policy.iter().map(row).collect()
}

/// For people.
pub fn text(rows: &[Row], outcomes: &Outcomes) -> String {
    let mut table = Table::new(["policy", "use", "of held", "jobs", "jobs against static"]);
    for row in rows {
        let jobs = format!("{:.1} ± {:.1}", row.jobs.mean, row.jobs.within);
        let against = format!("{:.3} ± {:.3}", row.against_static.mean, row.against_static.within);
        table.row([row.policy.name().to_owned(), row.live.percent(), row.of_held.percent(), jobs, against]);
    }
    let (hosts, seeds) = (outcomes.hosts, outcomes.by_policy.first().map_or(0, |(_, all)| all.len()));
    format!(
        "{hosts} hosts, {SHARE:.0} GiB of far memory for each, ten hours, {seeds} seeds: mean and 95 % interval\n\n{table}"
    )
}

/// For programs.
pub fn json(rows: &[Row], outcomes: &Outcomes) -> Result<String> {
    let mean = |mean: &Mean| json!({ "mean": mean.mean, "within": mean.within });
    let row = |row: &Row| {
        json!({
            "policy": row.policy.name(), "use": mean(&row.live), "of_held": mean(&row.of_held),
            "jobs": mean(&row.jobs), "jobs_against_static": mean(&row.against_static),
        })
    };
    let seeds = outcomes.by_policy.first().map_or(0, |(_, all)| all.len());
    let rows: Vec<_> = rows.iter().map(row).collect();
    Ok(serde_json::to_string_pretty(&json!({ "hosts": outcomes.hosts, "seeds": seeds, "rows": rows }))?)
}

/// Use of far memory, and jobs against static shares.
pub fn chart(rows: &[Row]) -> String {
    let drawn = |title: &str,
                 label: &str,
                 series: &[&str],
                 of: &dyn Fn(&Row) -> Vec<Option<Spread>>,
                 show: fn(f64) -> String| {
        let groups: Vec<(String, Vec<Option<Spread>>)> =
            rows.iter().map(|row| (row.policy.name().to_owned(), of(row))).collect();
        let axis = Axis::linear(Rows::all(&groups), show).labelled(label);
        let series =
            series.iter().zip([COLOURS[2], COLOURS[3]]).map(|(name, colour)| ((*name).to_owned(), colour)).collect();
        Rows { title: title.to_owned(), series, groups, axis, style: Style::Bar, show }
    };
    let used = drawn(
        "Far memory that is live",
        "percent",
        &["of all", "of what is held"],
        &|row| vec![row.live.spread(100.0), row.of_held.spread(100.0)],
        |figure| format!("{figure:.0} %"),
    );
    let jobs = drawn(
        "Jobs finished, against static shares",
        "times; papers' rule: against papers' rule with static shares",
        &["jobs"],
        &|row| vec![row.against_static.spread(1.0)],
        |figure| format!("{figure:.2}"),
    );
    chart::sheet("A cluster that swaps to far memory", &[used, jobs], 1)
}
