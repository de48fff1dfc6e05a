//! Which lines a running program dirties: `farmem track`.
//!
//! How much of a page is dirty matters for sending dirty pages over a network. Kona's authors
//! (ASPLOS '21) measured it by a tool of theirs, KTracker. Every second it stops a program, reads
//! all of its memory, compares it with the bytes read before, and counts the lines that differ.
//! This is such a tool for daily use: it reads only pages that the kernel says were written, it
//! bounds its pauses, and it says what it cannot see.
//!
//! | file | |
//! |---|---|
//! | [`session`] | windows: run, hold, look, go on, count |
//! | [`program`], [`tracees`], [`threads`], [`inject`], [`frame`] | the program: attached or started, held, let go; made to track its writes |
//! | [`find`], [`look`], [`sight`] | which pages were written, and their bytes |
//! | [`sample`], [`watch`] | how much of it is watched; which blocks these are |
//! | [`account`] | from looks to counts, with no I/O |
//! | [`maps`], [`cover`], [`moves`], [`snapshot`], [`diff`], [`count`] | its parts |
//! | [`report`] | rows, a summary, JSON, a histogram |
//!
//! Decisions and their reasons: `docs/design/track.md`.

pub mod account;
pub mod count;
pub mod cover;
pub mod diff;
pub mod find;
pub mod frame;
pub mod inject;
pub mod look;
pub mod maps;
pub mod moves;
pub mod program;
pub mod report;
pub mod sample;
pub mod session;
pub mod sight;
pub mod snapshot;
pub mod threads;
pub mod tracees;
pub mod watch;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use farmem_kit::usage::Usage;
use farmem_sys::ptrace::Follow;

use count::Window;
use find::Way;
use report::Report;
use session::{Session, Settings};

/// Which pages, lines and bytes a program dirties, and what moving them would cost
///
/// Attaches to a running process or starts a program, and looks at its memory at the end of every
/// window: dirty pages, dirty lines, bytes that changed, and how many bytes would move for each
/// that changed if dirt were tracked in lines of 64 B, pages of 4 KiB or blocks of 2 MiB. The
/// program stands still during a look, for no longer than --max-pause; otherwise it runs as ever,
/// and goes on unharmed when tracking ends.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub struct Track {
    /// The process to attach to
    #[arg(long, value_name = "PID", value_parser = process, required_unless_present = "command", conflicts_with = "command")]
    pid: Option<u32>,
    /// Length of a window
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    window: Duration,
    /// End after so many windows
    #[arg(long, value_name = "N")]
    windows: Option<usize>,
    /// End after this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// The longest that the program may stand still for a look; where that is too short for all of
    /// its memory, a sample is watched
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = time)]
    max_pause: Duration,
    /// The most that may be copied of its memory: 512M, 8G, or a number of MiB; beyond it a sample is
    /// watched [default: a quarter of this machine's RAM]
    #[arg(long, value_name = "SIZE", value_parser = mib)]
    max_memory: Option<u64>,
    /// A window with fewer dirty lines is idle and left out of the pooled figures
    #[arg(long, value_name = "N", default_value_t = 1024)]
    idle_lines: u64,
    /// How written pages are found [default: the first that works]
    #[arg(long, value_name = "WAY", value_enum)]
    find: Option<Way>,
    /// Only find written pages, as a tracker by write protection does: no lines, no bytes
    #[arg(long)]
    wp: bool,
    /// Track the processes that it forks, too
    #[arg(long)]
    follow_forks: bool,
    /// Write every figure here; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw how many lines of a dirty page are dirty
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// The program to start, and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  farmem track --pid $(pidof redis-server) --windows 10
      Ten seconds of a server that runs. Ctrl-C ends it earlier; the server
      notices nothing.

  farmem track --window 200ms --svg lines.svg -- python3 analysis.py
      A program from its start to its end.

Reading it: ×4 KiB is how many bytes would move for each byte that changed if whole pages moved; \
pages/lines is how many times more than the dirty lines that would be. Windows that are idle, the \
first, and those cut short by --max-pause are shown but left out of the pooled figures. A store of the \
value that is there already changes nothing and is not seen.

Attaching needs the right to trace: one's own processes, where kernel.yama.ptrace_scope is 0 (most \
distributions set 1: then start the program by farmem track -- PROGRAM, or be root).";

fn process(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "not the number of a process".into())
}

/// A size in MiB.
fn mib(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "m" | "mb" | "mib" => 0,
        "g" | "gb" | "gib" => 10,
        "t" | "tb" | "tib" => 20,
        _ => return Err("write it as 512M or 8G".into()),
    };
    let number: u64 = number.parse().map_err(|_| "write it as 512M or 8G".to_owned())?;
    let mib = number.checked_mul(1 << shift).filter(|mib| (1..=1 << 24).contains(mib));
    mib.ok_or("must be from 1M to 16T".into())
}

fn time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim() {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err("write it as 200ms, 1s or 2m".into()),
    };
    let seconds = number.parse::<f64>().map_err(|_| "write it as 200ms, 1s or 2m".to_owned())? * unit;
    if !(1e-3..=1e6).contains(&seconds) {
        return Err("must be from 1ms to 11 days".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

impl Track {
    /// Tracks, and prints what came of it.
    ///
    /// # Errors
    /// This kernel cannot be asked as demanded, the process may not be traced, the program cannot
    /// be started, a file cannot be written.
    pub fn run(self) -> anyhow::Result<()> {
        let settings = self.settings().map_err(Usage::of)?;
        for file in self.json.iter().chain(&self.svg).filter(|file| file.as_os_str() != "-") {
            let made = std::fs::File::create(file);
            made.with_context(|| format!("writing {}", file.display())).map_err(Usage::of)?;
        }
        let (tracees, pid) = match self.pid {
            Some(pid) => (program::attach(pid, settings.follow).map_err(Usage::of)?, pid),
            None => program::start(&self.command, settings.follow)?,
        };
        let program = shown(&match self.pid {
            Some(pid) => format!("process {pid} ({})", name(pid)),
            None => self.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "),
        });
        let to_json = self.json.as_ref().is_some_and(|file| file.as_os_str() == "-");
        // A started program's own output is on standard output.
        let aside = !self.command.is_empty() || to_json;
        let show = |text: &str| {
            // The reader may be gone; the files are written all the same.
            let _ = if aside { writeln!(std::io::stderr(), "{text}") } else { writeln!(std::io::stdout(), "{text}") };
        };
        if std::io::stderr().is_terminal() && self.pid.is_some() {
            show("attached; Ctrl-C ends tracking and lets the program go");
        }
        show(&report::table::head());
        let mut session = Session::new(tracees, pid, settings);
        let mut windows: Vec<Window> = Vec::new();
        let ended = session.run(|window| {
            show(&report::table::row(window));
            windows.push(window.clone());
        });
        let remarks = session.remarks().map(str::to_owned).collect();
        let ways = session.ways();
        session.leave();
        let report = Report { program, settings: &settings, windows: &windows, end: ended?, remarks, ways };
        show(&format!("\n{report}"));
        if let Some(file) = &self.svg {
            let pooled = count::Pooled::of(windows.iter());
            std::fs::write(file, report::histogram::svg(&report.program, &pooled.total))
                .with_context(|| format!("writing {}", file.display()))?;
        }
        if let Some(file) = &self.json {
            let json = report.json()?;
            match to_json {
                true => println!("{json}"),
                false => std::fs::write(file, json).with_context(|| format!("writing {}", file.display()))?,
            }
        }
        Ok(())
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        ensure!(self.windows != Some(0), "--windows 0: nothing would be tracked");
        ensure!(!(self.wp && self.svg.is_some()), "--wp finds pages and no lines: --svg has nothing to draw");
        let way = self.find.unwrap_or_else(find::best);
        if let Err(why) = find::probe(way) {
            anyhow::bail!(
                "written pages cannot be found this way on this kernel: {why}; leave --find out to have the best that works"
            );
        }
        ensure!(
            !(self.wp && way == Way::Read),
            "--wp needs a kernel that tells which pages were written, and this one does not: {}; {}",
            find::probe(Way::Protect).err().unwrap_or_else(|| "--find read was asked for".into()),
            find::probe(Way::SoftDirty).err().unwrap_or_default()
        );
        let max_memory = self.max_memory.map_or_else(|| machine_memory() / 4, |mib| mib << 20);
        Ok(Settings {
            window: self.window,
            windows: self.windows,
            duration: self.duration,
            max_pause: self.max_pause,
            max_memory,
            idle_lines: self.idle_lines,
            way,
            pages_only: self.wp,
            follow: Follow { forks: self.follow_forks },
        })
    }
}

fn machine_memory() -> u64 {
    farmem_kit::environment::Environment::read().memory_bytes
}

/// A program's name or command as a part of one line: at most 100 characters, and `?` for what
/// would turn the line or move a cursor.
fn shown(program: &str) -> String {
    const MOST: usize = 100;
    let plain = |c: char| if c.is_control() { '?' } else { c };
    if program.chars().count() <= MOST {
        return program.chars().map(plain).collect();
    }
    program.chars().take(MOST - 1).map(plain).chain(['…']).collect()
}

fn name(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).map_or_else(|_| "gone".into(), |name| name.trim().to_owned())
}
