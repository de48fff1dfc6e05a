//! What the simulation must show, with few seeds.

use farmem_swap_lab::claims::{ROWS, When, run};
use farmem_swap_lab::cluster::{Outcome, Policy, Rule};
use farmem_swap_lab::recorded::{Event, Program};
use farmem_swap_lab::report::{against, chart, json, rows, text};
use farmem_swap_lab::simulate;
use farmem_swap_lab::traces::{Grain, Life};

/// With compaction, little more is held than is live, whatever the program does. Other grains hold more of a program that
/// gives back memory while it runs.
#[test]
fn what_is_held_follows_what_is_live_only_by_slots() {
    for program in Program::all().unwrap() {
        let life = Life::of(&program.events);
        let of = |grain| life.live_of_held(grain);
        assert!(of(Grain::Pieces) > 0.85, "{}: {}", program.name, of(Grain::Pieces));
        for other in [Grain::Extents, Grain::Blocks, Grain::Clusters] {
            let gives_back = matches!(program.name, "redis" | "sqlite");
            assert!(!gives_back || of(Grain::Pieces) > of(other) + 0.1, "{}: {other:?}: {}", program.name, of(other));
        }
    }
}

/// A record is of a program that swapped: pages left, and single slots were freed.
#[test]
fn what_was_recorded_is_whole() {
    for program in Program::all().unwrap() {
        let of = |kind: fn(&Event) -> usize| program.events.iter().map(kind).sum::<usize>();
        let written = of(|event| if let Event::Written(slots) = event { slots.len() } else { 0 });
        let freed = of(|event| if let Event::Freed(slots) = event { slots.len() } else { 0 });
        // Slots that were written again were not freed in between.
        assert!(written >= freed && freed > 2000, "{}: {written} written, {freed} freed", program.name);
    }
}

#[test]
fn farmem_is_ahead_of_every_other_grain() {
    let outcomes = simulate(20, 7).unwrap();
    let rows = rows(&outcomes);
    let row = |rule, grain| rows.iter().find(|row| row.policy == Policy::with(rule, grain).unwrap()).unwrap();
    for rule in [Rule::Promised, Rule::Booked] {
        let ours = row(rule, Grain::Pieces);
        for other in [Grain::Extents, Grain::Blocks, Grain::Clusters] {
            assert!(ours.of_held.mean > row(rule, other).of_held.mean, "{}", text(&rows, &outcomes));
            for figure in [|outcome: &Outcome| outcome.jobs, |outcome: &Outcome| outcome.work] {
                let lead = against(&outcomes, ours.policy, row(rule, other).policy, figure);
                assert!(lead.is_above(1.0), "{}", text(&rows, &outcomes));
            }
        }
    }
    assert!(row(Rule::Booked, Grain::Pieces).live.is_above(0.9), "{}", text(&rows, &outcomes));
    assert!(row(Rule::Papers, Grain::Extents).against_static.is_above(1.0), "{}", text(&rows, &outcomes));
    assert_eq!(json(&rows, &outcomes).unwrap().matches("\"policy\"").count(), 12);
    assert!(chart(&rows).contains("farmem, told of slots"));
}

/// A WRITE whose page needs memory takes no longer than one whose page has it, at 99 %, where blocks are claimed and pages are
/// packed. Little more is held than is live. Pieces that are claimed one by one are paid for by each WRITE.
#[test]
fn claims_of_blocks_cost_a_page_that_leaves_nothing() {
    let mut programs = Program::all().unwrap();
    programs.retain(|program| matches!(program.name, "redis" | "sort"));
    programs.iter_mut().for_each(|program| program.events.truncate(2500));
    let run = |row, when| run(&programs, 2, row, when, 1).unwrap();
    let (plain, ours) = (run(ROWS[0], When::Never), run(ROWS[0], When::Needed));
    assert_eq!((plain.claims, ours.writes), (0, plain.writes));
    assert!(ours.claims > 5 && ours.claims < ours.writes / 200, "{ours:?}");
    assert!(ours.p99 as f64 <= 1.03 * plain.p99 as f64, "{ours:?}, {plain:?}");
    assert!(ours.live_of_held > 0.8, "{ours:?}");
    for row in [ROWS[1], ROWS[3]] {
        let theirs = run(row, When::Needed);
        assert!(theirs.claims == theirs.writes && theirs.p99 > 2 * ours.p99, "{row:?}: {theirs:?}");
    }
}
