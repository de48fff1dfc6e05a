//! All that was found, before it is printed or judged.

use serde::Serialize;

use crate::recovery::Recovery;
use crate::run::Outcome;
use crate::sim::costs::Costs;
use crate::systems::System;
use crate::traces::Replay;

/// One run and what came out.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which system.
    pub system: System,
    /// 4 KiB << order were asked for.
    pub order: u8,
    /// By so many clients.
    pub clients: u32,
    /// Of a pool of so many bytes.
    pub pool: u64,
    /// What came out.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// A run that was left out, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    /// Which.
    pub what: String,
    /// Why.
    pub why: String,
}

/// All that was found.
pub struct Report<'a> {
    /// Each run.
    pub rows: Vec<Row>,
    /// What was left out.
    pub skipped: Vec<Skipped>,
    /// Of traces.
    pub replays: Vec<Replay>,
    /// Measured, not simulated.
    pub recovery: Option<Recovery>,
    /// The costs used.
    pub costs: &'a Costs,
    /// The seed.
    pub seed: u64,
}

impl Report<'_> {
    /// One run, if it was made.
    pub(crate) fn row(&self, system: System, order: u8, clients: u32) -> Option<&Row> {
        self.rows.iter().find(|row| row.system == system && row.order == order && row.clients == clients)
    }
}

/// `4 KiB`, `2 MiB`.
pub fn size_name(order: u8) -> String {
    if order < 8 { format!("{} KiB", 4 << order) } else { format!("{} MiB", 1 << (order - 8)) }
}
