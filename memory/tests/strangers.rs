//! Strangers fill the node's tables, and go or stay. Everybody else is served all the same.

mod common;

use common::{FOR_EVER_MS, ask, greet, hello, say, verdict, within};
use farmem_fabric::{ConnectError, ConnectOptions, NodeAddr, Session, Transport};
use farmem_memory::{Config, Node};
use farmem_nic::MAX_MEMBERS;
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::wire::{Ask, Hello, Purpose, Status, Verdict};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A node that a stranger reaches over TCP, and a user of this machine through a Unix socket: two peers.
struct Fixture {
    node: Node,
    tcp: SocketAddr,
    socket: PathBuf,
}

impl Fixture {
    fn new(name: &str, slabs: u64) -> Fixture {
        let socket = std::env::temp_dir().join(format!("farmem-strangers-{name}-{}.sock", std::process::id()));
        let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into()), NodeAddr::Shm(socket.clone())];
        let node = Node::start(&Config::new(slabs * SLAB_BYTES, listen)).unwrap();
        let tcp = node.addresses()[0].to_string().parse().unwrap();
        Fixture { node, tcp, socket }
    }

    fn stranger(&self) -> TcpStream {
        let stream = TcpStream::connect(self.tcp).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    fn neighbour(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    /// A program that comes over TCP, as the strangers do.
    fn program(&self) -> Result<Session, ConnectError> {
        let options = ConnectOptions {
            timeout: Duration::from_secs(5),
            grace: Duration::from_secs(5),
            run: [1; 16],
            pid: std::process::id(),
            transport: Transport::Tcp,
        };
        Session::connect(&self.node.addresses()[0], &options)
    }
}

/// A run's name, another for each number.
fn run(n: usize) -> [u8; 16] {
    (n as u128 | 1 << 127).to_le_bytes()
}

/// More strangers than the table has places join with the longest grace, say nothing else, and go.
/// They give way to newcomers.
#[test]
fn who_joins_and_goes_keeps_nobody_out() {
    let here = Fixture::new("away", 4);
    for n in 0..MAX_MEMBERS + 100 {
        let welcome = greet(&mut here.stranger(), &hello(run(n), FOR_EVER_MS));
        assert_eq!(verdict(welcome), Some(Verdict::Welcome), "the {n}th");
    }
    within("they are gone", || here.node.nic().members().iter().all(|member| !member.is_present()));
    assert!(here.node.nic().members().len() <= MAX_MEMBERS / 2, "no more than they leave to others");
    let session = here.program().expect("a program is served");
    session.grant().expect("and has memory");
    // Those that are away and hold nothing are not waited for.
    session.fork_ticket().unwrap().abandon();
    within("the program alone is waited for", || here.node.drain(Duration::ZERO) == 1);
    drop(session);
    within("nobody holds anything", || here.node.drain(Duration::ZERO) == 0);
}

/// A member that holds something stays, however full the table is. Members that hold nothing give
/// way, the longest absent first.
#[test]
fn who_holds_something_does_not_give_way() {
    let here = Fixture::new("holds", 4);
    let (mut holder, mut windowed) = (here.stranger(), here.stranger());
    let held = greet(&mut holder, &hello(run(0), FOR_EVER_MS)).unwrap();
    assert_eq!(ask(&mut holder, Ask::Grant, 2, 0).status, Status::Done as u8);
    let bound = greet(&mut windowed, &hello(run(1), FOR_EVER_MS)).unwrap();
    assert_eq!(ask(&mut windowed, Ask::Window, 2, 0).status, Status::Done as u8);
    drop((holder, windowed));
    let first = greet(&mut here.stranger(), &hello(run(2), FOR_EVER_MS)).unwrap();
    within("they are absent", || here.node.nic().members().iter().all(|member| !member.is_present()));
    let mut last = None;
    for n in 3..MAX_MEMBERS / 2 + 10 {
        last = greet(&mut here.stranger(), &hello(run(n), FOR_EVER_MS));
    }
    let rejoin = |secret: [u8; 16]| {
        let incarnation = held.incarnation;
        let again = Hello { purpose: Purpose::Rejoin as u8, secret, incarnation, ..hello([0; 16], 0) };
        verdict(greet(&mut here.stranger(), &again))
    };
    assert_eq!(rejoin(held.secret), Some(Verdict::Welcome), "it holds a slab");
    assert_eq!(rejoin(bound.secret), Some(Verdict::Welcome), "it holds a window");
    assert_eq!(rejoin(first.secret), Some(Verdict::Unknown), "it held nothing, and was absent longest");
    assert_eq!(rejoin(last.unwrap().secret), Some(Verdict::Welcome), "it has just been here");
}

/// A peer whose members stay has its share. Then the others have theirs.
#[test]
fn who_stays_has_his_share_and_no_more() {
    let here = Fixture::new("stays", 4);
    let mut strangers = Vec::new();
    // Tickets are members, too, and take no connection.
    let mut first = here.stranger();
    greet(&mut first, &hello(run(0), FOR_EVER_MS)).unwrap();
    assert_eq!(ask(&mut first, Ask::Grant, 2, 0).status, Status::Done as u8);
    let mut tickets = 0;
    while ask(&mut first, Ask::Ticket, 3 + tickets, 0).status == Status::Done as u8 {
        tickets += 1;
    }
    strangers.push(first);
    assert_eq!(tickets as usize, MAX_MEMBERS / 2 - 1);
    assert_eq!(verdict(greet(&mut here.stranger(), &hello(run(1), 0))), Some(Verdict::Full));
    assert!(matches!(here.program(), Err(ConnectError::Full(_))), "told as what it is");
    for n in 0..MAX_MEMBERS / 4 {
        let mut neighbour = here.neighbour();
        assert_eq!(verdict(greet(&mut neighbour, &hello(run(n), 0))), Some(Verdict::Welcome), "the {n}th");
    }
}

/// Windows are another such table.
#[test]
fn who_makes_windows_leaves_as_many() {
    let here = Fixture::new("windows", 4);
    let (mut made, mut full) = (0u64, Vec::new());
    // One member may have 65 536 of the 1 048 576.
    while made < 1 << 19 {
        let mut stranger = here.stranger();
        greet(&mut stranger, &hello(run(made as usize), 1000)).unwrap();
        let before = made;
        let mut batch = Vec::new();
        for number in 0..1u64 << 16 {
            say(&mut batch, Ask::Window, number + 1, 0);
        }
        let mut answers = vec![0; 40 << 16];
        std::thread::scope(|scope| {
            let mut sender = stranger.try_clone().unwrap();
            scope.spawn(move || sender.write_all(&batch).unwrap());
            stranger.read_exact(&mut answers).unwrap();
        });
        made += answers.chunks(40).filter(|answer| answer[0] == Status::Done as u8).count() as u64;
        full.push(stranger);
        assert!(made > before, "{made}");
    }
    let mut one_more = here.stranger();
    greet(&mut one_more, &hello(run(0), 0)).unwrap();
    assert_eq!(ask(&mut one_more, Ask::Window, 1, 0).status, Status::Exhausted as u8);
    let mut neighbour = here.neighbour();
    greet(&mut neighbour, &hello(run(0), 0)).unwrap();
    assert_eq!(ask(&mut neighbour, Ask::Window, 1, 0).status, Status::Done as u8);
    // Windows of members that are gone are free again.
    drop(full);
    within("the strangers' grace is over", || here.node.nic().windows.count().0 <= 1);
    assert_eq!(ask(&mut one_more, Ask::Window, 2, 0).status, Status::Done as u8);
}

/// Connections on which a Hello never comes whole give way to those on which it does.
#[test]
fn who_says_nothing_keeps_nobody_out() {
    let here = Fixture::new("silent", 4);
    let silent: Vec<TcpStream> = (0..2000)
        .map(|n| {
            let mut stranger = here.stranger();
            let begun = hello(run(n), 0);
            stranger.write_all(&zerocopy::IntoBytes::as_bytes(&begun)[..n % 72]).unwrap();
            stranger
        })
        .collect();
    let begun = Instant::now();
    let session = here.program().expect("a program is served");
    session.grant().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    within("most were closed", || here.node.connections() < 300);
    drop(silent);
}
