//! A node for one run, when none is named: this binary, as a process of its own.
//!
//! It listens on a private Unix socket (on a port of the loopback device for
//! `--transport tcp` or `verbs`), as its status file says, and must never outlive the run. Its
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

use farmem_run::{NodeAddr, Transport};
use farmem_sys::process::{self, Signals};

use super::far::RunName;
use crate::failure::Failure;
use crate::node::Status;
use crate::runtime_dir::Scratch;

/// How long a node may take to listen. It reserves memory lazily, so this is for machines under
/// load.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// A node that lives as long as this value.
pub struct Embedded {
    process: Child,
    lifeline: Option<PipeWriter>,
    node: NodeAddr,
    socket: Scratch,
    status: Scratch,
    complaints: File,
    /// It has ended, and its pid may be another's.
    reaped: Cell<bool>,
}

impl Embedded {
    /// Starts a node that lends `lend` bytes and waits until it listens.
    pub fn start(
        dir: &Path,
        run: RunName,
        lend: u64,
        transport: Transport,
        signals: &Signals,
    ) -> Result<Embedded, Failure> {
        let failed = |e: std::io::Error| Failure::no_node(format!("cannot start a node for this run: {e}"));
        let socket = Scratch::new(dir.join(format!("run-{run}.sock")));
        let listen = match transport {
            Transport::Tcp | Transport::Verbs => "127.0.0.1:0".to_owned(),
            Transport::Auto | Transport::Shm => format!("unix:{}", socket.display()),
        };
        // Its output goes to a file without a name. A pipe would make a reader of our output wait
        // for the node, and a terminal is the program's.
        let log = dir.join(format!("run-{run}.log"));
        let complaints =
            OpenOptions::new().read(true).append(true).create_new(true).mode(0o600).open(&log).map_err(failed)?;
        std::fs::remove_file(&log).map_err(failed)?;
        let (end, lifeline) = std::io::pipe().map_err(failed)?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("farmem")
            .args(["node", "--embedded", "--lend", &lend.to_string(), "--listen", &listen])
            .stdin(Stdio::from(end))
            .stdout(Stdio::null())
            .stderr(complaints.try_clone().map_err(failed)?)
            .env_remove("LD_PRELOAD")
            .env_remove("RUNTIME_DIRECTORY")
            // Keys typed at the terminal are for the program.
            .process_group(0);
        signals.hand_back(&mut command, false);
        let process = command.spawn().map_err(failed)?;
        let node = Embedded {
            status: Scratch::new(Status::path(dir, process.id())),
            process,
            lifeline: Some(lifeline),
            node: listen.parse().map_err(Failure::no_node)?,
            socket,
            complaints,
            reaped: Cell::new(false),
        };
        node.until_it_listens()
    }

    /// Waits for the node's status file, which names the port it got; or for its end.
    fn until_it_listens(mut self) -> Result<Embedded, Failure> {
        let until = Instant::now() + READY_WITHIN;
        loop {
            if let Some(Ok(node)) = Status::read_living(&self.status).and_then(|s| Some(s.listen.first()?.parse())) {
                self.node = node;
                return Ok(self);
            }
            self.reaped.set(!matches!(process::change_of(self.pid()), Ok(None)));
            if self.reaped.get() || Instant::now() > until {
                let why = self.last_complaint().unwrap_or_else(|| match process::file_limit() {
                    // It could not write one line.
                    limit @ ..4096 => format!("files may have {limit} bytes at most (ulimit -f): allow 70 MiB or more"),
                    _ => "it does not answer".into(),
                });
                return Err(Failure::no_node(format!("the node started for this run is not usable: {why}")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The last line that the node said, if any.
    fn last_complaint(&self) -> Option<String> {
        let mut complaints = &self.complaints;
        let mut said = String::new();
        complaints.rewind().ok()?;
        complaints.read_to_string(&mut said).ok()?;
        let line = said.lines().last()?.trim();
        Some(line.strip_prefix("farmem: ").unwrap_or(line).to_owned())
    }

    /// Its address.
    pub fn node(&self) -> &NodeAddr {
        &self.node
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Notes that a child has ended; if it was the node, gives what it said last.
    pub fn ended(&self, child: u32) -> Option<String> {
        if child != self.pid() {
            return None;
        }
        self.reaped.set(true);
        self.last_complaint()
    }

    /// Gives up the node to whoever gets the end of its pipe.
    pub fn into_lifeline(mut self) -> Option<PipeWriter> {
        self.socket.keep();
        self.status.keep();
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
