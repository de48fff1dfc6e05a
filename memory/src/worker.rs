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
//! A connection's *entry* is its place in the worker's table of connections. Epoll reports it by
//! that number.

mod connection;
mod newcomers;
mod serving;
#[cfg(test)]
mod tests;

use crate::StartError;
use crate::hot::Hot;
use crate::listen::Listener;
use crate::trim::Trim;
use crate::turns::Turns;
use connection::Connection;
use farmem_nic::Nic;
use farmem_nic::engine::{Circumstances, Goodbye};
use farmem_nic::events::Refused;
use farmem_nic::shares::Place;
use farmem_sys::epoll::{Epoll, Event, Waker};
use farmem_sys::raw::{now_ns, thread_cpu_ns, yield_cpu};
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
/// How often a worker looks whether a peer has taken the descriptor that was passed to it, in
/// milliseconds.
const PASS_MS: i32 = 5;
/// How long a SEND that was put off waits before the service is asked again, ns.
const LATER_NS: u64 = 1_000_000;
/// Connections with such a SEND that are served in one round: other verbs wait for them.
const LATER: usize = 4;
/// How long a connection may take to say who it is, ns.
const STRANGER_NS: u64 = 10_000_000_000;
/// A connection counts as this many entries of tables when memory is given back: most are queue pairs,
/// whose buffers are large.
const AS_ENTRIES: usize = 8;
/// The most connections without a Hello at a node; each worker may have an equal part. One more
/// makes the worker close one: the oldest of the peer that has most.
const STRANGERS: usize = 256;
/// The most connections on their way to a worker. One more closes the oldest.
const WAITING: usize = 256;
/// The most connections that are taken from a listener before other connections are served.
const TOGETHER: usize = 64;
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
    /// By entry. Places of closed connections are used again.
    connections: Vec<Option<Connection>>,
    hot: Hot,
    turns: Turns,
    trim: Trim,
    /// Tokens of connections that are served without an event. Either the peer must take a
    /// descriptor before it is sent more (`held_up`), or the input goes on (`goes_on`).
    unasked: Vec<usize>,
    /// Tokens of connections whose SEND was put off (`Engine::waits`), each with the time when its
    /// service is asked again: the earliest first. None of them is hot, or watched by epoll.
    later: VecDeque<(u64, usize)>,
    /// Connections that have ended with a descriptor in transit, which cannot be called back. Each
    /// counts as a connection until the peer has taken it, or has closed its own end. Otherwise a
    /// peer that ends one connection after the other could have any number in transit.
    lingering: Vec<(UnixStream, Option<Place>)>,
    /// Tokens of connections that have not said who they are, the oldest first.
    strangers: Vec<usize>,
    next_worker: usize,
}

/// State that a worker keeps from one round to the next.
struct Pass {
    events: Vec<Event>,
    /// Times of the last input, the last look at epoll, the last sweep, and the last piece of the
    /// node's own work.
    active_ns: u64,
    asked_ns: u64,
    swept_ns: u64,
    kept_ns: u64,
    /// The node's own work went on, and nothing came: the next round does not sleep.
    goes_on: bool,
    spin: Spin,
}

impl Pass {
    fn new() -> Pass {
        let (active_ns, asked_ns, kept_ns) = (0, 0, 0);
        Pass { events: Vec::new(), active_ns, asked_ns, swept_ns: now_ns(), kept_ns, goes_on: false, spin: Spin::new() }
    }
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
            later: VecDeque::new(),
            lingering,
            strangers,
            next_worker: 0,
        })
    }

    fn run(mut self) {
        let mut pass = Pass::new();
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.go_round(&mut pass);
        }
        let now = now_ns();
        for entry in 0..self.connections.len() {
            self.close(entry, Goodbye::Cut, now);
        }
    }

    /// Serves what has come. Waits for something to come, if nothing has for long.
    fn go_round(&mut self, pass: &mut Pass) {
        let mut now = now_ns();
        let spinning = pass.spin.looks_on(now.saturating_sub(pass.active_ns));
        let mut came = false;
        // While several tenants ask, their connections are served only in turns.
        let crowded = self.turns.crowded(now);
        if spinning && !crowded {
            came = self.look_at_hot(now);
        }
        // epoll is asked even while every look finds something: connections that are not hot wait
        // for it.
        if crowded || !spinning || now.saturating_sub(pass.asked_ns) > ASK_NS {
            pass.asked_ns = now;
            self.wait(pass, spinning, now);
            now = now_ns();
            for event in &pass.events {
                came |= self.on(event, now);
            }
            for entry in std::mem::take(&mut self.unasked) {
                came |= self.serve_in_turn(entry, now);
            }
            came |= self.ask_again(now);
            came |= self.take_turns(now);
            if now.saturating_sub(pass.swept_ns) > SWEEP_MS as u64 * 1_000_000 {
                pass.swept_ns = now;
                self.sweep(now);
            }
        }
        // The node's own work delays no verb. It is done when the worker is idle, and otherwise at
        // most every `KEEP_NS`. Each time it is one piece; then the connections are looked at again.
        pass.goes_on = false;
        if self.shared.nic.is_unkept() && (!came || now.saturating_sub(pass.kept_ns) > KEEP_NS) {
            pass.goes_on = self.shared.nic.keep(&thread_cpu_ns) && !came;
            pass.kept_ns = now_ns();
            if self.shared.nic.unscrubbed() >= HELP {
                self.call_for_help();
            }
        }
        if came {
            pass.spin.came(now.saturating_sub(pass.active_ns));
            pass.active_ns = now_ns();
        } else if spinning && pass.spin.offers() {
            let begun = now_ns();
            yield_cpu();
            pass.spin.offered(now_ns() - begun);
        }
    }

    /// Entries of the node's tables, connections among them. Every worker looks at all of them: an entry
    /// may be of another worker's heap than of that which frees it.
    fn entries(&self) -> usize {
        self.shared.nic.entries() + AS_ENTRIES * self.shared.nic.connections.taken()
    }

    /// Asks epoll for events. Waits for some unless the worker is to look again at once.
    fn wait(&self, pass: &mut Pass, spinning: bool, now: u64) {
        // Worker 0 wakes for sweeps even without connections: it looks after absent members.
        let minds =
            self.connections.iter().any(Option::is_some) || !self.lingering.is_empty() || self.trim.is_waiting();
        let idle = if self.index == 0 || minds { SWEEP_MS } else { -1 };
        let idle = if self.unasked.is_empty() { idle } else { PASS_MS };
        let later = self.later.front().map(|&(due, _)| due.saturating_sub(now));
        let idle = later.map_or(idle, |ns| idle_until(idle, ns));
        let idle = if self.shared.nic.is_unkept() { DRAIN_MS } else { idle };
        let turn_ns = self.turns.next_in(now);
        let idle = turn_ns.map_or(idle, |ns| idle_until(idle, ns));
        // A turn ended with work left, of which no event tells.
        let goes_on =
            |entry: &usize| self.connections.get(*entry).and_then(Option::as_ref).is_some_and(|one| one.goes_on);
        let goes_on = pass.goes_on || self.unasked.iter().any(goes_on);
        let at_once = spinning || goes_on || turn_ns == Some(0) || later == Some(0);
        if self.epoll.wait(&mut pass.events, if at_once { 0 } else { idle }).is_err() {
            // A retry does not cure this. But ending the worker would lose the memory of a whole
            // node.
            std::thread::sleep(std::time::Duration::from_millis(10));
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

    /// Serves connections whose SEND was put off and is due: few in a round, so that others' verbs
    /// do not wait for many. Returns whether anything came.
    fn ask_again(&mut self, now: u64) -> bool {
        let mut came = false;
        for _ in 0..LATER {
            let Some((_, entry)) = self.later.pop_front_if(|&mut (due, _)| due <= now) else { break };
            if let Some(Some(connection)) = self.connections.get_mut(entry) {
                connection.later = false;
                came |= self.serve_in_turn(entry, now);
            }
        }
        came
    }

    /// Serves the hot connections. Returns whether anything came.
    fn look_at_hot(&mut self, now: u64) -> bool {
        let mut came = false;
        let mut place = 0;
        while let Some(entry) = self.hot.at(place) {
            place += 1;
            came |= self.serve(entry, now);
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
            entry => {
                self.serve_in_turn(entry as usize, now);
                true
            }
        }
    }

    fn close(&mut self, entry: usize, why: Goodbye, now: u64) {
        self.hot.forget(entry);
        self.later.retain(|&(_, other)| other != entry);
        let Some(Connection { socket, engine, passed, class, .. }) = self.connections[entry].take() else { return };
        if let Some(class) = class {
            self.turns.leave(class, entry);
        }
        self.forget_strangers(entry);
        let place = engine.close(&self.shared.nic, why, now);
        if passed && socket::untaken(socket.as_raw_fd()) > 0 {
            self.epoll.forget(socket.as_raw_fd());
            let stream = UnixStream::from(socket);
            // The peer sees a closed connection.
            let _ = stream.shutdown(Shutdown::Both);
            self.lingering.push((stream, place));
        }
    }

    /// Closes connections that have overstayed: strangers after `STRANGER_NS`, those of members that
    /// are gone, and those that came by a token that is revoked or has expired. Watches deaf
    /// listeners again. Worker 0 also looks after the whole node.
    fn sweep(&mut self, now: u64) {
        for entry in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[entry] else { continue };
            let overdue = connection.engine.is_stranger() && now.saturating_sub(connection.since_ns) > STRANGER_NS;
            let ended = connection.engine.is_orphan() || connection.engine.is_over(&self.shared.nic);
            if overdue {
                self.tell_refused(entry, Refused::Silent);
            }
            if overdue || ended {
                self.close(entry, Goodbye::Done, now);
            }
        }
        for listener in std::mem::take(&mut self.deaf) {
            self.watch(listener, true);
        }
        self.lingering.retain(|(stream, _)| socket::untaken(stream.as_raw_fd()) > 0);
        if self.index == 0 {
            self.shared.nic.expire(now);
            self.shared.nic.keep(&thread_cpu_ns);
        }
        self.trim.look(self.entries());
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
