//! A process that shares the program's memory is killed, whatever it was at.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::{Far, Node, split_stats};
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

/// Far memory that a handler thread brings, which ends with its process, by an exec too.
#[test]
fn one_that_outlives_the_handler_thread_is_ended() -> Result<()> {
    let outlives = |how: &'static str, status: i32| {
        scenario(how, move || {
            let node = Node::start("256M", &[])?;
            let mut program = Command::new(compile::c("outlives", &[])?);
            program.arg(how);
            let far = By::Tcp.far("4M", &By::Tcp.address(&node)).with(&["--fault", "thread"]);
            let run = process::spawn(far.command(&program))?;
            let outcome = run.wait(LIMIT).context("it waits for ever")?;
            let (stats, said) = split_stats(&outcome.stderr);
            let printed = String::from_utf8_lossy(&outcome.stdout).into_owned();
            let number = printed.lines().next().context("no number")?.parse::<i32>()?;
            // Gone, or a zombie.
            let gone = || {
                let stat = std::fs::read_to_string(format!("/proc/{number}/stat"));
                stat.map_or(true, |stat| stat.contains(") Z "))
            };
            ensure!(eventually(LIMIT, gone), "{number} is still there: {said}");
            ensure!(outcome.code() == status, "{outcome:?}");
            if how == "exec" {
                // The run goes on meanwhile.
                ensure!(printed.ends_with("ended 9\n") && said.lines().count() == 1, "{printed}{said}");
                ensure!(said.contains("has been ended: the process that brought its far memory"), "{said}");
                let stats = stats.context("no summary")?;
                ensure!(stats["background_processes"] == 0, "{stats}");
            }
            Ok(())
        })
    };
    together(vec![outlives("kill", 137), outlives("exit", 0), outlives("exec", 0)])
}

/// Nothing stands beside a program whose far memory a handler thread brings: a process that shared
/// its memory could not but share what an exec looks at (set-user-ID, locks), or what a supervisor
/// counts.
#[test]
fn a_handler_thread_has_no_process_beside_it() -> Result<()> {
    let mut program = Command::new("/bin/sh");
    let lists = "read own </proc/$$/task/$$/children; read all </proc/$PPID/task/$PPID/children";
    program.args(["-c", &format!("{lists}; echo \"own:$own all:$all\"")]);
    let far = Far::local("4M").with(&["--fault", "thread"]);
    let outcome = process::spawn(far.command(&program))?.wait(LIMIT)?;
    let (stats, said) = split_stats(&outcome.stderr);
    let printed = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let all = printed.strip_prefix("own: all:").with_context(|| format!("{printed}{said}"))?;
    // The supervisor's node, and the shell.
    ensure!(outcome.code() == 0 && all.split_whitespace().count() == 2, "{printed}{said}");
    ensure!(stats.context("no summary")?["background_processes"] == 0, "{said}");
    Ok(())
}

/// Nor is a program of the run ended that has no far memory, and waits for pages of its own making.
#[test]
fn one_that_waits_for_its_own_pages_is_left_alone() -> Result<()> {
    let mut program = Command::new("/bin/sh");
    program.arg("-c").arg(format!("{}; echo status $?", compile::c("own_faults", &["-static", "-pthread"])?.display()));
    let outcome = process::spawn(Far::local("4M").with(&["--fault", "thread"]).command(&program))?.wait(LIMIT)?;
    ensure!(String::from_utf8_lossy(&outcome.stdout) == "7\nstatus 0\n", "{outcome:?}");
    Ok(())
}
