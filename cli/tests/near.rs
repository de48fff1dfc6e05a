//! A node on this machine that is named by HOST:PORT: its memory is mapped all the same, by a
//! socket of its own.

#[allow(dead_code)] // Each test file uses a part.
mod common;

use std::path::PathBuf;
use std::process::{Child, Stdio};

use common::{Place, eventually, outcome};
use serde_json::Value;

/// A node that listens on TCP alone.
struct Node {
    child: Child,
    status: PathBuf,
    address: String,
}

impl Node {
    fn start(place: &Place) -> Node {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let listen = format!("127.7.{high}.{low}:0");
        let mut node = place.farmem(["node", "--lend", "256M", "--rdma", "off", "--listen", &listen]);
        let child = node.stderr(Stdio::null()).spawn().unwrap();
        let status = place.path().join(format!("farmem/node-{}.json", child.id()));
        eventually("the node says where it listens", || status.exists());
        let mut node = Node { child, status, address: String::new() };
        node.address = node.says("listen")[0].as_str().unwrap().to_owned();
        node
    }

    fn says(&self, what: &str) -> Value {
        let text = std::fs::read(&self.status).unwrap();
        serde_json::from_slice::<Value>(&text).unwrap()[what].clone()
    }

    fn socket(&self) -> PathBuf {
        self.status.with_extension("sock")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// 32 MiB written by a program with 4 MiB local: most of it goes to the node.
fn run(place: &Place, node: &Node, transport: &str) -> (Option<i32>, String) {
    let options = ["run", "--local", "4M", "--stats", "none", "--transport", transport, "--node", &node.address];
    let program = ["--", "dd", "if=/dev/urandom", "of=/dev/null", "bs=32M", "count=1", "status=none"];
    let (status, _, said) = outcome(place.farmem(options.into_iter().chain(program)));
    (status, said)
}

#[test]
fn its_memory_is_mapped_unless_told_otherwise() {
    let place = Place::new();
    let node = Node::start(&place);
    assert_eq!(node.says("listen").as_array().map(Vec::len), Some(1));
    for transport in ["auto", "shm"] {
        assert_eq!(run(&place, &node, transport), (Some(0), String::new()), "{transport}");
    }
    assert_eq!(run(&place, &node, "tcp"), (Some(0), String::new()));
    eventually("what goes over tcp is counted", || node.says("bytes_written").as_u64() > Some(20 << 20));
    // The same again went past the node, twice.
    assert!(node.says("bytes_written").as_u64() < Some(40 << 20), "{}", node.says("bytes_written"));
}

#[test]
fn another_users_directory_keeps_it_to_tcp() {
    let place = Place::new();
    let node = Node::start(&place);
    // As one that may not be searched, or is none of this machine's.
    std::fs::rename(node.socket(), place.path().join("elsewhere")).unwrap();
    assert_eq!(run(&place, &node, "auto"), (Some(0), String::new()));
    let (status, said) = run(&place, &node, "shm");
    assert!(status == Some(72) && said.contains(&node.address) && said.lines().count() == 1, "{status:?}: {said}");
    let socket = node.socket();
    assert!(said.contains(socket.to_str().unwrap()) && said.contains("--transport tcp"), "{said}");
}

#[test]
fn how_it_is_reached_is_said() {
    let place = Place::new();
    let node = Node::start(&place);
    for (transport, way) in [("auto", "mapped"), ("tcp", "tcp")] {
        let options = ["-v", "--local", "4M", "--stats", "none", "--transport", transport, "--node", &node.address];
        let (_, _, said) = outcome(place.farmem(["run"].into_iter().chain(options).chain(["--", "true"])));
        assert!(said.ends_with(&format!("{} ({way}), 4.00 MiB local (--local)\n", node.address)), "{said}");
    }
}

#[test]
fn one_that_is_stopped_does_not_hide_the_others() {
    let place = Place::new();
    let (stopped, other) = (Node::start(&place), Node::start(&place));
    farmem_tests::process::send(stopped.child.id() as i32, libc::SIGSTOP);
    let (status, out, said) = outcome(place.farmem(["status"]));
    assert!(out.contains(&other.address) && !out.contains(&stopped.address), "{out}");
    assert!(status == Some(72) && said.contains(&stopped.address) && said.lines().count() == 1, "{status:?}: {said}");
}

#[test]
fn a_socket_is_named_for_wherever_one_asks_from() {
    let place = Place::new();
    let mut node = place.farmem(["node", "--lend", "64M", "--rdma", "off", "--listen", "unix:n.sock"]);
    let child = node.current_dir(place.path()).stderr(Stdio::null()).spawn().unwrap();
    let node =
        Node { status: place.path().join(format!("farmem/node-{}.json", child.id())), child, address: String::new() };
    eventually("the node says where it listens", || node.status.exists());
    let (status, out, said) = outcome(place.farmem(["status"]));
    assert!(status == Some(0) && out.starts_with(&format!("unix:{}/n.sock\n", place.path().display())), "{out}{said}");
    let options = ["run", "--local", "4M", "--stats", "none", "--transport", "tcp", "--node"];
    let at = format!("unix:{}/n.sock", place.path().display());
    let (status, _, said) = outcome(place.farmem(options.into_iter().chain([at.as_str(), "--", "true"])));
    assert!(status == Some(72) && said.contains("does not go by a Unix socket"), "{status:?}: {said}");
}

#[test]
fn one_whose_number_means_nothing_here_keeps_its_socket() {
    let place = Place::new();
    let node = Node::start(&place);
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    // As a container sees it that shares the directory and not the processes.
    let said = std::fs::read_to_string(&node.status).unwrap();
    let (own, other) = (format!("\"pid\":{},", node.child.id()), format!("\"pid\":{},", gone.id()));
    assert!(said.contains(&own));
    std::fs::write(&node.status, said.replace(&own, &other)).unwrap();
    outcome(place.farmem(["top", "--json", "--interval", "10ms"]));
    assert!(node.socket().exists() && node.status.exists());
    assert_eq!(run(&place, &node, "shm"), (Some(0), String::new()));
}

#[test]
fn its_socket_goes_with_it() {
    let place = Place::new();
    let mut node = Node::start(&place);
    assert!(node.socket().exists());
    node.child.kill().unwrap();
    node.child.wait().unwrap();
    assert!(node.socket().exists(), "nobody has looked yet");
    outcome(place.farmem(["top", "--json", "--interval", "10ms"]));
    assert_eq!(place.left(), Vec::<String>::new());

    let node = Node::start(&place);
    farmem_sys::process::send(node.child.id(), libc::SIGTERM).unwrap();
    eventually("the node ends", || !common::runs(node.child.id()));
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn where_it_can_have_none_it_says_so() {
    let place = Place::new();
    // A socket's path has 107 bytes at most.
    let deep = place.path().join("d".repeat(100));
    std::fs::DirBuilder::new().create(&deep).unwrap();
    let listen = ["node", "--lend", "256M", "--rdma", "off", "--listen", "127.0.0.1:0"];
    let node = place.farmem(listen).env("XDG_RUNTIME_DIR", &deep).stderr(Stdio::piped()).spawn().unwrap();
    let status = deep.join(format!("farmem/node-{}.json", node.id()));
    eventually("the node serves", || status.exists());
    farmem_sys::process::send(node.id(), libc::SIGTERM).unwrap();
    let said = common::text(&node.wait_with_output().unwrap().stderr);
    assert!(said.contains("over tcp") && said.contains("cannot listen on unix:"), "{said}");
}
