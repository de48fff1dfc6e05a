//! The tortured program itself: run natively it must pass too.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::commons::Commons;
use crate::operations::NAMES;
use crate::ops::Worker;
use crate::report::{self, STUCK};
use crate::stamp::PAGE;
use crate::sys;
use farmem_protocol::random::hash;

/// No step takes longer than this but on a machine that is lost.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The tortured program. `farmem-lab torture` starts it under `farmem run`.
#[derive(clap::Args, Clone, Debug)]
pub struct Child {
    /// The streams' seed.
    #[arg(long)]
    pub seed: u64,
    /// Seconds to go on.
    #[arg(long, default_value_t = 30)]
    pub seconds: u64,
    /// Threads.
    #[arg(long, default_value_t = 4)]
    pub threads: usize,
    /// Memory of each thread, MiB.
    #[arg(long, default_value_t = 32)]
    pub mib: usize,
    /// Also run on stacks in far memory.
    #[arg(long)]
    pub far_stacks: bool,
    /// Also let signals arrive, a thousand a second.
    #[arg(long)]
    pub signals: bool,
    /// The line that runs this again, for reports.
    #[arg(long, default_value = "")]
    pub replay: String,
}

/// What a thread tells the watchdog: `step << 8 | operation`, and its handle.
/// Static, so never far.
static PROGRESS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
static HANDLES: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
static STOP: AtomicBool = AtomicBool::new(false);

impl Child {
    /// Bytes of memory under torture, all threads together.
    pub fn bytes(&self) -> u64 {
        (self.threads * self.mib) as u64 * (1 << 20)
    }

    /// Runs to the end of its time; ends the process with a report at the first mismatch.
    ///
    /// # Errors
    /// If it cannot be set up.
    pub fn run(&self) -> anyhow::Result<()> {
        anyhow::ensure!((1..=32).contains(&self.threads), "between 1 and 32 threads");
        anyhow::ensure!((1..=2048).contains(&self.mib), "between 1 and 2048 MiB a thread");
        let _ = report::REPLAY.set(self.replay.clone());
        let commons = Commons::new()?;
        if self.signals {
            sys::handle_signals(commons.signals())?;
        }
        let worker = |thread| Worker::new(thread, self.mib * (1 << 20) / PAGE, self.seed, self.far_stacks, commons);
        let mut steps = 0;
        if self.threads == 1 {
            steps = self.alone(worker(0)?)?;
        } else {
            let workers: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let worker = worker(thread)?;
                    Ok(std::thread::spawn(move || work(thread, worker, || STOP.load(Ordering::Relaxed))))
                })
                .collect::<anyhow::Result<_>>()?;
            self.watch();
            for worker in workers {
                steps += worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?;
            }
        }
        commons.close();
        println!("torture: {steps} steps in {} threads, every byte as it must be", self.threads);
        Ok(())
    }

    /// One thread is the program's first and only one, as most programs have it. Its signals come from a timer; who started it
    /// watches over it.
    fn alone(&self, worker: Worker) -> anyhow::Result<u64> {
        let end = Instant::now() + Duration::from_secs(self.seconds);
        sys::signal_each_millisecond(self.signals)?;
        let steps = work(0, worker, || Instant::now() >= end);
        sys::signal_each_millisecond(false)?;
        Ok(steps)
    }

    /// Until the time is over: signals, and the watch over progress.
    fn watch(&self) {
        let end = Instant::now() + Duration::from_secs(self.seconds);
        let mut seen = [(0, Instant::now()); 64];
        let mut turn = 0u64;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(if self.signals { 1 } else { 100 }));
            turn += 1;
            let thread = hash(turn) as usize % self.threads;
            let handle = HANDLES[thread].load(Ordering::Acquire);
            if self.signals && handle != 0 {
                sys::signal_thread(handle as libc::pthread_t);
            }
            self.check_progress(&mut seen);
        }
        STOP.store(true, Ordering::Relaxed);
        let last = Instant::now();
        while (0..self.threads).any(|thread| HANDLES[thread].load(Ordering::Acquire) != 0) {
            std::thread::sleep(Duration::from_millis(20));
            if last.elapsed() > PATIENCE * 3 {
                self.stuck(0..self.threads);
            }
        }
    }

    fn check_progress(&self, seen: &mut [(u64, Instant); 64]) {
        for (thread, seen) in seen.iter_mut().enumerate().take(self.threads) {
            let now = PROGRESS[thread].load(Ordering::Relaxed);
            if now != seen.0 {
                *seen = (now, Instant::now());
            } else if seen.1.elapsed() > PATIENCE {
                self.stuck(thread..thread + 1);
            }
        }
    }

    fn stuck(&self, threads: std::ops::Range<usize>) -> ! {
        let mut text = String::from("torture: STUCK\n");
        for thread in threads {
            let now = PROGRESS[thread].load(Ordering::Relaxed);
            text += &format!("  thread {thread} at step {} in {}\n", now >> 8, NAMES[(now & 0xff) as usize]);
        }
        report::end(STUCK, &text)
    }
}

/// One thread's life. The handle is withdrawn before the thread ends, so that no signal is sent to
/// a thread that is gone.
fn work(thread: usize, mut worker: Worker, is_over: impl Fn() -> bool) -> u64 {
    HANDLES[thread].store(sys::this_thread(), Ordering::Release);
    while !is_over() {
        worker.step(&PROGRESS[thread]);
    }
    worker.verify_all();
    HANDLES[thread].store(0, Ordering::Release);
    PROGRESS[thread].load(Ordering::Relaxed) >> 8
}
