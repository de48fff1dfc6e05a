//! A front end's settings, how it opens a store, and why it ends.

use super::check::is_elsewhere;
use super::mend::ATTEMPT_WORD;
use super::snapshot::Wrong;
use super::tls::Tls;
use crate::drive::Drive;
use crate::layout::{Geometry, NODE_SHIFT, Pair, Stage, head, word};
use crate::shard::copies::Mode;
use crate::shard::member::{NotOpened, Opening};
use crate::shard::{Shard, Trouble};
use crate::task::{Ask, Io, Task};
use farmem::{Memory, Transport, Trust};
use farmem_sys::process;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long nodes may take to answer at first.
pub(super) const FIRST: Duration = Duration::from_secs(5);
/// How long a front end that comes waits for a node to be filled.
const FILLING: Duration = Duration::from_secs(60);
/// How long they may take when it is in doubt whether one is lost.
const DOUBT: Duration = Duration::from_secs(2);
/// How often a front end that joins begins again where the others have shut it out before it had joined.
const AGAIN: u32 = 10;

/// Bytes of `maxmemory` at each node, or pair of nodes, at least: pieces of a few sizes of objects.
const LEAST: u64 = 64 << 10;

/// The settings of a front end.
#[derive(Clone, Debug)]
pub struct Config {
    /// The store's name.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// Whether two nodes each keep the same keys.
    pub mirror: bool,
    /// Nodes that take the place of one of two that has ended.
    pub spares: Vec<String>,
    /// How bytes move.
    pub transport: Transport,
    /// How long a node may be away.
    pub grace: Duration,
    /// The token by which its nodes and it know each other.
    pub trust: Trust,
    /// Where to listen.
    pub listen: Vec<SocketAddr>,
    /// Bytes of the near cache.
    pub local: u64,
    /// Bytes that all front ends together hold at most; keys are evicted beyond.
    pub maxmemory: Option<u64>,
    /// The limits of clients.
    pub clients: Clients,
    /// Where counters are served over HTTP.
    pub metrics: Option<SocketAddr>,
}

/// The limits of clients.
#[derive(Clone, Debug)]
pub struct Clients {
    /// Connections at a time.
    pub most: usize,
    /// Bytes of replies that are kept for one that does not read them.
    pub kept: usize,
    /// How long one may leave its replies unread when no more are kept for it.
    pub unread: Duration,
    /// The password that they must give first.
    pub password: Option<Vec<u8>>,
    /// Without a password: whether those of other machines are served, too.
    pub open: bool,
    /// They speak TLS, if this is given.
    pub tls: Option<Tls>,
}

impl Default for Clients {
    fn default() -> Clients {
        Clients {
            most: 10_000,
            kept: 256 << 20,
            unread: Duration::from_secs(60),
            password: None,
            open: false,
            tls: None,
        }
    }
}

/// Why a front end ended.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The nodes cannot be reached, or hold something else.
    #[error(transparent)]
    Memory(#[from] farmem::Error),
    /// The store cannot be opened.
    #[error("store {name}: {reason}")]
    Store {
        /// Its name.
        name: String,
        /// Why.
        reason: NotOpened,
    },
    /// The least of `maxmemory` on these nodes.
    #[error("--maxmemory is too little for these nodes: {least} bytes is the least")]
    Little {
        /// Bytes.
        least: u64,
    },
    /// It cannot listen there.
    #[error("cannot listen at {at}: {reason}")]
    Listen {
        /// Where.
        at: SocketAddr,
        /// The system's error.
        reason: std::io::Error,
    },
    /// A snapshot cannot be written or restored.
    #[error("snapshot {}: {reason}", path.display())]
    Snapshot {
        /// Its file.
        path: PathBuf,
        /// Why.
        reason: Wrong,
    },
    /// It was silent for too long, and could not join again.
    #[error("this front end was silent for more than 5 s, and the others have shut it out: start it again")]
    ShutOut,
    /// An operation of the library was not carried out, or it is not known whether it was.
    #[error("{0}")]
    Refused(Trouble),
    /// An operation of the library found a key of another type.
    #[error("the key holds no string")]
    WrongType,
    /// The system refused something.
    #[error("the system refused {what}: {reason}")]
    System {
        /// The refused call or resource.
        what: &'static str,
        /// The system's error.
        reason: String,
    },
}

impl Failed {
    /// Whether a node was lost while the store was served.
    pub fn is_loss(&self) -> bool {
        matches!(self, Failed::Memory(farmem::Error::Lost { .. } | farmem::Error::Refused(_)))
    }

    /// Whether a node has said so, and is there.
    fn is_told(&self) -> bool {
        matches!(self, Failed::ShutOut | Failed::Memory(farmem::Error::Refused(_)))
    }

    /// Whether the others may have shut this front end out: its node then refuses it as one that it
    /// does not know.
    pub(crate) fn may_be_a_shutting_out(&self) -> bool {
        matches!(self, Failed::ShutOut) || self.is_loss()
    }
}

pub(crate) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

pub(crate) fn system(what: &'static str) -> impl Fn(farmem_sys::raw::Errno) -> Failed {
    move |reason| Failed::System { what, reason: reason.to_string() }
}

/// Carries out an operation while nothing else is under way.
pub(crate) fn alone<T, F: Future<Output = T> + 'static>(
    drive: &mut Drive,
    operation: impl FnOnce(Io) -> F,
) -> Result<T, farmem::Error> {
    let mut task = Task::new(operation);
    let mut ended = Vec::new();
    loop {
        if let Some(outcome) = task.step() {
            return Ok(outcome);
        }
        for (id, ask) in task.asks() {
            match ask {
                Ask::Verbs(verbs) => drive.post(u64::from(id), verbs)?,
                Ask::Pause(ms) => {
                    std::thread::sleep(Duration::from_millis(u64::from(ms)));
                    task.answer(id, Vec::new());
                }
            }
        }
        if drive.under_way() > 0 {
            drive.advance(Duration::from_millis(100), &mut ended)?;
        }
        ended.drain(..).for_each(|(id, answers)| task.answer(id as u32, answers));
    }
}

pub(crate) fn random() -> Result<u64, Failed> {
    let mut bytes = [0; 8];
    process::random_bytes(&mut bytes).map_err(|e| Failed::System { what: "random numbers", reason: e.to_string() })?;
    Ok(u64::from_le_bytes(bytes))
}

/// A region's memory, and the shards of its store.
pub(crate) type Opened = (Drive, Vec<Rc<Shard>>);

/// Opens the store and joins it. `create`: makes it if there is none.
pub(crate) fn join(config: &Config, create: bool) -> Result<Opened, Failed> {
    join_patiently(config, || connect(config, create, FIRST))
}

/// Joins by what `connect` returns. Begins again while a node is being filled. So it does if the others
/// shut this front end out: one that waits for the others, and has no CPU, is silent.
fn join_patiently(config: &Config, connect: impl Fn() -> Result<Drive, Failed>) -> Result<Opened, Failed> {
    let (begun, mut shut_out) = (std::time::Instant::now(), 0);
    loop {
        match open(config, true, connect()?) {
            Err(Failed::Store { reason: NotOpened::Mending | NotOpened::Leaving, .. }) if begun.elapsed() < FILLING => {
            }
            Err(failed) if failed.may_be_a_shutting_out() && shut_out < AGAIN => shut_out += 1,
            opened => return opened,
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Joins a store again that has shut this front end out, as `failed` says.
///
/// # Errors
/// `failed`: a node is gone, or it is another store by now.
pub(crate) fn join_anew(config: &Config, before: &[Rc<Shard>], failed: Failed) -> Result<Opened, Failed> {
    // A node that was read from, or has refused, is there.
    let timeout = if failed.is_told() { FIRST } else { DOUBT };
    let same =
        |(old, new): (&Rc<Shard>, &Rc<Shard>)| old.reach.secret == new.reach.secret && old.reach.root == new.reach.root;
    let connect = || {
        let (_, seen) = open(config, false, connect(config, false, timeout)?)?;
        if seen.len() != before.len() || !before.iter().zip(&seen).all(same) {
            return Err(Failed::Store { name: config.name.clone(), reason: NotOpened::Foreign });
        }
        connect(config, false, timeout)
    };
    join_patiently(config, connect).map_err(|_| failed)
}

/// How this front end connects to nodes of its region.
pub(crate) fn builder(config: &Config, timeout: Duration, run: [u8; 16]) -> farmem::Builder {
    let builder = Memory::builder().transport(config.transport).timeout(timeout).grace(config.grace);
    builder.trust(config.trust).region(&config.name).run(run)
}

pub(super) fn connect(config: &Config, create: bool, timeout: Duration) -> Result<Drive, Failed> {
    let mut run = [0; 16];
    process::random_bytes(&mut run).map_err(|e| Failed::System { what: "random numbers", reason: e.to_string() })?;
    let builder = config.nodes.iter().fold(builder(config, timeout, run), |builder, node| builder.node(node));
    let named = config.nodes.len();
    let drive = |memory: Memory| Ok(Drive::new(memory, config.mirror, named)?.known_as(run));
    if !config.mirror {
        if create && named > 1 && is_elsewhere(builder.clone().partial(true).connect(), named)? {
            // Some of the named nodes have no part of a store that is there. They are not given
            // one.
            return match builder.create(false).connect() {
                Err(farmem::Error::Region(_)) => {
                    Err(Failed::Store { name: config.name.clone(), reason: NotOpened::Elsewhere })
                }
                Err(e) => Err(e.into()),
                Ok(memory) => drive(memory),
            };
        }
        return drive(builder.create(create).connect()?);
    }
    // A node that has ended is no obstacle to a store that is there.
    let there = builder.clone().partial(true).connect();
    let there = match there {
        Ok(memory) => {
            let mut drive = drive(memory)?;
            let all = (0..drive.nodes()).all(|node| drive.has_node(node));
            leave_unfilled(&mut drive)?;
            follow(config, &mut drive, timeout)?;
            if !create || all || is_made(&mut drive)? {
                return Ok(drive);
            }
            Ok(())
        }
        Err(e) => Err(e),
    };
    match there {
        Err(e) if !create => Err(e.into()),
        _ if named % 2 == 1 => Err(Failed::Store { name: config.name.clone(), reason: NotOpened::Odd }),
        _ => drive(builder.create(true).connect()?),
    }
}

/// Words of a node of a pair: its root word, and the number of the attempt by which it was filled.
async fn words_of(io: &Io, root_word: u64) -> (u64, u64) {
    let attempt = root_word + 8 * ATTEMPT_WORD;
    (word(&io.read(root_word, 8).await, 0), word(&io.read(attempt, 8).await, 0))
}

/// The word of a pair at a node with this root.
async fn pair_at(io: &Io, root: u64) -> Pair {
    Pair(word(&io.read(root + head::PAIR, 8).await, 0))
}

/// Leaves out nodes that are not filled, or were not to the end: the other of the two does not
/// count on them.
fn leave_unfilled(drive: &mut Drive) -> Result<(), Failed> {
    for first in (0..drive.nodes()).step_by(2) {
        if !drive.has_node(first) || !drive.has_node(first + 1) {
            continue;
        }
        let at = [0, 1].map(|node| drive.root_word(first / 2) | node << NODE_SHIFT);
        let unfilled = alone(drive, |io| async move {
            let words = [words_of(&io, at[0]).await, words_of(&io, at[1]).await];
            for node in [0, 1] {
                let (_, attempt) = words[node];
                let (root, _) = words[1 - node];
                if attempt != 0 && root != 0 {
                    let root = root & ((1 << NODE_SHIFT) - 1) | at[1 - node] >> NODE_SHIFT << NODE_SHIFT;
                    if pair_at(&io, root).await.stage() != Stage::Both {
                        return Some(node);
                    }
                }
            }
            None
        })?;
        if let Some(node) = unfilled {
            drive.detach((first + node) as u8);
        }
    }
    Ok(())
}

/// Reaches nodes that have come in place of those that were named.
fn follow(config: &Config, drive: &mut Drive, timeout: Duration) -> Result<(), Failed> {
    for number in 0..drive.nodes() {
        let other = number ^ 1;
        if drive.has_node(number) || !drive.has_node(other) {
            continue;
        }
        let at = drive.root_word(number / 2) | (other as u64 & 1) << NODE_SHIFT;
        let found = alone(drive, |io| async move {
            let (root, _) = words_of(&io, at).await;
            let root = root & ((1 << NODE_SHIFT) - 1) | at >> NODE_SHIFT << NODE_SHIFT;
            let pair = pair_at(&io, root).await;
            let spare = crate::shard::mend::spare_of(&io, root).await?;
            (pair.stage() == Stage::Both).then_some((pair.attempt(), spare))
        })?;
        let Some((attempt, address)) = found else { continue };
        if let Ok(memory) = super::mend::open(config, drive.run(), &address, attempt, timeout) {
            drive.attach(number as u8, memory, true)?;
        }
    }
    Ok(())
}

/// Whether a node that is there has a shard of a store with two copies.
fn is_made(drive: &mut Drive) -> Result<bool, Failed> {
    let there: Vec<usize> = (0..drive.nodes()).filter(|&node| drive.has_node(node)).collect();
    for node in there {
        let at = drive.root_word(node / 2) | (node as u64 & 1) << NODE_SHIFT;
        if word(&alone(drive, |io| async move { io.read(at, 8).await })?, 0) != 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The nodes of a shard: the one that addresses carry, and how many copies there are. `None`: none
/// is there.
fn placed(config: &Config, drive: &Drive, shard: usize) -> Option<(u8, Mode)> {
    if !config.mirror {
        return Some((shard as u8, Mode::Single));
    }
    let (first, second) = (2 * shard, 2 * shard + 1);
    let mode = match (drive.has_node(first), drive.has_node(second)) {
        (true, true) => Mode::Both(second as u8),
        (true, false) => Mode::Alone(first as u8),
        (false, true) => Mode::Alone(second as u8),
        (false, false) => return None,
    };
    Some((first as u8, mode))
}

/// The store's shards, joined or only looked at.
pub(super) fn open(config: &Config, join: bool, mut drive: Drive) -> Result<Opened, Failed> {
    let mut shards = Vec::new();
    match open_each(config, join, &mut drive, &mut shards) {
        Err(failed) if join => {
            // Its lines would be taken for members that say nothing. One that cannot be given back
            // is taken for dead by the others, if there are any.
            let _ = alone(&mut drive, |io| async move {
                for shard in shards {
                    shard.members.leave(&io).await;
                }
            });
            Err(failed)
        }
        opened => opened.map(|()| (drive, shards)),
    }
}

fn open_each(config: &Config, join: bool, drive: &mut Drive, shards: &mut Vec<Rc<Shard>>) -> Result<(), Failed> {
    let count = drive.nodes() / if config.mirror { 2 } else { 1 };
    let refused = |reason| Failed::Store { name: config.name.clone(), reason };
    if config.maxmemory.is_some_and(|most| most / (count as u64) < LEAST) {
        return Err(Failed::Little { least: LEAST * count as u64 });
    }
    for number in 0..count {
        let opening = opening(config, drive, number, count)?;
        let node = opening.node;
        let opened = match join {
            true => alone(drive, |io| opening.join(io))?,
            false => alone(drive, |io| opening.look(io))?,
        };
        let shard = opened.map_err(refused)?;
        shard.reach.nodes.replace([node, node ^ 1].map(|node| drive.node(node).to_owned()));
        shard.reach.copies.proven([node, node ^ 1].map(|node| drive.proves_ends(node)));
        shard.space.limit.set(config.maxmemory.map_or(u64::MAX, |most| most / count as u64));
        shards.push(Rc::new(shard));
    }
    if join {
        // Nothing is changed before the others know that they are not alone.
        let all = shards.clone();
        let awaited = alone(drive, |io| async move {
            let each = all.iter().map(|shard| -> Pin<Box<dyn Future<Output = _> + '_>> {
                Box::pin(async {
                    shard.members.await_others(&io).await?;
                    shard.end_batches(&io).await
                })
            });
            crate::task::join(each.collect()).await
        })?;
        awaited.into_iter().collect::<Result<Vec<()>, _>>().map_err(|_| Failed::ShutOut)?;
    }
    Ok(())
}

fn opening(config: &Config, drive: &Drive, number: usize, count: usize) -> Result<Opening, Failed> {
    let refused = |reason| Failed::Store { name: config.name.clone(), reason };
    let (node, mode) = placed(config, drive, number).ok_or_else(|| refused(NotOpened::Halved))?;
    Ok(Opening {
        node,
        number: number as u8,
        mode,
        shards: count as u8,
        root_word: drive.root_word(number),
        secret: random()? | 1,
        geometry: Geometry::STORE,
        local: config.local / count as u64,
        tag: drive.member_tag(),
    })
}

/// Has a store with two copies go on without the nodes that are not there. Only whoever knows that
/// these have ended for good may ask for it. Returns the addresses of those that go on.
///
/// # Errors
/// There is no such store, or both nodes of a pair are gone.
pub fn go_alone(config: &Config) -> Result<Vec<String>, Failed> {
    let mut drive = connect(&Config { mirror: true, ..config.clone() }, false, FIRST)?;
    let count = drive.nodes() / 2;
    let mut alone_now = Vec::new();
    for number in 0..count {
        let opening = opening(&Config { mirror: true, ..config.clone() }, &drive, number, count)?;
        let mode = opening.mode;
        let marked = alone(&mut drive, |io| opening.go_alone(io))?;
        marked.map_err(|reason| Failed::Store { name: config.name.clone(), reason })?;
        if let Mode::Alone(node) = mode {
            alone_now.push(drive.node(node).to_owned());
        }
    }
    Ok(alone_now)
}

/// The addresses of the nodes that have a shard.
pub(crate) fn nodes_of(drive: &Drive, shard: &Shard) -> String {
    match shard.reach.copies.mode() {
        Mode::Single => drive.node(shard.reach.node).to_owned(),
        Mode::Alone(node) | Mode::Mending(node) => drive.node(node).to_owned(),
        Mode::Both(second) => format!("{} and {}", drive.node(shard.reach.node), drive.node(second)),
    }
}
