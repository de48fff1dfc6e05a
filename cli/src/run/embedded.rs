//! A node for one run, when none is named: this binary, as a process of its own.
//!
//! It listens on a private Unix socket and must never outlive the run. Its
//! standard input is a pipe whose other end only the supervisor (later the
//! keeper) holds: however that process ends, the kernel closes the end, the node
//! sees it and exits. `PR_SET_PDEATHSIG` would not survive the hand-over from
//! supervisor to keeper.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{PipeWriter, Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farmem_sys::process::{self, Signals};

use super::far::{Node, RunName};
use crate::failure::Failure;
use crate::runtime_dir::Scratch;

/// How long a node may take to listen. It reserves memory lazily, so this is for machines under load.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// A node that lives as long as this value.
pub struct Embedded {
    process: Child,
    lifeline: Option<PipeWriter>,
    node: Node,
    socket: Scratch,
    complaints: File,
    /// It has ended, and its pid may be another's.
    reaped: Cell<bool>,
}

impl Embedded {
    /// Starts a node that lends `lend` bytes. It may not yet listen: see [`Embedded::await_ready`].
    pub fn start(dir: &Path, run: &RunName, lend: u64, signals: &Signals) -> Result<Embedded, Failure> {
        let failed = |e: std::io::Error| Failure::no_node(format!("cannot start a node for this run: {e}"));
        let socket = Scratch::new(dir.join(format!("run-{run}.sock")));
        // What it says goes to a file without a name: a pipe would keep whoever reads our output waiting
        // for the node, and a terminal is the program's.
        let log = dir.join(format!("run-{run}.log"));
        let complaints =
            OpenOptions::new().read(true).append(true).create_new(true).mode(0o600).open(&log).map_err(failed)?;
        std::fs::remove_file(&log).map_err(failed)?;
        let (end, lifeline) = std::io::pipe().map_err(failed)?;
        let address = format!("unix:{}", socket.display());
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("farmem")
            .args(["node", "--embedded", "--lend", &lend.to_string(), "--listen", &address])
            .stdin(Stdio::from(end))
            .stdout(Stdio::null())
            .stderr(complaints.try_clone().map_err(failed)?)
            .env_remove("LD_PRELOAD")
            // Keys typed at the terminal are for the program.
            .process_group(0);
        signals.hand_back(&mut command, false);
        let process = command.spawn().map_err(failed)?;
        let node = address.parse().map_err(Failure::no_node)?;
        Ok(Embedded { process, lifeline: Some(lifeline), node, socket, complaints, reaped: Cell::new(false) })
    }

    /// Its address.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Tries `connect` until it works, the node ends, or it has taken too long.
    pub fn await_ready<T>(&self, connect: impl Fn() -> Result<T, Failure>) -> Result<T, Failure> {
        let until = Instant::now() + READY_WITHIN;
        loop {
            if self.socket.exists()
                && let Ok(connected) = connect()
            {
                return Ok(connected);
            }
            self.reaped.set(!matches!(process::change_of(self.pid()), Ok(None)));
            if self.reaped.get() || Instant::now() > until {
                let why = self.last_complaint().unwrap_or_else(|| "it does not answer".into());
                return Err(Failure::no_node(format!("the node started for this run is not usable: {why}")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Notes that a child has ended; if it was the node, gives what it said last.
    pub fn ended(&self, child: u32) -> Option<String> {
        if child != self.pid() {
            return None;
        }
        self.reaped.set(true);
        self.last_complaint()
    }

    /// The last line the node said, if any.
    fn last_complaint(&self) -> Option<String> {
        let mut said = String::new();
        let mut log = &self.complaints;
        log.rewind().ok()?;
        log.read_to_string(&mut said).ok()?;
        let line = said.lines().last()?.trim();
        Some(line.strip_prefix("farmem: ").unwrap_or(line).to_owned())
    }

    /// Gives up the node to whoever gets the end of its pipe.
    pub fn into_lifeline(mut self) -> Option<PipeWriter> {
        self.socket.keep();
        self.lifeline.take()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if self.lifeline.take().is_some() && !self.reaped.get() {
            // Nothing of the run is left: there is nothing to wait for.
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}
