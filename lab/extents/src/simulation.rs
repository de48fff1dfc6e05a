//! Long histories of many clients, in virtual time, by seed.
//!
//! 64 clients of 48 owners (so that some share one) run random programs on eight
//! giants of eight blocks of eight chunks, beside an owner that lies. Verbs take
//! microseconds, lost ones up to a hundred times as long; leases expire, clients
//! come back as other incarnations, the daemon dies. Everything is judged after
//! every event as in the enumeration. The same seed gives the same history.

use crate::moves::Move;
use crate::scenario::{Action, Scenario};
use crate::world::{Violation, World};
use farmem_protocol::extent::rules::Rules;
use farmem_protocol::extent::{Geometry, Level};
use farmem_protocol::random::Random;

/// What a simulation went through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Virtual microseconds.
    pub micros: u64,
    /// Verbs of clients answered.
    pub verbs: u64,
    /// Answers lost.
    pub lost: u64,
    /// Units that the daemon took up to reclaim.
    pub reclaims: u64,
    /// Merges and splits begun by the daemon.
    pub reshapes: u64,
    /// Leases expired.
    pub kills: u64,
    /// Clients that came back.
    pub returns: u64,
    /// Deaths of the daemon.
    pub crashes: u64,
    /// Made-up CAS and WRITEs.
    pub lies: u64,
}

const CLIENTS: u16 = 64;
const OWNERS: u16 = 48;

/// Runs the history of a seed; `actions` for each client.
pub fn simulate(seed: u64, actions: usize, rules: Rules) -> Result<Summary, (Violation, Summary)> {
    let mut random = Random::new(seed);
    let scenario = scenario(&mut random, actions, rules);
    let mut world = World::new(&scenario);
    let mut summary = Summary::default();
    let mut now_ns = 0.0;
    loop {
        let moves = world.moves(&scenario);
        if moves.iter().all(|movement| movement.is_misfortune()) {
            return world.judge_end(&scenario).map(|()| summary).map_err(|wrong| (wrong, summary));
        }
        // Waits are exponential, hence without memory: which move is next, and when, can be drawn
        // from their rates alone (Gillespie, J. Phys. Chem. 1977).
        let rates: f64 = moves.iter().map(|&movement| rate(movement)).sum();
        now_ns -= (1.0 - random.unit()).ln() / rates;
        let mut left = random.unit() * rates;
        let chosen = moves.iter().find(|&&movement| {
            left -= rate(movement);
            left < 0.0
        });
        let chosen = *chosen.unwrap_or(&moves[0]);
        summary.micros = (now_ns / 1000.0) as u64;
        count(&mut summary, chosen);
        world.make(&scenario, chosen).map_err(|wrong| (wrong, summary))?;
    }
}

fn rate(movement: Move) -> f64 {
    1.0 / mean_ns(movement) as f64
}

/// How long a move takes to happen once it can, on average.
fn mean_ns(movement: Move) -> u64 {
    match movement {
        Move::Client(_) => 2_000,
        Move::Land(_) => 30_000,
        Move::Late(_) => 100_000,
        Move::Lose(_) => 20_000,
        Move::Daemon | Move::Ask(_) | Move::Swap(_) => 300,
        Move::Ready => 10_000,
        Move::Reclaim(_) => 3_000,
        Move::Merge(_) | Move::Split(_) => 200_000,
        Move::Recover(_) | Move::Vacate(_) => 20_000,
        Move::Die(_) => 30_000,
        Move::Rejoin(_) => 50_000,
        Move::Expire(_) => 5_000_000,
        Move::Crash => 200_000,
        Move::Lie(..) => 5_000_000,
        Move::Intrude(_) => 100_000,
    }
}

fn count(summary: &mut Summary, movement: Move) {
    let counter = match movement {
        Move::Client(_) => &mut summary.verbs,
        Move::Lose(_) => &mut summary.lost,
        Move::Reclaim(_) => &mut summary.reclaims,
        Move::Merge(_) | Move::Split(_) => &mut summary.reshapes,
        Move::Expire(_) => &mut summary.kills,
        Move::Rejoin(_) => &mut summary.returns,
        Move::Crash => &mut summary.crashes,
        Move::Lie(..) | Move::Intrude(_) => &mut summary.lies,
        _ => return,
    };
    *counter += 1;
}

fn scenario(random: &mut Random, actions: usize, rules: Rules) -> Scenario {
    let owners = OWNERS + 2;
    let program = |random: &mut Random| (0..actions).map(|_| action(random)).collect();
    Scenario {
        name: "simulation",
        geometry: Geometry::tiny(64, owners, 3, 3).expect("a geometry"),
        whole: 4,
        clients: (0..CLIENTS).map(|at| (1 + at % OWNERS, at / OWNERS, program(random))).collect(),
        losses: 10_000,
        expiries: 10_000,
        mortal: u64::MAX,
        trusted: 0b110,
        crashes: 1_000,
        merges: 1_000,
        splits: 100,
        rules,
        fences: true,
        drains_the_dead: true,
        binds: true,
        drains_words: true,
        eager: false,
        blocks: vec![],
        quota: Some(64),
        generation: 1,
        lies: (10_000, 10_000),
        rejoins: true,
    }
}

fn action(random: &mut Random) -> Action {
    match random.below(100) {
        0..16 => Action::Claim(Level::Block),
        16..28 => Action::Claim(Level::Chunk),
        28..31 => Action::Run(Level::Block, 2),
        31..34 => Action::Run(Level::Chunk, 2 << random.below(3)),
        34..37 => Action::Some(Level::Block, 3),
        37..39 => Action::Claim(Level::Giant),
        39..68 => Action::Release,
        68..78 => Action::Publish(random.bits()),
        78..79 => Action::Split(Level::Giant),
        79..80 => Action::Split(Level::Block),
        80..81 => Action::Merge(Level::Block),
        81..94 => Action::Write,
        _ => Action::WriteAfterFree,
    }
}
