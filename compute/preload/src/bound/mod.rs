//! libc's names that are bound within this library, so that nothing of the program's answers to
//! them.
//!
//! The compiler and std call functions by libc's names: `memcpy` for a copy, `write` for last
//! words. Another library may replace any of them (libfaketime, allocators, tracers do), and libc's
//! own read thread-locals and take locks. The runtime's threads have no thread-locals, and its
//! signal handlers interrupt the program anywhere. So these names are defined here, and hidden: the
//! linker binds every reference in this library to them, and the program never sees them.
//!
//! * [`memory`]: `memcpy` and the like.
//! * [`locals`]: std's thread-locals, without a thread.
//! * [`names`]: everything else that std can name.
//! * [`panics`]: a panic ends the process with a line.
//!
//! The imports that are left are listed, each with a reason, in `tests/tests/imports.rs`.

#[cfg(test)]
mod errors;
#[cfg(not(test))]
mod locals;
mod memory;
#[cfg(not(test))]
mod names;
mod panics;

#[cfg(not(test))]
pub use names::find_errno;

/// Makes std usable in threads without thread-locals, and panics ends. Before anything that could
/// panic.
pub fn begin() {
    #[cfg(not(test))]
    locals::begin();
    panics::begin();
}

/// Labels for a function that the assembler defines: hidden symbols of these names.
#[cfg(not(test))]
macro_rules! labels {
    ($($name:literal)*) => {
        concat!($(".globl ", $name, "\n.hidden ", $name, "\n.type ", $name, ",@function\n", $name, ":\n"),*)
    };
}
#[cfg(not(test))]
pub(crate) use labels;
