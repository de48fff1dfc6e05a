//! Hot paths do not grow unnoticed: their instructions, counted by valgrind. Uses of local far
//! objects are stepped through.
//!
//! A clock on a shared machine cannot see two per cent; a count of instructions
//! is the same on every run. What may change, and how: docs/design/bench.md.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use farmem_sys::ptrace::{self, Follow, Remote, Told};
use farmem_tests::farmem::built;

/// The paths, and how many times one is gone through; counts are of the second that many.
const PATHS: [(&str, u64); 10] = [
    ("fault", 40_000),
    ("leave", 100),
    ("policy", 200),
    ("prefetch-random", 20_000),
    ("prefetch-sequential", 20_000),
    ("frame", 20_000),
    ("read-shm", 5_000),
    ("lines", 2_000),
    ("record", 50),
    ("allocate", 20_000),
];
/// Around a count that the same compiler gave.
const SLACK: f64 = 0.05;
/// Around one that another gave: a guard against doubling, no more.
const SLACK_OF_ANOTHER: f64 = 0.25;

fn counts_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("lab").join("instructions/counts.txt")
}

/// The compiler, and by path its count.
fn kept() -> Result<(String, BTreeMap<String, f64>)> {
    let text = std::fs::read_to_string(counts_file())?;
    let mut compiler = String::new();
    let mut counts = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (name, rest) = line.split_once(' ').with_context(|| format!("counts.txt: {line:?}"))?;
        match name {
            "compiler" => compiler = rest.trim().to_owned(),
            _ => drop(counts.insert(name.to_owned(), rest.trim().parse().with_context(|| line.to_owned())?)),
        }
    }
    Ok((compiler, counts))
}

/// Instructions of a whole run.
fn collected(program: &Path, path: &str, times: u64) -> Result<u64> {
    let out = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([path, &times.to_string()])
        .output()?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{path} under valgrind: {said}");
    let count = said.lines().find_map(|line| line.split_once("Collected : ")).map(|(_, count)| count.trim().parse());
    Ok(count.with_context(|| format!("valgrind counted nothing: {said}"))??)
}

fn compiler() -> Result<String> {
    let out = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("--version").output()?;
    Ok(String::from_utf8(out.stdout)?.trim().to_owned())
}

#[test]
fn hot_paths_take_no_more_instructions_than_they_did() -> Result<()> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: instruction counts: valgrind is not installed (sh tests/peers.sh installs it)");
        return Ok(());
    }
    let program = built("farmem-instructions", "hot-paths")?;
    let (kept_by, kept) = kept()?;
    let compiler = compiler()?;
    let slack = if kept_by == compiler { SLACK } else { SLACK_OF_ANOTHER };
    let (mut table, mut wrong) = (format!("compiler {compiler}\n"), Vec::new());
    for (path, times) in PATHS {
        let (once, twice) = (collected(&program, path, times)?, collected(&program, path, 2 * times)?);
        let count = twice.saturating_sub(once) as f64 / times as f64;
        table += &format!("{path} {count:.1}\n");
        match kept.get(path) {
            Some(&kept) if (count / kept - 1.0).abs() <= slack => {}
            Some(kept) => wrong.push(format!("{path}: {count:.1}, was {kept:.1}")),
            None => wrong.push(format!("{path}: {count:.1}, was never counted")),
        }
    }
    ensure!(
        wrong.is_empty(),
        "{}\nIf that is meant, put this into {} and say why in the commit:\n{table}",
        wrong.join("\n"),
        counts_file().display()
    );
    Ok(())
}

/// The bytes of the instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// The next report of a process that is traced.
fn next(pid: u32) -> Result<Told> {
    loop {
        if let Some((_, told)) = ptrace::told_by(pid as i32)? {
            return Ok(told);
        }
        std::thread::yield_now();
    }
}

/// Steps through one turn of a program that stands in a read. Returns the instructions to its next
/// system call.
fn turn(child: &mut Child) -> Result<u64> {
    let pid = child.id();
    ptrace::interrupt(pid)?;
    ensure!(next(pid)? == Told::Trap, "it was not reading");
    child.stdin.as_mut().context("its input")?.write_all(b"x")?;
    // The first step ends the read.
    ptrace::step(pid)?;
    ensure!(matches!(next(pid)?, Told::Signal(libc::SIGTRAP)), "it took no step");
    let mut steps = 0;
    let mut code = [0; 2];
    loop {
        let start = ptrace::registers(pid)?.rip;
        ensure!(ptrace::read(pid, &[Remote { start, len: 2 }], &mut code)? == 2);
        if code == SYSCALL {
            ptrace::detach(pid, 0)?;
            return Ok(steps);
        }
        ptrace::step(pid)?;
        match next(pid)? {
            Told::Signal(libc::SIGTRAP) => steps += 1,
            told => bail!("it took no step: {told:?}"),
        }
    }
}

/// Instructions of one turn of `local-uses`, which uses this many objects so many times each.
fn stepped(program: &Path, kind: &str, uses: u64, rounds: u64) -> Result<u64> {
    let mut command = Command::new(program);
    command.args([kind, &uses.to_string(), &rounds.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    // The first turn loads pages, and binds functions.
    child.stdin.as_mut().context("its input")?.write_all(b"x")?;
    child.stdout.as_mut().context("its output")?.read_exact(&mut [0])?;
    while !std::fs::read_to_string(format!("/proc/{}/syscall", child.id()))?.starts_with("0 0x0 ") {
        ensure!(child.try_wait()?.is_none(), "it ended early");
        std::thread::yield_now();
    }
    ptrace::seize(child.id(), Follow { forks: false })?;
    let steps = turn(&mut child)?;
    drop(child.stdin.take());
    ensure!(child.wait()?.success());
    Ok(steps)
}

/// From the box to the address of its value, in a scope of 64 objects: the first use by a scope, and
/// further ones. In a heap of one thread each leaves the scope's stamp.
#[test]
fn a_use_of_a_local_object_takes_eight_instructions() -> Result<()> {
    let program = built("farmem-instructions", "local-uses")?;
    let once = |kind| stepped(&program, kind, 64, 1);
    // What the 65th to the 128th object take, and what 64 take that were used before.
    let first = |kind| Ok::<_, anyhow::Error>((stepped(&program, kind, 128, 1)? - once(kind)?) as f64 / 64.0);
    let again = |kind| {
        Ok::<_, anyhow::Error>((stepped(&program, kind, 64, 3)? - stepped(&program, kind, 64, 2)?) as f64 / 64.0)
    };
    let near = (first("near")?, again("near")?);
    for (kind, most) in [("far", (8.0, 8.0)), ("shared", (8.0, 8.0))] {
        // A near use is one: the load of the address. A turn's own few instructions are not 64
        // objects'.
        let (first, again) = (first(kind)? - near.0 + 1.0, again(kind)? - near.1 + 1.0);
        println!("{kind}: the first use by a scope {first:.2} instructions, each further {again:.2}");
        ensure!(first < most.0 + 0.3 && again < most.1 + 0.3, "{kind}: {first:.2} and {again:.2} instructions");
    }
    Ok(())
}
