//! Memory of a node on another machine (so to speak: over tcp): pieces by the agent's word, their
//! bytes by verbs of the program's own, under windows.

mod common;

use common::liar::Liar;
use common::pieces::{checked, stamped};
use common::programs::{self, Churn};
use common::stranger::{Stranger, finish, put};
use common::{Host, LIMIT, at_work, be_agent, child, tell, within, within_of};
use farmem_agent::client::{AllocError, Chunk, Client, ConnectError, Options, ReachError};
use farmem_agent::hello::{Entry, Hello, MAGIC};
use farmem_agent::word::{Down, Refusal as Unserved};
use farmem_fabric::{NodeAddr, Refusal};
use farmem_protocol::key::Key;
use farmem_protocol::wire::ANY_QUEUE;
use farmem_protocol::wire::Figure;
use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;
use zerocopy::FromZeros;

/// Not a test: what this binary does as a child.
#[test]
fn a_child() {
    let Some(words) = child() else { return };
    if words[0] == "agent" {
        return be_agent(&words);
    }
    let (dir, client) = programs::client(&words);
    match words[0].as_str() {
        "holder" => {
            let mut reach = client.reach().unwrap();
            let mut held: Vec<Chunk> = (0..1500).map(|n| stamped(&client, &mut reach, 0, n)).collect();
            held.push(client.alloc_run(5).unwrap());
            reach.write(&held[1500], 4 << 20, b"of a run").unwrap();
            tell(&dir, "holds");
            std::thread::sleep(LIMIT);
        }
        "churner" => churn(&client, &dir),
        other => panic!("{other}"),
    }
}

fn churn(client: &Client, dir: &Path) {
    let reach = RefCell::new(client.reach().unwrap());
    let stamped = |order, stamp| stamped(client, &mut reach.borrow_mut(), order, stamp);
    let checked = |chunk: &Chunk, stamp| checked(&mut reach.borrow_mut(), chunk, stamp);
    programs::churn_by(client, dir, Churn { most: 500, told_after: 2000 }, stamped, checked);
}

/// No memory is lent and no window bound, in a while.
fn nothing_is_left(host: &Host, stranger: &Stranger, what: &str) {
    within(what, || host.lent() == 0 && stranger.figure(Figure::WindowsBound) == 0);
    host.recount();
}

#[test]
fn pieces_and_runs_are_had_reached_and_given_back() {
    let mut host = Host::new(512);
    host.agent_elsewhere("");
    let (client, stranger) = (host.client(), Stranger::new(&host));
    let mut reach = client.reach().unwrap();
    let mut held = Vec::new();
    for order in (0..=9).chain([0; 300]) {
        let chunk = client.alloc(order).unwrap();
        assert!(chunk.address().is_none() && chunk.number().is_multiple_of(4096 << order));
        let mut bytes = vec![1; chunk.bytes() as usize];
        reach.read(&chunk, 0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0), "zero as granted");
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 7 + held.len()) as u8);
        reach.write(&chunk, 0, &bytes).unwrap();
        held.push((chunk, bytes));
    }
    let run = client.alloc_run(7).unwrap();
    let across: Vec<u8> = (0..5 << 20).map(|at| (at / 11) as u8).collect();
    reach.write(&run, 3 << 20, &across).unwrap();
    for (chunk, bytes) in &held {
        let mut found = vec![0; bytes.len()];
        reach.read(chunk, 0, &mut found).unwrap();
        assert!(found == *bytes, "a piece of {} bytes was overwritten", bytes.len());
    }
    let mut found = vec![0; across.len()];
    reach.read(&run, 3 << 20, &mut found).unwrap();
    assert!(found == across, "a run was overwritten");
    assert_eq!(reach.write(&run, (14 << 20) - 1, b"no"), Err(ReachError::Range));
    assert_eq!(reach.write(&held[0].0, u64::MAX, b"no"), Err(ReachError::Range));

    // Words, by threads that have a queue pair each.
    reach.write(&held[9].0, 64, &0u64.to_le_bytes()).unwrap();
    let (key, offset) = client.key(&held[9].0, 0).unwrap().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut reach = client.reach().unwrap();
                let queue = reach.queue().unwrap().unwrap();
                for _ in 0..200 {
                    queue.faa(1, key, offset + 64, 1);
                    finish(queue).unwrap();
                }
            });
        }
    });
    assert_eq!(reach.cas(&held[9].0, 64, 600, 7), Ok(600));
    assert_eq!(reach.cas(&held[9].0, 64, 600, 8), Ok(7));
    assert_eq!(reach.faa(&held[9].0, 63, 1), Err(ReachError::Range));

    assert!(stranger.figure(Figure::WindowsBound) >= 7);
    held.into_iter().for_each(|(chunk, _)| client.free(chunk));
    client.free(run);
    client.trim();
    drop(reach);
    drop(client);
    nothing_is_left(&host, &stranger, "everything is given back");
}

#[test]
fn the_common_allocation_asks_neither_agent_nor_node() {
    let mut host = Host::new(256);
    host.agent_elsewhere("");
    let (client, stranger) = (host.client(), Stranger::new(&host));
    let mut held: Vec<Chunk> = (0..400).map(|_| client.alloc(0).unwrap()).collect();
    held.drain(..).for_each(|chunk| client.free(chunk));
    let verbs = || stranger.figure(Figure::WindowsBound);
    let (before, words) = (verbs(), client.counts());
    for _ in 0..1000 {
        held.extend((0..100).map(|_| client.alloc(0).unwrap()));
        held.drain(..).for_each(|chunk| client.free(chunk));
    }
    let counts = client.counts();
    assert_eq!((verbs(), counts.waits - words.waits), (before, 0));
    assert!(counts.words - words.words < 1000, "{counts:?}");
}

#[test]
fn keys_open_nothing_to_others_nor_after_their_time() {
    let mut host = Host::new(256);
    host.agent_elsewhere("");
    let (client, other, mut stranger) = (host.client(), host.client(), Stranger::new(&host));
    let (mut reach, mut others) = (client.reach().unwrap(), other.reach().unwrap());
    let bystander = stamped(&other, &mut others, 0, 5);
    let lent = host.lent();
    // A run: it goes back as soon as it is freed. (Of pieces a program keeps an empty block for a
    // while, with its key.)
    let mine = client.alloc_run(2).unwrap();
    let theirs = client.key(&mine, 0).unwrap().unwrap();
    assert_eq!(reach.write(&mine, 0, b"mine"), Ok(()));
    assert_eq!(stranger.put(theirs, b"no"), Err(Refusal::Access), "a stranger's, by a key that it was told");
    assert_eq!(put(others.queue().unwrap().unwrap(), theirs, b"no"), Err(Refusal::Access), "another program's");
    let (key, _) = theirs;
    for beyond in [(2 << 20) - 1, u64::MAX] {
        assert_eq!(
            put(reach.queue().unwrap().unwrap(), (key, beyond), b"no"),
            Err(Refusal::Access),
            "beyond the block"
        );
    }
    stranger.1.invalidate(1, key);
    assert_eq!(finish(&mut stranger.1), Err(Refusal::Access), "a stranger unbinds nothing");

    // Freed: the blocks go back, and the keys with them.
    client.free(mine);
    within("the old key is refused", || put(reach.queue().unwrap().unwrap(), theirs, b"late") == Err(Refusal::Access));
    within("its blocks are free", || host.lent() <= lent);
    let again = client.alloc_run(2).unwrap();
    let mut word = [1; 4];
    reach.read(&again, 0, &mut word).unwrap();
    assert_eq!((word, client.key(&again, 0) == Ok(Some(theirs))), ([0; 4], false), "clean, by another key");

    // One that gives its window up by itself has no use of its memory, and that is all.
    let (key, _) = client.key(&again, 0).unwrap().unwrap();
    reach.queue().unwrap().unwrap().invalidate(1, key);
    assert!(finish(reach.queue().unwrap().unwrap()).is_ok());
    assert_eq!(reach.write(&again, 0, b"no"), Err(ReachError::Refused(Refusal::Access)));
    client.free(again);
    within("its blocks go back", || host.lent() <= lent);
    checked(&mut others, &bystander, 5);
    host.recount();
}

/// The node has 8192 queue pairs of a member at most. Threads that come and go give theirs back,
/// and the one too many is refused alone.
#[test]
fn queue_pairs_are_used_again_and_one_too_many_harms_no_other() {
    let mut host = Host::new(64);
    host.agent_elsewhere("");
    let client = host.client();
    let chunk = stamped(&client, &mut client.reach().unwrap(), 0, 5);
    for n in 0..10_000 {
        let mut reach = client.reach().unwrap();
        if n % 1000 == 0 {
            checked(&mut reach, &chunk, 5);
        }
    }
    let Stranger(session, mut queue) = Stranger::new(&host);
    let mut held = Vec::new();
    let refused = (0..8192).find_map(|_| session.queue_pair().map(|one| held.push(one)).err());
    assert!(refused.is_some_and(|lost| lost.to_string().contains("as many queue pairs")));
    assert!(!session.standing().is_lost());
    assert_eq!(put(&mut queue, (Key(1), 0), b"no"), Err(Refusal::NotHeld), "it goes on");
}

#[test]
fn verbs_that_somebody_posted_by_the_queue_pair_are_not_taken_for_others() {
    let mut host = Host::new(64);
    host.agent_elsewhere("");
    let client = host.client();
    let mut reach = client.reach().unwrap();
    let chunk = client.alloc(3).unwrap();
    let bytes: Vec<u8> = (0..chunk.bytes()).map(|at| (at / 3) as u8).collect();
    reach.write(&chunk, 0, &bytes).unwrap();
    let (key, offset) = client.key(&chunk, 0).unwrap().unwrap();
    for round in 0..200u64 {
        let queue = reach.queue().unwrap().unwrap();
        (0..5).for_each(|tag| queue.faa(tag, key, offset, 0));
        if round % 2 == 0 {
            queue.doorbell().unwrap();
        }
        let mut found = vec![0; bytes.len() - 16];
        reach.read(&chunk, 8, &mut found).unwrap();
        assert!(found == bytes[8..bytes.len() - 8], "read before it was there");
        let queue = reach.queue().unwrap().unwrap();
        assert_eq!(queue.in_flight(), 0);
        queue.faa(7, key, offset, 0);
        assert_eq!(
            reach.faa(&chunk, chunk.bytes() - 8, 1),
            reach.faa(&chunk, chunk.bytes() - 8, 0).map(|word| word - 1)
        );
    }
    // With some under way it is not kept for the next.
    reach.queue().unwrap().unwrap().faa(1, key, offset, 0);
    drop(reach);
    assert_eq!(client.reach().unwrap().queue().unwrap().unwrap().in_flight(), 0);
}

/// A session that names this owner and this queue pair of his as the one who is to reach its
/// memory.
fn liar(host: &Host, owner: u32, queue: u64) -> Result<Liar, Option<Entry>> {
    Liar::greeting(host, Hello { magic: MAGIC, owner, queue, ..Hello::new_zeroed() }, &[])
}

/// A program that names somebody else as the one who is to reach its memory: it harms itself.
#[test]
fn who_names_another_reaches_nothing() {
    let mut host = Host::new(256);
    host.agent_elsewhere("");
    let (client, stranger) = (host.client(), Stranger::new(&host));
    let mut reach = client.reach().unwrap();
    let bystander = stamped(&client, &mut reach, 0, 5);
    let victim = Stranger::new(&host);
    for (owner, queue) in [(victim.0.owner(), ANY_QUEUE), (stranger.0.owner(), 999), (16_000, ANY_QUEUE)] {
        let mut liar = liar(&host, owner as u32, queue).unwrap();
        match liar.key() {
            Ok(key) => {
                let mut own = Stranger::new(&host);
                assert_eq!(own.put((key, 0), b"no"), Err(Refusal::Access), "as itself");
                own.1.invalidate(1, key);
                assert_eq!(finish(&mut own.1), Err(Refusal::Access));
            }
            Err(refused) => assert_eq!((refused, owner), (Down::Done(Some(Unserved::Stranger)), 16_000)),
        }
    }
    assert_eq!(liar(&host, 0, ANY_QUEUE).err(), Some(Some(Entry::Elsewhere)));
    assert_eq!(liar(&host, 1 << 16, ANY_QUEUE).err(), Some(Some(Entry::Malformed)));
    checked(&mut reach, &bystander, 5);

    // One that breaks the protocol is shown out, and its key ends although it lives.
    let mut own = Stranger::new(&host);
    let mut liar = liar(&host, own.0.owner() as u32, own.1.number()).unwrap();
    let key = liar.key().unwrap();
    assert_eq!(own.put((key, 0), b"mine"), Ok(0));
    let mut second = own.0.queue_pair().unwrap();
    assert_eq!(put(&mut second, (key, 0), b"no"), Err(Refusal::Access), "not the queue pair that was named");
    liar.say(u64::MAX);
    within("its key is refused", || own.put((key, 0), b"late") == Err(Refusal::Access));
    within("nothing is held for it", || stranger.figure(Figure::WindowsBound) == 1);
    checked(&mut reach, &bystander, 5);
    host.recount();
}

#[test]
fn quotas_hold_elsewhere_too() {
    let mut host = Host::new(256);
    host.agent_elsewhere("quota=16");
    let client = host.client();
    let held: Vec<Chunk> = (0..8).map(|_| client.alloc(9).unwrap()).collect();
    assert_eq!(client.alloc(0).err(), Some(AllocError::Quota));
    held.into_iter().for_each(|chunk| client.free(chunk));
    assert!(client.alloc(0).is_ok());
    let nowhere = Options { socket: host.dir.join("nobody"), patience: Duration::from_millis(50), ..host.options("") };
    assert!(matches!(Client::connect(nowhere).err(), Some(ConnectError::Nobody(_))));
}

#[test]
fn a_killed_program_leaves_nothing() {
    let mut host = Host::new(256);
    host.agent_elsewhere("");
    let (bystander, stranger) = (host.client(), Stranger::new(&host));
    let mut reach = bystander.reach().unwrap();
    let piece = stamped(&bystander, &mut reach, 0, 77);
    let (lent, bound) = (host.lent(), stranger.figure(Figure::WindowsBound));
    let tries: Vec<Duration> = (0..4)
        .map(|_| {
            let mut program = host.program("holder");
            within("it holds", || host.dir.join("holds").exists());
            assert!(stranger.figure(Figure::WindowsBound) > bound);
            std::fs::remove_file(host.dir.join("holds")).unwrap();
            program.kill();
            within_of(LIMIT, "its memory is free, and its windows are unbound", || {
                host.lent() <= lent && stranger.figure(Figure::WindowsBound) <= bound
            })
        })
        .take_while(|took| *took > Duration::from_secs(1))
        .collect();
    assert!(tries.len() < 4, "never within a second: {tries:?}");
    checked(&mut reach, &piece, 77);
    host.recount();
}

#[test]
fn agents_killed_at_any_moment_lose_neither_a_block_nor_a_key() {
    let mut host = Host::new(512);
    // Longer than all that is held takes to be read while there is no agent, on a machine that is
    // busy.
    let grace = format!("grace={}", LIMIT.as_millis());
    host.agent_elsewhere(&grace);
    let (client, stranger) = (host.client(), Stranger::new(&host));
    let mut reach = client.reach().unwrap();
    let mut held: Vec<(Chunk, u64)> = (0..700).map(|n| (stamped(&client, &mut reach, (n % 5) as u8, n), n)).collect();
    let run = client.alloc_run(6).unwrap();
    reach.write(&run, 9 << 20, b"of a run").unwrap();
    let mut programs: Vec<_> = (0..3).map(|_| host.program("churner")).collect();
    programs.iter().for_each(|program| at_work(&host.dir, program));
    for round in 0..6u64 {
        std::thread::sleep(Duration::from_millis(11 * round));
        host.kill_agent();
        // What is held is reached while there is no agent.
        held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
        host.agent_elsewhere(&grace);
        let (chunk, stamp) = held.swap_remove(round as usize * 31 % held.len());
        checked(&mut reach, &chunk, stamp);
        client.free(chunk);
        held.extend((0..150).map(|n| (stamped(&client, &mut reach, (n % 4) as u8, n), n)));
        held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
        let mut word = [0; 8];
        reach.read(&run, 9 << 20, &mut word).unwrap();
        assert_eq!(&word, b"of a run");
    }
    std::fs::write(host.dir.join("enough"), "").unwrap();
    assert!(programs.iter_mut().all(|program| program.ended_well()));
    held.into_iter().for_each(|(chunk, _)| client.free(chunk));
    client.free(run);
    client.trim();
    drop(reach);
    drop(client);
    nothing_is_left(&host, &stranger, "everything is given back");
}

#[test]
fn a_host_that_dies_leaves_nothing() {
    let host = Host::new(256);
    let at = host.node.addresses()[1].to_string();
    let NodeAddr::Tcp(_) = &host.node.addresses()[1] else { panic!("not tcp: {at}") };
    let stranger = Stranger::new(&host);
    let mut doomed = host.beside("doomed", &format!("tcp={at} grace=50"));
    let mut programs: Vec<_> = (0..2).map(|_| doomed.program("churner")).collect();
    programs.iter().for_each(|program| at_work(&doomed.dir, program));
    doomed.agent.kill();
    programs.iter_mut().for_each(|program| program.kill());
    nothing_is_left(&host, &stranger, "its memory is the node's again");
}
