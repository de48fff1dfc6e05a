//! One owner's bytes are never another's, in whatever order the words change.

mod beside;

use super::files::File;
use super::leases::Lease;
use super::*;
use crate::epochs::Epochs;
use crate::shares::Peer;
use farmem_protocol::extent::check::recount;
use farmem_protocol::extent::owner::OwnerWord;
use farmem_protocol::extent::place::Place;
use farmem_protocol::extent::recover::{Recover, Recovered};
use farmem_protocol::extent::step::{MAX_READ, Verb};
use farmem_protocol::extent::{Actor, Answer, Failed, Operation, Step};
use farmem_sys::mapping::Mapping;
use std::collections::VecDeque;

/// A node's units with giants in one piece, and an owner.
fn units() -> (Arc<Units>, Lease) {
    let units = Arc::new(Units::new(2 << 30, false));
    let lease = Lease::new(&units).expect("nobody else is there");
    (units, lease)
}

/// The next word of a unit, which the owner may make it.
fn becomes(units: &Units, who: &Lease, place: Place, state: State) -> Word {
    let old = units.words.word(place);
    let next = old.generation().next().expect("a young unit");
    let new = match state.is_named() {
        true => Word::new(state, who.owner(), 0, Claimant::new(0), next),
        false => Word::plain(state, next),
    };
    let found = units.cas(who, units.words.offset(Target::Word(place)), old.0, new.0);
    assert_eq!(found, Ok(old.0), "{place:?} {old:?} to {state:?}");
    new
}

fn key_of(place: Place, word: Word) -> Key {
    Key(key::Key::of(place, word).expect("a word with a key").0)
}

/// A giant in one piece.
fn whole_giant(units: &Units) -> Place {
    let giants = (0..units.geometry().count(Level::Giant)).map(Place::giant);
    giants.into_iter().find(|&giant| units.words.word(giant).is(State::Free)).expect("half of them begin so")
}

fn keep_all(units: &Units) {
    let epochs = Epochs::default();
    while units.keep(&epochs, &|| 0) {}
    assert!(!units.is_unkept());
}

fn bytes_at(units: &Units, place: Place, len: u32) -> Vec<u8> {
    units.arena().unwrap().mapping().bytes(units.geometry().bytes(place).start, len).expect("inside the arena")
}

fn write_at(units: &Units, place: Place, bytes: &[u8]) {
    assert!(units.arena().unwrap().mapping().write_bytes(units.geometry().bytes(place).start, bytes));
}

/// The bytes that a process sees in the file.
fn seen(file: &File) -> Vec<u8> {
    Mapping::new(file.fd(), 16).unwrap().bytes(0, 16).unwrap()
}

/// A block inside a giant that is held whole has a word, and no life of its own: it is not mapped.
#[test]
fn a_block_of_a_giant_in_one_piece_is_not_mapped() {
    let (units, who) = units();
    let giant = whole_giant(&units);
    becomes(&units, &who, giant, State::Owned);
    let block = units.geometry().children(giant).unwrap().0;
    let word = becomes(&units, &who, block, State::Owned);
    let refused = file(&units, &who, key_of(block, word), 1).expect_err("its giant is not open");
    assert_eq!(refused, (Status::Access, 0));
    becomes(&units, &who, giant, State::Quarantine);
    keep_all(&units);
    // The next owner's.
    let next = Lease::new(&units).unwrap();
    becomes(&units, &next, giant, State::Owned);
    write_at(&units, block, b"the next owner's");
    assert_eq!(units.words.word(block).state(), State::Absent);
    assert!(file(&units, &who, key_of(block, word), 1).is_err());
}

/// Even if a file were beneath a block of it, emptying a giant takes it away.
#[test]
fn emptying_a_giant_takes_away_the_files_of_its_blocks() {
    let (units, who) = units();
    let giant = whole_giant(&units);
    becomes(&units, &who, giant, State::Splitting);
    let (first, count) = units.geometry().children(giant).unwrap();
    for block in (0..count).map(|n| first.plus(n)) {
        becomes(&units, &who, block, State::Free);
    }
    becomes(&units, &who, giant, State::Shared);
    let block = first.plus(count / 2);
    let words: Vec<Word> = (0..2).map(|n| becomes(&units, &who, block.plus(n), State::Owned)).collect();
    let file = file(&units, &who, key_of(block, words[0]), 2).unwrap();
    write_at(&units, block, b"by verbs, before");
    assert_eq!(seen(&file), b"by verbs, before");
    assert!(units.empty(giant));
    write_at(&units, block, b"the next owner's");
    write_at(&units, block.plus(1), b"the next owner's");
    assert_eq!(seen(&file), [0; 16], "what the former owner maps");
    assert_eq!((bytes_at(&units, block, 16), units.files.taken()), (b"the next owner's".to_vec(), 0));
}

/// A publication queues a chunk's cleaning twice: as it goes into quarantine, and when the block is
/// opened. The second must not be of the next owner's bytes.
#[test]
fn a_unit_that_waits_twice_is_cleaned_once() {
    let (units, who) = units();
    // One that lies in an open giant.
    let block =
        (0..units.geometry().count(Level::Block)).map(Place::block).find(|&b| units.words.word(b).is(State::Free));
    let block = block.expect("half of the giants begin open");
    becomes(&units, &who, block, State::Owned);
    let (first, count) = units.geometry().children(block).unwrap();
    let chunks = (0..count).map(|n| first.plus(n));
    for chunk in chunks.clone() {
        becomes(&units, &who, chunk, State::Quarantine);
    }
    becomes(&units, &who, block, State::Shared);
    let epochs = Epochs::default();
    // Verbs are under way, so that both wait for the same drain.
    let under_way = epochs.enter(0);
    for _ in 0..4 {
        units.keep(&epochs, &|| 0);
    }
    drop(under_way);
    let next = Lease::new(&units).unwrap();
    let mut claimed = 0;
    // Every free unit is claimed and written at once.
    while units.is_unkept() {
        units.keep(&epochs, &|| 0);
        for chunk in chunks.clone().filter(|&chunk| units.words.word(chunk).is(State::Free)) {
            becomes(&units, &next, chunk, State::Owned);
            write_at(&units, chunk, b"the next owner's");
            claimed += 1;
        }
    }
    assert_eq!(claimed, count);
    for chunk in chunks {
        assert_eq!(bytes_at(&units, chunk, 16), b"the next owner's", "{chunk:?}");
    }
}

/// A block that is open, with all its chunks in quarantine: each waits twice.
fn published(units: &Units, who: &Lease) -> Vec<Place> {
    let block =
        (0..units.geometry().count(Level::Block)).map(Place::block).find(|&b| units.words.word(b).is(State::Free));
    let block = block.expect("half of the giants begin open");
    becomes(units, who, block, State::Owned);
    let (first, count) = units.geometry().children(block).unwrap();
    let chunks: Vec<Place> = (0..count).map(|n| first.plus(n)).collect();
    for &chunk in &chunks {
        becomes(units, who, chunk, State::Quarantine);
    }
    becomes(units, who, block, State::Shared);
    chunks
}

/// While a caller scrubs a unit, others make everything else clean, and leave this one alone,
/// although it waits twice.
#[test]
fn what_one_caller_scrubs_others_leave_alone() {
    let (units, who) = units();
    let chunks = published(&units, &who);
    let (epochs, next) = (Epochs::default(), Lease::new(&units).unwrap());
    let claim_free = || {
        for &chunk in chunks.iter().filter(|&&chunk| units.words.word(chunk).is(State::Free)) {
            becomes(&units, &next, chunk, State::Owned);
            write_at(&units, chunk, b"the next owner's");
        }
    };
    // The clock is asked as a call begins, and again before it scrubs: it has a unit then.
    let asked = std::cell::Cell::new(0);
    let is_scrubbing = || {
        asked.set(asked.get() + 1);
        if asked.get() == 2 {
            while units.keep(&epochs, &|| 0) {}
            claim_free();
            let left = chunks.iter().filter(|&&chunk| units.words.word(chunk).is(State::Quarantine)).count();
            assert_eq!(left, 1, "the others are clean");
        }
        0
    };
    assert!(units.keep(&epochs, &is_scrubbing) && asked.get() > 2);
    claim_free();
    keep_all(&units);
    for &chunk in &chunks {
        assert_eq!(bytes_at(&units, chunk, 16), b"the next owner's", "{chunk:?}");
    }
}

/// The slot of an owner that died stays its own while a unit of its is scrubbed.
#[test]
fn an_owner_is_not_vacated_while_something_of_its_is_scrubbed() {
    let (units, who) = units();
    let block =
        (0..units.geometry().count(Level::Block)).map(Place::block).find(|&b| units.words.word(b).is(State::Free));
    let block = block.expect("half of the giants begin open");
    becomes(&units, &who, block, State::Owned);
    let owner = who.owner();
    drop(who);
    let (epochs, seen) = (Epochs::default(), std::cell::Cell::new(false));
    let is_vacant = || units.words.owner(owner).lease() == farmem_protocol::extent::owner::Lease::Vacant;
    let clock = || {
        if units.is_scrubbed(block) && !seen.replace(true) {
            while units.keep(&epochs, &|| 0) {}
            assert!(!is_vacant() && units.is_unkept(), "its unit is being scrubbed");
        }
        0
    };
    while units.is_unkept() {
        units.keep(&epochs, &clock);
    }
    assert!(seen.get());
    assert!(is_vacant(), "{:?}", units.words.owner(owner));
}

/// Many threads keep units whose blocks go round among owners who look at what they get, and at
/// what they have.
#[test]
fn blocks_that_many_threads_scrub_are_their_next_owners_alone() {
    let units = Arc::new(Units::new(2 << 30, false));
    let leases = [(); 2].map(|()| Lease::new(&units).unwrap());
    let open =
        (0..units.geometry().count(Level::Block)).map(Place::block).filter(|&b| units.words.word(b).is(State::Free));
    let blocks: Vec<Place> = open.take(12).collect();
    let (epochs, done) = (Epochs::default(), std::sync::atomic::AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while done.load(Ordering::Acquire) < leases.len() {
                    if !units.keep(&epochs, &|| 0) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        for (n, who) in leases.iter().enumerate() {
            let (units, blocks, done) = (&units, &blocks, &done);
            scope.spawn(move || {
                let mine = &blocks[6 * n..6 * n + 6];
                for round in 0..60u8 {
                    for &block in mine {
                        while !units.words.word(block).is(State::Free) {
                            std::thread::yield_now();
                        }
                        becomes(units, who, block, State::Owned);
                        assert_eq!(bytes_at(units, block, 16), [0; 16], "{block:?}, round {round}");
                        write_at(units, block, &[round + 1; 16]);
                    }
                    for &block in mine {
                        assert_eq!(bytes_at(units, block, 16), [round + 1; 16], "{block:?}");
                        becomes(units, who, block, State::Quarantine);
                    }
                }
                done.fetch_add(1, Ordering::Release);
            });
        }
    });
    keep_all(&units);
    assert_eq!(units.kept().reclaimed.load(Ordering::Relaxed), 2 * 60 * 6);
}

/// A range of the arena is whole, whichever files lie behind it.
#[test]
fn an_arena_is_one_memory_over_all_its_files() {
    let arena = Arena::new(5 * SLAB_BYTES, false).unwrap();
    assert_eq!((arena.own.len(), arena.each), (5, SLAB_BYTES));
    let ends = (1..5).map(|n| n * SLAB_BYTES);
    for end in ends.clone() {
        assert!(arena.mapping().write_bytes(end - 8, &[7; 16]));
    }
    assert_eq!(
        arena.pieces(SLAB_BYTES - 8, 3 * SLAB_BYTES).map(|(_, from, len)| (from, len)).collect::<Vec<_>>(),
        [(SLAB_BYTES - 8, 8), (0, SLAB_BYTES), (0, SLAB_BYTES), (0, SLAB_BYTES - 8)]
    );
    let taken = arena.taken();
    arena.discard(SLAB_BYTES - 4096, 8192);
    assert_eq!(taken - arena.taken(), 8192);
    let seen: Vec<_> = ends.map(|end| arena.mapping().bytes(end - 8, 16).unwrap()).collect();
    assert_eq!(seen, [vec![0; 16], vec![7; 16], vec![7; 16], vec![7; 16]]);
}

/// The file of `count` blocks, for a local user. Every lease of these tests is a user's own.
fn file(units: &Units, who: &Lease, key: Key, count: u32) -> Result<Arc<File>, (Status, i32)> {
    let (peer, mut copying) = (Peer::User(who.owner().slot() as u32), None);
    loop {
        if let Some(file) = units.file_step((who, peer), (key, count), &mut copying)? {
            return Ok(file);
        }
    }
}

/// While bytes are copied to a file, nothing waits for that but the blocks themselves: those are neither published
/// nor made clean, and come out as they should, whatever their owner does.
#[test]
fn blocks_whose_bytes_are_being_copied_hold_up_no_other() {
    let (units, who) = units();
    let mut free =
        (0..units.geometry().count(Level::Block)).map(Place::block).filter(|&b| units.words.word(b).is(State::Free));
    let run: Vec<Place> = free.by_ref().take(32).collect();
    let other = free.next().expect("half of the giants begin open");
    assert!(run.iter().zip(&run[1..]).all(|(a, b)| a.index + 1 == b.index));
    for round in 0..1000 {
        let words: Vec<Word> = run.iter().map(|&block| becomes(&units, &who, block, State::Owned)).collect();
        for (n, &block) in run.iter().enumerate() {
            let bytes = vec![n as u8 + 1; BLOCK_BYTES as usize];
            write_at(&units, block, &bytes);
        }
        let gives_back = round % 2 == 1;
        let (done, mut met) = (std::sync::atomic::AtomicBool::new(false), false);
        let mapped = std::thread::scope(|scope| {
            let copies = scope.spawn(|| {
                let mapped = file(&units, &who, key_of(run[0], words[0]), 32);
                done.store(true, Ordering::Release);
                mapped
            });
            while !done.load(Ordering::Acquire) && !met {
                // Another's publication finds the lock free, and these coming.
                let of_another = units.files.publishing(other);
                met = of_another.as_ref().is_some_and(|publishing| publishing.sees_coming(run[31].index));
                drop(of_another);
                if met {
                    assert!(units.files.publishing(run[31]).is_none());
                    if gives_back {
                        becomes(&units, &who, run[31], State::Quarantine);
                    }
                }
            }
            copies.join().unwrap()
        });
        if let Ok(mapped) = &mapped {
            let seen = Mapping::new(mapped.fd(), (32 * BLOCK_BYTES) as usize).unwrap();
            let as_written = |n: u64| seen.bytes(n * BLOCK_BYTES + 77, 16).unwrap() == [n as u8 + 1; 16];
            assert!((0..31).all(as_written) && (gives_back || as_written(31)));
        } else {
            assert!(met && gives_back);
        }
        for &block in &run {
            if units.words.word(block).is_held_by(who.owner()) {
                becomes(&units, &who, block, State::Quarantine);
            }
        }
        keep_all(&units);
        assert!(run.iter().all(|&block| bytes_at(&units, block, 16) == [0; 16]), "what the next owner gets");
        assert_eq!(units.files.taken(), 0);
        if met && gives_back {
            return;
        }
    }
    panic!("no copy was met in its course");
}

/// Of what is being copied nothing is made clean, nor mapped as part of something else.
#[test]
fn what_is_being_copied_is_left_alone() {
    let (units, who) = units();
    let free =
        (0..units.geometry().count(Level::Block)).map(Place::block).filter(|&b| units.words.word(b).is(State::Free));
    let run: Vec<Place> = free.take(3).collect();
    let words: Vec<Word> = run.iter().map(|&block| becomes(&units, &who, block, State::Owned)).collect();
    let copying = units.files.copying(run[1].index..run[1].index + 1, Peer::User(99));
    assert!(!units.empty(run[1]) && units.files.publishing(run[1]).is_none());
    for (first, count) in [(0, 2), (1, 2), (0, 3)] {
        assert_eq!(file(&units, &who, key_of(run[first], words[first]), count).err(), Some((Status::Shared, 0)));
    }
    file(&units, &who, key_of(run[0], words[0]), 1).unwrap();
    drop(copying);
    file(&units, &who, key_of(run[1], words[1]), 2).unwrap();
    assert!(units.empty(run[1]));
}

/// One user leaves the others half of the node's files, and has its own back when its blocks are
/// given back.
#[test]
fn a_user_may_have_half_of_the_files() {
    let (units, who) = units();
    units.set_descriptors(16);
    let mut free =
        (0..units.geometry().count(Level::Block)).map(Place::block).filter(|&b| units.words.word(b).is(State::Free));
    let mut next = |who: &Lease| {
        let block = free.next().expect("512 of them begin in an open giant");
        (block, key_of(block, becomes(&units, who, block, State::Owned)))
    };
    let mine: Vec<(Place, Key)> = (0..5).map(|_| next(&who)).collect();
    for (_, key) in &mine[..4] {
        file(&units, &who, *key, 1).unwrap();
    }
    assert_eq!(file(&units, &who, mine[4].1, 1).err(), Some((Status::System, libc::EMFILE)));
    let other = Lease::new(&units).unwrap();
    for _ in 0..4 {
        file(&units, &other, next(&other).1, 1).unwrap();
    }
    // Asked for again, one that there is: it takes nothing more.
    file(&units, &who, mine[0].1, 1).unwrap();
    becomes(&units, &who, mine[0].0, State::Quarantine);
    assert!(file(&units, &who, mine[4].1, 1).is_err(), "it is not clean yet");
    keep_all(&units);
    file(&units, &who, mine[4].1, 1).unwrap();
    assert_eq!(file(&units, &who, mine[4].1, 33).err(), Some((Status::Range, 0)));
}

/// A run's blocks count, whichever of them was given back.
#[test]
fn a_run_counts_without_its_first_block() {
    let (units, who) = units();
    let first =
        (0..units.geometry().count(Level::Block)).map(Place::block).find(|&b| units.words.word(b).is(State::Free));
    let first = first.expect("half of the giants begin open");
    let words: Vec<Word> = (0..2).map(|n| becomes(&units, &who, first.plus(n), State::Owned)).collect();
    let _file = file(&units, &who, key_of(first, words[0]), 2).unwrap();
    write_at(&units, first.plus(1), b"some");
    let taken = units.taken();
    assert!(taken > 0);
    becomes(&units, &who, first, State::Quarantine);
    keep_all(&units);
    assert_eq!(units.taken(), taken);
}

/// A member runs an operation by guarded verbs, as by a queue pair.
fn run_by<T>(units: &Units, who: &Lease, operation: &mut impl Operation<Outcome = T>) -> T {
    let mut posted = VecDeque::new();
    let mut room = [0; MAX_READ];
    loop {
        match operation.step() {
            Step::Verb(verb) => posted.push_back(verb),
            Step::Wait => match posted.pop_front().expect("it waits for what it posted") {
                Verb::Read { at, words } => {
                    let room = &mut room[..words as usize];
                    let at = units.words.offset(at);
                    room.iter_mut()
                        .zip((at..).step_by(8))
                        .for_each(|(word, at)| *word = units.words.at(at).load(Ordering::SeqCst));
                    operation.complete(Answer::Words(room));
                }
                Verb::Cas { at, old, new } => {
                    operation.complete(match units.cas(who, units.words.offset(at), old, new) {
                        Ok(found) => Answer::Found(found),
                        Err(_) => Answer::Refused,
                    })
                }
            },
            Step::Drain | Step::Scrub(..) => panic!("the node's"),
            Step::Done(outcome) => return outcome,
        }
    }
}

/// The node is not needed to recover a dead host: any other member can, through the words alone, by
/// verbs that the NIC admits, once the node has called it dead; and before that nobody can.
#[test]
fn another_member_recovers_who_is_dead_and_nobody_who_is_only_fenced() {
    let (units, dead) = units();
    let peer = Lease::new(&units).unwrap();
    // Blocks, chunks in a block that it published, and a giant that it was splitting.
    let mut free =
        (0..units.geometry().count(Level::Block)).map(Place::block).filter(|&b| units.words.word(b).is(State::Free));
    let (block, published) = (free.next().unwrap(), free.next().unwrap());
    let bystander = free.next().unwrap();
    becomes(&units, &dead, block, State::Owned);
    becomes(&units, &dead, published, State::Owned);
    let (first, count) = units.geometry().children(published).unwrap();
    for n in 0..count {
        becomes(&units, &dead, first.plus(n), if n % 2 == 0 { State::Owned } else { State::Quarantine });
    }
    becomes(&units, &dead, published, State::Shared);
    let giant = whole_giant(&units);
    becomes(&units, &dead, giant, State::Splitting);
    becomes(&units, &dead, units.geometry().children(giant).unwrap().0, State::Free);
    let kept = becomes(&units, &peer, bystander, State::Owned);

    let recover = || Recover::new(Actor::new(peer.owner(), Claimant::new(0)), *units.geometry(), dead.owner());
    let words = || recount(units.geometry(), &units.words);
    let before = words();
    assert_eq!(before.problems, []);
    assert_eq!(run_by(&units, &peer, &mut recover()), Err(Failed::Fenced), "it lives");
    units.words.lease_word(dead.owner(), OwnerWord::fenced);
    assert_eq!(run_by(&units, &peer, &mut recover()), Err(Failed::Fenced), "verbs of its may be under way");
    units.words.lease_word(dead.owner(), OwnerWord::died);
    let Recovered { quarantined, finished, .. } = run_by(&units, &peer, &mut recover()).expect("it is dead");
    assert_eq!((quarantined.len(), finished), (1 + count as usize / 2, 1));
    // Nothing names it any more, and what it was splitting is open.
    assert_eq!(run_by(&units, &peer, &mut recover()).map(|again| again.quarantined), Ok(vec![]));
    assert_eq!((units.words.word(giant).state(), units.words.word(bystander)), (State::Shared, kept));
    // Verbs of the dead owner that were on their way are refused.
    let old = units.words.word(block);
    assert_eq!(units.cas(&dead, units.words.offset(Target::Word(block)), old.0, old.0), Err(Status::Access));
    // The rest is the node's: clean, together, free.
    keep_all(&units);
    let after = words();
    assert_eq!((after.problems.len(), after.total()), (0, before.total()));
    assert_eq!((units.words.word(block).state(), units.words.word(published).state()), (State::Free, State::Free));
}

/// Threads claim, and one promises, at the same time: what is promised stays free.
#[test]
fn no_claim_takes_what_is_promised_beside_it() {
    for round in 0..400 {
        let units = Arc::new(Units::new(4 * SLAB_BYTES, false));
        let leases: Vec<_> = (0..4).map(|_| Lease::new(&units).unwrap()).collect();
        let promised = (round % 4) * SLAB_BYTES;
        units.promise(promised as i64);
        let together = std::sync::Barrier::new(5);
        let free = |units: &Units| units.words.free_bytes();
        std::thread::scope(|scope| {
            for lease in &leases {
                scope.spawn(|| {
                    together.wait();
                    let _ = units.claim_slab(lease.owner());
                });
            }
            together.wait();
            units.promise_if(SLAB_BYTES, 0).into_iter().for_each(|promise| promise.keep());
        });
        assert!(free(&units) >= units.promised(), "{round}: {} {}", free(&units) >> 20, units.promised() >> 20);
        assert!(units.promised() <= promised + SLAB_BYTES && units.claiming.load(Ordering::SeqCst) == 0);
    }
}
