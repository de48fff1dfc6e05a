//! One directory per user for what lives as long as a run: counters, sockets, the library.
//!
//! `$XDG_RUNTIME_DIR/farmem`, else `/tmp/farmem-UID`. Others may write to `/tmp`:
//! the directory counts only if it is a real directory, ours, and closed to
//! others (0700), so that nobody can put a library or a socket there for us.
//!
//! | file | of |
//! |---|---|
//! | `run-ID.counters` | a run ([`farmem_protocol::counters::File`]) |
//! | `run-ID.sock` | the embedded node of a run |
//! | `node-PID.json` | a node on this machine ([`crate::node::Status`]) |
//! | `libfarmem_preload-HASH.so` | the library, as this binary carries it |

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use farmem_sys::process;

/// Why there is no directory.
#[derive(Debug, thiserror::Error)]
pub enum Unsafe {
    /// It could not be made or looked at.
    #[error("cannot use {0}: {1}; set XDG_RUNTIME_DIR to a directory of yours")]
    Io(PathBuf, io::Error),
    /// Somebody else made it, or it is open to others.
    #[error("{0} is not a private directory of user {1}: remove it, or set XDG_RUNTIME_DIR to a directory of yours")]
    NotOurs(PathBuf, u32),
}

/// This user's directory, made if need be.
pub fn own() -> Result<PathBuf, Unsafe> {
    let under = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    if let Some(dir) = under {
        // A leftover variable of another user (`su`, `sudo -E`) must not stop a run: go on to /tmp.
        if let Ok(dir) = private(dir.join("farmem")) {
            return Ok(dir);
        }
    }
    private(format!("/tmp/farmem-{}", process::user()).into())
}

/// The directories to look through for runs and nodes: this user's; all users', for root.
pub fn visible() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = own().into_iter().collect();
    let mut add = |dir: PathBuf| {
        // The owner of the name in /tmp proves nothing to root either: links are not followed.
        if fs::symlink_metadata(&dir).is_ok_and(|about| about.is_dir()) && !found.contains(&dir) {
            found.push(dir);
        }
    };
    add(format!("/tmp/farmem-{}", process::user()).into());
    add("/run/farmem".into());
    if process::user() == 0 {
        for entry in fs::read_dir("/run/user").into_iter().flatten().flatten() {
            add(entry.path().join("farmem"));
        }
        for entry in fs::read_dir("/tmp").into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("farmem-") {
                add(entry.path());
            }
        }
    }
    found
}

fn private(dir: PathBuf) -> Result<PathBuf, Unsafe> {
    match fs::DirBuilder::new().mode(0o700).create(&dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(Unsafe::Io(dir, e)),
        _ => {}
    }
    let about = match fs::symlink_metadata(&dir) {
        Ok(about) => about,
        Err(e) => return Err(Unsafe::Io(dir, e)),
    };
    if about.is_dir() && about.uid() == process::user() && about.mode() & 0o077 == 0 {
        Ok(dir)
    } else {
        Err(Unsafe::NotOurs(dir, process::user()))
    }
}

/// A file that is removed when this value goes, unless it is [kept](Scratch::keep).
pub struct Scratch(Option<PathBuf>);

impl Scratch {
    /// Takes over the removal of a file, which need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Scratch(Some(path))
    }

    /// Leaves the file to somebody else.
    pub fn keep(&mut self) {
        self.0 = None;
    }
}

impl std::ops::Deref for Scratch {
    type Target = Path;
    fn deref(&self) -> &Path {
        self.0.as_deref().unwrap_or(Path::new(""))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_open_to_others_is_refused() {
        let dir = std::env::temp_dir().join(format!("farmem-open-{}", std::process::id()));
        private(dir.clone()).unwrap();
        private(dir.clone()).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(private(dir.clone()), Err(Unsafe::NotOurs(..))));
        fs::remove_dir(&dir).unwrap();
        std::os::unix::fs::symlink("/tmp", &dir).unwrap();
        assert!(matches!(private(dir.clone()), Err(Unsafe::NotOurs(..))));
        fs::remove_file(&dir).unwrap();
    }
}
