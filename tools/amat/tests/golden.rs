//! The formula gives every value that Kona's authors published with KCacheSim.
//!
//! `golden/` holds their counts (cachegrind's, `saved-data` in the history of
//! KCacheSim) and the AMATs that follow; the runs of one workload differ in
//! length, so each level's rate is taken from the run that measured it.

use farmem_amat::formula::{Count, Rate, amat};
use std::collections::HashMap;

const L1_NS: f64 = 2.0;
const L2_NS: f64 = 9.0;
const L3_NS: f64 = 26.0;
/// Kona's local memory is behind an interconnect, the others' is DRAM.
const KONA_LOCAL_NS: f64 = 130.0;
const DRAM_NS: f64 = 82.0;
const LEGOOS_NS: f64 = 10_000.0;
const INFINISWAP_NS: f64 = 40_000.0;

/// One cachegrind run.
struct Run {
    references: Count,
    first: Rate,
    last: Rate,
}

fn rows(text: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    text.lines().skip(1).map(|line| line.split(',').collect())
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

#[test]
fn every_published_amat_follows_from_its_counts() {
    let mut runs = HashMap::new();
    for row in rows(include_str!("golden/kcachesim-inputs.csv")) {
        let count = |at: usize| Count { read: number(row[at]), write: number(row[at + 1]) };
        let references = count(4);
        let run = Run { references, first: Rate::of(count(6), references), last: Rate::of(count(8), references) };
        // The rows of the CPU's levels are one per workload; those of local memory are told apart
        // by its size.
        let which = if row[1] == "fmem" { (row[2], row[3]) } else { (row[1], "") };
        runs.insert((row[0], which), run);
    }
    let latency: HashMap<&str, f64> =
        rows(include_str!("golden/rdma-read-latency.csv")).map(|row| (row[0], number(row[1]) as f64)).collect();

    let mut compared = 0;
    for row in rows(include_str!("golden/kcachesim-amat.csv")) {
        let [workload, _, cache, block, ref published @ ..] = row[..] else { panic!("a row of seven") };
        let run = |which| &runs[&(workload, which)];
        let (l2, l3, local) = (run(("l2", "")), run(("l3", "")), run((cache, block)));
        for (published, local_ns, remote_ns) in [
            (published[0], KONA_LOCAL_NS, latency[block]),
            (published[1], DRAM_NS, LEGOOS_NS),
            (published[2], DRAM_NS, INFINISWAP_NS),
        ] {
            let beyond = [(l2.first, L2_NS), (l2.last, L3_NS), (l3.last, local_ns), (local.last, remote_ns)];
            let ours = amat(l2.references, L1_NS, &beyond);
            let published: f64 = published.parse().expect("a number");
            assert!((ours - published).abs() < 1e-6, "{workload} {cache} {block}: {ours} for {published}");
            compared += 1;
        }
    }
    assert_eq!(compared, 47 * 3);
}
