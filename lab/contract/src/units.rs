//! Units of the pool: their descriptor words are the right, and only their owner moves them, by the rules.

use super::{SLABS, Subject, await_that, finish, get, pattern, put};
use farmem_fabric::words::{self, Words};
use farmem_fabric::{Bind, GrantError, QueuePair, Refusal, Session};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::extent::geometry::Target;
use farmem_protocol::extent::owner::OwnerField;
use farmem_protocol::extent::place::BLOCK_BYTES;
use farmem_protocol::extent::reshape::{Reshape, Reshaped};
use farmem_protocol::extent::{Actor, Claimant, Claimer, Generation, Level, Owner, Place, Release, State, Want, Word};
use farmem_protocol::extent::{Geometry, Grant, Key as UnitKey};
use farmem_protocol::key::{Key, Rights};
use farmem_sys::mapping::Mapping;

const REFUSED: Result<u64, Refusal> = Err(Refusal::Access);

/// A member, its queue pair, and the words from there.
struct Host {
    session: Session,
    queue: QueuePair,
    words: Words,
    actor: Actor,
}

impl Host {
    fn new(subject: &Subject<'_>, run: u8) -> Host {
        let session = subject.join(run);
        let mut queue = session.queue_pair().expect("queue pair");
        let words = Words::open(&mut queue).expect("words");
        let actor = Actor::new(Owner::new(session.owner()), Claimant::new(0));
        Host { session, queue, words, actor }
    }

    fn geometry(&self) -> Geometry {
        self.words.geometry()
    }

    fn claim(&mut self, want: Want) -> Option<Vec<Grant>> {
        let mut claimer = Claimer::new(self.actor, self.geometry());
        claimer.begin(want);
        self.words.run(&mut self.queue, &mut claimer).expect("a node").ok()
    }

    fn block(&mut self) -> Grant {
        self.claim(Want::one(Level::Block)).expect("a block")[0]
    }

    fn release(&mut self, grant: Grant) {
        let mut release = Release::new(self.actor, grant);
        self.words.run(&mut self.queue, &mut release).expect("a node").expect("released");
    }

    /// A unit that is free.
    fn take(&mut self, place: Place) -> Grant {
        let old = self.word(place);
        let next = Generation(old.generation().0 + 1);
        let word = Word::new(State::Owned, self.actor.owner, 0, Claimant::new(0), next);
        assert_eq!(self.cas(place, old, word), Ok(old.0));
        Grant { place, word }
    }

    fn word(&mut self, place: Place) -> Word {
        let mut word = [0];
        let at = self.geometry().offset(Target::Word(place)).expect("a place");
        words::read(&mut self.queue, at, &mut word).expect("readable");
        Word(word[0])
    }

    fn cas(&mut self, place: Place, old: Word, new: Word) -> Result<u64, Refusal> {
        let at = self.geometry().offset(Target::Word(place)).expect("a place");
        self.queue.cas(6, Key::WORDS, at, old.0, new.0);
        finish(&mut self.queue, 1)[0].result
    }
}

fn key(grant: Grant) -> Key {
    Key(grant.key().0)
}

fn becomes_free(subject: &Subject<'_>, host: &mut Host, place: Place) {
    let host = std::cell::RefCell::new(host);
    await_that(subject, "a unit given back is clean", || host.borrow_mut().word(place).is(State::Free));
}

pub fn a_unit_is_its_owners(subject: &Subject<'_>) {
    let (mut a, mut b) = (Host::new(subject, 1), Host::new(subject, 2));
    assert_ne!(a.session.owner(), b.session.owner());
    let mine = a.block();
    let (unit, bytes) = (key(mine), pattern(4, 70_000));
    assert_eq!(get(&mut a.queue, unit, BLOCK_BYTES - 64, 64), Ok(vec![0; 64]), "as clean as granted");
    assert_eq!(put(&mut a.queue, unit, BLOCK_BYTES - 70_000, &bytes), Ok(0));
    assert_eq!(get(&mut a.queue, unit, BLOCK_BYTES - 70_000, 70_000), Ok(bytes));
    a.queue.faa(1, unit, 16, 5);
    a.queue.cas(2, unit, 16, 5, 9);
    let results: Vec<_> = finish(&mut a.queue, 2).iter().map(|c| c.result).collect();
    assert_eq!(results, [Ok(0), Ok(5)]);
    assert_eq!((subject.lent)(), BLOCK_BYTES);

    assert_eq!(put(&mut b.queue, unit, 0, b"no"), REFUSED, "another's unit");
    assert_eq!(get(&mut b.queue, unit, 0, 2), Err(Refusal::Access), "another's unit");
    assert_eq!(put(&mut a.queue, unit, BLOCK_BYTES - 1, b"no"), REFUSED, "over its end");
    assert_eq!(get(&mut a.queue, unit, u64::MAX, 2), Err(Refusal::Access), "around the end");
    let (old, next) = (Key(unit.0 - 1), Key(unit.0 + 1));
    assert_eq!(put(&mut a.queue, old, 0, b"no"), REFUSED, "an earlier generation");
    assert_eq!(put(&mut a.queue, next, 0, b"no"), REFUSED, "a later generation");
    let beyond = Key::unit(2, a.geometry().count(Level::Block), 1);
    assert_eq!(put(&mut a.queue, beyond, 0, b"no"), REFUSED, "a unit that is not");

    let mut second = a.session.queue_pair().expect("queue pair");
    assert_eq!(put(&mut second, unit, 0, b"the owner's too"), Ok(0), "a unit is the member's, not a queue pair's");
    a.release(mine);
    assert_eq!(put(&mut a.queue, unit, 0, b"no"), REFUSED, "used after it was freed");
    assert_eq!(get(&mut second, unit, 0, 2), Err(Refusal::Access), "used after it was freed");
    becomes_free(subject, &mut a, mine.place);
    assert_eq!(put(&mut a.queue, unit, 0, b"no"), REFUSED, "used after it was freed");
}

pub fn words_go_only_where_the_rules_let_them(subject: &Subject<'_>) {
    let (mut a, mut b) = (Host::new(subject, 1), Host::new(subject, 2));
    let (mine, theirs) = (a.block(), b.block());
    let word = |state, owner: Owner, old: Word| {
        Word::new(state, owner, 0, Claimant::new(0), Generation(old.generation().0 + 1))
    };
    let (me, node) = (a.actor.owner, Owner::NODE);
    let free = (0..a.geometry().count(Level::Block)).map(Place::block);
    let free = free.into_iter().find(|&p| a.word(p).is(State::Free)).expect("a free block");
    let free_word = a.word(free);
    let forged = [
        (theirs.place, theirs.word, word(State::Quarantine, node, theirs.word), "another's is freed"),
        (theirs.place, theirs.word, word(State::Owned, me, theirs.word), "another's is taken over"),
        (mine.place, mine.word, word(State::Free, node, mine.word), "freed without quarantine"),
        (mine.place, mine.word, word(State::Owned, b.actor.owner, mine.word), "given to another"),
        (mine.place, mine.word, Word::plain(State::Quarantine, mine.word.generation()), "no generation is raised"),
        (free, free_word, word(State::Owned, b.actor.owner, free_word), "claimed in another's name"),
        (free, free_word, word(State::Owned, node, free_word), "claimed in the node's name"),
        (free, free_word, word(State::Bad, node, free_word), "retired"),
        (
            free,
            free_word,
            Word::new(State::Owned, me, 14, Claimant::new(1023), Generation(free_word.generation().0 + 1)),
            "posing as a slab",
        ),
        (Place::giant(0), a.word(Place::giant(0)), word(State::Owned, me, free_word), "the whole around others'"),
    ];
    for (place, old, new, what) in forged {
        assert_eq!(a.cas(place, old, new), REFUSED, "{what}");
        assert_eq!(a.word(place), old, "{what}");
    }
    assert_eq!(a.cas(free, mine.word, free_word), Ok(free_word.0), "what is not expected is told, and stays");
    let at = a.geometry().offset(Target::Word(mine.place)).expect("a place");
    assert_eq!(put(&mut a.queue, Key::WORDS, at, &[0; 8]), REFUSED, "a plain write");
    assert_eq!(put(&mut a.queue, Key::WORDS, 0, &[0; 64]), REFUSED, "a plain write");
    a.queue.faa(1, Key::WORDS, at, 1);
    assert_eq!(finish(&mut a.queue, 1)[0].result, REFUSED, "an addition");
    let end = a.geometry().table_bytes();
    assert_eq!(get(&mut a.queue, Key::WORDS, end - 8, 16), Err(Refusal::Access), "behind the table");
    let beat = |owner| Target::Owner(owner, OwnerField::Heartbeat);
    let (own, other) = (beat(me), beat(b.actor.owner));
    let offset = |target| a.words.geometry().offset(target).expect("an owner");
    let (own, other, quota) = (offset(own), offset(other), offset(Target::Owner(me, OwnerField::Quota)));
    assert_eq!(put(&mut a.queue, Key::WORDS, own, &7u64.to_le_bytes()), Ok(0), "its own heartbeat");
    assert_eq!(get(&mut b.queue, Key::WORDS, own, 8), Ok(7u64.to_le_bytes().to_vec()));
    assert_eq!(put(&mut a.queue, Key::WORDS, other, &7u64.to_le_bytes()), REFUSED, "another's heartbeat");
    assert_eq!(put(&mut a.queue, Key::WORDS, quota, &7u64.to_le_bytes()), REFUSED, "its own quota");
    assert_eq!(put(&mut b.queue, key(theirs), 0, b"unharmed"), Ok(0));
}

pub fn slabs_and_units_share_the_words(subject: &Subject<'_>) {
    let mut host = Host::new(subject, 1);
    let slab = host.session.grant().expect("grant").id;
    assert_eq!(put(&mut host.queue, slab, 0, b"of the slab"), Ok(0));
    let blocks = host.geometry().count(Level::Block);
    let slabs: Vec<(Place, Word)> = (0..blocks)
        .map(Place::block)
        .map(|place| (place, host.word(place)))
        .filter(|(_, w)| w.is(State::Owned))
        .collect();
    assert_eq!(slabs.len() as u64, SLAB_BYTES / BLOCK_BYTES);
    let (place, word) = slabs[5];
    let gone = Word::plain(State::Quarantine, Generation(word.generation().0 + 1));
    assert_eq!(host.cas(place, word, gone), REFUSED, "a slab's words are the node's to change");
    let through = Key(UnitKey::of(place, word).expect("an owned word").0);
    assert_eq!(get(&mut host.queue, through, 0, 1), Err(Refusal::Access), "a slab goes by its own key");

    let mut held = Vec::new();
    while let Some(grants) = host.claim(Want::some(Level::Block, 64)) {
        held.extend(grants);
    }
    assert_eq!(held.len() as u64, (SLABS as u64 - 1) * SLAB_BYTES / BLOCK_BYTES, "all that is left");
    assert_eq!((subject.lent)(), SLABS as u64 * SLAB_BYTES);
    assert!(matches!(host.session.grant(), Err(GrantError::Exhausted { .. })));
    for grant in held.drain(..) {
        host.release(grant);
    }
    await_that(subject, "units given back can be slabs", || (subject.lent)() == SLAB_BYTES);
    let second = host.session.grant().expect("grant").id;
    assert_eq!(get(&mut host.queue, second, 0, 64), Ok(vec![0; 64]));
    host.session.release(slab).expect("release");
    host.session.release(second).expect("release");
    await_that(subject, "the words are free again", || (subject.lent)() == 0);
    assert!((0..blocks).all(|block| host.word(Place::block(block)).is(State::Free)));
}

pub fn a_member_that_ends_leaves_nothing(subject: &Subject<'_>) {
    let (mut a, mut b) = (Host::new(subject, 1), Host::new(subject, 2));
    let (whole, opened) = (a.block(), a.block());
    assert_eq!(put(&mut a.queue, key(opened), 0, b"secret"), Ok(0));
    let mut publish = Reshape::publish(a.actor, a.geometry(), opened, [1, 0, 0, 0, 0, 0, 0, 0]);
    let published = a.words.run(&mut a.queue, &mut publish).expect("a node").expect("published");
    let Reshaped::Done(chunks) = published else { panic!("{published:?}") };
    assert_eq!(chunks.len(), 1, "one chunk stays in use");
    assert_eq!(get(&mut a.queue, key(chunks[0]), 0, 6), Ok(b"secret".to_vec()), "by a key of its own");
    assert_eq!(get(&mut a.queue, key(opened), 0, 6), Err(Refusal::Access), "no longer by the block's");
    await_that(subject, "the block's other chunks are clean", || (subject.lent)() == BLOCK_BYTES + 4096);
    let chunk = b.claim(Want::one(Level::Chunk)).expect("a chunk of the shared block")[0];
    assert_eq!(put(&mut b.queue, key(chunk), 4090, b"theirs"), Ok(0));
    assert_eq!(put(&mut b.queue, key(chunk), 4091, b"beyond"), REFUSED);
    let (first, second) = (key(whole), key(chunks[0]));
    let owner = a.actor.owner;
    drop(a);
    await_that(subject, "its units are free", || (subject.lent)() == 4096);
    for old in [first, second] {
        assert_eq!(get(&mut b.queue, old, 0, 1), Err(Refusal::Access));
    }
    assert_eq!(get(&mut b.queue, key(chunk), 4090, 6), Ok(b"theirs".to_vec()));
    b.release(chunk);
    becomes_free(subject, &mut b, opened.place);
    let mut heir = Host::new(subject, 3);
    if heir.actor.owner == owner {
        assert_eq!(put(&mut heir.queue, first, 0, b"no"), REFUSED, "the same slot, another incarnation");
    }
}

pub fn a_window_ends_with_its_unit(subject: &Subject<'_>) {
    let (mut a, mut b) = (Host::new(subject, 1), Host::new(subject, 2));
    let grant = a.block();
    let window = a.session.window().expect("window");
    let to = Bind {
        parent: key(grant),
        start: 8192,
        len: 4096,
        rights: Rights::READ.and(Rights::WRITE),
        owner: b.session.owner(),
        queue: Some(b.queue.number()),
    };
    a.queue.bind(1, window, &to);
    let window = Key(finish(&mut a.queue, 1)[0].result.expect("bind"));
    assert_eq!(put(&mut b.queue, window, 0, b"lent on"), Ok(0));
    assert_eq!(get(&mut a.queue, key(grant), 8192, 7), Ok(b"lent on".to_vec()));
    assert_eq!(put(&mut b.queue, window, 4096, b"no"), REFUSED);
    a.release(grant);
    assert_eq!(put(&mut b.queue, window, 0, b"no"), REFUSED, "its unit was freed");
    becomes_free(subject, &mut a, grant.place);
    assert_eq!(get(&mut b.queue, window, 0, 1), Err(Refusal::Access), "its unit was freed");
}

/// Where memory can be shared: a file of just these blocks, behind the same keys.
pub fn blocks_can_be_mapped(subject: &Subject<'_>) {
    let (mut a, mut b) = (Host::new(subject, 1), Host::new(subject, 2));
    let grant = a.block();
    if !a.session.is_mapped() {
        assert!(matches!(a.session.unit(key(grant), 1), Err(GrantError::System { .. })));
        return;
    }
    assert_eq!(put(&mut a.queue, key(grant), 70_000, b"by a verb"), Ok(0));
    let map = |session: &Session, first: Grant, blocks: u32| {
        let fd = session.unit(key(first), blocks).expect("a file");
        let mapping = Mapping::new(fd, blocks as usize * BLOCK_BYTES as usize).expect("mapped");
        farmem_sys::descriptors::close(fd);
        mapping
    };
    let mapped = map(&a.session, grant, 1);
    assert_eq!(mapped.bytes(70_000, 9).as_deref(), Some(&b"by a verb"[..]), "what was there before is there");
    assert!(mapped.write_bytes(0, b"by a store"));
    assert_eq!(get(&mut a.queue, key(grant), 0, 10), Ok(b"by a store".to_vec()));
    assert_eq!(put(&mut a.queue, key(grant), BLOCK_BYTES - 3, b"end"), Ok(0));
    assert_eq!(map(&a.session, grant, 1).bytes(BLOCK_BYTES - 3, 3).as_deref(), Some(&b"end"[..]), "the same again");

    for (session, unit, blocks, what) in [
        (&b.session, key(grant), 1, "another's"),
        (&a.session, Key(key(grant).0 + 1), 1, "of another generation"),
        (&a.session, key(grant), 2, "with a neighbour that is not held"),
        (&a.session, key(grant), 0, "nothing"),
        (&a.session, key(grant), u32::MAX, "everything"),
    ] {
        assert!(matches!(session.unit(unit, blocks), Err(GrantError::System { .. })), "{what}");
    }
    let mut publish = Reshape::publish(a.actor, a.geometry(), grant, [1, 0, 0, 0, 0, 0, 0, 0]);
    let published = a.words.run(&mut a.queue, &mut publish).expect("a node");
    assert!(published.is_err(), "what others have mapped is nobody else's: {published:?}");

    let run = a.claim(Want::run(&a.geometry(), Level::Block, 3).expect("a run")).expect("three blocks");
    let three = map(&a.session, run[0], 3);
    for (n, grant) in run.iter().enumerate() {
        assert!(three.write_bytes(n as u64 * BLOCK_BYTES + 5, &[n as u8 + 1]));
        assert_eq!(get(&mut a.queue, key(*grant), 5, 1), Ok(vec![n as u8 + 1]));
    }
    assert!(a.session.unit(key(run[1]), 1).is_err(), "cut otherwise before");
    a.release(run[1]);
    becomes_free(subject, &mut a, run[1].place);
    assert_eq!((three.bytes(5, 1), three.bytes(2 * BLOCK_BYTES + 5, 1)), (Some(vec![1]), Some(vec![3])));
    assert_eq!(three.bytes(BLOCK_BYTES + 5, 1), Some(vec![0]), "its memory has gone back");

    // Whoever is next has memory of its own.
    a.release(grant);
    becomes_free(subject, &mut a, grant.place);
    let again = b.take(grant.place);
    assert!(mapped.write_bytes(0, b"by a liar"));
    assert_eq!(get(&mut b.queue, key(again), 0, 9), Ok(vec![0; 9]));
    let theirs = map(&b.session, again, 1);
    assert!(theirs.write_bytes(0, b"theirs") && mapped.write_bytes(0, b"still here"));
    assert_eq!(
        (get(&mut b.queue, key(again), 0, 6), theirs.bytes(0, 6)),
        (Ok(b"theirs".to_vec()), Some(b"theirs".to_vec()))
    );

    // An owner that is fenced: programs that it mapped memory for may live, and keep their bytes.
    drop(b);
    becomes_free(subject, &mut a, grant.place);
    assert_eq!(theirs.bytes(0, 6), Some(b"theirs".to_vec()));
    let third = a.take(grant.place);
    assert_eq!(get(&mut a.queue, key(third), 0, 6), Ok(vec![0; 6]));
}

/// A unit is freed while its owner's WRITEs are under way, some only half: its next owner finds zeros,
/// and nothing else ever.
pub fn no_write_outlives_its_unit(subject: &Subject<'_>) {
    let (mut a, mut b) = (Host::new(subject, 1), Host::new(subject, 2));
    let mut writer = a.session.queue_pair().expect("queue pair");
    let noise = vec![0xEE; 60_000];
    for round in 0..20u64 {
        let grant = a.block();
        let mut done = Vec::new();
        for n in 0..4 {
            // SAFETY: the buffer outlives the verbs, which are awaited below.
            unsafe { writer.write(n, key(grant), 0, noise.as_ptr(), noise.len() as u32) };
        }
        writer.doorbell().expect("doorbell");
        for _ in 0..round % 5 {
            writer.poll(&mut done).expect("poll");
            (subject.pass)();
        }
        a.release(grant);
        becomes_free(subject, &mut b, grant.place);
        let grant = b.take(grant.place);
        while done.len() < 4 {
            writer.wait(&mut done, std::time::Duration::from_secs(5)).expect("wait");
        }
        assert!(done.iter().all(|c| matches!(c.result, Ok(0) | Err(Refusal::Access))));
        assert!(get(&mut b.queue, key(grant), 0, 60_000) == Ok(vec![0; 60_000]), "bytes of another generation");
        b.release(grant);
        becomes_free(subject, &mut b, grant.place);
    }
}
