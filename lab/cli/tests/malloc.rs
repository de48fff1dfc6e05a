//! `farmem-lab malloc-bench`: what it finds, what it refuses, what it leaves behind.

#[allow(dead_code)] // Shared by test programs, each of which uses a part.
#[path = "../../../cli/tests/common/mod.rs"]
mod common;

use common::{Place, eventually, outcome};
use farmem_fabric::NodeAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

#[test]
fn what_cannot_be_is_one_line() {
    let place = Place::new();
    for (arguments, says) in [
        (&["malloc-bench", "--trace", "/nonexistent"][..], "/nonexistent"),
        (&["malloc-bench", "--pattern", "trace"], "name the file: --trace FILE"),
    ] {
        let (code, out, err) = outcome(place.farmem(arguments));
        assert!(code != Some(0) && out.is_empty(), "{arguments:?}: {out}");
        assert!(err.lines().count() == 1 && err.starts_with("farmem: ") && err.contains(says), "{arguments:?}: {err}");
    }
}

/// Of benchmarks, a machine runs one at a time.
static BENCH: Mutex<()> = Mutex::new(());

#[test]
fn the_benchmark_compares_allocators() {
    let _one = BENCH.lock();
    let place = Place::new();
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../malloc/traces/trace.tcg.mstress.16.gz");
    let common = ["malloc-bench", "--ops", "20000", "--rounds", "1", "--pattern", "threadtest", "--pattern", "shbench"];
    let bench = common.into_iter().chain(["--pattern", "larson", "--trace", trace, "--json", "-"]);
    let (code, out, err) = outcome(place.farmem(bench));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["threadtest", "shbench", "larson", "trace.tcg.mstress.16"]);
    for row in rows {
        for found in [&row["system"][0], &row["farmem"][0]] {
            // (Memory is sampled every 2 ms: of so little work there may be no sample.)
            assert!(found["calls"].as_u64() > Some(200) && found["calls_per_s"].as_f64() > Some(0.0), "{row}");
        }
        // Every allocation has its free, on both.
        assert_eq!(row["system"][0]["calls"], row["farmem"][0]["calls"]);
    }
    assert!(report["chunk_words_per_1000"].as_f64() < Some(100.0), "{report}");
    assert!(report["chunk_asked_ns"][0].as_u64() > report["chunk_ahead_ns"][0].as_u64(), "{report}");
}

#[test]
fn the_benchmark_works_by_verbs_and_without_an_agent() {
    let _one = BENCH.lock();
    let place = Place::new();
    let listens = vec![NodeAddr::Tcp("127.0.0.1:0".into())];
    let node = farmem_memory::Node::start(&farmem_memory::Config::new(1 << 30, listens)).unwrap();
    let at = node.addresses()[0].to_string();
    let common = ["malloc-bench", "--ops", "20000", "--rounds", "1", "--threads", "1", "--pattern", "larson"];
    for more in [&["--node", at.as_str()][..], &["--alone"], &["--alone", "--node", at.as_str()]] {
        let bench = common.iter().chain(more).chain(&["--json", "-"]);
        let (code, out, err) = outcome(place.farmem(bench));
        assert_eq!((code, err.as_str()), (Some(0), ""), "{more:?}");
        let report: serde_json::Value = serde_json::from_str(&out).unwrap();
        // An object on tcp is written, so that a chunk had and written takes much longer than one had.
        let [had, written] = ["chunk_ahead_ns", "chunk_written_ns"].map(|name| report[name][0].as_u64().unwrap());
        let far = more.contains(&at.as_str());
        assert!(had < written && (!far || written > 1000), "{more:?}: {out}");
        assert_eq!(report["node"].as_str().is_some(), far, "{out}");
    }
    eventually("nothing is left at the node", || node.nic().lent() == 0);
}

/// Processes whose command line names a directory.
fn at_work_in(dir: &Path) -> Vec<u32> {
    let dir = dir.to_str().unwrap();
    let numbers =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let named =
        |pid: &u32| common::text(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).contains(dir);
    numbers.filter(|pid| named(pid) && common::runs(*pid)).collect()
}

/// What the benchmark has in its temporary directory.
fn files_in(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("farmem-malloc")).collect()
}

#[test]
fn a_benchmark_that_is_ended_leaves_nothing() {
    let _one = BENCH.lock();
    for signal in ["-INT", "-TERM", "-HUP", "-KILL"] {
        let place = Place::new();
        let mut bench = place.farmem(["malloc-bench", "--ops", "2000000000", "--pattern", "threadtest"]);
        let mut child = bench.env("TMPDIR", place.path()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // Node, agent, and a part at work.
        eventually("it is under way", || at_work_in(place.path()).len() >= 3 || child.try_wait().unwrap().is_some());
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let ended = child.wait_with_output().unwrap();
        assert!(!ended.status.success(), "{signal}");
        eventually("its processes end", || at_work_in(place.path()).is_empty());
        if signal != "-KILL" {
            let complaint = common::text(&ended.stderr);
            assert!(complaint.starts_with("farmem: interrupted") && complaint.lines().count() == 1, "{complaint}");
            assert_eq!(files_in(place.path()), [""; 0], "{signal}");
        }
    }
}

#[test]
fn a_benchmark_whose_figures_nobody_takes_leaves_nothing() {
    let _one = BENCH.lock();
    let place = Place::new();
    let mut bench = place.farmem(["malloc-bench", "--ops", "20000", "--rounds", "1", "--pattern", "threadtest"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    bench.env("TMPDIR", place.path()).stdout(writer).stderr(Stdio::piped());
    let ended = bench.spawn().unwrap().wait_with_output().unwrap();
    assert_eq!((ended.status.code(), common::text(&ended.stderr).as_str()), (Some(141), ""));
    eventually("its processes end", || at_work_in(place.path()).is_empty());
    assert_eq!(files_in(place.path()), [""; 0]);
}
