//! `farmem`. Its commands are in the library; here are the libraries that it carries.

// A function of the allocator's library.
#![allow(unsafe_code)]

use farmem_cli::Libraries;
use mimalloc::MiMalloc;

/// Of a store's time by glibc's allocator a fifth was its slow path, as values of 1 KiB and more
/// come and go (`docs/results/2026-11-29-store.md`).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const LIBRARIES: Libraries = Libraries {
    preload: include_bytes!(env!("FARMEM_PRELOAD_SO")),
    recorder: include_bytes!(env!("FARMEM_RECORDER_SO")),
};

// SAFETY: as mimalloc.h declares it: `void mi_collect(bool force)`.
unsafe extern "C" {
    fn mi_collect(force: bool);
}

/// Otherwise it keeps what a thread has freed, until that thread frees more.
fn return_free_memory() {
    // SAFETY: mimalloc's own function, and its allocator is this program's. It touches free memory alone.
    unsafe { mi_collect(true) };
}

fn main() {
    farmem_sys::allocator::returns_by(return_free_memory);
    farmem_cli::main(LIBRARIES);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_carried() {
        assert!([LIBRARIES.preload, LIBRARIES.recorder].iter().all(|library| library.starts_with(b"\x7fELF")));
    }
}
