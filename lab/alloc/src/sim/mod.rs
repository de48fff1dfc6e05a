//! A memory node and its clients, in virtual time.
//!
//! | file | |
//! |---|---|
//! | [`card`] | words of a real node instead |
//! | [`clock`] | time, tasks, what is due next |
//! | [`costs`] | what everything costs: `rnic.toml` |
//! | [`node`] | the memory node: words, a NIC that executes verbs, one core |
//! | [`random`] | numbers that follow from a seed |

pub mod card;
pub mod clock;
pub mod costs;
pub mod node;
pub mod random;
