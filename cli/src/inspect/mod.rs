//! A node's memory as its words have it: `farmem check` and `farmem status`.

pub mod check;
mod snapshot;
pub mod status;
