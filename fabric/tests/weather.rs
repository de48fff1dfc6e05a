//! Bad weather, in virtual time and by seed: cuts, stops and deaths at any moment.

use farmem_contract::conditions::record_if;
use farmem_contract::{finish, get, put, record};
use farmem_fabric::session::BOUND_NS;
use farmem_fabric::{Bind, Completion, ConnectOptions, Lost, QueuePair, Refusal, Session, Trust};
use farmem_nic::tenants::{Known, Standing};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::key::{Key, Rights};
use farmem_protocol::lines::conditional::Refused;
use farmem_protocol::random::Random;
use farmem_protocol::wire::Figure;
use farmem_sim::{Network, Weather};
use farmem_sys::raw::Errno;
use farmem_trust::Token;
use std::sync::Arc;
use std::time::Duration;

const GRACE: Duration = Duration::from_secs(5);

fn session(network: &Arc<Network>) -> Session {
    joined(network, Trust::default())
}

fn joined(network: &Arc<Network>, trust: Trust) -> Session {
    let options = ConnectOptions {
        timeout: Duration::from_secs(2),
        grace: GRACE,
        run: [1; 16],
        pid: 1,
        trust,
        ..ConnectOptions::default()
    };
    Session::simulated(network, &options).unwrap()
}

fn weather(seed: u64) -> Weather {
    Weather { seed, segment: 1 + (seed as usize * 977) % 9000, ..Weather::default() }
}

/// By which a host of every second seed and its node know each other: then what they say is encrypted.
fn trust(network: &Network, seed: u64) -> Trust {
    if !seed.is_multiple_of(2) {
        return Trust::default();
    }
    let key = Token::new("analytics", &[7; 40]).unwrap().key();
    network
        .with_nic(|nic| nic.set_tokens(vec![Known { key, standing: Standing::Good, quota: u64::MAX, rate: u64::MAX }]));
    key.into()
}

/// A queue pair on one slab, in weather of its own, and random numbers of 31 bits; all by the seed.
fn setting(seed: u64) -> (Arc<Network>, Session, SlabId, QueuePair, impl FnMut() -> u64) {
    let network = Network::new(weather(seed), 8 * SLAB_BYTES);
    let session = joined(&network, trust(&network, seed));
    let slab = session.grant().unwrap().id;
    let queue = session.queue_pair().unwrap();
    let mut random = Random::new(seed);
    let next = move || random.bits() >> 33;
    (network, session, slab, queue, next)
}

/// What was posted has gone off; the connection is cut or not; all of `verbs` completes well.
fn completes(network: &Network, queue: &mut QueuePair, next: &mut impl FnMut() -> u64, verbs: usize) {
    let done = completed(network, queue, next, verbs);
    assert!(done.iter().all(|c| c.result == Ok(0)), "{done:?}");
}

/// The same, however it completes.
fn completed(
    network: &Network,
    queue: &mut QueuePair,
    next: &mut impl FnMut() -> u64,
    verbs: usize,
) -> Vec<Completion> {
    queue.doorbell().unwrap();
    network.pass(next() % 60_000);
    let mut done: Vec<Completion> = Vec::new();
    queue.poll(&mut done).unwrap();
    match next() % 4 {
        0 => network.cut(),
        1 => network.cut_and_lose(),
        2 => network.cut_and_hold_up(next() % 200_000),
        _ => {}
    }
    while done.len() < verbs {
        queue.wait(&mut done, Duration::from_secs(1)).unwrap();
    }
    done
}

/// WRITEs and READs of a queue pair against a model, with the connection cut at moments that the seed chooses.
#[test]
fn cuts_at_any_moment_lose_and_repeat_nothing() {
    for seed in 1..=40u64 {
        let (network, _session, slab, mut queue, mut next) = setting(seed);
        let mut model = vec![0u8; 16 * 4096];
        for round in 0..30u8 {
            let (at, len) = ((next() % 8 * 4096 + next() % 4096) as usize, next() as usize % 9000);
            let bytes = vec![round + 1; len];
            model[at..at + len].copy_from_slice(&bytes);
            let mut back = vec![0; model.len()];
            #[allow(unsafe_code)]
            // SAFETY: both buffers outlive the verbs, which are awaited below.
            unsafe {
                queue.write(0, slab, at as u64, bytes.as_ptr(), len as u32);
                queue.read(1, slab, 0, back.as_mut_ptr(), back.len() as u32);
            }
            completes(&network, &mut queue, &mut next, 2);
            assert!(back == model, "seed {seed}, round {round}");
        }
    }
}

/// A fault's READs leave by two doorbells, the demand page's at once and its window's a little later; the connection is cut
/// between them.
#[test]
fn a_cut_between_a_faults_two_doorbells_loses_and_repeats_nothing() {
    const PAGES: usize = 16;
    for seed in 1..=40u64 {
        let (network, _session, slab, mut queue, mut next) = setting(seed);
        let pages: Vec<u8> = (0..PAGES * 4096).map(|at| (at / 4096 * 16 + at % 13) as u8).collect();
        assert_eq!(put(&mut queue, slab, 0, &pages), Ok(0));
        for round in 0..30 {
            let demand = next() as usize % PAGES;
            let window = 1 + next() as usize % (PAGES - 1);
            let mut landing = vec![0; PAGES * 4096];
            let mut read = |queue: &mut QueuePair, index: usize| {
                let into = &mut landing[index * 4096..][..4096];
                let from = (demand + index) % PAGES * 4096;
                #[allow(unsafe_code)]
                // SAFETY: the buffer outlives the verbs, which are awaited below.
                unsafe {
                    queue.read(index as u64, slab, from as u64, into.as_mut_ptr(), 4096)
                };
            };
            read(&mut queue, 0);
            queue.doorbell().unwrap();
            network.pass(next() % 60_000);
            match next() % 2 {
                0 => network.cut(),
                _ => network.cut_and_lose(),
            }
            (1..=window).for_each(|index| read(&mut queue, index));
            queue.doorbell().unwrap();
            let mut done: Vec<Completion> = Vec::new();
            while done.len() <= window {
                queue.wait(&mut done, Duration::from_secs(1)).unwrap();
            }
            assert!(done.iter().all(|c| c.result == Ok(0)), "seed {seed}, round {round}: {done:?}");
            let mut tags: Vec<u64> = done.iter().map(|c| c.tag).collect();
            tags.sort_unstable();
            assert_eq!(tags, (0..=window as u64).collect::<Vec<_>>(), "seed {seed}, round {round}");
            for index in 0..=window {
                let from = (demand + index) % PAGES * 4096;
                assert!(
                    landing[index * 4096..][..4096] == pages[from..][..4096],
                    "seed {seed}, round {round}, {index}"
                );
            }
        }
    }
}

/// Records of lines between WRITEs of the same pages, cut at any moment: what had no completion goes again, in
/// order, and a record is applied whole or not at all.
#[test]
fn records_are_applied_whole_and_in_order_whatever_is_cut() {
    for seed in 1..=40u64 {
        let (network, _session, slab, mut queue, mut next) = setting(seed);
        let mut model = vec![0u8; 4 * 4096];
        for round in 0..30u8 {
            let lines: Vec<(u16, u64)> = (0..4).map(|place| (place, next() << 33 | next() | 1)).collect();
            let bytes = [[2 * round + 1; 4096]; 4];
            let record = record(slab, &lines, &bytes);
            for &(place, lines) in &lines {
                let page = &mut model[place as usize * 4096..][..4096];
                (0..64).filter(|k| lines >> k & 1 == 1).for_each(|k| page[k * 64..][..64].fill(2 * round + 1));
            }
            let (at, whole) = (next() as usize % 4 * 4096, [2 * round + 2; 4096]);
            let after = next() % 2 == 0;
            if after {
                model[at..at + 4096].fill(2 * round + 2);
            }
            let mut back = vec![0; model.len()];
            #[allow(unsafe_code)]
            // SAFETY: all buffers outlive the verbs, which are awaited below.
            unsafe {
                queue.lines(0, slab, record.as_ptr(), record.len() as u32);
                if after {
                    queue.write(1, slab, at as u64, whole.as_ptr(), 4096);
                }
                queue.read(2, slab, 0, back.as_mut_ptr(), back.len() as u32);
            }
            completes(&network, &mut queue, &mut next, 2 + after as usize);
            assert!(back == model, "seed {seed}, round {round}");
        }
    }
}

/// Records with conditions, cut at any moment. What goes again after it was carried out is refused; what is refused goes
/// whole, as the pager has it: the page is right whenever that is acknowledged.
#[test]
fn what_is_refused_goes_whole_whatever_is_cut() {
    let (mut refusals, mut laid) = (0, 0);
    for seed in 1..=40u64 {
        let (network, _session, slab, mut queue, mut next) = setting(seed);
        let mut model = [[0u8; 4096]; 4];
        for round in 0..30u8 {
            let lines: Vec<(u16, u64)> = (0..4).map(|place| (place, next() << 33 | next() | 1)).collect();
            let before = model;
            for (page, &(_, lines)) in model.iter_mut().zip(&lines) {
                (0..64).filter(|k| lines >> k & 1 == 1).for_each(|k| page[k * 64..][..64].fill(2 * round + 1));
            }
            // One line of a page changes unseen: what is said of it before is then of a page that never was.
            let mut said = before;
            let overlooked = next() as usize % 8;
            if let Some(page) = model.get_mut(overlooked) {
                page[lines[overlooked].1.trailing_ones() as usize % 64 * 64] ^= 0x80;
                said[overlooked][lines[overlooked].1.trailing_zeros() as usize * 64] ^= 0x80;
            }
            let record = record_if(slab, &lines, &model, &said, &[seed as u8; 16]);
            // A WRITE of another page, and a READ of it, behind.
            let (beside, mut back) = ([round + 1; 4096], [0; 4096]);
            #[allow(unsafe_code)]
            // SAFETY: all buffers outlive the verbs, which are awaited below.
            unsafe {
                queue.lines_if(0, slab, record.as_ptr(), record.len() as u32);
                queue.write(1, slab, 4 * 4096, beside.as_ptr(), 4096);
                queue.read(2, slab, 4 * 4096, back.as_mut_ptr(), 4096);
            }
            let done = completed(&network, &mut queue, &mut next, 3);
            let refused = Refused(done[0].result.unwrap());
            assert!((done[1].result, done[2].result, back) == (Ok(0), Ok(0), beside), "seed {seed}, round {round}");
            assert!(overlooked >= 4 || refused.contains(overlooked), "seed {seed}, round {round}");
            for (place, page) in model.iter().enumerate().filter(|(place, _)| refused.contains(*place)) {
                #[allow(unsafe_code)]
                // SAFETY: as above.
                unsafe {
                    queue.write(1, slab, place as u64 * 4096, page.as_ptr(), 4096)
                };
                completes(&network, &mut queue, &mut next, 1);
                refusals += (place != overlooked) as usize;
            }
            laid += refused.is_none() as usize;
            assert!(get(&mut queue, slab, 0, 4 * 4096) == Ok(model.concat()), "seed {seed}, round {round}");
        }
    }
    assert!(refusals > 0 && laid > 0, "{refusals} refusals of what was there already, {laid} records laid whole");
}

/// A FAA is counted once, or the caller is told that nobody knows.
#[test]
fn an_atomic_verb_is_never_done_twice() {
    let mut unknown = 0;
    for seed in 1..=60u64 {
        let network = Network::new(weather(seed), SLAB_BYTES);
        let session = session(&network);
        let slab = session.grant().unwrap().id;
        let mut queue = session.queue_pair().unwrap();
        let (mut certain, mut uncertain) = (0, 0);
        for round in 0..20 {
            queue.faa(0, slab, 0, 1);
            queue.doorbell().unwrap();
            network.pass(seed * 613 % 40_000);
            if (round + seed) % 3 == 0 {
                network.cut();
            }
            let mut done = Vec::new();
            while done.is_empty() {
                queue.wait(&mut done, Duration::from_secs(1)).unwrap();
            }
            match done[0].result {
                Ok(_) => certain += 1,
                Err(Refusal::Unknown) => uncertain += 1,
                Err(other) => panic!("{other}"),
            }
        }
        let word = u64::from_le_bytes(get(&mut queue, slab, 0, 8).unwrap().try_into().unwrap());
        assert!((certain..=certain + uncertain).contains(&word), "seed {seed}: {certain} + {uncertain}: {word}");
        unknown += uncertain;
    }
    assert!(unknown > 0, "no cut ever hit a verb under way: the test tests nothing");
}

/// A grant whose answer a cut swallowed is answered again, not granted again.
#[test]
fn a_request_is_carried_out_once() {
    let mut cut_short = 0;
    for seed in 1..=200u64 {
        let (network, session, _, _, mut next) = setting(seed);
        for held in 2..=8 {
            // On the way there, on the way back, and twice in what follows: dialling, or asking again.
            let mut at = 0;
            network.plan_cuts([40_000, 60_000, 250_000_000].map(|within| {
                at += next() % within;
                at
            }));
            let begun = network.now_ns();
            session.grant().unwrap();
            cut_short += (network.now_ns() - begun > 60_000) as usize;
            assert_eq!(network.lent(), held * SLAB_BYTES, "seed {seed}");
            network.pass(300_000_000);
        }
    }
    assert!(cut_short > 500, "{cut_short} of 1400 grants were cut: the test tests little");
}

#[test]
fn a_dead_node_is_lost_after_half_a_second_of_refusals() {
    let network = Network::new(weather(1), SLAB_BYTES);
    let session = session(&network);
    let slab = session.grant().unwrap().id;
    let mut queue = session.queue_pair().unwrap();
    assert!(put(&mut queue, slab, 0, b"x").is_ok());
    network.kill_node();
    let begun = network.now_ns();
    queue.faa(0, slab, 0, 1);
    let lost = queue.doorbell().and_then(|()| queue.wait(&mut Vec::new(), GRACE * 2)).unwrap_err();
    let took = network.now_ns() - begun;
    assert!(lost.reason.contains("has ended") && (450_000_000..800_000_000).contains(&took), "{lost} {took}");
}

#[test]
fn an_unreachable_node_is_waited_for_until_the_grace_is_over() {
    for (back_after, survives) in [(GRACE / 2, true), (GRACE * 3, false)] {
        let network = Network::new(weather(3), SLAB_BYTES);
        let session = session(&network);
        let slab = session.grant().unwrap().id;
        let mut queue = session.queue_pair().unwrap();
        assert!(put(&mut queue, slab, 0, b"kept").is_ok());
        network.cut();
        network.set_connecting(Err(Errno(libc::EHOSTUNREACH)));
        let begun = network.now_ns();
        let outcome = loop {
            let back = network.now_ns() - begun >= back_after.as_nanos() as u64;
            if back {
                network.set_connecting(Ok(()));
            }
            match session.tend() {
                Err(lost) => break Err(lost),
                Ok(()) if back => break Ok(()),
                Ok(()) => network.pass(100_000_000),
            }
        };
        assert_eq!(outcome.is_ok(), survives);
        if survives {
            assert_eq!(get(&mut queue, slab, 0, 4), Ok(b"kept".to_vec()));
        }
    }
}

#[test]
fn a_stopped_node_is_waited_for_up_to_half_a_minute() {
    for (stop, survives) in [(5, true), (25, true), (60, false)] {
        let network = Network::new(weather(5), SLAB_BYTES);
        let session = session(&network);
        let slab = session.grant().unwrap().id;
        let mut queue = session.queue_pair().unwrap();
        network.stop_node(stop * 1_000_000_000);
        queue.faa(9, slab, 0, 1);
        queue.doorbell().unwrap();
        let mut done = Vec::new();
        let outcome = loop {
            match queue.wait(&mut done, Duration::from_secs(1)) {
                Ok(0) => {}
                other => break other,
            }
        };
        assert_eq!(outcome.is_ok(), survives, "stopped for {stop} s");
    }
}

/// Ways in which a member needs its node, or only looks whether it is there: each until it has an
/// outcome.
type Need = fn(&Network, &Session, &mut QueuePair, SlabId) -> Result<(), Lost>;

const NEEDS: [(&str, Need); 3] = [
    ("a word is awaited", |_, _, queue, slab| {
        let mut done = Vec::new();
        queue.faa(9, slab, 4096, 1);
        queue.doorbell()?;
        while queue.wait(&mut done, Duration::from_secs(1))? == 0 {}
        Ok(())
    }),
    ("a request is awaited", |_, session, _, _| session.records().figure(Figure::Windows).map(|_| ())),
    ("nothing is awaited", |network, session, _, _| {
        // As long as any silence here.
        let until = network.now_ns() + 8_000_000_000;
        while network.now_ns() < until {
            session.tend()?;
            network.pass(250_000_000);
        }
        Ok(())
    }),
];

/// Connections that there were come to life again as late after the silence as it was long; the
/// node is reached before.
#[test]
fn a_silence_shorter_than_the_grace_is_over_soon_after_its_end() {
    for (what, need) in NEEDS {
        for ms in [200, 1_000, 1_600, 3_000, 4_900] {
            let (network, session, slab, mut queue, _) = setting(11);
            assert!(put(&mut queue, slab, 0, b"kept").is_ok());
            let begun = network.now_ns();
            network.go_silent(ms * 1_000_000);
            assert_eq!(need(&network, &session, &mut queue, slab), Ok(()), "{what}, {ms} ms");
            let over = (network.now_ns() - begun) / 1_000_000;
            let waits = what != "nothing is awaited";
            assert!(!waits || (ms..=(2 * ms).min(ms + 1_700)).contains(&over), "{what}, {ms} ms: over after {over}");
            assert_eq!(get(&mut queue, slab, 0, 4), Ok(b"kept".to_vec()), "{what}, {ms} ms");
        }
    }
}

#[test]
fn a_silence_that_lasts_ends_the_member_soon_after_the_grace() {
    for (what, need) in NEEDS {
        for stopped in [false, true] {
            let (network, session, slab, mut queue, _) = setting(13);
            assert!(put(&mut queue, slab, 0, b"kept").is_ok());
            if stopped {
                // Its kernel acknowledges, until it is not heard either.
                network.stop_node(60_000_000_000);
                for _ in 0..10 {
                    network.pass(250_000_000);
                    session.tend().unwrap();
                }
            }
            let begun = network.now_ns();
            network.go_silent(60_000_000_000);
            let lost = need(&network, &session, &mut queue, slab).unwrap_err();
            let took = network.now_ns() - begun;
            let grace = GRACE.as_nanos() as u64;
            assert!((grace..grace + BOUND_NS).contains(&took), "{what}: {took}");
            assert!(lost.reason.contains("nothing has come"), "{what}: {lost}");
        }
    }
}

/// One connection is mute, because a middlebox has forgotten it: it is made anew.
#[test]
fn a_connection_that_is_mute_by_itself_is_made_anew() {
    let (network, session, slab, mut queue, _) = setting(17);
    assert!(put(&mut queue, slab, 0, b"kept").is_ok());
    // All but the first, which is the one for control.
    network.forget_connections(1);
    let begun = network.now_ns();
    assert_eq!(get(&mut queue, slab, 0, 4), Ok(b"kept".to_vec()));
    let took = network.now_ns() - begun;
    assert!((1_000_000_000..2_000_000_000).contains(&took), "{took}");
    assert!(!session.standing().is_lost());
}

#[test]
fn a_node_started_anew_is_another_node() {
    let network = Network::new(weather(7), SLAB_BYTES);
    let session = session(&network);
    session.grant().unwrap();
    network.start_node(SLAB_BYTES);
    let lost = session.tend().unwrap_err();
    assert!(lost.reason.contains("started anew"), "{lost}");
}

/// Windows, slabs and ranges come and go while connections are cut, and what was under way on these comes late, beside
/// what comes by newer ones: each request takes effect once, and none takes away what came later.
#[test]
fn what_comes_late_from_a_cut_connection_takes_nothing_away() {
    let mut cut_short = 0;
    for seed in 1..=60u64 {
        let (network, session, slab, mut queue, mut next) = setting(seed);
        let mut windows: Vec<Key> = Vec::new();
        let (mut slabs, mut page) = (vec![slab], [0u8; 4096]);
        for round in 0..40u8 {
            let mut at = 0;
            let cuts = [40_000, 60_000].map(|within| {
                at += next() % within;
                (at, next() % 2_000_000)
            });
            network.plan_late_cuts(cuts.into_iter().filter(|_| next() % 2 == 0));
            let begun = network.now_ns();
            match next() % 6 {
                0 | 1 => windows.push(session.window().unwrap()),
                2 | 3 if !windows.is_empty() => {
                    let at = next() as usize % windows.len();
                    session.drop_window(windows.swap_remove(at)).unwrap();
                }
                4 if slabs.len() < 4 => slabs.push(session.grant().unwrap().id),
                5 if slabs.len() > 1 => session.release(slabs.pop().unwrap()).unwrap(),
                _ => {
                    assert!(session.discard(slab, 0, 4096).unwrap());
                    page = [0; 4096];
                }
            }
            cut_short += (network.now_ns() - begun > 60_000) as usize;
            if next() % 2 == 0 {
                page = [round + 1; 4096];
                assert_eq!(put(&mut queue, slab, 0, &page), Ok(0));
            }
            let made = session.records().figure(Figure::Windows).unwrap();
            assert_eq!(made, windows.len() as u64, "seed {seed}, round {round}");
            assert_eq!(network.lent(), slabs.len() as u64 * SLAB_BYTES, "seed {seed}, round {round}");
            assert!(get(&mut queue, slab, 0, 4096) == Ok(page.to_vec()), "seed {seed}, round {round}");
            network.pass(next() % 3_000_000);
        }
        // Whatever was late has come, and the queue pair is connected again: a BIND that meets a cut is one of which
        // nobody knows.
        network.pass(10_000_000);
        assert!(get(&mut queue, slab, 0, 4096) == Ok(page.to_vec()), "seed {seed}");
        for (n, window) in windows.iter().enumerate() {
            let to = Bind { parent: slab.into(), start: 0, len: 8, rights: Rights::READ, owner: 0, queue: None };
            queue.bind(n as u64, *window, &to);
        }
        let done = finish(&mut queue, windows.len());
        assert!(done.iter().all(|c| c.result.is_ok()), "seed {seed}: {done:?}");
    }
    assert!(cut_short > 200, "{cut_short} of 2400 requests were cut: the test tests little");
}

/// Verbs of every kind, cut at any moment, one cut upon another: each completes once, and in the order in which they were
/// posted, as on a reliable connected queue pair.
#[test]
fn completions_come_in_the_order_posted_whatever_is_cut() {
    let mut unknown = 0;
    for seed in 1..=60u64 {
        let (network, _session, slab, mut queue, mut next) = setting(seed);
        for round in 0..30u8 {
            let mut back = vec![[0u8; 300]; 24];
            let bytes = [round; 300];
            let mut at = 0;
            network.plan_late_cuts((0..next() % 4).map(|_| {
                at += next() % 40_000;
                (at, next() % 200_000)
            }));
            let (mut posted, mut done) = (0, Vec::new());
            while posted < back.len() {
                for _ in 0..=next() % 6 {
                    let Some(into) = back.get_mut(posted) else { break };
                    let tag = posted as u64;
                    match next() % 4 {
                        #[allow(unsafe_code)]
                        // SAFETY: the buffers outlive the verbs, which are awaited below.
                        0 => unsafe { queue.write(tag, slab, 4096, bytes.as_ptr(), 300) },
                        1 => queue.faa(tag, slab, 0, 1),
                        #[allow(unsafe_code)]
                        // SAFETY: as above.
                        _ => unsafe { queue.read(tag, slab, 4096, into.as_mut_ptr(), 300) },
                    }
                    posted += 1;
                }
                queue.doorbell().unwrap();
                network.pass(next() % 20_000);
                queue.poll(&mut done).unwrap();
            }
            while done.len() < posted {
                queue.wait(&mut done, Duration::from_secs(1)).unwrap();
            }
            assert_eq!(queue.in_flight(), 0);
            let tags: Vec<u64> = done.iter().map(|c| c.tag).collect();
            assert_eq!(tags, (0..posted as u64).collect::<Vec<_>>(), "seed {seed}, round {round}");
            assert!(done.iter().all(|c| matches!(c.result, Ok(_) | Err(Refusal::Unknown))), "{done:?}");
            unknown += done.iter().filter(|c| c.result.is_err()).count();
        }
    }
    assert!(unknown > 300, "{unknown} verbs were cut on their way: the test tests little");
}
