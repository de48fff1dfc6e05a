//! Regions: memory of a node that several members reach, and that outlives them.

use super::{SLABS, Subject, await_that, finish, get, pattern, put};
use farmem_fabric::{GrantError, QueuePair, Refusal, RegionError, Session};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::region::RegionName;

fn name(text: &str) -> RegionName {
    text.parse().expect("a name")
}

/// A member of a run of its own that has opened the region.
fn opener(subject: &Subject<'_>, run: u8, region: &str) -> (Session, QueuePair) {
    let session = subject.join(run);
    session.regions().open(name(region), true).expect("a region");
    let queue = session.queue_pair().expect("queue pair");
    (session, queue)
}

fn grown(session: &Session, region: &str, number: u64) -> SlabId {
    session.regions().grow(name(region), number).expect("a slab").id
}

fn slab(session: &Session, region: &str, number: u64) -> SlabId {
    session.regions().slab(name(region), number).expect("a node").expect("a slab").id
}

/// Takes the name away; the memory is free when the last of these members is gone.
fn remove(session: &Session, region: &str) {
    assert_eq!(session.regions().remove(name(region)), Ok(true));
}

pub fn members_share_a_region(subject: &Subject<'_>) {
    let (a, mut by_a) = opener(subject, 1, "shared");
    let first = grown(&a, "shared", 0);
    let (b, mut by_b) = opener(subject, 2, "shared");
    assert_eq!(b.regions().open(name("shared"), false), Ok(1));
    assert_eq!(slab(&b, "shared", 0), first);
    let bytes = pattern(9, 70_000);
    assert_eq!(put(&mut by_a, first, 4096, &bytes), Ok(0));
    assert_eq!(get(&mut by_b, first, 4096, 70_000), Ok(bytes));
    for n in 0..100 {
        by_a.faa(1, first, 0, 1);
        by_b.faa(1, first, 0, 1);
        let both = [&mut by_a, &mut by_b].map(|queue| finish(queue, 1)[0].result.expect("added"));
        assert_eq!(both.iter().sum::<u64>(), 4 * n + 1, "{n}: {both:?}");
    }
    by_a.cas(2, first, 0, 200, 7);
    assert_eq!(finish(&mut by_a, 1)[0].result, Ok(200));
    by_b.cas(2, first, 0, 200, 8);
    assert_eq!(finish(&mut by_b, 1)[0].result, Ok(7), "the loser is told what is there");
    assert_eq!(a.discard(first, 0, 4096).map(|done| done && !a.is_mapped()), Ok(false), "others may use it");
    remove(&a, "shared");
}

pub fn only_who_has_opened_it_reaches_a_region(subject: &Subject<'_>) {
    let (a, mut by_a) = opener(subject, 1, "mine");
    let first = grown(&a, "mine", 0);
    assert_eq!(put(&mut by_a, first, 0, b"mine"), Ok(0));
    let stranger = subject.join(2);
    let mut queue = stranger.queue_pair().expect("queue pair");
    let theirs = Err(Refusal::NotHeld);
    assert_eq!(put(&mut queue, first, 0, b"theirs"), theirs);
    assert_eq!(get(&mut queue, first, 0, 4).map(|_| 0), theirs);
    queue.cas(1, first, 0, 0, 1);
    queue.faa(1, first, 0, 1);
    assert!(finish(&mut queue, 2).iter().all(|done| done.result == theirs));
    assert!(matches!(stranger.regions().slab(name("mine"), 0), Ok(None)), "it has not opened it");
    assert!(matches!(stranger.regions().grow(name("mine"), 1), Err(GrantError::System { .. })));
    let unknown = stranger.regions().open(name("other"), false);
    assert_eq!(unknown, Err(RegionError::Unknown { node: stranger.node().to_owned(), name: name("other") }));
    assert_eq!(stranger.regions().open(name("mine"), false), Ok(1));
    assert_eq!(put(&mut queue, first, 0, b"theirs"), theirs, "opened, and the slab not asked for");
    assert_eq!(slab(&stranger, "mine", 0), first);
    assert_eq!(get(&mut queue, first, 0, 4), Ok(b"mine".to_vec()));
    assert_eq!((stranger.release(first), put(&mut queue, first, 0, b"theirs")), (Ok(()), theirs));
    assert_eq!(get(&mut by_a, first, 0, 4), Ok(b"mine".to_vec()));
    remove(&a, "mine");
}

pub fn a_region_outlives_its_members(subject: &Subject<'_>) {
    let (a, mut by_a) = opener(subject, 1, "lasting");
    let first = grown(&a, "lasting", 0);
    assert_eq!(put(&mut by_a, first, 100, b"kept"), Ok(0));
    a.end_run([1; 16]).expect("a node");
    drop((by_a, a));
    (0..20).for_each(|_| (subject.pass)());
    assert_eq!((subject.lent)(), SLAB_BYTES);
    let (b, mut by_b) = opener(subject, 2, "lasting");
    let listed: Vec<_> = b.regions().list().expect("a node").iter().map(|region| (region.name, region.slabs)).collect();
    assert_eq!(listed, [(name("lasting"), 1)]);
    assert_eq!(slab(&b, "lasting", 0), first);
    assert_eq!(get(&mut by_b, first, 100, 4), Ok(b"kept".to_vec()));
    assert_eq!(b.release(first), Ok(()));
    assert_eq!((subject.lent)(), SLAB_BYTES, "the region has it");
    remove(&b, "lasting");
}

pub fn members_that_grow_a_region_at_once_get_the_same_slab(subject: &Subject<'_>) {
    let ((a, _), (b, _)) = (opener(subject, 1, "growing"), opener(subject, 2, "growing"));
    for number in 0..SLABS as u64 {
        assert_eq!(grown(&a, "growing", number), grown(&b, "growing", number));
    }
    assert!(matches!(a.regions().grow(name("growing"), SLABS as u64), Err(GrantError::Exhausted { .. })));
    assert!(matches!(a.regions().grow(name("growing"), SLABS as u64 + 1), Err(GrantError::System { .. })), "a hole");
    assert!(matches!(b.regions().slab(name("growing"), u64::MAX), Ok(None)));
    assert_eq!((subject.lent)(), SLABS as u64 * SLAB_BYTES);
    remove(&a, "growing");
}

pub fn a_removed_region_lives_until_it_is_closed(subject: &Subject<'_>) {
    let (a, mut by_a) = opener(subject, 1, "old");
    let first = grown(&a, "old", 0);
    let (b, _) = opener(subject, 2, "old");
    remove(&b, "old");
    assert_eq!(b.regions().remove(name("old")), Ok(false));
    assert_eq!((put(&mut by_a, first, 0, b"here"), b.regions().list()), (Ok(0), Ok(Vec::new())));
    let (c, mut by_c) = opener(subject, 3, "old");
    let another = grown(&c, "old", 0);
    assert_ne!(another, first, "a region of the same name is another one");
    assert_eq!(put(&mut by_c, first, 0, b"no"), Err(Refusal::NotHeld));
    assert_eq!((subject.lent)(), 2 * SLAB_BYTES);
    drop((by_a, a, b));
    await_that(subject, "what was removed and closed is free", || (subject.lent)() == SLAB_BYTES);
    remove(&c, "old");
}
