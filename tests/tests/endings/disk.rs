//! `--protect disk`: a copy of far memory in a file on this host. The only node is killed while the program works,
//! another takes its place, and the file has no room.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farmem_tests::farmem::{Far, Node, copy, split_stats};
use farmem_tests::lost::Lost;
use farmem_tests::process::{self, TempDir, eventually};

use crate::mirror::{KILLED, redis_loses, sound_with_one};
use crate::{BUSY, FORKED, IDLE, LIMIT, Work, scenario, together};

pub(crate) fn node() -> Result<Node> {
    Node::start("512M", &[])
}

pub(crate) fn on_disk(local: &str, dir: &TempDir, nodes: &[&Node]) -> Far {
    let far = Far::local(local).with(&["--transport", "tcp", "--protect"]);
    let far = far.with(&[&format!("disk={}", dir.path().display())]);
    nodes.iter().fold(far, |far, node| far.on(&node.by_tcp()))
}

#[test]
fn the_only_node_is_killed_and_the_program_goes_on() -> Result<()> {
    let goes_on = |arguments: &'static [&'static str]| {
        scenario(format!("{arguments:?}"), move || {
            let (node, dir) = (node()?, TempDir::new("disk")?);
            let work = Work::start(&on_disk("4M", &dir, &[&node]), arguments)?;
            std::thread::sleep(Duration::from_millis(500));
            ensure!(dir.path().read_dir()?.next().is_none(), "the file has a name");
            let mut lost = Lost::by(&[work.program, node.running.pid()]);
            lost.kills(node.running.pid());
            sound_with_one(work, &node.by_tcp(), KILLED, &mut lost)
        })
    };
    together(vec![goes_on(BUSY), goes_on(FORKED), goes_on(IDLE)])
}

#[test]
fn redis_loses_its_only_node_under_load() -> Result<()> {
    let (node, dir) = (node()?, TempDir::new("disk")?);
    let (longest, lost) = redis_loses(&on_disk("16M", &dir, &[&node]), &[&node], 0, "goes on with one copy of ")?;
    println!("longest wait for redis {longest:?}, {lost:?} without a CPU");
    Ok(())
}

/// What a program writes is what it writes without far memory, also if its node is killed.
#[test]
fn a_sort_loses_its_only_node() -> Result<()> {
    let (node, dir) = (node()?, TempDir::new("disk")?);
    let (input, mut lines, mut random) = (dir.path().join("input"), Vec::new(), 1u64);
    for _ in 0..700_000 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        writeln!(lines, "{:016x} {:x}", random.rotate_left(17), random >> 40)?;
    }
    std::fs::write(&input, &lines)?;
    let mut sort = Command::new("sort");
    sort.args(["-S", "100M", "--parallel", "2"]).env("LC_ALL", "C");
    let mut native = copy(&sort);
    native.arg(&input);
    let expected = process::run(native, LIMIT)?;
    // It waits for its last lines until the node is dead.
    let mut command = on_disk("8M", &dir, &[&node]).command(&sort);
    command.stdin(Stdio::piped());
    let mut run = process::spawn(command)?;
    let mut pipe = run.stdin().context("no pipe")?;
    let (most, last) = lines.split_at(lines.len() - 1000);
    pipe.write_all(most)?;
    let holds = || node.metric("farmem_node_used_bytes").is_ok_and(|used| used > 0.0) || !run.alive();
    ensure!(eventually(LIMIT, holds), "nothing is at the node");
    process::kill(node.running.pid());
    let told = || run.stderr().contains("the program goes on") || !run.alive();
    ensure!(eventually(LIMIT, told), "nobody says that the node is gone: {}", run.stderr());
    pipe.write_all(last)?;
    drop(pipe);
    let outcome = run.wait(LIMIT)?;
    ensure!(outcome.code() == 0 && outcome.stdout == expected.stdout, "{:?}", outcome.stderr);
    ensure!(outcome.stderr.contains("the program goes on"), "{}", outcome.stderr);
    Ok(())
}

/// A second node takes the slabs of the first; then nothing is needed of the file but that it is there.
#[test]
fn slabs_move_to_another_node() -> Result<()> {
    let (nodes, dir) = ([node()?, node()?], TempDir::new("disk")?);
    let work = Work::start(&on_disk("4M", &dir, &[&nodes[0], &nodes[1]]), &["70", "2"])?;
    let lent = |node: &Node| node.metric("farmem_node_lent_bytes").is_ok_and(|lent| lent > 0.0);
    let [first, other] = if lent(&nodes[0]) { [0, 1] } else { [1, 0] };
    nodes[first].running.signal(libc::SIGKILL);
    let again = || work.run.stderr().contains("every page is at a node and on disk again") || !work.run.alive();
    ensure!(eventually(LIMIT, again), "nothing moves: {}", work.run.stderr());
    ensure!(lent(&nodes[other]), "nothing is at the other node");
    process::send(work.program, libc::SIGUSR1);
    let outcome = work.run.wait(LIMIT)?;
    ensure!(outcome.code() == 0, "{outcome:?}");
    Ok(())
}

/// A file system without room: one line, and the node has every page.
#[test]
fn a_full_disk_is_told_and_harms_nobody() -> Result<()> {
    let (node, dir) = (node()?, TempDir::new("disk")?);
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8M", "tmpfs"]).arg(dir.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("skipped: a_full_disk_is_told_and_harms_nobody: no file system can be mounted here");
        return Ok(());
    }
    let ends = (|| {
        let work = Work::start(&on_disk("4M", &dir, &[&node]), BUSY)?;
        let told = || work.run.stderr().contains("has no room for copies of pages") || !work.run.alive();
        ensure!(eventually(LIMIT, told), "nobody says that the disk is full: {}", work.run.stderr());
        process::send(work.program, libc::SIGUSR1);
        let outcome = work.run.wait(LIMIT)?;
        let (stats, rest) = split_stats(&outcome.stderr);
        ensure!(outcome.code() == 0 && rest.lines().count() == 1, "{outcome:?}");
        ensure!(stats.is_some_and(|stats| stats["single_bytes"].as_u64() > Some(0)), "{outcome:?}");
        Ok(())
    })();
    Command::new("umount").arg("-l").arg(dir.path()).status()?;
    ends
}

#[test]
fn a_directory_that_is_none_is_refused() -> Result<()> {
    let far = Far::local("4M").with(&["--protect", "disk=/no/such/directory"]);
    let outcome = process::run(far.command(&Command::new("true")), LIMIT)?;
    ensure!(outcome.code() == 64 && outcome.stderr.lines().count() == 1, "{outcome:?}");
    ensure!(outcome.stderr.contains("no file can be made in /no/such/directory"), "{outcome:?}");
    Ok(())
}
