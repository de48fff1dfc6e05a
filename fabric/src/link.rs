//! A stream of bytes to a node, with its clock: a socket and the system's clock, or a stream of a
//! [`Network`] in this process. The bytes may be sealed in records ([`Sealed`]).

// Passing on parts that the callers vouch for.
#![allow(unsafe_code)]

use crate::network::{Network, Stream};
use crate::sealed::Sealed;
use crate::session::DOUBT_NS;
use crate::shape::Shaper;
use farmem_sys::descriptors;
use farmem_sys::raw::{self, Errno};
pub(crate) use farmem_sys::socket::Passed;
use farmem_sys::socket::{self, Part, Peer};
use farmem_trust::record::Ends;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a node was found, names resolved: reconnecting asks no resolver.
#[derive(Clone)]
pub(crate) enum Reach {
    Tcp(SocketAddr),
    Shaped(SocketAddr, Arc<Shaper>),
    Unix(PathBuf),
    Inside(Arc<dyn Network>),
}

impl Reach {
    pub fn connect(&self, timeout_ns: u64) -> Result<Link, Errno> {
        Ok(match self {
            Reach::Tcp(at) => Carrier::Socket(socket::connect(Peer::Tcp(*at), timeout_ns)?),
            Reach::Shaped(at, shaper) => {
                Carrier::Shaped(socket::connect(Peer::Tcp(*at), timeout_ns)?, Arc::clone(shaper))
            }
            Reach::Unix(path) => Carrier::Socket(socket::connect(Peer::Unix(path), timeout_ns)?),
            Reach::Inside(network) => Carrier::Inside(Arc::clone(network).connect(timeout_ns)?),
        }
        .into())
    }

    pub fn now_ns(&self) -> u64 {
        match self {
            Reach::Inside(network) => network.now_ns(),
            _ => raw::now_ns(),
        }
    }

    pub fn sleep_ns(&self, ns: u64) {
        match self {
            Reach::Inside(network) => network.pass(ns),
            _ => raw::sleep_ns(ns),
        }
    }
}

/// An open stream. Closed when dropped.
pub(crate) struct Link {
    carrier: Carrier,
    /// Its bytes go in records.
    sealed: Option<Box<Sealed>>,
}

impl From<Carrier> for Link {
    fn from(carrier: Carrier) -> Link {
        Link { carrier, sealed: None }
    }
}

/// Everything but the transfer of bytes is the carrier's.
impl Deref for Link {
    type Target = Carrier;

    fn deref(&self) -> &Carrier {
        &self.carrier
    }
}

impl Link {
    /// From now on what goes over the stream goes in records.
    pub fn seal(&mut self, ends: Ends) {
        self.sealed = Some(Box::new(Sealed::new(ends)));
    }

    /// # Safety
    /// As [`socket::send`].
    #[inline]
    pub unsafe fn send(&self, parts: &[Part]) -> Result<usize, Errno> {
        match &self.sealed {
            // SAFETY: passed on to the caller.
            None => unsafe { self.carrier.send(parts) },
            // SAFETY: as above.
            Some(sealed) => unsafe { sealed.send(&self.carrier, parts) },
        }
    }

    /// # Safety
    /// As [`socket::receive`].
    #[inline]
    pub unsafe fn receive(&self, parts: &[Part]) -> Result<usize, Errno> {
        match &self.sealed {
            // SAFETY: passed on to the caller.
            None => unsafe { self.carrier.receive(parts) },
            // SAFETY: as above.
            Some(sealed) => unsafe { sealed.receive(&self.carrier, parts) },
        }
    }

    /// Sends what fits now of one run of bytes.
    pub fn send_bytes(&self, bytes: &[u8]) -> Result<usize, Errno> {
        // SAFETY: a live slice.
        unsafe { self.send(&[Part::new(bytes.as_ptr() as *mut u8, bytes.len())]) }
    }

    /// Receives bytes and the descriptor that came with them.
    pub fn receive_passed(&self, into: &mut [u8]) -> Result<(usize, Option<Passed>), Errno> {
        match (&self.carrier, &self.sealed) {
            (Carrier::Socket(fd) | Carrier::Shaped(fd, _), None) => socket::receive_with_descriptor(*fd, into),
            _ => {
                let part = Part::new(into.as_mut_ptr(), into.len());
                // SAFETY: a live slice of the caller's.
                Ok((unsafe { self.receive(&[part]) }?, None))
            }
        }
    }
}

/// The transport of a stream's bytes.
pub(crate) enum Carrier {
    Socket(i32),
    /// A socket whose traffic is held to a rate.
    Shaped(i32, Arc<Shaper>),
    Inside(Box<dyn Stream>),
}

impl Carrier {
    /// # Safety
    /// As [`socket::send`].
    #[inline]
    pub unsafe fn send(&self, parts: &[Part]) -> Result<usize, Errno> {
        match self {
            // SAFETY: passed on to the caller.
            Carrier::Socket(fd) => unsafe { socket::send(*fd, parts) },
            // SAFETY: as above.
            Carrier::Shaped(fd, shaper) => unsafe { shaper.send(*fd, parts) },
            // SAFETY: as above.
            Carrier::Inside(stream) => unsafe { stream.send(parts) },
        }
    }

    /// # Safety
    /// As [`socket::receive`].
    #[inline]
    pub unsafe fn receive(&self, parts: &[Part]) -> Result<usize, Errno> {
        match self {
            // SAFETY: passed on to the caller.
            Carrier::Socket(fd) => unsafe { socket::receive(*fd, parts) },
            // SAFETY: as above.
            Carrier::Shaped(fd, shaper) => unsafe { shaper.receive(*fd, parts) },
            // SAFETY: as above.
            Carrier::Inside(stream) => unsafe { stream.receive(parts) },
        }
    }

    /// Whether the stream is at its end.
    pub fn is_cut(&self) -> bool {
        match self {
            Carrier::Socket(fd) | Carrier::Shaped(fd, _) => socket::is_cut(*fd),
            Carrier::Inside(stream) => stream.is_cut(),
        }
    }

    /// Sleeps until there is something to receive, or room to send, or the time is over.
    pub fn wait(&self, write: bool, timeout_ns: u64) {
        match self {
            Carrier::Socket(fd) => {
                socket::wait(*fd, true, write, timeout_ns);
            }
            Carrier::Shaped(fd, shaper) => shaper.wait(*fd, write, timeout_ns),
            Carrier::Inside(stream) => stream.wait(timeout_ns),
        }
    }

    /// Lets a node that shares this CPU run.
    #[inline]
    pub fn pause(&self) {
        match self {
            Carrier::Socket(_) | Carrier::Shaped(..) => raw::yield_cpu(),
            Carrier::Inside(stream) => stream.wait(1_000),
        }
    }

    /// Has the peer's kernel acknowledge something when the connection is idle for `idle_s`
    /// seconds.
    pub fn ask_when_idle(&self, idle_s: i32) {
        if let Carrier::Socket(fd) | Carrier::Shaped(fd, _) = self {
            socket::ask_when_idle(*fd, idle_s);
        }
    }

    /// The same, and gives the connection up after about `ms` of silence.
    pub fn notice_silence(&self, idle_s: i32, ms: u32) {
        if let Carrier::Socket(fd) | Carrier::Shaped(fd, _) = self {
            socket::notice_silence(*fd, idle_s, ms);
        }
    }

    /// How long the peer's machine has not been heard on this connection; 0 where it cannot go
    /// silent.
    pub fn mute_ns(&self) -> u64 {
        match self {
            Carrier::Socket(fd) | Carrier::Shaped(fd, _) => {
                socket::acknowledged(*fd).map_or(0, |last| u64::from(last.before_ms) * 1_000_000)
            }
            Carrier::Inside(stream) => stream.mute_ns(),
        }
    }

    /// Packets with data that came on this connection, and bytes by which it went on in either
    /// direction. Zeros where it cannot go silent.
    pub fn traffic(&self) -> (u32, u64) {
        match self {
            Carrier::Socket(fd) | Carrier::Shaped(fd, _) => {
                socket::acknowledged(*fd).map_or((0, 0), |last| (last.segments, last.progress))
            }
            Carrier::Inside(_) => (0, 0),
        }
    }

    /// Whether something that was sent has not been acknowledged for [`DOUBT_NS`]. Its next
    /// retransmission may be seconds away.
    pub fn is_stalled(&self) -> bool {
        self.is_stalled_for(DOUBT_NS)
    }

    /// The same for this long.
    pub fn is_stalled_for(&self, ns: u64) -> bool {
        match self {
            Carrier::Socket(fd) | Carrier::Shaped(fd, _) => socket::acknowledged(*fd)
                .is_some_and(|last| last.missing > 0 && u64::from(last.before_ms) * 1_000_000 >= ns),
            Carrier::Inside(stream) => stream.mute_ns() >= ns,
        }
    }

    /// The process at the other end of a Unix socket; 0 where that is in no namespace of this
    /// one's.
    pub fn peer_process(&self) -> u32 {
        match self {
            Carrier::Socket(fd) => farmem_sys::shared::peer_of(*fd).map_or(0, |peer| peer.pid),
            _ => 0,
        }
    }

    /// Whether the other end of a TCP connection is on this machine: it has this end's address, or both
    /// are of loopback.
    pub fn is_near(&self) -> bool {
        match self {
            Carrier::Socket(fd) | Carrier::Shaped(fd, _) => {
                let ends = socket::local_address(*fd).zip(socket::peer_address(*fd));
                ends.is_some_and(|(own, there)| are_near(own.ip(), there.ip()))
            }
            Carrier::Inside(_) => false,
        }
    }

    pub fn peer_address(&self) -> Option<SocketAddr> {
        match self {
            Carrier::Socket(fd) | Carrier::Shaped(fd, _) => socket::peer_address(*fd),
            Carrier::Inside(_) => None,
        }
    }
}

/// Whether two ends of a connection are of one machine, by their addresses. The loopback addresses
/// reach one another.
fn are_near(one: IpAddr, other: IpAddr) -> bool {
    let (one, other) = (one.to_canonical(), other.to_canonical());
    one == other || one.is_loopback() && other.is_loopback()
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if let Carrier::Socket(fd) | Carrier::Shaped(fd, _) = self {
            descriptors::close(*fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_elsewhere_names_no_socket_of_this_machine() {
        let near = |one: &str, other: &str| are_near(one.parse().unwrap(), other.parse().unwrap());
        for (one, other) in [("127.0.0.1", "127.0.0.2"), ("10.0.0.5", "::ffff:10.0.0.5"), ("::1", "127.0.0.1")] {
            assert!(near(one, other), "{one} {other}");
        }
        for (one, other) in [("10.0.0.5", "10.0.0.6"), ("127.0.0.1", "10.0.0.5"), ("fe80::1", "fe80::2")] {
            assert!(!near(one, other), "{one} {other}");
        }
    }
}
