//! How things end, with a node that is a process of its own: killed, stopped, cut
//! off, filled, lied to. Each ending within the time that was promised for it.

mod common;

use farmem_contract::{get, put};
use farmem_fabric::{ConnectError, ConnectOptions, GrantError, NodeAddr, Session, Transport};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_tests::lost::Lost;
use farmem_tests::process;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// `examples/node.rs`, running.
struct Process {
    child: Child,
    tcp: NodeAddr,
    shm: NodeAddr,
}

impl Process {
    fn start(mib: u64) -> Process {
        Process::start_at(mib, "127.0.0.1:0")
    }

    fn start_at(mib: u64, tcp: &str) -> Process {
        Process::start_with(mib, tcp, 1024)
    }

    fn start_with(mib: u64, tcp: &str, descriptors: u32) -> Process {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("farmem-end-{}-{}.sock", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        // Cargo builds examples beside tests: target/PROFILE/{deps/this-test, examples/node}.
        let here = std::env::current_exe().unwrap();
        let node: PathBuf = here.parent().unwrap().parent().unwrap().join("examples/node");
        let limited = format!("ulimit -n {descriptors}; exec \"$0\" \"$@\"");
        let mut child = Command::new("sh")
            .args(["-c", &limited])
            .arg(node)
            .args([&mib.to_string(), tcp, &format!("unix:{}", path.display())])
            .stdout(Stdio::piped())
            // A group of its own: whoever ends above the test leaves the test's group an orphan, and the kernel
            // continues what is stopped in such a group.
            .process_group(0)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next = || lines.next().unwrap().unwrap().parse().unwrap();
        let (tcp, shm) = (next(), next());
        Process { child, tcp, shm }
    }

    fn address(&self) -> SocketAddr {
        self.tcp.to_string().parse().unwrap()
    }

    /// CPU time that its threads have had, and how often: who looks again and again while others run has little of the one.
    fn had(&self) -> (Duration, u64) {
        let of_thread = |thread: std::io::Result<std::fs::DirEntry>| {
            let schedstat = std::fs::read_to_string(thread.unwrap().path().join("schedstat")).unwrap();
            let numbers: Vec<u64> = schedstat.split_whitespace().map(|number| number.parse().unwrap()).collect();
            (numbers[0], numbers[2])
        };
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let (ns, times) = threads.map(of_thread).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        (Duration::from_nanos(ns), times)
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Stops it, and waits until it is: on a busy machine its threads go on for a while, and answer.
    fn stop(&self) {
        process::send(self.pid(), libc::SIGSTOP);
    }

    fn goes_on(&self) {
        process::send(self.pid(), libc::SIGCONT);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let NodeAddr::Shm(path) = &self.shm {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn options(transport: Transport) -> ConnectOptions {
    ConnectOptions {
        timeout: PATIENCE,
        grace: Duration::from_secs(5),
        run: [7; 16],
        pid: std::process::id(),
        transport,
        ..ConnectOptions::default()
    }
}

/// Longer than anything here takes that nobody promised a time for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a condition. The limit leaves out how long the calling thread, or a node, waits for a
/// CPU meanwhile.
fn within(limit: Duration, node: Option<&Process>, what: &str, condition: impl FnMut() -> bool) {
    let watched: Vec<i32> = node.map(Process::pid).into_iter().collect();
    assert!(Lost::by(&watched).eventually(limit, condition), "not so within {limit:?}: {what}");
}

/// What a slow network does not take at once is told, and goes on with every look.
#[test]
fn what_is_held_up_goes_on() {
    let node = Process::start(256);
    let session = Session::connect_at_rate(&node.tcp, &options(Transport::Tcp), Some(20_000_000)).unwrap();
    let slab = session.grant().unwrap().id;
    let mut queue = session.queue_pair().unwrap();
    let (bytes, mut done) = (vec![7u8; 128 << 10], Vec::new());
    #[allow(unsafe_code)]
    // SAFETY: the bytes stay as they are until the WRITE is complete, which is waited for below.
    unsafe {
        queue.write(0, slab, 0, bytes.as_ptr(), bytes.len() as u32)
    };
    assert!(!queue.is_held_up(), "nothing was sent off");
    queue.doorbell().unwrap();
    assert!(queue.is_held_up(), "a link of 20 Mbit/s took 128 KiB at once");
    within(PATIENCE, None, "52 ms of sending are over", || queue.poll(&mut done).unwrap() > 0);
    assert!(done[0].result.is_ok() && !queue.is_held_up());
}

#[test]
fn a_killed_node_is_lost_within_two_seconds_by_tcp() {
    let node = Process::start(256);
    let session = Session::connect(&node.tcp, &options(Transport::Tcp)).unwrap();
    let slab = session.grant().unwrap().id;
    let mut queue = session.queue_pair().unwrap();
    assert_eq!(put(&mut queue, slab, 0, b"here"), Ok(0));
    process::kill(node.pid());
    let mut taken = Lost::by(&[]);
    let mut bytes = [0u8; 4];
    #[allow(unsafe_code)]
    // SAFETY: the buffer outlives the queue pair's use of it.
    unsafe {
        queue.read(1, slab, 0, bytes.as_mut_ptr(), 4)
    };
    let mut done = Vec::new();
    let lost = loop {
        let tried = queue.doorbell().and_then(|()| queue.wait(&mut done, Duration::from_secs(10)));
        if let Err(lost) = tried {
            break lost;
        }
    };
    let took = taken.left();
    assert!(took < Duration::from_secs(2), "{took:?}");
    let line = lost.to_string();
    assert!(line.contains(&node.tcp.to_string()) && line.contains("its process has ended"), "{line}");
    // Nobody else of the member waits again.
    let at_once = || {
        let begun = Instant::now();
        assert!(matches!(session.grant(), Err(GrantError::Lost(_))) && session.queue_pair().is_err());
        begun.elapsed() < Duration::from_millis(100)
    };
    // (Mostly: a busy machine may keep us from the CPU meanwhile.)
    assert!((0..10).filter(|_| at_once()).count() > 5);
}

#[test]
fn a_killed_node_is_noticed_by_who_tends() {
    let node = Process::start(256);
    let shm = Session::connect(&node.shm, &options(Transport::Auto)).unwrap();
    let tcp = Session::connect(&node.tcp, &options(Transport::Tcp)).unwrap();
    assert!(shm.tend().is_ok() && tcp.tend().is_ok());
    process::kill(node.pid());
    within(Duration::from_secs(1), None, "lost over shared memory", || shm.tend().is_err());
    within(Duration::from_secs(2), None, "lost over tcp", || tcp.tend().is_err());
}

#[test]
fn a_stopped_node_is_waited_for() {
    let node = Process::start(256);
    let session = Session::connect(&node.tcp, &options(Transport::Tcp)).unwrap();
    let slab = session.grant().unwrap().id;
    let mut queue = session.queue_pair().unwrap();
    assert_eq!(put(&mut queue, slab, 0, b"before"), Ok(0));
    node.stop();
    // Before the other thread begins to sleep: this one may not run for a while after that.
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let slept = scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(5));
            node.goes_on();
        });
        // One on a connection that stands, one that needs a new connection, one for control.
        assert_eq!(get(&mut queue, slab, 0, 6), Ok(b"before".to_vec()));
        assert!(begun.elapsed() > Duration::from_secs(4));
        slept.join().unwrap();
    });
    node.stop();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(2));
            node.goes_on();
        });
        assert!(session.tend().is_ok());
        let mut fresh = session.queue_pair().unwrap();
        assert_eq!(get(&mut fresh, slab, 0, 6), Ok(b"before".to_vec()));
        session.grant().unwrap();
    });
}

/// Somebody opens connections until the node has no descriptor left for one more: those that wait are not looked at again
/// and again for nothing.
#[test]
fn a_node_without_descriptors_is_idle_and_recovers() {
    let node = Process::start_with(256, "127.0.0.1:0", 64);
    let held: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(node.address()).unwrap()).collect();
    let descriptors = format!("/proc/{}/fd", node.child.id());
    within(PATIENCE, None, "no descriptor is left", || std::fs::read_dir(&descriptors).unwrap().count() >= 64);
    let before = node.had();
    std::thread::sleep(Duration::from_secs(2));
    let (cpu, times) = (node.had().0 - before.0, node.had().1 - before.1);
    assert!(cpu < Duration::from_millis(200) && times < 100, "{cpu:?} of CPU, {times} times, in 2 s of nothing to do");
    drop(held);
    let session = Session::connect(&node.tcp, &options(Transport::Tcp)).unwrap();
    session.grant().unwrap();
}

/// A member that keeps all connections it can have leaves as many to others, and descriptors for
/// slabs.
#[test]
fn who_keeps_connections_leaves_as_many() {
    // Half of the descriptors are for connections.
    let node = Process::start_with(256, "127.0.0.1:0", 128);
    let greedy = Session::connect(&node.tcp, &options(Transport::Tcp)).unwrap();
    let mut queues: Vec<_> = std::iter::from_fn(|| greedy.queue_pair().ok()).collect();
    assert_eq!(queues.len(), 31, "and its control connection");
    assert!(!greedy.standing().is_lost());
    assert!(matches!(Session::connect(&node.tcp, &options(Transport::Tcp)), Err(ConnectError::Full(_))));
    let other = Session::connect(&node.shm, &options(Transport::Shm)).unwrap();
    let slabs = [other.grant().unwrap(), other.grant().unwrap(), greedy.grant().unwrap()];
    assert!(put(&mut queues[30], slabs[2].id, 0, b"served").is_ok());
    queues.clear();
    within(PATIENCE, None, "there is room again", || greedy.queue_pair().is_ok());
}

/// Something between host and node that can be cut, as a middlebox on the way.
struct Middlebox {
    at: SocketAddr,
    open: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Middlebox {
    fn before(node: SocketAddr) -> Middlebox {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let open = Arc::new(AtomicBool::new(true));
        let streams = Arc::new(Mutex::new(Vec::new()));
        let (is_open, all) = (Arc::clone(&open), Arc::clone(&streams));
        std::thread::spawn(move || {
            for host in listener.incoming().flatten() {
                // Under the lock, so that a cut misses none.
                let mut all = all.lock().unwrap();
                if !is_open.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(node) = TcpStream::connect(node) else { continue };
                let pump = |mut from: TcpStream, mut to: TcpStream| {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                };
                all.extend([host.try_clone().unwrap(), node.try_clone().unwrap()]);
                pump(host.try_clone().unwrap(), node.try_clone().unwrap());
                pump(node, host);
            }
        });
        Middlebox { at, open, streams }
    }

    fn cut(&self) {
        let mut streams = self.streams.lock().unwrap();
        self.open.store(false, Ordering::SeqCst);
        for stream in streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn restore(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_cut_connection_that_comes_back_changes_nothing() {
    let node = Process::start(256);
    let middlebox = Middlebox::before(node.address());
    let addr = NodeAddr::Tcp(middlebox.at.to_string());
    // The thread that heals it may be late.
    let options = ConnectOptions { grace: PATIENCE, ..options(Transport::Tcp) };
    let session = Session::connect(&addr, &options).unwrap();
    let slab = session.grant().unwrap().id;
    let mut queue = session.queue_pair().unwrap();
    assert_eq!(put(&mut queue, slab, 0, &[1; 4096]), Ok(0));
    for round in 2..5u8 {
        middlebox.cut();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(1500));
                middlebox.restore();
            });
            assert_eq!(get(&mut queue, slab, 0, 4096), Ok(vec![round - 1; 4096]));
            assert_eq!(put(&mut queue, slab, 0, &[round; 4096]), Ok(0));
            assert!(session.tend().is_ok());
        });
    }
    session.grant().unwrap();
}

#[test]
fn a_cut_connection_that_stays_cut_is_lost_after_the_grace() {
    let node = Process::start(256);
    let middlebox = Middlebox::before(node.address());
    let grace = Duration::from_secs(1);
    let addr = NodeAddr::Tcp(middlebox.at.to_string());
    let session = Session::connect(&addr, &ConnectOptions { grace, ..options(Transport::Tcp) }).unwrap();
    session.grant().unwrap();
    let begun = Instant::now();
    middlebox.cut();
    within(Duration::from_secs(3), None, "lost", || session.tend().is_err());
    assert!(begun.elapsed() >= grace);
    // The node, too, gives up: all four slabs can be had again.
    let other = Session::connect(&node.tcp, &options(Transport::Tcp)).unwrap();
    let mut had = 0;
    within(Duration::from_secs(3), Some(&node), "the memory is given back", || {
        had += other.grant().is_ok() as u32;
        had == 4
    });
}

#[test]
fn a_node_started_anew_has_lost_the_memory() {
    // At an address where no other test asks for a port meanwhile.
    let node = Process::start_at(256, "127.0.0.2:0");
    let session = Session::connect(&node.tcp, &options(Transport::Tcp)).unwrap();
    session.grant().unwrap();
    let at = node.tcp.to_string();
    drop(node);
    let again = Process::start_at(256, &at);
    let mut taken = Lost::by(&[again.pid()]);
    let lost = session.release(farmem_protocol::addr::SlabId(1)).unwrap_err();
    let took = taken.left();
    assert!(lost.reason.contains("started anew"), "{lost}");
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn a_killed_host_gives_its_memory_back_at_once() {
    let node = Process::start(256);
    let NodeAddr::Shm(path) = &node.shm else { panic!() };
    // A member whose process is gone: its socket closes without a word.
    let host = std::os::unix::net::UnixStream::connect(path).unwrap();
    let stream = hello_as_member(host);
    drop(stream);
    let other = Session::connect(&node.shm, &options(Transport::Auto)).unwrap();
    let mut had = 0;
    within(Duration::from_secs(1), Some(&node), "all four slabs can be had", || {
        had += other.grant().is_ok() as u32;
        had == 4
    });
}

/// Joins and takes one slab, by hand.
fn hello_as_member<S: Read + Write>(mut stream: S) -> S {
    let welcome = common::greet(&mut stream, &common::hello([0; 16], 60_000));
    welcome.expect("it is let in");
    common::ask(&mut stream, 1, farmem_protocol::wire::Ask::Grant).expect("a slab");
    stream
}

#[test]
fn whoever_listens_there_is_told_apart() {
    let connect = |at: SocketAddr| Session::connect(&NodeAddr::Tcp(at.to_string()), &options(Transport::Tcp)).err();
    let says = |what: &'static [u8]| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(what);
        });
        connect(at)
    };
    assert!(matches!(says(b"HTTP/1.1 400 Bad Request\r\n\r\n"), Some(ConnectError::NotFarmem(_))));
    assert!(matches!(says(b"-ERR\r\n"), Some(ConnectError::NotFarmem(_))));
    assert!(matches!(says(b""), Some(ConnectError::NotFarmem(_))));
    assert!(matches!(says(b"farmem\x09\x00"), Some(ConnectError::Version { theirs: 9, .. })));
    let named = says(b"farmem\x04\x00\x01\x00").unwrap().to_string();
    let both = format!("speaks version 4 of the protocol, this farmem version {}", farmem_protocol::wire::VERSION);
    assert!(named.contains(&both), "{named}");
    // What a node of version 6 says to any other, as recorded.
    assert!(matches!(says(b"farmem\x06\x00\x02\x00\x01\x00"), Some(ConnectError::Version { theirs: 6, .. })));
    // As above: no other test gets the port when it is free.
    let silent = TcpListener::bind("127.0.0.3:0").unwrap();
    let soon = ConnectOptions { timeout: Duration::from_secs(2), ..options(Transport::Tcp) };
    let unheard = Session::connect(&NodeAddr::Tcp(silent.local_addr().unwrap().to_string()), &soon);
    assert!(matches!(unheard, Err(ConnectError::Silent(_))));
    let nobody = silent.local_addr().unwrap();
    drop(silent);
    assert!(matches!(connect(nobody), Some(ConnectError::Refused(_))));
    let nowhere = NodeAddr::Tcp("no-such-host.invalid:1".into());
    assert!(matches!(Session::connect(&nowhere, &options(Transport::Auto)), Err(ConnectError::Name { .. })));
    let unix = NodeAddr::Shm("/nonexistent/farmem.sock".into());
    assert!(matches!(Session::connect(&unix, &options(Transport::Auto)), Err(ConnectError::Refused(_))));
}

#[test]
fn the_node_tells_wrong_peers_apart() {
    let node = Process::start(128);
    use farmem_protocol::wire::{Greeting, VERSION, Verdict};
    let send = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(node.address()).unwrap();
        stream.write_all(bytes).unwrap();
        let mut said = Vec::new();
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let _ = stream.read_to_end(&mut said);
        said
    };
    assert_eq!(send(b"GET / HTTP/1.1\r\n\r\n"), b"");
    let answer = send(b"farmem\xff\x7fwhat a later version may say");
    let refused = Greeting::Refused(Verdict::Version).frame();
    assert_eq!(answer, refused.as_bytes());
    assert_eq!(answer[6..8], VERSION.to_le_bytes());
    // The Hello of a store's front end of version 6, as recorded.
    let former = b"farmem\x06\x00\x1d\x00\x00\x5a\x57\xab\x8b\x51\x60\xa4\x72\xf7\xd5\xb9\xee\x0b\x76\x32\x70\x92\
        \x99\x01\x88\x27\x00\x00\x00\x00\x00\x00\x00";
    assert_eq!(send(former), refused.as_bytes());
    // And goes on.
    assert!(Session::connect(&node.tcp, &options(Transport::Tcp)).unwrap().grant().is_ok());
    assert_eq!(SLAB_BYTES, 64 << 20);
}
