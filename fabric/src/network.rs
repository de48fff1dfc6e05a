//! A network within this process, with a clock of its own, in place of sockets and the system's
//! clock.
//!
//! A simulator offers one. The rest of the crate runs as it does over sockets: identities, cuts,
//! graces, frames.

// The parts of a transfer are raw memory that callers vouch for.
#![allow(unsafe_code)]

use farmem_sys::raw::Errno;
use farmem_sys::socket::Part;
use std::sync::Arc;

/// A way to one node, and the clock of everything on it.
pub trait Network: Send + Sync {
    /// Makes a connection to the node.
    ///
    /// # Errors
    /// As `connect(2)`: ECONNREFUSED, ETIMEDOUT after `timeout_ns`, or another.
    fn connect(self: Arc<Self>, timeout_ns: u64) -> Result<Box<dyn Stream>, Errno>;

    /// The time, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Lets time pass.
    fn pass(&self, ns: u64);
}

/// The host's end of a connection. It closes when it is dropped.
pub trait Stream: Send + Sync {
    /// Sends what fits now. Returns its length.
    ///
    /// # Safety
    /// As [`farmem_sys::socket::send`].
    unsafe fn send(&self, parts: &[Part]) -> Result<usize, Errno>;

    /// Receives what has come. Returns its length, 0 at the end of the stream.
    ///
    /// # Errors
    /// EAGAIN: nothing has come.
    ///
    /// # Safety
    /// As [`farmem_sys::socket::receive`].
    unsafe fn receive(&self, parts: &[Part]) -> Result<usize, Errno>;

    /// Whether the stream is at its end.
    fn is_cut(&self) -> bool;

    /// How long the node's machine has not been heard on it.
    fn mute_ns(&self) -> u64;

    /// Lets time pass until something arrives anywhere, at most `timeout_ns`.
    fn wait(&self, timeout_ns: u64);
}
