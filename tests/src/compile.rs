//! The small C programs under `programs/`, each one named case of the pager.
//!
//! A case is a program that prints what it found, the same every time. It is
//! compiled once per change (the object's name carries the source's hash) and
//! run natively and on far memory; the two outputs must be equal.
//!
//! `FARMEM_TEST_LIBC=DIR` links them with the C library in that directory (of an unpacked libc6
//! package of another release) instead of the system's.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};

/// Where the C sources are.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

/// Compiles `programs/NAME.c` and returns the executable.
pub fn c(name: &str, flags: &[&str]) -> Result<PathBuf> {
    let source = sources().join(format!("{name}.c"));
    let mut hash = DefaultHasher::new();
    for file in [source.clone(), sources().join("case.h"), sources().join("../../bindings/c/farmem.h")] {
        std::fs::read(&file).with_context(|| file.display().to_string())?.hash(&mut hash);
    }
    flags.hash(&mut hash);
    let libc = std::env::var("FARMEM_TEST_LIBC").ok();
    libc.hash(&mut hash);
    let dir = std::env::temp_dir().join("farmem-tests");
    std::fs::create_dir_all(&dir)?;
    let program = dir.join(format!("{name}-{:016x}", hash.finish()));
    if program.exists() {
        return Ok(program);
    }
    // Built aside and renamed: two tests may want the same program at once.
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let aside = dir.join(format!("{name}-{}-{serial}.part", std::process::id()));
    let out =
        Command::new("gcc")
            .args(["-O1", "-g", "-Wall", "-Wno-unused-result", "-D_GNU_SOURCE", "-pthread", "-o"])
            .arg(&aside)
            .arg(&source)
            .args(flags)
            .args(libc.iter().flat_map(|dir| {
                [format!("-Wl,--dynamic-linker={dir}/ld-linux-x86-64.so.2"), format!("-Wl,-rpath,{dir}")]
            }))
            .output()
            .context("gcc is missing: run tests/peers.sh")?;
    if !out.status.success() {
        bail!("gcc {}: {}", source.display(), String::from_utf8_lossy(&out.stderr));
    }
    std::fs::rename(&aside, &program)?;
    Ok(program)
}
