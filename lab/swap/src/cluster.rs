//! A cluster whose hosts swap to nodes' memory: jobs that wait are admitted when their memory can be had.
//!
//! A job keeps a part of its memory local, which is its host's while it runs. The rest is far. Two rules say whether there
//! is far memory for it, with the same knowledge of programs that ran before:
//!
//! * *promised*: the most that each job will still hold fits at once.
//! * *booked*: what each job will hold, minute by minute, fits at every minute. That supposes that a job does as the one
//!   before it did.
//!
//! Nobody is ever out of memory by either. The papers' rules are promises of what a job needs at most, from its beginning to its end.

use crate::calendar::Calendar;
use crate::recorded::{LOCAL, Program};
use crate::traces::{Grain, Life};
use farmem_protocol::random::Random;

/// GiB of far memory for each host.
pub const SHARE: f64 = 32.0;
/// GiB of RAM of a host.
const RAM: f64 = 64.0;
const CORES: u32 = 48;
/// Jobs that are looked at, in the order in which they wait.
const AHEAD: usize = 16;
/// Minutes that are simulated, and before anything counts.
const MINUTES: u32 = 600;
const WARM: u32 = 60;
/// GiB of far memory that a job has at most: of a share that is its own alone.
const LARGEST: f64 = 24.0;
/// GiB that Infiniswap grants at once.
const EXTENT: f64 = 1.0;

/// When a job is admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// The most that jobs will hold fits at once.
    Promised,
    /// What jobs will hold fits at every minute.
    Booked,
    /// The papers': what jobs need at most fits, at any grain.
    Papers,
}

/// How far memory is granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// For tables.
    pub name: &'static str,
    /// When a job is admitted.
    pub rule: Rule,
    /// How memory is granted and given back.
    pub grain: Grain,
    /// One pool for all hosts; else each has its share.
    pub pool: bool,
}

impl Policy {
    /// All of them. The first of each rule is the one that others are compared with.
    pub const ALL: [Policy; 12] = {
        const fn of(rule: Rule, name: &'static str, grain: Grain, pool: bool) -> Policy {
            Policy { name, rule, grain, pool }
        }
        [
            of(Rule::Promised, "static shares", Grain::Slots, false),
            of(Rule::Promised, "pool, grants of 1 GiB", Grain::Extents, true),
            of(Rule::Promised, "pool, blocks of 4 MiB", Grain::Blocks, true),
            of(Rule::Promised, "farmem, told of clusters", Grain::Clusters, true),
            of(Rule::Promised, "farmem, told of slots", Grain::Pieces, true),
            of(Rule::Booked, "static shares, booked", Grain::Slots, false),
            of(Rule::Booked, "grants of 1 GiB, booked", Grain::Extents, true),
            of(Rule::Booked, "blocks of 4 MiB, booked", Grain::Blocks, true),
            of(Rule::Booked, "farmem by clusters, booked", Grain::Clusters, true),
            of(Rule::Booked, "farmem by slots, booked", Grain::Pieces, true),
            of(Rule::Papers, "papers' rule, static", Grain::Slots, false),
            of(Rule::Papers, "papers' rule, pool", Grain::Extents, true),
        ]
    };

    /// The one with this rule and grain.
    pub fn with(rule: Rule, grain: Grain) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| policy.rule == rule && policy.grain == grain)
    }

    /// GiB that a job of so much far memory takes of what can be promised.
    fn most(self, life: &Life, far: f64, progress: f64) -> f64 {
        if self.rule == Rule::Papers { far } else { far * life.most(self.grain, progress) }
    }

    /// GiB that it holds now.
    fn held(self, life: &Life, far: f64, progress: f64) -> f64 {
        if self.rule == Rule::Papers { far } else { far * life.held(self.grain, progress) }
    }

    /// What a host's jobs take together.
    pub fn of_host(self, gib: f64) -> f64 {
        let by_extents = self.grain == Grain::Extents && self.rule != Rule::Papers;
        // What is left of sums and differences is nothing.
        if by_extents { (gib / EXTENT - 1e-9).ceil() * EXTENT } else { gib }
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
    /// Their work: GiB of memory times minutes of their native time.
    pub work: f64,
}

/// A job has the smallest part of its memory local with which it takes at most so many times its native time.
const TOLERABLE: f64 = 2.5;

#[derive(Clone, Copy, Debug)]
struct Job {
    program: usize,
    local: f64,
    far: f64,
    cores: u32,
    minutes: f64,
    work: f64,
}

impl Job {
    fn draw(random: &mut Random, programs: &[Program]) -> Job {
        let program = random.index(programs.len());
        let slowdowns = &programs[program].slowdowns;
        let tolerable = (1..LOCAL.len()).rev().find(|&at| slowdowns[at] <= TOLERABLE).unwrap_or(1);
        // Not everybody asks for as little as is tolerable.
        let at = 1 + random.index(tolerable);
        let local = f64::from(LOCAL[at]) / 100.0;
        let memory = lognormal(random, 8f64.ln(), 0.8).clamp(1.0, LARGEST / (1.0 - local));
        let native = lognormal(random, 20f64.ln(), 0.8).clamp(4.0, 120.0);
        let cores = 1 + random.index(4) as u32;
        let minutes = native * slowdowns[at];
        Job { program, local: memory * local, far: memory * (1.0 - local), cores, minutes, work: memory * native }
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
    begun: u32,
}

/// A cluster while it is simulated.
struct Cluster<'a> {
    policy: Policy,
    lives: &'a [Life],
    hosts: usize,
    running: Vec<Running>,
    waiting: Vec<Job>,
    calendar: Calendar,
    now: u32,
}

/// A cluster of so many hosts, for ten hours. There are always jobs that wait.
pub fn simulate(policy: Policy, programs: &[Program], lives: &[Life], hosts: usize, seed: u64) -> Outcome {
    let mut random = Random::nth(seed, 1);
    let waiting = (0..AHEAD).map(|_| Job::draw(&mut random, programs)).collect();
    let calendar = Calendar::new(policy, hosts);
    let mut cluster = Cluster { policy, lives, hosts, running: Vec::new(), waiting, calendar, now: 0 };
    let (mut outcome, mut counted) = (Outcome::default(), 0);
    for minute in 0..MINUTES {
        cluster.now = minute;
        let (ended, work) = cluster.end_jobs();
        while let Some((place, host)) = cluster.admissible() {
            cluster.admit(place, host);
            cluster.waiting.push(Job::draw(&mut random, programs));
        }
        if minute >= WARM {
            let (live, held) = cluster.used();
            outcome.live += live / (SHARE * hosts as f64);
            outcome.of_held += live / held.max(f64::MIN_POSITIVE);
            outcome.jobs += ended as f64;
            outcome.work += work;
            counted += 1;
        }
    }
    outcome.live /= f64::from(counted);
    outcome.of_held /= f64::from(counted);
    outcome
}

impl Cluster<'_> {
    fn life(&self, job: &Job) -> &Life {
        &self.lives[job.program]
    }

    fn progress(&self, running: &Running) -> f64 {
        f64::from(self.now - running.begun) / running.job.minutes
    }

    /// Jobs that are done leave. How many, and their work.
    fn end_jobs(&mut self) -> (usize, f64) {
        let (now, before) = (self.now, self.running.len());
        let mut work = 0.0;
        self.running.retain(|one| {
            let is_done = f64::from(now - one.begun) >= one.job.minutes;
            work += if is_done { one.job.work } else { 0.0 };
            !is_done
        });
        (before - self.running.len(), work)
    }

    /// GiB that each host's jobs hold.
    fn held(&self) -> Vec<f64> {
        let mut held = vec![0.0; self.hosts];
        for running in &self.running {
            let job = &running.job;
            held[running.host] += self.policy.held(self.life(job), job.far, self.progress(running));
        }
        held.into_iter().map(|gib| self.policy.of_host(gib)).collect()
    }

    /// The first job that can be admitted, and the host with the most RAM among those that can.
    fn admissible(&self) -> Option<(usize, usize)> {
        let (mut ram, mut cores) = (vec![RAM; self.hosts], vec![CORES; self.hosts]);
        let mut far = vec![0.0; self.hosts];
        for running in &self.running {
            let Running { job, host, .. } = running;
            ram[*host] -= job.local;
            cores[*host] -= job.cores;
            far[*host] += self.policy.most(self.life(job), job.far, self.progress(running));
        }
        let pool: f64 = far.iter().map(|&gib| self.policy.of_host(gib)).sum();
        let mut hosts: Vec<usize> = (0..self.hosts).collect();
        hosts.sort_by(|&a, &b| ram[b].total_cmp(&ram[a]));
        self.waiting.iter().enumerate().find_map(|(place, job)| {
            let has_far = |host: usize| {
                if self.policy.rule == Rule::Booked {
                    return self.has_time_for(job, host);
                }
                let with = self.policy.of_host(far[host] + self.policy.most(self.life(job), job.far, 0.0));
                match self.policy.pool {
                    true => pool - self.policy.of_host(far[host]) + with <= SHARE * self.hosts as f64,
                    false => with <= SHARE,
                }
            };
            let fits = |host: &usize| ram[*host] >= job.local && cores[*host] >= job.cores && has_far(*host);
            Some((place, hosts.iter().copied().find(fits)?))
        })
    }

    /// Whether what a job will hold can be booked at every minute.
    fn has_time_for(&self, job: &Job, host: usize) -> bool {
        let life = self.life(job);
        self.calendar.has_room(host, self.now, self.now + job.minutes.ceil() as u32, |minute| {
            job.far * life.held(self.policy.grain, f64::from(minute - self.now) / job.minutes)
        })
    }

    fn admit(&mut self, place: usize, host: usize) {
        let job = self.waiting.remove(place);
        if self.policy.rule == Rule::Booked {
            let (begun, grain, life) = (self.now, self.policy.grain, &self.lives[job.program]);
            let gib = |minute: u32| job.far * life.held(grain, f64::from(minute - begun) / job.minutes);
            self.calendar.add(host, begun, begun + job.minutes.ceil() as u32, gib);
        }
        self.running.push(Running { job, host, begun: self.now });
    }

    /// GiB of far memory that are live, and that are held.
    fn used(&self) -> (f64, f64) {
        let of = |running: &Running| running.job.far * self.life(&running.job).live(self.progress(running));
        let held = match self.policy.pool {
            // A share is held whether it is used or not.
            false => SHARE * self.hosts as f64,
            true => self.held().iter().sum(),
        };
        (self.running.iter().map(of).sum(), held)
    }
}
