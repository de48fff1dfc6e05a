//! What a READ of 4 KiB over TCP costs, against the bare socket doing the same.
//!
//! In one run, alternating, so that the machine's mood falls on both: a bare
//! ping-pong (32 bytes there, 4 KiB back, both ends spinning on a non-blocking
//! receive), the same blocking, and a queue pair's READ of one page; then READs in
//! batches, and what the node burns when nobody asks.
//!
//! `cargo run --release -p farmem-memory --example roundtrip [ROUNDS] [one-core]`

use farmem_fabric::{ConnectOptions, NodeAddr, QueuePair, Session, Transport};
use farmem_memory::{Config, Node};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const BLOCK: usize = 2000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|a| a == "node") {
        return node();
    }
    let rounds: usize = args.iter().find_map(|a| a.parse().ok()).unwrap_or(10);
    let mut child = std::process::Command::new("/proc/self/exe")
        .arg("node")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("start the node");
    let mut line = String::new();
    let out = child.stdout.take().expect("its output");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("its addresses");
    let mut words = line.split_whitespace();
    let (farmem, spinning, blocking) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());

    let options = ConnectOptions {
        timeout: Duration::from_secs(5),
        grace: Duration::from_secs(5),
        run: [1; 16],
        pid: std::process::id(),
        transport: Transport::Tcp,
        ..ConnectOptions::default()
    };
    let session = Session::connect(&NodeAddr::Tcp(farmem.into()), &options).expect("connect");
    let slab = session.grant().expect("grant").id;
    let mut queue = session.queue_pair().expect("queue pair");
    let mut page = vec![0u8; 64 * PAGE];
    let mut read = |queue: &mut QueuePair, n: usize| {
        let mut done = Vec::with_capacity(n);
        for i in 0..n {
            let offset = (i * 37 % 16384 * PAGE) as u64;
            #[allow(unsafe_code)]
            // SAFETY: the buffer outlives the verbs, which are awaited here.
            unsafe {
                queue.read(i as u64, slab, offset, page[i * PAGE..].as_mut_ptr(), PAGE as u32)
            };
        }
        queue.doorbell().expect("doorbell");
        while done.len() < n {
            queue.wait(&mut done, Duration::from_secs(1)).expect("wait");
        }
    };
    let (mut bare, mut asleep) = (connect(spinning, true), connect(blocking, false));
    let mut times: [Vec<f64>; 3] = Default::default();
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        let a = median(|| ping(&mut bare));
        let b = median(|| read(&mut queue, 1));
        let c = median(|| ping(&mut asleep));
        ratios.push(b / a);
        for (all, one) in times.iter_mut().zip([a, b, c]) {
            all.push(one);
        }
    }
    let [a, b, c] = times.map(|mut t| middle(&mut t));
    println!("bare socket, spinning   {a:6.1} µs");
    println!("farmem READ             {b:6.1} µs   × {:.2} (median of {rounds} ratios)", middle(&mut ratios));
    println!("bare socket, blocking   {c:6.1} µs");
    for n in [8, 32, 64] {
        let each = median(|| read(&mut queue, n)) / n as f64;
        println!("READs in batches of {n:2}  {each:6.2} µs a page, {:.2} GB/s", PAGE as f64 / each / 1000.0);
    }
    std::thread::sleep(Duration::from_millis(100));
    let before = cpu_ticks(child.id());
    std::thread::sleep(Duration::from_secs(5));
    println!("node, idle for 5 s      {} ms of CPU", (cpu_ticks(child.id()) - before) * 10);
    child.kill().expect("end the node");
    child.wait().expect("end the node");
}

fn median(mut once: impl FnMut()) -> f64 {
    let mut times = Vec::with_capacity(BLOCK);
    for _ in 0..BLOCK {
        let begun = Instant::now();
        once();
        times.push(begun.elapsed().as_nanos() as f64 / 1000.0);
    }
    middle(&mut times)
}

fn middle(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn connect(at: &str, spin: bool) -> TcpStream {
    let stream = TcpStream::connect(at).expect("connect");
    stream.set_nodelay(true).expect("nodelay");
    stream.set_nonblocking(spin).expect("nonblocking");
    stream
}

fn ping(stream: &mut TcpStream) {
    stream.write_all(&[1; 32]).expect("send");
    fill(stream, &mut [0; PAGE]);
}

/// False at the end of the stream.
fn fill(stream: &mut TcpStream, mut into: &mut [u8]) -> bool {
    while !into.is_empty() {
        match stream.read(into) {
            Ok(0) => return false,
            Ok(n) => into = &mut into[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(e) => panic!("{e}"),
        }
    }
    true
}

/// The other end of all three: a node and two bare echoes.
fn node() {
    let config = Config::new(64 << 20, vec![NodeAddr::Tcp("127.0.0.1:0".into())]);
    let node = Node::start(&config).expect("start");
    let echo = |spin: bool| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let at = listener.local_addr().expect("address");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accept");
            stream.set_nodelay(true).expect("nodelay");
            // Spins only while pinged, or it would steal the node's CPU.
            let mut request = [0; 32];
            loop {
                stream.set_nonblocking(false).expect("blocking");
                if !fill(&mut stream, &mut request) {
                    return;
                }
                stream.write_all(&[2; PAGE]).expect("send");
                stream.set_nonblocking(spin).expect("nonblocking");
                let mut quiet = Instant::now();
                while spin && quiet.elapsed() < Duration::from_millis(1) {
                    if let Ok(n) = stream.read(&mut request)
                        && n > 0
                    {
                        stream.write_all(&[2; PAGE]).expect("send");
                        quiet = Instant::now();
                    }
                }
            }
        });
        at
    };
    println!("{} {} {}", node.addresses()[0], echo(true), echo(false));
    loop {
        std::thread::park();
    }
}

/// User and system time of a process, in ticks of 10 ms.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("its times");
    stat.split_whitespace().skip(13).take(2).map(|t| t.parse::<u64>().expect("a number")).sum()
}
