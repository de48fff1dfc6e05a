//! The agent at work: one thread that watches, one for each application.
//!
//! ```text
//!             ┌ listener ─► a thread: handshake (seat.rs) ─► clerk (clerk.rs): the ring, until its end
//!  watcher ───┤ sockets, pidfds of applications ─► that application's clerk is told to end
//!  (epoll)    └ every 250 ms: processes that are absent and gone, idleness
//! ```
//!
//! A clerk serves one application and sleeps on that application's ring. An application that floods
//! its ring keeps its own clerk busy, and the system shares the processors among clerks. They share
//! the stock and the source of blocks, each under a lock. The source's lock may be held while a
//! node is asked, the stock's never. A clerk that takes both takes the source's first.

mod clerk;
mod moves;
mod seat;

pub use moves::{MoveError, text_of};

use crate::ledger::{Identity, Ledger};
use crate::sources::Sources;
use crate::stock::Stock;
use crate::word::{BLOCK_BYTES, BlockId};
use farmem_sys::epoll::{Epoll, Waker};
use farmem_sys::raw::{self, Errno};
use farmem_sys::sync::{Held, Lock};
use farmem_sys::{process, shared};
use seat::Seat;
use std::collections::{BTreeMap, HashMap};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Connections that have not said who they are, at once. Beyond, the oldest of the user that has
/// most of them is closed.
const MAX_STRANGERS: usize = 32;
/// How often the watcher looks at what nobody wakes it for.
pub const TEND: Duration = Duration::from_millis(250);

/// Between two times that applications are asked to give back what lies idle.
const RECALL_NS: u64 = 100_000_000;
/// Blocks that go back in one batch.
const TOGETHER: usize = 64;
/// Connections that are taken in before the watcher looks at everything else.
const AT_ONCE: usize = 32;

/// Why the agent ended.
#[derive(Debug)]
pub enum End {
    /// It was told to.
    Told,
    /// No application was there for as long as it waits.
    Idle,
    /// Its node is gone.
    Lost(String),
}

/// A connection that has not said who it is. Shutting its stream down ends the thread that hears
/// it.
struct Unheard {
    number: u64,
    uid: u32,
    stream: UnixStream,
}

/// The service: the memory, and the applications that it serves.
pub struct Service {
    stock: Lock<Stock>,
    blocks: Lock<Sources>,
    /// Clerks that wait for `blocks`.
    waiting: AtomicUsize,
    seats: Lock<BTreeMap<usize, Arc<Seat>>>,
    /// The node that applications reach new memory at, as [`crate::hello::Entry::Elsewhere`] has it;
    /// empty: they map it.
    elsewhere: Lock<String>,
    /// Held by the thread that begins a move.
    begins: Lock<()>,
    /// Wakes the watcher.
    waker: Waker,
    strangers: Lock<Vec<Unheard>>,
    /// Number of the next stranger.
    stranger: AtomicU64,
    stop: AtomicBool,
    /// Clerks are to end, also those that begin now.
    over: AtomicBool,
    /// Blocks taken from the node.
    taken: Arc<AtomicU64>,
    /// Violations by applications, and their number.
    violations: AtomicUsize,
    /// When applications were last asked to give back what lies idle.
    recalled_ns: AtomicU64,
}

/// Facts for an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Applications: their process, tenant, and bytes held.
    pub applications: Vec<(u32, u32, String, u64)>,
    /// Bytes taken from the node.
    pub taken: u64,
    /// Applications that were dismissed for what they did.
    pub violations: usize,
}

impl Service {
    /// Over a stock and its source. The stock's applications are absent: each may come back as long
    /// as its process lives. `elsewhere`: how they reach new memory; empty: they map it.
    pub fn new(stock: Stock, blocks: Sources, elsewhere: String) -> Result<Arc<Service>, Errno> {
        let taken = blocks.count();
        Ok(Arc::new(Service {
            taken,
            stock: Lock::new(stock),
            blocks: Lock::new(blocks),
            waiting: AtomicUsize::new(0),
            seats: Lock::new(BTreeMap::new()),
            elsewhere: Lock::new(elsewhere),
            begins: Lock::new(()),
            waker: Waker::new()?,
            strangers: Lock::new(Vec::new()),
            stranger: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            over: AtomicBool::new(false),
            violations: AtomicUsize::new(0),
            recalled_ns: AtomicU64::new(0),
        }))
    }

    /// Locks the nodes on behalf of a clerk. A move lets it go first.
    fn nodes(&self) -> Held<'_, Sources> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let nodes = self.blocks.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        nodes
    }

    /// Ends [`Service::run`].
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// The present state.
    pub fn report(&self, ledger: &Ledger) -> Report {
        let taken = self.taken.load(Ordering::Relaxed) * BLOCK_BYTES;
        let stock = self.stock.lock();
        let all = stock.applications().filter_map(|app| Some((app, ledger.app(app)?)));
        let applications = all.map(|(app, who)| (who.pid, who.uid, who.job, stock.held_by(app))).collect();
        Report { applications, taken, violations: self.violations.load(Ordering::Relaxed) }
    }

    /// Serves whoever connects (and whoever is brought, [`Service::welcome`]), until told to stop,
    /// or nobody has been there for `idle`. `each` is called every [`TEND`].
    pub fn run(
        self: &Arc<Self>,
        listener: Option<&UnixListener>,
        ledger: &Ledger,
        idle: Option<Duration>,
        each: &mut dyn FnMut(),
    ) -> Result<End, Errno> {
        let mut watcher = Watcher { epoll: Epoll::new()?, watched: HashMap::new(), next: 2 };
        if let Some(listener) = listener {
            let _ = listener.set_nonblocking(true);
            watcher.epoll.add(listener.as_raw_fd(), 0, true, false)?;
        }
        watcher.epoll.add(self.waker.fd(), 1, true, false)?;
        let mut events = Vec::new();
        let (mut last_seen, mut tended, mut deaf) = (Instant::now(), Instant::now(), false);
        loop {
            watcher.epoll.wait(&mut events, TEND.as_millis() as i32)?;
            for event in &events {
                match event.token {
                    0 => {
                        if let Some(listener) = listener.filter(|listener| !self.accept(listener)) {
                            deaf = watcher.epoll.change(listener.as_raw_fd(), 0, false, false).is_ok();
                        }
                    }
                    1 => self.waker.reset(),
                    token => watcher.happened(token),
                }
            }
            if self.stop.load(Ordering::Acquire) {
                return Ok(End::Told);
            }
            watcher.follow(&self.seats.lock());
            if tended.elapsed() >= TEND {
                tended = Instant::now();
                if let Some(listener) = listener.filter(|_| deaf) {
                    deaf = watcher.epoll.change(listener.as_raw_fd(), 0, true, false).is_err();
                }
                // Locked: a clerk asks the node something, which may take as long as a node may be
                // silent, and finds out what there is to find.
                let tended = self.blocks.try_lock().map(|mut blocks| blocks.tend());
                match tended {
                    Some(Ok(())) => self.end_absent(ledger),
                    Some(Err(why)) => return Ok(End::Lost(why)),
                    None => {}
                }
                each();
            }
            let nobody = self.stock.lock().applications().next().is_none() && self.strangers.lock().is_empty();
            if !nobody {
                last_seen = Instant::now();
            } else if idle.is_some_and(|idle| last_seen.elapsed() >= idle) {
                return Ok(End::Idle);
            }
        }
    }

    /// Takes in some of those who wait: more may come as fast. False: the process, or the system, has
    /// no descriptor for one more. The listener would be reported again at once then.
    fn accept(self: &Arc<Self>, listener: &UnixListener) -> bool {
        for _ in 0..AT_ONCE {
            match listener.accept() {
                Ok((stream, _)) => self.welcome(stream),
                Err(e) => {
                    let lacking = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
                    return !e.raw_os_error().is_some_and(|error| lacking.contains(&error));
                }
            }
        }
        true
    }

    /// Tells every clerk to end: those that serve, and those that are about to.
    pub(crate) fn end_seats(&self) {
        self.over.store(true, Ordering::Release);
        self.seats.lock().values().for_each(|seat| seat.end());
    }

    /// Serves whoever is at the other end, in a thread of its own.
    pub(crate) fn welcome(self: &Arc<Self>, stream: UnixStream) {
        // Without either it could not be let go of.
        let (Ok(peer), Ok(other)) = (shared::peer_of(stream.as_raw_fd()), stream.try_clone()) else { return };
        let number = self.stranger.fetch_add(1, Ordering::Relaxed);
        self.make_room_for_a_stranger();
        self.strangers.lock().push(Unheard { number, uid: peer.uid, stream: other });
        let service = Arc::clone(self);
        let serve = move || {
            let seat = service.receive(stream);
            service.forget_stranger(number);
            if let Some(seat) = seat {
                service.attend(&seat);
            }
            service.waker.wake();
        };
        if std::thread::Builder::new().name("clerk".into()).stack_size(256 << 10).spawn(serve).is_err() {
            self.forget_stranger(number);
        }
    }

    fn forget_stranger(&self, number: u64) {
        self.strangers.lock().retain(|stranger| stranger.number != number);
    }

    /// Closes a stranger if there are as many as there may be.
    fn make_room_for_a_stranger(&self) {
        let mut strangers = self.strangers.lock();
        if strangers.len() < MAX_STRANGERS {
            return;
        }
        let mut by = BTreeMap::new();
        strangers.iter().for_each(|stranger| *by.entry(stranger.uid).or_insert(0) += 1);
        let most = by.into_iter().max_by_key(|(_, count)| *count).map(|(uid, _)| uid);
        if let Some(oldest) = strangers.iter().position(|stranger| Some(stranger.uid) == most) {
            // Its thread finds the end of the stream.
            let _ = strangers.remove(oldest).stream.shutdown(Shutdown::Both);
        }
    }

    /// Applications of a former agent that have not come back, and whose processes are gone.
    fn end_absent(&self, ledger: &Ledger) {
        let seats = self.seats.lock();
        let absent: Vec<usize> = self.stock.lock().applications().filter(|app| !seats.contains_key(app)).collect();
        drop(seats);
        for app in absent {
            if ledger.app(app).is_none_or(|who| !is_there(&who)) {
                self.dismiss_absent(app);
            }
        }
    }

    fn dismiss_absent(&self, app: usize) {
        // A thread may be seating it this very moment: the seats' lock decides.
        let seats = self.seats.lock();
        if seats.contains_key(&app) {
            return;
        }
        let freed = self.stock.lock().dismiss(app);
        drop(seats);
        self.release(freed);
    }

    /// Memory has run out. Empty blocks that are kept for applications go back. Applications are
    /// asked for pieces that they keep and do not use: each gives them back with its next request
    /// or free. An application that floods the agent with requests that cannot be served triggers
    /// this no more often than every [`RECALL_NS`].
    fn recall(&self) {
        let (now, last) = (raw::now_ns(), self.recalled_ns.load(Ordering::Relaxed));
        let is_due = last == 0 || now.saturating_sub(last) >= RECALL_NS;
        if !is_due || self.recalled_ns.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let empty = self.stock.lock().take_empty();
        self.release(empty);
        for seat in self.seats.lock().values() {
            seat.desk.recalls().fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The empty blocks that are kept for one application go back.
    fn release_empty_of(&self, app: usize) {
        let empty = self.stock.lock().take_empty_of(app);
        self.release(empty);
    }

    fn release(&self, freed: impl IntoIterator<Item = (BlockId, u32)>) {
        let freed: Vec<BlockId> = freed.into_iter().map(|(block, _)| block).collect();
        // Some at a time: others want the lock, too.
        for some in freed.chunks(TOGETHER) {
            self.nodes().release(some);
        }
    }
}

/// Whether an application's process lives, and is the one that it was.
fn is_there(who: &Identity) -> bool {
    process::began(who.pid) == Some(who.began)
}

/// The descriptors of seats that the watcher waits for.
struct Watcher {
    epoll: Epoll,
    watched: HashMap<u64, (Arc<Seat>, [i32; 2])>,
    next: u64,
}

impl Watcher {
    /// Watches seats that are new, and no longer those that are gone.
    fn follow(&mut self, seats: &BTreeMap<usize, Arc<Seat>>) {
        let gone = |seat: &Arc<Seat>| !seats.get(&seat.app).is_some_and(|now| Arc::ptr_eq(now, seat));
        self.watched.retain(|_, (seat, fds)| {
            let keep = !gone(seat);
            if !keep {
                fds.iter().for_each(|&fd| self.epoll.forget(fd));
            }
            keep
        });
        for seat in seats.values() {
            if !seat.watched.swap(true, Ordering::Relaxed) {
                let token = self.next;
                self.next += 1;
                let fds = [seat.stream.as_raw_fd(), seat.pidfd.0];
                for fd in fds {
                    if self.epoll.add(fd, token, true, false).is_err() {
                        seat.end();
                    }
                }
                self.watched.insert(token, (Arc::clone(seat), fds));
            }
        }
    }

    /// Something came over a seat's socket, where nothing is to come, or its process ended.
    fn happened(&mut self, token: u64) {
        if let Some((seat, fds)) = self.watched.get(&token) {
            fds.iter().for_each(|&fd| self.epoll.forget(fd));
            seat.end();
        }
    }
}
