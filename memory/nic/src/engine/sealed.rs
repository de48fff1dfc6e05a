//! A connection whose bytes go in records ([`farmem_trust::record`]).
//!
//! ```text
//! input    start ── opened ── end ·· raw.0 ── received ── raw.1        opened in place: nothing is copied
//! output   pieces ── copied while their rights stand ─► bounce, sealed ─► socket
//! ```
//!
//! So bytes that nobody vouches for are in the input buffer alone, and never in memory that is
//! lent. A READ's bytes are as they were when they were copied: like bytes that a socket has taken,
//! they may arrive after their right has ended.

use super::output::{NotSent, Output};
use crate::Nic;
use farmem_protocol::wire::Completion;
use farmem_sys::raw::Errno;
use farmem_sys::socket::Part;
use farmem_trust::record::{BadRecord, ENOUGH, Ends, HEAD, MOST, OVERHEAD, Opener, Sealer};

/// Bytes of records that wait for the socket, at most.
const BOUNCE: usize = 64 << 10;
/// Bytes of that room which a connection keeps while nothing waits: enough for a page and its
/// completion, so that an answer with a page takes no memory and gives none back.
const KEPT: usize = 8 << 10;
const _: () = assert!(room_for(size_of::<Completion>() + 4096) <= KEPT);

pub(super) struct Sealed {
    opener: Opener,
    sealer: Sealer,
    /// Bytes of the input buffer that are received and not opened.
    pub raw: (usize, usize),
    /// Bytes of output that were made before: they go as they are.
    before: usize,
    /// Room for records. It is cleared where it grows, and not for each record.
    bounce: Vec<u8>,
    /// Its records: those up to `gone` the socket has taken.
    gone: usize,
    to: usize,
}

/// Bytes of records that carry so many bytes, at most.
const fn room_for(carried: usize) -> usize {
    carried + (carried / ENOUGH + 1) * OVERHEAD
}

impl Sealed {
    /// From here on. `raw`: input that has come already; `before`: output that waits already.
    pub fn new(ends: Ends, raw: (usize, usize), before: usize) -> Sealed {
        let Ends { opener, sealer } = ends;
        Sealed { opener, sealer, raw, before, bounce: Vec::new(), gone: 0, to: 0 }
    }

    /// Whether records wait for the socket.
    pub fn has_output(&self) -> bool {
        self.gone < self.to
    }

    /// Opens what has come whole. `end`: of what is open; returns where it is now. No record is
    /// longer than `most`.
    pub fn open(&mut self, input: &mut [u8], mut end: usize, most: usize) -> Result<usize, BadRecord> {
        while let Some(len) = Opener::length(&input[self.raw.0..self.raw.1])? {
            if len > most {
                return Err(BadRecord::Changed);
            }
            if len > self.raw.1 - self.raw.0 {
                break;
            }
            let next = self.raw.0 + len;
            end += self.opener.open(&mut input[end..next], self.raw.0 - end)?;
            self.raw.0 = next;
        }
        if self.raw.0 == self.raw.1 {
            self.raw = (end, end);
        }
        Ok(end)
    }

    /// Offers the next bytes to `send`. Within a section.
    pub fn send_once(
        &mut self,
        nic: &Nic,
        output: &mut Output,
        send: &mut impl FnMut(&[Part], Option<i32>) -> Result<usize, Errno>,
    ) -> Result<(), NotSent> {
        if self.before > 0 {
            let before = &mut self.before;
            return output.send_once(nic, &mut |parts: &[Part], descriptor| {
                // The Welcome is one piece; bytes behind it wait for their record.
                let first = parts.first().map_or(Part::new(std::ptr::null_mut(), 0), |part| part.shortened(*before));
                let sent = send(&[first], descriptor)?;
                *before -= sent;
                Ok(sent)
            });
        }
        if !self.has_output() {
            output.send_once(nic, &mut |parts: &[Part], _| self.seal(parts))?;
        }
        let left = &self.bounce[self.gone..self.to];
        let sent = send(&[Part::new(left.as_ptr() as *mut u8, left.len())], None).map_err(NotSent::System)?;
        self.gone += sent;
        if !self.has_output() && self.bounce.len() > KEPT {
            self.bounce.truncate(KEPT);
            self.bounce.shrink_to(KEPT);
        }
        Ok(())
    }

    /// Makes records of the first bytes of the parts, as many as may wait. Returns how many bytes
    /// these carry.
    fn seal(&mut self, parts: &[Part]) -> Result<usize, Errno> {
        let all = parts.iter().map(Part::len).sum();
        let room = room_for(all).clamp(KEPT, BOUNCE);
        if self.bounce.len() < room {
            self.bounce.resize(room, 0);
        }
        (self.gone, self.to) = (0, 0);
        let (mut at, mut carried) = (HEAD, 0);
        for part in parts {
            let mut done = 0;
            while done < part.len() {
                let most = (self.to + HEAD + MOST).min(self.bounce.len() - (OVERHEAD - HEAD));
                let n = (part.len() - done).min(most - at);
                // SAFETY: inside the part: the engine's own memory, or lent memory that is admitted
                // as long as the section.
                unsafe { part.copy_out(done, &mut self.bounce[at..at + n]) };
                (at, done, carried) = (at + n, done + n, carried + n);
                if at - self.to >= HEAD + ENOUGH || at == most {
                    self.close(at)?;
                    at = self.to + HEAD;
                    if self.bounce.len() - self.to < OVERHEAD + ENOUGH.min(all - carried) {
                        return Ok(carried);
                    }
                }
            }
        }
        if at > self.to + HEAD {
            self.close(at)?;
        }
        Ok(carried)
    }

    /// Seals the record that carries bytes up to `end`. The next begins behind it.
    fn close(&mut self, end: usize) -> Result<(), Errno> {
        let (begun, to) = (self.to, end + OVERHEAD - HEAD);
        // The host dials again, and there is another key.
        self.sealer.seal(&mut self.bounce[begun..to]).map_err(|_| Errno(libc::EKEYEXPIRED))?;
        self.to = to;
        Ok(())
    }
}
