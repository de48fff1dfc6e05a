//! Chunks with windows that a node offers to every member, by three strategies, so that they can be compared.
//!
//! The node's half hangs on the NIC's one hook, [`farmem_nic::service`]. No command offers it: farmem's own way is the
//! descriptor word, which is the right itself, and nothing is bound at all (`docs/design/extents.md`).
//!
//! * [`offer`]: the strategies, at the node. [`host`]: one interface to all of them.
//! * [`ring`]: OneSidedMW's chunks. Windows are bound and unbound by the NIC itself, asked by one SEND: no daemon on the
//!   path. The node's CPU helps when a chain breaks and when a member is gone.
//! * [`request`]: work requests in memory. [`machine`]: runs them, as a card does. [`chains`]: the two that take a chunk
//!   and give it back, as OneSidedMW has them, and mended.
//!
//! `docs/design/offload.md` draws the chains, and `offload-mlx5.md` says how a card would run them.

pub mod chains;
pub mod host;
pub mod machine;
pub mod offer;
pub mod request;
pub mod ring;
