//! The simulator's network for tests inside this crate.
//!
//! The simulator is built on the crate as it ships, whose [`Network`] is another trait than that
//! of the crate under test. Hence this adapter.

// Passing on parts that the callers vouch for.
#![allow(unsafe_code)]

use crate::network::{Network, Stream};
use farmem_sys::raw::Errno;
use farmem_sys::socket::Part;
use std::sync::Arc;

pub(super) struct Simulated(pub Arc<farmem_sim::Network>);

struct Wire(farmem_sim::Stream);

impl Network for Simulated {
    fn connect(self: Arc<Self>, timeout_ns: u64) -> Result<Box<dyn Stream>, Errno> {
        Ok(Box::new(Wire(self.0.connect(timeout_ns)?)))
    }

    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn pass(&self, ns: u64) {
        self.0.pass(ns);
    }
}

impl Stream for Wire {
    unsafe fn send(&self, parts: &[Part]) -> Result<usize, Errno> {
        // SAFETY: passed on to the caller.
        unsafe { self.0.send(parts) }
    }

    unsafe fn receive(&self, parts: &[Part]) -> Result<usize, Errno> {
        // SAFETY: passed on to the caller.
        unsafe { self.0.receive(parts) }
    }

    fn is_cut(&self) -> bool {
        self.0.is_cut()
    }

    fn mute_ns(&self) -> u64 {
        self.0.mute_ns()
    }

    fn wait(&self, timeout_ns: u64) {
        self.0.wait(timeout_ns);
    }
}
