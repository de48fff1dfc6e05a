//! `farmem agent`: the allocation service of this host, as this user.
//!
//! The service itself is [`farmem_agent`]; here are its flags, the node it starts
//! when none is named, and how others start it on demand ([`start`]).
//!
//! Without `--node`, memory is lent by a second process (`node.rs`), so that an
//! agent that is killed finds its applications' memory again. That process ends
//! when nobody has held memory there for some seconds.

mod moves;
mod node;
mod quota;
pub mod report;
mod start;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farmem_agent::host::{self, Agent, Config, StartError};
use farmem_agent::serve::End;
use farmem_agent::stock::Quotas;
use farmem_fabric::{ConnectError, NodeAddr, Transport, Trust};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_run::exit;
use farmem_sys::probe;
use farmem_sys::process::{self, Signals};

use crate::failure::Failure;
use crate::rack::nodes::{Asker, NoNodes, Unreached};
use crate::size::{self, Size};
use crate::{forbidden, runtime_dir, units};
pub use node::Options as NodeOptions;
pub use node::run as run_node;
use quota::Quota;
pub use start::reached_or_started;

/// Serve far memory in pieces to this user's programs
///
/// Programs that use farmem's allocation library get pieces of 4 KiB to 2 MiB, and runs
/// of them, from this service through shared memory, mostly without a system call.
/// It is started on demand (farmem run --agent) and ends when idle.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The node whose memory is served: unix:PATH on this machine, which programs map, or HOST:PORT
    /// of any other, which they reach over tcp, by keys of their own. Without it, a node is started
    #[arg(long, value_name = "ADDR")]
    pub node: Option<NodeAddr>,

    /// The controller of a rack that gives it a node; several by commas. When that node is to be
    /// emptied, the memory of all programs moves to another one
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "node", value_parser = crate::rack::address)]
    pub controller: Option<String>,

    /// Memory that the node started for it lends, at most
    #[arg(long, value_name = "SIZE", default_value = "25%", conflicts_with_all = ["node", "controller"])]
    pub lend: Size,

    /// What a user's programs may hold: SIZE for each user, USER=SIZE for one, USER/JOB=SIZE for
    /// one job of a user; may be repeated
    #[arg(long, value_name = "QUOTA")]
    pub quota: Vec<Quota>,

    /// End when nobody has used it for so long; 0: never
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = crate::time::parse)]
    pub idle: Duration,

    /// How long the node keeps everything, should this service be killed, for the next one to take
    /// over
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = crate::time::parse)]
    pub grace: Duration,

    #[command(flatten)]
    pub token: crate::borrow::Flag,

    /// Tell who holds what of the service that runs, and end
    #[arg(long)]
    pub status: bool,

    /// A directory for its files
    #[arg(long, value_name = "DIR", hide = true)]
    pub dir: Option<PathBuf>,

    /// Say nothing
    #[arg(long, hide = true, overrides_with = "quiet")]
    pub quiet: bool,

    /// Start it as a process of its own, and end when it listens
    #[arg(long)]
    pub detach: bool,
}

const EXAMPLES: &str = "\
Examples:
  farmem agent --lend 2G --quota 512M
      Each user's programs hold half a GiB at most, of 2 GiB in all.

  farmem agent --node bighost:7411 --quota alice=4G --quota alice/nightly=1G
      Memory of a node that runs already; alice's job 'nightly' has a limit of
      its own.

  farmem agent --node unix:/run/farmem/node.sock
      Memory of a node on this machine is mapped, if the node is named by its
      socket; by HOST:PORT programs read and write their pieces by verbs over
      tcp, not by loads and stores.

  farmem agent --controller rack:7400
      Memory of a node that the rack's controller names. It moves when that
      node is drained, while programs go on.

  farmem agent --status
      Who holds what.

Quotas are counted in blocks of 2 MiB, and exact. SIGTERM, or the end of its terminal: ends; programs that hold memory keep it \
for --grace, and are served by the next agent.";

/// Serves until idle, or told to end.
pub fn run(options: &Options) -> Result<(), Failure> {
    options.quota.iter().try_for_each(Quota::check)?;
    if !options.status {
        forbidden::check(&[probe::COMMON, probe::NODE, probe::AGENT])?;
    }
    let dir = match &options.dir {
        Some(dir) => dir.clone(),
        None => runtime_dir::own().map_err(Failure::usage)?,
    };
    if options.status {
        return status(&dir);
    }
    if options.detach {
        return start::detached(&dir);
    }
    // Programs hold a descriptor or more each, and as many may be under way to them as it may have.
    process::raise_descriptor_limit();
    // Before any thread, so that signals come to the one that waits for them.
    let signals = Signals::take().map_err(|e| Failure::usage(format!("cannot take over signals: {e}")))?;
    let trust = options.token.trust()?;
    let mut asker = match &options.controller {
        Some(at) => Some(moves::asker(at, &trust, &dir)?),
        None => None,
    };
    let (wanted, agent) = begin(options, &dir, asker.as_mut(), trust, &signals)?;
    let named = Arc::new(Mutex::new(agent.node().to_string()));
    let mut publish = report::Publisher::new(&dir, Arc::clone(&named)).publish();
    moves::begin(&agent, moves::Wants { node: wanted, asker, named })?;
    // Before anybody who was told that it listens asks who holds what.
    publish(&agent.report());
    if !options.quiet {
        eprintln!("farmem: agent at {}", host::socket(&dir).display());
        if agent.recovered > 0 {
            eprintln!("farmem: took over {} programs of an agent that was killed", agent.recovered);
        }
    }
    let service = Arc::clone(agent.service());
    let told = move || {
        loop {
            if signals.next(Duration::from_secs(3600)).is_some_and(|signal| signals.asks_to_end(signal)) {
                service.stop();
            }
        }
    };
    let spawned = std::thread::Builder::new().name("signals".into()).spawn(told);
    spawned.map_err(|e| Failure::usage(format!("cannot start a thread: {e}")))?;
    let end = agent.run(&mut publish).map_err(refusal)?;
    let _ = std::fs::remove_file(report::Agent::path(&dir));
    let left = agent.report().applications.len();
    agent.close();
    ended(end, left, options)
}

/// The node that the user names, or one on this machine.
fn node_of(options: &Options, dir: &Path) -> Result<NodeAddr, Failure> {
    if let Some(node) = &options.node {
        return Ok(node.clone());
    }
    // No node is started for an agent that has to end at once.
    let socket = host::socket(dir);
    if start::listens(&socket) {
        return Err(refusal(StartError::Running(socket)));
    }
    let ram = size::ram().map_err(Failure::usage)?;
    let lend = options.lend.bytes(ram.total);
    if lend < SLAB_BYTES {
        return Err(Failure::usage(farmem_memory::StartError::TooLittle));
    }
    if lend > ram.total {
        let lend = units::bytes(lend);
        return Err(Failure::usage(format!("--lend: {lend} is more than {ram}: lend less")));
    }
    Ok(NodeAddr::Shm(node::at_hand(dir, lend)?))
}

/// Says how the agent ended. `left`: programs that still hold memory.
fn ended(end: End, left: usize, options: &Options) -> Result<(), Failure> {
    match end {
        End::Told | End::Idle if options.quiet => Ok(()),
        End::Idle => {
            eprintln!("farmem: agent ends: nobody has used it for {} s", options.idle.as_secs());
            Ok(())
        }
        End::Told if left > 0 => {
            eprintln!("farmem: agent ends; {left} programs keep their memory for {} s", options.grace.as_secs());
            // As a kill would: no farewell to the node.
            std::process::exit(0)
        }
        End::Told => Ok(()),
        End::Lost(why) => Err(Failure { status: exit::NODE_LOST, line: format!("agent: {why}") }),
    }
}

/// Starts the service, on one thread: the agent, and the node that it is to use.
fn begin(
    options: &Options,
    dir: &Path,
    asker: Option<&mut Asker>,
    trust: Trust,
    signals: &Signals,
) -> Result<(NodeAddr, Agent), Failure> {
    let start = |node: &NodeAddr| {
        let transport = match node {
            NodeAddr::Shm(_) => Transport::Shm,
            // Windows of blocks are not on RDMA cards: their verbs would go in frames all the same.
            NodeAddr::Tcp(_) => Transport::Tcp,
        };
        let config = Config {
            dir: dir.to_owned(),
            node: node.clone(),
            transport,
            quotas: options.quota.iter().fold(Quotas::default(), Quota::add_to),
            idle: (!options.idle.is_zero()).then_some(options.idle),
            grace: options.grace,
            trust,
        };
        let mut told = false;
        Agent::start_with(config, &mut |why| {
            if !std::mem::replace(&mut told, true) {
                let grace = options.grace.as_secs();
                eprintln!("farmem: agent: {why}; programs have memory there: it is waited for, {grace} s at most");
            }
            if signals.end_within(host::AGAIN_EVERY).is_some() {
                // It serves nobody yet. Programs keep their memory for the next agent.
                std::process::exit(0);
            }
            true
        })
    };
    let Some(asker) = asker else {
        let node = node_of(options, dir)?;
        // The node was a process of its own to start; from here on nothing is.
        crate::confined::begin();
        let agent = start(&node).map_err(refusal)?;
        return Ok((node, agent));
    };
    crate::confined::begin();
    let reached = asker.reached(signals, |nodes| start(&nodes[0].at).map_err(unreached));
    let (mut nodes, agent) = match reached {
        // It serves nobody yet, and ends as an agent that is told to end.
        Err(NoNodes::Ended(_)) => std::process::exit(0),
        Err(NoNodes::Failed(failure)) => return Err(failure),
        Ok(reached) => reached,
    };
    Ok((nodes.swap_remove(0).at, agent))
}

fn unreached(e: StartError) -> Unreached {
    match e {
        StartError::Node(e) => e.into(),
        other => Unreached { failure: refusal(other), is_gone: false, node: None },
    }
}

fn refusal(e: StartError) -> Failure {
    match e {
        StartError::Node(ConnectError::Refused(node)) => {
            Failure::no_node(format!("node {node}: nobody listens there: start one with farmem node"))
        }
        StartError::Node(e) => Failure::no_node(e),
        other => Failure::usage(other),
    }
}

fn status(dir: &std::path::Path) -> Result<(), Failure> {
    let none = || Failure::usage("no agent of this user is running; one is started on demand, or by farmem agent");
    let agent = report::Agent::living(dir).ok_or_else(none)?;
    print!("{}", agent.text());
    Ok(())
}
