//! Every allocator, small, under the ledger, compared after every change of a word; and the simulator's arithmetic, by hand.

use std::rc::Rc;

use crate::allocators::Allocator;
use crate::allocators::extent::Extent;
use crate::allocators::finemem::FineMem;
use crate::allocators::free_array::FreeArray;
use crate::allocators::onesidedmw::OneSidedMw;
use crate::allocators::rpc::{Kind, Rpc};
use crate::run::{Bench, Load, Outcome};
use crate::sim::clock::World;
use crate::sim::costs::Costs;
use crate::sim::node::Node;

fn node(words: usize, seed: u64) -> Rc<Node> {
    Node::new(World::new(), Costs::shipped(), words, seed)
}

fn churn<A: Allocator>(node: &Rc<Node>, allocator: Rc<A>, load: Load, watched: bool) -> Outcome {
    let bench = Bench::new(node, allocator, load);
    if watched {
        bench.watch();
    }
    bench.run().unwrap_or_else(|fault| panic!("{load:?}: {fault}"))
}

fn each_small_load(least: u32, run: impl Fn(Load) -> Outcome) {
    for (order, clients, seed) in [(0, 3, 1), (0, 16, 2), (2, 8, 3), (4, 8, 4), (5, 8, 5), (7, 5, 6), (9, 2, 7)] {
        let chunks = if order < 6 { least } else { least.max(4096) };
        let load = Load { chunks, order, clients, per_host: 4, rounds: 2, seed };
        let outcome = run(load);
        assert!(outcome.allocations.count > 0 && outcome.full_at > 0.7, "{load:?}: {outcome:?}");
    }
}

#[test]
fn the_free_array_keeps_every_chunk_to_one_owner() {
    each_small_load(1024, |load| {
        let node = node(FreeArray::words(load.chunks), load.seed);
        churn(&node, FreeArray::new(&node, load.chunks, load.clients), load, true)
    });
}

#[test]
fn calls_keep_every_chunk_to_one_owner() {
    for kind in [Kind::PreRegistered, Kind::Windows, Kind::OnDemand] {
        each_small_load(1024, |load| {
            let node = node(0, load.seed);
            churn(&node, Rpc::new(&node, kind, load.chunks), load, true)
        });
    }
}

#[test]
fn chains_keep_every_chunk_to_one_owner() {
    each_small_load(1024, |load| {
        let node = node(OneSidedMw::words(load.chunks, load.order), load.seed);
        churn(&node, OneSidedMw::new(&node, load.chunks, load.order), load, true)
    });
}

#[test]
fn finemem_keeps_every_chunk_to_one_owner() {
    each_small_load(1024, |load| {
        let node = node(FineMem::words(load.chunks), load.seed);
        churn(&node, FineMem::new(&node, load.chunks, load.clients), load, true)
    });
}

#[test]
fn extents_keep_every_chunk_to_one_owner() {
    each_small_load(16 * 512, |load| {
        let node = node(Extent::words(load.chunks, load.hosts()), load.seed);
        churn(&node, Extent::new(&node, load.chunks, load.hosts(), load.clients), load, true)
    });
}
