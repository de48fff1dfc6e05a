//! Hostile bytes against the node's half: the real engine, the real members, real
//! memory; only the socket is missing.
//!
//! Conversations from `fuzz/corpus` and ones made here, all valid, are mutated
//! (bits, bytes, interesting numbers in fields, pieces cut, doubled, swapped, joined)
//! and fed in pieces of any size. A conversation may have several connections: a hello in its
//! midst opens the next, [`TURN`] goes on with an earlier one. Whatever comes: no panic, the limit holds, a
//! victim's slab keeps its bytes and its owner, what is answered has the length that
//! the frames say, and afterwards everything is given back. A conversation that makes
//! the node count something it had not counted before (a crude measure of
//! coverage) is mutated further, and kept in the corpus when `FARMEM_FUZZ_KEEP` is set.
//!
//! `FARMEM_FUZZ_SECONDS=300 FARMEM_FUZZ_SEED=7 cargo test -p farmem-fabric --test fuzz`, not
//! `--release`: overflows must be caught.

// The engine names raw parts; the test plays the socket.
#![allow(unsafe_code)]

use farmem_fabric::contract::conditions::record_if;
use farmem_fabric::nic::Nic;
use farmem_fabric::nic::engine::{Circumstances, Engine, Goodbye};
use farmem_fabric::nic::lending::{Backing, Lending};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::extent::check::recount;
use farmem_protocol::extent::{Claimant, Generation, Geometry, Owner, Place, State, Target, Word};
use farmem_protocol::key::{Key, Rights};
use farmem_protocol::lines::conditional::Refused;
use farmem_protocol::wire::{
    ANY_QUEUE, Answer, Ask, Batch, Binding, Hello, MAGIC, MAX_VERB_BYTES, Op, Purpose, Request, Status, VERSION, Verb,
    Welcome,
};
use farmem_sys::raw::Errno;
use farmem_sys::socket::Part;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Who joins after the victim and the attacker: its secret, and the slot that it owns units as.
const NEWCOMERS_SECRET: u64 = 4;
const NEWCOMER: u16 = 4;
/// Secrets that the fuzzer can guess, or it would never get past the door.
const FIRST_SECRET: u64 = 1;

/// What follows is for the connection whose number is the next byte.
const TURN: &[u8] = b"\0turn";
/// Connections of one conversation, at most.
const CONNECTIONS: usize = 4;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

fn secret(n: u64) -> [u8; 16] {
    let mut secret = [0; 16];
    secret[0] = n as u8;
    secret[8] = (n >> 8) as u8;
    secret
}

fn nic() -> Nic {
    let next = AtomicU64::new(FIRST_SECRET);
    Nic::new(Lending::new(4 * SLAB_BYTES, Backing::Small), move || secret(next.fetch_add(1, Ordering::Relaxed)))
}

/// A connection whose socket is a vector.
struct Wire<'a> {
    nic: &'a Nic,
    engine: Option<Engine>,
    said: Vec<u8>,
}

impl<'a> Wire<'a> {
    fn new(nic: &'a Nic) -> Self {
        Wire { nic, engine: Some(Engine::new(Circumstances::default())), said: Vec::new() }
    }

    /// Through a Unix socket: what can be mapped is passed.
    fn local(nic: &'a Nic) -> Self {
        let about = Circumstances { local: true, ..Circumstances::default() };
        Wire { nic, engine: Some(Engine::new(about)), said: Vec::new() }
    }

    /// Feeds bytes in pieces of at most `piece`; the output is taken in shorter ones.
    fn feed(&mut self, bytes: &[u8], piece: usize, now: u64) {
        let mut rest = bytes;
        let mut idle = 0;
        while let Some(engine) = &mut self.engine {
            let pulled = engine.pull(self.nic, now, |parts| {
                let mut taken = 0;
                for part in parts {
                    let n = part.len().min(rest.len()).min(piece - taken);
                    // SAFETY: the engine names its own memory.
                    unsafe { part.fill(0, &rest[..n]) };
                    rest = &rest[n..];
                    taken += n;
                    if n < part.len() {
                        break;
                    }
                }
                if taken > 0 { Ok(taken) } else { Err(Errno(libc::EAGAIN)) }
            });
            let pushed = engine.push(self.nic, |parts: &[Part], _| {
                let before = self.said.len();
                for part in parts {
                    // SAFETY: the engine names its own memory, which nobody writes here meanwhile.
                    self.said.extend_from_slice(unsafe { part.bytes() });
                }
                self.said.truncate(before + 7777);
                Ok(self.said.len() - before)
            });
            if let Err(why) = pulled.map(|_| ()).and(pushed) {
                self.close(why, now);
                return;
            }
            idle = if pulled == Ok(0) { idle + 1 } else { 0 };
            if idle > 1 && (rest.is_empty() || idle > 1000) {
                assert!(rest.is_empty(), "the engine takes no more and says nothing");
                return;
            }
        }
    }

    fn close(&mut self, why: Goodbye, now: u64) {
        if let Some(engine) = self.engine.take() {
            engine.close(self.nic, why, now);
        }
    }
}

fn hello(purpose: Purpose, member: u64, incarnation: u64) -> Vec<u8> {
    let hello = Hello {
        magic: MAGIC,
        version: VERSION.into(),
        purpose: purpose as u8,
        secret: secret(member),
        incarnation: incarnation.into(),
        grace_ms: 1000.into(),
        ..Hello::new_zeroed()
    };
    hello.as_bytes().to_vec()
}

/// A conversation's bytes, by connection.
fn turns(bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let (mut turns, mut connections, mut on, mut from, mut at) = (Vec::new(), 1, 0, 0, 1);
    while at < bytes.len() {
        let rest = &bytes[at..];
        if rest.starts_with(&MAGIC) && connections < CONNECTIONS {
            turns.push((on, &bytes[from..at]));
            (on, from, connections) = (connections, at, connections + 1);
        } else if rest.starts_with(TURN) && rest.len() > TURN.len() {
            turns.push((on, &bytes[from..at]));
            on = rest[TURN.len()] as usize % connections;
            at += TURN.len();
            from = at + 1;
        }
        at += 1;
    }
    turns.push((on, &bytes[from.min(bytes.len())..]));
    turns
}

/// A conversation that was kept under another version, in ours: else its hello would be all that is looked at.
fn of_today(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.starts_with(&MAGIC)
        && let Some(version) = bytes.get_mut(6..8)
    {
        version.copy_from_slice(&VERSION.to_le_bytes());
    }
    bytes
}

fn ask(ask: Ask, number: u64, slab: u64) -> Vec<u8> {
    let request = Request { ask: ask as u8, number: number.into(), slab: slab.into(), ..Request::new_zeroed() };
    request.as_bytes().to_vec()
}

/// Asks for the file of so many blocks.
fn ask_unit(number: u64, key: Key, blocks: u64) -> Vec<u8> {
    let mut request =
        Request { ask: Ask::Unit as u8, number: number.into(), slab: key.0.into(), ..Request::new_zeroed() };
    request.detail[..8].copy_from_slice(&blocks.to_le_bytes());
    request.as_bytes().to_vec()
}

fn batch(first: u64, verbs: &[(Op, u64, u64, u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut operands = Vec::new();
    let mut all = Vec::new();
    for &(op, slab, offset, len) in verbs {
        let verb = Verb { op: op as u8, zero: [0; 3], len: len.into(), key: slab.into(), offset: offset.into() };
        let n = verb.operand_bytes().unwrap_or(0) as usize;
        operands.extend((0..n).map(|i| i as u8));
        all.extend_from_slice(verb.as_bytes());
    }
    let (count, bytes) = (verbs.len() as u16, operands.len() as u32);
    let head = Batch { count: count.into(), zero: 0.into(), bytes: bytes.into(), first: first.into() };
    out.extend_from_slice(head.as_bytes());
    out.extend(all);
    out.extend(operands);
    out
}

/// A batch of one record of lines, of a slab's pages by their slots.
fn lines_batch(first: u64, slab: u64, at: &[(u16, u64)]) -> Vec<u8> {
    let pages: Vec<[u8; 4096]> = (0..at.len()).map(|i| [i as u8 + 1; 4096]).collect();
    record_batch(first, slab, Op::Lines, &farmem_fabric::contract::record(SlabId(slab), at, &pages))
}

/// The same on the condition that pages of zeros are there.
fn lines_if_batch(first: u64, slab: u64, at: &[(u16, u64)]) -> Vec<u8> {
    let pages: Vec<[u8; 4096]> = (0..at.len()).map(|i| [i as u8 + 1; 4096]).collect();
    let zeros = vec![[0; 4096]; at.len()];
    record_batch(first, slab, Op::LinesIf, &record_if(SlabId(slab), at, &pages, &zeros, &[9; 16]))
}

fn record_batch(first: u64, slab: u64, op: Op, record: &[u8]) -> Vec<u8> {
    let verb =
        Verb { op: op as u8, zero: [0; 3], len: (record.len() as u32).into(), key: slab.into(), offset: 0.into() };
    let head = Batch { count: 1.into(), zero: 0.into(), bytes: (record.len() as u32).into(), first: first.into() };
    [head.as_bytes(), verb.as_bytes(), record].concat()
}

/// A batch with operands of one's own.
fn batch_of(first: u64, verbs: &[(Op, Key, u64, Vec<u8>)]) -> Vec<u8> {
    let (mut all, mut operands) = (Vec::new(), Vec::new());
    for (op, key, offset, operand) in verbs {
        let len = match op {
            Op::Cas | Op::Faa => 8,
            Op::Bind | Op::Invalidate => 0,
            Op::Read => 64,
            _ => operand.len() as u32,
        };
        let verb = Verb { op: *op as u8, zero: [0; 3], len: len.into(), key: key.0.into(), offset: (*offset).into() };
        all.extend_from_slice(verb.as_bytes());
        operands.extend_from_slice(operand);
    }
    let (count, bytes) = (verbs.len() as u16, operands.len() as u32);
    let head = Batch { count: count.into(), zero: 0.into(), bytes: bytes.into(), first: first.into() };
    [head.as_bytes().to_vec(), all, operands].concat()
}

/// A unit's word after `state` was reached for the `generation`-th time.
fn word(state: State, owner: u16, generation: u32) -> Word {
    Word::new(state, Owner::new(owner), 0, Claimant::new(0), Generation(generation))
}

/// A CAS of a block's word.
fn swap(geometry: &Geometry, block: u32, old: Word, new: Word) -> (Op, Key, u64, Vec<u8>) {
    let at = geometry.offset(Target::Word(Place::block(block))).unwrap();
    (Op::Cas, Key::WORDS, at, [old.0.to_le_bytes(), new.0.to_le_bytes()].concat())
}

/// A member claims block 0 as owner 3, uses it, binds windows to it and to its slab, gives it back.
fn of_units(geometry: &Geometry) -> Vec<Vec<u8>> {
    let (free, owned) = (word(State::Free, 0, 1), word(State::Owned, 3, 2));
    let (unit, slab) = (Key::unit(2, 0, 2), Key(2));
    let bind = |parent: Key, owner: u16| {
        let binding = Binding {
            parent: parent.0.into(),
            start: 4096.into(),
            len: 8192.into(),
            queue: ANY_QUEUE.into(),
            owner: owner.into(),
            rights: Rights::ALL.bits(),
            zero: [0; 5],
        };
        binding.as_bytes().to_vec()
    };
    let (unbound, bound) = (Key::window(0, 0), Key::window(0, 1));
    vec![
        batch_of(
            0,
            &[swap(geometry, 0, free, owned), (Op::Write, unit, 100, vec![7; 300]), (Op::Read, unit, 0, vec![])],
        ),
        batch_of(3, &[(Op::Bind, unbound, 0, bind(unit, 0)), (Op::Write, bound, 0, vec![9; 100])]),
        batch_of(5, &[(Op::Read, bound, 64, vec![]), (Op::Invalidate, bound, 0, vec![]), (Op::Read, bound, 0, vec![])]),
        batch_of(8, &[(Op::Bind, Key::window(0, 2), 0, bind(slab, 1)), (Op::Faa, unit, 8, vec![1; 8])]),
        batch_of(10, &[swap(geometry, 0, owned, word(State::Quarantine, 0, 3)), (Op::Write, unit, 0, vec![1; 64])]),
        batch_of(12, &[swap(geometry, 1, word(State::Owned, 1, 2), word(State::Quarantine, 0, 3))]),
        batch_of(13, &[(Op::Read, Key::WORDS, 0, vec![]), (Op::Read, Key::unit(2, 1, 2), 0, vec![])]),
        batch_of(
            15,
            &[
                (Op::Send, Key::ALLOC, 0, vec![3; 40]),
                (Op::Send, Key::FREE, 0, vec![]),
                (Op::Faa, Key::WORDS, 64, vec![1; 8]),
            ],
        ),
    ]
}

/// A member claims two blocks by a queue pair, is passed their files by its first connection, and gives them back.
fn of_files(geometry: &Geometry, incarnation: u64) -> Vec<u8> {
    let turn = |connection: u8| [TURN, &[connection]].concat();
    let claim = |block, generation| {
        swap(geometry, block, word(State::Free, 0, generation), word(State::Owned, NEWCOMER, generation + 1))
    };
    let give = |block, generation| {
        swap(geometry, block, word(State::Owned, NEWCOMER, generation), word(State::Quarantine, 0, generation + 1))
    };
    let (one, other) = (Key::unit(2, 2, 2), Key::unit(2, 3, 2));
    [
        hello(Purpose::Join, 0, 0),
        hello(Purpose::Attach, NEWCOMERS_SECRET, incarnation),
        batch_of(0, &[claim(2, 1), claim(3, 1), (Op::Write, one, 0, vec![5; 100])]),
        turn(0),
        ask_unit(1, one, 1),
        ask_unit(2, other, 1),
        ask_unit(3, one, 2),
        turn(1),
        batch_of(3, &[(Op::Write, one, 4096, vec![6; 64]), (Op::Read, one, 0, vec![]), give(2, 2)]),
        turn(0),
        ask_unit(4, one, 1),
        ask_unit(5, other, 33),
        turn(1),
        batch_of(6, &[give(3, 2)]),
        turn(0),
        ask(Ask::Bye, 6, 0),
    ]
    .concat()
}

/// Valid conversations to begin with. The incarnation of [`nic`] is fixed by its first secret.
fn seeds(incarnation: u64) -> Vec<Vec<u8>> {
    let control = [
        hello(Purpose::Join, 0, 0),
        ask(Ask::Grant, 1, 0),
        ask(Ask::Grant, 2, 0),
        ask(Ask::Ticket, 3, 0),
        ask(Ask::Release, 4, 2),
        ask(Ask::Ping, 5, 0),
        ask(Ask::Window, 6, 0),
        ask(Ask::DropWindow, 7, Key::window(0, 0).0),
        ask(Ask::Who, 8, 3),
        ask(Ask::Figure, 9, 7),
        ask(Ask::EndRun, 10, 0),
        ask(Ask::Unit, 11, Key::unit(2, 0, 2).0),
        ask(Ask::Expose, 12, 1),
        ask(Ask::ExposeWindow, 13, Key::window(0, 1).0),
        ask(Ask::Bye, 14, 0),
    ];
    let queue = [
        hello(Purpose::Attach, 3, incarnation),
        batch(0, &[(Op::Read, 2, 0, 4096), (Op::Write, 2, 8192, 5000), (Op::Read, 1, 0, 64)]),
        batch(3, &[(Op::Cas, 2, 0, 8), (Op::Faa, 2, 8, 8), (Op::Faa, 2, SLAB_BYTES - 4, 8)]),
        batch(
            6,
            &[(Op::Write, 1, 0, 64), (Op::Write, 2, SLAB_BYTES - 10, 20), (Op::Read, 2, u64::MAX, MAX_VERB_BYTES)],
        ),
    ];
    let records = [
        hello(Purpose::Attach, 3, incarnation),
        lines_batch(0, 2, &[(0, 1), (5, 0xF0F0), (16383, u64::MAX)]),
        lines_batch(1, 1, &[(0, u64::MAX)]),
        batch(2, &[(Op::Read, 2, 0, 64)]),
    ];
    let conditional = [
        hello(Purpose::Attach, 3, incarnation),
        lines_if_batch(0, 2, &[(0, 1), (5, 0xF0F0), (16383, u64::MAX)]),
        lines_if_batch(1, 2, &[(0, 1), (7, 3)]),
        lines_if_batch(2, 1, &[(0, u64::MAX)]),
        batch(3, &[(Op::Read, 2, 0, 64)]),
    ];
    vec![
        records.concat(),
        conditional.concat(),
        [vec![hello(Purpose::Attach, 3, incarnation)], of_units(nic().pool.geometry())].concat().concat(),
        of_files(nic().pool.geometry(), incarnation),
        control.concat(),
        queue.concat(),
        hello(Purpose::Rejoin, 3, incarnation),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ]
}

fn mutate(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    const NUMBERS: [u64; 10] = [0, 1, 7, 255, 4096, SLAB_BYTES - 1, SLAB_BYTES, u32::MAX as u64, 1 << 63, u64::MAX];
    for _ in 0..=random.below(6) {
        if bytes.is_empty() {
            bytes.extend_from_slice(other);
        }
        let at = random.below(bytes.len());
        let end = at + random.below(bytes.len() - at + 1).min(200);
        match random.below(8) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => {
                let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
                let n = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
                bytes[at..at + n].copy_from_slice(&number[..n]);
            }
            3 => drop(bytes.drain(at..end)),
            4 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            5 => bytes.truncate(end),
            6 => bytes.extend_from_slice(&other[random.below(other.len())..]),
            _ => bytes.extend((0..random.below(300)).map(|_| random.next() as u8)),
        }
        bytes.truncate(64 << 10);
    }
}

/// Feeds one conversation to a node with a victim on it; checks everything; says what was counted.
fn attack(random: &mut Random, bytes: &[u8], incarnation: u64) -> Vec<bool> {
    let nic = nic();
    assert_eq!(nic.incarnation, incarnation);
    let mut now = 1;
    // The victim is the second member (the first secret is the incarnation's) and holds slab 1; the
    // attacker is given the third, with slab 2, and connects as whoever it likes.
    let mut victim = Wire::new(&nic);
    victim.feed(&[hello(Purpose::Join, 0, 0), ask(Ask::Grant, 1, 0)].concat(), 1000, now);
    let mut own = Wire::new(&nic);
    own.feed(&[hello(Purpose::Join, 0, 0), ask(Ask::Grant, 1, 0), ask(Ask::Window, 2, 0)].concat(), 1000, now);
    let mut victims_queue = Wire::new(&nic);
    // And claims block 1.
    let geometry = *nic.pool.geometry();
    let claim = swap(&geometry, 1, word(State::Free, 0, 1), word(State::Owned, 1, 2));
    let unit = Key::unit(2, 1, 2);
    let claim = batch_of(1, &[claim, (Op::Write, unit, 0, (0..64).collect())]);
    let write = [hello(Purpose::Attach, 2, incarnation), batch(0, &[(Op::Write, 1, 0, 64)]), claim].concat();
    victims_queue.feed(&write, 1000, now);

    let local = random.below(2) == 0;
    let mut hostile: Vec<Wire<'_>> = Vec::new();
    let turns = turns(bytes);
    for &(connection, bytes) in &turns {
        if connection == hostile.len() {
            hostile.push(if local { Wire::local(&nic) } else { Wire::new(&nic) });
        }
        hostile[connection].feed(bytes, 1 + random.below(5000), now);
        assert!(nic.lent() <= nic.lending.limit());
        if random.below(4) == 0 {
            nic.keep(&|| 0);
        }
    }
    let mut answers = 0;
    for mut hostile in hostile {
        answers += hostile.said.len();
        if hostile.said.len() >= size_of::<Welcome>() {
            assert_eq!(hostile.said[..6], MAGIC);
        }
        hostile.close(Goodbye::Cut, now);
    }
    // Not always: it looks at every word.
    if random.below(32) == 0 {
        let counted = recount(&geometry, &*nic.pool);
        assert!(counted.problems.is_empty() && counted.lost == 0, "{:?}", counted.problems);
    }
    while nic.keep(&|| 0) {}

    // Unless the attacker guessed the victim's secret or its run, as no real one can.
    let joins = turns.iter().any(|(_, bytes)| bytes.get(8) == Some(&(Purpose::Join as u8)));
    let guessed = bytes.windows(16).any(|w| w == secret(2)) || joins;
    if !guessed {
        victims_queue.said.clear();
        victims_queue.feed(&batch_of(3, &[(Op::Read, Key(1), 0, vec![]), (Op::Read, unit, 0, vec![])]), 1000, now);
        let expected: Vec<u8> = (0..64).collect();
        assert_eq!(victims_queue.said.get(16..80), Some(&expected[..]), "the victim's bytes");
        assert_eq!(victims_queue.said.get(96..), Some(&expected[..]), "the victim's unit");
        let Ok(granted) = Answer::read_from_bytes(&victim.said[size_of::<Welcome>()..]) else { panic!() };
        assert_eq!((granted.status, granted.value.get()), (0, 1));
    }
    let seen = [
        &nic.tally.reads,
        &nic.tally.writes,
        &nic.tally.records,
        &nic.tally.refused_records,
        &nic.tally.cas,
        &nic.tally.faa,
        &nic.tally.refused_verbs,
        &nic.tally.binds,
        &nic.tally.invalidates,
        &nic.tally.sends,
        &nic.pool.kept().reclaimed,
        &nic.tally.exhausted,
        &nic.tally.rejoined,
        &nic.tally.refused_hellos,
        &nic.tally.broken_connections,
    ];
    let mut features: Vec<bool> = seen.iter().map(|c| c.load(Ordering::Relaxed) > 1).collect();
    features.extend((0..20).map(|bit| answers >> bit == 1));
    for wire in [&mut victim, &mut own, &mut victims_queue] {
        wire.close(Goodbye::Cut, now);
    }
    now += 4_000_000_000_000;
    nic.expire(now);
    while nic.keep(&|| 0) {}
    assert_eq!((nic.lent(), nic.members().len()), (0, 0), "all is given back");
    features
}

/// Two connections of one member: what is claimed by the one is passed by the other, as long as it is held.
#[test]
fn a_conversation_of_two_connections_is_granted_files() {
    let nic = nic();
    for _ in 0..2 {
        Wire::new(&nic).feed(&[hello(Purpose::Join, 0, 0), ask(Ask::Grant, 1, 0)].concat(), 1000, 1);
    }
    let bytes = of_files(nic.pool.geometry(), nic.incarnation);
    let mut wires = [Wire::local(&nic), Wire::local(&nic)];
    for (connection, bytes) in turns(&bytes) {
        wires[connection].feed(bytes, 1000, 1);
    }
    let answers = wires[0].said[size_of::<Welcome>()..].chunks(size_of::<Answer>());
    let statuses: Vec<u8> = answers.map(|answer| Answer::read_from_bytes(answer).expect("an answer").status).collect();
    let (ok, shared, access, range) = (0, Status::Shared as u8, Status::Access as u8, Status::Range as u8);
    assert_eq!(statuses[..5], [ok, ok, shared, access, range], "{statuses:?}");
    for wire in &mut wires {
        wire.close(Goodbye::Cut, 1);
    }
}

#[test]
fn hostile_bytes_do_no_harm() {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (seconds, seed) = (number("FARMEM_FUZZ_SECONDS", 3u64), number("FARMEM_FUZZ_SEED", 1u64));
    let keep = std::env::var_os("FARMEM_FUZZ_KEEP").is_some();
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    println!("FARMEM_FUZZ_SECONDS={seconds} FARMEM_FUZZ_SEED={seed}");

    let incarnation = nic().incarnation;
    let mut pool = seeds(incarnation);
    let mut files: Vec<_> = std::fs::read_dir(&corpus).into_iter().flatten().flatten().map(|f| f.path()).collect();
    files.sort();
    pool.extend(files.iter().filter_map(|file| std::fs::read(file).ok().map(of_today)));
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut seen = BTreeSet::new();
    for conversation in &pool {
        seen.insert(attack(&mut random, conversation, incarnation));
    }
    let begun = Instant::now();
    let mut runs = 0u64;
    while begun.elapsed() < Duration::from_secs(seconds) {
        let mut bytes = pool[random.below(pool.len())].clone();
        let other = pool[random.below(pool.len())].clone();
        mutate(&mut random, &mut bytes, &other);
        runs += 1;
        if seen.insert(attack(&mut random, &bytes, incarnation)) && pool.len() < 4096 {
            if keep {
                let hash =
                    bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, &b| (h ^ b as u64).wrapping_mul(0x100_0000_01b3));
                std::fs::write(corpus.join(format!("{hash:016x}")), &bytes).unwrap();
            }
            pool.push(bytes);
        }
    }
    println!("{runs} conversations, {} kept in mind, {} kinds of outcome", pool.len(), seen.len());
}

/// Any one byte of a record changed on its way: the connection is closed, and the slab as it was.
#[test]
fn records_that_lie_change_nothing() {
    let nic = nic();
    let mut owner = Wire::new(&nic);
    owner.feed(&[hello(Purpose::Join, 0, 0), ask(Ask::Grant, 1, 0)].concat(), 1000, 1);
    let good = lines_batch(0, 1, &[(0, 0b11), (1, 1 << 63)]);
    let record_at = size_of::<Batch>() + size_of::<Verb>();
    for at in record_at..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        let mut wire = Wire::new(&nic);
        wire.feed(&[hello(Purpose::Attach, 2, nic.incarnation), bad].concat(), 100, 1);
        assert!(wire.engine.is_none(), "byte {at} went unnoticed");
    }
    assert_eq!(nic.tally.records.load(Ordering::Relaxed), 0);
    // With conditions the same; what lies behind the checksum are these, and wrong ones refuse.
    let good = lines_if_batch(0, 1, &[(0, 0b11), (1, 1 << 63)]);
    for at in record_at..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        let mut wire = Wire::new(&nic);
        wire.feed(&[hello(Purpose::Attach, 2, nic.incarnation), bad].concat(), 100, 1);
        // The record's own bytes end 32 before its last, two conditions and the seed.
        assert_eq!(wire.engine.is_some(), at >= good.len() - 32, "byte {at}");
        if wire.engine.is_some() {
            let refused = Refused(u64::from_le_bytes(wire.said[wire.said.len() - 8..].try_into().unwrap()));
            let page = |page: usize| at >= good.len() - 16 || (at - (good.len() - 32)) / 8 == page;
            assert_eq!([0, 1].map(|n| refused.contains(n)), [0, 1].map(page), "byte {at}");
            // What was not refused is there: as it was before.
            let zeros = batch_of(1, &[(Op::Write, Key(1), 0, vec![0; 8192])]);
            wire.feed(&zeros, 1000, 1);
        }
        wire.close(Goodbye::Cut, 1);
    }
    let mut wire = Wire::new(&nic);
    wire.feed(&[hello(Purpose::Attach, 2, nic.incarnation), batch(0, &[(Op::Read, 1, 0, 8192)])].concat(), 100, 1);
    let read = &wire.said[wire.said.len() - 8192..];
    assert!(read.iter().all(|&byte| byte == 0));
    for wire in [wire, owner] {
        let mut wire = wire;
        wire.close(Goodbye::Cut, 1);
    }
}
