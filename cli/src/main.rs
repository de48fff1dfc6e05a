//! `farmem`. Its commands are in the library; here are the libraries that it carries.

use farmem_cli::Libraries;

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
