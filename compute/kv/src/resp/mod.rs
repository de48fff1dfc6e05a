//! The redis protocol, RESP2 and RESP3, as bytes: requests in, replies out. No I/O.

mod glob;
mod reply;
mod request;

pub use glob::{Glob, matches};
pub use reply::{Reply, bulk, double};
pub use request::{Limits, Parser, Request, SHORT, Short};
