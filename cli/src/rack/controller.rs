//! `farmem controller`: knows the rack's nodes and gives runs some of them.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use farmem_control::api::Term;
use farmem_control::etcd::{Access, Etcd};
use farmem_control::guard::{Find, Guard};
use farmem_control::serve::{Served, serve};
use farmem_control::state::MOST_QUOTAS;
use farmem_control::store::{Kept, Store};
use farmem_memory::tokens::{Keys, StoreError};
use farmem_protocol::wire::text::printable;

use crate::failure::Failure;

/// Know the nodes of a rack, and give runs some of them
///
/// Nodes say that they are there (farmem node --controller). Runs ask for nodes and name none
/// (farmem run --controller). The controller is not on the way of any page: while it is away, runs
/// go on with the nodes that they have.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Where to serve nodes, runs, and the page: IP:PORT
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7400")]
    pub listen: String,

    /// A file that keeps which nodes there are and which are to be drained; without it, a restart
    /// knows the nodes again by their beats, and no drain. Or etcd://HOST:PORT[,HOST:PORT...]:
    /// several controllers share it, one leads, and another takes over when that one fails. With
    /// TLS: etcds://
    #[arg(long, value_name = "FILE|ETCD")]
    pub store: Option<PathBuf>,

    /// With etcds://, the authorities that sign etcd's certificates, in PEM, if not the system's
    #[arg(long, value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,

    /// With etcds://, a file with a certificate that this controller shows to etcd, and its private
    /// key, in PEM; only its owner may read it
    #[arg(long, value_name = "FILE")]
    pub etcd_cert: Option<PathBuf>,

    /// With etcds://, a file with NAME:PASSWORD of the user that etcd is to know this controller
    /// by; only its owner may read it
    #[arg(long, value_name = "FILE")]
    pub etcd_user: Option<PathBuf>,

    /// Where nodes, runs and the other controllers reach this one, if not where it listens
    #[arg(long, value_name = "HOST:PORT", value_parser = super::advertised)]
    pub advertise: Option<String>,

    /// A name by which browsers and others without a token reach this controller, beside those of
    /// --listen and --advertise and the machine's own. A request that names another one is refused:
    /// it may come from a web page of a stranger. May be given several times
    #[arg(long, value_name = "NAME", value_parser = called)]
    pub called: Vec<String>,

    /// The store of the tokens by which runs ask for nodes, as `farmem token` makes it. Nodes and
    /// orders need a token of the tenant rack
    #[arg(long, value_name = "FILE", conflicts_with = "open")]
    pub tokens: Option<PathBuf>,

    /// Listen off loopback although whoever reaches the port may give orders
    #[arg(long)]
    pub open: bool,
}

const EXAMPLES: &str = "\
Examples:
  farmem token create --tenant rack --store tokens.toml > rack.token
  farmem controller --store rack.redb --listen 10.0.0.5:7400 \\
      --tokens tokens.toml
      The rack's controller. Its page is http://10.0.0.5:7400/

  farmem controller --store etcd://e1:2379,e2:2379,e3:2379 \\
      --listen 10.0.0.5:7400 --tokens tokens.toml
      One of several controllers; the others run elsewhere, with the same
      --store. Nodes and runs: --controller 10.0.0.5:7400,10.0.0.6:7400

  farmem node --lend 32G --listen 0.0.0.0:7411 --tokens tokens.toml \\
      --controller 10.0.0.5:7400 --token rack.token --domain rack7/shelf2
      A node of the rack, on each machine with RAM to spare.

  farmem run --local 4G --controller 10.0.0.5:7400 --token me.token -- ./job
      A run that names no node.

  farmem status --controller 10.0.0.5:7400
  farmem drain bighost --controller 10.0.0.5:7400 --token rack.token

Without --tokens anybody may change the rack: use it in a trusted network only.
Prometheus reads /metrics.";

fn listen(text: &str, open: bool) -> Result<TcpListener, Failure> {
    let wrong = |e: &dyn std::fmt::Display| Failure::usage(format!("--listen {text}: {e}"));
    let all = text.to_socket_addrs().map_err(|e| match e.kind() {
        ErrorKind::InvalidInput => wrong(&"not an address: write HOST:PORT"),
        _ => wrong(&e),
    })?;
    let all: Vec<SocketAddr> = all.collect();
    if !open && all.iter().any(|at| !at.ip().is_loopback()) {
        return Err(wrong(
            &"other machines could give orders: name a store of tokens by --tokens FILE (farmem token create makes \
              one), or say --open if the network is trusted",
        ));
    }
    TcpListener::bind(&all[..]).map_err(|e| Failure::listen(text, &e))
}

/// A name by which a request may call this controller, with a port or without.
fn called(text: &str) -> Result<String, &'static str> {
    let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    match !text.is_empty() && text.chars().all(is_host) {
        true => Ok(text.to_owned()),
        false => Err("write the name of a machine, as rack.example"),
    }
}

/// Asks for the tokens of a store, if there is one.
fn guard(keys: Option<&Arc<Keys>>, options: &Options) -> Result<Guard, Failure> {
    let find = keys.cloned().map(|keys| -> Find { Box::new(move |id| keys.find(id, keeps)) });
    let machine = farmem_sys::process::host_name();
    let advertised = options.advertise.iter().map(String::as_str);
    let short = machine.split('.').next().unwrap_or_default();
    let names = options.called.iter().map(String::as_str).chain(advertised).chain([&*options.listen, &*machine, short]);
    Ok(Guard::new(find).map_err(Failure::usage)?.called(names))
}

fn keeps(e: &StoreError) {
    eprintln!("farmem: {e}; what was known of tokens and quotas is good still");
}

/// The complaint about a store of tokens that has more quotas of the rack than are shared out.
pub fn too_many() -> String {
    format!("more than {MOST_QUOTAS} tenants have a --rack-quota: give others a --quota at each node")
}

/// Follows what tenants may hold in the whole rack, for as long as the process lives.
fn follow_quotas(keys: Arc<Keys>, served: Arc<Served>) -> Result<(), Failure> {
    served.set_quotas(keys.rack_quotas(keeps));
    let mut told = false;
    let follow = move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let quotas = keys.rack_quotas(keeps);
            let beyond = quotas.keys().nth(MOST_QUOTAS).cloned();
            served.set_quotas(quotas);
            if let Some(tenant) = beyond.filter(|_| !std::mem::replace(&mut told, true)) {
                eprintln!("farmem: {}; {tenant} and those after it get no more memory", too_many());
            }
        }
    };
    std::thread::Builder::new().name("quotas".into()).spawn(follow).map(drop).map_err(Failure::usage)
}

/// Whether a store is an etcd cluster, and no file.
fn is_etcd(store: &str) -> bool {
    ["etcd:", "etcds:"].iter().any(|scheme| store.starts_with(scheme))
}

/// Serves until it is told to end.
pub fn run(options: &Options) -> Result<(), Failure> {
    let seed = super::random().map_err(Failure::usage)?;
    let listener = listen(&options.listen, options.open || options.tokens.is_some())?;
    // Files are opened after that, as they will be opened again.
    crate::confined::begin();
    let keys = options.tokens.as_deref().map(Keys::read).transpose();
    let keys = keys.map_err(|e| Failure::usage(format!("--tokens {e}{}", e.remedy())))?.map(Arc::new);
    let has_quotas = keys.as_ref().is_some_and(|keys| !keys.rack_quotas(keeps).is_empty());
    if has_quotas && options.store.is_none() {
        return Err(Failure::usage(
            "--tokens has quotas of the whole rack: name a --store, or a restart would give out a share twice",
        ));
    }
    if keys.as_ref().is_some_and(|keys| keys.rack_quotas(keeps).len() > MOST_QUOTAS) {
        return Err(Failure::usage(format!("--tokens: {}", too_many())));
    }
    let guard = guard(keys.as_ref(), options)?;
    let at = listener.local_addr().map_err(Failure::usage)?;
    let log: fn(&str) = |line| eprintln!("farmem: {}", printable(line));
    let wrong = |e: &dyn std::fmt::Display| {
        Failure::usage(format!("--store {}: {e}", options.store.clone().unwrap_or_default().display()))
    };
    let several = options.store.as_ref().and_then(|store| store.to_str()).filter(|store| is_etcd(store));
    let (ca, user, cert) = (options.etcd_ca.clone(), options.etcd_user.clone(), options.etcd_cert.clone());
    let access = Access { ca, user, cert };
    if several.is_none() && !access.is_plain() {
        return Err(Failure::usage("--etcd-ca, --etcd-cert and --etcd-user go with --store etcds://HOST:PORT"));
    }
    let controller = match (several, &options.store) {
        (Some(named), _) => {
            let etcd = Etcd::named(named, &access).map_err(|e| wrong(&e))?;
            let own = options.advertise.clone().unwrap_or_else(|| at.to_string());
            if options.advertise.is_none() && at.ip().is_unspecified() {
                return Err(Failure::usage(format!(
                    "--listen {at} is no address to be reached at: add --advertise HOST:PORT"
                )));
            }
            Served::of_several(etcd, &own, seed, log).map_err(Failure::usage)?
        }
        (None, Some(file)) => {
            let (store, kept) = Store::open(file, seed).map_err(|e| wrong(&e))?;
            Served::alone(store, kept, seed, log)
        }
        (None, None) => {
            let kept = Kept { term: Term { rack: seed, epoch: 1 }, intents: Vec::new() };
            Served::alone(Store::Memory, kept, seed, log)
        }
    };
    eprintln!("farmem: the rack's controller is at {at}; its page: http://{at}/");
    if let Some(keys) = keys {
        follow_quotas(keys, Arc::clone(&controller))?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(Failure::usage)?.block_on(serve(listener, controller, guard)).map_err(Failure::usage)
}
