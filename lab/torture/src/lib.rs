//! Does to far memory everything that programs do to memory, all at once, and
//! compares every byte with a model that lies elsewhere.
//!
//! ```text
//! farmem-lab torture ──► farmem run --local 5% -- farmem-lab torture-child
//!   drive.rs            child.rs: starts the threads, watches that each gets on
//!                         └─ thread k: ops.rs, one stream of operations.rs from (seed, k)
//!                              ├─ estate.rs   its own pages, and the model of them
//!                              ├─ commons.rs  pages and counters that all threads share
//!                              └─ sys.rs      the calls, raw
//! ```
//!
//! * Every **line** (64 bytes) of every page carries a *stamp* (who wrote it, as
//!   which page, in which generation), a filling that follows from the stamp,
//!   and a checksum; see `stamp.rs`. So a wrong byte says what it is instead: zero,
//!   an older generation of its own, another page's, or torn.
//! * The **model** knows the stamp of every line. It lies in a private mapping of
//!   a memfd: file-backed, so never far, yet copied on write, so that a forked
//!   child has the model of the moment of its fork.
//! * A thread's stream of operations depends on the seed and its number alone.
//!   How threads interleave does not replay; what each does, does.
//! * At the first mismatch the process ends with one report: which page, what was
//!   expected, what is there, and the last operations on that page.

pub mod child;
mod commons;
pub mod drive;
mod estate;
mod operations;
mod ops;
mod report;
mod stamp;
mod sys;

pub use child::Child;
pub use drive::Torture;
