//! A front end's settings, how it opens a store, and why it ends.

use super::connect::{connect, unmake};
use super::snapshot::Wrong;
use super::tls::Tls;
use crate::drive::Drive;
use crate::layout::Geometry;
use crate::shard::copies::Mode;
use crate::shard::member::{NotOpened, Opening};
use crate::shard::{Shard, Trouble};
use crate::task::{Ask, Io, Task};
use farmem::{RegionError, Transport, Trust};
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
pub(super) const DOUBT: Duration = Duration::from_secs(2);
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

    /// Whether this front end can do nothing more for the store.
    pub fn is_final(&self) -> bool {
        matches!(self, Failed::ShutOut | Failed::Store { reason: NotOpened::Removed, .. }) || self.is_loss()
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
/// `failed`: a node is gone, or it is another store by now. [`NotOpened::Removed`]: its region was removed.
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
    join_patiently(config, connect).map_err(|why| match why {
        Failed::Store { reason: NotOpened::Removed, .. } => why,
        // Nobody shuts a front end out of a store that is gone: it was removed in between.
        Failed::Store { reason: NotOpened::Foreign, .. }
        | Failed::Memory(farmem::Error::Region(RegionError::Unknown { .. }))
            if matches!(failed, Failed::ShutOut) =>
        {
            Failed::Store { name: config.name.clone(), reason: NotOpened::Removed }
        }
        _ => failed,
    })
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
    let opened = open_each(config, join, &mut drive, &mut shards);
    match opened {
        Err(failed) if join => {
            // Its lines would be taken for members that say nothing. One that cannot be given back
            // is taken for dead by the others, if there are any.
            let _ = alone(&mut drive, |io| async move {
                for shard in shards {
                    shard.members.leave(&io).await;
                }
            });
            let made = drive.made().to_vec();
            drop(drive);
            unmake(config, &made);
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
