//! A network slower than loopback: the traffic of a TCP connection is held to a rate, in both
//! directions.
//!
//! ```text
//!            send ─► bucket out ─► socket          bytes + heads of the packets they travel in,
//!   receive ◄─ bucket in ◄─ socket                 and the other side's acknowledgements of them
//! ```
//!
//! A bucket knows only until when the link is taken by earlier bytes. If it is taken for more than
//! [`DEPTH_BYTES`] ahead, a caller is told to try again, as by a full socket. No call gets more
//! than [`CHUNK`] bytes through at a time. So the rate holds over any stretch longer than some
//! dozen microseconds. Bytes sent into an idle link are not delayed: the latency is loopback's own.
//!
//! One pair of buckets serves all connections of a session, as they would share a cable. (Processes
//! of a run have sessions of their own, and a cable each: a run of many processes is not held to
//! the rate as a whole.) Only the host's end is held. Bytes from the node wait in the socket until
//! the host's bucket lets them in, and then in the node's, by TCP's own window.
//!
//! *Bytes on the wire.* A TCP segment carries up to 1448 bytes over Ethernet (MTU 1500, timestamps)
//! and takes 90 more: preamble and gap 20, Ethernet 18, IP 20, TCP 32. Each call of `send` begins a
//! segment of its own; every second segment is acknowledged by an empty one the other way. (RFC
//! 9293; IEEE 802.3.)

// Passing on parts that the callers vouch for.
#![allow(unsafe_code)]

use farmem_sys::raw::{Errno, now_ns, sleep_ns, yield_cpu};
use farmem_sys::socket::{self, Part};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of data in one segment.
const SEGMENT: u64 = 1448;
/// Bytes that a segment takes besides.
const HEADS: u64 = 90;
/// Bytes that one call moves, at most.
const CHUNK: usize = 16 << 10;
/// How far ahead of time the link may be taken.
const DEPTH_BYTES: u64 = 16 << 10;
/// Waits shorter than this are spent looking: a sleep takes longer.
const SPIN_NS: u64 = 70_000;

/// Reads a rate: `10G`, `2.5G`, `400M` bits a second, by powers of 1000.
///
/// # Errors
/// Says what to write instead.
pub fn rate(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let unit = match unit {
        "M" => 1e6,
        "G" => 1e9,
        _ => return Err("write bits a second, as 400M or 10G".into()),
    };
    match number.parse::<f64>() {
        Ok(number) if (1e6..=1e12).contains(&(number * unit)) => Ok((number * unit) as u64),
        _ => Err("between 1M and 1000G bits a second".into()),
    }
}

/// Bytes on the wire of `data` bytes handed over in one piece.
pub fn on_the_wire(data: u64) -> u64 {
    data + data.div_ceil(SEGMENT) * HEADS
}

/// Bytes of the acknowledgements of as much data, the other way.
fn acknowledgements(data: u64) -> u64 {
    data.div_ceil(SEGMENT) / 2 * HEADS
}

/// Both directions of a link.
pub(crate) struct Shaper {
    out: Bucket,
    into: Bucket,
}

struct Bucket {
    bits_per_s: u64,
    /// Until when the link is taken, ns.
    taken_until: AtomicU64,
}

impl Bucket {
    fn ns(&self, bytes: u64) -> u64 {
        (bytes as u128 * 8_000_000_000 / self.bits_per_s as u128) as u64
    }

    /// How long until something may go, ns.
    fn wait_ns(&self, now: u64) -> u64 {
        self.taken_until.load(Ordering::Relaxed).saturating_sub(now + self.ns(DEPTH_BYTES))
    }

    fn take(&self, now: u64, bytes: u64) {
        let ns = self.ns(bytes);
        let after = |until: u64| Some(until.max(now) + ns);
        let _ = self.taken_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
    }
}

impl Shaper {
    /// A rate in bits a second each way, at least a million.
    pub fn new(bits_per_s: u64) -> Shaper {
        let bucket = || Bucket { bits_per_s: bits_per_s.max(1_000_000), taken_until: AtomicU64::new(0) };
        Shaper { out: bucket(), into: bucket() }
    }

    /// # Safety
    /// As [`socket::send`].
    pub unsafe fn send(&self, fd: i32, parts: &[Part]) -> Result<usize, Errno> {
        let now = now_ns();
        if self.out.wait_ns(now) > 0 {
            return Err(Errno(libc::EAGAIN));
        }
        // SAFETY: the caller's parts, or pieces of them.
        let sent = limited(parts, CHUNK, |parts| unsafe { socket::send(fd, parts) })?;
        self.out.take(now, on_the_wire(sent as u64));
        self.into.take(now, acknowledgements(sent as u64));
        Ok(sent)
    }

    /// # Safety
    /// As [`socket::receive`].
    pub unsafe fn receive(&self, fd: i32, parts: &[Part]) -> Result<usize, Errno> {
        let now = now_ns();
        if self.into.wait_ns(now) > 0 {
            return Err(Errno(libc::EAGAIN));
        }
        // SAFETY: parts of the caller's parts.
        let came = limited(parts, CHUNK, |parts| unsafe { socket::receive(fd, parts) })?;
        self.into.take(now, on_the_wire(came as u64));
        self.out.take(now, acknowledgements(came as u64));
        Ok(came)
    }

    /// As [`socket::wait`], for bytes that the buckets let pass.
    pub fn wait(&self, fd: i32, write: bool, timeout_ns: u64) {
        let begun = now_ns();
        let (out, into) = (self.out.wait_ns(begun), self.into.wait_ns(begun));
        if into == 0 && (out == 0 || !write) {
            socket::wait(fd, true, write, timeout_ns);
        } else if into == 0 {
            // Something may come before something can go.
            socket::wait(fd, true, false, out.saturating_sub(SPIN_NS).min(timeout_ns));
        } else {
            let wait = if write { into.min(out) } else { into }.min(timeout_ns);
            if wait > SPIN_NS {
                return sleep_ns(wait - SPIN_NS);
            }
            while now_ns() - begun < wait {
                yield_cpu();
            }
        }
    }
}

/// A transfer of the first `most` bytes of `parts`.
fn limited(
    parts: &[Part],
    most: usize,
    transfer: impl FnOnce(&[Part]) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    const PARTS: usize = 64;
    let mut some = [Part::new(std::ptr::null_mut(), 0); PARTS];
    let (mut n, mut left) = (0, most);
    for (to, part) in some.iter_mut().zip(parts) {
        if left == 0 {
            break;
        }
        *to = part.shortened(left);
        left -= to.len();
        n += 1;
    }
    transfer(&some[..n])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        assert_eq!((rate("10G"), rate("2.5G"), rate("400M")), (Ok(10_000_000_000), Ok(2_500_000_000), Ok(400_000_000)));
        assert!(["", "10", "G", "0G", "10g", "9000G", "1.2.3M"].iter().all(|bad| rate(bad).is_err()));
    }

    #[test]
    fn heads_and_acknowledgements_are_counted() {
        assert_eq!(on_the_wire(1448), 1538);
        assert_eq!(on_the_wire(100), 190);
        assert_eq!(on_the_wire(4136), 4136 + 3 * 90);
        assert_eq!(acknowledgements(2896), 90);
    }

    #[test]
    fn a_bucket_lets_pass_what_its_rate_allows() {
        let bucket = Bucket { bits_per_s: 10_000_000_000, taken_until: AtomicU64::new(0) };
        let (mut now, mut passed) = (1_000_000u64, 0u64);
        let end = now + 10_000_000;
        while now < end {
            match bucket.wait_ns(now) {
                0 => {
                    bucket.take(now, 4_000);
                    passed += 4_000;
                }
                wait => now += wait,
            }
        }
        let allowed = 12_500_000 + DEPTH_BYTES;
        assert!((12_500_000..allowed + 4_000).contains(&passed), "{passed} of {allowed}");
    }

    /// Both ways of a real connection, as fast as they go.
    #[test]
    fn a_connection_is_held_to_its_rate() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = socket::connect(socket::Peer::Tcp(listener.local_addr().unwrap()), 1_000_000_000).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        let echo = std::thread::spawn(move || {
            std::io::copy(&mut other.try_clone().unwrap(), &mut other).unwrap();
        });
        let shaper = Shaper::new(400_000_000);
        let (mut sent, mut came) = (0usize, 0usize);
        let (source, mut target) = (vec![7u8; 64 << 10], vec![0u8; 64 << 10]);
        let total = 4 << 20;
        let begun = now_ns();
        while came < total {
            let (out, into) = (
                Part::new(source.as_ptr().cast_mut(), source.len().min(total - sent)),
                Part::new(target.as_mut_ptr(), target.len()),
            );
            // SAFETY: live buffers.
            unsafe {
                sent += if sent < total { shaper.send(fd, &[out]).unwrap_or(0) } else { 0 };
                came += shaper.receive(fd, &[into]).unwrap_or(0);
            }
            shaper.wait(fd, sent < total, 1_000_000);
        }
        let least = on_the_wire(total as u64) * 8_000_000_000 / 400_000_000 - 1_000_000;
        assert!(now_ns() - begun > least, "{} ns for {least}", now_ns() - begun);
        farmem_sys::descriptors::close(fd);
        echo.join().unwrap();
    }
}
