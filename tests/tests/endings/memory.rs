//! Far memory runs out; nobody takes more than was promised.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::{Far, Node, binary, split_stats};
use farmem_tests::group::Group;
use farmem_tests::process::{self, eventually};

use crate::{BOTH, By, LIMIT, Work, checker, scenario, together};

#[test]
fn a_node_that_has_nothing_left_at_start() -> Result<()> {
    for by in BOTH {
        let node = Node::start("64M", &[])?;
        let far = by.far("4M", &by.address(&node));
        let first = Work::start(&far, &["32", "2"])?;
        // The program is told by mmap, as it would be natively, and ends in its own way.
        let second = process::run(far.command(&checker(&["32", "2"])?), LIMIT)?;
        let said = String::from_utf8_lossy(&second.stdout).into_owned();
        ensure!(second.code() == 1 && said.contains("map != MAP_FAILED: errno 12"), "{by:?}: {second:?}");
        ensure!(split_stats(&second.stderr).1.is_empty(), "{by:?}: {second:?}");
        first.sound()?;
    }
    Ok(())
}

/// A machine that needs all of its memory: nothing is lent, and whoever asks is told.
#[test]
fn a_node_leaves_its_machine_what_it_reserves() -> Result<()> {
    let node = Node::start("128M", &["--reserve", "100%"])?;
    // It looks at its machine once it serves, and now and then.
    let holds_back = |node: &Node, bytes: i32| {
        let told = || node.metric("farmem_node_held_back_bytes").is_ok_and(|told| told == f64::from(bytes));
        eventually(LIMIT, told)
    };
    ensure!(holds_back(&node, 128 << 20), "{}", node.metrics()?);
    let far = By::Tcp.far("4M", &node.by_tcp());
    let refused = process::run(far.command(&checker(&["32", "2"])?), LIMIT)?;
    let said = String::from_utf8_lossy(&refused.stdout).into_owned();
    ensure!(refused.code() == 1 && said.contains("map != MAP_FAILED: errno 12"), "{refused:?}");
    let node = Node::start("128M", &["--reserve", "1M"])?;
    let work = Work::start(&By::Tcp.far("4M", &node.by_tcp()), &["32", "2"])?;
    ensure!(holds_back(&node, 0), "{}", node.metrics()?);
    work.sound().map(|_| ())
}

/// A machine comes to need memory that its node has lent. Slabs move to another node, as many as are needed. A
/// program that is stopped keeps its slabs where they are, and they move when it goes on.
#[test]
fn a_node_gets_back_what_its_machine_needs() -> Result<()> {
    const NAME: &str = "a_node_gets_back_what_its_machine_needs";
    let group = match Group::new(1 << 30) {
        Ok(group) => group,
        Err(e) => {
            eprintln!("skipped: {NAME}: {e:#}");
            return Ok(());
        }
    };
    let dir = process::TempDir::new("reserve")?;
    let file = dir.path().join("nodes");
    let lists =
        |nodes: &[&Node]| std::fs::write(&file, nodes.iter().map(|node| node.by_tcp() + "\n").collect::<String>());
    let lent = |node: &Node| node.metric("farmem_node_lent_bytes");
    let pressed = Node::start("512M", &["--reserve", "400M"])?;
    group.take(pressed.running.pid())?;
    let other = Node::start("512M", &[])?;
    lists(&[&pressed])?;
    let far = Far::local("8M").with(&["--transport", "tcp", "--node-file"]).with(&[&file.display().to_string()]);
    let work = Work::start(&far, &["96", "2"])?;
    ensure!(lent(&pressed)? == f64::from(128 << 20), "{}", pressed.metrics()?);
    lists(&[&pressed, &other])?;
    process::send(work.program, libc::SIGSTOP);
    // 96 MiB of the group's 470 are used, and 400 are to be left: at least one of two slabs must go.
    group.set_limit(470 << 20)?;
    let held_back = || pressed.metric("farmem_node_held_back_bytes").is_ok_and(|bytes| bytes > 0.0);
    ensure!(eventually(LIMIT, held_back), "{}", pressed.metrics()?);
    ensure!(lent(&pressed)? == f64::from(128 << 20), "what a stopped program has stays");
    process::send(work.program, libc::SIGCONT);
    let back = || lent(&pressed).is_ok_and(|bytes| bytes <= f64::from(64 << 20));
    ensure!(eventually(LIMIT, back), "{}{}", pressed.metrics()?, work.run.stderr());
    ensure!(lent(&other)? >= f64::from(64 << 20), "{}", other.metrics()?);
    work.sound().map(|_| ())
}

/// A program that is stopped does not answer its node, whose machine needs memory. What it has goes to a
/// disk, and comes back with its bytes when the program goes on.
#[test]
fn what_a_stopped_program_has_is_spilled() -> Result<()> {
    const NAME: &str = "what_a_stopped_program_has_is_spilled";
    let group = match Group::new(1 << 30) {
        Ok(group) => group,
        Err(e) => {
            eprintln!("skipped: {NAME}: {e:#}");
            return Ok(());
        }
    };
    let pressed = Node::start("512M", &["--reserve", "400M", "--spill", "/var/tmp"])?;
    group.take(pressed.running.pid())?;
    let work = Work::start(&By::Tcp.far("8M", &pressed.by_tcp()), &["96", "2"])?;
    let metric = |name: &str| pressed.metric(name);
    let (used, aside) = (|| metric("farmem_node_used_bytes"), || metric("farmem_node_aside_bytes"));
    ensure!(aside()? == 0.0 && used()? > f64::from(80 << 20), "{}", pressed.metrics()?);
    let resident = || shared_memory(pressed.running.pid());
    let before = resident()?;
    process::send(work.program, libc::SIGSTOP);
    // 96 MiB of the group's 470 are used, and 400 are to be left.
    group.set_limit(470 << 20)?;
    ensure!(eventually(LIMIT, || aside().is_ok_and(|bytes| bytes > 0.0)), "{}", pressed.metrics()?);
    ensure!(metric("farmem_node_lent_bytes")? == f64::from(128 << 20), "it holds what it held");
    let is_freed = || resident().is_ok_and(|now| before.saturating_sub(now) > 16 << 20);
    ensure!(eventually(LIMIT, is_freed), "{before} {}: {}", resident()?, pressed.metrics()?);
    let is_told = || pressed.running.stderr().contains("put on the disk");
    ensure!(eventually(LIMIT, is_told), "{}", pressed.running.stderr());
    let mut shows = std::process::Command::new(binary());
    shows.args(["status", &pressed.by_tcp()]);
    let shown = process::run(shows, LIMIT)?.success()?;
    ensure!(shown.stdout_tail().contains("on disk"), "{shown:?}");
    process::send(work.program, libc::SIGCONT);
    group.set_limit(1 << 30)?;
    work.sound().map(|_| ())
}

#[test]
fn a_program_that_asks_for_more_than_there_is() -> Result<()> {
    for (by, lend) in [(By::Shm, 128), (By::Tcp, 256), (By::Shm, 256)] {
        let node = Node::start(&format!("{lend}M"), &[])?;
        let mut program = std::process::Command::new(compile::c("no_memory", &[])?);
        program.arg("4096");
        let outcome = process::run(by.far("8M", &by.address(&node)).command(&program), LIMIT)?.success()?;
        let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
        ensure!(said == "refused 1 errno 12 bad 0\nagain 1\n", "{by:?}: {outcome:?}");
        ensure!(node.metric("farmem_node_lent_bytes_peak")? <= (lend << 20) as f64, "{}", node.metrics()?);
    }
    Ok(())
}

#[test]
fn memory_that_nobody_promised_and_that_is_not_there() -> Result<()> {
    for by in BOTH {
        let node = Node::start("64M", &[])?;
        let far = by.far("4M", &by.address(&node));
        let outcome = process::run(far.command(&checker(&["256", "2", "noreserve"])?), LIMIT)?;
        let (_, line) = split_stats(&outcome.stderr);
        ensure!(outcome.code() == 71 && outcome.stdout.is_empty(), "{by:?}: {outcome:?}");
        ensure!(line.lines().count() == 1, "{by:?}: {line}");
        ensure!(line.contains("far memory is exhausted") && line.contains(&by.address(&node)), "{by:?}: {line}");
    }
    Ok(())
}

/// Many forks, one after the other, with slabs of their own, on a node that has enough for a few.
#[test]
fn forks_that_have_ended_hold_nothing() -> Result<()> {
    for by in BOTH {
        let node = Node::start("512M", &[])?;
        let program = std::process::Command::new(compile::c("fork_many", &[])?);
        let outcome = process::run(by.far("4M", &by.address(&node)).command(&program), LIMIT)?.success()?;
        let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
        ensure!(said == "good children 20, parent bad 0\n", "{by:?}: {outcome:?}");
        ensure!(split_stats(&outcome.stderr).1.is_empty(), "{by:?}: {outcome:?}");
    }
    Ok(())
}

/// Parent and child of a fork each come to need all of their memory, and the node has enough for one.
/// One of them ends; the other's memory stays as it was.
#[test]
fn a_fork_that_comes_to_need_more_than_there_is() -> Result<()> {
    let fork = |by: By| {
        scenario(format!("{by:?}"), move || {
            let node = Node::start("128M", &[])?;
            let work = Work::start(&by.far("4M", &by.address(&node)), &["60", "2", "fork"])?;
            let (program, child) = (work.program, work.child);
            let ended = eventually(LIMIT, || work.run.stderr().contains("far memory is exhausted"));
            ensure!(ended, "neither ran out: {}", work.run.stderr());
            eventually(LIMIT, || !process::alive(program) || !process::alive(child));
            // Whoever is left goes on for a while.
            std::thread::sleep(Duration::from_millis(300));
            for pid in [program, child] {
                process::send(pid, libc::SIGUSR1);
            }
            let outcome = work.run.wait(LIMIT)?;
            let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
            let parent_lost = outcome.code() == 71;
            let child_lost = outcome.code() == 0 && said.contains("\nsound ") && said.contains(" child 71");
            ensure!((parent_lost || child_lost) && !said.contains("WRONG"), "{outcome:?}");
            ensure!(eventually(LIMIT, || !process::alive(child)), "the child lives on");
            Ok(())
        })
    };
    together(BOTH.map(fork).into())
}

/// The far range, as `protocol::addr` has it.
const FAR: std::ops::Range<u64> = 32 << 40..64 << 40;

/// Bytes of a process's far mappings that are resident, by the kernel's own account.
fn resident_far(pid: i32) -> Result<u64> {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let (mut far, mut bytes) = (false, 0);
    for line in smaps.lines() {
        if let Some((start, _)) = line.split_once('-').filter(|_| !line.contains(": ")) {
            far = FAR.contains(&u64::from_str_radix(start, 16)?);
        } else if let Some(rss) = line.strip_prefix("Rss:").filter(|_| far) {
            bytes += rss.trim().trim_end_matches(" kB").parse::<u64>()? * 1024;
        }
    }
    Ok(bytes)
}

/// The limit as an outsider sees it, at a tenth local, six threads reading and writing at random and in rows.
#[test]
fn local_memory_is_never_exceeded() -> Result<()> {
    let sampled = |by: By, fault: &'static str| {
        scenario(format!("{by:?} {fault}"), move || {
            let node = Node::start("256M", &[])?;
            let far = by.far("6M", &by.address(&node)).with(&["--fault", fault]);
            let work = Work::start(&far, &["60", "6"])?;
            let limit = 6 << 20;
            let mut seen = HashSet::new();
            let (until, at_latest) = (Instant::now() + Duration::from_secs(4), Instant::now() + LIMIT);
            let enough = |seen: &HashSet<u64>| seen.len() > 20 && seen.iter().max() > Some(&(limit / 2));
            while Instant::now() < until || !enough(&seen) && Instant::now() < at_latest {
                process::send(work.program, libc::SIGSTOP);
                let resident = resident_far(work.program);
                process::send(work.program, libc::SIGCONT);
                let resident = resident.context("smaps")?;
                ensure!(resident * 100 <= limit * 102, "{resident} bytes are resident, of {limit} allowed");
                seen.insert(resident);
                std::thread::sleep(Duration::from_millis(seen.len() as u64 % 7));
            }
            ensure!(seen.len() > 20, "only {} different samples", seen.len());
            ensure!(seen.iter().max() > Some(&(limit / 2)), "local memory is not used: {seen:?}");
            work.sound().map(|_| ())
        })
    };
    together(vec![sampled(By::Shm, "inline"), sampled(By::Tcp, "inline"), sampled(By::Shm, "thread")])
}

/// Bytes of shared memory that a process has mapped, and that are there.
fn shared_memory(pid: i32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let shared = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).context("no RssShmem")?;
    Ok(shared.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// What the node itself has taken, while two runs want twice what it lends.
#[test]
fn what_a_node_lends_is_never_exceeded() -> Result<()> {
    let node = Node::start("128M", &[])?;
    let lend = 128 << 20;
    let runs = [By::Shm, By::Tcp].map(|by| {
        let far = by.far("4M", &by.address(&node));
        std::thread::spawn(move || -> Result<()> {
            let mut program = std::process::Command::new(compile::c("no_memory", &[])?);
            program.arg("4096");
            process::run(far.command(&program), LIMIT)?.success()?;
            Ok(())
        })
    });
    let mut most = (0, 0);
    while !runs.iter().all(|run| run.is_finished()) {
        let shared = shared_memory(node.running.pid())?;
        let lent = node.metric("farmem_node_lent_bytes")? as u64;
        most = (most.0.max(shared), most.1.max(lent));
        std::thread::sleep(Duration::from_millis(5));
    }
    for run in runs {
        run.join().expect("no panic")?;
    }
    // The words that say who owns what are shared memory too: a quarter of a per cent, beside what is lent.
    let words = lend / 400;
    // Between two looks there may have been more.
    let most = (most.0, most.1.max(node.metric("farmem_node_lent_bytes_peak")? as u64));
    let kept = most.0 <= lend + words && most.1 <= lend && most.1 > lend / 2;
    ensure!(kept, "taken {} lent {} of {lend}", most.0, most.1);
    Ok(())
}
