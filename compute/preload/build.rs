//! Asks the loader to start this library before all others, and the linker to bind it to itself.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // DF_1_INITFIRST: see `start.rs`.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // std calls `syscall`, which is exported here: it must find this library's, not another's.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
