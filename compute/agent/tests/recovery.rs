//! Hosts that die: agents and their programs, killed in the middle of their work. What they held
//! goes back by the words alone, nobody else notices, and nobody finds wrong bytes.

mod common;

use common::programs::{be_child, checked, is_zero, stamped};
use common::{Host, at_work, within};
use farmem_agent::client::{AllocError, Chunk};
use std::time::Duration;

/// Not a test: what this binary does as a child.
#[test]
fn a_child() {
    be_child();
}

#[test]
fn a_host_that_dies_in_the_middle_of_its_work_leaves_nothing() {
    let host = Host::new(512);
    let (survivor, quiet) = (host.beside("survivor", ""), host.recount().held.len());
    let client = survivor.client();
    let mut held: Vec<(Chunk, u64)> = (0..2000).map(|i| (stamped(&client, (i % 3) as u8, i), i)).collect();
    let lent = host.node.nic().lent();
    for round in 0..4 {
        let mut doomed = host.beside(&format!("doomed-{round}"), "grace=50");
        let mut programs: Vec<_> = (0..3).map(|_| doomed.program("churner")).collect();
        programs.iter().for_each(|program| at_work(&doomed.dir, program));
        // At another moment of their work each time.
        std::thread::sleep(Duration::from_millis(7 * round));
        host.recount();
        within("they hold something", || host.node.nic().lent() > lent);
        match round % 2 {
            0 => doomed.agent.kill(),
            _ => programs.iter_mut().for_each(|program| program.kill()),
        }
        doomed.agent.kill();
        programs.iter_mut().for_each(|program| program.kill());
        // The survivor goes on meanwhile, and while the dead one's words are recovered.
        within("its memory is the node's again", || {
            for _ in 0..50 {
                let (chunk, stamp) = held.swap_remove(held.len() / 2);
                checked(&chunk, stamp);
                client.free(chunk);
                held.push((stamped(&client, 0, stamp + 1), stamp + 1));
            }
            host.node.nic().lent() <= lent
        });
        // The survivor gives blocks back all the time, too: what is on its way then is clean soon.
        within("only the survivor holds anything", || {
            let sum = host.recount();
            (sum.held.len(), sum.quarantined + sum.moving) == (1, 0)
        });
    }
    // Everything can be had again, and is clean.
    let mut rest = Vec::new();
    loop {
        match client.alloc(9) {
            Ok(chunk) => {
                assert!(is_zero(&chunk));
                rest.push(chunk);
            }
            Err(e) => {
                assert_eq!(e, AllocError::Exhausted);
                break;
            }
        }
    }
    assert_eq!(host.node.nic().lent(), 512 << 20);
    for (chunk, stamp) in held {
        checked(&chunk, stamp);
        client.free(chunk);
    }
    rest.into_iter().for_each(|chunk| client.free(chunk));
    drop(client);
    within("nothing is held", || host.node.nic().lent() == 0);
    assert_eq!((host.recount().held.len(), quiet), (0, 0));
}

/// Its agent is dead, nobody took over in time, and the node has lent its blocks to others: a
/// program that lives has the bytes that it wrote.
#[test]
fn a_program_whose_agent_is_gone_for_good_keeps_its_bytes() {
    let host = Host::new(64);
    let mut doomed = host.beside("doomed", "grace=50");
    let client = doomed.client();
    let held: Vec<(Chunk, u64)> = (0..3000).map(|i| (stamped(&client, 0, i), i)).collect();
    doomed.agent.kill();
    within("the node lends it no more", || host.node.nic().lent() == 0);
    host.recount();
    let other = host.beside("other", "");
    let theirs = other.client();
    let run = theirs.alloc_run(32).unwrap();
    assert!(is_zero(&run), "all of the node's memory");
    held.iter().for_each(|(chunk, stamp)| checked(chunk, *stamp));
    assert!(is_zero(&run), "and none of it the program's");
}

/// A claim is made and not yet recorded, a record struck out and its block not yet given back: the
/// next agent reads the words, and gives back what no record has.
#[test]
fn agents_killed_at_any_moment_lose_no_block() {
    let mut host = Host::new(512);
    host.agent("");
    let mut churners: Vec<_> = (0..3).map(|_| host.program("churner")).collect();
    churners.iter().for_each(|program| at_work(&host.dir, program));
    for round in 0..8u64 {
        std::thread::sleep(Duration::from_millis(3 + 5 * round));
        host.kill_agent();
        host.recount();
        host.agent("");
        assert_eq!(host.agent_said(), "recovered 3", "round {round}");
    }
    common::tell(&host.dir, "enough");
    assert!(churners.iter_mut().all(|churner| churner.ended_well()), "a program found wrong bytes");
    within("every block is free again", || host.node.nic().lent() == 0);
    assert_eq!(host.recount().held.len(), 0);
}

/// What an agent keeps for a program beyond what that holds, the next one gives back at its start:
/// whether the program comes back, it does not wait to see.
#[test]
fn what_a_killed_agent_kept_for_a_silent_program_goes_back() {
    let mut host = Host::new(512);
    let kept = |host: &mut Host| {
        host.agent("");
        let client = host.client();
        let pieces: Vec<(Chunk, u64)> = (0..20).map(|i| (stamped(&client, 9, i), i)).collect();
        let mut pieces = pieces.into_iter();
        let held: Vec<(Chunk, u64)> = pieces.by_ref().take(10).collect();
        pieces.for_each(|(piece, _)| client.free(piece));
        // Two of the eleven blocks that it holds now, and for some heartbeats only.
        within("the agent keeps its share", || host.lent() <= client.held() + (4 << 20));
        host.kill_agent();
        (host.lent() > client.held()).then_some((client, held))
    };
    // Killed too late, on a machine that is slow: once more.
    let (client, held) =
        (0..20).find_map(|_| kept(&mut host)).expect("an agent that is killed while it keeps something");
    host.agent("");
    assert_eq!(host.agent_said(), "recovered 1");
    within("what nobody holds is the node's", || host.lent() == client.held());
    assert_eq!(client.counts().again, 0, "it has said nothing");
    host.recount();
    held.iter().for_each(|(piece, stamp)| checked(piece, *stamp));
    held.into_iter().for_each(|(piece, _)| client.free(piece));
    client.trim();
    client.free(client.alloc_run(3).unwrap());
    assert_eq!((client.held(), client.counts().again), (0, 1));
    within("everything is the node's", || host.lent() == 0);
}
