//! `farmem-lab bench apps` and `bench dirty`, with small programs: what they print, what fails them, what they leave behind.

#[allow(dead_code)] // The other tests use the rest of it.
#[path = "../../../cli/tests/common/mod.rs"]
mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{Place, outcome};

/// The command with a temporary directory of its own, in which nothing may be left.
fn bench(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.farmem(["bench", "apps", "--quick", "--no-swap"]);
    command.args(arguments).env("TMPDIR", place.path());
    command
}

/// `farmem-lab bench dirty` with such a directory.
fn dirty(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.farmem(["bench", "dirty", "--rounds", "1"]);
    command.args(arguments).env("TMPDIR", place.path());
    command
}

/// Runs it with this search path; benchmarks exclude each other on a machine, so perhaps later.
fn patiently(place: &Place, path: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    patiently_by(|| bench(place, arguments), path)
}

fn patiently_by(command: impl Fn() -> Command, path: &str) -> (Option<i32>, String, String) {
    let until = Instant::now() + Duration::from_secs(600);
    loop {
        let mut command = command();
        command.env("PATH", path);
        let ended = outcome(command);
        if !ended.2.contains(TAKEN) || Instant::now() > until {
            return ended;
        }
        sleep(Duration::from_secs(1));
    }
}

const TAKEN: &str = "another farmem-lab bench";

fn left(place: &Place) -> Vec<String> {
    let names = fs::read_dir(place.path()).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("farmem-apps") || name.starts_with("farmem-dirty")).collect()
}

/// A program of the benchmark's, replaced by a script.
fn replaced(place: &Place, name: &str, script: &str) -> String {
    let file = place.path().join(name);
    fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", place.path().display(), std::env::var("PATH").unwrap())
}

#[test]
fn a_program_is_measured_and_drawn() {
    let place = Place::new();
    let (json, dir) = (place.path().join("apps.json"), place.path().to_str().unwrap());
    let mut arguments = vec!["--programs", "join", "--shares", "100,75", "--give-up", "300"];
    arguments.extend(["--svg", dir, "--json", json.to_str().unwrap()]);
    let (status, said, complaint) = patiently(&place, &std::env::var("PATH").unwrap(), &arguments);
    assert_eq!(status, Some(0), "{complaint}");
    assert!(said.contains("hash join") && said.contains("farmem shm") && said.contains("75 %"), "{said}");
    assert!(complaint.contains("[  1 of 3] hash join: native"), "{complaint}");
    let raw: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let settings = raw["raw"]["programs"][0]["settings"].as_array().unwrap();
    assert_eq!(settings.len(), 3, "{raw}");
    assert!(settings[2]["runs"][0]["ended"]["stats"]["faults"].as_u64().unwrap() > 100, "{raw}");
    for plot in ["apps-join.svg", "apps.svg"] {
        assert!(fs::read_to_string(place.path().join(plot)).unwrap().contains("<polyline"));
    }
    assert_eq!(left(&place), [""; 0]);
}

#[test]
fn policies_are_compared_with_writing_all_back() {
    let place = Place::new();
    let (json, svg) = (place.path().join("dirty.json"), place.path().join("dirty.svg"));
    let mut arguments = vec!["--only", "gcc,xz", "--ways", "shm:none,shm:exact,tcp:none,tcp:auto", "--give-up", "300"];
    arguments.extend(["--svg", svg.to_str().unwrap(), "--json", json.to_str().unwrap()]);
    let (status, said, complaint) = patiently_by(|| dirty(&place, &arguments), &std::env::var("PATH").unwrap());
    assert_eq!(status, Some(0), "{complaint}");
    assert!(said.contains("Time on a CPU, of that of none, over tcp") && said.contains("geometric mean"), "{said}");
    let raw: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let auto = &raw["raw"]["by_cpu"].as_array().unwrap()[1];
    assert!(auto["dirty"] == "auto" && auto["by"] == "tcp" && auto["programs"] == 2, "{auto}");
    let sent = |way: usize| {
        let ended = &raw["raw"]["programs"][1]["ways"][way]["runs"][0]["ended"];
        ended["stats"]["bytes_out"].as_u64().unwrap()
    };
    assert!(sent(3) < sent(2), "changed lines are fewer bytes than all: {raw}");
    // Two programs and their mean, over two links.
    assert_eq!(fs::read_to_string(svg).unwrap().matches("<circle").count(), 6);

    let (status, _, complaint) = outcome(dirty(&place, &["--ways", "shm:some"]));
    assert!(status != Some(0) && complaint.contains("shm:none, shm:lines"), "{complaint}");
    assert_eq!(left(&place), [""; 0]);
}

#[test]
fn an_output_that_differs_fails_the_command() {
    let place = Place::new();
    let path = replaced(&place, "xz", "cat /proc/sys/kernel/random/uuid");
    let (status, said, complaint) = patiently(&place, &path, &["--programs", "xz", "--shares", "50"]);
    assert_ne!(status, Some(0), "{said}");
    assert!(complaint.contains("the output differs from the native one"), "{complaint}");
    assert_eq!(left(&place), [""; 0]);
}

#[test]
fn what_is_not_installed_is_named() {
    let place = Place::new();
    let (status, said, complaint) =
        patiently(&place, place.path().to_str().unwrap(), &["--programs", "xz", "--shares", "50"]);
    assert_eq!(status, Some(0), "{complaint}");
    assert!(said.contains("skipped: xz -9: xz is not installed"), "{said}");
}

#[test]
fn an_interrupt_ends_the_program_and_leaves_nothing() {
    let place = Place::new();
    let mark = place.path().join("pid");
    let path = replaced(&place, "xz", &format!("echo $$ >{0}.part; mv {0}.part {0}; exec sleep 1000", mark.display()));
    let until = Instant::now() + Duration::from_secs(600);
    let child = loop {
        let mut command = bench(&place, &["--programs", "xz", "--give-up", "500"]);
        let mut child = command.env("PATH", &path).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while !mark.exists() && child.try_wait().unwrap().is_none() {
            sleep(Duration::from_millis(5));
        }
        if mark.exists() {
            break child;
        }
        let complaint = common::text(&child.wait_with_output().unwrap().stderr);
        assert!(complaint.contains(TAKEN) && Instant::now() < until, "{complaint}");
        sleep(Duration::from_secs(1));
    };
    let program: i32 = fs::read_to_string(&mark).unwrap().trim().parse().unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    let complaint = common::text(&ended.stderr);
    assert!(!ended.status.success() && complaint.contains("interrupted"), "{complaint}");
    assert_eq!(left(&place), [""; 0]);
    assert!(!std::path::Path::new(&format!("/proc/{program}")).exists(), "the program goes on");
}

/// Processes at a node, over shm and tcp: what they hold is checked by themselves, and the figures are plausible.
#[test]
fn processes_claim_blocks_at_a_real_node() {
    let place = Place::new();
    let json = place.path().join("real.json");
    let mut command = place.farmem(["bench", "alloc", "--real", "--quick", "--rounds", "1", "--json"]);
    command.arg(&json).env("TMPDIR", place.path());
    let (status, said, complaint) = outcome(command);
    assert_eq!(status, Some(0), "{complaint}");
    assert!(said.contains("nobody else's while held"), "{said}");
    let rows: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let rows = rows.as_array().unwrap();
    let of =
        |row: &serde_json::Value| (row["transport"].as_str().unwrap().to_owned(), row["processes"].as_u64().unwrap());
    let expected = ["shm", "tcp"].map(|way| [1, 2, 8].map(|processes| (way.to_owned(), processes)));
    assert_eq!(rows.iter().map(of).collect::<Vec<_>>(), expected.concat());
    for row in rows {
        // Half of 70 % of 512 blocks, less what does not divide.
        assert!(row["claims"]["count"].as_u64().unwrap() >= 160, "{row}");
        assert!(row["claims"]["cas"].as_f64().unwrap() >= 1.0, "{row}");
        assert_eq!(row["releases"]["cas"].as_f64().unwrap(), 1.0, "{row}");
    }
}

/// Told now, not when hours of figures are to be written there.
#[test]
fn a_file_that_cannot_be_written_is_told_before_anything_runs() {
    let place = Place::new();
    let nowhere = place.path().join("no/such/directory");
    let nowhere = nowhere.to_str().unwrap();
    for command in
        ["bench paging", "bench evict", "bench apps", "bench dirty", "bench kona", "bench alloc", "malloc-bench"]
    {
        let arguments = command.split(' ').chain(["--json", nowhere]);
        let (status, out, said) = outcome(place.farmem(arguments));
        assert_eq!((status, out.as_str(), said.lines().count()), (Some(1), "", 1), "{command}: {said}");
        assert!(said.starts_with(&format!("farmem: writing {nowhere}")), "{command}: {said}");
    }
    let (status, out, said) = outcome(place.farmem(["replay", "--plot", nowhere]));
    assert_eq!((status, out.as_str(), said.lines().count()), (Some(1), "", 1), "{said}");
    assert!(said.contains(nowhere), "{said}");
}
