//! COMMIT and WAIT.

use super::*;

/// Checks, and writes.
type List<'a> = (&'a [(u64, u64)], &'a [(u32, &'a [u8])]);

/// A commit on a source with its lock at byte 0.
fn commit(source: &[u8], checks: &[(u64, u64)], writes: &[(u32, &[u8])]) -> (Call, Plain) {
    let list = Commit::laid(checks, writes);
    let bytes = writes.iter().map(|(_, bytes)| bytes.len() as u32).sum();
    let (checks, writes) = (checks.len() as u16, writes.len() as u16);
    let call = call(Function::Commit(Commit { lock: 0, owner: 7, checks, writes, bytes }), source, &list);
    (call, plain(source.to_vec(), list))
}

fn word(source: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(source[at..at + 8].try_into().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against a loop: all words equal, and all is written; or else nothing is.
    #[test]
    fn all_is_written_or_nothing(
        words in prop::collection::vec(0..3u64, 2..40),
        checks in prop::collection::vec((any::<prop::sample::Index>(), 0..3u64), 0..6),
        writes in prop::collection::vec((any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 1..30)), 0..6),
    ) {
        let mut source: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        source[..8].fill(0);
        // Half of the checks expect what is there.
        let checks: Vec<(u64, u64)> = checks.iter().map(|(at, expected)| {
            let at = 8 + at.index(source.len() - 15);
            (at as u64, if *expected == 2 { *expected } else { word(&source, at) })
        }).collect();
        let writes: Vec<(u32, &[u8])> = writes.iter().map(|(at, bytes)| {
            let bytes = &bytes[..bytes.len().min(source.len() - 8)];
            (8 + at.index(source.len() - 7 - bytes.len()) as u32, bytes)
        }).collect();
        prop_assume!(!checks.is_empty() || !writes.is_empty());
        let (call, mut memory) = commit(&source, &checks, &writes);
        prop_assert_eq!(Call::parse(&call.frame()), Ok(call));
        let differs = checks.iter().position(|&(at, expected)| word(&source, at as usize) != expected);
        let expected = match differs {
            Some(nth) => Committed::Differs { nth: nth as u16, found: word(&source, checks[nth].0 as usize) },
            None => {
                writes.iter().for_each(|(at, bytes)| source[*at as usize..][..bytes.len()].copy_from_slice(bytes));
                Committed::Done
            }
        };
        let reply = call.run(&mut memory).unwrap();
        prop_assert_eq!(reply, Reply::Committed(expected));
        prop_assert_eq!(Reply::parse(&reply.frame(), &call), Some(reply));
        // The lock, too, is as it was.
        prop_assert_eq!(memory.source, source);
    }
}

#[test]
fn a_held_lock_lets_nothing_be_written() {
    let mut source = vec![0; 64];
    source[0] = 9;
    let (call, mut memory) = commit(&source, &[(8, 0)], &[(16, &[1; 8])]);
    let reply = call.run(&mut memory).unwrap();
    assert_eq!((reply, &memory.source), (Reply::Committed(Committed::Held(9)), &source));
    assert_eq!(Reply::parse(&reply.frame(), &call), Some(reply));
}

#[test]
fn lists_that_lead_out_change_nothing() {
    let source = [0; 64];
    let outside: [List<'_>; 7] = [
        // The lock is neither compared nor written to.
        (&[(1, 0)], &[]),
        (&[(57, 0)], &[]),
        (&[(u64::MAX, 0)], &[(16, &[1])]),
        (&[(u64::MAX - 7, 0)], &[(16, &[1])]),
        (&[], &[(16, &[1]), (60, &[1; 5])]),
        (&[], &[(16, &[1]), (7, &[1])]),
        (&[], &[(16, &[1]), (0, &[1])]),
    ];
    for (checks, writes) in outside {
        let (call, mut memory) = commit(&source, checks, writes);
        assert_eq!(Call::parse(&call.frame()), Ok(call));
        assert_eq!(call.run(&mut memory), None, "{checks:?} {writes:?}");
        assert_eq!(memory.source, source);
    }
    // Lengths that do not add up to the bytes of the list.
    let (call, mut memory) = commit(&source, &[], &[(16, &[1; 8])]);
    memory.list[4] = 7;
    assert_eq!((call.run(&mut memory), memory.source), (None, source.to_vec()));
}

#[test]
fn bounds_of_commits_and_waits() {
    let range = |at, len| Range { key: Key(1), at, len };
    let none = Range { key: Key(0), at: 0, len: 0 };
    let sound = Commit { lock: 8, owner: 7, checks: 1, writes: 1, bytes: 8 };
    let commit = |source, commit: Commit| {
        let list = Range { key: Key(2), at: 0, len: commit.list() };
        Call { source, list, function: Function::Commit(commit) }.check()
    };
    assert_eq!(commit(range(0, 64), sound), Ok(()));
    for (source, unsound) in [
        (range(0, 64), Commit { owner: 0, ..sound }),
        (range(0, 64), Commit { lock: 4, ..sound }),
        (range(4, 64), sound),
        (range(0, 64), Commit { lock: 64, ..sound }),
        (range(0, 64), Commit { checks: 0, writes: 0, bytes: 0, ..sound }),
        (range(0, 64), Commit { bytes: 16 << 10, ..sound }),
        (range(0, (1 << 32) + 8), sound),
    ] {
        assert_eq!(commit(source, unsound), Err(Nonsense), "{source:?} {unsound:?}");
    }
    let wait = |source, ms| Call { source, list: none, function: Function::Wait { expected: 1, ms } }.check();
    assert_eq!(wait(range(16, 8), MAX_WAIT_MS), Ok(()));
    for (source, ms) in [(range(16, 8), MAX_WAIT_MS + 1), (range(12, 8), 1), (range(16, 16), 1), (range(16, 0), 1)] {
        assert_eq!(wait(source, ms), Err(Nonsense), "{source:?} {ms}");
    }
}

#[test]
fn a_wait_is_over_when_the_word_differs() {
    let source = 7u64.to_le_bytes();
    for (expected, unfinished) in [(7, true), (8, false)] {
        let call = Call {
            list: Range { key: Key(0), at: 0, len: 0 },
            ..call(Function::Wait { expected, ms: 9 }, &source, &[])
        };
        assert_eq!(Call::parse(&call.frame()), Ok(call));
        let reply = call.run(&mut plain(source.to_vec(), vec![])).unwrap();
        assert_eq!((reply, call.is_unfinished(&reply)), (Reply::Waited(7), unfinished));
        assert_eq!(Reply::parse(&reply.frame(), &call), Some(reply));
    }
}
