//! Tells the binary where cargo puts the preload library, which it embeds.
//!
//! `farmem-preload` is a cdylib besides being a library, so cargo links
//! `libfarmem_preload.so` into `deps/` before it compiles the binary, in every
//! profile, for `--target`, and for `cargo install`. `cargo check` links nothing:
//! there the file must exist and is empty (`library.rs` refuses to run with it).
//!
//! This works while all of a build's targets agree on how `farmem-preload` is
//! compiled, for the file has no hash in its name: hence no `panic = "abort"` in
//! the root's profiles (tests are always built to unwind). A nested cargo would
//! not mind, but would compile every crate of ours twice.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // OUT_DIR is PROFILE/build/farmem-cli-HASH/out.
    let profile = out.ancestors().nth(3).unwrap_or(Path::new("."));
    let library = profile.join("deps/libfarmem_preload.so");
    if !library.exists() {
        std::fs::create_dir_all(profile.join("deps")).expect("the target directory is writable");
        std::fs::write(&library, b"").expect("the target directory is writable");
    }
    println!("cargo:rustc-env=FARMEM_PRELOAD_SO={}", library.display());
}
