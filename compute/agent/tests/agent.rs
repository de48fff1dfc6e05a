//! Applications and agents as processes: what is got, kept, killed and recovered.

// Reading and writing the memory that was got.
#![allow(unsafe_code)]

mod common;

use common::programs::{be_child, checked, is_zero, stamped};
use common::{Host, at_work, tell, within, within_of};
use farmem_agent::client::{AllocError, Chunk, Client, ConnectError, Options};
use farmem_fabric::{NodeAddr, Transport};
use std::time::{Duration, Instant};

/// What is promised within a second is waited for so long, on a machine that is slow and busy; one
/// try of [`TRIES`] must keep the promise.
const SOON: Duration = Duration::from_secs(10);
const TRIES: usize = 4;

fn within_a_second(mut attempt: impl FnMut() -> Duration) {
    let took: Vec<Duration> = (0..TRIES).map(|_| attempt()).take_while(|&took| took > Duration::from_secs(1)).collect();
    assert!(took.len() < TRIES, "never within a second: {took:?}");
}

/// Not a test: what this binary does as a child.
#[test]
fn a_child() {
    be_child();
}

#[test]
fn pieces_and_runs_are_had_and_given_back() {
    let mut host = Host::new(512);
    host.agent("");
    let client = host.client();
    let mut all = Vec::new();
    for order in (0..=9).chain([0, 0, 5, 9]) {
        let chunk = client.alloc(order).unwrap();
        assert!(is_zero(&chunk) && (chunk.number()).is_multiple_of(4096 << order));
        all.push((chunk, order as u64));
    }
    let run = client.alloc_run(32).unwrap();
    assert_eq!((run.bytes(), is_zero(&run)), (64 << 20, true));
    all.push((run, 77));
    all.push((client.alloc_run(3).unwrap(), 78));
    assert!(matches!(client.alloc(10), Err(AllocError::Size)) && matches!(client.alloc_run(33), Err(AllocError::Size)));
    for (chunk, stamp) in &all {
        for at in (0..chunk.bytes() as usize).step_by(4096) {
            // SAFETY: the chunk is ours.
            unsafe { chunk.address().unwrap().add(at).cast::<u64>().write(*stamp + at as u64) };
        }
    }
    for (chunk, stamp) in &all {
        for at in (0..chunk.bytes() as usize).step_by(4096) {
            // SAFETY: as above.
            assert_eq!(unsafe { chunk.address().unwrap().add(at).cast::<u64>().read() }, *stamp + at as u64);
        }
    }
    all.into_iter().for_each(|(chunk, _)| client.free(chunk));
    client.trim();
    assert_eq!(client.held(), 0);
    within("freed blocks have no memory", || host.used() <= 4 << 20);
    drop(client);
    within("slabs are the node's again", || host.lent() == 0);
}

#[test]
fn the_common_allocation_asks_nobody() {
    let mut host = Host::new(512);
    host.agent("");
    let client = host.client();
    let mut held: Vec<Chunk> = (0..10_000).map(|_| client.alloc(0).unwrap()).collect();
    // Growth: a word for 128 chunks.
    let grown = client.counts();
    assert!(grown.words < 10_000 / 64, "{grown:?}");
    let rounds = (0..5).map(|_| {
        let before = client.counts();
        for _ in 0..20 {
            held.drain(..200).for_each(|chunk| client.free(chunk));
            held.extend((0..200).map(|_| client.alloc(0).unwrap()));
        }
        let after = client.counts();
        // 4000 of each. A word goes for many, and nobody waits.
        assert!(after.words - before.words <= 200, "{before:?} {after:?}");
        after.bells - before.bells
    });
    // A wake-up goes for fewer, but where the machine takes the CPU away just when there is a word:
    // not most times.
    let mut bells: Vec<u64> = rounds.collect();
    bells.sort_unstable();
    assert!(bells[2] <= 100, "{bells:?}");
    held.into_iter().for_each(|chunk| client.free(chunk));
}

/// Larger pieces come a few at a time; those above 128 KiB, and those of a size used once, one by
/// one.
#[test]
fn larger_pieces_are_granted_ahead_by_a_few() {
    let mut host = Host::new(512);
    host.agent("");
    let client = host.client();
    let once = client.alloc(3).unwrap();
    assert_eq!(client.held(), 32 << 10, "none beyond what was asked for");
    let mut held: Vec<Chunk> = (0..200).map(|i| stamped(&client, 2, i)).collect();
    let counts = client.counts();
    // A word for four, a MAP for each block, and no wait where the answer came in time.
    assert!(counts.words <= 70 && counts.waits <= 70, "{counts:?}");
    assert!(client.held() <= (32 << 10) + (208 << 14), "{}", client.held());
    held.iter().enumerate().for_each(|(i, chunk)| checked(chunk, i as u64));
    held.drain(..).for_each(|chunk| client.free(chunk));
    let large = client.alloc(9).unwrap();
    client.free(large);
    client.free(once);
    client.trim();
    assert_eq!(client.held(), 0);
}

/// A program that frees what it had keeps at most as many bytes of each size as of chunks: one
/// block, two pieces of half a block.
#[test]
fn what_is_kept_is_bounded_by_bytes() {
    let mut host = Host::new(512);
    host.agent("");
    let client = host.client();
    for order in 0..=9 {
        let size = 4096u64 << order;
        let pieces: Vec<Chunk> = (0..(16 << 20) / size).map(|_| client.alloc(order).unwrap()).collect();
        pieces.into_iter().for_each(|piece| client.free(piece));
        let kept = client.held();
        assert!((size..=2 << 20).contains(&kept), "{kept} bytes in pieces of {size}");
        // Who takes and frees in turns goes on without a word.
        let before = client.counts();
        for _ in 0..10 {
            client.free(client.alloc(order).unwrap());
        }
        assert_eq!(client.counts(), before, "pieces of {size}");
        client.trim();
        assert_eq!(client.held(), 0);
    }
}

/// Memory has run out: what the agent keeps for a program that is idle goes to who asks at once,
/// what the program keeps itself when it next frees or asks.
#[test]
fn what_lies_idle_is_recalled_when_memory_runs_out() {
    let mut host = Host::new(64);
    host.agent("");
    let (idle, hungry) = (host.client(), host.client());
    let pieces: Vec<Chunk> = (0..40).map(|_| idle.alloc(8).unwrap()).collect();
    let last = idle.alloc(0).unwrap();
    pieces.into_iter().for_each(|chunk| idle.free(chunk));
    // Some MiB that it may use again, beside one chunk and those granted ahead with it.
    let kept = idle.held() / (1 << 20);
    assert!(kept >= 2, "{kept} MiB");
    let mut held = Vec::new();
    let mut eat = || {
        let refused = loop {
            match hungry.alloc(9) {
                Ok(block) => held.push(block),
                Err(refused) => break refused,
            }
        };
        assert!(matches!(refused, AllocError::Exhausted), "{refused}");
        held.len()
    };
    let first = eat();
    // Of 32 blocks all but those of which it keeps a piece: the agent keeps none.
    assert!(first >= 32 - 1 - kept as usize, "{first} blocks, {kept} MiB kept");
    idle.free(last);
    assert_eq!(idle.held(), 0, "asked for it, it keeps nothing");
    within("everything is there for who asks", || eat() == 32);
    held.into_iter().for_each(|chunk| hungry.free(chunk));
}

/// What the agent keeps of blocks that are empty is the node's when nobody has used it for some
/// heartbeats; what the program keeps stays the program's.
#[test]
fn an_empty_block_goes_back_when_it_lies_idle() {
    let mut host = Host::new(64);
    host.agent("");
    let client = host.client();
    let blocks: Vec<Chunk> = (0..20).map(|_| client.alloc(9).unwrap()).collect();
    blocks.into_iter().for_each(|block| client.free(block));
    let kept = client.held();
    assert!(kept < 20 * (2 << 20), "{kept}");
    within("the agent keeps nothing", || host.lent() == kept);
    assert_eq!(client.held(), kept, "nobody asked for that");
}

/// What a program keeps, or the agent keeps for it, is charged like what is in use: before a
/// program is refused it has gone back, whatever is missing, and whatever is asked for.
#[test]
fn nobody_is_refused_for_what_it_keeps() {
    let causes = [(64, "", None), (512, "quota=64", None), (512, "", Some(64 << 20))];
    for (lend_mib, arguments, share) in causes {
        let mut host = Host::new(lend_mib);
        if let Some(share) = share {
            host.node.nic().units.set_quota(share);
        }
        host.agent(arguments);
        let client = host.client();
        let keep = |order: u8, pieces: usize| {
            let held: Vec<Chunk> = (0..pieces).map(|_| client.alloc(order).unwrap()).collect();
            held.into_iter().for_each(|chunk| client.free(chunk));
            assert!(client.held() > 0, "nothing is kept: {arguments} {share:?}");
        };
        // Blocks that are empty at the agent, beside chunks and larger pieces that are kept here.
        keep(8, 40);
        keep(0, 300);
        let run = client.alloc_run(32).unwrap_or_else(|e| panic!("a run: {e}: {arguments} {share:?}"));
        client.free(run);
        keep(0, 300);
        let blocks: Vec<Chunk> = (0..32)
            .map(|n| client.alloc(9).unwrap_or_else(|e| panic!("block {n}: {e}: {arguments} {share:?}")))
            .collect();
        // Nothing is left, nor kept.
        let refused = client.alloc_run(2).unwrap_err();
        let as_it_is = match (arguments, share) {
            ("", None) => refused == AllocError::Exhausted,
            ("", Some(_)) => refused == AllocError::Share,
            _ => refused == AllocError::Quota,
        };
        assert!(as_it_is, "{refused}: {arguments} {share:?}");
        blocks.into_iter().for_each(|chunk| client.free(chunk));
    }
}

#[test]
fn threads_share_a_client() {
    let mut host = Host::new(512);
    host.agent("");
    let client = host.client();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..50 {
                    let held: Vec<Chunk> =
                        (0..100).map(|i| stamped(client, (i % 3) as u8, thread << 32 | round)).collect();
                    for chunk in held {
                        checked(&chunk, thread << 32 | round);
                        client.free(chunk);
                    }
                }
            });
        }
    });
}

#[test]
fn quotas_are_exact_and_refusals_say_what_to_do() {
    let mut host = Host::new(512);
    host.agent("quota=16 job=nightly:6");
    let client = host.client();
    let nightly = Client::connect(host.options("nightly")).unwrap();
    let fill = |client: &Client| {
        let mut held = Vec::new();
        loop {
            match client.alloc(9) {
                Ok(chunk) => held.push(chunk),
                Err(e) => {
                    assert_eq!(e, AllocError::Quota);
                    assert!(e.to_string().contains("free memory, or have it raised"));
                    return held;
                }
            }
        }
    };
    let (of_job, of_user) = (fill(&nightly), fill(&client));
    // The user's 16 MiB are 8 blocks, of which its job has 3.
    assert_eq!((of_job.len(), of_user.len()), (3, 5));
    assert_eq!(client.alloc(0).unwrap_err(), AllocError::Quota);
    of_job.into_iter().for_each(|chunk| nightly.free(chunk));
    drop(nightly);
    within("what a job gives back its user may have", || client.alloc(9).map(|chunk| client.free(chunk)).is_ok());
    of_user.into_iter().for_each(|chunk| client.free(chunk));
    assert!(client.alloc(0).is_ok());
}

#[test]
fn a_node_that_has_no_more_says_so() {
    let mut host = Host::new(64);
    host.agent("");
    let client = host.client();
    let run = client.alloc_run(32).unwrap();
    assert_eq!(client.alloc(0).unwrap_err(), AllocError::Exhausted);
    client.free(run);
    within("and gives again", || client.alloc(0).is_ok());
}

#[test]
fn a_killed_application_leaves_nothing_within_a_second() {
    let mut host = Host::new(512);
    host.agent("");
    for work in ["holder", "churner"] {
        within_a_second(|| killed(&mut host, work));
    }
}

/// How long it takes until its memory is free.
fn killed(host: &mut Host, work: &str) -> Duration {
    let bystander = host.client();
    let chunk = stamped(&bystander, 9, 5);
    let quiet = host.lent();
    // Of an earlier try.
    let _ = std::fs::remove_file(host.dir.join("holds"));
    let mut program = host.program(work);
    let pid = program.0.id();
    let ready = if work == "holder" { "holds".into() } else { format!("churns-{pid}") };
    within("it holds memory", || host.dir.join(&ready).exists());
    let used = host.used();
    assert!(used > 8 << 20);
    program.kill();
    let took = within_of(SOON, "its memory is free", || host.used() <= 4 << 20);
    eprintln!("{work}: {} MiB free again after {took:?}", used >> 20);
    checked(&chunk, 5);
    bystander.free(chunk);
    drop(bystander);
    within("and the node's", || host.lent() <= quiet);
    took
}

#[test]
fn a_killed_agent_is_followed_by_one_that_knows_its_applications() {
    let mut host = Host::new(512);
    host.agent("");
    let client = host.client();
    let mut held: Vec<(Chunk, u64)> = (0..2000).map(|i| (stamped(&client, 0, i), i)).collect();
    held.extend((0..6).map(|i| (stamped(&client, 9, i + 9000), i + 9000)));
    held.push((client.alloc_run(4).unwrap(), 0));
    let run = held.len() - 1;
    // SAFETY: the run is ours.
    unsafe { held[run].0.address().unwrap().cast::<u64>().write(4711) };
    let mut churner = host.program("churner");
    at_work(&host.dir, &churner);
    let mut took = Vec::new();
    for round in 0..3 {
        host.kill_agent();
        // Nothing is asked of anybody: what is kept is used.
        held.iter().filter(|(chunk, _)| chunk.bytes() <= 2 << 20).for_each(|(chunk, stamp)| checked(chunk, *stamp));
        host.agent("");
        assert_eq!(host.agent_said(), "recovered 2", "round {round}");
        let begun = Instant::now();
        for i in 0..1500 {
            held.push((stamped(&client, 0, 20_000 + i), 20_000 + i));
        }
        took.push(begun.elapsed());
        assert_eq!(client.counts().again, round + 1);
        for _ in 0..600 {
            let (chunk, stamp) = held.remove(3);
            checked(&chunk, stamp);
            client.free(chunk);
        }
    }
    // Mostly: a machine that is busy with other things may keep it from the CPU once.
    assert!(
        took.iter().filter(|took| **took < Duration::from_secs(2)).count() > took.len() / 2,
        "reconnected after {took:?}"
    );
    // SAFETY: the run is ours.
    let kept = held
        .iter()
        .find(|(chunk, _)| chunk.bytes() == 8 << 20)
        .map(|(run, _)| unsafe { run.address().unwrap().cast::<u64>().read() });
    assert_eq!(kept, Some(4711));
    tell(&host.dir, "enough");
    assert!(churner.ended_well(), "the other program found wrong bytes");
    for (chunk, stamp) in held {
        if chunk.bytes() <= 2 << 20 {
            checked(&chunk, stamp);
        }
        client.free(chunk);
    }
    drop(client);
    within("nothing was lost on the way", || host.lent() == 0);
}

#[test]
fn an_application_that_dies_while_there_is_no_agent_leaves_nothing() {
    within_a_second(killed_without_agent);
}

fn killed_without_agent() -> Duration {
    let mut host = Host::new(512);
    host.agent("");
    let mut program = host.program("holder");
    within("it holds memory", || host.dir.join("holds").exists());
    host.kill_agent();
    program.kill();
    assert!(host.used() > 8 << 20, "the node keeps it for the agent's grace");
    host.agent("");
    assert_eq!(host.agent_said(), "recovered 1");
    let took = within_of(SOON, "its memory is free", || host.used() == 0);
    within("and the node's", || host.lent() == 0);
    took
}

#[test]
fn an_agent_whose_node_forgot_it_begins_anew_and_says_so() {
    let mut host = Host::new(512);
    host.agent("");
    let client = host.client();
    let _held = client.alloc(0).unwrap();
    host.kill_agent();
    // As if the grace were over.
    let _ = std::fs::remove_file(host.dir.join("agent.ledger"));
    host.agent("");
    let refused = (0..2000).find_map(|_| client.alloc(0).err());
    assert_eq!(refused, Some(AllocError::Agent(ConnectError::Unknown)));
}

#[test]
fn an_agent_ends_when_nobody_uses_it_and_not_before() {
    let mut host = Host::new(512);
    // Long enough for somebody to come, on a busy machine, in one of a few tries.
    let in_time = |_| {
        host.agent("idle=2000");
        Client::connect(Options { patience: SOON, ..host.options("") }).ok()
    };
    let client = (0..5).find_map(in_time).expect("a client that comes in time");
    let pid = host.agent_pid();
    std::thread::sleep(Duration::from_millis(4500));
    assert!(client.alloc(0).is_ok());
    drop(client);
    let dir = host.dir.clone();
    within("it ends", || !dir.join("agent.sock").exists());
    within("its process, too", || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| s.contains(") Z"))
    });
    within("nothing is lent", || host.lent() == 0);
    let nobody = Options { patience: Duration::from_millis(50), ..host.options("") };
    assert!(matches!(Client::connect(nobody).err(), Some(ConnectError::Nobody(_))));
}

#[test]
fn there_is_one_agent_at_most() {
    let mut host = Host::new(128);
    host.agent("");
    let config = farmem_agent::host::Config {
        dir: host.dir.clone(),
        node: NodeAddr::Shm(host.dir.join("node.sock")),
        transport: Transport::Shm,
        quotas: Default::default(),
        idle: None,
        grace: Duration::from_secs(1),
        trust: farmem_fabric::Trust::default(),
    };
    let second = farmem_agent::host::Agent::start(config);
    assert!(matches!(second.err(), Some(farmem_agent::host::StartError::Running(_))));
    assert!(host.client().alloc(0).is_ok());
}

#[test]
fn a_run_that_cannot_be_mapped_is_given_back() {
    let mut host = Host::new(256);
    host.agent("");
    assert!(host.program("cramped").ended_well());
    within("nothing is lent", || host.lent() == 0);
}
