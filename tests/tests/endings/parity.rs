//! `--protect ec:K+M`: pages on K nodes, parity on M others. As many as M are killed while the
//! program works; a lost seat is made anew at another node; more are killed than parity bears.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farmem_tests::farmem::{Far, Node, split_stats};
use farmem_tests::process::{self, eventually};

use crate::{BUSY, FORKED, IDLE, LIMIT, Work, mirror, scenario, together};

/// Arguments of a program that changes few lines of its pages.
const FEW: &[&str] = &["32", "4", "few"];
const FEW_FORKED: &[&str] = &["32", "2", "few", "fork"];

fn striped(local: &str, shape: &str, nodes: &[Node]) -> Far {
    let far = Far::local(local).with(&["--transport", "tcp", "--protect", shape]);
    nodes.iter().fold(far, |far, node| far.on(&node.by_tcp()))
}

fn nodes(n: usize) -> Result<Vec<Node>> {
    (0..n).map(|_| Node::start("512M", &[])).collect()
}

/// Lets the program finish. Fails unless all of its memory is as it was written, and each process
/// has told of each loss in one line.
fn sound(work: Work, losses: usize) -> Result<()> {
    let told = losses * (1 + (work.child != 0) as usize);
    let all_told = || work.run.stderr().matches("the program goes on").count() == told || !work.run.alive();
    ensure!(eventually(LIMIT, all_told), "nobody says that nodes are gone: {}", work.run.stderr());
    std::thread::sleep(Duration::from_millis(500));
    process::send(work.program, libc::SIGUSR1);
    let outcome = work.run.wait(LIMIT)?;
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    ensure!(outcome.code() == 0 && said.contains("\nsound ") && said.contains(" child 0"), "{outcome:?}");
    let (stats, rest) = split_stats(&outcome.stderr);
    ensure!(rest.lines().count() == told, "not one line each: {rest}");
    ensure!(stats.as_ref().and_then(|stats| stats["nodes_lost"].as_u64()) == Some(told as u64), "{stats:?}");
    println!("{losses} lost: {}", said.trim_end().replace('\n', "; "));
    Ok(())
}

#[test]
fn as_many_nodes_as_parity_bears_are_lost_and_the_program_goes_on() -> Result<()> {
    let goes_on = |shape: &'static str, count: usize, losses: usize, arguments: &'static [&'static str]| {
        scenario(format!("{shape} without {losses}, {arguments:?}"), move || {
            let nodes = nodes(count)?;
            let work = mirror::at_work(&striped("4M", shape, &nodes), arguments)?;
            for node in &nodes[..losses] {
                node.running.signal(libc::SIGKILL);
                std::thread::sleep(Duration::from_millis(300));
            }
            sound(work, losses)
        })
    };
    together(vec![goes_on("ec:2+1", 3, 1, BUSY), goes_on("ec:2+1", 3, 1, FORKED)])?;
    together(vec![goes_on("ec:2+1", 3, 1, IDLE), goes_on("ec:4+2", 6, 2, BUSY)])?;
    together(vec![goes_on("ec:2+1", 3, 1, FEW_FORKED), goes_on("ec:4+2", 6, 2, FEW)])
}

/// Changed lines go to every node that must have them, and to no other; then nodes are killed. Sealed pages change by
/// lines of what the nodes have.
#[test]
fn changed_lines_go_to_data_and_parity() -> Result<()> {
    let by_lines = |options: &'static [&'static str]| {
        scenario(format!("by lines, {options:?}"), move || {
            let nodes = nodes(3)?;
            let work = mirror::at_work(&striped("4M", "ec:2+1", &nodes).with(options), FEW)?;
            let records = |node: &Node| node.metric("farmem_node_record_bytes_total").unwrap_or_default();
            let all = || nodes.iter().all(|node| records(node) > 100_000.0) || !work.run.alive();
            ensure!(eventually(LIMIT, all), "no changed lines: {:?}", nodes.iter().map(records).collect::<Vec<_>>());
            nodes[0].running.signal(libc::SIGKILL);
            sound(work, 1)
        })
    };
    together(vec![by_lines(&[]), by_lines(&["--seal=lines"])])
}

/// A fourth node takes the place of one that was killed; then another of the first three is killed.
#[test]
fn a_lost_seat_is_made_anew_behind_the_program() -> Result<()> {
    let mut nodes = nodes(4)?;
    let work = Work::start(&striped("4M", "ec:2+1", &nodes), BUSY)?;
    let lent = |node: &Node| node.metric("farmem_node_lent_bytes");
    for _ in 0..2 {
        let first = nodes.iter().position(|node| lent(node).is_ok_and(|lent| lent > 0.0)).context("nothing is lent")?;
        nodes.remove(first).running.signal(libc::SIGKILL);
        let again = || work.run.stderr().contains("every page has its parity again") || !work.run.alive();
        ensure!(eventually(LIMIT, again), "the seat is not made anew: {}", work.run.stderr());
    }
    std::thread::sleep(Duration::from_secs(1));
    ensure!(work.run.alive(), "{}", work.run.stderr());
    process::send(work.program, libc::SIGUSR1);
    let outcome = work.run.wait(LIMIT)?;
    ensure!(outcome.code() == 0 && outcome.stderr.contains("parity stands in for"), "{outcome:?}");
    Ok(())
}

#[test]
fn with_more_lost_than_parity_bears_the_program_ends() -> Result<()> {
    let nodes = nodes(3)?;
    let Work { run, .. } = Work::start(&striped("4M", "ec:2+1", &nodes), BUSY)?;
    nodes[..2].iter().for_each(|node| node.running.signal(libc::SIGKILL));
    let outcome = run.wait(LIMIT)?;
    let (_, rest) = split_stats(&outcome.stderr);
    let last = rest.lines().last().unwrap_or_default();
    ensure!(outcome.code() == 70 && last.contains(" is lost: "), "{outcome:?}");
    Ok(())
}

#[test]
fn redis_goes_on_by_parity() -> Result<()> {
    let nodes = nodes(3)?;
    let all: Vec<&Node> = nodes.iter().collect();
    mirror::redis_loses(&striped("16M", "ec:2+1", &nodes), &all, 1, "parity stands in for").map(drop)
}

#[test]
fn parity_needs_as_many_nodes_as_seats() -> Result<()> {
    let nodes = nodes(2)?;
    let outcome = process::run(striped("4M", "ec:2+1", &nodes).command(&Command::new("true")), LIMIT)?;
    ensure!(outcome.code() == 64 && outcome.stderr.lines().count() == 1, "{outcome:?}");
    ensure!(outcome.stderr.contains("ec:2+1 needs 3 different nodes"), "{outcome:?}");
    Ok(())
}
