//! `farmem bench alloc`.

pub mod allocators;
pub mod ledger;
pub mod run;
pub mod sim;

#[cfg(test)]
mod tests;
