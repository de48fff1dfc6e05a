//! Requests of real allocators: the traces that FineMem's authors publish.
//!
//! One file for each pair of allocator and program: a line for each request of its slow path, arrival in µs and order
//! (4 KiB << order). Every file is a tenant, a host of 16 clients among whom its requests are dealt in turn; all run at
//! once, and requests come when they came then (a client that is late asks when it is free).
//!
//! No frees are recorded. Two assumptions bound the truth:
//!
//! * *kept*: nothing is given back before the tenant's end;
//! * *quarter*: a client holds at most a quarter of what it asks for in all, and gives back a piece of its own at random
//!   when it has more.
//!
//! At a tenant's end it gives everything back. **Utilisation** is bytes that clients asked for and hold, over bytes that nobody else
//! could have had, both integrated over time; a *static* grant is as many whole GiB as the tenant's peak needs, from its
//! first request to its end.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Serialize;

use crate::allocators::{Allocator, ask};
use crate::ledger::{CHUNK, Ledger};
use crate::run::{Bench, Load};
use crate::sim::clock::Nanos;
use crate::sim::costs::{Costs, us};
use crate::systems::{System, With};
use crate::tally::{Before, Operation, Tally};

/// Threads of a tenant.
pub const THREADS: u32 = 16;
/// A request that takes so long waits for memory: of farmem and FineMem, which go through the tight pool, verbs take less.
/// (farmem's waits for one look of its node's drop out by it.)
const WAITS: Nanos = 1_000_000;
/// Between looks at how full the pool is.
const LOOK: Nanos = 250_000_000;

/// One tenant's requests: arrival in ns, order.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The file's.
    pub name: String,
    requests: Vec<(Nanos, u8)>,
}

impl Trace {
    /// Reads a trace's text.
    fn parse(name: &str, text: &str) -> Result<Trace> {
        let mut requests = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let wrong = || anyhow!("{name}, line {}: two numbers are needed, µs and order 0 to 9", at + 1);
            let (time, order) = line.split_once(' ').ok_or_else(wrong)?;
            let time: u64 = time.parse().map_err(|_| wrong())?;
            let order: u8 = order.trim().parse().ok().filter(|&order| order <= 9).ok_or_else(wrong)?;
            requests.push((time.checked_mul(1000).ok_or_else(wrong)?, order));
        }
        requests.sort_unstable();
        Ok(Trace { name: name.to_owned(), requests })
    }

    /// Every trace of a folder: files named `trace…`, through gzip if they end in `.gz`.
    ///
    /// # Errors
    /// A folder without any; a file that is none.
    pub fn open_all(folder: &Path) -> Result<Vec<Trace>> {
        let entries = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
        let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("trace")));
        paths.sort();
        ensure!(!paths.is_empty(), "{} has no files named trace…", folder.display());
        paths.iter().map(|path| Trace::open(path)).collect()
    }

    fn open(path: &Path) -> Result<Trace> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = if name.ends_with(".gz") {
            let out = Command::new("gzip").arg("-dc").arg("--").arg(path).output().context("starting gzip")?;
            if !out.status.success() {
                bail!("gzip cannot read {}: {}", path.display(), String::from_utf8_lossy(&out.stderr).trim());
            }
            String::from_utf8(out.stdout).with_context(|| format!("{name} is no text"))?
        } else {
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?
        };
        Trace::parse(&name, &text)
    }

    fn bytes(&self) -> u64 {
        self.requests.iter().map(|&(_, order)| 4096 << order).sum()
    }

    fn of_client(&self, client: u32) -> Vec<(Nanos, u8)> {
        self.requests.iter().copied().skip(client as usize).step_by(THREADS as usize).collect()
    }
}

/// What is kept of what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lifetime {
    /// All.
    Kept,
    /// A quarter.
    Quarter,
}

/// What came out.
#[derive(Clone, Debug, Serialize)]
pub struct Replay {
    /// Which system.
    pub system: System,
    /// What was given back.
    pub lifetime: Lifetime,
    /// All tenants' allocations.
    pub allocations: Operation,
    /// Requests that were not served: a client that is refused asks for nothing more.
    pub unserved: u64,
    /// Clients that were refused.
    pub refused: u32,
    /// Bytes of the pool.
    pub pool: u64,
    /// The most that clients held at once.
    pub peak: u64,
    /// Whether the pool was made for what clients held at most, and no more ([`tight`]).
    pub is_tight: bool,
    /// What clients held when the first of them was.
    pub first_refused: Option<Refused>,
    /// Bytes that clients asked for and hold over bytes that nobody else could have had, over time.
    pub utilisation: f64,
    /// The same over these and what an old key still reaches: bytes that nobody else could have had to himself.
    pub guarded_utilisation: f64,
    /// Of the bytes that nobody else could have had, the shares that no client held, by why ([`Kept`](crate::ledger::Kept)).
    pub kept: [f64; 4],
    /// Of the pool, what clients held while requests waited, each for as long as it did; `None`: none did. Memory that
    /// waits to be made clean while nobody asks for any is no loss here, and what a system keeps from those who ask is.
    pub wanted: Option<f64>,
    /// The same of static grants of whole GiB.
    pub static_utilisation: f64,
}

/// A pool that refuses.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Refused {
    /// The size asked for: 4 KiB << order.
    pub order: u8,
    /// Bytes that clients held.
    pub held: u64,
    /// Of a pool of so many.
    pub pool: u64,
    /// Clients that had been served before.
    pub clients: u32,
}

/// A pool that has all that clients will hold at once, which another replay found, a twentieth more, and what is
/// missing to a whole GiB: who wastes nothing serves everybody from it.
pub fn tight(replay: &Replay) -> u64 {
    (replay.peak / 20 * 21).next_multiple_of(1 << 30)
}

/// Runs all traces at once on one system, in a pool of so many bytes; else one that is never short.
///
/// # Errors
/// What the ledger found; a pool that refuses.
pub fn replay(
    traces: &[Trace],
    system: System,
    (lifetime, tight): (Lifetime, Option<u64>),
    seed: u64,
    costs: &Costs,
) -> Result<Replay> {
    let asked: u64 = traces.iter().map(Trace::bytes).sum();
    let most = if lifetime == Lifetime::Kept { asked } else { asked / 2 };
    let pool = tight.unwrap_or_else(|| (most + (4 << 30)).next_multiple_of(1 << 30));
    let clients = traces.len() as u32 * THREADS;
    let load = Load { chunks: (pool / 4096) as u32, order: 9, clients, per_host: THREADS, rounds: 1, fill: 0.0, seed };
    system.with(load, costs, Player { traces, system, lifetime, is_tight: tight.is_some() })
}

struct Player<'a> {
    traces: &'a [Trace],
    system: System,
    lifetime: Lifetime,
    is_tight: bool,
}

/// A tenant's bytes over time.
#[derive(Clone, Copy, Default)]
struct Tenant {
    held: u64,
    peak: u64,
    since: Nanos,
    held_time: f64,
    ended: Nanos,
    left: u32,
}

impl Tenant {
    fn change(&mut self, now: Nanos, by: i64) {
        self.held_time += self.held as f64 * (now - self.since) as f64;
        self.since = now;
        self.held = self.held.saturating_add_signed(by);
        self.peak = self.peak.max(self.held);
    }
}

/// How much of the pool clients held while requests waited.
#[derive(Clone, Copy, Default)]
struct Wanted {
    held: Tenant,
    /// All requests' waits together, ns, and bytes held over each of them.
    waited: f64,
    meanwhile: f64,
}

impl Wanted {
    /// Bytes held over time, up to now.
    fn area(&self, now: Nanos) -> f64 {
        self.held.held_time + self.held.held as f64 * (now - self.held.since) as f64
    }

    /// A request that began when [`Wanted::area`] was this has ended.
    fn ends(&mut self, (start, area): (Nanos, f64), now: Nanos) {
        if now - start > WAITS {
            self.waited += (now - start) as f64;
            self.meanwhile += self.area(now) - area;
        }
    }
}

/// How often a pool refused.
#[derive(Default)]
struct Refusals {
    clients: Cell<u32>,
    requests: Cell<u64>,
    first: Cell<Option<Refused>>,
    served: Cell<u32>,
}

impl Refusals {
    fn serves(&self, is_first: bool) {
        self.served.set(self.served.get() + u32::from(is_first));
    }

    fn count(&self, order: u8, requests: usize, ledger: &Ledger) {
        self.clients.set(self.clients.get() + 1);
        self.requests.set(self.requests.get() + requests as u64);
        if self.first.get().is_none() {
            let (held, pool) = (ledger.held(), u64::from(ledger.chunks()) * CHUNK);
            self.first.set(Some(Refused { order, held, pool, clients: self.served.get() }));
        }
    }
}

impl With for Player<'_> {
    type Output = Result<Replay>;

    fn with<A: Allocator>(self, bench: Bench<A>) -> Result<Replay> {
        bench.allocator.start();
        let tenant = Tenant { left: THREADS, ..Tenant::default() };
        let tenants: Rc<RefCell<Vec<Tenant>>> = Rc::new(RefCell::new(vec![tenant; self.traces.len()]));
        let (tally, fault): (Rc<Tally>, Rc<RefCell<Option<String>>>) = Default::default();
        let refusals: Rc<Refusals> = Rc::default();
        let peak: Rc<Cell<u64>> = Rc::default();
        let wanted: Rc<RefCell<Wanted>> = Rc::default();
        for client in bench.clients() {
            let (world, allocator) = (bench.world.clone(), bench.allocator.clone());
            let (ledger, client, tenants) = (bench.ledger.clone(), client.clone(), tenants.clone());
            let waiting = wanted.clone();
            let (tally, fault, lifetime) = (tally.clone(), fault.clone(), self.lifetime);
            let (refusals, peak, wanted) = (refusals.clone(), peak.clone(), wanted.clone());
            let of = tenants.clone();
            let change = move |host: usize, now, by| {
                of.borrow_mut()[host].change(now, by);
                wanted.borrow_mut().held.change(now, by);
            };
            let trace = &self.traces[client.host as usize];
            let requests = trace.of_client(client.id % THREADS);
            let all: u64 = requests.iter().map(|&(_, order)| 4096 << order).sum();
            let limit = if lifetime == Lifetime::Kept { all } else { all / 4 };
            bench.world.client(async move {
                let host = client.host as usize;
                let mut pieces = Vec::new();
                let mut held = 0u64;
                let asked = requests.len();
                for (at, (arrival, order)) in requests.into_iter().enumerate() {
                    world.until(arrival.max(world.now())).await;
                    let start = world.now();
                    let begun = (start, waiting.borrow().area(start));
                    let granted = ask(&allocator, &world, &client, order, true).await;
                    waiting.borrow_mut().ends(begun, world.now());
                    let Some(grant) = granted else {
                        // What was waited in vain, and posted, is no allocation's.
                        (_, _) = (client.link.take(), client.attempts.take());
                        refusals.count(order, asked - at, &ledger);
                        break;
                    };
                    refusals.serves(pieces.is_empty());
                    tally.count(&client, world.now() - start);
                    if let Err(found) = ledger.grant(client.id, grant) {
                        fault.borrow_mut().get_or_insert(found);
                        break;
                    }
                    peak.set(peak.get().max(ledger.held()));
                    pieces.push((grant, order));
                    held += 4096 << order;
                    change(host, world.now(), 4096 << order);
                    while held > limit && pieces.len() > 1 {
                        let (grant, order) = pieces.swap_remove(client.random.below(pieces.len()));
                        held -= 4096 << order;
                        change(host, world.now(), -(4096 << order));
                        if let Err(found) = ledger.release(client.id, grant) {
                            fault.borrow_mut().get_or_insert(found);
                        }
                        allocator.free(&client, grant).await;
                    }
                }
                // The tenant ends when its last thread has had its last request.
                tenants.borrow_mut()[host].left -= 1;
                while tenants.borrow()[host].left > 0 {
                    world.sleep(us(1000.0)).await;
                }
                for (grant, order) in pieces {
                    change(host, world.now(), -(4096 << order));
                    if let Err(found) = ledger.release(client.id, grant) {
                        fault.borrow_mut().get_or_insert(found);
                    }
                    allocator.free(&client, grant).await;
                }
                let (mut tenants, now) = (tenants.borrow_mut(), world.now());
                tenants[host].ended = tenants[host].ended.max(now);
                // What is left of the operations' counts is the frees'.
                (_, _) = (client.link.take(), client.attempts.take());
            });
        }
        let before = Before::of(&bench.node);
        let (mut lent, mut exposed, mut looked, mut kept) = (0.0, 0.0, 0.0, [0.0; 4]);
        while bench.world.clients() > 0 {
            bench.world.run_until(bench.world.now() + LOOK);
            let census = bench.check(false)?;
            lent += ((census.held + census.reserved) * CHUNK) as f64 * LOOK as f64;
            for (sum, kept) in kept.iter_mut().zip(census.kept) {
                *sum += (kept * CHUNK) as f64 * LOOK as f64;
            }
            exposed += (census.exposed * CHUNK) as f64 * LOOK as f64;
            let held: u64 = tenants.borrow().iter().map(|tenant| tenant.held).sum();
            looked += held as f64 * LOOK as f64;
        }
        if let Some(found) = fault.borrow().as_ref() {
            return Err(anyhow!("{found}"));
        }
        bench.check(true)?;
        let tenants = tenants.borrow();
        let held: f64 = tenants.iter().map(|tenant| tenant.held_time).sum();
        let first = |trace: &Trace| trace.requests.first().map_or(0, |&(time, _)| time);
        let granted = |(tenant, trace): (&Tenant, &Trace)| {
            (tenant.peak.div_ceil(1 << 30) << 30) as f64 * tenant.ended.saturating_sub(first(trace)) as f64
        };
        let granted: f64 = tenants.iter().zip(self.traces).map(granted).sum();
        Ok(Replay {
            system: self.system,
            lifetime: self.lifetime,
            allocations: tally.operation(&bench.node, before),
            unserved: refusals.requests.get(),
            refused: refusals.clients.get(),
            pool: u64::from(bench.ledger.chunks()) * CHUNK,
            peak: peak.get(),
            is_tight: self.is_tight,
            first_refused: refusals.first.get(),
            utilisation: looked / f64::max(lent, 1.0),
            guarded_utilisation: looked / f64::max(lent + exposed, 1.0),
            kept: kept.map(|kept| kept / f64::max(lent, 1.0)),
            wanted: {
                let (wanted, pool) = (wanted.borrow(), u64::from(bench.ledger.chunks()) * CHUNK);
                (wanted.waited > 0.0).then(|| wanted.meanwhile / wanted.waited / pool as f64)
            },
            static_utilisation: held / granted.max(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Vec<Trace> {
        let text = |seed: u64| {
            let random = crate::sim::random::Random::new(seed);
            let line = |n: u64| format!("{} {}\n", n * 50, [0, 0, 0, 2, 3, 9][random.below(6)]);
            (0..300).map(line).collect::<String>()
        };
        (0..3).map(|n| Trace::parse(&format!("trace.{n}"), &text(n)).unwrap()).collect()
    }

    #[test]
    fn every_system_serves_the_same_requests() {
        let traces = small();
        for system in System::ALL {
            for lifetime in [Lifetime::Kept, Lifetime::Quarter] {
                let replay = replay(&traces, system, (lifetime, None), 3, &Costs::shipped())
                    .unwrap_or_else(|fault| panic!("{system:?}: {fault}"));
                assert_eq!((replay.allocations.count, replay.unserved), (900, 0), "{system:?}");
                assert!(replay.static_utilisation > 0.0 && replay.static_utilisation < 1.0, "{replay:?}");
                assert!(replay.utilisation <= 1.0, "{replay:?}");
            }
        }
    }

    /// One size for all: 4 KiB take 2 MiB each, and the pool does not last. That is told, and everybody else goes on.
    #[test]
    fn a_pool_that_refuses_is_told_and_the_replay_goes_on() {
        let text: String = (0..4000).map(|n| format!("{n} 0\n")).collect();
        let traces = [Trace::parse("trace.many", &text).unwrap()];
        let replay = replay(&traces, System::Onesidedmw, (Lifetime::Kept, None), 3, &Costs::shipped()).unwrap();
        let first = replay.first_refused.expect("4 GiB of 2 MiB are 2048 pieces");
        assert_eq!((first.order, first.clients, replay.refused), (0, THREADS, THREADS), "{replay:?}");
        assert_eq!(replay.allocations.count + replay.unserved, 4000);
        assert!(first.held <= first.pool);
    }

    #[test]
    fn a_line_that_is_no_request_is_named() {
        for wrong in ["1", "1 10", "x 0", "1 -1", "99999999999999999999 0"] {
            let error = Trace::parse("trace.t", &format!("0 0\n{wrong}\n")).unwrap_err().to_string();
            assert!(error.contains("trace.t, line 2"), "{error}");
        }
    }
}
