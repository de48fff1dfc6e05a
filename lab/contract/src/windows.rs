//! Windows: what a key gives, to whom, and until when.

use super::{Subject, await_that, finish, get, pattern, put};
use farmem_fabric::{Bind, QueuePair, Refusal, Session};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::key::{Key, Rights};

const REFUSED: Result<u64, Refusal> = Err(Refusal::Access);

fn bind(queue: &mut QueuePair, window: Key, to: &Bind) -> Result<Key, Refusal> {
    queue.bind(3, window, to);
    finish(queue, 1)[0].result.map(Key)
}

fn invalidate(queue: &mut QueuePair, window: Key) -> Result<Key, Refusal> {
    queue.invalidate(4, window);
    finish(queue, 1)[0].result.map(Key)
}

fn add(queue: &mut QueuePair, key: Key, offset: u64) -> Result<u64, Refusal> {
    queue.faa(5, key, offset, 1);
    finish(queue, 1)[0].result
}

fn part(slab: SlabId, rights: Rights) -> Bind {
    Bind { parent: slab.into(), start: 4096, len: 8192, rights, owner: 0, queue: None }
}

fn member(subject: &Subject<'_>, run: u8) -> (Session, SlabId, QueuePair) {
    let session = subject.join(run);
    let slab = session.grant().expect("grant").id;
    let queue = session.queue_pair().expect("queue pair");
    (session, slab, queue)
}

pub fn a_window_gives_what_it_was_bound_for(subject: &Subject<'_>) {
    let (session, slab, mut queue) = member(subject, 1);
    let (all, read_only) = (session.window().expect("window"), session.window().expect("window"));
    let all = bind(&mut queue, all, &part(slab, Rights::ALL)).expect("bind");
    let read_only = bind(&mut queue, read_only, &part(slab, Rights::READ)).expect("bind");

    let bytes = pattern(9, 8192);
    assert_eq!(put(&mut queue, all, 0, &bytes), Ok(0));
    assert_eq!(get(&mut queue, slab, 4096, 8192), Ok(bytes.clone()), "a window's bytes are its slab's");
    assert_eq!(get(&mut queue, read_only, 0, 8192), Ok(bytes));
    assert_eq!(put(&mut queue, all, 8, &41u64.to_le_bytes()), Ok(0));
    assert_eq!(add(&mut queue, all, 8), Ok(41));

    assert_eq!(put(&mut queue, read_only, 0, b"no"), REFUSED, "a write through a read-only window");
    assert_eq!(add(&mut queue, read_only, 8), REFUSED, "an atomic through a read-only window");
    assert_eq!(put(&mut queue, all, 8191, b"no"), REFUSED, "over its end");
    assert_eq!(get(&mut queue, all, 8192, 1), Err(Refusal::Access), "behind its end");
    assert_eq!(get(&mut queue, all, u64::MAX, 2), Err(Refusal::Access), "around the end of everything");
    assert_eq!(add(&mut queue, all, 4), REFUSED, "not aligned");
    assert_eq!(get(&mut queue, Key::window(77, 1), 0, 1), Err(Refusal::Access), "a window that is not");
    assert_eq!(get(&mut queue, Key::service(9), 0, 1), Err(Refusal::Access), "a service that is not");
    assert_eq!(get(&mut queue, read_only, 8, 8), Ok(42u64.to_le_bytes().to_vec()), "after refusals all goes on");

    let third = session.window().expect("window");
    for (start, len) in [(SLAB_BYTES - 4095, 4096), (u64::MAX, 2), (0, 0)] {
        let beyond = Bind { start, len, ..part(slab, Rights::ALL) };
        assert_eq!(bind(&mut queue, third, &beyond), Err(Refusal::Window), "of what the slab does not have");
    }
    let nested = Bind { parent: all, ..part(slab, Rights::ALL) };
    assert_eq!(bind(&mut queue, third, &nested), Err(Refusal::Window), "of a window");
    let foreign = Bind { parent: SlabId(slab.0 + 99).into(), ..part(slab, Rights::ALL) };
    assert_eq!(bind(&mut queue, third, &foreign), Err(Refusal::Window), "of a slab not held");
}

pub fn a_window_is_one_queue_pairs(subject: &Subject<'_>) {
    let (session, slab, mut queue) = member(subject, 1);
    let (other, _, mut others) = member(subject, 2);
    let mut second = session.queue_pair().expect("queue pair");
    let mut others_second = other.queue_pair().expect("queue pair");
    let (own, given) = (session.window().expect("window"), session.window().expect("window"));
    let to_queue = Bind { queue: Some(queue.number()), ..part(slab, Rights::ALL) };
    let own = bind(&mut queue, own, &to_queue).expect("bind");
    let to_other = Bind { queue: Some(others.number()), owner: other.owner(), ..part(slab, Rights::ALL) };
    let given = bind(&mut queue, given, &to_other).expect("bind");

    assert_eq!(put(&mut queue, own, 0, b"through its own"), Ok(0));
    assert_eq!(put(&mut second, own, 0, b"no"), REFUSED, "another queue pair of the same member");
    assert_eq!(put(&mut others, own, 0, b"no"), REFUSED, "another member's, perhaps of the same number");
    assert_eq!(get(&mut others, given, 0, 15), Ok(b"through its own".to_vec()), "who it was given to");
    assert_eq!(get(&mut others_second, given, 0, 1), Err(Refusal::Access), "another queue pair of that member");
    assert_eq!(get(&mut queue, given, 0, 1), Err(Refusal::Access), "not even the giver");
    assert_eq!(get(&mut others, slab, 4096, 1), Err(Refusal::NotHeld), "the slab stays the giver's");

    assert_eq!(invalidate(&mut others, own), Err(Refusal::Access), "a stranger unbinds nothing");
    assert_eq!(invalidate(&mut others_second, given), Err(Refusal::Access));
    assert!(invalidate(&mut others, given).is_ok(), "who may use it may give it up");
    let again = session.window().expect("window");
    let nobody = Bind { owner: 16_000, ..part(slab, Rights::ALL) };
    assert_eq!(bind(&mut queue, again, &nobody), Err(Refusal::Window));
    assert_eq!(bind(&mut others, again, &part(slab, Rights::ALL)), Err(Refusal::Window), "another's window");
}

/// Of two tenants: a window of one is of no use to the other, and cannot be bound for it.
pub fn a_window_is_one_tenants(subject: &Subject<'_>) {
    let (session, slab, mut queue) = member(subject, 1);
    let (other, theirs, mut others) = member(subject, 2);
    let (own, given) = (session.window().expect("window"), session.window().expect("window"));
    let own = bind(&mut queue, own, &part(slab, Rights::ALL)).expect("bind");
    let to_other = Bind { owner: other.owner(), ..part(slab, Rights::ALL) };
    assert_eq!(bind(&mut queue, given, &to_other), Err(Refusal::Window), "for another tenant's member");
    assert_eq!(put(&mut queue, own, 0, b"ours"), Ok(0));
    assert_eq!(get(&mut others, own, 0, 4), Err(Refusal::Access));
    assert_eq!(put(&mut others, own, 0, b"no"), REFUSED);
    assert_eq!(add(&mut others, own, 8), REFUSED);
    assert_eq!(invalidate(&mut others, own), Err(Refusal::Access));
    other.drop_window(own).expect("a node, which drops nothing");
    let from_ours = part(slab, Rights::ALL);
    let window = other.window().expect("window");
    assert_eq!(bind(&mut others, window, &from_ours), Err(Refusal::Window), "of another's slab");
    assert_eq!(bind(&mut others, given, &part(theirs, Rights::ALL)), Err(Refusal::Window), "another's window");
    // A key that the other tenant guesses is no better than one that it was told.
    for index in 0..8 {
        let guesses = (1..6).map(|generation| Key::window(index, generation));
        let found = guesses.filter(|key| get(&mut others, *key, 0, 1).is_ok()).count();
        assert_eq!(found, 0, "window {index}");
    }
    assert_eq!(get(&mut queue, own, 0, 4), Ok(b"ours".to_vec()));
    // Its member is gone, and its index is used again.
    drop((queue, session));
    await_that(subject, "its member is gone", || (subject.lent)() == SLAB_BYTES);
    assert_eq!(get(&mut others, own, 0, 4), Err(Refusal::Access));
}

pub fn no_key_revives(subject: &Subject<'_>) {
    let (session, slab, mut queue) = member(subject, 1);
    let mut free = session.window().expect("window");
    let mut old = vec![free];
    for round in 0..4u8 {
        let key = bind(&mut queue, free, &part(slab, Rights::ALL)).expect("bind");
        assert_eq!(bind(&mut queue, free, &part(slab, Rights::ALL)), Err(Refusal::Window), "bound already");
        assert_eq!(put(&mut queue, key, 0, &[round]), Ok(0));
        for &old in &old {
            assert_eq!(put(&mut queue, old, 0, b"no"), REFUSED, "an old key");
            assert_eq!(invalidate(&mut queue, old), Err(Refusal::Window), "an old key");
        }
        if round == 2 {
            session.drop_window(key).expect("drop");
            assert_eq!(put(&mut queue, key, 0, b"no"), REFUSED, "dropped");
            free = session.window().expect("window");
        } else {
            free = invalidate(&mut queue, key).expect("invalidate");
            assert_eq!(put(&mut queue, key, 0, b"no"), REFUSED, "used after it was unbound");
        }
        assert!(!old.contains(&key) && !old.contains(&free) && key != free, "a key came twice");
        old.push(key);
    }
}

pub fn a_window_ends_with_its_slab(subject: &Subject<'_>) {
    let (session, slab, mut queue) = member(subject, 1);
    let (other, _, mut others) = member(subject, 2);
    let window = session.window().expect("window");
    let given = Bind { owner: other.owner(), ..part(slab, Rights::ALL) };
    let key = bind(&mut queue, window, &given).expect("bind");
    assert_eq!(put(&mut others, key, 0, b"theirs while it lasts"), Ok(0));
    session.release(slab).expect("release");
    assert_eq!(put(&mut others, key, 0, b"no"), REFUSED, "its slab was released");
    await_that(subject, "the slab is free", || (subject.lent)() == SLAB_BYTES);

    let slab = session.grant().expect("grant").id;
    let window = session.window().expect("window");
    let given = Bind { owner: other.owner(), ..part(slab, Rights::ALL) };
    let key = bind(&mut queue, window, &given).expect("bind");
    assert_eq!(put(&mut others, key, 0, b"again"), Ok(0));
    drop((queue, session));
    await_that(subject, "its member is gone", || (subject.lent)() == SLAB_BYTES);
    assert_eq!(put(&mut others, key, 0, b"no"), REFUSED, "who bound it is gone");
}

/// WRITEs of somebody else are under way, some of them only half, whenever the window is unbound: what
/// its holder writes afterwards stays.
pub fn many_invalidations_let_nothing_by(subject: &Subject<'_>) {
    let (session, slab, mut queue) = member(subject, 1);
    let (other, _, mut others) = member(subject, 2);
    let mut free = session.window().expect("window");
    let noise = vec![0xEE; 60_000];
    let silence = vec![0; 60_000];
    for round in 0..20u64 {
        let given = Bind { owner: other.owner(), start: 0, len: 1 << 20, ..part(slab, Rights::ALL) };
        let key = bind(&mut queue, free, &given).expect("bind");
        let mut done = Vec::new();
        for n in 0..4 {
            // SAFETY: the buffer outlives the verbs, which are awaited below.
            unsafe { others.write(n, key, 0, noise.as_ptr(), noise.len() as u32) };
        }
        others.doorbell().expect("doorbell");
        for _ in 0..round % 5 {
            others.poll(&mut done).expect("poll");
            (subject.pass)();
        }
        free = invalidate(&mut queue, key).expect("invalidate");
        assert_eq!(put(&mut queue, slab, 0, &silence), Ok(0));
        while done.len() < 4 {
            others.wait(&mut done, std::time::Duration::from_secs(5)).expect("wait");
        }
        assert!(done.iter().all(|c| matches!(c.result, Ok(0) | Err(Refusal::Access))));
        assert!(get(&mut queue, slab, 0, 60_000) == Ok(silence.clone()), "written under a key that was unbound");
    }
}
