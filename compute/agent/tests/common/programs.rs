//! Programs that use an agent, as children of a test, and what they put into their memory.

// Reading and writing the memory that was got.
#![allow(unsafe_code)]

use super::{LIMIT, be_agent, child, tell};
use farmem_agent::client::{AllocError, Chunk, Client, Options};
use farmem_protocol::random::Random;
use std::path::{Path, PathBuf};

/// What a test's binary does as a child: an agent, or a program of one.
pub fn be_child() {
    let Some(words) = child() else { return };
    if words[0] == "agent" {
        return be_agent(&words);
    }
    let (dir, client) = client(&words);
    match words[0].as_str() {
        "holder" => {
            let _held: Vec<Chunk> = (0..3000).map(|_| stamped(&client, 0, 1)).collect();
            tell(&dir, "holds");
            std::thread::sleep(LIMIT);
        }
        "cramped" => cramped(&client),
        // Takes and frees all the time, until it is killed or the file `enough` is there.
        "churner" => churn(&client, &dir),
        other => panic!("{other}"),
    }
}

/// The directory that a child was told, and a client of the agent there.
pub fn client(words: &[String]) -> (PathBuf, Client) {
    let dir = PathBuf::from(&words[1]);
    let options = Options { socket: dir.join("agent.sock"), job: String::new(), patience: LIMIT, start: None };
    (dir, Client::connect(options).unwrap())
}

/// Has no room to map runs: it is told so each time, and keeps neither them nor their descriptors.
fn cramped(client: &Client) {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let used = std::fs::read_to_string("/proc/self/statm").unwrap();
    let used: u64 = used.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: live structures; the limit is this process's own.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
    let tight = libc::rlimit { rlim_cur: used + (16 << 20), ..limit };
    let before = descriptors();
    // SAFETY: as above.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &tight) };
    let refused: Vec<_> = (0..20).map(|_| client.alloc_run(32).err()).collect();
    // SAFETY: as above.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
    assert!(refused.iter().all(|e| !matches!(e, None | Some(AllocError::Exhausted))), "{refused:?}");
    assert_eq!((descriptors(), client.held()), (before, 0));
    let run = client.alloc_run(32).unwrap();
    assert_eq!(run.bytes(), 64 << 20);
}

pub fn churn(client: &Client, dir: &Path) {
    let stamped = |order, stamp| stamped(client, order, stamp);
    churn_by(client, dir, Churn { most: 800, told_after: 5000 }, stamped, checked);
}

/// How much a churner takes.
pub struct Churn {
    /// Pieces that it holds at once.
    pub most: usize,
    /// Steps after which it tells that it is at work, in a file `churns-PID`.
    pub told_after: u64,
}

/// Takes stamped pieces, checks and frees them, in an order of this process's own, until the file
/// `enough` is there.
pub fn churn_by(
    client: &Client,
    dir: &Path,
    churn: Churn,
    stamped: impl Fn(u8, u64) -> Chunk,
    checked: impl Fn(&Chunk, u64),
) {
    let mut held: Vec<(Chunk, u64)> = Vec::new();
    let mut random = Random::new(std::process::id() as u64);
    let mut steps = 0u64;
    while !steps.is_multiple_of(1000) || !dir.join("enough").exists() {
        steps += 1;
        let order = if random.below(8) == 0 { random.below(10) as u8 } else { 0 };
        if held.len() < churn.most && random.below(16) < 9 {
            held.push((stamped(order, steps), steps));
        } else if !held.is_empty() {
            let (chunk, stamp) = held.swap_remove(random.index(held.len()));
            checked(&chunk, stamp);
            client.free(chunk);
        }
        if steps == churn.told_after {
            tell(dir, &format!("churns-{}", std::process::id()));
        }
    }
    held.iter().for_each(|(chunk, stamp)| checked(chunk, *stamp));
}

/// A piece with a stamp in the first and last word of every page.
pub fn stamped(client: &Client, order: u8, stamp: u64) -> Chunk {
    let chunk = client.alloc(order).unwrap();
    assert_eq!(chunk.bytes(), 4096 << order);
    for page in 0..chunk.bytes() / 4096 {
        for at in [page * 4096, page * 4096 + 4088] {
            // SAFETY: the chunk is ours.
            unsafe { chunk.address().unwrap().add(at as usize).cast::<u64>().write(stamp ^ at) };
        }
    }
    chunk
}

pub fn checked(chunk: &Chunk, stamp: u64) {
    for page in 0..chunk.bytes() / 4096 {
        for at in [page * 4096, page * 4096 + 4088] {
            // SAFETY: as above.
            assert_eq!(unsafe { chunk.address().unwrap().add(at as usize).cast::<u64>().read() }, stamp ^ at);
        }
    }
}

pub fn is_zero(chunk: &Chunk) -> bool {
    // SAFETY: as above.
    (0..chunk.bytes() as usize / 8).all(|i| unsafe { chunk.address().unwrap().cast::<u64>().add(i).read() } == 0)
}
