//! Joining a node: the first connection, and by what transport slabs are reached from then on.

use super::dial::{Greeted, NoDial, Pass, Patience, dial};
use super::member::Health;
use super::silence::{Ear, Heard};
use super::slabs::Slabs;
use super::{ConnectOptions, Control, Identity, Membership, Session, Transport};
use crate::link::Reach;
use crate::network::Network;
use crate::shape::Shaper;
use crate::verbs::{Card, connect::try_once};
use crate::{ConnectError, NodeAddr};
use farmem_protocol::wire::text::printable;
use farmem_protocol::wire::{Join, Known, OFFERS_RDMA, OFFERS_RESERVE, Purpose};
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use farmem_sys::verbs::Device;
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The time that a first connection is given, however short the grace.
const LEAST_CONNECT_NS: u64 = 1_000_000_000;

/// The session, the node's Unix path, and the node's offers (`Welcome::offers`).
type Joined = (Session, Option<PathBuf>, u8);

impl Session {
    /// Joins a node.
    ///
    /// A host's name is resolved here and only here.
    pub fn connect(addr: &NodeAddr, options: &ConnectOptions) -> Result<Session, ConnectError> {
        Session::connect_at_rate(addr, options, None)
    }

    /// [`Session::connect`] with a limit in bits a second for TCP, in each direction
    /// ([`crate::shape`]).
    pub fn connect_at_rate(
        addr: &NodeAddr,
        options: &ConnectOptions,
        bits_per_s: Option<u64>,
    ) -> Result<Session, ConnectError> {
        let shaper = bits_per_s.map(|rate| Arc::new(Shaper::new(rate)));
        let reach = |at| match &shaper {
            Some(shaper) => Reach::Shaped(at, Arc::clone(shaper)),
            None => Reach::Tcp(at),
        };
        let node = addr.to_string();
        match (addr, options.transport) {
            (NodeAddr::Shm(_), Transport::Verbs) => Err(ConnectError::NoRdma {
                node,
                reason: "it is a Unix socket on this machine: give its HOST:PORT".into(),
            }),
            (NodeAddr::Shm(_), Transport::Tcp) => Err(ConnectError::NotTcp(node)),
            (NodeAddr::Shm(path), _) => join(Reach::Unix(path.clone()), node, options).map(|(session, ..)| session),
            (NodeAddr::Tcp(host), transport) => {
                let mut failed = None;
                for at in resolve(host)? {
                    match join(reach(at), node.clone(), options) {
                        Ok((session, path, offers)) => {
                            let session = shared_if_possible(session, path, transport, options)?;
                            // A rate is TCP's.
                            let may = !session.member.mapped && shaper.is_none();
                            return if may { by_card(session, offers, transport) } else { Ok(session) };
                        }
                        Err(e) => failed = Some(e),
                    }
                }
                Err(failed.unwrap_or(ConnectError::Name { node, reason: "it has none".into() }))
            }
        }
    }

    /// Joins a node as a member that outlives its process. When its connection ends without a
    /// farewell, the node keeps the member's memory for the grace, and [`Session::resume`] takes it
    /// up again. Memory of a node on this machine can be mapped, through its Unix socket; other
    /// nodes are reached in frames.
    pub fn connect_lasting(node: &NodeAddr, options: &ConnectOptions) -> Result<Session, ConnectError> {
        first_of(node, |reach| join_as(reach, node.to_string(), options, true).map(|(session, ..)| session))
    }

    /// Takes up a member of an ended process, by the [`Session::identity`] that it had. The member
    /// still holds its slabs. None is mapped here. A member that was not encrypted may be from now
    /// on: then its identity is another.
    pub fn resume(node: &NodeAddr, options: &ConnectOptions, identity: &Identity) -> Result<Session, ConnectError> {
        let Identity { secret, incarnation, number, agreed } = *identity;
        let purpose = Purpose::Rejoin(Known { secret, incarnation });
        let patience = Patience::both(options.timeout.as_nanos() as u64);
        first_of(node, |reach| {
            let pass = Pass::of(options, &reach).map(|pass| pass.with(agreed));
            let greeted = dial(Ear::at(&reach, &Heard::default()), purpose, pass.as_ref(), patience)
                .map_err(|e| at_start(e, &reach, &node.to_string()))?;
            let member = member_of(reach, node.to_string(), options, &greeted);
            let link = greeted.link;
            let member = Membership { secret, incarnation, ..member };
            member.controlled_by(link, number);
            Ok(Session { member: Arc::new(member) })
        })
    }

    /// Joins the node of a network in this process, in its time.
    pub fn simulated<N: Network + 'static>(
        network: &Arc<N>,
        options: &ConnectOptions,
    ) -> Result<Session, ConnectError> {
        let network: Arc<dyn Network> = Arc::clone(network) as _;
        join(Reach::Inside(network), "sim".into(), options).map(|(session, ..)| session)
    }
}

/// A node on this machine may have told a Unix path: goes over to it, if the same node answers
/// there.
fn shared_if_possible(
    session: Session,
    path: Option<PathBuf>,
    transport: Transport,
    options: &ConnectOptions,
) -> Result<Session, ConnectError> {
    if matches!(transport, Transport::Tcp | Transport::Verbs) {
        return Ok(session);
    }
    let node = || session.member.node.clone();
    let reason = match path {
        None => "it is not on this machine, or has no Unix socket".to_owned(),
        // The path is the node's word: it is shown as text.
        Some(path) => match join(Reach::Unix(path.clone()), node(), options) {
            Ok((shared, ..)) if shared.member.incarnation == session.member.incarnation => return Ok(shared),
            Err(ConnectError::Forbidden(_)) => format!(
                "its socket {} is not this user's to open: be its user, or start it with --listen unix:/PATH where \
                 others may open that",
                printable(&path.to_string_lossy())
            ),
            // Of a container, say, whose files are others.
            _ => format!("its socket {} is not to be found here", printable(&path.to_string_lossy())),
        },
    };
    match transport {
        Transport::Shm => Err(ConnectError::NotShared { node: node(), reason }),
        _ => Ok(session),
    }
}

/// Goes over to RDMA, if that is wanted and works.
fn by_card(mut session: Session, offers: u8, transport: Transport) -> Result<Session, ConnectError> {
    let sealed = session.is_sealed();
    let works = match transport {
        Transport::Tcp | Transport::Shm => return Ok(session),
        // A card's transfers cannot be sealed.
        Transport::Auto if sealed => return Ok(session),
        Transport::Verbs if sealed => Err("what goes by it cannot be encrypted: add --plain".into()),
        Transport::Auto if offers & OFFERS_RDMA == 0 => return Ok(session),
        Transport::Verbs if offers & OFFERS_RDMA == 0 => {
            Err("it has no RDMA card, or was started with --rdma off".into())
        }
        Transport::Auto | Transport::Verbs => open_card(&mut session),
    };
    match works {
        Ok(()) => Ok(session),
        Err(reason) if transport == Transport::Verbs => {
            Err(ConnectError::NoRdma { node: session.member.node.clone(), reason })
        }
        Err(_) => {
            if let Some(member) = Arc::get_mut(&mut session.member) {
                member.card = Card::default();
            }
            Ok(session)
        }
    }
}

fn open_card(session: &mut Session) -> Result<(), String> {
    let opened = Device::open(None).and_then(Card::opened).map_err(|e| e.to_string())?;
    if let Some(member) = Arc::get_mut(&mut session.member) {
        member.card = opened;
    }
    try_once(&session.member, session.member.next_queue.fetch_add(1, Ordering::Relaxed))
}

/// Joins a node by one of its addresses.
fn join(reach: Reach, node: String, options: &ConnectOptions) -> Result<Joined, ConnectError> {
    join_as(reach, node, options, false)
}

fn join_as(reach: Reach, node: String, options: &ConnectOptions, lasting: bool) -> Result<Joined, ConnectError> {
    let ConnectOptions { run, pid, names, .. } = *options;
    let join = Join { run, pid, grace_ms: options.grace.as_millis() as u64, lasting, names };
    let (purpose, pass) = (Purpose::Join(join), Pass::of(options, &reach));
    // A stopped node's kernel takes the connection. A machine that does not is away, and waited
    // for no longer.
    let answer_ns = options.timeout.as_nanos() as u64;
    let connect_ns = answer_ns.min((options.grace.as_nanos() as u64).max(LEAST_CONNECT_NS));
    let patience = Patience { connect_ns, answer_ns };
    let greeted = dial(Ear::at(&reach, &Heard::default()), purpose, pass.as_ref(), patience)
        .map_err(|e| at_start(e, &reach, &node))?;
    let member = member_of(reach, node, options, &greeted);
    let Greeted { link, welcome, .. } = greeted;
    let path = welcome.path.as_bytes();
    // A node of another machine could have this one say its Hello to any socket here.
    let path = (!path.is_empty() && link.is_near()).then(|| PathBuf::from(OsStr::from_bytes(path)));
    member.controlled_by(link, 1);
    Ok((Session { member: Arc::new(member) }, path, welcome.offers))
}

fn at_start(failure: NoDial, reach: &Reach, node: &str) -> ConnectError {
    match (failure, reach) {
        // Over TCP the same number is a firewall's.
        (NoDial::System(Errno(libc::EACCES)), Reach::Unix(_)) => ConnectError::Forbidden(node.to_owned()),
        (failure, _) => failure.at_start(node),
    }
}

/// The membership that a Welcome describes. It has no control connection yet.
fn member_of(reach: Reach, node: String, options: &ConnectOptions, greeted: &Greeted) -> Membership {
    let Greeted { link, welcome, pass } = greeted;
    let own_end = SocketAddr::new(IpAddr::V6(Ipv6Addr::from(welcome.address)), welcome.port);
    let dialled = link.peer_address().map(|at| SocketAddr::new(canonical(at.ip()), at.port()));
    let mapped = matches!(reach, Reach::Unix(_));
    Membership {
        node,
        secret: welcome.secret,
        incarnation: welcome.incarnation,
        owner: welcome.owner,
        grace: options.grace,
        pass: *pass,
        domain: welcome.domain,
        asks_back: welcome.offers & OFFERS_RESERVE != 0 && !mapped,
        direct: matches!(reach, Reach::Inside(_))
            || dialled == Some(SocketAddr::new(canonical(own_end.ip()), own_end.port())),
        mapped,
        process: if mapped { link.peer_process() } else { 0 },
        card: Card::default(),
        control: Lock::new(Control::new(None, 1)),
        slabs: Slabs::default(),
        next_queue: AtomicU64::new(1),
        health: Health::default(),
        reach,
    }
}

/// By the first of a node's addresses that can be used.
fn first_of<T>(node: &NodeAddr, mut by: impl FnMut(Reach) -> Result<T, ConnectError>) -> Result<T, ConnectError> {
    let host = match node {
        NodeAddr::Shm(path) => return by(Reach::Unix(path.clone())),
        NodeAddr::Tcp(host) => host,
    };
    let mut failed = ConnectError::Name { node: host.clone(), reason: "it has none".into() };
    for at in resolve(host)? {
        match by(Reach::Tcp(at)) {
            Ok(had) => return Ok(had),
            Err(e) => failed = e,
        }
    }
    Err(failed)
}

/// The addresses of `host:port`; numbers are read, names are asked for.
fn resolve(text: &str) -> Result<Vec<SocketAddr>, ConnectError> {
    if let Ok(number) = text.parse::<SocketAddr>() {
        return Ok(vec![number]);
    }
    let found = text.to_socket_addrs();
    found.map(Iterator::collect).map_err(|e| ConnectError::Name { node: text.to_owned(), reason: e.to_string() })
}

fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}
