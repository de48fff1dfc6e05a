//! The systems that are compared, by name, and one run of each.

use anyhow::Result;
use serde::Serialize;

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

/// A system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// farmem's extents
    Farmem,
    /// FineMem's protocol, corrected
    Finemem,
    /// OneSidedMW's chains
    Onesidedmw,
    /// One-sided, chunk by chunk (CXL-SHM)
    FreeArray,
    /// Calls, memory registered before
    Rpc,
    /// Calls that bind windows
    RpcWindows,
    /// Calls that register
    RpcOnDemand,
}

impl System {
    /// All of them.
    pub const ALL: [System; 7] = [
        System::Farmem,
        System::Finemem,
        System::Onesidedmw,
        System::FreeArray,
        System::Rpc,
        System::RpcWindows,
        System::RpcOnDemand,
    ];

    /// In tables.
    pub fn name(self) -> &'static str {
        match self {
            System::Farmem => "farmem",
            System::Finemem => "FineMem",
            System::Onesidedmw => "OneSidedMW",
            System::FreeArray => "free array",
            System::Rpc => "calls",
            System::RpcWindows => "calls, windows",
            System::RpcOnDemand => "calls, on demand",
        }
    }

    /// Words of metadata that it needs.
    pub fn words(self, load: &Load) -> usize {
        match self {
            System::Farmem => Extent::words(load.chunks, load.hosts()),
            System::Finemem => FineMem::words(load.chunks),
            System::Onesidedmw => OneSidedMw::words(load.chunks, load.order),
            System::FreeArray => FreeArray::words(load.chunks),
            _ => 0,
        }
    }

    /// One run.
    ///
    /// # Errors
    /// What the ledger found; a pool that refuses.
    pub fn run(self, load: Load, costs: &Costs) -> Result<Outcome> {
        struct Run;
        impl With for Run {
            type Output = Result<Outcome>;
            fn with<A: Allocator>(self, bench: Bench<A>) -> Result<Outcome> {
                bench.run()
            }
        }
        self.with(load, costs, Run)
    }

    /// Makes a pool of this system with its clients, and does `what` with it.
    pub fn with<W: With>(self, load: Load, costs: &Costs, what: W) -> W::Output {
        self.with_words(load, costs, 0, what)
    }

    /// [`System::with`], where the node has `more` words behind the allocator's, for its user.
    pub fn with_words<W: With>(self, load: Load, costs: &Costs, more: usize, what: W) -> W::Output {
        let node = Node::new(World::new(), costs.clone(), self.words(&load) + more, load.seed);
        let rpc = |kind| Rpc::new(&node, kind, load.chunks);
        match self {
            System::Farmem => {
                let extent = Extent::new(&node, load.chunks, load.hosts(), load.clients);
                what.with(Bench::new(&node, extent, load))
            }
            System::Finemem => what.with(Bench::new(&node, FineMem::new(&node, load.chunks, load.clients), load)),
            System::Onesidedmw => what.with(Bench::new(&node, OneSidedMw::new(&node, load.chunks, load.order), load)),
            System::FreeArray => what.with(Bench::new(&node, FreeArray::new(&node, load.chunks, load.clients), load)),
            System::Rpc => what.with(Bench::new(&node, rpc(Kind::PreRegistered), load)),
            System::RpcWindows => what.with(Bench::new(&node, rpc(Kind::Windows), load)),
            System::RpcOnDemand => what.with(Bench::new(&node, rpc(Kind::OnDemand), load)),
        }
    }
}

/// What is done with a pool, whichever allocator has it.
pub trait With {
    /// What comes of it.
    type Output;
    /// Works with the pool, by the allocator that the bench has.
    fn with<A: Allocator>(self, bench: Bench<A>) -> Self::Output;
}
