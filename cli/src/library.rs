//! The preload library: carried inside this binary, laid down for the loader.
//!
//! One binary is all there is to copy to a machine. The loader needs a file,
//! though: it is written once per user and build, under a name with its hash,
//! and compared byte for byte before every run, so that neither an interrupted
//! write nor a wrong build is ever loaded into a program. Where a package has
//! installed the same bytes, those are used.
//!
//! Those of other builds go when no run has begun with them for a day, none is under way by the
//! directory, and no process has them mapped: programs that a run executes later are loaded with
//! the library it began with.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use farmem_sys::process;

use crate::runtime_dir;

/// The names of laid-down files begin with this.
const PREFIX: &str = "libfarmem_preload-";

/// A library that no run has begun with for so long may go. In a much shorter time a run makes its
/// counters, by which it is known to be under way.
const UNUSED: Duration = Duration::from_secs(24 * 3600);
/// The time of a library is renewed when it is older than this.
const RENEWED: Duration = Duration::from_secs(3600);

/// Where the Debian package puts the library.
const PACKAGED: &str = "/usr/lib/farmem/libfarmem_preload.so";

/// Why the library cannot be laid down.
#[derive(Debug, thiserror::Error)]
pub enum Unplaced {
    /// `cargo check` made this binary.
    #[error("this farmem was built without its preload library; build it with cargo build")]
    NotBuilt,
    /// The file named by FARMEM_PRELOAD cannot be read.
    #[error("FARMEM_PRELOAD: {0}: {1}")]
    Named(PathBuf, io::Error),
    /// Files there cannot be executed, or the loader could not read the name.
    #[error("{0} cannot hold the preload library ({1}); set XDG_RUNTIME_DIR to another directory of yours")]
    Unloadable(PathBuf, &'static str),
    /// No private directory.
    #[error(transparent)]
    Directory(#[from] runtime_dir::Unsafe),
    /// A limit on the length of files is below the library's.
    #[error("cannot write {0}: files may not be as long as it is (ulimit -f): allow 70 MiB or more")]
    Limited(PathBuf),
    /// Writing it failed.
    #[error("cannot write {0}: {1}; set XDG_RUNTIME_DIR to a directory of yours with a few MiB of room")]
    Io(PathBuf, io::Error),
}

/// A library that the loader can load into programs.
pub struct Placed {
    path: PathBuf,
    /// Where it was laid down, if that was us.
    dir: Option<PathBuf>,
}

impl std::ops::Deref for Placed {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.path
    }
}

/// The library, laid down if need be.
///
/// `FARMEM_PRELOAD` names one outright (for trying another build of it).
pub fn place() -> Result<Placed, Unplaced> {
    if let Some(named) = std::env::var_os("FARMEM_PRELOAD").filter(|name| !name.is_empty()) {
        let named = PathBuf::from(named);
        let path = named.canonicalize().map_err(|e| Unplaced::Named(named, e))?;
        return Ok(Placed { path, dir: None });
    }
    let embedded = crate::carried().preload;
    if embedded.is_empty() {
        return Err(Unplaced::NotBuilt);
    }
    if holds(Path::new(PACKAGED), embedded) {
        return Ok(Placed { path: PACKAGED.into(), dir: None });
    }
    let dir = runtime_dir::own_that(|dir| !process::is_noexec(dir).unwrap_or(false))?;
    if process::is_noexec(&dir).unwrap_or(false) {
        return Err(Unplaced::Unloadable(dir, "mounted noexec"));
    }
    if dir.as_os_str().as_bytes().iter().any(|b| matches!(b, b' ' | b':' | b'\t' | b'\n' | b';')) {
        return Err(Unplaced::Unloadable(dir, "LD_PRELOAD cannot name it"));
    }
    Ok(Placed { path: lay_down(&dir, embedded)?, dir: Some(dir) })
}

fn lay_down(dir: &Path, bytes: &[u8]) -> Result<PathBuf, Unplaced> {
    let path = dir.join(format!("{PREFIX}{:016x}.so", fnv1a(bytes)));
    if holds(&path, bytes) {
        renew(&path);
        return Ok(path);
    }
    // Written aside and renamed: a program that starts at this moment loads the old file or the new
    // one.
    let aside = dir.join(format!("{PREFIX}{}.tmp", std::process::id()));
    fs::write(&aside, bytes).and_then(|()| fs::rename(&aside, &path)).map_err(|e| {
        let _ = fs::remove_file(&aside);
        match e.kind() {
            io::ErrorKind::FileTooLarge => Unplaced::Limited(path.clone()),
            _ => Unplaced::Io(path.clone(), e),
        }
    })?;
    Ok(path)
}

/// A run begins with it: it is in use for another day.
fn renew(path: &Path) {
    if is_older(path, RENEWED) {
        // One that cannot be renewed goes a day after it was laid down, at worst, and is laid down
        // again.
        let _ = fs::File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
    }
}

fn is_older(path: &Path, than: Duration) -> bool {
    let age = |modified: SystemTime| SystemTime::now().duration_since(modified).unwrap_or_default();
    fs::metadata(path).and_then(|about| about.modified()).is_ok_and(|modified| age(modified) > than)
}

impl Placed {
    /// Removes what other builds laid down beside it, and interrupted writes, as long as `in_use`
    /// does not know of them: if it lies in `dir`, where runs can be told, and none is under way
    /// there.
    pub fn sweep_others(&self, dir: &Path, in_use: impl Fn(&Path) -> bool) {
        if self.dir.as_deref() != Some(dir) {
            return;
        }
        for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let may_go = || is_older(&path, UNUSED);
            // Looking who has it takes a while, in which a run may begin with it.
            if is_laid_down(&path) && path != self.path && may_go() && !in_use(&path) && may_go() {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

/// Whether this is a file of [`lay_down`], by its name.
fn is_laid_down(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let is_hash = |hash: &str| hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit());
    let is_pid = |pid: &str| !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit());
    rest.strip_suffix(".so").is_some_and(is_hash) || rest.strip_suffix(".tmp").is_some_and(is_pid)
}

fn holds(path: &Path, bytes: &[u8]) -> bool {
    let as_long = fs::metadata(path).is_ok_and(|about| about.is_file() && about.len() == bytes.len() as u64);
    as_long && fs::read(path).is_ok_and(|there| there == bytes)
}

/// FNV-1a over words instead of bytes: names a build, proves nothing (the bytes are compared
/// besides).
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

    #[test]
    fn what_nobody_begins_with_for_a_day_goes() {
        let dir = std::env::temp_dir().join(format!("farmem-library-old-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let there = |name: &str, hours: u64| {
            let path = dir.join(name);
            let file = fs::File::create(&path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(hours * 3600)).unwrap();
            path
        };
        let of = |hash: u64| format!("{PREFIX}{hash:016x}.so");
        let mapped = there(&of(1), 30);
        let all = [there(&of(0xabc), 25), there("libfarmem_preload-77.tmp", 48)];
        let others =
            ["libfarmem_preload-mine.so", "libfarmem_preload-0123456789abcdef.so.gz", "run-4.counters", "other.so"];
        let kept = [mapped.clone(), there(&of(3), 23)].into_iter().chain(others.map(|name| there(name, 99)));
        let kept: Vec<PathBuf> = kept.collect();
        let elsewhere = Placed { path: PACKAGED.into(), dir: None };
        elsewhere.sweep_others(&dir, |_| false);
        let current = Placed { path: lay_down(&dir, b"this build's").unwrap(), dir: Some(dir.clone()) };
        fs::File::open(&*current).unwrap().set_modified(SystemTime::now() - 2 * UNUSED).unwrap();
        current.sweep_others(Path::new("/elsewhere"), |_| false);
        assert!(all.iter().all(|path| path.exists()), "what is another's is not looked at");
        current.sweep_others(&dir, |path| path == mapped);
        assert_eq!(all.map(|path| path.exists()), [false, false]);
        assert!(kept.iter().all(|path| path.exists()));
        lay_down(&dir, b"this build's").unwrap();
        assert!(!is_older(&current, RENEWED), "a run has begun with it");
        fs::remove_dir_all(dir).unwrap();
    }
}
