//! A cluster whose hosts swap to nodes' memory: jobs that wait are admitted when their memory can be promised.
//!
//! A job has so much of its memory local, which is its host's for as long as it runs, and the rest far. It is admitted if
//! a host has the cores and the RAM, and if the most that running jobs and this one will hold of far memory fits. How much
//! that is depends on the policy. So nobody is ever out of memory, and what a policy gives back is what it can admit.

use crate::traces::{Grain, Kind, Life};
use farmem_protocol::random::Random;

/// GiB of far memory for each host.
pub const SHARE: f64 = 32.0;
/// GiB of RAM of a host.
const RAM: f64 = 64.0;
const CORES: u32 = 48;
/// Jobs that are looked at, in the order in which they wait.
const AHEAD: usize = 8;
/// Minutes that are simulated, and before anything counts.
const MINUTES: u32 = 600;
const WARM: u32 = 60;
/// GiB of far memory that a job has at most: of a share that is its own alone.
const LARGEST: f64 = 24.0;
/// GiB that Infiniswap grants at once.
const EXTENT: f64 = 1.0;

/// How far memory is granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Each host has its share for itself, and uses it as a disk.
    Static,
    /// One pool; a host gets 1 GiB at a time, and has it until the programs that it is for have ended.
    Grants,
    /// One pool, by blocks of 4 MiB.
    Blocks,
    /// One pool; farmem, told of freed clusters.
    Clusters,
    /// One pool; farmem, told of freed slots.
    Pieces,
    /// The papers' rule for Fastswap: what a host's jobs need at most fits its share.
    PaperStatic,
    /// The papers' rule for FineMem: what all jobs need at most fits the pool.
    PaperPool,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 7] = [
        Policy::Static,
        Policy::Grants,
        Policy::Blocks,
        Policy::Clusters,
        Policy::Pieces,
        Policy::PaperStatic,
        Policy::PaperPool,
    ];

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Static => "static shares",
            Policy::Grants => "pool, grants of 1 GiB",
            Policy::Blocks => "pool, blocks of 4 MiB",
            Policy::Clusters => "farmem, told of clusters",
            Policy::Pieces => "farmem, told of slots",
            Policy::PaperStatic => "papers' rule, static",
            Policy::PaperPool => "papers' rule, pool",
        }
    }

    fn is_pool(self) -> bool {
        !matches!(self, Policy::Static | Policy::PaperStatic)
    }

    /// GiB that a job of so much far memory will hold from now on, at most.
    fn most(self, life: &Life, far: f64, progress: f64) -> f64 {
        far * match self {
            Policy::Static => life.most(None, progress),
            Policy::Grants => life.most(Some(Grain::Extents), progress),
            Policy::Blocks => life.most(Some(Grain::Blocks), progress),
            Policy::Clusters => life.most(Some(Grain::Clusters), progress),
            Policy::Pieces => life.most(Some(Grain::Pieces), progress),
            Policy::PaperStatic | Policy::PaperPool => 1.0,
        }
    }

    /// GiB that it holds now.
    fn held(self, life: &Life, far: f64, progress: f64) -> f64 {
        far * match self {
            Policy::Static | Policy::PaperStatic | Policy::PaperPool => 1.0,
            Policy::Grants => life.held(Grain::Extents, progress),
            Policy::Blocks => life.held(Grain::Blocks, progress),
            Policy::Clusters => life.held(Grain::Clusters, progress),
            Policy::Pieces => life.held(Grain::Pieces, progress),
        }
    }

    /// What a host's jobs take together.
    fn of_host(self, gib: f64) -> f64 {
        if self == Policy::Grants { (gib / EXTENT).ceil() * EXTENT } else { gib }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Live far memory by all there is, mean over time.
    pub live: f64,
    /// Live far memory by what is held, mean over time.
    pub of_held: f64,
    /// Jobs that ended.
    pub jobs: f64,
}

/// A program's time by its native time, with 100, 75, 50, 25 and 10 % of its memory local: docs/figures.md, *apps*.
const SLOWDOWNS: [[f64; 5]; 5] = [
    [1.04, 1.36, 1.78, 2.30, 4.30],
    [0.93, 0.99, 1.79, 4.61, 12.2],
    [1.06, 1.13, 1.17, 6.29, 8.06],
    [0.99, 1.44, 2.17, 14.0, 25.4],
    [0.99, 0.98, 1.03, 1.05, 1.12],
];
const LOCAL: [f64; 5] = [1.0, 0.75, 0.5, 0.25, 0.1];
/// A job has the smallest of these shares local with which it takes at most so many times its native time.
const TOLERABLE: f64 = 2.5;

#[derive(Clone, Copy, Debug)]
struct Job {
    kind: Kind,
    local: f64,
    far: f64,
    cores: u32,
    minutes: f64,
}

impl Job {
    fn draw(random: &mut Random) -> Job {
        let program = &SLOWDOWNS[random.index(SLOWDOWNS.len())];
        let tolerable = (1..LOCAL.len()).rev().find(|&at| program[at] <= TOLERABLE).unwrap_or(1);
        // Not everybody asks for as little as is tolerable.
        let at = 1 + random.index(tolerable);
        let memory = lognormal(random, 8f64.ln(), 0.8).clamp(1.0, LARGEST / (1.0 - LOCAL[at]));
        let native = lognormal(random, 20f64.ln(), 0.8).clamp(4.0, 120.0);
        Job {
            kind: Kind::ALL[random.index(Kind::ALL.len())],
            local: memory * LOCAL[at],
            far: memory * (1.0 - LOCAL[at]),
            cores: 1 + random.index(4) as u32,
            minutes: native * program[at],
        }
    }
}

/// Natural logarithm normal with this mean and deviation: of twelve uniform numbers.
fn lognormal(random: &mut Random, mean: f64, deviation: f64) -> f64 {
    let sum: f64 = (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
    (mean + deviation * sum).exp()
}

struct Running {
    job: Job,
    host: usize,
    begun: f64,
}

impl Running {
    fn progress(&self, now: f64) -> f64 {
        (now - self.begun) / self.job.minutes
    }
}

/// A cluster of so many hosts, for ten hours. There are always jobs that wait.
pub fn simulate(policy: Policy, lives: &[Life], hosts: usize, seed: u64) -> Outcome {
    let mut random = Random::nth(seed, 1);
    let mut waiting: Vec<Job> = (0..AHEAD).map(|_| Job::draw(&mut random)).collect();
    let (mut running, mut outcome, mut counted) = (Vec::<Running>::new(), Outcome::default(), 0);
    for minute in 0..MINUTES {
        let now = f64::from(minute);
        let before = running.len();
        running.retain(|running| running.progress(now) < 1.0);
        if minute >= WARM {
            outcome.jobs += (before - running.len()) as f64;
        }
        while let Some((place, host)) = admissible(policy, lives, hosts, &waiting, &running, now) {
            running.push(Running { job: waiting.remove(place), host, begun: now });
            waiting.push(Job::draw(&mut random));
        }
        if minute >= WARM {
            let (live, held) = use_of(policy, lives, hosts, &running, now);
            outcome.live += live / (SHARE * hosts as f64);
            outcome.of_held += live / held.max(f64::MIN_POSITIVE);
            counted += 1;
        }
    }
    outcome.live /= f64::from(counted);
    outcome.of_held /= f64::from(counted);
    outcome
}

/// The first job that can be admitted, and the host with the most RAM among those that can.
fn admissible(
    policy: Policy,
    lives: &[Life],
    hosts: usize,
    waiting: &[Job],
    running: &[Running],
    now: f64,
) -> Option<(usize, usize)> {
    let (mut ram, mut cores, mut far) = (vec![RAM; hosts], vec![CORES; hosts], vec![0.0; hosts]);
    for running in running {
        let Running { job, host, .. } = running;
        ram[*host] -= job.local;
        cores[*host] -= job.cores;
        far[*host] += policy.most(&lives[job.kind as usize], job.far, running.progress(now));
    }
    let pool: f64 = far.iter().map(|&gib| policy.of_host(gib)).sum();
    waiting.iter().enumerate().find_map(|(place, job)| {
        let more = policy.most(&lives[job.kind as usize], job.far, 0.0);
        let fits = |&host: &usize| {
            let with = policy.of_host(far[host] + more);
            let has_far = match policy.is_pool() {
                true => pool - policy.of_host(far[host]) + with <= SHARE * hosts as f64,
                false => with <= SHARE,
            };
            has_far && ram[host] >= job.local && cores[host] >= job.cores
        };
        let host = (0..hosts).filter(fits).max_by(|&a, &b| ram[a].total_cmp(&ram[b]))?;
        Some((place, host))
    })
}

/// GiB of far memory that are live, and that are held.
fn use_of(policy: Policy, lives: &[Life], hosts: usize, running: &[Running], now: f64) -> (f64, f64) {
    let (mut live, mut held) = (0.0, vec![0.0; hosts]);
    for running in running {
        let (job, progress) = (running.job, running.progress(now));
        let life = &lives[job.kind as usize];
        live += job.far * life.live(progress);
        held[running.host] += policy.held(life, job.far, progress);
    }
    let held = match policy {
        // A share is held whether it is used or not.
        Policy::Static | Policy::PaperStatic => SHARE * hosts as f64,
        _ => held.iter().map(|&gib| policy.of_host(gib)).sum(),
    };
    (live, held)
}
