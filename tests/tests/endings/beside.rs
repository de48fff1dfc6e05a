//! A process that shares the program's memory is killed, whatever it was at.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::{Node, split_stats};
use farmem_tests::process::{self, eventually};

use crate::{BOTH, By, LIMIT, scenario, together};

/// Within this the others have ended (docs/design/members.md).
const SOON: Duration = Duration::from_secs(3);

/// How a run of `killed_beside` ended, and how long after the kill.
fn run(by: By, how: &str, argument: Option<&str>) -> Result<(i32, String, String, Duration)> {
    let node = Node::start("256M", &[])?;
    let mut program = Command::new(compile::c("killed_beside", &[])?);
    let pid = node.running.pid().to_string();
    program.args([how, argument.unwrap_or(&pid)]);
    let run = process::spawn(by.far("4M", &by.address(&node)).command(&program))?;
    let killed = eventually(LIMIT, || run.stdout().starts_with(b"killed\n") || !run.alive());
    let since = Instant::now();
    let (outcome, lost) = run.wait_counting(LIMIT).context("the others hang")?;
    let took = since.elapsed().saturating_sub(lost);
    ensure!(killed, "{outcome:?}");
    let (_, said) = split_stats(&outcome.stderr);
    Ok((outcome.code(), String::from_utf8_lossy(&outcome.stdout).into_owned(), said, took))
}

const SOUND: &str = "killed\nwrong 0\nwrong 0\nwrong 0\nends\n";

/// The others went on with all of their bytes; or they ended soon, with a line.
fn ended(by: By, how: &str, ended: (i32, String, String, Duration)) -> Result<bool> {
    let (status, printed, said, took) = ended;
    if (status, printed.as_str()) == (0, SOUND) && said.is_empty() {
        return Ok(true);
    }
    let told = said.lines().count() == 1 && said.contains("which shared this program's memory, has ended");
    ensure!(status == 73 && told && took < SOON, "{by:?} {how}: {status} after {took:?}: {printed}{said}");
    ensure!(printed.lines().skip(1).all(|line| line == "wrong 0"), "{printed}");
    Ok(false)
}

#[test]
fn the_others_end_when_one_is_killed_with_a_page_or_a_lock() -> Result<()> {
    together(
        ["fault", "evict", "vfork"]
            .map(|how| {
                scenario(how, move || {
                    let goes_on = ended(By::Tcp, how, run(By::Tcp, how, None)?)?;
                    ensure!(!goes_on, "it held nothing");
                    Ok(())
                })
            })
            .into(),
    )
}

#[test]
fn the_others_go_on_when_one_is_killed_that_held_nothing() -> Result<()> {
    for by in BOTH {
        ensure!(ended(by, "idle", run(by, "idle", None)?)?, "{by:?}: they ended");
    }
    Ok(())
}

/// Wherever in the runtime the kill falls.
#[test]
fn the_others_end_or_go_on_wherever_the_kill_falls() -> Result<()> {
    for by in BOTH {
        for micros in [1000, 5007, 20011, 50021] {
            ended(by, "storm", run(by, "storm", Some(&micros.to_string()))?)?;
        }
    }
    Ok(())
}
