//! The example, as a program, on a node in this process. Under `farmem run` it is run by `tests/`.

mod common;

use farmem::Transport;
use std::path::PathBuf;
use std::process::{Command, Output};

fn orders(args: &[&str]) -> Output {
    // Cargo builds examples beside tests: target/PROFILE/{deps/this-test, examples/NAME}.
    let here = std::env::current_exe().unwrap();
    let program: PathBuf = here.parent().unwrap().parent().unwrap().join("examples/orders");
    let out = Command::new(&program).args(args).env_remove("FARMEM_RUN").output();
    out.unwrap_or_else(|e| panic!("{}: {e}: cargo build -p farmem-objects --examples", program.display()))
}

#[test]
fn orders_without_a_run() {
    let node = common::node();
    let [by_shm, by_tcp] = [Transport::Shm, Transport::Tcp].map(|way| orders(&[&common::address(&node, way)]));
    assert!(by_shm.status.success() && by_shm == by_tcp, "{by_shm:?} {by_tcp:?}");
    assert!(by_shm.stdout.starts_with(b"1000000 orders, 125000 by number, "), "{by_shm:?}");
    let none = orders(&[]);
    let said = String::from_utf8(none.stderr).unwrap();
    assert!(!none.status.success() && said.contains("farmem run") && said.lines().count() == 1, "{said}");
}
