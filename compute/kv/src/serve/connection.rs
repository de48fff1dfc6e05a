//! A client's connection: bytes in, requests, replies in order, bytes out.

mod at_once;
mod begun;
pub use at_once::{Means, Run};
pub use begun::Begun;

use crate::command::long::{Given, Inlet, streams};
use crate::command::room::{CROWDED, EACH};
use crate::command::{Client, Replies, find, scripts};
use crate::layout::Hash;
use crate::resp::{Limits, Parser, Reply, Request};
use crate::serve::tls::Wire;
use crate::shard::Trouble;
use farmem_sys::epoll::Event;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes that a client may leave unread that has not given the password. How long one may be without
/// it, or in a handshake.
const GUEST: usize = 16 << 10;
const VISIT: Duration = Duration::from_secs(10);
/// Bytes that a client with subscriptions may leave unread. As redis, which has it as a setting.
const MESSAGES: usize = 32 << 20;
/// Commands of one connection that run side by side.
pub const AT_ONCE: usize = 128;
/// Bytes that are read at once.
const READ: usize = 64 << 10;
/// Reads of one connection, which may bring little each, before others have their turn.
const READS: u32 = 32;

/// The state that all connections share.
#[derive(Debug, Default)]
pub struct Shared {
    /// Bytes that clients make the front end hold: see [`crate::command::room`].
    pub held: Rc<Cell<usize>>,
    /// Into which a socket's bytes are read first.
    scratch: RefCell<Vec<u8>>,
}

/// See the module.
#[derive(Debug)]
pub struct Connection {
    /// The client.
    pub client: Rc<Client>,
    /// The socket.
    pub wire: Wire,
    /// Commands that were begun, in order.
    pub begun: VecDeque<Begun>,
    /// The request that comes next, if it had to wait.
    pub next: Option<Request>,
    /// The argument of that request, or of the next one, that was written as it came.
    pub given: Option<Given>,
    /// An argument that streams in.
    inlet: Option<Rc<Inlet>>,
    /// The events that epoll watches: reading, writing, the end of what the client sends.
    pub watched: (bool, bool, bool),
    parser: Parser,
    out: Vec<u8>,
    sent: usize,
    /// Messages that wait for the end of a reply that streams out.
    held: Vec<u8>,
    /// Bytes of replies that the client may leave unread before its requests wait.
    kept: usize,
    shared: Rc<Shared>,
    /// Its unread bytes, as they are counted among those of all.
    counted: usize,
    /// Since when nothing was read although as much is kept as may be.
    stuck: Option<Instant>,
    /// Its next request waits, because as much is kept as may be.
    stopped: bool,
    /// Since when it has been a guest.
    guest: Option<Instant>,
    /// Nothing more is read. The connection closes after the replies to earlier requests.
    ended: bool,
    /// The socket is of no more use.
    pub broken: bool,
    /// There may be bytes to read.
    pub readable: bool,
    /// Bytes have come since this was last looked at.
    pub filled: bool,
    /// Reads since others had their turn.
    reads: u32,
}

impl Connection {
    /// With a client that has just come.
    pub fn new(client: Rc<Client>, wire: Wire, kept: usize, shared: Rc<Shared>) -> Connection {
        Connection {
            client,
            wire,
            begun: VecDeque::new(),
            next: None,
            given: None,
            inlet: None,
            watched: (true, false, false),
            parser: Parser::default(),
            out: Vec::new(),
            sent: 0,
            held: Vec::new(),
            kept,
            shared,
            counted: 0,
            stuck: None,
            stopped: false,
            guest: None,
            ended: false,
            broken: false,
            readable: true,
            filled: false,
            reads: 0,
        }
    }

    fn unread(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Bytes that may be held for the client before its requests wait.
    fn most(&self) -> usize {
        match self.client.authenticated.get() {
            false => GUEST,
            true if self.is_in_long() || self.shared.held.get() > CROWDED => EACH,
            true => self.kept,
        }
    }

    /// Whether the client has left as much unread as may be held for it.
    fn is_full(&self) -> bool {
        self.unread() > self.most()
    }

    /// Whether its requests wait, because as much is held for it as may be.
    fn holds_back(&self) -> bool {
        self.unread() + self.client.gathered.get() > self.most()
    }

    /// Whether a reply is next that streams out.
    fn is_in_long(&self) -> bool {
        matches!(self.begun.front(), Some(Begun { reply: Some(Reply::Long(_)), .. }))
    }

    /// Whether the client has not taken all that it was sent.
    pub fn leaves_unread(&self) -> bool {
        self.unread() > 0
    }

    fn count(&mut self) {
        let unread = self.unread() + self.held.len();
        self.shared.held.set(self.shared.held.get() - self.counted + unread);
        self.client.unread.set(unread);
        self.counted = unread;
    }

    /// Whether it has still to show that it may give commands: by a handshake, or by the password.
    pub fn is_guest(&self) -> bool {
        !self.client.authenticated.get() || self.wire.is_in_handshake()
    }

    /// Whether the client has left its replies unread for too long, or has been a guest for too long.
    /// Its connection is of no more use then.
    pub fn gives_up(&mut self, now: Instant, patience: Duration) -> bool {
        if !self.is_guest() {
            self.guest = None;
        } else if !self.broken && now.duration_since(*self.guest.get_or_insert(now)) >= VISIT {
            self.broken = true;
            return true;
        }
        if !self.is_full() || self.broken {
            self.stuck = None;
            return false;
        }
        self.broken = now.duration_since(*self.stuck.get_or_insert(now)) >= patience;
        self.broken
    }

    /// The next request. Reads from the socket if need be.
    pub fn request(&mut self) -> Option<Request> {
        self.stopped = self.holds_back();
        if self.stopped || self.client.closing.get() {
            return None;
        }
        if let Some(request) = self.next.take() {
            return Some(request);
        }
        loop {
            if self.broken {
                return None;
            }
            if self.inlet.is_some() && !self.stream_in() {
                return None;
            }
            let limits = match (self.client.authenticated.get(), self.client.collects()) {
                (false, _) => &Limits::GUEST,
                (true, true) => &Limits::COLLECTED,
                (true, false) => &Limits::STORE,
            };
            match self.parser.next(limits) {
                Ok(Some(request)) => return Some(request),
                Ok(None) => {
                    if let Some((request, len)) = self.parser.streams().filter(|(_, len)| *len > 0) {
                        self.inlet = Some(Rc::new(Inlet::new(&request[1], len)));
                        return None;
                    }
                }
                Err(wrong) => {
                    // After what was asked before.
                    self.answer_last(Reply::Error(format!("ERR {wrong}")));
                    self.client.closing.set(true);
                    return None;
                }
            }
            if !self.readable || self.ended || self.reads >= READS {
                return None;
            }
            self.fill();
        }
    }

    /// The argument that streams in, if its task is to begin.
    pub fn inlet(&self) -> Option<Rc<Inlet>> {
        self.inlet.as_ref().filter(|inlet| Rc::strong_count(inlet) == 1 && inlet.is_new()).cloned()
    }

    /// Whether something streams in or out.
    pub fn streams(&self) -> bool {
        self.inlet.is_some() || self.begun.iter().any(|begun| matches!(begun.reply, Some(Reply::Long(_))))
    }

    /// Whether an argument that streams in can go on.
    pub fn can_go_on(&self) -> bool {
        let held_up = self.holds_back() || self.next.is_some() || self.begun.len() >= AT_ONCE;
        let has_bytes = self.readable || self.parser.waiting() > 0;
        !held_up && self.inlet.as_ref().is_some_and(|inlet| inlet.is_ready() && (has_bytes || inlet.left() == 0))
    }

    /// Hands on bytes of an argument that streams in; whether all are there and written.
    fn stream_in(&mut self) -> bool {
        while let Some(inlet) = &self.inlet {
            if let Some(written) = inlet.take() {
                let place = self.parser.streams().and_then(|(request, _)| streams(&request[0]));
                self.given = Some((place.unwrap_or(0), written));
                self.inlet = None;
                return true;
            }
            if inlet.left() == 0 || inlet.is_full() {
                return false;
            }
            let bytes = self.parser.take();
            if !bytes.is_empty() {
                inlet.push(bytes);
                continue;
            }
            if !self.readable || self.ended || self.broken || self.reads >= READS {
                return false;
            }
            self.fill();
        }
        true
    }

    /// The key of the transaction that a request ends; the hash of its own or the transaction's
    /// only key; and whether it changes that key.
    pub fn concerns(&self, request: &Request, known: &scripts::Scripts) -> (Option<Vec<u8>>, (Option<u64>, bool)) {
        if request[0].eq_ignore_ascii_case(b"exec") && self.client.collects() {
            let only = self.client.only_key();
            let hash = only.as_ref().map(|key| Hash::of(key).0);
            return (only, (hash, true));
        }
        if scripts::is_run(request) && !self.client.collects() {
            let hash = known.only_key(request).map(|key| Hash::of(key).0);
            return (None, (hash, true));
        }
        (
            None,
            match find(&request[0]) {
                // A collected command waits only for earlier requests.
                Some(_) if self.client.collects() => (None, false),
                Some(command) if command.keys == (1, 1, 1) && request.len() > 1 => {
                    (Some(Hash::of(&request[1]).0), command.writes)
                }
                Some(command) => (None, command.writes),
                None => (None, false),
            },
        )
    }

    /// Whether a command has to wait for one that this connection began before.
    pub fn clashes(&self, key: Option<u64>, writes: bool) -> bool {
        let mut open = self.begun.iter().filter(|begun| begun.reply.is_none());
        match key {
            None => open.next().is_some(),
            Some(key) => open.any(|begun| begun.key.is_none() || begun.key == Some(key) && (writes || begun.writes)),
        }
    }

    /// Has its next turn begin; whether the one before ended with more to be read.
    pub fn ends_turn(&mut self) -> bool {
        std::mem::take(&mut self.reads) >= READS && self.readable && !self.broken
    }

    fn fill(&mut self) {
        self.reads += 1;
        let mut bytes = self.shared.scratch.borrow_mut();
        bytes.resize(READ, 0);
        match self.wire.read(&mut bytes) {
            Ok(0) => (self.ended, self.readable) = (true, false),
            Ok(n) => {
                (self.readable, self.filled) = (n == READ || !self.wire.is_emptied_by_a_short_read(), true);
                self.parser.feed(&bytes[..n]);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => self.readable = false,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => self.broken = true,
        }
        self.tell_client();
    }

    /// Lets a command under way know when the client is gone. At once: it may take an element before
    /// the connection is flushed.
    fn tell_client(&self) {
        if self.ended || self.broken {
            self.client.gone.set(true);
        }
    }

    /// Takes notice of an event of its socket. A client that goes while nothing is read is seen here.
    pub fn happened(&mut self, event: Event) {
        self.readable |= event.readable;
        if !self.watched.0 {
            self.broken |= event.broken;
            self.client.gone.set(self.client.gone.get() || event.ended);
        }
    }

    /// Whether its next request waited, and need not any more. Its bytes may have been read: then no
    /// event of its socket comes that would have it go on.
    pub fn goes_on(&mut self) -> bool {
        let goes_on = self.stopped && !self.holds_back();
        self.stopped &= !goes_on;
        goes_on
    }

    /// Moves replies that are next in order to what is sent.
    pub fn collect(&mut self) {
        let version = self.client.version.get();
        while let Some(Begun { reply: Some(reply), .. }) = self.begun.front_mut() {
            if self.client.replies.get() != Replies::On && matches!(reply, Reply::Long(_)) {
                // It is not read any further.
                *reply = Reply::Silence;
            }
            if !self.stream_out() {
                break;
            }
            let Some(reply) = self.begun.pop_front().and_then(|begun| begun.reply) else { continue };
            let (sent, next) = self.client.replies.get().next();
            self.client.replies.set(next);
            // Messages and subscriptions are told of in any case, as redis does.
            if sent || matches!(reply, Reply::Push(_) | Reply::Several(_)) {
                reply.write(version, &mut self.out);
            }
        }
        // Behind all replies that are there: one of them may be to the subscription.
        if !self.is_in_long() {
            self.out.append(&mut self.held);
        }
        self.count();
    }

    /// Moves what is there of a reply that streams out; whether that is all, or it is no such one.
    fn stream_out(&mut self) -> bool {
        let Some(Begun { reply: Some(Reply::Long(outlet)), .. }) = self.begun.front() else { return true };
        let outlet = Rc::clone(outlet);
        if outlet.begins() {
            Reply::Long(Rc::clone(&outlet)).write(self.client.version.get(), &mut self.out);
        }
        while self.out.len() - self.sent < EACH
            && let Some(bytes) = outlet.take()
        {
            self.out.extend_from_slice(&bytes);
        }
        self.broken |= outlet.has_failed();
        if outlet.is_over() {
            self.out.extend_from_slice(b"\r\n");
        }
        let over = outlet.is_over() || self.broken;
        if over && let Some(begun) = self.begun.front_mut() {
            begun.reply = Some(Reply::Silence);
        }
        over
    }

    /// Sends the client a message. One that leaves too many unread is cut off.
    pub fn push(&mut self, message: Reply) {
        if self.client.closing.get() || self.broken {
            return;
        }
        if self.is_in_long() {
            message.write(self.client.version.get(), &mut self.held);
        } else {
            message.write(self.client.version.get(), &mut self.out);
        }
        self.count();
        let most = if self.shared.held.get() > CROWDED { EACH } else { MESSAGES };
        if self.unread() + self.held.len() > most {
            self.flush();
        }
        if self.unread() + self.held.len() > most {
            self.broken = true;
            eprintln!(
                "farmem: client id={} addr={} closed for overcoming of output buffer limits: it does not read its \
                 messages",
                self.client.id, self.client.address
            );
        }
    }

    /// Answers the requests under way by an error: the front end can no longer carry them out.
    pub fn dismiss(&mut self) {
        for begun in &mut self.begun {
            begun.reply.get_or_insert_with(|| Reply::Error(Trouble::ShutOut.to_string()));
        }
        self.collect();
        self.flush();
    }

    /// Sends what the socket takes.
    pub fn flush(&mut self) {
        self.broken |= self.wire.drain().is_err_and(|e| e.kind() != ErrorKind::WouldBlock);
        while self.unread() > 0 && !self.broken {
            match self.wire.write(&self.out[self.sent..]) {
                Ok(n) => {
                    self.sent += n;
                    self.stuck = None;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.broken = true,
            }
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
            if self.out.capacity() > 4 * EACH {
                self.out = Vec::new();
            }
        } else if self.sent > EACH.max(self.out.len() / 2) {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        self.count();
        self.tell_client();
    }

    /// The events that epoll should watch: reading, writing, the end of what the client sends. A read
    /// shows that end itself.
    pub fn wants(&self) -> (bool, bool, bool) {
        let full = self.inlet.as_ref().is_some_and(|inlet| inlet.is_full() || inlet.left() == 0);
        let reads = !full && !self.holds_back() && !self.ended && self.begun.len() < AT_ONCE && self.next.is_none();
        // In a handshake the socket's room says nothing about when a reply can be sent.
        let writes = self.wire.is_unsent() || self.unread() > 0 && !self.wire.is_in_handshake();
        (reads, writes, !reads && !self.client.gone.get())
    }

    /// Whether the client is gone, or is to go.
    pub fn is_lost(&self) -> bool {
        self.client.gone.get() || self.broken || self.client.closing.get()
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        let answered = self.begun.is_empty() && self.unread() == 0 && !self.wire.is_unsent();
        let asked_to_end = self.client.closing.get() && answered;
        self.broken && self.begun.is_empty() || asked_to_end || self.ended && answered && self.next.is_none()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.held.set(self.shared.held.get() - self.counted);
    }
}
