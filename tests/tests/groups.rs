//! Runs in a memory group (cgroup) with a limit, as a container is.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::{Far, Node, binary, split_stats};
use farmem_tests::group::Group;
use farmem_tests::process;

const LIMIT: Duration = Duration::from_secs(120);

/// A group of so many bytes, or why there is none: then the test says so by its name.
fn group(test: &str, limit: u64) -> Option<Group> {
    Group::new(limit).inspect_err(|e| eprintln!("skipped: {test}: {e:#}")).ok()
}

/// 200 MiB of far memory, and 50 more of a child, in a group of 120 MiB. The node is outside of the
/// group: far memory is the node's, whichever way the node is reached.
#[test]
fn far_memory_is_charged_to_its_node() -> Result<()> {
    let Some(group) = group("far_memory_is_charged_to_its_node", 120 << 20) else { return Ok(()) };
    let node = Node::start("1G", &[])?;
    let mut program = Command::new(compile::c("fills", &[])?);
    program.arg("200");
    for address in [node.by_shm(), node.by_tcp()] {
        let far =
            Far::local("16M").on(&address).with(&["--transport", if address == node.by_tcp() { "tcp" } else { "shm" }]);
        let outcome = process::run(group.within(&far.command(&program)), LIMIT)?.success()?;
        ensure!(outcome.stdout == b"bad 0, child 0\n", "{address}: {outcome:?}");
        ensure!(split_stats(&outcome.stderr).1.is_empty(), "{address}: {outcome:?}");
    }
    ensure!(group.killed() == 0);
    Ok(())
}

/// The kernel ends a program for its group's limit by SIGKILL, and only the group knows why.
#[test]
fn a_program_that_its_group_ends_is_told_so() -> Result<()> {
    let Some(group) = group("a_program_that_its_group_ends_is_told_so", 96 << 20) else { return Ok(()) };
    let node = Node::start("512M", &[])?;
    let mut program = Command::new(compile::c("fills", &[])?);
    program.arg("200");
    let command = Far::local("90M").on(&node.by_shm()).command(&program);
    let outcome = process::run(group.within(&command), LIMIT)?;
    let said = "farmem: the kernel ended it for its memory group's limit of 96.0 MiB: give it less --local\n";
    ensure!(outcome.code() == 128 + libc::SIGKILL && split_stats(&outcome.stderr).1 == said, "{outcome:?}");
    // A kill that is not the kernel's says nothing of a group.
    let mut sleeper = Command::new("sh");
    sleeper.args(["-c", "kill -9 $$"]);
    let command = Far::local("16M").on(&node.by_shm()).command(&sleeper);
    let outcome = process::run(group.within(&command), LIMIT)?;
    ensure!(outcome.code() == 128 + libc::SIGKILL && split_stats(&outcome.stderr).1.is_empty(), "{outcome:?}");
    Ok(())
}

/// Shares, and the default of `--far`, are of the group's limit; sizes beyond it are refused.
#[test]
fn a_groups_limit_is_all_the_memory_there_is() -> Result<()> {
    let Some(group) = group("a_groups_limit_is_all_the_memory_there_is", 256 << 20) else { return Ok(()) };
    let truth = Command::new("true");
    let run = |far: Far| process::run(group.within(&far.command(&truth)), LIMIT);
    for (far, line) in [
        (Far::local("300M"), "--local is 300 MiB, more than this memory group's 256 MiB: give less"),
        (
            Far::local("16M").with(&["--far", "1G"]),
            "--far is 1.00 GiB, more than this memory group's 256 MiB: give less",
        ),
    ] {
        let outcome = run(far)?;
        ensure!(outcome.code() == 64 && outcome.stderr == format!("farmem: {line}\n"), "{outcome:?}");
    }
    let mut node = Command::new(binary());
    node.args(["node", "--lend", "512M", "--listen", "127.0.0.1:0"]);
    let outcome = process::run(group.within(&node), LIMIT)?;
    let line = "farmem: --lend: 512 MiB is more than this memory group's 256 MiB: lend less\n";
    ensure!(outcome.code() == 64 && outcome.stderr == line, "{outcome:?}");
    // 25 % of 256 MiB local, and four fifths of the rest far: the program is refused more, not killed.
    let mut program = Command::new(compile::c("no_memory", &[])?);
    program.arg("4096");
    let outcome = process::run(group.within(&Far::local("25%").command(&program)), LIMIT)?.success()?;
    ensure!(outcome.stdout == b"refused 1 errno 12 bad 0\nagain 1\n", "{outcome:?}");
    let stats = split_stats(&outcome.stderr).0;
    ensure!(stats.is_some_and(|stats| stats["local_limit"] == 64 << 20), "{outcome:?}");
    ensure!(group.killed() == 0);
    Ok(())
}
