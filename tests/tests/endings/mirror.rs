//! `--protect mirror`: two copies of far memory. One of their nodes is killed, stopped or cut off while the
//! program works; a lost copy is made again; both nodes are killed. Beside it: one of two nodes on this
//! machine is killed under redis, which needs no second copy.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use farmem_tests::farmem::{Far, Node, binary, free_port, split_stats};
use farmem_tests::lost::Lost;
use farmem_tests::process::{self, Running, TempDir, eventually};

use crate::proxy::Proxy;
use crate::silent::{self, HERE, Pair, Silence};
use crate::{BUSY, By, FORKED, IDLE, LIMIT, Work, checker, scenario, together};

/// The longest that a thread may stand still for a copy whose node was killed …
pub(crate) const KILLED: Duration = Duration::from_millis(50);
/// … or has fallen silent.
const SILENT: Duration = Duration::from_millis(250);

pub(crate) fn nodes(n: usize) -> Result<Vec<Node>> {
    (0..n).map(|_| Node::start("512M", &[])).collect()
}

pub(crate) fn mirrored(local: &str, addresses: &[String]) -> Far {
    let far = Far::local(local).with(&["--transport", "tcp", "--protect", "mirror"]);
    addresses.iter().fold(far, |far, address| far.on(address))
}

pub(crate) fn by_tcp(nodes: &[Node]) -> Vec<String> {
    nodes.iter().map(Node::by_tcp).collect()
}

/// Starts a program that has second copies, and lets it work for a while. If the program gives a node up
/// meanwhile, because the machine keeps the node from a CPU, another is begun: it would lose two.
pub(crate) fn at_work(far: &Far, arguments: &[&str]) -> Result<Work> {
    for _ in 0..5 {
        let work = Work::start(far, arguments)?;
        std::thread::sleep(Duration::from_millis(500));
        if work.run.stderr().is_empty() {
            return Ok(work);
        }
        println!("begun anew: {}", work.run.stderr());
    }
    bail!("a node is given up each time, and none was killed")
}

/// Lets the program finish. Fails unless all of its memory is as it was written. Fails, too, if a thread
/// stood still for longer than `most`, or a process did not say in one line that it goes on.
pub(crate) fn sound_with_one(work: Work, node: &str, most: Duration, lost: &mut Lost) -> Result<()> {
    let processes = 1 + (work.child != 0) as usize;
    let told = || work.run.stderr().matches("the program goes on").count() == processes || !work.run.alive();
    ensure!(eventually(LIMIT, told), "nobody says that the node is gone: {}", work.run.stderr());
    process::send(work.program, libc::SIGUSR1);
    let outcome = work.run.wait(LIMIT)?;
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    ensure!(outcome.code() == 0 && said.contains("\nsound ") && said.contains(" child 0"), "{outcome:?}");
    let (stats, rest) = split_stats(&outcome.stderr);
    ensure!(rest.lines().count() == processes, "not one line each: {rest}");
    ensure!(rest.lines().all(|line| line.contains(node) && line.contains("goes on with one copy of ")), "{rest}");
    ensure!(stats.as_ref().and_then(|stats| stats["nodes_lost"].as_u64()) == Some(processes as u64), "{stats:?}");
    let said_us = |what| said.split(what).nth(1).and_then(|us| us.split_whitespace().next()?.parse().ok());
    let longest =
        Duration::from_micros(said_us("longest_us ").context("the program does not say how long it stood still")?);
    let by_clock = Duration::from_micros(said_us("by_clock_us ").unwrap_or_default());
    let without_cpu = lost.lost();
    println!("longest stall {longest:?}, by the clock {by_clock:?}, others {without_cpu:?} without a CPU");
    ensure!(longest <= most + without_cpu, "it stood still for {longest:?}, {without_cpu:?} without a CPU");
    Ok(())
}

#[test]
fn one_of_two_copies_is_lost_and_the_program_goes_on() -> Result<()> {
    let goes_on = |signal: i32, most: Duration, arguments: &'static [&'static str]| {
        scenario(format!("signal {signal} {arguments:?}"), move || {
            let nodes = nodes(2)?;
            let work = at_work(&mirrored("4M", &by_tcp(&nodes)), arguments)?;
            let [gone, stays] = [nodes[0].running.pid(), nodes[1].running.pid()];
            let mut lost = Lost::by(&[work.program, stays, gone]);
            match signal {
                libc::SIGKILL => lost.kills(gone),
                _ => process::send(gone, signal),
            }
            if arguments == IDLE {
                // Nothing is asked of a node that merely stands still.
                std::thread::sleep(Duration::from_secs(1));
                process::send(work.program, libc::SIGUSR1);
            }
            sound_with_one(work, &nodes[0].by_tcp(), most, &mut lost)
        })
    };
    together(vec![
        goes_on(libc::SIGKILL, KILLED, BUSY),
        goes_on(libc::SIGKILL, KILLED, FORKED),
        goes_on(libc::SIGKILL, KILLED, IDLE),
    ])?;
    together(vec![goes_on(libc::SIGSTOP, SILENT, BUSY), goes_on(libc::SIGSTOP, SILENT, FORKED)])
}

/// Dropped packets: nothing says that the node is gone.
#[test]
fn a_copy_that_is_cut_off_is_given_up_soon() -> Result<()> {
    if !silent::can("a copy that is cut off") {
        return Ok(());
    }
    let (pair, dir) = (Pair::new()?, TempDir::new("mirror")?);
    let node = |namespace: &str, at: &str, name: &str| -> Result<(String, Running)> {
        let (address, socket) = (format!("{at}:7602"), dir.path().join(name));
        let mut command = Command::new(binary());
        command.args(["node", "--lend", "256M", "--rdma", "off", "--open", "--listen", &address]);
        command.arg("--listen").arg(format!("unix:{}", socket.display()));
        let node = process::spawn(Pair::inside(namespace, &command))?;
        silent::serves(&node, &socket)?;
        Ok((address, node))
    };
    let (near, _near) = node(&pair.host, HERE, "near")?;
    let (away, _away) = node(&pair.node, &pair.at, "away")?;
    let far = mirrored("4M", &[near, away.clone()]);
    let work = Work::of(process::spawn(Pair::inside(&pair.host, &far.command(&checker(BUSY)?)))?)?;
    std::thread::sleep(Duration::from_millis(500));
    let mut lost = Lost::by(&[work.program, _near.pid()]);
    pair.begin(Silence::Dropped)?;
    sound_with_one(work, &away, SILENT, &mut lost)
}

#[test]
fn with_both_copies_lost_the_program_ends() -> Result<()> {
    let ends = |arguments: &'static [&'static str]| {
        scenario(format!("{arguments:?}"), move || {
            let nodes = nodes(2)?;
            let Work { run, .. } = Work::start(&mirrored("4M", &by_tcp(&nodes)), arguments)?;
            nodes.iter().for_each(|node| node.running.signal(libc::SIGKILL));
            let (outcome, _) = run.wait_counting(LIMIT)?;
            let (_, rest) = split_stats(&outcome.stderr);
            let last = rest.lines().last().unwrap_or_default();
            ensure!(outcome.code() == 70 && last.contains(" is lost: "), "{outcome:?}");
            let others = rest.lines().filter(|line| !line.contains("is lost: ")).count();
            ensure!(others == 0, "{rest}");
            Ok(())
        })
    };
    together(vec![ends(BUSY), ends(FORKED), ends(IDLE)])
}

/// A third node takes the place of one that was killed; then the other of the first two is killed.
#[test]
fn a_lost_copy_is_made_again_behind_the_program() -> Result<()> {
    let mut nodes = nodes(3)?;
    let work = Work::start(&mirrored("4M", &by_tcp(&nodes)), &["140", "2"])?;
    let lent = |node: &Node| node.metric("farmem_node_lent_bytes");
    // One that holds something.
    let first = nodes.iter().position(|node| lent(node).is_ok_and(|lent| lent > 0.0)).context("nothing is lent")?;
    nodes.remove(first).running.signal(libc::SIGKILL);
    let again = || work.run.stderr().contains("every page has two copies again") || !work.run.alive();
    ensure!(eventually(LIMIT, again), "the copies are not made again: {}", work.run.stderr());
    nodes.remove(0).running.signal(libc::SIGKILL);
    std::thread::sleep(Duration::from_secs(1));
    ensure!(work.run.alive(), "{}", work.run.stderr());
    process::send(work.program, libc::SIGUSR1);
    let outcome = work.run.wait(LIMIT)?;
    ensure!(outcome.code() == 0 && outcome.stderr.contains("goes on with one copy"), "{outcome:?}");
    Ok(())
}

/// A node that was given up is a node again when it answers, without what it had.
#[test]
fn a_node_that_is_back_is_used_again() -> Result<()> {
    let nodes = nodes(2)?;
    let work = Work::start(&mirrored("4M", &by_tcp(&nodes)), BUSY)?;
    nodes[0].running.signal(libc::SIGSTOP);
    ensure!(eventually(LIMIT, || work.run.stderr().contains("goes on with one copy")), "{}", work.run.stderr());
    nodes[0].running.signal(libc::SIGCONT);
    let again = || work.run.stderr().contains("every page has two copies again");
    ensure!(eventually(LIMIT, again), "{}", work.run.stderr());
    nodes[1].running.signal(libc::SIGKILL);
    std::thread::sleep(Duration::from_secs(1));
    process::send(work.program, libc::SIGUSR1);
    let outcome = work.run.wait(LIMIT)?;
    ensure!(outcome.code() == 0, "{outcome:?}");
    Ok(())
}

/// A node that was killed and started anew at its address has nothing, and is used as any new node.
#[test]
fn a_node_that_is_back_empty_is_used_again() -> Result<()> {
    let (mut nodes, at) = (nodes(1)?, free_port()?);
    let begin = || Node::start_at(at, "512M", &[]);
    nodes.push(begin()?);
    let work = Work::start(&mirrored("4M", &by_tcp(&nodes)), &["140", "2"])?;
    nodes[1].running.signal(libc::SIGKILL);
    ensure!(eventually(LIMIT, || work.run.stderr().contains("goes on with one copy")), "{}", work.run.stderr());
    ensure!(eventually(LIMIT, || !nodes[1].running.alive()));
    nodes[1] = begin()?;
    let says = |text: &str| eventually(LIMIT, || work.run.stderr().contains(text) || !work.run.alive());
    ensure!(says("is back, and used again") && says("every page has two copies again"), "{}", work.run.stderr());
    nodes[0].running.signal(libc::SIGKILL);
    ensure!(says("every page has two copies again") && work.run.alive(), "{}", work.run.stderr());
    process::send(work.program, libc::SIGUSR1);
    let outcome = work.run.wait(LIMIT)?;
    ensure!(outcome.code() == 0 && String::from_utf8_lossy(&outcome.stdout).contains("\nsound "), "{outcome:?}");
    Ok(())
}

/// The supervisor knows the former process of such a node. The present one hears of the run's end,
/// too.
#[test]
fn a_node_that_is_back_empty_hears_of_the_end() -> Result<()> {
    let (mut nodes, at) = (nodes(1)?, free_port()?);
    let begin = || Node::start_at(at, "512M", &[]);
    nodes.push(begin()?);
    let work = Work::start(&mirrored("4M", &by_tcp(&nodes)).with(&["--grace", "60s"]), BUSY)?;
    nodes[1].running.signal(libc::SIGKILL);
    ensure!(eventually(LIMIT, || !nodes[1].running.alive()));
    nodes[1] = begin()?;
    let whole = || work.run.stderr().contains("every page has two copies again");
    ensure!(eventually(2 * LIMIT, whole), "{}", work.run.stderr());
    process::kill(work.program);
    work.run.wait(LIMIT)?;
    let lent = || nodes[1].metric("farmem_node_lent_bytes");
    ensure!(eventually(Duration::from_secs(5), || lent().is_ok_and(|lent| lent == 0.0)), "{} are still lent", lent()?);
    Ok(())
}

/// One node answers each question 100 ms late. It is not silent, and keeps its copies.
/// READs go to the other node.
#[test]
fn a_copy_that_answers_late_slows_nothing_for_good() -> Result<()> {
    let nodes = nodes(2)?;
    let proxy = Proxy::before(nodes[1].tcp)?;
    let work = Work::start(&mirrored("4M", &[nodes[0].by_tcp(), proxy.at.to_string()]), BUSY)?;
    proxy.delay(Duration::from_millis(100));
    std::thread::sleep(Duration::from_secs(2));
    ensure!(work.run.alive(), "{}", work.run.stderr());
    proxy.delay(Duration::ZERO);
    process::send(work.program, libc::SIGUSR1);
    let outcome = work.run.wait(LIMIT)?;
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    ensure!(outcome.code() == 0 && said.contains("\nsound "), "{outcome:?}");
    println!("{}", said.split("longest_us ").nth(1).unwrap_or_default());
    Ok(())
}

#[test]
fn a_mirror_needs_two_nodes() -> Result<()> {
    let node = Node::start("256M", &[])?;
    let refused = |addresses: &[String], says: &str| -> Result<()> {
        let outcome = process::run(mirrored("4M", addresses).command(&Command::new("true")), LIMIT)?;
        ensure!(outcome.code() == 64 && outcome.stderr.lines().count() == 1, "{outcome:?}");
        ensure!(outcome.stderr.contains(says), "{outcome:?}");
        Ok(())
    };
    refused(&[], "name at least two with --node (0 named)")?;
    refused(&[node.by_tcp()], "name at least two with --node (1 named)")?;
    refused(&[node.by_tcp(), node.by_tcp()], "is named twice: name each node once")
}

/// A client of redis that waits for each answer, and knows the longest wait.
struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    longest: Duration,
}

impl Client {
    fn connect(at: SocketAddr) -> Result<Client> {
        let up = eventually(LIMIT, || TcpStream::connect(at).is_ok());
        ensure!(up, "redis does not listen");
        let stream = TcpStream::connect(at)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(Client { reader: BufReader::new(stream.try_clone()?), stream, longest: Duration::ZERO })
    }

    fn call(&mut self, command: &str) -> Result<String> {
        let begun = Instant::now();
        write!(self.stream, "{command}\r\n")?;
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let line = line.trim_end();
        let reply = match line.strip_prefix('$') {
            Some(length) => {
                let mut body = vec![0; length.parse::<usize>()? + 2];
                self.reader.read_exact(&mut body)?;
                body.truncate(body.len() - 2);
                String::from_utf8_lossy(&body).into_owned()
            }
            None if line.is_empty() => bail!("redis has closed the connection"),
            None => line.to_owned(),
        };
        self.longest = self.longest.max(begun.elapsed());
        Ok(reply)
    }

    fn set(&mut self, key: usize, generation: usize) -> Result<()> {
        let said = self.call(&format!("SET key:{key} {}", value(key, generation)))?;
        ensure!(said == "+OK", "{said}");
        Ok(())
    }

    fn get(&mut self, key: usize, generation: usize) -> Result<()> {
        let said = self.call(&format!("GET key:{key}"))?;
        ensure!(said == value(key, generation), "key:{key} of generation {generation} is {said}");
        Ok(())
    }
}

fn value(key: usize, generation: usize) -> String {
    format!("{:016x}", (key * 31 + generation).wrapping_mul(0x9e37_79b9_7f4a_7c15)).repeat(16 + key % 96)
}

/// Redis at a quarter of its memory; one of its nodes is killed while a client sets and gets.
/// Returns the longest wait for an answer, and how long redis or a node was without a CPU.
pub(crate) fn redis_loses(far: &Far, nodes: &[&Node], killed: usize, says: &str) -> Result<(Duration, Duration)> {
    const KEYS: usize = 30_000;
    let (at, dir) = (free_port()?, TempDir::new("redis")?);
    let mut redis = Command::new("redis-server");
    redis.args(["--bind", &at.ip().to_string(), "--port", &at.port().to_string(), "--save", ""]);
    redis.args(["--appendonly", "no", "--dir"]).arg(dir.path());
    let run = process::spawn(far.command(&redis))?;
    let mut client = Client::connect(at)?;
    let mut generations = vec![0; KEYS];
    (0..KEYS).try_for_each(|key| client.set(key, 0))?;
    client.longest = Duration::ZERO;
    let pids: Vec<i32> = nodes.iter().map(|node| node.running.pid()).chain([run.pid()]).collect();
    let mut lost = Lost::by(&pids);
    let (begun, mut dies, mut random) = (Instant::now(), false, 1usize);
    while !dies || begun.elapsed() < Duration::from_secs(3) {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let key = (random >> 33) % KEYS;
        client.get(key, generations[key])?;
        if random >> 20 & 1 == 0 {
            generations[key] += 1;
            client.set(key, generations[key])?;
        }
        if !dies && begun.elapsed() > Duration::from_secs(1) {
            // The client does not wait for its end, but asks on.
            nodes[killed].running.signal(libc::SIGKILL);
            dies = true;
        }
        if dies && process::alive(pids[killed]) {
            lost.look();
        }
    }
    let waited = (client.longest, lost.lost());
    (0..KEYS).try_for_each(|key| client.get(key, generations[key]))?;
    ensure!(client.call("DBSIZE")? == format!(":{KEYS}"), "keys are missing");
    ensure!(eventually(LIMIT, || run.stderr().contains(says) || !run.alive()), "{says}: {}", run.stderr());
    run.signal(libc::SIGTERM);
    let outcome = run.wait(LIMIT)?;
    ensure!(outcome.code() == 0 && outcome.stderr.contains(says), "{outcome:?}");
    Ok(waited)
}

#[test]
fn redis_goes_on_with_one_of_two_copies() -> Result<()> {
    let nodes = nodes(2)?;
    let far = mirrored("16M", &by_tcp(&nodes));
    let (longest, lost) = redis_loses(&far, &[&nodes[0], &nodes[1]], 1, "goes on with one copy of ")?;
    println!("longest wait for redis {longest:?}, {lost:?} without a CPU");
    ensure!(longest <= KILLED + lost, "a client waited for {longest:?}; {lost:?} without a CPU");
    Ok(())
}

#[test]
fn redis_goes_on_when_one_of_two_mapped_nodes_is_killed() -> Result<()> {
    let nodes = nodes(2)?;
    let far = nodes.iter().fold(Far::local("16M"), |far, node| far.on(&By::Shm.address(node)));
    redis_loses(&far, &[&nodes[0], &nodes[1]], 0, "its process has ended; the program goes on")?;
    // Mapped memory needs no second copy.
    let nodes = self::nodes(2)?;
    let far = Far::local("16M").with(&["--protect", "mirror"]);
    let far = nodes.iter().fold(far, |far, node| far.on(&By::Shm.address(node)));
    redis_loses(&far, &[&nodes[0], &nodes[1]], 0, "its process has ended; the program goes on").map(|_| ())
}
