//! The binary under test, runs of it, and nodes.

use std::ffi::{OsStr, OsString};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{self, Outcome, Running, eventually};

/// The `farmem` binary: `$FARMEM_BIN`, or the workspace's release build, built first.
///
/// # Panics
/// If it cannot be built: then no test can say anything.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("FARMEM_BIN") {
        Some(path) => PathBuf::from(path),
        None => built("farmem-cli", "farmem").expect("cargo build --release -p farmem-cli"),
    })
}

/// The `farmem-lab` binary: `$FARMEM_LAB_BIN`, or the workspace's release build, built first.
///
/// # Panics
/// As [`binary`].
pub fn lab() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("FARMEM_LAB_BIN") {
        Some(path) => PathBuf::from(path),
        None => built("farmem-lab", "farmem-lab").expect("cargo build --release -p farmem-lab"),
    })
}

/// Builds one of the workspace's binaries in release mode and returns its path.
///
/// The shipped commands are selected too, though only `name` is built: cargo enables the features that
/// the selected packages need together. `package` alone would get others, and most crates of the
/// release build would be compiled once more.
///
/// # Errors
/// What cargo says, if the build fails.
pub fn built(package: &str, name: &str) -> Result<PathBuf> {
    let out = Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet", "--message-format=json", "-p", "farmem-cli", "-p", "farmem-lab"])
        .args(["-p", package, "--bin", name])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()?;
    if !out.status.success() {
        bail!("{}", String::from_utf8_lossy(&out.stderr));
    }
    String::from_utf8_lossy(&out.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .with_context(|| format!("cargo named no executable {name}"))
}

/// How a program is to be run on far memory.
#[derive(Clone)]
pub struct Far {
    local: String,
    options: Vec<String>,
}

impl Far {
    /// With this much local memory, as `--local` reads it, and an embedded node.
    pub fn local(local: impl ToString) -> Far {
        Far { local: local.to_string(), options: Vec::new() }
    }

    /// With one more option of `farmem run`.
    pub fn with(mut self, options: &[&str]) -> Far {
        self.options.extend(options.iter().map(|o| o.to_string()));
        self
    }

    /// On this node instead of an embedded one.
    pub fn on(self, node: &str) -> Far {
        self.with(&["--node", node])
    }

    /// The command that runs `program` so. It reports its statistics as the last line of standard error.
    pub fn command(&self, program: &Command) -> Command {
        let mut command = Command::new(binary());
        command.args(["run", "--no-settings", "--local", &self.local, "--stats", "json"]).args(&self.options);
        command.arg("--").arg(program.get_program()).args(program.get_args());
        if let Some(dir) = program.get_current_dir() {
            command.current_dir(dir);
        }
        for (key, value) in program.get_envs() {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        command
    }
}

/// The statistics that a run printed, and what else it said on standard error.
pub fn split_stats(stderr: &str) -> (Option<Value>, String) {
    let mut stats = None;
    let mut rest = String::new();
    for line in stderr.lines() {
        match serde_json::from_str::<Value>(line) {
            Ok(value) if line.starts_with('{') => stats = Some(value),
            _ => {
                rest.push_str(line);
                rest.push('\n');
            }
        }
    }
    (stats, rest)
}

/// A counter of a run's statistics, summed over its processes by farmem itself.
pub fn counter(stats: &Value, name: &str) -> u64 {
    let found = [&stats["total"][name], &stats["counters"][name], &stats[name]];
    found.iter().find_map(|value| value.as_u64()).unwrap_or(0)
}

/// A memory node in a process of its own.
pub struct Node {
    /// The process.
    pub running: Running,
    /// Where it listens.
    pub tcp: SocketAddr,
    /// Its Unix socket, for clients of the same host.
    pub unix: PathBuf,
    metrics: SocketAddr,
    _dir: process::TempDir,
}

impl Node {
    /// Starts a node that lends `lend`, on free ports, and waits until it serves.
    pub fn start(lend: &str, options: &[&str]) -> Result<Node> {
        Node::start_at(free_port()?, lend, options)
    }

    /// Starts a node at a stated TCP address.
    pub fn start_at(tcp: SocketAddr, lend: &str, options: &[&str]) -> Result<Node> {
        Node::of(tcp, lend, "--open".as_ref(), options)
    }

    /// Starts a node that asks for tokens of a store.
    pub fn guarded(lend: &str, store: &Path) -> Result<Node> {
        let mut tokens = OsString::from("--tokens=");
        tokens.push(store);
        Node::of(free_port()?, lend, &tokens, &[])
    }

    fn of(tcp: SocketAddr, lend: &str, who: &OsStr, options: &[&str]) -> Result<Node> {
        let dir = process::TempDir::new("node")?;
        let unix = dir.path().join("node.sock");
        let metrics = free_port()?;
        let mut command = Command::new(binary());
        command.arg("node").arg(who).args(["--lend", lend, "--listen", &tcp.to_string()]);
        command.arg("--listen").arg(format!("unix:{}", unix.display()));
        command.args(["--metrics", &metrics.to_string()]).args(options);
        // A node under nohup does not end with its terminal; tests begun by it are to see the same node.
        process::ignores(&mut command, libc::SIGHUP, false);
        let running = process::spawn(command)?;
        // It listens at one address after another.
        let serves = || TcpStream::connect(tcp).is_ok() && UnixStream::connect(&unix).is_ok();
        let up = eventually(Duration::from_secs(60), || serves() || !running.alive());
        if !up || !running.alive() {
            bail!("the node did not come up: {}", running.stderr());
        }
        Ok(Node { running, tcp, unix, metrics, _dir: dir })
    }

    /// Its address for `--node`, by TCP.
    pub fn by_tcp(&self) -> String {
        self.tcp.to_string()
    }

    /// Its address for `--node`, by shared memory.
    pub fn by_shm(&self) -> String {
        format!("unix:{}", self.unix.display())
    }

    /// One of its Prometheus counters, the sum over its labels.
    pub fn metric(&self, name: &str) -> Result<f64> {
        let text = self.metrics()?;
        let values: Vec<f64> = text
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])))
            .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
            .collect();
        if values.is_empty() {
            bail!("no metric {name} in\n{text}");
        }
        Ok(values.iter().sum())
    }

    /// Where it tells its counters.
    pub fn metrics_address(&self) -> String {
        self.metrics.to_string()
    }

    /// Everything it publishes.
    pub fn metrics(&self) -> Result<String> {
        use std::io::{Read, Write};
        let mut http = TcpStream::connect(self.metrics)?;
        http.set_read_timeout(Some(Duration::from_secs(60)))?;
        write!(http, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        http.read_to_string(&mut text)?;
        Ok(text)
    }
}

/// An address on the loopback interface that nobody listens on, nor will but who is told of it: until somebody binds the
/// port, the kernel gives it to whoever asks for any at the same address, as other tests do.
pub fn free_port() -> Result<SocketAddr> {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed) % 250;
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ok(TcpListener::bind((Ipv4Addr::new(127, 1 + serial as u8, high, low), 0))?.local_addr()?)
}

/// Runs a program natively, then on far memory, and fails unless output and status are equal.
/// Returns the far run's outcome, with its own statistics taken out of `stderr`.
pub fn same_as_native(program: &Command, far: &Far, limit: Duration) -> Result<(Outcome, Outcome, Value)> {
    let native = process::run(copy(program), limit).context("natively")?;
    let (far, stats) = far_run(program, far, limit)?;
    compare(&native, &far)?;
    Ok((native, far, stats))
}

/// Runs a program on far memory; takes the statistics out of its standard error.
pub fn far_run(program: &Command, far: &Far, limit: Duration) -> Result<(Outcome, Value)> {
    let mut outcome = process::run(far.command(program), limit).context("on far memory")?;
    let (stats, rest) = split_stats(&outcome.stderr);
    outcome.stderr = rest;
    let stats = stats.with_context(|| format!("no statistics; {}; it said:\n{}", outcome.status, outcome.stderr))?;
    Ok((outcome, stats))
}

/// Fails unless two outcomes have the same status and the same standard output.
pub fn compare(native: &Outcome, far: &Outcome) -> Result<()> {
    if native.code() != far.code() || native.stdout != far.stdout {
        bail!(
            "differs from native: status {} natively, {} far; output {}\n--- native\n{}\n--- far\n{}\n--- stderr\n{}",
            native.code(),
            far.code(),
            first_difference(&native.stdout, &far.stdout),
            native.stdout_tail(),
            far.stdout_tail(),
            far.stderr
        );
    }
    Ok(())
}

fn first_difference(a: &[u8], b: &[u8]) -> String {
    match a.iter().zip(b).position(|(x, y)| x != y) {
        Some(at) => format!("differs at byte {at}"),
        None if a.len() == b.len() => "is equal".into(),
        None => format!("ends after {} bytes natively, {} far", a.len(), b.len()),
    }
}

/// A command again: `Command` has no `Clone`.
pub fn copy(program: &Command) -> Command {
    let mut again = Command::new(program.get_program());
    again.args(program.get_args());
    if let Some(dir) = program.get_current_dir() {
        again.current_dir(dir);
    }
    for (key, value) in program.get_envs() {
        match value {
            Some(value) => again.env(key, value),
            None => again.env_remove(key),
        };
    }
    again
}
