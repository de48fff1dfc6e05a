//! Errors, and what the caller should do about each.

use crate::{Addr, Opener};
use farmem_fabric::{BadAddress, ConnectError, GrantError, Refusal, RegionError};
use farmem_protocol::region::BadName;

/// The result of this library's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// An error. None of these ends the process. Each says what state it leaves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The builder names no node, or more than [`Addr::MAX_NODES`].
    #[error("{0} nodes: name at least one and at most 64")]
    Nodes(usize),
    /// A text is not the address of a node.
    #[error(transparent)]
    Address(#[from] BadAddress),
    /// A text is not the name of a region.
    #[error(transparent)]
    Name(#[from] BadName),
    /// The file of a token cannot be used.
    #[error("token {0}")]
    Token(String),
    /// A node was not joined. Nothing was changed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A node has no region of this name, or no room for one more.
    #[error("{0}")]
    Region(RegionError),
    /// A region of this name is there, but not on just these nodes.
    #[error("region {region} at {node}: {reason}")]
    Foreign {
        /// The region's name.
        region: String,
        /// The node where that shows.
        node: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// Other processes have the region open, and it is not to be removed then.
    #[error("region {region} is in use by {}", in_use(by))]
    InUse {
        /// The region's name.
        region: String,
        /// The processes, at most 64.
        by: Vec<Opener>,
    },
    /// A node has no memory left for this. Free some, or add a node.
    #[error("{0}")]
    Full(GrantError),
    /// A node and all that it held are gone. Operations on other nodes work. Connect again when it
    /// is back.
    #[error("{node} is lost: {reason}; what it held is gone")]
    Lost {
        /// The node's address.
        node: String,
        /// How that was found out.
        reason: String,
    },
    /// Nothing is at this address, or the range does not lie within the node's slab there.
    #[error("{len} bytes at {at}: not within memory of this connection; use addresses that alloc returned")]
    Range {
        /// The first byte.
        at: Addr,
        /// Bytes of the range.
        len: u64,
    },
    /// The word of an atomic operation is not aligned to 8 bytes.
    #[error("{0}: an atomic operation takes a word at a multiple of 8")]
    Unaligned(Addr),
    /// No piece begins at this address, or it was freed already. Nothing was changed.
    #[error("{0}: no piece begins there; free what alloc returned, once")]
    NotAPiece(Addr),
    /// Pieces have 1 byte to 2 MiB.
    #[error("{0} bytes: a piece has 1 byte to 2 MiB; take several")]
    Size(u64),
    /// The connection was cut while an atomic operation was under way. Whether it took effect is
    /// not known: read the word.
    #[error("the connection was cut; whether the word was changed is unknown: read it")]
    Unknown,
    /// The node refused the operation: it no longer counts this process as one that may reach the
    /// memory.
    #[error("the node refused it: {0}; connect anew")]
    Refused(Refusal),
    /// A function of the program's own is no module, trapped, or did not end.
    #[error("the function near memory: {0}")]
    Module(String),
    /// The node serves as many queue pairs for this process as one can have.
    #[error("{0} has as many connections of this process as one can have (8192): share lanes between threads")]
    Lanes(String),
    /// This is a forked child of the process that connected. Connect again.
    #[error("a forked child has no remote memory of its own: connect anew")]
    Forked,
    /// The system refused memory or random numbers.
    #[error("the system refused what a connection needs: {0}")]
    System(String),
}

impl From<farmem_fabric::Lost> for Error {
    fn from(lost: farmem_fabric::Lost) -> Error {
        Error::Lost { node: lost.node, reason: lost.reason }
    }
}

impl From<GrantError> for Error {
    fn from(error: GrantError) -> Error {
        match error {
            GrantError::Lost(lost) => lost.into(),
            other => Error::Full(other),
        }
    }
}

impl From<RegionError> for Error {
    fn from(error: RegionError) -> Error {
        match error {
            RegionError::Lost(lost) => lost.into(),
            other => Error::Region(other),
        }
    }
}

/// The first processes of some, by name, and the number of the others.
fn in_use(by: &[Opener]) -> String {
    let name = |opener: &Opener| match (&opener.program[..], &opener.host[..]) {
        ("", _) | (_, "") => format!("pid {}", opener.pid),
        (program, host) => format!("{program} (pid {} on {host})", opener.pid),
    };
    let mut said: Vec<String> = by.iter().take(NAMED).map(name).collect();
    match by.len() {
        0 => said.push("a process that is just leaving".to_owned()),
        n if n <= NAMED => {}
        n => said.push(format!("{} more", n - NAMED)),
    }
    said.join(", ")
}

/// Processes that an error names.
const NAMED: usize = 3;
