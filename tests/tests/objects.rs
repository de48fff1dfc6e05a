//! Far objects under `farmem run`: one `--local` for them and for the program's pages.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farmem_tests::farmem::{Far, counter, far_run};

const LIMIT: Duration = Duration::from_secs(120);

/// The example of `farmem-objects`, beside this test.
fn orders() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let target = here.parent().and_then(|deps| deps.parent()).context("no target folder")?;
    let program = target.join("examples/orders");
    ensure!(program.exists(), "{} is not there: cargo build -p farmem-objects --examples", program.display());
    Ok(program)
}

#[test]
fn objects_and_pages_share_one_limit() -> Result<()> {
    let program = Command::new(orders()?);
    let mut lines = Vec::new();
    for (local, way) in [(4 << 20, "shm"), (4 << 20, "tcp"), (64 << 20, "shm")] {
        let far = Far::local(local).with(&["--transport", way]);
        let (said, stats) = far_run(&program, &far, LIMIT)?;
        let said = said.success()?;
        ensure!(said.stdout.starts_with(b"1000000 orders, 125000 by number, "), "{said:?}");
        lines.push(said.stdout);
        let [objects, all] = ["objects_peak", "local_peak"].map(|name| counter(&stats, name));
        ensure!(objects > local / 4 && objects <= local / 2, "{way}: objects held {objects} bytes; {stats}");
        ensure!(all <= local && all >= objects, "{way}: {all} bytes were local of {local}; {stats}");
    }
    ensure!(lines.iter().all(|line| *line == lines[0]), "{lines:?}");
    Ok(())
}
