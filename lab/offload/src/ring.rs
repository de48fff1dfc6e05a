//! Chunks with their windows, for every member, and the node's part: what it does when a chain breaks and when a member
//! is gone.

use crate::chains::{self, Design, GROUP, Layout, OWNER};
use crate::machine::{self, ChainId, Machine, NODE};
use farmem_nic::grip::Memory;
use farmem_nic::windows::Windows;
use farmem_protocol::key::{Key, KeyKind};
use farmem_protocol::wire::Status;
use std::collections::BTreeMap;

/// Which chain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Which {
    /// Takes a chunk.
    Take,
    /// Gives it back.
    Give,
}

/// Chunks of one size, each with windows of its own.
pub struct Offload {
    layout: Layout,
    machine: Machine,
    /// By member, queue pair, and which.
    chains: BTreeMap<(u64, u64, Which), ChainId>,
    /// How often the ring was rebuilt.
    pub repairs: u64,
}

impl Offload {
    /// `count` chunks of `chunk_bytes` (at most 4 GiB less one) that begin at `base` of `memory`. `None`
    /// when there are not windows enough.
    pub fn new(
        design: Design,
        chunk_bytes: u64,
        count: u64,
        (memory, base): (Memory, u64),
        windows: &Windows,
    ) -> Option<Offload> {
        let mut machine = Machine::new(Layout::table_bytes(design, count) + 4096, memory, base, count * chunk_bytes);
        let layout = Layout::new(design, chunk_bytes, count, machine.table());
        machine.set_entries(layout.entries..layout.entry(count));
        for index in 0..count {
            for n in 0..GROUP {
                machine.poke(layout.entry(index) + 16 * n, windows.make(NODE)?.0);
                machine.poke(layout.entry(index) + 16 * n + 8, layout.chunk(index));
            }
        }
        let mut offload = Offload { layout, machine, chains: BTreeMap::new(), repairs: 0 };
        offload.rebuild(windows, |_| false, &mut || ());
        Some(offload)
    }

    /// What lies where.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Requests that the machine has run.
    pub fn requests(&self) -> u64 {
        self.machine.requests
    }

    /// The chain of a queue pair of a member, made when it is first needed.
    pub fn chain(&mut self, member: u64, queue: u64, which: Which) -> ChainId {
        let (layout, machine) = (self.layout, &mut self.machine);
        *self.chains.entry((member, queue, which)).or_insert_with(|| {
            let build = |control, work| match which {
                Which::Take => chains::take(&layout, member, control, work),
                Which::Give => chains::give(&layout, control, work),
            };
            let (control, work, _) = build(0, 0);
            machine.chain(member, queue, (control.len() as u64, work.len() as u64), |_, control, work| {
                build(control, work)
            })
        })
    }

    /// A SEND: runs its chain to the end. The answer; of a give, nothing. `drain` waits for what is under
    /// way under keys that were unbound: a card does that before it completes an INVALIDATE.
    ///
    /// # Errors
    /// [`Status::Empty`]: there is no chunk. [`Status::Access`]: the chunk is not given back by who took it.
    pub fn send(
        &mut self,
        (member, queue): (u64, u64),
        which: Which,
        said: &[u8],
        windows: &Windows,
        drain: &mut dyn FnMut(),
    ) -> Result<[u8; machine::REPLY as usize], Status> {
        let chain = self.chain(member, queue, which);
        if self.machine.receive(chain, said) && self.machine.run(chain, windows, drain) {
            return self.machine.reply(chain).ok_or(Status::Access);
        }
        // What a card reports as a protection error, and the node's CPU sees to: the queue pair is made
        // anew, the ring rebuilt.
        self.machine.end(chain);
        self.chains.remove(&(member, queue, which));
        self.rebuild(windows, |_| false, drain);
        Err(if which == Which::Take { Status::Empty } else { Status::Access })
    }

    /// A member is gone: what it took is free again.
    pub fn recover(&mut self, member: u64, windows: &Windows, drain: &mut dyn FnMut()) {
        let of_it = self.chains.range((member, 0, Which::Take)..=(member, u64::MAX, Which::Give));
        let ended: Vec<_> = of_it.map(|(key, chain)| (*key, *chain)).collect();
        for (key, chain) in ended {
            self.machine.end(chain);
            self.chains.remove(&key);
        }
        self.rebuild(windows, |owner| owner == member, drain);
    }

    /// Makes the ring anew from the entries, when no chain is under way: every entry without an owner,
    /// or whose owner is gone, is in it once, its windows unbound.
    pub fn rebuild(&mut self, windows: &Windows, gone: impl Fn(u64) -> bool, drain: &mut dyn FnMut()) {
        let layout = self.layout;
        let mut slots = 0;
        for index in 0..layout.count {
            let entry = layout.entry(index);
            let owner = self.machine.peek(entry + OWNER);
            if owner != 0 && !gone(owner) {
                continue;
            }
            for n in 0..GROUP {
                let key = self.unbound(Key(self.machine.peek(entry + 16 * n)), windows);
                self.machine.poke(entry + 16 * n, key.0);
                self.machine.poke(entry + 16 * n + 8, layout.chunk(index));
            }
            if owner != 0 {
                drain();
                self.machine.wipe_chunk(layout.chunk(index), layout.chunk_bytes as u32);
            }
            self.machine.poke(entry + OWNER, 0);
            self.machine.poke(layout.ring + 8 * slots, layout.pointer(index));
            slots += 1;
        }
        (slots..layout.slots).for_each(|slot| self.machine.poke(layout.ring + 8 * slot, 0));
        self.machine.poke(layout.head, layout.ring);
        self.machine.poke(layout.tail, layout.ring + 8 * (slots % layout.slots));
        self.repairs += 1;
    }

    /// A window of the table, unbound, whatever a broken chain left it as.
    fn unbound(&self, key: Key, windows: &Windows) -> Key {
        let KeyKind::Window { index, .. } = key.kind() else { return key };
        match windows.key_of(index) {
            Some((bound, true)) => match bound.kind() {
                KeyKind::Window { generation, .. } => windows.invalidate(NODE, 0, (index, generation)).unwrap_or(bound),
                _ => bound,
            },
            Some((free, false)) => free,
            None => key,
        }
    }
}

#[cfg(test)]
mod tests;
