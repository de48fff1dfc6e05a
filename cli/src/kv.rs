//! `farmem kv`: a front end of a key-value store, for redis clients; its check, its snapshots.
//!
//! The store itself is [`farmem_kv`]; here are its flags and what it says.

pub mod status;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use farmem::{Error, RegionError};
use farmem_fabric::NodeAddr;
use farmem_kv::serve::{self, Clients, Config, Failed, Part, Tls};
use farmem_kv::shard::member::NotOpened;
use farmem_protocol::region::{BadName, RegionName};
use farmem_run::{Protect, RunNode, Transport, exit};

use crate::failure::Failure;
use crate::run::{each_once, names};
use crate::size::{self, Size};
use crate::units;

/// Serve a key-value store in the nodes' memory to redis clients
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Options {
    #[command(subcommand)]
    sub: Option<Sub>,

    #[command(flatten)]
    store: Store,

    /// The store's name: 1 to 16 of A-Z a-z 0-9 . _ -. It is made if it is not there
    #[arg(long, value_name = "NAME", value_parser = store_name, required = true)]
    name: Option<String>,

    /// Where to listen: HOST:PORT; may be repeated
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6379")]
    listen: Vec<String>,

    /// Local memory: a near cache of values, and of where keys are
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    local: Size,

    /// What all front ends of the store may take from the nodes. Beyond it, keys are evicted.
    /// Without it, a store takes what the nodes lend, and then refuses to write
    #[arg(long, value_name = "SIZE")]
    maxmemory: Option<Size>,

    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    maxclients: u32,

    /// A password that clients must give (AUTH), or @FILE whose first line is one
    #[arg(long, value_name = "PASSWORD", conflicts_with = "open")]
    requirepass: Option<String>,

    /// Serve clients of other machines without a password: whoever reaches the port may read and
    /// write. Without it and without a password, only clients of this machine are served
    #[arg(long)]
    open: bool,

    /// Clients speak TLS: the front end's certificate with its chain, in PEM
    #[arg(long, value_name = "FILE", alias = "tls-cert-file", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The private key to the certificate, in PEM. Nobody else may read this file
    #[arg(long, value_name = "FILE", alias = "tls-key-file", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Clients must show a certificate of an authority in this file, in PEM
    #[arg(long, value_name = "FILE", alias = "tls-ca-cert-file", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,

    /// Where to serve counters for Prometheus, over HTTP
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,

    /// With --protect mirror: a node that takes the place of one of two that has ended; may be
    /// repeated, or separated by commas
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    spare: Vec<NodeAddr>,

    /// How long a node may be out of reach
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = crate::time::parse)]
    grace: Duration,
}

/// Which store.
#[derive(clap::Args, Debug)]
struct Store {
    /// A node that holds a part of the store: HOST:PORT or unix:PATH; may be repeated, or separated
    /// by commas
    #[arg(long, value_name = "ADDR", required = true, value_delimiter = ',')]
    node: Vec<NodeAddr>,

    /// How bytes move
    #[arg(long, value_parser = names::<Transport>(), value_name = "HOW", default_value = "auto")]
    transport: Transport,

    /// Whether each key is kept at two nodes, so that the end of one loses nothing. Nodes form
    /// pairs in the order in which they are named first
    #[arg(long, value_parser = copies(), value_name = "HOW", default_value = "none")]
    protect: Protect,

    #[command(flatten)]
    token: crate::borrow::Flag,
}

/// The ways to protect a run that a store has.
fn copies() -> impl TypedValueParser<Value = Protect> {
    let none = PossibleValue::new("none").help("One copy of each key");
    let mirror = PossibleValue::new("mirror").help("Two copies, at different nodes");
    let which = |named: String| if named == "mirror" { Protect::Mirror } else { Protect::None };
    PossibleValuesParser::new([none, mirror]).map(which)
}

#[derive(clap::Subcommand, Debug)]
enum Sub {
    /// Recount a store: whether every object and every piece of memory is accounted for
    #[command(after_help = "\
Example:
  farmem kv check sessions --node bighost:7411")]
    Check {
        /// The store
        #[arg(value_name = "NAME", value_parser = store_name)]
        name: String,

        #[command(flatten)]
        store: Store,
    },

    /// Say that a node of a mirrored store has ended for good, so that the other may go on without
    /// it. Needed only if no front end is left that knew of both
    #[command(after_help = "\
Example:
  farmem kv alone orders --node a:7411,b:7411 --protect mirror")]
    Alone {
        /// The store
        #[arg(value_name = "NAME", value_parser = store_name)]
        name: String,

        #[command(flatten)]
        store: Store,
    },

    /// Write a whole store to a file
    #[command(after_help = "\
Example:
  farmem kv save sessions sessions.kv --node bighost:7411
      Clients may write meanwhile: each key is as it was at some moment.")]
    Save(Snapshot),

    /// Fill an empty store from a file that save has written
    #[command(after_help = "\
Example:
  farmem kv restore sessions sessions.kv --node bighost:7411")]
    Restore(Snapshot),
}

/// A store and a file.
/// A store is a region of its name.
fn store_name(text: &str) -> Result<String, BadName> {
    text.parse::<RegionName>().map(|_| text.to_owned())
}

#[derive(clap::Args, Debug)]
struct Snapshot {
    /// The store
    #[arg(value_name = "NAME", value_parser = store_name)]
    name: String,

    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    store: Store,
}

const EXAMPLES: &str = "\
Examples:
  farmem kv --name sessions --node bighost:7411 --listen 0.0.0.0:6379
      redis-cli, redis-benchmark and every redis client talk to it.

  farmem kv --name sessions --node bighost:7411 --listen 0.0.0.0:6380 \\
      --requirepass @kv.password
      A second front end, on this machine or another: the same data. Clients
      of other machines are served if they know the password.

  farmem kv --name sessions --node bighost:7411 --listen 0.0.0.0:6379 \\
      --requirepass @kv.password --tls-cert kv.crt --tls-key kv.key
      Clients speak TLS: redis-cli --tls --cacert ca.crt.

  farmem kv --name cache --node a:7411,b:7411 --maxmemory 4G
      Keys are spread over two nodes, and evicted when 4 GiB are used.

  farmem kv --name orders --node a:7411,b:7411 --protect mirror
      Each key is kept at both nodes. If one ends, the other goes on.
      With --spare c:7411, that node then takes its place.

  farmem kv check sessions --node bighost:7411
      Looks whether all of it adds up, while it is served.

  farmem kv save sessions sessions.kv --node bighost:7411
  farmem kv restore sessions sessions.kv --node bighost:7411
      Before and after a planned stop of the nodes.

The data stays at the nodes when the last front end ends, and until they end. `farmem region rm` removes it. \
Without --tls-cert, what clients send can be read on its way, the password too: keep the port in a trusted network.";

/// Serves, or checks.
pub fn run(options: &Options) -> Result<(), Failure> {
    match &options.sub {
        Some(Sub::Check { name, store }) => return check(name, store),
        Some(Sub::Alone { name, store }) => {
            let nodes = serve::go_alone(&config(name, store)?).map_err(refusal)?;
            match nodes.is_empty() {
                true => println!("store {name}: all of its nodes are there"),
                false => println!("store {name}: {} goes on with the only copy", nodes.join(", ")),
            }
            return Ok(());
        }
        Some(Sub::Save(of)) => {
            let keys = serve::save(&config(&of.name, &of.store)?, &of.file).map_err(refusal)?;
            let are = units::number(keys as usize, "key is", "keys are");
            println!("store {}: {are} in {}", of.name, of.file.display());
            return Ok(());
        }
        Some(Sub::Restore(of)) => {
            let keys = serve::restore(&config(&of.name, &of.store)?, &of.file).map_err(refusal)?;
            let were = units::number(keys as usize, "key was", "keys were");
            println!("store {}: {were} restored from {}", of.name, of.file.display());
            return Ok(());
        }
        None => {}
    }
    let ram = size::ram().map_err(Failure::usage)?;
    let mut listen = Vec::new();
    for at in &options.listen {
        let found: Vec<SocketAddr> = at
            .to_socket_addrs()
            .map_err(|e| Failure::usage(format!("--listen {at}: {e}: write HOST:PORT, as 127.0.0.1:6379")))?
            .collect();
        if found.first().is_some_and(|first| first.port() != 0 && listen.contains(first)) {
            return Err(Failure::usage(format!("--listen: {at} is named twice: name each address once")));
        }
        listen.extend(found.first());
    }
    let name = options.name.clone().unwrap_or_default();
    let store = config(&name, &options.store)?;
    let spares = spares(options)?;
    let local = options.local.bytes(ram.total);
    if local < LEAST_LOCAL {
        let is = units::bytes(local);
        return Err(Failure::usage(format!("--local is {is}, below 64 KiB, the least near cache: write 64M or more")));
    }
    if local > ram.total {
        return Err(Failure::usage(format!("--local is {}, more than {ram}: give less", units::bytes(local))));
    }
    let config = Config {
        listen,
        grace: options.grace,
        local,
        maxmemory: options.maxmemory.map(|size| size.bytes(ram.total)),
        clients: Clients {
            most: options.maxclients as usize,
            password: options.requirepass.as_deref().map(password).transpose()?,
            open: options.open,
            tls: tls(options)?,
            ..Clients::default()
        },
        metrics: options.metrics,
        spares,
        ..store
    };
    tell_of_strangers(options, &config.listen);
    let nodes = config.nodes.join(", ");
    crate::confined::begin();
    let ready = |at: &[SocketAddr]| {
        for at in at {
            eprintln!("farmem: store {name} on {nodes} is served at {at}");
        }
    };
    let tell = status::tell(&config.name, &config.listen, &config.nodes);
    serve::run(&config, ready, tell).map_err(refusal)
}

/// The least near cache.
const LEAST_LOCAL: u64 = 64 << 10;

/// The nodes that take the place of one that has ended. Refuses those that could not.
fn spares(options: &Options) -> Result<Vec<String>, Failure> {
    if !options.spare.is_empty() && options.store.protect != Protect::Mirror {
        return Err(Failure::usage("--spare takes the place of one of two copies: add --protect mirror"));
    }
    let nodes = |named: &[NodeAddr]| named.iter().cloned().map(RunNode::from).collect::<Vec<_>>();
    each_once(&nodes(&options.spare)).map_err(|e| Failure::usage(format!("--spare: {e}")))?;
    let all = [nodes(&options.store.node), nodes(&options.spare)].concat();
    each_once(&all).map_err(|e| {
        let (at, _) = e.split_once(" is named twice").unwrap_or((&e, ""));
        Failure::usage(format!("--spare {at}: the store has it by --node already: name another node"))
    })?;
    Ok(options.spare.iter().map(ToString::to_string).collect())
}

fn config(name: &str, store: &Store) -> Result<Config, Failure> {
    let nodes: Vec<RunNode> = store.node.iter().cloned().map(RunNode::from).collect();
    each_once(&nodes).map_err(|e| Failure::usage(format!("--node: {e}")))?;
    Ok(Config {
        name: name.to_owned(),
        nodes: store.node.iter().map(ToString::to_string).collect(),
        mirror: store.protect == Protect::Mirror,
        transport: store.transport,
        grace: Duration::from_secs(5),
        spares: Vec::new(),
        listen: Vec::new(),
        local: 0,
        maxmemory: None,
        clients: Clients::default(),
        metrics: None,
        trust: store.token.trust()?,
    })
}

/// Says that clients of other machines are refused, if they could come.
fn tell_of_strangers(options: &Options, listen: &[SocketAddr]) {
    let guarded = options.open || options.requirepass.is_some() || options.tls_ca.is_some();
    if !guarded && listen.iter().any(|at| !at.ip().to_canonical().is_loopback()) {
        eprintln!(
            "farmem: without a password only clients of this machine are served: name --requirepass @FILE, or --open \
             if whoever reaches the port may read and write"
        );
    }
}

/// The certificate by which clients know the front end, and who they may be.
fn tls(options: &Options) -> Result<Option<Tls>, Failure> {
    let (Some(certificate), Some(key)) = (&options.tls_cert, &options.tls_key) else { return Ok(None) };
    let wrong = |flag: &str, file: &Path, why: String| Failure::usage(format!("{flag} {}: {why}", file.display()));
    let read = |flag, file: &Path| std::fs::read(file).map_err(|e| wrong(flag, file, e.to_string()));
    let chain = read("--tls-cert", certificate)?;
    let secret = farmem_trust::file::secret(key).map_err(|e| Failure::usage(format!("--tls-key {e}")))?;
    let authorities = options.tls_ca.as_deref().map(|file| read("--tls-ca", file)).transpose()?;
    let tls = Tls::new(&chain, secret.as_bytes(), authorities.as_deref()).map_err(|(part, why)| match part {
        Part::Certificate => wrong("--tls-cert", certificate, why),
        Part::Key => wrong("--tls-key", key, why),
        Part::Authorities => wrong("--tls-ca", options.tls_ca.as_deref().unwrap_or(certificate), why),
    });
    tls.map(Some)
}

/// A password, or the first line of the file that `@` names. A file that others may read is refused.
fn password(given: &str) -> Result<Vec<u8>, Failure> {
    let wrong = |reason: String| Failure::usage(format!("--requirepass {given}: {reason}"));
    let Some(file) = given.strip_prefix('@') else {
        return if given.is_empty() {
            Err(wrong("it is empty: leave it out, or say --open".into()))
        } else {
            Ok(given.into())
        };
    };
    let text = farmem_trust::file::secret(Path::new(file)).map_err(|e| Failure::usage(format!("--requirepass {e}")))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.into()),
        _ => Err(wrong("the file's first line is empty".into())),
    }
}

fn refusal(failed: Failed) -> Failure {
    let status = match &failed {
        Failed::Listen { at, reason } => return Failure::listen(at, reason),
        failed if failed.is_loss() => exit::NODE_LOST,
        Failed::ShutOut => exit::NODE_LOST,
        Failed::Store { reason: NotOpened::Removed, .. } => exit::NODE_LOST,
        // The name of a store is as wrong as any other argument.
        Failed::Memory(Error::Region(RegionError::Unknown { .. })) => exit::USAGE,
        Failed::Memory(_) => exit::NODE_UNUSABLE,
        Failed::Store { .. }
        | Failed::Little { .. }
        | Failed::System { .. }
        | Failed::Snapshot { .. }
        | Failed::Refused(_)
        | Failed::WrongType => exit::USAGE,
    };
    Failure { status, line: failed.to_string() }
}

/// Problems named one by one, at most.
const SHOWN: usize = 20;

fn check(name: &str, store: &Store) -> Result<(), Failure> {
    let counts = serve::check(&config(name, store)?).map_err(refusal)?;
    let mut wrong = 0;
    for (node, count) in &counts {
        for problem in count.problems.iter().take(SHOWN) {
            println!("node {node}: {problem}");
        }
        wrong += count.problems.len();
        println!(
            "node {node}: {}, {} of objects, {} of index, {} in all",
            units::number(count.keys as usize, "key", "keys"),
            units::bytes(count.live),
            units::bytes(count.index),
            units::bytes(count.bytes),
        );
    }
    if wrong > 0 {
        return Err(Failure {
            status: 1,
            line: format!(
                "store {name}: {wrong} things do not add up; what front ends that are gone have left is taken over \
                 within seconds by one that serves the store"
            ),
        });
    }
    println!("store {name}: sound");
    Ok(())
}
