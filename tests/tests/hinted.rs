//! What programs say of their memory: the C header, the Rust crate and the Python module, natively and on far memory.
//! The output is the same, and with hints a program faults less.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::{Far, compare, copy, counter, far_run, same_as_native};
use farmem_tests::process;

const LIMIT: Duration = Duration::from_secs(120);

fn bindings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../bindings")
}

fn hinted(flags: &[&str]) -> Result<PathBuf> {
    let include = format!("-I{}", bindings().join("c").display());
    compile::c("hinted", &[&[include.as_str()][..], flags].concat())
}

/// Hints that are right, wrong and hostile, by several threads, between fork and munmap: no byte differs.
#[test]
fn no_hint_changes_a_byte() -> Result<()> {
    let program = Command::new(hinted(&[])?);
    let native = process::run(copy(&program), LIMIT)?.success()?;
    for way in [&["--transport", "shm"][..], &["--transport", "tcp"], &["--fault", "thread"], &["--dirty", "lines"]] {
        let (far, stats) = far_run(&program, &Far::local("4M").with(way), LIMIT)?;
        compare(&native, &far).map_err(|e| e.context(format!("{way:?}")))?;
        let counts = ["hinted", "paged_out"].map(|name| counter(&stats, name));
        ensure!(counts.iter().all(|&count| count > 1000), "{way:?}: {counts:?} pages came and left by hints; {stats}");
    }
    Ok(())
}

/// However it is linked, a program finds the runtime, where there is one.
#[test]
fn hints_spare_faults() -> Result<()> {
    for flags in [&[][..], &["-no-pie", "-fno-pie"], &["-O2", "-fPIC"]] {
        for transport in ["shm", "tcp"] {
            let far = Far::local("4M").with(&["--transport", transport]);
            let run = |how: &str| {
                let mut program = Command::new(hinted(flags)?);
                program.arg(how);
                let (_, _, stats) = same_as_native(&program, &far, LIMIT)?;
                Ok::<_, anyhow::Error>(stats)
            };
            let [plain, hints] = [run("plain")?, run("hinted")?];
            let [before, after] = [&plain, &hints].map(|stats| counter(stats, "demand") + counter(stats, "upgrades"));
            ensure!(after * 5 < before, "{transport}, {flags:?}: {before} faults, {after} with hints; {hints}");
            ensure!(counter(&plain, "hinted") == 0 && counter(&hints, "hinted") > 2000, "{transport}: {hints}");
        }
    }
    Ok(())
}

/// Linked statically, compiled by another compiler and as C++, nothing is missing.
#[test]
fn the_header_needs_nothing() -> Result<()> {
    let mut program = Command::new(hinted(&["-static"])?);
    program.arg("hinted");
    process::run(program, LIMIT)?.success()?;
    let include = format!("-I{}", bindings().join("c").display());
    let dir = process::TempDir::new("header")?;
    let source = dir.path().join("source.c");
    std::fs::write(&source, "#include <farmem.h>\nint main(void) { farmem_read(0, 1); return farmem_runs(); }\n")?;
    for (compiler, how) in [
        ("gcc", &["-std=c89", "-Wall", "-Wextra", "-Wpedantic", "-Werror"][..]),
        ("gcc", &["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]),
        ("g++", &["-x", "c++", "-Wall", "-Wextra", "-Werror"]),
    ] {
        let program = dir.path().join(compiler);
        let out = Command::new(compiler).args(how).arg(&include).arg(&source).arg("-o").arg(&program).output();
        let out = out.with_context(|| format!("{compiler} is missing: run tests/peers.sh"))?;
        ensure!(out.status.success(), "{compiler}: {}", String::from_utf8_lossy(&out.stderr));
        process::run(Command::new(program), LIMIT)?.success()?;
    }
    Ok(())
}

#[test]
fn python_hints() -> Result<()> {
    let mut program = Command::new("python3");
    program.arg(compile::sources().join("hinted.py")).env("PYTHONPATH", bindings().join("python"));
    for transport in ["shm", "tcp"] {
        let far = Far::local("8M").with(&["--transport", transport]);
        let (_, _, stats) = same_as_native(&program, &far, LIMIT)?;
        let counts = ["hinted", "paged_out"].map(|name| counter(&stats, name));
        ensure!(counts.iter().all(|&count| count > 50), "{transport}: {counts:?}; {stats}");
    }
    Ok(())
}

#[test]
fn rust_hints() -> Result<()> {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--message-format=json", "-p", "farmem-hints", "--example", "scattered"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()?;
    ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let text = String::from_utf8_lossy(&built.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let program = messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back();
    let program = Command::new(program.context("cargo named no executable")?);
    for transport in ["shm", "tcp"] {
        let far = Far::local("4M").with(&["--transport", transport]);
        let (_, _, stats) = same_as_native(&program, &far, LIMIT)?;
        ensure!(counter(&stats, "hinted") > 1000, "{transport}: {stats}");
    }
    Ok(())
}

/// `--sites` names the functions that wait, with how they use memory; of a stripped program, places in its file.
#[test]
fn sites_name_the_functions_that_wait() -> Result<()> {
    for (transport, flags) in [("shm", &[][..]), ("tcp", &["-no-pie"]), ("shm", &["-s"])] {
        let program = Command::new(compile::c("waits", flags)?);
        let far = Far::local("4M").with(&["--transport", transport, "--sites"]);
        let (_, _, stats) = same_as_native(&program, &far, LIMIT)?;
        let sites = &stats["sites"];
        let most = sites["most"].as_array().context("no sites")?;
        let by = |name: &str| {
            let site = most.iter().find(|site| site["function"].as_str().is_some_and(|f| f.starts_with(name)));
            site.with_context(|| format!("{transport}, {flags:?}: no {name}; {sites}"))
        };
        if flags == ["-s"] {
            ensure!(by("waits-")?["function"].as_str().is_some_and(|name| name.contains("+0x")), "{sites}");
            continue;
        }
        for (name, pattern) in [("jumps", "random"), ("walks", "sequential")] {
            let site = by(name)?;
            ensure!(site["pattern"] == pattern, "{name}: {sites}");
            ensure!(site["line"].as_str().is_some_and(|line| line.starts_with("waits.c:")), "{name}: {sites}");
        }
        let (jumps, walks) = (by("jumps")?, by("walks")?);
        let count = |site: &serde_json::Value, what: &str| site[what].as_u64().unwrap_or(0);
        // In the parent and in the child; five sixths of the pages are away.
        ensure!(count(jumps, "faults") > 2 * 6000 * 7 / 10, "{sites}");
        ensure!(count(jumps, "faults") > 2 * count(walks, "faults"), "{sites}");
        ensure!(count(by("writes")?, "writes") > 0 && count(walks, "writes") == 0, "{sites}");
        let all: u64 = most.iter().map(|site| count(site, "wait_ns")).sum();
        ensure!(all <= count(sites, "wait_ns") && count(sites, "faults") <= counter(&stats, "faults"), "{stats}");
    }
    Ok(())
}

#[test]
fn sites_are_told_to_people() -> Result<()> {
    let program = Command::new(compile::c("waits", &[])?);
    let mut command = Command::new(farmem_tests::farmem::binary());
    command.args(["run", "--no-settings", "--local", "4M", "--sites", "--"]).arg(program.get_program());
    let said = process::run(command, LIMIT)?.success()?.stderr;
    let told = |what: &str| said.lines().any(|line| line.contains(what));
    ensure!(told("farmem: where the program waited: ") && told("random       jumps, waits.c:"), "{said}");
    let mut command = Command::new(farmem_tests::farmem::binary());
    command.args(["run", "--no-settings", "--sites", "--fault", "thread", "--", "true"]);
    let refused = process::run(command, LIMIT)?;
    ensure!(refused.code() == 64 && refused.stderr.lines().count() == 1, "{}", refused.stderr);
    Ok(())
}
