//! A tenant that asks seldom is served beside one whose many connections leave the node no pause. Prints how long it
//! waits, alone and beside. A tenant with a rate moves no more bytes than that.
//!
//! The node has a CPU of its own where there are two and `taskset` is there: hosts are other machines in earnest. The
//! flood takes of the other CPU what the quiet reader leaves. FARMEM_TEST_LONG reads more often, for a 99th percentile
//! that means something, and goes before all other programs of the machine, if root starts it.

mod common;

use common::{ask, prove};
use farmem_contract::get;
use farmem_fabric::{ConnectOptions, NodeAddr, QueuePair, Session, Transport, Trust};
use farmem_memory::tokens::{Entry, Store};
use farmem_memory::{Config, Node};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::wire::{Ask, Batch, Join, Known, MAX_VERBS, Op, Purpose, Reply, Verb};
use farmem_trust::{Key, Token};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Connections of the loud tenant.
const LOUD: usize = 64;
/// Bytes of each of its READs.
const LONG: u32 = 4096;
/// READs of the quiet tenant, and the time between two of them.
const READS: usize = 100;
const LONG_READS: usize = 2000;
/// How long they may take together, on a machine that is busy with other things.
const WITHIN: Duration = Duration::from_secs(60);
const THINKS: Duration = Duration::from_micros(300);

fn key(store: &Path, tenant: &str, seed: u8) -> Key {
    let token = Token::new(tenant, &[seed; 40]).unwrap();
    let add = |store: &mut Store| {
        store.tokens.push(Entry::new(&token, None));
        Ok(())
    };
    Store::change(store, add).unwrap();
    token.key()
}

/// CPU time of the node's workers so far.
fn workers_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
    let text = |path: &Path, name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
    let workers = tasks.filter(|task| text(task, "comm").starts_with("worker "));
    let ns = workers.filter_map(|task| text(&task, "schedstat").split(' ').next()?.parse::<u64>().ok());
    Duration::from_nanos(ns.sum())
}

/// The calling thread, and all that it starts, run on this CPU from here on. False where that cannot be had.
fn run_on(cpu: &str) -> bool {
    let two = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) || cpu != "0";
    two && by_util_linux("taskset", &["-pc", cpu])
}

/// Has a command of util-linux change the calling thread, which it names last.
fn by_util_linux(command: &str, arguments: &[&str]) -> bool {
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let mut command = Command::new(command);
    command.args(arguments).arg(own.file_name().unwrap()).stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn join(node: &Node, run: u8, token: Key) -> Session {
    let options = ConnectOptions {
        timeout: Duration::from_secs(30),
        grace: Duration::from_secs(5),
        run: [run; 16],
        pid: std::process::id(),
        transport: Transport::Tcp,
        // The node's time goes to moving bytes alone then.
        trust: Trust { token: Some(token), plain: true },
        ..ConnectOptions::default()
    };
    Session::connect(&node.addresses()[0], &options).unwrap()
}

/// Only one of the tests at a time: one floods, and the other looks at the workers' time.
static ALONE: Mutex<()> = Mutex::new(());

fn long() -> bool {
    std::env::var_os("FARMEM_TEST_LONG").is_some()
}

/// How often the quiet tenant reads.
fn reads() -> usize {
    if long() { LONG_READS } else { READS }
}

/// READs without an end: as many as the sockets hold. The library's queue pairs wait for their answers.
struct Stream {
    socket: TcpStream,
    verbs: Vec<u8>,
    batches: u64,
    /// Of the batches that were begun, what has not gone.
    going: Vec<u8>,
}

impl Stream {
    fn goes_on(&mut self, answers: &mut [u8]) {
        if self.going.is_empty() {
            let first = (self.batches * MAX_VERBS as u64).into();
            let head = Batch { count: (MAX_VERBS as u16).into(), zero: 0.into(), bytes: 0.into(), first };
            self.going.extend(head.as_bytes());
            self.going.extend(&self.verbs);
            self.batches += 1;
        }
        let done = |done: std::io::Result<usize>| match done {
            Err(e) if e.kind() == ErrorKind::WouldBlock => 0,
            done => done.unwrap(),
        };
        self.going.drain(..done(self.socket.write(&self.going)));
        done(self.socket.read(answers));
    }
}

/// The loud tenant's connections, and that by which it has joined.
fn loud_streams(node: &Node, key: &Key) -> (TcpStream, Vec<Stream>) {
    let at = node.addresses()[0].to_string();
    let mut control = TcpStream::connect(&at).unwrap();
    let join = Join { run: [2; 16], pid: 4711, grace_ms: 1000, ..Join::default() };
    let welcome = prove(&mut control, Purpose::Join(join), key);
    let Ok(Reply::Slab(slab)) = ask(&mut control, 2, Ask::Grant) else { panic!("no slab") };
    let known = Known { secret: welcome.secret, incarnation: welcome.incarnation };
    let verb = Verb {
        op: Op::Read as u8,
        zero: [0; 3],
        len: LONG.into(),
        key: farmem_protocol::key::Key::from(slab).0.into(),
        offset: 0.into(),
    };
    let stream = |queue: usize| {
        let mut socket = TcpStream::connect(&at).unwrap();
        prove(&mut socket, Purpose::Attach(known, queue as u64), key);
        socket.set_nonblocking(true).unwrap();
        Stream { socket, verbs: verb.as_bytes().repeat(MAX_VERBS), batches: 0, going: Vec::new() }
    };
    let streams = (0..LOUD).map(stream).collect();
    (control, streams)
}

/// A member with a slab, ready to read from it.
struct Reader {
    slab: SlabId,
    queue: QueuePair,
    _session: Session,
}

impl Reader {
    fn new(node: &Node, run: u8, token: Key) -> Reader {
        let session = join(node, run, token);
        Reader { slab: session.grant().unwrap().id, queue: session.queue_pair().unwrap(), _session: session }
    }
}

/// Of READs of a page, sorted: how long each took, and how many of others the node served meanwhile.
struct Waits {
    us: Vec<u128>,
    others: Vec<u64>,
}

impl Waits {
    fn of(node: &Node, reader: &mut Reader) -> Waits {
        let Reader { slab, queue, .. } = reader;
        let served = || node.nic().tally.reads.load(Ordering::Relaxed);
        let (mut us, mut others) = (Vec::new(), Vec::new());
        let end = Instant::now() + WITHIN;
        while us.len() < reads() && Instant::now() < end {
            std::thread::sleep(THINKS);
            let (begun, before) = (Instant::now(), served());
            assert_eq!(get(queue, *slab, 0, 4096), Ok(vec![0; 4096]));
            us.push(begun.elapsed().as_micros());
            others.push(served() - before);
        }
        us.sort_unstable();
        others.sort_unstable();
        Waits { us, others }
    }

    fn text(&self) -> String {
        let at = |of: usize| self.us.len() * of / 100;
        let (us, others) = (&self.us, &self.others);
        format!(
            "{} {} {} µs, {} {} {} others' READs",
            us[at(50)],
            us[at(90)],
            us[at(99)],
            others[at(50)],
            others[at(90)],
            others[at(99)]
        )
    }
}

#[test]
fn a_quiet_tenant_is_served_beside_a_flooding_one() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let store = std::env::temp_dir().join(format!("farmem-fair-{}.toml", std::process::id()));
    let (loud, quiet) = (key(&store, "loud", 1), key(&store, "quiet", 2));
    let mut config = Config::new(8 * SLAB_BYTES, vec![NodeAddr::Tcp("127.0.0.1:0".into())]);
    config.tokens = Some(store.clone());
    let apart = run_on("0");
    let first = long() && by_util_linux("renice", &["-n", "-20", "-p"]);
    let node = Node::start(&config).unwrap();
    let apart = apart && run_on("1");
    std::fs::remove_file(&store).unwrap();

    let (mut member, mut other) = (Reader::new(&node, 1, loud), Reader::new(&node, 3, quiet));
    let _ = first && by_util_linux("chrt", &["-f", "-p", "1"]);
    let alone = Waits::of(&node, &mut other);
    let _ = first && by_util_linux("chrt", &["-o", "-p", "0"]);
    let (_control, mut streams) = loud_streams(&node, &loud);
    let stop = AtomicBool::new(false);
    let (begun, before) = (Instant::now(), node.nic().tally.reads.load(Ordering::Relaxed));
    let (same, own) = std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            let mut answers = vec![0; 1 << 20];
            // It gives way to the reader at once.
            let _ = apart && !first && by_util_linux("chrt", &["-i", "-p", "0"]);
            while !stop.load(Ordering::Relaxed) {
                streams.iter_mut().for_each(|stream| stream.goes_on(&mut answers));
            }
        });
        let _ = first && by_util_linux("chrt", &["-f", "-p", "1"]);
        // Of the loud tenant itself: its connections are served as their events come.
        let same = Waits::of(&node, &mut member);
        let own = Waits::of(&node, &mut other);
        stop.store(true, Ordering::Relaxed);
        (same, own)
    });
    let flood = (node.nic().tally.reads.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64();
    println!("{flood:.0} READs a second in all");
    let all =
        format!("50, 90, 99 %: alone {}; of the loud tenant {}; of its own {}", alone.text(), same.text(), own.text());
    println!(
        "{all}; the node has {}, and {} first",
        if apart { "a CPU of its own" } else { "the CPUs of its hosts" },
        if first { "goes" } else { "does not go" }
    );
    // How long that takes says little on a machine that is busy with other things. The order of turns is tested by itself.
    let p99 = |waits: &Waits| waits.us[waits.us.len() * 99 / 100].max(1) as f64;
    println!("the quiet tenant's 99 %: × {:.2} alone", p99(&own) / p99(&alone));
    assert!(own.us.len() == reads() && same.us.len() == reads(), "{all}");
}

#[test]
fn a_tenant_moves_no_more_than_its_rate() {
    const RATE: u64 = 4 << 20;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let store = std::env::temp_dir().join(format!("farmem-rate-{}.toml", std::process::id()));
    let (slow, free) = (key(&store, "slow", 1), key(&store, "free", 2));
    let limit = |store: &mut Store| {
        store.tenants.entry("slow".to_owned()).or_default().rate = Some(RATE);
        Ok(())
    };
    Store::change(&store, limit).unwrap();
    let mut config = Config::new(8 * SLAB_BYTES, vec![NodeAddr::Tcp("127.0.0.1:0".into())]);
    config.tokens = Some(store.clone());
    let node = Node::start(&config).unwrap();
    std::fs::remove_file(&store).unwrap();
    let (mut limited, mut other) = (Reader::new(&node, 1, slow), Reader::new(&node, 3, free));
    let page = |reader: &mut Reader, len: u32| {
        assert_eq!(get(&mut reader.queue, reader.slab, 0, len as usize).map(|had| had.len()), Ok(len as usize))
    };
    let (begun, cpu) = (Instant::now(), workers_time());
    let mut read = 0;
    while begun.elapsed() < Duration::from_millis(1500) {
        page(&mut limited, 64 << 10);
        read += 64 << 10;
        // Nobody waits with it.
        let before = Instant::now();
        page(&mut other, 4096);
        assert!(before.elapsed() < Duration::from_secs(5));
    }
    let (took, spent) = (begun.elapsed(), workers_time() - cpu);
    // A burst at the beginning, and what was under way at the end.
    let most = (took.as_secs_f64() * RATE as f64) as u64 + (RATE / 25) + (256 << 10);
    assert!(read <= most, "{read} bytes in {took:?}");
    let pace =
        |name: &str| node.nic().tenants.all().into_iter().find(|tenant| tenant.name.to_string() == name).unwrap();
    assert!(pace("slow").pace.moved() >= read && pace("free").pace.rate() == u64::MAX);
    // A connection that is put off is not looked at again and again.
    println!("{read} bytes in {took:?}, {spent:?} of the workers' time");
    assert!(spent < took / 2, "{spent:?} of {took:?}");
}
