//! The matrix's table, a row as soon as it is known.
//!
//! Written past the test harness's capture, so that `cargo test` shows it.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, Once};
use std::time::Duration;

use farmem_tests::farmem::counter;
use serde_json::Value;

/// One program at a time; the guard is the turn.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|failed_before| failed_before.into_inner())
}

/// Prints a program's row.
pub fn row(name: &str, share: u64, native: Duration, far: Duration, peak: u64, stats: &Value) {
    static HEAD: Once = Once::new();
    let mut out = std::io::stderr().lock();
    HEAD.call_once(|| {
        let _ = writeln!(
            out,
            "\n{:<18} {:>6} {:>9} {:>9} {:>9} {:>6} {:>10} {:>9} {:>9}",
            "program", "local", "peak MiB", "native s", "far s", "ratio", "faults", "demand", "MiB moved"
        );
    });
    let moved = (counter(stats, "bytes_in") + counter(stats, "bytes_out")) >> 20;
    let _ = writeln!(
        out,
        "{name:<18} {share:>4} % {:>9} {:>9.2} {:>9.2} {:>6.2} {:>10} {:>9} {moved:>9}",
        peak >> 20,
        native.as_secs_f64(),
        far.as_secs_f64(),
        far.as_secs_f64() / native.as_secs_f64(),
        counter(stats, "faults"),
        counter(stats, "demand"),
    );
}
