//! The encrypted wire between a host and a node, and somebody on the path who reads, changes, drops, repeats, swaps, cuts
//! and mixes what passes.

mod common;

use common::receive;
use farmem_contract::{self as contract, Subject, finish, get, put};
use farmem_fabric::{ConnectOptions, NodeAddr, QueuePair, Session, Transport, Trust};
use farmem_memory::tokens::{Entry, Store};
use farmem_memory::{Config, Node};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::wire::{Cipher, Greeting, Hello, Proof, Purpose};
use farmem_trust::{Key, Token};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A node with a token.
struct Guarded {
    node: Node,
    store: PathBuf,
    key: Key,
}

impl Guarded {
    fn start(slabs: u64) -> Guarded {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("farmem-sealed-{}-{}.toml", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let store = std::env::temp_dir().join(name);
        let token = Token::new("analytics", &[5; 40]).unwrap();
        Store::change(&store, |store| {
            store.tokens.push(Entry::new(&token, None));
            Ok(())
        })
        .unwrap();
        let mut config = Config::new(slabs * SLAB_BYTES, vec![NodeAddr::Tcp("127.0.0.1:0".into())]);
        config.tokens = Some(store.clone());
        Guarded { node: Node::start(&config).unwrap(), store, key: token.key() }
    }

    fn at(&self) -> String {
        self.node.addresses()[0].to_string()
    }

    fn join(&self, at: &str, plain: bool) -> Session {
        let options = ConnectOptions {
            timeout: Duration::from_secs(10),
            grace: Duration::from_secs(10),
            run: [1; 16],
            pid: std::process::id(),
            transport: Transport::Tcp,
            trust: Trust { token: Some(self.key), plain },
            ..ConnectOptions::default()
        };
        let session = Session::connect(&NodeAddr::Tcp(at.to_owned()), &options).unwrap();
        assert_eq!(session.is_sealed(), !plain);
        session
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.store);
    }
}

/// Who sent a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum From {
    Host,
    Node,
}

/// A record on its way: whose, and its number on its connection.
struct Passing<'a> {
    from: From,
    number: usize,
    record: &'a [u8],
}

/// What goes on in a record's place, and whether the connection ends then.
type Meddler = Box<dyn FnMut(&Passing<'_>) -> (Vec<u8>, bool) + Send>;

/// What becomes of a record.
enum Step {
    /// It passes.
    Pass,
    /// It does not pass now.
    Hold,
    /// These bytes pass, and all that follows.
    Instead(Vec<u8>),
    /// These bytes pass, and the connection ends.
    End(Vec<u8>),
}

/// Somebody on the path. Connections of queue pairs are meddled with, others only heard.
struct Path {
    at: String,
    heard: Arc<Mutex<Vec<u8>>>,
    meddler: Arc<Mutex<Meddler>>,
}

impl Path {
    fn to(node: String) -> Path {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let path = Path {
            at: listener.local_addr().unwrap().to_string(),
            heard: Arc::default(),
            meddler: Arc::new(Mutex::new(Box::new(|passing| (passing.record.to_vec(), false)))),
        };
        let (heard, meddler) = (Arc::clone(&path.heard), Arc::clone(&path.meddler));
        let latest = Arc::default();
        std::thread::spawn(move || {
            for host in listener.incoming() {
                let (Ok(host), Ok(node)) = (host, TcpStream::connect(&node)) else { return };
                let _ = (host.set_nodelay(true), node.set_nodelay(true));
                let _ = pass_hello(host, node, &heard, &meddler, &latest);
            }
        });
        path
    }

    fn meddle(&self, how: impl FnMut(&Passing<'_>) -> (Vec<u8>, bool) + Send + 'static) {
        *self.meddler.lock().unwrap() = Box::new(how);
    }

    fn leave_alone(&self) {
        self.meddle(|passing| (passing.record.to_vec(), false));
    }
}

/// The connection of a queue pair that came last. Records of one before it may still be on their way, and nobody notices
/// what becomes of these: they are not meddled with.
#[derive(Default)]
struct Latest(AtomicU64);

impl Latest {
    fn another(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn is(&self, number: u64) -> bool {
        self.0.load(Ordering::SeqCst) == number
    }
}

/// Passes all up to the Welcome, then both ways at once. `None`: it ends before.
fn pass_hello(
    mut host: TcpStream,
    mut node: TcpStream,
    heard: &Arc<Mutex<Vec<u8>>>,
    meddler: &Arc<Mutex<Meddler>>,
    latest: &Arc<Latest>,
) -> Option<()> {
    let hello = receive(&mut host, Hello::read)?;
    let is_sealed = hello.credential.is_some_and(|named| named.cipher != Cipher::Plain);
    let is_queue = matches!(hello.purpose, Purpose::Attach(..)) && is_sealed;
    let say = |to: &mut TcpStream, bytes: &[u8]| {
        heard.lock().unwrap().extend_from_slice(bytes);
        to.write_all(bytes).ok()
    };
    say(&mut node, hello.frame().as_bytes())?;
    say(&mut host, receive(&mut node, Greeting::read)?.frame().as_bytes())?;
    say(&mut node, receive(&mut host, Proof::read)?.frame().as_bytes())?;
    say(&mut host, receive(&mut node, Greeting::read)?.frame().as_bytes())?;
    let own = if is_queue { latest.another() } else { 0 };
    for (from, mut one, mut other) in
        [(From::Host, host.try_clone().ok()?, node.try_clone().ok()?), (From::Node, node, host)]
    {
        let (heard, meddler, latest) = (Arc::clone(heard), Arc::clone(meddler), Arc::clone(latest));
        std::thread::spawn(move || {
            let mut number = 0;
            while let Some(record) = if is_queue { next_record(&mut one) } else { next_bytes(&mut one) } {
                heard.lock().unwrap().extend_from_slice(&record);
                let (passed, ends) = match is_queue && latest.is(own) {
                    true => (meddler.lock().unwrap())(&Passing { from, number, record: &record }),
                    false => (record, false),
                };
                if other.write_all(&passed).is_err() || ends {
                    break;
                }
                number += 1;
            }
            let _ = (one.shutdown(Shutdown::Both), other.shutdown(Shutdown::Both));
        });
    }
    Some(())
}

fn next_record(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut record = vec![0; 4];
    from.read_exact(&mut record).ok()?;
    let len = u32::from_le_bytes(record[..4].try_into().unwrap()) as usize;
    record.resize(4 + len + 16, 0);
    from.read_exact(&mut record[4..]).ok()?;
    Some(record)
}

fn next_bytes(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 65536];
    let n = from.read(&mut bytes).ok().filter(|n| *n > 0)?;
    bytes.truncate(n);
    Some(bytes)
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 17 + at / 251) as u8).collect()
}

#[test]
fn the_encrypted_wire_holds_the_contract() {
    let here = Guarded::start(contract::SLABS as u64);
    contract::hold(&Subject {
        connect: &|options| {
            let options = ConnectOptions { transport: Transport::Tcp, trust: here.key.into(), ..options.clone() };
            let session = Session::connect(&here.node.addresses()[0], &options)?;
            assert!(session.is_sealed());
            Ok(session)
        },
        lent: &|| here.node.nic().lent(),
        pass: &|| std::thread::sleep(Duration::from_millis(1)),
    });
}

/// Runs of odd and of even numbers are of two tenants.
#[test]
fn tenants_hold_the_contract_apart() {
    let here = Guarded::start(contract::SLABS as u64);
    let other = Token::new("research", &[6; 40]).unwrap();
    let add = |store: &mut Store| {
        store.tokens.push(Entry::new(&other, None));
        Ok(())
    };
    Store::change(&here.store, add).unwrap();
    assert!(here.node.look_at_tokens().is_none());
    contract::hold_apart(&Subject {
        connect: &|options| {
            let key = if options.run[0] % 2 == 1 { here.key } else { other.key() };
            let options = ConnectOptions { transport: Transport::Tcp, trust: key.into(), ..options.clone() };
            Session::connect(&here.node.addresses()[0], &options)
        },
        lent: &|| here.node.nic().lent(),
        pass: &|| std::thread::sleep(Duration::from_millis(1)),
    });
    let tenants: Vec<u64> = here.node.nic().tenants.all().iter().map(|tenant| tenant.pace.moved()).collect();
    assert!(tenants.len() == 2 && tenants.iter().all(|moved| *moved > 0), "{tenants:?}");
}

/// Nothing of a page, nor of the token, is in what passes; with `plain` pages are.
#[test]
fn who_listens_hears_no_page_and_no_token() {
    for plain in [false, true] {
        let here = Guarded::start(1);
        let path = Path::to(here.at());
        let session = here.join(&path.at, plain);
        let slab = session.grant().unwrap().id;
        let mut queue = session.queue_pair().unwrap();
        let pages = pattern(3, 40 * 4096);
        put(&mut queue, slab, 0, &pages).unwrap();
        assert!(get(&mut queue, slab, 0, pages.len()).unwrap() == pages);
        let heard = path.heard.lock().unwrap();
        let tells = |secret: &[u8]| heard.windows(16).any(|seen| secret.chunks(16).any(|piece| seen == piece));
        assert!(!tells(here.key.bytes()));
        assert_eq!(tells(&pages[..4096]), plain);
        assert!(heard.len() > 2 * pages.len());
    }
}

/// A session through somebody on the path, with a slab.
struct Attacked {
    here: Guarded,
    path: Path,
    _session: Session,
    slab: SlabId,
    queue: QueuePair,
    rounds: usize,
}

impl Attacked {
    fn new() -> Attacked {
        let here = Guarded::start(1);
        let path = Path::to(here.at());
        let session = here.join(&path.at, false);
        let slab = session.grant().unwrap().id;
        let queue = session.queue_pair().unwrap();
        Attacked { here, path, _session: session, slab, queue, rounds: 0 }
    }

    /// Meddles once, and lets all pass from then on. What is written and read meanwhile is right, and so is what is then
    /// at the node; and it was noticed.
    fn survives(&mut self, what: &str, mut how: impl FnMut(&Passing<'_>) -> Step + Send + 'static) {
        self.rounds += 1;
        let done = Arc::new(Mutex::new(false));
        let is_done = Arc::clone(&done);
        self.path.meddle(move |passing| {
            let mut done = is_done.lock().unwrap();
            let step = if *done { Step::Pass } else { how(passing) };
            *done |= matches!(step, Step::Instead(_) | Step::End(_));
            match step {
                Step::Pass => (passing.record.to_vec(), false),
                Step::Hold => (Vec::new(), false),
                Step::Instead(bytes) => (bytes, false),
                Step::End(bytes) => (bytes, true),
            }
        });
        let restored = self.here.node.nic().tally.rejoined.load(Ordering::Relaxed);
        let pages = pattern(self.rounds, 3 * 4096);
        let mut back = vec![0; pages.len()];
        let (slab, queue) = (self.slab, &mut self.queue);
        for at in [0, 4096, 8192] {
            #[allow(unsafe_code)]
            // SAFETY: both buffers outlive the verbs, which are awaited below.
            unsafe {
                queue.write(1, slab, at as u64, pages[at..].as_ptr(), 4096);
                queue.doorbell().unwrap();
                queue.read(2, slab, at as u64, back[at..].as_mut_ptr(), 4096);
            }
        }
        assert!(finish(queue, 6).iter().all(|c| c.result == Ok(0)), "{what}");
        assert!(*done.lock().unwrap(), "{what}: nothing was done");
        assert!(back == pages, "{what}: other bytes came");
        self.path.leave_alone();
        assert!(get(&mut self.queue, self.slab, 0, pages.len()).unwrap() == pages, "{what}: other bytes are kept");
        let now = self.here.node.nic().tally.rejoined.load(Ordering::Relaxed);
        assert!(now > restored, "{what}: it was not noticed");
    }
}

#[test]
fn a_record_with_any_byte_changed_changes_nothing() {
    let mut attacked = Attacked::new();
    for from in [From::Host, From::Node] {
        // The head and what is behind it, some of the page, the tag and what is before it.
        for at in (0..40).chain((40..4000).step_by(511)).chain(4092..4132) {
            attacked.survives(&format!("byte {at} from {from:?}"), move |passing| {
                if passing.from != from || passing.record.len() < 4132 {
                    return Step::Pass;
                }
                let mut record = passing.record.to_vec();
                record[at] ^= 0x40;
                Step::Instead(record)
            });
        }
    }
    let broken = attacked.here.node.nic().tally.broken_connections.load(Ordering::Relaxed);
    assert!(broken > 80, "{broken}");
}

#[test]
fn records_that_are_dropped_repeated_swapped_cut_or_anothers_change_nothing() {
    let mut attacked = Attacked::new();
    for from in [From::Host, From::Node] {
        let its = move |passing: &Passing<'_>, step: fn(&[u8]) -> Step| match passing.from == from {
            true => step(passing.record),
            false => Step::Pass,
        };
        attacked.survives("dropped", move |passing| its(passing, |_| Step::Instead(Vec::new())));
        attacked.survives("repeated", move |passing| its(passing, |record| Step::Instead([record, record].concat())));
        let mut held: Option<Vec<u8>> = None;
        attacked.survives("swapped", move |passing| match held.take() {
            _ if passing.from != from => Step::Pass,
            Some(first) => Step::Instead([passing.record, &first].concat()),
            None => {
                held = Some(passing.record.to_vec());
                Step::Hold
            }
        });
        // A stream that ends within a record, and between two.
        attacked.survives("cut in a head", move |passing| its(passing, |record| Step::End(record[..3].to_vec())));
        attacked.survives("cut in a body", move |passing| its(passing, |record| Step::End(record[..30].to_vec())));
        attacked.survives("cut behind one", move |passing| its(passing, |record| Step::End(record.to_vec())));
        // Those of the connection before, of either end.
        let before: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let keeps = Arc::clone(&before);
        attacked.survives("heard", move |passing| {
            keeps.lock().unwrap().push(passing.record.to_vec());
            if passing.number < 2 { Step::Pass } else { Step::End(Vec::new()) }
        });
        let kept = before.lock().unwrap().clone();
        for old in kept.into_iter().take(4) {
            attacked.survives("of another connection", move |passing| match passing.from == from {
                true => Step::Instead(old.clone()),
                false => Step::Pass,
            });
        }
    }
}
