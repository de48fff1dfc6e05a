//! The supervisor's own connection to the nodes of its run.
//!
//! It is there to fail early, with one line instead of a program's death, and to
//! say at the end that the run is over: then the nodes free everything at once
//! instead of waiting for members that might come back.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use farmem_fabric::session::names_of;
use farmem_fabric::{ConnectError, ConnectOptions, NodeAddr, RunNode, Session, Transport, Trust};
use farmem_run::{Choice, Protect};

use crate::failure::Failure;

/// How long a node may take to answer when a run starts.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long one may take at the run's end that has not answered by the connection that there was.
const ANEW_WITHIN: Duration = Duration::from_millis(300);

/// Reads the address of a node for a run: one that can stand in a list, and means the same wherever
/// the program may go.
pub fn node(text: &str) -> Result<NodeAddr, String> {
    if text.contains([';', ',']) {
        return Err("an address with a comma or semicolon cannot be passed on".into());
    }
    match text.parse::<NodeAddr>().map_err(|e| e.to_string())? {
        NodeAddr::Shm(path) => std::path::absolute(path).map(NodeAddr::Shm).map_err(|e| e.to_string()),
        tcp => Ok(tcp),
    }
}

/// Reads a node for a run, with its failure domain if it has one: `HOST:PORT@DOMAIN`.
pub fn run_node(text: &str) -> Result<RunNode, String> {
    let (at, domain) = RunNode::split(text);
    let domain = domain.map(farmem_protocol::node::domain).transpose().map_err(|e| e.to_string())?;
    Ok(RunNode { at: node(at)?, domain: domain.unwrap_or_default() })
}

/// Refuses a node that is named twice by one address. Two addresses of one node are found out when it is
/// reached ([`Far::are_different`]).
pub fn each_once(nodes: &[RunNode]) -> Result<(), String> {
    let same = |one: &NodeAddr, other: &NodeAddr| match (one, other) {
        (NodeAddr::Tcp(one), NodeAddr::Tcp(other)) => one.eq_ignore_ascii_case(other),
        _ => one == other,
    };
    let twice = (1..nodes.len()).find(|&at| nodes[..at].iter().any(|before| same(&before.at, &nodes[at].at)));
    twice.map_or(Ok(()), |at| Err(format!("{} is named twice: name each node once", nodes[at].at)))
}

/// Nodes as the counters file has them.
pub fn list(nodes: &[RunNode]) -> String {
    let each: Vec<String> = nodes.iter().map(|node| node.at.to_string()).collect();
    each.join(",")
}

/// The name of a run: 128 random bits, so that no two runs at one node are ever confused. Whoever
/// has it may end the run. So arguments, files and messages, which others see, have the public
/// name, as this type is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunName([u8; 16]);

impl RunName {
    /// A new name.
    pub fn new() -> io::Result<Self> {
        let mut bits = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut bits)?;
        Ok(RunName(bits))
    }

    /// Its bits.
    pub fn bits(self) -> [u8; 16] {
        self.0
    }

    /// The public name of the run.
    pub fn id(self) -> u64 {
        farmem_protocol::wire::run_id(&self.0)
    }

    /// Its bits, as they are parsed. For who may end the run alone.
    pub fn secret(self) -> String {
        farmem_trust::hex(&self.0)
    }
}

impl fmt::Display for RunName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.id())
    }
}

impl FromStr for RunName {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, &'static str> {
        match u128::from_str_radix(text, 16) {
            Ok(bits) if text.len() == 32 && !text.starts_with('+') => Ok(RunName(bits.to_be_bytes())),
            _ => Err("not 32 hexadecimal digits"),
        }
    }
}

/// A run's nodes, reached.
pub struct Far {
    options: ConnectOptions,
    nodes: Vec<RunNode>,
    sessions: Vec<Session>,
}

impl Far {
    /// Reaches every node, or says which one cannot be used and why. `program`: its command, of
    /// which nodes are told the name alone.
    pub fn connect(
        nodes: &[RunNode],
        run: RunName,
        transport: Transport,
        grace: Duration,
        program: &Path,
        trust: Trust,
    ) -> Result<Far, ConnectError> {
        let name = program.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        let options = ConnectOptions {
            timeout: ANSWER_WITHIN,
            grace,
            run: run.0,
            pid: std::process::id(),
            transport,
            names: names_of(&name),
            trust,
        };
        let sessions = nodes.iter().map(|node| Session::connect(&node.at, &options)).collect::<Result<_, _>>()?;
        Ok(Far { options, nodes: nodes.to_vec(), sessions })
    }

    /// Reaches one more, and says how the run's processes are to call it: by an address that needs
    /// no resolver. Returns the node's incarnation, too. The node may take `within` to answer.
    pub fn join(&mut self, node: &RunNode, within: Duration) -> Result<(String, u64), Failure> {
        let told = match &node.at {
            NodeAddr::Tcp(host) => host.to_socket_addrs().ok().and_then(|mut at| at.next()).map(|at| at.to_string()),
            NodeAddr::Shm(_) => None,
        };
        let told = told.unwrap_or_else(|| node.at.to_string());
        let at = told.parse::<NodeAddr>().map_err(Failure::usage)?;
        let options = ConnectOptions { timeout: within, ..self.options.clone() };
        let session = Session::connect(&at, &options).map_err(Failure::no_node)?;
        let incarnation = session.identity().incarnation;
        // It may have been on the list before.
        self.sessions.retain(|other| !other.is_beside(&session));
        self.sessions.push(session);
        Ok((RunNode { at, domain: node.domain }.to_string(), incarnation))
    }

    /// The addresses of those that were reached first.
    pub fn nodes(&self) -> &[RunNode] {
        &self.nodes
    }

    /// The same, each with its node's incarnation.
    pub fn known(&self) -> impl Iterator<Item = (&RunNode, u64)> {
        self.nodes.iter().zip(self.sessions.iter().map(|session| session.identity().incarnation))
    }

    /// Their addresses, and how each is reached.
    pub fn reached(&self) -> String {
        let way = |session: &Session| match session.is_mapped() {
            true => "mapped",
            false if session.is_wired() => "RDMA",
            false if session.is_sealed() => "tcp, encrypted",
            false => "tcp",
        };
        let each = self.sessions.iter().map(|session| format!("{} ({})", session.node(), way(session)));
        each.collect::<Vec<_>>().join(", ")
    }

    /// Whether something relays between this host and one of the nodes: then a refused connection
    /// may be a cut that heals.
    pub fn is_relayed(&self) -> bool {
        !self.sessions.iter().all(Session::is_direct)
    }

    /// Lets go of sessions with a node that was reached by another address before. Returns whether
    /// there was one. A controller names a node that was started anew twice, until it misses the
    /// former process.
    pub fn take_once(&mut self) -> bool {
        let (nodes, sessions) = (std::mem::take(&mut self.nodes), std::mem::take(&mut self.sessions));
        let count = nodes.len();
        for (node, session) in nodes.into_iter().zip(sessions) {
            let incarnation = session.identity().incarnation;
            if self.sessions.iter().all(|other| other.identity().incarnation != incarnation) {
                self.nodes.push(node);
                self.sessions.push(session);
            }
        }
        self.nodes.len() < count
    }

    /// Refuses two addresses of the same node.
    pub fn are_different(&self, protect: Protect) -> Result<(), Failure> {
        let same = |at: usize| {
            (0..at)
                .find(|&other| self.sessions[other].identity().incarnation == self.sessions[at].identity().incarnation)
        };
        match (0..self.sessions.len()).find_map(|at| same(at).map(|other| (other, at))) {
            Some((one, other)) => Err(Failure::usage(format!(
                "{} and {} are the same node: {}",
                self.nodes[one].at,
                self.nodes[other].at,
                match (protect, protect.nodes()) {
                    (_, 1) => "name it once".to_owned(),
                    (Protect::Mirror, _) => "--protect mirror needs two".to_owned(),
                    (_, nodes) => format!("--protect {} needs {nodes} different ones", protect.name()),
                },
            ))),
            None => Ok(()),
        }
    }

    /// Tells the nodes that no process of the run is left. A node that is gone needs no telling.
    /// One that was started anew at its address may have got memory of the run's processes since.
    pub fn end_run(self) {
        let (run, options) = (self.options.run, ConnectOptions { timeout: ANEW_WITHIN, ..self.options });
        let until = Instant::now() + 3 * ANEW_WITHIN;
        for session in &self.sessions {
            // A name would have to be looked up, for as long as that takes.
            if session.end_run(run).is_err()
                && Instant::now() < until
                && let Some(at) = numeric(session.node())
                && let Ok(anew) = Session::connect(&at, &options)
            {
                let _ = anew.end_run(run);
            }
        }
    }
}

/// An address that no resolver is asked for.
fn numeric(at: &str) -> Option<NodeAddr> {
    match at.parse().ok()? {
        NodeAddr::Tcp(at) if at.parse::<SocketAddr>().is_err() => None,
        at => Some(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_address_is_known_to_be_numeric() {
        for at in ["127.0.0.1:7411", "[::1]:7411", "unix:/run/node"] {
            assert!(numeric(at).is_some(), "{at}");
        }
        assert_eq!((numeric("bighost:7411"), numeric("")), (None, None));
    }

    #[test]
    fn a_runs_name_reads_back() {
        let name = RunName::new().unwrap();
        assert_eq!(name.secret().parse(), Ok(name));
        assert!(name.to_string().len() == 16 && !name.secret().contains(&name.to_string()));
        assert!("12".parse::<RunName>().is_err());
        assert!("+0000000000000000000000000000000".parse::<RunName>().is_err());
    }

    #[test]
    fn a_socket_is_named_for_wherever_the_program_goes() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(node("unix:a.sock"), Ok(NodeAddr::Shm(here.join("a.sock"))));
        assert!(node("a:1,b:2").is_err());
    }

    #[test]
    fn a_node_is_named_once() {
        let once = |text: &str| each_once(&text.split(' ').map(|node| run_node(node).unwrap()).collect::<Vec<_>>());
        assert_eq!(once("a:1 b:1 a:2 unix:/a unix:/A"), Ok(()));
        for twice in ["a:1 a:1", "b:1 a:1@x A:1@y", "unix:/a unix:/a"] {
            assert!(once(twice).is_err_and(|line| line.ends_with(" is named twice: name each node once")), "{twice}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "\\PC*|unix:\\PC*|[a-z0-9.:\\[\\]]{0,30}:[0-9]{0,6}") {
            if let Ok(address) = node(&text) {
                prop_assert_eq!(node(&address.to_string()), Ok(address));
            }
        }
    }
}
