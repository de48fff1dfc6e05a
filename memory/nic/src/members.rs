//! Members of runs at this node: their identity, how long they stay, and what they hold.
//!
//! A *member* is one process of a run at this node, known by a secret. It is
//! present while any connection of its stands:
//!
//! ```text
//!         Join, Ticket                         last connection closed
//!  (none) ───────────► present ────────────────────────────────────────► absent ── grace over ──► gone
//!                       │  ▲ ▲                                            │  │
//!                       │  │ └──────────── Rejoin, Attach ────────────────┘  │
//!                       │  └─ a Ticket's member begins absent                │
//!                       └── Bye, EndRun, or its Unix socket closed ──────────┴──────► gone
//! ```
//! (EndRun ends no member whose Unix socket stands.)
//!
//! A member has one control connection, and one for each queue pair. A member that was cut dials
//! again, and requests that it sent before may still be under way, at the node even already
//! received. None of them is carried out any more once the node has said welcome, because the newer
//! connection has the *turn* ([`Turn`]). The request is repeated there. By the time the older copy
//! comes, its target may be something else (a window's index, a range of a slab, a member that has
//! left).
//!
//! A closed Unix socket proves that the process is gone, or has exec'ed; a closed
//! TCP connection proves nothing. Gone: its slabs lose one holder, its queue
//! pairs carry out nothing more.

pub(crate) mod coming;

use super::lending::Slab;
use super::regions::Shared;
use super::service::Computed;
use super::shares::{By, Peer, Place};
use super::spill::Heard;
use super::tenants::Tenant;
use super::units::leases::Lease;
use super::wires::Wires;
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::wire::{Names, Secret, run_id};
use farmem_sys::sync::Lock;
use farmem_trust::TokenId;
use farmem_trust::agree::Agreed;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Members at one node, at most. Each may take two of the 16 383 owner ids, its own and its
/// run's. The others are spare: an id is not free until its owner is buried.
pub const MAX_MEMBERS: usize = 8000;
/// Members let go of together when the table is full.
const LET_GO: usize = 64;
/// How often members are listed that are to end, at most: each time with the children that were being
/// made when their parents ended.
pub(super) const GENERATIONS: usize = 64;
/// How long a forked child's place is kept for its first hello before it may give way.
const AWAITED_NS: u64 = 30_000_000_000;
/// Queue pairs of one member at a time, at most.
pub const MAX_QUEUES: usize = 8192;
/// The longest grace a member can have, in milliseconds: an hour.
pub const MAX_GRACE_MS: u64 = 3_600_000;
/// Added by the node to a member's grace: the host's clock for it starts later than ours when the
/// connection is closed here first.
const GRACE_MARGIN_NS: u64 = 1_000_000_000;

/// One process of a run.
pub struct Member {
    pub(super) run: Secret,
    pub(super) pid: u32,
    /// As it said itself; of a forked child, as its parent did.
    pub(super) names: Names,
    /// Where it joined from.
    pub(super) peer: Peer,
    /// Whose its entries of the node's tables are.
    pub(super) by: By,
    pub(super) secret: Secret,
    /// Never given to another while the node lives; from 1.
    pub(super) serial: u64,
    /// By which descriptor words name what it claims.
    pub(super) lease: Lease,
    /// And its run's slabs.
    pub(super) tenancy: Arc<Lease>,
    /// The token that it joined by, or came back by since. Changed while the node's tokens are locked.
    pub(super) token: Lock<Option<TokenId>>,
    /// The secret of its connections, where these are encrypted.
    pub(super) agreed: Lock<Option<Agreed>>,
    /// It outlives its process.
    pub(super) lasting: bool,
    /// Joined through a Unix socket, whose end is the process's end, and does not outlive it.
    pub(super) local: bool,
    /// Has been here through a Unix socket: its process may have the memory mapped, past the node. Set
    /// before anything is passed by that socket, and never unset.
    mapped: AtomicBool,
    /// A member that outlives its process has bound memory for it: it is a program of an agent.
    served: AtomicBool,
    /// Its time here is over. Set before its end is marked in `holds`; read within sections.
    over: AtomicBool,
    pub(super) grace_ns: u64,
    /// Of its control connection.
    pub(super) control: Arc<Turn>,
    pub(super) presence: Lock<Presence>,
    pub(super) holds: Lock<Holds>,
    /// Anything that came from it.
    pub(super) heard: Heard,
    /// Its questions whether slabs are wanted back.
    pub(super) asked: Heard,
    /// Locked before `holds`.
    pub(super) wires: Lock<Wires>,
    /// Its functions near memory.
    pub computed: Computed,
}

/// A member to be made.
struct Newcomer {
    run: Secret,
    pid: u32,
    names: Names,
    peer: Peer,
    by: By,
    local: bool,
    mapped: bool,
    grace_ns: u64,
    holder: Holder,
    agreed: Option<Agreed>,
    lasting: bool,
}

/// A tenant, and its token.
pub(super) type Holder = Option<(Arc<Tenant>, TokenId)>;

pub(super) struct Presence {
    pub(super) connections: usize,
    /// Of these, for control: one, but for those that were superseded and have not closed.
    pub(super) controls: usize,
    /// Announced by a ticket, and not yet here.
    awaited: bool,
    pub(super) absent_since: u64,
    /// Queue pairs with a connection, or with an older one that has not closed. Their connections
    /// hold the turns.
    pub(super) queues: BTreeMap<u64, Weak<Turn>>,
    /// Number of the last request that was carried out, and its answer as it went out.
    pub(super) answered: Option<(u64, Box<[u8]>)>,
}

#[derive(Default)]
pub(super) struct Holds {
    pub(super) gone: bool,
    /// Its part of the table of members, while it is in it.
    pub(super) place: Option<Place>,
    /// Granted to it, or to the member that it was forked from.
    pub(super) slabs: BTreeMap<SlabId, Arc<Slab>>,
    /// Regions that it has opened, and what it holds of them.
    pub(super) shared: Shared,
    /// By their indexes; the generation of the first key that each had.
    pub(super) windows: BTreeMap<u32, (u32, Place)>,
}

/// The right to carry out the verbs of a queue pair, or a member's requests: the connection that
/// came last has it. The lock is held while something is carried out. So after an Attach the
/// connection before can reach memory no more, and a Rejoin finds earlier requests either done and
/// answered, or never to be done.
///
/// A thread that waits for it is in no section and holds no other lock of the member's: the holder
/// may wait for the end of all sections.
pub struct Turn(pub(super) Lock<u64>);

impl Turn {
    /// No connection has it yet.
    fn new() -> Arc<Turn> {
        Arc::new(Turn(Lock::new(0)))
    }

    /// The turn of a connection that comes now, and nobody else's from here on. Its number.
    fn pass(&self) -> u64 {
        let mut turn = self.0.lock();
        *turn += 1;
        *turn
    }
}

impl Presence {
    /// Whether it is absent, and not about to come for the first time.
    fn is_idle(&self, now_ns: u64) -> bool {
        let late = now_ns.saturating_sub(self.absent_since) > AWAITED_NS;
        self.connections == 0 && (!self.awaited || late)
    }
}

impl Holds {
    fn is_empty(&self) -> bool {
        self.slabs.is_empty() && self.shared.is_empty() && self.windows.is_empty()
    }

    /// The slab, its own or a region's.
    pub(super) fn slab(&self, id: SlabId) -> Option<Arc<Slab>> {
        self.slabs.get(&id).cloned().or_else(|| self.shared.slab(id))
    }

    pub(super) fn let_go(&mut self, id: SlabId) -> Option<Arc<Slab>> {
        self.slabs.remove(&id).or_else(|| self.shared.let_go(id))
    }

    /// Marks the member's end: it is granted nothing more. Returns all that it held.
    fn end(&mut self) -> Holds {
        std::mem::replace(self, Holds { gone: true, ..Holds::default() })
    }
}

impl Member {
    /// The public name of its run.
    pub fn run_id(&self) -> u64 {
        run_id(&self.run)
    }

    /// Its number at this node, which no other member has or had.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// The host's process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The names that it gives itself.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// The tenant that its memory is for.
    pub fn tenant(&self) -> Option<&Arc<Tenant>> {
        self.lease.tenant()
    }

    /// The token that it ends with.
    pub(super) fn token(&self) -> Option<TokenId> {
        *self.token.lock()
    }

    /// Its tenant and its token.
    fn holder(&self) -> Holder {
        self.tenant().cloned().zip(self.token())
    }

    /// Whether its memory is for this tenant.
    fn is_of(&self, holder: &Holder) -> bool {
        self.tenant().map(|tenant| tenant.name) == holder.as_ref().map(|(tenant, _)| tenant.name)
    }

    /// Whether it may know of what belongs to this tenant: another tenant's it may not. A member
    /// without a tenant is of the node's own user, or of a node that anybody may use.
    pub(super) fn may_know(&self, of: Option<&Arc<Tenant>>) -> bool {
        self.tenant().is_none_or(|own| of.is_some_and(|of| of.name == own.name))
    }

    /// The id by which descriptor words name it.
    pub fn owner(&self) -> u16 {
        self.lease.owner().slot()
    }

    /// Where it joined from.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Bytes held: slabs, and units that it claimed. Not what regions hold.
    pub fn held(&self) -> u64 {
        self.holds.lock().slabs.len() as u64 * SLAB_BYTES + self.lease.held()
    }

    /// Whether nothing is lost with it: it holds no memory, and no window.
    pub fn is_empty_handed(&self) -> bool {
        self.lease.held() == 0 && self.holds.lock().is_empty()
    }

    /// A member that outlives its process binds memory for it.
    pub(crate) fn is_served_by(&self, binder: &Member) {
        if binder.lasting {
            self.served.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it is absent and holds nothing.
    fn is_idle(&self, now_ns: u64) -> bool {
        self.presence.lock().is_idle(now_ns) && self.is_empty_handed()
    }

    /// Queue pairs that it has now.
    pub fn queue_pairs(&self) -> usize {
        self.presence.lock().queues.len() + self.wires.lock().count()
    }

    /// Whether a connection of its stands. If not, it is waited for until its grace is over.
    pub fn is_present(&self) -> bool {
        self.presence.lock().connections > 0
    }

    /// Whether its time here is over.
    pub fn is_gone(&self) -> bool {
        self.holds.lock().gone
    }

    /// [`Member::is_gone`] for use in a section. Once this is true, the member touches no memory
    /// after the sections of that moment have ended.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Whether its process may have memory mapped.
    pub(super) fn is_mapped(&self) -> bool {
        self.mapped.load(Ordering::SeqCst)
    }

    /// The slab, if this member holds it.
    pub(super) fn slab(&self, id: SlabId) -> Option<Arc<Slab>> {
        self.holds.lock().slab(id)
    }

    /// False when the member is gone already.
    pub(super) fn hold(&self, slab: Arc<Slab>) -> bool {
        let mut holds = self.holds.lock();
        if !holds.gone {
            holds.slabs.insert(slab.id, slab);
        }
        !holds.gone
    }
}
