//! The memory node: a daemon that lends RAM.
//!
//! ```text
//! listeners ─► worker 0 ─┬─► worker 0: its connections, by epoll     each connection: a farmem_nic::Engine
//!                        └─► worker 1: its connections, by epoll     all of them: one farmem_nic::Nic
//! operator ──► metrics (HTTP), status file, SIGTERM
//! ```
//!
//! * `worker`: connections and their sockets; when to spin and when to sleep.
//! * `listen`: where the node listens.
//! * `turns`: fair shares of a worker's time between tenants.
//! * `hot`: the connections served last, which a worker looks at first.
//! * `tokens`: the store of tokens, read again when it changes. `reserve`: memory that is kept for the
//!   machine's own programs.
//! * `spill`: a file for the slabs of programs that do not answer.
//! * `graves`: slabs of large members that have ended.
//! * `trim`: memory that goes back to the system.
//! * `compute`: functions near memory.
//! * `metrics`, `status`, [`log`]: counters, status and log lines for the operator.
//! * [`run()`]: the daemon from start to SIGTERM; [`Node`]: the same inside another process.
//!
//! Verbs and requests are carried out by [`farmem_nic`].

mod compute;
mod graves;
mod hot;
mod listen;
pub mod log;
mod metrics;
mod reserve;
mod run;
mod spill;
mod status;
pub mod tokens;
mod trim;
mod turns;
mod worker;

pub use run::{run, run_with};

use farmem_fabric::NodeAddr;
use farmem_nic::lending::{Backing, Lending};
use farmem_nic::shares::Table;
use farmem_nic::{MAX_CONNECTIONS, Nic};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::extent::place::BLOCK_BYTES;
use farmem_protocol::nbd;
use farmem_protocol::node::Domain;
use farmem_protocol::units::bytes;
use farmem_sys::confine::{Confined, SERVICE, confine};
use farmem_sys::group::Groups;
use farmem_sys::process;
use farmem_sys::verbs::{Absent, Device};
use listen::Listener;
use reserve::Reserve;
use spill::Spill;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokens::{Followed, StoreError};
use worker::Workers;

/// The least number of connections that a node takes, however low its limit on descriptors is.
const FEW_CONNECTIONS: usize = 16;

/// The settings of a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes to lend, at most; whole slabs of 64 MiB are lent.
    pub lend: u64,
    /// Bytes of memory to leave to the machine's own programs. While less is available, the node
    /// lends less. 0: it does not look.
    pub reserve: u64,
    /// A directory on a disk for the slabs of programs that do not answer while the machine needs
    /// memory. `None`: they stay in memory.
    pub spill: Option<PathBuf>,
    /// Where to listen; at least one.
    pub listen: Vec<NodeAddr>,
    /// The address at which counters are served, in Prometheus' text format over HTTP.
    pub metrics: Option<SocketAddr>,
    /// How long SIGTERM waits for members to leave.
    pub grace: Duration,
    /// Back memory by huge pages where the system has them.
    pub huge: bool,
    /// Log every connection and slab, too, and not only joins, leaves and refusals.
    pub verbose: bool,
    /// The store of the tokens that permit borrowing. `None`: every host that reaches the node may.
    pub tokens: Option<PathBuf>,
    /// Started for one run: says nothing, and ends when its standard input does.
    pub embedded: bool,
    /// Whether members may reach their memory by RDMA.
    pub rdma: Rdma,
    /// The most bytes that one owner may hold. An owner is a run, or a process that claims units by
    /// itself. `None`: all that the node lends.
    pub quota: Option<u64>,
    /// The most functions near memory that may run at once. 0: every call is refused.
    pub compute: usize,
    /// The failure domain that members are told. Empty: none.
    pub domain: Domain,
    /// Whether the node gives up what it does not need before it serves ([`farmem_sys::confine`]).
    /// Its process must have one thread then.
    pub confined: bool,
    /// A private directory. It gets the status file by which `farmem top` finds the node. If
    /// [`listen`](Config::listen) names no Unix socket, it also gets one through which programs on
    /// this machine map the node's memory.
    pub status_dir: Option<PathBuf>,
}

impl Config {
    /// A node that lends this many bytes at these addresses, with everything optional off:
    /// counters, huge pages, the card, quotas.
    pub fn new(lend: u64, listen: Vec<NodeAddr>) -> Config {
        Config {
            lend,
            reserve: 0,
            spill: None,
            listen,
            metrics: None,
            grace: Duration::ZERO,
            huge: false,
            verbose: false,
            tokens: None,
            embedded: false,
            rdma: Rdma::Off,
            quota: None,
            compute: 0,
            domain: Domain::EMPTY,
            confined: false,
            status_dir: None,
        }
    }
}

impl Config {
    /// The Unix socket that the node opens unasked. A peer on this machine that comes by TCP is
    /// told of it, and maps the node's memory if the directory's mode lets it in. The node of a
    /// single run has none: the run chooses how to reach it.
    fn own_socket(&self) -> Option<NodeAddr> {
        let has_one = self.listen.iter().any(|at| matches!(at, NodeAddr::Shm(_)));
        let dir = self.status_dir.as_ref().filter(|_| !has_one && !self.embedded)?;
        Some(NodeAddr::Shm(dir.join(format!("node-{}.sock", std::process::id()))))
    }
}

/// Which RDMA card a node offers, beside TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rdma {
    /// The first card whose port is up, if there is one and the node listens on TCP.
    Auto,
    /// None.
    Off,
    /// The card of this name. If it cannot be used, the node does not start.
    Card(String),
}

impl Rdma {
    fn open(&self, listen: &[NodeAddr]) -> Result<Option<Device>, StartError> {
        match self {
            Rdma::Off => Ok(None),
            // A card that cannot be used is no reason not to serve TCP.
            Rdma::Auto if listen.iter().any(|at| matches!(at, NodeAddr::Tcp(_))) => Ok(Device::open(None).ok()),
            Rdma::Auto => Ok(None),
            Rdma::Card(name) => Device::open(Some(name)).map(Some).map_err(StartError::Rdma),
        }
    }
}

/// Why a node could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// `lend` is less than one slab.
    #[error("--lend is below {} MiB, the unit in which memory is lent", SLAB_BYTES >> 20)]
    TooLittle,
    /// `lend` is more than the machine has, or than the node's memory group may have.
    #[error("--lend: {} is more than this {whose} {}: lend less", bytes(lend_mib << 20), bytes(ram_mib << 20))]
    TooMuch {
        /// The owner of the memory that is too small: "machine's", or "memory group's".
        whose: &'static str,
        /// Bytes to lend, in MiB.
        lend_mib: u64,
        /// Bytes that the owner has, in MiB.
        ram_mib: u64,
    },
    /// The quota is less than one block, so nobody could hold anything.
    #[error("--quota is below {} MiB, the least that anybody is given (a run: {} MiB)", BLOCK_BYTES >> 20, SLAB_BYTES >> 20)]
    LittleQuota,
    /// An address cannot be listened on.
    #[error("cannot listen on {0}: {1}")]
    Listen(String, std::io::Error),
    /// The system refused threads, descriptors or randomness.
    #[error("the system refused what a node needs: {0}")]
    System(std::io::Error),
    /// The limit on file sizes is too low: a node lends files without a name (memfd), one for each
    /// slab and one of words.
    #[error("files may have {0} KiB at most (ulimit -f), and what a node lends is such files: allow {1} MiB or more")]
    Files(u64, u64),
    /// The RDMA card that was named cannot be used.
    #[error("{0}")]
    Rdma(Absent),
    /// No file can be made for what is spilled.
    #[error("--spill {0}: no file can be made there: {1}")]
    Spill(PathBuf, std::io::Error),
    /// The file for what is spilled would take memory.
    #[error("--spill {0}: this directory is in memory: name one on a disk")]
    SpillInMemory(PathBuf),
    /// The store of tokens is another user's.
    #[error("--tokens {0}: its owner is another user, and the node gives up root's right to read it: chown root {0}")]
    OthersTokens(PathBuf),
    /// The store of tokens cannot be used.
    #[error("--tokens {}{}", .0, .0.remedy())]
    Tokens(#[from] tokens::StoreError),
    /// The status file cannot be written.
    #[error("cannot write {0}: {1}")]
    Status(PathBuf, std::io::Error),
}

impl From<farmem_sys::raw::Errno> for StartError {
    fn from(e: farmem_sys::raw::Errno) -> Self {
        StartError::System(std::io::Error::from_raw_os_error(e.0))
    }
}

/// A node that runs in this process. Dropping it ends it at once.
pub struct Node {
    nic: Arc<Nic>,
    addresses: Vec<NodeAddr>,
    workers: Workers,
    metrics: Option<SocketAddr>,
    /// Why the node has no Unix socket of its own, if opening one failed.
    unshared: Option<StartError>,
    tokens: Option<Mutex<Followed>>,
    confined: Option<Confined>,
}

impl Node {
    /// Starts a node.
    pub fn start(config: &Config) -> Result<Node, StartError> {
        if config.lend < SLAB_BYTES {
            return Err(StartError::TooLittle);
        }
        if config.quota.is_some_and(|quota| quota < BLOCK_BYTES) {
            return Err(StartError::LittleQuota);
        }
        let machine = status::machine_ram().map(|ram| (ram, "machine's"));
        let group = Groups::own().and_then(|groups| groups.limit()).map(|limit| (limit.bytes, "memory group's"));
        if let Some((ram, whose)) = machine.into_iter().chain(group).find(|(ram, _)| config.lend > *ram) {
            return Err(StartError::TooMuch { whose, lend_mib: config.lend >> 20, ram_mib: ram >> 20 });
        }
        let descriptors = process::raise_descriptor_limit();
        // The words of a node take at most a 256th of what it lends.
        let (longest, may_have) = (SLAB_BYTES.max(config.lend / 256), process::raise_file_limit());
        if may_have < longest {
            return Err(StartError::Files(may_have >> 10, longest >> 20));
        }
        // The node does not start without randomness.
        let mut probe = [0; 1];
        process::random_bytes(&mut probe).map_err(StartError::System)?;
        let backing = if config.huge { Backing::Huge } else { Backing::Small };
        let card = config.rdma.open(&config.listen)?;
        if card.is_some() && config.confined {
            // The right to lock more than the limit is given up below.
            process::raise_lock_limit();
        }
        let nic = Nic::new(Lending::new(config.lend, backing), || {
            let mut secret = [0; 16];
            // The probe at start has worked, and the kernel's generator does not stop.
            let _ = process::random_bytes(&mut secret);
            secret
        });
        let mut nic = nic.over(card);
        nic.domain = config.domain;
        if config.reserve > 0 {
            // From the first member on, it lends no more than it may, and members know that they may be
            // asked for slabs. The daemon says a line about it when it looks first.
            let _ = Reserve::new(config.reserve).look(&nic);
        }
        // Half of the descriptors are for connections. The others are for slabs, and for what
        // members on this machine map.
        let most = usize::try_from(descriptors / 2).unwrap_or(usize::MAX);
        nic.connections = Table::new(most.clamp(FEW_CONNECTIONS, MAX_CONNECTIONS));
        let nic = Arc::new(nic);
        if config.compute > 0 {
            nic.serve(compute::Compute::new(config.compute));
        }
        nic.volumes.set_machine(nbd::machine(&std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default()));
        nic.units.set_quota(config.quota.unwrap_or(u64::MAX));
        nic.units.set_descriptors(descriptors);
        // The port of the counters is bound before the listeners: a peer that reaches the node can
        // also read its counters.
        let metrics = config.metrics.map(metrics::bind).transpose()?;
        let mut listeners = config.listen.iter().map(Listener::bind).collect::<Result<Vec<_>, _>>()?;
        let addresses = listeners.iter().map(Listener::address).collect();
        let (own_socket, unshared) = match config.own_socket().map(|at| Listener::bind(&at)) {
            Some(Ok(listener)) => (Some(listener), None),
            Some(Err(e)) => (None, Some(e)),
            None => (None, None),
        };
        listeners.extend(own_socket);
        let spill = config.spill.as_deref().map(Spill::new_in).transpose()?;
        // All work that needs root's rights is done, and no other thread has begun.
        let confined = config.confined.then(|| confine(&[SERVICE]));
        // The store is read before any host is let in. It is read with the rights that the node
        // keeps, because the node reads it again later.
        let tokens = config.tokens.as_deref().map(|path| followed(path, &nic)).transpose()?.map(Mutex::new);
        let metrics = metrics.map(|listener| metrics::serve(listener, &nic)).transpose()?;
        spill.map(|spill| spill.begin(&nic)).transpose()?;
        graves::begin(&nic)?;
        let workers = Workers::start(&nic, listeners)?;
        Ok(Node { nic, addresses, workers, metrics, unshared, tokens, confined })
    }

    /// The addresses on which the node listens. A configured port 0 is replaced by the port that
    /// the system chose.
    pub fn addresses(&self) -> &[NodeAddr] {
        &self.addresses
    }

    /// Why programs on this machine cannot map its memory, if they cannot: it has no Unix socket.
    pub fn unshared(&self) -> Option<&StartError> {
        self.unshared.as_ref()
    }

    /// Reads the store of tokens again, if it has changed. The caller calls this every second. A
    /// failure is returned once.
    pub fn look_at_tokens(&self) -> Option<StoreError> {
        let mut followed = self.tokens.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        followed.look(&self.nic)
    }

    /// The result of confining the process at start ([`farmem_sys::confine`]). `None`: the node is
    /// not confined.
    pub fn confined(&self) -> Option<Confined> {
        self.confined
    }

    /// The address at which the counters are served.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Its connections. An ended connection counts until its peer has taken the descriptors that it
    /// was sent, or has closed its end.
    pub fn connections(&self) -> usize {
        self.workers.connections()
    }

    /// Its state.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Its state, shared, so that a thread can outlive the borrow.
    pub fn shared_nic(&self) -> &Arc<Nic> {
        &self.nic
    }

    /// Stops taking new runs, and waits at most `grace` for members that hold something or are
    /// connected. Returns how many of these are left.
    pub fn drain(&self, grace: Duration) -> usize {
        self.nic.drain();
        let until = Instant::now() + grace;
        loop {
            let left = self.nic.awaited().len() + self.nic.volumes.all().len();
            if left == 0 || Instant::now() >= until {
                return left;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Reads the store of tokens.
fn followed(path: &Path, nic: &Nic) -> Result<Followed, StartError> {
    Followed::begin(path, nic).map_err(|e| match e.forbidden() && process::user() == 0 {
        true => StartError::OthersTokens(path.to_owned()),
        false => e.into(),
    })
}

impl Drop for Node {
    fn drop(&mut self) {
        // Before the workers stop: they let members go as they close connections. Slabs that these
        // members have mapped must not be scrubbed then.
        self.nic.lending.leave_alone();
        self.workers.stop();
    }
}
