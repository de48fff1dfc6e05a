//! How whole runs end: real programs, real nodes, real kills.
//!
//! | file | what happens |
//! |---|---|
//! | `start.rs` | no node that could be used |
//! | `lost.rs` | the node dies, is cut off, is stopped, is started anew, while the program works |
//! | `silent.rs` | the network between goes silent |
//! | `memory.rs` | far memory runs out; nobody takes more than was promised |
//! | `programs.rs` | the program's own ends, and what they leave behind |
//! | `beside.rs` | a process that shares the program's memory is killed |
//! | `nodes.rs` | the node's own ends, its other clients, its idleness |
//! | `mirror.rs` | two copies of far memory, of which one is lost |
//! | `sealed.rs` | nodes that are not trusted |
//! | `nonces.rs` | whether a key seals two things under one number |
//! | `parity.rs` | parity over several nodes, of which one or two are lost |
//! | `controllers.rs` | controllers and their etcd die under a rack |
//!
//! The program is `programs/keeps_checking.c`, which knows what every word of its
//! memory must be and looks all the time. Endings that take their time run side by
//! side within one test.

mod beside;
mod controllers;
mod disk;
mod hostile;
mod lost;
mod memory;
mod mirror;
mod nodes;
mod nonces;
mod parity;
mod programs;
mod proxy;
mod sealed;
mod silent;
mod start;
mod thief;

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::{Far, Node, split_stats};
use farmem_tests::lost::Lost;
use farmem_tests::process::{self, Outcome, Running, eventually};

/// Longer than anything here takes on a machine that is busy with other things.
const LIMIT: Duration = Duration::from_secs(60);

/// The two ways in which bytes move.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Shm,
    Tcp,
}

/// How `keeps_checking` works.
const BUSY: &[&str] = &["32", "4"];
const FORKED: &[&str] = &["32", "2", "fork"];
const IDLE: &[&str] = &["32", "1", "idle"];

const BOTH: [By; 2] = [By::Shm, By::Tcp];

impl By {
    fn address(self, node: &Node) -> String {
        match self {
            By::Shm => node.by_shm(),
            By::Tcp => node.by_tcp(),
        }
    }

    fn option(self) -> &'static str {
        match self {
            By::Shm => "shm",
            By::Tcp => "tcp",
        }
    }

    /// A run with this much local memory, on a node at this address.
    fn far(self, local: &str, address: &str) -> Far {
        Far::local(local).with(&["--transport", self.option()]).on(address)
    }
}

/// `keeps_checking` with these arguments.
fn checker(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(compile::c("keeps_checking", &[])?);
    command.args(arguments);
    Ok(command)
}

/// `keeps_checking` at work, under its supervisor.
struct Work {
    run: Running,
    program: i32,
    /// 0 without `fork`.
    child: i32,
}

impl Work {
    /// Starts it and waits until all its memory is written.
    fn start(far: &Far, arguments: &[&str]) -> Result<Work> {
        Work::of(process::spawn(far.command(&checker(arguments)?))?)
    }

    fn of(run: Running) -> Result<Work> {
        let mut ids = None;
        eventually(LIMIT, || {
            let said = String::from_utf8_lossy(&run.stdout()).into_owned();
            let mut words = said.strip_prefix("ready ").filter(|s| s.contains('\n')).unwrap_or("").split_whitespace();
            ids = words.next().zip(words.next()).and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            ids.is_some() || !run.alive()
        });
        let (program, child) = ids.with_context(|| format!("the program is not ready: {}", run.stderr()))?;
        Ok(Work { run, program, child })
    }

    /// Lets it finish, and fails unless all of its memory is as it was written.
    fn sound(self) -> Result<Outcome> {
        process::send(self.program, libc::SIGUSR1);
        let outcome = self.run.wait(LIMIT)?;
        let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
        let (_, rest) = split_stats(&outcome.stderr);
        ensure!(outcome.code() == 0 && said.contains("\nsound ") && said.contains(" child 0"), "{outcome:?}");
        ensure!(rest.is_empty(), "a sound run complains: {rest}");
        Ok(outcome)
    }

    /// [`Work::sound`] of a program whose node is gone: each process may say so in a line.
    fn sound_without(self, node: &str) -> Result<()> {
        let processes = 1 + (self.child != 0) as usize;
        let told = || self.run.stderr().contains("the program goes on") || !self.run.alive();
        ensure!(eventually(LIMIT, told), "nobody says that the node is gone");
        process::send(self.program, libc::SIGUSR1);
        let outcome = self.run.wait(LIMIT)?;
        let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
        let (stats, rest) = split_stats(&outcome.stderr);
        ensure!(outcome.code() == 0 && said.contains("\nsound ") && said.contains(" child 0"), "{outcome:?}");
        ensure!((1..=processes).contains(&rest.lines().count()), "not one line each: {rest}");
        for line in rest.lines() {
            let told = line.contains(node) && line.contains("its process has ended; the program goes on");
            ensure!(line.starts_with("farmem: ") && told, "{line}");
        }
        let lost = stats.as_ref().and_then(|stats| stats["nodes_lost"].as_u64());
        ensure!(lost == Some(rest.lines().count() as u64), "{stats:?}");
        Ok(())
    }

    /// Waits for the end that the runtime makes because of its node: within `limit` after `since`, with
    /// this status, and one line that names `node` and `reason` from each process that there was.
    fn ended(self, since: Instant, limit: Duration, status: i32, node: &str, reason: &str) -> Result<Duration> {
        let processes = 1 + (self.child != 0) as usize;
        let child = self.child;
        let (outcome, lost) = self.run.wait_counting(LIMIT)?;
        let took = since.elapsed();
        ensure!(took.saturating_sub(lost) < limit, "the run took {took:?} to end, {lost:?} without a CPU: {outcome:?}");
        ensure!(outcome.code() == status, "status {}: {outcome:?}", outcome.code());
        let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
        ensure!(!said.contains("WRONG") && !said.contains("sound"), "{outcome:?}");
        if child != 0 {
            let left = (limit + lost).saturating_sub(since.elapsed());
            ensure!(Lost::by(&[child]).eventually(left, || !process::alive(child)), "the forked child lives on");
        }
        let (_, rest) = split_stats(&outcome.stderr);
        ensure!((1..=processes).contains(&rest.lines().count()), "not one line each: {rest}");
        for line in rest.lines() {
            ensure!(line.starts_with("farmem: ") && line.contains(node) && line.contains(reason), "{line}");
        }
        Ok(took)
    }
}

/// One of those that [`together`] runs.
struct Scenario {
    name: String,
    run: Box<dyn FnOnce() -> Result<()> + Send>,
}

fn scenario(name: impl ToString, run: impl FnOnce() -> Result<()> + Send + 'static) -> Scenario {
    Scenario { name: name.to_string(), run: Box::new(run) }
}

/// Runs scenarios side by side; fails with all that failed.
fn together(scenarios: Vec<Scenario>) -> Result<()> {
    let failures: Vec<String> = std::thread::scope(|scope| {
        let started: Vec<_> = scenarios.into_iter().map(|s| (s.name, scope.spawn(s.run))).collect();
        let ended = started.into_iter().map(|(name, thread)| match thread.join() {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(format!("{name}: {e:#}")),
            Err(_) => Some(format!("{name}: panicked")),
        });
        ended.flatten().collect()
    });
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}
