//! `farmem agent` on demand, and its view.

#[allow(dead_code)] // Shared by test programs, each of which uses a part.
mod common;

use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{Place, eventually, free, outcome, runs};
use farmem_agent::client::{Client, Options};

#[test]
fn an_agent_is_started_on_demand_seen_and_ends() {
    let place = Place::new();
    let status = || outcome(place.farmem(["agent", "--status"]));
    let (code, _, err) = status();
    assert!(code != Some(0) && err.contains("no agent of this user is running") && err.lines().count() == 1, "{err}");
    // A run asks for it, and the program finds its socket.
    let script = "test -S \"$FARMEM_AGENT\" && echo there";
    let run = ["run", "--agent", "--local", "16M", "--far", "64M", "--stats", "none", "--", "sh", "-c", script];
    assert_eq!(outcome(place.farmem(run)), (Some(0), "there\n".into(), String::new()));
    eventually("it tells who holds what", || status().0 == Some(0));
    let (_, said, _) = status();
    assert!(said.contains(" taken from unix:/") && said.ends_with("\nno programs\n"), "{said}");
    let pid: u32 = said.split(['\u{20}', ':']).nth(1).and_then(|pid| pid.parse().ok()).unwrap();
    // A second is not started.
    assert_eq!(outcome(place.farmem(["agent", "--detach"])), (Some(0), String::new(), String::new()));
    assert_eq!(status().1, said);
    let (code, _, err) = outcome(place.farmem(["agent", "--detach", "--quota", "1G"]));
    assert!(code == Some(0) && err.contains("it stays as it was started") && err.lines().count() == 1, "{err}");
    let second = outcome(place.farmem(["agent"]));
    assert!(second.0 != Some(0) && second.2.contains("an agent is running already"), "{second:?}");
    farmem_sys::process::send(pid, libc::SIGTERM).unwrap();
    eventually("it ends", || !runs(pid));
    assert!(status().0 != Some(0));
}

#[test]
fn one_that_was_detached_can_be_asked_at_once() {
    let place = Place::new();
    assert_eq!(outcome(place.farmem(["agent", "--lend", "64M", "--detach"])), (Some(0), String::new(), String::new()));
    let (code, said, err) = outcome(place.farmem(["agent", "--status"]));
    assert!(code == Some(0) && said.ends_with("\nno programs\n"), "{code:?} {said}{err}");
    let pid: u32 = said.split(['\u{20}', ':']).nth(1).and_then(|pid| pid.parse().ok()).unwrap();
    farmem_sys::process::send(pid, libc::SIGTERM).unwrap();
    eventually("it ends", || !runs(pid));
}

#[test]
fn one_that_cannot_be_detached_has_the_agents_status() {
    let place = Place::new();
    let (code, _, err) = outcome(place.farmem(["agent", "--node", "127.0.0.1:1", "--detach"]));
    assert!(code == Some(72) && err.contains("nobody listens there") && err.lines().count() == 1, "{code:?} {err}");
}

#[test]
fn what_cannot_be_is_one_line() {
    let place = Place::new();
    for (arguments, says) in [
        (&["agent", "--node", "127.0.0.1:1"][..], "nobody listens there: start one with farmem node"),
        (&["agent", "--node", "unix:/nonexistent.sock"], "nobody listens there: start one with farmem node"),
        (&["agent", "--quota", "no-such-user=1G"], "no user 'no-such-user'"),
        (&["agent", "--lend", "1M"], "--lend is below 64 MiB"),
        (&["agent", "--lend", "999T"], "lend less"),
    ] {
        let (code, out, err) = outcome(place.farmem(arguments));
        assert!(code != Some(0) && out.is_empty(), "{arguments:?}: {out}");
        assert!(err.lines().count() == 1 && err.starts_with("farmem: ") && err.contains(says), "{arguments:?}: {err}");
    }
}

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The agent of a rack: its node is drained while a program has pieces there, and the drain comes to its end.
#[test]
fn an_agent_of_a_rack_moves_when_its_node_is_drained() {
    let (place, at) = (Place::new(), free().to_string());
    let begun = |mut command: Command| Ends(command.spawn().unwrap());
    let _controller = begun(place.farmem(["controller", "--listen", &at]));
    let nodes = [("a", free().to_string()), ("b", free().to_string())];
    let _nodes = nodes.clone().map(|(name, listen)| {
        let node = ["node", "--lend", "256M", "--rdma", "off", "--listen", &listen, "--controller", &at];
        begun(place.farmem([&node[..], &["--name", name, "--domain", name]].concat()))
    });
    let rack = || outcome(place.farmem(["status", "--controller", &at])).1;
    eventually("both nodes are up", || rack().matches(" up ").count() == 2);
    let agent = begun(place.farmem(["agent", "--controller", &at, "--idle", "0s"]));
    let socket = place.path().join("farmem/agent.sock");
    common::listens(&socket);
    let status = || outcome(place.farmem(["agent", "--status"])).1;
    let of = |name: &str| nodes.iter().find(|(of, _)| *of == name).unwrap().1.clone();
    eventually("it says which node it uses", || status().contains(" taken from "));
    let (from, to) = if status().contains(&of("a")) { ("a", "b") } else { ("b", "a") };
    let options = Options { socket, job: String::new(), patience: Duration::from_secs(60), start: None };
    let client = Client::connect(options).unwrap();
    let mut reach = client.reach().unwrap();
    let pieces: Vec<_> = (0..20).map(|_| client.alloc(9).unwrap()).collect();
    for (at, piece) in pieces.iter().enumerate() {
        reach.write(piece, 4096, &[at as u8; 64]).unwrap();
    }
    assert!(status().contains(&of(from)), "{}", status());
    let drained = outcome(place.farmem(["drain", from, "--controller", &at]));
    assert!(drained.0 == Some(0) && drained.1.contains("is empty"), "{drained:?}");
    for (at, piece) in pieces.iter().enumerate() {
        let mut found = [0; 64];
        reach.read(piece, 4096, &mut found).unwrap();
        assert_eq!(found, [at as u8; 64]);
    }
    eventually("its report names the other node", || status().contains(&of(to)));
    drop(agent);
}

/// Ends the work of another thread also where a check fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Stops a process as an operator does, and waits for its end.
fn ends(mut process: Ends) {
    farmem_sys::process::send(process.0.id(), libc::SIGTERM).unwrap();
    eventually("it ends", || process.0.try_wait().unwrap().is_some());
}

/// Every process of a rack is started anew in turn, while a program works on an agent's pieces: the controller after a
/// kill, the agent after SIGTERM, each node after it was emptied.
#[test]
fn a_rolling_restart_with_an_agent_loses_nothing() {
    let (place, at) = (Place::new(), free().to_string());
    let store = place.path().join("rack.redb").display().to_string();
    let begun = |mut command: Command| Ends(command.spawn().unwrap());
    let controller = || begun(place.farmem(["controller", "--listen", &at, "--store", &store]));
    let listens = [free().to_string(), free().to_string()];
    let node = |n: usize| {
        let node = ["node", "--lend", "256M", "--rdma", "off", "--listen", &listens[n], "--controller", &at];
        let name = ["a", "b"][n];
        begun(place.farmem([&node[..], &["--name", name, "--domain", name, "--grace", "5s"]].concat()))
    };
    let socket = place.path().join("farmem/agent.sock");
    let agent = || {
        let agent = begun(place.farmem(["agent", "--controller", &at, "--idle", "0s", "--grace", "60s"]));
        common::listens(&socket);
        agent
    };
    let rack = || outcome(place.farmem(["status", "--controller", &at])).1;
    let are_up = || eventually("both nodes are up", || rack().matches(" up ").count() == 2);
    let mut runs_here = (controller(), [node(0), node(1)]);
    are_up();
    let mut serves = agent();
    let options =
        Options { socket: socket.clone(), job: String::new(), patience: Duration::from_secs(60), start: None };
    let client = Client::connect(options).unwrap();
    let (rounds, enough) = (AtomicU64::new(0), AtomicBool::new(false));
    // Every piece counts the rounds, at its own word and in its bytes.
    let works = || {
        let mut reach = client.reach().unwrap();
        let pieces: Vec<_> = (0..20).map(|n| client.alloc(n % 10).unwrap()).collect();
        while !enough.load(Ordering::Relaxed) {
            let round = rounds.load(Ordering::Relaxed);
            for piece in &pieces {
                assert_eq!(reach.faa(piece, 64, 1), Ok(round), "a word was lost, or counted twice");
                let mut found = [0; 8];
                reach.read(piece, 2048, &mut found).unwrap();
                assert_eq!(u64::from_le_bytes(found), round);
                reach.write(piece, 2048, &(round + 1).to_le_bytes()).unwrap();
            }
            let other = client.alloc(0).unwrap();
            reach.write(&other, 8, &round.to_le_bytes()).unwrap();
            let mut found = [0; 8];
            reach.read(&other, 8, &mut found).unwrap();
            assert_eq!(u64::from_le_bytes(found), round);
            client.free(other);
            rounds.store(round + 1, Ordering::Relaxed);
        }
        pieces.into_iter().for_each(|piece| client.free(piece));
    };
    std::thread::scope(|scope| {
        let (works, _stops) = (scope.spawn(works), Stops(&enough));
        let goes_on = || {
            let before = rounds.load(Ordering::Relaxed);
            eventually("the program goes on", || rounds.load(Ordering::Relaxed) > before + 1 || works.is_finished());
            assert!(!works.is_finished(), "the program has failed");
        };
        goes_on();
        for n in [0, 1] {
            drop(std::mem::replace(&mut runs_here.0, Ends(Command::new("true").spawn().unwrap())));
            goes_on();
            runs_here.0 = controller();
            are_up();
            ends(serves);
            serves = agent();
            goes_on();
            let name = ["a", "b"][n];
            let drained = outcome(place.farmem(["drain", name, "--controller", &at]));
            assert!(drained.0 == Some(0) && drained.1.contains("is empty"), "{drained:?}");
            ends(std::mem::replace(&mut runs_here.1[n], Ends(Command::new("true").spawn().unwrap())));
            goes_on();
            eventually("the rack misses it", || rack().contains(" down "));
            runs_here.1[n] = node(n);
            eventually("it is known again", || !rack().contains(" down "));
            assert_eq!(outcome(place.farmem(["undrain", name, "--controller", &at])).0, Some(0));
            are_up();
            goes_on();
        }
        enough.store(true, Ordering::Relaxed);
        works.join().unwrap();
        drop(serves);
    });
}
