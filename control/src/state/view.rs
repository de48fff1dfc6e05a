//! The operator's view of the rack, and events about runs' copies.

use super::{HOLDS, Node, Run, State};
use crate::api::{EventView, MOST_SHOWN, NodeView, Rack, RunView, TenantView, Want};
use std::cmp::Reverse;
use std::time::Duration;

/// Runs that are named where the rack has no room.
const HOLDERS: usize = 3;

impl State {
    /// Notes what has become of the copies of a tenant's run since it asked last.
    pub(super) fn compare(&mut self, now: Duration, tenant: &str, want: &Want) {
        let Some(is) = &want.figures else { return };
        let was = self.runs.get(&want.run).and_then(|run| run.figures.clone()).unwrap_or_default();
        let who = format!("run {} on {} ({})", want.run, want.host, is.program);
        let mib = |bytes: u64| bytes >> 20;
        let mut note = |line| self.events.note(now, line, Some(tenant.to_owned()));
        if is.nodes_lost > was.nodes_lost {
            note(format!("{who} has lost a node: {} MiB have one copy", mib(is.single)));
        }
        if is.single == 0 && was.single > 0 {
            note(format!("{who}: every page has two copies again"));
        }
        match (was.together, is.together) {
            (0, 1..) => note(format!("{who}: both copies of {} MiB are in one failure domain", mib(is.together))),
            (1.., 0) => note(format!("{who}: copies are in two failure domains again")),
            _ => {}
        }
    }

    /// One node of the rack, and nothing else.
    pub fn view_of(&self, now: Duration, name: &str) -> Rack {
        let nodes = self.nodes.get_key_value(name).map(|found| viewed(now, found)).into_iter().collect();
        Rack { nodes, runs: Vec::new(), more_runs: 0, tenants: Vec::new(), events: Vec::new(), term: self.term }
    }

    /// The rack as an operator sees it.
    pub fn view(&self, now: Duration) -> Rack {
        let run = |(run, of): (&String, &Run)| RunView {
            run: run.clone(),
            host: of.host.clone(),
            nodes: of.nodes.clone(),
            figures: of.figures.clone(),
            crowded: self.domains_of(&of.nodes).len() < of.domains as usize,
        };
        let event =
            |(at, what): (Duration, &str)| EventView { ago_s: now.saturating_sub(at).as_secs(), what: what.into() };
        let mut runs: Vec<(&String, &Run)> = self.runs.iter().collect();
        let more = runs.len().saturating_sub(MOST_SHOWN);
        if more > 0 {
            // A tenant that begins many small runs hides none that matters.
            runs.sort_by_key(|(_, run)| Reverse(run.figures.as_ref().map_or(0, |figures| figures.far)));
            runs.truncate(MOST_SHOWN);
            runs.sort_by_key(|(name, _)| *name);
        }
        Rack {
            nodes: self.nodes.iter().map(|found| viewed(now, found)).collect(),
            runs: runs.into_iter().map(run).collect(),
            more_runs: more as u64,
            tenants: self
                .shares
                .all()
                .map(|(name, quota, held)| TenantView { name: name.into(), quota, held })
                .collect(),
            events: self.events.all().map(event).collect(),
            term: self.term,
        }
    }

    /// The runs that hold most, as a part of a sentence. Runs that do not ask any more are left out.
    pub(super) fn holders(&self, now: Duration) -> String {
        let held = |run: &Run| run.figures.as_ref().map_or(0, |figures| figures.far);
        let lives = |run: &&Run| held(run) > 0 && now.saturating_sub(run.asked) < HOLDS;
        let mut runs: Vec<&Run> = self.runs.values().filter(lives).collect();
        runs.sort_by_key(|run| std::cmp::Reverse(held(run)));
        let name = |run: &&Run| {
            let program = run.figures.as_ref().map_or("", |figures| &figures.program);
            format!("{program} on {} ({} MiB)", run.host, held(run) >> 20)
        };
        match runs.iter().take(HOLDERS).map(name).collect::<Vec<_>>() {
            none if none.is_empty() => String::new(),
            most => format!("; most of it is held by {}", most.join(", ")),
        }
    }
}

fn viewed(now: Duration, (name, node): (&String, &Node)) -> NodeView {
    NodeView {
        name: name.clone(),
        domain: node.domain.clone(),
        address: node.address.clone(),
        standing: node.shown().into(),
        lends: node.lends,
        lent: node.lent,
        drain_from: node.drain_from,
        members: node.members,
        read_rate: node.rates.0,
        write_rate: node.rates.1,
        heard_ms: node.heard.map(|heard| now.saturating_sub(heard).as_millis() as u64),
    }
}
