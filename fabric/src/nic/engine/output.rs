//! Bytes on their way out of a connection.

use crate::nic::Nic;
use crate::nic::grip::Grip;
use crate::nic::lending::Slab;
use crate::nic::pool::files::File;
use farmem_sys::raw::Errno;
use farmem_sys::socket::Part;
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Output backed up, at which input waits.
const BACKLOG: usize = 2 << 20;
/// Pieces that wait, at which input waits: each takes more of the node's memory than the shortest is long.
pub(super) const PIECES: usize = 8192;
/// Descriptors that wait to go out, at which input waits: some of them are the node's until then.
const PASSING: usize = 16;
/// Parts of one transfer out.
const PARTS: usize = 64;

/// Why nothing more went out.
pub(super) enum NotSent {
    /// The system said so.
    System(Errno),
    /// Bytes of a READ whose right ended before they went.
    Revoked,
}

/// Own bytes, bytes of memory, zeros, in order.
#[derive(Default)]
pub(super) struct Output {
    own: Vec<u8>,
    /// Where `own` begins in the stream of own bytes; what lies before has been sent.
    base: usize,
    pieces: VecDeque<Piece>,
    pub backlog: usize,
    passing: usize,
}

/// What a peer on this machine gets the descriptor of.
pub(super) enum Passed {
    Slab(Arc<Slab>),
    Unit(Arc<File>),
    /// The other end of a connection of the node's.
    Stream(UnixStream),
}

impl Passed {
    fn fd(&self) -> i32 {
        match self {
            Passed::Slab(slab) => slab.fd(),
            Passed::Unit(file) => file.fd(),
            Passed::Stream(stream) => stream.as_raw_fd(),
        }
    }
}

enum Piece {
    /// Own bytes, by their place in the stream of them.
    Own {
        from: usize,
        len: usize,
    },
    /// Own bytes, with a descriptor along the first.
    Passing {
        from: usize,
        len: usize,
        passed: Passed,
    },
    Memory {
        grip: Grip,
        len: usize,
    },
    Zeros {
        len: usize,
    },
}

static ZEROS: [u8; 4096] = [0; 4096];

impl Output {
    pub fn bytes(&mut self, bytes: &[u8]) {
        let end = self.base + self.own.len();
        self.own.extend_from_slice(bytes);
        self.backlog += bytes.len();
        match self.pieces.back_mut() {
            Some(Piece::Own { from, len }) if *from + *len == end => *len += bytes.len(),
            _ if bytes.is_empty() => {}
            _ => self.pieces.push_back(Piece::Own { from: end, len: bytes.len() }),
        }
    }

    pub fn passing(&mut self, bytes: &[u8], passed: Passed) {
        let from = self.base + self.own.len();
        self.own.extend_from_slice(bytes);
        self.backlog += bytes.len();
        self.passing += 1;
        self.pieces.push_back(Piece::Passing { from, len: bytes.len(), passed });
    }

    /// Whether so much waits that input has to wait too.
    pub fn is_backed_up(&self) -> bool {
        self.backlog >= BACKLOG || self.pieces.len() >= PIECES || self.passing >= PASSING
    }

    /// How many pieces wait.
    #[cfg(test)]
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    pub fn memory(&mut self, grip: Grip, len: u32) {
        if len > 0 {
            self.backlog += len as usize;
            self.pieces.push_back(Piece::Memory { grip, len: len as usize });
        }
    }

    pub fn zeros(&mut self, len: u32) {
        if len > 0 {
            self.backlog += len as usize;
            self.pieces.push_back(Piece::Zeros { len: len as usize });
        }
    }

    /// Offers the first pieces to `send` and takes off what it took. Within a section.
    pub fn send_once(
        &mut self,
        nic: &Nic,
        send: &mut impl FnMut(&[Part], Option<i32>) -> Result<usize, Errno>,
    ) -> Result<(), NotSent> {
        let mut parts = [Part::new(std::ptr::null_mut(), 0); PARTS];
        let mut n = 0;
        let mut descriptor = None;
        for piece in &self.pieces {
            if n == PARTS {
                break;
            }
            match piece {
                Piece::Own { from, len } => {
                    parts[n] = Part::new(self.own[*from - self.base..].as_ptr() as *mut u8, *len)
                }
                Piece::Passing { from, len, passed } => {
                    // It goes alone: nothing before it, nothing behind.
                    if n > 0 {
                        break;
                    }
                    parts[0] = Part::new(self.own[*from - self.base..].as_ptr() as *mut u8, *len);
                    descriptor = Some(passed.fd());
                    n = 1;
                    break;
                }
                Piece::Memory { grip, .. } if !nic.stands(&grip.right) => {
                    // What was promised as read may be another's by now.
                    if n == 0 {
                        return Err(NotSent::Revoked);
                    }
                    break;
                }
                Piece::Memory { grip, len } => match grip.memory.mapping().at(grip.offset, *len as u64) {
                    Some(at) => parts[n] = Part::new(at, *len),
                    None => return Err(NotSent::System(Errno(libc::EFAULT))),
                },
                Piece::Zeros { len } => parts[n] = Part::new(ZEROS.as_ptr() as *mut u8, (*len).min(ZEROS.len())),
            }
            n += 1;
            // Only the first page of zeros is offered: what follows it may not be named before it is gone.
            if matches!(piece, Piece::Zeros { len } if *len > ZEROS.len()) {
                break;
            }
        }
        let mut sent = send(&parts[..n], descriptor).map_err(NotSent::System)?;
        self.backlog -= sent.min(self.backlog);
        // It went with the first byte.
        self.passing -= usize::from(descriptor.is_some() && sent > 0);
        while sent > 0 {
            let Some(front) = self.pieces.front_mut() else { break };
            let len = match front {
                Piece::Own { len, .. }
                | Piece::Passing { len, .. }
                | Piece::Memory { len, .. }
                | Piece::Zeros { len } => *len,
            };
            if sent >= len {
                sent -= len;
                self.pieces.pop_front();
                continue;
            }
            match front {
                Piece::Own { from, len } => (*from, *len) = (*from + sent, *len - sent),
                Piece::Passing { from, len, .. } => *front = Piece::Own { from: *from + sent, len: *len - sent },
                Piece::Memory { grip, len } => (grip.offset, *len) = (grip.offset + sent as u64, *len - sent),
                Piece::Zeros { len } => *len -= sent,
            }
            sent = 0;
        }
        self.forget_sent();
        Ok(())
    }

    /// Drops own bytes that were sent: all at once when nothing waits, else now and then, since a
    /// host that never lets its pipeline run dry would have them pile up.
    fn forget_sent(&mut self) {
        let unsent = self.pieces.iter().find_map(|piece| match piece {
            Piece::Own { from, .. } | Piece::Passing { from, .. } => Some(*from),
            _ => None,
        });
        let sent = unsent.map_or(self.own.len(), |from| from - self.base);
        if sent == self.own.len() || sent >= BACKLOG / 32 {
            self.own.drain(..sent);
            self.base += sent;
        }
    }
}
