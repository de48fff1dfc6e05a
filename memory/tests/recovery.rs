//! An owner with tens of thousands of units dies; the node has nothing but the words to know what it held.
//!
//! `cargo test -p farmem-memory --test recovery -- --nocapture` says how fast that goes.

use farmem_fabric::words::Words;
use farmem_fabric::{ConnectOptions, NodeAddr, Session, Transport};
use farmem_memory::{Config, Node};
use farmem_protocol::extent::check::recount;
use farmem_protocol::extent::reshape::{Reshape, Reshaped};
use farmem_protocol::extent::{Actor, Claimant, Claimer, Grant, Level, Owner, Want};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Blocks that the dead owner leaves shared, every chunk of them its own.
const PUBLISHED: usize = 60;

fn join(node: &Node, run: u8) -> Session {
    let options = ConnectOptions {
        timeout: Duration::from_secs(30),
        grace: Duration::from_secs(5),
        run: [run; 16],
        pid: std::process::id(),
        transport: Transport::Shm,
        ..ConnectOptions::default()
    };
    Session::connect(&node.addresses()[0], &options).unwrap()
}

#[test]
fn tens_of_thousands_of_words_are_recovered() {
    let socket = std::env::temp_dir().join(format!("farmem-recovery-{}.sock", std::process::id()));
    let node = Node::start(&Config::new(8 << 30, vec![NodeAddr::Shm(socket)])).unwrap();
    let pool = &node.nic().units;
    let other = join(&node, 2);
    let bystander = other.grant().unwrap();
    let theirs = node.nic().lent();

    let session = join(&node, 1);
    let mut queue = session.queue_pair().unwrap();
    let mut words = Words::open(&mut queue).unwrap();
    let actor = Actor::new(Owner::new(session.owner()), Claimant::new(0));
    let mut claimer = Claimer::new(actor, words.geometry());
    let mut held: Vec<Grant> = Vec::new();
    loop {
        claimer.begin(Want::some(Level::Block, 64));
        match words.run(&mut queue, &mut claimer).unwrap() {
            Ok(grants) => held.extend(grants),
            Err(_) => break,
        }
    }
    for grant in &held[..PUBLISHED] {
        let mut publish = Reshape::publish(actor, words.geometry(), *grant, [u64::MAX; 8]);
        let published = words.run(&mut queue, &mut publish).unwrap();
        assert!(matches!(published, Ok(Reshaped::Done(chunks)) if chunks.len() == 512));
    }
    let entries = (held.len() - PUBLISHED + PUBLISHED * 512) as u64;
    assert!(held.len() > 1900 && recount(pool.geometry(), &pool.words).held.len() == 2);

    drop(queue);
    drop(session);
    let begun = Instant::now();
    while node.nic().lent() > theirs {
        assert!(begun.elapsed() < Duration::from_secs(60), "not recovered");
        std::thread::sleep(Duration::from_millis(1));
    }
    let kept = pool.kept();
    let [recovered, scanned, ns] =
        [&kept.recovered_words, &kept.scanned_words, &kept.recover_ns].map(|n| n.load(Ordering::Relaxed));
    assert_eq!(recovered, entries);
    let sum = recount(pool.geometry(), &pool.words);
    assert_eq!((sum.problems, sum.held.len(), sum.held.values().sum::<u64>() * 4096), (vec![], 1, theirs));
    println!(
        "{recovered} entries of {scanned} words in {} µs of CPU: {:.1} million entries/s; all of it clean after {:?}",
        ns / 1000,
        recovered as f64 * 1e3 / ns as f64,
        begun.elapsed()
    );
    other.release(bystander.id).unwrap();
}
