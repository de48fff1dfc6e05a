//! The examples, as programs, on nodes that are processes of their own.

mod common;

use common::Process;
use std::path::PathBuf;
use std::process::Command;

#[test]
fn node_process() {
    common::be_a_node();
}

/// Its output. Cargo builds examples beside tests: target/PROFILE/{deps/this-test, examples/NAME}.
fn example(name: &str, args: &[&str]) -> String {
    let here = std::env::current_exe().unwrap();
    let program: PathBuf = here.parent().unwrap().parent().unwrap().join("examples").join(name);
    let out = Command::new(&program).args(args).output();
    let out = out.unwrap_or_else(|e| panic!("{}: {e}: cargo build -p farmem --examples", program.display()));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{name}: {said} (if it is old: cargo build -p farmem --examples)");
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn hello() {
    let node = Process::start(1);
    assert_eq!(example("hello", &[&node.tcp]), format!("hello from {}\n", node.tcp));
}

#[test]
fn counter() {
    let (a, b) = (Process::start(1), Process::start(1));
    for n in 0..3 {
        // In whichever order the nodes are named.
        let nodes = if n == 1 { [&*b.tcp, &a.tcp] } else { [&*a.tcp, &b.tcp] };
        let said = example("counter", &["list", nodes[0], nodes[1]]);
        assert_eq!(said, format!("process {n} finds {} records\n", n + 1));
    }
}

#[test]
fn pipeline() {
    let (a, b) = (Process::start(1), Process::start(1));
    let said = example("pipeline", &[&a.tcp, &b.tcp]);
    assert!(said.starts_with("256 reads from 2 nodes in "), "{said}");
}
