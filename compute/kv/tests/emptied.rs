//! A store that is emptied over a slow network.

mod world;

use farmem::{Addr, Memory, Transport};
use farmem_kv::layout::head;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use world::process::Process;

#[test]
fn another_process() {
    world::process::another_process();
}

/// A way to a node, and in how many ms it passes answers on.
fn way(to: &str) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, to) = (listener.local_addr().unwrap().to_string(), to.to_owned());
    let slow = Arc::new(AtomicU64::new(0));
    let pass = |mut from: TcpStream, mut to: TcpStream, wait: Arc<AtomicU64>| {
        to.set_nodelay(true).unwrap();
        std::thread::spawn(move || {
            let mut bytes = vec![0; 64 << 10];
            while let Ok(n @ 1..) = from.read(&mut bytes) {
                std::thread::sleep(Duration::from_millis(wait.load(Relaxed)));
                if to.write_all(&bytes[..n]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
    };
    let (said, never) = (Arc::clone(&slow), Arc::default());
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(node) = TcpStream::connect(&to) else { return };
            pass(client.try_clone().unwrap(), node.try_clone().unwrap(), Arc::clone(&never));
            pass(node, client, Arc::clone(&said));
        }
    });
    (at, slow)
}

/// To give back the pieces of a store that was emptied takes longer than a front end may be silent.
#[test]
fn a_front_end_whose_store_is_emptied_shows_all_the_time_that_it_lives() {
    const KEYS: usize = 2000;
    let node = Process::node(Transport::Tcp);
    let (at, slow) = way(&node.at);
    let front = Process::start(&format!("front emptied {at} way=tcp"));
    let mut client = front.client();
    // Each value has a piece of its own.
    let value = "x".repeat(40_000);
    (0..KEYS).for_each(|n| client.send(&["SET", &format!("key{n}"), &value]).unwrap());
    (0..KEYS).for_each(|_| assert_eq!(client.reply().as_deref(), Some("+OK")));
    let memory = Memory::builder().node(&node.at).region("emptied").connect().unwrap();
    let root = memory.load(memory.root(0)).unwrap();
    let heartbeats = || {
        let of = |line: u64| memory.load(Addr::from_bits(root + head::MEMBERS + 64 * line + 8).unwrap()).unwrap();
        (0..4).map(of).fold(0, u64::wrapping_add)
    };
    slow.store(4, Relaxed);
    assert_eq!(client.ask("FLUSHALL"), "+OK");
    let (begun, mut last, mut since, mut longest) = (Instant::now(), heartbeats(), Instant::now(), Duration::ZERO);
    let mut looked = Instant::now();
    loop {
        let now = heartbeats();
        if now != last {
            longest = longest.max(since.elapsed());
            (last, since) = (now, Instant::now());
        }
        if looked.elapsed() > Duration::from_millis(100) {
            looked = Instant::now();
            let said = client.ask("INFO memory");
            let used = said.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
            if used.trim().parse::<u64>().unwrap() < 8 << 20 {
                break;
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "its memory does not go back");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(begun.elapsed() > Duration::from_secs(5), "the way was not slow: {:?}", begun.elapsed());
    assert!(longest < Duration::from_secs(4), "no heartbeat for {longest:?}");
}
