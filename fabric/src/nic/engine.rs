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
//! Bounded: the input buffer is fixed; when the output backs up, input waits,
//! and with it, through TCP, the host.

// Naming the bytes of slabs and buffers for scattered transfers.
#![allow(unsafe_code)]

use super::lending::Slab;
use super::{Member, Nic, QueueTurn, count};
use farmem_protocol::addr::SlabId;
use farmem_protocol::lines::{MAX_RECORD_BYTES, Record};
use farmem_protocol::wire::{
    Answer, Ask, Batch, Broken, Completion, Hello, MAGIC, MAX_VERBS, Op, Purpose, Request, Status, VERSION, Verb,
    Verdict, Welcome,
};
use farmem_sys::raw::Errno;
use farmem_sys::socket::Part;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Input buffered, at most: more than the largest head of a batch, and enough for one receive.
const INPUT: usize = 64 << 10;
// A record is looked at whole, and what is left of the input is moved to the front when half of it is used.
const _: () = assert!(MAX_RECORD_BYTES <= INPUT / 2);
/// Output backed up, at which input waits.
const BACKLOG: usize = 2 << 20;
/// Parts of one transfer out.
const PARTS: usize = 64;

/// What the node knows of a connection beside its bytes.
#[derive(Clone, Debug, Default)]
pub struct Circumstances {
    /// Through a Unix socket: descriptors can be passed.
    pub local: bool,
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
    /// Its business is done, or was refused; close when the output is empty.
    Done,
}

enum Phase {
    Hello,
    Control(Arc<Member>),
    Queue(Box<Serving>),
    Closing,
}

/// An attached queue pair.
struct Serving {
    member: Arc<Member>,
    queue: Arc<QueueTurn>,
    turn: u64,
    /// The batch being carried out, and how far.
    verbs: Vec<Verb>,
    at: usize,
    /// A WRITE whose operand has not all come.
    writing: Option<Writing>,
    number: u32,
}

struct Writing {
    /// None: refused; its bytes are dropped.
    slab: Option<Arc<Slab>>,
    status: Status,
    offset: u64,
    left: u32,
}

/// One connection.
pub struct Engine {
    phase: Phase,
    about: Circumstances,
    input: Box<[u8]>,
    start: usize,
    end: usize,
    output: Output,
}

impl Engine {
    /// A connection that was just accepted.
    pub fn new(about: Circumstances) -> Engine {
        Engine {
            phase: Phase::Hello,
            about,
            input: vec![0; INPUT].into_boxed_slice(),
            start: 0,
            end: 0,
            output: Output::default(),
        }
    }

    /// Whether the peer has not yet said who it is.
    pub fn is_stranger(&self) -> bool {
        matches!(self.phase, Phase::Hello)
    }

    /// Whether this is the connection of a member that is gone, and can be closed.
    pub fn is_orphan(&self) -> bool {
        match &self.phase {
            Phase::Hello | Phase::Closing => false,
            Phase::Control(member) => member.is_gone(),
            Phase::Queue(serving) => serving.member.is_gone(),
        }
    }

    /// Whether there is something to [`Engine::push`].
    pub fn has_output(&self) -> bool {
        self.output.backlog > 0
    }

    /// Whether input waits until output has gone.
    pub fn is_backed_up(&self) -> bool {
        self.output.backlog >= BACKLOG
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
        // The turn is held while bytes go to a slab and while verbs are carried out.
        let queue = match &self.phase {
            Phase::Queue(serving) => Some((Arc::clone(&serving.queue), serving.turn)),
            _ => None,
        };
        let held = queue.as_ref().map(|(queue, turn)| (queue.0.lock(), *turn));
        if held.as_ref().is_some_and(|(now, ours)| **now != *ours) {
            return Err(Goodbye::Done);
        }
        let n = match self.fill(receive) {
            Ok(0) => return Err(Goodbye::Cut),
            Ok(n) => n,
            Err(Errno(libc::EAGAIN)) => 0,
            Err(_) => return Err(Goodbye::Cut),
        };
        self.advance(nic, now_ns).map(|()| n)
    }

    fn fill(&mut self, receive: impl FnOnce(&[Part]) -> Result<usize, Errno>) -> Result<usize, Errno> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if INPUT - self.end < INPUT / 2 {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = Part::new(self.input[self.end..].as_mut_ptr(), INPUT - self.end);
        if room.len() == 0 {
            // Backed up: nothing is taken until output has gone.
            return Err(Errno(libc::EAGAIN));
        }
        if let Phase::Queue(serving) = &mut self.phase
            && let Some(writing) = &mut serving.writing
            && let Some(slab) = &writing.slab
            && self.start == self.end
            && let Some(at) = slab.mapping.at(writing.offset, writing.left as u64)
        {
            let straight = Part::new(at, writing.left as usize);
            let n = receive(&[straight, room])?;
            let direct = n.min(writing.left as usize);
            writing.offset += direct as u64;
            writing.left -= direct as u32;
            self.end += n - direct;
            return Ok(n);
        }
        let n = receive(&[room])?;
        self.end += n;
        Ok(n)
    }

    /// Carries out what is complete in the input.
    fn advance(&mut self, nic: &Nic, now_ns: u64) -> Result<(), Goodbye> {
        while self.output.backlog < BACKLOG && self.step(nic, now_ns)? {}
        Ok(())
    }

    /// One step; false when more input is needed.
    fn step(&mut self, nic: &Nic, now_ns: u64) -> Result<bool, Goodbye> {
        match &mut self.phase {
            Phase::Hello => self.greet(nic, now_ns),
            Phase::Control(_) => self.answer(nic, now_ns),
            Phase::Queue(serving) => {
                let input = &self.input[self.start..self.end];
                let used = serving.step(nic, input, &mut self.output).map_err(Goodbye::Broken)?;
                self.start += used.unwrap_or(0);
                Ok(used.is_some())
            }
            Phase::Closing => Err(Goodbye::Done),
        }
    }

    /// The next frame of type `T`, if it is there whole.
    fn take<T: FromBytes>(&mut self) -> Option<T> {
        let (frame, _) = T::read_from_prefix(&self.input[self.start..self.end]).ok()?;
        self.start += size_of::<T>();
        Some(frame)
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
        let local = self.about.local;
        let entered = match Purpose::of(hello.purpose) {
            _ if hello.zero != [0; 2] || hello.lasting > 1 => Err(Verdict::Malformed),
            Some(Purpose::Join) => nic.join(&hello, local, now_ns).map(|m| (m.secret, Phase::Control(m))),
            Some(Purpose::Rejoin) => nic.rejoin(&hello).map(|m| (m.secret, Phase::Control(m))),
            Some(Purpose::Attach) => nic.attach(&hello).map(|(member, queue, turn)| {
                let verbs = Vec::with_capacity(MAX_VERBS);
                let secret = member.secret;
                let serving = Serving { member, queue, turn, verbs, at: 0, writing: None, number: 0 };
                (secret, Phase::Queue(Box::new(serving)))
            }),
            None => Err(Verdict::Malformed),
        };
        match entered {
            Ok((secret, phase)) => {
                if Purpose::of(hello.purpose) != Some(Purpose::Join) {
                    count(&nic.tally.rejoined, 1);
                }
                self.phase = phase;
                self.welcome(nic, Verdict::Welcome, secret);
                Ok(true)
            }
            Err(verdict) => self.refuse(nic, verdict),
        }
    }

    fn refuse(&mut self, nic: &Nic, verdict: Verdict) -> Result<bool, Goodbye> {
        count(&nic.tally.refused_hellos, 1);
        self.welcome(nic, verdict, [0; 16]);
        self.phase = Phase::Closing;
        Ok(false)
    }

    fn welcome(&mut self, nic: &Nic, verdict: Verdict, secret: [u8; 16]) {
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
            zero_too: 0.into(),
            secret,
            incarnation: nic.incarnation.into(),
            lend: nic.lending.limit().into(),
            free: (nic.lending.limit() - nic.lending.lent().min(nic.lending.limit())).into(),
            address,
            port: port.into(),
            zero_last: [0; 6],
        };
        self.output.bytes(welcome.as_bytes());
        self.output.bytes(path);
    }

    fn answer(&mut self, nic: &Nic, now_ns: u64) -> Result<bool, Goodbye> {
        let Phase::Control(member) = &self.phase else { return Ok(false) };
        let member = Arc::clone(member);
        let Some(request) = self.take::<Request>() else { return Ok(false) };
        let Some(ask) = Ask::of(request.ask) else { return Err(Goodbye::Broken(Broken::Control)) };
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
                    passed = self.about.local.then_some(slab);
                }
                Err((status, value)) => (answer.status, answer.value) = (status as u8, value.into()),
            },
            Ask::Release => answer.status = nic.release(&member, SlabId(request.slab.get())) as u8,
            Ask::Ticket => match nic.ticket(&member, now_ns) {
                Ok(secret) => answer.secret = secret,
                Err(status) => answer.status = status as u8,
            },
            Ask::EndRun => nic.end_run(&request.detail),
            Ask::Discard => answer.status = nic.discard(&member, SlabId(request.slab.get()), &request.detail) as u8,
            Ask::Again => match member.slab(SlabId(request.slab.get())) {
                Some(slab) => passed = self.about.local.then_some(slab),
                None => answer.status = Status::NotHeld as u8,
            },
            Ask::Ping => {}
            Ask::Bye => {
                nic.part(&member);
                return Err(Goodbye::Done);
            }
        }
        member.presence.lock().answered = Some(answer);
        match passed {
            Some(slab) => self.output.passing(answer.as_bytes(), slab),
            None => self.output.bytes(answer.as_bytes()),
        }
        Ok(true)
    }

    /// Gives output to `send`, until there is none or it takes no more. `send` gets the parts and
    /// the descriptor to pass along the first of them, if any, and says how many bytes it took.
    ///
    /// # Errors
    /// [`Goodbye::Done`] when a refused peer has its answer.
    pub fn push(&mut self, mut send: impl FnMut(&[Part], Option<i32>) -> Result<usize, Errno>) -> Result<(), Goodbye> {
        while self.output.backlog > 0 {
            match self.output.send_once(&mut send) {
                Ok(()) => {}
                Err(Errno(libc::EAGAIN)) => return Ok(()),
                Err(_) => return Err(Goodbye::Cut),
            }
        }
        if let Phase::Closing = self.phase { Err(Goodbye::Done) } else { Ok(()) }
    }

    /// The connection has closed, by whomever.
    pub fn close(self, nic: &Nic, why: Goodbye, now_ns: u64) {
        if let Goodbye::Broken(_) = why {
            count(&nic.tally.broken_connections, 1);
        }
        match &self.phase {
            Phase::Control(member) => nic.left(member, true, now_ns),
            Phase::Queue(serving) => nic.left(&serving.member, false, now_ns),
            Phase::Hello | Phase::Closing => {}
        }
    }
}

impl Serving {
    /// Does the next piece of work with what `input` has. Returns how much of it was used; `None`
    /// when it is not enough.
    fn step(&mut self, nic: &Nic, input: &[u8], output: &mut Output) -> Result<Option<usize>, Broken> {
        if let Some(writing) = &mut self.writing {
            let n = writing.take(input);
            if writing.left > 0 {
                return Ok(if n > 0 { Some(n) } else { None });
            }
            let status = writing.status;
            self.writing = None;
            self.complete(output, status, 0);
            return Ok(Some(n));
        }
        if self.at == self.verbs.len() {
            return self.begin(input);
        }
        let verb = self.verbs[self.at];
        let (op, len) = verb.shape()?;
        let slab = self.member.slab(SlabId(verb.slab.get()));
        let offset = verb.offset.get();
        let status = match &slab {
            None => Status::NotHeld,
            Some(slab) if slab.mapping.at(offset, len as u64).is_none() => Status::Range,
            Some(_) => Status::Done,
        };
        if status != Status::Done {
            count(&nic.tally.refused_verbs, 1);
        }
        match op {
            Op::Read => {
                count(&nic.tally.reads, 1);
                count(&nic.tally.read_bytes, len as u64);
                self.complete(output, status, 0);
                match slab.filter(|_| status == Status::Done) {
                    Some(slab) => output.slab(slab, offset, len),
                    None => output.zeros(len),
                }
                Ok(Some(0))
            }
            Op::Write => {
                count(&nic.tally.writes, 1);
                count(&nic.tally.write_bytes, len as u64);
                let slab = slab.filter(|_| status == Status::Done);
                self.writing = Some(Writing { slab, status, offset, left: len });
                Ok(Some(0))
            }
            Op::Lines => {
                // Whole before any of it is applied: a torn record changes nothing.
                let Some(bytes) = input.get(..len as usize) else { return Ok(None) };
                let record = Record::check(SlabId(verb.slab.get()), bytes)?;
                count(&nic.tally.records, 1);
                count(&nic.tally.record_bytes, len as u64);
                let applied = match slab.filter(|_| status == Status::Done) {
                    Some(slab) => record.runs().all(|(offset, bytes)| slab.mapping.write_bytes(offset, bytes)),
                    None => true,
                };
                self.complete(output, if applied { status } else { Status::Range }, 0);
                Ok(Some(len as usize))
            }
            Op::Cas => {
                let Some([expected, new]) = operands(input) else { return Ok(None) };
                count(&nic.tally.cas, 1);
                let old = slab.and_then(|s| s.mapping.cas(offset, expected, new));
                self.atomic(output, status, old);
                Ok(Some(16))
            }
            Op::Faa => {
                let Some([add]) = operands(input) else { return Ok(None) };
                count(&nic.tally.faa, 1);
                let old = slab.and_then(|s| s.mapping.faa(offset, add));
                self.atomic(output, status, old);
                Ok(Some(8))
            }
        }
    }

    /// The head of a batch and its verbs.
    fn begin(&mut self, input: &[u8]) -> Result<Option<usize>, Broken> {
        let Ok((batch, rest)) = Batch::read_from_prefix(input) else { return Ok(None) };
        let n = batch.verbs()?;
        let Ok((verbs, _)) = <[Verb]>::ref_from_prefix_with_elems(rest, n) else { return Ok(None) };
        batch.check(verbs)?;
        if batch.first.get() as u32 != self.number {
            return Err(Broken::Step);
        }
        self.verbs.clear();
        self.verbs.extend_from_slice(verbs);
        self.at = 0;
        Ok(Some(size_of::<Batch>() + n * size_of::<Verb>()))
    }

    fn atomic(&mut self, output: &mut Output, status: Status, old: Option<u64>) {
        match (status, old) {
            (Status::Done, None) => self.complete(output, Status::Range, 0),
            (status, old) => self.complete(output, status, old.unwrap_or(0)),
        }
    }

    fn complete(&mut self, output: &mut Output, status: Status, value: u64) {
        let done = Completion { number: self.number.into(), status: status as u8, zero: [0; 3], value: value.into() };
        output.bytes(done.as_bytes());
        self.number = self.number.wrapping_add(1);
        self.at += 1;
    }
}

impl Writing {
    /// Takes operand bytes from the input. Returns how many.
    fn take(&mut self, input: &[u8]) -> usize {
        let n = input.len().min(self.left as usize);
        if let Some(slab) = &self.slab {
            // SAFETY: the source is `n` bytes of the input buffer, which is no slab.
            unsafe { slab.mapping.write(self.offset, input.as_ptr(), n as u32) };
            // Inside the slab. A refused WRITE's offset may be anything, and is not counted on.
            self.offset += n as u64;
        }
        self.left -= n as u32;
        n
    }
}

/// The operands of an atomic verb, if they have come.
fn operands<const N: usize>(input: &[u8]) -> Option<[u64; N]> {
    let (words, _) = <[[u8; 8]; N]>::read_from_prefix(input).ok()?;
    Some(words.map(u64::from_le_bytes))
}

fn ipv6_octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Bytes on their way out, in order: own bytes, bytes of slabs, zeros.
#[derive(Default)]
struct Output {
    own: Vec<u8>,
    /// Where `own` begins in the stream of own bytes; what lies before has been sent.
    base: usize,
    pieces: VecDeque<Piece>,
    backlog: usize,
}

enum Piece {
    /// Own bytes, by their place in the stream of them.
    Own {
        from: usize,
        len: usize,
    },
    /// Own bytes, with a slab's descriptor along the first.
    Passing {
        from: usize,
        len: usize,
        slab: Arc<Slab>,
    },
    Slab {
        slab: Arc<Slab>,
        offset: u64,
        len: usize,
    },
    Zeros {
        len: usize,
    },
}

static ZEROS: [u8; 4096] = [0; 4096];

impl Output {
    fn bytes(&mut self, bytes: &[u8]) {
        let end = self.base + self.own.len();
        self.own.extend_from_slice(bytes);
        self.backlog += bytes.len();
        match self.pieces.back_mut() {
            Some(Piece::Own { from, len }) if *from + *len == end => *len += bytes.len(),
            _ if bytes.is_empty() => {}
            _ => self.pieces.push_back(Piece::Own { from: end, len: bytes.len() }),
        }
    }

    fn passing(&mut self, bytes: &[u8], slab: Arc<Slab>) {
        let from = self.base + self.own.len();
        self.own.extend_from_slice(bytes);
        self.backlog += bytes.len();
        self.pieces.push_back(Piece::Passing { from, len: bytes.len(), slab });
    }

    fn slab(&mut self, slab: Arc<Slab>, offset: u64, len: u32) {
        if len > 0 {
            self.backlog += len as usize;
            self.pieces.push_back(Piece::Slab { slab, offset, len: len as usize });
        }
    }

    fn zeros(&mut self, len: u32) {
        if len > 0 {
            self.backlog += len as usize;
            self.pieces.push_back(Piece::Zeros { len: len as usize });
        }
    }

    /// Offers the first pieces to `send` and takes off what it took.
    fn send_once(&mut self, send: &mut impl FnMut(&[Part], Option<i32>) -> Result<usize, Errno>) -> Result<(), Errno> {
        let mut parts = [Part::new(std::ptr::null_mut(), 0); PARTS];
        let mut n = 0;
        let mut descriptor = None;
        for piece in &self.pieces {
            if n == PARTS {
                break;
            }
            match piece {
                Piece::Own { from, len } => {
                    parts[n] = Part::new(self.own[*from - self.base..].as_ptr() as *mut u8, *len)
                }
                Piece::Passing { from, len, slab } => {
                    // It goes alone: nothing before it, nothing behind.
                    if n > 0 {
                        break;
                    }
                    parts[0] = Part::new(self.own[*from - self.base..].as_ptr() as *mut u8, *len);
                    descriptor = Some(slab.fd());
                    n = 1;
                    break;
                }
                Piece::Slab { slab, offset, len } => match slab.mapping.at(*offset, *len as u64) {
                    Some(at) => parts[n] = Part::new(at, *len),
                    None => return Err(Errno(libc::EFAULT)),
                },
                Piece::Zeros { len } => parts[n] = Part::new(ZEROS.as_ptr() as *mut u8, (*len).min(ZEROS.len())),
            }
            n += 1;
            // Only the first page of zeros is offered: what follows it may not be named before it is gone.
            if matches!(piece, Piece::Zeros { len } if *len > ZEROS.len()) {
                break;
            }
        }
        let mut sent = send(&parts[..n], descriptor)?;
        self.backlog -= sent.min(self.backlog);
        while sent > 0 {
            let Some(front) = self.pieces.front_mut() else { break };
            let len = match front {
                Piece::Own { len, .. }
                | Piece::Passing { len, .. }
                | Piece::Slab { len, .. }
                | Piece::Zeros { len } => *len,
            };
            if sent >= len {
                sent -= len;
                self.pieces.pop_front();
                continue;
            }
            match front {
                Piece::Own { from, len } => (*from, *len) = (*from + sent, *len - sent),
                Piece::Passing { from, len, .. } => *front = Piece::Own { from: *from + sent, len: *len - sent },
                Piece::Slab { offset, len, .. } => (*offset, *len) = (*offset + sent as u64, *len - sent),
                Piece::Zeros { len } => *len -= sent,
            }
            sent = 0;
        }
        self.forget_sent();
        Ok(())
    }

    /// Drops own bytes that were sent: all at once when nothing waits, else now and then, since a
    /// host that never lets its pipeline run dry would have them pile up.
    fn forget_sent(&mut self) {
        let unsent = self.pieces.iter().find_map(|piece| match piece {
            Piece::Own { from, .. } | Piece::Passing { from, .. } => Some(*from),
            _ => None,
        });
        let sent = unsent.map_or(self.own.len(), |from| from - self.base);
        if sent == self.own.len() || sent >= BACKLOG / 32 {
            self.own.drain(..sent);
            self.base += sent;
        }
    }
}
