//! `farmem size` with a real program: its output, its status, a table that agrees with what runs
//! show.

#[allow(dead_code)] // The other tests use the rest of it.
mod common;

use common::{Place, outcome};

/// Twelve passes over a buffer of 32 MiB: it is filled by one call and written by the next.
const DD: [&str; 6] = ["dd", "if=/dev/urandom", "of=/dev/null", "bs=32M", "count=6", "status=none"];

#[test]
fn a_program_runs_once_and_is_told_what_it_would_do_with_less() {
    let place = Place::new();
    let mut size = place.farmem(["size", "--json", "--"].iter().chain(&DD));
    size.env("TMPDIR", place.path());
    let (status, out, said) = outcome(size);
    assert_eq!((status, out.as_str()), (Some(0), ""), "{said}");
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    let peak = report["peak"].as_u64().unwrap();
    assert!((30 << 20..40 << 20).contains(&peak), "{report}");
    let sizes = report["sizes"].as_array().unwrap();
    let at = |share: f64| {
        let local = |row: &serde_json::Value| row["local"].as_u64().unwrap() as f64;
        sizes
            .iter()
            .min_by(|a, b| (local(a) - share * peak as f64).abs().total_cmp(&(local(b) - share * peak as f64).abs()))
    };
    assert_eq!(at(1.0).unwrap()["returns"], 0, "{report}");
    let half = at(0.5).unwrap();
    let run = |local: u64| {
        let options =
            ["run", "--local", &local.to_string(), "--far", "128M", "--stats", "json", "--"].map(String::from);
        let (_, _, said) = outcome(place.farmem(options.into_iter().chain(DD.map(String::from))));
        let stats: serde_json::Value = serde_json::from_str(&said).unwrap();
        ["demand", "rescued", "prefetch_used"].iter().map(|name| stats[*name].as_u64().unwrap()).sum::<u64>()
    };
    let (told, seen) = (half["returns"].as_u64().unwrap(), run(half["local"].as_u64().unwrap()));
    assert!(told > seen / 2 && told < seen * 2, "{told} returns were told of, {seen} there were: {report}");
    let left: Vec<_> = std::fs::read_dir(place.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("farmem-size")), "{left:?}");
}

#[test]
fn the_programs_status_is_the_commands() {
    let place = Place::new();
    let (status, out, said) = outcome(place.farmem(["size", "--", "sh", "-c", "echo out; exit 3"]));
    assert_eq!((status, out.as_str()), (Some(3), "out\n"));
    assert!(said.starts_with("farmem: ") && said.contains("status 3"), "{said}");
    let (status, _, said) = outcome(place.farmem(["size", "--", "no-such-program"]));
    assert!(status == Some(127) && said.lines().count() == 1, "{said}");
}
