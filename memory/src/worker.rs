//! Worker threads: each serves its share of the connections.
//!
//! ```text
//!         ┌──── nothing came for the time that farmem_sys::spin has learned ┐
//!         ▼                                                                 │
//!   sleep in epoll ── something came ─► serve it ─► look again at the connections served last,
//!                                            ▲      without asking epoll; at epoll now and then
//!                                            └──────────── something came ──┘
//! ```
//!
//! A host that faults, thinks for some microseconds and faults again finds the worker awake: its
//! READ is taken by the very next look. Between looks the worker yields its CPU, because the host
//! may run on the same one.
//!
//! A connection's *token* is the number by which epoll reports it. It has nothing to do with tokens
//! that permit borrowing.

// The parts that engines name are passed to the sockets.
#![allow(unsafe_code)]

mod newcomers;

use crate::StartError;
use crate::hot::Hot;
use crate::listen::Listener;
use crate::trim::Trim;
use crate::turns::Turns;
use farmem_nic::Nic;
use farmem_nic::engine::{Circumstances, Engine, Goodbye};
use farmem_nic::events::Refused;
use farmem_nic::shares::Place;
use farmem_sys::epoll::{Epoll, Event, Waker};
use farmem_sys::raw::{Errno, now_ns, thread_cpu_ns, yield_cpu};
use farmem_sys::socket;
use farmem_sys::spin::Spin;
use farmem_sys::sync::Lock;
use std::collections::VecDeque;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// How long a worker looks at the hot connections alone before it asks epoll, ns. About thirty
/// looks that find nothing fit in, or one that serves a stream.
const ASK_NS: u64 = 20_000;
/// How often a worker looks for connections that have overstayed, in milliseconds.
const SWEEP_MS: i32 = 250;
/// How often a busy worker does a piece of the node's own work (`Nic::keep`: drains, scrubs), ns.
const KEEP_NS: u64 = 1_000_000;
/// The number of units waiting to be scrubbed at which another worker is woken to help. Units that
/// a worker scrubs already do not count. Scrubbing them takes a core 2 to 3 ms.
const HELP: usize = 8;
/// How long a worker sleeps at most while the node's own work waits for a drain, in milliseconds.
const DRAIN_MS: i32 = 1;
/// Pieces of one connection's answers that are sent before others are served: some hundred KiB.
const IN_PIECES: usize = 8;
/// How often a worker looks whether a peer has taken the descriptor that was passed to it, in
/// milliseconds.
const PASS_MS: i32 = 5;
/// How long a connection may take to say who it is, ns.
const STRANGER_NS: u64 = 10_000_000_000;
/// The most connections without a Hello at a node; each worker may have an equal part. One more
/// makes the worker close one: the oldest of the peer that has most.
const STRANGERS: usize = 256;
/// The most connections on their way to a worker. One more closes the oldest.
const WAITING: usize = 256;
/// The most connections that are taken from a listener before other connections are served.
const TOGETHER: usize = 64;
/// Bytes that a connection is sent in one turn, while several tenants are there.
const TURN_BYTES: usize = 32 << 10;
/// How long a TCP peer may be silent on the wire before its connection ends, in milliseconds.
const SILENT_MS: u32 = 15_000;
/// How long a TCP connection may be idle before the kernel asks whether its peer is there, in
/// seconds.
const IDLE_S: i32 = 2;

const WAKER: u64 = u64::MAX;
const LISTENERS: u64 = 1 << 32;

/// All workers of a node.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    nic: Arc<Nic>,
    stop: AtomicBool,
    strangers: AtomicUsize,
    inboxes: Vec<Inbox>,
}

/// Connections on their way to a worker.
struct Inbox {
    waker: Waker,
    /// The worker was called to help with `Nic::keep`, and has not woken yet.
    called: AtomicBool,
    accepted: Lock<VecDeque<(OwnedFd, Circumstances)>>,
}

impl Workers {
    /// Starts as many workers as there are CPUs, four at most: a node leaves CPUs to its machine's
    /// own programs.
    pub fn start(nic: &Arc<Nic>, listeners: Vec<Listener>) -> Result<Workers, StartError> {
        let n = std::thread::available_parallelism().map_or(1, |n| n.get().min(4));
        let inboxes = (0..n)
            .map(|_| {
                Ok(Inbox { waker: Waker::new()?, called: AtomicBool::new(false), accepted: Lock::new(VecDeque::new()) })
            })
            .collect::<Result<Vec<_>, StartError>>()?;
        let shared = Arc::new(Shared {
            nic: Arc::clone(nic),
            stop: AtomicBool::new(false),
            strangers: AtomicUsize::new(0),
            inboxes,
        });
        let mut workers = Workers { shared: Arc::clone(&shared), threads: Vec::new() };
        let mut listeners = Some(listeners);
        for index in 0..n {
            let worker = Worker::new(Arc::clone(&shared), index, listeners.take().unwrap_or_default())?;
            let name = format!("worker {index}");
            let thread = std::thread::Builder::new().name(name).spawn(move || worker.run());
            workers.threads.push(thread.map_err(StartError::System)?);
        }
        Ok(workers)
    }

    /// The number of connections. One that has ended counts until its peer has taken the descriptor
    /// that it was sent, or has closed its end.
    pub fn connections(&self) -> usize {
        self.shared.nic.connections.taken() + self.shared.strangers.load(Ordering::Relaxed)
    }

    /// Ends all workers and closes all connections.
    pub fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.inboxes.iter().for_each(|inbox| inbox.waker.wake());
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so.
            let _ = thread.join();
        }
    }
}

struct Connection {
    socket: OwnedFd,
    engine: Engine,
    since_ns: u64,
    /// The events that epoll watches for: input, output.
    watched: (bool, bool),
    /// A descriptor was sent, and the peer may not have taken it yet.
    passed: bool,
    /// Output waits until the peer has taken a descriptor. epoll does not tell when it has: the
    /// socket has room all the time.
    held_up: bool,
    /// Its class in the worker's `turns`. `None`: it has not said who it is.
    class: Option<usize>,
    /// Input in the engine waited for output to be sent, and that was sent. No event of the socket
    /// tells of it, so the worker serves the connection again by itself.
    goes_on: bool,
    /// Its tenant is ahead of its rate. The connection waits, and epoll does not watch it.
    put_off: bool,
    /// Bytes moved that are not yet counted against its tenant's rate.
    moved: u64,
}

struct Worker {
    shared: Arc<Shared>,
    index: usize,
    epoll: Epoll,
    listeners: Vec<Listener>,
    /// Listeners that are not watched until the next sweep, because no descriptor is left for
    /// another connection.
    deaf: Vec<usize>,
    /// The node's Unix socket, to be told to peers on this machine.
    path: Option<PathBuf>,
    /// By token. Places of closed connections are used again.
    connections: Vec<Option<Connection>>,
    hot: Hot,
    turns: Turns,
    trim: Trim,
    /// Tokens of connections that are served without an event. Either the peer must take a
    /// descriptor before it is sent more (`held_up`), or the input goes on (`goes_on`).
    unasked: Vec<usize>,
    /// Connections that have ended with a descriptor in transit, which cannot be called back. Each
    /// counts as a connection until the peer has taken it, or has closed its own end. Otherwise a
    /// peer that ends one connection after the other could have any number in transit.
    lingering: Vec<(UnixStream, Option<Place>)>,
    /// Tokens of connections that have not said who they are, the oldest first.
    strangers: Vec<usize>,
    next_worker: usize,
}

impl Worker {
    fn new(shared: Arc<Shared>, index: usize, listeners: Vec<Listener>) -> Result<Worker, StartError> {
        let epoll = Epoll::new()?;
        epoll.add(shared.inboxes[index].waker.fd(), WAKER, true, false)?;
        for (i, listener) in listeners.iter().enumerate() {
            epoll.add(listener.as_raw_fd(), LISTENERS + i as u64, true, false)?;
        }
        let path = listeners.iter().find_map(Listener::path).and_then(|path| std::path::absolute(path).ok());
        let (connections, unasked, lingering, strangers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Ok(Worker {
            shared,
            index,
            epoll,
            listeners,
            deaf: Vec::new(),
            path,
            connections,
            hot: Hot::default(),
            turns: Turns::default(),
            trim: Trim::default(),
            unasked,
            lingering,
            strangers,
            next_worker: 0,
        })
    }

    fn run(mut self) {
        let mut events = Vec::new();
        let (mut active_ns, mut swept_ns) = (0, now_ns());
        let (mut asked_ns, mut kept_ns) = (0, 0);
        // The node's own work went on, and nothing came: the next round does not sleep.
        let mut goes_on = false;
        let mut spin = Spin::new();
        while !self.shared.stop.load(Ordering::Relaxed) {
            let mut now = now_ns();
            let spinning = spin.looks_on(now.saturating_sub(active_ns));
            let mut came = false;
            // While several tenants ask, their connections are served only in turns.
            let crowded = self.turns.crowded(now);
            if spinning && !crowded {
                came = self.look_at_hot(now);
            }
            // epoll is asked even while every look finds something: connections that are not hot
            // wait for it.
            if crowded || !spinning || now.saturating_sub(asked_ns) > ASK_NS {
                asked_ns = now;
                // Worker 0 wakes for sweeps even without connections: it looks after absent
                // members.
                let minds = self.connections.iter().any(Option::is_some) || !self.lingering.is_empty();
                let idle = if self.index == 0 || minds { SWEEP_MS } else { -1 };
                let idle = if self.unasked.is_empty() { idle } else { PASS_MS };
                let idle = if self.shared.nic.is_unkept() { DRAIN_MS } else { idle };
                let turn_ns = self.turns.next_in(now);
                let idle = turn_ns.map_or(idle, |ns| idle_until(idle, ns));
                let at_once = spinning || goes_on || turn_ns == Some(0);
                if self.epoll.wait(&mut events, if at_once { 0 } else { idle }).is_err() {
                    // A retry does not cure this. But ending the worker would lose the memory of a
                    // whole node.
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                now = now_ns();
                for event in &events {
                    came |= self.on(event, now);
                }
                for token in std::mem::take(&mut self.unasked) {
                    came |= self.serve_in_turn(token, now);
                }
                came |= self.take_turns(now);
                if now.saturating_sub(swept_ns) > SWEEP_MS as u64 * 1_000_000 {
                    swept_ns = now;
                    self.sweep(now);
                }
            }
            // The node's own work delays no verb. It is done when the worker is idle, and otherwise
            // at most every `KEEP_NS`. Each time it is one piece; then the connections are looked
            // at again.
            goes_on = false;
            if self.shared.nic.is_unkept() && (!came || now.saturating_sub(kept_ns) > KEEP_NS) {
                goes_on = self.shared.nic.keep(&thread_cpu_ns) && !came;
                kept_ns = now_ns();
                if self.shared.nic.unscrubbed() >= HELP {
                    self.call_for_help();
                }
            }
            if came {
                spin.came(now.saturating_sub(active_ns));
                active_ns = now_ns();
            } else if spinning && spin.offers() {
                let begun = now_ns();
                yield_cpu();
                spin.offered(now_ns() - begun);
            }
        }
        let now = now_ns();
        for token in 0..self.connections.len() {
            self.close(token, Goodbye::Cut, now);
        }
    }

    /// Wakes the next worker, unless it was called already. That worker scrubs, too, and calls the
    /// one after it if that is not enough.
    fn call_for_help(&self) {
        let next = &self.shared.inboxes[(self.index + 1) % self.shared.inboxes.len()];
        if !next.called.swap(true, Ordering::AcqRel) {
            next.waker.wake();
        }
    }

    /// Serves the hot connections. Returns whether anything came.
    fn look_at_hot(&mut self, now: u64) -> bool {
        let mut came = false;
        let mut place = 0;
        while let Some(token) = self.hot.at(place) {
            place += 1;
            came |= self.serve(token, now);
        }
        came
    }

    /// Handles an event of epoll. Returns whether anything came.
    fn on(&mut self, event: &Event, now: u64) -> bool {
        match event.token {
            WAKER => {
                self.shared.inboxes[self.index].waker.reset();
                // Cleared only after the reset. A call before this needs no wake: this worker is
                // awake. A call after it wakes the worker again.
                self.shared.inboxes[self.index].called.store(false, Ordering::Release);
                let accepted = std::mem::take(&mut *self.shared.inboxes[self.index].accepted.lock());
                accepted.into_iter().for_each(|(socket, about)| self.admit(socket, about, now));
                true
            }
            LISTENERS.. => {
                self.accept((event.token - LISTENERS) as usize);
                true
            }
            token => {
                self.serve_in_turn(token as usize, now);
                true
            }
        }
    }

    /// Serves a connection, now or in its tenant's turn. Returns whether anything came.
    fn serve_in_turn(&mut self, token: usize, now: u64) -> bool {
        let class = self.connections.get(token).and_then(|connection| connection.as_ref()?.class);
        match class {
            // The tenant is ahead of its rate, so the round robin passes it over. Its connection
            // must not be watched meanwhile: epoll would report the same input again and again.
            Some(class) if self.turns.is_ahead(class, now) => self.put_off(token, class),
            Some(class) if self.turns.shared() => {
                self.turns.ready(class, token);
                false
            }
            _ => self.serve(token, now),
        }
    }

    /// Serves connections that wait for their turns, until it is time to ask epoll for others.
    /// Returns whether anything came.
    fn take_turns(&mut self, now: u64) -> bool {
        let (mut came, mut at) = (false, now);
        while at.saturating_sub(now) < ASK_NS
            && let Some((class, token)) = self.turns.next(at)
        {
            came |= self.serve(token, at);
            let after = now_ns();
            self.turns.took(class, after.saturating_sub(at));
            at = after;
        }
        came
    }

    /// Takes a connection's input and sends what the socket takes of the answers. Returns whether
    /// anything came.
    fn serve(&mut self, token: usize, now: u64) -> bool {
        let Some(Some(connection)) = self.connections.get_mut(token) else { return false };
        if let Some(class) = connection.class.filter(|&class| self.turns.is_ahead(class, now)) {
            return self.put_off(token, class);
        }
        if std::mem::take(&mut connection.put_off) {
            connection.watched = (true, false);
            if self.epoll.add(connection.socket.as_raw_fd(), token as u64, true, false).is_err() {
                self.close(token, Goodbye::Cut, now);
                return true;
            }
        }
        let was_stranger = connection.engine.is_stranger();
        let shared = self.turns.shared();
        connection.engine.set_turn(if shared { TURN_BYTES } else { usize::MAX });
        let mut served = connection.serve(&self.shared.nic, now);
        // A long answer goes on while the socket takes it: no event of the socket would bring the
        // worker back.
        for _ in 0..IN_PIECES {
            if !connection.goes_on || shared {
                break;
            }
            served = served.and_then(|came| connection.serve(&self.shared.nic, now).map(|more| came || more));
        }
        let moved = std::mem::take(&mut connection.moved);
        connection.class.into_iter().for_each(|class| self.turns.moved(class, moved, now));
        let opened = connection.engine.take_opened();
        let came = match served {
            Ok(came) => {
                let wants = (!connection.engine.is_backed_up(), connection.engine.has_output() && !connection.held_up);
                match connection.class {
                    // It goes on after the other tenants' turns, without a pause.
                    Some(class) if shared && connection.goes_on => self.turns.ready(class, token),
                    _ if !(connection.held_up || connection.goes_on) || self.unasked.contains(&token) => {}
                    _ => self.unasked.push(token),
                }
                if wants != connection.watched {
                    connection.watched = wants;
                    let _ = self.epoll.change(connection.socket.as_raw_fd(), token as u64, wants.0, wants.1);
                }
                if came {
                    self.hot.came(token);
                    if let Some(class) = connection.class {
                        self.turns.asked(class, now);
                    }
                }
                came || connection.goes_on
            }
            Err(why) => {
                self.close(token, why, now);
                true
            }
        };
        if was_stranger {
            self.forget_strangers(token);
        }
        for (stream, peer) in opened {
            let about = Circumstances { local: true, peer, own_end: None, path: Vec::new() };
            self.deal_out(stream.into(), about);
        }
        came
    }

    /// Puts off a connection whose tenant is ahead of its rate: it waits for its turn, and is not
    /// watched. The worker sleeps until the tenant may be served, or another connection has
    /// something. Returns false: nothing came.
    fn put_off(&mut self, token: usize, class: usize) -> bool {
        if let Some(Some(connection)) = self.connections.get_mut(token)
            && !std::mem::replace(&mut connection.put_off, true)
        {
            self.epoll.forget(connection.socket.as_raw_fd());
        }
        self.turns.ready(class, token);
        false
    }

    fn close(&mut self, token: usize, why: Goodbye, now: u64) {
        self.hot.forget(token);
        let Some(Connection { socket, engine, passed, class, .. }) = self.connections[token].take() else { return };
        if let Some(class) = class {
            self.turns.leave(class, token);
        }
        self.forget_strangers(token);
        let place = engine.close(&self.shared.nic, why, now);
        if passed && socket::untaken(socket.as_raw_fd()) > 0 {
            self.epoll.forget(socket.as_raw_fd());
            let stream = UnixStream::from(socket);
            // The peer sees a closed connection.
            let _ = stream.shutdown(Shutdown::Both);
            self.lingering.push((stream, place));
        }
    }

    /// Closes connections that have overstayed: strangers after `STRANGER_NS`, and those of members
    /// that are gone. Watches deaf listeners again. Worker 0 also looks after the whole node.
    fn sweep(&mut self, now: u64) {
        for token in 0..self.connections.len() {
            let Some(connection) = &self.connections[token] else { continue };
            let overdue = connection.engine.is_stranger() && now.saturating_sub(connection.since_ns) > STRANGER_NS;
            if overdue {
                self.tell_refused(token, Refused::Silent);
            }
            if overdue || self.connections[token].as_ref().is_some_and(|other| other.engine.is_orphan()) {
                self.close(token, Goodbye::Done, now);
            }
        }
        for listener in std::mem::take(&mut self.deaf) {
            self.watch(listener, true);
        }
        self.lingering.retain(|(stream, _)| socket::untaken(stream.as_raw_fd()) > 0);
        if self.index == 0 {
            self.shared.nic.expire(now);
            self.shared.nic.keep(&thread_cpu_ns);
            self.trim.look(self.shared.nic.entries());
        }
    }
}

/// Whether accepting failed for lack of descriptors or memory. Any other failure concerns one
/// connection.
fn lacks(e: &std::io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// How long to sleep, in milliseconds: `idle` milliseconds, or `ns` nanoseconds if that is less. A
/// negative `idle` has no end.
fn idle_until(idle: i32, ns: u64) -> i32 {
    let ms = i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX);
    if idle < 0 { ms } else { ms.min(idle) }
}

impl Connection {
    /// Receives input, has the engine carry it out, and sends what the socket takes of the answers.
    /// Returns whether anything came.
    ///
    /// A descriptor is sent only when the peer has taken the one before. The reason is a limit of
    /// the kernel. It counts the descriptors in transit that a *user* has sent, and at the sender's
    /// limit on descriptors it refuses all others of that user. A peer that takes none must not use
    /// this limit up. With one in transit a connection, there are always fewer than the node may
    /// have open. Other programs of the same user count, too. If the kernel refuses a descriptor
    /// because of them (ETOOMANYREFS), it is sent again later.
    fn serve(&mut self, nic: &Nic, now: u64) -> Result<bool, Goodbye> {
        let fd = self.socket.as_raw_fd();
        let moved = &mut self.moved;
        let mut counted = |moves: Result<usize, Errno>| moves.inspect(|&bytes| *moved += bytes as u64);
        // SAFETY: the engine names its own buffers and slabs that it holds.
        let pulled = self.engine.pull(nic, now, |parts| counted(unsafe { socket::receive(fd, parts) }));
        self.held_up = false;
        let backed_up = self.engine.is_backed_up();
        if self.engine.has_output() || pulled.is_err() {
            let (passed, held_up) = (&mut self.passed, &mut self.held_up);
            self.engine.push(nic, |parts, descriptor| match descriptor {
                // SAFETY: as above.
                None => counted(unsafe { socket::send(fd, parts) }),
                Some(_) if *passed && socket::untaken(fd) > 0 => {
                    *held_up = true;
                    Err(Errno(libc::EAGAIN))
                }
                Some(descriptor) => {
                    // SAFETY: as above.
                    let sent = unsafe { socket::send_with_descriptor(fd, parts, descriptor) };
                    *passed = sent.is_ok();
                    *held_up = sent == Err(Errno(libc::ETOOMANYREFS));
                    sent.map_err(|e| if *held_up { Errno(libc::EAGAIN) } else { e })
                }
            })?;
        }
        self.goes_on = backed_up && !self.engine.is_backed_up();
        pulled.map(|n| n > 0)
    }
}
