//! A front end: one thread that serves redis clients from the store.
//!
//! ```text
//!  epoll ─► read ─► requests of a connection ─► tasks ─► verbs of all tasks ─► one doorbell
//!             ▲                                   │                                │
//!             └───── write ◄── replies in order ◄─┘◄──────────── answers ◄─────────┘
//! ```
//!
//! Where a node's memory is mapped here, verbs are carried out at once: most commands end with their
//! first step, and plain reads and changes of known strings need no task.
//!
//! Commands of one connection are answered in their order. Those on different keys run side by
//! side, so that a pipeline costs few round trips. Two commands that change one key do not run side
//! by side here: one would undo the other's work. A connection whose replies are not read is not
//! read either.

pub(crate) mod background;
mod check;
mod connect;
mod connection;
mod mend;
mod metrics;
pub(crate) mod open;
mod removed;
mod run;
pub(crate) mod schedule;
mod snapshot;
mod tell;
mod tls;

pub use check::check;
pub use open::{Clients, Config, Failed, go_alone};
pub use removed::{mark_removed, unmark_removed};
pub use run::run;
pub use snapshot::{Wrong, restore, save};
pub use tell::{Counters, Tell};
pub use tls::{Part, Tls};
