//! A stream whose bytes are sealed in records ([`farmem_trust::record`]).
//!
//! ```text
//! send     parts ── copy ─► room: record, record … ── seal ─► carrier
//! receive  carrier ─► room ── open in place ─► copy ─► parts
//! ```
//!
//! Its user sees an ordinary stream. Two rules make it so:
//! * [`Sealed::send`] offers its sealed bytes to the carrier until the carrier has taken all of
//!   them. Only then does it report bytes as sent. Before that it returns EAGAIN, and the caller
//!   offers the same bytes again, as it does on any stream.
//! * [`Sealed::receive`] fills less than the caller's buffers only when its room holds no whole
//!   record.
//!
//! Each byte is copied once in each direction, within the cache. Without the copy every buffer of
//! a caller would have to lie between the head and the tag of a record.

// The parts of a transfer are raw memory that callers vouch for.
#![allow(unsafe_code)]

use crate::link::Carrier;
use farmem_sys::raw::Errno;
use farmem_sys::socket::Part;
use farmem_sys::sync::Lock;
use farmem_trust::record::{BadRecord, ENOUGH, Ends, HEAD, MOST, OVERHEAD, Opener, Sealer};

/// Bytes of records that are sent, or received, by one call.
const ROOM: usize = 64 << 10;
const _: () = assert!(ROOM >= 2 * (MOST + OVERHEAD));

pub(crate) struct Sealed {
    out: Lock<Out>,
    into: Lock<In>,
}

struct Out {
    sealer: Sealer,
    room: Box<[u8]>,
    /// Records that are not sent yet.
    from: usize,
    to: usize,
    /// Bytes of the caller's that these carry.
    carried: usize,
}

struct In {
    opener: Opener,
    room: Box<[u8]>,
    /// Opened, and not given to the caller yet.
    open: (usize, usize),
    /// Received, and not opened yet: behind what is open.
    raw: (usize, usize),
}

impl Sealed {
    pub fn new(ends: Ends) -> Sealed {
        let Ends { sealer, opener } = ends;
        let room = || vec![0; ROOM].into_boxed_slice();
        Sealed {
            out: Lock::new(Out { sealer, room: room(), from: 0, to: 0, carried: 0 }),
            into: Lock::new(In { opener, room: room(), open: (0, 0), raw: (0, 0) }),
        }
    }

    /// # Safety
    /// As [`farmem_sys::socket::send`].
    pub unsafe fn send(&self, carrier: &Carrier, parts: &[Part]) -> Result<usize, Errno> {
        let mut out = self.out.lock();
        if out.from == out.to {
            // SAFETY: passed on to the caller.
            unsafe { out.seal(parts) }?;
        }
        while out.from < out.to {
            let left = &out.room[out.from..out.to];
            // SAFETY: a live slice of our own.
            let sent = unsafe { carrier.send(&[Part::new(left.as_ptr() as *mut u8, left.len())]) }?;
            out.from += sent;
        }
        Ok(std::mem::take(&mut out.carried))
    }

    /// # Safety
    /// As [`farmem_sys::socket::receive`].
    pub unsafe fn receive(&self, carrier: &Carrier, parts: &[Part]) -> Result<usize, Errno> {
        let mut into = self.into.lock();
        let mut to = Cursor { parts, part: 0, at: 0, filled: 0 };
        let mut is_dry = false;
        loop {
            // SAFETY: passed on to the caller.
            unsafe { into.give(&mut to) };
            if to.is_full() {
                break;
            }
            if into.open_next().map_err(|_| Errno(libc::EBADMSG))? {
                continue;
            }
            if is_dry {
                break;
            }
            into.make_room();
            let end = into.raw.1;
            let room = &mut into.room[end..];
            // SAFETY: as above.
            match unsafe { carrier.receive(&[Part::new(room.as_mut_ptr(), room.len())]) } {
                // Bytes that came before the end are returned first.
                Ok(0) if to.filled == 0 => return Ok(0),
                Ok(0) | Err(Errno(libc::EAGAIN)) => break,
                Ok(n) => {
                    is_dry = end + n < ROOM;
                    into.raw.1 += n;
                }
                Err(e) => return Err(e),
            }
        }
        if to.filled > 0 || to.is_full() { Ok(to.filled) } else { Err(Errno(libc::EAGAIN)) }
    }
}

impl Out {
    /// Makes records of the first bytes of the parts, as many as there is room for.
    ///
    /// # Safety
    /// As [`farmem_sys::socket::send`].
    unsafe fn seal(&mut self, parts: &[Part]) -> Result<(), Errno> {
        (self.from, self.to, self.carried) = (0, 0, 0);
        let (mut begun, mut at) = (0, HEAD);
        for part in parts {
            let mut done = 0;
            while done < part.len() {
                let most = (begun + HEAD + MOST).min(ROOM - (OVERHEAD - HEAD));
                let n = (part.len() - done).min(most - at);
                // SAFETY: inside the part, which the caller vouches for.
                unsafe { part.copy_out(done, &mut self.room[at..at + n]) };
                (at, done) = (at + n, done + n);
                if at == most {
                    begun = self.close(begun, at)?;
                    at = begun + HEAD;
                    if ROOM - begun < OVERHEAD + ENOUGH {
                        return Ok(());
                    }
                }
            }
        }
        if at > begun + HEAD {
            self.close(begun, at)?;
        }
        Ok(())
    }

    /// Seals the record from `begun` that carries bytes up to `end`. Returns where the next begins.
    fn close(&mut self, begun: usize, end: usize) -> Result<usize, Errno> {
        self.to = end + (OVERHEAD - HEAD);
        self.carried += end - begun - HEAD;
        // On this error the caller makes another connection, which has another key.
        self.sealer.seal(&mut self.room[begun..self.to]).map_err(|_| Errno(libc::EKEYEXPIRED))?;
        Ok(self.to)
    }
}

impl In {
    /// Opens the next record, if it is there whole. Only when nothing open is left.
    fn open_next(&mut self) -> Result<bool, BadRecord> {
        let (from, to) = self.raw;
        let Some(len) = Opener::length(&self.room[from..to])?.filter(|len| *len <= to - from) else {
            return Ok(false);
        };
        let opened = self.opener.open(&mut self.room[from..from + len], 0)?;
        self.open = (from, from + opened);
        self.raw.0 += len;
        Ok(true)
    }

    /// Gives the caller what is open.
    ///
    /// # Safety
    /// As [`farmem_sys::socket::receive`].
    unsafe fn give(&mut self, to: &mut Cursor<'_>) {
        // SAFETY: passed on to the caller.
        self.open.0 += unsafe { to.take(&self.room[self.open.0..self.open.1]) };
    }

    /// Moves what has come of a record to the front. Nothing open is left.
    fn make_room(&mut self) {
        let (from, to) = self.raw;
        if from > 0 {
            self.room.copy_within(from..to, 0);
        }
        (self.open, self.raw) = ((0, 0), (0, to - from));
    }
}

/// A place in the parts of a transfer.
struct Cursor<'a> {
    parts: &'a [Part],
    part: usize,
    at: usize,
    filled: usize,
}

impl Cursor<'_> {
    fn is_full(&self) -> bool {
        self.part == self.parts.len()
    }

    /// Copies what fits of `bytes`. Returns how many.
    ///
    /// # Safety
    /// As [`farmem_sys::socket::receive`].
    unsafe fn take(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while let Some(part) = self.parts.get(self.part) {
            let n = (part.len() - self.at).min(bytes.len() - taken);
            // SAFETY: inside the part, which the caller vouches for.
            unsafe { part.fill(self.at, &bytes[taken..taken + n]) };
            (self.at, taken) = (self.at + n, taken + n);
            if self.at < part.len() {
                break;
            }
            (self.part, self.at) = (self.part + 1, 0);
        }
        self.filled += taken;
        taken
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use farmem_sys::raw::{futex_wait, futex_wake, sleep_ns, syscall};
    use farmem_trust::agree::{Agreed, Half};
    use farmem_trust::record::Cipher;
    use farmem_trust::{Key, same};
    use std::sync::atomic::{AtomicU32, Ordering};

    /// 0: not done yet; 1: it went as it should; 2: it did not.
    static WENT: AtomicU32 = AtomicU32::new(0);

    /// The work of a connection that is restored in a fault: a proof, keys, records in each
    /// direction. And that of a first connection, which threads of the runtime may make: a secret.
    fn proves_seals_and_opens(key: &Key) -> bool {
        let (ours, theirs) = ([1; 32], [2; 32]);
        let of_host = || key.of_host(&theirs, b"hello", None);
        let proven = same(&of_host(), &of_host());
        let agreed = Half::new(&[4; 32]).and_then(|half| half.agree(&Half::new(&[5; 32])?.share()));
        let Some(agreed) = agreed else { return false };
        proven
            && [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305].into_iter().all(|cipher| {
                let ends = (
                    key.host_ends(cipher, (&ours, &theirs), &agreed),
                    key.node_ends(cipher, (&ours, &theirs), &agreed),
                );
                let (Some(host), Some(node)) = ends else { return false };
                let (Ends { mut sealer, .. }, Ends { mut opener, .. }) = (host, node);
                let mut record = [7; OVERHEAD + 4112];
                let opened = sealer.seal(&mut record).and_then(|()| opener.open(&mut record, 0));
                opened == Ok(4112) && record[..4112] == [7; 4112]
            })
    }

    fn without_a_thread_pointer(_: usize) -> ! {
        const ARCH_SET_FS: usize = 0x1002;
        // SAFETY: from here on the thread reads no thread-local, or faults: that is the test.
        unsafe { syscall(libc::SYS_arch_prctl, [ARCH_SET_FS, 0, 0, 0, 0, 0]) };
        let key = Key::stored(Default::default(), [1; 8], [3; 32]);
        WENT.store(if proves_seals_and_opens(&key) { 1 } else { 2 }, Ordering::Release);
        futex_wake(&WENT, 1);
        loop {
            sleep_ns(1_000_000_000);
        }
    }

    #[test]
    fn a_connection_is_proven_and_sealed_without_a_thread_pointer() {
        farmem_sys::thread::spawn(without_a_thread_pointer, 0).unwrap();
        while WENT.load(Ordering::Acquire) == 0 {
            futex_wait(&WENT, 0, 1_000_000_000);
        }
        assert_eq!(WENT.load(Ordering::Acquire), 1);
    }

    /// A carrier that takes little at a time, and gives what it has taken to the other end.
    struct Narrow(Lock<Vec<u8>>, usize);

    impl crate::network::Stream for Narrow {
        unsafe fn send(&self, parts: &[Part]) -> Result<usize, Errno> {
            let mut taken = self.0.lock();
            let n = parts[0].len().min(self.1).min(3 * self.1 - taken.len().min(3 * self.1));
            // SAFETY: the caller vouches for the part.
            taken.extend_from_slice(unsafe { &parts[0].bytes()[..n] });
            if n > 0 { Ok(n) } else { Err(Errno(libc::EAGAIN)) }
        }

        unsafe fn receive(&self, parts: &[Part]) -> Result<usize, Errno> {
            let mut taken = self.0.lock();
            let n = taken.len().min(self.1).min(parts[0].len());
            // SAFETY: as above.
            unsafe { parts[0].fill(0, &taken[..n]) };
            taken.drain(..n);
            if n > 0 { Ok(n) } else { Err(Errno(libc::EAGAIN)) }
        }

        fn is_cut(&self) -> bool {
            false
        }

        fn mute_ns(&self) -> u64 {
            0
        }

        fn wait(&self, _: u64) {}
    }

    /// However little the carrier takes and gives at a time, and wherever the parts of both ends
    /// are cut.
    #[test]
    fn a_stream_is_the_same_through_any_carrier() {
        let key = Key::stored(Default::default(), [1; 8], [3; 32]);
        for (width, sent_by, taken_by) in [(1, 50, 7), (13, 4096, 16), (5000, 70_000, 4112), (100_000, 200_000, 9999)] {
            let cipher = Cipher::Aes128Gcm;
            let (nonces, agreed) = ((&[1; 32], &[2; 32]), Agreed::from([3; 32]));
            let host = Sealed::new(key.host_ends(cipher, nonces, &agreed).unwrap());
            let node = Sealed::new(key.node_ends(cipher, nonces, &agreed).unwrap());
            let carrier = Carrier::Inside(Box::new(Narrow(Lock::new(Vec::new()), width)));
            let said: Vec<u8> = (0..if width < 100 { 3000 } else { 300_000 }).map(|at| (at % 251) as u8).collect();
            let (mut gone, mut heard) = (0, Vec::new());
            while heard.len() < said.len() {
                let part = |from: usize, len: usize| {
                    let to = (from + len).min(said.len());
                    Part::new(said[from.min(to)..to].as_ptr() as *mut u8, to - from.min(to))
                };
                let parts = [part(gone, sent_by / 3), part(gone + sent_by / 3, sent_by)];
                // SAFETY: live slices.
                match unsafe { host.send(&carrier, &parts) } {
                    Ok(n) => gone += n,
                    Err(e) => assert_eq!(e, Errno(libc::EAGAIN)),
                }
                let mut room = [vec![0; taken_by], vec![0; 1 + taken_by / 2]];
                let parts = room.each_mut().map(|room| Part::new(room.as_mut_ptr(), room.len()));
                // SAFETY: live slices.
                match unsafe { node.receive(&carrier, &parts) } {
                    Ok(n) => heard.extend_from_slice(&room.concat()[..n]),
                    Err(e) => assert_eq!(e, Errno(libc::EAGAIN)),
                }
            }
            assert!(heard == said, "{width}");
        }
    }
}
