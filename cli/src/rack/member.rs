//! A node of a rack: twice a second it sends the controller a beat, with what it lends.
//!
//! A node goes on without its controller. It prints one line when the controller is away, and one
//! when it is back.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Thread;
use std::time::Duration;

use farmem_control::api::{Beat, Share};
use farmem_control::client::Client;
use farmem_control::state::{MOST_QUOTAS, names};
use farmem_fabric::NodeAddr;
use farmem_memory::Node;
use farmem_nic::Nic;
use farmem_nic::tenants::Tenant;
use farmem_protocol::node::Domain;
use farmem_sys::process;
use farmem_trust::Key;

use super::{is_here, is_loopback};
use crate::failure::Failure;

/// How long a node's end waits for the controller to be told of it.
const LEAVES_WITHIN: Duration = Duration::from_secs(1);

/// Where a node belongs.
#[derive(clap::Args, Clone, Debug)]
pub struct Rack {
    /// The controller of the rack that this node belongs to; several by commas
    #[arg(long, value_name = "HOST:PORT", value_parser = super::address)]
    pub controller: Option<String>,

    /// The failure domain of this node, as rack7/shelf2. Copies lie in different domains. Programs
    /// learn it, too [default in a rack: the host]
    #[arg(long, value_name = "DOMAIN", value_parser = farmem_protocol::node::domain)]
    pub domain: Option<Domain>,

    /// The node's name in the rack [default: the host's name]
    #[arg(long, value_name = "NAME", requires = "controller", value_parser = name)]
    pub name: Option<String>,

    /// Where other machines reach this node, if not where it listens
    #[arg(long, value_name = "HOST:PORT", requires = "controller", value_parser = super::advertised)]
    pub advertise: Option<String>,

    /// The file of a token of the tenant rack, by which this node is of the rack [default:
    /// FARMEM_TOKEN]
    #[arg(long, value_name = "FILE", requires = "controller")]
    pub token: Option<PathBuf>,
}

/// A name by which a controller knows a node.
fn name(text: &str) -> Result<String, String> {
    if names::is_name(text) { Ok(text.to_owned()) } else { Err(names::rule("name")) }
}

/// Whether no other machine reaches any of these.
fn is_here_alone(listen: &[NodeAddr]) -> bool {
    listen.iter().all(|at| !matches!(at, NodeAddr::Tcp(at) if !is_loopback(at)))
}

impl Rack {
    /// Refuses what a rack cannot use.
    pub fn check(&self, listen: &[NodeAddr]) -> Result<(), Failure> {
        let by_tcp = listen.iter().any(|at| matches!(at, NodeAddr::Tcp(_)));
        match self.controller {
            Some(_) if !by_tcp => Err(Failure::usage("--controller: other machines need a --listen HOST:PORT")),
            Some(ref at) if self.advertise.is_none() && is_here_alone(listen) && !at.split(',').any(is_here) => {
                Err(Failure::usage(
                    "--listen: other machines do not reach a loopback address: add one that they reach, or --advertise",
                ))
            }
            _ => Ok(()),
        }
    }

    /// The key that the node proves to the controller.
    pub fn key(&self) -> Result<Option<Key>, Failure> {
        match &self.token {
            _ if self.controller.is_none() => Ok(None),
            Some(file) => crate::borrow::key(file).map(Some),
            None => farmem_trust::file::of_environment().map_err(|e| Failure::usage(format!("FARMEM_TOKEN: {e}"))),
        }
    }

    /// Begins to say that the node is there, for as long as the process lives.
    pub fn begin(&self, node: &Node, key: Option<Key>) -> std::io::Result<Beats> {
        let Some(controller) = &self.controller else { return Ok(Beats(None)) };
        let tcp = node.addresses().iter().filter(|at| matches!(at, NodeAddr::Tcp(_))).map(ToString::to_string);
        let mut listen = self.advertise.clone().map_or_else(|| tcp.collect(), |at| vec![at]);
        // Runs are given the first.
        listen.sort_by_key(|at| is_loopback(at));
        let host = process::host_name();
        let about = Beat {
            name: self.name.clone().unwrap_or_else(|| host.clone()),
            incarnation: super::random()?,
            domain: self.domain.unwrap_or_else(|| Domain::new(&host)).to_string(),
            listen,
            lends: 0,
            lent: 0,
            members: 0,
            bytes_read: 0,
            bytes_written: 0,
            leaving: false,
            seen: None,
            shares: Vec::new(),
            applied: None,
        };
        let (client, nic) = (Client::new(controller).by(key), Arc::clone(node.shared_nic()));
        let (said, heard) = sync_channel(1);
        let beats = std::thread::Builder::new().name("beats".into());
        let beats = beats.spawn(move || say(&client, &nic, about, &said))?;
        Ok(Beats(Some((beats.thread().clone(), heard))))
    }
}

/// The beats of a node, if it is of a rack.
pub struct Beats(Option<(Thread, Receiver<()>)>);

impl Beats {
    /// Tells the controller now that the node leaves, so that no new run is given it. Returns when a
    /// beat that says so was answered or has failed, and after [`LEAVES_WITHIN`] at the latest.
    pub fn leave(&self) {
        if let Some((beats, heard)) = &self.0 {
            beats.unpark();
            let _ = heard.recv_timeout(LEAVES_WITHIN);
        }
    }
}

/// The shares of the tenants that the controller shares out to: the first by their names' letters,
/// as there.
fn shares(nic: &Nic) -> Vec<Share> {
    let mut all = nic.tenants.with_shares();
    all.sort_by(|one, other| one.name.as_str().cmp(other.name.as_str()));
    all.iter().take(MOST_QUOTAS).map(|tenant| said(tenant)).collect()
}

/// A tenant's share, as the controller is told.
fn said(tenant: &Tenant) -> Share {
    let bytes = tenant.share().unwrap_or(u64::MAX);
    Share { tenant: tenant.name.to_string(), bytes, held: tenant.held(), short: tenant.take_short() }
}

/// Sends beats without end. `leaving` gets a word after the first that says that the node leaves.
fn say(client: &Client, nic: &Arc<Nic>, mut about: Beat, leaving: &SyncSender<()>) {
    let (mut trouble, mut drain, mut is_known) = (None::<String>, false, false);
    loop {
        let moved = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        about.lends = nic.most();
        about.lent = nic.lent();
        about.members = nic.members().len() as u64;
        about.bytes_read = moved(&nic.tally.read_bytes);
        about.bytes_written = moved(&nic.tally.write_bytes) + moved(&nic.tally.record_bytes);
        about.leaving = nic.is_draining();
        about.shares = shares(nic);
        let mut next = farmem_control::state::BEAT_EVERY;
        match client.beat(&about) {
            Ok(orders) => {
                if trouble.take().is_some() || !is_known {
                    eprintln!("farmem: {} is of the rack at {}, in {}", about.name, client.address(), about.domain);
                }
                is_known = true;
                // Those of a leader before this one, and repeated ones, were refused by the client.
                orders.shares.iter().for_each(|(tenant, bytes)| nic.tenants.set_share(tenant, *bytes));
                about.applied = Some((orders.term, orders.serial));
                if orders.drain != drain {
                    drain = orders.drain;
                    nic.set_emptied(drain);
                    let what = if drain { "is to be emptied: runs are given other nodes" } else { "is open again" };
                    eprintln!("farmem: {} {what}", about.name);
                }
                next = Duration::from_millis(orders.next_ms.clamp(100, 5_000));
            }
            Err(e) => {
                let why = e.to_string();
                if trouble.as_ref() != Some(&why) {
                    eprintln!("farmem: {why}; this node lends on, and asks again");
                }
                trouble = Some(why);
            }
        }
        if about.leaving {
            // Full: it was said before.
            let _ = leaving.try_send(());
        }
        // Ended early by a node that leaves.
        std::thread::park_timeout(next);
    }
}
