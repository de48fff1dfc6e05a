//! System calls that are forbidden from outside are told at the start, by their names.
//!
//! A container's seccomp profile answers by an error, deep inside of whatever needs the call. So
//! each command that cannot do without some calls tries them first (`farmem_sys::probe`).

// A constructor: Rust's library makes three calls before `main`, and aborts where they fail.
#![allow(unsafe_code)]

use farmem_run::exit;
use farmem_sys::probe::{self, Call, Refused};
use farmem_sys::raw::write_all;

use crate::failure::Failure;

#[used]
#[unsafe(link_section = ".init_array")]
static EARLY: extern "C" fn() = before_main;

extern "C" fn before_main() {
    if let Some(refused) = probe::first_failed(probe::EARLY) {
        let _ = write_all(libc::STDERR_FILENO, format!("farmem: {}\n", line(refused)).as_bytes());
        // SAFETY: ends the process.
        unsafe { libc::_exit(exit::USAGE) };
    }
}

/// Refuses to go on where one of these calls cannot be made.
pub fn check(calls: &[&[Call]]) -> Result<(), Failure> {
    probe::first_refused(calls).map_or(Ok(()), |refused| Err(Failure::usage(line(refused))))
}

fn line((call, why): (Call, Refused)) -> String {
    format!(
        "the system call {} cannot be made here ({why}): whatever confines this process must allow it; see docs/containers.md",
        call.name
    )
}
