//! The far memory that a process holds: the seam between its consumers and the nodes.
//!
//! Nodes grant memory by the slab; consumers (the pager, and whatever else uses far memory) move it
//! by the slot of a page. The pool stands between. It knows which *homes* hold a slab's bytes, and
//! no consumer does.
//!
//! ```text
//!  alloc(n)      ─► slots, contiguous where it can be ─► one message for many pages
//!  lane          ─► read, write, lines; doorbell; poll, wait       queue pairs, retries and losses are its own (`lane`)
//!  questions     ─► readable_in_place, writable_in_place, takes_lines
//!  ensure(bytes) ─► grants up to what the program has mapped, or a refusal now
//!  nodes         ─► they join, are taken out, are lost (`nodes`)
//! ```
//!
//! It is made of parts. A part is a type with references to the parts that it uses, so its fields
//! say what its steps can touch. A part uses those above it in this table, and none below:
//!
//! | part | what it does | locks |
//! |---|---|---|
//! | [`Nodes`] | the nodes by number: their sessions, their standing, the order in which to ask them | none |
//! | `Tables` | nodes, the words of slabs ([`homes`]), protection and seals; what follows from them alone | none |
//! | `Held` | the slabs of this process, and their slots | `slabs` |
//! | [`Losses`] | a node or the disk fails: words forget it | `changes`, `slabs` |
//! | `Grants` | nodes grant slabs and get them back | `changes`, `slabs` |
//! | [`Slots`] | slots are taken and freed; memory goes back | as grants |
//! | [`Moves`] | a slab's homes are added, filled and dropped | as grants |
//! | [`Repair`] | which slab needs which move next | `slabs` |
//! | [`Forks`] | slabs that two processes share | `slabs` |
//! | [`Seals`] | pages leave encrypted, for nodes that are not trusted | none |
//!
//! A [`Lane`] is one thread's way to the nodes.
//!
//! *Whose memory a mapped slab is.* The kernel charges a page of a shared file to the memory group
//! of the process that touches it first. So the node is asked to back each 2 MiB block before the
//! first slot in it is used. Otherwise a container's limit on memory would count the far pages of
//! the programs in it.
//!
//! *What is freed* goes back: whole slabs ([`Slots::shrink`]), and of slabs that are still needed
//! the 2 MiB blocks that stay without a live slot ([`Slots::give_back_idle`]).
//!
//! *Locks.* `changes` is held while nodes change or a slab is published. `slabs` is taken inside it
//! or alone. Neither is held while a node is asked for anything. A fault takes no lock.
//!
//! *Fork* (`fork.rs`): slots that a parent and its child can both reach belong to neither while the
//! other lives. `docs/design/pool.md` has the reasons.

mod away;
mod doubts;
mod fork;
mod grants;
mod held;
pub mod homes;
pub mod lane;
mod losses;
mod moves;
mod nodes;
mod paces;
mod protect;
mod questions;
mod seal;
mod slab;
mod slips;
mod slots;
pub mod stripes;
mod tables;
#[cfg(feature = "lab")]
mod twin;

pub use away::Back;
pub use doubts::Doubt;
pub use farmem_run::Protect;
pub use fork::{ForkShare, Forks};
pub use homes::MAX_SLABS;
pub use lane::{Change, Done, Filled, Lane, Met, Piece};
pub use losses::{Loss, Losses};
pub use moves::Moves;
pub use nodes::{MAX_NODES, NoPlace, Nodes, Standing};
pub use protect::repair::Repair;
pub use protect::{Disk, Lacks, POSTS_NS, Place, SPELL_NS, Throttle};
pub use questions::By;
pub use seal::{Altered, NoSeal, Sealing, Seals};
pub use slips::Slip;
pub use slots::Slots;

use farmem_fabric::{Lost, Session};
use farmem_protocol::addr::SLOTS_PER_SLAB;
use farmem_protocol::wire::MAX_BACKED;
use farmem_sys::raw::Errno;
use grants::Grants;
use held::Held;
use losses::Changes;
use tables::Tables;

/// Why the pool gets no far memory.
#[derive(Debug, thiserror::Error)]
pub enum NoRoom {
    /// The nodes lend no more.
    #[error("{0}")]
    Exhausted(String),
    /// A node is gone, and a page with it.
    #[error("{0}")]
    Lost(#[from] Lost),
}

const BLOCK_BYTES: u64 = MAX_BACKED;
const _: () = assert!(BLOCK_BYTES == 2 << 20);
const _: () = assert!(SLOTS_PER_SLAB == 16384);
/// Rounds of a wait for another process between two checks that it still exists: about half a
/// second.
const LOOK_ROUNDS: u32 = 4096;

/// The pool. One per process.
pub struct Pool {
    tables: Tables,
    held: Held,
    changes: Changes,
}

impl Pool {
    /// A pool over sessions with nodes, of which it can have [`MAX_NODES`].
    ///
    /// # Panics
    /// If there are more, or none.
    pub fn new(sessions: Vec<Session>) -> Result<Pool, Errno> {
        assert!(!sessions.is_empty());
        let tables = Tables::new(Nodes::new(sessions[0].clock().is_simulated()))?;
        let pool = Pool { tables, held: Held::new(), changes: Changes::new() };
        for session in sessions {
            pool.add_node(session).unwrap_or_else(|e| panic!("{e}"));
        }
        Ok(pool)
    }

    /// The nodes, by number.
    #[inline]
    pub fn nodes(&self) -> &Nodes {
        &self.tables.nodes
    }

    /// Steps after a node or the disk has failed.
    #[inline]
    pub fn losses(&self) -> Losses<'_> {
        Losses { tables: &self.tables, held: &self.held, changes: &self.changes }
    }

    fn grants(&self) -> Grants<'_> {
        Grants { tables: &self.tables, held: &self.held, changes: &self.changes, losses: self.losses() }
    }

    /// Steps that take and free slots.
    #[inline]
    pub fn slots(&self) -> Slots<'_> {
        Slots { tables: &self.tables, held: &self.held, grants: self.grants(), losses: self.losses() }
    }

    /// Steps that add, fill and drop homes of slabs.
    pub fn moves(&self) -> Moves<'_> {
        Moves { tables: &self.tables, held: &self.held, changes: &self.changes, grants: self.grants() }
    }

    /// The next step of a repair.
    pub fn repair(&self) -> Repair<'_> {
        Repair { tables: &self.tables, held: &self.held }
    }

    /// The steps of a fork.
    pub fn forks(&self) -> Forks<'_> {
        Forks { tables: &self.tables, held: &self.held, losses: self.losses() }
    }

    /// Encryption of pages.
    #[inline]
    pub fn seals(&self) -> Seals<'_> {
        Seals { tables: &self.tables, losses: self.losses() }
    }

    /// Calls [`Session::arena`] for all nodes, and later for each node that joins.
    ///
    /// # Safety
    /// As there.
    #[allow(unsafe_code)]
    pub unsafe fn arena(&self, at: *mut u8, len: usize) {
        let mut changing = self.changes.now.lock();
        if !changing.arenas.contains(&(at as usize, len)) {
            changing.arenas.push((at as usize, len));
        }
        // SAFETY: passed on to the caller.
        self.tables.nodes.all().iter().for_each(|node| unsafe { node.session().arena(at, len) });
    }
}
