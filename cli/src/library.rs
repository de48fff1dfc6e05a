//! The preload library: carried inside this binary, laid down for the loader.
//!
//! One binary is all there is to copy to a machine. The loader needs a file,
//! though: it is written once per user and build, under a name with its hash,
//! and compared byte for byte before every run, so that neither an interrupted
//! write nor a wrong build is ever loaded into a program. Where a package has
//! installed the same bytes, those are used.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use farmem_sys::process;

use crate::runtime_dir;

/// `libfarmem_preload.so` as it was when this binary was linked.
static EMBEDDED: &[u8] = include_bytes!(env!("FARMEM_PRELOAD_SO"));

/// Where the Debian package puts the library.
const PACKAGED: &str = "/usr/lib/farmem/libfarmem_preload.so";

/// Why the library cannot be laid down.
#[derive(Debug, thiserror::Error)]
pub enum Unplaced {
    /// `cargo check` made this binary.
    #[error("this farmem was built without its preload library; build it with cargo build")]
    NotBuilt,
    /// The file named by FARMEM_PRELOAD is not to be had.
    #[error("FARMEM_PRELOAD: {0}: {1}")]
    Named(PathBuf, io::Error),
    /// Files there cannot be executed, or the loader could not read the name.
    #[error("{0} cannot hold the preload library ({1}); set XDG_RUNTIME_DIR to another directory of yours")]
    Unloadable(PathBuf, &'static str),
    /// No private directory.
    #[error(transparent)]
    Directory(#[from] runtime_dir::Unsafe),
    /// Writing it failed.
    #[error("cannot write {0}: {1}; set XDG_RUNTIME_DIR to a directory of yours with a few MiB of room")]
    Io(PathBuf, io::Error),
}

/// The path of a library that the loader can load into programs.
///
/// `FARMEM_PRELOAD` names one outright (for trying another build of it).
pub fn place() -> Result<PathBuf, Unplaced> {
    if let Some(named) = std::env::var_os("FARMEM_PRELOAD").filter(|name| !name.is_empty()) {
        let path = PathBuf::from(named);
        return path.canonicalize().map_err(|e| Unplaced::Named(path, e));
    }
    if EMBEDDED.is_empty() {
        return Err(Unplaced::NotBuilt);
    }
    if holds(Path::new(PACKAGED), EMBEDDED) {
        return Ok(PACKAGED.into());
    }
    let dir = runtime_dir::own_that(|dir| !process::is_noexec(dir).unwrap_or(false))?;
    if process::is_noexec(&dir).unwrap_or(false) {
        return Err(Unplaced::Unloadable(dir, "mounted noexec"));
    }
    if dir.as_os_str().as_bytes().iter().any(|b| matches!(b, b' ' | b':' | b'\t' | b'\n' | b';')) {
        return Err(Unplaced::Unloadable(dir, "LD_PRELOAD cannot name it"));
    }
    lay_down(&dir, EMBEDDED)
}

fn lay_down(dir: &Path, bytes: &[u8]) -> Result<PathBuf, Unplaced> {
    let path = dir.join(format!("libfarmem_preload-{:016x}.so", fnv1a(bytes)));
    if holds(&path, bytes) {
        return Ok(path);
    }
    // Written aside and renamed: a program that starts at this moment loads the old file or the new one.
    let aside = dir.join(format!("libfarmem_preload-{}.tmp", std::process::id()));
    fs::write(&aside, bytes).and_then(|()| fs::rename(&aside, &path)).map_err(|e| {
        let _ = fs::remove_file(&aside);
        Unplaced::Io(path.clone(), e)
    })?;
    Ok(path)
}

fn holds(path: &Path, bytes: &[u8]) -> bool {
    let as_long = fs::metadata(path).is_ok_and(|about| about.is_file() && about.len() == bytes.len() as u64);
    as_long && fs::read(path).is_ok_and(|there| there == bytes)
}

/// FNV-1a over words instead of bytes: names a build, proves nothing (the bytes are compared besides).
fn fnv1a(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let all = words.chain(rest.iter().map(|&b| u64::from(b)));
    all.fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_embedded() {
        assert!(EMBEDDED.starts_with(b"\x7fELF"));
    }

    #[test]
    fn a_broken_copy_is_replaced() {
        let dir = std::env::temp_dir().join(format!("farmem-library-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = lay_down(&dir, b"one library").unwrap();
        fs::write(&path, b"one l").unwrap();
        assert_eq!(lay_down(&dir, b"one library").unwrap(), path);
        assert!(holds(&path, b"one library"));
        assert_ne!(lay_down(&dir, b"another").unwrap(), path);
        fs::remove_dir_all(dir).unwrap();
    }
}
