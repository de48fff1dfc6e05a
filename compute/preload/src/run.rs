//! The run that this process is in: `FARMEM_RUN` ([`farmem_run::RunSpec`]), and how its nodes are
//! joined.

use farmem_fabric::session::SILENT_NS;
use farmem_fabric::{ConnectOptions, Trust};
use farmem_protocol::wire::{Names, Text};
use farmem_run::RunSpec;
use farmem_sys::raw;
use std::ffi::CString;
use std::time::Duration;

/// How long a node may take to answer: as long as the runtime waits for a stopped node during a
/// run, because the run has reached this one before.
const ANSWER_WITHIN: Duration = Duration::from_nanos(SILENT_NS);

/// The names that a node is given of this process: its machine, its user by number, and its image.
/// They come from raw system calls, not from the program's libc.
fn names() -> Names {
    let read = |path| raw::read_file(path).unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    // SAFETY: no memory is involved.
    let user = unsafe { raw::syscall(libc::SYS_geteuid, [0; 6]) };
    Names {
        host: Text::new(&text(&read(c"/proc/sys/kernel/hostname"))),
        user: Text::new(&user.to_string()),
        program: Text::new(&text(&read(c"/proc/self/comm"))),
    }
}

/// The token in a file, which the supervisor has found in order.
fn token(path: &str) -> Result<farmem_trust::Key, String> {
    let name = CString::new(path).map_err(|_| "FARMEM_RUN: token= is no path".to_owned())?;
    let text = raw::read_file(&name).map_err(|e| format!("the run's token {path} cannot be read: {e}"))?;
    let token = String::from_utf8_lossy(&text).parse::<farmem_trust::Token>();
    token.map(|token| token.key()).map_err(|e| format!("the run's token {path}: {e}"))
}

/// How this process joins a node of the run.
///
/// # Errors
/// One line: the run's token cannot be read.
pub fn joining(run: &RunSpec) -> Result<ConnectOptions, String> {
    Ok(ConnectOptions {
        timeout: ANSWER_WITHIN,
        grace: run.grace,
        run: run.run,
        pid: raw::getpid(),
        transport: run.transport,
        names: names(),
        trust: Trust { token: run.token.as_deref().map(token).transpose()?, plain: run.plain },
    })
}
