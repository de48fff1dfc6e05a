//! `farmem amat` with a real program under valgrind, and what it refuses.

#[allow(dead_code)] // The other tests use the rest of it.
mod common;

use common::{Place, outcome};
use std::fs;

#[test]
fn a_program_is_recorded_and_its_recording_gives_the_same_figures() {
    let place = Place::new();
    let file = place.path().join("some.refs");
    let amat = |arguments: &[&str]| {
        let mut command = place.farmem(["amat", "--local", "25%,100%", "--json"]);
        command.args(arguments).env("TMPDIR", place.path());
        outcome(command)
    };
    let file = file.to_str().unwrap();
    let (status, recorded, said) = amat(&["--record", file, "--", "sh", "-c", "exec echo here I am"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("here I am"), "its output goes to standard error: {said}");
    let (status, again, said) = amat(&[file]);
    assert_eq!((status, again), (Some(0), recorded.clone()), "{said}");
    let report: serde_json::Value = serde_json::from_str(&recorded).unwrap();
    assert!(report[0]["references"].as_u64().unwrap() > 100_000 / 4, "the program after exec too: {recorded}");
    assert_eq!(report[0]["rows"].as_array().unwrap().len(), 9 * 2);

    let (status, _, said) = amat(&["--", "sh", "-c", "exit 3"]);
    assert!(status == Some(1) && said.contains("ended with exit status: 3"), "{said}");
    let left: Vec<_> = fs::read_dir(place.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("farmem-amat")), "{left:?}");
}

#[test]
fn bad_input_gets_one_line() {
    let place = Place::new();
    let no_trace = place.path().join("x");
    fs::write(&no_trace, "name = 'x'\n[local]\nns = 1\n").unwrap();
    let no_trace = no_trace.to_str().unwrap();
    for (arguments, says) in [
        (&["amat"][..], "nothing to simulate"),
        (&["amat", no_trace], "no trace of references"),
        (&["amat", "--generate", "zipf", "--references", "1", "-s", no_trace], "missing field"),
        (&["amat", "--generate", "zipf", "--references", "1", "-s", "nowhere"], "neither a file nor one of"),
        (&["amat", "--generate", "zipf", "--references", "1", "--block", "100"], "powers of two"),
        (&["amat", "--generate", "zipf", "--references", "1", "--local", "0%"], "above 0%"),
        (&["amat", "--show", "nothing"], "is shipped; there are"),
    ] {
        let (status, out, said) = outcome(place.farmem(arguments.iter().copied()));
        assert_ne!(status, Some(0), "{arguments:?}");
        assert!(out.is_empty() && said.contains(says), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}
