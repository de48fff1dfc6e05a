//! Message passing between processes of a run.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farmem_tests::farmem::{Far, far_run};
use farmem_tests::{compile, process};

const LIMIT: Duration = Duration::from_secs(120);

/// What `mpicc` hands to the compiler.
fn flags() -> Result<Vec<String>> {
    let mut flags = Vec::new();
    for stage in ["--showme:compile", "--showme:link"] {
        let told = Command::new("mpicc").arg(stage).output().context("mpicc is missing: run tests/peers.sh")?;
        flags.extend(String::from_utf8(told.stdout)?.split_whitespace().map(str::to_owned));
    }
    Ok(flags)
}

#[test]
fn ranks_exchange_far_memory() -> Result<()> {
    let flags = flags()?;
    let program = compile::c("ranks", &flags.iter().map(String::as_str).collect::<Vec<_>>())?;
    let ranks = || {
        let mut command = Command::new("mpirun");
        command.args(["--allow-run-as-root", "--oversubscribe", "-np", "2"]).arg(&program);
        // On this machine alone, which need not have a way to others.
        command.env("OMPI_MCA_plm", "isolated");
        command
    };
    let native = process::run(ranks(), LIMIT)?.success()?.stdout;
    for transport in ["shm", "tcp"] {
        let (outcome, _) = far_run(&ranks(), &Far::local("8M").with(&["--transport", transport]), LIMIT)?;
        let far = outcome.success()?.stdout;
        ensure!(far == native, "{transport}: {far:?}, native {native:?}");
    }
    Ok(())
}
