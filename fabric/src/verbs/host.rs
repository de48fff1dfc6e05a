//! A member's own card: opened once a process, and again after a fork.

// Buffers that the card may touch are the caller's.
#![allow(unsafe_code)]

use crate::session::Membership;
use crate::{Lost, Refusal, Session};
use farmem_protocol::addr::SlabId;
use farmem_protocol::wire::{Ask, Reply, Status};
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use farmem_sys::verbs::{Absent, Device, Domain, Region, Rights};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A member's state of RDMA: whether it uses it, and the card once it is open.
pub(crate) struct Card {
    /// Verbs on slabs go by RDMA.
    pub wanted: bool,
    open: Lock<Option<Arc<Host>>>,
    /// Ranges that may be registered, `(start, length)`: they stay mapped as long as the member.
    arenas: Lock<Vec<(usize, usize)>>,
    /// How often completions have come to the member's queue pairs.
    moved: AtomicU64,
}

/// An open card.
pub(crate) struct Host {
    device: Device,
    pub domain: Arc<Domain>,
    /// Keys of slabs at the node.
    keys: Lock<BTreeMap<SlabId, u32>>,
    /// By their start.
    buffers: Lock<BTreeMap<usize, Buffer>>,
}

struct Buffer {
    end: usize,
    /// None: the system would not lock it.
    region: Option<Region>,
}

/// By what the card lets memory be reached.
#[derive(Clone, Copy)]
pub(super) struct Right {
    pub rkey: u32,
    /// The address of its first byte.
    pub base: u64,
}

/// A registered range: buffers in it need no bounce.
#[derive(Clone, Copy, Default)]
pub(crate) struct Known {
    pub start: usize,
    pub end: usize,
    pub lkey: u32,
}

impl Known {
    #[inline]
    pub fn covers(&self, at: usize, len: usize) -> bool {
        at >= self.start && at + len <= self.end
    }
}

impl Session {
    /// Says that many verbs will use buffers in `len` bytes at `at`: RDMA registers them once.
    /// Others are carried by way of small buffers of the queue pair's own, or registered for a
    /// single verb.
    ///
    /// # Safety
    /// The range stays mapped, with the same pages, writable and near, as long as the process.
    pub unsafe fn arena(&self, at: *mut u8, len: usize) {
        self.member.card.arena(at as usize, len);
    }
}

impl Default for Card {
    fn default() -> Card {
        Card { wanted: false, open: Lock::new(None), arenas: Lock::new(Vec::new()), moved: AtomicU64::new(0) }
    }
}

impl Card {
    /// One that is used, open.
    pub fn opened(device: Device) -> Result<Card, Absent> {
        let card = Card { wanted: true, ..Card::default() };
        *card.open.lock() = Some(Arc::new(Host::new(device)?));
        Ok(card)
    }

    /// A forked child's: the same use and the same ranges, to be opened when first needed.
    pub fn of_child(&self) -> Card {
        Card { wanted: self.wanted, arenas: Lock::new(self.arenas.lock().clone()), ..Card::default() }
    }

    /// In a forked child, of its parent's: closes the descriptors.
    pub fn forget_in_child(&self) {
        if let Some(host) = self.open.lock().take() {
            host.device.forget_in_child();
            std::mem::forget(host);
        }
    }

    /// Completions have come.
    pub fn note_moved(&self) {
        self.moved.fetch_add(1, Ordering::Relaxed);
    }

    /// How often completions have come, to any queue pair of the member: while that changes, the node
    /// and the way to it are there.
    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// A range that is worth registering. Does nothing where RDMA is not used.
    pub fn arena(&self, at: usize, len: usize) {
        if self.wanted {
            let mut arenas = self.arenas.lock();
            if !arenas.contains(&(at, len)) {
                arenas.push((at, len));
            }
        }
    }

    /// The card, opened if it is not.
    pub fn host(&self) -> Result<Arc<Host>, Absent> {
        let mut open = self.open.lock();
        match &*open {
            Some(host) => Ok(Arc::clone(host)),
            None => {
                let host = Arc::new(Host::new(Device::open(None)?)?);
                *open = Some(Arc::clone(&host));
                Ok(host)
            }
        }
    }

    /// The slab is held no more.
    pub fn forget_key(&self, slab: SlabId) {
        if let Some(host) = &*self.open.lock() {
            host.keys.lock().remove(&slab);
        }
    }

    /// The registered range that covers `len` bytes at `at`, if it is an arena's.
    pub fn known(&self, host: &Host, at: usize, len: usize) -> Option<Known> {
        let arenas = self.arenas.lock();
        let &(start, whole) = arenas.iter().find(|(start, whole)| at >= *start && at + len <= start + whole)?;
        drop(arenas);
        let mut buffers = host.buffers.lock();
        let buffer = buffers.entry(start).or_insert_with(|| {
            // SAFETY: an arena stays mapped as long as the member, which the host's regions do not
            // outlive.
            let region = unsafe { host.domain.region(start as *mut u8, whole, Rights::Local) };
            // Refused (the limit on locked memory): everything in it goes by the bounce buffer.
            Buffer { end: start + whole, region: region.ok() }
        });
        buffer.region.as_ref().map(|region| Known { start, end: buffer.end, lkey: region.lkey() })
    }
}

impl Host {
    fn new(device: Device) -> Result<Host, Absent> {
        let domain = device.domain().map_err(|e| Absent::Refused("protection domain", e))?;
        Ok(Host { device, domain, keys: Lock::new(BTreeMap::new()), buffers: Lock::new(BTreeMap::new()) })
    }

    /// The key of a slab at the node, asked for once.
    pub fn key(&self, member: &Membership, slab: SlabId) -> Result<Result<u32, Refusal>, Lost> {
        if let Some(&key) = self.keys.lock().get(&slab) {
            return Ok(Ok(key));
        }
        match member.ask(Ask::Expose(slab))?.0 {
            Ok(Reply::Exposed(key, _)) => {
                self.keys.lock().insert(slab, key);
                Ok(Ok(key))
            }
            Err(refused) if refused.status == Status::System => {
                let reason = Errno(refused.value as i32);
                Err(member.give_up(format!(
                    "its RDMA card cannot take a slab: {reason} (memory that a card reaches is locked: raise its limit, `ulimit -l`)"
                )))
            }
            _ => Ok(Err(Refusal::NotHeld)),
        }
    }

    /// Forgets all keys: one was refused.
    pub fn forget_keys(&self) {
        self.keys.lock().clear();
    }
}
