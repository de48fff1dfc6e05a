//! The patterns on farmem's allocator, with a node and an agent in this process: every object is looked at
//! when it is freed, and nothing is left in the end.

use farmem_agent::client::{Client, Options};
use farmem_agent::host::{self, Agent, Config};
use farmem_fabric::{NodeAddr, Transport};
use farmem_malloc::heap::Heap;
use farmem_malloc::memory::{Malloc, is_stamped, stamp};
use farmem_malloc::meter::Meter;
use farmem_malloc::patterns;
use farmem_memory::Node;
use farmem_protocol::random::Random;
use std::sync::atomic::AtomicI64;
use std::sync::mpsc;
use std::time::Duration;

/// Gives work a client; afterwards nothing may be held.
fn with_client(lend_mib: u64, elsewhere: bool, work: impl FnOnce(&Client)) {
    let dir = std::env::temp_dir().join(format!("farmem-patterns-{}-{lend_mib}-{elsewhere}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let of_node = farmem_memory::Config::new(
        lend_mib << 20,
        vec![NodeAddr::Shm(dir.join("node.sock")), NodeAddr::Tcp("127.0.0.1:0".into())],
    );
    let node = Node::start(&of_node).unwrap();
    let of_agent = Config {
        dir: dir.clone(),
        node: node.addresses()[elsewhere as usize].clone(),
        transport: if elsewhere { Transport::Tcp } else { Transport::Shm },
        quotas: Default::default(),
        idle: None,
        grace: Duration::ZERO,
        trust: farmem_fabric::Trust::default(),
    };
    let agent = Agent::start(of_agent).unwrap();
    let service = std::sync::Arc::clone(agent.service());
    let serving = std::thread::spawn(move || drop(agent.run(&mut |_| {})));
    let options =
        Options { socket: host::socket(&dir), job: String::new(), patience: Duration::from_secs(20), start: None };
    let client = Client::connect(options).unwrap();
    work(&client);
    client.trim();
    let left = client.held();
    drop(client);
    service.stop();
    serving.join().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    // One empty span of a class is kept as long as its heap lives, which is over.
    assert!(left <= 64 << 20, "{left} bytes are held");
}

#[test]
fn patterns_find_their_objects_as_they_left_them() {
    run_patterns(false, 30_000, 2000);
}

#[test]
fn and_by_verbs_at_a_node_elsewhere() {
    run_patterns(true, 3_000, 300);
}

fn run_patterns(elsewhere: bool, ops: u64, requests: usize) {
    with_client(512, elsewhere, |client| {
        let heap = Heap::new(client).unwrap();
        let live = AtomicI64::new(0);
        std::thread::scope(|scope| {
            let ((to_b, from_a), (to_a, from_b)) = (mpsc::channel(), mpsc::channel());
            for (seed, to, from) in [(1, to_b, from_b), (2, to_a, from_a)] {
                let (heap, live) = (&heap, &live);
                scope.spawn(move || {
                    let (mut malloc, mut meter) = (heap.thread().unwrap(), Meter::new(live));
                    patterns::threadtest(&mut malloc, &mut meter, ops).unwrap();
                    patterns::shbench(&mut malloc, &mut meter, ops, seed).unwrap();
                    patterns::larson(&mut malloc, &mut meter, ops, seed, (&to, &from)).unwrap();
                    let orders: Vec<u8> = (0..requests).map(|i| [0, 0, 3, 1, 9, 0, 6][i % 7]).collect();
                    patterns::trace(&mut malloc, &mut meter, &orders, 48 << 20).unwrap();
                    assert_eq!(meter.calls % 2, 0);
                });
            }
        });
    });
}

#[test]
fn objects_of_all_sizes_do_not_overlap() {
    with_client(1024, false, |client| {
        let heap = Heap::new(client).unwrap();
        let mut malloc = heap.thread().unwrap();
        let (mut held, mut draw): (Vec<(usize, usize)>, _) = (Vec::new(), Random::new(7));
        for step in 0..40_000 {
            // Now and then of the large kinds: pieces, and runs above 2 MiB.
            let most =
                [64, 64, 1024, 32 << 10, 70_000, 3 << 20][if step % 97 == 0 { draw.index(6) } else { draw.index(4) }];
            let size = 8 + draw.index(most);
            if held.len() < 1500 && draw.index(100) < 55 {
                let address = Malloc::alloc(&mut malloc, size).unwrap();
                assert!(address.is_multiple_of(16));
                stamp(address, size);
                held.push((address, size));
            } else if !held.is_empty() {
                let (address, size) = held.swap_remove(draw.index(held.len()));
                assert!(is_stamped(address, size), "an object of {size} bytes was overwritten");
                Malloc::free(&mut malloc, address);
            }
        }
        for (address, size) in held {
            assert!(is_stamped(address, size));
            Malloc::free(&mut malloc, address);
        }
        assert!(Malloc::alloc(&mut malloc, 65 << 20).is_err(), "above the largest run");
    });
}
