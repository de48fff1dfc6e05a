//! How long a program's verbs wait while its agent moves.

mod common;

use common::{Host, be_agent, child};
use farmem_agent::client::Chunk;
use std::time::Instant;

/// Not a test: what this binary does as a child.
#[test]
fn a_child() {
    if let Some(words) = child() {
        be_agent(&words);
    }
}

/// A verb waits for the copy of its own block alone. Its longest wait is printed.
#[test]
fn a_verb_waits_for_its_own_block_alone() {
    const BLOCKS: usize = 48;
    let (mut host, others) = (Host::new(256), [Host::new(256), Host::new(256)]);
    host.agent_elsewhere("");
    let client = host.client();
    let mut reach = client.reach().unwrap();
    let bytes: Vec<u8> = (0..2 << 20).map(|at| (at / 13) as u8).collect();
    let held: Vec<Chunk> = (0..BLOCKS).map(|_| client.alloc(9).unwrap()).collect();
    held.iter().for_each(|chunk| reach.write(chunk, 0, &bytes).unwrap());
    let mut least = f64::MAX;
    for round in 0..6 {
        let mut waits = Vec::new();
        let to = &others[round % 2];
        let moves = Instant::now();
        host.move_to(to);
        while !host.has_moved(to) {
            for chunk in &held {
                let begun = Instant::now();
                let mut word = [0; 8];
                reach.read(chunk, 1 << 20, &mut word).unwrap();
                waits.push(begun.elapsed());
                assert_eq!(word[..], bytes[1 << 20..][..8]);
            }
        }
        let moves = moves.elapsed();
        waits.sort_unstable_by(|a, b| b.cmp(a));
        // The first one joins the node besides.
        eprintln!(
            "{BLOCKS} blocks in {moves:?}: the longest waits {:?}, a median one {:?}",
            &waits[..3],
            waits[BLOCKS / 2]
        );
        least = least.min(waits[1].as_secs_f64() / moves.as_secs_f64());
    }
    assert!(least < 0.25, "a verb waits for {least} of a move");
}

/// While a run moves, a verb waits for one block. Its longest wait is printed, beside the time in
/// which one block is read.
#[test]
fn a_verb_waits_for_one_block_of_its_run() {
    const BLOCKS: u32 = 32;
    let (mut host, others) = (Host::new(256), [Host::new(256), Host::new(256)]);
    host.agent_elsewhere("");
    let client = host.client();
    let mut reach = client.reach().unwrap();
    let bytes: Vec<u8> = (0..2 << 20).map(|at| (at / 13) as u8).collect();
    let run = client.alloc_run(BLOCKS).unwrap();
    let blocks = || (0..BLOCKS as u64).map(|of_run| of_run << 21);
    blocks().for_each(|at| reach.write(&run, at, &bytes).unwrap());
    let mut least = f64::MAX;
    for round in 0..6 {
        let mut reads = Vec::new();
        let mut read = vec![0; 2 << 20];
        for at in blocks().take(8) {
            let begun = Instant::now();
            reach.read(&run, at, &mut read).unwrap();
            reads.push(begun.elapsed());
        }
        reads.sort_unstable();
        let mut waits = Vec::new();
        let to = &others[round % 2];
        let moves = Instant::now();
        host.move_to(to);
        let mut counts = 0u64;
        while !host.has_moved(to) {
            counts += 1;
            for at in blocks() {
                let begun = Instant::now();
                let mut word = [0; 8];
                reach.read(&run, at + (1 << 20), &mut word).unwrap();
                waits.push(begun.elapsed());
                assert_eq!(word[..], bytes[1 << 20..][..8]);
                let begun = Instant::now();
                reach.write(&run, at + 64, &counts.to_le_bytes()).unwrap();
                waits.push(begun.elapsed());
            }
        }
        let moves = moves.elapsed();
        for at in blocks() {
            let mut word = [0; 8];
            reach.read(&run, at + 64, &mut word).unwrap();
            assert_eq!(u64::from_le_bytes(word), counts, "a write was lost");
        }
        waits.sort_unstable_by(|a, b| b.cmp(a));
        // The first one joins the node besides.
        eprintln!(
            "a run of {BLOCKS} blocks in {moves:?}: the longest waits {:?}, a median one of {BLOCKS} {:?}; a block is read in {:?}",
            &waits[..3],
            waits[BLOCKS as usize / 2],
            reads[reads.len() / 2]
        );
        least = least.min(waits[1].as_secs_f64() / moves.as_secs_f64());
    }
    assert!(least < 0.25, "a verb waits for {least} of a move");
}
