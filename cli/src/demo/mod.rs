//! `farmem demo`: a real program with less and less local memory, in about half a minute.
//!
//! GNU sort, as it is installed everywhere, merges logs in memory: first as
//! always, then under `farmem run` with all of its memory local, then with
//! 75, 50, 25 and 10 % of it. Far memory is lent by a second process on this
//! machine. Every output is compared with the first, byte for byte.

mod input;
mod plot;

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farmem_sys::process::{self, Arrived, Signals};

use crate::failure::Failure;
use crate::size::{self, Size};
use crate::units;
use input::Lines;

/// Shares of the program's memory that are local, one after the other.
const SHARES: [f64; 5] = [1.0, 0.75, 0.5, 0.25, 0.1];

/// A run that takes longer is given up: something is wrong, and nobody should have to wait for it.
const GIVE_UP_AFTER: Duration = Duration::from_secs(180);

/// The least input that has a tenth to spare.
const LEAST: u64 = 8 << 20;
/// Bytes lent beside the buffer.
const BESIDE: u64 = 64 << 20;

const EXAMPLES: &str = "\
Examples:
  farmem demo
      Half a minute: a table, and a plot in farmem-demo.svg.

  farmem demo --input 512M --lines random --svg worst.svg
      More memory, in the order that is worst for it.";

/// Sort a file with less and less local memory; compare outputs and times
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Size of the file to sort
    #[arg(long, value_name = "SIZE", default_value = "128M")]
    pub input: Size,

    /// What the lines of the file are
    #[arg(long, value_enum, default_value_t = Lines::Logs)]
    pub lines: Lines,

    /// Where to write the plot of slowdown against local share
    #[arg(long, value_name = "FILE", default_value = "farmem-demo.svg")]
    pub svg: PathBuf,
}

/// One row of the table.
struct Row {
    /// Share of the program's memory that was local; `None` for the native run.
    share: Option<f64>,
    local: u64,
    elapsed: Duration,
    stats: serde_json::Value,
}

impl Row {
    fn stat(&self, name: &str) -> u64 {
        self.stats[name].as_u64().unwrap_or(0)
    }
}

/// Why there is no table.
enum Ended {
    Failed(Failure),
    /// By a signal that was meant to end it: Ctrl-C.
    Told(i32),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Ended {
        Ended::Failed(failure)
    }
}

/// Runs the demonstration.
pub fn run(options: &Options) -> Result<(), Failure> {
    // Before its files are made, which nobody else would remove.
    let signals = Signals::take().map_err(|e| failed("taking over signals", &e))?;
    match show(options, &signals) {
        Ok(()) => Ok(()),
        Err(Ended::Failed(failure)) => Err(failure),
        Err(Ended::Told(signal)) => process::end_by(signal),
    }
}

fn show(options: &Options, signals: &Signals) -> Result<(), Ended> {
    let ram = size::ram().map_err(|e| Failure::usage(e.to_string()))?;
    let input_bytes = options.input.bytes(ram.total);
    // The input, its sorted copy, both processes' memory: six times the input is ample.
    if ram.available < 6 * input_bytes {
        let needed = units::bytes(6 * input_bytes);
        return Err(Failure::usage(format!(
            "not enough memory for this demo: it needs {needed}; try a smaller --input"
        ))
        .into());
    }
    if input_bytes < LEAST {
        let least = units::bytes(LEAST);
        return Err(Failure::usage(format!("--input is below {least}: too little to take anything away from")).into());
    }
    can_be_written(&options.svg).map_err(|e| failed(&format!("--svg {}", options.svg.display()), &e))?;
    let place = Workplace::new()?;
    let bench = Bench { place: &place, signals, buffer: 4 * input_bytes };
    let what = match options.lines {
        Lines::Logs => "of logs from 24 machines, by time",
        Lines::Random => "of lines in no order",
    };
    println!("farmem demo: GNU sort of {} {what}, with less and less local memory\n", units::bytes(input_bytes));
    input::write(&place.file("input"), input_bytes, options.lines).map_err(|e| failed("writing the input", &e))?;

    let mut rows = vec![bench.native()?];
    // With more than enough local memory, the run shows how much far memory the program maps and
    // touches.
    let all_local = bench.far(1.0, 4 * input_bytes)?;
    let footprint = all_local.stat("local_peak");
    if footprint == 0 {
        return Err(Failure::usage("the runtime saw no memory of sort's; nothing to show").into());
    }
    rows.push(Row { local: footprint, ..all_local });
    for share in &SHARES[1..] {
        rows.push(bench.far(*share, ((footprint as f64 * share) as u64).max(1 << 20))?);
    }

    print!("\n{}", table(&rows));
    let baseline = rows[0].elapsed.as_secs_f64();
    let points: Vec<plot::Measured> = rows
        .iter()
        .filter_map(|row| {
            let share = row.share?;
            let (slowdown, local) = (row.elapsed.as_secs_f64() / baseline, units::bytes(row.local));
            Some(plot::Measured { share, slowdown, local })
        })
        .collect();
    let title = format!("GNU sort, {} of memory", units::bytes(footprint));
    fs::write(&options.svg, plot::svg(&title, &points)).map_err(|e| failed("writing the plot", &e))?;
    println!("\nAll outputs are equal to the native one, byte for byte. Plot: {}", options.svg.display());
    Ok(())
}

fn failed(doing: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure { status: 1, line: format!("{doing}: {error}") }
}

/// Told now, not half a minute later.
fn can_be_written(file: &Path) -> io::Result<()> {
    let is_new = !file.exists();
    fs::OpenOptions::new().append(true).create(true).open(file)?;
    if is_new { fs::remove_file(file) } else { Ok(()) }
}

/// A directory for the demo's files, gone when it is over.
struct Workplace(PathBuf);

impl Workplace {
    fn new() -> Result<Self, Failure> {
        let dir = std::env::temp_dir().join(format!("farmem-demo-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|e| failed("making a directory for the demo", &e))?;
        Ok(Workplace(dir))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the sort in different ways.
struct Bench<'a> {
    place: &'a Workplace,
    signals: &'a Signals,
    /// `sort -S`, bytes: the whole input is sorted in memory, never in temporary files.
    buffer: u64,
}

impl Bench<'_> {
    fn sort(&self, command: &mut Command, output: &Path) -> Result<Child, Failure> {
        self.signals.hand_back(command, true);
        command
            .args(["--parallel=2", "-S", &format!("{}b", self.buffer), "-o"])
            .arg(output)
            .arg(self.place.file("input"))
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| failed("starting sort", &e))
    }

    fn native(&self) -> Result<Row, Ended> {
        let begun = Instant::now();
        let child = self.sort(&mut Command::new("sort"), &self.place.file("native"))?;
        let elapsed = self.follow(child, "native", begun)?;
        Ok(Row { share: None, local: 0, elapsed, stats: serde_json::Value::Null })
    }

    fn far(&self, share: f64, local: u64) -> Result<Row, Ended> {
        let (output, stats) = (self.place.file("far"), self.place.file("stats"));
        let own = std::env::current_exe().map_err(|e| failed("finding this binary", &e))?;
        let mut command = Command::new(own);
        // Sort has other memory beside its buffer. Were no more lent than that takes, it would be
        // refused, and try again with a smaller one: another sort than the native one.
        command.args([
            "run",
            "--no-settings",
            "--local",
            &local.to_string(),
            "--far",
            &(self.buffer + BESIDE).to_string(),
        ]);
        command.arg("--stats").arg(format!("json:{}", stats.display())).args(["--", "sort"]);
        // The native run then makes its file again: emptying the last run's file would be a part of
        // this one's time.
        let _ = fs::remove_file(&output);
        let begun = Instant::now();
        let child = self.sort(&mut command, &output)?;
        let name = format!("{:.0} % local", share * 100.0);
        let elapsed = self.follow(child, &name, begun)?;
        if !same(&self.place.file("native"), &output).map_err(|e| failed("comparing outputs", &e))? {
            return Err(Failure { status: 1, line: format!("{name}: the output differs from the native one") }.into());
        }
        let stats = fs::read(&stats).map_err(|e| failed("reading the run's figures", &e))?;
        let stats = serde_json::from_slice(&stats).map_err(|e| failed("reading the run's figures", &e))?;
        Ok(Row { share: Some(share), local, elapsed, stats })
    }

    /// Waits for a run, showing that time passes; gives how long it took.
    fn follow(&self, mut child: Child, name: &str, begun: Instant) -> Result<Duration, Ended> {
        let live = io::stdout().is_terminal();
        let mut complaints = child.stderr.take();
        let mut told = None;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|e| failed(name, &e))? {
                break status;
            }
            let elapsed = begun.elapsed();
            if elapsed > GIVE_UP_AFTER {
                let _ = child.kill();
                let _ = child.wait();
                let line = format!("{name}: given up after {} s", GIVE_UP_AFTER.as_secs());
                return Err(Failure { status: 1, line }.into());
            }
            if live && elapsed > Duration::from_millis(200) {
                print!("\r  {name:<11} {:>6.1} s …", elapsed.as_secs_f64());
                let _ = io::stdout().flush();
            }
            // The child's end is a signal, too.
            match self.signals.next(Duration::from_millis(100)) {
                Some(Arrived {
                    number: number @ (libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT),
                    ..
                }) => {
                    told = Some(number);
                    // The run takes its files along; a terminal's Ctrl-C has told it already, which
                    // does no harm.
                    let _ = process::send(child.id(), libc::SIGTERM);
                }
                // The child has had the terminal's, too.
                Some(Arrived { number: libc::SIGTSTP, .. }) => drop(process::send(std::process::id(), libc::SIGSTOP)),
                _ => {}
            }
        };
        let elapsed = begun.elapsed();
        if let Some(signal) = told {
            return Err(Ended::Told(signal));
        }
        if !status.success() {
            let mut said = String::new();
            if let Some(pipe) = &mut complaints {
                let _ = pipe.read_to_string(&mut said);
            }
            let said = said.lines().last().unwrap_or("no message");
            return Err(Failure { status: 1, line: format!("{name}: {status}: {said}") }.into());
        }
        if live {
            // Over what was there: a tenth of a second, and dots.
            print!("\r  {name:<11} {:>6.2} s  \r", elapsed.as_secs_f64());
        }
        println!("  {name:<11} {:>6.2} s", elapsed.as_secs_f64());
        Ok(elapsed)
    }
}

fn same(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let n = one.read(&mut left)?;
        if n == 0 {
            return Ok(true);
        }
        other.read_exact(&mut right[..n])?;
        if left[..n] != right[..n] {
            return Ok(false);
        }
    }
}

fn table(rows: &[Row]) -> String {
    let baseline = rows[0].elapsed.as_secs_f64();
    let header = ["", "local", "time", "slowdown", "faults", "fetched", "in", "out", "output"].map(String::from);
    let mut cells = vec![header];
    for row in rows {
        let time = format!("{:.2} s", row.elapsed.as_secs_f64());
        let slowdown = format!("{:.2}x", row.elapsed.as_secs_f64() / baseline);
        cells.push(match row.share {
            None => ["native", "-", &time, &slowdown, "-", "-", "-", "-", "-"].map(String::from),
            Some(share) => [
                format!("{:.0} %", share * 100.0),
                units::bytes(row.local),
                time,
                slowdown,
                units::count(row.stat("faults")),
                units::count(row.stat("demand")),
                units::bytes(row.stat("bytes_in")),
                units::bytes(row.stat("bytes_out")),
                "equal".into(),
            ],
        });
    }
    units::aligned(&cells)
}
