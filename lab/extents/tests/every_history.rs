//! Every history of the small worlds, and every seeded bug found out.

use farmem_extents::explore::{explore, tell};
use farmem_extents::scenarios;

/// States of one scenario that a test visits, at most. `cargo run -p farmem-extents` has no such limit.
const LIMIT: usize = 120_000;

fn assert_sound(all: Vec<farmem_extents::scenario::Scenario>) {
    for scenario in all {
        let found = explore(&scenario, Some(LIMIT));
        let cut = if found.cut { ", cut" } else { "" };
        println!("{}: {} states, {} moves, {} ends{cut}", scenario.name, found.states, found.moves, found.ends);
        if let Some((wrong, moves)) = found.wrong {
            panic!("{}: {wrong}, after\n{}", scenario.name, tell(&scenario, &moves));
        }
    }
}

#[test]
fn nothing_goes_wrong_in_any_history() {
    assert_sound(scenarios::all());
}

#[test]
fn lines_are_read_ahead_in_some_history() {
    let all = scenarios::all();
    let scenario = all.iter().find(|scenario| scenario.name == "lines read ahead").expect("a scenario");
    assert!(explore(scenario, Some(LIMIT)).ahead > 0);
}

#[test]
fn an_owner_that_lies_harms_nobody_else() {
    assert_sound(scenarios::lies());
}

#[test]
fn every_seeded_bug_is_found_out_by_name() {
    let mut missed = Vec::new();
    for (name, scenario) in scenarios::mutants() {
        let found = explore(&scenario, Some(4 * LIMIT));
        match found.wrong {
            Some((wrong, moves)) => {
                println!(
                    "{name}: in '{}', {} states, after {} moves: {wrong}",
                    scenario.name,
                    found.states,
                    moves.len()
                );
            }
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "not found out: {missed:?}");
}
