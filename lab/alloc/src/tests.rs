//! Every allocator, small, under the ledger, compared after every change of a word; and the simulator's arithmetic, by hand.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;

use crate::allocators::extent::Extent;
use crate::allocators::finemem::FineMem;
use crate::allocators::free_array::FreeArray;
use crate::allocators::onesidedmw::OneSidedMw;
use crate::allocators::rpc::{Kind, Rpc};
use crate::allocators::{Allocator, BLOCK, BLOCK_ORDER, Client};
use crate::ledger::Standing;
use crate::run::{Bench, Load, Outcome};
use crate::sim::card::Card;
use crate::sim::clock::World;
use crate::sim::costs::Costs;
use crate::sim::node::{At, Node};
use crate::systems::System;

fn node(words: usize, seed: u64) -> Rc<Node> {
    Node::new(World::new(), Costs::shipped(), words, seed)
}

fn churn<A: Allocator>(node: &Rc<Node>, allocator: Rc<A>, load: Load, nth: u64) -> Outcome {
    let bench = Bench::new(node, allocator, load);
    bench.watch(nth);
    bench.run().unwrap_or_else(|fault| panic!("{load:?}: {fault}"))
}

fn each_small_load(least: u32, run: impl Fn(Load) -> Outcome) {
    for (order, clients, seed) in [(0, 3, 1), (0, 16, 2), (2, 8, 3), (4, 8, 4), (5, 8, 5), (7, 5, 6), (9, 2, 7)] {
        let chunks = if order < 6 { least } else { least.max(4096) };
        let load = Load { chunks, order, clients, per_host: 4, rounds: 2, fill: 0.7, seed };
        let outcome = run(load);
        assert!(outcome.allocations.count > 0 && outcome.full_at > 0.7, "{load:?}: {outcome:?}");
    }
}

#[test]
fn the_free_array_keeps_every_chunk_to_one_owner() {
    each_small_load(1024, |load| {
        let node = node(FreeArray::words(load.chunks), load.seed);
        churn(&node, FreeArray::new(&node, load.chunks, load.clients), load, 1)
    });
}

#[test]
fn calls_keep_every_chunk_to_one_owner() {
    for kind in [Kind::PreRegistered, Kind::Windows, Kind::OnDemand] {
        each_small_load(1024, |load| {
            let node = node(0, load.seed);
            churn(&node, Rpc::new(&node, kind, load.chunks), load, 1)
        });
    }
}

#[test]
fn chains_keep_every_chunk_to_one_owner() {
    each_small_load(1024, |load| {
        let node = node(OneSidedMw::words(load.chunks, load.order), load.seed);
        churn(&node, OneSidedMw::new(&node, load.chunks, load.order), load, 1)
    });
}

#[test]
fn finemem_keeps_every_chunk_to_one_owner() {
    each_small_load(1024, |load| {
        let node = node(FineMem::words(load.chunks), load.seed);
        churn(&node, FineMem::new(&node, load.chunks, load.clients), load, 1)
    });
}

#[test]
fn extents_keep_every_chunk_to_one_owner() {
    each_small_load(16 * 512, |load| {
        let node = node(Extent::words(load.chunks, load.hosts()), load.seed);
        churn(&node, Extent::new(&node, load.chunks, load.hosts(), load.clients), load, 29)
    });
}

/// The simulator's arithmetic against sums made by hand, without jitter.
mod arithmetic {
    use super::*;
    use crate::allocators::Client;
    use crate::sim::costs::SHIPPED;
    use crate::sim::node::Link;

    fn exact(words: usize) -> Rc<Node> {
        let costs = Costs::parse(&SHIPPED.replace("jitter = 0.1", "jitter = 0.0")).unwrap();
        Node::new(World::new(), costs, words, 1)
    }

    /// How long each of some tasks takes that all begin at once, ns.
    fn times<F: Future<Output = ()> + 'static>(node: &Rc<Node>, tasks: Vec<F>) -> Vec<u64> {
        let ended: Vec<_> = tasks
            .into_iter()
            .map(|task| {
                let (world, ended) = (node.world.clone(), Rc::new(std::cell::Cell::new(0)));
                let at = ended.clone();
                node.world.client(async move {
                    task.await;
                    at.set(world.now());
                });
                ended
            })
            .collect();
        node.world.run();
        node.world.end();
        ended.iter().map(|at| at.get()).collect()
    }

    #[test]
    fn a_verb_takes_its_round_trip_and_its_bytes() {
        let node = exact(64);
        let link = Link::new(&node);
        // 512 bytes at 12.5 bytes a ns: 41 ns.
        let read = async move { drop(link.read_many(0, 64).await) };
        assert_eq!(times(&node, vec![read]), [2_041]);
    }

    #[test]
    fn atomics_of_one_word_follow_each_other_and_of_others_only_occupy_the_card() {
        let cas = |node: &Rc<Node>, at| {
            let link = Link::new(node);
            async move { _ = link.cas(at, 7, 8).await }
        };
        let node = exact(8);
        assert_eq!(times(&node, (0..3).map(|_| cas(&node, 0)).collect()), [2_500, 2_946, 3_392]);
        let node = exact(8);
        assert_eq!(times(&node, (0..3).map(|n| cas(&node, n)).collect()), [2_500, 2_520, 2_540]);
    }

    #[test]
    fn calls_wait_for_the_one_core() {
        let node = exact(0);
        let call = || {
            let link = Link::new(&node);
            async move { link.call(1.5, || ((), 1_000)).await }
        };
        // A round trip of 2 µs, and 2.5 µs of the core for each who came before, and oneself.
        assert_eq!(times(&node, vec![call(), call(), call()]), [4_500, 7_000, 9_500]);
        assert_eq!(node.busy().calls, 7_500);
    }

    #[test]
    fn together_is_one_round_trip() {
        let node = exact(8);
        let link = Rc::new(Link::new(&node));
        let posted = link.clone();
        let two = async move { _ = posted.together(posted.read::<1>(0), posted.cas(1, 0, 1)).await };
        // The CAS flies 1.25 µs there, the READ 1: they do not meet at the card.
        assert_eq!(times(&node, vec![two]), [2_500]);
        let (verbs, trips) = link.take();
        assert_eq!((verbs.posted(), trips), (2, 1));
    }

    fn first<A: Allocator>(node: &Rc<Node>, allocator: &Rc<A>, order: u8) -> u64 {
        let (allocator, client) = (allocator.clone(), Client::new(0, 0, node, 1));
        let take = async move { _ = allocator.allocate(&client, order).await.expect("all is free") };
        times(node, vec![take])[0]
    }

    #[test]
    fn a_chain_takes_its_steps() {
        let node = exact(OneSidedMw::words(1024, 0));
        // SEND and result 2; scatter (2 steps), head, slot, zero, owner, result: 7 × 0.67; three binds of 1.33.
        assert_eq!(first(&node, &OneSidedMw::new(&node, 1024, 0), 0), 2_000 + 7 * 670 + 3 * 1_330);
    }

    #[test]
    fn finemems_first_chunk_takes_its_verbs() {
        let node = exact(FineMem::words(1024));
        // IPC 6; READ of 2 sections' headers (16 bytes, 1 ns), of 16 spans' (128 bytes, 10 ns); CAS of the section; CAS of
        // the span; READ of key and log together, 1 ns of bytes, one behind the other at the card, 10; CAS of the log and of
        // the header, 20.
        let sum = 6_000 + 2_001 + 2_010 + 2_500 + 2_500 + (2_001 + 10) + (2_500 + 20);
        assert_eq!(first(&node, &FineMem::new(&node, 1024, 1), 0), sum);
    }

    #[test]
    fn a_block_is_one_ring_and_one_cas_once_its_line_is_read() {
        let node = exact(Extent::words(4 * 512, 1));
        let extent = Extent::new(&node, 4 * 512, 1, 1);
        let client = Rc::new(Client::new(0, 0, &node, 1));
        let (world, at) = (node.world.clone(), Rc::new(std::cell::Cell::new(0)));
        let seen = at.clone();
        let two = async move {
            extent.allocate(&client, 9).await.expect("all is free");
            let (begun, before) = (world.now(), client.link.take().0);
            extent.allocate(&client, 9).await.expect("three are free");
            seen.set(world.now() - begun);
            assert_eq!((before.read, before.cas, client.link.take().0.posted()), (2, 1, 1));
        };
        times(&node, vec![two]);
        // Ring and agent 1.2, CAS 2.5.
        assert_eq!(at.get(), 3_700);
    }

    /// One empty block stays with the agent, and is had again without a verb; the second goes back by one CAS.
    #[test]
    fn a_block_that_the_agent_keeps_is_one_ring_and_no_verb() {
        let node = exact(Extent::words(4 * 512, 1));
        let extent = Extent::new(&node, 4 * 512, 1, 1);
        let client = Rc::new(Client::new(0, 0, &node, 1));
        let (world, seen) = (node.world.clone(), Rc::new(std::cell::RefCell::new(Vec::new())));
        let took = seen.clone();
        let churn = async move {
            let mut begun = world.now();
            let mut tell = |client: &Client| {
                let verbs = client.link.take().0.posted();
                took.borrow_mut().push((world.now() - std::mem::replace(&mut begun, world.now()), verbs));
            };
            let one = extent.allocate(&client, 9).await.expect("all is free");
            let other = extent.allocate(&client, 9).await.expect("three are free");
            tell(&client);
            extent.free(&client, one).await;
            tell(&client);
            let again = extent.allocate(&client, 9).await.expect("it was kept");
            assert_eq!(again.chunk, one.chunk);
            tell(&client);
            extent.free(&client, again).await;
            tell(&client);
            extent.free(&client, other).await;
            tell(&client);
        };
        times(&node, vec![churn]);
        // The ring and the agent take 1.2 µs, and a CAS 2.5.
        assert_eq!(seen.borrow()[1..], [(1_200, 0), (1_200, 0), (1_200, 0), (3_700, 1)]);
    }

    #[test]
    fn a_region_of_4_mib_takes_what_was_published() {
        let node = exact(0);
        let rpc = Rpc::new(&node, Kind::OnDemand, 1024);
        // Round trip 2, call 1.5, registration of 2 MiB: 29.4 + 2 × 114.
        assert_eq!(first(&node, &rpc, 9), 2_000 + 1_500 + 257_400);
    }
}

/// A run follows from its seed, whatever else the machine does.
#[test]
fn the_same_seed_gives_the_same_figures() {
    let run = |seed| {
        let load = Load { chunks: 16 * 512, order: 0, clients: 64, per_host: 8, rounds: 1, fill: 0.7, seed };
        let outcomes = System::ALL.map(|system| system.run(load, &Costs::shipped()).unwrap());
        serde_json::to_string(&outcomes).unwrap()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

/// Of 1 MiB a block has two: what is claimed for those who wait does not last for who asks meanwhile. They ask again,
/// and sleep only when there is nothing.
#[test]
fn nobody_waits_for_a_heartbeat_while_there_is_memory() {
    let (order, costs) = (8, Costs::shipped());
    let load = Load { chunks: 2048 << order, order, clients: 24, per_host: 24, rounds: 1, fill: 0.7, seed: 1 };
    let outcome = System::Farmem.run(load, &costs).unwrap();
    let heartbeat = crate::sim::costs::us(costs.host.heartbeat);
    assert!(outcome.allocations.longest < heartbeat, "{:?}", outcome.allocations);
}

/// Words of a node that are not the simulator's.
struct Elsewhere(Rc<RefCell<Vec<u64>>>);

impl Card for Elsewhere {
    fn read(&mut self, at: At, words: &mut [u64]) {
        words.copy_from_slice(&self.0.borrow()[at..at + words.len()]);
    }

    fn write(&mut self, at: At, words: &[u64]) {
        self.0.borrow_mut()[at..at + words.len()].copy_from_slice(words);
    }

    fn cas(&mut self, at: At, expected: u64, word: u64) -> u64 {
        let was = self.0.borrow()[at];
        if was == expected {
            self.0.borrow_mut()[at] = word;
        }
        was
    }

    fn faa(&mut self, at: At, add: u64) -> u64 {
        let was = self.0.borrow()[at];
        self.0.borrow_mut()[at] = was + add;
        was
    }
}

/// With a card all of an allocator's state is in the words that the card changes.
fn on_a_card<A: Allocator>(node: &Rc<Node>, allocator: Rc<A>, words: usize) {
    const BLOCKS: usize = 8;
    let elsewhere = Rc::new(RefCell::new(vec![0; words]));
    node.attach(Box::new(Elsewhere(elsewhere.clone())));
    let client = Client::new(0, 0, node, 1);
    let take = || node.world.at_once(allocator.allocate(&client, BLOCK_ORDER));
    let standings = |words: &[u64]| {
        let survey = allocator.survey(words);
        (0..BLOCKS as u32).filter(|block| survey(block * BLOCK) == Standing::Held(None)).count()
    };
    let free = elsewhere.borrow().clone();
    assert_eq!(standings(&free), 0);
    for round in 0..3 {
        let grants: Vec<_> = std::iter::from_fn(take).collect();
        let blocks: BTreeSet<u32> = grants.iter().map(|grant| grant.chunk / BLOCK).collect();
        assert_eq!((grants.len(), blocks.len()), (BLOCKS, BLOCKS), "round {round}");
        assert_eq!(standings(&elsewhere.borrow()), BLOCKS);
        for grant in grants {
            node.world.at_once(allocator.free(&client, grant));
        }
        assert_eq!(standings(&elsewhere.borrow()), 0);
    }
}

#[test]
fn a_card_holds_all_that_allocators_know() {
    let chunks = 8 * BLOCK;
    let (words, chains) = (FineMem::words(chunks), OneSidedMw::words(chunks, BLOCK_ORDER));
    let bitmaps = node(words, 1);
    on_a_card(&bitmaps, FineMem::new(&bitmaps, chunks, 1), words);
    let ring = node(chains, 1);
    on_a_card(&ring, OneSidedMw::new(&ring, chunks, BLOCK_ORDER), chains);
}
