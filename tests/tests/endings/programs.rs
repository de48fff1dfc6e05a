//! The program's own ends, and what they leave behind: nothing.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::{Far, Node};
use farmem_tests::lost::Lost;
use farmem_tests::process::{self, eventually};

use crate::{BOTH, By, LIMIT, Work, checker, scenario, together};

/// Within this a node has its memory back.
const SOON: Duration = Duration::from_secs(1);

/// `others`: processes that help, whose waiting for a CPU does not count either.
fn all_free(node: &Node, others: &[i32], within: Duration) -> Result<()> {
    let free = || node.metric("farmem_node_lent_bytes").is_ok_and(|lent| lent == 0.0);
    let all = [others, &[node.running.pid()]].concat();
    ensure!(Lost::by(&all).eventually(within, free), "the node still lends:\n{}", node.metrics()?);
    Ok(())
}

#[test]
fn a_killed_program_leaves_no_memory_at_the_node() -> Result<()> {
    for by in BOTH {
        let node = Node::start("256M", &[])?;
        let work = Work::start(&by.far("4M", &by.address(&node)), &["32", "3"])?;
        ensure!(node.metric("farmem_node_lent_bytes")? > 0.0);
        process::kill(work.program);
        all_free(&node, &[work.run.pid()], SOON)?;
        let outcome = work.run.wait(LIMIT)?;
        ensure!(outcome.status.signal() == Some(libc::SIGKILL), "{outcome:?}");
    }
    Ok(())
}

/// Supervisor and program together, as by a machine that runs out of memory. Over tcp nobody is left who
/// could tell the node that this was no cut: it waits for the run's grace and a second.
#[test]
fn a_run_killed_whole_leaves_no_memory_at_the_node() -> Result<()> {
    let killed = |by: By, within: Duration| {
        scenario(format!("{by:?}"), move || {
            let node = Node::start("256M", &[])?;
            let far = by.far("4M", &by.address(&node)).with(&["--grace", "500ms"]);
            let work = Work::start(&far, &["32", "2"])?;
            process::send(-work.run.pid(), libc::SIGKILL);
            let ended = || !process::alive(work.run.pid()) && !process::alive(work.program);
            ensure!(eventually(LIMIT, ended), "they do not end");
            all_free(&node, &[], within)
        })
    };
    together(vec![killed(By::Shm, SOON), killed(By::Tcp, Duration::from_millis(2500))])
}

#[test]
fn nothing_outlives_a_supervisor_that_is_killed() -> Result<()> {
    for by in BOTH {
        let far = Far::local("4M").with(&["--far", "256M", "--transport", by.option()]);
        let work = Work::start(&far, &["32", "2", "fork"])?;
        let all = process::tree(work.run.pid());
        ensure!(all.len() == 4, "supervisor, node, program and child are {all:?}");
        process::kill(work.run.pid());
        let gone = || all.iter().all(|&pid| !process::alive(pid));
        ensure!(Lost::by(&all).eventually(Duration::from_secs(2), gone), "{by:?}: of {all:?} some live on");
        let outcome = work.run.wait(LIMIT)?;
        ensure!(!String::from_utf8_lossy(&outcome.stdout).contains("WRONG"), "{outcome:?}");
    }
    Ok(())
}

#[test]
fn of_two_runs_on_one_node_a_killed_one_does_not_trouble_the_other() -> Result<()> {
    for by in BOTH {
        let node = Node::start("256M", &[])?;
        let far = by.far("4M", &by.address(&node));
        let (one, other) = (Work::start(&far, &["32", "2"])?, Work::start(&far, &["32", "2"])?);
        for pid in [one.program, one.run.pid()] {
            process::kill(pid);
        }
        std::thread::sleep(Duration::from_millis(300));
        // What the first one held is granted again.
        let third = Work::start(&far, &["32", "2"])?;
        other.sound()?;
        third.sound()?;
    }
    Ok(())
}

#[test]
fn signals_end_a_working_program_as_they_would_natively() -> Result<()> {
    let node = Node::start("256M", &[])?;
    for by in BOTH {
        let far = by.far("2M", &by.address(&node));
        // SIGBUS is the runtime's own way to hear of faults; one that a process sends is the program's.
        for signal in [libc::SIGTERM, libc::SIGBUS, libc::SIGSEGV, libc::SIGABRT] {
            let work = Work::start(&far, &["8", "3"])?;
            process::send(work.program, signal);
            let outcome = work.run.wait(LIMIT)?;
            ensure!(outcome.status.signal() == Some(signal), "{by:?} {signal}: {outcome:?}");
        }
        let work = Work::start(&far, &["8", "3"])?;
        work.run.signal(libc::SIGTERM);
        let outcome = work.run.wait(LIMIT)?;
        ensure!(outcome.status.signal() == Some(libc::SIGTERM), "{by:?}, to the supervisor: {outcome:?}");

        let outcome = process::run(far.command(&checker(&["8", "3", "crash"])?), LIMIT)?;
        ensure!(outcome.status.signal() == Some(libc::SIGSEGV), "{by:?}, a crash: {outcome:?}");
    }
    Ok(())
}

/// Typed at a terminal, which `script` provides.
#[test]
fn an_interrupt_from_the_terminal_reaches_the_program_once() -> Result<()> {
    let run = Far::local("2M").with(&["--far", "128M"]).command(&checker(&["8", "2"])?);
    let words: Vec<_> = std::iter::once(run.get_program()).chain(run.get_args()).collect();
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let mut command = Command::new("script");
    command.args(["-q", "-e", "-c", &format!("exec {}", words.join(" ")), "/dev/null"]);
    let (typed, mut keys) = std::io::pipe()?;
    command.stdin(Stdio::from(typed));
    let work = Work::of(process::spawn(command)?)?;
    // The second is typed when the program has heard the first: the kernel keeps one at most.
    let heard = || String::from_utf8_lossy(&work.run.stdout()).matches("interrupted").count();
    for typed in 1..=2 {
        keys.write_all(b"\x03")?;
        ensure!(eventually(LIMIT, || heard() == typed || !work.run.alive()), "{typed}: {}", work.run.stderr());
    }
    // If anybody passes an interrupt on, it comes within this.
    std::thread::sleep(Duration::from_millis(300));
    process::send(work.program, libc::SIGUSR1);
    let outcome = work.run.wait(LIMIT)?;
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    ensure!(outcome.code() == 0 && said.contains("sound interrupts 2 child 0"), "{outcome:?}");
    Ok(())
}

#[test]
fn a_static_program_is_refused() -> Result<()> {
    let program = Command::new(compile::c("keeps_checking", &["-static"])?);
    let outcome = process::run(Far::local("16M").command(&program), LIMIT)?;
    ensure!(outcome.code() == 64 && outcome.stdout.is_empty(), "{outcome:?}");
    ensure!(outcome.stderr.lines().count() == 1 && outcome.stderr.contains("is statically linked"), "{outcome:?}");
    Ok(())
}
