//! System calls that are forbidden from outside, as container profiles and sandboxes do. They are
//! forbidden one by one, by each of the two errors that such profiles answer. A command that needs a
//! call refuses to begin without it, in one line that names the call. Without the others it runs, and
//! its output is the native one.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farmem_sys::probe::{AGENT, COMMON, Call, EARLY, NODE, RUN};
use farmem_tests::compile;
use farmem_tests::farmem::binary;
use farmem_tests::process::{self, Outcome};

const LIMIT: Duration = Duration::from_secs(60);
const ERRORS: [i32; 2] = [libc::EPERM, libc::ENOSYS];

/// Calls that a run is better for, and does without.
const SPARED: [(&str, i64); 14] = [
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("process_vm_writev", libc::SYS_process_vm_writev),
    ("process_madvise", libc::SYS_process_madvise),
    ("vmsplice", libc::SYS_vmsplice),
    ("sysinfo", libc::SYS_sysinfo),
    ("sched_yield", libc::SYS_sched_yield),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("kcmp", libc::SYS_kcmp),
    ("seccomp", libc::SYS_seccomp),
    ("personality", libc::SYS_personality),
    ("statx", libc::SYS_statx),
    ("faccessat2", libc::SYS_faccessat2),
    ("close_range", libc::SYS_close_range),
    ("sched_getaffinity", libc::SYS_sched_getaffinity),
];

/// A command under a filter that has this call fail by this error.
fn without(nr: i64, error: i32, command: &Command) -> Result<Command> {
    let mut filtered = Command::new(compile::c("forbids", &[])?);
    filtered.args([error.to_string(), nr.to_string()]).arg(command.get_program()).args(command.get_args());
    Ok(filtered)
}

fn farmem(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments);
    command
}

/// Fails unless it has said that it cannot do without the call, and nothing else. Without some calls
/// no program begins or says anything, with farmem or not: then it must end all the same.
fn is_refused(outcome: &Outcome, (name, nr, error): (&str, i64, i32)) -> Result<()> {
    let mut echo = Command::new("echo");
    echo.arg("begun");
    if process::run(without(nr, error, &echo)?, LIMIT)?.stdout != b"begun\n" {
        ensure!(outcome.code() != 0 && outcome.stdout.is_empty(), "{outcome:?}");
        return Ok(());
    }
    let told = outcome.stderr.starts_with("farmem: ")
        && outcome.stderr.lines().count() == 1
        && outcome.stderr.contains(&format!(" {name} "));
    ensure!(outcome.code() == 64 && outcome.stdout.is_empty() && told, "{outcome:?}");
    Ok(())
}

/// Each call of some tables once, by name.
fn each(tables: &[&[Call]]) -> BTreeMap<&'static str, i64> {
    tables.iter().flat_map(|calls| calls.iter().map(|call| (call.name, call.nr))).collect()
}

/// Tries all of these on two threads; every failure, by name.
fn all(of: Vec<(&'static str, i64, i32)>, one: impl Fn(&str, i64, i32) -> Result<()> + Sync) -> Result<()> {
    let (left, failed) = (Mutex::new(of.into_iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((name, nr, error)) = { left.lock().unwrap().next() } {
                    if let Err(e) = one(name, nr, error).with_context(|| format!("{name} by {error}")) {
                        failed.lock().unwrap().push(format!("{e:#}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

fn by_each_error(calls: impl IntoIterator<Item = (&'static str, i64)>) -> Vec<(&'static str, i64, i32)> {
    calls.into_iter().flat_map(|(name, nr)| ERRORS.map(|error| (name, nr, error))).collect()
}

#[test]
fn a_run_names_the_call_that_it_cannot_do_without() -> Result<()> {
    let run = farmem(&["run", "--local", "4M", "--stats", "none", "--", "echo", "begun"]);
    all(by_each_error(each(&[EARLY, COMMON, RUN, NODE])), |name, nr, error| {
        let outcome = process::run(without(nr, error, &run)?, LIMIT)?;
        // Libc takes `clone` where `clone3` is unknown.
        if (name, error) == ("clone3", libc::ENOSYS) {
            ensure!(outcome.stdout == b"begun\n", "{outcome:?}");
            return Ok(());
        }
        is_refused(&outcome, (name, nr, error))
    })
}

#[test]
fn a_run_does_without_the_others() -> Result<()> {
    let program = compile::c("does_all", &[])?;
    let program = program.to_str().context("a path that is text")?;
    for transport in ["shm", "tcp"] {
        let run = farmem(&["run", "--local", "4M", "--transport", transport, "--stats", "none", "--", program]);
        all(by_each_error(SPARED), |_, nr, error| {
            let native = process::run(without(nr, error, &Command::new(program))?, LIMIT)?;
            let far = process::run(without(nr, error, &run)?, LIMIT)?;
            let ends = |outcome: &Outcome| (outcome.code(), outcome.stdout.clone(), outcome.stderr.clone());
            ensure!(ends(&native) == ends(&far), "{transport}: natively {native:?}\n{far:?}");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_node_and_an_agent_name_theirs() -> Result<()> {
    let node = farmem(&["node", "--lend", "64M", "--listen", "127.0.0.1:0"]);
    let agent = farmem(&["agent", "--lend", "64M"]);
    let [of_node, of_agent] = [&[EARLY, COMMON, NODE][..], &[EARLY, COMMON, NODE, AGENT][..]].map(each);
    for (command, calls) in [(&node, of_node), (&agent, of_agent)] {
        let needed = by_each_error(calls).into_iter().filter(|call| (call.0, call.2) != ("clone3", libc::ENOSYS));
        all(needed.collect(), |name, nr, error| {
            is_refused(&process::run(without(nr, error, command)?, LIMIT)?, (name, nr, error))
        })?;
    }
    Ok(())
}
