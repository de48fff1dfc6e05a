//! An agent that moves from node to node while its programs work.

mod common;

use common::liar::Liar;
use common::pieces::{checked, stamped};
use common::programs::{self, Churn};
use common::stranger::{Stranger, finish};
use common::{Host, LIMIT, at_work, be_agent, child, within};
use farmem_agent::blocks::Blocks;
use farmem_agent::client::{Chunk, ReachError};
use farmem_agent::hello::{Hello, MAGIC};
use farmem_agent::host::{Agent, Config, used};
use farmem_agent::ledger::Ledger;
use farmem_agent::stock::Quotas;
use farmem_agent::word::Up;
use farmem_fabric::{ConnectOptions, NodeAddr, Transport, Trust};
use farmem_protocol::random::Random;
use farmem_protocol::wire::{ANY_QUEUE, Figure};
use std::cell::RefCell;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use zerocopy::FromZeros;

/// Not a test: what this binary does as a child.
#[test]
fn a_child() {
    let Some(words) = child() else { return };
    if words[0] == "agent" {
        return be_agent(&words);
    }
    let (dir, client) = programs::client(&words);
    let reach = RefCell::new(client.reach().unwrap());
    let stamped = |order, stamp| stamped(&client, &mut reach.borrow_mut(), order, stamp);
    let checked = |chunk: &Chunk, stamp| checked(&mut reach.borrow_mut(), chunk, stamp);
    programs::churn_by(&client, &dir, Churn { most: 300, told_after: 500 }, stamped, checked);
}

/// No memory is lent and no window bound, in a while.
fn is_left(host: &Host, stranger: &Stranger, what: &str) {
    within(what, || host.lent() == 0 && stranger.figure(Figure::WindowsBound) == 0);
    host.recount();
}

/// Pieces, a run and a counter are at their place whenever the agent moves. What threads write while a block moves is in
/// the copy, or is written where it has moved to. The old node may go at once.
#[test]
fn what_programs_hold_moves_with_the_agent() {
    let (mut host, others) = (Host::new(256), [Host::new(256), Host::new(256)]);
    host.agent_elsewhere("");
    let (client, stranger) = (host.client(), Stranger::new(&host));
    let mut programs: Vec<_> = (0..2).map(|_| host.program("churner")).collect();
    programs.iter().for_each(|program| at_work(&host.dir, program));
    let mut reach = client.reach().unwrap();
    let held: Vec<(Chunk, u64)> = (0..600).map(|n| (stamped(&client, &mut reach, (n % 5) as u8, n), n)).collect();
    let run = client.alloc_run(5).unwrap();
    let across: Vec<u8> = (0..3 << 20).map(|at| (at / 11) as u8).collect();
    reach.write(&run, 3 << 20, &across).unwrap();
    let (counted, mut counts, mut last) = (client.alloc(0).unwrap(), 0u64, 0u64);
    for (nth, other) in others.iter().enumerate() {
        host.move_to(other);
        while !host.has_moved(other) {
            // Each is answered, and none is carried out twice.
            assert_eq!(reach.faa(&counted, 64, 1), Ok(counts));
            counts += 1;
            assert_eq!(reach.cas(&counted, 128, last, counts), Ok(last));
            last = counts;
            let (chunk, stamp) = &held[counts as usize * 31 % held.len()];
            checked(&mut reach, chunk, *stamp);
            reach.write(&counted, 192, &counts.to_le_bytes()).unwrap();
            let mut word = [0; 8];
            reach.read(&counted, 192, &mut word).unwrap();
            assert_eq!(u64::from_le_bytes(word), counts);
        }
        let (from, its) = if nth == 0 { (&host, &stranger) } else { (&others[0], &Stranger::new(&others[0])) };
        is_left(from, its, "the old node lends nothing");
        held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
        let mut found = vec![0; across.len()];
        reach.read(&run, 3 << 20, &mut found).unwrap();
        assert!(found == across, "a run was overwritten");
        // A key and the queue pair to its node come by one call: the first of a way leads elsewhere by now.
        let (queue, key, offset) = reach.queue_to(&counted, 64).unwrap().unwrap();
        queue.faa(1, key, offset, 1);
        assert_eq!(finish(queue), Ok(counts), "a word that was posted by hand");
        counts += 1;
        let more = stamped(&client, &mut reach, 3, 7);
        checked(&mut reach, &more, 7);
        client.free(more);
    }
    assert!(counts > 10);
    // Who comes now is sent to the node that memory is at.
    let late = host.client();
    let mut lates = late.reach().unwrap();
    let piece = stamped(&late, &mut lates, 4, 9);
    checked(&mut lates, &piece, 9);
    late.free(piece);
    std::fs::write(host.dir.join("enough"), "").unwrap();
    assert!(programs.iter_mut().all(|program| program.ended_well()));
    held.into_iter().for_each(|(chunk, _)| client.free(chunk));
    [run, counted].into_iter().for_each(|chunk| client.free(chunk));
    client.trim();
    late.trim();
    drop((reach, lates));
    drop((client, late));
    is_left(&others[1], &Stranger::new(&others[1]), "everything is given back");
}

/// An agent that is killed in the midst of a move leaves each block at one node, and the next one ends the move.
#[test]
fn agents_killed_in_the_midst_of_a_move_lose_nothing() {
    // The agent's files are at the host. Its own node is not used.
    let (mut host, nodes) = (Host::new(64), [Host::new(256), Host::new(256)]);
    let grace = format!("grace={}", common::LIMIT.as_millis());
    let address = |at: usize| nodes[at].node.addresses()[1].to_string();
    host.agent(&format!("tcp={} {grace}", address(0)));
    let client = host.client();
    let strangers = [0, 1].map(|at| Stranger::new(&nodes[at]));
    let mut reach = client.reach().unwrap();
    let held: Vec<(Chunk, u64)> = (0..60).map(|n| (stamped(&client, &mut reach, 9, n), n)).collect();
    let run = client.alloc_run(4).unwrap();
    reach.write(&run, 5 << 20, b"of a run").unwrap();
    let mut random = Random::new(5);
    for round in 0..8 {
        let (to, from) = (&nodes[(round + 1) % 2], &nodes[round % 2]);
        let before = to.lent();
        host.move_to(to);
        // The move has begun, and is somewhere.
        within("the move begins", || to.lent() > before || host.has_moved(to));
        std::thread::sleep(Duration::from_micros(random.below(40_000)));
        host.kill_agent();
        host.agent(&format!("tcp={} {grace}", address(random.index(2))));
        held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
        let more = stamped(&client, &mut reach, 2, round as u64);
        checked(&mut reach, &more, round as u64);
        client.free(more);
        // The order stands: the next agent finds it.
        within("the move ends", || host.has_moved(to) && from.lent() == 0);
        held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
        let mut word = [0; 8];
        reach.read(&run, 5 << 20, &mut word).unwrap();
        assert_eq!(&word, b"of a run");
        std::fs::remove_file(host.dir.join("moved")).unwrap();
    }
    held.into_iter().for_each(|(chunk, _)| client.free(chunk));
    client.free(run);
    client.trim();
    drop(reach);
    drop(client);
    nodes.iter().zip(&strangers).for_each(|(node, stranger)| is_left(node, stranger, "nothing is left"));
}

/// Where the new node has no room, what does not fit stays where it is, and is used there. It follows when there is room.
#[test]
fn a_move_waits_for_room() {
    let (mut host, small) = (Host::new(256), Host::new(64));
    host.agent_elsewhere("");
    let client = host.client();
    let mut reach = client.reach().unwrap();
    let mut held: Vec<(Chunk, u64)> = (0..50).map(|n| (stamped(&client, &mut reach, 9, n), n)).collect();
    host.move_to(&small);
    within("the new node is full", || small.lent() == 64 << 20);
    held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
    assert!(host.lent() >= 36 << 20 && !host.has_moved(&small));
    within("who asked for the move is told", || host.dir.join("waits-for-room").exists());
    while held.len() > 20 {
        let (chunk, stamp) = held.swap_remove(held.len() / 2);
        checked(&mut reach, &chunk, stamp);
        client.free(chunk);
    }
    client.trim();
    within("the rest follows", || host.has_moved(&small) && host.lent() == 0);
    held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
}

/// A run for which the new node has no neighbours stays for now. Pieces do not wait with it.
#[test]
fn a_run_that_does_not_fit_keeps_nothing_else() {
    let (mut host, mut small) = (Host::new(256), Host::new(64));
    host.agent_elsewhere("");
    small.agent("");
    let (client, theirs) = (host.client(), small.client());
    let mut reach = client.reach().unwrap();
    let in_the_way = theirs.alloc(9).unwrap();
    let run = client.alloc_run(32).unwrap();
    reach.write(&run, 63 << 20, b"of a run").unwrap();
    let held: Vec<(Chunk, u64)> = (0..20).map(|n| (stamped(&client, &mut reach, 9, n), n)).collect();
    host.move_to(&small);
    within("all but the run has moved", || host.lent() == run.bytes());
    assert!(!host.has_moved(&small));
    let mut word = [0; 8];
    reach.read(&run, 63 << 20, &mut word).unwrap();
    assert_eq!(&word, b"of a run");
    // The other way about: now there are neighbours.
    for (chunk, stamp) in held {
        checked(&mut reach, &chunk, stamp);
        client.free(chunk);
    }
    theirs.free(in_the_way);
    client.trim();
    theirs.trim();
    drop(theirs);
    within("the run follows", || host.has_moved(&small) && host.lent() == 0);
    reach.read(&run, 63 << 20, &mut word).unwrap();
    assert_eq!(&word, b"of a run");
}

/// An agent is killed when it has joined another node, and claimed nothing there. That node ends.
#[test]
fn a_node_that_ends_before_anything_is_there_costs_nothing() {
    let mut host = Host::new(256);
    let grace = format!("grace={}", LIMIT.as_millis());
    host.agent_elsewhere(&grace);
    let client = host.client();
    let mut reach = client.reach().unwrap();
    let held: Vec<(Chunk, u64)> = (0..20).map(|n| (stamped(&client, &mut reach, 7, n), n)).collect();
    for names_the_other in [false, true] {
        host.kill_agent();
        let other = Host::new(64);
        let at = other.node.addresses()[1].to_string();
        let ledger = ledger(&host);
        ledger.set_address(1, &at);
        let transport = Transport::Tcp;
        let options = ConnectOptions { timeout: LIMIT, grace: LIMIT, run: [5; 16], transport, ..Default::default() };
        let joined = Blocks::join_as(&NodeAddr::Tcp(at.clone()), &options, (Arc::clone(&ledger), 1));
        assert!(joined.is_ok() && ledger.membership(1).is_some());
        drop((joined, other));
        let named = if names_the_other { at } else { host.node.addresses()[1].to_string() };
        host.agent(&format!("tcp={named} {grace}"));
        assert_eq!(host.agent_said(), "recovered 1");
        assert!(ledger.membership(1).is_none());
        held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
        let more = stamped(&client, &mut reach, 9, 5);
        checked(&mut reach, &more, 5);
        client.free(more);
    }
}

/// An agent is killed between two nodes, and the one that it was leaving ends. Programs that have
/// nothing there any more keep what they have.
#[test]
fn who_has_left_a_node_that_ends_loses_nothing() {
    // The agent's files are at the host. Its own node is not used.
    let (mut host, from, mut to) = (Host::new(64), Host::new(256), Host::new(64));
    let address = |node: &Host| node.node.addresses()[1].to_string();
    let grace = format!("grace={}", LIMIT.as_millis());
    host.agent(&format!("tcp={} {grace}", address(&from)));
    to.agent("");
    let in_the_way = to.client();
    let _block = in_the_way.alloc(9).unwrap();
    let (client, unlucky) = (host.client(), host.client());
    let mut reach = client.reach().unwrap();
    let held: Vec<(Chunk, u64)> = (0..10).map(|n| (stamped(&client, &mut reach, 9, n), n)).collect();
    let _at_both = (unlucky.alloc(9).unwrap(), unlucky.alloc_run(32).unwrap());
    host.move_to(&to);
    within("all but the run has moved", || from.lent() == 64 << 20);
    // It has been told where they are.
    held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
    let lent = to.lent();
    host.kill_agent();
    drop(from);
    host.agent(&format!("tcp={} {grace}", address(&to)));
    assert_eq!(host.agent_said(), "recovered 1");
    held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
    within("what the other program had here goes back", || to.lent() < lent);
    let more = stamped(&client, &mut reach, 9, 5);
    checked(&mut reach, &more, 5);
    assert!(unlucky.alloc_run(2).is_err());
    to.recount();
}

/// A node without room for all is given up for a third one, in the middle of the move. All memory
/// comes there, from both nodes.
#[test]
fn an_agent_without_room_goes_to_a_third_node() {
    let (mut host, small, third) = (Host::new(256), Host::new(64), Host::new(256));
    host.agent_elsewhere(&format!("grace={}", LIMIT.as_millis()));
    let client = host.client();
    let mut reach = client.reach().unwrap();
    let held: Vec<(Chunk, u64)> = (0..50).map(|n| (stamped(&client, &mut reach, 9, n), n)).collect();
    host.move_to(&small);
    within("the new node is full", || small.lent() == 64 << 20);
    host.move_to(&third);
    within("some are at the third", || third.lent() > 4 << 20);
    // The next agent knows of all three.
    host.kill_agent();
    let at = host.node.addresses()[1].to_string();
    host.agent(&format!("tcp={at} grace={}", LIMIT.as_millis()));
    held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
    within("all is at the third", || host.lent() == 0 && small.lent() == 0 && third.lent() == 100 << 20);
    held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
    third.recount();
}

/// The node that an agent moves to ends, and then the agent. Programs that have nothing there yet keep
/// their memory at the node that was being left. Others are dismissed.
#[test]
fn what_has_not_moved_to_a_node_that_ends_stays() {
    let (mut host, mut small, other) = (Host::new(256), Host::new(64), Host::new(256));
    let grace = format!("grace={}", LIMIT.as_millis());
    host.agent_elsewhere(&grace);
    small.agent("");
    let theirs = small.client();
    let _in_the_way = theirs.alloc(9).unwrap();
    let (lucky, unlucky) = (host.client(), host.client());
    let mut reach = lucky.reach().unwrap();
    // It finds no room, and stays.
    let run = lucky.alloc_run(32).unwrap();
    reach.write(&run, 63 << 20, b"of a run").unwrap();
    let _one = unlucky.alloc(9).unwrap();
    host.move_to(&small);
    within("the piece has moved", || small.lent() == 4 << 20 && host.lent() == 64 << 20);
    host.kill_agent();
    drop(small);
    std::fs::remove_file(host.dir.join("move-to")).unwrap();
    host.agent(&format!("tcp={} {grace}", other.node.addresses()[1]));
    assert_eq!(host.agent_said(), "recovered 1");
    let mut word = [0; 8];
    reach.read(&run, 63 << 20, &mut word).unwrap();
    assert_eq!(&word, b"of a run");
    let more = stamped(&lucky, &mut reach, 9, 5);
    checked(&mut reach, &more, 5);
    assert!(unlucky.alloc_run(2).is_err());
    host.move_to(&other);
    within("it moves from there", || host.has_moved(&other) && host.lent() == 0);
    reach.read(&run, 63 << 20, &mut word).unwrap();
    assert_eq!(&word, b"of a run");
    checked(&mut reach, &more, 5);
}

/// A program has not touched a piece since it moved. The old node ends, and the agent. The next agent
/// says where the piece is.
#[test]
fn who_was_away_while_the_node_and_the_agent_ended_asks_the_next_agent() {
    let (mut host, from, to) = (Host::new(64), Host::new(256), Host::new(256));
    let address = |node: &Host| node.node.addresses()[1].to_string();
    let grace = format!("grace={}", LIMIT.as_millis());
    host.agent(&format!("tcp={} {grace}", address(&from)));
    let client = host.client();
    let mut reach = client.reach().unwrap();
    let held: Vec<(Chunk, u64)> = (0..10).map(|n| (stamped(&client, &mut reach, 9, n), n)).collect();
    host.move_to(&to);
    within("it moves", || host.has_moved(&to) && from.lent() == 0);
    // The old node goes down at once: it does not wait for a program that has nothing there.
    assert_eq!(from.node.drain(LIMIT), 0);
    assert_eq!(used(&host.dir), None, "an agent runs");
    host.kill_agent();
    within("its lock is free", || used(&host.dir) == Some(NodeAddr::Tcp(address(&to))));
    drop(from);
    host.agent(&format!("tcp={} {grace}", address(&to)));
    assert_eq!(host.agent_said(), "recovered 1");
    held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
    // Without either it is told soon, and once more at once.
    host.kill_agent();
    drop(to);
    let begun = Instant::now();
    for (chunk, _) in held.iter().take(3) {
        assert!(matches!(reach.read(chunk, 0, &mut [0; 8]), Err(ReachError::Lost(_))));
    }
    assert!(begun.elapsed() < LIMIT);
}

/// Of threads that move an agent at once one does, and the others find it moved.
#[test]
fn threads_that_move_an_agent_at_once_move_it_once() {
    let nodes = [Host::new(64), Host::new(64)];
    let address = |at: usize| nodes[at % 2].node.addresses()[1].clone();
    let config = Config {
        dir: nodes[0].dir.clone(),
        node: address(0),
        transport: Transport::Tcp,
        quotas: Quotas::default(),
        idle: None,
        grace: LIMIT,
        trust: Trust::default(),
    };
    let agent = Agent::start(config).unwrap();
    let ledger = ledger(&nodes[0]);
    for round in 1..6 {
        let together = Barrier::new(4);
        let mut has_moved: Vec<bool> = std::thread::scope(|scope| {
            let one = || {
                let mover = agent.mover();
                together.wait();
                mover.to(&address(round)).unwrap()
            };
            let all: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        has_moved.sort_unstable();
        assert_eq!(has_moved, [false, false, false, true]);
        let (current, moves) = ledger.current();
        assert_eq!(moves, round as u64);
        assert!(ledger.membership(current).is_some() && ledger.membership(1 - current).is_none());
        assert_eq!(ledger.address(current), Some(address(round).to_string()));
    }
}

/// The record of a host's agent.
fn ledger(host: &Host) -> Arc<Ledger> {
    let file = std::fs::File::options().read(true).write(true).open(host.dir.join("agent.ledger")).unwrap();
    let (ledger, is_known) = Ledger::open(file.as_raw_fd()).unwrap();
    assert!(is_known);
    Arc::new(ledger)
}

/// A program that says of itself what it likes has no block of another's.
#[test]
fn who_lies_about_its_members_harms_itself() {
    let (mut host, other) = (Host::new(256), Host::new(256));
    host.agent_elsewhere("");
    let client = host.client();
    let mut reach = client.reach().unwrap();
    let piece = stamped(&client, &mut reach, 9, 3);
    let own = Stranger::new(&host);
    let hello = Hello { magic: MAGIC, owner: own.0.owner() as u32, queue: ANY_QUEUE, ..Hello::new_zeroed() };
    let mut liar = Liar::greeting(&host, hello, &[]).unwrap();
    liar.chunk();
    for node in 0..200 {
        liar.say(Up::Member { node, owner: 16_000 }.bits());
    }
    host.move_to(&other);
    within("it moves", || host.has_moved(&other) && host.lent() == 0);
    checked(&mut reach, &piece, 3);
    // Where a block is that it does not have, it is not told.
    liar.say(Up::Where(farmem_agent::word::BlockId(1 << 20)).bits());
    assert_ne!(liar.verdict(), 0);
    checked(&mut reach, &piece, 3);
}
