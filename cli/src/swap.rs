//! `farmem swap`: the kernel of this machine swaps to a node.

use std::path::PathBuf;
use std::time::Duration;

use farmem_fabric::NodeAddr;
use farmem_run::{Protect, exit};
use farmem_swap::on::{MAX_DEVICES, Plan};
use farmem_swap::watch::Over;
use farmem_swap::{Error, off, on};
use farmem_sys::process::{self, Signals};

use crate::borrow::Flag;
use crate::failure::Failure;
use crate::run::names;
use crate::settings::Settings;
use crate::size::{self, Size};
use crate::time;
use crate::units;

/// Have this machine's kernel swap to a node: more memory for every program, as root
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// How much: 32G, or a share of this machine's RAM
    #[arg(long, required_unless_present = "off")]
    pub size: Option<Size>,

    /// The node: HOST:PORT, on another machine. With --protect mirror: two of them, then those that
    /// may take the place of one that is lost
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "off")]
    pub node: Vec<NodeAddr>,

    /// mirror: keep every page at two nodes, of which one may be lost; none: at one
    #[arg(long, value_parser = names::<Protect>(), default_value = "none", hide_possible_values = true)]
    pub protect: Protect,

    /// Connections to the node, each with a swap device of its own; 1 to 16
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MAX_DEVICES as i64))]
    pub connections: u32,

    /// Priority among swap devices, 0 to 32767: the highest is used first
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=32767))]
    pub priority: u16,

    /// How long the node may be silent until its connection is given up
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time::parse)]
    pub timeout: Duration,

    /// How long pages are waited for when the node cannot be reached: 60s, and 5s with --protect
    /// mirror
    #[arg(long, value_name = "TIME", value_parser = time::parse)]
    pub grace: Option<Duration>,

    /// Take more than the node can promise: pages that find no room there stay here
    #[arg(long)]
    pub overcommit: bool,

    /// Encrypt what leaves, by dm-crypt with a random key that nobody keeps
    #[arg(long)]
    pub crypt: bool,

    /// The file of the token by which to borrow, where the node asks for one. It says who asks. The
    /// bytes that the kernel moves are encrypted by --crypt alone
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,

    /// Swap no longer: bring everything back, and free the node's memory
    #[arg(long, conflicts_with_all = ["size", "node"])]
    pub off: bool,

    /// Swap to a node on this machine, which may hang it: for tests below a memory group's limit
    #[arg(long, hide = true)]
    pub same_machine_may_hang: bool,

    /// Do not ask the kernel to report freed slots: for tests
    #[arg(long, hide = true)]
    pub without_probe: bool,
}

const EXAMPLES: &str = "\
Examples:
  farmem swap --size 32G --node bighost:7411
      A swap device of 32 GiB, until Ctrl-C. Every program may be swapped to it.
  farmem swap --size 32G --node a:7411 --node b:7411 --protect mirror
      Every page at two nodes. One of them may be lost.
  farmem swap --off
      Swap no longer, whoever began it.

No process is in the way of a page: the kernel speaks to the node by itself. If this one is killed, swapping goes on, \
and the same command watches on.

A program that needs a page of a node that is lost gets SIGBUS. Without --crypt the bytes go over the network as \
they are: use a network that you trust.

Without root, and faster for one program: farmem run";

/// How long pages are waited for where there is one copy.
const GRACE: Duration = Duration::from_secs(60);
/// How long they are waited for where there is another.
const GRACE_OF_TWO: Duration = Duration::from_secs(5);

/// The lowest size that is of any use.
const LEAST: u64 = 1 << 20;

/// Swaps until it is told to end.
pub fn run(options: &Options) -> Result<(), Failure> {
    if process::user() != 0 {
        return Err(Failure::usage("swapping needs root: without it, run one program on far memory by farmem run"));
    }
    if options.off {
        return match off::off().map_err(failed)? {
            false => Err(Failure::usage("this machine does not swap by farmem")),
            true => Ok(()),
        };
    }
    let Some(size) = options.size else { return Ok(()) };
    let nodes = nodes(options)?;
    let mirror = options.protect == Protect::Mirror;
    let size = size.bytes(size::ram().map_err(Failure::usage)?.total);
    if size / u64::from(options.connections) < LEAST {
        return Err(Failure::usage(units::too_little("--size", size, LEAST, "the least for each connection")));
    }
    let plan = Plan {
        nodes,
        mirror,
        size,
        devices: options.connections,
        priority: options.priority,
        timeout: options.timeout,
        grace: options.grace.unwrap_or(if mirror { GRACE_OF_TWO } else { GRACE }),
        overcommit: options.overcommit,
        crypt: options.crypt,
        token: Flag { token: options.token.clone(), plain: true }.file(&Settings::load()?)?,
        same_machine: options.same_machine_may_hang,
        probe: !options.without_probe,
    };
    // Before signals are taken: it can be interrupted.
    if off::wait_for_others().map_err(failed)? {
        eprintln!("farmem: what this machine swapped to was undone: the same command swaps anew");
        return Ok(());
    }
    let signals = Signals::take().map_err(Failure::usage)?;
    let Some(mut watch) = on::on(&plan, &signals).map_err(failed)? else { return Ok(()) };
    loop {
        let nodes = plan.nodes.join(" and ");
        let over = watch.run(&signals).map_err(failed)?;
        match over {
            Over::Undone => return Ok(()),
            Over::NodeGoes => eprintln!("farmem: {nodes} goes down or is to be emptied: bringing back what is there"),
            Over::Asked => eprintln!("farmem: bringing back what is swapped to {nodes}"),
        }
        match watch.undo() {
            // The user did not ask for an end. So the device keeps its watcher.
            Err(e) if over == Over::NodeGoes => eprintln!("farmem: {e}: swapping goes on, and is ended when it can be"),
            done => return done.map_err(failed),
        }
    }
}

/// The nodes, if they go with the other options.
fn nodes(options: &Options) -> Result<Vec<String>, Failure> {
    let mirror = options.protect == Protect::Mirror;
    let mut nodes: Vec<String> = Vec::new();
    for node in &options.node {
        let NodeAddr::Tcp(node) = node else {
            return Err(failed(Error::SameMachine(node.to_string())));
        };
        if nodes.contains(node) {
            return Err(Failure::usage(format!("--node {node} is named twice")));
        }
        nodes.push(node.clone());
    }
    let wrong = match (mirror, nodes.len()) {
        _ if !matches!(options.protect, Protect::None | Protect::Mirror) => {
            "farmem swap has --protect none and mirror; disk and ec:K+M are for farmem run"
        }
        (false, 2..) => "several nodes need --protect mirror: without it, name one with --node",
        (true, ..2) => "--protect mirror keeps two copies at different nodes: name at least two with --node",
        (true, _) if options.connections > 1 => "--connections goes with one node, not with --protect mirror",
        (true, _) if options.overcommit => "--overcommit does not go with --protect mirror: a full node would be lost",
        _ => return Ok(nodes),
    };
    Err(Failure::usage(wrong))
}

fn failed(error: Error) -> Failure {
    let status = match &error {
        Error::Node(..) | Error::Refused(..) => exit::NODE_UNUSABLE,
        _ => exit::USAGE,
    };
    Failure { status, line: error.to_string() }
}
