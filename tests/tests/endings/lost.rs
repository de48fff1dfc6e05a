//! The node is lost, or only seems to be, while the program works.

use std::io::{PipeWriter, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::{Far, Node, split_stats};
use farmem_tests::lost::Lost;
use farmem_tests::process::{self, Running, eventually};

use crate::proxy::Proxy;
use crate::{BOTH, By, LIMIT, Work, scenario, together};

/// Within this a program ends whose node was killed.
const SOON: Duration = Duration::from_secs(2);

fn killed(by: By, arguments: &[&str]) -> Result<()> {
    let node = Node::start("256M", &[])?;
    let address = by.address(&node);
    let work = Work::start(&by.far("4M", &address), arguments)?;
    process::kill(node.running.pid());
    work.ended(Instant::now(), SOON, 70, &address, "its process has ended")
        .with_context(|| format!("{by:?} {arguments:?}"))
        .map(|_| ())
}

/// What a node on this machine has lent stays mapped when its process has ended: the program goes on, and says so.
#[test]
fn a_killed_node_on_this_machine_loses_no_byte() -> Result<()> {
    let goes_on = |nodes: usize, arguments: &'static [&'static str]| {
        scenario(format!("{nodes} {arguments:?}"), move || {
            let nodes: Vec<Node> = (0..nodes).map(|_| Node::start("256M", &[])).collect::<Result<_>>()?;
            let address = By::Shm.address(&nodes[0]);
            let far = nodes[1..].iter().fold(By::Shm.far("4M", &address), |far, node| far.on(&By::Shm.address(node)));
            let work = Work::start(&far, arguments)?;
            process::kill(nodes[0].running.pid());
            std::thread::sleep(SOON);
            ensure!(work.run.alive(), "{}", work.run.stderr());
            work.sound_without(&address)
        })
    };
    together(vec![
        goes_on(1, &["32", "4"]),
        goes_on(1, &["32", "1", "idle"]),
        goes_on(2, &["32", "2", "fork"]),
        goes_on(2, &["140", "2"]),
    ])
}

#[test]
fn a_killed_node_ends_the_program_at_once_over_tcp() -> Result<()> {
    killed(By::Tcp, &["32", "4"])?;
    killed(By::Tcp, &["32", "2", "fork"])?;
    killed(By::Tcp, &["32", "1", "idle"])
}

#[test]
fn a_killed_embedded_node_is_as_any_other() -> Result<()> {
    for by in BOTH {
        let far = Far::local("4M").with(&["--far", "256M", "--transport", by.option()]);
        let work = Work::start(&far, &["32", "3"])?;
        let children = process::tree(work.run.pid());
        let node = children.into_iter().find(|&pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.windows(10).any(|word| word == b"--embedded")
        });
        process::kill(node.context("no embedded node")?);
        let since = Instant::now();
        match by {
            By::Shm => {
                std::thread::sleep(SOON);
                work.sound_without("memory node ")?;
            }
            By::Tcp => {
                work.ended(since, SOON, 70, "memory node ", "its process has ended")?;
            }
        }
    }
    Ok(())
}

#[test]
fn of_two_nodes_the_lost_one_is_named() -> Result<()> {
    let by = By::Tcp;
    let nodes = [Node::start("128M", &[])?, Node::start("128M", &[])?];
    let far = by.far("4M", &by.address(&nodes[0])).on(&by.address(&nodes[1]));
    let work = Work::start(&far, &["140", "2"])?;
    process::kill(nodes[1].running.pid());
    work.ended(Instant::now(), SOON, 70, &by.address(&nodes[1]), "its process has ended").map(|_| ())
}

#[test]
fn a_node_started_anew_is_another() -> Result<()> {
    let node = Node::start("256M", &[])?;
    let (at, address) = (node.tcp, node.by_tcp());
    let work = Work::start(&By::Tcp.far("4M", &address), &["32", "3"])?;
    drop(node);
    let _again = Node::start_at(at, "256M", &[])?;
    // Which of the two the program finds depends on who is faster.
    work.ended(Instant::now(), SOON, 70, &address, "is lost: it").map(|_| ())
}

/// Of programs whose cuts heal: this machine may hold up whoever heals them.
const PATIENT: &[&str] = &["--grace", "60s"];

#[test]
fn a_cut_that_heals_within_the_grace_changes_nothing() -> Result<()> {
    let heals = |arguments: &'static [&'static str], options: &'static [&'static str]| {
        scenario(format!("{arguments:?} {options:?}"), move || {
            let node = Node::start("256M", &[])?;
            let proxy = Proxy::before(node.tcp)?;
            let far = By::Tcp.far("4M", &proxy.at.to_string()).with(PATIENT).with(options);
            let work = Work::start(&far, arguments)?;
            for down in [1500, 20, 0, 300] {
                proxy.cut();
                std::thread::sleep(Duration::from_millis(down));
                proxy.restore();
                std::thread::sleep(Duration::from_millis(300));
                ensure!(work.run.alive(), "{}", work.run.stderr());
            }
            work.sound().map(|_| ())
        })
    };
    together(vec![
        heals(&["32", "4"], &[]),
        heals(&["32", "2", "fork"], &[]),
        heals(&["32", "1", "idle"], &[]),
        heals(&["32", "2"], &["--fault", "thread"]),
        // Every fourth changed line is overlooked, so that the node refuses pages all the time: some of what it said is
        // lost in a cut, and records that it has carried out go again.
        heals(&["32", "2"], &["--dirty", "lines", "--mask", "changes"]),
        heals(&["32", "2", "fork"], &["--mask", "changes"]),
    ])
}

/// What a vfork child restores is its own; its parent, with whose memory it does that, restores for itself.
#[test]
fn a_cut_while_a_vfork_child_works_changes_nothing() -> Result<()> {
    cut_at_each_pause("vfork_beside", "256M", &"paused\nchild 3, wrong 0\n".repeat(3))
}

/// What it restores a connection by, a program that has confined itself may still do.
#[test]
fn a_cut_of_a_confined_program_changes_nothing() -> Result<()> {
    cut_at_each_pause("confined_grows", "512M", "paused\npaused\npaused\nwrong 0\n")
}

/// A program that pauses three times, whose connections are cut and restored each time.
fn cut_at_each_pause(program: &str, lend: &str, expected: &str) -> Result<()> {
    let mut program = Command::new(compile::c(program, &[])?);
    program.arg("pauses");
    let node = Node::start(lend, &[])?;
    let proxy = Proxy::before(node.tcp)?;
    let mut command = By::Tcp.far("4M", &proxy.at.to_string()).with(PATIENT).command(&program);
    let (input, mut words) = std::io::pipe()?;
    command.stdin(Stdio::from(input));
    let run = process::spawn(command)?;
    for round in 1..=3 {
        let pauses = || String::from_utf8_lossy(&run.stdout()).matches("paused").count() == round;
        ensure!(eventually(4 * LIMIT, pauses), "round {round}: {}", run.stderr());
        proxy.cut();
        proxy.restore();
        words.write_all(b"x")?;
    }
    let outcome = run.wait(4 * LIMIT)?;
    ensure!(outcome.code() == 0 && String::from_utf8_lossy(&outcome.stdout) == expected, "{outcome:?}");
    ensure!(split_stats(&outcome.stderr).1.is_empty(), "{outcome:?}");
    Ok(())
}

#[test]
fn a_cut_that_stays_ends_the_program_after_the_grace() -> Result<()> {
    let stays = |arguments: &'static [&'static str]| {
        scenario(format!("{arguments:?}"), move || {
            let node = Node::start("256M", &[])?;
            let proxy = Proxy::before(node.tcp)?;
            let address = proxy.at.to_string();
            let far = By::Tcp.far("4M", &address).with(&["--grace", "1s"]);
            let work = Work::start(&far, arguments)?;
            let since = Instant::now();
            proxy.cut();
            let limit = Duration::from_secs(3);
            let took = work.ended(since, limit, 70, &address, "could not be restored within 1s")?;
            ensure!(took >= Duration::from_secs(1), "the grace was not waited for: {took:?}");
            // The node has given up, too.
            let freed = || node.metric("farmem_node_lent_bytes").is_ok_and(|lent| lent == 0.0);
            let mut lost = Lost::by(&[node.running.pid()]);
            ensure!(lost.eventually(Duration::from_secs(3), freed), "{}", node.metrics()?);
            Ok(())
        })
    };
    together(vec![stays(&["32", "4"]), stays(&["32", "2", "fork"]), stays(&["32", "1", "idle"])])
}

#[test]
fn a_stopped_node_is_waited_for() -> Result<()> {
    let stopped = |by: By, arguments: &'static [&'static str]| {
        scenario(format!("{by:?} {arguments:?}"), move || {
            let node = Node::start("256M", &[])?;
            let work = Work::start(&by.far("4M", &by.address(&node)), arguments)?;
            node.running.signal(libc::SIGSTOP);
            std::thread::sleep(Duration::from_secs(5));
            ensure!(work.run.alive(), "{}", work.run.stderr());
            node.running.signal(libc::SIGCONT);
            std::thread::sleep(Duration::from_millis(200));
            work.sound().map(|_| ())
        })
    };
    together(vec![
        stopped(By::Shm, &["32", "2", "fork"]),
        stopped(By::Tcp, &["32", "2", "fork"]),
        stopped(By::Tcp, &["32", "4"]),
    ])
}

#[test]
fn the_programs_end_does_not_wait_for_the_node() -> Result<()> {
    for by in BOTH {
        for signal in [libc::SIGSTOP, libc::SIGKILL] {
            let node = Node::start("256M", &[])?;
            let (run, word) = shell(&by.far("16M", &by.address(&node)), "exit 3")?;
            match signal {
                libc::SIGKILL => process::kill(node.running.pid()),
                _ => node.running.signal(signal),
            }
            let since = Instant::now();
            drop(word);
            let (outcome, lost) = run.wait_counting(LIMIT)?;
            let took = since.elapsed().saturating_sub(lost);
            ensure!(outcome.code() == 3, "{outcome:?}");
            ensure!(took < Duration::from_millis(2500), "{by:?} {signal}: {took:?}");
            node.running.signal(libc::SIGCONT);
        }
    }
    Ok(())
}

/// A shell that says "up", waits for its input to end, and then does the rest.
fn shell(far: &Far, rest: &str) -> Result<(Running, PipeWriter)> {
    let mut program = Command::new("sh");
    program.args(["-c", &format!("echo up; read word; {rest}")]);
    let mut command = far.command(&program);
    let (input, word) = std::io::pipe()?;
    command.stdin(Stdio::from(input));
    let run = process::spawn(command)?;
    ensure!(eventually(LIMIT, || run.stdout() == b"up\n"), "{}", run.stderr());
    Ok((run, word))
}

/// Programs that a run starts while its node is cut off, stopped, or going down, join it all the same.
#[test]
fn programs_that_a_run_starts_wait_for_the_node_too() -> Result<()> {
    let rest = "/bin/echo one; (/bin/echo two); exec sh -c 'echo three; exit 3'";
    let goes_on = move |run: Running| {
        let outcome = run.wait(LIMIT)?;
        ensure!(outcome.code() == 3 && outcome.stdout == b"up\none\ntwo\nthree\n", "{outcome:?}");
        ensure!(split_stats(&outcome.stderr).1.is_empty(), "{outcome:?}");
        Ok(())
    };
    let cut = move || {
        let node = Node::start("256M", &[])?;
        let proxy = Proxy::before(node.tcp)?;
        let (run, word) = shell(&By::Tcp.far("16M", &proxy.at.to_string()).with(PATIENT), rest)?;
        proxy.cut();
        drop(word);
        std::thread::sleep(Duration::from_millis(1500));
        proxy.restore();
        goes_on(run)
    };
    let stopped = move || {
        let node = Node::start("256M", &[])?;
        let (run, word) = shell(&By::Tcp.far("16M", &node.by_tcp()), rest)?;
        node.running.signal(libc::SIGSTOP);
        drop(word);
        std::thread::sleep(Duration::from_millis(5500));
        node.running.signal(libc::SIGCONT);
        goes_on(run)
    };
    let draining = move || {
        let node = Node::start("256M", &["--grace", "60s"])?;
        let (run, word) = shell(&By::Shm.far("16M", &node.by_shm()), rest)?;
        node.running.signal(libc::SIGTERM);
        ensure!(eventually(LIMIT, || node.running.stderr().contains("going down")));
        drop(word);
        goes_on(run)
    };
    together(vec![scenario("cut", cut), scenario("stopped", stopped), scenario("draining", draining)])
}

#[test]
fn a_program_that_a_run_starts_and_that_cannot_join_ends_with_72() -> Result<()> {
    for by in BOTH {
        let node = Node::start("256M", &[])?;
        let address = by.address(&node);
        let (run, word) = shell(&by.far("16M", &address), "exec echo ran")?;
        process::kill(node.running.pid());
        let since = Instant::now();
        drop(word);
        let (outcome, lost) = run.wait_counting(LIMIT)?;
        let took = since.elapsed().saturating_sub(lost);
        let (_, line) = split_stats(&outcome.stderr);
        ensure!(outcome.code() == 72 && outcome.stdout == b"up\n", "{outcome:?}");
        ensure!(line.lines().count() == 1 && line.contains(&address), "{line}");
        ensure!(took < SOON, "{took:?}, and {lost:?} without a CPU");
    }
    Ok(())
}
