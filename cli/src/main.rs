//! `farmem`. Its commands are in the library; here are the libraries that it carries.

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

fn main() {
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
