//! A program under `farmem track`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::child::{Speed, hold};
use super::workloads::Name;
use crate::redis::{Order, Server};
use farmem_kit::supervise::{self, Group};

/// What the tracker said of all its pooled windows.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Dirtied {
    /// Windows that count.
    pub windows: usize,
    /// Their length.
    pub seconds: f64,
    /// Pages of which a byte changed.
    pub dirty_pages: u64,
    /// Lines.
    pub dirty_lines: u64,
    /// Bytes that changed.
    pub changed_bytes: u64,
    /// Bytes of lines for each byte that changed.
    pub per_byte_64: Option<f64>,
    /// Of pages.
    pub per_byte_4k: Option<f64>,
    /// Of blocks of 2 MiB.
    pub per_byte_2m: Option<f64>,
    /// Bytes of pages for each byte of lines.
    pub pages_over_lines: Option<f64>,
}

#[derive(Deserialize)]
struct Found {
    pooled: Dirtied,
    windows: Vec<Window>,
}

#[derive(Deserialize)]
struct Window {
    seconds: f64,
    pause: Pause,
}

#[derive(Deserialize)]
struct Pause {
    total: f64,
}

/// How a tracker is told to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tracker {
    /// Not at all.
    None,
    /// Lines, written pages found by protection.
    Lines,
    /// Lines, by reading everything: no write faults, as tracking in hardware would have none.
    Reading,
    /// Pages by protection alone.
    Pages,
}

impl Tracker {
    /// Heads a column.
    pub fn name(self) -> &'static str {
        match self {
            Tracker::None => "untracked",
            Tracker::Lines => "lines",
            Tracker::Reading => "lines, by reading all",
            Tracker::Pages => "pages, by write protection",
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Tracker::None | Tracker::Lines => &[],
            Tracker::Reading => &["--find", "read"],
            Tracker::Pages => &["--wp"],
        }
    }
}

/// A window of the trackers' here, KTracker's.
const WINDOW: &str = "1s";
/// What is looked at goes through its memory in so long: a window is a tenth of it, as it is where a program counts
/// its own stores. At full speed these small programs dirty all of their memory in every window.
pub const PASS_SECONDS: f64 = 10.0;

/// Tracks a process for so many windows. Programs are small and dirty little: no window with a page is idle.
///
/// # Errors
/// The tracker's.
pub fn dirtied(farmem: &Path, pid: u32, windows: usize) -> anyhow::Result<Dirtied> {
    let json = supervise::output(
        Command::new(farmem)
            .args(["track", "--json", "-", "--window", WINDOW, "--max-pause", "500ms", "--idle-lines", "16"])
            .args(["--windows", &windows.to_string(), "--pid", &pid.to_string()]),
        Duration::from_secs(60 + 3 * windows as u64),
    )?;
    let found: Found = serde_json::from_str(&json).context("what farmem track printed")?;
    Ok(found.pooled)
}

/// Tracks redis while its values are overwritten.
///
/// # Errors
/// The server's, the tracker's.
pub fn redis_dirtied(farmem: &Path, dir: &Path, keys: usize, order: Order, windows: usize) -> anyhow::Result<Dirtied> {
    let mut server = Server::start(Command::new("redis-server"), dir, keys, order)?;
    let (pid, over) = (server.pid(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let (begun, most) = (Instant::now(), keys as f64 / PASS_SECONDS);
            server.overwrite(|done| {
                hold(begun, done, most);
                !over.load(Ordering::Relaxed)
            })
        });
        std::thread::sleep(Duration::from_millis(500));
        let found = dirtied(farmem, pid, windows);
        over.store(true, Ordering::Relaxed);
        writing.join().expect("does not panic")?;
        found
    })
}

/// A program of ours, ready to be looked at.
pub struct Program {
    group: Group,
    out: BufReader<std::process::ChildStdout>,
}

impl Program {
    /// Starts it and waits until its memory is filled.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(farmem: &Path, name: Name, scale: u32, options: &[String]) -> anyhow::Result<Program> {
        let mut command = Command::new(farmem);
        command.args(["bench-child", "kona", name.text(), "--scale", &scale.to_string()]).args(options);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut group = Group::start(&mut command)?;
        let mut out = BufReader::new(group.process().stdout.take().context("its output")?);
        let mut line = String::new();
        out.read_line(&mut line)?;
        ensure!(line == "ready\n", "{} does not start", name.text());
        Ok(Program { group, out })
    }

    /// Its process.
    pub fn pid(&mut self) -> u32 {
        self.group.process().id()
    }

    /// What it says when its time is over.
    ///
    /// # Errors
    /// It failed.
    pub fn speed(mut self) -> anyhow::Result<Speed> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }
}

/// Before a program is measured a tracker has this long to begin.
const WARM_UP: f64 = 2.0;

/// How fast a program is with a tracker at it, and for which share of the time that made it stand.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Operations a second.
    pub per_second: f64,
    /// Share of the time that it stood still for looks.
    pub stood: f64,
}

impl Cost {
    /// Operations for each second in which it ran.
    pub fn per_running_second(&self) -> f64 {
        self.per_second / (1.0 - self.stood)
    }
}

/// Measures a program of ours.
///
/// # Errors
/// The program's, the tracker's.
pub fn cost(farmem: &Path, name: Name, scale: u32, seconds: f64, tracker: Tracker) -> anyhow::Result<Cost> {
    let options = [format!("--warm-up={WARM_UP}"), format!("--seconds={seconds}")];
    let mut program = Program::start(farmem, name, scale, &options)?;
    let pid = program.pid();
    meanwhile(farmem, pid, seconds, tracker, || program.speed())
}

/// Measures redis, whose values are overwritten at random.
///
/// # Errors
/// As [`cost`].
pub fn redis_cost(farmem: &Path, dir: &Path, keys: usize, seconds: f64, tracker: Tracker) -> anyhow::Result<Cost> {
    let mut server = Server::start(Command::new("redis-server"), dir, keys, Order::Random)?;
    let pid = server.pid();
    meanwhile(farmem, pid, seconds, tracker, || {
        let mut work = |seconds: f64| -> anyhow::Result<Speed> {
            let begun = Instant::now();
            let ops = server.overwrite(|_| begun.elapsed().as_secs_f64() < seconds)?;
            Ok(Speed { ops, seconds: begun.elapsed().as_secs_f64() })
        };
        work(WARM_UP)?;
        let speed = work(seconds)?;
        server.end()?;
        Ok(speed)
    })
}

/// Has a tracker at a process while that works, warms up first, and ends.
fn meanwhile(
    farmem: &Path,
    pid: u32,
    seconds: f64,
    tracker: Tracker,
    work: impl FnOnce() -> anyhow::Result<Speed>,
) -> anyhow::Result<Cost> {
    if tracker == Tracker::None {
        let speed = work()?;
        return Ok(Cost { per_second: speed.ops as f64 / speed.seconds, stood: 0.0 });
    }
    let mut track = Command::new(farmem);
    track.args(["track", "--json", "-", "--window", WINDOW, "--max-pause", "1s", "--pid", &pid.to_string()]);
    track.args(tracker.options());
    // It ends when the program does.
    let limit = Duration::from_secs_f64(60.0 + 4.0 * seconds);
    let tracking = std::thread::spawn(move || supervise::output(&mut track, limit));
    let speed = work()?;
    let json = tracking.join().expect("does not panic")?;
    let found: Found = serde_json::from_str(&json).context("what farmem track printed")?;
    // The last windows are those of the measured time; before them lies the warm-up, in which the tracker begins.
    let measured = found.windows.iter().rev().take(seconds as usize);
    let (ran, stood) =
        measured.fold((0.0, 0.0), |(ran, stood), window| (ran + window.seconds, stood + window.pause.total));
    ensure!(ran > 0.0, "the tracker began so late that it ended no window: is this machine busy?");
    Ok(Cost { per_second: speed.ops as f64 / speed.seconds, stood: stood / (ran + stood) })
}
