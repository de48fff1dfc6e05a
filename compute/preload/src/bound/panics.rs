//! A panic of the runtime's: one line, and the process ends.
//!
//! std's own hook would print a backtrace, for which it opens files and maps them, and then unwind
//! through frames of the program's. Ours says where and what, by the runtime's own means.

use farmem_pager::ending::broken;
use std::panic::PanicHookInfo;

/// From now on a panic ends the process.
pub fn begin() {
    std::panic::set_hook(Box::new(end));
}

fn end(panic: &PanicHookInfo<'_>) {
    let what = panic.payload_as_str().unwrap_or("a panic");
    match panic.location() {
        Some(at) => broken(&format!("{what} ({at})")),
        None => broken(what),
    }
}
