//! End-to-end tests of farmem: what the files under `tests/` share.
//!
//! * [`process`]: a child in its own process group, with a deadline, killed whole.
//! * [`farmem`]: the binary under test, runs of it, and nodes.
//! * [`group`]: a memory group with a limit.
//! * [`lost`]: CPU time that the machine took away, which no bound counts.
//! * [`compile`]: the small C programs under `programs/`, built once per test run.
//!
//! `FARMEM_TEST_LONG=1`, which `.ci/long` sets, asks for everything ([`long`]).
//!
//! Nothing here links the runtime: the tests see farmem as its users do, as a
//! command. Every wait has a deadline; a hang is a failure with a name.

pub mod compile;
pub mod farmem;
pub mod group;
pub mod lost;
pub mod process;

/// Whether the long form of a test is wanted. The short one of each is run with every change.
pub fn long() -> bool {
    std::env::var_os("FARMEM_TEST_LONG").is_some()
}
