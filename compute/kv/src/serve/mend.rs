//! Finds a spare node in place of one of two that has ended, makes a region there, and connects to
//! it. [`crate::shard::mend`] then fills it.
//!
//! Connecting may take seconds, so a thread does it. Any front end with a spare begins an attempt;
//! all others read in the survivor's head where the new node is. An attempt's number stands in the
//! region of the new node, too. A front end that finds another number there does not take part, so
//! two that begin at once only undo each other's attempt.

use super::background::Ended;
use super::connect::builder;
use super::open::Config;
use super::schedule::Schedule;
use crate::drive::Drive;
use crate::layout::Stage;
use crate::shard::Shard;
use crate::shard::copies::{Copies, Mode, on};
use crate::task::Io;
use farmem::{Addr, Memory};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Which of a region's root words has the number of the attempt that has filled the node.
pub(crate) const ATTEMPT_WORD: u64 = 63;
/// Where a region's identity is at each node: slab 1, offset 4096, as [`farmem::Builder`] writes
/// it.
const IDENTITY: u64 = 1 << 26 | 4096;
/// How long a spare node may take to answer.
const ANSWER: Duration = Duration::from_secs(2);
/// Between attempts.
const RETRY: Duration = Duration::from_secs(5);
/// From the sight of an end to the first attempt; and the difference from one member's line to the
/// next one's.
const FIRST: Duration = Duration::from_secs(1);
const STAGGER: Duration = Duration::from_millis(300);
/// Between looks whether all members have done their part.
const ASK: Duration = Duration::from_millis(20);
/// A front end that waits longer than this for a pause to end gives the attempt up.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// A task of the filling has ended.
#[derive(Debug)]
pub enum Step {
    /// The identity of the survivor's region, and the new node's address.
    Asked(u64, Option<String>),
    /// An attempt was begun, or another front end was first.
    Begun(bool),
    /// This front end's part has ended.
    Filled,
    /// It was tried to end the filling, or to give it up.
    Turned,
}

/// A connection that a thread makes.
#[derive(Debug)]
struct Job {
    from: Receiver<Result<Memory, String>>,
    address: String,
    attempt: u64,
    /// It begins the attempt, rather than joins it.
    begins: bool,
}

#[derive(Debug)]
struct State {
    shard: Rc<Shard>,
    job: Option<Job>,
    /// A task of the filling is under way, other than this front end's part.
    busy: bool,
    filling: bool,
    /// The attempt whose node is reached.
    attached: Option<(u64, String)>,
    next: Instant,
    /// Since when the shard has one node only.
    alone: Option<Instant>,
    paused: Option<Instant>,
    /// Spares that were tried.
    tried: usize,
    /// The last reason why a spare was of no use.
    told: String,
}

/// See the module.
#[derive(Debug)]
pub struct Mender {
    config: Config,
    /// By which nodes know this process.
    run: [u8; 16],
    shards: Vec<State>,
}

impl Mender {
    /// Of a store's shards.
    pub fn new(config: &Config, run: [u8; 16], shards: &[Rc<Shard>], now: Instant) -> Mender {
        let state = |shard: &Rc<Shard>| State {
            shard: Rc::clone(shard),
            job: None,
            busy: false,
            filling: false,
            attached: None,
            next: now,
            alone: None,
            paused: None,
            tried: 0,
            told: String::new(),
        };
        Mender { config: config.clone(), run, shards: shards.iter().map(state).collect() }
    }

    /// Begins what is due.
    pub fn look(&mut self, now: Instant, drive: &mut Drive, tasks: &mut Schedule<Ended>) {
        for (n, state) in self.shards.iter_mut().enumerate() {
            match state.shard.reach.copies.mode() {
                Mode::Alone(stays) => {
                    if state.alone.is_none() {
                        drive.leave(Copies::other(stays));
                    }
                    state.look_alone(&self.config, n, stays, now, drive, tasks);
                }
                Mode::Mending(_) => {
                    if let (Some(_), Some((_, address))) = (state.alone.take(), &state.attached) {
                        let name = &self.config.name;
                        eprintln!("farmem: store {name}: node {address} is being filled with the second copy");
                    }
                    state.look_mending(n, now, tasks);
                }
                Mode::Both(second) => {
                    state.alone = None;
                    state.paused = None;
                    if let Some((_, address)) = state.attached.take() {
                        let [first, other] = [state.shard.reach.node, second];
                        drive.complete(first);
                        drive.complete(other);
                        state.shard.reach.nodes.replace([first, other].map(|node| drive.node(node).to_owned()));
                        let name = &self.config.name;
                        eprintln!("farmem: store {name}: node {address} is filled; each key is at two nodes again");
                    }
                }
                Mode::Single => {}
            }
        }
    }

    /// Whether there is anything to look after soon.
    pub fn is_active(&self) -> bool {
        self.shards.iter().any(|state| match state.shard.reach.copies.mode() {
            Mode::Alone(_) => state.job.is_some() || state.attached.is_some() || !self.config.spares.is_empty(),
            Mode::Mending(_) => true,
            _ => state.attached.is_some(),
        })
    }

    /// A task has ended.
    pub fn ended(&mut self, n: usize, step: Step, now: Instant) {
        let state = &mut self.shards[n];
        match step {
            Step::Filled => state.filling = false,
            Step::Turned => (state.busy, state.next) = (false, now + ASK),
            Step::Begun(begun) => {
                state.busy = false;
                if !begun {
                    (state.attached, state.next) = (None, now + RETRY);
                }
            }
            Step::Asked(identity, address) => {
                state.busy = false;
                let pair = state.shard.reach.copies.pair();
                let run = self.run;
                match pair.stage() {
                    Stage::Mending => {
                        let Some(address) = address else { return };
                        state.connect(&self.config, run, address, pair.attempt(), None);
                    }
                    _ => {
                        let Some(spare) = self.config.spares.get(state.tried % self.config.spares.len().max(1)) else {
                            return;
                        };
                        state.tried += 1;
                        // Not 0, which says that a node was never filled.
                        let attempt = super::open::random().map_or(1, |random| random >> 9 | 1);
                        let number = u64::from(Copies::other(match state.shard.reach.copies.mode() {
                            Mode::Alone(stays) => stays,
                            _ => return,
                        }));
                        let identity = identity & !0xff | number;
                        state.connect(&self.config, run, spare.clone(), attempt, Some(identity));
                    }
                }
            }
        }
    }
}

impl State {
    /// Goes on while one node alone has the shard: begins an attempt, or takes part in one.
    fn look_alone(
        &mut self,
        config: &Config,
        n: usize,
        stays: u8,
        now: Instant,
        drive: &mut Drive,
        tasks: &mut Schedule<Ended>,
    ) {
        let pair = self.shard.reach.copies.pair();
        let stagger = STAGGER * u32::from(self.shard.reach.me.line);
        if self.alone.is_none() {
            (self.alone, self.next) = (Some(now), now + FIRST + stagger);
        }
        if let Some(job) = &self.job {
            match job.from.try_recv() {
                Err(TryRecvError::Empty) => return,
                Ok(Ok(memory)) => {
                    if drive.attach(Copies::other(stays), memory, false).is_err() {
                        self.next = now + RETRY + stagger;
                        self.job = None;
                        return;
                    }
                    // It may be reached in another way than the one before.
                    let first = self.shard.reach.node;
                    self.shard.reach.copies.proven([first, Copies::other(first)].map(|node| drive.proves_ends(node)));
                    let (begins, attempt, address) = (job.begins, job.attempt, job.address.clone());
                    self.attached = Some((attempt, address.clone()));
                    if begins {
                        self.busy = true;
                        let shard = Rc::clone(&self.shard);
                        tasks.begin(|io| async move {
                            Ended::Mend(n, Step::Begun(shard.mend.begin_mending(&io, &address, attempt).await))
                        });
                    }
                }
                Ok(Err(reason)) if reason != self.told => {
                    eprintln!("farmem: store {}: node {} takes no copies: {reason}", config.name, job.address);
                    (self.told, self.next) = (reason, now + RETRY + stagger);
                }
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => self.next = now + RETRY + stagger,
            }
            self.job = None;
            return;
        }
        if self.busy || self.filling {
            return;
        }
        match (&self.attached, pair.stage()) {
            (Some((attempt, _)), Stage::Mending) if *attempt == pair.attempt() => {
                self.filling = true;
                let shard = Rc::clone(&self.shard);
                tasks.begin(|io| async move {
                    shard.mend.mend(&io, pair).await;
                    Ended::Mend(n, Step::Filled)
                });
            }
            // Begun here, and not seen by a tick yet.
            (Some(_), Stage::Alone) if now < self.next + RETRY => {}
            (Some(_), _) => {
                self.attached = None;
                drive.detach(Copies::other(stays));
                self.next = now + RETRY + stagger;
            }
            (None, stage) => {
                let begins = stage == Stage::Alone && !config.spares.is_empty();
                if now >= self.next && (begins || stage == Stage::Mending) {
                    self.ask(n, stays, tasks);
                }
            }
        }
    }

    /// Asks for what a connection to the new node needs.
    fn ask(&mut self, n: usize, stays: u8, tasks: &mut Schedule<Ended>) {
        self.busy = true;
        let shard = Rc::clone(&self.shard);
        tasks.begin(|io: Io| async move {
            let identity = crate::layout::word(&io.read(on(stays, IDENTITY), 8).await, 0);
            let address = shard.mend.spare(&io).await;
            Ended::Mend(n, Step::Asked(identity, address))
        });
    }

    /// Takes part, and tries to end it.
    fn look_mending(&mut self, n: usize, now: Instant, tasks: &mut Schedule<Ended>) {
        let paused = self.shard.reach.copies.is_paused();
        self.paused = if paused { self.paused.or(Some(now)) } else { None };
        if self.busy || now < self.next {
            return;
        }
        let late = self.paused.is_some_and(|since| now.duration_since(since) > LONGEST_PAUSE);
        let over = self.shard.reach.copies.has_failed() || late;
        if paused && !over {
            return;
        }
        self.busy = true;
        let shard = Rc::clone(&self.shard);
        tasks.begin(|io| async move {
            match over {
                true => shard.mend.give_up(&io).await,
                false => drop(shard.mend.finish_mending(&io).await),
            }
            Ended::Mend(n, Step::Turned)
        });
    }

    /// Has a thread connect to the new node. `identity`: of the region that it makes there first.
    fn connect(&mut self, config: &Config, run: [u8; 16], address: String, attempt: u64, identity: Option<u64>) {
        let (tell, from) = channel();
        let (config, at) = (config.clone(), address.clone());
        let work = move || {
            let made = match identity {
                Some(identity) => make(&config, &at, attempt, identity),
                None => Ok(()),
            };
            // The receiver may be gone.
            let _ = tell.send(made.and_then(|()| open(&config, run, &at, attempt, ANSWER)).map_err(|e| e.to_string()));
        };
        if std::thread::Builder::new().name("mend".into()).spawn(work).is_ok() {
            self.job = Some(Job { from, address, attempt, begins: identity.is_some() });
        }
    }
}

/// Makes an empty region of the store's name at a spare node.
fn make(config: &Config, address: &str, attempt: u64, identity: u64) -> Result<(), farmem::Error> {
    // Under a name of its own: its end is not to end what is connected to later.
    let random = [0, 1].map(|_| super::open::random().unwrap_or_default().to_le_bytes()).concat();
    let run = <[u8; 16]>::try_from(random).unwrap_or_default();
    let node = || builder(config, ANSWER, run).node(address);
    if node().regions()?.iter().any(|region| region.name == config.name) {
        // An attempt that was given up has left it, or it is another part of the store.
        let memory = node().partial(true).connect()?;
        let (found, attempt) = (memory.load(at(IDENTITY))?, memory.load(memory.root(ATTEMPT_WORD as usize))?);
        if found != identity || attempt == 0 {
            return Err(farmem::Error::Foreign {
                region: config.name.clone(),
                node: address.to_owned(),
                reason: "it has a region of this name already: name another spare node".to_owned(),
            });
        }
        drop(memory);
        node().remove_region(&config.name)?;
    }
    let memory = node().create(true).connect()?;
    memory.store(memory.root(ATTEMPT_WORD as usize), attempt)?;
    memory.store(at(IDENTITY), identity)
}

/// Opens the region of an attempt at its node.
///
/// # Errors
/// It is not there, or another attempt's.
pub(crate) fn open(
    config: &Config,
    run: [u8; 16],
    address: &str,
    attempt: u64,
    timeout: Duration,
) -> Result<Memory, farmem::Error> {
    let memory = builder(config, timeout, run).node(address).partial(true).connect()?;
    if memory.load(memory.root(ATTEMPT_WORD as usize))? == attempt {
        return Ok(memory);
    }
    Err(farmem::Error::Foreign {
        region: config.name.clone(),
        node: address.to_owned(),
        reason: "another front end has begun to fill it".to_owned(),
    })
}

fn at(word: u64) -> Addr {
    Addr::from_bits(word).unwrap_or(Addr::NULL)
}
