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
        churn(&node, FineMem::new(&node, load.chunks, load.hosts()), load, true)
    });
}

#[test]
fn extents_keep_every_chunk_to_one_owner() {
    each_small_load(16 * 512, |load| {
        let node = node(Extent::words(load.chunks, load.hosts()), load.seed);
        churn(&node, Extent::new(&node, load.chunks, load.hosts(), load.clients), load, true)
    });
}

#[test]
#[ignore]
fn scratch() {
    let env = |name: &str, default: u32| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (chunks, order, clients) = (env("MIB", 1024) * 256, env("ORDER", 0) as u8, env("CLIENTS", 512));
    let load = Load { chunks, order, clients, per_host: 32, rounds: 2, seed: 1 };
    let show = |name: &str, o: Outcome, t: std::time::Instant| {
        let (a, f) = (&o.allocations, &o.frees);
        println!(
            "{name:12} alloc verbs {:.2} trips {:.2} cas {:.2} tries {:.3}/{} lat {:.1} p50 {:.1} p99 {:.1} max {:.1} | free verbs {:.2} lat {:.1} p99 {:.1} | rate {:.2} M/s cpu {:?} standing {:.3} util {:.3} full {:.3} meta {:.4}% old {:?} [{:.1?}]",
            a.verbs_each(),
            a.each(a.trips),
            a.each(a.verbs.cas),
            a.each(a.attempts),
            a.attempts_max,
            a.mean / 1e3,
            a.median as f64 / 1e3,
            a.p99 as f64 / 1e3,
            a.longest as f64 / 1e3,
            f.verbs_each(),
            f.mean / 1e3,
            f.p99 as f64 / 1e3,
            a.rate() / 1e6,
            o.busy,
            o.standing,
            o.utilisation,
            o.full_at,
            o.metadata * 100.0,
            o.old_key,
            t.elapsed()
        );
    };
    let which = std::env::var("WHICH").unwrap_or("fman w".into());
    let now = std::time::Instant::now;
    if which.contains('e') {
        let t = now();
        let n = node(Extent::words(chunks, load.hosts()), 1);
        show("extent", churn(&n, Extent::new(&n, chunks, load.hosts(), clients), load, false), t);
    }
    if which.contains('m') {
        let t = now();
        let n = node(FineMem::words(chunks), 1);
        show(
            "finemem",
            churn(&n, FineMem::new(&n, chunks, if env("PER", 0) == 1 { clients } else { load.hosts() }), load, false),
            t,
        );
    }
    if which.contains('a') {
        let t = now();
        let n = node(FreeArray::words(chunks), 1);
        show("free array", churn(&n, FreeArray::new(&n, chunks, clients), load, false), t);
    }
    if which.contains('o') {
        let t = now();
        let n = node(OneSidedMw::words(chunks, order), 1);
        show("onesidedmw", churn(&n, OneSidedMw::new(&n, chunks, order), load, false), t);
    }
    for (c, kind) in [('p', Kind::PreRegistered), ('w', Kind::Windows), ('d', Kind::OnDemand)] {
        if which.contains(c) {
            let t = now();
            let n = node(0, 1);
            show(&format!("{kind:?}"), churn(&n, Rpc::new(&n, kind, chunks), load, false), t);
        }
    }
}
