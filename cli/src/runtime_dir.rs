//! One directory per user for what lives as long as a run: counters, sockets, the library.
//!
//! `$XDG_RUNTIME_DIR/farmem`, else `/tmp/farmem-UID`; where `/tmp` cannot be used (read-only
//! containers, even if the name is there), the same name in `/dev/shm` or `/var/tmp`. Others may
//! write there: a directory counts only if it is a real directory, ours, and closed to others
//! (0700), so that nobody can put a library or a socket there for us.
//!
//! | file | of |
//! |---|---|
//! | `run-ID.counters` | a run ([`farmem_run::counters::File`]) |
//! | `run-ID.sock` | the embedded node of a run |
//! | `node-PID.json` | a node on this machine ([`crate::node::Status`]) |
//! | `node-PID.sock` | the same, if it was told to listen on TCP alone: by it programs here map its memory |
//! | `kv-PID.json` | a front end of a store ([`crate::kv::status::Status`]) |
//! | `libfarmem_preload-HASH.so` | the library, as this binary carries it |

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use farmem_control::client::cleaned;
use farmem_sys::process;
use serde::de::DeserializeOwned;

/// Why there is no directory.
#[derive(Debug, thiserror::Error)]
pub enum Unsafe {
    /// It could not be made or looked at.
    #[error("cannot use {0}: {1}; set XDG_RUNTIME_DIR to a directory of yours")]
    Io(PathBuf, io::Error),
    /// Another user made it, or it is open to others.
    #[error("{0} is not a private directory of user {1}: remove it, or set XDG_RUNTIME_DIR to a directory of yours")]
    NotOurs(PathBuf, u32),
}

/// The longest status file that is read.
pub const LONGEST: u64 = 64 << 10;

/// Where every user may make a directory, in the order in which it is tried.
const SHARED: [&str; 3] = ["/tmp", "/dev/shm", "/var/tmp"];

fn shared() -> impl Iterator<Item = PathBuf> {
    SHARED.iter().map(|dir| format!("{dir}/farmem-{}", process::user()).into())
}

/// This user's directory, made if need be.
pub fn own() -> Result<PathBuf, Unsafe> {
    own_that(|_| true)
}

/// The first of this user's directories that `will_do`. Where none will, but one could be made:
/// that one.
pub fn own_that(will_do: impl Fn(&Path) -> bool) -> Result<PathBuf, Unsafe> {
    let mut usable = std::env::var_os("XDG_RUNTIME_DIR").and_then(|dir| below(Path::new(&dir)));
    let mut refusal = None;
    for dir in shared() {
        if usable.as_deref().is_some_and(&will_do) {
            break;
        }
        match private(dir) {
            Ok(dir) if usable.is_none() || will_do(&dir) => usable = Some(dir),
            Ok(_) => {}
            Err(e) => refusal = refusal.or(Some(e)),
        }
    }
    match (usable, refusal) {
        (Some(dir), _) => Ok(dir),
        (None, Some(refusal)) => Err(refusal),
        (None, None) => unreachable!("there are directories to try"),
    }
}

/// This user's directory in that of `$XDG_RUNTIME_DIR`. `None`: it will not do. The variable may be
/// a leftover of another user (`su`, `sudo -E`). That one could put another directory in the place
/// of ours, with another library.
fn below(dir: &Path) -> Option<PathBuf> {
    let is_of_us = |about: fs::Metadata| [0, process::user()].contains(&about.uid());
    let is_sound = dir.is_absolute() && fs::metadata(dir).is_ok_and(is_of_us);
    if is_sound { private(dir.join("farmem")).ok() } else { None }
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
    shared().for_each(&mut add);
    add("/run/farmem".into());
    if process::user() == 0 {
        // One directory of each user in each place, or a user could make any number.
        let is_of = |name: &str, owner: u32| name.strip_prefix("farmem-") == Some(owner.to_string().as_str());
        for entry in fs::read_dir("/run/user").into_iter().flatten().flatten() {
            add(entry.path().join("farmem"));
        }
        for entry in SHARED.iter().flat_map(fs::read_dir).flatten().flatten() {
            let name = entry.file_name();
            let owner = || entry.metadata().map(|about| about.uid());
            if name.to_string_lossy().starts_with("farmem-")
                && owner().is_ok_and(|uid| is_of(&name.to_string_lossy(), uid))
            {
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
    if !about.is_dir() || about.uid() != process::user() || about.mode() & 0o077 != 0 {
        return Err(Unsafe::NotOurs(dir, process::user()));
    }
    // It may be of a time before its file system became read-only.
    match process::may_write(&dir) {
        Ok(()) => Ok(dir),
        Err(e) => Err(Unsafe::Io(dir, e)),
    }
}

/// Whether a directory is this user's, and nobody else can change what is in it.
pub fn is_own(dir: &Path) -> bool {
    let is_own = |about: fs::Metadata| about.is_dir() && about.uid() == process::user() && about.mode() & 0o022 == 0;
    fs::symlink_metadata(dir).is_ok_and(is_own)
}

/// The content of a status file, of which at most `longest` bytes are read. Root also reads files that other users made.
/// So a pipe or a device does not block it, the part that is read is bounded, and control characters
/// are taken out.
pub fn status<T: DeserializeOwned>(path: &Path, longest: u64) -> Option<T> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let is_file = file.metadata().is_ok_and(|about| about.is_file());
    let mut text = Vec::new();
    file.take(if is_file { longest } else { 0 }).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).map(cleaned).and_then(serde_json::from_value).ok()
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
    fn another_directory_is_found_where_the_first_will_not_do() {
        let elsewhere = own_that(|dir| dir.starts_with("/var/tmp")).unwrap();
        assert!(elsewhere.starts_with("/var/tmp"), "{}", elsewhere.display());
        let _ = fs::remove_dir(elsewhere);
        let first = own_that(|_| false).unwrap();
        assert_eq!(first, own().unwrap());
    }

    #[test]
    fn nothing_is_made_in_the_directory_of_another_user() {
        let dir = std::env::temp_dir().join(format!("farmem-others-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        // Only root can give a directory away, and only root is led to another's by `su`.
        if std::os::unix::fs::chown(&dir, Some(1234), None).is_ok() {
            assert_eq!(below(&dir), None);
            assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
            std::os::unix::fs::chown(&dir, Some(process::user()), None).unwrap();
        }
        assert_eq!(below(&dir), Some(dir.join("farmem")));
        assert_eq!(below(Path::new("farmem-relative")), None);
        fs::remove_dir_all(dir).unwrap();
    }

    /// `/proc/sys` refuses root, too, as a read-only file system does.
    #[test]
    fn a_directory_that_takes_no_files_is_passed_over() {
        assert!(process::may_write(Path::new("/proc/sys")).is_err());
        assert!(process::may_write(Path::new("/nonexistent")).is_err());
        assert!(process::may_write(&std::env::temp_dir()).is_ok());
    }

    /// Root looks into directories that others fill.
    #[test]
    fn a_status_file_of_another_holds_nobody_up_and_draws_nothing() {
        let dir = std::env::temp_dir().join(format!("farmem-status-{}", std::process::id()));
        private(dir.clone()).unwrap();
        let read = |name: &str| status::<serde_json::Value>(&dir.join(name), LONGEST);
        fs::write(dir.join("good"), r#"{"listen":["a\u001b[2J"]}"#).unwrap();
        assert_eq!(read("good").unwrap()["listen"][0], "a?[2J");
        std::os::unix::fs::symlink("good", dir.join("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.join("endless")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(dir.join("pipe")).status().unwrap();
        assert!(made.success());
        let long = fs::File::create(dir.join("long")).unwrap();
        long.set_len(1 << 40).unwrap();
        for name in ["link", "endless", "pipe", "long", "absent"] {
            assert_eq!(read(name), None, "{name}");
        }
        fs::remove_dir_all(dir).unwrap();
    }

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
