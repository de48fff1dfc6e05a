//! The contract of the fabric, executable: every back end passes the same suite.
//!
//! `fabric/tests/contract.rs` runs it over the simulator, the memory node's tests run it
//! over shm and tcp, `lab/rxe` over RDMA. A new back end begins here. Only tests use this crate.

// It plays the caller of READ and WRITE.
#![allow(unsafe_code)]

pub mod conditions;
mod regions;
mod units;
mod windows;

use farmem_fabric::{Completion, ConnectError, ConnectOptions, GrantError, QueuePair, Refusal, Session};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::key::Key;
use farmem_protocol::lines::{self, Entry, MAX_RECORD_BYTES};
use farmem_protocol::wire::{MAX_BACKED, MAX_VERB_BYTES};
use std::time::{Duration, Instant};

/// What the suite needs of a back end: a node of its own that lends exactly four slabs.
pub struct Subject<'a> {
    /// Joins the node.
    pub connect: &'a dyn Fn(&ConnectOptions) -> Result<Session, ConnectError>,
    /// Bytes the node has lent now.
    pub lent: &'a dyn Fn() -> u64,
    /// Lets a little time pass.
    pub pass: &'a dyn Fn(),
}

/// Slabs that the subject's node lends.
pub const SLABS: usize = 4;

/// Runs all of it.
///
/// # Panics
/// When the back end breaks the contract.
pub fn hold(subject: &Subject<'_>) {
    let tests: [fn(&Subject<'_>); 30] = [
        bytes_come_back,
        slabs_are_fresh_and_bounded,
        atomics_are_atomic,
        many_verbs_in_any_batching,
        records_change_their_lines_and_no_others,
        conditions::lines_are_laid_only_onto_what_they_were_taken_for,
        nothing_but_what_is_held,
        what_is_discarded_is_zero,
        what_is_backed_stays,
        members_do_not_meet,
        a_child_holds_what_its_parent_held,
        an_abandoned_ticket_holds_nothing,
        a_run_ends_as_a_whole,
        windows::a_window_gives_what_it_was_bound_for,
        windows::a_window_is_one_queue_pairs,
        windows::no_key_revives,
        windows::a_window_ends_with_its_slab,
        windows::many_invalidations_let_nothing_by,
        units::a_unit_is_its_owners,
        units::words_go_only_where_the_rules_let_them,
        units::slabs_and_units_share_the_words,
        units::a_member_that_ends_leaves_nothing,
        units::a_window_ends_with_its_unit,
        units::blocks_can_be_mapped,
        units::no_write_outlives_its_unit,
        regions::members_share_a_region,
        regions::only_who_has_opened_it_reaches_a_region,
        regions::a_region_outlives_its_members,
        regions::members_that_grow_a_region_at_once_get_the_same_slab,
        regions::a_removed_region_lives_until_it_is_closed,
    ];
    for test in tests {
        test(subject);
        await_that(subject, "all memory is given back", || (subject.lent)() == 0);
    }
}

/// Runs the part of it that is about members who share nothing, for a back end where runs of odd
/// and of even numbers are of two tenants.
///
/// # Panics
/// When the back end breaks the contract.
pub fn hold_apart(subject: &Subject<'_>) {
    let tests: [fn(&Subject<'_>); 7] = [
        slabs_are_fresh_for_another,
        members_do_not_meet,
        windows::a_window_is_one_tenants,
        units::a_unit_is_its_owners,
        units::words_go_only_where_the_rules_let_them,
        units::a_member_that_ends_leaves_nothing,
        units::no_write_outlives_its_unit,
    ];
    for test in tests {
        test(subject);
        await_that(subject, "all memory is given back", || (subject.lent)() == 0);
    }
}

/// What the suite asks of a session: of this run, with a short grace.
pub fn options(run: u8) -> ConnectOptions {
    ConnectOptions {
        timeout: Duration::from_secs(5),
        grace: Duration::from_millis(200),
        run: [run; 16],
        pid: std::process::id(),
        ..ConnectOptions::default()
    }
}

impl Subject<'_> {
    fn join(&self, run: u8) -> Session {
        (self.connect)(&options(run)).expect("join")
    }
}

/// Lets time pass until it is so.
///
/// # Panics
/// When it is not so within 10 s.
pub fn await_that(subject: &Subject<'_>, what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(10), "not so after 10 s: {what}");
        (subject.pass)();
    }
}

/// Rings, and waits for `n` completions.
pub fn finish(queue: &mut QueuePair, n: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    queue.doorbell().expect("doorbell");
    while done.len() < n {
        queue.wait(&mut done, Duration::from_secs(5)).expect("wait");
    }
    assert_eq!((done.len(), queue.in_flight()), (n, 0));
    done
}

/// Writes and waits.
pub fn put(queue: &mut QueuePair, slab: impl Into<Key>, offset: u64, bytes: &[u8]) -> Result<u64, Refusal> {
    // SAFETY: the slice outlives the verb, which is awaited here.
    unsafe { queue.write(1, slab, offset, bytes.as_ptr(), bytes.len() as u32) };
    finish(queue, 1)[0].result
}

/// Reads and waits.
pub fn get(queue: &mut QueuePair, slab: impl Into<Key>, offset: u64, len: usize) -> Result<Vec<u8>, Refusal> {
    let mut bytes = vec![0xEE; len];
    // SAFETY: the buffer outlives the verb, which is awaited here.
    unsafe { queue.read(2, slab, offset, bytes.as_mut_ptr(), len as u32) };
    finish(queue, 1)[0].result.map(|_| bytes)
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 17 + i / 251) as u8).collect()
}

fn bytes_come_back(subject: &Subject<'_>) {
    let session = subject.join(1);
    let slab = session.grant().expect("grant");
    let mut queue = session.queue_pair().expect("queue pair");
    for (offset, len) in [(0, 4096), (4096, 1), (SLAB_BYTES - 4096, 4096), (12345, 70_001), (0, 0)] {
        let bytes = pattern(len, len);
        assert_eq!(put(&mut queue, slab.id, offset, &bytes), Ok(0));
        assert_eq!(get(&mut queue, slab.id, offset, len), Ok(bytes));
    }
    let largest = pattern(7, MAX_VERB_BYTES as usize);
    assert_eq!(put(&mut queue, slab.id, 1 << 20, &largest), Ok(0));
    assert!(get(&mut queue, slab.id, 1 << 20, largest.len()) == Ok(largest));
    assert_eq!(slab.base.is_some(), session.is_mapped());
    if let Some(base) = slab.base {
        assert_eq!(put(&mut queue, slab.id, 77, b"seen"), Ok(0));
        // SAFETY: mapped until released.
        assert_eq!(unsafe { base.add(77).cast::<[u8; 4]>().read() }, *b"seen");
    }
}

fn slabs_are_fresh_and_bounded(subject: &Subject<'_>) {
    let session = subject.join(1);
    let mut queue = session.queue_pair().expect("queue pair");
    let mut ids = Vec::new();
    for round in 0..2 {
        let slabs: Vec<SlabId> = (0..SLABS).map(|_| session.grant().expect("grant").id).collect();
        match session.grant() {
            Err(GrantError::Exhausted { lend_mib, .. }) => assert_eq!(lend_mib, SLABS as u64 * (SLAB_BYTES >> 20)),
            other => panic!("more than the limit was granted: {other:?}"),
        }
        for &slab in &slabs {
            assert!(!ids.contains(&slab), "a slab's name came twice");
            ids.push(slab);
            assert_eq!(get(&mut queue, slab, 8192, 64), Ok(vec![0; 64]), "not scrubbed in round {round}");
            assert_eq!(put(&mut queue, slab, 8192, &[0xAB; 64]), Ok(0));
        }
        slabs.iter().for_each(|&slab| session.release(slab).expect("release"));
        await_that(subject, "released slabs are free", || (subject.lent)() == 0);
    }
}

fn atomics_are_atomic(subject: &Subject<'_>) {
    let session = subject.join(1);
    let slab = session.grant().expect("grant").id;
    let mut queue = session.queue_pair().expect("queue pair");
    queue.faa(1, slab, 16, 5);
    queue.faa(2, slab, 16, u64::MAX);
    queue.cas(3, slab, 16, 4, 100);
    queue.cas(4, slab, 16, 4, 200);
    queue.faa(5, slab, 17, 1);
    queue.cas(6, slab, SLAB_BYTES - 4, 0, 0);
    let results: Vec<_> = finish(&mut queue, 6).iter().map(|c| (c.tag, c.result)).collect();
    let range = Err(Refusal::Range);
    assert_eq!(results, [(1, Ok(0)), (2, Ok(5)), (3, Ok(4)), (4, Ok(100)), (5, range), (6, range)]);
    assert_eq!(get(&mut queue, slab, 16, 8), Ok(100u64.to_le_bytes().to_vec()));
}

fn many_verbs_in_any_batching(subject: &Subject<'_>) {
    const PAGES: usize = 700;
    let session = subject.join(1);
    let slab = session.grant().expect("grant").id;
    let mut queue = session.queue_pair().expect("queue pair");
    let source = pattern(3, PAGES * 4096);
    let mut target = vec![0u8; source.len()];
    for rung_every in [1, 7, 128, 129, PAGES] {
        target.fill(0);
        let mut done = Vec::new();
        for page in 0..PAGES {
            let at = page * 4096;
            // SAFETY: both buffers outlive the verbs, all of which are awaited below.
            unsafe {
                queue.write(page as u64, slab, at as u64, source[at..].as_ptr(), 4096);
                queue.read((PAGES + page) as u64, slab, at as u64, target[at..].as_mut_ptr(), 4096);
            }
            if page % rung_every == 0 {
                queue.doorbell().expect("doorbell");
                queue.poll(&mut done).expect("poll");
            }
        }
        queue.doorbell().expect("doorbell");
        while done.len() < 2 * PAGES {
            queue.wait(&mut done, Duration::from_secs(5)).expect("wait");
        }
        assert!(done.iter().all(|c| c.result == Ok(0)));
        let tags: Vec<u64> = done.iter().map(|c| c.tag).collect();
        let posted: Vec<u64> = (0..PAGES as u64).flat_map(|page| [page, PAGES as u64 + page]).collect();
        assert_eq!(tags, posted, "completions come in the order posted");
        assert!(source == target);
    }
}

/// A record of lines: `at` gives slots and bitmaps, `bytes` the pages they are taken from.
pub fn record(slab: SlabId, at: &[(u16, u64)], bytes: &[[u8; 4096]]) -> Vec<u8> {
    let entries: Vec<Entry> =
        at.iter().map(|&(place, lines)| Entry { place: place.into(), lines: lines.into() }).collect();
    let mut out = vec![0; MAX_RECORD_BYTES];
    let len = lines::encode(slab, &entries, &mut out, |i| &bytes[i]).expect("a record by the rules");
    out.truncate(len);
    out
}

fn records_change_their_lines_and_no_others(subject: &Subject<'_>) {
    let session = subject.join(1);
    let slab = session.grant().expect("grant").id;
    let mut queue = session.queue_pair().expect("queue pair");
    let before = pattern(5, 3 * 4096);
    let last = SLAB_BYTES - 4096;
    assert_eq!(put(&mut queue, slab, 0, &before), Ok(0));
    assert_eq!(put(&mut queue, slab, last, &before[..4096]), Ok(0));
    let pages = [[1; 4096], [2; 4096], [3; 4096]];
    let first = record(slab, &[(0, 1 << 63 | 5), (2, u64::MAX), ((last / 4096) as u16, 1 << 7)], &pages);
    let second = record(slab, &[(0, 4)], &pages[1..]);
    let tail = [9; 64];
    // In the order posted, among WRITEs too: the second record's line lies on the first's, the WRITE on both.
    // SAFETY: all buffers outlive the verbs, which are awaited here.
    unsafe {
        queue.lines(1, slab, first.as_ptr(), first.len() as u32);
        queue.lines(2, slab, second.as_ptr(), second.len() as u32);
        queue.write(3, slab, 63 * 64, tail.as_ptr(), 64);
    }
    assert!(finish(&mut queue, 3).iter().all(|c| c.result == Ok(0)));
    let mut expected = before.clone();
    expected[..64].fill(1);
    expected[128..192].fill(2);
    expected[63 * 64..4096].fill(9);
    expected[8192..].fill(2);
    assert!(get(&mut queue, slab, 0, 3 * 4096) == Ok(expected));
    let mut expected = before[..4096].to_vec();
    expected[7 * 64..8 * 64].fill(3);
    assert!(get(&mut queue, slab, last, 4096) == Ok(expected));
    let foreign = SlabId(slab.0 + 1);
    let strange = record(foreign, &[(0, 1)], &pages);
    // SAFETY: as above.
    unsafe { queue.lines(4, foreign, strange.as_ptr(), strange.len() as u32) };
    assert_eq!(finish(&mut queue, 1)[0].result, Err(Refusal::NotHeld));
    assert_eq!(put(&mut queue, slab, 0, b"after a refusal all goes on"), Ok(0));
}

/// All of a node's memory is one run's, and then another's.
fn slabs_are_fresh_for_another(subject: &Subject<'_>) {
    for run in 1..4 {
        let session = subject.join(run);
        let mut queue = session.queue_pair().expect("queue pair");
        for _ in 0..SLABS {
            let slab = session.grant().expect("grant").id;
            for offset in [0, 8192, SLAB_BYTES / 2, SLAB_BYTES - 4096] {
                assert_eq!(get(&mut queue, slab, offset, 4096), Ok(vec![0; 4096]), "another's bytes");
                assert_eq!(put(&mut queue, slab, offset, &[run; 4096]), Ok(0));
            }
        }
        drop((queue, session));
        await_that(subject, "what a run held is free", || (subject.lent)() == 0);
    }
}

fn nothing_but_what_is_held(subject: &Subject<'_>) {
    let session = subject.join(1);
    let slab = session.grant().expect("grant").id;
    let mut queue = session.queue_pair().expect("queue pair");
    assert_eq!(put(&mut queue, slab, SLAB_BYTES - 4095, &[1; 4096]), Err(Refusal::Range));
    assert_eq!(get(&mut queue, slab, u64::MAX, 4096), Err(Refusal::Range));
    assert_eq!(get(&mut queue, SlabId(slab.0 + 1), 0, 4096), Err(Refusal::NotHeld));
    assert_eq!(put(&mut queue, slab, 0, b"after a refusal all goes on"), Ok(0));
    session.release(slab).expect("release");
    assert_eq!(get(&mut queue, slab, 0, 4096), Err(Refusal::NotHeld));
    assert_eq!(put(&mut queue, slab, 0, &[1; 4096]), Err(Refusal::NotHeld));
}

fn what_is_discarded_is_zero(subject: &Subject<'_>) {
    let session = subject.join(1);
    let slab = session.grant().expect("grant").id;
    let mut queue = session.queue_pair().expect("queue pair");
    let (block, bytes) = (2 << 20, pattern(5, 4096));
    for offset in [block - 4096, block, 2 * block - 4096, 2 * block] {
        assert_eq!(put(&mut queue, slab, offset, &bytes), Ok(0));
    }
    assert_eq!(session.discard(slab, block, block), Ok(true));
    for (offset, gone) in [(block - 4096, false), (block, true), (2 * block - 4096, true), (2 * block, false)] {
        let expected = if gone { vec![0; 4096] } else { bytes.clone() };
        assert_eq!(get(&mut queue, slab, offset, 4096), Ok(expected));
    }
    for (of, offset, len) in
        [(slab, SLAB_BYTES - 4096, 8192), (slab, u64::MAX - 4095, 4096), (SlabId(slab.0 + 1), 0, 4096)]
    {
        assert_eq!(session.discard(of, offset, len), Ok(false));
    }
    assert_eq!(put(&mut queue, slab, block, &bytes), Ok(0));
    assert_eq!(get(&mut queue, slab, block, 4096), Ok(bytes));
    assert_eq!((subject.lent)(), SLAB_BYTES);
    if !session.is_mapped() {
        // What a fork has made another's too is not discarded.
        let ticket = session.fork_ticket().expect("ticket");
        assert_eq!(session.discard(slab, block, block), Ok(false));
        ticket.abandon();
        await_that(subject, "no child holds it", || session.discard(slab, block, block) == Ok(true));
    }
}

/// Backing a range keeps the bytes in it; the others are zero still.
fn what_is_backed_stays(subject: &Subject<'_>) {
    let session = subject.join(1);
    let mut queue = session.queue_pair().expect("queue pair");
    let slab = session.grant().expect("grant").id;
    let (block, bytes) = (MAX_BACKED, pattern(6, 4096));
    assert_eq!(put(&mut queue, slab, block, &bytes), Ok(0));
    for offset in [0, block, SLAB_BYTES - block] {
        session.back(slab, offset, block).expect("a block of a slab that is held");
    }
    for (offset, expected) in [(0, vec![0; 4096]), (block, bytes), (SLAB_BYTES - 4096, vec![0; 4096])] {
        assert_eq!(get(&mut queue, slab, offset, 4096), Ok(expected));
    }
    assert_eq!((subject.lent)(), SLAB_BYTES);
}

fn members_do_not_meet(subject: &Subject<'_>) {
    apart(subject.join(1), subject.join(1), subject);
    await_that(subject, "all memory is given back", || (subject.lent)() == 0);
    apart(subject.join(1), subject.join(2), subject);
}

fn apart(a: Session, b: Session, subject: &Subject<'_>) {
    let (of_a, of_b) = (a.grant().expect("grant").id, b.grant().expect("grant").id);
    let (mut queue_a, mut queue_b) = (a.queue_pair().expect("queue pair"), b.queue_pair().expect("queue pair"));
    assert_eq!(put(&mut queue_a, of_a, 0, b"a's"), Ok(0));
    assert_eq!(put(&mut queue_b, of_b, 0, b"b's"), Ok(0));
    assert_eq!(get(&mut queue_b, of_a, 0, 3), Err(Refusal::NotHeld));
    assert_eq!(put(&mut queue_a, of_b, 0, b"no!"), Err(Refusal::NotHeld));
    drop((queue_b, b));
    await_that(subject, "a member that left gave its slab back", || (subject.lent)() == SLAB_BYTES);
    assert_eq!(get(&mut queue_a, of_a, 0, 3), Ok(b"a's".to_vec()));
}

/// The fork itself is the caller's: the contract is about who holds what.
fn a_child_holds_what_its_parent_held(subject: &Subject<'_>) {
    let parent = subject.join(1);
    let slab = parent.grant().expect("grant");
    let mut queue = parent.queue_pair().expect("queue pair");
    assert_eq!(put(&mut queue, slab.id, 0, b"from before the fork"), Ok(0));
    let ticket = parent.fork_ticket().expect("ticket");
    let later = parent.grant().expect("grant").id;
    if parent.is_mapped() {
        // The child's mappings are copies that only a fork makes: the tests of real processes see to these.
        ticket.abandon();
        return;
    }
    let child = Session::from_ticket(ticket).expect("child");
    let mut childs = child.queue_pair().expect("queue pair");
    assert_eq!(get(&mut childs, slab.id, 0, 20), Ok(b"from before the fork".to_vec()));
    assert_eq!(get(&mut childs, later, 0, 4), Err(Refusal::NotHeld));
    drop((queue, parent));
    await_that(subject, "what the parent alone held is free", || (subject.lent)() == SLAB_BYTES);
    assert_eq!(get(&mut childs, slab.id, 0, 20), Ok(b"from before the fork".to_vec()));
    assert!(child.grant().is_ok());
}

fn an_abandoned_ticket_holds_nothing(subject: &Subject<'_>) {
    let parent = subject.join(1);
    let slab = parent.grant().expect("grant").id;
    parent.fork_ticket().expect("ticket").abandon();
    parent.release(slab).expect("release");
    await_that(subject, "no child holds it", || (subject.lent)() == 0);
    parent.grant().expect("the parent goes on");
}

fn a_run_ends_as_a_whole(subject: &Subject<'_>) {
    let (one, two, other) = (subject.join(1), subject.join(1), subject.join(2));
    for session in [&one, &two, &other] {
        session.grant().expect("grant");
    }
    other.end_run([1; 16]).expect("end run");
    if one.is_mapped() {
        // Members whose processes live have the memory mapped: it is theirs until these end.
        assert_eq!((subject.lent)(), 3 * SLAB_BYTES);
        drop((one, two));
        await_that(subject, "the run's memory is free", || (subject.lent)() == SLAB_BYTES);
        return;
    }
    await_that(subject, "the run's memory is free", || (subject.lent)() == SLAB_BYTES);
    assert!(matches!(one.grant(), Err(GrantError::Lost(_))));
    other.grant().expect("another run goes on");
}
