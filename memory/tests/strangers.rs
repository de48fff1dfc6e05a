//! Strangers fill the node's tables, and go or stay. Everybody else is served all the same.

mod common;

use common::{FOR_EVER_MS, greet, hello, refused, say, status, within};
use farmem_fabric::{ConnectError, ConnectOptions, NodeAddr, Session, Transport};
use farmem_memory::{Config, Node};
use farmem_nic::MAX_MEMBERS;
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::wire::control::MAX_HELLO;
use farmem_protocol::wire::{Answer, Ask, Hello, Known, Purpose, Status, Verdict};
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
            timeout: Duration::from_secs(30),
            grace: Duration::from_secs(5),
            run: [1; 16],
            pid: std::process::id(),
            transport: Transport::Tcp,
            ..ConnectOptions::default()
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
        assert_eq!(refused(&mut here.stranger(), &hello(run(n), FOR_EVER_MS)), None, "the {n}th");
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
    assert_eq!(status(&mut holder, 2, Ask::Grant), Status::Done);
    let bound = greet(&mut windowed, &hello(run(1), FOR_EVER_MS)).unwrap();
    assert_eq!(status(&mut windowed, 2, Ask::Window), Status::Done);
    drop((holder, windowed));
    let first = greet(&mut here.stranger(), &hello(run(2), FOR_EVER_MS)).unwrap();
    within("they are absent", || here.node.nic().members().iter().all(|member| !member.is_present()));
    let mut last = None;
    for n in 3..MAX_MEMBERS / 2 + 10 {
        last = greet(&mut here.stranger(), &hello(run(n), FOR_EVER_MS));
    }
    let rejoin = |secret: [u8; 16]| {
        let incarnation = held.incarnation;
        refused(&mut here.stranger(), &Hello::new(Purpose::Rejoin(Known { secret, incarnation })))
    };
    assert_eq!(rejoin(held.secret), None, "it holds a slab");
    assert_eq!(rejoin(bound.secret), None, "it holds a window");
    assert_eq!(rejoin(first.secret), Some(Verdict::Unknown), "it held nothing, and was absent longest");
    assert_eq!(rejoin(last.unwrap().secret), None, "it has just been here");
}

/// A peer whose members stay has its share. Then the others have theirs.
#[test]
fn who_stays_has_his_share_and_no_more() {
    let here = Fixture::new("stays", 4);
    let mut strangers = Vec::new();
    // Tickets are members, too, and take no connection.
    let mut first = here.stranger();
    greet(&mut first, &hello(run(0), FOR_EVER_MS)).unwrap();
    assert_eq!(status(&mut first, 2, Ask::Grant), Status::Done);
    let mut tickets = 0;
    while status(&mut first, 3 + tickets, Ask::Ticket) == Status::Done {
        tickets += 1;
    }
    strangers.push(first);
    assert_eq!(tickets as usize, MAX_MEMBERS / 2 - 1);
    assert_eq!(refused(&mut here.stranger(), &hello(run(1), 0)), Some(Verdict::Full));
    assert!(matches!(here.program(), Err(ConnectError::Full(_))), "told as what it is");
    for n in 0..MAX_MEMBERS / 4 {
        let mut neighbour = here.neighbour();
        assert_eq!(refused(&mut neighbour, &hello(run(n), 0)), None, "the {n}th");
    }
}

/// Of so many answers, those that gave something.
fn windows_made(stream: &mut impl Read, answers: usize) -> u64 {
    let (mut had, mut given, mut seen) = (0, 0, Vec::new());
    let mut piece = vec![0; 64 << 10];
    while had < answers {
        let n = stream.read(&mut piece).unwrap();
        assert!(n > 0, "the node closed the connection");
        seen.extend_from_slice(&piece[..n]);
        let mut at = 0;
        while let Some((answer, used)) = Answer::read(&seen[at..]).unwrap() {
            (had, given, at) = (had + 1, given + u64::from(answer.result.is_ok()), at + used);
        }
        seen.drain(..at);
    }
    given
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
            say(&mut batch, number + 1, Ask::Window);
        }
        std::thread::scope(|scope| {
            let mut sender = stranger.try_clone().unwrap();
            scope.spawn(move || sender.write_all(&batch).unwrap());
            made += windows_made(&mut stranger, 1 << 16);
        });
        full.push(stranger);
        assert!(made > before, "{made}");
    }
    let mut one_more = here.stranger();
    greet(&mut one_more, &hello(run(0), 0)).unwrap();
    assert_eq!(status(&mut one_more, 1, Ask::Window), Status::Exhausted);
    let mut neighbour = here.neighbour();
    greet(&mut neighbour, &hello(run(0), 0)).unwrap();
    assert_eq!(status(&mut neighbour, 1, Ask::Window), Status::Done);
    // Windows of members that are gone are free again.
    drop(full);
    within("the strangers' grace is over", || here.node.nic().windows.count().0 <= 1);
    assert_eq!(status(&mut one_more, 2, Ask::Window), Status::Done);
}

/// Regions outlive those who made them, and stay until their names are removed.
#[test]
fn who_makes_regions_leaves_as_many() {
    let here = Fixture::new("regions", 4);
    let region = |n: usize, make: bool| Ask::Region(format!("r{n}").parse().unwrap(), make);
    let (mut made, mut members) = (0, Vec::new());
    // One member opens 64, all of a peer's make 128 of the 256.
    for most in [64, 64, 0] {
        let mut stranger = here.stranger();
        greet(&mut stranger, &hello(run(members.len()), 0)).unwrap();
        let before = made;
        while status(&mut stranger, made as u64 + 1, region(made, true)) == Status::Done {
            made += 1;
        }
        assert_eq!(made - before, most);
        members.push(stranger);
    }
    let mut last = members.pop().unwrap();
    assert_eq!(status(&mut last, 1000, region(made, true)), Status::Exhausted);
    assert_eq!(status(&mut last, 1001, region(5, false)), Status::Done, "it opens what is there");
    let mut neighbour = here.neighbour();
    greet(&mut neighbour, &hello(run(9), 0)).unwrap();
    assert_eq!(status(&mut neighbour, 1, region(made, true)), Status::Done);
    // A place is free when the name is removed and nobody has the region open. The neighbour's counts, too.
    for n in 0..2 {
        assert_eq!(status(&mut neighbour, 2 + n, Ask::RegionRemove(format!("r{n}").parse().unwrap())), Status::Done);
    }
    assert_eq!(status(&mut last, 1002, region(1000, true)), Status::Exhausted);
    drop(members);
    let mut number = 1002;
    within("the member that had it open is gone", || {
        number += 1;
        status(&mut last, number, region(1000, true)) == Status::Done
    });
}

/// Connections on which a Hello never comes whole give way to those on which it does.
#[test]
fn who_says_nothing_keeps_nobody_out() {
    let here = Fixture::new("silent", 4);
    let silent: Vec<TcpStream> = (0..2000)
        .map(|n| {
            let mut stranger = here.stranger();
            // The longest that may be begun, and any shorter one.
            let mut begun = hello(run(n), 0).frame().as_bytes()[..8].to_vec();
            begun.extend(1024u16.to_le_bytes());
            begun.resize(MAX_HELLO, 7);
            stranger.write_all(&begun[..n % MAX_HELLO]).unwrap();
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
