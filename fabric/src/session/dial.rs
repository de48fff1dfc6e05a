//! One attempt to connect, and one exchange over a connection that stands.

use super::Trust;
use super::silence::{DOUBT_NS, Ear, KEEP_S};
use crate::link::{Link, Passed, Reach};
use crate::{ConnectError, ConnectOptions};
use farmem_protocol::extent::Owner;
use farmem_protocol::wire::control::{MAX_HELLO, MAX_REQUEST};
use farmem_protocol::wire::{
    Answer, Cipher, Credential, Frame, Greeting, Hello, NoHello, Proof, Purpose, VERSION, Verdict, Welcome,
};
use farmem_sys::process::random_bytes;
use farmem_sys::raw::Errno;
use farmem_trust::agree::{Agreed, Half};
use farmem_trust::{Key, record};

/// Why an attempt to connect failed.
#[derive(Debug)]
pub(super) enum NoDial {
    /// A system call failed.
    System(Errno),
    /// Connected, and no answer.
    Silent,
    /// Connected, and closed without an answer.
    Closed,
    /// The answer is not a farmem node's.
    NotFarmem,
    /// The node speaks this version of the protocol.
    Version(u16),
    /// The node refuses the connection.
    Verdict(Verdict),
    /// Somebody refuses the connection, and has not proven to know the token that the host has.
    Claimed(Verdict),
    /// The node has not proven that it knows the token.
    Unproven,
}

impl NoDial {
    /// Whether the failure concerns the node or the way to it, and may pass. False for failures of
    /// this process, and for verdicts of the node.
    pub fn is_the_nodes(&self) -> bool {
        match self {
            NoDial::System(e) => !matches!(e.0, libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS),
            NoDial::Silent | NoDial::Closed => true,
            NoDial::NotFarmem | NoDial::Version(_) | NoDial::Unproven | NoDial::Verdict(..) | NoDial::Claimed(..) => {
                false
            }
        }
    }

    /// The error of a session that could not begin.
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
            NoDial::Version(theirs) => ConnectError::Version { node, theirs },
            NoDial::Verdict(Verdict::Draining) => ConnectError::Draining(node),
            NoDial::Verdict(Verdict::Full) => ConnectError::Full(node),
            NoDial::Verdict(Verdict::Unknown | Verdict::Incarnation) => ConnectError::Unknown(node),
            NoDial::Verdict(Verdict::Version | Verdict::Malformed | Verdict::NoRoom(_)) => {
                ConnectError::NotFarmem(node)
            }
            NoDial::Unproven => ConnectError::Unproven(node),
            NoDial::Claimed(verdict) => NoDial::Verdict(verdict).at_start(&node),
            NoDial::Verdict(verdict) => ConnectError::Token { node, why: token_refused(verdict) },
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
            NoDial::Version(theirs) => {
                write!(f, "it speaks version {theirs} of the protocol, this farmem version {VERSION}")
            }
            NoDial::Unproven => f.write_str("it did not prove that it knows the token"),
            NoDial::Verdict(verdict) | NoDial::Claimed(verdict) => write!(f, "{verdict:?}"),
        }
    }
}

/// Why the awaited bytes did not arrive whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Broken {
    /// They did not arrive in time.
    Late,
    /// The peer's machine is not heard any more.
    Mute,
    /// The connection has ended.
    Cut(Errno),
    /// These bytes are no frame that may come here.
    Nonsense,
}

impl From<Errno> for Broken {
    fn from(e: Errno) -> Broken {
        Broken::Cut(e)
    }
}

/// Time between looks whether the peer's machine is still heard, ns.
const LISTEN_NS: u64 = 250_000_000;

/// How long an attempt may take to connect, and the node then to answer, ns.
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

/// The key by which both ends of a connection prove themselves, and the cipher and secret that
/// protect its bytes then.
#[derive(Clone, Copy)]
pub(crate) struct Pass {
    key: Key,
    cipher: Cipher,
    /// The secret of the member's connections. `None`: the next connection agrees on one, if it is
    /// encrypted.
    agreed: Option<Agreed>,
}

impl Pass {
    /// The pass that the options name. `None`: they name no token. A Unix socket is not encrypted,
    /// because nobody is on its path.
    pub fn of(options: &ConnectOptions, reach: &Reach) -> Option<Pass> {
        let Trust { token, plain } = options.trust;
        let plain = plain || matches!(reach, Reach::Unix(_));
        token.map(|key| Pass { key, cipher: if plain { Cipher::Plain } else { record::fastest() }, agreed: None })
    }

    /// For connections of a member that has agreed on this secret, if it has.
    pub fn with(self, agreed: Option<Agreed>) -> Pass {
        Pass { agreed, ..self }
    }

    /// The secret of the member's connections.
    pub fn agreed(&self) -> Option<Agreed> {
        self.agreed
    }

    /// Whether bytes go in records.
    pub fn is_sealed(&self) -> bool {
        self.cipher != Cipher::Plain
    }
}

/// A connection that the node has welcomed.
pub(super) struct Greeted {
    pub link: Link,
    pub welcome: Welcome,
    /// For the member's later connections.
    pub pass: Option<Pass>,
}

/// Connects, says hello, and reads the welcome.
pub(super) fn dial(ear: Ear<'_>, purpose: Purpose, pass: Option<&Pass>, patience: Patience) -> Result<Greeted, NoDial> {
    let link = ear.reach.connect(patience.connect_ns).map_err(NoDial::System)?;
    link.ask_when_idle(KEEP_S);
    greet(ear, link, purpose, pass, patience.answer_ns)
}

/// As [`dial`], over a connection that stands. With a token, each end proves to the other that it
/// knows the token. The first connection of a member agrees on a secret, and the others use it. So
/// a connection that is made in a fault only derives keys.
pub(super) fn greet(
    ear: Ear<'_>,
    mut link: Link,
    purpose: Purpose,
    pass: Option<&Pass>,
    answer_ns: u64,
) -> Result<Greeted, NoDial> {
    let until = ear.reach.now_ns() + answer_ns;
    let mut hello = Hello::new(purpose);
    let (mut ours, mut half) = ([0; 32], None);
    if let Some(Pass { key, cipher, agreed }) = pass {
        ours = random()?;
        if *cipher != Cipher::Plain && agreed.is_none() {
            half = Half::new(&random()?);
        }
        let credential = Some(Credential { id: key.id, nonce: ours, cipher: *cipher });
        hello = Hello { tenant: key.tenant, credential, ..hello };
    }
    let said = hello.frame();
    send_now(&link, said.as_bytes()).map_err(|_| NoDial::Closed)?;
    let (answer, challenged) = match (greeting(ear, &link, until)?, pass) {
        (Greeting::Challenge(nonce), Some(Pass { key, .. })) => {
            let share = half.as_ref().map(Half::share);
            let proof = Proof { mac: key.of_host(&nonce, said.as_bytes(), share.as_ref()), share }.frame();
            send_now(&link, proof.as_bytes()).map_err(|_| NoDial::Closed)?;
            (greeting(ear, &link, until)?, Some(nonce))
        }
        (answer, _) => (answer, None),
    };
    match answer {
        Greeting::Welcome(welcome) => match (pass, challenged) {
            (Some(Pass { key, .. }), Some(nonce)) if !is_proven(key, &nonce, &said, &welcome) => Err(NoDial::Unproven),
            // No owner has such a number.
            (None, _) | (Some(_), Some(_)) if Owner::said(welcome.owner).is_none() => Err(NoDial::NotFarmem),
            (None, _) => Ok(Greeted { link, welcome, pass: None }),
            (Some(pass), Some(nonce)) => {
                let mut pass = *pass;
                if let Some(half) = half {
                    // Without a share of the node there is no secret: the node has proven nothing
                    // that this end accepts.
                    let agreed = welcome.share.and_then(|theirs| half.agree(&theirs));
                    pass.agreed = Some(agreed.ok_or(NoDial::Unproven)?);
                }
                let ends = pass.agreed.and_then(|agreed| pass.key.host_ends(pass.cipher, (&ours, &nonce), &agreed));
                if let Some(ends) = ends {
                    link.seal(ends);
                } else if pass.is_sealed() {
                    return Err(NoDial::Unproven);
                }
                Ok(Greeted { link, welcome, pass: Some(pass) })
            }
            (Some(_), None) => Err(NoDial::Unproven),
        },
        // Nobody is on the path of a Unix socket.
        Greeting::Refused(verdict) if pass.is_none() || matches!(ear.reach, Reach::Unix(_)) => {
            Err(NoDial::Verdict(verdict))
        }
        Greeting::Refused(verdict) => Err(NoDial::Claimed(verdict)),
        Greeting::Proven(verdict, proof) => match (pass, challenged) {
            (Some(Pass { key, .. }), Some(nonce)) => {
                let bare = Greeting::Proven(verdict, [0; 32]).frame();
                let right = key.of_refusal(&nonce, said.as_bytes(), bare.as_bytes());
                Err(if farmem_trust::same(&proof, &right) { NoDial::Verdict(verdict) } else { NoDial::Unproven })
            }
            _ => Err(NoDial::NotFarmem),
        },
        // A challenge without a token to prove, or a second one.
        Greeting::Challenge(_) => Err(NoDial::NotFarmem),
    }
}

/// Bytes that nobody can guess.
fn random() -> Result<[u8; 32], NoDial> {
    let mut bytes = [0; 32];
    random_bytes(&mut bytes).map_err(|e| NoDial::System(Errno(e.raw_os_error().unwrap_or(libc::EIO))))?;
    Ok(bytes)
}

/// Whether a Welcome is from a node that knows the token.
fn is_proven(key: &Key, nonce: &[u8; 32], hello: &Frame<MAX_HELLO>, welcome: &Welcome) -> bool {
    let bare = Greeting::Welcome(Welcome { proof: [0; 32], ..*welcome }).frame();
    farmem_trust::same(&welcome.proof, &key.of_node(nonce, hello.as_bytes(), bare.as_bytes()))
}

/// The node's answer to a Hello, or to a proof.
fn greeting(ear: Ear<'_>, link: &Link, until: u64) -> Result<Greeting, NoDial> {
    let mut room = [0; MAX_HELLO];
    let received = receive_frame(ear, link, &mut room, until, |seen| match Greeting::read(seen) {
        Ok(Some((greeting, used))) if used == seen.len() => Ok(Some(greeting)),
        Ok(None) => Ok(None),
        // Nothing more is known of a message in another version.
        Err(NoHello::Version(theirs)) => Err(NoDial::Version(theirs)),
        // More bytes than a greeting: a node says nothing else before it is asked.
        Ok(Some(_)) | Err(NoHello::Magic | NoHello::Malformed) => Err(NoDial::NotFarmem),
    });
    received.map(|(greeting, _)| greeting).map_err(|e| match e {
        NoFrame::Refused(why) => why,
        NoFrame::Broken(Broken::Late) => NoDial::Silent,
        NoFrame::Broken(Broken::Mute) => NoDial::System(Errno(libc::ETIMEDOUT)),
        NoFrame::Broken(Broken::Nonsense) => NoDial::NotFarmem,
        NoFrame::Broken(Broken::Cut(_)) => NoDial::Closed,
    })
}

/// Why a node does not take a token, and what to do.
pub(super) fn token_refused(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::NoToken => "it serves holders of tokens alone: name yours by --token FILE",
        Verdict::Revoked => "this token was revoked there: get another from the node's operator",
        Verdict::Expired => "this token has expired: get another from the node's operator",
        Verdict::NoTokens => {
            "it was started without --tokens and cannot prove who it is: start it with --tokens, or leave --token out"
        }
        _ => "it does not know this token: it is another node's, or was changed",
    }
}

/// Sends a frame that fits any socket's buffer.
pub(crate) fn send_now(link: &Link, bytes: &[u8]) -> Result<(), Errno> {
    match link.send_bytes(bytes) {
        Ok(n) if n == bytes.len() => Ok(()),
        // Control frames go one at a time. A connection whose buffer does not take one counts as
        // cut.
        Ok(_) => Err(Errno(libc::EPIPE)),
        Err(e) => Err(e),
    }
}

/// Why a frame did not come.
enum NoFrame<E> {
    Broken(Broken),
    /// The bytes are no message, says `read`.
    Refused(E),
}

/// Receives until `read` finds a frame in the bytes. Returns the frame, and a descriptor if one
/// came along.
fn receive_frame<T, E>(
    ear: Ear<'_>,
    link: &Link,
    room: &mut [u8],
    until: u64,
    read: impl Fn(&[u8]) -> Result<Option<T>, E>,
) -> Result<(T, Option<Passed>), NoFrame<E>> {
    let (mut got, mut passed) = (0, None);
    loop {
        let (n, fd) = receive_some(ear, link, &mut room[got..], until).map_err(NoFrame::Broken)?;
        (got, passed) = (got + n, passed.or(fd));
        match read(&room[..got]).map_err(NoFrame::Refused)? {
            Some(frame) => return Ok((frame, passed)),
            // No frame is that long.
            None if got == room.len() => return Err(NoFrame::Broken(Broken::Nonsense)),
            None => {}
        }
    }
}

/// Receives exactly `into`, and a descriptor if one came along.
pub(crate) fn receive_all(ear: Ear<'_>, link: &Link, into: &mut [u8], until: u64) -> Result<Option<Passed>, Broken> {
    let (mut got, mut passed) = (0, None);
    while got < into.len() {
        let (n, fd) = receive_some(ear, link, &mut into[got..], until)?;
        (got, passed) = (got + n, passed.or(fd));
    }
    Ok(passed)
}

/// Receives what comes next, at least a byte, and a descriptor if one came along.
///
/// On this connection the peer's kernel is asked for an acknowledgement at least every [`KEEP_S`]
/// seconds. So a machine that is out of reach is noticed.
fn receive_some(ear: Ear<'_>, link: &Link, into: &mut [u8], until: u64) -> Result<(usize, Option<Passed>), Broken> {
    loop {
        match link.receive_passed(into) {
            Ok((0, _)) => return Err(Errno(libc::ECONNRESET).into()),
            Ok(received) => return Ok(received),
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
}

/// Sends a request, and waits for its answer and a descriptor, if one comes along. The node answers
/// one request before it reads the next.
pub(super) fn exchange(
    ear: Ear<'_>,
    link: &Link,
    request: &[u8],
    within_ns: u64,
) -> Result<(Answer, Option<Passed>), Broken> {
    send_now(link, request)?;
    receive_answer(ear, link, within_ns)
}

/// The next answer on a control connection.
pub(super) fn receive_answer(ear: Ear<'_>, link: &Link, within_ns: u64) -> Result<(Answer, Option<Passed>), Broken> {
    let until = ear.reach.now_ns() + within_ns;
    let mut room = [0; MAX_REQUEST];
    receive_frame(ear, link, &mut room, until, |seen| match Answer::read(seen) {
        Ok(Some((answer, used))) if used == seen.len() => Ok(Some(answer)),
        Ok(None) => Ok(None),
        Ok(Some(_)) | Err(_) => Err(()),
    })
    .map_err(|e| match e {
        NoFrame::Broken(broken) => broken,
        NoFrame::Refused(()) => Broken::Nonsense,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Carrier;
    use crate::session::silence::Heard;
    use farmem_protocol::wire::Reply;
    use farmem_sys::descriptors::{close, socket_pair};
    use farmem_sys::raw::{futex_wait, futex_wake, sleep_ns, syscall};
    use farmem_sys::socket;
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
        let others = [
            NoDial::Silent,
            NoDial::Closed,
            NoDial::NotFarmem,
            NoDial::Version(9),
            NoDial::Verdict(Verdict::Full),
            NoDial::Unproven,
        ];
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

    /// What a node passes unasked must not fill the table of this process's descriptors.
    #[test]
    fn a_descriptor_that_nobody_takes_is_closed() {
        let (ours, theirs) = socket_pair().unwrap();
        let link = Carrier::Socket(ours).into();
        let (reach, heard) = (Reach::Unix("nowhere".into()), Heard::default());
        let answer = Answer { number: 7, epoch: 0, result: Ok(Reply::Done) }.frame();
        let (one, other) = answer.as_bytes().split_at(3);
        let [left, right] = [one, other].map(|bytes| {
            let (passed, kept) = socket_pair().unwrap();
            assert_eq!(socket::send_frame(theirs, bytes, passed), Ok(bytes.len()));
            close(passed);
            kept
        });
        let (heard, came) = receive_answer(Ear::at(&reach, &heard), &link, 1_000_000_000).map_err(|_| ()).unwrap();
        assert!(heard.number == 7 && came.is_some());
        assert!(!socket::is_cut(left) && socket::is_cut(right), "the second is of no use");
        drop(came);
        assert!(socket::is_cut(left));
        [left, right, theirs].into_iter().for_each(close);
    }
}
