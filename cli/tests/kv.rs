//! A store's front ends as processes: their ends, and their last lines. They are confined as
//! services are.

#[allow(dead_code)] // Shared by test programs, each of which uses a part.
mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Place, eventually, free, listens, outcome};
use farmem::{Addr, Memory};
use farmem_kv::layout::{MAGIC, head};

/// A process whose messages are in a file. Killed when dropped.
struct Service {
    child: Child,
    log: std::path::PathBuf,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Service {
    fn start(place: &Place, name: &str, arguments: &[&str]) -> Service {
        let log = place.path().join(format!("{name}.log"));
        let child = place.farmem(arguments).stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
        Service { child, log }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until it has said so, and has ended the line: a line may come in parts.
    fn says(&self, what: &str) {
        let is_whole = |line: &str| line.ends_with('\n') && line.contains(what);
        eventually(what, || self.said().split_inclusive('\n').any(is_whole));
    }

    fn signal(&self, signal: i32) {
        farmem_tests::process::send(self.child.id() as i32, signal);
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end; its status.
    fn ended(&mut self) -> Option<i32> {
        eventually("it has ended", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }
}

/// Nodes by their sockets, and what a front end is told of them.
struct Nodes {
    place: Place,
    nodes: Vec<Service>,
    at: Vec<String>,
}

impl Nodes {
    fn start(count: usize) -> Nodes {
        let place = Place::new();
        let sockets: Vec<_> = (0..count).map(|n| place.path().join(format!("{n}.sock"))).collect();
        let at: Vec<String> = sockets.iter().map(|socket| format!("unix:{}", socket.display())).collect();
        let mut all = Nodes { place, nodes: Vec::new(), at };
        all.nodes = (0..count).map(|n| all.node(n)).collect();
        sockets.iter().for_each(|socket| listens(socket));
        all
    }

    /// A process for one of them.
    fn node(&self, n: usize) -> Service {
        let arguments = ["node", "--lend", "256M", "--rdma", "off", "--listen", &self.at[n]];
        Service::start(&self.place, &format!("node{n}"), &arguments)
    }

    /// A front end on some of the nodes, which listens.
    fn front(&self, name: &str, named: &[&str], options: &[&str]) -> Service {
        let nodes = named.join(",");
        let arguments = [&["kv", "--name", "store", "--node", &nodes, "--listen", "127.0.0.1:0"], options].concat();
        let front = Service::start(&self.place, name, &arguments);
        front.says("is served at");
        front
    }

    fn named(&self, some: std::ops::Range<usize>) -> Vec<&str> {
        self.at[some].iter().map(String::as_str).collect()
    }

    /// The only line of a front end that is refused.
    fn refused(&self, named: &[&str], options: &[&str]) -> String {
        let nodes = named.join(",");
        let arguments = [&["kv", "--name", "store", "--node", &nodes, "--listen", "127.0.0.1:0"], options].concat();
        let (status, _, line) = outcome(self.place.farmem(arguments));
        assert!(status.is_some_and(|status| status != 0) && line.trim_end().lines().count() == 1, "{status:?}: {line}");
        line
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn of(front: &Service) -> Client {
        let said = front.said();
        let at = said.lines().find_map(|line| line.split("is served at ").nth(1)).expect("it listens");
        Client(BufReader::new(TcpStream::connect(at).unwrap()))
    }

    /// The reply's last line; empty if the connection was closed instead.
    fn ask(&mut self, line: &str) -> String {
        let _ = self.0.get_mut().write_all(format!("{line}\r\n").as_bytes());
        let mut reply = String::new();
        let _ = self.0.read_line(&mut reply);
        if reply.starts_with('$') && reply.trim_end() != "$-1" {
            reply.clear();
            let _ = self.0.read_line(&mut reply);
        }
        reply.trim_end().to_owned()
    }

    /// A figure of INFO.
    fn figure(&mut self, name: &str) -> u64 {
        let head = {
            self.0.get_mut().write_all(b"INFO everything\r\n").unwrap();
            let mut head = String::new();
            self.0.read_line(&mut head).unwrap();
            head
        };
        let mut told = vec![0; head.trim_end()[1..].parse::<usize>().unwrap() + 2];
        self.0.read_exact(&mut told).unwrap();
        let told = String::from_utf8(told).unwrap();
        let figure = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        figure.unwrap_or_else(|| panic!("no {name} in {told}")).parse().unwrap()
    }
}

const MIRROR: [&str; 2] = ["--protect", "mirror"];

/// A store of which a part is gone answers for no part of it: a front end that named only some keys
/// as lost would leave it to each client to find out.
#[test]
fn a_store_ends_with_a_pair_of_its_nodes() {
    let mut of = Nodes::start(4);
    let all = of.at.clone();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let mut fronts = [of.front("one", &all, &MIRROR), of.front("other", &all, &MIRROR)];
    let mut client = Client::of(&fronts[0]);
    for n in 0..50 {
        assert_eq!(client.ask(&format!("SET key{n} {n}")), "+OK");
    }
    of.nodes[2].kill();
    for n in 0..50 {
        assert_eq!(client.ask(&format!("GET key{n}")), n.to_string());
    }
    for front in &fronts {
        front.says("goes on alone");
    }
    let before = fronts.each_ref().map(|front| front.said().lines().count());
    of.nodes[3].kill();
    for (front, before) in fronts.iter_mut().zip(before) {
        let said = (front.ended(), front.said());
        let last: Vec<&str> = said.1.lines().skip(before).collect();
        assert_eq!((said.0, last.len()), (Some(70), 1), "{last:?}");
        assert!(last[0].contains(all[2]) && last[0].contains(all[3]), "{last:?}");
    }
    let line = of.refused(&all, &MIRROR);
    assert!(line.contains("store"), "{line}");
}

/// A front end that is stopped keeps the new node from counting until it goes on. So the survivor
/// ends in the middle of the repair.
#[test]
fn a_store_ends_with_the_survivor_of_a_pair_that_is_mended() {
    let mut of = Nodes::start(3);
    let (pair, spare) = (of.named(0..2).join(","), of.at[2].clone());
    let pair: Vec<&str> = pair.split(',').collect();
    let with_spare = [&MIRROR[..], &["--spare", &spare]].concat();
    let mut fronts = [of.front("mends", &pair, &with_spare), of.front("stopped", &pair, &MIRROR)];
    let mut client = Client::of(&fronts[0]);
    for n in 0..50 {
        assert_eq!(client.ask(&format!("SET key{n} {n}")), "+OK");
    }
    fronts[1].signal(libc::SIGSTOP);
    of.nodes[0].kill();
    fronts[0].says("is being filled");
    assert_eq!((client.ask("GET key7"), client.ask("SET key7 8")), ("7".into(), "+OK".into()));
    of.nodes[1].kill();
    assert_eq!(fronts[0].ended(), Some(70));
    let said = fronts[0].said();
    let lost: Vec<&str> = said.lines().filter(|line| line.contains(" is lost: ")).collect();
    assert!(lost.len() == 1 && said.trim_end().ends_with(lost[0]) && lost[0].contains(pair[1]), "{said}");
    fronts[1].signal(libc::SIGCONT);
    assert_eq!(fronts[1].ended(), Some(70));
    // The new node counts as no copy.
    of.refused(&[&spare], &MIRROR);
}

#[test]
fn a_confined_front_end_fills_a_spare_node() {
    let mut of = Nodes::start(3);
    let (pair, spare) = (of.named(0..2).join(","), of.at[2].clone());
    let pair: Vec<&str> = pair.split(',').collect();
    let front = of.front("mends", &pair, &[&MIRROR[..], &["--spare", &spare]].concat());
    let mut client = Client::of(&front);
    for n in 0..200 {
        assert_eq!(client.ask(&format!("SET key{n} {n}")), "+OK");
    }
    of.nodes[1].kill();
    front.says("each key is at two nodes again");
    let status = fs::read_to_string(format!("/proc/{}/status", front.child.id())).unwrap();
    assert!(status.contains("Seccomp:\t2") && status.contains("CapEff:\t0000000000000000"), "{status}");
    of.nodes[0].kill();
    for n in 0..200 {
        assert_eq!(client.ask(&format!("GET key{n}")), n.to_string());
    }
    assert_eq!(client.ask("SET key after"), "+OK");
}

/// Ends the work of another thread also where a check fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A client that goes on by the other front end when one does not answer.
struct Stubborn {
    ports: [SocketAddr; 2],
    client: Option<Client>,
    tried: usize,
}

impl Stubborn {
    /// The reply, of whichever front end gives one that is no error.
    fn ask(&mut self, line: &str) -> String {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let connects = || TcpStream::connect(self.ports[self.tried % 2]).ok();
            let client = self.client.take().or_else(|| connects().map(|stream| Client(BufReader::new(stream))));
            if let Some(mut client) = client {
                client.0.get_ref().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                let reply = client.ask(line);
                if !reply.is_empty() && !reply.starts_with('-') {
                    self.client = Some(client);
                    return reply;
                }
            }
            assert!(Instant::now() < until, "no front end answers to {line}");
            self.tried += 1;
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Each process of a store is started anew, one after the other, while a client works: both front ends, and each node,
/// with a third node in its place. Nothing that was answered is lost.
#[test]
fn a_rolling_restart_of_a_store_loses_nothing() {
    let mut of = Nodes::start(3);
    let ports = [free(), free()];
    let front = |of: &Nodes, which: usize, pair: [usize; 2], spare: usize| {
        let (nodes, listen) = (format!("{},{}", of.at[pair[0]], of.at[pair[1]]), ports[which].to_string());
        let front = ["kv", "--name", "store", "--node", &nodes, "--listen", &listen, "--spare", &of.at[spare]];
        let front = Service::start(&of.place, &format!("front{which}"), &[&front[..], &MIRROR].concat());
        front.says("is served at");
        front
    };
    let mut fronts = [0, 1].map(|which| front(&of, which, [0, 1], 2));
    let (rounds, enough) = (AtomicU64::new(0), AtomicBool::new(false));
    let works = || {
        let mut client = Stubborn { ports, client: None, tried: 0 };
        let mut values = [None::<u64>; 40];
        for round in 0.. {
            if enough.load(Ordering::Relaxed) {
                break;
            }
            let (sets, gets) = (round as usize % 40, round as usize * 17 % 40);
            let is = client.ask(&format!("GET key{gets}"));
            assert_eq!(is, values[gets].map_or("$-1".to_owned(), |value| value.to_string()), "key{gets}");
            assert_eq!(client.ask(&format!("SET key{sets} {round}")), "+OK");
            values[sets] = Some(round);
            rounds.store(round, Ordering::Relaxed);
        }
        for (at, value) in values.iter().enumerate() {
            assert_eq!(client.ask(&format!("GET key{at}")), value.unwrap().to_string());
        }
    };
    std::thread::scope(|scope| {
        let (works, _stops) = (scope.spawn(works), Stops(&enough));
        let goes_on = || {
            let before = rounds.load(Ordering::Relaxed);
            eventually("the client goes on", || rounds.load(Ordering::Relaxed) > before + 80 || works.is_finished());
            assert!(!works.is_finished(), "the client has failed");
        };
        goes_on();
        // The node that ends, the one that stays, and the one that takes the first one's place.
        for [ends, stays, comes] in [[0, 1, 2], [1, 2, 0]] {
            of.nodes[ends].signal(libc::SIGTERM);
            of.nodes[ends].says("going down");
            // The store would keep it for as long as it may.
            of.nodes[ends].signal(libc::SIGTERM);
            of.nodes[ends].ended();
            fronts.iter().for_each(|front| front.says("each key is at two nodes again"));
            goes_on();
            of.nodes[ends] = of.node(ends);
            let socket = of.at[ends].strip_prefix("unix:").unwrap();
            listens(std::path::Path::new(socket));
            for which in [0, 1] {
                fronts[which].signal(libc::SIGTERM);
                fronts[which].ended();
                goes_on();
                fronts[which] = front(&of, which, [stays, comes], ends);
                goes_on();
            }
        }
        enough.store(true, Ordering::Relaxed);
    });
}

#[test]
fn front_ends_of_two_versions_do_not_share_a_store() {
    let of = Nodes::start(1);
    let node = of.at[0].clone();
    let front = of.front("old", &[&node], &[]);
    let mut client = Client::of(&front);
    assert_eq!(client.ask("SET key value"), "+OK");
    let memory = Memory::builder().node(&node).region("store").connect().unwrap();
    let root = memory.load(memory.root(0)).unwrap();
    let magic = Addr::from_bits(root + head::MAGIC).unwrap();
    assert_eq!(memory.load(magic).unwrap(), MAGIC);
    // As a newer version would have written it.
    memory.store(magic, MAGIC + (1 << 48)).unwrap();
    let line = of.refused(&[&node], &[]);
    assert!(line.contains("no store of this version"), "{line}");
    memory.store(magic, MAGIC).unwrap();
    assert_eq!(Client::of(&of.front("new", &[&node], &[])).ask("GET key"), "value");
    assert_eq!(client.ask("GET key"), "value");
}

/// This machine's address of a network, if it has one.
fn own_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

/// Without a password, clients of this machine are served, and others are told in one line what to do. A
/// password's file is its owner's alone.
#[test]
fn a_front_end_says_who_may_come() {
    use std::os::unix::fs::PermissionsExt;
    let of = Nodes::start(1);
    let (node, file) = (of.at[0].clone(), of.place.path().join("password"));
    let named = format!("@{}", file.display());
    let line = of.refused(&[&node], &["--requirepass", ""]);
    assert!(line.contains("it is empty"), "{line}");
    fs::write(&file, "secret\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let line = of.refused(&[&node], &["--requirepass", &named]);
    assert!(line.contains("others may read it") && line.contains("chmod 600"), "{line}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();

    // By an address of a network this machine is as any other.
    let address = own_address().map(|ip| format!("{ip}:0"));
    let both: Vec<&str> = address.iter().flat_map(|at| ["--listen", at.as_str()]).collect();
    let away = |front: &Service| {
        let said = front.said();
        let at = said.lines().filter_map(|line| line.split("is served at ").nth(1)).nth(1)?.to_owned();
        Some(Client(BufReader::new(TcpStream::connect(at).unwrap())))
    };
    let plain = of.front("plain", &[&node], &both);
    assert_eq!(Client::of(&plain).ask("SET key value"), "+OK");
    for asked in ["GET key", "AUTH secret", "HELLO 3", "SET key other", "RESET", "NONSENSE"] {
        let Some(mut stranger) = away(&plain) else { break };
        let said = stranger.ask(asked);
        assert!(said.starts_with("-DENIED") && said.contains("--requirepass") && said.contains("--open"), "{said}");
        assert_eq!(stranger.ask("PING"), "", "it goes on after {asked}");
    }
    if address.is_some() {
        assert!(plain.said().contains("only clients of this machine"), "{}", plain.said());
    }
    assert_eq!(Client::of(&plain).ask("GET key"), "value");
    for line in ["POST / HTTP/1.1", "Host: example"] {
        let mut browser = Client::of(&plain);
        assert!(browser.ask(line).starts_with("-ERR this is no web server"));
        assert_eq!(browser.ask("PING"), "");
    }
    // A TLS greeting whose ticket has a command, and a TURN request whose user's name has one. A
    // page chooses both, and the port.
    for begins in [&b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03ticket"[..], b"\0\x03\0\x58\x21\x12\xa4\x42\0\x06\0\x20"]
    {
        for command in ["SET key poisoned", "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$8\r\npoisoned"] {
            let mut browser = Client::of(&plain);
            browser.0.get_mut().write_all(&[begins, format!("\r\n{command}\r\nrest\r\n").as_bytes()].concat()).unwrap();
            let mut said = String::new();
            let _ = browser.0.read_to_string(&mut said);
            assert!(said.starts_with("-ERR Protocol error") && said.lines().count() == 1, "{said}");
        }
    }
    assert_eq!(Client::of(&plain).ask("GET key"), "value");

    let front = of.front("guarded", &[&node], &[&both[..], &["--requirepass", &named]].concat());
    for mut client in [Some(Client::of(&front)), away(&front)].into_iter().flatten() {
        assert!(client.ask("GET key").starts_with("-NOAUTH"));
        assert_eq!((client.ask("AUTH secret"), client.ask("GET key")), ("+OK".into(), "value".into()));
    }
    let open = of.front("open", &[&node], &[&both[..], &["--open"]].concat());
    for mut client in [Some(Client::of(&open)), away(&open)].into_iter().flatten() {
        assert_eq!(client.ask("GET key"), "value");
    }
}

/// A front end that stood still is shut out where its verbs can be refused. It says so in one line, its clients
/// are told or disconnected, what they asked for meanwhile changes nothing, and it serves again.
#[test]
fn a_front_end_that_stood_still_joins_anew() {
    let (place, at) = (Place::new(), free().to_string());
    let _node = Service::start(&place, "node", &["node", "--lend", "256M", "--rdma", "off", "--listen", &at]);
    eventually("the node listens", || TcpStream::connect(&at).is_ok());
    let front = |name: &str| {
        let arguments = ["kv", "--name", "store", "--node", &at, "--transport", "tcp", "--listen", "127.0.0.1:0"];
        let front = Service::start(&place, name, &arguments);
        front.says("is served at");
        front
    };
    let (still, other) = (front("still"), front("other"));
    let [mut late, mut waits, mut client] = [&still, &still, &other].map(Client::of);
    assert_eq!(late.ask("SET key old"), "+OK");
    waits.0.get_mut().write_all(b"BLPOP none 0\r\n").unwrap();
    eventually("it waits", || late.figure("blocked_clients") == 1);
    still.signal(libc::SIGSTOP);
    late.0.get_mut().write_all(b"SET key late\r\n").unwrap();
    eventually("its memory is taken over", || client.figure("pieces_adopted") > 0);
    assert_eq!(client.ask("SET key new"), "+OK");
    still.signal(libc::SIGCONT);
    still.says("joined anew");
    for client in [&mut late, &mut waits] {
        let mut said = String::new();
        let _ = client.0.read_to_string(&mut said);
        assert!(said.is_empty() || said.starts_with('-') && said.lines().count() == 1, "{said}");
    }
    assert_eq!((client.ask("GET key"), Client::of(&still).ask("GET key")), ("new".into(), "new".into()));
    assert_eq!(still.said().lines().count(), 2, "{}", still.said());
}

/// Keys that were acknowledged would be gone, and the next front end would serve another store of the name.
#[test]
fn a_store_that_is_served_is_removed_by_force_alone() {
    let of = Nodes::start(1);
    let node = of.at[0].as_str();
    let rm = |options: &[&str]| outcome(of.place.farmem([&["region", "rm", node, "store"], options].concat()));
    let refused = |options: &[&str], says: &str| {
        let (status, _, line) = rm(options);
        assert_eq!((status, line.lines().count()), (Some(64), 1), "{line}");
        assert!(line.contains(says), "{line}");
    };
    // What it says and answers behind a removal.
    let ends = |front: &mut Service, client: &mut Client, before: usize| {
        let answer = client.ask("SET a 3");
        assert!(answer.is_empty() || answer.starts_with("-IOERR"), "{answer}");
        let (status, said) = (front.ended(), front.said());
        let last: Vec<&str> = said.lines().skip(before).collect();
        assert_eq!((status, last.len()), (Some(70), 1), "{last:?}");
        assert!(last[0].contains("store store: it was removed by farmem region rm"), "{last:?}");
    };
    let mut front = of.front("front", &[node], &[]);
    let mut client = Client::of(&front);
    assert_eq!(client.ask("SET a 1"), "+OK");
    refused(&[], &format!("(pid {} on ", front.child.id()));
    refused(&[], "end these first, or say --force");
    assert_eq!(client.ask("SET a 2"), "+OK");
    let before = front.said().lines().count();
    assert_eq!(rm(&["--force"]), (Some(0), String::new(), String::new()));
    ends(&mut front, &mut client, before);

    // Another of its name begins empty. While one is stopped it is not removed: that may write to it.
    let mut front = of.front("anew", &[node], &[]);
    let mut client = Client::of(&front);
    assert_eq!(client.ask("GET a"), "$-1");
    let before = front.said().lines().count();
    front.signal(libc::SIGSTOP);
    refused(&["--force"], "not ended within 10 s");
    front.signal(libc::SIGCONT);
    assert_eq!(client.ask("SET a 4"), "+OK");
    assert_eq!(rm(&["--force"]), (Some(0), String::new(), String::new()));
    ends(&mut front, &mut client, before);
    assert!(outcome(of.place.farmem(["region", "ls", node])).1.contains("has no regions"));
}

/// It would count against the quota, and stand in the way of the store that was meant.
#[test]
fn a_front_end_that_is_refused_leaves_nothing() {
    let of = Nodes::start(2);
    let [one, other] = [of.at[0].as_str(), of.at[1].as_str()];
    let left = || [one, other].map(|node| outcome(of.place.farmem(["region", "ls", node, "--json"])).1);
    let nothing = ["[]\n".to_owned(), "[]\n".to_owned()];
    assert!(of.refused(&[one, one], &[]).contains("is named twice: name each node once"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = taken.local_addr().unwrap().to_string();
    assert!(of.refused(&[one], &["--metrics", &metrics]).contains("another program listens there"));
    assert!(of.refused(&[one, other], &["--maxmemory", "64k"]).contains("--maxmemory is too little"));
    assert_eq!(left(), nothing);
    // Of two nodes the second has no room.
    let hoard = Memory::builder().node(other).connect().unwrap();
    while hoard.alloc(2 << 20).is_ok() {}
    let line = of.refused(&[one, other], &[]);
    assert!(line.contains("has lent all of its"), "{line}");
    assert_eq!(left(), nothing);
    drop(hoard);
    eventually("its memory is free", || outcome(of.place.farmem(["check", other])).1.contains("256 MiB free"));
    drop(of.front("front", &[one, other], &[]));
    assert!(left().iter().all(|names| names.contains("store")));
}
