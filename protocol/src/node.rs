//! How bytes get to a node, and where it listens, as people write it: `host:7411`, `[::1]:7411`,
//! `unix:/run/farmem.sock`.

use crate::wire::MAX_PATH;
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
