//! Far memory that a program frees is the node's again, within a second, while the program lives.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use farmem_tests::farmem::{Far, Node};
use farmem_tests::lost::Lost;
use farmem_tests::process::eventually;
use farmem_tests::{compile, process};

const LIMIT: Duration = Duration::from_secs(120);
/// The promise, which one try in [`TRIES`] must keep: half of it is measured where nothing else runs. What of it the
/// machine took away from the program or the node does not count.
const PROMISE: Duration = Duration::from_secs(1);
const TRIES: usize = 4;
/// How long it is waited for all the same, on machines that are slow, or busy with other things.
const SOON: Duration = Duration::from_secs(10);

/// A GiB of which a sixteenth is local; three quarters are freed in pieces of 8 MiB.
fn follows(transport: &str) -> Result<Duration> {
    let mib: u64 = std::env::var("FARMEM_TEST_MIB").ok().and_then(|mib| mib.parse().ok()).unwrap_or(1024);
    let node = Node::start(&format!("{}M", mib + 256), &[])?;
    let address = if transport == "shm" { node.by_shm() } else { node.by_tcp() };
    let used = || Ok::<u64, anyhow::Error>(node.metric("farmem_node_used_bytes")? as u64 >> 20);
    let mut program = Command::new(compile::c("releases", &[])?);
    program.arg(mib.to_string());
    let far = Far::local(format!("{}M", mib / 16)).with(&["--transport", transport]).on(&address);
    let mut command = far.command(&program);
    command.stdin(Stdio::piped());
    let mut run = process::spawn(command)?;
    let mut input = run.stdin().context("no pipe")?;
    let said = |what: &str| String::from_utf8_lossy(&run.stdout()).contains(what);
    ensure!(eventually(LIMIT, || said("filled\n") || !run.alive()), "not filled: {}", run.stderr());
    let filled = used()?;
    ensure!(filled >= mib / 16 * 14, "{transport}: {filled} MiB are in use after {mib} were filled");
    input.write_all(b"\n")?;
    ensure!(eventually(LIMIT, || said("freed\n") || !run.alive()), "not freed: {}", run.stderr());
    let mut freed = Lost::by(&[run.pid(), node.running.pid()]);
    let enough = mib / 4 + mib / 16;
    let followed = eventually(SOON, || used().is_ok_and(|used| used <= enough));
    let took = freed.left();
    eprintln!("{transport}: {filled} MiB in use, {} after {took:?}", used()?);
    ensure!(followed, "{transport}: {} MiB are still in use, of {filled}", used()?);
    input.write_all(b"\n")?;
    let outcome = run.wait(LIMIT)?.success()?;
    ensure!(outcome.stdout.ends_with(b"sound, 0 words wrong\n"), "{outcome:?}");
    Ok(took)
}

fn within_the_promise(transport: &str) -> Result<()> {
    for _ in 0..TRIES {
        if follows(transport)? <= PROMISE {
            return Ok(());
        }
    }
    bail!("{transport}: never within {PROMISE:?}");
}

#[test]
fn what_a_program_frees_is_the_nodes_again_by_shm() -> Result<()> {
    within_the_promise("shm")
}

#[test]
fn what_a_program_frees_is_the_nodes_again_by_tcp() -> Result<()> {
    within_the_promise("tcp")
}
