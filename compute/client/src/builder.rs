//! Connecting: which nodes, and what is shared there.
//!
//! *A region on several nodes* consists of regions of the same name, one at each. The word at
//! [`IDENTITY`] of each one's first slab says which:
//!
//! ```text
//! 63                 16 15      8 7       0
//! |     id, random     | nodes   | number  |      0: not made yet
//! ```
//! A process that makes it swaps the id into the first node's word. Then it swaps the id that
//! stands there into the others' words. So several processes can make it at once. If one is killed
//! meanwhile, the next one finishes it.

use crate::lane::Lane;
use crate::memory::{IDENTITY, Inner};
use crate::shard::Shard;
use crate::{Addr, Error, Memory, Result};
use farmem_fabric::session::names_of;
use farmem_fabric::{ConnectOptions, NodeAddr, Session, Transport};
use farmem_protocol::region::RegionName;
use farmem_protocol::wire::tag;
use farmem_sys::{process, shared};
use farmem_trust::{Trust, file};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The description of a [`Memory`] to connect to.
#[derive(Clone, Debug)]
#[must_use = "nothing is done before connect"]
pub struct Builder {
    nodes: Vec<String>,
    region: Option<String>,
    create: bool,
    transport: Transport,
    rate: Option<u64>,
    timeout: Duration,
    grace: Duration,
    token: Option<PathBuf>,
    trust: Option<Trust>,
    plain: bool,
    partial: bool,
    run: Option<[u8; 16]>,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            nodes: Vec::new(),
            region: None,
            create: false,
            transport: Transport::Auto,
            rate: None,
            timeout: Duration::from_secs(5),
            grace: Duration::from_secs(10),
            token: None,
            trust: None,
            plain: false,
            partial: false,
            run: None,
        }
    }
}

impl Builder {
    /// Adds a node: `host:7411`, or `unix:/path` on this machine.
    pub fn node(mut self, address: impl Into<String>) -> Builder {
        self.nodes.push(address.into());
        self
    }

    /// The nodes that were added.
    pub(crate) fn addresses(&self) -> &[String] {
        &self.nodes
    }

    /// The memory is the region of this name: 1 to 16 letters, digits, `.`, `_` and `-`. Without:
    /// it is private.
    pub fn region(mut self, name: impl Into<String>) -> Builder {
        self.region = Some(name.into());
        self
    }

    /// Whether the region is made if there is none. Usually not.
    pub fn create(mut self, create: bool) -> Builder {
        self.create = create;
        self
    }

    /// How bytes are to move. Usually the fastest way that works.
    pub fn transport(mut self, transport: Transport) -> Builder {
        self.transport = transport;
        self
    }

    /// How long a node may take to answer at first. Usually 5 s.
    pub fn timeout(mut self, timeout: Duration) -> Builder {
        self.timeout = timeout;
        self
    }

    /// How long a connection that was cut is tried again before the node counts as lost. Usually 10
    /// s.
    pub fn grace(mut self, grace: Duration) -> Builder {
        self.grace = grace;
        self
    }

    /// Borrows by the token in a file, which only its owner may read. Without this, the variable
    /// `FARMEM_TOKEN` may name the file. With a token, TCP is encrypted.
    pub fn token(mut self, file: impl Into<PathBuf>) -> Builder {
        self.token = Some(file.into());
        self
    }

    /// Leaves TCP unencrypted although a token is named: bytes can be read and changed on their
    /// way. Default: false.
    pub fn plain(mut self, plain: bool) -> Builder {
        self.plain = plain;
        self
    }

    /// Holds TCP to a rate in bits a second, in each direction: for measuring.
    #[doc(hidden)]
    pub fn rate(mut self, bits_per_s: Option<u64>) -> Builder {
        self.rate = bits_per_s;
        self
    }

    /// Borrows by a token that was read already.
    #[doc(hidden)]
    pub fn trust(mut self, trust: Trust) -> Builder {
        self.trust = Some(trust);
        self
    }

    /// Whether nodes may be left out that are not there, or do not have the region. Usually not.
    /// The region is not made then. [`Memory::numbers`] tells which nodes were found.
    pub fn partial(mut self, partial: bool) -> Builder {
        self.partial = partial;
        self
    }

    /// Has the nodes know this process by these random bytes, and [`Memory::tag`] follow from them.
    /// For a process that connects to further nodes of a region later.
    #[doc(hidden)]
    pub fn run(mut self, run: [u8; 16]) -> Builder {
        self.run = Some(run);
        self
    }

    /// Connects to all nodes. Opens, or makes, the region.
    ///
    /// # Errors
    /// Nothing is left behind after an error, but that a region may have been made on some of the
    /// nodes.
    pub fn connect(self) -> Result<Memory> {
        if self.nodes.is_empty() || self.nodes.len() > Addr::MAX_NODES {
            return Err(Error::Nodes(self.nodes.len()));
        }
        let region = self.region.as_deref().map(str::parse::<RegionName>).transpose()?;
        let mut run = [0; 16];
        match self.run {
            Some(given) => run = given,
            None => process::random_bytes(&mut run).map_err(|e| Error::System(e.to_string()))?,
        }
        let here = shared::wiped_on_fork().map_err(|e| Error::System(e.to_string()))?;
        if let Some(name) = region.filter(|_| self.create && !self.partial && self.nodes.len() > 1) {
            self.look(name, run)?;
        }
        let mut kept = Builder { nodes: Vec::new(), ..self.clone() };
        let (mut shards, mut failed) = (Vec::new(), None);
        for node in &self.nodes {
            match self.shard(node, region, run) {
                Ok(shard) => {
                    shards.push(shard);
                    kept.nodes.push(node.clone());
                }
                Err(e @ (Error::Connect(_) | Error::Region(_))) if self.partial => failed = Some(e),
                Err(e) => return Err(e),
            }
        }
        if let Some(failed) = failed.filter(|_| shards.is_empty()) {
            return Err(failed);
        }
        let memory = Memory { inner: Arc::new(Inner::new(shards, region, tag(&run), here)), numbers: None };
        match region {
            Some(name) => kept.identified(memory, name, run),
            None => Ok(memory),
        }
    }

    /// Refuses a region that is there, and lies on another number of nodes than are named.
    /// Otherwise it would be made, and stay, at those that do not have it.
    fn look(&self, name: RegionName, run: [u8; 16]) -> Result<()> {
        let (mut shards, mut found) = (Vec::new(), Vec::new());
        for node in &self.nodes {
            let session = self.session(node, run)?;
            if session.regions().open(name, false).is_ok() {
                shards.push(Shard::new(session, Some(name)));
                found.push(node);
            }
        }
        if shards.is_empty() || shards.len() == self.nodes.len() {
            return Ok(());
        }
        let here = shared::wiped_on_fork().map_err(|e| Error::System(e.to_string()))?;
        let memory = Memory { inner: Arc::new(Inner::new(shards, Some(name), tag(&run), here)), numbers: None };
        let mut lane = memory.lane()?;
        for (at, node) in found.into_iter().enumerate() {
            let word = Builder { create: false, ..self.clone() }.identity(&mut lane, at, 0)?;
            let count = (word >> 8 & 0xff) as usize;
            if word != 0 && count != self.nodes.len() {
                let reason = spread(count, self.nodes.len());
                return Err(Error::Foreign { region: name.to_string(), node: node.clone(), reason });
            }
        }
        Ok(())
    }

    fn shard(&self, node: &str, region: Option<RegionName>, run: [u8; 16]) -> Result<Shard> {
        let session = self.session(node, run)?;
        if let Some(name) = region {
            session.regions().open(name, self.create && !self.partial)?;
        }
        let shard = Shard::new(session, region);
        if region.is_some() && shard.up_to(1)?.is_empty() && self.create {
            shard.grow(0)?;
        }
        Ok(shard)
    }

    /// One node, joined.
    pub(crate) fn session(&self, node: &str, run: [u8; 16]) -> Result<Session> {
        let address: NodeAddr = node.parse()?;
        let options = ConnectOptions {
            timeout: self.timeout,
            grace: self.grace,
            run,
            pid: std::process::id(),
            transport: self.transport,
            names: names_of(&program()),
            trust: self.trusted()?,
        };
        Ok(Session::connect_at_rate(&address, &options, self.rate)?)
    }

    fn trusted(&self) -> Result<Trust> {
        if let Some(trust) = self.trust {
            return Ok(trust);
        }
        let token = match &self.token {
            Some(path) => file::token(path).map(Some),
            None => file::of_environment(),
        };
        Ok(Trust { token: token.map_err(|e| Error::Token(e.to_string()))?, plain: self.plain })
    }

    /// The memory with its nodes in the region's order. Makes the region's identity if need be.
    ///
    /// The first word of the region at each node says which region, of how many nodes, and which of
    /// them this one is:
    ///
    /// ```text
    /// 63            16 15     8 7        0
    /// │ region's id   │ nodes  │ number   │   0: nothing was made here
    /// ```
    fn identified(&self, mut memory: Memory, name: RegionName, run: [u8; 16]) -> Result<Memory> {
        let nodes = memory.nodes();
        let random = run.iter().take(6).fold(0u64, |word, &byte| word << 8 | byte as u64) | 1;
        let mut lane = memory.lane()?;
        let looks = Builder { create: false, ..self.clone() };
        let mut words = (0..nodes).map(|at| looks.identity(&mut lane, at, 0)).collect::<Result<Vec<u64>>>()?;
        // All who make it go by the nodes in one order, however they name them. So at each node
        // they know the same words, by which each of them gives the same id and a number that is
        // not given yet.
        let mut turns: Vec<usize> = (0..nodes).filter(|&at| self.create && words[at] == 0).collect();
        turns.sort_by_key(|&at| memory.inner.shards[at].session().identity().incarnation);
        for at in turns {
            let given = |number: &usize| words.iter().any(|&word| word != 0 && (word & 0xff) as usize == *number);
            let number = Some(at).filter(|at| !given(at)).or((0..nodes).find(|number| !given(number))).unwrap_or(at);
            let id = words.iter().find(|&&word| word != 0).map_or(random, |word| word >> 16);
            words[at] = self.identity(&mut lane, at, id << 16 | (nodes as u64) << 8 | number as u64)?;
        }
        drop(lane);
        let foreign = |number: usize, reason: String| {
            let node = memory.node(number).unwrap_or_default().to_owned();
            Err(Error::Foreign { region: name.to_string(), node, reason })
        };
        let mut order = vec![None; nodes];
        for (at, &word) in words.iter().enumerate() {
            let (id, count, number) = (word >> 16, (word >> 8 & 0xff) as usize, (word & 0xff) as usize);
            if word == 0 {
                return foreign(at, "it was not made to the end: connect with create(true)".into());
            }
            if id != words[0] >> 16 {
                let reason = "it is another region of the same name: remove one of them, or choose another name";
                return foreign(at, reason.into());
            }
            if count != nodes && !(self.partial && nodes < count) {
                return foreign(at, spread(count, nodes));
            }
            order.resize(order.len().max(count), None);
            match order.get_mut(number) {
                Some(place @ None) => *place = Some(at),
                _ => return foreign(at, "it is named twice".into()),
            }
        }
        let numbers = (0..order.len()).filter(|&number| order[number].is_some()).collect();
        let order: Vec<usize> = order.into_iter().flatten().collect();
        match order.is_sorted() {
            true => {
                memory.numbers = Some(numbers);
                Ok(memory)
            }
            false => {
                let in_order =
                    Builder { nodes: order.iter().map(|&at| self.nodes[at].clone()).collect(), ..self.clone() };
                drop(memory);
                in_order.connect()
            }
        }
    }

    /// The identity that stands at a node; a fresh one if there is none and it is to be made.
    fn identity(&self, lane: &mut Lane, node: usize, fresh: u64) -> Result<u64> {
        let at = Addr::of(node, 1, IDENTITY);
        let found = match self.create {
            true => lane.compare_swap(at, 0, fresh),
            false => lane.load(at),
        };
        match found {
            Ok(0) if self.create => Ok(fresh),
            // The region has no slab yet.
            Err(Error::Range { .. }) => Ok(0),
            other => other,
        }
    }
}

fn spread(count: usize, named: usize) -> String {
    let nodes = if count == 1 { "node" } else { "nodes" };
    let are = if named == 1 { "is" } else { "are" };
    format!("it lies on {count} {nodes}, and {named} {are} named: name just these")
}

/// The name of this program, without its folder.
fn program() -> String {
    let named = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&named).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
