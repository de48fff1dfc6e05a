//! What goes to the node of pages whose changes are known, under every policy.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::{Far, binary, counter, far_run, lab};
use farmem_tests::process;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(90);
const PAGES: u64 = 4000;
const PASSES: u64 = 3;
/// An eighth of the array.
const LOCAL: &str = "2M";

/// Changes `lines` lines of every page, in every pass; all of them back in the end, in one pass more. A page
/// leaves between two passes, but for those that are local when one ends and the next begins.
fn run(lines: u64, transport: &str, dirty: &str) -> Result<Value> {
    let mut program = Command::new(compile::c("lines", &[])?);
    program.args([PAGES, lines, PASSES].map(|n| n.to_string()));
    let far = Far::local(LOCAL).with(&["--transport", transport, "--dirty", dirty]);
    let (outcome, stats) = far_run(&program, &far, LIMIT)?;
    outcome.success()?;
    Ok(stats)
}

/// Lines that change, page by page: in each pass, and in the last one those of all passes at once, which are the same.
fn changes(lines: u64) -> u64 {
    PAGES * lines * (PASSES + 1)
}

fn near(what: &str, told: u64, expected: u64, stats: &Value) -> Result<()> {
    ensure!(told <= expected && told >= expected * 85 / 100, "{what}: {told} of {expected}: {stats}");
    Ok(())
}

#[test]
fn lines_are_told_and_sent_by_themselves() -> Result<()> {
    for (transport, lines) in [("shm", 3), ("tcp", 3), ("tcp", 1)] {
        let stats = run(lines, transport, "lines")?;
        let [told, sent, whole] = ["lines_changed", "lines_sent", "pages_whole"].map(|name| counter(&stats, name));
        near("lines told", told, changes(lines), &stats)?;
        ensure!(sent == told, "{transport}: {stats}");
        // Fresh pages, and those that came back before their record was acknowledged.
        ensure!((PAGES * 85 / 100..=PAGES * 2).contains(&whole), "{transport}: {stats}");
        ensure!(counter(&stats, "upgrades") == 0, "{transport}: {stats}");
        if transport == "tcp" {
            let lines_out = counter(&stats, "wire_out").saturating_sub(whole * (4096 + 24 + 16));
            // A page's condition is 8 bytes, whatever goes of it.
            ensure!(lines_out <= sent * 64 * 13 / 10 + sent / lines * 8, "{lines_out} bytes for {sent} lines: {stats}");
        }
    }
    Ok(())
}

/// Stores that leave a page as it was are stores: pages that see them come in writable.
#[test]
fn silent_stores_are_expected_again() -> Result<()> {
    const PASSES: u64 = 6;
    for order in ["sequence", "scattered"] {
        for transport in ["shm", "tcp"] {
            let mut program = Command::new(compile::c("counts", &[])?);
            program.args([&PAGES.to_string(), &PASSES.to_string(), order]);
            let run = |dirty: &str| -> Result<Value> {
                let far = Far::local(LOCAL).with(&["--transport", transport, "--dirty", dirty]);
                let (outcome, stats) = far_run(&program, &far, LIMIT)?;
                outcome.success()?;
                Ok(stats)
            };
            let (auto, lines) = (run("auto")?, run("lines")?);
            ensure!(counter(&lines, "upgrades") == 0, "{lines}");
            // Samples, and what is learned in the first pass: a twentieth of the pages that come in to be stored to.
            let upgrades = counter(&auto, "upgrades");
            ensure!(upgrades <= PAGES * PASSES / 20, "{order}, {transport}: {upgrades} upgrades: {auto}");
        }
    }
    Ok(())
}

#[test]
fn pages_go_whole_where_lines_are_not_told() -> Result<()> {
    for (transport, dirty) in [("shm", "none"), ("tcp", "none"), ("tcp", "exact")] {
        let stats = run(3, transport, dirty)?;
        ensure!(counter(&stats, "lines_sent") == 0 && counter(&stats, "lines_changed") == 0, "{stats}");
        let [left, whole] = ["evicted", "pages_whole"].map(|name| counter(&stats, name));
        ensure!(whole >= PAGES * (PASSES + 1), "{stats}");
        // The pass that only reads is told from the others by `exact`.
        let clean = counter(&stats, "evicted_clean");
        ensure!(if dirty == "none" { clean == 0 } else { clean >= PAGES * 80 / 100 }, "{stats}");
        ensure!(left >= whole, "{stats}");
    }
    Ok(())
}

/// Policies that were removed are refused by name, with the one to use instead.
#[test]
fn removed_policies_are_refused_in_a_line() -> Result<()> {
    for (removed, instead) in [("shadow", "lines"), ("pages", "exact")] {
        let mut command = Command::new(binary());
        command.args(["run", "--dirty", removed, "--", "true"]);
        let outcome = process::run(command, LIMIT)?;
        let said = outcome.stderr.trim();
        ensure!(outcome.code() == farmem_run::exit::USAGE, "{}: {said}", outcome.status);
        ensure!(said.lines().count() == 1 && said.contains(removed) && said.contains(instead), "{said}");
    }
    Ok(())
}

/// A torture of each policy, whose model says what every byte must be. In a second each page leaves
/// several times; the long form takes 20.
fn every_byte_is_right(threads: &str, mib: &str) -> Result<()> {
    let seconds = if farmem_tests::long() { "20" } else { "1" };
    for (dirty, transport, mask) in [
        ("lines", "tcp", None),
        // A changed line in four is overlooked, and the node's refusals put it right.
        ("lines", "tcp", Some("changes")),
        // Dirty pages cannot be held, and are protected.
        ("lines", "tcp", Some("hold")),
        ("auto", "shm", Some("hold")),
        ("auto", "shm", None),
        ("lines", "shm", None),
        ("none", "tcp", None),
        ("exact", "tcp", None),
        // As before Linux 6.13: a call for each range.
        ("lines", "tcp", Some("process_madvise")),
        ("auto", "shm", Some("process_madvise")),
        // As where there is swap.
        ("auto", "shm", Some("swapless")),
    ] {
        let mut command = Command::new(lab());
        command.args(["torture", "--seconds", seconds, "--mib", mib, "--threads", threads, "--seed", "11"]);
        command.args(["--transport", transport, "--dirty", dirty]);
        command.args(mask.iter().flat_map(|mask| ["--mask", mask]));
        process::run(command, LIMIT)?.success()?;
    }
    Ok(())
}

#[test]
fn every_byte_is_right_of_several_threads() -> Result<()> {
    every_byte_is_right("3", "8")
}

/// Its dirty pages leave as they are, neither held nor protected.
#[test]
fn every_byte_is_right_of_one_thread() -> Result<()> {
    every_byte_is_right("1", "24")
}
