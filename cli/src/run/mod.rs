//! `farmem run`: one program on far memory, from its start to its end.
//!
//! ```text
//! find the program ─► reach the nodes ─► start it with the library ─► watch ─► summary, its status
//!  (program.rs)        (far.rs; none         (environment.rs)       (watch.rs)  (summary.rs)
//!                       named: embedded.rs)
//! ```
//!
//! Everything that can be refused is refused before the program starts, with one
//! line. From then on farmem is a bystander: signals go to the program, its
//! status becomes ours. Processes that it leaves in the background keep the run
//! alive (`keeper.rs`).

mod embedded;
mod environment;
mod far;
mod group;
pub mod keeper;
mod plan;
mod roster;
mod sites;
mod stdio;
mod stranded;
mod summary;
mod watch;

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use farmem_fabric::RunNode;
use farmem_protocol::addr::SLAB_BYTES;
use farmem_run::{Choice, Dirty, Faults, Mask, Prefetch, Protect, Seal, Transport};
use farmem_sys::probe;
use farmem_sys::process::{self, Signals};

use crate::borrow;
use crate::counters::{self, Beginning, Sample};
use crate::failure::Failure;
use crate::runtime_dir::{self, Scratch};
use crate::size::{Ram, Size};
use crate::{agent, forbidden, leftovers, library, program, rack, units};
use embedded::Embedded;
pub use environment::names;
use far::Far;
pub use plan::{Nodes, Plan, Protection};
pub use summary::Outcome;

use crate::rack::nodes::{Asker, NoNodes, Unreached};
pub use far::{RunName, each_once, run_node};
use roster::Roster;
use stranded::Stranded;
pub use summary::Stats;
pub use watch::Ending;

/// Run a program on far memory
///
/// The program is unchanged and needs no privilege. Its private memory lies on the
/// memory nodes; what it uses most stays local, up to --local.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The most memory here for the far pages of each process: 512M, 1.5G, or 25% of this machine's
    /// RAM [default: half of what is available]
    #[arg(long, value_name = "SIZE")]
    pub local: Option<Size>,

    /// A node that lends memory: HOST:PORT, HOST:PORT@DOMAIN or unix:PATH. Several: repeat the
    /// flag, or separate them by commas. With none, a node is started on this machine for this run
    /// alone [default: none]
    #[arg(long, value_name = "ADDR")]
    pub node: Vec<Nodes>,

    /// A file of nodes, one address a line, in place of --node. It is read again when it changes:
    /// nodes join the run while it goes on, or are taken out
    #[arg(long, value_name = "FILE", conflicts_with_all = ["node", "far"])]
    pub node_file: Option<PathBuf>,

    /// The controller of a rack, in place of --node: it says which nodes the run has, while it goes
    /// on, too
    #[arg(long, value_name = "HOST:PORT", value_parser = rack::address, conflicts_with_all = ["node", "node_file", "far"])]
    pub controller: Option<String>,

    /// What a node that is started for this run lends [default: 80% of what is available]
    #[arg(long, value_name = "SIZE")]
    pub far: Option<Size>,

    /// Copies of far memory, so that a node may be lost: none, mirror (at another node), disk[=DIR]
    /// (in a file on this machine) or ec:K+M (parity over K + M nodes; K+M is 2+1, 4+1, 8+1, 2+2,
    /// 4+2, 8+2 or 8+3) [default: none]
    #[arg(long, value_name = "HOW")]
    pub protect: Option<Protection>,

    /// Who serves page faults
    #[arg(long, value_parser = names::<Faults>(), default_value = "inline")]
    pub fault: Faults,

    /// Whether to fetch pages ahead of their use
    #[arg(long, value_parser = names::<Prefetch>(), default_value = "on")]
    pub prefetch: Prefetch,

    /// How changed bytes of pages are told from unchanged ones
    #[arg(long, value_parser = environment::DirtyParser, default_value = "auto")]
    pub dirty: Dirty,

    /// How bytes move [default: auto]
    #[arg(long, value_parser = names::<Transport>())]
    pub transport: Option<Transport>,

    /// Hold each process's traffic over tcp to so many bits a second each way, as 10G: what a
    /// slower network would make of the program
    #[arg(long, value_name = "RATE", value_parser = farmem_fabric::shape::rate)]
    pub shape: Option<u64>,

    /// Give the program the host's allocation service, too (FARMEM_AGENT names its socket); it is
    /// started if need be
    #[arg(long)]
    pub agent: bool,

    /// How long a lost connection may take to come back before the program is ended [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = crate::time::parse)]
    pub grace: Option<Duration>,

    #[command(flatten)]
    pub token: borrow::Flag,

    /// Do not trust the nodes: pages leave encrypted, and one that comes back changed or old ends
    /// the program. They go over tcp to nodes on this machine, too, and whole; with --seal=lines
    /// changed lines go alone, and nodes see which 16 bytes of a page change
    #[arg(
        long,
        value_name = "HOW",
        value_parser = names::<Seal>(),
        num_args = 0..=1,
        require_equals = true,
        default_value = "off",
        default_missing_value = "whole",
        hide_default_value = true
    )]
    pub seal: Seal,

    /// The summary at the end: text, json, json:FILE or none [default: text]
    #[arg(long, value_name = "FORM")]
    pub stats: Option<Stats>,

    /// Record which pages the program uses, in order, for `farmem-lab replay` (slow: nearly every
    /// step to another page faults, whatever --local says). Other processes of the run: FILE.PID
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Tell at the end which functions of the program waited most for pages: where hints would pay
    #[arg(long)]
    pub sites: bool,

    /// Ignore variables and configuration files (see Settings below)
    #[arg(long)]
    pub no_settings: bool,

    /// Say what is done
    #[arg(short, long)]
    pub verbose: bool,

    /// Kernel features to do without, comma separated (for tests)
    #[arg(long, value_name = "FEATURES", default_value = "", hide = true)]
    pub mask: Mask,

    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

impl Options {
    /// A run of this program of which nothing else is asked.
    pub fn plain(command: Vec<OsString>) -> Options {
        Options {
            local: None,
            node: Vec::new(),
            node_file: None,
            controller: None,
            far: None,
            protect: None,
            fault: Faults::Inline,
            prefetch: Prefetch::On,
            dirty: Dirty::Auto,
            transport: None,
            shape: None,
            agent: false,
            grace: None,
            token: borrow::Flag::default(),
            seal: Seal::Off,
            stats: None,
            trace: None,
            sites: false,
            no_settings: false,
            verbose: false,
            mask: Mask::NONE,
            command,
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  farmem run --local 1G -- python3 analysis.py
      No node named: one is started for this run, on this machine. Good for
      trying how a program behaves with a part of its memory local.

  farmem run --local 1G --node bighost:7411 -- redis-server
      Far memory lies on bighost, where this runs:
      farmem node --lend 8G --listen 0.0.0.0:7411 --open

  farmem run --local 1G --node a:7411 --node b:7411 --protect mirror -- ./job
      Every page is on both nodes: the job goes on when one is lost.

  farmem run --local 1G --node a:7411 --protect disk=/var/tmp -- ./job
      Every page is in a file here, too: the job goes on without its node.

  farmem run --local 25% --stats json:stats.json -- sort -S 8G big.txt
      A quarter of this machine's RAM local; figures for a script.

Settings: a flag wins over a variable, a variable over your file, your file over the system's.

  --local 1G          FARMEM_LOCAL=1G          local = \"1G\"
  --node a:7411       FARMEM_NODE=a:7411       node = [\"a:7411\", \"b:7411\"]
  --controller r:7400 FARMEM_CONTROLLER=r:7400 controller = \"r:7400\"
  --token F           FARMEM_TOKEN=F           token = \"F\"
  --protect mirror    FARMEM_PROTECT=mirror    protect = \"mirror\"
  --transport tcp     FARMEM_TRANSPORT=tcp     transport = \"tcp\"
  --grace 10s         FARMEM_GRACE=10s         grace = \"10s\"
  --stats none        FARMEM_STATS=none        stats = \"none\"

Your file is $XDG_CONFIG_HOME/farmem/config.toml (else ~/.config/farmem/config.toml), the system's \
/etc/farmem/config.toml. --node none undoes what they name.

Choosing --local: farmem size -- PROGRAM runs a program once and suggests one. Then look at \"waiting\" in the summary \
or in farmem top.

Sizes: 64k, 512M, 1.5G (powers of 1024), or 25%. Times: 500ms, 5s, 2m.

Exit status: the program's own, and its signals. 64 usage, 70 node lost, 71 far memory \
exhausted, 72 no usable node, 73 farmem broken, 74 a page altered at a node, 126 and 127 as in a shell.";

/// The bytes that a node started for the run lends. Errors speak of `--far`, because the user of
/// `farmem run` knows of no node.
fn lent(far: Option<Size>, ram: Ram, local: u64) -> Result<u64, Failure> {
    let Some(far) = far.map(|far| far.bytes(ram.total)) else {
        // The node is in the program's memory group, and one limit holds for both.
        let beside = if ram.is_group { local } else { 0 };
        return Ok((ram.available.saturating_sub(beside) / 5 * 4).max(SLAB_BYTES));
    };
    if far < SLAB_BYTES {
        return Err(Failure::usage(units::too_little("--far", far, SLAB_BYTES, "the least that is lent")));
    }
    if far > ram.total {
        let far = units::bytes(far);
        return Err(Failure::usage(format!("--far is {far}, more than {ram}: give less")));
    }
    Ok(far)
}

/// Runs the program; returns only if it could not be started. Otherwise this process ends as the
/// program ended.
pub fn run(options: &Options) -> Result<Infallible, Failure> {
    let plan = Plan::of(options)?;
    plan.stats.prepare().map_err(Failure::usage)?;
    let outcome = carry_out(options, &plan).map_err(|failure| meant_for_seal(options, failure))?;
    plan.stats.tell(&outcome);
    outcome.ending.imitate()
}

/// `--seal lines` reads as `--seal` and a program of that name.
fn meant_for_seal(options: &Options, mut failure: Failure) -> Failure {
    let word = options.command[0].to_str().unwrap_or_default();
    if failure.status == 127 && options.seal == Seal::Whole && Seal::named(word).is_some() {
        failure.line += &format!("; or --seal={word}");
    }
    failure
}

/// The nodes of a run, joined.
struct Joined {
    nodes: Vec<RunNode>,
    /// Asks the controller for nodes, if the run has one.
    asker: Option<Asker>,
    /// The node that was started for this run, if none was named.
    embedded: Option<Embedded>,
    far: Far,
}

/// Finds the run's nodes, or starts one, and joins them.
fn join(
    options: &Options,
    plan: &Plan,
    run: RunName,
    dir: &Path,
    lend: u64,
    signals: &Signals,
) -> Result<Joined, Failure> {
    let (mut nodes, trust, protect) = (plan.spec.nodes.clone(), plan.trust()?, plan.spec.protect);
    // Copies must lie in different failure domains.
    let domains = if protect.nodes() > 1 { 2 } else { 1 };
    let mut asker = plan.controller.as_deref().map(|at| Asker::new(at, run, domains, trust.token));
    let embedded = if nodes.is_empty() && asker.is_none() {
        forbidden::check(&[probe::NODE])?;
        let node = Embedded::start(dir, run, lend, plan.spec.transport, signals)?;
        nodes.push(node.node().clone().into());
        Some(node)
    } else {
        None
    };
    let program = Path::new(&options.command[0]);
    let reach = |nodes: &[RunNode]| Far::connect(nodes, run, plan.spec.transport, plan.spec.grace, program, trust);
    let far = match &mut asker {
        Some(asker) => {
            let once = |given: &[RunNode]| {
                let mut far = reach(given)?;
                match far.take_once() && far.nodes().len() < protect.nodes() {
                    true => Err(Unreached { failure: too_few(protect, far.nodes().len()), is_gone: true, node: None }),
                    false => Ok(far),
                }
            };
            let far = match asker.reached(signals, once) {
                Ok((_, far)) => far,
                Err(NoNodes::Failed(failure)) => return Err(failure),
                // The program has not begun, and would have ended so.
                Err(NoNodes::Ended(arrived)) => Ending::Killed(arrived.number).imitate(),
            };
            nodes = far.nodes().to_vec();
            asker.holds_only(&nodes);
            far
        }
        None => reach(&nodes).map_err(Failure::no_node)?,
    };
    if protect.nodes() > 1 && nodes.len() < protect.nodes() {
        return Err(too_few(protect, nodes.len()));
    }
    far.are_different(protect)?;
    Ok(Joined { nodes, asker, embedded, far })
}

/// The refusal of a run for whose protection a controller has given too few different nodes.
fn too_few(protect: Protect, given: usize) -> Failure {
    let (name, needs) = (protect.name(), protect.nodes());
    Failure::no_node(format!("--protect {name} needs {needs} nodes, and the controller has given {given}"))
}

/// Runs the program to its end. The caller reports on it.
pub fn carry_out(options: &Options, plan: &Plan) -> Result<Outcome, Failure> {
    forbidden::check(&[probe::COMMON, probe::RUN])?;
    // The agent starts first: with the signals that this process was started with, and before the
    // run adopts orphans, so that it is not one of them.
    let agent = match options.agent {
        true => {
            let dir = runtime_dir::own().map_err(Failure::usage)?;
            Some(agent::reached_or_started(&dir).map_err(|e| Failure::usage(format!("--agent: {e}")))?)
        }
        false => None,
    };
    // Before the first thread, so that every thread has the signals blocked.
    let signals = Signals::take().map_err(|e| Failure::usage(format!("cannot take over signals: {e}")))?;

    let name = &options.command[0];
    let file = program::find(name)?;
    let lend = lent(options.far, plan.ram, plan.spec.local)?;
    let library = library::place().map_err(Failure::usage)?;
    let dir = runtime_dir::own().map_err(Failure::usage)?;
    if !leftovers::sweep(&dir) {
        library.sweep_others(&dir, keeper::is_mapped);
    }

    let run = RunName::new().map_err(|e| Failure::usage(format!("no randomness for a run's name: {e}")))?;
    let Joined { nodes, asker, embedded, mut far } = join(options, plan, run, &dir, lend, &signals)?;
    let mut counters = begin_counters(&dir, run, options, plan, &nodes)?;
    let sites = options.sites.then(|| begin_sites(&dir, run, options)).transpose()?;

    let mut command = Command::new(&file);
    command.arg0(name).args(&options.command[1..]);
    environment::set(&mut command, &library, plan, run, &far, (&counters, sites.as_deref()))?;
    if let Some(socket) = agent {
        command.env("FARMEM_AGENT", socket);
    }
    signals.hand_back(&mut command, true);
    stdio::hand_back(&mut command);
    if options.verbose {
        let (local, from) = (units::bytes(plan.spec.local), &plan.local_from);
        eprintln!("farmem: run {run}: {} on {}, {local} local ({from})", file.display(), far.reached());
    }
    process::adopt_orphans();
    let group = group::Watch::begin();
    let begun = Instant::now();
    let child = command.spawn().map_err(|e| Failure {
        status: if e.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 },
        line: format!("{}: {e}", file.display()),
    })?;
    let source = match (&options.node_file, asker) {
        (Some(file), _) => Some(roster::Source::file(file)),
        (None, Some(asker)) => Some(roster::Source::Rack(asker.follow(&counters))),
        (None, None) => None,
    };
    let mut roster = source.map(|source| Roster::begin(source, &counters, &far));
    let mut stranded = Stranded::new(options.fault, &counters);
    let look = || {
        roster.iter_mut().for_each(|roster| roster.look(&mut far));
        stranded.look();
    };
    let (ending, mut peaks) = watch::until_end(&signals, child.id(), embedded.as_ref(), &counters, look);
    let elapsed = begun.elapsed();
    stranded.last_look();
    if let Some(line) = group.told(ending, embedded.is_some()) {
        eprintln!("farmem: {line}");
    }
    let sample = Sample::read(&counters).map_err(|e| Failure::usage(format!("the run's counters are lost: {e}")))?;
    peaks.note(&sample);
    let others = keeper::left_behind(&counters, &sample, embedded.as_ref().map(Embedded::pid));
    if others.is_empty() {
        far.end_run();
        drop(embedded);
        drop(counters);
    } else {
        let token = plan.spec.token.as_deref().map(Path::new);
        keeper::start(run, &nodes, &counters, token, (&others, options.fault), embedded)?;
        counters.keep();
    }
    let sites = sites.map(|file| sites::read(&file).map_err(|e| e.to_string()));
    let (local_from, others) = (plan.local_from.clone(), others.len());
    Ok(Outcome { ending, elapsed, sample, peaks, local_from, others, sites })
}

/// Makes the file in which the run's programs count where they wait.
fn begin_sites(dir: &Path, run: RunName, options: &Options) -> Result<Scratch, Failure> {
    if options.fault == Faults::Thread {
        return Err(Failure::usage(
            "--sites needs --fault inline: a handler thread does not see which instruction faults",
        ));
    }
    let file = Scratch::new(dir.join(format!("run-{run}.sites")));
    sites::create(&file).map_err(|e| Failure::file(&file, &e))?;
    Ok(file)
}

/// Makes the run's counters file, by which `farmem top` sees it too.
fn begin_counters(
    dir: &Path,
    run: RunName,
    options: &Options,
    plan: &Plan,
    nodes: &[RunNode],
) -> Result<Scratch, Failure> {
    let counters = Scratch::new(dir.join(format!("run-{run}.counters")));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let beginning = Beginning {
        supervisor: std::process::id(),
        started_ns: now.as_nanos() as u64,
        local_limit: plan.spec.local,
        command: &environment::command_line(&options.command),
        nodes: &far::list(nodes),
    };
    counters::create(&counters, &beginning).map_err(|e| Failure::file(&counters, &e))?;
    Ok(counters)
}
