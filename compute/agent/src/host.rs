//! The agent of a host, as a process: its files, its node, its end.
//!
//! | file in the private directory | |
//! |---|---|
//! | `agent.lock` | locked while an agent runs: there is one at most |
//! | `agent.sock` | where applications connect |
//! | `agent.ledger` | [`crate::ledger`]; of a former agent, if it was killed |

use crate::blocks::{Blocks, Claimed, JoinError, Recorded};
use crate::ledger::{self, Ledger, NODES, Owned};
use crate::serve::{End, MoveError, Report, Service, text_of};
use crate::sources::Sources;
use crate::stock::{Quotas, Stock};
use farmem_fabric::session::names_of;
use farmem_fabric::words::WordsError;
use farmem_fabric::{ConnectError, ConnectOptions, NodeAddr, Transport, Trust};
use farmem_protocol::extent::Failed;
use farmem_sys::process;
use farmem_sys::raw::Errno;
use farmem_sys::shared;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two attempts to reach a node that a former agent used.
pub const AGAIN_EVERY: Duration = Duration::from_millis(200);

/// The settings of an agent.
#[derive(Clone, Debug)]
pub struct Config {
    /// A private directory for its files.
    pub dir: PathBuf,
    /// The node that it takes memory from. By its Unix socket, on this machine: memory is mapped by
    /// programs. By host and port: programs reach it by verbs.
    pub node: NodeAddr,
    /// How programs reach a node by host and port: [`Transport::Tcp`] or [`Transport::Verbs`].
    pub transport: Transport,
    /// The quotas of tenants.
    pub quotas: Quotas,
    /// It ends when nobody has used it for so long; `None`: never.
    pub idle: Option<Duration>,
    /// So long the node keeps its memory, should it be killed.
    pub grace: Duration,
    /// By what it and its node know each other.
    pub trust: Trust,
}

/// Why an agent could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is one.
    #[error("an agent is running already: its socket is {0}")]
    Running(PathBuf),
    /// Its node cannot be used.
    #[error(transparent)]
    Node(#[from] ConnectError),
    /// Its node's words cannot be read.
    #[error(transparent)]
    Words(#[from] WordsError),
    /// A block that a former agent was splitting cannot be split.
    #[error("a GiB that the former agent was splitting cannot be split to the end ({0}): start again")]
    Split(Failed),
    /// A file cannot be used.
    #[error("cannot use {0}: {1}")]
    File(PathBuf, io::Error),
    /// It cannot move to another node.
    #[error(transparent)]
    Move(#[from] MoveError),
    /// The system refused threads or descriptors.
    #[error("the system refused what an agent needs: {0}")]
    System(#[from] Errno),
}

impl From<JoinError> for StartError {
    fn from(e: JoinError) -> StartError {
        match e {
            JoinError::Node(e) => e.into(),
            JoinError::Words(e) => e.into(),
            JoinError::Split(e) => StartError::Split(e),
        }
    }
}

/// Where an agent with this directory listens.
pub fn socket(dir: &Path) -> PathBuf {
    dir.join("agent.sock")
}

/// The node that an agent used which has ended, and of which this directory has a record. `None` also
/// while an agent runs.
pub fn used(dir: &Path) -> Option<NodeAddr> {
    let lock = private(&dir.join("agent.lock")).ok()?;
    let is_alone = shared::lock_file(lock.as_raw_fd()).ok()?;
    let file = File::options().read(true).write(true).open(dir.join("agent.ledger")).ok()?;
    if !is_alone || file.metadata().ok()?.len() != ledger::BYTES as u64 {
        return None;
    }
    let (ledger, _) = Ledger::open(file.as_raw_fd()).ok()?;
    let (current, _) = ledger.current();
    ledger.membership(current).and_then(|_| ledger.address(current)).map(NodeAddr::Tcp)
}

/// An agent that can be run.
pub struct Agent {
    config: Config,
    service: Arc<Service>,
    ledger: Arc<Ledger>,
    listener: UnixListener,
    /// Locked as long as it is open.
    _lock: File,
    /// The node that it uses, which its last move may have led to.
    node: NodeAddr,
    /// Applications of a killed agent that it has taken over.
    pub recovered: usize,
}

/// Moves an agent to other nodes.
#[derive(Clone)]
pub struct Mover {
    config: Config,
    service: Arc<Service>,
    ledger: Arc<Ledger>,
}

impl Agent {
    /// Takes over the memory of a former agent that was killed, or joins the node as a new member.
    ///
    /// A node of the former agent that cannot be reached is waited for until [`Config::grace`] has
    /// passed, if another node is named and programs have memory there.
    pub fn start(config: Config) -> Result<Agent, StartError> {
        Agent::start_with(config, &mut |_| {
            std::thread::sleep(AGAIN_EVERY);
            true
        })
    }

    /// The same. `waits` is called between two attempts to reach such a node. It pauses, as for
    /// [`AGAIN_EVERY`], and returns whether the start goes on.
    ///
    /// # Errors
    /// [`StartError`]. The record is as it was, and the next start finds the same.
    pub fn start_with(config: Config, waits: &mut Waits<'_>) -> Result<Agent, StartError> {
        let lock_path = config.dir.join("agent.lock");
        let lock = private(&lock_path)?;
        if !shared::lock_file(lock.as_raw_fd())? {
            return Err(StartError::Running(socket(&config.dir)));
        }
        let ledger_path = config.dir.join("agent.ledger");
        let file = private(&ledger_path)?;
        file.set_len(ledger::BYTES as u64).map_err(|e| StartError::File(ledger_path, e))?;
        let (ledger, _) = Ledger::open(file.as_raw_fd())?;
        let ledger = Arc::new(ledger);

        let mut stock = Stock::open(Arc::clone(&ledger), config.quotas.clone());
        let (sources, node) = match resumed(&config, &ledger, &mut stock, waits)? {
            Some(resumed) => resumed,
            None => {
                ledger.clear();
                stock = Stock::open(Arc::clone(&ledger), config.quotas.clone());
                if let NodeAddr::Tcp(at) = &config.node {
                    ledger.set_address(0, at);
                }
                let blocks = Blocks::join(&config.node, &config.options()?, Arc::clone(&ledger))?;
                let text = text_of(&config.node, config.transport, 0);
                (Sources::new(Arc::clone(&ledger), blocks, text), config.node.clone())
            }
        };
        let recovered = stock.applications().count();
        let text = sources.text_now();
        let service = Service::new(stock, sources, text)?;
        let at = socket(&config.dir);
        // A killed agent's; another that lives has the lock.
        let _ = std::fs::remove_file(&at);
        let listener = UnixListener::bind(&at).map_err(|e| StartError::File(at, e))?;
        Ok(Agent { config, service, ledger, listener, _lock: lock, node, recovered })
    }

    /// The service; [`Service::stop`] is called on it.
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// The present state.
    pub fn report(&self) -> Report {
        self.service.report(&self.ledger)
    }

    /// A handle by which a thread of the caller's moves the agent to another node.
    pub fn mover(&self) -> Mover {
        let (config, service, ledger) = (self.config.clone(), Arc::clone(&self.service), Arc::clone(&self.ledger));
        Mover { config, service, ledger }
    }

    /// The node that it used at its start. It is another than the configured one if a former agent
    /// has moved.
    pub fn node(&self) -> &NodeAddr {
        &self.node
    }

    /// Serves until told to stop, or idle. `each` is called a few times a second.
    pub fn run(&self, each: &mut dyn FnMut(&Report)) -> Result<End, StartError> {
        if self.service.is_moving() {
            // A move that a former agent began. If its thread cannot be made, the next agent ends it.
            let service = Arc::clone(&self.service);
            let goes_on = move || while let Err(MoveError::Room) = service.finish_move() {};
            let _ = std::thread::Builder::new().name("moves".into()).spawn(goes_on);
        }
        let mut tell = || each(&self.report());
        Ok(self.service.run(Some(&self.listener), &self.ledger, self.config.idle, &mut tell)?)
    }

    /// After [`Agent::run`]. If applications are still there their memory stays theirs, and the
    /// process must end now, for another agent to take over; else nothing is left.
    pub fn close(self) {
        let _ = std::fs::remove_file(socket(&self.config.dir));
        if self.report().applications.is_empty() {
            let _ = std::fs::remove_file(self.config.dir.join("agent.ledger"));
        } else {
            // No farewell to the node, which would take the memory back.
            std::mem::forget(self.service);
        }
    }
}

impl Mover {
    /// Bytes that the agent has claimed at its nodes.
    pub fn taken(&self) -> u64 {
        self.service.report(&self.ledger).taken
    }

    /// Moves all memory of the agent to another node, and claims there from now on. It returns when
    /// nothing is left at the old one. False: it is the same node, or was there already.
    ///
    /// # Errors
    /// [`MoveError`]. After [`MoveError::Room`] call it again.
    pub fn to(&self, node: &NodeAddr) -> Result<bool, StartError> {
        Ok(self.service.move_to(node, &self.config.options()?, &self.ledger)?)
    }
}

impl Config {
    fn options(&self) -> Result<ConnectOptions, StartError> {
        Ok(ConnectOptions {
            timeout: Duration::from_secs(5),
            grace: self.grace,
            run: random()?,
            pid: std::process::id(),
            transport: self.transport,
            names: names_of("farmem agent"),
            trust: self.trust,
        })
    }
}

/// Called with the reason while a node is waited for; false ends the wait.
pub type Waits<'a> = dyn FnMut(&ConnectError) -> bool + 'a;

/// A node of a former agent.
enum Asked {
    /// The agent is its member again.
    Back(Box<Blocks>, NodeAddr),
    /// It has nothing of the agent's any more, or nothing that a program needs.
    Gone,
    /// It may still have programs' memory, and cannot be reached now.
    Away(ConnectError),
}

/// The nodes of a former agent, and the one that it used. `None`: there was none, or each was
/// restarted or has given the memory back. If one of several has, the applications that have blocks
/// there are dismissed, and the others keep theirs.
pub(crate) fn resumed(
    config: &Config,
    ledger: &Arc<Ledger>,
    stock: &mut Stock,
    waits: &mut Waits<'_>,
) -> Result<Option<(Sources, NodeAddr)>, StartError> {
    let (current, moves) = ledger.current();
    let (mut found, mut lost) = (Vec::new(), Vec::new());
    if let Err(e) = ask_all(config, (ledger, stock), waits, (&mut found, &mut lost)) {
        // No farewell to those that were reached: they would take the memory back.
        found.into_iter().for_each(std::mem::forget);
        return Err(e);
    }
    // The one that was used, or the one that was used last of those that are left. It comes last.
    found.sort_by_key(|(at, ..)| (*at == current, ledger.number(*at)));
    let Some((used, blocks, node)) = found.pop() else { return Ok(None) };
    let text = |at: usize, node: &NodeAddr| text_of(node, config.transport, ledger.number(at));
    let mut sources = Sources::new(Arc::clone(ledger), blocks, text(used, &node));
    for (at, blocks, node) in found {
        let text = text(at, &node);
        sources = sources.leaving(blocks, text);
    }
    let is_lost = |owned: &&Owned| lost.iter().any(|at| owned.is_at(*at));
    let dismissed: BTreeSet<usize> = stock.owned().filter(is_lost).map(|owned| owned.app).collect();
    let freed = dismissed.into_iter().flat_map(|app| stock.dismiss(app)).map(|(block, _)| block);
    // Their memory at living nodes goes back to them.
    sources.release(&freed.collect::<Vec<_>>());
    stock.owned().for_each(|run| sources.resume(run));
    // Last: until then the next agent finds the same.
    ledger.set_current(used, moves);
    lost.into_iter().for_each(|at| ledger.set_membership(at, None));
    Ok(Some((sources, node)))
}

/// Asks each node of a former agent, until each has answered or counts as lost.
///
/// All are asked before one is waited for: each keeps the memory for its grace only. After the grace
/// a node that was away has given the memory back, or does so as soon as it sees that nobody came.
fn ask_all(
    config: &Config,
    (ledger, stock): (&Arc<Ledger>, &Stock),
    waits: &mut Waits<'_>,
    (found, lost): (&mut Vec<(usize, Blocks, NodeAddr)>, &mut Vec<usize>),
) -> Result<(), StartError> {
    let until = Instant::now() + config.grace;
    let mut asked: Vec<usize> = (0..NODES).filter(|at| ledger.membership(*at).is_some()).collect();
    loop {
        let (mut away, mut why) = (Vec::new(), None);
        for at in asked {
            match again(config, ledger, stock, at)? {
                Asked::Back(blocks, node) => found.push((at, *blocks, node)),
                Asked::Away(e) if Instant::now() < until => {
                    away.push(at);
                    why = Some(e);
                }
                Asked::Gone | Asked::Away(_) => lost.push(at),
            }
        }
        let Some(e) = why else { return Ok(()) };
        if !waits(&e) {
            return Err(e.into());
        }
        asked = away;
    }
}

/// Asks a node of a former agent to have the agent as its member again.
fn again(config: &Config, ledger: &Arc<Ledger>, stock: &Stock, at: usize) -> Result<Asked, StartError> {
    let Some(member) = ledger.membership(at) else { return Ok(Asked::Gone) };
    let recorded = stock.owned().filter_map(|owned| {
        let claimed = Claimed { block: owned.block, place: owned.place_at(at)? };
        Some(Recorded { claimed, blocks: owned.blocks })
    });
    let node = ledger.address(at).map_or_else(|| config.node.clone(), NodeAddr::Tcp);
    let options = config.options()?;
    let (is_named, is_current) = (node == config.node, at == ledger.current().0);
    let is_needed = stock.owned().any(|owned| owned.is_at(at));
    match Blocks::resume(&node, &options, (Arc::clone(ledger), at), &member, recorded) {
        Ok(blocks) => Ok(Asked::Back(Box::new(blocks), node)),
        Err(JoinError::Node(ConnectError::Unknown(_))) => Ok(Asked::Gone),
        // No program has memory there: the former agent had just joined it, or was about to leave it, or
        // another is named.
        Err(JoinError::Node(_)) if !(is_needed || is_named && is_current) => Ok(Asked::Gone),
        // Nothing listens there: the memory ended with the node. So another one is named.
        Err(JoinError::Node(ConnectError::Refused(_))) if !is_named => Ok(Asked::Gone),
        // Any other error leaves open whether it lives.
        Err(JoinError::Node(e)) if !is_named => Ok(Asked::Away(e)),
        Err(e) => Err(e.into()),
    }
}

fn private(path: &Path) -> Result<File, StartError> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    options.open(path).map_err(|e| StartError::File(path.to_owned(), e))
}

fn random() -> Result<[u8; 16], StartError> {
    let mut bits = [0; 16];
    process::random_bytes(&mut bits).map_err(|_| StartError::System(Errno(libc::EIO)))?;
    Ok(bits)
}
