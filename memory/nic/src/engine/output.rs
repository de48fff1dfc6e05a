//! Bytes on their way out of a connection.
//!
//! Bytes of slabs are sent from where they are. The node's own memory holds completions, other
//! frames, and a record of each waiting piece. A connection may have [`SMALL`] of these, or
//! [`LARGE`] while it has one of the places of `Nic::roomy`. At the limit input waits.

use crate::Nic;
use crate::grip::Grip;
use crate::lending::Slab;
use crate::units::files::File;
use farmem_sys::raw::Errno;
use farmem_sys::socket::Part;
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// How much output may wait before input waits too.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    /// Bytes to send, wherever they are.
    backlog: usize,
    /// Bytes of the node's own.
    own: usize,
    /// Pieces: each takes more of the node's memory than the shortest is long.
    pub pieces: usize,
}

/// Of any connection: more than one batch of verbs makes.
pub(super) const SMALL: Limit = Limit { backlog: 2 << 20, own: 8 << 10, pieces: 512 };
/// Of the few that may have much.
pub(super) const LARGE: Limit = Limit { backlog: 2 << 20, own: 64 << 10, pieces: 2048 };
/// Bytes of the word table read at a time while they are sent. A multiple of a word.
const WORDS: usize = 32 << 10;
/// Bytes of the longest READ of the word table that is read when it is carried out, before the
/// verbs behind it. Operations on words count on that order; longer READs are for inspection.
const FEW_WORDS: u32 = 4096;
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

/// Own bytes, bytes of memory, words, zeros, in order.
#[derive(Default)]
pub(super) struct Output {
    own: Vec<u8>,
    /// Where `own` begins in the stream of own bytes. Bytes before it have been sent.
    base: usize,
    pieces: VecDeque<Piece>,
    pub backlog: usize,
    passing: usize,
    /// Words already read of the first piece, if that is [`Piece::Words`], and not sent yet.
    words: Vec<u8>,
}

/// The file whose descriptor a peer on this machine gets.
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
    /// Words of the table that are not sent yet.
    Words {
        at: u64,
        len: usize,
    },
    Zeros {
        len: usize,
    },
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Own { len, .. }
            | Piece::Passing { len, .. }
            | Piece::Memory { len, .. }
            | Piece::Words { len, .. }
            | Piece::Zeros { len } => *len,
        }
    }
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
    pub fn is_backed_up(&self, roomy: bool) -> bool {
        let most = if roomy { LARGE } else { SMALL };
        let own = self.own.len() + self.words.len();
        self.backlog >= most.backlog || own >= most.own || self.pieces.len() >= most.pieces || self.passing >= PASSING
    }

    /// How many pieces wait.
    #[cfg(test)]
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Bytes of the node's own that wait.
    #[cfg(test)]
    pub fn own_bytes(&self) -> usize {
        self.own.len() + self.words.len()
    }

    pub fn memory(&mut self, grip: Grip, len: u32) {
        if len > 0 {
            self.backlog += len as usize;
            self.pieces.push_back(Piece::Memory { grip, len: len as usize });
        }
    }

    /// Words of the table, from a readable range. A long range is read only as it is sent.
    pub fn words(&mut self, nic: &Nic, at: u64, len: u32) {
        if len <= FEW_WORDS {
            let mut words = Vec::new();
            nic.units.words.read_into(at, len as usize, &mut words);
            self.bytes(&words);
        } else {
            self.backlog += len as usize;
            self.pieces.push_back(Piece::Words { at, len: len as usize });
        }
    }

    pub fn zeros(&mut self, len: u32) {
        if len > 0 {
            self.backlog += len as usize;
            self.pieces.push_back(Piece::Zeros { len: len as usize });
        }
    }

    /// Offers the first pieces to `send`, and removes the bytes that it took. Within a section.
    pub fn send_once(
        &mut self,
        nic: &Nic,
        send: &mut impl FnMut(&[Part], Option<i32>) -> Result<usize, Errno>,
    ) -> Result<(), NotSent> {
        if let Some(Piece::Words { at, len }) = self.pieces.front()
            && self.words.is_empty()
        {
            nic.units.words.read_into(*at, (*len).min(WORDS), &mut self.words);
        }
        let mut parts = [Part::new(std::ptr::null_mut(), 0); PARTS];
        let (n, descriptor) = self.offer(nic, &mut parts)?;
        let sent = send(&parts[..n], descriptor).map_err(NotSent::System)?;
        self.backlog -= sent.min(self.backlog);
        // It went with the first byte.
        self.passing -= usize::from(descriptor.is_some() && sent > 0);
        self.take_off(sent);
        self.forget_sent();
        Ok(())
    }

    /// The pieces that can go in one call: their number, and the descriptor that goes along.
    fn offer(&self, nic: &Nic, parts: &mut [Part; PARTS]) -> Result<(usize, Option<i32>), NotSent> {
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
                Piece::Memory { grip, .. } if !nic.admission().stands(&grip.right) => {
                    // The memory promised to this READ may be another's by now.
                    if n == 0 {
                        return Err(NotSent::Revoked);
                    }
                    break;
                }
                Piece::Memory { grip, len } => match grip.memory.mapping().at(grip.offset, *len as u64) {
                    Some(at) => parts[n] = Part::new(at, *len),
                    None => return Err(NotSent::System(Errno(libc::EFAULT))),
                },
                Piece::Words { .. } if n > 0 => break,
                Piece::Words { .. } => {
                    // The next piece may not be named before all of these words are sent.
                    parts[0] = Part::new(self.words.as_ptr() as *mut u8, self.words.len());
                    n = 1;
                    break;
                }
                Piece::Zeros { len } => parts[n] = Part::new(ZEROS.as_ptr() as *mut u8, (*len).min(ZEROS.len())),
            }
            n += 1;
            // Only the first page of zeros is offered: the next piece may not be named before all
            // zeros are sent.
            if matches!(piece, Piece::Zeros { len } if *len > ZEROS.len()) {
                break;
            }
        }
        Ok((n, descriptor))
    }

    /// Removes bytes that were sent from the first pieces.
    fn take_off(&mut self, mut sent: usize) {
        while sent > 0 {
            let Some(front) = self.pieces.front_mut() else { break };
            let len = front.len();
            if let Piece::Words { .. } = front {
                self.words.drain(..sent.min(len));
            }
            if sent >= len {
                sent -= len;
                self.pieces.pop_front();
                continue;
            }
            match front {
                Piece::Own { from, len } => (*from, *len) = (*from + sent, *len - sent),
                Piece::Passing { from, len, .. } => *front = Piece::Own { from: *from + sent, len: *len - sent },
                Piece::Memory { grip, len } => (grip.offset, *len) = (grip.offset + sent as u64, *len - sent),
                Piece::Words { at, len } => (*at, *len) = (*at + sent as u64, *len - sent),
                Piece::Zeros { len } => *len -= sent,
            }
            sent = 0;
        }
    }

    /// Drops own bytes that were sent: all at once when nothing waits, else now and then, since a
    /// host that never lets its pipeline run dry would have them pile up.
    fn forget_sent(&mut self) {
        let unsent = self.pieces.iter().find_map(|piece| match piece {
            Piece::Own { from, .. } | Piece::Passing { from, .. } => Some(*from),
            _ => None,
        });
        let sent = unsent.map_or(self.own.len(), |from| from - self.base);
        if sent == self.own.len() || sent >= LARGE.own / 2 {
            self.own.drain(..sent);
            self.base += sent;
        }
        if self.pieces.is_empty() {
            // Give back the memory that a burst has taken.
            self.own.shrink_to(SMALL.own);
            self.pieces.shrink_to(SMALL.pieces);
            self.words = Vec::new();
        }
    }
}
