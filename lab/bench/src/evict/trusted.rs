//! A node that asks for a token, and three ways to borrow from it.
//!
//! | way | what goes over TCP |
//! |---|---|
//! | `plain` | pages as they are (`--plain`) |
//! | `encrypted` | pages in records that are encrypted for each connection, as a token has it |
//! | `sealed` | pages that the host has sealed, in plain frames (`--seal --plain`) |

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

use crate::paging::systems::Node;
use crate::redis::Place;
use farmem_kit::affinity;

/// The ways, the first of which the others are compared with.
pub const WAYS: [&str; 3] = ["plain", "encrypted", "sealed"];

/// Memory that the node lends.
const LENDS: u64 = 1 << 30;

/// A node, and the file of a token that it knows.
pub struct Trusted {
    node: Node,
    token: PathBuf,
    _place: Place,
}

impl Trusted {
    /// Makes a token and starts the node.
    ///
    /// # Errors
    /// Those of the two commands, or of writing the files.
    pub fn start(farmem: &Path) -> anyhow::Result<Trusted> {
        let place = Place::new("evict-trusted")?;
        let (store, token) = (place.path().join("tokens.toml"), place.path().join("token"));
        let made =
            Command::new(farmem).args(["token", "create", "--tenant", "bench", "--store"]).arg(&store).output()?;
        ensure!(made.status.success(), "no token: {}", String::from_utf8_lossy(&made.stderr));
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&token)?.write_all(&made.stdout)?;
        let node = Node::start_with(farmem, LENDS, &affinity::allowed(), &[OsStr::new("--tokens"), store.as_os_str()])?;
        Ok(Trusted { node, token, _place: place })
    }

    /// Has a `farmem run` borrow from the node this way.
    pub fn reach(&self, way: &str, run: &mut Command) {
        run.args(["--node", self.node.address(), "--token"]).arg(&self.token);
        match way {
            "plain" => run.arg("--plain"),
            "sealed" => run.args(["--plain", "--seal"]),
            _ => run,
        };
    }
}
