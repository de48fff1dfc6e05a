//! `bench kv --calls`: one call of the store's libraries, on keys that the near cache has.
//!
//! ```text
//! this process ──► farmem node
//!      └─► one program a language, NODE get|put CALLS ──► the CPU time of a call of its thread
//!          the same under valgrind, twice ──► instructions of a call, by the difference
//! ```
//!
//! The node is reached through shared memory. Each program stores 1000 values of 512 bytes. It waits
//! 2 s for the lease by which a front end that is alone answers without asking the node.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::systems::{self, Settings};
use anyhow::{Context, Result, bail, ensure};
use farmem_kit::environment::Environment;
use farmem_kit::pairs::{Rounds, Spread};
use farmem_kit::report::{Bound, Report, Section, Skipped, Target};
use farmem_kit::supervise;
use farmem_kit::table::{Table, duration};
use farmem_kv::{Config, Store};
use farmem_sys::raw::thread_cpu_ns;
use serde::Serialize;

const C: &str = include_str!("calls.c");
const PYTHON: &str = include_str!("calls.py");
const BINDINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bindings");

const KEYS: u64 = 1000;
const BYTES: usize = 512;
/// Until a front end that is alone has its lease.
const LEASE: Duration = Duration::from_secs(2);
/// Calls in a run under valgrind, and in the other one.
const COUNTED: [u64; 2] = [20_000, 120_000];

/// A call, by language.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Call {
    language: Language,
    what: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Language {
    Rust,
    C,
    Python,
}

const LANGUAGES: [Language; 3] = [Language::Rust, Language::C, Language::Python];

impl Language {
    fn name(self) -> &'static str {
        match self {
            Language::Rust => "Rust",
            Language::C => "C",
            Language::Python => "Python",
        }
    }
}

/// A directory that goes with this value.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The programs, ready to run.
struct Programs {
    farmem: PathBuf,
    library: PathBuf,
    scratch: Scratch,
}

impl Programs {
    /// Makes those that can be made here; why the others cannot.
    fn ready(farmem: &Path) -> Result<(Programs, Vec<Language>, Vec<Skipped>)> {
        let scratch = Scratch(std::env::temp_dir().join(format!("farmem-lab-calls-{}", std::process::id())));
        std::fs::create_dir_all(&scratch.0)?;
        let library = farmem.with_file_name("libfarmem_store.so");
        let programs = Programs { farmem: farmem.to_owned(), library, scratch };
        let (mut there, mut skipped) = (Vec::new(), Vec::new());
        for language in LANGUAGES {
            match programs.make(language) {
                Ok(()) => there.push(language),
                Err(error) => skipped.push(Skipped { system: language.name().into(), reason: format!("{error:#}") }),
            }
        }
        Ok((programs, there, skipped))
    }

    fn make(&self, language: Language) -> Result<()> {
        let (dir, library) = (&self.scratch.0, &self.library);
        ensure!(
            language == Language::Rust || library.exists(),
            "{} is not there: build farmem-store",
            library.display()
        );
        match language {
            Language::Rust => Ok(()),
            Language::C => {
                std::fs::write(dir.join("calls.c"), C)?;
                let mut command = Command::new("gcc");
                command.args(["-O2", "-o"]).arg(dir.join("calls")).arg(format!("-I{BINDINGS}/c"));
                said(command.arg(dir.join("calls.c")).arg(library)).map(|_| ())
            }
            Language::Python => {
                std::fs::write(dir.join("calls.py"), PYTHON)?;
                said(Command::new("python3").arg("--version")).map(|_| ())
            }
        }
    }

    fn command(&self, call: Call, node: &str, calls: u64) -> Vec<String> {
        let calls = calls.to_string();
        let at = |file: &str| self.scratch.0.join(file).display().to_string();
        let mut words = match call.language {
            Language::Rust => {
                let farmem = self.farmem.display().to_string();
                return vec![farmem, "bench".into(), "kv".into(), "--call".into(), [node, call.what, &calls].join(" ")];
            }
            Language::C => vec![at("calls")],
            Language::Python => vec!["python3".into(), at("calls.py")],
        };
        words.extend([node.to_owned(), call.what.to_owned(), calls]);
        words
    }

    /// Runs a program, behind the words of another.
    fn run(&self, before: &[&str], call: Call, node: &str, calls: u64) -> Result<(String, String)> {
        let words: Vec<String> =
            before.iter().map(|&word| word.to_owned()).chain(self.command(call, node, calls)).collect();
        let mut command = Command::new(&words[0]);
        let dir = self.library.parent().unwrap_or(Path::new("."));
        command.args(&words[1..]).env("LD_LIBRARY_PATH", dir);
        command.env("PYTHONPATH", format!("{BINDINGS}/python")).env("FARMEM_STORE_LIBRARY", &self.library);
        said(command.env("PYTHONDONTWRITEBYTECODE", "1"))
    }

    fn time(&self, call: Call, node: &str, calls: u64) -> Result<f64> {
        let (out, _) = self.run(&[], call, node, calls)?;
        out.trim().parse().with_context(|| format!("{out:?} is no time"))
    }

    fn instructions(&self, call: Call, node: &str) -> Result<f64> {
        let file = format!("--cachegrind-out-file={}", self.scratch.0.join("counts").display());
        let valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", &file];
        let [few, many] = COUNTED.map(|calls| {
            let (_, told) = self.run(&valgrind, call, node, calls)?;
            instructions(&told).with_context(|| format!("valgrind counted nothing: {told}"))
        });
        Ok((many? - few?) / (COUNTED[1] - COUNTED[0]) as f64)
    }
}

/// The sum that cachegrind tells: `==7== I refs: 1,234`, with spaces.
fn instructions(told: &str) -> Option<f64> {
    let line = told.lines().find_map(|line| line.split_once("I ")?.1.trim_start().strip_prefix("refs:"))?;
    line.trim().replace(',', "").parse().ok()
}

/// Runs a program; its standard output and standard error.
fn said(command: &mut Command) -> Result<(String, String)> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, err.lines().last().unwrap_or_default());
    }
    Ok((out, err))
}

/// The program in Rust: prints the CPU time of a call, in ns. `part`: `NODE get|put CALLS`.
///
/// # Errors
/// The node cannot be reached, or a value is not found.
pub fn serve(part: &str) -> Result<()> {
    let words: Vec<&str> = part.split(' ').collect();
    let &[node, what, calls] = &words[..] else { bail!("--call is {part:?}: NODE get|put CALLS") };
    let calls: u64 = calls.parse().context("the number of calls")?;
    let mut store = Store::open_as(&Config::of("calls", &[node]))?;
    let keys: Vec<String> = (0..KEYS).map(|n| format!("key:{n:04}")).collect();
    let value = [0; BYTES];
    keys.iter().try_for_each(|key| store.put(key.as_bytes(), &value))?;
    let begun = Instant::now();
    while begun.elapsed() < LEASE {
        store.tend()?;
        std::thread::sleep(Duration::from_millis(20));
    }
    for key in &keys {
        ensure!(store.get(key.as_bytes())?.is_some_and(|found| found.len() == BYTES), "{key} is not there");
    }
    let begun = thread_cpu_ns();
    for key in keys.iter().cycle().take(calls as usize) {
        match what {
            "get" => ensure!(store.get(key.as_bytes())?.is_some(), "{key} is not there"),
            _ => store.put(key.as_bytes(), &value)?,
        }
    }
    println!("{:.1}", (thread_cpu_ns() - begun) as f64 / calls as f64);
    Ok(store.close()?)
}

/// Everything that was found, for machines.
#[derive(Serialize)]
pub struct Raw {
    /// Language, call, CPU time in ns by round, instructions.
    calls: Vec<(&'static str, &'static str, Vec<f64>, Option<f64>)>,
}

/// Runs it all.
///
/// # Errors
/// The node does not start, or a program fails.
pub fn report(farmem: &Path, rounds: usize, quick: bool) -> Result<Report<Raw>> {
    let (programs, languages, mut skipped) = Programs::ready(farmem)?;
    let settings = Settings {
        farmem: farmem.to_owned(),
        transport: "shm",
        data: 1 << 20,
        local: 64 << 20,
        maxmemory: None,
        clients: 1,
        processes: 1,
    };
    let (_node, node) = systems::node(&settings)?;
    let calls: Vec<Call> =
        languages.iter().flat_map(|&language| ["get", "put"].map(|what| Call { language, what })).collect();
    let count = if quick { 100_000 } else { 1_000_000 };
    let measured = Rounds::interleave(&calls, rounds, |call, _| {
        supervise::interrupted()?;
        programs.time(call, &node, count).map(Some)
    })?;
    let mut counted = Vec::new();
    for &call in &calls {
        supervise::interrupted()?;
        // An interpreter's are not ours to count.
        if call.language == Language::Python {
            counted.push(None);
            continue;
        }
        let came = programs.instructions(call, &node).map_err(|error| {
            let system = format!("instructions, {} {}", call.language.name(), call.what);
            skipped.push(Skipped { system, reason: format!("{error:#}") });
        });
        counted.push(came.ok());
    }
    let spread = |call: Call| measured.spread(call, |time| Some(*time));
    let mut table = Table::new(["call", "CPU time", "from", "to", "instructions"]);
    let mut raw = Raw { calls: Vec::new() };
    for (&call, &counted) in calls.iter().zip(&counted) {
        let Some(Spread { median, min, max, .. }) = spread(call) else { continue };
        let [median, min, max] = [median, min, max].map(duration);
        let counted_text = counted.map_or("–".into(), |counted| format!("{counted:.0}"));
        table.row([format!("{} {}", call.language.name(), call.what), median, min, max, counted_text]);
        raw.calls.push((call.language.name(), call.what, measured.of(call).copied().collect(), counted));
    }
    let get = spread(Call { language: Language::Rust, what: "get" });
    Ok(Report {
        bench: "kv-calls",
        method: vec![
            format!(
                "{KEYS} values of {BYTES} bytes, all in the near cache of a front end that is alone. Shared memory."
            ),
            format!(
                "CPU time of the thread that calls, {count} calls, {rounds} rounds: the median, the least, the most."
            ),
            "Instructions: of the whole process under valgrind, in user mode; Python's are not counted.".into(),
        ],
        environment: Environment::read(),
        skipped,
        sections: vec![Section { title: "One call of a library".into(), table }],
        targets: vec![Target::new("an embedded GET in Rust, all local, ns", Bound::AtMost(300.0, 150.0), get)],
        raw,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_valgrind_tells_is_read() {
        assert_eq!(instructions("==7== \n==7== I refs:        1,234,567\n"), Some(1_234_567.0));
        assert_eq!(instructions("==7== I   refs:      12\n"), Some(12.0));
        assert_eq!(instructions("==7== no such line"), None);
    }
}
