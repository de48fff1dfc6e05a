//! `farmem-lab bench kv`: its figures and its refusals.

#[allow(dead_code)] // Shared by test programs, each of which uses a part.
#[path = "../../../cli/tests/common/mod.rs"]
mod common;

use common::{Place, outcome};
use std::sync::Mutex;

/// Of benchmarks, a machine runs one at a time.
static BENCH: Mutex<()> = Mutex::new(());

/// The report that a benchmark wrote for machines.
fn reported<'a>(place: &Place, arguments: impl Iterator<Item = &'a str>) -> serde_json::Value {
    let file = place.path().join("report.json");
    let shown = file.display().to_string();
    let (code, out, err) = outcome(place.farmem(arguments.map(str::to_owned).chain(["--json".into(), shown])));
    assert_eq!(code, Some(0), "{out}{err}");
    serde_json::from_slice(&std::fs::read(file).expect("a report")).expect("JSON")
}

#[test]
fn every_system_answers_every_mix_with_what_was_written() {
    let _one = BENCH.lock();
    let place = Place::new();
    let arguments = ["bench", "kv", "--quick", "--records", "2000", "--values", "1500", "--time", "30"];
    let more = ["--keys", "zipfian", "--clients", "2", "--processes", "2"];
    let report = reported(&place, arguments.into_iter().chain(more));
    assert_eq!(report["raw"]["cases"].as_array().map(Vec::len), Some(6));
    let skipped = report["skipped"].as_array().expect("skipped");
    println!("skipped: {skipped:?}");
    let found = report["raw"]["found"].as_array().expect("systems");
    assert_eq!(found.len() + skipped.len(), 7, "{report}");
    for system in found {
        let cells = system[1][0].as_array().expect("a round");
        assert_eq!(cells.len(), 6, "{system}");
        assert!(
            cells.iter().all(|cell| cell["rate"].as_f64() > Some(100.0) && cell["cpu"].as_f64() >= Some(0.0)),
            "{system}"
        );
    }
}

#[test]
fn a_trace_of_an_inference_service_is_replayed() {
    let _one = BENCH.lock();
    let place = Place::new();
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../kv/traces/mooncake.jsonl");
    let arguments =
        ["bench", "kv", "--trace", trace, "--values", "4096", "--systems", "embedded,front", "--rounds", "1"];
    let report = reported(&place, arguments.into_iter().chain(["--memory", "64"]));
    // With room for all, blocks of use are those of a prefix that an earlier request had.
    for system in report["raw"].as_array().expect("systems") {
        assert_eq!(system[1][0]["hits"], HITS, "{report}");
    }
}

/// Counted from the trace.
const HITS: u64 = 1263;

#[test]
fn what_cannot_be_is_one_line() {
    let place = Place::new();
    for (arguments, says) in [
        (&["bench", "kv", "--trace", "/nonexistent"][..], "/nonexistent"),
        (&["bench", "kv", "--records", "1"], "--records is 1"),
        (&["bench", "kv", "--values", "0"], "--values"),
    ] {
        let _one = BENCH.lock();
        let (code, out, err) = outcome(place.farmem(arguments));
        assert!(code != Some(0) && out.is_empty(), "{arguments:?}: {out}");
        assert!(err.contains("farmem: ") && err.contains(says), "{arguments:?}: {err}");
    }
}
