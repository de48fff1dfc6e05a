//! One pattern on one allocator, in a process of its own, so that what an
//! allocator keeps from one pattern does not help or hurt in the next.

use crate::heap::Heap;
use crate::memory::{Malloc, System, taken_by_system};
use crate::meter::Meter;
use crate::patterns::{self, LIVE, Pattern};
use anyhow::{Context, Result, anyhow};
use farmem_agent::client::{Client, Options as Connection};
use farmem_fabric::NodeAddr;
use farmem_sys::clock;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

/// Chunks that are had and written.
pub const WRITTEN: u64 = 20_000;

/// What a child is told.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// The agent's socket; none: the system's malloc
    #[arg(long)]
    pub agent: Option<PathBuf>,
    /// The node of an agent within this process, if none listens at that socket
    #[arg(long)]
    pub alone: Option<NodeAddr>,
    /// What to do; none: chunks, one at a time
    #[arg(long, value_enum)]
    pub pattern: Option<Pattern>,
    /// A trace's file
    #[arg(long)]
    pub trace: Option<PathBuf>,
    /// Threads
    #[arg(long)]
    pub threads: usize,
    /// Allocations, of all threads
    #[arg(long)]
    pub ops: u64,
}

/// What a child found. Times in ns, of calls; memory in bytes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    /// Allocations and frees.
    pub calls: u64,
    /// Of them, a second.
    pub calls_per_s: f64,
    #[allow(missing_docs)]
    pub alloc_p50_ns: u64,
    #[allow(missing_docs)]
    pub alloc_p99_ns: u64,
    #[allow(missing_docs)]
    pub free_p50_ns: u64,
    #[allow(missing_docs)]
    pub free_p99_ns: u64,
    /// Asked for and not freed, at its greatest.
    pub asked: u64,
    /// Taken from the system, or from the agent, at that moment.
    pub taken: u64,
    /// Words to the agent.
    pub words: u64,
    /// Waits for the agent.
    pub waits: u64,
    /// Of chunks: had, and 4 KiB written.
    pub written_p50_ns: u64,
    #[allow(missing_docs)]
    pub written_p99_ns: u64,
}

/// Runs a pattern and prints what was found.
///
/// # Errors
/// When memory ran out, or an object was overwritten.
pub fn run(options: &Options) -> Result<()> {
    clock::calibrate();
    let found = match (&options.agent, options.pattern) {
        (Some(agent), None) => chunks(&client(agent, options)?, options.ops)?,
        (None, None) => anyhow::bail!("chunks are had from an agent: name it"),
        (Some(agent), Some(pattern)) => {
            let client = client(agent, options)?;
            let heap = Heap::new(&client).context("no room for a table of pages")?;
            let mut found = work(options, pattern, &|| Ok(heap.thread()?), &|| client.held())?;
            let counts = client.counts();
            (found.words, found.waits) = (counts.words, counts.waits);
            found
        }
        (None, Some(pattern)) => work(options, pattern, &|| Ok(System), &taken_by_system)?,
    };
    println!("{}", serde_json::to_string(&found)?);
    Ok(())
}

fn client(agent: &Path, options: &Options) -> Result<Client> {
    let patience = Duration::from_secs(10);
    let connection = Connection { socket: agent.to_owned(), job: String::new(), patience, start: None };
    Ok(match &options.alone {
        Some(node) => Client::alone(node, connection)?,
        None => Client::connect(connection)?,
    })
}

/// Chunks of 4 KiB: granted ahead, and asked for one by one.
fn chunks(client: &Client, ops: u64) -> Result<Found> {
    let live = AtomicI64::new(0);
    let (mut ahead, mut asking) = (Meter::new(&live), Meter::new(&live));
    let mut held = Vec::with_capacity(1024);
    let begun = Instant::now();
    while ahead.calls < 2 * ops {
        for _ in 0..512 {
            held.push(ahead.alloc(4096, || Ok(client.alloc(0)?))?);
        }
        for chunk in held.drain(..) {
            ahead.free(4096, || client.free(chunk));
        }
    }
    let calls_per_s = ahead.calls as f64 / begun.elapsed().as_secs_f64();
    // Had, and written by whichever way this program reaches its memory.
    let (mut written, mut reach, page) = (Meter::new(&live), client.reach()?, [7u8; 4096]);
    while written.calls < 2 * WRITTEN {
        for _ in 0..512 {
            let had = written.alloc(4096, || {
                let chunk = client.alloc(0)?;
                reach.write(&chunk, 0, &page)?;
                Ok(chunk)
            });
            held.push(had?);
        }
        for chunk in held.drain(..) {
            written.free(4096, || client.free(chunk));
        }
    }
    // Some milliseconds apart from one another, so that the agent sleeps: what a program that asks when it
    // needs would wait for.
    for _ in 0..4000 {
        let chunk = asking.alloc(4096, || Ok(client.alloc_asking()?))?;
        held.push(chunk);
        if held.len() == 256 {
            held.drain(..).for_each(|chunk| client.free(chunk));
            client.trim();
        }
        farmem_sys::raw::sleep_ns(100_000);
    }
    held.into_iter().for_each(|chunk| client.free(chunk));
    let counts = client.counts();
    Ok(Found {
        calls: ahead.calls,
        calls_per_s,
        alloc_p50_ns: ahead.allocs.quantile(0.5),
        alloc_p99_ns: ahead.allocs.quantile(0.99),
        // Asked for: in the places of frees.
        free_p50_ns: asking.allocs.quantile(0.5),
        free_p99_ns: asking.allocs.quantile(0.99),
        asked: 0,
        taken: 0,
        words: counts.words,
        waits: counts.waits,
        written_p50_ns: written.allocs.quantile(0.5),
        written_p99_ns: written.allocs.quantile(0.99),
    })
}

fn work<M: Malloc>(
    options: &Options,
    pattern: Pattern,
    malloc: &(impl Fn() -> Result<M> + Sync),
    taken: &(impl Fn() -> u64 + Sync),
) -> Result<Found> {
    let orders = match &options.trace {
        Some(path) => read_trace(path)?,
        None => Vec::new(),
    };
    let (threads, live, done) = (options.threads, AtomicI64::new(0), AtomicBool::new(false));
    let ops = options.ops / threads as u64;
    let at_start = taken();
    let results = Mutex::new(Vec::new());
    let (mut rings, mut last) = ring(threads);
    let begun = Instant::now();
    let (most, elapsed) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let channel = rings.pop().or_else(|| last.take());
                let (live, results, orders) = (&live, &results, &orders);
                scope.spawn(move || {
                    let mut meter = Meter::new(live);
                    let seed = thread as u64 + 1;
                    let ended = malloc().and_then(|mut malloc| match pattern {
                        Pattern::Threadtest => patterns::threadtest(&mut malloc, &mut meter, ops),
                        Pattern::Shbench => patterns::shbench(&mut malloc, &mut meter, ops, seed),
                        Pattern::Larson => match &channel {
                            Some((to, from)) => patterns::larson(&mut malloc, &mut meter, ops, seed, (to, from)),
                            None => Err(anyhow!("no neighbour")),
                        },
                        Pattern::Trace => {
                            let own: Vec<u8> = orders.iter().skip(thread).step_by(threads).copied().collect();
                            patterns::trace(&mut malloc, &mut meter, &own, LIVE / threads)
                        }
                    });
                    if let Ok(mut results) = results.lock() {
                        results.push(ended.map(|()| (meter.allocs, meter.frees, meter.calls)));
                    }
                })
            })
            .collect();
        let watch = scope.spawn(|| {
            let mut most = (0, 0);
            while !done.load(Ordering::Relaxed) {
                let asked = live.load(Ordering::Relaxed).max(0) as u64;
                if asked > most.0 {
                    most = (asked, taken().saturating_sub(at_start));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            most
        });
        workers.into_iter().for_each(|worker| drop(worker.join()));
        let elapsed = begun.elapsed();
        done.store(true, Ordering::Relaxed);
        (watch.join().unwrap_or_default(), elapsed)
    });
    let mut all = Meter::new(&live);
    for result in results.into_inner().map_err(|_| anyhow!("a thread panicked"))? {
        let (allocs, frees, calls) = result?;
        all.allocs.merge(&allocs);
        all.frees.merge(&frees);
        all.calls += calls;
    }
    Ok(Found {
        calls: all.calls,
        calls_per_s: all.calls as f64 / elapsed.as_secs_f64(),
        alloc_p50_ns: all.allocs.quantile(0.5),
        alloc_p99_ns: all.allocs.quantile(0.99),
        free_p50_ns: all.frees.quantile(0.5),
        free_p99_ns: all.frees.quantile(0.99),
        asked: most.0,
        taken: most.1,
        words: 0,
        waits: 0,
        written_p50_ns: 0,
        written_p99_ns: 0,
    })
}

type Neighbour = (mpsc::Sender<patterns::Array>, mpsc::Receiver<patterns::Array>);

/// A channel from each of so many threads to the next.
fn ring(threads: usize) -> (Vec<Neighbour>, Option<Neighbour>) {
    let (mut senders, mut receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::channel()).unzip();
    senders.rotate_left(1);
    let mut pairs: Vec<Neighbour> = senders.drain(..).zip(receivers.drain(..)).collect();
    let last = pairs.pop();
    (pairs, last)
}

/// The orders of a trace: a line for each request, its arrival in µs and its order, 0 (4 KiB) to 9 (2 MiB).
/// A file that ends in `.gz` is read through `gzip`.
pub fn read_trace(path: &Path) -> Result<Vec<u8>> {
    let bytes = if path.extension().is_some_and(|extension| extension == "gz") {
        let out = Command::new("gzip").arg("-dc").arg("--").arg(path).output();
        let out = out.context("gzip is needed to read a .gz trace")?;
        anyhow::ensure!(out.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&out.stderr).trim());
        out.stdout
    } else {
        std::fs::read(path).with_context(|| path.display().to_string())?
    };
    let text = String::from_utf8(bytes).with_context(|| format!("{}: not a text", path.display()))?;
    let order = |(at, line): (usize, &str)| {
        let order = line.split_whitespace().nth(1).and_then(|order| order.parse().ok()).filter(|order| *order <= 9);
        order.with_context(|| format!("{}: line {}: not a time and an order from 0 to 9", path.display(), at + 1))
    };
    let orders: Vec<u8> = text.lines().enumerate().map(order).collect::<Result<_>>()?;
    anyhow::ensure!(!orders.is_empty(), "{}: no requests", path.display());
    Ok(orders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_read_and_what_is_none_is_told() {
        let file = std::env::temp_dir().join(format!("farmem-trace-{}.txt", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            read_trace(&file).map_err(|e| format!("{e:#}"))
        };
        assert_eq!(read("0 3\n127 9\n165 0\n"), Ok(vec![3, 9, 0]));
        for (bad, line) in [("0 3\nx\n", "line 2"), ("5 10\n", "line 1"), ("5\n", "line 1"), ("", "no requests")] {
            assert!(read(bad).unwrap_err().contains(line), "{bad:?}");
        }
        std::fs::remove_file(file).unwrap();
    }
}
