//! Moves that are cut anywhere, turned back and led on, in the order of their steps.
//!
//! A program writes between any two steps, by the keys that it was told. It asks for others when one
//! is refused. An agent ends after a step, or within one, before or after its record. The next agent
//! takes over from the ledger alone. The program must read all that it wrote.

// Verbs whose buffer is a word.
#![allow(unsafe_code)]

use crate::blocks::{Blocks, Memory};
use crate::host::{Config, resumed};
use crate::ledger::{self, Identity, Ledger};
use crate::serve::text_of;
use crate::sources::{Begun, Sources, Step};
use crate::stock::{Quotas, Stock};
use crate::windows::{User, finish};
use crate::word::{BLOCK_ORDER, BlockId};
use farmem_fabric::{ConnectOptions, NodeAddr, QueuePair, Refusal, Session, Transport, Trust};
use farmem_memory::Node;
use farmem_protocol::key::Key;
use farmem_sys::{descriptors, raw, shared};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const TRANSPORT: Transport = Transport::Tcp;
/// Blocks of each thing that the program holds.
const HELD: [u32; 3] = [3, 1, 2];
/// Where its word is in each block: in a part that is copied early, and in one that is copied late.
const AT: [u64; 2] = [8, (2 << 20) - 8];

/// Where an agent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Never,
    /// Within the first step from this one on that records something: before it.
    Before(usize),
    /// After it, and before the rest of the step.
    Within(usize),
    /// After this step.
    After(usize),
}

struct World {
    nodes: Vec<Node>,
    /// The program's members of the nodes, and their queue pairs.
    program: Vec<(Session, QueuePair)>,
    /// By the numbers that the agent gives them: which nodes they are.
    numbered: Vec<usize>,
    config: Config,
    fd: i32,
    ledger: Arc<Ledger>,
    /// `None` after the agent's end.
    agent: Option<(Sources, Stock)>,
    held: Vec<(BlockId, u32)>,
    /// The last word that the program wrote, by run, block of the run and place in the block.
    words: BTreeMap<(BlockId, u32, u64), u64>,
    /// The keys that the program knows, with the numbers of their nodes.
    keys: BTreeMap<(BlockId, u32), (u64, Key)>,
    steps: usize,
    written: u64,
}

fn options() -> ConnectOptions {
    ConnectOptions { timeout: LIMIT, grace: LIMIT, run: [4; 16], transport: TRANSPORT, ..ConnectOptions::default() }
}

impl World {
    fn new() -> World {
        let nodes: Vec<Node> = (0..3)
            .map(|_| Node::start(&farmem_memory::Config::new(64 << 20, vec![NodeAddr::Tcp("127.0.0.1:0".into())])))
            .map(Result::unwrap)
            .collect();
        let program = nodes.iter().map(|node| {
            let session = Session::connect(&node.addresses()[0], &options()).unwrap();
            let queue = session.queue_pair().unwrap();
            (session, queue)
        });
        let program = program.collect();
        let fd = shared::memory(c"ledger", ledger::BYTES as u64).unwrap();
        let ledger = Arc::new(Ledger::open(fd).unwrap().0);
        let config = Config {
            dir: Default::default(),
            node: nodes[0].addresses()[0].clone(),
            transport: TRANSPORT,
            quotas: Quotas::default(),
            idle: None,
            grace: LIMIT,
            trust: Trust::default(),
        };
        ledger.set_address(0, &nodes[0].addresses()[0].to_string());
        let blocks = Blocks::join(&config.node, &options(), Arc::clone(&ledger)).map_err(|e| e.to_string()).unwrap();
        let mut stock = Stock::open(Arc::clone(&ledger), Quotas::default());
        let text = text_of(&config.node, TRANSPORT, 0);
        let mut sources = Sources::new(Arc::clone(&ledger), blocks, text);
        let who = Identity { token: [1; 16], uid: 0, pid: std::process::id(), began: 1, job: String::new() };
        let app = stock.admit(&who).unwrap();
        let mut held = Vec::new();
        for count in HELD {
            let (claimed, node) = sources.claim(count, raw::now_ns()).unwrap().unwrap();
            stock.supply(app, claimed.block, count, (node, claimed.place)).unwrap();
            if count == 1 {
                stock.alloc(app, BLOCK_ORDER).unwrap();
            }
            held.push((claimed.block, count));
        }
        let (words, keys) = Default::default();
        let agent = Some((sources, stock));
        World { nodes, program, numbered: vec![0], config, fd, ledger, agent, held, words, keys, steps: 0, written: 0 }
    }

    fn sources(&mut self) -> &mut Sources {
        &mut self.agent.as_mut().unwrap().0
    }

    /// As an agent that is told to.
    fn move_to(&mut self, node: usize) -> Begun {
        let at = self.nodes[node].addresses()[0].clone();
        let (number, place) = (self.sources().next_number().unwrap(), self.ledger.free_node().unwrap());
        self.ledger.clear_windows(place);
        self.ledger.set_address(place, &at.to_string());
        self.ledger.set_number(place, number);
        let blocks = Blocks::join_as(&at, &options(), (Arc::clone(&self.ledger), place));
        let blocks = blocks.map_err(|e| e.to_string()).unwrap();
        let begun = self.sources().begin(blocks, number, text_of(&at, TRANSPORT, number));
        if begun == Begun::There {
            self.numbered.resize(number as usize + 1, node);
        } else {
            self.ledger.set_membership(place, None);
        }
        begun
    }

    /// Until nothing is left to move, or the cut.
    fn go_on(&mut self, cut: Cut) {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < LIMIT, "{cut:?}: the move does not end");
            self.steps += 1;
            let (steps, (sources, stock)) = (self.steps, self.agent.as_mut().unwrap());
            let step = catch_unwind(AssertUnwindSafe(|| {
                sources.step(raw::now_ns(), |block, to| {
                    if matches!(cut, Cut::Before(at) if steps >= at) {
                        resume_unwind(Box::new(()));
                    }
                    stock.moved(block, to);
                    if matches!(cut, Cut::Within(at) if steps >= at) {
                        resume_unwind(Box::new(()));
                    }
                })
            }));
            let Ok(step) = step else { return self.next_agent() };
            if step == Ok(Step::Later) {
                std::thread::sleep(Duration::from_millis(1));
            }
            while self.sources().end().is_some() {}
            self.write();
            if cut == Cut::After(steps) {
                return self.next_agent();
            }
            if step.unwrap() == Step::Done && !self.sources().is_moving() {
                return;
            }
        }
    }

    /// The agent ends as by a kill, and the next one takes over.
    fn next_agent(&mut self) {
        // It takes no leave.
        std::mem::forget(self.agent.take());
        self.ledger = Arc::new(Ledger::open(self.fd).unwrap().0);
        let mut stock = Stock::open(Arc::clone(&self.ledger), Quotas::default());
        let resumed = resumed(&self.config, &self.ledger, &mut stock, &mut |_| false);
        let (sources, _) = resumed.map_err(|e| e.to_string()).unwrap().unwrap();
        self.agent = Some((sources, stock));
        self.write();
    }

    /// Asks by which keys a thing is reached.
    fn ask(&mut self, block: BlockId) {
        let owner = |number: u64| self.program[self.numbered[number as usize]].0.owner();
        let user = |number| Some(User { uid: 0, owner: owner(number), queue: None });
        let found = self.agent.as_mut().unwrap().0.memory(block, user).unwrap();
        let Memory::Elsewhere(keys) = found.memory else { panic!("mapped") };
        for (at, key) in keys.into_iter().enumerate() {
            let node = if (at as u64) < found.moved { found.to } else { found.node };
            self.keys.insert((block, at as u32), (node, key));
        }
    }

    /// One verb on a word, by the key that is known; by another, if it is refused.
    fn verb(&mut self, (block, of_run): (BlockId, u32), mut post: impl FnMut(&mut QueuePair, Key)) {
        for _ in 0..2 {
            if let Some((node, key)) = self.keys.get(&(block, of_run)) {
                let queue = &mut self.program[self.numbered[*node as usize]].1;
                post(queue, *key);
                match finish(queue, 1).unwrap()[0] {
                    Ok(_) => return,
                    Err(refusal) => assert_eq!(refusal, Refusal::Access),
                }
            }
            self.ask(block);
        }
        panic!("keys that were told a moment ago open nothing");
    }

    /// Writes one word, another each time.
    fn write(&mut self) {
        self.written += 1;
        let blocks: u32 = HELD.iter().sum();
        let nth = self.written as u32 * 5 % blocks;
        let mut all = self.held.iter().flat_map(|(block, count)| (0..*count).map(|of_run| (*block, of_run)));
        let (block, of_run) = all.nth(nth as usize).unwrap();
        let (at, word) = (AT[(self.written / blocks as u64 % 2) as usize], self.written);
        self.verb((block, of_run), |queue, key| {
            // SAFETY: the word outlives the verb, which is awaited before it goes.
            unsafe { queue.write(0, key, at, (&raw const word).cast(), 8) };
        });
        self.words.insert((block, of_run, at), word);
    }

    /// Everything is read as it was written.
    fn check(&mut self, what: &dyn std::fmt::Debug) {
        for ((block, of_run, at), wrote) in self.words.clone() {
            let mut word = 0u64;
            self.verb((block, of_run), |queue, key| {
                // SAFETY: as above.
                unsafe { queue.read(0, key, at, (&raw mut word).cast(), 8) };
            });
            assert_eq!(word, wrote, "{what:?}: block {block:?}, {of_run} of it, at {at}");
        }
    }

    /// All is at this node, and when it is given back, nothing is anywhere.
    fn is_at(&mut self, node: usize, what: &dyn std::fmt::Debug) {
        self.check(what);
        let all = HELD.iter().sum::<u32>() as u64 * (2 << 20);
        for last in [all, 0] {
            let begun = Instant::now();
            let lent = |nodes: &[Node]| nodes.iter().map(|node| node.nic().lent()).collect::<Vec<u64>>();
            let wanted: Vec<u64> = (0..3).map(|at| if at == node { last } else { 0 }).collect();
            while lent(&self.nodes) != wanted {
                assert!(begun.elapsed() < LIMIT, "{what:?}: {:?} for {wanted:?}", lent(&self.nodes));
                std::thread::sleep(Duration::from_millis(1));
            }
            let blocks: Vec<BlockId> = self.held.iter().map(|(block, _)| *block).collect();
            self.sources().release(&blocks);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        descriptors::close(self.fd);
    }
}

/// The number of steps of a whole move.
fn steps() -> usize {
    let mut world = World::new();
    world.write();
    assert_eq!(world.move_to(1), Begun::There);
    world.go_on(Cut::Never);
    world.is_at(1, &"no cut");
    world.steps
}

#[test]
fn an_agent_that_ends_at_any_step_of_a_move_loses_nothing() {
    let steps = steps();
    assert!(steps > 6 * 9, "{steps} steps are too few");
    let within = (1..steps).step_by(9).flat_map(|step| [Cut::Before(step), Cut::Within(step)]);
    for cut in (1..steps).step_by(4).map(Cut::After).chain(within) {
        let mut world = World::new();
        (0..12).for_each(|_| world.write());
        world.move_to(1);
        world.go_on(cut);
        world.check(&cut);
        world.go_on(Cut::Never);
        world.is_at(1, &cut);
    }
}

/// A run that is at two nodes by then goes to its node first.
#[test]
fn a_move_that_is_turned_back_or_led_on_at_any_step_loses_nothing() {
    let steps = steps();
    for (begun, to) in [(Begun::Back, 0), (Begun::There, 2)] {
        for at in (1..steps).step_by(4) {
            let mut world = World::new();
            (0..12).for_each(|_| world.write());
            world.move_to(1);
            for _ in 0..at {
                let (sources, stock) = world.agent.as_mut().unwrap();
                sources.step(raw::now_ns(), |block, to| stock.moved(block, to)).unwrap();
                world.write();
            }
            let what = (begun, at);
            assert_eq!(world.move_to(to), begun, "{what:?}");
            world.check(&what);
            // And the agent ends in the middle of that.
            world.go_on(Cut::After(7 + at / 2));
            world.check(&what);
            if world.sources().is_moving() {
                world.go_on(Cut::Never);
            }
            world.is_at(to, &what);
        }
    }
}
