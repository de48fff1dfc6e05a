//! `farmem status`: the memory that a node lends, its holders, and the pieces.

use farmem_fabric::{NodeAddr, Trust};
use farmem_protocol::extent::word::Owner;
use farmem_protocol::wire::{Figure, MAX_VOLUMES, Names, VolumeInfo, Who};
use farmem_sys::process;
use serde::Serialize;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use super::snapshot::{Reader, lasting};
use crate::agent::report::Agent;
use crate::counters::Sample;
use crate::failure::Failure;
use crate::node::Status as NodeStatus;
use crate::top::short_program;
use crate::{leftovers, runtime_dir, units};

/// Show what nodes lend, to whom, and how fragmented the rest is
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The node: HOST:PORT or unix:PATH; without it, every node of this user on this machine
    #[arg(value_name = "NODE")]
    pub node: Option<NodeAddr>,

    #[command(flatten)]
    pub token: crate::borrow::Flag,

    /// The controller of a rack: show its nodes instead
    #[arg(long, value_name = "HOST:PORT", value_parser = crate::rack::address, conflicts_with = "node")]
    pub controller: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  farmem status bighost:7411
  farmem status --json | jq '.[].free'

A region's slabs stand under its name; a run's under the run, by the pid that farmem top shows if it is of this machine; what a \
process claims itself, in pieces from 4 KiB on, under its pid, or as agent if it is this user's. \"Used\" is what of it was touched and not freed by programs since. \
\"Retired\" has changed its owner so often that its keys are used up: it is lent no more. \"Shared blocks\" are blocks of 2 MiB that several \
processes have pieces of. \"Windows\" are keys by which programs let others reach parts of their memory; bound ones are in use. \
\"By others\" is what other tenants hold, whom a node does not name. \"Cleaning\" was given back and is drained and scrubbed before it is free.";

/// The known facts of a node. Bytes, unless it says otherwise.
#[derive(Debug, Serialize)]
struct View {
    node: String,
    lend: u64,
    free: u64,
    held: u64,
    /// Really taken from the system: pages touched and not given back.
    used: u64,
    /// Of what is held: on the node's disk, because its owners do not answer (`--spill`).
    on_disk: u64,
    cleaning: u64,
    retired: u64,
    /// The longest run of free memory.
    longest_free: u64,
    /// Runs of free memory, by their length rounded down to a power of two.
    free_runs: Vec<Runs>,
    /// Shared blocks, a count.
    shared_blocks: u64,
    /// Of what is held: by holders that the node does not name, because they are of other tenants, or
    /// are just leaving.
    unnamed: u64,
    holders: Vec<Holder>,
    volumes: Vec<Volume>,
    /// Counts.
    windows: u64,
    windows_bound: u64,
    /// CPU time since its start, in nanoseconds.
    drain_cpu_ns: u64,
    scrub_cpu_ns: u64,
    scrubbed: u64,
    /// How its process is confined, if it is on this machine and says so.
    confined: Option<String>,
}

#[derive(Debug, Serialize)]
struct Runs {
    at_least: u64,
    count: u64,
}

/// A volume that a host's kernel swaps to.
#[derive(Debug, Serialize)]
struct Volume {
    host: String,
    size: u64,
    /// Pages that are stored.
    live: u64,
    /// Pages that take no memory, because they repeat one word.
    repeated: u64,
    held: u64,
    /// Each freed slot comes back; else whole clusters of 512.
    single_slots: bool,
}

#[derive(Debug, Serialize)]
struct Holder {
    owner: u16,
    /// `None`: a run or a region, which hold slabs.
    pid: Option<u32>,
    /// It is a region of this name.
    region: Option<String>,
    /// It is this user's agent, which holds it for others.
    agent: bool,
    /// The same for all of a run; not the run's name.
    run: String,
    /// Its identity.
    #[serde(flatten)]
    about: Option<About>,
    held: u64,
    slabs: u64,
}

/// The identity of a holder: of a run of this machine, by its counters; of any other, as it told
/// the node.
#[derive(Clone, Debug, Serialize)]
struct About {
    host: String,
    /// By name, or by number if it has none.
    user: String,
    /// The pid by which `farmem top` shows the run, on its machine.
    supervisor: u32,
    program: String,
}

impl About {
    /// As it told the node; `None` if it told nothing.
    fn told(who: &Who) -> Option<About> {
        let Names { host, user, program } = who.names;
        let about = About {
            host: host.to_string(),
            user: user.to_string(),
            supervisor: who.leader,
            program: program.to_string(),
        };
        (!host.is_empty() || !user.is_empty() || !program.is_empty()).then_some(about)
    }
}

/// The runs of this machine whose counters this user may see, by their public ids. A node knows
/// runs by these alone.
fn runs_here() -> BTreeMap<u64, About> {
    let host = process::host_name();
    let mut runs = BTreeMap::new();
    for entry in runtime_dir::visible().iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let id = name.to_str().and_then(|name| name.strip_prefix("run-")?.strip_suffix(".counters"));
        let Some(Ok(run)) = id.map(|id| u64::from_str_radix(id, 16)) else { continue };
        if let (Ok(sample), Ok(about)) = (Sample::read(&path), entry.metadata()) {
            let user = process::user_name(about.uid());
            let (host, supervisor, program) = (host.clone(), sample.supervisor, sample.command);
            runs.insert(run, About { host, user, supervisor, program });
        }
    }
    runs
}

/// Shows it.
pub fn run(options: &Options) -> Result<(), Failure> {
    if let Some(controller) = &options.controller {
        return crate::rack::table::show(controller, options.token.trust()?.token, options.json);
    }
    let (views, failed) = match &options.node {
        Some(node) => (vec![view(node, options.token.trust()?)?], None),
        None => all(here(), options.token.trust()?),
    };
    let text = if options.json {
        serde_json::to_string_pretty(&views).map(|json| json + "\n").unwrap_or_default()
    } else if views.is_empty() && failed.is_none() {
        "no node of this user runs on this machine: name one, farmem status HOST:PORT\n".to_owned()
    } else {
        views.iter().map(text).collect::<Vec<_>>().join("\n")
    };
    print!("{text}");
    failed.map_or(Ok(()), Err)
}

/// The facts of each node that answers, and the last failure: one stopped node does not hide the
/// others.
fn all(nodes: Vec<(u32, NodeAddr)>, trust: Trust) -> (Vec<View>, Option<Failure>) {
    let (mut views, mut failed) = (Vec::new(), None);
    for (pid, node) in nodes {
        match view(&node, trust) {
            Ok(view) => views.push(view),
            // It has ended since.
            Err(_) if !process::exists(pid) => {}
            Err(failure) => {
                if let Some(Failure { line, .. }) = failed.replace(failure) {
                    eprintln!("farmem: {line}");
                }
            }
        }
    }
    (views, failed)
}

/// The nodes that have a status file in the runtime directory. On a socket a node knows its own
/// user without a token.
fn here() -> Vec<(u32, NodeAddr)> {
    let at = |status: &NodeStatus| {
        let all: Vec<NodeAddr> = status.listen.iter().filter_map(|at| at.parse().ok()).collect();
        all.iter().find(|at| matches!(at, NodeAddr::Shm(_))).or(all.first()).cloned()
    };
    known_here().filter_map(|status| Some((status.pid, at(&status)?))).collect()
}

fn known_here() -> impl Iterator<Item = NodeStatus> {
    let dir = runtime_dir::own().ok();
    if let Some(dir) = &dir {
        leftovers::sweep(dir);
    }
    let files = dir.and_then(|dir| std::fs::read_dir(dir).ok());
    let paths = files.into_iter().flatten().flatten().map(|file| file.path());
    let nodes = paths.filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("node-")));
    nodes.filter_map(|path| NodeStatus::read_living(&path))
}

fn view(node: &NodeAddr, trust: Trust) -> Result<View, Failure> {
    let mut reader = Reader::connect(node, trust)?;
    let (look, _) = lasting(&mut reader)?;
    let recount = &look.recount;
    let bytes = |chunks: u64| chunks * 4096;
    let (mut holders, mut unnamed) = (Vec::new(), 0);
    let agent = runtime_dir::own().ok().and_then(|dir| Agent::living(&dir)).map(|agent| agent.pid);
    let runs = runs_here();
    let regions = reader.session.regions().list().map_err(Failure::no_node)?;
    for (&owner, &chunks) in &recount.held {
        let who = reader.session.records().who(owner.slot()).map_err(Failure::no_node)?;
        let slabs = bytes(look.slab_chunks(owner));
        let region = regions.iter().find(|region| region.owner == owner.slot()).map(|region| region.name.to_string());
        if who.is_none() && region.is_none() {
            unnamed += bytes(chunks);
            continue;
        }
        let run = who.filter(|_| region.is_none()).map_or_else(String::new, |who| format!("{:016x}", who.run));
        let pid = who.map(|who| who.pid).filter(|&pid| pid != 0);
        let agent = pid.is_some() && pid == agent;
        let about = who.and_then(|who| runs.get(&who.run).cloned().or_else(|| About::told(&who)));
        holders.push(Holder { owner: owner.slot(), pid, region, agent, run, about, held: bytes(chunks), slabs });
    }
    let held = |owner| Owner::said(owner).and_then(|owner| recount.held.get(&owner));
    let volumes = volumes(&reader, |owner| bytes(held(owner).copied().unwrap_or(0)))?;
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.held));
    let figure = |figure| reader.session.records().figure(figure).map_err(Failure::no_node);
    Ok(View {
        node: node.to_string(),
        lend: look.geometry.lent_bytes(),
        free: bytes(recount.free.iter().sum()),
        held: bytes(recount.held.values().sum()),
        used: figure(Figure::InUse)?,
        on_disk: figure(Figure::Aside)?,
        cleaning: bytes(recount.quarantined + recount.moving),
        retired: bytes(recount.bad),
        longest_free: look.free.longest,
        free_runs: look.free.counts.iter().map(|(&at_least, &count)| Runs { at_least, count }).collect(),
        shared_blocks: recount.shared_blocks,
        unnamed,
        holders,
        volumes,
        windows: figure(Figure::Windows)?,
        windows_bound: figure(Figure::WindowsBound)?,
        drain_cpu_ns: figure(Figure::DrainNs)?,
        scrub_cpu_ns: figure(Figure::ScrubNs)?,
        scrubbed: figure(Figure::ScrubbedBytes)?,
        confined: known_here()
            .find(|status| status.listen.contains(&node.to_string()))
            .and_then(|status| status.confined),
    })
}

/// The swap volumes of a node. `held`: by owner id.
fn volumes(reader: &Reader, held: impl Fn(u16) -> u64) -> Result<Vec<Volume>, Failure> {
    let mut volumes = Vec::new();
    // A node has no more. One that says so lies.
    while volumes.len() < MAX_VOLUMES
        && let Some(info) = reader.session.records().volume(volumes.len() as u64).map_err(Failure::no_node)?
    {
        let (host, held) = (info.host.to_string(), held(info.owner));
        let VolumeInfo { size, live, filled: repeated, told: single_slots, .. } = info;
        volumes.push(Volume { host, size, live, repeated, held, single_slots });
    }
    Ok(volumes)
}

fn text(view: &View) -> String {
    let size = |n: u64| units::bytes(n);
    let mut out = format!("{}\n", view.node);
    let row = |name: &str, value: String| [name.to_owned(), value];
    let mut rows = vec![
        row("lend", size(view.lend)),
        row("held", format!("{} ({})", size(view.held), units::share(view.held, view.lend))),
        row("used", size(view.used)),
        row("free", size(view.free)),
        row("cleaning", size(view.cleaning)),
        row("retired", size(view.retired)),
        row("longest free", size(view.longest_free)),
        row("shared blocks", units::count(view.shared_blocks)),
        row("windows", format!("{} ({} bound)", units::count(view.windows), units::count(view.windows_bound))),
        row("scrubbed", format!("{} in {} of CPU", size(view.scrubbed), units::nanos(view.scrub_cpu_ns))),
        row("drained", format!("in {} of CPU", units::nanos(view.drain_cpu_ns))),
    ];
    if let Some(confined) = &view.confined {
        rows.push(row("confined", confined.clone()));
    }
    if view.on_disk > 0 {
        rows.insert(2, row("on disk", size(view.on_disk)));
    }
    if view.unnamed > 0 {
        rows.insert(2, row("by others", size(view.unnamed)));
    }
    out += &units::aligned(&rows);
    if !view.free_runs.is_empty() {
        let mut rows = vec![["free runs of at least".to_owned(), "count".to_owned()]];
        rows.extend(view.free_runs.iter().map(|runs| [size(runs.at_least), units::count(runs.count)]));
        out += &format!("\n{}", units::aligned(&rows));
    }
    if !view.volumes.is_empty() {
        let mut rows =
            vec![["swap volume of", "size", "live", "held", "of it live", "repeated", "freed by"].map(str::to_owned)];
        for volume in &view.volumes {
            let used = units::share(volume.live, volume.held);
            let Volume { host, size: whole, live, repeated, held, single_slots } = volume;
            let grain = if *single_slots { "slots" } else { "clusters" }.to_owned();
            rows.push([host.clone(), size(*whole), size(*live), size(*held), used, size(*repeated), grain]);
        }
        out += &format!("\n{}", units::aligned(&rows));
    }
    if !view.holders.is_empty() {
        let mut rows = vec![["holder", "run", "host", "user", "program", "held", "of it slabs"].map(str::to_owned)];
        for holder in &view.holders {
            let kind = if holder.agent { "agent" } else { "pid" };
            let supervisor = holder.about.as_ref().map(|about| about.supervisor);
            let name = match (holder.pid, supervisor) {
                _ if holder.region.is_some() => format!("region {}", holder.region.as_deref().unwrap_or_default()),
                (Some(pid), _) => format!("{kind} {pid}"),
                (None, Some(pid)) => format!("run {pid}"),
                (None, None) => "run".to_owned(),
            };
            let run = holder.run.get(..8).unwrap_or("-").to_owned();
            let told = |what: fn(&About) -> String| {
                holder.about.as_ref().map(what).filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned())
            };
            let program = told(|about| short_program(&about.program, 30));
            let (host, user) = (told(|about| about.host.clone()), told(|about| about.user.clone()));
            rows.push([name, run, host, user, program, size(holder.held), size(holder.slabs)]);
        }
        out += &format!("\n{}", units::aligned(&rows));
    }
    out
}
