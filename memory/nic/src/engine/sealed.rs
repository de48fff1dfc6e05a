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
use farmem_sys::raw::Errno;
use farmem_sys::socket::Part;
use farmem_trust::record::{BadRecord, ENOUGH, Ends, HEAD, MOST, OVERHEAD, Opener, Sealer};

/// Bytes of records that wait for the socket, at most.
const BOUNCE: usize = 64 << 10;
/// Bytes of that room which a connection keeps while nothing waits.
const KEPT: usize = 8 << 10;

pub(super) struct Sealed {
    opener: Opener,
    sealer: Sealer,
    /// Bytes of the input buffer that are received and not opened.
    pub raw: (usize, usize),
    /// Bytes of output that were made before: they go as they are.
    before: usize,
    bounce: Vec<u8>,
    /// How much of it the socket has taken.
    gone: usize,
}

impl Sealed {
    /// From here on. `raw`: input that has come already; `before`: output that waits already.
    pub fn new(ends: Ends, raw: (usize, usize), before: usize) -> Sealed {
        let Ends { opener, sealer } = ends;
        Sealed { opener, sealer, raw, before, bounce: Vec::new(), gone: 0 }
    }

    /// Whether records wait for the socket.
    pub fn has_output(&self) -> bool {
        self.gone < self.bounce.len()
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
            self.forget();
            output.send_once(nic, &mut |parts: &[Part], _| self.seal(parts))?;
        }
        let left = &self.bounce[self.gone..];
        let sent = send(&[Part::new(left.as_ptr() as *mut u8, left.len())], None).map_err(NotSent::System)?;
        self.gone += sent;
        if !self.has_output() {
            self.forget();
            self.bounce.shrink_to(KEPT);
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.bounce.clear();
        self.gone = 0;
    }

    /// Makes records of the first bytes of the parts, as many as may wait. Returns how many bytes
    /// these carry.
    fn seal(&mut self, parts: &[Part]) -> Result<usize, Errno> {
        let (mut begun, mut carried) = (0, 0);
        self.bounce.reserve((parts.iter().map(Part::len).sum::<usize>() + KEPT).min(BOUNCE));
        for part in parts {
            let mut done = 0;
            while done < part.len() {
                if self.bounce.len() == begun {
                    if begun + OVERHEAD + ENOUGH > BOUNCE {
                        return Ok(carried);
                    }
                    self.bounce.resize(begun + HEAD, 0);
                }
                let at = self.bounce.len();
                let n = (part.len() - done).min(begun + HEAD + MOST - at).min(BOUNCE - (OVERHEAD - HEAD) - at);
                self.bounce.resize(at + n, 0);
                // SAFETY: inside the part: the engine's own memory, or lent memory that is admitted
                // as long as the section.
                unsafe { part.copy_out(done, &mut self.bounce[at..]) };
                (done, carried) = (done + n, carried + n);
                if at + n - begun >= HEAD + ENOUGH {
                    begun = self.close(begun)?;
                }
            }
        }
        if self.bounce.len() > begun {
            self.close(begun)?;
        }
        Ok(carried)
    }

    fn close(&mut self, begun: usize) -> Result<usize, Errno> {
        self.bounce.resize(self.bounce.len() + (OVERHEAD - HEAD), 0);
        // The host dials again, and there is another key.
        self.sealer.seal(&mut self.bounce[begun..]).map_err(|_| Errno(libc::EKEYEXPIRED))?;
        Ok(self.bounce.len())
    }
}
