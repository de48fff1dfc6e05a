//! The one report with which torture ends when something is wrong.

use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::operations::NAMES;
use crate::stamp::Stamp;
use crate::sys;

/// Exit status: memory did not hold what was written to it.
pub const WRONG: i32 = 66;
/// Exit status: a thread made no progress.
pub const STUCK: i32 = 67;

/// How to run again what ended so; printed with every report.
pub static REPLAY: OnceLock<String> = OnceLock::new();

/// A line that is not what it must be.
pub struct Mismatch<'a> {
    /// Which page, in words.
    pub place: &'a str,
    /// Which line of it.
    pub line: usize,
    /// What the model says.
    pub expected: Stamp,
    /// What was read.
    pub found: [u64; 8],
    /// What is read a moment later.
    pub again: [u64; 8],
    /// All lines of the page that differ.
    pub wrong_lines: Vec<usize>,
    /// The owner's step.
    pub step: u64,
    /// The operation that noticed.
    pub operation: u8,
    /// The last operations on the page, the latest first.
    pub history: Vec<(u8, u64)>,
}

/// Reports a mismatch and ends the process.
pub fn fail(m: &Mismatch<'_>) -> ! {
    let mut text = String::new();
    let _ = writeln!(text, "torture: MISMATCH in {}, line {}", m.place, m.line);
    let _ = writeln!(text, "  noticed by {} at step {}", NAMES[m.operation as usize], m.step);
    let _ = writeln!(text, "  expected {}", m.expected);
    let _ = writeln!(text, "  found    {}", Stamp::describe(&m.found, m.line));
    if m.again != m.found {
        let _ = writeln!(text, "  reads a moment later as {}", Stamp::describe(&m.again, m.line));
    }
    let _ = writeln!(text, "  wrong lines of the page: {:?}", m.wrong_lines);
    for (operation, step) in &m.history {
        let _ = writeln!(text, "  before: {} at step {step}", NAMES[*operation as usize]);
    }
    end(WRONG, &text)
}

/// Reports anything else that must not happen, and ends the process.
pub fn broken(what: &str) -> ! {
    end(WRONG, &format!("torture: BROKEN: {what}\n"))
}

/// Prints `text` and how to replay, and ends the process: the first that comes, once.
pub fn end(status: i32, text: &str) -> ! {
    static ENDING: AtomicBool = AtomicBool::new(false);
    if ENDING.swap(true, Ordering::SeqCst) {
        // Another thread is printing its report; it ends the process.
        std::thread::sleep(std::time::Duration::from_secs(10));
    }
    let replay = REPLAY.get().map_or("", String::as_str);
    eprint!("{text}  process {}\n  replay: {replay}\n", std::process::id());
    sys::end(status)
}
