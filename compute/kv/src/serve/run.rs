//! Opens a store, serves it until told to end, and leaves it.

mod arrive;
mod begin;
mod deliver;
mod gather;

use super::background::Background;
use super::connection::{Connection, Shared};
use super::metrics::{self, Shown};
use super::open::{self, Clients, Config, Failed, Opened, alone, random, system, wall_ms};
use super::schedule::Schedule;
use super::tell::{Tell, counters};
use crate::command::scripts::Scripts;
use crate::command::{Channels, Front, Stats, metrics as metrics_of};
use crate::drive::{Direct, Drive};
use crate::fast::{Map, Set};
use crate::keyspace::Keyspace;
use crate::resp::Reply;
use crate::shard::Trouble;
use crate::task::AtOnce;
use farmem_sys::epoll::Epoll;
use farmem_sys::process::{self, Signals};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Rounds of tasks between looks at the sockets.
const ROUNDS: usize = 16;
/// For how long such rounds go on, a last one aside.
const TURN: Duration = Duration::from_millis(10);
/// Steps of handshakes in one turn: each may take a millisecond.
const HANDSHAKES: u32 = 4;
/// How long answers of nodes are waited for before the sockets are looked at.
const GLANCE: Duration = Duration::from_micros(100);
/// Between looks for commands that wait in vain.
const LOOK: Duration = Duration::from_millis(200);
/// The event that tells of signals.
const SIGNAL: u64 = u64::MAX;
/// How long a front end that ends goes on passing published messages to the others.
const PASSING: Duration = Duration::from_secs(2);

/// The connection whose transaction runs alone, and those that wait for its end.
#[derive(Debug, Default)]
struct Alone {
    connection: Option<u64>,
    held: Vec<u64>,
    /// The last one, whose turn comes behind the others'.
    last: u64,
}

struct Server<'a> {
    drive: Rc<RefCell<Drive>>,
    /// Carries out verbs of commands that need no wait.
    at_once: Rc<dyn AtOnce>,
    front: Rc<Front>,
    epoll: Epoll,
    listeners: &'a [TcpListener],
    connections: Map<u64, Connection>,
    /// Those that came as guests, until they are seen to be none any more, or to be gone.
    guests: BTreeSet<u64>,
    /// Steps of handshakes that this turn may still take.
    handshakes: u32,
    shared: Rc<Shared>,
    /// Room for a new value.
    buffer: Vec<u8>,
    /// This front end must show that it is alive before it changes anything.
    stale: bool,
    next_client: u64,
    commands: Schedule<Reply>,
    /// Connection and key of each command under way; the key only of one that writes.
    running: Map<u64, (u64, Option<u64>)>,
    /// Keys that a command under way writes.
    writing: Set<u64>,
    /// Connections whose next command waits for a key.
    waiting: Map<u64, VecDeque<u64>>,
    gathering: gather::Gathering,
    /// Connections that may go on.
    active: Vec<u64>,
    /// Connections of which an argument streams in, or a reply out.
    streaming: Set<u64>,
    /// Connections whose next command waits for the end of a pause.
    paused: BTreeSet<u64>,
    /// A transaction on several keys, beside which no other client's command runs.
    alone: Alone,
    background: Background,
    clients: Clients,
    /// Where metrics are shown, if they are.
    shown: Option<Shown>,
    tell: Tell,
    /// When rates were last taken, and the commands until then.
    counted: (Instant, u64),
    /// From which its clock counts.
    start: Instant,
    /// Until when it goes on, once it was told to end.
    ends: Option<Instant>,
}

/// Serves the store until SIGTERM or SIGINT. Calls `ready` with the addresses when it listens, and
/// `tell` with the counters once a second. Call it before any other thread exists.
///
/// A front end that the others have shut out closes its clients' connections, joins again and goes
/// on.
///
/// # Errors
/// It could not begin, or a node was lost.
pub fn run(config: &Config, ready: impl FnOnce(&[SocketAddr]), tell: Tell) -> Result<(), Failed> {
    let signals = Signals::take().map_err(|e| Failed::System { what: "signals", reason: e.to_string() })?;
    process::raise_descriptor_limit();
    let listeners = config.listen.iter().map(listen).collect::<Result<Vec<_>, _>>()?;
    let at: Vec<SocketAddr> = listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
    // Before the store is made: a front end that is refused leaves nothing at the nodes.
    let shows = config.metrics.map(|at| metrics::bind(at).map(|listener| (listener, at))).transpose()?;
    let mut opened = open::join(config, true)?;
    let mut ready = Some(ready);
    let shown = match shows {
        Some((listener, at)) => {
            let shown = Shown::default();
            let at = metrics::serve(listener, at, shown.clone())?;
            eprintln!("farmem: counters at http://{at}/metrics");
            Some(shown)
        }
        None => None,
    };
    loop {
        let shards = opened.1.clone();
        let mut server = Server::new(config, &listeners, opened, Rc::clone(&tell))?;
        server.shown.clone_from(&shown);
        if let Some(ready) = ready.take() {
            ready(&at);
        }
        let failed = match server.serve(&signals) {
            Ok(()) => return server.leave(),
            Err(failed) => failed,
        };
        let ends = server.ends.is_some();
        server.dismiss();
        if ends || !failed.may_be_a_shutting_out() {
            return Err(failed);
        }
        opened = open::join_anew(config, &shards, failed)?;
        let name = &config.name;
        eprintln!("farmem: store {name}: this front end was silent for more than 5 s and was shut out; it joined anew");
    }
}

fn listen(at: &SocketAddr) -> Result<TcpListener, Failed> {
    let listener = TcpListener::bind(at).map_err(|reason| Failed::Listen { at: *at, reason })?;
    listener.set_nonblocking(true).map_err(|reason| Failed::Listen { at: *at, reason })?;
    Ok(listener)
}

impl<'a> Server<'a> {
    fn new(
        config: &Config,
        listeners: &'a [TcpListener],
        (drive, shards): Opened,
        tell: Tell,
    ) -> Result<Server<'a>, Failed> {
        let (start, now_ms) = (Instant::now(), wall_ms());
        shards.iter().for_each(|shard| shard.space.now_ms.set(now_ms));
        let store = Rc::new(Keyspace::new(&config.name, shards, config.maxmemory.is_some(), now_ms, random()?));
        store.segments.as_the_environment_says();
        let first = listeners.first().and_then(|listener| listener.local_addr().ok());
        let shared = Rc::<Shared>::default();
        let front = Front {
            turns: 0.into(),
            scripts: Scripts::default(),
            channels: Channels::default(),
            events: Default::default(),
            monitors: Default::default(),
            store: Rc::clone(&store),
            clients: BTreeMap::new().into(),
            blocked: 0.into(),
            paused: 0.into(),
            waiters: BTreeMap::new().into(),
            alone: false.into(),
            turn: None.into(),
            in_turn: Default::default(),
            transactions: Default::default(),
            wanting: VecDeque::new().into(),
            pause: Default::default(),
            port: first.map_or(0, |at| at.port()),
            maxmemory: config.maxmemory.unwrap_or(0),
            most_clients: config.clients.most,
            rejected: 0.into(),
            password: config.clients.password.clone(),
            killed: Vec::new().into(),
            stats: Stats::default(),
            held: Rc::clone(&shared.held),
        };
        let epoll = Epoll::new().map_err(system("epoll"))?;
        for (n, listener) in listeners.iter().enumerate() {
            epoll.add(listener.as_raw_fd(), n as u64, true, false).map_err(system("epoll"))?;
        }
        let run = drive.run();
        let drive = Rc::new(RefCell::new(drive));
        Ok(Server {
            at_once: Rc::new(Direct(Rc::clone(&drive))),
            drive,
            front: Rc::new(front),
            epoll,
            next_client: listeners.len() as u64,
            listeners,
            connections: Map::default(),
            guests: BTreeSet::new(),
            handshakes: 0,
            shared,
            buffer: Vec::new(),
            stale: true,
            commands: Schedule::new(0),
            running: Map::default(),
            writing: Set::default(),
            waiting: Map::default(),
            gathering: gather::Gathering::default(),
            active: Vec::new(),
            streaming: Set::default(),
            paused: BTreeSet::new(),
            alone: Alone::default(),
            background: Background::new(config, run, &store, start),
            start,
            ends: None,
            clients: config.clients.clone(),
            shown: None,
            tell,
            counted: (Instant::now(), 0),
        })
    }

    /// Leaves the store in good order.
    fn leave(self) -> Result<(), Failed> {
        for shard in self.front.store.shards.clone() {
            alone(&mut self.drive.borrow_mut(), |io| async move { shard.members.leave(&io).await })?;
        }
        Ok(())
    }

    /// Answers every command under way by an error, and closes the connections.
    fn dismiss(self) {
        for mut connection in self.connections.into_values() {
            connection.dismiss();
        }
    }

    fn serve(&mut self, signals: &Signals) -> Result<(), Failed> {
        let signalled = signals.descriptor().map_err(|e| Failed::System { what: "signals", reason: e.to_string() })?;
        self.epoll.add(signalled.as_raw_fd(), SIGNAL, true, false).map_err(system("epoll"))?;
        let mut events = Vec::new();
        let mut looked = Instant::now();
        loop {
            let now = Instant::now();
            if self.ends.is_some_and(|until| now >= until || self.front.channels.forward.is_idle()) {
                return Ok(());
            }
            self.front.store.set_now_ms(wall_ms());
            if now.duration_since(looked) >= LOOK {
                looked = now;
                self.active.extend(self.waiting.drain().flat_map(|(_, connections)| connections));
                self.look(now);
                if self.drive.borrow().under_way() == 0 {
                    self.drive.borrow().check()?;
                }
            }
            self.end_pause();
            self.front.turns.set(self.front.turns.get() + 1);
            self.background.begin(now, &self.drive);
            self.work()?;
            self.end_killed();
            let ready = self.commands.is_ready() || self.background.tasks.is_ready();
            let busy = self.drive.borrow().under_way() > 0 || ready || !self.active.is_empty();
            let until = self.background.wakes().min(looked + LOOK);
            let until = self.commands.wakes().map_or(until, |wakes| until.min(wakes));
            let idle = until.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
            let timeout = if busy { 0 } else { idle.min(self.paused_ms()) as i32 };
            self.epoll.wait(&mut events, timeout).map_err(system("epoll"))?;
            // Before connections are accepted: after SIGTERM none is.
            if events.iter().any(|event| event.token == SIGNAL) && self.is_told_to_end(signals) {
                self.ends.get_or_insert(Instant::now() + PASSING);
            }
            for event in events.drain(..) {
                self.happened(event);
            }
        }
    }

    /// Closes connections that were killed, with what their clients have not read.
    fn end_killed(&mut self) {
        for id in self.front.killed.take() {
            self.flush(id);
            if let Some(connection) = self.connections.get_mut(&id).filter(|connection| connection.leaves_unread()) {
                connection.broken = true;
                self.flush(id);
            }
        }
    }

    /// Closes connections that do not read, and takes rates.
    fn look(&mut self, now: Instant) {
        let mut over = Vec::new();
        for (&id, connection) in &mut self.connections {
            if connection.gives_up(now, self.clients.unread) {
                over.push(id);
                let (from, s) = (&connection.client.address, self.clients.unread.as_secs());
                if !connection.is_guest() {
                    eprintln!("farmem: client {from} has not read its replies for {s} s: its connection is closed");
                }
            }
        }
        over.into_iter().for_each(|id| self.flush(id));
        // Requests that waited because others made this front end hold much: no event tells of its end.
        let waited: Vec<u64> =
            self.connections.iter_mut().filter_map(|(&id, connection)| connection.goes_on().then_some(id)).collect();
        self.active.extend(waited);
        let (then, before) = self.counted;
        let passed = now.duration_since(then).as_millis();
        if passed >= 1000 {
            let commands = self.front.store.figures.commands.get();
            self.front.stats.lately.set(u128::from(commands - before).saturating_mul(1000).div_euclid(passed) as u64);
            self.counted = (now, commands);
            let counters = counters(&self.front);
            self.front.stats.peak(counters.bytes);
            (self.tell)(&counters);
            if let Some(shown) = &self.shown {
                shown.set(metrics_of(&self.front));
            }
        }
    }

    /// Goes on with connections and tasks for some rounds.
    fn work(&mut self) -> Result<(), Failed> {
        let (mut touched, begun) = (Set::default(), Instant::now());
        self.handshakes = HANDSHAKES;
        for round in 0..ROUNDS {
            self.stream(&mut touched);
            // In the order in which their requests came.
            let (mut active, mut seen) = (std::mem::take(&mut self.active), Set::default());
            active.retain(|&id| seen.insert(id));
            if let Some(place) = active.iter().position(|&id| id == self.alone.last) {
                active[place..].rotate_left(1);
            }
            let now = Instant::now();
            // After a long pause the others may have declared this front end dead.
            self.stale = self.background.is_stale(now);
            self.give_turn();
            let mut active = active.into_iter();
            for id in active.by_ref() {
                touched.insert(id);
                self.begin_commands(id)?;
                // The command of each may take long, and there may be thousands.
                if begun.elapsed() > TURN {
                    break;
                }
            }
            // The rest are the first of the next turn.
            self.active.splice(0..0, active);
            self.end_round();
            let mut ended = Vec::new();
            self.background.tasks.step(&self.drive, &mut ended)?;
            for (_, ended) in ended {
                self.background.ended(ended, now).map_err(|_: Trouble| Failed::ShutOut)?;
            }
            if !self.stale {
                let mut ended = Vec::new();
                self.commands.step(&self.drive, &mut ended)?;
                ended.into_iter().for_each(|(task, reply)| self.ended(task, reply));
            }
            self.deliver(&mut touched);
            let rest = self.active.is_empty() && !self.commands.is_ready() && !self.background.tasks.is_ready();
            let mut answers = Vec::new();
            let limit = if rest && round > 0 { GLANCE } else { Duration::ZERO };
            self.drive.borrow_mut().advance(limit, &mut answers)?;
            let told = !answers.is_empty();
            self.commands.take(&mut answers);
            self.background.tasks.take(&mut answers);
            let rests = rest && !told && (round > 0 || self.drive.borrow().under_way() == 0);
            if rests || begun.elapsed() > TURN {
                break;
            }
        }
        self.stream(&mut touched);
        touched.extend(self.active.iter().copied());
        touched.into_iter().for_each(|id| self.flush(id));
        Ok(())
    }

    /// Has a connection's transaction run alone: others begin nothing more. Whether nothing of
    /// theirs is under way.
    fn have_alone(&mut self, id: u64) -> bool {
        self.alone.connection = Some(id);
        self.front.alone.set(true);
        // Commands that wait for an element, or for their own turn, do no harm: they go on only
        // afterwards.
        let waiting = self.front.blocked.get() + self.front.wanting.borrow().len() as u64;
        let alone = self.running.len() as u64 == waiting;
        self.front.turn.set(alone.then_some(id));
        alone
    }

    /// Gives a turn to a script under way that has found out that it must run alone.
    fn give_turn(&mut self) {
        let first = self.front.wanting.borrow().front().copied();
        if let Some(next) = self.alone.connection.filter(|next| Some(*next) != first)
            && self.front.turn.get().is_none()
            && self.have_alone(next)
        {
            // The operation that was under way has begun to wait.
            self.front.turn.set(None);
            self.active.push(next);
        }
        if let Some(id) = first
            && self.alone.connection.is_none_or(|alone| alone == id)
            && self.have_alone(id)
        {
            self.front.wanting.borrow_mut().pop_front();
        }
    }

    /// The transaction that ran alone has ended, or its connection has.
    fn end_alone(&mut self) {
        if let Some(last) = self.alone.connection.take() {
            self.front.alone.set(false);
            self.front.turn.set(None);
            self.alone.last = last;
            self.active.append(&mut self.alone.held);
        }
    }

    fn ended(&mut self, task: u64, reply: Reply) {
        let Some((id, key)) = self.running.remove(&task) else { return };
        let reply = self.answer_gathered(task, reply);
        match self.alone.connection {
            Some(alone) if alone == id => self.end_alone(),
            // It may be its turn now.
            Some(alone) => self.active.push(alone),
            None => {}
        }
        if let Some(key) = key {
            self.writing.remove(&key);
            self.go_on_with(key);
        }
        self.stream_reply(id, &reply);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.answer(task, reply);
            self.active.push(id);
        }
    }

    /// Connections of which something streams and can go on.
    fn stream(&mut self, touched: &mut Set<u64>) {
        let (connections, active) = (&mut self.connections, &mut self.active);
        self.streaming.retain(|id| {
            let Some(connection) = connections.get_mut(id).filter(|connection| connection.streams()) else {
                return false;
            };
            connection.collect();
            touched.insert(*id);
            if connection.can_go_on() || connection.broken || !connection.streams() {
                active.push(*id);
            }
            true
        });
    }

    fn flush(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.flush();
        if connection.goes_on() {
            self.active.push(id);
        }
        if connection.is_lost() && connection.client.blocked.get() {
            // The client that waited for an element is gone.
            for begun in connection.begun.drain(..) {
                self.commands.cancel(begun.task);
                self.running.remove(&begun.task);
            }
            // Requests that were sent before the end are carried out.
            self.active.push(id);
        }
        let fd = connection.wire.as_raw_fd();
        if connection.is_over() {
            self.epoll.forget(fd);
            if self.alone.connection == Some(id) {
                self.end_alone();
            }
            if let Some(mut connection) = self.connections.remove(&id) {
                connection.wire.end();
                self.front.channels.leave(&connection.client);
                self.front.monitors.leave(&connection.client);
            }
            self.front.clients.borrow_mut().remove(&id);
            self.paused.remove(&id);
            self.front.paused.set(self.paused.len() as u64);
            return;
        }
        if connection.broken {
            // Its commands end first. Epoll would tell of it again and again until then.
            self.epoll.forget(fd);
            return;
        }
        let wants = connection.wants();
        if wants != connection.watched && self.epoll.hear(fd, id, wants).is_ok() {
            connection.watched = wants;
        }
    }
}
