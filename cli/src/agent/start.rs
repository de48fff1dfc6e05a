//! The agent on demand: found if it runs, started if it does not.
//!
//! A started agent is not the caller's child: it serves others, too, and ends when idle. So `farmem
//! agent --detach` starts it, waits until it listens, and ends. The caller waits for that.

use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use farmem_agent::host;
use farmem_run::exit;

use super::report::Agent;
use crate::failure::Failure;

/// How long an agent, and the node it may have to start, take to listen.
const READY_WITHIN: Duration = Duration::from_secs(15);
/// How long another may still take that was started at the same time and was faster.
const AFTER_END: Duration = Duration::from_secs(2);

/// The socket of this directory's agent, which is started if there is none.
pub fn reached_or_started(dir: &Path) -> io::Result<PathBuf> {
    let socket = host::socket(dir);
    if listens(&socket) {
        return Ok(socket);
    }
    let out = quietly(Command::new("/proc/self/exe").args(["agent", "--detach", "--dir"]).arg(dir)).output()?;
    if out.status.success() {
        return Ok(socket);
    }
    let said = String::from_utf8_lossy(&out.stderr);
    Err(io::Error::other(said.trim().trim_start_matches("farmem: ").to_owned()))
}

/// Whether an agent is there.
pub fn listens(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// `farmem agent --detach`.
pub fn detached(dir: &Path) -> Result<(), Failure> {
    let socket = host::socket(dir);
    if listens(&socket) {
        // Options beyond running it at all.
        if std::env::args_os().skip(2).any(|argument| argument != "--detach") {
            let who = Agent::living(dir).map(|agent| format!(" (process {}, memory of {})", agent.pid, agent.node));
            eprintln!("farmem: an agent is running already{}: it stays as it was started", who.unwrap_or_default());
        }
        return Ok(());
    }
    let failed = |e: io::Error| Failure::usage(format!("no agent could be started: {e}"));
    let said = dir.join(format!("agent-{}.log", std::process::id()));
    let complaints = std::fs::File::create(&said).map_err(failed)?;
    // With everything that was said to us but that.
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--detach");
    let mut command = Command::new("/proc/self/exe");
    let spawned = quietly(command.args(arguments).arg("--quiet")).stderr(complaints).spawn();
    let complaint =
        || std::fs::read_to_string(&said).unwrap_or_default().trim().trim_start_matches("farmem: ").to_owned();
    let (mut agent, mut until) = (spawned.map_err(failed)?, Instant::now() + READY_WITHIN);
    let mut status = exit::USAGE;
    let ended = loop {
        if listens(&socket) {
            break Ok(());
        }
        // Another may have been faster, and this one have ended because of it: that one is to
        // listen soon.
        if let Some(end) = agent.try_wait().map_err(failed)? {
            until = until.min(Instant::now() + AFTER_END);
            status = end.code().unwrap_or(status);
        }
        if Instant::now() >= until {
            break Err(Failure { status, line: format!("no agent could be started: {}", complaint()) });
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let _ = std::fs::remove_file(&said);
    ended
}

/// Without the program's library, terminal and process group.
fn quietly(command: &mut Command) -> &mut Command {
    let command = command.arg0("farmem").env_remove("LD_PRELOAD").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null())
}
