//! One connection at the node: bytes in, verbs carried out, bytes out.
//!
//! ```text
//!  socket ─► pull ─┬─► input buffer ─► hello | request | batch, verbs ─► step ─► output ─► push ─► socket
//!                  └─► the slab itself (operand bytes of a WRITE)          └─ READ: a piece of the slab
//! ```
//!
//! Nothing is copied that need not be: a WRITE's bytes are received into the
//! slab, a READ's are sent from it. (So a READ that waits behind a slow receiver
//! may return what a later WRITE of the same queue pair left: as RDMA has it.)
//!
//! Bounded: the input buffer has a fixed size for each purpose. When the output backs up
//! (`output` says how far), input waits, and through TCP so does the host. The memory of one
//! connection in all: docs/design/tables.md.

//! * This file: who is there, and what it asks.
//! * `serving`: verbs. `output`: bytes on their way out.
//!
//! Transfers of queue pairs, and all that is decided with them, are sections of [`super::epochs`].

// Naming the bytes of slabs and buffers for scattered transfers.
#![allow(unsafe_code)]

mod output;
mod serving;
#[cfg(all(test, not(loom)))]
mod tests;

use super::epochs::Section;
use super::events::{Event, Leaving, Refused};
use super::lending::Slab;
use super::shares::{Peer, Place};
use super::{Member, Nic, count};
use farmem_protocol::addr::SlabId;
use farmem_protocol::key::Key;
use farmem_protocol::lines::MAX_RECORD_BYTES;
use farmem_protocol::region::RegionName;
use farmem_protocol::wire::{
    Answer, Ask, Broken, Endpoint, Figure, Hello, MAGIC, OFFERS_RDMA, Purpose, Request, Status, VERSION, Verdict,
    Welcome, variant,
};
use farmem_sys::raw::Errno;
use farmem_sys::socket::Part;
use output::{NotSent, Output, Passed};
use serving::Serving;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// Input of a queue pair, at most: more than the largest head of a batch, and enough for one receive.
const INPUT: usize = 64 << 10;
/// Input of a connection that has not said who it is: more than one Hello.
const STRANGERS_INPUT: usize = 256;
/// Input of a control connection: more than one request.
const CONTROL_INPUT: usize = 4096;
// A record is looked at whole, and what is left of the input is moved to the front when half of it is used.
const _: () = assert!(MAX_RECORD_BYTES <= INPUT / 2);

/// Numbers connections, so that they spread over the counters of sections.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// What the node knows of a connection beside its bytes.
#[derive(Clone, Debug, Default)]
pub struct Circumstances {
    /// Through a Unix socket: descriptors can be passed.
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
    /// A READ was promised whose right ended before its bytes went: the host asks again, and is refused.
    Revoked,
    /// Its business is done, or was refused; close when the output is empty.
    Done,
}

enum Phase {
    Hello,
    Control(Control),
    Queue(Box<Serving>),
    Wire(Wire),
    Closing,
}

/// A member's requests.
struct Control {
    member: Arc<Member>,
    /// Which of the member's control connections this is.
    ours: u64,
}

/// The stream of a queue pair whose verbs go past it.
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
    shard: usize,
    input: Box<[u8]>,
    start: usize,
    end: usize,
    output: Output,
    opened: Vec<UnixStream>,
    /// Its part of the table of connections, once it has said who it is.
    place: Option<Place>,
    /// Its part of the table of those with much output, as long as much waits.
    roomy: Option<Place>,
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
            opened: Vec::new(),
            place: None,
            roomy: None,
        }
    }

    /// Connections that this engine has created for its peer since the last call. The caller treats
    /// them as accepted from that peer. The peer's ends are sent with the output.
    pub fn take_opened(&mut self) -> Vec<(UnixStream, Peer)> {
        self.opened.drain(..).map(|stream| (stream, self.about.peer)).collect()
    }

    /// Where it comes from.
    pub fn peer(&self) -> Peer {
        self.about.peer
    }

    /// Whether the peer has not yet said who it is.
    pub fn is_stranger(&self) -> bool {
        matches!(self.phase, Phase::Hello)
    }

    /// Whether this is the connection of a member that is gone, and can be closed.
    pub fn is_orphan(&self) -> bool {
        match &self.phase {
            Phase::Hello | Phase::Closing => false,
            Phase::Control(control) => control.member.is_gone(),
            Phase::Queue(serving) => serving.member.is_gone(),
            Phase::Wire(wire) => wire.member.is_gone(),
        }
    }

    /// Whether there is something to [`Engine::push`].
    pub fn has_output(&self) -> bool {
        self.output.backlog > 0
    }

    /// Whether input waits until output has gone.
    pub fn is_backed_up(&self) -> bool {
        self.output.is_backed_up(self.roomy.is_some())
    }

    /// Whether input must wait now. A connection whose output exceeds [`output::SMALL`] takes one
    /// of the few places of `Nic::roomy`, if there is one, and may go on up to [`output::LARGE`].
    fn must_wait(&mut self, nic: &Nic) -> bool {
        if self.roomy.is_none() && self.output.is_backed_up(false) && !self.output.is_backed_up(true) {
            self.roomy = nic.roomy.take(self.about.peer).ok();
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
        let mut n = 0;
        loop {
            // The turn is held while bytes go to memory and while verbs and requests are carried out.
            let (turn, verbs) = match &self.phase {
                Phase::Queue(serving) => (Some((Arc::clone(&serving.turn), serving.ours)), true),
                Phase::Control(control) => (Some((Arc::clone(&control.member.control), control.ours)), false),
                _ => (None, false),
            };
            let held = turn.as_ref().map(|(turn, ours)| (turn.0.lock(), *ours));
            if held.as_ref().is_some_and(|(now, ours)| **now != *ours) {
                return Err(Goodbye::Done);
            }
            // The section begins when no lock has to be waited for any more. A Hello waits for its turn, whose holder may
            // wait for the end of all sections, as a request does: so they are in none.
            let mut section = verbs.then(|| nic.epochs.enter(self.shard));
            if let Some(receive) = receive.take() {
                n = match self.fill(nic, receive) {
                    Ok(0) => return Err(Goodbye::Cut),
                    Ok(n) => n,
                    Err(Errno(libc::EAGAIN)) => 0,
                    Err(_) => return Err(Goodbye::Cut),
                };
            }
            let mut entered = false;
            while !entered && !self.must_wait(nic) && self.step(nic, section.as_mut(), now_ns)? {
                entered = held.is_none() && matches!(self.phase, Phase::Queue(_) | Phase::Control(_));
            }
            // What came together with a Hello is carried out as all that comes later: in its turn, verbs in a section.
            if !entered {
                return Ok(n);
            }
        }
    }

    fn fill(&mut self, nic: &Nic, receive: impl FnOnce(&[Part]) -> Result<usize, Errno>) -> Result<usize, Errno> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.input.len() - self.end < self.input.len() / 2 {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = Part::new(self.input[self.end..].as_mut_ptr(), self.input.len() - self.end);
        if room.len() == 0 {
            // Backed up: nothing is taken until output has gone.
            return Err(Errno(libc::EAGAIN));
        }
        if let Phase::Queue(serving) = &mut self.phase
            && self.start == self.end
            && let Some(straight) = serving.straight(nic)
        {
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

    /// One step; false when more input is needed.
    fn step(&mut self, nic: &Nic, section: Option<&mut Section<'_>>, now_ns: u64) -> Result<bool, Goodbye> {
        match &mut self.phase {
            Phase::Hello => self.greet(nic, now_ns),
            Phase::Control(_) => self.answer(nic, now_ns),
            Phase::Queue(serving) => {
                let Some(section) = section else { return Ok(false) };
                let input = &self.input[self.start..self.end];
                let used = serving.step(nic, section, input, &mut self.output).map_err(Goodbye::Broken)?;
                self.start += used.unwrap_or(0);
                Ok(used.is_some())
            }
            Phase::Wire(_) => self.connect_wire(nic),
            Phase::Closing => Err(Goodbye::Done),
        }
    }

    /// The host's end of a queue pair, once; after it the host has nothing to say.
    fn connect_wire(&mut self, nic: &Nic) -> Result<bool, Goodbye> {
        let there = self.start < self.end;
        match &self.phase {
            Phase::Wire(wire) if wire.connected && there => return Err(Goodbye::Broken(Broken::Control)),
            Phase::Wire(wire) if !wire.connected => {}
            _ => return Ok(false),
        }
        let Some(host) = self.take::<Endpoint>() else { return Ok(false) };
        if let Phase::Wire(wire) = &mut self.phase {
            let own = nic.connect_wire(&wire.member, wire.queue, wire.ours, &host);
            wire.connected = true;
            self.output.bytes(own.as_bytes());
        }
        Ok(true)
    }

    /// The next frame of type `T`, if it is there whole.
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

    fn greet(&mut self, nic: &Nic, now_ns: u64) -> Result<bool, Goodbye> {
        let seen = &self.input[self.start..self.end];
        let known = seen.len().min(MAGIC.len());
        if seen[..known] != MAGIC[..known] {
            return Err(Goodbye::Broken(Broken::Magic));
        }
        // Magic and version are all that another version's Hello is sure to have.
        if seen.len() >= 8 && u16::from_le_bytes([seen[6], seen[7]]) != VERSION {
            return self.refuse(nic, Verdict::Version);
        }
        let Some(hello) = self.take::<Hello>() else { return Ok(false) };
        let Ok(place) = nic.connections.take(self.about.peer) else { return self.refuse(nic, Verdict::Full) };
        self.place = Some(place);
        let from = (self.about.peer, self.about.local);
        let entered = match variant::<Purpose>(hello.purpose) {
            _ if hello.zero != [0; 2] || hello.lasting > 1 => Err(Verdict::Malformed),
            Some(purpose @ (Purpose::Join | Purpose::Rejoin)) => {
                let joined = if purpose == Purpose::Join { nic.join(&hello, from, now_ns) } else { nic.rejoin(&hello) };
                joined.map(|(member, ours)| (Arc::clone(&member), Phase::Control(Control { member, ours })))
            }
            Some(Purpose::Attach) => nic.attach(&hello).map(|(member, turn, ours)| {
                let serving = Serving::new(Arc::clone(&member), hello.queue.get(), turn, ours);
                (member, Phase::Queue(Box::new(serving)))
            }),
            Some(Purpose::Wire) => nic.attach_wire(&hello).map(|(member, ours)| {
                let wire = Wire { member: Arc::clone(&member), queue: hello.queue.get(), ours, connected: false };
                (member, Phase::Wire(wire))
            }),
            None => Err(Verdict::Malformed),
        };
        match entered {
            Ok((member, phase)) => {
                if variant::<Purpose>(hello.purpose) != Some(Purpose::Join) {
                    count(&nic.tally.rejoined, 1);
                    nic.tell(Event::Attached(&member));
                }
                self.phase = phase;
                self.widen(if let Phase::Queue(_) = self.phase { INPUT } else { CONTROL_INPUT });
                self.welcome(nic, Verdict::Welcome, Some(&member));
                Ok(true)
            }
            Err(verdict) => self.refuse(nic, verdict),
        }
    }

    fn refuse(&mut self, nic: &Nic, verdict: Verdict) -> Result<bool, Goodbye> {
        count(&nic.tally.refused_hellos, 1);
        nic.tell(Event::Refused(self.about.peer, Refused::Verdict(verdict)));
        self.welcome(nic, verdict, None);
        self.phase = Phase::Closing;
        Ok(false)
    }

    fn welcome(&mut self, nic: &Nic, verdict: Verdict, member: Option<&Member>) {
        let path: &[u8] = if verdict == Verdict::Welcome { &self.about.path } else { &[] };
        let (address, port) = match self.about.own_end {
            Some(end) => (ipv6_octets(end.ip()), end.port()),
            None => ([0; 16], 0),
        };
        let welcome = Welcome {
            magic: MAGIC,
            version: VERSION.into(),
            verdict: verdict as u8,
            zero: [0; 3],
            path_len: (path.len() as u16).into(),
            owner: member.map_or(0, Member::owner).into(),
            secret: member.map_or([0; 16], |member| member.secret),
            incarnation: nic.incarnation.into(),
            lend: nic.lending.limit().into(),
            free: (nic.lending.limit() - nic.lending.lent().min(nic.lending.limit())).into(),
            address,
            port: port.into(),
            offers: if nic.card.is_some() { OFFERS_RDMA } else { 0 },
            zero_last: [0; 5],
        };
        self.output.bytes(welcome.as_bytes());
        self.output.bytes(path);
    }

    fn answer(&mut self, nic: &Nic, now_ns: u64) -> Result<bool, Goodbye> {
        let Phase::Control(control) = &self.phase else { return Ok(false) };
        let member = Arc::clone(&control.member);
        let Some(request) = self.take::<Request>() else { return Ok(false) };
        let Some(ask) = variant::<Ask>(request.ask) else { return Err(Goodbye::Broken(Broken::Control)) };
        if request.zero != [0; 7] {
            return Err(Goodbye::Broken(Broken::Control));
        }
        let said = member.presence.lock().answered;
        if let Some(said) = said.filter(|said| said.number == request.number) {
            self.output.bytes(said.as_bytes());
            return Ok(true);
        }
        let mut answer = Answer {
            status: Status::Done as u8,
            zero: [0; 7],
            number: request.number,
            value: 0.into(),
            secret: [0; 16],
        };
        let mut passed = None;
        match ask {
            Ask::Grant => match nic.grant(&member) {
                Ok(slab) => {
                    answer.value = slab.id.0.into();
                    passed = self.about.local.then_some(Passed::Slab(slab));
                }
                Err((status, value)) => (answer.status, answer.value) = (status as u8, value.into()),
            },
            Ask::Release => answer.status = nic.release(&member, SlabId(request.slab.get())) as u8,
            Ask::Ticket => match nic.ticket(&member, now_ns) {
                Ok(secret) => {
                    answer.secret = secret;
                    passed = self.open().map(Passed::Stream);
                }
                Err(status) => answer.status = status as u8,
            },
            Ask::EndRun => nic.end_run(&request.detail),
            Ask::Discard => answer.status = nic.discard(&member, SlabId(request.slab.get()), &request.detail) as u8,
            Ask::Back => {
                if let Err((status, error)) = nic.back(&member, SlabId(request.slab.get()), &request.detail) {
                    (answer.status, answer.value) = (status as u8, (error as u64).into());
                }
            }
            Ask::Again => match member.slab(SlabId(request.slab.get())) {
                Some(slab) => passed = self.about.local.then_some(Passed::Slab(slab)),
                None => answer.status = Status::NotHeld as u8,
            },
            Ask::Unit => match nic.unit(&member, Key(request.slab.get()), &request.detail, self.about.local) {
                Ok(file) => passed = Some(Passed::Unit(file)),
                Err((status, error)) => (answer.status, answer.value) = (status as u8, (error as u64).into()),
            },
            Ask::Window => match nic.make_window(&member) {
                Ok(key) => answer.value = key.0.into(),
                Err(status) => answer.status = status as u8,
            },
            Ask::DropWindow => {
                answer.status = nic.drop_window(&member, Key(request.slab.get())) as u8;
                nic.drained();
            }
            Ask::Who => match u16::try_from(request.slab.get()).ok().and_then(|owner| nic.who(owner)) {
                Some(who) => {
                    answer.value = (who.pid as u64).into();
                    answer.secret[..8].copy_from_slice(&who.run.to_le_bytes());
                }
                None => answer.status = Status::NotHeld as u8,
            },
            Ask::Figure => match variant::<Figure>(request.slab.get()) {
                Some(figure) => answer.value = nic.figure(figure).into(),
                None => answer.status = Status::NotHeld as u8,
            },
            Ask::Expose => match nic.expose(&member, SlabId(request.slab.get())) {
                Ok(rkey) => answer.value = u64::from(rkey).into(),
                Err((status, error)) => (answer.status, answer.value) = (status as u8, (error as u64).into()),
            },
            Ask::ExposeWindow => match nic.expose_window(&member, Key(request.slab.get()), &request.detail) {
                Ok(value) => answer.value = value.into(),
                Err(status) => answer.status = status as u8,
            },
            Ask::Region | Ask::RegionSlab | Ask::RegionGrow | Ask::RegionRemove | Ask::RegionAt => {
                let slab = answer_of_regions(nic, &member, ask, &request, &mut answer);
                passed = slab.filter(|_| self.about.local).map(Passed::Slab);
            }
            Ask::Ping => {}
            Ask::Bye => {
                nic.part(&member, Leaving::Farewell);
                return Err(Goodbye::Done);
            }
        }
        member.presence.lock().answered = Some(answer);
        match passed {
            Some(passed) => self.output.passing(answer.as_bytes(), passed),
            None => self.output.bytes(answer.as_bytes()),
        }
        Ok(true)
    }

    /// One more connection to a peer on this machine; its end. `None` where none can be had.
    fn open(&mut self) -> Option<UnixStream> {
        let (ours, theirs) = self.about.local.then(UnixStream::pair)?.ok()?;
        self.opened.push(ours);
        Some(theirs)
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
        if self.output.backlog > 0 {
            let _section = nic.epochs.enter(self.shard);
            while self.output.backlog > 0 {
                match self.output.send_once(nic, &mut send) {
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

    /// The connection has closed. Returns its place in the table of connections: the caller keeps
    /// it while anything of the connection still takes a descriptor.
    pub fn close(self, nic: &Nic, why: Goodbye, now_ns: u64) -> Option<Place> {
        if let Goodbye::Broken(rule) = why {
            count(&nic.tally.broken_connections, 1);
            nic.tell(Event::Refused(self.about.peer, Refused::Broken(rule)));
        }
        let by_node = why == Goodbye::Done;
        match self.phase {
            Phase::Control(control) => nic.left(&control.member, true, by_node, now_ns),
            Phase::Queue(serving) => {
                let (member, queue, turn) = (*serving).ended();
                nic.detach(&member, queue, turn);
                nic.left(&member, false, by_node, now_ns);
            }
            Phase::Wire(wire) => {
                nic.cut_wire(&wire.member, wire.queue, wire.ours);
                nic.left(&wire.member, false, by_node, now_ns);
            }
            Phase::Hello | Phase::Closing => {}
        }
        self.place
    }
}

/// Answers what is asked of regions. The slab that a member on this machine is to map.
fn answer_of_regions(
    nic: &Nic,
    member: &Member,
    ask: Ask,
    request: &Request,
    answer: &mut Answer,
) -> Option<Arc<Slab>> {
    let (name, number) = (&request.detail, request.slab.get());
    match ask {
        Ask::RegionSlab | Ask::RegionGrow => match nic.region_slab(member, name, number, ask == Ask::RegionGrow) {
            Ok(slab) => {
                answer.value = slab.id.0.into();
                return Some(slab);
            }
            Err((status, value)) => (answer.status, answer.value) = (status as u8, value.into()),
        },
        Ask::RegionRemove => {
            let removed = RegionName::from_wire(*name).is_some_and(|name| nic.remove_region(name));
            answer.status = if removed { Status::Done } else { Status::NotHeld } as u8;
        }
        Ask::RegionAt => match nic.region_at(number) {
            Some(region) => {
                answer.value = (region.slabs | u64::from(region.owner) << 48).into();
                answer.secret = region.name.to_wire();
            }
            None => answer.status = Status::NotHeld as u8,
        },
        _ => match nic.open_region(member, name, number) {
            Ok(slabs) => answer.value = slabs.into(),
            Err(status) => answer.status = status as u8,
        },
    }
    None
}

fn ipv6_octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
