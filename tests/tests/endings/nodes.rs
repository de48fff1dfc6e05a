//! The node's own ends, its other clients, and its idleness.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use farmem_tests::farmem::{Far, Node, binary, free_port, lab};
use farmem_tests::lost::Lost;
use farmem_tests::process::{self, eventually};

use crate::{BOTH, BUSY, By, LIMIT, Work, hostile, scenario, together};

/// Nodes join a run and are taken out while a program does everything that programs do to memory.
#[test]
fn nodes_change_while_a_program_works() -> Result<()> {
    let dir = process::TempDir::new("node-file")?;
    let file = dir.path().join("nodes");
    let nodes = [Node::start("8G", &[])?, Node::start("8G", &[])?, Node::start("8G", &[])?];
    let lists = |nodes: &[String]| std::fs::write(&file, nodes.join("\n"));
    let lent = |node: &Node| node.metric("farmem_node_lent_bytes");
    // It begins with mapped memory alone.
    lists(&[nodes[0].by_shm()])?;
    let mut command = Command::new(binary());
    command.args(["run", "--local", "8M", "--stats", "json", "--node-file"]).arg(&file).arg("--").arg(lab());
    command.args(["torture-child", "--seed", "7", "--seconds", "20", "--threads", "3", "--mib", "24"]);
    let run = process::spawn(command)?;
    ensure!(eventually(LIMIT, || lent(&nodes[0]).is_ok_and(|lent| lent > 0.0)), "{}", run.stderr());
    std::thread::sleep(Duration::from_secs(2));
    // One over tcp joins, and the first is taken out.
    lists(&[nodes[1].by_tcp(), nodes[2].by_shm()])?;
    let joined = || lent(&nodes[1]).and_then(|lent1| Ok(lent1 + lent(&nodes[2])?)).is_ok_and(|lent| lent > 0.0);
    ensure!(eventually(LIMIT, joined), "{}", run.stderr());
    std::thread::sleep(Duration::from_secs(4));
    lists(&[nodes[0].by_tcp(), nodes[1].by_tcp()])?;
    let outcome = run.wait(2 * LIMIT)?;
    ensure!(outcome.code() == 0, "{outcome:?}");
    let (_, rest) = farmem_tests::farmem::split_stats(&outcome.stderr);
    ensure!(!rest.contains("lost") && !rest.contains("tried again"), "{rest}");
    Ok(())
}

/// A node of the list that is not up yet is tried again, and the one that it stands for is kept
/// until then.
#[test]
fn a_listed_node_that_comes_later_is_reached_then() -> Result<()> {
    let dir = process::TempDir::new("comes-later")?;
    let file = dir.path().join("nodes");
    let (first, at) = (Node::start("512M", &[])?, free_port()?);
    std::fs::write(&file, first.by_tcp())?;
    let far = Far::local("4M").with(&["--node-file", &file.display().to_string()]);
    let work = Work::start(&far, BUSY)?;
    std::fs::write(&file, at.to_string())?;
    let says = |text: &str| work.run.stderr().contains(text);
    ensure!(eventually(LIMIT, || says("tries again")), "{}", work.run.stderr());
    std::thread::sleep(Duration::from_millis(1500));
    ensure!(first.metric("farmem_node_lent_bytes")? > 0.0 && work.run.alive(), "{}", work.run.stderr());
    let second = Node::start_at(at, "512M", &[])?;
    let moved = || second.metric("farmem_node_lent_bytes").is_ok_and(|lent| lent > 0.0);
    ensure!(eventually(LIMIT, moved), "{}", work.run.stderr());
    process::send(work.program, libc::SIGUSR1);
    let outcome = work.run.wait(LIMIT)?;
    let (_, rest) = farmem_tests::farmem::split_stats(&outcome.stderr);
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    ensure!(outcome.code() == 0 && said.contains("\nsound ") && rest.lines().count() == 1, "{outcome:?}");
    Ok(())
}

/// SIGTERM with a run that does not end: new runs are refused (`start.rs`), the old one is served until
/// the grace is over; then the node says what is left, and the run ends as with any lost node.
#[test]
fn a_node_told_to_end_says_what_is_left() -> Result<()> {
    let told = |by: By| {
        scenario(format!("{by:?}"), move || {
            let node = Node::start("256M", &["--grace", "1500ms"])?;
            let address = by.address(&node);
            let work = Work::start(&by.far("4M", &address), &["32", "2"])?;
            let program = work.program;
            let since = Instant::now();
            node.running.signal(libc::SIGTERM);
            std::thread::sleep(Duration::from_secs(1));
            let waits = work.run.alive();
            // Whoever looks may have slept too long.
            let due = since.elapsed() >= Duration::from_millis(1500);
            ensure!(waits || due, "it did not wait: {}", work.run.stderr());
            let outcome = node.running.wait(Duration::from_secs(10))?;
            let took = since.elapsed();
            ensure!(outcome.code() == 0 && took >= Duration::from_millis(1500), "{took:?}: {outcome:?}");
            let said = &outcome.stderr;
            ensure!(said.contains("going down: waiting up to 1 s for 2 programs holding 64.0 MiB"), "{said}");
            ensure!(said.contains("going down with 64.0 MiB still held by 2 programs"), "{said}");
            let named =
                |line: &str| line.contains(&format!("process {program} of ")) && line.contains("holds 64.0 MiB");
            ensure!(said.lines().any(named), "{said}");
            match by {
                By::Tcp => {
                    work.ended(Instant::now(), Duration::from_secs(2), 70, &address, "its process has ended")?;
                    Ok(())
                }
                // Its memory stays mapped.
                By::Shm => work.sound_without(&address),
            }
        })
    };
    together(BOTH.map(told).into())
}

#[test]
fn a_second_signal_ends_a_node_at_once() -> Result<()> {
    let node = Node::start("256M", &["--grace", "60s"])?;
    let work = Work::start(&By::Shm.far("4M", &node.by_shm()), &["32", "2"])?;
    node.running.signal(libc::SIGTERM);
    ensure!(eventually(LIMIT, || node.running.stderr().contains("going down")));
    node.running.signal(libc::SIGTERM);
    ensure!(node.running.wait(Duration::from_secs(5))?.code() == 0);
    work.sound_without("memory node ")
}

#[test]
fn a_node_ends_with_its_terminal_but_not_under_nohup() -> Result<()> {
    for ignores in [false, true] {
        let dir = process::TempDir::new("terminal")?;
        let at = format!("unix:{}", dir.path().join("node.sock").display());
        let mut command = Command::new(binary());
        command.args(["node", "--lend", "64M", "--rdma", "off", "--listen", &at]);
        process::ignores(&mut command, libc::SIGHUP, ignores);
        let node = process::spawn(command)?;
        ensure!(eventually(LIMIT, || node.stderr().contains("lends")), "{}", node.stderr());
        node.signal(libc::SIGHUP);
        if ignores {
            let mut asks = Command::new(binary());
            asks.args(["status", &at]);
            process::run(asks, LIMIT)?.success()?;
            node.signal(libc::SIGTERM);
        }
        ensure!(node.wait(Duration::from_secs(5))?.code() == 0);
    }
    Ok(())
}

/// A foreground job is told twice that its terminal goes away, by the kernel and by its shell.
#[test]
fn a_terminal_that_goes_away_leaves_a_run_its_grace() -> Result<()> {
    let node = Node::start("256M", &["--grace", "60s"])?;
    let work = Work::start(&By::Shm.far("4M", &node.by_shm()), &["32", "2"])?;
    let waits = || std::fs::read_to_string(format!("/proc/{}/status", node.running.pid())).unwrap_or_default();
    for _ in 0..2 {
        node.running.signal(libc::SIGHUP);
        let heard = || waits().lines().any(|line| line == "ShdPnd:\t0000000000000000");
        ensure!(eventually(LIMIT, || node.running.stderr().contains("going down") && heard()), "{}", waits());
    }
    ensure!(node.metric("farmem_node_draining")? == 1.0 && work.run.alive());
    node.running.signal(libc::SIGTERM);
    ensure!(node.running.wait(Duration::from_secs(5))?.code() == 0);
    work.sound_without("memory node ")
}

#[test]
fn hostile_clients_do_not_trouble_a_run() -> Result<()> {
    let node = Node::start("256M", &[])?;
    let (stop, conversations) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let works = BOTH.map(|by| Work::start(&by.far("4M", &by.address(&node)), &["32", "2"]));
    let attackers: Vec<_> = (0..3)
        .map(|seed| {
            let (stop, conversations) = (Arc::clone(&stop), Arc::clone(&conversations));
            let (tcp, unix) = (node.tcp, node.unix.clone());
            std::thread::spawn(move || hostile::attack(seed, tcp, &unix, &conversations, &stop))
        })
        .collect();
    std::thread::sleep(Duration::from_secs(4));
    let broken = || node.metric("farmem_node_broken_connections_total").is_ok_and(|broken| broken > 10.0);
    let enough = eventually(LIMIT, || conversations.load(Ordering::Relaxed) > 100 && broken());
    stop.store(true, Ordering::Relaxed);
    attackers.into_iter().for_each(|thread| thread.join().expect("no panic"));
    ensure!(enough, "only {} conversations: {}", conversations.load(Ordering::Relaxed), node.metrics()?);
    ensure!(node.metric("farmem_node_lent_bytes_peak")? <= (256 << 20) as f64, "{}", node.metrics()?);
    for work in works {
        work?.sound()?;
    }
    // Nothing of the attackers' is left either.
    let free = || node.metric("farmem_node_lent_bytes").is_ok_and(|lent| lent == 0.0);
    ensure!(Lost::by(&[node.running.pid()]).eventually(Duration::from_secs(5), free), "{}", node.metrics()?);
    Ok(())
}

#[test]
fn an_idle_node_uses_no_cpu() -> Result<()> {
    let node = Node::start("256M", &[])?;
    let works = BOTH.map(|by| Work::start(&by.far("4M", &by.address(&node)), &["32", "2", "idle"]));
    // What the start left to do is done when nothing was used for as long as that would take.
    let pid = node.running.pid();
    let mut before = Duration::ZERO;
    let runs: Vec<i32> = works.iter().flatten().flat_map(|work| process::tree(work.run.pid())).collect();
    let sleep = || runs.iter().chain([&pid]).all(|&pid| process::asleep(pid));
    let settled = eventually(LIMIT, || {
        before = process::cpu_time(pid);
        std::thread::sleep(Duration::from_millis(500));
        process::cpu_time(pid) == before && sleep()
    });
    ensure!(settled, "it does not come to rest");
    std::thread::sleep(Duration::from_secs(3));
    let used = process::cpu_time(pid) - before;
    // One tick of the clock by which processes are charged.
    ensure!(used <= Duration::from_millis(10), "an idle node used {used:?} of CPU in 3 s");
    for work in works {
        work?.sound()?;
    }
    Ok(())
}
