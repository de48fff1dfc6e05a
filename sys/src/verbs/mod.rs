//! RDMA by libibverbs, loaded at run time if it is there.
//!
//! ```text
//! Device ─► Domain ─┬─► Region     memory that the NIC may touch
//!  (one context)    ├─► Window     a part of a region, for one queue pair, until invalidated (type 2B)
//!                   └─► RcQueue    reliable connection: INIT ─► RTR ─► RTS; posts work, polls completions
//! ```
//!
//! * [`ffi`]: structures and symbols, by hand: no header, no generator, no link-time dependency.
//! * [`library`]: finding the library, in a link namespace of its own.
//! * [`device`]: devices, ports, domains, regions, windows.
//! * [`queue`]: queue pairs.
//!
//! Objects hold those they were made from. So they are destroyed in the order that the library
//! demands, in whatever order they are dropped.
//!
//! Completions and posting take no lock of ours and make no call but the
//! provider's, so they may run in signal handlers, as long as a queue pair is used by
//! one thread at a time.

pub mod device;
pub mod ffi;
pub mod library;
pub mod queue;

pub use device::{Device, Domain, Region, Rights, Window};
pub use library::{Absent, after_fork, before_fork};
pub use queue::{Done, Endpoint, RcQueue, Work, WorkRequest};

/// How a work request ended: `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Outcome(pub u32);

impl Outcome {
    /// Done.
    pub const SUCCESS: Outcome = Outcome(0);
    /// Not tried, because one before it failed.
    pub const FLUSHED: Outcome = Outcome(5);
    /// This end did not allow a window to be bound so.
    pub const BIND: Outcome = Outcome(6);
    /// The other end did not allow it: the key, the range or the right is wrong there.
    pub const REMOTE_ACCESS: Outcome = Outcome(10);
    /// The other end did not answer.
    pub const UNREACHABLE: Outcome = Outcome(12);
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match *self {
            Outcome::SUCCESS => "success",
            Outcome(2) => "local QP operation error",
            Outcome(4) => "local protection error",
            Outcome::FLUSHED => "flushed",
            Outcome::BIND => "memory window bind error",
            Outcome(9) => "remote invalid request",
            Outcome::REMOTE_ACCESS => "remote access error",
            Outcome(11) => "remote operation error",
            Outcome::UNREACHABLE => "transport retries exceeded",
            Outcome(status) => return write!(f, "work completion status {status}"),
        })
    }
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}
