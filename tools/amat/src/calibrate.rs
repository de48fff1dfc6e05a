//! Latencies of this machine, from the figures of `farmem-lab bench paging --json`.
//!
//! A random read of the benchmark hits local memory or fetches one page:
//! `mean = (1 - f)·hit + f·miss`, f the share of accesses that fetched. A read in
//! order finds its pages fetched ahead, nearly all: its mean is such a page's
//! cost. Both of the pinned runs of one thread; medians over rounds. No machine
//! here has an RDMA card: `farmem-rdma-card` is what shared memory takes, and one
//! READ as others have published it.

use crate::system::{Latency, System};
use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The benchmark's system that stands for each of ours, and the extra time of ours: a card adds one
/// READ of 4 KiB, as KCacheSim has it.
const NAMES: [(&str, &str, f64); 5] = [
    ("farmem-shm", "shm", 0.0),
    ("farmem-tcp", "tcp", 0.0),
    ("farmem-rdma", "rdma", 0.0),
    ("farmem-rdma-card", "shm", 3110.0),
    ("zram", "zram", 0.0),
];

/// Sets the latencies of those of `systems` that `figures` measured. Returns what was set, in
/// words.
///
/// # Errors
/// When `figures` is no report of that benchmark, or has none of them.
pub fn calibrate(systems: &mut [System], figures: &str) -> Result<Vec<String>> {
    let report: Value = serde_json::from_str(figures).context("not JSON")?;
    if report["bench"] != "paging" {
        bail!("not a report of: farmem-lab bench paging --json");
    }
    let mut told = vec![];
    for system in systems.iter_mut() {
        let Some(&(_, from, more)) = NAMES.iter().find(|(ours, ..)| *ours == system.name) else { continue };
        let Some(random) = median(&report, from, "random-read", |phase| miss(phase, system.local.ns)) else { continue };
        system.remote.ns = Latency::Any(random + more);
        let mut said = format!("{}: a miss {:.2} µs", system.name, (random + more) / 1e3);
        if system.prefetch > 0
            && let Some(ns) = median(&report, from, "sequential-read", |phase| phase["mean_ns"].as_f64())
        {
            system.remote.prefetched_ns = ns;
            said += &format!(", a page fetched ahead {:.2} µs", ns / 1e3);
        }
        told.push(said);
    }
    if told.is_empty() {
        bail!("this report measured none of the systems compared");
    }
    Ok(told)
}

/// The median over rounds of what is made of one phase, if the report has it.
fn median(report: &Value, system: &str, what: &str, of: impl Fn(&Value) -> Option<f64>) -> Option<f64> {
    let (_, rounds) = report["raw"]["paging"]
        .as_array()?
        .iter()
        .filter_map(|pair| Some((pair.get(0)?, pair.get(1)?.as_array()?)))
        .find(|(setting, _)| setting["system"] == system && setting["pinned"] == true)?;
    let phase = |round: &Value| {
        round["phases"].as_array()?.iter().find(|p| p["what"] == what && p["threads"] == "solo").and_then(&of)
    };
    let mut costs: Vec<f64> = rounds.iter().filter_map(phase).collect();
    costs.sort_by(f64::total_cmp);
    costs.get(costs.len() / 2).copied()
}

/// The cost of a fetched page.
fn miss(phase: &Value, hit_ns: f64) -> Option<f64> {
    let (mean, accesses) = (phase["mean_ns"].as_f64()?, phase["accesses"].as_f64()?);
    let faults = &phase["faults"];
    let fetched = faults["far"]["demand"].as_f64().or_else(|| faults["major"].as_f64())?;
    let share = (fetched / accesses).min(1.0);
    (share > 0.0).then(|| (mean - (1.0 - share) * hit_ns) / share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_sets_latencies() {
        let round = |ns: f64| {
            format!(
                r#"{{"phases": [{{"what": "random-read", "threads": "solo", "accesses": 100, "mean_ns": {ns},
                    "faults": {{"major": 3, "far": {{"demand": 75}}}}}},
                    {{"what": "sequential-read", "threads": "solo", "accesses": 100, "mean_ns": 1500.0,
                    "faults": {{"major": 3, "far": {{"demand": 1}}}}}}]}}"#
            )
        };
        let report = format!(
            r#"{{"bench": "paging", "raw": {{"paging": [[{{"system": "shm", "pinned": true}}, [{}, {}, {}]],
                [{{"system": "rdma", "pinned": true}}, [{}]]]}}}}"#,
            round(3020.5),
            round(9e9),
            round(1000.0),
            round(6020.5)
        );
        let mut systems =
            ["farmem-shm", "farmem-rdma-card", "farmem-rdma", "farmem-tcp"].map(|name| System::find(name).unwrap());
        let told = calibrate(&mut systems, &report).unwrap();
        assert_eq!(told.len(), 3, "nothing is said of tcp");
        // (3020.5 - 0.25 * 82) / 0.75
        assert_eq!(systems[0].remote.ns, Latency::Any(4000.0));
        assert_eq!(systems[1].remote.ns, Latency::Any(7110.0));
        assert_eq!(systems[2].remote.ns, Latency::Any(8000.0));
        assert_eq!(systems[0].remote.prefetched_ns, 1500.0);
        assert!(calibrate(&mut systems, "{}").is_err() && calibrate(&mut systems, "no").is_err());
        assert!(calibrate(&mut systems, r#"{"bench": "paging"}"#).is_err());
    }
}
