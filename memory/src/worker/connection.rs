//! One connection of a worker: its socket and its engine.

// The parts that engines name are passed to the sockets.
#![allow(unsafe_code)]

use farmem_nic::Nic;
use farmem_nic::engine::{Engine, Goodbye};
use farmem_sys::raw::Errno;
use farmem_sys::socket;
use std::os::fd::{AsRawFd, OwnedFd};

/// A connection, from when it was accepted.
pub(super) struct Connection {
    pub socket: OwnedFd,
    pub engine: Engine,
    pub since_ns: u64,
    /// The events that epoll watches for: input, output.
    pub watched: (bool, bool),
    /// A descriptor was sent, and the peer may not have taken it yet.
    pub passed: bool,
    /// Output waits until the peer has taken a descriptor. epoll does not tell when it has: the
    /// socket has room all the time.
    pub held_up: bool,
    /// Its class in the worker's `turns`. `None`: it has not said who it is.
    pub class: Option<usize>,
    /// Input in the engine waited for output to be sent, and that was sent; or the turn was over.
    /// No event of the socket tells of it, so the worker serves the connection again by itself.
    pub goes_on: bool,
    /// Its tenant is ahead of its rate. The connection waits, and epoll does not watch it.
    pub put_off: bool,
    /// It waits for its turn, and epoll does not watch it meanwhile: it would report the same input
    /// at each look. It is watched again when nothing more comes.
    pub queued: bool,
    /// A SEND of it was put off, and it is in the worker's `later`.
    pub later: bool,
    /// Bytes moved that are not yet counted against its tenant's rate.
    pub moved: u64,
}

impl Connection {
    /// Receives input, has the engine carry it out, and sends what the socket takes of the answers.
    /// Returns whether anything came.
    ///
    /// A descriptor is sent only when the peer has taken the one before. The reason is a limit of
    /// the kernel. It counts the descriptors in transit that a *user* has sent, and at the sender's
    /// limit on descriptors it refuses all others of that user. A peer that takes none must not use
    /// this limit up. With one in transit a connection, there are always fewer than the node may
    /// have open. Other programs of the same user count, too. If the kernel refuses a descriptor
    /// because of them (ETOOMANYREFS), it is sent again later.
    pub fn serve(&mut self, nic: &Nic, now: u64) -> Result<bool, Goodbye> {
        let fd = self.socket.as_raw_fd();
        let moved = &mut self.moved;
        let mut counted = |moves: Result<usize, Errno>| moves.inspect(|&bytes| *moved += bytes as u64);
        // SAFETY: the engine names its own buffers and slabs that it holds.
        let pulled = self.engine.pull(nic, now, |parts| counted(unsafe { socket::receive(fd, parts) }));
        self.held_up = false;
        let backed_up = self.engine.is_backed_up();
        if self.engine.has_output() || pulled.is_err() {
            let (passed, held_up) = (&mut self.passed, &mut self.held_up);
            self.engine.push(nic, |parts, descriptor| match descriptor {
                // SAFETY: as above.
                None => counted(unsafe { socket::send(fd, parts) }),
                Some(_) if *passed && socket::untaken(fd) > 0 => {
                    *held_up = true;
                    Err(Errno(libc::EAGAIN))
                }
                Some(descriptor) => {
                    // SAFETY: as above.
                    let sent = unsafe { socket::send_with_descriptor(fd, parts, descriptor) };
                    *passed = sent.is_ok();
                    *held_up = sent == Err(Errno(libc::ETOOMANYREFS));
                    sent.map_err(|e| if *held_up { Errno(libc::EAGAIN) } else { e })
                }
            })?;
        }
        self.goes_on = (backed_up || self.engine.was_long()) && !self.engine.is_backed_up();
        pulled.map(|n| n > 0)
    }
}
