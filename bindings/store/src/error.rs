//! Errors as C sees them: a code, and one line that says what to do.

use crate::handle::Refused;
use farmem_kv::{Failed, Trouble};
use std::ffi::{c_char, c_int};

/// The codes of `farmem_store.h`.
pub mod code {
    #![allow(missing_docs)] // The header describes them.
    use std::ffi::c_int;

    pub const OK: c_int = 0;
    pub const ABSENT: c_int = 1;
    pub const PRESENT: c_int = 2;
    pub const SMALL: c_int = 3;
    pub const INVALID: c_int = -1;
    pub const UNREACHED: c_int = -2;
    pub const LOST: c_int = -3;
    pub const FULL: c_int = -4;
    pub const TOO_LARGE: c_int = -5;
    pub const UNSURE: c_int = -6;
    pub const WRONG_TYPE: c_int = -7;
    pub const FORKED: c_int = -8;
    pub const CLOSED: c_int = -9;
    pub const FAILED: c_int = -10;
}

/// `struct farmem_store_error`.
#[repr(C)]
#[derive(Debug)]
pub struct Error {
    code: c_int,
    text: [c_char; 508],
}

/// Why a call or an operation failed.
#[derive(Debug)]
pub(crate) struct Problem {
    pub code: c_int,
    pub text: String,
}

impl Problem {
    pub fn invalid(text: String) -> Problem {
        Problem { code: code::INVALID, text }
    }

    pub fn unreached(text: String) -> Problem {
        Problem { code: code::UNREACHED, text }
    }

    pub fn panicked() -> Problem {
        Problem { code: code::FAILED, text: "a defect of farmem's: it panicked, and said so on standard error".into() }
    }

    pub fn no_memory(bytes: usize) -> Problem {
        Problem { code: code::FAILED, text: format!("malloc has no {bytes} bytes") }
    }

    /// A store that was not opened.
    pub fn not_opened(failed: Failed) -> Problem {
        Problem::unreached(failed.to_string())
    }

    pub fn of(failed: &Failed) -> Problem {
        let (code, text) = match failed {
            Failed::Memory(farmem::Error::Lost { .. } | farmem::Error::Refused(_)) | Failed::ShutOut => {
                return Problem::lost(&failed.to_string());
            }
            Failed::Memory(farmem::Error::Forked) => return Problem::forked(),
            Failed::Refused(Trouble::Full) => {
                (code::FULL, "the store's memory is used up: remove keys, raise maxmemory, or lend more".into())
            }
            Failed::Refused(Trouble::Deep) => (code::FULL, plain(failed)),
            Failed::Refused(Trouble::TooLarge | Trouble::Beyond) => (code::TOO_LARGE, plain(failed)),
            Failed::Refused(Trouble::Unsettled | Trouble::ShutOut) => (code::UNSURE, plain(failed)),
            Failed::WrongType => (code::WRONG_TYPE, "the key holds a list, a hash, a set or a sorted set".into()),
            other => (code::FAILED, plain(other)),
        };
        Problem { code, text }
    }

    fn lost(why: &str) -> Problem {
        Problem { code: code::LOST, text: format!("{why}; close the store, and open it anew when its nodes are back") }
    }

    fn forked() -> Problem {
        let text = "the store was opened before a fork: open one of its own in the child";
        Problem { code: code::FORKED, text: text.into() }
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Problem {
        match refused {
            Refused::Failed(failed) => Problem::of(&failed),
            Refused::Lost(why) => Problem::lost(&why),
            Refused::Closed => Problem { code: code::CLOSED, text: "the store was closed".into() },
            Refused::Forked => Problem::forked(),
        }
    }
}

/// A failure's text without the word in capitals by which redis clients know it.
fn plain(failed: &Failed) -> String {
    let text = failed.to_string();
    match text.split_once(' ') {
        Some((first, rest)) if first.len() > 1 && first.bytes().all(|byte| byte.is_ascii_uppercase()) => {
            rest.to_owned()
        }
        _ => text,
    }
}

/// Writes an error down, cut to its room.
///
/// # Safety
/// `why` is null or points to memory for an error that nobody else uses meanwhile.
pub(crate) unsafe fn describe(why: *mut Error, problem: &Problem) {
    if why.is_null() {
        return;
    }
    let mut error = Error { code: problem.code, text: [0; 508] };
    let mut room = error.text.len() - 1;
    while !problem.text.is_char_boundary(room.min(problem.text.len())) {
        room -= 1;
    }
    for (to, from) in error.text[..room].iter_mut().zip(problem.text.bytes()) {
        *to = from as c_char;
    }
    // SAFETY: as this function's caller promises.
    unsafe { why.write(error) }
}
