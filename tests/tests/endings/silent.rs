//! The network between a program and its node goes silent: packets vanish, and nobody says so.
//!
//! Program and node run in network namespaces of their own, joined by a veth pair. What needs root,
//! `ip` or `iptables` and does not have it is skipped, and says what is missing.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use farmem_tests::farmem::{Far, binary};
use farmem_tests::process::{self, Running, TempDir, eventually};

use crate::{BUSY, By, FORKED, IDLE, LIMIT, Scenario, Work, checker, scenario, together};

/// The longest that a program may take beyond its grace to end when its network is silent.
const BOUND: Duration = Duration::from_secs(4);
const PORT: u16 = 7601;
/// The address of the program's machine.
pub const HERE: &str = "10.213.7.1";

/// Ways in which packets vanish.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Silence {
    /// A firewall at the node drops everything.
    Dropped,
    /// A firewall at the node drops what goes to its port.
    Filtered,
    /// Only what the node says is dropped.
    Mute,
    /// A route of the program's machine says that the node's is unreachable.
    Unreachable,
    /// A route of the program's machine swallows what goes to the node's.
    Swallowed,
    /// The program's machine has no route any more: its link is down.
    NoLink,
    /// The node's link is down.
    FarLinkDown,
}

/// Two network namespaces with a link between them. Removed when dropped.
pub struct Pair {
    pub host: String,
    pub node: String,
    /// The node's address.
    pub at: String,
}

fn ip(arguments: &str) -> Result<()> {
    tool("ip", arguments)
}

fn tool(name: &str, arguments: &str) -> Result<()> {
    let out = Command::new(name).args(arguments.split_whitespace()).output().context(name.to_owned())?;
    match out.status.success() {
        true => Ok(()),
        false => bail!("{name} {arguments}: {}", String::from_utf8_lossy(&out.stderr).trim()),
    }
}

/// Whether this process can make namespaces and filters. If not, says what is missing.
pub fn can(test: &str) -> bool {
    let tried = Pair::new().and_then(|pair| pair.begin(Silence::Dropped));
    if let Err(missing) = &tried {
        eprintln!("skipped: {test}: {missing:#}");
    }
    tried.is_ok()
}

impl Pair {
    pub fn new() -> Result<Pair> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let name = format!("fm{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let pair = Pair { host: format!("{name}h"), node: format!("{name}n"), at: "10.213.7.2".into() };
        ip(&format!("netns add {}", pair.host))?;
        ip(&format!("netns add {}", pair.node))?;
        ip(&format!("-n {} link add wire type veth peer name wire netns {}", pair.host, pair.node))?;
        for (end, address) in [(&pair.host, HERE), (&pair.node, &pair.at)] {
            ip(&format!("-n {end} addr add {address}/24 dev wire"))?;
            ip(&format!("-n {end} link set lo up"))?;
            ip(&format!("-n {end} link set wire up"))?;
        }
        Ok(pair)
    }

    /// The command, in one of the namespaces.
    pub fn inside(namespace: &str, command: &Command) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", namespace]).arg(command.get_program()).args(command.get_args());
        inside
    }

    pub fn begin(&self, silence: Silence) -> Result<()> {
        let Pair { host, node, at } = self;
        let filter =
            |chain: &str, what: &str| tool("ip", &format!("netns exec {node} iptables -w -I {chain} {what} -j DROP"));
        match silence {
            Silence::Dropped => filter("INPUT", "").and_then(|()| filter("OUTPUT", "")),
            Silence::Filtered => filter("INPUT", &format!("-p tcp --dport {PORT}")),
            Silence::Mute => filter("OUTPUT", ""),
            Silence::Unreachable => ip(&format!("-n {host} route add unreachable {at}/32")),
            Silence::Swallowed => ip(&format!("-n {host} route add blackhole {at}/32")),
            Silence::NoLink => ip(&format!("-n {host} link set wire down")),
            Silence::FarLinkDown => ip(&format!("-n {node} link set wire down")),
        }
    }

    fn end(&self, silence: Silence) -> Result<()> {
        let Pair { host, node, at } = self;
        match silence {
            Silence::Dropped | Silence::Filtered | Silence::Mute => {
                tool("ip", &format!("netns exec {node} iptables -w -F"))
            }
            Silence::Unreachable | Silence::Swallowed => ip(&format!("-n {host} route del {at}/32")),
            Silence::NoLink => ip(&format!("-n {host} link set wire up")),
            Silence::FarLinkDown => ip(&format!("-n {node} link set wire up")),
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for namespace in [&self.host, &self.node] {
            let _ = ip(&format!("netns del {namespace}"));
        }
    }
}

/// A node at one end, and a program at work at the other.
struct Apart {
    work: Work,
    node: Running,
    address: String,
    pair: Pair,
    _dir: TempDir,
}

pub fn serves(node: &Running, socket: &Path) -> Result<()> {
    // It listens there last.
    let up = eventually(LIMIT, || UnixStream::connect(socket).is_ok() || !node.alive());
    ensure!(up && node.alive(), "the node did not come up: {}", node.stderr());
    Ok(())
}

fn apart(grace: Duration, arguments: &[&str]) -> Result<Apart> {
    let (pair, dir) = (Pair::new()?, TempDir::new("apart")?);
    let (address, socket) = (format!("{}:{PORT}", pair.at), dir.path().join("node.sock"));
    let mut command = Command::new(binary());
    command.args(["node", "--open", "--lend", "256M", "--listen", &address]);
    command.arg("--listen").arg(format!("unix:{}", socket.display()));
    let node = process::spawn(Pair::inside(&pair.node, &command))?;
    serves(&node, &socket)?;
    let far: Far = By::Tcp.far("4M", &address).with(&["--grace", &format!("{}ms", grace.as_millis())]);
    let work = Work::of(process::spawn(Pair::inside(&pair.host, &far.command(&checker(arguments)?)))?)?;
    Ok(Apart { work, node, address, pair, _dir: dir })
}

fn ends(silence: Silence, arguments: &'static [&'static str]) -> Scenario {
    scenario(format!("{silence:?} {arguments:?}"), move || {
        let grace = Duration::from_secs(2);
        let Apart { work, address, pair, node: _node, _dir } = apart(grace, arguments)?;
        silenced(work, &pair, silence, grace, &address)
    })
}

/// The program ends after its grace, counted from where the silence begins. It ends soon after
/// that, counted from where the silence is whole: the tools that bring it about take their time.
fn silenced(work: Work, pair: &Pair, silence: Silence, grace: Duration, address: &str) -> Result<()> {
    let begins = Instant::now();
    pair.begin(silence)?;
    let whole = Instant::now();
    let took = work.ended(whole, grace + BOUND, 70, address, "is lost: ")? + (whole - begins);
    ensure!(took >= grace, "the grace was not waited for: {took:?}");
    Ok(())
}

#[test]
fn a_silent_network_ends_the_program_soon_after_the_grace() -> Result<()> {
    if !can("a silent network") {
        return Ok(());
    }
    together(vec![
        ends(Silence::Dropped, BUSY),
        ends(Silence::Dropped, FORKED),
        ends(Silence::Dropped, IDLE),
        ends(Silence::Filtered, BUSY),
        ends(Silence::Mute, FORKED),
    ])?;
    together(vec![
        ends(Silence::Unreachable, FORKED),
        ends(Silence::Swallowed, IDLE),
        ends(Silence::NoLink, BUSY),
        ends(Silence::NoLink, IDLE),
        ends(Silence::FarLinkDown, FORKED),
    ])
}

/// Of a program that survives silences: the longest of them, and as long as whoever ends it may be held up.
const GRACE: Duration = Duration::from_secs(20);

/// Sound after each of several silences shorter than the grace.
fn goes_on(silence: Silence, arguments: &'static [&'static str]) -> Scenario {
    scenario(format!("{silence:?} {arguments:?}"), move || {
        let apart = apart(GRACE, arguments)?;
        for ms in [300, 1500, 3000] {
            let since = Instant::now();
            apart.pair.begin(silence)?;
            std::thread::sleep(Duration::from_millis(ms));
            apart.pair.end(silence)?;
            let lasted = since.elapsed();
            // The kernel asks for a neighbour's address each second only.
            std::thread::sleep(Duration::from_millis(2500));
            if lasted > GRACE / 2 {
                // The machine was too busy for the tools.
                return Ok(());
            }
            ensure!(apart.work.run.alive(), "{lasted:?}: {}", apart.work.run.stderr());
        }
        apart.work.sound().map(|_| ())
    })
}

#[test]
fn a_silence_shorter_than_the_grace_changes_nothing() -> Result<()> {
    if !can("a short silence") {
        return Ok(());
    }
    together(vec![
        goes_on(Silence::Dropped, BUSY),
        goes_on(Silence::Mute, FORKED),
        goes_on(Silence::Unreachable, IDLE),
        goes_on(Silence::NoLink, BUSY),
        goes_on(Silence::FarLinkDown, FORKED),
    ])
}

/// The kernel of a stopped node acknowledges: it is waited for beyond the grace, but not beyond a
/// silence.
#[test]
fn a_stopped_node_is_told_from_a_silent_one() -> Result<()> {
    if !can("a stopped node") {
        return Ok(());
    }
    let stopped = |arguments: &'static [&'static str], silent: bool| {
        scenario(format!("{arguments:?} silent {silent}"), move || {
            let grace = Duration::from_secs(1);
            let Apart { work, address, node, pair, _dir } = apart(grace, arguments)?;
            // `ip netns exec` has become the node.
            node.signal(libc::SIGSTOP);
            std::thread::sleep(Duration::from_secs(5));
            ensure!(work.run.alive(), "{}", work.run.stderr());
            if silent {
                return silenced(work, &pair, Silence::Dropped, grace, &address);
            }
            node.signal(libc::SIGCONT);
            std::thread::sleep(Duration::from_millis(200));
            work.sound().map(|_| ())
        })
    };
    together(vec![stopped(BUSY, false), stopped(FORKED, false), stopped(BUSY, true), stopped(IDLE, true)])
}
