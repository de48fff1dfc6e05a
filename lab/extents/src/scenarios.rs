//! Small worlds, each about one part of the protocol.

use crate::scenario::Action::{self, Claim, Merge, Publish, Release, Run, Split, Write, WriteAfterFree};
use crate::scenario::Scenario;
use farmem_protocol::extent::rules::{Bug, Rules};
use farmem_protocol::extent::{Geometry, Level, Owner};

const GIANT: Level = Level::Giant;
const BLOCK: Level = Level::Block;
const CHUNK: Level = Level::Chunk;

/// One giant of two blocks of two chunks.
fn small() -> Geometry {
    Geometry::tiny(2, 4, 1, 1).expect("a geometry")
}

/// One giant of one block of `1 << shift` chunks.
fn one_block(shift: u8) -> Geometry {
    Geometry::tiny(1, 4, 0, shift).expect("a geometry")
}

/// One giant of 66 blocks of one chunk: their words are two lines.
fn two_lines() -> Geometry {
    Geometry::tiny(66, 4, 7, 0).expect("a geometry")
}

fn scenario(name: &'static str, whole: u32, clients: Vec<(u16, u16, Vec<Action>)>) -> Scenario {
    Scenario {
        name,
        geometry: small(),
        whole,
        clients,
        losses: 0,
        expiries: 0,
        mortal: 0b10,
        trusted: 0,
        crashes: 0,
        merges: 0,
        splits: 0,
        rules: Rules::SOUND,
        fences: true,
        drains_the_dead: true,
        binds: true,
        drains_words: true,
        eager: false,
        blocks: vec![],
        quota: None,
        generation: 1,
        lies: (0, 0),
        rejoins: false,
    }
}

/// With an owner that lies.
pub fn lies() -> Vec<Scenario> {
    let one_giant = Geometry::tiny(2, 4, 1, 0).expect("a geometry");
    let mortal = Scenario { mortal: 0b1000, expiries: 1, geometry: one_block(1), ..scenario("", 0, vec![]) };
    vec![
        Scenario { name: "a liar alone", lies: (4, 1), ..mortal.clone() },
        Scenario {
            name: "a liar beside a block",
            lies: (4, 1),
            clients: vec![(1, 0, vec![Claim(BLOCK), Release])],
            ..mortal.clone()
        },
        Scenario {
            name: "a liar beside a chunk",
            lies: (4, 1),
            clients: vec![(1, 0, vec![Claim(CHUNK), Release])],
            ..mortal.clone()
        },
        Scenario {
            name: "a liar while the node merges",
            lies: (3, 1),
            merges: 1,
            clients: vec![(1, 0, vec![Split(BLOCK), Claim(CHUNK)])],
            ..mortal.clone()
        },
        Scenario {
            name: "a liar beside a giant",
            geometry: one_giant,
            whole: 1,
            lies: (4, 1),
            clients: vec![(1, 0, vec![Claim(GIANT)])],
            ..mortal
        },
    ]
}

/// All of them.
pub fn all() -> Vec<Scenario> {
    let block_life = vec![Claim(BLOCK), Write, Release, WriteAfterFree];
    vec![
        Scenario {
            losses: 1,
            expiries: 1,
            ..scenario("claim and give back", 0, vec![(1, 0, block_life.clone()), (2, 0, vec![Claim(BLOCK), Release])])
        },
        Scenario {
            losses: 2,
            ..scenario(
                "lost answers",
                0,
                vec![(1, 0, vec![Claim(BLOCK), Release, Claim(BLOCK)]), (2, 0, vec![Claim(BLOCK), Release])],
            )
        },
        Scenario {
            losses: 2,
            ..scenario(
                "two queue pairs of one owner",
                0,
                vec![(1, 0, vec![Claim(BLOCK)]), (1, 1, vec![Claim(BLOCK), Release])],
            )
        },
        Scenario {
            expiries: 1,
            crashes: 1,
            losses: 1,
            ..scenario(
                "publish",
                0,
                vec![(1, 0, vec![Claim(BLOCK), Write, Publish(1), Release]), (2, 0, vec![Claim(CHUNK), Write])],
            )
        },
        Scenario {
            merges: 1,
            crashes: 1,
            ..scenario(
                "publish, then merge",
                0,
                vec![
                    (1, 0, vec![Claim(BLOCK), Publish(1), Release]),
                    (2, 0, vec![Claim(CHUNK), Release, Claim(BLOCK)]),
                ],
            )
        },
        Scenario {
            merges: 1,
            losses: 1,
            expiries: 1,
            ..scenario(
                "split, then merge",
                1,
                vec![(1, 0, vec![Split(GIANT), Claim(BLOCK), Release]), (2, 0, vec![Claim(GIANT), Release])],
            )
        },
        Scenario {
            merges: 2,
            crashes: 1,
            ..scenario(
                "three levels",
                1,
                vec![
                    (1, 0, vec![Split(GIANT), Split(BLOCK), Claim(CHUNK), Release]),
                    (2, 0, vec![Claim(GIANT), Release]),
                ],
            )
        },
        Scenario {
            expiries: 1,
            ..scenario(
                "runs",
                0,
                vec![(1, 0, vec![Run(BLOCK, 2), Release, Release]), (2, 0, vec![Claim(BLOCK), Release])],
            )
        },
        Scenario {
            geometry: one_block(1),
            losses: 1,
            expiries: 1,
            crashes: 1,
            ..scenario(
                "a run of chunks",
                0,
                vec![
                    (1, 0, vec![Split(BLOCK), Run(CHUNK, 2), Release]),
                    (2, 0, vec![Claim(CHUNK), Release, Run(CHUNK, 2)]),
                ],
            )
        },
        Scenario {
            geometry: one_block(2),
            expiries: 1,
            ..scenario(
                "a run within a run",
                0,
                vec![(1, 0, vec![Split(BLOCK), Run(CHUNK, 4)]), (2, 0, vec![Run(CHUNK, 2), Release])],
            )
        },
        Scenario {
            geometry: one_block(2),
            losses: 1,
            ..scenario(
                "a run that loses answers",
                0,
                vec![(1, 0, vec![Split(BLOCK), Run(CHUNK, 4)]), (2, 0, vec![Claim(CHUNK)])],
            )
        },
        Scenario {
            geometry: one_block(1),
            expiries: 2,
            mortal: 0b110,
            ..scenario(
                "a run recovered by a peer that dies too",
                0,
                vec![
                    (1, 0, vec![Split(BLOCK), Run(CHUNK, 2)]),
                    (2, 0, vec![Action::Recover(Owner::new(1)), Run(CHUNK, 2)]),
                ],
            )
        },
        Scenario {
            geometry: one_block(1),
            merges: 1,
            losses: 1,
            ..scenario(
                "a run while the node merges",
                0,
                vec![(1, 0, vec![Split(BLOCK), Run(CHUNK, 2), Release, Release]), (2, 0, vec![Claim(CHUNK), Release])],
            )
        },
        Scenario {
            expiries: 2,
            mortal: 0b110,
            crashes: 1,
            ..scenario(
                "recovery by a peer that dies too",
                1,
                vec![
                    (1, 0, vec![Split(GIANT), Claim(BLOCK), Publish(2)]),
                    (2, 0, vec![Action::Recover(Owner::new(1)), Claim(BLOCK)]),
                ],
            )
        },
        Scenario {
            expiries: 1,
            losses: 1,
            merges: 1,
            trusted: 0b10,
            ..scenario(
                "a trusted agent merges",
                0,
                vec![(1, 0, vec![Claim(BLOCK), Publish(0), Merge(BLOCK)]), (2, 0, vec![Claim(CHUNK), Release])],
            )
        },
        Scenario {
            expiries: 1,
            losses: 1,
            rejoins: true,
            ..scenario(
                "the same owner again",
                0,
                vec![
                    (1, 0, vec![Claim(BLOCK), Write, Claim(BLOCK), WriteAfterFree]),
                    (2, 0, vec![Claim(BLOCK), Release]),
                ],
            )
        },
        Scenario {
            losses: 2,
            quota: Some(2),
            ..scenario(
                "over quota",
                0,
                vec![(1, 0, vec![Claim(BLOCK), Release, Claim(BLOCK)]), (1, 1, vec![Claim(BLOCK), Release])],
            )
        },
        Scenario {
            losses: 1,
            quota: Some(2),
            ..scenario(
                "over quota, beside another owner",
                0,
                vec![
                    (1, 0, vec![Run(BLOCK, 2), Claim(BLOCK), Release]),
                    (1, 1, vec![Claim(BLOCK), Release]),
                    (2, 0, vec![Claim(BLOCK), Release]),
                ],
            )
        },
        Scenario {
            geometry: two_lines(),
            blocks: vec![3, 64, 65],
            losses: 1,
            expiries: 1,
            ..scenario(
                "lines read ahead",
                0,
                vec![
                    (1, 0, vec![Claim(BLOCK), Claim(BLOCK), Claim(BLOCK), Release]),
                    (2, 0, vec![Claim(BLOCK), Release, Claim(BLOCK)]),
                ],
            )
        },
        Scenario {
            generation: u32::MAX - 257,
            merges: 1,
            ..scenario(
                "units wear out",
                0,
                vec![
                    (1, 0, vec![Claim(BLOCK), Release, Claim(BLOCK), Publish(1), Release]),
                    (2, 0, vec![Claim(CHUNK), Claim(BLOCK), Release]),
                ],
            )
        },
        Scenario {
            expiries: 1,
            merges: 1,
            ..scenario(
                "three clients",
                0,
                vec![
                    (1, 0, vec![Claim(BLOCK), Publish(1)]),
                    (2, 0, vec![Claim(CHUNK), Release]),
                    (3, 0, vec![Claim(BLOCK), Release]),
                ],
            )
        },
    ]
}

/// Scenarios in which a rule is broken, by the name of what is broken. Each must be found out.
pub fn mutants() -> Vec<(String, Scenario)> {
    let named =
        |name: &str| all().into_iter().chain(lies()).find(|scenario| scenario.name == name).expect("a scenario");
    let by_bug = |bug: Bug| match bug {
        Bug::SkipGeneration | Bug::NoDrain | Bug::NoScrub | Bug::ReleaseToFree | Bug::RecoverToFree => {
            "claim and give back"
        }
        Bug::ReadBack | Bug::AssumeFailed => "lost answers",
        Bug::NoClaimant => "two queue pairs of one owner",
        Bug::PublishParentFirst | Bug::PublishWithoutQuarantine | Bug::KeepChildren | Bug::FreeUnderClosed => "publish",
        Bug::MergeWithoutFreeze | Bug::MergeWithoutParent | Bug::MergeWithoutThaw => "publish, then merge",
        Bug::RecoverSkipsSplitting => "three levels",
        Bug::SplitParentFirst => "split, then merge",
        Bug::RunWithoutRollback => "runs",
        Bug::ForgetOverQuota => "over quota",
        Bug::RunKeepsLeader | Bug::RunTrustsLeader => "a run of chunks",
    };
    let mut mutants: Vec<(String, Scenario)> = Bug::ALL
        .into_iter()
        .map(|bug| {
            let eager = bug == Bug::FreeUnderClosed;
            (format!("{bug:?}"), Scenario { rules: Rules::without(bug), eager, ..named(by_bug(bug)) })
        })
        .collect();
    // Rules that the node keeps, not the operations.
    let node = [
        ("NoFenceBeforeRecovery", Scenario { fences: false, ..named("claim and give back") }),
        ("RecoverBeforeVerbsHaveEnded", Scenario { drains_the_dead: false, ..named("a liar alone") }),
        ("VerbsOfAnEarlierIncarnation", Scenario { binds: false, ..named("the same owner again") }),
        ("DrainPassesOverWords", Scenario { drains_words: false, ..named("a liar alone") }),
        ("KeepChildrenOfALiar", Scenario { rules: Rules::without(Bug::KeepChildren), ..named("a liar alone") }),
        ("NoDrainAfterALiar", Scenario { rules: Rules::without(Bug::NoDrain), ..named("a liar alone") }),
    ];
    mutants.extend(node.map(|(name, scenario)| (name.to_string(), scenario)));
    mutants
}
