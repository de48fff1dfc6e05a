//! Timed accesses: one thread or two, one sample each.
//!
//! The figure that ratios are made of is the *mean*: a phase's wall time over
//! its accesses. It hides nothing: what a system does between two accesses, on
//! the same core, counts. Per-access samples give the median and the tail. The
//! loop around an access (drawing a page, checking the word, counting the sample)
//! is some 15 ns, the same under every system, and is left in the mean; the clock's
//! own cost is taken out of samples.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use farmem_sys::clock;
use serde::{Deserialize, Serialize};

use farmem_kit::affinity;
use farmem_kit::histogram::Histogram;

/// Who runs besides the measured thread.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Threads {
    /// Nobody.
    Solo,
    /// A second thread of the program, spinning on the other CPU: each TLB flush must interrupt it.
    Spinner,
    /// A second thread doing the same, on the other CPU.
    Both,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Fresh memory, page after page, one word each; it fits into local memory.
    FirstTouch,
    /// The array being filled, every word: first touches that push older pages out.
    Fill,
    /// One word of a page drawn at random.
    RandomRead,
    /// One word of a page drawn at random, incremented.
    RandomWrite,
    /// A random read of the bare mechanism, with as many pages that leave as come in.
    PagedRead,
    /// A random write of the same.
    PagedWrite,
    /// One word of each page in order, with random writes just behind: what they wrote has to leave.
    ReadAfterWrites,
    /// One word of each page in order, once more.
    SequentialRead,
    /// A 32-byte request answered with 4 KiB over TCP loopback, both ends spinning.
    RoundTrip,
}

/// A phase's figures, per access, ns.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Phase {
    /// What.
    pub what: What,
    /// With whom.
    pub threads: Threads,
    /// Accesses by all threads.
    pub accesses: u64,
    /// Wall time of a thread over its accesses.
    pub mean_ns: f64,
    /// Half of the samples were shorter.
    pub p50_ns: u64,
    /// 99 of 100 were.
    pub p99_ns: u64,
    /// 999 of 1000 were.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Faults meanwhile.
    pub faults: super::faults::Faults,
}

/// Where and how often.
#[derive(Clone, Copy)]
pub struct Placement {
    /// CPUs of the two threads; `None` leaves them to the scheduler.
    pub cpus: Option<[usize; 2]>,
}

impl Placement {
    fn take(self, thread: usize) {
        if let Some(cpus) = self.cpus {
            // A failure shows as a machine with one CPU does: in the figures. The parent has checked the CPUs.
            let _ = affinity::pin(&[cpus[thread]]);
        }
    }
}

/// Samples of one thread.
#[derive(Default)]
pub struct Samples {
    histogram: Histogram,
    accesses: u64,
    wall_ns: u64,
    clock_ticks: u64,
}

impl Samples {
    /// With the clock's cost measured.
    pub fn new() -> Samples {
        let clock_ticks = (0..1000).map(|_| {
            let begun = clock::ticks();
            clock::ticks() - begun
        });
        Samples { clock_ticks: clock_ticks.min().unwrap_or(0), ..Samples::default() }
    }

    /// Times one access.
    #[inline(always)]
    pub fn take<T>(&mut self, access: impl FnOnce() -> T) -> T {
        let begun = clock::ticks();
        let value = access();
        let ticks = (clock::ticks() - begun).saturating_sub(self.clock_ticks);
        self.histogram.record(clock::ns(ticks));
        self.accesses += 1;
        value
    }

    /// Adds a stretch of wall time in which samples were taken.
    pub fn timed(&mut self, body: impl FnOnce(&mut Samples) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let begun = Instant::now();
        let done = body(self);
        self.wall_ns += begun.elapsed().as_nanos() as u64;
        done
    }

    fn merge(&mut self, other: &Samples) {
        self.histogram.merge(&other.histogram);
        self.accesses += other.accesses;
        self.wall_ns += other.wall_ns;
    }

    /// The figures.
    pub fn into_phase(self, what: What, threads: Threads, faults: super::faults::Faults) -> Phase {
        Phase {
            what,
            threads,
            accesses: self.accesses,
            mean_ns: self.wall_ns as f64 / self.accesses.max(1) as f64,
            p50_ns: self.histogram.quantile(0.5),
            p99_ns: self.histogram.quantile(0.99),
            p999_ns: self.histogram.quantile(0.999),
            max_ns: self.histogram.max(),
            faults,
        }
    }
}

/// Runs `body` on the measured thread, or on both, and adds up their samples.
///
/// `body` gets the number of its thread, does its own warm-up, and times itself with [`Samples::timed`];
/// `start` in between lets two threads begin together.
pub fn run<F>(threads: Threads, placement: Placement, body: F) -> anyhow::Result<Samples>
where
    F: Fn(usize, &mut Samples, &dyn Fn()) -> anyhow::Result<()> + Sync,
{
    let mut mine = Samples::new();
    match threads {
        Threads::Solo => {
            placement.take(0);
            body(0, &mut mine, &|| ())?;
        }
        Threads::Spinner => {
            let _spinning = Spinner::start(placement);
            placement.take(0);
            body(0, &mut mine, &|| ())?;
        }
        Threads::Both => {
            let both = Barrier::new(2);
            let start = || {
                both.wait();
            };
            std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    placement.take(1);
                    let mut theirs = Samples::new();
                    body(1, &mut theirs, &start).map(|()| theirs)
                });
                placement.take(0);
                body(0, &mut mine, &start)?;
                let theirs = other.join().map_err(|_| anyhow::anyhow!("the second thread died"))??;
                mine.merge(&theirs);
                anyhow::Ok(())
            })?;
        }
    }
    Ok(mine)
}

/// A thread that runs and does nothing, until dropped.
struct Spinner {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Spinner {
    fn start(placement: Placement) -> Spinner {
        let stop = Arc::new(AtomicBool::new(false));
        let (running, seen) = (Arc::new(Barrier::new(2)), Arc::clone(&stop));
        let spinning = Arc::clone(&running);
        let thread = std::thread::spawn(move || {
            placement.take(1);
            spinning.wait();
            while !seen.load(Ordering::Relaxed) {
                // No spin hint: it would let a hypervisor take the CPU away.
            }
        });
        running.wait();
        Spinner { stop, thread: Some(thread) }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}
