//! What a controller keeps, and what it has its caller do.
//!
//! *Other versions.* An intent is kept as JSON. A field that a version adds is optional: earlier
//! versions pass over it, and later ones do without.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A process that sends a node's beats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The address at which runs reach it.
    pub address: String,
    /// Its incarnation. A controller elsewhere may see the same process at another address.
    pub incarnation: u64,
}

/// A part of the state that outlives the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intent {
    /// A node belongs to the rack, in this failure domain.
    Member {
        /// Its name.
        name: String,
        /// Its failure domain.
        domain: String,
        /// Its process. `None`: a version without this field has kept the intent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<Process>,
    },
    /// A node belongs to the rack no longer.
    Forgotten {
        /// The name that it had.
        name: String,
    },
    /// A node is to be emptied, or no longer.
    Drain {
        /// Its name.
        name: String,
        /// Whether it is to be emptied.
        wanted: bool,
    },
    /// The most bytes that a node may let a tenant's programs hold.
    Share {
        /// The tenant's name.
        tenant: String,
        /// The node's.
        node: String,
        /// The bytes. 0: the node has no share.
        bytes: u64,
    },
}

/// Work that the caller must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Keep this intent in the store before the request is answered.
    Keep(Intent),
    /// Write this line to the log.
    Say {
        /// The line.
        line: String,
        /// The address that the node is heard from whose line it is. `None`: it is the rack's own.
        of: Option<IpAddr>,
    },
}
