//! A stream of a volume: dialled here, up to where NBD begins. Then the kernel has it, or this
//! process asks by it how the volume is doing.

use crate::Error;
use crate::state::State;
use crate::token;
use farmem_protocol::nbd::{Asked, Command, PAGE, REPLY_MAGIC, Reply, Report, Slots};
use farmem_protocol::wire::control::MAX_HELLO;
use farmem_protocol::wire::{
    Cipher, Credential, Greeting, Hello, Known, Names, NewVolume, NoHello, Proof, Purpose, Secret, Text, VERSION,
    Verdict, Welcome,
};
use farmem_sys::process::random_bytes;
use farmem_sys::socket;
use farmem_trust::agree::Half;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// How long the node may take to be reached, and to answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// The same of a node that is one of two, or is to be: less than the grace of the other one, whose
/// stream may be cut meanwhile, and which the same thread revives.
pub(crate) const SHORT: Duration = Duration::from_secs(1);
/// Time that the node keeps a volume without a stream, beyond the grace for which requests wait.
pub const KEPT_LONGER: Duration = Duration::from_secs(540);
/// Seconds of silence after which a connection's peer is asked whether it is there.
const IDLE_S: i32 = 2;

/// A volume, and what is wanted of its node.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// `HOST:PORT`.
    pub node: &'a str,
    /// Its addresses, if they are known: the name is not looked up.
    pub at: &'a [SocketAddr],
    /// Random, and the right to the volume where there are no tokens.
    pub id: Secret,
    /// The node's, of a volume that is there; 0: a new one.
    pub incarnation: u64,
    /// What was agreed on with the node when the volume was made by a token.
    pub agreed: Option<[u8; 32]>,
    /// Bytes, of a new one.
    pub size: u64,
    /// How long the node keeps the volume while no stream stands.
    pub kept: Duration,
    /// A new one may be larger than what the node can promise.
    pub overcommit: bool,
    /// The kernel moves pages by this stream. Else this process asks by it.
    pub data: bool,
    /// A name of this machine, for the node's operator.
    pub host: &'a str,
    /// The file of the token by which the node is asked. It proves who asks, and no more: the
    /// kernel's stream is not encrypted.
    pub token: Option<&'a Path>,
}

impl<'a> Wanted<'a> {
    /// Of a device that is known, whose volume has this id.
    pub fn of(state: &'a State, id: Secret, host: &'a str, data: bool) -> Wanted<'a> {
        Wanted {
            node: &state.node,
            at: &state.at,
            id,
            incarnation: state.incarnation,
            agreed: state.agreed(),
            size: state.size,
            kept: Duration::from_secs(state.grace_s) + KEPT_LONGER,
            overcommit: false,
            data,
            host,
            token: state.token.as_deref(),
        }
    }
}

/// A stream that stands.
#[derive(Debug)]
pub struct Stream {
    socket: TcpStream,
    node: String,
    /// The node's.
    pub incarnation: u64,
    /// What was agreed on with the node: by this stream, if it made the volume.
    pub agreed: Option<[u8; 32]>,
    /// Whether it comes from this machine, as far as addresses tell.
    pub is_near: bool,
    cookie: u64,
}

/// Looks a node's addresses up.
///
/// # Errors
/// There is no such host.
pub(crate) fn addresses(node: &str) -> Result<Vec<SocketAddr>, Error> {
    node.to_socket_addrs().map(Iterator::collect).map_err(|e| Error::Node(node.to_owned(), e))
}

/// Connects to the node, and greets it for the volume.
pub fn dial(wanted: &Wanted<'_>, silent: Duration) -> Result<Stream, Error> {
    dial_within(wanted, silent, PATIENCE)
}

/// The same. The node may take `patience` to be reached, and as long to answer.
pub(crate) fn dial_within(wanted: &Wanted<'_>, silent: Duration, patience: Duration) -> Result<Stream, Error> {
    let found = if wanted.at.is_empty() { addresses(wanted.node)? } else { wanted.at.to_vec() };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no such host");
    for at in found {
        match TcpStream::connect_timeout(&at, patience) {
            Ok(socket) => return greet(socket, wanted, silent, patience),
            Err(e) => last = e,
        }
    }
    Err(Error::Node(wanted.node.to_owned(), last))
}

/// Tells the node which volume the stream is for, and takes its answer. With a token, each end
/// proves that it knows the token: the host by the node's nonce, the node by its Welcome. The stream
/// that makes the volume agrees on a secret, and later ones prove that, too: the id goes over the
/// wire, and whoever heard it may have a token of the tenant.
fn greet(mut socket: TcpStream, wanted: &Wanted<'_>, silent: Duration, patience: Duration) -> Result<Stream, Error> {
    let failed = |e| Error::Node(wanted.node.to_owned(), e);
    let refused = |why: &str| Error::Refused(wanted.node.to_owned(), why.to_owned());
    socket.set_nodelay(true).map_err(failed)?;
    socket.set_read_timeout(Some(patience)).map_err(failed)?;
    socket::notice_silence(socket.as_raw_fd(), IDLE_S, silent.as_millis().min(u32::MAX as u128) as u32);
    let purpose = match wanted.incarnation {
        0 => Purpose::NewVolume(NewVolume {
            id: wanted.id,
            size: wanted.size,
            kept_ms: wanted.kept.as_millis() as u64,
            overcommit: wanted.overcommit,
            pid: std::process::id(),
            names: Names { host: Text::new(wanted.host), user: Text::new("root"), program: Text::new("farmem swap") },
        }),
        incarnation => Purpose::Volume(Known { secret: wanted.id, incarnation }, wanted.data),
    };
    let key = wanted.token.map(token::key).transpose().map_err(|e| refused(&format!("is not asked: --token {e}")))?;
    let mut half = None;
    let mut hello = Hello::new(purpose);
    if let Some(key) = &key {
        let mut nonce = [0; 32];
        random_bytes(&mut nonce).map_err(failed)?;
        if wanted.incarnation == 0 {
            let mut random = [0; 32];
            random_bytes(&mut random).map_err(failed)?;
            half = Half::new(&random);
        }
        let credential = Some(Credential { id: key.id, nonce, cipher: Cipher::Plain });
        hello = Hello { tenant: key.tenant, credential, ..hello };
    }
    let said = hello.frame();
    socket.write_all(said.as_bytes()).map_err(failed)?;
    let mut greeted = greeting(&mut socket).map_err(failed)?;
    let mut proven = key.is_none();
    if let (Some(key), Ok(Greeting::Challenge(nonce))) = (&key, greeted) {
        let share = half.as_ref().map(Half::share);
        let by = wanted.agreed.map_or(*key, |agreed| key.with(&agreed.into()));
        let proof = Proof { mac: by.of_host(&nonce, said.as_bytes(), share.as_ref()), share };
        socket.write_all(proof.frame().as_bytes()).map_err(failed)?;
        greeted = greeting(&mut socket).map_err(failed)?;
        if let Ok(Greeting::Welcome(welcome)) = greeted {
            let bare = Greeting::Welcome(Welcome { proof: [0; 32], ..welcome }).frame();
            proven = farmem_trust::same(&welcome.proof, &key.of_node(&nonce, said.as_bytes(), bare.as_bytes()));
        }
    }
    let welcome = match greeted {
        Ok(Greeting::Welcome(_)) if !proven => {
            return Err(refused("did not prove that it knows this token: something else answers at this address"));
        }
        Ok(Greeting::Welcome(welcome)) => welcome,
        Ok(Greeting::Refused(verdict) | Greeting::Proven(verdict, _)) => return Err(refused(&why(verdict))),
        Ok(Greeting::Challenge(_)) => return Err(refused("asks for a token that was not named")),
        Err(NoHello::Version(theirs)) => {
            let versions = format!("speaks version {theirs} of the protocol, this farmem version {VERSION}");
            return Err(refused(&format!("{versions}: install the same farmem on both")));
        }
        Err(_) => return Err(refused("is not farmem's: something else listens there")),
    };
    // The kernel would give up a stream on which nothing came for that long, also an idle one.
    if wanted.data {
        socket.set_read_timeout(None).map_err(failed)?;
    }
    let Welcome { incarnation, share, .. } = welcome;
    let made = half.and_then(|half| half.agree(&share?)).map(|agreed| *agreed.bytes());
    if key.is_some() && wanted.incarnation == 0 && made.is_none() {
        return Err(refused("agrees on no secret for the volume: use the same farmem at both ends"));
    }
    let agreed = made.or(wanted.agreed);
    let ends = (socket.local_addr().map_err(failed)?.ip(), socket.peer_addr().map_err(failed)?.ip());
    let is_near = ends.0 == ends.1 || ends.1.to_canonical().is_loopback();
    Ok(Stream { socket, node: wanted.node.to_owned(), incarnation, agreed, is_near, cookie: 0 })
}

/// The node's first words. It says nothing more before it is asked, so what comes is one frame.
fn greeting(socket: &mut TcpStream) -> io::Result<Result<Greeting, NoHello>> {
    let (mut room, mut got) = ([0; MAX_HELLO], 0);
    loop {
        match socket.read(&mut room[got..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => got += n,
        }
        match Greeting::read(&room[..got]) {
            Ok(None) => {}
            Ok(Some((greeting, _))) => return Ok(Ok(greeting)),
            Err(why) => return Ok(Err(why)),
        }
    }
}

fn why(verdict: Verdict) -> String {
    match verdict {
        Verdict::NoRoom(bytes) => format!(
            "cannot promise that much: {} are left, of its memory or of the token's quota; ask for less, or for more \
             than it can promise with --overcommit",
            farmem_protocol::units::bytes(bytes)
        ),
        Verdict::Draining => "is going down, or its rack empties it".into(),
        Verdict::Full => "has no place left for a volume".into(),
        Verdict::Unknown => "no longer has the volume: it had no stream for longer than it is kept".into(),
        Verdict::Incarnation => "was started anew, and what was swapped to it is gone".into(),
        Verdict::NoToken => "serves holders of tokens alone: name yours by --token FILE".into(),
        Verdict::WrongToken => "does not know this token: it is another node's, or was changed".into(),
        Verdict::Revoked => "has revoked this token: get another from its operator".into(),
        Verdict::Expired => "says that this token has expired: get another from its operator".into(),
        Verdict::NoTokens => "was started without --tokens and cannot prove who it is: leave --token out".into(),
        other => format!("refuses: {other:?}"),
    }
}

impl Stream {
    /// Its descriptor, for the kernel.
    pub fn fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// Whether both ends are shut down: by a reset, or by the kernel, which has given the stream
    /// up. A node that says no more is not enough: the kernel may not have seen that yet.
    pub(crate) fn is_shut(&self) -> bool {
        socket::wait(self.fd(), false, false, 0) & libc::POLLHUP != 0
    }

    /// Whether sending has a limit of time. The kernel sets one when it takes a socket.
    pub(crate) fn has_limit(&self) -> bool {
        !matches!(self.socket.write_timeout(), Ok(None))
    }

    /// A stream whose node is a test.
    #[cfg(test)]
    pub(crate) fn of_test(socket: TcpStream) -> Stream {
        Stream { socket, node: "test".into(), incarnation: 1, agreed: None, is_near: false, cookie: 0 }
    }

    /// Its socket. The caller speaks NBD itself.
    pub fn into_socket(self) -> TcpStream {
        self.socket
    }

    /// How the volume is doing.
    pub fn report(&mut self) -> Result<Report, Error> {
        self.ask(Command::Report, 0, &[])?;
        let mut report = Report::new_zeroed();
        self.socket.read_exact(report.as_mut_bytes()).map_err(|e| Error::Node(self.node.clone(), e))?;
        Ok(report)
    }

    /// The volume is no longer needed.
    pub fn free(&mut self) -> Result<(), Error> {
        self.ask(Command::Free, 0, &[])
    }

    /// A number for a moment of the volume's between the call and its end.
    pub fn mark(&mut self) -> Result<u64, Error> {
        self.ask(Command::Mark, 0, &[])?;
        let mut mark = [0; 8];
        self.socket.read_exact(&mut mark).map_err(|e| Error::Node(self.node.clone(), e))?;
        Ok(u64::from_be_bytes(mark))
    }

    /// The kernel freed slots after this mark was known. At most
    /// [`MAX_FREED_BYTES`](farmem_protocol::nbd::MAX_FREED_BYTES) of them.
    pub fn freed(&mut self, mark: u64, slots: &[Slots]) -> Result<(), Error> {
        self.ask(Command::Freed, mark, slots.as_bytes())
    }

    /// Moves a page to a new volume and back, by a stream that the kernel does not have yet.
    ///
    /// # Errors
    /// The page is not back within the limit: a network may let short messages pass and no page.
    pub(crate) fn try_page(&mut self, limit: Duration) -> Result<(), Error> {
        let node = self.node.clone();
        let failed = |e| Error::Node(node.clone(), e);
        let (page, mut back) = (std::array::from_fn(|i| (i % 251) as u8), [0; PAGE as usize]);
        self.socket.set_read_timeout(Some(limit)).map_err(failed)?;
        let moved = self.move_page(&page, &mut back).map_err(|e| match e {
            Error::Node(node, e) if e.kind() == io::ErrorKind::WouldBlock => {
                let why = format!(
                    "answers, but no page came back within {} s: does the network between pass full packets?",
                    limit.as_secs()
                );
                Error::Refused(node, why)
            }
            other => other,
        });
        moved?;
        if page != back {
            return Err(failed(io::ErrorKind::InvalidData.into()));
        }
        self.socket.set_read_timeout(None).map_err(failed)
    }

    /// Writes the volume's first page, reads it, and has the node forget it.
    fn move_page(&mut self, page: &[u8; PAGE as usize], back: &mut [u8; PAGE as usize]) -> Result<(), Error> {
        self.ask(Command::Write, 0, page)?;
        self.request(Command::Read, 0, PAGE as u32, &[])?;
        self.socket.read_exact(back).map_err(|e| Error::Node(self.node.clone(), e))?;
        self.request(Command::Trim, 0, PAGE as u32, &[])
    }

    fn ask(&mut self, command: Command, offset: u64, body: &[u8]) -> Result<(), Error> {
        self.request(command, offset, body.len() as u32, body)
    }

    fn request(&mut self, command: Command, offset: u64, length: u32, body: &[u8]) -> Result<(), Error> {
        let failed = |e| Error::Node(self.node.clone(), e);
        self.cookie += 1;
        let request = Asked::frame(command, self.cookie, offset, length);
        let sent = self.socket.write_all(request.as_bytes()).and_then(|()| self.socket.write_all(body));
        sent.map_err(failed)?;
        let mut reply = Reply::new_zeroed();
        self.socket.read_exact(reply.as_mut_bytes()).map_err(failed)?;
        if reply.magic != REPLY_MAGIC || reply.cookie != self.cookie {
            return Err(failed(io::ErrorKind::InvalidData.into()));
        }
        match reply.error.get() {
            0 => Ok(()),
            error => Err(failed(io::Error::from_raw_os_error(error as i32))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Reads a Hello, and answers by a Welcome.
    fn welcomes(listener: &TcpListener) -> TcpStream {
        let (mut socket, _) = listener.accept().unwrap();
        let (mut room, mut got) = ([0; MAX_HELLO], 0);
        while Hello::read(&room[..got]).unwrap().is_none() {
            got += socket.read(&mut room[got..]).unwrap();
        }
        let welcome = Welcome { incarnation: 7, ..Welcome::default() };
        socket.write_all(Greeting::Welcome(welcome).frame().as_bytes()).unwrap();
        socket
    }

    /// A stream of a volume that is there.
    fn wanted(node: &str, data: bool) -> Wanted<'_> {
        Wanted {
            node,
            at: &[],
            id: [1; 16],
            incarnation: 7,
            agreed: None,
            size: 0,
            kept: KEPT_LONGER,
            overcommit: false,
            data,
            host: "here",
            token: None,
        }
    }

    #[test]
    fn a_name_is_not_looked_up_while_pages_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = [listener.local_addr().unwrap()];
        std::thread::scope(|scope| {
            let other = scope.spawn(|| welcomes(&listener));
            dial(&Wanted { at: &at, ..wanted("no such name", true) }, PATIENCE).unwrap();
            other.join().unwrap();
        });
    }

    #[test]
    fn a_node_that_answers_and_moves_no_page_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let node = listener.local_addr().unwrap().to_string();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| welcomes(&listener));
            let mut stream = dial(&wanted(&node, true), PATIENCE).unwrap();
            let silent = other.join().unwrap();
            let said = stream.try_page(Duration::from_millis(10)).unwrap_err().to_string();
            assert!(said.contains("no page came back"), "{said}");
            drop(silent);
        });
    }

    #[test]
    fn a_node_of_another_version_is_named_with_both() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let node = listener.local_addr().unwrap().to_string();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let (mut socket, _) = listener.accept().unwrap();
                let mut head = [0; 8];
                socket.read_exact(&mut head).unwrap();
                // What version 6 says to any other, as recorded.
                socket.write_all(b"farmem\x06\x00\x02\x00\x01\x00").unwrap();
                (head, socket)
            });
            let said = dial(&wanted(&node, true), PATIENCE).unwrap_err().to_string();
            let (head, _socket) = other.join().unwrap();
            assert_eq!(head[6..], VERSION.to_le_bytes());
            let versions =
                format!("node {node} speaks version 6 of the protocol, this farmem version {VERSION}: install");
            assert!(said.starts_with(&versions), "{said}");
        });
    }

    #[test]
    fn an_idle_stream_of_the_kernels_is_not_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let node = listener.local_addr().unwrap().to_string();
        let limit = |data| {
            std::thread::scope(|scope| {
                let other = scope.spawn(|| welcomes(&listener));
                let stream = dial(&wanted(&node, data), PATIENCE).unwrap();
                drop(other.join().unwrap());
                stream.socket.read_timeout().unwrap()
            })
        };
        assert_eq!((limit(true), limit(false)), (None, Some(PATIENCE)));
    }
}
