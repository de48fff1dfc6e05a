//! Far objects under `farmem run`: one `--local` for them and for the program's pages.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use farmem_tests::farmem::{Far, Node, counter, far_run};
use farmem_tests::process::{self, eventually};

const LIMIT: Duration = Duration::from_secs(120);

/// An example of `farmem-objects`, beside this test.
fn example(name: &str) -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let target = here.parent().and_then(|deps| deps.parent()).context("no target folder")?;
    let program = target.join("examples").join(name);
    ensure!(program.exists(), "{} is not there: cargo build -p farmem-objects --examples", program.display());
    Ok(program)
}

#[test]
fn objects_and_pages_share_one_limit() -> Result<()> {
    let program = Command::new(example("orders")?);
    let mut lines = Vec::new();
    for (local, way) in [(4 << 20, "shm"), (4 << 20, "tcp"), (64 << 20, "shm")] {
        let far = Far::local(local).with(&["--transport", way]);
        let (said, stats) = far_run(&program, &far, LIMIT)?;
        let said = said.success()?;
        ensure!(said.stdout.starts_with(b"1000000 orders, 125000 by number, "), "{said:?}");
        lines.push(said.stdout);
        let [objects, all] = ["objects_peak", "local_peak"].map(|name| counter(&stats, name));
        ensure!(objects > local / 4 && objects <= local * 3 / 4, "{way}: objects held {objects} bytes; {stats}");
        ensure!(all <= local && all >= objects, "{way}: {all} bytes were local of {local}; {stats}");
    }
    // A run that mirrors keeps two copies of its pages, and one of each object.
    let nodes = [Node::start("256M", &[])?, Node::start("256M", &[])?];
    let far = nodes.iter().fold(Far::local(4 << 20), |far, node| far.on(&node.by_tcp()));
    let far = far.with(&["--transport", "tcp", "--protect", "mirror"]);
    let (said, stats) = far_run(&program, &far, LIMIT)?;
    lines.push(said.success()?.stdout);
    let [objects, all] = ["objects_peak", "local_peak"].map(|name| counter(&stats, name));
    ensure!(objects > 1 << 20 && all <= 4 << 20, "objects held {objects} bytes of {all}; {stats}");
    ensure!(lines.iter().all(|line| *line == lines[0]), "{lines:?}");
    Ok(())
}

/// Whoever gains more by local memory gets it: objects, then pages, then objects.
#[test]
fn shares_follow_what_is_used() -> Result<()> {
    let mut program = Command::new(example("orders")?);
    program.arg("shares");
    let local = 12 << 20;
    for way in ["shm", "tcp"] {
        let (said, stats) = far_run(&program, &Far::local(local).with(&["--transport", way]), LIMIT)?;
        let said = String::from_utf8(said.success()?.stdout)?;
        ensure!(said.starts_with("360000 sound, "), "{way}: {said}");
        let had: Vec<u64> = said.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
        let [_, first, second, third] = had[..] else { bail!("{way}: {said}") };
        let parts = [first, second, third].map(|kib| (kib << 10) as f64 / local as f64);
        ensure!(parts[0] > 0.5 && parts[1] < 0.25 && parts[2] > 2.0 * parts[1], "{way}: {said}, of {local} bytes");
        ensure!(counter(&stats, "local_peak") <= local, "{way}: {stats}");
    }
    Ok(())
}

/// A run that mirrors loses no page with a node. Of its heap, which has one copy of each object, the
/// objects of that node are lost: each use of one is an error, and all others are sound.
#[test]
fn a_lost_node_of_a_run_that_mirrors_takes_its_objects_alone() -> Result<()> {
    let [gone, stays] = [Node::start("256M", &[])?, Node::start("256M", &[])?];
    let far = Far::local(4 << 20).on(&gone.by_tcp()).on(&stays.by_tcp());
    let far = far.with(&["--transport", "tcp", "--protect", "mirror", "--grace", "1s"]);
    let mut program = Command::new(example("orders")?);
    program.arg("lost");
    let mut command = far.command(&program);
    command.stdin(Stdio::piped());
    let mut run = process::spawn(command)?;
    let mut input = run.stdin().context("it has no standard input")?;
    let is_ready = || run.stdout().starts_with(b"ready\n");
    ensure!(eventually(LIMIT, || is_ready() || !run.alive()) && is_ready(), "{}", run.stderr());
    process::kill(gone.running.pid());
    input.write_all(b"\n")?;
    drop(input);
    let said = run.wait(LIMIT)?.success()?;
    let line = String::from_utf8_lossy(&said.stdout).lines().last().unwrap_or_default().to_owned();
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    ensure!(
        matches!(numbers[..], [1_048_576, sound, lost] if sound > 0 && lost > 0 && sound + lost == 12_000),
        "{line}"
    );
    ensure!(said.stderr.contains("goes on with one copy of "), "{}", said.stderr);
    Ok(())
}

/// The heap of several threads shares the limit with pages, too: by gain, three quarters of it at
/// most.
#[test]
fn threads_share_a_heap_under_one_limit() -> Result<()> {
    let mut program = Command::new(example("orders")?);
    program.arg("threads");
    for way in ["shm", "tcp"] {
        let (said, stats) = far_run(&program, &Far::local(8 << 20).with(&["--transport", way]), LIMIT)?;
        let said = said.success()?;
        let sum = (0..16_000u64).map(|n| n * 7919 % 1_000_000).fold(0u64, |sum, n| {
            let square = n * n;
            sum.wrapping_add(square).wrapping_add(square % (1 << 20))
        });
        let line = format!("1000000 squares by 4 threads, {sum}\n");
        ensure!(said.stdout == line.as_bytes(), "{line}{said:?}");
        let [objects, all] = ["objects_peak", "local_peak"].map(|name| counter(&stats, name));
        ensure!(objects > 1 << 20 && objects <= 6 << 20 && all <= 8 << 20, "{way}: {objects} of {all}; {stats}");
    }
    Ok(())
}

/// Segments that a heap does not need any more go back to the run: another heap can have them.
#[test]
fn what_objects_do_not_need_goes_back() -> Result<()> {
    let mut program = Command::new(example("orders")?);
    program.arg("turns");
    let (said, stats) = far_run(&program, &Far::local(8 << 20), LIMIT)?;
    let said = String::from_utf8(said.success()?.stdout)?;
    let (line, bytes) = said.trim_end().trim_end_matches(']').split_once('[').context("no figures")?;
    let bytes = bytes.split(", ").map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    ensure!(line == "7, full 2 times: ", "{said}");
    ensure!(bytes.len() == 4 && bytes[0] > 3 << 20 && bytes[2] > 3 << 20, "{said}");
    ensure!(bytes[1] < 1 << 20 && bytes[3] < 1 << 20, "{said}");
    ensure!(counter(&stats, "objects_peak") <= 4 << 20, "{stats}");
    Ok(())
}
