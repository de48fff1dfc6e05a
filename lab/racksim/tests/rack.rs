//! Some seeds of a rack hold every rule, and each mistake is found within a few.

use farmem_racksim::{Mistake, Reached, STEPS, run};

/// Seeds within which each mistake is found.
const WITHIN: u64 = 20;

#[test]
fn a_rack_holds_its_rules() {
    let mut all = Reached::default();
    for seed in 1..=24 {
        let reached = run(seed, STEPS, None).unwrap_or_else(|broken| panic!("seed {seed}: {}", broken.0));
        all.forks += reached.forks;
        all.turned += reached.turned;
        all.followed += reached.followed;
        all.killed += reached.killed;
    }
    println!("{all:?}");
    assert!(all.forks > 0 && all.turned > 0 && all.followed > 0 && all.killed > 0, "what is rare is met: {all:?}");
}

#[test]
fn each_mistake_is_found() {
    let mistakes = [
        (Mistake::OneCopy, "is lost"),
        (Mistake::FreedTwice, "host "),
        (Mistake::OldTermTaken, "has heard of epoch"),
        (Mistake::KeptWithoutCompare, "is known"),
        (Mistake::NoDomains, "both copies of a slab are in"),
        (Mistake::ReusedBeforeDone, "host "),
        (Mistake::ReadBeforeDone, "was written last"),
        (Mistake::BitsAfterWord, "host "),
        (Mistake::KeptLateLink, "host "),
        (Mistake::FilledOutsideLock, "was written last"),
        (Mistake::ReleasedUnderRead, "what it has given back"),
        (Mistake::ParityWithoutOthers, "host "),
        (Mistake::OverwroteShared, "was written last"),
    ];
    let mut unfound = Vec::new();
    for (mistake, told) in mistakes {
        let found = (1..=WITHIN).find_map(|seed| run(seed, STEPS, Some(mistake)).err().map(|broken| (seed, broken.0)));
        match found {
            Some((seed, what)) if what.contains(told) => println!("{mistake:?}: seed {seed}: {what}"),
            other => unfound.push(format!("{mistake:?}: {other:?}")),
        }
    }
    assert!(unfound.is_empty(), "{unfound:#?}");
}
