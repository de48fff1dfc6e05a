//! Errors that tell the caller what to do.

use farmem_protocol::region::RegionName;
use farmem_protocol::units::bytes;
use farmem_protocol::wire::VERSION;
use farmem_sys::raw::Errno;

/// The node, or the path to it, is gone for good: memory that it held for this member is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("memory node {node} is lost: {reason}")]
pub struct Lost {
    /// Its address.
    pub node: String,
    /// How that was found out.
    pub reason: String,
}

/// Why a node cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The host's name means nothing here.
    #[error("node {node}: no address is known for this host ({reason}): check the name")]
    Name {
        /// The address as given.
        node: String,
        /// The resolver's words.
        reason: String,
    },
    /// Nothing listens there.
    #[error("node {0}: nobody listens there: start `farmem node` on it, or check the address")]
    Refused(String),
    /// The machine cannot be reached.
    #[error("node {node}: cannot be reached ({reason}): check the address and the network")]
    Unreachable {
        /// The address as given.
        node: String,
        /// The system's error.
        reason: Errno,
    },
    /// It did not answer in time, or the connection was not made in time.
    #[error(
        "node {0}: no answer in time: the machine is down, stopped, or a firewall drops the connection, or what listens \
         there is not a farmem node: check the port"
    )]
    Silent(String),
    /// Something else listens there.
    #[error("node {0}: what listens there is not a farmem node: check the port")]
    NotFarmem(String),
    /// It speaks another version.
    #[error(
        "node {node}: speaks version {theirs} of the protocol, this farmem version {VERSION}: install the same farmem on both"
    )]
    Version {
        /// The address as given.
        node: String,
        /// The node's version.
        theirs: u16,
    },
    /// It is going down.
    #[error("node {0}: is shutting down and takes no new programs: use another, or start it again")]
    Draining(String),
    /// It serves as many as it can.
    #[error("node {0}: serves as many programs and connections as it can: end some, or use another node")]
    Full(String),
    /// It wants a token, or does not take the one it was shown.
    #[error("node {node}: {why}")]
    Token {
        /// The address as given.
        node: String,
        /// The problem, and its remedy.
        why: &'static str,
    },
    /// It did not prove that it knows the token.
    #[error("node {0}: it did not prove that it knows this token: something else answers at this address")]
    Unproven(String),
    /// It no longer knows the member.
    #[error("node {0}: no longer knows this program: it was started anew, or the run was ended")]
    Unknown(String),
    /// This machine has no descriptors or memory for a connection.
    #[error("node {node}: this machine cannot make a connection: {reason}")]
    Here {
        /// The address as given.
        node: String,
        /// The system's error.
        reason: Errno,
    },
    /// Its Unix socket is another user's.
    #[error(
        "node {0}: this user may not open its socket: name its HOST:PORT if it has one, or give the socket, and the \
         directories above, to this user (chmod, chgrp)"
    )]
    Forbidden(String),
    /// Shared memory was demanded of an address that cannot give it.
    #[error("node {node}: its memory cannot be mapped: {reason}; or use --transport tcp")]
    NotShared {
        /// The address as given.
        node: String,
        /// The lack, and its remedy.
        reason: String,
    },
    /// TCP was demanded of a Unix socket.
    #[error("node {0}: tcp does not go by a Unix socket: give its HOST:PORT, or leave --transport out")]
    NotTcp(String),
    /// RDMA was demanded and does not work.
    #[error("node {node}: cannot be reached by RDMA: {reason}; or use --transport tcp")]
    NoRdma {
        /// The address as given.
        node: String,
        /// The lack, and its remedy.
        reason: String,
    },
}

/// Why no slab was granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// All that the node lends is lent.
    #[error("memory node {node} has lent all of its {}: start it with a larger --lend, or add a node", bytes(lend_mib << 20))]
    Exhausted {
        /// Its address.
        node: String,
        /// The memory that it lends in all, in MiB.
        lend_mib: u64,
    },
    /// The run, or its tenant, holds as much as the node lets one hold.
    #[error(
        "memory node {node} lets {} hold {}: {}, or add a node",
        if *of_tenant { "all programs of this tenant together" } else { "a run" },
        bytes(quota_mib << 20),
        if *of_tenant { "raise the tenant's quota (farmem token create --quota, --rack-quota)" } else { "start it with a larger --quota" }
    )]
    Quota {
        /// Its address.
        node: String,
        /// The most that one owner, or all of a tenant, may hold, in MiB.
        quota_mib: u64,
        /// The limit is the tenant's.
        of_tenant: bool,
    },
    /// The node's system, or this one, has no memory or descriptors left.
    #[error("memory node {node} cannot grant memory: {reason}")]
    System {
        /// Its address.
        node: String,
        /// Where and why.
        reason: String,
    },
    /// The node is gone.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// Why there is no window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// The member, or the node, has as many as there can be.
    #[error("memory node {0} has no more windows: drop some, or use fewer")]
    Exhausted(String),
    /// The node is gone.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// Why a region was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// There is none of this name.
    #[error("memory node {node} has no region {name}: check the name, or create it")]
    Unknown {
        /// Its address.
        node: String,
        /// The name.
        name: RegionName,
    },
    /// The node has as many regions as there can be, or as many as it makes for one peer; or this
    /// member has as many open as it may.
    #[error("memory node {0} can have no more regions, or this process can open no more: farmem region rm some")]
    Full(String),
    /// The node is gone.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// Why a verb was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The slab is not held by this member.
    #[error("the slab is not held")]
    NotHeld,
    /// The range leaves the slab, is too long, or an atomic verb's word is not aligned.
    #[error("the range is not admissible")]
    Range,
    /// The key gives no right to this: it is of a window that was unbound, of memory that was
    /// freed, for another queue pair, for less than this; or a descriptor word does not go that
    /// way.
    #[error("remote access error: the key gives no right to this")]
    Access,
    /// The window is bound already, or not bound, or its key is an old one, or the range is not the
    /// binder's.
    #[error("the window cannot be bound or unbound so")]
    Window,
    /// The node's queue has nothing left of what was asked.
    #[error("the node's queue is empty")]
    Empty,
    /// The CAS would take the owner beyond its quota at the node. Nothing changed.
    #[error("the quota at this node is used up: give something back first")]
    Quota,
    /// The connection was cut while a verb other than READ and WRITE was under way: it may or may
    /// not have happened. Read the word; try the key.
    #[error("the connection was cut; whether the verb took effect is unknown")]
    Unknown,
}
