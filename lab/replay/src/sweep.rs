//! Sizes compared: each one's cost over that of a base, geometric mean over traces and shares, best first.

use crate::machine::{Setup, replay};
use crate::report::setup;
use crate::trace::Trace;
use farmem_cache::prefetch::LONGEST;
use farmem_cache::segments::{Segments, Shape, TWO_QUEUE};
use std::fmt::Write;

/// Fetches of the policy's sizes over 2Q's, without prefetch; then of windows, with it.
pub fn run(traces: &[Trace], shares: &[usize], batch: usize, staging: usize) -> String {
    let setups: Vec<(&Trace, Setup)> =
        traces.iter().flat_map(|t| shares.iter().map(move |&s| (t, setup(t, s, batch, staging)))).collect();
    shapes(&setups) + "\n" + &windows(&setups)
}

fn over(costs: &[f64], base: &[f64]) -> f64 {
    let sum: f64 = costs.iter().zip(base).map(|(a, b)| (a / b).ln()).sum();
    (sum / base.len().max(1) as f64).exp()
}

fn shapes(setups: &[(&Trace, Setup)]) -> String {
    let demand = |shape: Shape| -> Vec<f64> {
        let one = |(trace, setup): &(&Trace, Setup)| {
            1.0 + replay(trace, *setup, |n| Box::new(Segments::new(n, shape))).demand as f64
        };
        setups.iter().map(one).collect()
    };
    let base = demand(TWO_QUEUE);
    let mut found = Vec::new();
    for probation in [3, 5, 10, 20, 50] {
        for soon in [25, 50, 100] {
            for credit in [0, 1, 3] {
                for look in [0, 32, 64, 128] {
                    let shape = Shape { probation, soon, credit, look };
                    found.push((over(&demand(shape), &base), shape));
                }
            }
        }
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut out = String::from(
        "| probation | soon  | credit | look  | over 2Q |\n| --:       | --:   | --:    | --:   | --:     |\n",
    );
    for (ratio, shape) in found {
        let Shape { probation, soon, credit, look } = shape;
        let _ = writeln!(out, "| {probation:>7} % | {soon:>3} % | {credit:>6} | {look:>5} | {ratio:>6.3}× |");
    }
    out
}

/// A window's page costs a fifth of a fault: no signal, and one call for all (measured over shm: 6 µs
/// and 1.2 µs).
const AHEAD: f64 = 0.2;

fn windows(setups: &[(&Trace, Setup)]) -> String {
    let cost = |divisor: usize| -> Vec<f64> {
        let one = |(trace, setup): &(&Trace, Setup)| {
            let longest = setup.local.checked_div(divisor).map_or(0, |pages| (pages as u32).min(LONGEST));
            let setup = Setup { prefetch: longest > 0, longest: Some(longest), ..*setup };
            let outcome = replay(trace, setup, farmem_cache::recommended);
            1.0 + outcome.demand as f64 + outcome.prefetched as f64 * AHEAD
        };
        setups.iter().map(one).collect()
    };
    let base = cost(0);
    let mut out = String::from("| window at most | cost over none |\n| --:            | --:            |\n");
    for divisor in [4, 8, 16, 32, 64, 128] {
        let _ = writeln!(out, "| local/{divisor:<8} | {:>13.3}× |", over(&cost(divisor), &base));
    }
    out
}
