//! Chunks with windows: what every strategy must give, and where they differ.

use farmem_contract::{self as contract, Subject, await_that, get, options, put};
use farmem_fabric::{ConnectOptions, NodeAddr, QueuePair, Refusal, Session, Transport};
use farmem_memory::{Config, Node};
use farmem_offload::host::{Chunk, ChunkError, Chunks};
use farmem_offload::offer::{Offer, Strategy};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_sim::{Network, Weather};
use std::time::Duration;

const ALL: [Strategy; 3] = [Strategy::Offloaded, Strategy::Prebound, Strategy::Rpc];

/// What the subject's node must have been made to offer.
const fn offer(strategy: Strategy) -> Offer {
    Offer { strategy, chunk_bytes: 64 << 10, count: 8 }
}

struct Client {
    session: Session,
    queue: QueuePair,
    chunks: Chunks,
}

impl Client {
    fn new(subject: &Subject<'_>, run: u8) -> Client {
        let session = (subject.connect)(&options(run)).expect("join");
        let mut queue = session.queue_pair().expect("queue pair");
        let chunks = Chunks::open(&mut queue).expect("chunks are offered");
        Client { session, queue, chunks }
    }

    fn take(&mut self) -> Result<Chunk, ChunkError> {
        self.chunks.take(&mut self.queue)
    }

    fn give(&mut self, chunk: Chunk) -> Result<(), ChunkError> {
        self.chunks.give(&mut self.queue, chunk)
    }
}

/// Takes, uses, gives back, through the strategy that the node offers ([`offer`]).
fn holds(subject: &Subject<'_>, strategy: Strategy) {
    let (mut a, mut b) = (Client::new(subject, 1), Client::new(subject, 2));
    assert_eq!(a.chunks.strategy(), strategy);
    let mut old = Vec::new();
    for round in 0..5u8 {
        let held: Vec<Chunk> = (0..8).map(|n| if n % 2 == 0 { a.take() } else { b.take() }.expect("a chunk")).collect();
        let keys: std::collections::BTreeSet<_> = held.iter().map(|chunk| chunk.key).collect();
        assert_eq!((keys.len(), a.take(), b.take()), (8, Err(ChunkError::Empty), Err(ChunkError::Empty)));
        for (n, chunk) in held.iter().enumerate() {
            let user = if n % 2 == 0 { &mut a } else { &mut b };
            assert_eq!(chunk.bytes, 64 << 10);
            if strategy != Strategy::Prebound {
                assert_eq!(get(&mut user.queue, chunk.key, 100, 8), Ok(vec![0; 8]), "what the last owner left");
            }
            assert_eq!(put(&mut user.queue, chunk.key, 100, &[round, n as u8]), Ok(0));
            assert_eq!(put(&mut user.queue, chunk.key, chunk.bytes - 1, b"no"), Err(Refusal::Access), "over its end");
        }
        if strategy != Strategy::Prebound {
            // A type-1 window is whose knows its key.
            assert_eq!(get(&mut b.queue, held[0].key, 100, 2), Err(Refusal::Access), "another member");
            let mut second = a.session.queue_pair().expect("queue pair");
            assert_eq!(get(&mut second, held[0].key, 100, 2), Err(Refusal::Access), "another queue pair");
            assert!(b.give(held[0]).is_err(), "not its to give");
        }
        for (n, chunk) in held.into_iter().enumerate() {
            let user = if n % 2 == 0 { &mut a } else { &mut b };
            assert_eq!(get(&mut user.queue, chunk.key, 100, 2), Ok(vec![round, n as u8]));
            await_that(subject, "it can be given back", {
                let user = std::cell::RefCell::new(&mut *user);
                move || {
                    let user = &mut *user.borrow_mut();
                    match user.give(chunk) {
                        Ok(()) => true,
                        // Its keys have not been made anew since the last time.
                        Err(ChunkError::Busy) if strategy == Strategy::Prebound => false,
                        Err(other) => panic!("{strategy:?}, round {round}, chunk {n}: {other}"),
                    }
                }
            });
            let after = get(&mut user.queue, chunk.key, 100, 2);
            match strategy {
                // FineMem's window of weakness: the old key works until the node has come by.
                Strategy::Prebound => assert!(matches!(after, Ok(_) | Err(Refusal::Access))),
                _ => assert_eq!(after, Err(Refusal::Access), "used after it was given back"),
            }
            old.push(chunk.key);
        }
        let mut reader = a.session.queue_pair().expect("queue pair");
        let reader = std::cell::RefCell::new(&mut reader);
        await_that(subject, "no old key works for long", || {
            old.iter().all(|&key| get(&mut reader.borrow_mut(), key, 0, 1) == Err(Refusal::Access))
        });
    }
    if strategy != Strategy::Prebound {
        let left: Vec<Chunk> = (0..8).map(|_| b.take().expect("a chunk")).collect();
        put(&mut b.queue, left[0].key, 100, b"left").expect("its own");
        drop(b);
        let a = std::cell::RefCell::new(&mut a);
        let mut found = None;
        let found_at = std::cell::RefCell::new(&mut found);
        await_that(subject, "what a member left that is gone can be taken", || {
            let taken = a.borrow_mut().take().ok();
            **found_at.borrow_mut() = taken;
            taken.is_some()
        });
        let a = a.into_inner();
        let chunk = found.expect("just taken");
        assert_eq!(get(&mut a.queue, chunk.key, 100, 4), Ok(vec![0; 4]));
        a.give(chunk).expect("given back");
    }
    assert_eq!((subject.lent)(), SLAB_BYTES, "the chunks' own slab");
}

#[test]
fn every_strategy_holds_over_sim() {
    for strategy in ALL {
        let network = Network::new(Weather::default(), contract::SLABS as u64 * SLAB_BYTES);
        network.with_nic(|nic| farmem_offload::offer::offer(nic, offer(strategy)).unwrap());
        let subject = Subject {
            connect: &|options| Session::simulated(&network, options),
            lent: &|| network.lent(),
            pass: &|| network.pass(1_000_000),
        };
        holds(&subject, strategy);
    }
}

#[test]
fn every_strategy_holds_over_tcp_and_shm() {
    for strategy in ALL {
        for (at, transport) in [(0, Transport::Tcp), (1, Transport::Shm)] {
            let name = format!("farmem-strategy-{strategy:?}-{at}-{}.sock", std::process::id());
            let path = std::env::temp_dir().join(name);
            let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into()), NodeAddr::Shm(path)];
            let node = Node::start(&Config::new(contract::SLABS as u64 * SLAB_BYTES, listen)).unwrap();
            farmem_offload::offer::offer(node.nic(), offer(strategy)).unwrap();
            let subject = Subject {
                connect: &|options| {
                    Session::connect(&node.addresses()[at], &ConnectOptions { transport, ..options.clone() })
                },
                lent: &|| node.nic().lent(),
                pass: &|| std::thread::sleep(Duration::from_millis(1)),
            };
            holds(&subject, strategy);
        }
    }
}
