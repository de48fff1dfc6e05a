//! Hostile bytes against the node's half: the real engine, the real members, real
//! memory; only the socket is missing.
//!
//! Conversations from `fuzz/corpus` and ones made here, all valid, are mutated
//! (bits, bytes, interesting numbers in fields, pieces cut, doubled, swapped, joined)
//! and fed in pieces of any size. A conversation may have several connections: a hello in its
//! midst opens the next, [`conversations::TURN`] goes on with an earlier one. Whatever comes: no panic, the limit holds, a
//! victim's slab keeps its bytes and its owner, what is answered has the length that
//! the frames say, and afterwards everything is given back. A conversation that makes
//! the node count something it had not counted before (a crude measure of
//! coverage) is mutated further, and kept in the corpus when `FARMEM_FUZZ_KEEP` is set.
//!
//! `FARMEM_FUZZ_SECONDS=300 FARMEM_FUZZ_SEED=7 cargo test -p farmem-nic --test fuzz`: five minutes
//! of CPU time. Not `--release`, because overflows must be caught.

// The engine names raw parts; the test plays the socket.
#![allow(unsafe_code)]

mod conversations;
mod frames;
mod mutation;
mod records;
mod sealed;
mod volumes;
mod wire;

use conversations::{of_files, of_today, seeds, swap, turns, word};
use farmem_nic::engine::Goodbye;
use farmem_protocol::addr::SlabId;
use farmem_protocol::extent::State;
use farmem_protocol::extent::check::recount;
use farmem_protocol::key::Key;
use farmem_protocol::random::Random;
use farmem_protocol::wire::{Answer, Ask, Greeting, Hello, MAGIC, Op, Purpose, Reply, Request, Status};
use farmem_sys::raw::thread_cpu_ns;
use frames::{ask, attach, batch, batch_of, join};
use mutation::mutate;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use wire::{Wire, nic, secret};

/// Feeds one conversation to a node with a victim on it; checks everything; says what was counted.
fn attack(random: &mut Random, bytes: &[u8], incarnation: u64) -> Vec<bool> {
    let nic = nic();
    assert_eq!(nic.incarnation, incarnation);
    let mut now = 1;
    // The victim is the second member (the first secret is the incarnation's) and holds slab 1; the
    // attacker is given the third, with slab 2, and connects as whoever it likes.
    let mut victim = Wire::new(&nic);
    victim.feed(&[join(), ask(1, Ask::Grant)].concat(), 1000, now);
    let mut own = Wire::new(&nic);
    own.feed(&[join(), ask(1, Ask::Grant), ask(2, Ask::Window)].concat(), 1000, now);
    let mut victims_queue = Wire::new(&nic);
    // And claims block 1.
    let geometry = *nic.units.geometry();
    let claim = swap(&geometry, 1, word(State::Free, 0, 1), word(State::Owned, 1, 2));
    let unit = Key::unit(2, 1, 2);
    let claim = batch_of(1, &[claim, (Op::Write, unit, 0, (0..64).collect())]);
    let write = [attach(2, incarnation), batch(0, &[(Op::Write, 1, 0, 64)]), claim].concat();
    victims_queue.feed(&write, 1000, now);

    let local = random.index(2) == 0;
    let mut hostile: Vec<Wire<'_>> = Vec::new();
    let turns = turns(bytes);
    for &(connection, bytes) in &turns {
        if connection == hostile.len() {
            hostile.push(if local { Wire::local(&nic) } else { Wire::new(&nic) });
        }
        hostile[connection].feed(bytes, 1 + random.index(5000), now);
        assert!(nic.lent() <= nic.lending.limit());
        if random.index(4) == 0 {
            nic.keep(&|| 0);
        }
    }
    let mut answers = 0;
    for mut hostile in hostile {
        answers += hostile.said.len();
        if !hostile.said.is_empty() {
            assert_eq!(hostile.said[..6], MAGIC);
            assert!(Greeting::read(&hostile.said).is_ok_and(|greeting| greeting.is_some()));
        }
        hostile.close(Goodbye::Cut, now);
    }
    // Not always: it looks at every word.
    if random.index(32) == 0 {
        let counted = recount(&geometry, &nic.units.words);
        assert!(counted.problems.is_empty() && counted.lost == 0, "{:?}", counted.problems);
    }
    while nic.keep(&|| 0) {}

    // Unless the attacker guessed the victim's secret or its run, as no real one can.
    let guessed = bytes.windows(16).any(|w| w == secret(2)) || ends_its_run(bytes) || enters(&turns);
    if !guessed {
        victims_queue.said.clear();
        victims_queue.feed(&batch_of(3, &[(Op::Read, Key(1), 0, vec![]), (Op::Read, unit, 0, vec![])]), 1000, now);
        let expected: Vec<u8> = (0..64).collect();
        assert_eq!(victims_queue.said.get(16..80), Some(&expected[..]), "the victim's bytes");
        assert_eq!(victims_queue.said.get(96..), Some(&expected[..]), "the victim's unit");
        assert_eq!(answers_in(&victim.said), [Ok(Reply::Slab(SlabId(1)))]);
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
        &nic.units.kept().reclaimed,
        &nic.tally.exhausted,
        &nic.tally.rejoined,
        &nic.tally.refused_hellos,
        &nic.tally.broken_connections,
        &nic.tally.write_bytes,
    ];
    let mut features: Vec<bool> = seen.iter().map(|c| c.load(Ordering::Relaxed) > 1).collect();
    features.extend((0..20).map(|bit| answers >> bit == 1));
    for wire in [&mut victim, &mut own, &mut victims_queue] {
        wire.close(Goodbye::Cut, now);
    }
    now += 4_000_000_000_000;
    nic.expire(now);
    let regions = nic.regions().list();
    assert!(regions.iter().all(|region| nic.regions().remove(region.name)), "they outlive who made them");
    for _ in 0..10_000 {
        if !nic.keep(&|| 0) && !nic.is_unkept() {
            break;
        }
    }
    assert!(nic.volumes.is_empty() && nic.units.promised() == 0);
    assert_eq!((nic.lent(), nic.members().len()), (0, 0), "all is given back");
    features
}

/// Whether a connection joins the run that the victim is of, or comes as the victim.
fn enters(turns: &[(usize, &[u8])]) -> bool {
    let connections = turns.iter().map(|(connection, _)| connection + 1).max().unwrap_or(0);
    (0..connections).any(|connection| {
        // A Hello may come in several turns.
        let said: Vec<&[u8]> = turns.iter().filter(|(on, _)| *on == connection).map(|(_, bytes)| *bytes).collect();
        match Hello::read(&said.concat()) {
            Ok(Some((hello, _))) => match hello.purpose {
                Purpose::Join(_) => true,
                Purpose::Rejoin(known) | Purpose::Attach(known, _) | Purpose::Wire(known, _) => {
                    known.secret == secret(2)
                }
                Purpose::NewVolume(_) | Purpose::Volume(..) => false,
            },
            _ => false,
        }
    })
}

/// Whether the run that all are of, whose name is zeros, may be asked to end: the variant, and its name.
fn ends_its_run(bytes: &[u8]) -> bool {
    let end = [&[8][..], &[0; 16]].concat();
    assert!(Request::new(0, Ask::EndRun([0; 16])).frame().as_bytes().ends_with(&end));
    bytes.windows(end.len()).any(|w| w == end)
}

/// The answers that a control connection was given.
fn answers_in(said: &[u8]) -> Vec<Result<Reply, farmem_protocol::wire::Refused>> {
    let (_, mut at) = Greeting::read(said).unwrap().unwrap();
    let mut answers = Vec::new();
    while at < said.len() {
        let (answer, used) = Answer::read(&said[at..]).unwrap().unwrap();
        answers.push(answer.result);
        at += used;
    }
    answers
}

/// Two connections of one member: what is claimed by the one is passed by the other, as long as it is held.
#[test]
fn a_conversation_of_two_connections_is_granted_files() {
    let nic = nic();
    for _ in 0..2 {
        Wire::new(&nic).feed(&[join(), ask(1, Ask::Grant)].concat(), 1000, 1);
    }
    let bytes = of_files(nic.units.geometry(), nic.incarnation);
    let mut wires = [Wire::local(&nic), Wire::local(&nic)];
    for (connection, bytes) in turns(&bytes) {
        wires[connection].feed(bytes, 1000, 1);
    }
    let statuses: Vec<Status> =
        answers_in(&wires[0].said).iter().map(|answer| answer.map_or_else(|e| e.status, |_| Status::Done)).collect();
    use Status::{Access, Done, Range, Shared};
    assert_eq!(statuses[..5], [Done, Done, Shared, Access, Range], "{statuses:?}");
    for wire in &mut wires {
        wire.close(Goodbye::Cut, 1);
    }
}

#[test]
fn hostile_bytes_do_no_harm() {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (seconds, seed) = (number("FARMEM_FUZZ_SECONDS", 3u64), number("FARMEM_FUZZ_SEED", 1u64));
    let keep = std::env::var_os("FARMEM_FUZZ_KEEP").is_some();
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    println!("FARMEM_FUZZ_SECONDS={seconds} FARMEM_FUZZ_SEED={seed}");

    let incarnation = nic().incarnation;
    let mut pool = seeds(incarnation);
    let mut files: Vec<_> = std::fs::read_dir(&corpus).into_iter().flatten().flatten().map(|f| f.path()).collect();
    files.sort();
    pool.extend(files.iter().filter_map(|file| std::fs::read(file).ok().map(of_today)));
    let mut random = Random::new(seed);
    let mut seen = BTreeSet::new();
    for conversation in &pool {
        seen.insert(attack(&mut random, conversation, incarnation));
    }
    let (until, mut runs) = (thread_cpu_ns() + seconds * 1_000_000_000, 0u64);
    while thread_cpu_ns() < until {
        let mut bytes = pool[random.index(pool.len())].clone();
        let other = pool[random.index(pool.len())].clone();
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
