//! A forked child has no remote memory, and takes none of its parent's.

// It forks.
#![allow(unsafe_code)]

mod common;

use common::{WAYS, builder, node};
use farmem::{Addr, Error};

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
