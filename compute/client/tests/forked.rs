//! A forked child has no remote memory, and takes none of its parent's.

// It forks.
#![allow(unsafe_code)]

mod common;

use common::{WAYS, builder, node};
use farmem::{Addr, Completion, Error, Lane};
use std::time::{Duration, Instant};

/// Runs `work` in a forked child. Whether it returned true.
fn in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls `work` and ends, without the parent's destructors.
    match unsafe { libc::fork() } {
        0 => {
            let fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(false);
            // SAFETY: it ends.
            unsafe { libc::_exit(i32::from(!fine)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: a live integer.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}

#[test]
fn a_child_is_refused_and_its_parent_goes_on() {
    for way in WAYS {
        let node = node(2);
        let private = builder(&[&node], way).connect().unwrap();
        let shared = builder(&[&node], way).region("r").create(true).connect().unwrap();
        let pieces = [&private, &shared].map(|memory| memory.alloc_zeroed(8).unwrap());
        let mut lane = private.lane().unwrap();
        lane.store(pieces[0], 7).unwrap();
        let (theirs, of) = (private.clone(), shared.clone());
        assert!(in_child(move || {
            let mut refused = |at: Addr| {
                let words = [theirs.fetch_add(at, 1), of.compare_swap(at, 0, 1), lane.load(at)];
                words.iter().all(|word| *word == Err(Error::Forked))
            };
            let refused = pieces.into_iter().all(&mut refused);
            let others = [theirs.alloc(1), of.alloc(1)].iter().all(|piece| *piece == Err(Error::Forked));
            let free = [theirs.free(pieces[0]), of.free(pieces[1]), of.check()];
            drop((lane, theirs, of));
            refused && others && free.iter().all(|done| *done == Err(Error::Forked))
        }));
        assert_eq!((private.load(pieces[0]), shared.fetch_add(pieces[1], 1)), (Ok(7), Ok(0)));
        assert_eq!((private.free(pieces[0]), shared.free(pieces[1]), private.check()), (Ok(()), Ok(()), Ok(())));
    }
}

/// All that is under way in a lane, as it ends.
fn ended(lane: &mut Lane) -> Vec<Completion> {
    let (mut done, until) = (Vec::new(), Instant::now() + Duration::from_secs(60));
    while lane.in_flight() > 0 {
        assert!(Instant::now() < until, "not within 60 s");
        lane.wait(&mut done, Duration::from_secs(1));
    }
    done
}

/// The bytes that come for the parent are not taken by the child, which has the same sockets.
#[test]
fn a_child_takes_nothing_that_comes_for_its_parent() {
    const LEN: usize = 1 << 20;
    for way in WAYS {
        let node = node(2);
        let memory = builder(&[&node], way).connect().unwrap();
        let at: Vec<Addr> = (0..2).map(|_| memory.alloc(LEN as u64).unwrap()).collect();
        let bytes: Vec<Vec<u8>> =
            (0..2usize).map(|n| (0..LEN).map(|i| (i * 7 + i / 251 + n) as u8).collect()).collect();
        at.iter().zip(&bytes).for_each(|(at, bytes)| memory.write(*at, bytes).unwrap());
        let mut lane = memory.lane().unwrap();
        for _ in 0..10 {
            at.iter().zip(0..).for_each(|(at, tag)| lane.post_read(tag, *at, vec![0; LEN]));
            lane.ring();
            assert!(in_child(|| {
                let mut done = Vec::new();
                for _ in 0..1000 {
                    lane.poll(&mut done);
                }
                // In the child, all that the parent waits for has ended with an error.
                lane.in_flight() == 0 && done.len() == 2 && done.iter().all(|one| one.result == Err(Error::Forked))
            }));
            for Completion { tag, result, buffer, .. } in ended(&mut lane) {
                assert_eq!(result, Ok(0));
                assert!(buffer == bytes[tag as usize], "wrong bytes");
            }
        }
    }
}

#[test]
fn a_child_sends_nothing_for_its_parent() {
    for way in WAYS {
        let node = node(2);
        let shared = builder(&[&node], way).region("r").create(true).connect().unwrap();
        let word = shared.alloc_zeroed(8).unwrap();
        let mut lane = shared.lane().unwrap();
        for n in 0..5 {
            lane.post_fetch_add(7, word, 1);
            assert!(in_child(|| {
                let refused = lane.load(word) == Err(Error::Forked);
                lane.ring();
                // Nor on the connection by which nodes are asked for memory.
                let asked = [lane.pieces().map(drop), lane.alloc_at(word, 8), lane.alloc(2 << 20).map(drop)];
                refused && asked.iter().all(|asked| *asked == Err(Error::Forked))
            }));
            assert_eq!(lane.in_flight(), 1);
            let [one] = &ended(&mut lane)[..] else { panic!("not one") };
            assert_eq!((one.tag, &one.result), (7, &Ok(n)));
            shared.alloc(2 << 20).unwrap();
        }
        assert_eq!(shared.load(word), Ok(5));
    }
}
