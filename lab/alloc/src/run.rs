//! One allocator, one size, so many clients: the workload of the papers, under the ledger.
//!
//! ```text
//!   fill to 70 % or as told (takes no time, nobody interferes)
//!   each round:  every client frees half of what it has, at random ─ recount ─ a second ─
//!                every client allocates as much again             ─ recount ─ a second
//! ```
//!
//! Between the phases a second passes, as in the published benchmark, in which the node does what it does beside its
//! clients. Clients ask without a pause, each for one thing at a time. Every grant and every release is checked when it happens.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use anyhow::{Result, anyhow};
use serde::Serialize;

use crate::allocators::{Allocator, Client, OldKeys, ask};
use crate::ledger::{CHUNK, Grant, Ledger};
use crate::sim::clock::{Nanos, World};
use crate::sim::node::{Busy, Node};
use crate::tally::{Before, Operation, Tally, sum};

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Chunks of the pool.
    pub chunks: u32,
    /// Size asked for: 4 KiB << order.
    pub order: u8,
    /// Clients.
    pub clients: u32,
    /// Of one host.
    pub per_host: u32,
    /// How full the pool is at first.
    pub fill: f64,
    /// Rounds of freeing half and allocating again.
    pub rounds: u32,
    /// Draws which, and everything else.
    pub seed: u64,
}

impl Load {
    /// Hosts.
    pub fn hosts(&self) -> u32 {
        self.clients.div_ceil(self.per_host)
    }
}

/// What came out.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Allocations, of all rounds.
    pub allocations: Operation,
    /// Frees.
    pub frees: Operation,
    /// The fill's, which takes no time and meets nobody: its counts.
    pub fill: Operation,
    /// The most attempts for one piece while the pool was filled up to the first refusal.
    pub exhausting: u64,
    /// Bytes of metadata for each byte of the pool.
    pub metadata: f64,
    /// How long old keys worked: mean and longest, ns; `None` for ever.
    pub old_key: Option<(Nanos, Nanos)>,
    /// What the core did, pauses included.
    pub busy: Busy,
    /// Share of the core that goes on while nobody asks for anything, for 100 GiB of memory.
    pub standing: f64,
    /// Of the bytes that others could not have had after half had been given back, how many clients really held.
    pub utilisation: f64,
    /// Share of the pool that clients held when, after the churn, an allocation of this size was first refused.
    pub full_at: f64,
}

/// Everything of one run.
pub struct Bench<A> {
    /// Virtual time.
    pub world: Rc<World>,
    /// The node.
    pub node: Rc<Node>,
    /// The allocator.
    pub allocator: Rc<A>,
    /// The judge.
    pub ledger: Rc<Ledger>,
    clients: Vec<Rc<Client>>,
    held: Vec<Rc<RefCell<Vec<Grant>>>>,
    fault: Rc<RefCell<Option<String>>>,
    load: Load,
}

/// What clients do in a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Each frees half of what it has.
    FreeHalf,
    /// Each allocates until it has as many as it had.
    Refill(Vec<usize>),
    /// Each allocates until somebody is refused.
    UntilRefused,
}

/// Between phases.
const PAUSE: Nanos = 1_000_000_000;

impl<A: Allocator> Bench<A> {
    /// Clients of this allocator on this node.
    pub fn new(node: &Rc<Node>, allocator: Rc<A>, load: Load) -> Bench<A> {
        let client = |id| Rc::new(Client::new(id, id / load.per_host, node, load.seed));
        Bench {
            world: node.world.clone(),
            node: node.clone(),
            allocator,
            ledger: Rc::new(Ledger::new(load.chunks)),
            clients: (0..load.clients).map(client).collect(),
            held: (0..load.clients).map(|_| Rc::default()).collect(),
            fault: Rc::default(),
            load,
        }
    }

    /// Its clients.
    pub fn clients(&self) -> &[Rc<Client>] {
        &self.clients
    }

    /// Fills the pool to `share`, in no time: clients take turns.
    ///
    /// # Errors
    /// What the ledger says; a pool that refuses before it is so full.
    pub fn fill(&self, share: f64) -> Result<Operation> {
        let verbs = self.node.verbs();
        self.world.set_instant(true);
        let units = (f64::from(self.load.chunks >> self.load.order) * share) as usize;
        for n in 0..units {
            let at = n % self.clients.len();
            let (client, held) = (&self.clients[at], &self.held[at]);
            let grant = self.world.at_once(self.allocator.allocate(client, self.load.order));
            let grant = grant.ok_or_else(|| anyhow!("the pool refuses when {n} of {units} are out"))?;
            self.ledger.grant(client.id, grant).map_err(|fault| anyhow!(fault))?;
            held.borrow_mut().push(grant);
        }
        for client in &self.clients {
            (_, _) = (client.link.take(), client.attempts.take());
        }
        self.allocator.dearest();
        self.world.set_instant(false);
        Ok(Operation { count: units as u64, verbs: self.node.verbs() - verbs, ..Operation::default() })
    }

    /// Lets every client do its part, and checks.
    ///
    /// # Errors
    /// What the ledger says; a refusal.
    pub fn phase(&self, phase: Phase) -> Result<Operation> {
        self.each(phase, |_| true)
    }

    fn each(&self, phase: Phase, who: impl Fn(&Client) -> bool) -> Result<Operation> {
        let refused = Rc::new(Cell::new(false));
        let tally: Rc<Tally> = Rc::default();
        let before = Before::of(&self.node);
        for (client, held) in self.clients.iter().zip(&self.held).filter(|(client, _)| who(client)) {
            let (client, held, tally) = (client.clone(), held.clone(), tally.clone());
            let (world, allocator) = (self.world.clone(), self.allocator.clone());
            let (ledger, fault, order) = (self.ledger.clone(), self.fault.clone(), self.load.order);
            let (refused, may_be_refused) = (refused.clone(), phase == Phase::UntilRefused);
            let freeing = phase == Phase::FreeHalf;
            let count = match &phase {
                Phase::FreeHalf => held.borrow().len() / 2,
                Phase::UntilRefused => usize::MAX,
                Phase::Refill(had) => had[client.id as usize] - held.borrow().len(),
            };
            if freeing {
                client.random.shuffle(&mut held.borrow_mut());
            }
            self.world.client(async move {
                for _ in 0..count {
                    if fault.borrow().is_some() || refused.get() {
                        return;
                    }
                    let start = world.now();
                    let checked = if freeing {
                        let grant = held.borrow_mut().pop().expect("half of what it has");
                        let checked = ledger.release(client.id, grant);
                        if checked.is_ok() {
                            allocator.free(&client, grant).await;
                        }
                        checked
                    } else {
                        match ask(&allocator, &world, &client, order, false).await {
                            Some(grant) => {
                                held.borrow_mut().push(grant);
                                ledger.grant(client.id, grant)
                            }
                            None if may_be_refused => return refused.set(true),
                            None => {
                                Err(format!("client {} is refused with {} MiB held", client.id, ledger.held() >> 20))
                            }
                        }
                    };
                    tally.count(&client, world.now() - start);
                    if let Err(found) = checked {
                        fault.borrow_mut().get_or_insert(found);
                    }
                }
            });
        }
        self.world.run();
        self.check(true)?;
        tally.took(self.allocator.dearest());
        Ok(tally.operation(&self.node, before))
    }

    /// Compares the ledger with the words.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, at_rest: bool) -> Result<crate::ledger::Census> {
        if let Some(fault) = self.fault.borrow().as_ref() {
            return Err(anyhow!("{fault}"));
        }
        let per_host = self.load.per_host;
        self.node.local(|words| {
            let standing = self.allocator.survey(words);
            self.ledger.compare(standing, |client| client / per_host, at_rest).map_err(|fault| anyhow!(fault))
        })
    }

    /// Compares the ledger with the words at every `nth` change of one: for tests, at the cost of a recount each time.
    pub fn watch(&self, nth: u64) {
        let (allocator, ledger, fault) = (self.allocator.clone(), self.ledger.clone(), self.fault.clone());
        let (per_host, changes) = (self.load.per_host, Cell::new(0));
        self.node.watch(move |words| {
            changes.set(changes.get() + 1);
            if changes.get() % nth != 0 {
                return;
            }
            if let Err(found) = ledger.compare(allocator.survey(words), |client| client / per_host, false) {
                fault.borrow_mut().get_or_insert(found);
            }
        });
    }

    /// What the core does in a second in which nobody asks for anything and all that was left over is done.
    fn idle(&self) -> Busy {
        let mut before = self.node.busy();
        let mut least = None;
        // What is left over takes some time; a second with less of it than the one before is not idle yet.
        for _ in 0..1000 {
            self.world.run_until(self.world.now() + PAUSE);
            let idle = self.node.busy() - before;
            before = self.node.busy();
            if least == Some(idle) {
                break;
            }
            least = Some(idle);
        }
        least.unwrap_or_default()
    }

    /// After the churn: every other host gives back half of what it has, and the others allocate until one is refused.
    /// The share of the pool that is then held, and the
    /// most attempts that one piece took. (A single host allocates for itself.)
    ///
    /// # Errors
    /// What the ledger says.
    pub fn exhaust(&self) -> Result<(f64, u64)> {
        let giving = |client: &Client| client.host % 2 == 1;
        self.each(Phase::FreeHalf, giving)?;
        self.world.run_until(self.world.now() + PAUSE);
        let taken = self.each(Phase::UntilRefused, |client| !giving(client))?;
        Ok((self.ledger.held() as f64 / (u64::from(self.load.chunks) * CHUNK) as f64, taken.attempts_max))
    }

    /// The whole workload.
    ///
    /// # Errors
    /// What the ledger says; a pool that refuses.
    pub fn run(&self) -> Result<Outcome> {
        let fill = self.fill(self.load.fill)?;
        self.check(true)?;
        self.allocator.start();
        let (mut allocations, mut frees) = (Vec::new(), Vec::new());
        let mut utilisation = 1.0;
        let before = self.node.busy();
        for _ in 0..self.load.rounds {
            let had: Vec<usize> = self.held.iter().map(|held| held.borrow().len()).collect();
            frees.push(self.phase(Phase::FreeHalf)?);
            self.world.run_until(self.world.now() + PAUSE);
            let census = self.check(true)?;
            utilisation = census.held as f64 / (census.held + census.reserved).max(1) as f64;
            allocations.push(self.phase(Phase::Refill(had))?);
            self.world.run_until(self.world.now() + PAUSE);
        }
        let busy = self.node.busy() - before;
        let idle = self.idle();
        let pool = u64::from(self.load.chunks) * CHUNK;
        let standing = (idle.isolation + idle.draining) as f64 / PAUSE as f64 * (100u64 << 30) as f64 / pool as f64;
        let old_key = match self.allocator.old_keys() {
            OldKeys::Dead => Some((0, 0)),
            OldKeys::Until(mean, longest) => Some((mean, longest)),
            OldKeys::ForEver => None,
        };
        let (full_at, exhausting) = self.exhaust()?;
        Ok(Outcome {
            allocations: sum(allocations),
            frees: sum(frees),
            fill,
            exhausting,
            metadata: self.allocator.metadata_bytes() as f64 / (u64::from(self.load.chunks) * CHUNK) as f64,
            old_key,
            busy,
            standing,
            utilisation,
            full_at,
        })
    }
}

impl<A> Drop for Bench<A> {
    fn drop(&mut self) {
        self.world.end();
    }
}
