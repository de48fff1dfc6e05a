//! Asks the loader to start this library before all others.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // DF_1_INITFIRST: see `start.rs`.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
}
