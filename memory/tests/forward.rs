//! Forward secrecy: a thief who has recorded a session, and has the token later, reads nothing of it. A token alone opens
//! no member whose connections are encrypted. Nobody on the path takes the shares away, or puts in its own.

mod common;

use common::receive;
use farmem_contract::{get, put};
use farmem_fabric::{ConnectError, ConnectOptions, Identity, NodeAddr, QueuePair, Session, Transport, Trust};
use farmem_memory::tokens::{Entry, Store};
use farmem_memory::{Config, Node};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::wire::{
    Ask, Cipher, Credential, Greeting, Hello, Join, Known, Proof, Purpose, Request, Share, Verdict, Welcome,
};
use farmem_trust::agree::{Agreed, Half};
use farmem_trust::record::{HEAD, OVERHEAD, Opener};
use farmem_trust::{Key, Token};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A node with a token.
fn guarded() -> (Node, Key) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("farmem-forward-{}-{}.toml", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let store = std::env::temp_dir().join(name);
    let token = Token::new("analytics", &[5; 40]).unwrap();
    let made = Store::change(&store, |store| {
        store.tokens.push(Entry::new(&token, None));
        Ok(())
    });
    made.unwrap();
    let mut config = Config::new(4 * SLAB_BYTES, vec![NodeAddr::Tcp("127.0.0.1:0".into())]);
    config.tokens = Some(store.clone());
    let node = Node::start(&config).unwrap();
    std::fs::remove_file(&store).unwrap();
    (node, token.key())
}

fn join(at: &str, key: Key) -> Result<Session, ConnectError> {
    Session::connect(&NodeAddr::Tcp(at.to_owned()), &options(key))
}

fn options(key: Key) -> ConnectOptions {
    ConnectOptions {
        timeout: Duration::from_secs(10),
        grace: Duration::from_secs(10),
        run: [1; 16],
        transport: Transport::Tcp,
        trust: Trust { token: Some(key), plain: false },
        ..ConnectOptions::default()
    }
}

/// What passed on one connection.
struct Tape {
    hello: Hello,
    /// The node's.
    nonce: [u8; 32],
    proof: Proof,
    welcome: Welcome,
    /// Behind the greetings: the host's, the node's.
    sealed: [Vec<u8>; 2],
}

impl Tape {
    /// Whether the first record of either way opens by these keys.
    fn opens(&self, key: &Key, agreed: &Agreed) -> bool {
        let host = self.hello.credential.unwrap();
        let nonces = (&host.nonce, &self.nonce);
        let ends = [key.node_ends(host.cipher, nonces, agreed), key.host_ends(host.cipher, nonces, agreed)];
        ends.into_iter().zip(&self.sealed).any(|(ends, sealed)| {
            let Ok(Some(len)) = Opener::length(sealed) else { return false };
            ends.unwrap().opener.open(&mut sealed[..len].to_vec(), 0).is_ok()
        })
    }

    /// All secrets that can be made of what passed.
    fn guesses(&self) -> Vec<Agreed> {
        let shares: Vec<Share> = [self.proof.share, self.welcome.share].into_iter().flatten().collect();
        let mut guesses: Vec<Agreed> = vec![[0; 32].into(), self.nonce.into()];
        guesses.extend(shares.iter().map(|&share| Agreed::from(share)));
        // Of a thief's own half with either end's.
        guesses.extend(shares.iter().filter_map(|share| Half::new(&[1; 32])?.agree(share)));
        guesses
    }
}

/// What is done to a proof and a Welcome on their way.
type Meddler = fn(&mut Proof, &mut Welcome);

/// Passes connections to a node, and records them. Returns its address.
fn path(node: &Node, meddler: Meddler) -> (String, Arc<Mutex<Vec<Tape>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, node) = (listener.local_addr().unwrap().to_string(), node.addresses()[0].to_string());
    let tapes: Arc<Mutex<Vec<Tape>>> = Arc::default();
    let recorded = Arc::clone(&tapes);
    std::thread::spawn(move || {
        for host in listener.incoming() {
            let (Ok(host), Ok(node)) = (host, TcpStream::connect(&node)) else { return };
            let _ = pass(host, node, meddler, &recorded);
        }
    });
    (at, tapes)
}

/// `None`: it ends before both ends seal what they say.
fn pass(mut host: TcpStream, mut node: TcpStream, meddler: Meddler, tapes: &Arc<Mutex<Vec<Tape>>>) -> Option<()> {
    let hello = receive(&mut host, Hello::read)?;
    node.write_all(hello.frame().as_bytes()).ok()?;
    let Greeting::Challenge(nonce) = receive(&mut node, Greeting::read)? else { return None };
    host.write_all(Greeting::Challenge(nonce).frame().as_bytes()).ok()?;
    let mut proof = receive(&mut host, Proof::read)?;
    meddler(&mut proof, &mut Welcome::default());
    node.write_all(proof.frame().as_bytes()).ok()?;
    let mut greeting = receive(&mut node, Greeting::read)?;
    if let Greeting::Welcome(welcome) = &mut greeting {
        meddler(&mut Proof { mac: [0; 32], share: None }, welcome);
    }
    host.write_all(greeting.frame().as_bytes()).ok()?;
    let Greeting::Welcome(welcome) = greeting else { return None };
    let place = {
        let mut tapes = tapes.lock().unwrap();
        tapes.push(Tape { hello, nonce, proof, welcome, sealed: Default::default() });
        tapes.len() - 1
    };
    let ways = [(host.try_clone().ok()?, node.try_clone().ok()?), (node, host)];
    for (way, (mut from, mut to)) in ways.into_iter().enumerate() {
        let tapes = Arc::clone(tapes);
        std::thread::spawn(move || {
            let mut room = vec![0; 65536];
            while let Ok(n @ 1..) = from.read(&mut room) {
                tapes.lock().unwrap()[place].sealed[way].extend_from_slice(&room[..n]);
                if to.write_all(&room[..n]).is_err() {
                    break;
                }
            }
        });
    }
    Some(())
}

fn alone(_: &mut Proof, _: &mut Welcome) {}

/// Joins, and writes a page of sevens to the slab that it is granted.
fn writes(at: &str, key: Key) -> (Session, QueuePair, SlabId) {
    fill(join(at, key).unwrap())
}

fn fill(session: Session) -> (Session, QueuePair, SlabId) {
    let slab = session.grant().unwrap().id;
    let mut queue = session.queue_pair().unwrap();
    put(&mut queue, slab, 0, &[7; 4096]).unwrap();
    (session, queue, slab)
}

#[test]
fn what_was_recorded_is_not_read_with_the_token_later() {
    let (node, key) = guarded();
    let (at, tapes) = path(&node, alone);
    let (_session, mut queue, slab) = writes(&at, key);
    assert_eq!(get(&mut queue, slab, 0, 4096), Ok(vec![7; 4096]));
    // From here on the thief has the token, and all that passed.
    let tapes = tapes.lock().unwrap();
    assert!(tapes.len() >= 2 && tapes.iter().all(|tape| tape.sealed.iter().all(|way| !way.is_empty())));
    let guesses: Vec<Agreed> = tapes.iter().flat_map(Tape::guesses).collect();
    assert!(tapes.iter().all(|tape| guesses.iter().all(|guess| !tape.opens(&key, guess))));
    // Each connection that begins a membership has shares of its own, and the others have none.
    let shares = |tape: &&Tape| tape.proof.share.is_some() && tape.welcome.share.is_some();
    assert!(tapes.iter().all(|tape| shares(&tape) == matches!(tape.hello.purpose, Purpose::Join(_))));
}

/// The same thief opens a record whose secret it knows: without the secret it opens none.
#[test]
fn with_the_secret_the_same_bytes_open() {
    let (node, key) = guarded();
    let (at, tapes) = path(&node, alone);
    let purpose = Purpose::Join(Join { run: [2; 16], grace_ms: 1000, ..Join::default() });
    let half = Half::new(&[11; 32]).unwrap();
    let (mut stream, nonces, welcome) = come(&at, &key, purpose, Cipher::Aes128Gcm, Some(half.share())).unwrap();
    let agreed = half.agree(&welcome.share.unwrap()).unwrap();
    let mut ends = key.host_ends(Cipher::Aes128Gcm, (&nonces.0, &nonces.1), &agreed).unwrap();
    let ping = Request::new(1, Ask::Ping).frame();
    let mut record = [&[0; HEAD], ping.as_bytes(), &[0; OVERHEAD - HEAD]].concat();
    ends.sealer.seal(&mut record).unwrap();
    stream.write_all(&record).unwrap();
    let _ = stream.read(&mut [0; 1]).unwrap();
    let tapes = tapes.lock().unwrap();
    assert!(tapes[0].opens(&key, &agreed));
    assert!(tapes[0].guesses().iter().all(|guess| !tapes[0].opens(&key, guess)));
}

/// Comes as a host with this share. Returns both nonces, and the Welcome or the refusal.
#[allow(clippy::type_complexity)] // Of one call.
fn come(
    at: &str,
    key: &Key,
    purpose: Purpose,
    cipher: Cipher,
    share: Option<Share>,
) -> Result<(TcpStream, ([u8; 32], [u8; 32]), Welcome), Verdict> {
    let mut stream = TcpStream::connect(at).unwrap();
    let nonce = [9; 32];
    let credential = Some(Credential { id: key.id, nonce, cipher });
    let hello = Hello { tenant: key.tenant, credential, ..Hello::new(purpose) };
    stream.write_all(hello.frame().as_bytes()).unwrap();
    let Some(Greeting::Challenge(theirs)) = receive(&mut stream, Greeting::read) else { panic!("no challenge") };
    let mac = key.of_host(&theirs, hello.frame().as_bytes(), share.as_ref());
    stream.write_all(Proof { mac, share }.frame().as_bytes()).unwrap();
    match receive(&mut stream, Greeting::read) {
        Some(Greeting::Welcome(welcome)) => Ok((stream, (nonce, theirs), welcome)),
        Some(Greeting::Refused(verdict) | Greeting::Proven(verdict, _)) => Err(verdict),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_token_alone_opens_no_member() {
    for lasting in [false, true] {
        opens_no_member(lasting);
    }
}

/// `lasting`: the member of an agent.
fn opens_no_member(lasting: bool) {
    let (node, key) = guarded();
    let (at, tapes) = path(&node, alone);
    let to = NodeAddr::Tcp(at.clone());
    let joined = if lasting { Session::connect_lasting(&to, &options(key)) } else { join(&at, key) };
    let (_session, mut queue, slab) = fill(joined.unwrap());
    // The thief knows the member's secret: it goes over the wire before there are keys.
    let welcome = tapes.lock().unwrap()[0].welcome;
    let known = Known { secret: welcome.secret, incarnation: welcome.incarnation };
    let share = Some(Half::new(&[1; 32]).unwrap().share());
    for purpose in [Purpose::Attach(known, 1), Purpose::Rejoin(known)] {
        for (cipher, share) in [(Cipher::Plain, None), (Cipher::Plain, share), (Cipher::Aes128Gcm, share)] {
            let came = come(&node.addresses()[0].to_string(), &key, purpose, cipher, share);
            assert_eq!(came.map(|_| ()), Err(Verdict::Malformed), "{purpose:?} {cipher:?} {share:?}");
        }
    }
    // Nor does it join without a secret, or by one that is the same for all.
    let purpose = Purpose::Join(Join { run: [3; 16], grace_ms: 1000, ..Join::default() });
    for share in [None, Some([0; 32])] {
        let came = come(&node.addresses()[0].to_string(), &key, purpose, Cipher::Aes128Gcm, share);
        assert_eq!(came.map(|_| ()), Err(Verdict::Malformed));
    }
    assert_eq!(get(&mut queue, slab, 0, 4096), Ok(vec![7; 4096]));
}

/// An agent that is started again is the member that it was, by the secret that its record keeps. Who has the token and
/// the name of the member, and not that secret, is not.
#[test]
fn an_agent_comes_back_by_the_secret_that_it_has_agreed_on() {
    let (node, key) = guarded();
    let to = node.addresses()[0].clone();
    let (session, mut queue, slab) = fill(Session::connect_lasting(&to, &options(key)).unwrap());
    let identity = session.identity();
    let number = identity.number + 100;
    assert!(Session::resume(&to, &options(key), &Identity { agreed: None, number, ..identity }).is_err());
    assert_eq!(get(&mut queue, slab, 0, 4096), Ok(vec![7; 4096]));
    session.grant().unwrap();
    // It is killed.
    std::mem::forget((session, queue));
    let again = Session::resume(&to, &options(key), &Identity { number, ..identity }).unwrap();
    assert_eq!(again.identity().agreed, identity.agreed);
    assert_eq!(get(&mut again.queue_pair().unwrap(), slab, 0, 4096), Ok(vec![7; 4096]));
    again.grant().unwrap();
}

/// An agent without encryption that is started again with it agrees on a secret then, and comes back by that.
#[test]
fn an_agent_that_is_encrypted_later_agrees_then() {
    let (node, key) = guarded();
    let to = node.addresses()[0].clone();
    let plain = ConnectOptions { trust: Trust { token: Some(key), plain: true }, ..options(key) };
    let (session, queue, slab) = fill(Session::connect_lasting(&to, &plain).unwrap());
    let first = session.identity();
    assert_eq!(first.agreed, None);
    std::mem::forget((session, queue));
    let mut known = Identity { number: first.number + 100, ..first };
    for _ in 0..2 {
        let again = Session::resume(&to, &options(key), &known).unwrap();
        assert_eq!(get(&mut again.queue_pair().unwrap(), slab, 0, 4096), Ok(vec![7; 4096]));
        known = Identity { number: again.identity().number + 100, ..again.identity() };
        assert!(known.agreed.is_some());
        std::mem::forget(again);
    }
    assert!(Session::resume(&to, &options(key), &first).is_err());
}

#[test]
fn a_man_in_the_middle_changes_no_share() {
    let meddlers: [Meddler; 4] = [
        |proof, _| proof.share = None,
        |proof, _| proof.share = Half::new(&[1; 32]).map(|half| half.share()),
        |_, welcome| welcome.share = None,
        |_, welcome| welcome.share = Half::new(&[1; 32]).map(|half| half.share()),
    ];
    for (nth, meddler) in meddlers.into_iter().enumerate() {
        let (node, key) = guarded();
        let (at, _) = path(&node, meddler);
        let failed = join(&at, key).err();
        let is_noticed = match nth {
            0 | 1 => matches!(failed, Some(ConnectError::Token { .. })),
            _ => matches!(failed, Some(ConnectError::Unproven(_))),
        };
        assert!(is_noticed, "{nth}: {failed:?}");
    }
}
