//! Slabs of owners that do not answer are put aside while the machine needs memory: their bytes go
//! to a *shelf*, which is a file of the daemon's, and their memory goes back to the machine.
//!
//! ```text
//!        its owner is silent               all bytes are on the shelf
//!  Here ────────────────────► Leaving ─────────────────────────────────► Away ─► memory given back
//!   ▲                            │                                         │
//!   │◄── a verb or request came ─┘                                         │ a verb or request came
//!   └─────────────────── bytes are read back ◄── Called ◄──────────────────┘
//! ```
//!
//! A verb or request that comes for a slab that is away has it called back, and is put off until it
//! is here. The slab keeps its name, and its place in its owner's quota.
//!
//! *Why no write is lost.* Bytes are copied only while nothing refers to the slab but its holders.
//! All that touches a slab refers to it: a WRITE whose bytes are still coming, a READ whose bytes
//! are still going, a window. A verb looks at the state in the same section in which it takes its
//! reference. So when the sections of the moment in which the slab became `Leaving` are over, each
//! verb has either a reference, which is seen, or none any more. A verb that comes later makes the
//! slab `Here` again, and what was copied is dropped.

use super::lending::Slab;
use super::members::Member;
use super::{Event, Nic};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};

/// How long an owner says nothing before its slabs are put aside, ns.
pub const SILENT_NS: u64 = 5_000_000_000;

/// Where the bytes of slabs can be put.
pub trait Shelf: Send + Sync {
    /// Copies what a slab has. Nobody writes to the slab meanwhile, or what was copied is dropped.
    ///
    /// # Errors
    /// There is no room, or the shelf cannot be used.
    fn put(&self, slab: &Slab) -> Result<Box<dyn Kept>, Errno>;
}

/// The bytes of one slab on a shelf. They are gone when this is dropped.
pub trait Kept: Send {
    /// Copies them to the slab, whose bytes are all zero.
    ///
    /// # Errors
    /// ENOMEM, ENOSPC: the system has no memory for them now. Others: they cannot be read.
    fn take(&self, slab: &Slab) -> Result<(), Errno>;
}

/// Its bytes are in memory, and anybody who holds the slab may use them.
const HERE: u8 = 0;
/// They are being copied to the shelf.
const LEAVING: u8 = 1;
/// They are on the shelf alone.
const AWAY: u8 = 2;
/// They are on the shelf alone, and wanted.
const CALLED: u8 = 3;
/// The shelf cannot give them back.
const LOST: u8 = 4;

/// Where a slab's bytes are.
#[derive(Default)]
pub(super) struct Whereabouts {
    state: AtomicU8,
    /// A member has its descriptor, and may have its memory mapped.
    passed: AtomicBool,
    kept: Lock<Option<Box<dyn Kept>>>,
}

impl std::fmt::Debug for Whereabouts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = usize::from(self.state.load(Ordering::Relaxed));
        f.write_str(["here", "leaving", "away", "called", "lost"].get(state).unwrap_or(&""))
    }
}

/// The slabs of a node that are not here.
#[derive(Default)]
pub(super) struct Aside {
    /// Slabs in any other state than [`HERE`]. While it is 0 no verb looks further.
    stirred: AtomicUsize,
    /// Those of them whose memory was given back.
    away: AtomicU64,
    called: Lock<Vec<Weak<Slab>>>,
    /// Wakes the thread that brings slabs back.
    bell: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Held by the thread that puts aside or brings back.
    work: Lock<()>,
}

impl std::fmt::Debug for Aside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aside").field("stirred", &self.stirred).field("away", &self.away).finish_non_exhaustive()
    }
}

impl Aside {
    /// Bytes of slabs whose memory was given back.
    pub fn bytes(&self) -> u64 {
        self.away.load(Ordering::Relaxed) * SLAB_BYTES
    }

    /// Whether each slab is here. Within a section, SeqCst against [`Nic::put_aside`].
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.stirred.load(Ordering::SeqCst) == 0
    }

    fn call(&self, slab: &Arc<Slab>) {
        self.called.lock().push(Arc::downgrade(slab));
        if let Some(bell) = self.bell.get() {
            bell();
        }
    }

    /// A slab is here again, or is no more.
    fn is_back(&self) {
        self.away.fetch_sub(1, Ordering::Relaxed);
        self.stirred.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Slab {
    /// Whether its bytes are here, for a verb or request that is about to use them. If not, they
    /// have been called back.
    fn is_here(self: &Arc<Self>) -> bool {
        let state = &self.whereabouts.state;
        loop {
            let (from, to) = match state.load(Ordering::SeqCst) {
                HERE => return true,
                LEAVING => (LEAVING, HERE),
                AWAY => (AWAY, CALLED),
                _ => return false,
            };
            if state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                if to == CALLED {
                    self.lending().aside.call(self);
                }
                return to == HERE;
            }
        }
    }

    /// Whether its memory was given back to the machine.
    pub(super) fn is_away(&self) -> bool {
        matches!(self.whereabouts.state.load(Ordering::SeqCst), AWAY | CALLED | LOST)
    }

    /// Whether its bytes cannot be had any more. Its holders lose it; so does who comes to hold it
    /// meanwhile, if it looks here afterwards.
    pub(super) fn is_lost(&self) -> bool {
        self.whereabouts.state.load(Ordering::SeqCst) == LOST
    }

    /// A member gets its descriptor. From now on it stays in memory.
    pub(super) fn pass(&self) {
        self.whereabouts.passed.store(true, Ordering::SeqCst);
    }

    /// Its last reference is dropped.
    pub(super) fn ends_aside(&self) {
        if self.is_away() {
            self.lending().aside.is_back();
        }
    }
}

/// When something last came from a member.
#[derive(Default)]
pub(super) struct Heard {
    came: AtomicBool,
    since_ns: AtomicU64,
    silent_ns: AtomicU64,
}

impl Heard {
    /// Something came.
    #[inline]
    pub fn stir(&self) {
        // Mostly it is set: then the line stays shared between the workers.
        if !self.came.load(Ordering::Relaxed) {
            self.came.store(true, Ordering::Relaxed);
        }
    }

    fn look(&self, now_ns: u64) {
        if self.came.swap(false, Ordering::Relaxed) || self.since_ns.load(Ordering::Relaxed) == 0 {
            self.since_ns.store(now_ns, Ordering::Relaxed);
        }
        let silent = now_ns.saturating_sub(self.since_ns.load(Ordering::Relaxed));
        self.silent_ns.store(silent, Ordering::Relaxed);
    }

    /// How long nothing had come at the last look, ns.
    pub fn silent_ns(&self) -> u64 {
        if self.came.load(Ordering::Relaxed) { 0 } else { self.silent_ns.load(Ordering::Relaxed) }
    }
}

impl Nic {
    /// Bytes of slabs that are put aside.
    pub fn aside(&self) -> u64 {
        self.lending.aside.bytes()
    }

    /// Has `bell` called when a slab is to be brought back, from any thread. Only the first call
    /// counts.
    pub fn ring_for_slabs(&self, bell: impl Fn() + Send + Sync + 'static) {
        let _ = self.lending.aside.bell.set(Box::new(bell));
    }

    /// Whether a slab that a member names is here, within a section. If not, it has been called back,
    /// and the verb is to be put off. What the member does not hold counts as here: it is refused later.
    #[inline]
    pub(super) fn is_at_hand(&self, member: &Member, slab: SlabId) -> bool {
        self.lending.aside.is_empty() || member.slab(slab).is_none_or(|slab| slab.is_here())
    }

    /// As [`Nic::is_at_hand`], outside of sections, for a request. The caller holds the slab until
    /// it has done with its bytes.
    pub(super) fn is_at_hand_for_request(&self, slab: &Arc<Slab>) -> bool {
        // Against the one in `is_unused`: either the reference is seen there, or the state here.
        fence(Ordering::SeqCst);
        slab.is_here()
    }

    /// Looks at which members have said something. Call it about once a second.
    pub fn look_at_owners(&self, now_ns: u64) {
        for member in self.members() {
            member.heard.look(now_ns);
            member.asked.look(now_ns);
        }
    }

    /// Puts slabs of owners aside that have said nothing for this long ([`SILENT_NS`]), while the node
    /// has lent more than it lends now. It takes as long as the shelf does. Slabs that are called
    /// meanwhile are brought back between two.
    ///
    /// # Errors
    /// The shelf's, at the first slab that it does not take.
    pub fn spill(&self, shelf: &dyn Shelf, silent_ns: u64) -> Result<(), Errno> {
        // Huge pages go back to the system's reserve of them: the machine has no memory more.
        if self.lending.takes_huge_pages() {
            return Ok(());
        }
        for member in self.members() {
            let mut put = 0;
            let tried = self.spill_of(&member, (shelf, silent_ns), &mut put);
            if put > 0 {
                self.events.tell(Event::Aside(&member, put * SLAB_BYTES));
            }
            tried?;
        }
        Ok(())
    }

    fn spill_of(&self, member: &Member, how: (&dyn Shelf, u64), put: &mut u64) -> Result<(), Errno> {
        let (shelf, silent_ns) = how;
        if member.is_mapped() || member.heard.silent_ns() < silent_ns {
            return Ok(());
        }
        let slabs: Vec<Weak<Slab>> = member.holds.lock().slabs.values().map(Arc::downgrade).collect();
        for slab in slabs {
            if self.lending.excess() == 0 || member.heard.silent_ns() < silent_ns {
                break;
            }
            if let Some(slab) = slab.upgrade() {
                *put += u64::from(self.put_aside(&slab, shelf)?);
            }
            self.bring_back();
        }
        Ok(())
    }

    /// Puts one slab aside. False: somebody uses it.
    pub(super) fn put_aside(&self, slab: &Arc<Slab>, shelf: &dyn Shelf) -> Result<bool, Errno> {
        let aside = &self.lending.aside;
        // No other thread makes a slab leave, or brings one back.
        let _work = aside.work.lock();
        let Whereabouts { state, kept, .. } = &slab.whereabouts;
        if state.load(Ordering::SeqCst) != HERE {
            return Ok(false);
        }
        // Before the state: a verb that finds no slab astir does not look at it.
        aside.stirred.fetch_add(1, Ordering::SeqCst);
        state.store(LEAVING, Ordering::SeqCst);
        self.epochs.wait();
        let put = if self.is_unused(slab) { Some(shelf.put(slab)) } else { None };
        let put = put.transpose().map(|bytes| *kept.lock() = bytes);
        if put.is_ok() && kept.lock().is_some() {
            if state.compare_exchange(LEAVING, AWAY, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                slab.discard(0, SLAB_BYTES);
                aside.away.fetch_add(1, Ordering::Relaxed);
                return Ok(true);
            }
            *kept.lock() = None;
        }
        state.store(HERE, Ordering::SeqCst);
        aside.stirred.fetch_sub(1, Ordering::SeqCst);
        put.map(|()| false)
    }

    /// Whether nothing refers to a slab but its holders and the caller.
    fn is_unused(&self, slab: &Arc<Slab>) -> bool {
        let holders = || -> Vec<u64> {
            let members = self.members();
            members.iter().filter(|member| member.holds.lock().slabs.contains_key(&slab.id)).map(|m| m.serial).collect()
        };
        let exposed = || self.members().iter().any(|member| member.wires.lock().exposes(slab.id));
        fence(Ordering::SeqCst);
        // Looked at before and after: no serial comes back, so they were the same all the time.
        let before = holders();
        let references = Arc::strong_count(slab);
        fence(Ordering::SeqCst);
        references == before.len() + 1
            && before == holders()
            && !exposed()
            && *slab.pins.lock() == 0
            && !slab.whereabouts.passed.load(Ordering::SeqCst)
    }

    /// Whether slabs are to be brought back.
    pub fn has_called(&self) -> bool {
        !self.lending.aside.called.lock().is_empty()
    }

    /// Brings back the slabs that were called. A slab whose bytes cannot be read is its holders' no
    /// more: what they ask of it is refused, as of a node that has lost it. Returns false if the
    /// system has no memory for a slab: call it again soon.
    pub fn bring_back(&self) -> bool {
        let aside = &self.lending.aside;
        let called = std::mem::take(&mut *aside.called.lock());
        let mut done = true;
        for slab in called.iter().filter_map(Weak::upgrade) {
            let _work = aside.work.lock();
            let mut kept = slab.whereabouts.kept.lock();
            match kept.as_ref().map_or(Ok(()), |kept| kept.take(&slab)) {
                Ok(()) => {
                    *kept = None;
                    slab.whereabouts.state.store(HERE, Ordering::SeqCst);
                    aside.is_back();
                }
                Err(Errno(libc::ENOMEM | libc::ENOSPC)) => {
                    slab.discard(0, SLAB_BYTES);
                    aside.called.lock().push(Arc::downgrade(&slab));
                    done = false;
                }
                Err(_) => {
                    slab.whereabouts.state.store(LOST, Ordering::SeqCst);
                    for member in self.members() {
                        if member.holds.lock().slabs.remove(&slab.id).is_some() {
                            self.events.tell(Event::Unreadable(&member));
                        }
                    }
                }
            }
        }
        done
    }
}
