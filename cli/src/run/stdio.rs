//! Standard input, output and error that were closed when this process began are closed for the
//! program, too.
//!
//! Rust's runtime opens `/dev/null` in their place before `main`, so that nothing else comes to
//! have these numbers by mistake; only who looks before the runtime can tell.
#![allow(unsafe_code)] // What is called before `main`, and between fork and exec.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bit n: descriptor n was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Called by the C library before `main`, and before Rust's runtime.
#[used]
// SAFETY: the section holds pointers to functions of this kind; this one needs nothing of Rust's
// runtime.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for fd in 0..3 {
        // SAFETY: without memory.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
}

/// Lets a command start without what this process was started without.
pub fn hand_back(command: &mut Command) {
    let closed = CLOSED.load(Ordering::Relaxed);
    if closed == 0 {
        return;
    }
    let close = move || {
        for fd in (0..3).filter(|fd| closed & 1 << fd != 0) {
            // SAFETY: of the child's descriptors, which nothing there uses between fork and exec.
            unsafe { libc::close(fd) };
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls alone, on a number copied before.
    unsafe { command.pre_exec(close) };
}
