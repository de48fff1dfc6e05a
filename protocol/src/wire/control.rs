//! Control frames: Hello and Greeting begin every connection; Request and Answer ([`super::request`])
//! go over a member's own.
//!
//! ```text
//!            0               6         8        10
//! Hello,     ┌───────────────┬─────────┬────────┬───────────────────────────┐
//! Greeting   │ "farmem"      │ version │ length │ body: `length` bytes      │  length at most 1024
//!            └───────────────┴─────────┴────────┴───────────────────────────┘
//!            0        2
//! Request,   ┌────────┬───────────────────────────┐
//! Answer     │ length │ body: `length` bytes      │                             length at most 254
//!            └────────┴───────────────────────────┘
//! ```
//!
//! A body is what `postcard` makes of the type of that name here: fields in their order, numbers of
//! more than 8 bits as varints, a variant as its place in its enum, a text as its length and its
//! bytes. So the order of fields and variants here *is* the format: new variants go to the end of
//! an enum, and nothing is reordered without another version. A body must be decoded to its last
//! byte.
//!
//! Encoding and decoding allocate nothing and use no thread-local: the runtime does both in a
//! fault.

use super::{Broken, MAGIC, MAX_PATH, Names, Secret, Text, VERSION};
use serde::{Deserialize, Serialize};

/// Bytes of the body of a Hello or Greeting, at most.
pub const MAX_HELLO_BODY: usize = 1024;
/// Bytes of a Hello or Greeting, at most.
pub const MAX_HELLO: usize = HEAD + LENGTH + MAX_HELLO_BODY;
/// Bytes of a Request or Answer, at most, its length included.
pub const MAX_REQUEST: usize = 256;
/// Magic and version.
const HEAD: usize = 8;
/// The length itself.
pub(super) const LENGTH: usize = 2;

/// An encoded frame.
#[derive(Clone, Copy)]
pub struct Frame<const N: usize> {
    len: usize,
    bytes: [u8; N],
}

impl<const N: usize> Frame<N> {
    /// Encodes `head`, the body's length and the body. Every type of this module fits its frame
    /// with any values (`the_longest_of_everything_fits`).
    pub(super) fn encode(head: &[u8], body: &impl Serialize) -> Frame<N> {
        let mut frame = Frame { len: head.len(), bytes: [0; N] };
        frame.bytes[..head.len()].copy_from_slice(head);
        let at = head.len() + LENGTH;
        let len = postcard::to_slice(body, &mut frame.bytes[at..]).map_or(0, |body| body.len());
        frame.bytes[head.len()..at].copy_from_slice(&(len as u16).to_le_bytes());
        frame.len = at + len;
        frame
    }

    /// The encoded bytes, as the stream carries them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Decodes a length and its body from the front of `input`. Returns the body and the bytes read;
/// `None` if more bytes must come first.
pub(super) fn decode<'de, T: Deserialize<'de>>(input: &'de [u8], most: usize) -> Result<Option<(T, usize)>, Broken> {
    let Some((length, rest)) = input.split_first_chunk::<LENGTH>() else { return Ok(None) };
    let length = u16::from_le_bytes(*length) as usize;
    if length > most {
        return Err(Broken::Control);
    }
    let Some(body) = rest.get(..length) else { return Ok(None) };
    match postcard::take_from_bytes(body) {
        Ok((read, [])) => Ok(Some((read, LENGTH + length))),
        _ => Err(Broken::Control),
    }
}

/// Why the first bytes of a stream are no Hello, or no Greeting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoHello {
    /// They are not farmem's.
    Magic,
    /// They are of this version.
    Version(u16),
    /// The body makes no sense, or is too long.
    Malformed,
}

fn magic_and_version() -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..MAGIC.len()].copy_from_slice(&MAGIC);
    head[MAGIC.len()..].copy_from_slice(&VERSION.to_le_bytes());
    head
}

fn first_frame<'de, T: Deserialize<'de>>(input: &'de [u8]) -> Result<Option<(T, usize)>, NoHello> {
    let known = input.len().min(MAGIC.len());
    if input[..known] != MAGIC[..known] {
        return Err(NoHello::Magic);
    }
    let Some((head, rest)) = input.split_first_chunk::<HEAD>() else { return Ok(None) };
    match u16::from_le_bytes([head[6], head[7]]) {
        VERSION => {}
        other => return Err(NoHello::Version(other)),
    }
    let read = decode(rest, MAX_HELLO_BODY).map_err(|_| NoHello::Malformed)?;
    Ok(read.map(|(body, used)| (body, HEAD + used)))
}

/// The host's first words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The connection's purpose.
    pub purpose: Purpose,
    /// The tenant that the memory is counted to. Empty: none.
    pub tenant: Text<64>,
    /// The token that the host will prove it has; `None`: it names none.
    pub credential: Option<Credential>,
    /// The configuration of the pool that the host knows; 0 where there is no controller.
    pub epoch: u64,
}

impl Hello {
    /// One for this purpose, of no tenant.
    pub fn new(purpose: Purpose) -> Hello {
        Hello { purpose, tenant: Text::EMPTY, credential: None, epoch: 0 }
    }

    /// As it goes over the stream.
    pub fn frame(&self) -> Frame<MAX_HELLO> {
        Frame::encode(&magic_and_version(), self)
    }

    /// The Hello at the front of `input`, and its bytes; `None`: it has not come whole.
    pub fn read(input: &[u8]) -> Result<Option<(Hello, usize)>, NoHello> {
        first_frame(input)
    }
}

/// The token that a host claims to have. A [`Proof`] follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Credential {
    /// The public name of the token.
    pub id: [u8; 8],
    /// Random bits, drawn for each connection.
    pub nonce: [u8; 32],
    /// The protection of all bytes after the Welcome, in both directions. The host chooses it. Both
    /// proofs cover it, so a relay cannot weaken it.
    pub cipher: Cipher,
}

/// How the bytes of a connection are protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Cipher {
    /// Not at all.
    Plain,
    /// In records sealed by AES-128-GCM.
    Aes128Gcm,
    /// In records sealed by ChaCha20-Poly1305: for a host whose CPU has no AES.
    ChaCha20Poly1305,
}

/// The host's answer to a [`Greeting::Challenge`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Proof {
    /// HMAC-SHA256 by the token's key over the challenge, the Hello, and `share`.
    pub mac: [u8; 32],
    /// The host's half of a secret that the two ends agree on, where they do: a member's first
    /// connection that is encrypted, and each of a volume. A member's later connections use the
    /// secret of its first.
    pub share: Option<Share>,
}

/// A public key of X25519.
pub type Share = [u8; 32];

impl Proof {
    /// As it goes over the stream.
    pub fn frame(&self) -> Frame<MAX_REQUEST> {
        Frame::encode(&[], self)
    }

    /// The Proof at the front of `input`, and its bytes; `None`: it has not come whole.
    pub fn read(input: &[u8]) -> Result<Option<(Proof, usize)>, Broken> {
        decode(input, MAX_REQUEST - LENGTH)
    }
}

/// The purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Purpose {
    /// A new member of a run. The Welcome carries its secret.
    Join(Join),
    /// A member again, after its control connection was lost, or a forked child that an
    /// [`Ask::Ticket`](super::Ask::Ticket) announced.
    Rejoin(Known),
    /// One queue pair of a member, by a number of the member's choice. A connection of the same
    /// number replaces the earlier one: the node carries out nothing more of that one.
    Attach(Known, u64),
    /// One queue pair of a member over RDMA. The two sides exchange [`super::Endpoint`]s; after
    /// that the stream is silent, and the queue pair lives as long as the stream. A connection of
    /// the same number replaces the earlier one, as with Attach. The two kinds have separate
    /// numbers.
    Wire(Known, u64),
    /// A new swap volume, with a stream for questions about it ([`crate::nbd`]).
    NewVolume(NewVolume),
    /// A stream of a swap volume, whose id is the secret. `true`: a stream that moves pages. It
    /// replaces the earlier one: the node carries out nothing more of that one. `false`: a stream
    /// for questions.
    Volume(Known, bool),
}

/// A new swap volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NewVolume {
    /// Its id, of the host's choice, and the right to it.
    pub id: Secret,
    /// Bytes, in whole pages of 4096.
    pub size: u64,
    /// How long the node keeps it while no stream stands, in milliseconds.
    pub kept_ms: u64,
    /// It may be larger than what the node can promise.
    pub overcommit: bool,
    /// The host's process. Only the node's records use it.
    pub pid: u32,
    /// The volume's owner. Only the node's records use it.
    pub names: Names,
}

/// A new member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Join {
    /// The run that it belongs to.
    pub run: Secret,
    /// The host's process. Only the node's records use it.
    pub pid: u32,
    /// How long the node keeps the member's memory while no connection stands, in milliseconds.
    pub grace_ms: u64,
    /// The member outlives its process, and its memory is kept for `grace_ms` even if it joined
    /// through a Unix socket. For a service that is started again: the agent of a host.
    pub lasting: bool,
    /// The member's names. Only the node's records use them.
    pub names: Names,
}

/// A member that the node knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Known {
    /// The member.
    pub secret: Secret,
    /// The node's incarnation as the member knows it.
    pub incarnation: u64,
}

/// The node's first words.
// No box: encoding and decoding allocate nothing.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Greeting {
    /// Come in.
    Welcome(Welcome),
    /// Why not.
    Refused(Verdict),
    /// Random bits. The host must prove that it has the token it named; then the node welcomes or
    /// refuses it.
    Challenge([u8; 32]),
    /// Why not, said to a host that has proven its token, with the node's own proof that it knows the
    /// token.
    Proven(Verdict, [u8; 32]),
}

impl Greeting {
    /// As it goes over the stream.
    pub fn frame(&self) -> Frame<MAX_HELLO> {
        Frame::encode(&magic_and_version(), self)
    }

    /// The Greeting at the front of `input`, and its bytes; `None`: it has not come whole.
    pub fn read(input: &[u8]) -> Result<Option<(Greeting, usize)>, NoHello> {
        first_frame(input)
    }

    /// Why the host is refused, whether or not that is proven. `None`: it is not.
    pub fn refusal(&self) -> Option<Verdict> {
        match *self {
            Greeting::Refused(verdict) | Greeting::Proven(verdict, _) => Some(verdict),
            Greeting::Welcome(_) | Greeting::Challenge(_) => None,
        }
    }
}

/// Why a node refuses a Hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Verdict {
    /// The node speaks another version: its own is in the Greeting's first bytes.
    Version,
    /// The node is going down and takes no new members.
    Draining,
    /// No such member: its time was over, or its run.
    Unknown,
    /// The node was restarted since, and has lost what it held.
    Incarnation,
    /// The node serves as many connections or members as it can.
    Full,
    /// The Hello made no sense.
    Malformed,
    /// The node cannot promise that much memory. The number of bytes that it can promise.
    NoRoom(u64),
    /// The node serves holders of tokens alone, and none was named.
    NoToken,
    /// The node has no such token, or the proof is wrong.
    WrongToken,
    /// The token was revoked.
    Revoked,
    /// The token's time is over.
    Expired,
    /// The node knows no tokens, and cannot prove that it knows this one.
    NoTokens,
}

/// How a member is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Welcome {
    /// The member's owner id, by which descriptor words name it: 1 to 16 383, the node's choice.
    pub owner: u16,
    /// The member's secret.
    pub secret: Secret,
    /// Drawn by the node when it starts: tells it from whatever listens there later.
    pub incarnation: u64,
    /// The configuration of the pool that the node knows; 0 where there is no controller.
    pub epoch: u64,
    /// Bytes that the node lends, in all.
    pub lend: u64,
    /// Bytes of these not lent.
    pub free: u64,
    /// The node's own end of this connection, as IPv6 (IPv4 mapped). A host that dialled just this
    /// address has no middlebox before the node. Zero over Unix sockets.
    pub address: [u8; 16],
    /// See `address`.
    pub port: u16,
    /// Ways to reach memory beside this connection: [`super::OFFERS_RDMA`],
    /// [`super::OFFERS_RESERVE`].
    pub offers: u8,
    /// A Unix socket at which the same node serves the same host through shared memory; empty:
    /// none.
    pub path: Path,
    /// The failure domain that the node says it is in; empty: it says none.
    pub domain: Text<64>,
    /// The node's half of a secret, where the host's Proof had the other.
    pub share: Option<Share>,
    /// The node's own proof that it knows the token that the host has proven; zeros where none was
    /// named.
    pub proof: [u8; 32],
}

/// The path of a Unix socket: bytes, of which none is zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    len: u8,
    bytes: [u8; MAX_PATH],
}

impl Path {
    /// The path; `None` if it is longer than [`MAX_PATH`].
    pub fn new(path: &[u8]) -> Option<Path> {
        let mut made = Path { len: path.len().try_into().ok()?, bytes: [0; MAX_PATH] };
        made.bytes.get_mut(..path.len())?.copy_from_slice(path);
        Some(made)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

impl Default for Path {
    fn default() -> Path {
        Path { len: 0, bytes: [0; MAX_PATH] }
    }
}

impl Serialize for Path {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.as_bytes())
    }
}

impl<'de> Deserialize<'de> for Path {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Path, D::Error> {
        let bytes = <&'de [u8]>::deserialize(deserializer)?;
        let fits = Path::new(bytes).filter(|_| !bytes.contains(&0));
        fits.ok_or_else(|| serde::de::Error::custom("not the path of a socket"))
    }
}

#[cfg(test)]
mod tests;
