//! Nodes that lie, and what is said in a node's place by who is on the path.

#![allow(unsafe_code)] // The buffer of a READ is raw memory.

mod common;

use common::{receive, within};
use farmem_contract::{get, put};
use farmem_fabric::{ConnectError, ConnectOptions, Lost, NodeAddr, QueuePair, Session, Transport};
use farmem_memory::tokens::{Entry, Store};
use farmem_memory::{Config, Node};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::region::MAX_REGIONS;
use farmem_protocol::wire::{Answer, Ask, Completion, Greeting, Hello, Purpose, Reply, Request, Verdict, Welcome};
use farmem_trust::{Key, Token};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Longer than anything takes on a machine that is busy with other things.
const LONG: Duration = Duration::from_secs(60);

fn options(grace: Duration, token: Option<Key>) -> ConnectOptions {
    ConnectOptions {
        timeout: LONG,
        grace,
        run: [1; 16],
        transport: Transport::Tcp,
        trust: token.into(),
        ..ConnectOptions::default()
    }
}

/// A node that welcomes whoever comes, under this number, answers each request by `answers`, and each batch of verbs
/// with a completion that there is not.
fn liar(owner: u16, answers: fn(Ask) -> Reply) -> NodeAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = NodeAddr::Tcp(listener.local_addr().unwrap().to_string());
    std::thread::spawn(move || {
        for host in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || lie(host, owner, answers));
        }
    });
    at
}

fn lie(mut host: TcpStream, owner: u16, answers: fn(Ask) -> Reply) -> Option<()> {
    let hello = receive(&mut host, Hello::read)?;
    let welcome = Welcome { owner, secret: [7; 16], incarnation: 5, ..Welcome::default() };
    host.write_all(Greeting::Welcome(welcome).frame().as_bytes()).ok()?;
    if let Purpose::Attach(..) = hello.purpose {
        while let Ok(1..) = host.read(&mut [0; 4096]) {
            let nonsense = Completion { number: 0.into(), status: 77, zero: [0; 3], value: 0.into() };
            host.write_all(&[nonsense.as_bytes(), &[0; 64]].concat()).ok()?;
        }
        return None;
    }
    loop {
        let Request { number, ask, .. } = receive(&mut host, Request::read)?;
        let answer = Answer { number, epoch: 0, result: Ok(answers(ask)) };
        host.write_all(answer.frame().as_bytes()).ok()?;
    }
}

/// Reads until the node is found lost.
fn fails(queue: &mut QueuePair, slab: SlabId) -> Lost {
    let (mut into, mut done) = (vec![0; 64], Vec::new());
    // SAFETY: the buffer outlives the queue's use of it: this function ends with the loss of the node.
    unsafe { queue.read(1, slab, 0, into.as_mut_ptr(), 64) };
    let _ = queue.doorbell();
    loop {
        if let Err(lost) = queue.wait(&mut done, LONG) {
            return lost;
        }
    }
}

#[test]
fn a_node_that_names_an_owner_that_there_is_not_is_none() {
    for owner in [0, 1 << 14, u16::MAX] {
        let joined = Session::connect(&liar(owner, |_| Reply::Done), &options(LONG, None));
        assert!(matches!(joined, Err(ConnectError::NotFarmem(_))), "{owner}");
    }
}

#[test]
fn a_node_with_regions_without_end_is_asked_for_no_more_than_a_node_has() {
    let answers = |ask| match ask {
        Ask::RegionAt(place) => Reply::Region(format!("r{place}").parse().unwrap(), 1, 1),
        _ => Reply::Done,
    };
    let session = Session::connect(&liar(1, answers), &options(LONG, None)).unwrap();
    assert_eq!(session.regions().list().unwrap().len(), MAX_REGIONS);
}

#[test]
fn a_node_that_answers_nonsense_is_given_up_when_the_grace_is_over() {
    let grace = Duration::from_millis(300);
    let session = Session::connect(&liar(1, |_| Reply::Done), &options(grace, None)).unwrap();
    let begun = Instant::now();
    let lost = fails(&mut session.queue_pair().unwrap(), SlabId(1));
    assert!(session.standing().is_lost() && lost.to_string().contains("in a row"), "{lost}");
    assert!(begun.elapsed() >= grace);
}

/// What is done with the connections that come from now on, the first one first; then they are passed on.
type Forgeries = Arc<Mutex<Vec<Vec<u8>>>>;

/// Who is on the path to a node. Returns its address, what it says in the node's place, and the connections that stand.
fn on_the_path(node: &NodeAddr) -> (NodeAddr, Forgeries, Arc<Mutex<Vec<TcpStream>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, node) = (NodeAddr::Tcp(listener.local_addr().unwrap().to_string()), node.to_string());
    let (forgeries, standing) = (Forgeries::default(), Arc::<Mutex<Vec<TcpStream>>>::default());
    let (says, stands) = (Arc::clone(&forgeries), Arc::clone(&standing));
    std::thread::spawn(move || {
        for mut host in listener.incoming().map_while(Result::ok) {
            let forged = says.lock().unwrap().pop();
            if let Some(forged) = forged {
                let _ = receive(&mut host, Hello::read);
                let _ = host.write_all(&forged);
                continue;
            }
            let Ok(node) = TcpStream::connect(&node) else { continue };
            let both = || (host.try_clone().unwrap(), node.try_clone().unwrap());
            stands.lock().unwrap().push(both().0);
            for (mut from, mut to) in [both(), (both().1, both().0)] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    (at, forgeries, standing)
}

/// A node with a token.
fn guarded(name: &str) -> (Config, Node, Key) {
    let store = std::env::temp_dir().join(format!("farmem-liars-{name}-{}.toml", std::process::id()));
    let token = Token::new("analytics", &[5; 40]).unwrap();
    let made = Store::change(&store, |store| {
        store.tokens.push(Entry::new(&token, None));
        Ok(())
    });
    made.unwrap();
    let mut config = Config::new(4 * SLAB_BYTES, vec![NodeAddr::Tcp("127.0.0.1:0".into())]);
    config.tokens = Some(store);
    let node = Node::start(&config).unwrap();
    (config, node, token.key())
}

/// A connection is cut, and the next ones are answered in the node's place. Nobody has proven these answers: the program
/// goes on.
#[test]
fn a_refusal_that_nobody_has_proven_ends_no_program() {
    let (config, node, key) = guarded("forged");
    let (at, forgeries, standing) = on_the_path(&node.addresses()[0]);
    let session = Session::connect(&at, &options(LONG, Some(key))).unwrap();
    let slab = session.grant().unwrap().id;
    let mut queue = session.queue_pair().unwrap();
    put(&mut queue, slab, 0, &[7; 4096]).unwrap();
    use Verdict::{Incarnation, NoTokens, Revoked, Unknown, WrongToken};
    let refusals = [Incarnation, Unknown, Revoked, WrongToken, NoTokens].map(Greeting::Refused);
    let others =
        [Greeting::Proven(Incarnation, [7; 32]), Greeting::Welcome(Welcome { owner: 1, ..Welcome::default() })];
    let mut forged: Vec<_> = refusals.iter().chain(&others).map(|said| said.frame().as_bytes().to_vec()).collect();
    forged.push(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    forged.push(b"farmem\x09\x00".to_vec());
    for said in forged {
        *forgeries.lock().unwrap() = vec![said.clone(); 2];
        standing.lock().unwrap().drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        assert_eq!(get(&mut queue, slab, 0, 4096), Ok(vec![7; 4096]), "{said:?}");
        within("all of them were said", || forgeries.lock().unwrap().is_empty());
        session.release(session.grant().unwrap().id).unwrap();
        assert!(!session.standing().is_lost(), "{said:?}");
    }
    std::fs::remove_file(config.tokens.unwrap()).unwrap();
}

/// A node that was started anew proves that it is the node, and that what it had is gone: nothing is waited for.
#[test]
fn a_node_that_proves_its_refusal_is_believed_at_once() {
    let (mut config, node, key) = guarded("anew");
    let session = Session::connect(&node.addresses()[0], &options(LONG, Some(key))).unwrap();
    let slab = session.grant().unwrap().id;
    let mut queue = session.queue_pair().unwrap();
    put(&mut queue, slab, 0, &[7; 4096]).unwrap();
    config.listen = node.addresses().to_vec();
    drop(node);
    let begun = Instant::now();
    let _again = Node::start(&config).unwrap();
    let lost = fails(&mut queue, slab);
    assert!(session.standing().node_has_ended(), "{lost}");
    assert!(begun.elapsed() < LONG / 2);
    std::fs::remove_file(config.tokens.unwrap()).unwrap();
}
