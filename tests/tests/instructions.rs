//! Hot paths do not grow unnoticed: their instructions, counted by valgrind.
//!
//! A clock on a shared machine cannot see two per cent; a count of instructions
//! is the same on every run. What may change, and how: docs/design/bench.md.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use farmem_tests::farmem::built;

/// The paths, and how many times one is gone through; counts are of the second that many.
const PATHS: [(&str, u64); 10] = [
    ("fault", 40_000),
    ("leave", 100),
    ("policy", 200),
    ("prefetch-random", 20_000),
    ("prefetch-sequential", 20_000),
    ("frame", 20_000),
    ("read-shm", 5_000),
    ("lines", 2_000),
    ("record", 50),
    ("allocate", 20_000),
];
/// Around a count that the same compiler gave.
const SLACK: f64 = 0.05;
/// Around one that another gave: a guard against doubling, no more.
const SLACK_OF_ANOTHER: f64 = 0.25;

fn counts_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("lab").join("instructions/counts.txt")
}

/// The compiler, and by path its count.
fn kept() -> Result<(String, BTreeMap<String, f64>)> {
    let text = std::fs::read_to_string(counts_file())?;
    let mut compiler = String::new();
    let mut counts = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (name, rest) = line.split_once(' ').with_context(|| format!("counts.txt: {line:?}"))?;
        match name {
            "compiler" => compiler = rest.trim().to_owned(),
            _ => drop(counts.insert(name.to_owned(), rest.trim().parse().with_context(|| line.to_owned())?)),
        }
    }
    Ok((compiler, counts))
}

/// Instructions of a whole run.
fn collected(program: &Path, path: &str, times: u64) -> Result<u64> {
    let out = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([path, &times.to_string()])
        .output()?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{path} under valgrind: {said}");
    let count = said.lines().find_map(|line| line.split_once("Collected : ")).map(|(_, count)| count.trim().parse());
    Ok(count.with_context(|| format!("valgrind counted nothing: {said}"))??)
}

fn compiler() -> Result<String> {
    let out = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("--version").output()?;
    Ok(String::from_utf8(out.stdout)?.trim().to_owned())
}

#[test]
fn hot_paths_take_no_more_instructions_than_they_did() -> Result<()> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: instruction counts: valgrind is not installed (sh tests/peers.sh installs it)");
        return Ok(());
    }
    let program = built("farmem-instructions", "hot-paths")?;
    let (kept_by, kept) = kept()?;
    let compiler = compiler()?;
    let slack = if kept_by == compiler { SLACK } else { SLACK_OF_ANOTHER };
    let (mut table, mut wrong) = (format!("compiler {compiler}\n"), Vec::new());
    for (path, times) in PATHS {
        let (once, twice) = (collected(&program, path, times)?, collected(&program, path, 2 * times)?);
        let count = twice.saturating_sub(once) as f64 / times as f64;
        table += &format!("{path} {count:.1}\n");
        match kept.get(path) {
            Some(&kept) if (count / kept - 1.0).abs() <= slack => {}
            Some(kept) => wrong.push(format!("{path}: {count:.1}, was {kept:.1}")),
            None => wrong.push(format!("{path}: {count:.1}, was never counted")),
        }
    }
    ensure!(
        wrong.is_empty(),
        "{}\nIf that is meant, put this into {} and say why in the commit:\n{table}",
        wrong.join("\n"),
        counts_file().display()
    );
    Ok(())
}
