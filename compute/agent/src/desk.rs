//! The memory that an application and the agent share: two rings, and a last word.
//!
//! ```text
//! byte 0      agent's       0 head of up   64 tail of down   128 the agent sleeps
//!                         192 verdict     256 recalls
//!      4096   application's 0 tail of up   64 head of down   128 the application sleeps
//!      8192   up: 512 entries            application → agent
//!      12288  down: 512 entries          agent → application
//! ```
//! (Words of 4 bytes, each on a cache line of its own; entries of 8.)
//!
//! It is a memfd of the agent's, sealed, mapped by both for reading and writing.
//! The division into an agent's and an application's page is for caches, not for
//! safety: the agent never reads back what it wrote, and takes the rest for claims.

use farmem_sys::raw::Errno;
use farmem_sys::shared::Shared;
use std::sync::atomic::AtomicU32;

#[cfg(not(loom))]
use crate::ring::Words;

/// Bytes of it.
pub const BYTES: usize = 4 * 4096;
/// Entries of a ring.
pub const ENTRIES: usize = 512;

/// The memory, mapped.
pub struct Desk(Shared);

impl Desk {
    /// Maps it.
    pub fn map(fd: i32) -> Result<Desk, Errno> {
        Shared::map(fd, BYTES).map(Desk)
    }

    /// The ring from the application to the agent.
    #[cfg(not(loom))]
    pub fn up(&self) -> Words<'_> {
        let (agents, applications) = (0, 4096);
        Words {
            head: self.0.word32(agents),
            tail: self.0.word32(applications),
            sleeping: self.0.word32(agents + 128),
            entries: self.0.words(8192, ENTRIES),
        }
    }

    /// The ring from the agent to the application.
    #[cfg(not(loom))]
    pub fn down(&self) -> Words<'_> {
        let (agents, applications) = (0, 4096);
        Words {
            head: self.0.word32(applications + 64),
            tail: self.0.word32(agents + 64),
            sleeping: self.0.word32(applications + 128),
            entries: self.0.words(12288, ENTRIES),
        }
    }

    /// How often memory ran out: each time the application is asked to give back what it keeps and
    /// does not use.
    #[inline]
    pub fn recalls(&self) -> &AtomicU32 {
        self.0.word32(256)
    }

    /// Why the agent has ended the application's session; 0: it has not.
    pub fn verdict(&self) -> &AtomicU32 {
        self.0.word32(192)
    }
}
