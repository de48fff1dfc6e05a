//! Long histories by seed. `cargo run --release -p farmem-extents -- sim 1 1000` for more of them.

use farmem_extents::simulation::simulate;
use farmem_protocol::extent::rules::{Bug, Rules};

#[test]
fn sixty_four_clients_kills_lost_answers_and_a_liar() {
    for seed in 1..=3 {
        match simulate(seed, 100, Rules::SOUND) {
            Ok(summary) => println!("seed {seed}: {summary:?}"),
            Err((wrong, summary)) => panic!(
                "seed {seed}: {wrong}, after {summary:?}\nreplay: cargo run -p farmem-extents -- sim {seed} 1 100"
            ),
        }
    }
}

#[test]
fn a_seed_is_a_history() {
    assert_eq!(simulate(7, 10, Rules::SOUND), simulate(7, 10, Rules::SOUND));
}

/// The judges work here, too.
#[test]
fn seeded_bugs_are_found_out_by_seed() {
    for bug in [Bug::NoDrain, Bug::ReadBack, Bug::PublishWithoutQuarantine, Bug::RecoverToFree, Bug::MergeWithoutFreeze]
    {
        let found = (1..=3).find_map(|seed| simulate(seed, 100, Rules::without(bug)).err());
        let (wrong, _) = found.unwrap_or_else(|| panic!("{bug:?} was not found out"));
        println!("{bug:?}: {wrong}");
    }
}
