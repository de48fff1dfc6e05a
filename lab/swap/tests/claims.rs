//! What the simulation must show, with few seeds.

use farmem_swap_lab::cluster::Policy;
use farmem_swap_lab::report::{Mean, chart, json, rows, text};
use farmem_swap_lab::simulate;
use farmem_swap_lab::traces::{Grain, Kind, Life};

/// After three of four pages were given back at random, only single slots with compaction follow what is live.
#[test]
fn what_is_held_follows_what_is_live_only_by_slots() {
    let life = Life::of(Kind::Thins, 7);
    let of_held = |grain| life.live(0.45) / life.held(grain, 0.45);
    let [extents, blocks, clusters, pieces] = Grain::ALL.map(of_held);
    assert!((0.2..0.3).contains(&life.live(0.45)), "{}", life.live(0.45));
    assert!(extents < 0.3 && clusters < 0.4 && blocks < 0.5, "{extents} {blocks} {clusters}");
    assert!(pieces > 0.9, "{pieces}");
    // At its height every grain is full, but for what the kernel spreads.
    let full = |grain| life.live(0.12) / life.held(grain, 0.12);
    assert!(Grain::ALL.iter().all(|&grain| full(grain) > 0.9));
}

#[test]
fn farmem_is_ahead_of_every_other_grain_and_shares() {
    let outcomes = simulate(20, 7);
    let rows = rows(&outcomes);
    let row = |policy| rows.iter().find(|row| row.policy == policy).unwrap();
    let pieces = row(Policy::Pieces);
    assert!(pieces.against_static.is_above(1.0), "{}", text(&rows, &outcomes));
    for other in [Policy::Static, Policy::Grants, Policy::Blocks, Policy::Clusters] {
        assert!(pieces.of_held.mean > row(other).of_held.mean, "{}", text(&rows, &outcomes));
    }
    let jobs = |wanted| {
        let all = outcomes.by_policy.iter().find(|(policy, _)| *policy == wanted);
        all.unwrap().1.iter().map(|outcome| outcome.jobs).collect::<Vec<f64>>()
    };
    for other in [Policy::Grants, Policy::Blocks] {
        let ratios = jobs(Policy::Pieces).into_iter().zip(jobs(other)).map(|(ours, theirs)| ours / theirs);
        assert!(Mean::of(ratios).is_above(1.0), "{}", text(&rows, &outcomes));
    }
    assert!(row(Policy::PaperPool).against_static.is_above(1.0), "{}", text(&rows, &outcomes));
    assert_eq!(json(&rows, &outcomes).unwrap().matches("\"policy\"").count(), 7);
    assert!(chart(&rows).contains("farmem, told of slots"));
}
