//! The plan of a run: its flags, completed by variables, files and defaults ([`crate::settings`]),
//! and checked.

use std::ffi::CString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use farmem_fabric::Trust;
use farmem_run::{Choice, Dirty, NodeAddr, Protect, RunNode, RunSpec, Seal, Transport};
use farmem_sys::disk::PageFile;

use super::summary::Stats;
use super::{Options, far, roster};

use crate::failure::Failure;
use crate::settings::{Origin, Settings};
use crate::size::{self, Ram, Size};
use crate::units;

/// The least local memory a run may have: below it, fetching would evict what the same instruction
/// needs.
const LEAST_LOCAL: u64 = 1 << 20;

/// How long a cut connection may take to come back.
const GRACE: Duration = Duration::from_secs(5);

/// Nodes as one flag, variable or file names them.
#[derive(Clone, Debug, PartialEq)]
pub struct Nodes(pub Vec<RunNode>);

impl FromStr for Nodes {
    type Err = String;

    /// Addresses, comma separated, or `none`: a node is started for the run.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "none" => Ok(Nodes(Vec::new())),
            list => list.split(',').map(|each| far::run_node(each.trim())).collect::<Result<_, _>>().map(Nodes),
        }
    }
}

/// How far memory is protected, and where the file is, if one is named.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Protection {
    how: Protect,
    dir: Option<PathBuf>,
}

impl FromStr for Protection {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some(("disk", dir)) if !dir.is_empty() => Ok(Protection { how: Protect::Disk, dir: Some(dir.into()) }),
            Some(_) => Err("not none, mirror, disk, disk=DIR or ec:K+M"),
            None => match Protect::named(text) {
                Some(how) => Ok(Protection { how, dir: None }),
                None => Err("not none, mirror, disk, disk=DIR or ec:K+M"),
            },
        }
    }
}

/// Where copies of pages are kept without a word: a directory that is on a disk.
const DISK_DIR: &str = "/var/tmp";

/// The directory for a file of pages, in which one can be made.
fn disk_of(dir: Option<PathBuf>) -> Result<String, Failure> {
    let dir = dir.unwrap_or_else(|| DISK_DIR.into());
    let dir = std::path::absolute(&dir).map_err(Failure::usage)?.display().to_string();
    let path =
        CString::new(dir.as_str()).map_err(|_| Failure::usage(format!("--protect disk: {dir:?} has a zero byte")))?;
    PageFile::new_in(&path).map_err(|e| {
        Failure::usage(format!("--protect disk: no file can be made in {dir}: {e}; name another directory"))
    })?;
    Ok(dir)
}

/// A run's settings, complete.
pub struct Plan {
    /// The settings for its processes. Its name, its counters and the nodes found for it are not
    /// there yet.
    pub spec: RunSpec,
    /// The origin of the limit on local memory.
    pub local_from: Origin,
    /// The controller that says which nodes it has.
    pub controller: Option<String>,
    /// The report at the end.
    pub stats: Stats,
    /// The memory that it and a node started for it may have.
    pub ram: Ram,
}

impl Plan {
    /// The token by which the run and its nodes know each other, if they have one.
    pub fn trust(&self) -> Result<Trust, Failure> {
        let token = self.spec.token.as_ref().map(|file| crate::borrow::key(file.as_ref())).transpose()?;
        Ok(crate::borrow::trust(token, self.spec.plain))
    }

    /// The plan of a run by its flags. Missing ones are taken from variables, files and defaults.
    pub fn of(options: &Options) -> Result<Plan, Failure> {
        let settings = if options.no_settings { Settings::none() } else { Settings::load()? };
        let ram = size::ram().map_err(Failure::usage)?;
        let (local, local_from) = local(options.local, &settings, ram)?;
        let flag = match &options.node_file {
            Some(file) => Some(roster::read(file).map_err(Failure::usage)?),
            None if options.node.is_empty() => None,
            None => Some(options.node.iter().flat_map(|nodes| nodes.0.clone()).collect()),
        };
        let names_none = flag.is_none() && options.far.is_none();
        let controller = settings.choose("controller", options.controller.clone(), crate::rack::address)?;
        let named = settings.choose("node", flag.map(Nodes), str::parse::<Nodes>)?;
        // Of two from one place the controller's is taken.
        let is_nearer = |origin: &Origin| named.as_ref().is_some_and(|(_, named)| settings.is_nearer(named, origin));
        let controller = controller.filter(|(_, origin)| names_none && !is_nearer(origin)).map(|(at, _)| at);
        // --far asks for a node started for this run. It outweighs nodes that a variable or a file
        // names.
        let nodes = match named {
            Some((Nodes(nodes), Origin::Flag(_))) if options.far.is_some() && !nodes.is_empty() => {
                return Err(Failure::usage(
                    "--far is for a node started for this run; with --node it is the node's --lend",
                ));
            }
            Some((Nodes(nodes), _)) if options.far.is_none() && controller.is_none() => nodes,
            _ => Vec::new(),
        };
        far::each_once(&nodes).map_err(|e| Failure::usage(format!("--node: {e}")))?;
        let protect = settings.choose("protect", options.protect.clone(), str::parse::<Protection>)?;
        let Protection { how: protect, dir } = protect.map_or_else(Protection::default, |(protect, _)| protect);
        let disk = if protect == Protect::Disk { Some(disk_of(dir)?) } else { None };
        if nodes.len() < protect.nodes() && protect.nodes() > 1 && controller.is_none() {
            return Err(Failure::usage(match protect {
                Protect::Ec { .. } => format!(
                    "--protect {} needs {} different nodes: name them with --node ({} named)",
                    protect.name(),
                    protect.nodes(),
                    nodes.len()
                ),
                _ => format!(
                    "--protect mirror keeps two copies at different nodes: name at least two with --node ({} named)",
                    nodes.len()
                ),
            }));
        }
        let transport = |text: &str| Transport::named(text).ok_or("not auto, shm, tcp or verbs");
        let transport = settings.choose("transport", options.transport, transport)?;
        let transport = transport.map_or(Transport::Auto, |(transport, _)| transport);
        let transport = if options.seal != Seal::Off { sealed(options, transport, &nodes)? } else { transport };
        if options.shape.is_some() && transport != Transport::Tcp {
            return Err(Failure::usage("--shape holds tcp to a rate: add --transport tcp"));
        }
        let grace = settings.choose("grace", options.grace, crate::time::parse)?.map_or(GRACE, |(grace, _)| grace);
        // A node that is started for the run asks for no token. A file that is no token is told all the same.
        let asked = !nodes.is_empty() || controller.is_some();
        if let Some(file) = options.token.token.as_deref().filter(|_| !asked) {
            crate::borrow::key(file)?;
        }
        let token = options.token.file(&settings)?.filter(|_| asked);
        let stats = settings.choose("stats", options.stats.clone(), str::parse)?;
        let stats = stats.map_or(Stats::Text, |(stats, _)| stats);
        if options.sites && stats == Stats::None {
            return Err(Failure::usage("--sites is told with the summary, and --stats none leaves that out"));
        }
        // The program may change its directory before the library opens the file.
        let trace = options.trace.as_deref().map(std::path::absolute).transpose().map_err(Failure::usage)?;
        let spec = RunSpec {
            local,
            nodes,
            protect,
            disk,
            changes: options.node_file.is_some() || controller.is_some(),
            transport,
            grace,
            shape: options.shape,
            faults: options.fault,
            prefetch: options.prefetch,
            dirty: options.dirty,
            mask: options.mask,
            trace: trace.map(|trace| trace.display().to_string()),
            token: token.map(|token| token.display().to_string()),
            plain: options.token.plain,
            seal: options.seal,
            ..RunSpec::default()
        };
        Ok(Plan { spec, local_from, controller, stats, ram })
    }
}

/// The transport of a sealed run: not shared memory, where its nodes could read pages as the
/// program uses them. Refuses what `--seal` excludes, and tells the user what it changes.
fn sealed(options: &Options, transport: Transport, nodes: &[RunNode]) -> Result<Transport, Failure> {
    if !farmem_sys::gcm::can() {
        return Err(Failure::usage("--seal needs a CPU with AES and PCLMULQDQ instructions"));
    }
    if let Some(node) = nodes.iter().find(|node| matches!(node.at, NodeAddr::Shm(_))) {
        return Err(Failure::usage(format!(
            "--seal: a node at a Unix socket reads memory as it is used: name {} by HOST:PORT",
            node.at
        )));
    }
    match (options.seal, options.dirty) {
        (Seal::Whole, Dirty::Lines) => {
            eprintln!(
                "farmem: --seal: pages go whole (--seal=lines does not); --dirty lines only tells which have not changed"
            );
        }
        (Seal::Lines, Dirty::Exact | Dirty::None) => {
            let dirty = options.dirty.name();
            return Err(Failure::usage(format!(
                "--seal=lines tells changed lines by hashes: not with --dirty {dirty}"
            )));
        }
        _ => {}
    }
    if options.agent {
        eprintln!("farmem: --seal: pieces that the program asks of the agent are not sealed");
    }
    match transport {
        Transport::Shm => Err(Failure::usage("--seal: with --transport shm nodes read memory as it is used: use tcp")),
        Transport::Auto => Ok(Transport::Tcp),
        chosen => Ok(chosen),
    }
}

/// The limit on local memory, in whole pages, and who set it.
fn local(flag: Option<Size>, settings: &Settings, ram: Ram) -> Result<(u64, Origin), Failure> {
    let Some((size, from)) = settings.choose("local", flag, str::parse::<Size>)? else {
        return Ok(((ram.available / 2).max(LEAST_LOCAL) & !4095, Origin::Default));
    };
    let asked = size.bytes(ram.total);
    let local = asked & !4095;
    if let (Size::OfRam(_), true) = (size, local < LEAST_LOCAL) {
        let asked = units::bytes(asked);
        return Err(Failure::usage(format!("{from} is {asked}, below 1 MiB, the least that works")));
    }
    if local < LEAST_LOCAL {
        return Err(Failure::usage(units::too_little(&from, asked, LEAST_LOCAL, "the least that works")));
    }
    if local > ram.total {
        let local = units::bytes(local);
        return Err(Failure::usage(format!("{from} is {local}, more than {ram}: give less")));
    }
    Ok((local, from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_nowhere_at_a_node_or_in_a_directory() {
        let how = |text: &str| text.parse::<Protection>().ok().map(|Protection { how, dir }| (how, dir));
        assert_eq!(how("mirror"), Some((Protect::Mirror, None)));
        assert_eq!(how("disk"), Some((Protect::Disk, None)));
        assert_eq!(how("disk=/a b"), Some((Protect::Disk, Some("/a b".into()))));
        for bad in ["", "disk=", "mirror=/tmp", "tape"] {
            assert_eq!(how(bad), None, "{bad}");
        }
        assert!(disk_of(Some("/no/such/directory".into())).is_err());
    }

    #[test]
    fn nodes_are_listed_by_commas() {
        let nodes = |text: &str| text.parse::<Nodes>().map(|nodes| nodes.0.len());
        assert_eq!(nodes("a:1"), Ok(1));
        assert_eq!(nodes("a:1@rack7, b:2,unix:/s"), Ok(3));
        assert_eq!(nodes("none"), Ok(0));
        for bad in ["", "a:1,", "a:1,none", "a:1;b:2", "a:1@", "a:1@b c"] {
            assert!(nodes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn without_a_word_half_of_what_is_available_is_local() {
        let (local, from) =
            local(None, &Settings::none(), Ram { total: 8 << 30, available: 3 << 30, is_group: false }).unwrap();
        assert_eq!((local, from), (3 << 29, Origin::Default));
    }
}
