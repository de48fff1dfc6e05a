//! Tables, JSON and a chart of what came of it.

use crate::rack::{Outcome, Rule};
use anyhow::Result;
use farmem_kit::chart::{self, Axis, COLOURS, Curve, Panel, Point};
use farmem_kit::table::Table;
use serde_json::json;

/// A rule in racks of one size, at one rate.
pub struct Row {
    rule: Rule,
    nodes: usize,
    rate: f64,
    outcome: Outcome,
}

impl Row {
    /// The mean over racks.
    pub fn mean(rule: Rule, nodes: usize, rate: f64, each: &[Outcome]) -> Row {
        let mean = |of: fn(&Outcome) -> f64| each.iter().map(of).sum::<f64>() / each.len().max(1) as f64;
        let outcome = Outcome {
            variation: mean(|outcome| outcome.variation),
            worst: mean(|outcome| outcome.worst),
            refused: mean(|outcome| outcome.refused),
        };
        Row { rule, nodes, rate, outcome }
    }
}

/// For people.
pub fn text(rows: &[Row], fill: u64) -> String {
    let mut table = Table::new(["rule", "nodes", "rate", "variation", "worst / mean", "refused"]);
    for row in rows {
        let Outcome { variation, worst, refused } = row.outcome;
        table.row([
            row.rule.name().to_owned(),
            row.nodes.to_string(),
            row.rate.to_string(),
            format!("{variation:.3}"),
            format!("{worst:.2}"),
            format!("{refused:.3}"),
        ]);
    }
    format!("{fill} % of what is lent is in use; rate: placements for each node between two beats\n\n{table}")
}

/// For programs.
pub fn json(rows: &[Row], fill: u64) -> Result<String> {
    let row = |row: &Row| {
        let Outcome { variation, worst, refused } = row.outcome;
        json!({
            "rule": row.rule.name(), "nodes": row.nodes, "rate": row.rate,
            "variation": variation, "worst": worst, "refused": refused,
        })
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    Ok(serde_json::to_string_pretty(&json!({ "fill_percent": fill, "rows": rows }))?)
}

/// Variation over nodes, a panel for each rate.
pub fn chart(rows: &[Row], fill: u64) -> String {
    let mut rates: Vec<f64> = rows.iter().map(|row| row.rate).collect();
    rates.dedup();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    let panel = |&rate: &f64| {
        let here: Vec<&Row> = rows.iter().filter(|row| row.rate == rate).collect();
        let curve = |(number, &rule): (usize, &Rule)| Curve {
            name: rule.name().into(),
            colour: COLOURS[[2, 0, 5, 4, 7][number]],
            is_dashed: rule != Rule::Farmem,
            labels_above: false,
            points: here
                .iter()
                .filter(|row| row.rule == rule)
                .map(|row| Point::at(row.nodes as f64, row.outcome.variation))
                .collect(),
        };
        Panel {
            title: format!("{rate} placements for each node between beats"),
            subtitle: format!("variation of the nodes' use; {fill} % of what is lent is in use"),
            x: Axis::decades(here.iter().map(|row| row.nodes as f64), |nodes| nodes.to_string()).labelled("nodes"),
            y: Axis::linear(here.iter().map(|row| row.outcome.variation), |figure| format!("{figure:.2}")),
            curves: Rule::ALL.iter().enumerate().map(curve).collect(),
        }
    };
    let panels: Vec<Panel> = rates.iter().map(panel).collect();
    chart::sheet("Placement on old news", &panels, 1)
}
