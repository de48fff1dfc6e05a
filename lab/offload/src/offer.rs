//! Chunks of one size with windows, offered to every member: three strategies for who binds, and when.
//!
//! | | who binds and unbinds | a take is | a give is | an old key works |
//! |---|---|---|---|---|
//! | [`Strategy::Offloaded`] | the NIC's chains (OneSidedMW, mended) | one SEND | one SEND | never again |
//! | [`Strategy::Prebound`] | the node, beforehand and behind (FineMem) | CAS, READ | READ, CAS, CAS | until the node has come by |
//! | [`Strategy::Rpc`] | the node's CPU, asked (the baseline) | one SEND | one SEND | never again |
//!
//! The host's half is [`crate::host`].

use crate::chains::Design;
use crate::host::{DESCRIBE, GIVE, TAKE};
use crate::machine::NODE;
use crate::ring::{Offload, Which};
use farmem_nic::Nic;
use farmem_nic::epochs::Section;
use farmem_nic::grip::Memory;
use farmem_nic::lending::{Lending, NoSlab};
use farmem_nic::service::{Caller, Service};
use farmem_nic::units::leases::Lease;
use farmem_nic::windows::{ANY_MEMBER, Bound, Windows};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::key::{Key, KeyKind, Rights};
use farmem_protocol::wire::{ANY_QUEUE, Status};
use farmem_sys::sync::Lock;
use std::sync::Arc;
use zerocopy::{Immutable, KnownLayout, TryFromBytes};

/// Who binds windows, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, TryFromBytes, KnownLayout, Immutable)]
#[repr(u64)]
pub enum Strategy {
    /// The NIC, by prepared work requests.
    Offloaded = 1,
    /// The node, beforehand.
    Prebound = 2,
    /// The node's CPU, on demand.
    Rpc = 3,
}

/// What is to be offered.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// How.
    pub strategy: Strategy,
    /// Bytes of a chunk, a multiple of 4096.
    pub chunk_bytes: u64,
    /// Chunks. All of them, and for [`Strategy::Prebound`] 24 bytes for each beside, must fit in one slab.
    pub count: u64,
}

/// Why it cannot be offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoOffer {
    /// More than a slab.
    #[error("the chunks do not fit in one slab of 64 MiB, or are no multiple of 4096 bytes")]
    Size,
    /// No memory.
    #[error("the node has no slab free for the chunks")]
    Memory,
    /// Too many windows.
    #[error("the node has not as many windows")]
    Windows,
}

/// Has a node offer chunks with windows to every member. Once in its life.
///
/// # Errors
/// The node has no memory or windows for them.
pub fn offer(nic: &Nic, offer: Offer) -> Result<(), NoOffer> {
    nic.serve(Offered::new(offer, &nic.lending, &nic.windows)?);
    Ok(())
}

/// What a node offers.
struct Offered {
    offer: Offer,
    how: How,
}

enum How {
    Offloaded(Lock<Offload>),
    Prebound(Prebound),
    Rpc(Lock<Rpc>),
}

/// Who has which chunk, by the node's CPU.
struct Rpc {
    memory: Memory,
    free: Vec<u64>,
    /// Of every chunk: its window, unbound or bound, and who took it, through which queue pair.
    chunks: Vec<(Key, u64, u64)>,
}

/// FineMem's table: the free map, and two keys for every chunk, one of which is in use.
///
/// ```text
///  | map: one bit a chunk | keys: a word a chunk | windows: a word a chunk | … chunks
///    keys:    main: which 1, generation 31 | backup: which 1, generation 31; all ones: used up
///    windows: index of window 0, 32 | index of window 1, 32
/// ```
struct Prebound {
    memory: Memory,
    keys_at: u64,
    windows_at: u64,
    chunks_at: u64,
    /// Opens map and keys to every member: READ, CAS.
    table: Key,
}

/// A backup key that was used up and not yet made anew.
pub const USED_UP: u32 = u32::MAX;

impl Offered {
    fn new(offer: Offer, lending: &Arc<Lending>, windows: &Windows) -> Result<Offered, NoOffer> {
        let chunks_at = match offer.strategy {
            Strategy::Prebound => (8 * offer.count.div_ceil(64) + 16 * offer.count).next_multiple_of(4096),
            _ => 0,
        };
        let fits = offer.count.checked_mul(offer.chunk_bytes).is_some_and(|all| chunks_at + all <= SLAB_BYTES);
        if !fits || offer.count == 0 || offer.chunk_bytes == 0 || !offer.chunk_bytes.is_multiple_of(4096) {
            return Err(NoOffer::Size);
        }
        let lease = Lease::new(lending.units()).ok_or(NoOffer::Memory)?;
        let slab = lending.grant(&Arc::new(lease)).map_err(|_: NoSlab| NoOffer::Memory)?;
        let memory = Memory::Slab(slab);
        let how = match offer.strategy {
            Strategy::Offloaded => {
                let made = Offload::new(Design::Mended, offer.chunk_bytes, offer.count, (memory, 0), windows);
                How::Offloaded(Lock::new(made.ok_or(NoOffer::Windows)?))
            }
            Strategy::Rpc => {
                let chunks = (0..offer.count).map(|_| Some((windows.make(NODE)?, 0, 0))).collect::<Option<Vec<_>>>();
                let chunks = chunks.ok_or(NoOffer::Windows)?;
                How::Rpc(Lock::new(Rpc { memory, free: (0..offer.count).rev().collect(), chunks }))
            }
            Strategy::Prebound => How::Prebound(Prebound::new(&offer, memory, chunks_at, windows)?),
        };
        Ok(Offered { offer, how })
    }

    /// What a host is told: strategy, bytes of a chunk, chunks, key of the table, where keys and windows are in it.
    fn describe(&self) -> [u64; 6] {
        let (table, keys, windows) = match &self.how {
            How::Prebound(prebound) => (prebound.table.0, prebound.keys_at, prebound.windows_at),
            _ => (0, 0, 0),
        };
        [self.offer.strategy as u64, self.offer.chunk_bytes, self.offer.count, table, keys, windows]
    }

    /// A SEND that takes a chunk or gives one back.
    fn run(
        &self,
        who: (u64, u64),
        which: Which,
        said: &[u8],
        windows: &Windows,
        section: &mut Section<'_>,
    ) -> Result<[u8; 64], Status> {
        match &self.how {
            How::Offloaded(offload) => {
                // In a section nobody is waited for who may wait for its end.
                let mut offload = loop {
                    match offload.try_lock() {
                        Some(offload) => break offload,
                        None => section.renew(),
                    }
                };
                offload.send(who, which, said, windows, &mut || section.renew())
            }
            How::Rpc(rpc) => {
                let mut rpc = loop {
                    match rpc.try_lock() {
                        Some(rpc) => break rpc,
                        None => section.renew(),
                    }
                };
                match which {
                    Which::Take => rpc.take(who, said, &self.offer, windows),
                    Which::Give => rpc.give(who, said, &self.offer, windows, section),
                }
            }
            How::Prebound(_) => Err(Status::Access),
        }
    }

    /// A member is gone. What it had of prebound chunks only the others know: FineMem's recovery goes by a log
    /// that is not kept here.
    fn recover(&self, member: u64, windows: &Windows, drain: &mut dyn FnMut()) {
        match &self.how {
            How::Offloaded(offload) => offload.lock().recover(member, windows, drain),
            How::Rpc(rpc) => rpc.lock().recover(member, &self.offer, windows, drain),
            How::Prebound(_) => {}
        }
    }
}

impl Service for Offered {
    fn send(
        &self,
        caller: &Caller<'_>,
        number: u32,
        said: &[u8],
        windows: &Windows,
        section: &mut Section<'_>,
    ) -> Result<[u8; 64], Status> {
        match Key::service(number) {
            TAKE => self.run(caller.id(), Which::Take, said, windows, section),
            GIVE => self.run(caller.id(), Which::Give, said, windows, section),
            DESCRIBE => {
                let mut reply = [0; 64];
                for (field, word) in reply.chunks_exact_mut(8).zip(self.describe()) {
                    field.copy_from_slice(&word.to_le_bytes());
                }
                Ok(reply)
            }
            _ => Err(Status::Access),
        }
    }

    fn departed(&self, member: u64, windows: &Windows, drain: &mut dyn FnMut()) {
        self.recover(member, windows, drain);
    }

    fn keep(&self, windows: &Windows) {
        if let How::Prebound(prebound) = &self.how {
            prebound.regenerate(&self.offer, windows);
        }
    }
}

fn word(said: &[u8], n: usize) -> u64 {
    said.get(8 * n..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn generation(key: Key) -> u32 {
    match key.kind() {
        KeyKind::Window { generation, .. } => generation,
        _ => 0,
    }
}

fn index(key: Key) -> u32 {
    match key.kind() {
        KeyKind::Window { index, .. } => index,
        _ => 0,
    }
}

fn bound(memory: &Memory, base: u64, len: u64, rights: Rights, user: u64, queue: u64) -> Bound {
    Bound { memory: memory.clone(), base, len, rights, user, queue, parent: Key(0), under: None, carved: Vec::new() }
}

const DATA: Rights = Rights::READ.and(Rights::WRITE);

impl Rpc {
    /// Said: the queue pair that gives it back, the one that uses it.
    fn take(&mut self, who: (u64, u64), said: &[u8], offer: &Offer, windows: &Windows) -> Result<[u8; 64], Status> {
        let chunk = self.free.pop().ok_or(Status::Empty)?;
        let (key, owner, giver) = &mut self.chunks[chunk as usize];
        let to = bound(&self.memory, chunk * offer.chunk_bytes, offer.chunk_bytes, DATA, who.0, word(said, 1));
        match windows.bind(NODE, (index(*key), generation(*key)), to) {
            Ok(bound) => (*key, *owner, *giver) = (bound, who.0, word(said, 0)),
            Err(status) => {
                self.free.push(chunk);
                return Err(status);
            }
        }
        let mut reply = [0; 64];
        reply[..8].copy_from_slice(&key.0.to_le_bytes());
        reply[48..56].copy_from_slice(&chunk.to_le_bytes());
        Ok(reply)
    }

    fn give(
        &mut self,
        who: (u64, u64),
        said: &[u8],
        offer: &Offer,
        windows: &Windows,
        section: &mut Section<'_>,
    ) -> Result<[u8; 64], Status> {
        let chunk = said.first_chunk().map_or(u64::MAX, |name| u32::from_le_bytes(*name) as u64);
        let taken = self
            .chunks
            .get(usize::try_from(chunk).unwrap_or(usize::MAX))
            .filter(|(_, owner, giver)| (*owner, *giver) == who);
        taken.ok_or(Status::Access)?;
        self.unbind(chunk, offer, windows, &mut || section.renew());
        Ok([0; 64])
    }

    fn unbind(&mut self, chunk: u64, offer: &Offer, windows: &Windows, drain: &mut dyn FnMut()) {
        let (key, owner, _) = &mut self.chunks[chunk as usize];
        if let Ok(free) = windows.invalidate(NODE, 0, (index(*key), generation(*key))) {
            *key = free;
        }
        *owner = 0;
        drain();
        wipe(&self.memory, chunk * offer.chunk_bytes, offer.chunk_bytes);
        self.free.push(chunk);
    }

    fn recover(&mut self, member: u64, offer: &Offer, windows: &Windows, drain: &mut dyn FnMut()) {
        for chunk in 0..offer.count {
            if self.chunks[chunk as usize].1 == member {
                self.unbind(chunk, offer, windows, drain);
            }
        }
    }
}

fn wipe(memory: &Memory, base: u64, len: u64) {
    for page in (base..base + len).step_by(4096) {
        // Inside: the offer was checked when it was made.
        let _ = memory.mapping().write_bytes(page, &[0; 4096]);
    }
}

impl Prebound {
    fn new(offer: &Offer, memory: Memory, chunks_at: u64, windows: &Windows) -> Result<Prebound, NoOffer> {
        let keys_at = 8 * offer.count.div_ceil(64);
        let windows_at = keys_at + 8 * offer.count;
        let make = || windows.make(NODE).ok_or(NoOffer::Windows);
        let bind =
            |key: Key, to: Bound| windows.bind(NODE, (index(key), generation(key)), to).map_err(|_| NoOffer::Windows);
        let rights = Rights::READ.and(Rights::ATOMIC);
        let table = bind(make()?, bound(&memory, 0, chunks_at, rights, ANY_MEMBER, ANY_QUEUE))?;
        let prebound = Prebound { memory, keys_at, windows_at, chunks_at, table };
        for chunk in 0..offer.count {
            let keys = [make()?, make()?];
            let to = prebound.chunk(offer, chunk);
            let generations = [generation(bind(keys[0], to.clone())?), generation(bind(keys[1], to)?)];
            prebound.set(windows_at + 8 * chunk, (index(keys[0]) as u64) << 32 | index(keys[1]) as u64);
            prebound.set(keys_at + 8 * chunk, (generations[0] as u64) << 32 | 1 << 31 | generations[1] as u64);
        }
        Ok(prebound)
    }

    /// What both windows of a chunk are bound to: for whoever knows the key, as a type-1 window.
    fn chunk(&self, offer: &Offer, chunk: u64) -> Bound {
        let base = self.chunks_at + chunk * offer.chunk_bytes;
        bound(&self.memory, base, offer.chunk_bytes, DATA, ANY_MEMBER, ANY_QUEUE)
    }

    fn set(&self, at: u64, word: u64) {
        if let Some(place) = self.memory.mapping().word(at) {
            place.store(word, std::sync::atomic::Ordering::SeqCst);
        }
    }

    fn get(&self, at: u64) -> u64 {
        self.memory.mapping().faa(at, 0).unwrap_or(0)
    }

    /// A backup that was used up is the window that was in use before the last give: unbound, and bound anew.
    fn regenerate(&self, offer: &Offer, windows: &Windows) {
        for chunk in 0..offer.count {
            let at = self.keys_at + 8 * chunk;
            let keys = self.get(at);
            if keys as u32 != USED_UP {
                continue;
            }
            let main = (keys >> 32) as u32;
            let which = 1 - (main >> 31);
            let index = (self.get(self.windows_at + 8 * chunk) >> (32 * (1 - which))) as u32;
            let Some((Key(old), true)) = windows.key_of(index) else { continue };
            let Ok(free) = windows.invalidate(NODE, 0, (index, generation(Key(old)))) else { continue };
            let Ok(key) = windows.bind(NODE, (index, generation(free)), self.chunk(offer, chunk)) else { continue };
            let fresh = keys & !(USED_UP as u64) | (which << 31 | generation(key)) as u64;
            // One that changed meanwhile is looked at again next time.
            let _ = self.memory.mapping().cas(at, keys, fresh);
        }
    }
}
