//! The one hook of the NIC: a service of the node's own, which members ask by SEND.
//!
//! A NIC serves nothing by itself, and refuses every SEND. A node with `--compute` serves functions
//! near memory; `lab/offload` serves chunks with windows that the NIC binds.

use super::epochs::{Epochs, Section};
use super::grip::Grip;
use super::windows::Windows;
use super::{Member, Nic};
use farmem_protocol::key::{Key, KeyKind};
use farmem_protocol::wire::{Op, REPLY_BYTES, Status};
use farmem_sys::sync::Lock;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Answers SENDs to the node's own queues.
pub trait Service: Send + Sync {
    /// A SEND of a member, through one of its queue pairs, to the queue of this number. Returns the
    /// answer.
    ///
    /// The caller is in `section`. A service that waits renews it: in a section nobody is waited
    /// for that may wait for its end. A service that waits for long does it between calls instead:
    /// see [`Caller::later`].
    ///
    /// # Errors
    /// The completion's status.
    fn send(
        &self,
        caller: &Caller<'_>,
        number: u32,
        said: &[u8],
        windows: &Windows,
        section: &mut Section<'_>,
    ) -> Result<[u8; REPLY_BYTES as usize], Status>;

    /// A member is gone. `drain` waits until every transfer that is under way has ended.
    fn departed(&self, member: u64, windows: &Windows, drain: &mut dyn FnMut());

    /// Does a piece of what the service does by itself.
    fn keep(&self, windows: &Windows);
}

/// The service, once there is one, and what it is to be told.
pub(super) struct Served {
    service: OnceLock<Box<dyn Service>>,
    /// Members that are gone, of which the service does not know yet.
    departed: Lock<Vec<u64>>,
}

impl Default for Served {
    fn default() -> Served {
        Served { service: OnceLock::new(), departed: Lock::new(Vec::new()) }
    }
}

impl Served {
    /// Has `service` answer SENDs from now on. Only the first one does.
    pub fn set(&self, service: impl Service + 'static) {
        let _ = self.service.set(Box::new(service));
    }

    pub fn get(&self) -> Option<&dyn Service> {
        self.service.get().map(Box::as_ref)
    }

    /// A member is gone.
    pub fn departed(&self, member: u64) {
        if self.service.get().is_some() {
            self.departed.lock().push(member);
        }
    }

    /// Tells the service who has departed, and has it do a piece of what it does by itself.
    pub fn keep(&self, windows: &Windows, epochs: &Epochs) {
        let Some(service) = self.service.get() else { return };
        for member in std::mem::take(&mut *self.departed.lock()) {
            service.departed(member, windows, &mut || epochs.wait());
        }
        service.keep(windows);
    }
}

/// The most SENDs of a member that are put off at once.
pub const WAITING: u64 = 64;

/// The member that asks, and its queue pair.
pub struct Caller<'a> {
    pub(super) nic: &'a Nic,
    pub(super) member: &'a Member,
    pub(super) queue: u64,
    pub(super) mark: Option<u64>,
    /// The mark of a SEND that is put off.
    pub(super) waits: Cell<Option<u64>>,
}

impl Caller<'_> {
    /// The mark that the service left when it put this SEND off. `None`: it comes for the first
    /// time.
    pub fn mark(&self) -> Option<u64> {
        self.mark
    }

    /// Puts the SEND off, if not too many of the member's are. False: it must be answered.
    ///
    /// The service's result is not sent then. The worker asks again after about a millisecond, when
    /// it has served others, with this mark. The verbs behind it on its queue pair wait meanwhile,
    /// and no right is held.
    pub fn later(&self, mark: u64) -> bool {
        let waiting = &self.member.computed.waiting;
        let may = self.mark.is_some()
            || waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < WAITING).then_some(n + 1)).is_ok();
        if may {
            self.waits.set(Some(mark));
        }
        may
    }

    /// The member's serial number, and the queue pair's number.
    pub fn id(&self) -> (u64, u64) {
        (self.member.serial, self.queue)
    }

    /// Memory that the member may do this to. The grip is good until the section ends or is
    /// renewed.
    ///
    /// # Errors
    /// As a verb would be refused. [`Status::Empty`]: the slab was put aside ([`super::spill`]), and is
    /// on its way back.
    pub fn admit(&self, key: Key, op: Op, offset: u64, len: u64) -> Result<Grip, Status> {
        if let KeyKind::Slab(slab) = key.kind()
            && !self.nic.is_at_hand(self.member, slab)
        {
            return Err(Status::Empty);
        }
        self.nic.admission().admit(self.member, self.queue, (key, op), offset, len)
    }

    /// Accounts for a function's time, and for the call when it has ended.
    pub fn computed(&self, ns: u64, ended: bool) {
        for computed in [&self.member.computed, &self.nic.computed] {
            computed.calls.fetch_add(ended.into(), Ordering::Relaxed);
            computed.ns.fetch_add(ns, Ordering::Relaxed);
        }
    }
}

/// Functions near memory, of a member or of all.
#[derive(Debug, Default)]
pub struct Computed {
    /// How many.
    pub calls: AtomicU64,
    /// Their time.
    pub ns: AtomicU64,
    /// A member's that are put off now.
    pub waiting: AtomicU64,
}
