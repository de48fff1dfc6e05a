//! Some seeds of a rack hold every rule, and each mistake is found within a few.

use farmem_racksim::{Mistake, STEPS, run};

#[test]
fn a_rack_holds_its_rules() {
    for seed in 1..=24 {
        run(seed, STEPS, None).unwrap_or_else(|broken| panic!("seed {seed}: {}", broken.0));
    }
}

#[test]
fn each_mistake_is_found() {
    let mistakes = [
        (Mistake::OneCopy, "one copy"),
        (Mistake::FreedTwice, "host "),
        (Mistake::OldTermTaken, "has heard of epoch"),
        (Mistake::KeptWithoutCompare, "is known"),
        (Mistake::NoDomains, "both copies of a slab are in"),
    ];
    for (mistake, told) in mistakes {
        let found = (1..=40).find_map(|seed| run(seed, STEPS, Some(mistake)).err().map(|broken| (seed, broken.0)));
        let (seed, what) = found.unwrap_or_else(|| panic!("{mistake:?} is not found"));
        println!("{mistake:?}: seed {seed}: {what}");
        assert!(what.contains(told), "{mistake:?}: {what}");
    }
}
