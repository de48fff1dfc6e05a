//! The fabric's windows on the card: what a program does with one goes past the node's processor, and ends with
//! INVALIDATE there too.

// It plays the caller of READ and WRITE.
#![allow(unsafe_code)]

use farmem_fabric::{Bind, Completion, ConnectOptions, QueuePair, Refusal, Session, Transport};
use farmem_memory::Node;
use farmem_protocol::key::{Key, Rights};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub type Said = Result<(), String>;

pub fn one(queue: &mut QueuePair) -> Result<Result<u64, Refusal>, String> {
    let mut done: Vec<Completion> = Vec::new();
    queue.doorbell().map_err(|e| e.to_string())?;
    queue.wait(&mut done, Duration::from_secs(20)).map_err(|e| e.to_string())?;
    done.first().map(|done| done.result).ok_or_else(|| "no completion within 20 s".into())
}

fn write(queue: &mut QueuePair, key: Key, offset: u64, bytes: &[u8]) -> Result<Result<u64, Refusal>, String> {
    // SAFETY: the buffer outlives the verb, which is awaited.
    unsafe { queue.write(1, key, offset, bytes.as_ptr(), bytes.len() as u32) };
    one(queue)
}

pub fn read(queue: &mut QueuePair, key: Key, offset: u64, into: &mut [u8]) -> Result<Result<u64, Refusal>, String> {
    // SAFETY: as above.
    unsafe { queue.read(2, key, offset, into.as_mut_ptr(), into.len() as u32) };
    one(queue)
}

pub fn is<T: PartialEq + std::fmt::Debug>(what: &str, got: T, due: T) -> Said {
    if got == due { Ok(()) } else { Err(format!("{what}: {got:?}, where {due:?} was due")) }
}

/// One more member, over RDMA.
pub fn join(node: &Node, run: u8) -> Result<Session, String> {
    let options = ConnectOptions {
        timeout: Duration::from_secs(20),
        grace: Duration::from_secs(20),
        run: [run; 16],
        pid: std::process::id(),
        transport: Transport::Verbs,
        ..ConnectOptions::default()
    };
    Session::connect(&node.addresses()[0], &options).map_err(|e| e.to_string())
}

/// Lends a part of a slab to another member's queue pair, uses it, takes it back.
pub fn hold(node: &Node) -> Said {
    let tally = &node.nic().tally;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (giver, user) = (join(node, 11)?, join(node, 12)?);
    let slab = giver.grant().map_err(|e| e.to_string())?.id;
    let mut givers = giver.queue_pair().map_err(|e| e.to_string())?;
    let mut users = user.queue_pair().map_err(|e| e.to_string())?;
    let seen = || count(&tally.reads) + count(&tally.writes);
    let on_card = count(&tally.carved);

    // It begins and ends in the midst of pages.
    let mut range = Bind {
        parent: slab.into(),
        start: 4096 + 100,
        len: 10_000,
        rights: Rights::READ.and(Rights::WRITE),
        owner: user.owner(),
        queue: Some(users.number()),
    };
    let mut window = giver.window().map_err(|e| e.to_string())?;
    let (mut round, mut slow) = (0, 0);
    while round < 3u8 {
        let before = seen();
        givers.bind(3, window, &range);
        let key = one(&mut givers)?.map(Key).map_err(|e| format!("BIND: {e:?}"))?;
        let (bytes, mut back) = (vec![round + 1; 10_000], vec![0; 10_000]);
        is("WRITE by the window", write(&mut users, key, 0, &bytes)?, Ok(0))?;
        if count(&tally.carved) == on_card + u64::from(round) && slow < 5 {
            // A card that takes over a second to bind has broken the queue pair, and the WRITE went in frames.
            slow += 1;
            givers.invalidate(4, key);
            window = one(&mut givers)?.map(Key).map_err(|e| format!("INVALIDATE: {e:?}"))?;
            users = user.queue_pair().map_err(|e| e.to_string())?;
            range.queue = Some(users.number());
            continue;
        }
        is("READ by the window", read(&mut users, key, 0, &mut back)?, Ok(0))?;
        is("what was read", back == bytes, true)?;
        let mut around = vec![9; 10_002];
        is("READ of the slab", read(&mut givers, slab.into(), 4096 + 99, &mut around)?, Ok(0))?;
        is("bytes around it", [around[0], around[1], around[10_000], around[10_001]], [0, round + 1, round + 1, 0])?;
        is("verbs that the node's processor saw", seen(), before)?;
        is("windows bound on the card", count(&tally.carved), on_card + 1 + u64::from(round))?;

        let breaks = count(&tally.rejoined);
        givers.invalidate(4, key);
        window = one(&mut givers)?.map(Key).map_err(|e| format!("INVALIDATE: {e:?}"))?;
        is("WRITE after INVALIDATE", write(&mut users, key, 0, &[0xEE; 64])?, Err(Refusal::Access))?;
        // Its host still had the key: the card refused it, which broke the queue pair, and a new one was made.
        is("queue pairs made anew", count(&tally.rejoined) > breaks, true)?;
        let mut still = [0; 64];
        is("READ of the slab", read(&mut givers, slab.into(), 4096 + 100, &mut still)?, Ok(0))?;
        is("bytes after INVALIDATE", still, [round + 1; 64])?;
        round += 1;
    }
    println!("the fabric's windows are the card's: bound, used, refused after INVALIDATE, three times over");
    Ok(())
}
