//! The kernel of this machine swaps to a node.
//!
//! ```text
//!  kernel: swap ── /dev/nbdN ── one TCP stream ────────────────► node: a volume
//!             ▲ the stream's socket, by netlink                      ▲
//!  farmem swap: sets up, watches ── a stream of its own ─────────────┘  questions, the volume's end
//! ```
//!
//! No process is on the path of a page. The kernel's own NBD client speaks to the node, and its
//! sockets may use the kernel's reserves, so it goes on when no memory is left. A server in user
//! space below a swap device has no such reserve, and hangs the machine. This crate only makes
//! connections and hands them to the kernel. It may be killed at any instant: the next one reads
//! [`state`].
//!
//! A device has one stream. With two, the kernel would repeat a failed request on the second, while
//! bytes of the first may still be on their way: an old page could overwrite a new one. So several
//! connections are several devices of equal priority, between which the kernel distributes its
//! pages.
//!
//! * [`genl`]: messages of generic netlink. [`nbd`]: the kernel's NBD client by them.
//! * [`stream`]: a stream of a volume, up to where the kernel takes over.
//! * [`header`]: the page by which the kernel knows a swap device. [`device`]: its files in sysfs
//!   and procfs.
//! * [`crypt`]: encrypts what leaves, by the kernel's device mapper ([`mapper`]).
//! * [`freed`]: learns of each slot that the kernel frees. `ring`: the kernel's buffers of
//!   events. [`tell`]: passes that on to the node, in `turns`.
//! * [`state`]: what is needed to undo a device, in a file for each.
//! * [`patience`]: how long the kernel waits for answers.
//! * [`report`]: the state of devices, for `farmem top`.
//! * `token`: the keys of tokens, read where no page waits.
//! * `given`: the stream that the kernel has, as its descriptor shows it.
//! * [`mirror`]: two copies of each page, by the kernel's RAID 1.
//! * [`on`]: begins to swap. [`watch`]: watches devices. [`pair`]: watches a mirror. [`off`]: ends
//!   swapping, and watches meanwhile.

pub mod crypt;
pub mod device;
pub mod freed;
pub mod genl;
mod given;
pub mod header;
mod leaving;
pub mod mapper;
pub mod mirror;
mod names;
pub mod nbd;
pub mod off;
pub mod on;
pub mod pair;
pub(crate) mod patience;
pub mod report;
mod ring;
pub mod state;
pub mod stream;
pub mod tell;
mod token;
mod turns;
pub mod watch;

use std::io;

/// Why something could not be done; a line for the user.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has no NBD client.
    #[error(
        "this kernel has no NBD client (modprobe nbd: {0}): install the kernel package that has the module nbd, on Debian \
         linux-image-amd64, on Ubuntu linux-modules-extra-$(uname -r)"
    )]
    NoClient(String),
    /// The kernel has no RAID 1.
    #[error(
        "this kernel has no RAID 1, by which pages are mirrored (modprobe raid1: {0}): install the kernel package that has \
         the module raid1, or leave --protect mirror out"
    )]
    NoMirror(String),
    /// The kernel refused.
    #[error("{0}: {1}")]
    Kernel(&'static str, io::Error),
    /// The node could not be reached, or ended the connection.
    #[error("node {0}: {1}")]
    Node(String, io::Error),
    /// The node speaks, and refuses.
    #[error("node {0} {1}")]
    Refused(String, String),
    /// It runs on this machine.
    #[error(
        "node {0} is on this machine: a page that is swapped out would need memory here, so the machine could hang when it \
         has none left; name a node on another machine, or use farmem run"
    )]
    SameMachine(String),
    /// A file of this machine.
    #[error("{0}: {1}")]
    File(String, io::Error),
    /// The kernel swaps to a device, and cannot be told from here to end that.
    #[error("{0}")]
    Stays(String),
    /// There is something already.
    #[error("{0}")]
    Already(String),
}
