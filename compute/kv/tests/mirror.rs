//! Two nodes as processes that keep the same keys, one of which is killed under load: nothing is
//! lost, histories stay linearizable, the store goes on with one copy, and front ends can still
//! come.

mod world;

use farmem::Transport;
use farmem_kv::Config;
use farmem_kv::serve::check;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use world::linear::{Call, Register, Step, check as linearizable};
use world::load::{KEYS, clients};
use world::process::{Client, Process, config, signal};
use world::wire::Wire;

#[test]
fn another_process() {
    world::process::another_process();
}

fn mirrored(name: &str, nodes: &str) -> Config {
    Config { mirror: true, ..config(name, nodes) }
}

fn front(name: &str, nodes: &str) -> Process {
    Process::start(&format!("front {name} {nodes} mirror=yes"))
}

/// Waits until nothing is wrong with a store.
fn is_sound(name: &str, nodes: &str) {
    let begun = Instant::now();
    loop {
        let counts = check(&mirrored(name, nodes)).unwrap();
        if counts.iter().all(|(_, count)| count.problems.is_empty() && count.pending == 0) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "after 60 s: {counts:?}");
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// Runs clients at two front ends while `act` goes on, and judges the history of what they saw.
/// Returns the number of their calls.
fn under_load(fronts: &[Process; 2], seed: u64, act: impl FnOnce()) -> usize {
    let (moment, stop) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicBool::new(false)));
    let calls: Vec<(usize, Call<Step>)> = std::thread::scope(|scope| {
        let (moment, stop) = (&moment, &stop);
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let front = &fronts[n % 2];
                scope.spawn(move || clients(front, seed + n as u64, moment, stop))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        act();
        // Each call that is answered takes three moments.
        let until = Instant::now() + Duration::from_secs(60);
        while moment.load(Ordering::Relaxed) < 3 * 400 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    for key in 0..KEYS {
        let of_key: Vec<Call<Step>> =
            calls.iter().filter(|(which, _)| *which == key).map(|(_, call)| call.clone()).collect();
        assert!(linearizable::<Register>(None, &of_key), "seed {seed}, key {key}: {of_key:?}");
    }
    calls.len()
}

/// Waits until a third node has taken the place of one that ended.
fn has_two_copies_again(front: &Process) {
    let (begun, mut client) = (Instant::now(), front.client());
    while !client.ask("INFO farmem").contains("nodes_filled:1") {
        assert!(begun.elapsed() < Duration::from_secs(60), "there are no two copies");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Two front ends under load, and one of the two nodes is killed: `killed` says which.
fn a_node_is_killed(way: Transport, killed: usize, seed: u64) {
    let mut pair = [Process::node(way), Process::node(way)];
    let nodes = format!("{},{}", pair[0].at, pair[1].at);
    let fronts = [front("pair", &nodes), front("pair", &nodes)];
    let mut client = fronts[0].client();
    for n in 0..500 {
        assert_eq!(client.ask(&format!("SET before{n} {n}")), "+OK");
    }
    let calls = under_load(&fronts, seed, || {
        std::thread::sleep(Duration::from_millis(400));
        pair[killed].kill();
        let begun = Instant::now();
        assert_eq!(client.ask("SET after 1"), "+OK");
        eprintln!("{way:?}, node {killed}: a SET behind the end took {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(4));
        std::thread::sleep(Duration::from_millis(700));
    });
    assert!(calls > 300, "{calls} calls");
    for n in 0..500 {
        assert_eq!(client.ask(&format!("GET before{n}")), n.to_string());
    }
    // One that comes now finds the store with its only copy, whether it is told of the other node
    // or not.
    let late = [front("pair", &nodes), front("pair", &pair[1 - killed].at)];
    for front in &late {
        assert_eq!(front.client().ask("GET after"), "1");
    }
    assert_eq!(late[0].client().ask("INCRBY after 4"), ":5");
    assert_eq!(client.ask("GET after"), "5");
    is_sound("pair", &nodes);
}

/// One of two nodes is killed under load, and a third takes its place. Then the other is killed.
fn a_third_node_comes(way: Transport, killed: usize, seed: u64) {
    let mut pair = [Process::node(way), Process::node(way)];
    let mut third = Process::node(way);
    let nodes = format!("{},{}", pair[0].at, pair[1].at);
    let start = |spare: &str| Process::start(&format!("front third {nodes} mirror=yes{spare}"));
    let fronts = [start(&format!(" spare={}", third.at)), start("")];
    let mut client = fronts[0].client();
    for n in 0..2000 {
        assert_eq!(client.ask(&format!("SET before{n} {n}")), "+OK");
    }
    let large = "x".repeat(300 << 10);
    assert_eq!(client.ask(&format!("SET large {large}")), "+OK");
    let calls = under_load(&fronts, seed, || {
        pair[killed].kill();
        fronts.iter().for_each(has_two_copies_again);
        std::thread::sleep(Duration::from_millis(300));
        pair[1 - killed].kill();
        assert_eq!(client.ask("SET after 1"), "+OK");
        std::thread::sleep(Duration::from_millis(300));
    });
    assert!(calls > 200, "{calls} calls");
    for n in 0..2000 {
        assert_eq!(client.ask(&format!("GET before{n}")), n.to_string());
    }
    assert_eq!(client.ask("GET large"), large);
    let late = front("third", &third.at);
    assert_eq!(late.client().ask("GET after"), "1");
    is_sound("third", &third.at);
    third.kill();
}

#[test]
fn a_third_node_comes_for_the_first_over_tcp() {
    a_third_node_comes(Transport::Tcp, 0, 700);
}

#[test]
fn a_third_node_comes_for_the_second_over_shm() {
    a_third_node_comes(Transport::Shm, 1, 800);
}

/// Front ends find the third node although they are told of the first two only.
#[test]
fn a_third_node_is_found() {
    let mut pair = [Process::node(Transport::Tcp), Process::node(Transport::Tcp)];
    let third = Process::node(Transport::Tcp);
    let nodes = format!("{},{}", pair[0].at, pair[1].at);
    let first = Process::start(&format!("front found {nodes} mirror=yes spare={}", third.at));
    let mut client = first.client();
    assert_eq!(client.ask("SET key value"), "+OK");
    pair[1].kill();
    assert_eq!(client.ask("SET key other"), "+OK");
    has_two_copies_again(&first);
    let late = front("found", &nodes);
    assert!(late.client().ask("INFO farmem").contains("mirrored:1"));
    assert_eq!(late.client().ask("GET key"), "other");
    is_sound("found", &nodes);
}

#[test]
fn the_first_node_is_killed_over_tcp() {
    a_node_is_killed(Transport::Tcp, 0, 300);
}

#[test]
fn the_second_node_is_killed_over_tcp() {
    a_node_is_killed(Transport::Tcp, 1, 400);
}

#[test]
fn the_first_node_is_killed_over_shm() {
    a_node_is_killed(Transport::Shm, 0, 500);
}

#[test]
fn the_second_node_is_killed_over_shm() {
    a_node_is_killed(Transport::Shm, 1, 600);
}

#[test]
fn a_node_that_was_started_anew_is_no_copy() {
    let mut pair = [Process::node(Transport::Tcp), Process::node(Transport::Tcp)];
    let nodes = format!("{},{}", pair[0].at, pair[1].at);
    {
        let front = front("anew", &nodes);
        assert_eq!(front.client().ask("SET key value"), "+OK");
    }
    // Nobody serves the store when the node ends, so the other does not know of its end.
    let at = pair[1].at.clone();
    pair[1].kill();
    pair[1] = Process::start(&format!("node {at}"));
    let refused = farmem_kv::Store::open_as(&mirrored("anew", &nodes)).map(drop).expect_err("half a store").to_string();
    assert!(refused.contains("one of the two nodes"), "{refused}");
    pair[1].kill();
    assert_eq!(farmem_kv::serve::go_alone(&config("anew", &nodes)).unwrap(), [pair[0].at.clone()]);
    let mut store = farmem_kv::Store::open_as(&mirrored("anew", &nodes)).unwrap();
    assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    let other =
        farmem_kv::Store::open_as(&config("anew", &pair[0].at)).map(drop).expect_err("half a store").to_string();
    assert!(other.contains("lies on 2 nodes"), "{other}");
    let odd = farmem_kv::Store::open_as(&mirrored("odd", &pair[0].at)).map(drop).expect_err("one node").to_string();
    assert!(odd.contains("even number"), "{odd}");
}

/// What a client saw of its increments: the sums that were answered, and how many are uncertain.
#[derive(Default, Debug)]
struct Increments {
    answered: Vec<u64>,
    uncertain: u64,
    ended: bool,
}

/// A client of a front end on another machine.
fn known(front: &Process) -> Client {
    let mut client = front.client();
    assert_eq!(client.ask("AUTH secret"), "+OK");
    client
}

/// Increments until the front end ends, or so many are answered after `acted` became true.
fn increments(front: &Process, many: usize, acted: &AtomicBool) -> Increments {
    let (mut client, mut seen, mut after) = (known(front), Increments::default(), 0);
    while after < many {
        let has_acted = acted.load(Ordering::Acquire);
        let reply = client.send(&["INCR", "sum"]).ok().and_then(|()| client.reply());
        match reply.as_deref() {
            None => {
                (seen.uncertain, seen.ended) = (seen.uncertain + 1, true);
                break;
            }
            Some(sum) if sum.starts_with(':') => seen.answered.push(sum[1..].parse().unwrap()),
            Some(other) => {
                assert!(other.starts_with("-IOERR"), "{other}");
                seen.uncertain += 1;
            }
        }
        after += usize::from(has_acted);
    }
    seen
}

/// A filter on the way of one front end to one node rejects what it sends there. The other front end
/// still reaches both. No increment that was answered is undone. `stopped`: the other front end stands
/// still until the first goes on without it, or ends.
fn one_way_rejects(refused: usize, stopped: bool) {
    let wire = match Wire::new() {
        Ok(wire) => wire,
        Err(missing) => return eprintln!("skipped: {missing}"),
    };
    let pair = [(); 2].map(|()| Process::start(&format!("node {}:0", wire.here)));
    let nodes = format!("{},{}", pair[0].at, pair[1].at);
    let role = format!("front rejected {nodes} mirror=yes way=tcp password=secret");
    let fronts = [Process::start_in(&wire.namespace, &format!("{role} {}:0", wire.there)), Process::start(&role)];
    let acted = AtomicBool::new(false);
    let seen: Vec<Increments> = std::thread::scope(|scope| {
        let threads: Vec<_> = fronts.iter().map(|front| scope.spawn(|| increments(front, 500, &acted))).collect();
        let mut client = known(&fronts[1]);
        let begun = Instant::now();
        while client.ask("GET sum").parse().unwrap_or(0) < 200 {
            assert!(begun.elapsed() < Duration::from_secs(60), "no increments");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut first = known(&fronts[0]);
        if stopped {
            signal(&fronts[1], "-STOP");
        }
        wire.reject(&pair[refused].at);
        if stopped {
            let _ = first.send(&["INCR", "other"]).ok().and_then(|()| first.reply());
            signal(&fronts[1], "-CONT");
        }
        acted.store(true, Ordering::Release);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut answered: Vec<u64> = seen.iter().flat_map(|one| one.answered.iter().copied()).collect();
    let uncertain: u64 = seen.iter().map(|one| one.uncertain).sum();
    let ended: Vec<bool> = seen.iter().map(|one| one.ended).collect();
    eprintln!("node {refused}: {} answered, {uncertain} uncertain, ended {ended:?}", answered.len());
    assert!(ended.contains(&false), "both front ends have ended");
    answered.sort_unstable();
    assert!(answered.windows(2).all(|sums| sums[0] < sums[1]), "a sum was answered twice");
    let least = answered.len() as u64;
    for (front, _) in fronts.iter().zip(&ended).filter(|(_, ended)| !**ended) {
        let sum: u64 = known(front).ask("GET sum").parse().unwrap();
        assert!((least..=least + uncertain).contains(&sum), "{sum} of {least} and perhaps {uncertain}");
    }
    // The node that was left is no copy any more.
    let late = farmem_kv::Store::open_as(&mirrored("rejected", &nodes)).map(drop).expect_err("one is old").to_string();
    assert!(late.contains("have left one of its two nodes"), "{late}");
}

#[test]
fn a_filter_rejects_one_front_end_at_the_first_node() {
    one_way_rejects(0, false);
}

#[test]
fn a_filter_rejects_one_front_end_at_the_second_node() {
    one_way_rejects(1, false);
}

#[test]
fn a_filter_rejects_at_the_first_node_while_the_other_front_end_is_stopped() {
    one_way_rejects(0, true);
}

#[test]
fn a_filter_rejects_at_the_second_node_while_the_other_front_end_is_stopped() {
    one_way_rejects(1, true);
}

/// The second pair refuses a front end that the first has let in. It is no member there any more:
/// however often one begins, there is room for the next.
#[test]
fn a_front_end_that_is_refused_at_a_later_pair_leaves_the_others() {
    let mut nodes = [(); 4].map(|()| Process::node(Transport::Tcp));
    let named = nodes.each_ref().map(|node| node.at.clone()).join(",");
    {
        let front = front("later", &named);
        assert_eq!(front.client().ask("SET key value"), "+OK");
    }
    let at = nodes[3].at.clone();
    nodes[3].kill();
    nodes[3] = Process::start(&format!("node {at}"));
    for n in 0..farmem_kv::layout::MEMBERS + 2 {
        let refused = farmem_kv::Store::open_as(&mirrored("later", &named)).map(drop).expect_err("half a pair");
        assert!(refused.to_string().contains("one of the two nodes"), "try {n}: {refused}");
    }
}
