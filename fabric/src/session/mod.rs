//! A member of a run at one node, and how it stays one.
//!
//! A session has one connection for control (grants, releases, tickets). Its queue pairs have
//! connections of their own, and use the session's identity, a secret. Any connection may be cut.
//! The next thread that needs it restores it:
//!
//! ```text
//!  cut ─► dial again, with secret and incarnation
//!          ├─ welcome ──────────────────────────► go on; repeat what had no answer
//!          ├─ unknown, other incarnation ───────► Lost: the memory is gone. With a token: if the node proves
//!          │                                      that it says so; else again, until grace is over
//!          ├─ refused, no middlebox between ────► Lost after REFUSED_NS: no process listens
//!          ├─ refused by a middlebox, unreachable, closed at once ─► again, until grace is over
//!          ├─ connected, silent ────────────────► wait: a stopped node answers when it continues
//!          └─ welcome, and then nonsense ───────► again; Lost when the grace is over
//! ```
//!
//! A connection also counts as cut when the peer's machine has gone silent: [`silence`].
//!
//! The first Welcome shows whether a middlebox is on the way: the node says at which of its
//! addresses the connection came in. `docs/design/loss.md` gives the reasons for these rules.
//!
//! Over shared memory there is no path to be cut: a closed Unix socket is a dead node.

mod clock;
mod connect;
mod dial;
mod grants;
mod member;
mod records;
mod regions;
mod silence;
#[cfg(all(test, not(loom)))]
mod simulated;
mod slabs;
mod spare;
mod standing;

pub use clock::Clock;
use dial::Pass;
pub(crate) use dial::{receive_all, send_now};
pub(crate) use member::{Control, Membership, SLOW};
pub use member::{FAREWELL_NS, REFUSED_NS, SILENT_NS};
pub use records::Records;
pub use regions::{MAX_OPENERS, Region, Regions, Removal};
pub use silence::BOUND_NS;
pub(crate) use silence::DOUBT_NS;
pub use spare::{SLOW_NS, Spare};
pub(crate) use spare::{STEP_NS, Standstill};
pub use standing::Standing;

use crate::link::Passed;
use crate::{GrantError, Lost, QueuePair, WindowError};
use farmem_protocol::addr::SlabId;
use farmem_protocol::key::Key;
pub use farmem_protocol::node::{Domain, Transport};
use farmem_protocol::wire::Range;
use farmem_protocol::wire::{Ask, Names, Reply, Request, Secret, Status, Text};
use farmem_sys::process;
use farmem_sys::raw::Errno;
pub use farmem_trust::Trust;
use farmem_trust::agree::Agreed;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The name of a run: 128 bits that only its members know.
pub type RunId = Secret;

/// A new member's names and wishes. The defaults are no waiting time and the run of all zeros, so
/// set at least `timeout`, `grace` and `run`.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// How long the first connection may take.
    pub timeout: Duration,
    /// How long a cut connection may take to come back. The node keeps the member's memory as long.
    pub grace: Duration,
    /// The run it belongs to.
    pub run: RunId,
    /// Its process. Only the node's records use it.
    pub pid: u32,
    /// How bytes are to move.
    pub transport: Transport,
    /// The member's names. Only the node's records use them.
    pub names: Names,
    /// The token by which member and node know each other.
    pub trust: Trust,
}

/// The names of this process: its machine and user, and the program's name as given. It reads
/// files by the standard library, so the runtime must not call it.
pub fn names_of(program: &str) -> Names {
    Names {
        host: Text::new(&process::host_name()),
        user: Text::new(&process::user_name(process::user())),
        program: Text::new(program),
    }
}

/// One slab, as granted: zero.
#[derive(Debug)]
pub struct Slab {
    /// Its name at the node.
    pub id: SlabId,
    /// Where it is mapped (shm). It stays mapped until released.
    pub base: Option<NonNull<u8>>,
}

/// A member's identity at its node; see [`Session::resume`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its secret.
    pub secret: Secret,
    /// The node's incarnation.
    pub incarnation: u64,
    /// Number of its last request. A request under the number of the one before is answered as that
    /// one was, and not carried out again.
    pub number: u64,
    /// The secret of its connections, if they are encrypted. It never goes over the wire.
    pub agreed: Option<Agreed>,
}

/// One member of a run at one node. Shared by the threads of a process.
///
/// The session itself joins, holds slabs and makes queue pairs. What few callers need are parts
/// with types of their own, so that a step's signature says which it uses:
///
/// * [`Session::standing`]: whether the node and the member are still there, and what ends that.
/// * [`Session::clock`]: the time by which it waits.
/// * [`Session::regions`]: regions of the node.
/// * [`Session::records`]: what the node tells of itself.
///
/// Dropping it leaves the node in good order. In a forked child, use
/// [`Session::forget_in_child`].
pub struct Session {
    pub(crate) member: Arc<Membership>,
}

impl Session {
    /// The identity for a later [`Session::resume`].
    pub fn identity(&self) -> Identity {
        let number = self.member.control.lock().number;
        let agreed = self.member.pass.as_ref().and_then(Pass::agreed);
        Identity { secret: self.member.secret, incarnation: self.member.incarnation, number, agreed }
    }

    /// Another descriptor of a held slab. The caller may pass it to a process that it trusts, and
    /// closes it. `None`: the slab is not held, or not shared.
    pub fn descriptor(&self, id: SlabId) -> Result<Option<i32>, Lost> {
        self.member.ask(Ask::Again(id)).map(|(_, passed)| passed.map(Passed::into_raw))
    }

    /// A descriptor of neighbouring blocks' memory, for processes on this machine to map. `first`
    /// is the first block's key, `blocks` their number: 1 to 32, of 2 MiB each. This member must
    /// have claimed them through the node's words, in open giants. The memory is the one that verbs
    /// reach by the blocks' keys. The caller closes the descriptor.
    ///
    /// # Errors
    /// [`GrantError::System`] also when the blocks are not this member's, when the node is not on
    /// this machine, and when this member's files use half of the node's descriptors (EMFILE): give
    /// some blocks back.
    pub fn unit(&self, first: Key, blocks: u32) -> Result<i32, GrantError> {
        let (answer, passed) = self.member.ask(Ask::Unit(first, blocks))?;
        let system = |reason| Err(GrantError::System { node: self.member.node.clone(), reason });
        match (answer, passed) {
            (Ok(_), Some(passed)) => Ok(passed.into_raw()),
            // The node passed one; this process had no room for it.
            (Ok(_), None) => system(format!("here: {}", Errno(libc::EMFILE))),
            (Err(refused), _) => match refused.status {
                Status::System => system(format!("there: {}", Errno(refused.value as i32))),
                Status::Shared => system("some of these blocks were mapped together with others".into()),
                _ => system("these blocks are not this program's".into()),
            },
        }
    }

    /// Whether verbs on slabs go by RDMA.
    pub fn is_wired(&self) -> bool {
        self.member.card.wanted
    }

    /// Whether what goes over the network is encrypted and authenticated.
    pub fn is_sealed(&self) -> bool {
        self.member.pass.is_some_and(|pass| pass.is_sealed())
    }

    /// Whether slabs are mapped in this process.
    pub fn is_mapped(&self) -> bool {
        self.member.mapped
    }

    /// Whether no relay stands between this host and the node. A refused connection was then
    /// refused by the node's own machine.
    pub fn is_direct(&self) -> bool {
        self.member.direct || self.member.mapped
    }

    /// The node's address, as given.
    pub fn node(&self) -> &str {
        &self.member.node
    }

    /// The node's failure domain, as the caller named it or else as the node says. Empty: not
    /// known.
    pub fn domain(&self) -> Domain {
        self.member.domain
    }

    /// The session, with the failure domain that the caller knows. An empty one leaves what the
    /// node said.
    pub fn in_domain(mut self, domain: Domain) -> Session {
        if let Some(member) = Arc::get_mut(&mut self.member).filter(|_| !domain.is_empty()) {
            member.domain = domain;
        }
        self
    }

    /// The id by which windows and descriptor words at the node name this member.
    pub fn owner(&self) -> u16 {
        self.member.owner
    }

    /// A window, unbound; the key by which a BIND names it. A member has 65 536 at most.
    pub fn window(&self) -> Result<Key, WindowError> {
        match self.member.ask(Ask::Window)? {
            (Ok(Reply::Window(key)), _) => Ok(key),
            _ => Err(WindowError::Exhausted(self.member.node.clone())),
        }
    }

    /// The window, bound or not, by any key it ever had, is no longer needed.
    pub fn drop_window(&self, key: Key) -> Result<(), Lost> {
        self.member.ask(Ask::DropWindow(key)).map(|_| ())
    }

    /// One more slab, zero.
    pub fn grant(&self) -> Result<Slab, GrantError> {
        let (answer, passed) = self.member.ask(Ask::Grant)?;
        self.member.granted(answer, passed)
    }

    /// This member no longer needs the slab. It is unmapped; no queue pair may use it any more.
    pub fn release(&self, id: SlabId) -> Result<(), Lost> {
        self.member.release(id)
    }

    /// Gives the memory of a range of a slab back to the node's system: it reads as zero from now
    /// on. The slab stays held. False if a fork has made the slab another member's too; then
    /// nothing is done.
    ///
    /// No verb on the range may be under way. Over shared memory the node is not asked, so the
    /// caller must know that the slab is not shared.
    pub fn discard(&self, id: SlabId, offset: u64, len: u64) -> Result<bool, Lost> {
        if self.member.mapped {
            return Ok(self.member.slabs.discard(id, offset, len));
        }
        let (answer, _) = self.member.ask(Ask::Discard(Range { slab: id, offset, len }))?;
        Ok(answer.is_ok())
    }

    /// Has the node take the memory of a range of a slab from its system: [`MAX_BACKED`] bytes at
    /// most, in whole pages. Where slabs are mapped, call this before the first write. The kernel
    /// charges a page to the memory group of the process that touches it first, and this process's
    /// group may have a limit.
    ///
    /// [`MAX_BACKED`]: farmem_protocol::wire::MAX_BACKED
    pub fn back(&self, id: SlabId, offset: u64, len: u64) -> Result<(), GrantError> {
        let (answer, _) = self.member.ask(Ask::Back(Range { slab: id, offset, len }))?;
        match answer {
            Ok(_) => Ok(()),
            Err(refused) if refused.status == Status::System => Err(GrantError::System {
                node: self.member.node.clone(),
                reason: format!("there: {}", Errno(refused.value as i32)),
            }),
            Err(_) => Err(self.member.give_up("it no longer knows this program".to_owned()).into()),
        }
    }

    /// A queue pair of its own for a thread. A member can have 8192 at a time.
    ///
    /// # Errors
    /// The member is lost, if [`Standing::is_lost`] says so; else it has as many as it can, and
    /// those work on.
    pub fn queue_pair(&self) -> Result<QueuePair, Lost> {
        let number = self.member.next_queue.fetch_add(1, Ordering::Relaxed);
        QueuePair::new(Arc::clone(&self.member), number)
    }

    /// Looks whether the node is still there, and restores the control connection if it was cut or
    /// is silent. For a background thread, a few times a second: a queue pair over shared memory
    /// would never know, and one over TCP not while nothing is under way. Waits a second at most.
    pub fn tend(&self) -> Result<(), Lost> {
        // Held: another thread asks the node something, and notices.
        match self.member.control.try_lock() {
            Some(mut control) => self.member.tend(&mut control),
            None => self.member.check(),
        }
    }

    /// The run is over: its members' slabs are free now. For the run's supervisor.
    ///
    /// The run's end waits for this, and the node can do without it (it sees the members go, and
    /// waits for their graces): a connection that was cut is dialled once, and a node that does not
    /// answer within [`FAREWELL_NS`] finds the request when it looks.
    pub fn end_run(&self, run: RunId) -> Result<(), Lost> {
        self.member.say_over(run)
    }

    /// This process is about to end: over framed transports says goodbye, so that the node need not
    /// wait for a member that might come back. Waits for nobody. Verbs of other threads are refused
    /// from here on. Where slabs are mapped the node sees the end itself, and must not know of it
    /// before.
    pub fn farewell(&self) {
        if !self.member.mapped
            && let Some(mut control) = self.member.control.try_lock()
        {
            say_bye(&mut control);
        }
    }

    /// Whether another session is with the same life of the same node.
    pub fn is_beside(&self, other: &Session) -> bool {
        self.member.incarnation == other.member.incarnation
    }

    /// In a forked child, which inherited its parent's session: closes the descriptors without a
    /// farewell. Mappings of slabs stay, because the child's own session owns them now.
    pub fn forget_in_child(self) {
        self.close_in_child();
        std::mem::forget(self);
    }

    /// [`Session::forget_in_child`] of a session that is not to be dropped either: it is of no more
    /// use.
    pub fn close_in_child(&self) {
        let control = self.member.control.try_lock().unwrap_or_else(|| {
            // Its holder was another thread at the moment of the fork and does not exist here.
            self.member.control.release_after_fork();
            self.member.control.lock()
        });
        { control }.link = None;
        self.member.card.forget_in_child();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        say_bye(&mut self.member.control.lock());
    }
}

/// Best effort: a node that does not read it sees the connection close.
fn say_bye(control: &mut Control) {
    if let Some(link) = control.link.take() {
        let bye = Request::new(control.number + 1, Ask::Bye);
        let _ = send_now(&link, bye.frame().as_bytes());
    }
}
