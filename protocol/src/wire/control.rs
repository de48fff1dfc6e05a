//! Control frames: Hello and Greeting begin every connection; Request and Answer go over a member's
//! own.
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

use super::{Broken, MAGIC, MAX_PATH, Names, Secret, Status, Text, VERSION};
use crate::addr::SlabId;
use crate::key::Key;
use crate::region::RegionName;
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
const LENGTH: usize = 2;

/// An encoded frame.
#[derive(Clone, Copy)]
pub struct Frame<const N: usize> {
    len: usize,
    bytes: [u8; N],
}

impl<const N: usize> Frame<N> {
    /// Encodes `head`, the body's length and the body. Every type of this module fits its frame
    /// with any values (`the_longest_of_everything_fits`).
    fn encode(head: &[u8], body: &impl Serialize) -> Frame<N> {
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
fn decode<'de, T: Deserialize<'de>>(input: &'de [u8], most: usize) -> Result<Option<(T, usize)>, Broken> {
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
    /// HMAC-SHA256 by the token's key over the challenge and the Hello.
    pub mac: [u8; 32],
}

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
    /// [`Ask::Ticket`] announced.
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
    /// Ways to reach memory beside this connection: [`super::OFFERS_RDMA`].
    pub offers: u8,
    /// A Unix socket at which the same node serves the same host through shared memory; empty:
    /// none.
    pub path: Path,
    /// The failure domain that the node says it is in; empty: it says none.
    pub domain: Text<64>,
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

/// A member's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Counts a member's requests. A request that is repeated under its number, because a cut
    /// connection swallowed the answer, is answered again and not carried out again.
    pub number: u64,
    /// The configuration of the pool that the host knows; 0 where there is no controller.
    pub epoch: u64,
    /// The request itself.
    pub ask: Ask,
}

impl Request {
    /// One where there is no controller.
    pub fn new(number: u64, ask: Ask) -> Request {
        Request { number, epoch: 0, ask }
    }

    /// As it goes over the stream.
    pub fn frame(&self) -> Frame<MAX_REQUEST> {
        Frame::encode(&[], self)
    }

    /// The Request at the front of `input`, and its bytes; `None`: it has not come whole.
    pub fn read(input: &[u8]) -> Result<Option<(Request, usize)>, Broken> {
        decode(input, MAX_REQUEST - LENGTH)
    }
}

/// A member's request on its control connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Are you there?
    Ping,
    /// This member is gone. No answer.
    Bye,
    /// One more slab. Answer: [`Reply::Slab`].
    Grant,
    /// The slab is no longer needed by this member.
    Release(SlabId),
    /// A slab that is held, once more: over a Unix socket the answer carries its memfd.
    Again(SlabId),
    /// A range of a slab is of no more use: its memory goes back to the node's system, and reads as
    /// zero from now on. The slab stays held. Only its sole holder may.
    Discard(Range),
    /// The node takes the memory of a range of a slab from its system now, [`super::MAX_BACKED`]
    /// bytes at most. Bytes in the range stay. For a member that maps the slab: the kernel charges
    /// a page to the memory group of the process that touches it first.
    Back(Range),
    /// A member for a child about to be forked, holding every slab that this one holds. Answer:
    /// [`Reply::Child`]. Over a Unix socket the answer carries a connection on which the child may
    /// say hello. So a process can fork that has no right to the socket's file any more, or cannot
    /// see it.
    Ticket,
    /// Every member of the run is gone. Knowing the run's name is the right to end it.
    EndRun(Secret),
    /// The memory of neighbouring blocks that this member has claimed: the first block's key, and
    /// their number, 1 to 32. Over a Unix socket the answer carries a memfd of just these blocks,
    /// the same one every time.
    Unit(Key, u32),
    /// A window, unbound. Answer: [`Reply::Window`], the key by which a BIND names it.
    Window,
    /// The window with this key, bound or not, is no longer needed: it ceases to be.
    DropWindow(Key),
    /// Asks for the holder of this owner id. Answer: [`Reply::Who`]. Not held: the id is free.
    Who(u16),
    /// A figure of the node. Answer: [`Reply::Figure`].
    Figure(Figure),
    /// Makes a held slab reachable by RDMA. Answer: [`Reply::Exposed`], the key of its memory for
    /// this member's queue pairs. Offsets count from its first byte.
    Expose(SlabId),
    /// Makes a window that is bound for this member usable by RDMA, through the queue pair of this
    /// number. Answer: [`Reply::Exposed`]. After a refusal the window's verbs go in frames.
    ExposeWindow(Key, u64),
    /// Opens a region for this member; `true`: it is made if there is none. Answer:
    /// [`Reply::Slabs`].
    Region(RegionName, bool),
    /// Has this member hold a slab of a region that it has opened, by the slab's number from 0.
    /// Answer: [`Reply::Slab`]; over a Unix socket it carries the memfd. Not held: the region has
    /// no such slab.
    RegionSlab(RegionName, u64),
    /// As RegionSlab; the region gets one more slab if the number is the next.
    RegionGrow(RegionName, u64),
    /// The name names no region any more. The memory is free when no member has the region open.
    RegionRemove(RegionName),
    /// The region at this index in the order of names. Answer: [`Reply::Region`]. Not held: there
    /// are fewer regions.
    RegionAt(u64),
    /// The swap volume at this index in an order of the node's. Answer: [`Reply::Volume`]. Not
    /// held: there are fewer volumes.
    VolumeAt(u64),
    /// Takes all rights at this node from the processes of this tag that have the region open
    /// ([`super::tag`]). Done: none of their verbs takes effect from now on. Shared: one of them
    /// has the memory mapped and is still alive.
    RegionExpel(RegionName, u32),
}

/// Bytes of a slab, in whole pages of 4096 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Range {
    /// Of this slab.
    pub slab: SlabId,
    /// From this byte.
    pub offset: u64,
    /// This number of bytes.
    pub len: u64,
}

/// Figures of a node that a member can ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Figure {
    /// Windows that members have.
    Windows,
    /// Of these, bound.
    WindowsBound,
    /// CPU time of draining and of the words, in nanoseconds.
    DrainNs,
    /// CPU time of scrubbing, in nanoseconds.
    ScrubNs,
    /// Bytes scrubbed.
    ScrubbedBytes,
    /// Units made clean.
    Reclaimed,
    /// Bytes of memory really taken from the system.
    InUse,
}

/// The node's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The request's.
    pub number: u64,
    /// The configuration of the pool that the node knows; 0 where there is no controller.
    pub epoch: u64,
    /// The reply, or the reason for a refusal.
    pub result: Result<Reply, Refused>,
}

impl Answer {
    /// As it goes over the stream.
    pub fn frame(&self) -> Frame<MAX_REQUEST> {
        Frame::encode(&[], self)
    }

    /// The Answer at the front of `input`, and its bytes; `None`: it has not come whole.
    pub fn read(input: &[u8]) -> Result<Option<(Answer, usize)>, Broken> {
        decode(input, MAX_REQUEST - LENGTH)
    }
}

/// The result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The request was carried out, and has no further result.
    Done,
    /// The slab's id.
    Slab(SlabId),
    /// The child's secret.
    Child(Secret),
    /// The window's key.
    Window(Key),
    /// The holder of the owner id.
    Who(Who),
    /// The figure.
    Figure(u64),
    /// The key on the node's card, and the offset of the first byte there.
    Exposed(u32, u16),
    /// How many slabs a region has.
    Slabs(u64),
    /// A region's name, how many slabs it has, and its owner id.
    Region(RegionName, u64, u16),
    /// A swap volume.
    Volume(VolumeInfo),
}

/// A swap volume, as its node describes it. Sizes are bytes unless stated otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// The owner id by which descriptor words name it.
    pub owner: u16,
    /// The most that it may hold.
    pub size: u64,
    /// Pages that are stored.
    pub live: u64,
    /// Pages that are one repeated word, and take no memory.
    pub filled: u64,
    /// The host reports each slot that its kernel frees. Otherwise only whole clusters are freed.
    pub told: bool,
    /// The machine that swaps to it, as it said itself.
    pub host: Text<64>,
}

/// The holder of an owner id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Who {
    /// The process; 0: a run, which holds slabs.
    pub pid: u32,
    /// The same for all of a run; its name cannot be told from this.
    pub run: u64,
    /// Of a run: the process that began it at this node, on its machine.
    pub leader: u32,
    /// As it said itself; of a run, as the process that began it said.
    pub names: Names,
}

/// Why nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refused {
    /// Never [`Status::Done`].
    pub status: Status,
    /// Exhausted: bytes that the node lends in all. Quota: bytes that one owner may hold. System:
    /// the errno. Zero otherwise.
    pub value: u64,
}

impl From<Status> for Refused {
    fn from(status: Status) -> Refused {
        Refused { status, value: 0 }
    }
}

#[cfg(test)]
mod tests;
