//! `farmem agent` on demand, and its view.

#[allow(dead_code)] // Shared by test programs, each of which uses a part.
mod common;

use std::process::{Child, Command};
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
