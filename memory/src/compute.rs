//! The service of `farmem node --compute N`: runs functions near memory
//! ([`farmem_protocol::near`]).
//!
//! A call runs on the worker that received it, within that worker's section, so no right can end
//! under it. Each call is bounded (some 100 µs), and at most N run at a time. A further one is
//! refused as busy, and its host does the work by verbs. So N of the node's workers may compute;
//! verbs on other workers wait for nothing.

use farmem_nic::epochs::Section;
use farmem_nic::grip::Grip;
use farmem_nic::service::{Caller, Service};
use farmem_nic::windows::Windows;
use farmem_protocol::key::Key;
use farmem_protocol::near::{Bytes, Call, Which};
use farmem_protocol::wire::{Op, Status};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Serves calls, at most `most` at a time.
pub struct Compute {
    most: usize,
    running: AtomicUsize,
}

impl Compute {
    pub fn new(most: usize) -> Compute {
        Compute { most, running: AtomicUsize::new(0) }
    }

    fn begin(&self) -> Option<Turn<'_>> {
        let turn = Turn(&self.running);
        let before = self.running.fetch_add(1, Ordering::Relaxed);
        (before < self.most).then_some(turn)
    }
}

/// One of the calls that may run. Ends when dropped.
struct Turn<'a>(&'a AtomicUsize);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The ranges that a call was admitted to.
struct Admitted {
    source: Grip,
    list: Option<Grip>,
}

impl Admitted {
    fn new(caller: &Caller<'_>, call: &Call) -> Result<Admitted, Status> {
        let grip = |which, range: farmem_protocol::near::Range| {
            let read = caller.admit(range.key, Op::Read, range.at, range.len)?;
            if call.writes(which) {
                caller.admit(range.key, Op::Write, range.at, range.len)?;
            }
            Ok(read)
        };
        let list = (call.list.len > 0).then(|| grip(Which::List, call.list)).transpose()?;
        Ok(Admitted { source: grip(Which::Source, call.source)?, list })
    }

    fn of(&self, which: Which) -> Option<&Grip> {
        match which {
            Which::Source => Some(&self.source),
            Which::List => self.list.as_ref(),
        }
    }
}

impl Bytes for Admitted {
    fn read(&mut self, of: Which, at: u64, into: &mut [u8]) -> Option<()> {
        let grip = self.of(of)?;
        grip.memory.mapping().read_bytes(grip.offset.checked_add(at)?, into).then_some(())
    }

    fn write(&mut self, of: Which, at: u64, bytes: &[u8]) -> Option<()> {
        let grip = self.of(of)?;
        grip.memory.mapping().write_bytes(grip.offset.checked_add(at)?, bytes).then_some(())
    }
}

impl Service for Compute {
    fn send(
        &self,
        caller: &Caller<'_>,
        number: u32,
        said: &[u8],
        _: &Windows,
        _: &mut Section<'_>,
    ) -> Result<[u8; 64], Status> {
        if Key::service(number) != Key::COMPUTE {
            return Err(Status::Access);
        }
        let call = Call::parse(said).map_err(|_| Status::Range)?;
        let _turn = self.begin().ok_or(Status::Empty)?;
        let begun = Instant::now();
        let reply = Admitted::new(caller, &call).and_then(|mut memory| call.run(&mut memory).ok_or(Status::Range));
        caller.computed(begun.elapsed().as_nanos() as u64);
        reply.map(|reply| reply.frame())
    }

    fn departed(&self, _: u64, _: &Windows, _: &mut dyn FnMut()) {}

    fn keep(&self, _: &Windows) {}
}
