//! A node that does not answer for a while: READs go to the other one, and nothing is lost.

mod common;

use common::{alloc, options, read, write};
use farmem_fabric::{ConnectOptions, NodeAddr, Session, Transport};
use farmem_memory::{Config, Node};
use farmem_pool::{Lane, Pool, Protect, Standing};
use farmem_protocol::addr::SLAB_BYTES;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A READ is asked of the other node after this …
const LATE: Duration = Duration::from_millis(4);
/// … and answered within this.
const SOON: Duration = Duration::from_millis(150);

/// Pools that may be tried, each with a slab of each node.
const ATTEMPTS: u64 = 64;

/// A relay to a node that can hold back what the node says.
fn relay(node: SocketAddr) -> (SocketAddr, Arc<AtomicBool>) {
    let (listener, holds) = (TcpListener::bind("127.0.0.1:0").unwrap(), Arc::new(AtomicBool::new(false)));
    let (at, held) = (listener.local_addr().unwrap(), Arc::clone(&holds));
    std::thread::spawn(move || {
        for host in listener.incoming().flatten() {
            let node = TcpStream::connect(node).unwrap();
            let carry = |mut from: TcpStream, mut to: TcpStream, held: Option<Arc<AtomicBool>>| {
                to.set_nodelay(true).unwrap();
                std::thread::spawn(move || {
                    let mut bytes = [0; 1 << 16];
                    while let Ok(n @ 1..) = from.read(&mut bytes) {
                        while held.as_ref().is_some_and(|held| held.load(Ordering::Relaxed)) {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        if to.write_all(&bytes[..n]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            };
            carry(host.try_clone().unwrap(), node.try_clone().unwrap(), None);
            carry(node, host, Some(Arc::clone(&held)));
        }
    });
    (at, holds)
}

#[test]
fn a_late_read_is_answered_by_the_other_node() {
    farmem_sys::clock::calibrate();
    let nodes: Vec<Node> = (0..2)
        .map(|_| Node::start(&Config::new(ATTEMPTS * SLAB_BYTES, vec!["127.0.0.1:0".parse().unwrap()])).unwrap())
        .collect();
    let relays: Vec<_> = nodes
        .iter()
        .map(|node| match &node.addresses()[0] {
            NodeAddr::Tcp(at) => relay(at.to_string().parse().unwrap()),
            NodeAddr::Shm(_) => unreachable!("it listens on tcp"),
        })
        .collect();
    // Where the machine is held up for so long that the node is given up, with another pool.
    let until = Instant::now() + Duration::from_secs(60);
    let held_up = |_: &u64| !answered_by_the_other(&relays, until);
    assert!((0..ATTEMPTS).take_while(held_up).count() < ATTEMPTS as usize, "this machine is always held up");
}

/// False: it took so long to see what happens that nothing can be said.
fn answered_by_the_other(relays: &[(SocketAddr, Arc<AtomicBool>)], until: Instant) -> bool {
    let join = |(at, _): &(SocketAddr, Arc<AtomicBool>)| {
        let options = ConnectOptions { transport: Transport::Tcp, ..options() };
        Session::connect(&at.to_string().parse().unwrap(), &options).unwrap()
    };
    let pool: &'static Pool = Box::leak(Box::new(Pool::new(relays.iter().map(join).collect()).unwrap()));
    pool.protect(Protect::Mirror);
    let (mut writes, mut reads) = (Lane::new(), Lane::new());
    let slots = alloc(pool, 40);
    for (value, &slot) in slots.iter().enumerate() {
        assert_eq!(write(pool, &mut writes, slot, value as u64 + 1), Ok(0));
    }
    let first = pool.homes(slots[0].slab_index())[0].unwrap().0;
    let (begun, took) = loop {
        // Both are known to be quick.
        (0..40).for_each(|nth| assert_eq!(read(pool, &mut reads, slots[nth]), Ok(nth as u64 + 1)));
        relays[first].1.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        assert_eq!(read(pool, &mut reads, slots[7]), Ok(8));
        let took = begun.elapsed();
        // A machine that is busy can have made the first node late before: it is avoided already.
        if (LATE..SOON).contains(&took) || Instant::now() > until {
            break (begun, took);
        }
        relays[first].1.store(false, Ordering::Relaxed);
        if took >= SOON {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // It is avoided: further reads do not wait at all.
    (10..30).for_each(|nth| assert_eq!(read(pool, &mut reads, slots[nth]), Ok(nth as u64 + 1)));
    relays[first].1.store(false, Ordering::Relaxed);
    if begun.elapsed() > SOON && Instant::now() < until {
        return false;
    }
    assert!((LATE..SOON).contains(&took), "{took:?}");
    // It is no loss, and the late answer lands nowhere.
    assert_eq!((pool.nodes().standing(first), pool.losses().take().len()), (Some(Standing::In), 0));
    for (value, &slot) in slots.iter().enumerate() {
        assert_eq!(write(pool, &mut writes, slot, value as u64 + 100), Ok(0));
        assert_eq!(read(pool, &mut reads, slot), Ok(value as u64 + 100));
    }
    true
}
