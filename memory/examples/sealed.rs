//! What encryption costs a READ over TCP: the same READs, encrypted and plain, alternating in one
//! run.
//!
//! Time is what a reader waits. CPU time is that of both processes, which a busy machine changes
//! less.
//!
//! `cargo run --release -p farmem-memory --example sealed [ROUNDS]`

use farmem_fabric::{ConnectOptions, NodeAddr, QueuePair, Session, Transport, Trust};
use farmem_memory::tokens::{Entry, Store};
use farmem_memory::{Config, Node};
use farmem_protocol::addr::SlabId;
use farmem_trust::{Key, Token};
use std::io::BufRead;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// READs of a block.
const BLOCK: usize = 3200;

struct Reader {
    _session: Session,
    slab: SlabId,
    queue: QueuePair,
    pages: Vec<u8>,
    at: usize,
}

fn token() -> Token {
    Token::new("example", &[7; 40]).expect("a tenant's name")
}

impl Reader {
    fn join(node: &str, key: Key, plain: bool) -> Reader {
        let options = ConnectOptions {
            timeout: Duration::from_secs(5),
            grace: Duration::from_secs(5),
            run: [plain as u8 + 1; 16],
            pid: std::process::id(),
            transport: Transport::Tcp,
            trust: Trust { token: Some(key), plain },
            ..ConnectOptions::default()
        };
        let session = Session::connect(&NodeAddr::Tcp(node.into()), &options).expect("connect");
        let slab = session.grant().expect("grant").id;
        let mut queue = session.queue_pair().expect("queue pair");
        let page = vec![5; PAGE];
        for at in 0..16384 {
            #[allow(unsafe_code)]
            // SAFETY: the page outlives the verb, which is awaited here.
            unsafe {
                queue.write(0, slab, at * PAGE as u64, page.as_ptr(), PAGE as u32)
            };
            finish(&mut queue, 1);
        }
        Reader { _session: session, slab, queue, pages: vec![0; 32 * PAGE], at: 0 }
    }

    /// Random pages, so many by one doorbell.
    fn read(&mut self, together: usize) {
        for n in 0..together {
            self.at = (self.at * 1021 + 7) % 16384;
            #[allow(unsafe_code)]
            // SAFETY: the buffer outlives the verbs, which are awaited here.
            unsafe {
                let into = self.pages[n * PAGE..].as_mut_ptr();
                self.queue.read(n as u64, self.slab, (self.at * PAGE) as u64, into, PAGE as u32);
            }
        }
        finish(&mut self.queue, together);
    }
}

fn finish(queue: &mut QueuePair, verbs: usize) {
    let mut done = Vec::with_capacity(verbs);
    queue.doorbell().expect("doorbell");
    while done.len() < verbs {
        queue.wait(&mut done, Duration::from_secs(1)).expect("wait");
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "node") {
        return node();
    }
    let rounds: usize = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(10);
    let mut child = Command::new("/proc/self/exe").arg("node").stdout(Stdio::piped()).spawn().expect("start the node");
    let mut at = String::new();
    std::io::BufReader::new(child.stdout.take().expect("its output")).read_line(&mut at).expect("its address");
    let key = token().key();
    let mut readers = [false, true].map(|plain| Reader::join(at.trim(), key, plain));
    for together in [1, 8, 32] {
        let (mut waits, mut times) = (Vec::new(), Vec::new());
        let mut all = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            let [sealed, plain] = readers.each_mut().map(|reader| block(reader, together, child.id()));
            waits.push(sealed.0 / plain.0);
            times.push(sealed.1 / plain.1);
            all[0].push(sealed.0);
            all[1].push(plain.0);
        }
        let [sealed, plain] = all.map(|mut all| middle(&mut all));
        println!(
            "{together:2} by a doorbell: {sealed:5.2} µs a page encrypted, {plain:5.2} plain: × {:.3}; CPU time × {:.3}",
            middle(&mut waits),
            middle(&mut times)
        );
    }
    child.kill().expect("end the node");
    child.wait().expect("end the node");
}

/// The median wait for a page in µs, and the CPU time of a page in both processes, in µs.
fn block(reader: &mut Reader, together: usize, node: u32) -> (f64, f64) {
    let before = cpu_ns(node) + cpu_ns(std::process::id());
    let mut waits = Vec::with_capacity(BLOCK / together);
    for _ in 0..BLOCK / together {
        let begun = Instant::now();
        reader.read(together);
        waits.push(begun.elapsed().as_nanos() as f64 / 1000.0 / together as f64);
    }
    let spent = cpu_ns(node) + cpu_ns(std::process::id()) - before;
    (middle(&mut waits), spent as f64 / 1000.0 / BLOCK as f64)
}

fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn node() {
    let store = std::env::temp_dir().join(format!("farmem-sealed-example-{}.toml", std::process::id()));
    let issue = |store: &mut Store| {
        store.tokens.push(Entry::new(&token(), None));
        Ok(())
    };
    Store::change(&store, issue).expect("a store of tokens");
    let mut config = Config::new(128 << 20, vec![NodeAddr::Tcp("127.0.0.1:0".into())]);
    config.tokens = Some(store.clone());
    let node = Node::start(&config).expect("start");
    let _ = std::fs::remove_file(store);
    println!("{}", node.addresses()[0]);
    loop {
        std::thread::park();
    }
}

/// CPU time of all threads of a process.
fn cpu_ns(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("schedstat")).ok();
    let first = |text: String| text.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok());
    tasks.flatten().filter_map(of).filter_map(first).sum()
}
