//! `farmem-lab bench-alloc-child`: one process that claims blocks at a node and gives them back.
//!
//! ```text
//!   join, fill, check each block ─► "filled" ─► (the parent says go) ─► rounds: give half back, wait, claim as many
//!                                ─► "done"   ─► (the parent says end) ─► check each, give all back ─► figures as JSON
//! ```
//!
//! *Check*: a block that was claimed is zero (a CAS of its first word finds 0, and leaves a mark of ours); at the end
//! the mark is still there, so that nobody else had the block meanwhile; and after it was given back its key is refused.

use std::collections::HashSet;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use farmem_fabric::words::Words;
use farmem_fabric::{ConnectOptions, NodeAddr, QueuePair, Refusal, RunId, Session, Transport};
use farmem_protocol::extent::block::CHUNKS;
use farmem_protocol::extent::{
    Actor, Answer, Block, Claimant, Claimer, Failed, Grant, Level, Operation, Owner, Release, Step, Verb, Want,
};
use farmem_protocol::key::Key;
use serde::{Deserialize, Serialize};

use crate::sim::random::Random;

/// `farmem-lab bench-alloc-child …`
#[derive(clap::Args, Debug)]
pub struct Options {
    /// The node
    #[arg(long)]
    node: NodeAddr,
    /// Blocks to hold
    #[arg(long)]
    blocks: usize,
    /// Times that half of them is given back and claimed again
    #[arg(long)]
    rounds: u32,
    /// Draws which
    #[arg(long)]
    seed: u64,
}

/// What operations of one kind took.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Samples {
    /// Each, ns.
    pub ns: Vec<u64>,
    /// READs, all together.
    pub reads: u64,
    /// CAS, all together.
    pub cas: u64,
}

/// What one process measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    /// Claims of 2 MiB.
    pub claims: Samples,
    /// Releases of 2 MiB.
    pub releases: Samples,
    /// 4 KiB taken from blocks of its own: how many, and ns for all of them.
    pub chunks: (u64, u64),
    /// Claims that had to be repeated because the node had not made enough clean yet.
    pub waits: u64,
}

/// An operation whose verbs are counted.
struct Counted<'a, O> {
    operation: &'a mut O,
    samples: &'a mut Samples,
}

impl<O: Operation> Operation for Counted<'_, O> {
    type Outcome = O::Outcome;

    fn step(&mut self) -> Step<O::Outcome> {
        let step = self.operation.step();
        match step {
            Step::Verb(Verb::Read { .. }) => self.samples.reads += 1,
            Step::Verb(Verb::Cas { .. }) => self.samples.cas += 1,
            _ => {}
        }
        step
    }

    fn complete(&mut self, answer: Answer<'_>) {
        self.operation.complete(answer);
    }
}

struct Host {
    queue: QueuePair,
    words: Words,
    actor: Actor,
    claimer: Claimer,
    held: Vec<Grant>,
    marked: HashSet<Grant>,
    found: Found,
    // Its lease ends with it.
    _session: Session,
}

impl Host {
    fn join(node: &NodeAddr) -> Result<Host> {
        let pid = std::process::id();
        let run: RunId = u128::from(pid).to_le_bytes();
        let transport = if matches!(node, NodeAddr::Tcp(_)) { Transport::Tcp } else { Transport::Shm };
        let (timeout, grace) = (Duration::from_secs(30), Duration::from_secs(30));
        let session = Session::connect(
            node,
            &ConnectOptions { timeout, grace, run, pid, transport, ..ConnectOptions::default() },
        )?;
        let mut queue = session.queue_pair()?;
        let words = Words::open(&mut queue)?;
        let actor = Actor::new(Owner::new(session.owner()), Claimant::new(0));
        let claimer = Claimer::new(actor, words.geometry());
        let (held, marked, found) = Default::default();
        Ok(Host { queue, words, actor, claimer, held, marked, found, _session: session })
    }

    /// Claims a block; again, as long as the node has none clean.
    fn claim(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            self.claimer.begin(Want::one(Level::Block));
            let mut counted = Counted { operation: &mut self.claimer, samples: &mut self.found.claims };
            match self.words.run(&mut self.queue, &mut counted)? {
                Ok(grants) => break self.held.extend(grants),
                Err(Failed::NoSpace | Failed::Contended) => self.found.waits += 1,
                Err(failed) => bail!(failed),
            }
            ensure!(begun.elapsed() < Duration::from_secs(60), "the node has had no free block for a minute");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.found.claims.ns.push(begun.elapsed().as_nanos() as u64);
        Ok(())
    }

    fn release(&mut self, grant: Grant) -> Result<()> {
        let begun = Instant::now();
        let mut release = Release::new(self.actor, grant);
        let mut counted = Counted { operation: &mut release, samples: &mut self.found.releases };
        self.words.run(&mut self.queue, &mut counted)??;
        self.found.releases.ns.push(begun.elapsed().as_nanos() as u64);
        self.claimer.freed(&grant);
        Ok(())
    }

    /// CAS of a block's first word: what it found.
    fn swap(&mut self, grant: Grant, old: u64, new: u64) -> Result<Result<u64, Refusal>> {
        self.queue.cas(0, Key(grant.key().0), 0, old, new);
        self.queue.doorbell()?;
        let mut done = Vec::new();
        while done.is_empty() {
            self.queue.wait(&mut done, Duration::from_secs(1))?;
        }
        Ok(done[0].result)
    }

    fn mark(&self, grant: Grant) -> u64 {
        (u64::from(std::process::id()) << 32) | (u64::from(grant.place.index) + 1)
    }

    fn fill(&mut self, blocks: usize) -> Result<()> {
        for _ in 0..blocks {
            self.claim()?;
        }
        Ok(())
    }

    fn mark_all(&mut self) -> Result<()> {
        for grant in self.held.clone() {
            // What was claimed since is zero, though its last owner left a mark.
            let old = if self.marked.insert(grant) { 0 } else { self.mark(grant) };
            let found =
                self.swap(grant, old, self.mark(grant))?.map_err(|refused| anyhow!("our own block: {refused}"))?;
            ensure!(found == old, "{:?} was granted with {found:#x} in it", grant.place);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        for grant in std::mem::take(&mut self.held) {
            let mark = self.mark(grant);
            let found = self.swap(grant, mark, 0)?.map_err(|refused| anyhow!("our own block: {refused}"))?;
            ensure!(found == mark, "{:?}, which is ours, has {found:#x} in it", grant.place);
            self.words.run(&mut self.queue, &mut Release::new(self.actor, grant))??;
            ensure!(self.swap(grant, 0, mark)?.is_err(), "{:?} was given back, and its key still works", grant.place);
        }
        Ok(())
    }

    /// Every chunk of a block of one's own, taken and given back: no verb.
    fn chunks(&mut self, rounds: u32) -> Result<()> {
        let (begun, mut block) = (Instant::now(), Block::new());
        for _ in 0..rounds {
            let taken: Vec<u32> = std::iter::from_fn(|| block.take(std::hint::black_box(0))).collect();
            ensure!(taken.len() == CHUNKS as usize && block.take(0).is_none(), "{} chunks", taken.len());
            for chunk in taken {
                block.give(std::hint::black_box(chunk))?;
            }
        }
        let (count, ns) = &mut self.found.chunks;
        *count += u64::from(rounds * CHUNKS);
        *ns += begun.elapsed().as_nanos() as u64;
        Ok(())
    }
}

/// Says that it has come so far, and waits until the parent says to go on.
fn rendezvous(word: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{word}")?;
    std::io::stdout().flush()?;
    let mut line = String::new();
    ensure!(std::io::stdin().lock().read_line(&mut line).context("from the benchmark")? > 0, "the benchmark is gone");
    Ok(())
}

/// Runs it.
///
/// # Errors
/// A node that is lost, and memory that is not as it was granted.
pub fn run(options: &Options) -> Result<()> {
    let mut host = Host::join(&options.node)?;
    let random = Random::new(options.seed);
    host.fill(options.blocks)?;
    host.mark_all()?;
    host.found = Found::default();
    rendezvous("filled")?;
    for _ in 0..options.rounds {
        random.shuffle(&mut host.held);
        for grant in host.held.split_off(options.blocks / 2) {
            host.release(grant)?;
        }
        // As in the published benchmark a pause, in which the node makes clean what was given back.
        std::thread::sleep(Duration::from_millis(50));
        host.fill(options.blocks - options.blocks / 2)?;
        host.chunks(8)?;
    }
    rendezvous("done")?;
    host.mark_all()?;
    rendezvous("marked")?;
    host.end()?;
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&host.found)?)?;
    Ok(())
}
