//! Tells the binary where cargo puts the libraries that it embeds: the preload library, and the
//! plugin by which `farmem amat` records.
//!
//! `farmem-preload` and `farmem-recorder` are cdylibs besides being libraries, so
//! cargo links `libfarmem_….so` into `deps/` before it compiles the binary, in every
//! profile, for `--target`, and for `cargo install`. `cargo check` links nothing:
//! there the files must exist and are empty (commands that need one refuse to run with it).
//!
//! All of a build's targets must agree on how these crates are compiled, because
//! the files have no hash in their names: hence no `panic = "abort"` in the root's
//! profiles (tests are always built to unwind). A nested cargo would not mind, but
//! would compile every crate of ours twice.

use std::path::{Path, PathBuf};

fn main() {
    // Not at every change of the package: only the script itself decides.
    println!("cargo:rerun-if-env-changed=OUT_DIR");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // OUT_DIR is PROFILE/build/farmem-cli-HASH/out.
    let profile = out.ancestors().nth(3).unwrap_or(Path::new("."));
    std::fs::create_dir_all(profile.join("deps")).expect("the target directory is writable");
    for name in ["preload", "recorder"] {
        let library = profile.join(format!("deps/libfarmem_{name}.so"));
        if !library.exists() {
            std::fs::write(&library, b"").expect("the target directory is writable");
        }
        println!("cargo:rustc-env=FARMEM_{}_SO={}", name.to_uppercase(), library.display());
    }
}
