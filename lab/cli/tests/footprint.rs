//! The runtime's own memory: what it says of itself against what `smaps` says of it.

#[allow(dead_code)] // The other tests use the rest of it.
#[path = "../../../cli/tests/common/mod.rs"]
mod common;

use common::{Place, outcome};
use serde_json::Value;

const PAGES: u64 = 65_536;
const MIB: u64 = 1 << 20;

/// Arguments of a program that fills an array, reads and writes it at random, and then reads its own `smaps`.
fn program() -> Vec<String> {
    let arguments = "--fresh=1000 --accesses=20000 --warm-up=8000 --threads=solo --seed=1";
    let mut all = vec!["bench-child".to_owned(), "paging".into(), format!("--pages={PAGES}")];
    all.extend(arguments.split(' ').map(str::to_owned));
    all
}

/// Resident bytes that are neither the program's own nor a node's, and how many of them are of mapped files: code, and
/// static data.
fn rest(said: &str) -> (u64, u64) {
    let said: Value = serde_json::from_str(said.trim()).unwrap();
    let rest = said["footprint"]["rest"].as_object().unwrap();
    let sum = |of: &dyn Fn(&str) -> bool| {
        rest.iter().filter(|(name, _)| of(name)).map(|(_, bytes)| bytes.as_u64().unwrap()).sum()
    };
    (sum(&|_| true), sum(&|name| name.starts_with('/')))
}

fn check(transport: &str, local: u64) {
    let place = Place::new();
    let (status, native, complaint) = outcome(place.farmem(program()));
    assert_eq!(status, Some(0), "{complaint}");
    let stats = place.path().join("stats.json");
    let mut arguments = vec!["run".to_owned(), "--local".into(), format!("{local}M"), "--far".into(), "1G".into()];
    arguments.extend(["--transport".into(), transport.into(), "--stats".into(), format!("json:{}", stats.display())]);
    arguments.extend(["--".into(), env!("CARGO_BIN_EXE_farmem-lab").into()]);
    arguments.extend(program());
    let (status, far, complaint) = outcome(place.farmem(arguments));
    assert_eq!(status, Some(0), "{complaint}");

    let stats: Value = serde_json::from_slice(&std::fs::read(stats).unwrap()).unwrap();
    let own = stats["runtime_bytes"].as_u64().unwrap();
    let ((far, far_files), (native, native_files)) = (rest(&far), rest(&native));
    let outside = far.saturating_sub(native);
    // The library's code and static data, what is patched of libc, and the counters' file are pages of files, which
    // the runtime does not count. Its threads' stacks it does not count either.
    let kept = (far - far_files).saturating_sub(native - native_files);
    assert!(own <= kept + MIB / 2 && kept <= own + MIB, "{transport}: own {own}, smaps {kept}, {outside} with files");
    // The staging ring of nodes whose memory is not mapped is part of local memory, and of nothing else.
    let ring = if transport == "tcp" { local * MIB / 16 } else { 0 };
    let mapped = PAGES * 4096;
    assert!(outside <= mapped / 100 + 8 * MIB + ring, "{transport}: {outside} bytes for {mapped} mapped");
}

#[test]
fn the_runtime_knows_what_it_takes_over_shm() {
    check("shm", 64);
}

#[test]
fn the_runtime_knows_what_it_takes_over_tcp() {
    check("tcp", 64);
}

#[test]
fn the_runtime_knows_what_it_takes_of_a_program_that_fits() {
    check("shm", 400);
}
