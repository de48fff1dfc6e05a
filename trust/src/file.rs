//! Files that hold a secret. Commands, agents and libraries read them at start. A file that others
//! may read is refused.

use crate::{Key, NoToken, Token};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The variable that names the file of the token by which a program borrows.
pub const VARIABLE: &str = "FARMEM_TOKEN";

/// Why a file with a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read or written.
    #[error("{0}: {1}")]
    File(PathBuf, io::Error),
    /// Others may read it.
    #[error("{0}: others may read it, and it holds a secret: chmod 600 {0}")]
    Mode(PathBuf),
    /// It holds no token.
    #[error("{0}: {1}")]
    Content(PathBuf, NoToken),
}

/// The longest that a pipe may say nothing.
const SILENCE: Duration = Duration::from_secs(10);
/// Between two looks at a silent one.
const PAUSE: Duration = Duration::from_millis(5);
const O_NONBLOCK: i32 = 0o4000;

/// Reads a file that holds a secret, or a pipe, as a shell's `<(command)` is.
///
/// # Errors
/// [`FileError::Mode`] if others may read it ([`is_private`]). [`FileError::File`] if it cannot be
/// read, or if a pipe says nothing for ten seconds: callers may have blocked their signals.
pub fn secret(path: &Path) -> Result<String, FileError> {
    within(path, SILENCE)
}

fn within(path: &Path, silence: Duration) -> Result<String, FileError> {
    let failed = |e| FileError::File(path.to_owned(), e);
    let mut file = opened(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if about.file_type().is_fifo() {
        return heard(file, silence).map_err(failed);
    }
    if about.is_file() && !is_private(about.mode(), about.uid()) {
        return Err(FileError::Mode(path.to_owned()));
    }
    let mut text = String::new();
    waiting(&mut file).and_then(|()| file.read_to_string(&mut text)).map_err(failed)?;
    Ok(text)
}

/// A terminal is waited for. The same file is opened again: another may lie in its place by now.
fn waiting(file: &mut File) -> io::Result<()> {
    if file.metadata()?.file_type().is_char_device() {
        *file = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    }
    Ok(())
}

/// Opens a file, or a pipe, whose writer is not waited for. What is known of it then is of what is
/// read: others may put another file in its place.
fn opened(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)
}

/// Reads a file that holds no secret, or a pipe.
///
/// # Errors
/// If it cannot be read, or if a pipe says nothing for ten seconds.
pub fn text(path: &Path) -> io::Result<String> {
    let mut file = opened(path)?;
    if file.metadata()?.file_type().is_fifo() {
        return heard(file, SILENCE);
    }
    waiting(&mut file)?;
    io::read_to_string(file)
}

/// What a pipe says until its last writer has gone, if its silence is never longer than that.
fn heard(mut pipe: File, silence: Duration) -> io::Result<String> {
    let (mut said, mut part) = (Vec::new(), [0; 4096]);
    let mut last = Instant::now();
    loop {
        match pipe.read(&mut part) {
            Ok(0) if !said.is_empty() => break,
            // No writer has come yet, or one has gone without a word.
            Ok(0) => {}
            Ok(n) => {
                said.extend_from_slice(&part[..n]);
                last = Instant::now();
                continue;
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e),
        }
        if last.elapsed() > silence {
            let what = format!("a pipe into which nobody has written for {} s", silence.as_secs());
            return Err(io::Error::new(ErrorKind::TimedOut, what));
        }
        std::thread::sleep(PAUSE);
    }
    String::from_utf8(said).map_err(|e| io::Error::new(ErrorKind::InvalidData, e.utf8_error()))
}

/// Whether a file's mode keeps a secret: only its owner has rights. If root owns the file, a group
/// may read it: Kubernetes and systemd hand secrets to a service in a group of its own.
fn is_private(mode: u32, owner: u32) -> bool {
    let group = if owner == 0 { 0o040 } else { 0 };
    mode & 0o077 & !group == 0
}

/// The key of the token in a file.
///
/// # Errors
/// As [`secret`], and [`FileError::Content`].
pub fn token(path: &Path) -> Result<Key, FileError> {
    let token = secret(path)?.parse::<Token>();
    token.map(|token| token.key()).map_err(|e| FileError::Content(path.to_owned(), e))
}

/// The key of the token in the file that [`VARIABLE`] names. `None`: the variable is not set.
///
/// # Errors
/// As [`token`].
pub fn of_environment() -> Result<Option<Key>, FileError> {
    let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    named.map(|path| token(Path::new(&path))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_pipe_is_heard_to_its_end_and_not_waited_for_without_end() {
        let path = std::env::temp_dir().join(format!("farmem-secret-{}", std::process::id()));
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let silent = heard(opened(&path).unwrap(), Duration::from_millis(30)).unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::TimedOut, "{silent}");
        let writer = std::thread::spawn({
            let path = path.clone();
            move || {
                std::thread::sleep(Duration::from_millis(50));
                let mut pipe = OpenOptions::new().write(true).open(path).unwrap();
                pipe.write_all(b"first ").unwrap();
                std::thread::sleep(Duration::from_millis(50));
                pipe.write_all(b"second").unwrap();
            }
        });
        assert_eq!(secret(&path).unwrap(), "first second");
        writer.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    /// Somebody who may write to the folder lays a pipe there and a file that all may read, by
    /// turns. What is looked at is what is read.
    #[test]
    fn a_file_that_others_may_read_is_never_taken_for_a_pipe() {
        let folder = std::env::temp_dir().join(format!("farmem-swapped-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let [named, pipe, open] = ["secret", "pipe", "open"].map(|name| folder.join(name));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::fs::write(&open, "everybody's").unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
        std::fs::hard_link(&open, &named).unwrap();
        let is_over = AtomicBool::new(false);
        let read = std::thread::scope(|scope| {
            scope.spawn(|| {
                let draft = folder.join("draft");
                for laid in [&pipe, &open].into_iter().cycle().take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    std::fs::hard_link(laid, &draft).unwrap();
                    std::fs::rename(&draft, &named).unwrap();
                }
            });
            let until = Instant::now() + Duration::from_millis(300);
            let mut each = std::iter::from_fn(|| (Instant::now() < until).then(|| within(&named, Duration::ZERO)));
            let read = each.find_map(Result::ok);
            is_over.store(true, Ordering::Relaxed);
            read
        });
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(read, None);
    }

    #[test]
    fn a_secret_is_its_owners_alone_or_of_a_group_that_root_chose() {
        assert!(is_private(0o100600, 1000) && is_private(0o100400, 0) && is_private(0o100440, 0));
        for (mode, owner) in [(0o100440, 1000), (0o100604, 0), (0o100644, 0), (0o100660, 0), (0o100601, 1000)] {
            assert!(!is_private(mode, owner), "{mode:o} of {owner}");
        }
    }
}
