//! Runs in a memory group (cgroup) with a limit, as a container is.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::{Far, Node, split_stats};
use farmem_tests::group::Group;
use farmem_tests::process;

const LIMIT: Duration = Duration::from_secs(120);

/// A group of so many bytes, or why there is none: then the test says so by its name.
fn group(test: &str, limit: u64) -> Option<Group> {
    Group::new(limit).inspect_err(|e| eprintln!("skipped: {test}: {e:#}")).ok()
}

/// 200 MiB of far memory, and 50 more of a child, in a group of 120 MiB. The node is outside of it: what lies there is the
/// node's, whichever way it is reached.
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
