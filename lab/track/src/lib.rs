//! Which lines a running program dirties: `farmem track`.
pub mod account;
pub mod count;
pub mod cover;
pub mod diff;
pub mod maps;
pub mod moves;
pub mod snapshot;
