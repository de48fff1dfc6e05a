//! One connection at the node: bytes in, verbs carried out, bytes out.
//!
//! ```text
//!  socket ─► pull ─┬─► input buffer ─► hello | request | batch, verbs ─► step ─► output ─► push ─► socket
//!                  └─► the slab itself (operand bytes of a WRITE)          └─ READ: a piece of the slab
//! ```
//!
//! Bytes are copied as little as possible: a WRITE's are received into the slab, a READ's are sent
//! from it. So a READ that waits for a slow receiver may return what a later WRITE of the same
//! queue pair wrote. RDMA allows this, too.
//!
//! Memory is bounded. The input buffer has a fixed size for each purpose. When the output backs up
//! (`output` says how far), input waits, and through TCP so does the host. docs/design/tables.md
//! has the sum for one connection.
//!
//! * This file: the connection, and its input. `entry`: how a peer is let in, and leaves.
//! * `requests`: a member's requests. `serving`: verbs. `volume`: a swap volume's stream.
//! * `output`: bytes on their way out. `sealed`: bytes that go in records.
//!
//! A queue pair's transfers happen inside sections of [`super::epochs`], together with the checks
//! that admit them.

// Naming the bytes of slabs and buffers for scattered transfers.
#![allow(unsafe_code)]

mod entry;
mod output;
mod requests;
mod sealed;
mod serving;
#[cfg(all(test, not(loom)))]
mod tests;
mod turn;
mod volume;

pub use turn::Clocks;

use super::epochs::Section;
use super::shares::{By, Peer, Place};
use super::tenants::Tenant;
use super::units::files::Copying;
use super::{Member, Nic};
use entry::Proving;
use farmem_protocol::lines::MAX_RECORD_BYTES;
use farmem_protocol::wire::control::{MAX_HELLO, MAX_REQUEST};
use farmem_protocol::wire::{Broken, Endpoint};
use farmem_sys::raw::Errno;
use farmem_sys::socket::Part;
use farmem_trust::TokenId;
use output::{NotSent, Output};
use sealed::Sealed;
use serving::Serving;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use turn::End;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of input of a queue pair: more than the largest head of a batch, and enough for one
/// receive.
const INPUT: usize = 64 << 10;
/// Bytes of input of a connection that has not said who it is: one Hello.
const STRANGERS_INPUT: usize = MAX_HELLO;
/// Bytes of input of a control connection: a whole request has room even when half of them are
/// used.
const CONTROL_INPUT: usize = 4096;
const _: () = assert!(MAX_REQUEST <= CONTROL_INPUT / 2 && MAX_HELLO <= CONTROL_INPUT);
// A log record must lie in the input as a whole. Unused input is moved to the front only when half
// of the buffer is used, so the other half must have room for a record.
const _: () = assert!(MAX_RECORD_BYTES <= INPUT / 2);

/// Numbers connections, so that they spread over the counters of sections.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The node's knowledge of a connection, besides its bytes.
#[derive(Clone, Debug, Default)]
pub struct Circumstances {
    /// Whether it came through a Unix socket: then descriptors can be passed.
    pub local: bool,
    /// Where it comes from.
    pub peer: Peer,
    /// The node's end, for TCP.
    pub own_end: Option<SocketAddr>,
    /// A Unix socket of this node, to be told to a peer on the same machine.
    pub path: Vec<u8>,
}

/// Why a connection is to be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goodbye {
    /// The peer closed it, or it failed.
    Cut,
    /// The peer broke the rules.
    Broken(Broken),
    /// A READ was admitted, but its right ended before all its bytes were sent. The host asks
    /// again, and is refused.
    Revoked,
    /// Its business is done, or was refused; close when the output is empty.
    Done,
}

/// The use of a connection, as far as it is known.
enum Phase {
    /// It has not said who it is.
    Hello,
    /// It must prove that it has the token that it named.
    Proving(Box<Proving>),
    /// A member's requests.
    Control(Control),
    /// A queue pair's verbs.
    Queue(Box<Serving>),
    /// The stream beside a queue pair on the node's card.
    Wire(Wire),
    /// A swap volume's stream.
    Volume(Box<volume::Stream>),
    /// It is closed once its output is sent.
    Closing,
}

/// A member's requests.
struct Control {
    member: Arc<Member>,
    /// Which of the member's control connections this is.
    ours: u64,
    /// What the request whose turn it is has copied so far.
    copying: Option<Copying>,
}

/// The stream of a queue pair whose verbs go over RDMA, not through this stream.
struct Wire {
    member: Arc<Member>,
    queue: u64,
    ours: u64,
    connected: bool,
}

/// One connection.
pub struct Engine {
    phase: Phase,
    about: Circumstances,
    /// Which counter of sections it uses.
    shard: usize,
    /// Bytes received; those from `start` to `end` are not used yet.
    input: Box<[u8]>,
    start: usize,
    end: usize,
    output: Output,
    /// Bytes that it may take, and that it may answer, before others are served.
    turn: usize,
    /// See [`Engine::set_clocks`] and [`Engine::was_long`].
    clocks: Option<Clocks>,
    was_long: bool,
    /// The state of encryption: bytes after the Welcome go in records. `None`: they go in plain.
    sealed: Option<Box<Sealed>>,
    /// See [`Engine::take_opened`].
    opened: Vec<UnixStream>,
    /// The next request waits for a slab that is away.
    put_off: bool,
    /// Its place in the table of connections, once it has said who it is.
    place: Option<Place>,
    /// The token by which it came, and at which change of the node's tokens this was looked at last.
    token: Option<(TokenId, u64)>,
    /// Its place in the table of connections with much output, as long as much waits.
    roomy: Option<Place>,
    /// By what a refusal is proven: set when the peer has proven its token, until it is let in.
    vouches: Option<Box<entry::Vouches>>,
}

impl Engine {
    /// A connection that was just accepted.
    pub fn new(about: Circumstances) -> Engine {
        Engine {
            phase: Phase::Hello,
            about,
            shard: NEXT.fetch_add(1, Ordering::Relaxed),
            input: vec![0; STRANGERS_INPUT].into_boxed_slice(),
            start: 0,
            end: 0,
            output: Output::default(),
            turn: usize::MAX,
            clocks: None,
            was_long: false,
            sealed: None,
            opened: Vec::new(),
            put_off: false,
            vouches: None,
            place: None,
            token: None,
            roomy: None,
        }
    }

    /// Connections that this engine has created for its peer since the last call. The caller treats
    /// them as accepted from that peer. The peer's ends are sent with the output.
    pub fn take_opened(&mut self) -> Vec<(UnixStream, Peer)> {
        self.opened.drain(..).map(|stream| (stream, self.about.peer)).collect()
    }

    /// The tenant that it is for, once it is known. `None`: it has none.
    pub fn tenant(&self) -> Option<&Arc<Tenant>> {
        match &self.phase {
            Phase::Hello | Phase::Proving(_) | Phase::Closing => None,
            Phase::Control(control) => control.member.tenant(),
            Phase::Queue(serving) => serving.member.tenant(),
            Phase::Wire(wire) => wire.member.tenant(),
            Phase::Volume(stream) => stream.attached.volume.tenant(),
        }
    }

    /// Whether it came by TCP.
    pub fn is_far(&self) -> bool {
        !self.about.local
    }

    /// Where it comes from.
    pub fn peer(&self) -> Peer {
        self.about.peer
    }

    /// Whether the peer has not yet said who it is.
    pub fn is_stranger(&self) -> bool {
        matches!(self.phase, Phase::Hello | Phase::Proving(_))
    }

    /// Whether this is the connection of a member that is gone, or a stream of a volume that another
    /// one has superseded, and can be closed.
    pub fn is_orphan(&self) -> bool {
        match &self.phase {
            Phase::Hello | Phase::Proving(_) | Phase::Closing => false,
            Phase::Control(control) => control.member.is_gone(),
            Phase::Queue(serving) => serving.member.is_gone(),
            Phase::Wire(wire) => wire.member.is_gone(),
            Phase::Volume(stream) => stream.attached.is_over(),
        }
    }

    /// Whether there is something to [`Engine::push`].
    pub fn has_output(&self) -> bool {
        self.output.backlog > 0 || self.sealed.as_ref().is_some_and(|sealed| sealed.has_output())
    }

    /// Whether input waits until output has gone.
    pub fn is_backed_up(&self) -> bool {
        self.output.backlog >= self.turn || self.output.is_backed_up(self.roomy.is_some())
    }

    /// Whether something was put off: a SEND by its service, or what needs a slab that is away. The
    /// connection is to be served again soon, and takes no input meanwhile.
    pub fn waits(&self) -> bool {
        self.put_off || matches!(&self.phase, Phase::Queue(serving) if serving.put_off || serving.waits.is_some())
    }

    /// Whether input must wait now. A connection whose output exceeds [`output::SMALL`] takes one
    /// of the few places of `Nic::roomy`, if there is one, and may go on up to [`output::LARGE`].
    fn must_wait(&mut self, nic: &Nic) -> bool {
        if self.roomy.is_none() && self.output.is_backed_up(false) && !self.output.is_backed_up(true) {
            let by = self.place.as_ref().map_or(By::Peer(self.about.peer), Place::by);
            self.roomy = nic.roomy.take(by).ok();
        }
        self.is_backed_up()
    }

    /// Takes what `receive` gives and carries it out. `receive` fills the parts in turn and says
    /// how many bytes it filled; 0 means the end of the stream. Returns how many it took.
    pub fn pull(
        &mut self,
        nic: &Nic,
        now_ns: u64,
        receive: impl FnOnce(&[Part]) -> Result<usize, Errno>,
    ) -> Result<usize, Goodbye> {
        if let Phase::Closing = self.phase {
            return Err(Goodbye::Done);
        }
        let mut receive = Some(receive);
        self.put_off = false;
        if let Phase::Queue(serving) = &mut self.phase {
            serving.put_off = false;
        }
        let mut n = 0;
        let mut end = self.turn_end();
        self.was_long = false;
        loop {
            // The turn is locked while bytes go to memory, and while verbs and requests are carried
            // out. A connection whose turn has passed to a newer one is closed.
            let (turn, verbs) = match &self.phase {
                Phase::Queue(serving) => (Some((Arc::clone(&serving.turn), serving.ours)), true),
                Phase::Control(control) => (Some((Arc::clone(&control.member.control), control.ours)), false),
                _ => (None, false),
            };
            let held = turn.as_ref().map(|(turn, ours)| (turn.0.lock(), *ours));
            if held.as_ref().is_some_and(|(now, ours)| **now != *ours) {
                return Err(Goodbye::Done);
            }
            // A section begins only when no more lock has to be waited for. Requests run in no
            // section, because they may wait for the end of all sections. Hellos run in none,
            // because they wait for a turn, and its holder may wait for that end.
            let mut section = verbs.then(|| nic.epochs.enter(self.shard));
            // This check must be within the section. A region's slab outlives its members, so a
            // WRITE whose bytes are still arriving must not go on for an expelled member.
            if let Phase::Queue(serving) = &self.phase
                && serving.member.is_over()
            {
                return Err(Goodbye::Done);
            }
            if let Some(receive) = receive.take() {
                n = match self.fill(nic, receive) {
                    Ok(0) => return Err(Goodbye::Cut),
                    Ok(n) => n,
                    Err(Errno(libc::EAGAIN)) => 0,
                    Err(Errno(libc::EBADMSG)) => return Err(Goodbye::Broken(Broken::Changed)),
                    Err(_) => return Err(Goodbye::Cut),
                };
            }
            // A Hello may just have made this the connection of a member. The rest of the input is
            // then carried out in another round, which takes the turn and, for verbs, a section.
            let mut entered = false;
            while !entered && !self.was_long && !self.must_wait(nic) && self.step(nic, section.as_mut(), now_ns)? {
                entered = held.is_none() && matches!(self.phase, Phase::Queue(_) | Phase::Control(_));
                // At least one step is done, so the connection goes on.
                self.was_long = end.as_mut().is_some_and(End::has_come);
            }
            if !entered && self.is_refused_as_gone() {
                return Err(Goodbye::Done);
            }
            if !entered {
                return Ok(n);
            }
        }
    }

    /// Whether a verb was just refused because the member is gone. Then nothing is answered: the
    /// host dials again, and is told why.
    fn is_refused_as_gone(&mut self) -> bool {
        let Phase::Queue(serving) = &mut self.phase else { return false };
        let gone = std::mem::take(&mut serving.refused) && serving.member.is_gone();
        if gone {
            self.output = Output::default();
        }
        gone
    }

    /// Receives into the input buffer. A WRITE's operand is received straight into its slab.
    ///
    /// EAGAIN: there is nothing to receive, or no room for it.
    fn fill(&mut self, nic: &Nic, receive: impl FnOnce(&[Part]) -> Result<usize, Errno>) -> Result<usize, Errno> {
        if self.sealed.is_some() {
            return self.fill_sealed(receive);
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.input.len() - self.end < self.input.len() / 2 {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = Part::new(self.input[self.end..].as_mut_ptr(), self.input.len() - self.end).shortened(self.turn);
        if room.len() == 0 {
            // The input is backed up: nothing is taken until output was sent.
            return Err(Errno(libc::EAGAIN));
        }
        if let Phase::Queue(serving) = &mut self.phase
            && self.start == self.end
            && let Some(straight) = serving.straight(nic)
        {
            let straight = straight.shortened(self.turn);
            let n = receive(&[straight, room])?;
            let direct = n.min(straight.len());
            serving.went_straight(direct);
            self.end += n - direct;
            return Ok(n);
        }
        let n = receive(&[room])?;
        self.end += n;
        Ok(n)
    }

    /// As [`Engine::fill`], where bytes come in records. EBADMSG: a record does not open.
    fn fill_sealed(&mut self, receive: impl FnOnce(&[Part]) -> Result<usize, Errno>) -> Result<usize, Errno> {
        let Some(sealed) = &mut self.sealed else { return Err(Errno(libc::EAGAIN)) };
        if self.start == self.end && sealed.raw.0 == sealed.raw.1 {
            (self.start, self.end, sealed.raw) = (0, 0, (0, 0));
        } else if self.input.len() - sealed.raw.1 < self.input.len() / 2 {
            let (opened, (from, to)) = (self.end - self.start, sealed.raw);
            self.input.copy_within(self.start..self.end, 0);
            self.input.copy_within(from..to, opened);
            (self.start, self.end, sealed.raw) = (0, opened, (opened, opened + to - from));
        }
        let room = &mut self.input[sealed.raw.1..];
        if room.is_empty() {
            return Err(Errno(libc::EAGAIN));
        }
        let n = receive(&[Part::new(room.as_mut_ptr(), room.len()).shortened(self.turn)])?;
        sealed.raw.1 += n;
        // Opened bytes that are not used yet take half of the input at most, so that the largest
        // record has room.
        let most = self.input.len() / 2;
        self.end = sealed.open(&mut self.input, self.end, most).map_err(|_| Errno(libc::EBADMSG))?;
        Ok(n)
    }

    /// One step; false when more input is needed.
    fn step(&mut self, nic: &Nic, section: Option<&mut Section<'_>>, now_ns: u64) -> Result<bool, Goodbye> {
        match &mut self.phase {
            Phase::Hello => self.greet(nic, now_ns),
            Phase::Proving(_) => self.prove(nic, now_ns),
            Phase::Control(_) => self.answer(nic, now_ns),
            Phase::Queue(serving) => {
                let Some(section) = section else { return Ok(false) };
                let input = &self.input[self.start..self.end];
                let used = serving.step(nic, section, input, &mut self.output).map_err(Goodbye::Broken)?;
                self.start += used.unwrap_or(0);
                Ok(used.is_some())
            }
            Phase::Wire(_) => self.connect_wire(nic),
            Phase::Volume(stream) => {
                let input = &self.input[self.start..self.end];
                let used = stream.step(nic, input, &mut self.output)?;
                self.start += used.unwrap_or(0);
                Ok(used.is_some())
            }
            Phase::Closing => Err(Goodbye::Done),
        }
    }

    /// Takes the host's end of an RDMA queue pair, and answers with the node's. This happens once:
    /// the host sends nothing after it.
    fn connect_wire(&mut self, nic: &Nic) -> Result<bool, Goodbye> {
        let there = self.start < self.end;
        match &self.phase {
            Phase::Wire(wire) if wire.connected && there => return Err(Goodbye::Broken(Broken::Control)),
            Phase::Wire(wire) if !wire.connected => {}
            _ => return Ok(false),
        }
        let Some(host) = self.take::<Endpoint>() else { return Ok(false) };
        if let Phase::Wire(wire) = &mut self.phase {
            let own = nic.cards().connect_wire(&wire.member, wire.queue, wire.ours, &host);
            wire.connected = true;
            self.output.bytes(own.as_bytes());
        }
        Ok(true)
    }

    /// Takes the next frame of type `T` from the input, if it is there whole.
    fn take<T: FromBytes>(&mut self) -> Option<T> {
        let (frame, _) = T::read_from_prefix(&self.input[self.start..self.end]).ok()?;
        self.start += size_of::<T>();
        Some(frame)
    }

    /// Replaces the input buffer by one of `len` bytes. Unused input moves along.
    fn widen(&mut self, len: usize) {
        let mut input = vec![0; len].into_boxed_slice();
        let unused = self.end - self.start;
        input[..unused].copy_from_slice(&self.input[self.start..self.end]);
        (self.input, self.start, self.end) = (input, 0, unused);
    }

    /// Gives output to `send`, until there is none or it takes no more. `send` gets the parts and
    /// the descriptor to pass along the first of them, if any, and says how many bytes it took.
    ///
    /// # Errors
    /// [`Goodbye::Done`] when a refused peer has its answer.
    /// [`Goodbye::Revoked`] when bytes of a READ must not go any more.
    pub fn push(
        &mut self,
        nic: &Nic,
        mut send: impl FnMut(&[Part], Option<i32>) -> Result<usize, Errno>,
    ) -> Result<(), Goodbye> {
        if self.has_output() {
            let _section = nic.epochs.enter(self.shard);
            while self.has_output() {
                let sent = match &mut self.sealed {
                    None => self.output.send_once(nic, &mut send),
                    Some(sealed) => sealed.send_once(nic, &mut self.output, &mut send),
                };
                match sent {
                    Ok(()) => {}
                    Err(NotSent::System(Errno(libc::EAGAIN))) => return Ok(()),
                    Err(NotSent::System(_)) => return Err(Goodbye::Cut),
                    Err(NotSent::Revoked) => return Err(Goodbye::Revoked),
                }
            }
        }
        self.roomy = None;
        if let Phase::Closing = self.phase { Err(Goodbye::Done) } else { Ok(()) }
    }
}
