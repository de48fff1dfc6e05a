//! The daemon, from its start to SIGTERM.

use crate::log::{Log, name, programs, volume_name};
use crate::reserve::Reserve;
use crate::status::{StatusFile, available_ram};
use crate::{Config, Node, StartError};
use farmem_nic::Member;
use farmem_protocol::units::bytes;
use farmem_sys::process::{Arrived, Signals};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Members that are named when the node goes down, at most.
const NAMED: usize = 10;
/// How often the status file is brought up to date.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// Lends memory until SIGTERM, SIGINT or the terminal's end, then waits for members to leave, at
/// most the configured grace; a second SIGTERM or SIGINT ends it at once. Call it before any other
/// thread exists.
///
/// An embedded node ends as soon as its standard input does: its starter holds the other end.
pub fn run(config: Config) -> Result<(), StartError> {
    run_with(config, |_| Ok(|| ()))
}

/// As [`run`]; `begun` is called once the node serves. What it returns is called when the node has
/// been told to end and takes no new members: the node's end waits for that call.
pub fn run_with<L: Fn()>(config: Config, begun: impl FnOnce(&Node) -> io::Result<L>) -> Result<(), StartError> {
    let signals = Signals::take().map_err(StartError::System)?;
    let node = Node::start(&config)?;
    let mut status = match &config.status_dir {
        Some(dir) => Some(StatusFile::create(dir, &node)?),
        None => None,
    };
    let orphaned = Arc::new(AtomicBool::new(false));
    // Ends after everything else that is said here.
    let _log = if config.embedded {
        end_with_stdin(&orphaned)?;
        None
    } else {
        announce(&config, &node);
        Some(Log::start(node.shared_nic(), config.verbose, Box::new(std::io::stderr())).map_err(StartError::System)?)
    };

    let mut reserve = (config.reserve > 0).then(|| Reserve::new(config.reserve));
    keep(&mut reserve, &node);
    let leaves = begun(&node).map_err(StartError::System)?;
    let mut ends: Option<Instant> = None;
    loop {
        let signal = signals.next(if ends.is_some() { Duration::from_millis(50) } else { STATUS_EVERY });
        keep(&mut reserve, &node);
        if let Some(status) = &mut status {
            // A full or vanished directory costs the view in `farmem top`, no more.
            let _ = status.update(&node);
        }
        if let Some(wrong) = node.look_at_tokens() {
            eprintln!("farmem: --tokens {wrong}; the node goes on with the tokens that it had");
        }
        if orphaned.load(Ordering::Relaxed) {
            return Ok(());
        }
        match signal.filter(|&signal| signals.asks_to_end(signal)) {
            Some(_) if ends.is_none() => {
                node.nic().drain();
                leaves();
                ends = Some(Instant::now() + config.grace);
                tell_who_is_left(&node, Some(config.grace));
            }
            // The kernel and the shell both report a terminal that goes away: that is no second
            // request to end.
            Some(Arrived { number: libc::SIGHUP, .. }) | None => {}
            Some(_) => return Ok(()),
        }
        match ends {
            Some(_) if node.nic().awaited().is_empty() && node.nic().volumes.is_empty() => return Ok(()),
            Some(end) if Instant::now() >= end => {
                tell_who_is_left(&node, None);
                return Ok(());
            }
            _ => {}
        }
    }
}

/// Lends what the machine can spare now.
fn keep(reserve: &mut Option<Reserve>, node: &Node) {
    if let Some(line) = reserve.as_mut().and_then(|reserve| reserve.look(node.nic())) {
        eprintln!("farmem: {line}");
    }
}

/// A thread that waits for the end of standard input and wakes the main thread with a signal.
fn end_with_stdin(orphaned: &Arc<AtomicBool>) -> Result<(), StartError> {
    let orphaned = Arc::clone(orphaned);
    let watch = move || {
        let mut nothing = [0; 64];
        while std::io::stdin().read(&mut nothing).is_ok_and(|n| n > 0) {}
        orphaned.store(true, Ordering::Relaxed);
        let _ = farmem_sys::process::send(std::process::id(), libc::SIGUSR1);
    };
    std::thread::Builder::new().name("lifeline".into()).spawn(watch).map_err(StartError::System)?;
    Ok(())
}

fn announce(config: &Config, node: &Node) {
    let lend = node.nic().lending.limit();
    for at in node.addresses() {
        eprintln!("farmem: node lends {} at {at}", bytes(lend));
    }
    if let Some(confined) = node.confined().filter(|confined| config.verbose || !confined.is_whole()) {
        eprintln!("farmem: the node is confined: {confined}");
    }
    if let Some(why) = node.unshared() {
        eprintln!("farmem: programs on this machine are served over tcp, which is slower than mapped memory: {why}");
    }
    if let Some(at) = node.metrics() {
        eprintln!("farmem: counters at http://{at}/metrics");
    }
    if available_ram().is_some_and(|available| lend > available) {
        eprintln!(
            "farmem: this is more than the machine has free now: what is not free cannot be lent without swapping"
        );
    }
    if config.huge {
        match node.nic().lending.try_memory() {
            Ok(_) if node.nic().lending.reserve_was_empty() => eprintln!(
                "farmem: --huge: no huge pages are reserved (vm.nr_hugepages); transparent ones are used where \
                 /sys/kernel/mm/transparent_hugepage/shmem_enabled allows"
            ),
            Ok(_) => {}
            Err(e) => eprintln!("farmem: --huge: no memory could be had for a trial: {e:?}"),
        }
    }
}

/// Names the members that hold most, and counts the others: a thousand of them are one line.
fn tell_who_is_left(node: &Node, grace: Option<Duration>) {
    let mut holders: Vec<(u64, Arc<Member>)> =
        node.nic().awaited().into_iter().map(|member| (member.held(), member)).collect();
    for volume in node.nic().volumes.all() {
        let held = bytes(u64::from(volume.usage().blocks) << 21);
        eprintln!("farmem:   {} holds {held}", volume_name(&volume));
    }
    let volumes = node.nic().volumes.all().len();
    if holders.is_empty() {
        match grace {
            _ if volumes == 0 => {}
            Some(grace) => {
                eprintln!("farmem: going down: waiting up to {} s for machines that swap here", grace.as_secs())
            }
            None => eprintln!("farmem: going down with pages of machines that swap here, lost to them now"),
        }
        return;
    }
    let (there, held) = (programs(holders.len()), bytes(node.nic().lent()));
    match grace {
        Some(grace) => eprintln!("farmem: going down: waiting up to {} s for {there} holding {held}", grace.as_secs()),
        None => eprintln!("farmem: going down with {held} still held by {there}, lost to them now:"),
    }
    holders.sort_by_key(|(held, _)| std::cmp::Reverse(*held));
    for (held, member) in holders.iter().filter(|(held, _)| *held > 0).take(NAMED) {
        eprintln!("farmem:   {} holds {}", name(member), bytes(*held));
    }
    if holders.len() > NAMED {
        // Forked programs hold the same memory: a sum would count it more than once.
        eprintln!("farmem:   and {} more, none of which holds more than these", holders.len() - NAMED);
    }
}
