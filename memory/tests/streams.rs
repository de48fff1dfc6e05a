//! Peers whose READs never end leave a node's workers no pause: who asks seldom, and who comes anew, is answered all the same.

mod common;

use common::{ask, greet, hello};
use farmem_contract::get;
use farmem_fabric::{ConnectOptions, NodeAddr, Session, Transport};
use farmem_memory::{Config, Node};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::key::Key;
use farmem_protocol::wire::{Ask, Batch, Hello, Known, MAX_VERBS, Op, Purpose, Reply, Verb};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// As many as a worker looks at without asking epoll.
const STREAMS_A_WORKER: usize = 4;
/// Batches that a stream writes at once: as much as a worker takes.
const BATCHES: u64 = 20;
/// How long an answer may take. It takes a worker milliseconds, who shares the CPUs with the streams; an eighth of a second or
/// half of one where others take most of them.
const SOON: Duration = Duration::from_secs(2);
/// The streams end then: who was not answered before is, and says how long it took.
const LONG: Duration = Duration::from_secs(20);
const ROUNDS: usize = 4;

/// A member by hand: the library's queue pairs wait for their answers.
struct Member {
    node: String,
    known: Known,
    slab: SlabId,
    _control: TcpStream,
}

impl Member {
    fn join(node: &Node) -> Member {
        let node = node.addresses()[0].to_string();
        let mut control = TcpStream::connect(&node).unwrap();
        let welcome = greet(&mut control, &hello([3; 16], 0)).unwrap();
        let Ok(Reply::Slab(slab)) = ask(&mut control, 2, Ask::Grant) else { panic!() };
        let known = Known { secret: welcome.secret, incarnation: welcome.incarnation };
        Member { node, known, slab, _control: control }
    }

    fn stream(&self, queue: usize) -> Stream {
        let mut socket = TcpStream::connect(&self.node).unwrap();
        greet(&mut socket, &Hello::new(Purpose::Attach(self.known, queue as u64))).unwrap();
        socket.set_nonblocking(true).unwrap();
        let key = Key::from(self.slab).0.into();
        let verb = Verb { op: Op::Read as u8, zero: [0; 3], len: 8.into(), key, offset: 0.into() };
        Stream { socket, verbs: verb.as_bytes().repeat(MAX_VERBS), batches: 0, going: Vec::new() }
    }
}

/// READs without an end: as many as the sockets hold.
struct Stream {
    socket: TcpStream,
    verbs: Vec<u8>,
    batches: u64,
    /// Of the batches that were begun, what has not gone.
    going: Vec<u8>,
}

impl Stream {
    fn goes_on(&mut self, answers: &mut [u8]) -> std::io::Result<()> {
        if self.going.is_empty() {
            for _ in 0..BATCHES {
                let first = (self.batches * MAX_VERBS as u64).into();
                let head = Batch { count: (MAX_VERBS as u16).into(), zero: 0.into(), bytes: 0.into(), first };
                self.going.extend(head.as_bytes());
                self.going.extend(&self.verbs);
                self.batches += 1;
            }
        }
        let wrote = match self.socket.write(&self.going) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => 0,
            wrote => wrote?,
        };
        self.going.drain(..wrote);
        match self.socket.read(answers) {
            Err(e) if e.kind() == ErrorKind::WouldBlock && wrote == 0 => std::thread::yield_now(),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            read => drop(read?),
        }
        Ok(())
    }
}

fn join(node: &Node) -> Session {
    let options = ConnectOptions {
        timeout: 2 * LONG,
        grace: Duration::from_secs(1),
        run: [4; 16],
        pid: std::process::id(),
        transport: Transport::Tcp,
        ..ConnectOptions::default()
    };
    Session::connect(&node.addresses()[0], &options).unwrap()
}

/// How long each worker, and last the calling thread, has waited for a CPU.
fn waited() -> Vec<Duration> {
    let read = |thread: &Path, what| std::fs::read_to_string(thread.join(what)).unwrap_or_default();
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    let workers = threads.filter(|thread| read(thread, "comm").starts_with("worker "));
    let of = |thread: PathBuf| read(&thread, "schedstat").split(' ').nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0);
    workers.chain([PathBuf::from("/proc/thread-self")]).map(|thread| Duration::from_nanos(of(thread))).collect()
}

/// How long it takes. Left out is how long the calling thread, and the worker that waits longest,
/// wait for a CPU meanwhile.
fn took(what: impl FnOnce()) -> Duration {
    let (begun, before) = (Instant::now(), waited());
    what();
    let mut waits: Vec<Duration> = waited().iter().zip(before).map(|(now, then)| now.saturating_sub(then)).collect();
    let own = waits.pop().unwrap_or_default();
    begun.elapsed().saturating_sub(own + waits.into_iter().max().unwrap_or_default())
}

#[test]
fn who_asks_seldom_is_answered_while_others_leave_no_pause() {
    let node = Node::start(&Config::new(4 * SLAB_BYTES, vec![NodeAddr::Tcp("127.0.0.1:0".into())])).unwrap();
    let workers = std::thread::available_parallelism().unwrap().get().min(4);
    let member = Member::join(&node);
    let mut streams: Vec<Vec<Stream>> = (0..workers).map(|_| Vec::new()).collect();
    (0..workers * STREAMS_A_WORKER).for_each(|i| streams[i % workers].push(member.stream(i)));
    let seldom = join(&node);
    let slab = seldom.grant().unwrap().id;
    let mut queue = seldom.queue_pair().unwrap();
    get(&mut queue, slab, 0, 8).unwrap();

    let (begun, stop) = (Instant::now(), AtomicBool::new(false));
    let goes_on = || !stop.load(Ordering::Relaxed) && begun.elapsed() < LONG;
    let (mut of_seldom, mut of_new) = (Vec::new(), Vec::new());
    let read = || node.nic().tally.reads.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for mut streams in streams {
            let goes_on = &goes_on;
            scope.spawn(move || {
                let mut answers = vec![0; 1 << 20];
                while goes_on() {
                    streams.iter_mut().for_each(|stream| stream.goes_on(&mut answers).unwrap());
                }
            });
        }
        for _ in 0..ROUNDS {
            // Whoever has asked is looked at like a stream until something has come 64 times from others, which is so many READs.
            let before = read();
            while goes_on() && read() - before < 2 * 64 * BATCHES * MAX_VERBS as u64 * workers as u64 {
                std::thread::sleep(Duration::from_millis(1));
            }
            of_seldom.push(took(|| drop(get(&mut queue, slab, 0, 8).unwrap())));
            of_new.push(took(|| {
                let session = join(&node);
                let mut queue = session.queue_pair().unwrap();
                let slab = session.grant().unwrap().id;
                get(&mut queue, slab, 0, 8).unwrap();
            }));
        }
        println!("{} READs in {:?}; seldom {of_seldom:?}, new {of_new:?}", read(), begun.elapsed());
        stop.store(begun.elapsed() < LONG, Ordering::Relaxed);
    });
    assert!(of_seldom.iter().all(|&took| took < SOON), "{of_seldom:?}");
    assert!(of_new.iter().all(|&took| took < SOON), "{of_new:?}");
    assert!(stop.load(Ordering::Relaxed), "what was asked last was asked when nobody streamed any more");
}
