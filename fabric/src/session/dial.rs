//! One attempt to connect, and one exchange over a connection that stands.

use super::silence::{DOUBT_NS, Ear, KEEP_S};
use crate::ConnectError;
use crate::link::Link;
use farmem_protocol::addr::SlabId;
use farmem_protocol::wire::{
    Answer, Ask, Hello, MAGIC, MAX_PATH, Purpose, Request, VERSION, Verdict, Welcome, variant,
};
use farmem_sys::raw::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use zerocopy::{FromZeros, IntoBytes};

/// Why an attempt to connect failed.
#[derive(Debug)]
pub(super) enum NoDial {
    System(Errno),
    /// Connected, and no answer.
    Silent,
    /// Connected, and closed without an answer.
    Closed,
    NotFarmem,
    Verdict(Verdict, u16),
}

impl NoDial {
    pub fn at_start(self, node: &str) -> ConnectError {
        let node = node.to_owned();
        match self {
            NoDial::System(Errno(libc::ECONNREFUSED | libc::ENOENT)) => ConnectError::Refused(node),
            NoDial::System(Errno(libc::ETIMEDOUT)) | NoDial::Silent => ConnectError::Silent(node),
            NoDial::System(reason @ Errno(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)) => {
                ConnectError::Here { node, reason }
            }
            NoDial::System(reason) => ConnectError::Unreachable { node, reason },
            NoDial::Closed | NoDial::NotFarmem => ConnectError::NotFarmem(node),
            NoDial::Verdict(Verdict::Version, theirs) => ConnectError::Version { node, theirs },
            NoDial::Verdict(Verdict::Draining, _) => ConnectError::Draining(node),
            NoDial::Verdict(Verdict::Full, _) => ConnectError::Full(node),
            NoDial::Verdict(Verdict::Unknown | Verdict::Incarnation, _) => ConnectError::Unknown(node),
            NoDial::Verdict(..) => ConnectError::NotFarmem(node),
        }
    }
}

impl std::fmt::Display for NoDial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NoDial::System(e) => e.fmt(f),
            NoDial::Silent => f.write_str("no answer"),
            NoDial::Closed => f.write_str("closed at once"),
            NoDial::NotFarmem => f.write_str("not a farmem node"),
            NoDial::Verdict(verdict, _) => write!(f, "{verdict:?}"),
        }
    }
}

/// Why what was awaited did not come whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Broken {
    /// The time is over.
    Late,
    /// The peer's machine is not heard any more.
    Mute,
    /// The connection has ended.
    Cut(Errno),
}

impl From<Errno> for Broken {
    fn from(e: Errno) -> Broken {
        Broken::Cut(e)
    }
}

/// Between looks whether the peer's machine is still heard.
const LISTEN_NS: u64 = 250_000_000;

/// How long an attempt may take.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    pub connect_ns: u64,
    pub answer_ns: u64,
}

impl Patience {
    pub fn both(ns: u64) -> Patience {
        Patience { connect_ns: ns, answer_ns: ns }
    }
}

pub(super) fn hello(purpose: Purpose) -> Hello {
    Hello { magic: MAGIC, version: VERSION.into(), purpose: purpose as u8, ..Hello::new_zeroed() }
}

pub(super) fn request(ask: Ask, number: u64, slab: SlabId, detail: [u8; 16]) -> Request {
    Request { ask: ask as u8, zero: [0; 7], number: number.into(), slab: slab.0.into(), detail }
}

/// Connects, says hello, and reads the welcome.
pub(super) fn dial(
    ear: Ear<'_>,
    hello: &Hello,
    patience: Patience,
) -> Result<(Link, Welcome, Option<PathBuf>), NoDial> {
    let link = ear.reach.connect(patience.connect_ns).map_err(NoDial::System)?;
    link.ask_when_idle(KEEP_S);
    greet(ear, link, hello, patience.answer_ns)
}

/// [`dial`] over a connection that stands.
pub(super) fn greet(
    ear: Ear<'_>,
    link: Link,
    hello: &Hello,
    answer_ns: u64,
) -> Result<(Link, Welcome, Option<PathBuf>), NoDial> {
    let until = ear.reach.now_ns() + answer_ns;
    send_now(&link, hello.as_bytes()).map_err(|_| NoDial::Closed)?;
    let mut welcome = Welcome::new_zeroed();
    let bytes = welcome.as_mut_bytes();
    // Magic and version first: of another version nothing more is known.
    receive_until(ear, &link, &mut bytes[..8], until)?;
    if welcome.magic != MAGIC {
        return Err(NoDial::NotFarmem);
    }
    if welcome.version != VERSION {
        return Err(NoDial::Verdict(Verdict::Version, welcome.version.get()));
    }
    receive_until(ear, &link, &mut welcome.as_mut_bytes()[8..], until)?;
    let len = welcome.path_len.get() as usize;
    match variant::<Verdict>(welcome.verdict) {
        Some(Verdict::Welcome) if len <= MAX_PATH => {}
        Some(Verdict::Welcome) | None => return Err(NoDial::NotFarmem),
        Some(verdict) => return Err(NoDial::Verdict(verdict, VERSION)),
    }
    let mut path = [0; MAX_PATH];
    receive_until(ear, &link, &mut path[..len], until)?;
    let path = (len > 0).then(|| PathBuf::from(OsStr::from_bytes(&path[..len])));
    Ok((link, welcome, path))
}

/// Sends a frame that fits any socket's buffer.
pub(crate) fn send_now(link: &Link, bytes: &[u8]) -> Result<(), Errno> {
    match link.send_bytes(bytes) {
        Ok(n) if n == bytes.len() => Ok(()),
        // Control frames go one at a time; a buffer that does not take one is no connection.
        Ok(_) => Err(Errno(libc::EPIPE)),
        Err(e) => Err(e),
    }
}

fn receive_until(ear: Ear<'_>, link: &Link, into: &mut [u8], until: u64) -> Result<(), NoDial> {
    match receive_all(ear, link, into, until) {
        Ok(_) => Ok(()),
        Err(Broken::Late) => Err(NoDial::Silent),
        Err(Broken::Mute) => Err(NoDial::System(Errno(libc::ETIMEDOUT))),
        // What begins like nothing of ours and ends there is not a node.
        Err(_) if into[0] != 0 && !MAGIC.starts_with(&into[..1]) => Err(NoDial::NotFarmem),
        Err(_) => Err(NoDial::Closed),
    }
}

/// Receives exactly `into`, and a descriptor if one came along.
///
/// The kernel asks the peer's for an acknowledgement at least each [`KEEP_S`] on this connection.
pub(crate) fn receive_all(ear: Ear<'_>, link: &Link, into: &mut [u8], until: u64) -> Result<Option<i32>, Broken> {
    let mut got = 0;
    let mut passed = None;
    while got < into.len() {
        match link.receive_passed(&mut into[got..]) {
            Ok((0, _)) => return Err(Errno(libc::ECONNRESET).into()),
            Ok((n, fd)) => (got, passed) = (got + n, passed.or(fd)),
            Err(Errno(libc::EAGAIN)) => {
                if ear.listen(link) >= DOUBT_NS {
                    return Err(Broken::Mute);
                }
                match until.saturating_sub(ear.reach.now_ns()) {
                    0 => return Err(Broken::Late),
                    left => link.wait(false, left.min(LISTEN_NS)),
                }
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(passed)
}

pub(super) fn exchange(
    ear: Ear<'_>,
    link: &Link,
    request: &[u8],
    within_ns: u64,
) -> Result<(Answer, Option<i32>), Broken> {
    send_now(link, request)?;
    let mut answer = Answer::new_zeroed();
    let until = ear.reach.now_ns() + within_ns;
    let passed = receive_all(ear, link, answer.as_mut_bytes(), until)?;
    Ok((answer, passed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_sys::raw::{futex_wait, futex_wake, sleep_ns, syscall};
    use std::fmt::Write;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Counts letters.
    struct Letters(u32);

    impl Write for Letters {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0 += text.len() as u32;
            Ok(())
        }
    }

    /// Letters of all failures; 0: not formatted yet.
    static LETTERS: AtomicU32 = AtomicU32::new(0);

    fn failures() -> impl Iterator<Item = NoDial> {
        let others = [NoDial::Silent, NoDial::Closed, NoDial::NotFarmem, NoDial::Verdict(Verdict::Full, 1)];
        (0..200).map(|number| NoDial::System(Errno(number))).chain(others)
    }

    fn count() -> u32 {
        let mut letters = Letters(0);
        let all = failures().try_for_each(|failure| write!(letters, "{failure} {failure:?}"));
        if all.is_ok() { letters.0 } else { 1 }
    }

    fn format_all(_: usize) -> ! {
        const ARCH_SET_FS: usize = 0x1002;
        // SAFETY: from here on the thread reads no thread-local, or faults: that is the test.
        #[allow(unsafe_code)]
        unsafe {
            syscall(libc::SYS_arch_prctl, [ARCH_SET_FS, 0, 0, 0, 0, 0])
        };
        LETTERS.store(count(), Ordering::Release);
        futex_wake(&LETTERS, 1);
        loop {
            sleep_ns(1_000_000_000);
        }
    }

    #[test]
    fn every_failure_is_formatted_without_a_thread_pointer() {
        farmem_sys::thread::spawn(format_all, 0).unwrap();
        while LETTERS.load(Ordering::Acquire) == 0 {
            futex_wait(&LETTERS, 0, 1_000_000_000);
        }
        assert_eq!(LETTERS.load(Ordering::Acquire), count());
    }
}
