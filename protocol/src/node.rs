//! How bytes get to a node, and where it listens, as people write it: `host:7411`, `[::1]:7411`,
//! `unix:/run/farmem.sock`.
//! A run may name the failure domain, too: `host:7411@rack7/shelf2`.

use crate::wire::{MAX_PATH, Text};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

/// How bytes are to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// Shared memory where the node is on this machine and offers it; RDMA where both have a card
    /// and it works between them; else TCP.
    #[default]
    Auto,
    /// TCP.
    Tcp,
    /// Shared memory.
    Shm,
    /// RDMA: slabs are reached past the node's processor.
    Verbs,
}

/// The address of a node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum NodeAddr {
    /// `host:port`; the host a name or a number.
    Tcp(String),
    /// A Unix socket on this machine, through which memory is shared.
    Shm(PathBuf),
}

/// Why a text is not the address of a node.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadAddress {
    /// Neither form.
    #[error("{0:?} is not a node's address: write HOST:PORT ([::1]:PORT for IPv6) or unix:/PATH")]
    Form(String),
    /// The path is empty, or longer than a Unix socket's may be.
    #[error("the path in {0:?} must have 1 to {MAX_PATH} bytes")]
    Path(String),
}

impl FromStr for NodeAddr {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            let fits = (1..=MAX_PATH).contains(&path.as_os_str().as_bytes().len());
            return if fits { Ok(NodeAddr::Shm(path)) } else { Err(BadAddress::Path(text.into())) };
        }
        match text.rsplit_once(':') {
            Some((host, port)) if is_host(host) && port.parse::<u16>().is_ok() => Ok(NodeAddr::Tcp(text.into())),
            _ => Err(BadAddress::Form(text.into())),
        }
    }
}

fn is_host(host: &str) -> bool {
    match host.strip_prefix('[') {
        Some(v6) => v6.ends_with(']') && v6.len() > 1,
        None => {
            !host.is_empty() && !host.contains(|c: char| c == ':' || c == '/' || c.is_whitespace() || c.is_control())
        }
    }
}

/// A failure domain: nodes of one domain may be lost together. Empty: not named.
pub type Domain = Text<64>;

/// Why a text is not the name of a failure domain.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is no name of a failure domain: write 1 to 64 bytes without spaces, commas, semicolons and @, as rack7/shelf2"
)]
pub struct BadDomain(pub String);

/// Reads the name of a failure domain.
///
/// # Errors
/// It is empty or too long, or contains what separates names in lists.
pub fn domain(text: &str) -> Result<Domain, BadDomain> {
    let plain = !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || ",;@".contains(c));
    Text::exact(text).filter(|_| plain).ok_or_else(|| BadDomain(text.into()))
}

/// A node as a run names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunNode {
    /// Where it is reached.
    pub at: NodeAddr,
    /// Its failure domain, as the run was told it. Empty: as the node itself says.
    pub domain: Domain,
}

impl RunNode {
    /// The address and the domain in a text of the form `ADDRESS@DOMAIN`. A path may contain an @.
    pub fn split(text: &str) -> (&str, Option<&str>) {
        match text.split_once('@').filter(|_| !text.starts_with("unix:")) {
            Some((at, domain)) => (at, Some(domain)),
            None => (text, None),
        }
    }
}

impl From<NodeAddr> for RunNode {
    fn from(at: NodeAddr) -> RunNode {
        RunNode { at, domain: Domain::EMPTY }
    }
}

/// Why a text does not name a node.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadNode {
    /// Its address.
    #[error("{0}")]
    Address(#[from] BadAddress),
    /// Its failure domain.
    #[error("{0}")]
    Domain(#[from] BadDomain),
}

impl FromStr for RunNode {
    type Err = BadNode;

    fn from_str(text: &str) -> Result<Self, BadNode> {
        let (at, named) = RunNode::split(text);
        let named = named.map(domain).transpose()?.unwrap_or(Domain::EMPTY);
        Ok(RunNode { at: at.parse()?, domain: named })
    }
}

impl fmt::Display for RunNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.at)?;
        if !self.domain.is_empty() {
            write!(f, "@{}", self.domain)?;
        }
        Ok(())
    }
}

impl fmt::Display for NodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeAddr::Tcp(at) => f.write_str(at),
            NodeAddr::Shm(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_stands_behind_the_address() {
        for good in ["h:1", "h:1@rack7/shelf2", "[::1]:7411@a", "unix:/run/a@b"] {
            assert_eq!(good.parse::<RunNode>().unwrap().to_string(), good);
        }
        assert!("unix:/run/a@b".parse::<RunNode>().unwrap().domain.is_empty());
        let long = format!("h:1@{}", "x".repeat(65));
        for bad in ["h:1@", "h@d", "h:1@a@b", "h:1@a b", "h:1@a;b", "h:1@a\nb", &long] {
            assert!(bad.parse::<RunNode>().is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_read_back() {
        for good in ["bighost:7411", "10.0.0.1:1", "[::1]:7411", "unix:/run/x.sock"] {
            assert_eq!(good.parse::<NodeAddr>().unwrap().to_string(), good);
        }
        let long = format!("unix:/{}", "x".repeat(MAX_PATH));
        for bad in ["", "bighost", "bighost:", ":7411", "::1:7411", "h:70000", "http://h:1", "a\nb:1", "unix:", &long] {
            assert!(bad.parse::<NodeAddr>().is_err(), "{bad}");
        }
    }
}
