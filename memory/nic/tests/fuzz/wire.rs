//! A node, and connections to it that have no socket.

use farmem_nic::Nic;
use farmem_nic::engine::{Circumstances, Engine, Goodbye};
use farmem_nic::lending::{Backing, Lending};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_sys::raw::Errno;
use farmem_sys::socket::Part;
use std::sync::atomic::{AtomicU64, Ordering};

/// Secrets that the fuzzer can guess, or it would never get past the door.
pub const FIRST_SECRET: u64 = 1;

pub fn secret(n: u64) -> [u8; 16] {
    let mut secret = [0; 16];
    secret[0] = n as u8;
    secret[8] = (n >> 8) as u8;
    secret
}

pub fn nic() -> Nic {
    let next = AtomicU64::new(FIRST_SECRET);
    Nic::new(Lending::new(4 * SLAB_BYTES, Backing::Small), move || secret(next.fetch_add(1, Ordering::Relaxed)))
}

/// A connection whose socket is a vector.
pub struct Wire<'a> {
    nic: &'a Nic,
    pub engine: Option<Engine>,
    pub said: Vec<u8>,
}

impl<'a> Wire<'a> {
    pub fn new(nic: &'a Nic) -> Self {
        Wire { nic, engine: Some(Engine::new(Circumstances::default())), said: Vec::new() }
    }

    /// Through a Unix socket: what can be mapped is passed.
    pub fn local(nic: &'a Nic) -> Self {
        let about = Circumstances { local: true, ..Circumstances::default() };
        Wire { nic, engine: Some(Engine::new(about)), said: Vec::new() }
    }

    /// Feeds bytes in pieces of at most `piece`; the output is taken in shorter ones.
    pub fn feed(&mut self, bytes: &[u8], piece: usize, now: u64) {
        let mut rest = bytes;
        let mut idle = 0;
        while let Some(engine) = &mut self.engine {
            let pulled = engine.pull(self.nic, now, |parts| {
                let mut taken = 0;
                for part in parts {
                    let n = part.len().min(rest.len()).min(piece - taken);
                    // SAFETY: the engine names its own memory.
                    unsafe { part.fill(0, &rest[..n]) };
                    rest = &rest[n..];
                    taken += n;
                    if n < part.len() {
                        break;
                    }
                }
                if taken > 0 { Ok(taken) } else { Err(Errno(libc::EAGAIN)) }
            });
            let pushed = engine.push(self.nic, |parts: &[Part], _| {
                let before = self.said.len();
                for part in parts {
                    // SAFETY: the engine names its own memory, which nobody writes here meanwhile.
                    self.said.extend_from_slice(unsafe { part.bytes() });
                }
                self.said.truncate(before + 7777);
                Ok(self.said.len() - before)
            });
            if let Err(why) = pulled.map(|_| ()).and(pushed) {
                self.close(why, now);
                return;
            }
            idle = if pulled == Ok(0) { idle + 1 } else { 0 };
            if idle > 1 && (rest.is_empty() || idle > 1000) {
                assert!(rest.is_empty(), "the engine takes no more and says nothing");
                return;
            }
        }
    }

    /// Whether the token by which it came can be used no more.
    pub fn is_over(&mut self) -> bool {
        self.engine.as_mut().is_some_and(|engine| engine.is_over(self.nic))
    }

    pub fn close(&mut self, why: Goodbye, now: u64) {
        if let Some(engine) = self.engine.take() {
            engine.close(self.nic, why, now);
        }
    }
}
