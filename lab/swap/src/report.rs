//! Table, JSON and a chart of what came of it.

use crate::Outcomes;
use crate::cluster::{Outcome, Policy, Rule, SHARE};
use crate::recorded::Program;
use crate::traces::{Grain, Life};
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

    fn times(&self) -> String {
        format!("{:.3} ± {:.3}", self.mean, self.within)
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
    /// Their work by that under the static policy, within a seed.
    pub work_against_static: Mean,
}

/// A row for each policy.
pub fn rows(outcomes: &Outcomes) -> Vec<Row> {
    let row = |(policy, all): &(Policy, Vec<Outcome>)| Row {
        policy: *policy,
        live: Mean::of(all.iter().map(|outcome| outcome.live)),
        of_held: Mean::of(all.iter().map(|outcome| outcome.of_held)),
        jobs: Mean::of(all.iter().map(|outcome| outcome.jobs)),
        against_static: against(outcomes, *policy, base(*policy), |outcome| outcome.jobs),
        work_against_static: against(outcomes, *policy, base(*policy), |outcome| outcome.work),
    };
    outcomes.by_policy.iter().map(row).collect()
}

/// Static shares by the same rule.
fn base(policy: Policy) -> Policy {
    Policy::ALL.into_iter().find(|base| base.rule == policy.rule).unwrap_or(policy)
}

/// A figure under one policy by that under another, within a seed.
pub fn against(outcomes: &Outcomes, one: Policy, other: Policy, figure: fn(&Outcome) -> f64) -> Mean {
    let of = |wanted| outcomes.by_policy.iter().find(|(policy, _)| *policy == wanted).map_or(&[][..], |(_, all)| all);
    Mean::of(of(one).iter().zip(of(other)).map(|(one, other)| figure(one) / figure(other)))
}

/// Jobs and work of farmem by those of the grains that others use, by rule.
fn leads(outcomes: &Outcomes) -> Vec<(Policy, Policy, Mean, Mean)> {
    let pair = |(rule, grain)| {
        let (ours, other) = (Policy::with(rule, Grain::Pieces)?, Policy::with(rule, grain)?);
        let figures = [|outcome: &Outcome| outcome.jobs, |outcome: &Outcome| outcome.work];
        let [jobs, work] = figures.map(|figure| against(outcomes, ours, other, figure));
        Some((ours, other, jobs, work))
    };
    let rules = [Rule::Promised, Rule::Booked];
    rules.into_iter().flat_map(|rule| [(rule, Grain::Extents), (rule, Grain::Blocks)]).filter_map(pair).collect()
}

/// For people.
pub fn text(rows: &[Row], outcomes: &Outcomes) -> String {
    let mut programs =
        Table::new(["program", "live of held: grants", "blocks", "clusters", "slots", "75 %", "50 %", "25 %", "10 %"]);
    for (program, life) in outcomes.programs.iter().zip(&outcomes.lives) {
        let held = Grain::ALL[1..].iter().map(|&grain| format!("{:.0} %", life.live_of_held(grain) * 100.0));
        let slow = program.slowdowns[1..].iter().map(|slow| format!("{slow:.2}×"));
        programs.row(std::iter::once(program.name.to_owned()).chain(held).chain(slow).collect::<Vec<String>>());
    }
    let mut table = Table::new(["policy", "use", "of held", "jobs", "jobs against static", "work"]);
    for row in rows {
        let jobs = format!("{:.1} ± {:.1}", row.jobs.mean, row.jobs.within);
        let cells = [
            row.live.percent(),
            row.of_held.percent(),
            jobs,
            row.against_static.times(),
            row.work_against_static.times(),
        ];
        table.row(std::iter::once(row.policy.name.to_owned()).chain(cells).collect::<Vec<String>>());
    }
    let lead = |(ours, other, jobs, work): &(Policy, Policy, Mean, Mean)| {
        format!("\"{}\" against \"{}\": jobs {}, work {}\n", ours.name, other.name, jobs.times(), work.times())
    };
    let leads: String = leads(outcomes).iter().map(lead).collect();
    let (hosts, seeds) = (outcomes.hosts, outcomes.by_policy.first().map_or(0, |(_, all)| all.len()));
    format!(
        "{programs}\n{hosts} hosts, {SHARE:.0} GiB of far memory for each, ten hours, {seeds} seeds: mean and 95 % interval\n\n\
         {table}\n{leads}"
    )
}

/// For programs.
pub fn json(rows: &[Row], outcomes: &Outcomes) -> Result<String> {
    let mean = |mean: &Mean| json!({ "mean": mean.mean, "within": mean.within });
    let row = |row: &Row| {
        json!({
            "policy": row.policy.name, "use": mean(&row.live), "of_held": mean(&row.of_held),
            "jobs": mean(&row.jobs), "jobs_against_static": mean(&row.against_static),
            "work_against_static": mean(&row.work_against_static),
        })
    };
    let program = |(program, life): (&Program, &Life)| {
        json!({
            "program": program.name, "slowdowns": program.slowdowns,
            "live_of_held": Grain::ALL[1..].iter().map(|&grain| life.live_of_held(grain)).collect::<Vec<f64>>(),
        })
    };
    let lead = |(ours, other, jobs, work): &(Policy, Policy, Mean, Mean)| json!({ "of": ours.name, "against": other.name, "jobs": mean(jobs), "work": mean(work) });
    let seeds = outcomes.by_policy.first().map_or(0, |(_, all)| all.len());
    Ok(serde_json::to_string_pretty(&json!({
        "hosts": outcomes.hosts,
        "seeds": seeds,
        "programs": outcomes.programs.iter().zip(&outcomes.lives).map(program).collect::<Vec<_>>(),
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "leads": leads(outcomes).iter().map(lead).collect::<Vec<_>>(),
    }))?)
}

/// Use of far memory, and jobs against static shares.
pub fn chart(rows: &[Row]) -> String {
    let drawn = |title: &str,
                 label: &str,
                 series: &[&str],
                 of: &dyn Fn(&Row) -> Vec<Option<Spread>>,
                 show: fn(f64) -> String| {
        let groups: Vec<(String, Vec<Option<Spread>>)> =
            rows.iter().map(|row| (row.policy.name.to_owned(), of(row))).collect();
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
        "times, against static shares by the same rule",
        &["jobs"],
        &|row| vec![row.against_static.spread(1.0)],
        |figure| format!("{figure:.2}"),
    );
    chart::sheet("A cluster that swaps to far memory", &[used, jobs], 1)
}
