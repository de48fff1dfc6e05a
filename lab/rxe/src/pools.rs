//! The pools from which a swap device has its blocks of 2 MiB: each block is claimed and given back by verbs of the card.
//!
//! ```text
//!  swap ── a block is first written, or trimmed ──► Pool ── READ, WRITE, CAS, FAA ═══ RDMA ═══► words in the first slab
//! ```
//!
//! | pool | a claim |
//! |---|---|
//! | `farmem` | one CAS on the block's word |
//! | `finemem` | FineMem's protocol, as `farmem-lab bench alloc` has it: `farmem_alloc::allocators::finemem` |
//! | `onesidedmw` | OneSidedMW's, from there too |
//!
//! soft-RoCE has no chains of work requests. So the host itself posts the steps of OneSidedMW's chains, one by one, and
//! no windows are bound. FineMem's rebinder does not run. Both allocate memory of this machine meanwhile: they are good
//! for a memory group's limit, not for a machine that is short of memory.

// Words are read and written by a buffer of its own.
#![allow(unsafe_code)]

use farmem_alloc::allocators::finemem::FineMem;
use farmem_alloc::allocators::onesidedmw::OneSidedMw;
use farmem_alloc::allocators::{Allocator, BLOCK, BLOCK_ORDER, Client};
use farmem_alloc::ledger::Grant;
use farmem_alloc::sim::card::Card;
use farmem_alloc::sim::clock::World;
use farmem_alloc::sim::costs::Costs;
use farmem_alloc::sim::node::Node;
use farmem_fabric::{Completion, QueuePair};
use farmem_protocol::addr::SlabId;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes of the buffer of [`Words`].
pub const BUFFER: usize = 4096;
/// How long a verb may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Words in a slab, changed by verbs of a queue pair of their own.
pub struct Words {
    queue: QueuePair,
    slab: SlabId,
    buffer: *mut u8,
    verbs: Rc<Cell<u64>>,
}

impl Words {
    /// Words from the beginning of a slab.
    ///
    /// # Safety
    /// The buffer is registered, has [`BUFFER`] bytes, and is used by these words alone.
    pub unsafe fn new(queue: QueuePair, slab: SlabId, buffer: *mut u8) -> Words {
        Words { queue, slab, buffer, verbs: Rc::default() }
    }

    fn all(&self) -> &[u64] {
        // SAFETY: by the contract of `new`; a verb that writes to it has ended.
        unsafe { std::slice::from_raw_parts(self.buffer.cast(), BUFFER / 8) }
    }

    /// Carries out the verb that was posted. The word that was there, of an atomic.
    ///
    /// # Panics
    /// The node is gone, or refuses: there is no way on, and the device ends with this thread.
    fn carry_out(&mut self) -> u64 {
        self.verbs.set(self.verbs.get() + 1);
        let begun = Instant::now();
        let mut done: Vec<Completion> = Vec::new();
        self.queue.doorbell().unwrap_or_else(|e| panic!("a pool's words: {e}"));
        while done.is_empty() {
            assert!(begun.elapsed() < PATIENCE, "a pool's words are not answered");
            self.queue.wait(&mut done, Duration::from_millis(10)).unwrap_or_else(|e| panic!("a pool's words: {e}"));
        }
        done.remove(0).result.unwrap_or_else(|e| panic!("a pool's words: {e:?}"))
    }
}

impl Card for Words {
    fn read(&mut self, at: usize, words: &mut [u64]) {
        for (part, some) in words.chunks_mut(BUFFER / 8).enumerate() {
            let offset = (at + part * BUFFER / 8) as u64 * 8;
            // SAFETY: by the contract of `new`; the verb has ended when `carry_out` returns.
            unsafe { self.queue.read(0, self.slab, offset, self.buffer, 8 * some.len() as u32) };
            self.carry_out();
            some.copy_from_slice(&self.all()[..some.len()]);
        }
    }

    fn write(&mut self, at: usize, words: &[u64]) {
        for (part, some) in words.chunks(BUFFER / 8).enumerate() {
            let offset = (at + part * BUFFER / 8) as u64 * 8;
            // SAFETY: by the contract of `new`: room for as many words, which nobody else uses.
            unsafe { self.buffer.cast::<u64>().copy_from_nonoverlapping(some.as_ptr(), some.len()) };
            // SAFETY: as for READ.
            unsafe { self.queue.write(0, self.slab, offset, self.buffer, 8 * some.len() as u32) };
            self.carry_out();
        }
    }

    fn cas(&mut self, at: usize, expected: u64, word: u64) -> u64 {
        self.queue.cas(0, self.slab, at as u64 * 8, expected, word);
        self.carry_out()
    }

    fn faa(&mut self, at: usize, add: u64) -> u64 {
        self.queue.faa(0, self.slab, at as u64 * 8, add);
        self.carry_out()
    }
}

/// Blocks, each of which one host has at most.
pub trait Pool {
    /// A block that was nobody's. `None`: all are taken.
    fn claim(&mut self) -> Option<u32>;
    /// Gives a block back.
    fn give(&mut self, block: u32);
    /// Verbs so far.
    fn verbs(&self) -> u64;
}

/// The pool of this name, of so many blocks. `owner`: this host.
///
/// # Errors
/// There is no pool of this name.
pub fn pool(name: &str, mut words: Words, blocks: usize, owner: u64) -> Result<Box<dyn Pool>, String> {
    let verbs = Rc::clone(&words.verbs);
    let chunks = blocks as u32 * BLOCK;
    // The costs are of virtual time, which does not pass.
    let node = |words| Node::new(World::new(), Costs::shipped(), words, 1);
    match name {
        "farmem" => {
            words.write(0, &vec![0; blocks]);
            verbs.set(0);
            Ok(Box::new(Plain { words, taken: vec![false; blocks], owner }))
        }
        "finemem" => {
            let node = node(FineMem::words(chunks));
            Ok(Box::new(By::new(&node, FineMem::new(&node, chunks, 1), words, verbs)))
        }
        "onesidedmw" => {
            let node = node(OneSidedMw::words(chunks, BLOCK_ORDER));
            Ok(Box::new(By::new(&node, OneSidedMw::new(&node, chunks, BLOCK_ORDER), words, verbs)))
        }
        other => Err(format!("there is no pool {other}: farmem, finemem or onesidedmw")),
    }
}

/// A word for each block: 0, or its owner.
struct Plain {
    words: Words,
    taken: Vec<bool>,
    owner: u64,
}

impl Pool for Plain {
    fn claim(&mut self) -> Option<u32> {
        for block in 0..self.taken.len() {
            if !std::mem::replace(&mut self.taken[block], true) && self.words.cas(block, 0, self.owner) == 0 {
                return Some(block as u32);
            }
        }
        None
    }

    fn give(&mut self, block: u32) {
        self.words.cas(block as usize, self.owner, 0);
        self.taken[block as usize] = false;
    }

    fn verbs(&self) -> u64 {
        self.words.verbs.get()
    }
}

/// Blocks of an allocator whose words the card changes.
struct By<A> {
    node: Rc<Node>,
    allocator: Rc<A>,
    client: Client,
    grants: BTreeMap<u32, Grant>,
    verbs: Rc<Cell<u64>>,
}

impl<A: Allocator> By<A> {
    fn new(node: &Rc<Node>, allocator: Rc<A>, words: Words, verbs: Rc<Cell<u64>>) -> By<A> {
        node.attach(Box::new(words));
        verbs.set(0);
        By { node: Rc::clone(node), allocator, client: Client::new(0, 0, node, 1), grants: BTreeMap::new(), verbs }
    }
}

impl<A: Allocator> Pool for By<A> {
    fn claim(&mut self) -> Option<u32> {
        let grant = self.node.world.at_once(self.allocator.allocate(&self.client, BLOCK_ORDER))?;
        let block = grant.chunk / BLOCK;
        assert!(self.grants.insert(block, grant).is_none(), "block {block} was granted twice");
        Some(block)
    }

    fn give(&mut self, block: u32) {
        if let Some(grant) = self.grants.remove(&block) {
            self.node.world.at_once(self.allocator.free(&self.client, grant));
        }
    }

    fn verbs(&self) -> u64 {
        self.verbs.get()
    }
}
