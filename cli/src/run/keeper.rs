//! The processes of a run that outlive its first one: daemons, background jobs.
//!
//! They still need their far memory, so the run is not over. The supervisor must
//! end now, for somebody waits for its status; a *keeper*, this binary again,
//! detached, takes its place: it holds the embedded node's lifeline, waits until
//! no process of the run is left, and ends the run.
//!
//! A process belongs to a run if it has the run's counters file mapped: that is
//! certain, while environments get overwritten (`setproctitle`) and numbers reused.
//! Between fork or exec and the runtime's start it has not yet; but when its
//! parent has ended by then, it is a child of the supervisor, which has adopted
//! it, and who names it to the keeper.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use farmem_fabric::{NodeAddr, RunNode, Transport, Trust};
use farmem_run::counters::PROCESSES;
use farmem_run::{Choice, Faults};
use farmem_sys::process;

use super::embedded::Embedded;
use super::environment::names;
use super::far::{self, Far, RunName};
use super::stranded::Stranded;
use crate::counters::{self, Sample};
use crate::failure::Failure;

/// The variable by which a keeper is told the name of its run. Other users see its arguments, and
/// not its variables.
const RUN: &str = "FARMEM_KEEP";
/// How often the keeper looks whether its run still lives.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Keep a run until its last process has ended (started by `farmem run`)
#[derive(clap::Args, Debug)]
pub struct Options {
    #[arg(long)]
    pub token: Option<PathBuf>,
    #[arg(long, value_parser = far::node)]
    node: Vec<NodeAddr>,
    #[arg(long)]
    counters: PathBuf,
    #[arg(long)]
    process: Vec<u32>,
    /// How the run's programs fault
    #[arg(long, value_parser = names::<Faults>(), default_value = "inline")]
    fault: Faults,
}

/// The processes of a run whose program has ended: known by its counters, or orphans of the
/// program's.
pub fn left_behind(counters: &Path, sample: &Sample, node: Option<u32>) -> Vec<u32> {
    let mut pids = living(counters, sample);
    let orphans = process::children().into_iter().filter(|&child| Some(child) != node && !pids.contains(&child));
    // One that has ended, and that nobody has asked for yet, goes on no more.
    let orphans: Vec<u32> = orphans.filter(|&child| process::began(child).is_some()).collect();
    pids.extend(orphans);
    pids
}

/// The living processes of a run that its counters know.
pub fn living(counters: &Path, sample: &Sample) -> Vec<u32> {
    let mut pids: Vec<u32> = sample.processes.iter().map(|process| process.pid).collect();
    if pids.len() == PROCESSES {
        // More processes than slots: the file no longer names them all.
        pids = process::all().collect();
    }
    pids.retain(|&pid| process::exists(pid) && has_mapped(pid, counters));
    pids
}

/// Whether any process has the file mapped, of those that may be looked at.
pub fn is_mapped(file: &Path) -> bool {
    process::all().any(|pid| has_mapped(pid, file))
}

/// Whether a process has the file mapped.
pub fn has_mapped(pid: u32, file: &Path) -> bool {
    let name = file.as_os_str().as_bytes();
    fs::read(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.split(|&b| b == b'\n').any(|line| line.ends_with(name)))
}

/// Starts the keeper of a run.
pub fn start(
    run: RunName,
    nodes: &[RunNode],
    counters: &Path,
    token: Option<&Path>,
    (processes, fault): (&[u32], Faults),
    embedded: Option<Embedded>,
) -> Result<(), Failure> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("farmem").arg("keep").env(RUN, run.secret()).arg("--counters").arg(counters);
    command.args(["--fault", fault.name()]);
    for node in nodes {
        command.args(["--node", &node.at.to_string()]);
    }
    if let Some(token) = token {
        command.arg("--token").arg(token);
    }
    for process in processes {
        command.args(["--process", &process.to_string()]);
    }
    command
        .stdin(match embedded.and_then(Embedded::into_lifeline) {
            Some(lifeline) => Stdio::from(lifeline),
            None => Stdio::null(),
        })
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .process_group(0);
    match command.spawn() {
        Ok(keeper) => counters::hand_over(counters, keeper.id()).map_err(Failure::no_node),
        Err(e) => Err(Failure::no_node(format!("cannot keep the run's background processes on far memory: {e}"))),
    }
}

/// Waits until the run is over, and ends it.
pub fn keep(options: &Options) -> Result<(), Failure> {
    let run = std::env::var(RUN).ok().and_then(|name| name.parse::<RunName>().ok());
    let run = run.ok_or_else(|| Failure::usage("keep: farmem run starts this by itself"))?;
    // Encrypted, even if the run is not: it sends one message, once.
    let token = options.token.as_deref().and_then(|path| crate::borrow::key(path).ok());
    let nodes: Vec<RunNode> = options.node.iter().cloned().map(RunNode::from).collect();
    let trust = Trust { token, plain: false };
    let far = Far::connect(&nodes, run, Transport::Auto, Duration::ZERO, Path::new("farmem"), trust);
    let mut stranded = Stranded::new(options.fault, &options.counters);
    while let Ok(sample) = Sample::read(&options.counters) {
        // A number of the list that is reused keeps the run longer than need be, at worst.
        if !options.process.iter().any(|&pid| process::exists(pid)) && living(&options.counters, &sample).is_empty() {
            break;
        }
        // Nothing is printed: the run's standard error may be another program's file by now.
        stranded.look_at(process::all);
        std::thread::sleep(LOOK_EVERY);
    }
    if let Ok(far) = far {
        far.end_run();
    }
    let _ = fs::remove_file(&options.counters);
    let _ = fs::remove_file(options.counters.with_extension("sock"));
    Ok(())
}
