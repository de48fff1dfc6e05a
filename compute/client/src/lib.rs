//! Remote memory for programs: RAM of other machines, by address.
//!
//! `farmem node` lends the memory of a machine. This library connects to one or more of these
//! nodes, takes pieces of their memory, and reads, writes and compares-and-swaps them. Nodes
//! know nothing of what the bytes mean.
//!
//! ```no_run
//! use farmem::Memory;
//!
//! # fn main() -> farmem::Result<()> {
//! let memory = Memory::connect("bighost:7411")?;
//!
//! let piece = memory.alloc(4096)?;
//! memory.write(piece, b"hello")?;
//!
//! let mut bytes = [0; 5];
//! memory.read(piece, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//!
//! memory.free(piece)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Sharing
//!
//! Memory is private to the process, unless it is a *region*: memory with a name, that every
//! process that names it reaches by the same addresses, and that outlives them all. Atomic
//! operations are atomic among all of them.
//!
//! ```no_run
//! # fn main() -> farmem::Result<()> {
//! let sessions = farmem::Memory::builder()
//!     .node("a:7411")
//!     .node("b:7411")
//!     .region("sessions")
//!     .create(true)
//!     .connect()?;
//!
//! // One of 64 words that all processes find.
//! let users = sessions.root(0);
//! println!("user number {}", sessions.fetch_add(users, 1)?);
//! # Ok(())
//! # }
//! ```
//! `farmem region ls NODE` lists the regions of a node, `farmem region rm NODE NAME` removes one.
//!
//! # Speed
//!
//! A blocking call takes one round trip. A [`Lane`] is a thread's own way to the nodes: it does
//! many operations in one round trip to each ([`Lane::batch`]), or has many under way while the
//! thread does other work:
//!
//! ```no_run
//! # fn main() -> farmem::Result<()> {
//! # let memory = farmem::Memory::connect("bighost:7411")?;
//! # let pieces = [memory.alloc(4096)?, memory.alloc(4096)?];
//! let mut lane = memory.lane()?;
//! for (tag, &piece) in (0..).zip(&pieces) {
//!     lane.post_read(tag, piece, vec![0; 4096]);
//! }
//! let mut done = Vec::new();
//! while lane.in_flight() > 0 {
//!     lane.wait(&mut done, std::time::Duration::from_secs(1));
//!     for completion in done.drain(..) {
//!         completion.result?;
//!         println!("{}: {:?}", completion.tag, &completion.buffer[..8]);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Functions near memory
//!
//! Some work is cheaper at the node. [`Lane::near`] lends the functions for it. `scan` counts,
//! sums, and finds extremes of records that pass a test. `gather` brings many small pieces at once.
//! `copy`, `fill` and `chase` bring no bytes here at all. A node that was started with `--compute`
//! runs them, at 64 bytes a call. For other nodes this library does the work, with the same result.
//!
//! # By the host's agent
//!
//! Module [`agent`] is another way to memory: the host's agent (`farmem agent`) has it granted
//! ahead, shares it out among the programs of the host, and holds users and jobs to their quotas.
//!
//! # Losses
//!
//! A node that ends takes its memory with it. Operations there return [`Error::Lost`], those on
//! other nodes go on. Nothing here ends the process. A connection that is cut is restored within
//! the grace ([`Builder::grace`]). A node on this machine leaves its memory mapped: private pieces
//! can be read and written for good. A region there is lost within 0.1 s, since other processes may
//! have made another one.
//!
//! # Limits
//!
//! | | |
//! |---|---|
//! | nodes of a memory | 64 |
//! | a piece | 4 KiB to 2 MiB, a power of two |
//! | memory at one node | 65 535 slabs of 64 MiB (4 TiB) |
//! | regions of a node | 256; open in one connection: 1 |
//! | lanes over tcp | 8192 to a node |
//!
//! A process that has opened a region can write to all of it, its tables of pieces too. Processes
//! that share one trust each other. `docs/design/client.md` gives the reasons for each of these
//! decisions.

/// Pieces by the host's agent: [`Client`](agent::Client) connects to it, or has one within the
/// process.
pub mod agent {
    #[doc(inline)]
    pub use farmem_agent::client::*;
}

mod addr;
mod builder;
mod error;
mod lane;
mod memory;
pub mod near;
mod payload;
mod pieces;
mod regions;
mod shard;
mod ways;

pub use addr::Addr;
pub use builder::Builder;
pub use error::{Error, Result};
pub use farmem_fabric::Transport;
#[doc(hidden)]
pub use farmem_fabric::{RegionError, Trust};
pub use lane::{Batch, Completion, Lane};
pub use memory::{Memory, ROOTS};
pub use payload::{Loan, Payload};
pub use pieces::Piece;
pub use regions::{Opener, RegionInfo, regions, remove_region};
