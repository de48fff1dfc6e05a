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
fn run(by: By, how: &str, argument: Option<&str>) -> Result<Ended> {
    run_with(by, how, argument, "5s")
}

/// How it ended, what it printed, what farmem said, and when.
type Ended = (i32, String, String, Duration);

fn run_with(by: By, how: &str, argument: Option<&str>, grace: &str) -> Result<Ended> {
    let node = Node::start("256M", &[])?;
    let mut program = Command::new(compile::c("killed_beside", &[])?);
    let pid = node.running.pid().to_string();
    program.args([how, argument.unwrap_or(&pid)]);
    let run = process::spawn(by.far("4M", &by.address(&node)).with(&["--grace", grace]).command(&program))?;
    let killed = eventually(LIMIT, || run.stdout().starts_with(b"killed\n") || !run.alive());
    let since = Instant::now();
    let (outcome, lost) = run.wait_counting(LIMIT).context("the others hang")?;
    let took = since.elapsed().saturating_sub(lost);
    ensure!(killed, "{outcome:?}");
    let (_, said) = split_stats(&outcome.stderr);
    Ok((outcome.code(), String::from_utf8_lossy(&outcome.stdout).into_owned(), said, took))
}

/// The status of `killed_beside` where it can have no namespaces.
const NO_NAMESPACES: i32 = 77;
const STORMS: &[u32] = &[3001, 30_011];

const SOUND: &str = "killed\nwrong 0\nwrong 0\nwrong 0\nends\n";

/// The others went on with all of their bytes; or they ended soon, with a line.
fn ended(by: By, how: &str, ended: Ended) -> Result<bool> {
    ended_within(SOON, by, how, ended)
}

fn ended_within(soon: Duration, by: By, how: &str, ended: Ended) -> Result<bool> {
    let (status, printed, said, took) = ended;
    if (status, printed.as_str()) == (0, SOUND) && said.is_empty() {
        return Ok(true);
    }
    let told = said.lines().count() == 1 && said.contains("which shared this program's memory, has ended");
    ensure!(status == 73 && told && took < soon, "{by:?} {how}: {status} after {took:?}: {printed}{said}");
    ensure!(printed.lines().skip(1).all(|line| line == "wrong 0"), "{printed}");
    Ok(false)
}

#[test]
fn the_others_end_when_one_is_killed_with_a_page_or_a_lock() -> Result<()> {
    together(
        ["fault", "evict", "vfork", "Rfault", "Revict", "Rvfork", "Nfault", "Nevict"]
            .map(|how| {
                scenario(how, move || {
                    let was = run(By::Tcp, how, None)?;
                    if was.0 == NO_NAMESPACES {
                        return Ok(());
                    }
                    let goes_on = ended(By::Tcp, how, was)?;
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
        for how in ["idle", "Ridle", "Nidle"] {
            let was = run(by, how, None)?;
            ensure!(was.0 == NO_NAMESPACES || ended(by, how, was)?, "{by:?} {how}: they ended");
        }
    }
    Ok(())
}

/// A killed one of whom that cannot be told: it counts in another PID namespace, and has a list of
/// robust locks of its own. The limit is 10 s and twice the grace; a stop does not count.
#[test]
fn a_wait_ends_though_nobody_knows_of_the_holders_end() -> Result<()> {
    let killed = scenario("Lfault", || {
        let was = run_with(By::Tcp, "Lfault", None, "1s")?;
        if was.0 == NO_NAMESPACES {
            return Ok(());
        }
        ensure!(!ended_within(Duration::from_secs(40), By::Tcp, "Lfault", was)?, "it held nothing");
        Ok(())
    });
    let stopped = scenario("Lstop", || {
        let was = run_with(By::Tcp, "Lstop", None, "1s")?;
        ensure!(was.0 == NO_NAMESPACES || (was.0, was.1.as_str(), was.2.as_str()) == (0, SOUND, ""), "{was:?}");
        Ok(())
    });
    together(vec![killed, stopped])
}

/// Wherever in the runtime the kill falls.
#[test]
fn the_others_end_or_go_on_wherever_the_kill_falls() -> Result<()> {
    for by in BOTH {
        for (how, micros) in
            ["storm", "Rstorm", "Nstorm"].into_iter().zip([&[1000, 5007, 20011, 50021][..], STORMS, STORMS])
        {
            for micros in micros {
                let was = run(by, how, Some(&micros.to_string()))?;
                if was.0 != NO_NAMESPACES {
                    ended(by, how, was)?;
                }
            }
        }
    }
    Ok(())
}
